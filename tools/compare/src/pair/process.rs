//! One run of a command: wall time, CPU time, peak memory.
//!
//! The command runs in a process group of its own, so that all its processes can be ended, and none
//! remains for the next run. CPU time is that of the command and of the children it waited for;
//! peak memory is that of the largest of these processes, as recorded by the kernel.
//!
//! Bounds: a time limit for each run.

use std::{
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Resources of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usage {
    pub(crate) wall_seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_bytes: f64,
}

/// The running command, for the thread that must end it.
#[derive(Debug, Default)]
pub(crate) struct Running(Mutex<Option<Pid>>);

impl Running {
    /// Sends a signal to all processes of the command, if one runs.
    pub(crate) fn signal(&self, signal: Signal) {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = *running {
            // It may have ended in this moment; it is not waited for yet, so its number is its own.
            let _ = kill_process_group(pid, signal);
        }
    }

    fn set(&self, pid: Option<Pid>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = pid;
    }
}

/// Runs `command` by sh. Errors: it cannot be started, ends otherwise than well, or takes too long.
pub(crate) fn run(command: &str, limit: Duration, running: &Running) -> Result<Usage> {
    let mut sh = Command::new("sh");
    sh.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    let started = Instant::now();
    let child = sh.spawn().context("starting sh")?;
    let pid =
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("sh has no process id")?;
    running.set(Some(pid));
    let (ended, watch) = mpsc::channel::<()>();
    let (waited, wall_seconds, too_long) = std::thread::scope(|scope| {
        let watchdog = scope.spawn(move || {
            let too_long = watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
            if too_long {
                running.signal(Signal::KILL);
            }
            too_long
        });
        let waited = loop {
            // Left for the kernel to keep, so that its group can still be signalled.
            match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Err(rustix::io::Errno::INTR) => {}
                waited => break waited,
            }
        };
        let wall_seconds = started.elapsed().as_secs_f64();
        drop(ended);
        (waited, wall_seconds, watchdog.join().unwrap_or(false))
    });
    running.signal(Signal::KILL);
    running.set(None);
    waited.context("waiting for the command")?;
    let (status, usage) = reap(pid)?;
    if too_long {
        bail!("did not end within {} s (--timeout)", limit.as_secs());
    }
    if status != 0 {
        bail!("ended with {}", how(status));
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(Usage {
        wall_seconds,
        cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        peak_bytes: usage.ru_maxrss as f64 * 1024.0,
    })
}

/// Takes the ended command from the kernel, with what it used.
fn reap(pid: Pid) -> Result<(i32, libc::rusage)> {
    let mut status = 0;
    // SAFETY: rusage is plain numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to locals that live through the call; the process is our child and
    // has not been waited for, which only this function does.
    let got =
        unsafe { libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, 0, &raw mut usage) };
    if got < 0 {
        return Err(std::io::Error::last_os_error()).context("waiting for the command");
    }
    Ok((status, usage))
}

fn how(status: i32) -> String {
    if libc::WIFEXITED(status) {
        format!("exit status {}", libc::WEXITSTATUS(status))
    } else {
        format!("signal {}", libc::WTERMSIG(status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn time_and_memory_are_those_of_the_command() {
        let running = Running::default();
        let usage =
            run("head -c 60000000 /dev/zero | tail -c 50000000 >/dev/null", LIMIT, &running)
                .unwrap();
        assert!(
            usage.peak_bytes > 50e6 && usage.wall_seconds > 0.0 && usage.cpu_seconds > 0.0,
            "{usage:?}"
        );
    }

    #[test]
    fn failing_and_hanging_commands_return_errors() {
        let running = Running::default();
        let error = |command: &str, limit| run(command, limit, &running).unwrap_err().to_string();
        assert_eq!(error("exit 3", LIMIT), "ended with exit status 3");
        assert_eq!(error("kill -9 $$", LIMIT), "ended with signal 9");
        assert!(
            error("sleep 60 & sleep 60", Duration::from_millis(50)).contains("did not end within")
        );
    }

    #[test]
    fn nothing_of_a_command_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let command = format!("sleep 1000 & echo $! > {}", file.display());
        run(&command, LIMIT, &Running::default()).unwrap();
        let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        // It was killed; the process that inherited it reaps it later.
        let deadline = Instant::now() + LIMIT;
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z") {
                break;
            }
            assert!(Instant::now() < deadline, "{stat}");
            std::thread::yield_now();
        }
    }
}
