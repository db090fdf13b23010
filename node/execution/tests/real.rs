//! The whole path with real code: modules compiled in children, run in worker processes, their
//! pages on disk. The modules are those under `canisters/wasm`.
//!
//! This program has a `main` of its own, because it is also the program that the pool starts as
//! worker and as compiler.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use candid::{Decode, Encode, Nat, Principal};
use common::{MakeSandbox, Node, limits, subnet_config, user};
use execution::QueryService;
use ic_management_canister_types::{
    CanisterInstallMode as Mode, UpgradeFlags, WasmMemoryPersistence,
};
use sandbox::{Pool, Sandbox, SandboxConfig};
use state::{CanisterId, QueryRequest, Reject, RequestId};
use statesync::StateInstaller;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().as_deref().and_then(|name| name.to_str()) {
        Some("sandbox-compile") => return sandbox::compile_main(arguments),
        Some("sandbox-worker") => return sandbox::worker_main(arguments),
        _ => {}
    }
    let filter =
        std::env::args().nth(1).filter(|argument| !argument.starts_with('-')).unwrap_or_default();
    let stories: [(&str, fn()); 13] = [
        ("a_counter_counts", a_counter_counts),
        ("motoko_survives_upgrades", motoko_survives_upgrades),
        ("workbenches_call_each_other", workbenches_call_each_other),
        ("memory_is_kept_and_bounded", memory_is_kept_and_bounded),
        ("queries_and_certified_data", queries_and_certified_data),
        (
            "a_kept_reply_is_given_while_the_state_is_the_same",
            a_kept_reply_is_given_while_the_state_is_the_same,
        ),
        (
            "slow_queries_are_ended_and_others_are_served",
            slow_queries_are_ended_and_others_are_served,
        ),
        ("a_killed_worker_costs_nothing_certified", a_killed_worker_costs_nothing_certified),
        ("threads_and_restarts_change_no_root", threads_and_restarts_change_no_root),
        (
            "long_messages_come_to_the_same_whatever_is_kept",
            long_messages_come_to_the_same_whatever_is_kept,
        ),
        (
            "a_heap_kept_for_a_module_without_a_memory_holds_up_no_round",
            a_heap_kept_for_a_module_without_a_memory_holds_up_no_round,
        ),
        (
            "an_upgrade_in_slices_comes_to_the_same_whatever_is_kept",
            an_upgrade_in_slices_comes_to_the_same_whatever_is_kept,
        ),
        ("a_fetched_state_goes_on_as_its_source_does", a_fetched_state_goes_on_as_its_source_does),
    ];
    for (name, story) in stories.into_iter().filter(|(name, _)| name.contains(&filter)) {
        println!("story {name} ...");
        story();
    }
    ExitCode::SUCCESS
}

fn wasm(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../canisters/wasm").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

struct Real {
    node: Node,
    pool: Slot,
}

fn real(threads: u64) -> Real {
    let mut limits = limits();
    limits.execution.threads = threads;
    let (make, pool) = pools(&limits);
    Real { node: Node::with_sandbox(limits, Some(make)), pool }
}

/// The pool of workers that is open now.
type Slot = Arc<Mutex<Option<Arc<Pool>>>>;

fn pools(limits: &limits::Limits) -> (MakeSandbox, Slot) {
    let slot: Slot = Arc::default();
    let (pool, given) = (Arc::clone(&slot), limits.clone());
    let make = move |dir: &Path| {
        // The pool before must be gone: it holds the lock on the artefacts.
        drop(pool.lock().unwrap().take());
        let made = Arc::new(
            Pool::open(SandboxConfig {
                exe: std::env::current_exe().unwrap(),
                cache_dir: dir.join("artefacts"),
                update_workers: given.execution.threads as usize,
                query_workers: given.execution.query_threads as usize,
                module: given.module.clone(),
                sandbox: given.sandbox.clone(),
                paused_spill_bytes: given.paused_spill_bytes(),
                paused_anonymous_bytes: given.paused_anonymous_bytes(),
                source: None,
                probes: false,
            })
            .unwrap(),
        );
        *pool.lock().unwrap() = Some(Arc::clone(&made));
        made as Arc<dyn Sandbox>
    };
    (Arc::new(make), slot)
}

impl Real {
    fn deploy(&mut self, module: &str) -> CanisterId {
        let id = self.node.create();
        self.node.install_wasm(id, Mode::Install, wasm(module), Encode!().unwrap()).unwrap();
        id
    }

    fn query(&self, id: CanisterId, method: &str, arg: Vec<u8>) -> Result<Vec<u8>, Reject> {
        query_in(&self.node.executor.queries(), id, method, arg)
    }

    fn restart(self) -> Self {
        Self { node: self.node.restart(), pool: self.pool }
    }
}

fn query_in(
    queries: &QueryService,
    id: CanisterId,
    method: &str,
    arg: Vec<u8>,
) -> Result<Vec<u8>, Reject> {
    let request = QueryRequest {
        sender: user(1),
        canister_id: id,
        method_name: method.into(),
        arg,
        sender_info: None,
    };
    queries.query(request).map(|reply| reply.bytes)
}

fn none() -> Vec<u8> {
    Encode!().unwrap()
}

fn nat64(bytes: &[u8]) -> u64 {
    Decode!(bytes, u64).unwrap()
}

fn a_counter_counts() {
    let mut real = real(2);
    let id = real.deploy("counter-c.wasm");
    for expected in 1..=3u64 {
        assert_eq!(real.node.update(id, "inc", vec![]).unwrap(), expected.to_le_bytes());
    }
    assert_eq!(real.query(id, "get", vec![]).unwrap(), 3u64.to_le_bytes());
    assert_eq!(real.node.update(id, "nothing", vec![]).unwrap_err().error_code.0, 536);
    let beater = real.deploy("beater-c.wasm");
    assert!(real.node.round().every_round);
    let _ = beater;
    let mut real = real.restart();
    assert_eq!(real.node.update(id, "inc", vec![]).unwrap(), 4u64.to_le_bytes());
}

fn motoko_survives_upgrades() {
    let nat = |bytes: &[u8]| Decode!(bytes, Nat).unwrap();
    let mut real = real(2);
    let flags = |persistence| {
        Mode::Upgrade(Some(UpgradeFlags {
            skip_pre_upgrade: None,
            wasm_memory_persistence: Some(persistence),
        }))
    };
    for (module, upgrade) in [
        ("motoko-counter32.wasm", Mode::Upgrade(None)),
        ("motoko-counter64.wasm", flags(WasmMemoryPersistence::Keep)),
    ] {
        let id = real.deploy(module);
        assert_eq!(nat(&real.node.update(id, "inc", none()).unwrap()), 1u8);
        assert_eq!(
            nat(&real.node.update(id, "add", Encode!(&Nat::from(41u8)).unwrap()).unwrap()),
            42u8
        );
        assert!(real.node.update(id, "boom", none()).is_err());
        real.node.install_wasm(id, upgrade, wasm(module), none()).unwrap();
        assert_eq!(nat(&real.query(id, "get", none()).unwrap()), 42u8, "{module}");
        if module.contains("64") {
            let error =
                real.node.install_wasm(id, Mode::Upgrade(None), wasm(module), none()).unwrap_err();
            assert_eq!(error.error_code.0, 504);
        }
        // An upgrade to something that does not start leaves all as it was.
        let broken = wat::parse_str(
            r#"(module (func unreachable) (export "canister_post_upgrade" (func 0)) (memory 1))"#,
        )
        .unwrap();
        let replace = flags(WasmMemoryPersistence::Replace);
        let error = real.node.install_wasm(id, replace, broken, none()).unwrap_err();
        assert_eq!(error.error_code.0, 502, "{}", error.message);
        assert_eq!(nat(&real.node.update(id, "inc", none()).unwrap()), 43u8, "{module}");
    }
}

fn workbenches_call_each_other() {
    let mut real = real(2);
    let ring: Vec<Principal> = (0..3).map(|_| real.deploy("workbench.wasm")).collect();
    let (a, b) = (ring[0], ring[1]);
    assert_eq!(nat64(&real.node.update(a, "call_inc", Encode!(&b).unwrap()).unwrap()), 1);
    assert_eq!(nat64(&real.node.update(a, "call_inc", Encode!(&a).unwrap()).unwrap()), 1);
    assert_eq!(nat64(&real.node.update(a, "chain", Encode!(&ring, &12u32).unwrap()).unwrap()), 12);
    assert!(real.node.update(a, "call_trap_cleanup", Encode!(&b).unwrap()).is_err());
    let report = real.query(a, "cleanup_report", none()).unwrap();
    #[derive(candid::CandidType, serde::Deserialize)]
    struct Report {
        cleanups: u64,
        leaked: u64,
    }
    let report = Decode!(&report, Report).unwrap();
    assert_eq!((report.cleanups, report.leaked), (1, 0));
    #[derive(candid::CandidType, serde::Deserialize, Debug)]
    struct Fanout {
        replied: u64,
        rejected: u64,
        refused: u64,
    }
    for method in ["fanout", "fanout_bounded"] {
        let reply = real.node.update(a, method, Encode!(&ring, &5u32).unwrap()).unwrap();
        let report = Decode!(&reply, Fanout).unwrap();
        assert_eq!((report.replied, report.rejected, report.refused), (15, 0, 0), "{method}");
    }
    let sent =
        real.node.update(a, "send_cycles", Encode!(&b, &Nat::from(5_000_000u32)).unwrap()).unwrap();
    assert_eq!(Decode!(&sent, Nat).unwrap(), 5_000_000u32);
    let back = real
        .node
        .update(a, "send_cycles_refunded", Encode!(&b, &Nat::from(5_000_000u32)).unwrap())
        .unwrap();
    assert_eq!(Decode!(&back, Nat).unwrap(), 5_000_000u32);
    let random = real.node.update(a, "raw_rand_via_mgmt", none()).unwrap();
    assert_eq!(Decode!(&random, serde_bytes::ByteBuf).unwrap().len(), 32);
    assert_eq!(
        real.node.update(a, "reject_with", Encode!(&"no").unwrap()).unwrap_err().error_code.0,
        406
    );
    let endless = real.node.update(a, "loop_forever", none()).unwrap_err();
    assert_eq!(endless.error_code.0, 522, "{}", endless.message);
    assert!(
        real.node.executor.state().canisters().all(|canister| canister.calls.has_no_contexts())
    );
}

fn memory_is_kept_and_bounded() {
    let mut real = real(2);
    let id = real.deploy("workbench.wasm");
    let mib = 1u64 << 20;
    real.node.update(id, "heap_fill", Encode!(&(20 * mib), &3u8).unwrap()).unwrap();
    let sum =
        real.node.update(id, "heap_read_sum_update", Encode!(&0u64, &(20 * mib)).unwrap()).unwrap();
    assert_eq!(nat64(&sum), 60 * mib);
    let limit = real.node.config.limits.execution.heap_dirty_bytes_per_message;
    let error =
        real.node.update(id, "heap_fill", Encode!(&(limit + mib), &4u8).unwrap()).unwrap_err();
    assert!(error.message.contains(&limit.to_string()), "{}", error.message);
    let sum = real.query(id, "heap_read_sum", Encode!(&0u64, &(20 * mib)).unwrap()).unwrap();
    assert_eq!(nat64(&sum), 60 * mib, "nothing of the message that trapped");
    let mut real = real.restart();
    let sum = real.query(id, "heap_read_sum", Encode!(&0u64, &(20 * mib)).unwrap());
    // Nothing is certified before the first round after a restart that repeated nothing.
    let sum = match sum {
        Ok(sum) => sum,
        Err(_) => {
            real.node.round();
            real.query(id, "heap_read_sum", Encode!(&0u64, &(20 * mib)).unwrap()).unwrap()
        }
    };
    assert_eq!(nat64(&sum), 60 * mib);
}

fn a_kept_reply_is_given_while_the_state_is_the_same() {
    let mut real = real(2);
    real.node.executor.cache_queries(accounting::Pool::standalone("query_cache", 1 << 20));
    let queries = real.node.executor.queries();
    let id = real.deploy("counter-c.wasm");
    real.node.update(id, "inc", vec![]).unwrap();
    let request = QueryRequest {
        sender: user(1),
        sender_info: None,
        canister_id: id,
        method_name: "get".into(),
        arg: vec![],
    };
    let kept = |bytes_max: usize| queries.kept_reply(&request, bytes_max);
    assert_eq!(kept(1_000), None, "it was not asked before");
    let reply = queries.query(request.clone()).unwrap().bytes;
    assert_eq!(reply, 1_u64.to_le_bytes());
    assert_eq!(kept(reply.len()).as_deref(), Some(&reply[..]));
    assert_eq!(kept(reply.len() - 1), None, "it is too long");
    assert_eq!(queries.cache_figures(), (1, 1));
    real.node.update(id, "inc", vec![]).unwrap();
    assert_eq!(kept(1_000), None, "the state has changed");
}

fn queries_and_certified_data() {
    let mut real = real(2);
    let (a, b) = (real.deploy("workbench.wasm"), real.deploy("workbench.wasm"));
    real.node.update(b, "inc", none()).unwrap();
    assert_eq!(nat64(&real.query(a, "composite_get", Encode!(&b).unwrap()).unwrap()), 1);
    real.node
        .update(
            a,
            "set_certified",
            Encode!(&serde_bytes::ByteBuf::from(b"thirty-two bytes or fewer".to_vec())).unwrap(),
        )
        .unwrap();
    let reply = real.query(a, "get_certified", none()).unwrap();
    let (value, certificate) =
        Decode!(&reply, serde_bytes::ByteBuf, Option<serde_bytes::ByteBuf>).unwrap();
    let certificate = certificate.expect("queries have a certificate");
    assert!(certificate.windows(value.len()).any(|window| window == &value[..]));
    assert_eq!(real.query(a, "loop_forever_query", none()).unwrap_err().error_code.0, 522);
    let request = |method: &str| state::Ingress {
        request_id: state::RequestId([1; 32]),
        sender: user(1),
        canister_id: a,
        effective_canister_id: a,
        method_name: method.into(),
        arg: none(),
        ingress_expiry: state::Time(real.node.now() + common::SECOND),
        sender_info: None,
    };
    let queries = real.node.executor.queries();
    queries.inspect(&request("inc")).unwrap();
    assert_eq!(queries.inspect(&request("forbidden")).unwrap_err().error_code.0, 406);
}

/// A canister of which every query is slow: endless, and with a chain of functions that return
/// 1,000 values each, which takes long for each counted instruction.
fn slow_module() -> Vec<u8> {
    const VALUES: usize = 1_000;
    const FUNCTIONS: usize = 250;
    let (values, constants, drops) =
        ("i64 ".repeat(VALUES), "(i64.const 1) ".repeat(VALUES), "drop ".repeat(VALUES));
    let mut text = format!(
        "(module (type $many (func (result {values})))
         (memory 1)
         (func $f0 (type $many) {constants})"
    );
    for number in 1..FUNCTIONS {
        text += &format!("(func $f{number} (type $many) (call $f{}))", number - 1);
    }
    let chain = format!("(loop $again (call $f{}) {drops} (br $again))", FUNCTIONS - 1);
    text += &format!(
        "(func (export \"canister_query chain\") {chain})
         (func (export \"canister_query endless\") (loop $again (br $again)))
         (func (export \"canister_composite_query endless_too\") (loop $again (br $again)))
         (func (export \"canister_inspect_message\") (loop $again (br $again)))
         (func (export \"canister_update ok\")))"
    );
    wat::parse_str(text).unwrap()
}

// Promise: P13 - Slow queries end at their deadline, and others are served.
fn slow_queries_are_ended_and_others_are_served() {
    let mut limits = limits();
    limits.execution.query_threads = 1;
    limits.execution.query_threads_per_canister = 1;
    limits.execution.query_wall_clock_seconds = 1;
    limits.execution.query_wait_seconds = 60;
    // No count of instructions ends anything here.
    limits.execution.instructions_per_query = 1 << 50;
    limits.execution.instructions_per_inspect = 1 << 50;
    let (make, pool) = pools(&limits);
    let mut real = Real { node: Node::with_sandbox(limits, Some(make)), pool };
    let (slow, other) = (real.node.create(), real.deploy("workbench.wasm"));
    real.node.install_wasm(slow, Mode::Install, slow_module(), vec![]).unwrap();
    let queries = real.node.executor.queries();
    let call = state::Ingress {
        request_id: RequestId([1; 32]),
        sender: user(1),
        canister_id: slow,
        effective_canister_id: slow,
        method_name: "ok".into(),
        arg: none(),
        ingress_expiry: state::Time(real.node.now() + common::SECOND),
        sender_info: None,
    };
    let is_ended = |reject: Reject| {
        assert_eq!(reject.error_code.0, 528, "{reject:?}");
        assert!(reject.message.contains("query_wall_clock_seconds = 1"), "{reject:?}");
    };
    std::thread::scope(|scope| {
        let attackers: Vec<_> = ["chain", "endless", "endless_too", "chain"]
            .into_iter()
            .map(|method| {
                let queries = &queries;
                scope.spawn(move || query_in(queries, slow, method, none()).unwrap_err())
            })
            .collect();
        // One query worker for all: these wait for it behind one query each time.
        for _ in 0..3 {
            real.query(other, "get", none()).unwrap();
        }
        for attacker in attackers {
            is_ended(attacker.join().unwrap());
        }
    });
    is_ended(queries.inspect(&call).unwrap_err());
    let transformed = queries.transform((slow, state::Height(0)), "endless", none());
    assert!(matches!(transformed, Err(state::NotTransformed::Died(_))), "{transformed:?}");
    // A worker that was ended for its query is not a faulty worker.
    real.query(other, "get", none()).unwrap();
    assert_eq!(queries.ended(), execution::EndedQueries { wall_clock: 6, wait: 0 });
    let statistics = real.pool.lock().unwrap().as_ref().unwrap().statistics();
    assert_eq!((statistics.overdue, statistics.timeouts), (6, 0));
}

fn a_killed_worker_costs_nothing_certified() {
    let mut real = real(2);
    let id = real.deploy("workbench.wasm");
    for expected in 1..=5 {
        for pid in real.pool.lock().unwrap().as_ref().unwrap().pids() {
            // SAFETY: sends a signal to a process that this one started.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        assert_eq!(nat64(&real.node.update(id, "inc", none()).unwrap()), expected);
    }
    assert!(real.node.log.iter().all(|(_, verdicts, _)| verdicts.is_empty()));
}

// Promise: P8 - Real workers give equal roots on any number of threads and over restarts.
fn threads_and_restarts_change_no_root() {
    let live = |threads: u64, restarts: bool| {
        let mut real = real(threads);
        let ring: Vec<Principal> = (0..3).map(|_| real.deploy("workbench.wasm")).collect();
        for step in 0..6u64 {
            for (number, id) in ring.iter().enumerate() {
                let other = ring[(number + 1) % ring.len()];
                real.node.ingress(user(1), *id, *id, "call_inc", Encode!(&other).unwrap());
                real.node.ingress(
                    user(1),
                    *id,
                    *id,
                    "heap_fill_at",
                    Encode!(&(step * 10_000), &50_000u64, &(step as u8)).unwrap(),
                );
                real.node.ingress(
                    user(1),
                    *id,
                    *id,
                    "spin",
                    Encode!(&(1_000_000 * (number as u64 + 1))).unwrap(),
                );
            }
            real.node.settle();
            if restarts && step % 2 == 1 {
                real = real.restart();
            }
        }
        real.node.log.iter().map(|(_, _, root)| *root).collect::<Vec<_>>()
    };
    let once = live(1, false);
    assert_eq!(once, live(2, true));
}

/// Three canisters with messages of many slices and one with short ones, on a node that keeps so
/// many paused messages. `after` is what happens after each round.
fn long_life(places: u64, threads: u64, after: fn(u64, Real) -> Real) -> Vec<[u8; 32]> {
    let mut limits = limits();
    limits.execution.threads = threads;
    limits.execution.instructions_per_slice = 10_000_000;
    limits.execution.instructions_per_message = 400_000_000;
    limits.execution.instructions_per_round = 80_000_000;
    limits.execution.paused_executions = 2;
    limits.pages.checkpoint_interval_rounds = 4;
    limits.sandbox.paused_workers = places;
    let (make, pool) = pools(&limits);
    let mut real = Real { node: Node::with_sandbox(limits, Some(make)), pool };
    let long: Vec<_> = (0..3).map(|_| real.deploy("workbench.wasm")).collect();
    let short = real.deploy("workbench.wasm");
    let mut send = |id: CanisterId, method: &str, arg: Vec<u8>| {
        real.node.ingress(user(1), id, id, method, arg)
    };
    let mut requests = vec![
        send(long[0], "spin", Encode!(&200_000_000u64).unwrap()),
        send(long[1], "heap_fill", Encode!(&(12u64 << 20), &7u8).unwrap()),
        send(long[2], "loop_forever", none()),
    ];
    requests.extend(long.iter().map(|id| send(*id, "call_inc", Encode!(&short).unwrap())));
    let mut most = 0;
    for round in 1..=120u64 {
        let quick = real.node.ingress(user(1), short, short, "inc", none());
        real.node.round();
        assert!(real.node.result(&quick).is_ok(), "round {round}");
        most = most.max(real.node.executor.state().paused().count());
        real = after(round, real);
    }
    assert_eq!(most, 3);
    assert_eq!(real.node.executor.state().paused().count(), 0);
    assert!(requests.iter().all(|request| real.node.result_if_any(request).is_some()));
    assert_eq!(real.node.result(&requests[2]).unwrap_err().error_code.0, 522);
    real.node.log.iter().map(|(.., root)| *root).collect()
}

// Promise: P13 - Long messages give the same result with kept and with lost workers.
fn long_messages_come_to_the_same_whatever_is_kept() {
    let kept = long_life(4, 2, |_, real| real);
    assert_eq!(kept, long_life(0, 1, |_, real| real));
    let killed = long_life(2, 2, |round, real| {
        let pool = real.pool.lock().unwrap().clone().unwrap();
        let pids = if round % 3 == 0 { pool.pids() } else { pool.paused_pids() };
        for pid in pids.into_iter().filter(|_| round % 2 == 0) {
            // SAFETY: sends a signal to a process that this one started.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        real
    });
    assert_eq!(kept, killed);
    let restarted =
        long_life(
            1,
            2,
            |round, real| {
                if [3, 4, 17, 30].contains(&round) { real.restart() } else { real }
            },
        );
    assert_eq!(kept, restarted);
}

/// Code whose last word and first word write both memories for some ten million instructions.
fn upgrader(version: u64) -> Vec<u8> {
    let text = r#"(module
        (import "ic0" "msg_reply" (func $reply))
        (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
        (import "ic0" "stable64_grow" (func $grow (param i64) (result i64)))
        (import "ic0" "stable64_size" (func $size (result i64)))
        (import "ic0" "stable64_read" (func $sread (param i64 i64 i64)))
        (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
        (memory 40)
        (global $n (mut i64) (i64.const VERSION))
        (func $work (param $times i32)
            (loop $next
                (global.set $n (i64.add (i64.mul (global.get $n) (i64.const 6364136223846793005)) (i64.const VERSION)))
                (i64.store (i32.and (i32.wrap_i64 (i64.shr_u (global.get $n) (i64.const 20))) (i32.const 0x1fffff)) (global.get $n))
                (if (i32.eqz (i32.and (local.get $times) (i32.const 0xff))) (then
                    (call $sread (i64.const 0x200000) (i64.and (global.get $n) (i64.const 0x3ffff8)) (i64.const 8))
                    (i64.store (i32.const 0x200000) (i64.add (i64.load (i32.const 0x200000)) (global.get $n)))
                    (call $swrite (i64.and (i64.shr_u (global.get $n) (i64.const 8)) (i64.const 0x3ffff8)) (i64.const 0x200000) (i64.const 8))))
                (br_if $next (local.tee $times (i32.sub (local.get $times) (i32.const 1))))))
        (func (export "canister_init") (drop (call $grow (i64.const 64))))
        (func (export "canister_pre_upgrade") (call $work (i32.const 300000)))
        (func (export "canister_post_upgrade") (drop (call $grow (i64.const 1))) (call $work (i32.const 400000)))
        (func (export "canister_query sum")
            (local $at i32) (local $sum i64)
            (loop $next
                (call $sread (i64.const 0x200000) (i64.extend_i32_u (local.get $at)) (i64.const 0x10000))
                (local.set $sum (i64.add (i64.mul (local.get $sum) (i64.const 3)) (i64.load
                    (i32.add (i32.const 0x200000) (i32.and (local.get $at) (i32.const 0xfff8))))))
                (local.set $sum (i64.add (i64.mul (local.get $sum) (i64.const 3)) (i64.load (i32.and (local.get $at) (i32.const 0x1ffff8)))))
                (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 0x3f8))) (i32.const 0x400000))))
            (i64.store (i32.const 0x200000) (i64.add (local.get $sum) (call $size)))
            (call $append (i32.const 0x200000) (i32.const 8))
            (call $reply)))"#;
    wat::parse_str(text.replace("VERSION", &version.to_string())).unwrap()
}

fn begin_upgrade(node: &mut Node, id: CanisterId, version: u64) -> RequestId {
    let argument = ic_management_canister_types::InstallCodeArgs {
        mode: Mode::Upgrade(None),
        canister_id: id,
        wasm_module: upgrader(version),
        arg: vec![],
        sender_canister_version: None,
    };
    let arg = candid::encode_one(&argument).unwrap();
    node.ingress(user(1), Principal::management_canister(), id, "install_code", arg)
}

/// Two canisters that are upgraded alongside a long message, in slices of `slice` instructions.
fn upgrade_life(
    places: u64,
    slice: u64,
    loses: bool,
    after: fn(u64, Real) -> Real,
) -> (Vec<[u8; 32]>, Vec<Vec<u8>>, u64) {
    let mut limits = limits();
    limits.execution.threads = 2;
    limits.execution.instructions_per_slice = slice;
    limits.execution.instructions_per_round = 8 * slice;
    limits.pages.checkpoint_interval_rounds = 4;
    limits.sandbox.paused_workers = places;
    let (make, pool) = pools(&limits);
    let mut real = Real { node: Node::with_sandbox(limits, Some(make)), pool };
    let ids = [(); 2].map(|()| real.node.create());
    for id in ids {
        real.node.install_wasm(id, Mode::Install, upgrader(1), vec![]).unwrap();
    }
    let other = real.deploy("workbench.wasm");
    real.node.ingress(user(1), other, other, "spin", Encode!(&30_000_000u64).unwrap());
    let requests = [
        begin_upgrade(&mut real.node, ids[0], 2),
        begin_upgrade(&mut real.node, ids[1], 3),
        begin_upgrade(&mut real.node, ids[0], 5),
    ];
    let mut rounds = 0;
    for round in 1..=120u64 {
        real.node.round();
        let over = |request| real.node.result_if_any(request).is_some();
        if !requests.iter().all(over) {
            rounds = round;
        }
        real = after(round, real);
    }
    assert!(requests.iter().all(|request| real.node.result(request).is_ok()));
    let sums = ids.map(|id| real.query(id, "sum", vec![]).unwrap()).to_vec();
    // After the last restart, that is.
    let repeated = real.pool.lock().unwrap().as_ref().unwrap().statistics().repeated;
    // Checkpoints take nothing of what is kept.
    assert_eq!(repeated > 0, loses, "{repeated}");
    (real.node.log.iter().map(|(.., root)| *root).collect(), sums, rounds)
}

// Promise: P13 - An upgrade in slices gives the same result with kept and with lost workers.
fn an_upgrade_in_slices_comes_to_the_same_whatever_is_kept() {
    let (roots, sums, rounds) = upgrade_life(4, 3_000_000, false, |_, real| real);
    assert!(rounds > 20, "{rounds}");
    let (_, whole, rounds) = upgrade_life(4, 1_000_000_000, false, |_, real| real);
    assert_eq!((sums.clone(), 0), (whole, rounds), "as in one piece");
    let none_kept = upgrade_life(0, 3_000_000, true, |_, real| real);
    assert_eq!((&roots, &sums), (&none_kept.0, &none_kept.1));
    let one_kept = upgrade_life(1, 3_000_000, true, |_, real| real);
    assert_eq!((&roots, &sums), (&one_kept.0, &one_kept.1));
    let killed = upgrade_life(4, 3_000_000, true, |round, real| {
        let pool = real.pool.lock().unwrap().clone().unwrap();
        let pids = if round % 3 == 0 { pool.pids() } else { pool.paused_pids() };
        for pid in pids.into_iter().filter(|_| round % 2 == 0) {
            // SAFETY: sends a signal to a process that this one started.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        real
    });
    assert_eq!((&roots, &sums), (&killed.0, &killed.1));
    let restarted = upgrade_life(4, 3_000_000, true, |round, real| {
        if [1, 5, 6, 9, 14, 21].contains(&round) { real.restart() } else { real }
    });
    assert_eq!((&roots, &sums), (&restarted.0, &restarted.1));
}

// Promise: P13 - A paused message of a module without a memory completes.
fn a_heap_kept_for_a_module_without_a_memory_holds_up_no_round() {
    let mut limits = limits();
    limits.execution.instructions_per_slice = 10_000_000;
    limits.execution.instructions_per_message = 400_000_000;
    limits.execution.instructions_per_round = 80_000_000;
    let (make, pool) = pools(&limits);
    let mut real = Real { node: Node::with_sandbox(limits, Some(make)), pool };
    let id = real.node.create();
    let with = wat::parse_str(r#"(module (memory 1) (func (export "canister_init")))"#).unwrap();
    real.node.install_wasm(id, Mode::Install, with, none()).unwrap();
    let without = wat::parse_str(
        r#"(module
            (@custom "icp:private enhanced-orthogonal-persistence" "")
            (import "ic0" "msg_reply" (func $reply))
            (func (export "canister_update spin") (local $left i32)
                (local.set $left (i32.const 20000000))
                (loop $next
                    (br_if $next (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
                (call $reply)))"#,
    )
    .unwrap();
    let keep = Mode::Upgrade(Some(UpgradeFlags {
        skip_pre_upgrade: None,
        wasm_memory_persistence: Some(WasmMemoryPersistence::Keep),
    }));
    real.node.install_wasm(id, keep, without, none()).unwrap();
    let heap_pages =
        |real: &Real| real.node.canister(id).execution.as_ref().unwrap().heap.wasm_pages;
    assert_eq!(heap_pages(&real), 1);
    // No retry for a worker that reports another heap.
    real.node.retry.act(|trouble| panic!("{trouble:?}"));
    let spin = real.node.ingress(user(1), id, id, "spin", none());
    real.node.round();
    assert!(real.node.canister(id).paused.is_some());
    real.node.settle();
    assert!(real.node.result(&spin).is_ok());
    assert_eq!(heap_pages(&real), 1);
    real.restart();
}

/// Another process would be the other node; here it is another directory with other workers.
fn fetch(
    source: &Node,
    limits: &limits::Limits,
    (height, root): (state::Height, [u8; 32]),
    least_bytes: u64,
) -> tempfile::TempDir {
    let snapshots = source.executor.snapshots();
    let dir = tempfile::tempdir().unwrap();
    let (disk, limits) = (disk::RealDisk::shared(), Arc::new(limits.clone()));
    let mut installer =
        StateInstaller::begin_on(disk, dir.path(), height, root, limits, None).unwrap();
    while !installer.is_complete() {
        for chunk in installer.missing(16).unwrap() {
            installer.offer(chunk, &snapshots.chunk(height, chunk).unwrap()).unwrap();
        }
    }
    let bytes = installer.progress().bytes_total;
    assert!(bytes > least_bytes, "{bytes}");
    installer.finish().unwrap();
    dir
}

// Promise: P13 - A fetched state with paused messages continues like its source.
fn a_fetched_state_goes_on_as_its_source_does() {
    let mut limits = limits();
    limits.execution.instructions_per_slice = 1_000_000;
    limits.pages.manifest_lag_rounds = 2;
    let (make, pool) = pools(&limits);
    let mut source =
        Real { node: Node::with_config(subnet_config(limits.clone()), Some(make)), pool };
    let mib = 1u64 << 20;
    let ids = [
        source.deploy("workbench.wasm"),
        source.deploy("workbench.wasm"),
        source.deploy("motoko-counter64.wasm"),
        source.deploy("counter-c.wasm"),
    ];
    for (number, id) in (1u8..).zip(&ids[..2]) {
        source.node.update(*id, "heap_fill", Encode!(&(20 * mib), &number).unwrap()).unwrap();
        source.node.update(*id, "inc", none()).unwrap();
    }
    let upgraded = source.node.create();
    source.node.install_wasm(upgraded, Mode::Install, upgrader(1), vec![]).unwrap();
    let snapshots = source.node.executor.snapshots();
    // The state that is fetched has a message and an upgrade that are not over.
    let upgrade = begin_upgrade(&mut source.node, upgraded, 2);
    let spin = source.node.ingress(user(1), ids[2], ids[2], "inc", none());
    let long = Encode!(&40_000_000u64).unwrap();
    let long = source.node.ingress(user(1), ids[0], ids[0], "spin", long);
    let from = source.node.executor.height();
    let (height, root) = (0..60)
        .find_map(|_| {
            source.node.round();
            snapshots.newest().filter(|(height, _)| *height > from)
        })
        .expect("a manifest within sixty rounds");
    let dir = fetch(&source.node, &limits, (height, root), 40 * mib);
    assert!(source.node.result(&spin).is_ok() && source.node.result_if_any(&long).is_none());
    // What happens then: calls between canisters, writes over what was fetched, an upgrade.
    for number in 0..4u64 {
        source.node.ingress(user(1), ids[0], ids[0], "call_inc", Encode!(&ids[1]).unwrap());
        let arg = Encode!(&(number * 100_000), &50_000u64, &9u8).unwrap();
        source.node.ingress(user(1), ids[1], ids[1], "heap_fill_at", arg);
        source.node.round();
    }
    source.node.install_wasm(ids[3], Mode::Upgrade(None), wasm("counter-c.wasm"), none()).unwrap();
    source.node.settle();
    assert!(source.node.result(&upgrade).is_ok());
    let (make, pool) = pools(&limits);
    let mut other = Real {
        node: Node::at(dir.path().to_path_buf(), source.node.config.clone(), Some(make)),
        pool,
    };
    assert_eq!(other.node.executor.height(), height);
    let paused = other.node.executor.state().paused().collect::<Vec<_>>();
    assert_eq!(paused, [ids[0], upgraded]);
    for (batch, verdicts, root) in source.node.log.clone() {
        if batch.height > height {
            assert!(verdicts.is_empty());
            assert_eq!(other.node.execute(batch, &[]).root, root);
        }
    }
    let arg = Encode!(&0u64, &(20 * mib)).unwrap();
    let sums = [&source, &other].map(|real| real.query(upgraded, "sum", vec![]).unwrap());
    assert_eq!(sums[0], sums[1]);
    for id in &ids[..2] {
        let sums =
            [&source, &other].map(|real| real.query(*id, "heap_read_sum", arg.clone()).unwrap());
        assert_eq!(sums[0], sums[1]);
    }
    drop(other);
}
