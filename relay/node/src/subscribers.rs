//! Subscriptions of HTTP clients, and the messages that wait for them as references.
//!
//! Bounds: topics subscribed, references of each; the oldest leave, counted.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use router::Shard;
use store::Message;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// Every message of a shard.
    Shard(Shard),
    /// Messages of a content topic.
    Content(Shard, String),
}

#[derive(Debug)]
pub(crate) struct Subscribers {
    topics_max: usize,
    messages_max: usize,
    queues: Mutex<HashMap<Topic, VecDeque<(Shard, Message)>>>,
    /// References that left unread.
    pub(crate) dropped: AtomicU64,
}

impl Subscribers {
    pub(crate) fn new(topics_max: usize, messages_max: usize) -> Self {
        Self { topics_max, messages_max, queues: Mutex::default(), dropped: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Topic, VecDeque<(Shard, Message)>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps messages of a topic from now on. Errors: the most topics there may be.
    pub(crate) fn subscribe(&self, topic: Topic) -> Result<(), usize> {
        let mut queues = self.lock();
        if queues.len() >= self.topics_max && !queues.contains_key(&topic) {
            return Err(self.topics_max);
        }
        queues.entry(topic).or_default();
        Ok(())
    }

    /// Keeps them no more. Whether they were kept.
    pub(crate) fn unsubscribe(&self, topic: &Topic) -> bool {
        self.lock().remove(topic).is_some()
    }

    /// Messages since the last call; `None` without a subscription.
    pub(crate) fn take(&self, topic: &Topic) -> Option<Vec<(Shard, Message)>> {
        self.lock().get_mut(topic).map(|queue| std::mem::take(queue).into())
    }

    /// References that wait in all queues.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().values().map(VecDeque::len).sum()
    }

    pub(crate) fn deliver(&self, shard: Shard, content_topic: &str, message: &Message) {
        let mut queues = self.lock();
        if queues.is_empty() {
            return;
        }
        for topic in [Topic::Shard(shard), Topic::Content(shard, content_topic.to_owned())] {
            let Some(queue) = queues.get_mut(&topic) else { continue };
            while queue.len() >= self.messages_max.max(1) {
                queue.pop_front();
                self.dropped.fetch_add(1, Relaxed);
            }
            queue.push_back((shard, message.clone()));
        }
    }
}
