#![allow(clippy::unwrap_used)]
#![allow(clippy::single_range_in_vec_init, reason = "a list of page ranges may have one")]

use std::{collections::BTreeMap, fs};

use pages::{Run, SegmentId};
use proptest::prelude::*;

use super::*;
use crate::RequestId;
use crate::manifest::PieceSink;

const CACHE: u64 = 1 << 20;

fn index(runs: u64) -> MemoryIndex {
    let run = |number| Run {
        start_page: number * 10,
        pages: 3,
        segment: SegmentId(number),
        offset_page: number,
    };
    MemoryIndex { runs: (0..runs).map(run).collect(), ..MemoryIndex::default() }
}

/// What a store should hold.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    canisters: BTreeMap<CanisterId, Vec<u8>>,
    messages: BTreeMap<u64, Vec<u8>>,
    history: BTreeMap<RequestId, Vec<u8>>,
    memories: BTreeMap<MemoryId, (MemoryIndex, u64)>,
    metadata: Vec<u8>,
}

fn read(checkpoint: &LoadedCheckpoint) -> Result<Model, StoreError> {
    Ok(Model {
        canisters: checkpoint.canisters()?.collect::<Result<_, _>>()?,
        messages: read_messages(checkpoint)?,
        history: checkpoint.history()?.collect::<Result<_, _>>()?,
        memories: checkpoint.memories()?.collect::<Result<_, _>>()?,
        metadata: checkpoint.metadata.clone(),
    })
}

/// All messages, by their rows' numbers.
fn read_messages(checkpoint: &LoadedCheckpoint) -> Result<BTreeMap<u64, Vec<u8>>, StoreError> {
    let mut messages = BTreeMap::new();
    let mut reader = checkpoint.messages();
    for row in checkpoint.rows(None) {
        let row = row?;
        if row.kind == RowKind::Message && row.number == 0 {
            let number = row.key.as_slice().try_into().map(u64::from_be_bytes).unwrap_or_default();
            messages.insert(number, reader.take(number)?);
        }
    }
    reader.finish()?;
    Ok(messages)
}

type ChangeList<K, V> = Vec<(K, Option<V>)>;

fn apply<K: Ord + Clone, V: Clone>(map: &mut BTreeMap<K, V>, changes: &ChangeList<K, V>) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(map.insert(key.clone(), value.clone())),
            None => drop(map.remove(key)),
        }
    }
}

#[derive(Clone, Debug)]
struct Step {
    canisters: ChangeList<CanisterId, Vec<u8>>,
    messages: ChangeList<u64, Vec<u8>>,
    history: ChangeList<RequestId, Vec<u8>>,
    memories: ChangeList<MemoryId, (MemoryIndex, u64)>,
    metadata: Vec<u8>,
    reopen: bool,
}

impl Step {
    fn delta(&self, height: u64) -> CheckpointDelta<'_> {
        CheckpointDelta {
            height: Height(height),
            metadata: self.metadata.clone(),
            canisters: Box::new(self.canisters.iter().cloned().map(Ok)),
            messages: Box::new(self.messages.iter().cloned().map(Ok)),
            history: Box::new(self.history.iter().cloned().map(Ok)),
            memories: self.memories.clone(),
            written: vec![],
        }
    }

    fn apply(&self, model: &mut Model) {
        apply(&mut model.canisters, &self.canisters);
        apply(&mut model.messages, &self.messages);
        apply(&mut model.history, &self.history);
        apply(&mut model.memories, &self.memories);
        model.metadata = self.metadata.clone();
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    // Empty, small, and in several parts with ends at and about their borders.
    let part = 63usize << 10;
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..50),
        1 => (0usize..4, -1i64..2, any::<u8>()).prop_map(move |(parts, off, byte)| {
            vec![byte; (parts * part).saturating_add_signed(off as isize)]
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let canister = (0u8..6).prop_map(|number| Principal::from_slice(&[number, 1, 1]));
    let request = (0u8..6).prop_map(|number| RequestId([number; 32]));
    let memory = (0u64..6).prop_map(MemoryId);
    let memory_index = (0u64..5000, any::<u64>()).prop_map(|(runs, base)| (index(runs), base));
    (
        prop::collection::vec((canister, prop::option::of(bytes())), 0..4),
        prop::collection::vec((0u64..6, prop::option::of(bytes())), 0..4),
        prop::collection::vec((request, prop::option::of(bytes())), 0..4),
        prop::collection::vec((memory, prop::option::of(memory_index)), 0..3),
        bytes(),
        any::<bool>(),
    )
        .prop_map(|(canisters, messages, history, memories, metadata, reopen)| Step {
            canisters,
            messages,
            history,
            memories,
            metadata,
            reopen,
        })
}

use ic_principal::Principal;

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_loaded(steps in prop::collection::vec(step(), 1..8)) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = StateStore::open(dir.path(), CACHE).unwrap();
        prop_assert!(store.load().unwrap().is_none());
        let mut model = Model::default();
        for (height, step) in (1u64..).zip(&steps) {
            store.write(step.delta(height)).unwrap();
            step.apply(&mut model);
            if step.reopen {
                drop(store);
                store = StateStore::open(dir.path(), CACHE).unwrap();
            }
            let loaded = store.load().unwrap().unwrap();
            prop_assert_eq!(loaded.height, Height(height));
            prop_assert_eq!(&read(&loaded).unwrap(), &model);
        }
    }

    #[test]
    fn damage_is_an_error_or_harmless_and_never_a_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let step = Step {
            canisters: (0..40).map(|number| (Principal::from_slice(&[number, 1, 1]), Some(vec![number; 3_000]))).collect(),
            messages: (0..10).map(|number| (number, Some(vec![4; 3_000]))).collect(),
            history: (0..40).map(|number| (RequestId([number; 32]), Some(vec![number; 200]))).collect(),
            memories: (0..4).map(|number| (MemoryId(number), Some((index(50), number)))).collect(),
            metadata: vec![3; 100_000],
            reopen: false,
        };
        let mut model = Model::default();
        step.apply(&mut model);
        StateStore::open(dir.path(), CACHE).unwrap().write(step.delta(1)).unwrap();
        let path = dir.path().join(FILE_NAME);
        let mut file = fs::read(&path).unwrap();
        // Most of the file is free pages; damage within the first 600 KiB hits something more often
        // than not.
        let used = file.len().min(600 << 10);
        for (at, byte) in flips {
            file[at.index(used)] ^= byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(used));
        }
        fs::write(&path, file).unwrap();
        let result = StateStore::open(dir.path(), CACHE).and_then(|store| match store.load()? {
            Some(loaded) => {
                let model = read(&loaded)?;
                // The damaged file may be written to as well.
                let _ = store.write(step.delta(2));
                Ok(Some(model))
            }
            None => Ok(None),
        });
        // Or an error, or the state before the first checkpoint.
        if let Ok(Some(found)) = result {
            prop_assert!(found == model, "what is read is right");
        }
    }

    #[test]
    fn records_with_wrong_bytes_in_right_parts_never_panic(
        keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5),
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 5),
    ) {
        // Well-formed parts, so that the checksums hold, with any key and content.
        let dir = tempfile::tempdir().unwrap();
        let store = StateStore::open(dir.path(), CACHE).unwrap();
        store.with_database(|database| {
            let transaction = database.begin_write()?;
            let mut header = Header { height: Height(5), ..Header::default() };
            let Header { canisters, messages, history, memories, .. } = &mut header;
            let tallies = [canisters, messages, history, memories];
            for (table, tally) in [CANISTERS, MESSAGES, HISTORY, MEMORIES].into_iter().zip(tallies) {
                let mut table = transaction.open_table(table)?;
                for (key, value) in keys.iter().zip(&values) {
                    parts::put(&mut table, tally, key, Some(value))?;
                }
            }
            let header = encode(&header)?;
            parts::put(&mut transaction.open_table(HEADS)?, &mut Tally::default(), HEADER_KEY, Some(&header))?;
            transaction.commit()?;
            Ok(())
        }).unwrap();
        let loaded = store.load().unwrap().unwrap();
        loaded.canisters().unwrap().for_each(drop);
        loaded.memories().unwrap().for_each(drop);
        let _ = loaded.messages().take(7);
        let limits = crate::HistoryLimits { bytes_max: 1 << 20, unfinished_max: 10 };
        let _ = crate::IngressHistory::load(limits, loaded.history().unwrap());
    }
}

fn empty(height: u64) -> CheckpointDelta<'static> {
    CheckpointDelta {
        height: Height(height),
        metadata: vec![],
        canisters: Box::new(std::iter::empty()),
        messages: Box::new(std::iter::empty()),
        history: Box::new(std::iter::empty()),
        memories: vec![],
        written: vec![],
    }
}

#[test]
fn heights_do_not_fall() {
    let dir = tempfile::tempdir().unwrap();
    let store = StateStore::open(dir.path(), CACHE).unwrap();
    store.write(empty(5)).unwrap();
    store.write(empty(5)).unwrap();
    let error = store.write(empty(4)).unwrap_err();
    assert!(matches!(error, StoreError::Height { newest: Height(5), new: Height(4) }));
    store.write(empty(6)).unwrap();
}

#[test]
fn a_record_that_cannot_be_encoded_leaves_the_checkpoint_before() {
    let dir = tempfile::tempdir().unwrap();
    let store = StateStore::open(dir.path(), CACHE).unwrap();
    store.write(with_records()).unwrap();
    let before = read(&store.load().unwrap().unwrap()).unwrap();
    let not_encoded = || NotEncoded { what: "canister x".into(), reason: "no".into() };
    let id = Principal::from_slice(&[0, 1, 1]);
    let canister = CheckpointDelta {
        canisters: Box::new([Ok((id, None)), Err(not_encoded())].into_iter()),
        ..empty(2)
    };
    let call = CheckpointDelta {
        canisters: Box::new(std::iter::once(Ok((id, None)))),
        messages: Box::new(std::iter::empty()),
        history: Box::new(std::iter::once(Err(not_encoded()))),
        ..empty(2)
    };
    for delta in [canister, call] {
        let error = store.write(delta).unwrap_err();
        assert!(!error.can_heal() && error.to_string().contains("canister x"), "{error}");
        let after = store.load().unwrap().unwrap();
        assert_eq!(after.height, Height(1));
        assert_eq!(read(&after).unwrap().canisters, before.canisters);
    }
    store.write(empty(2)).unwrap();
}

#[test]
fn a_loaded_checkpoint_does_not_change_under_its_reader() {
    let dir = tempfile::tempdir().unwrap();
    let store = StateStore::open(dir.path(), CACHE).unwrap();
    let id = Principal::from_slice(&[1]);
    let with = |height, record: Vec<u8>| CheckpointDelta {
        canisters: Box::new(std::iter::once(Ok((id, Some(record))))),
        ..empty(height)
    };
    store.write(with(1, vec![1; 100_000])).unwrap();
    let first = store.load().unwrap().unwrap();
    store.write(with(2, vec![2; 10])).unwrap();
    assert_eq!(read(&first).unwrap().canisters[&id], vec![1; 100_000]);
    assert_eq!(read(&store.load().unwrap().unwrap()).unwrap().canisters[&id], vec![2; 10]);
}

#[test]
fn a_second_process_is_told_that_the_store_is_in_use() {
    // A second handle of the same process is refused by the same lock.
    let dir = tempfile::tempdir().unwrap();
    let _store = StateStore::open(dir.path(), CACHE).unwrap();
    let error = StateStore::open(dir.path(), CACHE).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("another process"));
}

#[test]
fn another_format_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = StateStore::open(dir.path(), CACHE).unwrap();
    store
        .with_database(|database| {
            let transaction = database.begin_write()?;
            transaction.open_table(NUMBERS)?.insert("format", 77)?;
            transaction.commit()?;
            Ok(())
        })
        .unwrap();
    drop(store);
    let error = StateStore::open(dir.path(), CACHE).unwrap_err();
    assert!(error.to_string().contains("format 77"), "{error}");
}

#[test]
fn a_file_that_is_no_database_is_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE_NAME), vec![0x55; 10_000]).unwrap();
    let error = StateStore::open(dir.path(), CACHE).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}

#[test]
fn a_directory_in_the_way_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(FILE_NAME)).unwrap();
    assert!(StateStore::open(dir.path(), CACHE).is_err());
    fs::write(dir.path().join("file"), b"").unwrap();
    assert!(StateStore::open(&dir.path().join("file"), CACHE).is_err());
}

#[test]
fn errors_of_the_disk_have_their_own_names() {
    let path = Path::new("/data/state.redb");
    assert!(matches!(
        io_error(path, io::ErrorKind::StorageFull.into()),
        StoreError::DiskFull { .. }
    ));
    assert!(matches!(
        io_error(path, io::ErrorKind::ReadOnlyFilesystem.into()),
        StoreError::Unwritable { .. }
    ));
    assert!(
        io_error(path, io::ErrorKind::StorageFull.into()).to_string().contains("/data/state.redb")
    );
}

/// A checkpoint with records of every size, and some leaves.
fn with_records() -> CheckpointDelta<'static> {
    let part = 63usize << 10;
    let canisters = (0u8..5).map(move |number| {
        (Principal::from_slice(&[number, 1, 1]), Some(vec![number; usize::from(number) * part]))
    });
    let messages = (0u8..5).map(move |number| {
        (u64::from(number) << 20, Some(vec![number; 9_000 + usize::from(number) * part]))
    });
    let history = (0u8..40).map(|number| (RequestId([number; 32]), Some(vec![number; 9_000])));
    CheckpointDelta {
        metadata: vec![9; part + 1],
        canisters: Box::new(canisters.map(Ok)),
        messages: Box::new(messages.map(Ok)),
        history: Box::new(history.map(Ok)),
        memories: (1..4)
            .map(|id| (MemoryId(id), Some((MemoryIndex::default(), 1 << 20))))
            .collect(),
        written: vec![(MemoryId(1), vec![0..2, 7..8]), (MemoryId(3), vec![1..2])],
        ..empty(1)
    }
}

fn leaves_of(checkpoint: &LoadedCheckpoint) -> (Vec<(RowAt, Vec<u8>)>, Vec<u8>) {
    let mut stream = checkpoint.row_stream(None);
    let (mut leaves, mut leaf) = (vec![], vec![]);
    while let Some(at) = stream.leaf(&mut leaf, 100_000).unwrap() {
        leaves.push((at, leaf.clone()));
    }
    let all = leaves.iter().flat_map(|(_, leaf)| leaf.clone()).collect();
    (leaves, all)
}

#[test]
fn the_stream_of_records_can_be_taken_up_at_any_leaf_and_laid_down_elsewhere() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let store = StateStore::open(dirs[0].path(), CACHE).unwrap();
    store.write(with_records()).unwrap();
    let checkpoint = store.load().unwrap().unwrap();
    let (leaves, stream) = leaves_of(&checkpoint);
    assert!(
        leaves.len() > 5
            && leaves[..leaves.len() - 1].iter().all(|(_, leaf)| leaf.len() == 100_000)
    );
    for (at, expected) in &leaves {
        let mut leaf = vec![];
        assert_eq!(
            checkpoint.row_stream(Some(at)).leaf(&mut leaf, 100_000).unwrap().as_ref(),
            Some(at)
        );
        assert_eq!(&leaf, expected);
    }
    let mut builder = StoreBuilder::create_on(&RealDisk, dirs[1].path(), CACHE).unwrap();
    let mut rows = RowReader::new(stream.as_slice(), stream.len() as u64);
    let mut again = vec![];
    while let Some(row) = rows.next_row().unwrap() {
        row.append_to(&mut again);
        builder.row(&row).unwrap();
    }
    assert_eq!(again, stream);
    for id in 1..4 {
        builder.memory(MemoryId(id), 1 << 20).unwrap();
    }
    builder.leaves(MemoryId(2), &[(0, [1; 32]), (3, [2; 32])]).unwrap();
    let header = crate::manifest::Header { height: Height(1), body_bytes: 0, pieces: vec![] };
    builder.finish(Height(1), &header).unwrap();
    let other = StateStore::open(dirs[1].path(), CACHE).unwrap();
    let laid_down = other.load().unwrap().unwrap();
    assert_eq!(read(&laid_down).unwrap(), read(&checkpoint).unwrap());
    assert_eq!(leaves_of(&laid_down), leaves_of(&checkpoint));
    assert_eq!(laid_down.manifest_header().unwrap(), Some(header.to_bytes()));
    assert_eq!(laid_down.leaf(MemoryId(2), 3).unwrap(), KnownLeaf::Hash([2; 32]));
    // And it is a store like any other.
    other.write(empty(2)).unwrap();
}

#[test]
fn a_stream_that_was_changed_anywhere_is_another_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = StateStore::open(dir.path(), CACHE).unwrap();
    store.write(with_records()).unwrap();
    let (_, stream) = leaves_of(&store.load().unwrap().unwrap());
    let parse = |bytes: &[u8]| {
        let mut rows = RowReader::new(bytes, bytes.len() as u64);
        let mut again = vec![];
        while let Some(row) = rows.next_row()? {
            row.append_to(&mut again);
        }
        Ok::<_, RowError>(again)
    };
    assert_eq!(parse(&stream).unwrap(), stream);
    for at in (0..stream.len()).step_by(997).chain(0..60) {
        let mut other = stream.clone();
        other[at] ^= 0x11;
        if let Ok(again) = parse(&other) {
            assert_eq!(again, other);
        }
    }
    // Cut within a row, and between rows of a record.
    for cut in [0, 1, 30, 64_000, stream.len() - 1] {
        assert!(matches!(parse(&stream[..cut]), Err(RowError::CutOff)), "{cut}");
    }
}

#[test]
fn a_builder_that_was_not_finished_left_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let row =
        Row { kind: RowKind::Canister, key: vec![1], number: 0, last: true, content: vec![1; 100] };
    let mut builder = StoreBuilder::create_on(&RealDisk, dir.path(), CACHE).unwrap();
    for number in 0..70_000u32 {
        builder.row(&Row { key: number.to_be_bytes().to_vec(), ..row.clone() }).unwrap();
    }
    drop(builder);
    let store = StateStore::open(dir.path(), CACHE).unwrap();
    assert!(matches!(store.load(), Err(StoreError::Corrupt { .. })));
    drop(store);
    StoreBuilder::create_on(&RealDisk, dir.path(), CACHE).unwrap();
    let store = StateStore::open(dir.path(), CACHE).unwrap();
    assert!(store.load().unwrap().is_none());
}

fn written(checkpoint: &LoadedCheckpoint) -> Vec<(u64, u32)> {
    checkpoint
        .written_leaves()
        .unwrap()
        .map(|leaf| leaf.map(|(id, leaf)| (id.0, leaf)).unwrap())
        .collect()
}

#[test]
fn leaves_are_marked_by_checkpoints_and_kept_until_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = StateStore::open(dir.path(), CACHE).unwrap();
    store.write(with_records()).unwrap();
    let before = store.load().unwrap().unwrap();
    assert_eq!(written(&before), [(1, 0), (1, 1), (1, 7), (3, 1)]);
    let [a, b] = [[1; 32], [2; 32]];
    store
        .put_leaves(&[(MemoryId(1), 0, Some(a)), (MemoryId(1), 1, None), (MemoryId(3), 1, Some(b))])
        .unwrap();
    assert_eq!(written(&before).len(), 4, "what is being read stays as it is");
    drop(store);
    let store = StateStore::open(dir.path(), CACHE).unwrap();
    let after = store.load().unwrap().unwrap();
    assert_eq!(written(&after), [(1, 7)]);
    assert_eq!(after.leaf(MemoryId(1), 0).unwrap(), KnownLeaf::Hash(a));
    assert_eq!(after.leaf(MemoryId(1), 1).unwrap(), KnownLeaf::Zero);
    assert_eq!(after.leaf(MemoryId(1), 7).unwrap(), KnownLeaf::Written);
    assert!(after.memory_leaves(MemoryId(1), |_| Ok(())).is_err(), "a leaf without a hash is none");
    let mut rows = vec![];
    after
        .memory_leaves(MemoryId(3), |row| {
            rows.push(row);
            Ok(())
        })
        .unwrap()
        .unwrap();
    assert_eq!(rows, [MemoryRow::Count(1), MemoryRow::Leaf(1, b)]);
    // Written again, and a memory that goes.
    store
        .write(CheckpointDelta {
            memories: vec![(MemoryId(3), None)],
            written: vec![(MemoryId(1), vec![0..1])],
            ..empty(2)
        })
        .unwrap();
    let after = store.load().unwrap().unwrap();
    assert_eq!(written(&after), [(1, 0), (1, 7)]);
    assert_eq!(after.leaf(MemoryId(3), 1).unwrap(), KnownLeaf::Zero);
}

#[test]
fn a_manifest_that_is_given_up_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let store = StateStore::open(dir.path(), CACHE).unwrap();
    store.write(with_records()).unwrap();
    let header = |height| crate::manifest::Header {
        height: Height(height),
        body_bytes: 3,
        pieces: vec![[5; 32]],
    };
    let at = RowAt { kind: RowKind::History, key: vec![4; 32], number: 0, skip: 17 };
    let kept = store
        .put_manifest(|writer| {
            writer.piece(0, &[1, 2, 3])?;
            writer.start(0, &at)?;
            writer.blob_leaf(&[8; 32], 0, &[6; 32])?;
            Ok::<_, WriteFailed>(header(1))
        })
        .unwrap()
        .unwrap();
    let given_up = store.put_manifest(|writer| {
        writer.piece(0, &[7; 40_000]).unwrap();
        writer.retain_blobs(|_| false).unwrap();
        Err::<crate::manifest::Header, _>("stop")
    });
    assert_eq!(given_up.unwrap(), Err("stop"));
    let checkpoint = store.load().unwrap().unwrap();
    assert_eq!(checkpoint.manifest_header().unwrap(), Some(kept.to_bytes()));
    assert_eq!(checkpoint.manifest_piece(0).unwrap(), [1, 2, 3]);
    assert_eq!(checkpoint.manifest_start(0).unwrap(), Some(at));
    assert_eq!(checkpoint.manifest_start(1).unwrap(), None);
    assert_eq!(checkpoint.blob_leaves(&[8; 32]).unwrap(), [[6; 32]]);
    let longer = store.put_manifest(|writer| {
        writer.piece(0, &[7; 40_000])?;
        Ok::<_, WriteFailed>(header(2))
    });
    longer.unwrap().unwrap();
    let checkpoint = store.load().unwrap().unwrap();
    assert_eq!(checkpoint.manifest_piece(0).unwrap(), [7; 40_000]);
    assert_eq!(checkpoint.manifest_start(0).unwrap(), None);
}

#[test]
fn a_message_that_no_canister_asks_for_or_that_is_not_there_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let store = StateStore::open(dir.path(), CACHE).unwrap();
    let with = |height, messages: Vec<Change<u64>>| CheckpointDelta {
        messages: Box::new(messages.into_iter().map(Ok)),
        ..empty(height)
    };
    store.write(with(1, vec![(1, Some(vec![1; 10])), (2, Some(vec![2; 100_000]))])).unwrap();
    let loaded = store.load().unwrap().unwrap();
    let mut reader = loaded.messages();
    assert_eq!(reader.take(2).unwrap(), [2; 100_000]);
    assert!(matches!(reader.finish(), Err(StoreError::Corrupt { .. })), "one was not asked for");
    let mut reader = loaded.messages();
    reader.take(1).unwrap();
    reader.take(2).unwrap();
    assert!(matches!(reader.take(3), Err(StoreError::Corrupt { .. })));
    reader.finish().unwrap();
    // What is not there can be deleted, and what is there written again.
    store.write(with(2, vec![(3, None), (2, None), (1, Some(vec![1; 10]))])).unwrap();
    let loaded = store.load().unwrap().unwrap();
    assert_eq!(read(&loaded).unwrap().messages, BTreeMap::from([(1, vec![1; 10])]));
}

#[test]
fn all_pages_are_read_at_the_first_opening_and_not_after_a_failed_write() {
    let folder = tempfile::tempdir().unwrap();
    let simulated = disk::SimulatedDisk::new(&folder.path().join("disk"), 1).unwrap();
    let root = folder.path().join("disk").join("state");
    let disk: SharedDisk = std::sync::Arc::new(simulated.clone());
    let store = StateStore::open_on(disk.clone(), &root, CACHE).unwrap();
    let with = |height, message| CheckpointDelta {
        messages: Box::new(std::iter::once(Ok(message))),
        ..empty(height)
    };
    store.write(with(1, (1, Some(vec![0xa7; 20_000])))).unwrap();
    simulated.fail_syncs(1);
    store.write(with(2, (2, Some(vec![1; 10])))).unwrap_err();
    let path = root.join(FILE_NAME);
    let mut file = fs::read(&path).unwrap();
    let at = file.windows(100).position(|bytes| bytes == [0xa7; 100]).unwrap();
    file[at + 50] ^= 1;
    fs::write(&path, file).unwrap();
    // It is opened anew, and found is what is read.
    store.write(with(2, (2, Some(vec![1; 10])))).unwrap();
    let loaded = store.load().unwrap().unwrap();
    assert_eq!(loaded.messages().take(2).unwrap(), [1; 10]);
    assert!(matches!(loaded.messages().take(1), Err(StoreError::Corrupt { .. })));
    drop((loaded, store));
    let opened = StateStore::open_on(disk, &root, CACHE);
    assert!(matches!(opened, Err(StoreError::Corrupt { .. })), "{opened:?}");
}

#[test]
fn keys_of_rows_have_the_length_of_their_kind() {
    let metadata = Row {
        kind: RowKind::Metadata,
        key: METADATA_KEY.to_vec(),
        number: 0,
        last: true,
        content: vec![],
    };
    for (kind, bytes, fits) in [
        (RowKind::Message, 8, true),
        (RowKind::Message, 7, false),
        (RowKind::Message, 9, false),
        (RowKind::History, 32, true),
        (RowKind::History, 31, false),
        (RowKind::Canister, 29, true),
        (RowKind::Canister, 33, false),
    ] {
        let row = Row { kind, key: vec![1; bytes], ..metadata.clone() };
        let mut stream = vec![];
        metadata.append_to(&mut stream);
        row.append_to(&mut stream);
        let mut rows = RowReader::new(stream.as_slice(), stream.len() as u64);
        rows.next_row().unwrap();
        assert_eq!(rows.next_row().is_ok(), fits, "{kind:?} with a key of {bytes}");
    }
}
