//! The executor: the replicated state of this node, moved on batch by batch, certified and
//! checkpointed.
//!
//! ```text
//! execute(batch) -> root        snapshot kept until its signature comes
//! certify(height, signature)    published to readers and queries
//! checkpoint()                  now and then, and when a manifest is owed, between rounds; see
//!                               `checkpoint` and `manifest`
//! ```
//!
//! Heights follow each other; after [`Executor::open`], [`Executor::height`] says behind which one
//! the block log has to be repeated. The executor is used from one thread; its execution threads
//! are its own.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ic_principal::Principal;
use pages::PageStore;
use sandbox::Sandbox;
use state::{
    Batch, BlobStore, CanisterId, CanisterState, CertifiedReader, CertifiedState, Fault, Height,
    HistoryLimits, IngressHistory, MessageError, MessageReader, PayloadStore, ReplicatedState,
    StateStore, SubnetKey, SubnetMetrics, SubnetState, SubnetTree, Time, UncertifiedState,
};
use statesync::{ManifestWorker, SnapshotSource};

use crate::checkpoint::{Folder, SinceCheckpoint};
use crate::config::{ExecutorConfig, FatalError, RoundResult, unwound};
use crate::core::Core;
use crate::lane_pool::LanePool;
use crate::query::QueryService;
use crate::query_stats::{self, QueryTally};
use crate::retry::{ExecutionPoint, RetryPolicy};
use crate::round;
use crate::running::RunningMessages;

/// States kept for their certificate beyond the lag that agreement allows execution: nodes sign at
/// different times, and their shares are under way for some.
const UNCERTIFIED_BEYOND_LAG: usize = 4;

/// Modules that the cache of compiled code is filled with after a start, at most: 33 bytes each.
const FILLED_AGAIN_MAX: usize = 4_096;

/// Bytes of records loaded between two checks that the state's heap has room for more, and the
/// overhead of a record beyond its bytes.
const LOADED_BETWEEN_LOOKS: u64 = 2 << 20;
const LOADED_BESIDE_BYTES: u64 = 512;

/// Files that nothing refers to any more, removed between two rounds; more of them after a round
/// that wrote more.
const REMOVED_AT_ONCE: usize = 256;

/// See the module.
pub struct Executor {
    // Interfaces.
    pub(crate) core: Arc<Core>,
    pub(crate) store: Arc<StateStore>,
    reader: CertifiedReader,
    queries: QueryService,
    tally: Option<Arc<QueryTally>>,
    pool: LanePool,
    pub(crate) folder: Folder,
    pub(crate) manifests: ManifestWorker,
    pub(crate) snapshots: SnapshotSource,

    // State.
    pub(crate) state: ReplicatedState,
    subnet_tree: Arc<SubnetTree>,
    /// Executed and not certified, oldest first.
    uncertified: VecDeque<UncertifiedState>,
    pub(crate) since_checkpoint: SinceCheckpoint,
    /// Checkpoints after which the delta log was nearly full.
    pub(crate) relieved: u64,
    /// The state after the last batch waits for the checkpoint that its manifest is made of.
    pub(crate) manifest_owed: bool,
}

impl Executor {
    /// Loads the newest checkpoint, or begins with an empty state at height 0. `pages` must have
    /// been opened with the memory indexes of the same checkpoint. `retry` waits when this
    /// machine fails a round.
    ///
    /// # Errors
    /// When what is on disk cannot be read or does not fit together.
    pub fn open(
        config: ExecutorConfig,
        sandbox: Arc<dyn Sandbox>,
        pages: Arc<PageStore>,
        store: StateStore,
        blobs: Arc<BlobStore>,
        retry: Arc<dyn RetryPolicy>,
    ) -> Result<Self, FatalError> {
        let threads = usize::try_from(config.threads).unwrap_or(1);
        let subnet_tree = Arc::new(SubnetTree::new(config.subnet.clone()));
        let folder = store.folder().join(PAYLOADS);
        let payloads = Arc::new(PayloadStore::open_on(store.disk().clone(), &folder)?);
        let stores = (blobs, payloads);
        let core = Arc::new(Core::new(config, sandbox, Arc::clone(&pages), stores, retry));
        let state = load(&core, &store)?;
        retain_payloads(&core, &state)?;
        let reader = CertifiedReader::new();
        let folder = Folder::start(pages, &core.limits().pages)?;
        let store = Arc::new(store);
        let snapshots = SnapshotSource::default();
        let manifests = ManifestWorker::start(Arc::clone(&store), snapshots.clone())?;
        let mut executor = Self {
            queries: QueryService::new(Arc::clone(&core), reader.clone()),
            tally: None,
            core,
            store,
            reader,
            pool: LanePool::new(threads)?,
            folder,
            manifests,
            snapshots,
            state,
            subnet_tree,
            uncertified: VecDeque::new(),
            since_checkpoint: SinceCheckpoint::default(),
            relieved: 0,
            manifest_owed: false,
        };
        executor.take_key();
        executor.resume_manifest()?;
        Ok(executor)
    }

    /// The subnet's nodes are those of the state, if it lists them.
    fn take_key(&mut self) {
        let Some(key) = &self.state.subnet.key else { return };
        self.core.set_subnet_nodes(key.nodes.len());
        self.subnet_tree = Arc::new(SubnetTree::holding(self.subnet_tree.info().clone(), key));
    }

    /// The committee that holds the subnet's key as of [`Executor::height`]; `None` while it is the
    /// one of the ceremony.
    pub fn subnet_key(&self) -> Option<&SubnetKey> {
        self.state.subnet.key.as_ref()
    }

    /// Height of the state.
    pub fn height(&self) -> Height {
        self.state.subnet.height
    }

    /// Agreed time of the state.
    pub fn time(&self) -> Time {
        self.state.subnet.time
    }

    /// Root of the state after [`Executor::height`]; zeros before the first batch.
    pub fn root(&self) -> [u8; 32] {
        self.state.subnet.root
    }

    /// Executes the next batch. `rejected` are the messages of it that operators ruled to be
    /// rejected (message `n` of canister `aaaaa-aa` is the `n`th management call that the round
    /// serves); almost always there are none. Waits as long as this machine cannot execute it.
    ///
    /// # Errors
    /// When the node cannot continue, or closes while it waits; no message is lost by that, for the
    /// batch is in the block log. The executor must not be used any more then.
    pub fn execute(
        &mut self,
        batch: &Batch,
        rejected: &[Fault],
    ) -> Result<RoundResult, FatalError> {
        let expected = self.height().0 + 1;
        if batch.height.0 != expected {
            return Err(FatalError::Height { found: batch.height.0, expected });
        }
        // A node alone may be ordered to set its time back; members agree on times that increase.
        let sets_back = batch.agreed.is_none() && batch.time < self.time();
        if batch.time <= self.time() && self.height().0 > 0 && !sets_back {
            return Err(FatalError::Time {
                height: batch.height.0,
                found: batch.time.0,
                previous: self.time().0,
            });
        }
        if self.manifest_owed {
            return Err(FatalError::ManifestOwed(self.height().0));
        }
        self.make_room(batch.height)?;
        self.await_state_heap(batch.height)?;
        // A state that others sign too late, or that is executed again, is covered by the
        // certificate of a later one.
        let kept = usize::try_from(self.core.limits().consensus.execution_lag_blocks)
            .unwrap_or(usize::MAX);
        while self.uncertified.len() > kept.saturating_add(UNCERTIFIED_BEYOND_LAG) {
            self.uncertified.pop_front();
        }
        let nodes = match &self.state.subnet.key {
            Some(key) => &key.nodes,
            None => &self.core.config.subnet.nodes,
        };
        // The committee that holds the key from here on makes blocks from the next one on.
        self.state.subnet.node_metrics.record_round(batch.time, batch.agreed, nodes);
        let members: Vec<_> = nodes.iter().map(|node| node.node_id).collect();
        query_stats::account(&mut self.state, batch, &members, &self.core.limits().execution);
        if let Some(key) = &batch.key {
            self.state.subnet.key = Some(key.clone());
            self.take_key();
        }
        let rejected = rejected.iter().cloned().collect();
        let (core, pool, state) = (&self.core, &self.pool, &mut self.state);
        let work = unwound(|| round::run(core, pool, state, batch, rejected))
            .map_err(|what| FatalError::Defect { height: batch.height.0, what })??;
        if let Some(tally) = &self.tally {
            tally.executed(batch);
        }
        self.release_payloads();
        self.since_checkpoint.add(&work);
        self.advance_manifest(&work)?;
        let root = self.snapshot();
        Ok(RoundResult {
            root,
            finished: self.state.history.take_finished(),
            verdicts: work.verdicts,
            instructions: work.instructions,
            messages: work.messages,
            more: work.more,
            next_timer: [
                self.state.next_timer(batch.time),
                self.state.next_deadline(),
                // The first time at which it is over.
                self.state.subnet.outcalls.next_end().map(|end| Time(end.0.saturating_add(1))),
            ]
            .into_iter()
            .flatten()
            .min(),
            awaited: self.state.subnet.awaited_roots(),
            every_round: !self.state.heartbeats().is_empty(),
            manifest: self.manifest_owed,
        })
    }

    /// The round counts: payloads of messages that are over can go.
    fn release_payloads(&mut self) {
        for (number, bytes) in self.state.take_gone_payloads() {
            self.core.payloads.release(number, bytes);
        }
        self.core.payloads.sweep(REMOVED_AT_ONCE);
    }

    /// Waits until the state's heap has room for what the round of `height` leaves behind.
    fn await_state_heap(&self, height: Height) -> Result<(), FatalError> {
        if state::state_heap::ready().is_ok() {
            return Ok(());
        }
        let place = ExecutionPoint { height, message: None };
        self.core
            .attempts(place)
            .until(|| state::state_heap::ready().map_err(FatalError::StateHeap))
    }

    pub(crate) fn snapshot(&mut self) -> [u8; 32] {
        let totals = *self.state.totals();
        let metrics = SubnetMetrics {
            num_canisters: self.state.len(),
            canister_state_bytes: totals.memory_used,
            consumed_cycles_total: (totals.consumed + self.state.subnet.consumption.total())
                .saturated(),
            update_transactions_total: self.state.subnet.update_transactions,
        };
        let (height, time) = (self.height(), self.time());
        let (manifest, tree) =
            (self.state.subnet.manifest.certified(), Arc::clone(&self.subnet_tree));
        let (canisters, history) = self.state.parts_mut();
        let snapshot =
            UncertifiedState::new(height, time, tree, metrics, canisters, history, manifest);
        let root = snapshot.root();
        self.state.subnet.root = root;
        self.uncertified.push_back(snapshot);
        root
    }

    /// Publishes the state of `height`, signed. Heights in order; skipped ones are dropped. `None`
    /// if the state was dropped already, because the certificate came late.
    ///
    /// # Errors
    /// When the height was not executed.
    pub fn certify(
        &mut self,
        height: Height,
        signature: Vec<u8>,
    ) -> Result<Option<Arc<CertifiedState>>, FatalError> {
        if self.uncertified.front().map_or(self.height(), |oldest| Height(oldest.height().0 - 1))
            >= height
        {
            return Ok(None);
        }
        while self.uncertified.front().is_some_and(|state| state.height() < height) {
            self.uncertified.pop_front();
        }
        match self.uncertified.pop_front() {
            Some(state) if state.height() == height => {
                let state = Arc::new(state.certify(signature));
                if let Some((height, root)) = state.manifest() {
                    self.snapshots.certified(height, root);
                }
                self.reader.publish(Arc::clone(&state));
                Ok(Some(state))
            }
            other => {
                let expected = other.as_ref().map_or(0, |state| state.height().0);
                if let Some(state) = other {
                    self.uncertified.push_front(state);
                }
                Err(FatalError::CertificateHeight { found: height.0, expected })
            }
        }
    }

    /// The messages that run at the moment.
    pub fn running(&self) -> RunningMessages {
        self.core.running.clone()
    }

    /// Where the newest certified state can be read.
    pub fn reader(&self) -> CertifiedReader {
        self.reader.clone()
    }

    /// Keeps replies of queries, as many as `pool` has room for. To be called before
    /// [`Executor::queries`].
    pub fn cache_queries(&mut self, pool: accounting::Pool) {
        self.queries.cache_in(pool);
    }

    /// Counts queries of clients for `node`, which is this one. To be called before
    /// [`Executor::queries`].
    pub fn count_queries(&mut self, node: Principal) -> Arc<QueryTally> {
        let limits = &self.core.limits().execution;
        let tally = Arc::new(QueryTally::new(node, limits, self.height()));
        self.queries.count_in(Arc::clone(&tally));
        self.tally = Some(Arc::clone(&tally));
        tally
    }

    /// Where queries are answered.
    pub fn queries(&self) -> QueryService {
        self.queries.clone()
    }

    /// Compiles modules before rounds ask for them, within `compilations`.
    pub fn compile_ahead(&self, compilations: accounting::Pool) -> crate::CompileAhead {
        crate::CompileAhead::new(Arc::clone(&self.core), self.reader.clone(), compilations)
    }

    /// The modules that most canisters have, those first: what the cache of compiled code is filled
    /// with again, should it have lost them.
    pub fn most_used_modules(&self) -> crate::ModulesAgain {
        let mut most = BTreeSet::new();
        for (module, count) in self.state.modules() {
            most.insert((Reverse(count), *module));
            if most.len() > FILLED_AGAIN_MAX {
                most.pop_last();
            }
        }
        crate::ModulesAgain(most.into_iter().map(|(_, module)| (module, 0)).collect())
    }

    /// The limits, prices and principals this executor goes by.
    pub fn config(&self) -> &ExecutorConfig {
        &self.core.config
    }

    /// The replicated state, read-only.
    pub fn state(&self) -> &ReplicatedState {
        &self.state
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // Remaining holders of the source find nothing in it, and the files can be closed.
        self.snapshots.close();
    }
}

/// The folder of payloads in that of the metadata store.
pub(crate) const PAYLOADS: &str = "messages";

/// Looks whether the payloads are there that the state refers to, and removes all others.
fn retain_payloads(core: &Core, state: &ReplicatedState) -> Result<(), FatalError> {
    let _here = state::state_heap::enter();
    let live = state.payloads().map(|payload| (payload.number, payload.bytes)).collect();
    Ok(core.payloads.keep_only(&live, state.subnet.next_message)?)
}

/// In the order of the tree.
fn load(core: &Core, store: &StateStore) -> Result<ReplicatedState, FatalError> {
    let limits = &core.limits().subnet;
    let history_limits = HistoryLimits {
        bytes_max: limits.ingress_history_bytes,
        unfinished_max: limits.ingress_unfinished_max,
    };
    let response_bytes = limits.message_payload_bytes;
    let Some(checkpoint) = store.load()? else {
        let subnet =
            SubnetState { next_canister: core.config.first_canister, ..SubnetState::default() };
        return Ok(ReplicatedState::new(
            subnet,
            IngressHistory::new(history_limits),
            [],
            response_bytes,
        ));
    };
    let subnet = state::state_heap::within(|| postcard::from_bytes(&checkpoint.metadata));
    let subnet: SubnetState = subnet.map_err(|error| FatalError::Record {
        what: "the subnet".into(),
        reason: error.to_string(),
    })?;
    let next_message = subnet.next_message;
    let mut room = RoomWhileLoading::default();
    let calls = checkpoint.history()?.map(|record| room.check(record?));
    let history = IngressHistory::load::<FatalError>(history_limits, calls)?;
    let mut failed = None;
    let mut records = checkpoint.canisters()?;
    let mut messages = checkpoint.messages();
    // One at a time: all of them together may be more than the memory.
    let canisters = std::iter::from_fn(|| {
        let record = records.next()?.map_err(FatalError::from);
        let record = record.and_then(|record| room.check(record));
        let canister = record.and_then(|(id, bytes)| canister_of_record(core, id, &bytes));
        let with_messages = canister.and_then(|mut canister| {
            load_messages(&mut canister, &mut messages, &mut room, next_message)?;
            Ok(canister)
        });
        match with_messages {
            Ok(canister) => Some(canister),
            Err(error) => {
                failed = Some(error);
                None
            }
        }
    });
    let state = ReplicatedState::new(subnet, history, canisters, response_bytes);
    match failed {
        Some(error) => Err(error),
        None => {
            messages.finish()?;
            Ok(state)
        }
    }
}

/// Puts the messages that have records of their own into the canister's queues, one at a time.
fn load_messages(
    canister: &mut CanisterState,
    messages: &mut MessageReader<'_>,
    room: &mut RoomWhileLoading,
    next_message: u64,
) -> Result<(), FatalError> {
    let id = canister.id;
    let unreadable = |error: MessageError| FatalError::Record {
        what: format!("the messages of canister {id}"),
        reason: error.to_string(),
    };
    let missing: Vec<u64> = canister.queues.missing().collect();
    for number in missing {
        let (number, record) = room.check((number, messages.take(number)?))?;
        canister.queues.load_record(&id, number, &record).map_err(unreadable)?;
    }
    canister.queues.finish_loading(next_message, &id).map_err(unreadable)
}

/// Looks whether the state's heap has room for what is loaded. A small state is loaded without, so
/// that a node with a full disk starts and says so.
#[derive(Default)]
struct RoomWhileLoading {
    /// Since the last look.
    loaded_bytes: u64,
}

impl RoomWhileLoading {
    fn check<K>(&mut self, record: (K, Vec<u8>)) -> Result<(K, Vec<u8>), FatalError> {
        self.loaded_bytes += record.1.len() as u64 + LOADED_BESIDE_BYTES;
        if self.loaded_bytes >= LOADED_BETWEEN_LOOKS {
            self.loaded_bytes = 0;
            state::state_heap::ready().map_err(FatalError::StateHeap)?;
        }
        Ok(record)
    }
}

fn canister_of_record(
    core: &Core,
    id: CanisterId,
    bytes: &[u8],
) -> Result<CanisterState, FatalError> {
    let unreadable = |reason: String| FatalError::Record { what: format!("canister {id}"), reason };
    let mut canister: CanisterState = state::state_heap::within(|| postcard::from_bytes(bytes))
        .map_err(|error| unreadable(error.to_string()))?;
    if canister.id != id {
        return Err(unreadable(format!("it is the record of {}", canister.id)));
    }
    if let Some(execution) = canister.execution.as_mut() {
        for memory in [&mut execution.heap, &mut execution.stable] {
            memory.layout = Some(core.pages.layout(memory.id)?);
        }
    }
    Ok(canister)
}
