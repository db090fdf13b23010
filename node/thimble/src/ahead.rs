//! The thread that gets this node ready for calls that install code, while they are held back from
//! blocks: see `execution::CompileAhead`. One call at a time, in the order of their arrival.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result};
use consensus::IngressPool;
use envelope::{CallVerifier, may_install_code};
use execution::{Ahead, CompileAhead};

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
            while let Some((id, signed)) = pool.next_held() {
                let begin = Instant::now();
                let read = || calls.read(&signed).map_err(|error| error.to_string());
                let bytes = signed.envelope.len() as u64;
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
