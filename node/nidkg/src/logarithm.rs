//! Small logarithms in the target group: baby steps in a table, giant steps through the range.
//!
//! An honest chunk is below 2^16 and found within a few steps. A dealer that cheats within the
//! slack of the proof of chunking leaves a chunk `z / d` with a small divisor `d` and `|z|` below
//! the response bound; it is found by trying divisors in rising order. Large ones, which are the
//! expensive ones to find, do not occur: see docs/nidkg-security.md.
//!
//! Variable time and memory access by secret values: a leak to processes that share the processor's
//! caches is limited to the receiver's own chunks.

use accounting::{Pool, Reservation};
use rayon::prelude::*;

use crate::{
    curve::{G1Affine, G2Affine, Gt, Scalar, pairing_product},
    engine::Engine,
    parameters::{CHALLENGE_BITS, response_bound},
};

/// Baby steps of the table that stays.
const SMALL: u32 = 1 << 12;
/// Baby steps of the table for a search.
const LARGE_MAX: u32 = 1 << 21;
/// Giant steps that one item of work makes.
const SEGMENT: u64 = 1 << 12;
/// Entries keep the index in this many low bits and the fingerprint above.
const INDEX_BITS: u32 = 24;
const EMPTY: u64 = u64::MAX;
const _: () = assert!(SMALL <= LARGE_MAX && SEGMENT > 0, "a large table is not below a small one");

const _: () = assert!(LARGE_MAX < 1 << (INDEX_BITS - 1), "an index never looks like an empty slot");

/// Baby steps `0..=count` of the generator.
pub(crate) struct Table {
    generator: Gt,
    count: u32,
    slots: Vec<u64>,
    _reservation: Option<Reservation>,
}

impl Table {
    /// The resident one. If the pool has no room for its 64 KiB it is made all the same: without it
    /// nothing can be opened.
    pub(crate) fn small(memory: &Pool) -> Self {
        Self::new(SMALL, memory.try_reserve(Self::bytes(SMALL)).ok())
    }

    /// As large as the pool has room for.
    fn large(memory: &Pool) -> Self {
        let mut count = LARGE_MAX;
        while count > SMALL {
            if let Ok(reservation) = memory.try_reserve(Self::bytes(count)) {
                return Self::new(count, Some(reservation));
            }
            count /= 2;
        }
        Self::small(memory)
    }

    const fn bytes(count: u32) -> u64 {
        count as u64 * 2 * 8
    }

    fn new(count: u32, reservation: Option<Reservation>) -> Self {
        let generator = pairing_product(&[], &[(G1Affine::generator(), G2Affine::generator())]);
        let mut table = Self {
            generator,
            count,
            slots: vec![EMPTY; count as usize * 2],
            _reservation: reservation,
        };
        let mut step = Gt::one();
        for index in 0..count {
            let fingerprint = step.fingerprint_up_to_inverse();
            let mut slot = table.slot(fingerprint);
            while table.slots[slot] != EMPTY {
                slot = (slot + 1) % table.slots.len();
            }
            table.slots[slot] = fingerprint >> INDEX_BITS << INDEX_BITS | u64::from(index);
            step = step.mul(&table.generator);
        }
        table
    }

    fn slot(&self, fingerprint: u64) -> usize {
        (fingerprint.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32) as usize % self.slots.len()
    }

    /// The logarithm of `element` if its magnitude is below the number of baby steps.
    fn baby(&self, element: &Gt) -> Option<i64> {
        let fingerprint = element.fingerprint_up_to_inverse();
        let mut slot = self.slot(fingerprint);
        while self.slots[slot] != EMPTY {
            let entry = self.slots[slot];
            if entry >> INDEX_BITS == fingerprint >> INDEX_BITS {
                let index = entry & ((1 << INDEX_BITS) - 1);
                let power = self.generator.power(index);
                if power == *element {
                    return Some(index as i64);
                }
                if power.inverse() == *element {
                    return Some(-(index as i64));
                }
            }
            slot = (slot + 1) % self.slots.len();
        }
        None
    }

    /// The logarithm of `element` if it is in `low..=high`.
    pub(crate) fn solve(&self, element: &Gt, low: i64, high: i64) -> Option<i64> {
        debug_assert!(low <= high, "no number is in {low}..={high}");
        let centre = low + (high - low) / 2;
        let centred = element.mul(&self.power(-centre));
        let half = (high - centre).max(centre - low) as u64;
        self.segment(&centred, 0, half / self.stride() + 1).map(|found| found + centre)
    }

    /// Width of one giant step.
    fn stride(&self) -> u64 {
        2 * u64::from(self.count) - 1
    }

    fn power(&self, exponent: i64) -> Gt {
        let power = self.generator.power(exponent.unsigned_abs());
        if exponent < 0 { power.inverse() } else { power }
    }

    /// Giant steps `first..=last` to both sides.
    fn segment(&self, centred: &Gt, first: u64, last: u64) -> Option<i64> {
        let stride = self.stride() as i64;
        let (down, up) = (self.power(-stride), self.power(stride));
        let offset = first as i64 * stride;
        let mut above = centred.mul(&self.power(-offset));
        let mut below = centred.mul(&self.power(offset));
        for step in first..=last {
            let offset = step as i64 * stride;
            if let Some(rest) = self.baby(&above) {
                return Some(offset + rest);
            }
            if let Some(rest) = self.baby(&below) {
                return Some(rest - offset);
            }
            above = above.mul(&down);
            below = below.mul(&up);
        }
        None
    }
}

/// The chunk of a dealer that cheated within the slack of the proof, as the scalar it stands for.
/// `divisors` bounds the search.
pub(crate) fn solve_cheated(
    engine: &Engine,
    element: &Gt,
    receivers: usize,
    divisors: u64,
) -> Option<Scalar> {
    let table = Table::large(&engine.memory);
    let steps = response_bound(receivers) / table.stride() + 1;
    engine.run(|| {
        (1..=divisors).find_map(|divisor| {
            let scaled = element.power(divisor);
            let found = (0..steps.div_ceil(SEGMENT)).into_par_iter().find_map_any(|segment| {
                engine.yield_if_configured();
                table.segment(&scaled, segment * SEGMENT, ((segment + 1) * SEGMENT - 1).min(steps))
            })?;
            Some(Scalar::from_i64(found).mul(&Scalar::from_u64(divisor).inverse_of_public()))
        })
    })
}

/// Divisors that two different challenges can leave.
pub(crate) const DIVISORS: u64 = (1 << CHALLENGE_BITS) - 1;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_found_at_the_ends_of_the_range_and_not_outside() {
        let table = Table::small(&Pool::standalone("test", 1 << 20));
        for (value, low, high) in [
            (0, 0, 65_535),
            (65_535, 0, 65_535),
            (1, 0, 2_000_000),
            (2_000_000, 0, 2_000_000),
            (-7_001, -9_000, 9_000),
        ] {
            assert_eq!(table.solve(&table.power(value), low, high), Some(value));
        }
        assert_eq!(table.solve(&table.power(1 << 30), 0, 65_535), None);
    }

    // Promise: P1 - The search for a cheating dealer's chunk uses its reservation and no more.
    #[test]
    fn a_search_takes_what_was_reserved_and_no_more() {
        for cap in [0, 60 << 10, 64 << 10, 1 << 20, 3 << 20, 32 << 20] {
            let pool = Pool::standalone("test", cap);
            let table = Table::large(&pool);
            let taken = table.slots.capacity() as u64 * 8;
            let reserved = pool.used_bytes();
            assert!(reserved <= cap);
            // Without room the smallest table is made all the same.
            assert_eq!(taken, if reserved == 0 { Table::bytes(SMALL) } else { reserved }, "{cap}");
            drop(table);
            assert_eq!(pool.used_bytes(), 0);
        }
    }

    #[test]
    fn fractions_are_found() {
        let mut config = crate::EngineConfig::for_this_machine();
        config.tables = Pool::standalone("test", 1 << 20);
        let engine = Engine::new(config).unwrap();
        let table = engine.logarithms();
        // Three times the chunk is a small number, the chunk is not.
        let third = Scalar::from_u64(100_003).mul(&Scalar::from_u64(3).inverse_of_public());
        let generator = G1Affine::generator().to_point().mul(&third).to_affine();
        let element = pairing_product(&[], &[(generator, G2Affine::generator())]);
        assert_eq!(table.solve(&element, 0, 65_535), None);
        // One receiver: the smallest slack, so that the test is short.
        assert!(solve_cheated(&engine, &element, 1, 2).is_none());
        assert!(solve_cheated(&engine, &element, 1, 3) == Some(third));
    }
}
