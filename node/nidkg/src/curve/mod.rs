//! BLS12-381 over blst: scalars, points of G1 and G2, pairings. All unsafe calls of the crate are
//! in this folder.
//!
//! blst's functions take pointers to plain structures and have no failure modes except the codes
//! they return; every pointer below comes from a reference or a fresh local that outlives the call,
//! and every buffer has the length the function states.
//!
//! **Constant time.** Scalar arithmetic, `mul` of a point and `FixedBase::mul` do not branch on, or
//! index memory by, their scalar. `msm` and everything named `public` do, and are only ever given
//! public values.
//!
//! **Points from outside** are decoded to affine form with the curve equation checked, and are
//! members of the prime-order group only after `in_group` (or `subgroup::all_in_group`) confirmed
//! it. The point at infinity is refused on decoding: no honest value is ever that point.

mod fixed_base;
mod pairing;
mod points;
mod scalar;
pub(crate) mod subgroup;

pub(crate) use fixed_base::FixedBase;
pub(crate) use pairing::{Gt, PreparedG2, pairing_product, pairing_product_is_one};
pub(crate) use points::{G1, G1Affine, G2, G2Affine};
pub(crate) use scalar::{Scalar, evaluate, lagrange_at_zero};
