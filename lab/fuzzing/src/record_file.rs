//! A record file after anything happened to it: reading it returns, in time and within bounds, and
//! what is appended afterwards is read again behind what was read before.
//!
//! An even first byte takes the rest as the file. An odd one takes a whole file of a few records,
//! changed: the second byte is where it is cut off, and then come changes of three bytes, a place
//! in the file (two bytes) and what is added to the byte there.

use std::{path::PathBuf, sync::LazyLock};

use disk::{
    RealDisk,
    records::{Kind, Reader, RecordError, RecordFile},
};

const KIND: Kind = Kind { name: *b"fuzzing\0", version: 1, bytes_max: 300 };

struct Stage {
    path: PathBuf,
    whole: Vec<u8>,
    _folder: tempfile::TempDir,
}

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("records");
    let mut file = RecordFile::create(&RealDisk, &path, KIND).expect("a file");
    for record in [&b"one"[..], &[], &[7; 300], b"four"] {
        file.append([record]).expect("room");
        file.sync().expect("a sync");
    }
    drop(file);
    let whole = std::fs::read(&path).expect("it was written");
    Stage { path, whole, _folder: folder }
});

/// Everything that is read of the file, with the reader at its end; none if its header is refused.
fn read(path: &std::path::Path, bytes: usize) -> Option<(Reader, Vec<Vec<u8>>, u64)> {
    let mut reader = Reader::open(&RealDisk, path, KIND, None).ok()?;
    let (mut records, mut damages, mut end) = (vec![], 0_u64, 0);
    loop {
        match reader.next() {
            Ok(Some((offset, record))) => {
                assert!(offset >= end && record.len() <= KIND.bytes_max as usize);
                end = offset + record.len() as u64;
                records.push(record.to_vec());
            }
            Ok(None) => return Some((reader, records, damages)),
            Err(RecordError::Damaged { .. }) => {
                damages += 1;
                assert!(damages <= bytes as u64, "it continues after damage");
                reader.skip_damage();
            }
            Err(error) => panic!("reading what is there fails: {error}"),
        }
    }
}

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let stage = &*STAGE;
    let mut file = bytes.to_vec();
    if choice % 2 == 1 {
        let Some((cut, changes)) = bytes.split_first() else { return };
        file = stage.whole.clone();
        file.truncate(file.len().saturating_sub(usize::from(*cut)).max(1));
        for change in changes.chunks_exact(3).take(64) {
            let place = usize::from(u16::from_be_bytes([change[0], change[1]])) % file.len();
            file[place] = file[place].wrapping_add(change[2]);
        }
    }
    std::fs::write(&stage.path, &file).expect("a file");
    let Some((reader, mut records, damages)) = read(&stage.path, file.len()) else { return };
    let Ok(mut appended) = RecordFile::resume(&RealDisk, &reader) else { return };
    appended.append([&b"appended"[..]]).expect("room");
    appended.sync().expect("a sync");
    records.push(b"appended".to_vec());
    let (_, again, still) = read(&stage.path, file.len() + 64).expect("its header is as it was");
    assert_eq!((again, still), (records, damages));
}
