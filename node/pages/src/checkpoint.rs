//! Checkpoints: seal, sync, hand out the changed indexes, and afterwards delete what no durable
//! index names.
//!
//! A ticket may be dropped at any point, because a sync failed or the caller's transaction did.
//! Nothing is lost then: what it covered stays in [`Pending`] and is part of the next ticket.
//! Deletion happens only in [`PageStore::finish_checkpoint`], so a checkpoint that never became
//! durable has deleted nothing that the previous one names.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    MemoryId, MemoryIndex, PagesError, Result,
    files::{self, Dir, Name},
    memory::{Memory, are_apart, subtract},
    pending::{PendingDelete, SyncFile},
    store::{PageStore, lock},
};

/// Files of [`Pending::early`] that are open.
const EARLY_OPEN_MAX: usize = 64;

/// Contents of the checkpoint that is in progress or was abandoned.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Memories in the newest ticket whose index is not durable yet.
    changed: BTreeSet<MemoryId>,
    /// Files that the newest ticket syncs.
    files: Vec<SyncFile>,
    /// Files that the newest ticket's indexes do not name.
    deletes: Vec<PendingDelete>,
    /// Files of memories removed since that ticket was begun; the next one deletes them.
    next_deletes: Vec<PendingDelete>,
    /// Files that the next ticket syncs, even if the memories that made them are removed: a copy
    /// references them.
    early: Vec<SyncFile>,
    /// Files that no durable index names and that could not be deleted: layouts name them, most
    /// likely those of the state that is published, and as many are open for layouts as may be.
    deferred: VecDeque<PendingDelete>,
    /// Length of the base of each removed memory that a durable index may still name.
    removed: BTreeMap<MemoryId, u64>,
}

/// Progress shared between tickets and the store.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Number of the newest ticket.
    generation: AtomicU64,
    /// A sync of delta failed.
    pub(crate) sync_lost: AtomicBool,
}

impl Progress {
    /// Number of the next ticket.
    pub(crate) fn next(&self) -> u64 {
        self.generation.load(Relaxed) + 1
    }
}

/// A checkpoint under way. Call [`CheckpointTicket::sync`] (on any thread), make
/// [`CheckpointTicket::changed`] durable, then [`PageStore::finish_checkpoint`]. Dropping it
/// instead gives the checkpoint up.
#[derive(Debug)]
pub struct CheckpointTicket {
    /// Every memory whose index changed since the last checkpoint that was finished, with its
    /// index and the length of its base; `None` for a memory that was removed.
    pub changed: Vec<(MemoryId, Option<MemoryIndex>, u64)>,
    /// Pages written since the last checkpoint that was finished, of every memory in `changed`
    /// that still exists: ordered, disjoint, not adjoining.
    pub written: Vec<(MemoryId, Vec<Range<u64>>)>,
    generation: u64,
    files: Vec<SyncFile>,
    dir: Arc<Dir>,
    synced: AtomicBool,
    progress: Arc<Progress>,
}

impl Pending {
    pub(crate) fn awaits_removal(&self, id: MemoryId) -> bool {
        self.removed.contains_key(&id)
    }

    /// Closes files of tickets that were given up, beyond `open_files`: such tickets may follow
    /// each other for as long as the disk is full.
    fn close_some(&mut self, open_files: u64) {
        let open = self.files.iter().filter(|file| file.file.is_some()).count() as u64;
        let mut excess = open.saturating_sub(open_files);
        for file in self.files.iter_mut().filter(|file| file.file.is_some()) {
            if excess == 0 {
                return;
            }
            file.close();
            excess -= 1;
        }
    }

    /// A memory was taken out of the store.
    pub(crate) fn removed(&mut self, memory: &Memory, released: Vec<PendingDelete>) {
        let before = self.removed.insert(memory.id, memory.base_bytes);
        debug_assert!(before.is_none(), "memory {} was removed twice", memory.id.0);
        self.next_deletes.extend(released);
    }

    /// Has the next ticket sync what a copy references.
    pub(crate) fn sync_early(&mut self, files: Vec<SyncFile>) {
        self.early.extend(files);
        let open = self.early.iter().filter(|file| file.file.is_some()).count();
        if let Some(last) = self.early.last_mut().filter(|_| open > EARLY_OPEN_MAX) {
            last.close();
        }
    }
}

impl PageStore {
    /// Seals what was written since the last checkpoint and hands out the indexes that changed. No
    /// append target with committed pages before it may be out ([`PagesError::Busy`]). Costs in
    /// what changed; no file is touched before [`CheckpointTicket::sync`].
    pub fn begin_checkpoint(&self) -> Result<CheckpointTicket> {
        self.check_sync()?;
        let memories = self.memories.write().unwrap_or_else(PoisonError::into_inner);
        let mut newly_changed = lock(&self.changed);
        if let Some(busy) = newly_changed
            .iter()
            .find(|id| memories.get(id).is_some_and(|memory| lock(memory).is_busy()))
        {
            return Err(PagesError::Busy(*busy));
        }
        let mut pending = lock(&self.checkpoint);
        let pending = &mut *pending;
        let generation = self.progress.generation.fetch_add(1, Relaxed) + 1;
        pending.changed.append(&mut newly_changed);
        pending.deletes.append(&mut pending.next_deletes);
        let mut files = std::mem::take(&mut pending.early);
        let mut changed = Vec::with_capacity(pending.changed.len());
        let mut written = Vec::new();
        for &id in &pending.changed {
            let Some(memory) = memories.get(&id) else {
                changed.push((id, None, pending.removed.get(&id).copied().unwrap_or_default()));
                continue;
            };
            let mut memory = lock(memory);
            files.extend(memory.take_unsynced_base(&self.accounts));
            files.extend(memory.seal(&self.accounts, generation));
            let pages = memory.written_pages();
            if !pages.is_empty() {
                debug_assert!(are_apart(&pages), "written pages of memory {}", id.0);
                written.push((id, pages));
            }
            pending.deletes.extend(memory.take_released());
            changed.push((id, Some(memory.index()), memory.base_bytes));
        }
        // Of memories that were to be written and were not, nothing stays open. The files are in no
        // index and in no layout.
        lock(&self.opened).retain(|id| {
            let Some(memory) = memories.get(id) else { return false };
            let mut memory = lock(memory);
            pending.deletes.extend(memory.take_empty(&self.accounts));
            memory.is_open()
        });
        subtract(&self.accounts.open, files.iter().filter_map(|file| file.segment_bytes).sum());
        pending.files.append(&mut files);
        let deleted_names: BTreeSet<Name> =
            pending.deletes.iter().filter_map(PendingDelete::last_name).collect();
        pending.files.retain(|file| !deleted_names.contains(&file.name));
        pending.close_some(self.open_files_max);
        self.crowded.store(false, Relaxed);
        Ok(CheckpointTicket {
            changed,
            written,
            generation,
            files: pending.files.clone(),
            dir: self.dir.clone(),
            synced: AtomicBool::new(false),
            progress: self.progress.clone(),
        })
    }

    /// The indexes of `ticket` are durable: deletes the files that they no longer name and queues
    /// the sealed segments for folding. A ticket that was not synced, or is not the newest,
    /// changes nothing. A file that cannot be deleted is tried again between rounds, see
    /// [`PageStore::check_room`].
    pub fn finish_checkpoint(&self, ticket: CheckpointTicket) {
        let (changed, deletes) = {
            let mut pending = lock(&self.checkpoint);
            if ticket.is_stale() || !ticket.synced.load(Relaxed) {
                return;
            }
            pending.files.clear();
            let deletes = std::mem::take(&mut pending.deletes);
            pending.deferred.extend(deletes);
            (std::mem::take(&mut pending.changed), pending.deferred.len())
        };
        let given_up = self.readers_given_up.swap(false, Relaxed);
        let failed = self.delete_deferred(deletes, given_up);
        self.accounts.unlink_failures.fetch_add(failed, Relaxed);
        let memories = self.read();
        for id in changed {
            match memories.get(&id) {
                Some(memory) => {
                    let mut memory = lock(memory);
                    if memory.made_durable(ticket.generation) {
                        lock(&self.fold_queue).ids.insert(id);
                    }
                }
                // Removed after this ticket was begun: its removal waits for the next one.
                None if lock(&self.changed).contains(&id) => {}
                None => {
                    lock(&self.checkpoint).removed.remove(&id);
                }
            }
        }
        self.accounts.checkpoints.fetch_add(1, Relaxed);
        self.accounts.copied.store(0, Relaxed);
    }
}

impl PageStore {
    /// Deletes up to `count` of the files whose deletion was deferred, or defers them again.
    /// Returns how many could not be deleted.
    pub(crate) fn delete_deferred(&self, count: usize, given_up: bool) -> u64 {
        let mut failed = 0;
        for _ in 0..count {
            let next = lock(&self.checkpoint).deferred.pop_front();
            let Some(mut pending) = next else { break };
            let deleted = pending.delete(&self.dir, &self.shared, given_up);
            if let Ok(Some(frees_delta)) = deleted {
                let bytes = pending.delta_bytes;
                subtract(&self.accounts.delta, if frees_delta { bytes } else { 0 });
                subtract(&self.accounts.releasable, bytes);
            } else {
                failed += u64::from(deleted.is_err());
                lock(&self.checkpoint).deferred.push_back(pending);
            }
        }
        failed
    }
}

impl CheckpointTicket {
    /// Makes every file that the changed indexes name durable, and then the names of the files.
    /// After a failure the store takes no more reservations and checkpoints
    /// ([`PagesError::SyncLost`]): the pages that could not be written may be gone.
    pub fn sync(&self) -> Result<()> {
        if self.progress.sync_lost.load(Relaxed) {
            return Err(PagesError::SyncLost);
        }
        if self.is_stale() {
            return Err(PagesError::StaleTicket);
        }
        self.sync_files().inspect_err(|e| {
            // A file that cannot be opened loses nothing. (One that is missing belonged to a memory
            // that a newer ticket deleted.)
            if !matches!(e, PagesError::TooManyOpenFiles { .. } | PagesError::MissingFile { .. }) {
                self.progress.sync_lost.store(true, Relaxed);
            }
        })?;
        self.synced.store(true, Relaxed);
        Ok(())
    }

    /// Bytes of files that [`CheckpointTicket::sync`] covers.
    pub fn sync_bytes(&self) -> u64 {
        self.files.iter().filter_map(|file| file.segment_bytes).sum()
    }

    fn is_stale(&self) -> bool {
        self.progress.generation.load(Relaxed) != self.generation
    }

    fn sync_files(&self) -> Result<()> {
        for to_sync in &self.files {
            let Some(len_bytes) = to_sync.segment_bytes else { continue };
            let path = &self.dir.path_of(to_sync.name);
            let file = to_sync.open(path, &self.dir)?;
            let found_bytes = files::len(&file, path)?;
            if found_bytes < len_bytes {
                return Err(PagesError::ShortFile {
                    path: path.clone(),
                    expected_bytes: len_bytes,
                    found_bytes,
                });
            }
            if found_bytes > len_bytes {
                // Pages of messages that failed. They would be synced for nothing.
                self.dir
                    .on_disk(path, &file)
                    .set_len(len_bytes)
                    .map_err(|e| PagesError::io("truncate", path, e))?;
            }
            files::start_writeback(&file);
        }
        for to_sync in &self.files {
            let path = &self.dir.path_of(to_sync.name);
            let file = to_sync.open(path, &self.dir)?;
            self.dir
                .on_disk(path, &file)
                .sync_all()
                .map_err(|e| PagesError::io("sync", path, e))?;
        }
        if self.files.iter().any(|file| file.was_closed) {
            self.dir.check_writeback()?;
        }
        self.dir.sync()
    }
}
