//! The allocator's figures as workers tell them.

use sandbox::HeapFigures;

/// Reads the figures, after handing back what is freed if `trim`.
pub(crate) fn heap(trim: bool) -> HeapFigures {
    let heap = memory::allocator::heap(trim);
    HeapFigures {
        live_bytes: heap.live_bytes,
        resident_bytes: heap.resident_bytes,
        returned_bytes: heap.returned_bytes,
    }
}
