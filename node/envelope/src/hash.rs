//! The representation-independent hash (interface specification, "Representation-independent
//! hashing of structured data").
//!
//! A request id is this hash over the `content` map exactly as it was sent: a field the gateway
//! does not know is hashed like any other, so that gateway and client always agree on the id.
//! Fields whose value is null or undefined are omitted fields. Only naturals, byte and text
//! strings, arrays and maps with text keys have a hash; anything else is refused.

use std::sync::LazyLock;

use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::cbor::Value;

/// A SHA-256 digest.
pub type Hash = [u8; 32];

/// Why a value has no hash.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{what} has no representation-independent hash; use naturals, byte strings, text, arrays and \
     maps with text keys"
)]
pub struct NotHashable {
    /// The unsupported item.
    pub what: &'static str,
}

/// Hash of a byte string or of the UTF-8 of a text.
pub fn of_bytes(bytes: impl AsRef<[u8]>) -> Hash {
    Sha256::digest(bytes).into()
}

/// Field names of the interface, whose hashes are the same in every request.
const FIELDS: [&str; 11] = [
    "request_type",
    "sender",
    "ingress_expiry",
    "canister_id",
    "method_name",
    "arg",
    "nonce",
    "paths",
    "sender_info",
    "pubkey",
    "expiration",
];
static FIELD_HASHES: LazyLock<[Hash; FIELDS.len()]> = LazyLock::new(|| FIELDS.map(of_bytes));

/// Hash of a field's name.
fn of_field_name(name: &str) -> Hash {
    let mut known = FIELDS.iter().zip(FIELD_HASHES.iter());
    let known = known.find(|(field, _)| **field == name).map(|(_, hash)| *hash);
    known.unwrap_or_else(|| of_bytes(name))
}

/// Hash of a natural: of its shortest unsigned LEB128 encoding.
pub fn of_nat(number: u64) -> Hash {
    let mut bytes = [0u8; 10];
    // There is room for the longest number.
    let length = leb128::write::unsigned(&mut &mut bytes[..], number).unwrap_or_default();
    of_bytes(bytes.get(..length).unwrap_or_default())
}

/// Hash of a map, from the hashes of its keys and values.
pub fn of_fields(mut fields: Vec<[Hash; 2]>) -> Hash {
    fields.sort_unstable();
    let mut hasher = Sha256::new();
    for [key, value] in &fields {
        hasher.update(key);
        hasher.update(value);
    }
    hasher.finalize().into()
}

/// Hash of a decoded value.
pub fn of_value(value: &Value<'_>) -> Result<Hash, NotHashable> {
    match value {
        Value::Nat(number) => Ok(of_nat(*number)),
        Value::Bytes(bytes) => Ok(of_bytes(bytes)),
        Value::Text(text) => Ok(of_bytes(text.as_bytes())),
        Value::Array(elements) => {
            let mut hasher = Sha256::new();
            for element in elements {
                hasher.update(of_value(element)?);
            }
            Ok(hasher.finalize().into())
        }
        Value::Map(entries) => {
            let mut fields = Vec::with_capacity(entries.len());
            for (key, value) in entries.iter().filter(|(_, value)| *value != Value::Null) {
                let key =
                    key.as_text().ok_or(NotHashable { what: "a map key that is not text" })?;
                fields.push([of_field_name(key), of_value(value)?]);
            }
            Ok(of_fields(fields))
        }
        Value::Negative(_) | Value::Null => Err(NotHashable { what: value.kind() }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_specifications_example() {
        let text = |text: &'static str| Value::Text(text.into());
        let bytes = |bytes: &'static [u8]| Value::Bytes(bytes.into());
        let content = Value::Map(vec![
            (text("request_type"), text("call")),
            (text("nonce"), Value::Null),
            (text("sender"), bytes(&[4])),
            (text("ingress_expiry"), Value::Nat(1_685_570_400_000_000_000)),
            (text("canister_id"), bytes(&[0, 0, 0, 0, 0, 0, 4, 0xD2])),
            (text("method_name"), text("hello")),
            (text("arg"), bytes(b"DIDL\x00\xFD*")),
        ]);
        assert_eq!(
            hex::encode(of_value(&content).unwrap()),
            "1d1091364d6bb8a6c16b203ee75467d59ead468f523eb058880ae8ec80e2b101"
        );
    }

    #[test]
    fn known_field_names_have_the_hash_of_their_text() {
        for name in FIELDS.into_iter().chain(["", "Sender", "reply"]) {
            assert_eq!(of_field_name(name), of_bytes(name), "{name}");
        }
    }

    #[test]
    fn naturals_are_hashed_in_their_shortest_form() {
        assert_eq!(of_nat(0), of_bytes([0]));
        assert_eq!(of_nat(624_485), of_bytes([0xE5, 0x8E, 0x26]));
        assert_eq!(
            of_nat(u64::MAX),
            of_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01])
        );
    }

    #[test]
    fn what_has_no_hash_is_refused() {
        assert!(of_value(&Value::Negative(0)).is_err());
        assert!(of_value(&Value::Array(vec![Value::Null])).is_err());
        assert!(of_value(&Value::Map(vec![(Value::Nat(1), Value::Nat(1))])).is_err());
    }
}
