//! Calls between nodes: offered to everybody when a client brings one, asked for when a block names one that did not arrive.
//!
//! A call crosses each wire once when all goes well. What a peer offers is verified like what a client sends, and takes its place in the ingress pool, of
//! which no peer gets more than its share. What a block names and nobody offered is asked for, and kept in a store of its own that takes nothing else:
//! so a full pool never keeps a node from voting, and nobody can fill the store with what was not asked for.
//!
//! Calls of a block that is voted for are on disk first (see [`super::journal`]).
//!
//! Bounded: the pool by its limits, the store by [`STORE_BLOCKS`] blocks, a message by [`OFFER_BYTES`] or one call, requests by [`WANT_MAX`] names.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use commonware_cryptography::ed25519::PublicKey;
use commonware_macros::select;
use commonware_p2p::{Receiver, Recipients, Sender};
use commonware_runtime::Clock;
use commonware_utils::sync::{Mutex, Notify};
use serde::{Deserialize, Serialize};
use state::{Height, IngressId, SignedIngress, Time};

use super::{
    application::time_of,
    handover::Handover,
    journal::{Journal, KeptCall},
    wire,
};
use crate::{BlockLog, Envelopes, FinalisedBlock, IngressPool, LogError, block_log::Replay, pool::Source};

/// Blocks whose calls the store has room for: those being voted on, and those finalised that wait to be made durable.
const STORE_BLOCKS: u64 = 4;
/// Calls offered or given in one message, in bytes, unless a single one is larger.
const OFFER_BYTES: usize = 256 << 10;
/// Names in one request.
const WANT_MAX: usize = 256;
/// A call that was offered to this node may still be on its way when the block that names it arrives.
const GRACE: Duration = Duration::from_millis(60);
/// Between two requests for the same call; the second and later go to everybody.
const ASK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Serialize, Deserialize)]
enum Message {
    /// Calls that clients brought.
    Offer(Vec<SignedIngress>),
    /// The calls of these names; in the block of this height, if it is known to be final.
    Want { height: Option<Height>, ids: Vec<IngressId> },
    /// What was asked for.
    Give(Vec<SignedIngress>),
}

/// Whether a message of this channel decodes.
pub(super) fn decodes(bytes: &[u8]) -> bool {
    wire::decode::<Message>(bytes, bytes.len()).is_some()
}

#[derive(Default)]
struct Store {
    calls: BTreeMap<IngressId, SignedIngress>,
    order: VecDeque<IngressId>,
    bytes: u64,
    /// Asked for; only these are taken.
    wanted: BTreeSet<IngressId>,
}

/// The block log, for peers that come late.
pub(super) type Log = Arc<Mutex<BlockLog>>;

/// See the module. Copies share everything.
#[derive(Clone)]
pub(super) struct Calls<S> {
    pool: Arc<IngressPool>,
    envelopes: Arc<dyn Envelopes>,
    store: Arc<Mutex<Store>>,
    journal: Arc<Mutex<Journal>>,
    store_bytes_max: u64,
    arrived: Arc<Notify>,
    sender: S,
}

impl<S: Sender<PublicKey = PublicKey>> Calls<S> {
    pub(super) fn new(
        pool: Arc<IngressPool>,
        envelopes: Arc<dyn Envelopes>,
        journal: Arc<Mutex<Journal>>,
        block_ingress_bytes: u64,
        sender: S,
    ) -> Self {
        Self {
            pool,
            envelopes,
            store: Arc::default(),
            journal,
            store_bytes_max: STORE_BLOCKS.saturating_mul(block_ingress_bytes),
            arrived: Arc::default(),
            sender,
        }
    }

    /// Offers what clients bring, as it comes. Ends never.
    pub(super) async fn announce(mut self, clock: impl Clock, news: Arc<Notify>) {
        loop {
            let offered = self.pool.unannounced(OFFER_BYTES);
            if offered.is_empty() {
                news.notified().await;
                continue;
            }
            // A peer that is not reached now asks when a block names the call.
            self.send(Recipients::All, &Message::Offer(offered));
            clock.sleep(Duration::from_millis(5)).await;
        }
    }

    /// Takes and answers what peers send. Ends when the network does.
    pub(super) async fn serve(
        mut self,
        clock: impl Clock,
        handover: Arc<Handover>,
        log: Log,
        mut receiver: impl Receiver<PublicKey = PublicKey>,
    ) {
        let mut late = Late { log, cursor: None };
        while let Ok((from, message)) = receiver.recv().await {
            let Ok(message) = postcard::from_bytes(message.as_ref()) else {
                tracing::debug!(peer = %from, "a message about calls that does not decode");
                continue;
            };
            match message {
                Message::Offer(calls) => {
                    // Who is not a member any more brings nothing.
                    let Some(place) = handover.peer(&from) else { continue };
                    let now = time_of(clock.current());
                    calls.into_iter().for_each(|signed| self.offered(place, signed, now));
                }
                Message::Give(calls) => calls.into_iter().for_each(|signed| self.given(signed)),
                Message::Want { height, ids } => self.answer(&mut late, from, height, ids),
            }
        }
    }

    fn send(&mut self, to: Recipients<PublicKey>, message: &Message) {
        match postcard::to_allocvec(message) {
            Ok(bytes) => drop(self.sender.send(to, bytes, false)),
            Err(error) => tracing::error!(%error, "a message about calls cannot be encoded"),
        }
    }

    fn offered(&self, place: usize, signed: SignedIngress, now: Time) {
        match self.envelopes.verify(&signed, now) {
            Ok(ingress) => {
                let id = IngressId::new(&ingress.request_id, &ingress.effective_canister_id);
                // A full pool is no fault of the peer's, and no loss: a block that names the call gets it.
                if self.pool.submit_from(Source::Peer(place), id, ingress.ingress_expiry, signed).is_ok() {
                    self.arrived.notify_waiters();
                    // Whoever leads may be waiting for something to propose.
                    self.pool.tell();
                }
            }
            Err(reason) => tracing::debug!(%reason, place, "a peer offered a call that no client may make"),
        }
    }

    fn given(&self, signed: SignedIngress) {
        let Ok(ingress) = self.envelopes.read(&signed) else { return };
        let id = IngressId::new(&ingress.request_id, &ingress.effective_canister_id);
        let mut store = self.store.lock();
        if !store.wanted.remove(&id) {
            return;
        }
        store.bytes += signed.accounted_bytes();
        store.order.push_back(id);
        store.calls.insert(id, signed);
        while store.bytes > self.store_bytes_max
            && let Some(oldest) = store.order.pop_front()
        {
            if let Some(call) = store.calls.remove(&oldest) {
                store.bytes -= call.accounted_bytes();
            }
        }
        drop(store);
        self.arrived.notify_waiters();
    }

    fn answer(&mut self, late: &mut Late, to: PublicKey, height: Option<Height>, mut ids: Vec<IngressId>) {
        ids.truncate(WANT_MAX);
        let mut found: Vec<SignedIngress> = Vec::new();
        let mut absent = BTreeSet::new();
        for id in ids {
            match self.get(&id) {
                Some(signed) => found.push(signed),
                None => drop(absent.insert(id)),
            }
        }
        if let Some(height) = height.filter(|_| !absent.is_empty()) {
            found.extend(late.calls(height, &absent, self.envelopes.as_ref()));
        }
        while !found.is_empty() {
            let mut bytes = 0;
            let fits = found.iter().take_while(|call| {
                bytes += call.envelope.len();
                bytes <= OFFER_BYTES
            });
            let rest = found.split_off(fits.count().max(1));
            self.send(Recipients::One(to.clone()), &Message::Give(found));
            found = rest;
        }
    }

    fn get(&self, id: &IngressId) -> Option<SignedIngress> {
        let stored = || self.store.lock().calls.get(id).cloned();
        self.pool.get(id).or_else(stored).or_else(|| self.journal.lock().get(id).cloned())
    }

    /// All calls of a block, in its order, once they are there: asked of `first` and then of everybody, again and again. `height` if the block is final.
    pub(super) async fn gather(
        &self,
        clock: &impl Clock,
        ids: &[IngressId],
        height: Option<Height>,
        first: Option<&PublicKey>,
    ) -> Vec<SignedIngress> {
        let mut ask_at = clock.current() + if height.is_some() { Duration::ZERO } else { GRACE };
        let mut asked = false;
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            let calls: Vec<_> = ids.iter().map(|id| self.get(id)).collect();
            let missing: Vec<_> =
                ids.iter().zip(&calls).filter(|(_, call)| call.is_none()).map(|(id, _)| *id).collect();
            if missing.is_empty() {
                return calls.into_iter().flatten().collect();
            }
            let now = clock.current();
            if now >= ask_at {
                let to = match first.filter(|_| !asked) {
                    Some(first) => Recipients::One(first.clone()),
                    None => Recipients::All,
                };
                asked = true;
                ask_at = now + ASK_AGAIN;
                let mut copy = self.clone();
                for ids in missing.chunks(WANT_MAX) {
                    copy.store.lock().wanted.extend(ids);
                    copy.send(to.clone(), &Message::Want { height, ids: ids.to_vec() });
                }
            }
            select! {
                () = arrived => {},
                () = clock.sleep_until(ask_at) => {},
            }
        }
    }

    /// Verifies what only a block brought (what is in the pool was verified when it came) and makes all of it durable: the block may be voted for.
    pub(super) fn keep(&self, ids: &[IngressId], calls: &[SignedIngress], time: Time) -> Result<(), String> {
        let mut kept = Vec::with_capacity(ids.len());
        for (id, signed) in ids.iter().zip(calls) {
            let known = self.pool.expiry(id).or_else(|| self.journal.lock().expiry(id));
            let expiry = match known {
                Some(expiry) => expiry,
                None => self.envelopes.verify(signed, time)?.ingress_expiry,
            };
            if expiry < time {
                return Err(format!("a call expired at {} before block time {}", expiry.0, time.0));
            }
            kept.push(KeptCall { id: *id, expiry, signed: signed.clone() });
        }
        self.journal.lock().keep(kept).map_err(|error| error.to_string())
    }

    /// The block of this time that held these is in the block log.
    pub(super) fn forget(&self, ids: &[IngressId], time: Time) {
        if let Err(error) = self.journal.lock().forget(ids, time) {
            tracing::warn!(%error, "the journal of calls voted for cannot be shortened");
        }
        let mut store = self.store.lock();
        for id in ids {
            store.wanted.remove(id);
            if let Some(call) = store.calls.remove(id) {
                store.bytes -= call.accounted_bytes();
            }
        }
        let Store { calls, order, .. } = &mut *store;
        order.retain(|id| calls.contains_key(id));
    }
}

/// Reads old blocks for peers that catch up. They ask height by height, so the place in the log is kept.
struct Late {
    log: Log,
    cursor: Option<(Height, Replay)>,
}

impl Late {
    fn calls(
        &mut self,
        height: Height,
        ids: &BTreeSet<IngressId>,
        envelopes: &dyn Envelopes,
    ) -> Vec<SignedIngress> {
        let block = match self.block(height) {
            Ok(Some(block)) => block,
            Ok(None) => return Vec::new(),
            Err(error) => {
                tracing::debug!(%error, height = height.0, "an old block cannot be read for a peer");
                self.cursor = None;
                return Vec::new();
            }
        };
        let named = |signed: &SignedIngress| {
            let ingress = envelopes.read(signed).ok()?;
            Some(IngressId::new(&ingress.request_id, &ingress.effective_canister_id))
        };
        block.ingress.into_iter().filter(|signed| named(signed).is_some_and(|id| ids.contains(&id))).collect()
    }

    fn block(&mut self, height: Height) -> Result<Option<FinalisedBlock>, LogError> {
        let mut replay = match self.cursor.take() {
            Some((next, replay)) if next == height => replay,
            _ => self.log.lock().read_from(Height(height.0.saturating_sub(1)))?,
        };
        let block = replay.next_block()?.map(|logged| logged.block);
        self.cursor = Some((Height(height.0 + 1), replay));
        Ok(block.filter(|block| block.height == height))
    }
}
