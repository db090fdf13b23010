//! How long a proposal that has calls waits for more of them.
//!
//! The cost of a block hardly depends on the number of its calls. Clients send their next calls
//! when they have the replies to the last ones, which is when the block of these is certified. A
//! block that is proposed before that, at the beginning of its round, holds the calls of some
//! clients only; the others wait for the block after it, and twice as many blocks are made for the
//! same calls. So where the parent held calls, a proposal waits until the parent is certified here,
//! and then until as many calls wait as the parent had, for [`RETURN_MAX`] at most.
//!
//! It does not wait where a quarter of a block of calls waits, or where execution has work of its
//! own: the caller sees to that. Nor where certification takes long, as blocks are proposed while
//! their parent is executed then: a wait that lasted [`WAIT_MAX`] was in vain, and the next
//! [`SKIPPED`] proposals of this node do not wait.
//!
//! This affects when a leader proposes, and no verdict.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Longest wait of a proposal, from when it could have been made.
const WAIT_MAX: Duration = Duration::from_millis(60);
/// Longest wait for calls after the parent is certified: a reply, the client's next call, and its
/// way to the leader.
const RETURN_MAX: Duration = Duration::from_millis(8);
/// Proposals that do not wait after one that waited in vain.
const SKIPPED: u32 = 16;
const _: () = assert!(RETURN_MAX.as_nanos() < WAIT_MAX.as_nanos());

/// Of a node.
#[derive(Debug, Default)]
pub(super) struct Batching {
    skipped: AtomicU32,
}

/// Of one proposal.
#[derive(Debug)]
pub(super) struct BatchWait<'a> {
    batching: &'a Batching,
    /// Calls of the parent.
    parent_calls: usize,
    /// Calls for which no proposal waits for more.
    calls_max: usize,
    /// Waited when the parent was first seen to be certified.
    certified: Option<Duration>,
}

impl Batching {
    /// None if the proposal does not wait.
    pub(super) fn begin(&self, parent_calls: usize, calls_max: usize) -> Option<BatchWait<'_>> {
        if parent_calls == 0 {
            return None;
        }
        let skipped = self.skipped.load(Ordering::Relaxed);
        if skipped > 0 {
            // Proposals of one node do not overlap.
            self.skipped.store(skipped - 1, Ordering::Relaxed);
            return None;
        }
        Some(BatchWait { batching: self, parent_calls, calls_max, certified: None })
    }
}

impl BatchWait<'_> {
    /// Calls at which the wait is over once the parent is certified.
    pub(super) fn calls_wanted(&self) -> usize {
        self.parent_calls.min(self.calls_max)
    }

    /// How long to wait at most for a change; none if the block is to be proposed. It could have
    /// been proposed `waited` ago; `calls` wait now.
    pub(super) fn left(
        &mut self,
        waited: Duration,
        calls: usize,
        is_certified: bool,
    ) -> Option<Duration> {
        if calls >= self.calls_max {
            return None;
        }
        if is_certified {
            let since = waited.saturating_sub(*self.certified.get_or_insert(waited));
            let left = RETURN_MAX.saturating_sub(since).min(WAIT_MAX.saturating_sub(waited));
            return (calls < self.calls_wanted() && !left.is_zero()).then_some(left);
        }
        let left = WAIT_MAX.saturating_sub(waited);
        if left.is_zero() {
            self.batching.skipped.store(SKIPPED, Ordering::Relaxed);
            return None;
        }
        Some(left)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_proposal_waits_for_the_certificate_and_the_calls_that_follow_it() {
        let batching = Batching::default();
        assert!(batching.begin(0, 500).is_none(), "no client waits for an empty parent");
        let mut wait = batching.begin(3, 500).unwrap();
        assert_eq!(wait.left(millis(0), 5, false), Some(WAIT_MAX), "replies are on their way");
        assert_eq!(wait.left(millis(20), 2, true), Some(RETURN_MAX));
        assert_eq!(wait.left(millis(25), 2, true), Some(millis(3)));
        assert_eq!(wait.left(millis(25), 3, true), None, "as many as in the parent");
        let mut wait = batching.begin(3, 500).unwrap();
        assert!(wait.left(millis(10), 1, true).is_some());
        assert_eq!(wait.left(millis(18), 1, true), None, "no more came back in time");
        let mut wait = batching.begin(3, 2).unwrap();
        assert_eq!(wait.left(millis(0), 2, false), None, "there are many");
    }

    #[test]
    fn after_a_wait_in_vain_blocks_are_proposed_while_their_parent_is_executed() {
        let batching = Batching::default();
        let mut wait = batching.begin(1, 500).unwrap();
        assert_eq!(wait.left(millis(59), 1, false), Some(millis(1)));
        assert_eq!(wait.left(millis(60), 1, false), None);
        for proposal in 0..SKIPPED {
            assert!(batching.begin(1, 500).is_none(), "proposal {proposal}");
        }
        assert!(batching.begin(1, 500).is_some());
        // One that was certified in the last moment was not in vain.
        let mut wait = batching.begin(1, 500).unwrap();
        assert_eq!(wait.left(millis(59), 0, true), Some(millis(1)));
        assert_eq!(wait.left(millis(60), 0, true), None);
        assert!(batching.begin(1, 500).is_some());
    }
}
