//! `thimble-lab hostile`: a seeded generator attacks one node and subnets of four processes with
//! different builds, stacks, budgets and thread counts, and verifies that no input stops a node or
//! changes a result.
//!
//! A run is a sequence of lives. A life starts nodes in a new folder (`net`), runs cases against
//! them (`cases`, with messages from `candid` and modules from `wasm`) while a judge monitors
//! updates and queries of other users (`judge`), then kills the nodes, replays their logs with
//! other builds, stacks and thread counts, and starts them with another budget (`life`).
//!
//! When a group of cases causes a finding, each case of the group is run again alone in a new life,
//! so that the report names the case that suffices.
//!
//! Must never know: internals of the node. It treats the node as a program.

mod candid;
mod cases;
mod disk;
mod forward;
mod judge;
mod life;
mod members;
mod net;
mod server;
mod wasm;

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ::candid::Principal;
use accounting::{format_size, parse_size};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use cli::Stop;
use rand::Rng;
use serde::Serialize;
use tokio::time::Instant;

use self::cases::{Id, Tally};

/// Number of cases that run concurrently.
const GROUP: usize = 4;
/// Maximum number of lives that isolate findings after the time is over.
const ISOLATED_AFTER_END: u64 = 8;
/// Share of the run's time that a life of each kind gets.
const SHARES: [(Phase, f64); 3] = [(Phase::Alone, 0.25), (Phase::Disk, 0.1), (Phase::Subnet, 0.45)];
const LIFE_SECONDS_MAX: f64 = 60.0;
/// Maximum number of cases of one finding that are run again alone, the newest first.
const ISOLATED_MAX: usize = 40;
/// Runs shorter than this leave out long known cases, and replay one member with one thread count
/// per build.
const SHORT_SECONDS: u64 = 120;
const LIFE_MIN: Duration = Duration::from_secs(4);

/// Command line of `thimble-lab hostile`.
#[derive(Args)]
pub struct Options {
    /// A build of the node; repeatable. Nodes use the builds in turn, and logs of one build are
    /// replayed by the others. [default: thimble in the folder of this program]
    #[arg(long, value_name = "FILE")]
    node: Vec<PathBuf>,
    /// A build that violates the protocol. It is the last of the four members in about half of the
    /// subnets.
    #[arg(long, value_name = "FILE")]
    byzantine: Option<PathBuf>,
    /// Duration in seconds. Each kind of life runs at least once, and the last one is verified, so
    /// a short run takes longer. Ignored with --case.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of all cases and faults. [default: random, printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Run only this case, a number or a name; repeatable. Each case gets new nodes.
    #[arg(long, value_name = "CASE")]
    case: Vec<Id>,
    /// Number of the seed's life whose nodes are started (memory, builds, stacks, threads, and
    /// whether a member is byzantine): for each --case; without --case for the first life, and
    /// those of the following numbers after it. [default: 0, and the following numbers after it]
    #[arg(long, value_name = "NUMBER")]
    life: Option<u64>,
    /// Run only lives of this kind; repeatable. [default: all, or alone with --case]
    #[arg(long, value_name = "PART")]
    on: Vec<Phase>,
    /// Skip the regression corpus, which otherwise runs first.
    #[arg(long)]
    skip_known: bool,
    /// Memory of each node, 96 MiB at least.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = node_memory)]
    memory: String,
    /// Limit in seconds for a round and for the answer to an update; exceeding it is a finding.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    round_within: u64,
    /// Stop after this number of findings.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    findings: usize,
    /// Folder in which a folder with logs, data and the report is created.
    #[arg(long, value_name = "DIR", default_value = "target/hostile")]
    out: PathBuf,
    /// Write the report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the data of lives without a finding.
    #[arg(long)]
    keep: bool,
}

const NODE_MEMORY_MIN: u64 = 96 << 20;

/// The size as it is handed to nodes.
fn node_memory(text: &str) -> Result<String, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    if bytes < NODE_MEMORY_MIN {
        let least = format_size(NODE_MEMORY_MIN);
        return Err(format!("a node does not start with less than {least}, the smallest size"));
    }
    Ok(text.to_owned())
}

impl Options {
    /// Number that decides, with the seed, the nodes and the faults of the life that is the
    /// `number`th of this run.
    fn variant(&self, number: u64) -> u64 {
        match self.life {
            Some(life) if !self.case.is_empty() => life,
            first => first.unwrap_or(0).wrapping_add(number),
        }
    }
}

/// A kind of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Phase {
    /// One node.
    Alone,
    /// Four nodes of one subnet.
    Subnet,
    /// One node with injected disk errors.
    Disk,
}

impl Phase {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

#[derive(Clone, Debug, Serialize)]
struct Finding {
    phase: Phase,
    what: String,
    /// Cases that ran at the time, or in the life.
    cases: Vec<String>,
    /// Whether a single case caused it in a life of its own.
    isolated: bool,
    /// The command that reproduces it.
    reproduce: String,
    /// Logs and data.
    folder: PathBuf,
}

/// Summary of a run.
#[derive(Debug, Default, Serialize)]
struct Report {
    seed: u64,
    builds: Vec<PathBuf>,
    seconds: f64,
    lives: u64,
    /// Cases by family and by how they ended.
    cases: Tally,
    kills: u64,
    disk_faults: u64,
    member_changes: u64,
    replays: u64,
    roots_compared: u64,
    restarts_with_other_memory: u64,
    acknowledged: u64,
    longest_update_millis: u64,
    longest_stall_millis: u64,
    findings: Vec<Finding>,
    /// Parts that this machine cannot run, or that had nothing to verify, with the reason.
    not_run: Vec<String>,
}

impl Report {
    /// Records, once, a part that was not run.
    fn omit(&mut self, why: String) {
        if !self.not_run.contains(&why) {
            self.not_run.push(why);
        }
    }
}

/// State shared by all lives of a run.
struct Run {
    options: Options,
    seed: u64,
    builds: Vec<PathBuf>,
    folder: PathBuf,
    began: Instant,
}

impl Run {
    /// Whether verification is reduced to what fits into a test.
    fn is_short(&self) -> bool {
        self.options.seconds < SHORT_SECONDS
    }

    fn log(&self, words: &str) {
        println!("hostile: {:>5.1} s: {words}", self.began.elapsed().as_secs_f64());
    }

    /// The command that runs cases again, with the nodes of the life whose [`Options::variant`] is
    /// `variant`.
    fn reproduce(&self, phase: Phase, variant: u64, cases: &[Id]) -> String {
        let program = std::env::current_exe().unwrap_or_else(|_| "thimble-lab".into());
        let mut words = vec![program.display().to_string(), "hostile".into()];
        for build in &self.builds {
            words.push(format!("--node {}", build.display()));
        }
        if let Some(byzantine) = &self.options.byzantine {
            words.push(format!("--byzantine {}", byzantine.display()));
        }
        words.push(format!("--seed {} --on {} --life {variant}", self.seed, phase.name()));
        words.push(format!("--memory {}", self.options.memory));
        words.extend(cases.iter().map(|case| format!("--case {case}")));
        words.join(" ")
    }
}

/// The identity of all calls of a run.
fn identity() -> ic_agent::identity::BasicIdentity {
    ic_agent::identity::BasicIdentity::from_raw_key(&[41; 32])
}

fn user() -> Result<Principal> {
    use ic_agent::Identity as _;
    identity().sender().map_err(anyhow::Error::msg)
}

/// Runs the command.
pub async fn run(options: Options) -> Result<ExitCode> {
    let seed = options.seed.unwrap_or_else(|| rand::thread_rng().gen_range(0..1_000_000));
    let stop = Stop::by_signal(|| {})?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    fs::create_dir_all(&options.out)
        .with_context(|| format!("making the folder {}", options.out.display()))?;
    let folder = fs::canonicalize(&options.out)?.join(format!("{now}-{seed}"));
    fs::create_dir_all(&folder)?;
    let builds = builds(&options)?;
    let run = Run { seed, builds, folder, began: Instant::now(), options };
    run.log(&format!(
        "seed {seed}, {} s; builds: {}; everything is in {}",
        run.options.seconds,
        run.builds.iter().map(|build| build.display().to_string()).collect::<Vec<_>>().join(", "),
        run.folder.display()
    ));
    let mut report = Report { seed, builds: run.builds.clone(), ..Report::default() };
    let done = stop.race(attack(&run, &mut report)).await;
    // Dropping the lives killed their nodes.
    report.seconds = run.began.elapsed().as_secs_f64();
    finish(&run, &report, done.is_some())?;
    match done {
        None => Ok(cli::interrupted()),
        Some(Err(error)) => {
            Err(error
                .context(format!("seed {seed}; data and logs are in {}", run.folder.display())))
        }
        Some(Ok(())) if report.findings.is_empty() => Ok(ExitCode::SUCCESS),
        Some(Ok(())) => Ok(ExitCode::FAILURE),
    }
}

fn builds(options: &Options) -> Result<Vec<PathBuf>> {
    let named = match options.node.as_slice() {
        [] => vec![cli::this_program()?.with_file_name("thimble")],
        named => named.to_vec(),
    };
    named
        .iter()
        .map(|file| {
            ensure!(
                file.is_file(),
                "there is no program at {}; build it, or name another with --node FILE",
                file.display()
            );
            Ok(fs::canonicalize(file)?)
        })
        .collect()
}

/// Cases that are still to be run.
struct Queue {
    known: VecDeque<Id>,
    /// Cases of groups that caused a finding; each is run alone.
    alone: VecDeque<(Phase, Id)>,
    next: u64,
    /// Only the cases named on the command line are run.
    named: bool,
}

impl Queue {
    fn take(&mut self, group: usize) -> Vec<Id> {
        let mut taken = Vec::new();
        while taken.len() < group {
            if let Some(id) = self.known.pop_front() {
                taken.push(id);
            } else if self.named {
                break;
            } else {
                taken.push(Id::Number(self.next));
                self.next += 1;
            }
        }
        taken
    }
}

/// Runs lives until the time is over.
async fn attack(run: &Run, report: &mut Report) -> Result<()> {
    let options = &run.options;
    let named = !options.case.is_empty();
    let phases: Vec<Phase> = match options.on.as_slice() {
        [] if named => vec![Phase::Alone],
        [] => SHARES.iter().map(|(phase, _)| *phase).collect(),
        phases => phases.to_vec(),
    };
    let mut queue = Queue { known: VecDeque::new(), alone: VecDeque::new(), next: 0, named };
    if named {
        for phase in &phases {
            queue.alone.extend(options.case.iter().map(|case| (*phase, case.clone())));
        }
    } else if !options.skip_known {
        queue.known.extend(cases::known(run.is_short()));
    }
    let end = run.began + Duration::from_secs(options.seconds);
    let (mut turn, mut isolated) = (0, 0);
    loop {
        if report.findings.len() >= options.findings {
            run.log("there are enough findings");
            return Ok(());
        }
        let over = Instant::now() >= end;
        let (number, variant) = (report.lives, options.variant(report.lives));
        if let Some((phase, case)) = queue.alone.pop_front() {
            if over && !named && isolated >= ISOLATED_AFTER_END {
                continue;
            }
            isolated += u64::from(over);
            let lasts = Duration::ZERO;
            let single = life::Life { phase, number, variant, only: Some(case), lasts };
            run_life(run, report, &mut queue, single).await?;
            continue;
        }
        // Each kind of life at least once.
        if named || (over && turn >= phases.len()) {
            return Ok(());
        }
        let phase = phases[turn % phases.len()];
        turn += 1;
        let share = SHARES.iter().find(|(one, _)| *one == phase).map_or(0.3, |(_, share)| *share);
        let seconds =
            (options.seconds as f64 * share / phases_share(&phases)).min(LIFE_SECONDS_MAX);
        // Counted from when the nodes serve.
        let lasts = end.saturating_duration_since(Instant::now());
        let lasts = lasts.min(Duration::from_secs_f64(seconds)).max(LIFE_MIN);
        let life = life::Life { phase, number, variant, only: None, lasts };
        run_life(run, report, &mut queue, life).await?;
    }
}

/// Divisor for the shares, which leaves time for the verification of each life.
fn phases_share(phases: &[Phase]) -> f64 {
    let all = SHARES.iter().filter(|(phase, _)| phases.contains(phase));
    all.map(|(_, share)| share).sum::<f64>() / 0.8
}

async fn run_life(
    run: &Run,
    report: &mut Report,
    queue: &mut Queue,
    life: life::Life,
) -> Result<()> {
    report.lives += 1;
    let folder = run.folder.join(format!("life{}", life.number));
    let isolated = life.only.is_some();
    let (phase, variant) = (life.phase, life.variant);
    let found = Box::pin(life.run(run, report, queue, &folder)).await?;
    let Some((what, ids)) = found else {
        if !run.options.keep {
            let _ = fs::remove_dir_all(&folder);
        }
        return Ok(());
    };
    let reproduce = run.reproduce(phase, variant, &ids);
    run.log(&format!("FOUND: {what}"));
    let names: Vec<String> = ids.iter().map(|id| cases::describe(run.seed, id)).collect();
    run.log(&format!("  cases {}; {}", names.join(", "), folder.display()));
    run.log(&format!("  reproduce: {reproduce}"));
    if !isolated {
        queue.alone.extend(ids.into_iter().rev().take(ISOLATED_MAX).map(|id| (phase, id)));
    }
    report.findings.push(Finding { phase, what, cases: names, isolated, reproduce, folder });
    Ok(())
}

/// Prints and writes the report.
fn finish(run: &Run, report: &Report, whole: bool) -> Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    let write =
        |path: &Path| fs::write(path, &text).with_context(|| format!("writing {}", path.display()));
    write(&run.folder.join("report.json"))?;
    if let Some(path) = &run.options.json {
        write(path)?;
    }
    for (family, ended) in &report.cases {
        let ways: Vec<String> = ended.iter().map(|(way, count)| format!("{count} {way}")).collect();
        println!("hostile: cases of {family}: {}", ways.join(", "));
    }
    println!(
        "hostile: {} lives, kills during cases: {}, {} disk faults, {} changes of members, {} \
         replays ({} roots compared), {} restarts with other memory; {} updates acknowledged, the \
         longest after {:.1} s; longest stall reported {:.1} s",
        report.lives,
        report.kills,
        report.disk_faults,
        report.member_changes,
        report.replays,
        report.roots_compared,
        report.restarts_with_other_memory,
        report.acknowledged,
        report.longest_update_millis as f64 / 1e3,
        report.longest_stall_millis as f64 / 1e3,
    );
    for reason in &report.not_run {
        println!("NOT RUN: {reason}");
    }
    for (number, finding) in report.findings.iter().enumerate() {
        println!("hostile: finding {}: {}", number + 1, finding.what);
        println!("hostile:   on {}, cases {}", finding.phase.name(), finding.cases.join(", "));
        println!("hostile:   reproduce: {}", finding.reproduce);
        println!("hostile:   data and logs: {}", finding.folder.display());
    }
    let seed = report.seed;
    match report.findings.len() {
        0 if !whole => println!("hostile: seed {seed}: stopped, nothing found so far"),
        0 => println!("hostile: seed {seed}: nothing found"),
        count => println!("hostile: seed {seed}: FAILED, {count} findings"),
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn memory_below_the_smallest_is_an_error_of_the_arguments() {
        let parse = |memory| Command::try_parse_from(["hostile", "--memory", memory]);
        for memory in ["64MiB", "95MiB", "512", "lots"] {
            let error = parse(memory).err().unwrap();
            assert_eq!(error.exit_code(), 2, "{memory}");
        }
        assert!(parse("64MiB").err().unwrap().to_string().contains("96 MiB"));
        assert_eq!(parse("96MiB").unwrap().options.memory, "96MiB");
    }

    #[test]
    fn missing_node_is_named() {
        let command = Command::try_parse_from(["hostile", "--node", "nope"]).unwrap();
        let error = builds(&command.options).unwrap_err().to_string();
        let expected = "there is no program at nope; build it, or name another with --node FILE";
        assert_eq!(error, expected);
    }
}
