//! `thimble-lab bench`: starts a node of its own in a scratch folder and prints what it costs and
//! how fast it is.
//!
//! Two kinds of client take part. *Latencies* are measured with the published agent as it is, its
//! verification of every certificate included. *Rates* are measured with calls that the agent
//! signed and that are then sent over plain HTTP connections, because verifying a BLS signature per
//! reply would keep the client, which shares the machine, busier than the node; one reply in 64 is
//! verified all the same, and every one must say `replied`.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use candid::{Encode, Principal};
use clap::Args;
use compare::figure::{Figure, Figures};
use hdrhistogram::Histogram;
use ic_agent::Agent;
use serde::{Deserialize, Serialize};

use demo::{client, measure};

use crate::{hammer, machine};

/// Command line of `thimble-lab bench`.
#[derive(Args)]
pub struct Options {
    /// The node's binary.
    #[arg(long, default_value = "target/release/thimble")]
    node: PathBuf,
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

struct Node {
    child: Child,
    url: String,
    port: u16,
}

impl Node {
    /// Starts the node and waits until `/health` says 200.
    async fn start(options: &Options, data: &Path) -> Result<(Self, Duration)> {
        let port = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
            listener.local_addr()?.port()
        };
        let started = Instant::now();
        let child = Command::new(&options.node)
            .args([
                "run",
                "--memory",
                &options.memory,
                "--listen",
                &format!("127.0.0.1:{port}"),
                "--log",
                "warn",
            ])
            .arg("--data-dir")
            .arg(data)
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", options.node.display()))?;
        let mut node = Self { child, url: format!("http://127.0.0.1:{port}"), port };
        let http = reqwest::Client::new();
        loop {
            if let Ok(response) = http.get(format!("{}/health", node.url)).send().await
                && response.status().is_success()
            {
                return Ok((node, started.elapsed()));
            }
            if let Some(status) = node.child.try_wait()? {
                bail!("the node ended while starting: {status}");
            }
            ensure!(
                started.elapsed() < Duration::from_secs(60),
                "the node was not healthy within 60 s"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(
            pid.context("the node has a process id")?,
            rustix::process::Signal::TERM,
        )?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs everything and prints the table.
pub async fn run(options: Options) -> Result<()> {
    let mut rows = Vec::new();
    let scratch = std::env::temp_dir().join(format!("thimble-bench-{}", std::process::id()));
    let mut figures = Vec::new();
    let outcome = measure_all(&options, &scratch, &mut rows, &mut figures).await;
    let _ = std::fs::remove_dir_all(&scratch);
    outcome?;
    if let Some(path) = &options.json {
        let report = serde_json::json!({
            "format": compare::figure::FORMAT, "bench": "bench", "machine": machine(),
            "memory": options.memory, "seconds": options.seconds, "concurrency": options.concurrency,
            "rows": rows, "figures": figures,
        });
        if path.as_os_str() == "-" {
            println!("{report:#}");
            return Ok(());
        }
        Figures::write_document(&report, path)?;
    }
    println!("machine: {}", machine());
    println!(
        "node: --memory {}; {} s per rate, {} calls in flight",
        options.memory, options.seconds, options.concurrency
    );
    println!("\n{:<58} {:>24}  {:<16} met", "what", "measured", "goal");
    for row in &rows {
        let met = row.met.map_or("", |met| if met { "yes" } else { "NO" });
        println!("{:<58} {:>24}  {:<16} {met}", row.what, row.value, row.goal);
    }
    Ok(())
}

async fn measure_all(
    options: &Options,
    scratch: &Path,
    rows: &mut Vec<Row>,
    figures: &mut Vec<Figure>,
) -> Result<()> {
    let mut figure =
        |name: &str, value: f64, unit: &str| figures.push(Figure::new(name, value, unit));
    let mut row = |what: String, value: String, goal: &'static str, met: Option<bool>| {
        rows.push(Row { what, value, goal, met });
    };

    // Start: fresh folders first, then a folder with state.
    let mut fresh = Vec::new();
    for round in 0..5 {
        let (node, took) = Node::start(options, &scratch.join(format!("start-{round}"))).await?;
        fresh.push(took.as_secs_f64() * 1e3);
        node.stop()?;
    }
    let fresh = median(fresh);
    figure("start, fresh folder", fresh, "ms");
    row(
        "start to healthy, fresh folder (median of 5)".into(),
        format!("{fresh:.0} ms"),
        "< 300 ms",
        Some(fresh < 300.0),
    );

    let data = scratch.join("node");
    let (node, _) = Node::start(options, &data).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (_, cpu_before) = measure::totals(&measure::processes(node.child.id())?);
    let idle_started = Instant::now();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let idle = measure::processes(node.child.id())?;
    let (anonymous, cpu) = measure::totals(&idle);
    let percent = (cpu - cpu_before) / idle_started.elapsed().as_secs_f64() * 100.0;
    figure("idle, anonymous memory", anonymous as f64, "bytes");
    figure("idle, CPU", percent, "%");
    row(
        format!("idle anonymous memory, {} processes", idle.len()),
        measure::mib(anonymous),
        "< 32 MiB",
        Some(anonymous < 32 << 20),
    );
    row("idle CPU over 10 s".into(), format!("{percent:.2} %"), "< 1 %", Some(percent < 1.0));

    let agent = client::connect(&node.url, Duration::from_secs(10)).await?;
    let counter = client::deploy(&agent, &options.canisters.join("counter-c.wasm")).await?;
    let workbench = client::deploy(&agent, &options.canisters.join("workbench.wasm")).await?;

    let mut latency = Histogram::<u64>::new(3)?;
    for _ in 0..200 {
        let started = Instant::now();
        agent.update(&counter, "inc").with_arg(vec![]).call_and_wait().await?;
        latency.record(started.elapsed().as_micros() as u64)?;
    }
    let p50 = latency.value_at_quantile(0.5) as f64 / 1e3;
    figure("update round trip, p50", p50, "ms");
    figure("update round trip, p99", latency.value_at_quantile(0.99) as f64 / 1e3, "ms");
    row(
        "update round trip, ic-agent with verification, p50 / p99".into(),
        format!("{p50:.1} / {:.1} ms", latency.value_at_quantile(0.99) as f64 / 1e3),
        "p50 < 20 ms",
        Some(p50 < 20.0),
    );

    let updates = rate(options, &agent, &node, counter, Kind::Update).await?;
    updates.tell("updates", &mut figure);
    row(
        "counter updates, signed, p50 / p99".into(),
        format!("{:.0}/s, {:.1} / {:.1} ms", updates.per_second, updates.p50, updates.p99),
        ">= 1,000/s",
        Some(updates.per_second >= 1000.0),
    );
    let busy = measure::totals(&measure::processes(node.child.id())?).0;
    figure("anonymous memory after updates", busy as f64, "bytes");
    row("anonymous memory right after the updates".into(), measure::mib(busy), "", None);
    let stranger = Agent::builder().with_url(&node.url).build()?;
    let queries = rate(options, &stranger, &node, counter, Kind::Query).await?;
    queries.tell("queries", &mut figure);
    row(
        "queries, each different, anonymous, p50 / p99".into(),
        format!("{:.0}/s, {:.1} / {:.1} ms", queries.per_second, queries.p50, queries.p99),
        ">= 5,000/s",
        Some(queries.per_second >= 5000.0),
    );
    let signed = rate(options, &agent, &node, counter, Kind::Query).await?;
    signed.tell("signed queries", &mut figure);
    row(
        "queries, each different, signed by its sender, p50 / p99".into(),
        format!("{:.0}/s, {:.1} / {:.1} ms", signed.per_second, signed.p50, signed.p99),
        "",
        None,
    );
    let repeated = rate(options, &stranger, &node, counter, Kind::SameQuery).await?;
    repeated.tell("repeated queries", &mut figure);
    row(
        "queries, the same again and again, anonymous, p50 / p99".into(),
        format!("{:.0}/s, {:.1} / {:.1} ms", repeated.per_second, repeated.p50, repeated.p99),
        "",
        None,
    );
    row(
        "update replies verified / update replies in all".into(),
        format!("{} / {}", updates.verified, updates.replies),
        "",
        None,
    );

    let seconds = options.seconds.to_string();
    let calls = |flags: &[&str]| {
        let flags: Vec<String> = ["--url", &node.url, "--seconds", &seconds]
            .iter()
            .chain(flags)
            .map(|flag| (*flag).to_owned())
            .collect();
        async move {
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            hammer::inter_canister_messages_per_second(&flags).await
        }
    };
    let guaranteed = calls(&["--concurrency", "8", "--depth", "3"]).await?;
    figure("messages between canisters, guaranteed", guaranteed, "/s");
    row(
        "inter-canister messages, guaranteed, 8 chains of 3".into(),
        format!("{guaranteed:.0}/s"),
        ">= 2,000/s",
        Some(guaranteed >= 2000.0),
    );
    let best_effort =
        calls(&["--concurrency", "32", "--depth", "20", "--best-effort", "30"]).await?;
    figure("messages between canisters, best-effort", best_effort, "/s");
    row(
        "inter-canister messages, best-effort, 32 chains of 20".into(),
        format!("{best_effort:.0}/s"),
        "",
        None,
    );

    agent.update(&workbench, "stable_grow").with_arg(Encode!(&640u64)?).call_and_wait().await?;
    let mut writes = Vec::new();
    for round in 0..7u8 {
        let started = Instant::now();
        let arguments = Encode!(&0u64, &(24u64 << 20), &(round + 1))?;
        agent.update(&workbench, "stable_fill").with_arg(arguments).call_and_wait().await?;
        writes.push(started.elapsed().as_secs_f64() * 1e3);
    }
    let write = median(writes);
    figure("24 MiB stable write", write, "ms");
    row(
        "24 MiB stable write in one message (median of 7)".into(),
        format!("{write:.0} ms"),
        "< 100 ms",
        Some(write < 100.0),
    );

    let counted = read_counter(&agent, counter).await?;
    node.stop()?;
    let (node, took) = Node::start(options, &data).await?;
    let took = took.as_secs_f64() * 1e3;
    figure("start with state", took, "ms");
    row(
        "start to healthy with this state, after a clean stop".into(),
        format!("{took:.0} ms"),
        "< 300 ms",
        Some(took < 300.0),
    );
    let agent = client::connect(&node.url, Duration::from_secs(10)).await?;
    ensure!(read_counter(&agent, counter).await? == counted, "the counter changed over a restart");
    for process in measure::processes(node.child.id())? {
        row(
            format!("memory of {} (pid {}): anonymous / file", process.role, process.pid),
            format!(
                "{} / {}",
                measure::mib(process.anonymous_bytes),
                measure::mib(process.file_bytes)
            ),
            "",
            None,
        );
    }
    node.stop()
}

async fn read_counter(agent: &Agent, counter: Principal) -> Result<Vec<u8>> {
    Ok(agent.query(&counter, "get").with_arg(vec![]).call().await?)
}

#[derive(Clone, Copy)]
enum Kind {
    Update,
    /// With an argument of its own each time, which the canister ignores: the node cannot keep the
    /// reply.
    Query,
    /// One that the node may answer with the reply it kept.
    SameQuery,
}

struct Rate {
    per_second: f64,
    p50: f64,
    p99: f64,
    replies: u64,
    verified: u64,
}

impl Rate {
    fn tell(&self, name: &str, figure: &mut impl FnMut(&str, f64, &str)) {
        figure(name, self.per_second, "/s");
        figure(&format!("{name}, p50"), self.p50, "ms");
        figure(&format!("{name}, p99"), self.p99, "ms");
    }
}

#[derive(Deserialize)]
struct Reply {
    status: String,
    #[serde(default, with = "serde_bytes")]
    certificate: Vec<u8>,
}

/// Closed loop: `concurrency` connections, each with one call in flight.
async fn rate(
    options: &Options,
    agent: &Agent,
    node: &Node,
    canister: Principal,
    kind: Kind,
) -> Result<Rate> {
    let http = reqwest::Client::builder().pool_max_idle_per_host(options.concurrency).build()?;
    let path = match kind {
        Kind::Update => format!("http://127.0.0.1:{}/api/v4/canister/{canister}/call", node.port),
        Kind::Query | Kind::SameQuery => {
            format!("http://127.0.0.1:{}/api/v3/canister/{canister}/query", node.port)
        }
    };
    let verified = Arc::new(AtomicU64::new(0));
    let asked = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let end = started + Duration::from_secs(options.seconds);
    let mut tasks = Vec::new();
    for _ in 0..options.concurrency {
        let (http, path, agent, verified) =
            (http.clone(), path.clone(), agent.clone(), verified.clone());
        let asked = asked.clone();
        tasks.push(tokio::spawn(async move {
            let mut latency = Histogram::<u64>::new(3)?;
            while Instant::now() < end {
                let body = match kind {
                    Kind::Update => {
                        agent.update(&canister, "inc").with_arg(vec![]).sign()?.signed_update
                    }
                    Kind::Query => {
                        let number = asked.fetch_add(1, Ordering::Relaxed).to_le_bytes();
                        agent.query(&canister, "get").with_arg(number.to_vec()).sign()?.signed_query
                    }
                    Kind::SameQuery => {
                        agent.query(&canister, "get").with_arg(vec![]).sign()?.signed_query
                    }
                };
                let sent = Instant::now();
                let response = http
                    .post(&path)
                    .header("content-type", "application/cbor")
                    .body(body)
                    .send()
                    .await?;
                let code = response.status();
                let bytes = response.bytes().await?;
                if matches!(code.as_u16(), 429 | 503) {
                    // Held back: the node says to come again in a second. The rate is what it took.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
                latency.record(sent.elapsed().as_micros() as u64)?;
                ensure!(
                    code == 200,
                    "the node answered {code}: {}",
                    String::from_utf8_lossy(&bytes)
                );
                let reply: Reply = serde_cbor::from_slice(&bytes)?;
                ensure!(reply.status == "replied", "the node answered status {}", reply.status);
                if matches!(kind, Kind::Update) && latency.len() % 64 == 1 {
                    let certificate: ic_agent::Certificate =
                        serde_cbor::from_slice(&reply.certificate)?;
                    agent.verify(&certificate, canister)?;
                    verified.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok::<_, anyhow::Error>(latency)
        }));
    }
    let mut all = Histogram::<u64>::new(3)?;
    for task in tasks {
        all.add(task.await??)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(Rate {
        per_second: all.len() as f64 / seconds,
        p50: all.value_at_quantile(0.5) as f64 / 1e3,
        p99: all.value_at_quantile(0.99) as f64 / 1e3,
        replies: all.len(),
        verified: verified.load(Ordering::Relaxed),
    })
}
