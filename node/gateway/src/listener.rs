//! The gateway: its configuration, its listeners, and its orderly end.
//!
//! Each interface has a listener with a limit on connections ([`http_server::Server`]). On shutdown
//! the listeners close first, then connections finish their requests in flight, and after the grace
//! period the rest is dropped.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use accounting::Pool;
use ed25519_dalek::SigningKey;
use envelope::{EnvelopeBounds, auth::AuthConfig};
use http_server::{
    HttpHandler as _, ListenError, Outgoing, Server, bind, connections::Connections,
};
use hyper::{Request, Response, body::Incoming};
use ic_principal::Principal;
use limits::{CONNECTION_BYTES, ExecutionLimits, GatewayLimits, HttpGatewayLimits};
use prometheus_client::registry::Registry;
use thiserror::Error;

use crate::{
    Latencies, Node, Waiters,
    answer::NodeSigner,
    metrics::Metrics,
    service::{Permits, Service, permits},
    signed_answers::SignedAnswers,
    web::Web,
};

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
    #[error(transparent)]
    Listen(#[from] ListenError),
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
    server: Server,
    service: Arc<Service>,
    grace: Duration,
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
        gateway.server.listen(listener, gateway.service.clone(), connections);
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
        let server = Server::default();
        let permits = Permits::new(&config);
        let gauges = permits.gauges(&config, connections, waiters.clone());
        let metrics =
            Metrics::new(&mut registry.lock().unwrap_or_else(PoisonError::into_inner), gauges);
        let (grace, local_addr) = (config.shutdown_grace, config.listen);
        let service = Arc::new(Service {
            node,
            waiters,
            signer: NodeSigner::new(config.node_key.clone(), config.node_id),
            metrics,
            registry: registry.clone(),
            stage: server.stage(),
            auth: AuthConfig::new(root_key, config.ingress_expiry, config.ingress_drift)
                .remembering(&config.limits),
            signed_answers: SignedAnswers::new(config.limits.signed_answers),
            bounds: EnvelopeBounds::new(&config.limits),
            root_subnet_id: Principal::self_authenticating(&config.root_key_der),
            permits,
            config,
        });
        Ok(GatewayHandle { local_addr, server, service, grace })
    }
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
        let web = Arc::new(Web::new(self.service.clone(), config));
        self.server.listen(listener, web, connections);
        tracing::info!(%local_addr, "the HTTP gateway is open");
        Ok(local_addr)
    }

    /// Stops accepting, lets requests in flight finish within the grace, then closes what is left.
    /// Returns whether all had finished.
    pub async fn shutdown(self) -> bool {
        self.server.shutdown(self.grace).await
    }
}
