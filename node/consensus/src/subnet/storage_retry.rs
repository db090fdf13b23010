//! The engine's storage waits for the disk: the engine's actors panic on a failed write, so
//! operations that fail because there is no space, or no more files can be opened, are retried in
//! place. A failed sync is passed on: after it the content of the disk is unknown, and the engine
//! has to end. While an operation waits, updates are refused, and `/health` reports why.

use std::{sync::Arc, time::Duration};

use commonware_runtime::{Clock, Error};
use commonware_utils::sync::Mutex;
use futures::{FutureExt as _, future::BoxFuture};
use lifecycle::{Cause, Health};

use super::runtime::{Attempt, Layer, Operation};

/// First wait before an operation is tried again, doubled each time.
const WAIT_FIRST: Duration = Duration::from_millis(20);
/// The longest wait between two attempts.
const WAIT_MAX: Duration = Duration::from_secs(2);

pub(super) struct StorageRetry<C> {
    clock: Arc<C>,
    health: Health,
    waiting: Arc<Mutex<usize>>,
}

impl<C> StorageRetry<C> {
    pub(super) fn new(clock: C, health: Health) -> Self {
        Self { clock: Arc::new(clock), health, waiting: Arc::default() }
    }
}

impl<C> Clone for StorageRetry<C> {
    fn clone(&self) -> Self {
        Self {
            clock: self.clock.clone(),
            health: self.health.clone(),
            waiting: self.waiting.clone(),
        }
    }
}

/// An operation that waits, until it is dropped.
struct Waiting<'a, C>(&'a StorageRetry<C>);

impl<'a, C> Waiting<'a, C> {
    fn begin(retry: &'a StorageRetry<C>) -> Self {
        *retry.waiting.lock() += 1;
        Self(retry)
    }

    fn report(&self, reason: String) {
        // The reason cannot be withdrawn meanwhile.
        let _waiting = self.0.waiting.lock();
        self.0.health.refuse(Cause::Agreement, reason);
    }
}

impl<C> Drop for Waiting<'_, C> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        *waiting -= 1;
        if *waiting == 0 && self.0.health.withdraw(Cause::Agreement) {
            tracing::info!("votes and blocks are kept again");
        }
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

fn operation_verb(operation: Operation) -> &'static str {
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

impl<C: Clock> Layer for StorageRetry<C> {
    fn storage<'a, T: Send + 'a>(
        &'a self,
        operation: Operation,
        mut attempt: Attempt<'a, T>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        let patiently = async move {
            let mut wait = WAIT_FIRST;
            let mut waiting = None;
            loop {
                match attempt().await {
                    Err(error) if may_heal(operation, &error) => {
                        let reason = format!(
                            "the disk takes no votes and blocks now ({}: {error})",
                            operation_verb(operation)
                        );
                        if waiting.is_none() {
                            tracing::error!(%reason, "updates are refused until this is mended");
                        }
                        waiting.get_or_insert_with(|| Waiting::begin(self)).report(reason);
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
    use super::*;
    use crate::subnet::runtime::LayeredRuntime;
    use commonware_runtime::{
        Blob as _, Runner as _, Spawner as _, Storage as _, Supervisor as _, WriteOptions,
        deterministic,
    };

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
                // As it is with a folder that cannot be opened to be synced: something was done
                // before.
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

    /// Writes, lists and removes a file on a storage that fails `times` at `operation`. Returns the
    /// result, and the reasons reported meanwhile.
    fn with_failures(operation: Operation, times: u32) -> (Result<(), Error>, Vec<String>) {
        deterministic::Runner::default().start(|context| async move {
            let failing = Failing(Arc::new(Mutex::new((operation, times, Vec::new()))));
            let health = Health::new();
            let storage = LayeredRuntime::new(context.child("machine"), failing.clone());
            let storage = LayeredRuntime::new(
                storage,
                StorageRetry::new(context.child("storage_retry"), health.clone()),
            );
            let reasons = Arc::new(Mutex::new(Vec::new()));
            let listens = context.child("listens").spawn({
                let (reasons, health) = (reasons.clone(), health.clone());
                move |context| async move {
                    loop {
                        reasons.lock().extend(health.refusing());
                        context.sleep(Duration::from_millis(7)).await;
                    }
                }
            });
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
            assert_eq!(health.refusing(), None, "a reason that is over is withdrawn");
            listens.abort();
            let reasons = reasons.lock().clone();
            (done, reasons)
        })
    }

    // Promise: P7 - A temporary write failure of consensus is retried and reported.
    #[test]
    fn temporary_failure_is_retried_and_reported() {
        for (operation, word) in [
            (Operation::Open, "opening"),
            (Operation::Write, "writing"),
            (Operation::Resize, "resizing"),
            (Operation::Remove, "removing"),
            (Operation::Scan, "listing"),
        ] {
            let (done, reasons) = with_failures(operation, 12);
            assert!(done.is_ok(), "{operation:?}: {done:?}");
            assert!(
                reasons.len() > 100 && reasons.iter().all(|reason| reason.contains(word)),
                "{operation:?}: {reasons:?}"
            );
        }
    }

    // Promise: P7 - A failed sync of consensus is not retried and ends the node.
    #[test]
    fn failed_sync_is_not_retried() {
        let (done, reasons) = with_failures(Operation::Sync, 1);
        assert!(matches!(done, Err(Error::Io(_))) && reasons.is_empty(), "{done:?}");
    }
}
