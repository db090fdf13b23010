//! Keeps the system's clock equal to the machine's.
//!
//! The system's clock stands still while the machine is paused and would be behind for good
//! afterwards; the machine's, which QEMU drives by the host's, continues. So a thread compares them
//! and sets the system's where they differ, as a time service does on a real machine.

use std::{
    fs, thread,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use rustix::time::{ClockId, Timespec, clock_settime};

use super::print_line;

/// The machine's clock: whole seconds of the Unix epoch. Reading the file reads the clock.
const MACHINE_CLOCK: &str = "/sys/class/rtc/rtc0/since_epoch";
/// How often they are compared.
const EVERY: Duration = Duration::from_secs(1);
/// Half a second is what whole seconds are off by at most, the rest is for a reading that took
/// long: emulated processors wait for each other.
const TOLERATED: Duration = Duration::from_millis(2_500);

/// Starts the thread. A machine without such a clock has none to follow.
pub(super) fn follow() -> Result<()> {
    if read().is_none() {
        print_line("this machine has no clock of its own: after a pause its time is behind");
        return Ok(());
    }
    thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(|| {
            loop {
                thread::sleep(EVERY);
                compare();
            }
        })
        .context("starting the thread that compares the clocks")?;
    Ok(())
}

fn read() -> Option<u64> {
    fs::read_to_string(MACHINE_CLOCK).ok()?.trim().parse().ok()
}

fn compare() {
    let before = now();
    let Some(seconds) = read() else { return };
    // A pause in between would look like a difference.
    if now().saturating_sub(before) > EVERY {
        return;
    }
    let Some(right) = correction(before, seconds) else { return };
    let set = Timespec {
        tv_sec: i64::try_from(right.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: right.subsec_nanos().into(),
    };
    let off = right.as_secs_f64() - before.as_secs_f64();
    match clock_settime(ClockId::Realtime, set) {
        Ok(()) => print_line(&format!("the clock was off by {off:+.1} s and is set")),
        Err(error) => {
            print_line(&format!("the clock is off by {off:+.1} s and cannot be set: {error}"))
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// What the system's clock is to be set to, if it is off, where the machine's shows `seconds`.
fn correction(system: Duration, seconds: u64) -> Option<Duration> {
    let machine = Duration::from_secs(seconds) + Duration::from_millis(500);
    (system.abs_diff(machine) > TOLERATED).then_some(machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_stood_still_is_set_and_one_within_whole_seconds_is_left_alone() {
        let at = Duration::from_millis;
        assert_eq!(correction(at(1_000_000), 1_042), Some(at(1_042_500)));
        assert_eq!(correction(at(1_042_000), 1_000), Some(at(1_000_500)));
        for system in [998_100, 1_000_000, 1_000_999, 1_003_000] {
            assert_eq!(correction(at(system), 1_000), None, "{system}");
        }
    }
}
