//! The block maker of a subnet of one.
//!
//! A block is final when it is durable in the block log. After a start every logged batch above the
//! height execution restarted from is handed out again, with what the earlier run recorded; then
//! new blocks are made, as fast as execution asks for them and no faster than there is something to
//! do.
//!
//! Time never runs backwards, but for an operator's order ([`SingleNode::set_time_back`]).
//!
//! Randomness of a height: hash of bytes drawn from the machine for this block alone, and of the
//! subnet's signature on the state before it, which keeps it unpredictable to outsiders should the
//! machine's source be a poor one. The block records it for replays. While the source fails no
//! block is made: it has no substitute.

use std::time::Duration;

use futures::future::BoxFuture;
use lifecycle::Cause;
use limits::ConsensusLimits;
use rand::{RngCore as _, rngs::OsRng};
use sha2::{Digest, Sha256};
use state::{Fault, Height, Randomness, Time};

use crate::{
    Certificate, Certifier, Consensus, ConsensusDeps, ConsensusError, Demand, FinalisedBatch,
    FinalisedBlock, RecordedOutcome, Step, block_log::Replay, replay::BatchSequence,
};

const RANDOMNESS_DOMAIN: &[u8] = b"\x11thimble-randomness";
/// Wait before the random source is asked again; doubles up to [`RANDOMNESS_RETRY_MAX`].
const RANDOMNESS_RETRY: Duration = Duration::from_millis(20);
/// Longest such wait.
const RANDOMNESS_RETRY_MAX: Duration = Duration::from_secs(5);

/// Where the randomness of blocks comes from.
pub trait RandomSource: Send {
    /// 32 unpredictable bytes, never the same twice.
    ///
    /// # Errors
    /// The reason why there are none now. The caller waits and retries.
    fn draw(&mut self) -> Result<[u8; 32], String>;
}

/// The operating system's random number generator.
pub struct SystemRandom;

impl RandomSource for SystemRandom {
    fn draw(&mut self) -> Result<[u8; 32], String> {
        let mut bytes = [0; 32];
        OsRng.try_fill_bytes(&mut bytes).map_err(|error| error.to_string())?;
        Ok(bytes)
    }
}

/// A node that makes its blocks alone.
pub struct SingleNode {
    deps: ConsensusDeps,
    certifier: Certifier,
    random: Box<dyn RandomSource>,
    replay: Option<Replay>,
    batches: BatchSequence,
    time: Time,
    /// Hash of the subnet's newest signature; zeros before there is one.
    signature_hash: [u8; 32],
    /// The block after this height is set back: see [`Self::set_time_back`].
    set_back_after: Option<Height>,
}

impl SingleNode {
    /// `resume_from` and `time` are the height and time of the state that execution restarted from.
    /// `random` is asked once for every new block.
    pub fn new(
        deps: ConsensusDeps,
        certifier: Certifier,
        resume_from: Height,
        time: Time,
        random: Box<dyn RandomSource>,
    ) -> Result<Self, ConsensusError> {
        deps.log.check_complete(resume_from)?;
        let replay = deps.log.read_from(resume_from);
        deps.clock.set_newest_block_time(time);
        if let Some(outcalls) = &deps.outcalls {
            outcalls.decide_alone(deps.pool.clone(), certifier.schedule().clone());
        }
        Ok(Self {
            batches: BatchSequence::new(deps.envelopes.clone(), resume_from),
            deps,
            certifier,
            random,
            replay: Some(replay),
            time,
            signature_hash: [0; 32],
            set_back_after: None,
        })
    }

    /// How far ahead of block time a call may expire, with the drift that is allowed to clients.
    pub fn ingress_window(limits: &ConsensusLimits) -> Duration {
        let seconds = limits.ingress_expiry_seconds.saturating_add(limits.ingress_drift_seconds);
        Duration::from_secs(seconds)
    }

    /// Sets the time of the block after this height back to the clock's time plus
    /// [`Self::ingress_window`], if that is earlier than the time of the block before it.
    ///
    /// Not to the clock's time itself: the history of calls, which finds duplicates, does not reach
    /// back beyond the time that is given up. With the window added, every call that was accepted
    /// while the clock was right has expired for the new block time, so none is executed again.
    /// From there block time advances at half speed until the clock has caught up
    /// ([`crate::BlockClock`]).
    ///
    /// An operator's order for a state that is ahead of the clock. The block records the time, so
    /// replays repeat it; the order has no effect at another height.
    #[must_use]
    pub fn set_time_back(mut self, after: Option<Height>) -> Self {
        self.set_back_after = after;
        self
    }

    /// Time of the next block. The order to set it back is compared with the height, which
    /// advances only when a block has been recorded: an attempt that fails does not use it up.
    fn next_time(&self) -> Time {
        if self.set_back_after == Some(self.batches.height) {
            let window = Self::ingress_window(&self.deps.limits).as_nanos();
            let window = u64::try_from(window).unwrap_or(u64::MAX);
            let back = Time(self.deps.clock.now().0.saturating_add(window));
            if back < self.time {
                tracing::warn!(
                    height = self.batches.height.0 + 1,
                    seconds = (self.time.0 - back.0) / 1_000_000_000,
                    "block time is set back by an operator's order"
                );
                return back;
            }
        }
        self.deps.clock.next_block_time(self.time)
    }

    fn next_logged(&mut self) -> Result<Option<FinalisedBatch>, ConsensusError> {
        let Some(replay) = &mut self.replay else {
            return Ok(None);
        };
        let Some(logged) = replay.next_block()? else {
            self.replay = None;
            return Ok(None);
        };
        self.hand_out(&logged.block, logged.recorded).map(Some)
    }

    fn hand_out(
        &mut self,
        block: &FinalisedBlock,
        recorded: Option<RecordedOutcome>,
    ) -> Result<FinalisedBatch, ConsensusError> {
        let batch = self.batches.hand_out(block, recorded)?;
        self.time = block.time;
        self.deps.clock.set_newest_block_time(block.time);
        Ok(batch)
    }

    /// The value drawn for the next block. Waits for the random source as long as it fails; none
    /// when the node is closing.
    fn randomness(&mut self) -> Option<[u8; 32]> {
        let mut wait = RANDOMNESS_RETRY;
        let mut failed = false;
        let drawn = loop {
            let reason = match self.random.draw() {
                Ok(drawn) => break drawn,
                Err(reason) => reason,
            };
            if !failed {
                tracing::error!(%reason, "no block can be made: the machine's random source fails; it is asked again");
            }
            failed = true;
            let reason = format!(
                "the machine's random source fails ({reason}); no block is made without it"
            );
            self.deps.pool.health().refuse(Cause::Randomness, reason);
            if self.deps.pool.stop().wait(wait) {
                return None;
            }
            wait = (wait * 2).min(RANDOMNESS_RETRY_MAX);
        };
        if failed {
            tracing::info!("the random source is back");
            self.deps.pool.health().withdraw(Cause::Randomness);
        }
        let mut hash = Sha256::new();
        hash.update(RANDOMNESS_DOMAIN);
        hash.update(drawn);
        hash.update(self.signature_hash);
        Some(hash.finalize().into())
    }

    /// How long to wait for calls before a block is due without any.
    fn timeout(&self, demand: Demand) -> Duration {
        if demand.more || !demand.awaited.is_empty() {
            return Duration::ZERO;
        }
        let idle = Duration::from_millis(self.deps.limits.idle_round_millis);
        match demand.next_timer {
            Some(timer) => idle.min(self.deps.clock.duration_until(timer, self.time)),
            None => idle,
        }
    }
}

/// Each future blocks its thread while it waits, and is ready when it was polled once.
impl Consensus for SingleNode {
    fn next(&mut self, demand: Demand) -> BoxFuture<'_, Result<Step, ConsensusError>> {
        Box::pin(async move {
            // Also between batches that are executed again: what was executed is in the last
            // checkpoint.
            if self.deps.pool.closing() {
                return Ok(Step::Closing);
            }
            if let Some(logged) = self.next_logged()? {
                return Ok(Step::Execute(logged));
            }
            self.deps.pool.wait(self.timeout(demand));
            if self.deps.pool.closing() {
                return Ok(Step::Closing);
            }
            let Some(randomness) = self.randomness() else { return Ok(Step::Closing) };
            let time = self.next_time();
            let calls = self.deps.pool.take(
                time,
                self.deps.limits.block_ingress_bytes,
                self.deps.limits.block_ingress_messages,
            );
            let height = Height(self.batches.height.0 + 1);
            let block = FinalisedBlock {
                height,
                time,
                randomness: Randomness::Drawn(randomness),
                ingress: calls.iter().map(|call| call.signed.clone()).collect(),
                key: None,
                agreed: None,
                queries: self.deps.queries.as_ref().and_then(|it| it.report(height)).map(Box::new),
            };
            if let Err(error) = self.deps.log.append_block(&block) {
                self.deps.pool.put_back(calls);
                return Err(error.into());
            }
            self.hand_out(&block, None).map(Step::Execute)
        })
    }

    fn executed(
        &mut self,
        height: Height,
        root: [u8; 32],
        faults: Vec<Fault>,
    ) -> BoxFuture<'_, Result<Vec<Certificate>, ConsensusError>> {
        Box::pin(async move {
            // While older batches are handed out again nothing may be appended behind newer ones;
            // what is computed again needs no note.
            let again = self.replay.is_some() && self.deps.log.last() != Some(height);
            if !self.batches.was_recorded(height, root)? && !again {
                self.deps.log.append_outcome(height, root, &faults)?;
            }
            self.deps.log.record_certified(height)?;
            let signed = self
                .certifier
                .sign(height, root)
                .map_err(|source| ConsensusError::Certify { height: height.0, source })?;
            let (_, certificate) = signed;
            if let Some(certificate) = &certificate {
                self.signature_hash = Sha256::digest(certificate.signature.0).into();
            }
            Ok(certificate.into_iter().collect())
        })
    }

    fn checkpointed(&mut self, height: Height) -> Result<(), ConsensusError> {
        Ok(self.deps.log.prune(height)?)
    }

    fn certificates_pending(&self) -> u64 {
        self.certifier.pending()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{path::Path, sync::Arc};

    use envelope::Envelopes;
    use futures::FutureExt as _;
    use ic_principal::Principal;
    use nidkg::SecretShare;
    use rand::{SeedableRng, rngs::StdRng};
    use state::{Ingress, IngressId, RequestId, SignedIngress, Validity};

    use super::*;
    use crate::{BlockLog, IngressPool, WallClock};

    struct FixedClock(u64);
    impl WallClock for FixedClock {
        fn now(&self) -> Time {
            Time(self.0)
        }
    }

    /// Calls whose envelope is one byte, which is all they say.
    struct Bytes;
    impl Envelopes for Bytes {
        fn read(&self, signed: &SignedIngress) -> Result<Ingress, String> {
            let number = *signed.envelope.first().ok_or("an empty envelope")?;
            Ok(Ingress {
                request_id: RequestId([number; 32]),
                sender: Principal::anonymous(),
                canister_id: Principal::management_canister(),
                effective_canister_id: signed.effective_canister_id,
                method_name: "m".into(),
                arg: vec![],
                ingress_expiry: Time(u64::MAX),
                sender_info: None,
            })
        }

        fn verify(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String> {
            self.claim(signed)
        }

        fn claim(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String> {
            let Ingress { request_id, effective_canister_id, ingress_expiry, .. } =
                self.read(signed)?;
            Ok((IngressId::new(&request_id, &effective_canister_id), ingress_expiry.into()))
        }
    }

    fn run<T>(ready: BoxFuture<'_, T>) -> T {
        ready.now_or_never().unwrap()
    }

    fn batch(node: &mut SingleNode) -> FinalisedBatch {
        match run(node.next(Demand::default())).unwrap() {
            Step::Execute(batch) => batch,
            other => panic!("{other:?} where a batch was due"),
        }
    }

    fn submit(pool: &IngressPool, number: u8) {
        let effective_canister_id = Principal::management_canister();
        let signed = SignedIngress { effective_canister_id, envelope: vec![number].into() };
        pool.submit(IngressId([number; 32]), Time(u64::MAX), signed).unwrap();
    }

    fn limits() -> ConsensusLimits {
        ConsensusLimits {
            ingress_pool_bytes: 1 << 20,
            ingress_pool_messages: 100,
            block_ingress_bytes: 1 << 20,
            block_ingress_messages: 10,
            ingress_expiry_seconds: 300,
            ingress_drift_seconds: 60,
            idle_round_millis: 1,
            execution_lag_blocks: 1,
            certificates_kept: 4,
            blocks_per_epoch: 1 << 40,
            checkpoint_block_bytes: 1 << 20,
            retention_rounds: 0,
            retention_block_bytes: 2 << 20,
            sync_bytes_per_second: 8 << 20,
            nidkg_tables_bytes: 0,
        }
    }

    fn share() -> (nidkg::Committee, SecretShare) {
        let (committee, mut shares) = nidkg::deal(1, 1, &mut StdRng::seed_from_u64(1)).unwrap();
        (committee, shares.remove(0))
    }

    /// Draws that are given; the last one for ever.
    struct ScriptedRandom(Vec<Result<u8, &'static str>>);
    impl RandomSource for ScriptedRandom {
        fn draw(&mut self) -> Result<[u8; 32], String> {
            let given = if self.0.len() > 1 { self.0.remove(0) } else { *self.0.first().unwrap() };
            given.map(|byte| [byte; 32]).map_err(ToOwned::to_owned)
        }
    }

    fn node(folder: &Path, resume: u64, now: u64) -> (SingleNode, Arc<IngressPool>) {
        node_with(folder, resume, now, Box::new(SystemRandom))
    }

    fn node_with(
        folder: &Path,
        resume: u64,
        now: u64,
        random: Box<dyn RandomSource>,
    ) -> (SingleNode, Arc<IngressPool>) {
        let pool = Arc::new(IngressPool::new(&limits()));
        let (committee, share) = share();
        let deps = ConsensusDeps {
            pool: pool.clone(),
            log: BlockLog::open(folder, 1 << 20).unwrap(),
            clock: Arc::new(FixedClock(now)),
            envelopes: Arc::new(Bytes),
            limits: limits(),
            states: None,
            outcalls: None,
            queries: None,
        };
        let certifier = Certifier::new(committee, share, 4);
        let node = SingleNode::new(deps, certifier, Height(resume), Time(0), random).unwrap();
        (node, pool)
    }

    /// Time of the next block.
    fn next_time(node: &mut SingleNode) -> u64 {
        let batch = batch(node).batch;
        run(node.executed(batch.height, [0; 32], vec![])).unwrap();
        batch.time.0
    }

    /// Nanoseconds of the window of [`limits`].
    const WINDOW: u64 = 360_000_000_000;
    /// Time of a clock that was ahead by more than the window.
    const AHEAD: u64 = WINDOW + 5_000;

    // Promise: P21 - Block time is set back only by `thimble recover-clock`, and replays repeat it.
    #[test]
    fn time_is_set_back_by_an_order_only_and_replays_repeat_it() {
        assert_eq!(SingleNode::ingress_window(&limits()).as_nanos(), u128::from(WINDOW));
        let folder = tempfile::tempdir().unwrap();
        let (mut ahead, _) = node(folder.path(), 0, AHEAD);
        assert_eq!((next_time(&mut ahead), next_time(&mut ahead)), (AHEAD, AHEAD + 1));
        drop(ahead);
        // The clock is right again. Without an order, with one for another height, and with one
        // while the clock is behind by less than the window, time grows.
        let orders =
            [(None, 1_000), (Some(1), 1_000), (Some(7), 1_000), (Some(2), 5_001), (Some(2), 9_000)];
        for (order, now) in orders {
            let folder_again = tempfile::tempdir().unwrap();
            for entry in std::fs::read_dir(folder.path()).unwrap() {
                let path = entry.unwrap().path();
                let to = folder_again.path().join(path.file_name().unwrap());
                std::fs::copy(path, to).unwrap();
            }
            let (node, _) = node(folder_again.path(), 0, now);
            let mut node = node.set_time_back(order.map(Height));
            let times: Vec<_> = (0..3).map(|_| next_time(&mut node)).collect();
            assert_eq!(times, [AHEAD, AHEAD + 1, AHEAD + 2], "{order:?}, {now}");
        }
        let back = 1_000 + WINDOW;
        let (node, _) = self::node(folder.path(), 0, 1_000);
        let mut node = node.set_time_back(Some(Height(2)));
        assert_eq!((next_time(&mut node), next_time(&mut node)), (AHEAD, AHEAD + 1));
        assert_eq!((next_time(&mut node), next_time(&mut node)), (back, back + 1));
        drop(node);
        // The order has no effect on what was executed with it.
        let (node, _) = self::node(folder.path(), 0, 900);
        let mut node = node.set_time_back(Some(Height(2)));
        let times: Vec<_> = (0..5).map(|_| next_time(&mut node)).collect();
        assert_eq!(times, [AHEAD, AHEAD + 1, back, back + 1, back + 2]);
    }

    #[test]
    fn order_to_set_time_back_is_kept_until_its_block_is_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let (mut ahead, _) = node(folder.path(), 0, AHEAD);
        assert_eq!(next_time(&mut ahead), AHEAD);
        drop(ahead);
        let (node, _) = node(folder.path(), 0, 1_000);
        let mut node = node.set_time_back(Some(Height(1)));
        assert_eq!(next_time(&mut node), AHEAD);
        // As by attempts whose block could not be written.
        for _ in 0..3 {
            assert_eq!(node.next_time(), Time(1_000 + WINDOW));
        }
        assert_eq!(next_time(&mut node), 1_000 + WINDOW);
        assert_eq!(node.next_time(), Time(1_001 + WINDOW));
    }

    #[test]
    fn stop_is_followed_between_batches_that_are_executed_again() {
        let folder = tempfile::tempdir().unwrap();
        let (mut before, _) = node(folder.path(), 0, 1_000);
        let _ = (next_time(&mut before), next_time(&mut before));
        drop(before);
        let (mut node, pool) = node(folder.path(), 0, 1_000);
        next_time(&mut node);
        pool.close();
        assert!(matches!(run(node.next(Demand::default())).unwrap(), Step::Closing));
    }

    #[test]
    fn blocks_follow_each_other_and_time_never_stands_still() {
        let folder = tempfile::tempdir().unwrap();
        let (mut node, pool) = node(folder.path(), 0, 1_000);
        submit(&pool, 1);
        let first = batch(&mut node).batch;
        assert_eq!((first.height, first.time, first.ingress.len()), (Height(1), Time(1_000), 1));
        let certificate = run(node.executed(Height(1), [1; 32], vec![])).unwrap().remove(0);
        assert_eq!((certificate.height, certificate.root), (Height(1), [1; 32]));
        let second = batch(&mut node).batch;
        assert_eq!((second.height, second.time), (Height(2), Time(1_001)));
        assert_ne!(second.randomness, first.randomness);
    }

    #[test]
    fn logged_batches_are_replayed_after_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let mut given = vec![];
        {
            let (mut node, pool) = node(folder.path(), 0, 1_000);
            for number in 1..=4 {
                submit(&pool, number);
                given.push(batch(&mut node).batch);
                if number < 4 {
                    run(node.executed(Height(number.into()), [number; 32], vec![])).unwrap();
                }
            }
        }
        let (mut node, _) = node(folder.path(), 2, 2_000);
        let third = batch(&mut node);
        assert_eq!(third.batch, given[2]);
        assert_eq!(third.recorded.unwrap().root, [3; 32]);
        run(node.executed(Height(3), [3; 32], vec![])).unwrap();
        let fourth = batch(&mut node);
        assert_eq!((&fourth.batch, fourth.recorded), (&given[3], None));
        run(node.executed(Height(4), [4; 32], vec![])).unwrap();
        let fifth = batch(&mut node).batch;
        assert_eq!((fifth.height, fifth.time), (Height(5), Time(2_000)));
    }

    #[test]
    fn randomness_is_fresh_after_every_start_and_the_same_in_a_replay() {
        let folder = tempfile::tempdir().unwrap();
        let mut seen = vec![];
        for resume in 0..4 {
            // As after a clean stop: nothing is replayed, and the signature on the state before is
            // the same every time.
            let (mut node, _) = node(folder.path(), resume, 1_000);
            let made = batch(&mut node);
            assert_eq!((made.batch.height, &made.recorded), (Height(resume + 1), &None));
            run(node.executed(made.batch.height, [7; 32], vec![])).unwrap();
            seen.push(made.batch.randomness);
        }
        let first = seen[0].clone();
        let (mut again, _) = node(folder.path(), 0, 5_000);
        for randomness in &seen {
            let replayed = batch(&mut again);
            assert_eq!(replayed.batch.randomness, *randomness);
            run(again.executed(replayed.batch.height, [7; 32], vec![])).unwrap();
        }
        // Another node with the same key, at the same height.
        let other = tempfile::tempdir().unwrap();
        seen.push(batch(&mut node(other.path(), 0, 1_000).0).batch.randomness);
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 5, "a value came twice");
        assert_ne!(first, Randomness::Drawn([0; 32]));
    }

    #[test]
    fn signature_changes_randomness_when_draws_repeat() {
        let folder = tempfile::tempdir().unwrap();
        let (mut node, _) =
            node_with(folder.path(), 0, 1_000, Box::new(ScriptedRandom(vec![Ok(5)])));
        let first = batch(&mut node).batch.randomness;
        run(node.executed(Height(1), [1; 32], vec![])).unwrap();
        assert_ne!(batch(&mut node).batch.randomness, first);
    }

    // Promise: P9 - No block is made without a random source.
    #[test]
    fn without_a_random_source_no_block_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let failing = vec![Err("not seeded"), Err("not seeded"), Ok(9)];
        let (mut node, pool) =
            node_with(folder.path(), 0, 1_000, Box::new(ScriptedRandom(failing)));
        submit(&pool, 1);
        let made = batch(&mut node).batch;
        assert_eq!((made.height, made.ingress.len()), (Height(1), 1));
        assert_eq!(pool.refusing(), None, "calls are taken again");
        run(node.executed(Height(1), [1; 32], vec![])).unwrap();

        // One that never comes back: the node says so, and can still be stopped.
        let folder = tempfile::tempdir().unwrap();
        let broken = Box::new(ScriptedRandom(vec![Err("not seeded")]));
        let (mut node, pool) = node_with(folder.path(), 0, 1_000, broken);
        let waiting =
            std::thread::spawn(move || run(node.next(Demand { more: true, ..Demand::default() })));
        while pool.refusing().is_none_or(|reason| !reason.contains("not seeded")) {
            std::thread::yield_now();
        }
        pool.close();
        assert_eq!(waiting.join().unwrap().unwrap(), Step::Closing);
    }

    #[test]
    fn another_root_than_the_recorded_one_stops_the_node() {
        let folder = tempfile::tempdir().unwrap();
        {
            let (mut node, _) = node(folder.path(), 0, 1_000);
            batch(&mut node);
            run(node.executed(Height(1), [1; 32], vec![])).unwrap();
        }
        let (mut node, _) = node(folder.path(), 0, 1_000);
        batch(&mut node);
        let error = run(node.executed(Height(1), [2; 32], vec![])).unwrap_err();
        assert!(matches!(error, ConsensusError::Diverged { height: 1, .. }), "{error}");
    }

    #[test]
    fn a_closed_pool_ends_the_batches() {
        let folder = tempfile::tempdir().unwrap();
        let (mut node, pool) = node(folder.path(), 0, 1_000);
        pool.close();
        assert_eq!(
            run(node.next(Demand { more: true, ..Demand::default() })).unwrap(),
            Step::Closing
        );
    }
}
