//! What the engine asks of the node: blocks to propose, blocks to judge, and that finalised ones are taken.
//!
//! Pace. With calls or other work waiting, a block follows its parent at once; without, after the idle interval. Consensus does not slow down by itself when
//! execution does, so a proposal waits while execution lags, and declines if it lags on: the chain then goes at the speed of 2f+1 nodes' execution.
//!
//! Judging. A block is voted for when its time lies after its parent's and not beyond this node's clock and drift, its seed is the one of the parent's
//! round, its calls are there, were signed by their senders, are not void, fit a block together, and stand in no unexecuted ancestor. What may still become
//! true (calls under way, a clock behind, execution behind) is waited for, until the engine gives the round up; a refusal is for good.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use commonware_actor::Feedback;
use commonware_consensus::{
    Application as Engine, Epochable as _, Heightable as _, Reporter,
    marshal::{Update, ancestry::Ancestry},
    simplex::{
        scheme::bls12381_threshold::vrf::Seedable as _,
        types::{Activity, Context},
    },
    types::{Epoch, Height as EngineHeight, Round, View},
};
use commonware_cryptography::{Digested, Digestible as _, ed25519::PublicKey};
use commonware_macros::select;
use commonware_p2p::Sender;
use commonware_parallel::Sequential;
use commonware_runtime::{Clock, Spawner};
use commonware_utils::{
    acknowledgement::Exact,
    channel::mpsc,
    sync::{Mutex, Notify},
};
use futures::StreamExt as _;
use limits::ConsensusLimits;
use rand_core::CryptoRng;
use state::{Height, IngressId, Time};

use super::{
    block::{Block, Digest, KeyPayload},
    calls::Calls,
    handover::Handover,
    key::{Scheme, Seed},
};
use crate::{Demand, IngressPool, SyncProgress};

/// How long a proposal waits for execution before it declines. Declining hands the lead on at once, so lagging nodes would pass it round in circles.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long a proposal waits for the seed of its parent's round, which comes with the certificate that made the parent final enough to build on.
const SEED_PATIENCE: Duration = Duration::from_millis(500);
/// How far a block's time may be ahead of a voter's clock: beyond, the vote waits.
const DRIFT: Duration = Duration::from_millis(500);
/// Blocks behind at which a node says that it is catching up.
const BEHIND: u64 = 20;
/// Without a block for so long it is not blocks that a node catches up by: see [`super::catchup`].
const STUCK: Duration = Duration::from_secs(20);
/// Between two such words.
const SAY_AGAIN: Duration = Duration::from_secs(10);
/// Seeds remembered, one per round.
const SEEDS_KEPT: usize = 64;

pub(super) fn time_of(time: SystemTime) -> Time {
    Time(
        time.duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)),
    )
}

fn instant(time: Time) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(time.0)
}

/// What the parts of a subnet's node know together, and what of it others may read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Newest height known to be final.
    pub finalised: Height,
    /// Newest height executed here.
    pub executed: Height,
    /// Newest height certified here.
    pub certified: Height,
    /// Rounds given up without a block since the start.
    pub nullified: u64,
    /// Proofs seen that a node voted twice.
    pub equivocations: u64,
}

#[derive(Default)]
struct Inner {
    progress: Progress,
    demand: Demand,
    seeds: BTreeMap<Round, Seed>,
    /// Calls of blocks that are final and not executed: out of the pool, and not in the state.
    unexecuted: BTreeMap<Height, Vec<IngressId>>,
    /// Newest height in the block log.
    logged: Height,
    /// Newest height whose block and calls were handed out.
    reached: Height,
    /// A state is being taken over from peers.
    syncing: Option<SyncProgress>,
    /// Blocks below are not kept for others.
    floor: Height,
    /// Newest height each member signed, by place.
    heard: Vec<Height>,
    watched: Watched,
}

/// Whether this node falls behind without a sound.
#[derive(Clone, Copy, Default)]
struct Watched {
    executed: Height,
    /// When execution last moved, or there was nothing to execute.
    moved: Option<SystemTime>,
    said: Option<SystemTime>,
}

/// See [`Progress`].
pub(super) struct Shared {
    inner: Mutex<Inner>,
    /// Execution advanced, or a seed came.
    moved: Notify,
    /// There may be something to put into a block.
    pub(super) work: Arc<Notify>,
}

impl Shared {
    pub(super) fn new(executed: Height, logged: Height) -> Arc<Self> {
        let progress = Progress { executed, ..Progress::default() };
        Arc::new(Self {
            inner: Mutex::new(Inner { progress, logged, reached: logged, ..Inner::default() }),
            moved: Notify::new(),
            work: Arc::default(),
        })
    }

    pub(super) fn progress(&self) -> Progress {
        self.inner.lock().progress
    }

    pub(super) fn certified(&self, height: Height) {
        let mut inner = self.inner.lock();
        inner.progress.certified = inner.progress.certified.max(height);
    }

    pub(super) fn executed(&self, height: Height) {
        {
            let mut inner = self.inner.lock();
            inner.progress.executed = inner.progress.executed.max(height);
            inner.unexecuted = inner.unexecuted.split_off(&Height(height.0 + 1));
        }
        self.moved.notify_waiters();
    }

    pub(super) fn heard(&self) -> Vec<Height> {
        self.inner.lock().heard.clone()
    }

    pub(super) fn hear(&self, place: usize, height: Height) {
        let mut inner = self.inner.lock();
        if inner.heard.len() <= place {
            inner.heard.resize(place + 1, Height(0));
        }
        inner.heard[place] = inner.heard[place].max(height);
    }

    /// Says so when this node is behind and its peers' blocks bring it closer. To be called every second or so.
    pub(super) fn watch(&self, now: SystemTime) {
        let mut inner = self.inner.lock();
        let Progress { finalised, executed, .. } = inner.progress;
        let watched = &mut inner.watched;
        if executed > watched.executed || finalised.0 <= executed.0 + 1 {
            *watched = Watched { executed, moved: Some(now), said: watched.said };
        }
        let since = |time: Option<SystemTime>| time.map(|time| now.duration_since(time).unwrap_or_default());
        let behind = finalised.0.saturating_sub(executed.0);
        let due = since(watched.said).is_none_or(|since| since >= SAY_AGAIN);
        match since(watched.moved) {
            Some(still) if still < STUCK && behind > BEHIND && due => {
                watched.said = Some(now);
                tracing::warn!(
                    behind,
                    executed = executed.0,
                    finalised = finalised.0,
                    "behind the subnet, catching up from its peers' blocks"
                );
            }
            _ => {}
        }
    }

    pub(super) fn logged(&self) -> Height {
        self.inner.lock().logged
    }

    pub(super) fn floor(&self) -> Height {
        self.inner.lock().floor
    }

    pub(super) fn raise_floor(&self, floor: Height) {
        let mut inner = self.inner.lock();
        inner.floor = inner.floor.max(floor);
    }

    pub(super) fn delivered(&self, height: Height, ingress: Vec<IngressId>) {
        let mut inner = self.inner.lock();
        inner.unexecuted.insert(height, ingress);
        inner.reached = inner.reached.max(height);
    }

    /// Newest height whose block and calls this node has.
    pub(super) fn reached(&self) -> Height {
        self.inner.lock().reached
    }

    /// The height that so many members signed, or a later one.
    pub(super) fn heard_by(&self, members: usize) -> Height {
        let mut heard = self.inner.lock().heard.clone();
        heard.sort_unstable_by(|a, b| b.cmp(a));
        heard.get(members.saturating_sub(1)).copied().unwrap_or_default()
    }

    pub(super) fn syncing(&self, progress: Option<SyncProgress>) {
        self.inner.lock().syncing = progress;
    }

    pub(super) fn state_sync(&self) -> Option<SyncProgress> {
        self.inner.lock().syncing
    }

    pub(super) fn demand(&self, demand: Demand) {
        let changed = {
            let mut inner = self.inner.lock();
            let changed = inner.demand != demand;
            inner.demand = demand;
            changed
        };
        if changed {
            self.work.notify_waiters();
        }
    }

    fn seed(&self, round: Round) -> Option<Seed> {
        self.inner.lock().seeds.get(&round).cloned()
    }

    fn newest_seed(&self, epoch: Epoch) -> Option<Seed> {
        let inner = self.inner.lock();
        inner.seeds.values().rev().find(|seed| seed.epoch() == epoch).cloned()
    }

    pub(super) fn remember(&self, seed: Seed) {
        {
            let mut inner = self.inner.lock();
            inner.seeds.insert(seed.round, seed);
            while inner.seeds.len() > SEEDS_KEPT {
                inner.seeds.pop_first();
            }
        }
        self.moved.notify_waiters();
    }
}

/// Hears what the engine saw.
#[derive(Clone)]
pub(super) struct Observer(pub(super) Arc<Shared>);

impl Reporter for Observer {
    type Activity = Activity<Scheme, Digest>;

    fn report(&mut self, activity: Self::Activity) -> Feedback {
        match activity {
            Activity::Notarization(notarization) | Activity::Certification(notarization) => {
                self.0.remember(notarization.seed());
            }
            Activity::Finalization(finalization) => self.0.remember(finalization.seed()),
            Activity::Nullification(_) => self.0.inner.lock().progress.nullified += 1,
            Activity::ConflictingNotarize(_)
            | Activity::ConflictingFinalize(_)
            | Activity::NullifyFinalize(_) => self.0.inner.lock().progress.equivocations += 1,
            _ => {}
        }
        Feedback::Ok
    }
}

/// See the module.
#[derive(Clone)]
pub(super) struct Application<S> {
    pub(super) shared: Arc<Shared>,
    pub(super) pool: Arc<IngressPool>,
    pub(super) calls: Calls<S>,
    pub(super) handover: Arc<Handover>,
    pub(super) limits: ConsensusLimits,
    /// Verifies seeds of any epoch.
    pub(super) verifier: Arc<Scheme>,
    /// Bounded by what marshal hands out before earlier blocks are acknowledged.
    pub(super) finalised: mpsc::UnboundedSender<(Digested<Block>, Exact)>,
}

impl<S: Sender<PublicKey = PublicKey>> Application<S> {
    /// Whether execution is close enough behind agreement to go on. What is not final does not count: a chain of blocks that were agreed on in rounds whose
    /// finalisation was missed becomes final by the next block only, so that must not wait for it.
    fn keeps_up(&self) -> bool {
        let Progress { finalised, executed, .. } = self.shared.progress();
        finalised.0.saturating_sub(executed.0) <= self.limits.execution_lag_blocks
    }

    /// What ancestors hold that are not executed: the calls they name, and what they carry for the key.
    async fn taken(
        &self,
        parent: &Block,
        mut ancestors: impl Ancestry<Block>,
    ) -> (BTreeSet<IngressId>, Vec<(EngineHeight, KeyPayload)>) {
        let mut taken = BTreeSet::new();
        let mut payloads = Vec::new();
        let mut take = |block: &Block| {
            taken.extend(&block.ingress);
            payloads.extend(block.payload.clone().map(|payload| (block.height, payload)));
        };
        take(parent);
        let executed = self.shared.progress().executed.0;
        // Blocks final here left the pool; those between them and the parent are read from the chain.
        while let Some(block) = ancestors.next().await {
            if block.height().get() <= executed {
                break;
            }
            take(block.inner());
        }
        taken.extend(self.shared.inner.lock().unexecuted.values().flatten());
        (taken, payloads)
    }

    /// Whether a block is due before the idle interval is over.
    fn has_work(&self, taken: &BTreeSet<IngressId>, now: Time) -> bool {
        let demand = self.shared.inner.lock().demand;
        demand.more || demand.next_timer.is_some_and(|timer| timer <= now) || self.pool.has_more_than(taken)
    }

    /// The seed a block built on `parent` in this round must carry.
    async fn seed_for(
        &self,
        clock: &impl Clock,
        round: Round,
        parent_view: View,
        parent: &Block,
    ) -> Option<Option<Seed>> {
        let until = clock.current() + SEED_PATIENCE;
        loop {
            let moved = self.shared.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if parent_view == View::zero() {
                // The first block of an epoch: its parent was agreed on in the epoch before, in a round that may have been repeated.
                let Some(before) = round.epoch().previous() else { return Some(None) };
                if let Some(seed) = self.shared.newest_seed(before) {
                    return Some(Some(seed));
                }
            } else if let Some(seed) = self.shared.seed(Round::new(round.epoch(), parent_view)) {
                return Some(Some(seed));
            }
            select! {
                () = moved => {},
                () = clock.sleep_until(until) => {
                    tracing::debug!(%round, height = parent.height.get(), "no seed of the parent's round: the proposal is left to another node");
                    return None;
                },
            }
        }
    }

    fn is_seed_for(&self, block: &Block, round: Round, parent_view: View, parent: &Block) -> bool {
        match &block.seed {
            None => parent_view == View::zero() && round.epoch().previous().is_none(),
            Some(seed) => {
                let fits = if parent_view == View::zero() {
                    Some(seed.epoch()) == round.epoch().previous()
                        && parent.seed.as_ref().is_none_or(|before| before.round < seed.round)
                } else {
                    seed.round == Round::new(round.epoch(), parent_view)
                };
                fits && (self.shared.seed(seed.round).as_ref() == Some(seed) || seed.verify(&self.verifier))
            }
        }
    }

    /// Why the block gets no vote. Pends for as long as it may still get one.
    async fn judge<E: Clock + Spawner + CryptoRng>(
        &self,
        clock: &E,
        context: &Context<Digest, PublicKey>,
        block: &Block,
        parent: &Block,
        ancestors: impl Ancestry<Block>,
    ) -> Result<(), String> {
        if block.time <= parent.time {
            return Err(format!("its time {} is not after its parent's, {}", block.time.0, parent.time.0));
        }
        if block.ingress.len() as u64 > self.limits.block_ingress_messages {
            return Err(format!("it names {} calls", block.ingress.len()));
        }
        // Who executes slowly does not help the chain away from itself; so the shares of state roots come from 2f+1 nodes that are close together.
        while !self.keeps_up() {
            let moved = self.shared.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.keeps_up() {
                break;
            }
            moved.await;
        }
        if !self.is_seed_for(block, context.round, context.parent.0, parent) {
            return Err("its seed is not that of its parent's round".into());
        }
        let ids: BTreeSet<_> = block.ingress.iter().copied().collect();
        if ids.len() != block.ingress.len() {
            return Err("it names a call twice".into());
        }
        if !ids.is_empty() {
            let (taken, _) = self.taken(parent, ancestors).await;
            if ids.iter().any(|id| taken.contains(id)) {
                return Err("it names a call that a block before it holds".into());
            }
            let calls = self.calls.gather(clock, &block.ingress, None, Some(&context.leader)).await;
            let bytes: u64 = calls.iter().map(state::SignedIngress::accounted_bytes).sum();
            if calls.len() > 1 && bytes > self.limits.block_ingress_bytes {
                return Err(format!(
                    "its calls have {bytes} bytes, over {}",
                    self.limits.block_ingress_bytes
                ));
            }
            self.calls.keep(&block.ingress, &calls, block.time)?;
        }
        self.handover.judge(clock, (context.round.epoch(), &context.leader), block).await?;
        // Too far ahead is not wrong for ever: the vote waits until the clock gets there.
        let earliest = instant(block.time) - DRIFT;
        if clock.current() < earliest {
            clock.sleep_until(earliest).await;
        }
        Ok(())
    }
}

impl<E: Clock + Spawner + CryptoRng, S: Sender<PublicKey = PublicKey>> Engine<E> for Application<S> {
    type SigningScheme = Scheme;
    type Context = Context<Digest, PublicKey>;
    type Block = Block;
    type Input = ();

    async fn propose(
        &mut self,
        (clock, context): (E, Self::Context),
        mut ancestry: impl Ancestry<Block>,
        (): (),
    ) -> Option<Digested<Block>> {
        let parent = ancestry.next().await?;
        let until = clock.current() + PATIENCE;
        while !self.keeps_up() {
            let moved = self.shared.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.keeps_up() {
                break;
            }
            select! {
                () = moved => {},
                () = clock.sleep_until(until) => return None,
            }
        }
        let seed = self.seed_for(&clock, context.round, context.parent.0, parent.inner()).await?;
        let (taken, payloads) = self.taken(parent.inner(), ancestry).await;
        let due = instant(parent.inner().time) + Duration::from_millis(self.limits.idle_round_millis);
        loop {
            let work = self.shared.work.notified();
            tokio::pin!(work);
            work.as_mut().enable();
            let now = clock.current();
            if now >= due || self.has_work(&taken, time_of(now)) {
                break;
            }
            let timer = self.shared.inner.lock().demand.next_timer.map(instant);
            let wake = timer.filter(|timer| *timer > now).map_or(due, |timer| timer.min(due));
            select! {
                () = work => {},
                () = clock.sleep_until(wake) => {},
            }
        }
        let now = time_of(clock.current());
        let time = Time(now.0.max(parent.inner().time.0 + 1));
        let ingress = self.pool.offer(
            (now, time),
            self.limits.block_ingress_bytes,
            self.limits.block_ingress_messages,
            &taken,
        );
        let calls: Option<Vec<_>> = ingress.iter().map(|id| self.pool.get(id)).collect();
        let ingress = match calls.map(|calls| self.calls.keep(&ingress, &calls, time)) {
            Some(Ok(())) => ingress,
            Some(Err(reason)) => {
                tracing::warn!(%reason, "calls cannot be made durable: a block without any is proposed");
                Vec::new()
            }
            None => Vec::new(),
        };
        let height = parent.height().next();
        let payload = self.handover.payload(height, &payloads);
        let block = Block { parent: parent.digest(), height, time, seed, ingress, payload };
        Some(Digested::compute(block, &Sequential).await)
    }

    async fn verify(
        &mut self,
        (clock, context): (E, Self::Context),
        mut ancestry: impl Ancestry<Block>,
    ) -> bool {
        let (Some(block), Some(parent)) = (ancestry.next().await, ancestry.next().await) else {
            return false;
        };
        match self.judge(&clock, &context, block.inner(), parent.inner(), ancestry).await {
            Ok(()) => true,
            Err(reason) => {
                tracing::warn!(height = block.height().get(), round = %context.round, %reason, "a proposed block gets no vote");
                false
            }
        }
    }
}

impl<S: Clone + Send + Sync + 'static> Reporter for Application<S> {
    type Activity = Update<Block>;

    fn report(&mut self, update: Update<Block>) -> Feedback {
        match update {
            Update::Tip(_, height, _) => {
                let mut inner = self.shared.inner.lock();
                inner.progress.finalised = inner.progress.finalised.max(Height(height.get()));
            }
            Update::Block(block, ack) => {
                if let Err(lost) = self.finalised.send((block, ack)) {
                    // The node is ending. A dropped acknowledgement would be taken for a defect.
                    std::mem::forget(lost.0);
                    return Feedback::Closed;
                }
            }
        }
        Feedback::Ok
    }
}
