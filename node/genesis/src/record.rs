//! A node's description of itself.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use ic_principal::Principal;
use nidkg::EncryptionPublicKey;
use serde::{Deserialize, Serialize};

use crate::{
    GenesisError,
    bytes::{BytesError, Reader, write_part},
    encoding::{self, Hex, VERSION, shortened},
    hash::Message,
};

/// A record larger than this is not read.
pub const RECORD_BYTES_MAX: usize = 16 << 10;
/// Longest address: a name of the domain name system, with a port.
pub const ADDRESS_BYTES_MAX: usize = 260;

/// A node's public record: checked, wherever it came from.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeRecord {
    node_key: VerifyingKey,
    encryption: EncryptionPublicKey,
    address: String,
    signature: Signature,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordFile {
    version: u32,
    /// Text of the principal that is the hash of the node key.
    node_id: String,
    node_key: Hex<32>,
    /// With the proof of possession, bound to the node id.
    encryption_key: Hex<{ EncryptionPublicKey::LENGTH }>,
    address: String,
    /// Of the node key, over all of the above.
    signature: Hex<64>,
}

/// DER of a node's Ed25519 public key (RFC 8410).
pub fn node_key_der(key: &VerifyingKey) -> Vec<u8> {
    const PREFIX: [u8; 12] =
        [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
    [&PREFIX[..], key.as_bytes()].concat()
}

/// A node is known by the hash of its key.
pub fn node_id(key: &VerifyingKey) -> Principal {
    Principal::self_authenticating(node_key_der(key))
}

/// Whether `address` is HOST:PORT: a name or an address of IP, version 6 in brackets, and a port
/// other than 0.
pub fn check_address(address: &str) -> Result<(), GenesisError> {
    let no = |why| Err(GenesisError::Address { address: shortened(address).to_owned(), why });
    if address.len() > ADDRESS_BYTES_MAX {
        return no("it is too long");
    }
    let Some((host, port)) = address.rsplit_once(':') else {
        return no("it has no port");
    };
    if !port.bytes().all(|byte| byte.is_ascii_digit())
        || !port.parse::<u16>().is_ok_and(|port| port > 0)
    {
        return no("its port is not between 1 and 65535");
    }
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) if host.parse::<std::net::Ipv6Addr>().is_ok() => Ok(()),
        Some(_) => no("what stands in brackets is no address of IP version 6"),
        None if host.is_empty() => no("it has no host"),
        None if host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-') =>
        {
            Ok(())
        }
        None => no("its host has characters that no host has"),
    }
}

impl NodeRecord {
    /// The record of the node with these keys. `encryption` must have been made for the owner
    /// [`node_id`] of the node key.
    pub fn new(
        node: &SigningKey,
        encryption: EncryptionPublicKey,
        address: &str,
    ) -> Result<Self, GenesisError> {
        check_address(address)?;
        let node_key = node.verifying_key();
        let owner = node_id(&node_key);
        encryption
            .verify(owner.as_slice())
            .map_err(|error| GenesisError::EncryptionKey { node: owner, error })?;
        let signature = node.sign(message(&node_key, &encryption, address).bytes());
        Ok(Self { node_key, encryption, address: address.to_owned(), signature })
    }

    /// Reads a record and checks everything there is to check.
    pub fn from_json(bytes: &[u8]) -> Result<Self, GenesisError> {
        encoding::read::<RecordFile>("the node record", bytes, RECORD_BYTES_MAX)?.try_into()
    }

    /// As a file.
    pub fn to_json(&self) -> String {
        encoding::write(&RecordFile::from(self))
    }

    /// Principal of the node, derived from its node key.
    pub fn node_id(&self) -> Principal {
        node_id(&self.node_key)
    }

    /// The key that verifies its signatures.
    pub fn node_key(&self) -> &VerifyingKey {
        &self.node_key
    }

    /// The key that dealings for it are encrypted to.
    pub fn encryption_key(&self) -> &EncryptionPublicKey {
        &self.encryption
    }

    /// Where its peers reach it: HOST:PORT.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Writes node key, encryption key, address with its length, and signature.
    pub(crate) fn write(&self, writer: &mut Vec<u8>) {
        writer.extend_from_slice(self.node_key.as_bytes());
        writer.extend_from_slice(&self.encryption.to_bytes());
        write_part(writer, self.address.as_bytes());
        writer.extend_from_slice(&self.signature.to_bytes());
    }

    /// Reads the output of [`Self::write`], and checks all of it.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, GenesisError> {
        let node_key = reader.array("a node key")?;
        let encryption_key = reader.array("an encryption key")?;
        let address = str::from_utf8(reader.part("an address", ADDRESS_BYTES_MAX)?)
            .map_err(|_| BytesError::NotCanonical { what: "an address" })?;
        let signature = reader.array("the signature of a record")?;
        Self::checked(key_of(&node_key)?, &encryption_key, address.to_owned(), &signature)
    }

    /// The record of these parts, if they belong together.
    fn checked(
        node_key: VerifyingKey,
        encryption_key: &[u8; EncryptionPublicKey::LENGTH],
        address: String,
        signature: &[u8; 64],
    ) -> Result<Self, GenesisError> {
        let node = node_id(&node_key);
        check_address(&address)?;
        let encryption = EncryptionPublicKey::from_bytes(encryption_key, node.as_slice())
            .map_err(|error| GenesisError::EncryptionKey { node, error })?;
        let signature = Signature::from_bytes(signature);
        node_key
            .verify_strict(message(&node_key, &encryption, &address).bytes(), &signature)
            .map_err(|_| GenesisError::RecordSignature(node))?;
        Ok(Self { node_key, encryption, address, signature })
    }

    /// All of it, into the hash of a plan.
    pub(crate) fn hash_into(&self, message: Message) -> Message {
        message
            .part(self.node_key.as_bytes())
            .part(&self.encryption.to_bytes())
            .part(self.address.as_bytes())
            .part(&self.signature.to_bytes())
    }
}

fn message(node_key: &VerifyingKey, encryption: &EncryptionPublicKey, address: &str) -> Message {
    Message::new("thimble-genesis-node")
        .number(u64::from(VERSION))
        .part(node_key.as_bytes())
        .part(&encryption.to_bytes())
        .part(address.as_bytes())
}

impl From<&NodeRecord> for RecordFile {
    fn from(record: &NodeRecord) -> Self {
        let mut encryption_key = Hex([0; EncryptionPublicKey::LENGTH]);
        encryption_key.0.copy_from_slice(&record.encryption.to_bytes());
        Self {
            version: VERSION,
            node_id: record.node_id().to_text(),
            node_key: Hex(record.node_key.to_bytes()),
            encryption_key,
            address: record.address.clone(),
            signature: Hex(record.signature.to_bytes()),
        }
    }
}

impl TryFrom<RecordFile> for NodeRecord {
    type Error = GenesisError;

    fn try_from(file: RecordFile) -> Result<Self, GenesisError> {
        encoding::check_version("the record of a node", file.version)?;
        let node_key = key_of(&file.node_key.0)?;
        let actual = node_id(&node_key);
        if file.node_id != actual.to_text() {
            return Err(GenesisError::NodeId {
                stated: shortened(&file.node_id).to_owned(),
                actual,
            });
        }
        Self::checked(node_key, &file.encryption_key.0, file.address, &file.signature.0)
    }
}

fn key_of(bytes: &[u8; 32]) -> Result<VerifyingKey, GenesisError> {
    // Keys of small order verify any message; they identify no signer.
    VerifyingKey::from_bytes(bytes)
        .ok()
        .filter(|key| !key.is_weak())
        .ok_or_else(|| GenesisError::NodeKey(hex::encode(bytes)))
}
