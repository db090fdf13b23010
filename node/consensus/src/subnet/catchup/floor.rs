//! Where agreement goes on above a state that was taken over: a finalised block at or just below the first block behind it.
//!
//! Written beside the engine's storage before the state counts, and left there: once the engine's own progress is above it, it says nothing any more. One
//! record: `crc32: u32` (little-endian) and the encoded fields.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use commonware_codec::{Decode as _, Encode as _};
use commonware_consensus::simplex::types::Finalization;
use serde::{Deserialize, Serialize};
use state::Height;

use crate::subnet::{block::Digest, key::Scheme};

/// A record is a certificate and two numbers.
const RECORD_BYTES_MAX: usize = 4 << 10;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::subnet) struct Floor {
    /// Of the state that was taken over.
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
    Finalization::decode_cfg(bytes, &()).ok()
}

impl Floor {
    /// Makes it durable, whole or not at all.
    pub(in crate::subnet) fn write(&self, path: &Path) -> io::Result<()> {
        let record = Record {
            state: self.state,
            height: self.height,
            finalization: self.finalization.encode().to_vec(),
        };
        let payload = postcard::to_stdvec(&record).map_err(io::Error::other)?;
        let scratch = path.with_extension("new");
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = File::create(&scratch)?;
        file.write_all(&crc32fast::hash(&payload).to_le_bytes())?;
        file.write_all(&payload)?;
        file.sync_all()?;
        fs::rename(&scratch, path)?;
        match path.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }

    /// The floor that belongs to the state this node has, if there is one. One whose state never came to count says nothing.
    pub(in crate::subnet) fn read(path: &Path, have: Height) -> Option<Self> {
        let bytes = match fs::read(path) {
            Ok(bytes) if bytes.len() <= RECORD_BYTES_MAX => bytes,
            Ok(_) => Vec::new(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "where agreement goes on cannot be read");
                return None;
            }
        };
        let floor = Self::parse(&bytes);
        if floor.is_none() {
            tracing::error!(path = %path.display(), "where agreement goes on is damaged; it matters only right after a state was taken over");
        }
        floor.filter(|floor| floor.state <= have)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (checksum, payload) = bytes.split_first_chunk::<4>()?;
        if crc32fast::hash(payload) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let Record { state, height, finalization } = postcard::from_bytes(payload).ok()?;
        Some(Self { state, height, finalization: decode(&finalization)? })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_whole_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path());
        assert_eq!(Floor::read(&path, Height(9)), None);
        let record = Record { state: Height(1), height: Height(2), finalization: vec![0; 3] };
        let payload = postcard::to_stdvec(&record).unwrap();
        let checked = [crc32fast::hash(&payload).to_le_bytes().to_vec(), payload].concat();
        for bytes in [&[][..], &[1, 2, 3], &checked, &checked[..6], &vec![7; RECORD_BYTES_MAX + 1]] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(Floor::read(&path, Height(9)), None);
        }
    }
}
