//! A rate over all that share it: who takes waits for as long as what was taken before lasts.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// So much may be owed before a taker waits: waiting for less costs more than it saves.
const SLACK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Throttle {
    per_second: u64,
    /// When everything that was taken is paid.
    paid: Mutex<Instant>,
}

impl Throttle {
    /// At most so much a second, on average.
    pub(crate) fn new(per_second: u64) -> Self {
        Self { per_second: per_second.max(1), paid: Mutex::new(Instant::now()) }
    }

    /// Takes an amount, after a wait if need be.
    pub(crate) async fn take(&self, amount: usize) {
        let wait = self.wait(amount, Instant::now());
        if wait > SLACK {
            tokio::time::sleep(wait).await;
        }
    }

    /// The wait before an amount may be taken.
    fn wait(&self, amount: usize, now: Instant) -> Duration {
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = (*paid).max(now);
        *paid = begins + Duration::from_secs_f64(amount as f64 / self.per_second as f64);
        begins.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takers_wait_for_what_was_taken_before() {
        let throttle = Throttle::new(100);
        let now = Instant::now() + Duration::from_secs(1);
        assert_eq!(throttle.wait(50, now), Duration::ZERO);
        assert_eq!(throttle.wait(50, now), Duration::from_millis(500));
        assert_eq!(throttle.wait(1, now + Duration::from_secs(3)), Duration::ZERO);
    }
}
