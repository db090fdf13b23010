//! CPU time of a program of several processes: a process, everything below it, and what of that has
//! ended.
//!
//! `/proc` counts in clock ticks of 10 ms, separately in user and in system mode. The clock that
//! the kernel keeps for each process is precise and has the sum only. A reading has both: the
//! precise sum, and ticks to divide it by.

use std::time::Duration;

use nix::{time::ClockId, unistd};

use crate::{
    process::{self, Pid},
    read::ReadError,
};

/// CPU time of a process and its descendants, those that ended and were waited for included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In user and system mode together.
    pub total: Duration,
    /// In user mode, in whole clock ticks.
    pub user: Duration,
    /// In system mode, in whole clock ticks.
    pub system: Duration,
}

impl CpuTime {
    /// The time since an earlier reading of the same processes.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            total: self.total.saturating_sub(earlier.total),
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            total: self.total.saturating_add(other.total),
            user: self.user.saturating_add(other.user),
            system: self.system.saturating_add(other.system),
        }
    }

    /// Seconds in user and in system mode: `total`, divided as the ticks are. All of it is user
    /// time where no tick was counted.
    pub fn split_seconds(self) -> (f64, f64) {
        let ticks = (self.user + self.system).as_secs_f64();
        let system = if ticks > 0.0 { self.system.as_secs_f64() / ticks } else { 0.0 };
        let total = self.total.as_secs_f64();
        (total * (1.0 - system), total * system)
    }
}

/// CPU time of `root` and everything below it, at most [`crate::cgroup::PROCESSES_MAX`] processes.
/// Processes that end while it is read are left out, or counted in their parent.
///
/// # Errors
///
/// `root` does not run, or a file of the kernel cannot be read.
pub fn tree(root: Pid) -> Result<CpuTime, ReadError> {
    let mut sum = CpuTime::default();
    for pid in process::descendants(root) {
        match one(pid) {
            Ok(time) => sum = sum.plus(time),
            Err(error) if error.is_gone() && pid != root => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sum)
}

/// One process, with its children that ended.
fn one(pid: Pid) -> Result<CpuTime, ReadError> {
    let stat = process::stat(pid)?;
    let ended = stat.ended_user_ticks.saturating_add(stat.ended_system_ticks);
    let own = precise(pid).unwrap_or_else(|| process::ticks_to_duration(stat.ticks));
    let user = stat.user_ticks.saturating_add(stat.ended_user_ticks);
    let system = stat.ticks.saturating_sub(stat.user_ticks);
    Ok(CpuTime {
        total: own + process::ticks_to_duration(ended),
        user: process::ticks_to_duration(user),
        system: process::ticks_to_duration(system.saturating_add(stat.ended_system_ticks)),
    })
}

/// The kernel's clock of a process; `None` for one that ended.
fn precise(pid: Pid) -> Option<Duration> {
    let pid = unistd::Pid::from_raw(i32::try_from(pid.0).ok()?);
    let now = ClockId::pid_cpu_clock_id(pid).ok()?.now().ok()?;
    Some(Duration::from(now))
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Command, Stdio},
        time::Instant,
    };

    use super::*;

    fn work(time: Duration) {
        let end = Instant::now() + time;
        let mut sum = 0_u64;
        while Instant::now() < end {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }

    #[test]
    fn own_work_is_counted_more_precisely_than_in_ticks() {
        let before = tree(Pid::own()).unwrap();
        work(Duration::from_millis(2));
        let spent = tree(Pid::own()).unwrap().since(before);
        // Other tests of this process may work meanwhile.
        assert!(spent.total >= Duration::from_micros(100), "{spent:?}");
    }

    #[test]
    fn a_child_counts_while_it_runs_and_after_it_was_waited_for() {
        let before = tree(Pid::own()).unwrap();
        let loops = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done; read line";
        let mut child = Command::new("sh")
            .args(["-c", loops])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 5];
        std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut said).unwrap();
        let running = tree(Pid(child.id())).unwrap();
        assert!(running.total > Duration::ZERO && said == *b"done\n");
        // Of an ended child, this one or one of another test, only whole ticks are known, in user
        // and in system mode.
        let holds = |stage: &str| {
            let spent = tree(Pid::own()).unwrap().since(before).total;
            let spent_most = spent + Duration::from_millis(40);
            assert!(spent_most >= running.total, "{stage}: {spent:?} {running:?}");
        };
        holds("it runs");
        drop(child.stdin.take());
        child.wait().unwrap();
        holds("it ended");
        assert!(tree(Pid(u32::MAX)).unwrap_err().is_gone());
    }

    #[test]
    fn a_sum_is_divided_as_its_ticks_are() {
        let millis = Duration::from_millis;
        let time = CpuTime { total: millis(48), user: millis(30), system: millis(10) };
        let (user, system) = time.split_seconds();
        assert!((user - 0.036).abs() < 1e-9 && (system - 0.012).abs() < 1e-9);
        let short = CpuTime { total: millis(3), ..CpuTime::default() };
        assert_eq!(short.split_seconds(), (0.003, 0.0));
        assert_eq!(time.since(time.plus(short)), CpuTime::default());
    }
}
