//! HTTPS outcalls: requests of canisters to external servers, and the agreed answers.
//!
//! ```text
//! http_request -> Outcall, open in the state -> each member asks the server, transforms
//!              -> OutcallAnswer, signed by the subnet's key -> in a block -> the canister
//! ```
//!
//! An open request is a part of the state, so that every member has it and none loses it. An answer
//! carries the subnet's signature, which takes shares of as many members as agreement does, so any
//! receiver can verify it, alone, in any epoch. It is sent, queued and stored like ingress messages
//! ([`SignedIngress`]), in an envelope of its own form. A request is answered once: the first
//! answer in a block, or the time at which the request ends, removes it from the state.
//!
//! This module must not know how a server is contacted, nor how members agree.

use std::collections::BTreeMap;

use ic_principal::Principal;
use limits::OUTCALL_RESPONSE_BYTES;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    CanisterId, Cycles, ErrorCode, Height, IngressId, MESSAGE_OVERHEAD_BYTES, Origin, Payload,
    Reject, RejectCode, SignedIngress, StateArc, Time, Validity, state_heap,
};

/// Maximum bytes of an untransformed response in addition to its headers and body: types, lengths.
const ENCODING_BYTES_MAX: u64 = 1 << 10;
/// Most bytes of the message of a reject that answers a request.
pub const OUTCALL_REJECT_BYTES_MAX: usize = 8 << 10;

/// Number of an outcall; never used twice by one subnet.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct OutcallId(pub u64);

/// Methods of HTTP that canisters may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutcallMethod {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// PUT, of one member alone.
    Put,
    /// DELETE, of one member alone.
    Delete,
    /// PATCH, of one member alone.
    Patch,
}

impl OutcallMethod {
    /// Whether every member may send it. The others change something each time.
    pub fn is_for_all(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Post)
    }

    /// As written in a request.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Patch => "PATCH",
        }
    }
}

/// The members that make a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Askers {
    /// All of them.
    All,
    /// One, which the randomness of the request's round will choose. Until then no member asks.
    Unassigned,
    /// This one.
    One(Principal),
}

impl Askers {
    /// Whether this member asks.
    pub fn contains(&self, member: &Principal) -> bool {
        match self {
            Self::All => true,
            Self::Unassigned => false,
            Self::One(node) => node == member,
        }
    }

    /// Whether one member asks alone, chosen or not.
    pub fn is_one(&self) -> bool {
        !matches!(self, Self::All)
    }
}

/// The query method of the calling canister that a response goes through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcallTransform {
    /// Name of the method.
    pub method_name: String,
    /// Passed to it along with the response.
    #[serde(with = "serde_bytes")]
    pub context: Vec<u8>,
}

/// A request that a canister waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcall {
    /// The caller that waits.
    pub origin: Origin,
    /// Cycles to return to it: the attached amount beyond the price.
    pub cycles: Cycles,
    /// As the canister wrote it.
    pub url: String,
    /// Of HTTP.
    pub method: OutcallMethod,
    /// Names and values, in their order.
    pub headers: Vec<(String, String)>,
    /// Empty where there is none.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
    /// Most bytes of the server's response, where the canister says so.
    #[serde(with = "asked")]
    pub response_bytes_asked: Option<u64>,
    /// None: the response is taken as it came.
    pub transform: Option<OutcallTransform>,
    /// Last block time of an answer.
    pub until: Time,
    /// The members that ask.
    pub askers: Askers,
    /// At which it was made: no older state knows what the canister was then.
    pub height: Height,
}

impl Outcall {
    /// The canister that asks, whose method the transform is.
    pub fn caller(&self) -> CanisterId {
        self.origin.caller()
    }

    /// Bytes that it is charged for (interface specification, `ic0.cost_http_request`).
    pub fn request_bytes(&self) -> u64 {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len());
        let transform = self.transform.as_ref();
        let transform = transform.map_or(0, |it| it.method_name.len() + it.context.len());
        (self.url.len() + headers.sum::<usize>() + self.body.len() + transform) as u64
    }

    /// Most bytes of the server's response, and of what the transform makes of it.
    pub fn response_bytes_max(&self) -> u64 {
        self.response_bytes_asked.unwrap_or(OUTCALL_RESPONSE_BYTES)
    }

    /// Most bytes of a reply to it.
    pub fn reply_bytes_max(&self) -> u64 {
        let beside = if self.transform.is_some() { 0 } else { ENCODING_BYTES_MAX };
        self.response_bytes_max().saturating_add(beside)
    }

    /// Bytes it takes in the state.
    pub fn accounted_bytes(&self) -> u64 {
        self.request_bytes() + MESSAGE_OVERHEAD_BYTES
    }
}

/// A number of bytes that a canister may ask for, or none, as one number: none is the first that no
/// canister may ask for.
mod asked {
    use limits::OUTCALL_RESPONSE_BYTES;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(asked: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(asked.unwrap_or(OUTCALL_RESPONSE_BYTES + 1))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        Ok(Some(u64::deserialize(from)?).filter(|asked| *asked <= OUTCALL_RESPONSE_BYTES))
    }
}

/// The requests of a subnet that are not answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcalls {
    next: u64,
    open: BTreeMap<OutcallId, StateArc<Outcall>>,
    /// Accounted bytes of those that are open.
    bytes: u64,
}

impl Outcalls {
    /// Takes a request in.
    pub fn add(&mut self, outcall: Outcall) -> OutcallId {
        let id = OutcallId(self.next);
        debug_assert!(
            self.open.last_key_value().is_none_or(|(last, _)| *last < id),
            "outcall {} is open already",
            id.0
        );
        self.next += 1;
        self.bytes += outcall.accounted_bytes();
        state_heap::within(|| self.open.insert(id, StateArc::new(outcall)));
        id
    }

    /// Takes a request out, to be answered.
    pub fn remove(&mut self, id: OutcallId) -> Option<StateArc<Outcall>> {
        let outcall = self.open.remove(&id)?;
        let bytes = outcall.accounted_bytes();
        assert!(self.bytes >= bytes, "outcall {} has {bytes} bytes of {}", id.0, self.bytes);
        self.bytes -= bytes;
        Some(outcall)
    }

    /// Whether a request of this round, which is the last, has no member yet.
    pub(crate) fn has_unassigned_of(&self, height: Height) -> bool {
        let mut of_round = self.open.values().rev().take_while(|outcall| outcall.height == height);
        of_round.any(|outcall| outcall.askers == Askers::Unassigned)
    }

    /// Rounds of the requests that have no member yet.
    pub(crate) fn unassigned_since(&self) -> impl Iterator<Item = Height> + '_ {
        let unassigned = self.open.values().filter(|it| it.askers == Askers::Unassigned);
        unassigned.map(|outcall| outcall.height)
    }

    /// Chooses a member for each request that has none, of this round or of all, by `choose`.
    pub fn assign(&mut self, since: Option<Height>, choose: impl Fn(OutcallId) -> Principal) {
        let is_due = |outcall: &Outcall| {
            outcall.askers == Askers::Unassigned
                && since.is_none_or(|height| outcall.height == height)
        };
        let due: Vec<_> =
            self.open.iter().filter(|(_, outcall)| is_due(outcall)).map(|(id, _)| *id).collect();
        for id in due {
            let Some(outcall) = self.open.remove(&id) else { continue };
            let _here = state_heap::enter();
            let outcall = Outcall { askers: Askers::One(choose(id)), ..outcall.take() };
            self.open.insert(id, StateArc::new(outcall));
        }
    }

    /// Those that no block of the time `now` or later may answer, oldest first.
    pub fn expired(&self, now: Time) -> Vec<OutcallId> {
        let expired = self.open.iter().filter(|(_, outcall)| outcall.until < now);
        expired.map(|(id, _)| *id).collect()
    }

    /// When the first of them ends.
    pub fn next_end(&self) -> Option<Time> {
        self.open.values().map(|outcall| outcall.until).min()
    }

    /// The number of the next request.
    pub fn next(&self) -> OutcallId {
        OutcallId(self.next)
    }

    /// Those that are not answered, oldest first. Copies share what they hold.
    pub fn open(&self) -> &BTreeMap<OutcallId, StateArc<Outcall>> {
        &self.open
    }

    /// Cycles that they hold.
    pub fn cycles(&self) -> impl Iterator<Item = Cycles> + '_ {
        self.open.values().map(|outcall| outcall.cycles)
    }

    /// Bytes they take in the state.
    pub fn accounted_bytes(&self) -> u64 {
        self.bytes
    }

    /// Checks that numbers below the next one and all bytes are counted. Visits every request.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub(crate) fn check(&self) {
        let last = self.open.last_key_value().map(|(id, _)| id.0);
        assert!(last < Some(self.next), "outcall {last:?} has a number yet to be given");
        let bytes = self.open.values().map(|outcall| outcall.accounted_bytes()).sum::<u64>();
        assert_eq!(self.bytes, bytes, "bytes of open outcalls");
    }
}

/// Why a response was not transformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotTransformed {
    /// The canister's reject, which is an answer: it is the same on every node.
    Reject(Reject),
    /// This machine's failure, which is not an answer: another attempt may find it over.
    Trouble(String),
    /// The same, and query workers ended with it: attempts are dear.
    Died(String),
}

/// The result of a request, as the subnet's members agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcallAnswer {
    /// Which request.
    pub id: OutcallId,
    /// Last block time at which it counts: that of the request.
    pub until: Time,
    /// The payload for the canister.
    pub payload: Payload,
}

/// Envelopes of answers begin with it: no CBOR map, and so no client's envelope, does.
const ENVELOPE_BEGINS: [u8; 2] = [0, 1];
const SIGNATURE_BYTES: usize = 48;
/// Begins what is signed: nothing else that is signed with the subnet's key begins so.
const DOMAIN: &[u8] = b"\x16thimble-outcall-answer";
const _: () = assert!(DOMAIN[0] as usize == DOMAIN.len() - 1, "a domain begins with its length");

impl OutcallAnswer {
    /// That no answer of enough members is the same.
    pub fn no_consensus(id: OutcallId, until: Time) -> Self {
        let what = format!(
            "No consensus could be reached. Replicas had different responses. Details: \
             request_id: {}",
            id.0
        );
        Self { id, until, payload: Payload::Reject(Self::reject(RejectCode::SysTransient, what)) }
    }

    /// That none came in time.
    pub fn timed_out() -> Reject {
        Self::reject(RejectCode::SysTransient, "Canister http request timed out")
    }

    /// A reject of the system's.
    pub fn reject(code: RejectCode, message: impl Into<String>) -> Reject {
        let error_code = ErrorCode(code as u16 * 100);
        Reject { code, message: message.into(), error_code }
    }

    /// Whether this answer is allowed for a request whose reply has at most `reply_bytes_max`
    /// bytes.
    pub fn is_within(&self, reply_bytes_max: u64) -> bool {
        match &self.payload {
            Payload::Reply(bytes) => bytes.len() as u64 <= reply_bytes_max,
            Payload::Reject(reject) => {
                reject.message.len() <= OUTCALL_REJECT_BYTES_MAX
                    && u32::from(reject.error_code.0 / 100) == reject.code as u32
            }
        }
    }

    /// Its bytes, as they are hashed and carried.
    fn bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Names it: two answers of one request differ in it.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.bytes()).into()
    }

    /// The message that the subnet signs for the answer of this digest.
    pub fn message(digest: &[u8; 32]) -> Vec<u8> {
        [DOMAIN, digest].concat()
    }

    /// The name of the request's answer in blocks, whatever it is.
    pub fn ingress_id(&self) -> IngressId {
        let mut hash = Sha256::new();
        hash.update(DOMAIN);
        hash.update(self.id.0.to_be_bytes());
        IngressId(hash.finalize().into())
    }

    /// Block times at which it may be in a block.
    pub fn validity(&self) -> Validity {
        self.until.into()
    }

    /// The answer as blocks have it. The same on every node: there is one such signature.
    pub fn envelope(&self, signature: &[u8; SIGNATURE_BYTES]) -> SignedIngress {
        let envelope = [&ENVELOPE_BEGINS[..], signature, &self.bytes()].concat();
        let effective_canister_id = Principal::management_canister();
        SignedIngress { effective_canister_id, envelope: envelope.into() }
    }

    /// Whether this is an answer, and no client's call.
    pub fn is_in(signed: &SignedIngress) -> bool {
        signed.envelope.starts_with(&ENVELOPE_BEGINS)
    }

    /// The answer in an envelope of the form of [`Self::envelope`], and the signature that it
    /// carries.
    ///
    /// # Errors
    /// When it does not decode, or not to the bytes it is made of.
    pub fn read(signed: &SignedIngress) -> Result<(Self, [u8; SIGNATURE_BYTES]), String> {
        let rest = signed.envelope.strip_prefix(&ENVELOPE_BEGINS);
        let split = rest.and_then(|rest| rest.split_first_chunk::<SIGNATURE_BYTES>());
        let (signature, bytes) = split.ok_or("it is no answer to an outcall")?;
        let answer: Self = postcard::from_bytes(bytes).map_err(|error| error.to_string())?;
        if answer.envelope(signature) != *signed {
            return Err("its envelope is not the one that is made of it".into());
        }
        Ok((answer, *signature))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn outcall(until: u64, cycles: Cycles) -> Outcall {
        Outcall {
            origin: Origin::System,
            cycles,
            url: "https://a.example/".into(),
            method: OutcallMethod::Get,
            headers: vec![("name".into(), "value".into())],
            body: vec![1, 2, 3],
            response_bytes_asked: Some(100),
            transform: Some(OutcallTransform { method_name: "t".into(), context: vec![4; 10] }),
            until: Time(until),
            askers: Askers::All,
            height: Height(1),
        }
    }

    #[test]
    fn requests_end_in_their_order_and_numbers_never_come_again() {
        let mut outcalls = Outcalls::default();
        let first = outcalls.add(outcall(10, 5));
        let second = outcalls.add(outcall(20, 7));
        assert_eq!((first, second), (OutcallId(0), OutcallId(1)));
        assert_eq!(outcalls.next_end(), Some(Time(10)));
        assert_eq!(outcalls.cycles().sum::<Cycles>(), 12);
        let bytes = 18 + 9 + 3 + 11;
        assert_eq!(outcalls.accounted_bytes(), 2 * (bytes + MESSAGE_OVERHEAD_BYTES));
        assert!(outcalls.expired(Time(10)).is_empty(), "its last block may be of that time");
        assert_eq!(outcalls.expired(Time(11)), [first]);
        assert!(outcalls.remove(first).is_some());
        assert_eq!(outcalls.accounted_bytes(), bytes + MESSAGE_OVERHEAD_BYTES);
        assert!(outcalls.remove(second).is_some() && outcalls.remove(second).is_none());
        assert_eq!(outcalls.add(outcall(30, 0)), OutcallId(2));
    }

    #[test]
    fn what_a_canister_did_not_ask_for_is_kept_as_that() {
        let none = Outcall { response_bytes_asked: None, ..outcall(1, 0) };
        assert_eq!(none.response_bytes_max(), OUTCALL_RESPONSE_BYTES);
        for asked in [None, Some(0), Some(100), Some(OUTCALL_RESPONSE_BYTES)] {
            let kept = Outcall { response_bytes_asked: asked, ..none.clone() };
            let bytes = postcard::to_stdvec(&kept).unwrap();
            assert_eq!(postcard::from_bytes::<Outcall>(&bytes), Ok(kept));
        }
    }

    #[test]
    fn an_answer_is_within_what_was_asked_for() {
        let answer = |payload| OutcallAnswer { id: OutcallId(1), until: Time(1), payload };
        let reply = |bytes| answer(Payload::Reply(vec![0; bytes]));
        let transformed = outcall(1, 0);
        let as_it_came = Outcall { transform: None, ..transformed.clone() };
        assert_eq!((transformed.reply_bytes_max(), as_it_came.reply_bytes_max()), (100, 1_124));
        assert!(reply(100).is_within(100) && !reply(101).is_within(100));
        let reject = |error_code, bytes| {
            let code = RejectCode::SysTransient;
            let message = "x".repeat(bytes);
            answer(Payload::Reject(Reject { code, message, error_code: ErrorCode(error_code) }))
        };
        assert!(reject(200, OUTCALL_REJECT_BYTES_MAX).is_within(0) && reject(299, 0).is_within(0));
        assert!(!reject(200, OUTCALL_REJECT_BYTES_MAX + 1).is_within(1 << 20));
        assert!(!reject(300, 0).is_within(0) && !reject(199, 0).is_within(0));
        assert!(OutcallAnswer::no_consensus(OutcallId(1), Time(1)).is_within(0));
        assert!(answer(Payload::Reject(OutcallAnswer::timed_out())).is_within(0));
    }

    #[test]
    fn an_answer_has_one_envelope_and_no_other_form_is_read() {
        let reject = Reject {
            code: RejectCode::SysTransient,
            message: "why".into(),
            error_code: ErrorCode(201),
        };
        for payload in [Payload::Reply(vec![7; 300]), Payload::Reject(reject)] {
            let answer = OutcallAnswer { id: OutcallId(3), until: Time(1 << 40), payload };
            let signed = answer.envelope(&[9; 48]);
            assert!(OutcallAnswer::is_in(&signed));
            assert_eq!(OutcallAnswer::read(&signed), Ok((answer, [9; 48])));
            let with =
                |bytes: &[u8]| SignedIngress { envelope: bytes.to_vec().into(), ..signed.clone() };
            for end in 0..signed.envelope.len() {
                assert!(OutcallAnswer::read(&with(&signed.envelope[..end])).is_err(), "{end}");
            }
            assert!(OutcallAnswer::read(&with(&[&signed.envelope[..], &[0]].concat())).is_err());
            let elsewhere =
                SignedIngress { effective_canister_id: Principal::anonymous(), ..signed.clone() };
            assert!(OutcallAnswer::read(&elsewhere).is_err());
        }
        let client = SignedIngress {
            effective_canister_id: Principal::management_canister(),
            envelope: vec![0xd9, 0xd9, 0xf7].into(),
        };
        assert!(!OutcallAnswer::is_in(&client) && OutcallAnswer::read(&client).is_err());
    }

    #[test]
    fn the_signed_bytes_tell_requests_and_answers_apart() {
        let answer = |id, reply: u8| OutcallAnswer {
            id: OutcallId(id),
            until: Time(5),
            payload: Payload::Reply(vec![reply]),
        };
        let later = OutcallAnswer { until: Time(6), ..answer(1, 1) };
        let digests = [answer(1, 1), answer(2, 1), answer(1, 2), later].map(|it| it.digest());
        let distinct: std::collections::BTreeSet<_> = digests.iter().collect();
        assert_eq!(distinct.len(), 4);
        assert_eq!(answer(1, 1).ingress_id(), answer(1, 2).ingress_id());
        assert_ne!(answer(1, 1).ingress_id(), answer(2, 1).ingress_id());
        assert_ne!(OutcallAnswer::message(&digests[0])[0], 0x0d, "no state root");
    }
}
