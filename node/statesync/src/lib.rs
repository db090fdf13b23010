//! State sync without its network: a state as a manifest and pieces, served by one node and
//! assembled by another.
//!
//! ```text
//! the node that has it                                    the node that wants it
//! round H is executed, the clock says: a manifest
//! checkpoint of H, whole and durable
//! `worker` hashes changes, during the next rounds
//! H + lag: the root enters the certified tree    ----->   a certificate has (H, root)
//! `source` shows the snapshot of H               ----->   `install` fetches header, body, leaves; checks each; swaps directories
//!                                                         opens at H, executes the blocks after it
//! ```
//!
//! # Heights and roots
//!
//! Which heights get a manifest is replicated ([`state::ManifestClock`]); subnets of one node have
//! none, as no peer could fetch it. After such a height the driver must make the checkpoint before
//! it executes another batch: a state that was skipped can no longer be hashed. Other checkpoints
//! come whenever a node likes. One that comes while a manifest is computed waits for it, because
//! the hashes in the store belong to the state that is there.
//!
//! The root is computed on a thread of its own and enters the tree a fixed number of rounds later
//! (or with the next manifest, if that comes first); a round that needs it sooner than it is there
//! waits. Since it is part of the tree, a node whose state differs in any byte, even one that no
//! client can read, gets another state root than the others at that height and must stop.
//!
//! # Leaves that are hashed again
//!
//! Leaves that were written since: the page store knows them from its segments, and the checkpoint
//! that covers them marks them in its own transaction. All records are hashed again: they are small
//! compared with memories, and under load most of them changed. A crash at any point leaves correct
//! marks or hashes, and the next start continues.
//!
//! # Contents and lifetime of a snapshot
//!
//! A read transaction of the store, and the layouts of all memories as of H. Both keep old versions
//! alive while the node continues: pages that were overwritten stay in delta segments, and pages
//! written after H cannot be folded. So at most two are kept: the newest that is certified, and,
//! while a peer has a lease on it, the one before, for at most `pages.manifest_lease_rounds`. When
//! the delta log is nearly full both are released at once; peers continue with the next manifest
//! and keep the unchanged parts they have.
//!
//! # Bounds
//!
//! - Hashing holds one leaf, and the hashes of `compute::BATCH_LEAVES` leaves; the rest is in the
//!   store, 32 bytes and a key per leaf.
//! - Showing holds one chunk per call, at most [`state::manifest::CHUNK_BYTES_MAX`].
//! - A snapshot holds a layout per memory (a few hundred bytes, and two descriptors in addition to
//!   those the node has open anyway) and 32 bytes per blob.
//! - Installing holds one leaf, a word per object, two bits per leaf and the cache of the store it
//!   writes.
//!
//! This crate must never know of peers, canisters or batches: `consensus` (`subnet/state_sync`)
//! decides which peers are asked, in which order, how often and how fast; `execution` (`manifest`)
//! decides which state gets a manifest and when.

mod compute;
mod error;
mod install;
mod snapshot;
mod source;
mod worker;

pub use compute::Job;
pub use error::ManifestError;
pub use install::{
    ChunkRejection, CompletedInstall, InstallError, LocalState, OfferError, Progress,
    StateInstaller, complete_install, complete_install_on,
};
pub use snapshot::{PinnedFiles, ServeError, Snapshot};
pub use source::{SnapshotLease, SnapshotSource};
pub use worker::ManifestWorker;

use pages::{HeldLayout, MemoryId, PageStore, PagesError};

/// The newest version of a memory, held for reading: readers hash the data or send it to peers,
/// which cannot be undone.
///
/// # Errors
/// When the store does not have the memory.
pub fn hold_newest_layout(pages: &PageStore, memory: MemoryId) -> Result<HeldLayout, PagesError> {
    loop {
        // The newest version is never cut off; should another become the newest in between, that
        // one is not.
        if let Some(layout) = HeldLayout::new(pages.layout(memory)?) {
            return Ok(layout);
        }
    }
}
