//! How queues are stored: their structure and the small messages in the canister's record, every
//! message apart in a record of its own.
//!
//! Derived data is not stored. Loaded data is validated like any data from a disk: numbers of a
//! class rise, no number is there twice, each sender of a request has one turn, and a record holds
//! the message of the class and canister that its number stands for.

use std::collections::BTreeSet;

use ic_principal::Principal;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer, de, ser::SerializeSeq as _,
    ser::SerializeStruct as _,
};
use thiserror::Error;

use super::{Class, InputQueues, Waiting, is_large};
use crate::messages::Carrier;
use crate::numbered_map::NumberedMap;
use crate::{
    CallRequest, CallResponse, CanisterId, Ingress, NotEncoded, StateArc, StoredPayload,
    encode_record, state_heap,
};

/// A message apart, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingMessage<'a> {
    /// The message, without a payload that is in a file.
    pub kind: MessageKind<'a>,
    /// The file of its payload, if there is one.
    pub payload: Option<&'a StoredPayload>,
}

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind<'a> {
    /// Of a user.
    Ingress(&'a Ingress),
    /// Of a canister.
    Request(&'a CallRequest),
    /// The response to a call of the canister.
    Response(&'a CallResponse),
}

impl WaitingMessage<'_> {
    /// Bytes it takes in a queue.
    pub fn accounted_bytes(&self) -> u64 {
        let bytes = match self.kind {
            MessageKind::Ingress(message) => message.accounted_bytes(),
            MessageKind::Request(message) => message.accounted_bytes(),
            MessageKind::Response(message) => message.accounted_bytes(),
        };
        bytes + self.payload.map_or(0, |payload| payload.bytes)
    }

    /// Its record.
    pub fn encode(&self, number: u64) -> Result<Vec<u8>, NotEncoded> {
        let (what, payload) = (format_args!("message {number}"), self.payload);
        match self.kind {
            MessageKind::Ingress(message) => {
                encode_record(what, &(Class::Ingress as u8, message, payload))
            }
            MessageKind::Request(message) => {
                encode_record(what, &(Class::Requests as u8, message, payload))
            }
            MessageKind::Response(message) => {
                encode_record(what, &(Class::Responses as u8, message, payload))
            }
        }
    }
}

/// Why queues cannot be put together from their records.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the texts say what they are")]
pub enum MessageError {
    #[error("the record of message {0} cannot be decoded: {1}")]
    Undecodable(u64, String),
    #[error("the record of message {0} holds the message of another queue")]
    Foreign(u64),
    #[error("the record of message {0} has a wrong location of its payload")]
    Payload(u64),
    #[error("no canister has message {0}")]
    Unknown(u64),
    #[error("the record of message {0} is missing")]
    Missing(u64),
    #[error("message {0} has a number that is yet to be given")]
    NotGiven(u64),
    #[error("the turns of senders do not fit the requests that wait")]
    Turns,
}

impl InputQueues {
    /// The messages apart that wait, from a number on.
    pub fn apart_from(&self, number: u64) -> impl Iterator<Item = (u64, WaitingMessage<'_>)> {
        fn apart_in<'a, T>(
            queue: &'a NumberedMap<Waiting<T>>,
            from: u64,
            kind: fn(&'a T) -> MessageKind<'a>,
        ) -> impl Iterator<Item = (u64, WaitingMessage<'a>)> {
            let apart = queue.from(from).filter(|(_, waiting)| waiting.is_apart);
            apart.map(move |(number, waiting)| {
                let payload = waiting.payload.as_deref();
                (number, WaitingMessage { kind: kind(&waiting.message), payload })
            })
        }
        apart_in(&self.ingress, number, MessageKind::Ingress)
            .chain(apart_in(&self.responses, number, MessageKind::Response))
            .chain(apart_in(&self.requests, number, MessageKind::Request))
    }

    /// While the canister is loaded: numbers of the messages apart whose records are to come.
    pub fn missing(&self) -> impl Iterator<Item = u64> {
        self.missing.keys().copied()
    }

    /// The record of a message apart, of the canister `id`.
    ///
    /// # Errors
    /// When it is not one that was missing.
    pub fn load_record(
        &mut self,
        id: &CanisterId,
        number: u64,
        bytes: &[u8],
    ) -> Result<(), MessageError> {
        // Indexes too are kept, and are not copied before the canister changes.
        let _here = state_heap::enter();
        let class = self.missing.remove(&number).ok_or(MessageError::Unknown(number))?;
        let (found, rest) = postcard::take_from_bytes::<u8>(bytes)
            .map_err(|error| MessageError::Undecodable(number, error.to_string()))?;
        if found != class {
            return Err(MessageError::Foreign(number));
        }
        let foreign = MessageError::Foreign(number);
        if class == Class::Ingress as u8 {
            let message: Waiting<Ingress> = apart(number, rest)?;
            check(message.message.canister_id == *id, foreign)?;
            self.add_ingress(number, message);
        } else if class == Class::Requests as u8 {
            let message: Waiting<CallRequest> = apart(number, rest)?;
            check(message.message.receiver == *id, foreign)?;
            self.add_request(number, message);
        } else {
            let message: Waiting<CallResponse> = apart(number, rest)?;
            check(message.message.originator == *id, foreign)?;
            self.add_response(number, message);
        }
        Ok(())
    }

    /// All records of messages apart of the canister `id` came; the subnet's next message gets the
    /// number `next_message`.
    ///
    /// # Errors
    /// When they did not come, turns do not fit the requests, a number is yet to be given, or a
    /// message in the canister's record is for another.
    pub fn finish_loading(&self, next_message: u64, id: &CanisterId) -> Result<(), MessageError> {
        if let Some(number) = self.missing.keys().next() {
            return Err(MessageError::Missing(*number));
        }
        let all = receivers(&self.ingress, |message| &message.canister_id)
            .chain(receivers(&self.requests, |message| &message.receiver))
            .chain(receivers(&self.responses, |message| &message.originator));
        for (number, receiver) in all {
            check(number < next_message, MessageError::NotGiven(number))?;
            check(receiver == id, MessageError::Foreign(number))?;
        }
        let mut senders = self.turn_of.keys();
        let mut last = None;
        for (sender, _) in &self.by_sender {
            if last != Some(sender) {
                check(senders.next() == Some(sender), MessageError::Turns)?;
                last = Some(sender);
            }
        }
        check(senders.next().is_none(), MessageError::Turns)
    }
}

/// The receivers of a class, by the numbers of their messages.
fn receivers<T>(
    queue: &NumberedMap<Waiting<T>>,
    receiver: fn(&T) -> &CanisterId,
) -> impl Iterator<Item = (u64, &CanisterId)> {
    queue.iter().map(move |(number, waiting)| (number, receiver(&waiting.message)))
}

fn check(holds: bool, error: MessageError) -> Result<(), MessageError> {
    if holds { Ok(()) } else { Err(error) }
}

fn apart<T: for<'a> Deserialize<'a> + Carrier>(
    number: u64,
    rest: &[u8],
) -> Result<Waiting<T>, MessageError> {
    let decoded = state_heap::within(|| {
        postcard::take_from_bytes::<(T, Option<StateArc<StoredPayload>>)>(rest)
    });
    match decoded {
        Ok(((message, payload), [])) => {
            let here = message.payload_bytes();
            let is_right = match &payload {
                Some(payload) => here == 0 && is_large(payload.bytes) && payload.is_sound(number),
                None => !is_large(here),
            };
            check(is_right, MessageError::Payload(number))?;
            Ok(Waiting { message: StateArc::new(message), payload, is_apart: true })
        }
        Ok(_) => Err(MessageError::Undecodable(number, "bytes follow it".into())),
        Err(error) => Err(MessageError::Undecodable(number, error.to_string())),
    }
}

/// One entry of a queue in the canister's record: the message, or nothing for one that is apart.
#[derive(Deserialize)]
struct Entry<T>(u64, Option<T>);

struct Entries<'a, T>(&'a NumberedMap<Waiting<T>>);

impl<T: Serialize> Serialize for Entries<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entries = serializer.serialize_seq(Some(self.0.len()))?;
        for (number, waiting) in self.0.iter() {
            let whole = (!waiting.is_apart).then_some(&*waiting.message);
            entries.serialize_element(&(number, whole))?;
        }
        entries.end()
    }
}

impl Serialize for InputQueues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut record = serializer.serialize_struct("InputQueues", 5)?;
        record.serialize_field("ingress", &Entries(&self.ingress))?;
        record.serialize_field("responses", &Entries(&self.responses))?;
        record.serialize_field("requests", &Entries(&self.requests))?;
        record.serialize_field("turns", &self.turns.values().collect::<Vec<_>>())?;
        record.serialize_field("class", &self.class)?;
        record.end()
    }
}

#[derive(Deserialize)]
#[serde(rename = "InputQueues")]
struct Record {
    ingress: Vec<Entry<Ingress>>,
    responses: Vec<Entry<CallResponse>>,
    requests: Vec<Entry<CallRequest>>,
    turns: Vec<Principal>,
    class: u8,
}

impl<'de> Deserialize<'de> for InputQueues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let record = Record::deserialize(deserializer)?;
        Self::of_record(record).map_err(de::Error::custom)
    }
}

impl InputQueues {
    fn of_record(record: Record) -> Result<Self, &'static str> {
        let Record { ingress, responses, requests, turns, class } = record;
        if class > 2 {
            return Err("a class of messages that is none");
        }
        let mut queues = Self { class, ..Self::default() };
        let mut numbers = BTreeSet::new();
        queues.fill(&mut numbers, Class::Ingress, ingress, |queues, number, message| {
            queues.whole_bytes += message.accounted_bytes();
            queues.add_ingress(number, inline_message(message));
        })?;
        queues.fill(&mut numbers, Class::Responses, responses, |queues, number, message| {
            queues.whole_bytes += message.accounted_bytes();
            queues.add_response(number, inline_message(message));
        })?;
        queues.fill(&mut numbers, Class::Requests, requests, |queues, number, message| {
            queues.whole_bytes += message.accounted_bytes();
            queues.add_request(number, inline_message(message));
        })?;
        for sender in turns {
            if queues.turn_of.contains_key(&sender) {
                return Err("a sender with two turns");
            }
            queues.add_turn(sender);
        }
        Ok(queues)
    }

    fn fill<T>(
        &mut self,
        numbers: &mut BTreeSet<u64>,
        class: Class,
        entries: Vec<Entry<T>>,
        mut add: impl FnMut(&mut Self, u64, T),
    ) -> Result<(), &'static str> {
        let mut last = None;
        for Entry(number, message) in entries {
            if last >= Some(number) || !numbers.insert(number) {
                return Err("numbers of messages that do not rise");
            }
            last = Some(number);
            match message {
                Some(message) => add(self, number, message),
                None => drop(self.missing.insert(number, class as u8)),
            }
        }
        Ok(())
    }
}

fn inline_message<T: Carrier>(message: T) -> Waiting<T> {
    Waiting::new(StateArc::new(message), false)
}
