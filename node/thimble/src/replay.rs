//! `thimble replay`: executes again the blocks of a node's log above its newest checkpoint, and
//! compares every state root with the one that the node recorded.
//!
//! The folder is not changed. Executing changes a state and makes checkpoints, so a copy of the
//! necessary parts is executed: the checkpoint, canister memory, the log, and the rules that the
//! blocks were executed by. Keys stay where they are, compiled code is made anew. The log does not
//! record the number of threads that executed it, and the result of a block must not depend on it
//! either: a check with several numbers verifies that.
//!
//! This module must never know what a block means.

use std::{
    fs::{self, File},
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use consensus::{Certificate, Consensus, ConsensusError, Demand, LogReplay, Step};
use disk::{Lock, if_there};
use futures::future::BoxFuture;
use lifecycle::StopSignals;
use serde::{Deserialize, Serialize};
use state::{Fault, Height};

use crate::{config::Config, node, rules};

/// Parts of a data folder that a replay needs, in addition to the keys.
const PARTS: [&str; 5] = ["state", "pages", "blocks", "rules", "verdicts.txt"];
/// Threads that a replay may take.
const THREADS_MAX: u64 = 64;

/// How long an interrupt tries to remove the copy.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(3);
/// Exit status after an interrupt.
const INTERRUPTED: i32 = 130;

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) folder: PathBuf,
    pub(crate) check: bool,
    pub(crate) threads: Vec<u64>,
    pub(crate) scratch: Option<PathBuf>,
    pub(crate) json: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Run {
    threads: u64,
    first: u64,
    last: u64,
    /// Roots that the log held and that came out again.
    compared: u64,
    seconds: f64,
}

/// Executes the log of a folder as often as asked for.
pub(crate) fn run(options: &Options) -> Result<()> {
    let folder = fs::canonicalize(&options.folder)
        .with_context(|| format!("finding the data folder {}", options.folder.display()))?;
    let rules = folder.join("rules").is_file();
    ensure!(
        rules && folder.join("keys").is_dir(),
        "{} holds no file `rules` or no folder `keys`: it is no data folder of a node that executed \
         anything",
        folder.display()
    );
    let config = rules::recorded_configuration(&folder)?;
    let own = config.limits.execution.threads;
    let mut counts = match (options.threads.as_slice(), options.check) {
        ([], true) => vec![1, own, (own * 2).min(THREADS_MAX)],
        ([], false) => vec![own],
        (threads, _) => threads.to_vec(),
    };
    counts.dedup();
    if let Some(count) = counts.iter().find(|count| !(1..=THREADS_MAX).contains(*count)) {
        bail!("{count} threads: from 1 to {THREADS_MAX} can be asked for");
    }
    let mut runs = Vec::new();
    for threads in &counts {
        // Each in a process of its own: the state's heap stays with the process that made it.
        let run = match counts.as_slice() {
            [threads] => in_copy(&config, options, *threads)?,
            _ => in_process(&folder, options, *threads)?,
        };
        if !options.json {
            println!(
                "heights {} to {} with {}: {} roots compared, all as recorded, {:.1} s",
                run.first,
                run.last,
                threads_of(*threads),
                run.compared,
                run.seconds
            );
        }
        runs.push(run);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&runs)?);
    }
    Ok(())
}

fn threads_of(count: u64) -> String {
    if count == 1 { "1 thread".into() } else { format!("{count} threads") }
}

/// One execution by another process of this program.
fn in_process(folder: &Path, options: &Options, threads: u64) -> Result<Run> {
    let program = std::env::current_exe().context("finding this program's file")?;
    let mut command = Command::new(program);
    command.args(["replay", "--json", "--threads", &threads.to_string()]).arg(folder);
    if let Some(scratch) = &options.scratch {
        command.arg("--scratch").arg(scratch);
    }
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting a replay with {}", threads_of(threads)))?;
    ensure!(output.status.success(), "the replay with {} failed", threads_of(threads));
    let [run] = serde_json::from_slice::<Vec<Run>>(&output.stdout)?
        .try_into()
        .map_err(|_| anyhow!("a replay with {} printed no outcome", threads_of(threads)))?;
    Ok(run)
}

/// One execution, in a copy that is gone afterwards.
fn in_copy(config: &Config, options: &Options, threads: u64) -> Result<Run> {
    let folder = &config.data_dir;
    node::start_logging("warn")?;
    let _lock = lock_as_it_is(folder)?;
    ensure!(
        !folder.join("sync").exists(),
        "{} is where a state was being fetched or put in place: start the node once, so that it \
         ends that",
        folder.display()
    );
    let scratch = options.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let copy = tempfile::Builder::new()
        .prefix("thimble-replay-")
        .tempdir_in(&scratch)
        .with_context(|| format!("making a folder in {}", scratch.display()))?;
    remove_when_interrupted(copy.path());
    copy_folder(folder, copy.path())?;
    let config = Config { data_dir: copy.path().into(), ..config.clone() };
    execute(&config, threads, !options.json)
}

/// The lock of a data folder, if it has one: a copy may have none, and stays as it is.
fn lock_as_it_is(folder: &Path) -> Result<Option<Lock>> {
    let path = folder.join("lock");
    let opened = if_there(File::open(&path));
    let opened = opened.with_context(|| format!("opening {}", path.display()))?;
    let Some(file) = opened else { return Ok(None) };
    let lock = Lock::take(file).with_context(|| format!("locking {}", path.display()))?;
    let lock = lock.with_context(|| {
        format!("the data folder {} is in use by a running node", folder.display())
    })?;
    Ok(Some(lock))
}

/// Frees the space of the copy on Ctrl-C.
fn remove_when_interrupted(copy: &Path) {
    let copy = copy.to_owned();
    let waiting = std::thread::Builder::new().name("interrupts".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        let asked = runtime.block_on(async {
            let mut signals = StopSignals::listen()?;
            Ok::<_, io::Error>(signals.next().await)
        });
        if asked.is_err() {
            return;
        }
        // The execution continues to make files until the process ends.
        let until = Instant::now() + REMOVAL_PATIENCE;
        while fs::remove_dir_all(&copy).is_err() && copy.exists() && Instant::now() < until {
            std::thread::yield_now();
        }
        if copy.exists() {
            let _ = writeln!(io::stderr(), "thimble: {} is left behind", copy.display());
        }
        std::process::exit(INTERRUPTED);
    });
    if waiting.is_err() {
        let _ = writeln!(io::stderr(), "thimble: an interrupt would leave the copy behind");
    }
}

/// Executes the log in a folder that may change, and prints its roots if asked to.
fn execute(config: &Config, threads: u64, print: bool) -> Result<Run> {
    let started = Instant::now();
    let copy = &config.data_dir;
    let Some((first, last)) = rules::to_be_executed(copy)? else {
        bail!(
            "the log holds no block above the newest checkpoint, so there is nothing to execute \
             again: copy the folder before the node has made a checkpoint, which it does when it \
             stops"
        );
    };
    let tally = Arc::new(Tally::default());
    let mut reached = None;
    while let Some((next, _)) = rules::to_be_executed(copy)? {
        // The round loop may end with a checkpoint before the log does.
        ensure!(
            reached.is_none_or(|reached| next > reached),
            "blocks {next} to {last} could not be executed; what was in the way is said above"
        );
        reached = Some(next);
        node::replay_copy(config, threads, print, &tally)?;
    }
    let compared = tally.compared.load(Ordering::Relaxed);
    ensure!(compared > 0, "no root of heights {first} to {last} was recorded: nothing to compare");
    Ok(Run { threads, first, last, compared, seconds: started.elapsed().as_secs_f64() })
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Heights whose root was compared with a recorded one.
    compared: AtomicU64,
    /// The highest height that was executed: one may be executed twice.
    highest: AtomicU64,
}

/// A [`LogReplay`] that counts the roots it compares, and prints them.
pub(crate) struct CountingReplay {
    replay: LogReplay,
    print: bool,
    /// Whether the batch that is being executed has a root to compare with.
    recorded: bool,
    tally: Arc<Tally>,
}

impl CountingReplay {
    pub(crate) fn new(replay: LogReplay, print: bool, tally: Arc<Tally>) -> Self {
        Self { replay, print, recorded: false, tally }
    }
}

impl Consensus for CountingReplay {
    fn next(&mut self, demand: Demand) -> BoxFuture<'_, Result<Step, ConsensusError>> {
        Box::pin(async move {
            let step = self.replay.next(demand).await?;
            if let Step::Execute(batch) = &step {
                self.recorded = batch.recorded.is_some();
            }
            Ok(step)
        })
    }

    fn executed(
        &mut self,
        height: Height,
        root: [u8; 32],
        faults: Vec<Fault>,
    ) -> BoxFuture<'_, Result<Vec<Certificate>, ConsensusError>> {
        Box::pin(async move {
            let certificates = self.replay.executed(height, root, faults).await?;
            if self.tally.highest.fetch_max(height.0, Ordering::Relaxed) < height.0 {
                let recorded = u64::from(self.recorded);
                self.tally.compared.fetch_add(recorded, Ordering::Relaxed);
                if self.print {
                    // The reader may stop reading; the check continues.
                    let _ = writeln!(io::stdout(), "{} {}", height.0, hex::encode(root));
                }
            }
            Ok(certificates)
        })
    }

    fn checkpointed(&mut self, height: Height) -> Result<(), ConsensusError> {
        self.replay.checkpointed(height)
    }

    fn certificates_pending(&self) -> u64 {
        self.replay.certificates_pending()
    }
}

/// Copies what a replay needs, holes as holes: canister memory is sparse.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    for part in PARTS {
        // A part may be on another volume.
        let part_from = from.join(part);
        let part_from = fs::canonicalize(&part_from).unwrap_or(part_from);
        copy(&part_from, &to.join(part))?;
    }
    symlink(from.join("keys"), to.join("keys")).context("pointing at the keys")
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let kind = if_there(fs::symlink_metadata(from));
    let kind = kind.with_context(|| format!("reading {}", from.display()))?;
    let Some(kind) = kind else { return Ok(()) };
    if kind.is_dir() {
        fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
        for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
            let name = entry?.file_name();
            copy(&from.join(&name), &to.join(&name))?;
        }
        return Ok(());
    }
    ensure!(kind.is_file(), "{} is neither a file nor a folder", from.display());
    copy_file(from, to).with_context(|| format!("copying {} to {}", from.display(), to.display()))
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    let mut target = File::options().write(true).create_new(true).open(to)?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return Ok(());
    }
    let bytes = source.metadata()?.len();
    target.set_len(bytes)?;
    let mut at = 0;
    while at < bytes {
        let data = match rustix::fs::seek(&source, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole to the end.
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let hole = rustix::fs::seek(&source, rustix::fs::SeekFrom::Hole(data))?;
        source.seek(SeekFrom::Start(data))?;
        target.seek(SeekFrom::Start(data))?;
        io::copy(&mut io::Read::take(&mut source, hole - data), &mut target)?;
        at = hole;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    use super::*;

    #[test]
    fn a_copy_has_the_same_bytes_and_the_same_holes() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        fs::create_dir_all(from.join("pages")).unwrap();
        let file = File::create(from.join("pages/1.base")).unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"here", 5 << 30).unwrap();
        fs::write(from.join("rules"), b"{}").unwrap();
        fs::create_dir(from.join("keys")).unwrap();
        let to = tempfile::tempdir().unwrap();
        copy_folder(&from, to.path()).unwrap();
        let copied = File::open(to.path().join("pages/1.base")).unwrap();
        let mut bytes = [0; 6];
        copied.read_exact_at(&mut bytes, (5 << 30) - 1).unwrap();
        assert_eq!(&bytes, b"\0here\0");
        let about = copied.metadata().unwrap();
        assert_eq!(about.len(), 1 << 40);
        assert!(about.blocks() * 512 < 1 << 20, "{} blocks", about.blocks());
        assert_eq!(fs::read(to.path().join("rules")).unwrap(), b"{}");
        assert!(to.path().join("keys").is_dir());
    }
}
