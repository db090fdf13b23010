//! The keys of a member as the engine uses them, for a member of tests that signs what no honest
//! member signs.
//!
//! No part of the node's interface: the node itself signs within its engine.

use commonware_consensus::simplex::scheme::ed25519;
use genesis::Summary;

pub use super::key::namespace;
use super::key::{self, EngineKeyError};

/// Signs votes as the engine does, byte for byte.
pub type VoteScheme = ed25519::Scheme;

/// The scheme of the member with this node key, in the epoch of this summary.
pub fn vote_scheme(
    namespace: &[u8],
    summary: &Summary,
    node_secret: &[u8; 32],
) -> Result<VoteScheme, EngineKeyError> {
    let keys: Vec<_> =
        summary.members().iter().map(|member| member.node_key().to_bytes()).collect();
    let signer = key::node_key(node_secret)?;
    key::scheme(namespace, &key::members(&keys)?, Some(&signer))
}
