//! Membership of many points of G1 in the prime-order group at once.
//!
//! One check costs a 128-bit multiplication. The curve's cofactor has only odd prime factors, the smallest 3, so a random sum of points with
//! coefficients -1, 0, 1 stays inside the group, although one of the points is outside, with probability at most 1/3: fix all coefficients but
//! that of a point with a part of prime order `q >= 3` outside the group; the three values of the last one move the sum by three different
//! amounts. [`ROUNDS`] independent sums let a bad point through with probability at most `3^-ROUNDS`.
//!
//! The sums share work: points are taken in groups of [`GROUP`], all 13 combinations of a group (up to sign) are made once, and each round adds
//! one of them per group.

use rand::RngCore;

use super::{G1, G1Affine};

/// 3^-41 < 2^-64: the coefficients are the verifier's own, drawn after the points are fixed, so an adversary gets one attempt per dealing sent
/// and no chance to search.
const ROUNDS: usize = 41;
const GROUP: usize = 3;
/// Combinations of three points with coefficients -1, 0, 1, without zero, up to sign.
const COMBINATIONS: usize = 13;
/// Below this number checking one by one is as cheap.
const BATCH_MIN: usize = 96;

/// Whether every point is in the prime-order group, up to an error of `3^-ROUNDS` on the side of yes.
pub(crate) fn all_in_group(points: &[G1Affine], rng: &mut impl RngCore) -> bool {
    if points.len() < BATCH_MIN {
        return points.iter().all(G1Affine::in_group);
    }
    let mut sums = [G1::identity(); ROUNDS];
    // Blocks bound the scratch to about a hundred kilobytes, whatever the number of points.
    for block in points.chunks(GROUP * 64) {
        let mut combinations = Vec::with_capacity(block.len() / GROUP * COMBINATIONS + COMBINATIONS);
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
        for sum in &mut sums {
            for of_group in combinations.chunks_exact(COMBINATIONS) {
                // 27 equally likely outcomes: none, or one of 13 with either sign.
                let choice = uniform_27(rng);
                if let Some(index) = choice.checked_sub(1) {
                    let point = of_group[index / 2];
                    *sum = sum.add_affine(&if index % 2 == 0 { point } else { point.neg() });
                }
            }
        }
    }
    sums.iter().all(|sum| sum.is_identity() || sum.to_affine().in_group())
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
