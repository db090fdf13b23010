//! Verification of Groth16 proofs of the RLN circuit by its verifying key alone, several at a time.
//!
//! Proofs `(A, B, C)` with inputs `x` are valid if
//! `e(A, B) = e(alpha, beta) e(I(x), gamma) e(C, delta)`. Of several proofs both sides are raised
//! to random powers of 128 bits and multiplied: one equation with one Miller loop per proof, two
//! for all, and one final exponentiation. If it holds, each proof is valid but for a chance of
//! 2^-128; if it does not, each is verified alone.
//!
//! Bounds: the key is 0.1 MiB; a proof in a batch takes [`relay_limits::RLN_PROOF_BYTES`] while it
//! is verified. It must never know what the inputs mean, nor which roots and epochs are valid.
//!
//! Source: <https://eprint.iacr.org/2016/260> (Groth16), section 3.2 there for the equation. The
//! key is `verification_key.arkvkey` of vacp2p/zerokit 0.6, which its releases up to 3.0 have at
//! the start of their proving key for trees of depth 20.

use anyhow::{Context, Result, ensure};
use ark_bn254::{Bn254, Fr, G1Affine, G1Projective, G2Affine};
use ark_ec::{
    AffineRepr, CurveGroup,
    pairing::{Pairing, PairingOutput},
};
use ark_ff::{One, Zero};
use ark_serialize::CanonicalDeserialize;
use protocol::rate_limit_proof::PROOF_BYTES;

/// Public inputs of the circuit: share, root, nullifier, place of the share, external nullifier.
pub(super) const INPUTS: usize = 5;
/// Points of the key, not compressed: of G1, three of G2, a count, and one of G1 for each input and
/// one more.
const KEY: &[u8; 64 + 3 * 128 + 8 + 64 * (INPUTS + 1)] = include_bytes!("verifying_key.bin");

type G2Prepared = <Bn254 as Pairing>::G2Prepared;

/// A proof whose points were read: they are on their curves and in their groups.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    a: G1Affine,
    b: G2Affine,
    c: G1Affine,
}

impl Proof {
    /// Reads the points; `None` if one is not of its group.
    pub(super) fn read(bytes: &[u8; PROOF_BYTES]) -> Option<Self> {
        Some(Self {
            a: G1Affine::deserialize_compressed(&bytes[..32]).ok()?,
            b: G2Affine::deserialize_compressed(&bytes[32..96]).ok()?,
            c: G1Affine::deserialize_compressed(&bytes[96..]).ok()?,
        })
    }
}

/// A proof with its public inputs.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) proof: Proof,
    pub(super) inputs: [Fr; INPUTS],
}

/// The verifying key, prepared.
pub(super) struct Verifier {
    alpha_beta: PairingOutput<Bn254>,
    minus_gamma: G2Prepared,
    minus_delta: G2Prepared,
    /// For the constant one, then for each input.
    by_input: [G1Affine; INPUTS + 1],
}

impl Verifier {
    /// The verifier of the circuit for trees of depth 20.
    pub(super) fn new() -> Result<Self> {
        let damaged = "the verifying key of the program is damaged";
        let g1 = |at: usize| G1Affine::deserialize_uncompressed(&KEY[at..at + 64]);
        let g2 = |at: usize| G2Affine::deserialize_uncompressed(&KEY[at..at + 128]);
        let alpha = g1(0).ok().context(damaged)?;
        let beta = g2(64).ok().context(damaged)?;
        let gamma = g2(192).ok().context(damaged)?;
        let delta = g2(320).ok().context(damaged)?;
        ensure!(KEY[448..456] == (INPUTS as u64 + 1).to_le_bytes(), damaged);
        let mut by_input = [G1Affine::zero(); INPUTS + 1];
        for (place, point) in by_input.iter_mut().enumerate() {
            *point = g1(456 + 64 * place).ok().context(damaged)?;
        }
        Ok(Self {
            alpha_beta: Bn254::pairing(alpha, beta),
            minus_gamma: (-gamma).into(),
            minus_delta: (-delta).into(),
            by_input,
        })
    }

    /// Whether each of the claims is true.
    pub(super) fn verify(&self, claims: &[Claim]) -> Vec<bool> {
        if self.all_are_true(claims) {
            return vec![true; claims.len()];
        }
        if claims.len() == 1 {
            return vec![false];
        }
        claims.iter().map(|claim| self.all_are_true(std::slice::from_ref(claim))).collect()
    }

    /// Whether all claims are true.
    fn all_are_true(&self, claims: &[Claim]) -> bool {
        let mut left = Vec::with_capacity(claims.len() + 2);
        let mut right: Vec<G2Prepared> = Vec::with_capacity(claims.len() + 2);
        let mut powers = Fr::zero();
        let mut inputs = [Fr::zero(); INPUTS];
        let mut c = G1Projective::zero();
        for (place, claim) in claims.iter().enumerate() {
            // The first power may be one: the others are random.
            let power = if place == 0 { 1 } else { rand::random::<u128>() };
            let limbs = [power as u64, (power >> 64) as u64];
            let raised = |point: &G1Affine| match place {
                0 => point.into_group(),
                _ => point.mul_bigint(limbs),
            };
            left.push(raised(&claim.proof.a).into_affine());
            right.push(claim.proof.b.into());
            c += raised(&claim.proof.c);
            let power = Fr::from(power);
            powers += power;
            for (sum, input) in inputs.iter_mut().zip(&claim.inputs) {
                *sum += power * input;
            }
        }
        let mut i = self.by_input[0] * powers;
        for (point, input) in self.by_input[1..].iter().zip(inputs) {
            i += *point * input;
        }
        left.extend([i.into_affine(), c.into_affine()]);
        right.extend([self.minus_gamma.clone(), self.minus_delta.clone()]);
        let product = Bn254::final_exponentiation(Bn254::multi_miller_loop(left, right));
        let expected = if powers.is_one() { self.alpha_beta } else { self.alpha_beta * powers };
        product == Some(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rln::samples::{self, claims};

    #[test]
    fn proofs_of_the_published_prover_are_valid_alone_and_together() {
        let (verifier, claims) = (Verifier::new().unwrap(), claims());
        assert_eq!(verifier.verify(&claims), vec![true; claims.len()]);
        for claim in claims {
            assert_eq!(verifier.verify(&[claim]), [true]);
        }
        assert_eq!(verifier.verify(&[]), [true; 0]);
    }

    #[test]
    fn a_changed_input_or_point_is_found_in_any_batch() {
        let (verifier, good) = (Verifier::new().unwrap(), claims());
        for place in 0..good.len() {
            for change in 0..INPUTS + 2 {
                let mut claims = good.clone();
                let claim = &mut claims[place];
                match change {
                    INPUTS => claim.proof.c = (-claim.proof.c.into_group()).into_affine(),
                    input if input < INPUTS => claim.inputs[input] += Fr::one(),
                    _ => claim.proof = good[(place + 1) % good.len()].proof.clone(),
                }
                let found = verifier.verify(&claims);
                let expected: Vec<bool> = (0..good.len()).map(|at| at != place).collect();
                assert_eq!(found, expected, "change {change} of claim {place}");
            }
        }
    }

    /// Two false proofs whose errors cancel one another out pass an equation without powers.
    #[test]
    fn errors_that_cancel_out_are_found() {
        let (verifier, mut claims) = (Verifier::new().unwrap(), claims());
        claims.truncate(2);
        let shift = G1Affine::generator();
        claims[0].proof.c = (claims[0].proof.c + shift).into_affine();
        claims[1].proof.c = (claims[1].proof.c.into_group() - shift).into_affine();
        assert_eq!(verifier.verify(&claims), [false, false]);
    }

    #[test]
    fn points_outside_their_group_are_refused() {
        let mut bytes = samples::proofs()[0].proof;
        assert!(Proof::read(&bytes).is_some());
        bytes[0] ^= 1;
        let read = Proof::read(&bytes);
        // Half of all numbers are the first coordinate of a point: then it is another point.
        let (verifier, mut claims) = (Verifier::new().unwrap(), claims());
        if let Some(proof) = read {
            claims[0].proof = proof;
            assert_eq!(verifier.verify(&claims[..1]), [false]);
        }
        assert!(Proof::read(&[0xff; PROOF_BYTES]).is_none());
    }
}
