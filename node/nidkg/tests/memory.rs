//! Memory of key generation: tables take only the memory reserved in the ledger's pool, and without
//! room in the pool the results are the same.
//!
//! The program counts its allocations, so there is one test in it: another one at the same time
//! would be counted too.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "it/support.rs"]
#[allow(dead_code, reason = "shared with the stories of key generations")]
mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    num::NonZeroUsize,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

use accounting::Pool;
use nidkg::{Engine, EngineConfig, create_transcript};
use support::*;

/// The system's allocator, with the bytes that are allocated now and at most.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn taken(bytes: usize) {
    let live = LIVE.fetch_add(bytes, SeqCst) + bytes;
    PEAK.fetch_max(live, SeqCst);
}

// SAFETY: every call is passed unchanged to the system's allocator; the counters are atomic and
// allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), SeqCst);
        // SAFETY: `pointer` came of `alloc` with this layout, which had it of the same allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Receivers of the session that is measured: as many as the largest published subnets have.
const NODES: u32 = 40;
/// The table of small logarithms, which is made without room too: nothing could be opened without
/// it.
const SMALL_TABLE_BYTES: usize = 64 << 10;
/// Bookkeeping in addition to the tables themselves: maps, reference counts, reservations.
const BOOKKEEPING_BYTES: usize = 16 << 10;
/// The most that one run of the protocol may take in addition to the tables and the values it
/// returns, however much room the pool has: the multiples, challenges and masks of the proofs of 14
/// dealings at once.
const WORKING_BYTES_MAX: usize = 8 << 20;

/// Results and memory use of a run.
struct Run {
    dealing: Vec<u8>,
    transcript: Vec<u8>,
    signature: Vec<u8>,
    /// Most bytes at once above those before the run, less the tables.
    working_bytes: usize,
    table_bytes: usize,
}

/// Deals, verifies, makes the transcript, loads a share of it and signs, with this much room.
fn run(cap_bytes: u64) -> Run {
    let pool = Pool::standalone("tables", cap_bytes);
    let mut config = EngineConfig::for_this_machine();
    config.threads = NonZeroUsize::new(2).unwrap();
    config.tables = pool.clone();
    let mut engine = Engine::new(config).unwrap();
    let mut rng = rng(77);
    let nodes = Nodes::new(NODES, &mut rng);
    let session = nodes.fresh(7, 0);

    let before = LIVE.load(SeqCst);
    PEAK.store(before, SeqCst);
    let dealings = deal(&engine, &session, session.dealings_needed(), &mut rng);
    let dealing = dealings[0].1.to_bytes();
    let verified = verified(&engine, &session, dealings, &mut rng);
    let transcript = create_transcript(&engine, &session, &verified).unwrap();
    let share = transcript.load(&engine, &session, nidkg::NodeIndex(1), &nodes.secret[1]).unwrap();
    let peak = PEAK.load(SeqCst) - before;

    // The tables take exactly the reserved memory: dropping them frees that much and no more.
    let reserved = engine.table_bytes();
    assert!(reserved <= cap_bytes, "{reserved} of {cap_bytes}");
    assert_eq!(reserved, pool.used_bytes());
    let with_tables = LIVE.load(SeqCst);
    engine.drop_tables();
    let freed = with_tables - LIVE.load(SeqCst);
    assert!(
        freed <= reserved as usize + SMALL_TABLE_BYTES + BOOKKEEPING_BYTES,
        "the tables took {freed} bytes, {reserved} were reserved of {cap_bytes}"
    );
    assert!(
        freed + BOOKKEEPING_BYTES >= reserved as usize,
        "the tables took {freed} bytes, and {reserved} are withheld from others"
    );
    assert_eq!((engine.table_bytes(), pool.used_bytes()), (0, 0));
    Run {
        dealing,
        transcript: transcript.to_bytes(),
        signature: share.sign(b"message").0.to_vec(),
        working_bytes: peak.saturating_sub(freed),
        table_bytes: reserved as usize,
    }
}

// Promise: P1 - Key tables use the reserved pool and one table of 64 KiB; 14 dealings add less than
//   8 MiB.
#[test]
fn tables_take_what_was_reserved_and_a_pool_without_room_changes_no_byte() {
    let full = run(32 << 20);
    assert!(full.table_bytes > 2 << 20, "with room there are tables: {}", full.table_bytes);
    // No room at all; room for one table of many; room for a part.
    let others = [0, 100_000, 1 << 20].map(run);
    for other in &others {
        assert!(other.dealing == full.dealing, "the dealing differs");
        assert!(other.transcript == full.transcript, "the transcript differs");
        assert!(other.signature == full.signature, "the share differs");
    }
    for run in others.iter().chain([&full]) {
        println!("{} bytes of tables, {} in addition", run.table_bytes, run.working_bytes);
        assert!(
            run.working_bytes <= WORKING_BYTES_MAX,
            "{} bytes in addition to {} of tables",
            run.working_bytes,
            run.table_bytes
        );
    }
}
