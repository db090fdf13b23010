//! Folding: copying sealed delta pages into base files, in bounded steps, and before that, where
//! other memories reference the same pages, moving these. See the crate's documentation for why
//! that is safe.

use std::{
    collections::BTreeSet,
    fs::File,
    ops::Bound::{Excluded, Unbounded},
    path::PathBuf,
    slice,
    sync::atomic::Ordering::Relaxed,
};

use crate::{
    MemoryId, PAGE_BYTES, PagesError, Result, Run,
    copy::{Copier, Source},
    files::{self, Dir, Name, NamedFile},
    fold_plan::{FoldContext, FoldPlan, FoldSource, FoldWork, Readers},
    memory::Memory,
    sharing::Move,
    state_heap,
    store::{FoldQueue, PageStore, lock},
};

/// Base files that one step writes, most often one for each memory: they are open together, so that
/// one journal commit of the file system serves them all.
const FILES_PER_STEP: usize = 32;

/// Result of one folding step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoldProgress {
    /// Copied into base files by this step.
    pub copied_bytes: u64,
    /// Bytes of pages that others reference too: copied to another base file by this step, so that
    /// those can be written.
    pub moved_bytes: u64,
    /// Memories that still have pages to fold, blocked ones included.
    pub memories_left: u64,
    /// Of those: encountered in this step and skipped because an older version is being read, or
    /// because a checkpoint will release what they share.
    pub memories_blocked: u64,
}

impl FoldProgress {
    /// No work is left until the next checkpoint or until readers release their layouts.
    pub fn is_idle(&self) -> bool {
        self.copied_bytes == 0
    }
}

/// Pages copied into base files that are not synced yet.
struct UnsyncedFold {
    id: MemoryId,
    bases: Vec<OpenBase>,
    plan: FoldPlan,
    moved_bytes: u64,
}

/// A base file that was written to.
struct OpenBase {
    name: Name,
    path: PathBuf,
    file: File,
}

impl OpenBase {
    /// The file of this name among those that are open, opened if it is not.
    fn find_or_open<'a>(open: &'a mut Vec<Self>, dir: &Dir, name: Name) -> Result<&'a Self> {
        let at = match open.iter().position(|file| file.name == name) {
            Some(at) => at,
            None => {
                let path = dir.path_of(name);
                let file = dir.open_write(&path)?;
                open.push(Self { name, path, file });
                open.len() - 1
            }
        };
        open.get(at).ok_or_else(|| PagesError::MissingFile { path: dir.path_of(name) })
    }
}

impl PageStore {
    /// Copies up to `budget_bytes` (at least one page) of sealed and durable delta into base files,
    /// syncs these, and takes the runs out of the index. Memories of which an older version is
    /// being read are skipped. Runs concurrently with executions and checkpoints; a second caller
    /// waits for the first.
    ///
    /// On an error, what this step copied for other memories counts; the failed memory is unchanged
    /// and stays queued.
    pub fn fold(&self, budget_bytes: u64) -> Result<FoldProgress> {
        self.step(budget_bytes, Readers::Respected)
    }

    /// [`PageStore::fold`] without waiting for readers: layouts of older versions are cut off
    /// ([`crate::MemoryLayout::is_cut_off`]), except held ones ([`crate::HeldLayout`]), whose
    /// memories are skipped. References that only a checkpoint releases still block the fold: where
    /// pages are shared, a checkpoint and another fold are needed.
    pub fn fold_over_readers(&self, budget_bytes: u64) -> Result<FoldProgress> {
        self.step(budget_bytes, Readers::CutOff)
    }

    fn step(&self, budget_bytes: u64, readers: Readers) -> Result<FoldProgress> {
        let _one = lock(&self.folding);
        let mut pages_left = (budget_bytes / PAGE_BYTES).max(1);
        let mut progress = FoldProgress::default();
        let mut copied = Vec::new();
        let mut buf = Vec::new();
        let mut result = Ok(());
        let visits_max = lock(&self.fold_queue).ids.len();
        // Files that other memories than those of this step may reference.
        let mut taken = BTreeSet::new();
        for _ in 0..visits_max {
            let open: usize = copied.iter().map(|part: &UnsyncedFold| part.bases.len()).sum();
            if pages_left == 0 || open >= FILES_PER_STEP {
                break;
            }
            let (before, next) = lock(&self.fold_queue).next();
            let Some(id) = next else { break };
            let is_planned = copied.iter().any(|part| part.id == id);
            let work = if is_planned {
                // Other memories left the queue meanwhile. The work planned for this one is not
                // done yet.
                Ok(FoldWork::Later)
            } else {
                self.plan(id, pages_left, readers, &mut taken)
            };
            match work {
                Ok(FoldWork::None) => self.leave_fold_queue(id),
                Ok(FoldWork::Blocked) => progress.memories_blocked += 1,
                Ok(FoldWork::Later) => {
                    lock(&self.fold_queue).last = before;
                    break;
                }
                Ok(FoldWork::Plan(plan)) => {
                    buf.resize(files::COPY_BUFFER_BYTES, 0);
                    match self.copy_into_bases(id, plan, &mut buf) {
                        Ok(part) => {
                            pages_left = pages_left.saturating_sub(pages(&part.plan.runs));
                            copied.push(part);
                        }
                        Err(e) => {
                            result = Err(e);
                            break;
                        }
                    }
                }
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        for base in copied.iter().flat_map(|part| &part.bases) {
            files::start_writeback(&base.file);
        }
        for part in copied {
            // One that was made for this has its length to be synced as well; its name is by the
            // checkpoint that names it.
            let synced = part.bases.iter().try_for_each(|OpenBase { path, file, .. }| {
                let synced = self.dir.on_disk(path, file).sync_data();
                synced.map_err(|e| PagesError::io("sync", path, e))
            });
            match synced {
                Ok(()) => self.apply(part, &mut progress),
                // The runs stay in the index, so they are copied anew: nothing depends on what the
                // kernel kept of this attempt.
                Err(e) => {
                    self.give_back(&part.plan.moves);
                    result = Err(e);
                }
            }
        }
        progress.memories_left = lock(&self.fold_queue).ids.len() as u64;
        result.map(|()| progress)
    }

    /// Plans the work that can be done for a memory. `taken` are the base files of other memories
    /// of this step: what they share with this memory is about to change.
    fn plan(
        &self,
        id: MemoryId,
        pages_max: u64,
        readers: Readers,
        taken: &mut BTreeSet<Name>,
    ) -> Result<FoldWork> {
        let memories = &*self.read();
        // Removed meanwhile.
        let Some(memory) = memories.get(&id) else { return Ok(FoldWork::None) };
        let _here = state_heap::enter();
        let mut memory = lock(memory);
        if memory.shared_bases().any(|base| taken.contains(&base.name)) {
            return Ok(FoldWork::Later);
        }
        let context = FoldContext { store: self, memories, readers };
        let work = memory.plan_fold(context, pages_max)?;
        if matches!(work, FoldWork::Plan(_)) {
            // Its own too: it may be shared before it is written.
            taken.insert(Name::own_base(id));
            taken.extend(memory.shared_bases().map(|base| base.name));
        }
        Ok(work)
    }

    fn copy_into_bases(
        &self,
        id: MemoryId,
        plan: FoldPlan,
        buf: &mut [u8],
    ) -> Result<UnsyncedFold> {
        let mut bases = Vec::new();
        let copied = self.copy_moves(&plan.moves, &mut bases).and_then(|moved| {
            self.write_runs(&plan.runs, &plan.segments, &mut bases, buf).map(|()| moved)
        });
        match copied {
            Ok(moved_bytes) => Ok(UnsyncedFold { id, bases, plan, moved_bytes }),
            Err(error) => {
                self.give_back(&plan.moves);
                Err(error)
            }
        }
    }

    /// Copies the pages to be moved. Returns the number of bytes.
    fn copy_moves(&self, moves: &[Move], bases: &mut Vec<OpenBase>) -> Result<u64> {
        let mut moved_bytes = 0;
        for Move { pages, from, to } in moves {
            let from = Source::open_named(&self.dir, from.name)?;
            let OpenBase { path, file, .. } = OpenBase::find_or_open(bases, &self.dir, to.name)?;
            // Removes remains of an attempt before a crash.
            self.dir.clear(path, file, slice::from_ref(pages))?;
            let to = self.dir.on_disk(path, file);
            let mut copier = Copier::new(to.as_ref(), path);
            copier.base(&from, pages.clone())?;
            moved_bytes += copier.bytes;
        }
        Ok(moved_bytes)
    }

    fn write_runs(
        &self,
        runs: &[(Run, Name)],
        segments: &[FoldSource],
        bases: &mut Vec<OpenBase>,
        buf: &mut [u8],
    ) -> Result<()> {
        for (run, base) in runs {
            let source = segments.iter().find(|source| source.id == run.segment);
            assert!(source.is_some(), "no source of pages in segment {:?}", run.segment);
            let Some(source) = source else { continue };
            let OpenBase { path, file, .. } = OpenBase::find_or_open(bases, &self.dir, *base)?;
            let to = self.dir.on_disk(path, file);
            files::copy_pages(
                NamedFile { file: &source.file, path: &source.path },
                run.offset_page,
                (to.as_ref(), path),
                run.start_page,
                run.pages,
                buf,
            )?;
        }
        Ok(())
    }

    fn apply(&self, part: UnsyncedFold, progress: &mut FoldProgress) {
        let UnsyncedFold { id, plan, moved_bytes, .. } = part;
        let bytes = pages(&plan.runs) * PAGE_BYTES;
        self.accounts.folded.fetch_add(bytes, Relaxed);
        self.accounts.moved.fetch_add(moved_bytes, Relaxed);
        progress.copied_bytes += bytes;
        progress.moved_bytes += moved_bytes;
        // While the places are reserved for the memory itself, whatever became of that.
        if plan.segments.iter().any(|source| source.shared.is_some()) {
            let users = plan.shared_bases.iter().flat_map(|base| base.users().clone());
            let others: BTreeSet<MemoryId> = users.filter(|other| *other != id).collect();
            for other in others {
                self.fold_in(other, |memory| memory.apply_shared_fold(&self.accounts, &plan));
            }
        }
        let runs: Vec<_> = plan.runs.iter().map(|(run, _)| *run).collect();
        let is_there = self.fold_in(id, |memory| {
            memory.folded(&self.accounts, &runs, &plan.moves);
            true
        });
        if !is_there {
            // A memory that was removed meanwhile has no index any more.
            self.give_back(&plan.moves);
        }
    }

    /// Changes a memory by what was folded. Whether it was changed.
    fn fold_in(&self, id: MemoryId, change: impl FnOnce(&mut Memory) -> bool) -> bool {
        let changed = self.with(id, |memory| {
            let is_changed = change(memory);
            if is_changed {
                lock(&self.changed).insert(id);
            }
            if !memory.has_durable_delta() {
                lock(&self.fold_queue).ids.remove(&id);
            }
            Ok(is_changed)
        });
        changed.unwrap_or(false)
    }

    /// Returns the places of moves that were not made.
    fn give_back(&self, moves: &[Move]) {
        for Move { pages, to, .. } in moves {
            if self.shared.give_back(&self.dir, to, pages).is_err() {
                // The next start finds what is left.
                self.accounts.unlink_failures.fetch_add(1, Relaxed);
            }
        }
    }

    /// Takes a memory off the queue unless a checkpoint made more of it durable meanwhile.
    fn leave_fold_queue(&self, id: MemoryId) {
        let left = self.with(id, |memory| {
            if !memory.has_durable_delta() {
                lock(&self.fold_queue).ids.remove(&id);
            }
            Ok(())
        });
        if left.is_err() {
            lock(&self.fold_queue).ids.remove(&id);
        }
    }
}

impl FoldQueue {
    /// The last one, and the memory after it, round and round.
    fn next(&mut self) -> (Option<MemoryId>, Option<MemoryId>) {
        let before = self.last;
        let after = before.and_then(|last| self.ids.range((Excluded(last), Unbounded)).next());
        self.last = after.or_else(|| self.ids.first()).copied();
        (before, self.last)
    }
}

fn pages(runs: &[(Run, Name)]) -> u64 {
    runs.iter().map(|(run, _)| run.pages).sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limits::Limits;

    use super::*;

    fn checkpoint(store: &PageStore) {
        let ticket = store.begin_checkpoint().unwrap();
        ticket.sync().unwrap();
        store.finish_checkpoint(ticket);
    }

    #[test]
    fn pages_of_a_removed_memory_are_released_after_the_fold_that_writes_them() {
        let dir = tempfile::tempdir().unwrap();
        let store = PageStore::open(dir.path(), &Limits::nano().unwrap().pages, []).unwrap();
        let (id, copy, bytes) = (MemoryId(1), MemoryId(2), 128 * PAGE_BYTES);
        store.create(id, bytes).unwrap();
        store.write_bytes(id, 0, &[1; 4 * PAGE_BYTES as usize]).unwrap();
        store.create_copy(copy, bytes, &store.layout(id).unwrap(), bytes).unwrap();
        store.write_bytes(id, 70 * PAGE_BYTES, &[2]).unwrap();
        checkpoint(&store);
        // Pages that both memories find in the same segment are written in place.
        let work = store.plan(id, 100, Readers::Respected, &mut BTreeSet::new()).unwrap();
        let FoldWork::Plan(plan) = work else { panic!("there is nothing to fold") };
        let in_place = plan.runs.iter().filter(|(_, base)| *base == Name::own_base(id));
        assert_eq!((in_place.count(), pages(&plan.runs), plan.moves.len()), (1, 5, 1));
        store.remove(id);
        store.remove(copy);
        checkpoint(&store);
        let own = dir.path().join("1.base");
        assert!(own.exists() && !dir.path().join("2.base").exists());
        store.give_back(&plan.moves);
        drop(plan);
        store.check_room().unwrap();
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
