//! Node records (EIP-778) as Waku nodes write them: a node's identity, its addresses, its services.
//! Signed by the node, so that they can be obtained from any party.
//!
//! Bounds: [`RECORD_BYTES_MAX`]; a record that is longer is refused before it is read. A record is
//! read only with a valid signature of the scheme `v4`.
//!
//! Source: EIP-778; the keys of Waku in [`crate::enr_keys`].

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;
use enr::{Enr, EnrPublicKey, k256::ecdsa::SigningKey};
use thiserror::Error;

use crate::{
    enr_keys::{
        ADDRESSES_KEY, CAPABILITIES_KEY, Capabilities, RecordError, SHARD_BITS_KEY, SHARD_LIST_KEY,
        ShardList, decode_addresses, encode_addresses,
    },
    peer_exchange::RECORD_BYTES_MAX,
};

/// Before a record that is written as text.
pub const TEXT_PREFIX: &str = "enr:";

/// Longest record as text: base64 without padding.
pub const RECORD_TEXT_MAX: usize = TEXT_PREFIX.len() + RECORD_BYTES_MAX.div_ceil(3) * 4;

/// Length of a compressed secp256k1 key, in bytes.
pub const PUBLIC_KEY_BYTES: usize = 33;

/// Why a record is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeRecordError {
    /// More than a record may have.
    #[error("a record of {bytes} bytes; the longest has {RECORD_BYTES_MAX}")]
    TooLong {
        /// Its length, or that of its text.
        bytes: usize,
    },
    /// Not a record, not signed by its key, or followed by something.
    #[error("damaged record: {why}")]
    Damaged {
        /// The violated rule.
        why: String,
    },
    /// A value of Waku in it.
    #[error(transparent)]
    Value(#[from] RecordError),
}

fn damaged(why: impl fmt::Display) -> NodeRecordError {
    NodeRecordError::Damaged { why: why.to_string() }
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// The whole record in its RLP form.
    pub bytes: Bytes,
    /// Of two records of a node, the one with the higher number is in force.
    pub sequence: u64,
    /// Key of the node, compressed.
    pub public_key: [u8; PUBLIC_KEY_BYTES],
    /// The services; absent for nodes that are not of Waku.
    pub capabilities: Option<Capabilities>,
    /// The shards; absent for nodes that do not relay by shards.
    pub shards: Option<ShardList>,
    /// TCP addresses by `ip` and `tcp`, `ip6` and `tcp6`: two at most.
    pub tcp: Vec<SocketAddr>,
    /// UDP address by `ip` and `udp`.
    pub udp: Option<SocketAddr>,
    /// Whether `tcp` occurs without `ip`: go-waku refuses whole answers with such a record.
    pub tcp_without_ip: bool,
    /// Binary multiaddresses (`multiaddrs`); empty when the record has none.
    pub addresses: Vec<Bytes>,
}

impl NodeRecord {
    /// Reads the RLP form. Errors: too long, damaged, a signature that is not the key's, a damaged
    /// value of Waku.
    pub fn decode(bytes: &[u8]) -> Result<Self, NodeRecordError> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(NodeRecordError::TooLong { bytes: bytes.len() });
        }
        let mut rest = bytes;
        let record =
            <Enr<SigningKey> as alloy_rlp::Decodable>::decode(&mut rest).map_err(damaged)?;
        if !rest.is_empty() {
            return Err(damaged("something follows it"));
        }
        let value = |key: &str| match record.get_decodable::<Bytes>(key) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(error)) => Err(damaged(format!("{key}: {error}"))),
        };
        let capabilities =
            value(CAPABILITIES_KEY)?.map(|bits| Capabilities::decode(&bits)).transpose()?;
        let shards = match value(SHARD_LIST_KEY)? {
            Some(list) => Some(ShardList::decode_list(&list)?),
            None => value(SHARD_BITS_KEY)?.map(|bits| ShardList::decode_bits(&bits)).transpose()?,
        };
        let addresses = value(ADDRESSES_KEY)?.map(|all| decode_addresses(&all)).transpose()?;
        let tcp = [
            record.tcp4_socket().map(SocketAddr::from),
            record.tcp6_socket().map(SocketAddr::from),
        ];
        let public_key: &[u8] = &record.public_key().encode();
        Ok(Self {
            bytes: Bytes::copy_from_slice(bytes),
            sequence: record.seq(),
            public_key: public_key.try_into().map_err(damaged)?,
            capabilities,
            shards,
            tcp: tcp.into_iter().flatten().collect(),
            udp: record.udp4_socket().map(SocketAddr::from),
            tcp_without_ip: record.tcp4().is_some()
                && record.ip4().is_none()
                && record.ip6().is_none(),
            addresses: addresses.unwrap_or_default(),
        })
    }
}

impl FromStr for NodeRecord {
    type Err = NodeRecordError;

    /// Reads the text form, `enr:` and base64.
    fn from_str(text: &str) -> Result<Self, NodeRecordError> {
        if text.len() > RECORD_TEXT_MAX {
            return Err(NodeRecordError::TooLong { bytes: text.len() });
        }
        let digits =
            text.strip_prefix(TEXT_PREFIX).ok_or_else(|| damaged("it does not begin with enr:"))?;
        Self::decode(&BASE64URL_NOPAD.decode(digits.as_bytes()).map_err(damaged)?)
    }
}

impl fmt::Display for NodeRecord {
    /// The text form.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{TEXT_PREFIX}{}", BASE64URL_NOPAD.encode(&self.bytes))
    }
}

/// A node's description of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordContent {
    /// Number of this version of the record; the highest one of a node is in force.
    pub sequence: u64,
    /// Services that the node offers.
    pub capabilities: Capabilities,
    /// Cluster and shards that the node takes part in.
    pub shards: ShardList,
    /// IPv4 address with the TCP port there.
    pub ip4: Option<(Ipv4Addr, Option<u16>)>,
    /// IPv6 address with the TCP port there.
    pub ip6: Option<(Ipv6Addr, Option<u16>)>,
    /// UDP ports of discovery, by IPv4 and IPv6.
    pub udp: (Option<u16>, Option<u16>),
    /// Additional binary multiaddresses, the most important first; those that do not fit are left
    /// out.
    pub addresses: Vec<Vec<u8>>,
}

impl RecordContent {
    /// The record, signed with a secp256k1 secret key. Errors: no such key; too long even without
    /// [`RecordContent::addresses`].
    pub fn sign(&self, secret: &[u8; 32]) -> Result<NodeRecord, NodeRecordError> {
        let key = SigningKey::from_slice(secret).map_err(damaged)?;
        let mut count = self.addresses.len();
        loop {
            match self.sign_with(&key, count) {
                Err(_) if count > 0 => count -= 1,
                signed => return NodeRecord::decode(&signed?),
            }
        }
    }

    fn sign_with(&self, key: &SigningKey, addresses: usize) -> Result<Vec<u8>, NodeRecordError> {
        let mut record = Enr::<SigningKey>::builder();
        record.seq(self.sequence);
        record.add_value(CAPABILITIES_KEY, &Bytes::copy_from_slice(&self.capabilities.encode()));
        let (shards_key, shards) = self.shards.encode();
        record.add_value(shards_key, &Bytes::from(shards));
        if let Some((ip, tcp)) = self.ip4 {
            record.ip4(ip);
            tcp.map(|port| record.tcp4(port));
        }
        if let Some((ip, tcp)) = self.ip6 {
            record.ip6(ip);
            tcp.map(|port| record.tcp6(port));
        }
        self.udp.0.map(|port| record.udp4(port));
        self.udp.1.map(|port| record.udp6(port));
        let addresses = self.addresses.get(..addresses).unwrap_or_default();
        if !addresses.is_empty() {
            record.add_value(ADDRESSES_KEY, &Bytes::from(encode_addresses(addresses)?));
        }
        let record = record.build(key).map_err(damaged)?;
        let mut bytes = Vec::with_capacity(RECORD_BYTES_MAX);
        alloy_rlp::Encodable::encode(&record, &mut bytes);
        Ok(bytes)
    }
}
