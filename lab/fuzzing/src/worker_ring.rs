//! The file that a worker shares with the pool, changed by the worker between any two steps of the
//! pool: no input causes a panic, and the pool never holds more than the longest frame it allows.
//!
//! The input is a list of operations ([`sandbox::fuzz::worker_ring`]).

use sandbox::fuzz::{RING_BODY_BYTES_MAX, worker_ring};

pub(crate) fn test_one_input(bytes: &[u8]) {
    let run = worker_ring(bytes).expect("memory to share");
    assert!(run.held_bytes_max <= RING_BODY_BYTES_MAX, "{run:?}");
    // A worker that writes nothing has nothing received.
    assert!(run.received == 0 || bytes.len() >= 2 * 5, "{run:?}");
}
