//! One number that is overwritten in place, in a file of its own.
//!
//! Two slots in different sectors are written in turns, each
//! `sequence: u64, value: u64, crc32: u32` (little-endian); the newest that checks counts. So a
//! write that a crash tore leaves the value before it, and one flipped bit at most takes back the
//! last write. Writing is not syncing: it survives the process at once, and a power cut from the
//! next [`NumberFile::sync`] on. Callers must tolerate an older number.

use std::{io, path::Path};

use crate::{Disk, DiskFile, Open, read_full};

const SLOT_BYTES: usize = 20;
/// Distance of the slots: no sector holds both.
const STRIDE: u64 = 4096;
const _: () = assert!(SLOT_BYTES == 8 + 8 + 4, "sequence, value, checksum");
const _: () = assert!(SLOT_BYTES as u64 <= STRIDE, "slots are on pages of their own");

/// See the module.
#[derive(Debug)]
pub struct NumberFile {
    file: Box<dyn DiskFile>,
    sequence: u64,
    value: Option<u64>,
    damaged: bool,
}

impl NumberFile {
    /// Opens the file at `path`, made if absent.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn open(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        let file = disk.open(path, Open::Create)?;
        let (mut newest, mut bad) = (None, 0);
        for slot in 0..2 {
            let mut bytes = [0; SLOT_BYTES];
            read_full(file.as_ref(), &mut bytes, slot * STRIDE)?;
            match decode(&bytes) {
                Some(found) => newest = newest.max(Some(found)),
                None => bad += usize::from(bytes != [0; SLOT_BYTES]),
            }
        }
        let (sequence, value) =
            newest.map_or((0, None), |(sequence, value)| (sequence, Some(value)));
        Ok(Self { file, sequence, value, damaged: bad > 0 })
    }

    /// The newest value that was written and is readable.
    pub fn value(&self) -> Option<u64> {
        self.value
    }

    /// A slot did not check when the file was opened: a later value than [`Self::value`] may have
    /// been written.
    pub fn was_damaged(&self) -> bool {
        self.damaged
    }

    /// Writes `value`, without syncing.
    ///
    /// # Errors
    /// Those of the disk; the value before it is kept then.
    pub fn remember(&mut self, value: u64) -> io::Result<()> {
        let sequence = self.sequence + 1;
        self.file.write_at(&encode(sequence, value), (sequence % 2) * STRIDE)?;
        (self.sequence, self.value) = (sequence, Some(value));
        Ok(())
    }

    /// Makes all writes durable.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn encode(sequence: u64, value: u64) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..8].copy_from_slice(&sequence.to_le_bytes());
    bytes[8..16].copy_from_slice(&value.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[..16]);
    bytes[16..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Sequence and value of a slot that checks. Sequences begin with 1.
fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<(u64, u64)> {
    let (fields, checksum) = bytes.split_last_chunk::<4>()?;
    let (sequence, value) = fields.split_first_chunk::<8>()?;
    let sequence = u64::from_le_bytes(*sequence);
    let whole = sequence > 0 && crc32fast::hash(fields) == u32::from_le_bytes(*checksum);
    whole.then_some((sequence, u64::from_le_bytes(value.try_into().ok()?)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::RealDisk;

    // Promise: P6 - A flipped bit in a remembered value reverts at most one write.
    #[test]
    fn a_flipped_bit_takes_back_one_write_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        let mut number = NumberFile::open(&RealDisk, &path).unwrap();
        assert_eq!(number.value(), None);
        (1..=9).for_each(|value| number.remember(value).unwrap());
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(NumberFile::open(&RealDisk, &path).unwrap().value(), Some(9));
        let slots = (0..SLOT_BYTES).chain(STRIDE as usize..whole.len());
        for bit in slots.flat_map(|byte| byte * 8..byte * 8 + 8) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &bytes).unwrap();
            let number = NumberFile::open(&RealDisk, &path).unwrap();
            assert!(matches!(number.value(), Some(8 | 9)), "bit {bit}: {:?}", number.value());
            assert!(number.value() == Some(9) || number.was_damaged());
        }
    }
}
