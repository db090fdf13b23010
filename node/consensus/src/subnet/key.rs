//! The subnet's key in the engine's types.
//!
//! One key serves both ends (decision 4): the engine's votes and certificates, and the certificates
//! clients verify. They are separated by the tag with which messages are hashed to the curve:
//! `..._POP_` with the engine's namespace here, `..._NUL_` with the Internet Computer's separator
//! there.

use commonware_codec::{Copying, Decode, DecodeExt, Error, Write};
use commonware_cryptography::{
    bls12381::primitives::{
        group::{Private, Share},
        sharing::{Mode, ModeVersion, Sharing},
        variant::MinSig,
    },
    ed25519::{PrivateKey, PublicKey},
};
use commonware_utils::{Participant, ordered::Set};
use genesis::Summary;
use nidkg::{Committee, SecretShare};
use std::num::NonZeroU32;
use thiserror::Error;
use zeroize::Zeroizing;

use super::scheme::Scheme;

/// Bytes of a compressed point of G2.
const POINT: usize = 96;

/// Why the engine cannot sign with what it was given.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum EngineKeyError {
    #[error("{what} of the subnet key does not decode: {reason}")]
    Decode { what: &'static str, reason: String },
    #[error(
        "{0} does not belong to the subnet's public polynomial: files of two subnets were mixed"
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

/// Verifies certificates of all epochs, as the key stays, and signs none.
pub(super) fn verifier(namespace: &[u8], key: &nidkg::PublicKey) -> Result<Scheme, EngineKeyError> {
    let identity =
        DecodeExt::decode(Copying(key.as_bytes())).map_err(decode_error("the public key"))?;
    Ok(Scheme::certificate_verifier(namespace, identity))
}

/// The scheme of a member, or of a node that follows without a share.
pub(super) fn scheme(
    namespace: &[u8],
    members: &Set<PublicKey>,
    committee: &Committee,
    share: Option<&SecretShare>,
) -> Result<Scheme, EngineKeyError> {
    let places = u32::try_from(committee.shares.len()).unwrap_or(u32::MAX);
    let limit = NonZeroU32::new(places).ok_or(EngineKeyError::Mismatch("an empty committee"))?;
    if members.len() != committee.shares.len() {
        return Err(EngineKeyError::Mismatch("the list of members"));
    }
    let coefficients = committee.coefficients().map_err(|error| EngineKeyError::Decode {
        what: "the public polynomial",
        reason: error.to_string(),
    })?;
    // The engine's type is made from its encoding only: how places become arguments of the
    // polynomial (0: place + 1), their number, the coefficients.
    let mut encoded = Vec::with_capacity(16 + coefficients.len() * POINT);
    Mode::NonZeroCounter.write(&mut encoded);
    places.write(&mut encoded);
    coefficients.len().write(&mut encoded);
    coefficients.iter().for_each(|coefficient| encoded.extend_from_slice(coefficient));
    let sharing: Sharing<MinSig> =
        Sharing::decode_cfg(bytes::Bytes::from(encoded), &(limit, ModeVersion::v0()))
            .map_err(decode_error("the public polynomial"))?;
    let same =
        |point: &<MinSig as commonware_cryptography::bls12381::primitives::variant::Variant>::Public,
         key: &nidkg::PublicKey| {
            commonware_codec::Encode::encode(point).as_ref() == key.as_bytes()
        };
    if !same(sharing.public(), &committee.public_key) {
        return Err(EngineKeyError::Mismatch("the subnet's public key"));
    }
    for (place, key) in committee.shares.iter().enumerate() {
        let point = sharing.partial_public(Participant::new(place as u32));
        if !point.is_ok_and(|point| same(&point, key)) {
            return Err(EngineKeyError::Mismatch("the public key of a share"));
        }
    }
    let Some(share) = share else {
        return Ok(Scheme::verifier(namespace, members.clone(), sharing));
    };
    let secret = Zeroizing::new(share.to_bytes());
    let private = Private::decode(Copying(&*secret)).map_err(decode_error("the secret share"))?;
    let share = Share::new(Participant::new(share.index.0), private);
    Scheme::signer(namespace, members.clone(), sharing, share)
        .ok_or(EngineKeyError::Mismatch("the secret share"))
}
