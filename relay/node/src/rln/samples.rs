//! Proofs of the published prover, for tests.

use std::time::Duration;

use bytes::Bytes;
use protocol::{RateLimitProof, WakuMessage};

use super::{
    groth16::Claim,
    signal::{claim, external_nullifier},
};

/// Everything a test waits for takes less, on the slowest machine.
pub(super) const LONG: Duration = testing::TIMEOUT;

/// The messages, with their proofs: `first`, `second` under the same nullifier, `third`, `fourth`,
/// and one of the epoch after theirs.
pub(super) fn messages() -> Vec<WakuMessage> {
    let lines = include_str!("samples.txt").lines().filter(|line| !line.starts_with('#'));
    let message = |line: &'static str| {
        let mut parts = line.split('\t');
        let mut part = || parts.next().unwrap();
        let payload = Bytes::from_static(part().as_bytes());
        let timestamp = Some(part().parse().unwrap());
        let proof = Bytes::from(hex::decode(part()).unwrap());
        WakuMessage {
            timestamp,
            rate_limit_proof: Some(proof),
            ..WakuMessage::new("/thimble/1/rln/proto", payload)
        }
    };
    lines.map(message).collect()
}

pub(super) fn proof(message: &WakuMessage) -> RateLimitProof {
    RateLimitProof::decode(message.rate_limit_proof.as_ref().unwrap()).unwrap()
}

pub(super) fn proofs() -> Vec<RateLimitProof> {
    messages().iter().map(proof).collect()
}

pub(super) fn claims() -> Vec<Claim> {
    let claimed = |message: &WakuMessage| {
        let proof = proof(message);
        claim(message, &proof, external_nullifier(&proof.epoch)).unwrap()
    };
    messages().iter().map(claimed).collect()
}
