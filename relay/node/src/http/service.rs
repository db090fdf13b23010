//! The service behind every connection: finds the endpoint of a request, reads its body within its
//! bounds, and counts the answer.
//!
//! A body passes these doors, each with its own answer: its content type (400), its announced and
//! its real length (413), room in the pool of bodies (429 for messages, else 503), and the read
//! timeout (408). For room it waits its turn, in the socket.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use accounting::{Pool, PoolFull, Reservation};
use anyhow::Result;
use bytes::Bytes;
use dashboard::page;
use heap_profiler::Sampler;
use http_server::{
    ACCEPT_ERROR, BodyError, ConnectionSettings, ErrorResponse, HttpHandler, Outgoing, PoolBudget,
    RequestBody, check_content_type,
    connections::{AdmitError, Connections},
    discard,
    origin::{OriginHeaders, check_origin},
    read_body,
};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body as _, Incoming},
};
use relay_limits::{HTTP_CONNECTION_BYTES, HttpLimits, pool};
use serde::Deserialize;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{
    answer,
    cors::{self, AllowedOrigins},
    report::{ResponseCounters, Samples},
    routes::{self, Route},
    topic_changes::Subscriptions,
};
use crate::{
    config::Config,
    counters::{ByReason, Reason},
    governor::WorkKind,
    log::{LogLevel, LogLevelError},
    network::{
        admission::{Admission, AdmissionPermit, WaitingFrames},
        streams::REQUEST_TIMEOUT,
    },
    node::{Node, SwarmRequest, pool as of},
};

/// Request head, and the read buffer: half of what a connection is charged.
pub(crate) const HEAD_BYTES_MAX: usize = 8 * 1024;
/// A reader may stall an answer this long, and then must take
/// [`http_server::stall_guard::WRITE_RATE_MIN`].
const WRITE_STALL: Duration = Duration::from_secs(10);
/// Time for a client to read the last answer of a connection.
const LINGER: Duration = Duration::from_millis(500);
/// Connections that get the 503 answer at once; more are closed without an answer.
pub(crate) const REFUSALS_MAX: usize = 8;
/// The swarm's task answers within this time.
const SWARM_ANSWER_TIME: Duration = Duration::from_secs(5);

const _: () = assert!(HEAD_BYTES_MAX as u64 * 2 <= HTTP_CONNECTION_BYTES);

/// Settings that allow further host names, and other web pages.
const ORIGIN_OPTIONS: &str = "--host-name (host_names) or --allow-origin (allow_origins)";

/// The version in `/version`, also sent to other nodes.
pub(crate) const VERSION: &str = concat!("thimble-relay/", env!("CARGO_PKG_VERSION"));

/// Everything endpoints need. One per node.
pub(crate) struct Service {
    // Interfaces.
    pub(crate) node: Arc<Node>,
    swarm_tx: mpsc::Sender<SwarmRequest>,
    /// Where memory went, in a node that was started to know.
    pub(crate) sampler: Option<Arc<Sampler>>,
    log_level: LogLevel,
    // Configuration.
    pub(crate) limits: HttpLimits,
    /// Free disk space below which messages are refused.
    pub(crate) disk_reserve_bytes: u64,
    pub(crate) memory_budget_bytes: u64,
    listen: SocketAddr,
    /// Names by which the interface is served.
    host_names: Vec<String>,
    /// Other web pages that may use it.
    origins: AllowedOrigins,
    // Pools.
    pub(crate) connections: Connections,
    bodies: Pool,
    /// The order in which bodies get room.
    body_line: Admission,
    pub(crate) responses: Pool,
    // State.
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) answered: ResponseCounters,
    pub(crate) samples: Samples,
}

/// What an endpoint, or a step of it, returns: its answer, or the refusal.
pub(crate) type HttpResult<T = Response<Outgoing>> = Result<T, ErrorResponse>;

/// A request body and its share of the pool, to be kept as long as data borrowed from it.
pub(crate) struct ReceivedBody {
    bytes: Bytes,
    held: Reservation,
    _admitted: Option<AdmissionPermit>,
    /// When its request was read, before the body.
    pub(crate) arrived: Instant,
}

impl Service {
    pub(crate) fn new(
        node: Arc<Node>,
        swarm_tx: mpsc::Sender<SwarmRequest>,
        sampler: Option<Arc<Sampler>>,
        log_level: LogLevel,
        config: &Config,
        listen: SocketAddr,
    ) -> Result<Self> {
        let pool = |name| of(&node.ledger, name);
        let most = usize::try_from(config.limits.http.connections).unwrap_or(usize::MAX);
        let buffers = pool(pool::HTTP_CONNECTIONS)?;
        Ok(Self {
            connections: Connections::new(most, buffers, HTTP_CONNECTION_BYTES),
            bodies: pool(pool::REQUEST_BODIES)?,
            body_line: Admission::new(config.limits.http.bodies_bytes),
            responses: pool(pool::RESPONSES)?,
            limits: config.limits.http.clone(),
            disk_reserve_bytes: config.limits.store.disk_reserve_bytes,
            memory_budget_bytes: config.limits.memory_budget_bytes,
            listen,
            host_names: config.host_names.clone(),
            origins: AllowedOrigins::new(&config.allow_origins).map_err(anyhow::Error::msg)?,
            subscriptions: Subscriptions::start(node.clone(), config, pool(pool::RESPONSES)?)?,
            answered: ResponseCounters::default(),
            samples: Samples::default(),
            node,
            swarm_tx,
            sampler,
            log_level,
        })
    }

    /// Notes counters for rates, and what sampling of allocations costs. Once a second.
    pub(crate) fn sample(&self) {
        self.samples.add(&self.node);
        if let Some(sampler) = &self.sampler {
            sampler.tend();
        }
    }

    /// Asks the swarm's task. Errors: 503 when it does not answer.
    pub(crate) async fn query_swarm<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> SwarmRequest,
    ) -> HttpResult<T> {
        let (reply, answered) = oneshot::channel();
        let asking = async {
            self.swarm_tx.send(request(reply)).await.ok()?;
            answered.await.ok()
        };
        match timeout(SWARM_ANSWER_TIME, asking).await {
            Ok(Some(answer)) => Ok(answer),
            _ => Err(answer::busy(
                StatusCode::SERVICE_UNAVAILABLE,
                "the network's task did not answer: the node is stopping, or overloaded",
            )),
        }
    }

    /// Has the swarm's task do something. Errors: 503 when it takes nothing.
    pub(crate) async fn send_to_swarm(&self, request: SwarmRequest) -> HttpResult<()> {
        match timeout(SWARM_ANSWER_TIME, self.swarm_tx.send(request)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(answer::busy(
                StatusCode::SERVICE_UNAVAILABLE,
                "the network's task takes no requests: the node is stopping, or overloaded",
            )),
        }
    }

    /// Answers one request.
    async fn serve(&self, request: Request<Incoming>) -> Response<Outgoing> {
        let granted = self.origins.granted(request.headers());
        let mut response = self.respond(request, granted.is_some()).await;
        self.origins.add_headers(granted, response.headers_mut());
        self.answered.add(response.status().as_u16());
        response
    }

    /// The same; `granted` is whether the request is of a page that the operator allows.
    async fn respond(&self, request: Request<Incoming>, granted: bool) -> Response<Outgoing> {
        let is_at_root = page::is_where_a_browser_starts(&request);
        if let Err(refused) = self.check_origin(&request, granted) {
            return answer::refused(refused);
        }
        if granted && cors::is_preflight(&request) {
            return cors::preflight();
        }
        if is_at_root {
            return answer::to_page();
        }
        let response = match routes::find(request.method(), request.uri().path()) {
            Ok(route) => self.dispatch(route, request).await,
            Err(refused) => Err(self.discarded(request.into(), refused).await),
        };
        response.unwrap_or_else(answer::refused)
    }

    /// Refuses a request that another web page may have sent: it could read messages, publish some,
    /// and empty the queues of subscriptions. `/health` is for everyone. A link of another page to
    /// the operator's page is followed, and pages that the operator allows (`granted`) are served.
    fn check_origin(&self, request: &Request<Incoming>, granted: bool) -> HttpResult<()> {
        let path = request.uri().path();
        if path == "/health" {
            return Ok(());
        }
        let mut sent = OriginHeaders::from_request(request);
        if path == page::PATH || page::is_where_a_browser_starts(request) {
            sent.site = None;
        }
        if granted {
            (sent.origin, sent.site) = (None, None);
        }
        check_origin(sent, self.listen, &self.host_names, true).map_err(|error| {
            let message = error.message("this server", ORIGIN_OPTIONS);
            // A body that follows is not read.
            let close = !request.body().is_end_stream();
            ErrorResponse { close, ..answer::refusal(error.status(), message) }
        })
    }

    async fn dispatch(
        &self,
        route: Route,
        request: Request<Incoming>,
    ) -> Result<Response<Outgoing>, ErrorResponse> {
        if route.is_read()
            && let Some(why) = self.node.watch.held_back(WorkKind::Queries)
        {
            self.node.counters.reads_refused.fetch_add(1, Relaxed);
            return Err(answer::busy(StatusCode::TOO_MANY_REQUESTS, why));
        }
        if route.is_relay() && !self.node.settings.relay {
            let why = "this node does not relay (relay = false): push messages by /lightpush/v3, \
                       and receive them by /filter/v2";
            return Err(self.discarded(request.into(), answer::not_found(why)).await);
        }
        match route {
            Route::Health => self.health(),
            Route::Info => self.info().await,
            Route::Version => Ok(answer::text(VERSION)),
            Route::Metrics => self.metrics().await,
            Route::Status => self.status().await,
            Route::Dashboard => Ok(answer::page()),
            Route::Heap => self.heap().await,
            Route::Peers => self.all_peers().await,
            Route::ConnectedPeers => self.connected_peers(None).await,
            Route::ConnectedPeersOn(shard) => self.connected_peers(Some(shard)).await,
            Route::ServicePeers => self.service_peers().await,
            Route::Peer(peer) => self.peer(&peer).await,
            Route::RelayPeers => self.relay_peers().await,
            Route::RelayPeersOn(shard) => self.relay_peers_on(shard).await,
            Route::MeshPeers => self.mesh_peers().await,
            Route::MeshPeersOn(shard) => self.mesh_peers_on(shard).await,
            Route::PeerStats => self.peer_stats().await,
            Route::AddPeers => self.add_peers(self.read(request).await?).await,
            Route::FilterSubscribers => self.filter_subscribers(),
            Route::LogLevel(level) => self.set_log_level(&level, request).await,
            Route::StoreQuery => self.store_query(request.uri().query().unwrap_or_default()).await,
            route => self.dispatch_messages(route, request).await,
        }
    }

    /// Serves a route by which clients send messages and subscribe to them.
    async fn dispatch_messages(&self, route: Route, request: Request<Incoming>) -> HttpResult {
        match route {
            Route::LightPush => Ok(self.light_push(self.push(request).await).await),
            Route::LightPushLegacy => self.light_push_legacy(self.push(request).await?).await,
            Route::RelayPublish(topic) => {
                self.relay_publish(Some(&topic), self.push(request).await?).await
            }
            Route::AutoPublish => self.relay_publish(None, self.push(request).await?).await,
            Route::RelaySubscribe => {
                self.relay_subscribe(self.subscription(request).await?, false).await
            }
            Route::RelayUnsubscribe => {
                self.relay_unsubscribe(self.read(request).await?, false).await
            }
            Route::AutoSubscribe => {
                self.relay_subscribe(self.subscription(request).await?, true).await
            }
            Route::AutoUnsubscribe => self.relay_unsubscribe(self.read(request).await?, true).await,
            Route::RelayMessages(topic) => self.relay_messages(&topic),
            Route::AutoMessages(topic) => self.auto_messages(&topic),
            Route::FilterSubscribe => {
                let modify = request.method() == Method::PUT;
                Ok(self.filter_subscribe(self.subscription(request).await, modify).await)
            }
            Route::FilterUnsubscribe => Ok(self.filter_unsubscribe(self.read(request).await).await),
            Route::FilterUnsubscribeAll => {
                Ok(self.filter_unsubscribe_all(self.read(request).await).await)
            }
            Route::FilterPing(request_id) => Ok(self.filter_ping(&request_id).await),
            Route::FilterMessages(topic) => self.filter_messages(&topic),
            // The others are served by the caller.
            _ => Err(answer::not_found("there is nothing at this path")),
        }
    }

    /// `POST /admin/v1/log-level/{logLevel}`; a body means nothing.
    async fn set_log_level(&self, level: &str, request: Request<Incoming>) -> HttpResult {
        let refused = match self.log_level.set(level) {
            Ok(()) => {
                tracing::info!(level, "log level changed");
                discard(&mut RequestBody::from(request), self.limits.body_bytes).await;
                return Ok(answer::text("OK"));
            }
            Err(error @ LogLevelError::Unknown) => answer::bad(error.to_string()),
            Err(error @ LogLevelError::Fixed(_)) => {
                answer::refusal(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
            }
        };
        Err(self.discarded(request.into(), refused).await)
    }

    /// Reads a message, unless memory is short.
    async fn push(&self, request: Request<Incoming>) -> HttpResult<ReceivedBody> {
        let refused = &self.node.counters.client_refused;
        let read = self.unless_short(request, StatusCode::TOO_MANY_REQUESTS, refused).await;
        read.map_err(|refused| match refused.status {
            // A pool is full, which a publisher learns as from light push.
            StatusCode::SERVICE_UNAVAILABLE => {
                ErrorResponse { status: StatusCode::TOO_MANY_REQUESTS, ..refused }
            }
            _ => refused,
        })
    }

    /// Reads a subscription, unless memory is short.
    async fn subscription(&self, request: Request<Incoming>) -> HttpResult<ReceivedBody> {
        let refused = &self.node.counters.filter_refused;
        self.unless_short(request, StatusCode::SERVICE_UNAVAILABLE, refused).await
    }

    async fn unless_short(
        &self,
        request: Request<Incoming>,
        status: StatusCode,
        refused: &ByReason,
    ) -> HttpResult<ReceivedBody> {
        let Some(why) = self.node.watch.held_back(WorkKind::Pushes) else {
            return self.read(request).await;
        };
        refused.add(Reason::Memory);
        Err(self.discarded(request.into(), answer::busy(status, why)).await)
    }

    /// Reads a body of JSON within its bounds.
    async fn read(&self, request: Request<Incoming>) -> HttpResult<ReceivedBody> {
        if let Err(found) = check_content_type(request.headers(), "application/json") {
            let message = format!("the content type is \"{found}\"; send application/json");
            return Err(self.discarded(request.into(), answer::bad(message)).await);
        }
        let mut body = RequestBody::from(request);
        let refused = match self.receive(&mut body).await {
            Ok(received) => return Ok(received),
            Err(BodyError::TooLarge(bytes)) => {
                let limit = self.limits.body_bytes;
                let message = format!(
                    "the body has {bytes} bytes or more, http.body_bytes is {limit}; split the \
                     payload"
                );
                answer::refusal(StatusCode::PAYLOAD_TOO_LARGE, message)
            }
            Err(BodyError::Incomplete(error)) => {
                answer::bad(format!("the body could not be read to its end: {error}"))
            }
            Err(BodyError::Full(full)) => answer::no_room(full),
            Err(BodyError::TimedOut) => {
                let millis = self.limits.read_timeout_millis;
                let message =
                    format!("the body did not arrive within http.read_timeout_millis = {millis}");
                let refused = answer::refusal(StatusCode::REQUEST_TIMEOUT, message);
                return Err(ErrorResponse { close: true, ..refused });
            }
        };
        Err(self.discarded(body, refused).await)
    }

    async fn receive(&self, body: &mut RequestBody) -> Result<ReceivedBody, BodyError<PoolFull>> {
        let arrived = Instant::now();
        let limit = self.limits.body_bytes;
        let most = body.size_hint().upper().map_or(limit, |bytes| bytes.min(limit));
        // Until it is its turn a large body stays in the socket. Without a turn the pool decides.
        let bytes_max = usize::try_from(most).unwrap_or(usize::MAX);
        let turn = if bytes_max > HEAD_BYTES_MAX {
            let waiting = WaitingFrames::default();
            self.body_line.admit(bytes_max, REQUEST_TIMEOUT, &waiting, || {}).await.ok()
        } else {
            None
        };
        let charge = move |received: u64, buffers: u64| received.max(buffers.min(most));
        let mut room = PoolBudget::new(&self.bodies, charge).map_err(BodyError::Full)?;
        let bytes = read_body(body, &mut room, limit, self.read_timeout()).await?;
        // A short body is a part of the connection's buffer, which the next request needs.
        let is_short = bytes.len() < HEAD_BYTES_MAX;
        let bytes = if is_short { Bytes::copy_from_slice(&bytes) } else { bytes };
        let mut held = room.into_reservation();
        // Text with escapes is copied when it is decoded.
        if bytes.contains(&b'\\') {
            held.try_grow(bytes.len() as u64).map_err(BodyError::Full)?;
        }
        Ok(ReceivedBody { bytes, held, _admitted: turn, arrived })
    }

    /// The refusal of a request with this body, of which the client may still send a part.
    async fn discarded(&self, mut body: RequestBody, refused: ErrorResponse) -> ErrorResponse {
        let close = !discard(&mut body, self.limits.body_bytes).await;
        ErrorResponse { close, ..refused }
    }
}

impl HttpHandler for Service {
    type ConnectionState = ();

    fn connection_state(&self) {}

    fn settings(&self) -> ConnectionSettings {
        ConnectionSettings {
            head_bytes: HEAD_BYTES_MAX,
            streams: None,
            idle: None,
            write_stall: WRITE_STALL,
            linger: Some(LINGER),
            refusals: REFUSALS_MAX,
            any_origin: false,
        }
    }

    /// How long a head, or a body, may take.
    fn read_timeout(&self) -> Duration {
        Duration::from_millis(self.limits.read_timeout_millis)
    }

    fn connections_limit(&self) -> (&'static str, u64) {
        ("http.connections", self.limits.connections)
    }

    fn refusal_text(&self, error: AdmitError) -> String {
        let why = match error {
            AdmitError::Limit => {
                let most = self.limits.connections;
                format!("http.connections = {most} are open, the most there are places for")
            }
            AdmitError::Memory(full) => full.to_string(),
        };
        format!("{why} (pool http_connections); try again in a second\n")
    }

    fn count_refusal(&self, reason: &'static str) {
        if reason != ACCEPT_ERROR {
            self.answered.connections_refused.fetch_add(1, Relaxed);
        }
    }

    fn count_eviction(&self) {
        self.answered.connections_evicted.fetch_add(1, Relaxed);
    }

    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        _state: Arc<()>,
    ) -> impl Future<Output = Response<Outgoing>> + Send {
        // On the heap: hyper keeps room for it with every connection, idle ones included.
        Box::pin(async move { self.serve(request).await })
    }
}

impl ReceivedBody {
    /// The body as the type that the endpoint takes, which may borrow from the body. Errors: 400
    /// with the place.
    pub(crate) fn json<'a, T: Deserialize<'a>>(&'a self) -> HttpResult<T> {
        debug_assert!(self.held.bytes() >= self.bytes.len() as u64);
        serde_json::from_slice(&self.bytes)
            .map_err(|error| answer::bad(format!("the body cannot be read: {error}")))
    }
}

/// A full pool in the words of a status.
pub(crate) fn pool_full(full: &PoolFull) -> String {
    format!("{full}; try again in a second")
}
