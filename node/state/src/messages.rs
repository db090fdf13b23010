//! Messages between canisters: calls and their responses, as a state and its snapshots share them.
//! This module must not know where a message waits, nor what it does.

use std::ops::Deref;
use std::sync::Arc;

use ic_principal::Principal;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{CanisterId, Cycles, Ingress, Reject, StoredPayload, Time, state_heap};

/// Bytes accounted for a message between canisters in addition to its payload.
pub const MESSAGE_OVERHEAD_BYTES: u64 = 256;

/// A value shared between a state and its snapshots; stored as if it were owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateArc<T>(Arc<T>);

impl<T> StateArc<T> {
    /// Shares `value`, which is moved to the state's heap; data that it points to stays where it
    /// is.
    pub fn new(value: T) -> Self {
        let _here = state_heap::enter();
        Self(Arc::new(value))
    }
}

impl<T> Deref for StateArc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> StateArc<T> {
    /// The value itself; copied only when a snapshot still holds it.
    pub fn take(self) -> T {
        Arc::unwrap_or_clone(self.0)
    }
}

impl<T: Serialize> Serialize for StateArc<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for StateArc<T> {
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

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same, in the state's heap.
    pub fn in_state_heap(self) -> Self {
        match self {
            Self::Reply(bytes) => Self::Reply(state_heap::move_bytes(bytes)),
            Self::Reject(reject) => {
                Self::Reject(Reject { message: state_heap::move_text(reject.message), ..reject })
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
    /// Its result.
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

/// A message whose payload can be kept in a file while the rest of it waits.
pub trait Carrier: Clone {
    /// The name of the method and the argument; or nothing, and the reply or the text of the
    /// reject.
    fn parts(&self) -> [&[u8]; 2];

    /// The message with a payload of nothing, in the state's heap.
    fn emptied(&self) -> Self;

    /// Puts a payload into an emptied message; `None` if it cannot be its own.
    fn filled(self, name: Vec<u8>, rest: Vec<u8>) -> Option<Self>;

    /// Whether it is of a call with a guaranteed response.
    fn is_guaranteed(&self) -> bool;

    /// Bytes of the payload.
    fn payload_bytes(&self) -> u64 {
        self.parts().iter().map(|part| part.len() as u64).sum()
    }

    /// The message whose payload was in a file of this content; `None` if the content does not fit
    /// the message.
    fn with_content(self, mut content: Vec<u8>, payload: &StoredPayload) -> Option<Self> {
        let name_bytes = usize::try_from(payload.name_bytes).ok()?;
        if name_bytes == 0 {
            return self.filled(Vec::new(), content);
        }
        let rest = state_heap::within(|| content.get(name_bytes..).map(<[u8]>::to_vec))?;
        content.truncate(name_bytes);
        self.filled(content, rest)
    }
}

impl Carrier for CallRequest {
    fn parts(&self) -> [&[u8]; 2] {
        [self.method_name.as_bytes(), &self.arg]
    }

    fn is_guaranteed(&self) -> bool {
        self.deadline.is_none()
    }

    fn emptied(&self) -> Self {
        Self { method_name: String::new(), arg: Vec::new(), ..*self }
    }

    fn filled(self, name: Vec<u8>, arg: Vec<u8>) -> Option<Self> {
        Some(Self { method_name: String::from_utf8(name).ok()?, arg, ..self })
    }
}

impl Carrier for Ingress {
    fn parts(&self) -> [&[u8]; 2] {
        [self.method_name.as_bytes(), &self.arg]
    }

    fn is_guaranteed(&self) -> bool {
        false
    }

    fn emptied(&self) -> Self {
        let sender_info = state_heap::within(|| self.sender_info.clone());
        Self { method_name: String::new(), arg: Vec::new(), sender_info, ..*self }
    }

    fn filled(self, name: Vec<u8>, arg: Vec<u8>) -> Option<Self> {
        Some(Self { method_name: String::from_utf8(name).ok()?, arg, ..self })
    }
}

impl Carrier for CallResponse {
    fn parts(&self) -> [&[u8]; 2] {
        match &self.payload {
            Payload::Reply(bytes) => [&[], bytes],
            Payload::Reject(reject) => [&[], reject.message.as_bytes()],
        }
    }

    fn is_guaranteed(&self) -> bool {
        self.deadline.is_none()
    }

    fn emptied(&self) -> Self {
        let payload = match &self.payload {
            Payload::Reply(_) => Payload::Reply(Vec::new()),
            Payload::Reject(reject) => {
                Payload::Reject(Reject { message: String::new(), ..*reject })
            }
        };
        Self { payload, ..*self }
    }

    fn filled(self, name: Vec<u8>, rest: Vec<u8>) -> Option<Self> {
        if !name.is_empty() {
            return None;
        }
        let payload = match self.payload {
            Payload::Reply(_) => Payload::Reply(rest),
            Payload::Reject(reject) => {
                let message = String::from_utf8(rest).ok()?;
                Payload::Reject(Reject { message, ..reject })
            }
        };
        Some(Self { payload, ..self })
    }
}
