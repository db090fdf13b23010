//! `thimble-lab bench-relay`: the relay measured against its goals, and a reference node in the
//! same run, in alternating turns on the same machine.
//!
//! Bounds: parts, turns and seconds by flags with maxima. Must never know: how a figure is
//! measured.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use accounting::MIB;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use memory_cap::machine;
use serde::Serialize;

use crate::{
    Stop,
    compare::{median, split},
    drive::{self, Start},
    options::Workload,
    plan::{self, Case, Phase},
    report::{Report, Unit},
    settings::Settings,
    table::table,
    to_stdout, write_json,
};

/// Version of the JSON.
const FORMAT: u32 = 1;
const RELAY: &str = "thimble-relay";
/// Of the relay, where it is not the cap.
const BUDGET: &str = "128MiB";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Percent of what was accepted that may be lost under a cap.
const LOST_PERCENT_MAX: f64 = 0.1;
/// Longest phase, and longest long part.
const SECONDS_MAX: f64 = 36_000.0;

/// Runs of the bench; each restarts every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Scenario {
    /// 100 messages a second, small and large, without a cap.
    Steady,
    /// As fast as possible, small and large, without a cap; memory some time after.
    Flood,
    /// The same inside a cap of 256 MiB.
    Cap256,
    /// The same inside a cap of 128 MiB.
    Cap128,
    /// 250 small messages a second.
    Long,
}

/// Command line of `thimble-lab bench-relay`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The relay's program. [default: thimble-relay in the folder of this program]
    #[arg(long, value_name = "FILE")]
    relay: Option<PathBuf>,
    /// A reference node to measure in turns with it, LABEL=COMMAND, with {port} and {folder} as for
    /// stress --command.
    #[arg(long, value_name = "LABEL=COMMAND")]
    reference: Option<String>,
    /// Seconds of each phase. For people: 60.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    phase: f64,
    /// Seconds of the part of 250 small messages a second. For people: 3600, with which growth is
    /// judged.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    long: f64,
    /// When memory is to be back near idle after the flood.
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(0..=3600))]
    after: u64,
    /// Turns of each node; the table has the medians.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,
    /// Only these parts; repeatable. [default: all]
    #[arg(long)]
    part: Vec<Scenario>,
    /// Write everything to this file; - is standard output, instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw each run into this folder.
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
}

/// The bound that a figure must keep to meet its goal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum GoalBound {
    Below(f64),
    AtMost(f64),
    Above(f64),
    AtLeast(f64),
    /// Shown, not judged.
    None,
}

impl GoalBound {
    fn is_met(self, value: f64) -> Option<bool> {
        match self {
            Self::Below(most) => Some(value < most),
            Self::AtMost(most) => Some(value <= most),
            Self::Above(least) => Some(value > least),
            Self::AtLeast(least) => Some(value >= least),
            Self::None => None,
        }
    }

    fn text(self, unit: Unit) -> String {
        match self {
            Self::Below(bound) => format!("< {}", unit.text(bound)),
            Self::AtMost(bound) => format!("<= {}", unit.text(bound)),
            Self::Above(bound) => format!("> {}", unit.text(bound)),
            Self::AtLeast(bound) => format!(">= {}", unit.text(bound)),
            Self::None => String::new(),
        }
    }
}

/// The goal of an hour's growth: in shorter runs tables still fill that stay full afterwards.
const GROWTH: &str = "250/s small, anonymous MiB of the last sixth above the first";
const GROWTH_SECONDS: f64 = 3600.0;

/// What is wanted of a run.
struct Goal {
    part: Scenario,
    what: &'static str,
    unit: Unit,
    bound: GoalBound,
    figure: fn(&Report) -> Option<f64>,
}

fn rate(report: &Report, phase: usize) -> Option<f64> {
    Some(report.phases.get(phase)?.reached_rate())
}

fn peak(report: &Report, phase: usize) -> Option<f64> {
    Some(report.phases.get(phase)?.nodes.first()?.peak.anonymous_bytes as f64)
}

fn cpu(report: &Report, phase: usize) -> Option<f64> {
    report.phases.get(phase)?.cpu_millis_per_accepted
}

fn idle(report: &Report) -> Option<f64> {
    Some(report.nodes.first()?.idle?.anonymous_bytes as f64)
}

/// Of what was accepted, the share that the receiver got that got least.
fn delivered(report: &Report) -> Option<f64> {
    let accepted: u64 = report.phases.iter().map(|phase| phase.accepted).sum();
    let lost: u64 = report.phases.iter().map(crate::report::PhaseReport::lost).sum();
    (accepted > 0).then(|| accepted.saturating_sub(lost) as f64 * 100.0 / accepted as f64)
}

fn killed(report: &Report) -> Option<f64> {
    let node = report.nodes.first()?;
    Some((node.oom_kills.max(u64::from(node.died))) as f64)
}

/// Anonymous memory some time after the flood, above what it was before.
fn above_idle(report: &Report) -> Option<f64> {
    let after = report.nodes.first()?.after.last()?.memory.anonymous_bytes as f64;
    Some(after - idle(report)?)
}

/// Mean anonymous memory of the last part above that of the first.
fn growth(report: &Report) -> Option<f64> {
    let whole = report.phases.len() == report.phases_asked;
    let mean =
        |phase: &crate::report::PhaseReport| Some(phase.nodes.first()?.mean.anonymous_bytes as f64);
    Some(mean(report.phases.last().filter(|_| whole)?)? - mean(report.phases.first()?)?)
}

const M: f64 = MIB as f64;

#[rustfmt::skip]
const GOALS: [Goal; 22] = [
    Goal { part: Scenario::Steady, what: "idle, anonymous MiB", unit: Unit::Mib, bound: GoalBound::Below(8.0 * M), figure: idle },
    Goal { part: Scenario::Steady, what: "0.5-1 kB at 100/s, reached/s", unit: Unit::Rate, bound: GoalBound::None, figure: |r| rate(r, 0) },
    Goal { part: Scenario::Steady, what: "0.5-1 kB at 100/s, CPU ms/message", unit: Unit::Millis, bound: GoalBound::Below(0.3), figure: |r| cpu(r, 0) },
    Goal { part: Scenario::Steady, what: "130-149 kB at 100/s, reached/s", unit: Unit::Rate, bound: GoalBound::None, figure: |r| rate(r, 1) },
    Goal { part: Scenario::Steady, what: "130-149 kB at 100/s, anonymous peak MiB", unit: Unit::Mib, bound: GoalBound::Below(64.0 * M), figure: |r| peak(r, 1) },
    Goal { part: Scenario::Steady, what: "130-149 kB at 100/s, CPU ms/message", unit: Unit::Millis, bound: GoalBound::Below(0.8), figure: |r| cpu(r, 1) },
    Goal { part: Scenario::Flood, what: "0.5-1 kB as fast as possible, messages/s", unit: Unit::Rate, bound: GoalBound::Above(8000.0), figure: |r| rate(r, 0) },
    Goal { part: Scenario::Flood, what: "0.5-1 kB as fast as possible, anonymous peak MiB", unit: Unit::Mib, bound: GoalBound::Below(96.0 * M), figure: |r| peak(r, 0) },
    Goal { part: Scenario::Flood, what: "0.5-1 kB as fast as possible, CPU ms/message", unit: Unit::Millis, bound: GoalBound::None, figure: |r| cpu(r, 0) },
    Goal { part: Scenario::Flood, what: "130-149 kB as fast as possible, messages/s", unit: Unit::Rate, bound: GoalBound::Above(1000.0), figure: |r| rate(r, 1) },
    Goal { part: Scenario::Flood, what: "130-149 kB as fast as possible, anonymous peak MiB", unit: Unit::Mib, bound: GoalBound::Below(96.0 * M), figure: |r| peak(r, 1) },
    Goal { part: Scenario::Flood, what: "130-149 kB as fast as possible, CPU ms/message", unit: Unit::Millis, bound: GoalBound::None, figure: |r| cpu(r, 1) },
    Goal { part: Scenario::Flood, what: "after the flood, anonymous MiB above idle", unit: Unit::Mib, bound: GoalBound::AtMost(16.0 * M), figure: above_idle },
    Goal { part: Scenario::Cap256, what: "flood in 256 MiB, killed", unit: Unit::Count, bound: GoalBound::AtMost(0.0), figure: killed },
    Goal { part: Scenario::Cap256, what: "flood in 256 MiB, % of accepted delivered", unit: Unit::Percent, bound: GoalBound::AtLeast(99.9), figure: delivered },
    Goal { part: Scenario::Cap256, what: "flood in 256 MiB, 0.5-1 kB, messages/s", unit: Unit::Rate, bound: GoalBound::None, figure: |r| rate(r, 0) },
    Goal { part: Scenario::Cap128, what: "flood in 128 MiB, killed", unit: Unit::Count, bound: GoalBound::AtMost(0.0), figure: killed },
    Goal { part: Scenario::Cap128, what: "flood in 128 MiB, % of accepted delivered", unit: Unit::Percent, bound: GoalBound::AtLeast(99.9), figure: delivered },
    Goal { part: Scenario::Cap128, what: "flood in 128 MiB, 0.5-1 kB, messages/s", unit: Unit::Rate, bound: GoalBound::None, figure: |r| rate(r, 0) },
    Goal { part: Scenario::Long, what: "250/s small, last sixth, reached/s", unit: Unit::Rate, bound: GoalBound::None, figure: |r| rate(r, plan::LONG_PARTS as usize - 1) },
    Goal { part: Scenario::Long, what: "250/s small, % of accepted delivered", unit: Unit::Percent, bound: GoalBound::AtLeast(99.9), figure: delivered },
    Goal { part: Scenario::Long, what: GROWTH, unit: Unit::Mib, bound: GoalBound::AtMost(4.0 * M), figure: growth },
];

/// One run of one node.
#[derive(Serialize)]
struct Run {
    part: Scenario,
    turn: u32,
    label: String,
    report: Option<Report>,
    /// Why it was not measured.
    failed: Option<String>,
}

#[derive(Serialize)]
struct Row {
    what: &'static str,
    goal: String,
    /// Bytes for MiB.
    measured: Option<f64>,
    /// Whether the goal is met; `None` without a goal or a measurement.
    met: Option<bool>,
    reference: Option<f64>,
    #[serde(skip)]
    unit: Unit,
}

#[derive(Serialize)]
struct Bench {
    format: u32,
    machine: String,
    load_before: Option<f64>,
    started: String,
    parameters: String,
    rows: Vec<Row>,
    runs: Vec<Run>,
}

/// Runs all parts and prints the table. Exit status: 0 when every goal that was measured is met, 1
/// otherwise, 130 after Ctrl-C.
pub async fn run(options: Options) -> Result<ExitCode> {
    cli::until_done("bench-relay", async |stop| run_all(&options, &stop).await).await
}

struct Node {
    label: String,
    command: String,
}

fn nodes(options: &Options) -> Result<Vec<Node>> {
    let named = options.relay.as_ref().map(std::path::absolute).transpose()?;
    let relay = cli::program(named.as_deref(), RELAY, "relay")?;
    // Its budget is filled in part by part.
    let command = format!(
        "'{}' run --memory {{budget}} --data-dir {{folder}} --listen /ip4/127.0.0.1/tcp/{{port}} \
         --http 127.0.0.1:0 --log warn",
        relay.display()
    );
    let mut nodes = vec![Node { label: RELAY.to_owned(), command }];
    if let Some(reference) = &options.reference {
        let (label, command) = split(reference).context("--reference")?;
        ensure!(label != RELAY, "--reference: {RELAY} is the label of the relay itself");
        nodes.push(Node { label: label.to_owned(), command: command.to_owned() });
    }
    Ok(nodes)
}

impl Scenario {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn cap_bytes(self) -> Option<u64> {
        match self {
            Self::Cap256 => Some(256 * MIB),
            Self::Cap128 => Some(128 * MIB),
            Self::Steady | Self::Flood | Self::Long => None,
        }
    }

    fn workload(self, options: &Options) -> Result<Workload> {
        let case = |case: Case, seconds: f64| plan::phases(case, seconds, None);
        let phases: Vec<Phase> = match self {
            // The first and the last size of the study's baseline.
            Self::Steady => {
                let all = case(Case::Baseline, options.phase);
                all.first().into_iter().chain(all.last()).cloned().collect()
            }
            Self::Flood | Self::Cap256 | Self::Cap128 => case(Case::Flood, options.phase),
            Self::Long => case(Case::Long, options.long),
        };
        plan::check(&phases)?;
        let after = if self == Self::Flood { options.after } else { 0 };
        let settings = Settings {
            after: Some(vec![after]),
            lost_percent_max: Some(LOST_PERCENT_MAX),
            ..Settings::default()
        };
        Ok(Workload { load: settings.load()?, phases })
    }
}

async fn run_all(options: &Options, stop: &Stop) -> Result<bool> {
    for (flag, seconds) in [("--phase", options.phase), ("--long", options.long)] {
        if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
            bail!("{flag} {seconds}: more than 0 and at most {SECONDS_MAX} s");
        }
    }
    let nodes = nodes(options)?;
    if let Some(folder) = &options.pictures {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("making the folder {}", folder.display()))?;
    }
    let wanted = |part: &&Scenario| options.part.is_empty() || options.part.contains(part);
    let parts: Vec<Scenario> = Scenario::value_variants().iter().filter(wanted).copied().collect();
    let (load_before, started) = (machine::load(), machine::now().0);
    let mut runs = Vec::new();
    for part in &parts {
        for turn in 1..=options.turns {
            for node in &nodes {
                if stop.is_requested() {
                    break;
                }
                runs.push(run_one(options, *part, turn, node, stop).await?);
            }
        }
    }
    let bench = Bench {
        format: FORMAT,
        machine: machine::describe(),
        load_before,
        started,
        parameters: parameters(options, &runs),
        rows: rows(&parts, &nodes, &runs, options.long),
        runs,
    };
    if !to_stdout(options.json.as_deref()) {
        print!("{}", text(&bench, &nodes));
    }
    write_json(options.json.as_deref(), &bench)?;
    let measured = |row: &Row| row.goal.is_empty() || row.met == Some(true);
    Ok(bench.rows.iter().all(measured))
}

async fn run_one(
    options: &Options,
    part: Scenario,
    turn: u32,
    node: &Node,
    stop: &Stop,
) -> Result<Run> {
    let work = part.workload(options)?;
    let memory = part.cap_bytes();
    let budget = memory.map_or_else(|| BUDGET.to_owned(), |bytes| bytes.to_string());
    let command = node.command.replace("{budget}", &budget);
    let name = part.name();
    eprintln!("bench-relay: {name}, turn {turn}/{}: {}", options.turns, node.label);
    let picture =
        options.pictures.as_deref().map(|folder| picture(folder, &name, &node.label, turn));
    let start = Start {
        label: &node.label,
        nodes: &[],
        pids: &[],
        timeout: TIMEOUT,
        command: Some(&command),
        picture: picture.as_deref(),
        memory,
        members: None,
        stop,
    };
    let (report, failed) = match drive::run(&work, &start).await {
        Ok(report) => {
            eprintln!("bench-relay: {}: {}", node.label, report.verdict);
            (Some(report), None)
        }
        // The others are worth being measured all the same.
        Err(error) => {
            eprintln!("bench-relay: {}: {error:#}", node.label);
            (None, Some(format!("{error:#}")))
        }
    };
    Ok(Run { part, turn, label: node.label.clone(), report, failed })
}

fn picture(folder: &Path, part: &str, label: &str, turn: u32) -> PathBuf {
    folder.join(format!("{part}-{label}-{turn}.svg"))
}

fn parameters(options: &Options, runs: &[Run]) -> String {
    let load =
        runs.iter().find_map(|run| run.report.as_ref()).map(Report::load_text).unwrap_or_default();
    format!(
        "{load}; phases of {} s, 250/s for {} s, memory {} s after the flood; the relay's budget \
         {} where no cap is named; medians of {} turns",
        options.phase, options.long, options.after, BUDGET, options.turns
    )
}

fn rows(parts: &[Scenario], nodes: &[Node], runs: &[Run], long: f64) -> Vec<Row> {
    let value = |goal: &Goal, node: Option<&Node>| {
        let of =
            |run: &&Run| run.part == goal.part && node.is_some_and(|node| node.label == run.label);
        let reports = runs.iter().filter(of).filter_map(|run| run.report.as_ref());
        median(reports.filter(|report| !report.interrupted).filter_map(goal.figure).collect())
    };
    GOALS
        .iter()
        .filter(|goal| parts.contains(&goal.part))
        .map(|goal| {
            let measured = value(goal, nodes.first());
            let is_short = goal.what == GROWTH && long < GROWTH_SECONDS;
            let bound = if is_short { GoalBound::None } else { goal.bound };
            Row {
                what: goal.what,
                goal: bound.text(goal.unit),
                measured,
                met: measured.and_then(|measured| bound.is_met(measured)),
                reference: value(goal, nodes.get(1)),
                unit: goal.unit,
            }
        })
        .collect()
}

fn text(bench: &Bench, nodes: &[Node]) -> String {
    let mut heads = vec!["goal".to_owned(), RELAY.to_owned(), String::new()];
    heads.extend(nodes.get(1).map(|node| node.label.clone()));
    let column = |cell: &dyn Fn(&Row) -> String| -> Vec<(String, String)> {
        bench.rows.iter().map(|row| (row.what.to_owned(), cell(row))).collect()
    };
    let figure = |row: &Row, value: Option<f64>| {
        value.map_or_else(|| "-".into(), |value| row.unit.text(value))
    };
    let met = |row: &Row| match (row.met, row.goal.is_empty()) {
        (Some(true), _) => "met".to_owned(),
        (Some(false), _) => "MISSED".to_owned(),
        (None, true) => String::new(),
        (None, false) => "not measured".to_owned(),
    };
    let mut columns = vec![
        column(&|row| row.goal.clone()),
        column(&|row| figure(row, row.measured)),
        column(&met),
    ];
    if nodes.len() > 1 {
        columns.push(column(&|row| figure(row, row.reference)));
    }
    let mut text = format!(
        "\nmachine: {}, load {:.2} before\n{}\n",
        bench.machine,
        bench.load_before.unwrap_or(0.0),
        bench.parameters
    );
    for node in nodes {
        let of = |run: &&Run| run.label == node.label;
        let reports = bench.runs.iter().filter(of).filter_map(|run| run.report.as_ref());
        let protocol =
            reports.map(|report| report.light_push.as_str()).next().unwrap_or("not reached");
        text += &format!("{} ({protocol}): {}\n", node.label, node.command);
    }
    text += &format!("\n{}", table(&heads, &columns));
    for run in &bench.runs {
        let Run { part, turn, label, report, failed } = run;
        let part = part.name();
        let said = report.as_ref().map(|report| report.verdict.as_str()).or(failed.as_deref());
        text += &format!("\n{part}, {label}, turn {turn}: {}", said.unwrap_or_default());
    }
    let missed = bench.rows.iter().filter(|row| row.met == Some(false)).count();
    let open = bench.rows.iter().filter(|row| !row.goal.is_empty() && row.met.is_none()).count();
    text += &match (missed, open) {
        (0, 0) => "\nbench-relay: every goal is met\n".to_owned(),
        (missed, open) => {
            format!("\nbench-relay: {missed} goals are missed, {open} were not measured\n")
        }
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goal_bound_distinguishes_strict_and_inclusive_limits() {
        assert_eq!(GoalBound::Below(8.0).is_met(8.0), Some(false));
        assert_eq!(GoalBound::AtMost(8.0).is_met(8.0), Some(true));
        assert_eq!(GoalBound::Above(8.0).is_met(8.0), Some(false));
        assert_eq!(GoalBound::AtLeast(99.9).is_met(99.9), Some(true));
        assert_eq!(GoalBound::None.is_met(1.0), None);
        assert_eq!(GoalBound::Below(8.0 * M).text(Unit::Mib), "< 8.0");
    }

    #[test]
    fn a_goal_that_was_not_measured_is_not_met() {
        let nodes = [Node { label: RELAY.into(), command: String::new() }];
        let rows = rows(&[Scenario::Steady], &nodes, &[], 60.0);
        assert!(rows.iter().all(|row| row.met.is_none() && row.measured.is_none()));
        let bench = Bench {
            format: FORMAT,
            machine: String::new(),
            load_before: None,
            started: String::new(),
            parameters: String::new(),
            rows,
            runs: vec![],
        };
        let text = text(&bench, &nodes);
        assert!(text.contains("not measured") && text.contains("4 were not measured"), "{text}");
    }

    #[test]
    fn growth_is_judged_over_an_hour_only() {
        let nodes = [Node { label: RELAY.into(), command: String::new() }];
        let goal = |long: f64| {
            let rows = rows(&[Scenario::Long], &nodes, &[], long);
            rows.into_iter().find(|row| row.what == GROWTH).unwrap().goal
        };
        assert_eq!((goal(60.0).as_str(), goal(3600.0).as_str()), ("", "<= 4.0"));
    }

    #[test]
    fn every_part_has_phases_and_every_goal_a_part() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            options: Options,
        }
        let options = <Cli as clap::Parser>::parse_from(["bench"]).options;
        for part in Scenario::value_variants() {
            let work = part.workload(&options).unwrap();
            assert!(!work.phases.is_empty() && GOALS.iter().any(|goal| goal.part == *part));
        }
        assert_eq!(Scenario::Steady.workload(&options).unwrap().phases[1].payload.min, 130_000);
    }
}
