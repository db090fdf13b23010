//! Figures of this process's allocator, and returning freed memory to the system. Memory in a file
//! ([`crate::FileHeap`]) is left out: it cannot and need not be returned.

use tikv_jemalloc_ctl::{epoch, stats};

use crate::file_backed_heap::file_heap;

/// Figures of a process's allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    /// Allocated by the program.
    pub live_bytes: u64,
    /// Resident for it, freed pages included.
    pub resident_bytes: u64,
    /// Handed back to the operating system by the call that read this.
    pub returned_bytes: u64,
}

/// Bytes in pages that hold at least one allocation; what is resident above it was freed and not
/// handed back yet.
pub fn active_bytes() -> u64 {
    let active = stats::active::read().map_or(0, |bytes| bytes as u64);
    active.saturating_sub(file_heap().active_bytes)
}

/// Reads the figures, after handing back what is freed if `trim`.
pub fn heap(trim: bool) -> Heap {
    let before = figures();
    if !trim {
        return before;
    }
    purge();
    let after = figures();
    Heap { returned_bytes: before.resident_bytes.saturating_sub(after.resident_bytes), ..after }
}

fn figures() -> Heap {
    // Figures are of the moment of the last advance. A failure leaves the ones before.
    let _ = epoch::advance();
    let read = |figure: tikv_jemalloc_ctl::Result<usize>| figure.map_or(0, |bytes| bytes as u64);
    let file_backed = file_heap();
    Heap {
        live_bytes: read(stats::allocated::read()).saturating_sub(file_backed.live_bytes),
        resident_bytes: read(stats::resident::read()).saturating_sub(file_backed.resident_bytes),
        returned_bytes: 0,
    }
}

/// Gives every unused dirty page of every arena back to the kernel. A few microseconds per
/// megabyte.
fn purge() {
    // 4096 stands for all arenas (`MALLCTL_ARENAS_ALL`).
    const PURGE: &std::ffi::CStr = c"arena.4096.purge";
    // SAFETY: the name is a C string; a command without input or output takes null pointers and a
    // zero length.
    let failed = unsafe {
        tikv_jemalloc_sys::mallctl(
            PURGE.as_ptr(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
        )
    };
    debug_assert_eq!(failed, 0, "the allocator knows the command");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purge_returns_freed_memory() {
        let block = vec![1_u8; 64 << 20];
        let held = heap(false);
        assert!(held.live_bytes >= 64 << 20, "{held:?}");
        assert!(held.resident_bytes >= 64 << 20, "{held:?}");
        drop(block);
        let after = heap(true);
        assert!(after.resident_bytes + (60 << 20) < held.resident_bytes, "{held:?} {after:?}");
    }
}
