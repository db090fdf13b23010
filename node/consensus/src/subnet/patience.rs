//! The engine's storage waits for the disk: what cannot be done now, because there is no room or nothing more can be opened, is tried again in place.
//!
//! The engine's actors take a failed write for the end of the world and panic, and a node whose disk was full for a moment would have to be started again. A write says
//! where it goes, so it may be repeated. A failed sync is handed on: after it nobody knows what is on the disk, and the engine has to end.
//!
//! While it waits the driver is told, which refuses updates and says on `/health` what is the matter.

use std::{sync::Arc, time::Duration};

use commonware_runtime::{Clock, Error};
use commonware_utils::sync::Mutex;
use futures::{FutureExt as _, channel::mpsc, future::BoxFuture};

use super::{
    Input,
    runtime::{Attempt, Layer, Operation},
};

/// First wait before an operation is tried again, doubled each time.
const WAIT_FIRST: Duration = Duration::from_millis(20);
/// Longest wait.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct Patience<C> {
    clock: Arc<C>,
    /// To whom trouble is told. One sender for all files: each has a place of its own in the channel.
    driver: Arc<Mutex<mpsc::Sender<Input>>>,
}

impl<C> Patience<C> {
    pub(super) fn new(clock: C, driver: mpsc::Sender<Input>) -> Self {
        Self { clock: Arc::new(clock), driver: Arc::new(Mutex::new(driver)) }
    }
}

impl<C> Clone for Patience<C> {
    fn clone(&self) -> Self {
        Self { clock: self.clock.clone(), driver: self.driver.clone() }
    }
}

/// Whether the same operation may succeed later, having done nothing that must not be repeated.
fn may_heal(operation: Operation, error: &Error) -> bool {
    match operation {
        Operation::Open | Operation::Remove | Operation::Write | Operation::Resize => matches!(
            error,
            Error::WriteFailed
                | Error::PartitionCreationFailed(_)
                | Error::BlobOpenFailed(..)
                | Error::BlobResizeFailed(..)
                | Error::Io(_)
        ),
        // The folder cannot be opened.
        Operation::Scan => matches!(error, Error::ReadFailed | Error::Io(_)),
        Operation::Read | Operation::Sync => false,
    }
}

fn words(operation: Operation) -> &'static str {
    match operation {
        Operation::Open => "opening",
        Operation::Remove => "removing",
        Operation::Scan => "listing",
        Operation::Read => "reading",
        Operation::Write => "writing",
        Operation::Resize => "resizing",
        Operation::Sync => "syncing",
    }
}

impl<C: Clock> Layer for Patience<C> {
    fn storage<'a, T: Send + 'a>(
        &'a self,
        operation: Operation,
        mut attempt: Attempt<'a, T>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        let patiently = async move {
            let mut wait = WAIT_FIRST;
            loop {
                match attempt().await {
                    Err(error) if may_heal(operation, &error) => {
                        let what = words(operation);
                        if wait == WAIT_FIRST {
                            tracing::warn!(%error, what, "the engine's storage fails; it is tried until it works");
                        }
                        // When there is no room the driver has not yet seen what it was told before.
                        let _ = self.driver.lock().try_send(Input::Trouble(format!("{what}: {error}")));
                        self.clock.sleep(wait).await;
                        wait = (wait * 2).min(WAIT_MAX);
                    }
                    done => return done,
                }
            }
        };
        patiently.boxed()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use commonware_runtime::{
        Blob as _, Runner as _, Storage as _, Supervisor as _, WriteOptions, deterministic,
    };
    use futures::StreamExt as _;

    use super::*;
    use crate::subnet::runtime::Layered;

    /// What is done with a storage that fails, and how often it still fails.
    #[derive(Clone)]
    struct Failing(Arc<Mutex<(Operation, u32, Vec<Operation>)>>);

    impl Layer for Failing {
        fn storage<'a, T: Send + 'a>(
            &'a self,
            operation: Operation,
            mut attempt: Attempt<'a, T>,
        ) -> BoxFuture<'a, Result<T, Error>> {
            let fails = {
                let (failing, left, done) = &mut *self.0.lock();
                done.push(operation);
                let fails = *failing == operation && *left > 0;
                *left -= u32::from(fails);
                fails
            };
            let done = async move {
                // As it is with a folder that cannot be opened to be synced: something was done before.
                let done = attempt().await;
                match operation {
                    _ if !fails => done,
                    Operation::Scan => Err(Error::ReadFailed),
                    Operation::Write => Err(Error::WriteFailed),
                    _ => Err(std::io::Error::from_raw_os_error(24).into()),
                }
            };
            done.boxed()
        }
    }

    /// What comes of writing, listing and removing a file on a storage that fails `times` at `operation`; with how often the driver was told.
    fn with_failures(operation: Operation, times: u32) -> (Result<(), Error>, usize) {
        deterministic::Runner::default().start(|context| async move {
            let failing = Failing(Arc::new(Mutex::new((operation, times, Vec::new()))));
            let (driver, mut told) = mpsc::channel(1_000);
            let storage = Layered::new(context.child("machine"), failing.clone());
            let storage = Layered::new(storage, Patience::new(context, driver));
            let done: Result<(), Error> = async {
                let (blob, ..) = storage.open("votes", b"1").await?;
                blob.resize(10).await?;
                blob.write_at(0, b"0123456789".to_vec(), WriteOptions::default()).await?;
                blob.sync().await?;
                drop(blob);
                assert_eq!(storage.scan("votes").await?, [b"1".to_vec()]);
                storage.remove("votes", Some(b"1")).await?;
                assert!(storage.scan("votes").await?.is_empty());
                Ok(())
            }
            .await;
            drop(storage);
            let mut count = 0;
            while told.next().now_or_never().flatten().is_some() {
                count += 1;
            }
            (done, count)
        })
    }

    #[test]
    fn what_fails_for_a_while_is_waited_for_and_told() {
        for operation in
            [Operation::Open, Operation::Write, Operation::Resize, Operation::Remove, Operation::Scan]
        {
            let (done, told) = with_failures(operation, 12);
            assert!(done.is_ok() && told == 12, "{operation:?}: {done:?}, told {told} times");
        }
    }

    #[test]
    fn a_failed_sync_is_handed_on() {
        let (done, told) = with_failures(Operation::Sync, 1);
        assert!(matches!(done, Err(Error::Io(_))) && told == 0, "{done:?}");
    }
}
