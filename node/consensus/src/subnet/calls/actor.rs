//! The tasks that carry calls.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use commonware_cryptography::ed25519::PublicKey;
use commonware_macros::select;
use commonware_p2p::{Receiver, Recipients, Sender};
use commonware_runtime::{Clock, Spawner};
use commonware_utils::sync::{Mutex, Notify};
use state::{Height, OutcallAnswer, SignedIngress, Time, Validity};

use super::{
    config::{
        ASK_AGAIN, Config, GRACE, Meters, OFFER_BLOCKS, OFFER_BYTES, OFFER_CALLS_MAX, OLD_WAITING,
        OLD_WAITING_PER_PEER, PER_CALL_BYTES, STORE_BLOCKS, WANT_MAX,
    },
    ingress::{Message, OldCallsRequest, RequestedIngress},
    old_blocks::OldBlockReader,
    store::{GatherGuard, GatheredCall, Store, Verdict},
};
use crate::{
    SubmitOutcome,
    pool::Source,
    subnet::{
        block::{CallName, VerdictError},
        deps::Log,
        journal::JournaledCall,
        peer_queue::{PeerQueueReceiver, PeerQueueSender, peer_queue},
        wire::{self, BoundedList},
    },
};

/// The number of a peer whose clients' calls count, which is its part of the pool.
pub(in crate::subnet) type PeerNumbers = Arc<dyn Fn(&PublicKey) -> Option<usize> + Send + Sync>;

/// Carries calls between this node and its peers. Copies share everything.
#[derive(Clone)]
pub(in crate::subnet) struct Calls<S> {
    config: Config<S>,
    store: Arc<Mutex<Store>>,
    arrived: Arc<Notify>,
    meters: Arc<Mutex<Meters>>,
}

impl<S: Sender<PublicKey = PublicKey>> Calls<S> {
    pub(in crate::subnet) fn new(config: Config<S>) -> Self {
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
    pub(in crate::subnet) async fn gossip_ingress(
        mut self,
        clock: impl Clock,
        work_available: Arc<Notify>,
    ) {
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
            self.send(Recipients::All, &Message::Announce(BoundedList(offered)));
            clock.sleep(pause).await;
        }
    }

    /// Takes and answers what peers send. Verifies signatures: meant for a thread of its own. Ends
    /// when the network does.
    async fn serve(
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
            let verdict = wanted.votes.then(|| self.config.envelopes.verify(&signed));
            let (bytes_max, calls_max) = (self.store_bytes_max(), self.store_calls_max());
            self.store.lock().put(digest, GatheredCall { signed, verdict }, bytes_max, calls_max);
            self.arrived.notify_waiters();
        }
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
            self.send(Recipients::One(to.clone()), &Message::Response(BoundedList(found)));
            found = rest;
        }
    }

    /// A call that waits in the pool, for a block of this node's.
    pub(in crate::subnet) fn waiting(&self, name: &CallName) -> Option<GatheredCall> {
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
    pub(in crate::subnet) async fn gather(
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
                .send(to.clone(), &Message::Request { height, names: BoundedList(names.to_vec()) });
            let given = &mut self.meters.lock().given_bytes;
            asked.iter().for_each(|peer| given.grant(peer, bytes, now));
        }
    }

    /// Writes the calls of a block of this height and time to the journal, if it may hold them:
    /// then it may be voted for. Checks the signatures of calls that are not verified yet
    /// ([`GatheredCall::is_verified`]), so with such calls it must not run on a thread that carries
    /// votes.
    pub(in crate::subnet) fn journal_calls(
        &self,
        names: &[CallName],
        calls: Vec<GatheredCall>,
        (height, time): (Height, Time),
    ) -> Result<(), VerdictError> {
        let mut kept = Vec::with_capacity(names.len());
        for (name, GatheredCall { signed, verdict }) in names.iter().zip(calls) {
            let validity = self
                .check_named_call(name, &signed, verdict, time)
                .map_err(VerdictError::Invalid)?;
            kept.push(JournaledCall { name: *name, validity, height, signed });
        }
        self.config
            .journal
            .append(kept)
            .map_err(|error| VerdictError::Unavailable(error.to_string()))
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
        let (id, validity) = verdict.unwrap_or_else(|| self.config.envelopes.verify(signed))?;
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

    /// The block that held these was handed out, and holds them from here on.
    pub(in crate::subnet) fn drop_delivered(&self, names: &[CallName]) {
        let mut store = self.store.lock();
        names.iter().for_each(|name| store.remove(&name.digest));
        let Store { calls, order, .. } = &mut *store;
        order.retain(|digest| calls.contains_key(digest));
    }

    /// Answers requests for calls of blocks that are long in the log. Reads the disk: meant for a
    /// thread of its own. Ends with the sender of requests.
    async fn serve_old(
        mut self,
        clock: impl Clock,
        log: Log,
        mut old_rx: PeerQueueReceiver<OldCallsRequest>,
    ) {
        let mut reader = OldBlockReader::new(log);
        while let Some((to, OldCallsRequest { height, digests })) = old_rx.next().await {
            let found = reader.calls(&to, height, &digests);
            self.send_response(&to, found, clock.current());
        }
    }
}

/// Starts the two tasks that serve peers, each on a thread of its own where the runtime has
/// threads.
pub(in crate::subnet) fn start<E, S, R>(
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
#[path = "tests.rs"]
mod tests;
