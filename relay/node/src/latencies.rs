//! How long requests take and how large messages are, in buckets for `/metrics`.

use std::time::Instant;

use prometheus_client::metrics::histogram::Histogram;

/// Upper bounds of the buckets, in seconds: from a message that is only appended to one that waited
/// for its receivers.
const SECONDS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 20.0];

/// Fixed buckets for each kind of request: the same few hundred bytes whatever the load.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    /// Light push, from the whole request to its answer, refused ones included.
    pub(crate) light_push: Histogram,
    /// A store query, from the whole request until its page was found.
    pub(crate) store_query: Histogram,
    /// A filter push, from the opened stream until it was written.
    pub(crate) filter_push: Histogram,
    /// A rate limit proof, from its message's place among those pending to the verdict.
    pub(crate) rln_proof: Histogram,
    /// Writing of a message to the log, from its place in the queue until it is written.
    pub(crate) append: Histogram,
}

/// Payloads of accepted messages in kB, in the buckets of reference nodes.
#[derive(Clone, Debug)]
pub(crate) struct PayloadSizes(pub(crate) Histogram);

impl PayloadSizes {
    pub(crate) fn observe(&self, bytes: usize) {
        self.0.observe(bytes as f64 / 1e3);
    }
}

impl Default for PayloadSizes {
    fn default() -> Self {
        Self(Histogram::new([
            0.0, 1.0, 3.0, 5.0, 15.0, 50.0, 75.0, 100.0, 125.0, 150.0, 500.0, 700.0, 1000.0,
        ]))
    }
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = || Histogram::new(SECONDS);
        Self {
            light_push: histogram(),
            store_query: histogram(),
            filter_push: histogram(),
            rln_proof: histogram(),
            append: histogram(),
        }
    }
}

pub(crate) fn observe_since(histogram: &Histogram, began: Instant) {
    histogram.observe(began.elapsed().as_secs_f64());
}
