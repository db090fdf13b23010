//! The loop over epochs: each has a simplex engine of its own, with its committee's keys, on
//! subchannels of its own, and with votes stored under its number.

use commonware_consensus::{
    Reporters,
    marshal::standard::Inline,
    simplex::{
        self, Engine, Floor as EngineFloor, ForwardPolicy, SkipBudget, SkipPolicy,
        elector::RoundRobin,
    },
    types::{Epoch, Epocher as _, Height as EngineHeight, ViewDelta},
};
use std::{sync::Arc, time::Duration};

use commonware_cryptography::{Sha256, ed25519::PublicKey};
use commonware_macros::select;
use commonware_p2p::{Blocker, Receiver, Sender};
use commonware_parallel::Sequential;
use commonware_runtime::{Clock, Handle, Metrics, Spawner, Storage, buffer::paged::CacheRef};
use commonware_utils::{NZDuration, NZUsize, channel::mpsc, vec::NonEmptyVec};
use rand_core::CryptoRng;

use super::{
    super::{
        application::Application, block::Digest, deps::Deps, key::Scheme, published::Observer,
        recent_speakers::RecentSpeakers,
    },
    MAILBOX, Mailbox,
    chain::ChainTask,
    config::Timing,
    epoch_channels::{EpochChannel, EpochMessage},
};

/// The three consensus channels.
pub(super) struct EpochChannels<S: Sender<PublicKey = PublicKey>, R> {
    votes: EpochChannel<S, R>,
    /// Votes of epochs that this node is not in.
    other_epochs: mpsc::Receiver<EpochMessage>,
    certificates: EpochChannel<S, R>,
    fetches: EpochChannel<S, R>,
}

impl<S, R> EpochChannels<S, R>
where
    S: Sender<PublicKey = PublicKey>,
    R: Receiver<PublicKey = PublicKey>,
{
    pub(super) fn new(votes: (S, R), certificates: (S, R), fetches: (S, R)) -> Self {
        let (votes, other_epochs) = EpochChannel::with_others(votes);
        Self {
            votes,
            other_epochs,
            certificates: EpochChannel::new(certificates),
            fetches: EpochChannel::new(fetches),
        }
    }
}

pub(super) struct Tasks {
    pub(super) chain: ChainTask,
    pub(super) roots: Handle<()>,
    pub(super) delivery: Handle<()>,
}

pub(super) struct Epochs<S, R, B, C>
where
    S: Sender<PublicKey = PublicKey>,
{
    /// Begins the names of everything this node stores.
    pub(super) storage: String,
    pub(super) cache: CacheRef,
    pub(super) blocker: B,
    pub(super) deps: Arc<Deps>,
    pub(super) timing: Timing,
    pub(super) application: Application<S>,
    pub(super) marshal: Mailbox,
    pub(super) channels: EpochChannels<S, R>,
    pub(super) speakers: Arc<RecentSpeakers<C>>,
    pub(super) tasks: Tasks,
    /// Durable heights, with the digests of their blocks.
    pub(super) durable_rx: mpsc::Receiver<(EngineHeight, Digest)>,
}

impl<S, R, B, C> Epochs<S, R, B, C>
where
    S: Sender<PublicKey = PublicKey>,
    R: Receiver<PublicKey = PublicKey>,
    B: Blocker<PublicKey = PublicKey>,
    C: Clock,
{
    /// One epoch after the other, from this one on, which begins with `root`. Ends when a task that
    /// it needs does.
    pub(super) async fn run<E>(
        mut self,
        context: E,
        mut epoch: Epoch,
        mut root: EngineFloor<Scheme, Digest>,
    ) where
        E: Clock + CryptoRng + Spawner + Storage + Metrics,
    {
        loop {
            let Some(mut engine) = self.start_engine(&context, epoch, root) else { return };
            context.child("dealing").spawn({
                let resharing = self.deps.resharing.clone();
                move |context| resharing.deal(context)
            });
            let Some(last) = self.deps.epocher.last(epoch) else { return };
            let Some(boundary) = self.wait_for_epoch_end(epoch, last, &mut engine).await else {
                return;
            };
            engine.abort();
            // Its storage can be open once only.
            let _ = engine.await;
            self.remove_votes(&context, epoch).await;
            epoch = epoch.next();
            root = EngineFloor::Genesis(boundary);
        }
    }

    fn start_engine<E>(
        &self,
        context: &E,
        epoch: Epoch,
        floor: EngineFloor<Scheme, Digest>,
    ) -> Option<Handle<()>>
    where
        E: Clock + CryptoRng + Spawner + Storage + Metrics,
    {
        let Some(scheme) = self.deps.schemes.get(epoch) else {
            tracing::error!(epoch = epoch.get(), "the members of the epoch are not known");
            return None;
        };
        let application = Inline::new(
            context.child("application").with_attribute("epoch", epoch),
            self.application.clone(),
            self.marshal.clone(),
            self.deps.epocher.clone(),
        );
        let engine = Engine::new(
            context.child("engine").with_attribute("epoch", epoch),
            simplex::Config {
                scheme: (*scheme).clone(),
                elector: RoundRobin::<Sha256>::default(),
                blocker: self.blocker.clone(),
                automaton: application.clone(),
                relay: application.clone(),
                reporter: Reporters::from((application, Observer(self.deps.published.clone()))),
                track_historical_votes: false,
                strategy: Sequential,
                partition: votes_partition(&self.storage, epoch),
                mailbox_size: NZUsize!(MAILBOX),
                epoch,
                floor,
                replay_buffer: NZUsize!(64 << 10),
                write_buffer: NZUsize!(16 << 10),
                page_cache: self.cache.clone(),
                leader_timeout: self.timing.leader,
                certification_timeout: self.timing.certification,
                timeout_retry: self.timing.retry,
                view_retention: ViewDelta::new(32),
                skip: SkipPolicy::Enabled {
                    timeout: self.timing.skip,
                    budget: SkipBudget::Participants,
                },
                fetch_timeout: NZDuration!(Duration::from_secs(1)),
                fetch_retry_delay: Duration::from_millis(100),
                forward: ForwardPolicy::SilentVoters,
            },
        );
        let EpochChannels { votes, certificates, fetches, .. } = &self.channels;
        let (vote_tx, vote_rx) = votes.ends(epoch);
        let vote_rx = self.speakers.prime_votes(vote_rx, &scheme, epoch);
        Some(engine.start((vote_tx, vote_rx), certificates.ends(epoch), fetches.ends(epoch)))
    }

    /// Lasts until the epoch's last block is durable, and gives its digest. None when something
    /// that the epoch needs ended.
    async fn wait_for_epoch_end(
        &mut self,
        epoch: Epoch,
        last: EngineHeight,
        engine: &mut Handle<()>,
    ) -> Option<Digest> {
        loop {
            select! {
                _ = &mut self.tasks.chain => {
                    tracing::error!("block dissemination ended");
                    return None;
                },
                _ = &mut *engine => {
                    tracing::error!("the consensus engine ended");
                    return None;
                },
                _ = &mut self.tasks.roots => return None,
                message = self.channels.other_epochs.recv() => {
                    // This loop holds the other end.
                    let (theirs, (from, _)) = message?;
                    // Votes of a later epoch mean that its boundary was finalised: ask the voter
                    // for it.
                    if theirs > epoch.get() {
                        self.marshal.hint_finalized(last, NonEmptyVec::new(from));
                    }
                },
                _ = &mut self.tasks.delivery => return None,
                durable = self.durable_rx.recv() => {
                    let (height, digest) = durable?;
                    if height >= last {
                        return Some(digest);
                    }
                },
            }
        }
    }

    /// The engine of the epoch before cannot be entered again: what it voted is of no use to
    /// anybody.
    async fn remove_votes(&self, context: &impl Storage, epoch: Epoch) {
        let Some(before) = epoch.previous() else { return };
        match context.remove(&votes_partition(&self.storage, before), None).await {
            Ok(()) | Err(commonware_runtime::Error::PartitionMissing(_)) => {}
            Err(error) => {
                let epoch = before.get();
                tracing::warn!(%error, epoch, "votes of a past epoch cannot be removed");
            }
        }
    }
}

fn votes_partition(storage: &str, epoch: Epoch) -> String {
    format!("{storage}simplex-{epoch}")
}
