//! Rates: a closed loop of signed calls over plain HTTP connections, and bursts of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use candid::Principal;
use hdrhistogram::Histogram;
use ic_agent::Agent;

use super::{Table, node::Node};
use crate::{
    hammer::transport::CallAnswer,
    node_cost::{Cost, Meter},
};

/// Kind of the calls of a rate.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// `inc` of the counter.
    Update,
    /// With an argument of its own each time, which the canister ignores: the node cannot keep the
    /// reply.
    Query,
    /// One that the node may answer with the reply it kept.
    SameQuery,
}

/// How a rate is measured.
#[derive(Clone, Copy)]
pub(super) struct Load {
    /// Connections, each with one call in flight.
    pub concurrency: usize,
    /// For how long.
    pub seconds: u64,
}

pub(super) struct Rate {
    pub per_second: f64,
    /// Median of the latency, milliseconds.
    pub p50: f64,
    /// 99th percentile of the latency, milliseconds.
    pub p99: f64,
    pub replies: u64,
    /// Replies whose certificate was checked: one in 64 of the updates.
    pub verified: u64,
    /// CPU time of the node meanwhile.
    pub cost: Cost,
}

impl Rate {
    /// Puts its three figures into the table; returns the text of the row.
    pub(super) fn add_figures(&self, name: &str, table: &mut Table) -> String {
        table.figure(name, self.per_second, "/s");
        table.figure(&format!("{name}, p50"), self.p50, "ms");
        table.figure(&format!("{name}, p99"), self.p99, "ms");
        format!("{:.0}/s, {:.1} / {:.1} ms", self.per_second, self.p50, self.p99)
    }
}

impl Rate {
    /// Puts the node's CPU time for one call into the table; returns it in microseconds.
    pub(super) fn add_node_cpu(&self, what: &str, table: &mut Table) -> Result<[f64; 3]> {
        let micros = self.cost.micros_per(self.replies as f64).context("no call was answered")?;
        table.node_cpu(what, micros);
        Ok(micros)
    }
}

/// One connection's share of a rate.
#[derive(Clone)]
struct Caller {
    http: reqwest::Client,
    path: String,
    agent: Agent,
    canister: Principal,
    kind: Kind,
    asked: Arc<AtomicU64>,
    verified: Arc<AtomicU64>,
}

/// A canister and what is asked of it, through which agent.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub agent: &'a Agent,
    pub node: &'a Node,
    pub canister: Principal,
    pub kind: Kind,
}

impl Caller {
    fn new(target: Target<'_>, connections: usize) -> Result<Self> {
        let Target { agent, node, canister, kind } = target;
        let (version, call) = match kind {
            Kind::Update => ("v4", "call"),
            Kind::Query | Kind::SameQuery => ("v3", "query"),
        };
        Ok(Self {
            http: demo::client::http().pool_max_idle_per_host(connections).build()?,
            path: format!("{}/api/{version}/canister/{canister}/{call}", node.url),
            agent: agent.clone(),
            canister,
            kind,
            asked: Arc::default(),
            verified: Arc::default(),
        })
    }

    /// The body of the next call.
    fn signed(&self) -> Result<Vec<u8>> {
        let query = |argument: Vec<u8>| {
            let signed = self.agent.query(&self.canister, "get").with_arg(argument).sign()?;
            Ok(signed.signed_query)
        };
        match self.kind {
            Kind::Update => {
                let signed = self.agent.update(&self.canister, "inc").with_arg(vec![]).sign()?;
                Ok(signed.signed_update)
            }
            Kind::Query => query(self.asked.fetch_add(1, Ordering::Relaxed).to_le_bytes().to_vec()),
            Kind::SameQuery => query(vec![]),
        }
    }

    /// Sends a call and checks the reply; `None` when the node holds it back.
    async fn call(&self, body: Vec<u8>, verify: bool) -> Result<Option<Duration>> {
        let sent = Instant::now();
        let request = self.http.post(&self.path).header("content-type", "application/cbor");
        let response = request.body(body).send().await?;
        let code = response.status();
        let bytes = response.bytes().await?;
        if matches!(code.as_u16(), 429 | 503) {
            return Ok(None);
        }
        let took = sent.elapsed();
        ensure!(code == 200, "the node answered {code}: {}", String::from_utf8_lossy(&bytes));
        let reply: CallAnswer = serde_cbor_2::from_slice(&bytes)?;
        ensure!(reply.status == "replied", "the node answered status {}", reply.status);
        if verify {
            let certificate: ic_agent::Certificate = serde_cbor_2::from_slice(&reply.certificate)?;
            self.agent.verify(&certificate, self.canister)?;
            self.verified.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Some(took))
    }

    async fn until(self, end: Instant) -> Result<Histogram<u64>> {
        let mut latency = Histogram::<u64>::new(3)?;
        while Instant::now() < end {
            let verify = matches!(self.kind, Kind::Update) && latency.len() % 64 == 0;
            match self.call(self.signed()?, verify).await? {
                Some(took) => latency.record(took.as_micros() as u64)?,
                // The node asks to retry in a second. The rate counts accepted calls.
                None => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
        Ok(latency)
    }
}

/// Closed loop: `load.concurrency` connections, each with one call in flight.
pub(super) async fn rate(load: Load, target: Target<'_>) -> Result<Rate> {
    let caller = Caller::new(target, load.concurrency)?;
    let meter = Meter::start(&[target.node.pid], &target.node.url).await?;
    let started = Instant::now();
    let end = started + Duration::from_secs(load.seconds);
    let tasks: Vec<_> =
        (0..load.concurrency).map(|_| tokio::spawn(caller.clone().until(end))).collect();
    let mut all = Histogram::<u64>::new(3)?;
    for task in tasks {
        all.add(task.await??)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(Rate {
        cost: meter.stop().await?,
        per_second: all.len() as f64 / seconds,
        p50: all.value_at_quantile(0.5) as f64 / 1e3,
        p99: all.value_at_quantile(0.99) as f64 / 1e3,
        replies: all.len(),
        verified: caller.verified.load(Ordering::Relaxed),
    })
}

/// `bursts` times `calls` calls sent at once, each burst when the one before is answered. The CPU
/// time of the node, and the calls that it did not hold back.
pub(super) async fn bursts(target: Target<'_>, bursts: u64, calls: usize) -> Result<(Cost, u64)> {
    let caller = Caller::new(target, calls)?;
    let meter = Meter::start(&[target.node.pid], &target.node.url).await?;
    let mut answered = 0;
    for _ in 0..bursts {
        let bodies = (0..calls).map(|_| caller.signed()).collect::<Result<Vec<_>>>()?;
        let sent = bodies.into_iter().map(|body| caller.call(body, false));
        let took = futures::future::try_join_all(sent).await?;
        answered += took.iter().flatten().count() as u64;
    }
    Ok((meter.stop().await?, answered))
}
