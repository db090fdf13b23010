//! Chapter "Canister interface": what each function of the System API does.

use candid::{Encode, Principal};
use ic_management_canister_types::{CanisterInstallMode, CreateCanisterArgs};

use super::{fixture::*, harness::management, program::*};

/// An address beyond every memory of 32 bit that there is here.
const NOWHERE: u64 = 0xFFFF_FFF0;

/// The integers of a reply.
#[track_caller]
fn integers(outcome: Outcome) -> Vec<u64> {
    let bytes = outcome.unwrap();
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Appends the integer on the top to the reply.
fn append_int(program: Program) -> Program {
    program.eight_bytes().append()
}

/// Replies one integer.
fn reply_of(name: &str, arguments: &[u64]) -> Program {
    program().import_of(name, arguments).reply_int()
}

// Method arguments.

// Promise: P9 - System API functions return the values of the specification.
#[test]
fn msg_arg_data_is_the_argument_of_the_call() {
    run(async |world| {
        let canister = world.canister().await;
        let what = program().blob("msg_arg_data").reply();
        let expected = what.clone().encoded();
        assert_eq!(canister.update(what.clone()).await.unwrap(), expected);
        assert_eq!(canister.query(what).await.unwrap(), expected);
    });
}

#[test]
fn msg_arg_data_in_a_reply_callback_is_the_reply() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "update").doing(reply(b"an answer"));
        assert_eq!(caller.update(program().call_must(call)).await.unwrap(), b"an answer");
    });
}

#[test]
fn msg_arg_data_in_init_and_post_upgrade_is_that_of_install_code() {
    run(async |world| {
        let canister = world.canister().await;
        let what = program().bytes(b"<").blob("msg_arg_data").concat().keep().encoded();
        let expected = [b"<", what.as_slice()].concat();
        for mode in [CanisterInstallMode::Reinstall, CanisterInstallMode::Upgrade(None)] {
            world.install(canister.id, mode, module(), what.clone()).await.unwrap();
            assert_eq!(canister.kept().await, expected, "{mode:?}");
        }
    });
}

#[test]
fn a_copy_takes_from_the_offset_so_many_bytes() {
    run(async |world| {
        let canister = world.canister().await;
        let what = |offset, size| {
            let copied = program().int(size).room().copy(0).split().drop_top();
            copied.import_of("canister_self_copy", &[offset, size]).reply()
        };
        let id = canister.id.as_slice().to_vec();
        assert_eq!(canister.query(what(0, id.len() as u64)).await.unwrap(), id);
        assert_eq!(canister.query(what(3, 2)).await.unwrap(), id[3..5]);
        assert_eq!(canister.query(what(id.len() as u64, 0)).await.unwrap(), b"");
    });
}

/// Names of the byte strings that an update method may copy.
const COPIED: [&str; 7] = [
    "msg_arg_data",
    "msg_caller",
    "msg_caller_info_data",
    "msg_caller_info_signer",
    "canister_self",
    "subnet_self",
    "root_key",
];

#[test]
fn a_copy_beyond_the_end_of_the_data_traps() {
    run(async |world| {
        let canister = world.canister().await;
        let mut differ = Differences::default();
        for name in COPIED {
            let size = format!("{name}_size");
            let copy = format!("{name}_copy");
            for (offset, more) in [(0, 1), (1, 0), (u64::from(u32::MAX), 0)] {
                let with_size = program().int(64).int(offset).import(&size).int(more).add();
                let what = with_size.import(&copy).then(reply(b""));
                let done = canister.update(what).await;
                if !matches!(&done, Err(reject) if reject.code == 5) {
                    differ.record(format!("{name} {offset} {more}"), done);
                }
            }
        }
        differ.none();
    });
}

#[test]
fn a_copy_to_beyond_the_end_of_memory_traps() {
    run(async |world| {
        let canister = world.canister().await;
        for name in ["msg_arg_data", "msg_caller", "canister_self", "subnet_self", "root_key"] {
            let copy = format!("{name}_copy");
            let what = program().import_of(&copy, &[NOWHERE, 0, 1]).then(reply(b""));
            assert_eq!(code(canister.update(what).await), 5, "{name}");
        }
    });
}

#[test]
fn msg_caller_is_the_user_or_the_canister_that_calls() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let what = || program().blob("msg_caller").reply();
        let user = world.stranger.get_principal().unwrap();
        let told = callee.call(&world.stranger, "update", what()).await.unwrap();
        assert_eq!(told, user.as_slice());
        let told = callee.ask(&world.stranger, "query", what()).await.unwrap();
        assert_eq!(told, user.as_slice());
        let told = callee.ask(&world.anonymous, "query", what()).await.unwrap();
        assert_eq!(told, Principal::anonymous().as_slice());
        let call = Call::to(callee.id, "update").doing(what());
        let told = caller.update(program().call_must(call)).await.unwrap();
        assert_eq!(told, caller.id.as_slice());
    });
}

#[test]
fn msg_caller_of_an_installation_or_an_upgrade_is_who_asked_for_it() {
    run(async |world| {
        let canister = world.canister().await;
        // The old module writes it to stable memory, the new one keeps it.
        let old = program().import_of("stable64_grow", &[1]).drop_top().int(0);
        let old = old.blob("msg_caller").split().import("stable64_write");
        canister.update(program().hook(Hook::PreUpgrade, old).then(reply(b""))).await.unwrap();
        let new = program().blob("msg_caller").keep().encoded();
        let mode = CanisterInstallMode::Upgrade(None);
        world.install(canister.id, mode, module(), new).await.unwrap();
        let user = world.agent.get_principal().unwrap();
        assert_eq!(canister.kept().await, user.as_slice());
        let read = program().int(29).room().copy(0).split().drop_top();
        let read = read.import_of("stable64_read", &[0, user.as_slice().len() as u64]).reply();
        assert_eq!(canister.query(read).await.unwrap()[..29], *user.as_slice());
    });
}

#[test]
fn msg_caller_of_a_timer_is_the_management_canister() {
    run(async |world| {
        let canister = world.canister().await;
        let timer = program().bytes(b"caller:").blob("msg_caller").concat().keep();
        let set = program().hook(Hook::GlobalTimer, timer).import_of("global_timer_set", &[1]);
        canister.update(set.drop_top().then(reply(b""))).await.unwrap();
        let expected = [b"caller:", management().as_slice()].concat();
        canister.keeps(&expected).await;
    });
}

#[test]
fn msg_caller_info_is_empty_for_callers_without_a_canister_signature() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let sizes = append_int(program().import("msg_caller_info_data_size"));
        let sizes = append_int(sizes.import("msg_caller_info_signer_size")).import("msg_reply");
        assert_eq!(integers(callee.update(sizes.clone()).await), [0, 0]);
        assert_eq!(integers(callee.query(sizes.clone()).await), [0, 0]);
        let call = Call::to(callee.id, "update").doing(sizes);
        assert_eq!(integers(caller.update(program().call_must(call)).await), [0, 0]);
    });
}

// Rejects and deadlines.

#[test]
fn msg_reject_code_is_0_in_a_reply_callback() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "update")
            .doing(reply(b""))
            .on_reply(program().import("msg_reject_code").int(7).add().reply_int());
        assert_eq!(number(caller.update(program().call_must(call)).await), 7);
    });
}

#[test]
fn msg_reject_code_is_0_in_the_cleanup_of_a_reply_callback() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "update")
            .doing(reply(b""))
            .on_reply(trap("on purpose"))
            .on_cleanup(program().import("msg_reject_code").eight_bytes().keep());
        assert_eq!(code(caller.update(program().call_must(call)).await), 5);
        assert_eq!(caller.kept().await, 0u64.to_le_bytes());
    });
}

#[test]
fn msg_reject_code_is_the_reject_code_in_the_cleanup_of_a_reject_callback() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "update")
            .doing(reject("no"))
            .on_reject(trap("on purpose"))
            .on_cleanup(program().import("msg_reject_code").eight_bytes().keep());
        assert_eq!(code(caller.update(program().call_must(call)).await), 5);
        assert_eq!(caller.kept().await, 4u64.to_le_bytes());
    });
}

#[test]
fn msg_reject_msg_is_the_text_of_the_reject() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "update").doing(reject("not today: \u{e4}"));
        let told = told_reject(caller.update(program().call_must(call)).await);
        assert_eq!(told, (4, "not today: \u{e4}".to_owned()));
    });
}

#[test]
fn msg_deadline_is_0_unless_the_caller_waits_for_a_bounded_time() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let what = || reply_of("msg_deadline", &[]);
        assert_eq!(number(callee.update(what()).await), 0);
        assert_eq!(number(callee.query(what()).await), 0);
        assert_eq!(number(callee.replicated_query(what()).await), 0);
        assert_eq!(number(callee.composite(what()).await), 0);
        for method in ["update", "query"] {
            let call = Call::to(callee.id, method).doing(what());
            assert_eq!(number(caller.update(program().call_must(call)).await), 0, "{method}");
        }
        // A query method has no deadline even then.
        let call = Call::to(callee.id, "query").doing(what()).timeout(60);
        assert_eq!(number(caller.update(program().call_must(call)).await), 0);
    });
}

/// Calls `callee` with that timeout; replies the caller's time and what the callee replies.
fn bounded(callee: Universal, seconds: u32, what: Program) -> Program {
    let call = Call::to(callee.id, "update").doing(what).timeout(seconds);
    let call = call.on_reply(program().kept().blob("msg_arg_data").concat().reply());
    program().import("time").eight_bytes().keep().call_must(call)
}

#[test]
fn msg_deadline_of_a_bounded_wait_call_is_its_time_and_its_timeout() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let what = bounded(callee, 60, reply_of("msg_deadline", &[]));
        let told = integers(caller.update(what).await);
        assert_eq!(told[1] - told[0], 60_000_000_000);
    });
}

#[test]
fn msg_deadline_stays_in_the_callbacks_of_a_method_called_with_one() {
    run(async |world| {
        let [caller, callee, third] = world.canisters().await;
        let further =
            Call::to(third.id, "update").doing(reply(b"")).on_reply(reply_of("msg_deadline", &[]));
        let told = integers(caller.update(bounded(callee, 50, program().call_must(further))).await);
        assert_eq!(told[1] - told[0], 50_000_000_000);
    });
}

#[test]
fn a_timeout_above_the_largest_is_the_largest_and_no_error() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let what = bounded(callee, u32::MAX, reply_of("msg_deadline", &[]));
        let told = integers(caller.update(what).await);
        let seconds = (told[1] - told[0]) / 1_000_000_000;
        assert!((1..u64::from(u32::MAX)).contains(&seconds), "{seconds} s");
    });
}

// Responding.

#[test]
fn a_reply_is_all_the_data_that_was_appended() {
    run(async |world| {
        let canister = world.canister().await;
        let parts = program().bytes(b"ab").append().bytes(b"").append().bytes(b"cd").reply();
        assert_eq!(canister.update(parts.clone()).await.unwrap(), b"abcd");
        assert_eq!(canister.query(parts).await.unwrap(), b"abcd");
        assert_eq!(canister.update(program().import("msg_reply")).await.unwrap(), b"");
    });
}

#[test]
fn after_a_response_every_further_one_traps() {
    run(async |world| {
        let canister = world.canister().await;
        let again: [Program; 3] =
            [program().import("msg_reply"), reject("no"), program().bytes(b"x").append()];
        for (place, second) in again.into_iter().enumerate() {
            for first in [reply(b"first"), reject("first")] {
                let done = canister.update(first.then(second.clone())).await;
                assert_eq!(code(done), 5, "{place}");
            }
        }
    });
}

#[test]
fn a_method_that_responds_to_nobody_is_an_error_of_the_canister() {
    run(async |world| {
        let [canister, other] = world.canisters().await;
        assert_eq!(code(canister.update(program()).await), 5);
        assert_eq!(code(canister.query(program()).await), 5);
        let call = Call::to(other.id, "update").doing(program());
        assert_eq!(told_reject(canister.update(program().call_must(call)).await).0, 5);
    });
}

#[test]
fn data_that_was_not_replied_is_gone_after_the_message() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "update").doing(reply(b"")).on_reply(reply(b"later"));
        let what = program().bytes(b"earlier").append().call_must(call);
        assert_eq!(caller.update(what).await.unwrap(), b"later");
    });
}

#[test]
fn msg_reject_rejects_with_the_text_and_the_code_of_canisters() {
    run(async |world| {
        let canister = world.canister().await;
        let what = || program().bytes(b"data").append().then(reject("for this reason"));
        for done in [canister.update(what()).await, canister.query(what()).await] {
            let refused = done.unwrap_err();
            assert_eq!((refused.code, refused.text.as_str()), (4, "for this reason"));
        }
    });
}

#[test]
fn msg_reject_traps_on_what_is_not_text_or_not_in_memory() {
    run(async |world| {
        let canister = world.canister().await;
        let not_text = program().bytes(&[0xff, 0xfe]).split().import("msg_reject");
        assert_eq!(code(canister.update(not_text).await), 5);
        let outside = program().import_of("msg_reject", &[NOWHERE, 1]);
        assert_eq!(code(canister.update(outside).await), 5);
    });
}

#[test]
fn every_function_that_reads_memory_traps_beyond_its_end() {
    run(async |world| {
        let canister = world.canister().await;
        let call = || program().begin(&Call::to(management(), "raw_rand"));
        let cases = [
            ("msg_reply_data_append", program()),
            ("certified_data_set", program()),
            ("is_controller", program()),
            ("call_data_append", call()),
            ("env_var_name_exists", program()),
            ("env_var_value_size", program()),
        ];
        for (name, before) in cases {
            let what = before.import_of(name, &[NOWHERE, 1]).then(reply(b""));
            assert_eq!(code(canister.update(what).await), 5, "{name}");
        }
    });
}

#[test]
fn every_function_that_writes_an_amount_traps_beyond_the_end_of_memory() {
    run(async |world| {
        let canister = world.canister().await;
        let cases: [(&str, &[u64]); 7] = [
            ("canister_cycle_balance128", &[NOWHERE]),
            ("canister_liquid_cycle_balance128", &[NOWHERE]),
            ("msg_cycles_available128", &[NOWHERE]),
            ("cost_call", &[1, 1, NOWHERE]),
            ("cost_create_canister", &[NOWHERE]),
            ("cost_http_request", &[1, 1, NOWHERE]),
            ("cost_sign_with_ecdsa", &[64, 0, 0, NOWHERE]),
        ];
        for (name, arguments) in cases {
            let what = program().import_of(name, arguments).then(reply(b""));
            assert_eq!(code(canister.update(what).await), 5, "{name}");
        }
    });
}

// Inspection of ingress messages.

/// Sets what the canister does to inspect messages.
async fn inspecting(canister: Universal, what: Program) {
    canister.update(program().hook(Hook::InspectMessage, what).then(reply(b""))).await.unwrap();
}

fn accept() -> Program {
    program().import("accept_message")
}

#[test]
fn a_message_that_the_canister_does_not_accept_is_refused() {
    run(async |world| {
        let canister = world.canister().await;
        inspecting(canister, program()).await;
        assert_eq!(code(canister.update(reply(b"")).await), 4);
    });
}

#[test]
fn a_message_at_whose_inspection_the_canister_traps_is_refused() {
    run(async |world| {
        let canister = world.canister().await;
        inspecting(canister, accept().then(trap("not this one"))).await;
        canister.update(reply(b"")).await.unwrap_err();
    });
}

#[test]
fn accept_message_traps_the_second_time() {
    run(async |world| {
        let canister = world.canister().await;
        inspecting(canister, accept().then(accept())).await;
        canister.update(reply(b"")).await.unwrap_err();
    });
}

#[test]
fn msg_method_name_is_the_method_that_the_message_is_for() {
    run(async |world| {
        let canister = world.canister().await;
        let only = program().blob("msg_method_name").bytes(b"query").equal().when(accept());
        inspecting(canister, only).await;
        assert_eq!(canister.replicated_query(reply(b"yes")).await.unwrap(), b"yes");
        canister.update(reply(b"")).await.unwrap_err();
    });
}

#[test]
fn an_inspection_sees_the_argument_and_the_caller() {
    run(async |world| {
        let canister = world.canister().await;
        let user = world.stranger.get_principal().unwrap();
        let only_user = program().blob("msg_caller").bytes(user.as_slice()).equal().when(accept());
        inspecting(canister, only_user).await;
        canister.call(&world.stranger, "update", reply(b"")).await.unwrap();
        canister.update(reply(b"")).await.unwrap_err();

        let canister = world.canister().await;
        let wanted = reply(b"wanted");
        let argument = program().blob("msg_arg_data").bytes(&wanted.clone().encoded());
        inspecting(canister, argument.equal().when(accept())).await;
        assert_eq!(canister.update(wanted).await.unwrap(), b"wanted");
        canister.update(reply(b"unwanted")).await.unwrap_err();
    });
}

#[test]
fn queries_and_calls_of_canisters_are_not_inspected() {
    run(async |world| {
        let [canister, other] = world.canisters().await;
        inspecting(canister, program()).await;
        assert_eq!(canister.query(reply(b"asked")).await.unwrap(), b"asked");
        let call = Call::to(canister.id, "update").doing(reply(b"called"));
        assert_eq!(other.update(program().call_must(call)).await.unwrap(), b"called");
        world.about(canister.id, "canister_status").await.unwrap();
    });
}

#[test]
fn what_an_inspection_changes_is_dropped() {
    run(async |world| {
        let canister = world.canister().await;
        inspecting(canister, program().bytes(b"changed").keep().then(accept())).await;
        assert_eq!(canister.update(program().kept().reply()).await.unwrap(), b"");
    });
}

// Who and where it is.

#[test]
fn canister_self_is_the_canisters_id() {
    run(async |world| {
        let canister = world.canister().await;
        let what = program().blob("canister_self").reply();
        assert_eq!(canister.update(what.clone()).await.unwrap(), canister.id.as_slice());
        assert_eq!(canister.query(what).await.unwrap(), canister.id.as_slice());
    });
}

#[test]
fn subnet_self_is_the_id_of_the_subnet() {
    run(async |world| {
        let canister = world.canister().await;
        let subnet = Principal::self_authenticating(world.agent.read_root_key());
        let what = program().blob("subnet_self").reply();
        assert_eq!(canister.update(what).await.unwrap(), subnet.as_slice());
    });
}

#[test]
fn root_key_is_the_one_that_the_status_endpoint_names() {
    run(async |world| {
        let canister = world.canister().await;
        let what = program().blob("root_key").reply();
        assert_eq!(canister.update(what).await.unwrap(), world.agent.read_root_key());
    });
}

#[test]
fn canister_status_is_1_while_it_runs_and_3_when_it_is_stopped() {
    run(async |world| {
        let canister = world.canister().await;
        assert_eq!(number(canister.update(reply_of("canister_status", &[])).await), 1);
        assert_eq!(number(canister.query(reply_of("canister_status", &[])).await), 1);
        world.about(canister.id, "stop_canister").await.unwrap();
        let what = program().import("canister_status").eight_bytes().keep().encoded();
        let mode = CanisterInstallMode::Upgrade(None);
        world.install(canister.id, mode, module(), what).await.unwrap();
        world.about(canister.id, "start_canister").await.unwrap();
        assert_eq!(canister.kept().await, 3u64.to_le_bytes());
    });
}

#[test]
fn is_controller_is_1_for_controllers_and_0_for_others() {
    run(async |world| {
        let canister = world.canister().await;
        let mut answers = Vec::new();
        for who in [&world.agent, &world.stranger, &world.anonymous] {
            let who = who.get_principal().unwrap();
            let what = program().bytes(who.as_slice()).split().import("is_controller");
            answers.push(number(canister.query(what.reply_int()).await));
        }
        assert_eq!(answers, [1, 0, 0]);
    });
}

#[test]
fn is_controller_traps_on_what_is_no_principal() {
    run(async |world| {
        let canister = world.canister().await;
        let longest = program().bytes(&[7; 29]).split().import("is_controller");
        assert_eq!(number(canister.query(longest.reply_int()).await), 0);
        let longer = program().bytes(&[7; 30]).split().import("is_controller");
        assert_eq!(code(canister.query(longer.reply_int()).await), 5);
    });
}

#[test]
fn in_replicated_execution_is_1_where_all_nodes_execute() {
    run(async |world| {
        let [canister, other] = world.canisters().await;
        let what = || reply_of("in_replicated_execution", &[]);
        assert_eq!(number(canister.update(what()).await), 1);
        assert_eq!(number(canister.replicated_query(what()).await), 1);
        assert_eq!(number(canister.query(what()).await), 0);
        assert_eq!(number(canister.composite(what()).await), 0);
        let call = Call::to(canister.id, "query").doing(what());
        assert_eq!(number(other.composite(program().call_must(call.clone())).await), 0);
        assert_eq!(number(other.update(program().call_must(call)).await), 1);
    });
}

// Stable memory.

#[test]
fn stable64_grow_returns_the_former_size_and_stable64_size_the_size() {
    run(async |world| {
        let canister = world.canister().await;
        let what = append_int(program().import("stable64_size"));
        let what = append_int(what.import_of("stable64_grow", &[2]));
        let what = append_int(what.import_of("stable64_grow", &[3]));
        let what = append_int(what.import_of("stable64_grow", &[0]));
        let what = append_int(what.import("stable64_size")).import("msg_reply");
        assert_eq!(integers(canister.update(what).await), [0, 0, 2, 5, 5]);
    });
}

#[test]
fn stable_grow_and_stable_size_are_the_same_in_32_bit() {
    run(async |world| {
        let canister = world.canister().await;
        let what = append_int(program().import("stable_size"));
        let what = append_int(what.import_of("stable_grow", &[2]));
        let what = append_int(what.import_of("stable_grow", &[1]));
        let what = append_int(what.import("stable_size"));
        let what = append_int(what.import("stable64_size")).import("msg_reply");
        assert_eq!(integers(canister.update(what).await), [0, 0, 2, 3, 3]);
    });
}

#[test]
fn stable_memory_cannot_grow_beyond_its_limit() {
    run(async |world| {
        let canister = world.canister().await;
        let what = append_int(program().import_of("stable_grow", &[65_537]));
        let what = append_int(what.import_of("stable_grow", &[u64::from(u32::MAX)]));
        let what = append_int(what.import_of("stable64_grow", &[1 << 40]));
        let what = append_int(what.import_of("stable64_grow", &[u64::MAX]));
        let what = append_int(what.import("stable64_size")).import("msg_reply");
        let narrow = u64::from(u32::MAX);
        let told = integers(canister.update(what).await);
        assert_eq!(told, [narrow, narrow, u64::MAX, u64::MAX, 0]);
    });
}

#[test]
fn the_32_bit_functions_trap_when_stable_memory_is_larger_than_4_gib() {
    run(async |world| {
        let canister = world.canister().await;
        // In steps: one message is given a part of what the subnet has left, which follows from the
        // machine's disk.
        let mut size = 0;
        for pages in [2_048; 32].into_iter().chain([1]) {
            let grow = reply_of("stable64_grow", &[pages]);
            assert_eq!(number(canister.update(grow).await), u128::from(size));
            size += pages;
        }
        let cases: [(&str, &[u64]); 4] = [
            ("stable_size", &[]),
            ("stable_grow", &[0]),
            ("stable_read", &[64, 0, 1]),
            ("stable_write", &[0, 64, 1]),
        ];
        for (name, arguments) in cases {
            let what = program().import_of(name, arguments).then(reply(b""));
            assert_eq!(code(canister.update(what).await), 5, "{name}");
        }
        assert_eq!(number(canister.query(reply_of("stable64_size", &[])).await), 65_537);
    });
}

/// Reads `size` bytes at `offset` with that function and replies them.
fn stable_read(function: &str, offset: u64, size: u64) -> Program {
    let into = program().int(size).room().copy(0).split().drop_top();
    into.import_of(function, &[offset, size]).reply()
}

/// Writes `bytes` at `offset` with that function.
fn stable_write(function: &str, offset: u64, bytes: &[u8]) -> Program {
    program().int(offset).bytes(bytes).split().import(function)
}

#[test]
fn what_is_written_to_stable_memory_is_read_from_it_in_both_widths() {
    run(async |world| {
        let canister = world.canister().await;
        let grow = program().import_of("stable64_grow", &[2]).drop_top();
        // Across a page's end; the last byte of all.
        let what = grow.then(stable_write("stable64_write", 65_534, b"abcd"));
        let what = what.then(stable_write("stable_write", 131_071, b"z")).then(reply(b""));
        canister.update(what).await.unwrap();
        for function in ["stable64_read", "stable_read"] {
            let read = |offset, size| canister.query(stable_read(function, offset, size));
            assert_eq!(read(65_533, 6).await.unwrap(), b"\0abcd\0", "{function}");
            assert_eq!(read(131_070, 2).await.unwrap(), b"\0z", "{function}");
        }
    });
}

#[test]
fn stable_memory_traps_beyond_its_end_and_beyond_that_of_memory() {
    run(async |world| {
        let canister = world.canister().await;
        let grow = program().import_of("stable64_grow", &[1]).drop_top().then(reply(b""));
        canister.update(grow).await.unwrap();
        for suffix in ["", "64"] {
            let mut outside: Vec<(String, [u64; 3])> = Vec::new();
            for (offset, size) in [(65_535, 2), (65_537, 0), (1 << 31, 1)] {
                outside.push((format!("stable{suffix}_read"), [64, offset, size]));
                outside.push((format!("stable{suffix}_write"), [offset, 64, size]));
            }
            outside.push((format!("stable{suffix}_read"), [NOWHERE, 0, 1]));
            outside.push((format!("stable{suffix}_write"), [0, NOWHERE, 1]));
            for (name, arguments) in outside {
                let what = program().import_of(&name, &arguments).then(reply(b""));
                assert_eq!(code(canister.update(what).await), 5, "{name} {arguments:?}");
            }
        }
    });
}

#[test]
fn stable_memory_outlives_an_upgrade_and_not_a_reinstallation() {
    run(async |world| {
        let canister = world.canister().await;
        let grow = program().import_of("stable64_grow", &[1]).drop_top();
        let what = grow.then(stable_write("stable64_write", 7, b"kept")).then(reply(b""));
        canister.update(what).await.unwrap();
        let mode = CanisterInstallMode::Upgrade(None);
        world.install(canister.id, mode, module(), vec![]).await.unwrap();
        let told = canister.query(stable_read("stable64_read", 7, 4)).await.unwrap();
        assert_eq!(told, b"kept");
        let mode = CanisterInstallMode::Reinstall;
        world.install(canister.id, mode, module(), vec![]).await.unwrap();
        assert_eq!(number(canister.query(reply_of("stable64_size", &[])).await), 0);
    });
}

#[test]
fn a_trap_takes_back_what_was_done_to_both_memories() {
    run(async |world| {
        let canister = world.canister().await;
        canister.update(program().bytes(b"old").keep().then(reply(b""))).await.unwrap();
        let grow = program().import_of("stable64_grow", &[1]).drop_top();
        let what = grow.bytes(b"new").keep();
        for ending in [trap("on purpose"), program().unreachable()] {
            assert_eq!(code(canister.update(what.clone().then(ending)).await), 5);
        }
        assert_eq!(canister.kept().await, b"old");
        assert_eq!(number(canister.query(reply_of("stable64_size", &[])).await), 0);
    });
}

// Time, timer, counters.

#[test]
fn time_is_constant_in_a_message_and_never_goes_back() {
    run(async |world| {
        let canister = world.canister().await;
        let spin = program().int(1000).repeat(program().int(1).drop_top());
        let what = append_int(program().import("time")).then(spin);
        let what = append_int(what.import("time")).import("msg_reply");
        let first = integers(canister.update(what.clone()).await);
        assert_eq!(first[0], first[1]);
        let mode = CanisterInstallMode::Upgrade(None);
        world.install(canister.id, mode, module(), vec![]).await.unwrap();
        let second = integers(canister.update(what).await);
        assert!(second[0] > first[0], "{second:?} after {first:?}");
    });
}

#[test]
fn global_timer_set_returns_the_timer_before_and_0_stops_it() {
    run(async |world| {
        let canister = world.canister().await;
        let far = u64::MAX - 1;
        let what = append_int(program().import_of("global_timer_set", &[far]));
        let what = append_int(what.import_of("global_timer_set", &[far - 1]));
        let what = append_int(what.import_of("global_timer_set", &[0]));
        let what = append_int(what.import_of("global_timer_set", &[0])).import("msg_reply");
        assert_eq!(integers(canister.update(what).await), [0, far, far - 1, 0]);
    });
}

#[test]
fn the_timer_runs_once_and_is_off_when_it_runs() {
    run(async |world| {
        let canister = world.canister().await;
        let timer =
            program().kept().import_of("global_timer_set", &[0]).eight_bytes().concat().keep();
        let set = program().hook(Hook::GlobalTimer, timer).import_of("global_timer_set", &[1]);
        canister.update(set.drop_top().then(reply(b""))).await.unwrap();
        canister.keeps(&0u64.to_le_bytes()).await;
        // It would run in the round of this message, were it still set.
        canister.update(reply(b"")).await.unwrap();
        assert_eq!(canister.kept().await, 0u64.to_le_bytes());
    });
}

#[test]
fn a_new_module_stops_the_timer() {
    run(async |world| {
        for mode in [CanisterInstallMode::Upgrade(None), CanisterInstallMode::Reinstall] {
            let canister = world.canister().await;
            let set = reply_of("global_timer_set", &[u64::MAX - 1]);
            canister.update(set).await.unwrap();
            world.install(canister.id, mode, module(), vec![]).await.unwrap();
            let told = number(canister.update(reply_of("global_timer_set", &[0])).await);
            assert_eq!(told, 0, "{mode:?}");
        }
    });
}

#[test]
fn a_timer_set_by_post_upgrade_stays() {
    run(async |world| {
        let canister = world.canister().await;
        let set = program().import_of("global_timer_set", &[77 << 56]).drop_top().encoded();
        let mode = CanisterInstallMode::Upgrade(None);
        world.install(canister.id, mode, module(), set).await.unwrap();
        let told = number(canister.update(reply_of("global_timer_set", &[0])).await);
        assert_eq!(told, 77 << 56);
    });
}

#[test]
fn performance_counter_0_counts_the_instructions_of_the_message() {
    run(async |world| {
        let canister = world.canister().await;
        let spin = program().int(10_000).repeat(program().int(1).drop_top());
        let count = |program: Program| append_int(program.import_of("performance_counter", &[0]));
        let what = count(count(program()).then(spin)).import("msg_reply");
        let first = integers(canister.update(what.clone()).await);
        assert!(first[1] > first[0] + 10_000, "{first:?}");
        // And begins anew in the next one.
        assert_eq!(integers(canister.update(what).await)[0], first[0]);
    });
}

#[test]
fn performance_counter_1_counts_those_of_the_call_with_its_callbacks() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let counters = append_int(program().import_of("performance_counter", &[0]));
        let counters = append_int(counters.import_of("performance_counter", &[1]));
        let spin = program().int(10_000).repeat(program().int(1).drop_top());
        let call = Call::to(callee.id, "update")
            .doing(reply(b""))
            .on_reply(counters.clone().import("msg_reply"));
        let told = integers(caller.update(spin.call_must(call)).await);
        assert!(told[1] > told[0] + 10_000, "{told:?}");
        // In the method itself both are nearly the same.
        let told = integers(caller.update(counters.import("msg_reply")).await);
        assert!(told[1] >= told[0] && told[1] < told[0] + 5_000, "{told:?}");
    });
}

// Environment variables.

#[test]
fn environment_variables_can_be_counted_enumerated_and_read() {
    run(async |world| {
        let canister = world.canister().await;
        assert_eq!(number(canister.query(reply_of("env_var_count", &[])).await), 1);
        assert_eq!(number(canister.query(reply_of("env_var_name_size", &[0])).await), 5);
        let name = program().int(5).room().int(0).copy(1).split().drop_top();
        let name = name.import_of("env_var_name_copy", &[0, 5]).reply();
        assert_eq!(canister.query(name).await.unwrap(), b"probe");
        let size = program().bytes(b"probe").split().import("env_var_value_size").reply_int();
        assert_eq!(number(canister.query(size).await), 5);
        let value = program().int(4).room().bytes(b"probe").split().copy(2).split().drop_top();
        let value = value.import_of("env_var_value_copy", &[1, 4]).reply();
        assert_eq!(canister.update(value).await.unwrap(), b"alue");
    });
}

#[test]
fn env_var_name_exists_is_1_for_the_names_there_are() {
    run(async |world| {
        let canister = world.canister().await;
        let exists =
            |name: &[u8]| program().bytes(name).split().import("env_var_name_exists").reply_int();
        assert_eq!(number(canister.query(exists(b"probe")).await), 1);
        assert_eq!(number(canister.query(exists(b"prob")).await), 0);
        assert_eq!(number(canister.query(exists(b"")).await), 0);
    });
}

#[test]
fn environment_variables_trap_on_wrong_indices_names_and_ranges() {
    run(async |world| {
        let canister = world.canister().await;
        let named = |name: &[u8], function| program().bytes(name).split().import(function);
        let value =
            |at: &[u64]| program().bytes(b"probe").split().import_of("env_var_value_copy", at);
        let cases = [
            ("index", program().import_of("env_var_name_size", &[1])),
            ("index of copy", program().import_of("env_var_name_copy", &[1, 64, 0, 0])),
            ("beyond the name", program().import_of("env_var_name_copy", &[0, 64, 0, 6])),
            ("name to nowhere", program().import_of("env_var_name_copy", &[0, NOWHERE, 0, 5])),
            ("unknown", named(b"none", "env_var_value_size")),
            ("no text", named(&[0xff], "env_var_name_exists")),
            ("no text, size", named(&[0xff], "env_var_value_size")),
            ("long", named(&[b'a'; 100_000], "env_var_name_exists")),
            ("long, size", named(&[b'a'; 100_000], "env_var_value_size")),
            ("beyond the value", value(&[64, 0, 6])),
            ("value to nowhere", value(&[NOWHERE, 0, 5])),
        ];
        for (name, what) in cases {
            assert_eq!(code(canister.update(what.then(reply(b""))).await), 5, "{name}");
        }
    });
}

// Costs.

/// The amount that the function writes.
fn cost(name: &str, arguments: &[u64]) -> Program {
    program().amount(name, arguments).reply()
}

#[test]
fn a_call_costs_no_more_than_cost_call_says() {
    run(async |world| {
        let canister = world.canister().await;
        let balance = |program: Program| program.amount("canister_cycle_balance128", &[]).append();
        let call = Call::to(management(), "raw_rand").argument(vec![0; 100]);
        let what = program().amount("cost_call", &[8, 100]).append();
        let what = balance(balance(what).call_must(call)).import("msg_reply");
        let told = canister.update(what).await.unwrap();
        let amount =
            |at: usize| u128::from_le_bytes(told[16 * at..16 * (at + 1)].try_into().unwrap());
        let taken = amount(1) - amount(2);
        assert!(taken > 0 && taken <= amount(0), "{taken} of {}", amount(0));
    });
}

#[test]
fn cost_call_grows_with_the_name_and_the_payload() {
    run(async |world| {
        let canister = world.canister().await;
        let least = number(canister.query(cost("cost_call", &[0, 0])).await);
        let name = number(canister.query(cost("cost_call", &[1000, 0])).await);
        let payload = number(canister.query(cost("cost_call", &[0, 1000])).await);
        assert!(least > 0 && name > least && payload == name, "{least} {name} {payload}");
    });
}

#[test]
fn cost_http_request_grows_with_the_request_and_the_response() {
    run(async |world| {
        let canister = world.canister().await;
        let least = number(canister.query(cost("cost_http_request", &[0, 0])).await);
        let request = number(canister.query(cost("cost_http_request", &[1000, 0])).await);
        let response = number(canister.query(cost("cost_http_request", &[0, 1000])).await);
        assert!(least > 0 && request > least && response > least);
    });
}

#[test]
fn cost_create_canister_is_what_create_canister_takes() {
    run(async |world| {
        let canister = world.canister().await;
        let price = number(canister.query(cost("cost_create_canister", &[])).await);
        let create = |cycles| {
            let call = Call::to(management(), "create_canister").cycles(cycles);
            program().call_must(call.argument(Encode!(&CreateCanisterArgs::default()).unwrap()))
        };
        let refused = told_reject(canister.update(create(price - 1)).await);
        assert_eq!(refused.0, 4, "{}", refused.1);
        let made = canister.update(create(price)).await.unwrap();
        assert!(made.starts_with(b"DIDL"), "{}", String::from_utf8_lossy(&made));
    });
}

const KEY_COSTS: [&str; 3] =
    ["cost_sign_with_ecdsa", "cost_sign_with_schnorr", "cost_vetkd_derive_key"];

#[test]
fn the_cost_of_a_key_is_1_for_unknown_curves_and_2_for_unknown_names() {
    run(async |world| {
        let canister = world.canister().await;
        for function in KEY_COSTS {
            for (curve, name, expected) in [(99, "key_1", 1), (0, "no such key", 2)] {
                // Sixteen bytes of ones must be left alone.
                let what = program().bytes(&[1; 16]).bytes(name.as_bytes()).split().int(curve);
                let what = what.copy(3).split().drop_top().import(function);
                let what = append_int(what).reply();
                let told = canister.query(what).await.unwrap();
                assert_eq!(told[..8], u64::to_le_bytes(expected), "{function} {name}");
                assert_eq!(told[8..], [1; 16], "{function} {name}");
            }
        }
    });
}

#[test]
fn the_cost_of_a_key_traps_when_the_name_is_outside_memory() {
    run(async |world| {
        let canister = world.canister().await;
        for function in KEY_COSTS {
            let what = program().import_of(function, &[NOWHERE, 100, 0, 64]).then(reply(b""));
            assert_eq!(code(canister.query(what).await), 5, "{function}");
        }
    });
}

// Debugging aids.

#[test]
fn debug_print_never_traps() {
    run(async |world| {
        let canister = world.canister().await;
        let outside = program().import_of("debug_print", &[NOWHERE, 1000]);
        let what = outside.bytes(&[0xff, 0xfe]).split().import("debug_print").then(reply(b"on"));
        assert_eq!(canister.update(what.clone()).await.unwrap(), b"on");
        assert_eq!(canister.query(what).await.unwrap(), b"on");
    });
}

#[test]
fn trap_traps_and_its_text_is_in_the_reject_message() {
    run(async |world| {
        let canister = world.canister().await;
        for done in [
            canister.update(reply(b"").then(trap("because of this"))).await,
            canister.query(trap("because of this")).await,
        ] {
            let refused = done.unwrap_err();
            assert_eq!(refused.code, 5);
            assert!(refused.text.contains("because of this"), "{}", refused.text);
        }
    });
}

#[test]
fn trap_traps_even_when_its_text_is_outside_memory() {
    run(async |world| {
        let canister = world.canister().await;
        let what = reply(b"").import_of("trap", &[NOWHERE, 100]);
        assert_eq!(code(canister.update(what).await), 5);
    });
}
