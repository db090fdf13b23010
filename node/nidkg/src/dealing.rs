//! Dealings: making one, taking one apart, checking many.
//!
//! A dealing travels with its points uncompressed: 84 kB for 40 receivers instead of 44, and every
//! verifier is spared the square roots, a third of its work. A transcript, which stays, has them
//! compressed.
//!
//! Verification of many dealings is one verification of the sum of their equations. If it fails the
//! dealings are halved until each culprit is isolated, and its checks are then made one by one, so
//! that the error names dealer and check.

use std::fmt;

use rand::{CryptoRng, RngCore};
use rayon::prelude::*;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::{
    chunking::{self, ChunkingProof},
    cipher::{self, Ciphertext},
    curve::{G1Affine, G2, G2Affine, Scalar, evaluate, subgroup},
    encoding::{DecodeError, Kind, Reader, Writer},
    engine::Engine,
    fold::{self, FoldedEquations, weight},
    oracle::Oracle,
    parameters::{CHUNKS, Parameters, RECEIVERS_MAX},
    session::{Session, Source},
    sharing::{self, SharingProof},
    threshold::{NodeIndex, PublicKey, SecretShare},
};

/// A dealer's message to all nodes. Decoded, not verified: see [`verify_dealings`].
#[derive(Clone, PartialEq, Eq)]
pub struct Dealing {
    /// `A_k`, as many as the threshold.
    pub(crate) coefficients: Vec<G2Affine>,
    pub(crate) ciphertext: Ciphertext,
    pub(crate) chunking: ChunkingProof,
    pub(crate) sharing: SharingProof,
}

/// A dealing that was verified for a session and a dealer.
#[derive(Clone)]
pub struct VerifiedDealing {
    pub(crate) dealer: NodeIndex,
    pub(crate) session: [u8; 32],
    pub(crate) dealing: Dealing,
}

/// Which part of a dealing does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// Every point is in the prime-order group.
    Membership,
    /// In a resharing: the dealer's constant is its share of the old key.
    OldShare,
    /// The ciphertext is tied to its epoch and context.
    Integrity,
    /// Chunks are small.
    Chunking,
    /// Chunks are shares of the public polynomial.
    Sharing,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Membership => "membership of its points in the group",
            Self::OldShare => "equality with its share of the old key",
            Self::Integrity => "integrity of the ciphertext",
            Self::Chunking => "the proof of correct chunking",
            Self::Sharing => "the proof of correct sharing",
        })
    }
}

/// Why there is no dealing, or why one was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum DealingError {
    #[error("the dealing of dealer {} fails {check}", dealer.0)]
    Rejected {
        dealer: NodeIndex,
        /// First check that fails, in the order of [`Check`].
        check: Check,
    },
    #[error("the dealing of dealer {} has {have} {what}, the session has {need}", dealer.0)]
    Shape { dealer: NodeIndex, what: &'static str, have: usize, need: usize },
    #[error("dealer {} is not one of the {dealers} dealers of the session", dealer.0)]
    UnknownDealer {
        /// The index that was given, not below `dealers`.
        dealer: NodeIndex,
        dealers: u32,
    },
    #[error(
        "a resharing is dealt from the dealer's share of the old key, a fresh dealing from none"
    )]
    WrongSource,
    #[error("the randomness handed in does not look random: no attempt at a proof succeeded")]
    Randomness,
}

/// Deals. In a fresh session `share` is `None`, and a new secret is drawn; in a resharing it is the
/// dealer's share of the old key.
pub fn create_dealing(
    engine: &Engine,
    session: &Session,
    dealer: NodeIndex,
    share: Option<&SecretShare>,
    rng: &mut (impl RngCore + CryptoRng),
) -> Result<Dealing, DealingError> {
    if dealer.0 >= session.dealers() {
        return Err(DealingError::UnknownDealer { dealer, dealers: session.dealers() });
    }
    let constant = match (session.source(), share) {
        (Source::Fresh { .. }, None) => Scalar::random(rng),
        (Source::Reshare(_), Some(share)) if share.index == dealer => {
            Zeroizing::new(share.scalar())
        }
        _ => return Err(DealingError::WrongSource),
    };
    let mut polynomial = Zeroizing::new(Vec::with_capacity(session.threshold() as usize));
    polynomial.push(*constant);
    polynomial.extend((1..session.threshold()).map(|_| *Scalar::random(rng)));
    let shares: Zeroizing<Vec<Scalar>> = Zeroizing::new(
        (1..=session.receivers().len() as u64)
            .map(|place| evaluate(&polynomial, &Scalar::from_u64(place)))
            .collect(),
    );
    let chunks = Zeroizing::new(shares.iter().map(cipher::chunks_of).collect());
    deal_chunks(engine, session, dealer, (&polynomial, &shares), chunks, rng)
}

/// Encrypts the chunks, which make up the shares, and proves it.
pub(crate) fn deal_chunks(
    engine: &Engine,
    session: &Session,
    dealer: NodeIndex,
    (polynomial, shares): (&[Scalar], &[Scalar]),
    chunks: Zeroizing<Vec<[u32; CHUNKS]>>,
    rng: &mut (impl RngCore + CryptoRng),
) -> Result<Dealing, DealingError> {
    let parameters = Parameters::get();
    let bases = engine.bases(&session.keys());
    let context = session.context(dealer);
    let random = cipher::Randomness::draw(rng);
    let (coefficients, (ciphertext, witness)) = engine.run(|| {
        rayon::join(
            || {
                let points: Vec<_> = polynomial
                    .par_iter()
                    .map(|coefficient| parameters.g2_table.mul(coefficient))
                    .collect();
                G2::all_to_affine(&points)
            },
            || cipher::encrypt(engine, &context, session.epoch(), &bases, chunks, random),
        )
    });
    let instance = instance(&context, &coefficients, &ciphertext);
    let chunking = chunking::prove(engine, &instance, &bases, &witness, rng)
        .ok_or(DealingError::Randomness)?;
    let sharing = sharing::prove(engine, &instance, &bases, shares, &witness, rng);
    Ok(Dealing { coefficients, ciphertext, chunking, sharing })
}

/// Everything public that the proofs speak about. The receivers' keys are in the context.
fn instance(context: &[u8; 32], coefficients: &[G2Affine], ciphertext: &Ciphertext) -> [u8; 32] {
    let oracle = Oracle::new("nidkg-v1-instance")
        .bytes("context", context)
        .g2("coefficients", coefficients)
        .g1("r", &ciphertext.r)
        .g1("s", &ciphertext.s)
        .g2("z", &ciphertext.z);
    ciphertext.rows.iter().fold(oracle, |oracle, row| oracle.g1("row", row)).digest()
}

impl Dealing {
    /// Points are uncompressed: 96 bytes in G1, 192 in G2.
    pub fn to_bytes(&self) -> Vec<u8> {
        let rows = self.ciphertext.rows.len();
        let mut writer =
            Writer::new(Kind::Dealing, 20_000 + rows * 2_000 + self.coefficients.len() * 192);
        writer.u32(rows as u32);
        writer.u32(self.coefficients.len() as u32);
        writer.g2_raw(&self.coefficients);
        writer.g1_raw(&self.ciphertext.r);
        writer.g1_raw(&self.ciphertext.s);
        writer.g2_raw(&self.ciphertext.z);
        self.ciphertext.rows.iter().for_each(|row| writer.g1_raw(row));
        self.chunking.write(&mut writer);
        self.sharing.write(&mut writer);
        writer.finish()
    }

    /// Checks lengths, that points are on their curves, and that the encoding is the canonical one.
    /// Membership in the group is checked with the rest.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(Kind::Dealing, bytes)?;
        let receivers = reader.u32_within("the number of receivers", 1, RECEIVERS_MAX)? as usize;
        let threshold = reader.u32_within("the threshold", 1, receivers as u32)? as usize;
        let coefficients = reader.g2_raw(threshold, "a coefficient")?;
        let mut row = |what| {
            let mut row = [G1Affine::default(); CHUNKS];
            row.copy_from_slice(&reader.g1_raw(CHUNKS, what)?);
            Ok::<_, DecodeError>(row)
        };
        let (r, s) = (row("a randomizer R")?, row("a randomizer S")?);
        let mut z = [G2Affine::default(); CHUNKS];
        z.copy_from_slice(&reader.g2_raw(CHUNKS, "a randomizer Z")?);
        let chunks = reader.g1_raw(receivers * CHUNKS, "a chunk")?;
        let rows = chunks.as_chunks::<CHUNKS>().0.to_vec();
        let chunking = ChunkingProof::read(&mut reader, receivers)?;
        let sharing = SharingProof::read(&mut reader)?;
        reader.finish()?;
        Ok(Self { coefficients, ciphertext: Ciphertext { rows, r, s, z }, chunking, sharing })
    }

    fn g1_points(&self) -> impl Iterator<Item = &G1Affine> {
        let ciphertext = &self.ciphertext;
        let chunks = ciphertext.rows.iter().flatten().chain(&ciphertext.r).chain(&ciphertext.s);
        chunks.chain(self.chunking.points()).chain(self.sharing.points())
    }

    fn g2_points(&self) -> impl Iterator<Item = &G2Affine> {
        self.coefficients.iter().chain(&self.ciphertext.z).chain([&self.sharing.share_mask])
    }
}

impl VerifiedDealing {
    /// The dealer.
    pub fn dealer(&self) -> NodeIndex {
        self.dealer
    }

    /// The verified dealing.
    pub fn dealing(&self) -> &Dealing {
        &self.dealing
    }
}

/// Verifies one dealing.
pub fn verify_dealing(
    engine: &Engine,
    session: &Session,
    dealer: NodeIndex,
    dealing: Dealing,
    rng: &mut (impl RngCore + CryptoRng),
) -> Result<VerifiedDealing, DealingError> {
    verify_dealings(engine, session, vec![(dealer, dealing)], rng).remove(0)
}

/// Verifies many dealings of one session at once; results are in the order of the dealings.
///
/// `rng` draws the weights of the folded equations. It must be unpredictable to dealers. A false
/// dealing passes with probability below 2^-63, a good one never fails.
pub fn verify_dealings(
    engine: &Engine,
    session: &Session,
    dealings: Vec<(NodeIndex, Dealing)>,
    rng: &mut (impl RngCore + CryptoRng),
) -> Vec<Result<VerifiedDealing, DealingError>> {
    let shapes: Vec<_> =
        dealings.iter().map(|(dealer, dealing)| shape(session, *dealer, dealing)).collect();
    let candidates: Vec<usize> =
        (0..dealings.len()).filter(|index| shapes[*index].is_ok()).collect();
    let verdicts =
        Batch { engine, session, dealings: &dealings }.find_failed_checks(&candidates, rng);
    let mut results: Vec<_> = shapes;
    for (index, verdict) in candidates.into_iter().zip(verdicts) {
        let dealer = dealings[index].0;
        results[index] =
            verdict.map_or(Ok(()), |check| Err(DealingError::Rejected { dealer, check }));
    }
    dealings
        .into_iter()
        .zip(results)
        .map(|((dealer, dealing), result)| {
            result.map(|()| VerifiedDealing { dealer, session: session.digest, dealing })
        })
        .collect()
}

/// Checks that need no arithmetic.
fn shape(session: &Session, dealer: NodeIndex, dealing: &Dealing) -> Result<(), DealingError> {
    if dealer.0 >= session.dealers() {
        return Err(DealingError::UnknownDealer { dealer, dealers: session.dealers() });
    }
    let is = |what, have, need| {
        if have == need { Ok(()) } else { Err(DealingError::Shape { dealer, what, have, need }) }
    };
    is("coefficients", dealing.coefficients.len(), session.threshold() as usize)?;
    is("receivers", dealing.ciphertext.rows.len(), session.receivers().len())
}

struct Batch<'a> {
    engine: &'a Engine,
    session: &'a Session,
    dealings: &'a [(NodeIndex, Dealing)],
}

impl Batch<'_> {
    /// For each candidate the first check it fails, if any.
    fn find_failed_checks(
        &self,
        candidates: &[usize],
        rng: &mut (impl RngCore + CryptoRng),
    ) -> Vec<Option<Check>> {
        let seeds: Vec<_> = candidates
            .iter()
            .map(|_| (crate::oracle::seeded(rng), crate::oracle::seeded(rng)))
            .collect();
        let (members, folded): (Vec<bool>, Vec<Option<FoldedEquations>>) = self.engine.run(|| {
            candidates
                .par_iter()
                .zip(seeds)
                .map(|(index, (mut of_members, mut of_equations))| {
                    self.engine.yield_if_configured();
                    let all = [Check::Integrity, Check::Chunking, Check::Sharing];
                    rayon::join(
                        || self.is_member(*index, &mut of_members),
                        || self.fold(*index, &all, &mut of_equations),
                    )
                })
                .unzip()
        });
        let mut verdicts: Vec<Option<Check>> = members
            .into_iter()
            .zip(candidates)
            .map(|(member, index)| match (member, self.is_old_share(*index)) {
                (false, _) => Some(Check::Membership),
                (true, false) => Some(Check::OldShare),
                (true, true) => None,
            })
            .collect();
        // Equations are meaningful for points of the group only: those of a dealing with others are
        // not checked.
        let sound: Vec<usize> =
            (0..candidates.len()).filter(|place| verdicts[*place].is_none()).collect();
        let folded: Vec<_> = sound.iter().map(|place| folded[*place].as_ref()).collect();
        for place in self.find_failing_dealings(&(0..sound.len()).collect::<Vec<_>>(), &folded) {
            verdicts[sound[place]] = Some(self.find_failed_check(candidates[sound[place]], rng));
        }
        verdicts
    }

    /// Places whose equations do not hold, found by halving.
    fn find_failing_dealings(
        &self,
        places: &[usize],
        folded: &[Option<&FoldedEquations>],
    ) -> Vec<usize> {
        let all: Option<Vec<&FoldedEquations>> =
            places.iter().map(|place| folded[*place]).collect();
        let keys = self.session.keys();
        if all.is_some_and(|all| fold::holds(self.engine, &keys, self.session.epoch(), all)) {
            return Vec::new();
        }
        if places.len() <= 1 {
            return places.to_vec();
        }
        let (left, right) = places.split_at(places.len() / 2);
        let mut failing = self.find_failing_dealings(left, folded);
        failing.extend(self.find_failing_dealings(right, folded));
        failing
    }

    /// Which check a culprit fails.
    fn find_failed_check(&self, index: usize, rng: &mut (impl RngCore + CryptoRng)) -> Check {
        let keys = self.session.keys();
        [Check::Integrity, Check::Chunking]
            .into_iter()
            .find(|check| {
                let folded = self.fold(index, &[*check], rng);
                !folded.is_some_and(|folded| {
                    fold::holds(self.engine, &keys, self.session.epoch(), [&folded])
                })
            })
            .unwrap_or(Check::Sharing)
    }

    /// Whether all points are in the group.
    fn is_member(&self, index: usize, rng: &mut (impl RngCore + Send)) -> bool {
        let dealing = &self.dealings[index].1;
        let points: Vec<_> = dealing.g1_points().copied().collect();
        let of_g2: Vec<_> = dealing.g2_points().collect();
        let (in_g1, in_g2) = rayon::join(
            || subgroup::all_in_group(&points, rng),
            || of_g2.par_iter().all(|point| point.in_group()),
        );
        in_g1 && in_g2
    }

    fn is_old_share(&self, index: usize) -> bool {
        let (dealer, dealing) = &self.dealings[index];
        match self.session.source() {
            Source::Fresh { .. } => true,
            Source::Reshare(committee) => {
                let own = dealing.coefficients.first().map(|constant| constant.to_compressed());
                committee.shares.get(dealer.0 as usize).map(PublicKey::as_bytes) == own.as_ref()
            }
        }
    }

    /// The equations of the named checks. `None` if an error is not in an equation.
    fn fold(
        &self,
        index: usize,
        checks: &[Check],
        rng: &mut impl RngCore,
    ) -> Option<FoldedEquations> {
        let (dealer, dealing) = &self.dealings[index];
        let ciphertext = &dealing.ciphertext;
        let context = self.session.context(*dealer);
        let instance = instance(&context, &dealing.coefficients, ciphertext);
        let mut folded = FoldedEquations::new(ciphertext.rows.len());
        let mut chunk_scalars = vec![[Scalar::zero(); CHUNKS]; ciphertext.rows.len()];
        if checks.contains(&Check::Integrity) {
            let hash = ciphertext.hash(&context);
            for chunk in 0..CHUNKS {
                let weight = weight(rng);
                folded.with_identity.push(ciphertext.r[chunk], weight);
                folded.with_hash.push(ciphertext.r[chunk], weight.mul(&hash));
                folded.with_h.push(ciphertext.s[chunk], weight);
                folded.own_g2.push(ciphertext.z[chunk], weight);
            }
        }
        if checks.contains(&Check::Chunking)
            && !dealing.chunking.fold(&instance, ciphertext, &mut folded, &mut chunk_scalars, rng)
        {
            return None;
        }
        if checks.contains(&Check::Sharing) {
            let coefficients = &dealing.coefficients;
            dealing.sharing.fold(
                &instance,
                coefficients,
                ciphertext,
                &mut folded,
                &mut chunk_scalars,
                rng,
            );
        }
        let chunks = ciphertext.rows.iter().zip(chunk_scalars);
        chunks.flat_map(|(row, scalars)| row.iter().copied().zip(scalars)).for_each(
            |(point, scalar)| {
                folded.own.push(point, scalar);
            },
        );
        Some(folded)
    }
}
