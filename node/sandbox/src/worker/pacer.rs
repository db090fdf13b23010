//! Progress of the running message within its slices, and waiting at the end of one.
//!
//! At a point that the grant does not reach beyond ([`crate::Grant`]) the worker reports
//! [`Report::Paused`] and waits for the next order: in the middle of a system function if the point
//! is the end of one, and next to the suspended stack of the instance if the engine yielded.
//! Nothing else runs in the worker meanwhile.
//!
//! A paused message that is kept gets [`Order::Spill`] with a file that has no name: the worker
//! writes what the message holds to it, so that it keeps its stack, its argument and little else
//! until [`Order::Resume`]. A failure of this ends the worker, and the message runs again.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use pages::MemoryId;
use state::WASM_PAGE_BYTES;

use super::{
    Allocator, HeapCell, ORDER_BYTES_MAX, Stable,
    keeper::Memory,
    mapping::SPILLED_ANSWER_AT,
    protocol::{AppendOrder, Order, Report, Resume, SliceOrder},
};
use crate::{
    Progress,
    ipc::Channel,
    lock,
    slices::work_per_instruction,
    system_api::{Failure, Outgoing},
};

/// The worker's end of the wire, taken for one frame: between messages by the worker's loop, within
/// one by the pacer.
pub(super) type Wire = Arc<Mutex<Channel>>;

/// Where the dirty pages of a message that was paused are appended: not to the target of its
/// beginning, which may be sealed. Nowhere else if it was not paused.
#[derive(Debug, Default)]
pub(super) struct AppendAnew {
    pub(super) heap: Option<(AppendOrder, File)>,
    pub(super) stable: Option<(AppendOrder, File)>,
}

pub(crate) struct Pacer {
    wire: Wire,
    heap: Arc<HeapCell>,
    /// Size of a heap that the module cannot reach because it has no memory, in Wasm pages.
    heap_aside: Option<u64>,
    /// Those of the whole message: reaching them ends it, so no pause does.
    instructions_max: u64,
    step: u64,
    until: AtomicU64,
    /// Instructions at the last point, but for pages that are not charged yet.
    used: AtomicU64,
    /// The same without those for pages.
    executed: AtomicU64,
    /// Work at the last point beyond the instructions there ([`crate::slices`]).
    extra_work: AtomicU64,
    stable: Arc<Mutex<Stable>>,
    outgoing: Arc<Mutex<Outgoing>>,
    append: Mutex<AppendAnew>,
    /// The worker's other mappings: dropped when the message is paused.
    others: Mutex<BTreeMap<MemoryId, Memory>>,
    allocator: Arc<Allocator>,
    /// Why the worker has to end.
    failed: Mutex<Option<String>>,
    repeats: AtomicBool,
}

impl std::fmt::Debug for Pacer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pacer(used: {:?}, until: {:?})", self.used, self.until)
    }
}

impl Pacer {
    pub(super) fn new(
        wire: Wire,
        (heap, heap_aside): (Arc<HeapCell>, Option<u64>),
        stable: Arc<Mutex<Stable>>,
        order: SliceOrder,
        instructions_max: u64,
        (others, allocator): (BTreeMap<MemoryId, Memory>, Arc<Allocator>),
    ) -> Self {
        Self {
            wire,
            heap,
            heap_aside,
            instructions_max,
            step: order.step.max(1),
            until: AtomicU64::new(order.until),
            used: AtomicU64::new(0),
            executed: AtomicU64::new(0),
            extra_work: AtomicU64::new(0),
            stable,
            outgoing: Arc::default(),
            append: Mutex::default(),
            others: Mutex::new(others),
            allocator,
            failed: Mutex::default(),
            repeats: AtomicBool::default(),
        }
    }

    /// Instructions between two yields of the engine.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// A long operation is about to begin, before which `used` instructions are used exactly.
    pub(crate) fn synchronized(&self, used: u64) -> Result<(), Failure> {
        self.settle_pages().map_err(|_| Failure::engine("the message is repeated"))?;
        self.called(used)
    }

    /// A system function is about to return, after which `used` instructions are used exactly.
    pub(crate) fn called(&self, used: u64) -> Result<(), Failure> {
        self.count(used);
        // The worker ends after a failure here (`failed`), so the text is not part of a result.
        self.wait_while_due().map_err(|_| Failure::engine("the message cannot continue"))
    }

    /// The engine yielded, at least a step after the point before.
    pub(super) fn stepped(&self) -> Result<(), String> {
        self.settle_pages()?;
        self.count(self.used.load(Relaxed).saturating_add(self.step));
        self.wait_while_due()
    }

    /// Takes the count of instructions at a point, pages that were charged included.
    fn count(&self, used: u64) {
        let extra = self.extra_work_since(used);
        self.used.store(used, Relaxed);
        self.executed.store(used.saturating_sub(self.heap.charged()), Relaxed);
        self.extra_work.fetch_add(extra, Relaxed);
    }

    /// Work beyond the instructions since the last point.
    fn extra_work_since(&self, used: u64) -> u64 {
        let executed = used.saturating_sub(self.heap.charged());
        let since = executed.saturating_sub(self.executed.load(Relaxed));
        let each = work_per_instruction(self.heap.opened_wasm_pages());
        since.saturating_mul(each - 1)
    }

    /// Whether the message may be due to pause after a system function, after which `used`
    /// instructions are used, if pages that are not counted yet are.
    pub(crate) fn may_be_due(&self, used: u64) -> bool {
        let pages = self.heap.uncharged().saturating_add(self.heap.hidden_instructions_max());
        let extra = self.extra_work.load(Relaxed).saturating_add(self.extra_work_since(used));
        used.saturating_add(pages).saturating_add(extra) >= self.until.load(Relaxed)
    }

    /// Before a point at which the engine's fuel cannot be changed: nothing stays uncounted. Where
    /// the engine has more fuel than it would have had, the message has to be repeated.
    fn settle_pages(&self) -> Result<(), String> {
        if self.heap.owes() {
            self.repeats.store(true, Relaxed);
            return Err("the message is repeated".into());
        }
        self.heap.count_by_faults();
        Ok(())
    }

    /// Whether the message has to be repeated from its beginning with all pages counted by faults.
    pub(super) fn repeats(&self) -> bool {
        self.repeats.load(Relaxed)
    }

    /// Work of a message that is over, after `instructions`.
    pub(super) fn finish(&self, instructions: u64) -> u64 {
        self.count(instructions);
        instructions.saturating_add(self.extra_work.load(Relaxed))
    }

    /// Answer and calls of the message.
    pub(super) fn outgoing(&self) -> Arc<Mutex<Outgoing>> {
        Arc::clone(&self.outgoing)
    }

    /// Where the pages go, if the message was paused.
    pub(super) fn append_anew(&self) -> AppendAnew {
        std::mem::take(&mut *lock(&self.append))
    }

    /// The lent mappings that still exist.
    pub(super) fn take_others(&self) -> BTreeMap<MemoryId, Memory> {
        std::mem::take(&mut *lock(&self.others))
    }

    /// Puts away what the message holds. A worker that waits holds nothing else either: neither
    /// private pages of other canisters nor files that are deleted meanwhile. The pool counts on
    /// none of them afterwards.
    fn spill(&self, file: File) -> io::Result<SpillFile> {
        drop(self.take_others());
        self.heap.spill(&file)?;
        lock(&self.stable).spill(&file)?;
        let answer_bytes = lock(&self.outgoing).write_to_file(&file, SPILLED_ANSWER_AT)?;
        (self.allocator)(true);
        Ok(SpillFile { file, answer_bytes })
    }

    /// Takes back what cannot stay in the file while the message runs.
    fn read_back(&self, spilled: &SpillFile) -> io::Result<()> {
        let SpillFile { file, answer_bytes } = spilled;
        *lock(&self.outgoing) = Outgoing::read_from_file(file, SPILLED_ANSWER_AT, *answer_bytes)?;
        lock(&self.stable).read_back(file)
    }

    /// Why the worker has to end, if it has to.
    pub(super) fn failed(&self) -> Option<String> {
        lock(&self.failed).take()
    }

    /// Instructions counted so far, those for pages of the heap included.
    fn counted(&self) -> u64 {
        self.used.load(Relaxed).saturating_add(self.heap.uncharged())
    }

    /// Work counted so far.
    fn work(&self) -> u64 {
        self.counted().saturating_add(self.extra_work.load(Relaxed))
    }

    fn wait_while_due(&self) -> Result<(), String> {
        debug_assert!(
            !self.heap.is_watched()
                || self.work().saturating_add(self.heap.hidden_instructions_max())
                    < self.until.load(Relaxed),
            "a pause may depend on pages that are not counted"
        );
        while self.work() >= self.until.load(Relaxed) && self.counted() < self.instructions_max {
            self.pause().inspect_err(|text| {
                *lock(&self.failed) = Some(text.clone());
            })?;
        }
        Ok(())
    }

    fn pause(&self) -> Result<(), String> {
        // Other machines did not return to the canister what this one did: no report may follow.
        if self.heap.kernel_refused() || lock(&self.stable).kernel_refused() {
            return Err("the kernel refused memory".into());
        }
        self.heap.settle();
        let heap_wasm_pages =
            self.heap_aside.unwrap_or_else(|| self.heap.size_bytes() / WASM_PAGE_BYTES);
        let report = Progress {
            instructions: self.counted(),
            work: self.work(),
            heap_wasm_pages,
            stable_wasm_pages: lock(&self.stable).size_bytes() / WASM_PAGE_BYTES,
        };
        let mut spilled = None;
        let (resume, descriptors) = loop {
            let report = match spilled {
                Some(_) => Report::Spilled,
                None => Report::Paused(report),
            };
            let mut channel = lock(&self.wire);
            channel.send(&report, &[]).map_err(|error| error.to_string())?;
            let (order, descriptors) = channel
                .receive::<Order<'static>>(ORDER_BYTES_MAX)
                .map_err(|error| error.to_string())?;
            match order {
                Order::Resume(resume) => break (resume, descriptors),
                Order::Spill if spilled.is_none() => {
                    let file = descriptors.into_iter().next().ok_or("no file to spill to")?;
                    let done = self.spill(file.into());
                    spilled =
                        Some(done.map_err(|error| format!("putting a message away: {error}"))?);
                }
                _ => return Err("an order out of turn while a message is paused".into()),
            }
        };
        if let Some(spilled) = &spilled {
            self.read_back(spilled).map_err(|error| format!("taking it back: {error}"))?;
        }
        *lock(&self.append) = append_anew(&resume, descriptors)?;
        self.until.store(resume.until, Relaxed);
        Ok(())
    }
}

/// What a message that waits has in a file.
struct SpillFile {
    file: File,
    answer_bytes: u64,
}

/// The append files that came with an order, which are in the order of its fields.
fn append_anew(resume: &Resume, descriptors: Vec<OwnedFd>) -> Result<AppendAnew, String> {
    let mut files = descriptors.into_iter().map(File::from);
    let mut next = |order: Option<AppendOrder>| {
        order
            .map(|order| files.next().map(|file| (order, file)))
            .map(|pair| pair.ok_or("an append file was announced and not sent"))
            .transpose()
    };
    Ok(AppendAnew { heap: next(resume.heap)?, stable: next(resume.stable)? })
}
