//! Queries of store v3 (Waku specification 13): the queries, and their pages.
//!
//! A query waits, without a thread, until the index holds what was appended before it; then one of
//! a few threads gathers its page from the partitions whose timestamps it may concern. Partitions
//! overlap: the next one is read while it may hold something that belongs before the page's end.
//!
//! Bounds: [`crate::Config::query_queue`] queries at once, each of at most [`HASHES_MAX`] hashes
//! and [`CONTENT_TOPICS_MAX`] topics and a page of [`PAGE_MESSAGES_MAX`]; [`CONNECTIONS_MAX`]
//! connections per thread; [`CURSORS_MAX`] cursors remembered.

mod ids;

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError, oneshot};

pub use self::ids::{IDS_MAX, IdQuery, MessageKey};
use crate::{
    catalog::Partition,
    error::QueryError,
    index::{is_damage, open_reader},
    message::Message,
    query_index::{CheckError, Entry, KeyRange, by_hash, entries},
    store::StoreState,
};

/// Messages of a page when the query does not state it.
pub const PAGE_MESSAGES_DEFAULT: usize = 20;
/// Messages of a page.
pub const PAGE_MESSAGES_MAX: usize = 100;
/// Hashes of a query.
pub const HASHES_MAX: usize = 256;
/// Content topics of a query.
pub const CONTENT_TOPICS_MAX: usize = 256;
/// Connections a thread keeps open.
pub(crate) const CONNECTIONS_MAX: usize = 4;
/// Cursors that were handed out and whose timestamps are remembered; others are looked up.
const CURSORS_MAX: usize = 1024;
/// Interval at which an idle thread closes connections to partitions that are gone.
const IDLE: Duration = Duration::from_secs(2);

/// A query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Of this pubsub topic alone.
    pub pubsub_topic: Option<String>,
    /// Of these content topics; none: of all. At most [`CONTENT_TOPICS_MAX`].
    pub content_topics: Vec<String>,
    /// Only messages of this timestamp or later, in nanoseconds since 1970.
    pub start_ns: Option<i64>,
    /// Only messages of an earlier timestamp than this, in nanoseconds since 1970.
    pub end_ns: Option<i64>,
    /// These messages, regardless of the filters above. At most [`HASHES_MAX`].
    pub hashes: Vec<[u8; 32]>,
    /// Behind this message; with `forward` false: before it.
    pub cursor: Option<[u8; 32]>,
    /// The oldest page; false: the newest. The page itself is ascending either way.
    pub forward: bool,
    /// Messages of the page; 0: [`PAGE_MESSAGES_DEFAULT`]; more than [`PAGE_MESSAGES_MAX`] are not
    /// given.
    pub limit: usize,
}

/// A page, ordered by timestamp and hash.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Its messages, ascending.
    pub messages: Vec<StoredMessage>,
    /// Cursor of the next page; `None` on the last.
    pub cursor: Option<[u8; 32]>,
}

/// A message that was found.
#[derive(Clone, Debug)]
pub struct StoredMessage {
    /// Hash of the message, as queries name it.
    pub hash: [u8; 32],
    /// Its sender's timestamp.
    pub timestamp_ns: i64,
    /// Its pubsub topic.
    pub pubsub_topic: Arc<str>,
    /// Its content topic.
    pub content_topic: Arc<str>,
    /// The stored message.
    pub message: Message,
}

type Answer<T> = oneshot::Sender<Result<T, QueryError>>;

/// Work of the query threads.
pub(crate) enum Job {
    Page(Query, Answer<Page>),
    Ids(IdQuery, Answer<Vec<MessageKey>>),
    Missing(Vec<[u8; 32]>, (i64, i64), Answer<Vec<[u8; 32]>>),
}

fn permit(shared: &StoreState) -> Result<OwnedSemaphorePermit, QueryError> {
    shared.queries.clone().try_acquire_owned().map_err(|error| match error {
        TryAcquireError::Closed => QueryError::Closed,
        TryAcquireError::NoPermits => QueryError::Busy { queue: shared.config.query_queue },
    })
}

/// Queues work and waits for its answer. The caller holds a permit.
async fn answered<T>(
    shared: &StoreState,
    job: impl FnOnce(Answer<T>) -> Job,
) -> Result<T, QueryError> {
    let (answer, answered) = oneshot::channel();
    if shared.jobs.try_push(job(answer), 0).is_err() {
        return Err(if shared.jobs.is_closed() {
            QueryError::Closed
        } else {
            QueryError::Busy { queue: shared.config.query_queue }
        });
    }
    answered.await.unwrap_or(Err(QueryError::Closed))
}

/// Queues a question about ids, and waits for its answer.
pub(crate) async fn ids(
    shared: Arc<StoreState>,
    query: IdQuery,
) -> Result<Vec<MessageKey>, QueryError> {
    let _permit = permit(&shared)?;
    answered(&shared, |answer| Job::Ids(query, answer)).await
}

/// The same: which of some messages are not kept.
pub(crate) async fn missing(
    shared: Arc<StoreState>,
    hashes: Vec<[u8; 32]>,
    span: (i64, i64),
) -> Result<Vec<[u8; 32]>, QueryError> {
    if hashes.len() > IDS_MAX {
        return Err(QueryError::TooMany { what: "hashes", count: hashes.len(), max: IDS_MAX });
    }
    let _permit = permit(&shared)?;
    answered(&shared, |answer| Job::Missing(hashes, span, answer)).await
}

/// Queues a query and waits for its page.
pub(crate) async fn answer(shared: Arc<StoreState>, query: Query) -> Result<Page, QueryError> {
    let lists = [
        ("hashes", query.hashes.len(), HASHES_MAX),
        ("content topics", query.content_topics.len(), CONTENT_TOPICS_MAX),
    ];
    for (what, count, max) in lists {
        if count > max {
            return Err(QueryError::TooMany { what, count, max });
        }
    }
    let _permit = permit(&shared)?;
    let appended = shared.appended.load(Ordering::Acquire);
    let mut indexed = shared.indexed.subscribe();
    if *indexed.borrow() < appended {
        shared.rows.flush();
    }
    let reached = indexed.wait_for(|indexed| *indexed >= appended);
    if tokio::time::timeout(shared.config.query_wait, reached).await.is_err() {
        let messages = appended.saturating_sub(*shared.indexed.borrow());
        return Err(QueryError::Behind { messages });
    }
    answered(&shared, |answer| Job::Page(query, answer)).await
}

/// A query thread, until the queue is closed and empty.
pub(crate) fn run(shared: &StoreState) {
    let mut connections = Connections { shared, open: VecDeque::new() };
    while let Some(jobs) = shared.jobs.take(1, u64::MAX, IDLE) {
        connections.close_what_is_over();
        for job in jobs {
            connections.serve(job);
        }
    }
}

/// Timestamps of cursors that were handed out.
#[derive(Default)]
pub(crate) struct Cursors(Mutex<CursorCache>);

#[derive(Default)]
struct CursorCache {
    timestamps: HashMap<[u8; 32], i64>,
    order: VecDeque<[u8; 32]>,
}

impl Cursors {
    fn find(&self, cursor: &[u8; 32]) -> Option<i64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).timestamps.get(cursor).copied()
    }

    fn add(&self, cursor: [u8; 32], timestamp_ns: i64) {
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.timestamps.insert(cursor, timestamp_ns).is_some() {
            return;
        }
        remembered.order.push_back(cursor);
        if remembered.order.len() > CURSORS_MAX
            && let Some(oldest) = remembered.order.pop_front()
        {
            remembered.timestamps.remove(&oldest);
        }
    }
}

/// A thread's open indexes, the one used last in front.
struct Connections<'a> {
    shared: &'a StoreState,
    open: VecDeque<Open>,
}

struct Open {
    partition: Arc<Partition>,
    generation: u64,
    connection: Connection,
}

impl Open {
    fn is_over(&self) -> bool {
        self.partition.dropped.load(Ordering::Acquire)
            || self.partition.generation.load(Ordering::Acquire) != self.generation
    }
}

/// An entry with the partition it is in.
type Hit = (Arc<Partition>, Entry);

fn key(hit: &Hit) -> (i64, [u8; 32]) {
    (hit.1.timestamp_ns, hit.1.hash)
}

impl Connections<'_> {
    /// Does one piece of work, unless its caller no longer waits.
    fn serve(&mut self, job: Job) {
        match job {
            Job::Page(query, answer) if !answer.is_closed() => {
                let _ = answer.send(self.page(&query));
            }
            Job::Ids(query, answer) if !answer.is_closed() => {
                let _ = answer.send(self.ids(&query));
            }
            Job::Missing(hashes, span, answer) if !answer.is_closed() => {
                let _ = answer.send(self.missing(&hashes, span));
            }
            _ => {}
        }
    }

    fn close_what_is_over(&mut self) {
        self.open.retain(|open| !open.is_over());
    }

    /// Reads from the index of a partition; the default of `T` if the partition was dropped.
    fn read_index<T: Default>(
        &mut self,
        partition: &Arc<Partition>,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, QueryError> {
        let path = partition.index_path();
        if partition.broken.load(Ordering::Acquire) {
            let what = "it is being made anew".to_string();
            return Err(QueryError::Index { path, what });
        }
        let result = match self.connection(partition) {
            Ok(connection) => read(connection),
            Err(error) => Err(error),
        };
        match result {
            Ok(found) => Ok(found),
            Err(_) if partition.dropped.load(Ordering::Acquire) => Ok(T::default()),
            Err(error) => {
                self.open.retain(|open| !Arc::ptr_eq(&open.partition, partition));
                let gone = !path.exists();
                if is_damage(&error) || gone {
                    tracing::warn!(path = %path.display(), %error, "an index is damaged");
                    self.shared.rebuild(partition);
                }
                Err(QueryError::Index { path, what: error.to_string() })
            }
        }
    }

    fn connection(&mut self, partition: &Arc<Partition>) -> rusqlite::Result<&Connection> {
        let found = self.open.iter().position(|open| Arc::ptr_eq(&open.partition, partition));
        let mut open =
            found.and_then(|found| self.open.remove(found)).filter(|open| !open.is_over());
        if open.is_none() {
            self.open.truncate(CONNECTIONS_MAX - 1);
            let generation = partition.generation.load(Ordering::Acquire);
            let cache_bytes = self.shared.config.query_cache_bytes();
            let connection = open_reader(&partition.index_path(), cache_bytes)?;
            open = Some(Open { partition: partition.clone(), generation, connection });
        }
        self.open.extend(open);
        self.open.rotate_right(1);
        Ok(&self.open[0].connection)
    }

    fn page(&mut self, query: &Query) -> Result<Page, QueryError> {
        let limit = match query.limit {
            0 => PAGE_MESSAGES_DEFAULT,
            limit => limit.min(PAGE_MESSAGES_MAX),
        };
        let cursor = match query.cursor {
            Some(cursor) => Some((self.cursor(cursor)?, cursor)),
            None => None,
        };
        // One more shows whether there is another page.
        let mut hits = if query.hashes.is_empty() {
            self.filtered(query, cursor, limit + 1)?
        } else {
            self.by_hashes(query, cursor)?
        };
        let more = hits.len() > limit;
        hits.truncate(limit);
        let last = hits.last().map(key);
        if !query.forward {
            hits.reverse();
        }
        let mut messages = Vec::with_capacity(hits.len());
        for (partition, entry) in hits {
            messages.extend(self.found(&partition, entry)?);
        }
        let cursor = last.filter(|_| more).map(|(timestamp_ns, hash)| {
            self.shared.cursors.add(hash, timestamp_ns);
            hash
        });
        Ok(Page { messages, cursor })
    }

    /// Timestamp of the message with the cursor's hash.
    fn cursor(&mut self, cursor: [u8; 32]) -> Result<i64, QueryError> {
        if let Some(timestamp_ns) = self.shared.cursors.find(&cursor) {
            return Ok(timestamp_ns);
        }
        for partition in self.shared.catalog.all().iter().rev() {
            if let Some(hit) = self.hits_of(partition, &[cursor])?.first() {
                self.shared.cursors.add(cursor, hit.1.timestamp_ns);
                return Ok(hit.1.timestamp_ns);
            }
        }
        self.check_opened(None)?;
        Err(QueryError::UnknownCursor { cursor })
    }

    /// Whether every partition that may hold messages within bounds is open: a page without them
    /// would read as if they did not exist.
    fn check_opened(&self, bounds: Option<&KeyRange>) -> Result<(), QueryError> {
        self.check_opened_where(|span| bounds.is_none_or(|bounds| bounds.meets(span)))
    }

    /// The same for messages of a span of time.
    fn check_opened_within(&self, from_ns: i64, to_ns: i64) -> Result<(), QueryError> {
        self.check_opened_where(|(min_ns, max_ns)| max_ns >= from_ns && min_ns <= to_ns)
    }

    fn check_opened_where(&self, meets: impl Fn((i64, i64)) -> bool) -> Result<(), QueryError> {
        let concerns = |partition: &Arc<Partition>| partition.unopened_span().is_some_and(&meets);
        match self.shared.catalog.all().into_iter().find(concerns) {
            Some(partition) => {
                let what = "it could not be opened at start, and is tried again".to_string();
                Err(QueryError::Index { path: partition.folder.clone(), what })
            }
            None => Ok(()),
        }
    }

    fn hits_of(
        &mut self,
        partition: &Arc<Partition>,
        hashes: &[[u8; 32]],
    ) -> Result<Vec<Hit>, QueryError> {
        if partition.aside || partition.figures().span.is_none() {
            return Ok(Vec::new());
        }
        let found = self.read_index(partition, |connection| by_hash(connection, hashes))?;
        Ok(found.into_iter().map(|entry| (partition.clone(), entry)).collect())
    }

    /// In the query's order, all of them: at most as many as hashes.
    fn by_hashes(
        &mut self,
        query: &Query,
        cursor: Option<(i64, [u8; 32])>,
    ) -> Result<Vec<Hit>, QueryError> {
        let mut hashes = query.hashes.clone();
        hashes.sort_unstable();
        hashes.dedup();
        let mut hits: Vec<Hit> = Vec::new();
        // The newest first: what is asked for by hash was missed lately, as a rule.
        for partition in self.shared.catalog.all().iter().rev() {
            if hashes.is_empty() {
                break;
            }
            let found = self.hits_of(partition, &hashes)?;
            hashes.retain(|hash| !found.iter().any(|hit| hit.1.hash == *hash));
            hits.extend(found);
        }
        if !hashes.is_empty() {
            self.check_opened(None)?;
        }
        hits.retain(|hit| match cursor {
            Some(cursor) if query.forward => key(hit) > cursor,
            Some(cursor) => key(hit) < cursor,
            None => true,
        });
        order(&mut hits, query.forward);
        Ok(hits)
    }

    /// The first `count` in the query's order.
    fn filtered(
        &mut self,
        query: &Query,
        cursor: Option<(i64, [u8; 32])>,
        count: usize,
    ) -> Result<Vec<Hit>, QueryError> {
        let bounds = KeyRange::for_query(query, cursor);
        self.check_opened(Some(&bounds))?;
        let mut partitions: Vec<(Arc<Partition>, (i64, i64))> = Vec::new();
        for partition in self.shared.catalog.all() {
            let span = partition.figures().span;
            if let Some(span) = span.filter(|span| !partition.aside && bounds.meets(*span)) {
                partitions.push((partition, span));
            }
        }
        if query.forward {
            partitions.sort_by_key(|(_, (min, _))| *min);
        } else {
            partitions.sort_by_key(|(_, (_, max))| std::cmp::Reverse(*max));
        }
        let mut hits: Vec<Hit> = Vec::new();
        for (partition, (min, max)) in partitions {
            // Everything it holds, and everything those behind it hold, belongs behind the page.
            let full = hits.len() >= count
                && hits.last().is_some_and(|last| {
                    let last = last.1.timestamp_ns;
                    if query.forward { last < min } else { last > max }
                });
            if full {
                break;
            }
            let found = self
                .read_index(&partition, |connection| entries(connection, query, &bounds, count))?;
            hits.extend(found.into_iter().map(|entry| (partition.clone(), entry)));
            order(&mut hits, query.forward);
            hits.truncate(count);
        }
        Ok(hits)
    }

    /// Reads what an entry refers to; nothing of a partition that was removed meanwhile.
    fn found(
        &mut self,
        partition: &Arc<Partition>,
        entry: Entry,
    ) -> Result<Option<StoredMessage>, QueryError> {
        let Some(segment) = partition.segment(entry.segment) else {
            if partition.dropped.load(Ordering::Acquire) {
                return Ok(None);
            }
            self.shared.rebuild(partition);
            let what = "a segment of it was set aside".to_string();
            return Err(QueryError::Index { path: partition.index_path(), what });
        };
        match entry.check(&segment) {
            Ok(()) => {}
            Err(_) if partition.dropped.load(Ordering::Acquire) => return Ok(None),
            Err(CheckError::Io(error)) => {
                return Err(QueryError::Index {
                    path: segment.path.clone(),
                    what: error.to_string(),
                });
            }
            Err(CheckError::Damage(what)) => {
                let offset = u64::from(entry.place.record);
                self.shared.set_aside(partition, &segment, offset, &what);
                return Err(QueryError::Index { path: segment.path.clone(), what });
            }
        }
        Ok(Some(StoredMessage {
            hash: entry.hash,
            timestamp_ns: entry.timestamp_ns,
            pubsub_topic: entry.pubsub_topic,
            content_topic: entry.content_topic,
            message: Message::new(segment, entry.place),
        }))
    }
}

fn order(hits: &mut Vec<Hit>, forward: bool) {
    hits.sort_by_key(key);
    hits.dedup_by_key(|hit| key(hit));
    if !forward {
        hits.reverse();
    }
}
