//! A verdict for each test, and their summary.
//!
//! Bounds: the tests of the suite. Must never know: formats of files and reports.

use serde::Serialize;

use crate::{
    figure::{Better, Unit},
    stats::{self, FAR, Finding, Findings, Scale, TESTS_MIN},
    suite::{By, Suite, Test, median},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// Changed for the worse.
    Slower,
    /// Changed for the better.
    Faster,
    /// One far value: worth a re-run.
    Outlier,
    /// Nothing is known of its noise.
    Unknown,
    /// In no run of the baseline.
    New,
    /// In no run of the candidate.
    Gone,
    /// No more than chance makes.
    Noise,
}

/// In the order of tables.
pub(crate) const VERDICTS: [Verdict; 7] = [
    Verdict::Slower,
    Verdict::Faster,
    Verdict::Outlier,
    Verdict::Unknown,
    Verdict::New,
    Verdict::Gone,
    Verdict::Noise,
];

impl Verdict {
    /// Text of the verdict, for times and rates.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::Outlier => "lone outlier, worth a re-run",
            Self::Unknown => "unknown",
            Self::New => "new",
            Self::Gone => "gone",
            Self::Noise => "within its noise",
        }
    }

    /// Text of the verdict, for figures in `unit`: memory is not slower.
    pub(crate) fn label_for(self, unit: &Unit) -> &'static str {
        match (self, unit) {
            (_, Unit::Seconds | Unit::PerSecond) => self.label(),
            (Self::Slower, _) => "worse",
            (Self::Faster, _) => "better",
            _ => self.label(),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct TestResult {
    /// Name of the test, which identifies it together with the unit.
    pub(crate) name: String,
    /// Of all values.
    #[serde(serialize_with = "unit_name")]
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    /// Source of `better`.
    pub(crate) better_by: By,
    /// By run; none where a run has none.
    pub(crate) baseline: Vec<Option<f64>>,
    /// Value of each run of the candidate; `None` where a run has none.
    pub(crate) candidate: Vec<Option<f64>>,
    /// Geometric mean of the baseline, arithmetic where there are zeros or negative values.
    pub(crate) baseline_mean: Option<f64>,
    /// Geometric mean of the candidate, arithmetic where there are zeros or negative values.
    pub(crate) candidate_mean: Option<f64>,
    /// Candidate over baseline, less 1; none where the baseline has zeros or negative values.
    pub(crate) change: Option<f64>,
    /// Standard deviation of one value, as a part of it.
    pub(crate) noise: Option<f64>,
    /// Smallest change, as a part, that would be called one if it were the only one.
    pub(crate) tells: Option<f64>,
    /// Probability of such a change by chance.
    pub(crate) p: Option<f64>,
    /// The same, corrected for the number of tests.
    pub(crate) q: Option<f64>,
    /// How the candidate compares with the baseline.
    pub(crate) verdict: Verdict,
    /// The reason, where the figures do not show it.
    pub(crate) why: Option<String>,
}

fn unit_name<S: serde::Serializer>(unit: &Unit, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(unit.name())
}

/// All tests together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SuiteSummary {
    /// How many tests have each verdict.
    pub(crate) counts: Vec<(Verdict, usize)>,
    /// Tests expected to look like lone outliers when nothing changed.
    pub(crate) outliers_by_chance: f64,
    /// Sum over the tests measured in seconds that both sides have; parts of others left out.
    pub(crate) sum_baseline_seconds: Option<f64>,
    /// The same sum for the candidate.
    pub(crate) sum_candidate_seconds: Option<f64>,
    /// Median of the changes for the better, as a part: -0.02 is 2 % worse.
    pub(crate) median_improvement: Option<f64>,
    /// Mean of them (geometric), each test counting the same.
    pub(crate) mean_improvement: Option<f64>,
    /// Probability that the whole is faster: that the mean improvement is above zero.
    pub(crate) p_faster: Option<f64>,
    /// Over how many tests.
    pub(crate) tests: usize,
}

/// How it was judged.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Method {
    /// Part of the calls that may be wrong.
    pub(crate) error: f64,
    /// Smallest change that is called one, as a part.
    pub(crate) least: f64,
    /// Standard deviation between whole runs, as a fraction; `None` where it cannot be estimated.
    pub(crate) run_noise: Option<f64>,
    /// Tests that spreads are pooled over.
    pub(crate) pooled_over: usize,
    /// Weight of the pooled spread, in degrees of freedom.
    pub(crate) pooled_df: f64,
    /// Degrees of freedom of the tail; none is the normal distribution's.
    pub(crate) tail_df: Option<f64>,
    /// Values of runs left out that the tail was fitted to.
    pub(crate) tail_values: usize,
}

/// The verdicts of a comparison, and the figures behind them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// Parameters of the judgement, and what was fitted to the values.
    pub(crate) method: Method,
    /// Figures over all tests together.
    pub(crate) whole: SuiteSummary,
    pub(crate) notes: Vec<String>,
    /// In the order of verdicts, then by name.
    pub(crate) tests: Vec<TestResult>,
}

/// Judges the suite. `error`: the part of calls that may be wrong; `least`: changes below this part
/// are not called.
pub(crate) fn judge_suite(suite: &Suite, error: f64, least: f64) -> Outcome {
    let values: Vec<_> = suite.tests.iter().map(|test| test.values.clone()).collect();
    let findings = stats::find(&values, suite.shared_runs, error);
    let mut tests: Vec<TestResult> = suite
        .tests
        .iter()
        .zip(&findings.tests)
        .map(|(test, finding)| judge_test(test, finding.as_ref(), error, least))
        .collect();
    let whole = summarise(suite, &values, &findings, &tests);
    let mut notes = notes(suite, &findings);
    let by_name =
        suite.tests.iter().filter(|test| test.better_by == By::Name && is_other(&test.unit));
    if by_name.clone().next().is_some() {
        notes.push(format!(
            "of {} tests without a known unit, the name decided which values are better \
             (--higher-is-better PATTERN, --lower-is-better PATTERN)",
            by_name.count()
        ));
    }
    tests.sort_by(|a, b| (a.verdict, &a.name).cmp(&(b.verdict, &b.name)));
    let method = Method {
        error,
        least,
        run_noise: findings.run_spread.map(f64::exp_m1),
        pooled_over: findings.pooled,
        pooled_df: findings.prior_df,
        tail_df: findings.tail_df.is_finite().then_some(findings.tail_df),
        tail_values: findings.tail_values,
    };
    Outcome { method, whole, notes, tests }
}

fn is_other(unit: &Unit) -> bool {
    matches!(unit, Unit::Other(_) | Unit::Percent)
}

fn notes(suite: &Suite, findings: &Findings) -> Vec<String> {
    let mut notes = Vec::new();
    let lengths = |of: fn(&Test) -> usize| suite.tests.iter().map(of).max().unwrap_or(0);
    let baseline = lengths(|test| test.values.baseline.len());
    let candidate = lengths(|test| test.values.candidate.len());
    if !suite.shared_runs {
        notes.push(
            "one file on each side: repetitions inside it count as runs. What makes two \
             invocations differ is not in them; several files on each side show it"
                .into(),
        );
    } else if baseline + candidate <= 2 {
        notes.push(
            "one baseline run and one candidate run: there are ratios, and nothing says what they \
             mean. Name more baseline runs"
                .into(),
        );
    } else if findings.pooled == 0 {
        notes.push(format!(
            "fewer than {TESTS_MIN} comparable tests, or most do not vary: each test is judged by \
             its own values alone, and few runs detect large changes only"
        ));
    }
    if suite.shared_runs && candidate == 1 && baseline > 1 {
        notes.push(
            "one candidate run: what is far in it may be that run's; two or more distinguish a \
             change from an outlier"
                .into(),
        );
    }
    notes
}

fn judge_test(test: &Test, finding: Option<&Finding>, error: f64, least: f64) -> TestResult {
    let mut judged = TestResult {
        name: test.name.clone(),
        unit: test.unit.clone(),
        better: test.better,
        better_by: test.better_by,
        baseline: test.values.baseline.clone(),
        candidate: test.values.candidate.clone(),
        baseline_mean: middle(&test.values.baseline),
        candidate_mean: middle(&test.values.candidate),
        change: None,
        noise: None,
        tells: None,
        p: None,
        q: None,
        verdict: Verdict::Unknown,
        why: None,
    };
    let Some(finding) = finding else {
        let has_baseline = judged.baseline_mean.is_some();
        judged.verdict = if has_baseline { Verdict::Gone } else { Verdict::New };
        judged.why = match (has_baseline, test.without_value) {
            (true, true) => Some("failed or skipped in the candidate".into()),
            (false, true) => Some("failed or skipped on both sides".into()),
            (_, false) => None,
        };
        return judged;
    };
    let by_ratio = finding.scale == Scale::Ratio;
    if by_ratio {
        judged.change = Some(finding.difference.exp_m1());
        judged.noise = finding.spread.map(f64::exp_m1);
        judged.tells = finding.tells.map(f64::exp_m1);
    }
    judged.p = finding.p;
    judged.q = finding.q;
    let improves = (finding.difference > 0.0) == (test.better == Better::More);
    let called =
        finding.q.is_some_and(|q| q <= error) && finding.outside && finding.difference != 0.0;
    let large = !by_ratio || finding.difference.abs() >= least.ln_1p();
    // A change that goes away with one value of several is that value's.
    let lone = finding.far.filter(|_| finding.p_without_far.is_none_or(|p| p > error));
    let side = if improves { Verdict::Faster } else { Verdict::Slower };
    (judged.verdict, judged.why) = match (finding.p, lone) {
        (_, Some(index)) => (
            Verdict::Outlier,
            Some(format!("run {} of the candidate is far from the others", index + 1)),
        ),
        (None, _) if finding.difference == 0.0 && finding.constant => {
            (Verdict::Noise, Some("all values are the same".into()))
        }
        (None, _) if finding.constant => (
            Verdict::Outlier,
            Some("all values of the baseline are the same, and this one is not".into()),
        ),
        (None, _) => (Verdict::Unknown, Some("one value on each side".into())),
        (Some(_), _) if called && large => (side, None),
        (Some(_), _) if called => {
            (Verdict::Noise, Some(format!("a change, and below {:.1} %", least * 100.0)))
        }
        // Far by itself, but not rarer than the most distant of all tests.
        (Some(p), _) if p <= FAR && large => (Verdict::Outlier, None),
        (Some(_), _) => (Verdict::Noise, None),
    };
    if !by_ratio && judged.why.is_none() {
        judged.why =
            Some("has zero or negative values: judged by the difference, by itself".into());
    }
    judged
}

/// Geometric mean, or arithmetic where there is none.
fn middle(values: &[Option<f64>]) -> Option<f64> {
    let all: Vec<f64> = values.iter().flatten().copied().collect();
    let count = all.len() as f64;
    if all.is_empty() {
        None
    } else if all.iter().all(|value| *value > 0.0) {
        Some((all.iter().map(|value| value.ln()).sum::<f64>() / count).exp())
    } else {
        Some(all.iter().sum::<f64>() / count)
    }
}

fn summarise(
    suite: &Suite,
    values: &[stats::Values],
    findings: &Findings,
    tests: &[TestResult],
) -> SuiteSummary {
    let higher: Vec<Option<bool>> =
        suite.tests.iter().map(|test| Some(test.better == Better::More)).collect();
    let found = stats::overall::estimate_overall(values, &higher, findings, suite.shared_runs);
    let improvement = |judged: &TestResult| {
        let change = judged.change?.ln_1p();
        Some(if judged.better == Better::More { change } else { -change })
    };
    let improvements: Vec<f64> = tests.iter().filter_map(improvement).collect();
    let sums = suite
        .tests
        .iter()
        .zip(tests)
        .filter(|(test, _)| test.unit == Unit::Seconds && !test.has_parts)
        .filter_map(|(_, judged)| Some((judged.baseline_mean?, judged.candidate_mean?)));
    let sums = sums.fold(None, |sum: Option<(f64, f64)>, (before, after)| {
        let (all_before, all_after) = sum.unwrap_or_default();
        Some((all_before + before, all_after + after))
    });
    let judged_by_p = tests.iter().filter(|test| test.p.is_some()).count();
    SuiteSummary {
        counts: VERDICTS
            .into_iter()
            .map(|verdict| (verdict, tests.iter().filter(|test| test.verdict == verdict).count()))
            .collect(),
        outliers_by_chance: judged_by_p as f64 * FAR,
        sum_baseline_seconds: sums.map(|(before, _)| before),
        sum_candidate_seconds: sums.map(|(_, after)| after),
        median_improvement: median(&improvements).map(f64::exp_m1),
        mean_improvement: found.as_ref().map(|found| found.improvement.exp_m1()),
        p_faster: found.as_ref().and_then(|found| found.p_better),
        tests: found.map_or(0, |found| found.tests),
    }
}

impl SuiteSummary {
    /// How many tests have a verdict.
    pub(crate) fn count(&self, of: Verdict) -> usize {
        self.counts.iter().find(|(verdict, _)| *verdict == of).map_or(0, |(_, count)| *count)
    }
}
