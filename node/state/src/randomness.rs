//! Randomness: which calls wait for it, and which value answers which.
//!
//! ```text
//! round h       a call asks for randomness and waits, marked with h
//! round h + 1   the root of the state after h is recorded, if anything waits since h
//! round k > h   the batch has the subnet's signature on that root: its hash answers what waits
//!               since h, and nothing else
//! ```
//!
//! The signature of the subnet on a message is unique, no set of fewer members than the threshold
//! can compute it, and members sign the root of a state after they executed its block, which was
//! final then. So a call is fixed before any member knows the value that answers it, and there is
//! one value only (`docs/decisions/0023-votes-by-node-keys.md`).
//!
//! A node alone draws a value for each block, which answers everything that waits.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Cycles, Height, Origin, SubnetState};

/// States whose signatures one block carries, and consensus is asked for at once, at most.
pub const AWAITED_MAX: usize = 4;

/// Randomness of a batch. An agreed value: the block log holds it for replays.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Randomness {
    /// Drawn for this block by a node alone: answers everything that waits.
    Drawn([u8; 32]),
    /// Hashes of the subnet's signatures on roots of earlier states; most blocks have none.
    Signed(Vec<SignedRandomness>),
}

impl Randomness {
    /// Answers nothing.
    pub const NONE: Self = Self::Signed(Vec::new());
}

/// The randomness that the subnet's signature on a state gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SignedRandomness {
    /// Root of the state.
    pub root: [u8; 32],
    /// Hash of the signature on it.
    pub value: [u8; 32],
}

/// A state whose signature answers what waits since its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedRoot {
    /// Of the state.
    pub height: Height,
    /// Its root.
    pub root: [u8; 32],
}

/// The oldest states whose signatures execution waits for: [`AWAITED_MAX`] at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AwaitedRoots([Option<AwaitedRoot>; AWAITED_MAX]);

impl AwaitedRoots {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// By rising height.
    pub fn iter(&self) -> impl Iterator<Item = AwaitedRoot> + '_ {
        self.0.iter().flatten().copied()
    }

    /// Whether the signature on this root is awaited.
    pub fn contains(&self, root: &[u8; 32]) -> bool {
        self.iter().any(|awaited| awaited.root == *root)
    }
}

/// The first [`AWAITED_MAX`].
impl FromIterator<AwaitedRoot> for AwaitedRoots {
    fn from_iter<I: IntoIterator<Item = AwaitedRoot>>(roots: I) -> Self {
        let mut roots = roots.into_iter();
        Self(std::array::from_fn(|_| roots.next()))
    }
}

/// A `raw_rand` that waits for randomness that was unknown when it was called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RandomnessWaiter {
    /// The caller that waits for the response to `raw_rand`.
    pub origin: Origin,
    /// Cycles to return.
    pub cycles: Cycles,
    /// The round of the call.
    pub height: Height,
}

impl SubnetState {
    /// Whether a call of this round waits for randomness. Calls wait in the order of their rounds.
    fn waits_since(&self, height: Height) -> bool {
        self.randomness_waiters.back().is_some_and(|waiter| waiter.height == height)
            || self.outcalls.has_unassigned_of(height)
    }

    /// At the beginning of a round: records the root of the state before it if anything waits since
    /// then. A later state holds the root, so that a node that restarted or fetched it can sign it.
    pub fn record_awaited_root(&mut self) {
        if self.waits_since(self.height) {
            self.awaited_roots.insert(self.height, self.root);
        }
    }

    /// The oldest states whose signatures are awaited, the last state included. After a round, when
    /// its root is known.
    pub fn awaited_roots(&self) -> AwaitedRoots {
        let last = self.waits_since(self.height).then_some((&self.height, &self.root));
        let recorded = self.awaited_roots.iter().chain(last);
        recorded.map(|(height, root)| AwaitedRoot { height: *height, root: *root }).collect()
    }

    /// What `randomness` answers: the round since which it waits, or `None` for everything; and the
    /// value. What it answers is awaited no more.
    pub fn take_answered(&mut self, randomness: &Randomness) -> Vec<(Option<Height>, [u8; 32])> {
        match randomness {
            Randomness::Drawn(value) => {
                self.awaited_roots.clear();
                vec![(None, *value)]
            }
            Randomness::Signed(signed) => {
                signed.iter().filter_map(|signed| self.take_signed(signed)).collect()
            }
        }
    }

    fn take_signed(&mut self, signed: &SignedRandomness) -> Option<(Option<Height>, [u8; 32])> {
        // One root per state: each contains its time, which increases.
        let is_it = |(_, root): &(&Height, &[u8; 32])| **root == signed.root;
        let height = self.awaited_roots.iter().find(is_it).map(|(height, _)| *height)?;
        self.awaited_roots.remove(&height);
        Some((Some(height), signed.value))
    }

    /// After requests ended without a member: what nothing waits for any more is not awaited. A
    /// block that carries the signature nevertheless answers nothing with it.
    pub fn drop_unawaited_roots(&mut self) {
        if self.awaited_roots.is_empty() {
            return;
        }
        let waiters = self.randomness_waiters.iter().map(|waiter| waiter.height);
        let since: BTreeSet<Height> = waiters.chain(self.outcalls.unassigned_since()).collect();
        self.awaited_roots.retain(|height, _| since.contains(height));
    }

    /// Takes out the waiters of this round, or all, in the order of their calls.
    pub fn take_waiters(&mut self, since: Option<Height>) -> Vec<RandomnessWaiter> {
        let waiters = std::mem::take(&mut self.randomness_waiters);
        let is_answered =
            |waiter: &RandomnessWaiter| since.is_none_or(|height| waiter.height == height);
        let (answered, waiting): (Vec<_>, Vec<_>) = waiters.into_iter().partition(is_answered);
        self.randomness_waiters = waiting.into();
        answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Askers, Outcall, OutcallMethod, Time};

    fn waiter(height: u64) -> RandomnessWaiter {
        RandomnessWaiter { origin: Origin::System, cycles: 0, height: Height(height) }
    }

    fn after(state: &mut SubnetState, height: u64) {
        state.record_awaited_root();
        (state.height, state.root) = (Height(height), [height as u8; 32]);
    }

    fn signed(height: u8) -> Randomness {
        Randomness::Signed(vec![SignedRandomness { root: [height; 32], value: [100 + height; 32] }])
    }

    // Promise: P9 - A call is answered by the signature on exactly the state of its round.
    #[test]
    fn signature_answers_the_calls_of_its_round_and_no_others() {
        let mut state = SubnetState::default();
        after(&mut state, 1);
        state.randomness_waiters.push_back(waiter(1));
        after(&mut state, 2);
        state.randomness_waiters.extend([waiter(2), waiter(2)]);
        let heights = |state: &SubnetState| -> Vec<_> {
            state.awaited_roots().iter().map(|awaited| awaited.height.0).collect()
        };
        assert_eq!(heights(&state), [1, 2]);
        after(&mut state, 3);
        assert_eq!(heights(&state), [1, 2], "nothing waits since 3");
        // Neither another state's, nor one that nothing waits for.
        assert_eq!(state.take_answered(&signed(3)), []);
        assert_eq!(state.take_answered(&Randomness::NONE), []);
        assert_eq!(state.take_answered(&signed(2)), [(Some(Height(2)), [102; 32])]);
        assert_eq!(state.take_waiters(Some(Height(2))).len(), 2);
        assert_eq!(state.take_answered(&signed(2)), [], "answered already");
        assert_eq!(heights(&state), [1]);
        assert_eq!(state.take_answered(&Randomness::Drawn([7; 32])), [(None, [7; 32])]);
        assert_eq!(state.take_waiters(None).len(), 1);
        assert!(state.awaited_roots().is_empty());
    }

    #[test]
    fn a_state_is_awaited_no_more_when_the_requests_of_its_round_have_ended() {
        let mut state = SubnetState::default();
        let outcall = |height: u64| Outcall {
            origin: Origin::System,
            cycles: 0,
            url: String::new(),
            method: OutcallMethod::Put,
            headers: vec![],
            body: vec![],
            response_bytes_asked: None,
            transform: None,
            until: Time(1),
            askers: Askers::Unassigned,
            height: Height(height),
        };
        after(&mut state, 1);
        let ended = state.outcalls.add(outcall(1));
        after(&mut state, 2);
        let first = state.outcalls.add(outcall(2));
        let second = state.outcalls.add(outcall(2));
        after(&mut state, 3);
        let with_waiter = state.outcalls.add(outcall(3));
        state.randomness_waiters.push_back(waiter(3));
        after(&mut state, 4);
        let heights = |state: &SubnetState| -> Vec<_> {
            state.awaited_roots().iter().map(|awaited| awaited.height.0).collect()
        };
        let steps =
            [(ended, vec![2, 3]), (first, vec![2, 3]), (second, vec![3]), (with_waiter, vec![3])];
        for (ends, left) in steps {
            assert!(state.outcalls.remove(ends).is_some());
            state.drop_unawaited_roots();
            assert_eq!(heights(&state), left);
        }
        assert_eq!(state.take_answered(&signed(2)), [], "it is ignored");
        assert_eq!(state.take_answered(&signed(3)), [(Some(Height(3)), [103; 32])]);
    }

    #[test]
    fn awaited_states_are_bounded_and_the_oldest_come_first() {
        let roots = |count: u64| -> AwaitedRoots {
            let root = |height| AwaitedRoot { height: Height(height), root: [height as u8; 32] };
            (0..count).map(root).collect()
        };
        assert!(roots(0).is_empty() && !roots(1).is_empty());
        assert_eq!(roots(9).iter().count(), AWAITED_MAX);
        assert!(roots(9).contains(&[3; 32]) && !roots(9).contains(&[4; 32]));
    }
}
