//! Checkpoints: seal, sync, hand out the changed indexes, and afterwards delete what no durable
//! index names.
//!
//! A ticket may be dropped at any point, because a sync failed or the caller's transaction did.
//! Nothing is lost then: what it covered stays in [`Pending`] and is part of the next ticket.
//! Deletion happens only in [`PageStore::finish_checkpoint`], so a checkpoint that never became
//! durable has deleted nothing that the previous one names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    ops::Range,
    path::PathBuf,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    MemoryId, MemoryIndex, PagesError, Result, SegmentId,
    files::{self, Dir},
    memory::Memory,
    store::{PageStore, lock},
};

/// What the checkpoint that is under way, or was given up, covers.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Memories in the newest ticket whose index is not durable yet.
    changed: BTreeSet<MemoryId>,
    /// Files that the newest ticket syncs.
    files: Vec<SyncFile>,
    /// Files that the newest ticket's indexes do not name.
    doomed: Vec<Doomed>,
    /// Files of memories removed since that ticket was begun; the next one dooms them.
    doomed_next: Vec<Doomed>,
    /// Length of the base of each removed memory that a durable index may still name.
    removed: BTreeMap<MemoryId, u64>,
}

/// What tickets and the store tell each other.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Number of the newest ticket.
    generation: AtomicU64,
    /// A sync of delta failed.
    pub(crate) sync_lost: AtomicBool,
}

/// A file to make durable.
#[derive(Clone, Debug)]
struct SyncFile {
    path: PathBuf,
    /// Present for segments: held since the first write, so that an error of the kernel's own
    /// writeback is not missed.
    file: Option<Arc<File>>,
    /// Length it must have.
    len_bytes: u64,
}

/// A file to delete once no durable index names it.
#[derive(Debug)]
struct Doomed {
    path: PathBuf,
    /// Delta that goes with it; 0 for a base.
    delta_bytes: u64,
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

    /// A memory was taken out of the store.
    pub(crate) fn removed(&mut self, dir: &Dir, memory: &Memory, segments: Vec<(SegmentId, u64)>) {
        self.removed.insert(memory.id, memory.base_bytes);
        self.doomed_next.push(Doomed { path: dir.base_path(memory.id), delta_bytes: 0 });
        self.doomed_next.extend(doomed(dir, memory.id, segments));
    }
}

fn doomed(
    dir: &Dir,
    id: MemoryId,
    segments: Vec<(SegmentId, u64)>,
) -> impl Iterator<Item = Doomed> {
    segments.into_iter().map(move |(segment, delta_bytes)| Doomed {
        path: dir.segment_path(id, segment),
        delta_bytes,
    })
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
        pending.doomed.append(&mut pending.doomed_next);
        let mut changed = Vec::with_capacity(pending.changed.len());
        let mut written = Vec::new();
        for &id in &pending.changed {
            let Some(memory) = memories.get(&id) else {
                changed.push((id, None, pending.removed.get(&id).copied().unwrap_or_default()));
                continue;
            };
            let mut memory = lock(memory);
            if std::mem::take(&mut memory.base_unsynced) {
                pending.files.push(SyncFile {
                    path: self.dir.base_path(id),
                    file: None,
                    len_bytes: memory.base_bytes,
                });
            }
            if let Some((segment, file, len_bytes)) = memory.seal(&self.accounts, generation) {
                pending.files.push(SyncFile {
                    path: self.dir.segment_path(id, segment),
                    file: Some(file),
                    len_bytes,
                });
            }
            let pages = memory.written_pages();
            if !pages.is_empty() {
                written.push((id, pages));
            }
            let dead = memory.take_releasable();
            pending.doomed.extend(doomed(&self.dir, id, dead));
            changed.push((id, Some(memory.index()), memory.base_bytes));
        }
        let doomed: BTreeSet<&PathBuf> = pending.doomed.iter().map(|doomed| &doomed.path).collect();
        pending.files.retain(|file| !doomed.contains(&file.path));
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
    /// changes nothing. A file that cannot be deleted is tried again after the next checkpoint.
    pub fn finish_checkpoint(&self, ticket: CheckpointTicket) {
        let (changed, doomed) = {
            let mut pending = lock(&self.checkpoint);
            if ticket.is_stale() || !ticket.synced.load(Relaxed) {
                return;
            }
            pending.files.clear();
            (std::mem::take(&mut pending.changed), std::mem::take(&mut pending.doomed))
        };
        for doomed in doomed {
            if self.dir.unlink(&doomed.path).is_ok() {
                self.accounts.delta.fetch_sub(doomed.delta_bytes, Relaxed);
                self.accounts.releasable.fetch_sub(doomed.delta_bytes, Relaxed);
            } else {
                self.accounts.unlink_failures.fetch_add(1, Relaxed);
                lock(&self.checkpoint).doomed_next.push(doomed);
            }
        }
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
        self.files.iter().filter(|file| file.file.is_some()).map(|file| file.len_bytes).sum()
    }

    fn is_stale(&self) -> bool {
        self.progress.generation.load(Relaxed) != self.generation
    }

    fn sync_files(&self) -> Result<()> {
        for SyncFile { path, file, len_bytes } in &self.files {
            let Some(file) = file else { continue };
            let found_bytes = files::len(file, path)?;
            if found_bytes < *len_bytes {
                return Err(PagesError::ShortFile {
                    path: path.clone(),
                    expected_bytes: *len_bytes,
                    found_bytes,
                });
            }
            if found_bytes > *len_bytes {
                // Pages of messages that failed. They would be synced for nothing.
                self.dir
                    .on_disk(path, file)
                    .set_len(*len_bytes)
                    .map_err(|e| PagesError::io("truncate", path, e))?;
            }
            files::start_writeback(file);
        }
        for SyncFile { path, file, .. } in &self.files {
            // A new base holds no data, only its length and name: a fresh descriptor does.
            let sync = |file: &File| {
                self.dir.on_disk(path, file).sync_all().map_err(|e| PagesError::io("sync", path, e))
            };
            match file {
                Some(file) => sync(file)?,
                None => sync(&self.dir.open_read(path)?)?,
            }
        }
        self.dir.sync()
    }
}
