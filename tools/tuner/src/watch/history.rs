//! Samples of a watch, and a history of them that does not grow with time.

use serde::Serialize;

/// Most samples held. When there are more, every two become one.
pub(crate) const SAMPLES_MAX: usize = 600;

/// Memory of a process and its descendants at one moment. Figures that are not reported are null.
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub(crate) struct Sample {
    /// Since the watch began.
    pub(crate) seconds: f64,
    pub(crate) unix_millis: u64,
    /// In use after the last collection of the whole heap.
    pub(crate) live_bytes: Option<u64>,
    /// Held by the runtime for its heap.
    pub(crate) allocated_bytes: Option<u64>,
    pub(crate) anonymous_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) shared_bytes: u64,
    pub(crate) swap_bytes: u64,
    /// Bytes by which anonymous memory has fallen below its peak.
    pub(crate) returned_bytes: u64,
    /// Of one processor, since the sample before.
    pub(crate) cpu_percent: f64,
    pub(crate) processes: usize,
    pub(crate) threads: u64,
    /// As reported by the log, from its beginning on.
    pub(crate) collections: u64,
    pub(crate) collections_major: u64,
    /// Of those since the sample before.
    pub(crate) pause_millis: f64,
    pub(crate) pause_max_millis: f64,
}

/// Values over time of which two can become one.
pub(crate) trait Merge {
    /// One for both.
    fn merge(before: &Self, after: &Self) -> Self;
}

impl Merge for Sample {
    /// The later one, with the figures of both about the time between.
    fn merge(before: &Self, after: &Self) -> Self {
        Self {
            pause_millis: after.pause_millis + before.pause_millis,
            pause_max_millis: after.pause_max_millis.max(before.pause_max_millis),
            cpu_percent: (after.cpu_percent + before.cpu_percent) / 2.0,
            // A peak must not get lost.
            anonymous_bytes: after.anonymous_bytes.max(before.anonymous_bytes),
            ..after.clone()
        }
    }
}

impl Merge for (f64, u64) {
    /// The lower one.
    fn merge(before: &Self, after: &Self) -> Self {
        if after.1 < before.1 { *after } else { *before }
    }
}

/// At most `MOST` values over any time, evenly spaced.
#[derive(Debug)]
pub(crate) struct BoundedSeries<T, const MOST: usize> {
    values: Vec<T>,
    /// Number of values that are merged into one.
    stride: u64,
    waiting: Option<(T, u64)>,
}

/// Samples of a watch.
pub(crate) type History = BoundedSeries<Sample, SAMPLES_MAX>;
/// The lowest values, with their seconds.
pub(crate) type LowestValues<const MOST: usize> = BoundedSeries<(f64, u64), MOST>;

impl<T, const MOST: usize> Default for BoundedSeries<T, MOST> {
    fn default() -> Self {
        Self { values: Vec::new(), stride: 1, waiting: None }
    }
}

impl<T: Merge + Clone, const MOST: usize> BoundedSeries<T, MOST> {
    pub(crate) fn push(&mut self, value: T) {
        let (value, count) = match self.waiting.take() {
            Some((before, count)) => (T::merge(&before, &value), count + 1),
            None => (value, 1),
        };
        if count < self.stride {
            self.waiting = Some((value, count));
            return;
        }
        self.values.push(value);
        if self.values.len() >= MOST {
            let joined = self.values.chunks(2).filter_map(|pair| match pair {
                [before, after] => Some(T::merge(before, after)),
                _ => None,
            });
            self.values = joined.collect();
            self.stride = self.stride.saturating_mul(2);
        }
        debug_assert!(self.values.len() < MOST);
    }

    /// Oldest first, without those that wait to be merged.
    pub(crate) fn values(&self) -> &[T] {
        &self.values
    }

    /// Oldest first; the newest is always among them.
    pub(crate) fn samples(&self) -> Vec<T> {
        self.values.iter().chain(self.waiting.iter().map(|(value, _)| value)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_watch_holds_no_more_and_forgets_no_peak() {
        let mut history = History::default();
        for second in 0..100_000_u32 {
            let anonymous_bytes = if second == 777 { 1 << 30 } else { 1 << 20 };
            let pause_max_millis = if second == 778 { 55.0 } else { 1.0 };
            let seconds = f64::from(second);
            history.push(Sample {
                seconds,
                anonymous_bytes,
                pause_max_millis,
                pause_millis: 1.0,
                ..Sample::default()
            });
        }
        let samples = history.samples();
        assert!((SAMPLES_MAX / 4..=SAMPLES_MAX).contains(&samples.len()), "{}", samples.len());
        assert_eq!(samples.last().unwrap().seconds, 99_999.0);
        assert!(samples.iter().any(|sample| sample.anonymous_bytes == 1 << 30));
        assert!(samples.iter().any(|sample| sample.pause_max_millis == 55.0));
        assert_eq!(samples.iter().map(|sample| sample.pause_millis).sum::<f64>(), 100_000.0);
        assert!(samples.is_sorted_by(|one, next| one.seconds < next.seconds));
    }

    #[test]
    fn lows_stay_low_and_few() {
        let mut lows = LowestValues::<64>::default();
        for second in 0..10_000_u32 {
            lows.push((f64::from(second), if second % 10 == 0 { 5 } else { 100 }));
        }
        assert!((16..64).contains(&lows.values().len()));
        assert!(lows.values().iter().filter(|(_, bytes)| *bytes == 5).count() >= 16);
    }
}
