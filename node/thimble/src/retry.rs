//! How the node waits when its own machine fails a round (see `execution::RetryPolicy`): updates
//! are refused with the reason, which `/health` shows too, and the step is tried again after a wait
//! that grows to five seconds and ends at once when the node closes.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use consensus::IngressPool;
use execution::{Closing, LocalFault, RetryPolicy};
use lifecycle::{Cause, Reason};
use rounds::{DiskProbe, Volume};

/// Wait after the first attempt that failed; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A disk with less is full: a page of canister memory and what a file system keeps for itself.
const FULL_BYTES: u64 = 1 << 20;

pub(crate) struct NodeRetryPolicy {
    pool: Arc<IngressPool>,
    disk: Box<dyn DiskProbe + Sync>,
    /// Steps that wait now: at most one per thread that executes.
    waiting: Mutex<Vec<LocalFault>>,
}

impl NodeRetryPolicy {
    pub(crate) fn new(pool: Arc<IngressPool>, data_dir: &Path) -> Self {
        Self::with_disk(pool, Box::new(Volume(data_dir.to_owned())))
    }

    fn with_disk(pool: Arc<IngressPool>, disk: Box<dyn DiskProbe + Sync>) -> Self {
        Self { pool, disk, waiting: Mutex::default() }
    }

    /// Bytes free on the node's disk, if those are next to none. Canister memory is mapped: where
    /// there is no room for a page, its worker is killed.
    fn full_disk(&self) -> Option<u64> {
        self.disk.free_bytes().ok().filter(|free| *free < FULL_BYTES)
    }

    /// What the round waits for; for the operator with the folder, and with the command that
    /// rejects the message where one may be needed.
    fn reason(&self, trouble: &LocalFault) -> Reason {
        if let Some(free) = self.full_disk() {
            let full = format!("is full ({free} bytes are free): {trouble}");
            return Reason {
                text: format!("a round waits: the disk of {} {full}", self.disk),
                client_text: format!("a round waits: the disk {full}"),
            };
        }
        let client_text = format!("a round waits: {trouble}");
        let text = match trouble.awaits_verdict() {
            Some(message) => format!(
                "{client_text}; if the message does this every time, on every node, have it \
                 rejected: thimble reject --data-dir {} {message}, then start the node again",
                self.disk
            ),
            None => client_text.clone(),
        };
        Reason { text, client_text }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<LocalFault>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wait before attempt number `failed + 1`.
fn wait_after(failed: u32) -> Duration {
    let doubled = 2u32.saturating_pow(failed.saturating_sub(1));
    FIRST_WAIT.saturating_mul(doubled).min(LONGEST_WAIT)
}

impl RetryPolicy for NodeRetryPolicy {
    fn wait(&self, trouble: &LocalFault) -> Result<(), Closing> {
        {
            let mut waiting = self.waiting();
            let known = waiting.iter_mut().find(|known| known.place == trouble.place);
            let reason = self.reason(trouble);
            if known.as_ref().is_none_or(|known| self.reason(known) != reason) {
                tracing::error!(reason = reason.text, "updates are refused until this is mended");
            }
            match known {
                Some(known) => *known = trouble.clone(),
                None => waiting.push(trouble.clone()),
            }
            self.pool.health().refuse_with(Cause::Round, reason);
        }
        if self.pool.stop().wait(wait_after(trouble.attempt)) { Err(Closing) } else { Ok(()) }
    }

    fn resolved(&self, trouble: &LocalFault) {
        let mut waiting = self.waiting();
        waiting.retain(|known| known.place != trouble.place);
        if self.pool.closing() {
            return;
        }
        match waiting.first() {
            Some(other) => {
                self.pool.health().refuse_with(Cause::Round, self.reason(other));
            }
            None => {
                tracing::info!(%trouble, attempts = trouble.attempt, "the fault is over: the round continues, updates are accepted again");
                self.pool.health().withdraw(Cause::Round);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use execution::{ATTEMPTS_BEFORE_VERDICT, ExecutionPoint, ExecutorConfig};
    use limits::Limits;
    use state::{Fault, Height};

    use super::*;

    fn retry() -> (Arc<IngressPool>, NodeRetryPolicy) {
        let limits = Limits::nano().unwrap();
        let pool = Arc::new(IngressPool::new(&limits.consensus));
        (pool.clone(), NodeRetryPolicy::new(pool, Path::new("/data")))
    }

    fn trouble(canister: u64, attempt: u32) -> LocalFault {
        let message =
            Fault { canister_id: ExecutorConfig::canister_id(canister), ordinal: canister };
        LocalFault {
            place: ExecutionPoint { height: Height(7), message: Some(message) },
            what: format!("disk of {canister} is full"),
            attempt,
            runs_message: false,
        }
    }

    // Promise: P7 - Retries of a round wait at most 5 s.
    #[test]
    fn waits_double_up_to_five_seconds() {
        let waits: Vec<_> = (1..=10).map(|failed| wait_after(failed).as_millis()).collect();
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000]);
        assert_eq!(wait_after(u32::MAX), LONGEST_WAIT);
    }

    #[test]
    fn updates_are_refused_with_the_reason_until_every_step_is_over() {
        let (pool, retry) = retry();
        let (first, second) = (trouble(1, 1), trouble(2, 1));
        retry.wait(&first).unwrap();
        retry.wait(&second).unwrap();
        assert!(pool.refusing().unwrap().contains("disk of 2 is full"), "{:?}", pool.refusing());
        retry.resolved(&second);
        let reason = pool.refusing().unwrap();
        assert!(reason.contains("height 7") && reason.contains("disk of 1 is full"), "{reason}");
        retry.resolved(&first);
        assert_eq!(pool.refusing(), None);
    }

    // Promise: P7 - Repeated failures of one message log the command that rejects it.
    #[test]
    fn a_message_that_fails_again_and_again_brings_the_command_through() {
        let (pool, retry) = retry();
        let killer = |attempt| LocalFault { runs_message: true, ..trouble(1, attempt) };
        retry.wait(&killer(ATTEMPTS_BEFORE_VERDICT - 1)).unwrap();
        assert!(!pool.refusing().unwrap().contains("thimble reject"));
        retry.wait(&killer(ATTEMPTS_BEFORE_VERDICT)).unwrap();
        let reason = pool.refusing().unwrap();
        let canister = ExecutorConfig::canister_id(1);
        assert!(
            reason.contains(&format!("thimble reject --data-dir /data 7 {canister} 1")),
            "{reason}"
        );
        let client_text = pool.health().reason().unwrap().client_text;
        assert!(client_text.contains("height 7") && client_text.contains(&canister.to_text()));
        assert!(!client_text.contains("/data") && !client_text.contains("thimble reject"));
        retry.resolved(&killer(ATTEMPTS_BEFORE_VERDICT));
        assert_eq!(pool.refusing(), None);
    }

    /// A disk with this number of free bytes.
    struct FixedFreeSpace(u64);

    impl std::fmt::Display for FixedFreeSpace {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("/data")
        }
    }

    impl DiskProbe for FixedFreeSpace {
        fn free_bytes(&self) -> std::io::Result<u64> {
            Ok(self.0)
        }

        fn write(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    // Promise: P7 - A full disk does not blame a message.
    #[test]
    fn where_the_disk_is_full_no_message_is_blamed() {
        let killer = LocalFault { runs_message: true, ..trouble(1, ATTEMPTS_BEFORE_VERDICT) };
        for (free, blamed) in [(0, false), (FULL_BYTES - 1, false), (FULL_BYTES, true)] {
            let pool = retry().0;
            NodeRetryPolicy::with_disk(pool.clone(), Box::new(FixedFreeSpace(free)))
                .wait(&killer)
                .unwrap();
            let reason = pool.refusing().unwrap();
            assert!(!pool.health().reason().unwrap().client_text.contains("/data"));
            assert_eq!(reason.contains("thimble reject"), blamed, "{free}: {reason}");
            assert_eq!(reason.contains("the disk of /data is full"), !blamed, "{free}: {reason}");
        }
    }

    #[test]
    fn closing_ends_the_longest_wait() {
        let (pool, retry) = retry();
        let closer = std::thread::spawn({
            let pool = pool.clone();
            move || pool.close()
        });
        // Attempt after attempt: whichever wait the node closes in is the last.
        let mut attempt = 1;
        while retry.wait(&trouble(1, attempt)).is_ok() {
            attempt += 1;
        }
        closer.join().unwrap();
        assert_eq!(retry.wait(&trouble(1, u32::MAX)), Err(Closing));
        retry.resolved(&trouble(1, attempt));
        assert!(pool.refusing().is_some(), "a closing node takes no updates");
    }
}
