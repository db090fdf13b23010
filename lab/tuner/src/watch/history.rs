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

impl Sample {
    /// Merges this sample with the figures of the previous one about the time between.
    fn after(self, before: &Self) -> Self {
        Self {
            pause_millis: self.pause_millis + before.pause_millis,
            pause_max_millis: self.pause_max_millis.max(before.pause_max_millis),
            cpu_percent: (self.cpu_percent + before.cpu_percent) / 2.0,
            // A peak must not get lost.
            anonymous_bytes: self.anonymous_bytes.max(before.anonymous_bytes),
            ..self
        }
    }
}

/// At most [`SAMPLES_MAX`] samples over any time, evenly spaced.
#[derive(Debug)]
pub(crate) struct History {
    samples: Vec<Sample>,
    /// Number of samples that are merged into one.
    stride: u64,
    waiting: Option<(Sample, u64)>,
}

impl Default for History {
    fn default() -> Self {
        Self { samples: Vec::with_capacity(SAMPLES_MAX), stride: 1, waiting: None }
    }
}

impl History {
    pub(crate) fn push(&mut self, sample: Sample) {
        let (sample, count) = match self.waiting.take() {
            Some((before, count)) => (sample.after(&before), count + 1),
            None => (sample, 1),
        };
        if count < self.stride {
            self.waiting = Some((sample, count));
            return;
        }
        self.samples.push(sample);
        if self.samples.len() == SAMPLES_MAX {
            thin(&mut self.samples, |before, after| after.clone().after(before));
            self.stride = self.stride.saturating_mul(2);
        }
        debug_assert!(self.samples.len() < SAMPLES_MAX);
    }

    /// Oldest first; the newest is always among them.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.samples.iter().chain(self.waiting.iter().map(|(sample, _)| sample)).cloned().collect()
    }
}

/// Values over time, at most `MOST` of them; when there are more, the lower of every two stays.
#[derive(Clone, Debug)]
pub(crate) struct LowestValues<const MOST: usize> {
    values: Vec<(f64, u64)>,
    stride: u64,
    waiting: Option<((f64, u64), u64)>,
}

impl<const MOST: usize> Default for LowestValues<MOST> {
    fn default() -> Self {
        Self { values: Vec::new(), stride: 1, waiting: None }
    }
}

impl<const MOST: usize> LowestValues<MOST> {
    pub(crate) fn push(&mut self, seconds: f64, bytes: u64) {
        let lower = |one: (f64, u64), other: (f64, u64)| if other.1 < one.1 { other } else { one };
        let (value, count) = match self.waiting.take() {
            Some((before, count)) => (lower(before, (seconds, bytes)), count + 1),
            None => ((seconds, bytes), 1),
        };
        if count < self.stride {
            self.waiting = Some((value, count));
            return;
        }
        self.values.push(value);
        if self.values.len() >= MOST {
            thin(&mut self.values, |before, after| lower(*before, *after));
            self.stride = self.stride.saturating_mul(2);
        }
    }

    pub(crate) fn values(&self) -> &[(f64, u64)] {
        &self.values
    }
}

/// Makes one of every two, in place.
fn thin<T>(values: &mut Vec<T>, join: impl Fn(&T, &T) -> T) {
    let joined = values.chunks(2).filter_map(|pair| match pair {
        [before, after] => Some(join(before, after)),
        _ => None,
    });
    *values = joined.collect();
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
            lows.push(f64::from(second), if second % 10 == 0 { 5 } else { 100 });
        }
        assert!((16..64).contains(&lows.values().len()));
        assert!(lows.values().iter().filter(|(_, bytes)| *bytes == 5).count() >= 16);
    }
}
