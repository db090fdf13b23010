//! Other processes of a test: whether they run, and signals to them.

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

/// Whether there is such a process, and it has not ended (a zombie has).
pub fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Sends a signal to a process of the test.
///
/// # Panics
///
/// If there is no such process.
#[track_caller]
pub fn send(pid: u32, signal: Signal) {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let sent = raw.map(|pid| kill_process(pid, signal));
    assert_eq!(sent, Some(Ok(())), "no signal could be sent to process {pid}");
}
