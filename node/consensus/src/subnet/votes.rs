//! Whether this node still knows how it voted.
//!
//! A node that lost all its files but its keys could vote against its earlier votes. So it abstains
//! up to the end of the newest epoch in which it may have voted, which is recorded with its keys.
//! The abstention is recorded with the new folder of the engine, in one step: otherwise a restart
//! would forget it.

use std::path::{Path, PathBuf};

use disk::{
    SharedDisk, if_there,
    records::{Kind, RecordError, RecordSlot},
};

const FILE: &str = "silent-until";
/// Folder of the engine's storage.
const BLOBS: &str = "log";
/// Folders of versions that kept a file for each blob begin like this.
const OLD_FOLDERS: [&str; 2] = ["simplex-", "marshal-"];
/// One record: the epoch (little-endian).
const KIND: Kind = Kind { name: *b"silent\0\0", version: 1, bytes_max: 8 };

/// The last epoch in which this node has to be silent, if there is one. `voted` is the newest in
/// which it may have voted. Makes the engine's folder if it is absent.
///
/// # Errors
/// Those of the disk, and [`RecordError::Damaged`]: a node that does not know whether it has to be
/// silent does not start.
pub(super) fn silent_until(
    disk: &SharedDisk,
    directory: &Path,
    voted: Option<u64>,
) -> Result<Option<u64>, RecordError> {
    let slot =
        |folder: &Path| RecordSlot { disk: disk.clone(), path: folder.join(FILE), kind: KIND };
    let failed = |doing| move |source| RecordError::io(directory, doing, source);
    if if_there(disk.list(directory)).map_err(failed("reading"))?.is_none() {
        let scratch = directory.with_extension("new");
        disk.create_folder(&scratch).map_err(failed("making the folder"))?;
        if let Some(voted) = voted {
            slot(&scratch).write(&voted.to_le_bytes())?;
        }
        disk.sync_folder(&scratch).map_err(failed("making the folder"))?;
        disk.rename(&scratch, directory).map_err(failed("making the folder"))?;
        if let Some(parent) = directory.parent() {
            disk.sync_folder(parent).map_err(failed("making the folder"))?;
        }
    }
    let record = slot(directory).read()?;
    let damaged = || RecordError::Damaged {
        path: directory.join(FILE),
        offset: disk::records::HEADER_BYTES,
        what: "its record is no epoch".into(),
    };
    record
        .map(|record| record.try_into().map(u64::from_le_bytes).map_err(|_| damaged()))
        .transpose()
}

/// The folder of the engine's storage in the engine's folder.
///
/// # Errors
/// [`RecordError::Format`] where another version of the node kept its votes: they cannot be read,
/// and a node that continued without them could vote against them.
pub(super) fn blobs_folder(disk: &SharedDisk, directory: &Path) -> Result<PathBuf, RecordError> {
    let listed =
        disk.list(directory).map_err(|source| RecordError::io(directory, "listing", source))?;
    let is_old = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| OLD_FOLDERS.iter().any(|old| name.starts_with(old)))
    };
    match listed.iter().find(|path| is_old(path)) {
        None => Ok(directory.join(BLOBS)),
        Some(old) => Err(RecordError::Format {
            path: old.clone(),
            found: "votes in a file each".into(),
            wanted: "one log of all votes".into(),
        }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use disk::RealDisk;

    use super::*;

    #[test]
    fn lost_votes_keep_the_node_silent_across_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("data").join("consensus");
        let disk = RealDisk::shared();
        // The first start of all, and later ones.
        assert_eq!(silent_until(&disk, &directory, None).unwrap(), None);
        assert_eq!(silent_until(&disk, &directory, Some(0)).unwrap(), None);
        assert_eq!(silent_until(&disk, &directory, Some(7)).unwrap(), None);
        fs::remove_dir_all(&directory).unwrap();
        // Cut off while the folder was made.
        fs::create_dir_all(directory.with_extension("new")).unwrap();
        assert_eq!(silent_until(&disk, &directory, Some(7)).unwrap(), Some(7));
        assert_eq!(silent_until(&disk, &directory, Some(9)).unwrap(), Some(7));
        let path = directory.join(FILE);
        let whole = fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            assert!(silent_until(&disk, &directory, Some(9)).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn votes_of_another_version_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, directory) = (RealDisk::shared(), folder.path().join("consensus"));
        silent_until(&disk, &directory, None).unwrap();
        assert_eq!(blobs_folder(&disk, &directory).unwrap(), directory.join(BLOBS));
        fs::create_dir(directory.join("simplex-3")).unwrap();
        let refused = blobs_folder(&disk, &directory);
        assert!(matches!(refused, Err(RecordError::Format { .. })), "{refused:?}");
    }
}
