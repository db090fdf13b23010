//! Limits of messages and frames on their way through.

use accounting::{KIB, MIB};
use memory_budget::{Rules, SheetLine, limit, lines, whole};

use crate::{Limits, SCALE, pool};

/// Largest message of the Waku network, serialised.
pub(crate) const MESSAGE_BYTES: u64 = 150 * KIB;
/// Largest message of any network.
pub(crate) const MESSAGE_BYTES_MAX: u64 = MIB;
/// Frames, and messages for the log, that have room at once, whatever their size. Three relay peers
/// and a client may each send the largest at the same time.
const AT_ONCE: u64 = 4;
/// Bytes of a gossip frame in addition to one message: control messages, topics.
const FRAME_EXTRA_BYTES: u64 = 64 * KIB;

const _: () = assert!(MESSAGE_BYTES + FRAME_EXTRA_BYTES == 214 * KIB);
const _: () = {
    let frame = SCALE.fixed(MESSAGE_BYTES + FRAME_EXTRA_BYTES);
    assert!(rows::receiving_bytes.covers(&frame), "one frame can be received");
    assert!(rows::appending_bytes.covers(&frame), "one message can be stored");
    assert!(rows::sending_bytes.covers(&frame), "one frame can be sent");
    assert!(frame.covers(&rows::sending_chunk_bytes));
};

memory_budget::limits! {
    SCALE;
    /// Limits on messages on their way through.
    #[serde(deny_unknown_fields)]
    pub struct MessageLimits as messages of Limits, rules check {
        /// Largest message, serialised.
        message_bytes: u64 = fixed(MESSAGE_BYTES), local, pays within("receiving"),
            bounds [
                at_least(KIB, "hardly any message would be taken"),
                at_most(MESSAGE_BYTES_MAX, "no network has larger ones"),
            ],
            reason "of the Waku network; Status has 1 MiB. Pools that are too small for it grow";
        /// Largest gossip frame that is read. Longer ones are skipped, up to 2 MiB.
        frame_bytes: u64 = follows(largest_frame_bytes), local, pays within("receiving"),
            bounds [at_most(MESSAGE_BYTES_MAX + FRAME_EXTRA_BYTES, "no peer sends a longer one")],
            reason "follows message_bytes, with 64 KiB for control messages";
        /// Frames being read and decoded, together: the pool `receiving`.
        receiving_bytes: u64 = mib([3, 5, 8, 16, 32, 64, 256]) follows(frames_at_once), local,
            pays line("receiving"),
            reason "fifty of the largest messages at 128 MiB; full, streams are not read";
        /// Large frames, of more than 4 KiB, that are read at once. The others wait in their turn,
        /// their rest in the socket, and pushes are answered 429 when that takes too long.
        admitted_bytes: u64 = follows(admitted_bytes), local, pays within("receiving"),
            reason "three quarters of receiving_bytes; the rest is for small frames";
        /// Messages waiting for the log's writer, together: the pool `appending`.
        appending_bytes: u64 = mib([3, 5, 8, 16, 32, 64, 128]) follows(messages_at_once), local,
            pays line("appending"),
            reason "fifty milliseconds of the largest flow at 128 MiB";
        /// Buffers of messages being written to peers, together: the pool `sending`.
        sending_bytes: u64 = mib([2, 3, 4, 8, 16, 32, 128]), local, pays line("sending"),
            reason "256 streams written at once at 128 MiB; full, streams wait";
        /// Bytes of a message that are in memory at once while it is written to one peer.
        sending_chunk_bytes: u64 = fixed(16 * KIB), local, pays within("sending"),
            bounds [at_least(KIB, "sending would be all system calls")],
            reason "a frame of the multiplexers, and a few system calls per message";
        /// How far a message's timestamp may be off this machine's clock to be stored.
        clock_seconds: u64 = fixed(20), local, bounds [at_least(1, "clocks are never the same")],
            reason "the store protocol's; messages further off are relayed, not stored";
    }
}

/// A frame of the largest message.
fn largest_frame_bytes(limits: &Limits) -> u64 {
    limits.messages.message_bytes.saturating_add(FRAME_EXTRA_BYTES)
}

/// Small frames find room while large ones have all that they may.
fn admitted_bytes(limits: &Limits) -> u64 {
    let messages = &limits.messages;
    (messages.receiving_bytes / 4 * 3).max(messages.frame_bytes)
}

/// A few of the largest frames, where the pool by memory is smaller.
fn frames_at_once(limits: &Limits, least: u64) -> u64 {
    least.max(limits.messages.frame_bytes.saturating_mul(AT_ONCE))
}

/// A few of the largest messages, where the pool by memory is smaller.
fn messages_at_once(limits: &Limits, least: u64) -> u64 {
    least.max(limits.messages.message_bytes.saturating_mul(AT_ONCE))
}

fn check(limits: &Limits, rules: &mut Rules) {
    let message = limit!(limits.messages.message_bytes);
    let frame = limit!(limits.messages.frame_bytes);
    rules.bounds(limits, &["messages.message_bytes"]);
    rules.within(message, frame, "a message comes in a frame");
    rules.bounds(limits, &["messages.frame_bytes"]);
    rules.within(frame, limit!(limits.messages.receiving_bytes), "the largest frame must fit");
    let admitted = limit!(limits.messages.admitted_bytes);
    rules.within(frame, admitted, "the largest frame must be admitted");
    rules.within(admitted, limit!(limits.messages.receiving_bytes), "it is a part of it");
    let appending = limit!(limits.messages.appending_bytes);
    rules.within(message, appending, "the largest message must fit");
    let chunk = limit!(limits.messages.sending_chunk_bytes);
    rules.within(chunk, limit!(limits.messages.sending_bytes), "one chunk must fit");
}

impl Limits {
    /// Messages on their way.
    pub(crate) fn message_lines(&self) -> Vec<SheetLine> {
        let messages = &self.messages;
        lines![
            Pool(pool::RECEIVING, "relay") = whole(messages.receiving_bytes),
                "frames being read and decoded";
            Pool(pool::APPENDING, "store") = whole(messages.appending_bytes),
                "messages waiting for the log's writer";
            Pool(pool::SENDING, "relay") = whole(messages.sending_bytes),
                "chunks of messages being written to peers";
        ]
    }
}
