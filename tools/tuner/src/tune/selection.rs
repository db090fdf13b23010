//! Which settings are searched: those of the runtimes that are seen in the program or named, less
//! what this version does not have and what the user leaves alone.

use std::{
    io::Read,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};

use super::Options;
use crate::{
    knob::{self, By, KNOBS_MAX, Knob, Log, Runtime},
    recognise,
};

/// A list of settings has this many bytes at most, and is printed within this time.
const LISTING_BYTES_MAX: u64 = 1 << 20;
const LISTING_TIMEOUT: Duration = Duration::from_secs(5);

/// The knobs of a search, and their delivery to the program.
pub(super) struct KnobSelection {
    pub(super) titles: Vec<String>,
    pub(super) knobs: Vec<Knob>,
    pub(super) log: Option<Log>,
    pub(super) by: By,
    /// Settings that this version of the runtime does not have.
    pub(super) absent: Vec<String>,
    /// Where the program is.
    pub(super) path: Option<PathBuf>,
}

impl KnobSelection {
    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    pub(super) fn from_options(options: &Options, program: &str) -> Result<Self> {
        // What `env` starts is the program, and it inherits the environment.
        let is_wrapped = Path::new(program).file_name().is_some_and(|name| name == "env");
        let inner = options
            .command
            .iter()
            .skip(1)
            .find(|word| !word.starts_with('-') && !word.contains('='));
        let program = inner.filter(|_| is_wrapped).map_or(program, String::as_str);
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
            names.extend(
                own.filter(|name| name.starts_with("thimble")).map(|name| name.into_owned()),
            );
            names.retain(|name| knob::shipped_names().contains(&name.as_str()));
        }
        for name in &names {
            runtimes.push(knob::shipped(name)?);
        }
        for file in &options.knobs {
            runtimes.push(knob::read(file)?);
        }
        let mut knobs: Vec<Knob> = Vec::new();
        let mut absent = Vec::new();
        for runtime in &mut runtimes {
            if let (Some(path), false) = (&path, runtime.help.is_empty()) {
                absent.extend(leave_out_absent(runtime, path));
            }
        }
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
            let is_direct = !is_wrapped
                && !is_script(path.as_deref())
                && names.iter().all(|name| seen.runtimes.iter().any(|seen| seen == name))
                || names.iter().any(|name| name.starts_with("thimble"));
            if is_direct || !options.knobs.is_empty() { By::Argument } else { By::Environment }
        });
        Ok(Self {
            titles: runtimes.iter().map(|runtime| runtime.title.clone()).collect(),
            log: runtimes.into_iter().find_map(|runtime| runtime.log),
            knobs,
            by,
            absent,
            path: path.filter(|_| !is_wrapped).and_then(|path| std::path::absolute(path).ok()),
        })
    }

    pub(super) fn list(&self) -> String {
        let mut text = format!("{}, by {:?}\n", self.titles.join(", "), self.by).to_lowercase();
        for knob in &self.knobs {
            let values: Vec<String> = knob.values.iter().map(knob::Value::shown).collect();
            text.push_str(&format!(
                "  {:<24} {}\n      {}\n",
                knob.name,
                values.join(", "),
                knob.why
            ));
        }
        if !self.absent.is_empty() {
            text.push_str(&format!("  not in this runtime: {}\n", self.absent.join(", ")));
        }
        text
    }
}

/// Asks the program which settings its runtime has, and leaves out those it does not list. One that
/// lists none of them does not understand the question: then all are tried.
fn leave_out_absent(runtime: &mut Runtime, path: &Path) -> Vec<String> {
    let listing = listing(path, &runtime.help);
    let has =
        |knob: &Knob| knob.listed.as_ref().is_none_or(|listed| listing.contains(listed.as_str()));
    if !runtime.knobs.iter().any(|knob| knob.listed.is_some() && has(knob)) {
        return Vec::new();
    }
    let absent =
        runtime.knobs.iter().filter(|knob| !has(knob)).map(|knob| knob.name.clone()).collect();
    runtime.knobs.retain(has);
    absent
}

/// Its output; empty when that takes too long.
fn listing(path: &Path, arguments: &[String]) -> String {
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.process_group(0).spawn() else { return String::new() };
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(pipe) = pipe {
                // Bytes read before an error are used.
                let _ = pipe.take(LISTING_BYTES_MAX).read_to_end(&mut text);
            }
            text
        })
    };
    let output = read(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let error = read(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let deadline = Instant::now() + LISTING_TIMEOUT;
    while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(10));
    }
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // A program that did not understand, and runs; or what it started.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
    let text = [output.join().unwrap_or_default(), error.join().unwrap_or_default()].concat();
    String::from_utf8_lossy(&text).into_owned()
}

fn is_script(path: Option<&Path>) -> bool {
    let mut first = [0; 2];
    let opened = path.and_then(|path| std::fs::File::open(path).ok());
    opened.is_some_and(|mut file| file.read_exact(&mut first).is_ok() && &first == b"#!")
}

fn found_program(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return path.exists().then(|| path.to_owned());
    }
    recognise::on_path(name)
}
