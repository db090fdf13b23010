//! Frames on streams: reading within bounds, and sending messages from the log piece by piece.
//!
//! A frame is a varint length and as many bytes. Its length is checked before anything is
//! allocated; memory for it is taken from the pool `receiving` in two steps, so that a peer which
//! announces a long frame and sends little holds little. A message that is sent is read from the
//! log in pieces of `messages.sending_chunk_bytes`, each taken from the pool `sending`; further
//! buffers of the multiplexer are bounded for each connection ([`super::meter`]).

use std::{
    io,
    time::{Duration, Instant},
};

use accounting::{Pool, Reservation};
use bytes::Bytes;
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use protocol::frame;
use store::Message;
use thiserror::Error;

use crate::{node::Node, settings::count};

/// Taken of the pool for a frame before its first bytes are there; all the rest at once after them.
/// Many that each held a part and waited for more would wait for one another.
const FIRST_BYTES: usize = 4 << 10;
/// Between two tries to get memory of a full pool.
const RETRY: Duration = Duration::from_millis(2);
/// A longer frame is not one, and ends its connection; a shorter one is read or skipped.
const ANNOUNCED_BYTES_MAX: usize = 1 << 30;
/// Read at once of what is skipped.
const SKIPPED_AT_ONCE: usize = 4 << 10;
/// Kept of it, for its request id.
const HEAD_BYTES: usize = 1 << 10;
/// A whole frame arrives within this time of its first byte.
const FRAME_TIME: Duration = Duration::from_secs(20);
/// A message is taken by its receiver within this time.
pub(crate) const SEND_TIME: Duration = Duration::from_secs(20);
/// How long a request waits for memory of a full pool.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for gossip, which is retried whenever there is memory.
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
}

/// A frame in memory, and the memory.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) body: Bytes,
    pub(crate) held: Reservation,
    /// When its first byte was read.
    pub(crate) arrived: Instant,
}

/// The next frame of a stream; `None` at its end, which may come before any byte: stock clients
/// open streams and abandon them, or keep them for later.
///
/// Waiting for memory of this node is not a fault of the peer: it does not count against its time.
pub(crate) async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
    receiving: &Pool,
    timeout: Duration,
) -> Result<Option<Frame>, ReadError> {
    let mut prefix = [0; frame::LENGTH_PREFIX_BYTES_MAX];
    if stream.read(&mut prefix[..1]).await? == 0 {
        return Ok(None);
    }
    let arrived = Instant::now();
    let mut left = FRAME_TIME;
    let mut have = 1;
    let length = loop {
        let read = prefix.get(..have).unwrap_or_default();
        if let Some((length, _)) = frame::decode_length(read, bytes_max.max(ANNOUNCED_BYTES_MAX))? {
            break length;
        }
        let Some(next) = prefix.get_mut(have..have + 1) else { return Err(ReadError::Torn) };
        if timed(&mut left, stream.read(next)).await?? == 0 {
            return Err(ReadError::Torn);
        }
        have += 1;
    };
    if length > bytes_max {
        return Err(ReadError::TooLong { bytes: length, bytes_max });
    }
    let mut held = reserve(receiving, length.min(FIRST_BYTES), timeout).await?;
    let mut body = vec![0; length.min(FIRST_BYTES)];
    let mut filled = 0;
    while filled < length {
        if filled == body.len() {
            let rest = length - filled;
            let more = reserve(receiving, rest, timeout).await?;
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
    }
    Ok(Some(Frame { body: Bytes::from(body), held, arrived }))
}

/// Reads `bytes` bytes of a frame that is too long, within [`FRAME_TIME`], and drops them except
/// the first [`HEAD_BYTES`], which `head` gets.
pub(crate) async fn skip(
    stream: &mut (impl AsyncRead + Unpin),
    mut bytes: usize,
    head: &mut Vec<u8>,
    receiving: &Pool,
    timeout: Duration,
) -> Result<(), ReadError> {
    let _held = reserve(receiving, SKIPPED_AT_ONCE + HEAD_BYTES, timeout).await?;
    let mut left = FRAME_TIME;
    let mut buffer = vec![0; SKIPPED_AT_ONCE];
    while bytes > 0 {
        let most = bytes.min(buffer.len());
        let room = buffer.get_mut(..most).unwrap_or_default();
        let read = timed(&mut left, stream.read(room)).await??;
        if read == 0 {
            return Err(ReadError::Torn);
        }
        let wanted = read.min(HEAD_BYTES.saturating_sub(head.len()));
        head.extend_from_slice(buffer.get(..wanted).unwrap_or_default());
        bytes -= read;
    }
    Ok(())
}

/// Waits for something of a peer, out of the time the peer has left.
async fn timed<T>(left: &mut Duration, waited: impl Future<Output = T>) -> Result<T, ReadError> {
    let began = tokio::time::Instant::now();
    let done = tokio::time::timeout(*left, waited).await.map_err(|_| ReadError::Slow)?;
    *left = left.saturating_sub(began.elapsed());
    Ok(done)
}

/// Takes memory of a pool, waiting for it for a while.
pub(crate) async fn reserve(
    pool: &Pool,
    bytes: usize,
    timeout: Duration,
) -> Result<Reservation, accounting::PoolFull> {
    let deadline = tokio::time::Instant::now() + timeout;
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
        tokio::time::sleep(RETRY).await;
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
