//! Hashes of files that were hashed before, so that an unchanged file is not read again.
//!
//! A file is the same and unchanged when device, inode, size, time of modification and time of
//! change are. A change within the clock's tick of an earlier one changes none of the times, so a
//! hash is remembered only for a file whose last change is a few seconds old when the hashing
//! begins, and that is the same when it ends. One case is not detected: a program that has the file
//! mapped and writes into a page that was dirty all the time. `image add --rehash` reads the file
//! in any case.
//!
//! Bounds: [`KNOWN_MAX`] files; the ones remembered longest ago are forgotten.

use std::{
    fs::{self, File},
    io::{Read, Seek},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    Error, Result,
    files::{self, Identity},
    progress::Progress,
};

/// More images than a machine has.
const KNOWN_MAX: usize = 1024;
/// One entry is a few hundred bytes.
const ENTRY_BYTES_MAX: u64 = 4096;
const BUFFER_BYTES: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Entry {
    identity: Identity,
    #[serde(with = "hex")]
    sha256: [u8; 32],
}

/// The folder of known hashes.
#[derive(Debug)]
pub(crate) struct HashCache(pub(crate) PathBuf);

impl HashCache {
    /// SHA-256 of an open file, from its beginning; whether it had to be read.
    pub(crate) fn hash(
        &self,
        file: &mut File,
        path: &Path,
        progress: &Progress,
    ) -> Result<([u8; 32], bool)> {
        let identity = identity(file, path)?;
        if let Some(sha256) = self.recall(&identity) {
            return Ok((sha256, false));
        }
        let settled = identity.is_settled();
        let sha256 = hash(file, path, progress)?;
        if settled && identity == self::identity(file, path)? {
            // Only costs the time of another hashing.
            let _ = self.remember(&Entry { identity, sha256 });
        }
        Ok((sha256, true))
    }

    /// A hash that need not be computed.
    fn recall(&self, identity: &Identity) -> Option<[u8; 32]> {
        let bytes = files::read_small(&self.path(identity), ENTRY_BYTES_MAX).ok()??;
        let entry: Entry = serde_json::from_slice(&bytes).ok()?;
        (entry.identity == *identity).then_some(entry.sha256)
    }

    fn remember(&self, entry: &Entry) -> std::io::Result<()> {
        let path = self.path(&entry.identity);
        let scratch = self.0.join(format!("new.{}", files::unique()));
        fs::write(&scratch, serde_json::to_vec(entry)?)?;
        fs::rename(&scratch, path)?;
        self.forget_oldest()
    }

    fn forget_oldest(&self) -> std::io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            entries.push((entry.metadata()?.modified()?, entry.path()));
        }
        entries.sort();
        for (_, path) in entries.iter().take(entries.len().saturating_sub(KNOWN_MAX)) {
            fs::remove_file(path)?;
        }
        Ok(())
    }

    /// One file per inode, so that what a changed file was is replaced.
    fn path(&self, identity: &Identity) -> PathBuf {
        // Device numbers are a machine's own, and machines can share a cache.
        let host = fs::read("/etc/machine-id").unwrap_or_default();
        let mut hasher = Sha256::new();
        hasher.update(identity.device.to_le_bytes());
        hasher.update(identity.inode.to_le_bytes());
        hasher.update(host);
        self.0.join(hex::encode(&hasher.finalize()[..16]))
    }
}

fn identity(file: &File, path: &Path) -> Result<Identity> {
    Ok(Identity::from_metadata(&file.metadata().map_err(Error::io("looking at", path))?))
}

/// SHA-256 of all of a file.
pub(crate) fn hash(file: &mut File, path: &Path, progress: &Progress) -> Result<[u8; 32]> {
    let fail = Error::io("reading", path);
    file.rewind().map_err(&fail)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finalize().into()),
            Ok(count) => {
                hasher.update(buffer.get(..count).unwrap_or_default());
                progress.advance(count as u64, 0)?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(fail(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::Settings;

    /// A memory of its own, and an image in `folder`.
    fn place(folder: &Path) -> (HashCache, PathBuf, Progress) {
        let known = HashCache(folder.join("known"));
        fs::create_dir(&known.0).unwrap();
        let path = folder.join("image");
        fs::write(&path, b"one").unwrap();
        let settings = Settings { talks: false, ..Settings::default() };
        let progress = Progress::new("hashing", &path, 0, &settings);
        (known, path, progress)
    }

    // Promise: P25 - A change within one tick of the clock is detected.
    /// A file is changed, and its times are set back so far that the change cannot be seen in them:
    /// what happens within one tick of a coarse clock. The hash must not be believed.
    #[test]
    fn a_change_within_the_tick_of_the_clock_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let (known, path, progress) = place(folder.path());
        let mut file = File::options().read(true).write(true).open(&path).unwrap();
        let first = known.hash(&mut file, &path, &progress).unwrap();
        assert!(first.1);
        // Its ctime is now: nothing was remembered, so a change of the same length is found.
        let again = known.hash(&mut file, &path, &progress).unwrap();
        assert!(again.1, "a fresh file was remembered");
        fs::write(&path, b"two").unwrap();
        assert_ne!(known.hash(&mut file, &path, &progress).unwrap().0, first.0);
        // An old modification time does not help: it can be set, and setting it is a change.
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        assert!(known.hash(&mut file, &path, &progress).unwrap().1);
        assert!(known.hash(&mut file, &path, &progress).unwrap().1);
    }

    #[test]
    fn a_settled_file_is_not_read_again_and_a_changed_one_is() {
        let folder = tempfile::tempdir().unwrap();
        let (known, path, progress) = place(folder.path());
        let mut file = File::open(&path).unwrap();
        // Waiting for the clock is what this test is about.
        while !identity(&file, &path).unwrap().is_settled() {
            std::thread::sleep(Duration::from_millis(50));
        }
        let first = known.hash(&mut file, &path, &progress).unwrap();
        let second = known.hash(&mut file, &path, &progress).unwrap();
        assert_eq!((first.0, first.1, second.1), (second.0, true, false));
        let other = Identity { inode: 1, ..identity(&file, &path).unwrap() };
        assert_eq!(known.recall(&other), None);
        fs::write(&path, b"two").unwrap();
        let third = known.hash(&mut file, &path, &progress).unwrap();
        assert!(third.1 && third.0 != first.0);
        // Entries of another program, or incomplete ones, are rejected.
        for entry in fs::read_dir(&known.0).unwrap() {
            fs::write(entry.unwrap().path(), b"{").unwrap();
        }
        assert!(known.hash(&mut file, &path, &progress).unwrap().1);
    }

    #[test]
    fn hash_cache_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let known = HashCache(folder.path().to_owned());
        let file = File::open("/proc/self/exe").unwrap();
        let identity = identity(&file, Path::new("exe")).unwrap();
        for inode in 0..KNOWN_MAX as u64 + 20 {
            let entry = Entry { identity: Identity { inode, ..identity }, sha256: [0; 32] };
            if inode % 64 == 0 || inode > KNOWN_MAX as u64 {
                known.remember(&entry).unwrap();
            } else {
                fs::write(known.path(&entry.identity), serde_json::to_vec(&entry).unwrap())
                    .unwrap();
            }
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), KNOWN_MAX);
    }
}
