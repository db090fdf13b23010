//! `thimble-lab chaos`: random faults are injected into a net under client load; then it is healed,
//! and the client-visible history is checked.
//!
//! This part injects faults (`plan`) and keeps time. The clients and the checker are `thimble-lab
//! history`, a separate program: it gets no information about the faults, except lines in the
//! history for human readers.

mod local;
mod plan;

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use cli::{Child, Stop};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::{
    local::Disks,
    plan::{Action, Plan, Possible},
};
use crate::net::{
    self, Network,
    links::Quality,
    reading::{self, Asker},
    session::{Condition, Session},
    spawn::{self, Size},
    state::NetFolder,
    status,
    wait::{self, Goal},
};
use memory_cap::machine;

/// Clients work so long before the first fault and after everything is healed.
const CALM: Duration = Duration::from_secs(3);
/// For the recorder to make its canisters, and for its clients to end.
const RECORDER_TIMEOUT: Duration = Duration::from_secs(90);
/// For the calls that `misuse` makes in the end, and for those in flight.
const MISUSE_TIMEOUT: Duration = Duration::from_secs(180);
/// For something to be compiled, so that it can be killed.
const COMPILER_TIMEOUT: Duration = Duration::from_millis(1_500);
/// For reading all that all nodes hold.
const FINISH_TIMEOUT: Duration = Duration::from_secs(900);
/// A node that is further behind the others is still recovering.
const BEHIND_MAX: u64 = 20;
/// Largest number of reports of nodes that ended by themselves.
const SURPRISES_MAX: usize = 20;
/// How often it is looked whether nodes serve again, or ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Of the seconds of faults: appends that pages are made for, a second and canister.
const PAGES_PER_SECOND: u64 = 30;

/// Command line of `thimble-lab chaos`.
#[derive(Args)]
pub struct Options {
    /// Seconds of faults.
    #[arg(long, default_value_t = 300)]
    duration: u64,
    /// Of which faults, and of what the clients do. [default: another one each time; printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Folder of a net that runs already and is left running. [default: a new net, removed in the
    /// end]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Nodes of a new net.
    #[arg(long, default_value_t = 4, conflicts_with = "dir")]
    nodes: usize,
    /// Memory of each node of a new net.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", conflicts_with = "dir")]
    memory: String,
    /// How the nodes of a new net reach each other.
    #[arg(long, conflicts_with = "dir")]
    network: Option<Network>,
    /// The binary of a new net's nodes. [default: thimble in the folder of this program]
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    node: Option<PathBuf>,
    /// Seconds within which an update through every node must be acknowledged once everything is
    /// healed.
    #[arg(long, default_value_t = 60)]
    progress_within: u64,
    /// Clients, each with one call at a time.
    #[arg(long, default_value_t = 8)]
    clients: u16,
    /// Calls and reads a second, of all clients together, at most.
    #[arg(long, default_value_t = 60.0)]
    rate: f64,
    /// Folder for a folder with the history, the logs and the new net.
    #[arg(long, value_name = "DIR", default_value = "target/chaos")]
    out: PathBuf,
    /// Leave this out; repeatable.
    #[arg(long, value_name = "FAULT")]
    without: Vec<Local>,
    /// Leave the new net's folder, stopped.
    #[arg(long)]
    keep: bool,
}

/// Trouble that is not of links or whole nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Local {
    /// Disks that fill up.
    Disks,
    /// Nodes that can open nothing more.
    Descriptors,
    /// Compilations that are killed.
    Compilations,
    /// Traffic of `thimble-lab misuse`.
    Misuse,
}

struct Files(PathBuf);

impl Files {
    fn history(&self) -> PathBuf {
        self.0.join("history.jsonl")
    }

    fn misuse(&self) -> PathBuf {
        self.0.join("misuse.log")
    }
}

/// Runs the chaos and reports the result.
pub async fn run(options: Options) -> Result<ExitCode> {
    let seed = options.seed.unwrap_or_else(|| rand::thread_rng().gen_range(0..1_000_000));
    let files = Files(options.out.join(format!("{}-{seed}", machine::now().1)));
    fs::create_dir_all(&files.0)
        .with_context(|| format!("making the folder {}", files.0.display()))?;
    println!(
        "chaos: seed {seed}, {} s of faults; everything is in {}",
        options.duration,
        files.0.display()
    );
    let own = options.dir.is_none();
    let place = NetFolder::new(&options.dir.clone().unwrap_or_else(|| files.0.join("net")))?;
    let stop = Stop::by_signal(|| {})?;
    let wanted = own && !options.without.contains(&Local::Disks);
    let disks = if wanted { Disks::make(&place, options.nodes) } else { Ok(Disks::default()) };
    let disks = disks.unwrap_or_else(|error| {
        println!(
            "chaos: no disk can be filled here: {error:#}; that needs root, mkfs.ext4 and loop \
             devices"
        );
        Disks::default()
    });
    let done = stop.race(chaos(&options, seed, &place, &files, &disks)).await;
    let left = leave(&place, own, disks, own && !options.keep && matches!(done, Some(Ok(true))));
    let Some(done) = done else {
        eprintln!("chaos: stopped; its files are in {}", files.0.display());
        left?;
        return Ok(cli::interrupted());
    };
    let good =
        done.with_context(|| format!("seed {seed}; its files are in {}", files.0.display()))?;
    left?;
    println!("machine: {}", machine::describe());
    println!("chaos: seed {seed}; the history that was checked: {}", files.history().display());
    println!("{}", if good { "chaos: nothing acknowledged is lost" } else { "chaos: FAILED" });
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A net made by this run is stopped, and removed when it is not kept for inspection; another one
/// is only healed.
fn leave(place: &NetFolder, own: bool, disks: Disks, remove: bool) -> Result<()> {
    if !place.exists() {
        return Ok(());
    }
    let mut session = Session::open(place.clone())?;
    heal(&mut session)?;
    if own {
        let all: Vec<usize> = (0..session.net.nodes.len()).collect();
        session.stop(&all)?;
        session.disconnect()?;
        drop(disks);
        if remove {
            fs::remove_dir_all(place.dir())?;
        }
    }
    Ok(())
}

/// Everything that was done to the net is undone; nodes that do not run are not started.
fn heal(session: &mut Session) -> Result<()> {
    for index in 0..session.net.nodes.len() {
        local::empty(&session.place, index)?;
        local::replenish(&session.place, index)?;
        if session.condition(index) == Condition::Paused {
            session.resume(index)?;
        }
    }
    if !session.net.links.faults().is_empty() {
        session.change_links(|links| {
            links.heal();
            links.slow_none();
        })?;
    }
    Ok(())
}

/// Returns whether all checks passed.
#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
async fn chaos(
    options: &Options,
    seed: u64,
    place: &NetFolder,
    files: &Files,
    disks: &Disks,
) -> Result<bool> {
    let program = cli::this_program()?;
    if options.dir.is_none() {
        start_net(options, &program, place).await?;
    }
    let net = place.load()?;
    let mut recorder = start_recorder(options, seed, &program, place, files).await?;
    // A single node has no peers that would continue meanwhile, and little time for queries that
    // never end.
    let misuse = net.is_subnet() && !options.without.contains(&Local::Misuse);
    let start = || start_misuse(&net, seed, &program, files.misuse());
    let mut misuse = misuse.then(start).transpose()?;
    let mut chaos = Chaos {
        plan: Plan::new(
            net.nodes.len(),
            Possible {
                cut: net.is_subnet() && net.network != Network::Direct,
                slow: net.is_subnet()
                    && (matches!(net.network, Network::Proxies | Network::Machines) || net.netem),
                fill: disks.exist(),
                exhaust: !options.without.contains(&Local::Descriptors),
                compile: misuse.is_some() && !options.without.contains(&Local::Compilations),
            },
            ChaCha8Rng::seed_from_u64(seed),
        ),
        place: place.clone(),
        asker: Asker::new()?,
        history: OpenOptions::new().append(true).open(files.history())?,
        began: Instant::now(),
        faults: BTreeMap::new(),
        surprises: vec![],
    };
    println!(
        "chaos: {} nodes, at most {} hurt at once, or all killed; clients work",
        net.nodes.len(),
        chaos.plan.tolerated()
    );
    tokio::time::sleep(CALM).await;
    let end = Instant::now() + Duration::from_secs(options.duration);
    while Instant::now() < end {
        let pause = Duration::from_millis(chaos.plan.pause_millis());
        chaos.watch(end.min(Instant::now() + pause)).await?;
        recorder.check()?;
        if let Some(misuse) = &mut misuse {
            misuse.check()?;
        }
        let action = chaos.plan.next();
        chaos.act(action)?;
    }
    chaos.heal_all(Duration::from_secs(options.progress_within)).await?;
    tokio::time::sleep(CALM).await;
    let status = recorder.stop_within(RECORDER_TIMEOUT).await?;
    ensure!(status.success(), "the recorder ended with {status}:\n{}", recorder.log_tail());
    let unharmed = match misuse {
        Some(mut misuse) => {
            let status = misuse.stop_within(MISUSE_TIMEOUT).await?;
            print!("{}", fs::read_to_string(files.misuse()).unwrap_or_default());
            status.success()
        }
        None => true,
    };

    let history = files.history();
    let run = async |words: &[&str], timeout: Duration| -> Result<bool> {
        let mut command = Command::new(&program);
        command.arg("history").args(words).arg(&history).stdin(Stdio::null()).process_group(0);
        let what = format!("history {}", words.join(" "));
        let mut child = Child::spawn(&mut command, &what)?;
        Ok(child.ended_within(timeout).await?.success())
    };
    let within = options.progress_within.to_string();
    let finished = run(&["finish", "--progress-within", &within], FINISH_TIMEOUT).await?;
    let net = place.load()?;
    print!("{}", status::table(&net, &reading::rows(&net, place, &chaos.asker).await));
    let checked = run(&["check"], FINISH_TIMEOUT).await?;
    let faults: u64 = chaos.faults.values().sum();
    println!("chaos: {faults} faults in {} s", chaos.began.elapsed().as_secs());
    for (what, count) in &chaos.faults {
        println!("chaos: {count:>6} times {what}");
    }
    for surprise in &chaos.surprises {
        println!("BROKEN: {surprise}");
    }
    Ok(finished && checked && unharmed && chaos.surprises.is_empty())
}

async fn start_net(options: &Options, program: &Path, place: &NetFolder) -> Result<()> {
    let network = options.network.map(|network| ["--network", network.name()]);
    let words = network.as_slice().as_flattened();
    let size = Size { nodes: options.nodes, memory: &options.memory };
    spawn::up(program, place.dir(), size, options.node.as_deref(), words).await
}

/// Starts `thimble-lab history record`; ends when its clients work on the net.
async fn start_recorder(
    options: &Options,
    seed: u64,
    program: &Path,
    place: &NetFolder,
    files: &Files,
) -> Result<Child> {
    let pages = options.duration.saturating_mul(PAGES_PER_SECOND).clamp(1024, 65_536);
    let mut command = Command::new(program);
    command.args(["history", "record", "--net"]).arg(place.dir());
    command.arg("--out").arg(files.history());
    command.args(["--seed", &seed.to_string(), "--clients", &options.clients.to_string()]);
    command.args(["--rate", &options.rate.to_string(), "--pages", &pages.to_string()]);
    let log = files.0.join("recorder.log");
    cli::detach(&mut command, &log)?.stdout(Stdio::piped());
    let mut child = Child::spawn(&mut command, "the recorder")?.logging_to([log]);
    let output = child.take_output().context("its output is a pipe")?;
    let (first_line_tx, first_line_rx) = tokio::sync::oneshot::channel();
    // What it prints later is of no interest, but must not block it.
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output).lines();
        let _ = first_line_tx.send(lines.next().is_some_and(|line| line.is_ok()));
        lines.for_each(drop);
    });
    let ready = tokio::time::timeout(RECORDER_TIMEOUT, first_line_rx)
        .await
        .context("the recorder does not begin")?;
    if !ready.unwrap_or(false) {
        // It closed its output and is about to end.
        let status = child.ended_within(RECORDER_TIMEOUT).await?;
        bail!("the recorder ended with {status}:\n{}", child.log_tail());
    }
    Ok(child)
}

/// Starts `thimble-lab misuse`, whose traffic no node may suffer from, on all of them.
fn start_misuse(net: &net::state::Net, seed: u64, program: &Path, log: PathBuf) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(["misuse", "--seed", &seed.to_string()]);
    for node in &net.nodes {
        command.args(["--endpoint", &node.url()]);
    }
    Ok(Child::spawn(cli::detach(&mut command, &log)?, "misuse")?.logging_to([log]))
}

/// State of a run: the plan of faults, the net, and what was done to it.
struct Chaos {
    plan: Plan,
    place: NetFolder,
    asker: Asker,
    history: File,
    began: Instant,
    /// How often each was made.
    faults: BTreeMap<&'static str, u64>,
    /// Unexpected events, which no fault explains.
    surprises: Vec<String>,
}

impl Chaos {
    /// For the person who looks on, and for the history.
    fn log(&mut self, text: &str) -> Result<()> {
        println!("chaos: {:>6.1} s: {text}", self.began.elapsed().as_secs_f64());
        let at_micros = cli::monotonic().as_micros() as u64;
        let mut line =
            serde_json::json!({"kind": "fault", "at_micros": at_micros, "text": text}).to_string();
        line.push('\n');
        self.history.write_all(line.as_bytes()).context("writing the history")
    }

    /// Lets time pass; notices nodes that serve again, and nodes that ended by themselves.
    async fn watch(&mut self, until: Instant) -> Result<()> {
        loop {
            let net = self.place.load()?;
            for node in &net.nodes {
                if let Condition::Ended(how) =
                    net::session::condition(&net, &self.place, node.index)
                {
                    self.ended(node.index, &how)?;
                }
            }
            let recovering: Vec<usize> = self
                .plan
                .hurt()
                .iter()
                .filter(|(_, hurt)| **hurt == plan::Hurt::Recovering)
                .map(|(node, _)| *node)
                .collect();
            for index in recovering {
                let report = self.asker.report(&net.nodes[index].url()).await;
                if report
                    .is_ok_and(|report| report.healthy && report.behind.unwrap_or(0) <= BEHIND_MAX)
                {
                    self.plan.serves(index);
                }
            }
            for (node, hurt) in self.plan.hurt() {
                if *hurt == plan::Hurt::Full {
                    // It frees room when it folds.
                    local::fill(&self.place, *node)?;
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
    }

    /// A node that was not killed is not running.
    fn ended(&mut self, index: usize, how: &str) -> Result<()> {
        let text = format!("node {index} ended by itself: {how}");
        self.log(&text)?;
        if self.surprises.len() < SURPRISES_MAX {
            self.surprises.push(text);
        }
        local::empty(&self.place, index)?;
        local::replenish(&self.place, index)?;
        Session::open(self.place.clone())?.start(index)?;
        self.plan.recovers(index);
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<()> {
        let text = match &action {
            Action::Wait => return Ok(()),
            Action::Kill(nodes) => format!("kill -9 {}", numbers(nodes)),
            Action::Start(nodes) => format!("start {}", numbers(nodes)),
            Action::Pause(node) => format!("pause {node}"),
            Action::Resume(node) => format!("resume {node}"),
            Action::Cut(nodes) => format!("cut off {}", numbers(nodes)),
            Action::Heal => "heal".into(),
            Action::KillWorker(node, _) => format!("kill -9 a worker of {node}"),
            Action::KillCompiler(node) => format!("kill -9 what {node} compiles with"),
            Action::Fill(node) => format!("fill the disk of {node}"),
            Action::Empty(node) => format!("the disk of {node} has room"),
            Action::Exhaust(node) => format!("no descriptors for {node}"),
            Action::Replenish(node) => format!("descriptors for {node}"),
            Action::Slow(node, micros) => format!("slow {node}, {} ms", micros / 1000),
            Action::SlowOff(node) => format!("slow {node} no more"),
        };
        self.log(&text)?;
        if let Some(what) = action.counted_as() {
            *self.faults.entry(what).or_default() += 1;
        }
        let mut session = Session::open(self.place.clone())?;
        let count = session.net.nodes.len();
        match action {
            Action::Wait => {}
            Action::Kill(nodes) => drop(session.kill(&nodes)?),
            Action::Start(nodes) => {
                for node in nodes {
                    session.start(node)?;
                }
            }
            // One that ended by itself in this moment is noticed by the next look.
            Action::Pause(node) => drop(session.pause(node)),
            Action::Resume(node) => drop(session.resume(node)),
            Action::Cut(nodes) => {
                let (cut, rest) = (0..count).partition(|node| nodes.contains(node));
                session.change_links(|links| links.partition(&[cut, rest]))?;
            }
            Action::Heal => session.change_links(net::links::Links::heal)?,
            Action::KillWorker(node, which) => drop(session.kill_worker(node, which)),
            Action::KillCompiler(node) => {
                // Something is compiled now and then: the first that comes up is hit.
                let deadline = Instant::now() + COMPILER_TIMEOUT;
                while session.kill_compiler(node).ok().flatten().is_none()
                    && Instant::now() < deadline
                {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            Action::Fill(node) => local::fill(&self.place, node)?,
            Action::Empty(node) => local::empty(&self.place, node)?,
            Action::Exhaust(node) => {
                if let Ok(process) = session.process(node) {
                    local::exhaust(&self.place, node, process)?;
                }
            }
            Action::Replenish(node) => local::replenish(&self.place, node)?,
            Action::Slow(node, latency_micros) => {
                let quality = Quality { latency_micros, loss: 0.01 };
                session.change_links(|links| links.slow(node, count, quality))?;
            }
            Action::SlowOff(node) => session.change_links(|links| links.slow_off(node))?,
        }
        Ok(())
    }

    /// Undoes everything and waits until every node serves.
    async fn heal_all(&mut self, timeout: Duration) -> Result<()> {
        self.log("everything is healed")?;
        let mut session = Session::open(self.place.clone())?;
        heal(&mut session)?;
        let all: Vec<usize> = (0..session.net.nodes.len()).collect();
        for index in &all {
            session.start(*index)?;
        }
        let goal = Goal { moving: session.net.is_subnet(), timeout };
        let say = |words: &str| println!("chaos: {words}");
        // A net that does not recover is reported by the last part of the history; but a node that
        // ended is reported here.
        if let Err(error) = wait::until_serving(&session, &self.asker, &all, goal, say).await {
            self.surprises.push(format!("after healing: {error:#}"));
        }
        Ok(())
    }
}

fn numbers(nodes: impl IntoIterator<Item = impl std::borrow::Borrow<usize>>) -> String {
    let words: Vec<String> = nodes.into_iter().map(|node| node.borrow().to_string()).collect();
    words.join(", ")
}
