//! A stream whose peer must keep reading, for servers of HTTP: a peer that stalls would pin the
//! memory of the response that is written to it.
//!
//! While every write finds room at the first try, no time is taken. From the first that does not,
//! the peer has `timeout`, and beyond it a second for each [`WRITE_RATE_MIN`] bytes it has taken.
//!
//! A stream may linger at its end ([`StallGuard::with_linger`]): closing with unread bytes would
//! reset the connection under the last response. Nothing of these bytes is kept.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// Bytes per second that a peer must take at least of a response that it stalled.
pub const WRITE_RATE_MIN: u64 = 16 * 1024;

/// Time allowed to send `bytes` bytes.
pub fn at_least_rate(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / WRITE_RATE_MIN)
}

/// Receives notice that bytes were received or sent.
pub trait Progress {
    /// Some bytes were read.
    fn bytes_read(&self) {}
    /// The socket took some bytes.
    fn bytes_written(&self) {}
}

impl Progress for () {}

impl<P: Progress> Progress for std::sync::Arc<P> {
    fn bytes_read(&self) {
        (**self).bytes_read();
    }

    fn bytes_written(&self) {
        (**self).bytes_written();
    }
}

/// A stream whose writes must make progress; one that does not ends with
/// [`io::ErrorKind::TimedOut`].
pub struct StallGuard<S, P = ()> {
    stream: S,
    progress: P,
    timeout: Duration,
    stall: Option<Stall>,
    was_pending: bool,
    linger: Option<Duration>,
    /// When the peer's time to read the last bytes is over.
    lingering: Option<Pin<Box<Sleep>>>,
}

/// A time in which the socket was never found ready at once.
struct Stall {
    since: Instant,
    written: u64,
    timer: Pin<Box<Sleep>>,
}

impl<S, P: Progress> StallGuard<S, P> {
    /// `timeout`: how long the peer may take nothing.
    pub fn new(stream: S, progress: P, timeout: Duration) -> Self {
        Self {
            stream,
            progress,
            timeout,
            stall: None,
            was_pending: false,
            linger: None,
            lingering: None,
        }
    }

    /// After the end of its writes, reads and drops what the peer sends, for so long at most.
    pub fn with_linger(self, linger: Option<Duration>) -> Self {
        Self { linger, ..self }
    }

    fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match outcome {
            Poll::Ready(Ok(bytes)) => {
                self.progress.bytes_written();
                // Room in the socket at the first try: the peer keeps up.
                if !std::mem::take(&mut self.was_pending) {
                    self.stall = None;
                } else if let Some(stall) = &mut self.stall {
                    stall.written += bytes as u64;
                    let allowed = self.timeout + at_least_rate(stall.written);
                    stall.timer.as_mut().reset(stall.since + allowed);
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Pending => {
                self.was_pending = true;
                let timeout = self.timeout;
                let stall = self.stall.get_or_insert_with(|| Stall {
                    since: Instant::now(),
                    written: 0,
                    timer: Box::pin(sleep(timeout)),
                });
                ready!(stall.timer.as_mut().poll(cx));
                let slow = "the peer reads the response too slowly";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, slow)))
            }
            error => error,
        }
    }
}

impl<S: AsyncRead + Unpin, P: Progress + Unpin> AsyncRead for StallGuard<S, P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        if buf.filled().len() > before {
            self.progress.bytes_read();
        }
        Poll::Ready(outcome)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, P: Progress + Unpin> AsyncWrite for StallGuard<S, P> {
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

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, linger, lingering, .. } = self.get_mut();
        if lingering.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
        }
        let Some(linger) = *linger else { return Poll::Ready(Ok(())) };
        let end = lingering.get_or_insert_with(|| Box::pin(sleep(linger)));
        let mut dropped = [0; 512];
        while end.as_mut().poll(cx).is_pending() {
            let mut buf = ReadBuf::new(&mut dropped);
            // An error means that the peer is gone.
            let read = ready!(Pin::new(&mut *stream).poll_read(cx, &mut buf));
            if read.is_err() || buf.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(200);

    fn guarded() -> (StallGuard<DuplexStream>, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1024);
        (StallGuard::new(ours, (), TIMEOUT), theirs)
    }

    #[tokio::test]
    async fn a_reader_that_stalls_is_given_up() {
        let (mut guarded, _theirs) = guarded();
        let start = Instant::now();
        let error = guarded.write_all(&[0; 4096]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() >= TIMEOUT);
    }

    #[tokio::test]
    async fn stream_that_lingers_drops_what_the_peer_sends_until_its_end() {
        let (ours, theirs) = guarded();
        let mut ours = ours.with_linger(Some(TIMEOUT));
        let start = Instant::now();
        ours.shutdown().await.unwrap();
        assert!(start.elapsed() >= TIMEOUT, "the peer may still read");
        drop(theirs);

        let (ours, mut theirs) = guarded();
        let mut ours = ours.with_linger(Some(TIMEOUT * 1000));
        let sender = tokio::spawn(async move {
            theirs.write_all(&vec![0; 1 << 20]).await.unwrap();
        });
        ours.shutdown().await.unwrap();
        sender.await.unwrap();
    }

    #[tokio::test]
    async fn a_reader_that_drips_is_given_up_and_one_that_keeps_up_is_not() {
        let (mut slow, mut theirs) = guarded();
        let reader = tokio::spawn(async move {
            let mut byte = [0];
            while theirs.read_exact(&mut byte).await.is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
        });
        let error = slow.write_all(&vec![0; 1 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(slow);
        reader.abort();

        let (mut fast, mut theirs) = guarded();
        let reader =
            tokio::spawn(async move { theirs.read_to_end(&mut Vec::new()).await.unwrap() });
        fast.write_all(&vec![0; 1 << 20]).await.unwrap();
        drop(fast);
        assert_eq!(reader.await.unwrap(), 1 << 20);
    }
}
