//! One session: payloads go back and forth until one side has nothing left to compare.
//!
//! A payload is answered range by range as it is read from its frame. Bounds: time
//! ([`ANSWER_TIME`], [`SESSION_TIME`]), ids and bytes by [`relay_limits::SyncLimits`]. Whatever has
//! no room is skipped and counted as left out.

use std::{sync::Arc, time::Duration};

use futures::{AsyncRead, AsyncWrite, AsyncWriteExt};
use libp2p::PeerId;
use protocol::{
    Text,
    sync::{
        Content, FRAME_BYTES_MAX, Items, Payload, PayloadWriter, RECONCILIATION_PROTOCOL, Range,
        SyncId, TOPICS_MAX,
    },
};
use thiserror::Error;

use super::{
    compare::{Difference, FINGERPRINTS_MAX, IDS_PER_SET, parts},
    ranges::Scope,
    transfer::{PeerClass, Sender},
};
use crate::{
    client::{ClientError, Remote, read_failed},
    network::{
        admission::WaitingFrames,
        streams::{Frame, Intake, REQUEST_TIMEOUT, ReadError, read_frame, write_small},
    },
    node::Node,
    settings::count,
};

/// A peer answers within this time: it may send messages before.
const ANSWER_TIME: Duration = Duration::from_secs(120);
/// A whole session takes less, or ends.
const SESSION_TIME: Duration = Duration::from_secs(900);
/// Content topics to which a session is limited take at most this part of `sync.answer_bytes`: they
/// are named in answers, and looked for on every page of ids. Nodes of the reference name those of
/// their configuration, none as a rule. Of more than there is room for, some are compared.
const CONTENT_TOPICS_PART: u64 = 8;
/// Memory of a topic beside its name.
const TOPIC_BYTES: usize = 48;
/// Ids of a set in an answer, at most: 40 kB of them in memory.
const SET_IDS_MAX: usize = 1024;
/// Bytes of an id in a payload, at most.
const ID_BYTES_MAX: usize = 10 + 32;
/// Bytes of a range in a payload beside its ids, at most.
const RANGE_BYTES_MAX: usize = 10 + 33 + 1 + 10 + 32;

const NO_TOPICS: &[&str] = &[];
/// The payload of one that has nothing left to compare.
const DONE: &[u8] = &[0];

/// Why a session ended early.
#[derive(Debug, Error)]
pub(super) enum SessionError {
    /// A shorter range may be compared.
    #[error("the range holds more than sync.session_ids, or than a frame")]
    TooMuch,
    #[error("the store: {0}")]
    Store(String),
    #[error("the payload: {0}")]
    Payload(#[from] protocol::DecodeError),
    #[error(transparent)]
    Peer(#[from] ClientError),
    #[error("it took longer than {} s", SESSION_TIME.as_secs())]
    TimedOut,
}

/// What a session did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// Messages sent.
    pub(super) sent: u64,
    /// Whether something had no room.
    pub(super) left_out: bool,
}

/// Begins a session with a peer, over a range of times.
pub(super) async fn begin(
    node: &Arc<Node>,
    peer: &Remote,
    from_ns: i64,
    to_ns: i64,
) -> Result<Summary, SessionError> {
    let session = async {
        let class = node.sync_class(&peer.peer).await;
        let mut session = Session::new(node, peer.peer, class);
        let (from, to) = (SyncId::at(from_ns), SyncId::at(to_ns));
        let digest = session.scope.digest(node, from, to, 0).await?;
        let mut writer = PayloadWriter::new(&session.scope.pubsub_topics, NO_TOPICS, from_ns);
        writer.fingerprint(to, &digest.fingerprint);
        let mut stream = node.open_stream(peer, RECONCILIATION_PROTOCOL).await?;
        write(peer.peer, &mut stream, &writer.finish()).await?;
        session.converse(&mut stream, None).await
    };
    tokio::time::timeout(SESSION_TIME, session).await.unwrap_or(Err(SessionError::TimedOut))
}

/// Answers a session that a peer begins with a first payload.
pub(super) async fn answer(
    node: &Arc<Node>,
    peer: PeerId,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    first: Frame,
) -> Result<Summary, SessionError> {
    let session = async {
        let class = node.sync_class(&peer).await;
        Session::new(node, peer, class).converse(stream, Some(first)).await
    };
    tokio::time::timeout(SESSION_TIME, session).await.unwrap_or(Err(SessionError::TimedOut))
}

struct Session<'a> {
    node: &'a Arc<Node>,
    peer: PeerId,
    scope: Scope,
    sender: Sender<'a>,
    summary: Summary,
    /// Whether the peer named more content topics than are compared.
    narrowed: bool,
    /// Fingerprints in the answer that is being written.
    fingerprints: usize,
}

impl<'a> Session<'a> {
    fn new(node: &'a Arc<Node>, peer: PeerId, class: PeerClass) -> Self {
        let (from_ns, _) = node.sync.range((node.clock)());
        node.sync.intakes.open(peer, class, from_ns);
        Self {
            node,
            peer,
            scope: Scope {
                pubsub_topics: node.shards().iter().map(|shard| node.topic_name(shard)).collect(),
                content_topics: Arc::default(),
                ids_left: node.sync.limits.session_ids,
            },
            sender: Sender::new(node, peer),
            summary: Summary::default(),
            narrowed: false,
            fingerprints: 0,
        }
    }

    async fn converse(
        mut self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        mut first: Option<Frame>,
    ) -> Result<Summary, SessionError> {
        loop {
            let frame = match first.take() {
                Some(frame) => frame,
                None => read(self.node, self.peer, stream).await?,
            };
            let Frame { body, held: _held, .. } = frame;
            let answer = self.answer(&Payload::decode(body)?).await?;
            let Some(answer) = answer else { break };
            write(self.peer, stream, &answer).await?;
            if answer == DONE {
                break;
            }
        }
        self.sender.finish().await;
        // The peer may be gone.
        let _ = stream.close().await;
        self.summary.sent = self.sender.sent;
        self.summary.left_out |= self.sender.left_out;
        Ok(self.summary)
    }

    /// The answer to a payload; none to one that has nothing left to compare.
    async fn answer(&mut self, payload: &Payload) -> Result<Option<Vec<u8>>, SessionError> {
        let Some(first) = payload.ranges().next().transpose()? else { return Ok(None) };
        if !self.take_scope(payload) {
            return Ok(Some(DONE.to_vec()));
        }
        let named = if self.narrowed { &self.scope.content_topics[..] } else { &[] };
        let mut writer = PayloadWriter::new(&self.scope.pubsub_topics, named, first.from.time_ns);
        self.fingerprints = 0;
        let mut compares = false;
        let (oldest_ns, _) = self.node.sync.range((self.node.clock)());
        for range in payload.ranges() {
            let range = range?;
            compares |= range.content != Content::Skip;
            if range.to.time_ns < oldest_ns {
                writer.skip(range.to);
                continue;
            }
            match self.answer_range(&range, &mut writer).await {
                // What was read so far is answered.
                Err(SessionError::TooMuch) => {
                    self.summary.left_out = true;
                    writer.skip(range.to);
                }
                answered => answered?,
            }
        }
        Ok(compares.then(|| writer.finish()))
    }

    /// Only what both serve is compared. Whether there is anything.
    fn take_scope(&mut self, payload: &Payload) -> bool {
        let theirs = &payload.pubsub_topics;
        if !theirs.is_empty() {
            self.scope.pubsub_topics.retain(|ours| theirs.iter().any(|one| one.as_str() == ours));
        }
        let theirs = &payload.content_topics;
        let ours = &self.scope.content_topics;
        if ours.is_empty() && !theirs.is_empty() {
            let room = count(self.node.sync.limits.answer_bytes / CONTENT_TOPICS_PART);
            let start = rand::random::<u32>() as usize % theirs.len();
            let chosen = choose_topics(theirs, start, room);
            self.narrowed = chosen.len() < theirs.len() || theirs.len() >= TOPICS_MAX;
            self.summary.left_out |= self.narrowed;
            self.scope.content_topics = chosen.into();
        } else if !theirs.is_empty() {
            // It names what both compare, in its later payloads too.
            let is_named = |ours: &&String| theirs.iter().any(|one| one.as_str() == ours.as_str());
            let both: Vec<String> = ours.iter().filter(is_named).cloned().collect();
            if both.is_empty() {
                return false;
            }
            self.scope.content_topics = both.into();
        }
        !self.scope.pubsub_topics.is_empty()
    }

    /// Whether the answer has room for a range with a number of ids; if not, it is left out.
    fn has_room(&mut self, writer: &mut PayloadWriter, to: SyncId, ids: usize) -> bool {
        let bytes = writer.bytes() + 2 * RANGE_BYTES_MAX + ids * ID_BYTES_MAX;
        let most = self.node.sync.limits.answer_bytes;
        if bytes as u64 <= most {
            return true;
        }
        self.summary.left_out = true;
        writer.skip(to);
        false
    }

    async fn answer_range(
        &mut self,
        range: &Range,
        writer: &mut PayloadWriter,
    ) -> Result<(), SessionError> {
        match &range.content {
            Content::Skip => {
                writer.skip(range.to);
                Ok(())
            }
            Content::Fingerprint(theirs) => {
                let node = self.node;
                let digest = self.scope.digest(node, range.from, range.to, IDS_PER_SET).await?;
                if digest.fingerprint == *theirs {
                    writer.skip(range.to);
                    return Ok(());
                }
                match parts(range.from, range.to) {
                    Some(ends) if digest.count > IDS_PER_SET as u64 => {
                        self.cut(range.from, &ends, writer).await
                    }
                    _ => {
                        self.put(range.to, &digest, writer);
                        Ok(())
                    }
                }
            }
            Content::Items(theirs) => self.answer_items(range, theirs, writer).await,
        }
    }

    /// Compares a range part by part.
    async fn cut(
        &mut self,
        mut from: SyncId,
        ends: &[SyncId],
        writer: &mut PayloadWriter,
    ) -> Result<(), SessionError> {
        for end in ends {
            let node = self.node;
            let digest = self.scope.digest(node, from, *end, IDS_PER_SET).await?;
            self.put(*end, &digest, writer);
            from = SyncId::at(end.time_ns);
        }
        Ok(())
    }

    /// A range of this node: its ids where they are few, else its fingerprint.
    fn put(&mut self, to: SyncId, digest: &super::ranges::Digest, writer: &mut PayloadWriter) {
        if digest.count <= IDS_PER_SET as u64 {
            // A peer that is told that there is nothing here need not answer.
            if self.has_room(writer, to, digest.ids.len()) {
                writer.items(to, &digest.ids, digest.count == 0);
            }
        } else if self.fingerprints >= FINGERPRINTS_MAX {
            self.summary.left_out = true;
            writer.skip(to);
        } else if self.has_room(writer, to, 0) {
            self.fingerprints += 1;
            writer.fingerprint(to, &digest.fingerprint);
        }
    }

    /// Sends what the peer lacks of a range, and says what this node has, unless the peer needs no
    /// answer.
    async fn answer_items(
        &mut self,
        range: &Range,
        theirs: &Items,
        writer: &mut PayloadWriter,
    ) -> Result<(), SessionError> {
        let node = self.node;
        let mut difference = Difference::new(theirs.ids());
        let mut walk = self.scope.walk(range.from, range.to);
        let (mut ours, mut fits) = (Vec::new(), true);
        while let Some(id) = walk.next(node, &mut self.scope).await? {
            if !theirs.settled {
                fits &= ours.len() < SET_IDS_MAX;
            }
            if !theirs.settled && fits {
                ours.push(id);
            }
            if difference.is_lacked(id) {
                self.sender.add(id).await?;
                if self.sender.left_out {
                    break;
                }
            }
        }
        self.sender.flush().await?;
        if theirs.settled {
            writer.skip(range.to);
        } else if self.sender.left_out || !fits {
            self.summary.left_out = true;
            writer.skip(range.to);
        } else if self.has_room(writer, range.to, ours.len()) {
            writer.items(range.to, &ours, true);
        }
        Ok(())
    }
}

/// As many topics as there is room for, in bytes, from one of them on: another session takes
/// others.
fn choose_topics(theirs: &[Text], start: usize, mut room: usize) -> Vec<String> {
    let (before, behind) = theirs.split_at(start.min(theirs.len()));
    let fits = |topic: &&Text| {
        let left = room.checked_sub(topic.len() + TOPIC_BYTES);
        room = left.unwrap_or(room);
        left.is_some()
    };
    let chosen = behind.iter().chain(before).take_while(fits);
    chosen.map(|topic| topic.as_str().to_owned()).collect()
}

async fn read(
    node: &Arc<Node>,
    peer: PeerId,
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Frame, SessionError> {
    let waiting = WaitingFrames::default();
    let intake = Intake::new(node, &waiting, REQUEST_TIMEOUT);
    let reading = read_frame(stream, FRAME_BYTES_MAX, &intake);
    let failed = |error| read_failed(peer, RECONCILIATION_PROTOCOL, error);
    match tokio::time::timeout(ANSWER_TIME, reading).await {
        Ok(Ok(Some(frame))) => Ok(frame),
        Ok(Ok(None)) => Err(failed(ReadError::Torn).into()),
        Ok(Err(error)) => match failed(error) {
            ClientError::TooLong(_) => Err(SessionError::TooMuch),
            error => Err(error.into()),
        },
        Err(_) => Err(SessionError::TimedOut),
    }
}

async fn write(
    peer: PeerId,
    stream: &mut (impl AsyncWrite + Unpin),
    payload: &[u8],
) -> Result<(), SessionError> {
    let writing = async {
        write_small(stream, payload).await?;
        stream.flush().await
    };
    match tokio::time::timeout(ANSWER_TIME, writing).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            Err(read_failed(peer, RECONCILIATION_PROTOCOL, ReadError::Io(error)).into())
        }
        Err(_) => Err(SessionError::TimedOut),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_topics_are_chosen_within_their_room_from_any_of_them_on() {
        let theirs: Vec<Text> = ["a", "b", "c"].map(Text::from).into();
        let chosen = |start, topics: usize| choose_topics(&theirs, start, topics * 49);
        assert_eq!(chosen(0, 3), ["a", "b", "c"]);
        assert_eq!(chosen(2, 3), ["c", "a", "b"]);
        assert_eq!(chosen(1, 2), ["b", "c"]);
        assert_eq!(chosen(2, 2), ["c", "a"]);
        // The longest topic has room in the least answer that may be configured.
        let longest = [Text::from("t".repeat(protocol::topic::CONTENT_TOPIC_BYTES_MAX))];
        let room = count((8 << 10) / CONTENT_TOPICS_PART);
        assert_eq!(choose_topics(&longest, 0, room).len(), 1);
    }
}
