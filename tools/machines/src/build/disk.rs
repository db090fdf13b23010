//! The disk: a table of two partitions, the root, and an empty file system for the state.
//!
//! The second partition reaches to the end of the largest disk that the table can describe; a
//! kernel uses as much of it as the machine's disk has, and the first process makes the file system
//! as large. So one base serves machines with disks of any size.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{tool, work_folder::WorkFolder};

const SECTOR_BYTES: u64 = 512;
const MIB: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 4096;
/// Of the state in the base. It grows in steps of 128 MiB, the file system's own unit.
const STATE_BYTES: u64 = 128 * MIB;
/// Enough for a burst of small writes, and not much of a small disk.
const JOURNAL_MIB: u64 = 16;
/// The state may grow to this: tables for it are set apart.
const STATE_BYTES_MAX: u64 = 256 << 30;
/// File systems of the same content are the same.
const ROOT_ID: &str = "7411b1e0-0000-4000-8000-000000000001";
const STATE_ID: &str = "7411b1e0-0000-4000-8000-000000000002";
const HASH_SEED: &str = "7411b1e0-0000-4000-8000-000000000003";
/// As `mke2fs` takes it.
const TIME: &str = "1000000000";

/// Makes the disk out of the tree of the root; the bytes of the root's part.
pub(super) fn make(path: &Path, root: &Path, work: &WorkFolder) -> Result<u64> {
    let content = tree_bytes(root)?;
    // Tables take a few blocks for each file, and some per cent of all.
    let root_bytes = (content + content / 24 + MIB).next_multiple_of(MIB);
    let state_at = MIB + root_bytes;
    let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
    file.set_len(state_at + STATE_BYTES)?;
    file.write_all_at(&table(MIB, root_bytes, state_at), 0)?;
    drop(file);
    work.check()?;
    let part = |id: &str, at: u64, options: &str| {
        let mut command = Command::new(mke2fs());
        command
            .env("E2FSPROGS_FAKE_TIME", TIME)
            .args(["-q", "-F", "-t", "ext4", "-m", "0", "-b", &BLOCK_BYTES.to_string()])
            .args(["-U", id, "-E"])
            .arg(format!("offset={at},hash_seed={HASH_SEED},nodiscard,root_owner=0:0{options}"));
        command
    };
    // Read only: without a journal, and with as many inodes as it has files.
    let mut command = part(ROOT_ID, MIB, "");
    command.args(["-O", "^has_journal,^resize_inode", "-N", "256", "-d"]).arg(root);
    tool(command.arg(path).arg(format!("{}k", root_bytes / 1024)), "e2fsprogs")
        .context("making the root")?;
    let blocks_max = STATE_BYTES_MAX / BLOCK_BYTES;
    let options = format!(",resize={blocks_max},lazy_itable_init=0,lazy_journal_init=0");
    let mut command = part(STATE_ID, state_at, &options);
    command.args(["-i", "65536", "-J", &format!("size={JOURNAL_MIB}")]).arg(path);
    tool(command.arg(format!("{}k", STATE_BYTES / 1024)), "e2fsprogs")
        .context("making the state")?;
    OpenOptions::new().write(true).open(path)?.sync_all()?;
    Ok(root_bytes)
}

/// Not every user has the folder of it on the path.
fn mke2fs() -> PathBuf {
    let usual = Path::new("/usr/sbin/mke2fs");
    if usual.exists() { usual.to_owned() } else { "mke2fs".into() }
}

fn tree_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => BLOCK_BYTES + tree_bytes(&entry.path())?,
            false => entry.metadata()?.len().next_multiple_of(BLOCK_BYTES),
        };
    }
    Ok(bytes)
}

/// The first sector: the table of the two parts, in the format every kernel reads.
fn table(root_at: u64, root_bytes: u64, state_at: u64) -> [u8; SECTOR_BYTES as usize] {
    let mut sector = [0; SECTOR_BYTES as usize];
    // The disk signature.
    sector[440..444].copy_from_slice(b"thmb");
    let sectors = |bytes: u64| u32::try_from(bytes / SECTOR_BYTES).unwrap_or(u32::MAX);
    let state_from = sectors(state_at);
    let parts = [(sectors(root_at), sectors(root_bytes)), (state_from, u32::MAX - state_from)];
    for (entry, (first, count)) in sector[446..].chunks_exact_mut(16).zip(parts) {
        // Linux, and no address in cylinders.
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..16].copy_from_slice(&count.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

#[cfg(test)]
mod tests {
    use images::Stop;

    use super::*;

    // Promise: P25 - Equal programs and kernel packages produce equal disks.
    #[test]
    fn the_same_tree_makes_the_same_disk() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::write(root.join("bin/thimble"), vec![7; 3 << 20]).unwrap();
        let work = WorkFolder::new(&folder.path().join("machines"), Stop::default()).unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        let root_bytes = make(&one, &root, &work).unwrap();
        assert_eq!(make(&two, &root, &work).unwrap(), root_bytes);
        let (one, two) = (fs::read(one).unwrap(), fs::read(two).unwrap());
        assert_eq!(one.len() as u64, MIB + root_bytes + STATE_BYTES);
        assert!(one == two);
        // Where the file system's own number is.
        for at in [MIB, MIB + root_bytes] {
            assert_eq!(one[at as usize + 1024 + 56..][..2], [0x53, 0xef]);
        }
    }
}
