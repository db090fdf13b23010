//! Tables of multiples of a base that is multiplied often: the generators, and each receiver's key.
//!
//! The scalar is written in 52 signed digits of 5 bits; row `w` of the table holds `1..=16` times
//! `32^w` times the base. A multiplication is one addition per row. The digit's entry is found by
//! reading the whole row, so neither branches nor addresses depend on the scalar.

use zeroize::{Zeroize, Zeroizing};

use super::{G1, G1Affine, G2, G2Affine, Scalar};

const DIGIT_BITS: usize = 5;
const ROW: usize = 1 << (DIGIT_BITS - 1);
/// 255 bits and the carry of the signed form.
const ROWS: usize = 52;

/// Group operations that a table needs.
pub(crate) trait TableGroup: Copy {
    type Affine: Copy + Default + PartialEq;
    fn identity() -> Self;
    fn from_affine(point: &Self::Affine) -> Self;
    fn add(&self, other: &Self) -> Self;
    fn add_affine(&self, other: &Self::Affine) -> Self;
    fn double(&self) -> Self;
    fn all_to_affine(points: &[Self]) -> Vec<Self::Affine>;
    /// `into |= from & mask`, limb by limb.
    fn or_masked(into: &mut Self::Affine, from: &Self::Affine, mask: u64);
    fn negate_if(point: &mut Self::Affine, flag: bool);
}

macro_rules! table_group {
    ($point:ident, $affine:ident, |$into:ident, $from:ident, $mask:ident| $or:expr) => {
        impl TableGroup for $point {
            type Affine = $affine;

            fn identity() -> Self {
                $point::identity()
            }

            fn from_affine(point: &$affine) -> Self {
                point.to_point()
            }

            fn add(&self, other: &Self) -> Self {
                $point::add(self, other)
            }

            fn add_affine(&self, other: &$affine) -> Self {
                $point::add_affine(self, other)
            }

            fn double(&self) -> Self {
                $point::double(self)
            }

            fn all_to_affine(points: &[Self]) -> Vec<$affine> {
                $point::all_to_affine(points)
            }

            #[inline]
            fn or_masked($into: &mut $affine, $from: &$affine, $mask: u64) {
                $or
            }

            fn negate_if(point: &mut $affine, flag: bool) {
                point.negate_if(flag);
            }
        }
    };
}

table_group!(G1, G1Affine, |into, from, mask| {
    for limb in 0..6 {
        into.0.x.l[limb] |= from.0.x.l[limb] & mask;
        into.0.y.l[limb] |= from.0.y.l[limb] & mask;
    }
});

table_group!(G2, G2Affine, |into, from, mask| {
    for part in 0..2 {
        for limb in 0..6 {
            into.0.x.fp[part].l[limb] |= from.0.x.fp[part].l[limb] & mask;
            into.0.y.fp[part].l[limb] |= from.0.y.fp[part].l[limb] & mask;
        }
    }
});

/// The table of one base.
pub(crate) struct FixedBase<G: TableGroup> {
    entries: Vec<G::Affine>,
}

impl<G: TableGroup> FixedBase<G> {
    /// Bytes a table takes.
    pub(crate) const BYTES: usize = ROWS * ROW * size_of::<G::Affine>();

    /// About 800 additions and one inversion.
    pub(crate) fn new(base: &G::Affine) -> Self {
        let mut points = Vec::with_capacity(ROWS * ROW);
        let mut row_base = G::from_affine(base);
        for _ in 0..ROWS {
            let mut multiple = row_base;
            for _ in 0..ROW {
                points.push(multiple);
                multiple = multiple.add(&row_base);
            }
            row_base = points[points.len() - 1].double();
        }
        Self { entries: G::all_to_affine(&points) }
    }

    /// Constant time in the scalar.
    pub(crate) fn mul(&self, factor: &Scalar) -> G {
        self.mul_rows(factor, ROWS)
    }

    /// The same for a scalar of at most 64 bits, in a quarter of the time. Constant time among such
    /// scalars.
    pub(crate) fn mul_u64(&self, factor: u64) -> G {
        self.mul_rows(&Scalar::from_u64(factor), 64 / DIGIT_BITS + 2)
    }

    /// The same for a scalar of 24 bits: a chunk.
    pub(crate) fn mul_u24(&self, factor: u32) -> G {
        debug_assert!(factor < 1 << 24);
        self.mul_rows(&Scalar::from_u64(u64::from(factor)), 24 / DIGIT_BITS + 1)
    }

    fn mul_rows(&self, factor: &Scalar, rows: usize) -> G {
        let mut limbs = Zeroizing::new([0u64; 5]);
        limbs[..4].copy_from_slice(&factor.to_limbs());
        let mut sum = G::identity();
        let mut carry = 0u64;
        for (row, entries) in self.entries.chunks_exact(ROW).take(rows).enumerate() {
            let bit = row * DIGIT_BITS;
            let (limb, shift) = (bit / 64, bit % 64);
            let high = if shift == 0 { 0 } else { limbs[limb + 1] << (64 - shift) };
            let digit = ((limbs[limb] >> shift | high) & 31) + carry;
            // A digit above 16 becomes itself minus 32, with a carry into the next.
            carry = (16u64.wrapping_sub(digit)) >> 63;
            let magnitude =
                digit ^ ((digit ^ 32u64.wrapping_sub(digit)) & 0u64.wrapping_sub(carry));
            let mut entry = G::Affine::default();
            for (index, candidate) in entries.iter().enumerate() {
                let differs = (index as u64 + 1) ^ magnitude;
                // All ones where the entry is the wanted one. The barrier keeps the compiler from
                // making a branch of it.
                let mask =
                    std::hint::black_box((differs.wrapping_sub(1) & !differs) >> 63).wrapping_neg();
                G::or_masked(&mut entry, candidate, mask);
            }
            G::negate_if(&mut entry, carry == 1);
            sum = sum.add_affine(&entry);
        }
        carry.zeroize();
        sum
    }
}
