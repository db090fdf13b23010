//! `thimble-lab storm`: a node in a memory-capped group, worked on by the hammer, with a verdict on
//! what its memory did.
//!
//! The phases, which are marks in the series and in the picture: the node starts and idles; the
//! hammer storms it; it cools down; it is stopped with SIGTERM. Anonymous memory before and after
//! is compared, the peak in between is compared with a goal, and no process may have been killed or
//! restarted and no answer may be wrong. The cap ([`memory_cap`]) and the hammer are child
//! processes, other subcommands of this program, so that each can be used alone.

mod node;
mod verdict;

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use accounting::{MIB, format_size, parse_size};
use anyhow::{Context, Result};
use clap::Args;
use cli::{Child, Stop};

pub(crate) use self::verdict::{Row, Rows, table};
use self::{
    node::CappedNode,
    verdict::{Findings, Hammer},
};
use memory_cap::machine;

/// Budgets from which on so much of the hammer's default sizes suits the limits per message.
const SCALES: [(u64, &str); 4] =
    [(384 * MIB, "1"), (240 * MIB, "0.5"), (176 * MIB, "0.3"), (0, "0.125")];
/// Time for the hammer's modes in addition to the requested seconds of load: fill, read back,
/// delete.
const HAMMER_TIMEOUT: Duration = Duration::from_secs(600);
/// Parts of one mode that may each take the seconds asked for.
const HAMMER_PARTS_MAX: u32 = 8;
/// Interval between two questions what no pool of the node holds.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);
/// Modes of `--mode all`.
const HAMMER_MODES_MAX: u32 = 16;

/// Command line of `thimble-lab storm`.
#[derive(Args)]
pub struct Options {
    /// The node's binary. [default: thimble in the folder of this program]
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
    /// Budget of the node and cap of its process group.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    memory: String,
    /// Mode of the hammer (see thimble-lab hammer --help); `all` is every mode in turn.
    #[arg(long, default_value = "hybrid")]
    mode: String,
    /// Seconds of the storm, per mode. [default: 120; 20 with --mode all]
    #[arg(long)]
    seconds: Option<u64>,
    /// Seconds the node idles before.
    #[arg(long, default_value_t = 15)]
    idle_seconds: u64,
    /// Seconds the node is left alone after.
    #[arg(long, default_value_t = 60)]
    cool_down_seconds: u64,
    /// Folder for a folder with the series, the picture, the hammer's report and the logs.
    #[arg(long, value_name = "DIR", default_value = "target/storm")]
    out: PathBuf,
    /// Kind of process group. [default: the first that is possible]
    #[arg(long)]
    group: Option<memory_cap::Kind>,
    /// Leave the node's data in the folder.
    #[arg(long)]
    keep_data: bool,
    /// More arguments for the hammer.
    #[arg(last = true, value_name = "HAMMER ARGUMENTS")]
    hammer: Vec<String>,
}

/// Names of files that several processes use.
pub(crate) const SERIES: &str = "series.jsonl";
pub(crate) const MARKS: &str = "marks.txt";
pub(crate) const DATA: &str = "data";
const HAMMER_JSON: &str = "hammer.json";

/// Where everything is written.
pub(crate) struct Files {
    pub(crate) folder: PathBuf,
}

impl Files {
    fn make(options: &Options, memory_bytes: u64) -> Result<Self> {
        let size = format_size(memory_bytes).replace(' ', "");
        let folder = options.out.join(format!("{}-{}-{size}", machine::now().1, options.mode));
        fs::create_dir_all(&folder)
            .with_context(|| format!("making the folder {}", folder.display()))?;
        Ok(Self { folder })
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Marks the begin of a phase in the series and the picture.
    fn mark(&self, phase: &str) -> Result<()> {
        println!("storm: {phase}");
        let mut file = OpenOptions::new().create(true).append(true).open(self.file(MARKS))?;
        writeln!(file, "{phase}").context("writing a mark")
    }
}

/// Runs the storm and prints the verdict.
pub async fn run(options: Options) -> Result<ExitCode> {
    let memory_bytes = parse_size(&options.memory)?;
    let files = Files::make(&options, memory_bytes)?;
    let stop = Stop::by_signal(|| {})?;
    let told = stop.race(storm(&options, memory_bytes, &files)).await;
    if !options.keep_data {
        let _ = fs::remove_dir_all(files.file(DATA));
    }
    let Some(told) = told else {
        eprintln!("thimble-lab storm: stopped; its files are in {}", files.folder.display());
        return Ok(cli::interrupted());
    };
    let findings = told.with_context(|| {
        format!("the storm did not complete; its files are in {}", files.folder.display())
    })?;
    let rows = verdict::evaluate(&findings);
    let good = rows.iter().all(|row| row.met != Some(false));
    println!("\nmachine: {}", machine::describe());
    println!("node: --memory {}, group {}", options.memory, findings.group);
    print!("{}", verdict::table(&rows));
    fs::write(files.file("verdict.json"), serde_json::to_string_pretty(&rows)?)?;
    println!("\nseries, picture, reports and logs: {}", files.folder.display());
    println!("{}", if good { "storm: every verdict is good" } else { "storm: FAILED" });
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn storm(options: &Options, memory_bytes: u64, files: &Files) -> Result<Findings> {
    let program = cli::this_program()?;
    let binary = cli::program(options.node.as_deref(), "thimble", "node")?;
    let mut node =
        CappedNode::start(&program, &binary, options.group, memory_bytes, &options.mode, files)
            .await?;
    files.mark("idle")?;
    node.watch(Duration::from_secs(options.idle_seconds)).await?;
    let idle_bytes = node.anonymous_now()?;
    let unaccounted_idle_bytes = verdict::unaccounted(&node.metrics().await?);

    files.mark(&format!("storm: {}", options.mode))?;
    let (hammer, unaccounted_bytes) =
        hammer(options, memory_bytes, &program, &mut node, files).await?;

    files.mark("cool-down")?;
    node.watch(Duration::from_secs(options.cool_down_seconds)).await?;
    let after_bytes = node.anonymous_now()?;
    let metrics = node.metrics().await?;
    fs::write(files.file("metrics.txt"), &metrics)?;

    files.mark("stop")?;
    let (group, summary) = node.stop().await?;
    Ok(Findings {
        memory_bytes,
        mode: options.mode.clone(),
        cool_down_seconds: options.cool_down_seconds,
        group,
        idle_bytes,
        after_bytes,
        unaccounted_idle_bytes,
        unaccounted_bytes,
        hammer,
        metrics,
        summary,
    })
}

/// Report of the hammer, and samples of the memory that no pool held meanwhile.
async fn hammer(
    options: &Options,
    memory_bytes: u64,
    program: &Path,
    node: &mut CappedNode,
    files: &Files,
) -> Result<(Hammer, Vec<i64>)> {
    let seconds = options.seconds.unwrap_or(if options.mode == "all" { 20 } else { 120 });
    let mut command = Command::new(program);
    command.args(["hammer", "--mode", &options.mode, "--seconds", &seconds.to_string()]);
    command.args(["--url", node.url(), "--json"]).arg(files.file(HAMMER_JSON));
    if let Some((_, scale)) = SCALES.iter().find(|(least, _)| memory_bytes >= *least) {
        command.args(["--scale", scale]);
    }
    command
        .args(&options.hammer)
        .stdin(Stdio::null())
        .stdout(File::create(files.file("hammer.txt"))?);
    let mut child = Child::spawn(&mut command, "the hammer")?;
    let modes = if options.mode == "all" { HAMMER_MODES_MAX } else { 1 };
    let timeout = (Duration::from_secs(seconds) * HAMMER_PARTS_MAX + HAMMER_TIMEOUT) * modes;
    let mut unaccounted = Vec::new();
    let watch = async || {
        node.check()?;
        // A node that is too busy to answer once is asked again.
        if let Ok(metrics) = node.metrics().await {
            unaccounted.extend(verdict::unaccounted(&metrics));
        }
        anyhow::Ok(())
    };
    let status = child.ended_meanwhile(timeout, SAMPLE_EVERY, watch).await?;
    let report = fs::read_to_string(files.file(HAMMER_JSON)).ok();
    let hammer = Hammer {
        status: status.to_string(),
        success: status.success(),
        report: report.and_then(|text| serde_json::from_str(&text).ok()),
    };
    Ok((hammer, unaccounted))
}
