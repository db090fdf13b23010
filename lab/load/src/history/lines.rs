//! The history file: one JSON object per line, appended as events happen, by the recorder and by
//! the injector of faults.
//!
//! Times are microseconds of the machine's monotonic clock, the same in every process. Canisters
//! and endpoints are indexes into the header's lists. A reader skips lines that it cannot read (the
//! last one may be cut off), and counts them.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Version of the format.
pub(super) const FORMAT: u32 = 1;
/// A final read of 64 pages takes a thousandth of this.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Lines of a history that is checked; it is held in memory for that.
const LINES_MAX: usize = 5_000_000;

/// One line of the history; the field `kind` names the variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Line {
    /// The clients and their targets.
    Header(Header),
    /// A call of a client, when it has ended.
    Call(Call),
    /// A read of a client, when it has been answered.
    Read(ClientRead),
    /// Something was done to the net. Not written by the recorder.
    Fault(Fault),
    /// After everything was healed: an update through one endpoint.
    Progress(Progress),
    /// After everything: what an endpoint's node holds.
    Final(Final),
    /// A certificate: at that time the subnet's state had that root.
    Root(Root),
}

/// The clients and their targets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) format: u32,
    /// Of everything random.
    pub(super) seed: u64,
    /// URLs of the nodes' public endpoints.
    pub(super) endpoints: Vec<String>,
    /// The canisters, in the order of their ring.
    pub(super) canisters: Vec<String>,
    /// Root key with which every certificate was verified, in hexadecimal.
    pub(super) root_key: String,
    pub(super) clients: usize,
    pub(super) pages: u64,
    pub(super) started_micros: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CallKind {
    /// Writes this page, which no other call ever writes. The value is the canister's generation:
    /// how many writes it had seen.
    Append { page: u64 },
    /// Counts one. The value is the count.
    Count,
    /// Makes this number of calls from canister to canister around the ring. The value is the
    /// number of answers.
    Chain { depth: u64 },
}

/// How a call ended for its client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// Acknowledged by a verified certificate.
    Acknowledged {
        /// The value that [`CallKind`] describes for this kind of call.
        value: u64,
        /// The certificate's time, in nanoseconds, and the state root it signs.
        time: u64,
        root: String,
        /// Whose certificate it was.
        endpoint: usize,
    },
    /// A verified certificate shows that it had no effect, or no node accepted it.
    Rejected { text: String },
    /// It may have happened, or may still happen.
    Unknown { text: String },
    /// A certificate did not verify, or its content is impossible.
    Wrong { text: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Call {
    /// In the order of sending.
    pub(super) id: u64,
    /// Each client has one call at a time.
    pub(super) client: usize,
    pub(super) canister: usize,
    pub(super) work: CallKind,
    /// When it was sent first.
    pub(super) sent_micros: u64,
    /// When its client knew the outcome, or gave up.
    pub(super) ended_micros: u64,
    /// To how many endpoints it was sent.
    pub(super) attempts: u32,
    pub(super) outcome: Outcome,
}

/// A run of pages of one generation; it ends where the next begins.
pub(super) type Run = (u64, u64);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClientRead {
    pub(super) client: usize,
    /// Which endpoint answered.
    pub(super) endpoint: usize,
    pub(super) canister: usize,
    /// Through consensus, with a certificate; or from one node's newest state.
    pub(super) certified: bool,
    pub(super) sent_micros: u64,
    pub(super) ended_micros: u64,
    /// How many writes the canister had seen.
    pub(super) generation: u64,
    pub(super) first: u64,
    pub(super) pages: u64,
    pub(super) runs: Vec<Run>,
}

/// Something done to the net.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fault {
    pub(super) at_micros: u64,
    pub(super) text: String,
}

/// An update after everything was healed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    pub(super) endpoint: usize,
    /// Since when everything was healed.
    pub(super) healed_micros: u64,
    /// When the update was acknowledged; never, if it was not.
    pub(super) acknowledged_micros: Option<u64>,
    pub(super) limit_micros: u64,
    pub(super) text: String,
}

/// Final state of an endpoint's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Final {
    pub(super) endpoint: usize,
    pub(super) canister: usize,
    /// Through consensus, with a certificate; or from that node's own state, signed by it.
    pub(super) certified: bool,
    /// Counts that the canister has seen.
    pub(super) count: u64,
    /// Calls from other canisters seen.
    pub(super) hops: u64,
    /// Writes that the canister has seen.
    pub(super) generation: u64,
    pub(super) first: u64,
    pub(super) pages: u64,
    pub(super) runs: Vec<Run>,
}

/// Time and state root of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Root {
    pub(super) endpoint: usize,
    /// Its time, in nanoseconds.
    pub(super) time: u64,
    pub(super) root: String,
}

/// The monotonic clock.
pub(super) fn now_micros() -> u64 {
    cli::monotonic().as_micros() as u64
}

/// Appends lines, each in one write, so that several processes may append to one file.
pub(super) struct Writer(File);

impl Writer {
    /// Begins a history.
    pub(super) fn create(path: &Path) -> Result<Self> {
        File::create(path).with_context(|| format!("making the history {}", path.display()))?;
        Self::append(path)
    }

    /// Continues an existing file.
    pub(super) fn append(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().append(true).open(path);
        Ok(Self(file.with_context(|| format!("opening the history {}", path.display()))?))
    }

    pub(super) fn write(&mut self, line: &Line) -> Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.0.write_all(&bytes).context("writing the history")
    }
}

/// Every line of a history that can be read, and how many cannot.
pub(super) fn read(path: &Path) -> Result<(Vec<Line>, u64)> {
    let file =
        File::open(path).with_context(|| format!("opening the history {}", path.display()))?;
    let mut file = BufReader::new(file);
    let (mut lines, mut unreadable) = (Vec::new(), 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        if file.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok((lines, unreadable));
        }
        match serde_json::from_slice(&line) {
            Ok(line) => lines.push(line),
            Err(_) => unreadable += 1,
        }
        ensure!(lines.len() <= LINES_MAX, "the history has more than {LINES_MAX} lines");
    }
}
