//! Output of workers and compile children, for fuzz targets: hostile code runs in both, so their
//! answers are untrusted input.
//!
//! Not part of the node's interface. Nothing here may panic, whatever the bytes, or use memory out
//! of proportion to them.

use std::{
    io::Write,
    os::unix::{net::UnixStream, process::ExitStatusExt},
    process::ExitStatus,
};

use crate::{
    Caps, CompileError, CompiledModule, Outcome, Request,
    ipc::Channel,
    pool::verdict::{check, outcome_bytes_max},
    worker::protocol::Report,
};

/// Most bytes a frame here may have: what a socket takes without a reader.
pub const FRAME_BYTES_MAX: usize = 32 << 10;
/// Under this number a worker may keep the execution of a query.
pub const KEEP_AS: u64 = 7;
/// Mutable globals that a module may have.
const GLOBALS_MAX: usize = 30;

/// The outcome in a worker's answer to `request`, if the pool accepts it.
pub fn worker_frame(bytes: &[u8], request: &Request) -> Option<Outcome> {
    if bytes.len() > FRAME_BYTES_MAX {
        return None;
    }
    let (ours, mut theirs) = UnixStream::pair().ok()?;
    theirs.write_all(bytes).ok()?;
    drop(theirs);
    let (report, _) = Channel::new(ours).receive::<Report>(outcome_bytes_max(request)).ok()?;
    let Report::Outcome(outcome) = report else { return None };
    check(request, &outcome, GLOBALS_MAX, Some(KEEP_AS)).ok()?;
    Some(*outcome)
}

/// The frame in which an honest worker gives `outcome`; `None` if it does not encode.
pub fn outcome_frame(outcome: &Outcome) -> Option<Vec<u8>> {
    let body = postcard::to_stdvec(&Report::Outcome(Box::new(outcome.clone()))).ok()?;
    let length = u32::try_from(body.len()).ok()?;
    Some([&length.to_le_bytes()[..], &[0; 4], &body].concat())
}

/// The node's interpretation of everything that a compile child printed before it ended with this
/// wait status.
pub fn compile_output(wait_status: i32, output: &[u8]) -> Result<CompiledModule, CompileError> {
    Caps::default().interpret_exit(ExitStatus::from_raw(wait_status), output)
}
