//! The engine of one node: block dissemination and storage, a simplex engine per epoch, and the
//! tasks that carry calls and state roots.
//!
//! Generic in the runtime and the network, so that the fault tests run exactly this under a
//! simulated clock, network and disk.
//!
//! What is finalised is handed out in height order, each block once its calls are there; the next
//! blocks wait behind it, at most [`PENDING_MAX`] of them, in storage otherwise. A block is
//! acknowledged, and so never handed out again after a restart, when its receiver says that it is
//! durable.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use commonware_broadcast::buffered;
use commonware_consensus::{
    Epochable as _, Heightable as _, Reporters,
    marshal::{
        self, Start,
        core::{Actor as Marshal, Mailbox as MarshalMailbox},
        resolver::p2p as backfill,
        standard::{Inline, Standard},
    },
    simplex::{
        self, Engine, Floor as EngineFloor, ForwardPolicy, SkipBudget, SkipPolicy,
        elector::RoundRobin,
    },
    types::{Epoch, Epocher as _, FixedEpocher, Height as EngineHeight, ViewDelta},
};
use commonware_cryptography::{
    Digested, Digestible as _, Sha256,
    certificate::{Provider as SchemeProvider, Scoped, Verifier as _},
    ed25519::PublicKey,
};
use commonware_macros::select;
use commonware_p2p::{
    Blocker, Provider, Receiver, Sender,
    utils::mux::{self, Builder as _},
};
use commonware_parallel::Sequential;
use commonware_runtime::{Clock, Handle, Metrics, Spawner, Storage, buffer::paged::CacheRef};
use commonware_storage::{archive::prunable, translator::EightCap};
use commonware_utils::{
    Acknowledgement as _, NZDuration, NZU16, NZU64, NZUsize, acknowledgement::Exact, channel::mpsc,
    sync::Mutex, vec::NonEmptyVec,
};
use envelope::Envelopes;
use futures::{SinkExt as _, channel::oneshot};
use genesis::{PAYLOAD_BYTES_MAX, Summary};
use limits::ConsensusLimits;
use rand_core::CryptoRng;
use state::Height;

use super::{
    Delivered, Input, StartError,
    application::{Application, Observer, Shared},
    block::{Block, BlockBounds, Digest, NameBounds},
    calls::{self, Calls, Log},
    catchup::{Catchup, Command, Floor, Parts as CatchupParts},
    greeting::Greeting,
    handover::Handover,
    journal::Journal,
    key::Scheme,
    peers::{self, Blame},
    presence::Presence,
    shares::{Executed, Roots},
};
use crate::{Certifier, FinalisedBlock, IngressPool, StateServer, WallClock, certifier::Terms};

/// Numbers of the network's channels, in the order of [`Channels`].
pub(super) const VOTES: u64 = 0;
pub(super) const CERTIFICATES: u64 = 1;
pub(super) const RESOLVER: u64 = 2;
pub(super) const BROADCAST: u64 = 3;
pub(super) const BACKFILL: u64 = 4;
pub(super) const CALLS: u64 = 5;
pub(super) const ROOTS: u64 = 6;
pub(super) const SYNC: u64 = 7;

/// Finalised blocks handed out and not yet durable.
const PENDING_MAX: usize = 4;
/// Between two tries to take up a share.
const RETRY: Duration = Duration::from_secs(5);
/// Messages that wait for an actor of the engine.
const MAILBOX: usize = 64;

pub(super) type Mailbox = MarshalMailbox<Scheme, Standard<Block>>;

/// The channels of a node: a sender and a receiver each, over one network, numbered from 0 in this
/// order.
pub struct Channels<S, R> {
    /// Votes on blocks.
    pub votes: (S, R),
    /// Certificates of votes.
    pub certificates: (S, R),
    /// Certificates that were missed.
    pub resolver: (S, R),
    /// Blocks.
    pub broadcast: (S, R),
    /// Blocks that were missed.
    pub backfill: (S, R),
    /// Calls of clients.
    pub calls: (S, R),
    /// Shares of signatures on state roots.
    pub roots: (S, R),
    /// States that are taken over.
    pub sync: (S, R),
}

/// Schemes by epoch. Epochs this node has no share for still verify by the subnet's key, which
/// stays.
#[derive(Clone)]
pub(super) struct Schemes {
    known: Arc<Mutex<BTreeMap<Epoch, Arc<Scheme>>>>,
    lasting: Arc<Scheme>,
}

/// Epochs whose rounds this node can take part in: the one that runs and the one before.
const SCHEMES_KEPT: usize = 2;

impl Schemes {
    /// `lasting` verifies and does not sign.
    pub(super) fn new(lasting: Scheme) -> Self {
        Self { known: Arc::default(), lasting: Arc::new(lasting) }
    }

    fn get(&self, epoch: Epoch) -> Arc<Scheme> {
        self.known.lock().get(&epoch).unwrap_or(&self.lasting).clone()
    }

    pub(super) fn insert(&self, epoch: Epoch, scheme: Scheme) {
        let mut known = self.known.lock();
        known.insert(epoch, Arc::new(scheme));
        while known.len() > SCHEMES_KEPT {
            known.pop_first();
        }
    }
}

impl SchemeProvider for Schemes {
    type Scope = Epoch;
    type Scheme = Scheme;

    fn scoped(&self, epoch: Epoch) -> Option<Scoped<Scheme>> {
        Some(Scoped::scheme(self.get(epoch)))
    }
}

/// Timeouts of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    pub(super) leader: Duration,
    pub(super) certification: Duration,
    pub(super) retry: Duration,
    pub(super) skip: Duration,
}

impl Timing {
    /// A leader may take the idle interval before it proposes, and some more when the machine is
    /// busy.
    pub(super) fn of(limits: &ConsensusLimits) -> Self {
        let idle = Duration::from_millis(limits.idle_round_millis);
        let leader = idle + Duration::from_millis(1_500);
        Self {
            leader,
            certification: leader + Duration::from_millis(3_000),
            retry: Duration::from_millis(2_000),
            skip: 5 * leader,
        }
    }
}

/// Everything one node's engine is made of.
pub(super) struct Setup<S, R, P, B> {
    /// Begins the names of everything this node stores.
    pub(super) storage: String,
    pub(super) me: PublicKey,
    pub(super) genesis: Block,
    pub(super) handover: Arc<Handover>,
    pub(super) schemes: Schemes,
    pub(super) terms: Terms,
    pub(super) agreed: Vec<(String, u64)>,
    /// Largest envelope.
    pub(super) call_bytes: u64,
    pub(super) limits: ConsensusLimits,
    pub(super) timing: Timing,
    pub(super) epocher: FixedEpocher,
    /// A finalised block to begin with instead of genesis, after the state below it was installed.
    pub(super) floor: Option<Floor>,
    pub(super) shared: Arc<Shared>,
    pub(super) pool: Arc<IngressPool>,
    pub(super) envelopes: Arc<dyn Envelopes>,
    pub(super) log: Log,
    pub(super) journal: Arc<Mutex<Journal>>,
    pub(super) channels: Channels<S, R>,
    pub(super) peers: P,
    pub(super) blocker: B,
    /// Finalised blocks and certificates, for the driver.
    pub(super) out: futures::channel::mpsc::Sender<Input>,
    /// What the driver executed.
    pub(super) executed: futures::channel::mpsc::Receiver<Executed>,
    /// Of the subnet.
    pub(super) public_key: nidkg::PublicKey,
    pub(super) states: Option<Arc<dyn StateServer>>,
    /// What the driver asks for when it takes over a state.
    pub(super) commands: futures::channel::mpsc::Receiver<Command>,
    /// Tells the network whom to connect to, by epoch.
    pub(super) peering: Peering,
    /// What block times and the validity of calls go by. Everything else goes by the runtime's
    /// clock, which never jumps.
    pub(super) clock: Arc<dyn WallClock>,
}

/// Tells the network whom to connect to. Called with every epoch.
pub type Peering = Box<dyn FnMut(&Summary) + Send>;

/// Bytes of the cache over the engine's own storage: half a megabyte, where its authors' examples
/// take a hundred and sixty.
fn page_cache() -> CacheRef {
    CacheRef::new(NZU16!(4084), NZUsize!(128))
}

/// Largest message of the channels that carry blocks.
pub(super) fn block_message_bytes(members: usize, limits: &ConsensusLimits) -> usize {
    marshal::max_payload_size::<Standard<Block>, Scheme>(members as u32, &bounds(limits))
}

fn bounds(limits: &ConsensusLimits) -> BlockBounds {
    block_bounds(usize::try_from(limits.block_ingress_messages).unwrap_or(usize::MAX))
}

/// Bounds of a block that names at most `ingress` calls.
pub(super) fn block_bounds(ingress: usize) -> BlockBounds {
    BlockBounds { ingress, payload: PAYLOAD_BYTES_MAX }
}

/// Runs until the task is aborted or one of the actors ends.
pub(super) async fn run<E, S, R, P, B>(mut context: E, setup: Setup<S, R, P, B>)
where
    E: Clock + CryptoRng + Spawner + Storage + Metrics,
    S: Sender<PublicKey = PublicKey>,
    R: Receiver<PublicKey = PublicKey>,
    P: Provider<PublicKey = PublicKey>,
    B: Blocker<PublicKey = PublicKey>,
{
    let Setup {
        storage,
        me,
        genesis,
        handover,
        schemes,
        terms,
        agreed,
        call_bytes,
        limits,
        timing,
        epocher,
        floor,
        ..
    } = setup;
    let Setup {
        journal,
        shared,
        pool,
        envelopes,
        log,
        channels,
        peers,
        blocker,
        out,
        executed,
        mut peering,
        public_key,
        states,
        commands,
        clock,
        ..
    } = setup;
    let mailbox_size = NZUsize!(MAILBOX);
    peering(&handover.summary());
    let cache = page_cache();
    let bounds = bounds(&limits);
    let sync_bytes_per_second = limits.sync_bytes_per_second;

    let names = NameBounds {
        calls: limits.block_ingress_messages,
        bytes: limits.block_ingress_bytes,
        call_bytes,
    };
    let blame = Blame::new(peers::cut_with(blocker.clone()));
    let calls = Calls::new(
        (pool.clone(), envelopes, clock.clone()),
        journal,
        names,
        blame.clone(),
        channels.calls.0,
    );
    pool.share_among(handover.summary().members().len(), {
        let (work, out) = (shared.work.clone(), out.clone());
        let pool = Arc::downgrade(&pool);
        move || {
            // `notify_one` is kept for a task that looks away at the moment.
            work.notify_waiters();
            work.notify_one();
            if pool.upgrade().is_none_or(|pool| pool.closing()) {
                let _ = out.clone().try_send(Input::Wake);
            }
        }
    });
    let news = shared.work.clone();
    context.child("announce").spawn({
        let calls = calls.clone();
        move |context| calls.announce(context, news)
    });
    let places: calls::Places = Arc::new({
        let handover = handover.clone();
        move |peer| handover.peer(peer)
    });
    calls::start(&context, &calls, places, &log, channels.calls.1);
    let heights_max = usize::try_from(limits.certificates_kept).unwrap_or(usize::MAX);
    let certifier = Certifier::over(terms.clone(), heights_max);
    let greeting = Greeting::new(me.clone(), agreed);
    let roots = Roots::new(
        (certifier, terms.clone()),
        handover.clone(),
        greeting,
        shared.clone(),
        channels.roots.0,
        out.clone(),
        blame.clone(),
    );
    let mut roots =
        context.child("roots").spawn(move |context| roots.run(context, executed, channels.roots.1));

    let resolver = backfill::init(
        context.child("backfill"),
        backfill::Config {
            public_key: me.clone(),
            peer_provider: peers.clone(),
            blocker: blocker.clone(),
            mailbox_size,
            fetch_timeout: NZDuration!(Duration::from_secs(2)),
            fetch_retry_delay: Duration::from_millis(100),
            priority_requests: false,
            priority_responses: false,
        },
        channels.backfill,
    );
    let (broadcast, buffer) = buffered::Engine::new(
        context.child("broadcast"),
        buffered::Config {
            public_key: me.clone(),
            mailbox_size,
            deque_size: 4,
            priority: false,
            codec_config: bounds,
            peer_provider: peers,
            strategy: Sequential,
        },
    );
    let broadcast = broadcast.start(channels.broadcast);

    // What this scheme's certificates need to know to be decoded: nothing.
    #[allow(clippy::let_unit_value)]
    let unbounded = Scheme::certificate_codec_config_unbounded();
    let certificates = prunable::Archive::init(
        context.child("certificates"),
        archive(&storage, "certificates", &cache, unbounded),
    );
    let blocks = prunable::Archive::init(
        context.child("blocks"),
        archive(&storage, "blocks", &cache, bounds),
    );
    let (certificates, blocks) = match (certificates.await, blocks.await) {
        (Ok(certificates), Ok(blocks)) => (certificates, blocks),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "the engine's storage cannot be opened");
            return;
        }
    };
    // The engine takes a floor for granted, so one that does not hold must not reach it.
    let floor = floor.filter(|floor| {
        let holds = floor.finalization.verify(&mut context, &*schemes.lasting, &Sequential);
        if !holds {
            tracing::error!(
                height = floor.height.0,
                "the finalization to begin above is not the subnet's"
            );
        }
        holds
    });
    let start = match &floor {
        Some(Floor { finalization, .. }) => {
            shared.finalised(finalization.clone());
            Start::Floor(finalization.clone())
        }
        None => {
            let digest = genesis.digest();
            Start::Genesis(Digested::precomputed(genesis.clone(), digest))
        }
    };
    let (actor, marshal, processed) = Marshal::init(
        context.child("marshal"),
        certificates,
        blocks,
        marshal::Config {
            provider: schemes.clone(),
            epocher: epocher.clone(),
            start,
            partition_prefix: format!("{storage}marshal"),
            mailbox_size,
            view_retention: ViewDelta::new(64),
            prunable_items_per_section: NZU64!(16),
            page_cache: cache.clone(),
            replay_buffer: NZUsize!(64 << 10),
            key_write_buffer: NZUsize!(16 << 10),
            value_write_buffer: NZUsize!(64 << 10),
            block_codec_config: bounds,
            max_repair: NZUsize!(16),
            max_pending_acks: NZUsize!(PENDING_MAX),
            strategy: Sequential,
        },
    )
    .await;

    let (finalised, deliveries) = mpsc::unbounded_channel();
    let application = Application {
        shared: shared.clone(),
        pool: pool.clone(),
        calls: calls.clone(),
        handover: handover.clone(),
        limits,
        names,
        verifier: schemes.lasting.clone(),
        finalised,
        clock,
    };
    let marshal_task = actor.start(application.clone(), buffer, resolver);
    let mut ended = futures::future::select(broadcast, marshal_task);

    // Each epoch's engine talks on its own subchannel of the three consensus channels.
    let (mux, mut votes, mut strangers) =
        mux::Muxer::builder(context.child("votes"), channels.votes.0, channels.votes.1)
            .with_backup()
            .build();
    mux.start();
    let (mux, mut certs) =
        mux::Muxer::new(context.child("certs"), channels.certificates.0, channels.certificates.1);
    mux.start();
    let (mux, mut fetches) =
        mux::Muxer::new(context.child("fetches"), channels.resolver.0, channels.resolver.1);
    mux.start();

    // Where to resume: above what marshal handed out and what is in the block log, whichever is
    // more. The block before an epoch's first is final and in both.
    let processed = processed.processed().map_or(0, |processed| processed.height().get());
    let next = EngineHeight::new(processed.max(shared.logged().0) + 1);
    let Some(mut epoch) = epocher.containing(next).map(|bounds| bounds.epoch()) else {
        tracing::error!(height = next.get(), "no epoch contains the next height");
        return;
    };
    let mut root = match floor {
        // One that marshal is past says nothing any more.
        Some(Floor { height, finalization, .. })
            if height.0 > processed && finalization.epoch() == epoch =>
        {
            EngineFloor::Finalized(finalization)
        }
        _ => EngineFloor::Genesis(handover.boundary()),
    };
    // The first block of an epoch carries the finalization of the last one of the epoch before.
    if let Some(before) = epoch.previous().and_then(|before| epocher.last(before))
        && let Some(finalization) = marshal.get_finalization(before).await
    {
        shared.finalised(finalization);
    }
    let catchup = Catchup::new(
        &context,
        CatchupParts {
            me: me.clone(),
            handover: handover.clone(),
            public_key,
            verifier: schemes.lasting.clone(),
            bounds,
            shared: shared.clone(),
            marshal: marshal.clone(),
            log,
            states,
            bytes_per_second: sync_bytes_per_second,
            sender: channels.sync.0,
            out: out.clone(),
            commands,
            blame,
        },
    );
    context.child("catchup").spawn(move |context| catchup.run(context, channels.sync.1));
    let delivery = Delivery {
        shared: shared.clone(),
        pool,
        calls,
        out,
        marshal: marshal.clone(),
        pruned: Height(0),
        handover: handover.clone(),
        schemes: schemes.clone(),
        terms,
        peering,
    };
    let (passed, mut heights) = mpsc::unbounded_channel();
    let mut delivery =
        context.child("delivery").spawn(move |context| delivery.run(context, deliveries, passed));

    let presence = Presence::new(context.child("presence"), me.clone(), timing.skip);
    loop {
        let scheme = schemes.get(epoch);
        let engine_application = Inline::new(
            context.child("application").with_attribute("epoch", epoch),
            application.clone(),
            marshal.clone(),
            epocher.clone(),
        );
        let engine = Engine::new(
            context.child("engine").with_attribute("epoch", epoch),
            simplex::Config {
                scheme: (*scheme).clone(),
                elector: RoundRobin::<Sha256>::default(),
                blocker: blocker.clone(),
                automaton: engine_application.clone(),
                relay: engine_application.clone(),
                reporter: Reporters::from((engine_application, Observer(shared.clone()))),
                track_historical_votes: false,
                strategy: Sequential,
                partition: votes_partition(&storage, epoch),
                mailbox_size,
                epoch,
                floor: root,
                replay_buffer: NZUsize!(64 << 10),
                write_buffer: NZUsize!(16 << 10),
                page_cache: cache.clone(),
                leader_timeout: timing.leader,
                certification_timeout: timing.certification,
                timeout_retry: timing.retry,
                view_retention: ViewDelta::new(32),
                skip: SkipPolicy::Enabled {
                    timeout: timing.skip,
                    budget: SkipBudget::Participants,
                },
                fetch_timeout: NZDuration!(Duration::from_secs(1)),
                fetch_retry_delay: Duration::from_millis(100),
                forward: ForwardPolicy::SilentVoters,
            },
        );
        let channel = epoch.get();
        let (Ok(vote), Ok(cert), Ok(fetch)) = (
            votes.register(channel).await,
            certs.register(channel).await,
            fetches.register(channel).await,
        ) else {
            return;
        };
        let vote = (vote.0, presence.attend(vote.1, &scheme, epoch));
        let mut engine: Handle<()> = engine.start(vote, cert, fetch);
        context.child("dealing").spawn({
            let handover = handover.clone();
            move |context| handover.deal(context)
        });
        let Some(last) = epocher.last(epoch) else { return };
        let boundary = loop {
            select! {
                _ = &mut ended => {
                    tracing::error!("block dissemination ended");
                    return;
                },
                _ = &mut engine => {
                    tracing::error!("the consensus engine ended");
                    return;
                },
                _ = &mut roots => return,
                message = strangers.recv() => {
                    // A channel that ended is ready for ever: reading it again would keep everything else from running.
                    let Some((theirs, (from, _))) = message else {
                        tracing::warn!("the channel of votes ended");
                        return;
                    };
                    // Votes of a later epoch mean that its boundary was finalised: ask the voter for it.
                    if theirs > epoch.get() {
                        marshal.hint_finalized(last, NonEmptyVec::new(from));
                    }
                },
                _ = &mut delivery => return,
                passed = heights.recv() => {
                    let Some((height, digest)) = passed else { return };
                    if height >= last {
                        break digest;
                    }
                },
            }
        };
        engine.abort();
        // Whoever leads the next epoch's first round shows how this one ended.
        if let Some(finalization) = marshal.get_finalization(last).await {
            shared.finalised(finalization);
        }
        // Its storage can be open once only.
        let _ = engine.await;
        // The engine of the epoch before cannot be entered again: what it voted is of no use to
        // anybody.
        if let Some(before) = epoch.previous() {
            match context.remove(&votes_partition(&storage, before), None).await {
                Ok(()) | Err(commonware_runtime::Error::PartitionMissing(_)) => {}
                Err(error) => {
                    tracing::warn!(%error, epoch = before.get(), "votes of a past epoch cannot be removed")
                }
            }
        }
        epoch = epoch.next();
        root = EngineFloor::Genesis(boundary);
    }
}

/// Where the votes of an epoch are stored.
fn votes_partition(storage: &str, epoch: Epoch) -> String {
    format!("{storage}simplex-{epoch}")
}

/// Hands finalised blocks to the driver.
struct Delivery<S> {
    shared: Arc<Shared>,
    pool: Arc<IngressPool>,
    calls: Calls<S>,
    out: futures::channel::mpsc::Sender<Input>,
    marshal: Mailbox,
    pruned: Height,
    handover: Arc<Handover>,
    schemes: Schemes,
    terms: Terms,
    peering: Peering,
}

impl<S: Sender<PublicKey = PublicKey>> Delivery<S> {
    /// Ends when the driver does.
    async fn run<E: Clock + Spawner + CryptoRng>(
        mut self,
        context: E,
        mut deliveries: mpsc::UnboundedReceiver<(Digested<Block>, Exact)>,
        passed: mpsc::UnboundedSender<(EngineHeight, Digest)>,
    ) {
        while let Some((block, ack)) = deliveries.recv().await {
            if self.deliver(&context, block.inner()).await.is_none() {
                // Not to be taken for a defect: the node is ending.
                std::mem::forget(ack);
                return;
            }
            ack.acknowledge();
            let floor = self.shared.floor();
            if floor > self.pruned {
                self.marshal.prune(EngineHeight::new(floor.0));
                self.pruned = floor;
            }
            // The loop over epochs may be gone; that ends this task too.
            let _ = passed.send((block.height(), block.digest()));
        }
    }

    /// Returns when the block is durable.
    async fn deliver<E: Clock + Spawner + CryptoRng>(
        &mut self,
        context: &E,
        block: &Block,
    ) -> Option<()> {
        let height = Height(block.height.get());
        if height <= self.shared.logged() {
            // Durable before a restart.
            return Some(());
        }
        let calls = self.calls.gather(context, &block.ingress, Some(height), None).await;
        let ingress = calls.into_iter().map(|call| call.signed).collect();
        let epoch = self.handover.summary().epoch();
        let key = self.handover.apply(context, block).await.ok()?;
        self.shared.delivered(height, block.ingress.iter().map(|name| name.id).collect());
        let (durable, written) = oneshot::channel();
        let block_of_calls = FinalisedBlock {
            height,
            time: block.time,
            randomness: block.randomness(),
            ingress,
            key,
        };
        self.out.send(Input::Block(Delivered { block: block_of_calls, durable })).await.ok()?;
        written.await.ok()?;
        self.pool.remove(&block.ingress);
        self.calls.forget(&block.ingress, (height, block.time));
        // Before anybody executes the next block.
        if self.handover.summary().epoch() != epoch && !self.enter(context, height).await {
            let _ = self.out.send(Input::Left(height)).await;
            return None;
        }
        Some(())
    }

    /// Takes part in the epoch that begins, if this node does.
    async fn enter(&mut self, context: &(impl Clock + Spawner), last: Height) -> bool {
        let member = self.terms.at(last).is_some_and(|term| term.share.is_some());
        let summary = self.handover.summary();
        let entered = loop {
            let handover = self.handover.clone();
            let entered =
                context.child("enter").shared(true).spawn(move |_| async move { handover.enter() });
            match entered.await {
                Ok(Ok(entered)) => break entered,
                // The disk may be full, and get room again.
                Ok(Err(error @ StartError::Share(_))) => {
                    tracing::error!(%error, epoch = summary.epoch(), "this node waits at the beginning of an epoch");
                    context.sleep(RETRY).await;
                }
                Ok(Err(error)) => {
                    tracing::error!(%error, epoch = summary.epoch(), "this node cannot take part in the epoch that begins");
                    return false;
                }
                // The node is ending.
                Err(_) => return false,
            }
        };
        if !self.handover.belongs() && member {
            tracing::info!(
                epoch = summary.epoch(),
                "this node is no longer a member of the subnet"
            );
            return false;
        }
        match (member, entered.term.share.is_some()) {
            (false, true) => {
                tracing::info!(
                    epoch = summary.epoch(),
                    "this node is a member of the subnet from here on"
                )
            }
            (true, false) => {
                tracing::info!(
                    epoch = summary.epoch(),
                    "this node follows this epoch without a vote"
                )
            }
            _ => {}
        }
        tracing::info!(
            epoch = summary.epoch(),
            members = summary.members().len(),
            "a new epoch: the committee that holds the subnet's key{}",
            if u64::from(summary.key_epoch().0) == summary.epoch() {
                " has new shares"
            } else {
                " stays"
            }
        );
        self.schemes.insert(entered.epoch, entered.scheme);
        self.terms.begin(entered.from, entered.term);
        self.pool.share_out(summary.members().len());
        (self.peering)(&summary);
        true
    }
}

fn archive<C>(
    storage: &str,
    name: &str,
    cache: &CacheRef,
    codec: C,
) -> prunable::Config<EightCap, C> {
    prunable::Config {
        translator: EightCap,
        metadata_partition: format!("{storage}{name}-metadata"),
        key_partition: format!("{storage}{name}-key"),
        key_page_cache: cache.clone(),
        value_partition: format!("{storage}{name}-value"),
        compression: None,
        codec_config: codec,
        items_per_section: NZU64!(16),
        key_write_buffer: NZUsize!(16 << 10),
        value_write_buffer: NZUsize!(64 << 10),
        replay_buffer: NZUsize!(64 << 10),
    }
}
