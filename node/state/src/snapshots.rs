//! Snapshots of a canister: their records. Their pages are in memories of their own.
//!
//! A snapshot is a part of its canister's record. Its heap and stable memory are memories of the
//! page store that no code ever runs on; its module and chunks are blobs, named by their hashes as
//! the canister's own are. The module of a snapshot that is being uploaded is a memory as well,
//! because it comes in parts and has no hash before the last one. This module must not know how
//! pages are copied, or who may request it.

use std::collections::BTreeMap;

use ic_principal::Principal;
use pages::MemoryId;
use serde::{Deserialize, Serialize};

use crate::resting::rest_map;
use crate::{
    BlobHash, CHUNK_ACCOUNTED_BYTES, CanisterId, Global, LowMemoryHook, ModuleHash, SnapshotSource,
    StateArc, Time, WASM_PAGE_BYTES,
};

/// Most snapshots of one canister (interface specification, `MAX_SNAPSHOTS`).
pub const SNAPSHOTS_MAX: usize = 10;
const GLOBAL_ACCOUNTED_BYTES: u64 = 8;
/// Bytes accounted for a snapshot as metadata, in addition to its globals and chunks: its record
/// and the page store's data on its memories.
const METADATA_BYTES: u64 = 2048;

/// Code of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotModule {
    /// As it was installed: a blob.
    Installed {
        /// SHA-256 of the upload.
        hash: ModuleHash,
        /// Bytes of the upload.
        bytes: u64,
    },
    /// Uploaded in parts: the first `bytes` bytes of a memory.
    Uploaded {
        /// Memory of the page store.
        memory: MemoryId,
        /// Bytes of the module.
        bytes: u64,
    },
}

impl SnapshotModule {
    /// Bytes of the module.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Installed { bytes, .. } | Self::Uploaded { bytes, .. } => *bytes,
        }
    }
}

/// Heap or stable memory of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMemory {
    /// Name of the memory in the page store.
    pub id: MemoryId,
    /// Size in Wasm pages.
    pub wasm_pages: u64,
}

impl SnapshotMemory {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.wasm_pages * WASM_PAGE_BYTES
    }
}

/// One snapshot (interface specification, "Snapshot").
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanisterSnapshot {
    /// Its origin.
    pub source: SnapshotSource,
    /// Block time at which it was taken, or its metadata uploaded.
    pub taken_at: Time,
    /// Version of the canister then.
    pub canister_version: u64,
    /// The code.
    pub module: SnapshotModule,
    /// Globals that are exported or mutable, by index.
    pub globals: Vec<Global>,
    /// The Wasm heap.
    pub heap: SnapshotMemory,
    /// The stable memory.
    pub stable: SnapshotMemory,
    /// The chunk store: hash and size.
    pub chunks: BTreeMap<BlobHash, u64>,
    /// Certified data, at most 32 bytes.
    #[serde(with = "serde_bytes")]
    pub certified_data: Vec<u8>,
    /// Global timer, 0 is off; none if an upload did not say.
    pub global_timer: Option<Time>,
    /// Status of the low-memory hook; none if an upload did not say.
    pub low_memory_hook: Option<LowMemoryHook>,
}

impl CanisterSnapshot {
    /// Bytes that its canister is accounted with for it.
    pub fn bytes(&self) -> u64 {
        self.module.bytes()
            + self.heap.bytes()
            + self.stable.bytes()
            + self.globals.len() as u64 * GLOBAL_ACCOUNTED_BYTES
            + self.chunks.len() as u64 * CHUNK_ACCOUNTED_BYTES
            + self.certified_data.len() as u64
    }

    /// Estimate of what its record takes in memory.
    fn metadata_bytes(&self) -> u64 {
        METADATA_BYTES
            + size_of::<Global>() as u64 * self.globals.len() as u64
            + 48 * self.chunks.len() as u64
    }

    /// Its memories in the page store.
    pub fn memories(&self) -> impl Iterator<Item = MemoryId> + use<> {
        let module = match self.module {
            SnapshotModule::Uploaded { memory, .. } => Some(memory),
            SnapshotModule::Installed { .. } => None,
        };
        [self.heap.id, self.stable.id].into_iter().chain(module)
    }

    /// Blobs that it names.
    pub fn blobs(&self) -> impl Iterator<Item = BlobHash> + '_ {
        let module = match self.module {
            SnapshotModule::Installed { hash, .. } => Some(hash.0),
            SnapshotModule::Uploaded { .. } => None,
        };
        self.chunks.keys().copied().chain(module)
    }
}

/// The snapshots of one canister, by number; a number is given once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanisterSnapshots {
    next: u64,
    all: BTreeMap<u64, StateArc<CanisterSnapshot>>,
}

impl CanisterSnapshots {
    /// Number of snapshots.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no snapshots.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them with their numbers, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &CanisterSnapshot)> {
        self.all.iter().map(|(number, snapshot)| (*number, &**snapshot))
    }

    /// The one of this number.
    pub fn get(&self, number: u64) -> Option<&CanisterSnapshot> {
        self.all.get(&number).map(|snapshot| &**snapshot)
    }

    /// Adds one. Its number.
    pub fn add(&mut self, snapshot: CanisterSnapshot) -> u64 {
        let number = self.next;
        self.next += 1;
        let before = self.all.insert(number, StateArc::new(snapshot));
        debug_assert!(before.is_none(), "snapshot {number} was given before");
        number
    }

    /// Puts a changed one in the place of what has this number.
    pub fn replace(&mut self, number: u64, snapshot: CanisterSnapshot) {
        if let Some(place) = self.all.get_mut(&number) {
            *place = StateArc::new(snapshot);
        }
    }

    /// Checks bounds and numbers.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub(crate) fn check(&self) {
        assert!(self.all.len() <= SNAPSHOTS_MAX, "{} snapshots", self.all.len());
        let last = self.all.last_key_value().map(|(number, _)| *number);
        assert!(last < Some(self.next), "snapshot {last:?} has a number yet to be given");
        for (number, snapshot) in self.iter() {
            let bytes = snapshot.certified_data.len();
            assert!(bytes <= 32, "snapshot {number} has {bytes} bytes of certified data");
        }
    }

    /// Moves to the state's heap what is elsewhere.
    pub(crate) fn rest(&mut self) {
        rest_map(&mut self.all);
    }

    /// Takes the one of this number away.
    pub fn remove(&mut self, number: u64) -> Option<CanisterSnapshot> {
        self.all.remove(&number).map(StateArc::take)
    }

    /// Takes all away; their numbers are not given again.
    pub fn take_all(&mut self) -> impl Iterator<Item = CanisterSnapshot> + use<> {
        std::mem::take(&mut self.all).into_values().map(StateArc::take)
    }

    /// Bytes that the canister is accounted with for them.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|(_, snapshot)| snapshot.bytes()).sum()
    }

    /// Estimate of what their records take in memory.
    pub fn metadata_bytes(&self) -> u64 {
        self.iter().map(|(_, snapshot)| snapshot.metadata_bytes()).sum()
    }
}

/// Bytes of the number at the beginning of a snapshot's id.
const NUMBER_BYTES: usize = 8;

/// Id of a snapshot as the interface shows it: its number, then the id of its canister.
pub fn snapshot_id(canister_id: &CanisterId, number: u64) -> Vec<u8> {
    [&number.to_be_bytes()[..], canister_id.as_slice()].concat()
}

/// The canister and the number of an id that [`snapshot_id`] made; `None` of any other bytes.
pub fn parse_snapshot_id(id: &[u8]) -> Option<(CanisterId, u64)> {
    let (number, canister) = id.split_first_chunk::<NUMBER_BYTES>()?;
    let canister = Principal::try_from_slice(canister).ok()?;
    Some((canister, u64::from_be_bytes(*number)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_id_names_a_canister_and_a_number_and_other_bytes_name_none() {
        let canister = Principal::from_slice(&[0, 0, 0, 0, 0, 0, 1, 0, 1, 1]);
        let id = snapshot_id(&canister, 7);
        assert_eq!(hex::encode(&id), "000000000000000700000000000001000101");
        assert_eq!(parse_snapshot_id(&id), Some((canister, 7)));
        assert_eq!(parse_snapshot_id(&id[..7]), None);
        assert_eq!(parse_snapshot_id(&[0; 8 + 30]), None, "longer than a principal");
    }
}
