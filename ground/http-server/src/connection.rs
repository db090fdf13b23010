//! One connection: its bounds in time, and its orderly end.
//!
//! hyper reads and writes; this file decides how long that may take. A connection is closed when
//!
//! - it has not sent a whole request head within the read timeout, from its first byte or from
//!   being accepted;
//! - it has been idle for [`ConnectionSettings::idle`] with no request being served;
//! - its peer takes a response more slowly than [`crate::stall_guard::WRITE_RATE_MIN`] allows (a
//!   stalled reader would pin the response's memory). Two clocks say so: one runs while the socket
//!   takes nothing, the other for each response from its making to its last byte, because an HTTP/2
//!   peer that grants no window keeps the socket as free as it likes;
//! - it is idle, and a new connection takes its slot ([`crate::connections`]);
//! - the server drains: then requests in flight finish, and new ones are refused by closing.
//!
//! A response that is made piece by piece ([`Outgoing::Pieces`]) is bounded as a whole: the time
//! that the peer takes is added up over its pieces, and may be no more than for a response of that
//! size in one. While the next is made the connection counts as busy; who makes pieces bounds how
//! long that takes, and the whole.
//!
//! Bodies have their own timeout where they are read. HTTP/1.1 is spoken, and HTTP/2 with prior
//! knowledge where the settings allow it; HTTP/2 streams are capped per connection and each is a
//! request to every other limit.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use accounting::{Pool, PoolFull};
use http_body_util::Full;
use hyper::{
    Request, Response, Version,
    body::{Body, Bytes, Frame, Incoming, SizeHint},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    net::TcpStream,
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use crate::{
    ErrorResponse, TEXT,
    connections::{AdmitError, Slot},
    list::List,
    response::{set_common_headers, with_reservation},
    stall_guard::{Progress, StallGuard, at_least_rate},
};

/// Who answers the requests of connections.
pub trait HttpHandler: Send + Sync + 'static {
    /// State of one connection.
    type ConnectionState: Send + Sync + 'static;

    /// A new connection.
    fn connection_state(&self) -> Self::ConnectionState;
    /// Protocols and bounds of a connection.
    fn settings(&self) -> ConnectionSettings {
        ConnectionSettings::default()
    }
    /// Time to send headers and body.
    fn read_timeout(&self) -> Duration;
    /// Name and value of the limit on connections.
    fn connections_limit(&self) -> (&'static str, u64);
    /// The text for a client whose connection is not admitted.
    fn refusal_text(&self, error: AdmitError) -> String {
        match error {
            AdmitError::Limit => {
                let (name, limit) = self.connections_limit();
                format!(
                    "there are as many connections as the limit {name} = {limit} allows; retry in \
                     a second"
                )
            }
            AdmitError::Memory(full) => format!("{full}; retry in a second"),
        }
    }
    /// Counts a connection that was not served: the name of the limit, or
    /// [`crate::ACCEPT_ERROR`].
    fn count_refusal(&self, reason: &'static str);
    /// Counts an idle connection that is closed for a new one.
    fn count_eviction(&self);
    /// Answers one request. The effects of the call take place even if the peer is gone; the future
    /// may be dropped at any time, polled or not.
    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        connection_state: Arc<Self::ConnectionState>,
    ) -> impl Future<Output = Response<Outgoing>> + Send;
}

/// Protocols and bounds of the connections of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionSettings {
    /// Bytes of a request head, and of the HTTP/1 read buffer. Also of the HTTP/1 write buffer for
    /// heads.
    pub head_bytes: usize,
    /// Requests at once on one HTTP/2 connection; `None` where HTTP/1.1 alone is spoken.
    pub streams: Option<u32>,
    /// A kept-alive connection without a request is closed after this. `None`: the read timeout
    /// counts from the end of the response before to the whole head of the next request.
    pub idle: Option<Duration>,
    /// A reader may stall a response this long, and then must take
    /// [`crate::stall_guard::WRITE_RATE_MIN`].
    pub write_stall: Duration,
    /// Time for a client to read the last response of a connection while what it still sends is
    /// thrown away.
    pub linger: Option<Duration>,
    /// Connections that are being refused for lack of a slot, at once. Others are closed.
    pub refusals: usize,
    /// Whether pages of any origin may read such a refusal.
    pub any_origin: bool,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        Self {
            head_bytes: HEAD_BYTES_MAX,
            streams: Some(STREAMS_MAX),
            idle: Some(IDLE),
            write_stall: WRITE_STALL,
            linger: None,
            refusals: REFUSALS_MAX,
            any_origin: false,
        }
    }
}

/// The body of a response.
pub enum Outgoing {
    /// All of it.
    Whole(Full<Bytes>),
    /// Piece by piece, with the total number of bytes if it is known; otherwise an empty piece is
    /// the end. An error, or an end that comes too early, ends the connection.
    Pieces(mpsc::Receiver<io::Result<Bytes>>, Option<u64>),
    /// Made as it is sent.
    List(List),
}

impl Outgoing {
    /// A short text, small enough for the buffers of its connection.
    pub fn short(text: impl Into<Bytes>) -> Self {
        Self::Whole(Full::new(text.into()))
    }

    /// Bytes that are charged to the pool until they are written.
    ///
    /// # Errors
    /// When the pool is full.
    pub fn charged(bytes: Vec<u8>, responses: &Pool) -> Result<Self, PoolFull> {
        let held = responses.try_reserve(bytes.capacity() as u64)?;
        Ok(Self::short(with_reservation(bytes, held)))
    }
}

impl From<ErrorResponse> for Response<Outgoing> {
    fn from(mut refused: ErrorResponse) -> Self {
        let message = std::mem::take(&mut refused.message);
        let mut response = refused.with_body(TEXT, Outgoing::short(message));
        set_common_headers(response.headers_mut());
        response
    }
}

/// A kept-alive connection without a request is closed after this.
const IDLE: Duration = Duration::from_secs(60);
/// A connection asked to close is dropped after this.
const CLOSING: Duration = Duration::from_secs(2);
/// A reader may stall a response this long.
const WRITE_STALL: Duration = Duration::from_secs(20);
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Header lines of HTTP/1.
const HEADERS_MAX: usize = 64;
/// Connections that are being refused for lack of a slot, at once.
const REFUSALS_MAX: usize = 32;
/// Default number of concurrent requests on one HTTP/2 connection.
pub const STREAMS_MAX: u32 = 64;
/// Unread body bytes of one HTTP/2 stream ...
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// ... and of one HTTP/2 connection.
const CONNECTION_WINDOW_BYTES: u32 = 64 * 1024;
/// Response bytes buffered per HTTP/2 stream.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// Where a server is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Accepts connections and requests.
    Serving,
    /// Finishes those in flight.
    Draining,
    /// Drops what is left.
    Closed,
}

/// Activity of a connection, shared by its stream, its service and its watchdog.
struct Activity {
    started: Instant,
    active: AtomicUsize,
    /// Whether a request head has begun and not ended.
    reading: AtomicBool,
    http2: AtomicBool,
    /// Milliseconds after `started` at which the current wait began.
    since: AtomicU64,
    /// Responses that are not written to their end, with their numbers, and when they must be. As
    /// many as there are streams.
    unwritten: Mutex<Vec<(u64, Instant)>>,
    responses: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            active: AtomicUsize::new(0),
            reading: AtomicBool::new(true),
            http2: AtomicBool::new(false),
            since: AtomicU64::new(0),
            unwritten: Mutex::default(),
            responses: AtomicU64::new(0),
        }
    }

    /// Gives the peer its time to take a response; it counts until hyper drops the last of the
    /// bytes.
    fn response(self: &Arc<Self>, bytes: Bytes, write_stall: Duration) -> Bytes {
        let time = write_stall + at_least_rate(bytes.len() as u64);
        with_reservation(bytes, self.await_peer(time))
    }

    /// Gives the peer this time to take what was made, or to want what comes next: it counts for as
    /// long as the value lives.
    fn await_peer(self: &Arc<Self>, time: Duration) -> Unwritten {
        let number = self.responses.fetch_add(1, Ordering::Relaxed);
        let deadline = Instant::now() + time;
        self.unwritten().push((number, deadline));
        Unwritten { number, activity: self.clone() }
    }

    /// When the first of the responses must be written.
    fn write_deadline(&self) -> Option<Instant> {
        self.unwritten().iter().map(|(_, deadline)| *deadline).min()
    }

    fn unwritten(&self) -> MutexGuard<'_, Vec<(u64, Instant)>> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        self.since.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn request_begins(&self, version: Version) {
        if version == Version::HTTP_2 {
            self.http2.store(true, Ordering::Relaxed);
        }
        self.active.fetch_add(1, Ordering::Relaxed);
        self.reading.store(false, Ordering::Relaxed);
    }

    fn request_ends(&self) {
        self.touch();
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// When the connection has waited too long, unless something happens before; `None` while a
    /// request is served.
    fn deadline(&self, read_timeout: Duration, idle: Duration) -> Option<Instant> {
        if self.active.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let timeout = if self.reading.load(Ordering::Relaxed) { read_timeout } else { idle };
        Some(self.started + Duration::from_millis(self.since.load(Ordering::Relaxed)) + timeout)
    }
}

impl Progress for Activity {
    fn bytes_read(&self) {
        let between_requests =
            self.active.load(Ordering::Relaxed) == 0 && !self.http2.load(Ordering::Relaxed);
        if between_requests && !self.reading.swap(true, Ordering::Relaxed) {
            self.touch();
        }
    }

    fn bytes_written(&self) {
        // What answers a PING of HTTP/2 is no response.
        if !self.reading.load(Ordering::Relaxed) && self.write_deadline().is_some() {
            self.touch();
        }
    }
}

/// A response that hyper still holds, or a piece that it has yet to ask for.
struct Unwritten {
    number: u64,
    activity: Arc<Activity>,
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        self.activity.unwritten().retain(|(number, _)| *number != self.number);
    }
}

/// Marks a request as served for as long as it lives, so that a client's leaving does too.
struct Active(Arc<Activity>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.request_ends();
    }
}

/// A response body as hyper takes it.
enum ResponseBody {
    Whole(Full<Bytes>),
    Pieces(PieceStream),
    List { list: List, _active: Active },
}

struct PieceStream {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    left: Option<u64>,
    /// The time that the peer has left of that for all pieces so far.
    patience: Duration,
    /// Since when the next piece is awaited: the peer's time runs for it.
    taken: Option<(Unwritten, Instant)>,
    active: Active,
}

impl ResponseBody {
    /// `write_stall` is the time that the peer has for the first piece.
    fn new(outgoing: Outgoing, active: Active, write_stall: Duration) -> Self {
        match outgoing {
            Outgoing::Whole(body) => Self::Whole(body),
            Outgoing::Pieces(pieces, left) => {
                let patience = write_stall;
                let taken = Some((active.0.await_peer(patience), Instant::now()));
                Self::Pieces(PieceStream { pieces, left, patience, taken, active })
            }
            Outgoing::List(list) => Self::List { list, _active: active },
        }
    }
}

impl PieceStream {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some((taken, since)) = self.taken.take() {
            drop(taken);
            self.patience = self.patience.saturating_sub(since.elapsed());
        }
        if self.left == Some(0) {
            return Poll::Ready(None);
        }
        let piece = match ready!(self.pieces.poll_recv(cx)) {
            Some(Ok(piece)) if piece.is_empty() && self.left.is_none() => {
                self.left = Some(0);
                return Poll::Ready(None);
            }
            Some(Ok(piece)) if self.left.is_none_or(|left| piece.len() as u64 <= left) => piece,
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            _ => {
                let wrong = "the pieces of the response are not what was announced";
                return Poll::Ready(Some(Err(io::Error::other(wrong))));
            }
        };
        self.left = self.left.map(|left| left - piece.len() as u64);
        self.patience += at_least_rate(piece.len() as u64);
        self.taken = Some((self.active.0.await_peer(self.patience), Instant::now()));
        let piece = with_reservation(piece, self.active.0.await_peer(self.patience));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(body) => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map_err(|never| match never {})))
            }
            Self::Pieces(pieces) => pieces.poll(cx),
            Self::List { list, .. } => Pin::new(list).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Pieces(pieces) => pieces.left == Some(0),
            Self::List { list, .. } => list.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Pieces(pieces) => pieces.left.map_or_else(SizeHint::new, SizeHint::with_exact),
            Self::List { list, .. } => list.size_hint(),
        }
    }
}

/// The protocols, with their bounds.
fn builder(settings: &ConnectionSettings, read_timeout: Duration) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .max_headers(HEADERS_MAX)
        .max_buf_size(settings.head_bytes)
        // hyper has a default, which would end idle connections before their time.
        .header_read_timeout(settings.idle.is_none().then_some(read_timeout))
        .half_close(false);
    let Some(streams_max) = settings.streams else { return builder.http1_only() };
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams_max)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_header_list_size(settings.head_bytes as u32);
    builder
}

/// Refuses a request that names its sender, its server or its content twice: the checks here would
/// read one of them, and a proxy before or a program behind this server another.
fn check_head(request: &Request<Incoming>) -> Result<(), ErrorResponse> {
    let headers = request.headers();
    for name in ["host", "origin", "content-type", "sec-fetch-site"] {
        let times = headers.get_all(name).iter().take(2).count();
        if times > 1 {
            let message = format!("the header {name} is there more than once; send it once");
            let refused = ErrorResponse::bad_request("repeated_header", message);
            return Err(ErrorResponse { close: !request.body().is_end_stream(), ..refused });
        }
    }
    Ok(())
}

/// The bytes of a body that is there as a whole, without a copy.
fn whole(mut body: Full<Bytes>) -> Bytes {
    let polled = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
    match polled {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        _ => Bytes::new(),
    }
}

/// Serves one connection until it ends, or is evicted.
pub(crate) async fn serve<A: HttpHandler>(
    stream: TcpStream,
    service: Arc<A>,
    mut slot: Slot,
    mut stage: watch::Receiver<Stage>,
) {
    let activity = Arc::new(Activity::new());
    let (read_timeout, settings) = (service.read_timeout(), service.settings());
    let (write_stall, is_multiplexed) = (settings.write_stall, settings.streams.is_some());
    let builder = builder(&settings, read_timeout);
    let (serving, requests) = (activity.clone(), slot.requests());
    let connection_state = Arc::new(service.connection_state());
    let answer = service_fn(move |request: Request<Incoming>| {
        let begun = requests.begin().map(|guard| {
            serving.request_begins(request.version());
            // Called here and not where it is awaited: hyper drops an unpolled future when the peer
            // has closed the connection behind its request.
            let answer = check_head(&request)
                .map(|()| service.clone().answer(request, connection_state.clone()));
            (guard, Active(serving.clone()), answer)
        });
        async move {
            // The connection is evicted, which ends this future.
            let Some((guard, active, answer)) = begun else { return std::future::pending().await };
            let response = match answer {
                Ok(answer) => answer.await,
                Err(refused) => refused.into(),
            };
            let (head, body) = response.into_parts();
            let body = match body {
                Outgoing::Whole(body) if is_multiplexed => {
                    let body = active.0.response(whole(body), write_stall);
                    Outgoing::Whole(Full::new(body))
                }
                other => other,
            };
            let body = guard.body(ResponseBody::new(body, active, write_stall));
            Ok::<_, Infallible>(Response::from_parts(head, body))
        }
    });
    let guarded = StallGuard::new(stream, activity.clone(), write_stall);
    let guarded = TokioIo::new(guarded.with_linger(settings.linger));
    let mut connection = std::pin::pin!(builder.serve_connection(guarded, answer));
    let mut closing: Option<Instant> = None;
    let deadline = || settings.idle.and_then(|idle| activity.deadline(read_timeout, idle));
    loop {
        // The connection's deadline may change at any moment, so it is checked once in the shorter
        // of the times at least.
        let soon =
            Instant::now() + settings.idle.map_or(read_timeout, |idle| idle.min(read_timeout));
        let waiting = closing.or_else(deadline);
        let wake = waiting.into_iter().chain(activity.write_deadline()).fold(soon, Instant::min);
        let awaited = if closing.is_some() { Stage::Draining } else { Stage::Serving };
        tokio::select! {
            // An error here is the peer's: it went away or spoke no HTTP. hyper has answered what
            // could be answered.
            _ = connection.as_mut() => return,
            () = slot.evicted() => return,
            () = sleep_until(wake) => {
                let mut hopeless = closing.into_iter().chain(activity.write_deadline());
                if hopeless.any(|deadline| deadline <= Instant::now()) {
                    return;
                }
                let overdue = deadline().is_some_and(|deadline| deadline <= Instant::now());
                if closing.is_none() && overdue {
                    if activity.reading.load(Ordering::Relaxed) {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                    closing = Some(Instant::now() + CLOSING);
                }
            }
            changed = stage.wait_for(|stage| *stage > awaited) => {
                if !matches!(changed.as_deref(), Ok(Stage::Draining)) {
                    return;
                }
                connection.as_mut().graceful_shutdown();
                // The server bounds the drain as a whole.
                closing = Some(Instant::now() + IDLE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_have_the_time_that_one_response_of_their_bytes_has() {
        let activity = Arc::new(Activity::new());
        let (sender, pieces) = mpsc::channel(1);
        let outgoing = Outgoing::Pieces(pieces, None);
        let mut body = ResponseBody::new(outgoing, Active(activity.clone()), WRITE_STALL);
        // A second's worth each time, for which the peer takes three.
        let piece = Bytes::from(vec![0; crate::stall_guard::WRITE_RATE_MIN as usize]);
        let (second, mut count) = (Duration::from_secs(1), 0);
        loop {
            sender.send(Ok(piece.clone())).await.unwrap();
            let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
            drop(frame.unwrap().unwrap());
            count += 1;
            let ResponseBody::Pieces(pieces) = &mut body else { panic!("it comes in pieces") };
            let (_, since) = pieces.taken.as_mut().unwrap();
            *since -= 3 * second;
            if pieces.patience <= 3 * second {
                break;
            }
        }
        // Two seconds are lost with each, of twenty.
        assert!((9..=11).contains(&count), "{count}");
        assert!(activity.write_deadline().unwrap() <= Instant::now() + 4 * second);
    }

    #[tokio::test]
    async fn waiting_is_counted_from_what_is_waited_for() {
        let read_timeout = Duration::from_secs(5);
        let old = Duration::from_secs(100);
        let activity = Activity { started: Instant::now() - old, ..Activity::new() };
        // Whole seconds left, counted from now or from the connection's start.
        let timeout = || {
            let deadline = activity.deadline(read_timeout, IDLE)?;
            let from =
                activity.started + Duration::from_millis(activity.since.load(Ordering::Relaxed));
            Some(((deadline - from).as_secs(), from > activity.started))
        };
        assert_eq!(timeout(), Some((5, false)), "a new connection owes a request");
        activity.bytes_read();
        activity.request_begins(Version::HTTP_11);
        assert_eq!(timeout(), None);
        activity.request_ends();
        assert_eq!(timeout(), Some((60, true)), "then it may rest");
        activity.since.store(0, Ordering::Relaxed);
        activity.bytes_read();
        assert_eq!(timeout(), Some((5, true)), "but not within a request");
        activity.since.store(0, Ordering::Relaxed);
        activity.bytes_read();
        assert_eq!(timeout(), Some((5, false)), "however it drips");
        activity.request_begins(Version::HTTP_2);
        activity.request_ends();
        activity.since.store(0, Ordering::Relaxed);
        activity.bytes_read();
        assert_eq!(timeout(), Some((60, false)), "frames between HTTP/2 requests are no request");
    }
}
