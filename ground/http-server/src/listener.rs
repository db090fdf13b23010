//! Listeners: they accept connections up to their limit, and come to an orderly end.
//!
//! A connection takes a slot before it is served. When there is none, the connection that has been
//! idle longest is closed for it ([`crate::connections`]); when none is idle, the new one is
//! refused with a 503 written without reading anything, by one of [`ConnectionSettings::refusals`]
//! short-lived tasks; when those are busy too it is dropped. So accepting waits only for a
//! connection to close, for a bounded time, and never spawns without a permit.
//!
//! On shutdown the listeners close first, then connections finish their requests in flight, and
//! after the grace period the rest is dropped.
//!
//! [`ConnectionSettings::refusals`]: crate::ConnectionSettings::refusals

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    TEXT,
    connection::{self, HttpHandler, Stage},
    connections::Connections,
};

/// Reason under which a failed accept is counted.
pub const ACCEPT_ERROR: &str = "accept_error";
/// Time to write a refusal and for the peer to read it.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Time for closed connections to end.
const CLOSING: Duration = Duration::from_secs(1);
/// Connections that the kernel holds until they are accepted, if `net.core.somaxconn` allows it. A
/// client whose connection finds no room tries again after a second.
const BACKLOG: u32 = 4096;
/// Accepting pauses this long when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Threads of [`runtime`], without those for work that blocks.
pub const RUNTIME_THREADS: usize = 2;

/// The runtime of a program: few threads, whose stacks and caches cost memory, and at most this
/// number for work that blocks.
///
/// # Errors
/// When its threads cannot be started.
pub fn runtime(blocking_threads: usize) -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .max_blocking_threads(blocking_threads)
        .thread_stack_size(1 << 20)
        .thread_keep_alive(Duration::from_secs(10))
        .enable_all()
        .build()
}

/// The address cannot be bound.
#[derive(Debug, Error)]
#[error("cannot listen on {listen}: {error}; choose another address or stop what uses it")]
pub struct ListenError {
    listen: SocketAddr,
    error: io::Error,
}

/// Binds an address. Returns the address that was bound, too: port 0 takes a free one.
///
/// # Errors
/// When it cannot be bound.
pub async fn bind(listen: SocketAddr) -> Result<(TcpListener, SocketAddr), ListenError> {
    let failed = |error| ListenError { listen, error };
    let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(failed)?;
    // As other listeners of the standard library: a restart takes the port of its predecessor.
    socket.set_reuseaddr(true).map_err(failed)?;
    socket.bind(listen).map_err(failed)?;
    let listener = socket.listen(BACKLOG).map_err(failed)?;
    let local_addr = listener.local_addr().map_err(failed)?;
    Ok((listener, local_addr))
}

/// Listeners that end together. Dropping it closes everything at once.
#[derive(Debug)]
pub struct Server {
    stage: watch::Sender<Stage>,
    listeners: Vec<Listener>,
}

#[derive(Debug)]
struct Listener {
    accepting: JoinHandle<()>,
    connections: Connections,
}

impl Default for Server {
    fn default() -> Self {
        Self { stage: watch::channel(Stage::Serving).0, listeners: Vec::new() }
    }
}

impl Server {
    /// Where it is in its life.
    pub fn stage(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// Accepts connections for as long as the server serves. Must be called within a tokio runtime.
    pub fn listen<A: HttpHandler>(
        &mut self,
        listener: TcpListener,
        handler: Arc<A>,
        connections: Connections,
    ) {
        let accepting = accept(listener, handler, connections.clone(), self.stage());
        self.listeners.push(Listener { accepting: tokio::spawn(accepting), connections });
    }

    /// Stops accepting, lets requests in flight finish within `grace`, then closes what is left.
    /// Returns whether all had finished.
    pub async fn shutdown(mut self, grace: Duration) -> bool {
        self.stage.send_replace(Stage::Draining);
        let finishing = async {
            for listener in &mut self.listeners {
                // It ends at the stage's change; an error would mean that it ended already.
                let _ = (&mut listener.accepting).await;
                listener.connections.drained().await;
            }
        };
        let finished = timeout(grace, finishing).await.is_ok();
        self.stage.send_replace(Stage::Closed);
        let closing = async {
            for listener in &self.listeners {
                listener.connections.drained().await;
            }
        };
        // What a connection still refers to is free after it, as far as the machine keeps up.
        let _ = timeout(CLOSING, closing).await;
        finished
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stage.send_replace(Stage::Closed);
        for listener in &self.listeners {
            listener.accepting.abort();
        }
    }
}

async fn accept<A: HttpHandler>(
    listener: TcpListener,
    handler: Arc<A>,
    connections: Connections,
    mut stage_rx: watch::Receiver<Stage>,
) {
    let settings = handler.settings();
    let refusals = Arc::new(Semaphore::new(settings.refusals));
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
                handler.count_refusal(ACCEPT_ERROR);
                tracing::debug!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Answers are written whole; waiting for more to send with them only delays them. A failure
        // costs nothing but that delay.
        let _ = stream.set_nodelay(true);
        let error = match connections.admit(|| handler.count_eviction()).await {
            Ok(slot) => {
                tokio::spawn(connection::serve(stream, handler.clone(), slot, stage_rx.clone()));
                continue;
            }
            Err(error) => error,
        };
        handler.count_refusal(handler.connections_limit().0);
        if let Ok(permit) = refusals.clone().try_acquire_owned() {
            let text = handler.refusal_text(error);
            tokio::spawn(async move {
                let _permit = permit;
                // The peer may leave before the refusal is written.
                let _ = timeout(REFUSAL_TIME, refuse(stream, &text, settings.any_origin)).await;
            });
        }
    }
}

/// Reports that there is no place, and lets the peer read it: closing with unread bytes would reset
/// the connection under the answer.
async fn refuse(mut stream: TcpStream, text: &str, any_origin: bool) -> io::Result<()> {
    let readers = if any_origin { "access-control-allow-origin: *\r\n" } else { "" };
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: {TEXT}\r\nretry-after: 1\r\n\
         connection: close\r\n{readers}content-length: {}\r\n\r\n{text}",
        text.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    let mut ignored = [0; 1024];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}
