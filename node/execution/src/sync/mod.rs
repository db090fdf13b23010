//! State sync, all but its network: a state as a manifest and pieces, shown by one node and put
//! together by another.
//!
//! ```text
//! the node that has it                                    the node that wants it
//! round H is executed, the clock says: a manifest
//! checkpoint of H, whole and durable
//! `worker` hashes what changed, beside the next rounds
//! H + lag: the root enters the certified tree    ----->   a certificate tells (H, root)
//! `source` shows the snapshot of H               ----->   `install` fetches header, body, leaves; checks each; swaps directories
//!                                                         opens at H, executes the blocks after it
//! ```
//!
//! # Heights and roots
//!
//! Which heights get a manifest is replicated ([`state::ManifestClock`]); subnets of one node have
//! none, for nobody could fetch it. After such a height the driver must make the checkpoint before
//! it executes another batch ([`Executor::manifest_owed`]): a state that was passed over cannot be
//! hashed any more. Other checkpoints come whenever a node likes. One that comes while a manifest
//! is computed waits for it, because the hashes in the store belong to the state that is there.
//!
//! The root is computed on a thread of its own and enters the tree a fixed number of rounds later
//! (or with the next manifest, if that comes first); a round that needs it sooner than it is there
//! waits. Since it is part of the tree, a node whose state differs in any byte, even one that no
//! client can read, gets another state root than the others at that height and must stop.
//!
//! # What is hashed again
//!
//! Leaves that were written since: the page store knows them from its segments, and the checkpoint
//! that covers them marks them in its own transaction. Of the records everything is hashed again:
//! they are small beside memories, and under load most of them changed. A crash at any point leaves
//! marks or hashes that are right, and the next start goes on.
//!
//! # What a snapshot holds, and until when
//!
//! A read transaction of the store, and the layouts of all memories as of H. Both keep old versions
//! alive while the node goes on: pages that were overwritten stay in delta segments, and what was
//! written after H cannot be folded. So at most two are kept: the newest that is certified, and,
//! while a peer has a lease on it, the one before, for at most `pages.manifest_lease_rounds`. When
//! the delta log is nearly full both are given up at once; peers go on with the next manifest and
//! keep what they have of the unchanged rest.
//!
//! # Bounds
//!
//! - Hashing holds one leaf, and the hashes of [`compute::BATCH_LEAVES`] leaves; the rest is in the
//!   store, 32 bytes and a key per leaf.
//! - Showing holds one chunk per call, at most [`state::manifest::CHUNK_BYTES_MAX`].
//! - A snapshot holds a layout per memory (a few hundred bytes, and two descriptors besides those
//!   the node has open anyway) and 32 bytes per blob.
//! - Installing holds one leaf, a word per object, two bits per leaf and the cache of the store it
//!   writes.
//!
//! No part of this knows of peers: who is asked, in which order, how often and how fast is
//! consensus's (`subnet/catchup` there).

mod compute;
mod install;
mod snapshot;
mod source;
mod worker;

pub use install::{
    InstallError, Installed, LocalState, OfferError, Progress, Rejected, StateInstaller,
    complete_install, complete_install_on,
};
pub use snapshot::ServeError;
pub use source::{SnapshotLease, SnapshotSource};

pub(crate) use compute::Job;
pub(crate) use worker::ManifestWorker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use disk::SharedDisk;
use pages::{HeldLayout, MemoryId, PageStore, PagesError};
use state::manifest::Header;
use state::{BlobHash, ManifestPace, RoundCost};

use crate::config::FatalError;
use crate::executor::Executor;
use crate::round::RoundWork;
use snapshot::{Pinned, Snapshot};

/// Nodes a subnet must have for there to be someone who could fetch.
const NODES_MIN: u32 = 2;

impl Executor {
    /// Where certified snapshots can be read, from any thread.
    pub fn snapshots(&self) -> SnapshotSource {
        self.snapshots.clone()
    }

    /// Whether the state after the last batch is to be given a manifest and its checkpoint has not
    /// been made: [`Executor::checkpoint`] must succeed before the next batch.
    pub fn manifest_owed(&self) -> bool {
        self.manifest_owed
    }

    /// What the state lies on, for an installer beside it.
    pub fn disk(&self) -> SharedDisk {
        self.store.disk().clone()
    }

    /// What this node has, for an installer to take from instead of fetching. Holds the layouts of
    /// all memories: folding waits for it.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn local_state(&self) -> Result<Option<LocalState>, FatalError> {
        let Some(checkpoint) = self.store.load()? else { return Ok(None) };
        Ok(Some(LocalState::new(checkpoint, self.pinned()?.layouts, Arc::clone(&self.core.blobs))))
    }

    fn pace(&self) -> ManifestPace {
        let limits = &self.core.limits().pages;
        ManifestPace {
            rounds: limits.manifest_interval_rounds,
            delta_bytes: limits.checkpoint_delta_bytes,
            instructions: limits.checkpoint_instructions,
            lag_rounds: limits.manifest_lag_rounds,
        }
    }

    /// Moves the clock by the round that was executed. Waits for a root that has to enter the tree
    /// and is not known yet.
    pub(crate) fn advance_manifest(&mut self, work: &RoundWork) -> Result<(), FatalError> {
        let height = self.height();
        if self.core.subnet_nodes() < NODES_MIN {
            return Ok(());
        }
        let (pace, mut clock) = (self.pace(), self.state.subnet.manifest);
        let cost = RoundCost { delta_bytes: work.delta_bytes, instructions: work.instructions };
        if let Some(entering) = clock.count(height, cost, &pace) {
            clock.enter(entering, self.manifests.wait(entering.0)?);
        }
        self.manifest_owed = clock.close(height, &pace);
        self.state.subnet.manifest = clock;
        self.snapshots.advance(height, self.core.limits().pages.manifest_lease_rounds);
        self.relieve_snapshots();
        Ok(())
    }

    /// Gives the snapshots up while the delta log is nearly full: they hold up the folding that
    /// would empty it.
    pub(crate) fn relieve_snapshots(&self) {
        let limits = &self.core.limits().pages;
        let full_above = limits.delta_capacity_bytes.saturating_sub(limits.delta_reserve_bytes);
        if self.core.pages.delta_bytes() >= full_above {
            self.snapshots.give_up();
        }
    }

    /// The checkpoint of the height that was owed one is durable: its manifest can be computed.
    pub(crate) fn begin_manifest(&mut self) -> Result<(), FatalError> {
        self.manifests.begin(Job { height: self.height(), pinned: self.pinned()? })?;
        self.manifest_owed = false;
        Ok(())
    }

    /// After a restart: goes on where the manifest that is pending stood.
    pub(crate) fn resume_manifest(&mut self) -> Result<(), FatalError> {
        let Some(pending) = self.state.subnet.manifest.pending() else { return Ok(()) };
        let unreadable = |reason: String| FatalError::Record {
            what: format!("the manifest of height {}", pending.0),
            reason,
        };
        let Some(checkpoint) = self.store.load()? else { return Ok(()) };
        let header = checkpoint.manifest_header()?;
        let header = header
            .map(|bytes| Header::from_bytes(&bytes).map_err(|error| unreadable(error.to_string())))
            .transpose()?;
        match header.filter(|header| header.height == pending) {
            Some(header) => {
                let root = header.root();
                self.manifests.known(pending, root);
                if checkpoint.height == pending {
                    let snapshot = Snapshot::new(header, checkpoint, self.pinned()?);
                    self.snapshots.computed(Arc::new(snapshot));
                }
                Ok(())
            }
            None if checkpoint.height == pending => {
                drop(checkpoint);
                self.begin_manifest()
            }
            None => Err(unreadable(format!(
                "the checkpoint of height {} should have been made after it was computed",
                checkpoint.height.0
            ))),
        }
    }

    /// The files behind the state as it is now. Only between rounds.
    fn pinned(&self) -> Result<Pinned, FatalError> {
        let mut layouts: BTreeMap<MemoryId, HeldLayout> = BTreeMap::new();
        let mut blobs: BTreeSet<BlobHash> = BTreeSet::new();
        for canister in self.state.canisters() {
            blobs.extend(canister.chunks.keys());
            let Some(execution) = &canister.execution else { continue };
            blobs.insert(execution.module.hash.0);
            for memory in [&execution.heap, &execution.stable] {
                layouts.insert(memory.id, held(&self.core.pages, memory.id)?);
            }
        }
        Ok(Pinned { layouts, blobs, blob_store: Arc::clone(&self.core.blobs) })
    }
}

/// The newest version of a memory, held: whoever reads it hashes what it reads or sends it to
/// others, and could not take it back.
pub(crate) fn held(pages: &PageStore, memory: MemoryId) -> Result<HeldLayout, PagesError> {
    loop {
        // The newest version is never cut off; should another become the newest in between, that
        // one is not.
        if let Some(layout) = HeldLayout::new(pages.layout(memory)?) {
            return Ok(layout);
        }
    }
}
