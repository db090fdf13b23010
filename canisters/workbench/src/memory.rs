//! Bulk memory: fill, read back, grow; once for stable memory, once for the heap.
//!
//! `*_fill` dirties exactly the pages of its range (plus a 64 KiB scratch buffer on the heap in the
//! stable case). `*_read_sum` returns the wrapping sum of the bytes in its range, so `len` bytes of
//! value `b` sum to `len * b`. Each read exists as a query and, with the suffix `_update`, as an
//! update.

use ic_cdk::{query, update};
use std::cell::RefCell;

const CHUNK_BYTES: usize = 65_536;
/// Pages of Wasm memory per MiB.
const PAGES_PER_MIB: u64 = 16;

thread_local! {
    /// Scratch for stable memory: one Wasm page, allocated at the first use.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The bulk heap region, see [`Region`].
    static REGION: RefCell<Region> = const { RefCell::new(Region { segments: Vec::new() }) };
}

/// The bulk heap region: grown with `memory.grow` and never moved, so growing dirties nothing. A
/// new segment starts wherever memory ended at that time; addresses inside the region are counted
/// through the segments in order.
struct Region {
    segments: Vec<&'static mut [u8]>,
}

impl Region {
    fn len(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len() as u64).sum()
    }

    /// Adds `pages` Wasm pages at the end of the region; traps when the engine refuses.
    fn grow(&mut self, pages: u64) {
        if pages == 0 {
            return;
        }
        self.segments.push(grow_memory(pages));
    }

    fn reserve(&mut self, len: u64) {
        self.grow(len.saturating_sub(self.len()).div_ceil(CHUNK_BYTES as u64));
    }

    /// Calls `f` on every slice of `offset..offset + len`, in order.
    fn each(&mut self, offset: u64, len: u64, mut f: impl FnMut(&mut [u8])) {
        let end = offset.checked_add(len).expect("the range overflows");
        assert!(end <= self.len(), "the range ends at {end}, the bulk heap region at {}", self.len());
        let mut start = 0;
        for segment in &mut self.segments {
            let stop = start + segment.len() as u64;
            let (from, to) = (offset.max(start), end.min(stop));
            if from < to {
                f(&mut segment[(from - start) as usize..(to - start) as usize]);
            }
            start = stop;
        }
    }
}

#[cfg(target_family = "wasm")]
fn grow_memory(pages: u64) -> &'static mut [u8] {
    let first = core::arch::wasm32::memory_grow(0, pages as usize);
    if first == usize::MAX {
        ic_cdk::trap(format!("memory.grow refused {pages} pages"));
    }
    // SAFETY: memory.grow returned fresh, zeroed pages at the end of memory; the allocator does not
    // know them and gives them to no other user.
    unsafe { core::slice::from_raw_parts_mut((first * CHUNK_BYTES) as *mut u8, pages as usize * CHUNK_BYTES) }
}

#[cfg(not(target_family = "wasm"))]
fn grow_memory(pages: u64) -> &'static mut [u8] {
    vec![0; pages as usize * CHUNK_BYTES].leak()
}

/// Sums bytes eight at a time: even and odd bytes are added in 16-bit lanes, which hold 128
/// additions of 510.
fn sum(bytes: &[u8]) -> u64 {
    const LANES: u64 = 0x00FF_00FF_00FF_00FF;
    let mut total = 0u64;
    for block in bytes.chunks(8 * 128) {
        let (words, rest) = block.as_chunks::<8>();
        let mut lanes = 0u64;
        for word in words {
            let word = u64::from_le_bytes(*word);
            lanes += (word & LANES) + ((word >> 8) & LANES);
        }
        total = total.wrapping_add((0..4).map(|lane| (lanes >> (16 * lane)) & 0xFFFF).sum());
        total = total.wrapping_add(rest.iter().map(|&byte| u64::from(byte)).sum());
    }
    total
}

/// Calls `f` with the offset and the scratch slice of every chunk of the range.
fn stable_chunks(offset: u64, len: u64, mut f: impl FnMut(u64, &mut [u8])) {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(CHUNK_BYTES, 0);
        let mut done = 0;
        while done < len {
            let step = (len - done).min(CHUNK_BYTES as u64);
            f(offset + done, &mut scratch[..step as usize]);
            done += step;
        }
    });
}

fn stable_sum(offset: u64, len: u64) -> u64 {
    let mut total = 0u64;
    stable_chunks(offset, len, |at, chunk| {
        ic_cdk::api::stable_read(at, chunk);
        total = total.wrapping_add(sum(chunk));
    });
    total
}

fn heap_sum(offset: u64, len: u64) -> u64 {
    let mut total = 0u64;
    REGION.with_borrow_mut(|region| {
        region.each(offset, len, |slice| total = total.wrapping_add(sum(slice)));
    });
    total
}

/// Writes `byte` to `offset..offset + len` of stable memory, which must have been grown before.
#[update]
fn stable_fill(offset: u64, len: u64, byte: u8) {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        scratch.resize(CHUNK_BYTES, byte);
    });
    stable_chunks(offset, len, |at, chunk| ic_cdk::api::stable_write(at, chunk));
}

#[query]
fn stable_read_sum(offset: u64, len: u64) -> u64 {
    stable_sum(offset, len)
}

#[update]
fn stable_read_sum_update(offset: u64, len: u64) -> u64 {
    stable_sum(offset, len)
}

/// Grows stable memory by 64 KiB pages; returns the old size in pages, or 2^64 - 1 when refused.
#[update]
fn stable_grow(pages: u64) -> u64 {
    ic_cdk::api::stable_grow(pages)
}

/// Stable memory in 64 KiB pages.
#[query]
fn stable_size() -> u64 {
    ic_cdk::api::stable_size()
}

/// Writes `byte` to the first `len` bytes of the bulk heap region, which grows as needed.
#[update]
fn heap_fill(len: u64, byte: u8) {
    heap_fill_at(0, len, byte);
}

/// The same for `offset..offset + len`.
#[update]
fn heap_fill_at(offset: u64, len: u64, byte: u8) {
    REGION.with_borrow_mut(|region| {
        region.reserve(offset.checked_add(len).expect("the range overflows"));
        region.each(offset, len, |slice| slice.fill(byte));
    });
}

/// The sum of a range of the bulk heap region, which must exist.
#[query]
fn heap_read_sum(offset: u64, len: u64) -> u64 {
    heap_sum(offset, len)
}

#[update]
fn heap_read_sum_update(offset: u64, len: u64) -> u64 {
    heap_sum(offset, len)
}

/// Grows the bulk heap region without touching it; returns the Wasm memory's size in bytes
/// afterwards.
#[update]
fn grow_heap(mib: u64) -> u64 {
    REGION.with_borrow_mut(|region| region.grow(mib * PAGES_PER_MIB));
    heap_size()
}

/// The Wasm memory's size in bytes, everything included.
#[query]
fn heap_size() -> u64 {
    #[cfg(target_family = "wasm")]
    return core::arch::wasm32::memory_size(0) as u64 * CHUNK_BYTES as u64;
    #[cfg(not(target_family = "wasm"))]
    return REGION.with_borrow(Region::len);
}
