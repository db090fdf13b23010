//! Stories of messages that take many rounds: their results, and which other messages wait for
//! them.

use std::collections::BTreeSet;

use candid::Principal;
use execution::RoundResult;
use ic_management_canister_types as management;
use limits::Limits;
use state::{CanisterId, Fault, RejectCode, RequestId, Status};

use crate::common::{
    self, CallOp, Node, Op, SECOND, Spec, decode, encode, is_paused, manage, user,
};

const SLICE: u64 = 10_000_000;

/// Slices so short that a message of many is quick.
fn short_slices() -> Limits {
    common::short_slices(SLICE)
}

/// `count` slices of work.
fn slices(count: u64) -> Op {
    Op::Spend(count * SLICE - SLICE / 2)
}

/// Sends a message of `count` slices and executes the first one.
fn begin(node: &mut Node, id: CanisterId, count: u64, then: &[Op]) -> RequestId {
    let program: Vec<_> = std::iter::once(slices(count)).chain(then.iter().cloned()).collect();
    let request = node.send(id, &program);
    node.round();
    assert!(is_paused(node, id));
    assert_eq!(node.status(&request), Status::Processing);
    request
}

/// Rounds until the message of the canister is over.
fn finish(node: &mut Node, id: CanisterId) -> u64 {
    let is_over = |node: &Node| {
        node.executor.state().get(&id).is_none_or(|canister| canister.paused.is_none())
    };
    (1..200)
        .find(|_| {
            node.round();
            is_over(node)
        })
        .unwrap()
}

// Promise: P13 - A message of 40 billion instructions completes, and other canisters run in every
//   round.
#[test]
fn a_message_of_forty_billion_instructions_ends_and_holds_up_nobody() {
    let mut node = Node::new();
    let (long, other) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let balance = node.canister(long).cycles;
    let program =
        [Op::Note(b"kept".to_vec()), Op::Spend(39_900_000_000), Op::Reply(b"done".to_vec())];
    let request = node.send(long, &program);
    for round in 0..39 {
        let short = node.send(other, &[Op::Reply(vec![round])]);
        let RoundResult { more, instructions, .. } = node.round();
        assert!(more && instructions < 1_100_000_000, "round {round}: {instructions}");
        assert_eq!(node.status(&request), Status::Processing, "round {round}");
        assert_eq!(node.result(&short).unwrap(), [round]);
    }
    let queued = node.send(long, &[Op::ReplyNotes]);
    let result = node.round();
    assert_eq!(node.result(&request).unwrap(), b"done");
    assert!(result.finished.contains(&queued), "what waited runs in the same round");
    assert_eq!(node.notes(long), ["kept"]);
    let cost = balance - node.canister(long).cycles;
    assert!((39_900_000_000..40_100_000_000).contains(&cost), "{cost}");
    node.restart();
}

// Promise: P13 - A paused message that fails leaves no change.
#[test]
fn a_message_beyond_its_limit_fails_in_its_last_slice_and_leaves_nothing() {
    let mut node = Node::with(short_slices());
    let id = node.deploy(&Spec::default());
    let request = begin(&mut node, id, 41, &[Op::Note(b"lost".to_vec()), Op::Reply(vec![])]);
    assert_eq!(finish(&mut node, id), 39);
    assert_eq!(node.result(&request).unwrap_err().error_code.0, 522);
    let trapped = begin(&mut node, id, 9, &[Op::Note(b"lost".to_vec()), Op::Trap("late".into())]);
    finish(&mut node, id);
    assert!(node.result(&trapped).unwrap_err().message.contains("late"));
    assert!(node.notes(id).is_empty());
    node.restart();
}

/// Long messages of all kinds, on several canisters, with a restart after the rounds named.
fn life(restarts: &[u64]) -> Vec<[u8; 32]> {
    let mut limits = short_slices();
    limits.pages.checkpoint_interval_rounds = 5;
    let mut node = Node::with(limits);
    let due = node.now() + 20 * SECOND;
    let spec = Spec {
        init: vec![Op::Timer(due)],
        timer: Some(vec![slices(4), Op::Note(b"timer".to_vec())]),
        ..Spec::default()
    };
    let ids: Vec<_> = (0..4).map(|_| node.deploy(&spec)).collect();
    let mut call = CallOp::new(ids[1], &[slices(3), Op::Accept(500), Op::Reply(b"x".to_vec())]);
    call.cycles = 1_000;
    call.on_reply = vec![slices(3), Op::Note(b"gone".to_vec()), Op::Trap("callback".into())];
    call.on_cleanup = vec![Op::Spend(SLICE * 3 / 2), Op::Note(b"cleaned".to_vec())];
    let mut late = CallOp::new(ids[2], &[slices(9), Op::Reply(vec![])]);
    late.timeout = Some(3);
    let sent = [
        node.send(ids[0], &[slices(2), call.op()]),
        node.send(ids[3], &[late.op(), slices(2)]),
        node.send(ids[2], &[slices(5), Op::Note(b"two".to_vec()), Op::Reply(vec![2])]),
    ];
    for round in 0..60 {
        node.round();
        if restarts.contains(&round) {
            node = node.restart();
        }
    }
    node.settle();
    assert!(node.result(&sent[0]).unwrap_err().message.contains("callback"));
    assert!(String::from_utf8(node.result(&sent[1]).unwrap()).unwrap().starts_with("6: "));
    assert_eq!(node.result(&sent[2]).unwrap(), [2]);
    let notes = ids.iter().map(|id| node.notes(*id)).collect::<Vec<_>>();
    assert!(notes.iter().all(|notes| notes.contains(&"timer".to_owned())), "{notes:?}");
    assert!(notes[0].contains(&"cleaned".to_owned()) && !notes[0].contains(&"gone".to_owned()));
    node.log.iter().map(|(.., root)| *root).collect()
}

// Promise: P13 - Sliced calls, callbacks, cleanups and timers give the same result over restarts.
#[test]
fn calls_callbacks_cleanups_and_timers_come_to_the_same_over_restarts() {
    let roots = life(&[]);
    let every: Vec<_> = (0..60).collect();
    assert_eq!(roots, life(&every));
    assert_eq!(roots, life(&[3, 8, 21]));
}

// Promise: P13 - Ten long messages at once take turns, and all complete.
#[test]
fn ten_long_messages_at_once_take_turns_and_all_end() {
    let mut node = Node::with(short_slices());
    let ids: Vec<_> = (0..11).map(|_| node.deploy(&Spec::default())).collect();
    let requests: Vec<_> =
        ids[..10].iter().map(|id| node.send(*id, &[slices(40), Op::Reply(vec![1])])).collect();
    let mut rounds = 0;
    while requests.iter().any(|request| node.result_if_any(request).is_none()) {
        let short = node.send(ids[10], &[Op::Reply(vec![2])]);
        node.round();
        rounds += 1;
        assert!(rounds <= 410, "{rounds}");
        assert!(rounds < 10 || node.result(&short).is_ok(), "others are served in every round");
    }
    // A message that is sent later ends later: none waits for ever.
    assert!(requests.iter().all(|request| node.result(request).unwrap() == [1]));
    node.restart();
}

// Promise: P13 - The oldest paused messages continue when new ones begin.
#[test]
fn the_oldest_paused_messages_are_resumed_first() {
    let mut node = Node::with(short_slices());
    let ids: Vec<_> = (0..6).map(|_| node.deploy(&Spec::default())).collect();
    let first = begin(&mut node, ids[5], 8, &[Op::Reply(vec![])]);
    for round in 0..7 {
        if let Some(id) = ids[..5].get(round) {
            node.send(*id, &[slices(30), Op::Reply(vec![])]);
        }
        node.round();
    }
    assert!(node.result(&first).is_ok(), "its eighth slice came in its eighth round");
    assert!(ids[..5].iter().all(|id| is_paused(&node, *id)));
}

/// Sends a message to each that does not end soon.
fn crowd(node: &mut Node, ids: &[CanisterId], program: &[Op]) {
    for few in ids.chunks(4) {
        for id in few {
            node.send(*id, program);
        }
        node.round();
    }
    assert!(ids.iter().all(|id| is_paused(node, *id)));
}

// Promise: P13 - A message slightly longer than a slice does not wait for all older ones.
#[test]
fn a_message_little_longer_than_a_slice_does_not_wait_for_all_that_began_before() {
    let mut node = Node::with(short_slices());
    let ids: Vec<_> = (0..42).map(|_| node.deploy(&Spec::default())).collect();
    let strangers = &ids[1..41];
    crowd(&mut node, strangers, &[slices(40), Op::Reply(vec![])]);
    for id in [ids[0], ids[41]] {
        let request = begin(&mut node, id, 2, &[Op::Reply(b"short".to_vec())]);
        let rounds = finish(&mut node, id);
        assert!(rounds <= 42, "{rounds}");
        assert_eq!(node.result(&request).unwrap(), b"short");
    }
    assert!(strangers.iter().filter(|id| is_paused(&node, **id)).count() > 30);
    assert!(strangers[..3].iter().all(|id| !is_paused(&node, *id)), "the oldest continue as well");
    node.restart();
}

/// Executes calls on a canister whose hooks take longer than a slice: each has its turn, and an
/// answer comes in.
fn answers_between_hooks(spec: &Spec) -> Vec<String> {
    let mut node = Node::with(short_slices());
    let (id, other) = (node.deploy(spec), node.deploy(&Spec::default()));
    let mut call = CallOp::new(other, &[Op::Reply(b"x".to_vec())]);
    call.on_reply = vec![Op::Note(b"callback".to_vec()), Op::ReplyArgument];
    let call = call.op();
    for round in 0..6 {
        let long = if round % 2 == 0 { slices(2) } else { Op::Spend(1) };
        let request = node.send(id, &[Op::Note(b"message".to_vec()), long, call.clone()]);
        let rounds = (1..30).find(|_| {
            node.round();
            node.result_if_any(&request).is_some()
        });
        assert!(rounds.is_some_and(|rounds| rounds <= 16), "{round}: {rounds:?}");
        assert_eq!(node.result(&request).unwrap(), b"x");
        node = node.restart();
    }
    let request = node.send(id, &[Op::ReplyNotes]);
    while node.result_if_any(&request).is_none() {
        node.round();
    }
    let notes: Vec<Vec<u8>> = postcard::from_bytes(&node.result(&request).unwrap()).unwrap();
    notes.into_iter().map(|note| String::from_utf8(note).unwrap()).collect()
}

fn heartbeat() -> Option<Vec<Op>> {
    Some(vec![slices(2), Op::Note(b"heartbeat".to_vec())])
}

/// One that is due again when it is over.
fn recurring_timer() -> Option<Vec<Op>> {
    Some(vec![Op::Timer(1), slices(2), Op::Note(b"timer".to_vec())])
}

// Promise: P13 - A heartbeat longer than a slice leaves its canister a turn.
#[test]
fn a_heartbeat_longer_than_a_slice_leaves_its_canister_a_turn() {
    let notes = answers_between_hooks(&Spec { heartbeat: heartbeat(), ..Spec::default() });
    assert!(notes.iter().filter(|note| *note == "heartbeat").count() >= 6, "{notes:?}");
}

// Promise: P13 - A recurring timer longer than a slice leaves its canister a turn.
#[test]
fn a_recurring_timer_longer_than_a_slice_leaves_its_canister_a_turn() {
    let (init, timer) = (vec![Op::Timer(1)], recurring_timer());
    let notes = answers_between_hooks(&Spec { init, timer, ..Spec::default() });
    assert!(notes.iter().filter(|note| *note == "timer").count() >= 6, "{notes:?}");
}

#[test]
fn heartbeat_timer_and_messages_that_are_all_long_have_their_turns() {
    let (init, timer) = (vec![Op::Timer(1)], recurring_timer());
    let spec = Spec { init, timer, heartbeat: heartbeat(), ..Spec::default() };
    let notes = answers_between_hooks(&spec);
    for hook in ["heartbeat", "timer"] {
        assert!(notes.iter().filter(|note| *note == hook).count() >= 6, "{hook}: {notes:?}");
    }
}

// Promise: P13 - A heartbeat or timer does not run before waiting messages twice in a row.
#[test]
fn a_hook_that_has_no_turn_in_the_round_of_its_end_does_not_come_before_messages_again() {
    let mut limits = short_slices();
    limits.execution.heap_delta_bytes_per_canister_round = 16 << 10;
    let mut node = Node::with(limits);
    // Its writes make its canister wait for rounds after each of them.
    let beat = vec![slices(2), Op::Grow(1), Op::Write(0, 10, 1)];
    let id = node.deploy(&Spec { heartbeat: Some(beat), ..Spec::default() });
    let request = node.send(id, &[Op::Reply(b"served".to_vec())]);
    for _ in 0..30 {
        node.round();
    }
    assert_eq!(node.result(&request).unwrap(), b"served");
    node.restart();
}

// Promise: P13 - Upgrades and settings wait for a paused message, and later calls do not.
#[test]
fn what_would_change_the_canister_waits_and_what_is_behind_does_not() {
    let mut node = Node::with(short_slices());
    let (id, other) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let long = begin(&mut node, id, 6, &[Op::Note(b"old".to_vec()), Op::Reply(b"old".to_vec())]);
    let record = |canister_id| management::CanisterIdRecord { canister_id };
    let install = management::InstallCodeArgs {
        mode: management::CanisterInstallMode::Upgrade(None),
        canister_id: id,
        wasm_module: Spec { name: "new".into(), ..Spec::default() }.wasm(),
        arg: vec![],
        sender_canister_version: None,
    };
    let upgrade = manage(&mut node, id, "install_code", &install);
    let settings = manage(
        &mut node,
        id,
        "update_settings",
        &management::UpdateSettingsArgs {
            canister_id: id,
            settings: management::CanisterSettings {
                controllers: Some(vec![user(1), user(2)]),
                ..Default::default()
            },
            sender_canister_version: None,
        },
    );
    let behind = manage(&mut node, other, "stop_canister", &record(other));
    let status = manage(&mut node, id, "canister_status", &record(id));
    let next = node.send(id, &[Op::ReplyNotes]);
    node.round();
    assert!(node.result(&behind).is_ok(), "another canister's call is not held up");
    let status: management::CanisterStatusResult = decode(&node.result(&status).unwrap());
    assert_eq!(status.settings.controllers, [user(1)]);
    assert_eq!(node.result_if_any(&upgrade), None);
    assert_eq!(node.result_if_any(&settings), None);
    let module = node.canister(id).module().unwrap().hash;
    node = node.restart();
    finish(&mut node, id);
    assert_eq!(node.result(&long).unwrap(), b"old");
    assert!(node.result(&upgrade).is_ok() && node.result(&settings).is_ok());
    assert_ne!(node.canister(id).module().unwrap().hash, module);
    // What had not begun is the new code's, whose heap is empty.
    node.settle();
    let notes: Vec<Vec<u8>> = postcard::from_bytes(&node.result(&next).unwrap()).unwrap();
    assert!(notes.is_empty());
    assert_eq!(node.canister(id).controllers.len(), 2);
    node.restart();
}

#[test]
fn a_canister_is_emptied_when_its_message_is_over_and_stops_then() {
    let mut node = Node::with(short_slices());
    let id = node.deploy(&Spec::default());
    let record = management::CanisterIdRecord { canister_id: id };
    let long = begin(&mut node, id, 5, &[Op::Reply(b"last".to_vec())]);
    let stop = manage(&mut node, id, "stop_canister", &record);
    node.round();
    let delete = manage(&mut node, id, "delete_canister", &record);
    node.round();
    assert_eq!(node.result_if_any(&stop), None);
    assert_eq!(node.result_if_any(&delete), None);
    finish(&mut node, id);
    assert_eq!(node.result(&long).unwrap(), b"last");
    assert!(node.result(&stop).is_ok());
    node.settle();
    assert!(node.result(&delete).is_ok(), "it stopped before the call had its turn");
    assert!(node.executor.state().get(&id).is_none());

    let id = node.deploy(&Spec::default());
    let record = management::CanisterIdRecord { canister_id: id };
    let long = begin(&mut node, id, 5, &[Op::Reply(b"kept".to_vec())]);
    let uninstall = manage(&mut node, id, "uninstall_code", &record);
    finish(&mut node, id);
    assert_eq!(node.result(&long).unwrap(), b"kept");
    assert!(node.result(&uninstall).is_ok() && node.canister(id).execution.is_none());
    node.restart();
}

#[test]
fn a_stop_in_the_middle_does_not_make_the_canister_tell_a_wrong_version() {
    let mut node = Node::with(short_slices());
    let id = node.deploy(&Spec::default());
    let version = node.canister(id).version;
    let arg =
        management::CreateCanisterArgs { settings: None, sender_canister_version: Some(version) };
    let mut call = CallOp::new(Principal::management_canister(), &[]);
    (call.method, call.arg) = ("create_canister".into(), candid::encode_one(arg).unwrap());
    call.cycles = 2_000_000_000_000;
    let request = begin(&mut node, id, 4, &[call.op()]);
    let record = management::CanisterIdRecord { canister_id: id };
    let stop = manage(&mut node, id, "stop_canister", &record);
    node.settle();
    let reply = node.result(&request).unwrap();
    assert!(reply.starts_with(b"DIDL"), "{}", String::from_utf8_lossy(&reply));
    assert!(node.result(&stop).is_ok());
}

// Promise: P13 - Cycles spent during a paused message are not spent twice.
#[test]
fn what_was_spent_meanwhile_is_not_spent_twice() {
    let mut node = Node::with(short_slices());
    let id = node.deploy(&Spec::default());
    let settings = management::UpdateSettingsArgs {
        canister_id: id,
        settings: management::CanisterSettings {
            freezing_threshold: Some(0u64.into()),
            ..Default::default()
        },
        sender_canister_version: None,
    };
    node.manage(user(1), id, "update_settings", &settings).unwrap();
    let all = node.canister(id).cycles;
    // All but the fees of a thousand calls: those of three are taken while it is paused.
    let prepaid = 40 * u128::from(SLICE) + 5_000_000;
    let fees = 1_000 * 2_000_000;
    let burn = Op::Burn(all - prepaid - fees);
    let request = begin(&mut node, id, 4, &[burn, Op::Reply(b"burned".to_vec())]);
    let during: Vec<_> = (0..3).map(|_| node.send(id, &[Op::Reply(vec![])])).collect();
    let top_up = management::ProvisionalTopUpCanisterArgs { canister_id: id, amount: 7u64.into() };
    manage(&mut node, id, "provisional_top_up_canister", &top_up);
    node.settle();
    assert_eq!(node.result(&request).unwrap(), b"burned");
    assert!(during.iter().all(|request| node.result_if_any(request).is_some()));
    assert_eq!(node.canister(id).consumption.burned, all - prepaid - fees);

    // All: the fees of a call leave too little.
    let left = node.canister(id).cycles;
    let request = begin(&mut node, id, 4, &[Op::Burn(left), Op::Reply(b"burned".to_vec())]);
    node.send(id, &[Op::Reply(vec![])]);
    node.settle();
    let reject = node.result(&request).unwrap_err();
    assert_eq!((reject.code, reject.error_code.0), (RejectCode::SysTransient, 207), "{reject:?}");
    assert_eq!(node.canister(id).consumption.burned, all - prepaid - fees);
    node.restart();
}

/// A canister with `cycles` cycles in addition to the price of storage for its freezing threshold.
fn poor(node: &mut Node, cycles: u64) -> CanisterId {
    let id = node.deploy(&Spec::default());
    node.call(id, &[Op::Grow(1_000), Op::Reply(vec![])]).unwrap();
    let balance = node.canister(id).cycles;
    node.call(id, &[Op::Burn(balance), Op::Reply(vec![])]).unwrap();
    top_up(node, id, cycles);
    node.settle();
    id
}

fn top_up(node: &mut Node, id: CanisterId, cycles: u64) {
    let amount =
        management::ProvisionalTopUpCanisterArgs { canister_id: id, amount: cycles.into() };
    manage(node, id, "provisional_top_up_canister", &amount);
}

const YEAR: u64 = 365 * 86_400;

// Promise: P13 - Storage of a canister with a paused message is charged later.
#[test]
fn what_storage_costs_while_a_message_holds_the_balance_is_owed() {
    let mut node = Node::with(short_slices());
    let (id, other) = (poor(&mut node, 1_000_000_000), node.deploy(&Spec::default()));
    let request = begin(&mut node, id, 5, &[Op::Reply(b"last".to_vec())]);
    node.seconds_per_round = YEAR;
    node.round();
    assert!(is_paused(&node, id));
    assert_eq!(node.canister(id).cycles, 0);
    let paid_until = node.canister(id).charged_until.0;
    assert!(paid_until < node.now() - YEAR / 2 * SECOND, "the rest is owed");
    // A canister that cannot pay is not charged again.
    let due = node.executor.state().due_charges(state::Time(node.now() + SECOND), 10);
    assert_eq!(due, [other]);
    node = node.restart();
    node.seconds_per_round = 1;
    let spent = node.canister(id).consumption.memory;
    // It would be prepaid with the cycles that the first one returns.
    let next = node.send(id, &[slices(5), Op::Reply(b"next".to_vec())]);
    finish(&mut node, id);
    assert_eq!(node.result(&request).unwrap(), b"last");
    assert!(node.canister(id).execution.is_none(), "what came back does not cover it");
    assert!(node.canister(id).consumption.memory > spent + 300_000_000);
    assert!(node.result(&next).is_err());
    node.restart();
}

#[test]
fn storage_that_is_owed_is_paid_as_soon_as_there_is_something() {
    let mut node = Node::with(short_slices());
    let ids = [0; 2].map(|_| poor(&mut node, 1_000_000_000));
    let requests = ids.map(|id| node.send(id, &[slices(9), Op::Reply(b"kept".to_vec())]));
    node.round();
    node.seconds_per_round = YEAR;
    node.round();
    assert!(ids.iter().all(|id| is_paused(&node, *id) && node.canister(*id).cycles == 0));
    node.seconds_per_round = 1;
    top_up(&mut node, ids[0], 1_000_000_000_000);
    node.round();
    node.round();
    let [rich, poor] = ids.map(|id| node.canister(id).charged_until.0 + YEAR / 2 * SECOND);
    assert!(is_paused(&node, ids[0]));
    assert!(rich > node.now() && poor < node.now(), "{rich}, {poor}");
    // The other can pay what it owes with what is sent before it is charged again.
    top_up(&mut node, ids[1], 1_000_000_000_000);
    node.settle();
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(node.result(request).unwrap(), b"kept");
        assert!(node.canister(*id).execution.is_some());
    }
    let paid = ids.map(|id| node.canister(id).consumption.memory);
    let alike = |one, other| one < other + 100_000_000;
    assert!(alike(paid[0], paid[1]) && alike(paid[1], paid[0]), "{paid:?}");
    node.restart();
}

// Promise: P13 - A paused message keeps the room that others did not use.
#[test]
fn growth_is_not_lacking_where_nobody_took_the_room() {
    let mut limits = short_slices();
    limits.subnet.memory_capacity_bytes = 512 << 20;
    let mut node = Node::with(limits);
    let ids: Vec<_> = (0..4).map(|_| node.deploy(&Spec::default())).collect();
    // It begins when it is alone, and ends when three others are also paused.
    let request = node.send(ids[0], &[slices(4), Op::Grow(1_500), Op::Reply(vec![])]);
    node.round();
    let others: Vec<_> =
        ids[1..].iter().map(|id| node.send(*id, &[slices(6), Op::Reply(vec![])])).collect();
    node.settle();
    assert_eq!(node.result(&request).unwrap(), b"");
    assert!(others.iter().all(|request| node.result(request).is_ok()));
    assert_eq!(node.canister(ids[0]).execution.as_ref().unwrap().stable.wasm_pages, 1_500);
    node.restart();
}

/// An install of an invalid module of `bytes` bytes.
fn large_install(node: &mut Node, id: CanisterId, bytes: usize) -> RequestId {
    let install = management::InstallCodeArgs {
        mode: management::CanisterInstallMode::Upgrade(None),
        canister_id: id,
        wasm_module: vec![0; bytes],
        arg: vec![],
        sender_canister_version: None,
    };
    manage(node, id, "install_code", &install)
}

// Promise: P13 - Calls that wait for a paused message keep their room.
#[test]
fn calls_that_wait_keep_their_room_when_the_message_ends() {
    let mut limits = short_slices();
    limits.subnet.best_effort_message_bytes = 3 << 20;
    let mut node = Node::with(limits);
    let (caller, id) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    node.call(id, &[Op::Note(vec![7; 1 << 20]), Op::Reply(vec![])]).unwrap();
    let mut call = CallOp::new(id, &[slices(4), Op::ReplyNotes]);
    call.timeout = Some(300);
    let request = node.send(caller, &[call.op()]);
    node.round();
    assert!(is_paused(&node, id));
    let installs = [0; 2].map(|_| large_install(&mut node, id, 1_200_000));
    node.round();
    assert_eq!(node.canister(id).paused.as_ref().unwrap().waiting.len(), 2);
    node.settle();
    // The reply and the two would be more than there is room for.
    let reply = node.result(&request).unwrap();
    assert!(reply.starts_with(b"6: ") && reply.len() < 1_000, "{} bytes", reply.len());
    assert!(installs.iter().all(|install| node.result(install).is_err()));
    node.restart();
}

#[test]
fn a_paused_message_takes_no_room_from_what_is_known_of_canisters() {
    let mut node = Node::with(short_slices());
    let (id, other) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let mut call = CallOp::new(other, &[Op::Reject("x".repeat(1_500_000))]);
    call.on_reject = vec![slices(4), Op::ReplyReject];
    let request = node.send(id, &[call.op()]);
    let metadata = node.executor.state().totals().metadata_bytes;
    for _ in 0..4 {
        node.round();
        if is_paused(&node, id) {
            break;
        }
    }
    assert!(is_paused(&node, id));
    let totals = *node.executor.state().totals();
    assert!(totals.metadata_bytes < metadata + 1_000, "{}", totals.metadata_bytes);
    // Texts of rejects are cut to so much.
    assert!(totals.guaranteed_message_bytes >= 8_192, "{}", totals.guaranteed_message_bytes);
    node.settle();
    assert!(node.result(&request).unwrap().len() >= 8_192);
    node.restart();
}

/// Five messages may write 1,280 KiB, and the phases of an upgrade 1 MiB of them.
fn small_delta() -> Limits {
    let mut limits = short_slices();
    let execution = &mut limits.execution;
    execution.heap_dirty_bytes_per_message = 128 << 10;
    execution.stable_dirty_bytes_per_message = 128 << 10;
    execution.heap_dirty_bytes_per_install = 256 << 10;
    execution.stable_dirty_bytes_per_install = 256 << 10;
    execution.dirty_bytes_per_install = 512 << 10;
    limits
}

// Promise: P13 - Management calls wait at most one round for paused messages.
#[test]
fn calls_that_find_no_room_beside_paused_messages_come_first_in_the_next_round() {
    let mut node = Node::with(small_delta());
    let ids: Vec<_> = (0..4).map(|_| node.deploy(&Spec::default())).collect();
    for id in &ids[..2] {
        node.send(
            *id,
            &[Op::Grow(4), slices(2), Op::Write(0, 32, 1), Op::Note(vec![1]), Op::Reply(vec![])],
        );
    }
    let other = node.send(ids[2], &[slices(9), Op::Reply(vec![])]);
    node.round();
    assert!(ids[..3].iter().all(|id| is_paused(&node, *id)));
    let record = management::CanisterIdRecord { canister_id: ids[3] };
    let stop = manage(&mut node, ids[3], "stop_canister", &record);
    let update = node.send(ids[3], &[Op::Reply(vec![])]);
    // Both that end write 128 KiB and their headers.
    let result = node.round();
    assert!(!is_paused(&node, ids[0]) && !is_paused(&node, ids[1]));
    assert!(result.more && node.result_if_any(&stop).is_none(), "the call finds no room");
    assert!(node.result(&update).is_ok(), "others are served");
    let granted = node.canister(ids[2]).paused.as_ref().unwrap().granted;
    node = node.restart();
    node.round();
    assert!(node.result(&stop).is_ok(), "it comes first");
    assert_eq!(node.canister(ids[2]).paused.as_ref().unwrap().granted, granted);
    node.settle();
    assert!(node.result(&other).is_ok());
    node.restart();
}

// Promise: P13 - Calls that waited are served before the canister begins another message.
#[test]
fn who_waited_for_a_message_is_served_before_the_next_one_begins() {
    let mut limits = short_slices();
    limits.execution.instructions_per_round = 4 * SLICE;
    let mut node = Node::with(limits);
    let id = node.deploy(&Spec::default());
    begin(&mut node, id, 4, &[Op::Reply(vec![])]);
    // Each of them uses up a round; behind them wait more long messages.
    let installs: Vec<_> = (0..4u8)
        .map(|number| {
            let name = format!("new {number}");
            let spec = Spec { name, compile_instructions: 4 * SLICE, ..Spec::default() };
            let install = management::InstallCodeArgs {
                mode: management::CanisterInstallMode::Upgrade(None),
                canister_id: id,
                wasm_module: spec.wasm(),
                arg: vec![],
                sender_canister_version: None,
            };
            manage(&mut node, id, "install_code", &install)
        })
        .collect();
    let next = node.send(id, &[slices(30), Op::Reply(b"next".to_vec())]);
    node.round();
    assert_eq!(node.canister(id).paused.as_ref().unwrap().waiting.len(), 4);
    node = node.restart();
    finish(&mut node, id);
    for _ in 0..4 {
        node.round();
        node = node.restart();
    }
    assert!(installs.iter().all(|install| node.result(install).is_ok()));
    node.settle();
    assert_eq!(node.result(&next).unwrap(), b"next");
    node.restart();
}

// Promise: P13 - Ingress messages behind a paused message expire in time.
#[test]
fn calls_that_wait_behind_a_paused_message_expire() {
    let mut node = Node::with(short_slices());
    let id = node.deploy(&Spec::default());
    let request = begin(&mut node, id, 9, &[Op::Reply(b"long".to_vec())]);
    let during: Vec<_> = (0..3).map(|_| node.send(id, &[Op::Reply(vec![])])).collect();
    node.round();
    assert!(node.executor.state().totals().best_effort_message_bytes > 0);
    node.seconds_per_round = 400;
    node.round();
    assert!(is_paused(&node, id));
    for request in during {
        assert!(node.result(&request).unwrap_err().message.contains("expir"));
    }
    node.seconds_per_round = 1;
    finish(&mut node, id);
    assert_eq!(node.result(&request).unwrap(), b"long");
    node.restart();
}

// Promise: P13 - Ingress messages that wait for three canisters leave an eighth of the pool to
//   others.
#[test]
fn whatever_waits_behind_paused_messages_leaves_others_room() {
    const POOL: u64 = 32 << 20;
    let mut limits = short_slices();
    limits.subnet.best_effort_message_bytes = POOL;
    let mut node = Node::with(limits);
    let (hogs, other) =
        ([0; 3].map(|_| node.deploy(&Spec::default())), node.deploy(&Spec::default()));
    let mib = Op::Note(vec![7; 1 << 20]);
    let long: Vec<_> = hogs
        .iter()
        .map(|id| node.send(*id, &[slices(39), mib.clone(), Op::Reply(vec![])]))
        .collect();
    node.round();
    assert!(hogs.iter().all(|id| is_paused(&node, *id)));
    // More than there is room for, to each.
    let mut waiting = Vec::new();
    for id in hogs {
        let calls = (0..40).map(|_| node.send(id, &[Op::Reply(vec![]), mib.clone()]));
        waiting.extend(calls.collect::<Vec<_>>());
        node.round();
    }
    let totals = node.executor.state().totals().best_effort_message_bytes;
    // A half, a fourth, an eighth, and what an argument less or more makes of it.
    assert!((POOL * 3 / 4..POOL * 15 / 16).contains(&totals), "{totals}");
    let share = |node: &Node, id| node.canister(id).user_message_bytes();
    for (id, part) in hogs.into_iter().zip([2, 4, 8]) {
        let (bytes, most) = (share(&node, id), POOL / part + (2 << 20));
        assert!((POOL / part - (2 << 20)..most).contains(&bytes), "{bytes} of {most}");
    }
    let refused = waiting.iter().filter_map(|call| node.result_if_any(call)?.err());
    let refused: Vec<_> = refused.map(|reject| reject.message).collect();
    assert!(refused.len() > 60, "{}", refused.len());
    let name = "left for others";
    assert!(refused.iter().all(|text| text.contains(name)), "{:?}", refused.first());
    // Others are served, with large arguments too, and controllers get through.
    for round in 0..5 {
        let served = node.send(other, &[mib.clone(), Op::Reply(vec![round])]);
        let status = manage(
            &mut node,
            hogs[0],
            "canister_status",
            &management::CanisterIdRecord { canister_id: hogs[0] },
        );
        node.round();
        assert_eq!(node.result(&served).unwrap(), [round]);
        assert!(node.result(&status).is_ok());
    }
    // A large call that would wait there counts to its share.
    let install = large_install(&mut node, hogs[0], 1 << 20);
    node.round();
    assert!(node.result(&install).unwrap_err().message.contains(name));
    node = node.restart();
    node.settle();
    assert!(long.iter().all(|request| node.result(request).is_ok()));
    assert_eq!(node.executor.state().totals().best_effort_message_bytes, 0);
}

// Promise: P13 - A paused message fails if others used the room for its growth.
#[test]
fn growth_that_others_left_no_room_for_fails_the_message() {
    let mut limits = short_slices();
    limits.subnet.memory_capacity_bytes = 256 << 20;
    let mut node = Node::with(limits);
    let (id, other) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    // Each may grow by a fourth of what is free, 4,000 pages: of what the other leaves it may not.
    let request = begin(&mut node, id, 4, &[Op::Grow(850), Op::Reply(vec![])]);
    node.send(other, &[Op::Grow(800), Op::Reply(vec![])]);
    finish(&mut node, id);
    let reject = node.result(&request).unwrap_err();
    assert_eq!(reject.error_code.0, 101, "{reject:?}");
    assert!(reject.message.contains("subnet.memory_capacity_bytes"), "{}", reject.message);
    assert_eq!(node.canister(id).execution.as_ref().unwrap().stable.wasm_pages, 0);
    assert_eq!(node.canister(other).execution.as_ref().unwrap().stable.wasm_pages, 800);
    node.restart();
}

#[test]
fn an_operator_can_reject_a_paused_message() {
    let mut node = Node::with(short_slices());
    let id = node.deploy(&Spec::default());
    let request = begin(&mut node, id, 5, &[Op::Note(b"lost".to_vec()), Op::Reply(vec![])]);
    let batch = node.batch();
    let fault = Fault { canister_id: id, ordinal: 0 };
    let result = node.execute(batch, std::slice::from_ref(&fault));
    assert_eq!(result.verdicts, [fault]);
    assert!(!is_paused(&node, id));
    assert!(node.result(&request).is_err());
    assert!(node.notes(id).is_empty());
    node.restart();
}

#[test]
fn messages_that_wait_are_counted_as_long_as_they_are_paused() {
    let mut node = Node::with(short_slices());
    let id = node.deploy(&Spec::default());
    let arg = [slices(3), Op::Note(vec![7; 1 << 20]), Op::Reply(vec![])];
    let request = node.send(id, &arg);
    node.round();
    assert!(is_paused(&node, id));
    assert!(node.executor.state().totals().best_effort_message_bytes >= 1 << 20);
    node.settle();
    assert!(node.result(&request).is_ok());
    assert_eq!(node.executor.state().totals().best_effort_message_bytes, 0);
    assert!(encode(&arg).len() > 1 << 20);
}

// Promise: P3 - The payload of a paused message is stored in a file.
#[test]
fn a_paused_message_leaves_what_it_carries_in_a_file() {
    let mut node = Node::with(short_slices());
    let ids = [node.deploy(&Spec::default()), node.deploy(&Spec::default())];
    let [caller, callee] = ids;
    node.executor.checkpoint().unwrap();
    // Calls, responses, rejects and users' calls, each of them long and large.
    let large = Op::Note(vec![7; 400_000]);
    for answer in [Op::ReplyArgument, Op::Reject("no".repeat(5_000))] {
        let mut call = CallOp::new(callee, &[slices(3), large.clone(), answer]);
        call.on_reply = vec![slices(3), Op::NoteArgument];
        call.on_reject = vec![slices(3), Op::NoteReject];
        node.send(caller, &[large.clone(), call.op(), slices(4), Op::Reply(vec![])]);
    }
    let (mut carried, mut records) = (BTreeSet::new(), vec![]);
    let mut rounds = 0;
    while node.round().more {
        for canister in ids.map(|id| node.canister(id)) {
            let Some(paused) = &canister.paused else { continue };
            records.push(paused.record.len());
            carried.extend(paused.payload.as_ref().map(|payload| payload.number));
        }
        let named = node.payloads();
        assert!(node.payload_files().is_superset(&named), "{named:?}");
        rounds += 1;
        assert!(rounds < 100);
        // Each time from another checkpoint, and what came after it again.
        if rounds % 3 == 0 {
            node = node.restart();
        }
        if rounds % 5 == 0 {
            node.executor.checkpoint().unwrap();
        }
    }
    // Two users' calls, two calls and two responses.
    assert_eq!(carried.len(), 6, "{carried:?}");
    assert!(records.iter().all(|bytes| *bytes < 4_000), "{records:?}");
    node.executor.checkpoint().unwrap();
    node.round();
    assert_eq!((node.payloads(), node.payload_files()), Default::default());
    let lengths: Vec<_> = node.notes(callee).iter().map(String::len).collect();
    assert_eq!(lengths, [400_000; 2]);
    let notes = node.notes(caller);
    assert_eq!(notes.len(), 4, "two of its own, a reply and a reject");
    assert!(notes.iter().any(|note| note.contains(&"no".repeat(4_000))), "cut to 8 KiB");
    node.restart().executor.state().check();
}
