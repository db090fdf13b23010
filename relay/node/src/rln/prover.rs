//! A member of the network with the published prover, for tests. It shares no code with the
//! verifier.

use ark_bn254::Fr;
use ark_serialize::CanonicalSerialize;
use protocol::{RateLimitProof, WakuMessage};
use rln_prover::prelude::{
    ArkGroth16Backend, Hasher, IdentityKeys, PoseidonHash, RLN, RLNBuilder, RLNMerkleProof,
    RLNWitnessInput, Stateless, hash_to_field_le,
};

const TREE_DEPTH: usize = 20;
/// Messages that a member may send in an epoch.
const MESSAGES: u64 = 20;
const EPOCH_NANOS: i64 = 600_000_000_000;

/// One member, alone in the tree.
pub(crate) struct Member {
    prover: RLN<Stateless, ArkGroth16Backend<PoseidonHash>>,
    keys: IdentityKeys,
    path: RLNMerkleProof,
    /// Of the tree, little-endian.
    pub(crate) root: [u8; 32],
}

impl Member {
    pub(crate) fn new() -> Self {
        let keys = IdentityKeys::generate::<PoseidonHash, _>(&mut rand::thread_rng());
        let hash = Hasher::<PoseidonHash>::hash_pair;
        let (mut node, mut empty) = (hash(keys.id_commitment(), MESSAGES.into()), Fr::from(0_u64));
        let mut path = Vec::new();
        for _ in 0..TREE_DEPTH {
            path.push(empty);
            node = hash(node, empty);
            empty = hash(empty, empty);
        }
        let path = RLNMerkleProof::new(path, vec![0; TREE_DEPTH]);
        let prover = RLNBuilder::stateless().build();
        Self { prover, keys, path, root: bytes(node) }
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
        let external_nullifier = Hasher::<PoseidonHash>::hash_pair(
            hash_to_field_le(&epoch),
            hash_to_field_le(&rln_identifier),
        );
        let witness = RLNWitnessInput::new_single()
            .identity_secret(self.keys.identity_secret())
            .user_message_limit(MESSAGES.into())
            .merkle_proof(self.path.clone())
            .x(hash_to_field_le(&signal))
            .external_nullifier(external_nullifier)
            .message_id(number.into())
            .build()
            .unwrap();
        let (points, values) = self.prover.generate_proof(&witness).unwrap();
        let mut proof = RateLimitProof {
            merkle_root: bytes(values.root()),
            epoch,
            share_x: bytes(values.x()),
            share_y: bytes(values.y().unwrap()),
            nullifier: bytes(values.nullifier().unwrap()),
            rln_identifier,
            ..RateLimitProof::default()
        };
        points.serialize_compressed(&mut proof.proof[..]).unwrap();
        message.rate_limit_proof = Some(proof.encode().into());
    }
}

/// A number of the field, little-endian.
fn bytes(number: Fr) -> [u8; 32] {
    let mut bytes = [0; 32];
    number.serialize_compressed(&mut bytes[..]).unwrap();
    bytes
}
