//! Public keys as the interface encodes them (DER, SubjectPublicKeyInfo) and the plain signature
//! schemes.
//!
//! The DER reader accepts exactly the encodings the specification names: no optional parameters, no
//! trailing bytes, uncompressed points only. The scheme of a key is given by its object identifiers
//! alone.
//!
//! Ed25519 is verified by the strict rules of ed25519-dalek ([`super::ed25519`]: no small-order
//! keys, canonical scalars), P-256 and RSA by ring, secp256k1 by k256. ECDSA signatures are
//! accepted with either sign of `s`, as the specification does not restrict it.

use ic_principal::Principal;
use thiserror::Error;

use super::webauthn::CoseKey;

const OID_ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const OID_EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const OID_P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const OID_SECP256K1: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x0a];
const OID_COSE: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xb8, 0x43, 0x01, 0x01];
const OID_CANISTER: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xb8, 0x43, 0x01, 0x02];
/// Longer keys are refused; an RSA key of 8192 bits in COSE is under 1,100 bytes.
const KEY_BYTES_MAX: usize = 2_048;

/// Why a public key is not acceptable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum KeyError {
    #[error("the public key has {length} bytes; at most {KEY_BYTES_MAX} are accepted")]
    TooLong { length: usize },
    #[error("the public key is not a DER SubjectPublicKeyInfo with nothing after it")]
    NotDer,
    #[error(
        "the public key's algorithm is none of Ed25519, ECDSA on P-256 or secp256k1, COSE, \
         canister signature"
    )]
    UnknownAlgorithm,
    #[error("the public key's bytes are not {expected}")]
    Malformed { expected: &'static str },
}

/// A parsed public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublicKey<'a> {
    /// Ed25519; the 32 bytes of the public key.
    Ed25519(&'a [u8; 32]),
    /// ECDSA on P-256 over SHA-256; the uncompressed point.
    P256(&'a [u8; 65]),
    /// ECDSA on secp256k1 over SHA-256; the uncompressed point.
    Secp256k1(&'a [u8; 65]),
    /// A web authentication key.
    WebAuthn(CoseKey),
    /// A canister's key.
    Canister(CanisterKey<'a>),
}

/// A canister signature key: the signing canister and the seed that names one of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CanisterKey<'a> {
    /// The canister that makes the signatures.
    pub(crate) canister_id: Principal,
    /// Which of its keys.
    pub(crate) seed: &'a [u8],
}

/// Reads definite-length DER elements off the front of a slice.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn element(&mut self, tag: u8) -> Result<&'a [u8], KeyError> {
        let (&found, rest) = self.0.split_first().ok_or(KeyError::NotDer)?;
        let (&first, rest) = rest.split_first().ok_or(KeyError::NotDer)?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81 => {
                let (&length, rest) = rest.split_first().ok_or(KeyError::NotDer)?;
                if length < 0x80 {
                    return Err(KeyError::NotDer);
                }
                (usize::from(length), rest)
            }
            0x82 => {
                let (length, rest) = rest.split_first_chunk::<2>().ok_or(KeyError::NotDer)?;
                let length = u16::from_be_bytes(*length);
                if length < 0x100 {
                    return Err(KeyError::NotDer);
                }
                (usize::from(length), rest)
            }
            _ => return Err(KeyError::NotDer),
        };
        if found != tag || rest.len() < length {
            return Err(KeyError::NotDer);
        }
        let (element, rest) = rest.split_at(length);
        self.0 = rest;
        Ok(element)
    }

    fn end(self) -> Result<(), KeyError> {
        if self.0.is_empty() { Ok(()) } else { Err(KeyError::NotDer) }
    }
}

impl<'a> PublicKey<'a> {
    /// Parses a DER key.
    pub(crate) fn from_der(der: &'a [u8]) -> Result<Self, KeyError> {
        if der.len() > KEY_BYTES_MAX {
            return Err(KeyError::TooLong { length: der.len() });
        }
        let mut outer = Der(der);
        let mut info = Der(outer.element(0x30)?);
        outer.end()?;
        let mut algorithm = Der(info.element(0x30)?);
        let bits = info.element(0x03)?;
        info.end()?;
        let (0, key) =
            bits.split_first().map(|(unused, key)| (*unused, key)).ok_or(KeyError::NotDer)?
        else {
            return Err(KeyError::NotDer);
        };
        let scheme = algorithm.element(0x06)?;
        let curve = if scheme == OID_EC { algorithm.element(0x06)? } else { &[] };
        algorithm.end()?;
        let point = || {
            key.try_into().ok().filter(|point: &&[u8; 65]| point.first() == Some(&4)).ok_or(
                KeyError::Malformed {
                    expected: "an uncompressed point: 0x04, then 32 bytes each of x and y",
                },
            )
        };
        match (scheme, curve) {
            (OID_ED25519, _) => key
                .try_into()
                .map(Self::Ed25519)
                .map_err(|_| KeyError::Malformed { expected: "32 bytes of Ed25519 key" }),
            (OID_EC, OID_P256) => point().map(Self::P256),
            (OID_EC, OID_SECP256K1) => point().map(Self::Secp256k1),
            (OID_COSE, _) => CoseKey::from_cbor(key).map(Self::WebAuthn),
            (OID_CANISTER, _) => {
                let malformed = KeyError::Malformed {
                    expected: "a length byte, the signing canister's id and a seed",
                };
                let (&length, rest) = key.split_first().ok_or(malformed.clone())?;
                let (canister_id, seed) =
                    rest.split_at_checked(usize::from(length)).ok_or(malformed.clone())?;
                let canister_id = Principal::try_from_slice(canister_id).map_err(|_| malformed)?;
                Ok(Self::Canister(CanisterKey { canister_id, seed }))
            }
            _ => Err(KeyError::UnknownAlgorithm),
        }
    }

    /// For error messages.
    pub(crate) fn scheme(&self) -> &'static str {
        match self {
            Self::Ed25519(_) => "Ed25519",
            Self::P256(_) => "ECDSA P-256",
            Self::Secp256k1(_) => "ECDSA secp256k1",
            Self::WebAuthn(key) => key.scheme(),
            Self::Canister(_) => "canister",
        }
    }
}

/// ECDSA on P-256 over SHA-256, signature as `r || s`.
pub(crate) fn verify_p256(point: &[u8; 65], message: &[u8], signature: &[u8]) -> bool {
    ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_FIXED, point)
        .verify(message, signature)
        .is_ok()
}

/// ECDSA on secp256k1 over SHA-256, signature as `r || s`.
pub(crate) fn verify_secp256k1(point: &[u8; 65], message: &[u8], signature: &[u8]) -> bool {
    use k256::ecdsa::signature::Verifier as _;
    let Ok(signature) = k256::ecdsa::Signature::from_slice(signature) else { return false };
    let signature = signature.normalize_s().unwrap_or(signature);
    k256::ecdsa::VerifyingKey::from_sec1_bytes(point)
        .is_ok_and(|key| key.verify(message, &signature).is_ok())
}
