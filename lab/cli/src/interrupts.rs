//! The request to stop: Ctrl-C, SIGTERM, or the end of the terminal.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from the moment it is made: a signal that comes before anyone waits is not lost, and
/// does not end the program.
#[derive(Debug)]
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    /// None when this program was started to outlive its terminal (`nohup`).
    hangup: Option<Signal>,
}

impl Interrupts {
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

    /// Waits for the next request. Dropping the future loses none.
    pub async fn next(&mut self) {
        let Self { interrupt, terminate, hangup } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hung_up => {}
        }
    }
}

/// Whether the signal was set to be ignored by whoever started this program.
fn ignores(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_ignored(&status, kind.as_raw_value())
}

/// The same, of what the kernel says of a process: a mask in base 16, bit 0 for signal 1.
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
        let mut interrupts = Interrupts::listen().unwrap();
        crate::terminate(std::process::id());
        interrupts.next().await;
    }
}
