//! Proof of correct sharing (paper, section 6.4): what is encrypted to receiver `i` is the value at
//! `i + 1` of the polynomial whose coefficients are public as `A_k = g2^{a_k}`.
//!
//! With `R = product_j R_j^{B^j}` and `C_i = product_j C_ij^{B^j}` (the ciphertext of the whole
//! share), challenges `x` and `x'`, the verifier checks
//!
//! * `R^{x'} F = g1^{z_r}`
//! * `(product_k A_k^{sum_i (i+1)^k x^{i+1}})^{x'} A = g2^{z_a}`
//! * `(product_i C_i^{x^{i+1}})^{x'} Y = (product_i y_i^{x^{i+1}})^{z_r} g1^{z_a}`

use rand::{CryptoRng, RngCore};
use rayon::prelude::*;

use crate::{
    cipher::{Ciphertext, Witness, chunk_weights},
    curve::{G1, G1Affine, G2Affine, Scalar},
    encoding::{DecodeError, Reader, Writer},
    engine::{Base, Engine},
    fold::{FoldedEquations, weight},
    oracle::Oracle,
    parameters::{CHUNKS, Parameters},
};

/// Proof of correct sharing of one ciphertext; symbols as in the equations above.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SharingProof {
    /// `F = g1^rho`, for a random `rho`.
    pub(crate) randomness_mask: G1Affine,
    /// `A = g2^alpha`, for a random `alpha`.
    pub(crate) share_mask: G2Affine,
    /// `Y = (product_i y_i^{x^{i+1}})^rho g1^alpha`.
    pub(crate) product: G1Affine,
    /// `z_r`: the response for the randomness of the ciphertext, masked by `rho`.
    pub(crate) randomness: Scalar,
    /// `z_a`: the response for the shares, masked by `alpha`.
    pub(crate) share: Scalar,
}

/// `x^1 ..= x^n`.
fn first_challenge(instance: &[u8; 32], receivers: usize) -> Vec<Scalar> {
    let x = Oracle::new("nidkg-v1-sharing-first").bytes("instance", instance).scalar();
    Scalar::powers(&x, receivers + 1).split_off(1)
}

fn second_challenge(instance: &[u8; 32], proof: (&G1Affine, &G2Affine, &G1Affine)) -> Scalar {
    Oracle::new("nidkg-v1-sharing-second")
        .bytes("instance", instance)
        .g1("randomness mask", &[*proof.0])
        .g2("share mask", &[*proof.1])
        .g1("product", &[*proof.2])
        .scalar()
}

/// Proves. `shares` are those in the ciphertext.
pub(crate) fn prove(
    engine: &Engine,
    instance: &[u8; 32],
    receivers: &[Base],
    shares: &[Scalar],
    witness: &Witness,
    rng: &mut (impl RngCore + CryptoRng),
) -> SharingProof {
    assert_eq!(shares.len(), receivers.len(), "shares, one for each receiver");
    let parameters = Parameters::get();
    let (rho, alpha) = (Scalar::random(rng), Scalar::random(rng));
    let powers = first_challenge(instance, shares.len());
    let product = engine.run(|| {
        let parts = receivers.par_iter().zip(&powers).map(|(receiver, power)| {
            engine.yield_if_configured();
            receiver.mul(&power.mul(&rho))
        });
        let sum = parts.reduce(G1::identity, |left, right| left.add(&right));
        sum.add(&parameters.g1_table.mul(&alpha)).to_affine()
    });
    let randomness_mask = parameters.g1_table.mul(&rho).to_affine();
    let share_mask = parameters.g2_table.mul(&alpha).to_affine();
    let x = second_challenge(instance, (&randomness_mask, &share_mask, &product));
    let dot = |left: &[Scalar], right: &[Scalar]| {
        debug_assert_eq!(left.len(), right.len(), "factors of a sum of products");
        left.iter().zip(right).fold(Scalar::zero(), |sum, (left, right)| sum.add(&left.mul(right)))
    };
    let r = dot(&witness.r, &chunk_weights());
    let share = dot(shares, &powers);
    SharingProof {
        randomness_mask,
        share_mask,
        product,
        randomness: x.mul(&r).add(&rho),
        share: x.mul(&share).add(&alpha),
    }
}

impl SharingProof {
    /// Adds the equations to `folded`, each with a weight of its own.
    pub(crate) fn fold(
        &self,
        instance: &[u8; 32],
        coefficients: &[G2Affine],
        ciphertext: &Ciphertext,
        folded: &mut FoldedEquations,
        chunk_scalars: &mut [[Scalar; CHUNKS]],
        rng: &mut impl RngCore,
    ) {
        let count = ciphertext.rows.len();
        let powers = first_challenge(instance, count);
        let x =
            second_challenge(instance, (&self.randomness_mask, &self.share_mask, &self.product));
        let weights = chunk_weights();

        let (first, second, third) = (weight(rng), weight(rng), weight(rng));
        let scaled = first.mul(&x);
        for (point, place) in ciphertext.r.iter().zip(&weights) {
            folded.own.push(*point, scaled.mul(place));
        }
        folded.own.push(self.randomness_mask, first);
        folded.g1 = folded.g1.sub(&first.mul(&self.randomness));

        let scaled = second.mul(&x);
        // Coefficient k gets the sum over the receivers of (i+1)^k x^{i+1}.
        let mut terms = powers.clone();
        for coefficient in coefficients {
            let sum = terms.iter().fold(Scalar::zero(), |sum, term| sum.add(term));
            folded.own_g2.push(*coefficient, scaled.mul(&sum));
            for (index, term) in terms.iter_mut().enumerate() {
                *term = term.mul(&Scalar::from_u64(index as u64 + 1));
            }
        }
        folded.own_g2.push(self.share_mask, second);
        folded.g2 = folded.g2.sub(&second.mul(&self.share));

        let scaled = third.mul(&x);
        for (index, power) in powers.iter().enumerate() {
            let scaled = scaled.mul(power);
            for (scalar, place) in chunk_scalars[index].iter_mut().zip(&weights) {
                *scalar = scalar.add(&scaled.mul(place));
            }
            let key = third.mul(power).mul(&self.randomness);
            folded.receivers[index] = folded.receivers[index].sub(&key);
        }
        folded.own.push(self.product, third);
        folded.g1 = folded.g1.sub(&third.mul(&self.share));
    }

    /// Every point of G1, for the check of membership.
    pub(crate) fn points(&self) -> impl Iterator<Item = &G1Affine> {
        [&self.randomness_mask, &self.product].into_iter()
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.g1_raw(&[self.randomness_mask]);
        writer.g2_raw(&[self.share_mask]);
        writer.g1_raw(&[self.product]);
        writer.scalar(&self.randomness);
        writer.scalar(&self.share);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let what = "a point of the sharing proof";
        let randomness_mask = reader.g1_raw(1, what)?[0];
        let share_mask = reader.g2_raw(1, what)?[0];
        let product = reader.g1_raw(1, what)?[0];
        let what = "a response of the sharing proof";
        Ok(Self {
            randomness_mask,
            share_mask,
            product,
            randomness: reader.scalar(what)?,
            share: reader.scalar(what)?,
        })
    }
}
