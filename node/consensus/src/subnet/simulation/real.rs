//! The replicated state itself in a simulated node: an executor over stores in the node's own folder. Only the canisters' code is scripted, as in the tests of
//! execution: the argument of a call is the program it runs.
//!
//! A crash drops the executor; its files stay as the operating system has them. What they hold is real, and so are the threads of the executor: neither
//! may have a say in what comes out.
//!
//! Three canisters are created and installed at the beginning by calls to the management canister. Then every call notes its number in the heap, writes
//! pages and certified data, and about half of them call another canister, which calls a third, traps or answers. A round is small, so work is left over
//! for the next one and queues are part of states and checkpoints. What was executed how often is read from the heaps in the end.

use std::{
    any::Any,
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use candid::CandidType;
use execution::{
    Executor, ExecutorConfig, OfferError, Persistent, SnapshotSource, StateInstaller, complete_install,
};
use genesis::Summary;
use ic_management_canister_types::{CanisterInstallMode, InstallCodeArgs};
use ic_principal::Principal;
use limits::Limits;
use pages::PageStore;
use rand::{Rng, rngs::StdRng};
use state::{
    Batch, BlobStore, CanisterId, CertifiedReader, ChunkId, Fault, Height, ManifestClaim, NodeInfo,
    StateStore, Status, SubnetInfo, certified::SubnetType,
};

use self::script::{CallOp, Op, ScriptSandbox, Spec, encode};
use super::{
    Subnet,
    clients::{Target, workload},
    net,
    replica::{Executed, TookOver},
    toy::CHECKPOINT_EVERY,
};
use crate::{CHUNKS_WANTED_MAX, Certificate, Consensus as _, Demand, StateOffer, StateServer, Want};

#[path = "../../../../execution/tests/common/script.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]
mod script;

/// Canisters of the workload.
pub(super) const CANISTERS: usize = 3;
const FIRST_CANISTER: u64 = 0x100;
/// Stable memory of each: 64 pages.
const STABLE_WASM_PAGES: u64 = 4;
const STABLE_PAGES: u64 = 64;
/// A round is used up by a few messages.
const INSTRUCTIONS_PER_ROUND: u64 = 20_000_000;
/// Rounds after a checkpoint until the tree shows its manifest.
const MANIFEST_LAG: u64 = 3;
/// The call expired in the queue of its canister: nothing of it was executed.
const EXPIRED: u16 = 202;

fn limits() -> Limits {
    let mut limits = Limits::nano().unwrap();
    limits.consensus = net::limits();
    limits.execution.threads = 2;
    limits.execution.instructions_per_round = INSTRUCTIONS_PER_ROUND;
    limits.pages.manifest_interval_rounds = CHECKPOINT_EVERY;
    limits.pages.manifest_lag_rounds = MANIFEST_LAG;
    limits
}

fn config(genesis: &Summary) -> ExecutorConfig {
    let public_key_der = nidkg::public_key_to_der(&genesis.committee().public_key);
    let nodes = genesis.members().iter().map(|member| NodeInfo {
        node_id: member.node_id(),
        public_key_der: genesis::node_key_der(member.node_key()),
    });
    ExecutorConfig {
        limits: Arc::new(limits()),
        subnet: SubnetInfo {
            subnet_id: Principal::self_authenticating(&public_key_der),
            public_key_der: public_key_der.clone(),
            subnet_type: SubnetType::Application,
            canister_ranges: vec![(ExecutorConfig::canister_id(0), ExecutorConfig::canister_id(0xf_ffff))],
            nodes: nodes.collect(),
        },
        root_key_der: public_key_der,
        first_canister: FIRST_CANISTER,
        provisional: true,
        subnet_admins: vec![],
    }
}

/// Who calls.
pub(super) fn user() -> Principal {
    Principal::self_authenticating([1])
}

fn canister(number: usize) -> CanisterId {
    ExecutorConfig::canister_id(FIRST_CANISTER + number as u64)
}

/// See the module.
pub(super) struct Real {
    pub(super) executor: Executor,
    folder: PathBuf,
    lies: Arc<AtomicBool>,
}

impl Real {
    /// The state in a folder, or that of genesis.
    pub(super) fn open(folder: &Path, genesis: &Summary, lies: Arc<AtomicBool>) -> Result<Self, String> {
        let folder = folder.join("replica");
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        complete_install(&folder).map_err(|error| error.to_string())?;
        let state = folder.join("state");
        let store = StateStore::open(&state, 1 << 20).map_err(|error| error.to_string())?;
        let blobs = BlobStore::open(&state.join("blobs"), 16 << 20).map_err(|error| error.to_string())?;
        let index = match store.load().map_err(|error| error.to_string())? {
            Some(checkpoint) => checkpoint
                .memories()
                .and_then(|memories| {
                    memories.map(|record| record.map(|(id, (index, bytes))| (id, index, bytes))).collect()
                })
                .map_err(|error| error.to_string())?,
            None => vec![],
        };
        let config = config(genesis);
        let pages = PageStore::open(folder.join("pages"), &config.limits.pages, index)
            .map_err(|error| error.to_string())?;
        let sandbox = Arc::new(ScriptSandbox::default());
        let executor =
            Executor::open(config, sandbox, Arc::new(pages), store, Arc::new(blobs), Arc::new(Persistent))
                .map_err(|error| error.to_string())?;
        Ok(Self { executor, folder, lies })
    }

    pub(super) fn states(&self) -> Arc<dyn StateServer> {
        Arc::new(States {
            snapshots: self.executor.snapshots(),
            reader: self.executor.reader(),
            lies: self.lies.clone(),
        })
    }

    pub(super) fn execute(&mut self, batch: &Batch, recorded: &[Fault]) -> Result<Executed, String> {
        let result = self.executor.execute(batch, recorded).map_err(|error| error.to_string())?;
        let state = self.executor.state();
        let mut wrong = Vec::new();
        if state.cycles_in_all() != state.subnet.minted {
            wrong.push(format!("height {}: cycles came from nowhere or got lost", batch.height.0));
        }
        let mut answered = Vec::new();
        for id in &result.finished {
            let Some(name) = workload(id) else { continue };
            match state.history.get(id).map(|entry| &entry.status) {
                Some(Status::Replied(_)) => answered.push(name),
                Some(Status::Rejected(reject)) if reject.error_code.0 == EXPIRED => {}
                other => wrong.push(format!("call {name} came to {other:?}")),
            }
        }
        let deployed = state.canisters().filter(|canister| canister.execution.is_some()).count();
        let demand =
            Demand { more: result.more, next_timer: result.next_timer, every_round: result.every_round };
        Ok(Executed { root: result.root, faults: result.verdicts, answered, wrong, deployed, demand })
    }

    /// What the canisters noted: the numbers of calls, and of the calls they had from each other.
    pub(super) fn noted(&self) -> BTreeMap<String, u32> {
        let mut noted = BTreeMap::new();
        for canister in self.executor.state().canisters() {
            let heap = canister.execution.as_ref().and_then(|execution| execution.heap.layout.as_ref());
            for note in heap.map(script::notes).unwrap_or_default() {
                *noted.entry(String::from_utf8_lossy(&note).into_owned()).or_default() += 1;
            }
        }
        noted
    }

    pub(super) fn checkpoint(&mut self) -> Result<(), String> {
        self.executor.checkpoint().map_err(|error| error.to_string())
    }

    pub(super) fn certified(&mut self, certificate: &Certificate) -> Result<(), String> {
        let signature = certificate.signature.0.to_vec();
        self.executor.certify(certificate.height, signature).map(drop).map_err(|error| error.to_string())
    }

    pub(super) async fn take_over(&mut self, subnet: &mut Subnet, offer: StateOffer) -> TookOver {
        let begun = self.executor.local_state().map_err(|error| error.to_string()).and_then(|local| {
            let limits = self.executor.config().limits.clone();
            StateInstaller::begin(&self.folder, offer.height, offer.root, limits, local)
                .map_err(|error| error.to_string())
        });
        let mut installer = match begun {
            Ok(installer) => installer,
            Err(reason) => return TookOver::Failed(reason),
        };
        let mut want = Want::default();
        while !installer.is_complete() {
            let missing = match installer.missing(CHUNKS_WANTED_MAX) {
                Ok(missing) => missing,
                Err(error) => return TookOver::Failed(error.to_string()),
            };
            // It looked through what is here and goes on looking.
            if missing.is_empty() {
                continue;
            }
            let names: BTreeMap<_, _> = missing.iter().map(|chunk| (chunk.to_bytes(), *chunk)).collect();
            want.chunks = missing.iter().map(ChunkId::to_bytes).collect();
            let fetched = match subnet.fetch_chunks(std::mem::take(&mut want)).await {
                Ok(fetched) => fetched,
                Err(_) => return TookOver::Ended,
            };
            if fetched.over {
                return TookOver::Over;
            }
            for (source, name, bytes) in fetched.chunks {
                let Some(chunk) = names.get(&name) else { continue };
                match installer.offer(*chunk, &bytes) {
                    Err(error @ OfferError::Rejected(_)) if error.is_peer_fault() => want.liars.push(source),
                    Err(OfferError::Install(error)) => return TookOver::Failed(error.to_string()),
                    _ => {}
                }
            }
        }
        subnet.adopt().unwrap();
        if let Err(error) = installer.prepare() {
            return TookOver::Failed(error.to_string());
        }
        TookOver::Ready
    }
}

/// What a node shows others.
struct States {
    snapshots: SnapshotSource,
    reader: CertifiedReader,
    lies: Arc<AtomicBool>,
}

impl StateServer for States {
    fn offer(&self) -> Option<(Height, Vec<u8>)> {
        let (height, certificate) = self.reader.latest()?.manifest_certificate()?;
        (self.snapshots.newest()?.0 == height).then_some((height, certificate))
    }

    fn oldest(&self) -> Option<Height> {
        self.snapshots.heights().into_iter().min()
    }

    fn chunk(&self, height: Height, name: &[u8]) -> Result<Vec<u8>, String> {
        let chunk = ChunkId::from_bytes(name).ok_or("that is no name of a chunk")?;
        let mut bytes = self.snapshots.chunk(height, chunk).map_err(|error| error.to_string())?;
        if self.lies.load(Ordering::Relaxed) {
            bytes[0] ^= 1;
        }
        Ok(bytes)
    }

    fn lease(&self, height: Height) -> Option<Box<dyn Any + Send>> {
        self.snapshots.lease(height).map(|lease| Box::new(lease) as _)
    }

    fn read_offer(&self, certificate: &[u8]) -> Option<ManifestClaim> {
        ManifestClaim::read(certificate)
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
pub(super) fn create() -> Target {
    #[derive(CandidType)]
    struct Argument {
        amount: Option<candid::Nat>,
    }
    let method = "provisional_create_canister_with_cycles";
    managed(Principal::management_canister(), method, &Argument { amount: None })
}

/// The call that gives it code.
pub(super) fn install(number: usize) -> Target {
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

/// What the client of this number wants.
pub(super) fn work(rng: &mut StdRng, number: u64) -> Target {
    let first = rng.gen_range(0..CANISTERS);
    let mut program = vec![Op::Note(number.to_string().into()), write(rng, number)];
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
                called.push(Op::Reply(vec![2]));
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
