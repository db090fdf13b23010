//! The node under load as a process: started, perhaps in a memory-capped group, stopped.
//!
//! Bounds: waits have ends. Must never know: the work of the node. Everything here comes from
//! `thimble-lab cap`.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use accounting::process::Pid;
use anyhow::{Context, Result};
use cli::{Child, OnDrop};
use memory_cap::series::{self, Line};

use crate::watch::Source;

const STARTED_WITHIN: Duration = Duration::from_secs(10);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default)]
pub(crate) struct NodeExit {
    /// A description of how it ended.
    pub(crate) how: String,
    pub(crate) oom_kills: u64,
    pub(crate) restarts: u64,
}

/// A node that this run started. Stopped when it is dropped, a cap by being asked: it has a group
/// to remove.
pub(crate) struct Node {
    child: Child,
    /// Folder of logs and of the node's own files.
    folder: PathBuf,
    capped: bool,
}

impl Node {
    /// Starts `command` by `sh`, in a group of `memory_bytes` if that is given, which needs this
    /// program to be `thimble-lab`. Its placeholders are filled in: `{port}`, `{folder}`,
    /// `{memory}`.
    pub(crate) fn start(
        command: &str,
        memory_bytes: Option<u64>,
        folder: &Path,
        port: u16,
    ) -> Result<Self> {
        let home = folder.join("node");
        fs::create_dir_all(&home).with_context(|| format!("making {}", home.display()))?;
        let memory = memory_bytes.map_or_else(String::new, |bytes| bytes.to_string());
        let command = command
            .replace("{port}", &port.to_string())
            .replace("{folder}", &home.to_string_lossy())
            .replace("{memory}", &memory);
        let line = format!("exec {command}");
        let log = folder.join("node.log");
        let mut starting = match memory_bytes {
            None => {
                let log = File::create(&log)?;
                let mut starting = Command::new("sh");
                starting.args(["-c", &line]).stdout(log.try_clone()?).stderr(log);
                starting
            }
            Some(_) => {
                let mut starting = Command::new(std::env::current_exe()?);
                starting.args(["cap", "--memory", &memory, "--info-file"]);
                starting.arg(folder.join("info.json")).arg("--json").arg(folder.join("cap.jsonl"));
                starting.arg("--log").arg(&log).args(["--", "sh", "-c", &line]);
                starting.stdout(Stdio::null()).stderr(File::create(folder.join("cap.log"))?);
                starting
            }
        };
        // Out of reach of the terminal: a Ctrl-C is ours to pass on, once.
        starting.stdin(Stdio::null()).process_group(0);
        let logs = ["cap.log", "node.log"].map(|name| folder.join(name));
        let mut child = Child::spawn(&mut starting, &command)?.logging_to(logs);
        if memory_bytes.is_some() {
            child = child.with_on_drop(OnDrop::Ask);
        }
        Ok(Self { child, folder: folder.to_owned(), capped: memory_bytes.is_some() })
    }

    /// Where its figures come from.
    pub(crate) async fn source(&mut self) -> Result<Source> {
        if !self.capped {
            return Ok(Source::Process(Pid(self.child.id())));
        }
        let mut source = Source::Capped { info_file: self.folder.join("info.json"), group: None };
        let running = async || source.try_resolve().then_some(());
        self.child
            .ready_within(STARTED_WITHIN, running)
            .await
            .context("the node could not be started under a cap")?;
        Ok(source)
    }

    /// The series of its cap, if it has one.
    pub(crate) fn series(&self) -> Option<PathBuf> {
        self.capped.then(|| self.folder.join("cap.jsonl"))
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.has_ended()
    }

    /// The end of what it and its cap printed.
    pub(crate) fn log_tail(&self) -> String {
        self.child.log_tail()
    }

    /// Stops it and returns how it ended. Errors: it does not stop.
    pub(crate) async fn stop(mut self) -> Result<NodeExit> {
        let before = self.has_ended();
        let status = self.child.stop_within(STOPPED_WITHIN).await?;
        let mut ended = NodeExit { how: status.to_string(), ..NodeExit::default() };
        if before {
            ended.how = format!("by itself, {status}");
        }
        if self.capped {
            series::read(&self.folder.join("cap.jsonl"), |line| {
                if let Line::Summary(summary) = line {
                    ended.oom_kills = summary.oom_kills;
                    ended.restarts = summary.restarts.iter().map(|restarts| restarts.count).sum();
                    ended.how = if before {
                        format!("by itself, {}", summary.ended)
                    } else {
                        summary.ended.clone()
                    };
                }
            })?;
        }
        Ok(ended)
    }
}
