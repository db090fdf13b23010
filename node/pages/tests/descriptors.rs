//! A store of more memories than its process may open files. In a process of its own, for the limit
//! is the whole process's.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "it/common.rs"]
mod common;

use std::fs;

use common::*;
use pages::{MemoryId, MemoryLayout, PAGE_BYTES, PageStore, PagesError, read_pages};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const DESCRIPTORS: u64 = 96;
const MEMORIES: u64 = 400;

fn allow(descriptors: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum }).unwrap();
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn write_all(store: &PageStore, tag: u64) -> Vec<MemoryLayout> {
    (0..MEMORIES).map(|id| put(store, MemoryId(id), &[(1, 1)], tag + id).unwrap()).collect()
}

fn assert_tags(layouts: &[MemoryLayout], tag: u64) {
    for (id, layout) in (0..).zip(layouts) {
        assert_eq!(tags(layout), [0, tag + id], "memory {id}");
    }
}

// Promise: P3 - Rounds write all memories with a quarter as many descriptors as memories.
#[test]
fn memories_cost_no_descriptors_and_a_round_may_write_more_of_them_than_can_be_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = Index::new();
    allow(DESCRIPTORS);
    let before = open_files();
    let store = open(dir.path(), &index).unwrap();
    for id in 0..MEMORIES {
        store.create(MemoryId(id), 2 * PAGE_BYTES).unwrap();
    }
    // Every layout is held from here on: idle ones have no file open.
    let empty: Vec<_> = (0..MEMORIES).map(|id| store.layout(MemoryId(id)).unwrap()).collect();
    assert!(open_files() <= before + 2, "{} of {before}", open_files());
    assert!(empty.iter().all(|layout| tags(layout) == [0, 0]));
    drop(empty);

    // One round writes them all, twice; segments that were closed are written again and synced.
    drop(write_all(&store, 1_000));
    let first = write_all(&store, 2_000);
    assert!(open_files() as u64 <= before as u64 + 2 + DESCRIPTORS / 4, "{}", open_files());
    assert!(store.needs_checkpoint());
    assert_tags(&first, 2_000);
    checkpoint(&store, &mut index);
    assert!(!store.needs_checkpoint() && open_files() <= before + 2, "{}", open_files());
    assert_tags(&first, 2_000);

    // Files deleted while a reader may still need them stay open, within the limit; the others
    // wait.
    fold_all(&store);
    checkpoint(&store, &mut index);
    assert!(store.stats().unlink_failures > 0);
    assert_tags(&first, 2_000);
    drop(first);
    checkpoint(&store, &mut index);
    assert_eq!(file_names(dir.path()).len() as u64, MEMORIES);
    assert_eq!(store.delta_bytes(), 0);
    assert!(open_files() <= before + 2, "{}", open_files());

    // If there is no other way, readers lose the files that cannot be kept, and get an error.
    let old = write_all(&store, 3_000);
    drop(write_all(&store, 4_000));
    checkpoint(&store, &mut index);
    while !store.fold_over_readers(MIB).unwrap().is_idle() {}
    checkpoint(&store, &mut index);
    assert!(file_names(dir.path()).len() as u64 > MEMORIES);
    store.give_up_readers();
    checkpoint(&store, &mut index);
    assert_eq!(file_names(dir.path()).len() as u64, MEMORIES);
    let read = |layout: &MemoryLayout| read_pages(layout, 1, &mut vec![0; PAGE_BYTES as usize]);
    assert!(old.iter().all(MemoryLayout::is_cut_off));
    assert!(old.iter().any(|layout| matches!(read(layout), Err(PagesError::Gone { .. }))));
    drop(old);

    // A memory that was only prepared for writing leaves nothing open.
    for id in 0..MEMORIES {
        drop(store.reserve(MemoryId(id), 1).unwrap());
    }
    checkpoint(&store, &mut index);
    assert!(!store.needs_checkpoint() && open_files() <= before + 2, "{}", open_files());
    assert_eq!(file_names(dir.path()).len() as u64, MEMORIES);

    // Acknowledged data is there after a restart.
    drop(store);
    let store = open(dir.path(), &index).unwrap();
    let layouts: Vec<_> = store.ids().into_iter().map(|id| store.layout(id).unwrap()).collect();
    assert_tags(&layouts, 4_000);
}
