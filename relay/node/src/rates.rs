//! Rates per peer: how many requests of a kind one peer may make.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use libp2p::PeerId;
use thiserror::Error;

/// A peer asked too often.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error(
    "{what}: at most {per_second} a second and {burst} at once are taken of one peer; wait a moment"
)]
pub(crate) struct RateLimited {
    what: &'static str,
    per_second: u64,
    burst: u64,
}

/// One kind of request. Holds a number for each peer that asked within the last seconds, at most
/// `peers` of them; with more, the peer that asked longest ago is forgotten, to its advantage.
#[derive(Debug)]
pub(crate) struct Rate {
    limit: RateLimited,
    peers: usize,
    buckets: Mutex<HashMap<PeerId, (f64, Instant)>>,
}

impl Rate {
    /// `per_second` 0 means no limit.
    pub(crate) fn new(what: &'static str, per_second: u64, burst: u64, peers: usize) -> Self {
        Self {
            limit: RateLimited { what, per_second, burst: burst.max(1) },
            peers: peers.max(1),
            buckets: Mutex::default(),
        }
    }

    pub(crate) fn take(&self, peer: &PeerId) -> Result<(), RateLimited> {
        self.take_at(peer, Instant::now())
    }

    fn take_at(&self, peer: &PeerId, now: Instant) -> Result<(), RateLimited> {
        let RateLimited { per_second, burst, .. } = self.limit;
        if per_second == 0 {
            return Ok(());
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= self.peers && !buckets.contains_key(peer) {
            // Full buckets have no information; the others were used recently.
            let full = |since: Instant, left: f64| {
                left + now.saturating_duration_since(since).as_secs_f64() * per_second as f64
                    >= burst as f64
            };
            buckets.retain(|_, (left, since)| !full(*since, *left));
            if buckets.len() >= self.peers {
                buckets.clear();
            }
        }
        let (left, since) = buckets.entry(*peer).or_insert((burst as f64, now));
        let gained = now.saturating_duration_since(*since).as_secs_f64() * per_second as f64;
        *left = (*left + gained).min(burst as f64);
        *since = now;
        if *left < 1.0 {
            return Err(self.limit);
        }
        *left -= 1.0;
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Rates {
    pub(crate) light_push: Rate,
    pub(crate) filter: Rate,
    pub(crate) store: Rate,
    pub(crate) peer_exchange: Rate,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_taken_and_then_the_rate() {
        let rate = Rate::new("requests", 10, 5, 3);
        let (peer, other, start) = (PeerId::random(), PeerId::random(), Instant::now());
        assert_eq!((0..9).filter(|_| rate.take_at(&peer, start).is_ok()).count(), 5);
        assert!(rate.take_at(&other, start).is_ok(), "each has its own");
        let later = start + Duration::from_millis(250);
        assert_eq!((0..9).filter(|_| rate.take_at(&peer, later).is_ok()).count(), 2);
        let much_later = start + Duration::from_secs(100);
        assert_eq!((0..9).filter(|_| rate.take_at(&peer, much_later).is_ok()).count(), 5);
    }

    #[test]
    fn many_peers_take_no_more_memory_than_few() {
        let rate = Rate::new("requests", 10, 5, 3);
        for _ in 0..100 {
            rate.take(&PeerId::random()).unwrap();
        }
        assert!(rate.buckets.lock().unwrap().len() <= 3);
        let unlimited = Rate::new("requests", 0, 0, 3);
        assert!((0..1000).all(|_| unlimited.take(&PeerId::random()).is_ok()));
    }
}
