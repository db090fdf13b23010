//! Web authentication signatures (interface specification, "Web Authentication").
//!
//! A key is a COSE key: ECDSA on P-256, RSA PKCS#1 v1.5 or EdDSA on Ed25519, all over SHA-256 of
//! what the authenticator signed. A signature is a CBOR map of authenticator data, client data
//! (JSON) and the authenticator's signature. It holds if the client data's challenge is the
//! base64url text of the payload and the authenticator signed `authenticator_data ||
//! SHA-256(client_data_json)`.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;

use super::{ed25519, keys::KeyError};
use crate::{
    cbor::{self, Bounds, Value},
    hash,
};

/// A COSE key has at most a dozen entries on one level, a signature three.
const BOUNDS: Bounds = Bounds { depth: 4, items: 64 };

/// A COSE key of one of the three allowed kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CoseKey {
    /// Uncompressed point on P-256.
    P256([u8; 65]),
    /// Modulus and exponent, big-endian.
    Rsa {
        /// Modulus (COSE label -1).
        n: Vec<u8>,
        /// Public exponent (COSE label -2).
        e: Vec<u8>,
    },
    /// The 32 bytes of an Ed25519 public key.
    Ed25519([u8; 32]),
}

fn label(number: i64) -> Value<'static> {
    match u64::try_from(number) {
        Ok(nat) => Value::Nat(nat),
        Err(_) => Value::Negative(number.unsigned_abs() - 1),
    }
}

impl CoseKey {
    /// Parses the contents of the bit string.
    pub(crate) fn from_cbor(bytes: &[u8]) -> Result<Self, KeyError> {
        let malformed = || KeyError::Malformed {
            expected: "a COSE key of ECDSA P-256 (ES256), RSA (RS256) or Ed25519 (EdDSA)",
        };
        let Ok(Value::Map(entries)) = cbor::decode(bytes, BOUNDS) else { return Err(malformed()) };
        let get = |wanted: i64| {
            entries.iter().find(|(key, _)| *key == label(wanted)).map(|(_, value)| value)
        };
        let is = |wanted: i64, number: i64| get(wanted) == Some(&label(number));
        let blob = |wanted: i64| get(wanted).and_then(Value::as_bytes).ok_or_else(malformed);
        // 1 is the key type, 3 the algorithm; -1 is the curve or the modulus, -2 and -3 are
        // coordinates or the exponent.
        match () {
            () if is(1, 2) && is(3, -7) && is(-1, 1) => {
                let (x, y) = (blob(-2)?, blob(-3)?);
                let point = [&[4], x, y].concat();
                if x.len() != 32 {
                    return Err(malformed());
                }
                point.try_into().map(Self::P256).map_err(|_| malformed())
            }
            () if is(1, 3) && is(3, -257) => {
                Ok(Self::Rsa { n: blob(-1)?.to_vec(), e: blob(-2)?.to_vec() })
            }
            () if is(1, 1) && is(3, -8) && is(-1, 6) => {
                blob(-2)?.try_into().map(Self::Ed25519).map_err(|_| malformed())
            }
            () => Err(malformed()),
        }
    }

    /// For error messages.
    pub(crate) fn scheme(&self) -> &'static str {
        match self {
            Self::P256(_) => "WebAuthn ECDSA P-256",
            Self::Rsa { .. } => "WebAuthn RSA",
            Self::Ed25519(_) => "WebAuthn Ed25519",
        }
    }

    fn verify_raw(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::P256(point) => UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point)
                .verify(message, signature)
                .is_ok(),
            Self::Rsa { n, e } => RsaPublicKeyComponents { n, e }
                .verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
                .is_ok(),
            Self::Ed25519(key) => ed25519::verify(key, &[message], signature),
        }
    }

    /// Whether `signature` is a web authentication assertion of this key over `payload`.
    pub(crate) fn verify(&self, payload: &[u8], signature: &[u8]) -> bool {
        let Ok(assertion) = cbor::decode(signature, BOUNDS) else { return false };
        let (Some(authenticator_data), Some(client_data), Some(signature)) = (
            assertion.field("authenticator_data").and_then(Value::as_bytes),
            assertion.field("client_data_json").and_then(Value::as_text),
            assertion.field("signature").and_then(Value::as_bytes),
        ) else {
            return false;
        };
        let Ok(client) = serde_json::from_str::<ClientData>(client_data) else { return false };
        if client.challenge.trim_end_matches('=') != URL_SAFE_NO_PAD.encode(payload) {
            return false;
        }
        let signed = [authenticator_data, &hash::of_bytes(client_data)].concat();
        self.verify_raw(&signed, signature)
    }
}

/// The one field of the client data that matters; the others are the browser's.
#[derive(Deserialize)]
struct ClientData {
    challenge: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_specifications_key_parses() {
        let key = hex::decode(
            "a50102032620012158207ffd83632072fd1bfeaf3fbaa43146e0ef95c3f55e3994a41bbf2b5174d771da22582032497eed0a7f6f000928765b8318162cfd80a94e525a6a368c2363063d04e6ed",
        )
        .unwrap();
        assert_eq!(CoseKey::from_cbor(&key).unwrap().scheme(), "WebAuthn ECDSA P-256");
        assert!(CoseKey::from_cbor(&key[..key.len() - 1]).is_err());
        assert!(CoseKey::from_cbor(&[0xa0]).is_err());
    }
}
