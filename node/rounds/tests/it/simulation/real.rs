//! The replicated state itself in a simulated node: an executor over stores in the node's own
//! folder. Only the canisters' code is scripted, as in the tests of execution: the argument of a
//! call is the program it runs.
//!
//! A crash drops the executor. A power cut keeps the synced part of its files and any part of the
//! rest. The contents are real, and so are the threads of the executor: neither may affect the
//! result.
//!
//! Three canisters are created and installed at the beginning by calls to the management canister.
//! Then every call records its number in the heap, writes pages and certified data, and about half
//! of them call another canister, which calls a third, traps or answers. A round is small, so work
//! is left over for the next one and queues are part of states and checkpoints. The number of
//! executions of each call is read from the heaps at the end.

use std::{
    any::Any,
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use candid::CandidType;
use consensus::{FinalisedBatch, OfferedState, StateServer};
use disk::{SharedDisk, SimulatedDisk};
use execution::{Executor, ExecutorConfig, Persistent, RoundResult};
use genesis::Summary;
use ic_management_canister_types::{CanisterInstallMode, InstallCodeArgs};
use ic_principal::Principal;
use limits::Limits;
use pages::PageStore;
use rand::{Rng, rngs::StdRng};
use rounds::States;
use state::{
    BlobStore, CanisterId, Height, ManifestClaim, NodeInfo, StateStore, Status, SubnetInfo,
    certified::SubnetType,
};
use statesync::complete_install_on;

pub(crate) use self::script::ScriptSandbox;
use self::script::{CallOp, Op, Spec, encode};
use crate::simulation::{
    EPOCH,
    clients::{Target, workload},
    net,
    probe::{Audit, AuditedReplica},
    toy::CHECKPOINT_EVERY,
};

#[path = "../../../../execution/tests/common/script.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]
mod script;

/// Canisters of the workload.
pub(crate) const CANISTERS: usize = 3;
/// With those that are brought into being later.
pub(crate) const CANISTERS_MAX: usize = 8;
const FIRST_CANISTER: u64 = 0x100;
/// Stable memory of each: 64 pages.
const STABLE_WASM_PAGES: u64 = 4;
const STABLE_PAGES: u64 = 64;
/// A round is used up by a few messages.
const INSTRUCTIONS_PER_ROUND: u64 = 20_000_000;
/// A fourth of the calls takes several: their messages are paused over checkpoints, crashes and
/// states that are fetched.
const INSTRUCTIONS_PER_SLICE: u64 = 4_000_000;
/// Rounds after a checkpoint until the tree shows its manifest.
const MANIFEST_LAG: u64 = 3;
/// Rounds of a period: every member makes some blocks in each.
const QUERY_STATS_PERIOD: u64 = 10;
/// The call expired in the queue of its canister: nothing of it was executed.
const EXPIRED: u16 = 202;

/// A delta log that is full after a few rounds without a checkpoint, and readers of old states that
/// are cut off at once.
fn tight(limits: &mut Limits) {
    const MIB: u64 = 1 << 20;
    limits.pages.delta_capacity_bytes = 6 * MIB;
    limits.pages.delta_reserve_bytes = 4 * MIB;
    limits.pages.pinned_delta_bytes = MIB / 2;
    limits.pages.pin_seconds = 0;
}

fn limits(is_tight: bool) -> Limits {
    let mut limits = Limits::nano().unwrap();
    if is_tight {
        tight(&mut limits);
    }
    limits.consensus = net::limits(EPOCH);
    limits.execution.threads = 2;
    limits.execution.instructions_per_round = INSTRUCTIONS_PER_ROUND;
    limits.execution.instructions_per_slice = INSTRUCTIONS_PER_SLICE;
    limits.pages.manifest_interval_rounds = CHECKPOINT_EVERY;
    limits.pages.manifest_lag_rounds = MANIFEST_LAG;
    limits.execution.query_stats_period_rounds = QUERY_STATS_PERIOD;
    limits
}

fn config(genesis: &Summary, is_tight: bool) -> ExecutorConfig {
    let public_key_der = nidkg::public_key_to_der(&genesis.committee().public_key);
    let nodes = genesis.members().iter().map(|member| NodeInfo {
        node_id: member.node_id(),
        public_key_der: genesis::node_key_der(member.node_key()),
    });
    let limits = limits(is_tight);
    ExecutorConfig {
        threads: limits.execution.threads,
        limits: Arc::new(limits),
        subnet: SubnetInfo {
            subnet_id: Principal::self_authenticating(&public_key_der),
            public_key_der: public_key_der.clone(),
            subnet_type: SubnetType::Application,
            canister_ranges: vec![(
                ExecutorConfig::canister_id(0),
                ExecutorConfig::canister_id(0xf_ffff),
            )],
            nodes: nodes.collect(),
        },
        root_key_der: public_key_der,
        first_canister: FIRST_CANISTER,
        provisional: true,
        outcalls: false,
        subnet_admins: vec![],
        placement: None,
    }
}

/// Sender of every simulated call.
pub(crate) fn user() -> Principal {
    Principal::self_authenticating([1])
}

pub(crate) fn canister(number: usize) -> CanisterId {
    ExecutorConfig::canister_id(FIRST_CANISTER + number as u64)
}

/// The executor of a node whose data are in `folder` of its disk, at genesis or at its newest
/// checkpoint.
pub(crate) fn open(
    disk: &SimulatedDisk,
    folder: &Path,
    genesis: &Summary,
    is_tight: bool,
    sandbox: Arc<ScriptSandbox>,
) -> Executor {
    std::fs::create_dir_all(folder).unwrap();
    complete_install_on(disk, folder).unwrap();
    let state = folder.join("state");
    let disk: SharedDisk = Arc::new(disk.clone());
    let store = StateStore::open_on(disk.clone(), &state, 1 << 20).unwrap();
    let blobs = BlobStore::open_on(disk.clone(), &state.join("blobs"), 16 << 20).unwrap();
    let index = match store.load().unwrap() {
        Some(checkpoint) => {
            let memories = checkpoint.memories().unwrap();
            memories
                .map(|record| record.map(|(id, (index, bytes))| (id, index, bytes)).unwrap())
                .collect()
        }
        None => vec![],
    };
    let config = config(genesis, is_tight);
    let pages =
        PageStore::open_on(disk, folder.join("pages"), &config.limits.pages, index).unwrap();
    Executor::open(config, sandbox, Arc::new(pages), store, Arc::new(blobs), Arc::new(Persistent))
        .unwrap()
}

impl AuditedReplica for Executor {
    fn audit(&self, finalised: &FinalisedBatch, result: &RoundResult) -> Audit {
        let state = self.state();
        let mut wrong = Vec::new();
        if state.cycles_in_all() != state.subnet.minted {
            let height = finalised.batch.height.0;
            wrong.push(format!("height {height}: cycles came from nowhere or got lost"));
        }
        let mut answered = Vec::new();
        for id in &result.finished {
            let Some(name) = workload(id) else { continue };
            match state.history.get(id).map(|entry| &entry.status) {
                Some(Status::Replied(_)) => answered.push(name),
                Some(Status::Rejected(reject)) if reject.error_code.0 == EXPIRED => {}
                other => wrong.push(format!("call {name} ended as {other:?}")),
            }
        }
        let deployed = state.canisters().filter(|canister| canister.execution.is_some()).count();
        let queries = state.canisters().map(|canister| canister.query_totals.calls).sum();
        Audit { answered, wrong, deployed, queries }
    }

    /// What the canisters noted: the numbers of calls, and of the calls they had from each other.
    fn executed(&self) -> BTreeMap<String, u32> {
        let mut noted = BTreeMap::new();
        for canister in self.state().canisters() {
            let heap =
                canister.execution.as_ref().and_then(|execution| execution.heap.layout.as_ref());
            for note in heap.map(script::notes).unwrap_or_default() {
                *noted.entry(String::from_utf8_lossy(&note).into_owned()).or_default() += 1;
            }
        }
        noted
    }

    fn is_hashing(&self) -> bool {
        !self.manifest_owed() && self.state().subnet.manifest.pending().is_some()
    }
}

/// Data that a node serves to others; it may falsify them.
pub(crate) struct FalsifyingStates {
    pub(crate) states: States,
    pub(crate) lies: Arc<AtomicBool>,
}

impl StateServer for FalsifyingStates {
    fn offer(&self) -> Option<OfferedState> {
        self.states.offer()
    }

    fn oldest(&self) -> Option<Height> {
        self.states.oldest()
    }

    fn chunk(&self, height: Height, name: &[u8]) -> Result<Vec<u8>, String> {
        let mut bytes = self.states.chunk(height, name)?;
        if self.lies.load(Ordering::Relaxed) {
            bytes[0] ^= 1;
        }
        Ok(bytes)
    }

    fn lease(&self, height: Height) -> Option<Box<dyn Any + Send>> {
        self.states.lease(height)
    }

    fn read_offer(&self, certificate: &[u8]) -> Option<ManifestClaim> {
        self.states.read_offer(certificate)
    }
}

fn managed(effective: Principal, method: &str, argument: &impl CandidType) -> Target {
    Target {
        canister: Principal::management_canister(),
        effective,
        method: method.into(),
        arg: candid::encode_one(argument).unwrap(),
    }
}

/// The call that brings a canister into being.
pub(crate) fn create() -> Target {
    #[derive(CandidType)]
    struct Argument {
        amount: Option<candid::Nat>,
    }
    let method = "provisional_create_canister_with_cycles";
    managed(Principal::management_canister(), method, &Argument { amount: None })
}

/// The call that gives it code.
pub(crate) fn install(number: usize) -> Target {
    let spec = Spec {
        name: format!("canister {number}"),
        init: vec![Op::Grow(STABLE_WASM_PAGES)],
        ..Spec::default()
    };
    let argument = InstallCodeArgs {
        mode: CanisterInstallMode::Install,
        canister_id: canister(number),
        wasm_module: spec.wasm(),
        arg: vec![],
        sender_canister_version: None,
    };
    managed(canister(number), "install_code", &argument)
}

/// The request of the client with this number.
pub(crate) fn work(rng: &mut StdRng, number: u64) -> Target {
    let first = rng.gen_range(0..CANISTERS);
    let mut program = if rng.gen_bool(0.2) { vec![Op::Die] } else { vec![] };
    program.extend([Op::Note(number.to_string().into()), write(rng, number)]);
    program.push(Op::Certify(number.to_be_bytes().to_vec()));
    if rng.gen_bool(0.3) {
        program.push(Op::Spend(rng.gen_range(0..INSTRUCTIONS_PER_ROUND)));
    }
    if rng.gen_bool(0.5) {
        // Another or itself.
        let second = rng.gen_range(0..CANISTERS);
        let mut called = vec![write(rng, number)];
        match rng.gen_range(0..4) {
            0 => called.push(Op::Trap("as it was told".into())),
            1 => {
                called.push(Op::Note(format!("{number} by way of another").into()));
                let third = vec![Op::Note(format!("{number} at last").into()), Op::Reply(vec![3])];
                called.push(CallOp::new(canister(rng.gen_range(0..CANISTERS)), &third).op());
            }
            _ => {
                called.push(Op::Note(format!("{number} by way of another").into()));
                // Some are so large that their payload is kept in a file while they wait.
                let bytes = if rng.gen_bool(0.3) { 20_000 } else { 1 };
                called.push(Op::Reply(vec![2; bytes]));
            }
        }
        program.push(CallOp::new(canister(second), &called).op());
    } else {
        program.push(Op::Reply(vec![1]));
    }
    let id = canister(first);
    Target { canister: id, effective: id, method: "run".into(), arg: encode(&program) }
}

fn write(rng: &mut StdRng, seed: u64) -> Op {
    let pages = rng.gen_range(1..8);
    Op::Write(rng.gen_range(0..STABLE_PAGES - pages), pages, seed)
}
