//! Every limit that depends on the memory size, as values at a few sizes.
//!
//! A row names its value at each of the sizes of [`SCALE`]; [`sheet::Row`] defines the values
//! between them.
//!
//! How the sizes are used: up to 192 MiB half and more goes to processes and buffers that cannot
//! shrink, and a canister gets what is left. At 512 MiB half is working memory. From 4 GiB on,
//! limits grow slower than memory: the rest is page cache, which is where the state of canisters
//! lives.

use sheet::{Row, Scale};

/// Memory sizes in MiB at which every row names its value.
const SCALE: Scale<9> = Scale::new([96, 121, 192, 256, 512, 1024, 2048, 4096, 16384]);

// Process.                                               96  121  192  256  512 1024 2048 4096
// 16384
pub(crate) const NODE_BASE: Row<9> = SCALE.mib([14, 14, 14, 15, 15, 24, 32, 56, 120]);
pub(crate) const KERNEL: Row<9> = SCALE.mib([7, 7, 8, 10, 11, 20, 32, 64, 192]);
pub(crate) const PAGE_CACHE_FLOOR: Row<9> = SCALE.mib([6, 6, 8, 10, 12, 32, 80, 192, 1024]);

// Execution. Thread counts are steps: they change only at an anchor, where memory for the new
// threads is at hand.
pub(crate) const THREADS: Row<9> = SCALE.values([1, 2, 2, 2, 2, 2, 2, 4, 4]);
pub(crate) const COMPILE_THREADS: Row<9> = SCALE.values([1, 1, 1, 1, 2, 2, 2, 2, 2]);
pub(crate) const QUERY_THREADS: Row<9> = SCALE.values([1, 1, 1, 1, 1, 2, 2, 4, 4]);
pub(crate) const QUERY_THREADS_PER_CANISTER: Row<9> = SCALE.values([1, 1, 1, 1, 1, 1, 2, 2, 2]);
pub(crate) const PAUSED_EXECUTIONS: Row<9> = SCALE.values([1, 1, 1, 2, 4, 4, 4, 4, 4]);
pub(crate) const HEAP_DIRTY_PER_MESSAGE: Row<9> = SCALE.mib([8, 8, 20, 30, 64, 128, 256, 256, 256]);
pub(crate) const STABLE_DIRTY_PER_MESSAGE: Row<9> =
    SCALE.mib([4, 4, 10, 14, 32, 64, 128, 128, 128]);
pub(crate) const HEAP_DIRTY_PER_INSTALL: Row<9> =
    SCALE.mib([16, 16, 40, 60, 128, 256, 512, 768, 1024]);
pub(crate) const STABLE_DIRTY_PER_INSTALL: Row<9> =
    SCALE.mib([16, 16, 40, 60, 128, 256, 512, 768, 1024]);
pub(crate) const DIRTY_PER_INSTALL: Row<9> = SCALE.mib([22, 24, 60, 88, 192, 384, 768, 1024, 2048]);
pub(crate) const HEAP_DIRTY_PER_QUERY: Row<9> = SCALE.mib([3, 3, 8, 12, 20, 32, 64, 64, 64]);
pub(crate) const STABLE_DIRTY_PER_QUERY: Row<9> = SCALE.mib([2, 2, 4, 4, 8, 16, 32, 32, 32]);
pub(crate) const DELTA_PER_ROUND: Row<9> = SCALE.mib([14, 14, 24, 32, 64, 128, 256, 256, 512]);
pub(crate) const DELTA_PER_CANISTER_ROUND: Row<9> =
    SCALE.mib([8, 8, 12, 16, 32, 64, 128, 128, 256]);
pub(crate) const RESPONSE_CALLBACK_RESERVATION: Row<9> =
    SCALE.mib([1, 1, 2, 4, 8, 16, 32, 64, 256]);
pub(crate) const QUERY_CACHE: Row<9> = SCALE.mib([1, 1, 3, 6, 16, 32, 64, 128, 512]);

// Sandboxes.
pub(crate) const COMPILE_MEMORY: Row<9> =
    SCALE.mib([384, 384, 384, 384, 384, 384, 736, 1400, 2824]);
pub(crate) const COMPILE_SECONDS: Row<9> =
    SCALE.values([300, 300, 300, 300, 300, 300, 600, 600, 600]);
pub(crate) const COMPILATION_CACHE: Row<9> =
    SCALE.mib([128, 128, 128, 128, 128, 128, 256, 512, 2048]);
pub(crate) const SANDBOX_CANISTERS: Row<9> = SCALE.values([4, 4, 8, 16, 32, 64, 128, 256, 1024]);
pub(crate) const RESIDENT_FLOOR: Row<9> = SCALE.mib([24, 24, 48, 64, 128, 256, 512, 1024, 4096]);
pub(crate) const EVICTION_BATCH: Row<9> = SCALE.mib([12, 12, 24, 32, 64, 128, 256, 512, 1024]);

// The smallest nodes have no memory for one worker more: paused messages run again there.
pub(crate) const PAUSED_WORKERS: Row<9> = SCALE.values([0, 1, 1, 2, 4, 4, 4, 4, 4]);

// Subnet.
pub(crate) const MEMORY_CAPACITY: Row<9> =
    SCALE.mib([128, 128, 192, 256, 512, 1024, 4096, 16384, 65536]);
// On disk; the additional room of a disk budget is derived from that.
pub(crate) const GUARANTEED_MESSAGES: Row<9> =
    SCALE.mib([20, 22, 52, 76, 160, 320, 512, 768, 2048]);
pub(crate) const BEST_EFFORT_MESSAGES: Row<9> = SCALE.mib([2, 2, 8, 12, 32, 64, 128, 256, 1024]);
pub(crate) const INGRESS_HISTORY: Row<9> = SCALE.mib([3, 3, 8, 12, 32, 64, 128, 256, 1024]);
pub(crate) const CUSTOM_SECTIONS: Row<9> = SCALE.mib([1, 1, 2, 4, 16, 24, 48, 96, 384]);
pub(crate) const CANISTER_METADATA: Row<9> = SCALE.mib([2, 2, 3, 4, 8, 16, 32, 64, 256]);
pub(crate) const CALLBACK_SOFT_LIMIT: Row<9> =
    SCALE.values([512, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131_072]);
pub(crate) const INGRESS_UNFINISHED: Row<9> =
    SCALE.values([250, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000]);

// Pages.
// Each takes some 1.5 KiB of the kernel's memory: far less than the line of the kernel.
pub(crate) const OPEN_FILES: Row<9> =
    SCALE.values([512, 512, 512, 1024, 1024, 2048, 4096, 8192, 16384]);
pub(crate) const CHECKPOINT_DELTA: Row<9> = SCALE.mib([12, 12, 16, 24, 32, 64, 128, 128, 256]);
pub(crate) const METADATA_CACHE: Row<9> = SCALE.mib([1, 1, 1, 2, 3, 8, 16, 32, 128]);
pub(crate) const COPY_THREADS: Row<9> = SCALE.values([2, 2, 2, 2, 2, 2, 2, 4, 4]);

// Modules.
pub(crate) const TABLE_ELEMENTS: Row<9> =
    SCALE.values([65_536, 65_536, 65_536, 65_536, 65_536, 262_144, 262_144, 1_000_000, 1_000_000]);

// Consensus.
pub(crate) const INGRESS_POOL: Row<9> = SCALE.mib([3, 3, 3, 4, 8, 12, 24, 48, 96]);
pub(crate) const INGRESS_POOL_MESSAGES: Row<9> =
    SCALE.values([250, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000]);
pub(crate) const BLOCK_INGRESS: Row<9> = SCALE.mib([3, 3, 3, 3, 4, 4, 4, 4, 4]);
/// In granules: a subnet of three, of thirteen, of forty, and from 2 GiB on of the most there are,
/// with a table to search for a cheating dealer's chunk.
pub(crate) const NIDKG_TABLES: Row<9> = SCALE.granules([4, 4, 4, 16, 64, 64, 256, 512, 512]);

// Gateway.
pub(crate) const CONNECTIONS: Row<9> =
    SCALE.values([48, 48, 128, 256, 512, 1024, 2048, 4096, 8192]);
pub(crate) const REQUESTS_IN_FLIGHT: Row<9> =
    SCALE.values([32, 32, 64, 128, 256, 512, 1024, 2048, 4096]);
pub(crate) const QUERIES_IN_FLIGHT: Row<9> = SCALE.values([8, 8, 16, 32, 64, 128, 256, 512, 1024]);
pub(crate) const SYNC_CALLS_WAITING: Row<9> =
    SCALE.values([24, 24, 48, 96, 192, 384, 768, 1536, 3072]);
pub(crate) const BODIES: Row<9> = SCALE.mib([4, 4, 4, 5, 8, 16, 40, 64, 128]);
pub(crate) const RESPONSES: Row<9> = SCALE.mib([3, 3, 4, 5, 8, 16, 40, 64, 128]);

// HTTP gateway. Below 192 MiB there is no memory for it: an operator who enables it there takes its
// memory from something else.
pub(crate) const HTTP_CONNECTIONS: Row<9> = SCALE.values([0, 0, 64, 64, 128, 256, 512, 1024, 2048]);
pub(crate) const HTTP_REQUESTS_IN_FLIGHT: Row<9> =
    SCALE.values([0, 0, 32, 32, 64, 128, 256, 512, 1024]);
pub(crate) const HTTP_REQUESTS: Row<9> = SCALE.mib([0, 0, 10, 10, 16, 32, 64, 128, 256]);

// HTTPS outcalls. Below 512 MiB there is no memory for them in addition to the HTTP gateway: an
// operator who enables them there takes their memory from something else.
pub(crate) const OUTCALLS: Row<9> = SCALE.mib([0, 0, 0, 0, 16, 32, 64, 128, 256]);
pub(crate) const OUTCALLS_IN_FLIGHT: Row<9> = SCALE.values([0, 0, 0, 0, 48, 96, 192, 384, 512]);
/// In the state, on disk.
pub(crate) const OUTCALLS_OPEN: Row<9> = SCALE.mib([0, 0, 4, 4, 8, 8, 8, 16, 16]);

// Relations between rows.
const _: () = {
    assert!(
        DELTA_PER_ROUND.covers(&HEAP_DIRTY_PER_MESSAGE)
            && DELTA_PER_ROUND.covers(&STABLE_DIRTY_PER_MESSAGE)
    );
    assert!(
        DELTA_PER_ROUND.covers(&DELTA_PER_CANISTER_ROUND)
            && DELTA_PER_ROUND.covers(&CHECKPOINT_DELTA)
    );
    assert!(HEAP_DIRTY_PER_INSTALL.covers(&HEAP_DIRTY_PER_MESSAGE));
    assert!(STABLE_DIRTY_PER_INSTALL.covers(&STABLE_DIRTY_PER_MESSAGE));
    assert!(
        DIRTY_PER_INSTALL.covers(&HEAP_DIRTY_PER_INSTALL)
            && DIRTY_PER_INSTALL.covers(&STABLE_DIRTY_PER_INSTALL)
    );
    assert!(HEAP_DIRTY_PER_MESSAGE.covers(&HEAP_DIRTY_PER_QUERY));
    assert!(STABLE_DIRTY_PER_MESSAGE.covers(&STABLE_DIRTY_PER_QUERY));
    assert!(RESIDENT_FLOOR.covers(&EVICTION_BATCH));
    assert!(
        INGRESS_POOL.covers(&SCALE.mib([3, 3, 3, 3, 4, 4, 4, 4, 4]))
            && BODIES.covers(&BLOCK_INGRESS)
    );
    assert!(
        REQUESTS_IN_FLIGHT.covers(&QUERIES_IN_FLIGHT)
            && REQUESTS_IN_FLIGHT.covers(&SYNC_CALLS_WAITING)
    );
    assert!(HTTP_CONNECTIONS.covers(&HTTP_REQUESTS_IN_FLIGHT));
    assert!(QUERY_THREADS.covers(&QUERY_THREADS_PER_CANISTER) && THREADS.covers(&SCALE.flat(1)));
};
