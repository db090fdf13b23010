//! The proof of a rate limit that a message carries ([`crate::WakuMessage::rate_limit_proof`]), as
//! it is on the wire.
//!
//! Bounds: a decoded proof has a fixed size whatever the input, and nothing is allocated. Numbers
//! of the field are 32 bytes, little-endian. It must never know whether a proof is valid, which
//! roots and epochs are, or what was sent before.
//!
//! Fields have the lengths of the specification. As in the reference node, a shorter one is filled
//! with zeros, a longer one is cut off, one of another wire type is skipped: a node that refused
//! such a message would penalise the peers that pass it on, because their node takes it. Only the
//! bytes that were verified count.
//!
//! Source: vacp2p/rfc-index 17 (fields), the reference node (lengths and byte order).

use bytes::Bytes;

use crate::wire::{self, DecodeError, Fields, Value};

/// Bytes of a number of the proof's field.
pub const FIELD_BYTES: usize = 32;
/// Bytes of the proof: three compressed points of BN254, of G1, G2 and G1.
pub const PROOF_BYTES: usize = 128;

mod tag {
    pub(super) const PROOF: u32 = 1;
    pub(super) const MERKLE_ROOT: u32 = 2;
    pub(super) const EPOCH: u32 = 3;
    pub(super) const SHARE_X: u32 = 4;
    pub(super) const SHARE_Y: u32 = 5;
    pub(super) const NULLIFIER: u32 = 6;
    pub(super) const RLN_IDENTIFIER: u32 = 7;
}

/// A proof with its public values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitProof {
    /// The Groth16 proof.
    pub proof: [u8; PROOF_BYTES],
    /// The root of the tree of members against which it was made.
    pub merkle_root: [u8; FIELD_BYTES],
    /// The number of the epoch, little-endian.
    pub epoch: [u8; FIELD_BYTES],
    /// The hash of the signal, at which the share was taken.
    pub share_x: [u8; FIELD_BYTES],
    /// The share of the sender's key. Two of one nullifier reveal the key.
    pub share_y: [u8; FIELD_BYTES],
    /// The same for two messages of one sender with one message number in one epoch.
    pub nullifier: [u8; FIELD_BYTES],
    /// The application: its name, filled with zeros.
    pub rln_identifier: [u8; FIELD_BYTES],
}

impl Default for RateLimitProof {
    fn default() -> Self {
        Self {
            proof: [0; PROOF_BYTES],
            merkle_root: [0; FIELD_BYTES],
            epoch: [0; FIELD_BYTES],
            share_x: [0; FIELD_BYTES],
            share_y: [0; FIELD_BYTES],
            nullifier: [0; FIELD_BYTES],
            rln_identifier: [0; FIELD_BYTES],
        }
    }
}

impl RateLimitProof {
    /// Reads a proof. Errors: the bytes are damaged.
    pub fn decode(input: &Bytes) -> Result<Self, DecodeError> {
        let mut read = Self::default();
        for field in Fields::new(input) {
            let field = field?;
            let Value::Bytes(bytes) = field.value else { continue };
            match field.tag {
                tag::PROOF => fill(&mut read.proof, bytes),
                tag::MERKLE_ROOT => fill(&mut read.merkle_root, bytes),
                tag::EPOCH => fill(&mut read.epoch, bytes),
                tag::SHARE_X => fill(&mut read.share_x, bytes),
                tag::SHARE_Y => fill(&mut read.share_y, bytes),
                tag::NULLIFIER => fill(&mut read.nullifier, bytes),
                tag::RLN_IDENTIFIER => fill(&mut read.rln_identifier, bytes),
                _ => {}
            }
        }
        Ok(read)
    }

    /// The proof as it is sent, every field in full.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PROOF_BYTES + 6 * FIELD_BYTES + 8 * 3);
        wire::put_bytes(tag::PROOF, &self.proof, &mut out);
        wire::put_bytes(tag::MERKLE_ROOT, &self.merkle_root, &mut out);
        wire::put_bytes(tag::EPOCH, &self.epoch, &mut out);
        wire::put_bytes(tag::SHARE_X, &self.share_x, &mut out);
        wire::put_bytes(tag::SHARE_Y, &self.share_y, &mut out);
        wire::put_bytes(tag::NULLIFIER, &self.nullifier, &mut out);
        wire::put_bytes(tag::RLN_IDENTIFIER, &self.rln_identifier, &mut out);
        out
    }
}

/// The bytes, cut off or filled with zeros to the length of the field.
fn fill<const N: usize>(into: &mut [u8; N], bytes: &[u8]) {
    *into = [0; N];
    let length = bytes.len().min(N);
    into[..length].copy_from_slice(&bytes[..length]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field() -> impl Strategy<Value = [u8; FIELD_BYTES]> {
        any::<[u8; FIELD_BYTES]>()
    }

    prop_compose! {
        fn proof()(
            start in field(), end in proptest::collection::vec(any::<u8>(), PROOF_BYTES - FIELD_BYTES),
            merkle_root in field(), epoch in field(), share_x in field(), share_y in field(),
            nullifier in field(), rln_identifier in field(),
        ) -> RateLimitProof {
            let mut proof = [0; PROOF_BYTES];
            proof[..FIELD_BYTES].copy_from_slice(&start);
            proof[FIELD_BYTES..].copy_from_slice(&end);
            RateLimitProof {
                proof, merkle_root, epoch, share_x, share_y, nullifier, rln_identifier,
            }
        }
    }

    proptest! {
        #[test]
        fn an_encoded_proof_decodes_to_itself(proof in proof()) {
            let bytes = Bytes::from(proof.encode());
            prop_assert_eq!(RateLimitProof::decode(&bytes), Ok(proof));
        }

        #[test]
        fn any_bytes_decode_or_are_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..512),
        ) {
            if let Ok(read) = RateLimitProof::decode(&Bytes::from(bytes)) {
                let again = RateLimitProof::decode(&Bytes::from(read.encode()));
                prop_assert_eq!(again, Ok(read));
            }
        }
    }

    #[test]
    fn fields_of_other_lengths_are_filled_or_cut_off_as_in_the_reference_node() {
        let mut bytes = Vec::new();
        wire::put_bytes(tag::PROOF, &[7; PROOF_BYTES + 1], &mut bytes);
        wire::put_bytes(tag::EPOCH, &[1, 2], &mut bytes);
        let read = RateLimitProof::decode(&bytes.into()).unwrap();
        assert_eq!(read.proof, [7; PROOF_BYTES]);
        assert_eq!((read.epoch[..3].to_vec(), read.merkle_root), (vec![1, 2, 0], [0; 32]));
    }

    #[test]
    fn the_last_of_a_repeated_field_counts() {
        let mut bytes = Vec::new();
        wire::put_bytes(tag::NULLIFIER, &[9; FIELD_BYTES], &mut bytes);
        wire::put_bytes(tag::NULLIFIER, &[4], &mut bytes);
        let read = RateLimitProof::decode(&bytes.into()).unwrap();
        assert_eq!((read.nullifier[0], read.nullifier[1]), (4, 0));
    }

    #[test]
    fn a_field_of_another_wire_type_is_skipped() {
        let mut bytes = Vec::new();
        wire::put_bytes(tag::EPOCH, &[9], &mut bytes);
        wire::put_varint(tag::EPOCH, 3, &mut bytes);
        assert_eq!(RateLimitProof::decode(&bytes.into()).unwrap().epoch[0], 9);
        let cut_off = RateLimitProof::decode(&Bytes::from_static(&[0x1a, 5, 1]));
        assert!(matches!(cut_off, Err(DecodeError::Truncated { tag: tag::EPOCH, .. })));
    }
}
