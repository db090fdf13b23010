//! The thread that gets this node ready for calls that install code, while they are held back from
//! blocks: see `execution::CompileAhead`. One call at a time, in the order of their arrival;
//! between calls, the modules whose artefacts are gone.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use consensus::{HELD_FOR, IngressPool, NextHeld, SystemClock, WallClock as _};
use envelope::{CallVerifier, Envelopes as _, may_install_code};
use execution::{Ahead, CompileAhead, ModulesAgain};
use state::IngressId;

/// Minimum remaining validity of a held call, in nanoseconds: with less it might be in no block
/// after it was held, and its compilation would not be paid for. Clients sign for a minute or more.
const MARGIN: u64 = HELD_FOR.as_nanos() as u64 + 10_000_000_000;

/// How long it waits for a call before it continues with modules that are compiled again.
const PATIENCE: Duration = Duration::from_millis(100);
/// The same when there is no other work.
const REST: Duration = Duration::from_secs(600);

/// Starts the thread, which ends when the pool closes. Between calls it compiles `modules`.
pub(crate) fn start(
    pool: Arc<IngressPool>,
    calls: CallVerifier,
    compile: CompileAhead,
    mut modules: ModulesAgain,
) -> Result<()> {
    pool.hold_back(|signed| may_install_code(&signed.envelope));
    std::thread::Builder::new()
        .name("compile-ahead".into())
        .stack_size(1 << 20)
        .spawn(move || {
            loop {
                match pool.next_held(if modules.is_empty() { REST } else { PATIENCE }) {
                    NextHeld::Call(id) => {
                        get_ready(&pool, &calls, &compile, &id);
                        pool.release(&id);
                    }
                    NextHeld::None => {
                        let next = AssertUnwindSafe(|| compile.compile_again(&mut modules));
                        if catch_unwind(next).is_err() {
                            modules = ModulesAgain::default();
                        }
                    }
                    NextHeld::Closing => return,
                }
            }
        })
        .context("starting the thread that compiles ahead")?;
    Ok(())
}

/// Compiles what the call installs. Whatever comes of it, the call must be released: one that is
/// not would never be executed.
fn get_ready(pool: &IngressPool, calls: &CallVerifier, compile: &CompileAhead, id: &IngressId) {
    let begin = Instant::now();
    // Requested as often as it is needed: only the pool holds it meanwhile.
    let waiting = || pool.waiting(id).ok_or("a block holds the call already");
    let read = || {
        let (signed, validity) = waiting()?;
        if validity.until.0 < SystemClock.now().0.saturating_add(MARGIN) {
            return Err("the call is valid for too short a time".to_owned());
        }
        calls.read(&signed)
    };
    let bytes = waiting().map_or(0, |(signed, _)| signed.envelope.len() as u64);
    let done = catch_unwind(AssertUnwindSafe(|| compile.compile(bytes, &read)))
        .unwrap_or_else(|_| Ahead::Left("a defect of this node".to_owned()));
    let millis = begin.elapsed().as_millis() as u64;
    match done {
        Ahead::Left(reason) => tracing::debug!(%reason, "not compiled before its round"),
        done => tracing::debug!(?done, millis, "ready for a call that installs code"),
    }
}
