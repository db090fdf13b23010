//! What the engine asks of the node: blocks to propose, blocks to judge, and that finalised ones
//! are taken.
//!
//! Pace. With calls or other work waiting, a block follows its parent at once; without, after the
//! idle interval. Consensus does not slow down by itself when execution does, so a proposal waits
//! while execution lags, and declines if it lags on: the chain then goes at the speed of 2f+1
//! nodes' execution.
//!
//! Judging. A block is voted for when its time lies after its parent's and not beyond this node's
//! clock and drift, its seed is the one of the parent's round, the lengths it names fit a block
//! together, and its calls are there, were signed by their senders and are valid at its time. A
//! refusal is for good, and a function of what all nodes have alike: the block, its parent, the
//! envelopes it names by their digests, limits that members compare. What is a matter of this node
//! (calls under way, its clock, its execution, its disk) is waited for, until the engine gives the
//! round up. A call that an ancestor names too is passed over when it is executed, and no
//! reason against a block: which ancestors a node still has to execute is its own affair.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use commonware_actor::Feedback;
use commonware_consensus::{
    Application as Engine, Epochable as _, Heightable as _, Reporter,
    marshal::{Update, ancestry::Ancestry},
    simplex::{
        scheme::bls12381_threshold::vrf::Seedable as _,
        types::{Activity, Context},
    },
    types::{Height as EngineHeight, Round, View},
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
    block::{Block, Digest, KeyPayload, NameBounds, Opening},
    calls::{Calls, Gathered, NotKept},
    handover::Handover,
    key::{Scheme, Seed},
};
use crate::{Demand, IngressPool, SyncProgress, WallClock};

/// How long a proposal waits for execution before it declines. Declining hands the lead on at once,
/// so lagging nodes would pass it round in circles.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long a proposal waits for the seed of its parent's round, which comes with the certificate
/// that made the parent final enough to build on.
const SEED_PATIENCE: Duration = Duration::from_millis(500);
/// How far a block's time may be ahead of a voter's clock: beyond, the vote waits.
const DRIFT: Duration = Duration::from_millis(500);
/// Between two looks at the clock while a block's time is ahead of it: the clock may be set.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Between two tries to make the calls of a block durable.
const KEEP_AGAIN: Duration = Duration::from_millis(200);
/// Blocks behind at which a node says that it is catching up.
const BEHIND: u64 = 20;
/// Without a block for so long it is not blocks that a node catches up by: see [`super::catchup`].
const STUCK: Duration = Duration::from_secs(20);
/// Between two such words.
const SAY_AGAIN: Duration = Duration::from_secs(10);
/// Seeds remembered, one per round.
const SEEDS_KEPT: usize = 64;
/// Finalizations remembered: the next epoch begins with the newest.
const FINALIZATIONS_KEPT: usize = 16;

/// How long it is from `now` to `then`; nothing if that is past.
fn span(now: Time, then: Time) -> Duration {
    Duration::from_nanos(then.0.saturating_sub(now.0))
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
    /// Finalizations of late.
    finalizations: BTreeMap<Round, Opening>,
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

    /// Says so when this node is behind and its peers' blocks bring it closer. To be called every
    /// second or so.
    pub(super) fn watch(&self, now: SystemTime) {
        let mut inner = self.inner.lock();
        let Progress { finalised, executed, .. } = inner.progress;
        let watched = &mut inner.watched;
        if executed > watched.executed || finalised.0 <= executed.0 + 1 {
            *watched = Watched { executed, moved: Some(now), said: watched.said };
        }
        let since = |time: Option<SystemTime>| {
            time.map(|time| now.duration_since(time).unwrap_or_default())
        };
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

    /// The finalization of this block, the one of the earliest round if there are several.
    fn opening(&self, block: &Digest) -> Option<Opening> {
        let inner = self.inner.lock();
        let mut known = inner
            .finalizations
            .values()
            .filter(|finalization| finalization.proposal.payload == *block);
        let first = known.next().cloned()?;
        // What a leader that wants to bias the epoch's first block could choose among.
        tracing::debug!(
            rounds = known.count() + 1,
            "an epoch begins: rounds its last block was finalised in"
        );
        Some(first)
    }

    pub(super) fn finalised(&self, finalization: Opening) {
        self.remember(finalization.seed());
        let mut inner = self.inner.lock();
        inner.finalizations.insert(finalization.proposal.round, finalization);
        while inner.finalizations.len() > FINALIZATIONS_KEPT {
            inner.finalizations.pop_first();
        }
        drop(inner);
        self.moved.notify_waiters();
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
            Activity::Finalization(finalization) => self.0.finalised(finalization),
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
    /// What a block may name.
    pub(super) names: NameBounds,
    /// Verifies seeds of any epoch.
    pub(super) verifier: Arc<Scheme>,
    /// Bounded by what marshal hands out before earlier blocks are acknowledged.
    pub(super) finalised: mpsc::UnboundedSender<(Digested<Block>, Exact)>,
    /// Block times go by it.
    pub(super) clock: Arc<dyn WallClock>,
}

impl<S: Sender<PublicKey = PublicKey>> Application<S> {
    /// Whether execution is close enough behind agreement to go on. What is not final does not
    /// count: a chain of blocks that were agreed on in rounds whose finalisation was missed
    /// becomes final by the next block only, so that must not wait for it.
    fn keeps_up(&self) -> bool {
        let Progress { finalised, executed, .. } = self.shared.progress();
        finalised.0.saturating_sub(executed.0) <= self.limits.execution_lag_blocks
    }

    /// What ancestors hold that are not executed: the calls they name, and what they carry for the
    /// key.
    async fn taken(
        &self,
        parent: &Block,
        mut ancestors: impl Ancestry<Block>,
    ) -> (BTreeSet<IngressId>, Vec<(EngineHeight, KeyPayload)>) {
        let mut taken = BTreeSet::new();
        let mut payloads = Vec::new();
        let mut take = |block: &Block| {
            taken.extend(block.ingress.iter().map(|name| name.id));
            payloads.extend(block.payload.clone().map(|payload| (block.height, payload)));
        };
        take(parent);
        let executed = self.shared.progress().executed.0;
        // Blocks final here left the pool; those between them and the parent are read from the
        // chain.
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
        demand.more
            || demand.next_timer.is_some_and(|timer| timer <= now)
            || self.pool.has_more_than(taken)
    }

    /// The seed a block built on `parent` in this round must carry, and the finalization that shows
    /// it where the epoch begins.
    async fn seed_for(
        &self,
        clock: &impl Clock,
        round: Round,
        parent_view: View,
        parent: &Block,
    ) -> Option<(Option<Seed>, Option<Opening>)> {
        let until = clock.current() + SEED_PATIENCE;
        loop {
            let moved = self.shared.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if parent_view == View::zero() {
                // The first block of an epoch: its parent was agreed on in the epoch before, in a
                // round that may have been repeated.
                if round.epoch().previous().is_none() {
                    return Some((None, None));
                }
                if let Some(opening) = self.shared.opening(&parent.digest()) {
                    return Some((Some(opening.seed()), Some(opening)));
                }
            } else if let Some(seed) = self.shared.seed(Round::new(round.epoch(), parent_view)) {
                return Some((Some(seed), None));
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

    fn is_seed_for(
        &self,
        rng: &mut impl CryptoRng,
        block: &Block,
        (round, parent_view): (Round, View),
        parent: &Block,
    ) -> bool {
        let begins = parent_view == View::zero();
        match (&block.seed, &block.opening) {
            (None, None) => begins && round.epoch().previous().is_none(),
            (Some(seed), None) => {
                !begins
                    && seed.round == Round::new(round.epoch(), parent_view)
                    && (self.shared.seed(seed.round).as_ref() == Some(seed)
                        || seed.verify(&self.verifier))
            }
            // A leader has no choice among rounds that were given up, or in which something else
            // was agreed on.
            (Some(seed), Some(opening)) => {
                begins
                    && Some(opening.epoch()) == round.epoch().previous()
                    && opening.proposal.payload == parent.digest()
                    && opening.seed() == *seed
                    && opening.verify(rng, &*self.verifier, &Sequential)
            }
            (None, Some(_)) => false,
        }
    }

    /// Makes the block's calls durable, if it may hold them. Trouble of this node's disk, or a full
    /// journal, is no reason against the block: the vote waits until that is over,
    /// or the engine gives the round up.
    async fn keep(
        &self,
        clock: &impl Clock,
        block: &Block,
        calls: Vec<Gathered>,
    ) -> Result<(), String> {
        let at = (Height(block.height.get()), block.time);
        let mut said = false;
        loop {
            match self.calls.keep(&block.ingress, calls.clone(), at) {
                Ok(()) => return Ok(()),
                Err(NotKept::Invalid(reason)) => return Err(reason),
                Err(NotKept::Trouble(reason)) => {
                    if !said {
                        tracing::warn!(height = at.0.0, %reason, "calls of a block cannot be made durable: this node's vote waits");
                        said = true;
                    }
                    clock.sleep(KEEP_AGAIN).await;
                }
            }
        }
    }

    /// Why the block gets no vote. Pends for as long as it may still get one.
    async fn judge<E: Clock + Spawner + CryptoRng>(
        &self,
        clock: &mut E,
        context: &Context<Digest, PublicKey>,
        block: &Block,
        parent: &Block,
    ) -> Result<(), String> {
        if block.time <= parent.time {
            return Err(format!(
                "its time {} is not after its parent's, {}",
                block.time.0, parent.time.0
            ));
        }
        // Of the names alone: whatever envelopes this node was sent, and before anything is
        // fetched.
        block.check_names(&self.names)?;
        // Who executes slowly does not help the chain away from itself; so the shares of state
        // roots come from 2f+1 nodes that are close together.
        while !self.keeps_up() {
            let moved = self.shared.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.keeps_up() {
                break;
            }
            moved.await;
        }
        if !self.is_seed_for(clock, block, (context.round, context.parent.0), parent) {
            return Err("its seed is not that of its parent's round".into());
        }
        if !block.ingress.is_empty() {
            let calls = self.calls.gather(clock, &block.ingress, None, Some(&context.leader)).await;
            self.keep(clock, block, calls).await?;
        }
        self.handover.judge(clock, (context.round.epoch(), &context.leader), block).await?;
        // Too far ahead is not wrong for ever: the vote waits until the clock gets there.
        loop {
            let ahead = span(self.clock.now(), block.time).saturating_sub(DRIFT);
            if ahead.is_zero() {
                return Ok(());
            }
            clock.sleep(ahead.min(LOOK_AGAIN)).await;
        }
    }
}

impl<E: Clock + Spawner + CryptoRng, S: Sender<PublicKey = PublicKey>> Engine<E>
    for Application<S>
{
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
        let (seed, opening) =
            self.seed_for(&clock, context.round, context.parent.0, parent.inner()).await?;
        let (taken, payloads) = self.taken(parent.inner(), ancestry).await;
        let idle = Duration::from_millis(self.limits.idle_round_millis);
        // A clock that is behind the others' does not make this node wait for longer.
        let latest = clock.current() + idle;
        loop {
            let work = self.shared.work.notified();
            tokio::pin!(work);
            work.as_mut().enable();
            let now = self.clock.now();
            let idle_left = idle.saturating_sub(span(parent.inner().time, now));
            let left = latest.duration_since(clock.current()).unwrap_or_default().min(idle_left);
            if left.is_zero() || self.has_work(&taken, now) {
                break;
            }
            let timer = self.shared.inner.lock().demand.next_timer;
            let wake =
                timer.filter(|timer| *timer > now).map_or(left, |timer| span(now, timer).min(left));
            select! {
                () = work => {},
                () = clock.sleep(wake) => {},
            }
        }
        let now = self.clock.now();
        let time = Time(now.0.max(parent.inner().time.0 + 1));
        let ingress = self.pool.offer(
            (now, time),
            self.limits.block_ingress_bytes,
            self.limits.block_ingress_messages,
            &taken,
        );
        let height = parent.height().next();
        let calls: Option<Vec<_>> = ingress.iter().map(|name| self.calls.waiting(name)).collect();
        let ingress = match calls
            .map(|calls| self.calls.keep(&ingress, calls, (Height(height.get()), time)))
        {
            Some(Ok(())) => ingress,
            Some(Err(NotKept::Trouble(reason) | NotKept::Invalid(reason))) => {
                tracing::warn!(%reason, "calls cannot be made durable: a block without any is proposed");
                Vec::new()
            }
            None => Vec::new(),
        };
        let payload = self.handover.payload(height, &payloads);
        let block =
            Block { parent: parent.digest(), height, time, seed, opening, ingress, payload };
        Some(Digested::compute(block, &Sequential).await)
    }

    async fn verify(
        &mut self,
        (mut clock, context): (E, Self::Context),
        mut ancestry: impl Ancestry<Block>,
    ) -> bool {
        let (Some(block), Some(parent)) = (ancestry.next().await, ancestry.next().await) else {
            return false;
        };
        match self.judge(&mut clock, &context, block.inner(), parent.inner()).await {
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
