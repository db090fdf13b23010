//! The store's interface, and the state that its threads share.

use std::{
    fs::File,
    future::Future,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use accounting::Reservation;
use bytes::Bytes;
use disk::{Lock, SharedDisk};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, oneshot, watch};

use crate::{
    catalog::{Catalog, Partition},
    config::Config,
    error::{AppendError, Full, OpenError, QueryError},
    indexer::{Event, Indexer},
    keeper,
    message::{Files, Message, Segment},
    query::{self, Cursors, IdQuery, Job, MessageKey, Page, Query},
    queue::{PushError, Queue},
    recover,
    segment::{MESSAGE_BYTES_MAX, TOPIC_BYTES_MAX, record_bytes},
    spare::Spares,
    writer::{Pending, Writer},
};

/// The clocks of a store. A function that returns a time is one, for tests and benchmarks: of a
/// clock that is never set.
pub trait Clock: Send + Sync {
    /// The arrival clock: nanoseconds since 1970. It may be set, and partitions are named by it.
    fn now_ns(&self) -> i64;

    /// A clock that is never set, in nanoseconds since a moment before the process began. It judges
    /// the age of messages that arrived in this process.
    fn boot_ns(&self) -> i64;

    /// Whether [`Self::now_ns`] has not been set for long enough to judge the age of messages that
    /// arrived in an earlier process.
    fn is_settled(&self) -> bool;
}

impl<F: Fn() -> i64 + Send + Sync> Clock for F {
    fn now_ns(&self) -> i64 {
        self()
    }

    fn boot_ns(&self) -> i64 {
        self()
    }

    fn is_settled(&self) -> bool {
        true
    }
}

/// The store's metadata of a message.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Its hash; two messages with one hash are the same message.
    pub hash: [u8; 32],
    /// Its sender's timestamp, by which queries order; nanoseconds since 1970.
    pub timestamp_ns: i64,
    /// At most [`TOPIC_BYTES_MAX`].
    pub pubsub_topic: Arc<str>,
    /// At most [`TOPIC_BYTES_MAX`].
    pub content_topic: Arc<str>,
    /// Whether queries find it, for the time of retention. Otherwise it is on disk for
    /// [`Config::keep_transit`] and as long as it has references.
    pub kept: bool,
    /// Whether it may be passed on without being kept, instead of refused, while there is no room
    /// to keep it.
    pub may_pass: bool,
    /// Whether it is of another store, and not passed on: it is new when it arrives to be passed
    /// on, and is written again.
    pub fetched: bool,
}

/// Result of appending a message.
#[derive(Clone, Debug)]
pub struct AppendOutcome {
    /// The message in the log.
    pub message: Message,
    /// It arrived before, within the last two minutes, and was not written again. It has the same
    /// hash; its bytes may differ in what the hash does not cover. One that was fetched before, and
    /// is not now, is not known.
    pub known: bool,
    /// Whether queries find it.
    pub kept: bool,
}

pub(crate) struct StoreState {
    // Configuration and interfaces passed in.
    pub(crate) config: Config,
    pub(crate) disk: SharedDisk,
    pub(crate) clock: Arc<dyn Clock>,
    // Messaging.
    pub(crate) appends: Queue<Pending>,
    pub(crate) rows: Queue<Event>,
    pub(crate) jobs: Queue<Job>,
    pub(crate) queries: Arc<Semaphore>,
    pub(crate) keeper: keeper::WakeUp,
    // State.
    pub(crate) catalog: Catalog,
    pub(crate) files: Arc<Files>,
    pub(crate) cursors: Cursors,
    /// Kept segments not yet sealed, synced and noted in the index.
    unsynced: Mutex<Vec<(Arc<Partition>, Arc<Segment>)>>,
    transit: Mutex<Vec<Arc<Segment>>>,
    pub(crate) spares: Spares,
    pub(crate) next_segment: AtomicU32,
    // Figures.
    /// Kept messages appended and indexed since start.
    pub(crate) appended: AtomicU64,
    pub(crate) indexed: watch::Sender<u64>,
    pub(crate) appended_bytes: AtomicU64,
    pub(crate) disk_full: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    pub(crate) damaged_segments: AtomicU64,
    pub(crate) rebuilt_indexes: AtomicU64,
    pub(crate) dropped_partitions: AtomicU64,
    pub(crate) sync_errors: AtomicU64,
    /// By the clock that is never set.
    pub(crate) last_sync_ns: AtomicI64,
}

impl StoreState {
    pub(crate) fn transit_folder(&self) -> PathBuf {
        self.config.folder.join("transit")
    }

    pub(crate) fn partitions_folder(&self) -> PathBuf {
        self.config.folder.join("partitions")
    }

    /// Bytes that the process may still write to the file system; unknown on some.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::statvfs(&self.config.folder).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// The error of a failed write.
    pub(crate) fn failed(&self, source: io::Error, bytes: u64) -> AppendError {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let path = self.config.folder.clone();
        if matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge) {
            let free_bytes = self.free_bytes().unwrap_or(0);
            let needed_bytes = self.config.disk_reserve_bytes + bytes;
            return self.disk_full(AppendError::DiskFull { path, free_bytes, needed_bytes });
        }
        if self.write_errors.fetch_add(1, Ordering::Relaxed).is_power_of_two() {
            let path = path.display();
            tracing::warn!(%path, %source, "a write of messages failed");
        }
        AppendError::Io { path, source: Arc::new(source) }
    }

    /// Counts a refusal; the first and every doubling of their number is logged.
    pub(crate) fn disk_full(&self, error: AppendError) -> AppendError {
        let count = self.disk_full.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::warn!(count, %error, "messages are refused");
        }
        error
    }

    /// The partition that takes messages now: the newest, or one that is begun.
    pub(crate) fn partition_for(&self, now_ns: i64) -> io::Result<Arc<Partition>> {
        let newest = self.catalog.newest();
        if let Some(newest) = &newest
            && !newest.aside
            && !self.config.is_over(newest, now_ns)
        {
            newest.reopen();
            return Ok(newest.clone());
        }
        // Their order is that of their names, whatever the clock does.
        let start_ns = newest.map_or(now_ns, |newest| now_ns.max(newest.start_ns + 1)).max(0);
        let folder = self.partitions_folder().join(format!("{start_ns:020}"));
        self.disk.create_folder(&folder)?;
        self.disk.sync_folder(&self.partitions_folder())?;
        let partition = Arc::new(Partition::new(start_ns, i64::MAX, folder, false));
        self.catalog.add(partition.clone());
        Ok(partition)
    }

    pub(crate) fn unsynced(&self) -> MutexGuard<'_, Vec<(Arc<Partition>, Arc<Segment>)>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_unsynced(&self, partition: Arc<Partition>, segment: Arc<Segment>) {
        self.unsynced().push((partition, segment));
    }

    pub(crate) fn transit(&self) -> MutexGuard<'_, Vec<Arc<Segment>>> {
        self.transit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_transit(&self, segment: Arc<Segment>) {
        self.transit().push(segment);
    }

    /// Takes a damaged segment out of service, and has the index of its partition rebuilt.
    pub(crate) fn set_aside(
        &self,
        partition: &Arc<Partition>,
        segment: &Segment,
        offset: u64,
        what: &str,
    ) {
        // Only once, even if several threads detect the damage.
        if partition.dropped.load(Ordering::Acquire) || partition.segment(segment.number).is_none()
        {
            return;
        }
        let path = segment.path.display();
        tracing::warn!(%path, offset, what, "a segment is damaged; it is set aside");
        self.damaged_segments.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = partition.set_aside(self.disk.as_ref(), segment) {
            tracing::warn!(%path, %error, "a damaged segment was not renamed");
        }
        self.rebuild(partition);
    }

    /// Has a partition's index rebuilt; queries that need it are refused until then.
    pub(crate) fn rebuild(&self, partition: &Arc<Partition>) {
        if !partition.broken.swap(true, Ordering::AcqRel)
            && self.rows.try_push(Event::Rebuild(partition.clone()), 0).is_err()
        {
            // The next query that needs it asks again.
            partition.broken.store(false, Ordering::Release);
        }
    }
}

/// The relay's messages on disk. Clones are the same store; it is closed by [`Store::close`], or
/// when the last clone is dropped.
#[derive(Clone)]
pub struct Store(Arc<Running>);

struct Running {
    shared: Arc<StoreState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    writers: Mutex<Vec<JoinHandle<()>>>,
    _lock: Lock,
}

impl Store {
    /// Opens the store, recovers what a crash left, and starts its threads. Blocks: segments that
    /// were not sealed are read through, and indexes that are missing or damaged are rebuilt.
    ///
    /// # Errors
    /// A setting out of bounds, a folder in use, or those of the disk. Damage is not an error: what
    /// is damaged is logged and set aside.
    pub fn open(
        config: Config,
        disk: SharedDisk,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        config.check()?;
        let folder = config.folder.clone();
        let failed = |doing: &'static str| {
            let path = folder.clone();
            move |source| OpenError::Io { path, doing, source }
        };
        let config = Config {
            folder: std::path::absolute(&config.folder).map_err(failed("naming the folder"))?,
            ..config
        };
        disk.create_folder(&config.folder).map_err(failed("creating the folder"))?;
        let handle = File::open(&config.folder).map_err(failed("opening the folder"))?;
        let lock = Lock::take(handle).map_err(failed("locking the folder"))?;
        let Some(lock) = lock else { return Err(OpenError::InUse { folder: config.folder }) };
        let index_bytes = config.index_queue_messages as u64 * 400;
        let shared = Arc::new(StoreState {
            appends: Queue::new(config.queue_messages, config.queue_bytes),
            rows: Queue::new(config.index_queue_messages, index_bytes),
            jobs: Queue::new(config.query_queue, u64::MAX),
            queries: Arc::new(Semaphore::new(config.query_queue)),
            keeper: keeper::WakeUp::default(),
            catalog: Catalog::default(),
            files: Files::new(config.open_segments),
            cursors: Cursors::default(),
            unsynced: Mutex::default(),
            transit: Mutex::default(),
            spares: Spares::new(disk.as_ref(), &config.folder.join("spare"), config.spare_segments),
            next_segment: AtomicU32::new(1),
            appended: AtomicU64::new(0),
            indexed: watch::Sender::new(0),
            appended_bytes: AtomicU64::new(0),
            disk_full: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            damaged_segments: AtomicU64::new(0),
            rebuilt_indexes: AtomicU64::new(0),
            dropped_partitions: AtomicU64::new(0),
            sync_errors: AtomicU64::new(0),
            last_sync_ns: AtomicI64::new(clock.boot_ns()),
            config,
            disk,
            clock,
        });
        let unopened = recover::recover(&shared)?;
        let running = Running {
            shared: shared.clone(),
            threads: Mutex::default(),
            writers: Mutex::default(),
            _lock: lock,
        };
        let store = Self(Arc::new(running));
        store.start(&shared, unopened).map_err(failed("starting threads"))?;
        Ok(store)
    }

    fn start(&self, shared: &Arc<StoreState>, unopened: Vec<Arc<Partition>>) -> io::Result<()> {
        let begin = |name: &str, work: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(format!("store-{name}")).spawn(work)
        };
        let mut writers = self.0.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut threads = self.0.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = Writer::new(shared.clone());
        writers.push(begin("write", Box::new(move || writer.run()))?);
        let indexer = Indexer::new(shared.clone(), unopened);
        threads.push(begin("index", Box::new(move || indexer.run()))?);
        let keeper = shared.clone();
        threads.push(begin("keep", Box::new(move || keeper::run(&keeper)))?);
        for _ in 0..shared.config.query_threads {
            let querier = shared.clone();
            threads.push(begin("query", Box::new(move || query::run(&querier)))?);
        }
        Ok(())
    }

    /// Queues a message to be written. The future answers with a reference when it is written: it
    /// survives the process then, and a power cut from the next sync on. The message is written
    /// whether the future is polled or not. `held` is released when the message is written or
    /// refused. A hash that arrived in the last two minutes is answered with the message that is
    /// there ([`AppendOutcome::known`]).
    ///
    /// # Errors
    /// [`Full`] at once when too much waits; [`AppendError`] from the future.
    pub fn append(
        &self,
        arrival: Arrival,
        message: Bytes,
        held: Reservation,
    ) -> Result<impl Future<Output = Result<AppendOutcome, AppendError>> + Send + use<>, Full> {
        let shared = &self.0.shared;
        let (answer, answered) = oneshot::channel();
        let limits = [
            ("a message", message.len(), MESSAGE_BYTES_MAX),
            ("a pubsub topic", arrival.pubsub_topic.len(), TOPIC_BYTES_MAX),
            ("a content topic", arrival.content_topic.len(), TOPIC_BYTES_MAX),
        ];
        let refused = match limits.into_iter().find(|(_, bytes, bytes_max)| bytes > bytes_max) {
            Some((what, bytes, bytes_max)) => {
                Some(AppendError::TooLarge { what, bytes, bytes_max })
            }
            None => {
                let bytes = record_bytes(&arrival, &message);
                let pending = Pending { arrival, message, held, answer };
                match shared.appends.try_push(pending, bytes) {
                    Ok(()) => None,
                    Err(PushError::Closed) => Some(AppendError::Closed),
                    Err(PushError::Full { count, bytes }) => {
                        return Err(Full {
                            messages: count,
                            messages_max: shared.config.queue_messages,
                            bytes,
                            bytes_max: shared.config.queue_bytes,
                        });
                    }
                }
            }
        };
        Ok(async move {
            match refused {
                Some(error) => Err(error),
                None => answered.await.unwrap_or(Err(AppendError::Closed)),
            }
        })
    }

    /// A page of kept messages, as of store v3: ordered by timestamp and hash. Messages appended
    /// before the query are found. Needs a tokio runtime with its clock enabled.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn query(
        &self,
        query: Query,
    ) -> impl Future<Output = Result<Page, QueryError>> + Send + use<> {
        query::answer(self.0.shared.clone(), query)
    }

    /// Ids of kept messages, ascending, each once. Messages appended within the last moments may
    /// be missing.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn ids(
        &self,
        query: IdQuery,
    ) -> impl Future<Output = Result<Vec<MessageKey>, QueryError>> + Send + use<> {
        query::ids(self.0.shared.clone(), query)
    }

    /// Those of at most [`crate::IDS_MAX`] messages that are not kept; those appended within the
    /// last moments may be among them. `span` has the timestamps of all of them: partitions without
    /// any of it are not asked.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn missing(
        &self,
        hashes: Vec<[u8; 32]>,
        span: (i64, i64),
    ) -> impl Future<Output = Result<Vec<[u8; 32]>, QueryError>> + Send + use<> {
        query::missing(self.0.shared.clone(), hashes, span)
    }

    /// How much waits to be written, for the index, and for answers.
    pub fn waiting(&self) -> Waiting {
        let shared = &self.0.shared;
        Waiting {
            append_bytes: shared.appends.bytes(),
            rows: shared.rows.count(),
            queries: shared.config.query_queue - shared.queries.available_permits(),
        }
    }

    /// Figures of this moment.
    pub fn status(&self) -> Status {
        let shared = &self.0.shared;
        let all = shared.catalog.all();
        let appended = shared.appended.load(Ordering::Acquire);
        let indexed = *shared.indexed.borrow();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut status = Status {
            partitions: all.iter().filter(|partition| !partition.aside).count(),
            damaged_partitions: all.iter().filter(|partition| partition.aside).count(),
            append_queue_messages: shared.appends.count(),
            append_queue_bytes: shared.appends.bytes(),
            queries: shared.config.query_queue - shared.queries.available_permits(),
            appended_messages: appended,
            appended_bytes: load(&shared.appended_bytes),
            index_lag_messages: appended.saturating_sub(indexed),
            open_segments: shared.files.count(),
            transit_segments: shared.transit().len(),
            damaged_segments: load(&shared.damaged_segments),
            rebuilt_indexes: load(&shared.rebuilt_indexes),
            dropped_partitions: load(&shared.dropped_partitions),
            disk_full_refusals: load(&shared.disk_full),
            write_errors: load(&shared.write_errors),
            sync_errors: load(&shared.sync_errors),
            disk_free_bytes: shared.free_bytes(),
            ..Status::default()
        };
        for partition in &all {
            status.disk_bytes += partition.bytes();
            let figures = *partition.figures();
            status.messages += figures.messages;
            if let Some((min, max)) = figures.span {
                status.oldest_ns = Some(status.oldest_ns.map_or(min, |oldest| oldest.min(min)));
                status.newest_ns = Some(status.newest_ns.map_or(max, |newest| newest.max(max)));
            }
        }
        status.transit_bytes = shared.transit().iter().map(|segment| segment.length()).sum();
        let unsynced =
            |segment: &Segment| segment.length() - segment.synced.load(Ordering::Acquire);
        status.unsynced_bytes =
            shared.unsynced().iter().map(|(_, segment)| unsynced(segment)).sum();
        let age = shared.clock.boot_ns() - shared.last_sync_ns.load(Ordering::Acquire);
        status.sync_age_seconds =
            Duration::from_nanos(u64::try_from(age).unwrap_or(0)).as_secs_f64();
        status
    }

    /// Syncs appended messages, and retires expired ones, now and not at the next interval. Blocks.
    pub fn sync(&self) {
        keeper::round(&self.0.shared);
    }

    /// Accepts nothing more, writes and indexes waiting messages, syncs, and ends the threads.
    /// Blocks until then. Messages that were handed out stay readable.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Running {
    fn close(&self) {
        let shared = &self.shared;
        shared.queries.close();
        shared.jobs.close();
        shared.appends.close();
        let join = |threads: &Mutex<Vec<JoinHandle<()>>>| {
            let threads =
                std::mem::take(&mut *threads.lock().unwrap_or_else(PoisonError::into_inner));
            for thread in threads {
                if thread.join().is_err() {
                    tracing::error!("a thread of the store had panicked");
                }
            }
        };
        // The writer hands its last rows to the index, the keeper its last seals.
        join(&self.writers);
        keeper::round(shared);
        shared.keeper.close();
        shared.rows.close();
        join(&self.threads);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.close();
    }
}

/// Work that waits in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Bytes of messages to be written.
    pub append_bytes: u64,
    /// Rows to be indexed.
    pub rows: usize,
    /// Queries, those being answered included.
    pub queries: usize,
}

/// Figures of a store at one moment, in the order in which a report shows them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Kept and indexed.
    pub messages: u64,
    /// Partitions in service.
    pub partitions: usize,
    /// Set aside as a whole; nothing is served from them.
    pub damaged_partitions: usize,
    /// Segments and indexes, including those set aside; without transit segments.
    pub disk_bytes: u64,
    /// Free for the process; unknown of some file systems.
    pub disk_free_bytes: Option<u64>,
    /// Smallest timestamp of the messages.
    pub oldest_ns: Option<i64>,
    /// Largest timestamp of the messages.
    pub newest_ns: Option<i64>,
    /// Waiting to be written.
    pub append_queue_messages: usize,
    /// Bytes that they take in the queue.
    pub append_queue_bytes: u64,
    /// Waiting or being answered.
    pub queries: usize,
    /// Kept messages appended since start.
    pub appended_messages: u64,
    /// Bytes written to segments since start.
    pub appended_bytes: u64,
    /// Appended and not yet indexed.
    pub index_lag_messages: u64,
    /// Segments open for reading.
    #[serde(skip)]
    pub open_segments: usize,
    /// Segments of messages that are not kept.
    #[serde(skip)]
    pub transit_segments: usize,
    /// Bytes of these segments.
    pub transit_bytes: u64,
    /// Set aside since start, those found at start included.
    pub damaged_segments: u64,
    /// Indexes rebuilt since start.
    pub rebuilt_indexes: u64,
    /// Removed by retention since start.
    pub dropped_partitions: u64,
    /// Messages refused for want of disk space since start.
    pub disk_full_refusals: u64,
    /// Batches that failed for another reason.
    pub write_errors: u64,
    /// Syncs that failed.
    pub sync_errors: u64,
    /// Kept, written and not yet synced.
    pub unsynced_bytes: u64,
    /// Since the last round of syncs.
    pub sync_age_seconds: f64,
}
