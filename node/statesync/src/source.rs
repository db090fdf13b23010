//! Which snapshots are kept, and reading them from other threads. Replaced as newer manifests are
//! certified; see the module above for what ends one early.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use state::manifest::LeafHash;
use state::{BlobHash, ChunkId, Height};

use crate::snapshot::{ServeError, Snapshot};

/// Peers that may hold a lease at once.
const LEASES_MAX: usize = 64;

/// See the module. Cheap to clone; usable from any thread.
#[derive(Clone, Default)]
pub struct SnapshotSource {
    kept: Arc<Mutex<RetainedSnapshots>>,
}

#[derive(Default)]
struct RetainedSnapshots {
    /// Its root is known and not yet certified.
    computed: Option<Arc<Snapshot>>,
    /// The newest that is certified.
    newest: Option<Arc<Snapshot>>,
    /// The one before, while someone has a lease on it, and when it was replaced.
    older: Option<(Arc<Snapshot>, Height)>,
    /// Bytes of messages written to the store since then: what has gone of them since, and of those
    /// before, stays in the store for the older snapshot.
    written_beside_older: u64,
    /// How many leases there are on which height.
    leases: BTreeMap<Height, usize>,
    /// Of the last round.
    height: Height,
    /// A snapshot went, so blobs that only it had can go.
    dropped: bool,
}

impl RetainedSnapshots {
    /// Those that can be fetched, newest first.
    fn shown(&self) -> impl Iterator<Item = &Arc<Snapshot>> {
        self.newest.iter().chain(self.older.as_ref().map(|(snapshot, _)| snapshot))
    }
}

impl SnapshotSource {
    fn lock(&self) -> MutexGuard<'_, RetainedSnapshots> {
        // Every change of the state is one assignment, which a panic cannot leave half done.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest state that can be fetched here: its height and the certified root of its
    /// manifest.
    pub fn newest(&self) -> Option<(Height, LeafHash)> {
        self.lock().newest.as_ref().map(|snapshot| (snapshot.height(), snapshot.root()))
    }

    /// Heights that can be fetched here, newest first.
    pub fn heights(&self) -> Vec<Height> {
        self.lock().shown().map(|snapshot| snapshot.height()).collect()
    }

    /// One chunk of the state of a height, at most [`state::manifest::CHUNK_BYTES_MAX`] bytes.
    /// Takes about twice that while it runs; the caller bounds how many run at once.
    pub fn chunk(&self, height: Height, chunk: ChunkId) -> Result<Vec<u8>, ServeError> {
        // Held for this chunk alone: a released snapshot is dropped as soon as it is not being
        // read.
        self.find(height)?.chunk(chunk)
    }

    fn find(&self, height: Height) -> Result<Arc<Snapshot>, ServeError> {
        let kept = self.lock();
        let found = kept.shown().find(|snapshot| snapshot.height() == height);
        found.cloned().ok_or_else(|| ServeError::NotKept {
            asked: height,
            newest: kept.newest.as_ref().map(|snapshot| snapshot.height()),
        })
    }

    /// Asks that the snapshot of this height be kept when a newer one replaces it: for a bounded
    /// number of rounds, while there is room in the delta log, and one such snapshot at a time.
    /// `None` if it is not kept even now, or 64 peers have leases. Dropping the lease ends it.
    pub fn lease(&self, height: Height) -> Option<SnapshotLease> {
        let mut kept = self.lock();
        let is_kept = kept.shown().any(|snapshot| snapshot.height() == height);
        if !is_kept || kept.leases.values().sum::<usize>() >= LEASES_MAX {
            return None;
        }
        *kept.leases.entry(height).or_default() += 1;
        Some(SnapshotLease { source: self.clone(), height })
    }

    /// A manifest is known; its state can be shown once the root is certified.
    pub fn computed(&self, snapshot: Arc<Snapshot>) {
        let before = self.lock().computed.replace(snapshot);
        // Its resources are freed outside the lock.
        drop(before);
    }

    /// The subnet signed a tree that shows this manifest.
    pub fn certified(&self, height: Height, root: LeafHash) {
        let mut kept = self.lock();
        let ready = kept
            .computed
            .take_if(|snapshot| snapshot.height() == height && snapshot.root() == root);
        let Some(ready) = ready else { return };
        let replaced_at = kept.height;
        let mut gone = None;
        if let Some(before) = kept.newest.replace(ready) {
            if kept.older.is_none() && kept.leases.contains_key(&before.height()) {
                kept.older = Some((before, replaced_at));
                kept.written_beside_older = 0;
            } else {
                kept.dropped = true;
                gone = Some(before);
            }
        }
        drop(kept);
        drop(gone);
    }

    /// A round was executed: releases snapshots that were kept long enough.
    pub fn advance(&self, height: Height, lease_rounds: u64) {
        let mut kept = self.lock();
        kept.height = height;
        let over = kept.older.as_ref().is_some_and(|(snapshot, since)| {
            height.0.saturating_sub(since.0) > lease_rounds
                || !kept.leases.contains_key(&snapshot.height())
        });
        if over {
            release_older(kept);
        }
    }

    /// A checkpoint wrote `bytes` bytes of messages. A snapshot that is kept for a lease retains
    /// deleted messages in the store, so it is released when more than `bytes_max` were written
    /// since it was replaced.
    pub fn wrote_messages(&self, bytes: u64, bytes_max: u64) {
        let mut kept = self.lock();
        kept.written_beside_older = kept.written_beside_older.saturating_add(bytes);
        if kept.written_beside_older > bytes_max {
            release_older(kept);
        }
    }

    /// Releases the snapshot that is kept for leases in addition to the newest.
    pub fn give_up_older(&self) {
        release_older(self.lock());
    }

    /// Releases every snapshot, for this reason. The next manifest makes another.
    pub fn give_up(&self, reason: &'static str) {
        let mut kept = self.lock();
        let gone = (kept.computed.take(), kept.newest.take(), kept.older.take());
        if gone.0.is_some() || gone.1.is_some() || gone.2.is_some() {
            kept.dropped = true;
            tracing::info!(
                "the snapshots for state sync were given up: {reason}; the next manifest brings \
                 another"
            );
        }
        drop(kept);
        drop(gone);
    }

    /// Releases every snapshot because the node stops.
    pub fn close(&self) {
        let gone = std::mem::take(&mut *self.lock());
        drop(gone);
    }

    /// Whether a snapshot needs this blob.
    pub fn has_blob(&self, blob: &BlobHash) -> bool {
        let kept = self.lock();
        kept.computed.iter().chain(kept.shown()).any(|snapshot| snapshot.has_blob(blob))
    }

    /// Whether a snapshot went since this was last asked.
    pub fn take_dropped(&self) -> bool {
        std::mem::take(&mut self.lock().dropped)
    }
}

/// Releases the snapshot that is kept for leases.
fn release_older(mut kept: MutexGuard<'_, RetainedSnapshots>) {
    let gone = kept.older.take();
    kept.dropped |= gone.is_some();
    // Its resources are freed outside the lock.
    drop(kept);
    drop(gone);
}

impl std::fmt::Debug for SnapshotSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SnapshotSource({:?})", self.heights())
    }
}

/// A peer is fetching the state of this height.
#[derive(Debug)]
pub struct SnapshotLease {
    source: SnapshotSource,
    height: Height,
}

impl Drop for SnapshotLease {
    fn drop(&mut self) {
        let mut kept = self.source.lock();
        if let Some(count) = kept.leases.get_mut(&self.height) {
            *count -= 1;
            if *count == 0 {
                kept.leases.remove(&self.height);
            }
        }
    }
}
