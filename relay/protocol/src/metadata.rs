//! Metadata: which cluster and shards a node takes part in. Peers that do not answer it, or that
//! are of another cluster, are dropped by other nodes.
//!
//! Bounds: shards are 0 to 1023 and counted once, so a decoded list has at most 1024 entries for
//! any input. It must never know the shards of this node.
//!
//! Source: vacp2p/rfc-index 66. The specification's list of shards was once unpacked (field 2)
//! and is now packed (field 3); some peers read the one and some the other, so both are written.

use bytes::Bytes;

use crate::topic::SHARDS_PER_CLUSTER_MAX;
use crate::wire::{self, DecodeError, Fields, Value};

/// Name of the protocol.
pub const PROTOCOL: &str = "/vac/waku/metadata/1.0.0";

/// Longest request and reply, in bytes: all shards, in both forms, take under 8 KiB.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// A request or a reply: both describe their sender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The network; absent if the peer does not state it.
    pub cluster: Option<u32>,
    /// Shards, ascending, each once, 0 to 1023.
    pub shards: Vec<u16>,
}

impl Metadata {
    /// Reads a request or reply without its length prefix. Either list of shards is read, packed or
    /// not; a number over 1023 is not a shard and is left out. Errors: damaged.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let mut cluster = None;
        let mut present = [false; SHARDS_PER_CLUSTER_MAX as usize];
        let mut add = |number: u64| {
            let place = usize::try_from(number).ok().and_then(|number| present.get_mut(number));
            if let Some(place) = place {
                *place = true;
            }
        };
        for field in Fields::new(&input) {
            let field = field?;
            match (field.tag, field.value) {
                (1, _) => cluster = Some(field.uint32()?),
                (2 | 3, Value::Varint(number)) => add(number),
                (2 | 3, Value::Bytes(packed)) => {
                    for number in wire::packed_varints(packed) {
                        add(number?);
                    }
                }
                (2 | 3, _) => return Err(DecodeError::WrongType { tag: field.tag }),
                _ => {}
            }
        }
        let shards = (0..SHARDS_PER_CLUSTER_MAX).filter(|shard| present[usize::from(*shard)]);
        Ok(Self { cluster, shards: shards.collect() })
    }

    /// The request or reply without a length prefix, with the shards in both forms.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + 5 * self.shards.len());
        wire::put_each_varint(1, self.cluster, &mut out);
        wire::put_each_varint(2, self.shards.iter().copied(), &mut out);
        let mut packed = Vec::with_capacity(2 * self.shards.len());
        self.shards.iter().for_each(|shard| wire::put_packed(u64::from(*shard), &mut packed));
        if !packed.is_empty() {
            wire::put_bytes(3, &packed, &mut out);
        }
        out
    }
}
