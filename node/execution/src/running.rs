//! The message that each execution thread runs at the moment, for the node's watchdog.
//!
//! Written by the threads of a round, read by any thread. Nothing in a round depends on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sandbox::Entry;

use crate::retry::ExecutionPoint;

/// Characters of a method's name that are kept.
const NAME_CHARS_MAX: usize = 160;

/// A message that has begun and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningMessage {
    /// Height, canister, ordinal.
    pub point: ExecutionPoint,
    /// The method, callback or task; empty while the message is still being prepared.
    pub what: String,
    /// When this thread began it.
    pub since: Instant,
}

/// See the module. Clones share it.
#[derive(Clone, Debug)]
pub struct RunningMessages(Arc<[Mutex<Option<RunningMessage>>]>);

impl RunningMessages {
    /// No thread runs a message.
    pub fn new(threads: usize) -> Self {
        Self((0..threads.max(1)).map(|_| Mutex::default()).collect())
    }

    fn slot(&self, thread: usize) -> Option<MutexGuard<'_, Option<RunningMessage>>> {
        Some(self.0.get(thread)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn begin(&self, thread: usize, point: ExecutionPoint, what: &str) {
        if let Some(mut slot) = self.slot(thread) {
            *slot = Some(RunningMessage { point, what: shortened(what), since: Instant::now() });
        }
    }

    /// Names the message of `thread` once its entry point is known.
    pub(crate) fn name(&self, thread: usize, entry: &Entry) {
        let what = match entry {
            Entry::Update(name) => format!("method {}", shortened(name)),
            Entry::Callback { .. } => "a callback".to_owned(),
            Entry::Cleanup { .. } => "a cleanup callback".to_owned(),
            Entry::Heartbeat => "the heartbeat".to_owned(),
            Entry::GlobalTimer => "the global timer".to_owned(),
            Entry::OnLowWasmMemory => "the low-memory hook".to_owned(),
            _ => return,
        };
        if let Some(mut slot) = self.slot(thread)
            && let Some(message) = slot.as_mut()
        {
            message.what = what;
        }
    }

    pub(crate) fn end(&self, thread: usize) {
        if let Some(mut slot) = self.slot(thread) {
            *slot = None;
        }
    }

    /// The message that runs for the longest time; `None` while no thread runs one.
    pub fn longest(&self) -> Option<RunningMessage> {
        let threads = (0..self.0.len()).filter_map(|thread| self.slot(thread)?.clone());
        threads.min_by_key(|message| message.since)
    }
}

/// Text from a canister or client: bounded, and without control characters.
fn shortened(text: &str) -> String {
    text.chars().take(NAME_CHARS_MAX).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use state::{Fault, Height};

    use super::*;
    use crate::ExecutorConfig;

    fn point(ordinal: u64) -> ExecutionPoint {
        let message = Fault { canister_id: ExecutorConfig::canister_id(1), ordinal };
        ExecutionPoint { height: Height(3), message: Some(message) }
    }

    #[test]
    fn longest_running_message_is_named_until_it_ends() {
        let running = RunningMessages::new(2);
        assert_eq!(running.longest(), None);
        running.begin(0, point(0), "");
        running.begin(1, point(1), "install_code");
        running.name(0, &Entry::Update("transfer".into()));
        let longest = running.longest().unwrap();
        assert_eq!((longest.point, longest.what.as_str()), (point(0), "method transfer"));
        running.end(0);
        assert_eq!(running.longest().unwrap().what, "install_code");
        running.end(1);
        // A thread that has no slot is not an error.
        running.begin(7, point(2), "");
        assert_eq!(running.longest(), None);
    }

    #[test]
    fn method_names_are_bounded_and_escaped() {
        let running = RunningMessages::new(1);
        running.begin(0, point(0), "");
        running.name(0, &Entry::Update(format!("a\n{}", "b".repeat(1000))));
        let what = running.longest().unwrap().what;
        assert!(what.starts_with("method a\\nbb") && what.len() < 200, "{what}");
    }
}
