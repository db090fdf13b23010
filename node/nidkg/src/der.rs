//! The DER form of a subnet public key: a SubjectPublicKeyInfo whose algorithm is BLS12-381 in G2
//! and whose bit string is the compressed point.

use crate::threshold::{BlsError, PublicKey};

/// Everything before the 96 bytes of the point. `SEQUENCE { SEQUENCE { OID
/// 1.3.6.1.4.1.44668.5.3.1.2.1, OID 1.3.6.1.4.1.44668.5.3.2.1 }, BIT STRING }`.
pub const DER_PREFIX: [u8; 37] = [
    0x30, 0x81, 0x82, // SEQUENCE, 130 bytes
    0x30, 0x1d, // SEQUENCE, 29 bytes
    0x06, 0x0d, 0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0xdc, 0x7c, 0x05, 0x03, 0x01, 0x02,
    0x01, // algorithm
    0x06, 0x0c, 0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0xdc, 0x7c, 0x05, 0x03, 0x02,
    0x01, // curve
    0x03, 0x61, 0x00, // BIT STRING, 97 bytes, no unused bits
];

/// DER form of a public key, 133 bytes: [`DER_PREFIX`] and the compressed point.
pub fn public_key_to_der(key: &PublicKey) -> Vec<u8> {
    [&DER_PREFIX[..], key.as_bytes()].concat()
}

/// Refuses anything but exactly this form, and points outside the prime-order subgroup.
pub fn public_key_from_der(der: &[u8]) -> Result<PublicKey, BlsError> {
    let point = der
        .strip_prefix(&DER_PREFIX[..])
        .and_then(|rest| <[u8; 96]>::try_from(rest).ok())
        .ok_or(BlsError::NotDer { length: der.len() })?;
    PublicKey::from_bytes(&point)
}
