//! Where the running message stands in its slices, and waiting at the end of one.
//!
//! A message that runs in slices looks at the count of its instructions at fixed points
//! ([`crate::Grant`]). At a point that the grant does not reach beyond, the worker reports
//! [`Report::Paused`] and waits on its socket for [`Order::Resume`], with the message on its stack
//! and its pages private: in the middle of a system function where the point is the end of one, and
//! beside the suspended stack of the instance where the engine yielded. Nothing else runs in the
//! worker meanwhile. A worker whose message shall not go on is ended by the pool.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use pages::{MemoryId, PAGE_BYTES};

use super::{
    Allocator, HeapCell, ORDER_BYTES_MAX, Stable,
    keeper::Memory,
    protocol::{AppendOrder, Order, Report, Resume, SliceOrder},
};
use crate::{
    Progress,
    ipc::Channel,
    system_api::{Failure, Host},
};

const WASM_PAGE_BYTES: u64 = 64 << 10;

/// The worker's end of the wire: between messages the worker's loop has it, within one the pacer.
pub(super) type Wire = Arc<Mutex<Channel>>;

/// Takes the wire for one frame.
pub(super) fn wire(wire: &Wire) -> MutexGuard<'_, Channel> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the dirty pages of a message go that was paused: not to where its beginning was told, for
/// that may be sealed.
#[derive(Debug)]
pub(super) struct AppendAnew {
    pub(super) heap: Option<(AppendOrder, File)>,
    pub(super) stable: Option<(AppendOrder, File)>,
}

/// See the module.
pub(crate) struct Pacer {
    wire: Wire,
    heap: Arc<HeapCell>,
    /// Size of a heap that the module cannot reach because it has no memory, in Wasm pages.
    heap_aside: Option<u64>,
    /// Those of the whole message: reaching them ends it, so no pause does.
    instructions_max: u64,
    step: u64,
    until: AtomicU64,
    used: AtomicU64,
    // Only system functions change it, so it is as the last one left it.
    stable_bytes: AtomicU64,
    /// Of stable memory and of the calls and the answer.
    held_bytes: AtomicU64,
    append: Mutex<Option<AppendAnew>>,
    /// What else the worker has mapped: let go of where the message is paused.
    others: Mutex<BTreeMap<MemoryId, Memory>>,
    allocator: Arc<Allocator>,
    /// Why the worker has to end.
    failed: Mutex<Option<String>>,
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
        stable: &Stable,
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
            stable_bytes: AtomicU64::new(stable.size_bytes()),
            held_bytes: AtomicU64::new(0),
            append: Mutex::default(),
            others: Mutex::new(others),
            allocator,
            failed: Mutex::default(),
        }
    }

    /// Instructions between two yields of the engine.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// A system function is about to return, after which `used` instructions are used exactly.
    pub(crate) fn called(&self, used: u64, host: &Host) -> Result<(), Failure> {
        self.used.store(used, Relaxed);
        self.stable_bytes.store(host.stable.size_bytes(), Relaxed);
        self.held_bytes.store(
            host.held_bytes().saturating_add(host.stable.dirty_pages() * PAGE_BYTES),
            Relaxed,
        );
        // The worker ends after a failure here: nobody reads the text.
        self.wait_while_due().map_err(|text| Failure::engine(&text))
    }

    /// The engine yielded, at least a step after the point before.
    pub(super) fn stepped(&self) -> Result<(), String> {
        self.used.fetch_add(self.step, Relaxed);
        self.wait_while_due()
    }

    /// Where the pages go, if the message was paused.
    pub(super) fn append_anew(&self) -> Option<AppendAnew> {
        self.append.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// What is mapped still of what was lent to it.
    pub(super) fn take_others(&self) -> BTreeMap<MemoryId, Memory> {
        std::mem::take(&mut *self.others.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A worker that waits holds its message and nothing else: neither private pages of other
    /// canisters nor files that are deleted meanwhile. The pool counts on none of them afterwards.
    fn let_go(&self) {
        drop(self.take_others());
        (self.allocator)(true);
    }

    /// Why the worker has to end, if it has to.
    pub(super) fn failed(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn wait_while_due(&self) -> Result<(), String> {
        while self.used.load(Relaxed) >= self.until.load(Relaxed)
            && self.until.load(Relaxed) < self.instructions_max
        {
            self.pause().inspect_err(|text| {
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.clone());
            })?;
        }
        Ok(())
    }

    fn pause(&self) -> Result<(), String> {
        let heap_wasm_pages =
            self.heap_aside.unwrap_or_else(|| self.heap.size_bytes() / WASM_PAGE_BYTES);
        let report = Progress {
            instructions: self.used.load(Relaxed).min(self.instructions_max),
            heap_wasm_pages,
            stable_wasm_pages: self.stable_bytes.load(Relaxed) / WASM_PAGE_BYTES,
            held_bytes: (self.heap.dirty_pages() * PAGE_BYTES)
                .saturating_add(self.held_bytes.load(Relaxed)),
        };
        self.let_go();
        let mut channel = wire(&self.wire);
        channel.send(&Report::Paused(report), &[]).map_err(|error| error.to_string())?;
        let (order, descriptors) = channel
            .receive::<Order<'static>>(ORDER_BYTES_MAX)
            .map_err(|error| error.to_string())?;
        let Order::Resume(resume) = order else {
            return Err("an order out of turn while a message is paused".into());
        };
        let append = append_anew(&resume, descriptors)?;
        *self.append.lock().unwrap_or_else(PoisonError::into_inner) = Some(append);
        self.until.store(resume.until, Relaxed);
        Ok(())
    }
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
