//! Fetches the chunks of one state from several peers.
//!
//! At most [`FLIGHT_MAX`] chunks are asked for or wait to be taken, [`PEER_MAX`] of them with one
//! peer, so memory is bounded by that many chunks. A peer that does not answer, or does not keep
//! the state, is skipped for a while and the chunk is requested from another. A peer that
//! repeatedly does not answer is skipped for longer each time, and asked when no other peer is
//! available: members that left, or are down, must not use up the time. A peer that sent an invalid
//! chunk is not asked again. When no chunk arrived for [`NOTHING`], and no peer is left that
//! answered, the state is given up; the chunks fetched of it serve the next.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use futures::channel::oneshot;
use state::Height;

use crate::{ChunkRequest, ChunkSource, FetchedChunks, StateOffer, SyncProgress};

/// Chunks asked for and not taken yet.
const FLIGHT_MAX: usize = 8;
/// Of those, with one peer.
const PEER_MAX: usize = 4;
/// A chunk that takes longer is asked of another peer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a peer that was silent or has not got the state is left alone; twice as long for each
/// further silence.
const ASIDE: Duration = Duration::from_secs(5);
/// At most eight times as long.
const ASIDE_DOUBLINGS: u32 = 3;
/// The same for one whose connection takes nothing at the moment.
const BUSY: Duration = Duration::from_millis(200);
/// Without a chunk for this time, no peer serves this state any more.
const NOTHING: Duration = Duration::from_secs(20);
/// A driver that wants nothing for this time is doing something else.
const AWAY: Duration = Duration::from_secs(600);
/// Longest time until a request for chunks is answered.
const ANSWER: Duration = Duration::from_millis(500);
/// Between two words about how far it is.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Default)]
struct Peer {
    /// Sent what does not lead to the certified root.
    faulty: bool,
    aside_until: Option<SystemTime>,
    /// Said that it does not keep the state.
    gone: bool,
    /// Questions in a row that it left unanswered.
    silent: u32,
    flight: usize,
    chunks: u64,
}

pub(super) struct ChunkFetcher {
    pub(super) offer: StateOffer,
    want: ChunkRequest,
    reply_tx: Option<(oneshot::Sender<FetchedChunks>, SystemTime)>,
    flight: BTreeMap<Vec<u8>, (usize, SystemTime)>,
    arrived: Vec<(ChunkSource, Vec<u8>, Vec<u8>)>,
    peers: Vec<Peer>,
    me: usize,
    /// When a chunk last came; while the driver is at work time stands still.
    moved: SystemTime,
    /// When the driver was given something last.
    given: SystemTime,
    last_logged: SystemTime,
    began: SystemTime,
}

fn after(since: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(since).unwrap_or_default()
}

impl ChunkFetcher {
    /// `answered` holds, by place, whether each member answered the last question.
    pub(super) fn new(offer: StateOffer, answered: &[bool], me: usize, now: SystemTime) -> Self {
        let peer = |answered: &bool| Peer { silent: u32::from(!answered), ..Peer::default() };
        Self {
            offer,
            want: ChunkRequest::default(),
            reply_tx: None,
            flight: BTreeMap::new(),
            arrived: Vec::new(),
            peers: answered.iter().map(peer).collect(),
            me,
            moved: now,
            given: now,
            last_logged: now,
            began: now,
        }
    }

    /// Sets the driver's current demand. Faulty sources are given by place.
    pub(super) fn set_request(
        &mut self,
        want: ChunkRequest,
        reply_tx: oneshot::Sender<FetchedChunks>,
        now: SystemTime,
    ) {
        for ChunkSource(place) in &want.faulty_sources {
            if let Some(peer) = self.peers.get_mut(*place) {
                peer.faulty = true;
            }
        }
        self.want = want;
        if self.reply_tx.is_none() {
            self.moved += after(self.given, now);
        }
        self.reply_tx = Some((reply_tx, now));
    }

    /// The other peers, by place, that did not send a false chunk.
    fn candidates(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let me = self.me;
        let is_one = move |(place, peer): &(usize, &Peer)| *place != me && !peer.faulty;
        self.peers.iter().enumerate().filter(is_one)
    }

    /// Which chunks to ask whom for.
    pub(super) fn next(&mut self, now: SystemTime) -> Option<(usize, Height, Vec<u8>)> {
        if self.flight.len() + self.arrived.len() >= FLIGHT_MAX {
            return None;
        }
        let missing = self.want.chunks.iter().find(|name| {
            !self.flight.contains_key(*name)
                && !self.arrived.iter().any(|(_, arrived, _)| arrived == *name)
        })?;
        let usable = |(_, peer): &(usize, &Peer)| {
            peer.flight < PEER_MAX && peer.aside_until.is_none_or(|until| until <= now)
        };
        let (place, _) = self
            .candidates()
            .filter(usable)
            .min_by_key(|(_, peer)| (peer.silent, peer.flight, peer.chunks))?;
        let name = missing.clone();
        self.peers[place].flight += 1;
        self.flight.insert(name.clone(), (place, now));
        Some((place, self.offer.height, name))
    }

    /// The request did not leave this node.
    pub(super) fn unsent(&mut self, name: &[u8], now: SystemTime) {
        if let Some(place) = self.drop_flight(name, Some(now + BUSY)) {
            // Peers that can be reached are asked first.
            let peer = &mut self.peers[place];
            peer.silent = peer.silent.max(1);
        }
    }

    fn drop_flight(&mut self, name: &[u8], aside_until: Option<SystemTime>) -> Option<usize> {
        let (place, _) = self.flight.remove(name)?;
        let peer = &mut self.peers[place];
        peer.flight -= 1;
        if aside_until.is_some() {
            peer.aside_until = aside_until;
        }
        Some(place)
    }

    fn is_asked(&self, place: usize, height: Height, name: &[u8]) -> bool {
        height == self.offer.height
            && self.flight.get(name).is_some_and(|(asked, _)| *asked == place)
    }

    pub(super) fn add_chunk(
        &mut self,
        place: usize,
        height: Height,
        name: &[u8],
        bytes: &[u8],
        now: SystemTime,
    ) {
        if !self.is_asked(place, height, name) {
            return;
        }
        self.drop_flight(name, None);
        let peer = &mut self.peers[place];
        peer.chunks += 1;
        (peer.gone, peer.silent) = (false, 0);
        self.moved = now;
        self.arrived.push((ChunkSource(place), name.to_vec(), bytes.to_vec()));
    }

    pub(super) fn chunk_not_found(
        &mut self,
        place: usize,
        height: Height,
        name: &[u8],
        now: SystemTime,
    ) {
        if self.is_asked(place, height, name) {
            self.drop_flight(name, Some(now + ASIDE));
            let peer = &mut self.peers[place];
            (peer.gone, peer.silent) = (true, 0);
        }
    }

    /// Gives the driver what there is. False when it is over.
    pub(super) fn reply_to_driver(&mut self, now: SystemTime) -> bool {
        let late: Vec<_> = self
            .flight
            .iter()
            .filter(|(_, (_, since))| after(*since, now) >= TIMEOUT)
            .map(|(name, _)| name.clone())
            .collect();
        let mut silent = BTreeSet::new();
        for name in late {
            silent.extend(self.drop_flight(&name, None));
        }
        // However much was asked of it at once: it is silent once.
        for place in silent {
            let peer = &mut self.peers[place];
            peer.aside_until = Some(now + ASIDE * 2u32.pow(peer.silent.min(ASIDE_DOUBLINGS)));
            peer.silent = peer.silent.saturating_add(1);
        }
        let deserted = self.candidates().all(|(_, peer)| peer.gone);
        // A peer that is working must not be reported as silent.
        let nothing = self.reply_tx.is_some()
            && after(self.moved, now) >= NOTHING
            && !self.candidates().any(|(_, peer)| !peer.gone && peer.silent == 0);
        let away = self.reply_tx.is_none() && after(self.given, now) >= AWAY;
        let over = self.arrived.is_empty() && (deserted || nothing || away);
        let due = self.reply_tx.as_ref().is_some_and(|(_, since)| after(*since, now) >= ANSWER);
        if (over || due || !self.arrived.is_empty())
            && let Some((reply_tx, _)) = self.reply_tx.take()
        {
            self.given = now;
            let _ =
                reply_tx.send(FetchedChunks { chunks: std::mem::take(&mut self.arrived), over });
        }
        if after(self.last_logged, now) >= LOG_INTERVAL {
            self.last_logged = now;
            let SyncProgress { height, bytes_done, bytes_total, peers } = self.progress();
            tracing::info!(
                height = height.0,
                bytes_done,
                bytes_total,
                peers,
                seconds = after(self.began, now).as_secs(),
                "state sync: fetching a state from peers"
            );
        }
        !over
    }

    pub(super) fn progress(&self) -> SyncProgress {
        SyncProgress {
            height: self.offer.height,
            bytes_done: self.want.bytes_done,
            bytes_total: self.want.bytes_total,
            peers: self.peers.iter().filter(|peer| peer.chunks > 0).count() as u64,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const ME: usize = 1;

    fn at(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
    }

    fn name(number: u8) -> Vec<u8> {
        vec![number]
    }

    fn fetching(chunks: u8) -> (ChunkFetcher, oneshot::Receiver<FetchedChunks>) {
        let offer = StateOffer { height: Height(7), root: [0; 32] };
        let mut fetching = ChunkFetcher::new(offer, &[true; 4], ME, at(0));
        let reply = request(&mut fetching, chunks, vec![], 0);
        (fetching, reply)
    }

    fn request(
        fetching: &mut ChunkFetcher,
        chunks: u8,
        faulty_sources: Vec<ChunkSource>,
        now: u64,
    ) -> oneshot::Receiver<FetchedChunks> {
        let (reply_tx, reply_rx) = oneshot::channel();
        let want = ChunkRequest {
            chunks: (0..chunks).map(name).collect(),
            faulty_sources,
            ..ChunkRequest::default()
        };
        fetching.set_request(want, reply_tx, at(now));
        reply_rx
    }

    /// Who is asked for what now.
    fn asked(fetching: &mut ChunkFetcher, now: u64) -> Vec<(usize, u8)> {
        std::iter::from_fn(|| fetching.next(at(now)))
            .map(|(place, _, name)| (place, name[0]))
            .collect()
    }

    #[test]
    fn chunks_are_asked_of_all_others_and_no_more_than_the_bound() {
        let (mut fetching, _reply) = fetching(12);
        let flight = asked(&mut fetching, 0);
        assert_eq!(flight.len(), FLIGHT_MAX);
        for place in [0, 2, 3] {
            let with = flight.iter().filter(|(asked, _)| *asked == place).count();
            assert!((2..=3).contains(&with), "{flight:?}");
        }
        // Chunks that arrived and were not taken count as well.
        let (place, number) = flight[0];
        fetching.add_chunk(place, Height(7), &name(number), b"x", at(1));
        assert_eq!(asked(&mut fetching, 1), []);
    }

    #[test]
    fn unrequested_chunks_are_dropped() {
        let (mut fetching, mut reply) = fetching(1);
        let (place, number) = asked(&mut fetching, 0)[0];
        let other = (0..4).find(|other| *other != place).unwrap();
        fetching.add_chunk(other, Height(7), &name(number), b"x", at(1));
        fetching.add_chunk(place, Height(8), &name(number), b"x", at(1));
        fetching.add_chunk(place, Height(7), &name(9), b"x", at(1));
        assert!(fetching.reply_to_driver(at(1)));
        assert!((&mut reply).now_or_never().is_none(), "nothing to give yet");
        fetching.add_chunk(place, Height(7), &name(number), b"x", at(2));
        assert!(fetching.reply_to_driver(at(2)));
        let fetched = reply.now_or_never().unwrap().unwrap();
        assert_eq!(fetched.chunks, [(ChunkSource(place), name(number), b"x".to_vec())]);
    }

    #[test]
    fn chunk_is_requested_from_another_peer_on_timeout_or_not_found() {
        let (mut fetching, _reply) = fetching(1);
        let (first, _) = asked(&mut fetching, 0)[0];
        let late = TIMEOUT.as_millis() as u64;
        assert!(fetching.reply_to_driver(at(late)));
        let (second, _) = asked(&mut fetching, late)[0];
        fetching.chunk_not_found(second, Height(7), &name(0), at(late));
        let (third, _) = asked(&mut fetching, late)[0];
        let mut all = [first, second, third];
        all.sort_unstable();
        assert_eq!(all, [0, 2, 3]);
        fetching.chunk_not_found(third, Height(7), &name(0), at(late));
        assert_eq!(asked(&mut fetching, late), [], "all are aside for a while");
        assert_eq!(asked(&mut fetching, late + ASIDE.as_millis() as u64).len(), 1);
    }

    // Promise: P19 - Peers that do not answer are asked last.
    #[test]
    fn repeatedly_silent_peers_are_asked_last() {
        // The last answers, of seven others; the first two were silent before.
        let answered: Vec<_> = (0..8).map(|place| place > 2).collect();
        let offer = StateOffer { height: Height(7), root: [0; 32] };
        let mut fetching = ChunkFetcher::new(offer, &answered, ME, at(0));
        let mut now = 0;
        let mut waited = Vec::new();
        for number in 0..40 {
            let since = now;
            // One at a time, as where each chunk names the next.
            let (reply_tx, mut reply_rx) = oneshot::channel();
            fetching.set_request(
                ChunkRequest { chunks: vec![name(number)], ..ChunkRequest::default() },
                reply_tx,
                at(now),
            );
            loop {
                if let Some((7, height, name)) = fetching.next(at(now)) {
                    fetching.add_chunk(7, height, &name, b"x", at(now));
                }
                assert!(
                    fetching.reply_to_driver(at(now)),
                    "given up at {now} ms with {number} chunks"
                );
                match (&mut reply_rx).now_or_never().map(Result::unwrap) {
                    Some(fetched) if !fetched.chunks.is_empty() => break,
                    Some(_) => {
                        let (reply_tx, again_rx) = oneshot::channel();
                        reply_rx = again_rx;
                        let want =
                            ChunkRequest { chunks: vec![name(number)], ..ChunkRequest::default() };
                        fetching.set_request(want, reply_tx, at(now));
                    }
                    None => {}
                }
                now += 100;
            }
            waited.push(now - since);
        }
        let silent = waited.iter().filter(|waited| **waited > 0).count();
        assert!(silent <= 4, "each of those that had answered before is tried once: {waited:?}");
    }

    #[test]
    fn fetch_ends_when_no_peer_is_reachable() {
        let (mut fetching, mut reply) = fetching(1);
        for now in (0..NOTHING.as_millis() as u64).step_by(100) {
            while let Some((_, _, name)) = fetching.next(at(now)) {
                fetching.unsent(&name, at(now));
            }
            assert!(fetching.reply_to_driver(at(now)), "{now}");
            if (&mut reply).now_or_never().is_some() {
                reply = request(&mut fetching, 1, vec![], now);
            }
        }
        assert!(!fetching.reply_to_driver(at(NOTHING.as_millis() as u64)));
        assert!(reply.now_or_never().unwrap().unwrap().over);
    }

    #[test]
    fn fetch_ends_immediately_when_no_peer_keeps_the_state() {
        let (mut fetching, reply) = fetching(3);
        for (place, number) in asked(&mut fetching, 0) {
            assert!(fetching.reply_to_driver(at(0)));
            fetching.chunk_not_found(place, Height(7), &name(number), at(0));
        }
        assert!(!fetching.reply_to_driver(at(0)));
        assert!(reply.now_or_never().unwrap().unwrap().over);
    }

    #[test]
    fn time_passes_only_while_chunks_are_waited_for() {
        let (mut fetching, reply) = fetching(1);
        asked(&mut fetching, 0);
        assert!(fetching.reply_to_driver(at(1_000)));
        assert!(!reply.now_or_never().unwrap().unwrap().over);
        // The driver looks through its own state for long, again and again, with nothing asked for.
        let mut now = 1_000;
        for _ in 0..3 {
            now += 100_000;
            assert!(fetching.reply_to_driver(at(now)));
            let reply = request(&mut fetching, 0, vec![], now);
            now += 1_000;
            assert!(fetching.reply_to_driver(at(now)));
            assert!(!reply.now_or_never().unwrap().unwrap().over);
        }
        // Waiting counts, however it is cut up.
        let mut over = false;
        for _ in 0..40 {
            let reply = request(&mut fetching, 1, vec![], now);
            asked(&mut fetching, now);
            now += 1_000;
            fetching.reply_to_driver(at(now));
            over |= reply.now_or_never().is_some_and(|fetched| fetched.unwrap().over);
        }
        assert!(over);
    }

    // Promise: P19 - A peer that sends invalid chunks is not asked again.
    #[test]
    fn faulty_sources_are_not_asked_again() {
        let (mut fetching, _reply) = fetching(3);
        let mut reply = request(&mut fetching, 3, vec![ChunkSource(0), ChunkSource(2)], 0);
        assert_eq!(asked(&mut fetching, 0), [(3, 0), (3, 1), (3, 2)]);
        assert!(fetching.reply_to_driver(at(1)));
        assert!((&mut reply).now_or_never().is_none());
        let reply = request(&mut fetching, 3, vec![ChunkSource(3)], 2);
        assert!(!fetching.reply_to_driver(at(2)));
        assert!(reply.now_or_never().unwrap().unwrap().over);
    }

    #[test]
    fn fetch_ends_after_a_period_without_chunks() {
        let (mut fetching, reply) = fetching(1);
        asked(&mut fetching, 0);
        assert!(fetching.reply_to_driver(at(ANSWER.as_millis() as u64)));
        assert_eq!(reply.now_or_never().unwrap().unwrap(), FetchedChunks::default());
        let mut reply = request(&mut fetching, 1, vec![], 1_000);
        // From the answer until now nothing was asked for, and each of the three is asked for so
        // long.
        let over = 500 + NOTHING.as_millis() as u64;
        for now in (1_000..over).step_by(100) {
            asked(&mut fetching, now);
            assert!(fetching.reply_to_driver(at(now)), "{now}");
            if (&mut reply).now_or_never().is_some() {
                reply = request(&mut fetching, 1, vec![], now);
            }
        }
        assert!(!fetching.reply_to_driver(at(over)));
        assert!(reply.now_or_never().unwrap().unwrap().over);
    }
}
