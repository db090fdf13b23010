//! Calls between nodes: offered to all peers when a client submits one, requested when a block
//! names one that did not arrive.
//!
//! A call normally crosses each wire once. A call offered by a peer is verified like a client's,
//! and is put into the ingress pool, of which each peer gets at most its share. A call that a block
//! names and no peer offered is requested, and kept in a separate store for requested calls only:
//! so a full pool never keeps a node from voting, and a peer cannot fill the store with calls that
//! were not requested.
//!
//! A block names the digest of one envelope ([`CallName`]). A node with another envelope of the
//! same request, because a client sent several, lacks the call and requests it. Calls are hashed on
//! arrival and verified once, off the threads that vote: a peer that states one digest and sends
//! other bytes is cut off, and the call is requested from the others. Whether a call may be in a
//! block depends on its bytes and the block's time alone, so all voters reach the same verdict.
//!
//! Calls of a block that is voted for are on disk first (see [`super::journal`]).
//!
//! # Bounds
//!
//! The pool by its limits; the store by [`STORE_BLOCKS`] blocks in bytes and calls; what is wanted
//! by the blocks being gathered, and by as many calls as the store has room for; a message by
//! [`OFFER_BYTES`] or one call, by [`OFFER_CALLS_MAX`] calls and [`WANT_MAX`] names, checked while
//! it is decoded. Per peer and second ([`super::peers`]): calls and bytes offered, by
//! [`OFFER_BLOCKS`] blocks, which this node keeps to as well; bytes given that were not asked for;
//! names asked for and bytes answered. Messages beyond these rates are ignored, and a peer that
//! keeps exceeding them is cut off. Offers are decoded, counted and compared with the room their
//! sender has in the pool before a signature is verified; a call with an invalid signature is its
//! sender's fault, as nodes must verify calls before they forward them. Old blocks are read for
//! peers on a dedicated thread, from a queue of [`OLD_WAITING`] requests, [`OLD_WAITING_PER_PEER`]
//! of each peer.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime},
};

use commonware_cryptography::ed25519::PublicKey;
use commonware_macros::select;
use commonware_p2p::{Receiver, Recipients, Sender};
use commonware_runtime::{Clock, Spawner};
use commonware_utils::sync::{Mutex, Notify};
use envelope::Envelopes;
use serde::{Deserialize, Serialize};
use state::{Height, IngressId, OutcallAnswer, SignedIngress, Time, Validity};

use super::{
    block::{CallName, NameBounds},
    deps::Log,
    journal::{Journal, JournaledCall},
    peer_queue::{PeerQueueReceiver, PeerQueueSender, peer_queue},
    peers::{Meter, PeerScorer, Rate},
    wire::{self, BoundedVec},
};
use crate::{
    FinalisedBlock, IngressPool, LogError, SubmitOutcome, WallClock, block_log::Replay,
    pool::Source,
};

/// Blocks whose calls the store has room for: those being voted on, and those finalised that wait
/// to be made durable.
const STORE_BLOCKS: u64 = 4;
/// Envelopes offered or given in one message, in bytes, unless a single one is larger.
const OFFER_BYTES: usize = 256 << 10;
/// Calls offered or given in one message.
const OFFER_CALLS_MAX: usize = 1_024;
/// Greatest overhead of a message per envelope, in bytes: a digest, a principal, lengths.
const PER_CALL_BYTES: usize = 128;
/// Names in one request.
const WANT_MAX: usize = 256;
/// A call that was offered to this node may still be on its way when the block that names it
/// arrives.
const GRACE: Duration = Duration::from_millis(60);
/// Time between two requests for the same call; the second and later ones go to all peers.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Blocks' worth of calls that a node offers per second: more than a subnet agrees on. Further
/// calls of clients wait in the pool, and are fetched when a block names them.
const OFFER_BLOCKS: u64 = 4;
/// Factor by which a peer may exceed that, because its clock and the network are not even.
const OFFER_SLACK: u64 = 2;
/// Blocks' worth of calls that a peer is given per second, and at once.
const ANSWER_BLOCKS: u64 = 8;
const ANSWER_BURST_BLOCKS: u64 = 16;
/// Requests for calls of old blocks that wait, of all peers and of one.
const OLD_WAITING: usize = 64;
const OLD_WAITING_PER_PEER: usize = 8;
/// Positions in the log that are remembered for peers that ask height by height.
const OLD_PLACES: usize = 8;

#[derive(Serialize, Deserialize)]
pub(super) enum Message {
    /// Calls that clients brought.
    Announce(BoundedVec<SignedIngress, OFFER_CALLS_MAX>),
    /// The calls of these names; in the block of this height, if it is known to be final.
    Request { height: Option<Height>, names: BoundedVec<CallName, WANT_MAX> },
    /// Calls that were requested.
    Response(BoundedVec<RequestedIngress, OFFER_CALLS_MAX>),
}

#[derive(Serialize, Deserialize)]
pub(super) struct RequestedIngress {
    /// As it was asked for.
    digest: [u8; 32],
    signed: SignedIngress,
}

/// One message of each kind.
#[cfg(test)]
pub(super) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let signed = SignedIngress {
        effective_canister_id: ic_principal::Principal::from_slice(&[1, 2, 3]),
        envelope: vec![5; 300].into(),
    };
    let name = CallName { id: IngressId([6; 32]), digest: [7; 32], bytes: 300 };
    let names = BoundedVec(vec![name]);
    wire::samples([
        ("offer", Message::Announce(BoundedVec(vec![signed.clone()]))),
        ("want", Message::Request { height: Some(Height(0x0102_0304)), names }),
        ("give", Message::Response(BoundedVec(vec![RequestedIngress { digest: [7; 32], signed }]))),
    ])
}

/// Result of verifying a call: its id and when it is valid, or why no block may contain it.
type Verdict = Result<(IngressId, Validity), String>;

/// A call whose bytes are those of the digest it was asked for by.
#[derive(Clone)]
pub(super) struct GatheredCall {
    pub(super) signed: SignedIngress,
    /// None until it is needed.
    verdict: Option<Verdict>,
}

#[derive(Default)]
struct Store {
    calls: BTreeMap<[u8; 32], GatheredCall>,
    order: VecDeque<[u8; 32]>,
    bytes: u64,
    /// Asked for, with how many gather it and whether one of them votes; only these are taken.
    wanted: BTreeMap<[u8; 32], GatherDemand>,
}

#[derive(Clone, Copy, Default)]
struct GatherDemand {
    gathers: usize,
    votes: bool,
}

impl Store {
    fn put(&mut self, digest: [u8; 32], call: GatheredCall, bytes_max: u64, calls_max: usize) {
        self.bytes += call.signed.accounted_bytes();
        self.order.push_back(digest);
        if let Some(before) = self.calls.insert(digest, call) {
            self.bytes -= before.signed.accounted_bytes();
        }
        while (self.bytes > bytes_max || self.calls.len() > calls_max)
            && let Some(oldest) = self.order.pop_front()
        {
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, digest: &[u8; 32]) {
        if let Some(call) = self.calls.remove(digest) {
            self.bytes -= call.signed.accounted_bytes();
        }
    }
}

/// Digests that one gathering wants, for as long as it lives.
struct GatherGuard {
    store: Arc<Mutex<Store>>,
    digests: BTreeSet<[u8; 32]>,
    votes: bool,
}

impl GatherGuard {
    /// False if more is wanted than there will be room for: it must wait for others to be gathered.
    fn request(&mut self, digests: &[[u8; 32]], calls_max: usize) -> bool {
        let mut store = self.store.lock();
        let new: Vec<_> = digests.iter().filter(|digest| !self.digests.contains(*digest)).collect();
        if store.wanted.len() + new.len() > calls_max {
            return false;
        }
        for digest in new {
            let wanted = store.wanted.entry(*digest).or_default();
            wanted.gathers += 1;
            wanted.votes |= self.votes;
            self.digests.insert(*digest);
        }
        true
    }
}

impl Drop for GatherGuard {
    fn drop(&mut self) {
        let mut store = self.store.lock();
        for digest in &self.digests {
            if let Some(wanted) = store.wanted.get_mut(digest) {
                wanted.gathers -= 1;
                if wanted.gathers == 0 {
                    store.wanted.remove(digest);
                }
            }
        }
    }
}

/// Why calls of a block were not made durable.
#[derive(Debug)]
pub(super) enum JournalError {
    /// No node votes for this block.
    Invalid(String),
    /// This node cannot vote at the moment.
    Unavailable(String),
}

/// The number of a peer whose clients' calls count, which is its part of the pool.
pub(super) type PeerNumbers = Arc<dyn Fn(&PublicKey) -> Option<usize> + Send + Sync>;

/// Rate limits of each peer.
struct Meters {
    offered_calls: Meter,
    offered_bytes: Meter,
    /// Given and not asked for.
    given_bytes: Meter,
    asked_names: Meter,
    answered_bytes: Meter,
}

impl Meters {
    fn new(bounds: &NameBounds) -> Self {
        let (calls, bytes) = (bounds.calls, bounds.bytes.max(bounds.call_bytes));
        let blocks = |one: u64, per_second: u64, burst: u64| {
            Meter::new(Rate {
                per_second: one.saturating_mul(per_second),
                burst: one.saturating_mul(burst),
            })
        };
        let offered = OFFER_BLOCKS * OFFER_SLACK;
        Self {
            offered_calls: blocks(calls, offered, offered),
            offered_bytes: blocks(bytes, offered, offered),
            given_bytes: blocks(bytes, 1, ANSWER_BURST_BLOCKS),
            asked_names: blocks(calls, ANSWER_BLOCKS, ANSWER_BURST_BLOCKS),
            answered_bytes: blocks(bytes, ANSWER_BLOCKS, ANSWER_BURST_BLOCKS),
        }
    }
}

/// Dependencies of the tasks that carry calls.
#[derive(Clone)]
pub(super) struct Config<S> {
    pub(super) pool: Arc<IngressPool>,
    pub(super) envelopes: Arc<dyn Envelopes>,
    pub(super) clock: Arc<dyn WallClock>,
    pub(super) journal: Arc<Journal>,
    pub(super) bounds: NameBounds,
    pub(super) scorer: PeerScorer,
    pub(super) sender: S,
}

/// See the module. Copies share everything.
#[derive(Clone)]
pub(super) struct Calls<S> {
    config: Config<S>,
    store: Arc<Mutex<Store>>,
    arrived: Arc<Notify>,
    meters: Arc<Mutex<Meters>>,
}

impl<S: Sender<PublicKey = PublicKey>> Calls<S> {
    pub(super) fn new(config: Config<S>) -> Self {
        let meters = Arc::new(Mutex::new(Meters::new(&config.bounds)));
        Self { config, store: Arc::default(), arrived: Arc::default(), meters }
    }

    fn store_calls_max(&self) -> usize {
        usize::try_from(STORE_BLOCKS.saturating_mul(self.config.bounds.calls)).unwrap_or(usize::MAX)
    }

    fn store_bytes_max(&self) -> u64 {
        STORE_BLOCKS.saturating_mul(self.config.bounds.bytes.max(self.config.bounds.call_bytes))
    }

    /// Largest message of an honest peer.
    fn message_bytes_max(&self) -> usize {
        let call = usize::try_from(self.config.bounds.call_bytes).unwrap_or(usize::MAX / 2);
        (OFFER_BYTES + OFFER_CALLS_MAX * PER_CALL_BYTES).max(call + 2 * PER_CALL_BYTES)
    }

    /// Offers what clients bring, as it comes, within what peers take of a node. Ends never.
    pub(super) async fn gossip_ingress(mut self, clock: impl Clock, work_available: Arc<Notify>) {
        let pause = |amount: u64, block: u64| {
            let per_second = block.saturating_mul(OFFER_BLOCKS).max(1);
            Duration::from_secs_f64(amount as f64 / per_second as f64)
        };
        loop {
            let offered = self.config.pool.unannounced(OFFER_BYTES, OFFER_CALLS_MAX);
            if offered.is_empty() {
                work_available.notified().await;
                continue;
            }
            let bytes: u64 = offered.iter().map(|call| call.envelope.len() as u64).sum();
            let pause = pause(offered.len() as u64, self.config.bounds.calls)
                .max(pause(bytes, self.config.bounds.bytes.max(self.config.bounds.call_bytes)))
                .max(Duration::from_millis(5));
            // A peer that is not reached now asks when a block names the call.
            self.send(Recipients::All, &Message::Announce(BoundedVec(offered)));
            clock.sleep(pause).await;
        }
    }

    /// Takes and answers what peers send. Verifies signatures: meant for a thread of its own. Ends
    /// when the network does.
    pub(super) async fn serve(
        mut self,
        clock: impl Clock,
        places: PeerNumbers,
        mut old_tx: PeerQueueSender<OldCallsRequest>,
        mut receiver: impl Receiver<PublicKey = PublicKey>,
    ) {
        let bytes_max = self.message_bytes_max();
        while let Ok((from, message)) = receiver.recv().await {
            let Some(message) = wire::decode(message.as_ref(), bytes_max) else {
                self.config
                    .scorer
                    .report_fault(&from, "a message about calls that does not decode");
                continue;
            };
            let now = clock.current();
            match message {
                // Who is not a member any more brings nothing.
                Message::Announce(calls) => {
                    if let Some(place) = places(&from) {
                        self.take_announcement(&from, place, calls.0, now);
                    }
                }
                Message::Response(calls) => self.take_response(&from, calls.0, now),
                Message::Request { height, names } => {
                    self.answer_request(&mut old_tx, &from, height, names.0, now)
                }
            }
        }
    }

    /// Whom the message is on its way to.
    fn send(&mut self, to: Recipients<PublicKey>, message: &Message) -> Vec<PublicKey> {
        let bytes = wire::encode(message, "a message about calls");
        bytes.map_or_else(Vec::new, |bytes| self.config.sender.send(to, bytes, false))
    }

    fn take_announcement(
        &self,
        from: &PublicKey,
        place: usize,
        calls: Vec<SignedIngress>,
        now: SystemTime,
    ) {
        let bytes: u64 = calls.iter().map(|call| call.envelope.len() as u64).sum();
        let within = {
            let Meters { offered_calls, offered_bytes, .. } = &mut *self.meters.lock();
            offered_calls.spend(from, calls.len() as u64, now)
                && offered_bytes.spend(from, bytes, now)
        };
        if !within {
            self.config.scorer.report_excess(from, "calls offered", now);
            return;
        }
        for signed in calls {
            if let Err(reason) = self.take_announced_call(place, signed) {
                self.config.scorer.report_fault(
                    from,
                    &format!("it offers a call that no client may make: {reason}"),
                );
                return;
            }
        }
    }

    /// An error is the peer's fault: it forwarded a call that it cannot have verified.
    fn take_announced_call(&self, place: usize, signed: SignedIngress) -> Result<(), String> {
        // Each member has the answers to outcalls itself, or requests them.
        if OutcallAnswer::is_in(&signed) {
            return Err("answers to outcalls must not be offered".into());
        }
        let (id, validity) = self.config.envelopes.claim(&signed)?;
        // Clocks differ, and a call may have been under way for long.
        if !validity.holds(self.config.clock.now()) {
            return Ok(());
        }
        // A full pool is not the peer's fault, and nothing is lost: a block that names the call
        // gets it.
        let room = self.config.pool.would_take(Source::Peer(place), &id, signed.accounted_bytes());
        if room != Ok(SubmitOutcome::New) {
            return Ok(());
        }
        self.config.envelopes.verify(&signed)?;
        if self.config.pool.submit_from(Source::Peer(place), id, validity, signed).is_ok() {
            self.arrived.notify_waiters();
            // The leader may be waiting for calls to propose.
            self.config.pool.notify_listener();
        }
        Ok(())
    }

    fn take_response(&self, from: &PublicKey, calls: Vec<RequestedIngress>, now: SystemTime) {
        for RequestedIngress { digest, signed } in calls {
            // The rate for calls requested of this peer was granted with the request.
            if !self.meters.lock().given_bytes.spend(from, signed.envelope.len() as u64, now) {
                self.config.scorer.report_excess(from, "calls given that were not asked for", now);
                return;
            }
            let wanted = {
                let store = self.store.lock();
                store.wanted.get(&digest).copied().filter(|_| !store.calls.contains_key(&digest))
            };
            let Some(wanted) = wanted else { continue };
            if signed.digest() != digest {
                self.config.scorer.report_fault(from, "it gives other bytes than those it states");
                return;
            }
            // Of a final block 2f+1 nodes said so.
            let verdict = wanted.votes.then(|| self.verdict(&signed));
            let (bytes_max, calls_max) = (self.store_bytes_max(), self.store_calls_max());
            self.store.lock().put(digest, GatheredCall { signed, verdict }, bytes_max, calls_max);
            self.arrived.notify_waiters();
        }
    }

    fn verdict(&self, signed: &SignedIngress) -> Verdict {
        self.config.envelopes.verify(signed)
    }

    fn answer_request(
        &mut self,
        old_tx: &mut PeerQueueSender<OldCallsRequest>,
        to: &PublicKey,
        height: Option<Height>,
        names: Vec<CallName>,
        now: SystemTime,
    ) {
        let names: BTreeSet<_> = names.into_iter().collect();
        let within = {
            let Meters { asked_names, answered_bytes, .. } = &mut *self.meters.lock();
            asked_names.spend(to, names.len() as u64, now) && answered_bytes.spend(to, 0, now)
        };
        if !within {
            self.config.scorer.report_excess(to, "requests for calls", now);
            return;
        }
        let mut found = Vec::new();
        let mut absent = BTreeSet::new();
        for name in names {
            match self.get(&name) {
                Some(GatheredCall { signed, .. }) => {
                    found.push(RequestedIngress { digest: name.digest, signed })
                }
                None => drop(absent.insert(name.digest)),
            }
        }
        if let Some(height) = height.filter(|_| !absent.is_empty()) {
            old_tx.enqueue(to.clone(), OldCallsRequest { height, digests: absent });
        }
        self.send_response(to, found, now);
    }

    fn send_response(&mut self, to: &PublicKey, mut found: Vec<RequestedIngress>, now: SystemTime) {
        let bytes: u64 = found.iter().map(|call| call.signed.envelope.len() as u64).sum();
        self.meters.lock().answered_bytes.spend(to, bytes, now);
        while !found.is_empty() {
            let mut bytes = 0;
            let fits = found.iter().take(OFFER_CALLS_MAX).take_while(|call| {
                bytes += call.signed.envelope.len();
                bytes <= OFFER_BYTES
            });
            let rest = found.split_off(fits.count().max(1));
            self.send(Recipients::One(to.clone()), &Message::Response(BoundedVec(found)));
            found = rest;
        }
    }

    /// A call that waits in the pool, for a block of this node's.
    pub(super) fn waiting(&self, name: &CallName) -> Option<GatheredCall> {
        let (signed, validity) = self.config.pool.get(name)?;
        Some(GatheredCall { signed, verdict: Some(Ok((name.id, validity))) })
    }

    fn get(&self, name: &CallName) -> Option<GatheredCall> {
        let verified =
            |(signed, validity)| GatheredCall { signed, verdict: Some(Ok((name.id, validity))) };
        let stored = || self.store.lock().calls.get(&name.digest).cloned();
        let kept = || self.config.journal.get(name).map(verified);
        self.waiting(name).or_else(kept).or_else(stored)
    }

    /// All calls of a block, in its order, once they are present: requested from `first` and then
    /// repeatedly from all peers. `height` if the block is final.
    pub(super) async fn gather(
        &self,
        clock: &impl Clock,
        names: &[CallName],
        height: Option<Height>,
        first: Option<&PublicKey>,
    ) -> Vec<GatheredCall> {
        let mut guard = GatherGuard {
            store: self.store.clone(),
            digests: BTreeSet::new(),
            votes: height.is_none(),
        };
        let mut ask_at = clock.current() + if height.is_some() { Duration::ZERO } else { GRACE };
        let mut asked = false;
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            let calls: Vec<_> = names.iter().map(|name| self.get(name)).collect();
            let missing: Vec<_> = names
                .iter()
                .zip(&calls)
                .filter(|(_, call)| call.is_none())
                .map(|(name, _)| *name)
                .collect();
            if missing.is_empty() {
                return calls.into_iter().flatten().collect();
            }
            let now = clock.current();
            if now >= ask_at {
                let to = match first.filter(|_| !asked) {
                    Some(first) => Recipients::One(first.clone()),
                    None => Recipients::All,
                };
                ask_at = now + ASK_AGAIN;
                let digests: Vec<_> = missing.iter().map(|name| name.digest).collect();
                if guard.request(&digests, self.store_calls_max()) {
                    asked = true;
                    self.send_request(&to, height, &missing, now);
                }
            }
            select! {
                () = arrived => {},
                () = clock.sleep_until(ask_at) => {},
            }
        }
    }

    fn send_request(
        &self,
        to: &Recipients<PublicKey>,
        height: Option<Height>,
        missing: &[CallName],
        now: SystemTime,
    ) {
        let mut copy = self.clone();
        for names in missing.chunks(WANT_MAX) {
            let bytes: u64 = names.iter().map(|name| u64::from(name.bytes)).sum();
            let asked = copy
                .send(to.clone(), &Message::Request { height, names: BoundedVec(names.to_vec()) });
            let given = &mut self.meters.lock().given_bytes;
            asked.iter().for_each(|peer| given.grant(peer, bytes, now));
        }
    }

    /// Makes the calls of a block of this height and time durable, if it may hold them: then it may
    /// be voted for. Checks signatures and waits for the disk, so it must not run on a thread that
    /// carries votes.
    pub(super) fn journal_calls(
        &self,
        names: &[CallName],
        calls: Vec<GatheredCall>,
        (height, time): (Height, Time),
    ) -> Result<(), JournalError> {
        let mut kept = Vec::with_capacity(names.len());
        for (name, GatheredCall { signed, verdict }) in names.iter().zip(calls) {
            let validity = self
                .check_named_call(name, &signed, verdict, time)
                .map_err(JournalError::Invalid)?;
            kept.push(JournaledCall { name: *name, validity, height, signed });
        }
        self.config
            .journal
            .append(kept)
            .map_err(|error| JournalError::Unavailable(error.to_string()))
    }

    /// Whether a block of this time may name the call like this. The bytes are those of the digest.
    fn check_named_call(
        &self,
        name: &CallName,
        signed: &SignedIngress,
        verdict: Option<Verdict>,
        time: Time,
    ) -> Result<Validity, String> {
        if signed.envelope.len() as u64 != u64::from(name.bytes) {
            return Err(format!(
                "a call has {} bytes where {} are named",
                signed.envelope.len(),
                name.bytes
            ));
        }
        let (id, validity) = verdict.unwrap_or_else(|| self.verdict(signed))?;
        if id != name.id {
            return Err("a call is not the one its id names".into());
        }
        if !validity.holds(time) {
            return Err(format!(
                "a call is valid from {} to {} and the block's time is {}",
                validity.from.0, validity.until.0, time.0
            ));
        }
        Ok(validity)
    }

    /// The block of this height and time that held these is in the block log. May wait for the
    /// disk.
    pub(super) fn drop_logged(&self, names: &[CallName], (height, time): (Height, Time)) {
        if let Err(error) = self.config.journal.drop_through(height, time) {
            tracing::warn!(%error, "the journal of calls voted for cannot be shortened");
        }
        let mut store = self.store.lock();
        names.iter().for_each(|name| store.remove(&name.digest));
        let Store { calls, order, .. } = &mut *store;
        order.retain(|digest| calls.contains_key(digest));
    }

    /// Answers requests for calls of blocks that are long in the log. Reads the disk: meant for a
    /// thread of its own. Ends with the sender of requests.
    pub(super) async fn serve_old(
        mut self,
        clock: impl Clock,
        log: Log,
        mut old_rx: PeerQueueReceiver<OldCallsRequest>,
    ) {
        let mut reader = OldBlockReader { log, places: BTreeMap::new() };
        while let Some((to, OldCallsRequest { height, digests })) = old_rx.next().await {
            let found = reader.calls(&to, height, &digests);
            self.send_response(&to, found, clock.current());
        }
    }
}

/// A request for calls of an old block.
pub(super) struct OldCallsRequest {
    height: Height,
    digests: BTreeSet<[u8; 32]>,
}

/// Reads old blocks for peers that are behind. Each asks height by height, so the place in the log
/// is kept.
struct OldBlockReader {
    log: Log,
    places: BTreeMap<PublicKey, (Height, Replay)>,
}

impl OldBlockReader {
    fn calls(
        &mut self,
        to: &PublicKey,
        height: Height,
        digests: &BTreeSet<[u8; 32]>,
    ) -> Vec<RequestedIngress> {
        let block = match self.block(to, height) {
            Ok(Some(block)) => block,
            Ok(None) => return Vec::new(),
            Err(error) => {
                tracing::debug!(%error, height = height.0, "an old block cannot be read for a peer");
                self.places.remove(to);
                return Vec::new();
            }
        };
        let given = |signed: SignedIngress| RequestedIngress { digest: signed.digest(), signed };
        block.ingress.into_iter().map(given).filter(|call| digests.contains(&call.digest)).collect()
    }

    fn block(
        &mut self,
        to: &PublicKey,
        height: Height,
    ) -> Result<Option<FinalisedBlock>, LogError> {
        let mut replay = match self.places.remove(to) {
            Some((next, replay)) if next == height => replay,
            _ => self.log.lock().read_from(Height(height.0.saturating_sub(1)))?,
        };
        let block = replay.next_block()?.map(|logged| logged.block);
        if self.places.len() >= OLD_PLACES {
            self.places.pop_first();
        }
        self.places.insert(to.clone(), (Height(height.0.saturating_add(1)), replay));
        Ok(block.filter(|block| block.height == height))
    }
}

/// Starts the two tasks that serve peers, each on a thread of its own where the runtime has
/// threads.
pub(super) fn start<E, S, R>(
    context: &E,
    calls: &Calls<S>,
    places: PeerNumbers,
    log: &Log,
    receiver: R,
) where
    E: Clock + Spawner,
    S: Sender<PublicKey = PublicKey>,
    R: Receiver<PublicKey = PublicKey>,
{
    let (old_tx, old_rx) = peer_queue(OLD_WAITING, OLD_WAITING_PER_PEER);
    context.child("calls").dedicated().spawn({
        let calls = calls.clone();
        move |context| calls.serve(context, places, old_tx, receiver)
    });
    context.child("old_calls").dedicated().spawn({
        let (calls, log) = (calls.clone(), log.clone());
        move |context| calls.serve_old(context, log, old_rx)
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::Future;

    use commonware_cryptography::Signer as _;
    use commonware_p2p::simulated::{self, Link, Network};
    use commonware_runtime::{Quota, Runner as _, Supervisor as _, deterministic};
    use commonware_utils::{NZU32, NZUsize, Probability};
    use ic_principal::Principal;
    use limits::ConsensusLimits;
    use state::{Ingress, RequestId};

    use super::*;
    use crate::{BlockLog, SystemClock, subnet::key};

    type Context = deterministic::Context;
    type Out = simulated::Sender<PublicKey, Context>;
    type In = simulated::Receiver<PublicKey>;

    const BOUNDS: NameBounds = NameBounds { calls: 100, bytes: 10_000, call_bytes: 20_000 };

    /// An envelope is whether its signature holds, the number of its request, and any bytes.
    struct Envelope;

    impl Envelopes for Envelope {
        fn read(&self, signed: &SignedIngress) -> Result<Ingress, String> {
            let [_, number, ..] = signed.envelope[..] else { return Err("no envelope".into()) };
            Ok(Ingress {
                request_id: RequestId([number; 32]),
                sender: Principal::anonymous(),
                canister_id: Principal::management_canister(),
                effective_canister_id: signed.effective_canister_id,
                method_name: "m".into(),
                arg: vec![],
                ingress_expiry: Time(u64::MAX),
                sender_info: None,
            })
        }

        fn verify(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String> {
            let claimed = self.claim(signed)?;
            if signed.envelope[0] == 1 {
                Ok(claimed)
            } else {
                Err("its signature does not hold".into())
            }
        }

        fn claim(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String> {
            let Ingress { request_id, effective_canister_id, .. } = self.read(signed)?;
            let id = IngressId::new(&request_id, &effective_canister_id);
            Ok((id, Validity { from: Time(0), until: Time(u64::MAX) }))
        }
    }

    fn envelope(holds: bool, number: u8, bytes: usize) -> SignedIngress {
        let head = [u8::from(holds), number];
        SignedIngress {
            effective_canister_id: Principal::management_canister(),
            envelope: [&head[..], &vec![0; bytes - 2]].concat().into(),
        }
    }

    fn name(signed: &SignedIngress) -> CallName {
        let ingress = Envelope.read(signed).unwrap();
        CallName::for_envelope(
            IngressId::new(&ingress.request_id, &ingress.effective_canister_id),
            signed,
        )
    }

    fn limits() -> ConsensusLimits {
        limits::Limits::derive(512 << 20).unwrap().consensus
    }

    /// This node, what it cut off, and the ends of two peers.
    struct CallsFixture {
        context: Context,
        calls: Calls<Out>,
        pool: Arc<IngressPool>,
        cut: Arc<Mutex<Vec<PublicKey>>>,
        me: PublicKey,
        peers: Vec<(PublicKey, Out, In)>,
        _folder: tempfile::TempDir,
    }

    fn bench<F: Future<Output = ()>>(test: impl FnOnce(CallsFixture) -> F) {
        deterministic::Runner::timed(Duration::from_secs(600)).start(|context| async move {
            let mut keys: Vec<_> =
                (1..=3).map(|number| key::node_key(&[number; 32]).unwrap().public_key()).collect();
            let config = simulated::Config {
                max_size: 1 << 20,
                max_peers_per_set: NZUsize!(3),
                disconnect_on_block: true,
                tracked_peer_sets: NZUsize!(2),
            };
            let (network, oracle) =
                Network::new_with_peers(context.child("network"), config, keys.clone()).await;
            network.start();
            let mut ends = Vec::new();
            for key in &keys {
                let quota = Quota::per_second(NZU32!(100_000));
                ends.push(oracle.control(key.clone()).register(0, quota).await.unwrap());
                for other in keys.iter().filter(|other| *other != key) {
                    let link = Link {
                        latency: Duration::from_millis(1),
                        jitter: Duration::ZERO,
                        success_rate: Probability::try_from(1.0).unwrap(),
                    };
                    oracle.add_link(key.clone(), other.clone(), link).await.unwrap();
                }
            }
            let folder = tempfile::tempdir().unwrap();
            let pool = Arc::new(IngressPool::new(&limits()));
            pool.share_among(3, || ());
            let cut = Arc::new(Mutex::new(Vec::new()));
            let scorer = PeerScorer::new({
                let cut = cut.clone();
                Arc::new(move |peer: &PublicKey| cut.lock().push(peer.clone()))
            });
            let journal =
                Journal::open(disk::RealDisk::shared(), &folder.path().join("voted"), 1 << 20)
                    .unwrap();
            let log = Arc::new(Mutex::new(BlockLog::open(folder.path(), 1 << 20).unwrap()));
            let (sender, receiver) = ends.remove(0);
            let calls = Calls::new(Config {
                pool: pool.clone(),
                envelopes: Arc::new(Envelope),
                clock: Arc::new(SystemClock),
                journal: Arc::new(journal),
                bounds: BOUNDS,
                scorer,
                sender,
            });
            let members = keys.clone();
            let places: PeerNumbers =
                Arc::new(move |peer| members.iter().position(|member| member == peer));
            start(&context, &calls, places, &log, receiver);
            let me = keys.remove(0);
            let peers =
                keys.into_iter().zip(ends).map(|(key, (out, into))| (key, out, into)).collect();
            test(CallsFixture { context, calls, pool, cut, me, peers, _folder: folder }).await;
        });
    }

    impl CallsFixture {
        fn send_from(&mut self, peer: usize, message: &Message) {
            let bytes = postcard::to_stdvec(message).unwrap();
            self.peers[peer].1.send(Recipients::One(self.me.clone()), bytes, false);
        }

        async fn receive_at(&mut self, peer: usize) -> Message {
            let (_, message) = self.peers[peer].2.recv().await.unwrap();
            postcard::from_bytes(message.as_ref()).unwrap()
        }

        /// Until everything under way was processed.
        async fn settle(&self) {
            self.context.sleep(Duration::from_millis(50)).await;
        }
    }

    fn give(digest: [u8; 32], signed: &SignedIngress) -> Message {
        Message::Response(BoundedVec(vec![RequestedIngress { digest, signed: signed.clone() }]))
    }

    // Promise: P18 - A peer that sends a wrong envelope is blocked, and another peer supplies it.
    #[test]
    fn peer_with_wrong_envelope_is_blocked_and_another_is_asked() {
        bench(|mut bench| async move {
            let (named, other) = (envelope(true, 7, 300), envelope(true, 7, 40));
            let wanted = name(&named);
            // A client sent this node another envelope of the same request.
            bench.pool.submit(wanted.id, Time(u64::MAX), other.clone()).unwrap();
            let gathering =
                bench.context.child("gather").spawn({
                    let (calls, first) = (bench.calls.clone(), bench.peers[0].0.clone());
                    move |context| async move {
                        calls.gather(&context, &[wanted], None, Some(&first)).await
                    }
                });
            let Message::Request { height: None, names } = bench.receive_at(0).await else {
                panic!("no request")
            };
            assert_eq!(names.0, [wanted]);
            bench.send_from(0, &give(wanted.digest, &other));
            bench.settle().await;
            assert_eq!(
                *bench.cut.lock(),
                [bench.peers[0].0.clone()],
                "it stated a digest and sent other bytes"
            );
            // Then all peers are asked.
            let Message::Request { .. } = bench.receive_at(1).await else { panic!("no request") };
            bench.send_from(1, &give(wanted.digest, &named));
            let gathered = gathering.await.unwrap();
            assert_eq!(gathered[0].signed, named);
            bench.calls.journal_calls(&[wanted], gathered, (Height(1), Time(5))).unwrap();
            assert_eq!(bench.cut.lock().len(), 1);
        });
    }

    #[test]
    fn block_with_unsigned_call_or_wrong_length_or_id_is_invalid() {
        bench(|bench| async move {
            let keep = |name: CallName, signed: &SignedIngress| {
                let gathered = GatheredCall { signed: signed.clone(), verdict: None };
                match bench.calls.journal_calls(&[name], vec![gathered], (Height(1), Time(5))) {
                    Err(JournalError::Invalid(reason)) => reason,
                    other => panic!("{other:?}"),
                }
            };
            let (good, unsigned) = (envelope(true, 7, 300), envelope(false, 7, 300));
            assert!(keep(name(&unsigned), &unsigned).contains("signature"));
            assert!(
                keep(CallName { bytes: 299, ..name(&good) }, &good).contains("300 bytes where 299")
            );
            assert!(
                keep(CallName { id: IngressId([9; 32]), ..name(&good) }, &good)
                    .contains("its id names")
            );
        });
    }

    #[test]
    fn unrequested_envelopes_are_dropped() {
        bench(|mut bench| async move {
            let (wanted, unwanted) = (envelope(true, 1, 300), envelope(true, 2, 300));
            let gathering = bench.context.child("gather").spawn({
                let (calls, name) = (bench.calls.clone(), name(&wanted));
                move |context| async move { calls.gather(&context, &[name], None, None).await }
            });
            let Message::Request { .. } = bench.receive_at(0).await else { panic!("no request") };
            bench.send_from(0, &give(name(&unwanted).digest, &unwanted));
            bench.settle().await;
            let sizes = |bench: &CallsFixture| {
                let store = bench.calls.store.lock();
                (store.wanted.len(), store.calls.len())
            };
            assert_eq!(sizes(&bench), (1, 0));
            // The engine gives the round up.
            gathering.abort();
            bench.settle().await;
            assert_eq!(sizes(&bench), (0, 0));
            bench.send_from(0, &give(name(&wanted).digest, &wanted));
            bench.settle().await;
            assert_eq!(sizes(&bench), (0, 0));
            assert_eq!(*bench.cut.lock(), []);
            // The calls were not requested, and the peer keeps sending them.
            for _ in 0..2_000 {
                bench.send_from(0, &give(name(&unwanted).digest, &unwanted));
            }
            bench.settle().await;
            assert!(bench.cut.lock().contains(&bench.peers[0].0));
        });
    }

    // Promise: P18 - Requested envelopes are bounded.
    #[test]
    fn requested_digests_are_bounded() {
        bench(|bench| async move {
            let mut guard = GatherGuard {
                store: bench.calls.store.clone(),
                digests: BTreeSet::new(),
                votes: true,
            };
            let digest = |number: u64| {
                let mut digest = [0; 32];
                digest[..8].copy_from_slice(&number.to_be_bytes());
                digest
            };
            let digests: Vec<_> = (0..400).map(digest).collect();
            assert!(guard.request(&digests, bench.calls.store_calls_max()));
            assert!(guard.request(&digests, bench.calls.store_calls_max()), "the same again");
            assert!(!guard.request(&[[1; 32]], bench.calls.store_calls_max()));
            drop(guard);
            assert!(bench.calls.store.lock().wanted.is_empty());
        });
    }

    // Promise: P18 - Ingress offers are counted before their signatures are verified.
    #[test]
    fn announcements_are_metered_before_verification_and_invalid_ones_block_the_sender() {
        bench(|mut bench| async move {
            let offer = |calls: Vec<SignedIngress>| Message::Announce(BoundedVec(calls));
            bench.send_from(
                0,
                &offer(vec![
                    envelope(true, 1, 100),
                    envelope(true, 1, 100),
                    envelope(true, 2, 100),
                ]),
            );
            bench.settle().await;
            assert_eq!(bench.pool.status().messages, 2);
            bench.send_from(1, &offer(vec![envelope(false, 3, 100), envelope(true, 4, 100)]));
            bench.settle().await;
            assert_eq!(
                (bench.pool.status().messages, bench.cut.lock().clone()),
                (2, vec![bench.peers[1].0.clone()])
            );
            // Eight blocks' worth of calls at once is what a peer gets; what it sends beyond is not
            // looked at.
            for number in 0..40 {
                bench.send_from(
                    0,
                    &offer((0..50).map(|_| envelope(true, 5 + number, 100)).collect()),
                );
            }
            bench.settle().await;
            assert!((10..40).contains(&bench.pool.status().messages), "{:?}", bench.pool.status());
            assert_eq!(bench.cut.lock().len(), 1, "too much of a good thing, for a moment");
        });
    }

    // Promise: P18 - A message that does not decode counts against its sender.
    #[test]
    fn a_message_that_does_not_decode_is_its_senders_fault() {
        bench(|mut bench| async move {
            let me = bench.me.clone();
            bench.peers[0].1.send(Recipients::One(me), vec![9, 9, 9], false);
            bench.settle().await;
            assert_eq!(*bench.cut.lock(), [bench.peers[0].0.clone()]);
        });
    }

    #[test]
    fn requests_are_deduplicated_and_rate_limited() {
        bench(|mut bench| async move {
            let call = envelope(true, 1, 5_000);
            bench.pool.submit(name(&call).id, Time(u64::MAX), call.clone()).unwrap();
            let want =
                Message::Request { height: None, names: BoundedVec(vec![name(&call); WANT_MAX]) };
            bench.send_from(0, &want);
            let Message::Response(given) = bench.receive_at(0).await else { panic!("no answer") };
            assert_eq!(given.0.len(), 1, "duplicates within a message count once");
            for _ in 0..1_000 {
                bench.send_from(0, &want);
            }
            bench.context.sleep(Duration::from_secs(5)).await;
            assert!(bench.cut.lock().contains(&bench.peers[0].0), "who floods is cut off");
            let answered =
                std::iter::from_fn(|| futures::FutureExt::now_or_never(bench.peers[0].2.recv()));
            assert!(answered.count() < 500);
        });
    }
}
