//! The System API: the functions of `ic0` that a canister may import.
//!
//! [`functions`] is the table of all functions; [`link`] defines each with 32-bit and with 64-bit
//! addresses, over one implementation on [`Host`]. Each call is charged a fixed number of
//! instructions, checked against the contexts of its row, and then runs: addresses are checked in
//! 64-bit arithmetic that cannot overflow, the bytes that move are charged, and only then do they
//! move. The first thing that is wrong ends the message with a [`Failure`].
//!
//! All input came with the message ([`SystemContext`]), all effects leave with its outcome. Time,
//! balances and limits are values, so the same message gives the same outcome wherever it runs.
//!
//! # Bounds
//!
//! The reply, the call being assembled and everything queued are bounded by the largest payload
//! ([`Host::outgoing_bytes_max`]), calls by `calls_max`, the log by `log_max_bytes`; heap and
//! stable memory by the caps of the message.

mod calls;
mod contexts;
mod cycles;
mod environment;
mod error;
mod functions;
mod link;
mod memory;
mod message;
mod outgoing;

use std::{
    fmt::Display,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};

use serde_bytes::ByteBuf;
use state::Cycles;

pub(crate) use contexts::Context;
pub(crate) use error::Failure;
pub use functions::{IC0_FUNCTIONS, Ic0Function};
pub(crate) use link::linker;
pub(crate) use outgoing::Outgoing;

use crate::{
    Changes, Entry, MessageLimits, Response, SystemContext, lock,
    worker::{HeapCell, Pacer, Stable, WriteRefusal},
};

/// Instructions of every call into the system, whatever it does.
const CALL_INSTRUCTIONS: u64 = 150;

/// Instructions for the first write to a page: a fault, system calls, a copy, and its way to the
/// disk.
pub(crate) const DIRTY_PAGE_INSTRUCTIONS: u64 = 12_000;

/// Instructions for the first access to a Wasm page of the heap: a fault, two system calls, and up
/// to 16 pages that the kernel maps.
pub(crate) const TOUCHED_WASM_PAGE_INSTRUCTIONS: u64 = 50_000;

/// Instructions for the first access to a page of stable memory, which the kernel maps.
const STABLE_PAGE_INSTRUCTIONS: u64 = 9_000;

/// Instructions after which a call of the system counts the pages that the kernel noted: the count
/// takes about as long as a thousandth of them.
const COUNT_INTERVAL_INSTRUCTIONS: u64 = 1_000_000;

/// Payloads of the largest size that one message may hold at once, over its reply and all its
/// calls.
pub(crate) const OUTGOING_PAYLOADS: u64 = 8;

/// Longest text of a trap that is reported.
const TRAP_TEXT_BYTES: u64 = 16 << 10;

/// One message as its canister sees it.
#[derive(Debug)]
pub(crate) struct Host {
    // Memories of the message.
    pub(crate) heap: Arc<HeapCell>,
    pub(crate) stable: Arc<Mutex<Stable>>,
    pub(crate) limits: MessageLimits,
    pub(crate) heap_bytes_max: u64,
    pub(crate) enforce_wasm_memory_limit: bool,
    /// The function of the system that runs, for error texts.
    function: &'static str,
    /// Instructions left, while a function of the system runs; the store's fuel otherwise.
    pub(crate) fuel: u64,
    /// Fuel when all pages that the kernel noted were last counted.
    fuel_counted: u64,
    /// Of a message that runs in slices.
    pub(crate) pacer: Option<Arc<Pacer>>,

    // Input of the message.
    pub(crate) context: SystemContext,
    pub(crate) mode: Context,
    reject: Option<(u32, String)>,
    reject_code: u32,
    method_name: String,

    // Effects of the message.
    pub(crate) outgoing: Arc<Mutex<Outgoing>>,
    accepted: bool,
    height_read: bool,
    /// All but calls, memory and globals.
    changes: Changes,
    cycles_available: Cycles,
    growable_bytes: u64,
    /// The part of it that the last growth of the heap took, returned if the engine refuses.
    growth_granted: u64,
    log: Log,
    /// Whether the instance exists: its memory grows from then on at the canister's wish.
    pub(crate) instantiated: bool,
}

impl Host {
    /// A message about to run.
    pub(crate) fn new(
        heap: Arc<HeapCell>,
        stable: Arc<Mutex<Stable>>,
        context: SystemContext,
        limits: MessageLimits,
        entry: &Entry,
        memory64: bool,
    ) -> Self {
        // The file behind the heap is as long as the limits allowed when it was made.
        let heap_bytes_max = limits.heap_max_bytes[usize::from(memory64)].min(heap.file_bytes());
        let (reject, reject_code) = match entry {
            Entry::Callback { kind: crate::CallbackKind::Reject { code, message }, .. } => {
                (Some((*code, message.clone())), *code)
            }
            Entry::Cleanup { reject_code, .. } => (None, *reject_code),
            _ => (None, 0),
        };
        let method_name = match entry {
            Entry::InspectMessage { method_name } => method_name.clone(),
            _ => String::new(),
        };
        Self {
            heap,
            stable,
            heap_bytes_max,
            enforce_wasm_memory_limit: matches!(
                entry,
                Entry::Init | Entry::PostUpgrade { .. } | Entry::Update(_)
            ),
            function: "",
            fuel: 0,
            fuel_counted: limits.instructions,
            pacer: None,
            mode: Context::for_entry(entry, context.replicated),
            reject,
            reject_code,
            method_name,
            outgoing: Arc::default(),
            accepted: false,
            height_read: false,
            changes: Changes { balance: context.balance, ..Changes::default() },
            cycles_available: context.cycles_available,
            growable_bytes: context.growable_bytes,
            growth_granted: 0,
            log: Log::new(limits.log_max_bytes),
            instantiated: false,
            limits,
            context,
        }
    }

    /// The entry point returned: what was begun and not finished is undone. Returns the stable
    /// memory, what the message did, and the context it was given.
    pub(crate) fn finish(mut self) -> (Arc<Mutex<Stable>>, SideEffects, SystemContext) {
        self.discard_pending_call();
        let outgoing = std::mem::take(&mut *self.outgoing());
        let effects = SideEffects {
            response: outgoing.response,
            accepted: self.accepted,
            height_read: self.height_read,
            changes: Changes { calls: outgoing.calls, ..self.changes },
            log: self.log,
        };
        (self.stable, effects, self.context)
    }

    /// Its answer and its calls.
    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        lock(&self.outgoing)
    }

    /// Its stable memory.
    fn stable(&self) -> MutexGuard<'_, Stable> {
        lock(&self.stable)
    }

    /// Bytes of reply and calls one message may hold.
    fn outgoing_bytes_max(&self) -> u64 {
        self.context.payload_max_bytes.saturating_mul(OUTGOING_PAYLOADS)
    }

    fn charge(&mut self, instructions: u64) -> Result<(), Failure> {
        match self.fuel.checked_sub(instructions) {
            Some(left) => {
                self.fuel = left;
                Ok(())
            }
            None => {
                self.fuel = 0;
                Err(Failure::instructions(self.limits.instructions))
            }
        }
    }

    /// A function of the system is called: counts the pages that the kernel noted if their count
    /// `is_read` or was not taken for a while. Whether none is left to be counted.
    fn count_noted_pages(&mut self, is_read: bool) -> bool {
        if !self.heap.is_watched() {
            return true;
        }
        let since = self.fuel_counted.saturating_sub(self.fuel);
        if is_read || since >= COUNT_INTERVAL_INSTRUCTIONS {
            self.heap.count_noted();
            self.fuel_counted = self.fuel;
            return true;
        }
        false
    }

    /// A function of the system is done, after which the message may be paused: counts the pages
    /// that the kernel noted if that could depend on them. Whether it did.
    fn count_before_pause(&self) -> bool {
        let used = self.limits.instructions.saturating_sub(self.fuel);
        let counts = self.heap.is_watched()
            && self.pacer.as_ref().is_some_and(|pacer| pacer.may_be_due(used));
        if counts {
            self.heap.count_by_faults();
        }
        counts
    }

    /// A rule of the running function broken.
    fn violation(&self, what: impl Display) -> Failure {
        Failure::contract(&format!("ic0.{}: {what}", self.function))
    }

    /// `at..at + size`, if the Wasm memory has these bytes.
    fn heap_bounds(&self, at: u64, size: u64) -> Result<Range<u64>, Failure> {
        let memory_bytes = self.heap.size_bytes();
        match at.checked_add(size).filter(|end| *end <= memory_bytes) {
            Some(end) => Ok(at..end),
            None => Err(self.violation(format_args!(
                "{size} bytes at {at} are outside the Wasm memory of {memory_bytes} bytes"
            ))),
        }
    }

    /// Checks that `memory[at..at + size]` exists, and charges for `size` bytes.
    fn heap_range(&mut self, at: u64, size: u64) -> Result<Range<u64>, Failure> {
        let range = self.heap_bounds(at, size)?;
        self.charge(size)?;
        Ok(range)
    }

    /// `memory[src..src + size]`.
    fn read_heap(&mut self, src: u64, size: u64) -> Result<&[u8], Failure> {
        let range = self.heap_range(src, size)?;
        Ok(self.heap.read(range))
    }

    /// A text of at most `size_max` bytes.
    fn read_text(&mut self, src: u64, size: u64, size_max: u64) -> Result<String, Failure> {
        if size > size_max {
            return Err(self
                .violation(format_args!("a text of {size} bytes, the limit is {size_max} bytes")));
        }
        let text = std::str::from_utf8(self.read_heap(src, size)?).map(str::to_owned);
        text.map_err(|_| self.violation("the text is not valid UTF-8"))
    }

    /// `memory[dst..] := bytes`.
    fn write_heap(&mut self, dst: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.heap_range(dst, bytes.len() as u64)?;
        self.heap.write(dst, bytes).map_err(|refused| self.write_refused(refused))
    }

    /// `memory[dst..dst + size] := blob[offset..offset + size]`.
    fn copy_out(&mut self, blob: Blob, dst: u64, offset: u64, size: u64) -> Result<(), Failure> {
        self.heap_range(dst, size)?;
        let heap = self.heap.clone();
        let bytes = self.blob(blob);
        let blob_bytes = bytes.len() as u64;
        let part = offset
            .checked_add(size)
            .and_then(|end| bytes.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?));
        let Some(part) = part else {
            return Err(self.violation(format_args!(
                "{size} bytes from offset {offset} are outside the {blob_bytes} bytes there are"
            )));
        };
        heap.write(dst, part).map_err(|refused| self.write_refused(refused))
    }

    fn write_refused(&self, refused: WriteRefusal) -> Failure {
        match refused {
            WriteRefusal::Cap => self.heap_cap(),
            // The worker ends after this (`HeapCell::kernel_refused`): the text is not read.
            WriteRefusal::Kernel => Failure::engine("the kernel refused to open a page"),
        }
    }

    /// Called before a bulk operation of the canister writes.
    pub(crate) fn will_write(&mut self, dst: u64, len: u64) -> Result<(), Failure> {
        match dst.checked_add(len) {
            Some(end) => {
                self.heap.will_write(dst..end).map_err(|refused| self.write_refused(refused))
            }
            None => Ok(()),
        }
    }

    /// The cap on heap pages was reached.
    pub(crate) fn heap_cap(&self) -> Failure {
        Failure::memory_access(
            "bytes written to pages of the Wasm memory",
            self.limits.heap_dirty_bytes,
        )
    }

    fn blob(&self, blob: Blob) -> &[u8] {
        match blob {
            Blob::Argument => &self.context.arg,
            Blob::Caller => self.context.caller.as_slice(),
            Blob::CallerInfoData => {
                self.context.caller_info.as_ref().map_or(&[], |info| &info.info)
            }
            Blob::CallerInfoSigner => {
                self.context.caller_info.as_ref().map_or(&[], |info| info.signer.as_slice())
            }
            Blob::RejectMessage => {
                self.reject.as_ref().map_or(&[], |(_, message)| message.as_bytes())
            }
            Blob::CanisterSelf => self.context.canister_id.as_slice(),
            Blob::SubnetSelf => self.context.subnet_id.as_slice(),
            Blob::MethodName => self.method_name.as_bytes(),
            Blob::RootKey => &self.context.root_key,
            Blob::DataCertificate => self
                .context
                .data_certificate
                .as_ref()
                .map_or(&[], |certificate| certificate.as_slice()),
            Blob::EnvName(index) => {
                self.context.env_vars.get(index).map_or(&[], |(name, _)| name.as_bytes())
            }
            Blob::EnvValue(index) => {
                self.context.env_vars.get(index).map_or(&[], |(_, value)| value.as_bytes())
            }
        }
    }
}

/// What a message did, memory and globals apart.
#[derive(Debug)]
pub(crate) struct SideEffects {
    pub(crate) response: Response,
    pub(crate) accepted: bool,
    pub(crate) height_read: bool,
    pub(crate) changes: Changes,
    pub(crate) log: Log,
}

/// A blob of the system that a canister may copy from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blob {
    Argument,
    Caller,
    CallerInfoData,
    CallerInfoSigner,
    RejectMessage,
    CanisterSelf,
    SubnetSelf,
    MethodName,
    RootKey,
    DataCertificate,
    EnvName(usize),
    EnvValue(usize),
}

/// Lines of `ic0.debug_print` and the text of a trap, within a bound.
#[derive(Debug)]
pub(crate) struct Log {
    lines: Vec<ByteBuf>,
    bytes_left: u64,
}

/// Accounted for a line in addition to its text, so that empty lines are bounded too.
const LOG_LINE_BYTES: u64 = 16;

impl Log {
    fn new(bytes_max: u64) -> Self {
        Self { lines: Vec::new(), bytes_left: bytes_max }
    }

    /// Bytes a next line may have; `None` when there is no room for one.
    fn room(&self) -> Option<u64> {
        self.bytes_left.checked_sub(LOG_LINE_BYTES)
    }

    /// Appends a line, cut to what there is room for.
    pub(crate) fn push(&mut self, line: &[u8]) {
        if let Some(room) = self.room() {
            let line = line.get(..usize::try_from(room).unwrap_or(usize::MAX)).unwrap_or(line);
            self.bytes_left -= LOG_LINE_BYTES + line.len() as u64;
            self.lines.push(ByteBuf::from(line));
        }
    }

    /// Takes out all lines, in the order they were pushed.
    pub(crate) fn take(&mut self) -> Vec<ByteBuf> {
        std::mem::take(&mut self.lines)
    }
}
