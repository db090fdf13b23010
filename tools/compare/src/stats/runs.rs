//! Differences between whole runs: a machine that was slower for an hour makes every test of the
//! run slower.
//!
//! The offset of a run is the median of the offsets of its tests, which a few changed tests cannot
//! move. How much offsets vary is estimated within each side, from as many degrees of freedom as
//! there are runs less sides: with three runs against one, two.
//!
//! Bounds: tests and runs. Must never know: what is measured.

use super::{Scale, TESTS_MIN, TransformedTest, count, mean};
use crate::suite::median;

/// Offsets of whole runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    /// Whether it is based on enough tests.
    pub(crate) known: bool,
    baseline: Vec<f64>,
    candidate: Vec<f64>,
    /// Between runs of one side.
    pub(crate) variance: f64,
    /// Its degrees of freedom.
    pub(crate) df: f64,
}

impl Runs {
    /// From the tests that have values in all runs of a side; known only when those are at least
    /// [`TESTS_MIN`] on each side that has several runs, and one has.
    pub(crate) fn fit(tests: &[TransformedTest]) -> Self {
        let mut runs = Self::default();
        let mut squares = 0.0;
        for of in [
            |test: &TransformedTest| test.baseline.clone(),
            |test: &TransformedTest| test.candidate.clone(),
        ] {
            let sides: Vec<Vec<Option<f64>>> =
                tests.iter().filter(|test| test.scale == Scale::Ratio).map(of).collect();
            let length = sides.iter().map(Vec::len).max().unwrap_or(0);
            let mut offsets = vec![0.0; length];
            if length > 1 {
                let Some(found) = side_offsets(&sides, length) else { return Self::default() };
                offsets = found;
                squares += offsets.iter().map(|offset| offset * offset).sum::<f64>();
                runs.df += length as f64 - 1.0;
            }
            if runs.baseline.is_empty() {
                runs.baseline = offsets
            } else {
                runs.candidate = offsets
            }
        }
        if runs.df > 0.0 {
            runs.known = true;
            runs.variance = squares / runs.df;
        }
        runs
    }

    /// Takes the offsets from a test's values.
    pub(crate) fn remove(&self, test: &mut TransformedTest) {
        for (values, offsets) in
            [(&mut test.baseline, &self.baseline), (&mut test.candidate, &self.candidate)]
        {
            for (value, offset) in values.iter_mut().zip(offsets) {
                *value = value.map(|value| value - offset);
            }
        }
    }

    /// The amount that [`Runs::remove`] took from the difference of the means: 0 where a test has
    /// values in all runs.
    pub(crate) fn difference(&self, test: &TransformedTest) -> f64 {
        if test.scale != Scale::Ratio {
            return 0.0;
        }
        let taken = |values: &[Option<f64>], offsets: &[f64]| {
            let there = values.iter().zip(offsets).filter(|(value, _)| value.is_some());
            there.map(|(_, offset)| offset).sum::<f64>() / count(values).max(1) as f64
        };
        taken(&test.candidate, &self.candidate) - taken(&test.baseline, &self.baseline)
    }
}

fn side_offsets(sides: &[Vec<Option<f64>>], length: usize) -> Option<Vec<f64>> {
    let whole: Vec<&Vec<Option<f64>>> = sides.iter().filter(|side| count(side) == length).collect();
    if whole.len() < TESTS_MIN {
        return None;
    }
    let mut offsets: Vec<f64> = (0..length)
        .map(|run| {
            let off: Vec<f64> =
                whole.iter().filter_map(|side| Some((*side.get(run)?)? - mean(side))).collect();
            median(&off).unwrap_or(0.0)
        })
        .collect();
    let centre = offsets.iter().sum::<f64>() / length as f64;
    for offset in &mut offsets {
        *offset -= centre;
    }
    Some(offsets)
}
