//! Stable memory, and the growth of both memories.

use std::ops::Range;

use state::WASM_PAGE_BYTES;

use super::{DIRTY_PAGE_INSTRUCTIONS, Failure, Host, STABLE_PAGE_INSTRUCTIONS};
use crate::worker::{Stable, StableRefusal};

/// Address range of 32-bit functions.
pub(super) const ADDRESS32_BYTES: u64 = 1 << 32;

/// Return value of a function that grows memory when it cannot: -1 in the type of its result.
const CANNOT_GROW: u64 = u64::MAX;

/// Instructions for the pages of stable memory that a message accessed and wrote so far.
fn pages_price(stable: &Stable) -> u64 {
    let accessed = stable.accessed_pages().saturating_mul(STABLE_PAGE_INSTRUCTIONS);
    accessed.saturating_add(stable.dirty_pages().saturating_mul(DIRTY_PAGE_INSTRUCTIONS))
}

impl Host {
    /// Traps when stable memory is larger than the 32-bit functions can address.
    pub(super) fn stable_in_32_bits(&self) -> Result<(), Failure> {
        let bytes = self.stable().size_bytes();
        let function = self.function;
        if bytes > ADDRESS32_BYTES {
            return Err(Failure::trapped(&format!(
                "ic0.{function}: the stable memory of {bytes} bytes is beyond the \
                 {ADDRESS32_BYTES} bytes of this function, use ic0.{}",
                function.replace("stable", "stable64")
            )));
        }
        Ok(())
    }

    pub(super) fn stable_size(&self) -> u64 {
        self.stable().size_bytes() / WASM_PAGE_BYTES
    }

    /// Grows to at most `limit_bytes` in all.
    pub(super) fn stable_grow(&mut self, pages: u64, limit_bytes: u64) -> u64 {
        let before = self.stable().size_bytes();
        let limit_bytes = limit_bytes.min(self.limits.stable_max_bytes);
        let more = pages.checked_mul(WASM_PAGE_BYTES).filter(|more| *more <= self.growable_bytes);
        let after =
            more.and_then(|more| before.checked_add(more)).filter(|after| *after <= limit_bytes);
        match after {
            Some(after) if self.stable().grow(after) => {
                self.growable_bytes -= after - before;
                before / WASM_PAGE_BYTES
            }
            _ => CANNOT_GROW,
        }
    }

    fn stable_range(&self, offset: u64, size: u64) -> Result<Range<u64>, Failure> {
        let memory_bytes = self.stable().size_bytes();
        match offset.checked_add(size).filter(|end| *end <= memory_bytes) {
            Some(end) => Ok(offset..end),
            None => Err(Failure::trapped(&format!(
                "stable memory out of bounds (ic0.{}: {size} bytes at {offset}, the stable memory \
                 has {memory_bytes} bytes)",
                self.function
            ))),
        }
    }

    fn stable_refused(&self, refused: StableRefusal) -> Failure {
        match refused {
            StableRefusal::Dirty => Failure::memory_access(
                "bytes written to pages of stable memory",
                self.limits.stable_dirty_bytes,
            ),
            StableRefusal::Accessed => Failure::memory_access(
                "bytes in accessed pages of stable memory",
                self.limits.stable_accessed_bytes,
            ),
        }
    }

    pub(super) fn stable_write(&mut self, offset: u64, src: u64, size: u64) -> Result<(), Failure> {
        self.stable_range(offset, size)?;
        let range = self.heap_range(src, size)?;
        let mut stable = self.stable();
        let before = pages_price(&stable);
        let written = stable.write(offset, self.heap.read(range));
        let price = pages_price(&stable) - before;
        drop(stable);
        written.map_err(|refused| self.stable_refused(refused))?;
        self.charge(price)
    }

    pub(super) fn stable_read(&mut self, dst: u64, offset: u64, size: u64) -> Result<(), Failure> {
        let from = self.stable_range(offset, size)?;
        self.heap_range(dst, size)?;
        let heap = self.heap.clone();
        let mut stable = self.stable();
        let before = pages_price(&stable);
        let read = stable.read(from).map(|bytes| heap.write(dst, bytes));
        let price = pages_price(&stable) - before;
        drop(stable);
        match read {
            Ok(written) => written.map_err(|refused| self.write_refused(refused))?,
            Err(refused) => return Err(self.stable_refused(refused)),
        }
        self.charge(price)
    }

    /// Whether the heap may grow from `before` to `after` bytes. A condition that must end the
    /// message is an error.
    pub(crate) fn heap_may_grow(&mut self, before: u64, after: u64) -> Result<bool, Failure> {
        if let Some(limit) = self
            .context
            .wasm_memory_limit
            .filter(|limit| after > *limit && self.enforce_wasm_memory_limit)
        {
            return Err(Failure::wasm_memory_limit(after, limit));
        }
        self.growth_granted = 0;
        let more = after.saturating_sub(before);
        if after > self.heap_bytes_max || more > self.growable_bytes {
            return Ok(false);
        }
        self.growable_bytes -= more;
        self.growth_granted = more;
        Ok(true)
    }

    /// The heap may not grow from `before` to `after` bytes at the start of its module: names the
    /// limit that [`Self::heap_may_grow`] met. The text is part of the replicated state.
    pub(crate) fn heap_cannot_begin(&self, before: u64, after: u64) -> Failure {
        let (limit, growable) = (self.heap_bytes_max, self.growable_bytes);
        let met = if after > limit {
            format!("the limit is {limit} bytes")
        } else {
            let more = after.saturating_sub(before);
            format!(
                "which is {more} bytes more than it has, and growable_bytes, the free part of the \
                 subnet's memory and of its memory allocation, is {growable} bytes"
            )
        };
        let what = format!("its module begins with {after} bytes of Wasm memory, {met}");
        Failure::out_of_memory(&what)
    }

    /// The engine refused the growth that was just granted.
    pub(crate) fn heap_did_not_grow(&mut self) {
        self.growable_bytes += std::mem::take(&mut self.growth_granted);
    }
}
