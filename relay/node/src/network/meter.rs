//! Bytes that were received and that no stream has consumed yet, and bytes that were passed to a
//! multiplexer and not sent yet: per connection, and the former over all.
//!
//! A multiplexer buffers data for streams that are not read. The protocols allow a peer to fill 256
//! KiB for each of its streams (yamux), or any number of frames of 1 MiB (mplex), so that a few
//! hundred connections could take any machine's memory. Here every connection is read through a
//! [`Gate`] that counts, and stops reading while the connection holds too much or the pool `unread`
//! is used up, or while nothing is read at all because memory is short. TCP then holds the peer
//! back. It also buffers what streams write, several frames for each: streams of a connection wait
//! while more than [`UNSENT_BYTES`] of it have not been sent, and one that is closed waits until
//! most of it was.
//!
//! Bytes that arrive for streams are counted below the multiplexer, consumed bytes above it; the
//! difference includes bytes for streams that are gone. It is corrected by the known contents of
//! streams. A stream is known to be empty when it returned no data and was not woken since; one
//! that was woken, and one that was opened and not accepted yet, holds at most the bytes that
//! arrived for all streams since it was last empty. So a connection holds at most the incomplete
//! frame, and the bytes that arrived since the first of its streams that may hold something was
//! last empty. Streams may be left alone for any time, as the one for pings is: their bytes are
//! counted.
//!
//! Streams that peers opened and that were not accepted yet are counted too, as they take memory
//! before they have a slot: while there are more than a stated number over all connections, one
//! that has more than [`UNACCEPTED_STREAMS`] is closed.
//!
//! A connection that holds [`STALL_BYTES`] for a set time without any stream getting something is
//! closed: it is filling buffers and nothing else. While the pool `unread` is used up, which keeps
//! others from being read, a quarter of that time is enough. A reader that waits for this node, and
//! not for its peer, reports that by reads into no room: this time does not count.
//!
//! It must never know protocols or peers.

use std::{
    collections::BTreeSet,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use accounting::{Pool, Reservation};
use futures::{AsyncRead, AsyncWrite};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};

use super::framing::Framing;

/// Read from a connection at once: a frame of the encryption.
const READ_BYTES: u64 = 64 << 10;
/// Held for longer than `connections.stalled_seconds`, a connection with so much is closed.
const STALL_BYTES: u64 = 32 << 10;
/// Bytes that a multiplexer may have read from the connection in addition to the incomplete frame,
/// and not passed to a stream yet.
const UNDELIVERED_BYTES: u64 = 8 << 10;
/// See the module.
const CROWDED: u32 = 4;
/// See the module: more than honest peers open at once, if not for long.
const UNACCEPTED_STREAMS: u64 = 32;
/// Written by streams of a connection and not sent, from which on they wait.
const UNSENT_BYTES: u64 = 256 << 10;
/// A stream that is closed waits until no more than this has not been sent.
const UNSENT_AT_CLOSE_BYTES: u64 = 64 << 10;

fn wake(waiting: Option<Waker>) {
    if let Some(waker) = waiting {
        waker.wake();
    }
}

/// Whether connections may be read at all.
pub(crate) type Reads = Arc<dyn Fn() -> bool + Send + Sync>;

/// All meters; cheap to clone.
#[derive(Clone)]
pub(crate) struct Meters {
    pool: Pool,
    reads: Reads,
    /// The most that one connection may hold: a frame of the largest kind, and its completion.
    per_connection: u64,
    stall: Duration,
    all: Arc<Mutex<Vec<Weak<Meter>>>>,
    unaccepted: Arc<InboundBacklog>,
    traffic: Arc<Traffic>,
}

/// Bytes of all connections since the start, without those that encryption adds.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
}

/// Streams that peers opened and that were not accepted yet, over all connections.
#[derive(Debug)]
struct InboundBacklog {
    count: AtomicU64,
    most: u64,
}

impl Meters {
    pub(crate) fn new(
        pool: Pool,
        per_connection: u64,
        stall: Duration,
        unaccepted_most: u64,
        reads: Reads,
    ) -> Self {
        let unaccepted =
            Arc::new(InboundBacklog { count: AtomicU64::new(0), most: unaccepted_most });
        let (all, traffic) = (Arc::default(), Arc::default());
        Self { pool, reads, per_connection, stall, all, unaccepted, traffic }
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    fn open(&self, framing: Framing) -> Arc<Meter> {
        let state = State {
            framing,
            held: 0,
            delivered: Instant::now(),
            reservation: None,
            arrived: 0,
            not_empty: BTreeSet::new(),
            streams: 0,
            unaccepted: 0,
            unaccepted_since: 0,
            waiting: None,
            stalled: false,
            unsent: 0,
            writers: Vec::new(),
        };
        let meter = Arc::new(Meter {
            pool: self.pool.clone(),
            reads: self.reads.clone(),
            most: self.per_connection,
            all_unaccepted: self.unaccepted.clone(),
            traffic: self.traffic.clone(),
            state: Mutex::new(state),
        });
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::downgrade(&meter));
        meter
    }

    /// This process was stopped for this time, or got no processor: that nothing was read is not
    /// the peers' doing.
    pub(crate) fn excuse(&self, time: Duration) {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        for meter in all.iter().filter_map(Weak::upgrade) {
            meter.lock().delivered += time;
        }
    }

    /// Closes connections that fill buffers, and lets those try again that wait for the pool. To be
    /// called a few times a second. How many were closed.
    pub(crate) fn sweep(&self, now: Instant) -> usize {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mut closed = 0;
        let crowded = self.pool.free_bytes() < READ_BYTES;
        let stall = if crowded { self.stall / CROWDED } else { self.stall };
        all.retain(|meter| {
            let Some(meter) = meter.upgrade() else { return false };
            let mut state = meter.lock();
            if !(self.reads)() {
                // That nothing arrives is not the peer's doing.
                state.delivered = now;
            }
            let settled = state.settle();
            let idle = now.saturating_duration_since(state.delivered);
            if state.held >= STALL_BYTES && idle >= stall && !state.stalled {
                let (held, partial) = (state.held, state.framing.partial());
                let not_empty = state.not_empty.len();
                tracing::debug!(held, partial, not_empty, "a connection fills buffers");
                state.stalled = true;
                closed += 1;
            }
            let waiting = settled.or_else(|| state.waiting.take());
            drop(state);
            wake(waiting);
            true
        });
        closed
    }
}

struct Meter {
    pool: Pool,
    reads: Reads,
    most: u64,
    all_unaccepted: Arc<InboundBacklog>,
    traffic: Arc<Traffic>,
    state: Mutex<State>,
}

impl Drop for Meter {
    fn drop(&mut self) {
        let unaccepted = self.lock().unaccepted;
        self.all_unaccepted.count.fetch_sub(unaccepted, Relaxed);
    }
}

#[derive(Debug)]
struct State {
    framing: Framing,
    held: u64,
    delivered: Instant,
    reservation: Option<Reservation>,
    /// Bytes that arrived for streams, ever.
    arrived: u64,
    /// Streams that are not known to be empty: how much had arrived when each last was, and its
    /// number. At most as many as there are streams.
    not_empty: BTreeSet<(u64, u64)>,
    /// Streams so far; the next one's number.
    streams: u64,
    /// Streams that the peer opened and that were not accepted yet, and the bytes that had arrived
    /// before the first.
    unaccepted: u64,
    unaccepted_since: u64,
    waiting: Option<Waker>,
    stalled: bool,
    unsent: u64,
    /// Streams that wait until less is unsent; at most one entry for each poll since the last
    /// wake.
    writers: Vec<Waker>,
}

impl State {
    /// Least number of bytes that had arrived and were delivered to streams that are empty now.
    fn delivered_bytes(&self) -> u64 {
        self.arrived.saturating_sub(self.framing.partial() + UNDELIVERED_BYTES)
    }

    /// Returns reserved bytes that are not held. A waiting connection keeps no more than it holds:
    /// many that each kept room to read would wait for one another.
    fn release(&mut self) {
        if self.held == 0 {
            self.reservation = None;
        } else if let Some(reservation) = &mut self.reservation {
            reservation.shrink(reservation.bytes().saturating_sub(self.held));
        }
    }

    /// Counts no more than can be held. The waiting task is to be woken without the lock: it may be
    /// a stream, which notes that it was woken.
    #[must_use]
    fn settle(&mut self) -> Option<Waker> {
        let unaccepted = (self.unaccepted > 0).then_some(self.unaccepted_since);
        let since =
            self.not_empty.first().map(|(since, _)| *since).into_iter().chain(unaccepted).min();
        let unread = since.map_or(0, |since| self.arrived.saturating_sub(since));
        let most = self.framing.partial() + unread;
        if self.held <= most {
            return None;
        }
        self.held = most;
        if self.waiting.is_some() {
            self.release();
        }
        self.waiting.take()
    }
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
        if state.unaccepted > UNACCEPTED_STREAMS
            && self.all_unaccepted.count.load(Relaxed) > self.all_unaccepted.most
        {
            return Poll::Ready(Err(io::Error::other(
                "the peer opens streams and agrees on no protocol",
            )));
        }
        let wanted = state.held + READ_BYTES;
        if state.held < self.most && (self.reads)() {
            let has_room = match &mut state.reservation {
                Some(held) => held.bytes() >= wanted || held.try_resize(wanted).is_ok(),
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
        state.release();
        state.waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    fn arrived(&self, bytes: &[u8]) {
        self.traffic.received.fetch_add(bytes.len() as u64, Relaxed);
        let mut state = self.lock();
        let before = state.delivered_bytes();
        let found = state.framing.read(bytes);
        state.held += found.data;
        state.arrived += found.data;
        if state.unaccepted == 0 {
            state.unaccepted_since = before;
        }
        state.unaccepted += found.opened;
        self.all_unaccepted.count.fetch_add(found.opened, Relaxed);
    }

    /// Nothing more arrives for now: room that was kept for it goes back.
    fn quiet(&self) {
        let mut state = self.lock();
        let waiting = state.settle();
        state.release();
        drop(state);
        wake(waiting);
    }

    /// A stream is not read because this node is busy, which is not the peer's doing.
    fn kept_waiting(&self) {
        self.lock().delivered = Instant::now();
    }

    fn consumed(&self, bytes: usize) {
        let mut state = self.lock();
        state.held = state.held.saturating_sub(bytes as u64);
        state.delivered = Instant::now();
        if state.waiting.is_some() {
            state.release();
        }
        let waiting = if state.held < self.most { state.waiting.take() } else { None };
        drop(state);
        wake(waiting);
    }

    /// Whether a stream may write more; registers it if not.
    fn may_write(&self, most: u64, cx: &Context<'_>) -> bool {
        let mut state = self.lock();
        if state.unsent < most {
            return true;
        }
        if !state.writers.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.writers.push(cx.waker().clone());
        }
        false
    }

    fn written(&self, bytes: usize) {
        self.lock().unsent += bytes as u64;
    }

    fn sent(&self, bytes: usize) {
        self.traffic.sent.fetch_add(bytes as u64, Relaxed);
        let mut state = self.lock();
        // Heads of frames are sent too, so the count is a little low, and nothing when all is sent.
        state.unsent = state.unsent.saturating_sub(bytes as u64);
        if state.unsent < UNSENT_AT_CLOSE_BYTES {
            state.writers.drain(..).for_each(Waker::wake);
        }
    }
}

/// A connection that is read only while there is room.
pub(crate) struct Gate<C> {
    inner: C,
    meter: Arc<Meter>,
}

impl<C: AsyncRead + Unpin> AsyncRead for Gate<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        futures::ready!(self.meter.may_read(cx))?;
        let most = buf.len().min(READ_BYTES as usize);
        let buf = buf.get_mut(..most).unwrap_or_default();
        match Pin::new(&mut self.inner).poll_read(cx, buf) {
            Poll::Ready(Ok(read)) => {
                self.meter.arrived(buf.get(..read).unwrap_or_default());
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
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = futures::ready!(Pin::new(&mut self.inner).poll_write(cx, buf))?;
        self.meter.sent(sent);
        Poll::Ready(Ok(sent))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = futures::ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, bufs))?;
        self.meter.sent(sent);
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

/// A multiplexer whose streams count consumed bytes.
pub(crate) struct MeteredMuxer<M> {
    inner: M,
    meter: Arc<Meter>,
}

/// Opens a meter, and puts the gate below a multiplexer and the counting streams above it.
pub(crate) fn metered<C, M>(
    meters: &Meters,
    framing: Framing,
    connection: C,
    multiplexer: impl FnOnce(Gate<C>) -> M,
) -> MeteredMuxer<M> {
    let meter = meters.open(framing);
    let gate = Gate { inner: connection, meter: meter.clone() };
    MeteredMuxer { inner: multiplexer(gate), meter }
}

impl<M, E> MeteredMuxer<Result<M, E>> {
    /// The multiplexer, if it was made.
    pub(crate) fn transpose(self) -> Result<MeteredMuxer<M>, E> {
        Ok(MeteredMuxer { inner: self.inner?, meter: self.meter })
    }
}

impl<M> MeteredMuxer<M> {
    fn stream<S: AsyncRead + Unpin>(&self, inner: S, opened_by_peer: bool) -> MeteredStream<S> {
        let mut state = self.meter.lock();
        let since = if opened_by_peer && state.unaccepted > 0 {
            state.unaccepted -= 1;
            self.meter.all_unaccepted.count.fetch_sub(1, Relaxed);
            state.unaccepted_since
        } else {
            state.delivered_bytes()
        };
        state.streams += 1;
        let number = state.streams;
        state.not_empty.insert((since, number));
        drop(state);
        let reader = Arc::new(Reader {
            meter: self.meter.clone(),
            number,
            stream: Mutex::new(StreamState { poll: PollState::NotEmpty, since }),
            task: Mutex::new(None),
        });
        MeteredStream { inner, reader, ahead: Ahead::Nothing }
    }
}

impl<M> StreamMuxer for MeteredMuxer<M>
where
    M: StreamMuxer<Substream: AsyncRead + AsyncWrite + Unpin> + Unpin,
{
    type Substream = MeteredStream<M::Substream>;
    type Error = M::Error;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        let stream = futures::ready!(Pin::new(&mut self.inner).poll_inbound(cx))?;
        Poll::Ready(Ok(self.stream(stream, true)))
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        let stream = futures::ready!(Pin::new(&mut self.inner).poll_outbound(cx))?;
        Poll::Ready(Ok(self.stream(stream, false)))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

/// Whether a stream may hold data, and whether it is being polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollState {
    /// It may hold something.
    NotEmpty,
    /// The same, but it is being polled, and was not woken since that began.
    Polling,
    Empty,
    Gone,
}

/// State of a stream, and how much had arrived when it was last empty.
#[derive(Clone, Copy, Debug)]
struct StreamState {
    poll: PollState,
    since: u64,
}

/// The reader of a stream, and whether the stream is known to be empty.
struct Reader {
    meter: Arc<Meter>,
    number: u64,
    stream: Mutex<StreamState>,
    task: Mutex<Option<Waker>>,
}

impl Reader {
    fn stream(&self) -> MutexGuard<'_, StreamState> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream is about to be polled. Returns the bytes that had arrived by now, for the case
    /// that it turns out to be empty.
    fn begin_poll(&self) -> u64 {
        let mut stream = self.stream();
        if stream.poll == PollState::NotEmpty {
            stream.poll = PollState::Polling;
        }
        self.meter.lock().delivered_bytes()
    }

    /// It is empty, unless it was woken since it was polled.
    fn mark_empty(&self, since: u64) {
        let mut stream = self.stream();
        if stream.poll == PollState::Polling {
            let mut state = self.meter.lock();
            state.not_empty.remove(&(stream.since, self.number));
            let waiting = state.settle();
            drop(state);
            *stream = StreamState { poll: PollState::Empty, since };
            drop(stream);
            wake(waiting);
        } else if stream.poll == PollState::Empty {
            stream.since = since;
        }
    }

    /// It may hold something.
    fn mark_not_empty(&self) {
        let mut stream = self.stream();
        match stream.poll {
            PollState::Empty => {
                self.meter.lock().not_empty.insert((stream.since, self.number));
            }
            PollState::Polling => {}
            PollState::NotEmpty | PollState::Gone => return,
        }
        stream.poll = PollState::NotEmpty;
    }

    /// Whatever it held goes with it.
    fn remove(&self) {
        let mut stream = self.stream();
        stream.poll = PollState::Gone;
        let mut state = self.meter.lock();
        state.not_empty.remove(&(stream.since, self.number));
        let waiting = state.settle();
        drop(state);
        drop(stream);
        wake(waiting);
    }
}

impl Wake for Reader {
    fn wake(self: Arc<Self>) {
        self.mark_not_empty();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// Read ahead of a stream, at most: only to know whether there is more.
const AHEAD_BYTES: usize = 32;

/// Bytes that were read ahead of a stream.
enum Ahead {
    Nothing,
    Bytes([u8; AHEAD_BYTES], std::ops::Range<usize>),
    End(io::Result<usize>),
}

/// A stream that counts the bytes read from it, and waits while too much is unsent.
pub(crate) struct MeteredStream<S> {
    inner: S,
    reader: Arc<Reader>,
    ahead: Ahead,
}

impl<S> Drop for MeteredStream<S> {
    fn drop(&mut self) {
        self.reader.remove();
    }
}

impl<S: AsyncRead + Unpin> MeteredStream<S> {
    /// Begins to poll the stream: data that arrives from now on wakes. Returns the bytes that had
    /// arrived before, and the waker to poll with.
    fn begin_poll(&self, cx: &Context<'_>) -> (u64, Waker) {
        *self.reader.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        (self.reader.begin_poll(), Waker::from(self.reader.clone()))
    }

    /// A reader that has enough data may not poll again for long: is there more?
    fn read_ahead(&mut self, since: u64, waker: &Waker) {
        let mut ahead = [0; AHEAD_BYTES];
        match Pin::new(&mut self.inner).poll_read(&mut Context::from_waker(waker), &mut ahead) {
            Poll::Pending => self.reader.mark_empty(since),
            Poll::Ready(Ok(more)) if more > 0 => {
                self.reader.meter.consumed(more);
                self.reader.mark_not_empty();
                self.ahead = Ahead::Bytes(ahead, 0..more);
            }
            Poll::Ready(end) => {
                self.reader.mark_empty(since);
                self.ahead = Ahead::End(end);
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if buf.is_empty() {
            this.reader.meter.kept_waiting();
            return Poll::Ready(Ok(0));
        }
        let mut taken = 0;
        match std::mem::replace(&mut this.ahead, Ahead::Nothing) {
            Ahead::Nothing => {}
            Ahead::End(end) => return Poll::Ready(end),
            Ahead::Bytes(bytes, left) => {
                taken = left.len().min(buf.len());
                let (from, to) = (left.start, left.start + taken);
                if let (Some(room), Some(bytes)) = (buf.get_mut(..taken), bytes.get(from..to)) {
                    room.copy_from_slice(bytes);
                }
                if to < left.end {
                    this.ahead = Ahead::Bytes(bytes, to..left.end);
                    return Poll::Ready(Ok(taken));
                }
            }
        }
        let (since, waker) = this.begin_poll(cx);
        let room = buf.get_mut(taken..).unwrap_or_default();
        if taken > 0 && room.is_empty() {
            this.read_ahead(since, &waker);
            return Poll::Ready(Ok(taken));
        }
        // Following bytes are read at once: a few bytes at a time would make a large frame
        // expensive.
        match Pin::new(&mut this.inner).poll_read(&mut Context::from_waker(&waker), room) {
            Poll::Ready(Ok(read)) if read > 0 => {
                this.reader.meter.consumed(read);
                this.read_ahead(since, &waker);
                Poll::Ready(Ok(taken + read))
            }
            end if taken == 0 => {
                this.reader.mark_empty(since);
                end
            }
            end => {
                this.reader.mark_empty(since);
                if let Poll::Ready(end) = end {
                    this.ahead = Ahead::End(end);
                }
                Poll::Ready(Ok(taken))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !self.reader.meter.may_write(UNSENT_BYTES, cx) {
            return Poll::Pending;
        }
        let written = futures::ready!(Pin::new(&mut self.inner).poll_write(cx, buf))?;
        self.reader.meter.written(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        futures::ready!(Pin::new(&mut self.inner).poll_close(cx))?;
        if self.reader.meter.may_write(UNSENT_AT_CLOSE_BYTES, cx) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use accounting::{Ledger, PoolSpec};
    use futures::{FutureExt, io::Cursor};

    use super::*;

    // Promise: P24 - At the last level of the governor no stream is read.
    #[test]
    fn while_nothing_is_read_a_connection_waits_and_is_not_to_blame() {
        let ledger =
            Ledger::new(1 << 20, [PoolSpec { name: "unread", cap_bytes: 1 << 20 }]).unwrap();
        let stall = Duration::from_secs(20);
        let reading = Arc::new(AtomicBool::new(false));
        let reads: Reads = {
            let reading = reading.clone();
            Arc::new(move || reading.load(Relaxed))
        };
        let meters = Meters::new(ledger.pool("unread").unwrap(), 256 << 10, stall, 64, reads);
        // A frame of 60,000 bytes that is not whole, so that what was read counts as held.
        let mut bytes = vec![0; 60_000];
        bytes[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0]);
        let mut gate = metered(&meters, Framing::yamux(), Cursor::new(bytes), |gate| gate).inner;
        let mut buffer = vec![0; 64 << 10];
        let mut read = |gate: &mut Gate<_>| {
            let reading =
                std::future::poll_fn(|cx| Pin::new(&mut *gate).poll_read(cx, &mut buffer));
            reading.now_or_never().map(Result::unwrap)
        };
        assert_eq!(read(&mut gate), None, "it waits");
        reading.store(true, Relaxed);
        assert_eq!(read(&mut gate), Some(60_000));
        reading.store(false, Relaxed);
        let later = Instant::now() + 2 * stall;
        assert_eq!(meters.sweep(later), 0, "no connection is read, so none stalls");
        reading.store(true, Relaxed);
        assert_eq!(meters.sweep(later + stall / 2), 0);
        assert_eq!(meters.sweep(later + stall), 1, "now it does");
    }

    #[test]
    fn a_stream_that_waits_for_this_node_does_not_stall_its_connection() {
        let ledger =
            Ledger::new(1 << 20, [PoolSpec { name: "unread", cap_bytes: 1 << 20 }]).unwrap();
        let stall = Duration::from_secs(20);
        let pool = ledger.pool("unread").unwrap();
        let meters = Meters::new(pool, 256 << 10, stall, 64, Arc::new(|| true));
        // 60,000 bytes for a stream that is not read.
        let mut bytes = vec![0; 60_000];
        bytes[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0]);
        let mut muxer = metered(&meters, Framing::yamux(), Cursor::new(bytes), |gate| gate);
        let mut buffer = vec![0; 64 << 10];
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut muxer.inner).poll_read(&mut cx, &mut buffer).is_ready());
        let mut stream = muxer.stream(futures::io::empty(), true);
        // As if it had waited for long.
        muxer.meter.lock().delivered -= 2 * stall;
        assert!(matches!(Pin::new(&mut stream).poll_read(&mut cx, &mut []), Poll::Ready(Ok(0))));
        assert_eq!(meters.sweep(Instant::now()), 0);
        meters.excuse(2 * stall);
        assert_eq!(meters.sweep(Instant::now() + 2 * stall), 0);
        assert_eq!(meters.sweep(Instant::now() + 4 * stall), 1, "it waits for its peer now");
    }
}
