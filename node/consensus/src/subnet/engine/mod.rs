//! The engine of one node: block dissemination and storage, a simplex engine per epoch, and the
//! tasks that carry calls and state roots.
//!
//! Generic in the runtime and the network, so that the fault tests run exactly this under a
//! simulated clock, network and disk.
//!
//! ```text
//!  peers: votes, certificates, fetches        backfill, broadcast      calls        roots     sync
//!            |                                       |                   |            |         |
//!  [`epochs`] one simplex engine per epoch <-> [`chain`] marshal    [`Calls`]    [`Roots`]  [`StateSync`]
//!            | proposes, votes (Application)         | final blocks      |            |         |
//!            |                                       v deliveries (4)    |            |         |
//!            |<--------- durable (4) --------- [`delivery`] <-- gathers -+            |         |
//!                                                    |                                |         |
//!                                                    v input (8 and one per sender)   v         v
//!                                                  the driver: executes, appends to the block log
//!                                                    | executed (8) -> Roots    commands (2) -> StateSync
//! ```
//!
//! Every channel is bounded; the number is how many messages it holds. Senders wait on a full
//! channel, except marshal, which never has more than [`PENDING_MAX`] blocks under way. State that
//! needs no message is published (see [`super::published`]).
//!
//! Finalised blocks are handed out in height order, each once its calls are present; the next
//! blocks wait behind it, at most [`PENDING_MAX`] of them, in storage otherwise. A block is
//! acknowledged, and so never handed out again after a restart, when its receiver reports it as
//! durable.

mod chain;
mod delivery;
mod epochs;
pub(super) mod setup;

use std::sync::Arc;

use commonware_consensus::{
    Epochable as _,
    marshal::{Start, core::Mailbox as MarshalMailbox, standard::Standard},
    simplex::Floor as EngineFloor,
    types::{Epoch, Epocher as _, FixedEpocher, Height as EngineHeight},
};
use commonware_cryptography::{Digested, Digestible as _, ed25519::PublicKey};
use commonware_p2p::{Blocker, Provider, Receiver, Sender};
use commonware_parallel::Sequential;
use commonware_runtime::{Clock, Handle, Metrics, Spawner, Storage, buffer::paged::CacheRef};
use commonware_utils::{NZU16, NZUsize, channel::mpsc};
use rand_core::CryptoRng;
use state::Height;

pub use self::setup::{ChannelName, Channels, IdentityLayer, Peering, SenderLayer};
pub(super) use self::setup::{EngineOwned, Schemes, Setup, Timing, block_bounds};
use self::{
    chain::Chain,
    delivery::Delivery,
    epochs::{Epochs, Subchannels, Tasks},
};
use super::{
    Input,
    application::Application,
    block::{Block, NameBounds},
    calls::{self, Calls},
    greeting::Greeting,
    outcalls::{Agreement, NodeIds},
    peers::{self, PeerScorer},
    published::ProgressReaders,
    recent_speakers::RecentSpeakers,
    resharing::Resharing,
    scheme::Scheme,
    shares::Roots,
    state_sync::{Config as StateSyncConfig, Floor, StateSync},
};
use crate::{Certifier, IngressPool, Outcalls, certifier::CommitteeSchedule};

/// Finalised blocks handed out and not yet durable.
pub(super) const PENDING_MAX: usize = 4;
/// Messages that wait for an actor of the engine.
const MAILBOX: usize = 64;

pub(super) type Mailbox = MarshalMailbox<Scheme, Standard<Block>>;

/// Bytes of the cache over the engine's own storage: half a megabyte, where its authors' examples
/// take a hundred and sixty.
fn page_cache() -> CacheRef {
    CacheRef::new(NZU16!(4084), NZUsize!(128))
}

/// Runs until the task is aborted or one of the actors ends: carries calls and state roots, starts
/// the chain, finds the block from which consensus resumes, and runs one epoch after the other.
#[expect(
    clippy::too_many_lines,
    reason = "wiring: every part is made once, in the order in which they need each other"
)]
pub(super) async fn run<E, S, R, P, B>(mut context: E, mut setup: Setup<S, R, P, B>)
where
    E: Clock + CryptoRng + Spawner + Storage + Metrics,
    S: Sender<PublicKey = PublicKey>,
    R: Receiver<PublicKey = PublicKey>,
    P: Provider<PublicKey = PublicKey>,
    B: Blocker<PublicKey = PublicKey>,
{
    (setup.peering)(&setup.resharing.summary());
    let scorer = PeerScorer::new(peers::block_with(setup.blocker.clone()));
    let (published, resharing, schemes) =
        (setup.published.clone(), setup.resharing.clone(), setup.schemes.clone());
    let (cache, bounds) = (page_cache(), setup::bounds(&setup.limits));
    let names = NameBounds {
        calls: setup.limits.block_ingress_messages,
        bytes: setup.limits.block_ingress_bytes,
        call_bytes: setup.call_bytes,
    };

    let calls = Calls::new(
        (setup.pool.clone(), setup.envelopes, setup.clock.clone()),
        setup.journal,
        names,
        scorer.clone(),
        setup.channels.calls.0,
    );
    share_pool(&setup.pool, &resharing, &published, &setup.input_tx);
    let work_available = published.work_available.clone();
    context.child("announce").spawn({
        let calls = calls.clone();
        move |context| calls.gossip_ingress(context, work_available)
    });
    let places: calls::PeerNumbers = Arc::new({
        let resharing = resharing.clone();
        move |peer| resharing.peer(peer)
    });
    calls::start(&context, &calls, places, &setup.log, setup.channels.calls.1);

    let heights_max = usize::try_from(setup.limits.certificates_kept).unwrap_or(usize::MAX);
    let roots = Roots::new(
        (Certifier::with_schedule(setup.schedule.clone(), heights_max), setup.schedule.clone()),
        resharing.clone(),
        Greeting::new(setup.me.clone(), setup.agreed),
        (published.clone(), setup.owned.certification_tx),
        setup.channels.roots.0,
        setup.input_tx.clone(),
        scorer.clone(),
    );
    let (executed_rx, roots_rx) = (setup.executed_rx, setup.channels.roots.1);
    let roots = context
        .child("roots")
        .dedicated()
        .spawn(move |context| roots.run(context, executed_rx, roots_rx));

    start_outcalls(
        &context,
        setup.outcalls.map(|outcalls| (outcalls, setup.pool.clone())),
        (setup.schedule.clone(), setup.me.clone(), resharing.clone()),
        setup.channels.outcalls,
        scorer.clone(),
    );

    let floor = verified_floor(&mut context, setup.floor, &schemes);
    if let Some(floor) = &floor {
        published.consensus.finalised(floor.finalization.clone());
    }
    let chain = Chain {
        storage: &setup.storage,
        cache: cache.clone(),
        bounds,
        me: setup.me.clone(),
        peers: setup.peers,
        blocker: setup.blocker.clone(),
        schemes: schemes.clone(),
        epocher: setup.epocher.clone(),
        start: chain_start(floor.as_ref(), setup.genesis),
    };
    let opened = match chain.open(&context).await {
        Ok(opened) => opened,
        Err(error) => {
            tracing::error!(%error, "the engine's storage cannot be opened");
            return;
        }
    };
    let sync_bytes_per_second = setup.limits.sync_bytes_per_second;
    let (deliveries_tx, deliveries_rx) = mpsc::channel(PENDING_MAX);
    let application = Application {
        published: published.clone(),
        pool: setup.pool.clone(),
        calls: calls.clone(),
        resharing: resharing.clone(),
        limits: setup.limits,
        names,
        verifier: schemes.lasting.clone(),
        deliveries_tx,
        clock: setup.clock,
        queries: setup.queries,
    };
    let carriers = (setup.channels.backfill, setup.channels.broadcast);
    let (marshal, processed, ended) =
        chain.start(&context, opened, carriers, application.clone()).await;

    let processed = processed.processed().map_or(0, |processed| processed.height().get());
    let Some((epoch, root)) =
        resume(processed, floor, &published, &resharing, &setup.epocher, &marshal).await
    else {
        return;
    };
    let state_sync = StateSync::new(
        &context,
        StateSyncConfig {
            me: setup.me.clone(),
            resharing: resharing.clone(),
            public_key: setup.public_key,
            verifier: schemes.lasting.clone(),
            bounds,
            published: published.clone(),
            state_sync_tx: setup.owned.state_sync_tx,
            marshal: marshal.clone(),
            log: setup.log,
            states: setup.states,
            bytes_per_second: sync_bytes_per_second,
            sender: setup.channels.sync.0,
            input_tx: setup.input_tx.clone(),
            commands_rx: setup.commands_rx,
            scorer,
        },
    );
    let sync_rx = setup.channels.sync.1;
    context.child("state_sync").spawn(move |context| state_sync.run(context, sync_rx));
    let delivery = Delivery {
        published: published.clone(),
        delivery_tx: setup.owned.delivery_tx,
        pool: setup.pool,
        calls,
        input_tx: setup.input_tx,
        marshal: marshal.clone(),
        pruned: Height(0),
        resharing: resharing.clone(),
        schemes: schemes.clone(),
        schedule: setup.schedule,
        peering: setup.peering,
    };
    let (durable_tx, durable_rx) = mpsc::channel(PENDING_MAX);
    let delivery: Handle<()> = context
        .child("delivery")
        .spawn(move |context| delivery.run(context, deliveries_rx, durable_tx));
    let epochs = Epochs {
        storage: setup.storage,
        cache,
        blocker: setup.blocker,
        schemes,
        epocher: setup.epocher,
        timing: setup.timing,
        published,
        resharing,
        application,
        marshal,
        channels: Subchannels::start(
            &context,
            setup.channels.votes,
            setup.channels.certificates,
            setup.channels.resolver,
        ),
        speakers: RecentSpeakers::new(context.child("presence"), setup.me, setup.timing.skip),
        tasks: Tasks { chain: ended, roots, delivery },
        durable_rx,
    };
    epochs.run(context, epoch, root).await;
}

/// Agrees on answers to outcalls, if the subnet makes outcalls. Otherwise messages of peers are
/// dropped with the channel.
fn start_outcalls<E, S, R>(
    context: &E,
    outcalls: Option<(Arc<Outcalls>, Arc<IngressPool>)>,
    (schedule, me, resharing): (CommitteeSchedule, PublicKey, Arc<Resharing>),
    (sender, receiver): (S, R),
    scorer: PeerScorer,
) where
    E: Clock + Spawner,
    S: Sender<PublicKey = PublicKey>,
    R: Receiver<PublicKey = PublicKey>,
{
    let Some(outcalls) = outcalls else { return };
    let node_ids: NodeIds = Arc::new(move |member| resharing.node_id(member));
    let agreement = Agreement::new(outcalls, schedule, (me, node_ids), sender, scorer);
    let task = context.child("outcalls").dedicated();
    task.spawn(move |context| agreement.run(context, receiver));
}

/// Makes the pool wake the proposer when a call arrives, and the driver when it closes.
fn share_pool(
    pool: &Arc<IngressPool>,
    resharing: &Resharing,
    published: &ProgressReaders,
    out: &futures::channel::mpsc::Sender<Input>,
) {
    let (work, out, closing) =
        (published.work_available.clone(), out.clone(), Arc::downgrade(pool));
    pool.share_among(resharing.summary().members().len(), move || {
        // `notify_one` is kept for a task that looks away at the moment.
        work.notify_waiters();
        work.notify_one();
        if closing.upgrade().is_none_or(|pool| pool.closing()) {
            let _ = out.clone().try_send(Input::Wake);
        }
    });
}

/// The floor to begin above, if it is the subnet's: the engine takes it for granted.
fn verified_floor(
    rng: &mut impl CryptoRng,
    floor: Option<Floor>,
    schemes: &Schemes,
) -> Option<Floor> {
    floor.filter(|floor| {
        let holds = floor.finalization.verify(rng, &*schemes.lasting, &Sequential);
        if !holds {
            tracing::error!(
                height = floor.height.0,
                "the finalization to begin above is not the subnet's"
            );
        }
        holds
    })
}

fn chain_start(
    floor: Option<&Floor>,
    genesis: Block,
) -> Start<Scheme, super::block::Digest, Digested<Block>> {
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
async fn resume(
    processed: u64,
    floor: Option<Floor>,
    published: &ProgressReaders,
    resharing: &Resharing,
    epocher: &FixedEpocher,
    marshal: &Mailbox,
) -> Option<(Epoch, EngineFloor<Scheme, super::block::Digest>)> {
    let next = EngineHeight::new(processed.max(published.logged.0) + 1);
    let Some(epoch) = epocher.containing(next).map(|bounds| bounds.epoch()) else {
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
        _ => EngineFloor::Genesis(resharing.boundary()),
    };
    // The first block of an epoch carries the finalization of the last one of the epoch before.
    if let Some(before) = epoch.previous().and_then(|before| epocher.last(before))
        && let Some(finalization) = marshal.get_finalization(before).await
    {
        published.consensus.finalised(finalization);
    }
    Some((epoch, root))
}
