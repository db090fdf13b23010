//! The service behind every connection: admits a request, reads its body, and hands it to its
//! endpoint.
//!
//! A request passes these permits, each with its own answer: a place among the requests in flight
//! (503), for queries a place among the queries (429), the content type (415), the announced and
//! the real length of the body (413), room in the pool of bodies (503), and the read timeout (408).
//! Health, metrics, status, report, heap profile and dashboard do not pass the first check, so that
//! an operator sees an overloaded node. Operator pages (metrics, report, heap profile, dashboard)
//! are served to programs and to the node's own page only: other values of `Host` and `Origin`, and
//! requests that a browser marks as another site's, are refused (421, 403).
//!
//! A refusal of a request whose body was not read to its end announces that the connection is
//! closed after it; a short body is read first, and the connection stays.
//!
//! Work that takes a thread (long signatures, canister code, queries, scrapes, reports) runs on the
//! runtime's blocking threads, each kind in places of its own, those of queries and inspections
//! shared fairly between canisters (see [`JobQueue`]). So blocking threads
//! are bounded even when clients leave while their work runs.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use accounting::{PoolFull, Reservation};
use bytes::Bytes;
use dashboard::page;
use envelope::{EnvelopeBounds, auth::AuthConfig, effective::Effective};
use http_server::{
    BodyBudget, BodyError, ConnectionSettings, ErrorResponse, HttpHandler, Outgoing, PoolBudget,
    RequestBody, Stage, check_content_type,
    connections::Connections,
    discard, metrics,
    origin::{OriginHeaders, check_origin},
    read_body, respond, with_reservation, with_unread,
};
use hyper::{Method, Request, Response, StatusCode, body::Incoming};
use ic_principal::Principal;
use prometheus_client::registry::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};

use crate::{
    GatewayConfig,
    answer::{self, Body, NodeSigner, Readers},
    api::{CertifiedView, HeapProfileError, Node, RequestKind},
    endpoints::in_place_max,
    job_queue::{JobError, JobQueue},
    metrics::{Metrics, Pools},
    routes::{self, Operation, Route},
    signed_answers::SignedAnswers,
    waiters::Waiters,
};

/// Scrapes encoded at once; they hold the registry's lock anyway.
const SCRAPES_MAX: usize = 2;
/// Reports made at once; each is for one page that looks once per second.
const REPORTS_MAX: usize = 2;
const HEAP_PROFILES_MAX: usize = 1;
/// Time for one, and for those before it.
const HEAP_PROFILE_TIME: Duration = Duration::from_secs(10);

/// Everything endpoints need. One per gateway.
pub(crate) struct Service {
    // Interfaces.
    pub(crate) node: Arc<dyn Node>,
    pub(crate) waiters: Waiters,
    pub(crate) signer: NodeSigner,
    pub(crate) signed_answers: SignedAnswers,
    pub(crate) metrics: Metrics,
    pub(crate) registry: Arc<Mutex<Registry>>,
    pub(crate) stage: watch::Receiver<Stage>,
    // Configuration.
    pub(crate) config: GatewayConfig,
    pub(crate) auth: AuthConfig,
    pub(crate) bounds: EnvelopeBounds,
    pub(crate) root_subnet_id: Principal,
    // Permits.
    pub(crate) permits: Permits,
}

pub(crate) struct Permits {
    requests: Arc<Semaphore>,
    queries: Arc<Semaphore>,
    query_threads: Arc<JobQueue>,
    inspect_threads: Arc<JobQueue>,
    pub(crate) verify_threads: Arc<JobQueue>,
    /// Requests that are verified on the threads of the HTTP server.
    pub(crate) in_place: Semaphore,
    scrapes: Arc<JobQueue>,
    reports: Arc<JobQueue>,
    heap_profiles: Arc<JobQueue>,
}

/// A kind of work that takes a query worker, for this canister.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JobKind {
    Inspect(Principal),
    Query(Principal),
}

impl Permits {
    pub(crate) fn new(config: &GatewayConfig) -> Self {
        let (limits, queries) = (&config.limits, &config.queries);
        let semaphore = |places: u64| Arc::new(Semaphore::new(permits(places)));
        let for_workers = |in_flight: u64| {
            let queued = permits(queued_max(in_flight));
            JobQueue::for_workers(permits(queries.threads), permits(queries.per_canister), queued)
        };
        Self {
            requests: semaphore(limits.requests_in_flight),
            queries: semaphore(limits.queries_in_flight),
            query_threads: for_workers(limits.queries_in_flight),
            inspect_threads: for_workers(limits.requests_in_flight),
            verify_threads: JobQueue::new(permits(config.verify_threads)),
            in_place: Semaphore::new(in_place_max(config.verify_threads)),
            scrapes: JobQueue::new(SCRAPES_MAX),
            reports: JobQueue::new(REPORTS_MAX),
            heap_profiles: JobQueue::new(HEAP_PROFILES_MAX),
        }
    }

    pub(crate) fn gauges(
        &self,
        config: &GatewayConfig,
        connections: Connections,
        waiters: Waiters,
    ) -> Pools {
        let limits = &config.limits;
        Pools {
            connections,
            permits: vec![
                ("requests_in_flight", self.requests.clone(), permits(limits.requests_in_flight)),
                ("queries_in_flight", self.queries.clone(), permits(limits.queries_in_flight)),
            ],
            bytes: vec![("bodies", config.bodies.clone()), ("responses", config.responses.clone())],
            waiters,
        }
    }
}

/// How many of the requests in flight may wait for a query worker. The others are those that run,
/// and those whose bodies arrive.
pub(crate) fn queued_max(in_flight: u64) -> u64 {
    in_flight.saturating_mul(7).div_euclid(8).max(1)
}

/// A limit as a number of permits.
pub(crate) fn permits(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)
}

pub(crate) fn pool_full(reason: &'static str, full: PoolFull) -> ErrorResponse {
    ErrorResponse::unavailable(reason, format!("{full}; retry in a second"))
}

/// A request body and its share of the pool.
pub(crate) struct ReceivedBody {
    pub(crate) bytes: Bytes,
    /// To be kept for as long as the request holds what was in the body.
    pub(crate) reservation: Reservation,
}

impl Service {
    /// Completes when the gateway stops serving.
    pub(crate) async fn draining(&self) {
        // An error means that the gateway is gone.
        let _ = self.stage.clone().wait_for(|stage| *stage > Stage::Serving).await;
    }

    /// Answers one request of the public interface.
    pub(crate) async fn serve(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let started = Instant::now();
        let is_at_root = page::is_where_a_browser_starts(&request);
        let is_for_operators = is_at_root || routes::is_for_operators(request.uri().path());
        if is_for_operators && let Err(refused) = self.check_origin(&request) {
            self.metrics.count_refusal(refused.reason);
            let response: Response<Body> = with_unread(request, refused).await.into();
            self.metrics.record_response("none", response.status().as_u16(), started.elapsed());
            return answer::with_common_headers(response, Readers::SameOrigin);
        }
        if request.method() == Method::OPTIONS {
            self.metrics.record_response("preflight", 204, started.elapsed());
            return match is_for_operators {
                true => answer::with_common_headers(answer::options(), Readers::SameOrigin),
                false => answer::with_common_headers(answer::preflight(), Readers::Anyone),
            };
        }
        if is_at_root {
            self.metrics.record_response("dashboard", 303, started.elapsed());
            return answer::with_common_headers(page::redirect(), Readers::SameOrigin);
        }
        let (label, found) = routes::find(request.method(), request.uri().path());
        let readers = match found {
            _ if is_for_operators => Readers::SameOrigin,
            Ok(Route::Health) => Readers::SameOrigin,
            _ => Readers::Anyone,
        };
        let outcome = match found {
            Ok(route) => self.dispatch(route, request).await,
            Err(refused) => Err(with_unread(request, refused).await),
        };
        let response = outcome.unwrap_or_else(|refused| {
            self.metrics.count_refusal(refused.reason);
            refused.into()
        });
        self.metrics.record_response(label, response.status().as_u16(), started.elapsed());
        answer::with_common_headers(response, readers)
    }

    /// Refuses a request for an operator page that another web page may have sent.
    fn check_origin(&self, request: &Request<Incoming>) -> Result<(), ErrorResponse> {
        let sent = OriginHeaders::with_links(request);
        check_origin(sent, self.config.listen, &self.config.host_names, false).map_err(|error| {
            let message = error.message("this page", "host_names (--host-name NAME)");
            ErrorResponse::new(error.status(), error.reason(), message)
        })
    }

    async fn dispatch(
        self: &Arc<Self>,
        route: Route,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, ErrorResponse> {
        match route {
            Route::Status => Ok(self.status()),
            Route::Health => Ok(self.health()),
            Route::Metrics => self.scrape().await,
            Route::Report => self.report().await,
            Route::HeapProfile => self.heap_profile().await,
            Route::Dashboard => Ok(page::response()),
            Route::Envelope(operation, effective) => {
                self.take_envelope(operation, effective, request).await
            }
        }
    }

    async fn take_envelope(
        self: &Arc<Self>,
        operation: Operation,
        effective: Effective,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, ErrorResponse> {
        let _place = match self.admit(operation, &request) {
            Ok(place) => place,
            Err(refused) => return Err(with_unread(request, refused).await),
        };
        let body = self.read_body(request.into()).await?;
        let read = Instant::now();
        match operation {
            Operation::CallAsync => self.call(effective, None, body).await,
            Operation::CallSync => self.call(effective, Some(read), body).await,
            Operation::Query => {
                // Not before the body is here: a sender that takes its time for it keeps no place.
                let _query = self.enter_query()?;
                let answer = self.query(effective, body).await?;
                self.config.latencies.record_query(read.elapsed());
                Ok(answer)
            }
            Operation::ReadState { v2 } => self.read_state(effective, v2, body).await,
        }
    }

    /// Checks a request before its body is read. Returns its place among those in flight.
    fn admit(
        &self,
        operation: Operation,
        request: &Request<Incoming>,
    ) -> Result<OwnedSemaphorePermit, ErrorResponse> {
        let place = self.enter(
            &self.permits.requests,
            "requests_in_flight",
            StatusCode::SERVICE_UNAVAILABLE,
            self.config.limits.requests_in_flight,
        )?;
        let kind = match operation {
            Operation::CallAsync | Operation::CallSync => Some(RequestKind::Call),
            Operation::Query => Some(RequestKind::Query),
            Operation::ReadState { .. } => None,
        };
        if kind == Some(RequestKind::Query) {
            // Before a body arrives that would not be read.
            drop(self.enter_query()?);
        }
        if let Some(Err(refusal)) = kind.map(|kind| self.node.check_load(kind)) {
            // A query is answered like one beyond `queries_in_flight`.
            let mut refused = ErrorResponse::from(refusal);
            if kind == Some(RequestKind::Query) && refused.status == StatusCode::SERVICE_UNAVAILABLE
            {
                refused.status = StatusCode::TOO_MANY_REQUESTS;
            }
            return Err(refused);
        }
        check_content_type(request.headers(), "application/cbor").map_err(|found| {
            let message =
                format!("the content type is \"{found}\"; this endpoint takes application/cbor");
            ErrorResponse::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", message)
        })?;
        Ok(place)
    }

    fn enter_query(&self) -> Result<OwnedSemaphorePermit, ErrorResponse> {
        self.enter(
            &self.permits.queries,
            "queries_in_flight",
            StatusCode::TOO_MANY_REQUESTS,
            self.config.limits.queries_in_flight,
        )
    }

    pub(crate) fn enter(
        &self,
        semaphore: &Arc<Semaphore>,
        limit: &'static str,
        status: StatusCode,
        value: u64,
    ) -> Result<OwnedSemaphorePermit, ErrorResponse> {
        semaphore.clone().try_acquire_owned().map_err(|error| match error {
            TryAcquireError::NoPermits => {
                let message = format!(
                    "the node is serving as many requests as its limit {limit} = {value} allows; \
                     retry in a second"
                );
                ErrorResponse::busy(status, limit, message, 1)
            }
            TryAcquireError::Closed => stopping(),
        })
    }

    /// Reads the body within its limit, the pool's and the read timeout.
    async fn read_body(&self, body: RequestBody) -> Result<ReceivedBody, ErrorResponse> {
        let full = |full: PoolFull| pool_full("bodies_bytes", full);
        let room = PoolBudget::new(&self.config.bodies, |received, _| received);
        let mut room = room.map_err(|none| full(none).closing(&body))?;
        let limit = ("body_bytes", self.config.limits.body_bytes);
        let bytes = self.read_body_into(body, &mut room, limit, full).await?;
        Ok(ReceivedBody { bytes, reservation: room.into_reservation() })
    }

    /// The same into other room, within the limit of this name.
    pub(crate) async fn read_body_into<B: BodyBudget>(
        &self,
        mut body: RequestBody,
        room: &mut B,
        (name, limit): (&'static str, u64),
        full: impl FnOnce(B::Full) -> ErrorResponse,
    ) -> Result<Bytes, ErrorResponse> {
        let error = match read_body(&mut body, room, limit, self.read_timeout()).await {
            Ok(bytes) => return Ok(bytes),
            Err(error) => error,
        };
        let refused = match error {
            BodyError::TooLarge(bytes) => {
                discard(&mut body, limit).await;
                let message =
                    format!("the body has {bytes} bytes or more; the limit {name} is {limit}");
                ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, name, message)
            }
            BodyError::Incomplete(error) => {
                let message = format!("the body could not be read to its end: {error}");
                ErrorResponse::bad_request("body", message)
            }
            BodyError::Full(none) => full(none),
            BodyError::TimedOut => {
                let millis = self.config.limits.read_timeout_millis;
                let message = format!(
                    "the body did not arrive within the limit read_timeout_millis = {millis}"
                );
                ErrorResponse::new(StatusCode::REQUEST_TIMEOUT, "read_timeout", message)
            }
        };
        Err(refused.closing(&body))
    }

    /// Runs `work` on a blocking thread once there is a place for its kind, unless the wait for one
    /// is too long. The thread does not wait until the result is taken, so long results must be in
    /// a pool already.
    pub(crate) async fn on_thread<T: Send + 'static>(
        &self,
        kind: JobKind,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ErrorResponse> {
        let (permits, limits) = (&self.permits, &self.config.limits);
        let (places, canister, status, limit) = match kind {
            JobKind::Inspect(canister) => {
                let limit = ("gateway.requests_in_flight", limits.requests_in_flight);
                (&permits.inspect_threads, canister, StatusCode::SERVICE_UNAVAILABLE, limit)
            }
            JobKind::Query(canister) => {
                let limit = ("gateway.queries_in_flight", limits.queries_in_flight);
                (&permits.query_threads, canister, StatusCode::TOO_MANY_REQUESTS, limit)
            }
        };
        let wait = self.config.queries.wait;
        let done = places.run_for(canister, Some(wait), work).await;
        done.map_err(|unfinished| match unfinished {
            JobError::Overdue => no_query_worker(wait, status),
            JobError::Crowded => crowded(status, limit),
            JobError::Failed => unfinished_work(),
        })
    }

    /// Runs work that is for no canister in the given places.
    pub(crate) async fn on_places<T: Send + 'static>(
        &self,
        places: &Arc<JobQueue>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ErrorResponse> {
        places.run(work).await.map_err(|_| unfinished_work())
    }

    /// A CBOR answer that is charged to the pool of responses until it is written.
    pub(crate) fn reserve_cbor(&self, bytes: Vec<u8>) -> Result<Response<Body>, ErrorResponse> {
        self.reserve_response(bytes).map(answer::cbor)
    }

    /// Bytes that are charged to the pool of responses until they are written.
    fn reserve_response(&self, bytes: Vec<u8>) -> Result<Bytes, ErrorResponse> {
        let reservation = self.reserve_response_bytes(bytes.capacity())?;
        Ok(with_reservation(bytes, reservation))
    }

    /// The same for bytes that others may hold, too: they are charged once more.
    pub(crate) fn reserve_shared(&self, bytes: Bytes) -> Result<Bytes, ErrorResponse> {
        let reservation = self.reserve_response_bytes(bytes.len())?;
        Ok(with_reservation(bytes, reservation))
    }

    fn reserve_response_bytes(&self, bytes: usize) -> Result<Reservation, ErrorResponse> {
        let reserved = self.config.responses.try_reserve(bytes as u64);
        reserved.map_err(|full| pool_full("responses_bytes", full))
    }

    /// The newest certified state, or why there is none.
    pub(crate) fn latest(&self) -> Result<Arc<dyn CertifiedView>, ErrorResponse> {
        self.node.latest().ok_or_else(|| {
            let message = format!(
                "the node has no certified state yet (it is {}); retry in a second",
                self.node.health().client_status
            );
            ErrorResponse::unavailable("no_certified_state", message)
        })
    }

    fn status(&self) -> Response<Body> {
        let health = self.node.health();
        let (client_status, height) = (&health.client_status, health.certified_height);
        let GatewayConfig { root_key_der, version, .. } = &self.config;
        let status = answer::status(root_key_der, version, client_status, height);
        answer::cbor(status.into())
    }

    fn health(&self) -> Response<Body> {
        let health = self.node.health();
        let body = serde_json::json!({
            "healthy": health.healthy,
            "status": health.status,
            "certified_height": health.certified_height.0,
            "version": self.config.version,
        });
        let status = if health.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        respond(status, "application/json", Body::from(body.to_string()))
    }

    async fn scrape(&self) -> Result<Response<Body>, ErrorResponse> {
        let registry = self.registry.clone();
        let text = self.on_places(&self.permits.scrapes, move || {
            metrics::encode(&registry.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let text =
            text.await?.map_err(|_| internal("the metrics could not be encoded".to_owned()))?;
        Ok(respond(StatusCode::OK, metrics::CONTENT_TYPE, Body::from(text)))
    }

    async fn report(self: &Arc<Self>) -> Result<Response<Body>, ErrorResponse> {
        let service = self.clone();
        let json = self.on_places(&self.permits.reports, move || {
            let json = serde_json::to_vec(&service.node.report())
                .map_err(|error| internal(format!("the report could not be encoded: {error}")))?;
            service.reserve_response(json)
        });
        Ok(respond(StatusCode::OK, "application/json", Body::new(json.await??)))
    }

    async fn heap_profile(self: &Arc<Self>) -> Result<Response<Body>, ErrorResponse> {
        let service = self.clone();
        let making = self.on_places(&self.permits.heap_profiles, move || {
            service.node.heap_profile().map(|profile| service.reserve_response(profile))
        });
        let busy = |message: String| ErrorResponse::unavailable("heap_profile", message);
        let made = tokio::time::timeout(HEAP_PROFILE_TIME, making).await.map_err(|_| {
            busy(format!("it was not made within {} s; try again", HEAP_PROFILE_TIME.as_secs()))
        })?;
        let profile = made?.map_err(|none| match none {
            HeapProfileError::Off(message) => {
                ErrorResponse::new(StatusCode::NOT_FOUND, "heap_profile", message)
            }
            HeapProfileError::Busy(message) => busy(message),
            HeapProfileError::Failed(message) => {
                ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "heap_profile", message)
            }
        })?;
        Ok(respond(StatusCode::OK, "application/octet-stream", Body::new(profile?)))
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

impl HttpHandler for Service {
    type ConnectionState = ();

    fn settings(&self) -> ConnectionSettings {
        ConnectionSettings { any_origin: true, ..ConnectionSettings::default() }
    }

    fn read_timeout(&self) -> Duration {
        Duration::from_millis(self.config.limits.read_timeout_millis)
    }

    fn connections_limit(&self) -> (&'static str, u64) {
        ("connections", self.config.limits.connections)
    }

    fn count_refusal(&self, reason: &'static str) {
        self.metrics.count_refusal(reason);
    }

    fn count_eviction(&self) {
        self.metrics.count_eviction();
    }

    fn connection_state(&self) {}

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        _state: Arc<()>,
    ) -> Response<Outgoing> {
        self.serve(request).await.map(Outgoing::Whole)
    }
}

fn unfinished_work() -> ErrorResponse {
    tracing::error!("work for a request did not finish");
    internal("the node failed while serving this request; its log says more".to_owned())
}

/// More queries wait than may, and as many for this canister as for any other.
fn crowded(status: StatusCode, (limit, value): (&'static str, u64)) -> ErrorResponse {
    let message = format!(
        "{} requests wait for a query worker, which is as many as may of {limit} = {value}, and no \
         canister has more of them than this one; retry in a second",
        queued_max(value)
    );
    ErrorResponse::busy(status, "query_queue", message, 1)
}

/// The refusal of a query, or of a call that is not inspected, after the longest wait.
pub(crate) fn no_query_worker(wait: Duration, status: StatusCode) -> ErrorResponse {
    let message = format!(
        "no query worker became free within the limit execution.query_wait_seconds = {}; retry in \
         a second",
        wait.as_secs()
    );
    ErrorResponse::busy(status, "query_wait", message, 1)
}

fn internal(message: String) -> ErrorResponse {
    ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

pub(crate) fn stopping() -> ErrorResponse {
    ErrorResponse::busy(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the node is stopping", 5)
}
