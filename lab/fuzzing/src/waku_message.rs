//! A Waku message as a peer sends it, its rate limit proof, and the values of a peer's node record:
//! what decodes is written again to bytes that decode to the same.
//!
//! The first byte selects the kind of the rest: a message, `waku2`, `rs`, `rsv` or `multiaddrs`.

use bytes::Bytes;
use protocol::enr_keys::{Capabilities, ShardList, decode_addresses, encode_addresses};
use protocol::{RateLimitProof, WakuMessage, message_hash, signed::ProtectedShard};

use crate::allocated::decoding;

const PROTECTED: &str = "0:029c5fac802da41e07e6cdf51c3b9a6351ad5e65921527f2df5b7d59fd9b56ab02";

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((selector, rest)) = bytes.split_first() else { return };
    match selector % 5 {
        0 => {
            let input = Bytes::copy_from_slice(rest);
            let read = WakuMessage::read(&input);
            let decoded = decoding(rest.len(), || WakuMessage::decode(input));
            let Ok(message) = decoded else { return };
            assert_eq!(read.as_ref(), Ok(&message), "what is valid is read the same");
            let written = message.encode();
            assert_eq!(written.len(), message.encoded_len());
            let again = WakuMessage::decode(written.into()).expect("it was written here");
            assert_eq!(message_hash("/t", &again), message_hash("/t", &message));
            assert_eq!(again, message);
            // No input has a signature of the key that it could not know.
            let shard: ProtectedShard = PROTECTED.parse().expect("a shard and its key");
            let now_ns = message.timestamp.unwrap_or_default();
            assert!(shard.key.check("/t", &message, now_ns).is_err());
            let Some(proof) = &message.rate_limit_proof else { return };
            let Ok(proof) = decoding(proof.len(), || RateLimitProof::decode(proof)) else { return };
            let written = proof.encode().into();
            assert_eq!(RateLimitProof::decode(&written), Ok(proof));
        }
        1 => {
            let Ok(capabilities) = Capabilities::decode(rest) else { return };
            assert_eq!(capabilities.encode(), rest);
        }
        2 => {
            let Ok(list) = decoding(rest.len(), || ShardList::decode_list(rest)) else { return };
            let (key, value) = list.encode();
            let again = match key {
                "rs" => ShardList::decode_list(&value),
                _ => ShardList::decode_bits(&value),
            };
            assert_eq!(again, Ok(list));
        }
        3 => {
            let Ok(list) = decoding(rest.len(), || ShardList::decode_bits(rest)) else { return };
            assert_eq!(list.encode_bits(), rest);
        }
        _ => {
            let value = Bytes::copy_from_slice(rest);
            let Ok(addresses) = decoding(rest.len(), || decode_addresses(&value)) else { return };
            assert_eq!(encode_addresses(&addresses).expect("it was read here"), rest);
        }
    }
}
