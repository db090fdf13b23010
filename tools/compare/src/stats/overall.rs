//! Whether the whole is faster: one probability over all tests.
//!
//! Tests are resampled with replacement, because other tests of the same kind might have been
//! selected; in each resample, the mean change is shifted by a random offset of whole runs. That
//! part is drawn from Student's distribution with the runs' own spread and degrees of freedom:
//! three runs can be resampled in ten ways only, which would make their spread look smaller than it
//! is.
//!
//! Bounds: [`WORK_MAX`] additions. Must never know: units.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

use super::{Findings, Scale, Values, count, noise};

/// Number of resamples, where time allows.
const RESAMPLES: usize = 4_000;
const RESAMPLES_MIN: usize = 200;
/// Additions in all resamples together.
const WORK_MAX: usize = 50_000_000;
/// The same runs give the same probability.
const SEED: u64 = 0x7468_696d_626c_6514;

/// Analysis of all tests together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OverallEffect {
    /// Mean of the logarithms of improvements (positive is better), each test counting the same.
    pub(crate) improvement: f64,
    /// Probability that it is above zero; none when nothing is known of noise.
    pub(crate) p_better: Option<f64>,
    /// Tests that count.
    pub(crate) tests: usize,
}

/// `higher[i]`: whether more is better of test `i`; none leaves it out. None without tests that
/// count.
pub(crate) fn estimate_overall(
    tests: &[Values],
    higher: &[Option<bool>],
    findings: &Findings,
    shared_runs: bool,
) -> Option<OverallEffect> {
    let used: Vec<(&Values, f64, f64, f64)> = tests
        .iter()
        .zip(higher)
        .zip(&findings.tests)
        .filter_map(|((values, higher), finding)| {
            let finding = finding.as_ref().filter(|finding| finding.scale == Scale::Ratio)?;
            let sign = if (*higher)? { 1.0 } else { -1.0 };
            let scatter =
                1.0 / count(&values.baseline) as f64 + 1.0 / count(&values.candidate) as f64;
            let error = finding.spread.map_or(0.0, |spread| spread * scatter.sqrt());
            Some((values, sign, sign * finding.difference, error))
        })
        .collect();
    if used.is_empty() {
        return None;
    }
    let number = used.len() as f64;
    let improvement = used.iter().map(|(_, _, change, _)| change).sum::<f64>() / number;
    let whole = OverallEffect { improvement, p_better: None, tests: used.len() };
    let Some((variance, df)) = run_error(&used, shared_runs) else { return Some(whole) };
    let rng = &mut ChaCha20Rng::seed_from_u64(SEED);
    let resamples = (WORK_MAX / used.len()).clamp(RESAMPLES_MIN, RESAMPLES);
    let mut better = 0.0;
    for _ in 0..resamples {
        let mut sum = 0.0;
        // A few tests do not represent others; their own noise is in the runs' spread.
        if used.len() < super::TESTS_MIN {
            sum = improvement * number;
        } else {
            for _ in 0..used.len() {
                sum +=
                    used.get(rng.gen_range(0..used.len())).map_or(0.0, |(_, _, change, _)| *change);
            }
        }
        let drawn = sum / number + variance.sqrt() * student(rng, df);
        better += if drawn > 0.0 { 1.0 } else { 0.0 };
    }
    // Neither certain nor impossible after this number of draws.
    let edge = 0.5 / resamples as f64;
    let p = (better / resamples as f64).clamp(edge, 1.0 - edge);
    Some(OverallEffect { p_better: Some(p), ..whole })
}

/// The squared standard error of the mean change that runs make, and its degrees of freedom.
fn run_error(used: &[(&Values, f64, f64, f64)], shared_runs: bool) -> Option<(f64, f64)> {
    if !shared_runs {
        // Values of different tests have nothing in common: their errors add up.
        let df: usize = used
            .iter()
            .map(|(v, ..)| (count(&v.baseline) + count(&v.candidate)).saturating_sub(2))
            .sum();
        let number = used.len() as f64;
        let error =
            used.iter().map(|(_, _, _, error)| error * error).sum::<f64>() / (number * number);
        return (df > 0).then_some((error, df as f64));
    }
    let (mut squares, mut df, mut scatter) = (0.0, 0.0, 0.0);
    for of in [|v: &Values| v.baseline.clone(), |v: &Values| v.candidate.clone()] {
        let sides: Vec<(Vec<Option<f64>>, f64)> =
            used.iter().map(|(values, sign, ..)| (of(values), *sign)).collect();
        let length = sides.iter().map(|(side, _)| side.len()).max()?;
        scatter += 1.0 / length as f64;
        if length < 2 {
            continue;
        }
        // The mean logarithm of each run, over the tests that are in all of them.
        let mut sums = vec![0.0; length];
        let mut there = 0.0;
        for (side, sign) in sides.iter().filter(|(side, _)| count(side) == length) {
            there += 1.0;
            for (sum, value) in sums.iter_mut().zip(side.iter().flatten()) {
                *sum += sign * value.max(f64::MIN_POSITIVE).ln();
            }
        }
        if there == 0.0 {
            return None;
        }
        let means: Vec<f64> = sums.iter().map(|sum| sum / there).collect();
        let centre = means.iter().sum::<f64>() / length as f64;
        squares += means.iter().map(|mean| (mean - centre).powi(2)).sum::<f64>();
        df += length as f64 - 1.0;
    }
    (df > 0.0).then_some((squares / df * scatter, df))
}

/// A deviate of Student's t; `df` is a whole number.
fn student(rng: &mut impl Rng, df: f64) -> f64 {
    if df > 200.0 { noise::normal(rng) } else { noise::heavy(rng, df.max(1.0) as usize) }
}
