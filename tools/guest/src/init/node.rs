//! The node: started as an ordinary user, asked to stop, waited for.

use std::{
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use super::{NODE_USER, print_line};
use crate::config::Machine;

/// Between the power button and the end of a node that does not stop: a host waits for a while,
/// too.
const STOPPED_WITHIN: Duration = Duration::from_secs(50);
/// Where the node keeps everything.
pub(super) const DATA: &str = "/state/data";
/// Open files of a node that serves many connections.
const FILES_MAX: u64 = 65_536;

/// The node, and whether it is to stop.
#[derive(Default)]
pub(super) struct Node {
    pid: Mutex<Option<Pid>>,
    asked: AtomicBool,
}

pub(super) struct NodeExit {
    pub(super) how: String,
    /// It ended by itself with a status, after an error message, and would do so again.
    pub(super) ended_by_itself: bool,
}

impl Node {
    pub(super) fn was_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// Starts the program as the node's user, unless a stop was asked for before.
    pub(super) fn start(&self, machine: &Machine, budget_bytes: u64) -> Result<()> {
        let program = Path::new("/bin").join(machine.role.program());
        let mut command = Command::new(&program);
        command
            .args(["run", "--memory", &budget_bytes.to_string(), "--data-dir", DATA])
            .args(&machine.arguments)
            .current_dir("/state")
            .env_clear()
            .envs([("PATH", "/bin:/sbin"), ("HOME", "/state"), ("TMPDIR", "/tmp")])
            .stdin(Stdio::null())
            .uid(NODE_USER)
            .gid(NODE_USER);
        // Inherited; as the node's user it could not be raised.
        let limit = rustix::process::Rlimit { current: Some(FILES_MAX), maximum: Some(FILES_MAX) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
        // Held until the id is there: a button pressed in this moment has to find it.
        let mut pid = self.pid.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
        if self.was_asked() {
            return Ok(());
        }
        let child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        *pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        // Waiting for a child is done under the same lock: an id in here is of a process that is
        // there.
        if let Ok(pid) = self.pid.lock()
            && let Some(pid) = *pid
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// Asks it to stop; kills it when it does not.
    pub(super) fn stop(&'static self) {
        if self.asked.swap(true, Ordering::SeqCst) {
            return;
        }
        print_line("the power button was pressed; the node stops");
        self.signal(Signal::TERM);
        let _ = thread::Builder::new().stack_size(64 << 10).spawn(|| {
            thread::sleep(STOPPED_WITHIN);
            print_line(&format!(
                "the node did not stop within {} s; it is killed",
                STOPPED_WITHIN.as_secs()
            ));
            self.signal(Signal::KILL);
        });
    }

    /// Reaps whatever ends, until the node does.
    pub(super) fn wait(&self) -> Result<NodeExit> {
        loop {
            // Sleeps until some child has ended, without reaping it.
            let any = rustix::process::WaitId::All;
            let peek =
                rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
            match rustix::process::waitid(any, peek) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // No children: the button was pressed before there was a node.
                Err(rustix::io::Errno::CHILD) => {
                    return Ok(NodeExit { how: "not started".to_owned(), ended_by_itself: true });
                }
                Err(error) => return Err(error).context("waiting for the node"),
            }
            let mut pid = self.pid.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
            while let Ok(Some((ended, status))) = wait(WaitOptions::NOHANG) {
                if Some(ended) == *pid {
                    *pid = None;
                    return Ok(describe_exit(ExitStatus::from_raw(status.as_raw())));
                }
            }
        }
    }
}

fn describe_exit(status: ExitStatus) -> NodeExit {
    let how = match status.signal() {
        None => format!("exit {}", status.code().unwrap_or(-1)),
        Some(9) => "ended by SIGKILL".to_owned(),
        Some(6) => "ended by SIGABRT".to_owned(),
        Some(11) => "ended by SIGSEGV".to_owned(),
        Some(15) => "ended by SIGTERM".to_owned(),
        Some(other) => format!("ended by signal {other}"),
    };
    NodeExit { how, ended_by_itself: status.signal().is_none() }
}

/// Gives the node's user what it writes.
pub(super) fn own(path: &Path) -> Result<()> {
    let owned = || -> std::io::Result<()> {
        std::os::unix::fs::lchown(path, Some(NODE_USER), Some(NODE_USER))?;
        if path.symlink_metadata()?.is_dir() {
            for entry in std::fs::read_dir(path)? {
                own(&entry?.path()).map_err(std::io::Error::other)?;
            }
        }
        Ok(())
    };
    owned().with_context(|| format!("giving {} to the node's user", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describe_exit_names_status_or_signal() {
        let said = describe_exit(ExitStatus::from_raw(2 << 8));
        assert_eq!((said.how.as_str(), said.ended_by_itself), ("exit 2", true));
        let killed = describe_exit(ExitStatus::from_raw(9));
        assert_eq!((killed.how.as_str(), killed.ended_by_itself), ("ended by SIGKILL", false));
    }
}
