//! `http_request`: HTTPS outcalls of a canister.
//!
//! ```text
//! check and price -> open in the state (`state::Outcalls`) -> members ask, agree
//!   -> answer in a block
//! ```
//!
//! This module handles everything that follows from the call alone: whether the request may be
//! made, its price, and that it is answered once. An error that only a member that makes the
//! request finds (that the URL names no server, say) is an answer like any other. This module must
//! not know how servers are contacted.

use candid::{CandidType, Deserialize, Principal};
use ic_management_canister_types::{HttpHeader, TransformFunc};
use limits::{OUTCALL_CONTEXT_BYTES, OUTCALL_REQUEST_BYTES, OUTCALL_RESPONSE_BYTES};
use serde_bytes::ByteBuf;
use sha2::{Digest as _, Sha256};
use state::{
    Askers, Height, Origin, Outcall, OutcallAnswer, OutcallId, OutcallMethod, OutcallTransform,
    Payload, Reject, ReplicatedState, SubnetCall, Time, state_heap,
};

use super::{Dispatcher, MethodOutcome, MethodResult};
use crate::core::Core;
use crate::message::Effects;
use crate::reject::{self, refused};

/// Bounds of the interface specification.
const URL_BYTES_MAX: usize = 8_192;
pub(super) const HEADERS_MAX: usize = 64;
const HEADER_PART_BYTES_MAX: usize = 8 << 10;
const HEADERS_BYTES_MAX: usize = 48 << 10;

/// The argument, as the interface specification has it.
#[derive(CandidType, Deserialize)]
struct Argument {
    url: String,
    max_response_bytes: Option<u64>,
    method: Method,
    headers: Vec<HttpHeader>,
    body: Option<ByteBuf>,
    transform: Option<Transform>,
    is_replicated: Option<bool>,
}

#[derive(CandidType, Deserialize)]
#[expect(non_camel_case_types, reason = "names of the interface")]
enum Method {
    get,
    head,
    post,
    put,
    delete,
    patch,
}

#[derive(CandidType, Deserialize)]
struct Transform {
    function: TransformFunc,
    context: ByteBuf,
}

impl Method {
    fn to_outcall_method(&self) -> OutcallMethod {
        match self {
            Self::get => OutcallMethod::Get,
            Self::head => OutcallMethod::Head,
            Self::post => OutcallMethod::Post,
            Self::put => OutcallMethod::Put,
            Self::delete => OutcallMethod::Delete,
            Self::patch => OutcallMethod::Patch,
        }
    }
}

impl Dispatcher<'_> {
    pub(super) fn http_request(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: Argument = self.decode(call)?;
        check(&argument, &call.origin.caller())?;
        let askers = match argument.is_replicated {
            Some(false) => Askers::Unassigned,
            Some(true) | None => Askers::All,
        };
        let mut outcall = outcall(argument, call, (self.until(), self.round.height), askers);
        self.check_open(&outcall)?;
        let prices = self.core.cost_table_of(&call.origin.caller());
        let price = prices.outcall(outcall.request_bytes(), outcall.response_bytes_max());
        let Some(left) = call.cycles.checked_sub(price) else {
            return refused!(
                rejected_message,
                "http_request request sent with {} cycles, but {price} cycles are required.",
                call.cycles
            );
        };
        outcall.cycles = left;
        match self.state.get_mut(&call.origin.caller()) {
            Some(caller) => caller.consumption.http_outcalls += price,
            None => self.state.subnet.consumption.http_outcalls += price,
        }
        self.state.subnet.outcalls.add(outcall);
        Ok(MethodOutcome::Waits)
    }

    fn until(&self) -> Time {
        let seconds = self.core.limits().outcalls.timeout_seconds;
        Time(self.round.time.0.saturating_add(seconds.saturating_mul(1_000_000_000)))
    }

    /// Whether one more request may be open. A canister has no more of them than are left for all
    /// others.
    fn check_open(&self, outcall: &Outcall) -> Result<(), Reject> {
        let limits = &self.core.limits().outcalls;
        let outcalls = &self.state.subnet.outcalls;
        let open = outcalls.open().len() as u64;
        if open >= limits.open {
            return refused!(
                rejected_message,
                "max number ({}) of http requests in-flight reached.",
                limits.open
            );
        }
        let caller = outcall.caller();
        let own = outcalls.open().values().filter(|other| other.caller() == caller).count() as u64;
        if own >= limits.open - open {
            return refused!(
                rejected_message,
                "Canister {caller} has {own} http requests in-flight, and no canister has more \
                 than are left for all others of the subnet's {} (outcalls.open). Try again.",
                limits.open
            );
        }
        let (bytes, used) = (outcall.accounted_bytes(), outcalls.accounted_bytes());
        if used + bytes > limits.open_bytes {
            return refused!(
                queue_full,
                "The request needs {bytes} bytes; http requests in-flight take {used} bytes of the \
                 subnet's {} (outcalls.open_bytes). Try again.",
                limits.open_bytes
            );
        }
        Ok(())
    }
}

/// Chooses the members that make the requests of the round `since`, or of all rounds, alone: the
/// value was unknown when they were made.
pub(crate) fn assign_members(
    core: &Core,
    state: &mut ReplicatedState,
    since: Option<Height>,
    value: &[u8; 32],
) {
    let subnet = &mut state.subnet;
    let nodes = match &subnet.key {
        Some(key) => &key.nodes,
        None => &core.config.subnet.nodes,
    };
    subnet.outcalls.assign(since, |id| {
        let mut hash = Sha256::new();
        hash.update(b"\x16thimble-outcall-member");
        hash.update(value);
        hash.update(id.0.to_be_bytes());
        let number = hash.finalize().first_chunk::<8>().map_or(0, |it| u64::from_be_bytes(*it));
        let place = number.checked_rem(nodes.len() as u64).unwrap_or_default();
        let node = usize::try_from(place).ok().and_then(|place| nodes.get(place));
        node.map_or(Principal::anonymous(), |node| node.node_id)
    });
}

/// Whether the interface allows such a request.
fn check(argument: &Argument, caller: &Principal) -> Result<(), Reject> {
    let refused = |what: String| Err(reject::rejected_message(what));
    if argument.url.len() > URL_BYTES_MAX {
        let length = argument.url.len();
        return refused(format!("url size {length} exceeds {URL_BYTES_MAX} bytes"));
    }
    if let Some(asked) = argument.max_response_bytes.filter(|asked| *asked > OUTCALL_RESPONSE_BYTES)
    {
        return refused(format!(
            "max_response_bytes expected to be in the range [0..{OUTCALL_RESPONSE_BYTES}], got \
             {asked}"
        ));
    }
    let mut headers_bytes = 0;
    for HttpHeader { name, value } in &argument.headers {
        for (what, part) in [("name", name), ("value", value)] {
            if part.len() > HEADER_PART_BYTES_MAX {
                let length = part.len();
                return refused(format!(
                    "http header {what} has {length} bytes, over the limit of \
                     {HEADER_PART_BYTES_MAX}"
                ));
            }
            headers_bytes += part.len();
        }
    }
    let count = argument.headers.len();
    if count > HEADERS_MAX {
        return refused(format!("{count} http headers exceed the limit of {HEADERS_MAX}"));
    }
    if headers_bytes > HEADERS_BYTES_MAX {
        return refused(format!(
            "http headers have {headers_bytes} bytes, over the limit of {HEADERS_BYTES_MAX}"
        ));
    }
    let body_bytes = argument.body.as_ref().map_or(0, |body| body.len());
    let bytes = (headers_bytes + body_bytes) as u64;
    if bytes > OUTCALL_REQUEST_BYTES {
        return refused(format!(
            "http headers and body have {bytes} bytes, over the limit of {OUTCALL_REQUEST_BYTES}"
        ));
    }
    if !argument.method.to_outcall_method().is_for_all() && argument.is_replicated != Some(false) {
        let name = argument.method.to_outcall_method().name();
        return refused(format!(
            "http method {name} is supported in non-replicated mode only (is_replicated = false)"
        ));
    }
    match &argument.transform {
        Some(Transform { function, .. }) if function.0.principal != *caller => refused(format!(
            "the transform function is exported by {}, and must be by the caller, {caller}",
            function.0.principal
        )),
        Some(Transform { context, .. }) => check_context(argument, context.len() as u64),
        None => Ok(()),
    }
}

/// Response and context are handed to the transform together, in memory that each member has.
fn check_context(argument: &Argument, bytes: u64) -> Result<(), Reject> {
    let response = argument.max_response_bytes.unwrap_or(OUTCALL_RESPONSE_BYTES);
    let both_max = OUTCALL_RESPONSE_BYTES + OUTCALL_CONTEXT_BYTES;
    if bytes <= both_max.saturating_sub(response) {
        return Ok(());
    }
    refused!(
        rejected_message,
        "the transform's context has {bytes} bytes and max_response_bytes is {response}, together \
         over the limit of {both_max}: ask for a smaller response"
    )
}

/// The request as it is kept; what is left of the cycles is not known yet.
fn outcall(
    argument: Argument,
    call: &SubnetCall,
    (until, height): (Time, Height),
    askers: Askers,
) -> Outcall {
    // It stays in the state.
    let transform = |Transform { function, context }: Transform| OutcallTransform {
        method_name: state_heap::move_text(function.0.method),
        context: state_heap::move_bytes(context.into_vec()),
    };
    let header = |it: HttpHeader| (state_heap::move_text(it.name), state_heap::move_text(it.value));
    Outcall {
        origin: call.origin.clone(),
        cycles: 0,
        method: argument.method.to_outcall_method(),
        url: state_heap::move_text(argument.url),
        headers: argument.headers.into_iter().map(header).collect(),
        body: argument.body.map(|body| state_heap::move_bytes(body.into_vec())).unwrap_or_default(),
        response_bytes_asked: argument.max_response_bytes,
        transform: argument.transform.map(transform),
        until,
        askers,
        height,
    }
}

/// Answers the requests that a block has answers to, each once, then those whose time is over. An
/// answer that does not match the request, or exceeds its bounds, is ignored, whichever members
/// signed it.
pub(crate) fn answer(state: &mut ReplicatedState, answers: &[OutcallAnswer], now: Time) -> Effects {
    let mut effects = Effects::default();
    let mut respond = |state: &mut ReplicatedState, id: OutcallId, payload: Payload| {
        let Some(outcall) = state.subnet.outcalls.remove(id) else { return };
        debug_assert!(matches!(outcall.origin, Origin::Canister { .. }), "canisters alone may ask");
        let unclaimed = effects.answer(&outcall.origin, payload, outcall.cycles);
        state.subnet.consumption.uninstall += unclaimed;
    };
    for answer in answers {
        let open = state.subnet.outcalls.open().get(&answer.id);
        if open.is_some_and(|open| is_answer_to(answer, open)) {
            respond(state, answer.id, answer.payload.clone());
        }
    }
    let expired = state.subnet.outcalls.expired(now);
    for id in &expired {
        respond(state, *id, Payload::Reject(OutcallAnswer::timed_out()));
    }
    if !expired.is_empty() {
        state.subnet.drop_unawaited_roots();
    }
    effects
}

fn is_answer_to(answer: &OutcallAnswer, open: &Outcall) -> bool {
    answer.until == open.until && answer.is_within(open.reply_bytes_max())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn argument(response: Option<u64>, context: u64) -> Argument {
        let function =
            TransformFunc(candid::Func { principal: Principal::anonymous(), method: "t".into() });
        let context = ByteBuf::from(vec![0; usize::try_from(context).unwrap()]);
        Argument {
            url: String::new(),
            max_response_bytes: response,
            method: Method::get,
            headers: vec![],
            body: None,
            transform: Some(Transform { function, context }),
            is_replicated: None,
        }
    }

    #[test]
    fn a_context_is_as_large_as_the_response_leaves_memory_for() {
        let told = |response, context| check(&argument(response, context), &Principal::anonymous());
        assert_eq!(told(None, OUTCALL_CONTEXT_BYTES), Ok(()));
        let refused = told(None, OUTCALL_CONTEXT_BYTES + 1).unwrap_err().message;
        assert!(refused.contains("8193 bytes") && refused.contains("2008192"), "{refused}");
        assert_eq!(told(Some(1_000_000), 1_000_000 + OUTCALL_CONTEXT_BYTES), Ok(()));
        assert!(told(Some(1_000_001), 1_000_000 + OUTCALL_CONTEXT_BYTES).is_err());
    }
}
