//! Time as the round loop knows it.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use lifecycle::Stop;

/// A monotonic clock, and waiting by it.
pub trait Clock: Send + Sync {
    /// Time since some moment before the first call. Never goes back.
    fn now(&self) -> Duration;

    /// Waits for `time`, or until the stop, whichever is first.
    fn sleep<'a>(&'a self, time: Duration, stop: &'a Stop) -> BoxFuture<'a, ()>;
}

/// The machine's. Waiting blocks the thread: the round loop is the only thing its thread drives.
#[derive(Clone, Copy, Debug)]
pub struct MachineClock(Instant);

impl MachineClock {
    /// Counts from `started`.
    pub fn since(started: Instant) -> Self {
        Self(started)
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep<'a>(&'a self, time: Duration, stop: &'a Stop) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            stop.wait(time);
        })
    }
}
