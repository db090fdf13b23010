//! One connection: its bounds in time and bytes, and its orderly end.
//!
//! hyper reads and writes; this file decides how long that may take. A connection is closed when it
//! has not sent a whole head within the read timeout (from being accepted, or from the end of the
//! answer before), and when its client takes an answer more slowly than [`WRITE_RATE_MIN`] after
//! [`WRITE_STALL`]: a stalled reader would pin the answer's memory. Bodies have their own timeout
//! where they are read. What it must never know: routes.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
    sync::watch,
    time::{Instant, Sleep, sleep, timeout},
};

use super::service::Service;

/// Request head, and the read buffer: half of what a connection is charged.
pub(crate) const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Header lines of a request.
const HEADERS_MAX: usize = 64;
/// A reader may stall an answer this long ...
const WRITE_STALL: Duration = Duration::from_secs(10);
/// ... and then must take at least so many bytes per second.
pub(crate) const WRITE_RATE_MIN: u64 = 16 * 1024;

/// Time for a client to read the last answer of a connection.
const LINGER: Duration = Duration::from_millis(500);

const _: () = assert!(HEAD_BYTES_MAX as u64 * 2 <= relay_limits::HTTP_CONNECTION_BYTES);

/// Serves one connection until it ends. The caller holds its place.
pub(crate) async fn serve(
    stream: TcpStream,
    service: Arc<Service>,
    mut stopping: watch::Receiver<bool>,
) {
    let read_timeout = service.read_timeout();
    let answer = service_fn(move |request: Request<Incoming>| {
        let service = service.clone();
        // On the heap, so that the connection can be taken apart at its end.
        Box::pin(async move { Ok::<_, Infallible>(service.serve(request).await) })
    });
    let stream = TokioIo::new(Guarded::new(stream, WRITE_STALL));
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
    };
    if !ended {
        Pin::new(&mut connection).graceful_shutdown();
        // The listener bounds the drain as a whole.
        let _ = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
    }
    let stream = connection.into_parts().io.into_inner().stream;
    // The client may leave before it has read the last answer.
    let _ = timeout(LINGER, linger(stream)).await;
}

/// Says that nothing more comes, and reads what the client still sends: closing with unread bytes
/// would reset the connection under the last answer.
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

/// A stream whose writes must make progress.
struct Guarded<S> {
    stream: S,
    patience: Duration,
    stall: Option<Stall>,
}

/// A time in which the socket was never found ready at once.
struct Stall {
    since: Instant,
    written: u64,
    pending: bool,
    timer: Pin<Box<Sleep>>,
}

/// How long so many bytes may take.
fn at_least_rate(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / WRITE_RATE_MIN)
}

impl<S> Guarded<S> {
    fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, stall: None }
    }

    fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let patience = self.patience;
        match outcome {
            Poll::Ready(Ok(bytes)) => {
                match &mut self.stall {
                    Some(stall) if stall.pending => {
                        stall.pending = false;
                        stall.written += bytes as u64;
                        let allowed = patience + at_least_rate(stall.written);
                        stall.timer.as_mut().reset(stall.since + allowed);
                    }
                    // Room at the first try: the client keeps up.
                    _ => self.stall = None,
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Pending => {
                let stall = self.stall.get_or_insert_with(|| Stall {
                    since: Instant::now(),
                    written: 0,
                    pending: true,
                    timer: Box::pin(sleep(patience)),
                });
                stall.pending = true;
                ready!(stall.timer.as_mut().poll(cx));
                let slow = "the client reads the answer too slowly";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, slow)))
            }
            error => error,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn a_reader_that_stalls_is_given_up_and_one_that_keeps_up_is_not() {
        let (ours, _theirs) = tokio::io::duplex(1024);
        let mut stalled = Guarded::new(ours, PATIENCE);
        let start = Instant::now();
        let error = stalled.write_all(&[0; 4096]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() >= PATIENCE);

        let (ours, mut theirs) = tokio::io::duplex(1024);
        let mut fast = Guarded::new(ours, PATIENCE);
        let reader = tokio::spawn(async move {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).await.unwrap()
        });
        fast.write_all(&vec![0; 1 << 20]).await.unwrap();
        drop(fast);
        assert_eq!(reader.await.unwrap(), 1 << 20);
    }

    #[tokio::test]
    async fn a_reader_that_drips_is_given_up() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let mut slow = Guarded::new(ours, PATIENCE);
        let reader = tokio::spawn(async move {
            let mut byte = [0];
            while theirs.read_exact(&mut byte).await.is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
        });
        let error = slow.write_all(&vec![0; 1 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        reader.abort();
    }
}
