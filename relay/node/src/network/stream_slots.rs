//! Streams that peers opened, and which of them give way when there are too many.
//!
//! There are a number of streams over all connections (the pool `streams`). Half of them are shared
//! out evenly: a connection has its share regardless of others. The other half is first come, first
//! served. A stream without a request is idle; stock clients open streams and abandon them, or keep
//! them for later. An idle stream gives way, which resets it, to one of the same connection that
//! has its maximum, and to one of any connection when all are taken: then the connection that has
//! the most gives up its oldest.
//!
//! A stream carries one request. Bytes that its peer sends after it, while the reply is written,
//! are read and dropped, so that they take no memory; a peer that sends more than
//! [`DISCARDED_BYTES`] is disconnected.
//!
//! It must never know protocols, and the content of a stream.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use accounting::{Pool, Reservation};
use futures::{AsyncRead, AsyncWrite};
use router::Peer;

use super::admission::WaitingFrames;

/// See the module.
const DISCARDED_BYTES: usize = 64 << 10;

/// All places. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StreamSlots(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pool: Pool,
    stream_bytes: u64,
    /// Streams that a connection has regardless of others.
    share: usize,
    /// Streams beyond the shares, over all connections.
    beyond_max: usize,
    per_connection: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connections: HashMap<Peer, Connection>,
    beyond: usize,
    /// Of the stream opened last: later ones have larger numbers.
    number: u64,
}

#[derive(Debug, Default)]
struct Connection {
    all: usize,
    /// Streams on which nothing was asked yet, oldest first.
    idle: BTreeMap<u64, Idle>,
}

#[derive(Debug)]
struct Idle {
    held: Reservation,
    waker: Option<Waker>,
}

impl StreamSlots {
    /// StreamSlots for as many streams as the pool has room for, of which each connection has at
    /// most `per_connection`. There are at most `connections`.
    pub(crate) fn new(
        pool: Pool,
        stream_bytes: u64,
        connections: usize,
        per_connection: usize,
    ) -> Self {
        let all = usize::try_from(pool.cap_bytes() / stream_bytes.max(1)).unwrap_or(usize::MAX);
        let share = (all / 2 / connections.max(1)).max(1);
        let beyond_max = all.saturating_sub(share.saturating_mul(connections));
        let state = Mutex::default();
        Self(Arc::new(Inner { pool, stream_bytes, share, beyond_max, per_connection, state }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a stream of a connection, if there is one or an idle stream gives way.
    pub(crate) fn take(&self, connection: Peer) -> Option<StreamSlot> {
        let inner = &*self.0;
        let mut state = self.lock();
        let has = state.connections.get(&connection).map_or(0, |one| one.all);
        if has >= inner.per_connection && !state.give_way(inner, connection) {
            return None;
        }
        let has = state.connections.get(&connection).map_or(0, |one| one.all);
        if has >= inner.share && state.beyond >= inner.beyond_max {
            // Of those that have more than their share, or of its own.
            let most = state.connections.iter().filter(|(_, one)| !one.idle.is_empty());
            let most = most.filter(|(other, one)| one.all > inner.share || **other == connection);
            let most =
                most.max_by_key(|(other, one)| (one.all, **other)).map(|(other, _)| *other)?;
            state.give_way(inner, most);
        }
        let held = inner.pool.try_reserve(inner.stream_bytes).ok()?;
        state.number += 1;
        let number = state.number;
        let one = state.connections.entry(connection).or_default();
        one.all += 1;
        one.idle.insert(number, Idle { held, waker: None });
        debug_assert!(
            one.all <= inner.per_connection.max(1),
            "{} streams of one connection, the most is {}",
            one.all,
            inner.per_connection
        );
        if one.all > inner.share {
            state.beyond += 1;
        }
        debug_assert!(
            state.beyond <= inner.beyond_max,
            "{} streams beyond the shares, the most is {}",
            state.beyond,
            inner.beyond_max
        );
        drop(state);
        Some(StreamSlot { places: self.clone(), connection, number, held: None, gone: false })
    }
}

impl State {
    fn idle_of(&mut self, connection: Peer) -> Option<&mut BTreeMap<u64, Idle>> {
        self.connections.get_mut(&connection).map(|one| &mut one.idle)
    }

    /// The oldest idle stream of a connection gives way. Whether there was one.
    fn give_way(&mut self, inner: &Inner, connection: Peer) -> bool {
        let oldest = self.idle_of(connection).and_then(BTreeMap::pop_first);
        let Some((_, Idle { held, waker })) = oldest else { return false };
        drop(held);
        self.left(inner, connection);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    fn left(&mut self, inner: &Inner, connection: Peer) {
        let Some(one) = self.connections.get_mut(&connection) else { return };
        debug_assert!(one.all > 0, "a stream of {connection:?} was not counted");
        if one.all > inner.share {
            debug_assert!(self.beyond > 0, "a stream beyond the shares was not counted");
            self.beyond = self.beyond.saturating_sub(1);
        }
        one.all = one.all.saturating_sub(1);
        if one.all == 0 {
            self.connections.remove(&connection);
        }
    }
}

/// A stream's place. Dropping it frees it.
#[derive(Debug)]
pub(crate) struct StreamSlot {
    places: StreamSlots,
    connection: Peer,
    number: u64,
    /// The memory, once something was asked.
    held: Option<Reservation>,
    /// Whether it gave way.
    gone: bool,
}

impl StreamSlot {
    /// Something was asked: from now on the stream does not give way. False if it did already.
    pub(crate) fn claim(&mut self) -> bool {
        if self.held.is_some() || self.gone {
            return !self.gone;
        }
        let mut state = self.places.lock();
        let idle = state.idle_of(self.connection).and_then(|idle| idle.remove(&self.number));
        self.gone = idle.is_none();
        self.held = idle.map(|idle| idle.held);
        !self.gone
    }

    /// Whether the stream gave way; wakes when it does.
    fn gave_way(&mut self, cx: &Context<'_>) -> bool {
        if self.held.is_some() || self.gone {
            return self.gone;
        }
        let mut state = self.places.lock();
        match state.idle_of(self.connection).and_then(|idle| idle.get_mut(&self.number)) {
            Some(idle) => idle.waker = Some(cx.waker().clone()),
            None => self.gone = true,
        }
        self.gone
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut state = self.places.lock();
        let idle = state.idle_of(self.connection).and_then(|idle| idle.remove(&self.number));
        if self.held.is_some() || idle.is_some() {
            state.left(&self.places.0, self.connection);
        }
    }
}

/// When something was last asked on a connection, and whether its peer asks as it should.
#[derive(Debug)]
pub(crate) struct Activity {
    since: Instant,
    /// Milliseconds from `since`; 0 if nothing was asked yet.
    request_millis: AtomicU64,
    overrun: AtomicBool,
    /// Large frames that wait for this node.
    waiting: WaitingFrames,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            request_millis: AtomicU64::new(0),
            overrun: AtomicBool::new(false),
            waiting: WaitingFrames::default(),
        }
    }

    /// Large frames of the connection that wait for this node.
    pub(crate) fn waiting(&self) -> &WaitingFrames {
        &self.waiting
    }

    /// Whether the peer kept sending after a request. Returned once.
    pub(crate) fn take_overrun(&self) -> bool {
        self.overrun.swap(false, Relaxed)
    }

    fn record_request(&self) {
        let millis = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.request_millis.store(millis.max(1), Relaxed);
    }

    /// Whether something arrived on a stream within this time, or is not read because this node is
    /// busy.
    pub(crate) fn is_recent(&self, within: Duration) -> bool {
        self.waiting.load(Relaxed) > 0 || self.idle().is_some_and(|idle| idle < within)
    }

    /// How long ago something was last asked; nothing if that never was.
    pub(crate) fn idle(&self) -> Option<Duration> {
        match self.request_millis.load(Relaxed) {
            0 => None,
            millis => Some(self.since.elapsed().saturating_sub(Duration::from_millis(millis))),
        }
    }
}

/// A stream in its place: reading from it ends when it gives way.
#[derive(Debug)]
pub(crate) struct SlotStream<S> {
    stream: S,
    place: StreamSlot,
    activity: Arc<Activity>,
    /// Bytes that came after the request; nothing more comes once it is `None`.
    discarded: Option<usize>,
    /// Bytes that may come after it.
    discarded_max: usize,
}

impl<S> SlotStream<S> {
    pub(crate) fn new(stream: S, place: StreamSlot, activity: Arc<Activity>) -> Self {
        Self { stream, place, activity, discarded: Some(0), discarded_max: DISCARDED_BYTES }
    }

    /// The request was longer than is read: `rest` bytes of it may come while it is answered.
    pub(crate) fn expect_rest(&mut self, rest: usize) {
        self.discarded_max = DISCARDED_BYTES.saturating_add(rest);
    }

    /// The activity of the stream's connection.
    pub(crate) fn activity(&self) -> Arc<Activity> {
        self.activity.clone()
    }
}

impl<S: AsyncRead + Unpin> SlotStream<S> {
    /// Reads and drops the bytes after the request.
    fn discard(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut buffer = [0; 1024];
        while let Some(before) = self.discarded {
            let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, &mut buffer) else {
                break;
            };
            self.discarded = match read {
                Ok(read) if read > 0 => Some(before + read),
                _ => None,
            };
            if self.discarded.is_some_and(|bytes| bytes > self.discarded_max) {
                self.activity.overrun.store(true, Relaxed);
                return Err(io::Error::other("the peer keeps sending after its request"));
            }
        }
        Ok(())
    }
}

/// The stream that services read requests from.
pub(crate) type Stream = SlotStream<libp2p::Stream>;

fn evicted_error() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "an idle stream gave way to another")
}

impl<S: AsyncRead + Unpin> AsyncRead for SlotStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Pending if self.place.gave_way(cx) => Poll::Ready(Err(evicted_error())),
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(read)) if read > 0 => {
                if !self.place.claim() {
                    return Poll::Ready(Err(evicted_error()));
                }
                self.activity.record_request();
                Poll::Ready(Ok(read))
            }
            ready => ready,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SlotStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.discard(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.discard(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.discard(cx)?;
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty streams in all, five connections: two for each, and ten first come, first served.
    fn places() -> StreamSlots {
        StreamSlots::new(Pool::standalone("streams", 20 * 10), 10, 5, 12)
    }

    fn busy(places: &StreamSlots, connection: u64) -> Option<StreamSlot> {
        let mut place = places.take(Peer(connection))?;
        assert!(place.claim());
        Some(place)
    }

    fn used(places: &StreamSlots) -> u64 {
        places.0.pool.used_bytes() / 10
    }

    #[test]
    fn every_connection_keeps_its_share_of_streams() {
        let places = places();
        let first: Vec<StreamSlot> = std::iter::from_fn(|| busy(&places, 1)).collect();
        assert_eq!(first.len(), 12, "its share and all that are first come, first served");
        for connection in 2..=5 {
            let few: Vec<StreamSlot> = std::iter::from_fn(|| busy(&places, connection)).collect();
            assert_eq!(few.len(), 2);
            std::mem::forget(few);
        }
        assert_eq!(used(&places), 20);
        drop(first);
        assert_eq!(used(&places), 8);
        assert!(busy(&places, 2).is_some());
        assert_eq!(used(&places), 8);
    }

    #[test]
    fn idle_streams_of_the_largest_holder_are_evicted_first() {
        let places = places();
        let cx = &mut Context::from_waker(Waker::noop());
        let mut many: Vec<StreamSlot> = (0..12).map(|_| places.take(Peer(1)).unwrap()).collect();
        assert!(many.iter_mut().all(|place| !place.gave_way(cx)));
        // One too many of its own.
        let _own = places.take(Peer(1)).unwrap();
        assert!(many[0].gave_way(cx) && !many[1].gave_way(cx));
        assert!(!many[0].claim(), "too late");
        // Others beyond their share.
        let others: Vec<StreamSlot> = (0..6).map(|_| busy(&places, 2).unwrap()).collect();
        let gone = many.iter_mut().map(|place| place.gave_way(cx)).filter(|gone| *gone).count();
        assert_eq!((gone, used(&places)), (1 + 4, 14));
        drop((many, others));
        assert_eq!(used(&places), 1);
    }

    #[test]
    fn streams_on_which_something_was_asked_stay() {
        let places = places();
        let all: Vec<StreamSlot> = (0..12).map(|_| busy(&places, 1).unwrap()).collect();
        assert!(places.take(Peer(1)).is_none());
        let two = [busy(&places, 2), busy(&places, 2)];
        assert!(two.iter().all(Option::is_some) && busy(&places, 2).is_none());
        drop(all);
        assert!(busy(&places, 2).is_some());
    }
}
