//! A member of a subnet, as the round loop drives it.

use std::{collections::VecDeque, num::NonZeroU64, path::PathBuf, sync::Arc, thread::JoinHandle};

use commonware_consensus::types::{Epoch, FixedEpocher};
use commonware_cryptography::{Digestible as _, Signer as _};
use commonware_utils::sync::Mutex;
use futures::{
    SinkExt as _, StreamExt as _,
    channel::{mpsc, oneshot},
    future::BoxFuture,
};
use genesis::Summary;
use state::{Fault, Height};
use tokio::sync::watch;

use super::{
    ConsensusEngine, DeliveredBlock, Input, StartError, SubnetConfig, SubnetProgress,
    blobs::BlobLog,
    block::{Block, Digest},
    deps::Deps,
    engine::Schemes,
    journal::Journal,
    key,
    published::{ExecutionProgress, ProgressReaders},
    resharing::{self, Resharing},
    shares::ExecutionResult,
    state_sync::{self, Command, FLOOR_DEPTH, Floor, SyncTarget},
    voters::Voters,
    votes,
};
use crate::{
    Certificate, ChunkRequest, Consensus, ConsensusDeps, ConsensusError, Demand, FetchedChunks,
    FinalisedBatch, Step, SyncProgress, block_log::Replay, certifier::CommitteeSchedule,
    replay::BatchSequence,
};

/// Blocks and certificates that wait for the driver.
const INPUT_MAX: usize = 8;
/// Requests for parts of a state that wait: there is one at a time.
const COMMANDS_MAX: usize = 2;
/// State roots that wait to be signed: the driver waits beyond.
const EXECUTED_MAX: usize = 8;
/// Blocks are kept at least down to the older of this number of checkpoints, for a start from
/// either.
const CHECKPOINTS_KEPT: usize = 2;
/// Blocks whose calls may wait on disk between a vote for them and their being in the block log.
const JOURNAL_BLOCKS: u64 = 8;

/// A member of a subnet, as the round loop drives it.
pub struct Subnet {
    deps: Arc<Deps>,
    execution_tx: watch::Sender<ExecutionProgress>,
    input_rx: mpsc::Receiver<Input>,
    executed_tx: mpsc::Sender<ExecutionResult>,
    commands_tx: mpsc::Sender<Command>,
    /// The floor above the state that was offered last: the block from which consensus continues.
    floor: Option<Floor>,
    floor_path: PathBuf,
    replay: Option<Replay>,
    batches: BatchSequence,
    /// A block that the log did not take.
    unlogged: Option<DeliveredBlock>,
    /// The last two checkpoints.
    checkpoints: VecDeque<Height>,
    pub(super) engine: Option<JoinHandle<()>>,
}

/// A handle that reports the subnet's progress.
#[derive(Clone)]
pub struct SubnetStatus(Arc<ProgressReaders>, Arc<Resharing>);

impl SubnetStatus {
    /// Heights that are final, executed and certified here.
    pub fn progress(&self) -> SubnetProgress {
        self.0.progress()
    }

    /// Newest height each member was heard to sign, by place.
    pub fn signed_heights(&self) -> Vec<Height> {
        self.0.certification_rx.borrow().heard.clone()
    }

    /// Progress of state sync, while it runs.
    pub fn state_sync(&self) -> Option<SyncProgress> {
        *self.0.state_sync_rx.borrow()
    }

    /// Who holds the subnet's key, and how far the next committee is.
    pub fn key(&self) -> Arc<Summary> {
        self.1.summary()
    }
}

impl Subnet {
    /// A member over any runtime and network: [`Subnet::start`] is this on the machine's runtime
    /// and on sockets. The engine must run concurrently with the driver of the subnet; either ends
    /// with the other.
    ///
    /// `config.listen` and `config.addresses` are not used.
    ///
    /// # Errors
    /// If its keys, its block log or its stored votes cannot be read.
    #[expect(
        clippy::too_many_lines,
        reason = "wiring: every part is made once, in the order in which they need each other"
    )]
    pub fn assemble(
        deps: ConsensusDeps,
        config: SubnetConfig,
        resume_from: Height,
    ) -> Result<(Self, ConsensusEngine), StartError> {
        let ConsensusDeps { pool, mut log, clock, envelopes, limits, states, outcalls, queries } =
            deps;
        log.check_complete(resume_from)?;
        let signer = key::node_key(&config.node_secret)?;
        let me = signer.public_key();
        let namespace = key::namespace(&config.genesis);
        let public_key = config.genesis.committee().public_key;
        let genesis = Block::genesis(public_key.as_bytes(), config.genesis_time);
        if log.last().is_some_and(|last| last < resume_from) {
            // The state was fetched from peers: blocks below it serve no purpose, and between them
            // and the next there is a gap.
            log.clear()?;
        }
        let floor_path = state_sync::floor_path(&config.directory);
        let disk = log.disk().clone();
        let floor = Floor::read(&disk, &floor_path, resume_from);
        let logged = log.last().unwrap_or(resume_from).max(resume_from);
        // The key as of the newest block, which is ahead of the state when blocks are executed
        // again.
        let mut newest = config.key;
        let mut blocks = log.read_from(resume_from);
        while let Some(logged) = blocks.next_block()? {
            newest = logged.block.key.or(newest);
        }
        let first_voters = Voters::first(&config.genesis);
        let (summary, voters, boundary) = match newest {
            Some(key) => {
                let read = Summary::from_bytes(&key.summary);
                let voters = Voters::decode(&key.voters);
                (
                    read.map_err(|error| StartError::Summary(error.to_string()))?,
                    voters.ok_or_else(|| StartError::Summary("the keys of votes".into()))?,
                    Digest::from(key.boundary),
                )
            }
            None => (config.genesis, first_voters.clone(), genesis.digest()),
        };
        let blocks_per_epoch = NonZeroU64::new(limits.blocks_per_epoch).unwrap_or(NonZeroU64::MAX);
        let epocher = FixedEpocher::new(blocks_per_epoch);
        let schemes = Schemes::default();
        for epoch in voters.epochs().filter(|epoch| *epoch < summary.epoch()) {
            if let Some(scheme) = voters.verifier(&namespace, epoch)? {
                schemes.insert(Epoch::new(epoch), scheme);
            }
        }
        let voted = config.keys.voted().map_err(StartError::Share)?;
        let silent_until = votes::silent_until(&disk, &config.directory, voted)?;
        let blobs_folder = votes::blobs_folder(&disk, &config.directory)?;
        let blobs = BlobLog::open(disk, &blobs_folder)?;
        let resharing_config = resharing::Config {
            keys: config.keys,
            arithmetic: config.arithmetic,
            namespace: namespace.clone(),
            signer,
            node_key: me.as_ref().try_into().unwrap_or_default(),
            epocher: epocher.clone(),
            silent_until,
        };
        let resharing = Resharing::new((summary, voters), logged, boundary, resharing_config);
        let entered = match resharing.enter() {
            // Everything but the keys was lost, and those are of a later epoch by now: it takes
            // over a state, and then has its share of that epoch.
            Err(StartError::Share(reason))
                if logged == Height(0) && resharing.is_current_or_next_member() =>
            {
                tracing::warn!(%reason, "this node begins from nothing without its share of the subnet's first key: it follows until it has fetched a state from peers");
                resharing.enter_with(None)?
            }
            entered => entered?,
        };
        if !resharing.is_member() {
            let summary = resharing.summary();
            tracing::warn!(
                epoch = summary.epoch(),
                members = summary.members().len(),
                "this node is not a member of the subnet: it follows once the members let it, and \
                 takes part when they admit it (`thimble members`)"
            );
        }
        schemes.insert(entered.epoch, entered.scheme);
        let schedule = CommitteeSchedule::new(entered.from, entered.signers);
        let replay = log.read_from(resume_from);
        let journal_bytes = limits
            .block_ingress_bytes
            .max(config.call_bytes.saturating_add(state::INGRESS_OVERHEAD_BYTES))
            .saturating_mul(JOURNAL_BLOCKS);
        let journal = Journal::open(blobs.clone(), journal_bytes).map_err(std::io::Error::other)?;
        let (published, execution_tx, progress) = ProgressReaders::new(resume_from, logged);
        let (input_tx, input_rx) = mpsc::channel(INPUT_MAX);
        let (executed_tx, executed_rx) = mpsc::channel(EXECUTED_MAX);
        let (commands_tx, commands_rx) = mpsc::channel(COMMANDS_MAX);
        let deps = Arc::new(Deps {
            me,
            public_key,
            namespace,
            first_voters,
            limits,
            call_bytes: config.call_bytes,
            epocher,
            pool,
            envelopes,
            log: Arc::new(Mutex::new(log)),
            journal: Arc::new(journal),
            blobs,
            clock,
            states,
            outcalls,
            queries,
            published,
            resharing,
            schemes,
            schedule,
        });
        let engine = ConsensusEngine {
            deps: deps.clone(),
            genesis,
            agreed: config.agreed,
            floor,
            progress,
            input_tx,
            executed_rx,
            commands_rx,
        };
        let batches = BatchSequence::new(deps.envelopes.clone(), resume_from);
        let subnet = Self {
            deps,
            execution_tx,
            input_rx,
            executed_tx,
            commands_tx,
            floor: None,
            floor_path,
            replay: Some(replay),
            batches,
            unlogged: None,
            checkpoints: VecDeque::new(),
            engine: None,
        };
        Ok((subnet, engine))
    }

    /// Reports the subnet's progress.
    pub fn status(&self) -> SubnetStatus {
        SubnetStatus(self.deps.published.clone(), self.deps.resharing.clone())
    }

    async fn step(&mut self, demand: Demand) -> Result<Step, ConsensusError> {
        let changed = self.execution_tx.send_if_modified(|progress| {
            let changed = progress.demand != demand;
            progress.demand = demand;
            changed
        });
        if changed {
            self.deps.published.work_available.notify_waiters();
        }
        if self.deps.pool.closing() {
            return Ok(Step::Closing);
        }
        if let Some(replay) = &mut self.replay {
            if let Some(logged) = replay.next_block()? {
                return self.batches.hand_out(&logged.block, logged.recorded).map(Step::Execute);
            }
            self.replay = None;
        }
        loop {
            if self.deps.pool.closing() {
                return Ok(Step::Closing);
            }
            let input = match self.unlogged.take() {
                Some(delivered) => Some(Input::Block(delivered)),
                None => self.input_rx.next().await,
            };
            match input {
                Some(Input::Block(delivered)) => {
                    return self.log_block(delivered).map(Step::Execute);
                }
                Some(Input::Certified(certificate)) => {
                    // A certificate may come before the blocks it covers: the log is held to what
                    // is durable in it.
                    let mut log = self.deps.log.lock();
                    let covered = log.durable().min(certificate.height);
                    log.record_certified(covered)?;
                    return Ok(Step::Certified(certificate));
                }
                Some(Input::Failed(source)) => {
                    return Err(ConsensusError::Certify { height: self.batches.height.0, source });
                }
                Some(Input::Behind(behind)) => {
                    let SyncTarget { offer, floor } = *behind;
                    if offer.height > self.batches.height {
                        self.floor = Some(floor);
                        return Ok(Step::Behind(offer));
                    }
                    let sent = self.commands_tx.send(Command::Abandon).await;
                    sent.map_err(|_| ConsensusError::EngineEnded)?;
                }
                Some(Input::Differs(differ)) => return Err(ConsensusError::LimitsDiffer(differ)),
                Some(Input::Left(height)) => return Err(ConsensusError::Left { height: height.0 }),
                Some(Input::Wake) => {}
                Some(Input::Ended) | None => return Err(ConsensusError::EngineEnded),
            }
        }
    }

    /// Appends a block to the log, and gives its batch.
    fn log_block(&mut self, delivered: DeliveredBlock) -> Result<FinalisedBatch, ConsensusError> {
        let logged = {
            let mut log = self.deps.log.lock();
            let appended = if delivered.is_held {
                log.append_block_later(&delivered.block)
            } else {
                log.append_block(&delivered.block)
            };
            appended.map(|()| log.durable())
        };
        let durable = match logged {
            Ok(durable) => durable,
            Err(error) => {
                self.unlogged = Some(delivered);
                return Err(error.into());
            }
        };
        // The receiver is gone if the engine ended, which the next call detects.
        let _ = delivered.logged_tx.send(durable);
        self.batches.hand_out(&delivered.block, None)
    }

    /// Blocks at and below this height are not needed: this node has two checkpoints above them,
    /// and so has every state that is served to others. Blocks above are kept for peers as far as
    /// the limits allow.
    fn retention_floor(&self) -> Option<Height> {
        if self.checkpoints.len() < CHECKPOINTS_KEPT {
            return None;
        }
        let (oldest, newest) = (self.checkpoints.front()?, self.checkpoints.back()?);
        let shown = self.deps.states.as_ref().and_then(|states| states.oldest());
        // A node begins after a state sync with a finalised block just below it.
        let needed =
            oldest.0.min(shown.map_or(u64::MAX, |shown| shown.0)).saturating_sub(FLOOR_DEPTH);
        let too_old = newest.0.saturating_sub(self.deps.limits.retention_rounds);
        let too_many = self.deps.log.lock().height_beyond(self.deps.limits.retention_block_bytes);
        Some(Height(needed.min(too_old.max(too_many.0))))
    }
}

impl Consensus for Subnet {
    fn next(&mut self, demand: Demand) -> BoxFuture<'_, Result<Step, ConsensusError>> {
        Box::pin(self.step(demand))
    }

    fn executed(
        &mut self,
        height: Height,
        root: [u8; 32],
        faults: Vec<Fault>,
    ) -> BoxFuture<'_, Result<Vec<Certificate>, ConsensusError>> {
        Box::pin(async move {
            if !self.batches.was_recorded(height, root)? {
                let mut log = self.deps.log.lock();
                // While older blocks are handed out again nothing may be appended behind newer
                // ones.
                if log.last() == Some(height) {
                    log.append_outcome(height, root, &faults)?;
                }
            }
            self.execution_tx.send_modify(|progress| progress.set_executed(height));
            // When the log is replayed, only the newest height is signed.
            if self.replay.is_none() || self.deps.published.logged == height {
                let sent = self.executed_tx.send(ExecutionResult { height, root }).await;
                sent.map_err(|_| ConsensusError::EngineEnded)?;
            }
            Ok(Vec::new())
        })
    }

    fn before_checkpoint(&mut self) -> Result<(), ConsensusError> {
        Ok(self.deps.log.lock().sync()?)
    }

    fn checkpointed(&mut self, height: Height) -> Result<(), ConsensusError> {
        if self.checkpoints.back() != Some(&height) {
            self.checkpoints.push_back(height);
        }
        while self.checkpoints.len() > CHECKPOINTS_KEPT {
            self.checkpoints.pop_front();
        }
        if let Some(floor) = self.retention_floor() {
            self.execution_tx.send_modify(|progress| progress.floor = progress.floor.max(floor));
            self.deps.log.lock().prune(floor)?;
        }
        Ok(())
    }

    fn fetch(
        &mut self,
        want: ChunkRequest,
    ) -> BoxFuture<'_, Result<FetchedChunks, ConsensusError>> {
        Box::pin(async move {
            let (reply_tx, reply_rx) = oneshot::channel();
            let sent = self.commands_tx.send(Command::Fetch(want, reply_tx)).await;
            sent.map_err(|_| ConsensusError::EngineEnded)?;
            reply_rx.await.map_err(|_| ConsensusError::EngineEnded)
        })
    }

    fn installed(&mut self) -> Result<(), ConsensusError> {
        let Some(floor) = &self.floor else { return Ok(()) };
        let path = &self.floor_path;
        let disk = self.deps.log.lock().disk().clone();
        floor.write(&disk, path).map_err(ConsensusError::Floor)
    }

    fn certificates_pending(&self) -> u64 {
        let progress = self.deps.published.progress();
        progress.executed.0.saturating_sub(progress.certified.0)
    }
}

impl Drop for Subnet {
    fn drop(&mut self) {
        // Either ends the engine's tasks.
        self.executed_tx.close_channel();
        self.input_rx.close();
        self.unlogged = None;
        if let Some(engine) = self.engine.take()
            && engine.join().is_err()
        {
            tracing::error!("the consensus engine ended with a defect; see its message above");
        }
    }
}
