//! Memory of the gateway that requests hold, and the order in which they get it.
//!
//! The memory has parts ([`HttpParts`]), so that requests cannot deadlock on each other's
//! reservations: request bodies have one, long responses one in addition to the reply that they
//! write, and the rest is for canisters being asked and for responses being written. Of the rest,
//! responses being written may take a part, and small ones a separate part; whatever they take,
//! there is room to ask. Of the responses being written, one connection may have a quarter, or one
//! reply if that is more.
//!
//! Requests that wait for a part are in line ([`Gate`]), until a deadline. There are never more of
//! them than requests in flight. Only bodies do not wait behind one another, since all of them hold
//! memory that the others wait for: one waits, and others are refused meanwhile.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use accounting::{Pool, Reservation};
use http_server::{BodyBudget, ErrorResponse};
use hyper::StatusCode;
use limits::{HTTP_REPLY_BESIDE_BYTES, HTTP_SMALL_BYTES, HttpGatewayLimits, HttpParts};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use crate::service::{permits, pool_full};

/// Permits count in these.
const UNIT_BYTES: u64 = 1024;
/// Greatest size that the first piece of a body may hold: it is in the connection's read buffer,
/// all of which stays with it.
const READ_BUFFER_BYTES: u64 = 16 << 10;
/// Of what is written, the part of one connection.
const CONNECTION_PART: u64 = 4;

/// A part of the room, with a line before it.
#[derive(Debug)]
pub(super) struct Gate {
    units: Arc<Semaphore>,
    bytes: u64,
}

#[derive(Debug)]
pub(super) struct GatePermit(OwnedSemaphorePermit);

fn units(bytes: u64) -> Option<u32> {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).ok()
}

impl Gate {
    fn new(bytes: u64) -> Self {
        Self { units: Arc::new(Semaphore::new(permits(bytes / UNIT_BYTES))), bytes }
    }

    fn try_take(&self, bytes: u64) -> Option<GatePermit> {
        self.units.clone().try_acquire_many_owned(units(bytes)?).ok().map(GatePermit)
    }

    /// Waits in line. `None` when it is not its turn until then, or never will be.
    async fn take(&self, bytes: u64, until: Instant) -> Option<GatePermit> {
        let units = units(bytes)?;
        if u64::from(units) > self.bytes / UNIT_BYTES {
            return None;
        }
        let place = self.units.clone().acquire_many_owned(units);
        timeout_at(until, place).await.ok()?.ok().map(GatePermit)
    }
}

impl GatePermit {
    fn shrink_to(&mut self, bytes: u64) {
        let wanted = bytes.div_ceil(UNIT_BYTES) as usize;
        drop(self.0.split(self.0.num_permits().saturating_sub(wanted)));
    }
}

/// All parts. One per gateway.
pub(super) struct RequestMemory {
    pool: Pool,
    pub(super) parts: HttpParts,
    reply_bytes: u64,
    bytes_per_connection: u64,
    bodies: Gate,
    body_waits: Arc<Semaphore>,
    rest: Gate,
    small: Gate,
    large: Gate,
}

/// A request that waits longer than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryFull {
    what: &'static str,
    wanted: u64,
    part: u64,
    all: u64,
}

impl From<MemoryFull> for ErrorResponse {
    fn from(full: MemoryFull) -> Self {
        let MemoryFull { what, wanted, part, all } = full;
        let hopeless = wanted > part;
        let message = format!(
            "{what} may take {part} bytes of the limit http_gateway.requests_bytes = {all}; {wanted} \
             more {}",
            if hopeless { "never fit" } else { "do not fit now; retry in a second" }
        );
        if hopeless {
            return Self::new(StatusCode::PAYLOAD_TOO_LARGE, "http_requests", message);
        }
        Self::unavailable("http_requests", message)
    }
}

/// What one connection may have.
#[derive(Debug)]
pub(crate) struct ConnectionQuota {
    written: Gate,
    /// Its responses of several replies.
    pub(super) streams: Arc<Semaphore>,
}

impl RequestMemory {
    pub(super) fn new(limits: &HttpGatewayLimits, reply_bytes: u64, pool: Pool) -> Self {
        let parts = limits.parts(reply_bytes);
        Self {
            bytes_per_connection: (parts.large / CONNECTION_PART)
                .max(limits.response_bytes(reply_bytes)),
            reply_bytes,
            bodies: Gate::new(parts.bodies),
            body_waits: Arc::new(Semaphore::new(1)),
            rest: Gate::new(parts.rest),
            small: Gate::new(parts.small),
            large: Gate::new(parts.large),
            pool,
            parts,
        }
    }

    pub(super) fn quota(&self) -> ConnectionQuota {
        ConnectionQuota {
            written: Gate::new(self.bytes_per_connection),
            streams: Arc::new(Semaphore::new(permits(self.streams_per_connection()))),
        }
    }

    /// Responses of several replies to one connection.
    pub(super) fn streams_per_connection(&self) -> u64 {
        (self.parts.streams / CONNECTION_PART).max(1)
    }

    /// Bytes of the pool, which cannot be full for who has a permit.
    pub(super) fn reserve(&self, bytes: u64) -> Result<Reservation, ErrorResponse> {
        self.pool.try_reserve(bytes).map_err(|full| pool_full("http_requests", full))
    }

    fn full(&self, what: &'static str, wanted: u64, part: u64) -> MemoryFull {
        MemoryFull { what, wanted, part, all: self.pool.cap_bytes() }
    }

    /// A body, of which nothing is there.
    pub(super) fn body(
        self: &Arc<Self>,
        patience: Duration,
    ) -> Result<BodyReservation, ErrorResponse> {
        Ok(BodyReservation {
            reserved: self.reserve(0)?,
            permit: None,
            until: Instant::now() + patience,
            rooms: self.clone(),
        })
    }

    /// Room to ask a canister on behalf of a body of `body_bytes` bytes, and to keep `keeps` bytes
    /// of its reply, if that is known.
    pub(super) async fn share(
        &self,
        quota: &ConnectionQuota,
        body_bytes: u64,
        keeps: u64,
        until: Instant,
    ) -> Result<Arc<ReplyReservation>, ErrorResponse> {
        let kept = match keeps {
            0 => None,
            keeps => Some(self.wait_to_keep(quota, keeps, until).await?),
        };
        let bytes = HttpGatewayLimits::asking_bytes(body_bytes, self.reply_bytes);
        let permit = self.rest.take(bytes, until).await.ok_or_else(|| {
            self.full("canisters being asked and responses being written", bytes, self.parts.rest)
        })?;
        let reserved = self.reserve(bytes)?;
        Ok(Arc::new(ReplyReservation(Mutex::new(ReservationState { reserved, permit, kept }))))
    }

    pub(super) fn reply_bytes(&self) -> u64 {
        self.reply_bytes.saturating_add(HTTP_REPLY_BESIDE_BYTES)
    }

    fn gate_for(&self, bytes: u64) -> (&Gate, &'static str) {
        if bytes <= HTTP_SMALL_BYTES.min(self.small.bytes) {
            (&self.small, "small responses being written")
        } else {
            (&self.large, "responses being written")
        }
    }

    async fn wait_to_keep(
        &self,
        quota: &ConnectionQuota,
        bytes: u64,
        until: Instant,
    ) -> Result<WritePermits, MemoryFull> {
        let (gate, what) = self.gate_for(bytes);
        let of_connection = quota.written.take(bytes, until).await.ok_or_else(|| {
            self.full("responses being written to one connection", bytes, quota.written.bytes)
        })?;
        let of_all = gate.take(bytes, until).await;
        let of_all = of_all.ok_or_else(|| self.full(what, bytes, gate.bytes))?;
        Ok(WritePermits { bytes, of_connection, of_all })
    }

    fn try_to_keep(&self, quota: &ConnectionQuota, bytes: u64) -> Option<WritePermits> {
        let of_connection = quota.written.try_take(bytes)?;
        let of_all = self.gate_for(bytes).0.try_take(bytes)?;
        Some(WritePermits { bytes, of_connection, of_all })
    }

    /// Keeps some text of the gateway's own, if there is room.
    pub(super) fn small(&self, bytes: u64) -> Option<(GatePermit, GatePermit, Reservation)> {
        let (of_small, of_all) = (self.small.try_take(bytes)?, self.rest.try_take(bytes)?);
        Some((of_small, of_all, self.pool.try_reserve(bytes).ok()?))
    }
}

/// Memory that a request holds while its canister is asked, and then for the response being
/// written. It lives as long as the reply.
#[derive(Debug)]
pub(super) struct ReplyReservation(Mutex<ReservationState>);

#[derive(Debug)]
struct ReservationState {
    reserved: Reservation,
    permit: GatePermit,
    kept: Option<WritePermits>,
}

#[derive(Debug)]
struct WritePermits {
    bytes: u64,
    of_connection: GatePermit,
    of_all: GatePermit,
}

impl ReplyReservation {
    fn held(&self) -> MutexGuard<'_, ReservationState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this number of bytes can be written now.
    pub(super) fn keep(&self, rooms: &RequestMemory, quota: &ConnectionQuota, bytes: u64) -> bool {
        let mut held = self.held();
        match &mut held.kept {
            Some(kept) if kept.bytes >= bytes => {
                kept.of_connection.shrink_to(bytes);
                kept.of_all.shrink_to(bytes);
                kept.bytes = bytes;
            }
            kept => {
                *kept = None;
                *kept = rooms.try_to_keep(quota, bytes);
            }
        }
        held.kept.is_some()
    }

    /// Bytes of it that are written.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.held().kept.as_ref().map_or(0, |kept| kept.bytes)
    }

    /// Nothing more is asked: what is left is what is written.
    pub(super) fn settle(&self) {
        let mut held = self.held();
        let kept = held.kept.as_ref().map_or(0, |kept| kept.bytes);
        held.permit.shrink_to(kept);
        let beside = held.reserved.bytes().saturating_sub(kept);
        held.reserved.shrink(beside);
    }
}

/// A request's body, as far as it is there.
pub(super) struct BodyReservation {
    reserved: Reservation,
    permit: Option<GatePermit>,
    until: Instant,
    rooms: Arc<RequestMemory>,
}

impl BodyBudget for BodyReservation {
    type Full = ErrorResponse;

    async fn resize(&mut self, received: u64, buffers: u64) -> Result<(), ErrorResponse> {
        let bytes = received.max(buffers).max(READ_BUFFER_BYTES);
        let before = self.reserved.bytes();
        let Some(more) = bytes.checked_sub(before) else {
            if let Some(permit) = &mut self.permit {
                permit.shrink_to(bytes);
            }
            self.reserved.shrink(before - bytes);
            return Ok(());
        };
        let rooms = &self.rooms;
        let full = || rooms.full("request bodies", more, rooms.parts.bodies);
        let permit = match rooms.bodies.try_take(more) {
            Some(permit) => permit,
            None => {
                let _turn = rooms.body_waits.try_acquire().map_err(|_| full())?;
                rooms.bodies.take(more, self.until).await.ok_or_else(full)?
            }
        };
        match &mut self.permit {
            Some(held) => held.0.merge(permit.0),
            none => *none = Some(permit),
        }
        // It is of the same pool.
        let _ = self.reserved.merge(rooms.reserve(more)?);
        Ok(())
    }

    fn release(&mut self) {
        self.permit = None;
        self.reserved.shrink(self.reserved.bytes());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use limits::Limits;

    use super::*;

    const REPLY: u64 = 2 << 20;

    fn rooms() -> (Arc<RequestMemory>, Pool) {
        let limits = Limits::derive(512 << 20).unwrap().http_gateway;
        let pool = Pool::standalone("http_requests", limits.requests_bytes);
        (Arc::new(RequestMemory::new(&limits, REPLY, pool.clone())), pool)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[tokio::test]
    async fn whoever_asks_gives_back_all_but_what_is_written() {
        let (rooms, pool) = rooms();
        let quota = rooms.quota();
        let share = rooms.share(&quota, 0, 0, soon()).await.unwrap();
        assert_eq!(pool.used_bytes(), HttpGatewayLimits::asking_bytes(0, REPLY));
        assert!(share.keep(&rooms, &quota, 5_000));
        share.settle();
        assert_eq!((pool.used_bytes(), share.kept_bytes()), (5_000, 5_000));
        drop(share);
        assert_eq!(pool.used_bytes(), 0);
    }

    // Promise: P11 - Slow readers delay neither requests nor small responses.
    #[tokio::test]
    async fn readers_that_are_slow_keep_nobody_from_asking_nor_from_small_responses() {
        let (rooms, pool) = rooms();
        let mut written = Vec::new();
        loop {
            // Each from a connection of its own.
            let quota = rooms.quota();
            let share = rooms.share(&quota, 0, 0, soon()).await.unwrap();
            if !share.keep(&rooms, &quota, 1 << 20) {
                break;
            }
            share.settle();
            written.push(share);
        }
        assert!(pool.used_bytes() <= pool.cap_bytes() / 2, "{}", pool.used_bytes());
        assert!(written.len() >= 3, "{}", written.len());
        let quota = rooms.quota();
        let share = rooms.share(&quota, 2 << 20, 0, soon()).await.unwrap();
        assert!(share.keep(&rooms, &quota, 60_000));
        // And a request that waits for one of these parts gets an error with the limit.
        let refused: ErrorResponse = rooms.share(&quota, 0, 1 << 20, soon()).await.unwrap_err();
        let limit = format!("http_gateway.requests_bytes = {}", pool.cap_bytes());
        assert!(refused.message.contains(&limit), "{}", refused.message);
        assert_eq!(refused.retry_after_seconds, Some(1));
        written.pop();
        assert!(rooms.share(&quota, 0, 1 << 20, soon()).await.is_ok());
    }

    #[tokio::test]
    async fn one_connection_has_a_part_of_what_is_written() {
        let (rooms, _) = rooms();
        let (greedy, other) = (rooms.quota(), rooms.quota());
        let mut kept = Vec::new();
        for _ in 0..8 {
            let share = rooms.share(&greedy, 0, 0, soon()).await.unwrap();
            if share.keep(&rooms, &greedy, 1 << 20) {
                share.settle();
                kept.push(share);
            }
        }
        assert_eq!(kept.len(), 2);
        let share = rooms.share(&other, 0, 0, soon()).await.unwrap();
        assert!(share.keep(&rooms, &other, 1 << 20));
    }

    // Promise: P11 - Room for responses is granted in order of arrival.
    #[tokio::test]
    async fn room_comes_to_who_came_first() {
        let (rooms, _) = rooms();
        let quota = Arc::new(rooms.quota());
        let mut held = Vec::new();
        while let Ok(share) = rooms.share(&quota, 0, 0, soon()).await {
            held.push(share);
        }
        // A large one waits, and small ones that come later do not take what it waits for.
        let (order, mut came) = tokio::sync::mpsc::unbounded_channel();
        for (number, body) in [(0, 2 << 20), (1, 0), (2, 0)] {
            let (rooms, quota, order) = (rooms.clone(), quota.clone(), order.clone());
            tokio::spawn(async move {
                let share = rooms.share(&quota, body, 0, late()).await.unwrap();
                order.send((number, share)).unwrap();
            });
            // There is one thread: it stands in line after these.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
        for expected in 0..3 {
            let (number, share) = loop {
                match came.try_recv() {
                    Ok(one) => break one,
                    Err(_) => {
                        drop(held.pop());
                        for _ in 0..100 {
                            tokio::task::yield_now().await;
                        }
                    }
                }
            };
            assert_eq!(number, expected);
            held.insert(0, share);
        }
    }

    #[tokio::test]
    async fn bodies_hold_what_is_there_and_one_of_them_waits() {
        let (rooms, pool) = rooms();
        let patience = Duration::from_secs(20);
        let part = rooms.parts.bodies;
        let mut first = rooms.body(patience).unwrap();
        assert_eq!(pool.used_bytes(), 0, "nothing is there");
        first.resize(1, 0).await.unwrap();
        assert_eq!(pool.used_bytes(), READ_BUFFER_BYTES);
        first.resize(1 << 20, part / 2).await.unwrap();
        let mut second = rooms.body(patience).unwrap();
        second.resize(1 << 20, part / 2).await.unwrap();
        let waiting = tokio::spawn(async move {
            first.resize(1 << 20, part).await.unwrap();
            first
        });
        while rooms.body_waits.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = second.resize(1 << 20, part).await.unwrap_err();
        assert!(refused.message.contains("request bodies"), "{}", refused.message);
        drop(second);
        let mut first = waiting.await.unwrap();
        assert!(pool.used_bytes() <= part);
        first.resize(1 << 20, 1 << 20).await.unwrap();
        assert_eq!(pool.used_bytes(), 1 << 20);
        first.release();
        assert_eq!(pool.used_bytes(), 0);
    }
}
