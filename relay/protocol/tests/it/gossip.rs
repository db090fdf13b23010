//! The gossip RPC: what is read, skipped and refused, and how control messages are packed.

use std::mem::size_of;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use protocol::gossip::{
    CONTROL_FRAME_BYTES_MIN, Control, IHave, Limits, MessageId, Prune, PrunePeer, Publish,
    RPC_BYTES_MAX, Rpc, Subscription, control_frames, message_id,
};
use protocol::wire::put_bytes;
use protocol::{DecodeError, Text, frame};

fn decode(bytes: impl Into<Bytes>) -> Result<Rpc, DecodeError> {
    Rpc::decode(bytes.into(), &Limits::default())
}

fn wrapped(tag: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(tag, body, &mut out);
    out
}

/// Bytes as the definition of libp2p specifies them, written by hand.
#[test]
fn an_rpc_is_laid_out_as_the_definition_says() {
    let id = |fill| MessageId([fill; 32]);
    let id_field = |key: u8, fill: u8| [vec![key, 32], vec![fill; 32]].concat();
    let control = [
        wrapped(1, &[b"\x0a\x02/t".to_vec(), id_field(0x12, 1), id_field(0x12, 2)].concat()),
        wrapped(2, &id_field(0x0a, 3)),
        wrapped(3, b"\x0a\x02/t"),
        wrapped(4, b"\x0a\x02/t\x12\x06\x0a\x01p\x12\x01r\x18\x3c"),
        wrapped(5, &id_field(0x0a, 4)),
    ];
    let bytes = [
        b"\x0a\x06\x08\x01\x12\x02/t".to_vec(),
        b"\x0a\x06\x08\x00\x12\x02/u".to_vec(),
        b"\x12\x08\x12\x02da\x22\x02/t".to_vec(),
        wrapped(3, &control.concat()),
    ];
    let rpc = decode(bytes.concat()).unwrap();
    let topic = Text::from("/t");
    let expected = Rpc {
        subscriptions: vec![
            Subscription { topic: topic.clone(), subscribe: true },
            Subscription { topic: "/u".into(), subscribe: false },
        ],
        publish: vec![Publish { topic: topic.clone(), data: "da".into(), signed: false }],
        ihave: vec![IHave { topic: topic.clone(), ids: vec![id(1), id(2)] }],
        iwant: vec![id(3)],
        graft: vec![topic.clone()],
        prune: vec![Prune {
            topic,
            backoff_s: Some(60),
            peers: vec![PrunePeer { peer_id: "p".into(), signed_record: Some("r".into()) }],
        }],
        idontwant: vec![id(4)],
        skipped: Default::default(),
    };
    assert_eq!(rpc, expected);
}

#[test]
fn the_id_of_a_message_is_the_digest_of_its_bytes() {
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(hex::encode(message_id(b"abc").0), abc);
}

#[test]
fn a_signed_message_is_marked_even_if_what_signs_it_is_empty() {
    for tag in [1, 3, 5, 6] {
        let mut message = b"\x12\x02da\x22\x02/t".to_vec();
        put_bytes(tag, &[], &mut message);
        let rpc = decode(wrapped(2, &message)).unwrap();
        assert!(rpc.publish[0].signed, "field {tag}");
    }
}

#[test]
fn what_means_nothing_is_skipped_and_counted() {
    let long = [&b"\x12\x81\x02"[..], &[b'x'; 257]].concat();
    for (bytes, what) in [
        (wrapped(1, b"\x08\x01"), "a subscription without a topic"),
        (wrapped(1, &long), "a topic of 257 bytes"),
        (wrapped(1, b"\x12\x01\xff"), "a topic that is no text"),
        (wrapped(2, b"\x22\x02/t"), "a message without data"),
        (wrapped(2, b"\x12\x02da"), "a message without a topic"),
        (wrapped(3, &wrapped(1, b"\x0a\x02/t")), "IHAVE without ids"),
        (wrapped(3, &wrapped(3, b"")), "GRAFT without a topic"),
        (wrapped(3, &wrapped(4, b"\x18\x3c")), "PRUNE without a topic"),
    ] {
        let rpc = decode(bytes).unwrap();
        assert_eq!(rpc.skipped.entries, 1, "{what}");
        assert_eq!(Rpc { skipped: Default::default(), ..rpc }, Rpc::default(), "{what}");
    }
    let ids = [wrapped(1, &[7; 31]), wrapped(1, &[7; 32]), wrapped(1, &[])].concat();
    let rpc = decode(wrapped(3, &wrapped(2, &ids))).unwrap();
    assert_eq!((rpc.iwant, rpc.skipped.odd_ids), (vec![MessageId([7; 32])], 2));
}

#[test]
fn an_iwant_storm_is_cut_off_at_the_limit() {
    let ids = wrapped(1, &[7; 32]).repeat(50_000);
    let storm = wrapped(3, &[wrapped(2, &ids), wrapped(5, &ids)].concat());
    let rpc = decode(storm).unwrap();
    assert_eq!((rpc.iwant.len(), rpc.idontwant.len()), (5_000, 0));
    assert_eq!(rpc.skipped.over_limit, 95_000);
}

#[test]
fn entries_beyond_a_limit_are_skipped_and_counted() {
    let subscription = b"\x0a\x06\x08\x01\x12\x02/t".to_vec();
    let rpc = decode(subscription.repeat(1024)).unwrap();
    assert_eq!((rpc.subscriptions.len(), rpc.skipped), (1024, Default::default()));
    let rpc = decode(subscription.repeat(1030)).unwrap();
    assert_eq!((rpc.subscriptions.len(), rpc.skipped.over_limit), (1024, 6));

    let message = b"\x12\x08\x12\x02da\x22\x02/t".to_vec();
    let rpc = decode(message.repeat(4096)).unwrap();
    assert_eq!((rpc.publish.len(), rpc.skipped), (4096, Default::default()));
    let rpc = decode(message.repeat(4099)).unwrap();
    assert_eq!((rpc.publish.len(), rpc.skipped.messages), (4096, 3));

    let topic = b"\x0a\x02/t".as_slice();
    let ids = [topic, &wrapped(2, &[7; 32])].concat();
    for (tag, body) in [(1, ids.as_slice()), (3, topic), (4, topic)] {
        let rpc = decode(wrapped(3, &wrapped(tag, body).repeat(1026))).unwrap();
        let kept = rpc.ihave.len() + rpc.graft.len() + rpc.prune.len();
        assert_eq!((kept, rpc.skipped.over_limit), (1024, 2), "{tag}");
        // What comes after it is read.
        let more = [wrapped(3, &wrapped(tag, body).repeat(1026)), message.clone()].concat();
        assert_eq!(decode(more).unwrap().publish.len(), 1);
    }
}

#[test]
fn recommended_peers_are_bounded_over_all_prunes() {
    let peer = wrapped(2, b"\x0a\x01p");
    let no_id = wrapped(2, b"\x12\x01r");
    let long_id = wrapped(2, &wrapped(1, &[1; 65]));
    let prune = [b"\x0a\x02/t".to_vec(), no_id, long_id, peer.repeat(40)].concat();
    let rpc = decode(wrapped(3, &wrapped(4, &prune).repeat(2))).unwrap();
    assert_eq!(rpc.prune.iter().map(|prune| prune.peers.len()).sum::<usize>(), 64);
    // Those without a usable id, of the first PRUNE and of the second.
    assert_eq!((rpc.skipped.entries, rpc.skipped.over_limit), (4, 16));
}

/// Bytes on the heap of a decoded RPC in addition to its input.
fn heap_bytes(rpc: &Rpc) -> usize {
    let ids = |ids: &Vec<MessageId>| ids.capacity() * size_of::<MessageId>();
    rpc.subscriptions.capacity() * size_of::<Subscription>()
        + rpc.publish.capacity() * size_of::<Publish>()
        + rpc.ihave.capacity() * size_of::<IHave>()
        + rpc.ihave.iter().map(|ihave| ids(&ihave.ids)).sum::<usize>()
        + ids(&rpc.iwant)
        + ids(&rpc.idontwant)
        + rpc.graft.capacity() * size_of::<Text>()
        + rpc.prune.capacity() * size_of::<Prune>()
        + rpc.prune.iter().map(|p| p.peers.capacity() * size_of::<PrunePeer>()).sum::<usize>()
}

// Promise: P24 - A decoded message uses at most twice its bytes and 512 KiB.
#[test]
fn the_densest_rpc_stays_within_its_memory() {
    let id = wrapped(2, &[7; 32]);
    let cases = [
        b"\x0a\x03\x12\x01t".repeat(1024),
        b"\x12\x06\x12\x01d\x22\x01t".repeat(4096),
        wrapped(3, &wrapped(1, &[b"\x0a\x01t".to_vec(), id.clone()].concat()).repeat(1024)),
        wrapped(3, &wrapped(3, b"\x0a\x01t").repeat(1024)),
        wrapped(3, &wrapped(4, b"\x0a\x01t\x12\x03\x0a\x01p").repeat(1024)),
        wrapped(3, &wrapped(5, &wrapped(1, &[7; 32])).repeat(3000)),
    ];
    for rpc in cases.iter().cloned().chain([cases[..5].concat()]) {
        assert!(rpc.len() <= RPC_BYTES_MAX);
        let bytes = rpc.len();
        let heap = heap_bytes(&decode(rpc).unwrap());
        assert!(heap <= 2 * bytes + 512 * 1024, "{heap} bytes for {bytes}");
    }
}

#[test]
fn nothing_to_say_makes_no_frame() {
    assert!(control_frames(&[], 4096).is_empty());
    let empty = [Control::IWant { ids: &[] }, Control::IHave { topic: "/t", ids: &[] }];
    assert!(control_frames(&empty, 4096).is_empty());
}

fn topic() -> impl Strategy<Value = Text> {
    "/[a-z/0-9]{1,255}".prop_map(Text::from)
}

fn ids(count_max: usize) -> impl Strategy<Value = Vec<MessageId>> {
    vec(any::<[u8; 32]>().prop_map(MessageId), 1..=count_max)
}

fn rpc() -> impl Strategy<Value = Rpc> {
    let data = |least| vec(any::<u8>(), least..60).prop_map(Bytes::from);
    let subscription =
        (topic(), any::<bool>()).prop_map(|(topic, subscribe)| Subscription { topic, subscribe });
    let publish = (topic(), data(1), any::<bool>()).prop_map(|(topic, data, signed)| Publish {
        topic,
        data,
        signed,
    });
    let ihave = (topic(), ids(200)).prop_map(|(topic, ids)| IHave { topic, ids });
    let peer = (data(1), of(data(0)))
        .prop_map(|(peer_id, signed_record)| PrunePeer { peer_id, signed_record });
    let prune = (topic(), of(any::<u64>()), vec(peer, 0..4))
        .prop_map(|(topic, backoff_s, peers)| Prune { topic, backoff_s, peers });
    (
        (vec(subscription, 0..30), vec(publish, 0..5), vec(ihave, 0..5)),
        (ids(200), vec(topic(), 0..9), vec(prune, 0..5), ids(200)),
    )
        .prop_map(|((subscriptions, publish, ihave), (iwant, graft, prune, idontwant))| Rpc {
            subscriptions,
            publish,
            ihave,
            iwant,
            graft,
            prune,
            idontwant,
            skipped: Default::default(),
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rpcs_survive_the_wire(rpc in rpc()) {
        prop_assert_eq!(decode(rpc.encode()), Ok(rpc));
    }

    /// Whatever the size of a frame, everything arrives, in order, and no frame is longer.
    #[test]
    fn control_messages_are_divided_and_arrive_whole(rpc in rpc(), bytes_max in 0..9000usize) {
        let mut entries = Vec::new();
        for subscription in &rpc.subscriptions {
            let subscribe = subscription.subscribe;
            entries.push(Control::Subscription { topic: &subscription.topic, subscribe });
        }
        for ihave in &rpc.ihave {
            entries.push(Control::IHave { topic: &ihave.topic, ids: &ihave.ids });
        }
        entries.push(Control::IWant { ids: &rpc.iwant });
        entries.extend(rpc.graft.iter().map(|topic| Control::Graft { topic }));
        for prune in &rpc.prune {
            entries.push(Control::Prune {
                topic: &prune.topic, backoff_s: prune.backoff_s, peers: &prune.peers,
            });
        }
        entries.push(Control::IDontWant { ids: &rpc.idontwant });

        let mut arrived = Rpc { publish: rpc.publish.clone(), ..Rpc::default() };
        for frame in control_frames(&entries, bytes_max) {
            prop_assert!(frame.len() <= bytes_max.max(CONTROL_FRAME_BYTES_MIN));
            let (length, used) = frame::decode_length(&frame, frame.len()).unwrap().unwrap();
            prop_assert_eq!(length + used, frame.len());
            let part = decode(frame[used..].to_vec()).unwrap();
            prop_assert_eq!(part.skipped, Default::default());
            arrived.subscriptions.extend(part.subscriptions);
            for ihave in part.ihave {
                let last = arrived.ihave.len();
                let total: usize = arrived.ihave.iter().map(|ihave| ihave.ids.len()).sum();
                let begun: usize = rpc.ihave[..last].iter().map(|ihave| ihave.ids.len()).sum();
                // A list that was divided continues where it stopped.
                match arrived.ihave.last_mut() {
                    Some(open) if total < begun => open.ids.extend(ihave.ids),
                    _ => arrived.ihave.push(ihave),
                }
            }
            arrived.iwant.extend(part.iwant);
            arrived.graft.extend(part.graft);
            arrived.prune.extend(part.prune);
            arrived.idontwant.extend(part.idontwant);
        }
        prop_assert_eq!(arrived, rpc);
    }
}

/// A record that does not fit the frame is left out, the PRUNE is not.
#[test]
fn peers_that_do_not_fit_are_left_out_of_a_prune() {
    let peer =
        |bytes| PrunePeer { peer_id: "p".into(), signed_record: Some(Bytes::from(vec![0; bytes])) };
    let peers = [peer(900), peer(900), peer(20)];
    let prune = Control::Prune { topic: "/t", backoff_s: Some(60), peers: &peers };
    let frames = control_frames(&[prune], 1024);
    assert_eq!(frames.len(), 1);
    let rpc = decode(frames[0][2..].to_vec()).unwrap();
    assert_eq!(rpc.prune[0].peers, [peer(900), peer(20)]);
}
