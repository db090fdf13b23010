//! The HTTP interface: REST as reference nodes publish it, metrics, health, and one status report.
//!
//! Routes are those of the OpenAPI files in waku-org/waku-rest-api; in addition there are
//! `/metrics` (Prometheus text), `/status.json`, and `/dashboard`, which draws it. Only HTTP/1.1 is
//! spoken: clients are tools of the operator, each with a connection or two.
//!
//! Bounds:
//!
//! - connections: [`relay_limits::HttpLimits::connections`], each charged to the pool
//!   `http_connections`. For the next one the connection that has been idle longest is closed
//!   ([`http_server::connections`]); when none is idle, it gets 503 from one of [`REFUSALS_MAX`]
//!   short-lived tasks;
//! - heads: [`connection::HEAD_BYTES_MAX`] and the read timeout, bodies: `http.body_bytes` (413),
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
mod body;
mod connection;
mod health;
mod heap;
mod message;
mod metrics;
mod publish;
pub(crate) mod report;
mod routes;
mod service;
mod store_api;
mod store_query;
mod subscriptions;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use ::heap::Sampler;
use anyhow::{Context, Result};
use http_server::connections::AdmitError;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use self::service::Service;
use crate::{
    config::Config,
    node::{Node, SwarmRequest},
};

/// Connections that get the 503 answer at once; more are closed without an answer.
const REFUSALS_MAX: usize = 8;
/// Time to send the refusal, and for the client to read it.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Accepting pauses this long when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Requests in flight may take this long when the node stops.
const GRACE: Duration = Duration::from_secs(2);
/// Interval at which counters are noted for rates.
const SAMPLE: Duration = Duration::from_secs(1);

/// The interface, serving. Dropping it closes everything at once.
pub(crate) struct Http {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    stopping: watch::Sender<bool>,
    listener: JoinHandle<()>,
}

/// Binds `config.http` and serves until [`Http::stop`]. `swarm_tx` reaches the swarm's task.
/// Errors: the address cannot be bound; a pool is not in the budget sheet.
pub(crate) async fn start(
    node: Arc<Node>,
    swarm_tx: mpsc::Sender<SwarmRequest>,
    sampler: Option<Arc<Sampler>>,
    config: &Config,
) -> Result<Http> {
    let listen = config.http;
    let listener = TcpListener::bind(listen).await.with_context(|| {
        format!("cannot listen on http = {listen}; choose another address or stop what uses it")
    })?;
    let address = listener.local_addr().context("asking for the address of the listener")?;
    let service = Arc::new(Service::new(node, swarm_tx, sampler, config, address)?);
    let (stopping, stopped) = watch::channel(false);
    let listener = tokio::spawn(accept(listener, service, stopped));
    Ok(Http { address, stopping, listener })
}

impl Http {
    /// Stops accepting, lets requests in flight finish within [`GRACE`], and closes the rest.
    pub(crate) async fn stop(mut self) {
        self.stopping.send_replace(true);
        // It ends by itself; an error would mean that it ended already.
        let _ = (&mut self.listener).await;
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn accept(listener: TcpListener, service: Arc<Service>, mut stopping: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let mut refusals = JoinSet::new();
    let mut sample = tokio::time::interval(SAMPLE);
    sample.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let stop = stopping.clone();
    loop {
        tokio::select! {
            () = connection::stopped(&mut stopping) => break,
            Some(_) = connections.join_next() => {}
            Some(_) = refusals.join_next() => {}
            _ = sample.tick() => service.sample(),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Answers are written whole: waiting for more to send only delays them. A
                    // failure costs nothing but that delay.
                    let _ = stream.set_nodelay(true);
                    take(stream, &service, &stop, &mut connections, &mut refusals).await;
                }
                Err(error) => {
                    // The client is gone, or descriptors ran out, which a pause lets recover.
                    tracing::debug!(%error, "an HTTP connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    refusals.abort_all();
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(GRACE, drained).await.is_err() {
        connections.shutdown().await;
    }
}

async fn take(
    stream: TcpStream,
    service: &Arc<Service>,
    stopping: &watch::Receiver<bool>,
    connections: &mut JoinSet<()>,
    refusals: &mut JoinSet<()>,
) {
    // Tasks of closed connections are removed here too, so that they are no more than the slots.
    while connections.try_join_next().is_some() {}
    let admitted = service.connections.admit(|| service.answered.evicted_connection()).await;
    let refused = match admitted {
        Ok(slot) => {
            connections.spawn(connection::serve(stream, service.clone(), slot, stopping.clone()));
            return;
        }
        Err(AdmitError::Limit) => {
            let most = service.limits.connections;
            format!("http.connections = {most} are open, the most there are places for")
        }
        Err(AdmitError::Memory(full)) => full.to_string(),
    };
    service.answered.refused_connection();
    if refusals.len() < REFUSALS_MAX {
        refusals.spawn(async move {
            // The client may leave before it gets the refusal.
            let _ = timeout(REFUSAL_TIME, refuse(stream, &refused)).await;
        });
    }
}

/// Sends 503, and lets the client read it: closing with unread bytes would reset the connection
/// under the answer.
async fn refuse(mut stream: TcpStream, why: &str) -> io::Result<()> {
    let message = format!("{why} (pool http_connections); try again in a second\n");
    let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\n\
                retry-after: 1\r\nconnection: close\r\n";
    let answer = format!("{head}content-length: {}\r\n\r\n{message}", message.len());
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    let mut ignored = [0; 512];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}
