//! Folding: copying sealed delta pages into the base file, in bounded steps. See the crate's
//! documentation for why that is safe.

use std::{
    fs::File,
    ops::Bound::{Excluded, Unbounded},
    path::PathBuf,
    sync::atomic::Ordering::Relaxed,
};

use crate::{
    MemoryId, PAGE_BYTES, PagesError, Result, Run,
    files::{self, Named},
    memory::{FoldPlan, FoldWork, Memory},
    store::{FoldQueue, PageStore, lock},
};

/// Memories folded in one step: their base files are open together, so that one journal commit of
/// the file system serves them all.
const MEMORIES_PER_STEP: usize = 32;

/// What becomes of readers of older versions that stand in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readers {
    /// Their memory is left alone.
    Respected,
    /// They are cut off, unless they hold their version.
    CutOff,
}

/// What one step of folding did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoldProgress {
    /// Copied into base files by this step.
    pub copied_bytes: u64,
    /// Memories that still have pages to fold, blocked ones included.
    pub memories_left: u64,
    /// Of those: met in this step and left alone because an older version is being read.
    pub memories_blocked: u64,
}

impl FoldProgress {
    /// Nothing is left to do until the next checkpoint or until readers let go.
    pub fn is_idle(&self) -> bool {
        self.copied_bytes == 0
    }
}

/// Pages copied into one base that is not synced yet.
struct Copied {
    id: MemoryId,
    path: PathBuf,
    base: File,
    runs: Vec<Run>,
}

impl PageStore {
    /// Copies up to `budget_bytes` (at least one page) of sealed and durable delta into base files,
    /// syncs these, and takes the runs out of the index. Memories of which an older version is
    /// being read are skipped. Runs beside executions and checkpoints; a second caller waits
    /// for the first.
    ///
    /// On an error, what this step copied for other memories counts; the failed memory is unchanged
    /// and stays queued.
    pub fn fold(&self, budget_bytes: u64) -> Result<FoldProgress> {
        self.step(budget_bytes, Readers::Respected)
    }

    /// [`PageStore::fold`] without waiting for readers: layouts of older versions are cut off
    /// ([`crate::MemoryLayout::is_cut_off`]), except those that are
    /// held ([`crate::HeldLayout`]), whose memories are skipped.
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
        for _ in 0..visits_max {
            if pages_left == 0 || copied.len() == MEMORIES_PER_STEP {
                break;
            }
            let Some(id) = lock(&self.fold_queue).next() else { break };
            let plan = |memory: &mut Memory| {
                if readers == Readers::CutOff {
                    self.accounts.cut_off.fetch_add(memory.cut_off_readers(), Relaxed);
                }
                memory.plan_fold(&self.dir, pages_left)
            };
            let work = match self.with(id, plan) {
                // Removed meanwhile.
                Err(PagesError::UnknownMemory(_)) => Ok(FoldWork::None),
                work => work,
            };
            match work {
                Ok(FoldWork::None) => self.leave_fold_queue(id),
                Ok(FoldWork::Blocked) => progress.memories_blocked += 1,
                Ok(FoldWork::Plan(plan)) => {
                    buf.resize(files::COPY_BUFFER_BYTES, 0);
                    match self.copy_into_base(id, plan, &mut buf) {
                        Ok(part) => {
                            pages_left = pages_left.saturating_sub(pages(&part.runs));
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
        for part in &copied {
            files::start_writeback(&part.base);
        }
        for part in copied {
            let synced = self.dir.on_disk(&part.path, &part.base).sync_data();
            match synced {
                Ok(()) => progress.copied_bytes += self.apply(part),
                // The runs stay in the index, so they are copied anew: nothing depends on what the
                // kernel kept of this attempt.
                Err(e) => result = Err(PagesError::io("sync", &part.path, e)),
            }
        }
        progress.memories_left = lock(&self.fold_queue).ids.len() as u64;
        result.map(|()| progress)
    }

    fn copy_into_base(&self, id: MemoryId, plan: FoldPlan, buf: &mut [u8]) -> Result<Copied> {
        let path = self.dir.base_path(id);
        let base = self.dir.open_write(&path)?;
        let to = self.dir.on_disk(&path, &base);
        let FoldPlan { runs, segments } = plan;
        for run in &runs {
            let Some((segment, file)) =
                segments.iter().find(|(segment, _)| *segment == run.segment)
            else {
                continue;
            };
            let from = Named { file, path: &self.dir.segment_path(id, *segment) };
            files::copy_pages(
                from,
                run.offset_page,
                (to.as_ref(), &path),
                run.start_page,
                run.pages,
                buf,
            )?;
        }
        drop(to);
        Ok(Copied { id, path, base, runs })
    }

    fn apply(&self, part: Copied) -> u64 {
        let bytes = pages(&part.runs) * PAGE_BYTES;
        self.accounts.folded.fetch_add(bytes, Relaxed);
        // A memory that was removed meanwhile has no index any more.
        let _ = self.with(part.id, |memory| {
            memory.folded(&self.accounts, &part.runs);
            lock(&self.changed).insert(part.id);
            if !memory.has_durable_delta() {
                lock(&self.fold_queue).ids.remove(&part.id);
            }
            Ok(())
        });
        bytes
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
    /// The memory after the last one, round and round.
    fn next(&mut self) -> Option<MemoryId> {
        let after = self.last.and_then(|last| self.ids.range((Excluded(last), Unbounded)).next());
        self.last = after.or_else(|| self.ids.first()).copied();
        self.last
    }
}

fn pages(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.pages).sum()
}
