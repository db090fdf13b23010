//! State of one connected peer.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    task::Waker,
    time::Duration,
};

use crate::{Control, MessageId, Shard, Topics, score::Score};

#[derive(Debug)]
pub(crate) struct PeerState<M> {
    /// Known under this name across connections.
    pub(crate) name: Vec<u8>,
    /// Where it is, as far as scores go; `None` for addresses that do not count.
    pub(crate) address: Option<Vec<u8>>,
    /// Whether this node dialled it.
    pub(crate) outbound: bool,
    /// The heartbeat after which it came.
    pub(crate) since_heartbeat: u64,
    /// Topics it subscribed to.
    pub(crate) topics: Topics,
    pub(crate) score: Score,
    /// Until when a topic's mesh is closed to it. At most as many as this node's topics.
    pub(crate) backoff: BTreeMap<Shard, Duration>,

    // To be sent.
    pub(crate) control: Control,
    pub(crate) queue: VecDeque<(Shard, MessageId, M)>,
    pub(crate) waker: Option<Waker>,

    // Between two heartbeats.
    pub(crate) ihave_heard: usize,
    pub(crate) ids_asked: usize,
    /// Messages it fetched.
    pub(crate) ids_fetched: usize,
    /// Of messages asked of it: one id of each request, and when it is due.
    pub(crate) promises: Vec<(MessageId, Duration)>,
    /// Messages it does not want, with the heartbeat after which the entry expires. Looked up only,
    /// never iterated in an order that matters.
    pub(crate) unwanted: HashMap<MessageId, u64>,
}

impl<M> PeerState<M> {
    pub(crate) fn new(
        name: Vec<u8>,
        address: Option<Vec<u8>>,
        outbound: bool,
        score: Score,
        heartbeat: u64,
    ) -> Self {
        Self {
            name,
            address,
            outbound,
            since_heartbeat: heartbeat,
            topics: Topics::default(),
            score,
            backoff: BTreeMap::new(),
            control: Control::default(),
            queue: VecDeque::new(),
            waker: None,
            ihave_heard: 0,
            ids_asked: 0,
            ids_fetched: 0,
            promises: Vec::new(),
            unwanted: HashMap::new(),
        }
    }

    pub(crate) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Puts a reference into its queue unless it declared it unwanted; how many older ones had to
    /// leave.
    pub(crate) fn push(&mut self, shard: Shard, id: MessageId, message: M, most: usize) -> u64 {
        if self.unwanted.contains_key(&id) {
            return 0;
        }
        let mut left = 0;
        while self.queue.len() >= most.max(1) {
            self.queue.pop_front();
            left += 1;
        }
        self.queue.push_back((shard, id, message));
        self.wake();
        left
    }

    /// It announces that it has a message: the message need not be sent, even if it waits in the
    /// queue.
    pub(crate) fn does_not_want(&mut self, id: MessageId, until: u64, most: usize) {
        if self.unwanted.len() < most {
            self.unwanted.insert(id, until);
        }
    }

    /// The next reference that it wants.
    pub(crate) fn pop(&mut self) -> Option<(Shard, M)> {
        while let Some((shard, id, message)) = self.queue.pop_front() {
            if !self.unwanted.contains_key(&id) {
                return Some((shard, message));
            }
        }
        None
    }

    pub(crate) fn in_backoff(&self, shard: Shard, now: Duration) -> bool {
        self.backoff.get(&shard).is_some_and(|until| *until > now)
    }

    pub(crate) fn back_off(&mut self, shard: Shard, until: Duration) {
        let known = self.backoff.entry(shard).or_insert(until);
        *known = (*known).max(until);
    }
}
