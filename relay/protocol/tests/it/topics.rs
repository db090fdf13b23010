//! Topics, shards, and the values of node records.

use std::num::NonZeroU16;

use bytes::Bytes;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use protocol::enr_keys::{
    Capabilities, RecordError, SHARD_BITS_KEY, SHARD_LIST_KEY, ShardList, decode_addresses,
    encode_addresses,
};
use protocol::{ContentTopic, PubsubTopic, TopicError, autoshard};

fn shard_of(topic: &str, shards: u16) -> u16 {
    autoshard(&ContentTopic::parse(topic).unwrap(), NonZeroU16::new(shards).unwrap())
}

#[test]
fn a_pubsub_topic_has_one_text() {
    let topic = PubsubTopic::new(16, 42);
    assert_eq!(topic.to_string(), "/waku/2/rs/16/42");
    assert_eq!("/waku/2/rs/16/42".parse(), Ok(topic));
    assert_eq!("/waku/2/rs/0/0".parse(), Ok(PubsubTopic::new(0, 0)));
    assert_eq!("/waku/2/rs/65535/65535".parse(), Ok(PubsubTopic::new(u16::MAX, u16::MAX)));
    for other in [
        "",
        "/waku/2/rs",
        "/waku/2/rs/",
        "/waku/2/rs/1",
        "/waku/2/rs/1/",
        "/waku/2/rs//1",
        "/waku/2/rs/01/1",
        "/waku/2/rs/1/00",
        "/waku/2/rs/+1/1",
        "/waku/2/rs/-1/1",
        "/waku/2/rs/1/65536",
        "/waku/2/rs/1/1/",
        "/waku/2/rs/1/1/1",
        "/waku/2/rs/1/ 1",
        "waku/2/rs/1/1",
        "/waku/2/rs/1/１",
        "/waku/2/default-waku/proto",
    ] {
        assert_eq!(other.parse::<PubsubTopic>(), Err(TopicError::NotSharded), "{other}");
    }
}

/// The example of the specification, and topics whose shard the Go and js clients' own tests
/// state.
#[test]
fn shards_follow_from_application_and_version() {
    assert_eq!(shard_of("/myapp/1/mytopic/cbor", 8), 0);
    assert_eq!(shard_of("/0/myapp/1/mytopic/cbor", 8), 0);
    assert_eq!(shard_of("/toychat/2/huilong/proto", 8), 3);
    assert_eq!(shard_of("/0/toychat/2/other/cbor", 8), 3);
    assert_eq!(shard_of("/toychat/2/huilong/proto", 1), 0);
    let used: std::collections::BTreeSet<u16> =
        (0..100).map(|version| shard_of(&format!("/app/{version}/x/proto"), 8)).collect();
    assert_eq!(used.len(), 8);
}

#[test]
fn content_topics_of_another_form_have_no_shard() {
    let other = ["", "/", "a/1/b/c", "/a/1/b", "//1/b/c", "/a//b/c", "/a/1//c", "/a/1/b/"];
    for topic in other.into_iter().chain(["/0/a/1/b/", "/0/a/1/b/c/d", "/a/1/b/c/d/e/f/g"]) {
        assert_eq!(ContentTopic::parse(topic), Err(TopicError::NotShardable), "{topic}");
    }
    for generation in ["1", "abc", "00", ""] {
        let topic = format!("/{generation}/a/1/b/c");
        let generation = generation.to_owned();
        let unknown = TopicError::UnknownGeneration { generation };
        assert_eq!(ContentTopic::parse(&topic), Err(unknown));
    }
    let long = format!("/a/1/{}/c", "b".repeat(256));
    assert_eq!(ContentTopic::parse(&long), Err(TopicError::TooLong { bytes: 263 }));
}

/// The example of waku-org/specs relay-sharding.
#[test]
fn a_list_of_shards_is_that_of_the_specification() {
    let list = ShardList::new(16, [45, 13, 14, 13]).unwrap();
    let value = vec![0, 16, 3, 0, 13, 0, 14, 0, 45];
    assert_eq!(list.encode(), (SHARD_LIST_KEY, value.clone()));
    assert_eq!(ShardList::decode_list(&value), Ok(list.clone()));
    assert_eq!((list.cluster(), list.shards()), (16, &[13, 14, 45][..]));

    let bits = list.encode_bits();
    assert_eq!(bits.len(), 130);
    assert_eq!(bits[..8], [0, 16, 0, 0b0110_0000, 0, 0, 0, 0b0010_0000]);
    assert_eq!(ShardList::decode_bits(&bits), Ok(list));

    for damaged in [&value[..2], &value[..8], &[0, 16, 1, 0, 1, 0][..], &[]] {
        assert!(matches!(
            ShardList::decode_list(damaged),
            Err(RecordError::WrongLength { key: "rs", .. })
        ));
    }
    let beyond = ShardList::decode_list(&[0, 1, 1, 4, 0]);
    assert_eq!(beyond, Err(RecordError::NoSuchShard { shard: 1024 }));
    assert!(ShardList::decode_bits(&bits[..129]).is_err());
}

#[test]
fn capabilities_are_one_byte() {
    let services = Capabilities::RELAY.with(Capabilities::STORE).with(Capabilities::LIGHT_PUSH);
    assert_eq!(services.encode(), [0b1011]);
    assert_eq!(Capabilities::decode(&[0b1011]), Ok(services));
    assert!(services.has(Capabilities::STORE) && !services.has(Capabilities::FILTER));
    assert!(Capabilities::decode(&[]).is_err() && Capabilities::decode(&[1, 0]).is_err());
}

#[test]
fn damaged_addresses_are_refused() {
    assert_eq!(decode_addresses(&Bytes::new()), Ok(Vec::new()));
    let decode = |bytes: &[u8]| decode_addresses(&Bytes::copy_from_slice(bytes));
    assert!(matches!(decode(&[0]), Err(RecordError::WrongLength { expected: 2, .. })));
    assert!(matches!(decode(&[0, 2, 1]), Err(RecordError::WrongLength { expected: 4, .. })));
    assert!(matches!(decode(&[255, 255]), Err(RecordError::WrongLength { .. })));
    assert_eq!(decode(&[0, 0, 0, 0]), Err(RecordError::EmptyAddress));
    assert!(matches!(decode(&[0, 1, 9].repeat(17)), Err(RecordError::TooLong { .. })));
    assert!(matches!(decode(&[0; 301]), Err(RecordError::TooLong { .. })));
    assert!(matches!(encode_addresses(&[[1; 299]]), Err(RecordError::TooLong { .. })));
    assert!(matches!(encode_addresses(&[[]]), Err(RecordError::EmptyAddress)));
}

proptest! {
    #[test]
    fn shards_survive_a_record(cluster in any::<u16>(), shards in btree_set(0..1024u16, 0..300)) {
        let list = ShardList::new(cluster, shards.iter().copied()).unwrap();
        let (key, value) = list.encode();
        prop_assert_eq!(key, if shards.len() < 64 { SHARD_LIST_KEY } else { SHARD_BITS_KEY });
        let decoded = match key {
            SHARD_LIST_KEY => ShardList::decode_list(&value),
            _ => ShardList::decode_bits(&value),
        };
        prop_assert_eq!(decoded.as_ref(), Ok(&list));
        prop_assert_eq!(ShardList::decode_bits(&list.encode_bits()), Ok(list));
    }

    #[test]
    fn addresses_survive_a_record(addresses in vec(vec(any::<u8>(), 1..60), 0..5)) {
        let value = Bytes::from(encode_addresses(&addresses).unwrap());
        let decoded = decode_addresses(&value).unwrap();
        prop_assert_eq!(decoded, addresses.into_iter().map(Bytes::from).collect::<Vec<_>>());
    }

    #[test]
    fn topics_survive_their_text(cluster in any::<u16>(), shard in any::<u16>()) {
        let topic = PubsubTopic::new(cluster, shard);
        prop_assert_eq!(topic.to_string().parse(), Ok(topic));
    }
}
