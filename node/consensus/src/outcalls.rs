//! Outcalls of this node: which requests are open, what it found out, and what the subnet signed.
//!
//! ```text
//! after a round: open requests -> here <- this node's answers, with the memory they hold
//!   alone:     signed at once                            -> ingress pool -> block
//!   of several: shares told to all (`subnet::outcalls`)  -> ingress pool -> block
//! ```
//!
//! An answer is here until the subnet signed it; then it waits in the pool, and here is its digest, by
//! which this node goes on to vouch for it while the request is open. This module must not know how
//! servers are asked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use budget::{Pool, Reservation};
use ic_principal::Principal;
use state::{OutcallAnswer, OutcallId, Time};
use tokio::sync::Notify;

use crate::{IngressPool, certifier::Terms};

/// What agreement knows of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOutcall {
    /// Last block time of an answer.
    pub until: Time,
    /// The one member that asks; none if all do.
    pub node: Option<Principal>,
    /// Most bytes of a reply.
    pub reply_bytes_max: u64,
}

impl OpenOutcall {
    /// Whether this may be the answer, whoever found it out.
    fn is_answered_by(&self, answer: &OutcallAnswer) -> bool {
        self.until == answer.until && answer.is_within(self.reply_bytes_max)
    }
}

/// See the module. Shared by who makes requests and who agrees.
pub struct Outcalls {
    inner: Mutex<Inner>,
    /// What answers of others hold, which this node keeps for them.
    room: Pool,
    /// Where answers wait that the subnet signed.
    pool: OnceLock<Arc<IngressPool>>,
    alone: OnceLock<Terms>,
    pub(crate) news: Notify,
}

#[derive(Default)]
struct Inner {
    open: BTreeMap<OutcallId, OpenOutcall>,
    /// No request of this number or a higher one was made yet.
    next: OutcallId,
    known: BTreeMap<OutcallId, Known>,
}

/// An answer that this node vouches for.
struct Known {
    digest: [u8; 32],
    /// Until the subnet signed it.
    kept: Option<(OutcallAnswer, Reservation)>,
}

impl Outcalls {
    /// No request is open. `room` is the pool of the outcalls.
    pub fn new(room: Pool) -> Self {
        Self {
            inner: Mutex::default(),
            room,
            pool: OnceLock::new(),
            alone: OnceLock::new(),
            news: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is one insertion or removal, or drops what is over.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These requests are open after a round, and the next one has the number `next`. What is known
    /// of others is over.
    pub fn set_open(&self, next: OutcallId, open: BTreeMap<OutcallId, OpenOutcall>) {
        let mut inner = self.lock();
        inner.next = next;
        if inner.open == open {
            return;
        }
        inner.known.retain(|id, _| open.contains_key(id));
        inner.open = open;
        if let Some(pool) = self.pool.get() {
            pool.keep_answers(|id| inner.open.contains_key(&id));
        }
        drop(inner);
        self.news.notify_one();
    }

    /// What this node found out, with the memory that it holds.
    pub fn answer(&self, answer: OutcallAnswer, held: Reservation) {
        let id = answer.id;
        if !self.keep(answer, held) {
            return;
        }
        match self.alone.get() {
            Some(terms) => self.sign_alone(id, terms),
            None => self.news.notify_one(),
        }
    }

    /// Answers that the subnet signed wait in this pool from now on.
    pub(crate) fn submit_to(&self, pool: Arc<IngressPool>) {
        let _ = self.pool.set(pool);
    }

    /// Nobody else signs: this node's share is the signature.
    pub(crate) fn decide_alone(&self, pool: Arc<IngressPool>, terms: Terms) {
        self.submit_to(pool);
        let _ = self.alone.set(terms);
    }

    fn sign_alone(&self, id: OutcallId, terms: &Terms) {
        let Some((_, term)) = terms.newest() else { return };
        let (Some(own), Some(digest)) = (&term.share, self.digest(id)) else { return };
        let share = own.sign(&OutcallAnswer::message(&digest));
        match nidkg::combine(&term.committee, &BTreeMap::from([(own.index, share)])) {
            Ok(signature) => {
                self.signed(id, &signature.0);
            }
            Err(error) => tracing::error!(%error, "an answer to an outcall cannot be signed"),
        }
    }

    /// Takes an answer of the one member that was to ask, if there is room for it. Whether it is
    /// known now.
    pub(crate) fn adopt(&self, answer: OutcallAnswer) -> bool {
        let id = answer.id;
        match self.room.try_reserve(answer.payload.len()) {
            Ok(held) => self.keep(answer, held) || self.digest(id).is_some(),
            Err(_) => self.digest(id).is_some(),
        }
    }

    /// The first answer counts, and one of a request that is open alone. Whether it is kept.
    fn keep(&self, answer: OutcallAnswer, held: Reservation) -> bool {
        let digest = answer.digest();
        let mut inner = self.lock();
        let is_answer = inner.open.get(&answer.id).is_some_and(|open| open.is_answered_by(&answer));
        if !is_answer || inner.known.contains_key(&answer.id) {
            return false;
        }
        inner.known.insert(answer.id, Known { digest, kept: Some((answer, held)) });
        true
    }

    /// The subnet signed the answer that this node knows: it waits for a block from here on. Whether
    /// it came to be so now.
    pub(crate) fn signed(&self, id: OutcallId, signature: &[u8; 48]) -> bool {
        // Held until it is submitted: what is open no more is not taken in again.
        let mut inner = self.lock();
        let kept = inner.known.get_mut(&id).and_then(|known| known.kept.take());
        let (Some((answer, held)), Some(pool)) = (kept, self.pool.get()) else { return false };
        pool.submit_answer(&answer, signature, held);
        drop(inner);
        pool.tell();
        true
    }

    /// The members signed that they do not agree. Whether that waits for a block from here on.
    pub(crate) fn signed_divergence(&self, answer: &OutcallAnswer, signature: &[u8; 48]) -> bool {
        let mut inner = self.lock();
        let is_open = inner.open.get(&answer.id).is_some_and(|open| open.is_answered_by(answer));
        let Some(pool) = self.pool.get().filter(|_| is_open) else { return false };
        // What was found out is of no use any more, and its room is.
        drop(inner.known.get_mut(&answer.id).and_then(|known| known.kept.take()));
        let Ok(held) = self.room.try_reserve(answer.payload.len()) else { return false };
        pool.submit_answer(answer, signature, held);
        drop(inner);
        pool.tell();
        true
    }

    /// Of the answer that this node knows.
    pub(crate) fn digest(&self, id: OutcallId) -> Option<[u8; 32]> {
        self.lock().known.get(&id).map(|known| known.digest)
    }

    /// The answer itself, while the subnet did not sign it.
    pub(crate) fn kept(&self, id: OutcallId) -> Option<OutcallAnswer> {
        let inner = self.lock();
        inner.known.get(&id)?.kept.as_ref().map(|(answer, _)| answer.clone())
    }

    /// The requests that are open.
    pub(crate) fn open(&self) -> BTreeMap<OutcallId, OpenOutcall> {
        self.lock().open.clone()
    }

    /// The number of the next one.
    pub(crate) fn next(&self) -> OutcallId {
        self.lock().next
    }

    /// One of them.
    pub(crate) fn open_one(&self, id: OutcallId) -> Option<OpenOutcall> {
        self.lock().open.get(&id).copied()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limits::Limits;
    use nidkg::{Committee, SecretShare};
    use rand::{SeedableRng as _, rngs::StdRng};
    use state::{Height, Payload};

    use super::*;
    use crate::certifier::Term;

    fn one() -> (Committee, SecretShare) {
        let (committee, mut shares) = nidkg::deal(1, 1, &mut StdRng::seed_from_u64(1)).unwrap();
        (committee, shares.remove(0))
    }

    fn answer(id: u64, reply: &[u8]) -> OutcallAnswer {
        let payload = Payload::Reply(reply.to_vec());
        OutcallAnswer { id: OutcallId(id), until: Time(9), payload }
    }

    fn open(ids: impl IntoIterator<Item = u64>) -> BTreeMap<OutcallId, OpenOutcall> {
        ids.into_iter()
            .map(|id| {
                (OutcallId(id), OpenOutcall { until: Time(9), node: None, reply_bytes_max: 80 })
            })
            .collect()
    }

    #[test]
    fn a_node_alone_signs_its_first_answer_to_what_is_open_and_nothing_else() {
        let room = Pool::standalone("outcalls", 1_000);
        let outcalls = Outcalls::new(room.clone());
        let pool = Arc::new(IngressPool::new(&Limits::derive(512 << 20).unwrap().consensus));
        let (committee, share) = one();
        let key = committee.public_key;
        let term = Term { committee, share: Some(share), members: vec![] };
        outcalls.decide_alone(pool.clone(), Terms::new(Height(0), term));
        outcalls.answer(answer(1, b"early"), room.try_reserve(100).unwrap());
        outcalls.set_open(OutcallId(3), open([1, 2]));
        outcalls.answer(answer(1, b"first"), room.try_reserve(100).unwrap());
        outcalls.answer(answer(1, b"second"), room.try_reserve(100).unwrap());
        let other_end = OutcallAnswer { until: Time(10), ..answer(2, b"later") };
        outcalls.answer(other_end, room.try_reserve(100).unwrap());
        assert_eq!(room.used_bytes(), 100, "one waits");
        let taken = pool.take(Time(5), 1_000, 10);
        assert_eq!(taken.len(), 1);
        let (read, signature) = OutcallAnswer::read(&taken[0].signed).unwrap();
        assert_eq!((&read, taken[0].id), (&answer(1, b"first"), read.ingress_id()));
        assert!(nidkg::verify(&key, &OutcallAnswer::message(&read.digest()), &signature));
        drop(taken);
        assert_eq!(room.used_bytes(), 0, "and its memory went with it");
        outcalls.set_open(OutcallId(3), open([2]));
        assert_eq!(outcalls.digest(OutcallId(1)), None);
    }

    #[test]
    fn what_is_signed_leaves_the_pool_with_its_request_and_does_not_come_again() {
        let room = Pool::standalone("outcalls", 1_000);
        let outcalls = Outcalls::new(room.clone());
        let pool = Arc::new(IngressPool::new(&Limits::derive(512 << 20).unwrap().consensus));
        outcalls.submit_to(pool.clone());
        outcalls.set_open(OutcallId(3), open([1, 2]));
        assert!(outcalls.adopt(answer(1, b"one")) && outcalls.adopt(answer(2, b"two")));
        assert!(outcalls.signed(OutcallId(1), &[1; 48]) && outcalls.signed(OutcallId(2), &[1; 48]));
        outcalls.set_open(OutcallId(3), open([2]));
        assert_eq!(room.used_bytes(), 3, "the first is over");
        let none = OutcallAnswer::no_consensus(OutcallId(1), Time(9));
        assert!(!outcalls.signed_divergence(&none, &[1; 48]));
        assert!(!outcalls.signed(OutcallId(1), &[1; 48]));
        let taken = pool.take(Time(5), 1_000, 10);
        assert_eq!(
            taken.iter().map(|call| call.id).collect::<Vec<_>>(),
            [answer(2, b"two").ingress_id()]
        );
    }

    #[test]
    fn an_answer_over_the_bounds_of_its_request_is_not_signed() {
        let outcalls = Outcalls::new(Pool::standalone("outcalls", 100_000));
        outcalls.set_open(OutcallId(3), open([1, 2]));
        assert!(!outcalls.adopt(answer(1, &[1; 81])));
        let mut reject = OutcallAnswer::timed_out();
        reject.error_code = state::ErrorCode(536);
        let payload = Payload::Reject(reject);
        assert!(!outcalls.adopt(OutcallAnswer { payload, ..answer(1, b"") }));
        assert_eq!(outcalls.digest(OutcallId(1)), None);
        assert!(outcalls.adopt(answer(1, &[1; 80])));
    }

    #[test]
    fn an_answer_of_another_member_needs_room() {
        let room = Pool::standalone("outcalls", 100);
        let outcalls = Outcalls::new(room.clone());
        outcalls.set_open(OutcallId(3), open([1, 2]));
        assert!(outcalls.adopt(answer(1, &[1; 80])));
        assert!(!outcalls.adopt(answer(2, &[1; 80])), "there is none");
        assert!(!outcalls.adopt(answer(3, &[1; 10])), "nobody asked");
        assert!(outcalls.adopt(answer(1, &[2; 10])), "known already");
        assert_eq!(outcalls.kept(OutcallId(1)), Some(answer(1, &[1; 80])));
        outcalls.set_open(OutcallId(3), open([2]));
        assert_eq!(room.used_bytes(), 0);
    }
}
