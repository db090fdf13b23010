//! The prime field of the group order.

use blst::{
    blst_bendian_from_scalar, blst_fr, blst_fr_add, blst_fr_eucl_inverse, blst_fr_from_scalar,
    blst_fr_from_uint64, blst_fr_mul, blst_fr_sub, blst_scalar, blst_scalar_fr_check,
    blst_scalar_from_be_bytes, blst_scalar_from_bendian, blst_scalar_from_fr,
    blst_scalar_from_le_bytes,
};
use rand::{CryptoRng, RngCore};
use zeroize::{DefaultIsZeroes, Zeroize, Zeroizing};

/// An element of the field. Copies freely: a secret one lives in [`Zeroizing`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Scalar(blst_fr);

impl DefaultIsZeroes for Scalar {}

macro_rules! operations {
    ($($name:ident: $function:ident),*) => {$(
        pub(crate) fn $name(&self, other: &Self) -> Self {
            let mut out = blst_fr::default();
            // SAFETY: plain structures.
            unsafe { $function(&mut out, &self.0, &other.0) };
            Self(out)
        }
    )*};
}

impl Scalar {
    pub(crate) fn zero() -> Self {
        Self::default()
    }

    pub(crate) fn one() -> Self {
        Self::from_u64(1)
    }

    pub(crate) fn from_u64(value: u64) -> Self {
        let limbs = [value, 0, 0, 0];
        let mut out = blst_fr::default();
        // SAFETY: `limbs` has the four limbs the function reads.
        unsafe { blst_fr_from_uint64(&mut out, limbs.as_ptr()) };
        Self(out)
    }

    /// The element congruent to a possibly negative number.
    pub(crate) fn from_i64(value: i64) -> Self {
        let magnitude = Self::from_u64(value.unsigned_abs());
        if value < 0 { Self::zero().sub(&magnitude) } else { magnitude }
    }

    /// Reduces 48 uniform bytes; the bias is below 2^-128.
    pub(crate) fn from_wide_bytes(bytes: &[u8; 48]) -> Self {
        let mut scalar = blst_scalar::default();
        // SAFETY: the function reads the stated number of bytes; it returns false only for zero,
        // which is a valid element.
        unsafe { blst_scalar_from_be_bytes(&mut scalar, bytes.as_ptr(), bytes.len()) };
        let out = Self::from_reduced(&scalar);
        scalar.b.zeroize();
        out
    }

    /// Reduces a little-endian number of five 64-bit limbs.
    pub(crate) fn from_limbs_reduced(limbs: &[u64; 5]) -> Self {
        let mut bytes = [0; 40];
        for (place, limb) in bytes.chunks_exact_mut(8).zip(limbs) {
            place.copy_from_slice(&limb.to_le_bytes());
        }
        let mut scalar = blst_scalar::default();
        // SAFETY: the function reads the stated number of bytes.
        unsafe { blst_scalar_from_le_bytes(&mut scalar, bytes.as_ptr(), bytes.len()) };
        Self::from_reduced(&scalar)
    }

    fn from_reduced(scalar: &blst_scalar) -> Self {
        let mut out = blst_fr::default();
        // SAFETY: plain structures.
        unsafe { blst_fr_from_scalar(&mut out, scalar) };
        Self(out)
    }

    pub(crate) fn random(rng: &mut (impl RngCore + CryptoRng)) -> Zeroizing<Self> {
        let mut bytes = Zeroizing::new([0; 48]);
        rng.fill_bytes(&mut *bytes);
        Zeroizing::new(Self::from_wide_bytes(&bytes))
    }

    /// Refuses numbers not below the group order: one value has one encoding.
    pub(crate) fn from_be_bytes(bytes: &[u8; 32]) -> Option<Self> {
        let mut scalar = blst_scalar::default();
        // SAFETY: both functions read 32 bytes.
        let canonical = unsafe {
            blst_scalar_from_bendian(&mut scalar, bytes.as_ptr());
            blst_scalar_fr_check(&scalar)
        };
        let out = canonical.then(|| Self::from_reduced(&scalar));
        scalar.b.zeroize();
        out
    }

    pub(crate) fn to_be_bytes(self) -> [u8; 32] {
        let mut scalar = blst_scalar::default();
        let mut out = [0; 32];
        // SAFETY: `out` has the 32 bytes the function writes.
        unsafe {
            blst_scalar_from_fr(&mut scalar, &self.0);
            blst_bendian_from_scalar(out.as_mut_ptr(), &scalar);
        }
        scalar.b.zeroize();
        out
    }

    /// The form in which blst's multiplications take their scalar.
    pub(crate) fn to_le_bytes(self) -> [u8; 32] {
        let mut scalar = blst_scalar::default();
        // SAFETY: plain structures.
        unsafe { blst_scalar_from_fr(&mut scalar, &self.0) };
        let out = scalar.b;
        scalar.b.zeroize();
        out
    }

    /// Little-endian 64-bit limbs of the number itself.
    pub(crate) fn to_limbs(self) -> [u64; 4] {
        let bytes = self.to_le_bytes();
        std::array::from_fn(|limb| {
            u64::from_le_bytes(std::array::from_fn(|byte| bytes[limb * 8 + byte]))
        })
    }

    operations!(add: blst_fr_add, sub: blst_fr_sub, mul: blst_fr_mul);

    pub(crate) fn neg(&self) -> Self {
        Self::zero().sub(self)
    }

    /// Variable time: for public values only (Lagrange denominators).
    pub(crate) fn inverse_of_public(&self) -> Self {
        let mut out = blst_fr::default();
        // SAFETY: plain structures.
        unsafe { blst_fr_eucl_inverse(&mut out, &self.0) };
        Self(out)
    }

    /// `1, x, x^2, ...`, `count` of them.
    pub(crate) fn powers(x: &Self, count: usize) -> Vec<Self> {
        std::iter::successors(Some(Self::one()), |power| Some(power.mul(x))).take(count).collect()
    }
}

/// The value at `x` of the polynomial with these coefficients, lowest first.
pub(crate) fn evaluate(coefficients: &[Scalar], x: &Scalar) -> Scalar {
    coefficients.iter().rev().fold(Scalar::zero(), |sum, coefficient| sum.mul(x).add(coefficient))
}

/// The weights that interpolate, at 0, a polynomial known at these distinct nonzero public places.
pub(crate) fn lagrange_at_zero(places: &[u64]) -> Vec<Scalar> {
    let places: Vec<_> = places.iter().map(|place| Scalar::from_u64(*place)).collect();
    let others = |own: usize| {
        places.iter().enumerate().filter(move |(index, _)| *index != own).map(|(_, x)| x)
    };
    let numerators =
        (0..places.len()).map(|own| others(own).fold(Scalar::one(), |n, other| n.mul(other)));
    let denominators: Vec<_> = (0..places.len())
        .map(|own| others(own).fold(Scalar::one(), |d, other| d.mul(&other.sub(&places[own]))))
        .collect();
    // One inversion for all: of the product, taken apart from the end.
    let products: Vec<_> = denominators
        .iter()
        .scan(Scalar::one(), |product, denominator| {
            let before = *product;
            *product = before.mul(denominator);
            Some(before)
        })
        .collect();
    let whole =
        denominators.iter().fold(Scalar::one(), |product, denominator| product.mul(denominator));
    let mut rest = whole.inverse_of_public();
    let mut inverses = vec![Scalar::zero(); places.len()];
    for index in (0..places.len()).rev() {
        inverses[index] = rest.mul(&products[index]);
        rest = rest.mul(&denominators[index]);
    }
    numerators.zip(inverses).map(|(numerator, inverse)| numerator.mul(&inverse)).collect()
}
