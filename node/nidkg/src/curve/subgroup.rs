//! Membership of many points of G1 in the prime-order group at once.
//!
//! One check costs a 128-bit multiplication. The curve's cofactor has only odd prime factors, the
//! smallest 3, so a random sum of points with coefficients -1, 0, 1 stays inside the group,
//! although one of the points is outside, with probability at most 1/3: fix all coefficients but
//! that of a point with a part of prime order `q >= 3` outside the group; the three values of the
//! last one move the sum by three different amounts. [`ROUNDS`] independent sums let a bad point
//! through with probability at most `3^-ROUNDS`.
//!
//! The sums share work: points are taken in groups of [`GROUP`], all 13 combinations of a group (up
//! to sign) are made once, and each round adds one of them per group.

use rand::RngCore;
use rayon::prelude::*;

use super::{G1, G1Affine};
use crate::oracle::seeded;

/// 3^-41 < 2^-64: the coefficients are the verifier's own, drawn after the points are fixed, so an
/// adversary gets one attempt per dealing sent and no chance to search.
const ROUNDS: usize = 41;
const GROUP: usize = 3;
/// Combinations of three points with coefficients -1, 0, 1, without zero, up to sign.
const COMBINATIONS: usize = 13;
/// Points of one item of work: bounds the scratch to forty kilobytes, whatever the number of
/// points.
const BLOCK: usize = GROUP * 24;
/// Below this number checking one by one is as cheap.
const BATCH_MIN: usize = 96;

/// Whether every point is in the prime-order group, up to an error of `3^-ROUNDS` on the side of
/// yes.
pub(crate) fn all_in_group(points: &[G1Affine], rng: &mut impl RngCore) -> bool {
    if points.len() < BATCH_MIN {
        return points.iter().all(G1Affine::in_group);
    }
    // Coefficients are drawn in order, a seed per block, so that the answer does not depend on
    // scheduling.
    let seeds: Vec<_> = points.chunks(BLOCK).map(|_| seeded(rng)).collect();
    let partial =
        points.par_chunks(BLOCK).zip(seeds).map(|(block, mut rng)| block_sums(block, &mut rng));
    let sums = partial.reduce(
        || [G1::identity(); ROUNDS],
        |left, right| std::array::from_fn(|round| left[round].add(&right[round])),
    );
    sums.par_iter().all(|sum| sum.is_identity() || sum.to_affine().in_group())
}

fn block_sums(block: &[G1Affine], rng: &mut impl RngCore) -> [G1; ROUNDS] {
    let mut combinations = Vec::with_capacity(block.len().div_ceil(GROUP) * COMBINATIONS);
    for group in block.chunks(GROUP) {
        let point = |index: usize| group.get(index).copied().unwrap_or_default().to_point();
        let (a, b, c) = (point(0), point(1), point(2));
        let (a_plus_b, a_minus_b) = (a.add(&b), a.add(&b.neg()));
        combinations.extend([a, b, c, a_plus_b, a_minus_b]);
        for pair in [b, a, a_plus_b, a_minus_b] {
            combinations.extend([pair.add(&c), pair.add(&c.neg())]);
        }
    }
    let combinations = G1::all_to_affine(&combinations);
    std::array::from_fn(|_| {
        combinations.chunks_exact(COMBINATIONS).fold(G1::identity(), |sum, of_group| {
            // 27 equally likely outcomes: none, or one of 13 with either sign.
            match uniform_27(rng).checked_sub(1) {
                None => sum,
                Some(index) if index % 2 == 0 => sum.add_affine(&of_group[index / 2]),
                Some(index) => sum.add_affine(&of_group[index / 2].neg()),
            }
        })
    })
}

/// Uniform below 27, by rejection.
fn uniform_27(rng: &mut impl RngCore) -> usize {
    loop {
        let mut byte = [0];
        rng.fill_bytes(&mut byte);
        if byte[0] < 243 {
            return usize::from(byte[0] % 27);
        }
    }
}
