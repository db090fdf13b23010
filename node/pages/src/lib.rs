//! Canister memory on disk: page index, delta log, checkpoints, recovery.
//!
//! A memory (the heap or the stable memory of one canister) never lives in this process. It lies in
//! files that workers map, and what is held here is only the index of the pages that changed since
//! they were last folded into place.
//!
//! # Files
//!
//! One directory, two kinds of files:
//!
//! - `<id>.base`: sparse and as long as the memory may ever grow, from creation on. Page `n` of the
//!   memory lies at offset `n * 4096`, so base pages need no index and growth maps nothing new.
//!   `<id>.base1` and so on: more of the kind, of a memory that was copied ([`Part`]).
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
//! the layout: as long as the epoch is the same, bringing the cached mapping up to date by the
//! difference of the two run lists is enough. With another epoch the memory is mapped afresh: pages
//! may lie in another base file, and those that were looked at before be given back. A cache that kept
//! the layout of an idle canister would hold up its folding for ever.
//!
//! # Copies
//!
//! A memory may begin as a copy of the newest version of another ([`PageStore::create_copy`]). Nothing
//! is copied: both look at the same base pages, and the copy's index names the segments of the other
//! ([`Borrowed`]), of which the open one is sealed. Each base file keeps, for ranges of its pages, how
//! many memories look at them (a *claim*): newest versions, those that a durable index still needs, and
//! those that only a reader does. Nothing of it is stored: opening counts anew what the durable indexes
//! name. From the claims it follows what folding does with a page:
//!
//! - one memory looks at it, and nobody else may: it is overwritten in place, as above;
//! - the newest versions of several do, and all of them find the same page of the same segment above
//!   it, as a copy does of delta that was not folded when it was made: it is overwritten in place, once,
//!   and the run leaves all their indexes (`together.rs`);
//! - the newest versions of several do, and another will look at something else there: the memory's
//!   pages around it ([`Part`]) are first copied to another base file of the memory's, into a place
//!   nobody claims, synced, and looked at there from now on, also by the others that have the same to
//!   fold there. No claim is needed on what is not in a durable index yet: a restart before the next
//!   checkpoint finds the old pages, which nobody wrote to, and clears the half-made copy;
//! - others do only until a checkpoint is durable: folding waits for it, also `fold_over_readers`,
//!   because moving would make pages that nobody needs. So of memories that differ the last one never
//!   moves: it has the place to itself after the next checkpoint;
//! - others do only until a reader lets go: folding waits, or moves the pages where it may not wait
//!   (`fold_over_readers`).
//!
//! A claim that ended is released by the checkpoint that does not name it, once no layout that was
//! taken before is alive: the last one gives the pages back to the file system, or deletes the file.
//! So each page is on disk once for each content that memories have there, with those around it, and
//! the base files take no more than the sizes of the memories together, what was removed or moved
//! since the last durable checkpoint, and what readers of before that still look at. That holds
//! however many copies one round makes, and whether or not their delta was folded.
//!
//! What must hold at any time:
//!
//! - The newest version of a memory, every durable index that may be opened, and every layout has a
//!   claim on each base page that it looks at.
//! - A page that is claimed more than once is written only where every claim is a newest version's, and
//!   every version of those memories that is read, and every durable index, finds above it what is
//!   written there.
//! - A place is claimed before it is written and until it is; what nobody claims holds nothing. That
//!   it does is durable with the first checkpoint that names the place: pages that are moved there are
//!   synced, and a place behind the end of a copy is synced with that checkpoint.
//! - In one step, of the memories that look at one base file only one is folded: what another's plan
//!   relies on does not change until it is carried out.
//! - Whether a claim, or the name of a segment, was the last is decided with its end, under one lock.
//!
//! Pages move some hundred KiB at once, and not all of a memory: a canister of 100 GiB of which a
//! snapshot was taken would otherwise be copied whole, while its delta waits, because of one page.
//! The price is a list of parts, which is bounded (see `sharing.rs`), so that a worker can map all of
//! them and their files fit in one frame. Where a memory has more files than that, which takes as
//! many copies of copies that all differ, the next copy is made by copying, and needs room for it.
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
//!   not fill the log. A segment that several memories name is there, and counts, once.
//! - Memory: an index entry per run of delta pages. There are no more when a round begins than pages in
//!   the log without its reserve, which [`PageStore::check_room`] sees to (a copy has the entries of
//!   its source until these are folded); in a round come one for each page of the reserve, and those of
//!   the copies that it makes. A fixed part per memory lies in the state's heap ([`heap`]). Parts and claims are for memories that share pages: at most some
//!   hundred for each GiB of them, and 2,000 for the largest. Nothing else grows with the size of
//!   the state.
//! - Descriptors: one per memory changed since the last checkpoint, at most a quarter of what the
//!   process may have (others are closed meanwhile); the same again while a checkpoint syncs; those
//!   that are being used; and those of deleted files that a layout still names ([`PageFile`]), at
//!   most a quarter as well. A file that cannot be kept for its readers is deleted later, or, if they
//!   were cut off, without regard to them.
//! - Time: commit costs in the number of runs committed (times the logarithm of the index),
//!   [`PageStore::layout`] in the number of runs and parts of that memory, as does a copy; a
//!   checkpoint in what changed, a fold step in its budget and 16 MiB of pages to be moved for each
//!   memory (more where a memory is in so many parts that more have to go at once). Opening costs in
//!   what the indexes name, times the logarithm of the number of memories.
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
mod together;
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
