//! The store of all memories: their existence, the changes since the last checkpoint, the amount of
//! delta.
//!
//! Locks, in the order they are taken: `memories` (shared for everything that touches one memory,
//! exclusive for creating, removing and beginning a checkpoint), then one memory's own lock, then
//! `changed`, `opened`, `checkpoint`, `fold_queue` or one of `shared`, which are leaves. (Beginning
//! a checkpoint takes memory locks last: under the exclusive lock no other thread can hold one.)
//! Only folding, one at a time (`folding`, before all others), takes the lock of another memory
//! while it holds one. No file is read, written or synced under the exclusive lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::File,
    ops::Bound::{Excluded, Included, Unbounded},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use limits::PagesLimits;

use crate::{
    AppendTarget, MemoryId, MemoryLayout, PAGE_BYTES, PagesError, Result, Run,
    checkpoint::{Pending, Progress},
    extents::SharedFiles,
    files::{self, Dir},
    memory::{self, Accounts, Memory},
    state_heap,
};

/// Segments that are closed at once when a round writes more memories than that, and memories that
/// are visited for them.
const CLOSED_AT_ONCE: usize = 64;
const LOOKED_AT: usize = 1024;

/// Files that are deleted between two rounds, of those that were read when their checkpoint ended.
const DELETED_AT_ONCE: usize = 64;

pub(crate) type Memories = BTreeMap<MemoryId, Mutex<Memory>>;

/// All canister memory of a node. Shared by reference between execution lanes, query threads, and
/// the threads that checkpoint and fold.
pub struct PageStore {
    // Configuration.
    pub(crate) limits: PagesLimits,
    /// Open segments from which on a checkpoint is called for, which closes them. A round that
    /// writes more memories closes those that it does not write.
    pub(crate) open_files_max: u64,
    // Files.
    pub(crate) dir: Arc<Dir>,
    pub(crate) shared: SharedFiles,
    // State.
    pub(crate) memories: RwLock<Memories>,
    /// Memories whose index differs from the last checkpoint begun; removed ones too.
    pub(crate) changed: Mutex<BTreeSet<MemoryId>>,
    pub(crate) checkpoint: Mutex<Pending>,
    /// Memories with sealed pages that a durable index names.
    pub(crate) fold_queue: Mutex<FoldQueue>,
    /// One creation at a time, so that its file is made outside the exclusive lock.
    pub(crate) creating: Mutex<()>,
    /// One fold at a time: two would copy the same pages.
    pub(crate) folding: Mutex<()>,
    /// A memory has more runs than `runs_per_memory` and a checkpoint would let them be folded, or
    /// segments had to be closed.
    pub(crate) crowded: AtomicBool,
    /// The next checkpoint deletes what it must without regard to readers.
    pub(crate) readers_given_up: AtomicBool,
    /// Memories with an open segment, whether its file is open or not.
    pub(crate) opened: Mutex<BTreeSet<MemoryId>>,
    /// The memory behind which segments are closed next, when too many are open.
    closed_last: Mutex<MemoryId>,
    pub(crate) progress: Arc<Progress>,
    // Figures.
    pub(crate) accounts: Accounts,
}

/// Memories to fold, visited round-robin so that one that is being read does not hold up the
/// others.
#[derive(Debug, Default)]
pub(crate) struct FoldQueue {
    pub(crate) ids: BTreeSet<MemoryId>,
    pub(crate) last: Option<MemoryId>,
}

/// Contents and totals of the store, for metrics. Totals count from [`PageStore::open`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagesStats {
    /// Number of memories, heaps and stable memories together.
    pub memories: u64,
    /// Delta: needed, overwritten, and waiting for deletion.
    pub delta_bytes: u64,
    /// Of those: written since the last checkpoint was begun.
    pub open_bytes: u64,
    /// Of those: freed by the next checkpoint.
    pub releasable_bytes: u64,
    /// Total committed by messages.
    pub committed_bytes: u64,
    /// Number of commits.
    pub commits: u64,
    /// Total copied to rid open segments of overwritten pages.
    pub rewritten_bytes: u64,
    /// Total copied into base files.
    pub folded_bytes: u64,
    /// Total copied from one base file to another, because another memory references it too.
    pub moved_bytes: u64,
    /// Versions whose readers were cut off because folding could not wait.
    pub cut_off: u64,
    /// Memories with pages to fold.
    pub fold_queue: u64,
    /// Checkpoints that became durable.
    pub checkpoints: u64,
    /// Files that could not be removed at the end of a checkpoint; tried again between rounds.
    pub unlink_failures: u64,
}

impl PageStore {
    pub(crate) fn assemble(
        limits: &PagesLimits,
        dir: Arc<Dir>,
        shared: SharedFiles,
        memories: Memories,
        fold_queue: BTreeSet<MemoryId>,
        accounts: Accounts,
    ) -> Self {
        debug_assert!(
            fold_queue.iter().all(|id| memories.contains_key(id)),
            "a memory that is to be folded does not exist"
        );
        Self {
            limits: limits.clone(),
            open_files_max: files::open_files_max(limits.open_files),
            dir,
            shared,
            memories: RwLock::new(memories),
            changed: Mutex::default(),
            checkpoint: Mutex::default(),
            fold_queue: Mutex::new(FoldQueue { ids: fold_queue, last: None }),
            creating: Mutex::default(),
            folding: Mutex::default(),
            crowded: AtomicBool::new(false),
            readers_given_up: AtomicBool::new(false),
            opened: Mutex::default(),
            closed_last: Mutex::new(MemoryId(0)),
            progress: Arc::default(),
            accounts,
        }
    }

    /// Creates a memory of zeros that may grow to `base_bytes` (a multiple of 4096), as a sparse
    /// file of that length. An id is used once: versions of a second memory of the same name would
    /// start anew, and a worker's cached mapping could not distinguish them.
    pub fn create(&self, id: MemoryId, base_bytes: u64) -> Result<MemoryLayout> {
        memory::check_base_bytes(base_bytes).ok_or(PagesError::BadSize { id, base_bytes })?;
        self.check_sync()?;
        let _one = lock(&self.creating);
        self.check_new(id)?;
        let path = self.dir.base_path(id);
        self.dir.create(&path, base_bytes)?;
        Ok(self.admit(Memory::new(id, base_bytes)))
    }

    /// Adds a memory whose files were made. One creation at a time.
    pub(crate) fn admit(&self, mut memory: Memory) -> MemoryLayout {
        let id = memory.id;
        memory.base_unsynced = true;
        let layout = memory.layout(&self.dir);
        let mut memories = self.memories.write().unwrap_or_else(PoisonError::into_inner);
        let before = state_heap::within(|| memories.insert(id, Mutex::new(memory)));
        assert!(before.is_none(), "memory {} was created twice", id.0);
        lock(&self.changed).insert(id);
        layout
    }

    /// Whether a memory of this name may be created.
    pub(crate) fn check_new(&self, id: MemoryId) -> Result<()> {
        let is_known = self.read().contains_key(&id) || lock(&self.checkpoint).awaits_removal(id);
        if is_known || self.shared.bears(id) {
            return Err(PagesError::MemoryExists(id));
        }
        Ok(())
    }

    /// Removes a memory. Layouts taken before stay readable; its files are deleted once a
    /// checkpoint without it is durable. Removing a memory that does not exist does nothing.
    pub fn remove(&self, id: MemoryId) {
        let mut memories = self.memories.write().unwrap_or_else(PoisonError::into_inner);
        let Some(memory) = memories.remove(&id) else { return };
        let mut memory = memory.into_inner().unwrap_or_else(PoisonError::into_inner);
        let released = memory.take_all(&self.accounts);
        lock(&self.checkpoint).removed(&memory, released);
        lock(&self.opened).remove(&id);
        lock(&self.changed).insert(id);
        lock(&self.fold_queue).ids.remove(&id);
    }

    /// The newest version. Builds the list of runs if it is not cached; see [`PageStore::append`]
    /// for how not to build it per message.
    pub fn layout(&self, id: MemoryId) -> Result<MemoryLayout> {
        self.with(id, |memory| Ok(memory.layout(&self.dir)))
    }

    /// Hands out the place for the dirty pages of the next message of this memory: at most
    /// `pages_max` pages. There is one target per memory at a time, and it is out as long as any
    /// clone of its `file` lives, because the holder of a clone could still write. Before dropping
    /// a target whose worker did not answer, make sure that the worker is dead.
    ///
    /// Never refused for lack of delta space: writers call [`PageStore::check_room`] first, between
    /// rounds.
    pub fn reserve(&self, id: MemoryId, pages_max: u64) -> Result<AppendTarget> {
        self.reserve_place(id, pages_max, false)
    }

    /// [`PageStore::reserve`] with a place for few pages that was written before and that no
    /// version needs any more, if there is one ([`AppendTarget::free`]). A message that fills it
    /// again adds nothing to the delta log.
    pub fn reserve_reusing(&self, id: MemoryId, pages_max: u64) -> Result<AppendTarget> {
        self.reserve_place(id, pages_max, true)
    }

    fn reserve_place(&self, id: MemoryId, pages_max: u64, reuses: bool) -> Result<AppendTarget> {
        self.check_sync()?;
        if self.accounts.open_files.load(Relaxed) >= self.open_files_max {
            self.close_some();
        }
        lock(&self.opened).insert(id);
        self.with(id, |memory| memory.reserve(&self.dir, &self.accounts, pages_max, reuses))
    }

    /// A file of `len` bytes without a name, all of them a hole: for pages that are no version of a
    /// memory yet. `id` is that of no memory. If the node ends before the file is unlinked, the
    /// next start removes it.
    pub fn scratch(&self, id: MemoryId, len: u64) -> Result<File> {
        let path = self.dir.base_path(id);
        let file = self.dir.create(&path, len)?;
        self.dir.unlink(&path)?;
        Ok(file)
    }

    /// [`PageStore::verify`] of a target whose file is a scratch, for a memory of `base_bytes`.
    pub fn verify_scratch(
        &self,
        base_bytes: u64,
        target: &AppendTarget,
        runs: &[Run],
    ) -> Result<()> {
        let path = self.dir.segment_path(target.id, target.segment);
        memory::verify_written(base_bytes, target, runs, &path).map(|_| ())
    }

    /// Copies pages of a scratch file to the beginning of `target`, in the order of `runs`. Returns
    /// their runs there.
    pub fn copy_pages(&self, target: &AppendTarget, from: &File, runs: &[Run]) -> Result<Vec<Run>> {
        let path = self.dir.segment_path(target.id, target.segment);
        memory::copy_pages(target, from, runs).map_err(|error| PagesError::io("copy", &path, error))
    }

    /// Has the next checkpoint delete files that layouts still name and that cannot be kept open
    /// for them; a read through such a layout then fails with [`PagesError::Gone`]. For use when
    /// there is no other way to make room and no reader is active that must not be disturbed.
    pub fn give_up_readers(&self) {
        self.readers_given_up.store(true, Relaxed);
    }

    /// Closes segments that are open and not being written, some at a time, one memory after the
    /// other. They are opened again when they are needed.
    fn close_some(&self) {
        let mut last = lock(&self.closed_last);
        let behind = |from| lock(&self.opened).range(from).take(LOOKED_AT).copied().collect();
        let mut ids: Vec<MemoryId> = behind((Excluded(*last), Unbounded));
        if ids.len() < LOOKED_AT {
            ids.extend(behind((Unbounded, Included(*last))));
        }
        self.crowded.store(true, Relaxed);
        let memories = self.read();
        let mut closed = 0;
        for id in ids {
            *last = id;
            // One that is locked is in use.
            if let Some(Ok(mut memory)) = memories.get(&id).map(Mutex::try_lock) {
                closed += usize::from(memory.close(&self.accounts));
            }
            if closed == CLOSED_AT_ONCE {
                break;
            }
        }
    }

    /// Whether the delta log has room for another round: the reserve, which covers all that a round
    /// may write, is free, and the indexes have at most as many entries as the log without the
    /// reserve has pages. Deletes some files that readers released since the last checkpoint.
    ///
    /// # Errors
    /// [`PagesError::DeltaFull`] when there is no room until a checkpoint, a fold, and a checkpoint
    /// after it.
    pub fn check_room(&self) -> Result<()> {
        self.delete_deferred(DELETED_AT_ONCE, false);
        let limit_bytes = self.delta_limit_bytes();
        // An index may be as long as that of a log full of single pages.
        let used_bytes = self.delta_bytes().max(self.runs() * PAGE_BYTES);
        if used_bytes >= limit_bytes {
            Err(PagesError::DeltaFull { limit_bytes, used_bytes })
        } else {
            Ok(())
        }
    }

    /// Whether `runs` could be committed to `target`: ordered by page, disjoint, within the memory,
    /// within the target, and not beyond the end of the file. `target` may also be the later
    /// part of one.
    pub fn verify(&self, target: &AppendTarget, runs: &[Run]) -> Result<()> {
        self.with(target.id, |memory| memory.verify(&self.dir, target, runs).map(|_| ()))
    }

    /// Makes the pages written to `target` the newest version and returns its layout. The runs are
    /// checked as by [`PageStore::verify`]. The target is spent and is to be dropped; its space
    /// that no run reaches is returned then. On an error nothing has changed, and the same can be
    /// tried again.
    pub fn commit(&self, target: &AppendTarget, runs: &[Run]) -> Result<MemoryLayout> {
        self.with(target.id, |memory| {
            let layout = memory.commit_layout(&self.dir, &self.accounts, target, runs)?;
            self.record_commit(memory);
            Ok(layout)
        })
    }

    /// [`PageStore::commit`] without the layout, which costs in the number of runs of the memory.
    /// For messages whose layout is not needed before the next one; returns the version.
    pub fn append(&self, target: &AppendTarget, runs: &[Run]) -> Result<u64> {
        self.with(target.id, |memory| {
            let version = memory.commit(&self.dir, &self.accounts, target, runs)?;
            self.record_commit(memory);
            Ok(version)
        })
    }

    fn record_commit(&self, memory: &Memory) {
        // A set insertion per commit is as cheap as asking whether it is needed.
        lock(&self.changed).insert(memory.id);
        if memory.runs_len() > self.limits.runs_per_memory && !memory.awaits_fold() {
            self.crowded.store(true, Relaxed);
        }
    }

    /// Delta in bytes on disk: needed, overwritten, and waiting for deletion. See
    /// [`PageStore::check_room`].
    pub fn delta_bytes(&self) -> u64 {
        self.accounts.delta.load(Relaxed)
    }

    /// Whether there is as much delta as there may be when a round begins.
    pub fn is_delta_full(&self) -> bool {
        self.delta_bytes() >= self.delta_limit_bytes()
    }

    fn delta_limit_bytes(&self) -> u64 {
        self.limits.delta_capacity_bytes.saturating_sub(self.limits.delta_reserve_bytes)
    }

    /// Entries of all indexes.
    pub(crate) fn runs(&self) -> u64 {
        self.accounts.runs.load(Relaxed)
    }

    /// Delta written since the last checkpoint was begun; compared by the caller with
    /// `checkpoint_delta_bytes`.
    pub fn open_delta_bytes(&self) -> u64 {
        self.accounts.open.load(Relaxed)
    }

    /// Bytes written to files since the store was opened: by messages, by rewriting, by folding.
    pub fn written_bytes(&self) -> u64 {
        let accounts = &self.accounts;
        accounts.committed.load(Relaxed)
            + accounts.rewritten.load(Relaxed)
            + accounts.folded.load(Relaxed)
            + accounts.moved.load(Relaxed)
    }

    /// Whether a checkpoint should be taken now: the delta is within `delta_reserve_bytes` of its
    /// capacity and a checkpoint would help (otherwise the space waits for [`PageStore::fold`]), a
    /// memory has more runs than `runs_per_memory`, too many files are open, or
    /// `checkpoint_delta_bytes` were copied for new memories ([`PageStore::create_copy`]; those
    /// that only reference the pages of others take nothing), of which those that were removed
    /// again are on disk until then.
    pub fn needs_checkpoint(&self) -> bool {
        let delta = self.delta_bytes();
        let near_full = delta >= self.delta_limit_bytes();
        // Delta that is sealed and needed is freed by folding alone. While that is pending, a
        // checkpoint per round would free nothing.
        let gain = self.open_delta_bytes() + self.accounts.releasable.load(Relaxed);
        let helps = gain > 0 && gain >= delta / 2;
        (near_full && helps)
            || self.crowded.load(Relaxed)
            || self.accounts.copied.load(Relaxed) >= self.limits.checkpoint_delta_bytes
            || self.accounts.open_files.load(Relaxed) >= self.open_files_max
    }

    /// Disk space that this process may still use on the file system of the page directory.
    pub fn disk_free_bytes(&self) -> Result<u64> {
        self.dir.free_bytes()
    }

    /// Whether free disk is below `disk_reserve_bytes`: new updates should then be refused, what
    /// was accepted still fits.
    pub fn is_disk_low(&self) -> Result<bool> {
        Ok(self.disk_free_bytes()? < self.limits.disk_reserve_bytes)
    }

    /// Figures for metrics.
    pub fn stats(&self) -> PagesStats {
        let accounts = &self.accounts;
        PagesStats {
            memories: self.read().len() as u64,
            delta_bytes: self.delta_bytes(),
            open_bytes: self.open_delta_bytes(),
            releasable_bytes: accounts.releasable.load(Relaxed),
            committed_bytes: accounts.committed.load(Relaxed),
            commits: accounts.commits.load(Relaxed),
            rewritten_bytes: accounts.rewritten.load(Relaxed),
            folded_bytes: accounts.folded.load(Relaxed),
            moved_bytes: accounts.moved.load(Relaxed),
            cut_off: accounts.cut_off.load(Relaxed),
            fold_queue: lock(&self.fold_queue).ids.len() as u64,
            checkpoints: accounts.checkpoints.load(Relaxed),
            unlink_failures: accounts.unlink_failures.load(Relaxed),
        }
    }

    /// The ids of all memories, ascending. After a restart, execution compares them with what its
    /// canisters name.
    pub fn ids(&self) -> Vec<MemoryId> {
        self.read().keys().copied().collect()
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Memories> {
        self.memories.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` on one memory, under its lock and with the store protected from checkpoints.
    pub(crate) fn with<T>(
        &self,
        id: MemoryId,
        f: impl FnOnce(&mut Memory) -> Result<T>,
    ) -> Result<T> {
        let memories = self.read();
        let memory = memories.get(&id).ok_or(PagesError::UnknownMemory(id))?;
        // The entry of a memory is kept as long as the memory exists.
        let _here = state_heap::enter();
        f(&mut lock(memory))
    }

    pub(crate) fn check_sync(&self) -> Result<()> {
        if self.progress.sync_lost.load(Relaxed) { Err(PagesError::SyncLost) } else { Ok(()) }
    }
}

impl fmt::Debug for PageStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageStore")
            .field("dir", &self.dir)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A lock whose holder panicked is taken all the same: each critical section of this crate changes
/// its data by steps that cannot fail.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
