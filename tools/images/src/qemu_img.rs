//! Running `qemu-img` on files that may be hostile: with a time limit, limits of the kernel on
//! memory, CPU time and file size, bounded output, and its own words in every error.
//!
//! It ends with this process (the kernel sends SIGKILL), and when [`crate::Stop`] asks.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use accounting::{GIB, MIB};
use rustix::process::{Resource, Rlimit, Signal};
use serde::Deserialize;

use crate::{Error, Result, Settings};

/// The output of `info` for a file with the most permitted snapshots is shorter.
const OUTPUT_BYTES_MAX: u64 = 4 * MIB;
/// Its words in an error.
const WORDS_CHARACTERS_MAX: usize = 1000;
/// Address space: libraries, and tables of the largest disks.
const MEMORY_BYTES: u64 = 8 * GIB;
/// `info` and `check` read tables only.
pub(crate) const TIMEOUT_FOR_TABLES: Duration = Duration::from_secs(120);
/// `convert` of the largest disk on the slowest machine.
pub(crate) const TIMEOUT_FOR_DISKS: Duration = Duration::from_secs(4 * 3600);
const LOOK_EVERY: Duration = Duration::from_millis(2);
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// Size of a converted file in addition to the disk in it, at most.
const TABLES_BYTES: u64 = GIB;

/// Output of `qemu-img info`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Info {
    pub(crate) format: String,
    pub(crate) virtual_size: u64,
    pub(crate) backing_filename: Option<String>,
    #[serde(default)]
    pub(crate) encrypted: bool,
}

/// Output of `qemu-img check`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Check {
    #[serde(default)]
    corruptions: u64,
    #[serde(default)]
    check_errors: u64,
    #[serde(default)]
    image_end_offset: u64,
}

/// Limits of a run.
struct Bounds {
    timeout: Duration,
    file_bytes: u64,
}

/// Runs `qemu-img info` on a qcow2 file whose header was checked.
pub(crate) fn info(path: &Path, settings: &Settings) -> Result<Info> {
    // Locks of machines that run on the file do not matter to who only looks.
    let arguments = words_before(path, &["info", "-U", "-f", "qcow2", "--output=json"]);
    let bounds = Bounds { timeout: TIMEOUT_FOR_TABLES, file_bytes: 0 };
    let output = run(&arguments, &bounds, &mut || Ok(()), settings)?;
    serde_json::from_slice(&output).map_err(|error| Error::Tool {
        command: "qemu-img info".to_owned(),
        words: format!("its answer cannot be read: {error}"),
    })
}

/// Checks the tables of a qcow2 file with `qemu-img check`.
pub(crate) fn check(path: &Path, cluster_bytes: u64, settings: &Settings) -> Result<()> {
    let arguments = words_before(path, &["check", "-U", "-f", "qcow2", "--output=json"]);
    let bounds = Bounds { timeout: TIMEOUT_FOR_TABLES, file_bytes: 0 };
    let (status, output, words) = spawn(&arguments, &bounds, &mut || Ok(()), settings)?;
    // 0: fine; 2: errors; 3: leaked clusters, which only take room.
    let answer = serde_json::from_slice::<Check>(&output);
    let length = std::fs::metadata(path).map_err(Error::io("looking at", path))?.len();
    match (status.code(), answer) {
        // The last cluster may be written in part only.
        (Some(0 | 3), Ok(answer))
            if answer.image_end_offset > length.next_multiple_of(cluster_bytes) =>
        {
            Err(Error::refused(
                path,
                format!(
                    "it is cut off: it has {length} bytes and should have {}",
                    answer.image_end_offset
                ),
            ))
        }
        (Some(0 | 3), Ok(_)) => Ok(()),
        (Some(2), Ok(answer)) => Err(Error::refused(
            path,
            format!(
                "qemu-img check finds {} damaged places and {} errors; is it cut off?",
                answer.corruptions, answer.check_errors
            ),
        )),
        _ => Err(failed(&arguments, &words, status)),
    }
}

/// Writes the disk of one file into another one, in a form of ours. `watch` is called several times
/// a second and ends it by an error.
pub(crate) fn convert(
    from: (&Path, &str),
    to: (&Path, &str),
    options: &[&str],
    watch: &mut dyn FnMut() -> Result<()>,
    settings: &Settings,
) -> Result<()> {
    let mut arguments: Vec<&OsStr> = vec!["convert".as_ref(), "-f".as_ref(), from.1.as_ref()];
    arguments.extend(options.iter().map(OsStr::new));
    arguments.extend([OsStr::new("-O"), to.1.as_ref(), from.0.as_ref(), to.0.as_ref()]);
    let bounds = Bounds {
        timeout: TIMEOUT_FOR_DISKS,
        file_bytes: settings.limit_bytes.saturating_add(TABLES_BYTES),
    };
    run(&arguments, &bounds, watch, settings).map(drop)
}

/// Makes the disk of an overlay larger; it fails when a machine runs on it.
pub(crate) fn grow(path: &Path, virtual_bytes: u64, settings: &Settings) -> Result<()> {
    let size = OsString::from(virtual_bytes.to_string());
    let mut arguments = words_before(path, &["resize", "-q", "-f", "qcow2"]);
    arguments.push(&size);
    let bounds = Bounds { timeout: TIMEOUT_FOR_TABLES, file_bytes: u64::MAX };
    run(&arguments, &bounds, &mut || Ok(()), settings).map(drop)
}

fn words_before<'a>(path: &'a Path, words: &[&'a str]) -> Vec<&'a OsStr> {
    words.iter().map(|word| OsStr::new(*word)).chain([path.as_os_str()]).collect()
}

fn run(
    arguments: &[&OsStr],
    bounds: &Bounds,
    watch: &mut dyn FnMut() -> Result<()>,
    settings: &Settings,
) -> Result<Vec<u8>> {
    let (status, output, words) = spawn(arguments, bounds, watch, settings)?;
    if status.success() { Ok(output) } else { Err(failed(arguments, &words, status)) }
}

fn failed(arguments: &[&OsStr], words: &[u8], status: std::process::ExitStatus) -> Error {
    let text = String::from_utf8_lossy(words);
    let text = text.trim().strip_prefix("qemu-img: ").unwrap_or(text.trim());
    let mut words: String = text.chars().take(WORDS_CHARACTERS_MAX).collect();
    if words.is_empty() {
        words = match status.signal() {
            Some(signal) if signal == Signal::XCPU.as_raw() => {
                "it took more CPU time than it may".to_owned()
            }
            Some(signal) if signal == Signal::XFSZ.as_raw() => {
                "its file became larger than the limit (--limit)".to_owned()
            }
            _ => format!("it ended with {status} and without a word"),
        };
    }
    Error::Tool { command: command(arguments), words }
}

fn command(arguments: &[&OsStr]) -> String {
    let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
    format!("qemu-img {}", words.join(" "))
}

fn spawn(
    arguments: &[&OsStr],
    bounds: &Bounds,
    watch: &mut dyn FnMut() -> Result<()>,
    settings: &Settings,
) -> Result<(std::process::ExitStatus, Vec<u8>, Vec<u8>)> {
    let program = &settings.qemu_img;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let limits = [
        (Resource::As, MEMORY_BYTES),
        (Resource::Cpu, bounds.timeout.as_secs().saturating_mul(8)),
        (Resource::Fsize, bounds.file_bytes),
        (Resource::Core, 0),
    ];
    // SAFETY: between fork and exec only system calls are made (prlimit, prctl); nothing is
    // allocated and no lock is taken.
    unsafe {
        command.pre_exec(move || {
            for (resource, value) in limits {
                // A lower limit that is in force already stays.
                let now = rustix::process::getrlimit(resource);
                let value = Some(now.maximum.map_or(value, |maximum| maximum.min(value)));
                rustix::process::setrlimit(resource, Rlimit { current: value, maximum: value })?;
            }
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        });
    }
    let mut child = KillOnDrop(command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::NoTool { program: program.clone() },
        _ => Error::Tool { command: program.display().to_string(), words: error.to_string() },
    })?);
    let (output, words) = (child.0.stdout.take(), child.0.stderr.take());
    let began = Instant::now();
    let mut looked = began;
    thread::scope(|scope| {
        let output = scope.spawn(move || bounded(output));
        let words = scope.spawn(move || bounded(words));
        let status = loop {
            match child.0.try_wait() {
                Ok(Some(status)) => break Ok(status),
                Ok(None) => {}
                Err(error) => break Err(Error::io("waiting for", program)(error)),
            }
            if let Err(stopped) = settings.stop.check() {
                break Err(stopped);
            }
            if began.elapsed() > bounds.timeout {
                break Err(Error::Tool {
                    command: self::command(arguments),
                    words: format!("it did not end within {} s", bounds.timeout.as_secs()),
                });
            }
            if looked.elapsed() > WATCH_EVERY {
                looked = Instant::now();
                if let Err(ended) = watch() {
                    break Err(ended);
                }
            }
            thread::sleep(LOOK_EVERY);
        };
        // Ends a child that still runs, and with it what the two threads read.
        drop(child);
        let read =
            |thread: thread::ScopedJoinHandle<'_, Vec<u8>>| thread.join().unwrap_or_default();
        let (output, words) = (read(output), read(words));
        status.map(|status| (status, output, words))
    })
}

/// Reads all of a pipe and keeps the beginning: a child must not wait for a reader that has enough.
fn bounded(pipe: Option<impl Read>) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(mut pipe) = pipe {
        // After an error, the output read so far is used.
        let _ = pipe.by_ref().take(OUTPUT_BYTES_MAX).read_to_end(&mut kept);
        let _ = io::copy(&mut pipe, &mut io::sink());
    }
    kept
}

/// Does not outlive its owner.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
