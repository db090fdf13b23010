//! Store synchronisation: bytes of the reference's encoding, and payloads of hostile peers.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use protocol::frame::with_length;
use protocol::sync::{
    Content, Fingerprint, Payload, PayloadWriter, Range, SyncId, TOPICS_MAX, Transfer, mix,
    transfer_frame,
};
use protocol::wire::{DecodeError, put_bytes};

const NONE: [&str; 0] = [];

fn ranges(payload: &Payload) -> Vec<Range> {
    payload.ranges().map(Result::unwrap).collect()
}

#[test]
fn a_payload_has_the_bytes_of_the_reference() {
    let mut writer = PayloadWriter::new(&["a"], &NONE, 1000);
    writer.skip(SyncId::at(1001));
    writer.skip(SyncId::at(1002));
    writer.fingerprint(SyncId::at(1302), &[7; 32]);
    let ids = [SyncId { time_ns: 1400, hash: [1; 32] }, SyncId { time_ns: 1402, hash: [2; 32] }];
    writer.items(SyncId::at(1500), &ids, true);
    let written = writer.finish();
    let mut expected = vec![1, 1, b'a', 0, 0xe8, 0x07];
    expected.extend([2, 0]);
    expected.extend([0xac, 0x02, 1]);
    expected.extend([7; 32]);
    expected.extend([0xc6, 0x01, 2, 2, 0xf8, 0x0a]);
    expected.extend([1; 32]);
    expected.push(2);
    expected.extend([2; 32]);
    expected.push(1);
    assert_eq!(written, expected);
    let payload = Payload::decode(written.into()).unwrap();
    assert_eq!(payload.pubsub_topics[0].as_str(), "a");
    let read = ranges(&payload);
    assert_eq!((read[0].from, read[0].to), (SyncId::at(1000), SyncId::at(1002)));
    assert_eq!(read[1].content, Content::Fingerprint([7; 32]));
    let Content::Items(items) = &read[2].content else { panic!("{read:?}") };
    assert!(items.settled && items.ids().eq(ids));
}

#[test]
fn nothing_left_to_compare_is_one_byte() {
    let mut writer = PayloadWriter::new(&NONE, &NONE, 5);
    writer.skip(SyncId::at(9));
    assert!(!writer.compares());
    assert_eq!(writer.finish(), [0]);
    assert!(Payload::decode(Bytes::from_static(&[0])).unwrap().is_empty());
    assert!(Payload::decode(Bytes::new()).unwrap().is_empty());
}

#[test]
fn a_range_within_a_moment_has_its_last_hash() {
    let to = SyncId { time_ns: 70, hash: [9; 32] };
    let mut writer = PayloadWriter::new(&NONE, &NONE, 70);
    writer.fingerprint(to, &[1; 32]);
    let payload = Payload::decode(writer.finish().into()).unwrap();
    assert_eq!((ranges(&payload)[0].from, ranges(&payload)[0].to), (SyncId::at(70), to));
    // The reference sends a prefix alone.
    let mut bytes = vec![0, 0, 70, 0, 2, 9, 8, 1];
    bytes.extend([1; 32]);
    let payload = Payload::decode(bytes.into()).unwrap();
    let mut hash = [0; 32];
    hash[..2].copy_from_slice(&[9, 8]);
    assert_eq!(ranges(&payload)[0].to, SyncId { time_ns: 70, hash });
}

#[test]
fn counts_and_lengths_beyond_the_frame_are_refused_before_memory_is_taken() {
    // 2^40 ids, 2^60 topics, a topic of 2^40 bytes, a prefix of 33 bytes, an unknown kind.
    let big = |number: u32| {
        let mut bytes = vec![0x80; number as usize / 7];
        bytes.push(1);
        bytes
    };
    let mut ids = vec![0, 0, 1, 1, 2];
    ids.extend(big(42));
    for bytes in [ids, vec![0, 0, 1, 0, 33], vec![0, 0, 1, 1, 3], vec![0, 0, 1, 1, 2, 0, 2]] {
        let payload = Payload::decode(bytes.clone().into()).unwrap();
        assert!(payload.ranges().any(|range| range.is_err()), "{bytes:?}");
    }
    for bytes in [big(56), [vec![1], big(42)].concat(), vec![1, 1, 0xff, 0, 0]] {
        assert!(Payload::decode(bytes.clone().into()).is_err(), "{bytes:?}");
    }
}

#[test]
fn topics_beyond_the_first_are_skipped() {
    let topics: Vec<String> = (0..2 * TOPICS_MAX).map(|topic| topic.to_string()).collect();
    let mut writer = PayloadWriter::new(&NONE, &topics, 70);
    writer.fingerprint(SyncId::at(80), &[1; 32]);
    let payload = Payload::decode(writer.finish().into()).unwrap();
    let read: Vec<&str> = payload.content_topics.iter().map(|topic| topic.as_str()).collect();
    assert_eq!(read, topics[..TOPICS_MAX]);
    assert_eq!(ranges(&payload)[0].to, SyncId::at(80));
}

#[test]
fn ids_have_successors_in_their_order() {
    let id = SyncId { time_ns: 1, hash: [0; 32] };
    assert!(id.next() > id && id.next().hash[31] == 1);
    assert_eq!(SyncId { time_ns: 1, hash: [0xff; 32] }.next(), SyncId::at(2));
    let last = SyncId { time_ns: i64::MAX, hash: [0xff; 32] };
    assert_eq!(last.next(), last);
}

#[test]
fn a_transfer_is_written_around_its_message() {
    let mut body = Vec::new();
    put_bytes(1, b"/waku/2/rs/1/2", &mut body);
    put_bytes(2, b"message", &mut body);
    let frame = transfer_frame(7, "/waku/2/rs/1/2").around(b"message");
    assert_eq!(frame, with_length(&body));
    let read = Transfer::decode(body.into()).unwrap();
    assert_eq!(
        (read.pubsub_topic.as_str(), &read.message[..]),
        ("/waku/2/rs/1/2", &b"message"[..])
    );
    let missing = Transfer::decode(Bytes::new()).unwrap_err();
    assert_eq!(missing, DecodeError::Missing { field: "pubsub" });
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(
        start in 0_i64..1 << 62,
        parts in vec(
            (1_i64..1 << 40, 0_u8..3, vec((0_i64..1000, any::<[u8; 32]>()), 0..20)),
            1..30,
        ),
        settled in any::<bool>(),
    ) {
        let mut writer = PayloadWriter::new(&["one", "two"], &["three"], start);
        let mut expected: Vec<(SyncId, Option<Fingerprint>, Vec<SyncId>)> = Vec::new();
        let mut at = start;
        for (width, kind, steps) in parts {
            at += width;
            let mut time_ns = at;
            let ids: Vec<SyncId> = steps.into_iter().map(|(step, hash)| {
                time_ns += step;
                SyncId { time_ns, hash }
            }).collect();
            let to = SyncId::at(at);
            match kind {
                0 => writer.skip(to),
                1 => {
                    let mut fingerprint = [0; 32];
                    ids.iter().for_each(|id| mix(&mut fingerprint, &id.hash));
                    writer.fingerprint(to, &fingerprint);
                    expected.push((to, Some(fingerprint), Vec::new()));
                }
                _ => {
                    writer.items(to, &ids, settled);
                    expected.push((to, None, ids));
                }
            }
        }
        let payload = Payload::decode(writer.finish().into()).unwrap();
        let mut last = SyncId::at(start);
        let mut read = Vec::new();
        for range in payload.ranges() {
            let range = range.unwrap();
            prop_assert_eq!(range.from, last);
            last = range.to;
            match range.content {
                Content::Skip => {}
                Content::Fingerprint(fingerprint) => {
                    read.push((range.to, Some(fingerprint), Vec::new()));
                }
                Content::Items(items) => {
                    prop_assert_eq!(items.settled, settled);
                    prop_assert_eq!(items.count(), items.ids().count());
                    read.push((range.to, None, items.ids().collect()));
                }
            }
        }
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn any_bytes_end_in_ranges_or_an_error(bytes in vec(any::<u8>(), 0..400)) {
        if let Ok(payload) = Payload::decode(bytes.into()) {
            let mut ranges = 0;
            for range in payload.ranges().map_while(Result::ok) {
                prop_assert!(range.from.time_ns <= range.to.time_ns);
                if let Content::Items(items) = range.content {
                    prop_assert_eq!(items.ids().count(), items.count());
                }
                ranges += 1;
            }
            prop_assert!(ranges <= 200);
        }
    }
}
