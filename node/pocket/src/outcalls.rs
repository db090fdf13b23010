//! HTTPS outcalls of canisters, which a test answers instead of servers.
//!
//! ```text
//! http_request -> open in the state -> listed for the test -> mock: a response of each node
//!   -> bounds, the canister's transform, as a node does -> do the nodes agree? -> waits here
//!   -> the next round has it in its batch -> the canister
//! ```
//!
//! Open outcalls are a part of the state, so that they are kept with an instance, and end by the
//! instance's time as on a node. An answer that waits for a round is only here: an instance that is
//! deleted before that is kept with the request open.
//!
//! All subnets of an instance have their requests in one state: the subnet of a request follows
//! from the canister that made it. The nodes of a subnet are made up ([`crate::subnets`]); the test
//! gives the response of each, and agreement is counted here as members of a subnet count it: as
//! many must have signed the same as are needed for the subnet's signature.
//!
//! Memory: listed requests, and answers from the mock to the round, hold room of the pool
//! `outcalls` that all instances share; open outcalls are bounded by `outcalls.open` and
//! `outcalls.open_bytes` for each instance.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use accounting::{Pool, Reservation};
use execution::Placement as _;
use http_server::with_reservation;
use ic_management_canister_types::{HttpHeader, HttpRequestResult};
use ic_principal::Principal;
use limits::OutcallLimits;
use outcalls::reply::{self, ResponseStep};
use serde::{Deserialize, Serialize};
use state::{
    NotTransformed, Outcall, OutcallAnswer, OutcallId, Payload, Reject, RejectCode, StateArc, Time,
};

use crate::{
    instance::Instance,
    operations::{Failure, Outcome, json},
    rest::{Base64, Base64Slice, RawSubnetId, at_most},
};

/// Bytes of a reject's message: what the clients say there may be.
const REJECT_BYTES_MAX: usize = 1 << 10;
/// How long a request waits for room that others have.
const ROOM_WAIT: Duration = Duration::from_secs(5);
/// Headers of a response that are read. More than a canister may be given.
const HEADERS_READ_MAX: usize = 1 << 10;
/// Responses that are read in addition to the first. More than a subnet has nodes.
const RESPONSES_READ_MAX: usize = 64;

/// A request that waits for an answer, as the protocol writes it.
#[derive(Serialize)]
struct RawOutcall<'a> {
    subnet_id: RawSubnetId,
    request_id: u64,
    http_method: &'static str,
    url: &'a str,
    headers: Vec<RawHeader<'a>>,
    body: Base64Slice<'a>,
    max_response_bytes: Option<u64>,
    replication: &'static str,
    pricing_version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct RawHeader<'a> {
    name: std::borrow::Cow<'a, str>,
    value: std::borrow::Cow<'a, str>,
}

/// A test's response in place of a server's.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
enum RawResponse {
    CanisterHttpReply {
        status: u16,
        #[serde(deserialize_with = "at_most::<_, _, HEADERS_READ_MAX>")]
        headers: Vec<RawHeader<'static>>,
        body: Base64,
    },
    CanisterHttpReject {
        reject_code: u64,
        message: String,
    },
}

/// An answer to an outcall.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawMock {
    subnet_id: RawSubnetId,
    request_id: u64,
    response: RawResponse,
    /// Responses of the other nodes: none, or one of each.
    #[serde(default, deserialize_with = "at_most::<_, _, RESPONSES_READ_MAX>")]
    additional_responses: Vec<RawResponse>,
}

/// An answer to a flexible outcall, as far as it names it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawFlexibleMock {
    subnet_id: RawSubnetId,
    request_id: u64,
}

/// Answers that wait for a round. Shared with the part that makes requests while an instance is
/// live.
#[derive(Default)]
pub(crate) struct Answers {
    waiting: Mutex<BTreeMap<OutcallId, WaitingAnswer>>,
    answer_added: Condvar,
}

/// An answer, and the room that it holds.
pub(crate) struct WaitingAnswer {
    answer: OutcallAnswer,
    _room: Reservation,
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<OutcallId, WaitingAnswer>> {
        // The guarded data are consistent between any two statements that can panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an answer. The first to a request counts.
    pub(crate) fn add(&self, answer: OutcallAnswer, room: Reservation) {
        self.lock().entry(answer.id).or_insert(WaitingAnswer { answer, _room: room });
        self.answer_added.notify_all();
    }

    /// Waits until there is one, at most for this time.
    pub(crate) fn wait(&self, time: Duration) {
        // Who is woken looks anyway.
        drop(self.answer_added.wait_timeout_while(self.lock(), time, |waiting| waiting.is_empty()));
    }

    fn has(&self, id: OutcallId) -> bool {
        self.lock().contains_key(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The oldest, as many as a round at this time may answer in this number of bytes, or one. An
    /// answer whose time is over is dropped, and so is one to a request that is not open any more.
    pub(crate) fn take(
        &self,
        open: &BTreeMap<OutcallId, StateArc<Outcall>>,
        now: Time,
        bytes_max: u64,
    ) -> Vec<WaitingAnswer> {
        let mut waiting = self.lock();
        waiting.retain(|id, it| it.answer.until >= now && open.contains_key(id));
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(next) = waiting.first_entry() {
            bytes += next.get().answer.payload.len();
            if bytes > bytes_max && !taken.is_empty() {
                break;
            }
            taken.push(next.remove());
        }
        taken
    }
}

impl WaitingAnswer {
    /// In the form of the batch.
    pub(crate) fn answer(&self) -> OutcallAnswer {
        self.answer.clone()
    }
}

/// Counts what is written.
#[derive(Default)]
struct Length(u64);

impl std::io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn raw<'a>(subnet: Principal, (id, outcall): (&OutcallId, &'a Outcall)) -> RawOutcall<'a> {
    let header =
        |(name, value): &'a (String, String)| RawHeader { name: name.into(), value: value.into() };
    RawOutcall {
        subnet_id: RawSubnetId { subnet_id: subnet.into() },
        request_id: id.0,
        http_method: outcall.method.name(),
        url: &outcall.url,
        headers: outcall.headers.iter().map(header).collect(),
        body: Base64Slice(&outcall.body),
        max_response_bytes: outcall.response_bytes_asked,
        replication: if outcall.askers.is_one() { "NonReplicated" } else { "FullyReplicated" },
        pricing_version: "Legacy",
    }
}

impl RawResponse {
    /// Whether it can be said at all.
    fn check(&self) -> Result<(), Failure> {
        let Self::CanisterHttpReject { reject_code, message } = self else { return Ok(()) };
        if code(*reject_code).is_none() {
            return Err(Failure::bad(format!("InvalidRejectCode({reject_code})")));
        }
        if message.len() > REJECT_BYTES_MAX {
            return Err(Failure::bad(format!(
                "the reject message has {} bytes, the most are reject_message_bytes = \
                 {REJECT_BYTES_MAX}",
                message.len()
            )));
        }
        Ok(())
    }
}

fn code(number: u64) -> Option<RejectCode> {
    use RejectCode::{
        CanisterError, CanisterReject, DestinationInvalid, SysFatal, SysTransient, SysUnknown,
    };
    let codes =
        [SysFatal, SysTransient, DestinationInvalid, CanisterReject, CanisterError, SysUnknown];
    codes.into_iter().find(|code| u64::from(*code as u32) == number)
}

/// Responses of nodes with their counts, and the number needed for agreement.
struct Vote {
    said: Vec<(RawResponse, u32)>,
    threshold: u32,
}

impl Vote {
    /// The vote of a subnet with this number of nodes. A request that one node makes alone is
    /// answered by the first.
    fn for_subnet(mock: RawMock, outcall: &Outcall, nodes: usize) -> Result<Self, Failure> {
        let given = 1 + mock.additional_responses.len();
        if given != 1 && given != nodes {
            return Err(Failure::bad(format!(
                "InvalidMockCanisterHttpResponses(({given}, {nodes})): that many responses were \
                 given, and the subnet has that many nodes: give one for all, or one for each"
            )));
        }
        if given == 1 || outcall.askers.is_one() {
            return Ok(Self { said: vec![(mock.response, 1)], threshold: 1 });
        }
        let mut said: Vec<(RawResponse, u32)> = Vec::new();
        for response in [mock.response].into_iter().chain(mock.additional_responses) {
            match said.iter_mut().find(|(other, _)| *other == response) {
                Some((_, count)) => *count += 1,
                None => said.push((response, 1)),
            }
        }
        Ok(Self { said, threshold: genesis::threshold(nodes) })
    }

    /// Of the longest response.
    fn response_bytes(&self) -> u64 {
        let bytes = self.said.iter().map(|(response, _)| match response {
            RawResponse::CanisterHttpReply { headers, body, .. } => {
                let headers = headers.iter().map(|it| it.name.len() + it.value.len());
                body.0.len() + headers.sum::<usize>()
            }
            RawResponse::CanisterHttpReject { message, .. } => message.len(),
        });
        bytes.max().unwrap_or_default() as u64
    }
}

struct Answering<'a> {
    instance: &'a Instance,
    id: OutcallId,
    outcall: &'a Outcall,
    room: Reservation,
}

impl Answering<'_> {
    fn answer(&self, payload: Payload) -> OutcallAnswer {
        OutcallAnswer { id: self.id, until: self.outcall.until, payload }
    }

    /// The subnet's answer for these responses of its nodes.
    fn decide(mut self, vote: Vote) -> Result<(OutcallAnswer, Reservation), Failure> {
        let mut found: BTreeMap<[u8; 32], (OutcallAnswer, u32)> = BTreeMap::new();
        for (response, nodes) in vote.said {
            let answer = self.answer(self.found(response)?);
            let most = self.outcall.reply_bytes_max();
            if !answer.is_within(most) {
                return Err(Failure::bad(format!(
                    "the answer is larger than a node may give, {most} bytes (max_response_bytes)"
                )));
            }
            if let Some((_, count)) = found.get_mut(&answer.digest()) {
                *count += nodes;
                continue;
            }
            self.room.try_grow(answer.payload.len()).map_err(|_| no_room(self.room.pool()))?;
            found.insert(answer.digest(), (answer, nodes));
        }
        let agreed = found.into_values().find(|(_, count)| *count >= vote.threshold);
        let answer = agreed.map_or_else(
            || OutcallAnswer::no_consensus(self.id, self.outcall.until),
            |(answer, _)| answer,
        );
        let held = self.room.bytes();
        self.room.shrink(held.saturating_sub(answer.payload.len()));
        Ok((answer, self.room))
    }

    /// What a node that hears this finds.
    fn found(&self, response: RawResponse) -> Result<Payload, Failure> {
        let response = match response {
            RawResponse::CanisterHttpReply { status, headers, body } => HttpRequestResult {
                status: status.into(),
                headers: headers.into_iter().map(header).collect(),
                body: body.0,
            },
            RawResponse::CanisterHttpReject { reject_code, message } => {
                let code = code(reject_code).unwrap_or(RejectCode::SysUnknown);
                return Ok(reply::payload(Err(OutcallAnswer::reject(code, message))));
            }
        };
        if let Err(failure) = reply::check(&response, self.outcall.response_bytes_max()) {
            return Ok(reply::payload(Err(failure.reject())));
        }
        let result = match reply::next_step(self.outcall, response) {
            Ok(ResponseStep::Reply(bytes)) => Ok(bytes),
            Ok(ResponseStep::Transform(transform, arg)) => self
                .transformed(&transform.method_name, arg)?
                .and_then(|reply| reply::transformed(self.outcall, reply)),
            Err(reject) => Err(reject),
        };
        Ok(reply::payload(result))
    }

    fn transformed(
        &self,
        method_name: &str,
        arg: Vec<u8>,
    ) -> Result<Result<Vec<u8>, Reject>, Failure> {
        let asked = (self.outcall.caller(), self.outcall.height);
        let queries = self.instance.replica.views().queries;
        match queries.transform(asked, method_name, arg) {
            Ok(reply) => Ok(Ok(reply)),
            Err(NotTransformed::Reject(reject)) => Ok(Err(reject)),
            Err(NotTransformed::Trouble(what) | NotTransformed::Died(what)) => Err(Failure::bad(
                format!("the transform did not run, and the request is still open: {what}"),
            )),
        }
    }
}

fn header(RawHeader { name, value }: RawHeader<'static>) -> HttpHeader {
    HttpHeader { name: name.into_owned(), value: value.into_owned() }
}

fn no_room(pool: &Pool) -> Failure {
    Failure::bad(format!(
        "there is no room for it beside what else is listed and answered: the pool {} has {} bytes; \
         have rounds executed, or run fewer tests at once",
        pool.name(),
        pool.cap_bytes()
    ))
}

impl Instance {
    fn subnet_of(&self, outcall: &Outcall) -> Option<Principal> {
        self.replica.shared.subnets.subnet_of(&outcall.caller())
    }

    /// Requests that wait for an answer of the test.
    pub(crate) fn pending_outcalls(&mut self, room: &Pool) -> Outcome {
        let open = self.replica.open_outcalls();
        let answers = &self.replica.shared.answers;
        let pending: Vec<_> = open
            .iter()
            .filter(|(id, _)| !answers.has(**id))
            .filter_map(|(id, outcall)| Some(raw(self.subnet_of(outcall)?, (id, outcall))))
            .collect();
        let mut length = Length::default();
        serde_json::to_writer(&mut length, &pending).map_err(Failure::bad)?;
        let held = room.reserve_within(length.0, ROOM_WAIT).map_err(|_| {
            Failure::bad(format!(
                "the requests that wait take {} bytes when they are listed, and the pool {} has {} \
                 for all instances: answer some, or let their time pass",
                length.0,
                room.name(),
                room.cap_bytes()
            ))
        })?;
        let mut bytes = Vec::with_capacity(usize::try_from(length.0).unwrap_or_default());
        serde_json::to_writer(&mut bytes, &pending).map_err(Failure::bad)?;
        Ok(with_reservation(bytes, held))
    }

    /// A subnet that a mock names, and how many nodes it has.
    fn named(&self, subnet: &RawSubnetId) -> Result<(Principal, usize), Failure> {
        let id = subnet.subnet_id.principal().map_err(Failure::bad)?;
        Ok((id, self.of_subnet(&id, |subnet| subnet.nodes.len())?))
    }

    /// Answers one. The next round has the answer.
    pub(crate) fn mock_outcall(&mut self, mock: RawMock, room: &Pool) -> Outcome {
        for response in [&mock.response].into_iter().chain(&mock.additional_responses) {
            response.check()?;
        }
        let (subnet, nodes) = self.named(&mock.subnet_id)?;
        let id = OutcallId(mock.request_id);
        let answers = self.replica.shared.answers.clone();
        let open = self.replica.open_outcalls().get(&id);
        let open = open.filter(|outcall| self.subnet_of(outcall) == Some(subnet));
        let Some(outcall) = open.filter(|_| !answers.has(id)).cloned() else {
            return Err(Failure::bad(format!(
                "InvalidCanisterHttpRequestId(({subnet}, {})): no HTTPS outcall of this number \
                 waits for an answer on the subnet",
                mock.request_id
            )));
        };
        let vote = Vote::for_subnet(mock, &outcall, nodes)?;
        let context = outcall.transform.as_ref().map(|it| it.context.len() as u64);
        let needed = OutcallLimits::request_bytes(0, vote.response_bytes(), context);
        let room = room.reserve_within(needed, ROOM_WAIT).map_err(|_| no_room(room))?;
        let answering = Answering { instance: self, id, outcall: &outcall, room };
        let (answer, room) = answering.decide(vote)?;
        answers.add(answer, room);
        json(&())
    }

    /// Refuses to answer one that several nodes may answer differently: no canister can make any.
    pub(crate) fn mock_flexible_outcall(&mut self, mock: RawFlexibleMock) -> Outcome {
        let (subnet, _) = self.named(&mock.subnet_id)?;
        Err(Failure::bad(format!(
            "InvalidCanisterHttpRequestId(({subnet}, {})): no flexible HTTPS outcall of this number \
             waits for an answer; flexible_http_request is not offered by thimble-pocket, see \
             docs/pocket.md",
            mock.request_id
        )))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use state::{Askers, Height, Origin, OutcallMethod};

    use super::*;

    fn outcall(until: u64, askers: Askers) -> Outcall {
        Outcall {
            origin: Origin::System,
            cycles: 0,
            url: String::new(),
            method: OutcallMethod::Get,
            headers: vec![],
            body: vec![],
            response_bytes_asked: None,
            transform: None,
            until: Time(until),
            askers,
            height: Height(1),
        }
    }

    fn said(message: &str) -> RawResponse {
        RawResponse::CanisterHttpReject { reject_code: 1, message: message.to_owned() }
    }

    #[test]
    fn a_round_takes_the_oldest_answers_that_fit_and_none_whose_time_is_over() {
        let (pool, answers) = (Pool::standalone("outcalls", 1_000), Answers::default());
        let open =
            (0..5).map(|id| (OutcallId(id), StateArc::new(outcall(10, Askers::All)))).collect();
        for (id, until, bytes) in
            [(4, 10, 60), (0, 9, 10), (1, 10, 100), (2, 10, 30), (3, 10, 20), (7, 10, 1)]
        {
            let payload = Payload::Reply(vec![0; bytes]);
            let answer = OutcallAnswer { id: OutcallId(id), until: Time(until), payload };
            answers.add(answer.clone(), pool.try_reserve(bytes as u64).unwrap());
            // The first counts.
            let payload = Payload::Reply(vec![]);
            answers.add(OutcallAnswer { payload, ..answer }, pool.try_reserve(0).unwrap());
        }
        let take = || -> Vec<u64> {
            answers.take(&open, Time(10), 50).iter().map(|it| it.answer().id.0).collect()
        };
        assert_eq!(take(), [1], "one that is too large comes alone");
        assert_eq!(pool.used_bytes(), 110, "what is over is gone");
        assert_eq!(take(), [2, 3]);
        assert_eq!(take(), [4]);
        assert!(take().is_empty() && answers.is_empty());
        assert_eq!(pool.used_bytes(), 0);
    }

    // Promise: P12 - As many mocked answers agree as nodes sign for a subnet.
    #[test]
    fn as_many_nodes_agree_as_sign_for_a_subnet() {
        let mock = |responses: &[&str]| RawMock {
            subnet_id: RawSubnetId { subnet_id: Base64(vec![]) },
            request_id: 0,
            response: said(responses[0]),
            additional_responses: responses[1..].iter().map(|text| said(text)).collect(),
        };
        let (all, one) = (outcall(1, Askers::All), outcall(1, Askers::One(Principal::anonymous())));
        let vote = Vote::for_subnet(mock(&["a"]), &all, 13).unwrap();
        assert_eq!((vote.said, vote.threshold), (vec![(said("a"), 1)], 1));
        let four = mock(&["a", "b", "a", "c"]);
        let vote = Vote::for_subnet(four.clone(), &all, 4).unwrap();
        assert_eq!(vote.said, [(said("a"), 2), (said("b"), 1), (said("c"), 1)]);
        assert_eq!(vote.threshold, 3);
        let vote = Vote::for_subnet(four.clone(), &one, 4).unwrap();
        assert_eq!((vote.said, vote.threshold), (vec![(said("a"), 1)], 1));
        for outcall in [&all, &one] {
            let refusal = Vote::for_subnet(four.clone(), outcall, 13).err().unwrap().message;
            assert!(refusal.starts_with("InvalidMockCanisterHttpResponses((4, 13))"), "{refusal}");
        }
    }

    #[test]
    fn codes_are_those_of_the_interface() {
        let known: Vec<_> = (0..10).filter(|number| code(*number).is_some()).collect();
        assert_eq!(known, [1, 2, 3, 4, 5, 6]);
    }
}
