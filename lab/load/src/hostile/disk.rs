//! Failing and full disks. `strace` injects errors into the system calls with which a running node
//! writes and syncs files, and the node's folder is on a tmpfs that is resized. The node may wait,
//! refuse calls or exit with an error; once the faults stop, it must serve again without having
//! lost an acknowledged update.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Result, ensure};
use cli::Child;
use rand::{Rng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep, timeout};

use super::{
    Report, Run,
    cases::Id,
    life::{Life, TestNetwork},
    net::START_WITHIN,
};

/// Groups of system calls that fail together. None of them is used on pipes or sockets, except
/// [`WRITES`], which fail only on the files there are ([`files`]).
const CALLS: [&str; 7] = [
    WRITES,
    "fsync,fdatasync,sync_file_range",
    "pwrite64,pwritev,pwritev2",
    "ftruncate,fallocate",
    "rename,renameat,renameat2,unlink,unlinkat",
    "fsync,fdatasync,pwrite64,fallocate,ftruncate",
    "copy_file_range,sendfile,mkdir,mkdirat",
];
const WRITES: &str = "write,writev";
/// The most files whose writes fail.
const FILES_MAX: usize = 512;
/// Size of a [`Volume`] while it is not full.
const VOLUME_BYTES: u64 = 2 << 30;
const ERRORS: [&str; 3] = ["EIO", "ENOSPC", "EDQUOT"];
const NOT_ATTACHED: &str = "injected disk errors: strace cannot attach to a running node here; \
                            permit ptrace of other processes (kernel.yama.ptrace_scope)";
/// Time limit for updates to be acknowledged again after the faults.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);

/// A file system in memory for a node's folder, whose size can be changed while it is used: so
/// every operation on every file can fail for lack of space.
pub(super) struct Volume(PathBuf);

impl Volume {
    /// Mounts it; `None` where that is not permitted.
    pub(super) fn mount(folder: &Path) -> Option<Self> {
        fs::create_dir_all(folder).ok()?;
        let options = format!("size={VOLUME_BYTES},mode=700");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder);
        quiet(&mut mount).then(|| Self(folder.into()))
    }

    /// Copies its files, which are gone once it is unmounted, to a folder that stays.
    pub(super) fn save(&self) {
        quiet(Command::new("cp").arg("-a").arg(&self.0).arg(self.0.with_extension("saved")));
    }

    fn resize(&self, bytes: u64) -> bool {
        let mut mount = Command::new("mount");
        quiet(mount.args(["-o", &format!("remount,size={bytes}")]).arg(&self.0))
    }

    /// Leaves about this many bytes free. The node writes meanwhile, and a size below what is used
    /// is refused.
    fn fill(&self, free: u64) -> bool {
        [0, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24].into_iter().any(|more| {
            let Ok(about) = rustix::fs::statvfs(&self.0) else { return false };
            let used = about.f_blocks.saturating_sub(about.f_bfree) * about.f_frsize;
            self.resize(used + free + more)
        })
    }

    fn empty(&self) -> bool {
        self.resize(VOLUME_BYTES)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Lazily: processes of the node may not have ended yet.
        quiet(Command::new("umount").arg("-l").arg(&self.0));
    }
}

/// Runs a command without its output; whether it succeeded.
fn quiet(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Whether strace is installed and may trace processes.
fn can_trace() -> bool {
    quiet(Command::new("strace").args(["-e", "trace=none", "true"]))
}

/// Injects faults until the life ends; returns a finding, if any.
pub(super) async fn attack(
    life: &Life,
    run: &Run,
    report: &mut Report,
    network: &mut TestNetwork,
    volume: Option<&Volume>,
    random: &mut ChaCha8Rng,
) -> Result<Option<(String, Vec<Id>)>> {
    let mut traces = can_trace();
    for (possible, why) in [
        (traces, "injected disk errors: strace cannot trace here; install it, and permit ptrace"),
        (volume.is_some(), "full disks: tmpfs cannot be mounted here; that needs root"),
    ] {
        if !possible {
            report.omit(why.to_owned());
        }
    }
    if !traces && volume.is_none() {
        return Ok(None);
    }
    // Latency is not judged while the disk fails, nor afterwards: the nodes' histogram of rounds
    // keeps those of the faults.
    network.judge.suspend_limits();
    // Cases that write pages, snapshots and modules during the faults.
    let writing = ["touch-pages", "snapshots"].map(Id::Known);
    let until = Instant::now() + life.lasts;
    let mut turn = 0;
    while turn < 2 || Instant::now() < until {
        let _cases = network.spawn_cases(run, &writing);
        let fault = match volume {
            // Both in each life.
            Some(volume) if !traces || turn % 2 == 0 => full(run, network, volume, random).await?,
            _ if !traces => break,
            _ => match errors(run, network, random).await? {
                Some(fault) => fault,
                None => {
                    report.omit(NOT_ATTACHED.to_owned());
                    traces = false;
                    continue;
                }
            },
        };
        turn += 1;
        report.disk_faults += 1;
        if let Some(what) = recovered(run, network, &fault).await? {
            return Ok(Some((format!("after {fault}: {what}"), vec![])));
        }
    }
    Ok(None)
}

/// Leaves the node without space for a moment; describes the fault.
async fn full(
    run: &Run,
    network: &TestNetwork,
    volume: &Volume,
    random: &mut ChaCha8Rng,
) -> Result<String> {
    let free = *[0, 4_096, 65_536, 1 << 20, 8 << 20].choose(random).unwrap_or(&0);
    let fault = format!("a disk with {free} bytes free");
    run.log(&format!("disk: {fault}"));
    ensure!(volume.fill(free), "a mounted tmpfs cannot be resized");
    sleep(Duration::from_millis(random.gen_range(500..3_000))).await;
    ensure!(volume.empty(), "a mounted tmpfs cannot be resized");
    network.judge.restart_clocks();
    Ok(fault)
}

/// Injects errors into system calls of the node for a moment; describes the fault. `None` if strace
/// could not attach.
async fn errors(
    run: &Run,
    network: &mut TestNetwork,
    random: &mut ChaCha8Rng,
) -> Result<Option<String>> {
    let calls = *CALLS.choose(random).unwrap_or(&CALLS[0]);
    let error = *ERRORS.choose(random).unwrap_or(&ERRORS[0]);
    let when = match random.gen_range(0..3) {
        0 => format!("{}", random.gen_range(1..20)),
        1 => format!("{}+{}", random.gen_range(1..10), random.gen_range(2..6)),
        _ => "1+".to_owned(),
    };
    let pid = network.members[0].pid()?;
    let said = run.folder.join("strace.log");
    let log = File::create(&said)?;
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qqq", "-o", "/dev/null", "-p", &pid.to_string(), "-e"])
        .arg(format!("trace={calls}"))
        .arg("-e")
        .arg(format!("inject={calls}:error={error}:when={when}"));
    if calls == WRITES {
        for file in files(&network.members[0].data) {
            strace.arg("-P").arg(file);
        }
    }
    strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
    let fault = format!("{error} of {calls} ({when})");
    run.log(&format!("disk: {fault}"));
    let mut tracer = Child::spawn(&mut strace, "strace")?;
    sleep(Duration::from_millis(random.gen_range(800..2_500))).await;
    // An attached strace ends by itself only after the node.
    if tracer.has_ended() && network.members[0].check().is_ok() {
        let said = fs::read_to_string(said).unwrap_or_default();
        let first = said.lines().next().unwrap_or("it said nothing");
        run.log(&format!("disk: strace did not attach: {first}"));
        return Ok(None);
    }
    // On SIGTERM strace detaches and the node continues.
    tracer.terminate();
    let _ = tracer.ended_within(Duration::from_secs(20)).await;
    Ok(Some(fault))
}

/// Files of a folder and of those in it, and what a file is called while it is written anew.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.join("clock-reading.new")];
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() && found.len() < FILES_MAX => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// Starts the node again if it exited, and waits for an acknowledged update; otherwise a finding.
async fn recovered(run: &Run, network: &mut TestNetwork, fault: &str) -> Result<Option<String>> {
    let end = Instant::now() + RECOVERS_WITHIN;
    loop {
        if let Some(finding) = network.judge.finding() {
            return Ok(Some(finding));
        }
        // The node may exit with an error, but must then start again.
        if network.members[0].check().is_err() {
            run.log(&format!("disk: the node exited after {fault} and is started again"));
            network.members[0].kill();
            network.members[0].start()?;
            if let Err(why) = network.members[0].healthy(&network.http, START_WITHIN).await {
                return Ok(Some(format!("the node does not start: {why:#}")));
            }
        }
        if timeout(Duration::from_secs(2), network.judge.wait_until_settled()).await.is_ok() {
            return Ok(None);
        }
        if Instant::now() > end {
            let seconds = RECOVERS_WITHIN.as_secs();
            return Ok(Some(format!("no update was acknowledged within {seconds} s")));
        }
    }
}
