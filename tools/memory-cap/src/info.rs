//! The processes and groups of a run, in a file, for programs that act on a run from outside: find
//! its processes, read its group, learn how it ended.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use accounting::{
    cgroup::{Cgroup, GroupPath, Version},
    process::{self, Pid},
};
use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{group::Group, series::Summary};

/// An info file has a few hundred bytes.
const BYTES_MAX: u64 = 64 << 10;

/// The content of the info file: a command, its group and how it ended.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Info {
    /// The command's process.
    pub pid: u32,
    /// When it was started, in the kernel's clock ticks: distinguishes it from a later process with
    /// its id.
    pub started_ticks: u64,
    /// `v1`, `v2` or `systemd`.
    pub group: String,
    /// The group's directory.
    pub directory: PathBuf,
    /// How it ended, once it has.
    pub ended: Option<CapExit>,
}

/// How a command ended.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct CapExit {
    /// A text: `exit 0`, `ended by SIGKILL`.
    pub how: String,
    /// Processes the kernel killed for lack of memory.
    pub oom_kills: u64,
    /// Most anonymous memory in any sample.
    pub anonymous_peak_bytes: u64,
    /// Processes that it left running, which were killed.
    #[serde(default)]
    pub left: usize,
}

impl CapExit {
    /// Of a run with this summary, which left `left` processes.
    pub fn from_summary(summary: &Summary, left: usize) -> Self {
        Self {
            how: summary.ended.clone(),
            oom_kills: summary.oom_kills,
            anonymous_peak_bytes: summary.anonymous_peak_bytes,
            left,
        }
    }
}

impl Info {
    pub(crate) fn for_command(main: Pid, group: &Group, readings: &Cgroup) -> Result<Self> {
        Ok(Self {
            pid: main.0,
            // A command that has ended already is a zombie that we have not waited for: it still
            // has a start time.
            started_ticks: process::started_ticks(main)?,
            group: group.kind().to_string(),
            directory: readings.directory().to_owned(),
            ended: None,
        })
    }

    /// Writes the file, so that a reader finds the old one or the new one. A failure must not end
    /// what is being measured.
    pub fn write(&self, path: Option<&Path>) {
        let Some(path) = path else { return };
        let written = serde_json::to_vec_pretty(self)
            .map_err(io::Error::from)
            .and_then(|bytes| disk::replace_file(path, &bytes, disk::Readers::All));
        if let Err(error) = written {
            eprintln!("thimble-lab cap: {} cannot be written: {error}", path.display());
        }
    }

    /// Reads the file; `None` when there is none.
    pub fn read(path: &Path) -> Option<Self> {
        let size = fs::metadata(path).ok()?.len();
        if size > BYTES_MAX {
            return None;
        }
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// The group, for reading.
    pub fn cgroup(&self) -> Cgroup {
        let place = GroupPath { directory: self.directory.clone(), mount: self.directory.clone() };
        let version = if self.group == "v1" { Version::V1 } else { Version::V2 };
        Cgroup::at(version, place, None)
    }
}
