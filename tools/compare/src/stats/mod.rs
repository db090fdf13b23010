//! Whether a change in a test is real, given the spread of its values without a change.
//!
//! **The model.** Of positive values the logarithms are taken, so that a change is a ratio. The
//! value of test `i` in run `j` is the test's own level, plus the offset of the whole run (`runs`),
//! plus noise of the test. The difference between the means of candidate and baseline is divided by
//! its standard error. That has two parts: the noise of the test, whose variance is moderated by
//! those of all tests ([`prior`]), and the variance between whole runs, which few runs estimate
//! poorly. Degrees of freedom of the sum are Satterthwaite's, so that a change that is no larger
//! than runs differ as a whole is judged with the few degrees of freedom that runs have.
//!
//! **The tail.** The baseline's own runs, each left out in turn, show how often values are far from
//! the others although nothing changed ([`tail`]); no probability is taken as smaller than they
//! allow.
//!
//! **Many tests.** Probabilities are corrected for the number of tests by Benjamini and Hochberg's
//! procedure: of the tests that are called faster or slower, at most the stated part is called so
//! wrongly, on average; when nothing changed at all, that is the probability that any is.
//!
//! **Limits.** One value on each side gives no estimate of noise: there is a ratio and no
//! probability. With fewer than [`TESTS_MIN`] tests nothing is pooled, and each test is judged by
//! its own values alone (Student's t with equal variances). Tests with zero or negative values have
//! no logarithm; they are judged by differences and not pooled.
//!
//! The error rates are checked by simulation in `simulation.rs`.
//!
//! Bounds: time linear in tests and runs, both bounded by the readers. Must never know: units,
//! files, which direction is better.

pub(crate) mod noise;
pub(crate) mod overall;
mod prior;
mod runs;
#[cfg(test)]
mod simulation;
pub(crate) mod special;
mod tail;

pub(crate) use prior::TESTS_MIN;

use prior::{Prior, Squares};
use runs::Runs;
use special::{deviate, two_sided, two_sided_inverse};
use tail::Tail;

/// Probability below which a single far value is worth a re-run.
pub(crate) const FAR: f64 = 0.01;
/// Up to this number of baseline values, a change must be outside their range to be reported.
const RANGE_VALUES_MAX: usize = 5;

/// The values of a test; `None` where a run has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Values {
    /// Values of the baseline, in the order of its runs.
    pub(crate) baseline: Vec<Option<f64>>,
    /// Values of the candidate, in the order of its runs.
    pub(crate) candidate: Vec<Option<f64>>,
    /// Values are multiples of this as far as known; 0 for unknown.
    pub(crate) resolution: f64,
}

/// How values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// By ratio: the logarithms of the values are compared.
    Ratio,
    /// By difference: some are zero or negative.
    Difference,
}

/// Analysis of a test that both sides have.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) scale: Scale,
    /// Candidate less baseline, of means; of logarithms by ratio.
    pub(crate) difference: f64,
    /// Standard deviation of one value; none where there is one value on each side.
    pub(crate) spread: Option<f64>,
    /// That there is such a difference by chance; none where nothing is known of noise.
    pub(crate) p: Option<f64>,
    /// The same, corrected for how many tests were asked.
    pub(crate) q: Option<f64>,
    /// The difference from which on it would be called one, were it the only one.
    pub(crate) tells: Option<f64>,
    /// Whether the mean of the candidate is outside the range of few baseline values.
    pub(crate) outside: bool,
    /// Index of a candidate value that is far from the other ones of the candidate.
    pub(crate) far: Option<usize>,
    /// Probability of the difference without that value.
    pub(crate) p_without_far: Option<f64>,
    /// Whether all baseline values are the same.
    pub(crate) constant: bool,
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Findings {
    /// In the order of the tests; none for a test that one side lacks.
    pub(crate) tests: Vec<Option<Finding>>,
    /// Relative standard deviation between whole runs; `None` when it cannot be estimated.
    pub(crate) run_spread: Option<f64>,
    /// How many tests spreads are pooled over; 0 when they are not.
    pub(crate) pooled: usize,
    /// Weight of the pooled spread, in degrees of freedom.
    pub(crate) prior_df: f64,
    /// Degrees of freedom of the tail; infinite is normal.
    pub(crate) tail_df: f64,
    /// Values of the baseline's own runs that the tail was fitted to.
    pub(crate) tail_values: usize,
}

/// Values of a test: logarithms where there are any.
struct TransformedTest {
    scale: Scale,
    baseline: Vec<Option<f64>>,
    candidate: Vec<Option<f64>>,
    /// Variance that rounding alone makes.
    floor: f64,
    squares: Squares,
}

/// Judges all tests. `shared_runs`: values with the same index are of one run, whose speed as a
/// whole they share. `error` is the part of calls that may be wrong.
pub(crate) fn find(tests: &[Values], shared_runs: bool, error: f64) -> Findings {
    let mut prepared: Vec<TransformedTest> = tests.iter().map(prepare).collect();
    let runs = if shared_runs { Runs::fit(&prepared) } else { Runs::default() };
    for test in &mut prepared {
        if test.scale == Scale::Ratio {
            runs.remove(test);
        }
        test.squares = squares(test);
    }
    let poolable = |test: &&TransformedTest| test.scale == Scale::Ratio && test.squares.df > 0.0;
    let pool: Vec<Squares> = prepared.iter().filter(poolable).map(floored).collect();
    // Without knowing what a run as a whole contributes, spreads of tests of shared runs are not
    // independent, and pooling them would make one fast run look like certainty.
    let prior = if shared_runs && !runs.known { Prior::NONE } else { Prior::fit(&pool) };
    let mut deviates = Vec::new();
    if prior.df > 0.0 {
        for test in prepared.iter().filter(poolable) {
            left_out(test, &test.baseline, prior, |_, p, sign| deviates.push(sign * deviate(p)));
            left_out(test, &test.candidate, prior, |_, p, sign| deviates.push(sign * deviate(p)));
        }
    }
    let tail = Tail::fit(&deviates);
    let asked = prepared.iter().filter(|test| has_both(test)).count().max(1);
    let mut limits = DetectionLimits { error: error / asked as f64, tail, known: Vec::new() };
    let mut findings: Vec<Option<Finding>> = prepared
        .iter()
        .map(|test| has_both(test).then(|| analyse_test(test, prior, &runs, tail, &mut limits)))
        .collect();
    let p: Vec<_> = findings.iter().map(|finding| finding.as_ref()?.p).collect();
    for (finding, q) in findings.iter_mut().zip(correct(&p)) {
        if let Some(finding) = finding {
            finding.q = q;
        }
    }
    Findings {
        tests: findings,
        run_spread: runs.known.then(|| runs.variance.sqrt()),
        pooled: if prior.df > 0.0 { pool.len() } else { 0 },
        prior_df: prior.df,
        tail_df: tail.df,
        tail_values: tail.deviates,
    }
}

fn has_both(test: &TransformedTest) -> bool {
    count(&test.baseline) > 0 && count(&test.candidate) > 0
}

fn count(values: &[Option<f64>]) -> usize {
    values.iter().flatten().count()
}

pub(crate) fn mean(values: &[Option<f64>]) -> f64 {
    values.iter().flatten().sum::<f64>() / count(values).max(1) as f64
}

fn prepare(test: &Values) -> TransformedTest {
    let all = || test.baseline.iter().chain(&test.candidate).flatten().copied();
    let least = test.resolution / 2.0;
    // A value written as 0.00 is less than half of the last digit.
    let liftable = least > 0.0 && all().all(|value| value >= 0.0) && all().any(|value| value > 0.0);
    let scale =
        if all().all(|value| value > 0.0) || liftable { Scale::Ratio } else { Scale::Difference };
    let map = |values: &[Option<f64>]| -> Vec<Option<f64>> {
        let one = |value: f64| match scale {
            Scale::Ratio => value.max(least).ln(),
            Scale::Difference => value,
        };
        values.iter().map(|value| value.map(one)).collect()
    };
    let (baseline, candidate) = (map(&test.baseline), map(&test.candidate));
    // Rounding is uniform over the last digit: its variance is a twelfth of the square.
    let floor = match scale {
        Scale::Ratio => (test.resolution / mean(&baseline).exp()).powi(2) / 12.0,
        Scale::Difference => 0.0,
    };
    TransformedTest { scale, baseline, candidate, floor, squares: Squares { sum: 0.0, df: 0.0 } }
}

fn squares(test: &TransformedTest) -> Squares {
    let mut squares = Squares { sum: 0.0, df: 0.0 };
    for side in [&test.baseline, &test.candidate] {
        if count(side) > 1 {
            let mean = mean(side);
            squares.sum += side.iter().flatten().map(|value| (value - mean).powi(2)).sum::<f64>();
            squares.df += count(side) as f64 - 1.0;
        }
    }
    squares
}

fn floored(test: &TransformedTest) -> Squares {
    Squares { sum: test.squares.sum.max(test.floor * test.squares.df), df: test.squares.df }
}

/// Judges each value of a side against the others of its side, by all that is known of the test's
/// spread without it. `see` gets its index, the probability and the sign.
fn left_out(
    test: &TransformedTest,
    side: &[Option<f64>],
    prior: Prior,
    mut see: impl FnMut(usize, f64, f64),
) {
    let values = count(side);
    if values < 2 {
        return;
    }
    let mean = mean(side);
    let others = values as f64 - 1.0;
    for (index, value) in side.iter().enumerate() {
        let Some(value) = value else { continue };
        // From the mean of the others.
        let away = (value - mean) * values as f64 / others;
        let own = Squares {
            sum: (test.squares.sum - away * away * others / (others + 1.0)).max(0.0),
            df: test.squares.df - 1.0,
        };
        let (variance, df) = prior.moderate(own);
        let variance = variance.max(test.floor);
        if df > 0.0 && variance > 0.0 {
            see(
                index,
                two_sided(away / (variance * (1.0 + 1.0 / others)).sqrt(), df),
                away.signum(),
            );
        }
        // Of two values each is as far from the other.
        if values == 2 {
            return;
        }
    }
}

/// Smallest detectable differences, by the variances' degrees of freedom: most tests share them.
struct DetectionLimits {
    error: f64,
    tail: Tail,
    known: Vec<(f64, f64)>,
}

impl DetectionLimits {
    /// In standard errors.
    fn errors(&mut self, df: f64) -> f64 {
        let near = |known: &&(f64, f64)| (known.0 / df - 1.0).abs() < 0.02;
        if let Some((_, errors)) = self.known.iter().find(near) {
            return *errors;
        }
        let model = two_sided_inverse(self.error, df);
        let mut errors = model;
        // Widening only raises the detectable difference.
        while self.tail.widen(two_sided(errors, df)) > self.error && errors < model * 1e3 {
            errors *= 1.05;
        }
        if self.known.len() < 256 {
            self.known.push((df, errors));
        }
        errors
    }
}

fn analyse_test(
    test: &TransformedTest,
    prior: Prior,
    runs: &Runs,
    tail: Tail,
    limits: &mut DetectionLimits,
) -> Finding {
    let (n, m) = (count(&test.baseline), count(&test.candidate));
    let difference = mean(&test.candidate) - mean(&test.baseline) + runs.difference(test);
    let pooled = test.scale == Scale::Ratio;
    let prior = if pooled { prior } else { Prior::NONE };
    // A spread of its own is needed: one value on each side is a ratio.
    let (own, df) = if test.squares.df > 0.0 { prior.moderate(test.squares) } else { (0.0, 0.0) };
    let own = own.max(test.floor);
    let between = if pooled && runs.known { runs.variance } else { 0.0 };
    let variance = own + between;
    let scatter = 1.0 / n as f64 + 1.0 / m as f64;
    let judge = |difference: f64, scatter: f64| {
        if df <= 0.0 || variance <= 0.0 {
            return None;
        }
        let p = two_sided(
            difference / (variance * scatter).sqrt(),
            combine_df(own, df, between, runs.df),
        );
        Some(if pooled { tail.widen(p) } else { p })
    };
    let mut far = None;
    if m > 1 && df > 0.0 {
        left_out(test, &test.candidate, prior, |index, p, _| {
            let p = if pooled { tail.widen(p) } else { p } * m as f64;
            if m > 2 && p <= FAR && far.is_none_or(|(_, least)| p < least) {
                far = Some((index, p));
            }
        });
    }
    let p_without_far = far.and_then(|(index, _)| {
        let gone = test.candidate.get(index).copied().flatten()?;
        let rest = (mean(&test.candidate) * m as f64 - gone) / (m as f64 - 1.0);
        let difference = rest - mean(&test.baseline) + runs.difference(test);
        judge(difference, 1.0 / n as f64 + 1.0 / (m as f64 - 1.0))
    });
    let p = judge(difference, scatter);
    let standard_error = (variance * scatter).sqrt();
    let tells = p
        .map(|_| limits.errors(combine_df(own, df, between, runs.df)) * standard_error)
        .filter(|_| df > 0.0);
    let base = || test.baseline.iter().flatten().copied();
    let (low, high) =
        base().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    let candidate = mean(&test.baseline) + difference;
    Finding {
        scale: test.scale,
        difference,
        spread: (test.squares.df > 0.0).then(|| variance.sqrt()),
        p,
        q: None,
        tells,
        outside: n > RANGE_VALUES_MAX || n == 1 || candidate < low || candidate > high,
        far: far.map(|(index, _)| index),
        p_without_far,
        constant: n > 1 && low == high,
    }
}

/// Degrees of freedom of a sum of two variances (Satterthwaite).
fn combine_df(own: f64, own_df: f64, between: f64, between_df: f64) -> f64 {
    let part = |variance: f64, df: f64| if df > 0.0 { variance * variance / df } else { 0.0 };
    let whole = part(own, own_df) + part(between, between_df);
    if whole > 0.0 { (own + between).powi(2) / whole } else { own_df }
}

/// Benjamini and Hochberg: of the tests up to a `q`, so large a part may be wrong. In the order of
/// the probabilities.
pub(crate) fn correct(probabilities: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut order: Vec<(f64, usize)> =
        probabilities.iter().enumerate().filter_map(|(index, p)| Some(((*p)?, index))).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut corrected = vec![None; probabilities.len()];
    let mut least = 1.0_f64;
    for (rank, (p, index)) in order.iter().enumerate().rev() {
        least = least.min(p * order.len() as f64 / (rank as f64 + 1.0));
        if let Some(q) = corrected.get_mut(*index) {
            *q = Some(least);
        }
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(baseline: &[f64], candidate: &[f64], resolution: f64) -> Values {
        let some = |values: &[f64]| values.iter().copied().map(Some).collect();
        Values { baseline: some(baseline), candidate: some(candidate), resolution }
    }

    fn single(baseline: &[f64], candidate: &[f64]) -> Finding {
        find(&[values(baseline, candidate, 0.0)], true, 0.05).tests.remove(0).unwrap()
    }

    #[test]
    fn one_test_by_itself_is_students_t() {
        // Logarithms 0, 1, 2 against 5: pooled variance 1 with 2 degrees of freedom.
        let e = |power: f64| power.exp();
        let finding = single(&[e(0.0), e(1.0), e(2.0)], &[e(5.0)]);
        let t = 4.0 / (4.0_f64 / 3.0).sqrt();
        assert!((finding.difference - 4.0).abs() < 1e-9);
        assert!((finding.p.unwrap() - two_sided(t, 2.0)).abs() < 1e-9);
        assert_eq!(finding.p, finding.q);
        assert!((finding.tells.unwrap() - 4.3027 * (4.0_f64 / 3.0).sqrt()).abs() < 1e-2);
    }

    #[test]
    fn one_value_on_each_side_is_a_ratio_and_nothing_else() {
        let finding = single(&[2.0], &[3.0]);
        assert!((finding.difference.exp() - 1.5).abs() < 1e-9);
        assert_eq!((finding.p, finding.q, finding.spread, finding.tells), (None, None, None, None));
    }

    #[test]
    fn zero_and_negative_values_are_judged_by_difference() {
        let finding = single(&[0.0, -1.0, 1.0], &[0.5]);
        assert_eq!(finding.scale, Scale::Difference);
        assert!((finding.difference - 0.5).abs() < 1e-12 && finding.p.unwrap() > 0.5);
        let equal = single(&[0.0, 0.0, 0.0], &[4.0]);
        assert!(equal.constant && equal.p.is_none(), "no spread is not certainty");
    }

    #[test]
    fn a_zero_of_a_coarse_clock_is_less_than_its_last_digit() {
        let tests = [values(&[0.0, 0.001, 0.0], &[0.001], 0.001)];
        let finding = find(&tests, true, 0.05).tests.remove(0).unwrap();
        assert_eq!(finding.scale, Scale::Ratio);
        assert!(finding.p.unwrap() > 0.2, "{finding:?}");
        let tests = [values(&[0.001, 0.001, 0.001], &[0.002], 0.001)];
        let finding = find(&tests, true, 0.05).tests.remove(0).unwrap();
        assert!(finding.p.unwrap() > 0.05 && finding.constant, "{finding:?}");
    }

    #[test]
    fn many_probabilities_are_corrected_together() {
        let corrected = correct(&[Some(0.01), Some(0.04), None, Some(0.03), Some(0.9)]);
        assert_eq!(corrected[2], None);
        let q: Vec<f64> = corrected.into_iter().flatten().collect();
        for (got, wanted) in q.iter().zip([0.04, 0.16 / 3.0, 0.16 / 3.0, 0.9]) {
            assert!((got - wanted).abs() < 1e-12, "{q:?}");
        }
    }

    #[test]
    fn one_far_run_of_several_is_named() {
        let finding = single(&[1.0, 1.01, 0.99, 1.0], &[1.0, 1.9, 1.01, 0.99]);
        assert_eq!(finding.far, Some(1));
        assert!(finding.p_without_far.unwrap() > 0.5);
    }
}
