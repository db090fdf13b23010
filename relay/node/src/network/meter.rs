//! Bytes that were received and that no stream has consumed yet, per connection and over all.
//!
//! A multiplexer buffers what arrives for streams that nobody reads. The protocols allow a peer to
//! fill 256 KiB for each of its streams (yamux), or any number of frames of 1 MiB (mplex), so that a
//! few hundred connections could take any machine's memory. Here every connection is read through a
//! [`Gate`] that counts, and stops reading while the connection holds too much or the pool `unread`
//! is used up. TCP then holds the peer back.
//!
//! What arrives is counted below the multiplexer, what is consumed above it; in between are frame
//! heads and parts of frames. Those are settled whenever every stream of the connection was found
//! empty: what the connection holds then is at most what arrived since a stream last got something.
//!
//! A connection that holds [`STALL_BYTES`] for [`STALL`] without any stream getting something is
//! closed: it is filling buffers and nothing else.
//!
//! What it must never know: protocols, peers.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use budget::{Pool, Reservation};
use futures::{AsyncRead, AsyncWrite};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};

/// Read from a connection at once: a frame of the encryption.
const READ_BYTES: u64 = 64 << 10;
/// Held for longer than [`STALL`], a connection with so much is closed.
const STALL_BYTES: u64 = 32 << 10;
/// See [`STALL_BYTES`].
const STALL: Duration = Duration::from_secs(10);

/// All meters; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Meters {
    pool: Pool,
    /// The most that one connection may hold: a frame of the largest kind, and what completes it.
    per_connection: u64,
    all: Arc<Mutex<Vec<Weak<Meter>>>>,
}

impl Meters {
    pub(crate) fn new(pool: Pool, per_connection: u64) -> Self {
        Self { pool, per_connection, all: Arc::default() }
    }

    fn open(&self) -> Arc<Meter> {
        let state = State {
            held: 0,
            since_delivery: 0,
            delivered: Instant::now(),
            reservation: None,
            streams: 0,
            empty: 0,
            arrivals: 1,
            waiting: None,
            stalled: false,
        };
        let meter =
            Arc::new(Meter { pool: self.pool.clone(), most: self.per_connection, state: Mutex::new(state) });
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::downgrade(&meter));
        meter
    }

    /// Closes connections that fill buffers, and lets those try again that wait for the pool. To be
    /// called a few times a second. How many were closed.
    pub(crate) fn sweep(&self, now: Instant) -> usize {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mut closed = 0;
        all.retain(|meter| {
            let Some(meter) = meter.upgrade() else { return false };
            let mut state = meter.lock();
            let idle = now.saturating_duration_since(state.delivered);
            if state.since_delivery >= STALL_BYTES && idle >= STALL && !state.stalled {
                state.stalled = true;
                closed += 1;
            }
            if let Some(waker) = state.waiting.take() {
                waker.wake();
            }
            true
        });
        closed
    }
}

/// One connection's count.
#[derive(Debug)]
struct Meter {
    pool: Pool,
    most: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    held: u64,
    since_delivery: u64,
    delivered: Instant,
    reservation: Option<Reservation>,
    streams: usize,
    /// Streams found empty since something last arrived.
    empty: usize,
    /// Counts arrivals, so that a stream knows whether it was found empty since the last.
    arrivals: u64,
    waiting: Option<Waker>,
    stalled: bool,
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while counting leaves numbers that are settled at the next empty moment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether more may be read, holding room for it.
    fn may_read(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if state.stalled {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the peer fills buffers and completes no message",
            )));
        }
        let wanted = state.held + READ_BYTES;
        if state.held < self.most {
            let has_room = match &mut state.reservation {
                Some(reservation) => reservation.bytes() >= wanted || reservation.try_resize(wanted).is_ok(),
                none => match self.pool.try_reserve(wanted) {
                    Ok(reservation) => {
                        *none = Some(reservation);
                        true
                    }
                    Err(_) => false,
                },
            };
            if has_room {
                return Poll::Ready(Ok(()));
            }
        }
        state.waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    fn arrived(&self, bytes: usize) {
        let mut state = self.lock();
        state.held += bytes as u64;
        state.since_delivery += bytes as u64;
        state.arrivals += 1;
        state.empty = 0;
    }

    /// Nothing more arrives for now: room that was kept for it goes back.
    fn quiet(&self) {
        let mut state = self.lock();
        let held = state.held;
        if held == 0 {
            state.reservation = None;
        } else if let Some(reservation) = &mut state.reservation {
            // Giving back cannot fail.
            let _ = reservation.try_resize(held.min(reservation.bytes()));
        }
    }

    fn consumed(&self, bytes: usize) {
        let mut state = self.lock();
        state.held = state.held.saturating_sub(bytes as u64);
        state.since_delivery = 0;
        state.delivered = Instant::now();
        if state.held < self.most
            && let Some(waker) = state.waiting.take()
        {
            waker.wake();
        }
    }

    /// A stream was found empty; `at` is what it remembers of arrivals.
    fn found_empty(&self, at: &mut u64) {
        let mut state = self.lock();
        if *at != state.arrivals {
            *at = state.arrivals;
            state.empty += 1;
        }
        settle(&mut state);
    }

    fn stream_opened(&self) {
        self.lock().streams += 1;
    }

    fn stream_closed(&self, at: u64) {
        let mut state = self.lock();
        state.streams = state.streams.saturating_sub(1);
        if at == state.arrivals {
            state.empty = state.empty.saturating_sub(1);
        }
        settle(&mut state);
    }
}

fn settle(state: &mut State) {
    if state.empty >= state.streams && state.held > state.since_delivery {
        state.held = state.since_delivery;
        if let Some(waker) = state.waiting.take() {
            waker.wake();
        }
    }
}

/// A connection that is read only while there is room.
pub(crate) struct Gate<C> {
    inner: C,
    meter: Arc<Meter>,
}

impl<C: AsyncRead + Unpin> AsyncRead for Gate<C> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        futures::ready!(self.meter.may_read(cx))?;
        let most = buf.len().min(READ_BYTES as usize);
        let buf = buf.get_mut(..most).unwrap_or_default();
        match Pin::new(&mut self.inner).poll_read(cx, buf) {
            Poll::Ready(Ok(read)) => {
                self.meter.arrived(read);
                Poll::Ready(Ok(read))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.meter.quiet();
                Poll::Pending
            }
        }
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Gate<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

/// A multiplexer whose streams count what they consume.
pub(crate) struct Metered<M> {
    inner: M,
    meter: Arc<Meter>,
}

/// Opens a meter, and puts the gate below a multiplexer and the counting streams above it.
pub(crate) fn metered<C, M>(
    meters: &Meters,
    connection: C,
    multiplexer: impl FnOnce(Gate<C>) -> M,
) -> Metered<M> {
    let meter = meters.open();
    let gate = Gate { inner: connection, meter: meter.clone() };
    Metered { inner: multiplexer(gate), meter }
}

impl<M> Metered<Option<M>> {
    /// The multiplexer, if there is one.
    pub(crate) fn transpose(self) -> Option<Metered<M>> {
        Some(Metered { inner: self.inner?, meter: self.meter })
    }
}

impl<M> Metered<M> {
    fn stream<S>(&self, inner: S) -> MeteredStream<S> {
        self.meter.stream_opened();
        MeteredStream { inner, meter: self.meter.clone(), empty_at: 0 }
    }
}

impl<M: StreamMuxer<Substream: Unpin> + Unpin> StreamMuxer for Metered<M> {
    type Substream = MeteredStream<M::Substream>;
    type Error = M::Error;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        let stream = futures::ready!(Pin::new(&mut self.inner).poll_inbound(cx))?;
        Poll::Ready(Ok(self.stream(stream)))
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        let stream = futures::ready!(Pin::new(&mut self.inner).poll_outbound(cx))?;
        Poll::Ready(Ok(self.stream(stream)))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

/// A stream that counts what is read from it.
pub(crate) struct MeteredStream<S> {
    inner: S,
    meter: Arc<Meter>,
    empty_at: u64,
}

impl<S> Drop for MeteredStream<S> {
    fn drop(&mut self) {
        self.meter.stream_closed(self.empty_at);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_read(cx, buf) {
            Poll::Ready(Ok(read)) if read > 0 => {
                this.meter.consumed(read);
                Poll::Ready(Ok(read))
            }
            other => {
                // Pending, at its end, or broken: nothing of it is held.
                this.meter.found_empty(&mut this.empty_at);
                other
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }
}
