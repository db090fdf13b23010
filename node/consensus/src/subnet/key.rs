//! The node keys in the engine's types, and the checks of the subnet's key before it signs.
//!
//! Members vote with their node keys; the subnet's key signs state roots and answers to outcalls
//! only (decision 23).

use commonware_codec::{Copying, DecodeExt as _, Error};
pub(super) use commonware_consensus::simplex::scheme::ed25519::Scheme;
use commonware_cryptography::ed25519::{PrivateKey, PublicKey};
use commonware_utils::ordered::Set;
use genesis::Summary;
use nidkg::{Committee, SecretShare};
use thiserror::Error;

/// Why the engine cannot sign with what it was given.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum EngineKeyError {
    #[error("{what} of the subnet key does not decode: {reason}")]
    Decode { what: &'static str, reason: String },
    #[error(
        "{0} does not belong to the committee of the subnet's key: files of two subnets were mixed"
    )]
    Mismatch(&'static str),
    #[error("members must be sorted by node key, each once: member {0} is not")]
    Order(usize),
}

/// Precedes everything that members of this subnet, and of no other, sign for the engine.
pub fn namespace(genesis: &Summary) -> Vec<u8> {
    [b"thimble-subnet-".as_slice(), genesis.committee().public_key.as_bytes()].concat()
}

fn decode_error(what: &'static str) -> impl Fn(Error) -> EngineKeyError {
    move |error| EngineKeyError::Decode { what, reason: error.to_string() }
}

/// This node's signing key, as peers know it.
pub(super) fn node_key(secret: &[u8; 32]) -> Result<PrivateKey, EngineKeyError> {
    PrivateKey::decode(Copying(secret)).map_err(decode_error("the node key"))
}

/// Members in the order of their places, which is that of their keys: place and share have one
/// number.
pub(super) fn members(keys: &[[u8; 32]]) -> Result<Set<PublicKey>, EngineKeyError> {
    let decode = |key: &[u8; 32]| {
        PublicKey::decode(Copying(key)).map_err(decode_error("a member's node key"))
    };
    let keys = keys.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
    if let Some(place) = keys.windows(2).position(|pair| pair[0] >= pair[1]) {
        return Err(EngineKeyError::Order(place + 1));
    }
    Ok(Set::from_iter_dedup(keys))
}

/// The scheme of a member, or of a node that follows and signs nothing.
///
/// A member votes with its node key, but only while it has its share of the subnet's key: a member
/// that lost everything else may have lost its share too, and would vote against its earlier votes.
pub(super) fn scheme(
    namespace: &[u8],
    members: &Set<PublicKey>,
    signer: Option<&PrivateKey>,
) -> Result<Scheme, EngineKeyError> {
    let Some(signer) = signer else {
        return Ok(Scheme::verifier(namespace, members.clone()));
    };
    Scheme::signer(namespace, members.clone(), signer.clone())
        .ok_or(EngineKeyError::Mismatch("the node key"))
}

/// Checks that members, committee and share belong together: certificates of the state need all
/// three.
pub(super) fn check_committee(
    members: &Set<PublicKey>,
    committee: &Committee,
    share: Option<&SecretShare>,
) -> Result<(), EngineKeyError> {
    if members.len() != committee.shares.len() {
        return Err(EngineKeyError::Mismatch("the list of members"));
    }
    let Some(share) = share else { return Ok(()) };
    let public = usize::try_from(share.index.0).ok().and_then(|it| committee.shares.get(it));
    if public != Some(&share.public_key()) {
        return Err(EngineKeyError::Mismatch("the secret share"));
    }
    Ok(())
}
