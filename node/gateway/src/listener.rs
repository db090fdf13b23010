//! The listener: accepts connections up to their limit, and brings the gateway to an orderly end.
//!
//! A connection takes one of `connections` slots before it is served. When there is none, the
//! connection that has been idle longest is closed for it ([`http_server::connections`]); when none
//! is idle, the new one is refused with a 503 written without reading anything, by one of
//! [`REFUSALS_MAX`] short-lived tasks; when those are busy too it is dropped. So accepting waits
//! only for a connection to close, for a bounded time, and never spawns without a permit.
//!
//! On shutdown the listener closes first, then connections finish their requests in flight, and
//! after the grace period the rest is dropped.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use budget::Pool;
use ed25519_dalek::SigningKey;
use envelope::auth::AuthConfig;
use http_server::connections::Connections;
use hyper::{Request, Response, body::Incoming};
use ic_principal::Principal;
use limits::{CONNECTION_BYTES, ExecutionLimits, GatewayLimits, HttpGatewayLimits};
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    Latencies, Node, Waiters,
    connection::{self, HttpHandler, Outgoing, Stage},
    metrics::Metrics,
    service::{Permits, Service, ServiceParts, permits},
    web::Web,
};

/// Connections that are being refused for lack of a place, at once.
const REFUSALS_MAX: usize = 32;
/// Time to write a refusal and for the peer to read it.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Accepting pauses this long when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Configuration of a gateway.
pub struct GatewayConfig {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Host names by which operator pages are served, in addition to `localhost` and IP addresses;
    /// without port.
    pub host_names: Vec<String>,
    /// Limits of the interface.
    pub limits: GatewayLimits,
    /// Bytes of method name and argument of a call (`subnet.message_payload_bytes`).
    pub call_bytes: u64,
    /// How far ahead of the node's clock a request may expire
    /// (`consensus.ingress_expiry_seconds`).
    pub ingress_expiry: Duration,
    /// Clock drift allowed on top of it (`consensus.ingress_drift_seconds`).
    pub ingress_drift: Duration,
    /// Queries run at once, and calls inspected at once.
    pub queries: QueryConcurrency,
    /// Envelopes verified at once: the machine's cores, or fewer to leave room for others.
    pub verify_threads: u64,
    /// Pool of the buffers of open connections: [`limits::CONNECTION_BYTES`] each.
    pub connections: Pool,
    /// Pool of request bodies, capped at `bodies_bytes`.
    pub bodies: Pool,
    /// Pool of responses being written, capped at `responses_bytes`.
    pub responses: Pool,
    /// Signs query responses; its public key is in the state tree.
    pub node_key: SigningKey,
    /// Principal of this node, the `identity` of its signatures on query responses.
    pub node_id: Principal,
    /// This node's subnet.
    pub subnet_id: Principal,
    /// The root of trust, 133 bytes of DER.
    pub root_key_der: Vec<u8>,
    /// Shown by the status endpoint.
    pub version: String,
    /// Where the durations of update calls and queries go; a clone of it reads them.
    pub latencies: Latencies,
    /// How long [`GatewayHandle::shutdown`] waits for requests in flight.
    pub shutdown_grace: Duration,
}

/// How many queries run at once, and how long others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryConcurrency {
    /// `execution.query_threads`.
    pub threads: u64,
    /// `execution.query_threads_per_canister`.
    pub per_canister: u64,
    /// `execution.query_wait_seconds`.
    pub wait: Duration,
}

impl From<&ExecutionLimits> for QueryConcurrency {
    fn from(limits: &ExecutionLimits) -> Self {
        Self {
            threads: limits.query_threads,
            per_canister: limits.query_threads_per_canister,
            wait: Duration::from_secs(limits.query_wait_seconds),
        }
    }
}

/// Configuration of the HTTP gateway, which serves canisters to browsers.
pub struct HttpGatewayConfig {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Its limits.
    pub limits: HttpGatewayLimits,
    /// Pool of the buffers of open connections: [`HttpGatewayLimits::connection_bytes`] each.
    pub connections: Pool,
    /// Pool of what requests hold, capped at `requests_bytes`.
    pub requests: Pool,
    /// The limit `subnet.ingress_history_bytes`, for who meets it.
    pub ingress_history_bytes: u64,
}

/// Why a gateway did not start.
#[derive(Debug, Error)]
pub enum GatewayError {
    /// The address cannot be bound.
    #[error("cannot listen on {listen}: {error}; choose another address or stop what uses it")]
    Listen {
        /// The address that was to be bound.
        listen: SocketAddr,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The root key is none.
    #[error("the root key is no DER-encoded BLS12-381 public key: {0}")]
    RootKey(nidkg::BlsError),
}

/// The gateway; see [`Gateway::start`].
#[derive(Debug)]
pub struct Gateway;

/// A running gateway. Dropping it closes everything at once.
#[derive(Debug)]
pub struct GatewayHandle {
    local_addr: SocketAddr,
    stage: watch::Sender<Stage>,
    listeners: Vec<OpenListener>,
    service: Arc<Service>,
    grace: Duration,
}

/// A listener, and its connections.
#[derive(Debug)]
struct OpenListener {
    listener: JoinHandle<()>,
    connections: Connections,
}

impl OpenListener {
    /// Accepts connections for as long as the gateway serves.
    fn open<A: HttpHandler>(
        listener: TcpListener,
        service: Arc<A>,
        connections: Connections,
        stage_rx: watch::Receiver<Stage>,
    ) -> Self {
        let accepting = accept(listener, service, connections.clone(), stage_rx);
        Self { listener: tokio::spawn(accepting), connections }
    }
}

impl Gateway {
    /// Binds the address and serves until [`GatewayHandle::shutdown`]. Must be called within a
    /// tokio runtime; metrics are registered in `registry`, which is encoded whole on
    /// `/metrics`.
    pub async fn start(
        mut config: GatewayConfig,
        node: Arc<dyn Node>,
        waiters: Waiters,
        registry: Arc<Mutex<Registry>>,
    ) -> Result<GatewayHandle, GatewayError> {
        let (listener, local_addr) = bind(config.listen).await?;
        config.listen = local_addr;
        let (limit, buffers) = (config.limits.connections, config.connections.clone());
        let connections = Connections::new(permits(limit), buffers, CONNECTION_BYTES);
        let mut gateway = Self::build(config, node, waiters, &registry, connections.clone())?;
        let stage_rx = gateway.stage.subscribe();
        let open_listener =
            OpenListener::open(listener, gateway.service.clone(), connections, stage_rx);
        gateway.listeners.push(open_listener);
        tracing::info!(%local_addr, "the public interface is open");
        Ok(gateway)
    }

    /// The same without a listener, for a program that has one of its own and hands requests on
    /// ([`GatewayHandle::answer`]); it can serve browsers at addresses of theirs.
    ///
    /// # Errors
    /// When the root key is none.
    pub fn mount(
        config: GatewayConfig,
        node: Arc<dyn Node>,
        waiters: Waiters,
        registry: &Arc<Mutex<Registry>>,
    ) -> Result<GatewayHandle, GatewayError> {
        let connections = Connections::new(0, config.connections.clone(), CONNECTION_BYTES);
        Self::build(config, node, waiters, registry, connections)
    }

    /// A gateway without listeners.
    fn build(
        config: GatewayConfig,
        node: Arc<dyn Node>,
        waiters: Waiters,
        registry: &Arc<Mutex<Registry>>,
        connections: Connections,
    ) -> Result<GatewayHandle, GatewayError> {
        let root_key =
            nidkg::public_key_from_der(&config.root_key_der).map_err(GatewayError::RootKey)?;
        let (stage, stage_rx) = watch::channel(Stage::Serving);
        let permits = Permits::new(
            &config.limits,
            &config.queries,
            config.verify_threads,
            config.bodies.clone(),
            config.responses.clone(),
        );
        let gauges = permits.gauges(&config.limits, connections, waiters.clone());
        let metrics =
            Metrics::new(&mut registry.lock().unwrap_or_else(PoisonError::into_inner), gauges);
        let (grace, local_addr) = (config.shutdown_grace, config.listen);
        let parts = ServiceParts {
            node,
            waiters,
            metrics,
            registry: registry.clone(),
            stage: stage_rx,
            auth: AuthConfig::new(root_key, config.ingress_expiry, config.ingress_drift),
            permits,
        };
        let root_subnet_id = Principal::self_authenticating(&config.root_key_der);
        let service = Arc::new(Service::new(config, root_subnet_id, parts));
        Ok(GatewayHandle { local_addr, stage, listeners: Vec::new(), service, grace })
    }
}

async fn bind(listen: SocketAddr) -> Result<(TcpListener, SocketAddr), GatewayError> {
    let failed = |error| GatewayError::Listen { listen, error };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let local_addr = listener.local_addr().map_err(failed)?;
    Ok((listener, local_addr))
}

impl GatewayHandle {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Answers one request of the public interface that arrived at another listener.
    pub async fn answer(&self, request: Request<Incoming>) -> Response<Outgoing> {
        self.service.clone().answer(request, Arc::new(())).await
    }

    /// Opens the HTTP gateway alongside the public interface; it ends with it. Returns its address.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn serve_browsers(
        &mut self,
        config: HttpGatewayConfig,
    ) -> Result<SocketAddr, GatewayError> {
        let (listener, local_addr) = bind(config.listen).await?;
        let (limits, buffers) = (&config.limits, config.connections.clone());
        let connections =
            Connections::new(permits(limits.connections), buffers, limits.connection_bytes());
        let stage_rx = self.stage.subscribe();
        let web = Arc::new(Web::new(self.service.clone(), config));
        self.listeners.push(OpenListener::open(listener, web, connections, stage_rx));
        tracing::info!(%local_addr, "the HTTP gateway is open");
        Ok(local_addr)
    }

    /// Stops accepting, lets requests in flight finish within the grace, then closes what is left.
    /// Returns whether all had finished.
    pub async fn shutdown(mut self) -> bool {
        self.stage.send_replace(Stage::Draining);
        let finishing = async {
            for open_listener in &mut self.listeners {
                // The listener ends at the stage's change; an error would mean that it ended
                // already.
                let _ = (&mut open_listener.listener).await;
                open_listener.connections.drained().await;
            }
        };
        let finished = timeout(self.grace, finishing).await.is_ok();
        self.stage.send_replace(Stage::Closed);
        finished
    }
}

impl Drop for GatewayHandle {
    fn drop(&mut self) {
        self.stage.send_replace(Stage::Closed);
        for open_listener in &self.listeners {
            open_listener.listener.abort();
        }
    }
}

/// A listener for requests that are not of the public interface, under the same rules: places for
/// connections, time to send and to take, an orderly end. Dropping it closes everything at once.
#[derive(Debug)]
pub struct OtherListener {
    local_addr: SocketAddr,
    stage: watch::Sender<Stage>,
    open_listener: OpenListener,
}

impl OtherListener {
    /// Binds the address and serves. Each connection takes [`limits::CONNECTION_BYTES`] of
    /// `buffers`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start<A: HttpHandler>(
        listen: SocketAddr,
        answers: Arc<A>,
        buffers: Pool,
    ) -> Result<Self, GatewayError> {
        let (listener, local_addr) = bind(listen).await?;
        let (stage, stage_rx) = watch::channel(Stage::Serving);
        let limit = permits(answers.connections_limit().1);
        let connections = Connections::new(limit, buffers, CONNECTION_BYTES);
        let open_listener = OpenListener::open(listener, answers, connections, stage_rx);
        Ok(Self { local_addr, stage, open_listener })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops accepting, lets requests in flight finish within `grace`, then closes what is left.
    pub async fn shutdown(mut self, grace: Duration) {
        self.stage.send_replace(Stage::Draining);
        let finishing = async {
            // It ends at the stage's change; an error would mean that it ended already.
            let _ = (&mut self.open_listener.listener).await;
            self.open_listener.connections.drained().await;
        };
        // Connections that have not finished by then are closed.
        let _ = timeout(grace, finishing).await;
        self.stage.send_replace(Stage::Closed);
    }
}

impl Drop for OtherListener {
    fn drop(&mut self) {
        self.stage.send_replace(Stage::Closed);
        self.open_listener.listener.abort();
    }
}

async fn accept<A: HttpHandler>(
    listener: TcpListener,
    service: Arc<A>,
    connections: Connections,
    mut stage_rx: watch::Receiver<Stage>,
) {
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stage_rx.wait_for(|stage| *stage > Stage::Serving) => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Either the peer was gone before it was accepted, or descriptors or memory ran
                // out, which a pause lets recover.
                service.count_refusal("accept_error");
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Answers are written whole; waiting for more to send with them only delays them. A failure
        // costs nothing but that delay.
        let _ = stream.set_nodelay(true);
        // The pool is as large as all slots need, unless an operator made it smaller.
        if let Ok(slot) = connections.admit(|| service.count_eviction()).await {
            tokio::spawn(connection::serve(stream, service.clone(), slot, stage_rx.clone()));
            continue;
        }
        let limit = service.connections_limit();
        service.count_refusal(limit.0);
        if let Ok(permit) = refusals.clone().try_acquire_owned() {
            tokio::spawn(async move {
                let _permit = permit;
                // The peer may leave before the refusal is written.
                let _ = timeout(REFUSAL_TIME, refuse(stream, limit)).await;
            });
        }
    }
}

/// Reports that there is no place, and lets the peer read it: closing with unread bytes would reset
/// the connection under the answer.
async fn refuse(mut stream: TcpStream, (name, limit): (&str, u64)) -> io::Result<()> {
    let message = format!(
        "the node has as many connections as its limit {name} = {limit} allows; retry in a \
         second"
    );
    let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 1\r\n\
                connection: close\r\naccess-control-allow-origin: *\r\n";
    stream
        .write_all(format!("{head}content-length: {}\r\n\r\n{message}", message.len()).as_bytes())
        .await?;
    stream.shutdown().await?;
    let mut ignored = [0; 1024];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}
