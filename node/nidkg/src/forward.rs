//! Forward-secure encryption keys: a binary tree whose leaves are epochs (paper, section 5; the
//! hierarchy of Boneh, Boyen and Goh).
//!
//! A secret key for a node of the tree opens everything encrypted to the leaves under it, and makes
//! keys for its children, never for its parent. The key stored at epoch `e` is the smallest set of
//! nodes that covers the leaves from `e` on: at most one per level. Moving on derives the new
//! cover, each node with fresh randomness, and drops the old one; the remaining keys open no
//! earlier epoch.
//!
//! The node at path `t` holds, for an unknown `r`, `a = g1^r`, `b = g2^x * F(t)^r`, and `f_i^r` for
//! every level below it, with `F(t) = f_0 * product of f_i^{t_i}`. Below the leaves is one more
//! level whose "bit" is a whole scalar, the hash of a ciphertext: see [`crate::cipher`]. Without
//! fresh randomness per node two nodes of a cover would reveal their parent: the deeper one's level
//! points divide the path back out of `b`.

use std::fmt;

use rand::{CryptoRng, RngCore};
use sha2::{Digest, Sha256};
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use crate::{
    curve::{G1, G1Affine, G2, G2Affine, Scalar, pairing_product_is_one},
    encoding::{DecodeError, Kind, Reader, Writer},
    fold::weight,
    oracle::Oracle,
    parameters::{LEVELS, Parameters},
};

/// A period of time, a leaf of the tree: ciphertexts of it can be opened until the key moves past
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

/// A node's encryption key with the proof that its owner knows the secret (so that no key can be
/// made to depend on another's).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EncryptionPublicKey {
    pub(crate) y: G1Affine,
    proof: Possession,
}

/// Schnorr proof of equal logarithms of `y` to `g1` and of `image` to a point hashed from `y`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Possession {
    image: G1Affine,
    challenge: Scalar,
    response: Scalar,
}

/// A node's secret key at some epoch. Wiped when dropped, never printed.
pub struct EncryptionSecretKey {
    epoch: Epoch,
    /// The cover of all leaves from `epoch` on, by rising first leaf.
    nodes: Vec<NodeKey>,
}

/// The secret of one node of the tree.
struct NodeKey {
    /// Levels above this node.
    depth: usize,
    /// The path, in the high `depth` bits: also the first leaf under the node.
    path: u32,
    a: G1Affine,
    b: G2Affine,
    /// For levels `depth + 1 ..= 32`.
    levels: Vec<G2Affine>,
    /// For the level of the ciphertext's hash.
    hash: G2Affine,
    /// `h^r`, with the `r` of `a`.
    e: G2Affine,
}

impl Drop for NodeKey {
    fn drop(&mut self) {
        self.a.zeroize();
        self.b.zeroize();
        self.levels.zeroize();
        self.hash.zeroize();
        self.e.zeroize();
    }
}

/// Why a key was refused or could not be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum KeyError {
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("the proof of possession does not hold for this key and this owner")]
    Possession,
    #[error("the key has moved on to epoch {current}: epoch {asked} cannot be opened any more")]
    Past { asked: u32, current: u32 },
    #[error("the stored key does not fit its public key")]
    Mismatch,
}

impl fmt::Debug for EncryptionPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.y.to_compressed().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for EncryptionSecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptionSecretKey").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// Makes a key pair. `owner` is bound into the proof of possession: a verifier of the key must
/// state its owner.
pub fn generate_key_pair(
    owner: &[u8],
    rng: &mut (impl RngCore + CryptoRng),
) -> (EncryptionPublicKey, EncryptionSecretKey) {
    let parameters = Parameters::get();
    let x = Scalar::random(rng);
    let y = parameters.g1_table.mul(&x).to_affine();

    let base = Possession::base(&y, owner);
    let nonce = Scalar::random(rng);
    let image = base.mul(&x).to_affine();
    let commitments = [parameters.g1_table.mul(&nonce).to_affine(), base.mul(&nonce).to_affine()];
    let challenge = Possession::challenge(&y, owner, &image, &commitments);
    let response = nonce.add(&challenge.mul(&x));

    let root = NodeKey {
        depth: 0,
        path: 0,
        a: G1Affine::default(),
        b: parameters.g2_table.mul(&x).to_affine(),
        levels: vec![G2Affine::default(); LEVELS],
        hash: G2Affine::default(),
        e: G2Affine::default(),
    };
    // The root without randomness is `g2^x` alone. The cover of epoch 0 goes down to its leaf at
    // once, and the root is dropped: updates then only ever descend into what they move
    // through.
    let mut nodes = vec![root.derive(LEVELS, 0, rng)];
    nodes.extend((1..=LEVELS).rev().map(|depth| root.derive(depth, 1 << (LEVELS - depth), rng)));
    let public = EncryptionPublicKey { y, proof: Possession { image, challenge, response } };
    (public, EncryptionSecretKey { epoch: Epoch(0), nodes })
}

impl Possession {
    fn base(y: &G1Affine, owner: &[u8]) -> G1 {
        let message =
            Oracle::new("nidkg-v1-possession-base").g1("y", &[*y]).bytes("owner", owner).digest();
        G1::hash(&message, b"THIMBLE-NIDKG-V1-POSSESSION_BLS12381G1_XMD:SHA-256_SSWU_RO_")
    }

    fn challenge(
        y: &G1Affine,
        owner: &[u8],
        image: &G1Affine,
        commitments: &[G1Affine; 2],
    ) -> Scalar {
        Oracle::new("nidkg-v1-possession-challenge")
            .g1("y", &[*y])
            .bytes("owner", owner)
            .g1("image", &[*image])
            .g1("commitments", commitments)
            .scalar()
    }
}

impl EncryptionPublicKey {
    /// Bytes of the encoding.
    pub const LENGTH: usize = 2 + 2 * G1Affine::COMPRESSED + 64;

    /// Key, image, challenge, response.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(Kind::EncryptionPublicKey, Self::LENGTH);
        writer.bytes(&self.y.to_compressed());
        writer.bytes(&self.proof.image.to_compressed());
        writer.scalar(&self.proof.challenge);
        writer.scalar(&self.proof.response);
        writer.finish()
    }

    /// Decodes and checks the proof of possession for `owner`.
    pub fn from_bytes(bytes: &[u8], owner: &[u8]) -> Result<Self, KeyError> {
        let mut reader = Reader::new(Kind::EncryptionPublicKey, bytes)?;
        let mut point = |what| {
            let bytes = reader.array(what)?;
            G1Affine::from_compressed(&bytes).ok_or(DecodeError::NotAPoint { what })
        };
        let (y, image) =
            (point("the encryption key")?, point("the image in the proof of possession")?);
        let challenge = reader.scalar("the challenge of the proof of possession")?;
        let response = reader.scalar("the response of the proof of possession")?;
        reader.finish()?;
        let key = Self { y, proof: Possession { image, challenge, response } };
        key.verify(owner)?;
        Ok(key)
    }

    /// Checks the proof of possession.
    pub fn verify(&self, owner: &[u8]) -> Result<(), KeyError> {
        let Possession { image, challenge, response } = self.proof;
        let base = Possession::base(&self.y, owner).to_affine();
        let scalars = [response, challenge.neg()];
        let commitments = [
            G1::msm(&[G1Affine::generator(), self.y], &scalars).to_affine(),
            G1::msm(&[base, image], &scalars).to_affine(),
        ];
        let again = Possession::challenge(&self.y, owner, &image, &commitments);
        if again == challenge { Ok(()) } else { Err(KeyError::Possession) }
    }
}

impl NodeKey {
    /// First leaf after those under this node, as a 33-bit number.
    fn end(&self) -> u64 {
        u64::from(self.path) + (1 << (LEVELS - self.depth))
    }

    /// Key of a descendant (or of the node itself), with fresh randomness.
    fn derive(&self, depth: usize, path: u32, rng: &mut (impl RngCore + CryptoRng)) -> Self {
        let parameters = Parameters::get();
        let fresh = Scalar::random(rng);
        let bit = |level: usize| path >> (LEVELS - level) & 1 == 1;
        let mut b = self.b.to_point();
        for level in self.depth + 1..=depth {
            if bit(level) {
                b = b.add_affine(&self.levels[level - self.depth - 1]);
            }
        }
        let add = |own: &G2Affine, base: &G2| base.mul(&fresh).add_affine(own);
        let rest = |level: usize| {
            add(&self.levels[level - self.depth - 1], &parameters.f[level - 1].to_point())
        };
        let mut points = Zeroizing::new(vec![
            b.add(&identity_of(depth, path).mul(&fresh)),
            add(&self.hash, &parameters.f_hash.to_point()),
            parameters.h_table.mul(&fresh).add_affine(&self.e),
        ]);
        points.extend((depth + 1..=LEVELS).map(rest));
        let affine = Zeroizing::new(G2::all_to_affine(&points));
        Self {
            depth,
            path,
            a: parameters.g1_table.mul(&fresh).add_affine(&self.a).to_affine(),
            b: affine[0],
            hash: affine[1],
            e: affine[2],
            levels: affine[3..].to_vec(),
        }
    }
}

/// `F(t)` of a node: public.
pub(crate) fn identity_of(depth: usize, path: u32) -> G2 {
    let parameters = Parameters::get();
    (1..=depth)
        .filter(|level| path >> (LEVELS - level) & 1 == 1)
        .fold(parameters.f0.to_point(), |sum, level| sum.add_affine(&parameters.f[level - 1]))
}

/// Decryption key of one epoch. Wiped when dropped.
pub(crate) struct EpochKey {
    pub(crate) a: G1Affine,
    pub(crate) b: G2Affine,
    pub(crate) hash: G2Affine,
    pub(crate) e: G2Affine,
}

impl Drop for EpochKey {
    fn drop(&mut self) {
        self.a.zeroize();
        self.b.zeroize();
        self.hash.zeroize();
        self.e.zeroize();
    }
}

impl EncryptionSecretKey {
    /// The earliest epoch this key opens.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Moves to `epoch`; from then on no earlier epoch can be opened with this key. Going back is
    /// refused.
    ///
    /// The caller overwrites the stored encoding: forward security is that of the medium's erasure.
    pub fn update_to(
        &mut self,
        epoch: Epoch,
        rng: &mut (impl RngCore + CryptoRng),
    ) -> Result<(), KeyError> {
        if epoch < self.epoch {
            return Err(KeyError::Past { asked: epoch.0, current: self.epoch.0 });
        }
        if epoch == self.epoch {
            return Ok(());
        }
        self.nodes.retain(|node| node.end() > u64::from(epoch.0));
        // The first node left covers the epoch. If it starts before it, it is replaced: by the
        // right siblings along the path to the leaf, and the leaf itself, unless a whole
        // subtree starts at the epoch, which is the case as soon as all lower bits are zero.
        if self.nodes[0].path < epoch.0 {
            let top = self.nodes.remove(0);
            let last = LEVELS - epoch.0.trailing_zeros() as usize;
            let mut cover = vec![top.derive(last, epoch.0, rng)];
            for depth in (top.depth + 1..=last).rev() {
                let step = 1u32 << (LEVELS - depth);
                if epoch.0 & step == 0 {
                    let sibling = (epoch.0 & !(step - 1)) | step;
                    cover.push(top.derive(depth, sibling, rng));
                }
            }
            cover.append(&mut self.nodes);
            self.nodes = cover;
        }
        self.epoch = epoch;
        Ok(())
    }

    /// Decryption key of `epoch`. Made for immediate use, so it needs no fresh randomness.
    pub(crate) fn for_epoch(&self, epoch: Epoch) -> Result<EpochKey, KeyError> {
        let past = KeyError::Past { asked: epoch.0, current: self.epoch.0 };
        if epoch < self.epoch {
            return Err(past);
        }
        let node = self.nodes.iter().find(|node| u64::from(epoch.0) < node.end()).ok_or(past)?;
        let b = (node.depth + 1..=LEVELS)
            .filter(|level| epoch.0 >> (LEVELS - level) & 1 == 1)
            .fold(node.b.to_point(), |sum, level| {
                sum.add_affine(&node.levels[level - node.depth - 1])
            });
        Ok(EpochKey { a: node.a, b: b.to_affine(), hash: node.hash, e: node.e })
    }

    /// Points stay uncompressed and a checksum stands for their validity: decoding does little
    /// arithmetic. The caller keeps the bytes secret.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let points: usize = self.nodes.iter().map(|node| node.levels.len() + 3).sum();
        let capacity = 8
            + self.nodes.len() * (5 + G1Affine::UNCOMPRESSED)
            + points * G2Affine::UNCOMPRESSED
            + 32;
        let mut writer = Writer::new(Kind::EncryptionSecretKey, capacity);
        writer.u32(self.epoch.0);
        writer.u32(self.nodes.len() as u32);
        for node in &self.nodes {
            writer.u32(node.depth as u32);
            writer.u32(node.path);
            writer.g1_raw(&[node.a]);
            writer.g2_raw(&[node.b, node.hash, node.e]);
            writer.g2_raw(&node.levels);
        }
        let checksum = checksum(writer.as_slice());
        writer.bytes(&checksum);
        Zeroizing::new(writer.finish())
    }

    /// Reads the output of [`Self::to_bytes`]. The bytes are the owner's own: the checksum finds
    /// damage, not forgery; [`Self::check`] finds both.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let what = "the encryption key";
        let body = bytes.len().checked_sub(32).ok_or(DecodeError::Truncated {
            what,
            have: bytes.len(),
            need: 32usize.saturating_sub(bytes.len()),
        })?;
        let (body, sum) = bytes.split_at(body);
        let mut reader = Reader::new(Kind::EncryptionSecretKey, body)?;
        if checksum(body) != sum {
            return Err(DecodeError::Checksum { what }.into());
        }
        let epoch = Epoch(reader.u32_within("the epoch", 0, u32::MAX)?);
        let count = reader.u32_within("the number of nodes", 1, LEVELS as u32 + 1)?;
        let mut nodes: Vec<NodeKey> = Vec::with_capacity(count as usize);
        let mut next = u64::from(epoch.0);
        for _ in 0..count {
            let depth = reader.u32_within("the depth of a node", 0, LEVELS as u32)? as usize;
            let path = reader.u32_within("the path of a node", 0, u32::MAX)?;
            // Nodes follow each other without gaps from the epoch to the last leaf: that is what a
            // cover is.
            if u64::from(path) != next || next & ((1 << (LEVELS - depth)) - 1) != 0 {
                return Err(KeyError::Mismatch);
            }
            let a = reader.g1_raw(1, what)?[0];
            let points = Zeroizing::new(reader.g2_raw(3 + LEVELS - depth, what)?);
            let node = NodeKey {
                depth,
                path,
                a,
                b: points[0],
                hash: points[1],
                e: points[2],
                levels: points[3..].to_vec(),
            };
            next = node.end();
            nodes.push(node);
        }
        reader.finish()?;
        if next != 1 << LEVELS {
            return Err(KeyError::Mismatch);
        }
        Ok(Self { epoch, nodes })
    }

    /// Whether every node belongs to `public`: for keys that come from a backup or another machine.
    ///
    /// Each point must satisfy `e(g1, point) = e(a, base)`, with `e(y, g2)` more for `b`; the
    /// equations are folded with weights hashed from the key.
    pub fn check(&self, public: &EncryptionPublicKey) -> Result<(), KeyError> {
        let parameters = Parameters::get();
        let mut weights = Oracle::new("nidkg-v1-key-check").bytes("key", &self.to_bytes()).stream();
        let (mut own, mut of_key) = (G2::identity(), Scalar::zero());
        let mut pairs = Vec::with_capacity(self.nodes.len() + 2);
        for node in &self.nodes {
            let points = Zeroizing::new([&[node.b, node.hash, node.e], &node.levels[..]].concat());
            if !node.a.in_group() || !points.iter().all(G2Affine::in_group) {
                return Err(KeyError::Mismatch);
            }
            let identity = identity_of(node.depth, node.path).to_affine();
            let bases = [&[identity, parameters.f_hash, parameters.h], &parameters.f[node.depth..]]
                .concat();
            let weights: Vec<_> = points.iter().map(|_| weight(&mut weights)).collect();
            of_key = of_key.add(&weights[0]);
            own = own.add(&G2::msm(&points, &weights));
            pairs.push((node.a, G2::msm(&bases, &weights).to_affine()));
        }
        pairs.push((public.y.to_point().mul(&of_key).to_affine(), G2Affine::generator()));
        pairs.push((G1Affine::generator().neg(), own.to_affine()));
        if pairing_product_is_one(&pairs) { Ok(()) } else { Err(KeyError::Mismatch) }
    }
}

fn checksum(body: &[u8]) -> [u8; 32] {
    Sha256::digest(body).into()
}
