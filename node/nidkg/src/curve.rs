//! The little arithmetic on scalars and G1 that Shamir sharing needs, over blst. All unsafe calls of the crate are here.
//!
//! blst's functions take pointers to plain structures and have no failure modes besides the codes they return; every pointer below comes from a
//! reference or a fresh local that outlives the call.

use blst::{
    BLST_ERROR, blst_bendian_from_scalar, blst_fr, blst_fr_add, blst_fr_eucl_inverse, blst_fr_from_scalar,
    blst_fr_from_uint64, blst_fr_mul, blst_fr_sub, blst_p1, blst_p1_add_or_double, blst_p1_affine,
    blst_p1_affine_in_g1, blst_p1_compress, blst_p1_from_affine, blst_p1_mult, blst_p1_uncompress,
    blst_scalar, blst_scalar_from_be_bytes, blst_scalar_from_fr,
};
use zeroize::Zeroize;

/// A scalar of the prime-order field, wiped when dropped.
#[derive(Clone)]
pub(crate) struct Fr(blst_fr);

impl Drop for Fr {
    fn drop(&mut self) {
        self.0.l.zeroize();
    }
}

impl Fr {
    pub(crate) fn from_u64(value: u64) -> Self {
        let limbs = [value, 0, 0, 0];
        let mut out = blst_fr::default();
        // SAFETY: `limbs` has the four limbs the function reads.
        unsafe { blst_fr_from_uint64(&mut out, limbs.as_ptr()) };
        Self(out)
    }

    /// Reduces 48 uniform bytes; the bias is below 2^-128.
    pub(crate) fn from_wide_bytes(bytes: &[u8; 48]) -> Self {
        let mut scalar = blst_scalar::default();
        let mut out = blst_fr::default();
        // SAFETY: the function reads the stated number of bytes; it returns false only for zero, which is a valid coefficient.
        unsafe { blst_scalar_from_be_bytes(&mut scalar, bytes.as_ptr(), bytes.len()) };
        // SAFETY: both are plain structures.
        unsafe { blst_fr_from_scalar(&mut out, &scalar) };
        scalar.b.zeroize();
        Self(out)
    }

    pub(crate) fn to_be_bytes(&self) -> [u8; 32] {
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

    pub(crate) fn add(&self, other: &Self) -> Self {
        let mut out = blst_fr::default();
        // SAFETY: plain structures.
        unsafe { blst_fr_add(&mut out, &self.0, &other.0) };
        Self(out)
    }

    pub(crate) fn sub(&self, other: &Self) -> Self {
        let mut out = blst_fr::default();
        // SAFETY: plain structures.
        unsafe { blst_fr_sub(&mut out, &self.0, &other.0) };
        Self(out)
    }

    pub(crate) fn mul(&self, other: &Self) -> Self {
        let mut out = blst_fr::default();
        // SAFETY: plain structures.
        unsafe { blst_fr_mul(&mut out, &self.0, &other.0) };
        Self(out)
    }

    /// Variable time: for public values only (Lagrange denominators).
    pub(crate) fn inverse_of_public(&self) -> Self {
        let mut out = blst_fr::default();
        // SAFETY: plain structures.
        unsafe { blst_fr_eucl_inverse(&mut out, &self.0) };
        Self(out)
    }
}

/// A point of G1 in projective form.
#[derive(Clone, Copy)]
pub(crate) struct G1(blst_p1);

impl G1 {
    pub(crate) fn identity() -> Self {
        Self(blst_p1::default())
    }

    /// Decodes and checks the subgroup.
    pub(crate) fn from_compressed(bytes: &[u8; 48]) -> Option<Self> {
        let mut affine = blst_p1_affine::default();
        let mut out = blst_p1::default();
        // SAFETY: `bytes` has the 48 bytes the function reads.
        let code = unsafe { blst_p1_uncompress(&mut affine, bytes.as_ptr()) };
        // SAFETY: plain structures.
        if code != BLST_ERROR::BLST_SUCCESS || !unsafe { blst_p1_affine_in_g1(&affine) } {
            return None;
        }
        // SAFETY: plain structures.
        unsafe { blst_p1_from_affine(&mut out, &affine) };
        Some(Self(out))
    }

    pub(crate) fn to_compressed(self) -> [u8; 48] {
        let mut out = [0; 48];
        // SAFETY: `out` has the 48 bytes the function writes.
        unsafe { blst_p1_compress(out.as_mut_ptr(), &self.0) };
        out
    }

    pub(crate) fn add(&self, other: &Self) -> Self {
        let mut out = blst_p1::default();
        // SAFETY: plain structures.
        unsafe { blst_p1_add_or_double(&mut out, &self.0, &other.0) };
        Self(out)
    }

    pub(crate) fn mul(&self, factor: &Fr) -> Self {
        let mut scalar = blst_scalar::default();
        let mut out = blst_p1::default();
        // SAFETY: the scalar has 256 bits and is below the group order.
        unsafe {
            blst_scalar_from_fr(&mut scalar, &factor.0);
            blst_p1_mult(&mut out, &self.0, scalar.b.as_ptr(), 255);
        }
        scalar.b.zeroize();
        Self(out)
    }
}
