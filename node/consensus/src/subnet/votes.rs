//! Whether this node still knows how it voted.
//!
//! A node that lost all its files but its keys could vote against its earlier votes. So it abstains
//! up to the end of the newest epoch in which it may have voted, which is recorded with its keys.
//! The abstention is recorded with the new folder of the engine, in one step: otherwise a restart
//! would forget it.

use std::path::Path;

use disk::{
    SharedDisk, if_there,
    records::{Kind, RecordError, RecordSlot},
};

const FILE: &str = "silent-until";
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
}
