//! Stories about calls: between users and canisters, between canisters, through failures.

use execution::FatalError;
use ic_principal::Principal;
use state::{AgreedRound, Batch, RejectCode, Status, Time};

use crate::common::{self, CallOp, Node, Op, SECOND, Spec, encode, limits, user};

#[test]
fn a_user_calls_and_reads_the_reply() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    assert_eq!(node.call(id, &[Op::Reply(b"hello".to_vec())]).unwrap(), b"hello");
    assert_eq!(node.call(id, &[Op::Note(b"kept".to_vec()), Op::Reply(vec![])]).unwrap(), b"");
    assert_eq!(node.notes(id), ["kept"]);
}

#[test]
fn failures_reach_the_user_with_their_codes() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    let trapped =
        node.call(id, &[Op::Note(b"lost".to_vec()), Op::Trap("oh no".into())]).unwrap_err();
    assert_eq!((trapped.code, trapped.error_code.0), (RejectCode::CanisterError, 503));
    assert!(
        trapped.message.contains("oh no") && trapped.message.contains(&id.to_text()),
        "{}",
        trapped.message
    );
    let silent = node.call(id, &[]).unwrap_err();
    assert_eq!((silent.code, silent.error_code.0), (RejectCode::CanisterError, 506));
    let refused = node.call(id, &[Op::Reject("no".into())]).unwrap_err();
    assert_eq!(
        (refused.code, refused.error_code.0, refused.message.as_str()),
        (RejectCode::CanisterReject, 406, "no")
    );
    let unknown = node.ingress(user(1), id, id, "nothing", vec![]);
    node.settle();
    assert_eq!(node.result(&unknown).unwrap_err().error_code.0, 536);
    let nobody = execution::ExecutorConfig::canister_id(77);
    let missing = node.ingress(user(1), nobody, nobody, "run", vec![]);
    node.settle();
    assert_eq!(node.result(&missing).unwrap_err().error_code.0, 301);
    assert!(node.notes(id).is_empty());
    let too_long = node.call(id, &[Op::Spend(1 << 62), Op::Reply(vec![])]).unwrap_err();
    assert_eq!(too_long.error_code.0, 522);
}

#[test]
fn a_call_goes_round_a_ring_within_one_round() {
    let mut node = Node::new();
    let ring: Vec<_> = (0..5).map(|_| node.deploy(&Spec::default())).collect();
    let mut program = vec![Op::Reply(b"end".to_vec())];
    for id in ring.iter().rev() {
        program = vec![CallOp::new(*id, &program).op()];
    }
    let request = node.send(ring[0], &program);
    let result = node.round();
    assert_eq!(result.finished, [request]);
    assert_eq!(node.result(&request).unwrap(), b"end");
}

#[test]
fn rejects_and_unknown_callees_come_back_to_the_caller() {
    let mut node = Node::new();
    let (a, b) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let call = |callee, program: &[Op]| vec![CallOp::new(callee, program).op()];
    assert_eq!(text(node.call(a, &call(b, &[Op::Reject("busy".into())])).unwrap()), "4: busy");
    assert!(
        text(node.call(a, &call(b, &[Op::Trap("x".into())])).unwrap())
            .starts_with("5: Error from Canister")
    );
    assert!(
        text(node.call(a, &call(Principal::from_slice(&[9, 1]), &[])).unwrap()).starts_with("3: ")
    );
    let empty = node.create();
    assert!(text(node.call(a, &call(empty, &[])).unwrap()).starts_with("5: "));
}

#[test]
fn attached_cycles_are_accepted_or_come_back() {
    let mut node = Node::new();
    let (a, b) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let before = node.canister(b).cycles;
    let mut call = CallOp::new(b, &[Op::Accept(400), Op::Reply(vec![])]);
    call.cycles = 1_000_000_000_000;
    node.call(a, &[call.clone().op()]).unwrap();
    assert!(node.canister(b).cycles > before - 1_000_000_000);
    let balance = node.canister(a).cycles;
    call.arg = encode(&[Op::Trap("no".into())]);
    node.call(a, &[call.clone().op()]).unwrap();
    assert!(balance - node.canister(a).cycles < 100_000_000_000, "refunded after a trap");
    call.arg = encode(&[Op::Accept(600_000_000_000), Op::Burn(5), Op::Reply(vec![])]);
    node.call(a, &[call.op()]).unwrap();
    assert!(node.canister(b).cycles > before + 500_000_000_000);
    assert_eq!(node.canister(b).consumption.burned, 5);
}

#[test]
fn a_trapped_callback_is_cleaned_up() {
    let mut node = Node::new();
    let (a, b) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let mut call = CallOp::new(b, &[Op::Reply(vec![])]);
    call.on_reply = vec![Op::Note(b"gone".to_vec()), Op::Trap("in callback".into())];
    call.on_cleanup = vec![Op::Note(b"cleaned".to_vec())];
    let error = node.call(a, &[call.op()]).unwrap_err();
    assert!(error.message.contains("in callback"));
    assert_eq!(node.notes(a), ["cleaned"]);
}

#[test]
fn a_call_without_an_answer_expires_if_it_is_best_effort() {
    let mut node = Node::new();
    let (a, b, c) = (
        node.deploy(&Spec::default()),
        node.deploy(&Spec::default()),
        node.deploy(&Spec::default()),
    );
    let mut call = CallOp::new(b, &[]);
    call.timeout = Some(1);
    call.cycles = 1_000;
    // The callee works for many rounds: every round spends more than it may, so that answers wait.
    call.arg = encode(&[CallOp::new(
        c,
        &[
            Op::Spend(3_999_000_000),
            CallOp::new(
                c,
                &[
                    Op::Spend(3_999_000_000),
                    CallOp::new(c, &[Op::Spend(3_999_000_000), Op::Reply(vec![])]).op(),
                ],
            )
            .op(),
        ],
    )
    .op()]);
    node.seconds_per_round = 4;
    let answer = node.call(a, &[call.op()]).unwrap();
    let text = String::from_utf8(answer).unwrap();
    assert!(text.starts_with("6: "), "{text}");
    node.settle();
    assert_eq!(node.canister(a).calls.callbacks_open(), 0);
    assert!(node.canister(b).calls.has_no_contexts() && node.canister(c).calls.has_no_contexts());
}

// Promise: P2 - Guaranteed calls beyond the pool are refused, and every call gets a response.
#[test]
fn guaranteed_calls_beyond_the_pool_are_refused_and_all_are_answered() {
    // More than fit.
    const CALLS: usize = 120;
    let mut node = Node::new();
    let (a, b) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let mut call = CallOp::new(b, &[Op::Reply(b"yes".to_vec())]);
    call.on_reply = vec![Op::NoteArgument];
    call.on_reject = vec![Op::NoteReject];
    let program: Vec<Op> =
        (0..CALLS).map(|_| call.clone().op()).chain([Op::Reply(vec![])]).collect();
    node.call(a, &program).unwrap();
    node.settle();
    let notes = node.notes(a);
    assert_eq!(notes.len(), CALLS);
    let fit = node.config.limits.subnet.guaranteed_response_message_bytes
        / node.config.limits.subnet.message_payload_bytes;
    let answered = notes.iter().filter(|note| *note == "yes").count() as u64;
    assert!(answered >= fit - 2 && answered <= fit, "{answered} of {fit}");
    assert!(
        notes
            .iter()
            .filter(|note| *note != "yes")
            .all(|note| note.starts_with("2: ")
                && note.contains("guaranteed_response_message_bytes"))
    );
    assert_eq!(node.executor.state().totals().guaranteed_message_bytes, 0);
}

#[test]
fn slots_and_callbacks_bound_calls() {
    let mut limits = common::limits();
    limits.subnet.queue_slots = 3;
    limits.subnet.callback_soft_limit = 5;
    let mut node = Node::with(limits);
    let (a, b, c) = (
        node.deploy(&Spec::default()),
        node.deploy(&Spec::default()),
        node.deploy(&Spec::default()),
    );
    let mut program = vec![];
    for callee in [b, b, b, b, c, c, c] {
        let mut call = CallOp::new(callee, &[Op::Reply(b"yes".to_vec())]);
        call.on_reply = vec![Op::NoteArgument];
        program.push(call.op());
    }
    program.push(Op::Reply(vec![]));
    node.call(a, &program).unwrap();
    node.settle();
    let notes = node.notes(a);
    assert_eq!(notes.iter().filter(|note| *note == "call refused").count(), 2);
    assert_eq!(notes.iter().filter(|note| *note == "yes").count(), 5);
}

// Promise: P17 - Duplicate and late messages are ignored.
#[test]
fn duplicates_and_late_messages_are_passed_over() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    node.send(id, &[Op::Note(b"once".to_vec()), Op::Reply(vec![])]);
    let again = node.waiting.last().unwrap().clone();
    node.settle();
    node.waiting.push(again.clone());
    node.settle();
    assert_eq!(node.notes(id), ["once"]);
    node.seconds_per_round = 1_000;
    node.settle();
    node.waiting.push(again);
    node.settle();
    node.seconds_per_round = 1;
    assert_eq!(node.notes(id), ["once"]);
}

#[test]
fn a_call_that_cannot_start_before_its_expiry_is_rejected() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    let slow: Vec<_> =
        (0..3).map(|_| node.send(id, &[Op::Spend(3_999_900_000), Op::Reply(vec![])])).collect();
    node.seconds_per_round = 150;
    node.round();
    assert_eq!(node.status(&slow[2]), Status::Received);
    node.round();
    let late = node.result(&slow[2]).unwrap_err();
    assert_eq!((late.code, late.error_code.0), (RejectCode::SysTransient, 202));
    node.seconds_per_round = 1;
    node.settle();
    assert_eq!(node.result(&slow[0]).unwrap(), b"");
}

#[test]
fn a_canister_without_cycles_is_frozen_and_says_so() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    let balance = node.canister(id).cycles;
    node.call(id, &[Op::Burn(balance), Op::Reply(vec![])]).unwrap();
    let request = node.send(id, &[Op::Reply(vec![])]);
    node.settle();
    let error = node.result(&request).unwrap_err();
    assert_eq!((error.code, error.error_code.0), (RejectCode::SysTransient, 207));
    assert!(error.message.contains("cycles"), "{}", error.message);
}

#[test]
fn storage_is_paid_until_nothing_is_left_and_the_code_falls() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    node.call(id, &[Op::Grow(1_000), Op::Reply(vec![])]).unwrap();
    let balance = node.canister(id).cycles;
    node.call(id, &[Op::Burn(balance), Op::Reply(vec![])]).unwrap();
    node.seconds_per_round = 86_400;
    for _ in 0..110 {
        node.round();
    }
    let canister = node.canister(id);
    assert_eq!(canister.cycles, 0);
    assert!(canister.execution.is_none());
    assert!(canister.consumption.memory > 0);
}

#[test]
fn storage_of_very_many_canisters_is_paid_over_several_rounds() {
    let mut limits = limits();
    limits.subnet.canisters_max = 1_100;
    let mut node = Node::with(limits);
    let ids: Vec<_> = (0..1_100).map(|_| node.create()).collect();
    let before = node.now();
    let paid =
        |node: &Node| ids.iter().filter(|id| node.canister(**id).charged_until.0 > before).count();
    node.seconds_per_round = 3_600;
    node.round();
    assert_eq!(paid(&node), 1_000);
    node.seconds_per_round = 1;
    node.round();
    assert_eq!(paid(&node), 1_100);
}

#[test]
fn timers_and_heartbeats_run_without_being_asked() {
    let mut node = Node::new();
    let due = node.now() + 3_600 * SECOND;
    let spec = Spec {
        init: vec![Op::Timer(due)],
        timer: Some(vec![Op::Note(b"tick".to_vec())]),
        heartbeat: Some(vec![Op::Note(b"beat".to_vec())]),
        ..Spec::default()
    };
    let id = node.deploy(&spec);
    let result = node.round();
    assert!(result.every_round);
    assert_eq!(result.next_timer.map(|time| time.0), Some(due));
    assert!(!node.notes(id).contains(&"tick".into()));
    node.seconds_per_round = 4_000;
    node.round();
    assert_eq!(node.canister(id).global_timer.0, 0);
    node.seconds_per_round = 1;
    let notes = node.notes(id);
    assert_eq!(notes.iter().filter(|note| *note == "tick").count(), 1);
    assert!(notes.iter().filter(|note| *note == "beat").count() >= 3);
}

// Promise: P13 - Timers that are due at once run over several rounds.
#[test]
fn timers_that_are_due_at_once_run_over_several_rounds() {
    let mut limits = limits();
    limits.execution.instructions_per_round = 100_000_000;
    let mut node = Node::with(limits);
    let due = node.now() + 86_400 * SECOND;
    let spec = Spec {
        init: vec![Op::Timer(due)],
        timer: Some(vec![Op::Note(b"tick".to_vec())]),
        ..Spec::default()
    };
    let ids: Vec<_> = (0..250).map(|_| node.deploy(&spec)).collect();
    let ran = |node: &Node| ids.iter().filter(|id| node.canister(**id).global_timer.0 == 0).count();
    node.seconds_per_round = 86_400;
    node.round();
    node.seconds_per_round = 1;
    let first = ran(&node);
    assert!((50..=100).contains(&first), "{first} timers in one round");
    for _ in 0..4 {
        node.round();
    }
    assert_eq!(ran(&node), 250);
}

/// Continues with rounds of `instructions` instructions.
fn with_round_of(mut node: Node, instructions: u64) -> Node {
    node.executor.checkpoint().unwrap();
    let mut limits = limits::Limits::clone(&node.config.limits);
    limits.execution.instructions_per_round = instructions;
    node.config.limits = std::sync::Arc::new(limits);
    node.restart()
}

/// `count` canisters with the same code, made and installed many in a batch.
fn deploy_many(node: &mut Node, spec: &Spec, count: usize) -> Vec<Principal> {
    const AT_ONCE: usize = 250;
    #[derive(candid::CandidType)]
    struct Creation {
        amount: Option<candid::Nat>,
    }
    let aaaaa = Principal::management_canister();
    let creation = candid::encode_one(Creation { amount: None }).unwrap();
    let mut ids = Vec::new();
    while ids.len() < count {
        let method = "provisional_create_canister_with_cycles";
        let some = AT_ONCE.min(count - ids.len());
        let create = |_| node.ingress(user(1), aaaaa, aaaaa, method, creation.clone());
        let created: Vec<_> = (0..some).map(create).collect();
        node.settle();
        for request in created {
            let record: ic_management_canister_types::CanisterIdRecord =
                common::decode(&node.result(&request).unwrap());
            ids.push(record.canister_id);
        }
        let installs = ids[ids.len() - some..].iter().map(|id| {
            let install = ic_management_canister_types::InstallCodeArgs {
                mode: ic_management_canister_types::CanisterInstallMode::Install,
                canister_id: *id,
                wasm_module: spec.wasm(),
                arg: vec![],
                sender_canister_version: None,
            };
            node.ingress(user(1), aaaaa, *id, "install_code", candid::encode_one(install).unwrap())
        });
        let installs: Vec<_> = installs.collect();
        node.settle();
        assert!(installs.iter().all(|request| node.result(request).is_ok()));
    }
    ids
}

// Promise: P13 - 2,000 timers due at once run over several rounds and leave others their turn.
/// No round visits all timers that are due: it begins those that the instructions of one round pay
/// for, a million each at least, behind the last one in the order of ids. So with more of them
/// there are more rounds, and none is longer; and other canisters with work have a turn between
/// them.
#[test]
fn thousands_of_timers_at_once_hold_up_no_round_and_leave_others_their_turn() {
    const TIMERS: usize = 2_000;
    const PER_ROUND: usize = 100;
    let mut limits = limits();
    limits.pages.checkpoint_interval_rounds = 1_000;
    limits.subnet.canisters_max = 2 * TIMERS as u64;
    let mut node = Node::with(limits);
    let due = node.now() + 86_400 * SECOND;
    let spec = Spec {
        init: vec![Op::Timer(due)],
        timer: Some(vec![Op::Note(b"tick".to_vec())]),
        ..Spec::default()
    };
    let mut ids = deploy_many(&mut node, &spec, TIMERS / 2);
    let other = node.deploy(&Spec::default());
    ids.extend(deploy_many(&mut node, &spec, TIMERS / 2));
    let mut node = with_round_of(node, PER_ROUND as u64 * 1_000_000);
    let ran = |node: &Node| ids.iter().filter(|id| node.canister(**id).global_timer.0 == 0).count();
    assert_eq!(ran(&node), 0);
    node.seconds_per_round = 86_400;
    node.round();
    node.seconds_per_round = 1;
    let call = node.send(other, &[Op::Reply(b"here".to_vec())]);
    let mut served = None;
    let mut rounds = 1;
    while ran(&node) < TIMERS {
        let before = ran(&node);
        let result = node.round();
        rounds += 1;
        let now = ran(&node);
        assert!(now - before <= PER_ROUND, "{} timers in round {rounds}", now - before);
        assert!(result.instructions < PER_ROUND as u64 * 1_100_000, "{}", result.instructions);
        assert!(rounds <= 2 * TIMERS / PER_ROUND, "{} of them ran", ran(&node));
        served = served.or_else(|| node.result_if_any(&call).map(|_| now));
        // Messages since the checkpoint run again, with the same result.
        if rounds == 7 {
            node = node.restart();
        }
    }
    // Half of them come before it.
    let served = served.expect("the call has its turn before all timers had theirs");
    assert!(served < TIMERS * 3 / 4, "{served} timers ran before it");
    assert_eq!(node.result(&call).unwrap(), b"here");
    let ticks = ids.iter().step_by(97).map(|id| node.notes(*id));
    assert!(ticks.into_iter().all(|notes| notes == ["tick"]));
}

// Promise: P13 - A busy canister does not starve the others.
#[test]
fn a_busy_canister_does_not_starve_the_others() {
    let mut node = Node::new();
    let ids: Vec<_> = (0..9).map(|_| node.deploy(&Spec::default())).collect();
    let mut requests = vec![];
    for id in &ids {
        for _ in 0..3 {
            requests.push(node.send(*id, &[Op::Spend(3_000_000_000), Op::Reply(vec![])]));
        }
    }
    let mut rounds_to_first = vec![None; ids.len()];
    for round in 0..30 {
        node.round();
        for (index, request) in requests.iter().step_by(3).enumerate() {
            if rounds_to_first[index].is_none()
                && matches!(node.status(request), Status::Replied(_))
            {
                rounds_to_first[index] = Some(round);
            }
        }
    }
    assert!(
        rounds_to_first.iter().all(|round| round.is_some_and(|round| round <= 9)),
        "{rounds_to_first:?}"
    );
    assert!(requests.iter().all(|request| matches!(node.status(request), Status::Replied(_))));
}

#[test]
fn a_canister_that_writes_beyond_its_rate_waits() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    node.call(id, &[Op::Grow(1_000), Op::Reply(vec![])]).unwrap();
    let per_round = node.config.limits.execution.heap_delta_bytes_per_canister_round;
    let pages =
        (node.config.limits.execution.stable_dirty_bytes_per_message / 4096).min(per_round / 4096);
    let requests: Vec<_> =
        (0..4).map(|_| node.send(id, &[Op::Dirty(pages), Op::Reply(vec![])])).collect();
    node.round();
    assert!(matches!(node.status(&requests[0]), Status::Replied(_)));
    assert_eq!(node.status(&requests[3]), Status::Received);
    node.settle();
    assert!(requests.iter().all(|request| node.result(request).is_ok()));
}

// Promise: P2 - Ingress messages beyond their pool are rejected with the limit.
#[test]
fn users_messages_beyond_the_pool_are_refused_by_name() {
    let mut limits = common::limits();
    limits.subnet.best_effort_message_bytes = 8_000_000;
    let mut node = Node::with(limits);
    let id = node.deploy(&Spec::default());
    let mut program = vec![Op::Reply(vec![])];
    program.push(Op::Note(vec![0; 1_900_000]));
    let others: Vec<_> = (0..4).map(|_| node.deploy(&Spec::default())).collect();
    let receivers = [id, id, id].into_iter().chain(others);
    let requests: Vec<_> = receivers.map(|id| node.send(id, &program)).collect();
    node.settle();
    let refused = |request| node.result(request).err();
    let refused: Vec<_> = requests.iter().map(refused).collect();
    // The third has more than is left for others behind it; the last two find the pool full.
    let is_taken: Vec<_> = refused.iter().map(Option::is_none).collect();
    assert_eq!(is_taken, [true, true, false, true, true, false, false]);
    let why =
        ["", "", "left for others", "", "", "messages that wait take", "messages that wait take"];
    for (reject, why) in
        refused.iter().zip(why).filter_map(|(reject, why)| Some((reject.as_ref()?, why)))
    {
        assert_eq!(reject.error_code.0, 201);
        let message = &reject.message;
        assert!(
            message.contains("best_effort_message_bytes") && message.contains(why),
            "{message}"
        );
    }
    assert_eq!(node.executor.state().totals().best_effort_message_bytes, 0);
}

/// The argument of methods about one canister.
#[derive(candid::CandidType)]
struct CanisterArgument {
    canister_id: Principal,
}

/// Limits with room for thousands of open calls, as a disk budget gives.
fn with_room_for_calls() -> limits::Limits {
    let mut limits = common::limits();
    limits.subnet.guaranteed_response_message_bytes = 20 << 30;
    limits.subnet.guaranteed_response_calls = 40 << 10;
    limits.subnet.callback_soft_limit = 10_000;
    limits
}

/// A canister with `calls` guaranteed calls open towards each of `callees`, none of which had its
/// turn.
fn with_open_calls(node: &mut Node, callees: &[Principal], calls: usize) -> Principal {
    // Enough to prepay the responses to all of them.
    let caller = node.create_with(1_000_000_000_000_000);
    let mode = ic_management_canister_types::CanisterInstallMode::Install;
    node.install(caller, mode, &Spec::default()).unwrap();
    for callee in callees {
        // Small ones, which are in the callee's record, and some that have records of their own.
        let program = |number: usize| {
            let large = number.is_multiple_of(10);
            let note = vec![7; if large { 9_000 } else { 10 }];
            let mut call =
                CallOp::new(*callee, &[Op::Spend(40_000_000), Op::Note(note), Op::Reply(vec![1])]);
            (call.on_reply, call.on_reject) = (vec![], vec![Op::NoteReject]);
            call.op()
        };
        let program: Vec<Op> = (0..calls).map(program).chain([Op::Reply(vec![])]).collect();
        node.send(caller, &program);
    }
    node.round();
    caller
}

// Promise: P3 - Thousands of guaranteed calls are open at once and survive a restart.
#[test]
fn thousands_of_guaranteed_calls_are_open_at_once_and_survive_a_restart() {
    const CALLS: usize = 400;
    let mut node = Node::with(with_room_for_calls());
    let callees: Vec<_> = (0..5).map(|_| node.deploy(&Spec::default())).collect();
    let caller = with_open_calls(&mut node, &callees, CALLS);
    let open = |node: &Node| node.canister(caller).calls.callbacks_open();
    let waiting = |node: &Node| -> u64 {
        callees.iter().map(|id| node.canister(*id).queues.apart().count() as u64).sum()
    };
    for _ in 0..4 {
        node.round();
    }
    assert!(open(&node) > 1_000, "{} are open", open(&node));
    assert!(waiting(&node) > 50, "{} messages have records of their own", waiting(&node));
    let totals = *node.executor.state().totals();
    assert!(
        totals.guaranteed_message_bytes > 1_000 * node.config.limits.subnet.message_payload_bytes
    );
    // From the newest checkpoint, and from one that holds all there is.
    let mut node = node.restart();
    assert_eq!(*node.executor.state().totals(), totals);
    node.executor.state().check();
    node.round();
    node.executor.checkpoint().unwrap();
    let before = (open(&node), waiting(&node));
    let mut node = node.restart();
    assert_eq!((open(&node), waiting(&node)), before);
    node.settle();
    assert_eq!((open(&node), waiting(&node)), (0, 0));
    assert!(node.notes(caller).is_empty(), "none was rejected");
    let answered: usize = callees.iter().map(|id| node.notes(*id).len()).sum();
    assert_eq!(answered, callees.len() * CALLS, "each ran once");
    assert_eq!(node.executor.state().totals().guaranteed_message_bytes, 0);
    node.restart().executor.state().check();
}

// Promise: P3 - A checkpoint is due when own records reach a quarter of the queue limit.
#[test]
fn messages_with_records_of_their_own_bring_a_checkpoint() {
    let mut limits = limits();
    limits.subnet.guaranteed_response_message_bytes = 64 << 20;
    (limits.pages.checkpoint_instructions, limits.pages.checkpoint_interval_rounds) =
        (u64::MAX, u64::MAX);
    let mut node = Node::with(limits);
    let (caller, callee) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    node.executor.checkpoint().unwrap();
    // The callee has time for one of them in a round.
    let call_ten_times = |node: &mut Node| {
        let mut call = CallOp::new(
            callee,
            &[Op::Spend(3_990_000_000), Op::Note(vec![7; 1_000_000]), Op::Reply(vec![])],
        );
        (call.on_reply, call.on_reject) = (vec![], vec![]);
        let program = [call.op(), Op::Reply(vec![])];
        for _ in 0..10 {
            node.send(caller, &program);
        }
    };
    let round = |node: &mut Node| {
        let batch = node.batch();
        node.executor.execute(&batch, &[]).unwrap();
        node.executor.certify(batch.height, vec![0; 48]).unwrap();
        node.executor.checkpoint_due()
    };
    assert!(!round(&mut node));
    call_ten_times(&mut node);
    assert!(!round(&mut node), "8 MB of 16 MiB, or 9");
    assert!(node.canister(callee).queues.apart().count() >= 8);
    assert!(!round(&mut node), "what waits longer does not count again");
    call_ten_times(&mut node);
    assert!(!node.executor.checkpoint_pressing());
    assert!(round(&mut node), "with those before more than 16 MiB");
    assert!(node.executor.checkpoint_pressing(), "the disk has no room for more alongside it");
    node.executor.checkpoint().unwrap();
    assert!(!node.executor.checkpoint_pressing());
    assert!(!round(&mut node));
    assert!(node.canister(callee).queues.apart().count() > 10);
}

// Promise: P3 - A canister with 10,000 open calls is stopped, emptied and deleted; bytes, contexts
//   and files return.
#[test]
fn a_canister_with_ten_thousand_open_calls_is_stopped_emptied_and_deleted() {
    const CALLEES: usize = 25;
    const CALLS: usize = 400;
    let mut node = Node::with(with_room_for_calls());
    let callees: Vec<_> = (0..CALLEES).map(|_| node.deploy(&Spec::default())).collect();
    // Rounds in which ten of the calls are executed, until all are made.
    let mut node = with_round_of(node, 400_000_000);
    let caller = with_open_calls(&mut node, &callees, CALLS);
    while node.canister(caller).queues.ingress().next().is_some() {
        node.round();
    }
    let open = |node: &Node| node.canister(caller).calls.callbacks_open();
    assert!(open(&node) > 9_000, "{} are open", open(&node));
    assert!(node.payload_files().len() > 500, "{} payloads", node.payload_files().len());
    node.executor.checkpoint().unwrap();
    // It gets a stop request, which cannot complete while calls are open. Then its code is removed:
    // the callees continue, and responses are dropped as they arrive.
    let argument = CanisterArgument { canister_id: caller };
    let (aaaaa, arg) = (Principal::management_canister(), candid::encode_one(&argument).unwrap());
    let stop = node.ingress(user(1), aaaaa, caller, "stop_canister", arg.clone());
    let empty = node.ingress(user(1), aaaaa, caller, "uninstall_code", arg);
    while node.result_if_any(&empty).is_none() {
        node.round();
    }
    assert!(node.result(&empty).is_ok() && node.result_if_any(&stop).is_none());
    let left = open(&node);
    assert!(left > 8_000, "{left} are open");
    node.executor.checkpoint().unwrap();
    let node = node.restart();
    assert_eq!(open(&node), left);
    let mut node = with_round_of(node, 40_000_000_000);
    assert_eq!(open(&node), left);
    node.settle();
    assert!(node.result(&stop).is_ok());
    assert_eq!(open(&node), 0);
    node.manage(user(1), caller, "delete_canister", &argument).unwrap();
    assert!(!node.executor.state().contains(&caller));
    // Each call ran once, although most of the responses had no receiver, and nothing is left.
    let answered: usize = callees.iter().map(|id| node.notes(*id).len()).sum();
    assert_eq!(answered, CALLEES * CALLS);
    let totals = *node.executor.state().totals();
    assert_eq!((totals.guaranteed_message_bytes, totals.guaranteed_calls), (0, 0));
    assert_eq!((totals.best_effort_message_bytes, totals.file_payload_bytes), (0, 0));
    for id in &callees {
        let canister = node.canister(*id);
        assert!(canister.queues.is_empty() && canister.calls.has_no_contexts(), "{id}");
    }
    // Files go when no checkpoint refers to them any more.
    node.executor.checkpoint().unwrap();
    (0..20).for_each(|_| drop(node.round()));
    assert_eq!(node.payload_files(), [].into());
    node.restart().executor.state().check();
}

/// A node whose caller made calls of these sizes in bytes towards a callee that executes one in a
/// round.
fn with_large_calls(limits: limits::Limits, sizes: &[usize]) -> (Node, [Principal; 2]) {
    let mut node = Node::with(limits);
    let (caller, callee) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    node.executor.checkpoint().unwrap();
    for (number, bytes) in (0u8..).zip(sizes) {
        // It is returned as large as it was sent.
        let program = [Op::Spend(3_990_000_000), Op::Note(vec![number; *bytes]), Op::ReplyArgument];
        let mut call = CallOp::new(callee, &program);
        (call.on_reply, call.on_reject) = (vec![Op::NoteArgument], vec![Op::NoteReject]);
        node.send(caller, &[call.op(), Op::Reply(vec![])]);
    }
    (node, [caller, callee])
}

const SIZES: [usize; 6] = [20_000, 300_000, 9_000, 100, 1_000_000, 262_144];

// Promise: P3 - A payload beyond 8 KiB of a queued message is stored in a file.
#[test]
fn what_large_messages_carry_lies_in_files_while_they_wait() {
    let (mut node, [caller, callee]) = with_large_calls(limits(), &SIZES);
    node.round();
    // Messages that were executed in the round they arrived in never had a file.
    let waiting = node.payloads();
    assert!(waiting.len() >= 3, "{waiting:?}");
    assert_eq!(node.payload_files(), waiting);
    let totals = *node.executor.state().totals();
    assert!(totals.file_payload_bytes > 1_500_000, "{totals:?}");
    assert!(totals.guaranteed_here_bytes < 10_000, "{totals:?}");
    let record = state::encode_record("it", node.canister(callee)).unwrap();
    assert!(record.len() < 5_000, "{} bytes", record.len());
    // One restart without a checkpoint, one from a checkpoint, whose files stay until the next.
    let mut node = node.restart();
    assert_eq!((node.payloads(), node.payload_files()), (waiting.clone(), waiting.clone()));
    node.executor.checkpoint().unwrap();
    let mut node = node.restart();
    assert_eq!((node.payloads(), node.payload_files()), (waiting.clone(), waiting.clone()));
    while node.payloads().len() == waiting.len() {
        node.round();
    }
    assert!(node.payload_files().is_superset(&waiting), "the checkpoint refers to all of them");
    let mut node = node.restart();
    node.settle();
    assert_eq!(node.payloads(), [].into());
    node.executor.checkpoint().unwrap();
    node.round();
    assert_eq!(node.payload_files(), [].into());
    // Each was executed once, with what it carried, and its response came back whole.
    let lengths = |node: &mut Node, id| {
        let mut all: Vec<_> = node.notes(id).iter().map(String::len).collect();
        all.sort_unstable();
        all
    };
    let mut sizes = SIZES.to_vec();
    sizes.sort_unstable();
    assert_eq!(lengths(&mut node, callee), sizes);
    let replies = lengths(&mut node, caller);
    assert!(replies.iter().zip(&sizes).all(|(reply, size)| *reply > *size), "{replies:?}");
    let totals = node.executor.state().totals();
    assert_eq!((totals.file_payload_bytes, totals.guaranteed_calls), (0, 0));
    node.restart().executor.state().check();
}

// Promise: P3 - A call beyond the number of open calls is refused, and all calls get a response.
#[test]
fn a_call_beyond_the_number_that_may_be_open_is_refused_and_all_are_answered() {
    let mut limits = with_room_for_calls();
    limits.subnet.guaranteed_response_calls = 50;
    let mut node = Node::with(limits);
    let (caller, callee) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let mut call = CallOp::new(callee, &[Op::Reply(vec![])]);
    (call.on_reply, call.on_reject) = (vec![Op::Note(b"on".to_vec())], vec![Op::NoteReject]);
    let mut best_effort = call.clone();
    best_effort.timeout = Some(300);
    let program: Vec<_> = std::iter::repeat_n(call.op(), 60)
        .chain(std::iter::repeat_n(best_effort.op(), 10))
        .chain([Op::Reply(vec![])])
        .collect();
    node.call(caller, &program).unwrap();
    let notes = node.notes(caller);
    let (refused, answered): (Vec<_>, Vec<_>) =
        notes.into_iter().partition(|note| note.contains("subnet.guaranteed_response_calls"));
    assert_eq!((refused.len(), answered.len()), (10, 60), "{refused:?}");
    assert!(answered.iter().all(|note| note == "on"), "{answered:?}");
    assert_eq!(node.executor.state().totals().guaranteed_calls, 0);
    node.restart();
}

// Promise: P3 - Payloads count towards the bytes that a round may write.
#[test]
fn what_messages_carry_counts_in_what_a_round_may_write() {
    let mut limits = with_room_for_calls();
    limits.subnet.best_effort_message_bytes = 256 << 20;
    let per_round = limits.execution.heap_delta_bytes_per_round;
    let mut node = Node::with(limits);
    let (caller, callee) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    // A round has the time for all of it, there and back.
    let mut call = CallOp::new(callee, &[Op::Reply(vec![7; 1_900_000])]);
    (call.on_reply, call.on_reject) = (vec![Op::Note(b"on".to_vec())], vec![Op::NoteReject]);
    for _ in 0..60 {
        node.send(caller, &[call.clone().op(), Op::Reply(vec![])]);
    }
    let mut rounds = 0;
    loop {
        rounds += 1;
        if !node.round().more {
            break;
        }
    }
    // With what the lanes of one round had begun when it was used up.
    let most = per_round + 2 * (limits::LANE_PAYLOAD_BYTES + 2_000_000);
    assert!(rounds >= 2 * 60 * 1_900_000 / most, "{rounds}");
    assert!(rounds < 20, "{rounds}");
    let mut node = node.restart();
    assert_eq!(node.notes(caller), ["on"; 60]);
}

// Promise: P8 - Block time that is set back moves timers and expires waiting calls.
#[test]
fn time_that_is_set_back_moves_timers_and_ends_what_waits() {
    const DAY: u64 = 86_400 * SECOND;
    let mut node = Node::new();
    node.seconds_per_round = 2 * 86_400;
    node.round();
    node.seconds_per_round = 1;
    let due = node.now() + 3_600 * SECOND;
    let timer = Some(vec![Op::Note(b"tick".to_vec())]);
    let timed = node.deploy(&Spec { init: vec![Op::Timer(due)], timer, ..Spec::default() });
    let (a, b, c) = (
        node.deploy(&Spec::default()),
        node.deploy(&Spec::default()),
        node.deploy(&Spec::default()),
    );
    let answered = node.ingress(user(1), a, a, "run", encode(&[Op::Reply(vec![])]));
    node.settle();
    assert_eq!(node.result(&answered), Ok(vec![]));
    // A best-effort call that would wait for five minutes, to a callee that works for rounds.
    let mut call = CallOp::new(b, &[]);
    call.timeout = Some(300);
    let work = |then: Vec<Op>| [vec![Op::Spend(3_999_000_000)], then].concat();
    let last = CallOp::new(c, &work(vec![Op::Reply(vec![])])).op();
    let middle = CallOp::new(c, &work(vec![last])).op();
    call.arg = encode(&[CallOp::new(c, &work(vec![middle])).op()]);
    let waiting = node.ingress(user(1), a, a, "run", encode(&[call.op()]));
    node.round();
    assert_eq!(node.result_if_any(&waiting), None);

    // The agreed time never decreases, and no time is used twice.
    let before = node.executor.time();
    let back = Time(before.0 - DAY);
    let agreed = Some(AgreedRound { epoch: 0, view: 1 });
    let batch = node.batch();
    for refused in [Batch { time: back, agreed, ..batch.clone() }, Batch { time: before, ..batch }]
    {
        assert!(matches!(node.executor.execute(&refused, &[]), Err(FatalError::Time { .. })));
    }

    let cycles = node.canister(timed).cycles;
    let batch = Batch { time: back, ..node.batch() };
    node.execute(batch, &[]);
    assert_eq!(node.executor.time(), back);
    assert_eq!(node.canister(timed).global_timer.0, due - DAY);
    assert_eq!(node.canister(timed).cycles, cycles, "the time ahead is paid for");
    assert!(node.executor.state().history.get(&answered).is_none(), "its status is dropped");
    node.settle();
    let text = String::from_utf8(node.result(&waiting).unwrap()).unwrap();
    assert!(text.starts_with("6: "), "{text}");
    assert!(!node.notes(timed).contains(&"tick".into()));
    node.seconds_per_round = 3_700;
    node.round();
    node.seconds_per_round = 1;
    assert!(node.notes(timed).contains(&"tick".into()));
}
