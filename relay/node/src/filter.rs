//! Filter subscriptions, and the queues of pushes.
//!
//! A receiver is a peer with at least one criterion: a shard and a content topic. Messages for it
//! wait in its queue as references; the oldest leave when there are too many, and are counted. A
//! receiver that reads holds publishers of its topics back before that ([`Filter::has_room`],
//! within the bounds of [`crate::pace`]): accepted messages reach every receiver that reads.
//!
//! Bounds: receivers, criteria of one and of all, references in each queue; all in [`Bounds`]. It
//! must never know streams and connections.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use libp2p::PeerId;
use router::Shard;
use store::Message;
use thiserror::Error;

use crate::pace::{Floor, Pace};

/// Pushes that fail one after the other before a receiver's subscriptions go.
const FAILURES_MAX: u32 = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) receivers: usize,
    pub(crate) criteria_per_peer: usize,
    pub(crate) criteria: usize,
    pub(crate) queue_messages: usize,
    /// A receiver that neither pings nor asks anything for so long is forgotten.
    pub(crate) silence: Duration,
    /// Publishers are not slowed down below this.
    pub(crate) floor: Floor,
}

/// Why a subscription was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum SubscribeError {
    #[error("{0} receivers are subscribed, the most this node serves; try another service node")]
    Receivers(usize),
    #[error("a receiver has at most {0} subscriptions here; unsubscribe from some")]
    PerPeer(usize),
    #[error(
        "all receivers together have {0} subscriptions, the most this node keeps; try another \
         service node"
    )]
    All(usize),
}

#[derive(Debug)]
struct Receiver {
    criteria: BTreeMap<(Shard, Arc<str>), ()>,
    queue: VecDeque<(Shard, Message)>,
    heard: Instant,
    waker: Option<Waker>,
    failures: u32,
    pace: Pace,
}

impl Receiver {
    fn new(now: Instant) -> Self {
        Self {
            criteria: BTreeMap::new(),
            queue: VecDeque::new(),
            heard: now,
            waker: None,
            failures: 0,
            pace: Pace::new(now),
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[derive(Debug, Default)]
struct State {
    receivers: HashMap<PeerId, Receiver>,
    /// Receivers of each criterion.
    index: HashMap<(Shard, Arc<str>), Vec<PeerId>>,
    criteria: usize,
}

#[derive(Debug)]
pub(crate) struct Filter {
    bounds: Bounds,
    state: Mutex<State>,
    /// References put into queues.
    pub(crate) queued: AtomicU64,
    /// References that left a full queue.
    pub(crate) dropped: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilterUsage {
    pub(crate) receivers: usize,
    pub(crate) criteria: usize,
    /// Of the content topics, each once.
    pub(crate) topics_bytes: u64,
    pub(crate) waiting: usize,
}

impl Filter {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            state: Mutex::default(),
            queued: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds criteria; all of them or none.
    pub(crate) fn subscribe(
        &self,
        peer: PeerId,
        shard: Shard,
        content_topics: &[Arc<str>],
        now: Instant,
    ) -> Result<(), SubscribeError> {
        let mut state = self.lock();
        let Bounds { receivers, criteria_per_peer, criteria, .. } = self.bounds;
        let known = state.receivers.get(&peer);
        if known.is_none() && state.receivers.len() >= receivers {
            return Err(SubscribeError::Receivers(receivers));
        }
        let mut new: Vec<_> = content_topics.iter().map(|topic| (shard, topic.clone())).collect();
        new.sort();
        new.dedup();
        new.retain(|one| known.is_none_or(|receiver| !receiver.criteria.contains_key(one)));
        let has = known.map_or(0, |receiver| receiver.criteria.len());
        if has + new.len() > criteria_per_peer {
            return Err(SubscribeError::PerPeer(criteria_per_peer));
        }
        if state.criteria + new.len() > criteria {
            return Err(SubscribeError::All(criteria));
        }
        state.criteria += new.len();
        for one in &new {
            state.index.entry(one.clone()).or_default().push(peer);
        }
        let receiver = state.receivers.entry(peer).or_insert_with(|| Receiver::new(now));
        receiver.heard = now;
        receiver.failures = 0;
        receiver.criteria.extend(new.into_iter().map(|one| (one, ())));
        let has = receiver.criteria.len();
        debug_assert!(has <= criteria_per_peer, "{has} criteria of one receiver");
        debug_assert!(
            state.criteria <= criteria && state.receivers.len() <= receivers,
            "{} criteria of {} receivers",
            state.criteria,
            state.receivers.len()
        );
        Ok(())
    }

    /// Takes criteria away. Whether the peer had any.
    pub(crate) fn unsubscribe(
        &self,
        peer: PeerId,
        shard: Shard,
        content_topics: &[Arc<str>],
        now: Instant,
    ) -> bool {
        let mut state = self.lock();
        let Some(receiver) = state.receivers.get_mut(&peer) else { return false };
        receiver.heard = now;
        let mut gone = Vec::new();
        for topic in content_topics {
            let one = (shard, topic.clone());
            if receiver.criteria.remove(&one).is_some() {
                gone.push(one);
            }
        }
        let empty = receiver.criteria.is_empty();
        state.leave_index(peer, gone);
        if empty {
            state.remove(&peer);
        }
        true
    }

    /// Takes everything of a peer away. Whether it had any.
    pub(crate) fn unsubscribe_all(&self, peer: &PeerId) -> bool {
        self.lock().remove(peer)
    }

    /// The peer is there. Whether it is subscribed.
    pub(crate) fn ping(&self, peer: &PeerId, now: Instant) -> bool {
        let mut state = self.lock();
        let Some(receiver) = state.receivers.get_mut(peer) else { return false };
        receiver.heard = now;
        true
    }

    pub(crate) fn is_receiver(&self, peer: &PeerId) -> bool {
        self.lock().receivers.contains_key(peer)
    }

    /// Whether every receiver of the topic that is waited for has room for one more.
    pub(crate) fn has_room(&self, shard: Shard, content_topic: &str, now: Instant) -> bool {
        let mut state = self.lock();
        let State { receivers, index, .. } = &mut *state;
        let Some(peers) = index.get(&(shard, Arc::from(content_topic))) else { return true };
        peers.iter().all(|peer| {
            receivers.get_mut(peer).is_none_or(|receiver| {
                receiver.queue.len() < self.bounds.queue_messages / 2
                    || !receiver.pace.is_waited_for(self.bounds.floor, now)
            })
        })
    }

    /// Puts a message into the queue of every receiver of the topic; how many.
    pub(crate) fn deliver(&self, shard: Shard, content_topic: &str, message: &Message) -> usize {
        let now = Instant::now();
        let mut state = self.lock();
        let State { receivers, index, .. } = &mut *state;
        let Some(peers) = index.get(&(shard, Arc::from(content_topic))) else { return 0 };
        for peer in peers {
            debug_assert!(receivers.contains_key(peer), "{peer} is in the index and no receiver");
            let Some(receiver) = receivers.get_mut(peer) else { continue };
            while receiver.queue.len() >= self.bounds.queue_messages.max(1) {
                receiver.queue.pop_front();
                self.dropped.fetch_add(1, Relaxed);
            }
            receiver.queue.push_back((shard, message.clone()));
            receiver.pace.queued(message.len(), now);
            receiver.wake();
        }
        self.queued.fetch_add(peers.len() as u64, Relaxed);
        peers.len()
    }

    /// The next message for a receiver. The last poller is woken.
    pub(crate) fn poll_next(&self, peer: &PeerId, cx: &Context<'_>) -> Poll<(Shard, Message)> {
        let mut state = self.lock();
        // A peer that is not a receiver wakes its connection by subscribing: that is a stream on
        // it.
        let Some(receiver) = state.receivers.get_mut(peer) else { return Poll::Pending };
        match receiver.queue.pop_front() {
            Some(next) => Poll::Ready(next),
            None => {
                receiver.queue.shrink_to(16);
                receiver.pace.emptied();
                receiver.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// A push was taken, or was not.
    pub(crate) fn pushed(&self, peer: &PeerId, taken: bool, now: Instant) {
        let mut state = self.lock();
        let Some(receiver) = state.receivers.get_mut(peer) else { return };
        if taken {
            receiver.pace.taken(now);
            receiver.failures = 0;
            return;
        }
        receiver.failures += 1;
        if receiver.failures >= FAILURES_MAX {
            state.remove(peer);
        }
    }

    /// Forgets receivers that are silent for too long; how many.
    pub(crate) fn expire(&self, now: Instant) -> usize {
        let mut state = self.lock();
        let silent = |receiver: &Receiver| {
            now.saturating_duration_since(receiver.heard) >= self.bounds.silence
        };
        let gone: Vec<PeerId> = state
            .receivers
            .iter()
            .filter(|(_, receiver)| silent(receiver))
            .map(|(peer, _)| *peer)
            .collect();
        let count = gone.iter().filter(|peer| state.remove(peer)).count();
        debug_assert_eq!(
            state.criteria,
            state.receivers.values().map(|receiver| receiver.criteria.len()).sum::<usize>(),
            "criteria of {} receivers",
            state.receivers.len()
        );
        count
    }

    pub(crate) fn usage(&self) -> FilterUsage {
        let state = self.lock();
        FilterUsage {
            receivers: state.receivers.len(),
            criteria: state.criteria,
            topics_bytes: state.index.keys().map(|(_, topic)| topic.len() as u64).sum(),
            waiting: state.receivers.values().map(|receiver| receiver.queue.len()).sum(),
        }
    }
}

impl State {
    fn leave_index(&mut self, peer: PeerId, criteria: impl IntoIterator<Item = (Shard, Arc<str>)>) {
        for one in criteria {
            assert!(self.criteria > 0, "a criterion of {peer} was not counted");
            self.criteria -= 1;
            if let Some(peers) = self.index.get_mut(&one) {
                peers.retain(|other| *other != peer);
                if peers.is_empty() {
                    self.index.remove(&one);
                }
            }
        }
    }

    fn remove(&mut self, peer: &PeerId) -> bool {
        let Some(mut receiver) = self.receivers.remove(peer) else { return false };
        receiver.wake();
        self.leave_index(*peer, receiver.criteria.into_keys());
        true
    }
}

impl Filter {
    pub(crate) fn receivers(&self) -> Vec<PeerId> {
        self.lock().receivers.keys().copied().collect()
    }

    /// A peer's criteria; empty when it is not a receiver.
    pub(crate) fn criteria_of(&self, peer: &PeerId) -> Vec<(Shard, Arc<str>)> {
        let state = self.lock();
        let receiver = state.receivers.get(peer);
        receiver.map(|receiver| receiver.criteria.keys().cloned().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter() -> Filter {
        Filter::new(Bounds {
            receivers: 3,
            criteria_per_peer: 4,
            criteria: 8,
            queue_messages: 4,
            silence: Duration::from_secs(300),
            floor: Floor { messages_per_second: 250, bytes_per_second: 8 << 20 },
        })
    }

    fn topics(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    #[test]
    fn subscriptions_are_counted_once_and_refused_whole() {
        let (filter, now) = (filter(), Instant::now());
        let peer = PeerId::random();
        filter.subscribe(peer, 1, &topics(&["a", "b", "a"]), now).unwrap();
        filter.subscribe(peer, 1, &topics(&["a"]), now).unwrap();
        assert_eq!(filter.usage().criteria, 2);
        let refused = filter.subscribe(peer, 1, &topics(&["c", "d", "e"]), now);
        assert_eq!(refused, Err(SubscribeError::PerPeer(4)));
        assert_eq!(filter.usage().criteria, 2);
        let others = [PeerId::random(), PeerId::random(), PeerId::random()];
        filter.subscribe(others[0], 1, &topics(&["a", "b", "c", "d"]), now).unwrap();
        let refused = filter.subscribe(others[1], 1, &topics(&["a", "b", "c"]), now);
        assert_eq!(refused, Err(SubscribeError::All(8)));
        filter.subscribe(others[1], 2, &topics(&["a"]), now).unwrap();
        let refused = filter.subscribe(others[2], 2, &topics(&["a"]), now);
        assert_eq!(refused, Err(SubscribeError::Receivers(3)));
    }

    #[test]
    fn leaving_gives_back_what_was_held() {
        let (filter, now) = (filter(), Instant::now());
        let peer = PeerId::random();
        assert!(!filter.unsubscribe(peer, 1, &topics(&["a"]), now) && !filter.ping(&peer, now));
        filter.subscribe(peer, 1, &topics(&["a", "b"]), now).unwrap();
        assert!(filter.unsubscribe(peer, 1, &topics(&["a", "x"]), now));
        assert!(filter.ping(&peer, now) && filter.is_receiver(&peer));
        assert!(filter.unsubscribe(peer, 1, &topics(&["b"]), now));
        assert_eq!(filter.usage(), FilterUsage::default());
        filter.subscribe(peer, 1, &topics(&["a", "b"]), now).unwrap();
        assert!(filter.unsubscribe_all(&peer) && !filter.unsubscribe_all(&peer));
        assert_eq!(filter.usage(), FilterUsage::default());
    }

    #[test]
    fn receiver_silent_for_five_minutes_is_removed() {
        let (filter, now) = (filter(), Instant::now());
        let (silent, pinging) = (PeerId::random(), PeerId::random());
        filter.subscribe(silent, 1, &topics(&["a"]), now).unwrap();
        filter.subscribe(pinging, 1, &topics(&["a"]), now).unwrap();
        filter.ping(&pinging, now + Duration::from_secs(200));
        assert_eq!(filter.expire(now + Duration::from_secs(299)), 0);
        assert_eq!(filter.expire(now + Duration::from_secs(300)), 1);
        assert_eq!(filter.usage().receivers, 1);
        assert!(filter.is_receiver(&pinging));
    }
}
