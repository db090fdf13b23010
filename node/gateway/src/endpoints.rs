//! The endpoints that take an envelope: call, query and read_state.
//!
//! Each decodes and authenticates the envelope, checks that its content belongs at the URL, and
//! asks the node. Changing threads costs two wake-ups, so it is done for work that is longer than
//! that or blocks:
//!
//! - Small bodies are decoded where they are, and one or two Ed25519 or P-256 signatures are
//!   verified there, by [`in_place_max`] requests at once; others wait for a blocking thread.
//! - A call is inspected where it is unless its canister has code for that.
//! - A query whose reply is kept is answered where it is.
//!
//! A synchronous call registers among the waiters before it is submitted and reads the certified
//! state after that, so its answer cannot slip through between the two. A call the certified state
//! already knows is not submitted again: that is a retry or a replay, and its status is the answer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use envelope::{
    Envelope, EnvelopeError, MethodCall, Request,
    auth::{self, AuthError, AuthenticatedSender},
    effective::{self, Effective, EffectiveError},
    ingress,
};
use http_server::{ErrorResponse, RUNTIME_THREADS};
use hyper::{Response, StatusCode};
use ic_principal::Principal;
use state::{Ingress, QueryRequest, Reject, RequestId, SignedIngress, Validity};

use crate::{
    answer::{self, Body},
    api::{NO_QUERY_WORKER, Refusal},
    paths::{self, PathError, Scope},
    service::{JobKind, ReceivedBody, Service, no_query_worker},
};

/// Bodies up to this are decoded without changing threads: a fraction of a millisecond at worst.
const INLINE_BYTES: usize = 16 * 1024;
/// A read_state of at most this number of paths is answered without changing threads.
const INLINE_PATHS: usize = 16;

enum QueryThreadOutcome {
    /// A short outcome, not signed yet.
    Short(Result<Vec<u8>, Reject>),
    /// The signed answer to a long one, in the pool of responses.
    Answered(Result<Response<Body>, ErrorResponse>),
}

pub(crate) fn envelope_error(error: EnvelopeError) -> ErrorResponse {
    ErrorResponse::bad_request("envelope", error)
}

pub(crate) fn auth_error(error: AuthError) -> ErrorResponse {
    ErrorResponse::bad_request(error.reason(), error)
}

fn effective_error(error: EffectiveError) -> ErrorResponse {
    ErrorResponse::bad_request("effective_id", error)
}

impl From<PathError> for ErrorResponse {
    fn from(error: PathError) -> Self {
        let status =
            if error.is_forbidden() { StatusCode::FORBIDDEN } else { StatusCode::BAD_REQUEST };
        Self::new(status, "path", error.to_string())
    }
}

impl From<Refusal> for ErrorResponse {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full { message, retry_after_seconds } => Self::busy(
                StatusCode::SERVICE_UNAVAILABLE,
                "ingress_pool",
                message,
                retry_after_seconds,
            ),
            Refusal::Invalid { message } => Self::bad_request("ingress", message),
            Refusal::Unavailable { message } => {
                Self::busy(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message, 5)
            }
        }
    }
}

/// How many requests are verified at once on the threads of the HTTP server. Where the machine has
/// more cores than that, half of the threads stay free, and the other cores verify.
pub(crate) fn in_place_max(verify_threads: u64) -> usize {
    let has_more = verify_threads > RUNTIME_THREADS as u64;
    if has_more { RUNTIME_THREADS.div_ceil(2) } else { RUNTIME_THREADS }
}

/// A request whose sender is known.
struct AuthenticatedRequest {
    envelope: Envelope,
    /// The canonical form of a call; empty for other requests.
    canonical: Vec<u8>,
    checked: RequestCheck,
}

/// Whom a request comes from, and whether it belongs at the URL.
struct RequestCheck {
    authenticated: AuthenticatedSender,
    /// A call of the management canister from whose argument no destination can be read. Such a
    /// call is rejected by the subnet, not by the endpoint (interface specification, "Effective
    /// canister id"); should the subnet find nothing wrong with it, this is the answer.
    without_destination: Option<EffectiveError>,
}

fn check_type(request: &Request, expected: &'static str) -> Result<(), ErrorResponse> {
    let found = request.request_type();
    if found == expected {
        return Ok(());
    }
    let message = format!(
        "`request_type` is \"{found}\", but this endpoint takes \"{expected}\"; send it to the \
         {found} endpoint"
    );
    Err(ErrorResponse::bad_request("request_type", message))
}

/// Of a request whose type was checked before.
fn takes(expected: &'static str) -> ErrorResponse {
    ErrorResponse::bad_request("request_type", format!("this endpoint takes \"{expected}\""))
}

impl Service {
    /// Decodes and authenticates a body, and checks that it is of the type and belongs at the URL.
    async fn authenticate(
        self: &Arc<Self>,
        effective: Effective,
        expected: &'static str,
        body: Bytes,
    ) -> Result<AuthenticatedRequest, ErrorResponse> {
        let mut decoded = None;
        if body.len() <= INLINE_BYTES {
            let (envelope, canonical) = self.decode(expected, &body)?;
            let is_signed = envelope.is_signed();
            let is_quick = is_signed && auth::is_quick(&envelope);
            let place = is_quick.then(|| self.permits.in_place.try_acquire().ok()).flatten();
            if !is_signed || place.is_some() {
                let checked = self.check(effective, expected, &envelope)?;
                return Ok(AuthenticatedRequest { envelope, canonical, checked });
            }
            decoded = Some((envelope, canonical));
        }
        let service = self.clone();
        self.on_places(&self.permits.verify_threads, move || {
            let (envelope, canonical) = match decoded {
                Some(decoded) => decoded,
                None => service.decode(expected, &body)?,
            };
            let checked = service.check(effective, expected, &envelope)?;
            Ok(AuthenticatedRequest { envelope, canonical, checked })
        })
        .await?
    }

    /// An envelope, with its canonical form where a call is expected.
    fn decode(
        &self,
        expected: &'static str,
        body: &[u8],
    ) -> Result<(Envelope, Vec<u8>), ErrorResponse> {
        let decoded = match expected {
            "call" => Envelope::decode_canonical(body, &self.bounds),
            _ => Envelope::decode(body, &self.bounds).map(|envelope| (envelope, Vec::new())),
        };
        decoded.map_err(envelope_error)
    }

    fn check(
        &self,
        effective: Effective,
        expected: &'static str,
        envelope: &Envelope,
    ) -> Result<RequestCheck, ErrorResponse> {
        let request = &envelope.content.request;
        check_type(request, expected)?;
        let authenticated = match request {
            Request::Call(_) => auth::authenticate(envelope, self.node.block_time(), &self.auth)
                .map_err(|error| self.with_clock_fault(error))?,
            _ => auth::authenticate(envelope, self.node.now(), &self.auth).map_err(auth_error)?,
        };
        let fits = match (request, effective) {
            (Request::Call(call) | Request::Query(call), _) => {
                let query = matches!(request, Request::Query(_));
                effective::check(&effective, call, query, &self.config.subnet_id, |id| {
                    self.node.hosts(id)
                })
            }
            (Request::ReadState(_), Effective::Subnet(url)) if url != self.config.subnet_id => {
                Err(EffectiveError::OtherSubnet { url, own: self.config.subnet_id })
            }
            (Request::ReadState(_), _) => Ok(()),
        };
        let without_destination = match fits {
            Ok(()) => None,
            Err(error @ EffectiveError::NoDestination { .. }) => Some(error),
            Err(error) => return Err(effective_error(error)),
        };
        Ok(RequestCheck { authenticated, without_destination })
    }

    /// The refusal of a call with an unsuitable expiry also states the fault of this node's clock,
    /// if there is one.
    pub(crate) fn with_clock_fault(&self, error: AuthError) -> ErrorResponse {
        let is_expiry = matches!(error, AuthError::Expired { .. } | AuthError::TooFarAhead { .. });
        let fault = self.node.clock_fault().filter(|_| is_expiry);
        let mut refused = auth_error(error);
        if let Some(fault) = fault {
            refused.message = format!("{} This node's clock: {fault}", refused.message);
        }
        refused
    }

    /// Whether the call fits a message.
    fn check_size(&self, call: &MethodCall) -> Result<(), ErrorResponse> {
        let bytes = (call.arg.len() + call.method_name.len()) as u64;
        let limit = self.config.call_bytes;
        if bytes <= limit {
            return Ok(());
        }
        let message = format!(
            "the call has {bytes} bytes of method name and argument, over the limit \
             message_payload_bytes = {limit}"
        );
        Err(ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, "message_payload_bytes", message))
    }

    /// `call`: asynchronous (v2), or synchronous (v3, v4) for a client that has waited since
    /// `waits_since`.
    pub(crate) async fn call(
        self: &Arc<Self>,
        effective: Effective,
        waits_since: Option<Instant>,
        body: ReceivedBody,
    ) -> Result<Response<Body>, ErrorResponse> {
        self.latest()?;
        let ReceivedBody { bytes, reservation } = body;
        let AuthenticatedRequest { envelope, canonical, checked } =
            self.authenticate(effective, "call", bytes).await?;
        let RequestCheck { authenticated, without_destination } = checked;
        let (id, expiry) = (envelope.request_id, envelope.content.ingress_expiry);
        let validity = auth::validity(&envelope, &self.auth);
        let Request::Call(call) = envelope.content.request else {
            return Err(takes("call"));
        };
        let effective_id = effective::of_call(&call, effective.id());
        // No view is held while waiting: it would keep an old state alive.
        let known = self.latest()?.request(&id);
        if let Some(known) = known {
            drop(reservation);
            return match (waits_since, known.terminal) {
                (None, _) => Ok(answer::accepted()),
                (Some(_), true) => self.certified_answer(&id),
                (Some(_), false) => self.wait_for_certificate(id, None).await,
            };
        }
        self.check_size(&call)?;
        let ingress = ingress(id, expiry, effective_id, call, authenticated);
        let (ingress, inspected) = self.inspect(effective_id, ingress).await?;
        if let Err(reject) = inspected {
            if reject.error_code == NO_QUERY_WORKER {
                return Err(no_query_worker(
                    self.config.queries.wait,
                    StatusCode::SERVICE_UNAVAILABLE,
                ));
            }
            self.metrics.count_refusal("inspect");
            return self.reserve_cbor(answer::rejected_call(&reject, waits_since.is_some()));
        }
        if let Some(error) = without_destination {
            return Err(effective_error(error));
        }
        // Without unsigned and unused fields. The received bytes may be a piece of a larger read
        // buffer, which must not live for as long as the call waits.
        let envelope = Bytes::from(canonical);
        let (size, limit) = (envelope.len() as u64, self.config.limits.body_bytes);
        if size > limit {
            let message = format!(
                "the envelope takes {size} bytes in canonical form, over the limit \
                 gateway.body_bytes = {limit}"
            );
            return Err(ErrorResponse::bad_request("envelope", message));
        }
        let signed = SignedIngress { effective_canister_id: effective_id, envelope };
        // From here the ingress pool accounts for the message.
        drop(reservation);
        let Some(since) = waits_since else {
            self.node.submit(ingress, signed, validity)?;
            return Ok(answer::accepted());
        };
        let answer = self.wait_for_certificate(id, Some((ingress, signed, validity))).await?;
        // A call that was known before is no measure: it is answered at once, or started earlier
        // than this.
        if answer.status() == StatusCode::OK {
            self.config.latencies.record_update(since.elapsed());
        }
        Ok(answer)
    }

    /// The non-replicated check of a call: here, unless code of its canister has to run.
    async fn inspect(
        &self,
        effective_id: Principal,
        ingress: Ingress,
    ) -> Result<(Ingress, Result<(), Reject>), ErrorResponse> {
        // The argument of a management call is decoded.
        let is_long = ingress.canister_id == Principal::management_canister()
            && ingress.arg.len() > INLINE_BYTES;
        let at_once = if is_long { None } else { self.node.inspect_at_once(&ingress) };
        if let Some(inspected) = at_once {
            return Ok((ingress, inspected));
        }
        let node = self.node.clone();
        self.on_thread(JobKind::Inspect(effective_id), move || {
            let inspected = node.inspect(&ingress);
            (ingress, inspected)
        })
        .await
    }

    /// Submits a call, if it is not known yet, and waits until it is certified or the wait is over.
    async fn wait_for_certificate(
        self: &Arc<Self>,
        id: RequestId,
        call: Option<(Ingress, SignedIngress, Validity)>,
    ) -> Result<Response<Body>, ErrorResponse> {
        let waiter = self.waiters.register(id);
        if let Some((ingress, signed, validity)) = call {
            self.node.submit(ingress, signed, validity)?;
        }
        let Some(mut waiter) = waiter else {
            // The call is on its way; only the waiting is refused.
            self.metrics.count_refusal("sync_calls_waiting");
            return Ok(answer::accepted());
        };
        if !self.is_finished(&id) {
            let wait = Duration::from_millis(self.config.limits.sync_call_wait_millis);
            tokio::select! {
                () = waiter.wait_certified() => {}
                () = tokio::time::sleep(wait) => {}
                () = self.draining() => {}
            }
            if !self.is_finished(&id) {
                return Ok(answer::accepted());
            }
        }
        self.certified_answer(&id)
    }

    fn is_finished(&self, id: &RequestId) -> bool {
        self.node.latest().and_then(|view| view.request(id)).is_some_and(|facts| facts.terminal)
    }

    fn certified_answer(&self, id: &RequestId) -> Result<Response<Body>, ErrorResponse> {
        let path = vec![b"request_status".to_vec(), id.0.to_vec()];
        let body = self.latest()?.certificate_behind(&[path], &answer::certified_call_head);
        // Without room for the certificate the call is still accepted; the client polls for it.
        self.reserve_cbor(body).or_else(|refused| {
            self.metrics.count_refusal(refused.reason);
            Ok(answer::accepted())
        })
    }

    /// Serves a query call: authenticates it, runs it on a query thread unless its reply is kept,
    /// and signs the response.
    pub(crate) async fn query(
        self: &Arc<Self>,
        effective: Effective,
        body: ReceivedBody,
    ) -> Result<Response<Body>, ErrorResponse> {
        self.latest()?;
        let ReceivedBody { bytes, reservation } = body;
        let AuthenticatedRequest { envelope, checked, .. } =
            self.authenticate(effective, "query", bytes).await?;
        let RequestCheck { authenticated, without_destination } = checked;
        let Request::Query(call) = envelope.content.request else {
            return Err(takes("query"));
        };
        let id = envelope.request_id;
        let query = QueryRequest {
            sender: authenticated.sender,
            canister_id: call.canister_id,
            method_name: call.method_name,
            arg: call.arg,
            sender_info: authenticated.sender_info,
        };
        if without_destination.is_none()
            && query.arg.len() <= INLINE_BYTES
            && let Some(reply) = self.node.kept_reply(&query, INLINE_BYTES)
        {
            return self.kept_answer(&id, &reply);
        }
        let service = self.clone();
        let ran = self.on_thread(JobKind::Query(effective.id()), move || {
            let _reservation = reservation;
            match (service.node.query(query), without_destination) {
                (Err(reject), _) if reject.error_code == NO_QUERY_WORKER => {
                    let status = StatusCode::TOO_MANY_REQUESTS;
                    QueryThreadOutcome::Answered(Err(no_query_worker(
                        service.config.queries.wait,
                        status,
                    )))
                }
                (Ok(_), Some(error)) => QueryThreadOutcome::Answered(Err(effective_error(error))),
                // No long reply is held outside the pool of responses: the thread continues with
                // the next query, whether or not this one's reply is taken.
                (Ok(reply), None) if reply.len() > INLINE_BYTES => {
                    QueryThreadOutcome::Answered(service.query_answer(&id, Ok(&reply)))
                }
                (outcome, _) => QueryThreadOutcome::Short(outcome),
            }
        });
        match ran.await? {
            QueryThreadOutcome::Answered(answer) => answer,
            QueryThreadOutcome::Short(outcome) => self.query_answer(&id, outcome.as_deref()),
        }
    }

    fn query_answer(
        &self,
        id: &RequestId,
        outcome: Result<&[u8], &Reject>,
    ) -> Result<Response<Body>, ErrorResponse> {
        self.reserve_cbor(self.signer.query_response(id, outcome, self.node.now()))
    }

    /// The answer with a kept reply. The signature is that of a moment ago if the same request was
    /// answered with the same reply then, unless a later state was certified since.
    fn kept_answer(&self, id: &RequestId, reply: &[u8]) -> Result<Response<Body>, ErrorResponse> {
        let (now, certified) = (self.node.now(), self.latest()?.time());
        let body = self.signed_answers.get(id, reply, certified, now).unwrap_or_else(|| {
            let body = Bytes::from(self.signer.query_response(id, Ok(reply), now));
            self.signed_answers.put(id, reply, now, &body);
            body
        });
        self.reserve_shared(body).map(answer::cbor)
    }

    /// Serves `read_state`: a certificate of the paths, if the sender may see all of them.
    pub(crate) async fn read_state(
        self: &Arc<Self>,
        effective: Effective,
        v2: bool,
        body: ReceivedBody,
    ) -> Result<Response<Body>, ErrorResponse> {
        self.latest()?;
        let ReceivedBody { bytes, reservation } = body;
        let AuthenticatedRequest { envelope, checked, .. } =
            self.authenticate(effective, "read_state", bytes).await?;
        let authenticated = checked.authenticated;
        let Request::ReadState(paths) = envelope.content.request else {
            return Err(takes("read_state"));
        };
        let hosted = match &effective {
            Effective::Canister(id) => self.node.hosts(id),
            Effective::Subnet(_) => true,
        };
        let many = paths.len() > INLINE_PATHS;
        let view = self.latest()?;
        let service = self.clone();
        let certify = move || {
            let _reservation = reservation;
            let scope = Scope {
                effective: &effective,
                v2,
                own_subnet: &service.config.subnet_id,
                root_subnet: &service.root_subnet_id,
                hosted,
            };
            let paths = paths::permitted(paths, &scope, &authenticated, view.as_ref())?;
            service.reserve_cbor(view.certificate_behind(&paths, &answer::certificate_head))
        };
        match many {
            true => self.on_places(&self.permits.verify_threads, certify).await?,
            false => certify(),
        }
    }
}
