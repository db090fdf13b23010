//! The memory of a running program: its allocator's figures, the limit of its process group, how
//! far work is held back, and the governor's thread that decides it.
//!
//! The rules are in `budget` and are pure. This crate takes the readings for them and carries out
//! their decisions, as far as this is the same in every program:
//!
//! * [`allocator`] reads jemalloc's figures and hands freed memory back.
//! * [`FileHeap`] is memory in a file, which the kernel can take while it is not touched.
//! * [`check_group`] refuses a start in a process group that is too small.
//! * [`Record`] is the state at a moment: the level and why, the changes of the level, counters of
//!   returned memory, and the samples of the last ten minutes. The governor writes it, services,
//!   metrics and status reports read it.
//! * [`Steps`] are the steps of one look at the memory; [`GovernorThread`] looks again and again. A
//!   program adds its own parts: other processes, caches to drop, the contents of a sample.
//!
//! Bounds: [`dashboard::HISTORY_MAX`] samples and [`dashboard::EVENTS_MAX`] events.
//!
//! It must never know the purpose of the memory, nor which work is refused at which level.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod allocator;
mod file_backed_heap;
mod governor;
mod group;
mod record;

pub use file_backed_heap::{
    Allocator, FileHeap, FileHeapFigures, HeapGuard, STEP_BYTES, file_heap, file_heap_holds,
    file_heap_ready, switch_heap,
};
pub use governor::{GovernorThread, Steps};
pub use group::{GroupTooSmall, check_group};
pub use record::{Purges, Record, unix_millis};

/// Makes jemalloc, with room for a [`FileHeap`], the allocator of the program that names it.
///
/// jemalloc reads how it is set up before `main`: few arenas, because each keeps memory of its own;
/// unused address space goes back (`retain:false`), because caps on address space count it; freed
/// pages go back to the kernel within a second of further use.
#[macro_export]
macro_rules! program_allocator {
    () => {
        #[global_allocator]
        static ALLOCATOR: $crate::Allocator = $crate::Allocator;

        #[unsafe(export_name = "malloc_conf")]
        static MALLOC_CONF: Option<&'static std::ffi::c_char> = {
            const TEXT: &std::ffi::CStr =
                c"background_thread:false,narenas:2,tcache_max:4096,retain:false,dirty_decay_ms:1000,muzzy_decay_ms:0";
            // SAFETY: the pointer is to a constant string that ends in zero.
            Some(unsafe { &*TEXT.as_ptr() })
        };
    };
}

// The figures that tests compare are jemalloc's.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

#[cfg(test)]
/// As the node's programs set it up.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: Option<&'static std::ffi::c_char> = {
    const TEXT: &std::ffi::CStr = c"narenas:2,tcache_max:4096,retain:false,muzzy_decay_ms:0";
    // SAFETY: the pointer is to a constant string that ends in zero.
    Some(unsafe { &*TEXT.as_ptr() })
};
