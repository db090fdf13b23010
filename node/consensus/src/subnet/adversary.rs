//! The keys of a member as the engine uses them, for a member of tests that signs what no honest
//! member signs.
//!
//! No part of the node's interface: the node itself signs within its engine.

use commonware_consensus::simplex::scheme::bls12381_threshold::vrf;
use commonware_cryptography::{bls12381::primitives::variant::MinSig, ed25519::PublicKey};
use genesis::Summary;
use nidkg::SecretShare;

pub use super::key::namespace;
use super::key::{self, EngineKeyError};

/// Signs votes as the engine does, byte for byte.
pub type VoteScheme = vrf::Scheme<PublicKey, MinSig>;

/// The scheme of a member in the epoch of this summary.
pub fn vote_scheme(
    namespace: &[u8],
    summary: &Summary,
    share: &SecretShare,
) -> Result<VoteScheme, EngineKeyError> {
    let keys: Vec<_> =
        summary.members().iter().map(|member| member.node_key().to_bytes()).collect();
    let members = key::members(&keys)?;
    Ok(key::scheme(namespace, &members, summary.committee(), Some(share))?.into_inner())
}
