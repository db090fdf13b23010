//! Writing and reading a checkpoint takes the cache's bytes and one record, however much the
//! checkpoint holds.
#![allow(clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI64, Ordering},
};

use ic_principal::Principal;
use state::{CheckpointDelta, Height, RequestId, StateStore, tree::leaf_digest};

/// Counts live bytes and remembers the most there were.
struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

// SAFETY: hands every request to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed) + layout.size() as i64;
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that were live during `work`, above those before it.
fn peak(work: impl FnOnce()) -> i64 {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    work();
    PEAK.load(Ordering::Relaxed) - before
}

#[test]
fn a_checkpoint_of_many_times_the_cache_fits_beside_it() {
    const CACHE_BYTES: u64 = 4 << 20;
    const MARGIN_BYTES: i64 = 4 << 20;
    const ENTRIES: u32 = 50_000;
    const LARGE: usize = 2 << 20;
    let dir = tempfile::tempdir().unwrap();
    let store = StateStore::open(dir.path(), CACHE_BYTES).unwrap();
    let entries = |byte: u8| {
        (0..ENTRIES).map(move |number: u32| {
            (RequestId(leaf_digest(&number.to_le_bytes())), Some(vec![byte; 600]))
        })
    };
    let canisters = |byte: u8| {
        (0..20u8).map(move |number| (Principal::from_slice(&[number, 1]), Some(vec![byte; LARGE])))
    };
    for round in 1..4u8 {
        let most = peak(|| {
            store
                .write(CheckpointDelta {
                    height: Height(round.into()),
                    metadata: vec![],
                    canisters: Box::new(canisters(round).map(Ok)),
                    messages: Box::new(std::iter::empty()),
                    history: Box::new(entries(round).map(Ok)),
                    memories: vec![],
                    written: vec![],
                })
                .unwrap();
        });
        println!("write {round}: {most} bytes at most");
        assert!(
            most < CACHE_BYTES as i64 + LARGE as i64 + MARGIN_BYTES,
            "write {round} took {most} bytes"
        );
    }
    let most = peak(|| {
        let loaded = store.load().unwrap().unwrap();
        assert_eq!(loaded.history().unwrap().map(Result::unwrap).count(), ENTRIES as usize);
        assert_eq!(loaded.canisters().unwrap().map(Result::unwrap).count(), 20);
    });
    println!("load: {most} bytes at most");
    // A record grows as its parts come, which takes up to half of it again.
    assert!(most < CACHE_BYTES as i64 + 2 * LARGE as i64 + MARGIN_BYTES, "load took {most} bytes");
}
