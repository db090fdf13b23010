//! Store synchronisation: two nodes compare the messages they keep and send each other what is
//! missing. Reconciliation compares ranges of ids by their fingerprints; transfer carries the
//! messages.
//!
//! A payload of reconciliation is a list of ranges that follow one another in the order of
//! timestamp and hash. Each range is skipped, or has the fingerprint of its ids (their hashes,
//! xor), or the ids themselves. It is read lazily: [`Payload::ranges`] and [`Items::ids`] walk the
//! bytes of the frame, so that a payload takes no memory of its own.
//!
//! ```text
//! payload  = 0x00                                          nothing is left to compare
//!          | topics topics time range*                     pubsub topics, content topics, start
//! topics   = count (length bytes)*
//! range    = time-difference [length prefix-of-hash] kind content
//!            the prefix is there when the difference is 0; both give the range's last id
//! content  = nothing | fingerprint | count (time-difference hash)* settled
//! ```
//!
//! Numbers are LEB128, as in protobuf. Bounds: [`FRAME_BYTES_MAX`], [`TOPICS_MAX`] topics; counts
//! are checked against the bytes that are left before anything is allocated. It must never know
//! which messages are kept.
//!
//! Source: waku-org/specs store-sync, and the reference node's encoding.

use bytes::Bytes;
use prost::encoding::{decode_varint, encode_varint};

use crate::frame::{SplitFrame, encode_length};
use crate::message::{FRAME_OVERHEAD_BYTES, MESSAGE_BYTES_MAX};
use crate::text::{self, Text};
use crate::topic::{CONTENT_TOPIC_BYTES_MAX, PUBSUB_TOPIC_BYTES_MAX};
use crate::wire::{self, DecodeError, for_each_field};

/// Name of the protocol that compares.
pub const RECONCILIATION_PROTOCOL: &str = "/vac/waku/reconciliation/1.0.0";

/// Name of the protocol that carries messages.
pub const TRANSFER_PROTOCOL: &str = "/vac/waku/transfer/1.0.0";

/// Longest payload of reconciliation that is read, in bytes. The reference node answers one
/// fingerprint with eight ranges of at most a hundred ids, 33 kB.
pub const FRAME_BYTES_MAX: usize = 512 * 1024;

/// Longest frame of transfer, in bytes.
pub const TRANSFER_BYTES_MAX: usize = MESSAGE_BYTES_MAX + FRAME_OVERHEAD_BYTES;

/// Topics of one kind that are read of a payload; further ones are skipped. The reference has no
/// maximum.
pub const TOPICS_MAX: usize = 256;

/// Bytes of an id in a set, at least.
const ID_BYTES_MIN: usize = 1 + 32;

/// The xor of the hashes of a range.
pub type Fingerprint = [u8; 32];

/// A message, in the order in which stores are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SyncId {
    /// The message's timestamp, in nanoseconds since 1970.
    pub time_ns: i64,
    /// Its hash.
    pub hash: [u8; 32],
}

impl SyncId {
    /// The first id of a moment.
    pub fn at(time_ns: i64) -> Self {
        Self { time_ns, hash: [0; 32] }
    }

    /// The id that follows this one; the last id of all follows itself.
    pub fn next(mut self) -> Self {
        for byte in self.hash.iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                return self;
            }
        }
        match self.time_ns.checked_add(1) {
            Some(time_ns) => Self::at(time_ns),
            None => Self { time_ns: i64::MAX, hash: [0xff; 32] },
        }
    }
}

/// Adds a hash to a fingerprint, or takes it away.
pub fn mix(fingerprint: &mut Fingerprint, hash: &[u8; 32]) {
    fingerprint.iter_mut().zip(hash).for_each(|(sum, byte)| *sum ^= byte);
}

/// One range of a payload; both ends are part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its first id.
    pub from: SyncId,
    /// Its last id.
    pub to: SyncId,
    /// What the sender says of it.
    pub content: Content,
}

/// What a payload says of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing is left to compare.
    Skip,
    /// The fingerprint of the sender's ids.
    Fingerprint(Fingerprint),
    /// The sender's ids.
    Items(Items),
}

/// The ids of a range, in their order as a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Items {
    /// Differences of times, and hashes: checked.
    ids: Bytes,
    /// Number of ids.
    count: usize,
    /// Whether the sender expects no answer for this range.
    pub settled: bool,
}

impl Items {
    /// Number of ids.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The ids, as they were sent.
    pub fn ids(&self) -> impl Iterator<Item = SyncId> + '_ {
        let mut reader = Reader { rest: &self.ids };
        let mut time_ns = 0;
        (0..self.count).map_while(move |_| reader.id(&mut time_ns).ok())
    }
}

/// A payload of reconciliation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Only messages of these pubsub topics are compared; empty means all. The first
    /// [`TOPICS_MAX`]: one that answers names what it compares.
    pub pubsub_topics: Vec<Text>,
    /// The same of content topics.
    pub content_topics: Vec<Text>,
    /// Time of the first range's first id.
    start_ns: i64,
    /// The ranges.
    body: Bytes,
}

impl Payload {
    /// Reads the topics of a payload, without its length prefix; ranges are checked when they are
    /// read. Errors: damaged, a topic that is too long.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        if input.len() <= 1 {
            return Ok(Self::default());
        }
        let mut reader = Reader { rest: &input };
        let pubsub_topics = reader.topics(&input, "pubsub_topics", PUBSUB_TOPIC_BYTES_MAX)?;
        let content_topics = reader.topics(&input, "content_topics", CONTENT_TOPIC_BYTES_MAX)?;
        let start_ns = reader.time(0)?;
        let body = input.slice_ref(reader.rest);
        Ok(Self { pubsub_topics, content_topics, start_ns, body })
    }

    /// Whether it has no ranges: the sender has nothing left to compare.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// The ranges, in their order. Ends after the first error.
    pub fn ranges(&self) -> Ranges<'_> {
        Ranges { input: &self.body, reader: Reader { rest: &self.body }, last_ns: self.start_ns }
    }
}

/// Iterator over the ranges of a payload.
#[derive(Clone, Debug)]
pub struct Ranges<'a> {
    input: &'a Bytes,
    reader: Reader<'a>,
    last_ns: i64,
}

impl Ranges<'_> {
    fn read(&mut self) -> Result<Range, DecodeError> {
        // Only the last id has a hash on the wire; the first is the first of its moment.
        let from = SyncId::at(self.last_ns);
        let mut to = SyncId::at(self.reader.time(self.last_ns)?);
        if to.time_ns == self.last_ns {
            let same = usize::from(self.reader.byte()?);
            if same > to.hash.len() {
                return Err(DecodeError::TooLong { field: "hash", bytes: same, bytes_max: 32 });
            }
            let prefix = self.reader.take(same)?;
            to.hash.iter_mut().zip(prefix).for_each(|(byte, sent)| *byte = *sent);
        }
        self.last_ns = to.time_ns;
        let content = match self.reader.byte()? {
            0 => Content::Skip,
            1 => Content::Fingerprint(self.reader.hash()?),
            2 => Content::Items(self.items()?),
            value => {
                return Err(DecodeError::OutOfRange {
                    field: "range_type",
                    value: value.into(),
                    value_max: 2,
                });
            }
        };
        Ok(Range { from, to, content })
    }

    fn items(&mut self) -> Result<Items, DecodeError> {
        let count = self.reader.varint()?;
        let left = self.reader.rest.len();
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > left / ID_BYTES_MIN {
            return Err(DecodeError::Damaged { left });
        }
        let before = self.reader.rest;
        let mut time_ns = 0;
        for _ in 0..count {
            self.reader.id(&mut time_ns)?;
        }
        let bytes = before.len() - self.reader.rest.len();
        let ids = self.input.slice_ref(before.get(..bytes).unwrap_or_default());
        let settled = match self.reader.byte()? {
            0 => false,
            1 => true,
            value => {
                return Err(DecodeError::OutOfRange {
                    field: "reconciled",
                    value: value.into(),
                    value_max: 1,
                });
            }
        };
        Ok(Items { ids, count, settled })
    }
}

impl Iterator for Ranges<'_> {
    type Item = Result<Range, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.rest.is_empty() {
            return None;
        }
        let range = self.read();
        if range.is_err() {
            self.reader.rest = &[];
        }
        Some(range)
    }
}

#[derive(Clone, Debug)]
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64, DecodeError> {
        let left = self.rest.len();
        decode_varint(&mut self.rest).map_err(|_| DecodeError::Damaged { left })
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], DecodeError> {
        let left = self.rest.len();
        let (taken, rest) =
            self.rest.split_at_checked(bytes).ok_or(DecodeError::Damaged { left })?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        let left = self.rest.len();
        self.take(1)?.first().copied().ok_or(DecodeError::Damaged { left })
    }

    fn hash(&mut self) -> Result<[u8; 32], DecodeError> {
        let left = self.rest.len();
        self.take(32)?.try_into().map_err(|_| DecodeError::Damaged { left })
    }

    /// A time from its difference to an earlier one.
    fn time(&mut self, earlier_ns: i64) -> Result<i64, DecodeError> {
        let difference = self.varint()?;
        let later = i64::try_from(difference).ok().and_then(|by| earlier_ns.checked_add(by));
        later.ok_or(DecodeError::OutOfRange {
            field: "time",
            value: difference,
            value_max: (i64::MAX - earlier_ns) as u64,
        })
    }

    fn id(&mut self, time_ns: &mut i64) -> Result<SyncId, DecodeError> {
        *time_ns = self.time(*time_ns)?;
        Ok(SyncId { time_ns: *time_ns, hash: self.hash()? })
    }

    fn topics(
        &mut self,
        input: &Bytes,
        name: &'static str,
        bytes_max: usize,
    ) -> Result<Vec<Text>, DecodeError> {
        let count = self.varint()?;
        let mut topics = Vec::new();
        for _ in 0..count {
            let length = self.varint()?;
            let bytes = usize::try_from(length).unwrap_or(usize::MAX);
            if bytes > bytes_max {
                return Err(DecodeError::TooLong { field: name, bytes, bytes_max });
            }
            let topic = Text::of(input.slice_ref(self.take(bytes)?), name)?;
            if topics.len() < TOPICS_MAX {
                topics.push(topic);
            }
        }
        Ok(topics)
    }
}

/// A payload that is written range by range. Ranges that follow one another and are skipped become
/// one.
#[derive(Clone, Debug)]
pub struct PayloadWriter {
    out: Vec<u8>,
    last_ns: i64,
    /// Skipped up to here, and not yet written.
    skipped: Option<SyncId>,
    /// Whether a range has anything to compare.
    compares: bool,
}

impl PayloadWriter {
    /// A payload whose first range begins at a time, of these topics alone; none means of all.
    pub fn new(
        pubsub_topics: &[impl AsRef<str>],
        content_topics: &[impl AsRef<str>],
        start_ns: i64,
    ) -> Self {
        let mut out = Vec::with_capacity(1024);
        for topics in [
            pubsub_topics.iter().map(|topic| topic.as_ref()).collect::<Vec<&str>>(),
            content_topics.iter().map(|topic| topic.as_ref()).collect(),
        ] {
            encode_varint(topics.len() as u64, &mut out);
            for topic in topics {
                encode_varint(topic.len() as u64, &mut out);
                out.extend_from_slice(topic.as_bytes());
            }
        }
        let start_ns = start_ns.max(0);
        encode_varint(start_ns as u64, &mut out);
        Self { out, last_ns: start_ns, skipped: None, compares: false }
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// Nothing is left to compare up to an id.
    pub fn skip(&mut self, to: SyncId) {
        self.skipped = Some(to);
    }

    /// The fingerprint of the ids up to one.
    pub fn fingerprint(&mut self, to: SyncId, fingerprint: &Fingerprint) {
        self.begin(to, 1);
        self.out.extend_from_slice(fingerprint);
    }

    /// The ids up to one, in their order; `settled`: no answer is expected.
    pub fn items(&mut self, to: SyncId, ids: &[SyncId], settled: bool) {
        self.begin(to, 2);
        encode_varint(ids.len() as u64, &mut self.out);
        let mut time_ns = 0;
        for id in ids {
            debug_assert!(id.time_ns >= time_ns, "ids are in their order");
            encode_varint(id.time_ns.saturating_sub(time_ns).max(0) as u64, &mut self.out);
            self.out.extend_from_slice(&id.hash);
            time_ns = id.time_ns;
        }
        self.out.push(settled.into());
    }

    fn begin(&mut self, to: SyncId, kind: u8) {
        if let Some(skipped) = self.skipped.take() {
            self.bound(skipped, 0);
        }
        self.compares = true;
        self.bound(to, kind);
    }

    fn bound(&mut self, to: SyncId, kind: u8) {
        debug_assert!(to.time_ns >= self.last_ns, "ranges are in their order");
        let difference = to.time_ns.saturating_sub(self.last_ns).max(0);
        encode_varint(difference as u64, &mut self.out);
        if difference == 0 {
            let hash: &[u8] = if to.hash == [0; 32] { &[] } else { &to.hash };
            self.out.push(hash.len() as u8);
            self.out.extend_from_slice(hash);
        }
        self.last_ns = self.last_ns.saturating_add(difference);
        self.out.push(kind);
    }

    /// Whether any range has something to compare.
    pub fn compares(&self) -> bool {
        self.compares
    }

    /// The payload, without a length prefix.
    pub fn finish(mut self) -> Vec<u8> {
        if !self.compares {
            return vec![0];
        }
        if let Some(skipped) = self.skipped.take() {
            self.bound(skipped, 0);
        }
        self.out
    }
}

/// A message that is sent to a node that lacks it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Where it was published.
    pub pubsub_topic: Text,
    /// The serialised message, not looked into.
    pub message: Bytes,
}

impl Transfer {
    /// Reads a transfer without its length prefix. Errors: damaged, a part is missing, a topic that
    /// is too long.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let (mut pubsub_topic, mut message) = (None, None);
        for_each_field!(field in &input, {
            1 => pubsub_topic = Some(text::read_pubsub_topic(&input, &field)?),
            2 => message = Some(field.shared(&input, "message", TRANSFER_BYTES_MAX)?),
        });
        Ok(Self {
            pubsub_topic: pubsub_topic.ok_or(DecodeError::Missing { field: "pubsub" })?,
            message: message.ok_or(DecodeError::Missing { field: "message" })?,
        })
    }
}

/// The bytes around a serialised message of `message_bytes` bytes that is transferred. The head
/// starts with the length prefix: head, message and tail are the whole frame.
pub fn transfer_frame(message_bytes: usize, pubsub_topic: &str) -> SplitFrame {
    let body_bytes =
        wire::bytes_field_len(1, pubsub_topic.len()) + wire::bytes_field_len(2, message_bytes);
    let mut head = encode_length(body_bytes);
    wire::put_bytes(1, pubsub_topic.as_bytes(), &mut head);
    wire::put_bytes_head(2, message_bytes, &mut head);
    SplitFrame { head, tail: Vec::new() }
}
