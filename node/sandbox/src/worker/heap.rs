//! The Wasm memory of the running message, shared by wasmtime, the fault handler and the System API
//! (docs/internals/metering.md).
//!
//! wasmtime is given host memory: [`Creator`] answers every instantiation with the heap that
//! [`HeapCell::enter`] put in place. The first access to a Wasm page beyond the first
//! [`READABLE_WASM_PAGES`] faults, and so does the first write to a page; [`HeapCell::fault`]
//! counts it, opens the page and has the access happen again. Past the cap on written pages, or
//! where the price of pages alone is more than the message may use, it declines: wasmtime turns the
//! fault into a trap, and [`HeapCell::refused`] says why. Bulk operations and the System API
//! announce what they read and write, because a fault inside the runtime could not become a trap.
//!
//! Both counts are charged when the System API is entered or left, when the message is about to be
//! paused, and at its end ([`HeapCell::take_uncharged`]). They are of what the message did: each
//! begins with nothing opened, whatever the kernel has mapped. The pages of a paused message are in
//! a file ([`HeapCell::spill`]) and protected again; a write to one faults once more and is not
//! counted.
//!
//! # Writes that the kernel notes
//!
//! Where it can ([`super::watch`]), the kernel notes writes to the pages that are readable between
//! messages. They are counted when the count is read: by `ic0.performance_counter`, near the end of
//! a slice or of a limit, and at the end of the message. Until then written pages may be hidden, at
//! most [`READABLE_PAGES`], and the message is charged less than it used. That changes no result:
//!
//! - Before the cap on pages, the price of pages alone, the end of a slice or another granule could
//!   depend on them, [`HeapCell::count_by_faults`] counts them, and the rest of the message is
//!   counted by faults.
//! - Until a call of the system charges them, the engine has more fuel than it would have had
//!   ([`HeapCell::owes`]). If the message reaches a point then at which it may be paused and fuel
//!   cannot be changed, or ends at its limit, it is repeated from its beginning, by faults alone
//!   ([`super::run`]). That takes more than a step of code without any call, or the end of all
//!   instructions in the first slice.
//!
//! # Continuing a composite query
//!
//! A callback of a composite query starts from memory that its query wrote and that is in no file.
//! If it traps, exactly that content must be restored: pages that were dirty before it are saved
//! when it first writes to them ([`Undo`]), within the same cap on dirty pages.
//!
//! # Threads
//!
//! A worker runs one message at a time on one thread, and the handler interrupts only that thread,
//! only in code that holds no borrow of this module's state: a fault comes from an access to the
//! heap, and nothing here accesses it except [`Undo`], in pages it made writable.

use std::{
    cell::{Cell, UnsafeCell},
    fs::File,
    io,
    ops::Range,
    ptr::NonNull,
    sync::Arc,
};

use pages::PAGE_BYTES;
use state::WASM_PAGE_BYTES;
use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

use super::{
    bits::Bits,
    dirty::{CapReached, STRETCHES_PER_PAGE, Tracker},
    mapping::{Mapping, READABLE_PAGES, READABLE_WASM_PAGES, WASM_PAGE_PAGES},
    watch::Watcher,
};
use crate::{
    MessageLimits,
    engine::{HEAP_GUARD_BYTES, HEAP_RESERVATION_BYTES},
    system_api::{DIRTY_PAGE_INSTRUCTIONS, TOUCHED_WASM_PAGE_INSTRUCTIONS},
};

/// Why an access of the canister's code to its heap was declined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessRefusal {
    /// The cap on dirty pages.
    Cap,
    /// Pages touched and written cost more than the message's instructions.
    Instructions,
}

/// Reasons for refusing a write to the heap.
#[derive(Debug)]
pub(crate) enum WriteRefusal {
    /// The cap on dirty pages.
    Cap,
    /// The kernel refused to change the protection.
    Kernel,
}

/// The heap of the message being run, and the tracker that outlives messages.
#[derive(Debug)]
pub(crate) struct HeapCell {
    mapping: UnsafeCell<Option<Mapping>>,
    tracker: UnsafeCell<Tracker>,
    /// Wasm pages that the message opened.
    touched: UnsafeCell<Tracker>,
    /// Instructions that were charged for pages of this message.
    charged: Cell<u64>,
    /// Limit of the message.
    instructions_max: Cell<u64>,
    undo: UnsafeCell<Option<Undo>>,
    refused: Cell<Option<AccessRefusal>>,
    kernel_refused: Cell<bool>,
    watcher: Option<Watcher>,
    /// The kernel refused to watch once, and is not asked again.
    is_watcher_off: Cell<bool>,
    /// Pages from the beginning in which the kernel notes the writes of this message.
    watched_pages: Cell<u64>,
    /// The kernel noted writes of the message from its beginning.
    was_watched: Cell<bool>,
    /// Pages that were written before the last call of the system may not be charged.
    owes: Cell<bool>,
}

impl HeapCell {
    /// Without a watcher all pages are counted by faults.
    pub(crate) fn new(watcher: Option<Watcher>) -> Self {
        Self {
            mapping: UnsafeCell::default(),
            tracker: UnsafeCell::new(Tracker::new(false)),
            touched: UnsafeCell::new(Tracker::touched()),
            charged: Cell::default(),
            instructions_max: Cell::default(),
            undo: UnsafeCell::default(),
            refused: Cell::default(),
            kernel_refused: Cell::default(),
            watcher,
            is_watcher_off: Cell::default(),
            watched_pages: Cell::default(),
            was_watched: Cell::default(),
            owes: Cell::default(),
        }
    }
}

// SAFETY: see "Threads" above: one thread uses a cell, the bounds are demanded by wasmtime for
// embedders that have more.
unsafe impl Send for HeapCell {}
// SAFETY: as above.
unsafe impl Sync for HeapCell {}

impl HeapCell {
    /// Puts `mapping` in place for a message within `limits`. With `kept`, the pages dirty already
    /// are remembered as they are. If `may_watch`, the kernel may note the message's writes.
    pub(crate) fn enter(
        &self,
        mut mapping: Mapping,
        limits: &MessageLimits,
        kept: Option<&[Range<u64>]>,
        may_watch: bool,
    ) -> io::Result<()> {
        let hidden_pages = (mapping.size_bytes() as u64 / PAGE_BYTES).min(READABLE_PAGES);
        let has_room = limits.heap_dirty_bytes / PAGE_BYTES > hidden_pages
            && limits.instructions > hidden_pages.saturating_mul(2 * DIRTY_PAGE_INSTRUCTIONS);
        let may_watch = may_watch && kept.is_none() && has_room;
        let watched = if may_watch { self.watch(&mut mapping) } else { None };
        self.watched_pages.set(watched.unwrap_or_default());
        self.was_watched.set(self.is_watched());
        self.owes.set(false);
        if watched.is_none() {
            mapping.unwatch()?;
        }
        let memory_pages = mapping.file_bytes() as u64 / PAGE_BYTES;
        let dirty_pages_max = limits.heap_dirty_bytes / PAGE_BYTES;
        self.with_tracker(|tracker| tracker.begin(memory_pages, dirty_pages_max));
        self.instructions_max.set(limits.instructions);
        let wasm_pages = memory_pages / WASM_PAGE_PAGES;
        self.with_touched(|touched| touched.begin(wasm_pages, wasm_pages));
        // SAFETY: no message runs, so there is no other reference to the cells.
        unsafe {
            *self.undo.get() = kept.map(|kept| Undo::new(memory_pages, kept));
            *self.mapping.get() = Some(mapping);
        }
        Ok(())
    }

    /// Has the kernel note writes to `mapping` from now on: the number of pages.
    fn watch(&self, mapping: &mut Mapping) -> Option<u64> {
        let watcher = self.watcher.as_ref().filter(|_| !self.is_watcher_off.get())?;
        if !mapping.can_discard() {
            return None;
        }
        let watched = mapping.watch(watcher);
        self.is_watcher_off.set(watched.is_err());
        watched.ok()
    }

    /// From now on the kernel is not asked to note writes.
    pub(crate) fn stop_watching(&self) {
        self.is_watcher_off.set(true);
    }

    /// Whether the kernel notes writes of the message.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched_pages.get() > 0
    }

    /// Instructions that the message may not have been charged for pages that the kernel noted.
    pub(crate) fn hidden_instructions_max(&self) -> u64 {
        self.watched_pages.get().saturating_mul(DIRTY_PAGE_INSTRUCTIONS)
    }

    /// Whether pages that were written before the last call of the system may not be charged.
    pub(crate) fn owes(&self) -> bool {
        self.owes.get()
    }

    /// The system was called, and charged for all pages that were written before or, if `owes`, for
    /// those that were counted.
    pub(crate) fn set_owes(&self, owes: bool) {
        self.owes.set(owes && self.was_watched.get());
    }

    /// The message is paused: nothing of it is uncounted or owed, and nothing will be. It is not
    /// repeated any more, as what it reported of its beginning counts.
    pub(crate) fn settle(&self) {
        debug_assert!(!self.is_watched() && !self.owes(), "pages of a paused message are hidden");
        self.was_watched.set(false);
    }

    /// Counts what the kernel noted. A refusal of the kernel is recorded: the worker ends for it.
    pub(crate) fn count_noted(&self) {
        if let Some(mapping) = self.mapping()
            && self.count_noted_in(mapping).is_err()
        {
            self.kernel_refused.set(true);
        }
    }

    fn count_noted_in(&self, mapping: &Mapping) -> io::Result<()> {
        let watched = self.watched_pages.get();
        let Some(watcher) = self.watcher.as_ref().filter(|_| watched > 0) else { return Ok(()) };
        let mut counted = Ok(());
        mapping.written(watcher, watched, |pages| {
            let marked = self.with_tracker(|tracker| tracker.mark(pages, |_| {}));
            if counted.is_ok() {
                counted = marked;
            }
        })?;
        // See `is_near_limit`.
        counted.map_err(|CapReached| io::Error::other("more pages were written than may be"))
    }

    /// Counts what the kernel noted, and the rest of the message by faults. A refusal of the kernel
    /// is recorded: the worker ends for it.
    pub(crate) fn count_by_faults(&self) {
        if let Some(mapping) = self.mapping()
            && self.count_by_faults_in(mapping).is_err()
        {
            self.kernel_refused.set(true);
        }
    }

    fn count_by_faults_in(&self, mapping: &Mapping) -> io::Result<()> {
        self.count_noted_in(mapping)?;
        let watched = self.watched_pages.replace(0);
        if watched == 0 {
            return Ok(());
        }
        mapping.unwatch()?;
        let mut page = 0;
        while page < watched {
            let start = page;
            while page < watched && self.with_tracker(|tracker| tracker.contains(page)) {
                page += 1;
            }
            if start < page {
                mapping.unprotect(&(start..page))?;
            } else {
                page += 1;
            }
        }
        Ok(())
    }

    /// Whether something may depend on pages that are not counted yet if `pages` more are written.
    fn is_near_limit(&self, pages: u64) -> bool {
        if !self.is_watched() {
            return false;
        }
        let hidden_pages = self.watched_pages.get();
        let price = self.price().saturating_add(self.hidden_instructions_max());
        price > self.instructions_max.get()
            || self.with_tracker(|tracker| {
                tracker.room() < pages.saturating_add(hidden_pages)
                    || tracker.stretches() + hidden_pages >= STRETCHES_PER_PAGE
            })
    }

    /// Takes the mapping back, with the pages written and what was saved of those dirty before.
    pub(crate) fn leave(&self) -> Option<(Mapping, Vec<Range<u64>>, Option<Undo>)> {
        let dirty = self.with_tracker(Tracker::take);
        let opened = self.with_touched(Tracker::take);
        self.charged.set(0);
        self.refused.set(None);
        self.kernel_refused.set(false);
        self.watched_pages.set(0);
        // A module without a heap, which may run next, enters none.
        self.was_watched.set(false);
        self.owes.set(false);
        // SAFETY: the message is over, so there is no other reference to the cells.
        unsafe {
            let mut mapping = (*self.mapping.get()).take()?;
            mapping.set_opened(&opened, &dirty);
            Some((mapping, dirty, (*self.undo.get()).take()))
        }
    }

    /// Why the message had to stop, if an access was declined.
    pub(crate) fn refused(&self) -> Option<AccessRefusal> {
        self.refused.get()
    }

    /// The kernel refused a change of protection: the worker must end.
    pub(crate) fn kernel_refused(&self) -> bool {
        self.kernel_refused.get()
    }

    /// Instructions for pages touched and written that are not charged yet.
    pub(crate) fn uncharged(&self) -> u64 {
        self.price().saturating_sub(self.charged.get())
    }

    /// Instructions for pages that were charged.
    pub(crate) fn charged(&self) -> u64 {
        self.charged.get()
    }

    /// Wasm pages that the message opened.
    pub(crate) fn opened_wasm_pages(&self) -> u64 {
        self.with_touched(|touched| touched.pages())
    }

    /// Instructions for pages touched and written.
    fn price(&self) -> u64 {
        let touched = self.with_touched(|touched| touched.pages());
        let written = self.with_tracker(|tracker| tracker.pages());
        touched
            .saturating_mul(TOUCHED_WASM_PAGE_INSTRUCTIONS)
            .saturating_add(written.saturating_mul(DIRTY_PAGE_INSTRUCTIONS))
    }

    /// Those of [`Self::uncharged`], which count as charged from now on.
    pub(crate) fn take_uncharged(&self) -> u64 {
        let uncharged = self.uncharged();
        self.charged.set(self.charged.get().saturating_add(uncharged));
        uncharged
    }

    /// Writes what the message wrote since the last pause to `file` and maps it from there.
    pub(crate) fn spill(&self, file: &File) -> io::Result<()> {
        let pages = self.with_tracker(Tracker::spill);
        // SAFETY: the message is paused: no slice of the heap is alive, and nothing runs in it.
        match unsafe { (*self.mapping.get()).as_mut() } {
            Some(mapping) => mapping.spill(&pages, file, true),
            None => Ok(()),
        }
    }

    /// Current size; 0 without a heap.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.mapping().map_or(0, |mapping| mapping.size_bytes() as u64)
    }

    /// The most it may grow to; 0 without a heap.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.mapping().map_or(0, |mapping| mapping.file_bytes() as u64)
    }

    /// The bytes of `range`, which must be checked to be below [`Self::size_bytes`]; empty
    /// otherwise, and if the kernel refuses, which ends the worker.
    pub(crate) fn read(&self, range: Range<u64>) -> &[u8] {
        match self.mapping() {
            Some(mapping)
                if range.start <= range.end && range.end <= mapping.size_bytes() as u64 =>
            {
                let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
                if !range.is_empty() && self.open_to_read(mapping, &pages).is_err() {
                    self.kernel_refused.set(true);
                    return &[];
                }
                let length = (range.end - range.start) as usize;
                // SAFETY: the range is accessible; System API functions are the only callers, they
                // run while no canister code does, and drop the slice before they write.
                unsafe {
                    let start = mapping.base().as_ptr().add(range.start as usize);
                    std::slice::from_raw_parts(start, length)
                }
            }
            _ => &[],
        }
    }

    /// Counts and unprotects the pages of `range` before they are written. A range that is out of
    /// bounds is let pass: its write will fail.
    pub(crate) fn will_write(&self, range: Range<u64>) -> Result<(), WriteRefusal> {
        let Some(mapping) = self.mapping() else { return Ok(()) };
        if range.is_empty() || range.end > mapping.size_bytes() as u64 {
            return Ok(());
        }
        let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
        if self.is_near_limit(pages.end - pages.start) && self.count_by_faults_in(mapping).is_err()
        {
            self.kernel_refused.set(true);
            return Err(WriteRefusal::Kernel);
        }
        let mut protection = Ok(());
        let marked = self.with_tracker(|tracker| {
            let mut open = |pages: Range<u64>| {
                if protection.is_ok() {
                    protection = self.open(mapping, &pages);
                }
            };
            tracker.open(pages.clone(), mapping.size_bytes() as u64 / PAGE_BYTES, &mut open)?;
            tracker.touch(pages, open);
            Ok(())
        });
        marked.map_err(|CapReached| {
            self.refused.set(Some(AccessRefusal::Cap));
            WriteRefusal::Cap
        })?;
        protection.map_err(|_| {
            self.kernel_refused.set(true);
            WriteRefusal::Kernel
        })
    }

    /// Writes `bytes` at `at`, which must be checked to fit; does nothing otherwise.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), WriteRefusal> {
        let end = at.saturating_add(bytes.len() as u64);
        if end > self.size_bytes() {
            return Ok(());
        }
        self.will_write(at..end)?;
        if let Some(mapping) = self.mapping() {
            // SAFETY: the range is accessible and now writable. `bytes` may come from stable memory
            // or the heap of no other message, never from this heap.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    bytes.as_ptr(),
                    mapping.base().as_ptr().add(at as usize),
                    bytes.len(),
                )
            };
        }
        Ok(())
    }

    /// Handles a fault at `address`, of a write if that is known: whether the access may be tried
    /// again. Runs in a signal handler: allocates nothing, takes no lock.
    pub(crate) fn fault(&self, address: usize, is_write: bool) -> bool {
        let Some(mapping) = self.mapping() else { return false };
        let Some(offset) = address
            .checked_sub(mapping.base().as_ptr() as usize)
            .filter(|offset| *offset < mapping.size_bytes())
        else {
            return false;
        };
        if self.is_near_limit(1) && self.count_by_faults_in(mapping).is_err() {
            self.kernel_refused.set(true);
            return false;
        }
        // Evaluated only where a page is counted: other faults depend on when the message was
        // paused.
        let is_too_dear = || {
            let is_too_dear = self.price() > self.instructions_max.get();
            if is_too_dear {
                self.refused.set(Some(AccessRefusal::Instructions));
            }
            is_too_dear
        };
        let page = offset as u64 / PAGE_BYTES;
        let memory_pages = mapping.size_bytes() as u64 / PAGE_BYTES;
        let wasm_page = page / WASM_PAGE_PAGES;
        if wasm_page >= READABLE_WASM_PAGES
            && self.with_touched(|touched| !touched.contains(wasm_page))
        {
            if is_too_dear() {
                return false;
            }
            if self.open_to_read(mapping, &(page..page + 1)).is_err() {
                self.kernel_refused.set(true);
                return false;
            }
            if !is_write {
                return true;
            }
        }
        let mut opened = Ok(());
        let mut open = |pages: Range<u64>| {
            if opened.is_ok() {
                opened = self.open(mapping, &pages);
            }
        };
        if self.with_tracker(|tracker| !tracker.contains(page)) && is_too_dear() {
            return false;
        }
        let counted = self.with_tracker(|tracker| {
            if tracker.is_spilled(page) {
                tracker.touch(page..page + 1, open);
                return Some(Ok(()));
            }
            if tracker.contains(page) {
                // The page is writable already: this fault has another cause.
                return None;
            }
            Some(tracker.open(page..page + 1, memory_pages, &mut open))
        });
        match counted {
            None => false,
            Some(Err(CapReached)) => {
                self.refused.set(Some(AccessRefusal::Cap));
                false
            }
            Some(Ok(())) => {
                if opened.is_err() {
                    self.kernel_refused.set(true);
                }
                opened.is_ok()
            }
        }
    }

    /// Counts the Wasm pages of `pages` that are not readable as touched and makes them readable.
    fn open_to_read(&self, mapping: &Mapping, pages: &Range<u64>) -> io::Result<()> {
        let start = (pages.start / WASM_PAGE_PAGES).max(READABLE_WASM_PAGES);
        let wasm_pages = start..pages.end.div_ceil(WASM_PAGE_PAGES);
        if wasm_pages.is_empty() {
            return Ok(());
        }
        let memory_wasm_pages = mapping.size_bytes() as u64 / WASM_PAGE_BYTES;
        let mut opened = Ok(());
        let counted = self.with_touched(|touched| {
            touched.open(wasm_pages, memory_wasm_pages, |fresh| {
                if opened.is_ok() {
                    opened = mapping.open(&fresh);
                }
            })
        });
        // All pages of a heap may be touched.
        counted.map_err(|CapReached| io::Error::other("a page beyond the heap"))?;
        opened
    }

    /// Makes pages writable, saving those that a kept execution dirtied.
    fn open(&self, mapping: &Mapping, pages: &Range<u64>) -> io::Result<()> {
        self.open_to_read(mapping, pages)?;
        let protected = pages.start.max(self.watched_pages.get())..pages.end;
        if !protected.is_empty() {
            mapping.unprotect(&protected)?;
        }
        // SAFETY: see "Threads": no other borrow of the cell is alive while this one is.
        if let Some(undo) = unsafe { (*self.undo.get()).as_mut() } {
            undo.save(mapping.base(), pages);
        }
        Ok(())
    }

    fn mapping(&self) -> Option<&Mapping> {
        // SAFETY: only `enter`, `leave`, `grow` and `spill` change the cell; the first two run
        // between messages, the others while no slice of the heap is alive.
        unsafe { (*self.mapping.get()).as_ref() }
    }

    fn with_tracker<R>(&self, act: impl FnOnce(&mut Tracker) -> R) -> R {
        // SAFETY: see "Threads"; the closures of this module do not call back into it.
        act(unsafe { &mut *self.tracker.get() })
    }

    fn with_touched<R>(&self, act: impl FnOnce(&mut Tracker) -> R) -> R {
        // SAFETY: as above.
        act(unsafe { &mut *self.touched.get() })
    }

    /// Grows to `bytes`, unless the file is not long enough. A refusal of the kernel is recorded:
    /// the worker ends for it.
    fn grow(&self, bytes: usize) -> io::Result<()> {
        // SAFETY: called by wasmtime from `memory.grow` or instantiation: no other borrow of the
        // cell is alive.
        match unsafe { (*self.mapping.get()).as_mut() } {
            Some(mapping) if (mapping.size_bytes()..=mapping.file_bytes()).contains(&bytes) => {
                mapping.set_size(bytes).inspect_err(|_| self.kernel_refused.set(true))
            }
            _ => Err(io::Error::other("no heap to grow")),
        }
    }
}

/// Contents of pages that were dirty before a callback of a composite query, saved as the callback
/// first writes to them.
#[derive(Debug)]
pub(crate) struct Undo {
    /// Pages that were dirty before.
    kept: Bits,
    /// Pages saved, and their contents one after the other.
    saved: Vec<u64>,
    bytes: Vec<u8>,
}

impl Undo {
    pub(crate) fn new(memory_pages: u64, kept: &[Range<u64>]) -> Self {
        let mut bits = Bits::new(memory_pages, false);
        kept.iter().cloned().flatten().for_each(|page| bits.set(page));
        let pages = kept.iter().map(|range| range.end - range.start).sum::<u64>() as usize;
        // All the room there can be need for: nothing is allocated in the handler. Untouched until
        // used.
        Self {
            kept: bits,
            saved: Vec::with_capacity(pages),
            bytes: Vec::with_capacity(pages * PAGE_BYTES as usize),
        }
    }

    pub(crate) fn save(&mut self, base: NonNull<u8>, pages: &Range<u64>) {
        for page in pages.clone() {
            if self.was_dirty(page) && self.saved.len() < self.saved.capacity() {
                // SAFETY: the page is accessible, and nothing writes to it meanwhile.
                let content = unsafe {
                    std::slice::from_raw_parts(
                        base.as_ptr().add((page * PAGE_BYTES) as usize),
                        PAGE_BYTES as usize,
                    )
                };
                self.saved.push(page);
                self.bytes.extend_from_slice(content);
            }
        }
    }

    /// Whether `page` was dirty before.
    pub(crate) fn was_dirty(&self, page: u64) -> bool {
        self.kept.is_set(page)
    }

    /// Puts the saved contents back. The pages are still writable.
    pub(crate) fn restore(&self, base: NonNull<u8>) {
        debug_assert_eq!(
            self.bytes.len(),
            self.saved.len() * PAGE_BYTES as usize,
            "bytes of {} pages",
            self.saved.len()
        );
        for (page, content) in self.saved.iter().zip(self.bytes.chunks_exact(PAGE_BYTES as usize)) {
            // SAFETY: the page was accessible and writable when it was saved and is still; the
            // message is over.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    content.as_ptr(),
                    base.as_ptr().add((page * PAGE_BYTES) as usize),
                    content.len(),
                )
            };
        }
    }
}

/// Gives wasmtime the heap that was put in place.
pub(crate) struct Creator(pub(crate) Arc<HeapCell>);

// SAFETY: the memory handed out is the reservation of the mapping in place, which lives until the
// message is over and the instance with it; it is inaccessible beyond its size for as far as the
// engine's configuration promises, which `new_memory` checks.
unsafe impl MemoryCreator for Creator {
    fn new_memory(
        &self,
        _ty: MemoryType,
        minimum: usize,
        _maximum: Option<usize>,
        reserved: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        if reserved.is_some_and(|reserved| reserved as u64 > HEAP_RESERVATION_BYTES)
            || guard as u64 > HEAP_GUARD_BYTES
        {
            return Err("the engine asks for more address space than a heap reserves".into());
        }
        let size = self.0.size_bytes() as usize;
        // A module may begin with more than its canister's heap has, at installation above all.
        self.0.grow(size.max(minimum)).map_err(|error| error.to_string())?;
        Ok(Box::new(Heap(self.0.clone())))
    }
}

struct Heap(Arc<HeapCell>);

// SAFETY: see `Creator`.
unsafe impl LinearMemory for Heap {
    fn byte_size(&self) -> usize {
        self.0.size_bytes() as usize
    }

    fn byte_capacity(&self) -> usize {
        self.0.mapping().map_or(0, Mapping::file_bytes)
    }

    fn grow_to(&mut self, bytes: usize) -> wasmtime::Result<()> {
        Ok(self.0.grow(bytes)?)
    }

    fn as_ptr(&self) -> *mut u8 {
        self.0.mapping().map_or(NonNull::dangling(), Mapping::base).as_ptr()
    }
}
