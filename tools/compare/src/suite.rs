//! The tests of both sides, with the value of each in each run.
//!
//! A test is a name with a unit. Flags state which values are better; else its file, else its unit
//! and name. A file that has a test several times (turns, repetitions) counts as one run with the
//! median of them; with one file on each side, its repetitions count as runs.
//!
//! Bounds: [`TESTS_MAX`], [`RUNS_MAX`]. Must never know: formats, statistics.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::{
    figure::{Better, Unit, by_name},
    input::Run,
    stats::Values,
};

/// Most tests of all files together.
pub(crate) const TESTS_MAX: usize = 100_000;
pub(crate) const RUNS_MAX: usize = 100;
/// Most repetitions that count as runs.
const REPETITIONS_MAX: usize = 1_000;
/// Decimals of seconds that a coarse clock may have.
const DECIMALS_MAX: i32 = 4;

/// How it was decided which values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum By {
    Flag,
    File,
    Name,
}

/// A test with its values on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    pub(crate) better_by: By,
    pub(crate) values: Values,
    /// Whether it failed or was skipped in all runs of the candidate that name it.
    pub(crate) without_value: bool,
    /// Whether other tests are parts of it.
    pub(crate) has_parts: bool,
}

/// The tests of both sides.
#[derive(Clone, Debug)]
pub(crate) struct Suite {
    pub(crate) tests: Vec<Test>,
    /// Values at one index are of one run; else they are repetitions inside one file.
    pub(crate) shared_runs: bool,
}

/// Patterns of names, `*` for anything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directions<'a> {
    pub(crate) more: &'a [String],
    pub(crate) less: &'a [String],
}

#[derive(Default)]
struct TestValues {
    better: Option<Better>,
    /// By side, by file.
    values: [BTreeMap<usize, Vec<f64>>; 2],
    named_in_candidate: bool,
}

/// Puts the runs side by side. Errors: too many.
pub(crate) fn assemble(
    baseline: &[Run],
    candidate: &[Run],
    directions: &Directions<'_>,
) -> Result<Suite> {
    for (side, runs) in [("baseline", baseline), ("candidate", candidate)] {
        ensure!(
            runs.len() <= RUNS_MAX,
            "{} {side} runs; at most {RUNS_MAX} are compared",
            runs.len()
        );
    }
    let mut gathered: BTreeMap<(String, Unit), TestValues> = BTreeMap::new();
    for (side, runs) in [baseline, candidate].into_iter().enumerate() {
        for (index, run) in runs.iter().enumerate() {
            for reading in &run.readings.list {
                let key = (reading.name.clone(), reading.unit.clone());
                ensure!(
                    gathered.len() < TESTS_MAX || gathered.contains_key(&key),
                    "the files have more than {TESTS_MAX} tests; compare parts of them"
                );
                let test = gathered.entry(key).or_default();
                test.better = test.better.or(reading.better);
                test.named_in_candidate |= side == 1;
                if let (Some(value), Some(values)) = (reading.value, test.values.get_mut(side)) {
                    values.entry(index).or_default().push(value);
                }
            }
        }
    }
    let repeats =
        |test: &TestValues| test.values.iter().any(|side| side.values().any(|all| all.len() > 1));
    let single = baseline.len() == 1 && candidate.len() == 1;
    let shared_runs = !(single && gathered.values().any(repeats));
    let resolution = resolution(&gathered);
    let mut tests: Vec<Test> = gathered
        .into_iter()
        .map(|((name, unit), test)| {
            let [before, after] = test.values;
            let side = |values: BTreeMap<usize, Vec<f64>>, runs: usize| -> Vec<Option<f64>> {
                if shared_runs {
                    (0..runs).map(|run| values.get(&run).and_then(|all| median(all))).collect()
                } else {
                    values.into_values().flatten().take(REPETITIONS_MAX).map(Some).collect()
                }
            };
            let (baseline, candidate) =
                (side(before, baseline.len()), side(after, candidate.len()));
            let any = |values: &[Option<f64>]| values.iter().any(Option::is_some);
            let without_value = test.named_in_candidate && !any(&candidate);
            let (better, better_by) = direction(&name, &unit, test.better, directions);
            let resolution = if unit == Unit::Seconds { resolution } else { 0.0 };
            let values = Values { baseline, candidate, resolution };
            Test { name, unit, better, better_by, values, without_value, has_parts: false }
        })
        .collect();
    // Parts of a test follow it, because names are in order.
    for index in 1..tests.len() {
        let (before, after) = tests.split_at_mut(index);
        if let (Some(whole), Some(part)) = (before.last_mut(), after.first()) {
            let rest = part.name.strip_prefix(whole.name.as_str());
            whole.has_parts =
                rest.is_some_and(|rest| rest.starts_with('/')) && part.unit == whole.unit;
        }
    }
    Ok(Suite { tests, shared_runs })
}

fn direction(
    name: &str,
    unit: &Unit,
    told: Option<Better>,
    directions: &Directions<'_>,
) -> (Better, By) {
    if directions.more.iter().any(|pattern| matches(pattern, name)) {
        (Better::More, By::Flag)
    } else if directions.less.iter().any(|pattern| matches(pattern, name)) {
        (Better::Less, By::Flag)
    } else if let Some(better) = told {
        (better, By::File)
    } else {
        (by_name(name, unit), By::Name)
    }
}

/// Whether `name` fits `pattern`, in which `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for part in parts {
        // The part before was not the last one: its first place is as good as any.
        if let Some(part) = last.replace(part) {
            match rest.split_once(part) {
                Some((_, after)) => rest = after,
                None => return false,
            }
        }
    }
    last.map_or(rest.is_empty(), |part: &str| rest.ends_with(part))
}

/// The last digit in which times of all tests differ, if it is a coarse one; 0 if not.
fn resolution(gathered: &BTreeMap<(String, Unit), TestValues>) -> f64 {
    let times = || {
        let of_time = gathered.iter().filter(|((_, unit), _)| *unit == Unit::Seconds);
        of_time.flat_map(|(_, test)| test.values.iter().flat_map(|side| side.values().flatten()))
    };
    let fits = |decimals: &i32| {
        let scale = 10_f64.powi(*decimals);
        times().all(|value| {
            let scaled = value * scale;
            (scaled - scaled.round()).abs() <= 1e-7 * scaled.abs().max(1.0)
        })
    };
    if times().next().is_none() {
        return 0.0;
    }
    (0..=DECIMALS_MAX).find(fits).map_or(0.0, |decimals| 10_f64.powi(-decimals))
}

/// The middle value, or the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let high = *values.get(middle)?;
    let low = values.get(middle.saturating_sub(1)).copied().unwrap_or(high);
    Some(if values.len().is_multiple_of(2) { f64::midpoint(low, high) } else { high })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::{Kind, Readings};

    fn run(values: &[(&str, f64)]) -> Run {
        let mut readings = Readings::default();
        for (name, value) in values {
            readings.add(name, *value, "s", None).unwrap();
        }
        Run { path: "x".into(), kind: Kind::Csv, readings }
    }

    #[test]
    fn repetitions_are_runs_only_where_there_is_nothing_else() {
        let (one, two) = (run(&[("a", 1.0), ("a", 3.0), ("a", 9.0)]), run(&[("a", 2.0)]));
        let single = assemble(
            std::slice::from_ref(&one),
            std::slice::from_ref(&two),
            &Directions::default(),
        )
        .unwrap();
        assert!(!single.shared_runs);
        assert_eq!(single.tests[0].values.baseline, [Some(1.0), Some(3.0), Some(9.0)]);
        let several = assemble(&[one, two.clone()], &[two], &Directions::default()).unwrap();
        assert!(several.shared_runs);
        assert_eq!(several.tests[0].values.baseline, [Some(3.0), Some(2.0)]);
    }

    #[test]
    fn patterns_stand_for_whole_names() {
        for (pattern, name, fits) in [
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("*", "", true),
            ("a", "ab", false),
            ("*b*", "abc", true),
            ("a*b*c", "acb", false),
            ("*x", "axbx", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn flags_say_more_than_names() {
        let more = ["a*".to_owned()];
        let directions = Directions { more: &more, less: &[] };
        let suite = assemble(&[run(&[("ab", 1.0), ("b", 0.125)])], &[], &directions).unwrap();
        let seen: Vec<_> = suite.tests.iter().map(|test| (test.better, test.better_by)).collect();
        assert_eq!(seen, [(Better::More, By::Flag), (Better::Less, By::Name)]);
        assert_eq!(suite.tests[0].values.resolution, 0.001);
    }

    #[test]
    fn what_has_parts_is_not_summed() {
        let suite =
            assemble(&[run(&[("T", 1.0), ("T/a", 1.0), ("Tb", 1.0)])], &[], &Directions::default());
        let parts: Vec<bool> = suite.unwrap().tests.iter().map(|test| test.has_parts).collect();
        assert_eq!(parts, [true, false, false]);
    }
}
