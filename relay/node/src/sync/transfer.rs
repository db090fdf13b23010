//! Messages that one store sends to another: sent to a peer that lacks them, and taken from a peer
//! with which this node has, or had a moment ago, a session.
//!
//! A message that is taken must be of a shard of this node, of the range that is compared, and not
//! here; its hash is computed. Bounds: `sync.session_bytes` in each direction of a session, over
//! all peers `client.fetched_per_second` messages; [`INTAKES_MAX`] peers with sessions are
//! remembered. Peers that the operator did not name have a share of the store ([`SHARE_PART`]), so
//! that nobody can displace what is kept.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
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
    discovery::known::Origin,
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

/// What peers that are not named write is at most this part of `store.retention_bytes` in the time
/// of retention, twice for a burst: one part for those that this node dialled, and another for
/// those that dialled it, of whom there can be any number.
const SHARE_PART: u64 = 32;

/// How a peer with a session came to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerClass {
    /// By the operator: static peers and service nodes.
    Named,
    /// This node found and dialled it.
    Dialled,
    /// It dialled this node.
    Stranger,
}

/// Bytes that peers of a class may have written, which come back with time.
#[derive(Debug)]
struct StoreShare {
    bytes_max: u64,
    /// In which all of them come back.
    period: Duration,
    left: f64,
    filled: Instant,
}

impl StoreShare {
    fn new(bytes_max: u64, period: Duration) -> Self {
        Self { bytes_max, period, left: bytes_max as f64, filled: Instant::now() }
    }

    fn give(&mut self, bytes: f64) {
        self.left = (self.left + bytes).min(self.bytes_max as f64);
    }

    /// Whether there are as many.
    fn take(&mut self, bytes: u64, now: Instant) -> bool {
        let part = now.saturating_duration_since(self.filled).as_secs_f64()
            / self.period.as_secs_f64().max(1.0);
        self.filled = now;
        self.give(part * self.bytes_max as f64);
        let has_room = self.left >= bytes as f64;
        if has_room {
            self.left -= bytes as f64;
        }
        has_room
    }
}

#[derive(Clone, Copy, Debug)]
struct PeerIntake {
    class: PeerClass,
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
    dialled: Mutex<StoreShare>,
    strangers: Mutex<StoreShare>,
}

impl Intakes {
    /// `bytes` in a session, into a store that keeps its messages for a time.
    pub(super) fn new(bytes: u64, store_bytes: u64, retention: Duration) -> Self {
        let share = || Mutex::new(StoreShare::new(store_bytes / SHARE_PART, retention));
        Self { bytes, peers: Mutex::default(), dialled: share(), strangers: share() }
    }

    /// A session with a peer begins: its messages from a time on are taken.
    pub(super) fn open(&self, peer: PeerId, class: PeerClass, from_ns: i64) {
        self.open_at(peer, class, from_ns, Instant::now());
    }

    fn open_at(&self, peer: PeerId, class: PeerClass, from_ns: i64, now: Instant) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |since: Instant| now.saturating_duration_since(since);
        peers.retain(|_, intake| age(intake.began) < OPEN_TIME);
        if let Some(intake) = peers.get_mut(&peer) {
            intake.began = now;
            intake.class = class;
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
        let bytes_left = self.bytes;
        peers.insert(peer, PeerIntake { class, from_ns, began: now, renewed: now, bytes_left });
    }

    fn share(&self, class: PeerClass) -> Option<MutexGuard<'_, StoreShare>> {
        let share = match class {
            PeerClass::Named => return None,
            PeerClass::Dialled => &self.dialled,
            PeerClass::Stranger => &self.strangers,
        };
        Some(share.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a message of a peer, by its time and its length; the peer's class.
    fn take(&self, peer: &PeerId, time_ns: i64, bytes: u64) -> Result<PeerClass, &'static str> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let intake = peers
            .get_mut(peer)
            .filter(|intake| intake.began.elapsed() < OPEN_TIME)
            .ok_or("there is no session with its sender")?;
        if time_ns < intake.from_ns {
            return Err("it is older than what is compared");
        }
        let left = intake.bytes_left.checked_sub(bytes);
        let left = left.ok_or("its sender sent sync.session_bytes already")?;
        let mut share = self.share(intake.class);
        if share.as_mut().is_some_and(|share| !share.take(bytes, Instant::now())) {
            return Err("peers that are not named have used up their share of the store for now");
        }
        intake.bytes_left = left;
        Ok(intake.class)
    }

    /// A message that was taken of a class was not written.
    fn give_back(&self, class: PeerClass, bytes: u64) {
        if let Some(mut share) = self.share(class) {
            share.give(bytes as f64);
        }
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
    /// How far a peer's messages may fill the store.
    pub(super) async fn sync_class(&self, peer: &PeerId) -> PeerClass {
        let origin = self.peers().origin(peer);
        if origin == Some(Origin::Static) {
            return PeerClass::Named;
        }
        let connected = self.connected_peers().await;
        if connected.iter().any(|connected| connected.peer == *peer && connected.outbound) {
            PeerClass::Dialled
        } else {
            PeerClass::Stranger
        }
    }

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
        let topic = transfer.pubsub_topic.as_str();
        let shard = self.shard_for(Some(topic), "").map_err(|error| error.to_string())?;
        let length = bytes.len() as u64;
        let class = self.sync.intakes.take(peer, time_ns, length)?;
        self.sync.taking.take(1).await;
        let written = self.write_missing(shard, &message, bytes, held).await;
        if written != Ok(true) {
            self.sync.intakes.give_back(class, length);
        }
        written
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
    use super::{
        PeerClass::{Dialled, Named, Stranger},
        *,
    };

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn messages_are_taken_of_peers_with_a_session_within_its_bounds() {
        let intakes = Intakes::new(1000, 1 << 30, HOUR);
        let (peer, other) = (PeerId::random(), PeerId::random());
        assert!(intakes.take(&peer, 50, 1).unwrap_err().contains("no session"));
        intakes.open(peer, Named, 40);
        assert!(intakes.take(&other, 50, 1).is_err());
        assert!(intakes.take(&peer, 39, 1).unwrap_err().contains("older"));
        assert_eq!(intakes.take(&peer, 50, 900), Ok(Named));
        assert!(intakes.take(&peer, 50, 101).unwrap_err().contains("session_bytes"));
        // Another session at once brings no further bytes.
        intakes.open(peer, Named, 40);
        assert!(intakes.take(&peer, 50, 101).is_err());
        assert_eq!(intakes.take(&peer, 50, 100), Ok(Named));
        intakes.open_at(peer, Named, 40, Instant::now() + RENEW_TIME);
        assert_eq!(intakes.take(&peer, 50, 1000), Ok(Named));
    }

    #[test]
    fn peers_with_sessions_are_bounded() {
        let intakes = Intakes::new(1000, 1 << 30, HOUR);
        let peers: Vec<PeerId> = (0..INTAKES_MAX + 5).map(|_| PeerId::random()).collect();
        let start = Instant::now();
        for (at, peer) in peers.iter().enumerate() {
            intakes.open_at(*peer, Stranger, 0, start + Duration::from_millis(at as u64));
        }
        assert_eq!(intakes.peers.lock().unwrap().len(), INTAKES_MAX);
        assert!(intakes.take(&peers[0], 0, 1).is_err());
        assert_eq!(intakes.take(&peers[INTAKES_MAX], 0, 1), Ok(Stranger));
    }

    #[test]
    fn peers_that_are_not_named_have_a_share_of_the_store() {
        let intakes = Intakes::new(1 << 30, SHARE_PART * 1000, HOUR);
        let peers: Vec<PeerId> = (0..4).map(|_| PeerId::random()).collect();
        for (peer, class) in peers.iter().zip([Stranger, Stranger, Dialled, Named]) {
            intakes.open(*peer, class, 0);
        }
        assert_eq!(intakes.take(&peers[0], 0, 600), Ok(Stranger));
        // All strangers together.
        assert!(intakes.take(&peers[1], 0, 600).unwrap_err().contains("share"));
        intakes.give_back(Stranger, 600);
        assert_eq!(intakes.take(&peers[1], 0, 900), Ok(Stranger));
        assert_eq!(intakes.take(&peers[2], 0, 900), Ok(Dialled));
        assert!(intakes.take(&peers[2], 0, 900).is_err());
        for _ in 0..100 {
            assert_eq!(intakes.take(&peers[3], 0, 900), Ok(Named));
        }
    }

    #[test]
    fn a_share_comes_back_with_time_and_never_exceeds_its_bytes() {
        let mut share = StoreShare::new(1000, HOUR);
        let start = share.filled;
        assert!(share.take(1000, start) && !share.take(1, start));
        assert!(share.take(500, start + HOUR / 2) && !share.take(100, start + HOUR / 2));
        assert!(!share.take(1001, start + 9 * HOUR) && share.take(1000, start + 9 * HOUR));
        share.give(5000.0);
        assert!(!share.take(1001, start + 9 * HOUR));
    }
}
