//! The log of nullifiers: which were used in the epochs in question, and with which share.
//!
//! A table of buckets in one file that is as large from the start as it will ever be, so that a
//! disk that is full later does not matter. A bucket is a page; a nullifier's bytes select its
//! bucket. Two epochs are in question at any time, because messages more than 20 s off the clock
//! are not judged: even and odd epochs have a half of the file each. A page names its epoch, and is
//! empty for any other: nothing has to be cleared when an epoch begins.
//!
//! ```text
//! page 0                  MAGIC, version, buckets of a half
//! page 1 + half * buckets + bucket
//!                         epoch u64, entries u32, zeros up to 32, then entries of 32 bytes:
//!                         16 bytes of the nullifier, 8 of the share, 8 of the message's id
//! ```
//!
//! Numbers are little-endian. Nothing is synced: after `kill -9` the log is whole; after a power
//! cut, nullifiers of the last seconds may be missing, and a page that was cut short has entries
//! that match nothing. No entry crosses a sector, so none is cut in two.
//!
//! Bounds: [`relay_limits::RLN_NULLIFIER_BYTES`] of disk for each nullifier of an epoch that fits;
//! one page in memory. A full page refuses further entries; pages are half full when an epoch has
//! as many as were planned. It must never know whether a nullifier's proof is valid.

use std::{io, path::Path};

use anyhow::{Context, Result, ensure};
use disk::{Disk, DiskFile, Open, read_exact};
use protocol::rate_limit_proof::FIELD_BYTES;

const MAGIC: [u8; 8] = *b"rln-null";
const VERSION: u32 = 1;
const PAGE_BYTES: usize = 4096;
const HEAD_BYTES: usize = 32;
const ENTRY_BYTES: usize = 32;
const PAGE_ENTRIES: usize = (PAGE_BYTES - HEAD_BYTES) / ENTRY_BYTES;
/// Entries of a page when an epoch has as many as were planned. Half of the room, so that uneven
/// pages do not matter.
const PLANNED_ENTRIES: u64 = 64;
const EPOCHS: u64 = 2;
/// Written at once when the file is made.
const PIECE_BYTES: usize = 16 * PAGE_BYTES;

const _: () = {
    let file = EPOCHS * PAGE_BYTES as u64;
    assert!(relay_limits::RLN_NULLIFIER_BYTES * PLANNED_ENTRIES == file, "the disk line counts it");
    assert!(PAGE_ENTRIES as u64 > PLANNED_ENTRIES * 3 / 2 && ENTRY_BYTES == 16 + 8 + 8);
    assert!(
        HEAD_BYTES.is_multiple_of(ENTRY_BYTES) && 512_usize.is_multiple_of(ENTRY_BYTES),
        "no entry crosses a sector"
    );
};

/// What was noted of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    bytes: [u8; ENTRY_BYTES],
    bucket: u64,
}

impl Entry {
    /// `message` is the id of the message as it was sent.
    pub(super) fn new(
        nullifier: &[u8; FIELD_BYTES],
        share_x: &[u8; FIELD_BYTES],
        message: &[u8; 32],
    ) -> Self {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..16].copy_from_slice(&nullifier[..16]);
        bytes[16..24].copy_from_slice(&share_x[..8]);
        bytes[24..].copy_from_slice(&message[..8]);
        let mut bucket = [0; 8];
        bucket.copy_from_slice(&nullifier[16..24]);
        Self { bytes, bucket: u64::from_le_bytes(bucket) }
    }

    /// How it compares with what is noted of its nullifier.
    fn compared(&self, noted: &[u8; ENTRY_BYTES]) -> Option<NullifierUse> {
        if noted[..16] != self.bytes[..16] {
            return None;
        }
        Some(match (noted[16..24] == self.bytes[16..24], noted[24..] == self.bytes[24..]) {
            (true, true) => NullifierUse::Same,
            (true, false) => NullifierUse::OtherBytes,
            (false, _) => NullifierUse::OtherShare,
        })
    }
}

/// What the log has under a nullifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NullifierUse {
    /// Nothing so far.
    New,
    /// This message.
    Same,
    /// The same signal, in a message of other bytes.
    OtherBytes,
    /// Another signal: the rate limit is exceeded.
    OtherShare,
    /// Nothing, and there is no room for it.
    Full,
}

#[derive(Debug)]
pub(super) struct NullifierLog {
    file: Box<dyn DiskFile>,
    /// Of each half.
    buckets: u64,
    page: Page,
    /// Where `page` was read from or written to; `None` after an error.
    loaded: Option<u64>,
}

#[derive(Debug)]
struct Page {
    bytes: Box<[u8; PAGE_BYTES]>,
}

impl Page {
    fn epoch(&self) -> u64 {
        u64::from_le_bytes(self.array(0))
    }

    fn entries(&self) -> usize {
        // A page that was cut short may say anything.
        (u32::from_le_bytes(self.array(8)) as usize).min(PAGE_ENTRIES)
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.bytes[at..at + N]);
        bytes
    }

    /// Empties it for another epoch.
    fn begin(&mut self, epoch: u64) {
        self.bytes.fill(0);
        self.bytes[..8].copy_from_slice(&epoch.to_le_bytes());
    }

    fn find(&self, entry: &Entry) -> Option<NullifierUse> {
        let (entries, _) = self.bytes[HEAD_BYTES..].as_chunks::<ENTRY_BYTES>();
        entries.iter().take(self.entries()).find_map(|noted| entry.compared(noted))
    }

    fn add(&mut self, entry: &Entry) {
        let count = self.entries();
        debug_assert!(count < PAGE_ENTRIES, "{count} entries of a page");
        let at = HEAD_BYTES + count * ENTRY_BYTES;
        self.bytes[at..at + ENTRY_BYTES].copy_from_slice(&entry.bytes);
        self.bytes[8..12].copy_from_slice(&(count as u32 + 1).to_le_bytes());
    }
}

impl NullifierLog {
    /// Opens the log in this folder, or makes it: for `nullifiers` of one epoch. A file of another
    /// size or version is made anew.
    pub(super) fn open(disk: &dyn Disk, folder: &Path, nullifiers: u64) -> Result<Self> {
        let buckets = nullifiers.div_ceil(PLANNED_ENTRIES).max(1);
        let path = folder.join("nullifiers");
        disk.create_folder(folder).with_context(|| format!("making {}", folder.display()))?;
        let opened = || -> Result<Box<dyn DiskFile>> {
            let file = disk.open(&path, Open::Create)?;
            if is_whole(&*file, buckets)? {
                return Ok(file);
            }
            make(disk, &path, buckets)
        };
        let file = opened().with_context(|| format!("opening {}", path.display()))?;
        let page = Page { bytes: Box::new([0; PAGE_BYTES]) };
        Ok(Self { file, buckets, page, loaded: None })
    }

    /// What is noted under a nullifier.
    pub(super) fn look_up(&mut self, epoch: u64, entry: &Entry) -> io::Result<NullifierUse> {
        self.load(epoch, entry)?;
        if self.page.epoch() != epoch {
            return Ok(NullifierUse::New);
        }
        Ok(self.page.find(entry).unwrap_or(NullifierUse::New))
    }

    /// The same, and notes the entry if its nullifier is new.
    pub(super) fn note(&mut self, epoch: u64, entry: &Entry) -> io::Result<NullifierUse> {
        let noted = self.look_up(epoch, entry)?;
        if noted != NullifierUse::New {
            return Ok(noted);
        }
        let Some(at) = self.loaded.take() else { return Ok(NullifierUse::Full) };
        if self.page.epoch() != epoch {
            self.page.begin(epoch);
        }
        if self.page.entries() >= PAGE_ENTRIES {
            return Ok(NullifierUse::Full);
        }
        self.page.add(entry);
        self.file.write_at(&self.page.bytes[..], at)?;
        self.loaded = Some(at);
        Ok(NullifierUse::New)
    }

    fn load(&mut self, epoch: u64, entry: &Entry) -> io::Result<()> {
        let page = 1 + epoch % EPOCHS * self.buckets + entry.bucket % self.buckets;
        let at = page * PAGE_BYTES as u64;
        if self.loaded != Some(at) {
            self.loaded = None;
            read_exact(&*self.file, &mut self.page.bytes[..], at)?;
            self.loaded = Some(at);
        }
        Ok(())
    }
}

fn head(buckets: u64) -> [u8; 20] {
    let mut head = [0; 20];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..].copy_from_slice(&buckets.to_le_bytes());
    head
}

fn file_bytes(buckets: u64) -> u64 {
    (1 + EPOCHS * buckets) * PAGE_BYTES as u64
}

/// Whether the file was made to its end, for this number of buckets, by this version.
fn is_whole(file: &dyn DiskFile, buckets: u64) -> io::Result<bool> {
    if file.length()? != file_bytes(buckets) {
        return Ok(false);
    }
    let mut found = [0; 20];
    read_exact(file, &mut found, 0)?;
    Ok(found == head(buckets))
}

/// Makes the file, empty and with all its space. Its head is written last.
fn make(disk: &dyn Disk, path: &Path, buckets: u64) -> Result<Box<dyn DiskFile>> {
    let length = file_bytes(buckets);
    ensure!(buckets <= u64::from(u32::MAX), "{buckets} pages are too many for a file");
    let file = disk.open(path, Open::Truncate)?;
    let zeros = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < length {
        let piece = (length - at).min(PIECE_BYTES as u64);
        file.write_at(&zeros[..piece as usize], at)
            .with_context(|| format!("taking {length} bytes of disk"))?;
        at += piece;
    }
    file.sync_data()?;
    file.write_at(&head(buckets), 0)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use disk::{RealDisk, SimulatedDisk};
    use proptest::prelude::*;

    use super::*;

    fn field(number: u64) -> [u8; FIELD_BYTES] {
        // Spread over buckets as hashes are.
        let mut bytes = [0; FIELD_BYTES];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        bytes[16..24].copy_from_slice(&spread.to_le_bytes());
        bytes
    }

    fn entry(nullifier: u64, share: u64, message: u8) -> Entry {
        Entry::new(&field(nullifier), &field(share), &[message; 32])
    }

    fn log(folder: &Path) -> NullifierLog {
        NullifierLog::open(&RealDisk, folder, 1000).unwrap()
    }

    #[test]
    fn a_nullifier_is_new_once_in_its_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path());
        assert_eq!(log.look_up(7, &entry(1, 2, 3)).unwrap(), NullifierUse::New);
        assert_eq!(log.note(7, &entry(1, 2, 3)).unwrap(), NullifierUse::New);
        assert_eq!(log.note(7, &entry(1, 2, 3)).unwrap(), NullifierUse::Same);
        assert_eq!(log.note(7, &entry(1, 2, 4)).unwrap(), NullifierUse::OtherBytes);
        assert_eq!(log.note(7, &entry(1, 9, 3)).unwrap(), NullifierUse::OtherShare);
        assert_eq!(log.look_up(7, &entry(1, 9, 3)).unwrap(), NullifierUse::OtherShare);
        assert_eq!(log.note(8, &entry(1, 9, 3)).unwrap(), NullifierUse::New);
        assert_eq!(log.note(7, &entry(1, 9, 3)).unwrap(), NullifierUse::OtherShare);
        // The epoch after the next takes the place of this one.
        assert_eq!(log.note(9, &entry(1, 9, 3)).unwrap(), NullifierUse::New);
        assert_eq!(log.look_up(8, &entry(1, 2, 3)).unwrap(), NullifierUse::OtherShare);
    }

    #[test]
    fn the_log_survives_the_process_and_its_file_never_grows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nullifiers");
        let mut written = log(folder.path());
        let bytes = fs::metadata(&path).unwrap().len();
        for number in 0..1000 {
            assert_eq!(written.note(5, &entry(number, number, 1)).unwrap(), NullifierUse::New);
        }
        drop(written);
        let mut log = log(folder.path());
        for number in 0..1000 {
            assert_eq!(
                log.note(5, &entry(number, number + 1, 1)).unwrap(),
                NullifierUse::OtherShare
            );
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
        assert!(bytes <= 1000 * relay_limits::RLN_NULLIFIER_BYTES + 3 * PAGE_BYTES as u64);
    }

    #[test]
    fn a_full_page_refuses_and_forgets_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = NullifierLog::open(&RealDisk, folder.path(), 1).unwrap();
        let most = PAGE_ENTRIES as u64;
        for number in 0..most {
            assert_eq!(log.note(5, &entry(number, 0, 1)).unwrap(), NullifierUse::New);
        }
        assert_eq!(log.note(5, &entry(most, 0, 1)).unwrap(), NullifierUse::Full);
        assert_eq!(log.note(5, &entry(most, 0, 1)).unwrap(), NullifierUse::Full);
        for number in 0..most {
            assert_eq!(log.note(5, &entry(number, 1, 1)).unwrap(), NullifierUse::OtherShare);
        }
        assert_eq!(log.note(6, &entry(most, 0, 1)).unwrap(), NullifierUse::New);
    }

    #[test]
    fn a_file_of_another_size_or_version_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nullifiers");
        for damage in [0, 8, 12] {
            let mut written = log(folder.path());
            written.note(5, &entry(1, 1, 1)).unwrap();
            drop(written);
            let mut bytes = fs::read(&path).unwrap();
            bytes[damage] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert_eq!(log(folder.path()).look_up(5, &entry(1, 1, 1)).unwrap(), NullifierUse::New);
        }
        let mut larger = NullifierLog::open(&RealDisk, folder.path(), 5000).unwrap();
        assert_eq!(larger.note(5, &entry(1, 1, 1)).unwrap(), NullifierUse::New);
    }

    #[test]
    fn a_disk_that_is_full_later_does_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("disk");
        let disk = SimulatedDisk::new(&root, 1).unwrap();
        let mut log = NullifierLog::open(&disk, &root.join("rln"), 1000).unwrap();
        disk.limit_growth(Some(0));
        for number in 0..1000 {
            assert_eq!(log.note(5, &entry(number, 1, 1)).unwrap(), NullifierUse::New);
        }
    }

    #[test]
    fn a_power_cut_leaves_a_log_that_can_be_used() {
        for seed in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("disk");
            let disk = SimulatedDisk::new(&root, seed).unwrap();
            let mut log = NullifierLog::open(&disk, &root.join("rln"), 100).unwrap();
            for number in 0..50 {
                log.note(5, &entry(number, 1, 1)).unwrap();
            }
            drop(log);
            disk.cut_power().unwrap();
            let mut log = NullifierLog::open(&RealDisk, &root.join("rln"), 100).unwrap();
            for number in 0..50 {
                let noted = log.note(5, &entry(number, 1, 1)).unwrap();
                assert!(matches!(noted, NullifierUse::New | NullifierUse::Same), "{noted:?}");
                assert_eq!(log.note(5, &entry(number, 1, 1)).unwrap(), NullifierUse::Same);
            }
        }
    }

    #[test]
    fn pinned_bytes_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = NullifierLog::open(&RealDisk, folder.path(), 1).unwrap();
        log.note(0x0102_0304, &entry(5, 6, 7)).unwrap();
        log.note(0x0102_0305, &entry(8, 9, 10)).unwrap();
        let bytes = fs::read(folder.path().join("nullifiers")).unwrap();
        testing::formats::check(
            "the log of nullifiers",
            VERSION.into(),
            &[("file", bytes)],
            (1, "dfeae12fb1bed954e7dfb28dceb29d63"),
        );
    }

    proptest! {
        /// Whatever a page has on disk, it is read within its bounds.
        #[test]
        fn any_page_is_read(
            bytes in proptest::collection::vec(any::<u8>(), 2 * PAGE_BYTES), epoch in 0_u64..4,
        ) {
            let folder = tempfile::tempdir().unwrap();
            drop(NullifierLog::open(&RealDisk, folder.path(), 1).unwrap());
            let path = folder.path().join("nullifiers");
            let mut file = fs::read(&path).unwrap();
            file[PAGE_BYTES..].copy_from_slice(&bytes);
            let at = PAGE_BYTES * (1 + (epoch % 2) as usize);
            file[at..at + 8].copy_from_slice(&epoch.to_le_bytes());
            fs::write(&path, file).unwrap();
            let mut log = NullifierLog::open(&RealDisk, folder.path(), 1).unwrap();
            let noted = log.note(epoch, &entry(1, 2, 3)).unwrap();
            let again = log.note(epoch, &entry(1, 2, 3)).unwrap();
            match noted {
                NullifierUse::New => prop_assert_eq!(again, NullifierUse::Same),
                other => prop_assert_eq!((other, again), (NullifierUse::Full, NullifierUse::Full)),
            }
        }
    }
}
