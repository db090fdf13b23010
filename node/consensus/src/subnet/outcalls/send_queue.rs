//! Messages due to other members, in the order in which the network takes them: shares before
//! answers, new shares before repeated ones, and of the repeated ones the one after the last.

use std::{
    collections::BTreeSet,
    ops::Bound::{Excluded, Unbounded},
};

use limits::OUTCALL_RESPONSE_BYTES;
use state::OutcallId;

/// Greatest number of bytes of answers that this node sends between two repetitions: less than
/// others accept.
const ANSWERS_BYTES: u64 = 3 * OUTCALL_RESPONSE_BYTES;
/// Greatest number of answers that this node sends between two repetitions.
pub(super) const ANSWERS_MAX: u64 = 64;

/// Requests whose shares or answers are due. Bounded by the requests that are open.
pub(super) struct SendQueue {
    new: BTreeSet<OutcallId>,
    again: RoundRobinQueue,
    answers: RoundRobinQueue,
    /// Answers, and bytes of them, until the next repetition.
    left: (u64, u64),
}

/// Each in its turn, from the one behind the last on.
#[derive(Default)]
struct RoundRobinQueue {
    waiting: BTreeSet<OutcallId>,
    last: Option<OutcallId>,
}

impl RoundRobinQueue {
    fn next(&self) -> Option<OutcallId> {
        let behind =
            self.last.and_then(|last| self.waiting.range((Excluded(last), Unbounded)).next());
        behind.or_else(|| self.waiting.first()).copied()
    }

    fn mark_sent(&mut self, id: OutcallId) {
        self.waiting.remove(&id);
        self.last = Some(id);
    }
}

impl SendQueue {
    pub(super) fn new() -> Self {
        Self {
            new: BTreeSet::new(),
            again: RoundRobinQueue::default(),
            answers: RoundRobinQueue::default(),
            left: (ANSWERS_MAX, ANSWERS_BYTES),
        }
    }

    /// No share on this request was sent yet.
    pub(super) fn add_new(&mut self, id: OutcallId) {
        self.new.insert(id);
    }

    pub(super) fn add_answer(&mut self, id: OutcallId) {
        self.answers.waiting.insert(id);
    }

    /// The shares of all these requests are to be sent again; the limits of answers are reset.
    pub(super) fn repeat(&mut self, open: impl Iterator<Item = OutcallId>) {
        self.again.waiting = open.collect();
        self.left = (ANSWERS_MAX, ANSWERS_BYTES);
    }

    /// Drops the requests that are not open any more.
    pub(super) fn retain(&mut self, is_open: impl Fn(&OutcallId) -> bool) {
        for waiting in [&mut self.new, &mut self.again.waiting, &mut self.answers.waiting] {
            waiting.retain(&is_open);
        }
    }

    pub(super) fn next_share(&self) -> Option<OutcallId> {
        self.new.first().copied().or_else(|| self.again.next())
    }

    pub(super) fn mark_share_sent(&mut self, id: OutcallId) {
        if !self.new.remove(&id) {
            self.again.mark_sent(id);
        }
    }

    pub(super) fn next_answer(&self) -> Option<OutcallId> {
        self.answers.next()
    }

    /// Whether an answer of this many bytes may be sent before the next repetition.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.left.0 > 0 && bytes <= self.left.1
    }

    /// An answer with this many bytes was sent.
    pub(super) fn mark_answer_sent(&mut self, id: OutcallId, bytes: u64) {
        self.answers.mark_sent(id);
        self.left = (self.left.0.saturating_sub(1), self.left.1.saturating_sub(bytes));
    }

    pub(super) fn forget_answer(&mut self, id: OutcallId) {
        self.answers.waiting.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_next(queue: &mut SendQueue, times: usize) -> Vec<u64> {
        let mut sent = Vec::new();
        while let Some(id) = queue.next_share().filter(|_| sent.len() < times) {
            queue.mark_share_sent(id);
            sent.push(id.0);
        }
        sent
    }

    #[test]
    fn new_shares_come_first_and_others_behind_the_last() {
        let mut queue = SendQueue::new();
        queue.repeat((0..5).map(OutcallId));
        queue.add_new(OutcallId(9));
        assert_eq!(send_next(&mut queue, 3), [9, 0, 1]);
        queue.repeat((0..5).map(OutcallId));
        assert_eq!(send_next(&mut queue, 9), [2, 3, 4, 0, 1]);
    }

    #[test]
    fn answers_rotate_within_their_byte_limit() {
        let mut queue = SendQueue::new();
        (0..3).map(OutcallId).for_each(|id| queue.add_answer(id));
        queue.mark_answer_sent(OutcallId(0), ANSWERS_BYTES - 10);
        assert!(queue.has_room(10) && !queue.has_room(11));
        queue.add_answer(OutcallId(0));
        assert_eq!(queue.next_answer(), Some(OutcallId(1)));
        queue.repeat(std::iter::empty());
        for _ in 0..ANSWERS_MAX {
            assert!(queue.has_room(11));
            queue.mark_answer_sent(OutcallId(1), 1);
        }
        assert!(!queue.has_room(1));
        queue.forget_answer(OutcallId(2));
        queue.retain(|id| id.0 > 0);
        assert_eq!(queue.next_answer(), None);
    }
}
