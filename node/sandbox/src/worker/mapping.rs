//! One canister memory in a worker's address space (docs/internals/canister-memory.md).
//!
//! A [`Mapping`] is a reservation into which files are mapped privately: the base file first, the
//! runs of the delta over it. When a message's changes are kept, [`Mapping::commit`] appends the
//! dirty pages to the segment file and maps that file over them; when they are not,
//! [`Mapping::discard`] drops the copies and the files show through again.
//!
//! Pages that every message writes may keep their private copies after a commit
//! ([`RETAINED_PAGES_MAX`]). Such a copy equals the content of the append file, as long as no other
//! worker appends to it; the pool reports when one did, and [`Mapping::settle_after_append`] maps
//! the file in their place.
//!
//! A message that is paused leaves its dirty pages in a file ([`Mapping::spill`]), each at its own
//! place, mapped from there. When it is over such a mapping is not used again.
//!
//! Holes of the base file are anonymous memory, the first [`HOLES_MAX`] of at least
//! [`HOLE_BYTES_MIN`] (docs/internals/metering.md). The content of a base file within one epoch
//! changes only below runs, so a hole stays one as long as the mapping is used.
//!
//! A heap is inaccessible from its size to the end of the reservation, so that code without bounds
//! checks faults. Between messages its first [`READABLE_WASM_PAGES`] are readable and the rest
//! inaccessible; [`super::heap`] opens it as a message touches it, and [`Mapping::close`] closes
//! what was opened. Where the kernel notes writes ([`Mapping::watch`]) the first Wasm pages are
//! writable too, in and between messages, so that a message of a small canister changes no
//! protection at all. Stable memory is read and written by the System API alone, which checks and
//! counts, so it is never protected.
//!
//! # Bounds
//!
//! The kernel allows a process 65,530 mappings. A mapping knows how many it may have split into
//! ([`Mapping::mappings`]), the worker adds them up and drops the memories used longest ago. One
//! memory may use [`MAPPINGS_MAX`]. One that used more over time is mapped afresh; in one that has
//! more runs at once, those beyond are copied into private pages instead of mapped, which costs
//! memory (at most the delta capacity) but works; such a memory is folded by the next checkpoint
//! and mapped afresh then.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs::File,
    io::{self, IoSlice},
    ops::Range,
    os::{fd::AsFd, unix::fs::FileExt},
    ptr::NonNull,
    sync::atomic::{AtomicBool, Ordering},
};

use pages::{MemoryId, PAGE_BYTES, Run, SegmentId};
use rustix::{
    fs::{SeekFrom, seek},
    io::{Errno, pwritev},
    mm::{
        Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
    },
};
use state::WASM_PAGE_BYTES;

use super::{
    protocol::{AppendOrder, MapOrder},
    watch::Watcher,
};
use crate::engine::{HEAP_GUARD_BYTES, HEAP_RESERVATION_BYTES};

/// Kernel mappings that the runs of one memory may take.
pub(crate) const MAPPINGS_MAX: usize = 12_000;

/// Pages of one memory whose private copies stay after a commit. Pages that every message writes
/// then cost neither a mapping nor a copy per message.
pub(crate) const RETAINED_PAGES_MAX: usize = 32;

/// Holes of a base file that are mapped as anonymous memory. Each takes two kernel mappings.
const HOLES_MAX: usize = 8;

/// Smallest hole that is, in bytes. Looking for holes ends after [`HOLES_SOUGHT_MAX`] of any size.
const HOLE_BYTES_MIN: usize = 64 << 10;

/// Holes of any size after which no more are looked for.
const HOLES_SOUGHT_MAX: usize = 64;

/// Where stable memory begins in the file of a pause: behind the heap, and behind what the message
/// answers ([`SPILLED_ANSWER_AT`]).
const SPILLED_STABLE_AT: u64 = 2 * SPILLED_ANSWER_AT;

/// Where the answer and the calls of a message begin in the file of a pause.
pub(super) const SPILLED_ANSWER_AT: u64 = 16 << 30;

const _: () = assert!(HEAP_RESERVATION_BYTES <= SPILLED_ANSWER_AT);

/// Length of the file of a pause if stable memory may grow to `stable_bytes`.
pub(crate) fn spilled_bytes(stable_bytes: u64) -> u64 {
    SPILLED_STABLE_AT.saturating_add(stable_bytes)
}

/// Set by a probe: memories grow no more, as if the kernel refused.
pub(super) static REFUSE_GROWTH: AtomicBool = AtomicBool::new(false);

/// Wasm pages from the beginning of a heap that a message may read without opening them: 4 MiB, the
/// stack, the data and the first objects of most canisters. To open a Wasm page costs a fault and
/// two system calls, which would be a fifth of what a short query takes.
pub(super) const READABLE_WASM_PAGES: u64 = 64;

/// The same in bytes.
const READABLE_BYTES: usize = (READABLE_WASM_PAGES * WASM_PAGE_BYTES) as usize;

/// The same in pages.
pub(crate) const READABLE_PAGES: u64 = READABLE_WASM_PAGES * WASM_PAGE_PAGES;

/// Pages of a Wasm page.
pub(super) const WASM_PAGE_PAGES: u64 = WASM_PAGE_BYTES / PAGE_BYTES;
const _: () = assert!(WASM_PAGE_PAGES * PAGE_BYTES == WASM_PAGE_BYTES, "whole pages");

/// Vectors of one write; the kernel's limit is 1024.
const VECTORS_MAX: usize = 512;

/// Which of a canister's memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Heap,
    /// Stable memory, which only the System API accesses and which is never write-protected.
    Stable,
}

#[derive(Debug)]
pub(crate) struct Mapping {
    id: MemoryId,
    kind: Kind,
    base: NonNull<u8>,
    reserved_bytes: usize,
    /// Mapped from files; the rest of the reservation is inaccessible.
    file_bytes: usize,
    /// Bytes accessible to the canister from the beginning, at most `file_bytes`.
    size_bytes: usize,
    /// Pages of a heap that the last message opened, disjoint.
    opened: Vec<Range<u64>>,
    /// Bytes of a heap from its beginning in which the kernel notes writes.
    watched_bytes: Cell<usize>,
    /// Of those: what has changed since they were watched.
    rewatch: Cell<RewatchRange>,
    append: Option<(SegmentId, File)>,
    /// Committed pages still held as private copies, and their page in the append file.
    retained: BTreeMap<u64, u64>,
    mappings: usize,
    /// Some pages are private copies of what a file holds: they cannot be dropped.
    copied: bool,
    /// An operation failed half-way; not to be used again.
    broken: bool,
    /// Dirty pages are in the file of a pause: the mapping is usable only by the message that is
    /// resumed.
    spilled: bool,
}

/// Bytes that have to be watched again.
#[derive(Clone, Copy, Debug, Default)]
struct RewatchRange {
    start: usize,
    end: usize,
    /// They were mapped or protected anew; otherwise their pages were dropped.
    is_remapped: bool,
}

impl RewatchRange {
    /// One range that includes both.
    fn and(self, range: Range<usize>, is_remapped: bool) -> Self {
        if self.start >= self.end {
            return Self { start: range.start, end: range.end, is_remapped };
        }
        Self {
            start: self.start.min(range.start),
            end: self.end.max(range.end),
            is_remapped: self.is_remapped || is_remapped,
        }
    }
}

// SAFETY: the reservation belongs to this value alone, as a `Vec`'s allocation does; nothing about
// it is tied to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Reserves address space and maps `base` of `base_bytes`. Nothing is accessible yet: see
    /// [`Self::set_size`].
    pub(crate) fn new(id: MemoryId, kind: Kind, base: &File, base_bytes: u64) -> io::Result<Self> {
        let base_bytes = usize::try_from(base_bytes).map_err(|_| too_large())?;
        let (reserved_bytes, file_bytes) = match kind {
            Kind::Heap => {
                let heap = HEAP_RESERVATION_BYTES as usize;
                (heap + HEAP_GUARD_BYTES as usize, base_bytes.min(heap))
            }
            Kind::Stable => (base_bytes.max(PAGE_BYTES as usize), base_bytes),
        };
        let mut mapping = Self {
            id,
            kind,
            base: reserve(reserved_bytes)?,
            reserved_bytes,
            file_bytes,
            size_bytes: 0,
            opened: Vec::new(),
            watched_bytes: Cell::new(0),
            rewatch: Cell::default(),
            append: None,
            retained: BTreeMap::new(),
            mappings: 4,
            copied: false,
            broken: false,
            spilled: false,
        };
        if file_bytes > 0 {
            mapping.map_file(base, 0, 0..file_bytes, ProtFlags::empty())?;
            mapping.map_holes(base)?;
        }
        Ok(mapping)
    }

    /// Maps anonymous memory over holes of the base file, where its file system knows them.
    fn map_holes(&mut self, base: &File) -> io::Result<()> {
        let (mut hole, mut mapped) = (0, 0);
        for _ in 0..HOLES_SOUGHT_MAX {
            let data = match seek(base, SeekFrom::Data(hole)) {
                Ok(data) => data,
                Err(Errno::NXIO) => self.file_bytes as u64,
                Err(_) => return Ok(()),
            };
            let pages = hole.div_ceil(PAGE_BYTES)..data.min(self.file_bytes as u64) / PAGE_BYTES;
            let bytes = pages.end.saturating_sub(pages.start) * PAGE_BYTES;
            if bytes >= HOLE_BYTES_MIN as u64 {
                self.map_zeros(self.page_bytes(&pages)?)?;
                self.mappings += 2;
                mapped += 1;
            }
            if mapped == HOLES_MAX || data >= self.file_bytes as u64 {
                return Ok(());
            }
            match seek(base, SeekFrom::Hole(data)) {
                Ok(next) => hole = next,
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Maps inaccessible anonymous memory over `range`.
    fn map_zeros(&self, range: Range<usize>) -> io::Result<()> {
        debug_assert!(range.end <= self.reserved_bytes);
        // SAFETY: the range is in the reservation of this value; replacing what is mapped there is
        // the purpose, and no reference into it exists.
        let mapped = unsafe {
            mmap_anonymous(
                self.base.as_ptr().add(range.start).cast(),
                range.len(),
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )
        };
        mapped?;
        self.note_rewatch(&range, true);
        // One written byte must not take 2 MiB. A kernel without such pages refuses the advice.
        let _ = self.advise(range, Advice::LinuxNoHugepage);
        Ok(())
    }

    /// Maps the parts of `order` over the base file. `bases` are their files. Must happen before
    /// any run is mapped: some runs may be copied if mappings are short, parts never are, as there
    /// are fewer of them (see `pages::MemoryLayout`).
    pub(crate) fn map_parts(&mut self, order: &MapOrder, bases: &[File]) -> io::Result<()> {
        self.broken = true;
        for part in &order.parts {
            let file = bases.get(part.base);
            let file =
                file.ok_or_else(|| io::Error::other("a part in a file that was not sent"))?;
            let end = part.start_page.checked_add(part.pages);
            let end = end.and_then(|page| page.checked_mul(PAGE_BYTES)).ok_or_else(too_large)?;
            let end = usize::try_from(end).map_err(|_| too_large())?.min(self.file_bytes);
            let start = usize::try_from(part.start_page * PAGE_BYTES).map_err(|_| too_large())?;
            if start < end {
                let at = part.start_page * PAGE_BYTES;
                self.map_file(file, at, start..end, ProtFlags::empty())?;
                self.restrict(start..end)?;
                self.mappings += 2;
            }
        }
        self.broken = false;
        Ok(())
    }

    /// Maps the runs of `order` over what is mapped. `segments` are the files of `order.segments`,
    /// in their order.
    pub(crate) fn map_runs(&mut self, order: &MapOrder, segments: &[File]) -> io::Result<()> {
        let broken = std::mem::replace(&mut self.broken, true);
        for run in &order.runs {
            let place = order
                .segments
                .iter()
                .position(|segment| *segment == run.segment)
                .and_then(|place| segments.get(place));
            let file =
                place.ok_or_else(|| io::Error::other("a run in a segment that was not sent"))?;
            let range = self.run_bytes(run)?;
            let mappable = self.mappings + 2 <= MAPPINGS_MAX;
            if !mappable && order.base.is_none() && !self.copied {
                // Mapped afresh it takes fewer mappings: this one stays broken.
                return Ok(());
            }
            if mappable {
                self.map_resting(file, run.offset_page * PAGE_BYTES, range.clone())?;
                self.mappings += 2;
            } else {
                self.protect(range.clone(), MprotectFlags::READ | MprotectFlags::WRITE)?;
                // SAFETY: the range is in this mapping, was just made writable, and no reference
                // into it exists.
                let bytes = unsafe {
                    std::slice::from_raw_parts_mut(self.base.as_ptr().add(range.start), range.len())
                };
                file.read_exact_at(bytes, run.offset_page * PAGE_BYTES)?;
                self.copied = true;
            }
            if !mappable || range.end > self.size_bytes {
                self.restrict(range)?;
            }
            self.forget_retained(run);
        }
        self.broken = broken;
        Ok(())
    }

    /// Gives a fresh mapping of a file (or a copy of it) the protection its place calls for.
    fn restrict(&self, range: Range<usize>) -> io::Result<()> {
        let accessible = range.start.min(self.size_bytes)..range.end.min(self.size_bytes);
        let beyond = range.start.max(self.size_bytes)..range.end.max(self.size_bytes);
        self.rest(accessible)?;
        self.protect(beyond, MprotectFlags::empty())
    }

    /// Makes exactly the first `bytes` accessible: of a heap those that are readable or opened, of
    /// stable memory all.
    pub(crate) fn set_size(&mut self, bytes: usize) -> io::Result<()> {
        if bytes > self.file_bytes {
            return Err(io::Error::other(format!(
                "a size of {bytes} bytes, the file of {:?} has {}",
                self.id, self.file_bytes
            )));
        }
        if bytes > self.size_bytes {
            if REFUSE_GROWTH.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.rest(self.size_bytes..bytes)?;
        } else {
            self.protect(bytes..self.size_bytes, MprotectFlags::empty())?;
        }
        self.size_bytes = bytes;
        self.watched_bytes.set(self.watched_bytes.get().min(bytes));
        Ok(())
    }

    /// Has the kernel note writes to the pages of a heap that are readable between messages, which
    /// become writable: the number of pages, of which none counts as written. Where nothing
    /// changed since the last message this is one system call.
    pub(crate) fn watch(&mut self, watcher: &Watcher) -> io::Result<u64> {
        let end = self.size_bytes.min(READABLE_BYTES);
        let watched = self.watched_bytes.get();
        let mut anew = self.rewatch.get();
        if watched < end {
            anew = anew.and(watched..end, true);
        }
        // A heap that was larger when they were recorded.
        let bytes = anew.start.min(end)..anew.end.min(end);
        if !bytes.is_empty() {
            if anew.is_remapped {
                watcher.watch(&self.addresses(&bytes))?;
                self.protect(bytes.clone(), MprotectFlags::READ | MprotectFlags::WRITE)?;
            } else {
                watcher.protect(&self.addresses(&bytes))?;
            }
        }
        self.watched_bytes.set(end);
        self.rewatch.set(RewatchRange::default());
        if end > 0 {
            watcher.protect_again(&self.addresses(&(0..end)))?;
        }
        Ok(end as u64 / PAGE_BYTES)
    }

    /// Passes the pages of the first `pages`, which are watched, that the kernel noted a write to,
    /// in order. Runs in a signal handler as well.
    pub(crate) fn written(
        &self,
        watcher: &Watcher,
        pages: u64,
        mut each: impl FnMut(Range<u64>),
    ) -> io::Result<()> {
        let base = self.base.as_ptr() as usize;
        let page = |address: usize| (address - base) as u64 / PAGE_BYTES;
        watcher.written(&self.addresses(&self.page_bytes(&(0..pages))?), |addresses| {
            each(page(addresses.start)..page(addresses.end));
        })
    }

    /// Makes a heap whose writes the kernel noted readable alone, so that the next write to a page
    /// faults. Runs in a signal handler as well.
    pub(crate) fn unwatch(&self) -> io::Result<()> {
        let watched = self.watched_bytes.replace(0);
        self.rewatch.set(RewatchRange::default());
        self.protect(0..watched, MprotectFlags::READ)
    }

    /// Whether what a message wrote can be dropped, so that it may be repeated.
    pub(crate) fn can_discard(&self) -> bool {
        !self.copied && !self.spilled && !self.broken
    }

    /// Records a change of `range` that watching it again undoes.
    fn note_rewatch(&self, range: &Range<usize>, is_remapped: bool) {
        let watched = self.watched_bytes.get();
        if range.start < watched && !range.is_empty() {
            let range = range.start..range.end.min(watched);
            self.rewatch.set(self.rewatch.get().and(range, is_remapped));
        }
    }

    fn addresses(&self, bytes: &Range<usize>) -> Range<usize> {
        let base = self.base.as_ptr() as usize;
        base + bytes.start..base + bytes.end
    }

    /// Writes the pages of `dirty` to the append file and maps it over them.
    pub(crate) fn commit(
        &mut self,
        dirty: &[Range<u64>],
        order: &AppendOrder,
    ) -> io::Result<Vec<Run>> {
        if dirty.is_empty() {
            return Ok(Vec::new());
        }
        let broken = std::mem::replace(&mut self.broken, true);
        let Some((segment, file)) =
            self.append.as_ref().filter(|(segment, _)| *segment == order.segment && !broken)
        else {
            return Err(io::Error::other("no append file"));
        };
        let runs = self.append_pages(dirty, *segment, file, order)?;
        if self.spilled {
            return Ok(runs);
        }
        let pages = runs.iter().map(|run| run.pages as usize).sum::<usize>();
        // Pages that are elsewhere now must not be mapped from their old place.
        for run in &runs {
            self.forget_retained(run);
        }
        if self.retained.len() + pages > RETAINED_PAGES_MAX {
            self.settle()?;
        }
        if pages <= RETAINED_PAGES_MAX {
            for run in &runs {
                self.retained.extend(
                    (0..run.pages).map(|page| (run.start_page + page, run.offset_page + page)),
                );
            }
        } else {
            self.map_appended(&runs)?;
        }
        self.broken = false;
        Ok(runs)
    }

    /// Writes the pages of `dirty` to `file`, one behind the other, over pages that no version
    /// needs if the order has enough of them.
    fn append_pages(
        &self,
        dirty: &[Range<u64>],
        segment: SegmentId,
        file: &File,
        order: &AppendOrder,
    ) -> io::Result<Vec<Run>> {
        let all_pages = dirty.iter().map(|range| range.end - range.start).sum::<u64>();
        if all_pages > order.pages_max {
            return Err(io::Error::other(format!(
                "{all_pages} dirty pages, room for {}",
                order.pages_max
            )));
        }
        let mut offset_page = match all_pages <= order.free_pages {
            true => order.free_page,
            false => order.offset_page,
        };
        let mut runs = Vec::with_capacity(dirty.len());
        for range in dirty {
            let pages = range.end - range.start;
            runs.push(Run { start_page: range.start, pages, segment, offset_page });
            offset_page += pages;
        }
        for part in runs.chunks(VECTORS_MAX) {
            let mut vectors = Vec::with_capacity(part.len());
            for run in part {
                let range = self.run_bytes(run)?;
                // SAFETY: the range is accessible (the message wrote to it) and nothing writes to
                // it while the slice lives.
                vectors.push(IoSlice::new(unsafe {
                    std::slice::from_raw_parts(self.base.as_ptr().add(range.start), range.len())
                }));
            }
            let offset = part.first().map_or(0, |run| run.offset_page) * PAGE_BYTES;
            write_all_vectored(file, &mut vectors, offset)?;
        }
        Ok(runs)
    }

    /// Writes `pages`, which changed since they were spilled last, to `file`, and maps them from
    /// there, protected again in a heap. Or, unless `is_mapped`, drops them: [`Self::read_back`]
    /// brings them back.
    pub(crate) fn spill(
        &mut self,
        pages: &[Range<u64>],
        file: &File,
        is_mapped: bool,
    ) -> io::Result<()> {
        (self.spilled, self.broken) = (true, true);
        for range in pages {
            let bytes = self.page_bytes(range)?;
            // SAFETY: the range is accessible (the message wrote to it) and nothing writes to it
            // while the slice lives.
            let content = unsafe {
                std::slice::from_raw_parts(self.base.as_ptr().add(bytes.start), bytes.len())
            };
            file.write_all_at(content, self.spilled_at(bytes.start))?;
        }
        // Written pages are open.
        let protection = match self.kind {
            Kind::Heap => ProtFlags::READ,
            Kind::Stable => ProtFlags::READ | ProtFlags::WRITE,
        };
        for range in pages {
            let bytes = self.page_bytes(range)?;
            if is_mapped {
                self.map_file(file, self.spilled_at(bytes.start), bytes, protection)?;
            } else {
                self.drop_copies(bytes)?;
            }
        }
        self.broken = false;
        Ok(())
    }

    /// Reads pages that were spilled and dropped, which must be writable.
    pub(crate) fn read_back(&mut self, pages: &[Range<u64>], file: &File) -> io::Result<()> {
        let broken = std::mem::replace(&mut self.broken, true);
        for range in pages {
            let bytes = self.page_bytes(range)?;
            // SAFETY: the range is in this mapping, is writable, and no reference into it exists.
            let content = unsafe {
                std::slice::from_raw_parts_mut(self.base.as_ptr().add(bytes.start), bytes.len())
            };
            file.read_exact_at(content, self.spilled_at(bytes.start))?;
        }
        self.broken = broken;
        Ok(())
    }

    /// Offset of a byte of this memory in the file of a pause.
    fn spilled_at(&self, byte: usize) -> u64 {
        match self.kind {
            Kind::Heap => byte as u64,
            Kind::Stable => SPILLED_STABLE_AT + byte as u64,
        }
    }

    /// Maps the append file over pages that were written to it. Pages whose mapping would exceed
    /// the allowance stay as they are, only protected again. Returns whether all were mapped.
    fn map_appended(&mut self, runs: &[Run]) -> io::Result<bool> {
        let Some((_, file)) = &self.append else { return Err(io::Error::other("no append file")) };
        let mappable = runs.len().min(MAPPINGS_MAX.saturating_sub(self.mappings) / 2);
        for (index, run) in runs.iter().enumerate() {
            let range = self.run_bytes(run)?;
            if index < mappable {
                self.map_resting(file, run.offset_page * PAGE_BYTES, range)?;
            } else {
                self.rest(range)?;
            }
        }
        self.mappings += 2 * mappable;
        let all = mappable == runs.len();
        self.copied |= !all;
        Ok(all)
    }

    /// Drops the private copies that commits left and maps the append file in their place.
    fn settle(&mut self) -> io::Result<()> {
        let Some((segment, _)) = self.append.as_ref().filter(|_| !self.retained.is_empty()) else {
            return Ok(());
        };
        let mut runs: Vec<Run> = Vec::new();
        for (page, offset_page) in std::mem::take(&mut self.retained) {
            match runs.last_mut() {
                Some(run)
                    if run.start_page + run.pages == page
                        && run.offset_page + run.pages == offset_page =>
                {
                    run.pages += 1;
                }
                _ => runs.push(Run { start_page: page, pages: 1, segment: *segment, offset_page }),
            }
        }
        self.map_appended(&runs).map(|_| ())
    }

    /// Another worker appended meanwhile: the content of this mapping must come from the files from
    /// now on.
    pub(crate) fn settle_after_append(&mut self) -> io::Result<()> {
        self.settle()?;
        self.broken |= self.copied;
        Ok(())
    }

    fn forget_retained(&mut self, run: &Run) {
        self.retained
            .retain(|page, _| page.checked_sub(run.start_page).is_none_or(|at| at >= run.pages));
    }

    /// Drops the private copies of `dirty` and shrinks to `size_bytes`, the size before the
    /// execution.
    pub(crate) fn discard(&mut self, dirty: &[Range<u64>], size_bytes: usize) -> io::Result<()> {
        if (self.copied || self.spilled) && !dirty.is_empty() {
            // The former content of a dirty page is in no mapping any more.
            self.broken = true;
            return Ok(());
        }
        let broken = std::mem::replace(&mut self.broken, true);
        for range in dirty {
            let bytes = self.page_bytes(range)?;
            self.drop_copies(bytes)?;
            // Data committed before this message is not in the mapped files, but in the append
            // file.
            let Some((segment, _)) = &self.append else { continue };
            let committed = self.retained.range(range.clone()).map(|(page, at)| Run {
                start_page: *page,
                pages: 1,
                segment: *segment,
                offset_page: *at,
            });
            let committed: Vec<Run> = committed.collect();
            if !self.map_appended(&committed)? {
                return Ok(());
            }
            self.retained.retain(|page, _| !range.contains(page));
        }
        self.set_size(size_bytes)?;
        self.broken = broken;
        Ok(())
    }

    /// Makes Wasm pages of a heap readable, of which none is writable.
    pub(crate) fn open(&self, wasm_pages: &Range<u64>) -> io::Result<()> {
        let range = self.wasm_page_bytes(wasm_pages)?;
        self.protect(range.clone(), MprotectFlags::READ)?;
        // Some kernels refuse it where holes are anonymous memory, which needs no reading.
        let _ = self.advise(range, Advice::WillNeed);
        Ok(())
    }

    /// Makes `pages`, which are readable, writable.
    pub(crate) fn unprotect(&self, pages: &Range<u64>) -> io::Result<()> {
        self.protect(self.page_bytes(pages)?, MprotectFlags::READ | MprotectFlags::WRITE)
    }

    /// Notes what the message opened that is over: Wasm pages, and `written` pages of those that
    /// are readable.
    pub(crate) fn set_opened(&mut self, wasm_pages: &[Range<u64>], written: &[Range<u64>]) {
        let pages = |wasm_pages: &Range<u64>| {
            wasm_pages.start * WASM_PAGE_PAGES..wasm_pages.end * WASM_PAGE_PAGES
        };
        self.opened = wasm_pages.iter().map(pages).collect();
        let readable = READABLE_PAGES;
        let watched = self.watched_bytes.get() as u64 / PAGE_BYTES;
        let written = written.iter().take_while(|range| range.start < readable);
        // In one call: the pages between are closed already, and the kernel joins the pieces.
        let bounds = written
            .filter(|range| range.end > watched)
            .map(|range| range.start.max(watched)..range.end.min(readable));
        self.opened.extend(bounds.reduce(|first, last| first.start..last.end));
    }

    /// Closes a heap again, keeping private copies as they are.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        for pages in std::mem::take(&mut self.opened) {
            let bytes = self.page_bytes(&pages)?;
            // A message that failed may have opened what it grew by.
            self.rest(bytes.start.min(self.size_bytes)..bytes.end.min(self.size_bytes))?;
        }
        Ok(())
    }

    /// The append file to use from now on.
    pub(crate) fn set_append(&mut self, segment: SegmentId, file: File) -> io::Result<()> {
        // Remaining copies are in the file that is about to be closed.
        self.settle()?;
        self.append = Some((segment, file));
        Ok(())
    }

    /// The append file for the `dirty` pages of a message that was paused: the one of its beginning
    /// may be sealed.
    pub(crate) fn replace_append(
        &mut self,
        segment: SegmentId,
        file: File,
        dirty: &[Range<u64>],
    ) -> io::Result<()> {
        // Of the pages that the message wrote, the file that is closed holds the old content.
        self.retained.retain(|page, _| !dirty.iter().any(|range| range.contains(page)));
        self.set_append(segment, file)
    }

    /// Whether the append file of `segment` is open here.
    pub(crate) fn has_append(&self, segment: SegmentId) -> bool {
        self.append.as_ref().is_some_and(|(have, _)| *have == segment)
    }

    /// Address of the first byte of the reservation.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes accessible from the beginning.
    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The most it may grow to.
    pub(crate) fn file_bytes(&self) -> usize {
        self.file_bytes
    }

    /// Kernel mappings it may have split into.
    pub(crate) fn mappings(&self) -> usize {
        self.mappings
    }

    /// Whether it must not be used again.
    pub(crate) fn broken(&self) -> bool {
        self.broken
    }

    pub(crate) fn id(&self) -> MemoryId {
        self.id
    }

    /// Gives what is accessible the protection it has while no message has opened it.
    fn rest(&self, range: Range<usize>) -> io::Result<()> {
        match self.kind {
            Kind::Heap => {
                let end = range.end.min(READABLE_BYTES);
                self.protect(range.start.min(end)..end, MprotectFlags::READ)?;
                self.protect(range.start.max(end)..range.end, MprotectFlags::empty())
            }
            Kind::Stable => self.protect(range, MprotectFlags::READ | MprotectFlags::WRITE),
        }
    }

    /// Maps `file` over `range`, which is accessible, with the protection of an idle memory.
    fn map_resting(&self, file: &File, offset: u64, range: Range<usize>) -> io::Result<()> {
        let protection = match self.kind {
            Kind::Heap if range.end <= READABLE_BYTES => ProtFlags::READ,
            Kind::Heap => ProtFlags::empty(),
            Kind::Stable => ProtFlags::READ | ProtFlags::WRITE,
        };
        self.map_file(file, offset, range.clone(), protection)?;
        match range.start < READABLE_BYTES && READABLE_BYTES < range.end {
            true => self.rest(range),
            false => Ok(()),
        }
    }

    fn run_bytes(&self, run: &Run) -> io::Result<Range<usize>> {
        let end = run.start_page.checked_add(run.pages).ok_or_else(too_large)?;
        self.page_bytes(&(run.start_page..end))
    }

    fn wasm_page_bytes(&self, pages: &Range<u64>) -> io::Result<Range<usize>> {
        let page = |wasm_page: u64| wasm_page.checked_mul(WASM_PAGE_PAGES).ok_or_else(too_large);
        self.page_bytes(&(page(pages.start)?..page(pages.end)?))
    }

    fn page_bytes(&self, pages: &Range<u64>) -> io::Result<Range<usize>> {
        let bytes = |page: u64| {
            page.checked_mul(PAGE_BYTES)
                .and_then(|bytes| usize::try_from(bytes).ok())
                .filter(|bytes| *bytes <= self.file_bytes)
        };
        match (bytes(pages.start), bytes(pages.end)) {
            (Some(start), Some(end)) if start <= end => Ok(start..end),
            _ => Err(too_large()),
        }
    }

    /// Maps `file` privately over `range`.
    fn map_file(
        &self,
        file: &File,
        offset: u64,
        range: Range<usize>,
        protection: ProtFlags,
    ) -> io::Result<()> {
        debug_assert!(range.end <= self.reserved_bytes);
        // SAFETY: the range is in the reservation of this value; replacing what is mapped there is
        // the purpose, and no reference into it exists.
        let mapped = unsafe {
            let address = self.base.as_ptr().add(range.start).cast();
            mmap(
                address,
                range.len(),
                protection,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
                file.as_fd(),
                offset,
            )
        };
        mapped?;
        self.note_rewatch(&range, true);
        // A fault reads one page, not what the machine is set to read around it: see
        // `Self::expect`.
        self.advise(range, Advice::Random)
    }

    fn protect(&self, range: Range<usize>, flags: MprotectFlags) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        debug_assert!(range.end <= self.reserved_bytes);
        self.note_rewatch(&range, true);
        // SAFETY: the range is in the reservation of this value; no Rust reference into it exists
        // while protections change.
        unsafe {
            mprotect(self.base.as_ptr().add(range.start).cast(), range.len(), flags)
                .map_err(Into::into)
        }
    }

    /// Has pages read from their files that are accessed next: in one piece, and no others.
    pub(crate) fn expect(&self, pages: &Range<u64>) -> io::Result<()> {
        self.advise(self.page_bytes(pages)?, Advice::WillNeed)
    }

    fn drop_copies(&self, range: Range<usize>) -> io::Result<()> {
        self.note_rewatch(&range, false);
        // Of what is mapped from files, these show through again.
        self.advise(range, Advice::LinuxDontNeed)
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> io::Result<()> {
        debug_assert!(range.end <= self.reserved_bytes);
        // SAFETY: the range is in the reservation of this value; only `LinuxDontNeed` changes what
        // is there, where no reference into it exists.
        unsafe {
            madvise(self.base.as_ptr().add(range.start).cast(), range.len(), advice)
                .map_err(Into::into)
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the reservation is this value's own and nothing refers to it any more. Failing
        // leaves it mapped, which is harmless.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.reserved_bytes) };
    }
}

/// Address space that is inaccessible and takes no memory.
pub(super) fn reserve(bytes: usize) -> io::Result<NonNull<u8>> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choosing.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags)? };
    NonNull::new(start.cast::<u8>()).ok_or_else(|| io::Error::other("a mapping at address zero"))
}

/// Writes every byte of `vectors` at `offset`.
fn write_all_vectored(file: &File, vectors: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
    let mut vectors = vectors;
    while !vectors.is_empty() {
        match pwritev(file, vectors, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut vectors, written);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn too_large() -> io::Error {
    io::Error::other("pages beyond the memory's file")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Pages of `file` in the kernel's cache.
    fn cached_pages(file: &File, bytes: usize) -> usize {
        let mut residence = vec![0_u8; bytes / PAGE_BYTES as usize];
        // SAFETY: a fresh mapping of the kernel's choosing, which ends here; mincore writes a byte
        // for each of its pages.
        unsafe {
            let flags = MapFlags::SHARED;
            let null = std::ptr::null_mut();
            let at = mmap(null, bytes, ProtFlags::READ, flags, file.as_fd(), 0).unwrap();
            assert_eq!(libc::mincore(at, bytes, residence.as_mut_ptr()), 0);
            munmap(at, bytes).unwrap();
        }
        residence.iter().filter(|page| **page & 1 == 1).count()
    }

    /// The first byte of each page.
    fn first_bytes(mapping: &Mapping) -> Vec<u8> {
        let pages = mapping.size_bytes() / PAGE_BYTES as usize;
        // SAFETY: stable memory is readable up to its size.
        (0..pages)
            .map(|page| unsafe { *mapping.base().as_ptr().add(page * PAGE_BYTES as usize) })
            .collect()
    }

    #[test]
    fn reading_and_writing_holes_takes_no_page_cache_and_a_discard_restores_zeros() {
        const PAGES: usize = 1024;
        let bytes = PAGES * PAGE_BYTES as usize;
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes as u64).unwrap();
        for page in [100, 101, 700] {
            file.write_all_at(&[7], page * PAGE_BYTES).unwrap();
        }
        let before = cached_pages(&file, bytes);
        let mut mapping = Mapping::new(MemoryId(1), Kind::Stable, &file, bytes as u64).unwrap();
        mapping.set_size(bytes).unwrap();
        let expected: Vec<u8> =
            (0..PAGES).map(|page| if [100, 101, 700].contains(&page) { 7 } else { 0 }).collect();
        assert_eq!(first_bytes(&mapping), expected);

        for page in [99, 100, 300] {
            // SAFETY: stable memory is writable up to its size.
            unsafe { *mapping.base().as_ptr().add(page * PAGE_BYTES as usize) = 9 };
        }
        let changed: Vec<u8> = (0..PAGES)
            .map(|page| if [99, 100, 300].contains(&page) { 9 } else { expected[page] })
            .collect();
        assert_eq!(first_bytes(&mapping), changed);
        mapping.discard(&[99..101, 300..301], bytes).unwrap();
        assert_eq!(first_bytes(&mapping), expected);
        assert!(!mapping.broken());
        // A block of the file system may be larger than a page.
        assert!(cached_pages(&file, bytes) <= before + 16, "holes were read into the cache");
    }
}
