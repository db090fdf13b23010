//! Files that are written whole: a reader sees the old content or the new, after a crash too.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use crate::{Disk, Open, RealDisk, if_there};

/// Users that may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// The owner alone: it is a secret.
    Owner,
    /// Those that the process's mask allowed when the process started.
    All,
}

/// Writes the content to a temporary file in the same folder, syncs it, and renames it; durable on
/// return. A path that is not a regular file (a terminal, a pipe) is written directly.
///
/// # Errors
/// Those of the file system; the old content stays then.
pub fn replace_file(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    replace_file_on(&RealDisk, path, bytes, readers)
}

/// The same on this disk.
///
/// # Errors
/// Those of the disk.
pub fn replace_file_on(
    disk: &dyn Disk,
    path: &Path,
    bytes: &[u8],
    readers: Readers,
) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it names no file"));
    };
    let scratch = path.with_file_name([".".as_ref(), name, ".new".as_ref()].join("".as_ref()));
    if_there(disk.remove(&scratch))?;
    let how = if readers == Readers::Owner { Open::Secret } else { Open::Truncate };
    let file = disk.open(&scratch, how)?;
    let for_all = crate::private::mode_for_all().filter(|_| readers == Readers::All);
    let written = for_all
        .map_or(Ok(()), |mode| fs::set_permissions(&scratch, mode))
        .and_then(|()| file.write_at(bytes, 0))
        .and_then(|()| file.sync_all())
        .and_then(|()| disk.rename(&scratch, path));
    if let Err(error) = written {
        // As good as it was; what is left is removed by the next attempt at the latest.
        let _ = disk.remove(&scratch);
        return Err(error);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    disk.sync_folder(folder.unwrap_or(Path::new(".")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        replace_file(&path, b"one", Readers::Owner).unwrap();
        let first = fs::metadata(&path).unwrap();
        assert_eq!(first.permissions().mode() & 0o777, 0o600);
        // A file left by a crash does not prevent the next write.
        fs::write(folder.path().join(".file.new"), "half").unwrap();
        replace_file(&path, b"two", Readers::All).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_ne!(fs::metadata(&path).unwrap().ino(), first.ino());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = replace_file(&folder.path().join("no/such"), b"", Readers::All).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        replace_file(Path::new("/dev/null"), b"three", Readers::All).unwrap();
        assert!(replace_file(Path::new("/"), b"", Readers::All).is_err());
    }
}
