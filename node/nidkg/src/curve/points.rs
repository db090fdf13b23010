//! Points of G1 and G2, projective for arithmetic and affine for tables and encodings.

use blst::*;
use rayon::prelude::*;
use zeroize::{DefaultIsZeroes, Zeroizing};

use super::Scalar;

/// Bits of a scalar.
const SCALAR_BITS: usize = 255;
/// Below this number of points a sum is one item of work.
const DIGITS_MIN: usize = 32;

/// Bits of a digit that make a sum of `points` points cheapest: a few less than the bits of
/// `points`.
fn window(points: usize) -> usize {
    let bits = points.ilog2() as usize;
    if bits > 12 { bits - 3 } else { bits.saturating_sub(2).max(2) }
}

/// Both groups have the same functions under different names.
macro_rules! group {
    (
        $point:ident, $affine:ident, $raw:ident, $raw_affine:ident, $compressed:literal,
        $generator:ident, $add:ident, $add_affine:ident, $double:ident, $mult:ident, $from_affine:ident,
        $to_affine:ident, $all_to_affine:ident, $in_group:ident, $is_inf:ident, $compress:ident,
        $serialize:ident, $uncompress:ident, $deserialize:ident, $hash:ident, $msm:ident, $msm_scratch:ident,
        $msm_tile:ident, $negate:ident
    ) => {
        /// A point in projective form.
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        pub(crate) struct $point(pub(super) $raw);

        /// A point in affine form.
        #[derive(Clone, Copy, Default, PartialEq, Eq)]
        #[repr(transparent)]
        pub(crate) struct $affine(pub(super) $raw_affine);

        impl DefaultIsZeroes for $point {}
        impl DefaultIsZeroes for $affine {}

        impl $point {
            pub(crate) fn identity() -> Self {
                Self::default()
            }

            pub(crate) fn add(&self, other: &Self) -> Self {
                let mut out = $raw::default();
                // SAFETY: plain structures.
                unsafe { $add(&mut out, &self.0, &other.0) };
                Self(out)
            }

            pub(crate) fn add_affine(&self, other: &$affine) -> Self {
                let mut out = $raw::default();
                // SAFETY: plain structures.
                unsafe { $add_affine(&mut out, &self.0, &other.0) };
                Self(out)
            }

            pub(crate) fn double(&self) -> Self {
                let mut out = $raw::default();
                // SAFETY: plain structures.
                unsafe { $double(&mut out, &self.0) };
                Self(out)
            }

            /// Constant time in the scalar.
            pub(crate) fn mul(&self, factor: &Scalar) -> Self {
                let bytes = Zeroizing::new(factor.to_le_bytes());
                let mut out = $raw::default();
                // SAFETY: the scalar has 32 bytes and is below the group order.
                unsafe { $mult(&mut out, &self.0, bytes.as_ptr(), SCALAR_BITS) };
                Self(out)
            }

            pub(crate) fn to_affine(self) -> $affine {
                let mut out = $raw_affine::default();
                // SAFETY: plain structures.
                unsafe { $to_affine(&mut out, &self.0) };
                $affine(out)
            }

            /// One inversion for all; with infinity among them, which random points never are, one
            /// each.
            pub(crate) fn all_to_affine(points: &[Self]) -> Vec<$affine> {
                if points.iter().any(|point| point.is_identity()) {
                    return points.iter().map(|point| point.to_affine()).collect();
                }
                let mut out = vec![$affine::default(); points.len()];
                if points.is_empty() {
                    return out;
                }
                let places = [points.as_ptr().cast::<$raw>(), std::ptr::null()];
                // SAFETY: both wrappers are transparent; the list of pointers is one pointer to
                // consecutive points followed by null, which the function reads as "the rest
                // follows on"; lengths agree.
                unsafe {
                    $all_to_affine(out.as_mut_ptr().cast::<$raw_affine>(), places.as_ptr(), points.len())
                };
                out
            }

            pub(crate) fn is_identity(&self) -> bool {
                // SAFETY: a plain structure.
                unsafe { $is_inf(&self.0) }
            }

            /// `sum of points[i] * scalars[i]`. Variable time: public points and public scalars
            /// only.
            pub(crate) fn msm(points: &[$affine], scalars: &[Scalar]) -> Self {
                assert_eq!(points.len(), scalars.len(), "one scalar per point");
                let scalars: Vec<[u8; 32]> = scalars.iter().map(|scalar| scalar.to_le_bytes()).collect();
                let mut out = $raw::default();
                if points.is_empty() {
                    return Self(out);
                }
                let point_places: Vec<*const $raw_affine> =
                    points.iter().map(|point| &raw const point.0).collect();
                let scalar_places: Vec<*const u8> = scalars.iter().map(|scalar| scalar.as_ptr()).collect();
                // SAFETY: the lists have `points.len()` valid pointers each, and the scratch has
                // the size the library asks for.
                unsafe {
                    let mut scratch = vec![0u64; $msm_scratch(points.len()).div_ceil(8)];
                    $msm(
                        &mut out,
                        point_places.as_ptr(),
                        points.len(),
                        scalar_places.as_ptr(),
                        SCALAR_BITS,
                        scratch.as_mut_ptr(),
                    );
                }
                Self(out)
            }

            /// The same, one item of work per digit of the scalars, for whichever threads of the
            /// pool are free; `between` is called before each. As many operations as [`Self::msm`]
            /// needs on one thread, which dividing the points instead would not be.
            pub(crate) fn msm_by_digits(
                points: &[$affine],
                scalars: &[Scalar],
                between: impl Fn() + Sync,
            ) -> Self {
                assert_eq!(points.len(), scalars.len(), "one scalar per point");
                if points.len() < DIGITS_MIN {
                    return Self::msm(points, scalars);
                }
                let scalars: Vec<[u8; 32]> = scalars.iter().map(|scalar| scalar.to_le_bytes()).collect();
                let window = window(points.len());
                // The highest digit may hold nothing but the carry of the one below: digits are
                // signed.
                let digits: Vec<$raw> = (0..=SCALAR_BITS / window)
                    .into_par_iter()
                    .map(|digit| {
                        between();
                        let point_places = [points.as_ptr().cast::<$raw_affine>(), std::ptr::null()];
                        let scalar_places = [scalars.as_ptr().cast::<u8>(), std::ptr::null()];
                        let mut out = $raw::default();
                        // SAFETY: the wrapper is transparent; each list is one pointer to
                        // consecutive items, as many as the length given, followed by null, which
                        // the function reads as "the rest follows on"; the scratch is zero and has
                        // a bucket for each value of half a digit, of the size the library gives
                        // for one.
                        unsafe {
                            let bucket = $msm_scratch(0);
                            let mut scratch = vec![0u64; (bucket << (window - 1)).div_ceil(8)];
                            $msm_tile(
                                &mut out,
                                point_places.as_ptr(),
                                points.len(),
                                scalar_places.as_ptr(),
                                SCALAR_BITS,
                                scratch.as_mut_ptr(),
                                digit * window,
                                window,
                            );
                        }
                        out
                    })
                    .collect();
                digits.iter().rev().fold(Self::identity(), |sum, digit| {
                    (0..window).fold(sum, |sum, _| sum.double()).add(&Self(*digit))
                })
            }

            /// Hashes to a point of the group with an unknown discrete logarithm (RFC 9380).
            pub(crate) fn hash(message: &[u8], domain: &[u8]) -> Self {
                let mut out = $raw::default();
                // SAFETY: lengths are those of the slices; there is no augmentation.
                unsafe {
                    $hash(
                        &mut out,
                        message.as_ptr(),
                        message.len(),
                        domain.as_ptr(),
                        domain.len(),
                        std::ptr::null(),
                        0,
                    )
                };
                Self(out)
            }
        }

        impl $affine {
            /// Bytes of the compressed form.
            pub(crate) const COMPRESSED: usize = $compressed;
            /// Bytes of the uncompressed form.
            pub(crate) const UNCOMPRESSED: usize = 2 * $compressed;

            pub(crate) fn generator() -> Self {
                // SAFETY: the library's constant lives as long as the program.
                Self(unsafe { *$generator() })
            }

            pub(crate) fn is_identity(&self) -> bool {
                *self == Self::default()
            }

            pub(crate) fn to_point(self) -> $point {
                let mut out = $raw::default();
                // SAFETY: plain structures.
                unsafe { $from_affine(&mut out, &self.0) };
                $point(out)
            }

            /// Negates if the flag is set, in constant time.
            pub(super) fn negate_if(&mut self, flag: bool) {
                let y = self.0.y;
                // SAFETY: plain structures.
                unsafe { $negate(&mut self.0.y, &y, flag) };
            }

            pub(crate) fn neg(mut self) -> Self {
                self.negate_if(true);
                self
            }

            /// Membership in the prime-order group.
            pub(crate) fn in_group(&self) -> bool {
                // SAFETY: a plain structure.
                unsafe { $in_group(&self.0) }
            }

            pub(crate) fn to_compressed(self) -> [u8; $compressed] {
                let mut out = [0; $compressed];
                // SAFETY: `out` has the bytes the function writes.
                unsafe { $compress(out.as_mut_ptr(), &self.0) };
                out
            }

            pub(crate) fn to_uncompressed(self) -> [u8; 2 * $compressed] {
                let mut out = [0; 2 * $compressed];
                // SAFETY: `out` has the bytes the function writes.
                unsafe { $serialize(out.as_mut_ptr(), &self.0) };
                out
            }

            /// A point of the curve, not of the group: see [`Self::in_group`]. Refuses infinity.
            pub(crate) fn from_compressed_on_curve(bytes: &[u8; $compressed]) -> Option<Self> {
                let mut out = $raw_affine::default();
                // SAFETY: `bytes` has the bytes the function reads.
                let code = unsafe { $uncompress(&mut out, bytes.as_ptr()) };
                let out = Self(out);
                (code == BLST_ERROR::BLST_SUCCESS && !out.is_identity()).then_some(out)
            }

            /// A point of the curve, not of the group. Refuses infinity and everything but the
            /// uncompressed form.
            pub(crate) fn from_uncompressed_on_curve(bytes: &[u8; 2 * $compressed]) -> Option<Self> {
                if bytes[0] & 0xe0 != 0 {
                    return None;
                }
                let mut out = $raw_affine::default();
                // SAFETY: `bytes` has the bytes the function reads.
                let code = unsafe { $deserialize(&mut out, bytes.as_ptr()) };
                let out = Self(out);
                (code == BLST_ERROR::BLST_SUCCESS && !out.is_identity()).then_some(out)
            }
        }
    };
}

group!(
    G1,
    G1Affine,
    blst_p1,
    blst_p1_affine,
    48,
    blst_p1_affine_generator,
    blst_p1_add_or_double,
    blst_p1_add_or_double_affine,
    blst_p1_double,
    blst_p1_mult,
    blst_p1_from_affine,
    blst_p1_to_affine,
    blst_p1s_to_affine,
    blst_p1_affine_in_g1,
    blst_p1_is_inf,
    blst_p1_affine_compress,
    blst_p1_affine_serialize,
    blst_p1_uncompress,
    blst_p1_deserialize,
    blst_hash_to_g1,
    blst_p1s_mult_pippenger,
    blst_p1s_mult_pippenger_scratch_sizeof,
    blst_p1s_tile_pippenger,
    blst_fp_cneg
);

group!(
    G2,
    G2Affine,
    blst_p2,
    blst_p2_affine,
    96,
    blst_p2_affine_generator,
    blst_p2_add_or_double,
    blst_p2_add_or_double_affine,
    blst_p2_double,
    blst_p2_mult,
    blst_p2_from_affine,
    blst_p2_to_affine,
    blst_p2s_to_affine,
    blst_p2_affine_in_g2,
    blst_p2_is_inf,
    blst_p2_affine_compress,
    blst_p2_affine_serialize,
    blst_p2_uncompress,
    blst_p2_deserialize,
    blst_hash_to_g2,
    blst_p2s_mult_pippenger,
    blst_p2s_mult_pippenger_scratch_sizeof,
    blst_p2s_tile_pippenger,
    blst_fp2_cneg
);

impl G1Affine {
    /// A point of the group. Refuses infinity.
    pub(crate) fn from_compressed(bytes: &[u8; Self::COMPRESSED]) -> Option<Self> {
        Self::from_compressed_on_curve(bytes).filter(Self::in_group)
    }
}

impl G1 {
    pub(crate) fn neg(mut self) -> Self {
        // SAFETY: a plain structure.
        unsafe { blst_p1_cneg(&mut self.0, true) };
        self
    }
}

impl G2 {
    /// Variable time in a small public factor.
    pub(crate) fn mul_public_u64(&self, factor: u64) -> Self {
        let bits = u64::BITS - factor.leading_zeros();
        (0..bits).rev().fold(Self::identity(), |sum, bit| {
            let doubled = sum.double();
            if factor >> bit & 1 == 1 { doubled.add(self) } else { doubled }
        })
    }
}
