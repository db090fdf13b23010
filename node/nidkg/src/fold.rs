//! Many equations checked as few: each gets a random 128-bit weight of the verifier's own, and
//! their sum is checked. A false equation survives with probability 2^-128.
//!
//! Equations in G1 state that a sum of multiples is infinity. Bases that many equations share (the
//! generator, receivers' keys) are collected by coefficient, all others are appended. Equations in
//! G2 and the integrity pairings are one product of four pairings:
//!
//! `e(g1, sum w Z + sum w E) = e(sum w R, F(epoch)) e(sum w H R, f_hash) e(sum w S, h)`, where `E`
//! are the equations in G2.

use rand::RngCore;

use crate::{
    curve::{G1, G1Affine, G2, G2Affine, Scalar, pairing_product_is_one},
    engine::Engine,
    forward::{Epoch, identity_of},
    parameters::{LEVELS, Parameters},
};

/// A sum of multiples of points.
#[derive(Clone, Default)]
pub(crate) struct Sum<P> {
    points: Vec<P>,
    scalars: Vec<Scalar>,
}

impl<P: Copy> Sum<P> {
    pub(crate) fn push(&mut self, point: P, scalar: Scalar) {
        self.points.push(point);
        self.scalars.push(scalar);
    }

    fn append(&mut self, other: &Self) {
        self.points.extend_from_slice(&other.points);
        self.scalars.extend_from_slice(&other.scalars);
    }
}

/// The remaining equations of one dealing.
#[derive(Clone, Default)]
pub(crate) struct FoldedEquations {
    /// Coefficients of the generator of G1, of `y_0`, and of the receivers' keys.
    pub(crate) g1: Scalar,
    pub(crate) y0: Scalar,
    pub(crate) receivers: Vec<Scalar>,
    /// All other points of G1 equations.
    pub(crate) own: Sum<G1Affine>,
    /// First arguments of the pairings with `F(epoch)`, `f_hash` and `h`.
    pub(crate) with_identity: Sum<G1Affine>,
    pub(crate) with_hash: Sum<G1Affine>,
    pub(crate) with_h: Sum<G1Affine>,
    /// Second argument of the pairing with the generator of G1.
    pub(crate) g2: Scalar,
    pub(crate) own_g2: Sum<G2Affine>,
}

impl FoldedEquations {
    pub(crate) fn new(receivers: usize) -> Self {
        Self { receivers: vec![Scalar::zero(); receivers], ..Self::default() }
    }

    fn append(&mut self, other: &Self) {
        self.g1 = self.g1.add(&other.g1);
        self.y0 = self.y0.add(&other.y0);
        self.g2 = self.g2.add(&other.g2);
        for (own, other) in self.receivers.iter_mut().zip(&other.receivers) {
            *own = own.add(other);
        }
        self.own.append(&other.own);
        self.with_identity.append(&other.with_identity);
        self.with_hash.append(&other.with_hash);
        self.with_h.append(&other.with_h);
        self.own_g2.append(&other.own_g2);
    }
}

/// A weight of 128 bits.
pub(crate) fn weight(rng: &mut impl RngCore) -> Scalar {
    Scalar::from_limbs_reduced(&[rng.next_u64(), rng.next_u64(), 0, 0, 0])
}

/// Whether the folded equations of all dealings hold.
pub(crate) fn holds<'a>(
    engine: &Engine,
    receivers: &[G1Affine],
    epoch: Epoch,
    folded: impl IntoIterator<Item = &'a FoldedEquations>,
) -> bool {
    let parameters = Parameters::get();
    let mut all = FoldedEquations::new(receivers.len());
    folded.into_iter().for_each(|one| all.append(one));
    all.own.push(G1Affine::generator(), all.g1);
    all.own.push(parameters.y0, all.y0);
    let keys = all.receivers.clone();
    keys.iter().zip(receivers).for_each(|(scalar, key)| all.own.push(*key, *scalar));
    all.own_g2.push(G2Affine::generator(), all.g2);

    engine.run(|| {
        let in_g1 = |sum: &Sum<G1Affine>| {
            G1::msm_by_digits(&sum.points, &sum.scalars, || engine.yield_if_configured())
        };
        let in_g2 = |sum: &Sum<G2Affine>| {
            G2::msm_by_digits(&sum.points, &sum.scalars, || engine.yield_if_configured())
        };
        let with = |sum: &Sum<G1Affine>| in_g1(sum).to_affine();
        // All at once: the large sum alone would leave other threads with nothing to do at its end,
        // and every small one too.
        let (of_g1_hold, (z, (identity, (with_identity, (with_hash, with_h))))) = rayon::join(
            || in_g1(&all.own).is_identity(),
            || {
                rayon::join(
                    || in_g2(&all.own_g2).to_affine(),
                    || {
                        rayon::join(
                            || identity_of(LEVELS, epoch.0).to_affine(),
                            || {
                                let last =
                                    || rayon::join(|| with(&all.with_hash), || with(&all.with_h));
                                rayon::join(|| with(&all.with_identity), last)
                            },
                        )
                    },
                )
            },
        );
        of_g1_hold
            && pairing_product_is_one(&[
                (G1Affine::generator().neg(), z),
                (with_identity, identity),
                (with_hash, parameters.f_hash),
                (with_h, parameters.h),
            ])
    })
}
