//! Compilation as an event: one module, one short-lived child, its memory gone with it
//! (docs/internals/modules.md).
//!
//! The child is this binary again (`sandbox-compile`). All processing of untrusted bytes happens
//! there; the parent only moves descriptors and reads one bounded report.
//!
//! | descriptor of the child | what |
//! |---|---|
//! | 0 | the module as uploaded, a regular file without a name, with room for the heap behind it |
//! | 1 | the artefact, a regular file to be written |
//! | 2 | one report at the end, or what a crash prints |
//!
//! The job (limits) travels as one argument; nothing else is inherited.
//!
//! # Bounds
//!
//! The heap, which is in a file ([`heap`]), by `sandbox.compile_memory_bytes`; anonymous memory by
//! `sandbox.compile_anonymous_bytes`, six times that in address space (`RLIMIT_DATA`); time by
//! `sandbox.compile_seconds` of CPU (`RLIMIT_CPU`); the artefact by
//! `sandbox.compilation_cache_bytes` (`RLIMIT_FSIZE`). Hitting one of them ends the child and is a
//! fault of this machine, never a verdict on the module. See [`child`] for its confinement.
//!
//! This module must not know where artefacts live: the cache hands it open files.

mod child;
mod heap;
mod sandboxing;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use limits::{ModuleLimits, SandboxLimits};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use state::{ErrorCode, ModuleInfo, Reject, RejectCode};
use thiserror::Error;

pub use child::{compile_main, compile_probe_main};

use crate::{NotPrepared, lock};

/// Marks the beginning of a report on the child's standard error, where a crash prints text.
const REPORT_MAGIC: &[u8] = b"\0thimble-compile-report\0";

/// Most that is read of a report: metadata sections and method names, whose limits are far below.
const REPORT_BYTES_MAX: u64 = 16 << 20;

/// Characters of a crash's output that reach a log.
const CRASH_TEXT_MAX: usize = 500;

/// `IC0505`: the module is not valid.
const INVALID_WASM: ErrorCode = ErrorCode(505);

/// Input of the child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Job {
    module: ModuleLimits,
    caps: Caps,
    /// Where the module ends in its file.
    uploaded_bytes: u64,
}

/// Caller that waits for a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A round, which delays all clients.
    Round,
    /// One client: the child is ended when a round needs its place.
    Ahead,
}

/// Limits of one compilation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caps {
    /// The heap, named in errors.
    pub memory_bytes: u64,
    /// Room for it in its file.
    pub room_bytes: u64,
    /// Writable private memory: the program's own, and what the allocator keeps of the heap. Six
    /// times that in address space is the child's `RLIMIT_DATA`.
    pub anonymous_bytes: u64,
    /// CPU time in seconds, set as `RLIMIT_CPU` of the child.
    pub seconds: u64,
    /// Size of the artefact.
    pub artefact_bytes: u64,
}

impl Caps {
    /// As the node's limits say.
    pub fn new(limits: &SandboxLimits) -> Self {
        Self {
            memory_bytes: limits.compile_memory_bytes,
            room_bytes: limits.compile_room_bytes(),
            anonymous_bytes: limits.compile_anonymous_bytes,
            seconds: limits.compile_seconds,
            artefact_bytes: limits.compilation_cache_bytes,
        }
    }
}

type Report = Result<CompiledModule, Failure>;

/// Why the child has written no artefact.
#[derive(Debug, Serialize, Deserialize)]
enum Failure {
    /// The text says why the module is not valid.
    Refused(String),
    OutOfMemory,
    /// Something else than the module is at fault.
    Machine(String),
}

/// A compilation that went well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompiledModule {
    /// The results of validation.
    pub info: ModuleInfo,
    /// Size of the module after unpacking.
    pub wasm_bytes: u64,
    /// Size of the artefact.
    pub artefact_bytes: u64,
    /// CPU time it took.
    pub cpu_millis: u64,
    /// Most memory the child had resident, file pages included.
    pub resident_bytes_max: u64,
    /// Anonymous memory at its end, when it has as much as ever.
    pub anonymous_bytes: u64,
}

/// Why there is no artefact.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum CompileError {
    #[error("{0}")]
    Refused(String),
    #[error(
        "compiling a module took more memory than the limit `sandbox.compile_memory_bytes` of {0} \
         bytes, or more beside its heap than `sandbox.compile_anonymous_bytes`, though the module \
         is within `module.weight` and `module.function_weight`; raise the limits or lower those"
    )]
    OutOfMemory(u64),
    #[error(
        "the disk has no room for what compiling a module works in, at most {0} bytes (twice \
         `sandbox.compile_memory_bytes`); free some disk"
    )]
    NoDisk(u64),
    #[error(
        "compiling a module took longer than the limit `sandbox.compile_seconds` of {0} s of CPU \
         time; raise the limit or give the node a faster machine"
    )]
    OutOfTime(u64),
    #[error(
        "the compiled module is larger than the limit `sandbox.compilation_cache_bytes` of {0} \
         bytes; raise the limit"
    )]
    TooLarge(u64),
    #[error("the compiler failed on the module: {0}")]
    Crashed(String),
    /// Something from outside ended the child, as the kernel does when the machine's memory runs
    /// out.
    #[error(
        "the compiler process was killed from outside (signal {0}); the machine may be short of \
         memory, try again"
    )]
    Killed(i32),
    #[error("the compiler process could not be run: {0}")]
    Io(#[from] io::Error),
}

impl From<CompileError> for NotPrepared {
    /// A refusal is the module's, everything else is the machine's: whether a cap was hit depends
    /// on the machine, on what else it did, and on nothing that nodes agree on.
    fn from(error: CompileError) -> Self {
        match error {
            CompileError::Refused(_) => Self::Refused(Reject {
                code: RejectCode::CanisterError,
                message: format!("Canister's Wasm module is not valid: {error}"),
                error_code: INVALID_WASM,
            }),
            trouble => Self::Trouble(trouble.to_string()),
        }
    }
}

/// Starts compile children.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// The binary whose `arguments` lead to [`compile_main`].
    pub exe: PathBuf,
    /// Arguments before the job: the hidden subcommand.
    pub arguments: Vec<OsString>,
    /// Handed to the child.
    pub module: ModuleLimits,
    /// Handed to the child, and named in errors.
    pub caps: Caps,
    /// Children running now; clones share it.
    pub children: Children,
}

/// Compile children that run, for accounting their memory and for ending those that compile ahead
/// of rounds. As many as compilations at once.
#[derive(Clone, Debug, Default)]
pub struct Children(Arc<Mutex<Vec<RunningChild>>>);

#[derive(Debug)]
struct RunningChild {
    pid: u32,
    priority: Priority,
    /// Names the process as long as it is listed, also when its id is another's again.
    handle: Option<OwnedFd>,
}

impl Children {
    /// Process ids of the children that run now, in the order of their start.
    pub fn pids(&self) -> Vec<u32> {
        lock(&self.0).iter().map(|child| child.pid).collect()
    }

    /// Ends the children that compile ahead of rounds.
    pub fn end_ahead(&self) {
        for child in lock(&self.0).iter().filter(|child| child.priority == Priority::Ahead) {
            if let Some(handle) = &child.handle {
                // It may have ended by itself.
                let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
            }
        }
    }

    fn register(&self, pid: u32, priority: Priority) -> ChildRegistration<'_> {
        let handle = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        lock(&self.0).push(RunningChild { pid, priority, handle });
        ChildRegistration { children: self, pid }
    }
}

/// Takes the id off the list however the compilation ends.
struct ChildRegistration<'a> {
    children: &'a Children,
    pid: u32,
}

impl Drop for ChildRegistration<'_> {
    fn drop(&mut self) {
        lock(&self.children.0).retain(|child| child.pid != self.pid);
    }
}

impl Compiler {
    /// Compiles the module in `uploaded` into the empty file `artefact`. Blocks until the child is
    /// gone.
    pub fn compile(
        &self,
        uploaded: File,
        artefact: File,
        priority: Priority,
    ) -> Result<CompiledModule, CompileError> {
        let uploaded_bytes = uploaded.metadata()?.len();
        uploaded.set_len(heap::begin(uploaded_bytes).saturating_add(self.caps.room_bytes))?;
        let module = self.module.clone();
        let job = Job { module, caps: self.caps, uploaded_bytes };
        let mut child = Command::new(&self.exe)
            .args(&self.arguments)
            .arg(job.to_argument()?)
            .env_clear()
            .env(heap::SETTINGS.0, heap::SETTINGS.1)
            .stdin(Stdio::from(uploaded))
            .stdout(Stdio::from(artefact))
            .stderr(Stdio::piped())
            .spawn()?;
        let _registration = self.children.register(child.id(), priority);
        let output = read_report(&mut child);
        if output.is_err() {
            // The report's reader gave up; the child must not outlive the call. It may be gone
            // already.
            let _ = child.kill();
        }
        let status = child.wait()?;
        self.caps.interpret_exit(status, &output?)
    }
}

impl Caps {
    /// The result of a child under these limits, which ended with `status` and printed `output`.
    pub(crate) fn interpret_exit(
        &self,
        status: ExitStatus,
        output: &[u8],
    ) -> Result<CompiledModule, CompileError> {
        let report = output.strip_prefix(REPORT_MAGIC).map(postcard::from_bytes::<Report>);
        if let (true, Some(Ok(report))) = (status.success(), report) {
            return report.map_err(|failure| match failure {
                Failure::Refused(text) => CompileError::Refused(text),
                Failure::OutOfMemory => CompileError::OutOfMemory(self.memory_bytes),
                Failure::Machine(text) => CompileError::Io(io::Error::other(text)),
            });
        }
        let text = crash_text(output);
        // How Rust's library ends for an allocation that failed, and how the compiler does.
        let no_memory = text.contains("memory allocation of")
            || text.contains("out of memory")
            || text.contains("out-of-memory");
        match status.signal() {
            Some(libc::SIGXCPU) => Err(CompileError::OutOfTime(self.seconds)),
            // A page of the heap could not be had when it was written to.
            Some(libc::SIGBUS) => Err(CompileError::NoDisk(self.room_bytes)),
            Some(libc::SIGXFSZ) => Err(CompileError::TooLarge(self.artefact_bytes)),
            Some(signal @ (libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP)) => {
                Err(CompileError::Killed(signal))
            }
            _ if no_memory => Err(CompileError::OutOfMemory(self.memory_bytes)),
            _ => {
                tracing::warn!(%status, output = %text, "the compiler crashed");
                Err(CompileError::Crashed(format!("it crashed ({status})")))
            }
        }
    }
}

fn read_report(child: &mut Child) -> io::Result<Vec<u8>> {
    let mut output = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        stderr.take(REPORT_BYTES_MAX).read_to_end(&mut output)?;
    }
    Ok(output)
}

/// The readable part of what a crash printed.
fn crash_text(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    text.chars().filter(|char| !char.is_control()).take(CRASH_TEXT_MAX).collect()
}

impl Job {
    fn to_argument(&self) -> io::Result<OsString> {
        let bytes = postcard::to_stdvec(self).map_err(io::Error::other)?;
        Ok(hex::encode(bytes).into())
    }

    fn from_argument(argument: &str) -> Option<Self> {
        postcard::from_bytes(&hex::decode(argument).ok()?).ok()
    }
}

#[cfg(test)]
mod tests;
