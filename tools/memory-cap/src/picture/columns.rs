//! Down-sampling: however long a run took, each column of the picture keeps the smallest and the
//! largest value that fell into it. A spike of one sample is still seen hours later, which an
//! average would hide.

/// One column that something fell into.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Extent {
    /// Time of the last value that fell into it.
    pub(crate) seconds: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// Values over time, in a fixed number of columns.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    duration: f64,
    extents: Vec<Option<Extent>>,
}

impl Columns {
    /// `count` columns for the time from 0 to `duration` seconds.
    pub(crate) fn new(count: usize, duration: f64) -> Self {
        Self { duration: duration.max(f64::MIN_POSITIVE), extents: vec![None; count.max(1)] }
    }

    /// Values outside the time fall into the nearest column; values that are not numbers are
    /// ignored.
    pub(crate) fn add(&mut self, seconds: f64, value: f64) {
        if !seconds.is_finite() || !value.is_finite() {
            return;
        }
        let last = self.extents.len() - 1;
        // A cast from a float saturates.
        let index = ((seconds / self.duration * self.extents.len() as f64) as usize).min(last);
        let Some(slot) = self.extents.get_mut(index) else { return };
        *slot = Some(match *slot {
            None => Extent { seconds, min: value, max: value },
            Some(extent) => {
                Extent { seconds, min: extent.min.min(value), max: extent.max.max(value) }
            }
        });
    }

    /// The columns that hold something, in order of time.
    pub(crate) fn filled(&self) -> impl Iterator<Item = Extent> {
        self.extents.iter().copied().flatten()
    }

    /// The same, in runs between which nothing was seen for longer than `gap` seconds (and longer
    /// than two columns).
    pub(crate) fn runs(&self, gap: f64) -> Vec<Vec<Extent>> {
        let gap = gap.max(2.0 * self.duration / self.extents.len() as f64);
        let mut runs: Vec<Vec<Extent>> = Vec::new();
        for extent in self.filled() {
            match runs.last_mut() {
                Some(run)
                    if run.last().is_some_and(|last| extent.seconds - last.seconds <= gap) =>
                {
                    run.push(extent)
                }
                _ => runs.push(vec![extent]),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_of_one_sample_survives_any_length() {
        let mut columns = Columns::new(100, 36_000.0);
        for quarter in 0..144_000_u32 {
            columns.add(f64::from(quarter) / 4.0, if quarter == 77_777 { 500.0 } else { 5.0 });
        }
        let spikes: Vec<Extent> = columns.filled().filter(|extent| extent.max > 5.0).collect();
        assert_eq!(columns.filled().count(), 100);
        assert_eq!(spikes.len(), 1);
        assert_eq!((spikes[0].min, spikes[0].max), (5.0, 500.0));
    }

    #[test]
    fn a_short_run_keeps_every_value_where_it_was() {
        let mut columns = Columns::new(100, 1.0);
        for (seconds, value) in
            [(0.0, 1.0), (0.25, 2.0), (1.0, 3.0), (7.0, 4.0), (f64::NAN, 9.0), (0.5, f64::NAN)]
        {
            columns.add(seconds, value);
        }
        let filled: Vec<Extent> = columns.filled().collect();
        assert_eq!(filled.len(), 3);
        assert_eq!(filled[1], Extent { seconds: 0.25, min: 2.0, max: 2.0 });
        assert_eq!((filled[2].min, filled[2].max), (3.0, 4.0));
    }

    #[test]
    fn a_process_that_was_away_is_not_drawn_as_if_it_had_been_there() {
        let mut columns = Columns::new(1000, 100.0);
        for seconds in [1.0, 1.5, 2.0, 50.0, 50.5] {
            columns.add(seconds, 1.0);
        }
        let lengths: Vec<usize> = columns.runs(1.0).iter().map(Vec::len).collect();
        assert_eq!(lengths, [3, 2]);
    }
}
