//! The signals that request an orderly stop: SIGINT (Ctrl-C), SIGTERM, and SIGHUP (the terminal or
//! session ended). Every program treats the three alike.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from the moment it is made: a signal that comes before anyone waits is not lost, and
/// does not end the program.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    /// None when this program was started to outlive its terminal (`nohup`).
    hangup: Option<Signal>,
}

impl StopSignals {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// The operating system refuses a handler; or there is no Tokio runtime with signals.
    pub fn listen() -> io::Result<Self> {
        let hangup =
            if ignores(SignalKind::hangup()) { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup,
        })
    }

    /// Waits for the next request and returns the signal's name. Dropping the future loses none.
    pub async fn next(&mut self) -> &'static str {
        let Self { interrupt, terminate, hangup } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
            _ = hung_up => "SIGHUP",
        }
    }
}

/// Whether the parent process started this program with the signal ignored.
fn ignores(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_ignored(&status, kind.as_raw_value())
}

/// The same, from the kernel's status of a process: a mask in base 16, bit 0 for signal 1.
fn is_ignored(status: &str, number: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_ignored_are_those_of_the_mask() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        let ignored: Vec<i32> = (1..=64).filter(|number| is_ignored(status, *number)).collect();
        assert_eq!(ignored, [1, 13]);
        assert!(!is_ignored("", 1), "nothing is known");
    }

    #[tokio::test]
    #[expect(clippy::unwrap_used, reason = "a test")]
    async fn a_signal_before_anyone_waits_is_not_lost() {
        let mut signals = StopSignals::listen().unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)
            .unwrap();
        assert_eq!(signals.next().await, "SIGTERM");
    }
}
