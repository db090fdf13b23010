//! A node without network: batches go straight into the executor, "signatures" are zeros, and the
//! block log is a vector.
#![allow(dead_code, missing_docs, unreachable_pub, unused_imports, clippy::unwrap_used)]

pub mod script;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use candid::{CandidType, Principal};
use disk::SharedDisk;
use execution::{Closing, Executor, ExecutorConfig, LocalFault, RetryPolicy, RoundResult};
use limits::Limits;
use pages::PageStore;
use sandbox::Sandbox;
use serde::de::DeserializeOwned;
use state::{
    Batch, BlobStore, CanisterId, CanisterState, Fault, Height, Ingress, ModuleHash, Randomness,
    Reject, RequestId, StateStore, Status, SubnetInfo, Time,
    certified::{NodeInfo, SubnetType},
};

pub use script::{CallOp, Op, ScriptSandbox, Spec, encode, page_of};

pub const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * SECOND;

pub fn limits() -> Limits {
    let mut limits = Limits::nano().unwrap();
    limits.pages.checkpoint_interval_rounds = 7;
    limits.pages.manifest_interval_rounds = 7;
    limits
}

/// Slices of `slice` instructions, for messages and installations of forty slices.
pub fn short_slices(slice: u64) -> Limits {
    let mut limits = limits();
    limits.execution.instructions_per_slice = slice;
    limits.execution.instructions_per_message = 40 * slice;
    limits.execution.instructions_per_install = 40 * slice;
    limits.execution.instructions_per_round = 8 * slice;
    limits
}

/// Whether a message or the installation of a canister is paused.
pub fn is_paused(node: &Node, id: CanisterId) -> bool {
    node.executor.state().get(&id).is_some_and(|canister| canister.paused.is_some())
}

/// Sends a call of the management canister about a canister.
pub fn manage<A: CandidType>(
    node: &mut Node,
    about: CanisterId,
    method: &str,
    arg: &A,
) -> RequestId {
    let arg = candid::encode_one(arg).unwrap();
    node.ingress(user(1), Principal::management_canister(), about, method, arg)
}

pub fn user(number: u8) -> Principal {
    Principal::self_authenticating([number])
}

pub fn config(limits: Limits) -> ExecutorConfig {
    let public_key_der = vec![7; 133];
    let threads = limits.execution.threads;
    ExecutorConfig {
        limits: Arc::new(limits),
        subnet: SubnetInfo {
            subnet_id: Principal::self_authenticating(&public_key_der),
            public_key_der: public_key_der.clone(),
            subnet_type: SubnetType::Application,
            canister_ranges: vec![(
                ExecutorConfig::canister_id(0),
                ExecutorConfig::canister_id(0xf_ffff),
            )],
            nodes: vec![],
        },
        root_key_der: public_key_der,
        threads,
        first_canister: 0x100,
        provisional: true,
        outcalls: false,
        subnet_admins: vec![],
        placement: None,
    }
}

/// The same on every node of a subnet of four.
pub fn subnet_config(limits: Limits) -> ExecutorConfig {
    let mut config = config(limits);
    config.subnet.nodes = (0..4)
        .map(|number| NodeInfo {
            node_id: Principal::self_authenticating([200 + number]),
            public_key_der: vec![number; 44],
        })
        .collect();
    config
}

/// A node and the log of its batches.
pub struct Node {
    pub dir: PathBuf,
    /// Disk of records and payloads, unless it is the machine's.
    pub disk: Option<SharedDisk>,
    pub temporary: Option<tempfile::TempDir>,
    pub config: ExecutorConfig,
    /// The sandbox of the canisters, unless another one was made.
    pub sandbox: Arc<ScriptSandbox>,
    pub retry: Arc<Waiting>,
    make: Option<MakeSandbox>,
    pub pages: Arc<PageStore>,
    pub executor: Executor,
    pub log: Vec<(Batch, Vec<Fault>, [u8; 32])>,
    next_request: u64,
    pub waiting: Vec<Ingress>,
    /// For the next batch.
    pub answers: Vec<state::OutcallAnswer>,
    pub seconds_per_round: u64,
    pub last: Option<RoundResult>,
}

type Act = Box<dyn FnMut(&LocalFault) -> Result<(), Closing> + Send>;

/// Waits as a test says, and remembers what for.
#[derive(Default)]
pub struct Waiting {
    pub troubles: Mutex<Vec<LocalFault>>,
    pub over: AtomicU64,
    act: Mutex<Option<Act>>,
}

impl Waiting {
    /// Does this instead of waiting.
    pub fn act(&self, act: impl FnMut(&LocalFault) -> Result<(), Closing> + Send + 'static) {
        *self.act.lock().unwrap() = Some(Box::new(act));
    }

    pub fn troubles(&self) -> Vec<LocalFault> {
        self.troubles.lock().unwrap().clone()
    }
}

impl RetryPolicy for Waiting {
    fn wait(&self, trouble: &LocalFault) -> Result<(), Closing> {
        self.troubles.lock().unwrap().push(trouble.clone());
        match &mut *self.act.lock().unwrap() {
            Some(act) => act(trouble),
            None => Ok(()),
        }
    }

    fn resolved(&self, _: &LocalFault) {
        self.over.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes the sandbox of a node that lives in a directory.
pub type MakeSandbox = Arc<dyn Fn(&Path) -> Arc<dyn Sandbox>>;

fn open(
    (dir, disk): (&Path, Option<&SharedDisk>),
    config: &ExecutorConfig,
    sandbox: Arc<dyn Sandbox>,
    retry: Arc<Waiting>,
) -> (Arc<PageStore>, Executor) {
    let store = match disk {
        Some(disk) => StateStore::open_on(disk.clone(), &dir.join("state"), 1 << 20).unwrap(),
        None => StateStore::open(&dir.join("state"), 1 << 20).unwrap(),
    };
    let blobs = Arc::new(BlobStore::open(&dir.join("state").join("blobs"), 16 << 20).unwrap());
    let index: Vec<_> = match store.load().unwrap() {
        Some(checkpoint) => checkpoint
            .memories()
            .unwrap()
            .map(|record| record.map(|(id, (index, bytes))| (id, index, bytes)).unwrap())
            .collect(),
        None => vec![],
    };
    let (folder, limits) = (dir.join("pages"), &config.limits.pages);
    let pages = match disk {
        Some(disk) => PageStore::open_on(disk.clone(), folder, limits, index),
        None => PageStore::open(folder, limits, index),
    };
    let pages = Arc::new(pages.unwrap());
    let executor =
        Executor::open(config.clone(), sandbox, Arc::clone(&pages), store, blobs, retry).unwrap();
    (pages, executor)
}

impl Node {
    pub fn new() -> Self {
        Self::with(limits())
    }

    pub fn with(limits: Limits) -> Self {
        Self::with_sandbox(limits, None)
    }

    pub fn with_sandbox(limits: Limits, make: Option<MakeSandbox>) -> Self {
        Self::with_config(config(limits), make)
    }

    /// A node that is not alone in its subnet, so that its states have manifests.
    pub fn of_subnet(limits: Limits) -> Self {
        Self::with_config(subnet_config(limits), None)
    }

    pub fn with_config(config: ExecutorConfig, make: Option<MakeSandbox>) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().to_path_buf();
        let mut node = Self::at(dir, config, make);
        node.temporary = Some(temporary);
        node
    }

    /// The node in a directory, whatever is there.
    pub fn at(dir: PathBuf, config: ExecutorConfig, make: Option<MakeSandbox>) -> Self {
        Self::on(None, dir, config, make)
    }

    /// The same with records, payloads and pages on a disk of the test's own.
    pub fn on(
        disk: Option<SharedDisk>,
        dir: PathBuf,
        config: ExecutorConfig,
        make: Option<MakeSandbox>,
    ) -> Self {
        let sandbox = Arc::new(ScriptSandbox::default());
        let used = make
            .as_ref()
            .map_or_else(|| Arc::clone(&sandbox) as Arc<dyn Sandbox>, |make| make(&dir));
        let retry = Arc::new(Waiting::default());
        let (pages, executor) = open((&dir, disk.as_ref()), &config, used, retry.clone());
        Self {
            retry,
            dir,
            disk,
            temporary: None,
            config,
            sandbox,
            make,
            pages,
            executor,
            log: vec![],
            next_request: 0,
            waiting: vec![],
            answers: vec![],
            seconds_per_round: 1,
            last: None,
        }
    }

    pub fn now(&self) -> u64 {
        self.executor.time().0.max(START)
    }

    pub fn ingress(
        &mut self,
        sender: Principal,
        canister_id: Principal,
        effective: Principal,
        method: &str,
        arg: Vec<u8>,
    ) -> RequestId {
        self.next_request += 1;
        let mut id = [0; 32];
        id[..8].copy_from_slice(&self.next_request.to_be_bytes());
        id[8] = 0x5a;
        self.waiting.push(Ingress {
            request_id: RequestId(id),
            sender,
            canister_id,
            effective_canister_id: effective,
            method_name: method.into(),
            arg,
            ingress_expiry: Time(self.now() + 240 * SECOND),
            sender_info: None,
        });
        RequestId(id)
    }

    /// Gives calls from now on ids that no call of the other node had: its history is known here.
    pub fn number_calls_after(&mut self, other: &Node) {
        self.next_request = self.next_request.max(other.next_request);
    }

    /// One round with what waits.
    pub fn round(&mut self) -> RoundResult {
        let batch = self.batch();
        self.execute(batch, &[])
    }

    /// The waiting messages, as the next batch.
    pub fn batch(&mut self) -> Batch {
        let height = Height(self.executor.height().0 + 1);
        Batch {
            height,
            time: Time(self.now() + self.seconds_per_round * SECOND),
            randomness: Randomness::Drawn([height.0 as u8; 32]),
            ingress: std::mem::take(&mut self.waiting),
            outcalls: std::mem::take(&mut self.answers),
            key: None,
            agreed: None,
            queries: None,
        }
    }

    pub fn execute(&mut self, batch: Batch, rejected: &[Fault]) -> RoundResult {
        let result = self.executor.execute(&batch, rejected).unwrap();
        self.executor.certify(batch.height, vec![0; 48]).unwrap();
        self.log.push((batch, result.verdicts.clone(), result.root));
        if self.executor.checkpoint_due() {
            self.executor.checkpoint().unwrap();
        }
        self.check_conservation();
        self.last = Some(result.clone());
        result
    }

    pub fn check_conservation(&self) {
        let state = self.executor.state();
        assert_eq!(
            state.cycles_in_all(),
            state.subnet.minted,
            "cycles came from nowhere or got lost"
        );
    }

    /// Rounds until nothing is left to do.
    pub fn settle(&mut self) {
        for _ in 0..2_000 {
            let RoundResult { more, awaited, .. } = self.round();
            if !more && awaited.is_empty() {
                return;
            }
        }
        panic!("still busy after 2,000 rounds");
    }

    pub fn status(&self, id: &RequestId) -> Status {
        self.executor.state().history.get(id).expect("known").status.clone()
    }

    pub fn result_if_any(&self, id: &RequestId) -> Option<Result<Vec<u8>, Reject>> {
        let known = self.executor.state().history.get(id)?;
        matches!(known.status, Status::Replied(_) | Status::Rejected(_)).then(|| self.result(id))
    }

    pub fn result(&self, id: &RequestId) -> Result<Vec<u8>, Reject> {
        match self.status(id) {
            Status::Replied(bytes) => Ok(bytes),
            Status::Rejected(reject) => Err(reject),
            other => panic!("not answered: {other:?}"),
        }
    }

    /// A management call of a user, answered.
    pub fn manage<A: CandidType>(
        &mut self,
        sender: Principal,
        about: Principal,
        method: &str,
        arg: &A,
    ) -> Result<Vec<u8>, Reject> {
        let arg = candid::encode_one(arg).unwrap();
        let id = self.ingress(sender, Principal::management_canister(), about, method, arg);
        self.settle();
        self.result(&id)
    }

    pub fn create(&mut self) -> CanisterId {
        self.create_maybe_with(None)
    }

    pub fn create_with(&mut self, cycles: u64) -> CanisterId {
        self.create_maybe_with(Some(cycles.into()))
    }

    fn create_maybe_with(&mut self, amount: Option<candid::Nat>) -> CanisterId {
        #[derive(CandidType)]
        struct Argument {
            amount: Option<candid::Nat>,
        }
        let reply = self.manage(
            user(1),
            Principal::management_canister(),
            "provisional_create_canister_with_cycles",
            &Argument { amount },
        );
        let record: ic_management_canister_types::CanisterIdRecord = decode(&reply.unwrap());
        record.canister_id
    }

    pub fn install(
        &mut self,
        id: CanisterId,
        mode: ic_management_canister_types::CanisterInstallMode,
        spec: &Spec,
    ) -> Result<Vec<u8>, Reject> {
        self.install_wasm(id, mode, spec.wasm(), vec![])
    }

    pub fn install_wasm(
        &mut self,
        id: CanisterId,
        mode: ic_management_canister_types::CanisterInstallMode,
        wasm_module: Vec<u8>,
        arg: Vec<u8>,
    ) -> Result<Vec<u8>, Reject> {
        let argument = ic_management_canister_types::InstallCodeArgs {
            mode,
            canister_id: id,
            wasm_module,
            arg,
            sender_canister_version: None,
        };
        self.manage(user(1), id, "install_code", &argument)
    }

    /// A call of any method with any argument, answered.
    pub fn update(
        &mut self,
        id: CanisterId,
        method: &str,
        arg: Vec<u8>,
    ) -> Result<Vec<u8>, Reject> {
        let request = self.ingress(user(1), id, id, method, arg);
        self.settle();
        self.result(&request)
    }

    pub fn deploy(&mut self, spec: &Spec) -> CanisterId {
        let id = self.create();
        self.install(id, ic_management_canister_types::CanisterInstallMode::Install, spec).unwrap();
        id
    }

    pub fn call(&mut self, id: CanisterId, program: &[Op]) -> Result<Vec<u8>, Reject> {
        let request = self.send(id, program);
        self.settle();
        self.result(&request)
    }

    pub fn send(&mut self, id: CanisterId, program: &[Op]) -> RequestId {
        self.ingress(user(1), id, id, "run", encode(program))
    }

    pub fn notes(&mut self, id: CanisterId) -> Vec<String> {
        let bytes = self.call(id, &[Op::ReplyNotes]).unwrap();
        let notes: Vec<Vec<u8>> = postcard::from_bytes(&bytes).unwrap();
        notes.into_iter().map(|note| String::from_utf8_lossy(&note).into_owned()).collect()
    }

    pub fn canister(&self, id: CanisterId) -> &CanisterState {
        self.executor.state().get(&id).unwrap()
    }

    pub fn status_of(
        &mut self,
        id: CanisterId,
    ) -> ic_management_canister_types::CanisterStatusResult {
        let record = ic_management_canister_types::CanisterIdRecord { canister_id: id };
        decode(&self.manage(user(1), id, "canister_status", &record).unwrap())
    }

    /// The file of an installed module.
    pub fn blob_path(&self, module: &ModuleHash) -> PathBuf {
        BlobStore::open(&self.dir.join("state").join("blobs"), 16 << 20).unwrap().path(&module.0)
    }

    /// Numbers of the messages whose payloads are in files.
    pub fn payload_files(&self) -> std::collections::BTreeSet<u64> {
        let entries = std::fs::read_dir(self.dir.join("state").join("messages")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.map(|name| state::payloads::parse_name(&name).unwrap()).collect()
    }

    /// Numbers of those that the state refers to.
    pub fn payloads(&self) -> std::collections::BTreeSet<u64> {
        self.executor.state().payloads().map(|payload| payload.number).collect()
    }

    /// Throws the process away and starts from the disk; the log is repeated from there and must
    /// give the same roots.
    pub fn restart(self) -> Self {
        self.restart_after(|| {})
    }

    /// The same; `between` happens while nothing is open.
    pub fn restart_after(self, between: impl FnOnce()) -> Self {
        let Self {
            dir,
            disk,
            temporary,
            config,
            make,
            retry: _,
            executor,
            pages,
            sandbox,
            log,
            next_request,
            waiting,
            seconds_per_round,
            ..
        } = self;
        drop(executor);
        drop(pages);
        drop(sandbox);
        between();
        let sandbox = Arc::new(ScriptSandbox::default());
        let used = make
            .as_ref()
            .map_or_else(|| Arc::clone(&sandbox) as Arc<dyn Sandbox>, |make| make(&dir));
        let retry = Arc::new(Waiting::default());
        let (pages, executor) = open((&dir, disk.as_ref()), &config, used, retry.clone());
        let mut node = Self {
            retry,
            dir,
            disk,
            temporary,
            config,
            sandbox,
            make,
            pages,
            executor,
            log: vec![],
            next_request,
            waiting,
            answers: vec![],
            seconds_per_round,
            last: None,
        };
        for (batch, verdicts, root) in log {
            if batch.height <= node.executor.height() {
                node.log.push((batch, verdicts, root));
                continue;
            }
            let height = batch.height;
            let result = node.execute(batch, &verdicts);
            assert_eq!(
                result.root, root,
                "the root of height {} differs after the restart",
                height.0
            );
            assert_eq!(result.verdicts, verdicts);
        }
        node
    }
}

pub fn decode<T: CandidType + DeserializeOwned>(bytes: &[u8]) -> T {
    candid::decode_one(bytes).unwrap()
}
