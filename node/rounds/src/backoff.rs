//! How long to wait before a step is tried again that this machine refused.

use std::time::Duration;

/// Wait after the first attempt that failed; it doubles with each further one.
const FIRST: Duration = Duration::from_millis(100);
/// Longest wait between two attempts.
pub(crate) const LONGEST: Duration = Duration::from_secs(10);

/// Waits of one step, from [`FIRST`] doubling to [`LONGEST`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// The wait after another attempt that failed.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.0;
        self.0 = self.0.saturating_mul(2).min(LONGEST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..9).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
    }
}
