//! `thimble-lab bench-net`: what a subnet on this machine costs and how fast it is, held against
//! its goals.
//!
//! The net, the load and the pictures are other parts of this program; this one only schedules the
//! phases (`phases`), and judges. Every phase is a mark in the picture. Figures come from
//! the nodes' groups (memory, CPU), from the hammer (latencies, rates, wrong bytes) and from the
//! nodes' reports (heights).

mod cost;
mod merge;

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use accounting::{MIB, parse_size};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use cli::{Child, Stop};
use serde_json::Value;

use self::{
    cost::{Floor, MemberCpu},
    merge::NodeSeries,
};
use crate::{
    net::{
        Network,
        reading::{Asker, Report},
        session::Session,
        spawn::{self, Size},
        state::NetFolder,
    },
    storm::{Row, Rows, table},
};
use memory_cap::{
    machine, mib, picture,
    series::{FORMAT, Header},
};

const IDLE_BYTES_MAX: u64 = 48 * MIB;
const IDLE_CPU_PERCENT_MAX: f64 = 2.0;
const LATENCY_MILLIS_MAX: f64 = 150.0;
const STORM_PEAK_BYTES_MAX: u64 = 200 * MIB;
const STORM_BEHIND_MAX: u64 = 2;
const MESSAGES_PER_SECOND_MIN: f64 = 1000.0;
const SYNC_SECONDS_MAX: f64 = 30.0;
const SYNC_EXTRA_BYTES_MAX: u64 = 64 * MIB;
/// Size of the state to fetch, over three canisters.
const SYNC_STATE_MIB: u64 = 300;
/// Rounds after which blocks are not kept any more and a manifest was made since: what is kept, and
/// some more.
const SYNC_ROUNDS: u64 = 1_100;
/// A node that does not come back by then will not.
const SYNC_TIMEOUT: Duration = Duration::from_secs(180);
/// Time for the hammer in addition to the requested seconds: create, fill, read back, delete.
const HAMMER_TIMEOUT: Duration = Duration::from_secs(1200);
/// From the start of the nodes to a state that counts as idle.
const SETTLE: Duration = Duration::from_secs(15);
const HEIGHTS_EVERY: Duration = Duration::from_millis(500);

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// The consensus engine alone: what a block costs at least (with --engine).
    Engine,
    /// Memory and CPU of nodes that have nothing to do.
    Idle,
    /// Of one update after the other.
    Latency,
    /// Updates with 128 in flight.
    Updates,
    /// Blocks with one chain of calls, and messages between canisters.
    Calls,
    /// The hammer's hybrid mode.
    Storm,
    /// A node without state fetches 300 MiB of it.
    Sync,
}

/// Command line of `thimble-lab bench-net`.
#[derive(Args)]
pub struct Options {
    /// How many nodes.
    #[arg(long, default_value_t = 4)]
    nodes: usize,
    /// Memory of each.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    memory: String,
    /// How nodes reach each other.
    #[arg(long, default_value = "direct")]
    network: Network,
    /// The node's binary. [default: thimble in the folder of this program]
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
    /// The program of the consensus engine alone, which is measured beside the subnet: the
    /// example `engine` of the crate `consensus`.
    #[arg(long, value_name = "FILE")]
    engine: Option<PathBuf>,
    /// Minutes of the storm.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Seconds of idling that are measured.
    #[arg(long, default_value_t = 60)]
    idle_seconds: u64,
    /// Seconds of each rate.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Only these parts; repeatable.
    #[arg(long)]
    part: Vec<Scenario>,
    /// Folder for a folder with tables, series, picture, reports and the net.
    #[arg(long, value_name = "DIR", default_value = "target/bench-net")]
    out: PathBuf,
    /// Leave the net's folder, stopped.
    #[arg(long)]
    keep: bool,
    #[arg(long, hide = true)]
    independent: bool,
}

/// Runs everything and prints the table.
pub async fn run(options: Options) -> Result<ExitCode> {
    parse_size(&options.memory)?;
    let folder = options.out.join(machine::now().1);
    fs::create_dir_all(&folder)
        .with_context(|| format!("making the folder {}", folder.display()))?;
    let mut bench = Bench::new(options, folder)?;
    let stop = Stop::by_signal(|| {})?;
    let done = stop.race(bench.all()).await;
    bench.leave(matches!(done, Some(Ok(()))))?;
    let Some(done) = done else {
        eprintln!("bench-net: stopped; its files are in {}", bench.folder.display());
        return Ok(cli::interrupted());
    };
    if let Err(error) = &done {
        // Earlier measurements are printed all the same.
        println!("{}", table(&bench.rows.0));
        return Err(anyhow::anyhow!("{error:#}; its files are in {}", bench.folder.display()));
    }
    let good = bench.rows.0.iter().all(|row| row.met != Some(false));
    println!("\nmachine: {}, load {:.2}", machine::describe(), machine::load().unwrap_or(0.0));
    println!(
        "{} nodes in {} each, connected by {}",
        bench.options.nodes,
        bench.options.memory,
        bench.options.network.name()
    );
    print!("{}", table(&bench.rows.0));
    fs::write(bench.folder.join("table.json"), serde_json::to_string_pretty(&bench.rows.0)?)?;
    println!("\ntables, picture, reports and logs: {}", bench.folder.display());
    println!(
        "{}",
        if good { "bench-net: every goal is met" } else { "bench-net: a goal is missed" }
    );
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Bench {
    options: Options,
    folder: PathBuf,
    program: PathBuf,
    place: NetFolder,
    asker: Asker,
    /// On the monotonic clock, and in UTC.
    began: f64,
    started: String,
    phases: Vec<(f64, String)>,
    heights: File,
    rows: Rows,
    /// Of the engine alone, if it was measured.
    floor: Option<Floor>,
}

impl Bench {
    fn new(options: Options, folder: PathBuf) -> Result<Self> {
        let mut heights = File::create(folder.join("heights.csv"))?;
        writeln!(heights, "seconds,node,height,behind")?;
        Ok(Self {
            program: cli::this_program()?,
            place: NetFolder::new(&folder.join("net"))?,
            asker: Asker::new()?,
            began: cli::monotonic().as_secs_f64(),
            started: machine::now().0,
            phases: vec![],
            heights,
            rows: Rows::default(),
            floor: None,
            options,
            folder,
        })
    }

    fn now(&self) -> f64 {
        cli::monotonic().as_secs_f64() - self.began
    }

    fn phase(&mut self, text: &str) -> f64 {
        println!("bench-net: {text}");
        let now = self.now();
        self.phases.push((now, text.to_owned()));
        now
    }

    fn row(&mut self, what: &str, measured: impl Into<String>) -> &mut Row {
        self.rows.add(what, measured)
    }

    fn is_selected(&self, part: Scenario) -> bool {
        self.options.part.is_empty() || self.options.part.contains(&part)
    }

    async fn all(&mut self) -> Result<()> {
        if self.is_selected(Scenario::Engine) {
            self.engine().await?;
        }
        self.phase("start");
        self.start().await?;
        self.watch(SETTLE).await?;
        if self.is_selected(Scenario::Idle) {
            self.idle().await?;
        }
        if self.is_selected(Scenario::Latency) {
            self.latency().await?;
        }
        if self.is_selected(Scenario::Updates) {
            self.updates().await?;
        }
        if self.is_selected(Scenario::Calls) {
            self.chain_blocks().await?;
            self.calls().await?;
        }
        if self.is_selected(Scenario::Storm) {
            self.storm().await?;
        }
        if self.is_selected(Scenario::Sync) {
            self.sync().await?;
        }
        self.phase("end");
        self.draw()
    }

    async fn start(&self) -> Result<()> {
        let options = &self.options;
        // Sampled finely: a message's memory comes and goes within tenths of a second.
        let network = options.network.name();
        let mut words = vec!["--network", network, "--sample-millis", "100"];
        if options.independent {
            words.push("--independent");
        }
        let size = Size { nodes: options.nodes, memory: &options.memory };
        spawn::up(&self.program, self.place.dir(), size, options.node.as_deref(), &words).await
    }

    /// A net that is no longer needed is removed; one that is kept for inspection is stopped.
    fn leave(&self, done: bool) -> Result<()> {
        if !self.place.exists() {
            return Ok(());
        }
        let mut session = Session::open(self.place.clone())?;
        let all: Vec<usize> = (0..session.net.nodes.len()).collect();
        session.stop(&all)?;
        session.disconnect()?;
        if done && !self.options.keep {
            fs::remove_dir_all(self.place.dir())?;
        }
        Ok(())
    }

    /// Report of every node; `None` for one that does not answer.
    async fn reports(&mut self) -> Result<Vec<Option<Report>>> {
        let net = self.place.load()?;
        let mut reports = Vec::new();
        for node in &net.nodes {
            reports.push(self.asker.report(&node.url()).await.ok());
        }
        let now = self.now();
        let tip = tip(&reports);
        for (index, report) in reports.iter().enumerate() {
            if let Some(report) = report {
                writeln!(
                    self.heights,
                    "{now:.3},{index},{},{}",
                    report.height,
                    tip - report.height
                )?;
            }
        }
        Ok(reports)
    }

    /// Lets time pass and notes heights.
    async fn watch(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.reports().await?;
            tokio::time::sleep(HEIGHTS_EVERY.min(end.saturating_duration_since(Instant::now())))
                .await;
        }
        Ok(())
    }

    /// The series so far, a node each.
    fn series(&self) -> Result<Vec<NodeSeries>> {
        let net = self.place.load()?;
        let of = |index: usize| {
            let series = self.place.series(index);
            let runs = [series.with_extension("before.jsonl"), series];
            let runs: Vec<PathBuf> = runs.into_iter().filter(|run| run.exists()).collect();
            merge::read(&runs, self.began)
        };
        (0..net.nodes.len()).map(of).collect()
    }

    async fn hammer(&mut self, name: &str, endpoints: &[String], flags: &[&str]) -> Result<Value> {
        let file = |kind: &str| self.folder.join(format!("hammer-{name}.{kind}"));
        let (json, log) = (file("json"), file("log"));
        let mut command = Command::new(&self.program);
        command.args(["hammer", "--no-progress", "--json"]).arg(&json);
        for endpoint in endpoints {
            command.args(["--endpoint", endpoint]);
        }
        cli::detach(&mut command, &log)?.args(flags).stdout(File::create(file("txt"))?);
        let mut hammer = Child::spawn(&mut command, "the hammer")?;
        let timeout = HAMMER_TIMEOUT + Duration::from_secs_f64(self.options.minutes * 60.0);
        let reports = async || self.reports().await.map(drop);
        let status = hammer.ended_meanwhile(timeout, HEIGHTS_EVERY, reports).await?;
        let report =
            fs::read(&json).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        match report {
            Some(report) => Ok(report),
            None => {
                let said = fs::read_to_string(log).unwrap_or_default();
                bail!("the hammer ended with {status}: {}", said.trim())
            }
        }
    }

    fn endpoints(&self) -> Result<Vec<String>> {
        Ok(self.place.load()?.nodes.iter().map(crate::net::state::Node::url).collect())
    }

    async fn idle(&mut self) -> Result<()> {
        let from = self.phase("idle");
        let before = self.reports().await?;
        let cpu_before = self.node_cpu()?;
        // No reports are requested meanwhile: a report costs more than a tenth of an idle block.
        tokio::time::sleep(Duration::from_secs(self.options.idle_seconds)).await;
        let cpu_after = self.node_cpu()?;
        let after = self.reports().await?;
        let to = self.now();
        let series = self.series()?;
        let memory: Vec<u64> = series.iter().filter_map(|node| node.median(from, to)).collect();
        let cpu: Vec<f64> = series.iter().filter_map(|node| node.cpu_percent(from, to)).collect();
        ensure!(
            memory.len() == series.len() && cpu.len() == series.len(),
            "a node has no samples while idle"
        );
        let most = memory.iter().copied().max().unwrap_or(0);
        self.row("idle anonymous memory, per node", join(&memory, |bytes| mib(*bytes)))
            .goal(format!("< {} MiB", IDLE_BYTES_MAX / MIB), most < IDLE_BYTES_MAX)
            .figure("idle, anonymous memory of the largest node", most as f64, "bytes");
        let most = cpu.iter().copied().fold(0.0, f64::max);
        self.row("idle CPU, per node", join(&cpu, |percent| format!("{percent:.2} %")))
            .goal(format!("< {IDLE_CPU_PERCENT_MAX} % of a core"), most < IDLE_CPU_PERCENT_MAX)
            .figure("idle, CPU of the busiest node", most, "%");
        let blocks = tip(&after).saturating_sub(tip(&before));
        let spent = cpu_after.iter().zip(&cpu_before).map(|(after, before)| after.since(*before));
        let spent: Vec<MemberCpu> = spent.map(MemberCpu::from).collect();
        let most = self.floor.map(|floor| floor.idle_millis);
        self.block_cost("empty", &spent, blocks, most)?;
        let rounds = blocks as f64 / (to - from);
        self.row("rounds a second while idle", format!("{rounds:.2}")).figure(
            "rounds while idle",
            rounds,
            "/s",
        );
        Ok(())
    }

    async fn latency(&mut self) -> Result<()> {
        self.phase("latency");
        let load = ["--mode", "throughput", "--operations", "300", "--concurrency", "1"];
        let flags = [&load[..], &["--verify-every", "1"]].concat();
        let endpoints = self.endpoints()?;
        let report = self.hammer("latency", &endpoints, &flags).await?;
        let latency = kind(&report, "count").and_then(|kind| kind.get("latency_ms"));
        let at = |quantile: &str| latency.and_then(|latency| latency.get(quantile)?.as_f64());
        let p50 = at("p50").context("the hammer reports no latency")?;
        let p99 = at("p99");
        let said = format!("{p50:.1} / {:.1} ms", p99.unwrap_or(f64::NAN));
        let row = self
            .row("finalised update, p50 / p99, certificate verified", said)
            .goal(format!("p50 < {LATENCY_MILLIS_MAX} ms"), p50 < LATENCY_MILLIS_MAX)
            .figure("finalised update, p50", p50, "ms");
        if let Some(p99) = p99 {
            row.figure("finalised update, p99", p99, "ms");
        }
        self.judge_hammer("latency", &report);
        Ok(())
    }

    async fn calls(&mut self) -> Result<()> {
        self.phase("calls");
        let seconds = self.options.seconds.to_string();
        let endpoints = self.endpoints()?;
        let flags =
            ["--mode", "calls", "--seconds", &seconds, "--concurrency", "8", "--depth", "3"];
        let report = self.hammer("calls", &endpoints, &flags).await?;
        let deep = ["--mode", "calls", "--seconds", &seconds, "--concurrency", "32"];
        let deep = [&deep[..], &["--depth", "20", "--best-effort", "30"]].concat();
        let best_effort = self.hammer("calls-best-effort", &endpoints, &deep).await?;
        let rate = |report: &Value| {
            let rate = report.pointer("/modes/0/inter_canister_messages_per_second");
            rate.and_then(Value::as_f64).unwrap_or(0.0)
        };
        let (few, many) = (rate(&report), rate(&best_effort));
        let best = few.max(many);
        self.row("inter-canister messages, 8 chains of 3", format!("{few:.0}/s")).figure(
            "messages between canisters, chains of 3",
            few,
            "/s",
        );
        self.row("inter-canister messages, 32 best-effort chains of 20", format!("{many:.0}/s"))
            .figure("messages between canisters, best-effort chains of 20", many, "/s");
        self.row("inter-canister messages, the better of both", format!("{best:.0}/s"))
            .goal(format!(">= {MESSAGES_PER_SECOND_MIN:.0}/s"), best >= MESSAGES_PER_SECOND_MIN);
        self.judge_hammer("calls", &report);
        self.judge_hammer("best-effort calls", &best_effort);
        Ok(())
    }

    async fn storm(&mut self) -> Result<()> {
        let from = self.phase("hybrid storm");
        let minutes = self.options.minutes;
        let seconds = (minutes * 60.0).to_string();
        let endpoints = self.endpoints()?;
        let before: u64 = workers(&self.reports().await?);
        let report =
            self.hammer("storm", &endpoints, &["--mode", "hybrid", "--seconds", &seconds]).await?;
        let reports = self.reports().await?;
        let to = self.now();
        let series = self.series()?;
        let kills: u64 = series.iter().map(|node| node.oom_kills).sum();
        self.row("storm: OOM kills, all nodes", kills.to_string()).goal("0", kills == 0);
        let restarts = series
            .iter()
            .map(|node| node.restarts)
            .sum::<u64>()
            .max(workers(&reports) - before.min(workers(&reports)));
        self.row("storm: restarts, all nodes", restarts.to_string()).goal("0", restarts == 0);
        let peaks: Vec<u64> = series.iter().filter_map(|node| node.peak(from, to)).collect();
        let most = peaks.iter().copied().max().unwrap_or(u64::MAX);
        let row = self
            .row("storm: anonymous peak, per node", join(&peaks, |bytes| mib(*bytes)))
            .goal(format!("< {} MiB", STORM_PEAK_BYTES_MAX / MIB), most < STORM_PEAK_BYTES_MAX);
        if !peaks.is_empty() {
            row.figure("storm, anonymous peak of the largest node", most as f64, "bytes");
        }
        let tip = tip(&reports);
        let behind = |report: &Option<Report>| report.as_ref().map(|report| tip - report.height);
        let said = join(&reports, |report| {
            behind(report).map_or("silent".to_owned(), |rounds| rounds.to_string())
        });
        let near = |rounds: u64| rounds <= STORM_BEHIND_MAX;
        let met = reports.iter().all(|report| behind(report).is_some_and(near));
        let subnet = !self.options.independent;
        let row = self.row("storm: rounds behind at the end, per node", said);
        row.goal(format!("<= {STORM_BEHIND_MAX}"), met).met = subnet.then_some(met);
        let [writes, reads, chains] =
            ["write", "read-query", "chain"].map(|name| done(&report, name));
        let said = format!("{writes} writes, {reads} reads, {chains} chains");
        let row = self.row("storm: operations", said).goal("some", writes > 0);
        for (name, count) in [("write", writes), ("read-query", reads), ("chain", chains)] {
            let per_second = count as f64 / (minutes * 60.0);
            row.figure(&format!("storm, {name}"), per_second, "/s");
        }
        self.judge_hammer("storm", &report);
        Ok(())
    }

    fn judge_hammer(&mut self, name: &str, report: &Value) {
        let number = |field: &str| report.get(field).and_then(Value::as_u64);
        let wrong = number("verification_failures");
        let text = wrong.map_or("not told".to_owned(), |wrong| wrong.to_string());
        self.row(&format!("{name}: verification failures"), text).goal("0", wrong == Some(0));
        if let Some(errors) = number("errors").filter(|errors| *errors > 0) {
            let what = format!("{name}: errors the hammer was answered with");
            self.row(&what, errors.to_string());
        }
    }

    async fn sync(&mut self) -> Result<()> {
        let last = self.options.nodes - 1;
        ensure!(last > 0, "a net of one node has no peer to fetch a state from");
        self.phase(&format!("sync: node {last} stops, {SYNC_STATE_MIB} MiB written"));
        let idle_to = self.now();
        let idle: Vec<u64> =
            self.series()?.iter().filter_map(|node| node.median(idle_to - 5.0, idle_to)).collect();
        Session::open(self.place.clone())?.stop(&[last])?;
        self.write_without(last).await?;

        let from = self.phase(&format!("sync: node {last} starts without state"));
        Session::open(self.place.clone())?.restart(last, true)?;
        let (synced, took) = self.until_synced(last).await?;
        let to = self.now();
        let words = if synced { "it did" } else { "it executed blocks" };
        self.row("state sync: the node fetched a state", words).goal("it did", synced);
        let text = match took {
            Some(seconds) => format!("{seconds:.1} s"),
            None => format!("not within {} s", SYNC_TIMEOUT.as_secs()),
        };
        let what =
            format!("state sync of {SYNC_STATE_MIB} MiB, to within {STORM_BEHIND_MAX} rounds");
        let met = took.is_some_and(|seconds| seconds < SYNC_SECONDS_MAX);
        let row = self.row(&what, text).goal(format!("< {SYNC_SECONDS_MAX} s"), met);
        if let Some(seconds) = took.filter(|_| synced) {
            row.figure("state sync", seconds, "s");
        }
        self.judge_sync_memory((from, to), &idle)
    }

    /// Writes [`SYNC_STATE_MIB`] to the nodes before `last`, and continues until none of them keeps
    /// the blocks of it.
    async fn write_without(&mut self, last: usize) -> Result<()> {
        let mut endpoints = self.endpoints()?;
        endpoints.truncate(last);
        // 25 writes of 4 MiB to each of three canisters cover it once.
        let fill = format!("{}MiB", SYNC_STATE_MIB / 3);
        let operations = (SYNC_STATE_MIB / 4).to_string();
        let dirty = ["--mode", "dirty", "--fill", &fill, "--operations", &operations, "--keep"];
        let flags = [&dirty[..], &["--write-size", "4MiB", "--read-size", "4MiB"]].concat();
        let report = self.hammer("fill", &endpoints, &flags).await?;
        self.judge_hammer("fill", &report);
        // A smaller state is fetched sooner, and would be compared with a whole one.
        ensure!(
            report.get("errors").and_then(Value::as_u64) == Some(0),
            "the {SYNC_STATE_MIB} MiB were not written, and nothing is to be fetched (is there disk \
             for {} nodes?); hammer-fill.txt in {} has the errors",
            self.options.nodes,
            self.folder.display()
        );
        self.phase("sync: the others continue until they keep none of those blocks");
        let goal = tip(&self.reports().await?) + SYNC_ROUNDS;
        let began = Instant::now();
        let flags = ["--mode", "throughput", "--seconds", "10", "--concurrency", "4"];
        while tip(&self.reports().await?) < goal {
            ensure!(began.elapsed() < HAMMER_TIMEOUT, "the others do not continue");
            self.hammer("pass", &endpoints, &flags).await?;
        }
        Ok(())
    }

    /// Whether node `last` fetched a state, and after how many seconds it was near the others.
    async fn until_synced(&mut self, last: usize) -> Result<(bool, Option<f64>)> {
        let started = Instant::now();
        let mut synced = false;
        while started.elapsed() <= SYNC_TIMEOUT {
            let reports = self.reports().await?;
            if let Some(report) = reports.get(last).and_then(Option::as_ref) {
                synced |= report.syncing;
                let near = tip(&reports) - report.height <= STORM_BEHIND_MAX;
                if report.healthy && near && report.height > 0 {
                    return Ok((synced, Some(started.elapsed().as_secs_f64())));
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok((synced, None))
    }

    /// Memory cost of a state sync for each node, the serving nodes included.
    fn judge_sync_memory(&mut self, (from, to): (f64, f64), idle: &[u64]) -> Result<()> {
        let series = self.series()?;
        let extra: Vec<u64> = series
            .iter()
            .zip(idle)
            .filter_map(|(node, idle)| Some(node.peak(from, to)?.saturating_sub(*idle)))
            .collect();
        let small = extra.iter().all(|bytes| *bytes < SYNC_EXTRA_BYTES_MAX);
        let what = "state sync: anonymous peak above idle, per node";
        let goal = format!("< {} MiB", SYNC_EXTRA_BYTES_MAX / MIB);
        let row = self.row(what, join(&extra, |bytes| mib(*bytes)));
        row.goal(goal, extra.len() == series.len() && small);
        if let Some(most) = extra.iter().max() {
            let name = "state sync, anonymous peak above idle of the worst node";
            row.figure(name, *most as f64, "bytes");
        }
        Ok(())
    }

    /// The tables and the picture.
    fn draw(&self) -> Result<()> {
        let series = self.series()?;
        merge::write_table(&series, &self.folder.join("nodes.csv"))?;
        let all = self.folder.join("nodes.jsonl");
        let header = Header {
            format: FORMAT,
            name: format!("{} nodes", self.options.nodes),
            command: vec!["thimble-lab bench-net".into()],
            machine: machine::describe(),
            cap_bytes: parse_size(&self.options.memory)?.saturating_mul(self.options.nodes as u64),
            pressure_of: "none".into(),
            group: self.place.info(0).map_or_else(String::new, |info| info.group),
            interval_millis: (merge::STEP_SECONDS * 1e3) as u64,
            started: self.started.clone(),
            ..Header::default()
        };
        merge::write_series(&series, header, &self.phases, &all)?;
        picture::draw(&all, &self.folder.join("nodes.svg")).context("drawing the picture")
    }
}

/// One after the other, as a table has them.
fn join<T>(all: &[T], text: impl Fn(&T) -> String) -> String {
    all.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn tip(reports: &[Option<Report>]) -> u64 {
    reports.iter().flatten().map(|report| report.height).max().unwrap_or(0)
}

fn workers(reports: &[Option<Report>]) -> u64 {
    reports.iter().flatten().map(|report| report.worker_restarts).sum()
}

/// Phases of the hammer's report that are not preparations.
fn measured_phases(report: &Value) -> impl Iterator<Item = &Value> {
    let modes = report.get("modes").and_then(Value::as_array).into_iter().flatten();
    let phases = modes.filter_map(|mode| mode.get("phases")?.as_array()).flatten();
    phases.filter(|phase| phase.get("preparation").and_then(Value::as_bool) != Some(true))
}

/// The first of them.
fn measured_phase(report: &Value) -> Option<&Value> {
    measured_phases(report).next()
}

/// A kind of operation in the hammer's report, in any phase that is not a preparation.
fn kind<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    measured_phases(report).find_map(|phase| phase.pointer(&format!("/kinds/{name}")))
}

/// How many operations of a kind were done.
fn done(report: &Value, name: &str) -> u64 {
    kind(report, name).and_then(|kind| kind.get("done")?.as_u64()).unwrap_or(0)
}
