//! What a proof claims about a message: the signal, its epoch and application, and the public
//! inputs that follow from them.
//!
//! Bounds: the payload is hashed once and not copied. It must never know whether a claim is true.

use ark_bn254::Fr;
use ark_serialize::CanonicalDeserialize;
use protocol::{RateLimitProof, WakuMessage, rate_limit_proof::FIELD_BYTES};

use super::{
    groth16::{Claim, Proof},
    hash::{poseidon, to_field},
};

/// The application of Waku relay, as proofs name it.
pub(super) const RLN_IDENTIFIER: [u8; FIELD_BYTES] = {
    let name = b"rln/waku-rln-relay/v2.0.0";
    let mut bytes = [0; FIELD_BYTES];
    let mut place = 0;
    while place < name.len() {
        bytes[place] = name[place];
        place += 1;
    }
    bytes
};

/// The number of the epoch of a timestamp in nanoseconds, computed as in the reference node: with
/// other rounding, messages at the border of two epochs would be judged otherwise.
pub(super) fn epoch_of(timestamp_ns: i64, epoch_seconds: u64) -> u64 {
    let seconds = timestamp_ns as f64 / 1e9;
    (seconds / epoch_seconds as f64) as u64
}

/// The epoch as a proof has it.
pub(super) fn epoch_bytes(epoch: u64) -> [u8; FIELD_BYTES] {
    let mut bytes = [0; FIELD_BYTES];
    bytes[..8].copy_from_slice(&epoch.to_le_bytes());
    bytes
}

/// The value under which a member's messages of one epoch are counted.
pub(super) fn external_nullifier(epoch: &[u8; FIELD_BYTES]) -> Fr {
    poseidon(to_field(&[epoch]), to_field(&[&RLN_IDENTIFIER]))
}

/// The hash of what a proof is made for: payload, content topic, timestamp.
fn signal_hash(message: &WakuMessage) -> Fr {
    let timestamp = message.timestamp.unwrap_or_default().to_le_bytes();
    to_field(&[&message.payload, message.content_topic.as_str().as_bytes(), &timestamp])
}

/// The claim of a proof about a message; `None` if it is false before any equation: a number that
/// is not of the field, a point that is not of its group, a share of another signal.
pub(super) fn claim(
    message: &WakuMessage,
    proof: &RateLimitProof,
    external_nullifier: Fr,
) -> Option<Claim> {
    let number = |bytes: &[u8; FIELD_BYTES]| Fr::deserialize_compressed(&bytes[..]).ok();
    let x = number(&proof.share_x)?;
    let (y, root) = (number(&proof.share_y)?, number(&proof.merkle_root)?);
    let nullifier = number(&proof.nullifier)?;
    let points = Proof::read(&proof.proof)?;
    if x != signal_hash(message) {
        return None;
    }
    Some(Claim { proof: points, inputs: [y, root, nullifier, x, external_nullifier] })
}

/// A number of the field as it is on the wire.
#[cfg(test)]
pub(super) fn field_bytes(number: Fr) -> [u8; FIELD_BYTES] {
    let mut bytes = [0; FIELD_BYTES];
    ark_serialize::CanonicalSerialize::serialize_compressed(&number, &mut bytes[..]).unwrap();
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rln::samples;

    #[test]
    fn epochs_are_those_of_the_reference_node() {
        assert_eq!(epoch_of(1_760_000_000_000_000_000, 600), 2_933_333);
        assert_eq!(epoch_of(1_759_999_800_000_000_000, 600), 2_933_333);
        // The reference computes with 53 bits.
        assert_eq!(epoch_of(1_759_999_799_999_999_999, 600), 2_933_333);
        assert_eq!(epoch_of(1_759_999_799_999_999_000, 600), 2_933_332);
        assert_eq!((epoch_of(0, 600), epoch_of(-1, 600)), (0, 0));
        assert_eq!(samples::proofs()[0].epoch, epoch_bytes(2_933_333));
    }

    #[test]
    fn the_external_nullifier_is_that_of_the_published_prover() {
        let expected = "da66baf6177a74a075cb9fcb6add9236452d1e66ef0c2cfa9821f7aba67d2c25";
        let found = external_nullifier(&epoch_bytes(2_933_333));
        assert_eq!(hex::encode(field_bytes(found)), expected);
    }

    #[test]
    fn a_proof_claims_nothing_about_another_message() {
        let (messages, proofs) = (samples::messages(), samples::proofs());
        let nullifier = external_nullifier(&proofs[0].epoch);
        assert!(claim(&messages[0], &proofs[0], nullifier).is_some());
        assert!(claim(&messages[1], &proofs[0], nullifier).is_none());
        let mut changed = messages[0].clone();
        changed.timestamp = changed.timestamp.map(|at| at + 1);
        assert!(claim(&changed, &proofs[0], nullifier).is_none());
        let mut changed = messages[0].clone();
        changed.content_topic = "/thimble/1/other/proto".into();
        assert!(claim(&changed, &proofs[0], nullifier).is_none());
        let mut proof = proofs[0].clone();
        proof.share_y = [0xff; FIELD_BYTES];
        assert!(claim(&messages[0], &proof, nullifier).is_none());
    }
}
