//! A request to stop early: the figures measured so far are reported all the same.
//!
//! Must never know: the stopped work.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use lifecycle::StopSignals;
use tokio::sync::watch;

/// See the module.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Setting the sender to true requests the stop.
    pub fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// A stop that is never asked for.
    pub fn never() -> Self {
        Self::new().1
    }

    /// Requested by the first signal to stop; `notice` is called before.
    ///
    /// # Errors
    ///
    /// The operating system refuses a handler for a signal.
    pub fn by_signal(notice: impl FnOnce() + Send + 'static) -> Result<Self> {
        let (stop_tx, stop) = Self::new();
        let mut signals = StopSignals::listen()?;
        tokio::spawn(async move {
            signals.next().await;
            notice();
            stop_tx.send_replace(true);
        });
        Ok(stop)
    }

    /// Whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until a stop is requested.
    pub async fn requested(&self) {
        if self.0.clone().wait_for(|requested| *requested).await.is_err() {
            // The sender is gone.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until a stop is requested, or for `seconds` if they are stated.
    pub async fn requested_within(&self, seconds: Option<u64>) {
        match seconds {
            Some(seconds) => {
                let time = Duration::from_secs(seconds);
                let _ = tokio::time::timeout(time, self.requested()).await;
            }
            None => self.requested().await,
        }
    }

    /// Waits for `work`; `None` when a stop was requested before it was done.
    pub async fn race<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.requested() => None,
            done = work => Some(done),
        }
    }
}

/// Runs `work`, which returns whether its result is good. The first Ctrl-C or SIGTERM asks it to
/// stop, the second ends it at once.
///
/// # Errors
///
/// Those of `work`.
pub async fn until_done(
    who: &str,
    work: impl AsyncFnOnce(Stop) -> Result<bool>,
) -> Result<ExitCode> {
    let mut signals = StopSignals::listen()?;
    let (stop_tx, stop) = Stop::new();
    let twice = async move {
        for words in
            ["stopping, with what was measured so far; once more ends it at once", "stopped"]
        {
            signals.next().await;
            eprintln!("{who}: {words}");
            stop_tx.send_replace(true);
        }
    };
    let good = tokio::select! {
        good = work(stop.clone()) => good?,
        () = twice => return Ok(crate::interrupted()),
    };
    Ok(match (stop.is_requested(), good) {
        (true, _) => crate::interrupted(),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    })
}
