//! `thimble-lab bench-state`: how a node handles more than fits its memory: state, canisters, calls
//! that it has to remember, modules. Each part has a node of its own, so that none begins with the
//! state of another.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use accounting::{format_size, parse_size};
use anyhow::{Context, Result, ensure};
use candid::{Decode, Encode, Principal};
use clap::{Args, ValueEnum};
use demo::{client, measure};
use flate2::{Compression, write::GzEncoder};
use ic_agent::Agent;
use ic_management_canister_types::CanisterInstallMode;
use tokio::task::JoinSet;
use wasm_encoder::{ConstExpr, DataSection, MemorySection, MemoryType, Module};

use super::{
    Bench, PATIENCE, Table, median,
    node::{Binary, Node},
    rates::{Kind, Load, Target, rate},
    scratch,
};
use crate::{
    hammer::protocol::{Route, decode_words, ring},
    machine,
};

/// Canisters between two words about progress.
const PROGRESS_EVERY: usize = 5_000;
/// The node that a large module is installed in.
const SMALL_NODE: &str = "128MiB";

/// Command line of `thimble-lab bench-state`.
#[derive(Args)]
pub struct Options {
    /// The node's binary. [default: thimble in the folder of this program]
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
    /// The node's memory budget.
    #[arg(long, default_value = "512MiB")]
    memory: String,
    /// The node's disk budget; by default what is free.
    #[arg(long)]
    disk: Option<String>,
    /// State that is written and read back.
    #[arg(long, default_value = "4GiB")]
    state: String,
    /// Canisters that are created, installed and each called twice.
    #[arg(long, default_value_t = 1_000)]
    canisters: usize,
    /// Measure these parts alone.
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Scenario>,
    /// Let the node have more memory than its budget: what the kernel keeps of files then counts
    /// for nothing.
    #[arg(long)]
    without_cap: bool,
    /// Seconds of calls that are signed five minutes ahead.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Calls in flight.
    #[arg(long, default_value_t = 32)]
    concurrency: usize,
    /// Modules, each another, whose canisters have timers when the node is started again.
    #[arg(long, default_value_t = 50)]
    modules: usize,
    /// Folder with the canister modules.
    #[arg(long, default_value = "canisters/wasm")]
    wasm: PathBuf,
    /// Write the figures to this file, which thimble-lab compare reads; without a value, or for -,
    /// to standard output instead of the table.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Parts of the measurement, each on a node of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// State that is written and read back, with restarts on the way.
    State,
    /// Idle canisters.
    Canisters,
    /// Calls that are signed far ahead.
    Calls,
    /// Guaranteed calls that one canister has open at once.
    OpenCalls,
    /// A large module in a small node.
    LargeModule,
    /// A restart with many modules.
    Modules,
    /// How long others wait for an installation.
    Install,
}

/// Bytes that one message writes and one query reads.
const PIECE_BYTES: u64 = 24 << 20;
/// Pieces of one canister.
const PIECES: u64 = 40;
/// Pieces that are changed before a restart: 96 MiB.
const CHANGED_PIECES: u64 = 4;
/// A page of stable memory.
const STABLE_PAGE_BYTES: u64 = 64 << 10;
/// How far ahead senders sign who are in no hurry.
const SIGNED_AHEAD: Duration = Duration::from_secs(300);
/// Interval of memory samples.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Canisters that the memory of many is compared with.
const FEW_CANISTERS: usize = 100;
/// Canisters that one canister calls at once, calls towards each, and the cycles it needs for them.
const CALLEES: u64 = 20;
const CALLS_TO_EACH: u64 = 500;
const CYCLES_OF_CALLER: u64 = 10_000_000_000_000_000;
/// Bytes of the three counts that a fanout replies.
const FAN_COUNTS_BYTES: usize = 24;
/// Calls that 512 MiB of memory and 100 GiB of disk must have room for.
const OPEN_CALLS_GOAL: u64 = 10_000;
/// Time for a node to become idle.
const REST: Duration = Duration::from_secs(15);

/// Runs everything and prints the table.
pub async fn run(options: Options) -> Result<()> {
    let scratch = scratch("bench-state");
    let program = cli::program(options.node.as_deref(), "thimble", "node")?;
    let mut bench =
        Bench { options: &options, program: &program, scratch: &scratch, table: Table::default() };
    let outcome = bench.measure_all().await;
    let table = bench.table;
    let _ = std::fs::remove_dir_all(&scratch);
    let report = serde_json::json!({
        "format": compare::figure::FORMAT, "bench": "bench-state", "machine": machine(),
        "memory": options.memory, "state": options.state, "canisters": options.canisters,
        "seconds": options.seconds, "modules": options.modules,
        "rows": table.rows, "figures": table.figures,
        "failed": outcome.as_ref().err().map(|error| format!("{error:#}")),
    });
    let node = format!("--memory {}; {} calls in flight", options.memory, options.concurrency);
    // What was measured before a part failed is shown all the same.
    let published = table.publish(&report, options.json.as_deref(), &node);
    outcome.and(published)
}

impl Bench<'_, Options> {
    async fn measure_all(&mut self) -> Result<()> {
        for part in Scenario::value_variants() {
            if !self.options.parts.is_empty() && !self.options.parts.contains(part) {
                continue;
            }
            match part {
                Scenario::State => self.state().await?,
                Scenario::Canisters => self.canisters().await?,
                Scenario::Calls => self.calls().await?,
                Scenario::OpenCalls => self.open_calls().await?,
                Scenario::LargeModule => self.large_module().await?,
                Scenario::Modules => self.modules().await?,
                Scenario::Install => self.install_beside_others().await?,
            }
        }
        Ok(())
    }

    fn binary(&self) -> Binary<'_> {
        Binary {
            program: self.program,
            memory: &self.options.memory,
            disk: self.options.disk.as_deref(),
            http_gateway: None,
            capped: !self.options.without_cap,
        }
    }

    async fn start_fresh(&self, name: &str) -> Result<(Node, Agent, PathBuf)> {
        eprintln!("bench-state: {name}");
        let data = self.scratch.join(name);
        let (node, _) = Node::start(&self.binary(), &data).await?;
        let agent = client::connect(&node.url, PATIENCE).await?;
        Ok((node, agent, data))
    }

    async fn stop_and_remove(&self, node: Node, data: &Path) -> Result<()> {
        node.stop().await?;
        Ok(std::fs::remove_dir_all(data)?)
    }

    /// More state than memory, written and read back. On the way, at a twentieth, a fourth and all
    /// of it, a little is changed and the node is started again: both must cost what was changed.
    async fn state(&mut self) -> Result<()> {
        let bytes = parse_size(&self.options.state).context("--state")?;
        let (mut node, mut agent, data) = self.start_fresh("state").await?;
        let pieces = bytes.div_ceil(PIECE_BYTES);
        let mut filled = CanisterPieces::default();
        let (mut wrote, mut anonymous) = (0.0, 0);
        let mut curve = Vec::new();
        let mut stages = vec![pieces.div_ceil(20), pieces.div_ceil(4), pieces];
        stages.dedup();
        for stage in stages {
            let peak = Peak::watch(&node);
            let started = Instant::now();
            self.fill(&agent, &mut filled, stage, pieces).await?;
            wrote += started.elapsed().as_secs_f64();
            filled.change(&agent).await?;
            anonymous = anonymous.max(peak.end().await);
            let started = Instant::now();
            node.stop().await?;
            let stopped = started.elapsed().as_secs_f64();
            let (again, took) = Node::start(&self.binary(), &data).await?;
            node = again;
            agent = client::connect(&node.url, PATIENCE).await?;
            curve.push((stage * PIECE_BYTES, stopped, took.as_secs_f64()));
        }
        let peak = Peak::watch(&node);
        let started = Instant::now();
        filled.verify(&agent).await?;
        let read = started.elapsed().as_secs_f64();
        anonymous = anonymous.max(peak.end().await);
        let mib = (pieces * PIECE_BYTES) as f64 / f64::from(1 << 20);
        self.row(
            format!("{mib:.0} MiB of state written and read back, anonymous peak"),
            measure::mib(anonymous),
        )
        .goal("< 170 MiB", anonymous < 170 << 20)
        .figure("state, anonymous peak", anonymous as f64, "bytes")
        .figure("state, written", mib / wrote, "MiB/s")
        .figure("state, read", mib / read, "MiB/s");
        let rates = format!("{:.0} / {:.0} MiB/s", mib / wrote, mib / read);
        self.row("the same, written / read", rates);
        for (bytes, stopped, started) in curve {
            let of = format_size(bytes);
            self.row(
                format!("{of}, 96 MiB changed: stop with a checkpoint / restart"),
                format!("{stopped:.2} / {started:.2} s"),
            )
            .goal("restart < 1 s", started < 1.0)
            .figure(&format!("state, stop at {of}"), stopped * 1e3, "ms")
            .figure(&format!("state, restart at {of}"), started * 1e3, "ms");
        }
        self.stop_and_remove(node, &data).await
    }

    /// Writes until `filled` has `until` of `pieces`.
    async fn fill(
        &self,
        agent: &Agent,
        filled: &mut CanisterPieces,
        until: u64,
        pieces: u64,
    ) -> Result<()> {
        let module = self.options.wasm.join("workbench.wasm");
        while filled.pieces() < until {
            let open = filled.canisters.last_mut().filter(|(_, count)| *count < PIECES);
            let (canister, piece) = match open {
                Some((canister, count)) => {
                    *count += 1;
                    (*canister, *count - 1)
                }
                None => {
                    let canister = client::deploy(agent, &module).await?;
                    let grow = Encode!(&(PIECES * PIECE_BYTES / STABLE_PAGE_BYTES))?;
                    agent.update(&canister, "stable_grow").with_arg(grow).call_and_wait().await?;
                    filled.canisters.push((canister, 1));
                    (canister, 0)
                }
            };
            write_piece(agent, &canister, piece).await?;
            if filled.pieces().is_multiple_of(PIECES) || filled.pieces() == until {
                let written = filled.pieces();
                eprintln!("bench-state: {written} of {pieces} pieces of 24 MiB are written");
            }
        }
        Ok(())
    }

    /// Many canisters that do nothing, each called twice before.
    async fn canisters(&mut self) -> Result<()> {
        let (node, agent, data) = self.start_fresh("canisters").await?;
        let count = self.options.canisters.max(FEW_CANISTERS);
        let module = Arc::new(std::fs::read(self.options.wasm.join("counter-c.wasm"))?);
        let started = Instant::now();
        let mut ids = Vec::new();
        let mut few = 0;
        for batch in (0..count).step_by(FEW_CANISTERS) {
            let mut tasks = JoinSet::new();
            for _ in batch..count.min(batch + FEW_CANISTERS) {
                let (agent, module) = (agent.clone(), module.clone());
                tasks.spawn(async move {
                    let id = client::create(&agent, None).await?;
                    let mode = CanisterInstallMode::Install;
                    client::install(&agent, id, mode, module.to_vec(), Encode!()?).await?;
                    anyhow::Ok(id)
                });
                if tasks.len() >= 8
                    && let Some(id) = tasks.join_next().await
                {
                    ids.push(id??);
                }
            }
            while let Some(id) = tasks.join_next().await {
                ids.push(id??);
            }
            if batch == 0 {
                few = idle_anonymous_bytes(&node).await?;
            }
            if ids.len() % PROGRESS_EVERY == 0 {
                let seconds = started.elapsed().as_secs_f64();
                eprintln!("bench-state: {} of {count} canisters after {seconds:.0} s", ids.len());
            }
        }
        let installed = started.elapsed().as_secs_f64();
        for _ in 0..2 {
            self.call_each(&agent, &ids).await?;
        }
        let took = started.elapsed();
        let many = idle_anonymous_bytes(&node).await?;
        let more = many.saturating_sub(few);
        self.row(
            format!("{count} canisters at rest: memory beyond that of {FEW_CANISTERS}"),
            measure::mib(more),
        )
        .goal("< 8 MiB", more < 8 << 20)
        .figure("canisters, memory beyond that of 100", more as f64, "bytes");
        let called = took.as_secs_f64() - installed;
        let rates = format!("{installed:.0} s / {called:.0} s");
        self.row("the same, installed / each called twice", rates);
        let descriptors = node.open_files()?;
        self.table.figure("canisters, descriptors of the node", descriptors as f64, "");
        self.row("the same, open files of the node", descriptors.to_string());
        let last = ids.last().context("there is no canister")?;
        let counted = agent.query(last, "get").with_arg(vec![]).call().await?;
        node.stop().await?;
        let (node, took) = Node::start(&self.binary(), &data).await?;
        let seconds = took.as_secs_f64();
        self.table.figure("canisters, restart to the first certificate", seconds * 1e3, "ms");
        self.row("the same, restart to the first certificate", format!("{seconds:.2} s"));
        let agent = client::connect(&node.url, PATIENCE).await?;
        let after = agent.query(last, "get").with_arg(vec![]).call().await?;
        ensure!(counted == after, "{last} had {counted:?} before the restart and has {after:?}");
        self.stop_and_remove(node, &data).await
    }

    /// An update of each canister, some at a time.
    async fn call_each(&self, agent: &Agent, ids: &[Principal]) -> Result<()> {
        let mut tasks = JoinSet::new();
        for id in ids {
            let (agent, id) = (agent.clone(), *id);
            tasks.spawn(async move {
                agent.update(&id, "inc").with_arg(vec![]).call_and_wait().await.map(drop)
            });
            if tasks.len() >= self.options.concurrency {
                tasks.join_next().await.transpose()?.transpose()?;
            }
        }
        while let Some(called) = tasks.join_next().await {
            called??;
        }
        Ok(())
    }

    /// Calls of senders who sign far ahead, so that the node has to remember each for long.
    async fn calls(&mut self) -> Result<()> {
        let (node, agent, data) = self.start_fresh("calls").await?;
        let counter = client::deploy(&agent, &self.options.wasm.join("counter-c.wasm")).await?;
        let agent = client::connect_signing_for(SIGNED_AHEAD, &node.url, PATIENCE).await?;
        let peak = Peak::watch(&node);
        let load = Load { concurrency: self.options.concurrency, seconds: self.options.seconds };
        let target = Target { agent: &agent, node: &node, canister: counter, kind: Kind::Update };
        let calls = rate(load, target).await?;
        let anonymous = peak.end().await;
        self.row(
            format!("calls signed 5 min ahead, for {} s", self.options.seconds),
            format!("{:.0}/s", calls.per_second),
        )
        .goal(">= 2,000/s", calls.per_second >= 2000.0)
        .figure("calls signed five minutes ahead", calls.per_second, "/s")
        .figure("the same, anonymous peak", anonymous as f64, "bytes");
        self.row("the same, anonymous peak", measure::mib(anonymous));
        // What is remembered is read again.
        node.stop().await?;
        let (node, took) = Node::start(&self.binary(), &data).await?;
        let seconds = took.as_secs_f64();
        self.table.figure("calls, restart to the first certificate", seconds * 1e3, "ms");
        self.row("the same, restart with what is remembered", format!("{seconds:.2} s"));
        self.stop_and_remove(node, &data).await
    }

    /// Guaranteed calls that one message of one canister makes: all are open when it ends, or were
    /// refused.
    async fn open_calls(&mut self) -> Result<()> {
        let (node, agent, data) = self.start_fresh("open calls").await?;
        let module = std::fs::read(self.options.wasm.join("hammer-c.wasm"))?;
        let caller = client::create(&agent, Some(CYCLES_OF_CALLER)).await?;
        client::install(&agent, caller, CanisterInstallMode::Install, module, Encode!()?).await?;
        let mut canisters = vec![caller];
        for _ in 0..CALLEES {
            canisters.push(client::deploy(&agent, &self.options.wasm.join("hammer-c.wasm")).await?);
        }
        let ring = ring(&canisters);
        let route = Route {
            hops_left: CALLS_TO_EACH,
            hop: CALLEES,
            member: 0,
            ring: &ring,
            timeout_seconds: 0,
            payload_bytes: 256,
        };
        let peak = Peak::watch(&node);
        let started = Instant::now();
        let reply = agent.update(&caller, "fan").with_arg(route.encode()).call_and_wait().await?;
        let seconds = started.elapsed().as_secs_f64();
        let anonymous = peak.end().await;
        // The counts are followed by the text of one of the rejects.
        let (counts, text) = reply.split_at(reply.len().min(FAN_COUNTS_BYTES));
        let [replied, rejected, not_sent] = decode_words(counts)[..] else {
            anyhow::bail!("a fanout replied {} bytes, {reply:?}", reply.len());
        };
        self.row(
            "guaranteed calls open at once, all answered",
            format!("{replied} ({rejected} rejected, {not_sent} refused)"),
        )
        .goal(">= 10,000 (100 GiB of disk)", replied >= OPEN_CALLS_GOAL)
        .figure("guaranteed calls open at once", replied as f64, "calls")
        .figure("open calls, anonymous peak", anonymous as f64, "bytes");
        if !text.is_empty() {
            eprintln!("bench-state: one was rejected: {}", String::from_utf8_lossy(text));
        }
        self.row("the same, until the last answer", format!("{seconds:.1} s"));
        self.row("the same, anonymous peak", measure::mib(anonymous));
        self.stop_and_remove(node, &data).await
    }

    /// A large module in a small node.
    async fn large_module(&mut self) -> Result<()> {
        eprintln!("bench-state: a large module");
        let data = self.scratch.join("large");
        let binary = Binary { memory: SMALL_NODE, ..self.binary() };
        let (node, _) = Node::start(&binary, &data).await?;
        let agent = client::connect(&node.url, PATIENCE).await?;
        let canister = client::create(&agent, None).await?;
        let peak = Peak::watch(&node);
        let started = Instant::now();
        let mode = CanisterInstallMode::Install;
        // Packed, because a call has room for 2 MiB.
        let module = packed(&large_module())?;
        let installed = client::install(&agent, canister, mode, module, Encode!()?).await;
        let seconds = started.elapsed().as_secs_f64();
        let anonymous = peak.end().await;
        self.row(
            format!("module of 10 MB, most of it data, in {SMALL_NODE}"),
            match &installed {
                Ok(()) => format!("installs in {seconds:.1} s"),
                Err(error) => format!("{error:#}"),
            },
        )
        .goal("installs", installed.is_ok());
        self.row("the same, anonymous peak", measure::mib(anonymous));
        self.stop_and_remove(node, &data).await
    }

    /// A restart with many modules, and the first query of each.
    async fn modules(&mut self) -> Result<()> {
        let (node, agent, data) = self.start_fresh("modules").await?;
        let count = self.options.modules;
        let module = std::fs::read(self.options.wasm.join("workbench.wasm"))?;
        let mut ids: Vec<Principal> = Vec::new();
        for number in 0..count {
            let id = client::create(&agent, None).await?;
            let (mode, module) =
                (CanisterInstallMode::Install, with_custom_section(&module, number));
            client::install(&agent, id, mode, module, Encode!()?).await?;
            let every = Encode!(&1_000_000_000_u64)?;
            agent.update(&id, "start_interval").with_arg(every).call_and_wait().await?;
            ids.push(id);
            if ids.len().is_multiple_of(10) {
                eprintln!("bench-state: {} of {count} modules are installed", ids.len());
            }
        }
        node.stop().await?;
        let (node, took) = Node::start(&self.binary(), &data).await?;
        let agent = client::connect(&node.url, PATIENCE).await?;
        let certified = took.as_secs_f64();
        let mut queries = Vec::new();
        for id in &ids {
            let started = Instant::now();
            agent.query(id, "get").with_arg(Encode!()?).call().await?;
            queries.push(started.elapsed().as_secs_f64() * 1e3);
        }
        let longest = queries.iter().copied().fold(0.0, f64::max);
        self.row(
            format!("{count} modules with timers: restart to the first certificate"),
            format!("{certified:.2} s"),
        )
        .goal("< 1 s", certified < 1.0)
        .figure("modules, restart to the first certificate", certified * 1e3, "ms")
        .figure("modules, longest cold query", longest, "ms");
        self.row(
            "the same, first query of each, median / longest",
            format!("{:.0} / {longest:.0} ms", median(queries)),
        )
        .goal("< 100 ms", longest < 100.0);
        self.stop_and_remove(node, &data).await
    }

    /// How long updates of others wait while a large module is installed.
    async fn install_beside_others(&mut self) -> Result<()> {
        let (node, agent, data) = self.start_fresh("install").await?;
        let counter = client::deploy(&agent, &self.options.wasm.join("counter-c.wasm")).await?;
        let module = std::fs::read(self.options.wasm.join("azle-hello.wasm.gz"))?;
        let canister = client::create(&agent, None).await?;
        let done = AtomicBool::new(false);
        let (installed, longest) = tokio::join!(
            async {
                let started = Instant::now();
                let mode = CanisterInstallMode::Install;
                let installed = client::install(&agent, canister, mode, module, Encode!()?).await;
                done.store(true, Ordering::Relaxed);
                installed.map(|()| started.elapsed())
            },
            async {
                let mut longest = Duration::ZERO;
                while !done.load(Ordering::Relaxed) {
                    let started = Instant::now();
                    agent.update(&counter, "inc").with_arg(vec![]).call_and_wait().await?;
                    longest = longest.max(started.elapsed());
                }
                anyhow::Ok(longest)
            }
        );
        let (installed, longest) = (installed?.as_secs_f64(), longest?.as_secs_f64() * 1e3);
        self.row(
            "longest wait of other updates while 3 MB are installed",
            format!("{longest:.0} ms"),
        )
        .goal("< 300 ms", longest < 300.0)
        .figure("install, longest wait of others", longest, "ms");
        self.row("the same, the installation", format!("{installed:.1} s"));
        self.stop_and_remove(node, &data).await
    }
}

/// Canisters and how many pieces each holds.
#[derive(Default)]
struct CanisterPieces {
    canisters: Vec<(Principal, u64)>,
}

impl CanisterPieces {
    fn pieces(&self) -> u64 {
        self.canisters.iter().map(|(_, count)| count).sum()
    }

    /// Writes a few pieces again.
    async fn change(&self, agent: &Agent) -> Result<()> {
        let (canister, count) = self.canisters.first().context("there is no state")?;
        for piece in 0..CHANGED_PIECES {
            write_piece(agent, canister, piece % count).await?;
        }
        Ok(())
    }

    async fn verify(&self, agent: &Agent) -> Result<()> {
        for (canister, count) in &self.canisters {
            for piece in 0..*count {
                let range = Encode!(&(piece * PIECE_BYTES), &PIECE_BYTES)?;
                let sum = agent.query(canister, "stable_read_sum").with_arg(range).call().await?;
                let expected = PIECE_BYTES * u64::from(byte_of(piece));
                ensure!(Decode!(&sum, u64)? == expected, "piece {piece} of {canister} differs");
            }
        }
        Ok(())
    }
}

async fn write_piece(agent: &Agent, canister: &Principal, piece: u64) -> Result<()> {
    let fill = Encode!(&(piece * PIECE_BYTES), &PIECE_BYTES, &byte_of(piece))?;
    agent.update(canister, "stable_fill").with_arg(fill).call_and_wait().await?;
    Ok(())
}

/// What a piece is filled with: never zero, which would be free.
fn byte_of(piece: u64) -> u8 {
    u8::try_from(piece % 250).unwrap_or(0) + 1
}

/// A module without code, with a memory and 10 MB of data in it.
fn large_module() -> Vec<u8> {
    const DATA_BYTES: usize = 10_000_000;
    let (mut memories, mut data) = (MemorySection::new(), DataSection::new());
    memories.memory(MemoryType {
        minimum: DATA_BYTES.div_ceil(64 << 10) as u64,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    data.active(0, &ConstExpr::i32_const(0), vec![b'd'; DATA_BYTES]);
    let mut module = Module::new();
    module.section(&memories).section(&data);
    module.finish()
}

fn packed(module: &[u8]) -> Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(module)?;
    Ok(packed.finish()?)
}

/// The same module with another hash: a custom section more, named `n`, that holds its number.
fn with_custom_section(module: &[u8], number: usize) -> Vec<u8> {
    let content = (number as u64).to_le_bytes();
    let mut another = module.to_vec();
    // Section 0; its length; the length of its name; its name; its content.
    another.extend([0, 2 + content.len() as u8, 1, b'n']);
    another.extend(content);
    another
}

/// Anonymous memory of a node that has nothing to do any more.
async fn idle_anonymous_bytes(node: &Node) -> Result<u64> {
    tokio::time::sleep(REST).await;
    Ok(measure::totals(&measure::processes(node.pid)?).0)
}

/// The most anonymous memory of a node, until asked.
struct Peak {
    most: Arc<AtomicU64>,
    watching: tokio::task::JoinHandle<()>,
}

impl Peak {
    fn watch(node: &Node) -> Self {
        let (pid, most) = (node.pid, Arc::new(AtomicU64::new(0)));
        let seen = most.clone();
        let watching = tokio::spawn(async move {
            loop {
                if let Ok(processes) = measure::processes(pid) {
                    seen.fetch_max(measure::totals(&processes).0, Ordering::Relaxed);
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        Self { most, watching }
    }

    async fn end(self) -> u64 {
        self.watching.abort();
        let _ = self.watching.await;
        self.most.load(Ordering::Relaxed)
    }
}
