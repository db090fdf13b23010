//! Memories that begin as copies of others: what they hold, what tells of it, what is left of them.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::{fs, os::unix::fs::MetadataExt, path::Path, sync::Arc};

use common::*;
use disk::{SharedDisk, SimulatedDisk};
use pages::{MemoryId, PAGE_BYTES, PageStore, PagesError, read_bytes};
use testing::SmallDisk;

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
fn a_copy_holds_what_the_version_held_and_goes_its_own_way() {
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
fn a_checkpoint_tells_which_pages_a_copy_was_made_of_once() {
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
    assert_eq!(*written, [60..61]);
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

#[test]
fn what_a_durable_index_names_of_copies_survives_the_power_and_the_rest_goes() {
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
