//! A node inside `thimble-lab cap`: started, watched, asked, stopped.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use cli::{Child, OnDrop};

use super::{DATA, Files, MARKS, SERIES};
use memory_cap::{
    self,
    series::{self, Header, Line, Summary},
};

const HEALTHY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(60);
/// Anonymous memory "now" is the median of the samples of this number of seconds: one sample may
/// fall into a round.
const NOW_SECONDS: f64 = 5.0;
/// Enough of the series for as long.
const TAIL_BYTES: u64 = 512 << 10;

pub(crate) struct CappedNode {
    /// The cap; the node is its child.
    child: Child,
    url: String,
    series: PathBuf,
    client: reqwest::Client,
}

impl CappedNode {
    pub(crate) async fn start(
        program: &Path,
        binary: &Path,
        group: Option<memory_cap::Kind>,
        memory_bytes: u64,
        mode: &str,
        files: &Files,
    ) -> Result<Self> {
        let (address, log) = (files.file("address.txt"), files.file("node.log"));
        let memory = memory_bytes.to_string();
        let mut command = Command::new(program);
        // Sampled more finely than by default: a message's memory comes and goes within tenths of a
        // second.
        command.args(["cap", "--memory", &memory, "--name", &format!("storm {mode}")]);
        command.args(["--interval-millis", "100"]);
        if let Some(group) = group {
            command.args(["--group", &group.to_string()]);
        }
        for (flag, name) in
            [("--json", SERIES), ("--picture", "memory.svg"), ("--mark-file", MARKS)]
        {
            command.arg(flag).arg(files.file(name));
        }
        command.arg("--").arg(binary);
        command.args(["run", "--memory", &memory, "--listen", "127.0.0.1:0", "--log", "info"]);
        command.arg("--data-dir").arg(files.file(DATA)).arg("--address-file").arg(&address);
        let mut child = Child::spawn(cli::detach(&mut command, &log)?, "the node or its cap")?
            .logging_to([log])
            .with_on_drop(OnDrop::Ask);
        let client = reqwest::Client::builder().no_proxy().build()?;
        let healthy = async || {
            let url = format!("http://{}", cli::written_address(&address)?);
            let answer = client.get(format!("{url}/health")).send().await;
            answer.is_ok_and(|answer| answer.status().is_success()).then_some(url)
        };
        let url = child.ready_within(HEALTHY_WITHIN, healthy).await?;
        Ok(Self { child, url, series: files.file(SERIES), client })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// An error when the cap, and so the node, has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.child.check()
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
        self.child.stop_within(STOPPED_WITHIN).await?;
        let (mut header, mut summary) = (Header::default(), None);
        series::read(&self.series, |line| match line {
            Line::Header(line) => header = line,
            Line::Summary(line) => summary = Some(line),
            _ => {}
        })?;
        let summary = summary
            .with_context(|| format!("the cap left no summary:\n{}", self.child.log_tail()))?;
        Ok((header.group, summary))
    }
}
