//! Transcripts: the outcome of a key generation, and how a node gets its share from one.
//!
//! A transcript holds the new committee's public keys and the ciphertexts of the dealings it is
//! made of, compressed. A receiver decodes its own row and the randomizers of each ciphertext, and
//! hashes the bytes of all other rows: a changed byte anywhere changes the identity the ciphertext
//! was encrypted to, so that nothing can be decrypted. The result is checked against the public key
//! of the receiver's share.
//!
//! Nodes must agree on a transcript before they load it; this crate does not define how.

use rayon::prelude::*;
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use crate::{
    cipher::{Opener, ReceiverCiphertext, chunk_weights, ciphertext_hash, compressed_g1},
    curve::{G1Affine, G2, G2Affine, Scalar, lagrange_at_zero},
    dealing::VerifiedDealing,
    encoding::{DecodeError, Kind, Reader, Writer},
    engine::Engine,
    forward::{EncryptionSecretKey, KeyError},
    logarithm::{DIVISORS, solve_cheated},
    parameters::{CHUNK_BITS, CHUNKS, RECEIVERS_MAX},
    session::{Session, Source},
    threshold::{BlsError, Committee, NodeIndex, PublicKey, SecretShare},
};

/// Bytes of a compressed row.
const ROW: usize = CHUNKS * G1Affine::COMPRESSED;
/// Bytes of the part that all receivers of a ciphertext share.
const SHARED: usize = 2 * ROW + CHUNKS * G2Affine::COMPRESSED;

/// The outcome of a key generation.
#[derive(Clone, PartialEq, Eq)]
pub struct Transcript {
    session: [u8; 32],
    committee: Committee,
    ciphertexts: Vec<CiphertextBytes>,
}

/// A ciphertext as bytes.
#[derive(Clone, PartialEq, Eq)]
struct CiphertextBytes {
    dealer: NodeIndex,
    /// `R`, `S`, `Z`, then one row per receiver.
    bytes: Vec<u8>,
}

/// Why there is no transcript or no share.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum TranscriptError {
    #[error("{have} dealings of the {need} needed")]
    TooFewDealings {
        have: usize,
        /// Dealings needed, [`Session::dealings_needed`].
        need: u32,
    },
    #[error("two dealings of dealer {}", .0.0)]
    TwiceDealt(NodeIndex),
    #[error("{0} belongs to another session")]
    OtherSession(String),
    /// The sum of the dealt keys is an invalid key. With an honest dealer among them that does not
    /// happen.
    #[error("the dealings cancel out: {0}")]
    NoKey(BlsError),
    #[error("the reshared key is not the old one: the old committee does not fit together")]
    KeyChanged,
    /// The bytes of a ciphertext are refused.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The receiver's key.
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("receiver {} is not one of the {receivers} of the transcript", index.0)]
    UnknownReceiver {
        /// The index that was given, not below `receivers`.
        index: NodeIndex,
        receivers: usize,
    },
    /// A chunk is not where a verified dealing has it.
    #[error(
        "chunk {chunk} of dealer {} cannot be opened: the transcript is damaged, or was not made of verified dealings", dealer.0
    )]
    Unopened {
        dealer: NodeIndex,
        /// Number of the chunk in the share, from 0 for the lowest.
        chunk: usize,
    },
    #[error("the opened share of receiver {} does not fit its public key", .0.0)]
    WrongShare(NodeIndex),
}

/// Makes the transcript from as many of the dealings as are needed, in the order of dealers: every
/// node that has the same dealings has the same transcript.
pub fn create_transcript(
    engine: &Engine,
    session: &Session,
    dealings: &[VerifiedDealing],
) -> Result<Transcript, TranscriptError> {
    transcript(engine, session, dealings, session.dealings_needed() as usize)
}

/// The same from all dealings: more bytes, and the key is secret as long as a single dealer of all
/// was honest.
pub fn create_transcript_from_all(
    engine: &Engine,
    session: &Session,
    dealings: &[VerifiedDealing],
) -> Result<Transcript, TranscriptError> {
    transcript(engine, session, dealings, dealings.len())
}

fn transcript(
    engine: &Engine,
    session: &Session,
    dealings: &[VerifiedDealing],
    count: usize,
) -> Result<Transcript, TranscriptError> {
    let mut used: Vec<_> = dealings.iter().collect();
    used.sort_by_key(|dealing| dealing.dealer);
    if let Some(pair) = used.windows(2).find(|pair| pair[0].dealer == pair[1].dealer) {
        return Err(TranscriptError::TwiceDealt(pair[0].dealer));
    }
    if let Some(other) = used.iter().find(|dealing| dealing.session != session.digest) {
        return Err(TranscriptError::OtherSession(format!(
            "the dealing of dealer {}",
            other.dealer.0
        )));
    }
    let need = session.dealings_needed();
    if used.len() < need as usize {
        return Err(TranscriptError::TooFewDealings { have: used.len(), need });
    }
    used.truncate(count);

    let weights = weights(session, &used.iter().map(|dealing| dealing.dealer).collect::<Vec<_>>());
    let committee = engine.run(|| {
        let coefficients: Vec<G2> = (0..session.threshold() as usize)
            .into_par_iter()
            .map(|index| {
                engine.yield_if_configured();
                let points: Vec<_> =
                    used.iter().map(|dealing| dealing.dealing.coefficients[index]).collect();
                match &weights {
                    None => points.iter().fold(G2::identity(), |sum, point| sum.add_affine(point)),
                    Some(weights) => G2::msm(&points, weights),
                }
            })
            .collect();
        // Horner's rule with small places: each step costs a few doublings.
        let shares: Vec<G2> = (1..=session.receivers().len() as u64)
            .into_par_iter()
            .map(|place| {
                engine.yield_if_configured();
                coefficients.iter().rev().fold(G2::identity(), |sum, coefficient| {
                    sum.mul_public_u64(place).add(coefficient)
                })
            })
            .collect();
        let key =
            |point: &G2| PublicKey::from_point(point.to_affine()).map_err(TranscriptError::NoKey);
        Ok::<_, TranscriptError>(Committee {
            public_key: key(&coefficients[0])?,
            threshold: session.threshold(),
            shares: shares.iter().map(key).collect::<Result<_, _>>()?,
        })
    })?;
    if let Source::Reshare(old) = session.source()
        && old.public_key != committee.public_key
    {
        return Err(TranscriptError::KeyChanged);
    }
    let ciphertexts =
        engine.run(|| used.par_iter().map(|dealing| CiphertextBytes::new(dealing)).collect());
    Ok(Transcript { session: session.digest, committee, ciphertexts })
}

/// Weights of the dealings: none for a plain sum.
fn weights(session: &Session, dealers: &[NodeIndex]) -> Option<Vec<Scalar>> {
    matches!(session.source(), Source::Reshare(_)).then(|| {
        lagrange_at_zero(&dealers.iter().map(|dealer| u64::from(dealer.0) + 1).collect::<Vec<_>>())
    })
}

impl CiphertextBytes {
    fn new(dealing: &VerifiedDealing) -> Self {
        let ciphertext = &dealing.dealing.ciphertext;
        let mut bytes = Vec::with_capacity(SHARED + ciphertext.rows.len() * ROW);
        bytes.extend(compressed_g1(&ciphertext.r));
        bytes.extend(compressed_g1(&ciphertext.s));
        ciphertext.z.iter().for_each(|point| bytes.extend(point.to_compressed()));
        ciphertext.rows.iter().for_each(|row| bytes.extend(compressed_g1(row)));
        Self { dealer: dealing.dealer, bytes }
    }

    /// The part that `receiver` needs. Verification established membership in the group; the
    /// pairing ignores only inputs that verification would have refused.
    fn for_receiver(
        &self,
        session: &Session,
        receiver: NodeIndex,
    ) -> Result<ReceiverCiphertext, TranscriptError> {
        let (shared, rows) = self.bytes.split_at(SHARED);
        let (r, rest) = shared.split_at(ROW);
        let (s, z) = rest.split_at(ROW);
        let own = &rows[receiver.0 as usize * ROW..][..ROW];
        let hash = ciphertext_hash(&session.context(self.dealer), r, s, rows.chunks_exact(ROW));
        let points = |bytes: &[u8], what| {
            let mut row = [G1Affine::default(); CHUNKS];
            for (point, bytes) in row.iter_mut().zip(bytes.as_chunks().0) {
                *point = G1Affine::from_compressed_on_curve(bytes)
                    .ok_or(DecodeError::NotAPoint { what })?;
            }
            Ok::<_, DecodeError>(row)
        };
        let mut of_g2 = [G2Affine::default(); CHUNKS];
        for (point, bytes) in of_g2.iter_mut().zip(z.as_chunks().0) {
            let what = "a randomizer Z";
            *point =
                G2Affine::from_compressed_on_curve(bytes).ok_or(DecodeError::NotAPoint { what })?;
        }
        Ok(ReceiverCiphertext {
            row: points(own, "a chunk")?,
            r: points(r, "a randomizer R")?,
            s: points(s, "a randomizer S")?,
            z: of_g2,
            hash,
        })
    }
}

impl Transcript {
    /// The new committee: the subnet's public key, the threshold, the public key of each share.
    pub fn committee(&self) -> &Committee {
        &self.committee
    }

    /// Dealers of its dealings.
    pub fn dealers(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        self.ciphertexts.iter().map(|ciphertext| ciphertext.dealer)
    }

    /// Points are compressed: 48 bytes in G1, 96 in G2.
    pub fn to_bytes(&self) -> Vec<u8> {
        let ciphertexts: usize =
            self.ciphertexts.iter().map(|ciphertext| ciphertext.bytes.len() + 4).sum();
        let mut writer =
            Writer::new(Kind::Transcript, 200 + self.committee.shares.len() * 96 + ciphertexts);
        writer.bytes(&self.session);
        writer.u32(self.committee.shares.len() as u32);
        writer.u32(self.committee.threshold);
        writer.bytes(self.committee.public_key.as_bytes());
        self.committee.shares.iter().for_each(|share| writer.bytes(share.as_bytes()));
        writer.u32(self.ciphertexts.len() as u32);
        for ciphertext in &self.ciphertexts {
            writer.u32(ciphertext.dealer.0);
            writer.bytes(&ciphertext.bytes);
        }
        writer.finish()
    }

    /// Whether it is the outcome of this session.
    pub fn matches_session(&self, session: &Session) -> bool {
        self.session == session.digest && self.committee.shares.len() == session.receivers().len()
    }

    /// Checks the public keys and all lengths; ciphertexts stay bytes until their receiver opens
    /// them.
    pub fn from_bytes(engine: &Engine, bytes: &[u8]) -> Result<Self, DecodeError> {
        let partial = PartialTranscript::read(bytes)?;
        let keys = engine.run(|| partial.keys.par_iter().map(key).collect::<Result<_, _>>())?;
        Ok(partial.with(keys))
    }

    /// The same on the thread that calls, for callers without an engine: a tenth of a millisecond
    /// for each receiver.
    pub fn from_bytes_here(bytes: &[u8]) -> Result<Self, DecodeError> {
        let partial = PartialTranscript::read(bytes)?;
        let keys = partial.keys.iter().map(key).collect::<Result<_, _>>()?;
        Ok(partial.with(keys))
    }

    /// Opens the share of `receiver` and checks it against its public key.
    pub fn load(
        &self,
        engine: &Engine,
        session: &Session,
        receiver: NodeIndex,
        key: &EncryptionSecretKey,
    ) -> Result<SecretShare, TranscriptError> {
        if self.session != session.digest {
            return Err(TranscriptError::OtherSession("the transcript".to_owned()));
        }
        let receivers = session.receivers().len();
        if receiver.0 as usize >= receivers || self.committee.shares.len() != receivers {
            return Err(TranscriptError::UnknownReceiver { index: receiver, receivers });
        }
        let epoch_key = key.for_epoch(session.epoch())?;
        let opener = Opener::new(&epoch_key);
        let received: Vec<ReceiverCiphertext> = engine.run(|| {
            self.ciphertexts
                .par_iter()
                .map(|ciphertext| {
                    engine.yield_if_configured();
                    ciphertext.for_receiver(session, receiver)
                })
                .collect::<Result<_, _>>()
        })?;
        let dealers: Vec<_> = self.dealers().collect();
        let share = match weights(session, &dealers) {
            // Chunks of all dealings are opened as one sum; only if one of them is not small each
            // is opened by itself.
            None => match self.open_sum(engine, &opener, &received) {
                Some(share) => share,
                None => self.open_each(engine, &opener, &received, None)?,
            },
            Some(weights) => self.open_each(engine, &opener, &received, Some(&weights))?,
        };
        let share = SecretShare::from_scalar(receiver, &share);
        let share = share.map_err(|_| TranscriptError::WrongShare(receiver))?;
        if share.public_key() != self.committee.shares[receiver.0 as usize] {
            return Err(TranscriptError::WrongShare(receiver));
        }
        Ok(share)
    }

    fn open_sum(
        &self,
        engine: &Engine,
        opener: &Opener<'_>,
        received: &[ReceiverCiphertext],
    ) -> Option<Zeroizing<Scalar>> {
        let all: Vec<_> = received.iter().collect();
        let high = received.len() as i64 * ((1 << CHUNK_BITS) - 1);
        let table = engine.logarithms();
        let chunks: Option<Vec<Scalar>> = engine.run(|| {
            (0..CHUNKS)
                .into_par_iter()
                .map(|chunk| {
                    engine.yield_if_configured();
                    table.solve(&opener.open_sum(&all, chunk), 0, high).map(Scalar::from_i64)
                })
                .collect()
        });
        chunks.map(assemble)
    }

    /// Opens every chunk of every dealing, with a search for those that are not honest.
    fn open_each(
        &self,
        engine: &Engine,
        opener: &Opener<'_>,
        received: &[ReceiverCiphertext],
        weights: Option<&[Scalar]>,
    ) -> Result<Zeroizing<Scalar>, TranscriptError> {
        let table = engine.logarithms();
        let places: Vec<(usize, usize)> = (0..received.len())
            .flat_map(|dealing| (0..CHUNKS).map(move |chunk| (dealing, chunk)))
            .collect();
        let opened: Vec<_> = engine.run(|| {
            places
                .par_iter()
                .map(|(dealing, chunk)| {
                    engine.yield_if_configured();
                    let element = opener.open_sum(&[&received[*dealing]], *chunk);
                    table
                        .solve(&element, 0, (1 << CHUNK_BITS) - 1)
                        .map(Scalar::from_i64)
                        .ok_or_else(|| Box::new(element))
                })
                .collect()
        });
        let mut chunks = Zeroizing::new(Vec::with_capacity(opened.len()));
        for ((dealing, chunk), opened) in places.into_iter().zip(opened) {
            let receivers = self.committee.shares.len();
            let unopened =
                TranscriptError::Unopened { dealer: self.ciphertexts[dealing].dealer, chunk };
            chunks.push(match opened {
                Ok(scalar) => scalar,
                Err(element) => {
                    solve_cheated(engine, &element, receivers, DIVISORS).ok_or(unopened)?
                }
            });
        }
        let one = Scalar::one();
        let sum = chunks.as_chunks::<CHUNKS>().0.iter().enumerate().fold(
            Scalar::zero(),
            |sum, (dealing, chunks)| {
                let weight = weights.map_or(&one, |weights| &weights[dealing]);
                sum.add(&weight.mul(&assemble(chunks.to_vec())))
            },
        );
        Ok(Zeroizing::new(sum))
    }
}

/// A transcript whose public keys are still bytes.
struct PartialTranscript<'a> {
    session: [u8; 32],
    threshold: u32,
    /// The subnet's, then those of the shares.
    keys: &'a [[u8; G2Affine::COMPRESSED]],
    ciphertexts: Vec<CiphertextBytes>,
}

fn key(bytes: &[u8; G2Affine::COMPRESSED]) -> Result<PublicKey, DecodeError> {
    PublicKey::from_bytes(bytes).map_err(|_| DecodeError::NotAPoint { what: "a public key" })
}

impl<'a> PartialTranscript<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(Kind::Transcript, bytes)?;
        let session = reader.array("the session")?;
        let receivers = reader.u32_within("the number of receivers", 1, RECEIVERS_MAX)?;
        let threshold = reader.u32_within("the threshold", 1, receivers)?;
        let keys = reader
            .take((1 + receivers as usize) * G2Affine::COMPRESSED, "a public key")?
            .as_chunks()
            .0;
        let count = reader.u32_within("the number of dealings", 1, RECEIVERS_MAX)?;
        let mut ciphertexts: Vec<CiphertextBytes> = Vec::with_capacity(count as usize);
        let mut lowest = 0;
        for _ in 0..count {
            // Rising: one set of dealings has one encoding.
            let dealer = reader.u32_within("the index of a dealer", lowest, RECEIVERS_MAX - 1)?;
            lowest = dealer + 1;
            let bytes = reader.take(SHARED + receivers as usize * ROW, "a ciphertext")?.to_vec();
            ciphertexts.push(CiphertextBytes { dealer: NodeIndex(dealer), bytes });
        }
        reader.finish()?;
        Ok(Self { session, threshold, keys, ciphertexts })
    }

    fn with(self, mut keys: Vec<PublicKey>) -> Transcript {
        // The first is the subnet's: there are as many as receivers, and one.
        let public_key = keys.remove(0);
        let committee = Committee { public_key, threshold: self.threshold, shares: keys };
        Transcript { session: self.session, committee, ciphertexts: self.ciphertexts }
    }
}

/// The share that these chunks make.
fn assemble(mut chunks: Vec<Scalar>) -> Zeroizing<Scalar> {
    let weighted = chunks.iter().zip(chunk_weights());
    let share = weighted.fold(Scalar::zero(), |sum, (chunk, weight)| sum.add(&chunk.mul(&weight)));
    chunks.zeroize();
    Zeroizing::new(share)
}

#[cfg(test)]
impl Transcript {
    /// For each dealing, whether its first chunk opens to what an honest dealer may put there.
    pub(crate) fn opens_honestly(
        &self,
        engine: &Engine,
        session: &Session,
        receiver: NodeIndex,
        opener: &Opener<'_>,
    ) -> Vec<bool> {
        let one = |ciphertext: &CiphertextBytes| {
            let received = ciphertext.for_receiver(session, receiver)?;
            let element = opener.open_sum(&[&received], 0);
            Ok::<_, TranscriptError>(
                engine.logarithms().solve(&element, 0, (1 << CHUNK_BITS) - 1).is_some(),
            )
        };
        self.ciphertexts.iter().map(|ciphertext| one(ciphertext).unwrap_or(false)).collect()
    }
}
