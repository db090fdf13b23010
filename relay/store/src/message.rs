//! References to messages, and the files behind them.
//!
//! A [`Message`] is an [`Arc`] of its segment and a place in it. A segment's file is opened for a
//! read, and closed when too many are open ([`Files`]); a segment that is about to be unlinked is
//! opened before and stays open as long as it has references. It must never know the content of a
//! message.

use std::{
    fmt, io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use disk::{DiskFile, Open, SharedDisk, read_exact};

use crate::segment::{HASH_AT, HEAD_BYTES};

/// A message on disk. Cheap to clone; 24 bytes, and a share of its segment.
#[derive(Clone)]
pub struct Message {
    segment: Arc<Segment>,
    place: RecordPosition,
}

const _: () = assert!(size_of::<Message>() <= 32);

impl Message {
    pub(crate) fn lies_in(&self, segment: &Segment) -> bool {
        self.segment.number == segment.number
    }

    pub(crate) fn new(segment: Arc<Segment>, place: RecordPosition) -> Self {
        Self { segment, place }
    }

    /// Bytes of the encoded message.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.place.length as usize
    }

    /// Whether the store dropped its segment: references alone keep its space on the disk.
    pub fn is_dropped(&self) -> bool {
        matches!(*self.segment.handle(), Handle::Pinned(_))
    }

    /// Its hash, as passed in with its arrival; read from disk.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn hash(&self) -> io::Result<[u8; 32]> {
        let mut hash = [0; 32];
        let at = u64::from(self.place.record) + HEAD_BYTES + HASH_AT;
        read_exact(self.segment.file()?.as_ref(), &mut hash, at)?;
        Ok(hash)
    }

    /// Fills `buf` with the message's bytes from `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] past the message's end; else those of the disk.
    pub fn read_at(&self, offset: usize, buf: &mut [u8]) -> io::Result<()> {
        let fits = offset.checked_add(buf.len()).is_some_and(|end| end <= self.len());
        if !fits {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} bytes at {offset} of a message of {}", buf.len(), self.len()),
            ));
        }
        read_exact(self.segment.file()?.as_ref(), buf, u64::from(self.place.start) + offset as u64)
    }

    /// All of it, in memory of its own.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read_all(&self) -> io::Result<Bytes> {
        let mut bytes = vec![0; self.len()];
        self.read_at(0, &mut bytes)?;
        Ok(bytes.into())
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Message({} at {}, {} bytes)",
            self.segment.path.display(),
            self.place.start,
            self.place.length
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordPosition {
    /// Offset of the record's head.
    pub(crate) record: u32,
    /// Offset of the message's first byte.
    pub(crate) start: u32,
    pub(crate) length: u32,
}

impl RecordPosition {
    /// Offset behind the record.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.length)
    }
}

pub(crate) struct Segment {
    pub(crate) number: u32,
    pub(crate) path: PathBuf,
    disk: SharedDisk,
    files: Arc<Files>,
    handle: Mutex<Handle>,
    used: AtomicU64,
    /// Up to the last whole record.
    pub(crate) length: AtomicU64,
    /// Up to the last successful sync.
    pub(crate) synced: AtomicU64,
    /// Nothing more is written to it.
    pub(crate) sealed: AtomicBool,
    /// A sync failed: nothing more may be written to it.
    pub(crate) sync_lost: AtomicBool,
    /// Every record was written, or checked, by this process.
    pub(crate) checked: AtomicBool,
    /// Of the last message, by the clock that is never set.
    pub(crate) newest_arrival_ns: AtomicI64,
    /// It is in a spare file ([`crate::spare`]), which keeps its name.
    pub(crate) spare: bool,
}

enum Handle {
    Closed,
    Open(Arc<dyn DiskFile>),
    /// Without a name: stays open.
    Pinned(Arc<dyn DiskFile>),
}

impl Segment {
    pub(crate) fn new(
        disk: SharedDisk,
        files: Arc<Files>,
        path: PathBuf,
        number: u32,
        spare: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            number,
            path,
            disk,
            files,
            handle: Mutex::new(Handle::Closed),
            used: AtomicU64::new(0),
            length: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            sealed: AtomicBool::new(false),
            sync_lost: AtomicBool::new(false),
            checked: AtomicBool::new(false),
            newest_arrival_ns: AtomicI64::new(0),
            spare,
        })
    }

    pub(crate) fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    fn handle(&self) -> MutexGuard<'_, Handle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn file(self: &Arc<Self>) -> io::Result<Arc<dyn DiskFile>> {
        self.used.store(self.files.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        if let Handle::Open(file) | Handle::Pinned(file) = &*self.handle() {
            return Ok(file.clone());
        }
        self.files.open(self)
    }

    fn open_now(&self) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::from(self.disk.open(&self.path, Open::Read)?))
    }

    /// Opens the file for as long as the segment lives, as it is about to lose its name.
    pub(crate) fn pin(&self) -> io::Result<()> {
        let mut handle = self.handle();
        let file = match &*handle {
            Handle::Pinned(_) => return Ok(()),
            Handle::Open(file) => file.clone(),
            Handle::Closed => self.open_now()?,
        };
        *handle = Handle::Pinned(file);
        Ok(())
    }
}

/// Segments that are open for reading, up to a maximum.
pub(crate) struct Files {
    max: usize,
    clock: AtomicU64,
    open: Mutex<Vec<Weak<Segment>>>,
}

impl Files {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, clock: AtomicU64::new(0), open: Mutex::new(Vec::new()) })
    }

    /// Opens a segment, after closing the one that was used longest ago if there are too many.
    fn open(&self, segment: &Arc<Segment>) -> io::Result<Arc<dyn DiskFile>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Handle::Open(file) | Handle::Pinned(file) = &*segment.handle() {
            return Ok(file.clone());
        }
        open.retain(|other| {
            other.upgrade().is_some_and(|other| matches!(*other.handle(), Handle::Open(_)))
        });
        if open.len() >= self.max {
            let used = |other: &Weak<Segment>| {
                other.upgrade().map_or(0, |other| other.used.load(Ordering::Relaxed))
            };
            let oldest = open.iter().enumerate().min_by_key(|(_, other)| used(other));
            if let Some((position, _)) = oldest {
                let closed = open.swap_remove(position);
                if let Some(closed) = closed.upgrade() {
                    let mut handle = closed.handle();
                    if matches!(*handle, Handle::Open(_)) {
                        *handle = Handle::Closed;
                    }
                }
            }
        }
        let mut handle = segment.handle();
        if let Handle::Open(file) | Handle::Pinned(file) = &*handle {
            return Ok(file.clone());
        }
        let file = segment.open_now()?;
        *handle = Handle::Open(file.clone());
        open.push(Arc::downgrade(segment));
        debug_assert!(
            open.len() <= self.max.max(1),
            "{} segments are open, the most is {}",
            open.len(),
            self.max
        );
        Ok(file)
    }

    pub(crate) fn count(&self) -> usize {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().filter(|segment| segment.strong_count() > 0).count()
    }
}
