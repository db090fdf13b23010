//! Selects the heap of the process that holds the replicated state.
//!
//! The state that canisters and clients create may exceed the memory of a node. A program may have
//! a second heap, which the kernel can write to disk and reclaim (`memory::FileHeap` in the node),
//! and [`install`] it; from then on everything that the state keeps from round to round is
//! allocated there, and so is what [`crate::PageStore`] keeps of each memory. Without one (tests,
//! simulation) only the location differs: the contents, and therefore every result, are the same.
//!
//! Only allocations are directed; reading and freeing need to know nothing.

use std::{io, marker::PhantomData, sync::OnceLock};

/// The heap that is used unless another is chosen.
const USUAL: i32 = 0;

/// A heap for the state.
#[derive(Clone, Copy, Debug)]
pub struct StateHeap {
    /// Has this thread allocate from the heap of that number; returns the number of the one before.
    pub switch: fn(i32) -> i32,
    /// The heap's number.
    pub number: i32,
    /// Whether the byte at this address is in this heap.
    pub holds: fn(*const u8) -> bool,
    /// Makes sure that a round finds room. An error is a fault of the machine, which may heal.
    pub ready: fn() -> io::Result<()>,
}

static INSTALLED: OnceLock<StateHeap> = OnceLock::new();

/// Allocates the state in this heap from now on, for all threads of the process. Only the first
/// call has an effect.
pub fn install(heap: StateHeap) {
    INSTALLED.get_or_init(|| heap);
}

/// Whether there is a heap of the state's own.
pub fn is_installed() -> bool {
    INSTALLED.get().is_some()
}

/// Whether the state's heap has room for what a round leaves behind.
///
/// # Errors
/// Those of the disk.
pub fn ready() -> io::Result<()> {
    INSTALLED.get().map_or(Ok(()), |heap| (heap.ready)())
}

/// Does `work` with all that it allocates in the state's heap.
pub fn within<R>(work: impl FnOnce() -> R) -> R {
    let _here = enter();
    work()
}

/// Whether this value is in the state's heap; true if there is none.
pub fn holds<T>(value: &T) -> bool {
    INSTALLED.get().is_none_or(|heap| (heap.holds)((&raw const *value).cast()))
}

/// Bytes that are kept from round to round: the same, in the state's heap.
pub fn move_bytes(bytes: Vec<u8>) -> Vec<u8> {
    match INSTALLED.get() {
        Some(heap) if !bytes.is_empty() && !(heap.holds)(bytes.as_ptr()) => {
            let _here = enter();
            bytes.as_slice().to_vec()
        }
        _ => bytes,
    }
}

/// The same of a text.
pub fn move_text(text: String) -> String {
    match INSTALLED.get() {
        Some(heap) if !text.is_empty() && !(heap.holds)(text.as_ptr()) => {
            let _here = enter();
            text.as_str().to_owned()
        }
        _ => text,
    }
}

/// While it is there, its thread allocates from the state's heap.
#[derive(Debug)]
pub struct InStateHeap {
    before: i32,
    of_this_thread: PhantomData<*const ()>,
}

/// From here on this thread allocates from the state's heap, until what is returned is dropped.
pub fn enter() -> InStateHeap {
    let before = INSTALLED.get().map_or(USUAL, |heap| (heap.switch)(heap.number));
    InStateHeap { before, of_this_thread: PhantomData }
}

impl Drop for InStateHeap {
    fn drop(&mut self) {
        if let Some(heap) = INSTALLED.get() {
            (heap.switch)(self.before);
        }
    }
}
