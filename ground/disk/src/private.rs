//! Files of a program that only its owner may read.
//!
//! The mask of the process covers every file and folder that any part of the program creates,
//! libraries and child processes included. Files that are meant for others name
//! [`crate::Readers::All`] and get the mode that the mask at the start of the process allows.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::Path,
    sync::OnceLock,
};

use rustix::{fs::Mode, process::umask};

/// Mode bits of group and others.
const OTHERS: u32 = 0o077;
/// The bit that lets many users share a folder, as in `/tmp`.
const STICKY: u32 = 0o1000;
/// Mode of a file for all readers, before the mask.
const ALL_READERS: u32 = 0o666;

/// The mask of the process before [`restrict_new_files`].
static MASK_AT_START: OnceLock<u32> = OnceLock::new();

/// From here on only the owner can read files and folders that this process and its children
/// create. To be called before other threads run: the mask is one for the whole process.
pub fn restrict_new_files() {
    let before = umask(Mode::from_raw_mode(OTHERS)).as_raw_mode();
    MASK_AT_START.get_or_init(|| before);
}

/// Restores the mask of the process as it was when the process started: before it becomes another
/// program.
pub fn allow_new_files() {
    if let Some(mask) = MASK_AT_START.get() {
        umask(Mode::from_raw_mode(*mask));
    }
}

/// The mode of a file for all readers, if the mask of the process is not the one for it.
pub(crate) fn mode_for_all() -> Option<fs::Permissions> {
    MASK_AT_START.get().map(|mask| fs::Permissions::from_mode(ALL_READERS & !mask))
}

/// Makes a program's folder, and those above it, or takes the access of group and others from one
/// that exists. Returns whether it took access away.
///
/// A folder that is not the program's own keeps its mode: one without `marker`, which the program
/// keeps in its folder, that is not empty, and one that many users share.
///
/// # Errors
/// Those of the file system. A folder of another user that this process may use stays as it is, and
/// so does one of a file system without modes.
pub fn make_private_folder(path: &Path, marker: &str) -> io::Result<bool> {
    fs::DirBuilder::new().recursive(true).mode(0o777 & !OTHERS).create(path)?;
    let metadata = fs::metadata(path)?;
    let mode = metadata.mode();
    let own = || -> io::Result<bool> {
        Ok(path.join(marker).exists() || fs::read_dir(path)?.next().is_none())
    };
    if mode & OTHERS == 0 || mode & STICKY != 0 || !own()? {
        return Ok(false);
    }
    match fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o7777 & !OTHERS)) {
        Ok(()) => Ok(true),
        // Or of a file system without modes.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    // Promise: P16 - A data folder is created with, or changed to, mode 0700.
    #[test]
    fn own_folder_is_made_or_becomes_private() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("above/data");
        assert!(!make_private_folder(&data, "keys").unwrap());
        assert_eq!(mode(&data), 0o700);
        set(&data, 0o755);
        assert!(make_private_folder(&data, "keys").unwrap(), "it is empty");
        assert_eq!(mode(&data), 0o700);
        fs::create_dir(data.join("keys")).unwrap();
        set(&data, 0o750);
        assert!(make_private_folder(&data, "keys").unwrap(), "it has the marker");
        assert_eq!(mode(&data), 0o700);
    }

    // Promise: P16 - A foreign folder that is used as data folder keeps its mode.
    #[test]
    fn folder_of_others_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let shared = folder.path().join("shared");
        fs::create_dir(&shared).unwrap();
        set(&shared, 0o1777);
        assert!(!make_private_folder(&shared, "keys").unwrap());
        assert_eq!(mode(&shared), 0o1777);
        let users = folder.path().join("users");
        fs::create_dir(&users).unwrap();
        fs::write(users.join("letter"), b"mine").unwrap();
        set(&users, 0o755);
        assert!(!make_private_folder(&users, "keys").unwrap());
        assert_eq!(mode(&users), 0o755);
    }
}
