//! The node that is measured: a process of its own, which ends with its owner.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Result;
use cli::Child;

/// How far the time of a start may be off.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const HEALTHY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(60);

/// What is started.
pub(super) struct Binary<'a> {
    pub program: &'a Path,
    /// `--memory`.
    pub memory: &'a str,
    /// `--disk`, if it is stated.
    pub disk: Option<&'a str>,
}

/// A node that serves on a free port of this machine.
pub(super) struct Node {
    pub child: Child,
    pub url: String,
    pub port: u16,
}

impl Node {
    /// Starts the node and waits until `/health` says 200; with the time that took.
    pub(super) async fn start(binary: &Binary<'_>, data: &Path) -> Result<(Self, Duration)> {
        let [port] = cli::free_ports()?;
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(binary.program);
        command.args(["run", "--memory", binary.memory, "--listen", &address, "--log", "warn"]);
        command.args(binary.disk.iter().flat_map(|disk| ["--disk", disk]));
        command.arg("--data-dir").arg(data).stdout(Stdio::null());
        let started = Instant::now();
        let mut child = Child::spawn(&mut command, &format!("{}", binary.program.display()))?;
        let url = format!("http://{address}");
        let http = reqwest::Client::new();
        let mut healthy = async || {
            let answer = http.get(format!("{url}/health")).send().await;
            answer.is_ok_and(|answer| answer.status().is_success()).then(|| started.elapsed())
        };
        let took = child.ready_looking_every(LOOK_EVERY, HEALTHY_WITHIN, &mut healthy).await?;
        Ok((Self { child, url, port }, took))
    }

    /// How many files the node has open; its workers have their own.
    pub(super) fn open_files(&self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }

    /// Ends it with SIGTERM and waits for it.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.child.stop_within(STOPPED_WITHIN).await?;
        Ok(())
    }
}
