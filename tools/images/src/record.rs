//! The metadata of a base, in a file in its folder.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, Result, files, files::Identity, id::BaseId};

/// A path and a few numbers.
const RECORD_BYTES_MAX: u64 = 64 << 10;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) format: u32,
    pub(crate) id: BaseId,
    pub(crate) source: PathBuf,
    pub(crate) source_bytes: u64,
    /// How the source was packed, outermost first: `zstd`, `gzip`, `xz`, `tar`.
    pub(crate) layers: Vec<String>,
    pub(crate) virtual_bytes: u64,
    /// Of the base's file, see [`crate::sparse`].
    #[serde(with = "hex")]
    pub(crate) digest: [u8; 32],
    /// Of the base's file, when its digest was last known to be this.
    pub(crate) identity: Identity,
    pub(crate) added: String,
}

impl Record {
    /// Version of the file.
    pub(crate) const FORMAT: u32 = 1;

    /// `None` where there is none; an unreadable one counts as missing and is recreated.
    pub(crate) fn load(folder: &Path) -> Result<Option<Self>> {
        let Some(bytes) = files::read_small(&folder.join("base.json"), RECORD_BYTES_MAX)? else {
            return Ok(None);
        };
        Ok(serde_json::from_slice(&bytes)
            .ok()
            .filter(|record: &Self| record.format == Self::FORMAT))
    }

    /// Writes it, durably, into a folder that no process reads yet.
    pub(crate) fn save(&self, folder: &Path) -> Result<()> {
        let path = folder.join("base.json");
        self.write(&path)?;
        let synced = std::fs::File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(Error::io("writing", &path))
    }

    fn write(&self, path: &Path) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(self).map_err(std::io::Error::from);
        bytes.and_then(|bytes| std::fs::write(path, bytes)).map_err(Error::io("writing", path))
    }

    /// Replaces it in a folder that others read.
    pub(crate) fn replace(&self, folder: &Path) -> Result<()> {
        let scratch = folder.join(format!("base.json.{}", files::unique()));
        self.write(&scratch)?;
        let renamed = std::fs::rename(&scratch, folder.join("base.json"));
        if renamed.is_err() {
            let _ = std::fs::remove_file(&scratch);
        }
        renamed.map_err(Error::io("writing", &scratch))
    }
}

/// A base that is in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Base {
    /// SHA-256 of the file it was made from, and its form.
    pub id: BaseId,
    /// Its disk, absolute: what an overlay or a machine opens, read-only.
    pub path: PathBuf,
    /// QEMU's name of its format: `raw` or `qcow2`.
    pub format: &'static str,
    /// Size of the disk as a machine sees it, in bytes; a multiple of 512.
    pub virtual_bytes: u64,
    /// The file it was made from, as it was called then.
    pub source: PathBuf,
    /// Size of that file.
    pub source_bytes: u64,
    /// How it was packed, outermost first: `zstd`, `gzip`, `xz`, `tar`.
    pub layers: Vec<String>,
    /// When it was added, `2026-11-21T03:04:05Z`.
    pub added: String,
}

impl Base {
    pub(crate) fn new(record: Record, path: PathBuf) -> Self {
        Self {
            id: record.id,
            path,
            format: record.id.form.format(),
            virtual_bytes: record.virtual_bytes,
            source: record.source,
            source_bytes: record.source_bytes,
            layers: record.layers,
            added: record.added,
        }
    }
}
