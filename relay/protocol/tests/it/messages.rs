//! The Waku message, its hash, and the requests and replies that carry it.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use protocol::message::{MESSAGE_BYTES_MAX, META_BYTES_MAX, NotAHash};
use protocol::wire::{put_bytes, put_varint};
use protocol::{
    DecodeError, MessageError, MessageHash, StatusCode, Text, WakuMessage, filter, light_push,
    message_hash, metadata, peer_exchange, store,
};

const TOPIC: &str = "/waku/2/default-waku/proto";

fn sample(payload: &str, meta: Option<&str>) -> WakuMessage {
    WakuMessage {
        timestamp: Some(0x1757_89bf_a23f_8400),
        meta: meta.map(|meta| hex::decode(meta).unwrap().into()),
        ..WakuMessage::new("/waku/2/default-content/proto", hex::decode(payload).unwrap())
    }
}

/// The vectors of vacp2p/rfc-index 14.
#[test]
fn the_hash_is_that_of_the_specification() {
    let payload = "010203045445535405060708";
    let long: String = (0..64).map(|byte| format!("{byte:02x}")).collect();
    let cases = [
        (
            sample(payload, Some("73757065722d736563726574")),
            "0x64cce733fed134e83da02b02c6f689814872b1a0ac97ea56b76095c3c72bfe05",
        ),
        (
            sample(payload, Some(&long)),
            "0x7158b6498753313368b9af8f6e0a0a05104f68f972981da42a43bc53fb0c1b27",
        ),
        (
            sample(payload, None),
            "0xa2554498b31f5bcdfcbf7fa58ad1c2d45f0254f3f8110a85588ec3cf10720fd8",
        ),
        (
            sample("", Some("73757065722d736563726574")),
            "0x483ea950cb63f9b9d6926b262bb36194d3f40a0463ce8446228350bd44e96de4",
        ),
    ];
    for (message, expected) in cases {
        assert_eq!(message_hash(TOPIC, &message).to_string(), expected);
        // The specification hashes an empty payload, too, which nodes do not relay.
        let decoded = WakuMessage::read(&message.encode().into()).unwrap();
        assert_eq!(message_hash(TOPIC, &decoded).to_string(), expected);
        assert_eq!(expected.parse(), Ok(message_hash(TOPIC, &message)));
        assert_eq!(expected[2..].parse(), Ok(message_hash(TOPIC, &message)));
    }
    for text in ["", "0x", "0x12", &"g".repeat(64), &"+1".repeat(32), &"é".repeat(32)] {
        assert_eq!(text.parse::<MessageHash>(), Err(NotAHash), "{text}");
    }
}

#[test]
fn an_absent_timestamp_hashes_as_zero() {
    let absent = WakuMessage::new("/a/1/b/proto", "payload");
    let zero = WakuMessage { timestamp: Some(0), ..absent.clone() };
    assert_eq!(message_hash(TOPIC, &absent), message_hash(TOPIC, &zero));
}

/// Bytes as the definition specifies them, written out by hand, so that the encoder and the decoder
/// cannot be wrong together.
#[test]
fn a_message_is_laid_out_as_the_definition_says() {
    let message = WakuMessage {
        payload: "pay".into(),
        content_topic: "/c".into(),
        version: Some(1),
        timestamp: Some(-1),
        meta: Some("m".into()),
        rate_limit_proof: Some("p".into()),
        ephemeral: Some(true),
    };
    let expected = b"\x0a\x03pay\x12\x02/c\x18\x01\x50\x01\x5a\x01m\xaa\x01\x01p\xf8\x01\x01";
    assert_eq!(message.encode(), expected);
    assert_eq!(WakuMessage::decode(Bytes::from_static(expected)), Ok(message));
}

#[test]
fn decoding_shares_the_input() {
    let input = Bytes::from(WakuMessage::new("/c", vec![7; 1000]).encode());
    let message = WakuMessage::decode(input.clone()).unwrap();
    let range = input.as_ptr() as usize..input.as_ptr() as usize + input.len();
    assert!(range.contains(&(message.payload.as_ptr() as usize)));
    assert!(range.contains(&(message.content_topic.as_str().as_ptr() as usize)));
    assert!(!range.contains(&(message.content_topic.to_owned_text().as_ptr() as usize)));
}

#[test]
fn a_field_that_comes_twice_counts_the_last_time_and_unknown_ones_do_not_count() {
    let mut bytes = WakuMessage::new("/first", "1").encode();
    bytes.extend(WakuMessage::new("/last", "2").encode());
    put_bytes(500, b"from a later version", &mut bytes);
    put_varint(501, 1, &mut bytes);
    bytes.extend([0xfd, 0x3f, 1, 2, 3, 4]); // 1023, four bytes
    bytes.extend([0xf9, 0x3f, 1, 2, 3, 4, 5, 6, 7, 8]); // 1023, eight bytes
    assert_eq!(WakuMessage::decode(bytes.into()), Ok(WakuMessage::new("/last", "2")));
}

#[test]
fn messages_out_of_bounds_are_refused_with_the_reason() {
    let fits = |message: &WakuMessage| WakuMessage::decode(message.encode().into());
    let good = WakuMessage::new("/c", "p");
    let long = WakuMessage { content_topic: "t".repeat(257).into(), ..good.clone() };
    let error = fits(&long).unwrap_err().to_string();
    assert!(error.contains("257") && error.contains("256"), "{error}");

    let meta = WakuMessage { meta: Some(vec![0; META_BYTES_MAX + 1].into()), ..good.clone() };
    assert_eq!(fits(&meta), Err(MessageError::LongMeta { bytes: 65 }));
    assert_eq!(fits(&WakuMessage::new("", "p")), Err(MessageError::NoContentTopic));
    assert_eq!(fits(&WakuMessage::new("/c", "")), Err(MessageError::NoPayload));
    assert_eq!(WakuMessage::decode(Bytes::new()), Err(MessageError::NoContentTopic));

    let rest = WakuMessage::new("/c", vec![0; 100_000]).encoded_len() - 100_000;
    let largest = WakuMessage::new("/c", vec![0; MESSAGE_BYTES_MAX - rest]);
    assert_eq!(largest.encoded_len(), MESSAGE_BYTES_MAX);
    assert!(fits(&largest).is_ok());
    let larger = WakuMessage::new("/c", vec![0; MESSAGE_BYTES_MAX - rest + 1]);
    assert_eq!(fits(&larger), Err(MessageError::TooLarge { bytes: MESSAGE_BYTES_MAX + 1 }));

    let not_text = Bytes::from_static(b"\x12\x02\xff\xfe");
    assert_eq!(
        WakuMessage::decode(not_text),
        Err(MessageError::Damaged(DecodeError::NotText { field: "content_topic" }))
    );
    // A payload of another wire type is not one.
    let wrong_type = Bytes::from_static(b"\x12\x02/c\x08\x01");
    assert_eq!(WakuMessage::decode(wrong_type), Err(MessageError::NoPayload));
}

#[test]
fn a_light_push_without_a_message_is_refused_and_its_id_is_known() {
    let mut bytes = Vec::new();
    put_bytes(1, b"id-1", &mut bytes);
    let bytes = Bytes::from(bytes);
    let missing = DecodeError::Missing { field: "message" };
    assert_eq!(light_push::Request::decode(bytes.clone()), Err(missing));
    assert_eq!(protocol::request_id(&bytes), Text::from("id-1"));
    let cut = bytes.slice(..4);
    assert!(protocol::request_id(&cut).is_empty());
}

/// A request of the definition of version 2, written by hand.
#[test]
fn a_light_push_of_version_2_is_read() {
    let bytes = Bytes::from_static(b"\x0a\x02id\x12\x0a\x0a\x02/t\x12\x04\x12\x02/c");
    let request = light_push::RequestV2::decode(bytes.clone()).unwrap();
    assert_eq!((&*request.request_id, &*request.pubsub_topic), ("id", "/t"));
    assert_eq!(WakuMessage::read(&request.message), Ok(WakuMessage::new("/c", "")));
    assert_eq!(request.encode(), bytes);
}

#[test]
fn a_filter_request_of_too_many_topics_is_refused() {
    let request = |count| filter::Request {
        request_id: "r".into(),
        action: filter::Action::Subscribe,
        pubsub_topic: None,
        content_topics: vec![Text::from("/a/1/b/proto"); count],
    };
    let most = request(filter::CONTENT_TOPICS_PER_REQUEST_MAX);
    assert_eq!(filter::Request::decode(most.encode().into()), Ok(most));
    let error = filter::Request::decode(request(101).encode().into()).unwrap_err();
    assert_eq!(error, DecodeError::TooMany { field: "content_topics", count_max: 100 });

    let unknown = Bytes::from_static(&[0x10, 4]);
    assert!(matches!(
        filter::Request::decode(unknown),
        Err(DecodeError::OutOfRange { value: 4, value_max: 3, .. })
    ));
}

#[test]
fn metadata_is_read_packed_and_unpacked_and_written_both_ways() {
    let expected = metadata::Metadata { cluster: Some(16), shards: vec![0, 5, 300] };
    for bytes in [
        &b"\x08\x10\x10\x05\x10\x00\x10\xac\x02"[..], // unpacked
        b"\x08\x10\x1a\x04\x00\x05\xac\x02",          // packed
        b"\x08\x10\x12\x04\x05\x00\xac\x02",          // packed under the other number
        b"\x08\x10\x10\x05\x1a\x04\x00\x05\xac\x02\x10\xff\xff\x03", // mixed; 65535 is no shard
    ] {
        assert_eq!(metadata::Metadata::decode(Bytes::copy_from_slice(bytes)), Ok(expected.clone()));
    }
    let both = b"\x08\x10\x10\x00\x10\x05\x10\xac\x02\x1a\x04\x00\x05\xac\x02";
    assert_eq!(expected.encode(), both);
    let all = metadata::Metadata { cluster: Some(u32::MAX), shards: (0..1024).collect() };
    assert!(all.encode().len() <= metadata::MESSAGE_BYTES_MAX);
    assert_eq!(metadata::Metadata::decode(all.encode().into()), Ok(all));
}

#[test]
fn hashes_and_cursors_have_32_bytes() {
    let mut bytes = Vec::new();
    put_bytes(20, &[0; 31], &mut bytes);
    let wrong = DecodeError::WrongLength { field: "message_hashes", bytes: 31, expected: 32 };
    assert_eq!(store::Request::decode(bytes.into()), Err(wrong));

    let mut bytes = Vec::new();
    put_bytes(51, &[], &mut bytes);
    assert_eq!(store::Request::decode(bytes.into()), Ok(store::Request::default()));

    let mut bytes = Vec::new();
    put_bytes(20, &[], &mut bytes);
    assert_eq!(
        store::Reply::decode(bytes.into()),
        Err(DecodeError::Missing { field: "message_hash" })
    );
}

#[test]
fn status_codes_keep_their_numbers() {
    for code in (0..600).chain([u32::MAX]) {
        assert_eq!(StatusCode::from(code).code(), code);
    }
    assert_eq!(StatusCode::from(200), StatusCode::Ok);
    assert_eq!(StatusCode::from(505), StatusCode::NoPeers);
    assert!(StatusCode::Ok.is_success() && !StatusCode::TooManyRequests.is_success());
}

fn text(bytes_max: usize) -> impl Strategy<Value = Text> {
    vec(any::<char>(), 0..=bytes_max / 4)
        .prop_map(|chars| Text::from(chars.into_iter().collect::<String>()))
}

fn data(bytes_max: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..=bytes_max).prop_map(Bytes::from)
}

fn message() -> impl Strategy<Value = WakuMessage> {
    let payload = vec(any::<u8>(), 1..=300).prop_map(Bytes::from);
    let topic = ("/[a-z]{1,9}", text(200)).prop_map(|(start, rest)| Text::from(start + &rest));
    (
        payload,
        topic,
        of(any::<u32>()),
        of(any::<i64>()),
        of(data(META_BYTES_MAX)),
        of(data(99)),
        of(any::<bool>()),
    )
        .prop_map(|(payload, content_topic, version, timestamp, meta, proof, ephemeral)| {
            WakuMessage {
                payload,
                content_topic,
                version,
                timestamp,
                meta,
                rate_limit_proof: proof,
                ephemeral,
            }
        })
}

fn hash() -> impl Strategy<Value = MessageHash> {
    any::<[u8; 32]>().prop_map(MessageHash)
}

fn status() -> impl Strategy<Value = StatusCode> {
    any::<u32>().prop_map(StatusCode::from)
}

proptest! {
    #[test]
    fn messages_survive_the_wire(message in message()) {
        let bytes = message.encode();
        prop_assert_eq!(bytes.len(), message.encoded_len());
        prop_assert_eq!(WakuMessage::decode(bytes.into()), Ok(message));
    }

    #[test]
    fn light_pushes_survive_the_wire(
        request_id in text(200), topic in of(text(200)), message in message(), status in status(),
        status_text in of(text(2000)), relay_peer_count in of(any::<u32>()),
        is_success in any::<bool>(),
    ) {
        let message = Bytes::from(message.encode());
        let request =
            light_push::Request { request_id, pubsub_topic: topic, message: message.clone() };
        prop_assert_eq!(light_push::Request::decode(request.encode().into()), Ok(request.clone()));

        let request_id = request.request_id;
        let pubsub_topic = request.pubsub_topic.unwrap_or_default();
        let v2 = light_push::RequestV2 { request_id: request_id.clone(), pubsub_topic, message };
        prop_assert_eq!(light_push::RequestV2::decode(v2.encode().into()), Ok(v2));

        let info = status_text.clone();
        let v2 = light_push::ReplyV2 { request_id: request_id.clone(), is_success, info };
        prop_assert_eq!(light_push::ReplyV2::decode(v2.encode().into()), Ok(v2));

        let reply = light_push::Reply { request_id, status, status_text, relay_peer_count };
        prop_assert!(reply.encode().len() <= light_push::REPLY_BYTES_MAX);
        prop_assert_eq!(light_push::Reply::decode(reply.encode().into()), Ok(reply));
    }

    #[test]
    fn filter_messages_survive_the_wire(
        request_id in text(200), pubsub_topic in of(text(200)), status in status(),
        content_topics in vec(text(200), 0..9), status_text in of(text(2000)), action in 0..4usize,
    ) {
        use filter::Action::{Ping, Subscribe, Unsubscribe, UnsubscribeAll};
        let action = [Ping, Subscribe, Unsubscribe, UnsubscribeAll][action];
        let request = filter::Request {
            request_id: request_id.clone(), action, pubsub_topic, content_topics,
        };
        prop_assert_eq!(filter::Request::decode(request.encode().into()), Ok(request));
        let reply = filter::Reply { request_id, status, status_text };
        prop_assert_eq!(filter::Reply::decode(reply.encode().into()), Ok(reply));
    }

    #[test]
    fn store_queries_survive_the_wire(
        request_id in text(200), include_data in any::<bool>(), pubsub_topic in of(text(200)),
        content_topics in vec(text(200), 0..9), time_start in of(any::<i64>()),
        time_end in of(any::<i64>()),
        message_hashes in vec(hash(), 0..9), cursor in of(hash()), forward in any::<bool>(),
        limit in of(any::<u64>()),
    ) {
        let request = store::Request {
            request_id, include_data, pubsub_topic, content_topics, time_start, time_end,
            message_hashes, cursor, forward, limit,
        };
        prop_assert_eq!(store::Request::decode(request.encode().into()), Ok(request));
    }

    #[test]
    fn peer_exchange_survives_the_wire(
        peers in any::<u64>(), records in vec(data(300), 0..9), status in of(status()),
        status_text in of(text(2000)),
    ) {
        let request = peer_exchange::Request { peers };
        prop_assert_eq!(peer_exchange::Request::decode(request.encode().into()), Ok(request));
        let reply = peer_exchange::Reply { records, status, status_text };
        prop_assert_eq!(peer_exchange::Reply::decode(reply.encode().into()), Ok(reply));
    }
}
