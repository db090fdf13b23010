//! Lists that are made piece by piece as the client takes them.
//!
//! Bounds: every piece is charged to the pool of responses before it is made and until it is
//! written; hyper asks for the next one when the one before is nearly gone. A list waits
//! [`TIMEOUT`] for a full pool and then breaks off, which the client sees as a truncated answer. It
//! must never know the content of a piece.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use accounting::{Pool, PoolFull, Reservation};
use hyper::body::{Body, Bytes, Frame};
use tokio::time::{Instant, Sleep, sleep};

use crate::response::with_reservation;

/// Small pieces are put together up to this.
const CHUNK_BYTES: usize = 32 << 10;
/// How long a list that has begun waits for memory of a full pool.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of checks of it.
const RETRY: Duration = Duration::from_millis(2);

/// Something that is sent piece by piece.
pub trait Pieces: Send {
    /// The most memory that making the next piece takes, in bytes; `None` when there is none.
    fn next_bytes(&mut self) -> Option<usize>;
    /// Appends the next piece to `out`; an error breaks the answer off.
    fn write(&mut self, out: &mut Vec<u8>) -> io::Result<()>;
}

/// A body of [`Pieces`], each charged to the pool of responses before it is made.
pub struct List {
    pieces: Box<dyn Pieces>,
    responses: Pool,
    held: Option<Reservation>,
    timeout: Duration,
    /// Until when memory is waited for, and when to look again.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl List {
    /// A list whose first piece is charged to an existing reservation.
    pub fn new(held: Reservation, pieces: impl Pieces + 'static) -> Self {
        Self {
            pieces: Box::new(pieces),
            responses: held.pool().clone(),
            held: Some(held),
            timeout: TIMEOUT,
            waiting: None,
        }
    }

    /// A list of which the first piece finds room at once.
    ///
    /// # Errors
    /// When there is no memory for its first piece.
    pub fn reserve(mut pieces: impl Pieces + 'static, responses: &Pool) -> Result<Self, PoolFull> {
        let first = pieces.next_bytes().unwrap_or(0) as u64;
        let first = responses.try_reserve(first.min(responses.cap_bytes()))?;
        Ok(Self::new(first, pieces))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let Some(bytes) = self.pieces.next_bytes() else { return Poll::Ready(None) };
        // The largest piece fits the pool with room to spare; if the operator made the pool as
        // small as that piece alone, the piece is charged the whole pool.
        let wanted = (bytes as u64).min(self.responses.cap_bytes());
        let mut held = loop {
            match self.take(wanted) {
                Some(held) => break held,
                None => match ready!(self.poll_retry(cx)) {
                    Ok(()) => {}
                    Err(error) => return Poll::Ready(Some(Err(error))),
                },
            }
        };
        self.waiting = None;
        let mut out = Vec::with_capacity(bytes);
        let mut planned = bytes;
        loop {
            if let Err(error) = self.pieces.write(&mut out) {
                return Poll::Ready(Some(Err(error)));
            }
            let Some(next) = self.pieces.next_bytes() else { break };
            planned = planned.saturating_add(next);
            if planned > CHUNK_BYTES
                || self.responses.free_bytes() < next as u64
                || held.try_grow(next as u64).is_err()
            {
                break;
            }
        }
        out.shrink_to_fit();
        held.shrink(held.bytes().saturating_sub(out.capacity() as u64));
        Poll::Ready(Some(Ok(with_reservation(out, held))))
    }

    fn take(&mut self, wanted: u64) -> Option<Reservation> {
        if let Some(mut held) = self.held.take() {
            if held.try_resize(wanted).is_ok() {
                return Some(held);
            }
            self.held = Some(held);
            return None;
        }
        // Free bytes are checked first, so that waiting is not counted as refusals.
        if self.responses.free_bytes() < wanted {
            return None;
        }
        self.responses.try_reserve(wanted).ok()
    }

    fn poll_retry(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (now, timeout) = (Instant::now(), self.timeout);
        let (until, look) =
            self.waiting.get_or_insert_with(|| (now + timeout, Box::pin(sleep(RETRY))));
        ready!(look.as_mut().poll(cx));
        if now >= *until {
            let why = format!("the pool {} was full for {timeout:?}", self.responses.name());
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        look.as_mut().reset(now + RETRY);
        Poll::Ready(Ok(()))
    }
}

impl Body for List {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.get_mut().poll(cx).map(|piece| piece.map(|bytes| bytes.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    /// Pieces of these lengths.
    struct Lengths(Vec<usize>);

    impl Pieces for Lengths {
        fn next_bytes(&mut self) -> Option<usize> {
            self.0.last().copied()
        }

        fn write(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
            let bytes = self.0.pop().unwrap_or(0);
            out.resize(out.len() + bytes, b'x');
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_list_holds_one_piece_at_a_time() {
        let pool = Pool::standalone("responses", 100_000);
        let mut body = List::reserve(Lengths(vec![90_000, 80_000, 10, 20, 30]), &pool).unwrap();
        let mut lengths = Vec::new();
        while let Some(frame) = body.frame().await {
            let bytes = frame.unwrap().into_data().unwrap();
            assert!(pool.used_bytes() >= bytes.len() as u64);
            lengths.push(bytes.len());
        }
        assert_eq!(lengths, [60, 80_000, 90_000], "small ones together, large ones alone");
        assert_eq!(pool.used_bytes(), 0);
        assert_eq!(pool.snapshot().refused, 0);
    }

    #[tokio::test]
    async fn list_without_memory_waits_and_ends_with_an_error() {
        let pool = Pool::standalone("responses", 100_000);
        let held = pool.try_reserve(50_000).unwrap();
        let refused = List::reserve(Lengths(vec![60_000]), &pool);
        assert!(refused.is_err(), "refused before it begins");
        let mut body = List::reserve(Lengths(vec![60_000, 10]), &pool).unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 10);
        let free = async {
            // It is looked for in vain at least once.
            sleep(RETRY * 3).await;
            drop(held);
        };
        let (frame, ()) = tokio::join!(body.frame(), free);
        let piece = frame.unwrap().unwrap().into_data().unwrap();
        assert_eq!(piece.len(), 60_000);

        let mut other = List::reserve(Lengths(vec![60_000, 10]), &pool).unwrap();
        other.timeout = RETRY * 3;
        assert_eq!(other.frame().await.unwrap().unwrap().into_data().unwrap().len(), 10);
        let error = other.frame().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("responses"), "{error}");
        drop(piece);
        assert_eq!(pool.used_bytes(), 0);
    }
}
