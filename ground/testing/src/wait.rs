//! Waiting for what must happen, however slow the machine: a test that waits has one way to do so,
//! and fails with what did not come.

use std::time::{Duration, Instant};

/// A condition that is not met by then will not be met, even on an emulated processor.
pub const TIMEOUT: Duration = Duration::from_secs(300);
const PAUSE_LEAST: Duration = Duration::from_millis(5);
const PAUSE_MOST: Duration = Duration::from_millis(100);

/// Pause before the next look at what has been waited for so long. Looks take processor time from
/// what they wait for, often more than it needs itself, so they become rarer: a wait is at most a
/// sixteenth longer, or by 5 ms.
pub fn pause(waited: Duration) -> Duration {
    (waited / 16).clamp(PAUSE_LEAST, PAUSE_MOST)
}

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
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let waited = begun.elapsed();
        assert!(waited < TIMEOUT, "{what}: not within {} s", TIMEOUT.as_secs());
        std::thread::sleep(pause(waited));
    }
}

/// [`until`] for a test that is a future; its thread is free meanwhile.
///
/// # Panics
///
/// If it is not so within [`TIMEOUT`].
pub async fn until_async(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        let waited = begun.elapsed();
        assert!(waited < TIMEOUT, "{what}: not within {} s", TIMEOUT.as_secs());
        tokio::time::sleep(pause(waited)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rarer_within_bounds() {
        let after = |millis| pause(Duration::from_millis(millis));
        assert_eq!(after(0), PAUSE_LEAST);
        assert_eq!(after(800), Duration::from_millis(50));
        assert_eq!(after(60_000), PAUSE_MOST);
    }
}
