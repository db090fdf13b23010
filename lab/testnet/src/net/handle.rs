//! A process that an earlier command started, and that may have ended since: its id together with
//! its start time, so that a later process with the same id is never taken for it.

use std::{
    io,
    time::{Duration, Instant},
};

use accounting::process::{self, Pid};
use rustix::{
    io::Errno,
    process::{PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid},
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handle {
    pub(crate) pid: u32,
    /// In the kernel's clock ticks since the machine was started.
    pub(crate) started_ticks: u64,
}

impl Handle {
    /// Handle of a running process.
    pub(crate) fn for_pid(pid: u32) -> io::Result<Self> {
        let started_ticks = process::started_ticks(Pid(pid)).map_err(io::Error::other)?;
        Ok(Self { pid, started_ticks })
    }

    fn raw(self) -> Option<rustix::process::Pid> {
        rustix::process::Pid::from_raw(i32::try_from(self.pid).ok()?)
    }

    /// Whether it still runs. One that has ended and was not waited for does not.
    pub(crate) fn is_alive(self) -> bool {
        // A child of this process stays a zombie until it is waited for; for other processes this
        // returns an error, which is ignored.
        let _ = waitpid(self.raw(), WaitOptions::NOHANG);
        process::stat(Pid(self.pid))
            .is_ok_and(|stat| stat.started_ticks == self.started_ticks && !stat.is_dead)
    }

    /// Waits until it has ended, for at most `timeout`; returns whether it has.
    pub(crate) fn ends_within(self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while self.is_alive() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Sends a signal; returns whether the process existed.
    pub(crate) fn signal(self, signal: Signal) -> io::Result<bool> {
        let Some(raw) = self.raw() else { return Ok(false) };
        // The descriptor is of one process for ever: what is checked after it was opened holds when
        // the signal is sent.
        let sent = pidfd_open(raw, PidfdFlags::empty()).and_then(|descriptor| {
            if self.is_alive() { pidfd_send_signal(descriptor, signal) } else { Err(Errno::SRCH) }
        });
        match sent {
            Err(Errno::SRCH) => Ok(false),
            sent => Ok(sent.map(|()| true)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_signal_reaches_the_process_that_was_meant_and_no_other() {
        let mut child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
        let handle = Handle::for_pid(child.id()).unwrap();
        let later = Handle { started_ticks: handle.started_ticks + 1, ..handle };
        assert!(handle.is_alive() && !later.is_alive());
        assert!(!later.signal(Signal::KILL).unwrap(), "another process with its id is left alone");
        assert!(handle.is_alive());
        assert!(handle.signal(Signal::KILL).unwrap());
        let _ = child.wait();
        assert!(!handle.is_alive() && !handle.signal(Signal::KILL).unwrap());
    }
}
