//! Stable memory of the running message: checked, counted access for the System API.
//!
//! Only the System API touches stable memory, in ranges it knows, so pages written and pages
//! accessed are counted exactly before anything moves and no page is ever protected. Both counts
//! have a cap; an access that would exceed one is refused and has no effect.
//!
//! The pages of a message that is paused are in a file ([`Stable::spill`]). While they form few
//! stretches they are mapped from there. Later ones are dropped, and read back when the message is
//! resumed: each mapped stretch costs the kernel two mappings.

use std::{fs::File, io, ops::Range};

use pages::PAGE_BYTES;

use super::{
    dirty::{CapReached, Tracker},
    heap::Undo,
    mapping::Mapping,
};

/// Stretches of dirty pages up to which what is spilled is mapped.
const SPILLED_STRETCHES_MAX: u64 = 1024;

/// The cap that an access would pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StableRefusal {
    /// Bytes written by one message.
    Dirty,
    /// Bytes accessed by one message.
    Accessed,
}

/// Trackers, which outlive messages.
#[derive(Debug)]
pub(crate) struct StableTrackers {
    dirty: Tracker,
    accessed: Tracker,
}

impl Default for StableTrackers {
    fn default() -> Self {
        Self { dirty: Tracker::new(true), accessed: Tracker::new(true) }
    }
}

/// The stable memory of one message.
#[derive(Debug)]
pub(crate) struct Stable {
    mapping: Mapping,
    trackers: StableTrackers,
    undo: Option<Undo>,
    kernel_refused: bool,
    /// Spilled pages that are not mapped while the message is paused, disjoint.
    dropped: Vec<Range<u64>>,
}

impl Stable {
    /// Prepares for a message; `kept` are the pages dirty already when it continues a composite
    /// query.
    pub(crate) fn enter(
        mapping: Mapping,
        mut trackers: StableTrackers,
        dirty_pages_max: u64,
        accessed_pages_max: u64,
        kept: Option<&[Range<u64>]>,
    ) -> Self {
        let memory_pages = mapping.file_bytes() as u64 / PAGE_BYTES;
        trackers.dirty.begin(memory_pages, dirty_pages_max);
        trackers.accessed.begin(memory_pages, accessed_pages_max);
        let undo = kept.map(|kept| Undo::new(memory_pages, kept));
        Self { undo, mapping, trackers, kernel_refused: false, dropped: Vec::new() }
    }

    /// The kernel refused a change of protection: the worker must end.
    pub(crate) fn kernel_refused(&self) -> bool {
        self.kernel_refused
    }

    /// Ends the message: the mapping, the pages written, what was saved of pages dirty before, and
    /// the trackers.
    pub(crate) fn leave(mut self) -> (Mapping, Vec<Range<u64>>, Option<Undo>, StableTrackers) {
        let dirty = self.trackers.dirty.take();
        self.trackers.accessed.take();
        (self.mapping, dirty, self.undo, self.trackers)
    }

    /// Bytes accessible to the canister now.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.mapping.size_bytes() as u64
    }

    /// Pages written so far.
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.trackers.dirty.pages()
    }

    /// Pages accessed so far, those written among them.
    pub(crate) fn accessed_pages(&self) -> u64 {
        self.trackers.accessed.pages()
    }

    /// Writes what the message wrote since the last pause to `file` and keeps none of it in memory.
    pub(crate) fn spill(&mut self, file: &File) -> io::Result<()> {
        let pages = self.trackers.dirty.spill();
        let is_mapped = self.trackers.dirty.stretches() <= SPILLED_STRETCHES_MAX;
        self.mapping.spill(&pages, file, is_mapped)?;
        if !is_mapped {
            self.dropped = pages;
        }
        Ok(())
    }

    /// Makes what [`Self::spill`] wrote accessible again.
    pub(crate) fn read_back(&mut self, file: &File) -> io::Result<()> {
        let dropped = std::mem::take(&mut self.dropped);
        self.mapping.read_back(&dropped, file)?;
        // They are copies in memory from now on, and must be dropped at the next pause.
        let dirty = &mut self.trackers.dirty;
        dropped.into_iter().for_each(|range| dirty.touch(range, |_| {}));
        Ok(())
    }

    /// Grows to `bytes`; false when the file behind does not reach so far, or the kernel refuses,
    /// which ends the worker.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let Some(bytes) =
            usize::try_from(bytes).ok().filter(|bytes| *bytes <= self.mapping.file_bytes())
        else {
            return false;
        };
        self.kernel_refused |= self.mapping.set_size(bytes).is_err();
        !self.kernel_refused
    }

    /// Counts the pages of `range` as accessed.
    fn access(&mut self, range: &Range<u64>) -> Result<(), StableRefusal> {
        let mapping = &self.mapping;
        let marked = self.trackers.accessed.mark(pages_of(range), |fresh| {
            if fresh.end - fresh.start > 1 {
                // Only makes it faster.
                let _ = mapping.expect(&fresh);
            }
        });
        marked.map_err(|CapReached| StableRefusal::Accessed)
    }

    /// The bytes of `range`, which must be checked to be below [`Self::size_bytes`]; empty
    /// otherwise.
    pub(crate) fn read(&mut self, range: Range<u64>) -> Result<&[u8], StableRefusal> {
        if range.is_empty() || range.end > self.size_bytes() {
            return Ok(&[]);
        }
        self.access(&range)?;
        // SAFETY: the range is accessible, and writing needs this value mutably.
        Ok(unsafe {
            std::slice::from_raw_parts(
                self.mapping.base().as_ptr().add(range.start as usize),
                (range.end - range.start) as usize,
            )
        })
    }

    /// Writes `bytes` at `at`, which must be checked to fit; does nothing otherwise.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StableRefusal> {
        let range = at..at.saturating_add(bytes.len() as u64);
        if range.is_empty() || range.end > self.size_bytes() {
            return Ok(());
        }
        self.access(&range)?;
        let (undo, base) = (&mut self.undo, self.mapping.base());
        let marked = self.trackers.dirty.mark(pages_of(&range), |fresh| {
            if let Some(undo) = undo {
                undo.save(base, &fresh);
            }
        });
        marked.map_err(|CapReached| StableRefusal::Dirty)?;
        self.trackers.dirty.touch(pages_of(&range), |_| {});
        // SAFETY: the range is accessible and writable; `bytes` is in the heap, never in this
        // mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.mapping.base().as_ptr().add(at as usize),
                bytes.len(),
            )
        };
        Ok(())
    }
}

fn pages_of(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)
}
