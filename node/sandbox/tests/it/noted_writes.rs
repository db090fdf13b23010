//! Written pages that the kernel notes, and the same counted by faults: no observable difference.
//! Where the kernel notes none, both are the same.

use std::time::Duration;

use proptest::prelude::*;
use sandbox::{Entry, Grant, Lane, Probe, Request, Sandbox, Slice, SlicedName};
use state::Height;

use super::{Canister, HOST, MIB, World};

/// Follows its argument: pairs of an operation and a number.
const FOLLOWER: &str = r#"(module
    (import "ic0" "msg_arg_data_size" (func $size (result i32)))
    (import "ic0" "msg_arg_data_copy" (func $copy (param i32 i32 i32)))
    (import "ic0" "msg_reply" (func $reply))
    (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
    (import "ic0" "performance_counter" (func $counter (param i32) (result i64)))
    (import "ic0" "stable64_grow" (func $sgrow (param i64) (result i64)))
    (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
    (import "ic0" "debug_print" (func $print (param i32 i32)))
    (memory 80)
    (func (export "canister_init") (drop (call $sgrow (i64.const 16))))
    ;; An address beyond the argument and the counter, of 5 MiB in all.
    (func $address (param $number i32) (result i32)
        (i32.add (i32.const 0x20000) (i32.rem_u (local.get $number) (i32.const 0x4dc000))))
    (func $spin (param $times i32)
        (loop $next (br_if $next (local.tee $times (i32.sub (local.get $times) (i32.const 1))))))
    ;; Writes every other page of the first 4 MiB from here on.
    (func $sweep (param $at i32) (loop $next
        (i32.store (local.get $at) (i32.const 5))
        (br_if $next (i32.lt_u
            (local.tee $at (i32.add (local.get $at) (i32.const 0x2000))) (i32.const 0x400000)))))
    (func $follow (local $at i32) (local $end i32) (local $number i32)
        (local.set $end (call $size))
        (call $copy (i32.const 0) (i32.const 0) (local.get $end))
        (loop $next
            (if (i32.lt_u (local.get $at) (local.get $end)) (then
                (local.set $number (i32.load offset=4 (local.get $at)))
                (block $done
                    (block $7 (block $6 (block $5 (block $4 (block $3 (block $2 (block $1 (block $0
                        (br_table $0 $1 $2 $3 $4 $5 $6 $7 (i32.load (local.get $at))))
                        ;; 0: a store
                        (i32.store8 (call $address (local.get $number)) (local.get $number))
                        (br $done))
                        ;; 1: the count
                        (i64.store (i32.const 0x10000) (call $counter (i32.const 0)))
                        (call $append (i32.const 0x10000) (i32.const 8)) (br $done))
                        ;; 2: time
                        (call $spin
                            (i32.add (i32.const 1) (i32.rem_u (local.get $number) (i32.const 3000000))))
                        (br $done))
                        ;; 3: growth
                        (drop (memory.grow (i32.const 1))) (br $done))
                        ;; 4: an operation on three pages
                        (memory.fill
                            (call $address (local.get $number)) (local.get $number) (i32.const 0x2000))
                        (br $done))
                        ;; 5: a page of stable memory, a line of the log
                        (call $swrite (i64.extend_i32_u (i32.and (local.get $number) (i32.const 0xffff)))
                            (i64.extend_i32_u (call $address (local.get $number))) (i64.const 8))
                        (call $print (local.get $at) (i32.const 4)) (br $done))
                        ;; 6: many pages
                        (call $sweep (call $address (local.get $number))) (br $done))
                    ;; 7: a call without effect, seldom a trap
                    (if (i32.eqz (i32.rem_u (local.get $number) (i32.const 7))) (then (unreachable)))
                    (drop (call $size)))
                (local.set $at (i32.add (local.get $at) (i32.const 8)))
                (br $next))))
        (call $reply))
    (func (export "canister_update follow") (call $follow))
    (func (export "canister_query look") (call $follow)))"#;

struct Node {
    world: World,
    canister: Canister,
}

impl Node {
    fn new(by_faults: bool) -> Self {
        let world = World::with(HOST, |config| config.probes = true);
        let node = Self { canister: world.install(FOLLOWER), world };
        if by_faults {
            for lane in [Lane::Update(0), Lane::Query(0)] {
                let timeout = Duration::from_secs(20);
                assert!(node.world.pool.probe(lane, Probe::CountByFaults, timeout));
            }
        }
        node
    }

    fn request(&self, entry: Entry, message: &Message) -> Request {
        let mut request = self.world.request(&self.canister, entry);
        let pair = |&(operation, number): &(u32, u32)| {
            [operation.to_le_bytes(), number.to_le_bytes()].concat()
        };
        request.context.arg = message.operations.iter().flat_map(pair).collect();
        request.limits.instructions = message.instructions;
        request.limits.heap_dirty_bytes = message.heap_dirty_bytes;
        request
    }

    /// What each slice of an update returned, the last of them its outcome.
    fn update(&mut self, message: &Message) -> Vec<Slice> {
        self.world.fold();
        let request = self.request(Entry::Update("follow".into()), message);
        let canister_id = request.context.canister_id;
        let name = SlicedName { since: Height(1), canister_id, part: 0 };
        let mut slices = Vec::new();
        for slice in 1.. {
            let grant = Grant::new(name, slice * message.slice, message.slice);
            slices.push(self.world.pool.run_slice(Lane::Update(0), &request, &grant).unwrap());
            if let Some(Slice::Ended(outcome)) = slices.last() {
                self.world.commit(&mut self.canister, request, outcome);
                break;
            }
        }
        slices
    }

    fn query(&self, message: &Message) -> Slice {
        let mut request = self.request(Entry::Query("look".into()), message);
        // Nodes need not agree on a query that reaches its limit.
        request.limits.instructions = 2_000_000_000;
        Slice::Ended(Box::new(self.world.pool.execute(Lane::Query(0), &request).unwrap()))
    }
}

#[derive(Clone, Debug)]
struct Message {
    operations: Vec<(u32, u32)>,
    instructions: u64,
    heap_dirty_bytes: u64,
    slice: u64,
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let message = (
        prop::collection::vec((0_u32..8, any::<u32>()), 0..40),
        prop::sample::select(vec![25_000_000_u64, 30_000_000, 60_000_000, 2_000_000_000]),
        prop::sample::select(vec![1100 * 4096, 64 * MIB]),
        prop::sample::select(vec![4_000_000_u64, 20_000_000, 1_000_000_000]),
    );
    let message = message.prop_map(|(operations, instructions, heap_dirty_bytes, slice)| Message {
        operations,
        instructions,
        heap_dirty_bytes,
        slice,
    });
    prop::collection::vec(message, 1..12)
}

#[test]
fn noted_writes_and_faults_agree_on_everything() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    // Workers start once: cases follow each other on the same state.
    let nodes = std::cell::RefCell::new([Node::new(false), Node::new(true)]);
    runner
        .run(&messages(), |messages| {
            let [noted, faulted] = &mut *nodes.borrow_mut();
            for message in &messages {
                prop_assert_eq!(noted.query(message), faulted.query(message));
                prop_assert_eq!(noted.update(message), faulted.update(message));
                prop_assert_eq!(noted.query(message), faulted.query(message));
            }
            Ok(())
        })
        .unwrap();
}

/// Writes pages, asks the system for something, and computes to the end of its instructions.
#[test]
fn a_message_that_runs_out_of_instructions_while_pages_are_not_counted_is_repeated() {
    let mut nodes = [Node::new(false), Node::new(true)];
    let spin = (2, 2_999_999);
    let mut operations = vec![(6, 0), (7, 1), (5, 1)];
    operations.extend([spin; 40]);
    operations.extend([(5, 2); 3]);
    for instructions in (40_000_000..50_000_000).step_by(500_000) {
        let message = Message {
            operations: operations.clone(),
            instructions,
            heap_dirty_bytes: 64 * MIB,
            slice: 1_000_000_000,
        };
        let [noted, faulted] = nodes.each_mut().map(|node| node.update(&message));
        assert_eq!(noted, faulted);
    }
}

/// Calls follow each other closely, so the message is paused in them, and its instructions end in
/// one: the charge that fails leaves pages uncharged. What it reported at a pause counts.
#[test]
fn a_message_that_was_paused_is_not_repeated() {
    let mut nodes = [Node::new(false), Node::new(true)];
    let mut run = |operations: &[(u32, u32)], instructions: u64| {
        let message = Message {
            operations: operations.to_vec(),
            instructions,
            heap_dirty_bytes: 64 * MIB,
            slice: 8_000_000,
        };
        let [noted, faulted] = nodes.each_mut().map(|node| node.update(&message));
        assert_eq!(noted, faulted);
        let Some(Slice::Ended(outcome)) = noted.last() else { panic!("{noted:?}") };
        (noted.len(), outcome.instructions, outcome.result.is_ok())
    };
    let mut operations = vec![(6, 0)];
    operations.extend([[(2, 9_999), (7, 1)]; 800].concat());
    let (_, before, _) = run(&operations, 2_000_000_000);
    assert!(before > 25_000_000, "fewer are not noted by the kernel: {before}");
    operations.extend([(7, 1); 3_000]);
    let (_, all, _) = run(&operations, 2_000_000_000);
    let step = (all - before) / 37;
    for number in 1..37 {
        let (slices, _, is_ok) = run(&operations, before + number * step);
        assert!(slices > 3 && !is_ok, "{slices} slices");
    }
}

/// Has no memory. Computes before it calls the system, or does not compute.
const WITHOUT_MEMORY: &str = r#"(module
    (import "ic0" "msg_reply" (func $reply))
    (func (export "canister_update spin") (local $times i32)
        (local.set $times (i32.const 20000000))
        (loop $next (br_if $next (local.tee $times (i32.sub (local.get $times) (i32.const 1)))))
        (call $reply))
    (func (export "canister_update reply") (call $reply)))"#;

/// The last call of a message that the kernel watches leaves pages uncharged. The next message of
/// the worker is of a module whose memory is not put in place, because there is none.
#[test]
fn a_message_owes_no_pages_of_the_one_before_it() {
    let mut node = Node::new(false);
    let mut without_memory = node.world.install(WITHOUT_MEMORY);
    let owing = Message {
        operations: vec![(0, 1), (7, 1)],
        instructions: 2_000_000_000,
        heap_dirty_bytes: 64 * MIB,
        slice: 1_000_000_000,
    };
    // At a step, and where a charge fails.
    for (method, instructions) in [("spin", 2_000_000_000), ("reply", 100)] {
        let slices = node.update(&owing);
        assert!(matches!(&slices[..], [Slice::Ended(outcome)] if outcome.result.is_ok()));
        let mut request = node.world.request(&without_memory, Entry::Update(method.into()));
        request.limits.instructions = instructions;
        let canister_id = request.context.canister_id;
        let name = SlicedName { since: Height(1), canister_id, part: 0 };
        let grant = Grant::new(name, 1_000_000_000, 1_000_000_000);
        let slice = node.world.pool.run_slice(Lane::Update(0), &request, &grant).unwrap();
        let Slice::Ended(outcome) = slice else { panic!("{slice:?}") };
        assert_eq!(outcome.result.is_ok(), method == "spin", "{:?}", outcome.result);
        node.world.commit(&mut without_memory, request, &outcome);
    }
}
