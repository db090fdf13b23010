//! Output of workers and compile children, for fuzz targets: hostile code runs in both, so their
//! answers are untrusted input.
//!
//! Not part of the node's interface. Nothing here may panic, whatever the bytes, or use memory out
//! of proportion to them.

use std::{os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use crate::{
    Caps, CompileError, CompiledModule, Outcome, Request,
    ipc::{Channel, Cursor, Incoming, IpcError, Outgoing, RING_BYTES_MIN, Step},
    pool::verdict::{check, outcome_bytes_max},
    worker::protocol::Report,
};

/// Most bytes a frame here may have: what a ring takes without a reader.
pub const FRAME_BYTES_MAX: usize = 32 << 10;
/// Size of the rings here.
const RING_BYTES: usize = 2 * FRAME_BYTES_MAX;
/// Longest body that the pool allows in [`worker_ring`]: more than the rings there.
pub const RING_BODY_BYTES_MAX: usize = 4 * RING_BYTES_MIN;
/// Bytes of one operation of [`worker_ring`].
const OPERATION_BYTES: usize = 5;
/// Under this number a worker may keep the execution of a query.
pub const KEEP_AS: u64 = 7;
/// Mutable globals that a module may have.
const GLOBALS_MAX: usize = 30;

/// The outcome in a worker's answer to `request`, if the pool accepts it.
pub fn worker_frame(bytes: &[u8], request: &Request) -> Option<Outcome> {
    if bytes.len() > FRAME_BYTES_MAX {
        return None;
    }
    let (mut pool, mut worker) = Channel::pair(RING_BYTES).ok()?;
    let (own, peer) = worker.rings();
    own.write(0, bytes);
    own.publish(Cursor::Written, u32::try_from(bytes.len()).ok()?, peer);
    pool.set_timeout(Some(Duration::ZERO));
    let (report, _) = pool.receive::<Report>(outcome_bytes_max(request)).ok()?;
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

/// Result of the pool in [`worker_ring`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingRun {
    /// Frames that it received.
    pub received: usize,
    /// Frames that it sent.
    pub sent: usize,
    /// Most bytes that it held of one frame.
    pub held_bytes_max: usize,
    /// Whether it ended the connection.
    pub is_refused: bool,
}

/// A pool that receives and sends frames while a worker changes its own file, as operations of five
/// bytes each say: a number of the operation, and a little-endian 32-bit number. `None` if there
/// are no rings.
pub fn worker_ring(bytes: &[u8]) -> Option<RingRun> {
    let (mut pool, mut worker) = Channel::pair(RING_BYTES_MIN).ok()?;
    let (own, peer) = pool.rings();
    let (theirs, ours) = worker.rings();
    let frame = vec![7; 3 * RING_BYTES_MIN];
    let mut incoming = Incoming::new(own, Vec::new(), RING_BODY_BYTES_MAX);
    let mut outgoing = Outgoing::new(own, frame.clone(), 0).ok()?;
    let (mut written, mut taken) = (0_u32, 0_u32);
    let mut run = RingRun::default();
    for operation in bytes.chunks_exact(OPERATION_BYTES) {
        let number = [operation[1], operation[2], operation[3], operation[4]];
        let value = u32::from_le_bytes(number);
        let little = value % (2 * RING_BYTES_MIN as u32);
        let stepped: Result<(), IpcError> = match operation[0] % 8 {
            change @ (0 | 1) => {
                written = if change == 0 { value } else { written.wrapping_add(little) };
                theirs.publish(Cursor::Written, written, ours);
                Ok(())
            }
            change @ (2 | 3) => {
                taken = if change == 2 { value } else { taken.wrapping_add(little) };
                theirs.publish(Cursor::Taken, taken, ours);
                Ok(())
            }
            4 => {
                // The header of a body of this length, without descriptors.
                theirs.write(0, &[little.to_le_bytes(), [0; 4]].concat());
                Ok(())
            }
            5 => {
                theirs.write(little as usize, &number);
                Ok(())
            }
            6 => incoming.step(own, peer).map(|step| {
                if step == Step::Done {
                    let next = Incoming::new(own, Vec::new(), RING_BODY_BYTES_MAX);
                    let (body, _) = std::mem::replace(&mut incoming, next).finish();
                    run.received += 1;
                    run.held_bytes_max = run.held_bytes_max.max(body.capacity());
                }
            }),
            _ => match outgoing.step(own, peer) {
                Ok(Step::Done) => Outgoing::new(own, frame.clone(), 0).map(|next| {
                    outgoing = next;
                    run.sent += 1;
                }),
                stepped => stepped.map(|_| ()),
            },
        };
        if stepped.is_err() {
            run.is_refused = true;
            break;
        }
    }
    let (body, _) = incoming.finish();
    run.held_bytes_max = run.held_bytes_max.max(body.capacity());
    Some(run)
}

/// The node's interpretation of everything that a compile child printed before it ended with this
/// wait status.
pub fn compile_output(wait_status: i32, output: &[u8]) -> Result<CompiledModule, CompileError> {
    Caps::default().interpret_exit(ExitStatus::from_raw(wait_status), output)
}
