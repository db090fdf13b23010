//! Files of keys and of the ceremony on disk: written whole or not at all, read only up to a size,
//! secrets for their owner's eyes and wiped after use.

use std::{
    fs,
    io::Read,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
pub(crate) use disk::Readers;
use disk::{Disk, DiskFile, Lock, Open, RealDisk, if_there};
use zeroize::Zeroizing;

/// Makes a folder that only its owner reads, with what `fill` puts there: whole or not at all.
pub(crate) fn create_folder(folder: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let scratch = folder.with_extension("new");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::DirBuilder::new().mode(0o700).recursive(true).create(&scratch)?;
    fill(&scratch)?;
    fs::File::open(&scratch)?.sync_all()?;
    fs::rename(&scratch, folder)?;
    sync_folder_of(folder)
}

pub(crate) fn write(path: &Path, bytes: &[u8], readers: Readers) -> Result<()> {
    write_on(&RealDisk, path, bytes, readers)
}

fn write_on(disk: &dyn Disk, path: &Path, bytes: &[u8], readers: Readers) -> Result<()> {
    disk::replace_file_on(disk, path, bytes, readers)
        .with_context(|| format!("writing {}", path.display()))
}

/// Writes a secret in the place of an older one, and overwrites the older one on the medium, as far
/// as the medium lets.
pub(crate) fn replace_secret(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_secret_on(&RealDisk, path, bytes)
}

fn replace_secret_on(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<()> {
    let old =
        disk.open(path, Open::Write).with_context(|| format!("opening {}", path.display()))?;
    write_on(disk, path, bytes, Readers::Owner)?;
    overwrite(old.as_ref()).with_context(|| format!("erasing what {} was before", path.display()))
}

/// Removes a secret, and overwrites it on the medium, as far as the medium lets.
pub(crate) fn erase(path: &Path) -> Result<()> {
    erase_on(&RealDisk, path)
}

fn erase_on(disk: &dyn Disk, path: &Path) -> Result<()> {
    let erased = || -> Result<()> {
        let old = disk.open(path, Open::Write)?;
        // First the name: a half-overwritten file must not be read.
        disk.remove(path)?;
        sync_folder_on(disk, path)?;
        Ok(overwrite(old.as_ref())?)
    };
    erased().with_context(|| format!("erasing {}", path.display()))
}

fn overwrite(file: &dyn DiskFile) -> std::io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let length = file.length()?;
    let mut at = 0;
    while at < length {
        let bytes = (length - at).min(ZEROS.len() as u64);
        file.write_at(&ZEROS[..bytes as usize], at)?;
        at += bytes;
    }
    file.sync_all()
}

/// Reads a file that has at most `bytes_max` bytes.
pub(crate) fn read(path: &Path, bytes_max: usize) -> Result<Vec<u8>> {
    read_into(path, bytes_max, Vec::new())
}

/// The same, decoded.
pub(crate) fn read_as<T, E>(
    path: &Path,
    bytes_max: usize,
    decode: impl FnOnce(&[u8]) -> Result<T, E>,
) -> Result<T>
where
    Result<T, E>: Context<T, E>,
{
    decode(&read(path, bytes_max)?).with_context(|| format!("in {}", path.display()))
}

/// The text of a file; none when there is no such file.
pub(crate) fn read_text(path: &Path) -> Result<Option<String>> {
    if_there(fs::read_to_string(path)).with_context(|| format!("reading {}", path.display()))
}

/// Like [`read`], for a secret; none when there is no such file.
pub(crate) fn read_secret(path: &Path, bytes_max: usize) -> Result<Option<Zeroizing<Vec<u8>>>> {
    if !path.exists() {
        return Ok(None);
    }
    // All the room from the start: a vector that grows leaves copies behind.
    Ok(Some(Zeroizing::new(read_into(path, bytes_max, Vec::with_capacity(bytes_max + 1))?)))
}

/// A secret of exactly `N` bytes; none when there is no such file.
pub(crate) fn read_secret_of<const N: usize>(path: &Path) -> Result<Option<Zeroizing<[u8; N]>>> {
    let Some(bytes) = read_secret(path, N)? else { return Ok(None) };
    let array: [u8; N] = bytes.as_slice().try_into().with_context(|| {
        format!("{} has {} bytes and must have {N}", path.display(), bytes.len())
    })?;
    Ok(Some(Zeroizing::new(array)))
}

fn read_into(path: &Path, bytes_max: usize, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
    let read = fs::File::open(path)
        .and_then(|file| file.take(bytes_max as u64 + 1).read_to_end(&mut bytes))
        .with_context(|| format!("reading {}", path.display()))?;
    ensure!(
        read <= bytes_max,
        "{} has more than {bytes_max} bytes, the most that are read",
        path.display()
    );
    Ok(bytes)
}

/// How long a lock that is held is waited for: a node that was killed may have had a child that was
/// just being started, which shares the lock until it is a program of its own.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Held for the life of the process; the kernel releases it however the process ends.
pub(crate) fn lock(data: &Path) -> Result<Lock> {
    let lock = try_lock(data)?;
    lock.with_context(|| format!("the data folder {} is in use by another node", data.display()))
}

/// The same; `None` while another process has it.
pub(crate) fn try_lock(data: &Path) -> Result<Option<Lock>> {
    let path = data.join("lock");
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        let file = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        let lock = Lock::take(file).with_context(|| format!("locking {}", path.display()))?;
        if let Some(lock) = lock {
            return Ok(Some(lock));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Makes durable which names are in the folder of this path.
pub(crate) fn sync_folder_of(path: &Path) -> Result<()> {
    sync_folder_on(&RealDisk, path)
}

fn sync_folder_on(disk: &dyn Disk, path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    disk.sync_folder(&parent).with_context(|| format!("syncing {}", parent.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use disk::SimulatedDisk;

    use super::*;

    /// A secret that says which it is, larger than a page.
    fn secret(number: u8) -> Vec<u8> {
        vec![number; 6_000]
    }

    // Promise: P6 - Keys survive 300 power cuts whole, and an erased key does not return.
    #[test]
    fn a_power_cut_leaves_a_secret_whole_and_an_erased_one_gone() {
        let (mut replaced, mut kept) = (0, 0);
        for seed in 0..300_u64 {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("disk");
            let disk = SimulatedDisk::new(&root, seed).unwrap();
            let path = root.join("key");
            write_on(&disk, &path, &secret(1), Readers::Owner).unwrap();
            disk.end_after(1 + seed % 12, seed.is_multiple_of(2));
            let mut done = 1;
            for number in 2..5 {
                if replace_secret_on(&disk, &path, &secret(number)).is_err() {
                    break;
                }
                done = number;
            }
            disk.cut_power().unwrap();
            let found = fs::read(&path).unwrap();
            let number = found[0];
            assert_eq!(found, secret(number), "seed {seed}: a secret is whole");
            assert!(
                number == done || number == done + 1,
                "seed {seed}: {done} was durable, {number} is there"
            );
            replaced += u32::from(number > 1);
            kept += u32::from(number == done);
            // What is erased does not come back.
            erase_on(&disk, &path).unwrap();
            disk.cut_power().unwrap();
            assert!(!path.exists(), "seed {seed}");
        }
        assert!(replaced > 50 && kept > 50, "{replaced} replaced, {kept} kept");
    }

    #[test]
    fn a_file_is_replaced_whole_and_a_leftover_does_not_hinder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(folder.path().join(".file.new"), "left over").unwrap();
        write(&path, b"one", Readers::Owner).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let before = fs::metadata(&path).unwrap().ino();
        write(&path, b"two", Readers::Owner).unwrap();
        assert_ne!(fs::metadata(&path).unwrap().ino(), before, "not written in place");
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = write(&folder.path().join("no/such"), b"", Readers::All).unwrap_err();
        assert!(format!("{error:#}").contains("no/such"), "{error:#}");
    }

    #[test]
    fn an_older_secret_is_gone_from_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write(&path, b"the old secret", Readers::Owner).unwrap();
        let mut old = fs::File::open(&path).unwrap();
        replace_secret(&path, b"new").unwrap();
        let mut found = Vec::new();
        old.read_to_end(&mut found).unwrap();
        assert_eq!(found, [0; 14]);
        assert_eq!(*read_secret(&path, 3).unwrap().unwrap(), b"new");
    }

    #[test]
    fn an_erased_secret_is_gone_from_the_medium() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write(&path, b"secret", Readers::Owner).unwrap();
        let mut old = fs::File::open(&path).unwrap();
        erase(&path).unwrap();
        assert!(!path.exists());
        let mut found = Vec::new();
        old.read_to_end(&mut found).unwrap();
        assert_eq!(found, [0; 6]);
        assert!(format!("{:#}", erase(&path).unwrap_err()).contains("key"));
    }

    #[test]
    fn reading_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(read_secret(&path, 4).unwrap().is_none());
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        let error = read(&path, 4).unwrap_err().to_string();
        assert!(error.contains("more than 4 bytes"), "{error}");
        assert!(read(Path::new("/dev/zero"), 100).is_err());
        let error = read_secret_of::<6>(&path).unwrap_err().to_string();
        assert!(error.contains("has 5 bytes and must have 6"), "{error}");
    }

    #[test]
    fn what_is_no_file_is_written_and_stays() {
        write(Path::new("/dev/null"), b"bytes", Readers::All).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_folder_in_use_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let held = lock(folder.path()).unwrap();
        assert!(lock(folder.path()).unwrap_err().to_string().contains("in use"));
        drop(held);
        lock(folder.path()).unwrap();
    }
}
