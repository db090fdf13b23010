//! Messages on their way to a canister, and the queues they wait in.
//!
//! There are no output queues: a call goes from the outcome of the message that made it straight
//! into the callee's input queue when the outcomes of an iteration are merged, and its answer comes
//! back the same way. What an output slot would bound is bounded at the caller instead: every call
//! holds a [`crate::Callback`] until its answer ran, and a caller may hold at most `queue_slots` of
//! them towards one callee. So a queue never holds more than `queue_slots` requests of one sender,
//! and never more responses than there are callbacks.
//!
//! Ingress, responses and requests are three classes served in turn; within requests the senders
//! are served in turn. Order is kept per pair of canisters. This module must not know what a
//! message does.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;

use ic_principal::Principal;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{CanisterId, Cycles, Ingress, Reject, RequestId, Time, heap};

/// Bytes a message between canisters is accounted with besides its payload.
pub const MESSAGE_OVERHEAD_BYTES: u64 = 256;

/// A value shared between a state and its snapshots; stored as if it were owned.
#[derive(Debug, PartialEq, Eq)]
pub struct Shared<T>(Arc<T>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Shared<T> {
    /// Shares `value`, which lies in the state's heap; what it points to stays where it is.
    pub fn new(value: T) -> Self {
        let _here = heap::enter();
        Self(Arc::new(value))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> Shared<T> {
    /// The value itself; copied only when a snapshot still holds it.
    pub fn take(self) -> T {
        Arc::unwrap_or_clone(self.0)
    }
}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::new)
    }
}

/// A call made and not answered yet, as its caller numbers it. Never used twice by one canister.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallbackId(pub u64);

/// A call from one canister to another (or to the management canister).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRequest {
    /// The calling canister.
    pub sender: CanisterId,
    /// Version of the caller when it called.
    pub sender_version: u64,
    /// The canister called, or the management canister.
    pub receiver: Principal,
    /// Where the answer goes.
    pub callback: CallbackId,
    /// Name of the method called.
    pub method_name: String,
    /// Argument, not decoded.
    #[serde(with = "serde_bytes")]
    pub arg: Vec<u8>,
    /// Cycles attached to the call.
    pub cycles: Cycles,
    /// Set for a best-effort call: when the caller stops waiting.
    pub deadline: Option<Time>,
}

impl CallRequest {
    /// Bytes it takes in a queue.
    pub fn accounted_bytes(&self) -> u64 {
        (self.method_name.len() + self.arg.len()) as u64 + MESSAGE_OVERHEAD_BYTES
    }
}

/// Reply or reject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// The callee replied.
    Reply(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The callee or the system rejected.
    Reject(Reject),
}

impl Payload {
    /// Bytes of the reply or of the reject text.
    pub fn len(&self) -> u64 {
        match self {
            Self::Reply(bytes) => bytes.len() as u64,
            Self::Reject(reject) => reject.message.len() as u64,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same, in the state's heap.
    pub fn kept(self) -> Self {
        match self {
            Self::Reply(bytes) => Self::Reply(heap::kept(bytes)),
            Self::Reject(reject) => {
                Self::Reject(Reject { message: heap::kept_text(reject.message), ..reject })
            }
        }
    }
}

/// The answer to a [`CallRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallResponse {
    /// The canister that called.
    pub originator: CanisterId,
    /// Which of its calls.
    pub callback: CallbackId,
    /// What came of it.
    pub payload: Payload,
    /// Attached cycles that were not accepted.
    pub refund: Cycles,
    /// The call's deadline.
    pub deadline: Option<Time>,
}

impl CallResponse {
    /// Bytes it takes in a queue.
    pub fn accounted_bytes(&self) -> u64 {
        self.payload.len() + MESSAGE_OVERHEAD_BYTES
    }
}

/// What a canister takes from its queues next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// From a user.
    Ingress(Shared<Ingress>),
    /// From a canister.
    Request(Shared<CallRequest>),
    /// The response to a call that the canister made.
    Response(Shared<CallResponse>),
}

/// Everything waiting for one canister.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputQueues {
    ingress: VecDeque<Shared<Ingress>>,
    responses: VecDeque<Shared<CallResponse>>,
    requests: BTreeMap<Principal, VecDeque<Shared<CallRequest>>>,
    /// Senders with requests waiting, in the order they are served.
    turn: VecDeque<Principal>,
    /// Class served next: 0 responses, 1 ingress, 2 requests.
    class: u8,
    guaranteed_bytes: u64,
    best_effort_bytes: u64,
    ingress_bytes: u64,
}

impl InputQueues {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.ingress.is_empty() && self.responses.is_empty() && self.requests.is_empty()
    }

    /// Number of messages waiting, of all classes.
    pub fn len(&self) -> u64 {
        (self.ingress.len()
            + self.responses.len()
            + self.requests.values().map(VecDeque::len).sum::<usize>()) as u64
    }

    /// Responses waiting, oldest first.
    pub fn responses(&self) -> impl Iterator<Item = &CallResponse> {
        self.responses.iter().map(|response| &**response)
    }

    /// Requests waiting, by sender, oldest first.
    pub fn requests(&self) -> impl Iterator<Item = &CallRequest> {
        self.requests.values().flatten().map(|request| &**request)
    }

    /// Ingress messages waiting.
    pub fn ingress(&self) -> impl Iterator<Item = &Ingress> {
        self.ingress.iter().map(|ingress| &**ingress)
    }

    /// Bytes of queued messages of calls with guaranteed responses.
    pub fn guaranteed_bytes(&self) -> u64 {
        self.guaranteed_bytes
    }

    /// Bytes of queued messages of best-effort calls.
    pub fn best_effort_bytes(&self) -> u64 {
        self.best_effort_bytes
    }

    /// Bytes of queued ingress messages.
    pub fn ingress_bytes(&self) -> u64 {
        self.ingress_bytes
    }

    /// Queues an ingress message.
    pub fn push_ingress(&mut self, ingress: Shared<Ingress>) {
        self.ingress_bytes += ingress.accounted_bytes();
        self.ingress.push_back(ingress);
    }

    /// Queues a request.
    pub fn push_request(&mut self, request: Shared<CallRequest>) {
        *self.class_bytes(request.deadline) += request.accounted_bytes();
        let queue = self.requests.entry(request.sender).or_default();
        if queue.is_empty() {
            self.turn.push_back(request.sender);
        }
        queue.push_back(request);
    }

    /// Queues a response.
    pub fn push_response(&mut self, response: Shared<CallResponse>) {
        *self.class_bytes(response.deadline) += response.accounted_bytes();
        self.responses.push_back(response);
    }

    /// Takes the next message, the classes in turn.
    pub fn pop(&mut self) -> Option<Input> {
        for _ in 0..3 {
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
        None
    }

    /// Takes the next response, whatever class is due.
    pub fn pop_response(&mut self) -> Option<Shared<CallResponse>> {
        let response = self.responses.pop_front()?;
        *self.class_bytes(response.deadline) -= response.accounted_bytes();
        Some(response)
    }

    /// Takes the next request or ingress message, whatever class is due; for a canister that takes
    /// nothing any more.
    pub fn pop_call(&mut self) -> Option<Input> {
        self.pop_ingress().map(Input::Ingress).or_else(|| self.pop_request().map(Input::Request))
    }

    fn pop_ingress(&mut self) -> Option<Shared<Ingress>> {
        let ingress = self.ingress.pop_front()?;
        self.ingress_bytes -= ingress.accounted_bytes();
        Some(ingress)
    }

    fn pop_request(&mut self) -> Option<Shared<CallRequest>> {
        let sender = self.turn.pop_front()?;
        let queue = self.requests.get_mut(&sender)?;
        let request = queue.pop_front()?;
        if queue.is_empty() {
            self.requests.remove(&sender);
        } else {
            self.turn.push_back(sender);
        }
        *self.class_bytes(request.deadline) -= request.accounted_bytes();
        Some(request)
    }

    /// Removes one ingress message that waited too long; `None` when it is not waiting here any
    /// more.
    pub fn remove_ingress(&mut self, request_id: &RequestId) -> Option<Shared<Ingress>> {
        let position = self.ingress.iter().position(|ingress| ingress.request_id == *request_id)?;
        let ingress = self.ingress.remove(position)?;
        self.ingress_bytes -= ingress.accounted_bytes();
        Some(ingress)
    }

    /// Removes the requests whose deadline has passed.
    pub fn remove_expired_requests(&mut self, now: Time) -> Vec<Shared<CallRequest>> {
        let mut expired = Vec::new();
        for queue in self.requests.values_mut() {
            queue.retain(|request| {
                let keep = request.deadline.is_none_or(|deadline| deadline >= now);
                if !keep {
                    expired.push(request.clone());
                }
                keep
            });
        }
        self.requests.retain(|_, queue| !queue.is_empty());
        let requests = &self.requests;
        self.turn.retain(|sender| requests.contains_key(sender));
        for request in &expired {
            self.best_effort_bytes -= request.accounted_bytes();
        }
        expired
    }

    /// What must hold between messages, which costs a look at every message that waits.
    ///
    /// # Panics
    /// When it does not hold.
    pub(crate) fn check(&self) {
        let requests = || self.requests.values().flatten();
        let bytes = |is_best_effort: bool| -> u64 {
            let requests =
                requests().filter(|request| request.deadline.is_some() == is_best_effort);
            let responses =
                self.responses.iter().filter(|answer| answer.deadline.is_some() == is_best_effort);
            requests.map(|request| request.accounted_bytes()).sum::<u64>()
                + responses.map(|answer| answer.accounted_bytes()).sum::<u64>()
        };
        assert_eq!(self.guaranteed_bytes, bytes(false), "bytes of guaranteed-response messages");
        assert_eq!(self.best_effort_bytes, bytes(true), "bytes of best-effort messages");
        let ingress: u64 = self.ingress.iter().map(|ingress| ingress.accounted_bytes()).sum();
        assert_eq!(self.ingress_bytes, ingress, "bytes of ingress messages");
        assert!(self.requests.values().all(|queue| !queue.is_empty()), "a sender without requests");
        let mut turn: Vec<_> = self.turn.iter().collect();
        turn.sort_unstable();
        assert!(turn.iter().copied().eq(self.requests.keys()), "each sender has one turn");
        for (sender, queue) in &self.requests {
            assert!(queue.iter().all(|request| request.sender == *sender), "a request of another");
        }
        assert!(self.class < 3, "class {} of three", self.class);
    }

    fn class_bytes(&mut self, deadline: Option<Time>) -> &mut u64 {
        if deadline.is_some() { &mut self.best_effort_bytes } else { &mut self.guaranteed_bytes }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn canister(number: u8) -> Principal {
        Principal::from_slice(&[number, 1])
    }

    fn request(sender: u8, number: u64, deadline: Option<Time>) -> Shared<CallRequest> {
        Shared::new(CallRequest {
            sender: canister(sender),
            sender_version: 0,
            receiver: canister(0),
            callback: CallbackId(number),
            method_name: "m".into(),
            arg: vec![0; 10],
            cycles: 0,
            deadline,
        })
    }

    fn response(number: u64) -> Shared<CallResponse> {
        Shared::new(CallResponse {
            originator: canister(0),
            callback: CallbackId(number),
            payload: Payload::Reply(vec![1, 2, 3]),
            refund: 0,
            deadline: None,
        })
    }

    #[test]
    fn classes_and_senders_are_served_in_turn() {
        let mut queues = InputQueues::default();
        for number in 0..2 {
            queues.push_request(request(1, number, None));
        }
        queues.push_request(request(2, 10, None));
        queues.push_response(response(20));
        queues.push_response(response(21));
        let mut order = Vec::new();
        while let Some(input) = queues.pop() {
            order.push(match input {
                Input::Request(request) => request.callback.0,
                Input::Response(response) => response.callback.0,
                Input::Ingress(_) => unreachable!(),
            });
        }
        assert_eq!(order, [20, 0, 21, 10, 1]);
        assert!(queues.is_empty());
        assert_eq!(queues.guaranteed_bytes(), 0);
    }

    #[test]
    fn expired_requests_leave_and_take_their_bytes_along() {
        let mut queues = InputQueues::default();
        queues.push_request(request(1, 0, Some(Time(5))));
        queues.push_request(request(1, 1, Some(Time(50))));
        queues.push_request(request(2, 2, Some(Time(5))));
        queues.push_request(request(3, 3, None));
        assert_eq!(queues.remove_expired_requests(Time(6)).len(), 2);
        assert_eq!(queues.best_effort_bytes(), request(1, 1, None).accounted_bytes());
        assert_eq!(queues.len(), 2);
        assert!(matches!(queues.pop(), Some(Input::Request(request)) if request.callback.0 == 1));
        assert!(matches!(queues.pop(), Some(Input::Request(request)) if request.callback.0 == 3));
        assert!(queues.pop().is_none());
    }
}
