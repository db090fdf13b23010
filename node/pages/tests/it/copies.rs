//! Memories that begin as copies of others: their contents, their written pages, and what remains
//! of them.

use std::{
    fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use disk::{SharedDisk, SimulatedDisk};
use pages::{HeldLayout, MemoryId, PAGE_BYTES, PageStore, PagesError, read_bytes};
use testing::SmallDisk;

use crate::common::*;

const A: MemoryId = MemoryId(1);
const B: MemoryId = MemoryId(2);
const C: MemoryId = MemoryId(3);
const PAGES: u64 = 64;

/// A memory with pages in its base, with holes, and with runs of two segments over them.
fn mixed(store: &PageStore, index: &mut Index) -> Vec<u64> {
    store.create(A, PAGES * PAGE_BYTES).unwrap();
    put(store, A, &[(0, 5), (20, 3)], 1).unwrap();
    checkpoint(store, index);
    fold_all(store);
    put(store, A, &[(3, 4), (40, 1)], 2).unwrap();
    checkpoint(store, index);
    put(store, A, &[(6, 1), (22, 2)], 3).unwrap();
    tags(&store.layout(A).unwrap())
}

fn copy_tags(store: &PageStore, to: MemoryId, pages: u64) -> Result<Vec<u64>, PagesError> {
    let from = store.layout(A).unwrap();
    let layout = store.create_copy(to, PAGES * PAGE_BYTES, &from, pages * PAGE_BYTES)?;
    Ok(tags(&layout))
}

#[test]
fn a_copy_starts_equal_and_diverges_independently() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = Index::new();
    let store = open(dir.path(), &index).unwrap();
    let before = mixed(&store, &mut index);
    assert_eq!(copy_tags(&store, B, PAGES).unwrap(), before);
    let half = copy_tags(&store, C, 21).unwrap();
    assert_eq!(half[..21], before[..21]);
    assert_eq!(half[21..], [0; 43]);
    assert!(matches!(copy_tags(&store, B, 1), Err(PagesError::MemoryExists(B))));

    put(&store, A, &[(0, 64)], 9).unwrap();
    put(&store, B, &[(1, 1)], 8).unwrap();
    let mut expected = before;
    expected[1] = 8;
    assert_eq!(tags(&store.layout(B).unwrap()), expected);
    for _ in 0..3 {
        checkpoint(&store, &mut index);
        fold_all(&store);
    }
    assert_eq!(tags(&store.layout(B).unwrap()), expected);
    drop(store);
    let store = open(dir.path(), &index).unwrap();
    assert_eq!(tags(&store.layout(B).unwrap()), expected);
    assert_eq!(tags(&store.layout(C).unwrap()), half);
}

#[test]
fn a_checkpoint_reports_the_initial_pages_of_a_copy_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = Index::new();
    let store = open(dir.path(), &index).unwrap();
    let before = mixed(&store, &mut index);
    copy_tags(&store, B, PAGES).unwrap();
    put(&store, B, &[(50, 2)], 4).unwrap();
    for given_up in [true, false] {
        let ticket = store.begin_checkpoint().unwrap();
        ticket.sync().unwrap();
        let (_, written) = ticket.written.iter().find(|(id, _)| *id == B).unwrap();
        let is_written = |page: u64| written.iter().any(|range| range.contains(&page));
        for (page, tag) in (0..).zip(&before) {
            assert!(*tag == 0 || is_written(page), "page {page} of {written:?}");
        }
        assert!(is_written(50) && is_written(51));
        if !given_up {
            merge(&mut index, &ticket.changed);
            store.finish_checkpoint(ticket);
        }
    }
    put(&store, B, &[(60, 1)], 5).unwrap();
    let ticket = store.begin_checkpoint().unwrap();
    let (_, written) = ticket.written.iter().find(|(id, _)| *id == B).unwrap();
    assert_eq!(*written, std::iter::once(60..61).collect::<Vec<_>>());
}

#[test]
fn copies_of_the_newest_version_take_nothing_of_the_disk_and_others_call_for_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = Index::new();
    let limits = limits::PagesLimits { checkpoint_delta_bytes: 100 * PAGE_BYTES, ..limits() };
    let store = PageStore::open(dir.path(), &limits, entries(&index)).unwrap();
    store.create(A, PAGES * PAGE_BYTES).unwrap();
    let old = put(&store, A, &[(0, 40)], 1).unwrap();
    checkpoint(&store, &mut index);
    for (number, is_called) in [(2, false), (3, false), (4, true)] {
        let id = MemoryId(number);
        let before = disk_bytes(dir.path());
        copy_tags(&store, id, PAGES).unwrap();
        assert_eq!(disk_bytes(dir.path()), before);
        store.remove(id);
        assert!(!store.needs_checkpoint());
        put(&store, A, &[(0, 1)], number).unwrap();
        let id = MemoryId(number + 10);
        let copied = store.create_copy(id, PAGES * PAGE_BYTES, &old, u64::MAX).unwrap();
        assert_eq!(tags(&copied), tags(&old));
        store.remove(id);
        assert_eq!(store.needs_checkpoint(), is_called, "copy {number}");
    }
    checkpoint(&store, &mut index);
    assert!(!store.needs_checkpoint());
    assert!(file_names(dir.path()).iter().all(|name| name.starts_with("1.")));
}

fn disk_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    entries.map(|metadata| metadata.blocks() * 512).sum()
}

/// A memory that is large, with `dense` pages of data, and a copy of it.
fn large(store: &PageStore, index: &mut Index, dense: u64) -> Duration {
    store.create(A, LARGE_PAGES * PAGE_BYTES).unwrap();
    for start in (0..dense).step_by(2048) {
        put(store, A, &[(start, 2048.min(dense - start))], start + 1).unwrap();
        checkpoint(store, index);
        fold_all(store);
    }
    checkpoint(store, index);
    let from = store.layout(A).unwrap();
    let started = Instant::now();
    store.create_copy(B, LARGE_PAGES * PAGE_BYTES, &from, from.base_bytes).unwrap();
    started.elapsed()
}

/// 64 GiB.
const LARGE_PAGES: u64 = 16 << 20;

fn tag_at(store: &PageStore, id: MemoryId, page: u64) -> u64 {
    let mut bytes = vec![0; 8];
    read_bytes(&store.layout(id).unwrap(), page * PAGE_BYTES, &mut bytes).unwrap();
    u64::from_le_bytes(bytes.try_into().unwrap())
}

// Promise: P4 - A snapshot of 256 MiB uses no disk at first, and each first write to a piece 256
//   KiB.
#[test]
fn a_copy_of_a_large_memory_takes_neither_disk_nor_time_and_a_fold_after_it_no_more_than_it_needs()
{
    const DENSE: u64 = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let mut index = Index::new();
    let store = open(dir.path(), &index).unwrap();
    let copying = large(&store, &mut index, DENSE);
    checkpoint(&store, &mut index);
    // 256 MiB, read and written once more.
    let started = Instant::now();
    let mut source = fs::File::open(dir.path().join("1.base")).unwrap().take(DENSE * PAGE_BYTES);
    let mut target = tempfile::tempfile().unwrap();
    std::io::copy(&mut source, &mut target).unwrap();
    let by_hand = started.elapsed();
    assert!(copying * 4 < by_hand, "{copying:?}, and by hand {by_hand:?}");
    println!("a copy of 256 MiB in 64 GiB: {copying:?}, by hand {by_hand:?}");
    let before = disk_bytes(dir.path());
    assert!(before < (DENSE + 1024) * PAGE_BYTES, "{before}");

    for (id, page, tag) in [(A, 5, 7_001), (A, DENSE / 2, 7_002), (B, 6, 7_003)] {
        put(&store, id, &[(page, 1)], tag).unwrap();
    }
    checkpoint(&store, &mut index);
    fold_all(&store);
    checkpoint(&store, &mut index);
    // In one step both move what they share.
    let unit = 64 * PAGE_BYTES;
    assert!(store.stats().moved_bytes <= 3 * unit, "{}", store.stats().moved_bytes);
    let grown = disk_bytes(dir.path()) - before;
    assert!((unit..4 * unit).contains(&grown), "{grown}");
    assert_eq!([tag_at(&store, A, 5), tag_at(&store, A, 6), tag_at(&store, A, 4)], [7_001, 1, 1]);
    assert_eq!([tag_at(&store, B, 5), tag_at(&store, B, 6), tag_at(&store, B, 4)], [1, 7_003, 1]);
    assert_eq!(tag_at(&store, B, DENSE / 2), DENSE / 2 + 1);

    // Without its source the copy has all pages, and they are freed with it.
    store.remove(A);
    checkpoint(&store, &mut index);
    drop(store);
    let store = open(dir.path(), &index).unwrap();
    assert_eq!([tag_at(&store, B, DENSE - 1), tag_at(&store, B, 6)], [DENSE - 2047, 7_003]);
    assert!(disk_bytes(dir.path()) < before + unit);
    store.remove(B);
    checkpoint(&store, &mut index);
    assert!(file_names(dir.path()).is_empty(), "{:?}", file_names(dir.path()));
}

/// Folds until there is nothing to do, and returns the maximum that base files took meanwhile.
fn fold_watched(store: &PageStore, dir: &Path, over: bool) -> u64 {
    let mut most = base_bytes_on_disk(dir);
    loop {
        let step = if over { store.fold_over_readers(MIB) } else { store.fold(MIB) };
        most = most.max(base_bytes_on_disk(dir));
        if step.unwrap().is_idle() {
            return most;
        }
    }
}

/// As often as pages wait for a checkpoint.
fn fold_and_checkpoint(store: &PageStore, dir: &Path, index: &mut Index, over: bool) -> u64 {
    let rounds = (0..4).map(|_| {
        checkpoint(store, index);
        fold_watched(store, dir, over)
    });
    let most = rounds.max().unwrap();
    checkpoint(store, index);
    assert_eq!(store.stats().fold_queue, 0);
    most
}

// Promise: P4 - Delta that copies share is folded once and uses no extra disk.
#[test]
fn delta_that_memories_have_in_common_is_folded_once_for_all_of_them() {
    const DENSE: u64 = 8 << 10;
    const UNIT: u64 = 64;
    let copies = [B, C, MemoryId(4)];
    let scattered: Vec<_> = (0..DENSE).step_by(UNIT as usize).map(|page| (page + 7, 1)).collect();
    for over in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut index = Index::new();
        let store = open(dir, &index).unwrap();
        store.create(A, LARGE_PAGES * PAGE_BYTES).unwrap();
        for start in (0..DENSE).step_by(2048) {
            put(&store, A, &[(start, 2048)], 1).unwrap();
        }
        checkpoint(&store, &mut index);
        fold_all(&store);
        checkpoint(&store, &mut index);
        let dense = base_bytes_on_disk(dir);
        assert_eq!(dense, DENSE * PAGE_BYTES);

        // Delta in each unit, in no base yet when the copies are made.
        put(&store, A, &scattered, 2).unwrap();
        let delta = store.delta_bytes();
        for id in copies {
            copy(&store, A, id, LARGE_PAGES, LARGE_PAGES).unwrap();
        }
        let most = fold_and_checkpoint(&store, dir, &mut index, over);
        assert_eq!((most, base_bytes_on_disk(dir)), (dense, dense), "over readers: {over}");
        assert_eq!(store.stats().moved_bytes, 0);

        // The same, and then some pages differ before anything is folded.
        put(&store, A, &scattered, 3).unwrap();
        for id in copies {
            store.remove(id);
            copy(&store, A, MemoryId(id.0 + 10), LARGE_PAGES, LARGE_PAGES).unwrap();
        }
        put(&store, A, &scattered[..8], 4).unwrap();
        put(&store, MemoryId(12), &scattered[4..12], 5).unwrap();
        let most = fold_and_checkpoint(&store, dir, &mut index, over);
        // Units 0 to 3 have two contents, 4 to 7 have three, 8 to 11 two again.
        let apart = 16 * UNIT * PAGE_BYTES;
        let found = base_bytes_on_disk(dir);
        assert_eq!(found, dense + apart, "over readers: {over}");
        assert!(most <= dense + 2 * apart, "{most} for {dense} and {apart}");
        assert!(delta == 128 * PAGE_BYTES && store.delta_bytes() == 0, "{delta}");
        let tags = |id: u64, page: u64| tag_at(&store, MemoryId(id), page);
        for (unit, expected) in [(0, [4, 3, 3, 3]), (5, [4, 5, 3, 3]), (9, [3, 5, 3, 3])] {
            let page = unit * UNIT;
            assert_eq!([1, 12, 13, 14].map(|id| tags(id, page + 7)), expected, "unit {unit}");
            assert_eq!([1, 12, 13, 14].map(|id| tags(id, page + 8)), [1; 4], "unit {unit}");
        }
        drop(store);
        let store = open(dir, &index).unwrap();
        assert_eq!(base_bytes_on_disk(dir), found);
        assert_eq!([1, 12, 13, 14].map(|id| tag_at(&store, MemoryId(id), 327)), [4, 5, 3, 3]);
    }
}

#[test]
fn files_stay_few_through_generations_of_copies_that_grow() {
    const STEP: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let mut index = Index::new();
    let mut store = open(dir.path(), &index).unwrap();
    store.create(A, LARGE_PAGES * PAGE_BYTES).unwrap();
    let (mut canister, mut snapshot, mut most) = (A, None, 0);
    for generation in 0..50 {
        // Beyond what there was, and over something of it.
        let end = (generation + 1) * STEP;
        put(&store, canister, &[(3, 1), (end - 60, 20)], generation + 1).unwrap();
        let taken = MemoryId(1_000 + generation);
        copy(&store, canister, taken, end, end).unwrap();
        if let Some(before) = snapshot.replace(taken) {
            store.remove(before);
        }
        if generation % 3 > 0 {
            fold_and_checkpoint(&store, dir.path(), &mut index, generation % 3 == 1);
        }
        put(&store, canister, &[(2, 3)], 10_000).unwrap();
        fold_and_checkpoint(&store, dir.path(), &mut index, false);
        let loaded = MemoryId(2_000 + generation);
        copy(&store, taken, loaded, end, LARGE_PAGES).unwrap();
        store.remove(std::mem::replace(&mut canister, loaded));
        let files = file_names(dir.path()).iter().filter(|name| name.contains(".base")).count();
        most = most.max(files);
        let names = [canister, taken];
        for id in names {
            for earlier in 0..=generation {
                let page = (earlier + 1) * STEP - 50;
                assert_eq!(tag_at(&store, id, page), earlier + 1, "{generation} of {id:?}");
            }
            assert_eq!(
                [3, 4, end - 61].map(|page| tag_at(&store, id, page)),
                [generation + 1, 0, 0]
            );
        }
        assert_eq!(tag_at(&store, canister, end + 10), 0);
        checkpoint(&store, &mut index);
        if generation % 7 == 6 {
            drop(store);
            store = open(dir.path(), &index).unwrap();
        }
    }
    println!("{most} files");
    assert!(most < 20, "{most}");
}

#[test]
fn parts_stay_few_however_a_memory_and_its_copies_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = Index::new();
    let store = open(dir.path(), &index).unwrap();
    large(&store, &mut index, 1);
    let mut rng = Rng::new(9);
    let (mut most, mut files, mut next) = (0, 0, 100);
    for round in 0..120 {
        let mut starts: Vec<_> = (0..40).map(|_| rng.below(LARGE_PAGES - 1)).collect();
        starts.sort_unstable();
        starts.dedup();
        let ranges: Vec<_> = starts.into_iter().map(|start| (start, 1)).collect();
        put(&store, A, &ranges, round + 1).unwrap();
        checkpoint(&store, &mut index);
        fold_all(&store);
        let layout = store.layout(A).unwrap();
        assert!(layout.runs.is_empty());
        most = most.max(layout.parts.len());
        if round % 20 == 0 {
            // As snapshots are taken in the place of others.
            copy(&store, A, MemoryId(next), LARGE_PAGES, LARGE_PAGES).unwrap();
            store.remove(if round == 0 { B } else { MemoryId(next - 1) });
            next += 1;
        }
        let bases = file_names(dir.path()).iter().filter(|name| name.starts_with("1.base")).count();
        files = files.max(bases);
    }
    // 64 GiB in units of 64 pages would be 262,144.
    println!("{most} parts, {files} files");
    assert!((200..2_000).contains(&most), "{most}");
    assert!((2..6).contains(&files), "{files}");
}

/// Folding on a thread of its own, as in the node, while memories are written, copied, read,
/// removed and checkpointed.
#[test]
fn copies_writes_checkpoints_and_folds_run_side_by_side() {
    const SEED: u64 = 0xc0_91e5;
    const STEPS: u64 = 4_000;
    let dir = tempfile::tempdir().unwrap();
    let mut index = Index::new();
    let store = open(dir.path(), &index).unwrap();
    let (mut model, mut durable) = (Model::new(), Model::new());
    let mut held: Vec<(HeldLayout, Vec<u64>)> = Vec::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::new(SEED + 1);
            while !stop.load(Relaxed) {
                let bytes = rng.below(64) * PAGE_BYTES;
                let over = rng.below(3) == 0;
                let step = if over { store.fold_over_readers(bytes) } else { store.fold(bytes) };
                if step.unwrap().is_idle() {
                    std::thread::yield_now();
                }
            }
        });
        // The folding ends when this does, well or not.
        let _stopped = StopOnDrop(&stop);
        let mut rng = Rng::new(SEED + 2);
        for step in 1..=STEPS {
            let change = change(SEED, step, &model);
            change_model(&mut model, &change, step);
            change_store(&store, &change, step);
            let number = rng.below(HISTORY_MEMORIES) as usize;
            let (id, expected) = model.iter().nth(number.min(model.len() - 1)).unwrap();
            match rng.below(40) {
                0..2 => {
                    checkpoint(&store, &mut index);
                    durable.clone_from(&model);
                    store.check_room().unwrap();
                }
                2..6 => assert_eq!(&tags(&store.layout(*id).unwrap()), expected, "step {step}"),
                6 if held.len() < 3 => {
                    let layout = HeldLayout::new(store.layout(*id).unwrap()).unwrap();
                    held.push((layout, expected.clone()));
                }
                7 if !held.is_empty() => {
                    let (layout, expected) = held.swap_remove(0);
                    assert_eq!(tags(&layout), expected, "step {step}");
                }
                _ => {}
            }
        }
    });
    assert!(store.stats().moved_bytes > 100 * PAGE_BYTES && store.stats().checkpoints > 50);
    assert_same(&store, &model);
    for (layout, expected) in &held {
        assert_eq!(&tags(layout), expected);
    }
    drop((held, store));
    let store = open(dir.path(), &index).unwrap();
    assert_same(&store, &durable);
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

// Promise: P6 - Snapshots of memories survive power cuts as memories do.
#[test]
fn a_power_cut_keeps_durable_copies_and_removes_others() {
    for seed in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let simulated = SimulatedDisk::new(&folder.path().join("disk"), seed).unwrap();
        let disk: SharedDisk = Arc::new(simulated.clone());
        let dir = folder.path().join("disk/pages");
        let mut index = Index::new();
        let open = |index: &Index| {
            PageStore::open_on(Arc::clone(&disk), &dir, &limits(), entries(index)).unwrap()
        };
        let store = open(&index);
        let before = mixed(&store, &mut index);
        copy_tags(&store, B, PAGES).unwrap();
        checkpoint(&store, &mut index);
        copy_tags(&store, C, PAGES).unwrap();
        drop(store);
        simulated.cut_power().unwrap();
        let store = open(&index);
        assert_eq!(store.ids(), [A, B], "seed {seed}");
        assert_eq!(tags(&store.layout(B).unwrap()), before, "seed {seed}");
        assert_eq!(copy_tags(&store, C, PAGES).unwrap(), before, "seed {seed}");
    }
}

// Promise: P4 - A copy without disk room leaves nothing and is made later.
#[test]
fn a_copy_that_finds_no_room_leaves_nothing_and_is_made_later() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(dir.path(), "2m") else { return };
    let path = dir.path().join("pages");
    let store = open(&path, &Index::new()).unwrap();
    store.create(A, 400 * PAGE_BYTES).unwrap();
    let old = put(&store, A, &[(0, 200)], 1).unwrap();
    put(&store, A, &[(0, 1)], 2).unwrap();
    let filler = dir.path().join("filler");
    let room = store.disk_free_bytes().unwrap() - 10 * PAGE_BYTES;
    fs::write(&filler, vec![1; room as usize]).unwrap();
    let copy = || store.create_copy(B, 400 * PAGE_BYTES, &old, 400 * PAGE_BYTES);
    for _ in 0..2 {
        let error = copy().unwrap_err();
        assert!(matches!(error, PagesError::DiskFull { .. }) && error.can_heal(), "{error}");
        assert!(!file_names(&path).contains(&"2.base".to_owned()));
    }
    // That of the newest version needs none.
    let newest = store.layout(A).unwrap();
    let copied = store.create_copy(C, 400 * PAGE_BYTES, &newest, u64::MAX).unwrap();
    assert_eq!(tags(&copied), tags(&newest));
    fs::remove_file(filler).unwrap();
    assert_eq!(tags(&copy().unwrap())[..200], [1; 200]);
}

#[test]
fn bytes_are_read_and_written_wherever_pages_begin() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = Index::new();
    let store = open(dir.path(), &index).unwrap();
    store.create(A, 4 * PAGE_BYTES).unwrap();
    put(&store, A, &[(1, 1)], 7).unwrap();
    assert_eq!(store.write_bytes(A, PAGE_BYTES - 3, b"abcdef").unwrap(), 2 * PAGE_BYTES);
    assert_eq!(store.write_bytes(A, 4 * PAGE_BYTES - 1, b"z").unwrap(), PAGE_BYTES);
    assert_eq!(store.write_bytes(A, 4 * PAGE_BYTES, b"").unwrap(), 0);
    assert!(store.write_bytes(A, 4 * PAGE_BYTES - 1, b"zz").is_err());
    assert!(store.write_bytes(A, u64::MAX, b"z").is_err());
    checkpoint(&store, &mut index);
    let layout = store.layout(A).unwrap();
    let mut found = vec![1; 8];
    read_bytes(&layout, PAGE_BYTES - 4, &mut found).unwrap();
    assert_eq!(found, b"\0abcdef\0");
    read_bytes(&layout, PAGE_BYTES + 8, &mut found).unwrap();
    assert_eq!(found, 7u64.to_le_bytes());
    read_bytes(&layout, 4 * PAGE_BYTES - 8, &mut found).unwrap();
    assert_eq!(found, b"\0\0\0\0\0\0\0z");
    assert!(read_bytes(&layout, 4 * PAGE_BYTES - 7, &mut found).is_err());
}
