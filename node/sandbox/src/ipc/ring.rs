//! The memory that the pool and a worker share: one file for each side, which only that side can
//! write.
//!
//! A file has no name, is sealed at its size, and begins with cursors ([`Cursor`]): how far its
//! side has written its own frames and taken those of the other. The rest is the ring. Cursors
//! count the bytes of all frames, wrapping. A frame always begins at the start of the ring, so
//! frames that are short touch one page of it; a longer one continues there once the other side has
//! taken what it would overwrite ([`super::frame`] has the rules).
//!
//! # Powers of a worker
//!
//! The pool's file is sealed against further writers: a worker can only map it for reading. Its
//! own file it may fill with anything, at any time. So each cursor is read once for each decision,
//! each byte is copied once, before anything looks at it, and no reference to bytes of the other
//! side's file is ever made: they are read as atomics. The size of a file cannot change, so reading
//! it raises no signal.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst},
    time::Duration,
};

use rustix::{
    event::Timespec,
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
    thread::futex,
};

/// Where the ring begins in its file: behind the words.
const DATA_AT: usize = 256;

/// Smallest file: a page.
pub(crate) const RING_BYTES_MIN: usize = 4096;

/// A position that a side publishes, and that the other waits for. Each has a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cursor {
    /// The end of what this side has written into its own ring.
    Written,
    /// The end of what this side has taken from the other side's ring.
    Taken,
}

impl Cursor {
    const fn at(self) -> usize {
        match self {
            Self::Written => 0,
            Self::Taken => 64,
        }
    }

    /// What a side that waits for this cursor of the other writes at [`WAITS_AT`].
    const fn waiting(self) -> u32 {
        match self {
            Self::Written => 1,
            Self::Taken => 2,
        }
    }
}

/// The cursor that this side waits for in a system call; 0 for none.
const WAITS_AT: usize = 128;
/// Whether the pool says that the two run on different processors.
const APART_AT: usize = 192;

const _: () = assert!(APART_AT + size_of::<u32>() <= DATA_AT && DATA_AT < RING_BYTES_MIN);

/// A file for one side.
pub(super) fn create(bytes: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let created = match memfd_create("sandbox-ring", flags | MemfdFlags::NOEXEC_SEAL) {
        // A kernel before 6.3 does not know the flag.
        Err(Errno::INVAL) => memfd_create("sandbox-ring", flags),
        created => created,
    };
    let file = created?;
    ftruncate(&file, bytes as u64)?;
    Ok(file)
}

/// Seals a file: its size for ever, and, if `written_here` only, against any writer but those that
/// have it mapped already.
pub(super) fn seal(file: &OwnedFd, written_here: bool) -> io::Result<()> {
    let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if written_here {
        seals |= SealFlags::FUTURE_WRITE;
    }
    Ok(fcntl_add_seals(file, seals)?)
}

/// A file of [`create`], mapped.
#[derive(Debug)]
struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, whichever of its threads uses it.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, bytes: usize, access: ProtFlags) -> io::Result<Self> {
        if bytes < RING_BYTES_MIN {
            let text = format!("a ring of {bytes} bytes, the least is {RING_BYTES_MIN}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // SAFETY: a new mapping at an address of the kernel's choosing.
        let address = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) }?;
        let address = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("no address"))?;
        Ok(Self { address, bytes })
    }

    fn capacity(&self) -> usize {
        self.bytes - DATA_AT
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at.is_multiple_of(size_of::<u32>()) && at < DATA_AT, "{at} is no word");
        // SAFETY: within the mapping, aligned, and only accessed as an atomic in this process.
        unsafe { AtomicU32::from_ptr(self.address.as_ptr().add(at).cast()) }
    }

    /// The ring, where it begins.
    fn data(&self) -> *mut u8 {
        // SAFETY: a mapping is longer than its words.
        unsafe { self.address.as_ptr().add(DATA_AT) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing that was lent of the mapping outlives it. A failure leaves it mapped.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

/// The file that this side writes. Its positions are kept here and never read back.
#[derive(Debug)]
pub(crate) struct OwnRing {
    mapping: Mapping,
    written: u32,
    taken: u32,
}

impl OwnRing {
    /// Maps a new file.
    pub(super) fn map(file: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let mapping = Mapping::new(file.as_fd(), bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { mapping, written: 0, taken: 0 })
    }

    /// Bytes of the ring.
    pub(super) fn capacity(&self) -> usize {
        self.mapping.capacity()
    }

    /// The position last published.
    pub(super) fn position(&self, cursor: Cursor) -> u32 {
        match cursor {
            Cursor::Written => self.written,
            Cursor::Taken => self.taken,
        }
    }

    /// Publishes a position, and wakes the other side if it waits for it.
    pub(crate) fn publish(&mut self, cursor: Cursor, position: u32, peer: &PeerRing) {
        match cursor {
            Cursor::Written => self.written = position,
            Cursor::Taken => self.taken = position,
        }
        let shared = self.mapping.word(cursor.at());
        // In one order with the same two of a side that begins to wait ([`PeerRing::sleep`]):
        // either it sees the position, or it is seen to wait.
        shared.store(position, SeqCst);
        if peer.mapping.word(WAITS_AT).load(SeqCst) == cursor.waiting() {
            // There may be no waiter; then there is nothing to do.
            let _ = futex::wake(shared, futex::Flags::empty(), 1);
        }
    }

    /// The ring, for a frame that fits into it.
    pub(super) fn data(&mut self) -> &mut [u8] {
        // SAFETY: within the mapping. This process reaches the bytes through this borrow only, and
        // the other one only reads them.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.data(), self.mapping.capacity()) }
    }

    /// Writes at this offset of a frame, continuing at the start of the ring behind its end.
    /// `bytes` are at most as many as the ring has.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let data = self.data();
        let at = offset % data.len();
        let (until_end, again) = bytes.split_at(bytes.len().min(data.len() - at));
        data[at..at + until_end.len()].copy_from_slice(until_end);
        data[..again.len()].copy_from_slice(again);
    }

    /// Says whether the two run on different processors.
    pub(super) fn set_apart(&mut self, apart: bool) {
        self.mapping.word(APART_AT).store(u32::from(apart), Relaxed);
    }
}

/// The file that the other side writes, at any time and with anything.
#[derive(Debug)]
pub(crate) struct PeerRing {
    mapping: Mapping,
}

impl PeerRing {
    /// Maps a file for reading.
    pub(super) fn map(file: &OwnedFd, bytes: usize) -> io::Result<Self> {
        Ok(Self { mapping: Mapping::new(file.as_fd(), bytes, ProtFlags::READ)? })
    }

    /// Bytes of the ring.
    pub(super) fn capacity(&self) -> usize {
        self.mapping.capacity()
    }

    /// A position as it is now.
    pub(super) fn position(&self, cursor: Cursor) -> u32 {
        self.mapping.word(cursor.at()).load(SeqCst)
    }

    /// Copies what is at this offset of a frame, continuing at the start of the ring behind its
    /// end. `out` has at most as many bytes as the ring.
    pub(super) fn copy(&self, offset: usize, out: &mut [u8]) {
        let at = offset % self.capacity();
        let (until_end, again) = out.split_at_mut(out.len().min(self.capacity() - at));
        self.copy_piece(at, until_end);
        self.copy_piece(0, again);
    }

    fn copy_piece(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= self.capacity(), "a piece ends with the ring");
        // SAFETY: within the mapping, as was just looked at.
        let from = unsafe { self.mapping.data().add(at) };
        let until_aligned = out.len().min(from.align_offset(align_of::<AtomicU64>()));
        let (head, rest) = out.split_at_mut(until_aligned);
        let (words, tail) = rest.as_chunks_mut::<{ size_of::<u64>() }>();
        let words_at = head.len();
        let tail_at = words_at + words.len() * size_of::<u64>();
        for (n, byte) in head.iter_mut().enumerate() {
            // SAFETY: within the piece; bytes of the mapping are only read as atomics.
            *byte = unsafe { AtomicU8::from_ptr(from.add(n)) }.load(Relaxed);
        }
        for (n, word) in words.iter_mut().enumerate() {
            // SAFETY: as above, and aligned behind the head.
            let from = unsafe { from.add(words_at + n * size_of::<u64>()) };
            // SAFETY: as above.
            *word = unsafe { AtomicU64::from_ptr(from.cast()) }.load(Relaxed).to_ne_bytes();
        }
        for (n, byte) in tail.iter_mut().enumerate() {
            // SAFETY: within the piece; bytes of the mapping are only read as atomics.
            *byte = unsafe { AtomicU8::from_ptr(from.add(tail_at + n)) }.load(Relaxed);
        }
    }

    /// Whether the other side says that the two run on different processors.
    pub(super) fn says_apart(&self) -> bool {
        self.mapping.word(APART_AT).load(Relaxed) != 0
    }

    /// Waits in the kernel until `cursor` is not `seen`, or something else happens, for `time` at
    /// most. Returns whether all of that time passed.
    pub(super) fn sleep(
        &self,
        own: &OwnRing,
        cursor: Cursor,
        seen: u32,
        time: Option<Duration>,
    ) -> io::Result<bool> {
        let waits = own.mapping.word(WAITS_AT);
        waits.store(cursor.waiting(), SeqCst);
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        // The kernel looks at it once more, in one order with a change of it.
        let slept = if self.position(cursor) == seen {
            let shared = self.mapping.word(cursor.at());
            futex::wait(shared, futex::Flags::empty(), seen, time.as_ref())
        } else {
            Ok(())
        };
        waits.store(0, Relaxed);
        match slept {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(Errno::TIMEDOUT) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}
