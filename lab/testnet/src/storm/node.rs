//! A node inside `thimble-lab cap`: started, watched, asked, stopped.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::Files;
use crate::cap::{
    self,
    series::{self, Header, Line, Summary},
};

const HEALTHY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(60);
/// Anonymous memory "now" is the median of the samples of so many seconds: one sample may fall into
/// a round.
const NOW_SECONDS: f64 = 5.0;
/// Enough of the series for as long.
const TAIL_BYTES: u64 = 512 << 10;

pub(crate) struct CappedNode {
    /// The cap; the node is its child.
    child: Child,
    url: String,
    series: PathBuf,
    log: PathBuf,
    client: reqwest::Client,
}

impl CappedNode {
    pub(crate) async fn start(
        program: &Path,
        binary: &Path,
        group: Option<cap::Kind>,
        memory_bytes: u64,
        mode: &str,
        files: &Files,
    ) -> Result<Self> {
        let address = files.folder.join("address.txt");
        let memory = memory_bytes.to_string();
        let log = File::create(files.log())?;
        let mut command = Command::new(program);
        // Sampled more finely than by default: a message's memory comes and goes within tenths of a
        // second.
        command.args([
            "cap",
            "--memory",
            &memory,
            "--name",
            &format!("storm {mode}"),
            "--interval-millis",
            "100",
        ]);
        if let Some(group) = group {
            command.args(["--group", &group.to_string()]);
        }
        command
            .arg("--json")
            .arg(files.series())
            .arg("--picture")
            .arg(files.picture())
            .arg("--mark-file")
            .arg(files.marks())
            .arg("--")
            .arg(binary)
            .args([
                "run",
                "--memory",
                &memory,
                "--listen",
                "127.0.0.1:0",
                "--log",
                "info",
                "--data-dir",
            ])
            .arg(files.data())
            .arg("--address-file")
            .arg(&address)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Out of reach of the terminal: a Ctrl-C is ours to pass on, once.
            .process_group(0);
        let child = command.spawn().context("starting thimble-lab cap")?;
        let mut node = Self {
            child,
            url: String::new(),
            series: files.series(),
            log: files.log(),
            client: reqwest::Client::new(),
        };
        node.wait_until_healthy(&address).await?;
        Ok(node)
    }

    async fn wait_until_healthy(&mut self, address: &Path) -> Result<()> {
        let deadline = Instant::now() + HEALTHY_WITHIN;
        loop {
            self.check()?;
            if let Ok(text) = fs::read_to_string(address)
                && text.ends_with('\n')
            {
                self.url = format!("http://{}", text.trim());
                let answer = self.client.get(format!("{}/health", self.url)).send().await;
                if answer.is_ok_and(|answer| answer.status().is_success()) {
                    return Ok(());
                }
            }
            if Instant::now() > deadline {
                bail!(
                    "the node was not healthy within {} s:\n{}",
                    HEALTHY_WITHIN.as_secs(),
                    self.last_words()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// An error when the cap, and so the node, has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => {
                bail!("the node or its cap ended with {status}:\n{}", self.last_words())
            }
            None => Ok(()),
        }
    }

    fn last_words(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let tail = text.get(text.len().saturating_sub(4096)..).unwrap_or_default();
        String::from_utf8_lossy(tail).into_owned()
    }

    /// Lets time pass, unless the node ends.
    pub(crate) async fn watch(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.check()?;
            tokio::time::sleep((until - Instant::now()).min(Duration::from_millis(200))).await;
        }
        Ok(())
    }

    /// Anonymous memory of the group, as the cap last saw it.
    pub(crate) fn anonymous_now(&self) -> Result<u64> {
        let samples: Vec<(f64, u64)> = series::read_tail(&self.series, TAIL_BYTES)?
            .into_iter()
            .filter_map(|line| match line {
                Line::Sample(sample) => Some((sample.seconds, sample.anonymous_bytes)),
                _ => None,
            })
            .collect();
        let (last, _) = samples.last().context("the cap has taken no sample")?;
        let mut recent: Vec<u64> = samples
            .iter()
            .filter(|(seconds, _)| last - seconds <= NOW_SECONDS)
            .map(|(_, bytes)| *bytes)
            .collect();
        recent.sort_unstable();
        recent.get(recent.len() / 2).copied().context("the cap has taken no sample")
    }

    pub(crate) async fn metrics(&self) -> Result<String> {
        let answer = self.client.get(format!("{}/metrics", self.url)).send().await?;
        Ok(answer.error_for_status()?.text().await?)
    }

    /// Stops the node cleanly; gives the kind of its group and the summary of the cap.
    pub(crate) async fn stop(mut self) -> Result<(String, Summary)> {
        self.terminate();
        let deadline = Instant::now() + STOPPED_WITHIN;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("the node did not stop within {} s of SIGTERM", STOPPED_WITHIN.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (mut header, mut summary) = (Header::default(), None);
        series::read(&self.series, |line| match line {
            Line::Header(line) => header = line,
            Line::Summary(line) => summary = Some(line),
            _ => {}
        })?;
        let summary =
            summary.with_context(|| format!("the cap left no summary:\n{}", self.last_words()))?;
        Ok((header.group, summary))
    }

    fn terminate(&self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for CappedNode {
    fn drop(&mut self) {
        // The second SIGTERM makes the cap kill the group; it is never killed itself, because it
        // has the group to remove.
        for patience in [Duration::from_secs(20), Duration::from_secs(20)] {
            let deadline = Instant::now() + patience;
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            self.terminate();
            while Instant::now() < deadline {
                if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
