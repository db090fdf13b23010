//! The HTTP interface: REST as reference nodes publish it, metrics, health, and one status report.
//!
//! Routes are those of the OpenAPI files in waku-org/waku-rest-api, and additions that
//! docs/relay.md names, such as `/metrics` (Prometheus text), `/status.json`, and `/dashboard`,
//! which draws it. Only HTTP/1.1 is spoken: clients are tools of the operator, each with a
//! connection or two.
//!
//! Bounds:
//!
//! - connections: [`relay_limits::HttpLimits::connections`], each charged to the pool
//!   `http_connections`. For the next one the connection that has been idle longest is closed
//!   ([`http_server::connections`]); when none is idle, it gets 503 from one of
//!   [`service::REFUSALS_MAX`] short-lived tasks;
//! - heads: [`service::HEAD_BYTES_MAX`] and the read timeout, bodies: `http.body_bytes` (413),
//!   the pool `request_bodies` (503) and the read timeout (408);
//! - responses: the pool `responses`. A list of messages is never in memory as a whole: each is
//!   read from the log and encoded when the socket takes it;
//! - readers: a client that reads a response more slowly than
//!   [`http_server::stall_guard::WRITE_RATE_MIN`] is disconnected.
//!
//! Operator pages (`/admin`, metrics, report, heap profile, dashboard) are served to programs and
//! to the relay's own page only: other values of `Host` and `Origin` are refused (421, 403).
//!
//! It must never know streams, protocols of peers, and how a message is stored.

mod admin;
mod answer;
mod client_topics;
pub(crate) mod cors;
mod health;
mod heap;
mod message;
mod metrics;
mod publish;
pub(crate) mod report;
mod routes;
mod service;
mod store_api;
mod store_page;
mod store_query;
mod store_remote;
mod subscriptions;
mod topic_changes;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use heap_profiler::Sampler;
use http_server::Server;
use tokio::{sync::mpsc, task::JoinSet};

use self::service::Service;
use crate::{
    config::Config,
    log::LogLevel,
    node::{Node, SwarmRequest},
};

/// Requests in flight may take this long when the node stops.
const GRACE: Duration = Duration::from_secs(2);
/// Interval at which counters are noted for rates.
const SAMPLE: Duration = Duration::from_secs(1);

/// The interface, serving. Dropping it closes everything at once.
pub(crate) struct Http {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    server: Server,
    sampling: JoinSet<()>,
}

/// Binds `config.http` and serves until [`Http::stop`]. `swarm_tx` reaches the swarm's task.
/// Errors: the address cannot be bound; a pool is not in the budget sheet.
pub(crate) async fn start(
    node: Arc<Node>,
    swarm_tx: mpsc::Sender<SwarmRequest>,
    sampler: Option<Arc<Sampler>>,
    log_level: LogLevel,
    config: &Config,
) -> Result<Http> {
    let listen = config.http;
    let (listener, address) = http_server::bind(listen).await.context("binding http")?;
    let service = Arc::new(Service::new(node, swarm_tx, sampler, log_level, config, address)?);
    let mut sampling = JoinSet::new();
    sampling.spawn(sample(service.clone()));
    let mut server = Server::default();
    server.listen(listener, service.clone(), service.connections.clone());
    Ok(Http { address, server, sampling })
}

impl Http {
    /// Stops accepting, lets requests in flight finish within [`GRACE`], and closes the rest.
    pub(crate) async fn stop(mut self) {
        // The node ends when nothing of the interface refers to it.
        self.sampling.shutdown().await;
        // Connections that have not finished by then are closed.
        let _ = self.server.shutdown(GRACE).await;
    }
}

/// Has the service note its counters, until the interface stops.
async fn sample(service: Arc<Service>) {
    let mut sample = tokio::time::interval(SAMPLE);
    sample.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        sample.tick().await;
        service.sample();
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::routes::ENDPOINTS;

    #[test]
    fn reference_page_of_routes_lists_every_endpoint() {
        let mut text = String::from("| method | path | meaning | read |\n|---|---|---|---|\n");
        for endpoint in ENDPOINTS {
            // A number is a shard, and a name too.
            let is_read = (endpoint.route)("1").unwrap().is_read();
            let read = if is_read { "yes" } else { "" };
            let (method, path, meaning) = (&endpoint.method, endpoint.path, endpoint.meaning);
            writeln!(text, "| {method} | `{path}` | {meaning} | {read} |").unwrap();
        }
        testing::reference::check_page("rest.md", "thimble-relay", &text);
    }
}
