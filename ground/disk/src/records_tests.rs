#![allow(clippy::unwrap_used)]

use std::{fs, sync::Arc};

use super::*;
use crate::{RealDisk, SimulatedDisk};

const KIND: Kind = Kind { name: *b"numbers\0", version: 3, bytes_max: 1 << 20 };

/// A number of any size, so that records start at many different offsets.
fn number(value: u32) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(4 + (value as usize * 7919) % 61, value as u8);
    bytes
}

fn value(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Numbers in the file, up to damage if there is any.
fn read(disk: &dyn Disk, path: &Path) -> (Vec<u32>, Result<Option<Reader>, RecordError>) {
    let mut numbers = Vec::new();
    let mut reader = match Reader::open(disk, path, KIND, None) {
        Ok(reader) => reader,
        Err(error) => return (numbers, Err(error)),
    };
    loop {
        match reader.next() {
            Ok(Some((_, payload))) => numbers.extend(value(payload)),
            Ok(None) => return (numbers, Ok(Some(reader))),
            Err(error) => return (numbers, Err(error)),
        }
    }
}

/// Numbers 1 to `last`, each synced and followed by a mark.
fn write(path: &Path, last: u32) -> RecordFile {
    let mut file = RecordFile::create(&RealDisk, path, KIND).unwrap();
    for value in 1..=last {
        file.append([number(value).as_slice()]).unwrap();
        file.sync().unwrap();
        file.mark();
    }
    file
}

#[test]
fn records_come_back_in_order_and_a_file_goes_on_where_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    drop(write(&path, 9));
    let (numbers, reader) = read(&RealDisk, &path);
    assert_eq!(numbers, (1..=9).collect::<Vec<_>>());
    let reader = reader.unwrap().unwrap();
    assert_eq!(reader.end(), End::Whole);
    let mut file = RecordFile::resume(&RealDisk, &reader).unwrap();
    file.append([number(10).as_slice(), number(11).as_slice()]).unwrap();
    assert_eq!(read(&RealDisk, &path).0.len(), 11);
    let large = vec![1; KIND.bytes_max as usize + 1];
    assert!(matches!(file.append([large.as_slice()]), Err(RecordError::TooLarge { .. })));
    file.append([&large[1..]]).unwrap();
    assert_eq!(read(&RealDisk, &path).0.len(), 12);
}

// Promise: P6 - Each flipped bit of an acknowledged record is detected.
#[test]
fn every_flipped_bit_of_what_was_acknowledged_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    let file = write(&path, 12);
    // The last mark is not acknowledged by anything.
    let acknowledged = file.length() - HEAD_BYTES;
    let whole = fs::read(&path).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        let (numbers, end) = read(&RealDisk, &path);
        match end {
            Ok(_) => {
                assert!(bit as u64 / 8 >= acknowledged, "bit {bit} went unnoticed: {numbers:?}");
                assert_eq!(numbers.len(), 12);
            }
            Err(RecordError::Damaged { offset, .. }) => {
                assert!(offset <= bit as u64 / 8);
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn every_truncation_is_a_tear_with_what_is_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    drop(write(&path, 6));
    let whole = fs::read(&path).unwrap();
    let mut seen = 0;
    for cut in 0..=whole.len() {
        for zeros in [0, 1, 7000] {
            let mut bytes = whole[..cut].to_vec();
            bytes.resize(cut + zeros, 0);
            fs::write(&path, &bytes).unwrap();
            let (numbers, end) = read(&RealDisk, &path);
            let (Ok(Some(reader)), true) = (end, numbers.len() >= seen) else {
                assert!(
                    zeros > 0 && cut < HEADER_BYTES as usize,
                    "cut {cut}, {zeros} zeros: {numbers:?}"
                );
                continue;
            };
            if zeros == 0 {
                seen = numbers.len();
            }
            if reader.offset() >= HEADER_BYTES {
                let mut file = RecordFile::resume(&RealDisk, &reader).unwrap();
                file.append([number(99).as_slice()]).unwrap();
                assert_eq!(read(&RealDisk, &path).0.last(), Some(&99));
            }
        }
    }
    assert_eq!(seen, 6);
}

#[test]
fn the_reader_goes_on_behind_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    drop(write(&path, 9));
    let mut bytes = fs::read(&path).unwrap();
    let at = HEADER_BYTES as usize + 100;
    bytes[at] ^= 4;
    fs::write(&path, &bytes).unwrap();
    let mut reader = Reader::open(&RealDisk, &path, KIND, None).unwrap();
    let (mut numbers, mut damages) = (Vec::new(), 0);
    loop {
        match reader.next() {
            Ok(Some((_, payload))) => numbers.extend(value(payload)),
            Ok(None) => break,
            Err(error) => {
                assert!(error.to_string().contains("is damaged at byte"), "{error}");
                damages += 1;
                reader.skip_damage();
            }
        }
    }
    assert_eq!((numbers.len(), damages), (8, 1), "{numbers:?}");
}

#[test]
fn bytes_of_another_file_or_of_a_payload_are_no_records() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("records"), folder.path().join("other"));
    let file = write(&path, 3);
    let foreign = fs::read({
        drop(write(&other, 9));
        &other
    })
    .unwrap();
    // A torn record, followed by the remains of an earlier file at the same offsets.
    let mut bytes = fs::read(&path).unwrap();
    let end = file.length() as usize;
    bytes.extend_from_slice(&[0xff; 30]);
    bytes.extend_from_slice(&foreign[end + 30..]);
    fs::write(&path, &bytes).unwrap();
    let (numbers, reader) = read(&RealDisk, &path);
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(reader.unwrap().unwrap().end(), End::Torn(end as u64));
    // The same record at another offset.
    let mut bytes = fs::read(&other).unwrap();
    let moved = bytes[HEADER_BYTES as usize..].to_vec();
    bytes.truncate(HEADER_BYTES as usize);
    bytes.push(0);
    bytes.extend_from_slice(&moved);
    fs::write(&other, &bytes).unwrap();
    assert_eq!(read(&RealDisk, &other).0, Vec::<u32>::new());
}

#[test]
fn room_ahead_is_cut_off_and_hides_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    let mut file = RecordFile::create(&RealDisk, &path, KIND).unwrap();
    file.reserve_ahead(1_000);
    for value in 1..=30 {
        file.append([number(value).as_slice()]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len() % 1_000, 0);
        file.sync().unwrap();
        file.mark();
    }
    let (length, whole) = (file.length(), fs::read(&path).unwrap());
    let (numbers, reader) = read(&RealDisk, &path);
    assert_eq!(numbers, (1..=30).collect::<Vec<_>>());
    let reader = reader.unwrap().unwrap();
    assert_eq!((reader.end(), reader.offset()), (End::Torn(length), length));
    // What was acknowledged and changed is damage, however much room there is behind it.
    for offset in HEADER_BYTES..length - HEAD_BYTES {
        let mut bytes = whole.clone();
        bytes[offset as usize] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(read(&RealDisk, &path).1, Err(RecordError::Damaged { .. })), "{offset}");
    }
    fs::write(&path, &whole).unwrap();
    file.finish().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), length);
    assert_eq!(read(&RealDisk, &path).1.unwrap().unwrap().end(), End::Whole);
    drop(RecordFile::resume(&RealDisk, &reader).unwrap());
    assert_eq!(read(&RealDisk, &path).0.len(), 30);
}

#[test]
fn other_kinds_and_versions_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    drop(write(&path, 3));
    let kind = Kind { version: 4, ..KIND };
    let error = Reader::open(&RealDisk, &path, kind, None).unwrap_err().to_string();
    assert!(
        error.contains("`numbers` of version 3") && error.contains("`numbers` of version 4"),
        "{error}"
    );
}

#[test]
fn a_slot_is_whole_or_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    let slot = RecordSlot { disk: RealDisk::shared(), path: path.clone(), kind: KIND };
    assert_eq!(slot.read().unwrap(), None);
    slot.write(b"first").unwrap();
    slot.write(b"second").unwrap();
    assert_eq!(slot.read().unwrap(), Some(b"second".to_vec()));
    let whole = fs::read(&path).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(slot.read(), Err(RecordError::Damaged { .. })), "bit {bit}");
    }
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        assert!(matches!(slot.read(), Err(RecordError::Damaged { .. })), "cut {cut}");
    }
}

// Promise: P6 - A power cut at any operation loses no synced record.
#[test]
fn a_power_cut_at_any_operation_loses_nothing_that_was_synced() {
    for seed in 0..400 {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("disk");
        let disk = SimulatedDisk::new(&root, seed).unwrap();
        let path = root.join("records");
        disk.end_after(5 + seed % 40, seed.is_multiple_of(2));
        let (mut acknowledged, mut sent) = (0, 0);
        if let Ok(mut file) = RecordFile::create(&disk, &path, KIND) {
            for value in 1.. {
                sent = value;
                let large = vec![value as u8; 3_000];
                let written = file
                    .append([number(value).as_slice(), &[number(0).as_slice(), &large].concat()]);
                if written.and_then(|()| file.sync()).is_err() {
                    break;
                }
                file.mark();
                acknowledged = value;
            }
        }
        disk.cut_power().unwrap();
        let (numbers, end) = read(&disk, &path);
        let numbers: Vec<_> = numbers.into_iter().filter(|number| *number > 0).collect();
        match end {
            Err(RecordError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                assert_eq!(acknowledged, 0, "seed {seed}");
            }
            end => drop(end.unwrap_or_else(|error| panic!("seed {seed}: {error}"))),
        }
        let last = numbers.len() as u32;
        assert!(
            (acknowledged..=sent).contains(&last),
            "seed {seed}: {acknowledged} of {sent}, {last} there"
        );
        assert_eq!(numbers, (1..=last).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn after_a_failed_sync_a_file_takes_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(SimulatedDisk::new(&folder.path().join("disk"), 1).unwrap());
    let path = folder.path().join("disk").join("records");
    let mut file = RecordFile::create(disk.as_ref(), &path, KIND).unwrap();
    file.append([number(1).as_slice()]).unwrap();
    file.sync().unwrap();
    file.append([number(2).as_slice()]).unwrap();
    disk.fail_syncs(1);
    assert!(file.sync().unwrap_err().can_heal());
    assert!(matches!(file.append([number(3).as_slice()]), Err(RecordError::SyncLost { .. })));
    assert!(matches!(file.sync(), Err(RecordError::SyncLost { .. })));
    assert!(file.sync_lost());
}
