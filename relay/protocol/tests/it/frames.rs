//! Frames around messages that are stored elsewhere, and input of hostile peers.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use protocol::frame::{FrameError, decode_length, encode_length, with_length};
use protocol::gossip::{self, Limits, Rpc};
use protocol::wire::{DecodeError, Fields, put_bytes};
use protocol::{
    MessageHash, StatusCode, Text, WakuMessage, filter, light_push, metadata, peer_exchange, store,
    sync,
};

/// Takes the length prefix off, which must be that of the rest.
fn body(frame: &[u8]) -> Bytes {
    let (length, used) = decode_length(frame, usize::MAX).unwrap().unwrap();
    assert_eq!(length, frame.len() - used);
    Bytes::copy_from_slice(&frame[used..])
}

#[test]
fn a_length_prefix_of_4_gib_is_refused_from_its_five_bytes() {
    let four_gib = [0xff, 0xff, 0xff, 0xff, 0x0f];
    let error = decode_length(&four_gib, light_push::REQUEST_BYTES_MAX).unwrap_err();
    assert!(matches!(error, FrameError::TooLong { bytes_max: 1_114_112, .. }), "{error}");
    // It is known to be too long before it is complete.
    assert!(decode_length(&four_gib[..3], light_push::REQUEST_BYTES_MAX).is_err());
    let endless = [0x80; 5];
    assert_eq!(decode_length(&endless, usize::MAX), Err(FrameError::PrefixTooLong));
    assert_eq!(decode_length(&endless[..4], usize::MAX), Ok(None));
    assert_eq!(decode_length(&[], 10), Ok(None));
    assert_eq!(decode_length(&[10, 99], 10), Ok(Some((10, 1))));
    assert_eq!(decode_length(&[11], 10), Err(FrameError::TooLong { bytes: 11, bytes_max: 10 }));
}

type Decoder = fn(Bytes) -> Option<String>;

/// Every decoder, with the text of its error if it refuses.
fn decoders() -> Vec<(&'static str, Decoder)> {
    fn error<T, E: std::fmt::Display>(decoded: Result<T, E>) -> Option<String> {
        decoded.err().map(|error| error.to_string())
    }
    vec![
        ("message", |bytes| error(WakuMessage::decode(bytes))),
        ("light push", |bytes| error(light_push::Request::decode(bytes))),
        ("light push reply", |bytes| error(light_push::Reply::decode(bytes))),
        ("light push 2", |bytes| error(light_push::RequestV2::decode(bytes))),
        ("light push 2 reply", |bytes| error(light_push::ReplyV2::decode(bytes))),
        ("filter", |bytes| error(filter::Request::decode(bytes))),
        ("filter reply", |bytes| error(filter::Reply::decode(bytes))),
        ("filter push", |bytes| error(filter::Push::decode(bytes))),
        ("store", |bytes| error(store::Request::decode(bytes))),
        ("store reply", |bytes| error(store::Reply::decode(bytes))),
        ("metadata", |bytes| error(metadata::Metadata::decode(bytes))),
        ("peer exchange", |bytes| error(peer_exchange::Request::decode(bytes))),
        ("peer exchange reply", |bytes| error(peer_exchange::Reply::decode(bytes))),
        ("gossip", |bytes| error(Rpc::decode(bytes, &Limits::default()))),
        ("transfer", |bytes| error(sync::Transfer::decode(bytes))),
    ]
}

/// 1,000,000 starts of groups, one within the other: no decoder goes down into them.
#[test]
fn groups_are_refused_at_the_first_however_deep_they_are() {
    let deep = Bytes::from([0xfb, 0x3f].repeat(1_000_000));
    let end = Bytes::from_static(&[0xfc, 0x3f]);
    for (name, decode) in decoders() {
        for bytes in [&deep, &end] {
            let error = decode(bytes.clone()).unwrap();
            // A message of 2 MB is refused for its size.
            let expected = if name == "message" && bytes.len() > 2 { "limit" } else { "group" };
            assert!(error.contains(expected), "{name}: {error}");
        }
    }
}

#[test]
fn damaged_bytes_are_refused_by_every_decoder() {
    for (name, decode) in decoders() {
        for damaged in [
            &b"\x80"[..],                                            // a key cut off
            b"\x00\x01",                                             // field 0
            b"\x0e",                                                 // wire type 6
            b"\x98\x3f\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", // a number of 11 bytes
            b"\x9a\x3f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",     // a field of 2^64 - 1 bytes
            b"\x9a\x3f\x02a",                                        // a field cut off
            b"\x99\x3f1234567",                                      // eight bytes cut off
            b"\x9d\x3f123",                                          // four bytes cut off
        ] {
            assert!(decode(Bytes::copy_from_slice(damaged)).is_some(), "{name}: {damaged:x?}");
        }
    }
}

// Promise: P24 - A list of a million empty entries is refused at its limit.
/// Lists that grow are refused at their limit; the rest is not read.
#[test]
fn a_million_empty_entries_are_refused_at_the_limit() {
    let many = |tag| {
        let mut one = Vec::new();
        put_bytes(tag, &[], &mut one);
        Bytes::from(one.repeat(1_000_000))
    };
    let limit = |count_max, field| DecodeError::TooMany { field, count_max };
    assert_eq!(filter::Request::decode(many(11)), Err(limit(100, "content_topics")));
    assert_eq!(store::Request::decode(many(11)), Err(limit(100, "content_topics")));
    let mut records = Vec::new();
    put_bytes(2, &many(1), &mut records);
    assert_eq!(peer_exchange::Reply::decode(records.into()), Err(limit(100, "peer_infos")));

    // An empty hash or entry is already wrong for itself.
    assert!(store::Request::decode(many(20)).is_err());
    assert!(store::Reply::decode(many(20)).is_err());

    // Empty entries of gossip mean nothing: they are counted, and nothing is kept of them.
    for tag in [1, 2] {
        let rpc = Rpc::decode(many(tag), &Limits::default()).unwrap();
        assert_eq!(rpc.skipped.entries, 1_000_000);
        assert_eq!(Rpc { skipped: Default::default(), ..rpc }, Rpc::default());
    }
    for tag in [1, 3, 4] {
        let mut control = Vec::new();
        put_bytes(3, &many(tag), &mut control);
        let rpc = Rpc::decode(control.into(), &Limits::default()).unwrap();
        assert_eq!(rpc.skipped.entries, 1_000_000);
        assert_eq!(Rpc { skipped: Default::default(), ..rpc }, Rpc::default());
    }
}

#[test]
fn after_an_error_there_are_no_more_fields() {
    let mut fields = Fields::new(b"\x0b\x08\x01\x08\x01");
    assert_eq!(fields.next(), Some(Err(DecodeError::Group { tag: 1 })));
    assert_eq!(fields.next(), None);
}

fn topic() -> impl Strategy<Value = String> {
    "/waku/2/rs/[0-9]{1,3}/[0-9]{1,3}(/[a-z]{100,150})?"
}

fn sizes() -> impl Strategy<Value = Vec<u8>> {
    // Around each step of the length prefixes.
    prop_oneof![0..3usize, 100..140usize, 16_200..16_500usize, Just(153_600)]
        .prop_flat_map(|bytes| any::<u8>().prop_map(move |fill| vec![fill; bytes]))
}

proptest! {
    #[test]
    fn lengths_survive_their_prefix(length in any::<u32>(), after in vec(any::<u8>(), 0..4)) {
        let length = length as usize;
        let mut received = encode_length(length);
        let used = received.len();
        prop_assert!(used <= 5);
        prop_assert_eq!(decode_length(&received[..used - 1], length), Ok(None));
        received.extend(after);
        prop_assert_eq!(decode_length(&received, length), Ok(Some((length, used))));
        if length > 0 {
            prop_assert!(decode_length(&received, length - 1).is_err());
        }
    }

    #[test]
    fn a_split_push_is_the_whole_push(message in sizes(), topic in topic()) {
        let frame = filter::push_frame(message.len(), &topic).around(&message);
        let push = filter::Push {
            message: message.into(), pubsub_topic: Some(Text::from(topic.as_str())),
        };
        prop_assert!(push.encode().len() <= filter::PUSH_BYTES_MAX);
        prop_assert_eq!(&with_length(&push.encode()), &frame);
        prop_assert_eq!(filter::Push::decode(body(&frame)), Ok(push));
    }

    #[test]
    fn a_split_publish_is_the_whole_publish(data in sizes(), topic in topic()) {
        let split = gossip::publish_frame(&topic, data.len());
        prop_assert_eq!(split.total_len(data.len()), split.around(&data).len());
        let frame = split.around(&data);
        let publish =
            gossip::Publish { topic: topic.as_str().into(), data: data.into(), signed: false };
        let empty = publish.data.is_empty();
        let whole = Rpc { publish: vec![publish], ..Rpc::default() };
        prop_assert_eq!(&with_length(&whole.encode()), &frame);
        let decoded = Rpc::decode(body(&frame), &Limits::default()).unwrap();
        prop_assert_eq!(decoded.skipped.entries, usize::from(empty));
        prop_assert!(empty || decoded == whole);
    }

    #[test]
    fn a_split_page_is_the_whole_page(
        entries in vec((any::<[u8; 32]>(), of(sizes()), of(topic())), 0..5),
        request_id in "[a-f0-9]{0,64}", status_text in of("[a-z ]{0,200}"),
        code in any::<u32>(), cursor in of(any::<[u8; 32]>()),
    ) {
        let status = StatusCode::from(code);
        let cursor = cursor.map(MessageHash);
        let entries_bytes = entries.iter().map(|(_, message, topic)| {
            store::entry_len(message.as_ref().map(Vec::len), topic.as_deref())
        }).sum();
        let outer = store::reply_frame(
            &request_id, status, status_text.as_deref(), entries_bytes, cursor.as_ref(),
        );
        let mut written = Vec::new();
        for (hash, message, topic) in &entries {
            let hash = MessageHash(*hash);
            let message_bytes = message.as_ref().map(Vec::len);
            let parts = store::entry_parts(&hash, message_bytes, topic.as_deref());
            written.extend(parts.around(message.as_deref().unwrap_or_default()));
        }
        prop_assert_eq!(written.len(), entries_bytes);
        let frame = outer.around(&written);

        let whole = store::Reply {
            request_id: request_id.into(),
            status,
            status_text: status_text.map(Text::from),
            entries: entries.into_iter().map(|(hash, message, topic)| store::Entry {
                hash: MessageHash(hash),
                message: message.map(Bytes::from),
                pubsub_topic: topic.map(Text::from),
            }).collect(),
            cursor,
        };
        prop_assert_eq!(&with_length(&whole.encode()), &frame);
        prop_assert_eq!(store::Reply::decode(body(&frame)), Ok(whole));
    }

    // Promise: P24 - No input stops a decoder.
    #[test]
    fn no_bytes_stop_a_decoder(bytes in vec(any::<u8>(), 0..300)) {
        for (_, decode) in decoders() {
            decode(Bytes::copy_from_slice(&bytes));
        }
    }
}
