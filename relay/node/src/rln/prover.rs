//! A member of the network with the published prover, for tests. It shares no code with the
//! verifier.

use ark_serialize::CanonicalSerialize as _;
use protocol::{RateLimitProof, WakuMessage};
use rln_prover::prelude::{
    Fr, IdSecret, RLN, RLNWitnessInput, fr_to_bytes_le, hash_to_field_le, keygen, poseidon_hash,
};

const TREE_DEPTH: usize = 20;
/// Messages that a member may send in an epoch.
const MESSAGES: u64 = 20;
const EPOCH_NANOS: i64 = 600_000_000_000;

/// One member, alone in the tree.
pub(crate) struct Member {
    prover: RLN,
    secret: IdSecret,
    /// What its leaf is hashed with, from the bottom of the tree.
    path: Vec<Fr>,
    /// Of the tree, little-endian.
    pub(crate) root: [u8; 32],
}

impl Member {
    pub(crate) fn new() -> Self {
        let (secret, commitment) = keygen().unwrap();
        let (mut node, mut empty) = (hash(commitment, MESSAGES.into()), Fr::from(0_u64));
        let mut path = Vec::new();
        for _ in 0..TREE_DEPTH {
            path.push(empty);
            node = hash(node, empty);
            empty = hash(empty, empty);
        }
        Self { prover: RLN::new().unwrap(), secret, path, root: bytes(&node) }
    }

    /// Attaches a proof to a message that has a timestamp. `number` is that of the message in its
    /// epoch, below the member's limit.
    pub(crate) fn attach(&self, message: &mut WakuMessage, number: u64) {
        let timestamp = message.timestamp.unwrap();
        let mut epoch = [0; 32];
        epoch[..8].copy_from_slice(&(timestamp / EPOCH_NANOS).to_le_bytes());
        let mut rln_identifier = [0; 32];
        rln_identifier[..25].copy_from_slice(b"rln/waku-rln-relay/v2.0.0");
        let mut signal = message.payload.to_vec();
        signal.extend_from_slice(message.content_topic.as_str().as_bytes());
        signal.extend_from_slice(&timestamp.to_le_bytes());
        let external_nullifier =
            hash(hash_to_field_le(&epoch).unwrap(), hash_to_field_le(&rln_identifier).unwrap());
        let witness = RLNWitnessInput::new(
            self.secret.clone(),
            MESSAGES.into(),
            number.into(),
            self.path.clone(),
            vec![0; TREE_DEPTH],
            hash_to_field_le(&signal).unwrap(),
            external_nullifier,
        )
        .unwrap();
        let (points, values) = self.prover.generate_rln_proof(&witness).unwrap();
        let mut proof = RateLimitProof {
            merkle_root: bytes(&values.root),
            epoch,
            share_x: bytes(&values.x),
            share_y: bytes(&values.y),
            nullifier: bytes(&values.nullifier),
            rln_identifier,
            ..RateLimitProof::default()
        };
        points.serialize_compressed(&mut proof.proof[..]).unwrap();
        message.rate_limit_proof = Some(proof.encode().into());
    }
}

fn hash(left: Fr, right: Fr) -> Fr {
    poseidon_hash(&[left, right]).unwrap()
}

/// A number of the field, little-endian.
fn bytes(number: &Fr) -> [u8; 32] {
    fr_to_bytes_le(number).try_into().unwrap()
}
