//! The work that is put on a program: a command of the shell, or one of our own load drivers by
//! name.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    task::JoinHandle,
};

/// Subcommands of this program that put load on a node: named alone they need no path.
const OURS: [&str; 4] = ["hammer", "stress", "demo", "misuse"];
/// Of what it prints, this much is kept, from the end.
const KEPT_BYTES: usize = 2_000;
/// How long it may take to end after the request to stop.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The work under way. Dropped, it is killed with all processes it started.
pub(crate) struct Load {
    child: Child,
    group: Option<nix::unistd::Pid>,
    printed: JoinHandle<String>,
}

impl Load {
    pub(crate) fn start(command: &str, exe: &Path) -> Result<Self> {
        let first = command.split_whitespace().next().unwrap_or_default();
        let mut shell = Command::new("sh");
        shell.arg("-c");
        if OURS.contains(&first) {
            shell.arg(format!("exec \"$0\" {command}")).arg(exe);
        } else {
            shell.arg(command);
        }
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            shell.process_group(0).kill_on_drop(true).spawn().context("starting the load (sh)")?;
        let group =
            child.id().and_then(|pid| i32::try_from(pid).ok()).map(nix::unistd::Pid::from_raw);
        let (output, error) = (child.stdout.take(), child.stderr.take());
        let printed = tokio::spawn(async move {
            let (output, error) = tokio::join!(tail(output), tail(error));
            format!("{output}{error}")
        });
        Ok(Self { child, group, printed })
    }

    /// Waits for its end: none if it went well.
    pub(crate) async fn ended(&mut self) -> Result<Option<String>> {
        let status = self.child.wait().await.context("waiting for the load")?;
        // What it left in the background.
        self.signal(Signal::SIGKILL);
        self.group = None;
        if status.success() {
            return Ok(None);
        }
        let printed = tokio::time::timeout(Duration::from_secs(1), &mut self.printed).await;
        let printed = printed.ok().and_then(Result::ok).unwrap_or_default();
        Ok(Some(format!("the load ended with {status}: {}", printed.trim())))
    }

    /// Ends it by SIGTERM, and by SIGKILL after [`TIMEOUT`].
    pub(crate) async fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        if tokio::time::timeout(TIMEOUT, self.child.wait()).await.is_err() {
            self.signal(Signal::SIGKILL);
            let _ = self.child.wait().await;
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // It may have ended, which is what is wanted.
            let _ = killpg(group, signal);
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

async fn tail(from: Option<impl tokio::io::AsyncRead + Unpin>) -> String {
    let Some(mut from) = from else { return String::new() };
    let mut kept = Vec::new();
    let mut buffer = vec![0; 8 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        kept.extend_from_slice(buffer.get(..count).unwrap_or_default());
        let over = kept.len().saturating_sub(KEPT_BYTES);
        kept.drain(..over);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
