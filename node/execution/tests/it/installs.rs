//! Stories of installations that run in slices.

use ic_management_canister_types as ic;
use ic_management_canister_types::CanisterInstallMode as Mode;
use ic_principal::Principal;
use limits::Limits;
use state::{CanisterId, Fault, RequestId, Status};

use crate::common::{self, CallOp, Node, Op, Spec, is_paused, limits, manage};

/// Instructions of a slice in these tests.
const SLICE: u64 = 1_000_000_000;

fn short_slices() -> Limits {
    common::short_slices(SLICE)
}

/// `count` slices of work.
fn slices(count: u64) -> Op {
    Op::Spend(count * SLICE - SLICE / 2)
}

fn note(text: &str) -> Op {
    Op::Note(text.as_bytes().to_vec())
}

/// An old version whose `canister_pre_upgrade` takes `pre` slices.
fn old(pre: u64) -> Spec {
    let pre_upgrade = vec![slices(pre), Op::Write(3, 0, 7), Op::Print(b"pre".to_vec())];
    let init = vec![Op::Grow(4), note("old")];
    Spec { name: "old".into(), init, pre_upgrade: Some(pre_upgrade), ..Spec::default() }
}

/// A new version whose `canister_post_upgrade` takes `post` slices.
fn new(post: u64, then: &[Op]) -> Spec {
    let first = [note("new"), slices(post), Op::Write(3, 2, 9), Op::Print(b"post".to_vec())];
    let post_upgrade = first.into_iter().chain(then.iter().cloned()).collect();
    Spec { name: "new".into(), post_upgrade, ..Spec::default() }
}

/// Sends an installation.
fn send(node: &mut Node, id: CanisterId, mode: Mode, spec: &Spec) -> RequestId {
    let argument = ic::InstallCodeArgs {
        mode,
        canister_id: id,
        wasm_module: spec.wasm(),
        arg: vec![],
        sender_canister_version: None,
    };
    manage(node, id, "install_code", &argument)
}

fn record(id: CanisterId) -> ic::CanisterIdRecord {
    ic::CanisterIdRecord { canister_id: id }
}

/// Rounds until the request is answered.
fn finish(node: &mut Node, request: &RequestId) -> u64 {
    (1..400)
        .find(|_| {
            node.round();
            node.result_if_any(request).is_some()
        })
        .unwrap()
}

/// State of a canister after an installation.
fn left(node: &mut Node, id: CanisterId) -> impl PartialEq + std::fmt::Debug + use<> {
    let canister = node.canister(id).clone();
    let execution = canister.execution.clone().unwrap();
    let mut pages = vec![0; 8 << 12];
    pages::read_pages(&execution.stable.layout.unwrap(), 0, &mut pages).unwrap();
    let log: Vec<_> = canister.log.records().map(|line| line.content.clone()).collect();
    let memory = canister.memory_usage().total();
    (canister.cycles, canister.version, memory, log, pages, node.notes(id))
}

// Promise: P13 - An upgrade in slices gives the same result as in one piece and delays no other
//   canister.
#[test]
fn an_upgrade_of_many_slices_comes_to_the_same_as_in_one_piece_and_holds_up_nobody() {
    let mut whole = short_slices();
    whole.execution.instructions_per_slice = 40 * SLICE;
    whole.execution.instructions_per_round = 40 * SLICE;
    let mut node = Node::with(whole);
    let id = node.deploy(&old(3));
    let request = send(&mut node, id, Mode::Upgrade(None), &new(4, &[]));
    assert_eq!(finish(&mut node, &request), 1);
    node.call(id, &[Op::ReplyNotes]).unwrap();
    let expected = left(&mut node, id);

    let mut node = Node::with(short_slices());
    let (id, other) = (node.deploy(&old(3)), node.deploy(&Spec::default()));
    let request = send(&mut node, id, Mode::Upgrade(None), &new(4, &[]));
    node.round();
    assert_eq!(node.status(&request), Status::Processing);
    let late = node.send(id, &[Op::ReplyNotes]);
    for round in 2..=6 {
        let quick = node.send(other, &[Op::Reply(vec![])]);
        node.round();
        assert!(node.result(&quick).is_ok(), "round {round}");
        assert!(is_paused(&node, id) && node.result_if_any(&late).is_none());
        let held = node.canister(id);
        assert_eq!(held.paused.as_ref().unwrap().granted, round * SLICE);
        assert_eq!(held.module().unwrap().hash.0, sha(&old(3)), "the old code is there still");
    }
    finish(&mut node, &request);
    // Two and a half slices and three and a half: six, whatever the border between them.
    assert!(node.result(&request).is_ok());
    assert!(!is_paused(&node, id));
    node.settle();
    let notes: Vec<Vec<u8>> = postcard::from_bytes(&node.result(&late).unwrap()).unwrap();
    assert_eq!(notes, [b"new".to_vec()], "what waited runs on the new code");
    assert_eq!(left(&mut node, id), expected);
    node.restart();
}

fn sha(spec: &Spec) -> [u8; 32] {
    sha2::Digest::finalize(<sha2::Sha256 as sha2::Digest>::new_with_prefix(spec.wasm())).into()
}

/// An install, upgrades that end and fail in each phase, and long messages alongside them.
fn life(restarts: &[u64]) -> Vec<[u8; 32]> {
    let mut limits = short_slices();
    limits.pages.checkpoint_interval_rounds = 3;
    let mut node = Node::with(limits);
    let ids: Vec<_> = (0..4).map(|_| node.deploy(&old(3))).collect();
    let empty = node.create();
    let mut requests = Vec::new();
    let init = Spec { init: vec![slices(5), Op::Grow(2), Op::Write(2, 0, 5)], ..new(1, &[]) };
    requests.push(send(&mut node, empty, Mode::Install, &init));
    requests.push(send(&mut node, ids[0], Mode::Upgrade(None), &new(4, &[])));
    requests.push(send(&mut node, ids[1], Mode::Upgrade(None), &new(2, &[Op::Trap("no".into())])));
    requests.push(send(&mut node, ids[2], Mode::Reinstall, &init));
    node.send(ids[3], &[slices(9), Op::Reply(vec![])]);
    for round in 0..60 {
        if round == 20 {
            requests.push(send(&mut node, ids[3], Mode::Upgrade(None), &new(3, &[])));
        }
        if round == 30 {
            requests.push(send(&mut node, ids[0], Mode::Reinstall, &old(1)));
        }
        node.round();
        if restarts.contains(&round) {
            node = node.restart();
        }
    }
    let failed = |request: &&RequestId| node.result(request).is_err();
    assert_eq!(requests.iter().filter(failed).collect::<Vec<_>>(), [&requests[2]]);
    assert!(node.notes(ids[1]) == ["old"] && node.notes(ids[0]) == ["old"]);
    node.log.iter().map(|(.., root)| *root).collect()
}

// Promise: P13 - Paused installations survive checkpoints and restarts with the same result.
#[test]
fn installations_come_to_the_same_over_checkpoints_and_restarts() {
    let roots = life(&[]);
    let every: Vec<_> = (0..60).collect();
    assert_eq!(roots, life(&every));
    assert_eq!(roots, life(&[2, 5, 6, 22, 31]));
}

// Promise: P13 - An upgrade that fails in either phase changes nothing and is charged.
#[test]
fn an_upgrade_that_fails_in_either_phase_leaves_what_was_and_costs_what_ran() {
    let trap = || Op::Trap("stuck".into());
    let mut pre = old(4);
    pre.pre_upgrade.as_mut().unwrap().push(trap());
    for (before, after, least) in [(pre, new(1, &[]), 3), (old(3), new(4, &[trap()]), 6)] {
        let mut node = Node::with(short_slices());
        let id = node.deploy(&before);
        let memories = |node: &Node| {
            let execution = node.canister(id).execution.clone().unwrap();
            (execution.heap.id, execution.stable.id, node.executor.state().subnet.next_memory)
        };
        let (had, cycles) = (memories(&node), node.canister(id).cycles);
        let request = send(&mut node, id, Mode::Upgrade(None), &after);
        let rounds = finish(&mut node, &request);
        assert!(rounds > least, "{rounds}");
        assert_eq!(node.result(&request).unwrap_err().error_code.0, 503);
        assert_eq!(memories(&node), had);
        let spent = cycles - node.canister(id).cycles;
        let least = u128::from(least * SLICE);
        assert!((least..least + u128::from(2 * SLICE)).contains(&spent), "{spent}");
        assert!(!is_paused(&node, id) && node.notes(id) == ["old"]);
        let stable = node.canister(id).execution.clone().unwrap().stable;
        let mut page = [1; 4096];
        pages::read_pages(&stable.layout.unwrap(), 0, &mut page).unwrap();
        assert_eq!(page, [0; 4096], "what the first phase wrote is gone");
        node.restart();
    }
}

// Promise: P13 - Calls that would change the canister wait for its installation.
#[test]
fn what_would_change_the_canister_waits_for_the_installation_in_order() {
    let mut node = Node::with(short_slices());
    let (id, other) = (node.deploy(&old(2)), node.deploy(&old(2)));
    let first = send(&mut node, id, Mode::Upgrade(None), &new(5, &[]));
    node.round();
    let settings = ic::UpdateSettingsArgs {
        canister_id: id,
        settings: ic::CanisterSettings {
            freezing_threshold: Some(7u8.into()),
            ..ic::CanisterSettings::default()
        },
        sender_canister_version: None,
    };
    let chunk = ic::UploadChunkArgs { canister_id: id, chunk: vec![1, 2, 3] };
    let settings = manage(&mut node, id, "update_settings", &settings);
    let upload = manage(&mut node, id, "upload_chunk", &chunk);
    let second = send(&mut node, id, Mode::Upgrade(None), &old(1));
    let stop = manage(&mut node, id, "stop_canister", &record(id));
    let delete = manage(&mut node, id, "delete_canister", &record(id));
    let status = manage(&mut node, id, "canister_status", &record(id));
    let elsewhere = manage(&mut node, other, "stop_canister", &record(other));
    node.round();
    assert!(node.result(&status).is_ok() && node.result(&elsewhere).is_ok());
    let waiting = [&settings, &upload, &second, &stop, &delete];
    assert!(is_paused(&node, id));
    assert!(waiting.iter().all(|request| node.result_if_any(request).is_none()));
    let rounds = finish(&mut node, &first);
    assert!(rounds >= 3, "{rounds}");
    node.settle();
    let results: Vec<_> = waiting.iter().map(|request| node.result(request)).collect();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert!(node.executor.state().get(&id).is_none());
    node.restart();
}

// Promise: P13 - Installations and paused messages take turns.
#[test]
fn installations_and_messages_take_turns() {
    let mut node = Node::with(short_slices());
    let ids: Vec<_> = (0..8).map(|_| node.deploy(&old(2))).collect();
    let mut requests = Vec::new();
    for id in &ids[..6] {
        requests.push(node.send(*id, &[slices(30), Op::Reply(vec![])]));
    }
    node.round();
    requests.push(send(&mut node, ids[6], Mode::Upgrade(None), &new(3, &[])));
    node.round();
    let before: Vec<_> = ids.iter().map(|id| is_paused(&node, *id)).collect();
    assert_eq!(before, [true, true, true, true, true, true, true, false]);
    let mut ends = Vec::new();
    for round in 1..200 {
        let quick = node.send(ids[7], &[Op::Reply(vec![])]);
        node.round();
        assert!(node.result(&quick).is_ok(), "round {round}");
        let granted = |id: &CanisterId| node.canister(*id).paused.as_ref().map(|p| p.granted);
        assert!(ids.iter().filter_map(granted).all(|granted| granted <= (round + 3) * SLICE));
        ends = requests.iter().map(|request| node.result_if_any(request).is_some()).collect();
        if ends[6] {
            break;
        }
    }
    assert!(ends[6] && ends.iter().filter(|end| **end).count() < 7, "a short one overtakes");
    node.restart();
}

// Promise: P13 - An installation of 300 billion instructions completes.
#[test]
fn an_installation_of_three_hundred_billion_instructions_ends() {
    let mut node = Node::new();
    assert_eq!(limits().execution.instructions_per_install, 300_000_000_000);
    let id = node.deploy(&Spec::default());
    let cycles = node.canister(id).cycles;
    let spend = |billions: u64| vec![Op::Spend(billions * 1_000_000_000), note("done")];
    let spec = Spec { init: spend(299), ..Spec::default() };
    let request = send(&mut node, id, Mode::Reinstall, &spec);
    let rounds = finish(&mut node, &request);
    assert!((298..=302).contains(&rounds), "{rounds}");
    assert!(node.result(&request).is_ok());
    let spent = cycles - node.canister(id).cycles;
    assert!((299_000_000_000..301_000_000_000).contains(&spent), "{spent}");
    let request =
        send(&mut node, id, Mode::Reinstall, &Spec { init: spend(301), ..Spec::default() });
    finish(&mut node, &request);
    assert_eq!(node.result(&request).unwrap_err().error_code.0, 522);
    assert_eq!(node.notes(id), ["done"]);
}

// Promise: P13 - A canister that installs another in slices gets its response.
#[test]
fn a_canister_that_installs_another_has_its_answer_in_the_end() {
    let mut node = Node::with(short_slices());
    let parent = node.deploy(&Spec::default());
    let child = node.deploy(&old(2));
    let settings = ic::UpdateSettingsArgs {
        canister_id: child,
        settings: ic::CanisterSettings {
            controllers: Some(vec![parent]),
            ..ic::CanisterSettings::default()
        },
        sender_canister_version: None,
    };
    manage(&mut node, child, "update_settings", &settings);
    node.settle();
    let argument = ic::InstallCodeArgs {
        mode: Mode::Upgrade(None),
        canister_id: child,
        wasm_module: new(3, &[]).wasm(),
        arg: vec![],
        sender_canister_version: None,
    };
    let call = CallOp {
        method: "install_code".into(),
        arg: candid::encode_one(&argument).unwrap(),
        cycles: 1_000_000,
        on_reply: vec![Op::Reply(b"installed".to_vec())],
        ..CallOp::new(Principal::management_canister(), &[])
    };
    let request = node.send(parent, &[call.op()]);
    node.round();
    node.round();
    assert!(is_paused(&node, child));
    assert!(node.executor.state().totals().guaranteed_message_bytes > 0);
    let node = &mut node.restart();
    finish(node, &request);
    assert_eq!(node.result(&request).unwrap(), b"installed");
}

// Promise: P13 - An installation fails without effect if others used its room.
#[test]
fn room_that_others_took_fails_the_installation() {
    let mut limits = short_slices();
    let mut node = Node::with(limits.clone());
    node.deploy(&old(1));
    let taken = node.executor.state().totals().memory_taken;
    drop(node);
    limits.subnet.memory_capacity_bytes = taken + (64 << 16);
    let mut node = Node::with(limits);
    let (id, other) = (node.deploy(&old(1)), node.deploy(&Spec::default()));
    let grows = new(1, &[Op::Grow(30), slices(5)]);
    let request = send(&mut node, id, Mode::Upgrade(None), &grows);
    node.round();
    assert!(is_paused(&node, id));
    let settings = ic::UpdateSettingsArgs {
        canister_id: other,
        settings: ic::CanisterSettings {
            memory_allocation: Some((50_u64 << 16).into()),
            ..ic::CanisterSettings::default()
        },
        sender_canister_version: None,
    };
    let settings = manage(&mut node, other, "update_settings", &settings);
    node.round();
    assert!(node.result(&settings).is_ok() && is_paused(&node, id));
    finish(&mut node, &request);
    let refused = node.result(&request);
    assert!(
        refused.as_ref().is_err_and(|reject| reject.message.contains("memory_capacity_bytes")),
        "{refused:?}"
    );
    assert_eq!(node.notes(id), ["old"]);
    node.restart();
}

// Promise: P13 - One long installation runs at a time, and short ones run alongside it.
#[test]
fn one_long_installation_goes_on_at_a_time_and_short_ones_beside_it() {
    let mut node = Node::with(short_slices());
    let ids: Vec<_> = (0..3).map(|_| node.deploy(&Spec::default())).collect();
    let long = |count| Spec { init: vec![slices(count), note("long")], ..Spec::default() };
    let first = send(&mut node, ids[0], Mode::Reinstall, &long(4));
    node.round();
    assert!(is_paused(&node, ids[0]));
    let before = node.canister(ids[1]).cycles;
    let second = send(&mut node, ids[1], Mode::Reinstall, &long(3));
    let short = Spec { init: vec![note("short")], ..Spec::default() };
    let short = send(&mut node, ids[2], Mode::Reinstall, &short);
    node.round();
    assert!(node.result(&short).is_ok());
    assert!(!is_paused(&node, ids[1]));
    assert_eq!(node.status(&second), Status::Received, "it waits");
    let paid = before - node.canister(ids[1]).cycles;
    let slice = u128::from(SLICE);
    assert!((slice..2 * slice).contains(&paid), "{paid} for the slice that it ran in vain");
    assert_eq!(node.executor.state().subnet.long_installs.len(), 1);
    // Meanwhile its canister works as before.
    let quick = node.send(ids[1], &[Op::Reply(vec![])]);
    node.round();
    assert!(node.result(&quick).is_ok() && is_paused(&node, ids[0]));
    let mut node = node.restart();
    finish(&mut node, &first);
    assert!(node.result(&first).is_ok() && node.result_if_any(&second).is_none());
    finish(&mut node, &second);
    assert!(node.result(&second).is_ok());
    assert_eq!(node.notes(ids[1]), ["long"]);
    assert_eq!(node.executor.state().subnet.installing, None);
    node.restart();
}

#[test]
fn what_a_full_balance_cannot_take_back_is_lost_and_ends_nothing() {
    let verdict = |node: &mut Node| {
        let batch = node.batch();
        let fault = Fault { canister_id: Principal::management_canister(), ordinal: 0 };
        node.execute(batch, &[fault]);
    };
    for is_rejected in [false, true] {
        let mut node = Node::with(short_slices());
        let id = node.deploy(&Spec::default());
        let top_up = |node: &mut Node, amount: u128| {
            let amount = amount.into();
            let argument = ic::ProvisionalTopUpCanisterArgs { canister_id: id, amount };
            manage(node, id, "provisional_top_up_canister", &argument)
        };
        let missing = u128::MAX - node.canister(id).cycles;
        top_up(&mut node, missing);
        node.settle();
        assert_eq!(node.canister(id).cycles, u128::MAX);
        let spec = Spec { init: vec![slices(3), note("new")], ..Spec::default() };
        let request = send(&mut node, id, Mode::Reinstall, &spec);
        node.round();
        let prepaid = u128::MAX - node.canister(id).cycles;
        assert!(is_paused(&node, id) && prepaid > 0);
        let filled = top_up(&mut node, prepaid);
        node.round();
        assert!(node.result(&filled).is_ok() && is_paused(&node, id));
        if is_rejected {
            verdict(&mut node);
            let reject = node.result(&request).unwrap_err();
            assert!(reject.message.contains("rejected by the operators"), "{}", reject.message);
        } else {
            finish(&mut node, &request);
            assert!(node.result(&request).is_ok());
        }
        assert!(!is_paused(&node, id));
        assert_eq!(node.canister(id).cycles, u128::MAX);
        node.restart();
    }
}

#[test]
fn what_was_released_before_still_comes_before_the_canisters_next_message() {
    let mut node = Node::with(short_slices());
    let id = node.deploy(&old(1));
    let first = send(&mut node, id, Mode::Upgrade(None), &new(2, &[]));
    node.round();
    // They wait for the first; the second of them is paused itself, before the third is served.
    let second = send(&mut node, id, Mode::Upgrade(None), &new(4, &[]));
    let third = send(&mut node, id, Mode::Reinstall, &old(1));
    let stop = manage(&mut node, id, "stop_canister", &record(id));
    let message = node.send(id, &[Op::Reply(vec![])]);
    for _ in 0..40 {
        node.round();
        if node.canister(id).paused.is_none() && node.result_if_any(&stop).is_some() {
            break;
        }
        assert!(node.result_if_any(&message).is_none(), "a message ran between them");
    }
    node.settle();
    for request in [&first, &second, &third, &stop] {
        assert!(node.result(request).is_ok(), "{:?}", node.result(request));
    }
    assert!(node.result(&message).is_err(), "it came when the canister was stopped");
    node.restart();
}

#[test]
fn what_is_known_of_modules_finds_room_when_an_installation_ends() {
    let mut limits = short_slices();
    limits.subnet.wasm_custom_sections_bytes = 3_000;
    let mut node = Node::with(limits);
    let (id, other) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let sections = vec![(true, "x".into(), vec![7; 2_000])];
    let long = Spec { init: vec![slices(3)], sections: sections.clone(), ..Spec::default() };
    let long = send(&mut node, id, Mode::Reinstall, &long);
    node.round();
    assert!(is_paused(&node, id));
    let quick = Spec { sections, ..Spec::default() };
    let quick = send(&mut node, other, Mode::Reinstall, &quick);
    node.round();
    assert!(node.result(&quick).is_ok());
    finish(&mut node, &long);
    let reject = node.result(&long).unwrap_err();
    assert!(reject.message.contains("wasm_custom_sections_bytes"), "{}", reject.message);
    node.restart();
}

// Promise: P13 - Long installations take turns, a bounded number waits, and canisters run every
//   second round.
#[test]
fn many_long_installations_take_turns_and_hold_up_no_message() {
    let mut node = Node::with(short_slices());
    let ids: Vec<_> = (0..9).map(|_| node.deploy(&Spec::default())).collect();
    let other = node.deploy(&Spec::default());
    let long = Spec { init: vec![slices(2), note("long")], ..Spec::default() };
    let requests: Vec<_> =
        ids.iter().map(|id| send(&mut node, *id, Mode::Reinstall, &long)).collect();
    let mut answered = 0;
    for _ in 0..40 {
        let quick = node.send(other, &[Op::Reply(vec![])]);
        node.round();
        node.round();
        assert!(node.result_if_any(&quick).is_some(), "canisters run every second round");
        answered += 1;
        if requests.iter().all(|request| node.result_if_any(request).is_some()) {
            break;
        }
    }
    let (done, refused): (Vec<_>, Vec<_>) =
        requests.iter().map(|request| node.result(request)).partition(Result::is_ok);
    assert!(done.len() >= 5, "{} of them in {answered} rounds", done.len());
    let full = |result: &Result<_, state::Reject>| {
        let reject = result.as_ref().unwrap_err();
        reject.message.contains("execution.instructions_per_slice")
    };
    assert!(refused.iter().all(full), "{refused:?}");
    node.restart();
}

// Promise: P13 - An upgrade uses at most the available room in both phases.
#[test]
fn an_upgrade_takes_no_more_room_than_there_is_whatever_each_phase_grows_by() {
    let mut limits = short_slices();
    let mut node = Node::with(limits.clone());
    node.deploy(&old(1));
    let taken = node.executor.state().totals().memory_taken;
    drop(node);
    limits.subnet.memory_capacity_bytes = taken + (100 << 16);
    let mut node = Node::with(limits);
    let mut before = old(1);
    before.pre_upgrade = Some(vec![Op::Grow(60)]);
    let id = node.deploy(&before);
    let after = Spec { post_upgrade: vec![Op::Grow(60)], ..new(1, &[]) };
    let request = send(&mut node, id, Mode::Upgrade(None), &after);
    node.settle();
    let reject = node.result(&request).unwrap_err();
    assert!(reject.message.contains("memory_capacity_bytes"), "{}", reject.message);
    assert!(node.executor.state().totals().memory_taken <= taken + (100 << 16));
    node.restart();
}
