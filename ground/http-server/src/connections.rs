//! Open connections of a listener: at most a limit, and an idle one is closed for a new one.
//!
//! A connection is idle while it has no request in progress: before its first complete request
//! head, and between requests. A request is in progress from its complete head until the last byte
//! of its response is written. When the limit is reached, [`Connections::admit`] evicts the
//! connection that has been idle longest, at least [`IDLE_MIN`], and the new one takes its slot
//! once the evicted connection has released it. If there is none, the new connection is refused.
//! Thus clients that hold connections without requests cannot exclude others.
//!
//! Bounds: one entry for each connection, at most the limit. A change of state takes time
//! logarithmic in it, and there are no tasks.
//!
//! It must never know protocols: servers report when requests begin and end.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use accounting::{Pool, PoolFull, Reservation};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::{
    sync::{Notify, oneshot},
    time::timeout,
};

use crate::response::with_reservation;

/// A connection is not evicted before it has been idle this long.
pub const IDLE_MIN: Duration = Duration::from_millis(250);
/// A new connection waits this long for the slot of an evicted one.
const LEAVE_TIME: Duration = Duration::from_millis(250);

/// The open connections of one listener. Clones share them.
#[derive(Clone, Debug)]
pub struct Connections(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    table: Mutex<Table>,
    limit: usize,
    /// Memory of the connections, and the bytes of each.
    buffers: Pool,
    buffer_bytes: u64,
    /// A slot was released. One task waits at a time: the listener.
    released: Notify,
}

/// Why a connection was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmitError {
    /// There are as many connections as the limit allows.
    Limit,
    /// There is no memory for its buffers.
    Memory(PoolFull),
}

impl Connections {
    /// No connections, and at most `limit`. Each takes `buffer_bytes` of `buffers`.
    pub fn new(limit: usize, buffers: Pool, buffer_bytes: u64) -> Self {
        let (table, released) = (Mutex::new(Table::new(limit)), Notify::new());
        Self(Arc::new(Inner { table, limit, buffers, buffer_bytes, released }))
    }

    /// A slot for a new connection. Evicts an idle connection if there is no other way, calls
    /// `on_eviction` and waits until it is closed. Only one task may call this at a time.
    ///
    /// # Errors
    /// When no connection has been idle long enough, or the evicted one does not close in time.
    pub async fn admit(&self, on_eviction: impl FnOnce()) -> Result<Slot, AdmitError> {
        let refusal = match self.take() {
            Ok(slot) => return Ok(slot),
            Err(refusal) => refusal,
        };
        if !self.0.table().evict(Instant::now()) {
            return Err(refusal);
        }
        on_eviction();
        let taking = async {
            loop {
                self.0.released.notified().await;
                if let Ok(slot) = self.take() {
                    return slot;
                }
            }
        };
        timeout(LEAVE_TIME, taking).await.map_err(|_| refusal)
    }

    fn take(&self) -> Result<Slot, AdmitError> {
        let mut table = self.0.table();
        if table.is_full() {
            return Err(AdmitError::Limit);
        }
        let reserved = self.0.buffers.try_reserve(self.0.buffer_bytes);
        let reservation = reserved.map_err(AdmitError::Memory)?;
        let (id, evicted) = table.open(Instant::now());
        drop(table);
        let entry = Entry { id, shared: self.0.clone() };
        Ok(Slot { evicted, _reservation: reservation, entry })
    }

    /// Connections that are open.
    pub fn used(&self) -> usize {
        self.0.table().open.len()
    }

    /// Connections there may be.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Waits until no connection is open, after the listener has stopped.
    pub async fn drained(&self) {
        while self.used() > 0 {
            self.0.released.notified().await;
        }
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Changes do not panic, so the table is consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of one open connection, released when it is dropped.
#[derive(Debug)]
pub struct Slot {
    evicted: oneshot::Receiver<()>,
    // Released before the entry, whose end is reported to the listener.
    _reservation: Reservation,
    entry: Entry,
}

impl Slot {
    /// Ends when the connection must close at once, in favour of a new one. Must not be awaited
    /// again after that.
    pub async fn evicted(&mut self) {
        // The sender is in the table for as long as the slot exists.
        let _ = (&mut self.evicted).await;
    }

    /// Reports the requests of this connection.
    pub fn requests(&self) -> Requests {
        Requests { id: self.entry.id, shared: self.entry.shared.clone() }
    }
}

/// An entry of the table, which ends with it.
#[derive(Debug)]
struct Entry {
    id: u64,
    shared: Arc<Inner>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.table().close(self.id);
        self.shared.released.notify_one();
    }
}

/// The requests of one connection.
#[derive(Clone, Debug)]
pub struct Requests {
    id: u64,
    shared: Arc<Inner>,
}

impl Requests {
    /// A complete request head has arrived. `None` if the connection was evicted: it is about to
    /// close, and the request must have no effect.
    pub fn begin(&self) -> Option<RequestGuard> {
        self.shared.table().begin(self.id).then(|| RequestGuard(self.clone()))
    }
}

/// A request in progress, until it is dropped.
#[derive(Debug)]
pub struct RequestGuard(Requests);

impl RequestGuard {
    /// Extends the request until the last byte of this response body is written.
    pub fn body<B>(self, body: B) -> GuardedBody<B> {
        GuardedBody { body, request: Arc::new(self) }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.shared.table().end(self.0.id, Instant::now());
    }
}

/// A response body whose bytes keep the request in progress.
#[derive(Debug)]
pub struct GuardedBody<B> {
    body: B,
    request: Arc<RequestGuard>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for GuardedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, request } = self.get_mut();
        let frame = ready!(Pin::new(body).poll_frame(cx));
        let guarded = |bytes| with_reservation(bytes, Arc::clone(request));
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(guarded))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Connections by id, and those that are idle by the time since when.
#[derive(Debug)]
struct Table {
    limit: usize,
    next_id: u64,
    open: BTreeMap<u64, Connection>,
    idle: BTreeSet<(Instant, u64)>,
}

#[derive(Debug)]
struct Connection {
    /// Requests in progress. Several only over HTTP/2.
    requests: usize,
    idle_since: Instant,
    /// Closes the connection; `None` once it is evicted.
    evict: Option<oneshot::Sender<()>>,
}

impl Table {
    fn new(limit: usize) -> Self {
        Self { limit, next_id: 0, open: BTreeMap::new(), idle: BTreeSet::new() }
    }

    fn is_full(&self) -> bool {
        self.open.len() >= self.limit
    }

    /// Adds an idle connection. The caller checked that the table is not full.
    fn open(&mut self, now: Instant) -> (u64, oneshot::Receiver<()>) {
        let (evict, evicted) = oneshot::channel();
        let id = self.next_id;
        self.next_id += 1;
        self.open.insert(id, Connection { requests: 0, idle_since: now, evict: Some(evict) });
        self.idle.insert((now, id));
        (id, evicted)
    }

    /// A request begins. Whether the connection remains.
    fn begin(&mut self, id: u64) -> bool {
        let Some(connection) = self.open.get_mut(&id) else { return false };
        if connection.evict.is_none() {
            return false;
        }
        if connection.requests == 0 {
            self.idle.remove(&(connection.idle_since, id));
        }
        connection.requests += 1;
        true
    }

    /// A request that began has ended; the connection may be closed already.
    fn end(&mut self, id: u64, now: Instant) {
        let Some(connection) = self.open.get_mut(&id) else { return };
        connection.requests -= 1;
        if connection.requests == 0 {
            connection.idle_since = now;
            self.idle.insert((now, id));
        }
    }

    /// Evicts the connection that has been idle longest. Whether there is one that may be.
    fn evict(&mut self, now: Instant) -> bool {
        let Some(&(since, id)) = self.idle.first() else { return false };
        if now.saturating_duration_since(since) < IDLE_MIN {
            return false;
        }
        self.idle.pop_first();
        if let Some(evict) = self.open.get_mut(&id).and_then(|found| found.evict.take()) {
            // The connection may be closing already.
            let _ = evict.send(());
        }
        true
    }

    fn close(&mut self, id: u64) {
        if let Some(connection) = self.open.remove(&id) {
            self.idle.remove(&(connection.idle_since, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    /// Connections that were opened one millisecond after another.
    fn opened(count: usize) -> (Table, Instant, Vec<oneshot::Receiver<()>>) {
        let (mut table, start) = (Table::new(count), Instant::now());
        let receivers = (0..count as u64)
            .map(|at| {
                assert!(!table.is_full());
                let (id, evicted) = table.open(start + Duration::from_millis(at));
                assert_eq!(id, at);
                evicted
            })
            .collect();
        assert!(table.is_full());
        (table, start, receivers)
    }

    fn is_evicted(receiver: &mut oneshot::Receiver<()>) -> bool {
        receiver.try_recv().is_ok()
    }

    // Promise: P2 - The connection that has been idle longest is closed for a new one.
    #[test]
    fn eviction_takes_the_longest_idle_connection_and_spares_busy_ones() {
        let (mut table, start, mut evicted) = opened(4);
        let later = |seconds| start + Duration::from_secs(seconds);
        // 0 is busy; 1 was, and is idle since a second; 2 has two requests, one of them ended.
        assert!(table.begin(0) && table.begin(1) && table.begin(2) && table.begin(2));
        table.end(1, later(1));
        table.end(2, later(1));
        assert!(table.evict(later(2)));
        assert!(is_evicted(&mut evicted[3]), "idle since it was opened");
        assert!(table.is_full(), "its slot is taken until it is closed");
        assert!(!table.begin(3), "an evicted connection serves no request");
        assert!(table.evict(later(2)));
        assert!(is_evicted(&mut evicted[1]));
        assert!(!table.evict(later(100)), "all others are busy or evicted");
        assert!(!is_evicted(&mut evicted[0]) && !is_evicted(&mut evicted[2]));
        table.end(2, later(3));
        assert!(table.evict(later(4)));
        assert!(is_evicted(&mut evicted[2]));
    }

    #[test]
    fn connections_that_are_idle_for_a_moment_are_not_evicted() {
        let (mut table, start, mut evicted) = opened(2);
        let almost = start + IDLE_MIN - Duration::from_millis(1);
        assert!(!table.evict(almost));
        assert!(table.begin(0));
        table.end(0, almost);
        let next = start + IDLE_MIN + Duration::from_millis(1);
        assert!(table.evict(next));
        assert!(is_evicted(&mut evicted[1]), "the request renewed the time of the first");
        assert!(!table.evict(next));
    }

    #[test]
    fn tables_stay_within_the_limit() {
        let (mut table, start, _evicted) = opened(8);
        for step in 0..10_000_u64 {
            let now = start + Duration::from_secs(step + 1);
            let id = table.next_id - 1 - step % 8;
            if step % 3 == 0 && table.begin(id) {
                table.end(id, now);
            }
            if table.evict(now) {
                let gone = table.open.iter().find(|(_, found)| found.evict.is_none());
                let gone = *gone.unwrap().0;
                table.close(gone);
                // A request that ends after its connection changes nothing.
                table.end(gone, now);
            }
            if !table.is_full() {
                // The receiver is gone, as when a connection ends by itself meanwhile.
                let _ = table.open(now);
            }
            assert!(table.open.len() <= 8 && table.idle.len() <= table.open.len());
        }
        let ids: Vec<u64> = table.open.keys().copied().collect();
        ids.into_iter().for_each(|id| table.close(id));
        assert!(table.open.is_empty() && table.idle.is_empty());
    }

    #[tokio::test]
    async fn new_connections_take_the_slot_and_the_memory_of_the_evicted() {
        let buffers = Pool::standalone("connections", 10);
        let connections = Connections::new(2, buffers.clone(), 5);
        let mut idle = connections.admit(|| panic!("there is room")).await.unwrap();
        let busy = connections.admit(|| panic!("there is room")).await.unwrap();
        let request = busy.requests().begin().unwrap();
        let refused = connections.admit(|| panic!("it is too young")).await;
        assert_eq!(refused.unwrap_err(), AdmitError::Limit);
        tokio::time::sleep(IDLE_MIN).await;
        let mut evictions = 0;
        let requests = idle.requests();
        let closing = tokio::spawn(async move { idle.evicted().await });
        let next = connections.admit(|| evictions += 1).await.unwrap();
        closing.await.unwrap();
        assert_eq!((evictions, connections.used(), buffers.used_bytes()), (1, 2, 10));
        assert!(requests.begin().is_none(), "its connection is closed");

        // The request lasts until the bytes of its response are dropped.
        let mut body = request.body(Full::new(Bytes::from_static(b"bytes")));
        let bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        assert_eq!(bytes, "bytes");
        assert!(connections.0.table().idle.iter().all(|(_, id)| *id != busy.entry.id));
        drop(bytes);
        assert!(connections.0.table().idle.iter().any(|(_, id)| *id == busy.entry.id));
        drop((next, busy));
        connections.drained().await;
        assert_eq!(buffers.used_bytes(), 0);
    }

    #[tokio::test]
    async fn evicted_connections_that_do_not_close_keep_their_slot() {
        let connections = Connections::new(1, Pool::standalone("connections", 10), 5);
        let mut slot = connections.admit(|| {}).await.unwrap();
        tokio::time::sleep(IDLE_MIN).await;
        assert_eq!(connections.admit(|| {}).await.unwrap_err(), AdmitError::Limit);
        slot.evicted().await;
        assert_eq!(connections.used(), 1);
        drop(slot);
        assert!(connections.admit(|| panic!("there is room")).await.is_ok());
    }
}
