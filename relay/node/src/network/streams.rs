//! Frames on streams: reading within bounds, and sending messages from the log piece by piece.
//!
//! A frame is a varint length and as many bytes. Its length is checked before anything is
//! allocated; memory for it is taken from the pool `receiving` in two steps, so that a peer which
//! announces a long frame and sends little holds little. Before the second step a large frame waits
//! until it is admitted ([`super::admission`]). A message that is sent is read from the log in
//! pieces of `messages.sending_chunk_bytes`, each taken from the pool `sending`; further buffers of
//! the multiplexer are bounded for each connection ([`super::meter`]).

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Waker},
    time::{Duration, Instant},
};

use accounting::{Pool, Reservation};
use bytes::Bytes;
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use protocol::frame;
use store::Message;
use thiserror::Error;

use super::admission::{Admission, AdmissionPermit, NotAdmitted, WaitingFrames};
use crate::{node::Node, settings::count};

/// Taken of the pool for a frame before its first bytes are there; all the rest at once after them.
/// Many that each held a part and waited for more would wait for one another.
const FIRST_BYTES: usize = 4 << 10;
/// Kept of a frame that is refused, in the memory of its stream: a request's id is in it.
pub(crate) const BEGIN_BYTES: usize = 512;
const _: () = assert!(protocol::REQUEST_ID_BYTES_MAX + 16 <= BEGIN_BYTES);
/// Between two tries to get memory of a full pool: at first, and at most. Each is work for a
/// processor that may be short.
const RETRY: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_millis(32);
/// A longer frame is not one, and ends its connection; a shorter one is read or skipped.
const ANNOUNCED_BYTES_MAX: usize = 1 << 30;
/// A whole frame arrives within this time of its first byte.
const FRAME_TIME: Duration = Duration::from_secs(20);
/// It is counted in ticks of this length.
const TICK: Duration = Duration::from_secs(1);
/// A message is taken by its receiver within this time.
pub(crate) const SEND_TIME: Duration = Duration::from_secs(20);
/// How long a request waits until it is admitted, and for memory of a full pool.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for gossip, which waits as long as it takes.
pub(crate) const GOSSIP_TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Debug, Error)]
pub(crate) enum ReadError {
    #[error("reading: {0}")]
    Io(#[from] io::Error),
    #[error("the stream ended within a frame")]
    Torn,
    #[error(transparent)]
    Frame(#[from] protocol::FrameError),
    /// Nothing of the frame's body was read; the stream may be used further.
    #[error("a frame of {bytes} bytes, this protocol takes at most {bytes_max}: send less at once")]
    TooLong { bytes: usize, bytes_max: usize },
    #[error("the frame did not arrive within {} s", FRAME_TIME.as_secs())]
    Slow,
    #[error(transparent)]
    Full(#[from] accounting::PoolFull),
    #[error("{}", NotAdmitted)]
    Busy(UnreadFrame),
}

/// A frame in memory, the memory, and its place among large frames.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) body: Bytes,
    pub(crate) held: Reservation,
    pub(crate) admitted: Option<AdmissionPermit>,
    /// When its first byte was read.
    pub(crate) arrived: Instant,
}

/// A frame that was not admitted.
#[derive(Debug)]
pub(crate) struct UnreadFrame {
    /// Its first [`BEGIN_BYTES`].
    pub(crate) begin: Bytes,
    /// Bytes of it that were not read.
    pub(crate) rest: usize,
}

/// What frames of a kind are taken from, and how long they wait for it.
pub(crate) struct Intake<'a> {
    receiving: &'a Pool,
    admission: &'a Admission,
    /// Of the stream's connection.
    waiting: &'a WaitingFrames,
    time: Duration,
}

impl<'a> Intake<'a> {
    pub(crate) fn new(node: &'a Node, waiting: &'a WaitingFrames, time: Duration) -> Self {
        Self { receiving: &node.pools.receiving, admission: &node.admission, waiting, time }
    }
}

/// The next frame of a stream; `None` at its end, which may come before any byte: stock clients
/// open streams and abandon them, or keep them for later.
///
/// Waiting for this node is not a fault of the peer: it does not count against its time.
pub(crate) async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
    intake: &Intake<'_>,
) -> Result<Option<Frame>, ReadError> {
    let mut left = FRAME_TIME;
    let Some((length, arrived)) = read_length(stream, bytes_max, &mut left).await? else {
        return Ok(None);
    };
    let mut held = reserve(intake.receiving, length.min(FIRST_BYTES), intake.time).await?;
    let mut body = vec![0; length.min(FIRST_BYTES)];
    let (mut filled, mut admitted) = (0, None);
    while filled < length {
        if filled == body.len() {
            let rest = length - filled;
            let waits = || keep_waiting(stream);
            let admitting = intake.admission.admit(rest, intake.time, intake.waiting, waits);
            let Ok(place) = admitting.await else {
                let begin = body.get(..BEGIN_BYTES).unwrap_or(&body);
                let begin = Bytes::copy_from_slice(begin);
                return Err(ReadError::Busy(UnreadFrame { begin, rest }));
            };
            admitted = Some(place);
            let more = reserve(intake.receiving, rest, intake.time).await?;
            if let Some(other) = held.merge(more).err() {
                debug_assert!(false, "{other:?} is of the same pool");
            }
            body.reserve_exact(rest);
            body.resize(length, 0);
        }
        let room = body.get_mut(filled..).unwrap_or_default();
        let read = timed(&mut left, stream.read(room)).await??;
        if read == 0 {
            return Err(ReadError::Torn);
        }
        filled += read;
        if let Some(admitted) = &admitted {
            admitted.moved();
        }
    }
    Ok(Some(Frame { body: Bytes::from(body), held, admitted, arrived }))
}

/// The length of the next frame, and when its first byte was read; `None` at the stream's end.
async fn read_length(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
    left: &mut Duration,
) -> Result<Option<(usize, Instant)>, ReadError> {
    let mut prefix = [0; frame::LENGTH_PREFIX_BYTES_MAX];
    if stream.read(&mut prefix[..1]).await? == 0 {
        return Ok(None);
    }
    let arrived = Instant::now();
    let mut have = 1;
    loop {
        let read = prefix.get(..have).unwrap_or_default();
        if let Some((bytes, _)) = frame::decode_length(read, bytes_max.max(ANNOUNCED_BYTES_MAX))? {
            if bytes > bytes_max {
                return Err(ReadError::TooLong { bytes, bytes_max });
            }
            return Ok(Some((bytes, arrived)));
        }
        let Some(next) = prefix.get_mut(have..have + 1) else { return Err(ReadError::Torn) };
        if timed(left, stream.read(next)).await?? == 0 {
            return Err(ReadError::Torn);
        }
        have += 1;
    }
}

/// Reports to the stream's connection that the stream is not read because this node is busy: a read
/// into no room ([`super::meter::MeteredStream`]).
fn keep_waiting(stream: &mut (impl AsyncRead + Unpin)) {
    // It never waits.
    let _ = Pin::new(stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut []);
}

/// Reads and drops `bytes` bytes of a frame that is refused; `begin` gets as many of the first ones
/// as it has room for. Errors: the stream ended before, or took longer than a frame may.
pub(crate) async fn skip(
    stream: &mut (impl AsyncRead + Unpin),
    mut bytes: usize,
    begin: &mut Vec<u8>,
) -> Result<(), ReadError> {
    let mut left = FRAME_TIME;
    while bytes > 0 {
        let reading = poll_fn(|cx| {
            // Not in the stream's task, which would have it for as long as it lives.
            let mut buffer = [0; 4096];
            let most = bytes.min(buffer.len());
            let room = buffer.get_mut(..most).unwrap_or_default();
            Pin::new(&mut *stream).poll_read(cx, room).map_ok(|read| {
                let kept = read.min(begin.capacity() - begin.len());
                begin.extend_from_slice(buffer.get(..kept).unwrap_or_default());
                read
            })
        });
        let read = timed(&mut left, reading).await??;
        if read == 0 {
            return Err(ReadError::Torn);
        }
        bytes = bytes.saturating_sub(read);
    }
    Ok(())
}

/// Waits for something of a peer, out of the time the peer has left. Time in which this process was
/// stopped, or got no processor, does not count.
async fn timed<T>(left: &mut Duration, waited: impl Future<Output = T>) -> Result<T, ReadError> {
    let mut waited = pin!(waited);
    loop {
        let tick = TICK.min(*left);
        let began = tokio::time::Instant::now();
        let done = tokio::time::timeout(tick, waited.as_mut()).await;
        *left = left.saturating_sub(began.elapsed().min(tick));
        match done {
            Ok(done) => return Ok(done),
            Err(_) if left.is_zero() => return Err(ReadError::Slow),
            Err(_) => {}
        }
    }
}

/// Takes memory of a pool, waiting for it for a while.
pub(crate) async fn reserve(
    pool: &Pool,
    bytes: usize,
    timeout: Duration,
) -> Result<Reservation, accounting::PoolFull> {
    let deadline = tokio::time::Instant::now() + timeout;
    let mut pause = RETRY;
    loop {
        // The free bytes are checked first, so that waiting is not counted as refusals.
        if pool.free_bytes() >= bytes as u64
            && let Ok(held) = pool.try_reserve(bytes as u64)
        {
            return Ok(held);
        }
        if tokio::time::Instant::now() >= deadline || bytes as u64 > pool.cap_bytes() {
            return pool.try_reserve(bytes as u64);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// Reads and drops whatever comes, until the end.
pub(crate) async fn discard(mut stream: impl AsyncRead + Unpin) {
    let mut buffer = [0; 256];
    while matches!(stream.read(&mut buffer).await, Ok(read) if read > 0) {}
}

/// Writes a small frame: the body with its length before it.
pub(crate) async fn write_small(
    stream: &mut (impl AsyncWrite + Unpin),
    body: &[u8],
) -> io::Result<()> {
    stream.write_all(&frame::with_length(body)).await
}

/// Writes `head`, the message from the log, and `tail`, holding a piece at a time of the pool
/// `sending`, for which it waits as long as the caller does.
pub(crate) async fn write_message(
    stream: &mut (impl AsyncWrite + Unpin),
    node: &Node,
    head: &[u8],
    message: &Message,
    tail: &[u8],
) -> io::Result<()> {
    let chunk_bytes = count(node.settings.limits.messages.sending_chunk_bytes);
    let total = head.len() + message.len() + tail.len();
    let piece = total.min(chunk_bytes + head.len() + tail.len());
    let _held =
        reserve(&node.pools.sending, piece, GOSSIP_TIMEOUT).await.map_err(io::Error::other)?;
    let mut buffer = Vec::with_capacity(piece);
    buffer.extend_from_slice(head);
    let mut sent = 0;
    while sent < message.len() {
        let from = buffer.len();
        let chunk = (message.len() - sent).min(chunk_bytes);
        buffer.resize(from + chunk, 0);
        if let Some(room) = buffer.get_mut(from..) {
            message.read_at(sent, room)?;
        }
        sent += chunk;
        if sent < message.len() {
            stream.write_all(&buffer).await?;
            buffer.clear();
        }
    }
    buffer.extend_from_slice(tail);
    stream.write_all(&buffer).await
}
