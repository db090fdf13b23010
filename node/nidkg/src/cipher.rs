//! Chunked encryption to many receivers (paper, section 5): each share is cut into 16 chunks of 16
//! bits, chunk `j` of every receiver uses the same randomness `r_j`, and the whole is tied to one
//! epoch and to its context.
//!
//! `C_ij = y_i^{r_j} g1^{m_ij}`, `R_j = g1^{r_j}`, `S_j = g1^{s_j}`, `Z_j = F^{r_j} h^{s_j}`, where
//! `F = F(epoch) * f_hash^{H}` and `H` hashes everything but `Z` with the context: a ciphertext
//! that was changed, or moved to another session, dealer or epoch, fails the check `e(g1, Z_j) =
//! e(R_j, F) e(S_j, h)`. The paper writes `H` into 256 further levels; here it is one level with a
//! scalar identity, which docs/nidkg-security.md proves sound.

use rand::{CryptoRng, RngCore};
use rayon::prelude::*;
use zeroize::{Zeroize, Zeroizing};

use crate::{
    curve::{G1, G1Affine, G2, G2Affine, Gt, PreparedG2, Scalar, pairing_product},
    engine::{Base, Engine},
    forward::{Epoch, EpochKey, identity_of},
    oracle::Oracle,
    parameters::{CHUNK_BITS, CHUNKS, LEVELS, Parameters},
};

/// The chunks of one receiver.
pub(crate) type Row = [G1Affine; CHUNKS];

/// A whole ciphertext.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Ciphertext {
    pub(crate) rows: Vec<Row>,
    pub(crate) r: Row,
    pub(crate) s: Row,
    pub(crate) z: [G2Affine; CHUNKS],
}

/// The dealer's secrets of a ciphertext, which the proofs need.
pub(crate) struct Witness {
    pub(crate) r: Zeroizing<Vec<Scalar>>,
    pub(crate) chunks: Zeroizing<Vec<[u32; CHUNKS]>>,
}

/// Lowest chunk first.
pub(crate) fn chunks_of(share: &Scalar) -> [u32; CHUNKS] {
    let mut limbs = share.to_limbs();
    let chunks =
        std::array::from_fn(|chunk| (limbs[chunk / 4] >> (chunk % 4 * CHUNK_BITS)) as u32 & 0xffff);
    limbs.zeroize();
    chunks
}

/// Place value `2^(16 j)` of every chunk `j` in a share.
pub(crate) fn chunk_weights() -> [Scalar; CHUNKS] {
    let base = Scalar::from_u64(1 << CHUNK_BITS);
    let powers = Scalar::powers(&base, CHUNKS);
    std::array::from_fn(|chunk| powers[chunk])
}

/// `H`: over the compressed points, so that it can be computed from a transcript without decoding
/// any.
pub(crate) fn ciphertext_hash<'a>(
    context: &[u8; 32],
    r: &[u8],
    s: &[u8],
    rows: impl Iterator<Item = &'a [u8]>,
) -> Scalar {
    let oracle =
        Oracle::new("nidkg-v1-ciphertext").bytes("context", context).bytes("r", r).bytes("s", s);
    rows.fold(oracle, |oracle, row| oracle.bytes("row", row)).scalar()
}

pub(crate) fn compressed_g1(points: &[G1Affine]) -> Vec<u8> {
    points.iter().flat_map(|point| point.to_compressed()).collect()
}

impl Ciphertext {
    pub(crate) fn hash(&self, context: &[u8; 32]) -> Scalar {
        let rows: Vec<_> = self.rows.iter().map(|row| compressed_g1(row)).collect();
        ciphertext_hash(
            context,
            &compressed_g1(&self.r),
            &compressed_g1(&self.s),
            rows.iter().map(Vec::as_slice),
        )
    }
}

/// `F`: the identity a ciphertext is encrypted to.
fn identity(epoch: Epoch, hash: &Scalar) -> G2 {
    identity_of(LEVELS, epoch.0).add(&Parameters::get().f_hash.to_point().mul(hash))
}

/// Random scalars that hide the chunks of one ciphertext.
pub(crate) struct Randomness {
    r: Zeroizing<Vec<Scalar>>,
    s: Zeroizing<Vec<Scalar>>,
}

impl Randomness {
    pub(crate) fn draw(rng: &mut (impl RngCore + CryptoRng)) -> Self {
        let mut draw = || Zeroizing::new((0..CHUNKS).map(|_| *Scalar::random(rng)).collect());
        Self { r: draw(), s: draw() }
    }
}

/// Encrypts chunks `i` to receiver `i`. Constant time in chunks and randomness.
pub(crate) fn encrypt(
    engine: &Engine,
    context: &[u8; 32],
    epoch: Epoch,
    receivers: &[Base],
    chunks: Zeroizing<Vec<[u32; CHUNKS]>>,
    Randomness { r, s }: Randomness,
) -> (Ciphertext, Witness) {
    let parameters = Parameters::get();
    engine.run(|| {
        let rows = || -> Vec<Row> {
            let each = receivers.par_iter().zip(chunks.par_iter());
            each.map(|(receiver, chunks)| {
                engine.yield_if_configured();
                let mut points = Zeroizing::new([G1::identity(); CHUNKS]);
                for ((point, r), chunk) in points.iter_mut().zip(r.iter()).zip(chunks) {
                    *point = receiver.mul(r).add(&parameters.g1_table.mul_u24(*chunk));
                }
                row_of(&G1::all_to_affine(&*points))
            })
            .collect()
        };
        let power = |scalars: &[Scalar]| {
            let points: Vec<_> =
                scalars.iter().map(|scalar| parameters.g1_table.mul(scalar)).collect();
            row_of(&G1::all_to_affine(&points))
        };
        let (rows, (of_r, of_s)) = rayon::join(rows, || rayon::join(|| power(&r), || power(&s)));
        let mut ciphertext =
            Ciphertext { rows, r: of_r, s: of_s, z: [G2Affine::default(); CHUNKS] };
        let identity = identity(epoch, &ciphertext.hash(context));
        let z: Vec<_> = (0..CHUNKS)
            .into_par_iter()
            .map(|chunk| identity.mul(&r[chunk]).add(&parameters.h_table.mul(&s[chunk])))
            .collect();
        ciphertext.z.copy_from_slice(&G2::all_to_affine(&z));
        (ciphertext, Witness { r, chunks })
    })
}

fn row_of(points: &[G1Affine]) -> Row {
    let mut row = [G1Affine::default(); CHUNKS];
    row.copy_from_slice(points);
    row
}

/// One receiver's part of one ciphertext: its own row, the shared points, and the hash.
pub(crate) struct ReceiverCiphertext {
    pub(crate) row: Row,
    pub(crate) r: Row,
    pub(crate) s: Row,
    pub(crate) z: [G2Affine; CHUNKS],
    pub(crate) hash: Scalar,
}

/// An epoch's key, with lines prepared for every pairing it takes part in.
pub(crate) struct Opener<'a> {
    key: &'a EpochKey,
    g2: PreparedG2,
    minus_b: PreparedG2,
    minus_hash: PreparedG2,
    minus_e: PreparedG2,
}

impl<'a> Opener<'a> {
    pub(crate) fn new(key: &'a EpochKey) -> Self {
        Self {
            key,
            g2: PreparedG2::new(&G2Affine::generator()),
            minus_b: PreparedG2::new(&key.b.neg()),
            minus_hash: PreparedG2::new(&key.hash.neg()),
            minus_e: PreparedG2::new(&key.e.neg()),
        }
    }

    /// `e(g1, g2)` to the sum over the ciphertexts of chunk `chunk`. The pairings of all
    /// ciphertexts share their second arguments, so they are five whatever their number.
    pub(crate) fn open_sum(&self, received: &[&ReceiverCiphertext], chunk: usize) -> Gt {
        let sum = |part: fn(&ReceiverCiphertext) -> &Row| {
            received
                .iter()
                .fold(G1::identity(), |sum, one| sum.add_affine(&part(one)[chunk]))
                .to_affine()
        };
        let r: Vec<_> = received.iter().map(|one| one.r[chunk]).collect();
        let hashes: Vec<_> = received.iter().map(|one| one.hash).collect();
        let z = received
            .iter()
            .fold(G2::identity(), |sum, one| sum.add_affine(&one.z[chunk]))
            .to_affine();
        pairing_product(
            &[
                (sum(|one| &one.row), &self.g2),
                (sum(|one| &one.r), &self.minus_b),
                (G1::msm(&r, &hashes).to_affine(), &self.minus_hash),
                (sum(|one| &one.s), &self.minus_e),
            ],
            &[(self.key.a, z)],
        )
    }
}
