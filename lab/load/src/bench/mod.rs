//! `thimble-lab bench`: starts a node of its own in a scratch folder and prints what it costs and
//! how fast it is.
//!
//! Two kinds of client take part. *Latencies* are measured with the published agent as it is, its
//! verification of every certificate included. *Rates* are measured with calls that the agent
//! signed and that are then sent over plain HTTP connections, because verifying a BLS signature per
//! reply would keep the client, which shares the machine, busier than the node; one reply in 64 is
//! verified all the same, and every one must be `replied`.

mod browsers;
mod node;
pub mod pocket;
mod rates;
pub mod state;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use candid::{Encode, Principal};
use clap::Args;
use compare::figure::{Figure, Figures};
use hdrhistogram::Histogram;
use ic_agent::Agent;
use serde::Serialize;

use demo::{client, measure};

use crate::{
    hammer, machine,
    node_cost::{self, Meter},
};
use node::{Binary, Node};
use rates::{Kind, Load, Target, rate};

/// Command line of `thimble-lab bench`.
#[derive(Args)]
pub struct Options {
    /// The node's binary. [default: thimble in the folder of this program]
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
    /// The node's memory budget.
    #[arg(long, default_value = "512MiB")]
    memory: String,
    /// Seconds per rate.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Calls in flight while measuring rates.
    #[arg(long, default_value_t = 32)]
    concurrency: usize,
    /// Folder with the canister modules.
    #[arg(long, default_value = "canisters/wasm")]
    canisters: PathBuf,
    /// Write the figures to this file, which thimble-lab compare reads; without a value, or for -,
    /// to standard output instead of the table.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// One line of the table.
#[derive(Serialize)]
struct Row {
    what: String,
    value: String,
    goal: &'static str,
    met: Option<bool>,
}

/// The measurements, as rows to read and as figures to compare.
#[derive(Default)]
struct Table {
    rows: Vec<Row>,
    figures: Vec<Figure>,
}

impl Table {
    /// Adds a figure to compare.
    fn figure(&mut self, name: &str, value: f64, unit: &str) -> &mut Self {
        self.figures.push(Figure::new(name, value, unit));
        self
    }

    /// Adds a row without a goal.
    fn row(&mut self, what: impl Into<String>, value: impl Into<String>) -> &mut Self {
        self.rows.push(Row { what: what.into(), value: value.into(), goal: "", met: None });
        self
    }

    /// Adds a row and three figures: CPU time of the node for one of `what`, in microseconds, as
    /// `thimble-lab compare` judges it.
    fn node_cpu(&mut self, what: &str, [micros, user, system]: [f64; 3]) -> &mut Self {
        let name = format!("node CPU, {what}");
        self.figure(&name, micros, "us")
            .figure(&format!("{name}, user"), user, "us")
            .figure(&format!("{name}, system"), system, "us")
            .row(&name, format!("{micros:.0} us ({user:.0} + {system:.0})"))
    }

    /// The goal of the last row, and whether it is met.
    fn goal(&mut self, goal: &'static str, met: bool) -> &mut Self {
        if let Some(row) = self.rows.last_mut() {
            (row.goal, row.met) = (goal, Some(met));
        }
        self
    }

    /// Writes `report` to a file, if one is named, and prints the table below what the node was
    /// started with; for `-` the report alone.
    fn publish(&self, report: &serde_json::Value, json: Option<&Path>, node: &str) -> Result<()> {
        match json {
            Some(path) if path.as_os_str() == "-" => {
                println!("{report:#}");
                return Ok(());
            }
            Some(path) => Figures::write_document(report, path)?,
            None => {}
        }
        println!("machine: {}\nnode: {node}", machine());
        self.print();
        Ok(())
    }

    fn print(&self) {
        println!("\n{:<58} {:>24}  {:<16} met", "what", "measured", "goal");
        for row in &self.rows {
            let met = row.met.map_or("", |met| if met { "yes" } else { "NO" });
            println!("{:<58} {:>24}  {:<16} {met}", row.what, row.value, row.goal);
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Expiry of the signed calls of the rate of updates. A node remembers a call until then, and
/// accepts fewer while its ingress history fills up: with thousands a second that would be
/// measured, and the calls of the next phases would be refused.
const UPDATE_EXPIRY: Duration = Duration::from_secs(5);
/// For how long browsers download at least: slow ones take that long for one.
const BROWSERS_SECONDS: u64 = 30;
/// How long a node may take to answer at first.
const PATIENCE: Duration = Duration::from_secs(10);
/// Idling that is measured: half a second more than 30 blocks, because it begins with one.
const IDLE: Duration = Duration::from_millis(30_500);
/// Time between two looks for the block with which that begins.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Calls that are sent at once, and how often.
const BURST_CALLS: usize = 100;
const BURSTS: u64 = 50;
/// Goals of the node's CPU time for an operation, in microseconds. Like the rates, for the machine
/// of docs/results/speed.md.
const UPDATE_MICROS_MAX: f64 = 250.0;
const GUARANTEED_HOP_MICROS_MAX: f64 = 200.0;
const BEST_EFFORT_HOP_MICROS_MAX: f64 = 100.0;
/// Bytes that one message writes.
const WRITE_BYTES: u64 = 24 << 20;

/// Runs everything and prints the table.
pub async fn run(options: Options) -> Result<()> {
    let scratch = scratch("bench");
    let program = cli::program(options.node.as_deref(), "thimble", "node")?;
    let mut bench =
        Bench { options: &options, program: &program, scratch: &scratch, table: Table::default() };
    let outcome = bench.measure_all().await;
    let table = bench.table;
    let _ = std::fs::remove_dir_all(&scratch);
    outcome?;
    let report = serde_json::json!({
        "format": compare::figure::FORMAT, "bench": "bench", "machine": machine(),
        "memory": options.memory, "seconds": options.seconds,
        "concurrency": options.concurrency, "rows": table.rows, "figures": table.figures,
    });
    let node = format!(
        "--memory {}; {} s per rate, {} calls in flight",
        options.memory, options.seconds, options.concurrency
    );
    table.publish(&report, options.json.as_deref(), &node)
}

/// A folder for what a bench leaves on the disk.
fn scratch(bench: &str) -> PathBuf {
    std::env::temp_dir().join(format!("thimble-{bench}-{}", std::process::id()))
}

/// A bench with nodes, under way.
struct Bench<'a, O> {
    options: &'a O,
    /// The node's binary.
    program: &'a Path,
    /// Folder of the nodes' data; removed at the end.
    scratch: &'a Path,
    table: Table,
}

impl<O> Bench<'_, O> {
    fn row(&mut self, what: impl Into<String>, value: impl Into<String>) -> &mut Table {
        self.table.row(what, value)
    }
}

impl Bench<'_, Options> {
    fn binary(&self) -> Binary<'_> {
        Binary {
            program: self.program,
            memory: &self.options.memory,
            disk: None,
            http_gateway: None,
            capped: false,
        }
    }

    async fn measure_all(&mut self) -> Result<()> {
        self.start().await?;
        let data = self.scratch.join("node");
        let (node, _) = Node::start(&self.binary(), &data).await?;
        self.idle(&node).await?;
        let agent = client::connect(&node.url, PATIENCE).await?;
        let modules = &self.options.canisters;
        let counter = client::deploy(&agent, &modules.join("counter-c.wasm")).await?;
        let workbench = client::deploy(&agent, &modules.join("workbench.wasm")).await?;
        self.latency(&agent, counter).await?;
        self.rates(&node, &agent, counter).await?;
        self.messages(&node).await?;
        self.writes(&node, &agent, workbench).await?;
        let counted = read_counter(&agent, counter).await?;
        node.stop().await?;
        self.start_again(&data, counter, &counted).await?;
        self.browsers().await
    }

    /// How long a node takes until it serves, in folders that are empty.
    async fn start(&mut self) -> Result<()> {
        let mut fresh = Vec::new();
        for round in 0..5 {
            let data = self.scratch.join(format!("start-{round}"));
            let (node, took) = Node::start(&self.binary(), &data).await?;
            fresh.push(took.as_secs_f64() * 1e3);
            node.stop().await?;
        }
        let fresh = median(fresh);
        self.row("start to healthy, fresh folder (median of 5)", format!("{fresh:.0} ms"))
            .goal("< 300 ms", fresh < 300.0)
            .figure("start, fresh folder", fresh, "ms");
        Ok(())
    }

    /// What a node costs that has nothing to do.
    async fn idle(&mut self, node: &Node) -> Result<()> {
        tokio::time::sleep(Duration::from_secs(3)).await;
        until_next_block(node).await?;
        let meter = Meter::start(&[node.pid], &node.url).await?;
        let started = Instant::now();
        tokio::time::sleep(IDLE).await;
        let seconds = started.elapsed().as_secs_f64();
        let cost = meter.stop().await?;
        let idle = measure::processes(node.pid)?;
        let (anonymous, _) = measure::totals(&idle);
        let percent = cost.micros_per(seconds).map_or(f64::NAN, |[micros, ..]| micros / 1e4);
        self.row(
            format!("idle anonymous memory, {} processes", idle.len()),
            measure::mib(anonymous),
        )
        .goal("< 32 MiB", anonymous < 32 << 20)
        .figure("idle, anonymous memory", anonymous as f64, "bytes")
        .figure("idle, CPU", percent, "%");
        let value = format!("{percent:.2} %");
        self.row("idle CPU over 30 s", value).goal("< 1 %", percent < 1.0);
        let blocks = cost.blocks.context("the node does not report its height")?;
        let micros = cost.micros_per(blocks as f64).context("an idle node made no block")?;
        self.table.node_cpu("empty block", micros);
        Ok(())
    }

    /// How long an update takes for a client that verifies all of it.
    async fn latency(&mut self, agent: &Agent, counter: Principal) -> Result<()> {
        let mut latency = Histogram::<u64>::new(3)?;
        for _ in 0..200 {
            let started = Instant::now();
            agent.update(&counter, "inc").with_arg(vec![]).call_and_wait().await?;
            latency.record(started.elapsed().as_micros() as u64)?;
        }
        let [p50, p99] = [0.5, 0.99].map(|q| latency.value_at_quantile(q) as f64 / 1e3);
        self.row(
            "update round trip, ic-agent with verification, p50 / p99",
            format!("{p50:.1} / {p99:.1} ms"),
        )
        .goal("p50 < 20 ms", p50 < 20.0)
        .figure("update round trip, p50", p50, "ms")
        .figure("update round trip, p99", p99, "ms");
        Ok(())
    }

    /// How many updates and queries are answered in a second.
    async fn rates(&mut self, node: &Node, agent: &Agent, counter: Principal) -> Result<()> {
        let Options { concurrency, seconds, .. } = *self.options;
        let load = Load { concurrency, seconds };
        let hasty = client::connect_signing_for(UPDATE_EXPIRY, &node.url, PATIENCE).await?;
        let target = |agent, kind| Target { agent, node, canister: counter, kind };
        let updates = rate(load, target(&hasty, Kind::Update)).await?;
        let said = updates.add_figures("updates", &mut self.table);
        let met = updates.per_second >= 1000.0;
        self.row("counter updates, signed, p50 / p99", said).goal(">= 1,000/s", met);
        let [micros, ..] = updates.add_node_cpu("update", &mut self.table)?;
        self.table.goal("< 250 us", micros < UPDATE_MICROS_MAX);
        let busy = measure::totals(&measure::processes(node.pid)?).0;
        self.table.figure("anonymous memory after updates", busy as f64, "bytes");
        self.row("anonymous memory right after the updates", measure::mib(busy));

        let stranger = client::agent(&node.url)?.build()?;
        let queries = rate(load, target(&stranger, Kind::Query)).await?;
        let said = queries.add_figures("queries", &mut self.table);
        let met = queries.per_second >= 5000.0;
        self.row("queries, each different, anonymous, p50 / p99", said).goal(">= 5,000/s", met);
        queries.add_node_cpu("different query", &mut self.table)?;
        let signed = rate(load, target(agent, Kind::Query)).await?;
        let said = signed.add_figures("signed queries", &mut self.table);
        self.row("queries, each different, signed by its sender, p50 / p99", said);
        let repeated = rate(load, target(&stranger, Kind::SameQuery)).await?;
        let said = repeated.add_figures("repeated queries", &mut self.table);
        self.row("queries, the same again and again, anonymous, p50 / p99", said);
        repeated.add_node_cpu("repeated query", &mut self.table)?;
        self.bursts(target(&hasty, Kind::Update)).await?;
        let said = format!("{} / {}", updates.verified, updates.replies);
        self.row("update replies verified / update replies in all", said);
        Ok(())
    }

    /// What blocks cost that hold a hundred calls, or are made of them.
    async fn bursts(&mut self, target: Target<'_>) -> Result<()> {
        let (cost, answered) = rates::bursts(target, BURSTS, BURST_CALLS).await?;
        let bursts = answered as f64 / BURST_CALLS as f64;
        let micros = cost.micros_per(bursts).context("no call of a burst was answered")?;
        self.table.node_cpu("block with 100 calls", micros);
        let blocks = cost.blocks.context("the node does not report its height")? as f64 / bursts;
        self.row("blocks that 100 calls sent at once took", format!("{blocks:.2}")).figure(
            "blocks of 100 calls",
            blocks,
            "blocks",
        );
        Ok(())
    }

    /// How many messages between canisters are executed in a second.
    async fn messages(&mut self, node: &Node) -> Result<()> {
        let (seconds, pid) = (self.options.seconds.to_string(), node.pid.to_string());
        let always = ["--url", &node.url, "--seconds", &seconds, "--pid", &pid];
        let chains = [&always[..], &["--concurrency", "8", "--depth", "3"]].concat();
        let hammer::Messages { per_second: guaranteed, micros } =
            hammer::inter_canister_messages(&chains).await?;
        self.row(
            "inter-canister messages, guaranteed, 8 chains of 3",
            format!("{guaranteed:.0}/s"),
        )
        .goal(">= 2,000/s", guaranteed >= 2000.0)
        .figure("messages between canisters, guaranteed", guaranteed, "/s")
        .node_cpu("guaranteed hop", micros)
        .goal("< 200 us", micros[0] < GUARANTEED_HOP_MICROS_MAX);
        let chains = ["--concurrency", "32", "--depth", "20", "--best-effort", "30"];
        let chains = [&always[..], &chains].concat();
        let hammer::Messages { per_second: best_effort, micros } =
            hammer::inter_canister_messages(&chains).await?;
        self.table.figure("messages between canisters, best-effort", best_effort, "/s");
        let said = format!("{best_effort:.0}/s");
        self.row("inter-canister messages, best-effort, 32 chains of 20", said)
            .node_cpu("best-effort hop", micros)
            .goal("< 100 us", micros[0] < BEST_EFFORT_HOP_MICROS_MAX);
        Ok(())
    }

    /// How long a message takes that writes 24 MiB of stable memory.
    async fn writes(&mut self, node: &Node, agent: &Agent, workbench: Principal) -> Result<()> {
        let grow = Encode!(&640u64)?;
        agent.update(&workbench, "stable_grow").with_arg(grow).call_and_wait().await?;
        let mut writes = Vec::new();
        let meter = Meter::start(&[node.pid], &node.url).await?;
        for round in 0..7u8 {
            let started = Instant::now();
            let arguments = Encode!(&0u64, &WRITE_BYTES, &(round + 1))?;
            agent.update(&workbench, "stable_fill").with_arg(arguments).call_and_wait().await?;
            writes.push(started.elapsed().as_secs_f64() * 1e3);
        }
        let cost = meter.stop().await?;
        let micros = cost.micros_per(writes.len() as f64).context("nothing was written")?;
        let nanos = micros[0] * 1e3 / WRITE_BYTES as f64;
        let write = median(writes);
        self.table
            .node_cpu("24 MiB stable write", micros)
            .row("node CPU, byte written", format!("{nanos:.2} ns"))
            .figure("node CPU, byte written", nanos, "ns");
        self.row("24 MiB stable write in one message (median of 7)", format!("{write:.0} ms"))
            .goal("< 100 ms", write < 100.0)
            .figure("24 MiB stable write", write, "ms");
        Ok(())
    }

    /// What a node holds while browsers download.
    async fn browsers(&mut self) -> Result<()> {
        let [port] = cli::free_ports()?;
        let address = format!("127.0.0.1:{port}");
        let binary = Binary { http_gateway: Some(&address), ..self.binary() };
        let (node, _) = Node::start(&binary, &self.scratch.join("browsers")).await?;
        let agent = client::connect(&node.url, PATIENCE).await?;
        let frontend =
            client::deploy(&agent, &self.options.canisters.join("frontend.wasm")).await?;
        let seconds = self.options.seconds.max(BROWSERS_SECONDS);
        let measured = browsers::measure(node.pid, address.clone(), frontend, seconds).await?;
        self.table.figure("browsers, idle, anonymous memory", measured.idle as f64, "bytes");
        self.table.figure("browsers, downloading, anonymous memory", measured.peak as f64, "bytes");
        let [idle, peak, after] = [measured.idle, measured.peak, measured.after].map(measure::mib);
        self.row(
            format!("anonymous memory: idle / {} browsers / 10 s later", browsers::CLIENTS),
            format!("{idle} / {peak} / {after}"),
        );
        self.row(
            "their downloads of 5 MB / broken off / refused",
            format!("{} / {} / {}", measured.downloads, measured.broken, measured.refused),
        );
        self.row(
            "concurrent pages / refused / slowest",
            format!(
                "{} / {} / {:.0} ms",
                measured.pages,
                measured.pages_refused,
                measured.slowest_page.as_secs_f64() * 1e3
            ),
        );
        node.stop().await
    }

    /// How long a node takes until it serves the state it left, and what each process holds then.
    async fn start_again(&mut self, data: &Path, counter: Principal, counted: &[u8]) -> Result<()> {
        let (node, took) = Node::start(&self.binary(), data).await?;
        let took = took.as_secs_f64() * 1e3;
        self.row("start to healthy with this state, after a clean stop", format!("{took:.0} ms"))
            .goal("< 300 ms", took < 300.0)
            .figure("start with state", took, "ms");
        let agent = client::connect(&node.url, PATIENCE).await?;
        let now = read_counter(&agent, counter).await?;
        ensure!(now == counted, "the counter changed over a restart");
        for process in measure::processes(node.pid)? {
            let what = format!("memory of {} (pid {})", process.role, process.pid);
            let [anonymous, file] = [process.anonymous_bytes, process.file_bytes].map(measure::mib);
            self.row(what + ": anonymous / file", format!("{anonymous} / {file}"));
        }
        node.stop().await
    }
}

/// Waits until the node makes a block: only then is the time until the next one known.
async fn until_next_block(node: &Node) -> Result<()> {
    let height = async || node_cost::height(&node.url).await.context("a node without a height");
    let before = height().await?;
    let end = Instant::now() + PATIENCE;
    while height().await? == before {
        ensure!(Instant::now() < end, "the node makes no block while it has nothing to do");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

async fn read_counter(agent: &Agent, counter: Principal) -> Result<Vec<u8>> {
    Ok(agent.query(&counter, "get").with_arg(vec![]).call().await?)
}
