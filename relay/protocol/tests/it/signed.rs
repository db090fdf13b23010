//! Messages of protected shards.

use proptest::{collection::vec, prelude::*};
use protocol::{
    Text, WakuMessage,
    signed::{
        NotAProtectedShard, ProtectedShard, ShardKey, SignatureError, WINDOW, sign, signed_hash,
    },
};

const TOPIC: &str = "/waku/2/rs/16/7";
const NOW_NS: i64 = 1_700_000_000_000_000_000;

/// The vectors of the reference's validator.
const KEY: &str = "049c5fac802da41e07e6cdf51c3b9a6351ad5e65921527f2df5b7d59fd9b56ab02bab736cdcfc37f\
                   25095e78127500da371947217a8cd5186ab890ea866211c3f6";
const SECRET: &str = "5526a8990317c9b7b58d07843d270f9cd1d9aaee129294c1c478abf7261dd9e6";
const PAYLOAD: &str = "1A12E077D0E89F9CAC11FBBB6A676C86120B5AD3E248B1F180E98F15EE43D2DFCF62F00C9273\
                       7B2FF6F59B3ABA02773314B991C41DC19ADB0AD8C17C8E26757B";
const HASH: &str = "662f8c20a335f170bd60abc1f02ad66f0c6a6ee285da2a53c95259e7937c0ae9";
const SIGNATURE: &str = "127FA211B2514F0E974A055392946DC1A14052182A6ABEFB8A6CD7C51DA1BF2E40595D28\
                         EF1A9488797C297EED3AAC45430005FB3A7F037BDD9FC4BD99F59E63";

fn key() -> ShardKey {
    format!("7:{KEY}").parse::<ProtectedShard>().unwrap().key
}

fn secret() -> [u8; 32] {
    hex::decode(SECRET).unwrap().try_into().unwrap()
}

fn signed(mut message: WakuMessage) -> WakuMessage {
    message.meta = Some(sign(&secret(), TOPIC, &message).unwrap().to_vec().into());
    message
}

fn timely() -> WakuMessage {
    WakuMessage { timestamp: Some(NOW_NS), ..WakuMessage::new("/a/1/b/c", vec![1, 2, 3]) }
}

#[test]
fn hash_and_signature_are_those_of_the_reference() {
    let timestamp = 1_683_208_172_339_052_800;
    let message = WakuMessage {
        timestamp: Some(timestamp),
        version: Some(2),
        ephemeral: Some(true),
        meta: Some(hex::decode(SIGNATURE).unwrap().into()),
        ..WakuMessage::new("content-topic", hex::decode(PAYLOAD).unwrap())
    };
    assert_eq!(hex::encode(signed_hash("pubsub-topic", &message)), HASH);
    assert_eq!(key().check("pubsub-topic", &message, timestamp), Ok(()));
    assert_eq!(key().check(TOPIC, &message, timestamp), Err(SignatureError::Unsigned));
}

#[test]
fn message_is_in_time_for_less_than_the_window_before_and_after() {
    let message = signed(timely());
    let window = i64::try_from(WINDOW.as_nanos()).unwrap();
    for (off, expected) in [
        (0, Ok(())),
        (window - 1, Ok(())),
        (1 - window, Ok(())),
        (window, Err(SignatureError::Untimely)),
        (-window, Err(SignatureError::Untimely)),
    ] {
        assert_eq!(key().check(TOPIC, &message, NOW_NS + off), expected, "{off}");
    }
    let oldest = signed(WakuMessage { timestamp: Some(i64::MIN), ..timely() });
    assert_eq!(key().check(TOPIC, &oldest, i64::MAX), Err(SignatureError::Untimely));
}

#[test]
fn message_without_the_keys_signature_or_without_time_is_unsigned() {
    let unsigned = Err(SignatureError::Unsigned);
    for meta in [None, Some(vec![]), Some(vec![0_u8; 64]), Some(vec![0xff; 64]), Some(vec![1; 63])]
    {
        let message = WakuMessage { meta: meta.map(Into::into), ..timely() };
        assert_eq!(key().check(TOPIC, &message, NOW_NS), unsigned);
    }
    for timestamp in [None, Some(0)] {
        let message = signed(WakuMessage { timestamp, ..timely() });
        assert_eq!(key().check(TOPIC, &message, 0), unsigned);
    }
    let mut other = timely();
    other.meta = Some(sign(&[7; 32], TOPIC, &other).unwrap().to_vec().into());
    assert_eq!(key().check(TOPIC, &other, NOW_NS), unsigned);
    // An untimely message without a signature is no message of a slow network.
    assert_eq!(key().check(TOPIC, &timely(), NOW_NS + i64::from(i32::MAX) * 1000), unsigned);
}

#[test]
fn protected_shards_are_read_with_compressed_and_whole_keys() {
    let compressed = format!("7:0x02{}", &KEY[2..66]);
    let whole: ProtectedShard = format!("7:{KEY}").parse().unwrap();
    assert_eq!(compressed.parse::<ProtectedShard>(), Ok(whole.clone()));
    assert_eq!(whole.shard, 7);
    for text in ["", "7", KEY, "7:", ":02", "65536:02", "7:04aa", format!("-1:{KEY}").as_str()] {
        assert!(matches!(text.parse::<ProtectedShard>(), Err(NotAProtectedShard { .. })), "{text}");
    }
    let zero = format!("7:02{}", "f".repeat(64));
    assert!(zero.parse::<ProtectedShard>().is_err(), "no point of the curve has this x");
}

proptest! {
    #[test]
    fn every_signed_field_is_covered(
        payload in vec(any::<u8>(), 0..40),
        topic in "[a-z/]{1,20}",
        ephemeral in any::<bool>(),
        change in 0..4_usize,
    ) {
        let message = signed(WakuMessage {
            ephemeral: Some(ephemeral),
            timestamp: Some(NOW_NS),
            ..WakuMessage::new(topic.as_str(), payload)
        });
        prop_assert_eq!(key().check(TOPIC, &message, NOW_NS), Ok(()));
        let mut changed = message.clone();
        match change {
            0 => changed.payload = [&message.payload[..], &[0]].concat().into(),
            1 => changed.content_topic = Text::from(format!("{topic}x")),
            2 => changed.timestamp = Some(NOW_NS + 1),
            _ => changed.ephemeral = Some(!ephemeral),
        }
        prop_assert_eq!(key().check(TOPIC, &changed, NOW_NS), Err(SignatureError::Unsigned));
    }
}
