//! `thimble-lab hammer`: puts load on a node through its public endpoint, checks every byte that is
//! returned, and reports the cost.
//!
//! It does not depend on the node's internals. Its canister, `canisters/hammer-c`, writes memory in
//! a pattern that both sides can compute (`pattern`), so a read proves every byte, and gives every
//! write a generation, so a read proves that no acknowledged write is lost. The books of what was
//! acknowledged are kept in `fleet`; `schedule` decides when operations start and from when their
//! latency counts; `modes` defines each mode; `failure` classifies failures, and `stats` and
//! `report` count and print them.
//!
//! Nothing grows with the length of a run: histograms have fixed bounds, classes and texts of
//! failures are capped, operations in flight are limited.

mod failure;
mod fleet;
mod modes;
mod options;
pub(crate) mod pattern;
pub(crate) mod protocol;
mod report;
mod schedule;
mod stats;
pub(crate) mod transport;

use std::{process::ExitCode, sync::Arc, time::SystemTime};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use cli::Stop;

use self::{
    fleet::Fleet,
    modes::Modes,
    options::{Parameters, Usage},
    report::Report,
    schedule::Runner,
};

use crate::{endpoints, machine};

pub use self::options::{Mode, Options};

/// The command line as a parser of its own, for drivers that run a mode.
#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

/// Calls between canisters that were made and answered.
pub(crate) struct Messages {
    pub(crate) per_second: f64,
    /// CPU time of the node for one of them, in microseconds: in all, in user and in system mode.
    pub(crate) micros: [f64; 3],
}

/// Mode calls with these flags, one of which names the node's process. Any error or wrong byte is
/// an error.
pub(crate) async fn inter_canister_messages(flags: &[&str]) -> Result<Messages> {
    let line =
        Line::try_parse_from(["hammer", "--mode", "calls", "--no-progress"].iter().chain(flags))?;
    let parameters = Parameters::from_options(&line.options)?;
    let report = hammer(parameters, false, false, Stop::never()).await?;
    ensure!(
        report.errors == 0 && report.verification_failures == 0,
        "calls between canisters:\n{}",
        report.table()
    );
    let mode = report.modes.first().context("one mode ran")?;
    let per_second =
        mode.inter_canister_messages_per_second.context("mode calls measures its calls")?;
    let phase = mode.phases.last().context("mode calls has a part that is measured")?;
    let hops: u64 = phase.kinds.values().map(|kind| kind.hops).sum();
    let cost = phase.cost.as_ref().context("the CPU time of the node was not read")?;
    let micros = cost.micros_per(hops as f64).context("no call between canisters was answered")?;
    Ok(Messages { per_second, micros })
}

/// Exit code for an invalid command line, as in `clap`.
const USAGE: u8 = 2;

/// Runs everything, prints the results, and returns the exit code.
pub async fn run(options: Options) -> Result<ExitCode> {
    let parameters = match Parameters::from_options(&options) {
        Ok(parameters) => parameters,
        Err(Usage(text)) => {
            eprintln!("thimble-lab hammer: {text}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    let stop = Stop::by_signal(|| eprintln!("\nhammer: stopping; what there is will be printed"))?;
    let report = hammer(parameters, !options.no_progress, options.keep, stop).await?;
    match options.json.as_deref() {
        Some("-") => println!("{}", serde_json::to_string_pretty(&report)?),
        Some(file) => {
            print!("{}", report.table());
            std::fs::write(file, serde_json::to_string_pretty(&report)?)
                .with_context(|| format!("writing {file}"))?;
        }
        None => print!("{}", report.table()),
    }
    Ok(ExitCode::from(report.exit_code))
}

async fn hammer(parameters: Parameters, progress: bool, keep: bool, stop: Stop) -> Result<Report> {
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let machine = machine();
    let fleet = Arc::new(Fleet::open(&parameters).await?);
    let runner = Runner {
        fleet: fleet.clone(),
        stop: stop.clone(),
        concurrency: parameters.concurrency,
        rate: parameters.rate,
        outstanding: parameters.outstanding,
        pids: parameters.pids.clone(),
        url: parameters.urls.first().cloned().unwrap_or_default(),
        seed: parameters.seed,
        progress,
    };
    let watch = if parameters.watch_nodes {
        Some(endpoints::Watch::start(&parameters.urls)?)
    } else {
        None
    };
    let modes = Modes { parameters: &parameters, fleet: fleet.clone(), runner };
    let mut reports = Vec::new();
    for mode in &parameters.modes {
        if stop.is_requested() {
            break;
        }
        reports.push(modes.run(*mode).await);
    }
    if keep {
        eprintln!("hammer: the canisters stay: --canisters {}", fleet.ids().join(","));
    } else {
        fleet.close().await;
    }
    let nodes = match watch {
        Some(watch) => Some(watch.finish().await),
        None => None,
    };
    let mut report = Report {
        format: 1,
        machine,
        began_unix_seconds: began,
        thimble_lab: env!("CARGO_PKG_VERSION"),
        client: "ic-agent 0.49",
        node: fleet.node.clone(),
        canisters: fleet.ids(),
        modes: reports,
        nodes,
        interrupted: stop.is_requested(),
        verification_failures: 0,
        probes_unmet: 0,
        errors: 0,
        exit_code: 0,
        parameters: parameters.clone(),
    };
    report.finish();
    Ok(report)
}
