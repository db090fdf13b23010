//! Whether this node still knows how it voted.
//!
//! The engine's journal keeps a node from voting twice in a round. A node whose files were lost, all but its keys, has no such journal and could vote against what it said
//! before. So it is silent, following without a share, up to the end of the newest epoch in which it may have voted; that epoch is noted beside its keys.
//!
//! The silence is written down with the new folder of the engine, in one step: were it not, a restart would forget it. A node that starts for the first time has voted
//! nowhere and is not silent.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

const FILE: &str = "silent-until";

/// The last epoch in which this node has to be silent, if there is one. `voted` is the newest in which it may have voted. Makes the engine's folder if it is absent.
pub(super) fn silent_until(directory: &Path, voted: Option<u64>) -> io::Result<Option<u64>> {
    if !directory.exists() {
        let scratch = directory.with_extension("new");
        match fs::remove_dir_all(&scratch) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir_all(&scratch)?,
        }
        if let Some(voted) = voted {
            let mut file = File::create(scratch.join(FILE))?;
            file.write_all(voted.to_string().as_bytes())?;
            file.sync_all()?;
        }
        File::open(&scratch)?.sync_all()?;
        fs::rename(&scratch, directory)?;
        if let Some(parent) = directory.parent() {
            File::open(parent)?.sync_all()?;
        }
    }
    match fs::read_to_string(directory.join(FILE)) {
        Ok(text) => text.trim().parse().map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn whoever_lost_its_votes_is_silent_however_often_it_starts() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("data").join("consensus");
        // The first start of all, and later ones.
        assert_eq!(silent_until(&directory, None).unwrap(), None);
        assert_eq!(silent_until(&directory, Some(0)).unwrap(), None);
        assert_eq!(silent_until(&directory, Some(7)).unwrap(), None);
        fs::remove_dir_all(&directory).unwrap();
        // Cut off while the folder was made.
        fs::create_dir_all(directory.with_extension("new")).unwrap();
        assert_eq!(silent_until(&directory, Some(7)).unwrap(), Some(7));
        assert_eq!(silent_until(&directory, Some(9)).unwrap(), Some(7));
        fs::write(directory.join(FILE), "nonsense").unwrap();
        assert!(silent_until(&directory, Some(9)).is_err());
    }
}
