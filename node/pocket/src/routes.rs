//! Requests: which operation each is, and the form of its answer.
//!
//! An operation of an instance waits for its turn in the instance's queue. Where that is full the
//! answer is 409, and the client tries again; where the outcome takes longer than [`SYNC_WAIT`] (or
//! what the client states), it is 202 with a name under which the client asks for it. Requests
//! below `/instances/<n>/api/` are handed to the endpoints of the interface specification. Requests
//! of other web pages are refused first ([`crate::access`]).

use std::{
    sync::{Arc, PoisonError, atomic::Ordering, mpsc::TrySendError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use envelope::auth::AuthConfig;
use http_server::{
    BodyError, HttpHandler, Outgoing, PoolBudget, RequestBody, check_content_type, discard,
    read_body, respond,
};
use hyper::{
    Method, Request, Response, StatusCode, Uri, Version,
    body::{Body as _, Incoming},
    header::{self, HeaderValue},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::oneshot;

use crate::{
    bounds::{BODY_BYTES, CONNECTIONS},
    dashboard_page,
    graph::OperationStatus,
    instance::{Command, Handle, Instance},
    operations::{Failure, Outcome, json, topology},
    outcalls::RawMock,
    rest::{
        ApiError, AutoProgressConfig, Creation, HttpGatewayBackend, HttpGatewayConfig,
        InstanceConfig, RawCanisterId, RawSetStableMemory, RawTickConfigs, RawVerifyCanisterSig,
        StartedOperation,
    },
    server::{Server, mount},
};

/// How long a request waits for the outcome of its operation. Below the time after which clients
/// give a request up.
const SYNC_WAIT: Duration = Duration::from_secs(10);
/// Where a client states another time, in milliseconds, and the most that counts.
const WAIT_HEADER: &str = "processing-timeout-ms";
const SYNC_WAIT_MAX: Duration = Duration::from_secs(600);
/// The Python client takes 202 for the outcome and does not ask again, so it waits with its
/// request. It gives a call up after 100 ticks, so a tick of it completes what is paused. Its HTTP
/// library names itself.
const PATIENT_AGENT: &str = "python-requests/";
const PATIENT_WAIT: Duration = Duration::from_secs(3_600);
/// Time to send a body; for a blob, time before it must have the least rate.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes per second at least of a blob: clients are on the same machine.
const BLOB_RATE_MIN: u64 = 1 << 20;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";

type RouteResult = Result<Response<Outgoing>, Failure>;

/// A response. Web pages may neither read nor run what is served here.
fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Outgoing> {
    let mut response = respond(status, kind, Outgoing::short(body));
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let same_origin = HeaderValue::from_static("same-origin");
    headers.insert("cross-origin-resource-policy", same_origin);
    let policy = HeaderValue::from_static(dashboard_page::POLICY);
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

fn in_json<T: Serialize + ?Sized>(status: StatusCode, body: &T) -> RouteResult {
    Ok(answer(status, JSON, json(body)?))
}

fn done<T: Serialize + ?Sized>(body: &T) -> RouteResult {
    in_json(StatusCode::OK, body)
}

impl From<Failure> for Response<Outgoing> {
    fn from(failure: Failure) -> Self {
        let body = json(&ApiError { message: failure.message }).unwrap_or_default();
        answer(failure.status, JSON, body)
    }
}

/// The instance that an operation is for, and how long its client waits with the request.
struct Target {
    handle: Arc<Handle>,
    wait: Duration,
}

fn wait_of<B>(request: &Request<B>) -> Duration {
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let stated = text(WAIT_HEADER).and_then(|text| text.parse().ok()).map(Duration::from_millis);
    match stated {
        Some(stated) => stated.min(SYNC_WAIT_MAX),
        None if is_patient(request) => PATIENT_WAIT,
        None => SYNC_WAIT,
    }
}

/// Whether the client waits for every outcome with its request.
fn is_patient<B>(request: &Request<B>) -> bool {
    let agent = request.headers().get(header::USER_AGENT);
    agent.is_some_and(|agent| agent.as_bytes().starts_with(PATIENT_AGENT.as_bytes()))
}

fn not_found(what: impl Into<String>) -> Failure {
    Failure { status: StatusCode::NOT_FOUND, message: what.into() }
}

/// The client is to try again: 409 in the protocol.
fn busy(what: &str) -> RouteResult {
    let body = StartedOperation { state_label: what.to_owned(), op_id: "busy".to_owned() };
    in_json(StatusCode::CONFLICT, &body)
}

impl HttpHandler for Server {
    type ConnectionState = ();

    fn connection_state(&self) {}

    fn read_timeout(&self) -> Duration {
        READ_TIMEOUT
    }

    fn connections_limit(&self) -> (&'static str, u64) {
        ("connections", CONNECTIONS)
    }

    fn count_refusal(&self, reason: &'static str) {
        if self.has_refused_connection.swap(true, Ordering::Relaxed) {
            tracing::debug!(reason, "a connection was refused");
        } else {
            tracing::warn!(reason, "connections are refused; only the first is logged");
        }
    }

    fn count_eviction(&self) {
        tracing::debug!("an idle connection is closed for a new one");
    }

    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        _state: Arc<()>,
    ) -> impl Future<Output = Response<Outgoing>> + Send {
        // A client that ends deletes its instance and seldom waits for the answer.
        let deletes = request.method() == Method::DELETE;
        let answer = self.respond(request);
        let answer = if deletes { Ok(tokio::spawn(answer)) } else { Err(answer) };
        async {
            match answer {
                Ok(deleting) => deleting.await.unwrap_or_else(|error| Failure::bad(error).into()),
                Err(answer) => answer.await,
            }
        }
    }
}

impl Server {
    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Response<Outgoing> {
        let _busy = self.activity.begin();
        let path = request.uri().path().to_owned();
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let public = match segments.as_slice() {
            ["instances", number, "api", ..] => Some(*number),
            _ => None,
        };
        let has_body = has_body(&request);
        if let Err(refused) = self.access.check(&request, public.is_some()) {
            return closing(refused.into(), has_body);
        }
        if let Some(number) = public {
            return self.api(number, request).await;
        }
        let served = self.serve(&segments, request).await;
        closing(served.unwrap_or_else(Response::from), has_body)
    }

    async fn serve(self: &Arc<Self>, path: &[&str], request: Request<Incoming>) -> RouteResult {
        let method = request.method().clone();
        match (method.as_str(), path) {
            ("GET", ["status"]) => Ok(answer(StatusCode::OK, TEXT, "")),
            ("POST", ["blobstore"]) => Ok(self.store_blob(request).await),
            ("GET", ["blobstore", id]) => self.fetch_blob(id),
            ("POST", ["verify_signature"]) => {
                let signed: RawVerifyCanisterSig = self.body(request).await?;
                let verified = tokio::task::spawn_blocking(move || verify(&signed)).await;
                let verified = verified.map_err(Failure::bad)?;
                done(&verified)
            }
            ("GET", ["read_graph", _, number]) => self.read_outcome(number),
            ("DELETE", ["prune_graph", _, number]) => {
                number.parse().into_iter().for_each(|number| self.graph.forget(number));
                done(&())
            }
            ("GET", ["instances"]) => done(&self.list()),
            ("POST", ["instances"]) => self.create_instance(request).await,
            ("DELETE", ["instances", number]) => {
                let deleted = self.delete(numbered(number)?).await;
                deleted.ok_or_else(|| no_instance(number))??;
                done(&())
            }
            (_, ["instances", number, rest @ ..]) => {
                let handle = self.handle(number)?;
                self.of_instance(&handle, rest, request).await
            }
            ("GET", ["http_gateway"]) => done(&self.gateways.list().await),
            ("POST", ["http_gateway"]) => self.create_gateway(request).await,
            ("POST", ["http_gateway", number, "stop"]) => {
                self.gateways.close(numbered(number)?).await;
                done(&())
            }
            _ => Err(not_found(format!("nothing is served for {method} /{}", path.join("/")))),
        }
    }

    fn handle(&self, number: &str) -> Result<Arc<Handle>, Failure> {
        self.instance(numbered(number)?).ok_or_else(|| no_instance(number))
    }

    /// Hands a request to the endpoints of the interface specification.
    async fn api(self: &Arc<Self>, number: &str, request: Request<Incoming>) -> Response<Outgoing> {
        let handle = match self.handle(number) {
            Ok(handle) => handle,
            Err(failure) => return closing(failure.into(), has_body(&request)),
        };
        let endpoints = match handle.endpoints.get() {
            Some(endpoints) => endpoints,
            None => match mount(&handle, self) {
                // Another request may have mounted them meanwhile; one of the two is used.
                Ok(mounted) => handle.endpoints.get_or_init(|| mounted),
                Err(error) => return Failure::from(error).into(),
            },
        };
        let (mut parts, body) = request.into_parts();
        // `/instances/<n>` is cut off.
        let from = "/instances/".len() + number.len();
        let rest = parts.uri.path_and_query().and_then(|path| path.as_str().get(from..));
        let Some(Ok(uri)) = rest.map(str::parse::<Uri>) else {
            return not_found("no such endpoint").into();
        };
        parts.uri = uri;
        endpoints.answer(Request::from_parts(parts, body)).await
    }

    async fn of_instance(
        self: &Arc<Self>,
        handle: &Arc<Handle>,
        path: &[&str],
        request: Request<Incoming>,
    ) -> RouteResult {
        let target = &Target { handle: handle.clone(), wait: wait_of(&request) };
        match (request.method().as_str(), path) {
            ("GET", ["auto_progress"]) => done(&handle.makes_progress.load(Ordering::Acquire)),
            ("GET", ["_", "topology"]) => done(&topology(&handle.shared.subnets)),
            ("GET", ["_", "dashboard"]) => {
                let server = self.clone();
                let page = move |at: &mut Instance| at.dashboard(&server.bounds);
                let mut response = self.operate(target, page).await?;
                if response.status() == StatusCode::OK {
                    let html = HeaderValue::from_static("text/html; charset=utf-8");
                    response.headers_mut().insert(header::CONTENT_TYPE, html);
                }
                Ok(response)
            }
            ("POST", ["auto_progress"]) => {
                let config: AutoProgressConfig = self.body(request).await?;
                let delay = Duration::from_millis(config.artificial_delay_ms.unwrap_or(0));
                self.operate(target, move |instance| {
                    instance.set_progress(Some(delay))?;
                    json(&())
                })
                .await
            }
            ("POST", ["stop_progress"]) => {
                self.operate(target, |instance| {
                    instance.set_progress(None)?;
                    json(&())
                })
                .await
            }
            ("GET", ["read", what]) => self.read(target, what).await,
            ("POST", ["read", what]) => self.read_with(target, what, request).await,
            ("POST", ["update", what]) => self.update(target, what, request).await,
            (method, path) => Err(not_found(format!(
                "an instance serves nothing for {method} {}",
                path.join("/")
            ))),
        }
    }

    async fn read(self: &Arc<Self>, target: &Target, what: &str) -> RouteResult {
        match what {
            "topology" => self.operate(target, Instance::topology).await,
            "get_time" => self.operate(target, Instance::get_time).await,
            "get_canister_http" => {
                let room = self.bounds.outcalls.clone();
                self.operate(target, move |at| at.pending_outcalls(&room)).await
            }
            _ => Err(not_found(format!("there is no read/{what}"))),
        }
    }

    async fn read_with(
        self: &Arc<Self>,
        target: &Target,
        what: &str,
        request: Request<Incoming>,
    ) -> RouteResult {
        match what {
            "query" => self.with(target, request, Instance::query).await,
            "get_cycles" => self.with(target, request, Instance::get_cycles).await,
            "get_controllers" => self.with(target, request, Instance::get_controllers).await,
            "get_stable_memory" => {
                let server = self.clone();
                let get = move |at: &mut Instance, id: RawCanisterId| {
                    at.get_stable_memory(&id, &server.bounds)
                };
                self.with(target, request, get).await
            }
            "get_subnet" => self.with(target, request, Instance::get_subnet).await,
            "pub_key" => self.with(target, request, Instance::pub_key).await,
            "ingress_status" => self.with(target, request, Instance::ingress_status).await,
            _ => Err(not_found(format!("there is no read/{what}"))),
        }
    }

    async fn update(
        self: &Arc<Self>,
        target: &Target,
        what: &str,
        request: Request<Incoming>,
    ) -> RouteResult {
        match what {
            "submit_ingress_message" => self.with(target, request, Instance::submit).await,
            "await_ingress_message" => self.with(target, request, Instance::await_message).await,
            "execute_ingress_message" => self.with(target, request, Instance::execute).await,
            "set_time" => self.with(target, request, |at, time| at.set_time(time, false)).await,
            "set_certified_time" => {
                self.with(target, request, |at, time| at.set_time(time, true)).await
            }
            "add_cycles" => self.with(target, request, Instance::add_cycles).await,
            "set_stable_memory" => {
                let server = self.clone();
                let set = move |at: &mut Instance, set: RawSetStableMemory| {
                    let content = server.blobs.open(&set.blob_id.0);
                    let content = content.map_err(Failure::bad)?;
                    at.set_stable_memory(&set, content)
                };
                self.with(target, request, set).await
            }
            "tick" => {
                let completes_paused = is_patient(&request);
                let tick = move |at: &mut Instance, configs: RawTickConfigs| {
                    at.tick(&configs, completes_paused)
                };
                self.with(target, request, tick).await
            }
            "mock_canister_http" => {
                let room = self.bounds.outcalls.clone();
                let mock = move |at: &mut Instance, mock: RawMock| at.mock_outcall(mock, &room);
                self.with(target, request, mock).await
            }
            "mock_flexible_canister_http" => {
                self.with(target, request, Instance::mock_flexible_outcall).await
            }
            "canister_snapshot_download" | "canister_snapshot_upload" => {
                Err(Failure::not_offered("moving a canister snapshot by a folder"))
            }
            "delete_subnet" => Err(Failure::not_offered("deleting a subnet")),
            _ => Err(not_found(format!("there is no update/{what}"))),
        }
    }

    /// An operation with what the body says.
    async fn with<T: DeserializeOwned + Send + 'static>(
        self: &Arc<Self>,
        target: &Target,
        request: Request<Incoming>,
        operation: impl FnOnce(&mut Instance, T) -> Outcome + Send + 'static,
    ) -> RouteResult {
        let Some(body) = self.read_body(request).await? else { return busy("bodies") };
        let argument = parse(&body.bytes)?;
        // A short body is a part of the connection's buffer, which nothing else is to keep.
        let Body { bytes, room } = body;
        drop(bytes);
        self.operate(target, move |instance| {
            let _room = room;
            operation(instance, argument)
        })
        .await
    }

    async fn body<T: DeserializeOwned>(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<T, Failure> {
        match self.read_body(request).await? {
            Some(body) => parse(&body.bytes),
            None => Err(Failure {
                status: StatusCode::SERVICE_UNAVAILABLE,
                message: "the pool of request bodies is full; try again".to_owned(),
            }),
        }
    }

    /// Has the instance do it, when its turn comes.
    async fn operate(
        self: &Arc<Self>,
        target: &Target,
        operation: impl FnOnce(&mut Instance) -> Outcome + Send + 'static,
    ) -> RouteResult {
        let handle = &target.handle;
        let failure = handle.failure.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(reason) = failure {
            return Err(Failure::bad(format!("the instance cannot continue: {reason}")));
        }
        let (outcome_tx, mut outcome_rx) = oneshot::channel();
        let command = Command::Do(Box::new(move |instance| {
            // The client may be gone.
            let _ = outcome_tx.send(operation(instance));
        }));
        match handle.commands.try_send(command) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return busy("operations_waiting"),
            Err(TrySendError::Disconnected(_)) => {
                return Err(not_found("the instance was deleted"));
            }
        }
        match tokio::time::timeout(target.wait, &mut outcome_rx).await {
            Ok(Ok(outcome)) => Ok(answer(StatusCode::OK, JSON, outcome?)),
            Ok(Err(_)) => Err(Failure::bad("the instance ended before the operation did")),
            Err(_) => {
                let op_id = self.graph.keep(outcome_rx).to_string();
                let started = StartedOperation { state_label: "started".to_owned(), op_id };
                in_json(StatusCode::ACCEPTED, &started)
            }
        }
    }

    fn read_outcome(&self, number: &str) -> RouteResult {
        let found =
            number.parse().map_or(OperationStatus::Gone, |number| self.graph.status(number));
        match found {
            OperationStatus::Outcome(outcome) => Ok(answer(StatusCode::OK, JSON, outcome?)),
            // Clients ask again as long as they are answered 404.
            OperationStatus::Pending => Err(not_found("the operation is still running; ask again")),
            OperationStatus::Gone => Err(Failure::bad(self.graph.gone_message(number))),
        }
    }

    async fn create_instance(self: &Arc<Self>, request: Request<Incoming>) -> RouteResult {
        let made: anyhow::Result<_> = async {
            let config: InstanceConfig =
                self.body(request).await.map_err(|failure| anyhow::anyhow!(failure.message))?;
            self.make(config).await
        }
        .await;
        creation(made)
    }

    async fn create_gateway(self: &Arc<Self>, request: Request<Incoming>) -> RouteResult {
        let made: anyhow::Result<_> = async {
            let config: HttpGatewayConfig =
                self.body(request).await.map_err(|failure| anyhow::anyhow!(failure.message))?;
            let HttpGatewayBackend::PocketIcInstance(number) = config.forward_to else {
                anyhow::bail!("an HTTP gateway of a replica elsewhere is not offered");
            };
            let handle = self.instance(number);
            let handle = handle.ok_or_else(|| anyhow::anyhow!("no instance {number}"))?;
            self.gateways.open(&config.listen, (number, &handle), self).await
        }
        .await;
        creation(made)
    }

    async fn store_blob(&self, request: Request<Incoming>) -> Response<Outgoing> {
        match self.read_blob(request).await {
            Ok(id) => answer(StatusCode::OK, TEXT, hex::encode(id)),
            Err(message) => answer(StatusCode::BAD_REQUEST, TEXT, message),
        }
    }

    async fn read_blob(&self, request: Request<Incoming>) -> Result<[u8; 32], String> {
        let encoding = request.headers().get(header::CONTENT_ENCODING);
        let is_compressed = match encoding.map(HeaderValue::as_bytes) {
            None => false,
            Some(b"gzip") => true,
            Some(_) => {
                return Err("blobs are taken as they are or with the encoding gzip".to_owned());
            }
        };
        let mut body = RequestBody::from(request);
        let begun = self.blobs.begin(is_compressed);
        let mut blob = begun.map_err(|error| error.to_string())?;
        let (started, mut received) = (Instant::now(), 0);
        loop {
            let time = READ_TIMEOUT + Duration::from_secs(received / BLOB_RATE_MIN);
            let left = time.saturating_sub(started.elapsed());
            let next = tokio::time::timeout(left, body.frame()).await.map_err(|_| {
                format!(
                    "{received} bytes of the blob arrived within {time:?}; after {READ_TIMEOUT:?} \
                     it must come with blob_rate_min = {BLOB_RATE_MIN} bytes per second"
                )
            })?;
            let Some(frame) = next else { return blob.finish() };
            let frame = frame.map_err(|error| error.to_string())?;
            let Some(bytes) = frame.data_ref() else { continue };
            received += bytes.len() as u64;
            if let Err(refusal) = blob.write(bytes) {
                drop(blob);
                discard(&mut body, BODY_BYTES).await;
                return Err(refusal);
            }
        }
    }

    fn fetch_blob(&self, id: &str) -> RouteResult {
        let id = hex::decode(id).map_err(Failure::bad)?;
        let Some((path, is_compressed)) = self.blobs.raw(&id).map_err(Failure::bad)? else {
            return Err(not_found("no such blob"));
        };
        let bytes = std::fs::metadata(&path).map_err(Failure::bad)?.len();
        if bytes > BODY_BYTES {
            return Err(Failure::bad(format!(
                "the blob has {bytes} bytes, the most that is sent is body_bytes = {BODY_BYTES}"
            )));
        }
        let content = std::fs::read(path).map_err(Failure::bad)?;
        let mut response = answer(StatusCode::OK, "application/octet-stream", content);
        if is_compressed {
            let gzip = HeaderValue::from_static("gzip");
            response.headers_mut().insert(header::CONTENT_ENCODING, gzip);
        }
        Ok(response)
    }

    /// Reads a body of JSON. None if there is no room for it now.
    async fn read_body(&self, request: Request<Incoming>) -> Result<Option<Body>, Failure> {
        // Nothing of another type is kept.
        let is_json = check_content_type(request.headers(), "application/json").is_ok();
        let limit = if is_json { BODY_BYTES } else { 0 };
        let mut body = RequestBody::from(request);
        // Once as it came, once decoded.
        let Ok(mut room) = PoolBudget::new(&self.bounds.bodies, |received, _| 2 * received) else {
            return Ok(None);
        };
        let (status, message) = match read_body(&mut body, &mut room, limit, READ_TIMEOUT).await {
            Ok(bytes) => return Ok(Some(Body { bytes, room: room.into_reservation() })),
            Err(BodyError::Incomplete(error)) => return Err(Failure::bad(error)),
            Err(BodyError::TimedOut) => {
                let message = format!("the body did not arrive within {READ_TIMEOUT:?}");
                return Err(Failure { status: StatusCode::REQUEST_TIMEOUT, message });
            }
            Err(BodyError::Full(_)) => {
                drop(room);
                discard(&mut body, BODY_BYTES).await;
                return Ok(None);
            }
            Err(BodyError::TooLarge(_)) if limit == 0 => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the body must have the content type application/json".to_owned(),
            ),
            Err(BodyError::TooLarge(_)) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body has more bytes than the limit body_bytes = {BODY_BYTES}"),
            ),
        };
        // The answer announces the end of the connection in either case.
        discard(&mut body, BODY_BYTES).await;
        Err(Failure { status, message })
    }
}

/// Whether bytes of a body follow the head of a request on its connection.
fn has_body(request: &Request<Incoming>) -> bool {
    request.version() != Version::HTTP_2 && !request.body().is_end_stream()
}

/// Announces the end of the connection in a refusal: unread bytes of the request's body may end it.
fn closing(mut response: Response<Outgoing>, has_body: bool) -> Response<Outgoing> {
    if has_body && !response.status().is_success() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

struct Body {
    bytes: Bytes,
    /// For the bytes and what is decoded from them.
    room: accounting::Reservation,
}

/// The JSON of the created item, or of the reason why there is none.
fn creation<T: Serialize>(made: anyhow::Result<T>) -> RouteResult {
    match made {
        Ok(made) => in_json(StatusCode::CREATED, &Creation::Created(made)),
        Err(error) => {
            let error = Creation::<()>::Error { message: format!("{error:#}") };
            in_json(StatusCode::BAD_REQUEST, &error)
        }
    }
}

/// Whether a canister signature is one, by a root key.
fn verify(signed: &RawVerifyCanisterSig) -> Result<(), String> {
    let root_key = nidkg::public_key_from_der(&signed.root_pubkey.0)
        .map_err(|error| format!("invalid root public key: {error}"))?;
    let auth = AuthConfig::new(root_key, Duration::ZERO, Duration::ZERO);
    if auth.is_canister_signature(&signed.pubkey.0, &signed.msg.0, &signed.sig.0) {
        return Ok(());
    }
    Err("the signature is not that of the canister key over the message".to_owned())
}

fn numbered(number: &str) -> Result<u64, Failure> {
    number.parse().map_err(|_| not_found(format!("{number} is no number")))
}

fn no_instance(number: &str) -> Failure {
    not_found(format!("there is no instance {number}: it was deleted, or never made"))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    // Requests without an argument come with an empty body from some clients.
    let body = if body.is_empty() { b"null" } else { body };
    serde_json::from_slice(body).map_err(|error| Failure::bad(format!("the body: {error}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn clients_that_do_not_poll_are_waited_for() {
        for (name, value, seconds) in [
            ("user-agent", "python-requests/2.34.2", 3_600),
            ("user-agent", "node", 10),
            ("accept", "*/*", 10),
            (WAIT_HEADER, "3000", 3),
            (WAIT_HEADER, "86400000", 600),
        ] {
            let request = Request::builder().header(name, value).body(()).unwrap();
            assert_eq!(wait_of(&request), Duration::from_secs(seconds), "{name}: {value}");
        }
    }
}
