//! State sync without its network: a state as a manifest and pieces, served by one node and
//! assembled by another. `docs/internals/state-sync.md` describes the whole.
//!
//! `worker` computes the manifest of a checkpoint on a thread of its own, `source` shows the
//! snapshot of its height, and `install` puts a fetched state together and in place.
//!
//! After a height with a manifest ([`state::ManifestClock`]) the driver must make the checkpoint
//! before it executes another batch: a state that was skipped can no longer be hashed. Another
//! checkpoint that comes while a manifest is computed waits for it, because the hashes in the store
//! belong to the state that is there. The checkpoint that covers a written leaf marks it in its own
//! transaction, so a crash at any point leaves correct marks or hashes.
//!
//! # Bounds
//!
//! - Hashing holds one leaf, and the hashes of `compute::BATCH_LEAVES` leaves; the rest is in the
//!   store, 32 bytes and a key per leaf.
//! - Showing holds one chunk per call, at most [`state::manifest::CHUNK_BYTES_MAX`].
//! - A snapshot holds a layout per memory (a few hundred bytes, and two descriptors in addition to
//!   those the node has open anyway) and 32 bytes per blob. At most two are kept, because both keep
//!   old versions of pages alive.
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
    InstallError, LocalState, OfferError, Progress, StateInstaller, complete_install,
    complete_install_on,
};
pub use snapshot::{PinnedFiles, ServeError, Snapshot};
pub use source::{SnapshotLease, SnapshotSource};
pub use worker::ManifestWorker;

use pages::{HeldLayout, MemoryId, PageStore, PagesError};

/// The newest version of a memory, held for reading: readers hash the data or send it to peers,
/// which cannot be undone.
pub fn hold_newest_layout(pages: &PageStore, memory: MemoryId) -> Result<HeldLayout, PagesError> {
    loop {
        // The newest version is never cut off; should another become the newest in between, that
        // one is not.
        if let Some(layout) = HeldLayout::new(pages.layout(memory)?) {
            return Ok(layout);
        }
    }
}
