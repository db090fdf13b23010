//! Installation, upgrades, hooks, and the values of the System API.

use sandbox::{Entry, Global, Outcome, Priority, Response, Sandbox};
use serde_bytes::ByteBuf;
use state::{ErrorCode, Time};

use super::{HOST, World};

/// Notes in stable memory in which order its entry points ran, and how often in the heap.
const HOOKS: &str = r#"(module
    (import "ic0" "stable64_grow" (func $grow (param i64) (result i64)))
    (import "ic0" "stable64_size" (func $size (result i64)))
    (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
    (import "ic0" "stable64_read" (func $sread (param i64 i64 i64)))
    (import "ic0" "msg_arg_data_size" (func $arg_size (result i32)))
    (import "ic0" "msg_arg_data_copy" (func $arg (param i32 i32 i32)))
    (import "ic0" "msg_method_name_size" (func $name_size (result i32)))
    (import "ic0" "accept_message" (func $accept))
    (import "ic0" "global_timer_set" (func $timer (param i64) (result i64)))
    (import "ic0" "certified_data_set" (func $certify (param i32 i32)))
    (import "ic0" "debug_print" (func $print (param i32 i32)))
    (import "ic0" "msg_reply" (func $reply))
    (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
    (memory 2)
    (global $ran (mut i64) (i64.const 0))
    (data (i32.const 50) "segment")
    (func $note (param $what i32)
        (if (i64.eqz (call $size)) (then (drop (call $grow (i64.const 1)))))
        (call $sread (i64.const 0) (i64.const 0) (i64.const 1))
        (i32.store8 (i32.const 0) (i32.add (i32.load8_u (i32.const 0)) (i32.const 1)))
        (call $swrite (i64.const 0) (i64.const 0) (i64.const 1))
        (i32.store8 (i32.const 1) (local.get $what))
        (call $swrite (i64.extend_i32_u (i32.load8_u (i32.const 0))) (i64.const 1) (i64.const 1))
        (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1)))
        (global.set $ran (i64.add (global.get $ran) (i64.const 1))))
    (start $start)
    (func $start (call $note (i32.const 115)))
    (func (export "canister_init") (call $note (i32.const 105)))
    (func (export "canister_pre_upgrade") (call $note (i32.const 98)))
    (func (export "canister_post_upgrade") (call $note (i32.const 97)))
    (func (export "canister_heartbeat") (call $note (i32.const 104)))
    (func (export "canister_global_timer") (call $note (i32.const 116))
        (drop (call $timer (i64.add (call $timer (i64.const 7)) (i64.const 1)))) (call $certify (i32.const 50) (i32.const 7)))
    (func (export "canister_on_low_wasm_memory") (call $note (i32.const 108)))
    (func (export "canister_inspect_message")
        (if (i32.eq (call $name_size) (i32.const 4)) (then (call $accept)))
        (if (i32.eq (call $name_size) (i32.const 5)) (then (call $accept) unreachable)))
    (func (export "canister_update print") (local $n i32)
        (loop $next (call $print (i32.const 50) (i32.const 7)) (call $print (i32.const -1) (i32.const 7))
            (br_if $next (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 1000))))
        unreachable)
    (func (export "canister_query get")
        (call $sread (i64.const 100) (i64.const 0) (i64.const 20))
        (call $append (i32.const 101) (i32.load8_u (i32.const 100)))
        (call $append (i32.const 8) (i32.const 4))
        (call $append (i32.const 50) (i32.const 7))
        (call $reply)))"#;

fn reply(outcome: Outcome) -> Vec<u8> {
    match outcome.result {
        Ok(Response::Reply(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

fn expected(order: &[u8], heap: u32) -> Vec<u8> {
    [order, &heap.to_le_bytes(), b"segment"].concat()
}

#[test]
fn entry_points_run_in_their_order() {
    let world = World::new(HOST);
    let mut canister = world.install(HOOKS);
    assert_eq!(canister.globals, [Global::I64(2)]);
    assert_eq!(reply(world.query(&canister, "get", b"")), expected(b"si", 2));
    for entry in [Entry::Heartbeat, Entry::GlobalTimer, Entry::OnLowWasmMemory, Entry::PreUpgrade] {
        assert_eq!(world.run(&mut canister, entry, |_| {}).result, Ok(Response::None));
    }
    assert_eq!(reply(world.query(&canister, "get", b"")), expected(b"sihtlb", 6));

    // An upgrade begins with an empty heap, or keeps it.
    let mut kept = canister.clone();
    canister.heap = world.memory(4 << 30);
    canister.heap_wasm_pages = 0;
    canister.globals.clear();
    assert!(
        world.run(&mut canister, Entry::PostUpgrade { keep_heap: false }, |_| {}).result.is_ok()
    );
    assert_eq!(reply(world.query(&canister, "get", b"")), expected(b"sihtlbsa", 2));
    kept.stable = world.memory(1 << 30);
    kept.stable_wasm_pages = 0;
    kept.globals.clear();
    assert!(world.run(&mut kept, Entry::PostUpgrade { keep_heap: true }, |_| {}).result.is_ok());
    assert_eq!(reply(world.query(&kept, "get", b"")), expected(b"sa", 8));
}

#[test]
fn timers_and_certified_data_are_changes() {
    let world = World::new(HOST);
    let mut canister = world.install(HOOKS);
    let outcome = world
        .run(&mut canister, Entry::GlobalTimer, |request| request.context.global_timer = Time(41));
    let changes = outcome.changes.unwrap();
    assert_eq!(changes.global_timer, Some(Time(42)));
    assert_eq!(changes.certified_data, Some(ByteBuf::from(b"segment")));
}

#[test]
fn inspection_accepts_or_not() {
    let world = World::new(HOST);
    let canister = world.install(HOOKS);
    let inspect = |name: &str| {
        world.run(&mut canister.clone(), Entry::InspectMessage { method_name: name.into() }, |_| {})
    };
    assert!(inspect("good").accepted);
    assert!(!inspect("bad").accepted);
    let trapped = inspect("traps");
    assert!(!trapped.accepted && trapped.result.is_err());
}

#[test]
fn logs_are_bounded() {
    let world = World::new(HOST);
    let mut canister = world.install(HOOKS);
    let outcome = world.update(&mut canister, "print", b"");
    assert_eq!(outcome.result.unwrap_err().reject.error_code, ErrorCode(502));
    assert_eq!(outcome.log[0].as_ref(), b"segment");
    assert!(outcome.log[1].starts_with(b"(debug_print"));
    let bytes: usize = outcome.log.iter().map(|line| line.len()).sum();
    assert!(
        bytes <= 4096 && outcome.log.len() <= 256,
        "{bytes} bytes, {} lines",
        outcome.log.len()
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, in order")]
fn the_system_tells_what_it_knows() {
    // Every function without an address, and every blob.
    let world = World::new(HOST);
    let mut canister = world.install(
        r#"(module
        (import "ic0" "msg_reply" (func $reply))
        (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
        (import "ic0" "canister_self_size" (func $self_size (result i32)))
        (import "ic0" "canister_self_copy" (func $self (param i32 i32 i32)))
        (import "ic0" "env_var_count" (func $env_count (result i32)))
        (import "ic0" "env_var_name_size" (func $env_name_size (param i32) (result i32)))
        (import "ic0" "env_var_name_copy" (func $env_name (param i32 i32 i32 i32)))
        (import "ic0" "env_var_name_exists" (func $env_exists (param i32 i32) (result i32)))
        (import "ic0" "env_var_value_size" (func $env_value_size (param i32 i32) (result i32)))
        (import "ic0" "env_var_value_copy" (func $env_value (param i32 i32 i32 i32 i32)))
        (import "ic0" "is_controller" (func $is_controller (param i32 i32) (result i32)))
        (import "ic0" "cost_sign_with_ecdsa" (func $ecdsa (param i32 i32 i32 i32) (result i32)))
        (import "ic0" "cost_sign_with_schnorr" (func $schnorr (param i32 i32 i32 i32) (result i32)))
        (import "ic0" "performance_counter" (func $counter (param i32) (result i64)))
        (import "ic0" "data_certificate_size" (func $certificate_size (result i32)))
        (memory 1)
        (data (i32.const 0) "COLOURkey_1\04\05")
        (func $byte (param i32) (i32.store8 (i32.const 999) (local.get 0)) (call $append (i32.const 999) (i32.const 1)))
        (func (export "canister_update tell")
            (call $byte (call $self_size))
            (call $self (i32.const 100) (i32.const 7) (i32.const 3)) (call $append (i32.const 100) (i32.const 3))
            (call $byte (call $env_count))
            (call $byte (call $env_name_size (i32.const 1)))
            (call $env_name (i32.const 0) (i32.const 100) (i32.const 1) (i32.const 5)) (call $append (i32.const 100) (i32.const 5))
            (call $byte (call $env_exists (i32.const 0) (i32.const 6)))
            (call $byte (call $env_exists (i32.const 0) (i32.const 5)))
            (call $byte (call $env_value_size (i32.const 0) (i32.const 6)))
            (call $env_value (i32.const 0) (i32.const 6) (i32.const 100) (i32.const 0) (i32.const 5)) (call $append (i32.const 100) (i32.const 5))
            (call $byte (call $is_controller (i32.const 11) (i32.const 1)))
            (call $byte (call $is_controller (i32.const 12) (i32.const 1)))
            (call $byte (call $ecdsa (i32.const 6) (i32.const 5) (i32.const 0) (i32.const 100))) (call $append (i32.const 100) (i32.const 1))
            (call $byte (call $ecdsa (i32.const 6) (i32.const 5) (i32.const 1) (i32.const 100)))
            (call $byte (call $schnorr (i32.const 6) (i32.const 5) (i32.const 1) (i32.const 100))) (call $append (i32.const 100) (i32.const 1))
            (call $byte (call $schnorr (i32.const 0) (i32.const 5) (i32.const 1) (i32.const 100)))
            (call $byte (i64.lt_u (i64.add (i64.const 1000000) (call $counter (i32.const 0))) (call $counter (i32.const 1))))
            (call $reply))
        (func (export "canister_update no_variable") (drop (call $env_value_size (i32.const 0) (i32.const 5))))
        (func (export "canister_query certificate") (call $byte (call $certificate_size)) (call $reply)))"#,
    );
    let outcome = world.run(&mut canister, Entry::Update("tell".into()), |request| {
        request.context.context_instructions = 1_000_000
    });
    let expected: Vec<u8> = [
        [10].as_slice(),
        &[7, 1, 1],
        &[2],
        &[4],
        b"OLOUR",
        &[1],
        &[0],
        &[5],
        b"green",
        &[1],
        &[0],
        &[0],
        &[100],
        &[1],
        &[0],
        &[200],
        &[2],
        &[1],
    ]
    .concat();
    assert_eq!(reply(outcome), expected);
    assert_eq!(
        world.update(&mut canister, "no_variable", b"").result.unwrap_err().reject.error_code,
        ErrorCode(504)
    );
    assert!(world.query(&canister, "certificate", b"").result.is_err());
    let certified = world.run(&mut canister, Entry::Query("certificate".into()), |request| {
        request.context.data_certificate = Some(ByteBuf::from([1; 99]))
    });
    assert_eq!(reply(certified), [99]);
}

#[test]
fn the_canisters_of_this_repository_install_count_and_upgrade() {
    let world = World::new(HOST);
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../canisters/wasm");
    let mut counted = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "wasm" && extension != "gz") {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // Services of a local network take settings: `it::local` of `thimble-lab` installs them.
        if name.starts_with("local-") {
            continue;
        }
        let wasm = std::fs::read(&path).unwrap();
        let mut canister = world.prepared(&wasm);
        let info = world.pool.prepare(&canister.hash, &wasm.as_slice(), Priority::Round).unwrap();
        // The universal canister takes operations, all others Candid.
        let operations = name.starts_with("universal-c");
        let arg: &[u8] = if operations { b"" } else { b"DIDL\0\0" };
        let mut run = |entry: Entry| {
            let outcome = world.run(&mut canister, entry.clone(), |request| {
                request.context.arg = arg.to_vec();
                request.limits.instructions = 50_000_000_000;
            });
            assert!(outcome.result.is_ok(), "{}: {entry:?}: {outcome:?}", path.display());
            outcome
        };
        run(Entry::Init);
        let has = |names: &[String], name: &str| names.iter().any(|known| known == name);
        if has(&info.updates, "inc") && has(&info.queries, "get") {
            run(Entry::Update("inc".into()));
            let last = reply(run(Entry::Update("inc".into())));
            assert_eq!(reply(run(Entry::Update("get".into()))), last, "{}", path.display());
            assert_eq!(reply(run(Entry::Query("get".into()))), last, "{}", path.display());
            counted += 1;
        }
        run(Entry::PreUpgrade);
    }
    assert!(counted >= 4, "{counted} of them count");
    assert_eq!(world.pool.statistics().restarts, 0);
}
