//! Canister memory on disk: page index, delta log, checkpoints, recovery.
//!
//! A memory (the heap or the stable memory of one canister) is never held in this process. It is in
//! files that workers map; this process only holds the index of the pages that changed since they
//! were last folded into place.
//!
//! # Files
//!
//! One directory, two kinds of files:
//!
//! - `<id>.base`: sparse and as long as the memory may ever grow, from creation on. Page `n` of the
//!   memory is at offset `n * 4096`, so base pages need no index and growth maps nothing new.
//!   `<id>.base1` and so on: further base files of a memory that was copied ([`BaseRun`]).
//! - `<id>.<segment>`: delta. A worker appends the pages that a message dirtied; [`Run`]s say which
//!   pages of the memory they are.
//!
//! # The life of a page
//!
//! 1. [`PageStore::reserve`] hands out an [`AppendTarget`]: a writable descriptor of the open
//!    segment and the range that may be written. One at a time per memory.
//! 2. The worker writes dirty pages there and returns runs. They come from an untrusted process, so
//!    [`PageStore::commit`] checks every one of them, then makes them the newest version. Nothing
//!    is synced: the block log, not this crate, makes a message durable.
//! 3. [`PageStore::begin_checkpoint`] seals every open segment and hands out the changed indexes.
//!    [`CheckpointTicket::sync`] makes the files they name durable, the caller then makes the
//!    indexes durable in its own store, and [`PageStore::finish_checkpoint`] deletes the files that
//!    no durable index names any more.
//! 4. [`PageStore::fold`] copies sealed pages into the base file, in bounded steps, syncs it, and
//!    takes the runs out of the index. The next checkpoint no longer names them, and after it the
//!    segment is deleted.
//!
//! # Why folding in place is safe
//!
//! A base page is overwritten only while no reader and no possible restart reads it:
//!
//! - *Restart*: only segments that the durable index names are folded, so after a crash in the
//!   middle of the copy the durable index still shadows the half-written base page with the intact
//!   run.
//! - *Readers*: a version at least as new as the seal shadows the page with that run or a newer
//!   one. An older version may read the base page itself, so the fold skips a segment while a
//!   layout of a version older than its seal is alive ([`MemoryLayout::pin`]). When folding cannot
//!   wait, [`PageStore::fold_over_readers`] cuts such readers off instead: it marks their version,
//!   then overwrites. A reader checks the mark after reading ([`MemoryLayout::is_cut_off`]) and
//!   discards what it read if it is set. Folding always waits for readers that could not notice
//!   ([`HeldLayout`]).
//!
//! A pin is for *reading*. A cache of mappings need not, and should not, keep the layout: within
//! one epoch, updating the cached mapping by the difference of the two run lists is enough. With
//! another epoch the memory is mapped afresh: pages may be in another base file, and the pages it
//! referenced before may have been returned. A cache that kept the layout of an idle canister would
//! block its folding for ever.
//!
//! # Copies
//!
//! A memory may begin as a copy of the newest version of another ([`PageStore::create_copy`]).
//! Nothing is copied: both reference the same base pages, and the copy's index names the segments
//! of the other ([`BorrowedSegment`]), of which the open one is sealed. The references to ranges of
//! pages of a file are counted (`extents.rs`): those of newest versions, those that a durable index
//! still needs, and those that only a reader does. They are not stored, but counted from the
//! durable indexes when the store is opened. The references to a page determine how it is folded:
//!
//! - one memory references it, and no other may: it is overwritten in place, as above;
//! - the newest versions of several memories do, and all of them find the same page of the same
//!   segment above it, as a copy does with delta that was not folded when it was made: it is
//!   overwritten in place, once, and the run is removed from all their indexes (`shared_fold.rs`);
//! - the newest versions of several memories do, and one of them will have other data there: the
//!   memory's pages around it ([`BaseRun`]) are first copied to an unreferenced place in another
//!   base file of the memory and synced; the memory references that place from then on, and so do
//!   the others that have the same data to fold there. Data that is not in a durable index yet
//!   needs no reference: a restart before the next checkpoint finds the old pages, which were not
//!   written to, and clears the half-made copy;
//! - others do only until a checkpoint is durable: folding waits for it, also `fold_over_readers`,
//!   because moving would create pages that are not needed. So of memories that differ the last one
//!   never moves: after the next checkpoint it is the only one that references the place;
//! - others do only until a reader releases them: folding waits, or moves the pages where it may
//!   not wait (`fold_over_readers`).
//!
//! A reference that ended is released by the checkpoint that does not name it, once no layout that
//! was taken before is alive: the last reference returns the pages to the file system, or deletes
//! the file. So each page is on disk once for each content that memories have there, with those
//! around it, and the base files take no more than the sizes of the memories together, what was
//! removed or moved since the last durable checkpoint, and what readers of earlier versions still
//! reference. That holds for any number of copies made in one round, whether or not their delta was
//! folded.
//!
//! Invariants:
//!
//! - The newest version of a memory, every durable index that may be opened, and every layout
//!   counts as a reference to each base page that it uses.
//! - A page that is referenced more than once is written only where every reference belongs to a
//!   newest version, and every version of those memories that is being read, and every durable
//!   index, finds the written data above it.
//! - A place is reserved before data is moved there and stays reserved until it is; an unreferenced
//!   place holds no data. The data is durable with the first checkpoint that names the place: moved
//!   pages are synced, and a place behind the end of a copy is synced with that checkpoint.
//! - A fold is a reader of the memory that it writes: if that is removed meanwhile, its pages are
//!   released, and may be given to another, only after the last write.
//! - Of the memories that reference one base file only one is folded per step, so the state that a
//!   plan relies on does not change until it is carried out.
//! - Ending a reference and deciding whether it was the last happen under one lock.
//!
//! Pages move in units of some hundred KiB, not whole memories: otherwise one page could cause a
//! canister of 100 GiB that has a snapshot to be copied whole, while its delta waits. The price is
//! a list of parts, which is bounded (see `sharing.rs`), so that a worker can map all of them and
//! their files fit in one frame. A memory exceeds the bound on files only after as many copies of
//! copies that all differ; its next copy then copies the data and needs disk space for it.
//!
//! # Order of syncs
//!
//! Segment data, then directory entries (both in [`CheckpointTicket::sync`]); then the caller's
//! transaction with the indexes; then unlinks. The base is synced inside [`PageStore::fold`],
//! before its runs leave the index, so it is durable before any durable index relies on it. An
//! unlink needs no sync: [`PageStore::open`] removes what the index does not name, so a file that
//! comes back after a power cut is removed again. After a failed sync of a segment the kernel may
//! have thrown the pages away and report success the next time (a segment stays open until it is
//! synced for that reason; after one that was closed before, the file system is checked); the store
//! therefore refuses every further reservation and checkpoint ([`PagesError::SyncLost`]) and the
//! node restarts from its last checkpoint. A failed sync of a base file costs nothing: the runs
//! stay in the index and are copied again.
//!
//! All of that goes through [`disk::Disk`], so that a test can cut the power anywhere in it
//! ([`PageStore::open_on`]). Files are opened raw: workers append to segments and map both kinds,
//! and what is only read is read past the disk.
//!
//! # Written pages
//!
//! Every page that messages wrote since the last durable checkpoint is in a segment that no durable
//! index names, and the newest version finds it there. So a ticket can report those pages
//! ([`CheckpointTicket::written`]) without a list of them being kept; hashing for state sync covers
//! only those pages.
//!
//! # Bounds
//!
//! - Disk: a round must not begin once the delta (live, dead, and waiting for deletion) is within
//!   `delta_reserve_bytes` of `delta_capacity_bytes` ([`PageStore::check_room`]); the reserve
//!   covers what one round writes. [`PageStore::needs_checkpoint`] turns true at the same point. An
//!   open segment that is mostly overwritten pages is rewritten without them, so a hot page does
//!   not fill the log. A segment that several memories name is there, and counts, once.
//! - Memory: an index entry per run of delta pages. When a round begins, there are at most as many
//!   as pages in the log without its reserve, which [`PageStore::check_room`] ensures (a copy has
//!   the entries of its source until these are folded); a round adds at most one for each page of
//!   the reserve, and those of the copies that it makes. A fixed part per memory is in the state's
//!   heap ([`state_heap`]). Parts and references are for memories that share pages: at most some
//!   hundred for each GiB of them, and 2,000 for the largest. Nothing else grows with the size of
//!   the state.
//! - Descriptors: one per memory changed since the last checkpoint, at most a quarter of what the
//!   process may have (others are closed meanwhile); the same again while a checkpoint syncs; those
//!   that are being used; and those of deleted files that a layout still names ([`PageFile`]), at
//!   most a quarter as well. A file that cannot be kept for its readers is deleted later, or, if
//!   they were cut off, without regard to them.
//! - Time: a commit costs in the number of runs committed (times the logarithm of the index),
//!   [`PageStore::layout`] and a copy in the number of runs and parts of that memory, a checkpoint
//!   in what changed, and a fold step in its budget and 16 MiB of pages to be moved for each memory
//!   (more where a memory is in more parts, which move in larger units). Opening costs in the
//!   entries of the indexes, times the logarithm of the number of memories.
//!
//! # Out of scope
//!
//! This crate does not know canisters, rounds, the contents of pages, or whether an execution was
//! replicated. It has no clock, no thread of its own and no async; every call blocks for as long as
//! its I/O takes.

mod checkpoint;
mod copy;
mod cow_copy;
mod error;
mod extent_refs;
mod extents;
mod files;
mod fold;
mod fold_plan;
mod index;
mod lazy;
mod memory;
mod pending;
mod range_map;
mod read;
mod recover;
mod reuse;
mod shared_fold;
mod sharing;
mod staging;
pub mod state_heap;
mod store;
mod types;

pub use checkpoint::CheckpointTicket;
pub use error::{IndexFault, PagesError, RunFault};
pub use fold::FoldProgress;
pub use lazy::PageFile;
pub use read::{read_bytes, read_pages};
pub use staging::{StagedMemory, is_in_use, retain_staged, sync_dir};
pub use store::{PageStore, PagesStats};
pub use types::*;

/// Result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, PagesError>;
