//! Writing of the gossip RPC.

use super::{MessageId, PrunePeer, Rpc, tag};
use crate::frame::{LENGTH_PREFIX_BYTES_MAX, SplitFrame, encode_length, with_length};
use crate::topic::PUBSUB_TOPIC_BYTES_MAX;
use crate::wire;

/// Least size of a frame for [`control_frames`], in bytes: any one topic with an id fits it.
pub const CONTROL_FRAME_BYTES_MIN: usize = 1024;

/// Key and length of an id of 32 bytes, and the id.
const ID_FIELD_BYTES: usize = 34;

/// Most bytes of a key with a length of four bytes behind it.
const HEAD_BYTES_MAX: usize = 5;

const _: () = assert!(
    PUBSUB_TOPIC_BYTES_MAX + ID_FIELD_BYTES + 4 * HEAD_BYTES_MAX + 16 < CONTROL_FRAME_BYTES_MIN
);

/// A control message for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control<'a> {
    /// This node joins or leaves a topic.
    Subscription {
        /// The pubsub topic that this node joins or leaves.
        topic: &'a str,
        /// Whether it joins.
        subscribe: bool,
    },
    /// This node has messages of a topic.
    IHave {
        /// The pubsub topic of the messages.
        topic: &'a str,
        /// Ids of the messages that are offered.
        ids: &'a [MessageId],
    },
    /// This node wants messages.
    IWant {
        /// Ids of the messages that are asked for.
        ids: &'a [MessageId],
    },
    /// This node takes the peer into the mesh of a topic.
    Graft {
        /// The pubsub topic whose mesh the peer is taken into.
        topic: &'a str,
    },
    /// This node removes the peer from the mesh of a topic.
    Prune {
        /// The pubsub topic whose mesh the peer is removed from.
        topic: &'a str,
        /// How long not to come back, in seconds.
        backoff_s: Option<u64>,
        /// Other peers to try; those that do not fit the frame are left out.
        peers: &'a [PrunePeer],
    },
    /// This node has messages and does not want them again.
    IDontWant {
        /// Ids of the messages that the peer need not send.
        ids: &'a [MessageId],
    },
}

/// Writes `entries`, in order, into as few frames as they fit. No frame, its length prefix
/// included, has more than `frame_bytes_max` bytes; less than [`CONTROL_FRAME_BYTES_MIN`] counts
/// as that. Lists of ids are divided between frames. Each frame has one control message, because
/// some peers keep only the last. Entries with a topic of more than [`PUBSUB_TOPIC_BYTES_MAX`]
/// bytes, which no topic of this node has, are left out.
pub fn control_frames(entries: &[Control<'_>], frame_bytes_max: usize) -> Vec<Vec<u8>> {
    let frame_bytes_max = frame_bytes_max.max(CONTROL_FRAME_BYTES_MIN);
    let mut packer = Packer {
        // The length prefix of the frame, and key and length of the control message.
        body_bytes_max: frame_bytes_max - LENGTH_PREFIX_BYTES_MAX - HEAD_BYTES_MAX - 1,
        subscriptions: Vec::new(),
        control: Vec::new(),
        frames: Vec::new(),
    };
    entries.iter().for_each(|entry| packer.add(entry));
    packer.flush();
    debug_assert!(packer.frames.iter().all(|frame| frame.len() <= frame_bytes_max));
    packer.frames
}

struct Packer {
    body_bytes_max: usize,
    subscriptions: Vec<u8>,
    control: Vec<u8>,
    frames: Vec<Vec<u8>>,
}

impl Packer {
    fn add(&mut self, entry: &Control<'_>) {
        match *entry {
            Control::Subscription { topic, subscribe } => {
                let mut field = Vec::with_capacity(topic.len() + 12);
                put_subscription(topic, subscribe, &mut field);
                if fits(topic) && self.make_room(field.len()) {
                    self.subscriptions.extend_from_slice(&field);
                }
            }
            Control::IHave { topic, ids } if fits(topic) => {
                let mut start = Vec::with_capacity(topic.len() + 4);
                wire::put_bytes(tag::CONTROL_TOPIC, topic.as_bytes(), &mut start);
                self.add_ids(tag::IHAVE, &start, tag::IHAVE_IDS, ids);
            }
            Control::IWant { ids } => self.add_ids(tag::IWANT, &[], tag::IDS, ids),
            Control::IDontWant { ids } => self.add_ids(tag::IDONTWANT, &[], tag::IDS, ids),
            Control::Graft { topic } if fits(topic) => {
                let mut body = Vec::with_capacity(topic.len() + 4);
                wire::put_bytes(tag::CONTROL_TOPIC, topic.as_bytes(), &mut body);
                self.add_control(tag::GRAFT, &body);
            }
            Control::Prune { topic, backoff_s, peers } if fits(topic) => {
                let body = prune_body(topic, backoff_s, peers, self.body_bytes_max);
                self.add_control(tag::PRUNE, &body);
            }
            Control::IHave { .. } | Control::Graft { .. } | Control::Prune { .. } => {}
        }
    }

    fn add_control(&mut self, tag: u32, body: &[u8]) {
        if self.make_room(wire::bytes_field_len(tag, body.len())) {
            wire::put_bytes(tag, body, &mut self.control);
        }
    }

    /// Adds lists of ids, each with `start` before it, as many as it takes.
    fn add_ids(&mut self, tag: u32, start: &[u8], id_tag: u32, mut ids: &[MessageId]) {
        while !ids.is_empty() {
            let least = HEAD_BYTES_MAX + start.len() + ID_FIELD_BYTES;
            if !self.make_room(least) {
                return;
            }
            let count = (self.room() - HEAD_BYTES_MAX - start.len()) / ID_FIELD_BYTES;
            let (now, later) = ids.split_at(count.min(ids.len()));
            let body_bytes = start.len() + now.len() * ID_FIELD_BYTES;
            wire::put_bytes_head(tag, body_bytes, &mut self.control);
            self.control.extend_from_slice(start);
            now.iter().for_each(|id| wire::put_bytes(id_tag, &id.0, &mut self.control));
            ids = later;
        }
    }

    fn room(&self) -> usize {
        self.body_bytes_max.saturating_sub(self.subscriptions.len() + self.control.len())
    }

    /// Begins a new frame if fewer than `bytes` bytes are left; whether there are then.
    fn make_room(&mut self, bytes: usize) -> bool {
        if self.room() < bytes {
            self.flush();
        }
        self.room() >= bytes
    }

    fn flush(&mut self) {
        if self.subscriptions.is_empty() && self.control.is_empty() {
            return;
        }
        let mut body = std::mem::take(&mut self.subscriptions);
        if !self.control.is_empty() {
            wire::put_bytes(tag::CONTROL, &self.control, &mut body);
            self.control.clear();
        }
        self.frames.push(with_length(&body));
    }
}

fn fits(topic: &str) -> bool {
    debug_assert!(topic.len() <= PUBSUB_TOPIC_BYTES_MAX);
    topic.len() <= PUBSUB_TOPIC_BYTES_MAX
}

fn put_subscription(topic: &str, subscribe: bool, out: &mut Vec<u8>) {
    let body = wire::varint_field_len(tag::SUBSCRIBE, subscribe.into())
        + wire::bytes_field_len(tag::SUBSCRIBE_TOPIC, topic.len());
    wire::put_bytes_head(tag::SUBSCRIPTION, body, out);
    wire::put_varint(tag::SUBSCRIBE, subscribe.into(), out);
    wire::put_bytes(tag::SUBSCRIBE_TOPIC, topic.as_bytes(), out);
}

/// A PRUNE with as many of `peers` as fit `bytes_max` bytes with its key and length.
fn prune_body(
    topic: &str,
    backoff_s: Option<u64>,
    peers: &[PrunePeer],
    bytes_max: usize,
) -> Vec<u8> {
    let mut body = Vec::with_capacity(topic.len() + 16);
    wire::put_bytes(tag::CONTROL_TOPIC, topic.as_bytes(), &mut body);
    wire::put_each_varint(tag::PRUNE_BACKOFF, backoff_s, &mut body);
    for peer in peers {
        let mut inner = Vec::with_capacity(64);
        wire::put_bytes(tag::PEER_ID, &peer.peer_id, &mut inner);
        wire::put_each(tag::PEER_RECORD, &peer.signed_record, &mut inner);
        let field_bytes = wire::bytes_field_len(tag::PRUNE_PEERS, inner.len());
        if HEAD_BYTES_MAX + body.len() + field_bytes <= bytes_max {
            wire::put_bytes(tag::PRUNE_PEERS, &inner, &mut body);
        }
    }
    body
}

/// The bytes around a serialised message of `data_bytes` bytes that is published on `topic`: an RPC
/// with one message, unsigned. The head starts with the length prefix: head, data and tail are the
/// whole frame.
pub fn publish_frame(topic: &str, data_bytes: usize) -> SplitFrame {
    let mut tail = Vec::with_capacity(topic.len() + 4);
    wire::put_bytes(tag::TOPIC, topic.as_bytes(), &mut tail);
    let message_bytes = wire::bytes_field_len(tag::DATA, data_bytes) + tail.len();
    let mut head = encode_length(wire::bytes_field_len(tag::PUBLISH, message_bytes));
    wire::put_bytes_head(tag::PUBLISH, message_bytes, &mut head);
    wire::put_bytes_head(tag::DATA, data_bytes, &mut head);
    SplitFrame { head, tail }
}

impl Rpc {
    /// The RPC without a length prefix, of any size: for tests and tools. A router uses
    /// [`control_frames`] and [`publish_frame`]. A message that is marked as signed is written
    /// with an empty author.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for subscription in &self.subscriptions {
            put_subscription(&subscription.topic, subscription.subscribe, &mut out);
        }
        for publish in &self.publish {
            let mut message = Vec::with_capacity(publish.data.len() + publish.topic.len() + 16);
            if publish.signed {
                wire::put_bytes(tag::FROM, &[], &mut message);
            }
            wire::put_bytes(tag::DATA, &publish.data, &mut message);
            wire::put_bytes(tag::TOPIC, publish.topic.as_bytes(), &mut message);
            wire::put_bytes(tag::PUBLISH, &message, &mut out);
        }
        let mut control = Vec::new();
        let mut put_ids = |tag, start: &[u8], id_tag, ids: &[MessageId]| {
            let mut body = start.to_vec();
            ids.iter().for_each(|id| wire::put_bytes(id_tag, &id.0, &mut body));
            if !ids.is_empty() {
                wire::put_bytes(tag, &body, &mut control);
            }
        };
        for ihave in &self.ihave {
            let mut start = Vec::new();
            wire::put_bytes(tag::CONTROL_TOPIC, ihave.topic.as_bytes(), &mut start);
            put_ids(tag::IHAVE, &start, tag::IHAVE_IDS, &ihave.ids);
        }
        put_ids(tag::IWANT, &[], tag::IDS, &self.iwant);
        put_ids(tag::IDONTWANT, &[], tag::IDS, &self.idontwant);
        for topic in &self.graft {
            let mut body = Vec::new();
            wire::put_bytes(tag::CONTROL_TOPIC, topic.as_bytes(), &mut body);
            wire::put_bytes(tag::GRAFT, &body, &mut control);
        }
        for prune in &self.prune {
            let body = prune_body(&prune.topic, prune.backoff_s, &prune.peers, usize::MAX);
            wire::put_bytes(tag::PRUNE, &body, &mut control);
        }
        if !control.is_empty() {
            wire::put_bytes(tag::CONTROL, &control, &mut out);
        }
        out
    }
}
