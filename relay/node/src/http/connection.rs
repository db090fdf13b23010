//! One connection: its bounds in time and bytes, and its orderly end.
//!
//! hyper reads and writes; this file bounds the time for it. A connection is closed when it has not
//! sent a whole head within the read timeout (from being accepted, or from the end of the answer
//! before), and when its client takes an answer more slowly than
//! [`http_server::stall_guard::WRITE_RATE_MIN`] after [`WRITE_STALL`]: a stalled reader would pin the
//! answer's memory. It is closed too when it is idle and a new connection takes its slot. Bodies
//! have their own timeout where they are read. It must never know routes.

use std::{convert::Infallible, future::poll_fn, io, pin::Pin, sync::Arc, time::Duration};

use http_server::{connections::Slot, stall_guard::StallGuard};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::timeout,
};

use super::service::Service;

/// Request head, and the read buffer: half of what a connection is charged.
pub(crate) const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Header lines of a request.
const HEADERS_MAX: usize = 64;
/// A reader may stall an answer this long, and then must take
/// [`http_server::stall_guard::WRITE_RATE_MIN`].
const WRITE_STALL: Duration = Duration::from_secs(10);

/// Time for a client to read the last answer of a connection.
const LINGER: Duration = Duration::from_millis(500);

const _: () = assert!(HEAD_BYTES_MAX as u64 * 2 <= relay_limits::HTTP_CONNECTION_BYTES);

/// Serves one connection until it ends, or is evicted.
pub(crate) async fn serve(
    stream: TcpStream,
    service: Arc<Service>,
    mut slot: Slot,
    mut stopping: watch::Receiver<bool>,
) {
    let (read_timeout, requests) = (service.read_timeout(), slot.requests());
    let answer = service_fn(move |request: Request<Incoming>| {
        let (service, begun) = (service.clone(), requests.begin());
        // On the heap, so that the connection can be taken apart at its end.
        Box::pin(async move {
            // The connection is evicted, which ends this future.
            let Some(guard) = begun else { return std::future::pending().await };
            let answer = service.serve(request).await;
            Ok::<_, Infallible>(answer.map(|body| guard.body(body)))
        })
    });
    let stream = TokioIo::new(StallGuard::new(stream, (), WRITE_STALL));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(read_timeout)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(false)
        .serve_connection(stream, answer);
    // An error is the client's: it went away, was too slow or spoke no HTTP. hyper has answered
    // what could be answered.
    let ended = tokio::select! {
        _ = poll_fn(|cx| connection.poll_without_shutdown(cx)) => true,
        () = stopped(&mut stopping) => false,
        () = slot.evicted() => return,
    };
    if !ended {
        Pin::new(&mut connection).graceful_shutdown();
        // The listener bounds the drain as a whole.
        let _ = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
    }
    let stream = connection.into_parts().io.into_inner().into_inner();
    // The client may leave before it has read the last answer.
    let lingering = timeout(LINGER, linger(stream));
    tokio::select! {
        _ = lingering => {}
        () = slot.evicted() => {}
    }
}

/// Shuts down writing, and reads the client's remaining bytes: closing with unread bytes would
/// reset the connection under the last answer.
async fn linger(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut ignored = [0; 512];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}

/// Completes when the interface stops.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that it is gone.
    let _ = stopping.wait_for(|stop| *stop).await;
}
