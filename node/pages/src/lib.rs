//! Canister memory on disk: page index, delta log, checkpoints, recovery.
//!
//! A memory (the heap or the stable memory of one canister) never lives in this process. It lies in
//! files that workers map, and what is held here is only the index of the pages that changed since
//! they were last folded into place.
//!
//! # Files
//!
//! One directory, two kinds of files per memory:
//!
//! - `<id>.base`: sparse and as long as the memory may ever grow, from creation on. Page `n` of the
//!   memory lies at offset `n * 4096`, so base pages need no index and growth maps nothing new.
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
//! A base page is overwritten only while every reader and every possible restart looks past it:
//!
//! - *Restart*: only segments that the durable index names are folded, so after a crash in the
//!   middle of the copy the durable index still shadows the half-written base page with the intact
//!   run.
//! - *Readers*: a version at least as new as the seal shadows the page with that run or a newer
//!   one. An older version may look at the base page itself, so the fold leaves a segment alone
//!   while a layout of a version older than its seal is alive ([`MemoryLayout::pin`]). When folding
//!   cannot wait, [`PageStore::fold_over_readers`] cuts such readers off instead: it marks their
//!   version, then overwrites. A reader asks for the mark after reading
//!   ([`MemoryLayout::is_cut_off`]) and lets nothing count that it read if it is set. Readers who
//!   could not notice ([`HeldLayout`]) are waited for all the same.
//!
//! A pin is for *reading*. Whoever only keeps a mapping in a cache need not, and should not, keep
//! the layout: a base page that was folded meanwhile holds, in any newer version, exactly what that
//! version maps there, so bringing the cached mapping up to date by the difference of the two run
//! lists is enough. A cache that kept the layout of an idle canister would hold up its folding for
//! ever.
//!
//! # Order of syncs
//!
//! segment data, then directory entries (both in [`CheckpointTicket::sync`]); then the caller's
//! transaction with the indexes; then unlinks. The base is synced inside [`PageStore::fold`],
//! before its runs leave the index, so it is durable before any durable index relies on it. An
//! unlink needs no sync: [`PageStore::open`] removes what the index does not name, so a file that
//! comes back after a power cut is removed again. After a failed sync of a segment the kernel may
//! have thrown the pages away and report success the next time (a segment stays open until it is
//! synced for that reason; after one that did not, the file system is asked); the store therefore
//! refuses
//! every further reservation and checkpoint ([`PagesError::SyncLost`]) and the node restarts from
//! its last checkpoint. A failed sync of a base file costs nothing: the runs stay in the index and
//! are copied again.
//!
//! All of that goes through [`disk::Disk`], so that a test can cut the power anywhere in it
//! ([`PageStore::open_on`]). Files are opened raw: workers append to segments and map both kinds,
//! and what is only read is read past the disk.
//!
//! # What was written since
//!
//! Every page that messages wrote since the last durable checkpoint lies in a segment that no
//! durable index names, and the newest version finds it there. So a ticket can tell which pages
//! those are ([`CheckpointTicket::written`]) without anybody having kept a list: what hashes memory
//! for state sync hashes only those.
//!
//! # What bounds it
//!
//! - Disk: a round must not begin once the delta (live, dead, and waiting for deletion) is within
//!   `delta_reserve_bytes` of `delta_capacity_bytes` ([`PageStore::check_room`]); the reserve
//!   covers what one round writes. [`PageStore::needs_checkpoint`] turns true at the same point. An
//!   open segment that is mostly overwritten pages is rewritten without them, so a hot page does
//!   not fill the log.
//! - Memory: an index entry per run of delta pages, so at most one per page of
//!   `delta_capacity_bytes`, plus a fixed part per memory, which lies in the state's heap
//!   ([`heap`]). Nothing grows with the size of the state.
//! - Descriptors: one per memory changed since the last checkpoint, at most a quarter of what the
//!   process may have (others are closed meanwhile); the same again while a checkpoint syncs; those
//!   that are being used; and those of deleted files that a layout still names ([`PageFile`]), at
//!   most a quarter as well. A file that cannot be kept for its readers is deleted later, or, if they were cut off, without
//!   regard to them.
//! - Time: commit costs in the number of runs committed (times the logarithm of the index),
//!   [`PageStore::layout`] in the number of runs of that memory, a checkpoint in what changed, a
//!   fold step in its budget.
//!
//! # What it must never know
//!
//! What a canister is, which rounds exist, what a page contains, whether an execution was
//! replicated. It has no clock, no thread of its own and no async; every call blocks for as long as
//! its I/O takes.

mod checkpoint;
mod claims;
mod copy;
mod error;
mod files;
mod fold;
mod fold_plan;
pub mod heap;
mod index;
mod lazy;
mod lend;
mod memory;
mod read;
mod recover;
mod shared;
mod sharing;
mod staging;
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
