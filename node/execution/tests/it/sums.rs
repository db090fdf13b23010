//! Amounts at the edge of what fits: the sender is refused or served, and other clients are not
//! affected. docs/sums.md says why each sum holds.

use candid::{CandidType, Nat};
use ic_management_canister_types as ic;
use ic_principal::Principal;
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use state::{CanisterId, Cycles, CyclesTotal, Reject, Status};

use crate::common::{self, CallOp, Node, Op, Spec, decode, encode, user};

const CREATE: &str = "provisional_create_canister_with_cycles";
const TOP_UP: &str = "provisional_top_up_canister";

fn aaaaa() -> Principal {
    Principal::management_canister()
}

fn creation(amount: Nat) -> ic::ProvisionalCreateCanisterWithCyclesArgs {
    ic::ProvisionalCreateCanisterWithCyclesArgs { amount: Some(amount), ..Default::default() }
}

fn create(node: &mut Node, amount: Nat) -> CanisterId {
    let reply = node.manage(user(1), aaaaa(), CREATE, &creation(amount)).unwrap();
    decode::<ic::CanisterIdRecord>(&reply).canister_id
}

fn top_up(node: &mut Node, id: CanisterId, amount: Nat) -> Result<Vec<u8>, Reject> {
    node.manage(user(9), id, TOP_UP, &ic::ProvisionalTopUpCanisterArgs { canister_id: id, amount })
}

fn power(exponent: u32) -> Nat {
    let mut value = Nat::from(1u8);
    for _ in 0..exponent {
        value += value.clone();
    }
    value
}

// Promise: P15 - A balance of 2^128 - 1 cycles stops nothing.
#[test]
fn all_the_cycles_there_can_be_are_no_reason_to_stop() {
    let mut node = Node::new();
    let rich = create(&mut node, Nat::from(0u8));
    top_up(&mut node, rich, Nat::from(Cycles::MAX)).unwrap();
    assert_eq!(node.canister(rich).cycles, Cycles::MAX);

    // A balance takes what it holds, and no more than that was made.
    let before = node.executor.state().subnet.minted;
    for amount in [Nat::from(1u8), Nat::from(Cycles::MAX), power(128), power(1_000)] {
        top_up(&mut node, rich, amount).unwrap();
    }
    assert_eq!(node.executor.state().subnet.minted, before);
    assert_eq!(node.canister(rich).cycles, Cycles::MAX);
    let beyond = create(&mut node, power(128));
    assert_eq!(node.canister(beyond).cycles, Cycles::MAX);

    // Other clients still get theirs.
    for _ in 0..3 {
        let another = create(&mut node, Nat::from(Cycles::MAX));
        assert_eq!(node.canister(another).cycles, Cycles::MAX);
    }
    let id = node.deploy(&Spec { name: "other".into(), ..Spec::default() });
    assert_eq!(node.call(id, &[Op::Reply(vec![1])]).unwrap(), [1]);
    assert!(node.executor.state().subnet.minted > Cycles::MAX);
    let node = node.restart();
    assert_eq!(node.canister(rich).cycles, Cycles::MAX);
}

// Promise: P15 - Cycles that a full balance cannot accept stay with the caller.
#[test]
fn what_a_full_balance_cannot_take_is_left_with_the_caller() {
    let mut node = Node::new();
    let [full, giver] =
        [(); 2].map(|()| node.deploy(&Spec { name: "any".into(), ..Spec::default() }));
    let fill = |node: &mut Node, id: CanisterId| {
        let room = Cycles::MAX - node.canister(id).cycles;
        top_up(node, id, Nat::from(room)).unwrap();
    };
    fill(&mut node, giver);
    fill(&mut node, full);

    // Accepting takes what fits, the rest is refunded; the unused part of the execution's
    // prepayment is lost with a full balance, and counted.
    let mut call = CallOp::new(full, &[Op::Accept(Cycles::MAX), Op::Reply(vec![])]);
    call.cycles = 1 << 127;
    node.call(giver, &[call.op()]).unwrap();
    assert_eq!(node.canister(full).cycles, Cycles::MAX);
    assert!(node.canister(full).consumption.burned > 0);
    let kept = node.canister(giver).cycles;
    assert!(kept > Cycles::MAX - 100_000_000_000 && kept < Cycles::MAX, "{kept}");

    // So does a deposit.
    let mut deposit = CallOp::new(aaaaa(), &[]);
    deposit.method = "deposit_cycles".into();
    deposit.arg = candid::encode_one(ic::CanisterIdRecord { canister_id: full }).unwrap();
    deposit.cycles = 1 << 100;
    deposit.on_reply = vec![Op::Reply(b"deposited".to_vec())];
    assert_eq!(node.call(giver, &[deposit.op()]).unwrap(), b"deposited");
    assert_eq!(node.canister(full).cycles, Cycles::MAX);
    assert!(node.canister(giver).cycles > kept - 100_000_000_000);
}

// Promise: P15 - A refund that a full balance cannot accept is lost and counted.
#[test]
fn a_refund_to_a_balance_that_was_filled_meanwhile_is_lost_and_counted() {
    let mut node = Node::new();
    let [caller, callee] =
        [(); 2].map(|()| node.deploy(&Spec { name: "any".into(), ..Spec::default() }));
    // The callee answers in the round after, when randomness is there.
    let mut wait = CallOp::new(aaaaa(), &[]);
    wait.method = "raw_rand".into();
    wait.arg = candid::encode_args(()).unwrap();
    wait.on_reply = vec![Op::Reply(vec![])];
    let mut call = CallOp::new(callee, &[wait.op()]);
    call.cycles = 1_000_000_000_000;
    node.send(caller, &[call.op()]);
    node.round();
    let room = Cycles::MAX - node.canister(caller).cycles;
    let burned = node.canister(caller).consumption.burned;
    let amount = Nat::from(room);
    let argument = ic::ProvisionalTopUpCanisterArgs { canister_id: caller, amount };
    node.manage(user(9), caller, TOP_UP, &argument).unwrap();
    assert_eq!(node.canister(caller).cycles, Cycles::MAX);
    assert!(node.canister(caller).consumption.burned > burned + 1_000_000_000_000u128);
    // The metrics say it, too.
    let record = ic::CanisterIdRecord { canister_id: caller };
    let metrics = node.manage(user(1), caller, "canister_metrics", &record).unwrap();
    let metrics: ic::CanisterMetricsResult = decode(&metrics);
    let counted =
        CyclesTotal::from(u128::try_from(metrics.cycles_consumed.burned_cycles.0).unwrap());
    assert_eq!(counted, node.canister(caller).consumption.burned);
}

// Promise: P15 - A number of two megabytes counts as the largest number.
/// Millions of digits are neither written out nor copied about: that takes time in the square of
/// their number.
#[test]
fn a_number_of_two_megabytes_is_no_more_than_the_largest() {
    let mut node = Node::new();
    let id = create(&mut node, Nat::from(0u8));
    let huge = {
        // One nat: 2 MB - 1 bytes of seven bits with a continuation bit, and one without.
        let mut arg = candid::encode_one(ic::ProvisionalTopUpCanisterArgs {
            canister_id: id,
            amount: 0u8.into(),
        })
        .unwrap();
        let end = arg.len();
        assert_eq!(arg.pop(), Some(0), "the amount stands last");
        arg.resize(end + 1_900_000, 0xff);
        arg.push(0x7f);
        arg
    };
    let request = node.ingress(user(1), aaaaa(), id, TOP_UP, huge);
    node.settle();
    node.result(&request).unwrap();
    assert_eq!(node.canister(id).cycles, Cycles::MAX);
    let settings =
        ic::CanisterSettings { freezing_threshold: Some(power(5_000)), ..Default::default() };
    let argument =
        ic::UpdateSettingsArgs { canister_id: id, settings, sender_canister_version: None };
    let refused = node.manage(user(1), id, "update_settings", &argument).unwrap_err();
    assert!(refused.message.len() < 200, "{}", refused.message);
}

// Promise: P16 - Without provisional methods the refusal names the setting.
#[test]
fn without_provisional_methods_the_refusal_names_the_setting() {
    let mut config = common::config(common::limits());
    config.provisional = false;
    let mut node = Node::with_config(config, None);
    let refused = node.manage(user(1), aaaaa(), CREATE, &creation(Nat::from(7u8))).unwrap_err();
    assert!(refused.message.contains("features.provisional"), "{}", refused.message);
    let id = execution::ExecutorConfig::canister_id(0x100);
    let refused = top_up(&mut node, id, Nat::from(7u8)).unwrap_err();
    assert!(refused.message.contains("features.provisional"), "{}", refused.message);
    assert_eq!(node.executor.state().subnet.minted, CyclesTotal::ZERO);
}

fn extreme(random: &mut ChaCha8Rng) -> Nat {
    let base = *[0, 1, 7, 32, 53, 63, 64, 100, 127, 128, 129, 300].choose(random).unwrap();
    let value = if base == 0 { Nat::from(0u8) } else { power(base) };
    match random.gen_range(0..3) {
        0 if base > 0 => value - 1u8,
        1 => value + 1u8,
        _ => value,
    }
}

fn amount(random: &mut ChaCha8Rng) -> Cycles {
    u128::try_from(extreme(random).0).unwrap_or(Cycles::MAX)
}

fn settings(random: &mut ChaCha8Rng) -> ic::CanisterSettings {
    let mut some = || random.gen_bool(0.2).then(|| extreme(random));
    ic::CanisterSettings {
        compute_allocation: some(),
        memory_allocation: some(),
        freezing_threshold: some(),
        reserved_cycles_limit: some(),
        log_memory_limit: some(),
        wasm_memory_limit: some(),
        wasm_memory_threshold: some(),
        ..Default::default()
    }
}

fn program(random: &mut ChaCha8Rng, ids: &[CanisterId], depth: u32) -> Vec<Op> {
    let mut ops = vec![];
    for _ in 0..random.gen_range(1..5) {
        ops.push(match random.gen_range(0..6) {
            0 => Op::Accept(amount(random)),
            1 => Op::Burn(amount(random)),
            2 => Op::Timer(random.r#gen()),
            3 => Op::Print(vec![b'x'; 100]),
            _ if depth > 0 => {
                let to = *ids.choose(random).unwrap();
                let mut call = CallOp::new(to, &program(random, ids, depth - 1));
                if random.gen_bool(0.3) {
                    call.callee = aaaaa();
                    call.method = "deposit_cycles".into();
                    call.arg =
                        candid::encode_one(ic::CanisterIdRecord { canister_id: to }).unwrap();
                }
                call.cycles = amount(random);
                call.timeout =
                    random.gen_bool(0.3).then(|| *[0, 1, u32::MAX].choose(random).unwrap());
                call.on_reply = program(random, ids, 0);
                call.op()
            }
            _ => Op::Reply(vec![]),
        });
    }
    ops
}

/// One call with numbers at the edges, of an arbitrary user.
fn anything(node: &mut Node, random: &mut ChaCha8Rng, ids: &[CanisterId]) -> state::RequestId {
    fn send(
        node: &mut Node,
        id: CanisterId,
        method: &str,
        arg: &impl CandidType,
    ) -> state::RequestId {
        node.ingress(user(1), aaaaa(), id, method, candid::encode_one(arg).unwrap())
    }
    let id = *ids.choose(random).unwrap();
    let record = ic::CanisterIdRecord { canister_id: id };
    match random.gen_range(0..16) {
        0 => {
            let argument = ic::ProvisionalCreateCanisterWithCyclesArgs {
                amount: Some(extreme(random)),
                settings: Some(settings(random)),
                ..Default::default()
            };
            send(node, aaaaa(), CREATE, &argument)
        }
        1..=4 => {
            let argument =
                ic::ProvisionalTopUpCanisterArgs { canister_id: id, amount: extreme(random) };
            send(node, id, TOP_UP, &argument)
        }
        5..=7 => {
            let argument = ic::UpdateSettingsArgs {
                canister_id: id,
                settings: settings(random),
                sender_canister_version: random.gen_bool(0.1).then_some(u64::MAX),
            };
            send(node, id, "update_settings", &argument)
        }
        8 => {
            let method = [
                "canister_status",
                "canister_metrics",
                "stop_canister",
                "start_canister",
                "delete_canister",
            ]
            .choose(random)
            .unwrap();
            send(node, id, method, &record)
        }
        _ => {
            let program = program(random, ids, 2);
            node.ingress(user(1), id, id, "run", encode(&program))
        }
    }
}

// Promise: P15 - No number in an argument, up to 2^128 - 1 and beyond, stops a node or loses
//   cycles.
#[test]
fn no_number_stops_a_node_or_makes_cycles_go_missing() {
    for seed in 0..12 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut node = Node::new();
        let ids: Vec<_> = (0..5)
            .map(|number: u8| {
                let timer = vec![Op::Burn(amount(&mut random)), Op::Timer(u64::MAX)];
                node.deploy(&Spec {
                    name: number.to_string(),
                    timer: Some(timer),
                    ..Spec::default()
                })
            })
            .collect();
        for id in ids.iter().take(3) {
            let room = Cycles::MAX - node.canister(*id).cycles;
            top_up(&mut node, *id, Nat::from(room)).unwrap();
        }
        let mut requests = vec![];
        for round in 0..60 {
            for _ in 0..random.gen_range(0..6) {
                requests.push(anything(&mut node, &mut random, &ids));
            }
            // Some canisters pay for years at once.
            node.seconds_per_round =
                if round % 20 == 19 { 300_000_000 } else { *[1, 700].choose(&mut random).unwrap() };
            // Checks that nothing was lost.
            node.round();
        }
        node.seconds_per_round = 301;
        for _ in 0..8 {
            node.round();
        }
        let history = &node.executor.state().history;
        let open = requests.iter().filter(|id| {
            history
                .get(id)
                .is_some_and(|entry| matches!(entry.status, Status::Received | Status::Processing))
        });
        assert_eq!(open.count(), 0, "seed {seed}: a message waits for ever");
        assert!(node.executor.state().subnet.minted > Cycles::MAX);
        node.restart();
    }
}
