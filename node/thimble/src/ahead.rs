//! The thread that gets this node ready for calls that install code, while they are held back from
//! blocks: see `execution::CompileAhead`. One call at a time, in the order of their arrival.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result};
use consensus::{HELD_FOR, IngressPool, SystemClock, WallClock as _};
use envelope::{CallVerifier, may_install_code};
use execution::{Ahead, CompileAhead};

/// A call that is valid for less, in nanoseconds, might be in no block after it was held: its
/// compilation would be paid by nobody. Clients sign for a minute or more.
const MARGIN: u64 = HELD_FOR.as_nanos() as u64 + 10_000_000_000;

/// Starts the thread, which ends when the pool closes.
pub(crate) fn start(
    pool: Arc<IngressPool>,
    calls: CallVerifier,
    compile: CompileAhead,
) -> Result<()> {
    pool.hold_back(|signed| may_install_code(&signed.envelope));
    std::thread::Builder::new()
        .name("compile-ahead".into())
        .stack_size(1 << 20)
        .spawn(move || {
            while let Some(id) = pool.next_held() {
                let begin = Instant::now();
                // Asked for as often as it is needed: nobody holds it meanwhile but the pool.
                let waiting = || pool.waiting(&id).ok_or("a block holds the call already");
                let read = || {
                    let (signed, validity) = waiting()?;
                    if validity.until.0 < SystemClock.now().0.saturating_add(MARGIN) {
                        return Err("the call is valid for too short a time".to_owned());
                    }
                    calls.read(&signed).map_err(|error| error.to_string())
                };
                let bytes = waiting().map_or(0, |(signed, _)| signed.envelope.len() as u64);
                // A call that is never released would never be executed.
                let done = catch_unwind(AssertUnwindSafe(|| compile.compile(bytes, &read)))
                    .unwrap_or_else(|_| Ahead::Left("a defect of this node".to_owned()));
                let millis = begin.elapsed().as_millis() as u64;
                match done {
                    Ahead::Left(reason) => {
                        tracing::debug!(%reason, "not compiled before its round");
                    }
                    done => tracing::debug!(?done, millis, "ready for a call that installs code"),
                }
                pool.release(&id);
            }
        })
        .context("starting the thread that compiles ahead")?;
    Ok(())
}
