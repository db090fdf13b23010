//! The ingress pool: calls accepted by the gateway that no block holds yet.
//!
//! First come, first served; bounded in messages and bytes; a call is in it once. When it is full
//! the client receives an error with a time to wait, and no accepted call is dropped except after
//! its expiry.
//!
//! Answers to outcalls come before calls, with half of a block's bytes at most
//! ([`IngressPool::submit_answer`]). Other nodes have them themselves, so they are not announced;
//! they hold memory of the outcalls' own pool, so neither takes the other's room.
//!
//! A few calls can be held back ([`IngressPool::hold_back`]): they are announced to other nodes,
//! but not offered for blocks until this node is ready for them, for at most [`HELD_FOR`], and
//! only while the pool is less than half full.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use accounting::{Observation, Reservation};
use commonware_utils::sync::{Condvar, Mutex};
use lifecycle::{Cause, Health, Stop};
use limits::ConsensusLimits;
use state::{IngressId, OutcallAnswer, OutcallId, SignedIngress, Time, Validity};
use thiserror::Error;

use crate::subnet::CallName;

/// Calls held back at once, for each canister one. Further ones are offered for blocks like all
/// others.
const HELD_MAX: usize = 8;
/// How long a call is held back at most.
pub const HELD_FOR: Duration = Duration::from_secs(20);

/// The call is in the pool now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitOutcome {
    /// It was not before.
    New,
    /// It was already.
    Already,
}

/// Why a call was not taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum PoolRefusal {
    #[error(
        "the ingress pool holds {used} of {cap} bytes (ingress_pool_bytes) and this call needs \
         {asked}: retry later"
    )]
    Bytes { used: u64, cap: u64, asked: u64 },
    #[error("the ingress pool holds {cap} calls (ingress_pool_messages): retry later")]
    Messages { cap: u64 },
    #[error(
        "the ingress history is filling up (subnet.ingress_history_bytes, \
         subnet.ingress_unfinished_max) and takes no more calls in this second: retry later"
    )]
    History,
    /// The node takes no updates now, for a reason as clients read it.
    #[error("this node takes no updates: {0}")]
    Closed(String),
}

/// What [`IngressPool::next_held`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHeld {
    /// The call that was held back first.
    Call(IngressId),
    /// No call was held back in that time.
    None,
    /// The pool closes.
    Closing,
}

/// A call taken out of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenCall {
    /// The id under which its sender asks for it.
    pub id: IngressId,
    /// When it may be in a block.
    pub validity: Validity,
    /// The envelope as it came.
    pub signed: SignedIngress,
    /// None of a call: it comes from the pool alone.
    pub(crate) answer: Option<Arc<Answer>>,
}

/// Data of a call that answers an outcall.
#[derive(Debug)]
pub(crate) struct Answer {
    id: OutcallId,
    /// Memory of the outcalls' pool, while it waits or is in a block that is being made.
    _held: Reservation,
}

impl PartialEq for Answer {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Answer {}

/// Figures for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// Calls that no block holds yet.
    pub messages: u64,
    /// Bytes they take.
    pub bytes: u64,
}

/// Calls that no block holds yet. Shared by the gateway, which submits, and the block maker.
pub struct IngressPool {
    bytes_max: u64,
    messages_max: u64,
    inner: Mutex<Inner>,
    arrived: Condvar,
    /// Which calls are held back.
    holds: OnceLock<fn(&SignedIngress) -> bool>,
    held_arrived: Condvar,
    stop: Stop,
    health: Health,
    /// Called for every call that a client submits, and on closing.
    listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Who brought a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Client,
    /// The node of this place.
    Peer(usize),
}

struct Waiting {
    signed: SignedIngress,
    /// SHA-256 of the envelope.
    digest: [u8; 32],
    validity: Validity,
    source: Source,
    answer: Option<Arc<Answer>>,
}

impl Waiting {
    /// Bytes of this pool that it uses.
    fn bytes(&self) -> u64 {
        if self.answer.is_some() { 0 } else { self.signed.accounted_bytes() }
    }

    fn name(&self, id: IngressId) -> CallName {
        // An envelope is bounded by a limit that fits.
        let bytes = u32::try_from(self.signed.envelope.len()).unwrap_or(u32::MAX);
        CallName { id, digest: self.digest, bytes }
    }
}

struct HeldCall {
    id: IngressId,
    since: Instant,
}

#[derive(Clone, Copy, Default)]
struct PeerUsage {
    bytes: u64,
    messages: u64,
}

#[derive(Default)]
struct Inner {
    waiting: BTreeMap<IngressId, Waiting>,
    order: VecDeque<IngressId>,
    /// Answers to outcalls, and no part of `order`.
    answers: VecDeque<IngressId>,
    /// Calls that are held back, and no part of `order`.
    held: VecDeque<HeldCall>,
    bytes: u64,
    /// Parts the pool is divided into, one per node; 0 for a node that is alone.
    parts: u64,
    peers: BTreeMap<usize, PeerUsage>,
    unannounced: VecDeque<IngressId>,
    woken: bool,
    /// Calls the state could take in when it was last asked; `None` until then.
    room: Option<u64>,
    /// Calls taken for blocks since.
    taken: u64,
    /// Reports the bytes that wait to the ledger.
    observation: Option<Observation>,
}

impl Inner {
    /// Removes a call. Its entry in the order is removed at the next check of the order.
    fn remove_call(&mut self, id: &IngressId) -> Option<Waiting> {
        let call = self.waiting.remove(id)?;
        self.held.retain(|held| held.id != *id);
        let bytes = call.bytes();
        assert!(self.bytes >= bytes, "a call of {bytes} bytes leaves, all have {}", self.bytes);
        self.bytes -= bytes;
        if let Source::Peer(place) = call.source
            && let Some(held) = self.peers.get_mut(&place)
        {
            assert!(
                held.bytes >= bytes && held.messages > 0,
                "a call of {bytes} bytes of peer {place} leaves, its {} calls have {}",
                held.messages,
                held.bytes
            );
            held.bytes -= bytes;
            held.messages -= 1;
        }
        Some(call)
    }

    /// Calls of users that wait: answers have bounds of their own.
    fn user_calls(&self) -> u64 {
        debug_assert!(
            self.answers.len() <= self.waiting.len(),
            "{} answers among {} that wait",
            self.answers.len(),
            self.waiting.len()
        );
        self.waiting.len().saturating_sub(self.answers.len()) as u64
    }

    fn holds(&self, id: &IngressId) -> bool {
        self.held.iter().any(|held| held.id == *id)
    }

    /// Calls that were held for long enough take their place behind all others.
    fn release_overdue(&mut self) {
        while self.held.front().is_some_and(|held| held.since.elapsed() >= HELD_FOR) {
            self.order.extend(self.held.pop_front().map(|held| held.id));
        }
    }

    /// Nothing could be in a block now.
    fn is_empty(&self) -> bool {
        self.order.is_empty() && self.answers.is_empty()
    }

    /// Removes from the orders the calls that left the pool.
    fn drop_stale_ids(&mut self) {
        let Self { waiting, order, answers, .. } = self;
        order.retain(|id| waiting.contains_key(id));
        answers.retain(|id| waiting.contains_key(id));
    }

    fn report_bytes(&mut self) {
        if let Some(observation) = &mut self.observation {
            observation.set(self.bytes);
        }
    }
}

impl IngressPool {
    /// An empty pool.
    pub fn new(limits: &ConsensusLimits) -> Self {
        Self {
            bytes_max: limits.ingress_pool_bytes,
            messages_max: limits.ingress_pool_messages,
            inner: Mutex::default(),
            arrived: Condvar::new(),
            holds: OnceLock::new(),
            held_arrived: Condvar::new(),
            stop: Stop::new(),
            health: Health::new(),
            listener: OnceLock::new(),
        }
    }

    /// Has the ledger count what waits, in the pool whose cap is `ingress_pool_bytes`.
    pub fn observe_in(&self, pool: &accounting::Pool) {
        let mut inner = self.inner.lock();
        inner.observation = Some(pool.observe());
        inner.report_bytes();
    }

    /// Takes a verified call that is named `id` and may be in blocks of the times in `validity`,
    /// unless there is no room.
    pub fn submit(
        &self,
        id: IngressId,
        validity: impl Into<Validity>,
        signed: SignedIngress,
    ) -> Result<SubmitOutcome, PoolRefusal> {
        let submitted = self.submit_from(Source::Client, id, validity.into(), signed);
        if submitted == Ok(SubmitOutcome::New) {
            self.notify_listener();
        }
        submitted
    }

    /// The same from anybody. A peer gets no more than its part of the pool.
    pub(crate) fn submit_from(
        &self,
        source: Source,
        id: IngressId,
        validity: Validity,
        signed: SignedIngress,
    ) -> Result<SubmitOutcome, PoolRefusal> {
        let digest = signed.digest();
        let mut inner = self.inner.lock();
        let asked = signed.accounted_bytes();
        if self.room_for(&inner, source, &id, asked)? == SubmitOutcome::Already {
            return Ok(SubmitOutcome::Already);
        }
        match source {
            Source::Client if inner.parts > 0 => inner.unannounced.push_back(id),
            Source::Client => {}
            Source::Peer(place) => {
                let held = inner.peers.entry(place).or_default();
                held.bytes += asked;
                held.messages += 1;
            }
        }
        inner.bytes += asked;
        let crowded =
            2 * inner.bytes > self.bytes_max || 2 * inner.user_calls() >= self.messages_max;
        if crowded {
            let released = std::mem::take(&mut inner.held);
            inner.order.extend(released.into_iter().map(|held| held.id));
        }
        if !crowded && self.should_hold(&inner, &signed) {
            inner.held.push_back(HeldCall { id, since: Instant::now() });
            self.held_arrived.notify_one();
        } else {
            inner.order.push_back(id);
            self.arrived.notify_one();
        }
        inner.waiting.insert(id, Waiting { signed, digest, validity, source, answer: None });
        debug_assert!(
            inner.bytes <= self.bytes_max && inner.user_calls() <= self.messages_max,
            "{} calls of {} bytes wait",
            inner.user_calls(),
            inner.bytes
        );
        debug_assert!(inner.held.len() <= HELD_MAX, "{} calls are held back", inner.held.len());
        inner.report_bytes();
        Ok(SubmitOutcome::New)
    }

    /// Adds an answer to an outcall that the subnet signed, with the memory it holds. There are no
    /// more answers than open outcalls, so there is always a place. The caller announces it with
    /// [`Self::notify_listener`].
    pub(crate) fn submit_answer(
        &self,
        answer: &OutcallAnswer,
        signature: &[u8; 48],
        held: Reservation,
    ) {
        let (id, validity, signed) =
            (answer.ingress_id(), answer.validity(), answer.envelope(signature));
        let digest = signed.digest();
        let mut inner = self.inner.lock();
        if inner.waiting.contains_key(&id) {
            return;
        }
        let (source, answer) = (Source::Client, Answer { id: answer.id, _held: held });
        let answer = Some(Arc::new(answer));
        inner.waiting.insert(id, Waiting { signed, digest, validity, source, answer });
        inner.answers.push_back(id);
        self.arrived.notify_one();
    }

    /// Answers to other requests than those that `is_open` names are of no use any more.
    pub(crate) fn keep_answers(&self, is_open: impl Fn(OutcallId) -> bool) {
        let mut inner = self.inner.lock();
        let Inner { waiting, answers, .. } = &mut *inner;
        answers.retain(|id| {
            let answer = waiting.get(id).and_then(|call| call.answer.as_ref());
            let stays = answer.is_some_and(|answer| is_open(answer.id));
            if !stays {
                waiting.remove(id);
            }
            stays
        });
    }

    /// From now on, calls for which `holds` returns true are held back, a few at once, until
    /// [`Self::release`]. The caller takes them with [`Self::next_held`]. May be set once.
    pub fn hold_back(&self, holds: fn(&SignedIngress) -> bool) {
        let _ = self.holds.set(holds);
    }

    /// The call that was held back first, which stays; waits for one for as long as `patience`.
    pub fn next_held(&self, patience: Duration) -> NextHeld {
        let mut inner = self.inner.lock();
        let end = Instant::now() + patience;
        loop {
            if self.stop.is_closing() {
                return NextHeld::Closing;
            }
            if let Some(held) = inner.held.front() {
                return NextHeld::Call(held.id);
            }
            let Some(left) = end.checked_duration_since(Instant::now()) else {
                return NextHeld::None;
            };
            self.held_arrived.wait_for(&mut inner, left);
        }
    }

    /// A call that waits, and when it is valid.
    pub fn waiting(&self, id: &IngressId) -> Option<(SignedIngress, Validity)> {
        let inner = self.inner.lock();
        inner.waiting.get(id).map(|call| (call.signed.clone(), call.validity))
    }

    /// Offers a call for blocks that is held back.
    pub fn release(&self, id: &IngressId) {
        let mut inner = self.inner.lock();
        if !inner.holds(id) {
            return;
        }
        inner.held.retain(|held| held.id != *id);
        inner.order.push_back(*id);
        self.arrived.notify_one();
        drop(inner);
        self.notify_listener();
    }

    fn should_hold(&self, inner: &Inner, signed: &SignedIngress) -> bool {
        let canister = |held: &HeldCall| {
            inner.waiting.get(&held.id).map(|call| call.signed.effective_canister_id)
        };
        inner.held.len() < HELD_MAX
            && self.holds.get().is_some_and(|holds| holds(signed))
            && !inner.held.iter().any(|held| canister(held) == Some(signed.effective_canister_id))
    }

    /// Whether a call with this number of accounted bytes would be accepted now, before anything is
    /// spent on verifying it.
    pub(crate) fn would_take(
        &self,
        source: Source,
        id: &IngressId,
        asked: u64,
    ) -> Result<SubmitOutcome, PoolRefusal> {
        self.room_for(&self.inner.lock(), source, id, asked)
    }

    fn room_for(
        &self,
        inner: &Inner,
        source: Source,
        id: &IngressId,
        asked: u64,
    ) -> Result<SubmitOutcome, PoolRefusal> {
        if let Some(reason) = self.health.reason() {
            return Err(PoolRefusal::Closed(reason.client_text));
        }
        if inner.waiting.contains_key(id) {
            return Ok(SubmitOutcome::Already);
        }
        // A call that would be skipped for want of room is better refused here, where its sender
        // receives the error.
        if inner.room.is_some_and(|room| inner.user_calls() + inner.taken >= room) {
            return Err(PoolRefusal::History);
        }
        if inner.bytes + asked > self.bytes_max {
            return Err(PoolRefusal::Bytes { used: inner.bytes, cap: self.bytes_max, asked });
        }
        if inner.user_calls() >= self.messages_max {
            return Err(PoolRefusal::Messages { cap: self.messages_max });
        }
        if let Source::Peer(place) = source {
            let parts = inner.parts.max(1);
            let (bytes_max, messages_max) = (self.bytes_max / parts, self.messages_max / parts);
            let held = inner.peers.get(&place).copied().unwrap_or_default();
            if held.bytes + asked > bytes_max {
                return Err(PoolRefusal::Bytes { used: held.bytes, cap: bytes_max, asked });
            }
            if held.messages >= messages_max {
                return Err(PoolRefusal::Messages { cap: messages_max });
            }
        }
        Ok(SubmitOutcome::New)
    }

    /// Says how many calls the state could take in, after the calls last taken for a block were
    /// executed.
    pub fn set_room(&self, calls: u64) {
        let mut inner = self.inner.lock();
        inner.room = Some(calls);
        inner.taken = 0;
    }

    /// The request to stop, which [`Self::close`] makes.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Reasons for refusing calls. Calls that wait stay.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Why calls are refused now, if they are.
    pub fn refusing(&self) -> Option<String> {
        self.health.refusing()
    }

    /// No further batch is wanted: wakes the block maker for good.
    pub fn close(&self) {
        self.health.refuse(Cause::Stopping, "it is shutting down".into());
        self.stop.close();
        // A waiter that checked before the close holds no lock any more: it is woken.
        drop(self.inner.lock());
        self.arrived.notify_all();
        self.held_arrived.notify_all();
        self.notify_listener();
    }

    /// Whether [`Self::close`] was called.
    pub fn closing(&self) -> bool {
        self.stop.is_closing()
    }

    /// Waits until a call waits, or the pool closes, or `timeout` passed.
    pub fn wait(&self, timeout: Duration) {
        let mut inner = self.inner.lock();
        let idle = |inner: &mut Inner| inner.is_empty() && !self.stop.is_closing() && !inner.woken;
        self.arrived.wait_while_for(&mut inner, idle, timeout);
        inner.woken = false;
    }

    /// Ends one [`Self::wait`] early.
    pub fn wake(&self) {
        self.inner.lock().woken = true;
        self.arrived.notify_all();
    }

    /// Divides the pool among `nodes`, and has `listener` called for every call that a client
    /// submits and on closing. May be set once.
    pub(crate) fn share_among(&self, nodes: usize, listener: impl Fn() + Send + Sync + 'static) {
        self.inner.lock().parts = nodes as u64;
        let _ = self.listener.set(Box::new(listener));
    }

    pub(crate) fn set_node_count(&self, nodes: usize) {
        self.inner.lock().parts = nodes as u64;
    }

    pub(crate) fn notify_listener(&self) {
        if let Some(listener) = self.listener.get() {
            listener();
        }
    }

    /// Calls of clients that were not announced to other nodes yet: at most `calls_max`, with
    /// envelopes of at most `bytes_max` bytes together, or one call.
    pub(crate) fn unannounced(&self, bytes_max: usize, calls_max: usize) -> Vec<SignedIngress> {
        let mut inner = self.inner.lock();
        let mut calls = Vec::new();
        let mut bytes = 0;
        while let Some(id) = inner.unannounced.front() {
            let Some(signed) = inner.waiting.get(id).map(|call| call.signed.clone()) else {
                inner.unannounced.pop_front();
                continue;
            };
            bytes += signed.envelope.len();
            if !calls.is_empty() && (bytes > bytes_max || calls.len() >= calls_max) {
                break;
            }
            calls.push(signed);
            inner.unannounced.pop_front();
        }
        debug_assert!(
            calls.len() <= calls_max.max(1),
            "{} calls are announced, the most is {calls_max}",
            calls.len()
        );
        calls
    }

    /// Names of calls for a block of `time`, oldest first, within the block's limits; they stay
    /// here until [`Self::remove`]. Those that `skip` names are in a block already. Calls that
    /// expired by `now` are dropped.
    pub(crate) fn offer(
        &self,
        now: Time,
        time: Time,
        bytes_max: u64,
        messages_max: u64,
        skip: &BTreeSet<IngressId>,
    ) -> Vec<CallName> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        inner.release_overdue();
        let expired: Vec<_> = (inner.waiting.iter())
            .filter(|(_, call)| call.validity.until < now)
            .map(|(id, _)| *id)
            .collect();
        for id in &expired {
            inner.remove_call(id);
        }
        if !expired.is_empty() {
            inner.drop_stale_ids();
        }
        let mut offered = Vec::new();
        let mut bytes = 0;
        let parts = [
            (&inner.answers, bytes_max / 2, messages_max.div_ceil(2)),
            (&inner.order, bytes_max, messages_max),
        ];
        for (order, most, count_most) in parts {
            for id in order {
                if offered.len() as u64 >= count_most {
                    break;
                }
                let Some(call) = inner
                    .waiting
                    .get(id)
                    .filter(|call| call.validity.holds(time) && !skip.contains(id))
                else {
                    continue;
                };
                let size = call.signed.accounted_bytes();
                if !offered.is_empty() && bytes + size > most {
                    break;
                }
                bytes += size;
                offered.push(call.name(*id));
            }
        }
        debug_assert!(
            offered.len() <= 1 || (bytes <= bytes_max && offered.len() as u64 <= messages_max),
            "{} calls of {bytes} bytes are offered",
            offered.len()
        );
        inner.report_bytes();
        offered
    }

    /// Calls that wait for a block and that `skip` does not name, counted up to `most`.
    pub(crate) fn count_beyond(&self, skip: &BTreeSet<IngressId>, most: usize) -> usize {
        let inner = self.inner.lock();
        let beyond = inner.waiting.keys().filter(|id| !skip.contains(id) && !inner.holds(id));
        beyond.take(most).count()
    }

    /// A call that waits, if what waits under its id is this very envelope, and when it is valid.
    pub(crate) fn get(&self, name: &CallName) -> Option<(SignedIngress, Validity)> {
        let inner = self.inner.lock();
        let call = inner.waiting.get(&name.id).filter(|call| call.digest == name.digest)?;
        Some((call.signed.clone(), call.validity))
    }

    /// These calls are in a final block, which is durable: other envelopes of theirs in the pool
    /// are not needed any more. `of_users` of them are calls of users; answers of others never wait
    /// here.
    pub(crate) fn remove(&self, names: &[CallName], of_users: u64) {
        let mut inner = self.inner.lock();
        inner.taken += of_users;
        for name in names {
            inner.remove_call(&name.id);
        }
        inner.drop_stale_ids();
        debug_assert_eq!(
            inner.bytes,
            inner.waiting.values().map(Waiting::bytes).sum::<u64>(),
            "bytes of {} calls that wait",
            inner.waiting.len()
        );
        inner.report_bytes();
    }

    /// Takes calls out for a block, oldest first, within the block's limits. Calls that expired by
    /// `now` are dropped.
    pub fn take(&self, now: Time, bytes_max: u64, messages_max: u64) -> Vec<TakenCall> {
        let mut inner = self.inner.lock();
        inner.release_overdue();
        let mut taken = Vec::new();
        let mut answers = std::mem::take(&mut inner.answers);
        let mut order = std::mem::take(&mut inner.order);
        let mut bytes = 0;
        let parts = [
            (&mut answers, bytes_max / 2, messages_max.div_ceil(2)),
            (&mut order, bytes_max, messages_max),
        ];
        for (order, most, count_most) in parts {
            while (taken.len() as u64) < count_most
                && let Some(id) = order.front().copied()
            {
                let size = inner.waiting.get(&id).map(|call| call.signed.accounted_bytes());
                if !taken.is_empty() && size.is_some_and(|size| bytes + size > most) {
                    break;
                }
                order.pop_front();
                let Some(Waiting { signed, validity, answer, .. }) = inner.remove_call(&id) else {
                    continue;
                };
                if validity.until >= now {
                    bytes += size.unwrap_or_default();
                    inner.taken += u64::from(answer.is_none());
                    taken.push(TakenCall { id, validity, signed, answer });
                }
            }
        }
        debug_assert!(
            taken.len() <= 1 || (bytes <= bytes_max && taken.len() as u64 <= messages_max),
            "{} calls of {bytes} bytes are taken",
            taken.len()
        );
        (inner.answers, inner.order) = (answers, order);
        inner.report_bytes();
        taken
    }

    /// Puts calls back that a block could not be made of. They keep their place at the front.
    pub fn put_back(&self, calls: Vec<TakenCall>) {
        let mut inner = self.inner.lock();
        let of_users = calls.iter().filter(|call| call.answer.is_none()).count();
        inner.taken = inner.taken.saturating_sub(of_users as u64);
        for TakenCall { id, validity, signed, answer } in calls.into_iter().rev() {
            if inner.waiting.contains_key(&id) {
                continue;
            }
            let order = if answer.is_some() { &mut inner.answers } else { &mut inner.order };
            order.push_front(id);
            let digest = signed.digest();
            let call = Waiting { signed, digest, validity, source: Source::Client, answer };
            inner.bytes += call.bytes();
            inner.waiting.insert(id, call);
        }
        inner.report_bytes();
    }

    /// Calls and bytes that wait, and the caps.
    pub fn status(&self) -> PoolStatus {
        let inner = self.inner.lock();
        PoolStatus { messages: inner.user_calls(), bytes: inner.bytes }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ic_principal::Principal;

    use super::*;

    /// For what is there already.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn pool(messages: u64, bytes: u64) -> IngressPool {
        IngressPool {
            bytes_max: bytes,
            messages_max: messages,
            inner: Mutex::default(),
            arrived: Condvar::new(),
            holds: OnceLock::new(),
            held_arrived: Condvar::new(),
            stop: Stop::new(),
            health: Health::new(),
            listener: OnceLock::new(),
        }
    }

    /// A call of `size` bytes; the pool never looks inside.
    fn call(number: u8, size: usize, expiry: u64) -> TakenCall {
        let signed = SignedIngress {
            effective_canister_id: Principal::management_canister(),
            envelope: vec![number; size].into(),
        };
        let (id, validity) = (IngressId([number; 32]), Time(expiry).into());
        TakenCall { id, validity, signed, answer: None }
    }

    fn submit(pool: &IngressPool, call: TakenCall) -> Result<SubmitOutcome, PoolRefusal> {
        pool.submit(call.id, call.validity, call.signed)
    }

    #[test]
    fn a_call_is_held_once_and_leaves_in_order() {
        let pool = pool(10, 100_000);
        assert_eq!(submit(&pool, call(2, 10, 9)), Ok(SubmitOutcome::New));
        assert_eq!(submit(&pool, call(1, 10, 9)), Ok(SubmitOutcome::New));
        assert_eq!(submit(&pool, call(2, 10, 9)), Ok(SubmitOutcome::Already));
        let order: Vec<_> =
            pool.take(Time(0), 100_000, 10).iter().map(|call| call.id.0[0]).collect();
        assert_eq!(order, [2, 1]);
        assert_eq!(pool.status(), PoolStatus::default());
    }

    #[test]
    fn submit_is_refused_when_the_history_is_full() {
        let pool = pool(10, 100_000);
        submit(&pool, call(1, 0, 9)).unwrap();
        pool.set_room(2);
        submit(&pool, call(2, 0, 9)).unwrap();
        assert_eq!(submit(&pool, call(3, 0, 9)), Err(PoolRefusal::History));
        // Calls taken for a block are not in the state yet.
        assert_eq!(pool.take(Time(0), 100_000, 1).len(), 1);
        assert_eq!(submit(&pool, call(3, 0, 9)), Err(PoolRefusal::History));
        pool.set_room(2);
        submit(&pool, call(3, 0, 9)).unwrap();
        let taken = pool.take(Time(0), 100_000, 10);
        pool.put_back(taken);
        assert_eq!(submit(&pool, call(4, 0, 9)), Err(PoolRefusal::History));
        pool.set_room(3);
        submit(&pool, call(4, 0, 9)).unwrap();
    }

    #[test]
    fn full_pool_error_names_the_limit() {
        let by_count = pool(1, 100_000);
        submit(&by_count, call(1, 0, 9)).unwrap();
        assert_eq!(submit(&by_count, call(2, 0, 9)), Err(PoolRefusal::Messages { cap: 1 }));
        let by_bytes = pool(10, 1_000);
        submit(&by_bytes, call(1, 600, 9)).unwrap();
        let refusal = submit(&by_bytes, call(2, 600, 9)).unwrap_err();
        assert_eq!(refusal, PoolRefusal::Bytes { used: 728, cap: 1_000, asked: 728 });
    }

    #[test]
    fn blocks_respect_their_limits_and_always_take_one() {
        let pool = pool(10, 100_000);
        for number in 0..4 {
            submit(&pool, call(number, 1_000, 9)).unwrap();
        }
        assert_eq!(pool.take(Time(0), 10, 10).len(), 1);
        assert_eq!(pool.take(Time(0), 2_600, 10).len(), 2);
        assert_eq!(pool.take(Time(0), 100_000, 0).len(), 0);
    }

    #[test]
    fn expired_calls_are_dropped_when_a_block_is_made() {
        let pool = pool(10, 100_000);
        submit(&pool, call(1, 0, 5)).unwrap();
        submit(&pool, call(2, 0, 9)).unwrap();
        let taken = pool.take(Time(6), 100_000, 10);
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].id.0[0], 2);
    }

    #[test]
    fn calls_put_back_keep_their_place() {
        let pool = pool(10, 100_000);
        for number in 0..3 {
            submit(&pool, call(number, 0, 9)).unwrap();
        }
        let taken = pool.take(Time(0), 100_000, 2);
        pool.put_back(taken);
        let order: Vec<_> =
            pool.take(Time(0), 100_000, 10).iter().map(|call| call.id.0[0]).collect();
        assert_eq!(order, [0, 1, 2]);
    }

    fn submit_answer(pool: &IngressPool, id: u64, room: &accounting::Pool) {
        let payload = state::Payload::Reply(vec![1; 10]);
        let answer = OutcallAnswer { id: OutcallId(id), until: Time(9), payload };
        pool.submit_answer(&answer, &[2; 48], room.try_reserve(10).unwrap());
    }

    #[test]
    fn answers_do_not_count_as_user_calls() {
        let room = accounting::Pool::standalone("outcalls", 1_000);
        let pool = pool(2, 100_000);
        pool.set_room(2);
        (1..=3).for_each(|id| submit_answer(&pool, id, &room));
        submit(&pool, call(1, 0, 9)).unwrap();
        submit(&pool, call(2, 0, 9)).unwrap();
        assert!(submit(&pool, call(3, 0, 9)).is_err());
        let before = pool.status();
        assert_eq!(before.messages, 2);
        let taken = pool.take(Time(0), 100_000, 10);
        let ids: Vec<_> = taken.iter().map(|call| call.id).collect();
        assert_eq!((ids.len(), room.used_bytes()), (5, 30));
        pool.put_back(taken);
        assert_eq!((pool.status(), room.used_bytes()), (before, 30));
        pool.keep_answers(|id| id != OutcallId(1));
        assert_eq!(room.used_bytes(), 20);
        let again = pool.take(Time(0), 100_000, 10);
        assert_eq!(again.iter().map(|call| call.id).collect::<Vec<_>>(), ids[1..]);
        drop(again);
        assert_eq!(room.used_bytes(), 0);
    }

    #[test]
    fn answers_leave_half_of_a_block_to_calls() {
        let room = accounting::Pool::standalone("outcalls", 1_000);
        let pool = pool(9, 100_000);
        (1..=4).for_each(|id| submit_answer(&pool, id, &room));
        submit(&pool, call(1, 0, 9)).unwrap();
        let offered = pool.offer(Time(0), Time(0), 100_000, 4, &BTreeSet::new());
        assert_eq!(offered.len(), 3);
        assert_eq!(pool.take(Time(0), 100_000, 4).len(), 3);
    }

    #[test]
    fn get_requires_the_named_envelope() {
        let pool = pool(10, 100_000);
        submit(&pool, call(1, 200, 9)).unwrap();
        let small = call(1, 200, 9).signed;
        let name = |signed: &SignedIngress| CallName::for_envelope(IngressId([1; 32]), signed);
        assert_eq!(pool.get(&name(&small)), Some((small, Time(9).into())));
        assert_eq!(pool.get(&name(&call(1, 2_000, 9).signed)), None);
        assert_eq!(submit(&pool, call(1, 2_000, 9)), Ok(SubmitOutcome::Already));
        // Once one of them is final the other is of no use.
        pool.remove(&[name(&call(1, 2_000, 9).signed)], 1);
        assert_eq!(pool.status(), PoolStatus::default());
    }

    #[test]
    fn offer_contains_only_calls_valid_at_block_time() {
        let pool = pool(10, 100_000);
        let early = Validity { from: Time(5), until: Time(9) };
        pool.submit(IngressId([1; 32]), early, call(1, 0, 9).signed).unwrap();
        let offered = |time| pool.offer(Time(0), Time(time), 1_000, 10, &BTreeSet::new()).len();
        assert_eq!([4, 5, 9, 10].map(offered), [0, 1, 1, 0]);
    }

    /// A call that is held back, for a canister of its own.
    fn install(number: u8) -> TakenCall {
        let mut call = call(number, 7, 9);
        call.signed.effective_canister_id = Principal::from_slice(&[number]);
        call
    }

    fn pool_that_holds(messages: u64, bytes: u64) -> IngressPool {
        let pool = pool(messages, bytes);
        pool.hold_back(|signed| signed.envelope.len() == 7);
        pool
    }

    fn taken(pool: &IngressPool) -> Vec<u8> {
        pool.take(Time(0), 10_000, 10).iter().map(|call| call.id.0[0]).collect()
    }

    #[test]
    fn held_call_is_not_offered_until_released() {
        let pool = pool_that_holds(100, 1_000_000);
        submit(&pool, install(1)).unwrap();
        submit(&pool, call(2, 8, 9)).unwrap();
        assert_eq!(submit(&pool, install(1)), Ok(SubmitOutcome::Already));
        let (first, second) = (IngressId([1; 32]), IngressId([2; 32]));
        assert_eq!(pool.next_held(PATIENCE), NextHeld::Call(first));
        assert!(pool.waiting(&first).is_some());
        let beyond = pool.count_beyond(&BTreeSet::from([second]), 1);
        assert_eq!(beyond, 0, "it is no reason for a block");
        let offered = pool.offer(Time(0), Time(0), 10_000, 10, &BTreeSet::new());
        assert_eq!(offered.iter().map(|name| name.id).collect::<Vec<_>>(), [second]);
        assert_eq!(taken(&pool), [2]);

        pool.release(&first);
        pool.release(&first);
        assert_eq!(taken(&pool), [1]);
        pool.release(&first);
        assert_eq!(pool.status(), PoolStatus::default());

        // What a block of another node held is nothing to get ready for.
        submit(&pool, install(3)).unwrap();
        submit(&pool, install(4)).unwrap();
        let (third, fourth) = (IngressId([3; 32]), IngressId([4; 32]));
        pool.remove(&[CallName::for_envelope(third, &install(3).signed)], 1);
        assert_eq!(pool.next_held(PATIENCE), NextHeld::Call(fourth));
        pool.release(&third);
        assert_eq!(taken(&pool), [0; 0]);
        pool.close();
        assert_eq!(pool.next_held(PATIENCE), NextHeld::Closing);
    }

    #[test]
    fn calls_are_held_back_in_bounds_of_number_of_canister_and_of_time() {
        let pool = pool_that_holds(100, 1_000_000);
        for number in 1..=HELD_MAX as u8 {
            submit(&pool, install(number)).unwrap();
        }
        submit(&pool, install(99)).unwrap();
        assert_eq!(taken(&pool), [99], "the one too many");
        pool.release(&IngressId([1; 32]));
        let same = TakenCall { id: IngressId([50; 32]), ..install(2) };
        submit(&pool, same).unwrap();
        assert_eq!(taken(&pool), [1, 50], "a canister has one call held back");
        for held in pool.inner.lock().held.iter_mut().take(2) {
            held.since = Instant::now().checked_sub(HELD_FOR).unwrap();
        }
        assert_eq!(taken(&pool), [2, 3], "they were held for long enough");
        assert_eq!(pool.next_held(PATIENCE), NextHeld::Call(IngressId([4; 32])));
    }

    #[test]
    fn nothing_is_held_back_in_a_pool_that_is_half_full() {
        for (pool, size) in [(pool_that_holds(4, 1_000_000), 8), (pool_that_holds(99, 2_000), 600)]
        {
            submit(&pool, install(1)).unwrap();
            assert_eq!(taken(&pool), [0; 0]);
            submit(&pool, call(2, size, 9)).unwrap();
            submit(&pool, call(3, size, 9)).unwrap();
            assert!(taken(&pool).contains(&1), "others need its room");
            assert!(pool.inner.lock().held.is_empty());
        }
    }

    #[test]
    fn refusing_keeps_waiting_calls() {
        let pool = pool(10, 100_000);
        submit(&pool, call(1, 0, 9)).unwrap();
        pool.health().refuse(Cause::Disk, "the disk is full".into());
        assert_eq!(
            submit(&pool, call(2, 0, 9)),
            Err(PoolRefusal::Closed("the disk is full".into()))
        );
        pool.health().withdraw(Cause::Disk);
        assert_eq!(submit(&pool, call(2, 0, 9)), Ok(SubmitOutcome::New));
        assert_eq!(pool.status().messages, 2);
    }
}
