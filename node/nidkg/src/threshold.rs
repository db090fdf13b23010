//! Shares, signatures and their combination.
//!
//! Share `i` is the value at `i + 1` of a polynomial of degree `t - 1` whose value at 0 is the key.
//! Signing is linear in the secret, so the signature of the key is the Lagrange interpolation at 0
//! of `t` share signatures.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{Hash, Hasher},
    sync::LazyLock,
};

use blst::min_sig;
use rand::{CryptoRng, RngCore};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteArray;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::{
    curve::{
        G1, G1Affine, G2Affine, Gt, PreparedG2, Scalar, evaluate, lagrange_at_zero, pairing_product,
    },
    fold::weight,
    oracle::Oracle,
};

/// The IC's ciphersuite.
const DST: &[u8] = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_";

/// Committees larger than this are refused before any work: bounds every loop here.
const NODES_MAX: u32 = 1_000;

/// A node's place in the committee, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeIndex(pub u32);

/// Why a key, share or signature was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum BlsError {
    #[error("{what} is not the encoding of a point in the prime-order subgroup")]
    NotAPoint { what: &'static str },
    #[error(
        "a subnet public key is 133 bytes of DER with the BLS12-381 algorithm identifier; these \
         {length} bytes are not"
    )]
    NotDer { length: usize },
    #[error("a secret share must be below the group order")]
    NotAScalar,
    #[error(
        "threshold {threshold} does not fit a committee of {nodes} (1 <= threshold <= nodes <= \
         {NODES_MAX})"
    )]
    BadThreshold { threshold: u32, nodes: u32 },
    #[error(
        "the public keys of the committee are not those of one polynomial with {threshold} \
         coefficients: they do not belong together"
    )]
    NotOnePolynomial { threshold: u32 },
    #[error("node {0:?} is not in the committee")]
    UnknownNode(NodeIndex),
    #[error("the signature share of node {0:?} does not verify")]
    BadShare(NodeIndex),
    #[error("{have} distinct shares of the {need} needed")]
    TooFewShares { have: usize, need: u32 },
}

/// Every verification pairs with it: its lines are prepared once.
static MINUS_G2: LazyLock<PreparedG2> =
    LazyLock::new(|| PreparedG2::new(&G2Affine::generator().neg()));

/// A public key of G2: the subnet's, or that of one share. Always a member of the prime-order
/// group, also when it was deserialized. Its point stays decoded alongside the bytes, as every
/// verification needs it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ByteArray<96>", into = "ByteArray<96>")]
pub struct PublicKey([u8; 96], G2Affine);

impl Hash for PublicKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl TryFrom<ByteArray<96>> for PublicKey {
    type Error = BlsError;

    fn try_from(bytes: ByteArray<96>) -> Result<Self, BlsError> {
        Self::from_bytes(&bytes)
    }
}

impl From<PublicKey> for ByteArray<96> {
    fn from(key: PublicKey) -> Self {
        Self::new(key.0)
    }
}

/// A signature on the subnet's behalf: 48 bytes, compressed G1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signature(#[serde(with = "serde_bytes")] pub [u8; 48]);

/// One node's contribution to a [`Signature`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SignatureShare(#[serde(with = "serde_bytes")] pub [u8; 48]);

/// One node's share of the key. Wiped when dropped, never printed.
pub struct SecretShare {
    /// Place of its holder in the committee; the share is the polynomial's value at `index + 1`.
    pub index: NodeIndex,
    key: min_sig::SecretKey,
}

/// Public data of a dealt key: the public key, the threshold, and the public key of each share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committee {
    /// The subnet's public key.
    pub public_key: PublicKey,
    /// Distinct shares needed for a signature.
    pub threshold: u32,
    /// Public key of share `i` at `i`.
    pub shares: Vec<PublicKey>,
}

macro_rules! debug_as_hex {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    )*};
}

debug_as_hex!(PublicKey, Signature, SignatureShare);

impl fmt::Debug for SecretShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretShare").field("index", &self.index).finish_non_exhaustive()
    }
}

impl PublicKey {
    /// Checks that the bytes are a point of the prime-order subgroup, and not the identity.
    pub fn from_bytes(bytes: &[u8; 96]) -> Result<Self, BlsError> {
        G2Affine::from_compressed_on_curve(bytes)
            .filter(G2Affine::in_group)
            .map(|point| Self(*bytes, point))
            .ok_or(BlsError::NotAPoint { what: "the public key" })
    }

    /// The key that is this member of the group; infinity is invalid.
    pub(crate) fn from_point(point: G2Affine) -> Result<Self, BlsError> {
        if point.is_identity() {
            return Err(BlsError::NotAPoint { what: "the public key" });
        }
        Ok(Self(point.to_compressed(), point))
    }

    pub(crate) fn point(&self) -> G2Affine {
        self.1
    }

    /// 96 bytes, compressed.
    pub fn as_bytes(&self) -> &[u8; 96] {
        &self.0
    }
}

impl SecretShare {
    /// The 32 bytes to be stored by the owner, big-endian. The caller wipes them.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.key.to_bytes()
    }

    /// Reads the output of [`Self::to_bytes`].
    pub fn from_bytes(index: NodeIndex, bytes: &[u8; 32]) -> Result<Self, BlsError> {
        let key = min_sig::SecretKey::from_bytes(bytes).map_err(|_| BlsError::NotAScalar)?;
        Ok(Self { index, key })
    }

    pub(crate) fn from_scalar(index: NodeIndex, value: &Scalar) -> Result<Self, BlsError> {
        Self::from_bytes(index, &Zeroizing::new(value.to_be_bytes()))
    }

    pub(crate) fn scalar(&self) -> Scalar {
        // The value of a secret key is below the group order.
        Scalar::from_be_bytes(&Zeroizing::new(self.to_bytes())).unwrap_or_default()
    }

    /// Public key of this share.
    pub fn public_key(&self) -> PublicKey {
        // Not by the table of the generator: a node alone would make and keep all tables for this.
        let point =
            G2Affine::generator().to_point().mul(&Zeroizing::new(self.scalar())).to_affine();
        PublicKey(point.to_compressed(), point)
    }

    /// Signs `message` with this share; [`combine`] makes the signature out of enough of them.
    pub fn sign(&self, message: &[u8]) -> SignatureShare {
        SignatureShare(self.key.sign(message, DST, &[]).compress())
    }
}

/// Deals a fresh key to a committee of `nodes` with the given threshold. The caller knows the key
/// while this runs: a node may deal for itself alone, never for others.
pub fn deal(
    nodes: u32,
    threshold: u32,
    rng: &mut (impl RngCore + CryptoRng),
) -> Result<(Committee, Vec<SecretShare>), BlsError> {
    if threshold == 0 || threshold > nodes || nodes > NODES_MAX {
        return Err(BlsError::BadThreshold { threshold, nodes });
    }
    let coefficients: Zeroizing<Vec<Scalar>> =
        Zeroizing::new((0..threshold).map(|_| *Scalar::random(rng)).collect());
    let secret = |index: u32, place: u64| {
        let value = Zeroizing::new(evaluate(&coefficients, &Scalar::from_u64(place)));
        SecretShare::from_scalar(NodeIndex(index), &value)
    };
    let public_key = secret(0, 0)?.public_key();
    let shares = (0..nodes)
        .map(|index| secret(index, u64::from(index) + 1))
        .collect::<Result<Vec<_>, _>>()?;
    let committee = Committee {
        public_key,
        threshold,
        shares: shares.iter().map(SecretShare::public_key).collect(),
    };
    Ok((committee, shares))
}

/// Whether `signature` is the subnet's on `message`. Never panics, whatever the bytes.
pub fn verify(key: &PublicKey, message: &[u8], signature: &[u8; 48]) -> bool {
    let Some(signature) = G1Affine::from_compressed(signature) else {
        return false;
    };
    // e(signature, -g2) e(hash, key) = 1. The key's membership was checked when it was made, see
    // `PublicKey`.
    let hash = G1::hash(message, DST).to_affine();
    pairing_product(&[(signature, &*MINUS_G2)], &[(hash, key.1)]) == Gt::one()
}

/// Whether each of these is the subnet's signature on the message in front of it: the same verdict
/// as [`verify`] of each, with two pairings for all of them.
///
/// The equations of [`verify`] are added, each with a weight of 128 bits by a random oracle over
/// all messages and signatures. So the verdict depends on the arguments alone, and whoever makes a
/// false signature pass has tried about 2^128 lists.
pub fn verify_all(key: &PublicKey, signed: &[(Vec<u8>, Signature)]) -> bool {
    match signed {
        [] => return true,
        [(message, signature)] => return verify(key, message, &signature.0),
        _ => {}
    }
    let mut oracle = Oracle::new("nidkg-v1-signatures").bytes("key", &key.0);
    for (message, signature) in signed {
        oracle = oracle.bytes("message", message).bytes("signature", &signature.0);
    }
    let mut weights = oracle.stream();
    let (mut points, mut hashes, mut scalars) = (Vec::new(), Vec::new(), Vec::new());
    for (message, signature) in signed {
        let Some(point) = G1Affine::from_compressed(&signature.0) else {
            return false;
        };
        points.push(point);
        hashes.push(G1::hash(message, DST));
        scalars.push(weight(&mut weights));
    }
    let signature = G1::msm(&points, &scalars).to_affine();
    let hash = G1::msm(&G1::all_to_affine(&hashes), &scalars).to_affine();
    pairing_product(&[(signature, &*MINUS_G2)], &[(hash, key.1)]) == Gt::one()
}

impl Committee {
    /// Whether `share` is node `index`'s on `message`.
    pub fn verify_share(
        &self,
        index: NodeIndex,
        message: &[u8],
        share: &SignatureShare,
    ) -> Result<(), BlsError> {
        let key = self.shares.get(index.0 as usize).ok_or(BlsError::UnknownNode(index))?;
        verify(key, message, &share.0).then_some(()).ok_or(BlsError::BadShare(index))
    }
}

/// Combines `threshold` shares, verified before by [`Committee::verify_share`], into the subnet's
/// signature. Which shares are used does not change the result.
pub fn combine(
    committee: &Committee,
    shares: &BTreeMap<NodeIndex, SignatureShare>,
) -> Result<Signature, BlsError> {
    if shares.len() < committee.threshold as usize {
        return Err(BlsError::TooFewShares { have: shares.len(), need: committee.threshold });
    }
    let used: Vec<_> = shares.iter().take(committee.threshold as usize).collect();
    let mut points = Vec::with_capacity(used.len());
    for (index, share) in &used {
        if index.0 as usize >= committee.shares.len() {
            return Err(BlsError::UnknownNode(**index));
        }
        // Membership was checked with the share.
        let point = G1Affine::from_compressed_on_curve(&share.0);
        points.push(point.ok_or(BlsError::NotAPoint { what: "the signature share" })?);
    }
    let places: Vec<_> = used.iter().map(|(index, _)| u64::from(index.0) + 1).collect();
    let sum = G1::msm(&points, &lagrange_at_zero(&places));
    Ok(Signature(sum.to_affine().to_compressed()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    fn sign_all(shares: &[SecretShare], message: &[u8]) -> BTreeMap<NodeIndex, SignatureShare> {
        shares.iter().map(|share| (share.index, share.sign(message))).collect()
    }

    #[test]
    fn one_node_signs_alone_by_the_same_path() {
        let (committee, shares) = deal(1, 1, &mut StdRng::seed_from_u64(1)).unwrap();
        let message = crate::state_root_message(&[7; 32]);
        let share = shares[0].sign(&message);
        committee.verify_share(NodeIndex(0), &message, &share).unwrap();
        let signature = combine(&committee, &[(NodeIndex(0), share)].into()).unwrap();
        assert!(verify(&committee.public_key, &message, &signature.0));
        ic_verify_bls_signature::verify_bls_signature(
            &signature.0,
            &message,
            committee.public_key.as_bytes(),
        )
        .unwrap();
    }

    #[test]
    fn any_threshold_of_shares_makes_the_same_signature_and_fewer_make_none() {
        let (committee, shares) = deal(7, 5, &mut StdRng::seed_from_u64(2)).unwrap();
        let message = b"m".to_vec();
        let mut all = sign_all(&shares, &message);
        let first = combine(&committee, &all).unwrap();
        all.remove(&NodeIndex(0));
        all.remove(&NodeIndex(3));
        assert_eq!(first, combine(&committee, &all).unwrap());
        assert!(verify(&committee.public_key, &message, &first.0));
        all.remove(&NodeIndex(6));
        assert_eq!(combine(&committee, &all), Err(BlsError::TooFewShares { have: 4, need: 5 }));
    }

    #[test]
    fn signatures_are_verified_together_with_the_verdict_of_each() {
        let (committee, shares) = deal(1, 1, &mut StdRng::seed_from_u64(8)).unwrap();
        let signed = |number: u8| {
            let message = crate::state_root_message(&[number; 32]);
            let signature = Signature(shares[0].sign(&message).0);
            (message, signature)
        };
        let all = |signed: &[(Vec<u8>, Signature)]| verify_all(&committee.public_key, signed);
        let good: Vec<_> = (0..4).map(signed).collect();
        for count in 0..=good.len() {
            assert!(all(&good[..count]), "{count} signatures");
        }
        for place in 0..good.len() {
            let mut bad = good.clone();
            bad[place].1 = signed(9).1;
            assert!(!all(&bad), "signature {place} is on another message");
            bad[place].1 = Signature([0xff; 48]);
            assert!(!all(&bad), "signature {place} is no point");
        }
        // Their sum is right.
        let mut exchanged = good.clone();
        (exchanged[0].1, exchanged[1].1) = (good[1].1, good[0].1);
        assert!(!all(&exchanged));
        assert!(!all(&[exchanged[0].clone()]));
        let (other, _) = deal(1, 1, &mut StdRng::seed_from_u64(9)).unwrap();
        assert!(!verify_all(&other.public_key, &good));
    }

    #[test]
    fn a_wrong_share_is_named() {
        let (committee, shares) = deal(4, 3, &mut StdRng::seed_from_u64(3)).unwrap();
        let share = shares[1].sign(b"another message");
        assert_eq!(
            committee.verify_share(NodeIndex(1), b"m", &share),
            Err(BlsError::BadShare(NodeIndex(1)))
        );
        assert_eq!(
            committee.verify_share(NodeIndex(9), b"m", &share),
            Err(BlsError::UnknownNode(NodeIndex(9)))
        );
    }

    #[test]
    fn thresholds_that_do_not_fit_are_refused() {
        for (nodes, threshold) in [(0, 0), (3, 0), (3, 4), (NODES_MAX + 1, 1)] {
            assert!(deal(nodes, threshold, &mut StdRng::seed_from_u64(4)).is_err());
        }
    }

    #[test]
    fn der_round_trips_and_refuses_the_rest() {
        let (committee, _) = deal(1, 1, &mut StdRng::seed_from_u64(5)).unwrap();
        let der = crate::public_key_to_der(&committee.public_key);
        assert_eq!(der.len(), 133);
        assert_eq!(crate::public_key_from_der(&der).unwrap(), committee.public_key);
        assert!(crate::public_key_from_der(&der[1..]).is_err());
        let mut off_curve = der.clone();
        off_curve[40] ^= 1;
        assert!(crate::public_key_from_der(&off_curve).is_err());
    }

    #[test]
    fn shares_survive_storage_and_stay_out_of_logs() {
        let (_, shares) = deal(1, 1, &mut StdRng::seed_from_u64(6)).unwrap();
        let bytes = shares[0].to_bytes();
        let again = SecretShare::from_bytes(NodeIndex(0), &bytes).unwrap();
        assert_eq!(again.public_key(), shares[0].public_key());
        assert_eq!(format!("{again:?}"), "SecretShare { index: NodeIndex(0), .. }");
    }
}
