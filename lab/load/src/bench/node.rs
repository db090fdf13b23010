//! The node that is measured: a process of its own, which ends with its owner.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::Options;

/// A node that serves on a free port of this machine.
pub(super) struct Node {
    pub child: Child,
    pub url: String,
    pub port: u16,
}

impl Node {
    /// Starts the node and waits until `/health` says 200; with the time that took.
    pub(super) async fn start(options: &Options, data: &Path) -> Result<(Self, Duration)> {
        let port = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
            listener.local_addr()?.port()
        };
        let started = Instant::now();
        let child = Command::new(&options.node)
            .args([
                "run",
                "--memory",
                &options.memory,
                "--listen",
                &format!("127.0.0.1:{port}"),
                "--log",
                "warn",
            ])
            .arg("--data-dir")
            .arg(data)
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", options.node.display()))?;
        let mut node = Self { child, url: format!("http://127.0.0.1:{port}"), port };
        let http = reqwest::Client::new();
        loop {
            if let Ok(response) = http.get(format!("{}/health", node.url)).send().await
                && response.status().is_success()
            {
                return Ok((node, started.elapsed()));
            }
            if let Some(status) = node.child.try_wait()? {
                bail!("the node ended while starting: {status}");
            }
            ensure!(
                started.elapsed() < Duration::from_secs(60),
                "the node was not healthy within 60 s"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Ends it with SIGTERM and waits for it.
    pub(super) fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(
            pid.context("the node has a process id")?,
            rustix::process::Signal::TERM,
        )?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
