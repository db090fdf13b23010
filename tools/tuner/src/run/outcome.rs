//! Results of one run.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::lateness::Lateness;

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "words", rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It worked until the request to stop, or ended by itself with success.
    #[default]
    Lived,
    /// The kernel killed a process of it for lack of memory.
    OutOfMemory(String),
    /// It ended by itself before the request to stop: how, and its last lines.
    Ended(String),
    /// It was not ready in time: how long that was, and its last lines.
    NeverReady(String),
    /// The work that was put on it failed.
    LoadFailed(String),
    /// The work that was put on it did not end in time: so it goes under a cap that leaves no
    /// room for the pages of the program itself, which are read again and again.
    Stalled(String),
    /// Its first process ended and left others running in the background.
    LeftBehind(String),
}

impl Outcome {
    pub(crate) fn lived(&self) -> bool {
        *self == Self::Lived
    }

    /// For a column of a table.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Lived => "lived",
            Self::OutOfMemory(_) => "killed for memory",
            Self::Ended(_) => "ended early",
            Self::NeverReady(_) => "never ready",
            Self::LoadFailed(_) => "load failed",
            Self::Stalled(_) => "too slow for the load",
            Self::LeftBehind(_) => "left for the background",
        }
    }

    pub(crate) fn detail(&self) -> &str {
        match self {
            Self::Lived => "",
            Self::OutOfMemory(words)
            | Self::Ended(words)
            | Self::NeverReady(words)
            | Self::LoadFailed(words)
            | Self::Stalled(words)
            | Self::LeftBehind(words) => words,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.detail() {
            "" => f.write_str(self.label()),
            words => write!(f, "{}: {words}", self.label()),
        }
    }
}

/// What was measured, over all processes of the command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub(crate) outcome: Outcome,
    /// Most anonymous and shared memory at any moment.
    pub(crate) peak_bytes: u64,
    /// The same at the end.
    pub(crate) end_bytes: u64,
    /// CPU time of the whole run.
    pub(crate) cpu_seconds: f64,
    /// From the start of the process to its being ready.
    pub(crate) start_millis: Option<f64>,
    /// How long it ran.
    pub(crate) seconds: f64,
    /// Largest live memory after a full collection, where the runtime reports it.
    pub(crate) live_bytes: Option<u64>,
    /// Part of the CPU time that the collector took, where the runtime reports it.
    pub(crate) collector_percent: Option<f64>,
    /// Collections, and the longest pause of them, where the runtime reports them.
    pub(crate) collections: Option<u64>,
    pub(crate) pause_max_millis: Option<f64>,
    /// Answers or beats.
    pub(crate) lateness: Option<Lateness>,
    /// Part of all processors that others took meanwhile.
    pub(crate) others_percent: f64,
}
