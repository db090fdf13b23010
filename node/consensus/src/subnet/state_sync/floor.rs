//! The floor above a state that was installed, from which consensus continues: a finalised block at
//! or just below the first block after it.
//!
//! Written alongside the engine's storage before the state counts, and left there: once the
//! engine's own progress is above it, it is ignored. One record in a record file
//! ([`disk::records`]).

use std::path::{Path, PathBuf};

use commonware_codec::{Decode as _, Encode as _};
use commonware_consensus::simplex::types::Finalization;
use disk::{
    SharedDisk,
    records::{Kind, RecordError, RecordSlot},
};
use serde::{Deserialize, Serialize};
use state::Height;

use crate::subnet::{block::Digest, key::Scheme};

/// A record is a certificate and two numbers.
const KIND: Kind = Kind { name: *b"floor\0\0\0", version: 2, bytes_max: 8 << 10 };

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::subnet) struct Floor {
    /// Height of the state that was installed.
    pub(in crate::subnet) state: Height,
    /// Of the finalised block.
    pub(in crate::subnet) height: Height,
    pub(in crate::subnet) finalization: Finalization<Scheme, Digest>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    state: Height,
    height: Height,
    finalization: Vec<u8>,
}

/// Its file among the engine's.
pub(in crate::subnet) fn path(directory: &Path) -> PathBuf {
    directory.join("floor")
}

pub(super) fn decode(finalization: &[u8]) -> Option<Finalization<Scheme, Digest>> {
    let bytes = bytes::Bytes::copy_from_slice(finalization);
    Finalization::decode_cfg(bytes, &genesis::NODES_MAX).ok()
}

impl Floor {
    /// Makes it durable, whole or not at all.
    pub(in crate::subnet) fn write(
        &self,
        disk: &SharedDisk,
        path: &Path,
    ) -> Result<(), RecordError> {
        let record = Record {
            state: self.state,
            height: self.height,
            finalization: self.finalization.encode().to_vec(),
        };
        let payload = postcard::to_stdvec(&record)
            .map_err(|error| RecordError::io(path, "encoding", std::io::Error::other(error)))?;
        slot(disk, path).write(&payload)
    }

    /// The floor that belongs to the state this node has, if there is one. A floor whose state was
    /// never installed is ignored.
    pub(in crate::subnet) fn read(disk: &SharedDisk, path: &Path, have: Height) -> Option<Self> {
        let payload = match slot(disk, path).read() {
            Ok(payload) => payload?,
            Err(error) => {
                tracing::error!(%error, "cannot read the state-sync floor file; it matters only right after a state sync");
                return None;
            }
        };
        let floor = Self::parse(&payload);
        if floor.is_none() {
            tracing::error!(path = %path.display(), "the state-sync floor file does not decode; it matters only right after a state sync");
        }
        floor.filter(|floor| floor.state <= have)
    }

    fn parse(payload: &[u8]) -> Option<Self> {
        let Record { state, height, finalization } = postcard::from_bytes(payload).ok()?;
        Some(Self { state, height, finalization: decode(&finalization)? })
    }
}

fn slot(disk: &SharedDisk, path: &Path) -> RecordSlot {
    RecordSlot { disk: disk.clone(), path: path.to_path_buf(), kind: KIND }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use disk::RealDisk;

    use super::*;

    #[test]
    fn damaged_floor_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, path) = (RealDisk::shared(), path(folder.path()));
        assert_eq!(Floor::read(&disk, &path, Height(9)), None);
        let record = Record { state: Height(1), height: Height(2), finalization: vec![0; 3] };
        slot(&disk, &path).write(&postcard::to_stdvec(&record).unwrap()).unwrap();
        let checked = std::fs::read(&path).unwrap();
        for bytes in [&[][..], &[1, 2, 3], &checked, &checked[..40], &vec![7; 5_000]] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(Floor::read(&disk, &path, Height(9)), None);
        }
    }
}
