//! Protected shards: every message is signed by the key of its shard, or it is not relayed.
//!
//! The signature is in `meta`: r and s of ECDSA over secp256k1, 32 bytes each, of [`signed_hash`].
//! That hash leaves `meta` out and covers `ephemeral`, so it is not the message's hash. A signature
//! is worth something for [`WINDOW`] around the message's timestamp only, so that old messages
//! cannot be sent again. It must never know who may publish, or what becomes of a message.
//!
//! Source: `factory/validator_signed.nim` of logos-messaging/logos-delivery 0.38.

use std::{fmt, str::FromStr, time::Duration};

use data_encoding::HEXLOWER_PERMISSIVE;
use enr::k256::ecdsa::{
    Signature, SigningKey, VerifyingKey,
    signature::hazmat::{PrehashSigner, PrehashVerifier},
};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::WakuMessage;

/// How far a message's timestamp may be from the verifier's clock; this and more is too far.
pub const WINDOW: Duration = Duration::from_secs(5 * 60);

/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;

/// Why a message may not pass on a protected shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SignatureError {
    /// It has no timestamp, or no signature of the shard's key in `meta`.
    #[error("the shard is protected, and the message is not signed by its key in `meta`")]
    Unsigned,
    /// The signature is that of the key, and the timestamp is too far off.
    #[error(
        "the shard is protected, and the message's timestamp is 300 s or more off this machine's \
         clock"
    )]
    Untimely,
}

/// Why a text is not a protected shard.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not SHARD:KEY, with a public key of secp256k1 in hexadecimal digits")]
pub struct NotAProtectedShard(String);

/// The public key of a shard.
#[derive(Clone, PartialEq)]
pub struct ShardKey(VerifyingKey);

impl fmt::Debug for ShardKey {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("ShardKey")
    }
}

/// A shard and its key, as an operator writes them: `SHARD:KEY`.
#[derive(Clone, Debug, PartialEq)]
pub struct ProtectedShard {
    /// Its number in this node's cluster.
    pub shard: u16,
    /// Signs its messages.
    pub key: ShardKey,
}

impl FromStr for ProtectedShard {
    type Err = NotAProtectedShard;

    /// Reads a shard and a key, compressed or not. Errors: another form, or no key of secp256k1.
    fn from_str(text: &str) -> Result<Self, NotAProtectedShard> {
        let read = || {
            let (shard, key) = text.split_once(':')?;
            let key = key.strip_prefix("0x").unwrap_or(key);
            let key = HEXLOWER_PERMISSIVE.decode(key.as_bytes()).ok()?;
            let key = ShardKey(VerifyingKey::from_sec1_bytes(&key).ok()?);
            Some(Self { shard: shard.parse().ok()?, key })
        };
        read().ok_or_else(|| NotAProtectedShard(text.chars().take(160).collect()))
    }
}

impl ShardKey {
    /// Checks a message of the shard's topic; `now_ns` is nanoseconds since 1970. The signature is
    /// checked first: a message in time without one is not the fault of a clock.
    ///
    /// # Errors
    /// When the message is not signed by this key, or not in time.
    pub fn check(
        &self,
        pubsub_topic: &str,
        message: &WakuMessage,
        now_ns: i64,
    ) -> Result<(), SignatureError> {
        let timestamp = message.timestamp.filter(|at| *at != 0).ok_or(SignatureError::Unsigned)?;
        let signature = Signature::from_slice(message.meta.as_deref().unwrap_or_default())
            .map_err(|_| SignatureError::Unsigned)?;
        self.0
            .verify_prehash(&signed_hash(pubsub_topic, message), &signature)
            .map_err(|_| SignatureError::Unsigned)?;
        let off = Duration::from_nanos(timestamp.abs_diff(now_ns));
        if off < WINDOW { Ok(()) } else { Err(SignatureError::Untimely) }
    }
}

/// SHA-256 over pubsub topic, payload, content topic, timestamp as eight bytes, little-endian, and
/// one byte that is 1 for an ephemeral message and 0 for others.
pub fn signed_hash(pubsub_topic: &str, message: &WakuMessage) -> [u8; 32] {
    Sha256::new()
        .chain_update(pubsub_topic)
        .chain_update(&message.payload)
        .chain_update(message.content_topic.as_str())
        .chain_update(message.timestamp.unwrap_or_default().to_le_bytes())
        .chain_update([u8::from(message.is_ephemeral())])
        .finalize()
        .into()
}

/// The signature for `meta` of a message on the topic of a protected shard; `None` when `secret` is
/// no secret key of secp256k1.
pub fn sign(
    secret: &[u8; 32],
    pubsub_topic: &str,
    message: &WakuMessage,
) -> Option<[u8; SIGNATURE_BYTES]> {
    let key = SigningKey::from_slice(secret).ok()?;
    let signature: Signature = key.sign_prehash(&signed_hash(pubsub_topic, message)).ok()?;
    <[u8; SIGNATURE_BYTES]>::try_from(&signature.to_bytes()[..]).ok()
}
