//! Outcalls of this node: open requests, this node's answers, and answers that the subnet signed.
//!
//! An answer is here until the subnet signed it: alone at once, with several members by shares
//! (`subnet::outcalls`). Then it waits in the ingress pool, and its digest stays here, by which
//! this node continues to vouch for it while the request is open.
//!
//! This node needs no room to vouch for an answer of another member: the digest is enough, and the
//! member that made the request has the answer. The answer is kept for a block of this node's if
//! there is room that is not needed otherwise: at most a quarter of the room, and less as soon as
//! this node's own requests need it. With several askers, an asker has no more room than another
//! one that wants some, and the oldest answer is dropped first.
//!
//! This module must not know how servers are asked.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use accounting::{Pool, Reservation};
use commonware_utils::sync::Mutex;
use ic_principal::Principal;
use state::{OutcallAnswer, OutcallId, Time};
use tokio::sync::Notify;

use crate::{IngressPool, certifier::CommitteeSchedule};

/// Answers of other members use at most the room divided by this.
const SHARE_DENOMINATOR: u64 = 4;

/// A request as consensus knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOutcall {
    /// Last block time of an answer.
    pub until: Time,
    /// The one member that asks; none if all do, or while that member is not chosen.
    pub node: Option<Principal>,
    /// Most bytes of a reply.
    pub reply_bytes_max: u64,
}

impl OpenOutcall {
    /// Whether this may be the answer, from any member.
    fn is_answered_by(&self, answer: &OutcallAnswer) -> bool {
        self.until == answer.until && answer.is_within(self.reply_bytes_max)
    }
}

/// Open requests and their answers. Shared by the task that makes requests and the one that agrees.
pub struct OutcallAnswers {
    inner: Mutex<Inner>,
    /// Memory of the answers of others that this node keeps.
    room: Pool,
    /// Where answers wait that the subnet signed.
    pool: OnceLock<Arc<IngressPool>>,
    alone: OnceLock<CommitteeSchedule>,
    pub(crate) work_available: Notify,
}

#[derive(Default)]
struct Inner {
    open: BTreeMap<OutcallId, OpenOutcall>,
    /// No request of this number or a higher one was made yet.
    next: OutcallId,
    known: BTreeMap<OutcallId, VouchedAnswer>,
    /// Answers of others that were kept.
    adopted: u64,
}

struct VouchedAnswer {
    digest: [u8; 32],
    /// Until the subnet signed it, or others needed its room.
    kept: Option<StoredAnswer>,
    /// The subnet signed something: no answer is kept any more.
    is_over: bool,
}

struct StoredAnswer {
    answer: OutcallAnswer,
    held: Reservation,
    /// None: this node asked.
    adopted: Option<ForeignAnswer>,
}

/// Whose answer it is, and how many were kept before.
#[derive(Clone, Copy)]
struct ForeignAnswer {
    asker: Principal,
    number: u64,
}

impl Inner {
    fn foreign_answers(&self) -> impl Iterator<Item = (OutcallId, ForeignAnswer, u64)> {
        self.known.iter().filter_map(|(id, known)| {
            let kept = known.kept.as_ref()?;
            Some((*id, kept.adopted?, kept.held.bytes()))
        })
    }

    fn drop_answer(&mut self, id: OutcallId) {
        if let Some(known) = self.known.get_mut(&id) {
            known.kept = None;
        }
    }

    /// Room for an answer of another member, if some is free or another asker has at least as much.
    fn reserve_for(&mut self, room: &Pool, asker: Principal, bytes: u64) -> Option<Reservation> {
        let mut shares: BTreeMap<Principal, AskerUsage> = BTreeMap::new();
        for (id, adopted, bytes) in self.foreign_answers() {
            let share = shares.entry(adopted.asker).or_default();
            share.bytes += bytes;
            share.oldest.insert(adopted.number, (id, bytes));
        }
        let mut others = shares.values().map(|share| share.bytes).sum::<u64>();
        let own = shares.remove(&asker).map_or(0, |share| share.bytes) + bytes;
        let (most, mut free, mut gone) =
            (room.cap_bytes() / SHARE_DENOMINATOR, room.free_bytes(), vec![]);
        while others + bytes > most || free < bytes {
            let has_most =
                shares.values_mut().filter(|share| share.bytes >= own).max_by_key(|share| {
                    (share.bytes, share.oldest.keys().next().copied().map(Reverse))
                });
            let share = has_most?;
            let (_, (id, bytes)) = share.oldest.pop_first()?;
            share.bytes -= bytes;
            (others, free) = (others - bytes, free + bytes);
            gone.push(id);
        }
        gone.into_iter().for_each(|id| self.drop_answer(id));
        room.try_reserve(bytes).ok()
    }
}

#[derive(Default)]
struct AskerUsage {
    bytes: u64,
    oldest: BTreeMap<u64, (OutcallId, u64)>,
}

impl OutcallAnswers {
    /// No request is open. `room` is the pool of the outcalls.
    pub fn new(room: Pool) -> Self {
        Self {
            inner: Mutex::default(),
            room,
            pool: OnceLock::new(),
            alone: OnceLock::new(),
            work_available: Notify::new(),
        }
    }

    /// Sets the requests that are open after a round; the next one has the number `next`. Answers
    /// to other requests are dropped.
    pub fn set_open(&self, next: OutcallId, open: BTreeMap<OutcallId, OpenOutcall>) {
        let mut inner = self.inner.lock();
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
        self.work_available.notify_one();
    }

    /// Adds an answer of this node, with the memory that it holds.
    pub fn answer(&self, answer: OutcallAnswer, held: Reservation) {
        let (id, digest) = (answer.id, answer.digest());
        let mut inner = self.inner.lock();
        let Some(open) = inner.open.get(&id) else { return };
        if !open.is_answered_by(&answer) {
            tracing::error!(
                request = id.0,
                "what this node found out is no answer to its request, and is dropped"
            );
            return;
        }
        // The first counts.
        if inner.known.contains_key(&id) {
            return;
        }
        let kept = Some(StoredAnswer { answer, held, adopted: None });
        inner.known.insert(id, VouchedAnswer { digest, kept, is_over: false });
        drop(inner);
        match self.alone.get() {
            Some(schedule) => self.sign_alone(id, schedule),
            None => self.work_available.notify_one(),
        }
    }

    /// A request of this node's needs so much of the room: answers of others leave it, if that is
    /// enough, those first that were kept longest.
    pub fn make_room(&self, bytes: u64) {
        let mut inner = self.inner.lock();
        let mut others: Vec<_> = inner.foreign_answers().collect();
        let most = others.iter().map(|(_, _, bytes)| bytes).sum::<u64>();
        if self.room.free_bytes() + most < bytes {
            return;
        }
        others.sort_by_key(|(_, adopted, _)| adopted.number);
        for (id, ..) in others {
            if self.room.free_bytes() >= bytes {
                return;
            }
            inner.drop_answer(id);
        }
    }

    /// Answers that the subnet signed wait in this pool from now on.
    pub(crate) fn set_pool(&self, pool: Arc<IngressPool>) {
        let _ = self.pool.set(pool);
    }

    /// No other member signs: this node's share is the signature.
    pub(crate) fn decide_alone(&self, pool: Arc<IngressPool>, schedule: CommitteeSchedule) {
        self.set_pool(pool);
        let _ = self.alone.set(schedule);
    }

    fn sign_alone(&self, id: OutcallId, schedule: &CommitteeSchedule) {
        let Some((_, signers)) = schedule.newest() else { return };
        let (Some(own), Some(digest)) = (&signers.share, self.digest(id)) else { return };
        let share = own.sign(&OutcallAnswer::message(&digest));
        match nidkg::combine(&signers.committee, &BTreeMap::from([(own.index, share)])) {
            Ok(signature) => {
                self.submit_signed(id, &signature.0);
            }
            Err(error) => tracing::error!(%error, "an answer to an outcall cannot be signed"),
        }
    }

    /// Takes an answer of the one member that was to ask, which is `asker`. Whether it is known
    /// now; it is kept where there is room for it.
    pub(crate) fn add_foreign_answer(&self, answer: OutcallAnswer, asker: Principal) -> bool {
        let (id, digest) = (answer.id, answer.digest());
        let mut inner = self.inner.lock();
        if !inner.open.get(&id).is_some_and(|open| open.is_answered_by(&answer)) {
            return false;
        }
        let new = VouchedAnswer { digest, kept: None, is_over: false };
        let known = inner.known.entry(id).or_insert(new);
        // The first counts. It comes again, and may find room then.
        if known.digest != digest || known.kept.is_some() || known.is_over {
            return true;
        }
        if let Some(held) = inner.reserve_for(&self.room, asker, answer.payload.len()) {
            let adopted = Some(ForeignAnswer { asker, number: inner.adopted });
            inner.adopted += 1;
            if let Some(known) = inner.known.get_mut(&id) {
                known.kept = Some(StoredAnswer { answer, held, adopted });
            }
        }
        true
    }

    /// The subnet signed the answer that this node knows: it waits for a block from here on.
    /// Returns whether it was not signed before.
    pub(crate) fn submit_signed(&self, id: OutcallId, signature: &[u8; 48]) -> bool {
        // Held until it is submitted: what is open no more is not taken in again.
        let mut inner = self.inner.lock();
        let Some(pool) = self.pool.get() else { return false };
        let Some(known) = inner.known.get_mut(&id) else { return false };
        let Some(StoredAnswer { answer, held, .. }) = known.kept.take() else { return false };
        known.is_over = true;
        pool.submit_answer(&answer, signature, held);
        drop(inner);
        pool.notify_listener();
        true
    }

    /// The members signed that they do not agree. Whether that waits for a block from here on.
    pub(crate) fn submit_divergence(&self, answer: &OutcallAnswer, signature: &[u8; 48]) -> bool {
        let mut inner = self.inner.lock();
        let is_open = inner.open.get(&answer.id).is_some_and(|open| open.is_answered_by(answer));
        let Some(pool) = self.pool.get().filter(|_| is_open) else { return false };
        // The answer itself is not needed any more; its memory is reused.
        let bytes = answer.payload.len();
        let kept = inner.known.get_mut(&answer.id).and_then(|known| known.kept.as_mut());
        let of_it = kept.and_then(|kept| {
            kept.held.try_resize(bytes).ok()?;
            kept.held.split(bytes)
        });
        let held = of_it.or_else(|| self.room.try_reserve(bytes).ok());
        let Some(held) = held else { return false };
        if let Some(known) = inner.known.get_mut(&answer.id) {
            (known.kept, known.is_over) = (None, true);
        }
        pool.submit_answer(answer, signature, held);
        drop(inner);
        pool.notify_listener();
        true
    }

    /// Of the answer that this node knows.
    pub(crate) fn digest(&self, id: OutcallId) -> Option<[u8; 32]> {
        self.inner.lock().known.get(&id).map(|known| known.digest)
    }

    /// Calls `read` with the answer itself, while it is kept.
    pub(crate) fn with_stored_answer<T>(
        &self,
        id: OutcallId,
        read: impl FnOnce(&OutcallAnswer) -> T,
    ) -> Option<T> {
        let inner = self.inner.lock();
        inner.known.get(&id)?.kept.as_ref().map(|kept| read(&kept.answer))
    }

    pub(crate) fn open_requests(&self) -> BTreeMap<OutcallId, OpenOutcall> {
        self.inner.lock().open.clone()
    }

    pub(crate) fn next_id(&self) -> OutcallId {
        self.inner.lock().next
    }

    pub(crate) fn open_request(&self, id: OutcallId) -> Option<OpenOutcall> {
        self.inner.lock().open.get(&id).copied()
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
    use crate::certifier::SigningCommittee;

    fn single_node_key() -> (Committee, SecretShare) {
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

    fn asker(number: u8) -> Principal {
        Principal::from_slice(&[number])
    }

    fn stored_ids(outcalls: &OutcallAnswers) -> Vec<u64> {
        let open = outcalls.open_requests();
        let is_kept = |id: &&OutcallId| outcalls.with_stored_answer(**id, |_| ()).is_some();
        open.keys().filter(is_kept).map(|id| id.0).collect()
    }

    #[test]
    fn single_node_signs_first_answer_to_an_open_request() {
        let room = Pool::standalone("outcalls", 1_000);
        let outcalls = OutcallAnswers::new(room.clone());
        let pool = Arc::new(IngressPool::new(&Limits::derive(512 << 20).unwrap().consensus));
        let (committee, share) = single_node_key();
        let key = committee.public_key;
        let signers = SigningCommittee { committee, share: Some(share), members: vec![] };
        outcalls.decide_alone(pool.clone(), CommitteeSchedule::new(Height(0), signers));
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
    fn closed_request_drops_its_signed_answer() {
        let room = Pool::standalone("outcalls", 1_000);
        let outcalls = OutcallAnswers::new(room.clone());
        let pool = Arc::new(IngressPool::new(&Limits::derive(512 << 20).unwrap().consensus));
        outcalls.set_pool(pool.clone());
        outcalls.set_open(OutcallId(3), open([1, 2]));
        assert!(outcalls.add_foreign_answer(answer(1, b"one"), asker(1)));
        assert!(outcalls.add_foreign_answer(answer(2, b"two"), asker(1)));
        assert!(
            outcalls.submit_signed(OutcallId(1), &[1; 48])
                && outcalls.submit_signed(OutcallId(2), &[1; 48])
        );
        outcalls.set_open(OutcallId(3), open([2]));
        assert_eq!(room.used_bytes(), 3, "the first is over");
        let none = OutcallAnswer::no_consensus(OutcallId(1), Time(9));
        assert!(!outcalls.submit_divergence(&none, &[1; 48]));
        assert!(!outcalls.submit_signed(OutcallId(1), &[1; 48]));
        let taken = pool.take(Time(5), 1_000, 10);
        assert_eq!(
            taken.iter().map(|call| call.id).collect::<Vec<_>>(),
            [answer(2, b"two").ingress_id()]
        );
    }

    #[test]
    fn an_answer_over_the_bounds_of_its_request_is_not_signed() {
        let outcalls = OutcallAnswers::new(Pool::standalone("outcalls", 100_000));
        outcalls.set_open(OutcallId(3), open([1, 2]));
        assert!(!outcalls.add_foreign_answer(answer(1, &[1; 81]), asker(1)));
        let mut reject = OutcallAnswer::timed_out();
        reject.error_code = state::ErrorCode(536);
        let payload = Payload::Reject(reject);
        assert!(
            !outcalls.add_foreign_answer(OutcallAnswer { payload, ..answer(1, b"") }, asker(1))
        );
        assert_eq!(outcalls.digest(OutcallId(1)), None);
        assert!(outcalls.add_foreign_answer(answer(1, &[1; 80]), asker(1)));
    }

    #[test]
    fn foreign_answers_use_at_most_a_quarter_of_the_pool() {
        let room = Pool::standalone("outcalls", 400);
        let outcalls = OutcallAnswers::new(room.clone());
        let pool = Arc::new(IngressPool::new(&Limits::derive(512 << 20).unwrap().consensus));
        outcalls.set_pool(pool.clone());
        outcalls.set_open(OutcallId(9), open(1..9));
        assert!(outcalls.add_foreign_answer(answer(1, &[1; 80]), asker(1)));
        assert!(
            outcalls.add_foreign_answer(answer(2, &[1; 80]), asker(1)),
            "there is no room, and it is known"
        );
        assert!(!outcalls.add_foreign_answer(answer(9, &[1; 10]), asker(1)), "nobody asked");
        assert!(outcalls.add_foreign_answer(answer(1, &[2; 10]), asker(1)), "known already");
        assert_eq!(stored_ids(&outcalls), [1]);
        assert_eq!(outcalls.digest(OutcallId(1)), Some(answer(1, &[1; 80]).digest()));
        assert_eq!(outcalls.digest(OutcallId(2)), Some(answer(2, &[1; 80]).digest()));
        // A signature is of no use until the answer is sent again; the member that asked has it
        // meanwhile.
        assert!(!outcalls.submit_signed(OutcallId(2), &[1; 48]));
        assert!(outcalls.submit_signed(OutcallId(1), &[1; 48]));
        drop(pool.take(Time(5), 1_000, 10));
        assert!(outcalls.add_foreign_answer(answer(1, &[1; 80]), asker(1)));
        assert_eq!(room.used_bytes(), 0, "a block has it");
        assert!(outcalls.add_foreign_answer(answer(2, &[2; 80]), asker(1)));
        assert_eq!(room.used_bytes(), 0, "another than the first");
        assert!(outcalls.add_foreign_answer(answer(2, &[1; 80]), asker(1)));
        assert!(outcalls.submit_signed(OutcallId(2), &[1; 48]));
    }

    #[test]
    fn pool_room_is_shared_fairly_between_askers() {
        let outcalls = OutcallAnswers::new(Pool::standalone("outcalls", 400));
        outcalls.set_open(OutcallId(20), open(1..20));
        let adopt = |id, bytes, number| {
            assert!(outcalls.add_foreign_answer(answer(id, &vec![1; bytes]), asker(number)));
        };
        (1..9).for_each(|id| adopt(id, 25, 1));
        assert_eq!(stored_ids(&outcalls), [1, 2, 3, 4]);
        adopt(9, 25, 2);
        adopt(10, 50, 2);
        assert_eq!(
            stored_ids(&outcalls),
            [2, 3, 4, 9],
            "the second would have more than the first"
        );
        adopt(11, 50, 3);
        assert_eq!(stored_ids(&outcalls), [4, 9, 11], "who has most makes room");
        adopt(12, 25, 1);
        adopt(13, 25, 1);
        assert_eq!(stored_ids(&outcalls), [4, 9, 12, 13]);
    }

    #[test]
    fn own_request_evicts_oldest_foreign_answers() {
        let room = Pool::standalone("outcalls", 400);
        let outcalls = OutcallAnswers::new(room.clone());
        outcalls.set_open(OutcallId(9), open(1..9));
        (1..5).for_each(|id| assert!(outcalls.add_foreign_answer(answer(id, &[1; 25]), asker(1))));
        outcalls.answer(answer(5, &[1; 60]), room.try_reserve(60).unwrap());
        outcalls.make_room(400);
        assert_eq!(stored_ids(&outcalls), [1, 2, 3, 4, 5], "it is not enough");
        outcalls.make_room(290);
        assert_eq!(stored_ids(&outcalls), [3, 4, 5]);
        let requests = room.try_reserve(290).unwrap();
        assert!(outcalls.add_foreign_answer(answer(6, &[1; 25]), asker(1)));
        assert_eq!(stored_ids(&outcalls), [3, 4, 5]);
        assert!(outcalls.digest(OutcallId(6)).is_some(), "a full room does not prevent signing");
        drop(requests);
        outcalls.set_open(OutcallId(9), open([2]));
        assert_eq!(room.used_bytes(), 0);
    }

    #[test]
    fn divergence_reuses_the_reservation_of_the_answer() {
        let none = OutcallAnswer::no_consensus(OutcallId(1), Time(9));
        let bytes = none.payload.len();
        for (found, has_room) in [(bytes as usize + 50, true), (10, false)] {
            let room = Pool::standalone("outcalls", found as u64);
            let outcalls = OutcallAnswers::new(room.clone());
            let limits = Limits::derive(512 << 20).unwrap().consensus;
            outcalls.set_pool(Arc::new(IngressPool::new(&limits)));
            let reply_bytes_max = 1_000;
            let one = OpenOutcall { until: Time(9), node: None, reply_bytes_max };
            outcalls.set_open(OutcallId(2), BTreeMap::from([(OutcallId(1), one)]));
            let held = room.try_reserve(found as u64).unwrap();
            outcalls.answer(answer(1, &vec![1; found]), held);
            assert_eq!(outcalls.submit_divergence(&none, &[1; 48]), has_room);
            assert_eq!(stored_ids(&outcalls).is_empty(), has_room);
            assert_eq!(room.used_bytes(), if has_room { bytes } else { found as u64 });
        }
    }
}
