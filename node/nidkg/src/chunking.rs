//! Proof of correct chunking (paper, section 6.5): every chunk is small, or a fraction with a small
//! numerator and denominator.
//!
//! The prover commits to 32 masks `sigma_k` (`B_k = g1^{beta_k}`, `C_k = y0^{beta_k}
//! g1^{sigma_k}`), is asked 8-bit challenges `e_ijk` for every chunk and repetition, and shows `z_k
//! = sum e_ijk m_ij + sigma_k`, whose range is checked. A second challenge `x` folds the
//! repetitions, with `q_ij = sum_k e_ijk x^k`:
//!
//! * `product_j R_j^{q_ij} D_i = g1^{z_r,i}` for every receiver `i`
//! * `product_k B_k^{x^k} D_0 = g1^{z_beta}`
//! * `product_k C_k^{x^k} product_ij C_ij^{q_ij} Y = g1^{sum_k z_k x^k} product_i y_i^{z_r,i}
//!   y0^{z_beta}`
//!
//! `y0` is one hashed constant, where the paper draws it per proof: it only has to be a key whose
//! secret is unknown.

use rand::{CryptoRng, Rng, RngCore};
use rayon::prelude::*;
use zeroize::Zeroizing;

use crate::{
    cipher::{Ciphertext, Witness},
    curve::{G1, G1Affine, Scalar},
    encoding::{DecodeError, Reader, Writer},
    engine::{Base, Engine},
    fold::{FoldedEquations, weight},
    oracle::Oracle,
    parameters::{CHUNKS, Parameters, REPETITIONS, response_bound, sum_bound},
};

/// Each attempt succeeds with probability 0.6; this many failures mean that the random number
/// generator failed.
const ATTEMPTS_MAX: usize = 256;

/// Proof of correct chunking of one ciphertext; symbols as in the equations above.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ChunkingProof {
    /// `B_k = g1^{beta_k}`, one per repetition.
    pub(crate) masks: Vec<G1Affine>,
    /// `C_k = y0^{beta_k} g1^{sigma_k}`, one per repetition.
    pub(crate) masked: Vec<G1Affine>,
    /// `D_0 .. D_n`.
    pub(crate) blinders: Vec<G1Affine>,
    /// `Y = y0^{delta_0} product_i y_i^{delta_i}`, where `D_i = g1^{delta_i}`.
    pub(crate) product: G1Affine,
    /// `z_k`, one per repetition, each below [`response_bound`].
    pub(crate) responses: Vec<u64>,
    /// `z_r,i`, one per receiver: the response for the randomness of the chunks.
    pub(crate) randomness: Vec<Scalar>,
    /// `z_beta`: the response for the exponents of the masks.
    pub(crate) beta: Scalar,
}

/// The challenges of one chunk.
type Challenge = [u8; REPETITIONS];

fn first_challenge(
    instance: &[u8; 32],
    masks: &[G1Affine],
    masked: &[G1Affine],
    receivers: usize,
) -> ([u8; 32], Vec<[Challenge; CHUNKS]>) {
    let seed = Oracle::new("nidkg-v1-chunking-first")
        .bytes("instance", instance)
        .g1("masks", masks)
        .g1("masked", masked)
        .digest();
    let mut stream = Oracle::new("nidkg-v1-chunking-challenges").bytes("seed", &seed).stream();
    let mut challenges = vec![[[0; REPETITIONS]; CHUNKS]; receivers];
    challenges.iter_mut().flatten().for_each(|challenge| stream.fill_bytes(challenge));
    (seed, challenges)
}

/// `x^1 ..= x^32`.
fn second_challenge(
    seed: &[u8; 32],
    responses: &[u64],
    blinders: &[G1Affine],
    product: &G1Affine,
) -> Vec<Scalar> {
    let bytes: Vec<u8> = responses.iter().flat_map(|response| response.to_be_bytes()).collect();
    let x = Oracle::new("nidkg-v1-chunking-second")
        .bytes("seed", seed)
        .bytes("responses", &bytes)
        .g1("blinders", blinders)
        .g1("product", &[*product])
        .scalar();
    Scalar::powers(&x, REPETITIONS + 1).split_off(1)
}

/// `q_ij` for one receiver: sums of 8-bit multiples, reduced once at the end.
fn folded_challenges(challenges: &[Challenge; CHUNKS], powers: &[[u64; 4]]) -> [Scalar; CHUNKS] {
    challenges.map(|challenge| {
        let mut columns = [0u128; 4];
        for (factor, power) in challenge.iter().zip(powers) {
            for (column, limb) in columns.iter_mut().zip(power) {
                *column += u128::from(*factor) * u128::from(*limb);
            }
        }
        let mut limbs = [0u64; 5];
        let mut carry = 0u128;
        for (limb, column) in limbs.iter_mut().zip(columns) {
            let sum = column + carry;
            *limb = sum as u64;
            carry = sum >> 64;
        }
        limbs[4] = carry as u64;
        Scalar::from_limbs_reduced(&limbs)
    })
}

fn limbs_of(powers: &[Scalar]) -> Vec<[u64; 4]> {
    powers.iter().map(|power| power.to_limbs()).collect()
}

/// Proves. `instance` binds everything public. `None` if the random number generator failed.
#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
pub(crate) fn prove(
    engine: &Engine,
    instance: &[u8; 32],
    receivers: &[Base],
    witness: &Witness,
    rng: &mut (impl RngCore + CryptoRng),
) -> Option<ChunkingProof> {
    let parameters = Parameters::get();
    let count = receivers.len();
    let mut draw = |count: usize| -> Zeroizing<Vec<Scalar>> {
        Zeroizing::new((0..count).map(|_| *Scalar::random(rng)).collect())
    };
    assert_eq!(witness.chunks.len(), count, "shares in chunks, one for each receiver");
    let (beta, delta) = (draw(REPETITIONS), draw(count + 1));
    let (masks, under): (Vec<G1Affine>, Vec<G1>) = engine.run(|| {
        let both: Vec<_> = beta
            .par_iter()
            .map(|beta| {
                engine.yield_if_configured();
                (parameters.g1_table.mul(beta), parameters.y0_table.mul(beta))
            })
            .collect();
        let (masks, under): (Vec<_>, Vec<_>) = both.into_iter().unzip();
        (G1::all_to_affine(&masks), under)
    });

    let (sum_bound, bound) = (sum_bound(count), response_bound(count));
    let offset = parameters.g1_table.mul_u64(sum_bound).neg();
    let mut attempts = (0..ATTEMPTS_MAX).map(|_| {
        // Masks from -S to Z - 1, kept raised by S so that they are never negative.
        let raised: Zeroizing<Vec<u64>> =
            Zeroizing::new((0..REPETITIONS).map(|_| rng.gen_range(0..bound + sum_bound)).collect());
        let masked: Vec<_> = raised
            .iter()
            .zip(&under)
            .map(|(raised, under)| parameters.g1_table.mul_u64(*raised).add(&offset).add(under))
            .collect();
        let masked = G1::all_to_affine(&masked);
        let (seed, challenges) = first_challenge(instance, &masks, &masked, count);
        let mut responses = Zeroizing::new(raised.to_vec());
        for (challenges, chunks) in challenges.iter().zip(witness.chunks.iter()) {
            for (challenge, chunk) in challenges.iter().zip(chunks) {
                for (response, factor) in responses.iter_mut().zip(challenge) {
                    *response += u64::from(*factor) * u64::from(*chunk);
                }
            }
        }
        // All are checked, so that the time of an attempt does not reveal which one was out of
        // range.
        let in_range = responses
            .iter_mut()
            .map(|response| {
                let fits = (sum_bound..sum_bound + bound).contains(response);
                *response = response.wrapping_sub(sum_bound);
                fits
            })
            .fold(true, |all, one| all & one);
        // A rejected attempt's responses would reveal something about the chunks: they are dropped,
        // wiped.
        in_range.then(|| (masked, seed, challenges, responses.to_vec()))
    });
    let (masked, seed, challenges, responses) = attempts.find_map(|attempt| attempt)?;
    debug_assert!(
        responses.iter().all(|response| *response < bound),
        "a response says something of the chunks"
    );

    let (blinders, product) = engine.run(|| {
        let both: Vec<_> = delta
            .par_iter()
            .enumerate()
            .map(|(index, delta)| {
                engine.yield_if_configured();
                let under = match index.checked_sub(1) {
                    None => parameters.y0_table.mul(delta),
                    Some(receiver) => receivers[receiver].mul(delta),
                };
                (parameters.g1_table.mul(delta), under)
            })
            .collect();
        let (blinders, under): (Vec<_>, Vec<_>) = both.into_iter().unzip();
        let product = under.iter().fold(G1::identity(), |sum, point| sum.add(point));
        (G1::all_to_affine(&blinders), product.to_affine())
    });
    let powers = second_challenge(&seed, &responses, &blinders, &product);
    let limbs = limbs_of(&powers);
    let randomness = challenges
        .iter()
        .zip(&delta[1..])
        .map(|(challenges, delta)| {
            let folded = folded_challenges(challenges, &limbs);
            folded
                .iter()
                .zip(witness.r.iter())
                .fold(*delta, |sum, (folded, r)| sum.add(&folded.mul(r)))
        })
        .collect();
    let beta =
        beta.iter().zip(&powers).fold(delta[0], |sum, (beta, power)| sum.add(&beta.mul(power)));
    Some(ChunkingProof { masks, masked, blinders, product, responses, randomness, beta })
}

impl ChunkingProof {
    /// Adds the equations to `folded`, each with a weight of its own. False if a response is out of
    /// range.
    pub(crate) fn fold(
        &self,
        instance: &[u8; 32],
        ciphertext: &Ciphertext,
        folded: &mut FoldedEquations,
        chunk_scalars: &mut [[Scalar; CHUNKS]],
        rng: &mut impl RngCore,
    ) -> bool {
        let count = ciphertext.rows.len();
        if self.responses.iter().any(|response| *response >= response_bound(count)) {
            return false;
        }
        let (seed, challenges) = first_challenge(instance, &self.masks, &self.masked, count);
        let powers = second_challenge(&seed, &self.responses, &self.blinders, &self.product);
        let limbs = limbs_of(&powers);

        let main = weight(rng);
        let mut r_scalars = [Scalar::zero(); CHUNKS];
        for (index, challenges) in challenges.iter().enumerate() {
            let own = weight(rng);
            let q = folded_challenges(challenges, &limbs);
            for (chunk, q) in q.iter().enumerate() {
                r_scalars[chunk] = r_scalars[chunk].add(&own.mul(q));
                chunk_scalars[index][chunk] = chunk_scalars[index][chunk].add(&main.mul(q));
            }
            let randomness = &self.randomness[index];
            folded.own.push(self.blinders[index + 1], own);
            folded.g1 = folded.g1.sub(&own.mul(randomness));
            folded.receivers[index] = folded.receivers[index].sub(&main.mul(randomness));
        }
        for (point, scalar) in ciphertext.r.iter().zip(r_scalars) {
            folded.own.push(*point, scalar);
        }

        let beta = weight(rng);
        folded.own.push(self.blinders[0], beta);
        folded.own.push(self.product, main);
        folded.g1 = folded.g1.sub(&beta.mul(&self.beta));
        folded.y0 = folded.y0.sub(&main.mul(&self.beta));
        for (index, power) in powers.iter().enumerate() {
            folded.own.push(self.masks[index], beta.mul(power));
            folded.own.push(self.masked[index], main.mul(power));
            let response = Scalar::from_u64(self.responses[index]);
            folded.g1 = folded.g1.sub(&main.mul(&power.mul(&response)));
        }
        true
    }

    /// Every point, for the check of membership.
    pub(crate) fn points(&self) -> impl Iterator<Item = &G1Affine> {
        self.masks.iter().chain(&self.masked).chain(&self.blinders).chain([&self.product])
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.g1_raw(&self.masks);
        writer.g1_raw(&self.masked);
        writer.g1_raw(&self.blinders);
        writer.g1_raw(&[self.product]);
        self.responses.iter().for_each(|response| writer.u64(*response));
        self.randomness.iter().for_each(|scalar| writer.scalar(scalar));
        writer.scalar(&self.beta);
    }

    pub(crate) fn read(reader: &mut Reader<'_>, receivers: usize) -> Result<Self, DecodeError> {
        let masks = reader.g1_raw(REPETITIONS, "a mask of the chunking proof")?;
        let masked = reader.g1_raw(REPETITIONS, "a commitment of the chunking proof")?;
        let blinders = reader.g1_raw(receivers + 1, "a blinder of the chunking proof")?;
        let product = reader.g1_raw(1, "the product of the chunking proof")?[0];
        let what = "a response of the chunking proof";
        let responses = (0..REPETITIONS).map(|_| reader.u64(what)).collect::<Result<_, _>>()?;
        let randomness = (0..receivers).map(|_| reader.scalar(what)).collect::<Result<_, _>>()?;
        let beta = reader.scalar(what)?;
        Ok(Self { masks, masked, blinders, product, responses, randomness, beta })
    }
}
