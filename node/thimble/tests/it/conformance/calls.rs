//! Chapter "Canister interface", section "Inter-canister method calls", and "Ordering guarantees"
//! of the HTTPS interface.

use candid::{Encode, Principal};

use super::{fixture::*, harness::management, program::*};

/// A principal of the form that canisters have, of no canister.
fn nobody() -> Principal {
    Principal::from_slice(&[0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 1, 1])
}

/// Makes `callee` ready to be asked for `kept().run()`: it asks for random bytes, one round after
/// the other, for as long as it has a module, and never answers.
async fn make_silent(callee: Universal) {
    let call = Call::to(management(), "raw_rand").argument(Encode!().unwrap());
    let again = program().call_must(call.on_reply(program().kept().run()));
    callee.update(program().bytes(&again.encoded()).keep().then(reply(b""))).await.unwrap();
}

fn stay_silent(callee: Universal) -> Call {
    Call::to(callee.id, "update").doing(program().kept().run())
}

// The outcome of a call.

#[test]
fn the_argument_of_a_call_is_all_that_was_appended() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let what = program().blob("msg_arg_data").reply().encoded();
        let (one, two) = what.split_at(5);
        let append =
            |program: Program, part: &[u8]| program.bytes(part).split().import("call_data_append");
        let begun = program().begin(&Call::to(callee.id, "update"));
        let called = append(append(begun, one), two).import("call_perform").drop_top();
        assert_eq!(caller.update(called).await.unwrap(), what);
    });
}

#[test]
fn a_canister_may_call_itself() {
    run(async |world| {
        let canister = world.canister().await;
        let call = Call::to(canister.id, "update").doing(program().blob("msg_caller").reply());
        let told = canister.update(program().call_must(call)).await.unwrap();
        assert_eq!(told, canister.id.as_slice());
    });
}

#[test]
fn a_call_to_a_canister_that_does_not_exist_has_an_invalid_destination() {
    run(async |world| {
        let caller = world.canister().await;
        let call = Call::to(nobody(), "update");
        assert_eq!(told_reject(caller.update(program().call_must(call)).await).0, 3);
    });
}

#[test]
fn a_call_to_a_deleted_canister_has_an_invalid_destination() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        world.about(callee.id, "stop_canister").await.unwrap();
        world.about(callee.id, "delete_canister").await.unwrap();
        let call = Call::to(callee.id, "update").doing(reply(b""));
        assert_eq!(told_reject(caller.update(program().call_must(call)).await).0, 3);
    });
}

#[test]
fn a_call_to_an_empty_canister_is_an_error_of_the_canister() {
    run(async |world| {
        let caller = world.canister().await;
        let call = Call::to(world.empty().await, "update");
        assert_eq!(told_reject(caller.update(program().call_must(call)).await).0, 5);
    });
}

#[test]
fn a_call_of_a_method_that_does_not_exist_is_an_error_of_the_canister() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "no such method");
        assert_eq!(told_reject(caller.update(program().call_must(call)).await).0, 5);
    });
}

#[test]
fn a_call_to_a_stopped_canister_is_an_error_of_the_canister() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        world.about(callee.id, "stop_canister").await.unwrap();
        let call = Call::to(callee.id, "update").doing(reply(b""));
        assert_eq!(told_reject(caller.update(program().call_must(call)).await).0, 5);
    });
}

#[test]
fn a_callee_that_traps_is_an_error_of_the_canister() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "update").doing(trap("broken"));
        let (code, text) = told_reject(caller.update(program().call_must(call)).await);
        assert_eq!(code, 5);
        assert!(text.contains("broken"), "{text}");
    });
}

#[test]
fn a_query_method_called_by_a_canister_answers_and_keeps_no_change() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let change = program().bytes(b"changed").keep().then(reply(b"answered"));
        let call = Call::to(callee.id, "query").doing(change);
        assert_eq!(caller.update(program().call_must(call)).await.unwrap(), b"answered");
        assert_eq!(callee.kept().await, b"");
    });
}

#[test]
fn a_composite_query_method_cannot_be_called_in_replicated_mode() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "composite").doing(reply(b""));
        assert_eq!(told_reject(caller.update(program().call_must(call)).await).0, 5);
        let refused = callee.call(&world.agent, "composite", reply(b"")).await;
        assert_eq!(code(refused), 5);
    });
}

// Order.

#[test]
fn calls_of_one_message_to_one_canister_begin_in_their_order() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let mut what = reply(b"");
        for letter in b'a'..=b'j' {
            let call = Call::to(callee.id, "update")
                .doing(program().keep_more(&[letter]).then(reply(b"")))
                .on_reply(program());
            what = what.call_must(call);
        }
        caller.update(what).await.unwrap();
        callee.keeps(b"abcdefghij").await;
    });
}

#[test]
fn calls_of_several_messages_to_one_canister_begin_in_their_order() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        for letter in b'a'..=b'e' {
            let call = Call::to(callee.id, "update")
                .doing(program().keep_more(&[letter]).then(reply(b"")))
                .on_reply(program());
            caller.update(reply(b"").call_must(call)).await.unwrap();
        }
        callee.keeps(b"abcde").await;
    });
}

// Assembling a call.

// Promise: P9 - Calls between canisters follow the rules of the specification.
#[test]
fn a_call_that_is_not_performed_is_discarded() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let change = program().bytes(b"called").keep().then(reply(b""));
        let call = Call::to(callee.id, "update").doing(change);
        let what = program().begin(&call).bytes(&call.argument).split();
        caller.update(what.import("call_data_append").then(reply(b""))).await.unwrap();
        // A later call arrives; the one before it would have been first.
        let later = Call::to(callee.id, "update").doing(program().kept().reply());
        assert_eq!(caller.update(program().call_must(later)).await.unwrap(), b"");
    });
}

#[test]
fn call_new_discards_the_call_before_it() {
    run(async |world| {
        let [caller, one, two] = world.canisters().await;
        let change = || program().bytes(b"called").keep().then(reply(b""));
        let first = Call::to(one.id, "update").doing(change());
        let begun = program().begin(&first).bytes(&first.argument).split();
        let what = begun.import("call_data_append");
        let second = Call::to(two.id, "update").doing(change());
        caller.update(what.call_must(second)).await.unwrap();
        assert_eq!(two.kept().await, b"called");
        assert_eq!(one.kept().await, b"");
    });
}

/// Each function that changes a call under construction, with arguments that are fine.
fn building() -> [(&'static str, Program); 6] {
    [
        ("call_data_append", program().import_of("call_data_append", &[64, 1])),
        ("call_on_cleanup", program().callback(program()).import("call_on_cleanup")),
        ("call_cycles_add", program().import_of("call_cycles_add", &[0])),
        ("call_cycles_add128", program().import_of("call_cycles_add128", &[0, 0])),
        (
            "call_with_best_effort_response",
            program().import_of("call_with_best_effort_response", &[1]),
        ),
        ("call_perform", program().import("call_perform").drop_top()),
    ]
}

#[test]
fn without_a_call_under_construction_its_functions_trap() {
    run(async |world| {
        let canister = world.canister().await;
        for (name, function) in building() {
            assert_eq!(code(canister.update(function.then(reply(b""))).await), 5, "{name}");
        }
    });
}

#[test]
fn after_call_perform_the_functions_trap_until_call_new() {
    run(async |world| {
        let canister = world.canister().await;
        for (name, function) in building() {
            let call = Call::to(management(), "raw_rand");
            let performed = program().begin(&call).import("call_perform").drop_top();
            let what = performed.then(function).then(reply(b""));
            assert_eq!(code(canister.update(what).await), 5, "{name}");
        }
    });
}

#[test]
fn a_second_cleanup_or_timeout_for_one_call_traps() {
    run(async |world| {
        let canister = world.canister().await;
        for (name, function) in building() {
            let begun = program().begin(&Call::to(management(), "raw_rand"));
            let twice = begun.then(function.clone()).then(function).then(reply(b""));
            let done = canister.update(twice).await;
            let once = ["call_on_cleanup", "call_with_best_effort_response", "call_perform"];
            assert_eq!(done.is_err(), once.contains(&name), "{name}: {done:?}");
        }
    });
}

#[test]
fn a_method_name_of_more_than_20_000_bytes_is_refused() {
    run(async |world| {
        let canister = world.canister().await;
        let name = "a".repeat(20_001);
        let what = program().begin(&Call::to(management(), &name)).then(reply(b""));
        assert_eq!(code(canister.update(what).await), 5);
        let what = program().begin(&Call::to(management(), &name[1..])).then(reply(b"fits"));
        assert_eq!(canister.update(what).await.unwrap(), b"fits");
    });
}

#[test]
fn a_call_of_a_message_that_traps_is_not_made() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let change = program().bytes(b"called").keep().then(reply(b""));
        let call = Call::to(callee.id, "update").doing(change);
        let what = program().call_must(call).then(trap("after the call"));
        assert_eq!(code(caller.update(what).await), 5);
        let later = Call::to(callee.id, "update").doing(program().kept().reply());
        assert_eq!(caller.update(program().call_must(later)).await.unwrap(), b"");
    });
}

// Callbacks.

#[test]
fn callbacks_run_after_the_call_was_answered_too() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "update")
            .doing(reply(b"late"))
            .on_reply(program().blob("msg_arg_data").keep());
        assert_eq!(caller.update(reply(b"early").call_must(call)).await.unwrap(), b"early");
        caller.keeps(b"late").await;
    });
}

#[test]
fn a_callback_that_traps_is_an_error_of_the_canister_and_takes_back_only_itself() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "update")
            .doing(reply(b""))
            .on_reply(program().keep_more(b"+callback").then(trap("here")));
        let what = program().bytes(b"method").keep().call_must(call);
        assert_eq!(code(caller.update(what).await), 5);
        assert_eq!(caller.kept().await, b"method");
    });
}

#[test]
fn cleanup_runs_when_the_callback_traps_and_keeps_its_changes() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        for (place, answer) in [reply(b""), reject("no")].into_iter().enumerate() {
            let broken = program().keep_more(b"+callback").then(trap("here"));
            let call = Call::to(callee.id, "update")
                .doing(answer)
                .on_reply(broken.clone())
                .on_reject(broken)
                .on_cleanup(program().keep_more(b"+cleanup"));
            let what = program().bytes(b"method").keep().call_must(call);
            assert_eq!(code(caller.update(what).await), 5, "{place}");
            assert_eq!(caller.kept().await, b"method+cleanup", "{place}");
        }
    });
}

#[test]
fn cleanup_does_not_run_when_the_callback_does_not_trap() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "update")
            .doing(reply(b""))
            .on_reply(program().keep_more(b"+callback").then(reply(b"")))
            .on_cleanup(program().keep_more(b"+cleanup"));
        caller.update(program().call_must(call)).await.unwrap();
        assert_eq!(caller.kept().await, b"+callback");
    });
}

#[test]
fn a_cleanup_that_traps_leaves_nothing_behind() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "update")
            .doing(reply(b""))
            .on_reply(trap("callback"))
            .on_cleanup(program().keep_more(b"+cleanup").then(trap("cleanup")));
        let what = program().bytes(b"method").keep().call_must(call);
        let refused = caller.update(what).await.unwrap_err();
        assert_eq!(refused.code, 5);
        assert_eq!(caller.kept().await, b"method");
    });
}

#[test]
fn a_canister_whose_callbacks_all_ran_without_an_answer_did_not_answer() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = || Call::to(callee.id, "update").doing(reply(b"")).on_reply(program());
        let what = program().call_must(call()).call_must(call());
        assert_eq!(code(caller.update(what).await), 5);
    });
}

// Bounded waiting, stopping, uninstalling: a callee that does not answer.

#[test]
fn a_bounded_wait_call_is_answered_as_any_other() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let call = Call::to(callee.id, "update").timeout(30);
        let done = caller.update(program().call_must(call.clone().doing(reply(b"in time")))).await;
        assert_eq!(done.unwrap(), b"in time");
        let done = caller.update(program().call_must(call.doing(reject("in time")))).await;
        assert_eq!(told_reject(done), (4, "in time".to_owned()));
    });
}

#[test]
fn a_bounded_wait_call_that_is_not_answered_in_time_has_an_unknown_outcome() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        make_silent(callee).await;
        let what = program().call_must(stay_silent(callee).timeout(1));
        assert_eq!(told_reject(caller.update(what).await).0, 6);
        world.about(callee.id, "uninstall_code").await.unwrap();
    });
}

#[test]
fn uninstalling_rejects_the_calls_that_were_not_answered() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        make_silent(callee).await;
        let what = program().call_must(stay_silent(callee));
        let (done, ()) = tokio::join!(caller.update(what), async {
            testing::until_async("the callee has work", async || working(callee).await).await;
            world.about(callee.id, "uninstall_code").await.unwrap();
        });
        assert_eq!(told_reject(done).0, 4);
    });
}

/// Whether the canister is busy: its version grows by itself.
async fn working(canister: Universal) -> bool {
    let version = program().import("canister_version").reply_int();
    let first = number(canister.query(version.clone()).await);
    // A round later.
    canister.update(reply(b"")).await.unwrap();
    number(canister.query(version).await) > first + 1
}

#[test]
fn a_stopping_canister_takes_no_calls_and_starting_it_fails_the_stop() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        make_silent(callee).await;
        let first = callee.call(&world.stranger, "update", program().kept().run());
        let stopping = async {
            testing::until_async("the callee has work", async || working(callee).await).await;
            world.about(callee.id, "stop_canister").await
        };
        let watching = async {
            testing::until_async("the callee is stopping", async || {
                callee.query(reply(b"")).await.is_err()
            })
            .await;
            let call = Call::to(callee.id, "update").doing(reply(b""));
            let refused = told_reject(caller.update(program().call_must(call)).await);
            let ingress = callee.update(reply(b"")).await;
            world.about(callee.id, "start_canister").await.unwrap();
            let again = callee.query(reply(b"runs")).await;
            world.about(callee.id, "uninstall_code").await.unwrap();
            (refused, ingress, again)
        };
        let (first, stopped, (refused, ingress, again)) = tokio::join!(first, stopping, watching);
        assert_eq!(refused.0, 5, "{}", refused.1);
        assert_eq!(code(ingress), 5);
        assert_eq!(code(stopped), 5);
        assert_eq!(again.unwrap(), b"runs");
        assert_eq!(code(first), 4);
    });
}

#[test]
fn a_canister_that_waits_for_an_answer_becomes_stopped_after_it() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        make_silent(callee).await;
        // Once the stop waits, the callee's own end lets the caller's call end.
        let call = stay_silent(callee).on_reject(program().import("canister_status").reply_int());
        let asked = caller.update(program().call_must(call));
        let stopping = async {
            testing::until_async("the callee has work", async || working(callee).await).await;
            world.about(caller.id, "stop_canister").await
        };
        let ending = async {
            testing::until_async("the caller is stopping", async || {
                caller.query(reply(b"")).await.is_err()
            })
            .await;
            world.about(callee.id, "uninstall_code").await.unwrap();
        };
        let (status, stopped, ()) = tokio::join!(asked, stopping, ending);
        assert_eq!(number(status), 2, "the status within the callback");
        stopped.unwrap();
    });
}
