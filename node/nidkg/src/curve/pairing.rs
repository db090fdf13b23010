//! Pairings, several at once, and the target group.

use blst::{
    blst_final_exp, blst_fp6, blst_fp12, blst_fp12_conjugate, blst_fp12_is_one, blst_fp12_mul,
    blst_miller_loop_lines, blst_miller_loop_n, blst_p1_affine, blst_p2_affine,
    blst_precompute_lines,
};

use zeroize::Zeroize;

use super::{G1Affine, G2Affine};

/// Line functions of one Miller loop.
const LINES: usize = 68;

/// An element of the target group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gt(blst_fp12);

impl Gt {
    pub(crate) fn one() -> Self {
        Self(blst_fp12::default())
    }

    pub(crate) fn mul(&self, other: &Self) -> Self {
        let mut out = blst_fp12::default();
        // SAFETY: plain structures.
        unsafe { blst_fp12_mul(&mut out, &self.0, &other.0) };
        Self(out)
    }

    /// In this group the inverse is the conjugate, which costs nothing.
    pub(crate) fn inverse(mut self) -> Self {
        // SAFETY: a plain structure.
        unsafe { blst_fp12_conjugate(&mut self.0) };
        self
    }

    /// Variable time in a small exponent.
    pub(crate) fn power(&self, exponent: u64) -> Self {
        let bits = u64::BITS - exponent.leading_zeros();
        (0..bits).rev().fold(Self::one(), |product, bit| {
            let squared = product.mul(&product);
            if exponent >> bit & 1 == 1 { squared.mul(self) } else { squared }
        })
    }

    /// 64 bits that an element and its inverse share, as they differ in the sign of one half only,
    /// and others do not but for chance. The library keeps limbs reduced, so equal elements
    /// agree.
    pub(crate) fn fingerprint_up_to_inverse(&self) -> u64 {
        let limb = self.0.fp6[0].fp2[0].fp[0].l[0];
        limb.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.0.fp6[0].fp2[1].fp[0].l[0]
    }
}

/// The line functions of a point of G2 that is paired often.
pub(crate) struct PreparedG2(Box<[blst_fp6; LINES]>);

/// Lines of a secret point give it away.
impl Drop for PreparedG2 {
    fn drop(&mut self) {
        for part in self.0.iter_mut().flat_map(|line| &mut line.fp2).flat_map(|part| &mut part.fp) {
            part.l.zeroize();
        }
    }
}

impl PreparedG2 {
    pub(crate) fn new(point: &G2Affine) -> Self {
        let mut lines = Box::new([blst_fp6::default(); LINES]);
        // SAFETY: the array has the 68 lines the function writes.
        unsafe { blst_precompute_lines(lines.as_mut_ptr(), &point.0) };
        Self(lines)
    }

    fn miller(&self, point: &G1Affine) -> blst_fp12 {
        let mut out = blst_fp12::default();
        // SAFETY: the array has the 68 lines the function reads.
        unsafe { blst_miller_loop_lines(&mut out, self.0.as_ptr(), &point.0) };
        out
    }
}

fn miller(pairs: &[(G1Affine, G2Affine)]) -> blst_fp12 {
    let mut out = blst_fp12::default();
    // A pair with infinity contributes one; the library's loop wants none of them.
    let pairs: Vec<_> =
        pairs.iter().filter(|(p, q)| !p.is_identity() && !q.is_identity()).collect();
    if pairs.is_empty() {
        return out;
    }
    let g1s: Vec<*const blst_p1_affine> =
        pairs.iter().map(|(point, _)| &raw const point.0).collect();
    let g2s: Vec<*const blst_p2_affine> =
        pairs.iter().map(|(_, point)| &raw const point.0).collect();
    // SAFETY: both lists have `pairs.len()` valid pointers.
    unsafe { blst_miller_loop_n(&mut out, g2s.as_ptr(), g1s.as_ptr(), pairs.len()) };
    out
}

/// The product of the pairings of all pairs: one final exponentiation for all of them.
pub(crate) fn pairing_product(
    prepared: &[(G1Affine, &PreparedG2)],
    pairs: &[(G1Affine, G2Affine)],
) -> Gt {
    let mut product = Gt(miller(pairs));
    for (point, lines) in prepared.iter().filter(|(point, _)| !point.is_identity()) {
        product = product.mul(&Gt(lines.miller(point)));
    }
    let mut out = blst_fp12::default();
    // SAFETY: plain structures.
    unsafe { blst_final_exp(&mut out, &product.0) };
    Gt(out)
}

/// Whether the product of all pairings is one.
pub(crate) fn pairing_product_is_one(pairs: &[(G1Affine, G2Affine)]) -> bool {
    let product = pairing_product(&[], pairs);
    // SAFETY: a plain structure.
    unsafe { blst_fp12_is_one(&product.0) }
}
