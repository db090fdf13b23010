//! `thimble-lab tune`: finds the settings of a program's runtime with which it needs least and
//! keeps its deadline, and proves them.

mod executor;
mod options;
mod paste;
mod report;
mod selection;
mod table;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use cli::StopSignals;
use tokio::sync::watch;

pub use self::options::Options;
use self::{
    executor::{Executor, TooNoisy, clock},
    options::machine_bytes,
    report::{Report, Verdict},
    selection::KnobSelection,
};
use crate::{
    journal::Journal,
    knob,
    run::{Patterns, Plan, Ready, StoppedByUser},
    search::{End, SearchSpec, Unusable, measure, search},
};

/// Nothing lives, or meets the goal.
const EXIT_NOTHING: u8 = 1;
/// The search could not begin.
const EXIT_FAULT: u8 = 2;
/// The machine was too busy.
const EXIT_NOISY: u8 = 3;

/// Searches and prints. Exit status as in the help text.
pub async fn run(options: Options) -> Result<ExitCode> {
    let (stop, stopped) = watch::channel(false);
    let asked = tokio::spawn(ask_to_stop(stop));
    let done = tune(&options, stopped).await;
    asked.abort();
    done.or_else(|error| {
        if error.is::<StoppedByUser>() {
            eprintln!(
                "\nthimble-lab tune: stopped; nothing of the command is left running. The same command continues where it stopped."
            );
            return Ok(cli::interrupted());
        }
        eprintln!("thimble-lab tune: {error:#}");
        Ok(ExitCode::from(if error.is::<TooNoisy>() { EXIT_NOISY } else { EXIT_FAULT }))
    })
}

/// The first signal ends the run under way in order; the second ends us, and the cap's own process
/// ends what it runs.
async fn ask_to_stop(stop: watch::Sender<bool>) -> Result<()> {
    let mut signals = StopSignals::listen()?;
    loop {
        signals.next().await;
        if stop.send_replace(true) {
            std::process::exit(i32::from(cli::EXIT_INTERRUPTED));
        }
    }
}

async fn tune(options: &Options, stop: watch::Receiver<bool>) -> Result<ExitCode> {
    if !options.table.is_empty() {
        print!("{}", table::table(&options.table)?);
        return Ok(ExitCode::SUCCESS);
    }
    options.check()?;
    let program = options.command.first().context("there is no command")?;
    let selection = KnobSelection::from_options(options, program)?;
    if options.list {
        print!("{}", selection.list());
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        !selection.knobs.is_empty() || options.measure.is_some(),
        "nothing can be set: {program} shows no runtime that is known ({}); name one with \
         --runtime, or give a file with --knobs",
        knob::shipped_names().join(", ")
    );
    let machine = machine_bytes()?;
    let cap_bytes = options.memory.unwrap_or(machine);
    let folder = options.state.clone().unwrap_or_else(|| folder_of(program));
    let identity = identity(options, &selection, cap_bytes);
    let journal = Journal::open(&folder, &options.command.join(" "), &identity, options.fresh)?;
    let scratch = empty_scratch(&folder)?;
    let plan = plan(options, &selection, cap_bytes, &scratch)?;
    let spec = SearchSpec {
        knobs: selection.knobs.clone(),
        objective: options.goal,
        goal: options.lateness,
        is_late_measured: plan.is_late_measured(),
        cap_bytes,
        cap_bytes_max: machine,
        is_capped: options.memory.is_some(),
    };
    begin(options, &selection, &journal);
    let limits = (options.budget, options.busy);
    let mut executor = Executor::new(plan, &selection.knobs, journal, limits, stop);
    let found = match options.measure {
        Some(runs) => measure(&mut executor, &spec, usize::from(runs)).await,
        None => search(&mut executor, &spec).await,
    };
    let _ = std::fs::remove_dir_all(&scratch);
    let found = found.map_err(|error| match error.downcast::<Unusable>() {
        Ok(Unusable(outcome)) => anyhow::anyhow!("{}", report::unusable(&outcome)),
        Err(error) => error,
    })?;
    let paste = match &found.end {
        End::Better(confirmed) => Some(paste::paste(
            &options.command,
            &selection.knobs,
            &confirmed.setting,
            found.peak_bytes,
            selection.by,
            (options.memory, selection.path.as_deref()),
        )),
        _ => None,
    };
    let report = Report::new(&found, options, &selection, &executor, cap_bytes, paste);
    print(&report, options, executor.journal.folder())?;
    Ok(match report.verdict {
        Verdict::Better | Verdict::DefaultIsBest | Verdict::Measured => ExitCode::SUCCESS,
        Verdict::KilledEverywhere | Verdict::GoalNotMet => ExitCode::from(EXIT_NOTHING),
    })
}

/// Folder of a search for which none was named.
fn folder_of(program: &str) -> PathBuf {
    let name =
        Path::new(program).file_stem().map_or("command".into(), |name| name.to_string_lossy());
    PathBuf::from(format!("tune-{name}"))
}

/// Everything that a run depends on: runs of another search are not taken for this one's.
fn identity(options: &Options, selection: &KnobSelection, cap_bytes: u64) -> String {
    let searched = (
        &options.command,
        cap_bytes,
        &selection.knobs,
        selection.by,
        options.lateness,
        options.goal,
    );
    let asked =
        (options.question(), options.rate, options.load(), options.seconds, options.past_load);
    let lines = (
        options.beat.as_ref().map(regex::Regex::as_str),
        options.beat_every,
        options.miss.as_ref().map(regex::Regex::as_str),
        format!("{:?}", options.ready),
        options.ready_within,
    );
    format!("{:?}", (searched, asked, lines))
}

/// The folder for files of the runs, without what a search that was killed left there.
fn empty_scratch(folder: &Path) -> Result<PathBuf> {
    let scratch = folder.canonicalize()?.join("scratch");
    if scratch.exists() {
        std::fs::remove_dir_all(&scratch)
            .with_context(|| format!("removing {}", scratch.display()))?;
    }
    std::fs::create_dir_all(&scratch)?;
    Ok(scratch)
}

/// How every run is made.
fn plan(
    options: &Options,
    selection: &KnobSelection,
    cap_bytes: u64,
    scratch: &Path,
) -> Result<Plan> {
    let (ready, ready_probe) = match options.ready.clone() {
        Some(Ready::Line(pattern)) => (Some(pattern), None),
        Some(Ready::Answer(probe)) => (None, Some(probe)),
        None => (None, None),
    };
    let log_in_output = selection.log.as_ref().filter(|log| !log.has_file());
    Ok(Plan {
        exe: std::env::current_exe().context("finding this program")?,
        command: options.command.clone(),
        by: selection.by,
        cap_bytes,
        patterns: Patterns {
            ready,
            beat: options.beat.clone(),
            beat_period: options.beat_every,
            miss: options.miss.clone(),
            dialect: log_in_output.map(|log| log.dialect),
        },
        ready_probe,
        ready_within: options.ready_within,
        phase: options.phase(),
        is_phase_asked: options.seconds.is_some(),
        until_load_ends: options.load().is_some() && !options.past_load,
        probe: options.question(),
        per_second: options.rate,
        load: options.load().map(str::to_owned),
        log: selection.log.clone(),
        scratch: scratch.to_owned(),
    })
}

fn print(report: &Report, options: &Options, folder: &Path) -> Result<()> {
    let json = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(folder.join("report.json"), &json)?;
    let is_stdout = options.json.as_deref() == Some(Path::new("-"));
    if is_stdout {
        print!("{json}");
        return Ok(());
    }
    if let Some(path) = &options.json {
        std::fs::write(path, &json).with_context(|| format!("writing {}", path.display()))?;
    }
    print!("{}", report.text());
    Ok(())
}

fn begin(options: &Options, selection: &KnobSelection, journal: &Journal) {
    eprintln!(
        "tune: {} | {} | {} settings | at most {} | folder {}",
        options.command.join(" "),
        selection.titles.join(", "),
        selection.knobs.len(),
        clock(options.budget),
        journal.folder().display()
    );
    if journal.resumed > 0 {
        eprintln!(
            "      continues: {} runs in {} are known (--fresh starts over)",
            journal.resumed,
            clock(Duration::from_secs_f64(journal.spent_seconds))
        );
    }
}
