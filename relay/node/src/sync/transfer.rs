//! Messages that one store sends to another: sent to a peer that lacks them, and taken from a peer
//! with which this node has, or had a moment ago, a session.
//!
//! A message that is taken must be of a shard of this node, of the range that is compared, and not
//! here; its hash is computed. Bounds: `sync.session_bytes` in each direction of a session, over
//! all peers `client.fetched_per_second` messages; [`INTAKES_MAX`] peers with sessions are
//! remembered.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use futures::AsyncWriteExt;
use libp2p::PeerId;
use protocol::{
    WakuMessage, message_hash,
    sync::{SyncId, TRANSFER_BYTES_MAX, TRANSFER_PROTOCOL, Transfer, transfer_frame},
};
use store::Query;

use super::session::SessionError;
use crate::{
    client::{ClientError, Remote},
    governor::WorkKind,
    ingest::RejectReason,
    network::{
        admission::WaitingFrames,
        stream_slots::Stream,
        streams::{Frame, GOSSIP_TIMEOUT, Intake, SEND_TIME, read_frame, write_message},
    },
    node::Node,
    rln::ProofRefusal,
    services::ServeOutcome,
    settings::count,
};

/// Peers from which messages are taken.
const INTAKES_MAX: usize = 64;
/// Messages are taken for so long after a session began.
const OPEN_TIME: Duration = Duration::from_secs(900);
/// A further session within this time brings no further bytes.
const RENEW_TIME: Duration = Duration::from_secs(120);
/// A stream without a message ends after this time.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Messages that are looked up at once to be sent.
const BATCH: usize = 64;
const _: () = assert!(BATCH <= store::PAGE_MESSAGES_MAX && BATCH <= store::HASHES_MAX);

#[derive(Clone, Copy, Debug)]
struct PeerIntake {
    from_ns: i64,
    began: Instant,
    renewed: Instant,
    bytes_left: u64,
}

/// From which peers messages are taken, and how much.
#[derive(Debug)]
pub(super) struct Intakes {
    bytes: u64,
    peers: Mutex<HashMap<PeerId, PeerIntake>>,
}

impl Intakes {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, peers: Mutex::default() }
    }

    /// A session with a peer begins: its messages from a time on are taken.
    pub(super) fn open(&self, peer: PeerId, from_ns: i64) {
        self.open_at(peer, from_ns, Instant::now());
    }

    fn open_at(&self, peer: PeerId, from_ns: i64, now: Instant) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |since: Instant| now.saturating_duration_since(since);
        peers.retain(|_, intake| age(intake.began) < OPEN_TIME);
        if let Some(intake) = peers.get_mut(&peer) {
            intake.began = now;
            intake.from_ns = from_ns;
            if age(intake.renewed) >= RENEW_TIME {
                (intake.renewed, intake.bytes_left) = (now, self.bytes);
            }
            return;
        }
        if peers.len() >= INTAKES_MAX {
            let oldest = peers.iter().min_by_key(|(_, intake)| intake.began);
            if let Some(oldest) = oldest.map(|(peer, _)| *peer) {
                peers.remove(&oldest);
            }
        }
        let intake = PeerIntake { from_ns, began: now, renewed: now, bytes_left: self.bytes };
        peers.insert(peer, intake);
    }

    /// Takes a message of a peer, by its time and its length.
    fn take(&self, peer: &PeerId, time_ns: i64, bytes: u64) -> Result<(), &'static str> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let intake = peers
            .get_mut(peer)
            .filter(|intake| intake.began.elapsed() < OPEN_TIME)
            .ok_or("there is no session with its sender")?;
        if time_ns < intake.from_ns {
            return Err("it is older than what is compared");
        }
        let left = intake.bytes_left.checked_sub(bytes);
        intake.bytes_left = left.ok_or("its sender sent sync.session_bytes already")?;
        Ok(())
    }
}

/// Takes messages of a peer, for as long as it sends them.
pub(crate) async fn serve(node: Arc<Node>, peer: PeerId, mut stream: Stream) -> ServeOutcome {
    let bytes_max = TRANSFER_BYTES_MAX.min(count(node.settings.limits.messages.frame_bytes));
    let waiting = WaitingFrames::default();
    loop {
        let intake = Intake::new(&node, &waiting, GOSSIP_TIMEOUT);
        let read = read_frame(&mut stream, bytes_max, &intake);
        // Whatever ends the stream, the peer opens another one for the next message.
        let Ok(Ok(Some(frame))) = tokio::time::timeout(IDLE_TIME, read).await else {
            return Ok(());
        };
        match node.take_transfer(&peer, frame).await {
            Ok(true) => drop(node.sync.taken.fetch_add(1, Relaxed)),
            Ok(false) => {}
            Err(why) => tracing::debug!(%peer, why, "a message of another store was not taken"),
        }
    }
}

impl Node {
    /// Writes a message that a peer's store sent. Whether it was new.
    async fn take_transfer(&self, peer: &PeerId, frame: Frame) -> Result<bool, String> {
        let Frame { body, held, admitted: _admitted, .. } = frame;
        let transfer = Transfer::decode(body).map_err(|error| error.to_string())?;
        if let Some(why) = self.watch.held_back(WorkKind::Pushes) {
            return Err(why);
        }
        let bytes = transfer.message.clone();
        let message = WakuMessage::decode(bytes.clone()).map_err(|error| error.to_string())?;
        let time_ns = message.timestamp.filter(|at| *at != 0).ok_or("it has no timestamp")?;
        self.sync.intakes.take(peer, time_ns, bytes.len() as u64)?;
        self.sync.taking.take(1).await;
        let topic = transfer.pubsub_topic.as_str();
        let shard = self.shard_for(Some(topic), "").map_err(|error| error.to_string())?;
        self.write_missing(shard, &message, bytes, held).await
    }

    /// Writes a message of another store, if it is not here and may be kept: not an ephemeral one,
    /// or one of the future. Whether it was written.
    pub(super) async fn write_missing(
        &self,
        shard: router::Shard,
        message: &WakuMessage,
        bytes: bytes::Bytes,
        held: accounting::Reservation,
    ) -> Result<bool, String> {
        let time_ns = message.timestamp.unwrap_or_default();
        let latest_ns = (self.clock)().saturating_add(nanos(self.clock_drift));
        // Another network, or another node of this one, may take larger messages.
        let is_too_large = self.check_size(&bytes).is_err();
        if is_too_large || message.is_ephemeral() || time_ns > latest_ns {
            return Ok(false);
        }
        let hash = message_hash(&self.topic(shard), message).0;
        let missing = self.store.missing(vec![hash], (time_ns, time_ns)).await;
        if missing.map_err(|error| error.to_string())?.is_empty() {
            return Ok(false);
        }
        if let Err(rejected) = self.judge_fetched(shard, message, &bytes, None).await {
            return match rejected {
                // It is not judged now.
                RejectReason::Proof(
                    ProofRefusal::NoRoots | ProofRefusal::Busy(_) | ProofRefusal::Log(_),
                ) => Err(rejected.to_string()),
                rejected => {
                    tracing::debug!(%rejected, "a message of another store is not valid");
                    Ok(false)
                }
            };
        }
        let written = self
            .write_fetched(shard, message, bytes, held, true, false)
            .await
            .map_err(|error| error.to_string())?;
        Ok(!written.known)
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Sends messages to one peer, by a stream that is opened for the first.
pub(super) struct Sender<'a> {
    node: &'a Arc<Node>,
    peer: PeerId,
    stream: Option<libp2p::Stream>,
    waiting: Vec<[u8; 32]>,
    bytes_left: u64,
    pub(super) sent: u64,
    /// Whether something was not sent.
    pub(super) left_out: bool,
}

impl<'a> Sender<'a> {
    pub(super) fn new(node: &'a Arc<Node>, peer: PeerId) -> Self {
        Self {
            node,
            peer,
            stream: None,
            waiting: Vec::new(),
            bytes_left: node.sync.limits.session_bytes,
            sent: 0,
            left_out: false,
        }
    }

    /// A message to send, with others.
    pub(super) async fn add(&mut self, id: SyncId) -> Result<(), SessionError> {
        self.waiting.push(id.hash);
        if self.waiting.len() >= BATCH { self.flush().await } else { Ok(()) }
    }

    /// Sends those that wait.
    pub(super) async fn flush(&mut self) -> Result<(), SessionError> {
        let hashes = std::mem::take(&mut self.waiting);
        if hashes.is_empty() || self.left_out {
            return Ok(());
        }
        let query = Query { hashes, forward: true, limit: BATCH, ..Query::default() };
        let found = self.node.store.query(query).await;
        let found = found.map_err(|error| SessionError::Store(error.to_string()))?;
        for one in found.messages {
            let left = self.bytes_left.checked_sub(one.message.len() as u64);
            let Some(left) = left else {
                self.left_out = true;
                break;
            };
            self.bytes_left = left;
            self.send(&one).await?;
            self.sent += 1;
            self.node.sync.sent.fetch_add(1, Relaxed);
        }
        if let Some(stream) = &mut self.stream {
            let flushed = tokio::time::timeout(SEND_TIME, stream.flush()).await;
            if !matches!(flushed, Ok(Ok(()))) {
                return Err(ClientError::Unreachable(self.peer).into());
            }
        }
        Ok(())
    }

    async fn send(&mut self, one: &store::StoredMessage) -> Result<(), SessionError> {
        if self.stream.is_none() {
            let to = Remote { peer: self.peer, address: None };
            self.stream = Some(self.node.open_stream(&to, TRANSFER_PROTOCOL).await?);
        }
        let gone = ClientError::Unreachable(self.peer);
        let Some(stream) = &mut self.stream else { return Err(gone.into()) };
        let frame = transfer_frame(one.message.len(), &one.pubsub_topic);
        let writing = write_message(stream, self.node, &frame.head, &one.message, &frame.tail);
        match tokio::time::timeout(SEND_TIME, writing).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(gone.into()),
        }
    }

    /// Ends the stream, if there is one.
    pub(super) async fn finish(&mut self) {
        if let Some(stream) = &mut self.stream {
            // The peer may be gone.
            let _ = tokio::time::timeout(SEND_TIME, stream.close()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_of_peers_with_a_session_within_its_bounds() {
        let intakes = Intakes::new(1000);
        let (peer, other) = (PeerId::random(), PeerId::random());
        assert!(intakes.take(&peer, 50, 1).unwrap_err().contains("no session"));
        intakes.open(peer, 40);
        assert!(intakes.take(&other, 50, 1).is_err());
        assert!(intakes.take(&peer, 39, 1).unwrap_err().contains("older"));
        assert_eq!(intakes.take(&peer, 50, 900), Ok(()));
        assert!(intakes.take(&peer, 50, 101).unwrap_err().contains("session_bytes"));
        // Another session at once brings no further bytes.
        intakes.open(peer, 40);
        assert!(intakes.take(&peer, 50, 101).is_err());
        assert_eq!(intakes.take(&peer, 50, 100), Ok(()));
        intakes.open_at(peer, 40, Instant::now() + RENEW_TIME);
        assert_eq!(intakes.take(&peer, 50, 1000), Ok(()));
    }

    #[test]
    fn peers_with_sessions_are_bounded() {
        let intakes = Intakes::new(1000);
        let peers: Vec<PeerId> = (0..INTAKES_MAX + 5).map(|_| PeerId::random()).collect();
        let start = Instant::now();
        for (at, peer) in peers.iter().enumerate() {
            intakes.open_at(*peer, 0, start + Duration::from_millis(at as u64));
        }
        assert_eq!(intakes.peers.lock().unwrap().len(), INTAKES_MAX);
        assert!(intakes.take(&peers[0], 0, 1).is_err());
        assert_eq!(intakes.take(&peers[INTAKES_MAX], 0, 1), Ok(()));
    }
}
