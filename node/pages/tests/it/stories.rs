//! The store from its users' view: readers that keep their version, faulty workers, a log that
//! fills, malformed directories.

use std::{fs, io::Write, os::unix::fs::FileExt};

use pages::{
    HeldLayout, IndexFault, MemoryId, MemoryIndex, PAGE_BYTES, PageStore, PagesError, Run,
    RunFault, SegmentId, read_pages,
};

use crate::common::*;

const A: MemoryId = MemoryId(1);
const B: MemoryId = MemoryId(2);

fn store_with(pages: u64) -> (tempfile::TempDir, PageStore, Index) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &Index::new()).unwrap();
    store.create(A, pages * PAGE_BYTES).unwrap();
    (dir, store, Index::new())
}

#[test]
fn a_query_keeps_reading_its_version_while_commits_checkpoints_and_folds_go_on() {
    let (_dir, store, mut index) = store_with(16);
    let query = put(&store, A, &[(0, 4)], 1).unwrap();
    let before = tags(&query);

    let newer = put(&store, A, &[(2, 8)], 2).unwrap();
    assert_eq!(newer.version, query.version + 1);
    checkpoint(&store, &mut index);

    // Pages 4 to 9 are base pages to the query, so nothing may be folded over them while it runs.
    let progress = store.fold(MIB).unwrap();
    assert_eq!(
        (progress.copied_bytes, progress.memories_blocked, progress.memories_left),
        (0, 1, 1)
    );
    assert_eq!(tags(&query), before);

    // The newest version does not block its own folding, even when a reader holds it.
    drop(query);
    let progress = store.fold(MIB).unwrap();
    assert_eq!((progress.copied_bytes, progress.memories_left), (10 * PAGE_BYTES, 0));
    let folded = store.layout(A).unwrap();
    assert!(folded.runs.is_empty() && folded.segments.is_empty());
    assert_eq!((folded.version, folded.epoch), (newer.version, newer.epoch + 1));
    assert_eq!(tags(&folded), tags(&newer));

    // The file behind the older epoch goes at the next checkpoint; its holder can still read it.
    checkpoint(&store, &mut index);
    put(&store, A, &[(0, 16)], 3).unwrap();
    checkpoint(&store, &mut index);
    assert_eq!(store.fold(MIB).unwrap().memories_blocked, 1);
    assert_eq!(tags(&newer)[..10], [1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
    assert_eq!(tags(&folded), tags(&newer));
    drop((newer, folded));
    fold_all(&store);
    assert_eq!(tags(&store.layout(A).unwrap()), [3; 16]);
}

// Promise: P13 - A reader that blocks folding is cut off and detects it.
#[test]
fn a_reader_that_folding_cannot_wait_for_is_cut_off_and_can_tell() {
    let (_dir, store, mut index) = store_with(16);
    let query = put(&store, A, &[(0, 4)], 1).unwrap();
    let newer = put(&store, A, &[(2, 8)], 2).unwrap();
    checkpoint(&store, &mut index);
    assert_eq!(store.fold(MIB).unwrap().memories_blocked, 1);
    assert!(!query.is_cut_off());

    let progress = store.fold_over_readers(MIB).unwrap();
    assert_eq!((progress.copied_bytes, progress.memories_blocked), (10 * PAGE_BYTES, 0));
    assert!(query.is_cut_off() && !newer.is_cut_off(), "only what was overwritten is lost");
    assert_eq!(tags(&newer), tags(&store.layout(A).unwrap()));
    assert_eq!(store.stats().cut_off, 1);

    // The delta is gone after the checkpoint that follows, although the reader still has its
    // layout.
    checkpoint(&store, &mut index);
    assert_eq!(store.delta_bytes(), 0);
}

#[test]
fn fold_over_readers_waits_for_held_layouts() {
    let (_dir, store, mut index) = store_with(16);
    let held = HeldLayout::new(put(&store, A, &[(0, 4)], 1).unwrap()).unwrap();
    let before = tags(&held);
    put(&store, A, &[(2, 8)], 2).unwrap();
    checkpoint(&store, &mut index);
    let progress = store.fold_over_readers(MIB).unwrap();
    assert_eq!((progress.copied_bytes, progress.memories_blocked), (0, 1));
    assert!(!held.is_cut_off());
    assert_eq!(tags(&held), before);

    let late = (*held).clone();
    drop(held);
    assert_eq!(store.fold_over_readers(MIB).unwrap().memories_blocked, 0);
    assert!(HeldLayout::new(late).is_none(), "what was overwritten cannot be held any more");
}

#[test]
fn a_layout_outlives_its_memory() {
    let (dir, store, mut index) = store_with(8);
    let layout = put(&store, A, &[(1, 2)], 1).unwrap();
    checkpoint(&store, &mut index);
    store.remove(A);
    assert!(matches!(store.layout(A), Err(PagesError::UnknownMemory(A))));
    assert!(matches!(store.create(A, PAGE_BYTES), Err(PagesError::MemoryExists(A))));
    assert_eq!(file_names(dir.path()), ["1.0", "1.base"]);
    checkpoint(&store, &mut index);
    assert!(file_names(dir.path()).is_empty() && index.is_empty());
    assert_eq!(store.delta_bytes(), 0);
    assert_eq!(tags(&layout), [0, 1, 1, 0, 0, 0, 0, 0]);
    store.create(A, PAGE_BYTES).unwrap();
}

#[test]
fn a_memory_removed_during_a_checkpoint_waits_for_the_next() {
    let (dir, store, mut index) = store_with(8);
    put(&store, A, &[(1, 2)], 1).unwrap();
    let ticket = store.begin_checkpoint().unwrap();
    store.remove(A);
    ticket.sync().unwrap();
    merge(&mut index, &ticket.changed);
    store.finish_checkpoint(ticket);
    // This checkpoint names it, so it must be restorable from its files.
    drop(store);
    let store = open(dir.path(), &index).unwrap();
    assert_eq!(tags(&store.layout(A).unwrap()), [0, 1, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn an_append_target_is_exclusive_until_the_last_descriptor_is_gone() {
    let (_dir, store, mut index) = store_with(8);
    let target = store.reserve(A, 4).unwrap();
    assert!(matches!(store.reserve(A, 4), Err(PagesError::Busy(A))));
    let file = target.file.clone();
    drop(target);
    assert!(matches!(store.reserve(A, 4), Err(PagesError::Busy(A))));
    drop(file);
    let again = store.reserve(A, 4).unwrap();
    assert_eq!(again.offset_page, 0, "the space of a dropped target is given back");
    let runs = write(&again, &[(0, 2)], 1).unwrap();
    store.commit(&again, &runs).unwrap();
    drop(again);

    // Sealing under a writer's hands would lose its pages.
    let target = store.reserve(A, 4).unwrap();
    assert_eq!(target.offset_page, 2, "what was reserved and not used is given back");
    assert!(matches!(store.begin_checkpoint(), Err(PagesError::Busy(A))));
    drop(target);
    checkpoint(&store, &mut index);
    assert_eq!(index[&A].0.runs.len(), 1);
}

#[test]
fn a_target_from_before_a_checkpoint_or_of_another_store_is_refused() {
    let (_dir, store, mut index) = store_with(8);
    let (_other_dir, other, _) = store_with(8);
    let foreign = other.reserve(A, 4).unwrap();
    store.reserve(A, 4).unwrap();
    let runs = write(&foreign, &[(0, 1)], 9).unwrap();
    assert!(matches!(store.commit(&foreign, &runs), Err(PagesError::ForeignTarget(A))));

    // A target of a segment without committed pages survives a checkpoint: there was nothing to
    // seal.
    let target = store.reserve(A, 4).unwrap();
    checkpoint(&store, &mut index);
    let runs = write(&target, &[(3, 1)], 1).unwrap();
    assert_eq!(tags(&store.commit(&target, &runs).unwrap()), [0, 0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn runs_that_a_worker_could_not_have_written_are_refused() {
    let (_dir, store, _) = store_with(16);
    put(&store, A, &[(0, 2)], 1).unwrap();
    let before = store.layout(A).unwrap();
    let segment = before.runs[0].segment;
    // The target reaches from page 2 to page 10 of the segment; 4 pages are written.
    let run = |start_page, pages, offset_page| Run { start_page, pages, segment, offset_page };
    let cases = [
        (vec![run(0, 0, 2)], RunFault::Empty),
        (vec![Run { segment: SegmentId(9), ..run(0, 1, 2) }], RunFault::OtherSegment),
        (vec![run(4, 2, 2), run(5, 1, 4)], RunFault::Disordered),
        (vec![run(4, 1, 2), run(3, 1, 3)], RunFault::Disordered),
        (vec![run(16, 1, 2)], RunFault::PastMemory),
        (vec![run(15, 2, 2)], RunFault::PastMemory),
        (vec![run(u64::MAX, 2, 2)], RunFault::PastMemory),
        (vec![run(0, 1, 1)], RunFault::OutsideTarget),
        (vec![run(0, 9, 2)], RunFault::OutsideTarget),
        (vec![run(0, 1, u64::MAX)], RunFault::OutsideTarget),
        (vec![run(0, 2, 2), run(2, 2, 3)], RunFault::SharedPages),
        (vec![run(0, 2, 4), run(2, 2, 3)], RunFault::SharedPages),
        (vec![run(0, 8, 2)], RunFault::NotWritten),
    ];
    for (runs, expected) in cases {
        let target = store.reserve(A, 8).unwrap();
        write(&target, &[(0, 4)], 2).unwrap();
        assert!(store.verify(&target, &runs).is_err(), "{runs:?}");
        match store.commit(&target, &runs) {
            Err(e @ PagesError::BadRun { fault, .. }) => {
                assert_eq!(fault, expected, "{runs:?}");
                assert!(e.is_worker_fault() && e.to_string().contains("memory 1"));
            }
            other => panic!("{runs:?}: {other:?}"),
        }
        let after = store.layout(A).unwrap();
        assert_eq!((after.version, &after.runs), (before.version, &before.runs));
    }

    // The same target may be tried again after a refusal.
    let target = store.reserve(A, 8).unwrap();
    assert!(store.commit(&target, &[run(0, 1, 1)]).is_err());
    let runs = write(&target, &[(3, 1)], 1).unwrap();
    store.commit(&target, &runs).unwrap();
    assert!(
        matches!(store.commit(&target, &runs), Err(PagesError::ForeignTarget(A))),
        "but once only"
    );
    drop(target);

    // Written in an order other than that of the pages is fine.
    let target = store.reserve(A, 8).unwrap();
    write(&target, &[(0, 4)], 2).unwrap();
    let layout = store.commit(&target, &[run(6, 2, 5), run(9, 2, 3)]).unwrap();
    assert_eq!(tags(&layout)[..12], [1, 1, 0, 1, 0, 0, 2, 2, 0, 2, 2, 0]);
}

#[test]
fn every_commit_is_a_version_even_one_that_changed_nothing() {
    let (_dir, store, _) = store_with(4);
    let first = store.layout(A).unwrap();
    let target = store.reserve(A, 4).unwrap();
    assert_eq!(store.append(&target, &[]).unwrap(), first.version + 1);
    assert_eq!(store.delta_bytes(), 0);
}

#[test]
fn layouts_share_what_did_not_change_and_cannot_be_written_through() {
    let (_dir, store, _) = store_with(8);
    let one = put(&store, A, &[(0, 1)], 1).unwrap();
    let two = store.layout(A).unwrap();
    assert!(std::sync::Arc::ptr_eq(&one.base, &two.base));
    assert!(std::sync::Arc::ptr_eq(&one.runs, &two.runs));
    for file in [&one.base, &one.segments[0].1] {
        assert!(file.open().unwrap().write_all_at(&[1], 0).is_err());
    }
}

#[test]
fn a_hot_page_does_not_fill_the_log() {
    let (dir, store, mut index) = store_with(64);
    put(&store, A, &[(20, 4)], 7).unwrap();
    let first = store.layout(A).unwrap();
    let expected = tags(&first);
    for tag in 0..20_000 {
        let target = store.reserve(A, 64).unwrap();
        let runs = write(&target, &[(0, 1), (9, 1), (63, 1)], tag + 8).unwrap();
        store.append(&target, &runs).unwrap();
    }
    // 234 MiB were committed.
    assert!(store.delta_bytes() < 5 * MIB, "{}", store.delta_bytes());
    assert!(store.stats().rewritten_bytes < 8 * MIB);
    assert!(!store.needs_checkpoint());
    assert_eq!(tags(&first), expected);
    assert!(store.layout(A).unwrap().epoch > first.epoch);
    checkpoint(&store, &mut index);
    drop((first, store));
    let store = open(dir.path(), &index).unwrap();
    let mut expected = vec![0; 64];
    expected[20..24].fill(7);
    for page in [0, 9, 63] {
        expected[page] = 20_007;
    }
    assert_eq!(tags(&store.layout(A).unwrap()), expected);
}

#[test]
fn the_pages_of_a_busy_canister_are_written_over_unless_they_are_read() {
    let (dir, store, mut index) = store_with(64);
    let again = |tag: u64| {
        let target = store.reserve_reusing(A, 64).unwrap();
        let runs = write_again(&target, &[(0, 1), (9, 2)], tag).unwrap();
        store.append(&target, &runs).unwrap();
    };
    let mut expected = vec![0; 64];
    let mut held = Vec::new();
    for tag in 1..=1_000 {
        again(tag);
        expected[0] = tag;
        expected[9..11].fill(tag);
        if tag % 400 == 0 {
            held.push((store.layout(A).unwrap(), expected.clone()));
        }
    }
    // Two places in turns, and those of the two versions that are read.
    assert_eq!(store.delta_bytes(), 4 * 3 * PAGE_BYTES);
    assert_eq!(store.stats().rewritten_bytes, 0);
    for (layout, expected) in &held {
        assert_eq!(&tags(layout), expected);
    }
    assert_eq!(tags(&store.layout(A).unwrap()), expected);
    // A sealed segment is not written any more.
    checkpoint(&store, &mut index);
    assert!(store.reserve_reusing(A, 64).unwrap().free.is_empty());
    drop((held, store));
    assert_eq!(tags(&open(dir.path(), &index).unwrap().layout(A).unwrap()), expected);
}

// Promise: P13 - Rewriting an open segment disturbs no reader.
#[test]
fn rewriting_an_open_segment_disturbs_no_reader_and_no_checkpoint() {
    let (dir, store, mut index) = store_with(40);
    let mut rng = Rng::new(11);
    let mut model = Model::from([(A, vec![0; 40])]);
    let mut held = Vec::new();
    for tag in 1..=6_000 {
        let first = rng.below(30);
        let ranges = [(first, 1 + rng.below(4)), (first + 5, 1 + rng.below(5))];
        let layout = put(&store, A, &ranges, tag).unwrap();
        apply(&mut model, A, &ranges, tag);
        match rng.below(1_000) {
            0 => checkpoint(&store, &mut index),
            1..4 => drop(store.fold(8 * PAGE_BYTES).unwrap()),
            4..40 if held.len() < 6 => held.push((layout, model[&A].clone())),
            40..70 if !held.is_empty() => {
                let (layout, expected) = held.swap_remove(0);
                assert_eq!(tags(&layout), expected);
            }
            _ => {}
        }
    }
    assert!(store.stats().rewritten_bytes > 10 * 30 * PAGE_BYTES);
    assert_same(&store, &model);
    checkpoint(&store, &mut index);
    drop((held, store));
    let store = open(dir.path(), &index).unwrap();
    assert_same(&store, &model);
    fold_all(&store);
    checkpoint(&store, &mut index);
    assert_eq!(file_names(dir.path()), ["1.base"]);
}

#[test]
fn a_log_without_room_is_an_error_with_its_limit_and_drains_by_checkpoints_and_folds() {
    let (_dir, store, mut index) = store_with(1 << 20);
    let mut start = 0;
    let mut asked_at = None;
    let full = loop {
        if asked_at.is_none() && store.needs_checkpoint() {
            asked_at = Some(store.delta_bytes());
        }
        match store.check_room() {
            Ok(()) => drop(put(&store, A, &[(start, 256)], 1).unwrap()),
            Err(e) => break e,
        }
        start += 256;
    };
    assert_eq!(asked_at, Some(48 * MIB));
    assert_eq!(store.delta_bytes(), 48 * MIB);
    assert!(full.can_heal());
    assert!(full.to_string().contains("50331648"), "{full}");
    // Readers that began before that finish.
    for _ in 0..16 {
        put(&store, A, &[(start, 256)], 1).unwrap();
        start += 256;
    }

    // The first checkpoint frees nothing yet, and asking for another at once would be of no use.
    checkpoint(&store, &mut index);
    assert_eq!((store.delta_bytes(), store.open_delta_bytes()), (64 * MIB, 0));
    assert!(!store.needs_checkpoint());
    fold_all(&store);
    assert!(store.needs_checkpoint());
    checkpoint(&store, &mut index);
    assert_eq!(store.delta_bytes(), 0);
    assert!(!store.needs_checkpoint());
    put(&store, A, &[(0, 1)], 1).unwrap();
    assert_eq!(store.written_bytes(), 2 * 64 * MIB + PAGE_BYTES);
}

#[test]
fn a_memory_in_too_many_pieces_asks_for_a_checkpoint() {
    let (_dir, store, mut index) = store_with(1 << 16);
    for batch in 0..11 {
        let ranges: Vec<(u64, u64)> = (0..100).map(|i| (batch * 1000 + i * 3, 1)).collect();
        assert_eq!(store.needs_checkpoint(), batch * 100 > 1000);
        put(&store, A, &ranges, 1).unwrap();
    }
    assert!(store.needs_checkpoint());
    checkpoint(&store, &mut index);
    assert!(!store.needs_checkpoint());
    fold_all(&store);
    assert!(store.layout(A).unwrap().runs.is_empty());
}

#[test]
fn fold_steps_skip_memories_that_are_being_read() {
    let (_dir, store, mut index) = store_with(64);
    store.create(B, 64 * PAGE_BYTES).unwrap();
    let reader = store.layout(A).unwrap();
    put(&store, A, &[(0, 10)], 1).unwrap();
    put(&store, B, &[(0, 10)], 1).unwrap();
    assert_eq!(store.fold(MIB).unwrap().copied_bytes, 0, "nothing is durable yet");
    checkpoint(&store, &mut index);
    for _ in 0..3 {
        let step = store.fold(3 * PAGE_BYTES).unwrap();
        assert_eq!((step.copied_bytes, step.memories_left), (3 * PAGE_BYTES, 2));
    }
    // Overwritten meanwhile: what is left of B to fold is dead.
    put(&store, B, &[(8, 2)], 2).unwrap();
    let step = store.fold(MIB).unwrap();
    assert_eq!((step.copied_bytes, step.memories_left, step.memories_blocked), (0, 1, 1));
    drop(reader);
    fold_all(&store);
    assert_eq!(tags(&store.layout(B).unwrap())[7..11], [1, 2, 2, 0]);
    assert_eq!(tags(&store.layout(A).unwrap())[8..11], [1, 1, 0]);
}

#[test]
fn an_unfinished_checkpoint_is_part_of_the_next() {
    let (dir, store, mut index) = store_with(8);
    put(&store, A, &[(0, 1)], 1).unwrap();
    drop(store.begin_checkpoint().unwrap());
    put(&store, A, &[(1, 1)], 2).unwrap();
    let given_up = store.begin_checkpoint().unwrap();
    store.create(B, PAGE_BYTES).unwrap();
    let ticket = store.begin_checkpoint().unwrap();
    assert!(matches!(given_up.sync(), Err(PagesError::StaleTicket)));
    assert_eq!(ticket.sync_bytes(), 2 * PAGE_BYTES);
    ticket.sync().unwrap();
    merge(&mut index, &ticket.changed);
    store.finish_checkpoint(ticket);
    assert!(store.begin_checkpoint().unwrap().changed.is_empty());
    drop((store, given_up));
    let store = open(dir.path(), &index).unwrap();
    assert_eq!(tags(&store.layout(A).unwrap())[..3], [1, 2, 0]);
    assert_eq!(tags(&store.layout(B).unwrap()), [0]);
}

#[test]
fn opening_removes_what_the_index_does_not_name_and_nothing_else() {
    let (dir, store, mut index) = store_with(8);
    put(&store, A, &[(0, 2)], 1).unwrap();
    checkpoint(&store, &mut index);
    put(&store, A, &[(0, 8)], 2).unwrap();
    store.create(B, PAGE_BYTES).unwrap();
    drop(store);
    fs::write(dir.path().join("README"), "not ours").unwrap();
    fs::OpenOptions::new()
        .append(true)
        .open(dir.path().join("1.0"))
        .unwrap()
        .write_all(&[0; 10_000])
        .unwrap();
    assert_eq!(file_names(dir.path()), ["1.0", "1.1", "1.base", "2.base", "README"]);
    let store = open(dir.path(), &index).unwrap();
    assert_eq!(file_names(dir.path()), ["1.0", "1.base", "README"]);
    assert_eq!(fs::metadata(dir.path().join("1.0")).unwrap().len(), 2 * PAGE_BYTES);
    assert_eq!(store.delta_bytes(), 2 * PAGE_BYTES);
    assert_eq!(tags(&store.layout(A).unwrap())[..3], [1, 1, 0]);
    // Durable delta is folded, and the segment is then deleted.
    fold_all(&store);
    checkpoint(&store, &mut index);
    assert_eq!(file_names(dir.path()), ["1.base", "README"]);
}

#[test]
fn truncated_and_missing_files_are_found_at_opening_and_nothing_is_removed() {
    let (dir, store, mut index) = store_with(8);
    put(&store, A, &[(0, 4)], 1).unwrap();
    checkpoint(&store, &mut index);
    put(&store, A, &[(0, 4)], 2).unwrap();
    drop(store);
    let names = file_names(dir.path());
    let damage = |name: &str, len: u64| {
        let path = dir.path().join(name);
        let old = fs::metadata(&path).unwrap().len();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
        let error = open(dir.path(), &index).unwrap_err();
        match &error {
            PagesError::ShortFile { path: short, expected_bytes, found_bytes } => {
                assert_eq!((short, *expected_bytes, *found_bytes), (&path, old, len))
            }
            other => panic!("{other}"),
        }
        assert!(
            error.to_string().contains(name) && error.to_string().contains("truncated"),
            "{error}"
        );
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(old).unwrap();
    };
    damage("1.0", 4 * PAGE_BYTES - 1);
    damage("1.base", 7 * PAGE_BYTES);
    for name in ["1.0", "1.base"] {
        let aside = dir.path().join("aside");
        fs::rename(dir.path().join(name), &aside).unwrap();
        let error = open(dir.path(), &index).unwrap_err();
        assert!(
            matches!(&error, PagesError::MissingFile { path } if path.ends_with(name)),
            "{error}"
        );
        fs::rename(aside, dir.path().join(name)).unwrap();
    }
    assert_eq!(file_names(dir.path()), names);
    open(dir.path(), &index).unwrap();
}

#[test]
fn a_worker_that_truncates_its_segment_is_found_at_the_checkpoint() {
    let (_dir, store, _) = store_with(8);
    put(&store, A, &[(0, 4)], 1).unwrap();
    let target = store.reserve(A, 1).unwrap();
    target.file.set_len(PAGE_BYTES).unwrap();
    drop(target);
    let ticket = store.begin_checkpoint().unwrap();
    assert!(matches!(ticket.sync(), Err(PagesError::ShortFile { .. })));
    // The pages are gone: only a restart from the checkpoint before helps.
    assert!(matches!(store.reserve(A, 1), Err(PagesError::SyncLost)));
    assert!(matches!(store.begin_checkpoint(), Err(PagesError::SyncLost)));
    store.finish_checkpoint(ticket);
    assert_eq!(store.stats().checkpoints, 0);
}

#[test]
fn a_damaged_index_is_refused() {
    let (dir, store, mut index) = store_with(8);
    put(&store, A, &[(0, 4)], 1).unwrap();
    checkpoint(&store, &mut index);
    drop(store);
    let run = |start_page, pages, offset_page| Run {
        start_page,
        pages,
        segment: SegmentId(0),
        offset_page,
    };
    let cases = [
        (vec![run(0, 0, 0)], IndexFault::EmptyRun),
        (vec![run(1, 2, 0), run(2, 1, 2)], IndexFault::Disordered),
        (vec![run(7, 2, 0)], IndexFault::PastEnd),
        (vec![run(u64::MAX, 1, 0)], IndexFault::PastEnd),
        (vec![run(0, 1, u64::MAX / PAGE_BYTES)], IndexFault::PastEnd),
        (vec![Run { segment: SegmentId(u64::MAX), ..run(0, 1, 0) }], IndexFault::PastEnd),
    ];
    for (runs, expected) in cases {
        let entry =
            (A, MemoryIndex { runs: runs.clone(), ..MemoryIndex::default() }, 8 * PAGE_BYTES);
        let error = PageStore::open(dir.path(), &limits(), [entry]).unwrap_err();
        assert!(
            matches!(error, PagesError::BadIndex { id: A, fault } if fault == expected),
            "{runs:?}: {error}"
        );
    }
    let twice = [entries(&index), entries(&index)].concat();
    assert!(matches!(
        PageStore::open(dir.path(), &limits(), twice),
        Err(PagesError::BadIndex { fault: IndexFault::Twice, .. })
    ));
    open(dir.path(), &index).unwrap();
}

#[test]
fn a_second_process_is_kept_out() {
    let (dir, store, index) = store_with(8);
    assert!(matches!(open(dir.path(), &index), Err(PagesError::Locked { .. })));
    drop(store);
    open(dir.path(), &index).unwrap();
}

#[test]
fn reads_and_sizes_out_of_range_are_rejected() {
    let (_dir, store, _) = store_with(4);
    let layout = put(&store, A, &[(1, 1), (3, 1)], 5).unwrap();
    let mut two = vec![0; 2 * PAGE];
    read_pages(&layout, 2, &mut two).unwrap();
    assert_eq!((&two[..PAGE], &two[PAGE..]), (&page(0)[..], &page(5)[..]));
    read_pages(&layout, 4, &mut []).unwrap();
    for (start, bytes) in [(3, 2 * PAGE), (0, 100), (u64::MAX, PAGE)] {
        assert!(matches!(
            read_pages(&layout, start, &mut vec![0; bytes]),
            Err(PagesError::OutOfRange { .. })
        ));
    }
    assert!(matches!(store.create(B, 100), Err(PagesError::BadSize { .. })));
    assert!(matches!(store.create(B, u64::MAX - 4095), Err(PagesError::BadSize { .. })));
    assert!(matches!(store.reserve(A, u64::MAX), Err(PagesError::BadReservation { .. })));
}

#[test]
fn lanes_checkpoints_and_folds_run_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &Index::new()).unwrap();
    let ids: Vec<MemoryId> = (0..4).map(MemoryId).collect();
    for &id in &ids {
        store.create(id, 128 * PAGE_BYTES).unwrap();
    }
    let mut index = Index::new();
    let done = std::sync::atomic::AtomicBool::new(false);
    let model = std::thread::scope(|scope| {
        let lanes: Vec<_> = ids
            .iter()
            .map(|&id| {
                let store = &store;
                scope.spawn(move || {
                    let mut rng = Rng::new(id.0);
                    let mut model = Model::from([(id, vec![0; 128])]);
                    for tag in 1..=800 {
                        let start = rng.below(120);
                        let ranges = [(start, 1 + rng.below(8))];
                        let layout = put(store, id, &ranges, tag).unwrap();
                        apply(&mut model, id, &ranges, tag);
                        if tag % 8 == 0 {
                            assert_eq!(tags(&layout), model[&id]);
                        }
                    }
                    model
                })
            })
            .collect();
        let folder = scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                store.fold(16 * PAGE_BYTES).unwrap();
            }
        });
        while !lanes.iter().all(|lane| lane.is_finished()) {
            match store.begin_checkpoint() {
                Ok(ticket) => {
                    ticket.sync().unwrap();
                    merge(&mut index, &ticket.changed);
                    store.finish_checkpoint(ticket);
                }
                Err(PagesError::Busy(_)) => std::thread::yield_now(),
                Err(e) => panic!("{e}"),
            }
        }
        let model: Model = lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        folder.join().unwrap();
        model
    });
    assert_same(&store, &model);
    checkpoint(&store, &mut index);
    drop(store);
    assert_same(&open(dir.path(), &index).unwrap(), &model);
}
