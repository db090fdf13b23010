//! The node that is measured: a process of its own, which ends with its owner, below `thimble-lab
//! cap` where it is to have no more memory than its budget, page cache included.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cli::{Child, OnDrop};
use serde::Deserialize;

/// How far the time of a start may be off.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const HEALTHY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(60);

/// The program to start.
pub(super) struct Binary<'a> {
    pub program: &'a Path,
    /// `--memory`.
    pub memory: &'a str,
    /// `--disk`, if it is stated.
    pub disk: Option<&'a str>,
    /// `--http-gateway`, if it is stated.
    pub http_gateway: Option<&'a str>,
    /// In a process group that the kernel lets have no more than the budget.
    pub capped: bool,
}

impl Binary<'_> {
    /// The command that its arguments follow. `info_file` is where the cap writes what it does.
    fn command(&self, info_file: &Path) -> Result<Command> {
        if !self.capped {
            return Ok(Command::new(self.program));
        }
        let mut command = Command::new(cli::this_program()?);
        command.args(["cap", "--quiet", "--with-parent", "--memory", self.memory]);
        command.arg("--info-file").arg(info_file).arg("--").arg(self.program);
        Ok(command)
    }
}

/// Information of the cap about its command.
#[derive(Deserialize)]
struct CapInfo {
    pid: u32,
    ended: Option<CapExit>,
}

#[derive(Deserialize)]
struct CapExit {
    how: String,
    oom_kills: u64,
}

fn read_cap_info(path: &Path) -> Result<CapInfo> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))
}

/// A node that serves on a free port of this machine.
pub(super) struct Node {
    child: Child,
    /// The node's own process.
    pub pid: u32,
    /// Information file of its cap, if it has one.
    info_file: Option<PathBuf>,
    pub url: String,
}

impl Node {
    /// Starts the node and waits until `/health` returns 200; also returns the time this took.
    pub(super) async fn start(binary: &Binary<'_>, data: &Path) -> Result<(Self, Duration)> {
        let [port] = cli::free_ports()?;
        let address = format!("127.0.0.1:{port}");
        let info = data.with_extension("cap.json");
        if let Some(folder) = info.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut command = binary.command(&info)?;
        command.args(["run", "--memory", binary.memory, "--listen", &address, "--log", "warn"]);
        command.args(binary.disk.iter().flat_map(|disk| ["--disk", disk]));
        command.args(binary.http_gateway.iter().flat_map(|address| ["--http-gateway", address]));
        command.arg("--data-dir").arg(data).stdout(Stdio::null());
        let started = Instant::now();
        let mut child = Child::spawn(&mut command, &format!("{}", binary.program.display()))?;
        if binary.capped {
            child = child.with_on_drop(OnDrop::Ask);
        }
        let url = format!("http://{address}");
        let http = demo::client::http().build()?;
        let mut healthy = async || {
            let answer = http.get(format!("{url}/health")).send().await;
            answer.is_ok_and(|answer| answer.status().is_success()).then(|| started.elapsed())
        };
        let took = child.ready_polling_every(LOOK_EVERY, HEALTHY_WITHIN, &mut healthy).await?;
        let info_file = binary.capped.then_some(info);
        let pid = info_file
            .as_deref()
            .map_or(Ok(child.id()), |path| read_cap_info(path).map(|info| info.pid))?;
        Ok((Self { child, pid, info_file, url }, took))
    }

    /// How many files the node has open; its workers have their own.
    pub(super) fn open_files(&self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.pid))?.count())
    }

    /// Ends it with SIGTERM and waits for it. An error if the kernel killed a process of it for
    /// lack of memory.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.child.stop_within(STOPPED_WITHIN).await?;
        let Some(path) = &self.info_file else { return Ok(()) };
        let ended =
            read_cap_info(path)?.ended.context("the cap does not say how the node ended")?;
        ensure!(
            ended.oom_kills == 0,
            "{} processes were killed for lack of memory",
            ended.oom_kills
        );
        ensure!(ended.how == "exit 0", "the node ended with {}", ended.how);
        Ok(())
    }
}
