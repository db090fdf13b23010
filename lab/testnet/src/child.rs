//! Other subcommands of this program, run as children.

use std::{
    process::{Child, Command, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A child that does not outlive its owner.
pub(crate) struct Reaped(pub(crate) Child);

impl Reaped {
    pub(crate) fn spawn(command: &mut Command, what: &str) -> Result<Self> {
        Ok(Self(command.spawn().with_context(|| format!("starting {what}"))?))
    }

    pub(crate) fn terminate(&self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            // It may have ended in this moment.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Waits for its end.
    pub(crate) async fn ended_within(
        &mut self,
        patience: Duration,
        what: &str,
    ) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{what} did not end within {} s", patience.as_secs());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
