//! A heap in a file, for data that lives long and is rarely touched.
//!
//! Anonymous memory without swap stays resident until it is freed. In a shared mapping of a file,
//! the kernel writes pages back and takes them whenever memory is short, and reads them when they
//! are touched again. So the data there may be larger than the memory; the working set is in
//! memory, because it was touched last.
//!
//! The program's allocator is [`Allocator`]: jemalloc, except that the allocations of a thread that
//! holds a [`HeapGuard`] come from an arena whose extents are blocks of the file. Such an
//! allocation is freed and shared like any other, by any thread; its type does not show its
//! location. Freed memory returns to that arena at once, bypassing the caches of threads, so
//! that nothing else is ever allocated in the file.
//!
//! The file has no name and is gone with the process: it is memory, and nothing in it is durable.
//!
//! # Bounds
//!
//! [`FileHeap::bound`], and the size given to [`FileHeap::create`], which is address space. Blocks
//! of the disk are taken [`STEP_BYTES`] at a time before they are used, so that a page that is
//! written has its block (on a file system that writes pages to new places each time, btrfs or ZFS,
//! only the first time: there a full disk can end the program); they are never returned before the
//! end; freed ones are used again. Allocations without a block, or beyond the bound, are made as
//! usual, in anonymous memory, and stay there until they are freed. While the disk has no block,
//! [`FileHeap::ready`] fails: a program calls it before it begins work that would allocate more.

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    fs::File,
    io,
    marker::PhantomData,
    os::unix::fs::FileExt,
    path::Path,
    ptr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use rustix::{
    fs::{FallocateFlags, Mode, OFlags},
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags},
};
use tikv_jemalloc_sys::{
    MALLOCX_ALIGN, MALLOCX_ARENA, MALLOCX_TCACHE_NONE, extent_hooks_t, mallctl, mallocx, rallocx,
    sdallocx,
};
use tikv_jemallocator::Jemalloc;

/// Blocks of the disk are taken in steps of this many bytes, one step ahead.
pub const STEP_BYTES: usize = 4 << 20;
const ZEROS_BYTES: usize = 64 << 10;
const _: () = assert!(STEP_BYTES.is_multiple_of(ZEROS_BYTES), "a step is written in whole parts");
/// Written to a file system that cannot reserve blocks.
static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];

/// Where the mapping begins, and its bytes; zero before there is one.
static BEGIN: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

fn is_in_file(byte: *const u8) -> bool {
    byte.addr().wrapping_sub(BEGIN.load(Relaxed)) < BYTES.load(Relaxed)
}

thread_local! {
    /// With which flags this thread allocates; 0 is as usual.
    static FLAGS: Cell<i32> = const { Cell::new(0) };
}

/// Jemalloc; see the module.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: memory comes from jemalloc in every case, which knows the arena of what is freed.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match FLAGS.get() {
            0 => {}
            flags => {
                // SAFETY: the size is not zero, as the caller promises.
                let block =
                    unsafe { mallocx(layout.size(), flags | MALLOCX_ALIGN(layout.align())) };
                if !block.is_null() {
                    return block.cast();
                }
            }
        }
        // SAFETY: as promised by the caller.
        unsafe { Jemalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if FLAGS.get() == 0 {
            // SAFETY: as promised by the caller.
            return unsafe { Jemalloc.alloc_zeroed(layout) };
        }
        // SAFETY: as promised by the caller; the block has `size` bytes.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_in_file(block) {
            let flags = MALLOCX_ALIGN(layout.align()) | MALLOCX_TCACHE_NONE;
            // SAFETY: the block is of that size and alignment, as promised by the caller; jemalloc
            // finds the arena by the address.
            return unsafe { sdallocx(block.cast(), layout.size(), flags) };
        }
        // SAFETY: as promised by the caller.
        unsafe { Jemalloc.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        match FLAGS.get() {
            0 if !is_in_file(block) => {}
            flags => {
                let flags = flags | MALLOCX_ALIGN(layout.align()) | MALLOCX_TCACHE_NONE;
                // SAFETY: the block is jemalloc's and the new size not zero, as the caller
                // promises.
                let moved = unsafe { rallocx(block.cast(), new_size, flags) };
                if !moved.is_null() {
                    return moved.cast();
                }
            }
        }
        if is_in_file(block) {
            // The file has no room: it moves out, and past the cache of this thread.
            let flags = MALLOCX_ALIGN(layout.align()) | MALLOCX_TCACHE_NONE;
            // SAFETY: the same.
            return unsafe { rallocx(block.cast(), new_size, flags) }.cast();
        }
        // SAFETY: as promised by the caller.
        unsafe { Jemalloc.realloc(block, layout, new_size) }
    }
}

/// State of the hooks. Lives as long as the process, as jemalloc demands.
#[repr(C)]
struct FileArena {
    /// The first field: the pointer that hooks are given is one to the whole.
    hooks: extent_hooks_t,
    file: File,
    base: *mut u8,
    bytes: usize,
    taken: Mutex<Watermarks>,
    /// Nothing is taken beyond.
    bound: AtomicUsize,
    /// For figures.
    backed: AtomicU64,
    /// The arena is there. Before, jemalloc must have what it needs for the arena itself.
    made: AtomicBool,
}

/// Bytes from the beginning of the room.
#[derive(Debug, Default)]
struct Watermarks {
    /// Handed to jemalloc.
    next: usize,
    /// With blocks on the disk.
    backed: usize,
}

// SAFETY: the base is an address of a mapping that stays; everything else can be shared.
unsafe impl Sync for FileArena {}
// SAFETY: the same.
unsafe impl Send for FileArena {}

/// See the module. One for each process.
#[derive(Clone, Copy)]
pub struct FileHeap {
    room: &'static FileArena,
    arena: usize,
}

impl std::fmt::Debug for FileHeap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileHeap(arena {}, {} bytes)", self.arena, self.room.bytes)
    }
}

/// While it is there, this thread allocates from the file. It stays with its thread.
#[derive(Debug)]
pub struct HeapGuard {
    before: i32,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for HeapGuard {
    fn drop(&mut self) {
        FLAGS.set(self.before);
    }
}

/// Figures of the file heap of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileHeapFigures {
    /// Allocated and not freed.
    pub live_bytes: u64,
    /// In pages with at least one allocation.
    pub active_bytes: u64,
    /// As jemalloc counts what is resident; the kernel may have taken any of it.
    pub resident_bytes: u64,
    /// Taken on the disk.
    pub disk_bytes: u64,
}

/// The one of this process.
static HEAP: OnceLock<FileHeap> = OnceLock::new();

impl FileHeap {
    /// Makes the heap of this process, of at most `bytes` bytes, in a file without a name in
    /// `folder`. When there is one already, that one stays.
    ///
    /// # Errors
    /// When the file cannot be made or mapped, or the program's allocator is another.
    pub fn create(folder: &Path, bytes: u64) -> io::Result<Self> {
        if let Some(heap) = HEAP.get() {
            return Ok(*heap);
        }
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let bytes = bytes
            .max(2 * STEP_BYTES)
            .checked_next_multiple_of(STEP_BYTES)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let file = unnamed_file(folder)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of our choosing, which conflicts with nothing. It is never
        // unmapped. It is longer than the file, which grows with the blocks that are taken.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file, 0)
        }?;
        // SAFETY: the whole of that mapping. Accesses are scattered, so reading ahead would read
        // unused pages.
        unsafe { rustix::mm::madvise(base, bytes, Advice::Random) }?;
        let room = Box::leak(Box::new(FileArena {
            hooks: extent_hooks_t {
                alloc: Some(alloc),
                dalloc: None,
                destroy: None,
                commit: None,
                decommit: None,
                purge_lazy: None,
                purge_forced: None,
                split: Some(split),
                merge: Some(merge),
            },
            file,
            base: base.cast(),
            bytes,
            taken: Mutex::default(),
            bound: AtomicUsize::new(bytes),
            backed: AtomicU64::new(0),
            made: AtomicBool::new(false),
        }));
        BEGIN.store(base.addr(), Relaxed);
        BYTES.store(bytes, Relaxed);
        // On a full disk a program starts, and reports it where it checks.
        let is_backed = room.ready().is_ok();
        let heap = Self { room, arena: new_arena(room)? };
        room.made.store(true, Relaxed);
        if is_backed {
            heap.check()?;
        }
        Ok(*HEAP.get_or_init(|| heap))
    }

    /// From now on this thread allocates from the file, until the returned guard is dropped.
    pub fn enter(&self) -> HeapGuard {
        HeapGuard { before: switch_heap(self.number()), of_this_thread: PhantomData }
    }

    /// Its number for [`switch_heap`].
    pub fn number(&self) -> i32 {
        MALLOCX_ARENA(self.arena) | MALLOCX_TCACHE_NONE
    }

    /// From now on at most `bytes` bytes of the disk are taken, in whole steps; blocks already
    /// taken stay.
    pub fn bound(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.room.bytes);
        self.room.bound.store(bytes, Relaxed);
    }

    /// Sees to it that the next [`STEP_BYTES`] have their blocks on the disk, if they are within
    /// the bound.
    ///
    /// # Errors
    /// When the disk has none.
    pub fn ready(&self) -> io::Result<()> {
        self.room.ready()
    }

    /// Whether this allocation is in the file.
    pub fn holds<T>(&self, what: *const T) -> bool {
        is_in_file(what.cast())
    }

    /// An allocation must come from the file, or the program has another allocator.
    fn check(&self) -> io::Result<()> {
        let probe = {
            let _here = self.enter();
            Box::new(0_u64)
        };
        match self.holds(&raw const *probe) {
            true => Ok(()),
            false => Err(io::Error::other("the program's allocator takes no memory from a file")),
        }
    }

    /// Figures of the last advance of the allocator's epoch.
    fn figures(&self) -> FileHeapFigures {
        let number = |name: &str| {
            // SAFETY: the figures asked for are of the type `size_t`.
            let value = unsafe { tikv_jemalloc_ctl::raw::read::<usize>(name.as_bytes()) };
            value.map_or(0, |value| value as u64)
        };
        let read = |figure: &str| number(&format!("stats.arenas.{}.{figure}\0", self.arena));
        FileHeapFigures {
            live_bytes: read("small.allocated") + read("large.allocated"),
            active_bytes: read("pactive") * number("arenas.page\0"),
            resident_bytes: read("resident"),
            disk_bytes: self.room.backed.load(Relaxed),
        }
    }
}

/// Has this thread allocate from the heap of that [`FileHeap::number`], or as usual for 0. Returns
/// what it did before. For callers that cannot hold a [`FileHeap`].
pub fn switch_heap(number: i32) -> i32 {
    FLAGS.replace(number)
}

/// [`FileHeap::holds`] of this process's, if it has one.
pub fn file_heap_holds(what: *const u8) -> bool {
    is_in_file(what)
}

/// [`FileHeap::ready`] of this process's, if it has one.
///
/// # Errors
/// The same.
pub fn file_heap_ready() -> io::Result<()> {
    HEAP.get().map_or(Ok(()), FileHeap::ready)
}

/// Figures of the file heap of this process; zeros if it has none.
pub fn file_heap() -> FileHeapFigures {
    HEAP.get().map(FileHeap::figures).unwrap_or_default()
}

/// A file that no other process can open and that is gone with this process.
fn unnamed_file(folder: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Ok(file) => Ok(file.into()),
        // A file system that knows no files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let path = folder.join(format!("heap-{}", std::process::id()));
            // Of a process of this number that ended before it came so far.
            let _ = rustix::fs::unlink(&path);
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let file = rustix::fs::open(&path, flags, mode)?;
            rustix::fs::unlink(&path)?;
            Ok(file.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// A new arena with extents from the room.
fn new_arena(room: &'static FileArena) -> io::Result<usize> {
    let mut arena: u32 = 0;
    let mut bytes = size_of::<u32>();
    let mut hooks: *const FileArena = room;
    // SAFETY: the name is a C string; the arena's number is an unsigned integer of that size, and
    // the value that is given a pointer to a table that lives as long as the process.
    let failed = unsafe {
        mallctl(
            c"arenas.create".as_ptr(),
            (&raw mut arena).cast(),
            &raw mut bytes,
            (&raw mut hooks).cast(),
            size_of::<*const FileArena>(),
        )
    };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    // Freed extents are retained at once, where neighbours are joined and any part may be used
    // again: there are no hooks by which they could be returned.
    for decay in ["dirty", "muzzy"] {
        let name = format!("arena.{arena}.{decay}_decay_ms\0");
        // SAFETY: the option is of the type `ssize_t`.
        unsafe { tikv_jemalloc_ctl::raw::write(name.as_bytes(), 0_isize) }
            .map_err(|error| io::Error::other(error.to_string()))?;
    }
    Ok(arena as usize)
}

impl FileArena {
    fn ready(&self) -> io::Result<()> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = taken.next.saturating_add(STEP_BYTES);
        if ahead > self.bound.load(Relaxed) { Ok(()) } else { self.back(&mut taken, ahead) }
    }

    /// Takes blocks for everything up to `end`. Allocates nothing: jemalloc calls it.
    fn back(&self, taken: &mut Watermarks, end: usize) -> io::Result<()> {
        while taken.backed < end {
            let step = STEP_BYTES.min(self.bytes - taken.backed);
            let offset = taken.backed as u64;
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, step as u64) {
                Ok(()) => {}
                Err(Errno::INTR) => continue,
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    for part in (0..step).step_by(ZEROS.len()) {
                        self.file.write_all_at(&ZEROS, offset + part as u64)?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
            taken.backed += step;
            self.backed.store(taken.backed as u64, Relaxed);
        }
        Ok(())
    }

    /// Where the next `size` bytes at that alignment begin.
    fn take(&self, wanted: *mut u8, size: usize, alignment: usize) -> Option<usize> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let base = self.base.addr();
        let at = base.checked_add(taken.next)?.checked_next_multiple_of(alignment.max(1))? - base;
        let end = at.checked_add(size).filter(|end| *end <= self.bound.load(Relaxed))?;
        // It may ask for the range after an extent it has.
        if !wanted.is_null() && wanted.addr() != base + at {
            return None;
        }
        self.back(&mut taken, end).ok()?;
        taken.next = end;
        Some(at)
    }
}

/// The next `size` bytes at that alignment, or null when there are fewer.
///
/// # Safety
/// Called by jemalloc, with the table of a [`FileArena`] and pointers to two truth values.
unsafe extern "C" fn alloc(
    hooks: *mut extent_hooks_t,
    wanted: *mut libc::c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _: libc::c_uint,
) -> *mut libc::c_void {
    // SAFETY: the table is the first field of a room, which lives as long as the process and was
    // given as a whole.
    let room = unsafe { &*hooks.cast_const().cast::<FileArena>() };
    let Some(at) = room.take(wanted.cast(), size, alignment) else {
        return match room.made.load(Relaxed) {
            true => ptr::null_mut(),
            false => anonymous(size, alignment, zero, commit),
        };
    };
    // SAFETY: jemalloc's own. Memory that was never allocated before reads as zeros.
    unsafe {
        zero.write(true);
        commit.write(true);
    }
    // SAFETY: within the mapping.
    unsafe { room.base.add(at) }.cast()
}

/// Memory for the arena itself where the disk has none.
fn anonymous(
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
) -> *mut libc::c_void {
    let Some(bytes) = size.checked_add(alignment) else { return ptr::null_mut() };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which is never unmapped.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)
    };
    let Ok(mapped) = mapped else { return ptr::null_mut() };
    let gap = mapped.addr().next_multiple_of(alignment.max(1)) - mapped.addr();
    // SAFETY: pointers to two truth values of jemalloc's; the address is within the mapping.
    unsafe {
        zero.write(true);
        commit.write(true);
        mapped.cast::<u8>().add(gap).cast()
    }
}

/// Extents may be cut anywhere.
unsafe extern "C" fn split(
    _: *mut extent_hooks_t,
    _: *mut libc::c_void,
    _: usize,
    _: usize,
    _: usize,
    _: bool,
    _: libc::c_uint,
) -> bool {
    // The result is true on failure.
    false
}

/// Neighbours may be joined: they are of one mapping.
unsafe extern "C" fn merge(
    _: *mut extent_hooks_t,
    _: *mut libc::c_void,
    _: usize,
    _: *mut libc::c_void,
    _: usize,
    _: bool,
    _: libc::c_uint,
) -> bool {
    // The result is true on failure.
    false
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Tests of one program share the heap of their process.
    fn heap() -> FileHeap {
        static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
        static MAKING: Mutex<()> = Mutex::new(());
        let _one = MAKING.lock().unwrap();
        let folder = FOLDER.get_or_init(|| tempfile::tempdir().unwrap());
        FileHeap::create(folder.path(), 64 << 20).unwrap()
    }

    #[test]
    fn what_is_allocated_inside_lies_in_the_file_and_is_freed_anywhere() {
        let heap = heap();
        let outside = Box::new([1_u8; 100]);
        let (small, large, mut grown) = {
            let _here = heap.enter();
            {
                let _again = heap.enter();
            }
            (Arc::new([7_u64; 4]), vec![0_u8; 3 * MIB], vec![1_u8; 10])
        };
        assert!(!heap.holds(outside.as_ptr()));
        assert!(heap.holds(&raw const *small) && heap.holds(large.as_ptr()));
        assert!(large.iter().all(|byte| *byte == 0));
        // An allocation that grows outside leaves the file, and keeps its contents.
        assert!(heap.holds(grown.as_ptr()));
        grown.resize(MIB, 2);
        assert!(!heap.holds(grown.as_ptr()));
        assert_eq!((grown[9], grown[10]), (1, 2));
        let elsewhere = std::thread::spawn(move || {
            assert!(!heap.holds(vec![1_u8; 64].as_ptr()), "each thread enters for itself");
            assert_eq!(small[3], 7);
        });
        elsewhere.join().unwrap();
    }

    // Promise: P3 - Freed room in a file-backed heap is used again, for every size.
    #[test]
    fn room_in_the_file_is_used_again_whatever_the_size() {
        let heap = heap();
        let fill = || {
            let _here = heap.enter();
            (0..24).map(|byte| vec![byte; MIB]).collect::<Vec<Vec<u8>>>()
        };
        let blocks = fill();
        assert!(blocks.iter().all(|block| heap.holds(block.as_ptr())));
        assert!(blocks.iter().zip(0..).all(|(block, byte)| block.iter().all(|at| *at == byte)));
        drop(blocks);
        // Large extents are split for small ones, and joined again for large ones.
        let disk = file_heap().disk_bytes;
        for size in [MIB, 3000, 100 << 10, 64, MIB, 8 << 10, 2 * MIB] {
            let here = heap.enter();
            let blocks: Vec<Vec<u8>> = (0..20 * MIB / size).map(|_| vec![1; size]).collect();
            drop(here);
            drop(blocks);
        }
        let now = file_heap().disk_bytes;
        assert!(now <= disk + 4 * STEP_BYTES as u64, "{disk} bytes of the disk, then {now}");
    }

    #[test]
    fn what_is_freed_goes_to_nobody_else() {
        let heap = heap();
        let blocks: Vec<Box<[u64; 12]>> = {
            let _here = heap.enter();
            (0..1000).map(|number| Box::new([number; 12])).collect()
        };
        assert!(blocks.iter().all(|block| heap.holds(&raw const **block)));
        drop(blocks);
        let others: Vec<Box<[u64; 12]>> = (0..1000).map(|number| Box::new([number; 12])).collect();
        assert!(others.iter().all(|block| !heap.holds(&raw const **block)));
    }
}
