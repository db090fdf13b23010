//! Modules and what they may be, and stories of canisters in real worker processes.
#![allow(clippy::unwrap_used)]

mod backtraces;
mod budgeted;
mod calls;
mod hostile;
mod lifecycle;
mod memory;
mod metering;
mod modules;
mod mutated;
mod noted_writes;
mod permissions;
mod queries;
mod shapes;
mod slices;
mod workers;
mod world;

use sandbox::{Entry, Response};
use state::ErrorCode;
use world::{Canister, MIB, World};

const HOST: &str = env!("CARGO_BIN_EXE_sandbox-test-host");

/// A counter in a global, in the heap and in stable memory.
const COUNTER: &str = r#"(module
    (import "ic0" "msg_reply" (func $reply))
    (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
    (import "ic0" "stable64_grow" (func $grow (param i64) (result i64)))
    (import "ic0" "stable64_read" (func $sread (param i64 i64 i64)))
    (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
    (import "ic0" "trap" (func $trap (param i32 i32)))
    (memory 1)
    (data (i32.const 100) "a text")
    (global $n (mut i32) (i32.const 0))
    (func $count
        (global.set $n (i32.add (global.get $n) (i32.const 1)))
        (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
        (call $sread (i64.const 8) (i64.const 0) (i64.const 4))
        (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1)))
        (call $swrite (i64.const 0) (i64.const 8) (i64.const 4)))
    (func $show
        (i32.store (i32.const 4) (global.get $n))
        (call $append (i32.const 4) (i32.const 4))
        (call $append (i32.const 0) (i32.const 4))
        (call $sread (i64.const 8) (i64.const 0) (i64.const 4))
        (call $append (i32.const 8) (i32.const 4))
        (call $append (i32.const 100) (i32.const 6))
        (call $reply))
    (func (export "canister_init") (drop (call $grow (i64.const 1))))
    (func (export "canister_update inc") (call $count) (call $show))
    (func (export "canister_update fail") (call $count) (call $trap (i32.const 100) (i32.const 6)))
    (func (export "canister_query get") (call $show)))"#;

fn counters(response: &Response) -> [u32; 3] {
    let Response::Reply(reply) = response else { panic!("{response:?}") };
    assert_eq!(&reply[12..], b"a text");
    std::array::from_fn(|n| u32::from_le_bytes(reply[4 * n..][..4].try_into().unwrap()))
}

#[test]
fn a_counter_survives_messages_and_workers() {
    let world = World::new(HOST);
    let mut canister = world.install(COUNTER);
    for n in 1..=3 {
        assert_eq!(counters(&world.update(&mut canister, "inc", b"").result.unwrap()), [n; 3]);
    }
    let failed = world.update(&mut canister, "fail", b"");
    let reject = failed.result.unwrap_err().reject;
    assert_eq!(reject.error_code, ErrorCode(503));
    assert!(reject.message.contains("a text"), "{}", reject.message);
    assert_eq!(
        counters(&world.query(&canister, "get", b"").result.unwrap()),
        [3; 3],
        "a trap leaves nothing"
    );

    for pid in world.pool.pids() {
        kill(pid);
    }
    assert!(world.attempt(&mut canister, Entry::Update("inc".into()), |_| {}).is_err());
    assert_eq!(counters(&world.update(&mut canister, "inc", b"").result.unwrap()), [4; 3]);
    assert!(world.attempt(&mut canister, Entry::Query("get".into()), |_| {}).is_err());
    assert_eq!(counters(&world.query(&canister, "get", b"").result.unwrap()), [4; 3]);
    assert_eq!(world.pool.statistics().restarts, 2);
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
