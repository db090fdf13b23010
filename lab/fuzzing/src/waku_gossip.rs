//! A gossip RPC as a peer sends it: reading it stays within the limits and within memory, and a
//! decoded RPC is encoded again to bytes that decode to the same, whole and divided into frames.

use bytes::Bytes;
use protocol::gossip::{Control, Limits, Rpc, control_frames};

use crate::allocated::decoding;

/// Low enough for the fuzzer to reach them.
const LIMITS: Limits = Limits { subscriptions: 4, publish: 4, topics: 3, ids: 5, peers: 3 };

pub(crate) fn test_one_input(bytes: &[u8]) {
    let input = Bytes::copy_from_slice(bytes);
    // With the limits of a node, which are higher.
    let _ = decoding(bytes.len(), || Rpc::decode(input.clone(), &Limits::default()));
    let Ok(mut rpc) = decoding(bytes.len(), || Rpc::decode(input, &LIMITS)) else { return };
    assert!(rpc.subscriptions.len() <= LIMITS.subscriptions);
    assert!(rpc.publish.len() <= LIMITS.publish);
    assert!(rpc.ihave.len().max(rpc.graft.len()).max(rpc.prune.len()) <= LIMITS.topics);
    let ids = rpc.ihave.iter().map(|ihave| ihave.ids.len()).sum::<usize>();
    assert!(ids + rpc.iwant.len() + rpc.idontwant.len() <= LIMITS.ids);
    assert!(rpc.prune.iter().map(|prune| prune.peers.len()).sum::<usize>() <= LIMITS.peers);

    // Skipped entries are not written, and so not skipped again.
    rpc.skipped = Default::default();
    assert_eq!(Rpc::decode(rpc.encode().into(), &LIMITS).expect("it was written here"), rpc);

    let mut entries = vec![Control::IWant { ids: &rpc.iwant }];
    entries.push(Control::IDontWant { ids: &rpc.idontwant });
    for subscription in &rpc.subscriptions {
        let subscribe = subscription.subscribe;
        entries.push(Control::Subscription { topic: &subscription.topic, subscribe });
    }
    for ihave in &rpc.ihave {
        entries.push(Control::IHave { topic: &ihave.topic, ids: &ihave.ids });
    }
    for prune in &rpc.prune {
        let (topic, peers) = (prune.topic.as_str(), prune.peers.as_slice());
        entries.push(Control::Prune { topic, backoff_s: prune.backoff_s, peers });
    }
    let mut subscriptions = 0;
    for frame in control_frames(&entries, 0) {
        let (length, used) = protocol::frame::decode_length(&frame, 1024)
            .expect("it is a frame")
            .expect("it is whole");
        assert_eq!(length + used, frame.len());
        let part = Rpc::decode(Bytes::copy_from_slice(&frame[used..]), &Limits::default());
        subscriptions += part.expect("it was written here").subscriptions.len();
    }
    assert_eq!(subscriptions, rpc.subscriptions.len());
}
