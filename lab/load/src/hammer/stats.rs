//! Statistics of operations: per kind of operation a latency histogram, bytes, failures by class,
//! wrong bytes.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

use super::failure::{Class, Failure};
use crate::node_cost::Cost;

/// Latencies above this are recorded as this.
const LATENCY_MAX: Duration = Duration::from_secs(3600);
/// Classes kept apart per kind; further ones share a line.
const CLASSES_MAX: usize = 32;
/// Texts of failed verifications kept; the rest is counted.
const TEXTS_MAX: usize = 5;
/// Bytes of a text kept.
const TEXT_BYTES_MAX: usize = 4096;

/// A kind of operation: one row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Count,
    Compute,
    Grow,
    Fill,
    Write,
    Rewrite,
    HeapFill,
    HeapWrite,
    ReadQuery,
    ReadUpdate,
    HeapReadQuery,
    HeapReadUpdate,
    VerifyRead,
    Chain,
    Fan,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Compute => "compute",
            Self::Grow => "grow",
            Self::Fill => "fill",
            Self::Write => "write",
            Self::Rewrite => "rewrite",
            Self::HeapFill => "heap fill",
            Self::HeapWrite => "heap write",
            Self::ReadQuery => "read, query",
            Self::ReadUpdate => "read, update",
            Self::HeapReadQuery => "heap read, query",
            Self::HeapReadUpdate => "heap read, update",
            Self::VerifyRead => "read back, query",
            Self::Chain => "chain",
            Self::Fan => "fan",
        }
    }
}

/// A class of failures, how often it came, and the first whole text.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ClassCount {
    pub(crate) count: u64,
    pub(crate) text: String,
}

/// Failures by the text of their class.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Classes(pub(crate) BTreeMap<String, ClassCount>);

impl Classes {
    pub(crate) fn add(&mut self, class: &Class, count: u64, text: &str) {
        let mut key = class.to_string();
        if self.0.len() >= CLASSES_MAX && !self.0.contains_key(&key) {
            key = "further classes".into();
        }
        let entry =
            self.0.entry(key).or_insert_with(|| ClassCount { count: 0, text: shortened(text) });
        entry.count += count;
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.values().map(|counted| counted.count).sum()
    }
}

/// Wrong bytes, lost acknowledgements: what makes a run fail.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Wrong {
    pub(crate) count: u64,
    pub(crate) texts: Vec<String>,
}

impl Wrong {
    pub(crate) fn add(&mut self, text: &str) {
        self.count += 1;
        if self.texts.len() < TEXTS_MAX {
            self.texts.push(shortened(text));
        }
    }
}

fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    text[..end].to_owned()
}

/// Result of one operation.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// Bytes of canister memory written or read.
    pub(crate) touched_bytes: u64,
    /// Calls between canisters that were made and answered.
    pub(crate) hops: u64,
    /// Polls for the outcome that were refused and repeated.
    pub(crate) polls_refused: u64,
    /// Calls inside the operation that failed, while the operation continued.
    pub(crate) inner: Vec<(Class, u64, String)>,
    pub(crate) failure: Option<Failure>,
    /// Description of wrong bytes.
    pub(crate) wrong: Option<String>,
}

/// Everything counted of one kind of operation.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KindStats {
    pub(crate) done: u64,
    #[serde(rename = "latency_ms", serialize_with = "quantiles")]
    pub(crate) latency: Histogram<u64>,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) touched_bytes: u64,
    pub(crate) hops: u64,
    pub(crate) errors: Classes,
    pub(crate) refusals: Classes,
    pub(crate) polls_refused: u64,
    /// Refused until the time was over.
    pub(crate) given_up: u64,
    pub(crate) verification_failures: Wrong,
}

impl Default for KindStats {
    fn default() -> Self {
        // Bounds are constants that the histogram accepts; a failure here is one of this file.
        #[allow(clippy::unwrap_used)]
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX.as_micros() as u64, 3).unwrap();
        Self {
            done: 0,
            latency,
            sent_bytes: 0,
            received_bytes: 0,
            touched_bytes: 0,
            hops: 0,
            errors: Classes::default(),
            refusals: Classes::default(),
            polls_refused: 0,
            given_up: 0,
            verification_failures: Wrong::default(),
        }
    }
}

impl KindStats {
    pub(crate) fn add(&mut self, outcome: &Outcome, latency: Duration) {
        self.sent_bytes += outcome.sent_bytes;
        self.received_bytes += outcome.received_bytes;
        self.polls_refused += outcome.polls_refused;
        for (class, count, text) in &outcome.inner {
            self.errors.add(class, *count, text);
        }
        match &outcome.failure {
            None => {
                self.done += 1;
                self.touched_bytes += outcome.touched_bytes;
                self.hops += outcome.hops;
                self.latency.saturating_record(latency.as_micros().max(1) as u64);
            }
            Some(failure) if failure.is_refusal() => {
                self.refusals.add(&failure.class, 1, &failure.text)
            }
            Some(failure) => self.errors.add(&failure.class, 1, &failure.text),
        }
        if let Some(text) = &outcome.wrong {
            self.verification_failures.add(text);
        }
    }
}

/// Milliseconds at a quantile.
pub(crate) fn millis(latency: &Histogram<u64>, quantile: f64) -> f64 {
    if latency.is_empty() { 0.0 } else { latency.value_at_quantile(quantile) as f64 / 1e3 }
}

fn quantiles<S: Serializer>(latency: &Histogram<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    let reported = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];
    serializer.collect_map(reported.map(|(name, quantile)| (name, millis(latency, quantile))))
}

/// One stretch of work of one sort, with the time it really took.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    pub(crate) kinds: BTreeMap<Kind, KindStats>,
    /// Open loop: operations that found no room at their time.
    pub(crate) not_started: u64,
    /// Operations that were in flight when the run was stopped.
    pub(crate) interrupted: bool,
    /// `fill` and such are needed by a mode and are not what it measures.
    pub(crate) preparation: bool,
    /// CPU time of the nodes whose processes are named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cost: Option<Cost>,
}

impl Phase {
    pub(crate) fn add(&mut self, kind: Kind, outcome: &Outcome, latency: Duration) {
        self.kinds.entry(kind).or_default().add(outcome, latency);
    }

    pub(crate) fn done(&self) -> u64 {
        self.kinds.values().map(|kind| kind.done).sum()
    }

    pub(crate) fn errors(&self) -> u64 {
        self.kinds.values().map(|kind| kind.errors.total()).sum()
    }

    pub(crate) fn refusals(&self) -> u64 {
        self.kinds.values().map(|kind| kind.refusals.total() + kind.polls_refused).sum()
    }

    pub(crate) fn wrong(&self) -> u64 {
        self.kinds.values().map(|kind| kind.verification_failures.count).sum()
    }

    /// Latencies of all kinds together.
    pub(crate) fn latency(&self) -> Option<Histogram<u64>> {
        let mut kinds = self.kinds.values();
        let mut all = kinds.next()?.latency.clone();
        for kind in kinds {
            // Histograms of the same bounds always add up.
            let _ = all.add(&kind.latency);
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_no_errors_and_failures_have_no_latency() {
        let mut stats = KindStats::default();
        let second = Some(Duration::from_secs(1));
        let failed = |failure| Outcome {
            failure: Some(failure),
            touched_bytes: 5,
            sent_bytes: 1,
            ..Outcome::default()
        };
        stats.add(&failed(Failure::http(503, second, b"first text")), Duration::from_secs(1));
        stats.add(&failed(Failure::http(503, second, b"second text")), Duration::from_secs(1));
        stats.add(&failed(Failure::reject(5, Some("IC0502"), "trap")), Duration::from_secs(1));
        stats.add(
            &Outcome { touched_bytes: 7, sent_bytes: 1, ..Outcome::default() },
            Duration::from_millis(3),
        );
        assert_eq!((stats.done, stats.touched_bytes, stats.sent_bytes), (1, 7, 4));
        assert_eq!((stats.refusals.total(), stats.errors.total(), stats.latency.len()), (2, 1, 1));
        assert_eq!(stats.refusals.0["refused 503"].text, "first text");
        assert!((millis(&stats.latency, 1.0) - 3.0).abs() < 0.01);
    }

    #[test]
    fn classes_and_texts_are_bounded() {
        let mut classes = Classes::default();
        for code in 0..1000_u16 {
            classes.add(&Class::Http(code), 1, &"x".repeat(10_000));
        }
        assert_eq!(classes.0.len(), CLASSES_MAX + 1);
        assert_eq!(classes.total(), 1000);
        assert!(classes.0.values().all(|counted| counted.text.len() <= TEXT_BYTES_MAX));
        let mut wrong = Wrong::default();
        (0..100).for_each(|_| wrong.add("lost"));
        assert_eq!((wrong.count, wrong.texts.len()), (100, TEXTS_MAX));
    }

    #[test]
    fn a_latency_beyond_the_histogram_is_its_maximum() {
        let mut stats = KindStats::default();
        stats.add(&Outcome::default(), LATENCY_MAX * 2);
        assert!(millis(&stats.latency, 1.0) >= 3_600_000.0 * 0.999);
    }
}
