//! Ed25519 signatures, one by one, with the verdict of ed25519-dalek's `verify_strict` for every
//! input.
//!
//! `verify_strict` accepts a signature `(R, s)` of the key `A` over `M` if `s` is canonical, `A`
//! and `R` decode to points that are not of small order, and the encoding of `sB - kA` is `R`, byte
//! for byte, where `k` is the hash of `R`, `A` and `M`. The same is decided here with less work:
//!
//! - **`R` is not decoded.** It is compared with the encoding of the point `sB - kA`. When the two
//!   are equal, `R` decodes to that point, whose order is then checked; when they differ, the
//!   signature is refused whatever `R` decodes to.
//! - **`A` is decoded once.** Keys that made a valid signature are remembered, decoded, in a
//!   bounded map ([`KnownKeys`]). Decoding is a function of the 32 bytes.
//!
//! Batch verification is not used: its verdict differs from this one for points with a component
//! of small order (docs/decisions/0021-signatures-one-by-one.md).

use curve25519_dalek::{
    edwards::{CompressedEdwardsY, EdwardsPoint},
    scalar::Scalar,
};
use sha2::{Digest, Sha512};

use super::bounded_map::BoundedMap;

/// Decoded public keys, negated, by their encoding.
#[derive(Debug)]
pub(crate) struct KnownKeys(BoundedMap<EdwardsPoint>);

impl KnownKeys {
    /// Remembers at most `limit` keys.
    pub(crate) fn new(limit: u64) -> Self {
        Self(BoundedMap::new(limit))
    }

    /// Whether the signature, 64 bytes, is one of the key over the message, the concatenation of
    /// `message`.
    pub(crate) fn verify(&self, key: &[u8; 32], message: &[&[u8]], signature: &[u8]) -> bool {
        let known = self.0.get(key);
        let Some(negated) = known.or_else(|| decode_negated(key)) else { return false };
        let is_valid = is_signature(key, &negated, message, signature);
        if is_valid && known.is_none() {
            self.0.insert(*key, negated);
        }
        is_valid
    }
}

/// The same for a key that is not remembered.
pub(crate) fn verify(key: &[u8; 32], message: &[&[u8]], signature: &[u8]) -> bool {
    decode_negated(key).is_some_and(|negated| is_signature(key, &negated, message, signature))
}

/// The point `-A` of a key that is acceptable.
fn decode_negated(key: &[u8; 32]) -> Option<EdwardsPoint> {
    let point = CompressedEdwardsY(*key).decompress()?;
    (!point.is_small_order()).then(|| -point)
}

fn is_signature(
    key: &[u8; 32],
    negated: &EdwardsPoint,
    message: &[&[u8]],
    signature: &[u8],
) -> bool {
    let Some((r, s)) = signature.split_first_chunk::<32>() else { return false };
    let Ok(s) = <[u8; 32]>::try_from(s) else { return false };
    let Some(s) = Option::<Scalar>::from(Scalar::from_canonical_bytes(s)) else { return false };
    let mut hasher = Sha512::new();
    hasher.update(r);
    hasher.update(key);
    message.iter().for_each(|part| hasher.update(part));
    let digest: [u8; 64] = hasher.finalize().into();
    let k = Scalar::from_bytes_mod_order_wide(&digest);
    let expected = EdwardsPoint::vartime_double_scalar_mul_basepoint(&k, negated, &s);
    expected.compress().as_bytes() == r && !expected.is_small_order()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use curve25519_dalek::constants::{
        ED25519_BASEPOINT_POINT, ED25519_BASEPOINT_TABLE, EIGHT_TORSION,
    };
    use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
    use proptest::prelude::*;

    use super::*;

    /// The order of the base point, little-endian.
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde,
        0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];

    /// The verdict that every path here must give.
    fn strictly(key: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
        let Ok(signature) = Signature::from_slice(signature) else { return false };
        VerifyingKey::from_bytes(key)
            .is_ok_and(|key| key.verify_strict(message, &signature).is_ok())
    }

    /// Compares all paths; returns their verdict.
    fn verdict(known: &KnownKeys, key: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
        let expected = strictly(key, message, signature);
        let (first, second) = message.split_at(message.len() / 2);
        assert_eq!(verify(key, &[message], signature), expected, "{key:?} {signature:?}");
        for _ in 0..2 {
            assert_eq!(known.verify(key, &[first, second], signature), expected, "{signature:?}");
        }
        expected
    }

    fn challenge(r: &[u8; 32], key: &[u8; 32], message: &[u8]) -> Scalar {
        let digest = Sha512::new().chain_update(r).chain_update(key).chain_update(message);
        let digest: [u8; 64] = digest.finalize().into();
        Scalar::from_bytes_mod_order_wide(&digest)
    }

    /// A signature by the scalar `a` with the nonce `nonce`, whose key and `R` have these points
    /// of small order added to them.
    fn signed(
        (a, nonce): (Scalar, Scalar),
        (key_torsion, r_torsion): (EdwardsPoint, EdwardsPoint),
        message: &[u8],
    ) -> ([u8; 32], [u8; 64]) {
        let key = (ED25519_BASEPOINT_TABLE * &a + key_torsion).compress().0;
        let r = (ED25519_BASEPOINT_TABLE * &nonce + r_torsion).compress().0;
        let s = nonce + challenge(&r, &key, message) * a;
        let signature = [r, s.to_bytes()].concat();
        (key, signature.try_into().unwrap())
    }

    #[test]
    fn components_of_small_order_have_the_verdict_of_verify_strict() {
        let known = KnownKeys::new(64);
        let (mut accepted, mut refused) = (0, 0);
        for key_torsion in EIGHT_TORSION {
            for r_torsion in EIGHT_TORSION {
                for number in 0..16_u64 {
                    let message = number.to_le_bytes();
                    let scalars = (Scalar::from(77 + number), Scalar::from(990 + number));
                    let (key, signature) = signed(scalars, (key_torsion, r_torsion), &message);
                    match verdict(&known, &key, &message, &signature) {
                        true => accepted += 1,
                        false => refused += 1,
                    }
                }
            }
        }
        // Also with a key of mixed order some signatures satisfy the equation exactly.
        assert!(accepted > 16 && refused > 16, "{accepted} {refused}");
    }

    #[test]
    fn points_of_small_order_and_unusual_encodings_are_refused() {
        let known = KnownKeys::new(64);
        let key = SigningKey::from_bytes(&[5; 32]);
        let public = key.verifying_key().to_bytes();
        let valid = key.sign(b"message").to_bytes();
        assert!(verdict(&known, &public, b"message", &valid));
        for torsion in EIGHT_TORSION {
            let small = torsion.compress().0;
            // With `s` of 0 and a key of small order the equation holds for some messages.
            for number in 0..16_u8 {
                let signature = [small, [0; 32]].concat();
                assert!(!verdict(&known, &small, &[number], &signature));
                assert!(!verdict(&known, &public, &[number], &signature));
            }
        }
        // Encodings that decode, but are not those of their points: y of p and p + 1, and a sign
        // of x = 0.
        let mut prime = [0xff_u8; 32];
        (prime[0], prime[31]) = (0xed, 0x7f);
        let mut above = prime;
        above[0] = 0xee;
        let mut signed_zero = [0_u8; 32];
        (signed_zero[0], signed_zero[31]) = (1, 0x80);
        let scalar: [u8; 32] = valid[32..].try_into().unwrap();
        for odd in [prime, above, signed_zero, [0xff; 32], [0; 32]] {
            for s in [[0; 32], scalar] {
                let signature = [odd, s].concat();
                assert!(!verdict(&known, &odd, b"message", &signature));
                assert!(!verdict(&known, &public, b"message", &signature));
            }
        }
    }

    #[test]
    fn unreduced_scalars_and_other_lengths_are_refused() {
        let known = KnownKeys::new(1);
        let key = SigningKey::from_bytes(&[6; 32]);
        let public = key.verifying_key().to_bytes();
        let valid = key.sign(b"message").to_bytes();
        // `s` and the order: the same scalar in another encoding.
        let mut unreduced = valid;
        let mut carry = 0_u16;
        for (byte, more) in unreduced[32..].iter_mut().zip(ORDER) {
            let sum = u16::from(*byte) + u16::from(more) + carry;
            (*byte, carry) = (sum as u8, sum >> 8);
        }
        assert!(!verdict(&known, &public, b"message", &unreduced));
        for length in [0, 31, 32, 63] {
            assert!(!verdict(&known, &public, b"message", &valid[..length]));
        }
        assert!(!verdict(&known, &public, b"message", &[&valid[..], &[0]].concat()));
        assert!(verdict(&known, &public, b"message", &valid));
    }

    /// The reason for verifying one by one: two signatures that are refused alone, because their
    /// `R` have a component of small order, satisfy the sum that a batch checks when their factors
    /// happen to cancel it.
    #[test]
    fn a_weighted_sum_accepts_signatures_that_are_refused_alone() {
        let known = KnownKeys::new(0);
        let torsion = EIGHT_TORSION[4];
        assert_eq!(torsion + torsion, EIGHT_TORSION[0], "a point of order two");
        let one = |number: u64| {
            let scalars = (Scalar::from(number), Scalar::from(number + 100));
            signed(scalars, (EIGHT_TORSION[0], torsion), b"message")
        };
        let difference = |key: &[u8; 32], signature: &[u8; 64]| {
            let (r, s) = signature.split_at(32);
            let r: [u8; 32] = r.try_into().unwrap();
            let s = Scalar::from_canonical_bytes(s.try_into().unwrap()).unwrap();
            let (point, key_point) = (CompressedEdwardsY(r), CompressedEdwardsY(*key));
            let k = challenge(&r, key, b"message");
            ED25519_BASEPOINT_POINT * s
                - point.decompress().unwrap()
                - key_point.decompress().unwrap() * k
        };
        let ((first, one), (second, other)) = (one(7), one(8));
        assert!(!verdict(&known, &first, b"message", &one));
        assert!(!verdict(&known, &second, b"message", &other));
        let sum = |z: u64, w: u64| {
            difference(&first, &one) * Scalar::from(z)
                + difference(&second, &other) * Scalar::from(w)
        };
        assert_eq!(sum(3, 5), EIGHT_TORSION[0], "odd factors cancel it");
        assert_ne!(sum(3, 4), EIGHT_TORSION[0]);
    }

    proptest! {
        #[test]
        fn every_verdict_is_that_of_verify_strict(
            seed in any::<[u8; 32]>(),
            message in prop::collection::vec(any::<u8>(), 0..80),
            flips in prop::collection::vec((0..96_usize, 0..8_u32), 0..3),
        ) {
            let known = KnownKeys::new(2);
            let key = SigningKey::from_bytes(&seed);
            let (public, signature) = (key.verifying_key().to_bytes(), key.sign(&message).to_bytes());
            let mut bytes = [&public[..], &signature].concat();
            for (at, bit) in flips {
                bytes[at] ^= 1 << bit;
            }
            let (public, signature) = bytes.split_first_chunk::<32>().unwrap();
            verdict(&known, public, &message, signature);
        }

        #[test]
        fn any_bytes_have_the_verdict_of_verify_strict(
            key in any::<[u8; 32]>(),
            signature in prop::collection::vec(any::<u8>(), 60..68),
        ) {
            verdict(&KnownKeys::new(2), &key, b"message", &signature);
        }
    }
}
