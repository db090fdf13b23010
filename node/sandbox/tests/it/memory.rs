//! Heap and stable memory: what is counted, what is refused, what stays.

use proptest::prelude::*;
use sandbox::{Entry, Lane, Outcome, Request, Response, Sandbox};
use state::ErrorCode;

use super::{Canister, HOST, MIB, World};

const PAGE: u64 = 4096;

fn reject(outcome: &Outcome) -> (ErrorCode, String) {
    let trap = outcome.result.clone().unwrap_err();
    (trap.reject.error_code, trap.reject.message)
}

/// Takes two 64-bit numbers as its argument and does one thing with them, in both address widths.
fn toucher(memory64: bool) -> String {
    let (i, index, wrap) = if memory64 { ("i64", "i64", "") } else { ("i32", "", "i32.wrap_i64") };
    let wrap = |value: &str| if memory64 { value.to_owned() } else { format!("({wrap} {value})") };
    let (a, b) = (wrap("(call $a)"), wrap("(call $b)"));
    let n = |n: u64| format!("({i}.const {n})");
    format!(
        r#"(module
        (import "ic0" "msg_arg_data_copy" (func $arg (param {i} {i} {i})))
        (import "ic0" "msg_reply" (func $reply))
        (import "ic0" "msg_reply_data_append" (func $append (param {i} {i})))
        (import "ic0" "stable64_grow" (func $sgrow (param i64) (result i64)))
        (import "ic0" "stable64_read" (func $sread (param i64 i64 i64)))
        (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
        (memory $m {index} 1 65536)
        (global $have (mut i32) (i32.const 0))
        (data $text "abcdefgh")
        ;; The argument is parked in the last page there is, which is counted like any other.
        (func $park (result {i}) ({i}.sub ({i}.mul (memory.size) {wasm_page}) {sixteen}))
        (func $a (result i64) (call $load) (i64.load (call $park)))
        (func $b (result i64) (call $load) (i64.load offset=8 (call $park)))
        (func $load (if (i32.eqz (global.get $have)) (then (global.set $have (i32.const 1)) (call $arg (call $park) {zero} {sixteen}))))
        (func $done (global.set $have (i32.const 0)) (call $reply))
        (func (export "canister_update grow") (drop (memory.grow {thousand})) (drop (call $sgrow (i64.const 2000))) (call $done))
        ;; Stores one byte at b pages, every a-th page.
        (func (export "canister_update store") (local $at {i}) (local $left i64)
            (local.set $left (call $b))
            (block $end (loop $next
                (br_if $end (i64.eqz (local.get $left)))
                (i32.store8 (local.get $at) (i32.const 1))
                (local.set $at ({i}.add (local.get $at) ({i}.mul {page} {a})))
                (local.set $left (i64.sub (local.get $left) (i64.const 1)))
                (br $next)))
            (call $done))
        (func (export "canister_update fill_scattered") (local $at {i}) (local $left i64)
            (local.set $left (call $b))
            (block $end (loop $next
                (br_if $end (i64.eqz (local.get $left)))
                (memory.fill (local.get $at) (i32.const 1) {one})
                (local.set $at ({i}.add (local.get $at) ({i}.mul {page} {a})))
                (local.set $left (i64.sub (local.get $left) (i64.const 1)))
                (br $next)))
            (call $done))
        (func (export "canister_update fill") (memory.fill {a} (i32.wrap_i64 (call $a)) {b}) (call $done))
        (func (export "canister_update copy") (memory.copy {a} {zero} {b}) (call $done))
        (func (export "canister_update copy_small") (memory.copy {a} {zero} {eight}) (call $done))
        (func (export "canister_update init") (memory.init $text {a} (i32.const 0) (i32.const 8)) (call $done))
        (func (export "canister_update const") (drop (call $a)) (i32.store8 (i32.wrap_i64_or_not 12288) (i32.const 1)) (call $done))
        (func (export "canister_update sread") (call $sread (call $a) (i64.const 0) (call $b)) (call $done))
        (func (export "canister_update swrite") (call $swrite (call $a) (i64.const 0) (call $b)) (call $done))
        (func (export "canister_update sscan") (call $sread (i64.const 0) (call $a) (call $b)) (call $done))
        (func (export "canister_update read") (call $append {a} {b}) (call $done)))"#,
        wasm_page = n(65536),
        one = n(1),
        sixteen = n(16),
        eight = n(8),
        zero = n(0),
        page = n(PAGE),
        thousand = n(1100),
    )
    .replace("(i32.wrap_i64_or_not 12288)", &n(3 * PAGE))
}

struct Toucher {
    world: World,
    canister: Canister,
    lane: usize,
}

impl Toucher {
    fn new(memory64: bool) -> Self {
        let world = World::with(HOST, |config| config.update_workers = 2);
        let mut canister = world.install(&toucher(memory64));
        assert!(world.update(&mut canister, "grow", &[0; 16]).result.is_ok());
        assert_eq!((canister.heap_wasm_pages, canister.stable_wasm_pages), (1101, 2000));
        Self { world, canister, lane: 0 }
    }

    fn checkpoint(&self) {
        let ticket = self.world.store.begin_checkpoint().unwrap();
        ticket.sync().unwrap();
        self.world.store.finish_checkpoint(ticket);
    }

    fn checkpoint_and_fold(&self) {
        self.checkpoint();
        while !self.world.store.fold(1 << 30).unwrap().is_idle() {}
        self.checkpoint();
    }

    /// Runs `method` with a cap of `heap_pages` dirty heap pages.
    fn run(&mut self, method: &str, a: u64, b: u64, heap_pages: u64) -> Outcome {
        let (request, outcome) = self.try_out(method, a, b, heap_pages);
        self.world.commit(&mut self.canister, request, &outcome);
        outcome
    }

    /// Runs `method` and commits nothing.
    fn try_out(&mut self, method: &str, a: u64, b: u64, heap_pages: u64) -> (Request, Outcome) {
        let mut request = self.world.request(&self.canister, Entry::Update(method.into()));
        request.context.arg = [a.to_le_bytes(), b.to_le_bytes()].concat();
        request.limits.heap_dirty_bytes = heap_pages * PAGE;
        let outcome = self.world.pool.execute(Lane::Update(self.lane), &request).unwrap();
        (request, outcome)
    }
}

// Promise: P1 - The heap limit of a message is exact to the page.
#[test]
fn the_heap_cap_is_exact_to_the_page() {
    for memory64 in [false, true] {
        let mut toucher = Toucher::new(memory64);
        // The parked argument dirties one page more.
        for (method, a, b, pages) in [
            ("store", 1, 10, 10),
            ("store", 3, 10, 10),
            ("store", 17, 200, 200),
            ("fill", 0, 10 * PAGE, 10),
            ("fill", PAGE - 1, 2, 2),
            ("fill", 5, 10 * PAGE, 11),
            ("copy", 100 * PAGE + 5, 10 * PAGE, 11),
            ("copy_small", 100 * PAGE - 4, 0, 2),
            ("init", 200 * PAGE - 1, 0, 2),
            ("const", 0, 0, 1),
            ("sread", 300 * PAGE - 1, 4 * PAGE, 5),
        ] {
            let fits = toucher.run(method, a, b, pages + 1);
            assert!(fits.result.is_ok(), "{method} {a} {b}: {:?}", fits.result);
            let changes = fits.changes.unwrap();
            assert_eq!(
                changes.heap_runs.iter().map(|run| run.pages).sum::<u64>(),
                pages + 1,
                "{method} {a} {b}"
            );
            let (code, message) = reject(&toucher.run(method, a, b, pages));
            assert_eq!(code, ErrorCode(524), "{method} {a} {b}: {message}");
            assert!(message.contains(&format!("{} bytes", pages * PAGE)), "{message}");
        }
        assert_eq!(toucher.world.pool.statistics().restarts, 0);
    }
}

#[test]
fn out_of_bounds_is_out_of_bounds_and_not_the_cap() {
    let mut toucher = Toucher::new(false);
    let end = 1101 * 65536;
    for (method, a, b) in [
        ("fill", end - 5, 6),
        ("fill", u64::from(u32::MAX), 10),
        ("copy", end - 5, 6),
        ("init", end - 7, 0),
        ("store", end / PAGE, 2),
    ] {
        let (code, message) = reject(&toucher.run(method, a, b, 3));
        assert_eq!(code, ErrorCode(502), "{method}: {message}");
        assert!(message.contains("out of bounds"), "{message}");
    }
}

// Promise: P1 - A message that dirties more stable memory than its limit traps with the limit.
#[test]
fn stable_memory_takes_24_mib_in_a_message_and_refuses_48() {
    let mut toucher = Toucher::new(false);
    let written = toucher.run("swrite", 0, 24 * MIB, 1);
    assert!(written.result.is_ok(), "{:?}", written.result);
    assert_eq!(
        written.changes.unwrap().stable_runs.iter().map(|run| run.pages).sum::<u64>(),
        24 * MIB / PAGE
    );
    let (code, message) = reject(&toucher.run("swrite", 0, 48 * MIB, 1));
    assert_eq!(code, ErrorCode(524));
    assert!(message.contains("32 MiB") && message.contains("32768 KB"), "{message}");
    assert!(toucher.run("swrite", 0, 32 * MIB, 1).result.is_ok());
    reject(&toucher.run("swrite", 1, 32 * MIB, 1));
    // Reading is capped by what is accessed.
    let (_, message) = reject(&toucher.run("sscan", 0, 48 * MIB, 20_000));
    assert!(message.contains("32 MiB") && message.contains("accessed"), "{message}");
    assert!(toucher.run("sscan", 64 * MIB, 24 * MIB, 20_000).result.is_ok());
}

#[test]
fn memory_grows_within_what_is_granted() {
    let world = World::new(HOST);
    let mut canister = world.install(
        r#"(module
        (import "ic0" "msg_reply" (func $reply))
        (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
        (import "ic0" "stable64_grow" (func $sgrow (param i64) (result i64)))
        (memory 1 100)
        (func (export "canister_update heap") (i32.store (i32.const 0) (memory.grow (i32.const 10))) (call $append (i32.const 0) (i32.const 4)) (call $reply))
        (func (export "canister_update stable") (i64.store (i32.const 0) (call $sgrow (i64.const 10))) (call $append (i32.const 0) (i32.const 8)) (call $reply)))"#,
    );
    let mut grow = |method: &str, growable: u64, limit: Option<u64>, heap_max: u64| {
        world.run(&mut canister, Entry::Update(method.into()), |request| {
            request.context.growable_bytes = growable * 65536;
            request.context.wasm_memory_limit = limit;
            request.limits.heap_max_bytes[0] = heap_max * 65536;
            request.limits.stable_max_bytes = 15 * 65536;
        })
    };
    let reply = |outcome: Outcome| match outcome.result.unwrap() {
        Response::Reply(reply) => reply,
        other => panic!("{other:?}"),
    };
    assert_eq!(reply(grow("heap", 10, None, 1000)), 1_i32.to_le_bytes());
    assert_eq!(reply(grow("heap", 9, None, 1000)), (-1_i32).to_le_bytes(), "subnet capacity");
    assert_eq!(reply(grow("heap", 100, None, 20)), (-1_i32).to_le_bytes(), "heap limit");
    let (code, message) = reject(&grow("heap", 100, Some(65536 * 20), 1000));
    assert_eq!(code, ErrorCode(539));
    assert!(message.contains(&format!("{}", 65536 * 20)), "{message}");
    assert_eq!(reply(grow("heap", 100, Some(65536 * 21), 1000)), 11_i32.to_le_bytes());
    assert_eq!(reply(grow("stable", 9, None, 1000)), (-1_i64).to_le_bytes());
    assert_eq!(reply(grow("stable", 10, None, 1000)), 0_i64.to_le_bytes());
    assert_eq!(reply(grow("stable", 100, None, 1000)), (-1_i64).to_le_bytes(), "stable limit");
}

#[test]
fn module_with_too_much_memory_at_its_start_is_refused_by_the_limit_it_met() {
    let world = World::new(HOST);
    let mut canister = world.empty("(module (memory 20))");
    let wanted = 20 * 65536;
    let mut begin = |growable: u64, heap_max: u64| {
        world.run(&mut canister, Entry::Init, |request| {
            request.context.growable_bytes = growable * 65536;
            request.limits.heap_max_bytes[0] = heap_max * 65536;
        })
    };
    for (growable, heap_max, met) in [
        (100, 19, format!("the limit is {} bytes", 19 * 65536)),
        (19, 19, format!("the limit is {} bytes", 19 * 65536)),
        (19, 100, format!("{wanted} bytes more than it has, and growable_bytes")),
    ] {
        let (code, message) = reject(&begin(growable, heap_max));
        assert_eq!(code, ErrorCode(507));
        let begins = format!("its module begins with {wanted} bytes of Wasm memory, ");
        assert!(message.contains(&begins) && message.contains(&met), "{message}");
        assert!(message.contains(&format!("is {} bytes", 19 * 65536)), "{message}");
    }
    assert!(begin(20, 20).result.is_ok());
}

/// Writes `b` pages, every `a`-th, then reads the first 64 KiB back.
fn scatter(toucher: &mut Toucher, a: u64, b: u64) -> Outcome {
    toucher.run("store", a, b, 16_384)
}

#[test]
fn scattered_writes_never_exhaust_the_kernels_mappings() {
    let mut toucher = Toucher::new(false);
    // 8,800 separate pages: beyond 8,192 a write counts its whole Wasm page.
    let outcome = scatter(&mut toucher, 2, 8_800);
    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    let pages: u64 = outcome.changes.unwrap().heap_runs.iter().map(|run| run.pages).sum();
    assert!((8_801..8_801 + 16 * 80).contains(&pages), "{pages}");
    // Again over what is now mapped in thousands of pieces; dropped, and kept.
    for _ in 0..3 {
        toucher.checkpoint_and_fold();
        assert!(scatter(&mut toucher, 2, 8_500).result.is_ok());
        let (code, _) = reject(&toucher.run("store", 2, 8_500, 8_000));
        assert_eq!(code, ErrorCode(524));
    }
    let Response::Reply(bytes) = toucher.run("read", 0, 65536, 10).result.unwrap() else {
        panic!()
    };
    assert!(
        bytes
            .chunks(2 * PAGE as usize)
            .all(|pages| pages[0] == 1 && pages[1..].iter().all(|byte| *byte == 0))
    );
    // The same through a bulk operation for every page.
    toucher.checkpoint_and_fold();
    let outcome = toucher.run("fill_scattered", 2, 8_800, 16_384);
    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    let pages: u64 = outcome.changes.unwrap().heap_runs.iter().map(|run| run.pages).sum();
    assert!((8_801..8_801 + 16 * 80).contains(&pages), "{pages}");
    assert_eq!(toucher.world.pool.statistics().restarts, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever sequence of writes, failures, checkpoints, foldings, copies, restarts and
    /// forgetting: memory holds what the messages that ended well wrote, and a copy what there was
    /// then.
    #[test]
    fn memory_holds_what_was_written(steps in prop::collection::vec((0_u8..15, 0_u64..150, 1_u64..90, 0_usize..2), 1..60)) {
        let mut toucher = Toucher::new(false);
        let mut heap = vec![0_u8; 180 * PAGE as usize];
        let mut stable = heap.clone();
        let mut kept = None;
        for (kind, at, length, lane) in steps {
            toucher.lane = lane;
            let from = (at * PAGE + at) as usize;
            let to = (from + length as usize * 999).min(heap.len());
            let ids = [toucher.canister.heap, toucher.canister.stable];
            match kind {
                0..=2 => {
                    prop_assert!(toucher.run("fill", from as u64, (to - from) as u64, 100).result.is_ok());
                    heap[from..to].fill(from as u8);
                }
                3 => {
                    prop_assert!(toucher.run("copy", from as u64, (to - from) as u64, 100).result.is_ok());
                    heap.copy_within(0..to - from, from);
                }
                4 => {
                    prop_assert!(toucher.run("swrite", from as u64, (to - from) as u64, 100).result.is_ok());
                    stable[from..to].copy_from_slice(&heap[0..to - from]);
                }
                5 => {
                    prop_assert!(toucher.run("sread", from as u64, (to - from) as u64, 100).result.is_ok());
                    heap[from..to].copy_from_slice(&stable[0..to - from]);
                }
                6 => {
                    // Written and refused at the end.
                    reject(&toucher.run("fill", 0, 70 * PAGE, 60));
                }
                10..=11 => {
                    // Done, and thrown away by execution.
                    let (_, outcome) = toucher.try_out("fill", from as u64, (to - from) as u64, 100);
                    prop_assert!(outcome.result.is_ok());
                }
                12..=13 => {
                    let copies = ids.map(|id| toucher.world.copy(id));
                    if let Some((gone, ..)) = kept.replace((copies, heap.clone(), stable.clone())) {
                        gone.iter().for_each(|id| toucher.world.store.remove(*id));
                    }
                }
                14 => {
                    let Some((copies, heap_then, stable_then)) = &kept else { continue };
                    toucher.world.pool.forget(&ids);
                    ids.iter().for_each(|id| toucher.world.store.remove(*id));
                    [toucher.canister.heap, toucher.canister.stable] =
                        copies.map(|id| toucher.world.copy(id));
                    heap.clone_from(heap_then);
                    stable.clone_from(stable_then);
                }
                7 => toucher.checkpoint(),
                8 => toucher.checkpoint_and_fold(),
                _ => toucher.world.pool.forget(&ids),
            }
        }
        let Response::Reply(bytes) = toucher.run("read", 0, heap.len() as u64, 10).result.unwrap() else { panic!() };
        prop_assert!(bytes == heap, "the heap differs");
        prop_assert!(toucher.run("sread", 0, stable.len() as u64, 200).result.is_ok());
        let Response::Reply(bytes) = toucher.run("read", 0, stable.len() as u64, 10).result.unwrap() else { panic!() };
        prop_assert!(bytes == stable, "stable memory differs");
        if let Some(([heap_id, stable_id], heap, stable)) = kept {
            for (id, expected) in [(heap_id, heap), (stable_id, stable)] {
                let mut bytes = vec![0; expected.len()];
                pages::read_pages(&toucher.world.store.layout(id).unwrap(), 0, &mut bytes).unwrap();
                prop_assert!(bytes == expected, "a copy differs");
            }
        }
        prop_assert_eq!(toucher.world.pool.statistics().restarts, 0);
    }
}
