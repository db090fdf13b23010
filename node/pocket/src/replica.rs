//! The replicated state of one instance, and its rounds.
//!
//! A round is what it is for a node alone: the calls that wait, as many as fit a block; a time
//! after that of the round before; randomness that no canister could know before. Only where they
//! come from differs: the time is the instance's, which a test sets, and a nanosecond after the
//! round before where it did not increase; the randomness is a hash of the instance's seed and the
//! height, so that a test that is run again sees the same. Nothing is logged: a state that is to
//! stay is packed when the instance is deleted (`state_archive`).

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use execution::{
    Closing, Executor, ExecutorConfig, LocalFault, QueryService, QueryTally, RetryPolicy,
    RoundResult,
};
use gateway::Waiters;
use ic_principal::Principal;
use lifecycle::Stop;
use pages::PageStore;
use state::{
    Batch, BlobStore, CertifiedReader, Height, Ingress, Outcall, OutcallId, Randomness, RequestId,
    StateStore, SubnetInfo, SubnetType, Time,
};

use crate::{
    bounds::{Bounds, CALLS_WAITING, CALLS_WAITING_BYTES},
    cli::Client,
    keys::{SubnetKeys, node_info, seed},
    outcalls::Answers,
    sandboxes::Sandboxes,
    scratch::ScratchDisk,
    subnets::{FIRST_GIVEN, Subnets},
};

/// Wait before a step is tried again that this machine failed; it doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Calls of users that wait for a round. Shared with the endpoints, which add to them.
#[derive(Debug, Default)]
pub(crate) struct IngressQueue(Mutex<Calls>);

#[derive(Debug, Default)]
struct Calls {
    calls: VecDeque<Ingress>,
    bytes: u64,
}

impl IngressQueue {
    /// Adds a call; `false` if it waits already.
    ///
    /// # Errors
    /// When there is no room, naming the limit.
    pub(crate) fn add(&self, call: Ingress) -> Result<bool, String> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.calls.iter().any(|known| known.request_id == call.request_id) {
            return Ok(false);
        }
        let bytes = call.accounted_bytes();
        if waiting.calls.len() >= CALLS_WAITING || waiting.bytes + bytes > CALLS_WAITING_BYTES {
            return Err(format!(
                "{} calls of {} bytes wait for a round of the instance, the most are \
                 calls_waiting = {CALLS_WAITING} and calls_waiting_bytes = {CALLS_WAITING_BYTES}",
                waiting.calls.len(),
                waiting.bytes
            ));
        }
        waiting.bytes += bytes;
        waiting.calls.push_back(call);
        Ok(true)
    }

    pub(crate) fn has(&self, id: &RequestId) -> bool {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.calls.iter().any(|call| call.request_id == *id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).calls.is_empty()
    }

    /// The oldest, as many as one round takes.
    fn take(&self, messages: u64, bytes: u64) -> Vec<Ingress> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = Vec::new();
        let mut sum = 0;
        while let Some(next) = waiting.calls.front().map(Ingress::accounted_bytes) {
            // One that is larger than a block by itself is taken alone: it was checked before.
            let fits = taken.is_empty() || sum + next <= bytes;
            if !fits || taken.len() as u64 >= messages {
                break;
            }
            sum += next;
            waiting.bytes -= next;
            taken.extend(waiting.calls.pop_front());
        }
        taken
    }
}

/// Data shared by an instance and its endpoints. Cheap to clone.
#[derive(Clone)]
pub(crate) struct InstanceContext {
    pub(crate) subnets: Arc<Subnets>,
    pub(crate) waiting: Arc<IngressQueue>,
    /// Answers to HTTPS outcalls that wait for a round.
    pub(crate) answers: Arc<Answers>,
    pub(crate) waiters: Waiters,
    /// The instance's time, in nanoseconds since 1970.
    pub(crate) time: Arc<AtomicU64>,
    /// The instance is being deleted: what waits for this machine gives up.
    pub(crate) stop: Stop,
    pub(crate) client: Client,
}

impl InstanceContext {
    pub(crate) fn now(&self) -> Time {
        Time(self.time.load(Ordering::Acquire))
    }
}

/// Waits for this machine as long as the instance is there.
struct InstanceRetryPolicy(Stop);

impl RetryPolicy for InstanceRetryPolicy {
    fn wait(&self, trouble: &LocalFault) -> Result<(), Closing> {
        let doubled = 2u32.saturating_pow(trouble.attempt.saturating_sub(1));
        tracing::warn!(%trouble, "a round waits");
        let is_stop = self.0.wait(FIRST_WAIT.saturating_mul(doubled).min(LONGEST_WAIT));
        if is_stop { Err(Closing) } else { Ok(()) }
    }

    fn resolved(&self, trouble: &LocalFault) {
        tracing::info!(%trouble, "the fault is over: the round continues");
    }
}

pub(crate) struct Replica {
    executor: Executor,
    tally: Arc<QueryTally>,
    keys: SubnetKeys,
    pub(crate) root_seed: [u8; 32],
    pub(crate) shared: InstanceContext,
    messages_max: u64,
    bytes_max: u64,
    expiry_seconds: u64,
    /// Calls that clients submitted so far.
    nonces: u64,
    /// Time of the last round, or of the instance before its first one.
    last_round: Time,
}

/// Parts that the endpoints read.
#[derive(Clone)]
pub(crate) struct Views {
    pub(crate) queries: QueryService,
    pub(crate) reader: CertifiedReader,
}

impl Replica {
    /// Opens the state in `folder`, which is empty at first. `root_seed` is what the key is made of
    /// that certifies it.
    pub(crate) fn open(
        folder: &Path,
        root_seed: [u8; 32],
        shared: InstanceContext,
        sandboxes: &Sandboxes,
        bounds: &Bounds,
    ) -> Result<Self> {
        let limits = &bounds.limits;
        let records = folder.join("state");
        let store = StateStore::open_on(
            ScratchDisk::shared(),
            &records,
            limits.pages.metadata_cache_bytes,
        )?;
        let blob_bytes_max = limits.module.wasm_bytes.max(limits.subnet.chunk_bytes);
        let blobs = Arc::new(BlobStore::open_on(
            ScratchDisk::shared(),
            &records.join("blobs"),
            blob_bytes_max,
        )?);
        let (_, sandbox) = sandboxes.for_instance(&blobs, bounds)?;
        let pages = open_pages(&folder.join("pages"), &store, bounds)?;
        let keys = SubnetKeys::from_seed(&root_seed)?;
        let config = ExecutorConfig {
            limits: limits.clone(),
            threads: 1,
            subnet: SubnetInfo {
                subnet_id: keys.subnet_id(),
                public_key_der: keys.public_key_der(),
                subnet_type: SubnetType::System,
                canister_ranges: vec![(
                    ExecutorConfig::canister_id(0),
                    ExecutorConfig::canister_id(u64::MAX),
                )],
                nodes: vec![node_info(&root_seed, 0)],
            },
            root_key_der: keys.public_key_der(),
            first_canister: FIRST_GIVEN,
            provisional: true,
            subnet_admins: vec![],
            outcalls: true,
            placement: Some(shared.subnets.clone()),
        };
        let patience = Arc::new(InstanceRetryPolicy(shared.stop.clone()));
        let mut executor =
            Executor::open(config, Arc::new(sandbox), Arc::new(pages), store, blobs, patience)?;
        let tally = executor.count_queries(keys.node_id());
        let last_round = shared.now().max(executor.time());
        Ok(Self {
            executor,
            tally,
            keys,
            root_seed,
            shared,
            messages_max: limits.consensus.block_ingress_messages,
            bytes_max: limits.consensus.block_ingress_bytes,
            expiry_seconds: limits.consensus.ingress_expiry_seconds,
            nonces: 0,
            last_round,
        })
    }

    pub(crate) fn views(&self) -> Views {
        Views { queries: self.executor.queries(), reader: self.executor.reader() }
    }

    pub(crate) fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Whether a long message continues in the next rounds.
    pub(crate) fn has_paused(&self) -> bool {
        self.executor.state().paused().next().is_some()
    }

    pub(crate) fn open_outcalls(&self) -> &BTreeMap<OutcallId, state::StateArc<Outcall>> {
        self.executor.state().subnet.outcalls.open()
    }

    /// The node that makes requests alone, when one is to.
    pub(crate) fn node_id(&self) -> Principal {
        self.keys.node_id()
    }

    /// How far ahead a call expires.
    pub(crate) fn expiry_nanos(&self) -> u64 {
        self.expiry_seconds.saturating_mul(1_000_000_000)
    }

    /// A number that no call had since the state was opened; with the height it is never had again.
    pub(crate) fn next_nonce(&mut self) -> [u64; 2] {
        self.nonces += 1;
        [self.executor.height().0, self.nonces]
    }

    /// Sets the time of the instance, which the next round has if it is later than the last round.
    pub(crate) fn set_time(&mut self, time: Time) -> Result<()> {
        let now = self.shared.now();
        ensure!(
            time >= now,
            "SettingTimeIntoPast(({}, {})): the instance's time is later than the time it is to be \
             set to (nanoseconds since 1970)",
            now.0,
            time.0
        );
        self.shared.time.store(time.0, Ordering::Release);
        Ok(())
    }

    /// Executes one round at the instance's time, or a nanosecond after the last round if the time
    /// did not increase since, and shows the state after it.
    pub(crate) fn round(&mut self) -> Result<RoundResult> {
        let time = Time(self.shared.now().0.max(self.last_round.0 + 1));
        let height = Height(self.executor.height().0 + 1);
        // Of a block at most half its bytes are answers.
        let answers = self.shared.answers.take(self.open_outcalls(), time, self.bytes_max / 2);
        let outcalls: Vec<_> = answers.iter().map(crate::outcalls::WaitingAnswer::answer).collect();
        let answer_bytes: u64 = outcalls.iter().map(|answer| answer.payload.len()).sum();
        let bytes_left = self.bytes_max.saturating_sub(answer_bytes);
        let batch = Batch {
            height,
            time,
            randomness: Randomness::Drawn(seed(
                "thimble-pocket-round",
                &[&self.root_seed, &height.0.to_be_bytes()],
            )),
            ingress: self.shared.waiting.take(self.messages_max, bytes_left),
            key: None,
            outcalls,
            agreed: None,
            queries: self.tally.report(height).map(Box::new),
        };
        let mut result = self.executor.execute(&batch, &[])?;
        drop(answers);
        self.shared.time.store(time.0, Ordering::Release);
        self.last_round = time;
        self.certify(height, result.root)?;
        if self.executor.checkpoint_due() {
            self.executor.checkpoint()?;
        }
        let finished = std::mem::take(&mut result.finished);
        finished.iter().for_each(|request| self.shared.subnets.forget(request));
        self.shared.waiters.notify_certified(&finished);
        Ok(result)
    }

    fn certify(&mut self, height: Height, root: [u8; 32]) -> Result<()> {
        let signature = self.keys.sign(&root)?;
        self.executor.certify(height, signature)?;
        Ok(())
    }

    /// Changes the state between rounds, and shows what came of it.
    pub(crate) fn change<T>(
        &mut self,
        change: impl FnOnce(&mut Executor) -> Result<T>,
    ) -> Result<T> {
        let changed = change(&mut self.executor)?;
        let root = self.executor.show_again();
        self.certify(self.executor.height(), root)?;
        Ok(changed)
    }

    /// Makes all of it durable, so that its folder can be packed.
    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        Ok(self.executor.checkpoint()?)
    }
}

fn open_pages(folder: &Path, store: &StateStore, bounds: &Bounds) -> Result<PageStore> {
    let index = match store.load()? {
        Some(checkpoint) => checkpoint
            .memories()?
            .map(|record| record.map(|(id, (index, base_bytes))| (id, index, base_bytes)))
            .collect::<Result<Vec<_>, _>>()?,
        None => vec![],
    };
    let folder: PathBuf = folder.to_owned();
    PageStore::open_on(ScratchDisk::shared(), &folder, &bounds.limits.pages, index)
        .with_context(|| format!("opening canister memory in {}", folder.display()))
}
