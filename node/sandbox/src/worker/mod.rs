//! The worker: a process that runs canister code and nothing else (docs/internals/sandbox.md).
//!
//! A worker starts with one socket, maps the rings that come over it ([`crate::ipc`]), confines
//! itself ([`confine`]), and then answers orders of the pool ([`protocol`]) one at a time: map
//! these files, run this message, report what it did. It has no clock, no path and no data of a
//! canister other than that of the current message.
//!
//! [`keeper`] has the state between messages, [`mapping`] is one memory in the address space,
//! [`heap`] and [`stable`] are those of the running message, [`dirty`] the pages that it wrote,
//! [`watch`] how the kernel notes them.
//! [`run`] is one message in one instance, [`pacer`] how it waits at the end of a slice, on a
//! [`stack`] of its own, [`backtrace`] the functions that a trap was in.
//!
//! # Threat model
//!
//! Canister code is hostile and may escape the engine. It then controls a process with no network,
//! no file system, no way to make a process, no privileges, and descriptors of this shape: base
//! files and segments read-only, for each memory it ran an update of that memory's open segment for
//! writing, and for a message that was paused its file, which no other process reads. It shares two
//! rings with the pool and can write one of them, at any time. Two more descriptors, of its own
//! page map and of userfaultfd, show it which of its own pages were written. It can send false
//! reports about the canisters of its lane; the pool checks that reports are possible, but cannot
//! detect a plausible false one.

mod backtrace;
mod bits;
mod confine;
mod dirty;
mod heap;
mod keeper;
mod mapping;
mod pacer;
pub(crate) mod protocol;
mod run;
mod stable;
mod stack;
mod watch;

use std::{
    ffi::OsString,
    os::{fd::FromRawFd, unix::net::UnixStream},
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{Arc, Mutex},
};

pub(crate) use heap::{AccessRefusal, HeapCell, WriteRefusal};
pub(crate) use mapping::spilled_bytes;
pub(crate) use pacer::Pacer;
pub(crate) use stable::{Stable, StableRefusal};

use crate::{
    ipc::{Channel, IpcError},
    lock,
};
use keeper::Keeper;
use pacer::Wire;
pub use protocol::HeapFigures;
use protocol::{Order, Probe, Report};

/// Largest order a worker reads. The pool is trusted; this only keeps a mistake from taking the
/// memory.
const ORDER_BYTES_MAX: usize = 64 << 20;

/// Longest text of a failure that is reported.
const FAILURE_TEXT_BYTES: usize = 4 << 10;

/// The one argument of a worker that permits [`Order::Probe`]. The node never passes it.
pub(crate) const PROBES_ARGUMENT: &str = "--probes";

/// Entry point of `thimble sandbox-worker`. Standard input is the socket of the pool, which the
/// rings come over; the first argument is the process id of the pool.
pub fn worker_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    worker_main_with(args, |_| HeapFigures::default())
}

/// [`worker_main`] in a program that knows its allocator: `heap` reads it, after handing back what
/// is freed if asked to.
pub fn worker_main_with(
    args: impl IntoIterator<Item = OsString>,
    heap: impl Fn(bool) -> HeapFigures + Send + Sync + 'static,
) -> ExitCode {
    let mut args = args.into_iter();
    let Some(parent) = args.next().and_then(|id| id.to_str()?.parse().ok()) else {
        eprintln!(
            "sandbox-worker is started by the node itself, with the node's process id as its \
             argument"
        );
        return ExitCode::from(64);
    };
    let probes = args.any(|argument| argument == PROBES_ARGUMENT);
    // SAFETY: standard input is open, is the socket the pool passed, and nothing else in this
    // process uses it.
    let socket = unsafe { UnixStream::from_raw_fd(libc::STDIN_FILENO) };
    let channel = match Channel::accept(socket) {
        Ok(channel) => Arc::new(Mutex::new(channel)),
        Err(error) => return exit_code(&error),
    };
    match serve(&channel, parent, probes, Arc::new(heap)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Wire(error)) => exit_code(&error),
        Err(Stop::Failed(text)) => {
            let text = truncate_text(&text);
            // The pool may be gone; then there is no receiver.
            let _ = lock(&channel).send(&Report::Failed(text.to_owned()), &[]);
            ExitCode::from(70)
        }
    }
}

/// That of a worker whose wire failed: the pool may just have ended.
fn exit_code(error: &IpcError) -> ExitCode {
    match error {
        IpcError::Closed => ExitCode::SUCCESS,
        _ => ExitCode::from(74),
    }
}

/// Reads the allocator's figures, after handing back what is freed if asked to.
type Allocator = dyn Fn(bool) -> HeapFigures + Send + Sync;

/// Why a worker ends.
enum Stop {
    Wire(IpcError),
    Failed(String),
}

impl From<IpcError> for Stop {
    fn from(error: IpcError) -> Self {
        Self::Wire(error)
    }
}

fn serve(channel: &Wire, parent: u32, probes: bool, heap: Arc<Allocator>) -> Result<(), Stop> {
    // A panic is reported over the wire; standard error leads nowhere.
    std::panic::set_hook(Box::new(|_| {}));
    let watcher = confine::prepare(parent)
        .map_err(|error| Stop::Failed(format!("cannot prepare the worker: {error}")))?;
    let mut keeper = Keeper::new(Arc::clone(channel), Arc::clone(&heap), watcher)
        .map_err(|error| Stop::Failed(format!("cannot start the engine: {error}")))?;
    confine::confine()
        .map_err(|error| Stop::Failed(format!("cannot confine the worker: {error}")))?;
    lock(channel).send(&Report::Ready, &[])?;
    loop {
        let received = lock(channel).receive::<Order<'static>>(ORDER_BYTES_MAX);
        let (order, descriptors) = received?;
        let report = match order {
            Order::Execute(execute) => {
                let executed =
                    catch_unwind(AssertUnwindSafe(|| keeper.execute(*execute, descriptors)));
                executed.unwrap_or_else(|panic| Err(panic_text(&*panic))).map_err(Stop::Failed)?
            }
            Order::Spill | Order::Resume(_) => {
                return Err(Stop::Failed("no message is paused".into()));
            }
            Order::Forget(forget) => {
                keeper.forget(&forget).map_err(Stop::Failed)?;
                Report::Done
            }
            Order::Heap { trim } => Report::Heap(heap(trim)),
            Order::Probe(Probe::CountByFaults) if probes => {
                keeper.count_by_faults();
                Report::Done
            }
            Order::Probe(probe) if probes => attempt(probe),
            Order::Probe(_) => return Err(Stop::Failed("this worker takes no probes".into())),
        };
        lock(channel).send(&report, &[])?;
    }
}

fn attempt(probe: Probe) -> Report {
    match probe {
        Probe::Lie => Report::Outcome(Box::new(keeper::invalid_outcome())),
        Probe::Hang => loop {
            std::thread::park();
        },
        Probe::RefuseGrowth => {
            mapping::REFUSE_GROWTH.store(true, std::sync::atomic::Ordering::Relaxed);
            Report::Done
        }
        _ => {
            confine::attempt(probe);
            Report::Done
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the worker panicked: {}", text.unwrap_or("without a text"))
}

fn truncate_text(text: &str) -> &str {
    let end = text.floor_char_boundary(FAILURE_TEXT_BYTES);
    text.get(..end).unwrap_or_default()
}
