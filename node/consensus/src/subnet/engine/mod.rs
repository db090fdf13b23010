//! The engine of one node: block dissemination and storage, a simplex engine per epoch, and the
//! tasks that carry calls and state roots. `docs/internals/consensus-channels.md` shows the
//! channels between them, which are all bounded.
//!
//! Finalised blocks are handed out in height order, each once its calls are present; the next
//! blocks wait behind it, at most [`PENDING_MAX`] of them, in storage otherwise. A block is
//! acknowledged, and so never handed out again after a restart, when it is durable in the block
//! log.

mod chain;
mod config;
mod delivery;
mod epoch_channels;
mod epochs;

use std::{collections::VecDeque, sync::Arc};

use commonware_consensus::{
    Epochable as _,
    marshal::{Start, core::Mailbox as MarshalMailbox, standard::Standard},
    simplex::Floor as EngineFloor,
    types::{Epoch, Epocher as _, Height as EngineHeight},
};
use commonware_cryptography::{Digested, Digestible as _, ed25519::PublicKey};
use commonware_p2p::{Blocker, Provider, Receiver, Sender};
use commonware_parallel::Sequential;
use commonware_runtime::{Clock, Handle, Metrics, Spawner, Storage, buffer::paged::CacheRef};
use commonware_utils::{NZU16, NZUsize, channel::mpsc};
use rand_core::CryptoRng;
use state::Height;

pub use self::config::{ChannelName, Channels, IdentityLayer, Peering, SenderLayer, Transport};
pub(super) use self::config::{Schemes, block_bounds};
use self::{
    chain::Chain,
    config::Timing,
    delivery::Delivery,
    epochs::{EpochChannels, Epochs, Tasks},
};
use super::{
    Input,
    application::Application,
    blobs::BlobLog,
    block::{Block, Digest},
    calls::{self, Calls},
    deps::Deps,
    key::Scheme,
    outcalls::{self, Agreement, NodeIds},
    peers::{self, PeerScorer},
    published::ProgressWriters,
    recent_speakers::RecentSpeakers,
    runtime::LayeredRuntime,
    shares::{self, ExecutionResult, Roots},
    state_sync::{self, Command, Floor, StateSync},
    storage_retry::StorageRetry,
};
use crate::block_log::UNSYNCED_BLOCKS_MAX;

/// Finalised blocks that wait to be handed to the driver.
const PENDING_MAX: usize = 4;
/// Finalised blocks that marshal handed out and that are not durable in the block log.
pub(super) const UNACKNOWLEDGED_MAX: usize = PENDING_MAX + UNSYNCED_BLOCKS_MAX;
/// Messages that wait for an actor of the engine.
const MAILBOX: usize = 64;

pub(super) type Mailbox = MarshalMailbox<Scheme, Standard<Block>>;

/// Bytes of the cache over the engine's own storage: half a megabyte, where its authors' examples
/// take a hundred and sixty.
fn page_cache() -> CacheRef {
    CacheRef::new(NZU16!(4084), NZUsize!(128))
}

/// A member's engine that has everything but a runtime and a network. See
/// [`super::Subnet::assemble`].
pub struct ConsensusEngine {
    pub(super) deps: Arc<Deps>,
    pub(super) genesis: Block,
    /// Limits that all members must have alike.
    pub(super) agreed: Vec<(String, u64)>,
    /// A finalised block to begin with instead of genesis, after the state below it was installed.
    pub(super) floor: Option<Floor>,
    pub(super) progress: ProgressWriters,
    pub(super) input_tx: futures::channel::mpsc::Sender<Input>,
    pub(super) executed_rx: futures::channel::mpsc::Receiver<ExecutionResult>,
    pub(super) commands_rx: futures::channel::mpsc::Receiver<Command>,
}

impl ConsensusEngine {
    /// The engine's storage. The runtime that it is run on must use it ([`super::Layer::blobs`]).
    pub fn blobs(&self) -> BlobLog {
        self.deps.blobs.clone()
    }

    /// Runs until the task is aborted, the subnet's [`super::Subnet`] is dropped, or a part of the
    /// engine ends.
    ///
    /// `storage` begins the names of everything that is stored in the runtime's storage.
    pub async fn run<E, S, R, P, B>(
        self,
        context: E,
        storage: String,
        transport: Transport<S, R, P, B>,
    ) where
        E: Clock + CryptoRng + Spawner + Storage + Metrics,
        S: Sender<PublicKey = PublicKey>,
        R: Receiver<PublicKey = PublicKey>,
        P: Provider<PublicKey = PublicKey>,
        B: Blocker<PublicKey = PublicKey>,
    {
        self.deps.blobs.start(context.child("blobs"));
        // An actor that panics, as it does when the disk fails it for good, ends the task that this
        // runs in.
        let context = LayeredRuntime::new(
            context.child("machine"),
            StorageRetry::new(context, self.deps.pool.health().clone()),
        );
        self.run_on(context, storage, transport).await;
    }

    /// Carries calls and state roots, starts the chain, finds the block from which consensus
    /// resumes, and runs one epoch after the other.
    #[expect(
        clippy::too_many_lines,
        reason = "wiring: every part is made once, in the order in which they need each other"
    )]
    async fn run_on<E, S, R, P, B>(
        self,
        mut context: E,
        storage: String,
        transport: Transport<S, R, P, B>,
    ) where
        E: Clock + CryptoRng + Spawner + Storage + Metrics,
        S: Sender<PublicKey = PublicKey>,
        R: Receiver<PublicKey = PublicKey>,
        P: Provider<PublicKey = PublicKey>,
        B: Blocker<PublicKey = PublicKey>,
    {
        let Self { deps, genesis, agreed, floor, progress, input_tx, executed_rx, commands_rx } =
            self;
        let Transport { channels, peers, blocker, mut peering } = transport;
        peering(&deps.resharing.summary());
        let scorer = PeerScorer::new(peers::block_with(blocker.clone()));
        let cache = page_cache();

        let calls = Calls::new(calls::Config {
            pool: deps.pool.clone(),
            envelopes: deps.envelopes.clone(),
            clock: deps.clock.clone(),
            journal: deps.journal.clone(),
            bounds: deps.name_bounds(),
            scorer: scorer.clone(),
            sender: channels.calls.0,
        });
        share_pool(&deps, &input_tx);
        let work_available = deps.published.work_available.clone();
        context.child("announce").spawn({
            let calls = calls.clone();
            move |context| calls.gossip_ingress(context, work_available)
        });
        let places: calls::PeerNumbers = Arc::new({
            let resharing = deps.resharing.clone();
            move |peer| resharing.peer(peer)
        });
        calls::start(&context, &calls, places, &deps.log, channels.calls.1);

        let roots = Roots::new(shares::Config {
            deps: deps.clone(),
            agreed,
            certification_tx: progress.certification_tx,
            sender: channels.roots.0,
            input_tx: input_tx.clone(),
            scorer: scorer.clone(),
        });
        let roots_rx = channels.roots.1;
        let roots = context
            .child("roots")
            .dedicated()
            .spawn(move |context| roots.run(context, executed_rx, roots_rx));

        start_outcalls(&context, &deps, channels.outcalls, scorer.clone());

        let floor = verified_floor(&mut context, floor, &deps.schemes);
        let chain = Chain {
            storage: &storage,
            cache: cache.clone(),
            deps: &deps,
            peers,
            blocker: blocker.clone(),
            start: chain_start(floor.as_ref(), genesis),
        };
        let opened = match chain.open(&context).await {
            Ok(opened) => opened,
            Err(error) => {
                tracing::error!(%error, "the engine's storage cannot be opened");
                return;
            }
        };
        let (deliveries_tx, deliveries_rx) = mpsc::channel(UNACKNOWLEDGED_MAX);
        let application = Application {
            deps: deps.clone(),
            calls: calls.clone(),
            deliveries_tx,
            batching: Arc::default(),
        };
        let (marshal, processed, ended) = chain
            .start(&context, opened, channels.backfill, channels.broadcast, application.clone())
            .await;

        let processed = processed.processed().map_or(0, |processed| processed.height().get());
        let Some((epoch, root)) = resume(processed, floor, &deps) else { return };
        let state_sync = StateSync::new(
            &context,
            state_sync::Config {
                deps: deps.clone(),
                state_sync_tx: progress.state_sync_tx,
                marshal: marshal.clone(),
                sender: channels.sync.0,
                input_tx: input_tx.clone(),
                commands_rx,
                scorer,
            },
        );
        let sync_rx = channels.sync.1;
        context.child("state_sync").spawn(move |context| state_sync.run(context, sync_rx));
        let delivery = Delivery {
            deps: deps.clone(),
            delivery_tx: progress.delivery_tx,
            calls,
            input_tx,
            marshal: marshal.clone(),
            pruned: Height(0),
            peering,
            unacknowledged: VecDeque::with_capacity(UNACKNOWLEDGED_MAX),
        };
        let (durable_tx, durable_rx) = mpsc::channel(UNACKNOWLEDGED_MAX);
        let delivery: Handle<()> = context
            .child("delivery")
            .spawn(move |context| delivery.run(context, deliveries_rx, durable_tx));
        let timing = Timing::from_limits(&deps.limits);
        let epochs = Epochs {
            storage,
            cache,
            blocker,
            timing,
            application,
            marshal,
            channels: EpochChannels::new(channels.votes, channels.certificates, channels.resolver),
            speakers: RecentSpeakers::new(context.child("presence"), deps.me.clone(), timing.skip),
            tasks: Tasks { chain: ended, roots, delivery },
            durable_rx,
            deps,
        };
        epochs.run(context, epoch, root).await;
    }
}

/// Agrees on answers to outcalls, if the subnet makes outcalls. Otherwise messages of peers are
/// dropped with the channel.
fn start_outcalls<E, S, R>(context: &E, deps: &Deps, (sender, receiver): (S, R), scorer: PeerScorer)
where
    E: Clock + Spawner,
    S: Sender<PublicKey = PublicKey>,
    R: Receiver<PublicKey = PublicKey>,
{
    let Some(outcalls) = deps.outcalls.clone() else { return };
    let resharing = deps.resharing.clone();
    let node_ids: NodeIds = Arc::new(move |member| resharing.node_id(member));
    let agreement = Agreement::new(outcalls::Config {
        outcalls,
        pool: deps.pool.clone(),
        schedule: deps.schedule.clone(),
        me: deps.me.clone(),
        node_ids,
        sender,
        scorer,
    });
    let task = context.child("outcalls").dedicated();
    task.spawn(move |context| agreement.run(context, receiver));
}

/// Makes the pool wake the proposer when a call arrives, and the driver when it closes.
fn share_pool(deps: &Deps, input_tx: &futures::channel::mpsc::Sender<Input>) {
    let (work, input_tx) = (deps.published.work_available.clone(), input_tx.clone());
    let closing = Arc::downgrade(&deps.pool);
    deps.pool.share_among(deps.resharing.summary().members().len(), move || {
        // `notify_one` is kept for a task that looks away at the moment.
        work.notify_waiters();
        work.notify_one();
        if closing.upgrade().is_none_or(|pool| pool.closing()) {
            let _ = input_tx.clone().try_send(Input::Wake);
        }
    });
}

/// The floor to begin above, if it is the subnet's: the engine takes it for granted. A floor of an
/// epoch long before the state is of no use any more: the engine is past it.
fn verified_floor(
    rng: &mut impl CryptoRng,
    floor: Option<Floor>,
    schemes: &Schemes,
) -> Option<Floor> {
    floor.filter(|floor| {
        let Some(scheme) = schemes.get(floor.finalization.epoch()) else { return false };
        let holds = floor.finalization.verify(rng, &*scheme, &Sequential);
        if !holds {
            tracing::error!(
                height = floor.height.0,
                "the finalization to begin above is not the subnet's"
            );
        }
        holds
    })
}

fn chain_start(floor: Option<&Floor>, genesis: Block) -> Start<Scheme, Digest, Digested<Block>> {
    match floor {
        Some(floor) => Start::Floor(floor.finalization.clone()),
        None => {
            let digest = genesis.digest();
            Start::Genesis(Digested::precomputed(genesis, digest))
        }
    }
}

/// The block from which consensus resumes: above the blocks that marshal handed out and those in
/// the block log, whichever is more. The block before an epoch's first is final and in both.
fn resume(
    processed: u64,
    floor: Option<Floor>,
    deps: &Deps,
) -> Option<(Epoch, EngineFloor<Scheme, Digest>)> {
    let next = EngineHeight::new(processed.max(deps.published.logged.0) + 1);
    let Some(epoch) = deps.epocher.containing(next).map(|bounds| bounds.epoch()) else {
        tracing::error!(height = next.get(), "no epoch contains the next height");
        return None;
    };
    let root = match floor {
        // One that marshal is past says nothing any more.
        Some(Floor { height, finalization, .. })
            if height.0 > processed && finalization.epoch() == epoch =>
        {
            EngineFloor::Finalized(finalization)
        }
        _ => EngineFloor::Genesis(deps.resharing.boundary()),
    };
    Some((epoch, root))
}
