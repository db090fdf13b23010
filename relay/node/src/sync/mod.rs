//! Store synchronisation: this node and a peer compare what they keep of the last hour, and each
//! sends the other what it lacks.
//!
//! A session begins with the fingerprint of the whole range ([`protocol::sync`]). Where
//! fingerprints differ the range is cut into eight, until its ids are few and are sent themselves;
//! from two sets of ids each side knows what the other lacks and sends it by the transfer protocol
//! ([`transfer`]). What a session has no room for is left out, and found by the next one.
//!
//! Ids are read from the index, a page at a time ([`ranges`]): nothing is kept in memory between
//! sessions. Bounds: [`relay_limits::SyncLimits`]: sessions at once, ids read per second and for a
//! session, bytes of an answer, bytes sent and taken. Messages are taken only from peers with a
//! session, of its range, and are written like all others, but not relayed; of peers that the
//! operator did not name, up to a share of the store.
//!
//! [`resume`] fetches what was missed for longer, by store queries.

mod compare;
mod ranges;
pub(crate) mod resume;
mod session;
mod throttle;
pub(crate) mod transfer;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use libp2p::PeerId;
use protocol::sync::FRAME_BYTES_MAX;
use relay_limits::SyncLimits;
use tokio::{sync::Semaphore, task::JoinSet, time::MissedTickBehavior};

use self::{session::SessionError, throttle::Throttle, transfer::Intakes};
use crate::{
    client::Remote,
    config::Config,
    governor::WorkKind,
    network::{
        admission::WaitingFrames,
        offers::Offer,
        stream_slots::Stream,
        streams::{Intake, REQUEST_TIMEOUT, read_frame},
    },
    node::Node,
    rates::Rate,
    services::ServeOutcome,
    settings::count,
};

pub(crate) const SECOND_NS: i64 = 1_000_000_000;
/// Parts of a range are not made shorter than this.
const WIDTH_NS_MIN: i64 = 60 * SECOND_NS;
/// Sessions with one peer, one after the other, while each left something out.
const REPEATS: usize = 4;

/// What a node keeps for sessions.
#[derive(Debug)]
pub(crate) struct SyncState {
    limits: SyncLimits,
    /// Of sessions that peers begin. Two nodes may begin one with each other at the same time.
    permits: Semaphore,
    rate: Rate,
    /// Ids read from the index.
    reading: Throttle,
    /// Messages taken from other stores.
    taking: Throttle,
    intakes: Intakes,
    pub(crate) sessions: AtomicU64,
    pub(crate) sessions_failed: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) taken: AtomicU64,
}

impl SyncState {
    /// `peers` are as many as may have a rate.
    pub(crate) fn new(limits: &relay_limits::Limits, peers: usize) -> Self {
        let sync = limits.sync.clone();
        Self {
            permits: Semaphore::new(count(sync.sessions)),
            rate: Rate::new(
                "store synchronisation",
                sync.requests_per_second,
                sync.requests_burst,
                peers,
            ),
            reading: Throttle::new(sync.ids_per_second),
            taking: Throttle::new(limits.client.fetched_per_second),
            intakes: Intakes::new(
                sync.session_bytes,
                limits.store.retention_bytes,
                Duration::from_secs(limits.store.retention_hours.saturating_mul(3600)),
            ),
            limits: sync,
            sessions: AtomicU64::new(0),
            sessions_failed: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        }
    }

    /// The range that is compared, in nanoseconds since 1970.
    fn range(&self, now_ns: i64) -> (i64, i64) {
        let seconds = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX / SECOND_NS);
        let to = now_ns.saturating_sub(seconds(self.limits.jitter_seconds) * SECOND_NS);
        (to.saturating_sub(seconds(self.limits.range_seconds) * SECOND_NS), to)
    }

    fn ended(&self, error: Option<&SessionError>, peer: PeerId) {
        self.sessions.fetch_add(1, Relaxed);
        if let Some(error) = error {
            self.sessions_failed.fetch_add(1, Relaxed);
            tracing::debug!(%peer, %error, "stores were not compared");
        }
    }
}

/// Serves a session that a peer begins. Whatever it sends, the connection stays.
pub(crate) async fn serve(node: Arc<Node>, peer: PeerId, mut stream: Stream) -> ServeOutcome {
    let waiting = WaitingFrames::default();
    let intake = Intake::new(&node, &waiting, REQUEST_TIMEOUT);
    let first = read_frame(&mut stream, FRAME_BYTES_MAX, &intake).await;
    let Ok(Some(first)) = first else { return Ok(()) };
    if node.watch.held_back(WorkKind::Queries).is_some() || node.sync.rate.take(&peer).is_err() {
        return Ok(());
    }
    // The peer asks again at its next interval.
    let Ok(_permit) = node.sync.permits.try_acquire() else { return Ok(()) };
    let ended = session::answer(&node, peer, &mut stream, first).await;
    node.sync.ended(ended.err().as_ref(), peer);
    Ok(())
}

/// Tasks that compare stores and fetch what was missed, where they are configured.
pub(crate) fn start(node: &Arc<Node>, config: &Config, tasks: &mut JoinSet<()>) {
    if node.settings.store_sync {
        tasks.spawn(keep(node.clone()));
    }
    if node.settings.store_resume {
        tasks.spawn(resume::keep(node.clone(), config.data_dir.join("online")));
    }
}

/// Begins sessions, each interval with one peer.
async fn keep(node: Arc<Node>) {
    let seconds = node.sync.limits.interval_seconds;
    let mut interval = tokio::time::interval(Duration::from_secs(seconds));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Soon after the start there are no peers.
    interval.tick().await;
    let mut width_ns = i64::MAX;
    loop {
        interval.tick().await;
        if node.watch.held_back(WorkKind::Queries).is_some() {
            continue;
        }
        match node.service_node(Offer::Sync).await {
            Ok(peer) => width_ns = compare_all(&node, &peer, width_ns).await,
            Err(error) => tracing::debug!(%error, "stores are not compared"),
        }
    }
}

/// Compares the whole range with a peer, the newest part first, in parts of at most `width_ns`. A
/// part that is too much for a session is made shorter; returns the width for the next time.
async fn compare_all(node: &Arc<Node>, peer: &Remote, mut width_ns: i64) -> i64 {
    let (bottom, top) = node.sync.range((node.clock)());
    let mut to = top;
    while to > bottom {
        width_ns = width_ns.clamp(WIDTH_NS_MIN, (top - bottom).max(WIDTH_NS_MIN));
        let from = to.saturating_sub(width_ns).max(bottom);
        match compare_part(node, peer, from, to).await {
            Ok(()) => to = from,
            Err(SessionError::TooMuch) if width_ns > WIDTH_NS_MIN => {
                width_ns /= 2;
            }
            Err(_) => return width_ns,
        }
    }
    // Perhaps less came meanwhile.
    width_ns.saturating_mul(2)
}

async fn compare_part(
    node: &Arc<Node>,
    peer: &Remote,
    from_ns: i64,
    to_ns: i64,
) -> Result<(), SessionError> {
    for _ in 0..REPEATS {
        let ended = session::begin(node, peer, from_ns, to_ns).await;
        node.sync.ended(ended.as_ref().err(), peer.peer);
        let summary = ended?;
        tracing::debug!(
            peer = %peer.peer,
            sent = summary.sent,
            left_out = summary.left_out,
            "stores were compared"
        );
        if !summary.left_out {
            break;
        }
    }
    Ok(())
}
