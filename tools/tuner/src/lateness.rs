//! Latency of a program: delay of answers or beats after they were due, and the goal that the user
//! sets for it.
//!
//! Bounds: [`SAMPLES_MAX`] values of one run. Must never know: the source of the values.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Values of one run that are kept; more are not asked for.
pub(crate) const SAMPLES_MAX: usize = 200_000;

/// Values of one run, in milliseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    millis: Vec<f64>,
    /// Answers that did not come or were wrong, and lines that report a miss.
    misses: u64,
    /// Why the last of them was one.
    miss: Option<String>,
}

/// Statistics of one run's values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lateness {
    /// Number of values that the percentiles are taken from.
    pub(crate) count: u64,
    pub(crate) p50_millis: f64,
    pub(crate) p90_millis: f64,
    pub(crate) p99_millis: f64,
    pub(crate) max_millis: f64,
    /// Answers that did not come or were wrong, and lines that report a miss.
    pub(crate) misses: u64,
    /// Why the last of them was one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) miss: Option<String>,
}

impl Samples {
    /// A beat or an answer that came so late.
    pub(crate) fn record_delay(&mut self, millis: f64) {
        if millis.is_finite() && self.millis.len() < SAMPLES_MAX {
            self.millis.push(millis.max(0.0));
        }
    }

    /// One that did not come or was wrong.
    pub(crate) fn record_miss(&mut self, why: &str) {
        self.misses += 1;
        self.miss = Some(why.chars().take(200).collect());
    }

    /// Those of another source.
    pub(crate) fn add(&mut self, other: Self) {
        let room = SAMPLES_MAX.saturating_sub(self.millis.len());
        self.millis.extend(other.millis.into_iter().take(room));
        self.misses += other.misses;
        self.miss = self.miss.take().or(other.miss);
    }

    pub(crate) fn summary(mut self) -> Lateness {
        self.millis.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let rank = (self.millis.len() as f64 * part).ceil() as usize;
            self.millis.get(rank.max(1) - 1).or(self.millis.last()).copied().unwrap_or(0.0)
        };
        Lateness {
            count: self.millis.len() as u64,
            p50_millis: at(0.5),
            p90_millis: at(0.9),
            p99_millis: at(0.99),
            max_millis: at(1.0),
            misses: self.misses,
            miss: self.miss,
        }
    }
}

/// The judged statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Figure {
    P50,
    P90,
    P99,
    Max,
    Misses,
}

/// A bound on it: `p99<50ms`, `max<1s`, `misses<1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Goal {
    pub(crate) figure: Figure,
    /// Milliseconds, or a number of misses; what is judged stays below.
    pub(crate) below: f64,
}

impl Goal {
    /// The judged statistic of one run.
    pub(crate) fn statistic(self, lateness: &Lateness) -> f64 {
        match self.figure {
            Figure::P50 => lateness.p50_millis,
            Figure::P90 => lateness.p90_millis,
            Figure::P99 => lateness.p99_millis,
            Figure::Max => lateness.max_millis,
            Figure::Misses => lateness.misses as f64,
        }
    }

    /// A run meets it; one with answers that did not come only if misses are what is counted.
    pub(crate) fn is_met(self, lateness: &Lateness) -> bool {
        self.statistic(lateness) < self.below
            && (self.figure == Figure::Misses || lateness.misses == 0)
    }

    pub(crate) fn unit(self) -> &'static str {
        if self.figure == Figure::Misses { "" } else { " ms" }
    }
}

impl Figure {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::Max => "max",
            Self::Misses => "misses",
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.below.fract() == 0.0 { 0 } else { 1 };
        write!(f, "{}<{:.digits$}{}", self.figure.name(), self.below, self.unit().trim())
    }
}

/// `1.5ms` is 1.5 and `ms`.
pub(crate) fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit))
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let advice = || {
            format!("`{text}` is no goal; goals are such as p99<50ms, p50<800us, max<1s, misses<1")
        };
        let (figure, bound) = text.split_once('<').ok_or_else(advice)?;
        let figures = [Figure::P50, Figure::P90, Figure::P99, Figure::Max, Figure::Misses];
        let figure = figures.into_iter().find(|known| known.name() == figure.trim());
        let figure = figure.ok_or_else(advice)?;
        let (number, unit) = number_and_unit(bound.trim()).ok_or_else(advice)?;
        let scale = match (figure, unit.trim()) {
            (Figure::Misses, "") => 1.0,
            (Figure::Misses, _) => return Err(advice()),
            (_, "us") => 0.001,
            (_, "ms") => 1.0,
            (_, "s") => 1_000.0,
            _ => return Err(advice()),
        };
        let below = number * scale;
        if !below.is_finite() || below <= 0.0 {
            return Err(format!("`{text}`: nothing is below 0"));
        }
        Ok(Self { figure, below })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_read_as_they_are_written() {
        for (text, figure, below) in [
            ("p99<50ms", Figure::P99, 50.0),
            ("max < 1s", Figure::Max, 1000.0),
            ("p50<800us", Figure::P50, 0.8),
            ("misses<1", Figure::Misses, 1.0),
        ] {
            assert_eq!(text.parse(), Ok(Goal { figure, below }), "{text}");
        }
        assert_eq!("p99<50ms".parse::<Goal>().unwrap().to_string(), "p99<50ms");
        for text in ["p99", "p98<1ms", "p99<50", "misses<1ms", "p99<0ms", "p99<-1ms", "p99<xms", ""]
        {
            assert!(text.parse::<Goal>().is_err(), "{text}");
        }
    }

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let mut samples = Samples::default();
        for number in 0..1000 {
            samples.record_delay(f64::from(number));
        }
        let lateness = samples.clone().summary();
        assert_eq!(
            (lateness.count, lateness.p50_millis, lateness.p99_millis),
            (1000, 499.0, 989.0)
        );
        assert_eq!(lateness.max_millis, 999.0);
        let goal: Goal = "p99<1s".parse().unwrap();
        assert!(goal.is_met(&lateness));
        samples.record_miss("refused");
        assert!(!goal.is_met(&samples.summary()), "an answer that never came meets nothing");
        assert_eq!(Samples::default().summary(), Lateness::default());
    }
}
