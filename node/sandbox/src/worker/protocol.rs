//! Messages between the pool and a worker, and the order of the descriptors in a frame.
//!
//! The pool sends one [`Order`], the worker answers with one [`Report`]. The pool remembers what
//! each worker has mapped and sends only what is new; the worker answers [`Report::Missing`] if it
//! lacks something that the pool assumed, and the pool sends the order again with everything.
//!
//! Descriptors of [`Order::Execute`], in this order: the artefact, when [`Execute::artefact`]; then
//! for the heap and for the stable memory, each: the base file, when [`MapOrder::base`]; the
//! segments of [`MapOrder::segments`]; the append file, when [`AppendOrder::file`]. The one of
//! [`Order::Spill`]: a file without a name. Those of [`Order::Resume`]: the append files of heap
//! and stable memory, for each that it names.

use std::borrow::Cow;

use pages::{MemoryId, Run, SegmentId};
use serde::{Deserialize, Serialize};
use state::{Global, ModuleHash};

use crate::{Entry, MessageLimits, Outcome, Progress, SystemContext};

/// Pool to worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order<'a> {
    /// Run a message.
    Execute(Box<Execute<'a>>),
    /// Put what the paused message holds into the file that comes with this, after
    /// [`Report::Paused`]; answered by [`Report::Spilled`].
    Spill,
    /// Resume the paused message; answered like [`Order::Execute`].
    Resume(Resume),
    /// Drop kept executions, mappings and modules; answered by [`Report::Done`].
    Forget(Forget),
    /// Say how much the allocator holds, after freed memory was handed back if so ordered; answered
    /// by [`Report::Heap`].
    Heap {
        /// Hand back first.
        trim: bool,
    },
    /// Attempt what the filter forbids; answered by [`Report::Done`] by a worker that is not
    /// confined. For tests of the confinement only.
    Probe(Probe),
}

/// Memory held by the allocator of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapFigures {
    /// Allocated by the program.
    pub live_bytes: u64,
    /// Resident for it, freed pages included.
    pub resident_bytes: u64,
    /// Handed back to the operating system by the call that read this.
    pub returned_bytes: u64,
}

/// State that a worker need not keep any longer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Forget {
    /// Kept executions of composite queries.
    pub(crate) tokens: Vec<u64>,
    pub(crate) memories: Vec<MemoryId>,
    pub(crate) modules: Vec<ModuleHash>,
}

impl Forget {
    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.memories.is_empty() && self.modules.is_empty()
    }
}

/// A message to run. The pool lends what the worker then owns: arguments are large.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Execute<'a> {
    /// State to drop first.
    pub(crate) forget: Forget,
    pub(crate) module: ModuleHash,
    /// Whether its artefact comes with this frame.
    pub(crate) artefact: bool,
    pub(crate) entry: Cow<'a, Entry>,
    /// Values of the mutable globals before the message; empty at the first instantiation.
    pub(crate) globals: Cow<'a, [Global]>,
    /// The Wasm memory; not used by a module without one.
    pub(crate) heap: MountOrder,
    /// The stable memory; every module has one.
    pub(crate) stable: MountOrder,
    pub(crate) context: Cow<'a, SystemContext>,
    /// Caps of the message: instructions, sizes of memories, bytes dirtied and accessed, log.
    pub(crate) limits: MessageLimits,
    /// A kept execution to continue.
    pub(crate) keep_token: Option<u64>,
    /// A composite query that makes calls is kept under this name.
    pub(crate) keep_as: Option<u64>,
    /// How far to run; `None` for a message that runs to its end.
    pub(crate) slice: Option<SliceOrder>,
}

/// How far to run, see [`crate::Grant`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SliceOrder {
    /// Work after which to pause.
    pub(crate) until: u64,
    /// Instructions between two checks of the count.
    pub(crate) step: u64,
}

/// More for the paused message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Resume {
    /// Work after which to pause again, counted from the message's beginning.
    pub(crate) until: u64,
    /// Where changes of the heap go now.
    pub(crate) heap: Option<AppendOrder>,
    /// Where changes of the stable memory go now.
    pub(crate) stable: Option<AppendOrder>,
}

/// A memory of the message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MountOrder {
    pub(crate) id: MemoryId,
    /// Size in Wasm pages.
    pub(crate) wasm_pages: u64,
    /// Another worker appended to this memory since this one did: private copies of what this one
    /// appended may be of pages that were never committed, whose place in the file holds
    /// something else by now.
    pub(crate) settle: bool,
    /// Files to map first; `None` if the existing mapping is current.
    pub(crate) map: Option<MapOrder>,
    /// Where changes go.
    pub(crate) append: Option<AppendOrder>,
}

/// Files to map.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MapOrder {
    /// Start over from this base file, of this many bytes; otherwise `runs` are mapped over the
    /// existing mapping.
    pub(crate) base: Option<u64>,
    /// Number of other base files whose descriptors come behind its own.
    pub(crate) bases: usize,
    /// Pages that are in those files, ordered by `start_page`: they are mapped over `base`, and
    /// runs over them.
    pub(crate) parts: Vec<MapPart>,
    /// Segments whose descriptors come with this frame, in their order.
    pub(crate) segments: Vec<SegmentId>,
    /// Runs in those segments, ordered by `start_page`.
    pub(crate) runs: Vec<Run>,
}

/// Pages that are in another base file, at the same offset.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct MapPart {
    pub(crate) start_page: u64,
    pub(crate) pages: u64,
    /// Which of [`MapOrder::bases`].
    pub(crate) base: usize,
}

/// Where dirty pages go.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct AppendOrder {
    /// The open segment of the memory, which dirty pages are appended to.
    pub(crate) segment: SegmentId,
    /// First free page.
    pub(crate) offset_page: u64,
    /// Pages that may be written.
    pub(crate) pages_max: u64,
    /// Where they go instead if there are at most `free_pages`.
    pub(crate) free_page: u64,
    pub(crate) free_pages: u64,
    /// Whether its descriptor comes with this frame.
    pub(crate) file: bool,
}

/// Operation that a test orders a worker to attempt; only a worker started for probes obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Probe {
    /// Opens a file.
    Open,
    /// Creates a UDP socket.
    Socket,
    /// The worker calls `fork`, which its filter must end.
    Fork,
    /// Starts another program with `execve`.
    Exec,
    /// Asks to be traced with `ptrace`.
    Ptrace,
    /// Makes a request of `ioctl` that does not concern written pages.
    Ioctl,
    /// Answers with an outcome no honest worker returns.
    Lie,
    /// Sends no report, so that the pool's time limit ends the worker.
    Hang,
    /// From now on memories cannot grow, as if the kernel refused.
    RefuseGrowth,
    /// From now on written pages are counted by faults, as where the kernel does not note writes.
    CountByFaults,
}

/// Worker to pool.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// Confined and waiting; the first frame of a worker.
    Ready,
    /// Result of [`Order::Execute`].
    Outcome(Box<Outcome>),
    /// The message used what it was granted and waits in the worker.
    Paused(Progress),
    /// It holds no pages, answer and calls in memory now.
    Spilled,
    /// Nothing was run: the worker lacks the module, a mapping or an append file.
    Missing,
    /// The worker failed in a way that is not the canister's doing; it ends after this. Bounded
    /// text.
    Failed(String),
    /// [`Order::Forget`] or [`Order::Probe`] is done.
    Done,
    /// Result of [`Order::Heap`].
    Heap(HeapFigures),
}
