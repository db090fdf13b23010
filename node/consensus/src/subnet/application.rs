//! The engine's interface to the node: proposes blocks, judges blocks, and takes finalised ones.
//!
//! Pace. With work of execution, a block follows its parent at once; with calls, at once or shortly
//! after, for more calls ([`super::batching`]); without either, after the idle interval. A proposal
//! waits while execution lags, and declines if it lags on: the chain then goes at the speed of 2f+1
//! nodes' execution.
//!
//! Judging. A refusal is final, and depends only on data that all nodes share: the block, its
//! parent, the envelopes it names by their digests, limits that members compare. Conditions local
//! to this node (calls under way, its clock, its execution, its disk) are waited for, until the
//! engine gives the round up. A call that an ancestor names too is skipped when it is executed, and
//! is not a reason against a block: which ancestors a node still has to execute is local.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use commonware_actor::Feedback;
use commonware_consensus::{
    Application as Engine, Heightable as _, Reporter,
    marshal::{Update, ancestry::Ancestry},
    simplex::types::Context,
    types::Height as EngineHeight,
};
use commonware_cryptography::{Digested, Digestible as _, ed25519::PublicKey};
use commonware_macros::select;
use commonware_p2p::Sender;
use commonware_parallel::Sequential;
use commonware_runtime::{Clock, Spawner};
use commonware_utils::{
    acknowledgement::Exact,
    channel::mpsc::{self, error::TrySendError},
};
use futures::StreamExt as _;
use ic_principal::Principal;
use rand_core::CryptoRng;
use state::{Height, IngressId, Time};

use super::{
    batching::Batching,
    block::{Block, CallName, Certification, Digest, KeyPayload, VerdictError},
    calls::{Calls, GatheredCall},
    deps::Deps,
    engine::UNACKNOWLEDGED_MAX,
    key::Scheme,
    published::{ExecutionProgress, wait_for_change},
    queries::{self, BlockQueryReport},
};

/// How long a proposal waits for execution before it declines. Declining hands the lead on at once,
/// so lagging nodes would pass it round in circles.
const TIMEOUT: Duration = Duration::from_millis(250);
/// How far a block's time may be ahead of a voter's clock: beyond, the vote waits.
const DRIFT: Duration = Duration::from_millis(500);
/// Time between two checks of the clock while a block's time is ahead of it: the clock may be set.
const CLOCK_CHECK_EVERY: Duration = Duration::from_secs(1);
/// Between two tries to keep the calls of a block.
const JOURNAL_RETRY: Duration = Duration::from_millis(200);
/// Bytes of calls that are written to the journal by the task that votes.
const INLINE_BYTES: u64 = 64 << 10;

/// How long it is from `now` to `then`; nothing if that is past.
fn time_until(now: Time, then: Time) -> Duration {
    Duration::from_nanos(then.0.saturating_sub(now.0))
}

/// Contents of blocks that are agreed on and not executed.
#[derive(Default)]
struct UnexecutedContents {
    calls: BTreeSet<IngressId>,
    /// Roots of states whose certifications they carry.
    certified: BTreeSet<[u8; 32]>,
    payloads: Vec<(EngineHeight, KeyPayload)>,
    reporters: BTreeSet<Principal>,
}

/// Makes and judges blocks for the engine of an epoch, and takes final ones from marshal.
#[derive(Clone)]
pub(super) struct Application<S> {
    pub(super) deps: Arc<Deps>,
    pub(super) calls: Calls<S>,
    /// Has room for what marshal hands out before earlier blocks are acknowledged.
    pub(super) deliveries_tx: mpsc::Sender<(Digested<Block>, Exact)>,
    pub(super) batching: Arc<Batching>,
}

impl<S: Sender<PublicKey = PublicKey>> Application<S> {
    /// Whether execution is close enough behind agreement to continue. Blocks that are not final do
    /// not count: a chain of blocks that were agreed on in rounds whose finalisation was missed
    /// becomes final by the next block only, so that block must not wait for it.
    fn execution_keeps_up(&self, execution: &ExecutionProgress) -> bool {
        let finalised = self.deps.published.progress().finalised;
        finalised.0.saturating_sub(execution.executed.0) <= self.deps.limits.execution_lag_blocks
    }

    /// Waits until execution is close enough behind agreement.
    async fn wait_for_execution(&self) {
        let mut execution_rx = self.deps.published.execution_rx.clone();
        loop {
            let now = *execution_rx.borrow_and_update();
            if self.execution_keeps_up(&now) {
                return;
            }
            wait_for_change(&mut execution_rx).await;
        }
    }

    async fn unexecuted_contents(
        &self,
        parent: &Block,
        mut ancestors: impl Ancestry<Block>,
    ) -> UnexecutedContents {
        let mut taken = UnexecutedContents::default();
        let mut take = |block: &Block| {
            taken.calls.extend(block.ingress.iter().map(|name| name.id));
            taken.certified.extend(block.certifications.iter().map(|it| it.root));
            taken.payloads.extend(block.payload.clone().map(|payload| (block.height, payload)));
            taken.reporters.extend(block.queries.as_ref().map(|report| report.0.node));
        };
        take(parent);
        let executed = self.deps.published.execution_rx.borrow().executed;
        // Blocks final here left the pool; those between them and the parent are read from the
        // chain.
        while let Some(block) = ancestors.next().await {
            if block.height().get() <= executed.0 {
                break;
            }
            take(block.inner());
        }
        self.deps.published.add_unexecuted(executed, &mut taken.calls);
        taken
    }

    /// The report of queries for a block of this node. None while an earlier report may still be
    /// executed: its content would be in both.
    fn query_report(
        &self,
        height: EngineHeight,
        taken: &UnexecutedContents,
    ) -> Option<BlockQueryReport> {
        if self.deps.resharing.is_last(height) {
            return None;
        }
        let report = self.deps.queries.as_ref()?.report(Height(height.get()))?;
        (!taken.reporters.contains(&report.node)).then_some(BlockQueryReport(report))
    }

    /// Certifications of states that execution waits for, as far as this node has them and no block
    /// before has.
    fn certifications(&self, taken: &UnexecutedContents) -> Vec<Certification> {
        let awaited = self.deps.published.execution_rx.borrow().demand.awaited;
        let known = self.deps.published.certification_rx.borrow();
        let certification = |root: [u8; 32]| {
            let signature = known.signature(&root)?;
            Some(Certification { root, signature })
        };
        let roots = awaited.iter().map(|it| it.root).filter(|root| !taken.certified.contains(root));
        roots.filter_map(certification).collect()
    }

    /// Whether execution has work of its own, or waits for a certification that this node has, for
    /// which a block is due before the idle interval is over.
    fn is_demanded(&self, taken: &UnexecutedContents, now: Time) -> bool {
        let demand = self.deps.published.execution_rx.borrow().demand;
        demand.more
            || demand.next_timer.is_some_and(|timer| timer <= now)
            || !self.certifications(taken).is_empty()
    }

    /// Returns when a block is due after `parent`: at once with work of execution, with calls when
    /// no more are waited for, without either after the idle interval.
    async fn wait_until_due(&self, clock: &impl Clock, parent: &Block, taken: &UnexecutedContents) {
        let idle = Duration::from_millis(self.deps.limits.idle_round_millis);
        let began = clock.current();
        // A clock that is behind the others' does not make this node wait for longer.
        let latest = began + idle;
        let calls_max = usize::try_from(self.deps.limits.block_ingress_messages / 4);
        let calls_max = calls_max.unwrap_or(usize::MAX).max(1);
        let mut batch = self.batching.begin(parent.ingress.len(), calls_max);
        let mut certification_rx = self.deps.published.certification_rx.clone();
        loop {
            let work = self.deps.published.work_available.notified();
            tokio::pin!(work);
            work.as_mut().enable();
            let now = self.deps.clock.now();
            let idle_left = idle.saturating_sub(time_until(parent.time, now));
            let left = latest.duration_since(clock.current()).unwrap_or_default().min(idle_left);
            let certified = certification_rx.borrow_and_update().certified;
            if left.is_zero() || self.is_demanded(taken, now) {
                return;
            }
            let timer = self.deps.published.execution_rx.borrow().demand.next_timer;
            let mut wake = timer
                .filter(|timer| *timer > now)
                .map_or(left, |timer| time_until(now, timer).min(left));
            let most = if batch.is_some() { calls_max } else { 1 };
            let calls = self.deps.pool.count_beyond(&taken.calls, most);
            let is_certified = certified.0 >= parent.height.get();
            if calls > 0 {
                let waited = clock.current().duration_since(began).unwrap_or_default();
                let more = batch.as_mut().and_then(|wait| wait.left(waited, calls, is_certified));
                let Some(more) = more else { return };
                wake = wake.min(more);
            }
            let certificate = async {
                // Every share changes the value: only a proposal that waits for it looks.
                if calls > 0 && !is_certified {
                    wait_for_change(&mut certification_rx).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            select! {
                () = work => {},
                () = certificate => {},
                () = clock.sleep(wake) => {},
            }
        }
    }

    /// Keeps the block's calls, if it may hold them. Trouble of this node's disk, or a full
    /// journal, is not a reason against the block: the vote waits until that is over, or the engine
    /// gives the round up.
    async fn journal_calls(
        &self,
        context: &(impl Clock + Spawner),
        block: &Block,
        calls: Vec<GatheredCall>,
    ) -> Result<(), String> {
        let at = (Height(block.height.get()), block.time);
        let mut logged = false;
        loop {
            match self.journal_calls_once(context, &block.ingress, calls.clone(), at).await {
                Ok(()) => return Ok(()),
                Err(VerdictError::Invalid(reason)) => return Err(reason),
                Err(VerdictError::Unavailable(reason)) => {
                    if !logged {
                        tracing::warn!(height = at.0.0, %reason, "calls of a block cannot be kept: this node's vote waits");
                        logged = true;
                    }
                    context.sleep(JOURNAL_RETRY).await;
                }
            }
        }
    }

    /// Writes calls to the journal, in front of the vote for their block: the engine's storage is
    /// one log, so the sync of the vote, before which it is not sent, makes the calls durable too.
    /// Few calls that were verified before are written here, to the operating system's cache;
    /// signatures are checked, and many bytes are written, on a thread that may block.
    async fn journal_calls_once(
        &self,
        context: &impl Spawner,
        names: &[CallName],
        gathered: Vec<GatheredCall>,
        at: (Height, Time),
    ) -> Result<(), VerdictError> {
        let bytes: u64 = names.iter().map(CallName::accounted_bytes).sum();
        if bytes <= INLINE_BYTES && gathered.iter().all(GatheredCall::is_verified) {
            return self.calls.journal_calls(names, gathered, at);
        }
        let (calls, names) = (self.calls.clone(), names.to_vec());
        let kept = context
            .child("keep")
            .shared(true)
            .spawn(move |_| async move { calls.journal_calls(&names, gathered, at) });
        // The task is gone when the node is ending.
        kept.await.unwrap_or_else(|error| Err(VerdictError::Unavailable(error.to_string())))
    }

    /// Why the block gets no vote. Pends for as long as it may still get one.
    async fn check_block<E: Clock + Spawner + CryptoRng>(
        &self,
        clock: &mut E,
        context: &Context<Digest, PublicKey>,
        block: &Block,
        parent: &Block,
    ) -> Result<(), String> {
        if block.round != context.round {
            return Err(format!("it names round {} and is of {}", block.round, context.round));
        }
        if block.time <= parent.time {
            return Err(format!(
                "its time {} is not after its parent's, {}",
                block.time.0, parent.time.0
            ));
        }
        // Of the names alone: whatever envelopes this node was sent, and before anything is
        // fetched.
        block.check_names(&self.deps.name_bounds())?;
        if block.queries.is_some() {
            self.deps.resharing.wait_for_epoch(clock, context.round.epoch()).await;
            queries::check_report(&self.deps.resharing, &context.leader, block)?;
        }
        let certification_rx = &self.deps.published.certification_rx;
        block.check_certifications(&self.deps.public_key, |root| {
            certification_rx.borrow().signature(root)
        })?;
        // Who executes slowly does not help the chain away from itself; so the shares of state
        // roots come from 2f+1 nodes that are close together.
        self.wait_for_execution().await;
        if !block.ingress.is_empty() {
            let calls = self.calls.gather(clock, &block.ingress, None, Some(&context.leader)).await;
            self.journal_calls(clock, block, calls).await?;
        }
        self.deps
            .resharing
            .check_payload(clock, context.round.epoch(), &context.leader, block)
            .await?;
        // Too far ahead is not wrong for ever: the vote waits until the clock gets there.
        loop {
            let ahead = time_until(self.deps.clock.now(), block.time).saturating_sub(DRIFT);
            if ahead.is_zero() {
                return Ok(());
            }
            clock.sleep(ahead.min(CLOCK_CHECK_EVERY)).await;
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
        let until = clock.current() + TIMEOUT;
        select! {
            () = self.wait_for_execution() => {},
            () = clock.sleep_until(until) => return None,
        }
        let taken = self.unexecuted_contents(parent.inner(), ancestry).await;
        self.wait_until_due(&clock, parent.inner(), &taken).await;
        let now = self.deps.clock.now();
        let time = Time(now.0.max(parent.inner().time.0 + 1));
        let ingress = self.deps.pool.offer(
            now,
            time,
            self.deps.limits.block_ingress_bytes,
            self.deps.limits.block_ingress_messages,
            &taken.calls,
        );
        let height = parent.height().next();
        let calls: Option<Vec<_>> = ingress.iter().map(|name| self.calls.waiting(name)).collect();
        let ingress = match calls {
            Some(calls) if !calls.is_empty() => {
                let at = (Height(height.get()), time);
                match self.journal_calls_once(&clock, &ingress, calls, at).await {
                    Ok(()) => ingress,
                    Err(VerdictError::Unavailable(reason) | VerdictError::Invalid(reason)) => {
                        tracing::warn!(%reason, "calls cannot be kept: a block without any is proposed");
                        Vec::new()
                    }
                }
            }
            _ => Vec::new(),
        };
        let payload = self.deps.resharing.payload(height, &taken.payloads);
        let queries = self.query_report(height, &taken);
        let certifications = self.certifications(&taken);
        let (parent, round) = (parent.digest(), context.round);
        let block =
            Block { parent, height, time, round, certifications, ingress, payload, queries };
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
        match self.check_block(&mut clock, &context, block.inner(), parent.inner()).await {
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
                self.deps.published.consensus.finalised_to(Height(height.get()))
            }
            Update::Block(block, ack) => match self.deliveries_tx.try_send((block, ack)) {
                Ok(()) => {}
                Err(TrySendError::Closed((_, ack))) => {
                    // The node is ending. A dropped acknowledgement would be taken for a defect.
                    std::mem::forget(ack);
                    return Feedback::Closed;
                }
                Err(TrySendError::Full(_)) => {
                    unreachable!(
                        "marshal hands out {UNACKNOWLEDGED_MAX} blocks before one is acknowledged"
                    )
                }
            },
        }
        Feedback::Ok
    }
}
