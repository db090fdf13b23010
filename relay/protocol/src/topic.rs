//! Pubsub topics, content topics and the map from one to the other.
//!
//! Bounds: a pubsub topic is two numbers; a content topic has at most [`CONTENT_TOPIC_BYTES_MAX`]
//! bytes. It must never know which topics this node relays.
//!
//! Source: vacp2p/rfc-index 23 (names) and waku-org/specs relay-sharding (shards, autosharding).

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use thiserror::Error;

/// Longest content topic, in bytes. Those in use have 20 to 100; the bound keeps filter criteria
/// and the index of the store small.
pub const CONTENT_TOPIC_BYTES_MAX: usize = 256;

/// Longest pubsub topic that is read, in bytes: named topics are texts of any form. A sharded
/// topic has at most 23.
pub const PUBSUB_TOPIC_BYTES_MAX: usize = 256;

/// Shards of a cluster that records and metadata can name: 0 to 1023.
pub const SHARDS_PER_CLUSTER_MAX: u16 = 1024;

const PREFIX: &str = "/waku/2/rs/";

/// Why a topic is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopicError {
    /// Not a sharded pubsub topic.
    #[error("not a sharded topic; use {PREFIX}<cluster>/<shard>, both 0 to 65535")]
    NotSharded,
    /// A content topic of more than [`CONTENT_TOPIC_BYTES_MAX`] bytes.
    #[error("{bytes} bytes of content topic, the limit is {CONTENT_TOPIC_BYTES_MAX}; shorten it")]
    TooLong {
        /// Length of the content topic, in bytes.
        bytes: usize,
    },
    /// A content topic from which no shard can be derived.
    #[error("not /application/version/name/encoding; use that form or state the pubsub topic")]
    NotShardable,
    /// A content topic of a generation that is not defined.
    #[error("generation {generation:?} of content topics is not defined; use 0 or none")]
    UnknownGeneration {
        /// The unknown generation, at most [`CONTENT_TOPIC_BYTES_MAX`] bytes.
        generation: String,
    },
}

/// A pubsub topic of static sharding, written `/waku/2/rs/<cluster>/<shard>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PubsubTopic {
    /// Number of the cluster, which is a network of its own.
    pub cluster: u16,
    /// The mesh within the network.
    pub shard: u16,
}

impl PubsubTopic {
    /// The topic of a shard.
    pub fn new(cluster: u16, shard: u16) -> Self {
        Self { cluster, shard }
    }
}

impl fmt::Display for PubsubTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}", self.cluster, self.shard)
    }
}

impl FromStr for PubsubTopic {
    type Err = TopicError;

    /// Strict: one topic has one text, since the text is what is hashed and subscribed to.
    fn from_str(text: &str) -> Result<Self, TopicError> {
        let numbers = text.strip_prefix(PREFIX).ok_or(TopicError::NotSharded)?;
        let (cluster, shard) = numbers.split_once('/').ok_or(TopicError::NotSharded)?;
        Ok(Self { cluster: number(cluster)?, shard: number(shard)? })
    }
}

/// A number of 16 bits in its shortest decimal form, without a sign.
fn number(text: &str) -> Result<u16, TopicError> {
    let padded = text.len() > 1 && text.starts_with('0');
    if padded || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TopicError::NotSharded);
    }
    text.parse().map_err(|_| TopicError::NotSharded)
}

/// A content topic of the form `/application/version/name/encoding`, optionally with the generation
/// `/0` before it. Content topics of any other form are plain text to this crate, and need a pubsub
/// topic in addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentTopic<'a> {
    /// Name of the application.
    pub application: &'a str,
    /// Its version, as text.
    pub version: &'a str,
    /// The topic within the application.
    pub name: &'a str,
    /// How the payload is encoded, such as `proto`.
    pub encoding: &'a str,
}

impl<'a> ContentTopic<'a> {
    /// Takes a content topic apart. Errors: too long, another form, an unknown generation.
    pub fn parse(text: &'a str) -> Result<Self, TopicError> {
        if text.len() > CONTENT_TOPIC_BYTES_MAX {
            return Err(TopicError::TooLong { bytes: text.len() });
        }
        // One more than the longest form has, to detect a longer one.
        let parts: Vec<&str> = text.split('/').take(7).collect();
        let [application, version, name, encoding] = match parts[..] {
            ["", application, version, name, encoding]
            | ["", "0", application, version, name, encoding] => {
                [application, version, name, encoding]
            }
            ["", generation, _, _, _, _] => {
                let generation = generation.to_owned();
                return Err(TopicError::UnknownGeneration { generation });
            }
            _ => return Err(TopicError::NotShardable),
        };
        if [application, version, name, encoding].contains(&"") {
            return Err(TopicError::NotShardable);
        }
        Ok(Self { application, version, name, encoding })
    }
}

/// The shard of a content topic in a network of `shards` shards: the last eight bytes of
/// SHA-256 over application and version, as a big-endian number, modulo `shards`.
/// Source: waku-org/specs relay-sharding, automatic sharding.
pub fn autoshard(topic: &ContentTopic<'_>, shards: NonZeroU16) -> u16 {
    let digest =
        Sha256::new().chain_update(topic.application).chain_update(topic.version).finalize();
    let mut last = [0; 8];
    last.copy_from_slice(&digest[24..]);
    (u64::from_be_bytes(last) % u64::from(shards.get())) as u16
}
