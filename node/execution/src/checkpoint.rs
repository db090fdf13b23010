//! Checkpoints: making the state durable between rounds, so that a restart need not repeat the
//! block log from its beginning (docs/internals/durability.md has the order of the writes). A
//! checkpoint that fails anywhere before its transaction is durable leaves the one before as it
//! was.
//!
//! When a checkpoint is taken has no influence on any state, only on how much is repeated after a
//! crash. Some heights must have one, because their state is given a manifest (see `sync`); which,
//! is part of the replicated state and does not move with checkpoints made for other reasons.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use limits::PagesLimits;
use pages::{PAGE_BYTES, PageStore};
use state::{
    CanisterState, CheckpointDelta, Height, ModuleHash, StoreError, encode_record,
    manifest::LEAF_BYTES,
};

use crate::config::FatalError;
use crate::executor::Executor;
use crate::retry::ExecutionPoint;
use crate::round::RoundWork;

const FOLD_STEP_BYTES: u64 = 4 << 20;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SinceCheckpoint {
    rounds: u64,
    delta_bytes: u64,
    instructions: u64,
    /// Messages that waited with records of their own when their round ended.
    messages: u64,
    message_bytes: u64,
}

impl SinceCheckpoint {
    /// The state was changed without a round.
    pub(crate) fn count_manual_change(&mut self) {
        self.rounds += 1;
    }

    pub(crate) fn add(&mut self, work: &RoundWork) {
        self.rounds += 1;
        self.delta_bytes += work.delta_bytes;
        self.instructions += work.execution_work;
        self.messages += work.came.count;
        self.message_bytes += work.came.bytes;
    }
}

/// Time between attempts to fold what readers of older states hold up.
const BLOCKED_RETRY: Duration = Duration::from_millis(500);

/// The thread that folds. One request at a time can wait; more would ask for the same.
pub(crate) struct Folder {
    request_tx: Option<SyncSender<()>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Folder {
    pub(crate) fn start(pages: Arc<PageStore>, limits: &PagesLimits) -> Result<Self, FatalError> {
        let (request_tx, request_rx) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let mut folding = Folding {
            pages,
            stopped: Arc::clone(&stop),
            pinned_delta_bytes: limits.pinned_delta_bytes,
            pin_time: Duration::from_secs(limits.pin_seconds),
            blocked_since: None,
        };
        let thread = std::thread::Builder::new()
            .name("fold".into())
            .spawn(move || {
                loop {
                    let request = match folding.blocked_since {
                        Some(_) => request_rx.recv_timeout(BLOCKED_RETRY),
                        None => request_rx.recv().map_err(RecvTimeoutError::from),
                    };
                    if request == Err(RecvTimeoutError::Disconnected) {
                        return;
                    }
                    folding.run();
                }
            })
            .map_err(|error| FatalError::Threads(error.to_string()))?;
        Ok(Self { request_tx: Some(request_tx), stop, thread: Some(thread) })
    }

    fn wake(&self) {
        if let Some(request_tx) = &self.request_tx {
            // Full: a request waits already.
            let _ = request_tx.try_send(());
        }
    }
}

struct Folding {
    pages: Arc<PageStore>,
    stopped: Arc<AtomicBool>,
    /// Delta log above which readers have no more than `pin_time`.
    pinned_delta_bytes: u64,
    pin_time: Duration,
    /// Since when readers of older states have been holding up some of it.
    blocked_since: Option<Instant>,
}

impl Folding {
    fn run(&mut self) {
        while !self.stopped.load(Ordering::Relaxed) {
            let readers_had_their_time =
                self.blocked_since.is_some_and(|since| since.elapsed() >= self.pin_time);
            let step =
                if readers_had_their_time && self.pages.delta_bytes() >= self.pinned_delta_bytes {
                    self.pages.fold_over_readers(FOLD_STEP_BYTES)
                } else {
                    self.pages.fold(FOLD_STEP_BYTES)
                };
            match step {
                Ok(progress) if progress.is_idle() => {
                    let blocked = progress.memories_blocked > 0;
                    self.blocked_since =
                        blocked.then(|| self.blocked_since.unwrap_or_else(Instant::now));
                    return;
                }
                Ok(_) => {}
                Err(error) => {
                    // Delta that could not be folded stays in the log and is retried after the next
                    // checkpoint.
                    tracing::warn!(%error, "folding delta into base files failed");
                    return;
                }
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.request_tx.take());
        if let Some(thread) = self.thread.take() {
            // A fold thread that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl Executor {
    /// Whether a checkpoint should be taken before the next batch.
    pub fn checkpoint_due(&self) -> bool {
        let (all, since) = (self.core.limits(), &self.since_checkpoint);
        // A checkpoint waits for the manifest that is computed, and rounds would with it.
        let (bytes, count) = if self.manifests.is_busy() {
            (all.late_checkpoint_message_bytes(), all.late_checkpoint_messages())
        } else {
            (all.checkpoint_message_bytes(), all.checkpoint_messages())
        };
        let limits = &all.pages;
        self.manifest_owed
            || since.rounds >= limits.checkpoint_interval_rounds
            || since.delta_bytes >= limits.checkpoint_delta_bytes
            || since.instructions >= limits.checkpoint_instructions
            || since.message_bytes >= bytes
            || since.messages >= count
            || self.core.pages.needs_checkpoint()
    }

    /// Whether the next batch has to wait for a checkpoint: without one its state could not be
    /// given a manifest, or its pages would find no room; or payloads of messages, of which those
    /// that the newest checkpoint refers to stay as long as it is the newest.
    pub fn checkpoint_pressing(&self) -> bool {
        let limits = self.core.limits();
        let most = if self.manifests.is_busy() {
            limits.late_checkpoint_message_bytes()
        } else {
            limits.pressing_message_bytes()
        };
        self.manifest_owed
            || self.core.pages.needs_checkpoint()
            || self.since_checkpoint.message_bytes > most
    }

    /// How often the next batch had to wait because the delta log was nearly full.
    pub fn relieved(&self) -> u64 {
        self.relieved
    }

    /// Makes the state after the last batch durable. Does nothing when it is already.
    ///
    /// # Errors
    /// When the disk fails; the checkpoint before is intact then.
    pub fn checkpoint(&mut self) -> Result<(), FatalError> {
        if self.since_checkpoint.rounds == 0 {
            // The checkpoint was made and something failed between it and this.
            return if self.manifest_owed { self.begin_manifest() } else { Ok(()) };
        }
        let written = self.write_checkpoint();
        if written.as_ref().is_err_and(FatalError::can_heal) {
            // No round may come before there is room, and rounds remove what is over.
            self.snapshots.give_up_older();
            self.core.payloads.sweep(usize::MAX);
        }
        written
    }

    fn write_checkpoint(&mut self) -> Result<(), FatalError> {
        if !self.manifest_owed
            && let Some(pending) = self.state.subnet.manifest.pending()
        {
            // The state it is of is the one in the store, and must stay it until every hash is
            // kept.
            self.manifests.wait(pending)?;
        }
        let pages = Arc::clone(&self.core.pages);
        let ticket = pages.begin_checkpoint()?;
        ticket.sync()?;
        self.core.blobs.sync()?;
        let payloads = Arc::clone(&self.core.payloads);
        payloads.sync()?;
        self.state.begin_saving();
        payloads.begin_saving(self.state.subnet.next_message);
        let metadata = encode_record("the subnet", &self.state.subnet).map_err(StoreError::from)?;
        let history = self.state.history.begin_checkpoint();
        let memories = ticket
            .changed
            .iter()
            .map(|(id, index, base_bytes)| (*id, index.clone().map(|index| (index, *base_bytes))))
            .collect();
        let written =
            ticket.written.iter().map(|(id, pages)| (*id, leaves_of_pages(pages))).collect();
        let changed: Vec<_> = ticket.changed.iter().map(|(id, ..)| *id).collect();
        // A record is encoded when its turn comes, so that no two are held at once.
        let canisters = self.state.unsaved().map(|(id, canister)| {
            let record =
                canister.map(|canister| encode_record(format_args!("canister {id}"), canister));
            Ok((id, record.transpose()?))
        });
        let message_bytes = Cell::new(0_u64);
        let messages = self.state.unsaved_messages().map(|(number, message)| {
            let record = message.map(|message| message.encode(number)).transpose()?;
            let bytes = record.as_ref().map_or(0, Vec::len) as u64;
            message_bytes.set(message_bytes.get().saturating_add(bytes));
            Ok((number, record))
        });
        self.store.write(CheckpointDelta {
            height: self.state.subnet.height,
            metadata,
            canisters: Box::new(canisters),
            messages: Box::new(messages),
            history: Box::new(history.iter()),
            memories,
            written,
        })?;
        let most = self.core.limits().leased_message_bytes();
        self.snapshots.wrote_messages(message_bytes.get(), most);
        self.state.history.finish_checkpoint(history);
        self.state.mark_saved();
        payloads.saved();
        // Before files are deleted, so that none has to be kept open for an idle canister.
        self.state.renew_layouts(changed, |memory| pages.layout(memory).ok());
        pages.finish_checkpoint(ticket);
        self.since_checkpoint = SinceCheckpoint::default();
        if self.manifest_owed {
            self.begin_manifest()?;
        }
        self.sweep_blobs()?;
        self.folder.wake();
        Ok(())
    }

    /// Deletes modules and chunks that no canister and no snapshot of one names any more.
    fn sweep_blobs(&mut self) -> Result<(), FatalError> {
        let snapshot_gone = self.snapshots.take_dropped();
        if !self.core.take_blobs_changed() && !snapshot_gone {
            return Ok(());
        }
        let state = &self.state;
        let named: BTreeSet<_> =
            state.with_blobs().flat_map(CanisterState::chunks_and_snapshots).collect();
        self.core.retain_prepared(|module| state.has_module(module));
        self.core.blobs.retain(|hash| {
            state.has_module(&ModuleHash(*hash))
                || named.contains(hash)
                || self.snapshots.has_blob(hash)
        })?;
        Ok(())
    }

    /// Sees to it that the delta log has room for the round of `height`, however long that takes: a
    /// round that has begun must not run out of it. A checkpoint seals what was written,
    /// folding copies it into place, and a checkpoint after that frees it. Readers of older states
    /// are cut off: they are queries, and must not hold up rounds. None of this changes any
    /// state.
    pub(crate) fn make_room(&mut self, height: Height) -> Result<(), FatalError> {
        if self.core.pages.check_room().is_ok() {
            return Ok(());
        }
        self.relieved += 1;
        let core = Arc::clone(&self.core);
        let mut attempts = core.attempts(ExecutionPoint { height, message: None });
        // If only the indexes are long, the memories that state sync reads block nothing.
        self.relieve_snapshots();
        loop {
            let tried = self.try_to_make_room();
            // There may be room although something failed, which is tried again later.
            let what = match (tried, core.pages.check_room()) {
                (Err(error), _) if !error.can_heal() => return Err(error),
                (_, Ok(())) => return Ok(()),
                (Err(error), _) => error.to_string(),
                (Ok(()), Err(error)) => error.to_string(),
            };
            attempts.wait(what)?;
            self.snapshots.give_up("the delta log is nearly full");
            // Files that queries might still read may be all that is left to delete.
            core.pages.give_up_readers();
        }
    }

    fn try_to_make_room(&mut self) -> Result<(), FatalError> {
        self.checkpoint()?;
        loop {
            let folded = self.fold_over_readers();
            // The same state once more: only the places of its pages changed. Also when folding
            // failed: its progress so far may release pages that others wait for, and disk space.
            self.write_checkpoint()?;
            if folded? == 0 || self.core.pages.check_room().is_ok() {
                return Ok(());
            }
        }
    }

    /// Folds as much as possible without another checkpoint. Returns the number of bytes.
    fn fold_over_readers(&self) -> Result<u64, FatalError> {
        let mut bytes = 0;
        loop {
            let step = self.core.pages.fold_over_readers(FOLD_STEP_BYTES)?;
            if step.is_idle() {
                return Ok(bytes);
            }
            bytes += step.copied_bytes;
        }
    }
}

/// Leaves that have at least one of these pages, which are in order.
fn leaves_of_pages(pages: &[Range<u64>]) -> Vec<Range<u32>> {
    let leaf = |page: u64| u32::try_from(page * PAGE_BYTES / LEAF_BYTES as u64).unwrap_or(u32::MAX);
    let mut leaves: Vec<Range<u32>> = Vec::new();
    for range in pages.iter().filter(|range| !range.is_empty()) {
        let (start, end) = (leaf(range.start), leaf(range.end - 1) + 1);
        match leaves.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => leaves.push(start..end),
        }
    }
    leaves
}
