//! `thimble-lab tune`: finds the settings of a program's runtime with which it needs least and keeps
//! its deadline, and proves them.

mod executor;
mod options;
mod paste;
mod report;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::watch;

pub use self::options::Options;
use self::{
    executor::{Executor, TooNoisy, clock},
    options::machine_bytes,
    report::{About, Report, Verdict},
};
use crate::{
    journal::Journal,
    knob::{self, By, KNOBS_MAX, Knob, Log, Runtime},
    recognise,
    run::{Plan, Stopped},
    search::{Asked, End, Unusable, search},
};

/// Nothing lives, or meets the goal.
const EXIT_NOTHING: u8 = 1;
/// The search could not begin.
const EXIT_FAULT: u8 = 2;
/// The machine was too busy.
const EXIT_NOISY: u8 = 3;
const EXIT_INTERRUPTED: u8 = 130;

/// Searches and prints. Exit status as in the help text.
pub async fn run(options: Options) -> Result<ExitCode> {
    let (stop, stopped) = watch::channel(false);
    let asked = tokio::spawn(ask_to_stop(stop));
    let done = tune(&options, stopped).await;
    asked.abort();
    done.or_else(|error| {
        if error.is::<Stopped>() {
            eprintln!(
                "\nthimble-lab tune: stopped; nothing of the command is left running. The same command goes on where it stopped."
            );
            return Ok(ExitCode::from(EXIT_INTERRUPTED));
        }
        eprintln!("thimble-lab tune: {error:#}");
        Ok(ExitCode::from(if error.is::<TooNoisy>() { EXIT_NOISY } else { EXIT_FAULT }))
    })
}

/// The first signal ends the run under way in order; the second ends us, and the cap's own process
/// ends what it runs.
async fn ask_to_stop(stop: watch::Sender<bool>) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        if stop.send_replace(true) {
            std::process::exit(i32::from(EXIT_INTERRUPTED));
        }
    }
}

async fn tune(options: &Options, stop: watch::Receiver<bool>) -> Result<ExitCode> {
    options.check()?;
    let program = options.command.first().context("there is no command")?;
    let chosen = Chosen::of(options, program)?;
    if options.list {
        print!("{}", chosen.list());
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        !chosen.knobs.is_empty(),
        "nothing can be set: {program} shows no runtime that is known ({}); name one with --runtime, or give a file with --knobs",
        knob::shipped_names().join(", ")
    );
    let machine = machine_bytes()?;
    let cap_bytes = options.memory.unwrap_or(machine);
    let folder = options.state.clone().unwrap_or_else(|| {
        let name = Path::new(program).file_stem().map_or("command".into(), |name| name.to_string_lossy());
        PathBuf::from(format!("tune-{name}"))
    });
    let identity = format!(
        "{:?}",
        (
            (&options.command, cap_bytes, &chosen.knobs, chosen.by, options.lateness, options.goal),
            (options.question()?, options.rate, options.load(), options.phase(), options.past_load),
            (
                options.beat.as_ref().map(regex::Regex::as_str),
                options.beat_every,
                options.miss.as_ref().map(regex::Regex::as_str),
                format!("{:?}", options.ready),
                options.ready_within,
            ),
        )
    );
    let journal = Journal::open(&folder, &options.command.join(" "), &identity, options.fresh)?;
    let scratch = folder.canonicalize()?.join("scratch");
    // What a search that was killed left there.
    if scratch.exists() {
        std::fs::remove_dir_all(&scratch).with_context(|| format!("removing {}", scratch.display()))?;
    }
    std::fs::create_dir_all(&scratch)?;
    let plan = Plan {
        exe: std::env::current_exe().context("finding this program")?,
        command: options.command.clone(),
        by: chosen.by,
        cap_bytes,
        ready: options.ready.clone(),
        ready_within: options.ready_within,
        phase: options.phase(),
        until_load_ends: options.load().is_some() && !options.past_load,
        probe: options.question()?,
        per_second: options.rate,
        beat: options.beat.clone(),
        beat_period: options.beat_every,
        miss: options.miss.clone(),
        load: options.load().map(str::to_owned),
        log: chosen.log.clone(),
        scratch: scratch.clone(),
    };
    let asked = Asked {
        knobs: chosen.knobs.clone(),
        aim: options.goal,
        goal: options.lateness,
        is_late_measured: plan.probe.is_some() || plan.beat.is_some() || plan.miss.is_some(),
        cap_bytes,
        cap_bytes_max: machine,
        is_capped: options.memory.is_some(),
    };
    begin(options, &chosen, &journal);
    let limits = (options.budget, options.busy);
    let mut executor = Executor::new(plan, &chosen.knobs, journal, limits, stop);
    let found = search(&mut executor, &asked).await;
    let _ = std::fs::remove_dir_all(&scratch);
    let found = found.map_err(|error| match error.downcast::<Unusable>() {
        Ok(Unusable(outcome)) => anyhow::anyhow!("{}", report::unusable(&outcome)),
        Err(error) => error,
    })?;
    let paste = match &found.end {
        End::Better(confirmed) => Some(paste::paste(
            &options.command,
            &chosen.knobs,
            &confirmed.setting,
            found.peak_bytes,
            chosen.by,
            options.memory,
        )),
        _ => None,
    };
    let report = Report::new(
        &found,
        About {
            command: &options.command,
            knobs: &chosen.knobs,
            runtimes: chosen.titles.clone(),
            cap_bytes,
            is_capped: options.memory.is_some(),
            runs: executor.made,
            discarded: executor.discarded,
            spent_seconds: executor.spent().as_secs_f64(),
            paste,
        },
    );
    print(&report, options, executor.journal.folder())?;
    Ok(match report.verdict {
        Verdict::Better | Verdict::DefaultIsBest => ExitCode::SUCCESS,
        Verdict::KilledEverywhere | Verdict::GoalNotMet => ExitCode::from(EXIT_NOTHING),
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

fn begin(options: &Options, chosen: &Chosen, journal: &Journal) {
    eprintln!(
        "tune: {} | {} | {} settings | at most {} | folder {}",
        options.command.join(" "),
        chosen.titles.join(", "),
        chosen.knobs.len(),
        clock(options.budget),
        journal.folder().display()
    );
    if journal.resumed > 0 {
        eprintln!(
            "      goes on: {} runs in {} are known (--fresh begins anew)",
            journal.resumed,
            clock(Duration::from_secs_f64(journal.spent_seconds))
        );
    }
}

/// What is searched, and how it gets to the program.
struct Chosen {
    titles: Vec<String>,
    knobs: Vec<Knob>,
    log: Option<Log>,
    by: By,
}

impl Chosen {
    fn of(options: &Options, program: &str) -> Result<Self> {
        let path = found_program(program);
        let seen = path.as_deref().map(recognise::program).unwrap_or_default();
        let mut runtimes: Vec<Runtime> = Vec::new();
        let mut names: Vec<String> = options.runtime.clone();
        if names.is_empty() && options.knobs.is_empty() {
            names = seen.runtimes.iter().map(|name| (*name).to_owned()).collect();
            // These hardly use the C library's allocator; the others' native parts do.
            if names.iter().any(|name| ["ghc", "go", "dotnet"].contains(&name.as_str())) {
                names.truncate(1);
            }
            let own = path.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
            names.extend(own.filter(|name| name.starts_with("thimble")).map(|name| name.into_owned()));
            names.retain(|name| knob::shipped_names().contains(&name.as_str()));
        }
        for name in &names {
            runtimes.push(knob::shipped(name)?);
        }
        for file in &options.knobs {
            runtimes.push(knob::read(file)?);
        }
        let mut knobs: Vec<Knob> = Vec::new();
        let all = runtimes.iter().flat_map(|runtime| &runtime.knobs);
        let mut unknown: Vec<&String> = options.skip.iter().collect();
        for knob in all {
            unknown.retain(|name| **name != knob.name);
            if options.skip.contains(&knob.name) {
                continue;
            }
            // Two files may have a knob of one name; one name, one knob.
            let mut knob = knob.clone();
            if knobs.iter().any(|other| other.name == knob.name) {
                knob.name = format!("{} (2)", knob.name);
            }
            knobs.push(knob);
        }
        if let [first, ..] = unknown.as_slice() {
            let names: Vec<&str> = knobs.iter().map(|knob| knob.name.as_str()).collect();
            bail!("--skip {first}: there is no such setting; there are {}", names.join(", "));
        }
        ensure!(
            knobs.len() <= KNOBS_MAX,
            "{} settings, but {KNOBS_MAX} at most are searched; leave some alone with --skip",
            knobs.len()
        );
        let by = options.by.unwrap_or_else(|| {
            // A wrapper may not hand arguments on; what it starts inherits the environment.
            let is_direct = !is_script(path.as_deref())
                && names.iter().all(|name| seen.runtimes.iter().any(|seen| seen == name))
                || names.iter().any(|name| name.starts_with("thimble"));
            if is_direct || !options.knobs.is_empty() { By::Argument } else { By::Environment }
        });
        Ok(Self {
            titles: runtimes.iter().map(|runtime| runtime.title.clone()).collect(),
            log: runtimes.into_iter().find_map(|runtime| runtime.log),
            knobs,
            by,
        })
    }

    fn list(&self) -> String {
        let mut text = format!("{}, by {:?}\n", self.titles.join(", "), self.by).to_lowercase();
        for knob in &self.knobs {
            let values: Vec<String> = knob.values.iter().map(knob::Value::shown).collect();
            text.push_str(&format!("  {:<24} {}\n      {}\n", knob.name, values.join(", "), knob.why));
        }
        text
    }
}

fn is_script(path: Option<&Path>) -> bool {
    use std::io::Read;
    let mut first = [0; 2];
    let opened = path.and_then(|path| std::fs::File::open(path).ok());
    opened.is_some_and(|mut file| file.read_exact(&mut first).is_ok() && &first == b"#!")
}

/// Where the shell would find it.
fn found_program(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return path.exists().then(|| path.to_owned());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|file| file.is_file())
}
