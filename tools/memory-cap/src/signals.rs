//! Signals as data: they are blocked and read from a descriptor, together with who sent them.
//!
//! The sender of a signal matters. Ctrl-C at a terminal goes from the kernel to every process of
//! the foreground group, the command included; forwarding it would give it to the command twice,
//! and many programs take a second Ctrl-C for "now, not cleanly". A signal that a process sent to
//! us alone has to be forwarded.

use std::{os::fd::AsFd, time::Duration};

use anyhow::{Context, Result};
use nix::{
    libc,
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Meaning of a received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalEvent {
    /// A child changed state.
    Child,
    /// We were asked to stop.
    Stop {
        signal: Signal,
        /// Whether it came from a terminal, and so to the command as well.
        by_terminal: bool,
    },
}

pub(crate) struct Signals {
    descriptor: SignalFd,
}

impl Signals {
    /// Blocks the signals in this thread. To be called before any other thread is started: one that
    /// has them unblocked would be ended by them.
    pub(crate) fn block() -> Result<Self> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGCHLD);
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
            // A signal that was ignored at our start (nohup, a shell's background job) stays
            // ignored.
            if !is_ignored(signal) {
                set.add(signal);
            }
        }
        set.thread_block().context("blocking signals")?;
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .context("making a descriptor for signals")?;
        Ok(Self { descriptor })
    }

    /// Waits for a signal, for at most `timeout`; then gives those that are there.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<Vec<SignalEvent>> {
        let mut descriptors = [PollFd::from_borrowed_fd(self.descriptor.as_fd(), PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match rustix::event::poll(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for a signal"),
        }
        let mut arrived = Vec::new();
        while let Some(info) = self.descriptor.read_signal().context("reading a signal")? {
            match i32::try_from(info.ssi_signo)
                .ok()
                .and_then(|number| Signal::try_from(number).ok())
            {
                Some(Signal::SIGCHLD) => arrived.push(SignalEvent::Child),
                Some(signal) => arrived.push(SignalEvent::Stop {
                    signal,
                    by_terminal: info.ssi_code == libc::SI_KERNEL,
                }),
                None => {}
            }
        }
        Ok(arrived)
    }
}

/// What a child has to call between fork and exec: blocked signals are inherited.
pub(crate) fn unblock_all() -> std::io::Result<()> {
    SigSet::empty().thread_set_mask().map_err(std::io::Error::from)
}

fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok())
        .unwrap_or(0);
    mask & (1 << (signal as u32 - 1)) != 0
}
