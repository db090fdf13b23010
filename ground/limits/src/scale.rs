//! Every limit that depends on the memory size, as values at a few sizes.
//!
//! A row names its value at each of the sizes in [`ANCHORS_MIB`]. Between two sizes the value lies on the straight line between them (or, for counts of
//! threads, is that of the smaller one); below the first and above the last it stays. Two things follow. All rows rise, so more memory never means a
//! smaller limit. And a sum of rows that fits the budget at two neighbouring sizes fits it at every size between them, because both sides of
//! the comparison are straight lines; a maximum of rows, which bends upwards, stays below the line too. So the sheet adds up everywhere once it
//! adds up at the anchors, and the tests walk every MiB to be sure.
//!
//! How the sizes are used: at 192 MiB nearly half goes to processes and buffers that cannot shrink, and a canister gets what is left. At 512 MiB half is
//! working memory and message queues. From 4 GiB on, limits grow slower than memory: what is left over is page cache, which is where the state of
//! canisters lives.

use budget::{KIB, MIB};

/// The sizes.
pub(crate) const ANCHORS_MIB: [u64; 7] = [192, 256, 512, 1024, 2048, 4096, 16384];
const ANCHORS: usize = ANCHORS_MIB.len();

/// Bytes are rounded down to a multiple of this: one Wasm page, and whole pages of every operating system.
pub(crate) const GRANULE_BYTES: u64 = 64 * KIB;

/// Values at the anchors.
#[derive(Clone, Copy)]
pub(crate) struct Row([u64; ANCHORS]);

impl Row {
    const fn new(values: [u64; ANCHORS]) -> Self {
        let mut at = 1;
        while at < ANCHORS {
            assert!(values[at - 1] <= values[at], "a limit must not fall when memory grows");
            at += 1;
        }
        Self(values)
    }

    const fn mib(values: [u64; ANCHORS]) -> Self {
        let mut bytes = values;
        let mut at = 0;
        while at < ANCHORS {
            bytes[at] *= MIB;
            at += 1;
        }
        Self::new(bytes)
    }

    const fn granules(values: [u64; ANCHORS]) -> Self {
        let mut bytes = values;
        let mut at = 0;
        while at < ANCHORS {
            bytes[at] *= GRANULE_BYTES;
            at += 1;
        }
        Self::new(bytes)
    }

    /// Whether it is at least as large as `other` at every anchor, and so everywhere.
    const fn covers(&self, other: &Row) -> bool {
        let mut at = 0;
        while at < ANCHORS {
            if self.0[at] < other.0[at] {
                return false;
            }
            at += 1;
        }
        true
    }

    /// Its value at `memory_bytes`, on the straight line between the two anchors around it.
    pub(crate) fn at(&self, memory_bytes: u64) -> u64 {
        let low = anchor_below(memory_bytes);
        let (Some(&low_value), Some(&low_mib)) = (self.0.get(low), ANCHORS_MIB.get(low)) else {
            return 0;
        };
        let (Some(&high_value), Some(&high_mib)) = (self.0.get(low + 1), ANCHORS_MIB.get(low + 1)) else {
            return low_value;
        };
        let low_bytes = low_mib * MIB;
        let past = u128::from(memory_bytes.saturating_sub(low_bytes));
        let more = u128::from(high_value - low_value) * past / u128::from((high_mib - low_mib) * MIB);
        // At most `high_value`, because `memory_bytes` lies below the upper anchor.
        low_value + more as u64
    }

    /// Its value at `memory_bytes` in whole granules.
    pub(crate) fn bytes_at(&self, memory_bytes: u64) -> u64 {
        let value = self.at(memory_bytes);
        value - value % GRANULE_BYTES
    }

    /// Its value at the largest anchor not above `memory_bytes`.
    pub(crate) fn step_at(&self, memory_bytes: u64) -> u64 {
        self.0.get(anchor_below(memory_bytes)).copied().unwrap_or(0)
    }
}

/// Position of the largest anchor not above `memory_bytes`; the first for anything below it.
fn anchor_below(memory_bytes: u64) -> usize {
    ANCHORS_MIB.iter().rposition(|anchor| anchor * MIB <= memory_bytes).unwrap_or(0)
}

// Process.                                                          192  256  512 1024 2048 4096 16384
pub(crate) const NODE_BASE: Row = Row::mib([20, 22, 22, 32, 40, 64, 128]);
pub(crate) const KERNEL: Row = Row::mib([8, 10, 11, 20, 32, 64, 192]);
pub(crate) const PAGE_CACHE_FLOOR: Row = Row::mib([8, 10, 12, 32, 80, 192, 1024]);

// Execution. Thread counts are steps: they change only at an anchor, where memory for the new threads is at hand.
pub(crate) const THREADS: Row = Row::new([2, 2, 2, 2, 2, 4, 4]);
pub(crate) const QUERY_THREADS: Row = Row::new([1, 1, 1, 2, 2, 4, 4]);
pub(crate) const QUERY_THREADS_PER_CANISTER: Row = Row::new([1, 1, 1, 1, 2, 2, 2]);
pub(crate) const PAUSED_EXECUTIONS: Row = Row::new([1, 1, 1, 1, 2, 4, 4]);
pub(crate) const HEAP_DIRTY_PER_MESSAGE: Row = Row::mib([20, 30, 64, 128, 256, 256, 256]);
pub(crate) const STABLE_DIRTY_PER_MESSAGE: Row = Row::mib([10, 14, 32, 64, 128, 128, 128]);
pub(crate) const HEAP_DIRTY_PER_INSTALL: Row = Row::mib([40, 60, 128, 256, 512, 768, 1024]);
pub(crate) const STABLE_DIRTY_PER_INSTALL: Row = Row::mib([40, 60, 128, 256, 512, 768, 1024]);
pub(crate) const DIRTY_PER_INSTALL: Row = Row::mib([60, 88, 192, 384, 768, 1024, 2048]);
pub(crate) const HEAP_DIRTY_PER_QUERY: Row = Row::mib([8, 12, 20, 32, 64, 64, 64]);
pub(crate) const STABLE_DIRTY_PER_QUERY: Row = Row::mib([4, 4, 8, 16, 32, 32, 32]);
pub(crate) const DELTA_PER_ROUND: Row = Row::mib([24, 32, 64, 128, 256, 256, 512]);
pub(crate) const DELTA_PER_CANISTER_ROUND: Row = Row::mib([12, 16, 32, 64, 128, 128, 256]);
pub(crate) const RESPONSE_CALLBACK_RESERVATION: Row = Row::mib([2, 4, 8, 16, 32, 64, 256]);
pub(crate) const QUERY_CACHE: Row = Row::mib([3, 6, 16, 32, 64, 128, 512]);

// Sandboxes.
pub(crate) const COMPILE_MEMORY: Row = Row::mib([56, 84, 184, 360, 736, 1400, 2824]);
pub(crate) const COMPILE_SECONDS: Row = Row::new([300, 300, 300, 300, 600, 600, 600]);
pub(crate) const COMPILATION_CACHE: Row = Row::mib([24, 32, 64, 128, 256, 512, 2048]);
pub(crate) const SANDBOX_CANISTERS: Row = Row::new([8, 16, 32, 64, 128, 256, 1024]);
pub(crate) const RESIDENT_FLOOR: Row = Row::mib([48, 64, 128, 256, 512, 1024, 4096]);
pub(crate) const EVICTION_BATCH: Row = Row::mib([24, 32, 64, 128, 256, 512, 1024]);

// Subnet.
pub(crate) const MEMORY_CAPACITY: Row = Row::mib([192, 256, 512, 1024, 4096, 16384, 65536]);
pub(crate) const GUARANTEED_MESSAGES: Row = Row::mib([12, 16, 64, 128, 256, 512, 2048]);
pub(crate) const BEST_EFFORT_MESSAGES: Row = Row::mib([8, 12, 32, 64, 128, 256, 1024]);
pub(crate) const INGRESS_HISTORY: Row = Row::mib([8, 12, 32, 64, 128, 256, 1024]);
pub(crate) const CUSTOM_SECTIONS: Row = Row::mib([2, 4, 16, 24, 48, 96, 384]);
pub(crate) const CANISTER_METADATA: Row = Row::mib([3, 4, 8, 16, 32, 64, 256]);
pub(crate) const CALLBACK_SOFT_LIMIT: Row = Row::new([1024, 2048, 4096, 8192, 16384, 32768, 131_072]);
pub(crate) const INGRESS_UNFINISHED: Row = Row::new([500, 1000, 2000, 4000, 8000, 16000, 32000]);

// Pages.
pub(crate) const CHECKPOINT_DELTA: Row = Row::mib([16, 24, 32, 64, 128, 128, 256]);
pub(crate) const METADATA_CACHE: Row = Row::mib([1, 2, 3, 8, 16, 32, 128]);
pub(crate) const COPY_THREADS: Row = Row::new([2, 2, 2, 2, 2, 4, 4]);

// Modules.
pub(crate) const TABLE_ELEMENTS: Row =
    Row::new([65_536, 65_536, 65_536, 262_144, 262_144, 1_000_000, 1_000_000]);

// Consensus.
pub(crate) const INGRESS_POOL: Row = Row::mib([3, 4, 8, 12, 24, 48, 96]);
pub(crate) const INGRESS_POOL_MESSAGES: Row = Row::new([500, 1000, 2000, 4000, 8000, 16000, 32000]);
pub(crate) const BLOCK_INGRESS: Row = Row::mib([3, 3, 4, 4, 4, 4, 4]);
/// In granules: a subnet of three, of thirteen, of forty, and from 2 GiB on of the most there are, with a table to search for a cheating dealer's chunk.
pub(crate) const NIDKG_TABLES: Row = Row::granules([4, 16, 64, 64, 256, 512, 512]);

// Gateway.
pub(crate) const CONNECTIONS: Row = Row::new([128, 256, 512, 1024, 2048, 4096, 8192]);
pub(crate) const REQUESTS_IN_FLIGHT: Row = Row::new([64, 128, 256, 512, 1024, 2048, 4096]);
pub(crate) const QUERIES_IN_FLIGHT: Row = Row::new([16, 32, 64, 128, 256, 512, 1024]);
pub(crate) const SYNC_CALLS_WAITING: Row = Row::new([48, 96, 192, 384, 768, 1536, 3072]);
pub(crate) const BODIES: Row = Row::mib([4, 5, 8, 16, 40, 64, 128]);
pub(crate) const RESPONSES: Row = Row::mib([4, 5, 8, 16, 40, 64, 128]);

// What one row promises another.
const _: () = {
    assert!(
        DELTA_PER_ROUND.covers(&HEAP_DIRTY_PER_MESSAGE) && DELTA_PER_ROUND.covers(&STABLE_DIRTY_PER_MESSAGE)
    );
    assert!(DELTA_PER_ROUND.covers(&DELTA_PER_CANISTER_ROUND) && DELTA_PER_ROUND.covers(&CHECKPOINT_DELTA));
    assert!(HEAP_DIRTY_PER_INSTALL.covers(&HEAP_DIRTY_PER_MESSAGE));
    assert!(STABLE_DIRTY_PER_INSTALL.covers(&STABLE_DIRTY_PER_MESSAGE));
    assert!(
        DIRTY_PER_INSTALL.covers(&HEAP_DIRTY_PER_INSTALL)
            && DIRTY_PER_INSTALL.covers(&STABLE_DIRTY_PER_INSTALL)
    );
    assert!(HEAP_DIRTY_PER_MESSAGE.covers(&HEAP_DIRTY_PER_QUERY));
    assert!(STABLE_DIRTY_PER_MESSAGE.covers(&STABLE_DIRTY_PER_QUERY));
    assert!(RESIDENT_FLOOR.covers(&EVICTION_BATCH));
    assert!(INGRESS_POOL.covers(&Row::mib([3, 3, 4, 4, 4, 4, 4])) && BODIES.covers(&BLOCK_INGRESS));
    assert!(REQUESTS_IN_FLIGHT.covers(&QUERIES_IN_FLIGHT) && REQUESTS_IN_FLIGHT.covers(&SYNC_CALLS_WAITING));
    assert!(QUERY_THREADS.covers(&QUERY_THREADS_PER_CANISTER) && THREADS.covers(&Row::new([2; ANCHORS])));
};

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Row = Row::mib([1, 1, 2, 4, 4, 8, 16]);

    #[test]
    fn anchors_are_met_exactly_and_lines_are_straight() {
        for (anchor, value) in ANCHORS_MIB.iter().zip([1, 1, 2, 4, 4, 8, 16]) {
            assert_eq!(ROW.bytes_at(anchor * MIB), value * MIB);
        }
        assert_eq!(ROW.at(384 * MIB), 3 * MIB / 2);
        assert_eq!(ROW.at(768 * MIB), 3 * MIB);
        assert_eq!(ROW.step_at(768 * MIB), 2 * MIB);
    }

    #[test]
    fn outside_the_anchors_the_row_stays() {
        for memory in [0, 1, 191 * MIB] {
            assert_eq!((ROW.at(memory), ROW.step_at(memory)), (MIB, MIB));
        }
        for memory in [16384 * MIB, u64::MAX] {
            assert_eq!((ROW.at(memory), ROW.step_at(memory)), (16 * MIB, 16 * MIB));
        }
    }

    #[test]
    fn bytes_are_whole_granules() {
        for mib in 192..2048 {
            assert_eq!(ROW.bytes_at(mib * MIB) % GRANULE_BYTES, 0);
        }
    }
}
