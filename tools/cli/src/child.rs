//! A program that a driver of the lab starts: the driver waits until it serves, asks it to end, and
//! ends it when the owner is dropped.
//!
//! Bounds: every wait has an end. Must never know: what the program is.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Between the two requests to end that a cap gets, and after the second.
const GROUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes shown of a log when its program fails.
const LOG_TAIL_BYTES: usize = 4096;

/// How a child ends when its owner is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDrop {
    /// It is killed.
    Kill,
    /// It is asked to end, twice: it has a process group to remove, so it is never killed itself.
    /// (The second request makes `thimble-lab cap` kill its group.)
    Ask,
}

/// A running program; it does not outlive its owner.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    what: String,
    /// Log files of it and its own children, in the order to be shown.
    logs: Vec<PathBuf>,
    on_drop: OnDrop,
}

impl Child {
    /// Starts `command`, which messages call `what`.
    pub fn spawn(command: &mut Command, what: &str) -> Result<Self> {
        let process = command.spawn().with_context(|| format!("starting {what}"))?;
        Ok(Self { process, what: what.into(), logs: Vec::new(), on_drop: OnDrop::Kill })
    }

    /// With the files whose ends errors show.
    #[must_use]
    pub fn logging_to(mut self, logs: impl IntoIterator<Item = PathBuf>) -> Self {
        self.logs = logs.into_iter().collect();
        self
    }

    /// With another end than being killed.
    #[must_use]
    pub const fn with_on_drop(mut self, on_drop: OnDrop) -> Self {
        self.on_drop = on_drop;
        self
    }

    /// Takes its standard output, if the command pipes it; `None` after the first call.
    pub const fn take_output(&mut self) -> Option<ChildStdout> {
        self.process.stdout.take()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether it has ended; also if that cannot be found out.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// How it ended; `None` while it runs.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        self.process.try_wait().with_context(|| format!("looking after {}", self.what))
    }

    /// An error with its last words if it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.status()? {
            Some(status) => bail!("{} ended with {status}{}", self.what, self.after_colon()),
            None => Ok(()),
        }
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) {
        terminate(self.process.id());
    }

    /// Looks every 20 ms whether `ready` gives something. Errors: it ends before, or `timeout`
    /// does.
    pub async fn ready_within<T>(
        &mut self,
        timeout: Duration,
        mut ready: impl AsyncFnMut() -> Option<T>,
    ) -> Result<T> {
        self.ready_polling_every(POLL_INTERVAL, timeout, &mut ready).await
    }

    /// The same for who measures how long it took: `every` bounds how far that is off.
    pub async fn ready_polling_every<T>(
        &mut self,
        every: Duration,
        timeout: Duration,
        ready: &mut impl AsyncFnMut() -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(found) = ready().await {
                return Ok(found);
            }
            self.check()?;
            if Instant::now() > deadline {
                let words = self.after_colon();
                bail!("{} was not ready within {} s{words}", self.what, timeout.as_secs());
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Waits for its end.
    pub async fn ended_within(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.ended_meanwhile(timeout, POLL_INTERVAL, async || anyhow::Ok(())).await
    }

    /// Waits for its end, and does something every so long until then.
    pub async fn ended_meanwhile(
        &mut self,
        timeout: Duration,
        every: Duration,
        mut meanwhile: impl AsyncFnMut() -> Result<()>,
    ) -> Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.status()? {
                return Ok(status);
            }
            let seconds = timeout.as_secs();
            ensure!(Instant::now() <= deadline, "{} did not end within {seconds} s", self.what);
            meanwhile().await?;
            tokio::time::sleep(every).await;
        }
    }

    /// Asks it to end and waits for that.
    pub async fn stop_within(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.terminate();
        self.ended_within(timeout).await
    }

    /// The end of what its logs hold.
    pub fn log_tail(&self) -> String {
        let read = |path: &PathBuf| fs::read(path).unwrap_or_default();
        let text: Vec<u8> = self.logs.iter().flat_map(read).collect();
        let tail = text.get(text.len().saturating_sub(LOG_TAIL_BYTES)..).unwrap_or_default();
        String::from_utf8_lossy(tail).into_owned()
    }

    fn after_colon(&self) -> String {
        let words = self.log_tail();
        if words.is_empty() { words } else { format!(":\n{words}") }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.on_drop == OnDrop::Ask {
            for _ in 0..2 {
                if self.has_ended() {
                    return;
                }
                self.terminate();
                let deadline = Instant::now() + GROUP_TIMEOUT;
                while Instant::now() < deadline && !self.has_ended() {
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
            return;
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Asks a process to end (SIGTERM); it may have ended in this moment.
pub fn terminate(pid: u32) {
    signal(pid, Signal::TERM);
}

/// Kills a process (SIGKILL), if it is still there.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Without input, with what it prints in `log`, and out of reach of the terminal: a Ctrl-C is its
/// owner's to act on, once.
///
/// # Errors
///
/// The file cannot be made.
pub fn detach<'a>(command: &'a mut Command, log: &Path) -> Result<&'a mut Command> {
    let file = File::create(log).with_context(|| format!("making {}", log.display()))?;
    Ok(command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0))
}

/// The address that a program wrote to `file` when it had one: a line of text.
pub fn written_address(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.strip_suffix('\n').map(str::to_owned)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn sh(script: &str) -> Child {
        Child::spawn(Command::new("sh").args(["-c", script]), "the script").unwrap()
    }

    fn exists(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[tokio::test]
    async fn early_exit_error_contains_log_tail() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let script = format!("echo no disk > {}; exit 3", log.display());
        let mut child = sh(&script).logging_to([log]);
        let error = child.ready_within::<()>(TIMEOUT, async || None).await.unwrap_err();
        assert_eq!(error.to_string(), "the script ended with exit status: 3:\nno disk\n");
    }

    #[tokio::test]
    async fn waits_time_out_and_drop_kills() {
        let folder = tempfile::tempdir().unwrap();
        let trapped = folder.path().join("trapped");
        let mut child = sh(&format!(
            "trap '' TERM; echo > {}; while :; do sleep 0.01; done",
            trapped.display()
        ));
        child.ready_within(TIMEOUT, async || trapped.exists().then_some(())).await.unwrap();
        let (none, zero) = (async || None::<()>, Duration::ZERO);
        let error = child.ready_within(zero, none).await.unwrap_err();
        assert_eq!(error.to_string(), "the script was not ready within 0 s");
        let error = child.stop_within(zero).await.unwrap_err();
        assert_eq!(error.to_string(), "the script did not end within 0 s");
        let pid = child.id();
        drop(child);
        assert!(!exists(pid), "it outlived its owner");
    }

    #[test]
    fn drop_with_ask_sends_sigterm_only() {
        let folder = tempfile::tempdir().unwrap();
        let (trapped, removed) = (folder.path().join("trapped"), folder.path().join("removed"));
        let script = format!(
            "trap 'echo gone > {}; exit 0' TERM; echo > {}; while :; do sleep 0.01; done",
            removed.display(),
            trapped.display()
        );
        let child = sh(&script).with_on_drop(OnDrop::Ask);
        while !trapped.exists() {
            std::thread::sleep(POLL_INTERVAL);
        }
        drop(child);
        assert_eq!(fs::read_to_string(removed).unwrap(), "gone\n");
    }

    #[test]
    fn written_address_requires_complete_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("address");
        assert_eq!(written_address(&file), None);
        fs::write(&file, "127.0.0.1:80").unwrap();
        assert_eq!(written_address(&file), None);
        fs::write(&file, "127.0.0.1:8080\n").unwrap();
        assert_eq!(written_address(&file).as_deref(), Some("127.0.0.1:8080"));
    }
}
