//! The values of Waku's keys in node records: `waku2`, `rs`, `rsv` and `multiaddrs`.
//!
//! Bounds: a record has at most 300 bytes, so no value is longer; shards are 0 to 1023. It must
//! never know the record itself, its signature and its other keys.
//!
//! Source: vacp2p/rfc-index 31 (`waku2`, `multiaddrs`), waku-org/specs relay-sharding (`rs`,
//! `rsv`).

use bytes::Bytes;
use thiserror::Error;

use crate::peer_exchange::RECORD_BYTES_MAX;
use crate::topic::SHARDS_PER_CLUSTER_MAX;

/// Key of the [`Capabilities`].
pub const CAPABILITIES_KEY: &str = "waku2";

/// Key of [`ShardList`] as a list of shards.
pub const SHARD_LIST_KEY: &str = "rs";

/// Key of [`ShardList`] as a bit vector.
pub const SHARD_BITS_KEY: &str = "rsv";

/// Key of the addresses.
pub const ADDRESSES_KEY: &str = "multiaddrs";

/// From this many shards on, a record carries `rsv` instead of `rs`. Source: waku-org/specs
/// relay-sharding.
pub const SHARD_BITS_FROM: usize = 64;

/// Most addresses that are read from a record; 300 bytes hold about three.
pub const ADDRESSES_MAX: usize = 16;

const BITS_BYTES: usize = SHARDS_PER_CLUSTER_MAX as usize / 8;

/// Why the value of a key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The value does not have the length that its content states.
    #[error("{key} has {bytes} bytes where {expected} are expected")]
    WrongLength {
        /// Key of the value.
        key: &'static str,
        /// Length of the value, in bytes.
        bytes: usize,
        /// The length it must have, or the least.
        expected: usize,
    },
    /// A shard that a record cannot name.
    #[error("shard {shard} in a record; a cluster has {SHARDS_PER_CLUSTER_MAX}, from 0")]
    NoSuchShard {
        /// The number that was given, 1024 or more.
        shard: u16,
    },
    /// More addresses than are read, or a value longer than a record.
    #[error("{key} is longer than {RECORD_BYTES_MAX} bytes or {ADDRESSES_MAX} entries; list fewer")]
    TooLong {
        /// Key of the value.
        key: &'static str,
    },
    /// An address of no bytes.
    #[error("multiaddrs holds an address without bytes")]
    EmptyAddress,
}

fn wrong_length(key: &'static str, value: &[u8], expected: usize) -> RecordError {
    RecordError::WrongLength { key, bytes: value.len(), expected }
}

/// Services of a node: the value of `waku2`, one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities(pub u8);

impl Capabilities {
    /// Bit 0: the node relays messages.
    pub const RELAY: Self = Self(1);
    /// Answers store queries.
    pub const STORE: Self = Self(1 << 1);
    /// Takes filter subscriptions.
    pub const FILTER: Self = Self(1 << 2);
    /// Takes light pushes.
    pub const LIGHT_PUSH: Self = Self(1 << 3);
    /// Bit 4: the node synchronises its store with others.
    pub const SYNC: Self = Self(1 << 4);

    /// These and those of `other`.
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The value of `waku2`, one byte.
    pub fn encode(self) -> [u8; 1] {
        [self.0]
    }

    /// Reads a value. Bits without a meaning are kept. Errors: not one byte.
    pub fn decode(value: &[u8]) -> Result<Self, RecordError> {
        match value {
            [bits] => Ok(Self(*bits)),
            _ => Err(wrong_length(CAPABILITIES_KEY, value, 1)),
        }
    }
}

/// The shards a node takes part in: the value of `rs` or `rsv`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardList {
    cluster: u16,
    shards: Vec<u16>,
}

impl ShardList {
    /// Shards of a cluster, in any order. Errors: a shard over 1023.
    pub fn new(cluster: u16, shards: impl IntoIterator<Item = u16>) -> Result<Self, RecordError> {
        let mut present = [false; SHARDS_PER_CLUSTER_MAX as usize];
        for shard in shards {
            *present.get_mut(usize::from(shard)).ok_or(RecordError::NoSuchShard { shard })? = true;
        }
        let shards = (0..SHARDS_PER_CLUSTER_MAX).filter(|shard| present[usize::from(*shard)]);
        Ok(Self { cluster, shards: shards.collect() })
    }

    /// Number of the cluster that the shards are of.
    pub fn cluster(&self) -> u16 {
        self.cluster
    }

    /// The shards, ascending, each once.
    pub fn shards(&self) -> &[u16] {
        &self.shards
    }

    /// The key and value a record should carry: `rs` for fewer than [`SHARD_BITS_FROM`] shards,
    /// else `rsv`.
    pub fn encode(&self) -> (&'static str, Vec<u8>) {
        let mut value = self.cluster.to_be_bytes().to_vec();
        if self.shards.len() < SHARD_BITS_FROM {
            value.push(self.shards.len() as u8);
            value.extend(self.shards.iter().flat_map(|shard| shard.to_be_bytes()));
            return (SHARD_LIST_KEY, value);
        }
        (SHARD_BITS_KEY, self.encode_bits())
    }

    /// The value of `rsv`. Shard n is bit n mod 8, from the least significant, of byte n / 8: the
    /// order of the Go node. The specification's text, its example and the js client each have
    /// another one; networks of fewer than [`SHARD_BITS_FROM`] shards never use this form.
    pub fn encode_bits(&self) -> Vec<u8> {
        let mut value = vec![0; 2 + BITS_BYTES];
        value[..2].copy_from_slice(&self.cluster.to_be_bytes());
        for shard in &self.shards {
            value[2 + usize::from(shard / 8)] |= 1 << (shard % 8);
        }
        value
    }

    /// Reads the value of `rs`. Errors: a length that does not fit its count, a shard over 1023.
    pub fn decode_list(value: &[u8]) -> Result<Self, RecordError> {
        let length = |expected| wrong_length(SHARD_LIST_KEY, value, expected);
        let [high, low, count, shards @ ..] = value else { return Err(length(3)) };
        if shards.len() != 2 * usize::from(*count) {
            return Err(length(3 + 2 * usize::from(*count)));
        }
        let shards = shards.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
        Self::new(u16::from_be_bytes([*high, *low]), shards)
    }

    /// Reads the value of `rsv`, in the order of [`ShardList::encode_bits`]. Errors: not 130
    /// bytes.
    pub fn decode_bits(value: &[u8]) -> Result<Self, RecordError> {
        if value.len() != 2 + BITS_BYTES {
            return Err(wrong_length(SHARD_BITS_KEY, value, 2 + BITS_BYTES));
        }
        let (cluster, bits) = value.split_at(2);
        let has = |shard: &u16| bits[usize::from(shard / 8)] & (1 << (shard % 8)) != 0;
        Self::new(
            u16::from_be_bytes([cluster[0], cluster[1]]),
            (0..SHARDS_PER_CLUSTER_MAX).filter(has),
        )
    }
}

/// The value of `multiaddrs`: binary addresses, each behind its length in two bytes. Errors: more
/// than fits a record, an empty address.
pub fn encode_addresses<A: AsRef<[u8]>>(addresses: &[A]) -> Result<Vec<u8>, RecordError> {
    if addresses.len() > ADDRESSES_MAX {
        return Err(RecordError::TooLong { key: ADDRESSES_KEY });
    }
    let mut value = Vec::new();
    for address in addresses {
        let address = address.as_ref();
        if address.is_empty() {
            return Err(RecordError::EmptyAddress);
        }
        if value.len() + 2 + address.len() > RECORD_BYTES_MAX {
            return Err(RecordError::TooLong { key: ADDRESSES_KEY });
        }
        value.extend_from_slice(&(address.len() as u16).to_be_bytes());
        value.extend_from_slice(address);
    }
    Ok(value)
}

/// The binary addresses in the value of `multiaddrs`, at most [`ADDRESSES_MAX`], as slices of
/// it. Errors: too many or too long, cut off, an empty address.
pub fn decode_addresses(value: &Bytes) -> Result<Vec<Bytes>, RecordError> {
    if value.len() > RECORD_BYTES_MAX {
        return Err(RecordError::TooLong { key: ADDRESSES_KEY });
    }
    let mut addresses = Vec::new();
    let mut at = 0;
    while at < value.len() {
        let wrong = |expected| wrong_length(ADDRESSES_KEY, value, expected);
        let Some(&[high, low]) = value.get(at..at + 2) else { return Err(wrong(at + 2)) };
        let bytes = usize::from(u16::from_be_bytes([high, low]));
        let end = at + 2 + bytes;
        if bytes == 0 {
            return Err(RecordError::EmptyAddress);
        }
        if end > value.len() {
            return Err(wrong(end));
        }
        if addresses.len() == ADDRESSES_MAX {
            return Err(RecordError::TooLong { key: ADDRESSES_KEY });
        }
        addresses.push(value.slice(at + 2..end));
        at = end;
    }
    Ok(addresses)
}
