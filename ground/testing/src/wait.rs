//! Waiting for what must happen, however slow the machine: a test that waits has one way to do so,
//! and fails with what did not come.

use std::time::{Duration, Instant};

/// A condition that is not met by then will not be met, even on an emulated processor.
pub const TIMEOUT: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until something is so.
///
/// # Panics
///
/// If it is not within [`TIMEOUT`].
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || is_so().then_some(()));
}

/// Looks again and again until there is something.
///
/// # Panics
///
/// If there is nothing within [`TIMEOUT`].
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {} s", TIMEOUT.as_secs());
        std::thread::sleep(LOOK_EVERY);
    }
}

/// [`until`] for a test that is a future; its thread is free meanwhile.
///
/// # Panics
///
/// If it is not so within [`TIMEOUT`].
pub async fn until_async(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}: not within {} s", TIMEOUT.as_secs());
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
