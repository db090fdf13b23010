//! Random canisters calling each other at random, over many rounds: nothing is lost, everyone is
//! answered, and everything can be repeated.

use ic_principal::Principal;
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use state::{Batch, CanisterId, CanisterStatus, RequestId};

use crate::common::{CallOp, Node, Op, Spec, encode, limits, user};

const CANISTERS: usize = 7;
const ROUNDS: usize = 60;

fn program(random: &mut ChaCha8Rng, canisters: &[CanisterId], depth: u32) -> Vec<Op> {
    let mut ops = vec![];
    for _ in 0..random.gen_range(1..7) {
        ops.push(match random.gen_range(0..14) {
            0 => Op::Note(vec![random.r#gen(); 3]),
            1 => Op::Accept(random.gen_range(0..10_000_000)),
            2 => Op::Burn(random.gen_range(0..10_000_000)),
            3 => Op::Spend(random.gen_range(0..300_000_000)),
            4 => Op::Grow(1),
            5 => Op::Dirty(random.gen_range(1..8)),
            6 => Op::Certify(vec![random.r#gen(); 32]),
            7 => Op::Timer(random.gen_range(1..3_000_000_000) * 1_000_000_000),
            8 if depth == 0 => Op::Trap("at random".into()),
            9 => Op::Print(vec![b'p'; 20]),
            _ if depth > 0 => {
                let callee = match random.gen_range(0..20) {
                    0 => Principal::management_canister(),
                    1 => Principal::from_slice(&[3, 3]),
                    _ => *canisters.choose(random).unwrap(),
                };
                let mut call = CallOp::new(callee, &program(random, canisters, depth - 1));
                call.cycles = random.gen_range(0..20_000_000);
                call.timeout = random.gen_bool(0.4).then(|| random.gen_range(0..6));
                call.method = ["run", "run", "run", "run", "look", "raw_rand"]
                    .choose(random)
                    .unwrap()
                    .to_string();
                call.on_reply = vec![Op::Note(b"reply".to_vec())];
                call.on_reject = vec![Op::Note(b"reject".to_vec())];
                if random.gen_bool(0.3) {
                    call.on_reply.push(Op::Trap("in callback".into()));
                    call.on_cleanup = vec![Op::Note(b"cleanup".to_vec())];
                }
                if random.gen_bool(0.5) {
                    call.on_reply.extend(program(random, canisters, depth - 1));
                }
                call.op()
            }
            _ => Op::Note(b"nothing".to_vec()),
        });
    }
    match random.gen_range(0..8) {
        0 => ops.push(Op::Reject("at random".into())),
        1 => ops.push(Op::Trap("at the end".into())),
        2 => {}
        _ => ops.push(Op::Reply(vec![7])),
    }
    ops
}

fn specs() -> Vec<Spec> {
    (0..CANISTERS)
        .map(|number| Spec {
            name: number.to_string(),
            timer: (number % 3 == 0).then(|| vec![Op::Note(b"timer".to_vec())]),
            heartbeat: (number % 4 == 1).then(|| vec![Op::Spend(1_000)]),
            pre_upgrade: (number % 2 == 0).then(|| vec![Op::Grow(1), Op::Dirty(2)]),
            ..Spec::default()
        })
        .collect()
}

/// To whom, what, and of which kind.
type Message = (CanisterId, Vec<u8>, u8);

/// Messages of a life, made once and then given to several nodes.
fn life(seed: u64) -> (Vec<Vec<Message>>, Vec<u64>) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let canisters: Vec<_> = (0..CANISTERS as u64)
        .map(|number| execution::ExecutorConfig::canister_id(0x100 + number))
        .collect();
    let messages = (0..ROUNDS)
        .map(|_| {
            (0..random.gen_range(0..20))
                .map(|_| {
                    let id = *canisters.choose(&mut random).unwrap();
                    match random.gen_range(0..60) {
                        0 => (id, vec![], 1),
                        1..=5 => (id, vec![], 2),
                        6 => (id, vec![], 3),
                        _ => (id, encode(&program(&mut random, &canisters, 3)), 0),
                    }
                })
                .collect()
        })
        .collect();
    let seconds = (0..ROUNDS).map(|_| *[1, 1, 1, 2, 3, 700].choose(&mut random).unwrap()).collect();
    (messages, seconds)
}

fn born(threads: u64) -> (Node, Vec<CanisterId>) {
    let mut limits = limits();
    limits.execution.threads = threads;
    limits.pages.checkpoint_interval_rounds = 9;
    limits.pages.manifest_interval_rounds = 9;
    // Small enough that everything has to wait now and then.
    limits.execution.instructions_per_round = 400_000_000;
    limits.execution.instructions_per_slice = 100_000_000;
    limits.subnet.guaranteed_response_message_bytes = 12 * limits.subnet.message_payload_bytes;
    limits.subnet.best_effort_message_bytes = 40_000;
    let mut node = Node::with(limits);
    let ids = specs().iter().map(|spec| node.deploy(spec)).collect();
    (node, ids)
}

fn send(node: &mut Node, id: CanisterId, arg: Vec<u8>, kind: u8) -> RequestId {
    let aaaaa = Principal::management_canister();
    let record =
        candid::encode_one(ic_management_canister_types::CanisterIdRecord { canister_id: id })
            .unwrap();
    match kind {
        0 => node.ingress(user(1), id, id, "run", arg),
        1 => node.ingress(user(1), aaaaa, id, "stop_canister", record),
        2 => node.ingress(user(1), aaaaa, id, "start_canister", record),
        _ => {
            let install = ic_management_canister_types::InstallCodeArgs {
                mode: ic_management_canister_types::CanisterInstallMode::Upgrade(None),
                canister_id: id,
                wasm_module: Spec { name: "next".into(), ..Spec::default() }.wasm(),
                arg: vec![],
                sender_canister_version: None,
            };
            node.ingress(user(1), aaaaa, id, "install_code", candid::encode_one(install).unwrap())
        }
    }
}

fn check_all_answered(node: &Node, requests: &[RequestId]) {
    for request in requests {
        if let Some(entry) = node.executor.state().history.get(request) {
            assert!(entry.status.is_terminal(), "{request:?} is {:?}", entry.status);
        }
    }
    for canister in node.executor.state().canisters() {
        assert_eq!(canister.calls.callbacks_open(), 0, "{}", canister.id);
        assert!(canister.calls.has_no_contexts());
        assert!(canister.queues.is_empty());
        assert!(!matches!(canister.status, CanisterStatus::Stopping(_)));
    }
    let totals = node.executor.state().totals();
    assert_eq!((totals.guaranteed_message_bytes, totals.best_effort_message_bytes), (0, 0));
}

/// Lives through everything; `restarts` says after which rounds the process dies.
fn live(seed: u64, threads: u64, restarts: &[usize]) -> (Vec<[u8; 32]>, Vec<Batch>) {
    let (mut node, _) = born(threads);
    let (messages, seconds) = life(seed);
    let mut requests = vec![];
    for (round, (messages, seconds)) in messages.into_iter().zip(seconds).enumerate() {
        for (id, arg, kind) in messages {
            requests.push(send(&mut node, id, arg, kind));
        }
        node.seconds_per_round = seconds;
        let finished = node.round().finished;
        let mut unique = finished.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), finished.len(), "answered twice");
        if restarts.contains(&round) {
            node = node.restart();
        }
    }
    node.seconds_per_round = 400;
    for _ in 0..40 {
        node.round();
    }
    check_all_answered(&node, &requests);
    let executed = node.executor.state().subnet.update_transactions;
    assert!(executed > 800, "only {executed} messages: too quiet a life to prove anything");
    println!("{executed} messages");
    let batches = node.log.iter().map(|(batch, ..)| batch.clone()).collect();
    (node.log.iter().map(|(_, _, root)| *root).collect(), batches)
}

// Promise: P8 - Equal batches give equal roots on any number of threads and over restarts.
#[test]
fn the_same_life_gives_the_same_roots_on_any_number_of_threads_and_over_restarts() {
    for seed in 0..8 {
        let (one, batches) = live(seed, 1, &[]);
        assert!(batches.len() > ROUNDS);
        let (two, _) = live(seed, 2, &[13, 14, 40]);
        let (four, _) = live(seed, 4, &[27]);
        assert_eq!(one, two, "seed {seed}");
        assert_eq!(one, four, "seed {seed}");
    }
}

#[test]
fn another_life_gives_other_roots() {
    assert_ne!(live(100, 2, &[]).0.last(), live(101, 2, &[]).0.last());
}
