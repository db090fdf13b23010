//! Partitions: their list, their contents, and their removal. It knows no SQL.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use disk::{Disk, if_there};

use crate::message::Segment;

const INDEX: &str = "index.sqlite";
/// Ending of files that were set aside.
pub(crate) const ASIDE: &str = "damaged";

/// No kept message's timestamp is further off the arrival clock.
const NEAR_NS: i64 = 3600 * 1_000_000_000;

/// Messages of one period.
#[derive(Default)]
pub(crate) struct Partition {
    /// When it was begun, by the arrival clock; its name.
    pub(crate) start_ns: i64,
    /// Nothing arrived after it; the largest number while it may still take messages.
    pub(crate) end_ns: AtomicI64,
    /// The same by the clock that is never set; 0 while it may still take messages, and if it took
    /// none in this process.
    end_boot_ns: AtomicI64,
    pub(crate) folder: PathBuf,
    segments: RwLock<BTreeMap<u32, Arc<Segment>>>,
    figures: Mutex<Figures>,
    /// Bytes of the index's files as last read.
    index_bytes: AtomicU64,
    /// Bytes of segments that were set aside.
    aside_bytes: AtomicU64,
    /// Its index cannot be used and is being rebuilt.
    pub(crate) broken: AtomicBool,
    /// Its files are gone, or about to go.
    pub(crate) dropped: AtomicBool,
    /// The whole of it was set aside: nothing is served from it.
    pub(crate) aside: bool,
    /// It could not be opened at start and is tried again, for example when the disk has room:
    /// queries that it may concern are refused until then.
    pub(crate) unopened: AtomicBool,
    /// How often its index was rebuilt: connections to an earlier one are of no use.
    pub(crate) generation: AtomicU64,
}

/// Figures of the indexed messages of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) messages: u64,
    /// Smallest and largest timestamp.
    pub(crate) span: Option<(i64, i64)>,
}

impl Figures {
    pub(crate) fn add(&mut self, timestamp_ns: i64) {
        let (min, max) = self.span.unwrap_or((timestamp_ns, timestamp_ns));
        self.span = Some((min.min(timestamp_ns), max.max(timestamp_ns)));
    }
}

impl Partition {
    pub(crate) fn new(start_ns: i64, end_ns: i64, folder: PathBuf, aside: bool) -> Self {
        Self { start_ns, end_ns: AtomicI64::new(end_ns), folder, aside, ..Self::default() }
    }

    /// Timestamps that its messages may have, if it is not open. They were near the arrival clock
    /// when the messages arrived.
    pub(crate) fn unopened_span(&self) -> Option<(i64, i64)> {
        let is_there = !self.dropped.load(Ordering::Acquire);
        (is_there && self.unopened.load(Ordering::Acquire)).then(|| {
            let end_ns = self.end_ns.load(Ordering::Acquire);
            (self.start_ns.saturating_sub(NEAR_NS), end_ns.saturating_add(NEAR_NS))
        })
    }

    /// It takes messages again.
    pub(crate) fn reopen(&self) {
        self.end_boot_ns.store(0, Ordering::Release);
        self.end_ns.store(i64::MAX, Ordering::Release);
    }

    /// It takes no more messages; none arrived after these times of both clocks.
    pub(crate) fn end(&self, end_ns: i64, end_boot_ns: i64) {
        self.end_boot_ns.store(end_boot_ns.max(1), Ordering::Release);
        self.end_ns.store(end_ns, Ordering::Release);
    }

    /// Since when it took no more messages, by the clock that is never set, if it took any in this
    /// process.
    pub(crate) fn end_boot_ns(&self) -> Option<i64> {
        Some(self.end_boot_ns.load(Ordering::Acquire)).filter(|end_ns| *end_ns > 0)
    }

    pub(crate) fn index_path(&self) -> PathBuf {
        self.folder.join(INDEX)
    }

    /// The index and SQLite's additional files.
    pub(crate) fn index_files(&self) -> [PathBuf; 3] {
        ["", "-wal", "-shm"].map(|ending| self.folder.join(format!("{INDEX}{ending}")))
    }

    pub(crate) fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    pub(crate) fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn add_segment(&self, segment: Arc<Segment>) {
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        segments.insert(segment.number, segment);
    }

    fn take_segment(&self, number: u32) -> Option<Arc<Segment>> {
        self.segments.write().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }

    /// Bytes on disk, as far as known.
    pub(crate) fn bytes(&self) -> u64 {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let segments: u64 = segments.values().map(|segment| segment.length()).sum();
        segments
            + self.index_bytes.load(Ordering::Relaxed)
            + self.aside_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn measure_index(&self) {
        let length = |path: &PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        self.index_bytes.store(self.index_files().iter().map(length).sum(), Ordering::Relaxed);
    }

    pub(crate) fn count_aside(&self, bytes: u64) {
        self.aside_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes a damaged segment out of service. Its file stays until the partition is removed.
    pub(crate) fn set_aside(&self, disk: &dyn Disk, segment: &Segment) -> io::Result<()> {
        let aside = segment.path.with_extension(format!("segment.{ASIDE}"));
        if self.take_segment(segment.number).is_some() {
            self.count_aside(segment.length());
        }
        // The writer begins another one.
        segment.sync_lost.store(true, Ordering::Release);
        segment.pin()?;
        disk.rename(&segment.path, &aside)?;
        disk.sync_folder(&self.folder)
    }

    /// Removes a segment without messages.
    pub(crate) fn forget_empty(&self, disk: &dyn Disk, segment: &Segment) -> io::Result<()> {
        self.take_segment(segment.number);
        if_there(disk.remove(&segment.path)).map(drop)
    }

    /// Removes its files. Segments with references stay readable.
    pub(crate) fn remove(&self, disk: &dyn Disk) -> io::Result<()> {
        self.dropped.store(true, Ordering::Release);
        for segment in self.segments() {
            if_there(segment.pin())?;
            if_there(disk.remove(&segment.path))?;
            self.take_segment(segment.number);
        }
        if_there(disk.remove_folder(&self.folder)).map(drop)
    }
}

/// All partitions, by their start.
#[derive(Default)]
pub(crate) struct Catalog(RwLock<Vec<Arc<Partition>>>);

impl Catalog {
    pub(crate) fn all(&self) -> Vec<Arc<Partition>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn newest(&self) -> Option<Arc<Partition>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).last().cloned()
    }

    pub(crate) fn add(&self, partition: Arc<Partition>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(all.last().is_none_or(|last| last.start_ns < partition.start_ns));
        all.push(partition);
    }

    /// Puts a partition into the place of one that could not be opened, unless that was taken out.
    pub(crate) fn replace(&self, unopened: &Arc<Partition>, partition: Arc<Partition>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        debug_assert_eq!(unopened.start_ns, partition.start_ns, "begins of one partition");
        if let Some(place) = all.iter_mut().find(|place| Arc::ptr_eq(place, unopened)) {
            *place = partition;
        }
    }

    /// Takes out the oldest, if it is this one: no later query sees it. False if it is another one.
    pub(crate) fn take_oldest(&self, partition: &Arc<Partition>) -> bool {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_oldest = all.first().is_some_and(|first| Arc::ptr_eq(first, partition));
        if is_oldest {
            partition.dropped.store(true, Ordering::Release);
            all.remove(0);
        }
        is_oldest
    }
}
