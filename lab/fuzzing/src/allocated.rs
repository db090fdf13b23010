//! How much memory a decoder takes: a global allocator that counts, for targets with one thread.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Memory that a decoder may take in addition to a multiple of its input.
pub(crate) const BESIDE_BYTES: usize = 512 << 10;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn took(bytes: usize) {
    PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: every call is passed unchanged to the system's allocator; counting touches no memory that
// it handed out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        LIVE.fetch_sub(layout.size(), Relaxed);
        took(bytes);
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, bytes) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

/// Runs it, and asserts that it never allocates more than `most` bytes above those allocated
/// before.
pub(crate) fn within<T>(most: usize, work: impl FnOnce() -> T) -> T {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let done = work();
    let taken = PEAK.load(Relaxed) - before;
    assert!(taken <= most, "{taken} bytes were allocated, at most {most} are right");
    done
}

/// Decodes `bytes` bytes: at most twice as many are allocated, and [`BESIDE_BYTES`].
pub(crate) fn decoding<T>(bytes: usize, decode: impl FnOnce() -> T) -> T {
    within(2 * bytes + BESIDE_BYTES, decode)
}
