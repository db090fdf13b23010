//! The node under load as a process: started, perhaps in a memory-capped group, stopped.
//!
//! What bounds it: waits have ends. What it must never know: what the node does. Everything here
//! comes from `thimble-lab cap`.

use std::{
    fs::{self, File},
    net::TcpListener,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use budget::process::Pid;
use rustix::process::{Signal, kill_process};
use testnet::cap::series::{self, Line};

use crate::watch::Source;

const STARTED_WITHIN: Duration = Duration::from_secs(10);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What is shown of a node's log when it does not start.
const LOG_TAIL_BYTES: usize = 2000;

/// How a node ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended {
    /// How it ended, in words.
    pub(crate) how: String,
    pub(crate) oom_kills: u64,
    pub(crate) restarts: u64,
}

/// A node that this run started. Stopped when it is dropped.
pub(crate) struct Node {
    child: Child,
    /// Folder of logs and of the node's own files.
    folder: PathBuf,
    capped: bool,
}

/// A port nobody listens on at the moment.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Asks a process of ours to end; it may have ended in this moment.
pub(crate) fn terminate(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
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
        let child = starting.spawn().with_context(|| format!("starting {command}"))?;
        Ok(Self { child, folder: folder.to_owned(), capped: memory_bytes.is_some() })
    }

    /// Where its figures come from.
    pub(crate) async fn source(&mut self) -> Result<Source> {
        if !self.capped {
            return Ok(Source::Process(Pid(self.child.id())));
        }
        let deadline = Instant::now() + STARTED_WITHIN;
        let mut source = Source::Capped { info_file: self.folder.join("info.json"), group: None };
        loop {
            if source.is_there() {
                return Ok(source);
            }
            if self.has_ended() || Instant::now() > deadline {
                bail!("the node could not be started under a cap:\n{}", self.last_words());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The series of its cap, if it has one.
    pub(crate) fn series(&self) -> Option<PathBuf> {
        self.capped.then(|| self.folder.join("cap.jsonl"))
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of what it and its cap printed.
    pub(crate) fn last_words(&self) -> String {
        let read = |name: &str| fs::read(self.folder.join(name)).unwrap_or_default();
        let text = [read("cap.log"), read("node.log")].concat();
        let tail = text.get(text.len().saturating_sub(LOG_TAIL_BYTES)..).unwrap_or_default();
        String::from_utf8_lossy(tail).into_owned()
    }

    /// Stops it and says how it ended. Errors: it does not stop.
    pub(crate) async fn stop(mut self) -> Result<Ended> {
        let before = self.has_ended();
        if !before {
            terminate(self.child.id());
        }
        let deadline = Instant::now() + STOPPED_WITHIN;
        while !self.has_ended() {
            if Instant::now() > deadline {
                bail!("the node did not stop within {} s of SIGTERM", STOPPED_WITHIN.as_secs());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let status = self.child.wait()?;
        let mut ended = Ended { how: status.to_string(), ..Ended::default() };
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

impl Drop for Node {
    fn drop(&mut self) {
        // The second SIGTERM makes a cap kill its group; a cap itself is never killed, because it
        // has the group to remove.
        for _ in 0..2 {
            if self.has_ended() {
                return;
            }
            terminate(self.child.id());
            let deadline = Instant::now() + STOPPED_WITHIN;
            while Instant::now() < deadline {
                if self.has_ended() {
                    return;
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        if !self.capped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
