//! Subscriptions of HTTP clients, and the messages that wait for them as references.
//!
//! Bounds: `http.cache_bytes` for topics and references together. A topic is charged
//! [`HTTP_TOPIC_BYTES`] and its name, and keeps [`HTTP_TOPIC_MESSAGES`] references at least; a
//! topic for which that is not left is refused. What topics leave is shared evenly between their
//! queues, up to `http.cache_messages` each; the oldest reference of a full queue leaves, counted.
//! So does, within [`KEPT_DROPPED`], a reference to a segment that the store dropped: it would keep
//! the segment's space on the disk until a client reads it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use relay_limits::{HTTP_TOPIC_BYTES, HTTP_TOPIC_MESSAGES, HTTP_TOPIC_NAMES, REFERENCE_BYTES};
use router::Shard;
use store::Message;
use thiserror::Error;

/// Interval at which references to dropped segments leave.
const KEPT_DROPPED: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Topic {
    /// Every message of a shard.
    Shard(Shard),
    /// Messages of a content topic.
    Content(Shard, String),
}

impl Topic {
    pub(crate) fn shard(&self) -> Shard {
        match self {
            Self::Shard(shard) | Self::Content(shard, _) => *shard,
        }
    }

    /// Its charge, without its messages.
    fn bytes(&self) -> u64 {
        let name = match self {
            Self::Shard(_) => 0,
            Self::Content(_, name) => name.len() as u64,
        };
        HTTP_TOPIC_BYTES + HTTP_TOPIC_NAMES * name
    }
}

/// No memory is left for further topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{needed} bytes are needed for the topics that clients subscribe to, http.cache_bytes is \
     {cache}; unsubscribe from some, or raise it"
)]
pub(crate) struct TopicsFull {
    needed: u64,
    cache: u64,
}

#[derive(Debug)]
pub(crate) struct Subscribers {
    cache_bytes: u64,
    messages_max: usize,
    queues: Mutex<Queues>,
    /// References that left unread.
    pub(crate) dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Queues {
    shards: HashMap<Shard, ShardQueues>,
    topics: usize,
    /// Charge of the topics.
    topics_bytes: u64,
    /// References that each queue may hold.
    each: usize,
    expired: Option<Instant>,
}

/// Queues of one shard: of all its messages, if there is one, and by content topic.
#[derive(Debug, Default)]
struct ShardQueues {
    all: Option<VecDeque<Message>>,
    content: HashMap<String, VecDeque<Message>>,
}

impl ShardQueues {
    fn each(&mut self) -> impl Iterator<Item = &mut VecDeque<Message>> {
        self.all.iter_mut().chain(self.content.values_mut())
    }

    fn is_empty(&self) -> bool {
        self.all.is_none() && self.content.is_empty()
    }
}

impl Queues {
    fn get_mut(&mut self, topic: &Topic) -> Option<&mut VecDeque<Message>> {
        let queues = self.shards.get_mut(&topic.shard())?;
        match topic {
            Topic::Shard(_) => queues.all.as_mut(),
            Topic::Content(_, name) => queues.content.get_mut(name),
        }
    }

    fn contains(&self, topic: &Topic) -> bool {
        let Some(queues) = self.shards.get(&topic.shard()) else { return false };
        match topic {
            Topic::Shard(_) => queues.all.is_some(),
            Topic::Content(_, name) => queues.content.contains_key(name),
        }
    }

    fn waiting(&self) -> usize {
        let of_shard = |queues: &ShardQueues| {
            let content = queues.content.values().map(VecDeque::len).sum::<usize>();
            queues.all.as_ref().map_or(0, VecDeque::len) + content
        };
        self.shards.values().map(of_shard).sum()
    }
}

impl Subscribers {
    pub(crate) fn new(cache_bytes: u64, messages_max: usize) -> Self {
        Self {
            cache_bytes,
            messages_max: messages_max.max(1),
            queues: Mutex::default(),
            dropped: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is room for these topics, beside those that are there; each is named once.
    pub(crate) fn has_room<'a>(
        &self,
        topics: impl Iterator<Item = &'a Topic>,
    ) -> Result<(), TopicsFull> {
        let queues = self.lock();
        let (mut count, mut bytes) = (queues.topics as u64, queues.topics_bytes);
        for topic in topics.filter(|topic| !queues.contains(topic)) {
            count += 1;
            bytes += topic.bytes();
        }
        let least = HTTP_TOPIC_MESSAGES.min(self.messages_max as u64);
        let needed = bytes + count * least * REFERENCE_BYTES;
        if needed > self.cache_bytes {
            return Err(TopicsFull { needed, cache: self.cache_bytes });
        }
        Ok(())
    }

    /// Keeps messages of a topic from now on. Errors: no memory for it.
    pub(crate) fn subscribe(&self, topic: Topic) -> Result<(), TopicsFull> {
        self.has_room(std::iter::once(&topic))?;
        let mut queues = self.lock();
        if queues.contains(&topic) {
            return Ok(());
        }
        queues.topics += 1;
        queues.topics_bytes += topic.bytes();
        let of_shard = queues.shards.entry(topic.shard()).or_default();
        match topic {
            Topic::Shard(_) => of_shard.all = Some(VecDeque::new()),
            Topic::Content(_, name) => drop(of_shard.content.insert(name, VecDeque::new())),
        }
        self.share(&mut queues);
        Ok(())
    }

    /// Keeps them no more. Whether they were kept.
    pub(crate) fn unsubscribe(&self, topic: &Topic) -> bool {
        let mut queues = self.lock();
        let Some(of_shard) = queues.shards.get_mut(&topic.shard()) else { return false };
        let removed = match topic {
            Topic::Shard(_) => of_shard.all.take(),
            Topic::Content(_, name) => of_shard.content.remove(name),
        };
        if removed.is_none() {
            return false;
        }
        if of_shard.is_empty() {
            queues.shards.remove(&topic.shard());
        }
        queues.topics -= 1;
        queues.topics_bytes -= topic.bytes();
        self.share(&mut queues);
        true
    }

    /// Divides the memory that topics leave between their queues, and shortens those that hold
    /// more. A share is a small number, so it changes for few of many subscriptions.
    fn share(&self, queues: &mut Queues) {
        let left = self.cache_bytes.saturating_sub(queues.topics_bytes) / REFERENCE_BYTES;
        let each = left / (queues.topics as u64).max(1);
        let each = usize::try_from(each).unwrap_or(usize::MAX).clamp(1, self.messages_max);
        let before = std::mem::replace(&mut queues.each, each);
        if each >= before {
            return;
        }
        for queue in queues.shards.values_mut().flat_map(ShardQueues::each) {
            self.shorten(queue, each);
            queue.shrink_to(each);
        }
    }

    /// Has the oldest leave a queue that holds more than `most`.
    fn shorten(&self, queue: &mut VecDeque<Message>, most: usize) {
        let more = queue.len().saturating_sub(most);
        queue.drain(..more);
        self.dropped.fetch_add(more as u64, Relaxed);
    }

    /// Messages since the last call; `None` without a subscription.
    pub(crate) fn take(&self, topic: &Topic) -> Option<VecDeque<Message>> {
        self.lock().get_mut(topic).map(std::mem::take)
    }

    /// Memory of topics and references, as it is charged.
    pub(crate) fn bytes(&self) -> u64 {
        let queues = self.lock();
        queues.topics_bytes + queues.waiting() as u64 * REFERENCE_BYTES
    }

    pub(crate) fn deliver(&self, shard: Shard, content_topic: &str, message: &Message) {
        let mut queues = self.lock();
        let most = queues.each.max(1);
        let Some(of_shard) = queues.shards.get_mut(&shard) else { return };
        let ShardQueues { all, content } = of_shard;
        for queue in all.iter_mut().chain(content.get_mut(content_topic)) {
            self.shorten(queue, most - 1);
            queue.push_back(message.clone());
        }
    }

    /// Drops references to segments that the store dropped, from time to time. At each heartbeat.
    pub(crate) fn expire(&self, now: Instant) {
        let mut queues = self.lock();
        let last = *queues.expired.get_or_insert(now);
        if now.saturating_duration_since(last) < KEPT_DROPPED {
            return;
        }
        queues.expired = Some(now);
        let before = queues.waiting();
        for queue in queues.shards.values_mut().flat_map(ShardQueues::each) {
            queue.retain(|message| !message.is_dropped());
        }
        self.dropped.fetch_add((before - queues.waiting()) as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicI64};

    use super::*;

    fn content(name: &str) -> Topic {
        Topic::Content(1, name.to_owned())
    }

    /// A store with a clock that a test moves.
    struct Log {
        store: store::Store,
        now_ns: Arc<AtomicI64>,
        pool: accounting::Pool,
        _folder: tempfile::TempDir,
    }

    impl Log {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let now_ns = Arc::new(AtomicI64::new(1_000_000_000));
            let clock = now_ns.clone();
            let store = store::Store::open(
                store::Config::new(folder.path().join("messages")),
                Arc::new(disk::RealDisk),
                Arc::new(move || clock.load(Relaxed)),
            )
            .unwrap();
            let ledger = relay_limits::Limits::preset("tiny").unwrap().ledger().unwrap();
            let pool = ledger.pool(relay_limits::pool::RECEIVING).unwrap();
            Self { store, now_ns, pool, _folder: folder }
        }

        async fn append(&self, number: u8, kept: bool) -> Message {
            let arrival = store::Arrival {
                hash: [number; 32],
                timestamp_ns: 1_000_000_000,
                pubsub_topic: Arc::from("/waku/2/rs/0/1"),
                content_topic: Arc::from("/a/1/b/c"),
                kept,
                may_pass: true,
                fetched: false,
            };
            let held = self.pool.try_reserve(10).unwrap();
            let appending = self.store.append(arrival, vec![number; 10].into(), held).unwrap();
            appending.await.unwrap().message
        }

        async fn messages(&self, count: u8) -> Vec<Message> {
            let mut messages = Vec::new();
            for number in 0..count {
                messages.push(self.append(number, true).await);
            }
            messages
        }
    }

    #[tokio::test]
    async fn topics_are_bounded_by_memory_and_share_what_is_left() {
        let log = Log::new();
        let messages = log.messages(40).await;
        let plain = HTTP_TOPIC_BYTES + HTTP_TOPIC_NAMES;
        let references = |count: u64| count * REFERENCE_BYTES;
        // Room for three topics of one letter with 16 references each.
        let subscribers = Subscribers::new(3 * (plain + references(16)), 32);
        subscribers.subscribe(content("a")).unwrap();
        subscribers.subscribe(content("a")).unwrap();
        let deliver = || {
            for message in &messages {
                subscribers.deliver(1, "a", message);
            }
        };
        deliver();
        assert_eq!(subscribers.take(&content("a")).unwrap().len(), 32, "of 40");
        assert_eq!(subscribers.dropped.load(Relaxed), 8);
        deliver();
        // Each further topic leaves less for the first.
        for (name, each) in [("b", 26), ("c", 16)] {
            subscribers.subscribe(content(name)).unwrap();
            assert!(subscribers.bytes() <= subscribers.cache_bytes);
            assert_eq!(subscribers.lock().get_mut(&content("a")).unwrap().len(), each);
        }
        let newest = subscribers.take(&content("a")).unwrap();
        let newest: Vec<u8> = newest.iter().map(|one| one.read_all().unwrap()[0]).collect();
        assert_eq!(newest, (24..40).collect::<Vec<u8>>());
        // Until the least that each keeps is not left.
        let more: Vec<Topic> = ["d", "e", "f", "g"].map(content).into();
        assert!(subscribers.has_room(more.iter()).is_err());
        let mut refused = None;
        for topic in more {
            refused = refused.or(subscribers.subscribe(topic).err());
        }
        let text = refused.unwrap().to_string();
        assert!(text.contains("http.cache_bytes is 4041"), "{text}");
        assert!(subscribers.bytes() <= subscribers.cache_bytes);
        // What leaves makes room.
        assert!(subscribers.unsubscribe(&content("b")) && !subscribers.unsubscribe(&content("b")));
        assert!(subscribers.take(&content("b")).is_none());
        for name in ["a", "c", "d", "e", "f"] {
            subscribers.unsubscribe(&content(name));
        }
        assert_eq!(subscribers.bytes(), 0);
        assert!(subscribers.lock().shards.is_empty());
    }

    #[tokio::test]
    async fn a_message_waits_for_its_shard_and_for_its_content_topic() {
        let log = Log::new();
        let messages = log.messages(3).await;
        let subscribers = Subscribers::new(1 << 20, 64);
        subscribers.subscribe(Topic::Shard(1)).unwrap();
        subscribers.subscribe(content("a")).unwrap();
        subscribers.subscribe(Topic::Content(2, "a".into())).unwrap();
        subscribers.deliver(1, "a", &messages[0]);
        subscribers.deliver(1, "b", &messages[1]);
        subscribers.deliver(3, "a", &messages[2]);
        let waiting = |topic: &Topic| subscribers.take(topic).unwrap().len();
        assert_eq!(waiting(&Topic::Shard(1)), 2);
        assert_eq!(waiting(&content("a")), 1);
        assert_eq!(waiting(&Topic::Content(2, "a".into())), 0);
    }

    #[tokio::test]
    async fn references_to_segments_that_the_store_dropped_leave_in_time() {
        let log = Log::new();
        let (kept, passed) = (log.append(1, true).await, log.append(2, false).await);
        let subscribers = Subscribers::new(1 << 20, 64);
        subscribers.subscribe(Topic::Shard(1)).unwrap();
        subscribers.deliver(1, "a", &kept);
        subscribers.deliver(1, "a", &passed);
        // Messages that are not kept are on disk for two minutes.
        log.now_ns.fetch_add(200_000_000_000, Relaxed);
        log.store.sync();
        assert!(passed.is_dropped() && !kept.is_dropped());
        let start = Instant::now();
        subscribers.expire(start);
        subscribers.expire(start + KEPT_DROPPED / 2);
        assert_eq!(subscribers.lock().waiting(), 2);
        subscribers.expire(start + KEPT_DROPPED);
        assert_eq!(subscribers.dropped.load(Relaxed), 1);
        let waiting = subscribers.take(&Topic::Shard(1)).unwrap();
        assert_eq!(waiting[0].read_all().unwrap()[0], 1);
        assert_eq!(waiting.len(), 1);
    }
}
