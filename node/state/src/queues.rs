//! The queues that messages wait in until their canister executes them.
//!
//! There are no output queues: a call goes from the outcome of the message that made it straight
//! into the callee's input queue when the outcomes of an iteration are merged, and its answer is
//! returned the same way. The bound of an output slot applies at the caller instead: every call
//! holds a [`crate::Callback`] until its answer ran, and a caller may hold at most `queue_slots` of
//! them towards one callee. So a queue never holds more than `queue_slots` requests of one sender,
//! and never more responses than there are callbacks.
//!
//! Ingress, responses and requests are three classes served in turn; within requests the senders
//! are served in turn. Order is kept per pair of canisters. Every message has a number that no
//! other message of the subnet ever has, and numbers rise; so the oldest has the lowest.
//!
//! Where a message is stored: docs/internals/durability.md, "Messages that wait". The choice
//! between the canister's record and a record *apart* depends on the queue at the time when the
//! message arrived, and stays, so that all members of a subnet write the same records. Until
//! [`InputQueues::store_payloads`] a payload that is to have a file is *loose*, in the state's
//! heap.
//!
//! Copies share their messages, and all operations take time in the logarithm of the number of
//! waiting messages. This module must not know what a message does.

mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ic_principal::Principal;

use crate::messages::Carrier;
use crate::numbered_map::NumberedMap;
use crate::resting::{rest_map, rest_set, rest_vec};
use crate::{
    CallRequest, CallResponse, CanisterId, Ingress, MESSAGE_OVERHEAD_BYTES, StateArc,
    StoredPayload, Time, state_heap,
};

pub use record::{MessageError, MessageKind, WaitingMessage};

/// Largest message, as accounted, that is part of its canister's record.
pub const WHOLE_BYTES_MAX: u64 = 8 << 10;
/// Maximum sum of the messages in one canister's record, as accounted.
pub const WHOLE_BYTES_SUM_MAX: u64 = 256 << 10;

const _: () = assert!(MESSAGE_OVERHEAD_BYTES < WHOLE_BYTES_MAX, "an empty message is small");
const _: () = assert!(WHOLE_BYTES_MAX <= WHOLE_BYTES_SUM_MAX, "a record has room for a message");

/// Whether a payload of `payload_bytes` bytes is too large for a record.
pub fn is_large(payload_bytes: u64) -> bool {
    payload_bytes.saturating_add(MESSAGE_OVERHEAD_BYTES) > WHOLE_BYTES_MAX
}

/// The next input of a canister from its queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// From a user.
    Ingress(PoppedMessage<Ingress>),
    /// From a canister.
    Request(PoppedMessage<CallRequest>),
    /// The response to a call that the canister made.
    Response(PoppedMessage<CallResponse>),
}

/// A message taken from a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoppedMessage<T> {
    /// Its number.
    pub number: u64,
    message: StateArc<T>,
    /// The file of its payload, if there is one.
    pub payload: Option<StateArc<StoredPayload>>,
}

impl<T: Carrier> PoppedMessage<T> {
    /// The message without its payload, if that is in a file.
    pub fn message(&self) -> &T {
        &self.message
    }

    /// Bytes of the payload, in the message or in a file.
    pub fn payload_bytes(&self) -> u64 {
        self.payload.as_ref().map_or_else(|| self.message.payload_bytes(), |payload| payload.bytes)
    }

    /// The message with its payload, which `read` loads if it is in a file.
    ///
    /// # Errors
    /// Those of `read`; `None` if what was read cannot be the message's.
    pub fn load<E>(
        self,
        read: impl FnOnce(&StoredPayload) -> Result<Vec<u8>, E>,
    ) -> Result<Option<T>, E> {
        let message = self.message.take();
        match &self.payload {
            Some(payload) => Ok(message.with_content(read(payload)?, payload)),
            None => Ok(Some(message)),
        }
    }
}

/// Number of a message apart that went, and how long the file is that it left behind.
pub type GoneMessage = (u64, Option<u64>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting<T> {
    message: StateArc<T>,
    /// The file of its payload, if there is one; then the message has none.
    payload: Option<StateArc<StoredPayload>>,
    /// Whether it has a record of its own.
    is_apart: bool,
}

impl<T: Carrier> Waiting<T> {
    fn new(message: StateArc<T>, is_apart: bool) -> Self {
        Self { message, payload: None, is_apart }
    }

    /// Bytes of the payload that should be in a file and is not.
    fn loose_bytes(&self) -> u64 {
        match &self.payload {
            Some(_) => 0,
            None => Some(self.message.payload_bytes()).filter(|b| is_large(*b)).unwrap_or(0),
        }
    }

    fn file_bytes(&self) -> Option<u64> {
        self.payload.as_ref().map(|payload| payload.bytes)
    }

    fn into_popped(self, number: u64) -> PoppedMessage<T> {
        PoppedMessage { number, message: self.message, payload: self.payload }
    }

    /// Bytes the message takes in a queue; `bytes` of its payload are in memory.
    fn accounted(&self, bytes: u64) -> u64 {
        bytes + self.file_bytes().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Responses,
    Ingress,
    Requests,
}

/// Everything waiting for one canister.
#[derive(Clone, Debug, Default)]
pub struct InputQueues {
    // Stored data.
    ingress: NumberedMap<Waiting<Ingress>>,
    responses: NumberedMap<Waiting<CallResponse>>,
    requests: NumberedMap<Waiting<CallRequest>>,
    /// Senders with requests waiting, in the order they are served.
    turns: BTreeMap<u64, Principal>,
    /// Class served next: 0 responses, 1 ingress, 2 requests.
    class: u8,

    // Derived data.
    /// Requests by sender; of each the lowest number is served first.
    by_sender: BTreeSet<(Principal, u64)>,
    turn_of: BTreeMap<Principal, u64>,
    next_turn: u64,
    /// Best-effort requests by deadline.
    deadlines: BTreeSet<(Time, u64)>,
    expiries: BTreeSet<(Time, u64)>,
    pub(crate) guaranteed_bytes: u64,
    pub(crate) best_effort_bytes: u64,
    pub(crate) ingress_bytes: u64,
    /// Of messages that are part of the canister's record.
    whole_bytes: u64,
    /// Of payloads in files, and of those of calls with guaranteed responses.
    pub(crate) file_bytes: u64,
    pub(crate) guaranteed_file_bytes: u64,

    loose: BTreeMap<u64, Class>,
    pub(crate) loose_bytes: u64,
    /// Messages apart that went since [`InputQueues::take_gone`].
    gone: Vec<GoneMessage>,
    /// While the canister is being loaded: messages apart whose records are still to come.
    missing: BTreeMap<u64, u8>,
}

impl InputQueues {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.ingress.is_empty() && self.responses.is_empty() && self.requests.is_empty()
    }

    /// Number of messages waiting, of all classes.
    pub fn len(&self) -> u64 {
        (self.ingress.len() + self.responses.len() + self.requests.len()) as u64
    }

    /// Responses waiting, oldest first.
    pub fn responses(&self) -> impl Iterator<Item = &CallResponse> {
        self.responses.values().map(|waiting| &*waiting.message)
    }

    /// Requests waiting, oldest first.
    pub fn requests(&self) -> impl Iterator<Item = &CallRequest> {
        self.requests.values().map(|waiting| &*waiting.message)
    }

    /// Ingress messages waiting, oldest first.
    pub fn ingress(&self) -> impl Iterator<Item = &Ingress> {
        self.ingress.values().map(|waiting| &*waiting.message)
    }

    /// When the first of the ingress messages waited too long.
    pub fn next_ingress_expiry(&self) -> Option<Time> {
        self.expiries.first().map(|(time, _)| *time)
    }

    /// Queues an ingress message under a number above that of every message before.
    pub fn push_ingress(&mut self, number: u64, ingress: StateArc<Ingress>) {
        debug_assert!(self.ingress.last() < Some(number), "ingress message {number} is not last");
        let is_apart = self.place(ingress.accounted_bytes());
        let waiting = Waiting::new(ingress, is_apart);
        self.add_loose(number, Class::Ingress, waiting.loose_bytes());
        self.add_ingress(number, waiting);
    }

    /// Queues a request under a number above that of every message before.
    pub fn push_request(&mut self, number: u64, request: StateArc<CallRequest>) {
        debug_assert!(self.requests.last() < Some(number), "request {number} is not last");
        let sender = request.sender;
        let is_apart = self.place(request.accounted_bytes());
        let waiting = Waiting::new(request, is_apart);
        self.add_loose(number, Class::Requests, waiting.loose_bytes());
        self.add_request(number, waiting);
        if !self.turn_of.contains_key(&sender) {
            self.add_turn(sender);
        }
    }

    /// Queues a response under a number above that of every message before.
    pub fn push_response(&mut self, number: u64, response: StateArc<CallResponse>) {
        debug_assert!(self.responses.last() < Some(number), "response {number} is not last");
        let is_apart = self.place(response.accounted_bytes());
        let waiting = Waiting::new(response, is_apart);
        self.add_loose(number, Class::Responses, waiting.loose_bytes());
        self.add_response(number, waiting);
    }

    /// Puts loose payloads into files: `write` is given a message's number and the parts of its
    /// payload.
    ///
    /// # Errors
    /// Those of `write`; what was written until then stays.
    pub fn store_payloads<E>(
        &mut self,
        mut write: impl FnMut(u64, [&[u8]; 2]) -> Result<StateArc<StoredPayload>, E>,
    ) -> Result<(), E> {
        fn store<T: Carrier, E>(
            queue: &mut NumberedMap<Waiting<T>>,
            number: u64,
            write: &mut impl FnMut(u64, [&[u8]; 2]) -> Result<StateArc<StoredPayload>, E>,
        ) -> Result<(u64, bool), E> {
            let Some(waiting) = queue.get_mut(number) else { return Ok((0, false)) };
            let payload = write(number, waiting.message.parts())?;
            debug_assert_eq!(payload.bytes, waiting.loose_bytes(), "bytes of payload {number}");
            debug_assert!(
                payload.is_sound(number),
                "payload {} of message {number}",
                payload.number
            );
            let stored = (payload.bytes, waiting.message.is_guaranteed());
            waiting.payload = Some(payload);
            waiting.message = StateArc::new(waiting.message.emptied());
            Ok(stored)
        }
        while let Some((number, class)) = self.loose.first_key_value().map(|(n, c)| (*n, *c)) {
            let (bytes, is_guaranteed) = match class {
                Class::Ingress => store(&mut self.ingress, number, &mut write)?,
                Class::Requests => store(&mut self.requests, number, &mut write)?,
                Class::Responses => store(&mut self.responses, number, &mut write)?,
            };
            self.file_bytes += bytes;
            self.guaranteed_file_bytes += if is_guaranteed { bytes } else { 0 };
            self.loose.remove(&number);
        }
        self.loose_bytes = 0;
        Ok(())
    }

    fn add_loose(&mut self, number: u64, class: Class, bytes: u64) {
        if bytes > 0 {
            let _here = state_heap::enter();
            self.loose.insert(number, class);
            self.loose_bytes += bytes;
        }
    }

    /// Takes the next message, the classes in turn.
    pub fn pop(&mut self) -> Option<Input> {
        for _ in 0..3 {
            debug_assert!(self.class < 3, "class {} of three", self.class);
            let class = self.class;
            self.class = (self.class + 1) % 3;
            let input = match class {
                0 => self.pop_response().map(Input::Response),
                1 => self.pop_ingress().map(Input::Ingress),
                _ => self.pop_request().map(Input::Request),
            };
            if input.is_some() {
                return input;
            }
        }
        debug_assert!(self.is_empty(), "{} messages wait and none has its turn", self.len());
        None
    }

    /// Takes the next response, whatever class is due.
    pub fn pop_response(&mut self) -> Option<PoppedMessage<CallResponse>> {
        let (number, response) = self.responses.pop_first()?;
        let bytes = response.accounted(response.message.accounted_bytes());
        subtract(self.class_bytes(response.message.deadline), bytes);
        self.account_removed(number, &response, bytes);
        Some(response.into_popped(number))
    }

    /// Takes the next request or ingress message, whatever class is due; for a canister that takes
    /// nothing any more.
    pub fn pop_call(&mut self) -> Option<Input> {
        self.pop_ingress().map(Input::Ingress).or_else(|| self.pop_request().map(Input::Request))
    }

    fn pop_ingress(&mut self) -> Option<PoppedMessage<Ingress>> {
        self.take_ingress(self.ingress.first()?)
    }

    fn take_ingress(&mut self, number: u64) -> Option<PoppedMessage<Ingress>> {
        let ingress = self.ingress.remove(number)?;
        let was_there = self.expiries.remove(&(ingress.message.ingress_expiry, number));
        debug_assert!(was_there, "ingress message {number} had no entry of its expiry");
        let bytes = ingress.accounted(ingress.message.accounted_bytes());
        subtract(&mut self.ingress_bytes, bytes);
        self.account_removed(number, &ingress, bytes);
        Some(ingress.into_popped(number))
    }

    fn pop_request(&mut self) -> Option<PoppedMessage<CallRequest>> {
        let (turn, sender) = self.turns.first_key_value().map(|(turn, sender)| (*turn, *sender))?;
        let (_, number) = self.by_sender.range((sender, 0)..=(sender, u64::MAX)).next().copied()?;
        let request = self.take_request(number)?;
        // It is last now, if it has more.
        if self.turns.remove(&turn).is_some() {
            self.turn_of.remove(&sender);
            self.add_turn(sender);
        }
        Some(request)
    }

    /// Takes a request out, and its sender's turn with the sender's last.
    fn take_request(&mut self, number: u64) -> Option<PoppedMessage<CallRequest>> {
        let request = self.requests.remove(number)?;
        let (sender, deadline) = (request.message.sender, request.message.deadline);
        let was_there = self.by_sender.remove(&(sender, number));
        debug_assert!(was_there, "request {number} was not among those of {sender}");
        if self.by_sender.range((sender, 0)..=(sender, u64::MAX)).next().is_none()
            && let Some(turn) = self.turn_of.remove(&sender)
        {
            self.turns.remove(&turn);
        }
        if let Some(deadline) = deadline {
            let was_there = self.deadlines.remove(&(deadline, number));
            debug_assert!(was_there, "request {number} had no entry of its deadline");
        }
        let bytes = request.accounted(request.message.accounted_bytes());
        subtract(self.class_bytes(deadline), bytes);
        self.account_removed(number, &request, bytes);
        Some(request.into_popped(number))
    }

    /// Removes the ingress messages that waited too long; payloads in files are not read.
    pub fn remove_expired_ingress(&mut self, now: Time) -> Vec<StateArc<Ingress>> {
        let due = expired(&self.expiries, now);
        due.filter_map(|number| self.take_ingress(number)).map(|taken| taken.message).collect()
    }

    /// Removes the requests whose deadline has passed; payloads in files are not read.
    pub fn remove_expired_requests(&mut self, now: Time) -> Vec<StateArc<CallRequest>> {
        let due = expired(&self.deadlines, now);
        due.filter_map(|number| self.take_request(number)).map(|taken| taken.message).collect()
    }

    /// Moves to the state's heap what is elsewhere; see [`crate::CanisterState`].
    pub(crate) fn rest(&mut self) {
        self.ingress.rest();
        self.responses.rest();
        self.requests.rest();
        rest_map(&mut self.turns);
        rest_set(&mut self.by_sender);
        rest_map(&mut self.turn_of);
        rest_set(&mut self.deadlines);
        rest_set(&mut self.expiries);
        rest_map(&mut self.loose);
        rest_vec(&mut self.gone);
        rest_map(&mut self.missing);
    }

    /// Messages apart that went since this was last asked.
    pub fn take_gone(&mut self) -> Vec<GoneMessage> {
        std::mem::take(&mut self.gone)
    }

    /// All messages apart that wait, each as if it went.
    pub fn apart(&self) -> impl Iterator<Item = GoneMessage> {
        fn apart_in<T: Carrier>(
            queue: &NumberedMap<Waiting<T>>,
        ) -> impl Iterator<Item = GoneMessage> {
            let apart = queue.iter().filter(|(_, waiting)| waiting.is_apart);
            apart.map(|(number, waiting)| (number, waiting.file_bytes()))
        }
        apart_in(&self.ingress).chain(apart_in(&self.responses)).chain(apart_in(&self.requests))
    }

    /// The payloads that are in files.
    pub fn payloads(&self) -> impl Iterator<Item = &StateArc<StoredPayload>> {
        fn payloads_in<T>(
            queue: &NumberedMap<Waiting<T>>,
        ) -> impl Iterator<Item = &StateArc<StoredPayload>> {
            queue.values().filter_map(|waiting| waiting.payload.as_ref())
        }
        payloads_in(&self.ingress)
            .chain(payloads_in(&self.responses))
            .chain(payloads_in(&self.requests))
    }

    /// Whether a message of these bytes is apart; counts those that are not.
    fn place(&mut self, bytes: u64) -> bool {
        let is_apart = bytes > WHOLE_BYTES_MAX || self.whole_bytes + bytes > WHOLE_BYTES_SUM_MAX;
        if !is_apart {
            self.whole_bytes += bytes;
        }
        debug_assert!(
            is_apart || self.whole_bytes <= WHOLE_BYTES_SUM_MAX,
            "{} bytes in the canister's record",
            self.whole_bytes
        );
        is_apart
    }

    fn account_removed<T: Carrier>(&mut self, number: u64, waiting: &Waiting<T>, bytes: u64) {
        if self.loose.remove(&number).is_some() {
            subtract(&mut self.loose_bytes, waiting.loose_bytes());
        }
        let in_file = waiting.file_bytes().unwrap_or(0);
        debug_assert!(in_file == 0 || waiting.is_apart, "message {number} has a file");
        subtract(&mut self.file_bytes, in_file);
        let guaranteed = if waiting.message.is_guaranteed() { in_file } else { 0 };
        subtract(&mut self.guaranteed_file_bytes, guaranteed);
        if waiting.is_apart {
            let _here = state_heap::enter();
            self.gone.push((number, waiting.file_bytes()));
        } else {
            subtract(&mut self.whole_bytes, bytes);
        }
    }

    fn count_file<T: Carrier>(&mut self, waiting: &Waiting<T>) {
        let in_file = waiting.file_bytes().unwrap_or(0);
        self.file_bytes += in_file;
        self.guaranteed_file_bytes += if waiting.message.is_guaranteed() { in_file } else { 0 };
    }

    fn add_ingress(&mut self, number: u64, ingress: Waiting<Ingress>) {
        self.count_file(&ingress);
        self.ingress_bytes += ingress.accounted(ingress.message.accounted_bytes());
        self.expiries.insert((ingress.message.ingress_expiry, number));
        self.ingress.insert(number, ingress);
    }

    fn add_request(&mut self, number: u64, request: Waiting<CallRequest>) {
        self.count_file(&request);
        let (sender, deadline) = (request.message.sender, request.message.deadline);
        let bytes = request.accounted(request.message.accounted_bytes());
        *self.class_bytes(deadline) += bytes;
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, number));
        }
        self.by_sender.insert((sender, number));
        self.requests.insert(number, request);
    }

    fn add_response(&mut self, number: u64, response: Waiting<CallResponse>) {
        self.count_file(&response);
        let bytes = response.accounted(response.message.accounted_bytes());
        *self.class_bytes(response.message.deadline) += bytes;
        self.responses.insert(number, response);
    }

    /// The sender is served after all others.
    fn add_turn(&mut self, sender: Principal) {
        debug_assert!(
            self.turns.last_key_value().is_none_or(|(last, _)| *last < self.next_turn),
            "turn {} was given before",
            self.next_turn
        );
        debug_assert!(!self.turn_of.contains_key(&sender), "{sender} has a turn already");
        self.turns.insert(self.next_turn, sender);
        self.turn_of.insert(sender, self.next_turn);
        self.next_turn += 1;
    }

    fn class_bytes(&mut self, deadline: Option<Time>) -> &mut u64 {
        if deadline.is_some() { &mut self.best_effort_bytes } else { &mut self.guaranteed_bytes }
    }

    /// Checks the invariants between messages. Visits every message that waits. Every number must
    /// be below `next`, and every message must be for `id`.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub(crate) fn check(&self, id: &CanisterId, next: u64) {
        assert!(self.missing.is_empty(), "messages of {id} were not loaded");
        self.ingress.check();
        self.requests.check();
        self.responses.check();
        let mut sums = Self::default();
        let mut last = 0;
        for (number, ingress) in self.ingress.iter() {
            assert!(ingress.message.canister_id == *id, "an ingress message for another than {id}");
            sums.add_ingress(number, ingress.clone());
            last = last.max(number + 1);
        }
        for (number, request) in self.requests.iter() {
            assert!(request.message.receiver == *id, "a request for another than {id}");
            sums.add_request(number, request.clone());
            last = last.max(number + 1);
        }
        for (number, response) in self.responses.iter() {
            assert!(response.message.originator == *id, "a response for another than {id}");
            sums.add_response(number, response.clone());
            last = last.max(number + 1);
        }
        assert!(last <= next, "a message of {id} has a number yet to be given");
        assert_eq!(self.guaranteed_bytes, sums.guaranteed_bytes, "bytes of guaranteed messages");
        assert_eq!(self.best_effort_bytes, sums.best_effort_bytes, "bytes of best-effort messages");
        assert_eq!(self.ingress_bytes, sums.ingress_bytes, "bytes of ingress messages");
        assert_eq!(self.by_sender, sums.by_sender, "requests by sender");
        assert_eq!(self.deadlines, sums.deadlines, "deadlines of requests");
        assert_eq!(self.expiries, sums.expiries, "expiries of ingress messages");
        assert!(self.loose.is_empty() && self.loose_bytes == 0, "payloads of {id} have no files");
        for payload in self.payloads() {
            assert!(payload.is_sound(payload.number) && is_large(payload.bytes), "a payload");
        }
        assert_eq!(self.file_bytes, sums.file_bytes, "bytes in files");
        assert_eq!(self.guaranteed_file_bytes, sums.guaranteed_file_bytes, "guaranteed in files");
        assert_eq!(self.whole_bytes, self.sum_of_whole(), "bytes in the canister's record");
        assert!(self.whole_bytes <= WHOLE_BYTES_SUM_MAX, "too much in the canister's record");
        assert!(
            self.guaranteed_file_bytes <= self.file_bytes,
            "{} bytes of guaranteed messages among {} in files",
            self.guaranteed_file_bytes,
            self.file_bytes
        );
        let senders: BTreeSet<_> = self.by_sender.iter().map(|(sender, _)| *sender).collect();
        assert!(senders.iter().eq(self.turn_of.keys()), "each sender has one turn");
        let turns: BTreeMap<_, _> = self.turns.iter().map(|(turn, who)| (*who, *turn)).collect();
        assert_eq!(self.turn_of, turns, "turns of senders");
        let last = self.turns.last_key_value().map(|(turn, _)| *turn);
        assert!(last < Some(self.next_turn), "turn {last:?} is yet to be given");
        assert!(self.class < 3, "class {} of three", self.class);
    }

    fn sum_of_whole(&self) -> u64 {
        fn bytes_in<T>(queue: &NumberedMap<Waiting<T>>, bytes: impl Fn(&T) -> u64) -> u64 {
            let whole = queue.values().filter(|waiting| !waiting.is_apart);
            whole.map(|waiting| bytes(&waiting.message)).sum()
        }
        bytes_in(&self.ingress, Ingress::accounted_bytes)
            + bytes_in(&self.responses, CallResponse::accounted_bytes)
            + bytes_in(&self.requests, CallRequest::accounted_bytes)
    }
}

/// Takes `bytes` off a sum that counts them.
fn subtract(sum: &mut u64, bytes: u64) {
    assert!(*sum >= bytes, "{bytes} bytes are taken off a sum of {sum}");
    *sum -= bytes;
}

/// Numbers of the entries whose time is before `now`.
fn expired(entries: &BTreeSet<(Time, u64)>, now: Time) -> std::vec::IntoIter<u64> {
    let due = entries.iter().take_while(|(time, _)| *time < now).map(|(_, number)| *number);
    due.collect::<Vec<_>>().into_iter()
}
