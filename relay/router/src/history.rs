//! Messages of the last heartbeats, to be offered and fetched.

use std::collections::{HashMap, VecDeque};

use crate::{MessageId, Peer, Shard};

/// The message cache of gossipsub: references by heartbeat.
#[derive(Debug)]
pub(crate) struct History<M> {
    windows: VecDeque<Vec<(MessageId, Shard)>>,
    messages: HashMap<MessageId, CachedMessage<M>>,
    windows_max: usize,
    gossiped: usize,
    entries: usize,
    /// Messages that left early.
    pub(crate) dropped: u64,
}

#[derive(Debug)]
struct CachedMessage<M> {
    shard: Shard,
    message: M,
    /// Number of fetches by each peer. At most as many as peers.
    fetched: Vec<(Peer, u8)>,
}

impl<M: Clone> History<M> {
    pub(crate) fn new(windows: usize, gossiped: usize, entries: usize) -> Self {
        Self {
            windows: VecDeque::from([Vec::new()]),
            messages: HashMap::new(),
            windows_max: windows.max(1),
            gossiped,
            entries,
            dropped: 0,
        }
    }

    pub(crate) fn insert(&mut self, id: MessageId, shard: Shard, message: M) {
        while self.messages.len() >= self.entries {
            if !self.drop_oldest() {
                return;
            }
        }
        if self.messages.insert(id, CachedMessage { shard, message, fetched: Vec::new() }).is_none()
            && let Some(newest) = self.windows.back_mut()
        {
            newest.push((id, shard));
        }
        debug_assert!(
            self.messages.len() <= self.entries,
            "{} messages are held, the most is {}",
            self.messages.len(),
            self.entries
        );
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(window) = self.windows.iter_mut().find(|window| !window.is_empty()) else {
            return false;
        };
        // A window's order is of no use, but for which leaves first: a whole one at a time, as
        // taking single ones from its front would cost its length each time.
        for (id, _) in window.drain(..) {
            self.messages.remove(&id);
            self.dropped += 1;
        }
        true
    }

    /// The message for `peer`, unless it fetched it `most` times before.
    pub(crate) fn fetch(&mut self, id: &MessageId, peer: Peer, most: u8) -> Option<(Shard, M)> {
        let kept = self.messages.get_mut(id)?;
        match kept.fetched.iter_mut().find(|(other, _)| *other == peer) {
            Some((_, times)) if *times >= most => return None,
            Some((_, times)) => *times += 1,
            None => kept.fetched.push((peer, 1)),
        }
        Some((kept.shard, kept.message.clone()))
    }

    /// Ids of a topic in the newest windows, oldest first.
    pub(crate) fn recent(&self, shard: Shard) -> impl Iterator<Item = MessageId> + '_ {
        let skipped = self.windows.len().saturating_sub(self.gossiped);
        let windows = self.windows.iter().skip(skipped);
        windows.flatten().filter(move |(_, other)| *other == shard).map(|(id, _)| *id)
    }

    /// Begins a new window; entries older than all windows are dropped.
    pub(crate) fn shift(&mut self) {
        self.windows.push_back(Vec::new());
        while self.windows.len() > self.windows_max {
            for (id, _) in self.windows.pop_front().unwrap_or_default() {
                self.messages.remove(&id);
            }
        }
        debug_assert_eq!(
            self.messages.len(),
            self.windows.iter().map(Vec::len).sum::<usize>(),
            "messages that are held and messages in windows"
        );
        if self.messages.is_empty() {
            self.messages = HashMap::new();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_offered_for_three_heartbeats_and_kept_for_six() {
        let mut history = History::new(6, 3, 100);
        history.insert(MessageId([1; 32]), 7, "one");
        for beat in 0..6 {
            assert_eq!(history.recent(7).count(), usize::from(beat < 3), "{beat}");
            assert_eq!(history.recent(8).count(), 0);
            assert_eq!(
                history.fetch(&MessageId([1; 32]), Peer(beat), 3),
                Some((7, "one")),
                "{beat}"
            );
            history.shift();
        }
        assert_eq!((history.fetch(&MessageId([1; 32]), Peer(9), 3), history.len()), (None, 0));
    }

    #[test]
    fn a_peer_fetches_a_message_three_times_and_no_more() {
        let mut history = History::new(6, 3, 100);
        history.insert(MessageId([1; 32]), 7, ());
        let fetched =
            |history: &mut History<()>, peer| history.fetch(&MessageId([1; 32]), peer, 3).is_some();
        assert!((0..3).all(|_| fetched(&mut history, Peer(1))));
        assert!(!fetched(&mut history, Peer(1)) && fetched(&mut history, Peer(2)));
    }

    #[test]
    fn a_flood_pushes_out_the_oldest() {
        let mut history = History::new(6, 3, 10);
        for number in 0..100_u8 {
            history.insert(MessageId([number; 32]), 1, number);
            assert!(history.len() <= 10);
            if number % 7 == 6 {
                history.shift();
            }
        }
        assert!(history.fetch(&MessageId([99; 32]), Peer(1), 3).is_some());
        assert!(history.dropped > 0);
    }
}
