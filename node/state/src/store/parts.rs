//! Records in parts: values of any size in tables whose values should stay small.
//!
//! Part number n of a record has the key (key, n). Its bytes: a CRC-32 (little endian) over key,
//! number and all that follows; one byte, 1 for the record's last part and 0 for others; then the
//! content, at most [`PART_BYTES`].
//!
//! A checksum does not reveal that a record is missing altogether. So a table has a [`Tally`], kept
//! elsewhere, of how many parts it holds and of the sum of their checksums, and reading it to its
//! end compares.

use redb::{ReadTransaction, TableDefinition};
use serde::{Deserialize, Serialize};

use super::Failure;

pub(super) type Key = (&'static [u8], u32);

pub(super) type Table = TableDefinition<'static, Key, &'static [u8]>;

/// Totals of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) parts: u64,
    /// Of the parts' checksums.
    sum: u64,
}

impl Tally {
    fn add(&mut self, part: &[u8]) {
        self.parts = self.parts.wrapping_add(1);
        self.sum = self.sum.wrapping_add(stored_checksum(part));
    }

    fn subtract(&mut self, part: &[u8]) {
        self.parts = self.parts.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(stored_checksum(part));
    }
}

fn stored_checksum(part: &[u8]) -> u64 {
    part.first_chunk::<4>().map_or(0, |sum| u64::from(u32::from_le_bytes(*sum)))
}

/// A record's key and content.
pub(super) type Record = (Vec<u8>, Vec<u8>);

/// Content of one part. With key and bookkeeping it fits one allocation of 64 KiB.
pub(super) const PART_BYTES: usize = 63 << 10;

const HEADER_BYTES: usize = 5;
/// Longest key, and the number of the part.
const KEY_BYTES_MAX: usize = 32 + 4;
const _: () = assert!(HEADER_BYTES + KEY_BYTES_MAX + PART_BYTES <= 64 << 10);

fn checksum(key: &[u8], number: u32, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(&(key.len() as u32).to_le_bytes());
    hasher.update(key);
    hasher.update(body);
    hasher.finalize()
}

/// Writes or, without a record, removes; and keeps the table's tally right.
pub(super) fn put(
    table: &mut redb::Table<'_, Key, &'static [u8]>,
    tally: &mut Tally,
    key: &[u8],
    record: Option<&[u8]>,
) -> Result<(), Failure> {
    let mut number = 0u32;
    // Whether there may be a part of this number.
    let mut has_more = true;
    if let Some(record) = record {
        let mut rest = record;
        loop {
            let (content, after) = rest.split_at(rest.len().min(PART_BYTES));
            has_more = put_part(table, tally, key, number, after.is_empty(), content)?;
            number += 1;
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
    }
    // Parts left over from a longer record.
    while has_more && let Some(before) = table.remove((key, number))? {
        tally.subtract(before.value());
        has_more = !is_last(before.value());
        number += 1;
    }
    Ok(())
}

fn is_last(part: &[u8]) -> bool {
    part.get(4) == Some(&1)
}

/// Writes one part. Whether the record that it replaces has further ones: most have not, which
/// saves a search for them.
pub(super) fn put_part(
    table: &mut redb::Table<'_, Key, &'static [u8]>,
    tally: &mut Tally,
    key: &[u8],
    number: u32,
    last: bool,
    content: &[u8],
) -> Result<bool, Failure> {
    debug_assert!(content.len() <= PART_BYTES, "a part of {} bytes", content.len());
    let mut part = Vec::with_capacity(HEADER_BYTES + content.len());
    part.extend_from_slice(&[0; 4]);
    part.push(u8::from(last));
    part.extend_from_slice(content);
    let sum = checksum(key, number, &part[4..]);
    part[..4].copy_from_slice(&sum.to_le_bytes());
    let mut has_more = false;
    if let Some(before) = table.insert((key, number), part.as_slice())? {
        tally.subtract(before.value());
        has_more = !is_last(before.value());
    }
    tally.add(&part);
    Ok(has_more)
}

/// Verifies one part: whether it is its record's last, and its content.
pub(super) fn open_part<'v>(
    key: &[u8],
    number: u32,
    value: &'v [u8],
) -> Result<(bool, &'v [u8]), Failure> {
    let Some((sum, [last, content @ ..])) = value.split_first_chunk::<4>() else {
        return Err(Failure::Corrupt(format!(
            "part {number} of the record {} is cut off",
            hex::encode(key)
        )));
    };
    if u32::from_le_bytes(*sum) != checksum(key, number, &value[4..]) {
        return Err(Failure::Corrupt(format!(
            "part {number} of the record {} fails its checksum",
            hex::encode(key)
        )));
    }
    Ok((*last == 1, content))
}

/// The records of a table in the order of their keys, one in memory at a time.
pub(super) struct Records {
    parts: redb::Range<'static, Key, &'static [u8]>,
    expected: Tally,
    found: Tally,
}

impl Records {
    /// All records of a table that has this tally.
    pub(super) fn new(
        transaction: &ReadTransaction,
        table: Table,
        expected: Tally,
    ) -> Result<Self, Failure> {
        let parts = transaction.open_table(table)?.range::<(&[u8], u32)>(..)?;
        Ok(Records { parts, expected, found: Tally::default() })
    }

    /// The record under one key, if it is there. Its table needs no tally.
    pub(super) fn read_record(
        transaction: &ReadTransaction,
        table: Table,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, Failure> {
        Self::read_record_counted(transaction, table, key, &mut Tally::default())
    }

    /// The same; its parts are added to `found`.
    pub(super) fn read_record_counted(
        transaction: &ReadTransaction,
        table: Table,
        key: &[u8],
        found: &mut Tally,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let parts = transaction.open_table(table)?.range((key, 0)..=(key, u32::MAX))?;
        let mut records = Records { parts, expected: Tally::default(), found: *found };
        let record = records.record()?;
        *found = records.found;
        Ok(record.map(|(_, record)| record))
    }

    fn record(&mut self) -> Result<Option<Record>, Failure> {
        let mut found: Option<Record> = None;
        let mut expected = 0u32;
        loop {
            let Some(part) = self.parts.next() else {
                return match found {
                    None => Ok(None),
                    Some((key, _)) => Err(Failure::Corrupt(format!(
                        "the record {} has no end",
                        hex::encode(&key)
                    ))),
                };
            };
            let (key_guard, value_guard) = part?;
            let ((key, number), value) = (key_guard.value(), value_guard.value());
            if number != expected || found.as_ref().is_some_and(|(before, _)| before != key) {
                return Err(Failure::Corrupt(format!(
                    "part {expected} of a record is missing before {}",
                    hex::encode(key)
                )));
            }
            let (last, content) = open_part(key, number, value)?;
            self.found.add(value);
            let (_, record) = found.get_or_insert_with(|| (key.to_vec(), Vec::new()));
            record.extend_from_slice(content);
            if last {
                return Ok(found);
            }
            expected += 1;
        }
    }
}

impl Iterator for Records {
    type Item = Result<Record, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.record() {
            Ok(None) if self.found != self.expected => Some(Err(Failure::Corrupt(format!(
                "a table should hold {} parts of records and holds {}, or others",
                self.expected.parts, self.found.parts
            )))),
            record => record.transpose(),
        }
    }
}
