//! Stories about resources that this machine lacks: rounds wait for them, and no state depends on
//! them.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use disk::{SharedDisk, SimulatedDisk};
use execution::{Closing, FatalError, LocalFault};
use ic_management_canister_types::{CanisterInstallMode, TakeCanisterSnapshotArgs};
use ic_principal::Principal;
use limits::Limits;
use state::state_heap::StateHeap;
use state::{Batch, CanisterId, Fault, QueryRequest, RejectCode};

use crate::common::{self, CallOp, Node, Op, Spec, encode, limits, user};

const MIB: u64 = 1 << 20;

/// A delta log in which a round of three canisters finds room, and two do not.
fn tight() -> Limits {
    let mut limits = limits();
    limits.pages.delta_capacity_bytes = 3 * MIB;
    limits.pages.delta_reserve_bytes = 2 * MIB;
    limits.pages.pinned_delta_bytes = MIB / 2;
    limits.pages.checkpoint_delta_bytes = 1 << 40;
    limits.pages.checkpoint_interval_rounds = 1_000;
    limits
}

/// Three canisters with room to write, and batches in which each writes a quarter of a MiB.
fn writers(limits: Limits) -> (Node, Vec<CanisterId>) {
    let mut node = Node::with(limits);
    let ids: Vec<_> = (0..3).map(|_| node.deploy(&Spec::default())).collect();
    for id in &ids {
        node.call(*id, &[Op::Grow(200), Op::Reply(vec![])]).unwrap();
    }
    (node, ids)
}

fn write(node: &mut Node, ids: &[CanisterId], round: u64) -> Batch {
    for id in ids {
        node.send(*id, &[Op::Write(round % 10 * 60, 60, round + 1), Op::Reply(vec![])]);
    }
    node.batch()
}

// Promise: P13 - Queries on old states delay no round and change no root.
#[test]
fn queries_that_read_old_states_hold_up_no_round_and_change_no_root() {
    let (mut slow, ids) = writers(tight());
    let (mut fast, _) = writers(tight());
    impatient(&slow, 50);
    // As many queries as there are, each on the state of another height, all through.
    let mut queried = Vec::new();
    for round in 0..20 {
        queried.push(slow.executor.reader().latest().unwrap());
        let batch = write(&mut fast, &ids, round);
        let roots = [&mut slow, &mut fast].map(|node| node.execute(batch.clone(), &[]).root);
        assert_eq!(roots[0], roots[1], "round {round}");
    }
    assert_eq!(slow.retry.troubles(), [], "folding does not wait for queries");
    assert!(slow.pages.stats().cut_off > 0 && fast.pages.stats().cut_off == 0);
    assert!(slow.pages.delta_bytes() < 3 * MIB);
    let cut_off = |state: &Arc<state::CertifiedState>| {
        let canister = state.canister(&ids[0]).unwrap();
        canister.execution.as_ref().unwrap().stable.layout.as_ref().unwrap().is_cut_off()
    };
    assert!(cut_off(&queried[1]) && !cut_off(&slow.executor.reader().latest().unwrap()));
    slow.restart();
}

// Promise: P13 - A query that is cut off names its limit.
#[test]
fn a_query_that_was_cut_off_says_which_limit_it_met() {
    let (mut node, ids) = writers(tight());
    let gate = node.sandbox.gate.clone();
    let queries = node.executor.queries();
    let request = QueryRequest {
        sender: user(1),
        canister_id: ids[0],
        method_name: "look".into(),
        arg: encode(&[Op::Pause, Op::Reply(b"old".to_vec())]),
        sender_info: None,
    };
    let asked = std::thread::spawn(move || (queries.query(request.clone()), queries, request));
    gate.wait();
    for round in 0..20 {
        let batch = write(&mut node, &ids, round);
        node.execute(batch, &[]);
    }
    gate.wait();
    let (answer, queries, mut request) = asked.join().unwrap();
    let reject = answer.unwrap_err();
    assert!(reject.message.contains("pages.pin_seconds"), "{}", reject.message);
    // The next one finds the newest state.
    request.arg = encode(&[Op::Reply(b"new".to_vec())]);
    assert_eq!(queries.query(request).unwrap().bytes, b"new");
}

#[test]
fn a_query_is_executed_again_when_its_worker_dies_but_not_for_ever() {
    let (node, ids) = writers(limits());
    let queries = node.executor.queries();
    let request = |answer: &[u8]| QueryRequest {
        sender: user(1),
        canister_id: ids[0],
        method_name: "look".into(),
        arg: encode(&[Op::Die, Op::Reply(answer.to_vec())]),
        sender_info: None,
    };
    node.sandbox.deaths.store(1, Relaxed);
    assert_eq!(queries.query(request(b"one")).unwrap().bytes, b"one");
    node.sandbox.deaths.store(2, Relaxed);
    let reject = queries.query(request(b"two")).unwrap_err();
    assert_eq!(reject.code, RejectCode::SysTransient, "{}", reject.message);
    assert!(reject.message.contains("worker process ended 2 times"), "{}", reject.message);
    assert!(!reject.message.contains("Error from Canister"), "{}", reject.message);
    assert_eq!(node.sandbox.deaths.load(Relaxed), 0);
}

#[test]
fn a_damaged_module_on_disk_is_trouble_of_the_node_and_is_named() {
    let (mut node, ids) = writers(limits());
    node.call(ids[0], &[Op::Reply(vec![])]).unwrap();
    // Nothing is repeated at the start, so the module is not loaded before the query.
    node.executor.checkpoint().unwrap();
    let mut node = node.restart();
    node.round();
    let hash = node.canister(ids[0]).module().unwrap().hash;
    let path = node.blob_path(&hash);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let request = QueryRequest {
        sender: user(1),
        canister_id: ids[0],
        method_name: "look".into(),
        arg: encode(&[Op::Reply(vec![])]),
        sender_info: None,
    };
    let preparations = node.sandbox.preparations.load(Relaxed);
    let reject = node.executor.queries().query(request).unwrap_err();
    assert_eq!(reject.code, RejectCode::SysTransient, "{}", reject.message);
    for words in ["stored copy of the module is damaged", path.to_str().unwrap()] {
        assert!(reject.message.contains(words), "{}", reject.message);
    }
    // An update is not answered with anything: the node ends, in the same words.
    node.send(ids[0], &[Op::Reply(vec![])]);
    let batch = node.batch();
    let error = node.executor.execute(&batch, &[]).unwrap_err().to_string();
    assert!(error.contains("is damaged") && error.contains(path.to_str().unwrap()), "{error}");
    assert_eq!(node.sandbox.preparations.load(Relaxed), preparations);
}

// Promise: P7 - A dead worker is replaced, and no root changes.
#[test]
fn a_worker_that_dies_is_waited_for_and_leaves_no_trace() {
    let (mut unlucky, ids) = writers(limits());
    let (mut lucky, _) = writers(limits());
    let request =
        lucky.send(ids[1], &[Op::Die, Op::Note(b"kept".to_vec()), Op::Reply(b"done".to_vec())]);
    let batch = lucky.batch();
    unlucky.sandbox.deaths.store(7, Relaxed);
    let roots = [&mut unlucky, &mut lucky].map(|node| node.execute(batch.clone(), &[]));
    assert_eq!(roots[0], roots[1]);
    assert_eq!(unlucky.result(&request).unwrap(), b"done");

    let troubles = unlucky.retry.troubles();
    assert_eq!(troubles.len(), 7);
    let message = format!("{} {} 0", batch.height.0, ids[1]);
    let verdicts: Vec<_> = troubles.iter().map(LocalFault::awaits_verdict).collect();
    assert_eq!(verdicts[1], None, "two deaths say nothing of the message");
    assert_eq!(verdicts[2], Some(message));
    assert_eq!(unlucky.retry.over.load(Relaxed), 1);
    assert_eq!(lucky.retry.troubles(), []);
}

/// Gives up after this many waits, as a node that is ordered to stop.
fn impatient(node: &Node, waits: u32) {
    node.retry.act(move |trouble| if trouble.attempt < waits { Ok(()) } else { Err(Closing) });
}

// Promise: P7 - A verdict of the operator ends a message that kills every worker.
#[test]
fn an_operator_lets_a_node_past_a_message_that_kills_every_worker() {
    let (mut node, ids) = writers(limits());
    let killer = node.send(ids[1], &[Op::Note(b"lost".to_vec()), Op::Die, Op::Reply(vec![])]);
    let other = node.send(ids[2], &[Op::Note(b"kept".to_vec()), Op::Reply(vec![])]);
    let batch = node.batch();
    node.sandbox.deaths.store(u64::MAX, Relaxed);
    impatient(&node, 5);
    assert!(matches!(node.executor.execute(&batch, &[]), Err(FatalError::Closing)));
    let verdict = node.retry.troubles().last().unwrap().place.message.clone().unwrap();
    assert_eq!(verdict, Fault { canister_id: ids[1], ordinal: 0 });

    // The effects of the round do not count: the node starts again, with the verdict.
    let mut node = node.restart();
    node.sandbox.deaths.store(u64::MAX, Relaxed);
    let result = node.execute(batch.clone(), std::slice::from_ref(&verdict));
    assert_eq!(result.verdicts, std::slice::from_ref(&verdict));
    assert_eq!(node.retry.troubles(), []);
    let reject = node.result(&killer).unwrap_err();
    assert!(reject.message.contains("rejected by the operators"), "{}", reject.message);
    node.result(&other).unwrap();

    // Another node with the same verdict agrees, whatever its workers do, and so does a replay.
    let (mut agrees, _) = writers(limits());
    assert_eq!(agrees.execute(batch, &[verdict]).root, result.root);
    let mut node = node.restart();
    assert_eq!(node.notes(ids[2]), ["kept"]);
    assert!(node.notes(ids[1]).is_empty());
}

#[test]
fn a_verdict_on_an_answer_ends_its_call_and_nothing_else() {
    let (mut node, ids) = writers(limits());
    let call = common::CallOp {
        callee: ids[1],
        method: "run".into(),
        arg: encode(&[Op::Reply(vec![])]),
        cycles: 0,
        timeout: None,
        on_reply: vec![Op::Die, Op::Reply(vec![])],
        on_reject: vec![],
        on_cleanup: vec![Op::Die],
    };
    let request = node.send(ids[0], &[Op::Call(Box::new(call))]);
    let batch = node.batch();
    node.sandbox.deaths.store(u64::MAX, Relaxed);
    impatient(&node, 3);
    assert!(matches!(node.executor.execute(&batch, &[]), Err(FatalError::Closing)));
    let verdict = node.retry.troubles().last().unwrap().place.message.clone().unwrap();
    assert_eq!(
        verdict,
        Fault { canister_id: ids[0], ordinal: 1 },
        "its second message of the round"
    );
    let mut node = node.restart();
    node.sandbox.deaths.store(u64::MAX, Relaxed);
    node.execute(batch, &[verdict]);
    assert!(node.result(&request).unwrap_err().message.contains("rejected by the operators"));
    node.check_conservation();
    assert_eq!(node.call(ids[0], &[Op::Reply(b"on".to_vec())]).unwrap(), b"on");
}

// Promise: P7 - A panic names its message, and a verdict lets the node continue.
#[test]
fn a_panic_stops_the_node_with_an_error_and_a_verdict_resumes_it() {
    let (mut node, ids) = writers(limits());
    let request = node.send(ids[1], &[Op::Panic]);
    let batch = node.batch();
    let error = node.executor.execute(&batch, &[]).unwrap_err();
    let command = format!("thimble reject --data-dir DIRECTORY {} {} 0", batch.height.0, ids[1]);
    let text = error.to_string();
    assert!(text.contains("on purpose") && text.contains(&command), "{text}");
    let FatalError::Panicked { place, .. } = error else { panic!("{error:?}") };
    let mut node = node.restart();
    node.execute(batch, &[place.message.unwrap()]);
    assert!(node.result(&request).is_err());
    assert_eq!(node.call(ids[1], &[Op::Reply(b"on".to_vec())]).unwrap(), b"on");
}

#[test]
fn a_panic_in_a_management_call_names_method_caller_and_command() {
    let (mut node, ids) = writers(limits());
    let argument = ic_management_canister_types::InstallCodeArgs {
        mode: CanisterInstallMode::Reinstall,
        canister_id: ids[1],
        wasm_module: Spec { init: vec![Op::Panic], ..Spec::default() }.wasm(),
        arg: vec![],
        sender_canister_version: None,
    };
    let arg = candid::encode_one(argument).unwrap();
    let aaaaa = Principal::management_canister();
    // The first call of the round is another one.
    node.ingress(
        user(1),
        aaaaa,
        ids[0],
        "stop_canister",
        candid::encode_one(ic_management_canister_types::CanisterIdRecord { canister_id: ids[0] })
            .unwrap(),
    );
    let request = node.ingress(user(1), aaaaa, ids[1], "install_code", arg);
    let batch = node.batch();
    let text = node.executor.execute(&batch, &[]).unwrap_err().to_string();
    for part in ["install_code", &user(1).to_text(), &format!("{} aaaaa-aa 1", batch.height.0)] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let mut node = node.restart();
    node.execute(batch, &[Fault { canister_id: aaaaa, ordinal: 1 }]);
    assert!(node.result(&request).unwrap_err().message.contains("rejected by the operators"));
    assert_eq!(node.call(ids[1], &[Op::Reply(b"on".to_vec())]).unwrap(), b"on");
}

// Promise: P7 - A round waits for files that cannot be created.
#[test]
fn files_that_cannot_be_made_are_waited_for() {
    let (mut node, ids) = writers(limits());
    let (mut other, _) = writers(limits());
    let (pages, away) = (node.dir.join("pages"), node.dir.join("away"));
    other.send(ids[0], &[Op::Write(0, 60, 1), Op::Reply(vec![])]);
    let record = candid::encode_one(ic_management_canister_types::InstallCodeArgs {
        mode: CanisterInstallMode::Reinstall,
        canister_id: ids[1],
        wasm_module: Spec::default().wasm(),
        arg: vec![],
        sender_canister_version: None,
    });
    other.ingress(
        user(1),
        Principal::management_canister(),
        ids[1],
        "install_code",
        record.unwrap(),
    );
    let batch = other.batch();
    node.executor.checkpoint().unwrap();
    // The folder of canister memory is gone until the third attempt.
    std::fs::rename(&pages, &away).unwrap();
    node.retry.act(move |trouble| {
        if trouble.attempt == 3 {
            std::fs::rename(&away, &pages).unwrap();
        }
        Ok(())
    });
    let roots = [&mut node, &mut other].map(|node| node.execute(batch.clone(), &[]).root);
    assert_eq!(roots[0], roots[1]);
    let troubles = node.retry.troubles();
    assert!(troubles.len() >= 3 && troubles[0].to_string().contains("create"), "{troubles:?}");
    assert!(
        troubles.iter().all(|trouble| trouble.awaits_verdict().is_none()),
        "no message is to blame"
    );
    node.restart();
}

/// Calls of 100 kB each that wait for a callee which executes one in a round.
fn large_calls(node: &mut Node, count: u8) -> CanisterId {
    let (caller, callee) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    for number in 0..count {
        let program =
            [Op::Spend(3_990_000_000), Op::Note(vec![number; 100_000]), Op::Reply(vec![])];
        let mut call = CallOp::new(callee, &program);
        (call.on_reply, call.on_reject) = (vec![], vec![Op::NoteReject]);
        node.send(caller, &[call.op(), Op::Reply(vec![])]);
    }
    callee
}

// Promise: P4 - A checkpoint frees disk while some folding fails for lack of it.
/// Pages that a canister and its snapshot do not share are moved apart, and the one that keeps the
/// place waits for the checkpoint after that.
#[test]
fn what_a_checkpoint_lets_go_of_makes_room_although_some_of_the_folding_fails() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("disk");
    let disk = SimulatedDisk::new(&root, 7).unwrap();
    let shared: SharedDisk = Arc::new(disk.clone());
    let mut node = Node::on(Some(shared), root.clone(), common::config(tight()), None);
    let ids = [(); 2].map(|()| node.deploy(&Spec::default()));
    for id in ids {
        node.call(id, &[Op::Grow(200), Op::Reply(vec![])]).unwrap();
    }
    let [shared, refused] = ids;
    let fill = |node: &mut Node, seed: u64| {
        for start in [0, 50, 100] {
            node.call(shared, &[Op::Write(start, 50, seed), Op::Reply(vec![])]).unwrap();
        }
    };
    fill(&mut node, 1);
    let argument = TakeCanisterSnapshotArgs {
        canister_id: shared,
        replace_snapshot: None,
        uninstall_code: None,
        sender_canister_version: None,
    };
    node.manage(user(1), shared, "take_canister_snapshot", &argument).unwrap();
    // Of this the base cannot be written, whatever is tried.
    node.call(refused, &[Op::Write(0, 5, 3), Op::Reply(vec![])]).unwrap();
    let stable = node.canister(refused).execution.as_ref().unwrap().stable.id;
    disk.refuse_writes(Some(&root.join("pages").join(format!("{}.base", stable.0))));
    let healed = disk.clone();
    node.retry.act(move |trouble| {
        if trouble.attempt == 20 {
            healed.refuse_writes(None);
        }
        Ok(())
    });
    assert_eq!(node.executor.relieved(), 0);
    fill(&mut node, 2);
    node.call(shared, &[Op::Reply(vec![])]).unwrap();
    assert!(node.executor.relieved() > 0);
    assert!(node.pages.stats().moved_bytes > 0 || node.pages.stats().folded_bytes > 0);
    let troubles = node.retry.troubles();
    assert!(troubles.len() < 10, "{}", troubles.len());
    assert!(node.pages.stats().fold_queue > 0, "what is refused is still to be folded");
    disk.refuse_writes(None);
    node.restart();
}

// Promise: P7 - A round waits for disk room of payload files and gives the same root.
#[test]
fn a_disk_that_has_no_room_for_a_payload_is_waited_for() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("disk");
    let disk = SimulatedDisk::new(&root, 7).unwrap();
    let shared: SharedDisk = Arc::new(disk.clone());
    let mut node = Node::on(Some(shared), root.clone(), common::config(limits()), None);
    let mut other = Node::new();
    let callee = large_calls(&mut node, 6);
    assert_eq!(large_calls(&mut other, 6), callee);
    // Room for two of them and a half.
    disk.limit_growth_in(&root.join("state").join("messages"), Some(250_000));
    let healed = disk.clone();
    node.retry.act(move |trouble| {
        if trouble.attempt == 3 {
            healed.limit_growth(None);
        }
        Ok(())
    });
    let batch = node.batch();
    other.waiting.clear();
    let roots = [&mut node, &mut other].map(|node| node.execute(batch.clone(), &[]).root);
    assert_eq!(roots[0], roots[1]);
    let troubles = node.retry.troubles();
    assert_eq!(troubles.len(), 3, "{troubles:?}");
    assert!(troubles.iter().all(|trouble| trouble.to_string().contains("is full")), "{troubles:?}");
    assert!(troubles.iter().all(|trouble| trouble.awaits_verdict().is_none()), "{troubles:?}");
    assert_eq!(node.payload_files(), node.payloads());
    assert!(node.payloads().len() >= 4);
    // The power goes: what no checkpoint refers to comes again out of the block log.
    let mut node = node.restart_after(|| {
        disk.cut_power().unwrap();
    });
    // And what one refers to is durable with it.
    node.executor.checkpoint().unwrap();
    assert!(node.payloads().len() >= 4);
    let mut node = node.restart_after(|| {
        disk.cut_power().unwrap();
    });
    node.settle();
    assert_eq!(node.notes(callee).len(), 6);
}

thread_local! {
    /// Times the disk under the state's heap still has no room, as this thread finds it.
    static NO_ROOM: Cell<u64> = const { Cell::new(0) };
}

// Promise: P7 - A round waits for disk room of the state's heap and gives the same root.
#[test]
fn a_disk_that_has_no_room_for_the_state_s_heap_is_waited_for() {
    let ready = || {
        NO_ROOM.with(|times| match times.get() {
            0 => Ok(()),
            left => {
                times.set(left - 1);
                Err(std::io::ErrorKind::StorageFull.into())
            }
        })
    };
    state::state_heap::install(StateHeap {
        switch: |heap| heap,
        number: 0,
        holds: |_| true,
        ready,
    });
    let (mut node, ids) = writers(limits());
    let (mut other, _) = writers(limits());
    for round in 0..3 {
        let batch = write(&mut other, &ids, round);
        NO_ROOM.set(if round == 1 { 4 } else { 0 });
        let roots = [&mut node, &mut other].map(|node| node.execute(batch.clone(), &[]).root);
        assert_eq!(roots[0], roots[1], "round {round}");
    }
    let troubles = node.retry.troubles();
    // Retried once before it counts as trouble.
    assert_eq!(troubles.len(), 3, "{troubles:?}");
    let name = |trouble: &LocalFault| trouble.to_string().contains("heap");
    assert!(troubles.iter().all(name), "{troubles:?}");
    assert!(troubles.iter().all(|trouble| trouble.awaits_verdict().is_none()));
    assert_eq!(node.retry.over.load(Relaxed), 1, "the end of the trouble is reported");
    node.restart();
}

// Promise: P3 - A round with large payloads writes them before it ends.
#[test]
fn a_round_that_brings_much_writes_it_before_it_is_over() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("disk");
    let disk = SimulatedDisk::new(&root, 7).unwrap();
    let mut limits = limits();
    limits.subnet.best_effort_message_bytes = 64 * MIB;
    limits.subnet.guaranteed_response_message_bytes = 64 * MIB;
    let shared: SharedDisk = Arc::new(disk.clone());
    let mut node = Node::on(Some(shared), root.clone(), common::config(limits), None);
    let (caller, callee) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let mut call = CallOp::new(callee, &[Op::Reply(vec![7; 1_900_000])]);
    (call.on_reply, call.on_reject) = (vec![Op::Note(b"on".to_vec())], vec![Op::NoteReject]);
    for _ in 0..6 {
        node.send(caller, &[call.clone().op(), Op::Reply(vec![])]);
    }
    disk.limit_growth_in(&root.join("state").join("messages"), Some(1_000_000));
    node.retry.act(move |trouble| {
        if trouble.attempt == 3 {
            disk.limit_growth(None);
        }
        Ok(())
    });
    // Nothing is left when it is over, so nothing else would have had a file.
    assert!(!node.round().more);
    assert_eq!(node.payloads(), [].into());
    let troubles = node.retry.troubles();
    assert_eq!(troubles.len(), 3, "{troubles:?}");
    assert!(troubles.iter().all(|trouble| trouble.to_string().contains("is full")), "{troubles:?}");
    assert_eq!(node.notes(caller), ["on"; 6]);
}

// Promise: P6 - A damaged payload stops the node with an error message.
#[test]
fn a_corrupt_payload_file_stops_the_node_with_an_error() {
    let mut node = Node::new();
    large_calls(&mut node, 6);
    node.round();
    let number = *node.payloads().first().unwrap();
    let path = node.dir.join("state").join("messages").join(format!("{number:016x}"));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[50_000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = (0..20)
        .find_map(|_| {
            let batch = node.batch();
            let result = node.executor.execute(&batch, &[]);
            result.map(|_| node.executor.certify(batch.height, vec![0; 48]).unwrap()).err()
        })
        .unwrap();
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()) && text.contains("another hash"), "{text}");
    assert!(text.contains("start the node again"), "no checkpoint refers to it: {text}");
    assert!(matches!(error, FatalError::Payload(_)) && !error.can_heal());
    // It was the machine's, and the log has the batches: nothing is lost.
    let mut node = node.restart();
    node.settle();
    assert_eq!(node.payloads(), [].into());
}
