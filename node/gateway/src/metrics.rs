//! Metrics of the gateway: requests by route and status, latencies by route, refusals by reason,
//! and the use of its pools.
//!
//! Label sets are closed: routes and reasons are constants of this crate and statuses are those it
//! answers with, so no client can make a series.

use std::{fmt, sync::Arc, time::Duration};

use accounting::Pool;
use http_server::{
    connections::Connections,
    metrics::{MetricsWriter, register},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tokio::sync::Semaphore;

use crate::waiters::Waiters;

/// Upper bounds of the latency buckets, in seconds: queries are milliseconds, synchronous calls
/// wait for a round or more.
const LATENCY_SECONDS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabels {
    route: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

type RouteLatencies = Family<RouteLabels, Histogram, fn() -> Histogram>;

/// The counters. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    requests: Family<RequestLabels, Counter>,
    latency: RouteLatencies,
    refusals: Family<ReasonLabels, Counter>,
    connections_evicted: Counter,
}

/// Pools that are read on each scrape.
#[derive(Debug)]
pub(crate) struct Pools {
    pub(crate) connections: Connections,
    /// Name, permits, limit.
    pub(crate) permits: Vec<(&'static str, Arc<Semaphore>, usize)>,
    /// Pools of request bodies and responses, by name.
    pub(crate) bytes: Vec<(&'static str, Pool)>,
    pub(crate) waiters: Waiters,
}

impl Metrics {
    /// Registers everything under the prefix `gateway_`.
    pub(crate) fn new(registry: &mut Registry, pools: Pools) -> Self {
        let new_histogram: fn() -> Histogram = || Histogram::new(LATENCY_SECONDS);
        let registry = registry.sub_registry_with_prefix("gateway");
        let help = "Requests answered, by route and status";
        let requests = register(registry, "requests", help, Family::default());
        let help = "Time from a request's headers to its answer, by route";
        let latency = Family::new_with_constructor(new_histogram);
        let latency = register(registry, "request_seconds", help, latency);
        let help = "Requests and connections refused, by reason";
        let refusals = register(registry, "refusals", help, Family::default());
        let help = "Idle connections closed for new ones at the limit";
        let connections_evicted =
            register(registry, "connections_evicted", help, Counter::default());
        registry.register_collector(Box::new(pools));
        Self { requests, latency, refusals, connections_evicted }
    }

    pub(crate) fn record_response(&self, route: &'static str, status: u16, took: Duration) {
        self.requests.get_or_create(&RequestLabels { route, status }).inc();
        self.latency.get_or_create(&RouteLabels { route }).observe(took.as_secs_f64());
    }

    pub(crate) fn count_refusal(&self, reason: &'static str) {
        self.refusals.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn count_eviction(&self) {
        self.connections_evicted.inc();
    }
}

impl Collector for Pools {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut out = MetricsWriter::new(&mut encoder);
        let mut gauge = |name: &str, help: &str, value: u64| out.amount(name, help, value);
        gauge("connections_used", "Places taken now", self.connections.used() as u64)?;
        gauge("connections_limit", "Places there are", self.connections.limit() as u64)?;
        for (name, permits, limit) in &self.permits {
            gauge(
                &format!("{name}_used"),
                "Places taken now",
                limit.saturating_sub(permits.available_permits()) as u64,
            )?;
            gauge(&format!("{name}_limit"), "Places there are", *limit as u64)?;
        }
        for (name, pool) in &self.bytes {
            gauge(&format!("{name}_used_bytes"), "Bytes taken now", pool.used_bytes())?;
            gauge(&format!("{name}_limit_bytes"), "Bytes there are", pool.cap_bytes())?;
        }
        gauge("sync_calls_waiting_used", "Places taken now", self.waiters.len() as u64)?;
        gauge("sync_calls_waiting_limit", "Places there are", self.waiters.limit() as u64)
    }
}
