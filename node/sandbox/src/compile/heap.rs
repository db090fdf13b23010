//! The compile child's heap, in a file instead of anonymous memory (docs/internals/modules.md).
//!
//! The kernel may write such pages back and reclaim them, so a large module compiles in a small
//! budget: more slowly, but with the same result, and no member of a subnet runs out of memory over
//! a module that others compile. The heap begins behind the module in its file, which has no name
//! and is sparse: pages are on disk only once they were written to.
//!
//! The allocator (jemalloc, in every program with this crate) takes its extents from there, in the
//! order of their addresses. They are never taken back: it reuses what is freed itself, which is
//! faster than punching holes. When the heap is used up, allocations fail, and the child ends as
//! out of memory.
//!
//! This module must never know what is compiled.

use std::fs::File;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_uint, c_void};
use tikv_jemalloc_sys::{extent_hooks_t, mallctl};

/// Settings of the allocator of a child, in its environment: all of its memory in one arena, the
/// configured one; no address space in advance, which would be anonymous; nothing is returned
/// before the child ends. Small allocations come in slabs of 64 pages: the allocator's metadata of
/// a slab is anonymous, 1.4 MiB less for a module of 50,000 functions than with slabs of its own
/// choice.
pub(super) const SETTINGS: (&str, &str) = (
    "MALLOC_CONF",
    "narenas:1,oversize_threshold:0,retain:false,dirty_decay_ms:-1,muzzy_decay_ms:-1,\
     slab_sizes:1-16384:64",
);

/// Where the module ends and room may begin: mappings begin at whole pages.
const PAGE_BYTES: u64 = 4096;

/// Addresses: where the room begins, of the next extent, and of the end of the room. Zero before
/// [`take_from`].
static BEGIN: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// The hooks that jemalloc calls. It reads the table for as long as the process lives. It does
/// without hooks that are missing here.
static mut HOOKS: extent_hooks_t = extent_hooks_t {
    alloc: Some(alloc),
    dalloc: None,
    destroy: None,
    commit: None,
    decommit: None,
    purge_lazy: None,
    purge_forced: None,
    split: Some(split),
    merge: Some(merge),
};

/// Offset of the heap in the file of a module of `module_bytes` bytes.
pub(super) fn begin(module_bytes: u64) -> u64 {
    module_bytes.next_multiple_of(PAGE_BYTES)
}

/// Makes the allocator take everything from `bytes` bytes of `file` after the module from now on.
/// Earlier allocations stay where they are.
///
/// # Errors
/// When the file cannot be mapped, or the allocator refuses.
pub(super) fn take_from(file: &File, module_bytes: u64, bytes: u64) -> io::Result<()> {
    let len = usize::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: a new mapping of our choosing, which conflicts with nothing. It is never unmapped.
    let address = unsafe {
        rustix::mm::mmap(
            ptr::null_mut(),
            len,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
            file,
            begin(module_bytes),
        )
    }?;
    BEGIN.store(address.addr(), Ordering::SeqCst);
    NEXT.store(address.addr(), Ordering::SeqCst);
    END.store(address.addr().saturating_add(len), Ordering::SeqCst);
    address.expose_provenance();
    let mut hooks = &raw mut HOOKS;
    // SAFETY: the name is a C string, and the value a pointer to a table that lives as long as the
    // process, read and never written after this.
    let failed = unsafe {
        mallctl(
            c"arena.0.extent_hooks".as_ptr(),
            ptr::null_mut(),
            ptr::null_mut(),
            (&raw mut hooks).cast(),
            size_of::<*mut extent_hooks_t>(),
        )
    };
    match failed {
        0 if is_in_use() => Ok(()),
        0 => Err(io::Error::other("the program's allocator does not take memory from a file")),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Whether an allocation comes from the file: the program may have another allocator, or one that
/// is set up in another way.
fn is_in_use() -> bool {
    const LARGE_BYTES: usize = 1 << 20;
    let probe = Vec::<u8>::with_capacity(LARGE_BYTES);
    std::hint::black_box(&probe);
    let room = BEGIN.load(Ordering::Relaxed)..END.load(Ordering::Relaxed);
    room.contains(&probe.as_ptr().addr())
}

/// The next `size` bytes at that alignment, or null when there is not so much room any more.
///
/// # Safety
/// Called by jemalloc, with pointers to two truth values.
unsafe extern "C" fn alloc(
    _: *mut extent_hooks_t,
    wanted: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _: c_uint,
) -> *mut c_void {
    let end = END.load(Ordering::Relaxed);
    let place = |next: usize| {
        let at = next.checked_next_multiple_of(alignment.max(1))?;
        // It may ask for what follows an extent it has.
        let fits = wanted.is_null() || wanted.addr() == at;
        let after = at.checked_add(size).filter(|after| *after <= end && fits)?;
        Some((at, after))
    };
    let taken = NEXT.try_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
        place(next).map(|(_, after)| after)
    });
    let Some((at, _)) = taken.ok().and_then(place) else { return ptr::null_mut() };
    // SAFETY: jemalloc's own. Memory that was never handed out before is a hole of the file, which
    // reads as zeros.
    unsafe {
        zero.write(true);
        commit.write(true);
    }
    ptr::with_exposed_provenance_mut(at)
}

/// Extents may be cut anywhere.
unsafe extern "C" fn split(
    _: *mut extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: usize,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    // This truth value says whether it failed.
    false
}

/// Neighbours may be joined, also the end of the heap and an older extent behind it: no hook unmaps
/// or purges, so it does not matter which mapping a page belongs to. It would matter with such a
/// hook.
unsafe extern "C" fn merge(
    _: *mut extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    // This truth value says whether it failed.
    false
}
