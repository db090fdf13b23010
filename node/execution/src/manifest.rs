//! Which heights get a manifest, and what the executor hands to [`statesync`] to compute and show
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use disk::SharedDisk;
use pages::{HeldLayout, MemoryId};
use state::manifest::Header;
use state::{BlobHash, ManifestPace, RoundCost};
use statesync::{Job, LocalState, PinnedFiles, Snapshot, SnapshotSource, hold_newest_layout};

use crate::config::FatalError;
use crate::executor::Executor;
use crate::round::RoundWork;

/// Minimum number of nodes of a subnet for another node to exist that could fetch.
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

    /// The disk of the state, for an installer that runs next to it.
    pub fn disk(&self) -> SharedDisk {
        self.store.disk().clone()
    }

    /// This node's state, for an installer to take from instead of fetching. Holds the layouts of
    /// all memories: folding waits for it.
    pub fn local_state(&self) -> Result<Option<LocalState>, FatalError> {
        let Some(checkpoint) = self.store.load()? else { return Ok(None) };
        let stores = (Arc::clone(&self.core.blobs), Arc::clone(&self.core.payloads));
        Ok(Some(LocalState::new(checkpoint, self.pinned()?.layouts, stores)))
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
        let cost = RoundCost { delta_bytes: work.delta_bytes, instructions: work.execution_work };
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
    /// would empty it. When they hold more payloads of messages that are over than they may, the
    /// leased one goes: the others, which every member needs to be fetched from, hold no more than
    /// what could wait when they were made, and the disk has room for that.
    pub(crate) fn relieve_snapshots(&self) {
        let most = self.core.limits().pinned_message_bytes();
        if self.core.payloads.pinned_bytes() > most {
            self.snapshots.give_up_older();
        }
        if self.core.pages.is_delta_full() {
            self.snapshots.give_up("the delta log is nearly full");
        }
    }

    /// The checkpoint of the height that was owed one is durable: its manifest can be computed.
    pub(crate) fn begin_manifest(&mut self) -> Result<(), FatalError> {
        self.manifests.begin(Job { height: self.height(), pinned: self.pinned()? })?;
        self.manifest_owed = false;
        Ok(())
    }

    /// After a restart: continues the manifest that is pending.
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
    fn pinned(&self) -> Result<PinnedFiles, FatalError> {
        // As many as there are memories: they are allocated where the canisters are.
        let _here = state::state_heap::enter();
        let mut layouts: BTreeMap<MemoryId, HeldLayout> = BTreeMap::new();
        let mut blobs: BTreeSet<BlobHash> = BTreeSet::new();
        for canister in self.state.canisters() {
            blobs.extend(canister.paused.iter().filter_map(|paused| paused.module).map(|m| m.0));
            blobs.extend(canister.chunks_and_snapshots());
            for memory in canister.snapshots.iter().flat_map(|(_, snapshot)| snapshot.memories()) {
                layouts.insert(memory, hold_newest_layout(&self.core.pages, memory)?);
            }
            let Some(execution) = &canister.execution else { continue };
            blobs.insert(execution.module.hash.0);
            for memory in [&execution.heap, &execution.stable] {
                layouts.insert(memory.id, hold_newest_layout(&self.core.pages, memory.id)?);
            }
        }
        let mut payloads: Vec<_> = self.state.payloads().cloned().collect();
        payloads.sort_unstable_by_key(|payload| payload.number);
        Ok(PinnedFiles {
            layouts,
            blobs,
            blob_store: Arc::clone(&self.core.blobs),
            payloads,
            payload_store: Arc::clone(&self.core.payloads),
            payload_pin: self.core.payloads.pin(),
        })
    }
}
