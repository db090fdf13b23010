//! A node in small: a pool of real worker processes, a real page store, and canisters whose state
//! is kept here the way execution keeps it.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ic_principal::Principal;
use pages::{MemoryId, PageStore};
use sandbox::{
    CostTable, Entry, Global, Lane, MessageLimits, Mount, Outcome, Pool, Priority, Request,
    RunState, Sandbox, SandboxConfig, SystemContext, WorkerTrouble,
};
use sha2::{Digest, Sha256};
use state::{Cycles, ModuleHash, Time};
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) struct World {
    pub(crate) pool: Arc<Pool>,
    pub(crate) store: PageStore,
    next_memory: AtomicU64,
    dir: TempDir,
}

#[derive(Clone)]
pub(crate) struct Canister {
    pub(crate) hash: ModuleHash,
    pub(crate) heap: MemoryId,
    pub(crate) stable: MemoryId,
    pub(crate) heap_wasm_pages: u64,
    pub(crate) stable_wasm_pages: u64,
    pub(crate) globals: Vec<Global>,
    pub(crate) balance: Cycles,
}

impl World {
    pub(crate) fn new(exe: impl Into<PathBuf>) -> Self {
        Self::with(exe, |_| {})
    }

    pub(crate) fn with(exe: impl Into<PathBuf>, change: impl FnOnce(&mut SandboxConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let limits = limits::Limits::nano().unwrap();
        let store = PageStore::open(dir.path().join("pages"), &limits.pages, []).unwrap();
        let (paused_spill_bytes, paused_anonymous_bytes) =
            (limits.paused_spill_bytes(), limits.paused_anonymous_bytes());
        let mut config = SandboxConfig {
            paused_spill_bytes,
            paused_anonymous_bytes,
            exe: exe.into(),
            cache_dir: dir.path().join("cache"),
            update_workers: 1,
            query_workers: 1,
            module: limits.module,
            sandbox: limits.sandbox,
            source: None,
            probes: false,
        };
        change(&mut config);
        Self {
            pool: Arc::new(Pool::open(config).unwrap()),
            store,
            next_memory: AtomicU64::new(1),
            dir,
        }
    }

    /// The folder of compiled code, and another name for it.
    pub(crate) fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    pub(crate) fn aside(&self) -> PathBuf {
        self.dir.path().join("cache-aside")
    }

    /// Files of memories cannot be opened while `during` runs.
    pub(crate) fn without_files<T>(&self, during: impl FnOnce() -> T) -> T {
        let (pages, aside) = (self.dir.path().join("pages"), self.dir.path().join("aside"));
        std::fs::rename(&pages, &aside).unwrap();
        let done = during();
        std::fs::rename(&aside, &pages).unwrap();
        done
    }

    /// A new memory that may grow to `bytes`.
    /// A memory that begins as a copy of the newest version of another.
    pub(crate) fn copy(&self, from: MemoryId) -> MemoryId {
        let id = MemoryId(self.next_memory.fetch_add(1, Ordering::Relaxed));
        let layout = self.store.layout(from).unwrap();
        self.store.create_copy(id, layout.base_bytes, &layout, u64::MAX).unwrap();
        id
    }

    pub(crate) fn memory(&self, bytes: u64) -> MemoryId {
        let id = MemoryId(self.next_memory.fetch_add(1, Ordering::Relaxed));
        self.store.create(id, bytes).unwrap();
        id
    }

    /// A canister that has its module and has not run `canister_init`.
    pub(crate) fn empty(&self, wat: &str) -> Canister {
        self.prepared(&wat::parse_str(wat).unwrap())
    }

    /// The same of a module in binary.
    pub(crate) fn prepared(&self, wasm: &[u8]) -> Canister {
        let hash = ModuleHash(Sha256::digest(wasm).into());
        self.pool.prepare(&hash, &wasm, Priority::Round).unwrap_or_else(|error| panic!("{error}"));
        Canister {
            hash,
            heap: self.memory(4 << 30),
            stable: self.memory(1 << 30),
            heap_wasm_pages: 0,
            stable_wasm_pages: 0,
            globals: Vec::new(),
            balance: 10_u128.pow(15),
        }
    }

    /// A canister whose `canister_init` ran well.
    pub(crate) fn install(&self, wat: &str) -> Canister {
        let mut canister = self.empty(wat);
        let outcome = self.run(&mut canister, Entry::Init, |_| {});
        assert!(outcome.result.is_ok(), "{outcome:?}");
        canister
    }

    /// A request as execution would make it.
    pub(crate) fn request(&self, canister: &Canister, entry: Entry) -> Request {
        let keeps = !matches!(
            entry,
            Entry::Query(_) | Entry::CompositeQuery(_) | Entry::InspectMessage { .. }
        );
        let limits = limits();
        let mount = |id, wasm_pages, bytes: u64| Mount {
            layout: self.store.layout(id).unwrap(),
            wasm_pages,
            append: keeps.then(|| self.store.reserve(id, bytes / 4096).unwrap()),
        };
        Request {
            module: canister.hash,
            heap: mount(canister.heap, canister.heap_wasm_pages, limits.heap_dirty_bytes),
            stable: mount(canister.stable, canister.stable_wasm_pages, limits.stable_dirty_bytes),
            entry,
            globals: canister.globals.clone(),
            context: SystemContext { balance: canister.balance, replicated: keeps, ..context() },
            limits,
            keep_token: None,
        }
    }

    /// Runs one message on the first lane of its kind and keeps its changes.
    pub(crate) fn run(
        &self,
        canister: &mut Canister,
        entry: Entry,
        change: impl FnOnce(&mut Request),
    ) -> Outcome {
        self.attempt(canister, entry, change).unwrap()
    }

    /// The same where there may be no outcome.
    pub(crate) fn attempt(
        &self,
        canister: &mut Canister,
        entry: Entry,
        change: impl FnOnce(&mut Request),
    ) -> Result<Outcome, WorkerTrouble> {
        let mut request = self.request(canister, entry);
        change(&mut request);
        let lane = if request.context.replicated { Lane::Update(0) } else { Lane::Query(0) };
        let outcome = self.pool.execute(lane, &request)?;
        self.commit(canister, request, &outcome);
        Ok(outcome)
    }

    /// Applies an outcome as execution does.
    pub(crate) fn commit(&self, canister: &mut Canister, request: Request, outcome: &Outcome) {
        let Some(changes) = &outcome.changes else { return };
        for (mount, runs) in
            [(request.heap, &changes.heap_runs), (request.stable, &changes.stable_runs)]
        {
            if let (Some(target), false) = (mount.append, runs.is_empty()) {
                self.store.commit(&target, runs).unwrap();
            }
        }
        canister.globals = changes.globals.clone();
        canister.heap_wasm_pages = changes.heap_wasm_pages;
        canister.stable_wasm_pages = changes.stable_wasm_pages;
        canister.balance = changes.balance;
    }

    /// Writes what was committed into the base files.
    pub(crate) fn fold(&self) {
        let ticket = self.store.begin_checkpoint().unwrap();
        ticket.sync().unwrap();
        self.store.finish_checkpoint(ticket);
        while !self.store.fold(1 << 30).unwrap().is_idle() {}
    }

    pub(crate) fn update(&self, canister: &mut Canister, name: &str, arg: &[u8]) -> Outcome {
        self.run(canister, Entry::Update(name.into()), |request| request.context.arg = arg.to_vec())
    }

    pub(crate) fn query(&self, canister: &Canister, name: &str, arg: &[u8]) -> Outcome {
        self.run(&mut canister.clone(), Entry::Query(name.into()), |request| {
            request.context.arg = arg.to_vec()
        })
    }
}

pub(crate) fn limits() -> MessageLimits {
    MessageLimits {
        instructions: 2_000_000_000,
        stable_dirty_bytes: 32 * MIB,
        stable_accessed_bytes: 32 * MIB,
        heap_dirty_bytes: 64 * MIB,
        heap_max_bytes: [4 << 30, 4 << 30],
        stable_max_bytes: 1 << 30,
        log_max_bytes: 4096,
    }
}

pub(crate) fn context() -> SystemContext {
    SystemContext {
        canister_id: Principal::from_slice(&[0, 0, 0, 0, 0, 0, 0, 7, 1, 1]),
        subnet_id: Principal::from_slice(&[9; 29]),
        subnet_nodes: 4,
        root_key: vec![3; 133],
        time: Time(1_700_000_000_000_000_000),
        canister_version: 5,
        run_state: RunState::Running,
        controllers: vec![Principal::from_slice(&[4])],
        env_vars: vec![("COLOUR".into(), "green".into()), ("SIZE".into(), "small".into())],
        caller: Principal::from_slice(&[4]),
        caller_info: None,
        arg: Vec::new(),
        deadline: Time(0),
        already_responded: false,
        balance: 10_u128.pow(15),
        freezing_threshold: 10_u128.pow(12),
        cycles_available: 0,
        cycles_refunded: 0,
        global_timer: Time(0),
        data_certificate: None,
        context_instructions: 0,
        replicated: true,
        growable_bytes: 512 * MIB,
        wasm_memory_limit: None,
        calls_max: 100,
        queue_slots_left: std::collections::BTreeMap::new(),
        queue_slots: 10,
        costs: CostTable {
            call_base: 1_000,
            call_per_byte: 2,
            response_reservation: 3_000,
            callback_execution_reservation: 4_000,
            create_canister: 5_000_000_000_000,
            http_request: [10, 20, 30],
            signing: [100, 200, 300],
        },
        payload_max_bytes: 2 * MIB,
        reject_guaranteed_response_calls: false,
    }
}
