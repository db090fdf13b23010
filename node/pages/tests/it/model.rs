//! Reservations, commits, drops, checkpoints (full or half), folds, removals and reopens in any
//! order: every memory reads like a plain table of pages, and every layout taken before keeps
//! reading its own version.

use pages::{CheckpointTicket, MemoryId, MemoryLayout, PAGE_BYTES, PageStore};
use proptest::prelude::*;

use crate::common::*;

/// Three units of what is moved at once.
const PAGES: u64 = 160;
const MEMORIES: u64 = 5;

#[derive(Clone, Debug)]
enum Step {
    Create(u64),
    /// The second begins with the first pages of the first; the last field is their number.
    Copy(u64, u64, u64),
    /// The same of a version that is held, the newest or an older one.
    CopyHeld(u64),
    Remove(u64),
    Commit {
        id: u64,
        ranges: Vec<(u64, u64)>,
        with_layout: bool,
        /// Over pages that no version needs, where there are some.
        again: bool,
    },
    /// A message that failed: it wrote, and its target is dropped.
    Drop {
        id: u64,
        pages: u64,
        again: bool,
    },
    Checkpoint,
    /// Given up before or after its files were synced.
    HalfCheckpoint {
        synced: bool,
    },
    /// A checkpoint during which messages continue to run.
    SlowCheckpoint {
        id: u64,
        ranges: Vec<(u64, u64)>,
    },
    Fold {
        budget_pages: u64,
        over_readers: bool,
    },
    Hold(u64),
    Release,
    Reopen,
}

fn ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
    proptest::collection::vec((0..25u64, 1..12u64), 0..5).prop_map(|parts| {
        let mut start = 0;
        let mut ranges = Vec::new();
        for (gap, pages) in parts {
            start += gap * 2;
            if start + pages <= PAGES {
                ranges.push((start, pages));
            }
            start += pages;
        }
        ranges
    })
}

fn commit() -> impl Strategy<Value = Step> {
    (0..MEMORIES, ranges(), any::<bool>(), any::<bool>()).prop_map(
        |(id, ranges, with_layout, again)| Step::Commit { id, ranges, with_layout, again },
    )
}

/// The pages that a busy canister writes in each message.
fn busy_commit() -> impl Strategy<Value = Step> {
    (0..MEMORIES, 1..4_u64, any::<bool>()).prop_map(|(id, pages, with_layout)| {
        let ranges = vec![(3, pages), (20, 1)];
        Step::Commit { id, ranges, with_layout, again: true }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let id = 0..MEMORIES;
    prop_oneof![
        2 => id.clone().prop_map(Step::Create),
        4 => (id.clone(), id.clone(), 1..=PAGES + 40).prop_map(|(from, to, pages)| Step::Copy(from, to, pages)),
        1 => id.clone().prop_map(Step::CopyHeld),
        2 => id.clone().prop_map(Step::Remove),
        12 => commit(),
        12 => busy_commit(),
        2 => (id.clone(), 1..9u64, any::<bool>()).prop_map(|(id, pages, again)| Step::Drop { id, pages, again }),
        3 => Just(Step::Checkpoint),
        2 => any::<bool>().prop_map(|synced| Step::HalfCheckpoint { synced }),
        2 => (id.clone(), ranges()).prop_map(|(id, ranges)| Step::SlowCheckpoint { id, ranges }),
        6 => (1..60u64, any::<bool>()).prop_map(|(budget_pages, over_readers)| Step::Fold { budget_pages, over_readers }),
        3 => id.prop_map(Step::Hold),
        2 => Just(Step::Release),
        1 => Just(Step::Reopen),
    ]
}

struct World {
    dir: tempfile::TempDir,
    store: Option<PageStore>,
    model: Model,
    durable: (Index, Model),
    held: Vec<(MemoryLayout, Vec<u64>)>,
    tag: u64,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Some(open(dir.path(), &Index::new()).unwrap());
        let (model, durable) = Default::default();
        Self { dir, store, model, durable, held: Vec::new(), tag: 0 }
    }

    fn store(&self) -> &PageStore {
        self.store.as_ref().unwrap()
    }

    fn commit(&mut self, id: u64, ranges: &[(u64, u64)], with_layout: bool, again: bool) {
        let id = MemoryId(id);
        if !self.model.contains_key(&id) {
            assert!(self.store().reserve(id, 1).is_err());
            return;
        }
        self.tag += 1;
        let version = self.store().layout(id).unwrap().version;
        let (target, runs) = if again {
            let target = self.store().reserve_reusing(id, PAGES).unwrap();
            let runs = write_again(&target, ranges, self.tag).unwrap();
            (target, runs)
        } else {
            let target = self.store().reserve(id, PAGES).unwrap();
            assert!(target.free.is_empty());
            let runs = write(&target, ranges, self.tag).unwrap();
            (target, runs)
        };
        let committed = if with_layout {
            self.store().commit(&target, &runs).unwrap().version
        } else {
            self.store().append(&target, &runs).unwrap()
        };
        assert_eq!(committed, version + 1);
        apply(&mut self.model, id, ranges, self.tag);
    }

    /// A checkpoint reports every page that differs from the one before as written.
    fn assert_written(&self, ticket: &CheckpointTicket) {
        let zeros = vec![0; PAGES as usize];
        for (id, tags) in &self.model {
            let before = self.durable.1.get(id).unwrap_or(&zeros);
            let written = ticket.written.iter().find(|(of, _)| of == id);
            let written = written.map_or(&[][..], |(_, ranges)| ranges);
            for (page, (before, now)) in (0..).zip(before.iter().zip(tags)) {
                let is_told = written.iter().any(|range| range.contains(&page));
                assert!(before == now || is_told, "page {page} of {}: {written:?}", id.0);
            }
        }
    }

    #[expect(clippy::too_many_lines, reason = "one story, in order")]
    fn run(&mut self, step: Step) {
        match step {
            Step::Create(id) => {
                let id = MemoryId(id);
                // Refused while it exists or its removal is not durable.
                if self.store().create(id, PAGES * PAGE_BYTES).is_ok() {
                    assert!(self.model.insert(id, vec![0; PAGES as usize]).is_none());
                }
            }
            Step::Copy(from, to, pages) => {
                let (from, to) = (MemoryId(from), MemoryId(to));
                let made = copy(self.store(), from, to, pages, PAGES);
                if let Some(tags) = self.model.get(&from)
                    && made.is_ok()
                {
                    let copy = copied(tags, pages, PAGES);
                    assert!(self.model.insert(to, copy).is_none());
                }
            }
            Step::CopyHeld(to) => {
                let Some((layout, tags)) = self.held.first() else { return };
                let made = self.store().create_copy(
                    MemoryId(to),
                    PAGES * PAGE_BYTES,
                    layout,
                    PAGES * PAGE_BYTES,
                );
                if made.is_ok() {
                    assert!(self.model.insert(MemoryId(to), tags.clone()).is_none());
                }
            }
            Step::Remove(id) => {
                self.store().remove(MemoryId(id));
                self.model.remove(&MemoryId(id));
            }
            Step::Commit { id, ranges, with_layout, again } => {
                self.commit(id, &ranges, with_layout, again);
            }
            Step::Drop { id, pages, again } => {
                if again && let Ok(target) = self.store().reserve_reusing(MemoryId(id), pages) {
                    write_again(&target, &[(0, pages)], u64::MAX).unwrap();
                } else if let Ok(target) = self.store().reserve(MemoryId(id), pages) {
                    write(&target, &[(0, pages)], u64::MAX).unwrap();
                }
            }
            Step::Checkpoint => {
                let ticket = self.store().begin_checkpoint().unwrap();
                self.assert_written(&ticket);
                ticket.sync().unwrap();
                merge(&mut self.durable.0, &ticket.changed);
                self.store().finish_checkpoint(ticket);
                self.durable.1 = self.model.clone();
            }
            Step::HalfCheckpoint { synced } => {
                let ticket = self.store().begin_checkpoint().unwrap();
                if synced {
                    ticket.sync().unwrap();
                } else {
                    // Not synced, so finishing must not count.
                    self.store().finish_checkpoint(ticket);
                }
            }
            Step::SlowCheckpoint { id, ranges } => {
                let ticket = self.store().begin_checkpoint().unwrap();
                self.assert_written(&ticket);
                let model = self.model.clone();
                self.commit(id, &ranges, true, false);
                ticket.sync().unwrap();
                self.store().fold(PAGE_BYTES).unwrap();
                merge(&mut self.durable.0, &ticket.changed);
                self.durable.1 = model;
                self.commit(id, &ranges, false, true);
                self.store().finish_checkpoint(ticket);
            }
            Step::Fold { budget_pages, over_readers } => {
                let bytes = budget_pages * PAGE_BYTES;
                let progress = if over_readers {
                    self.store().fold_over_readers(bytes).unwrap()
                } else {
                    self.store().fold(bytes).unwrap()
                };
                self.held.retain(|(layout, _)| !layout.is_cut_off());
                assert!(progress.copied_bytes <= budget_pages * PAGE_BYTES);
            }
            Step::Hold(id) => {
                if let Some(tags) = self.model.get(&MemoryId(id)) {
                    let held = (self.store().layout(MemoryId(id)).unwrap(), tags.clone());
                    self.held.push(held);
                }
            }
            Step::Release => self.held.clear(),
            Step::Reopen => {
                self.held.clear();
                self.store = None;
                self.store = Some(open(self.dir.path(), &self.durable.0).unwrap());
                self.model = self.durable.1.clone();
            }
        }
        assert_same(self.store(), &self.model);
        for (layout, expected) in &self.held {
            assert_eq!(
                &tags(layout),
                expected,
                "version {} of memory {}",
                layout.version,
                layout.id.0
            );
        }
        let on_disk: u64 = segment_bytes(self.dir.path());
        assert!(
            self.store().delta_bytes() <= on_disk,
            "accounted {} of {on_disk}",
            self.store().delta_bytes()
        );
    }
}

fn segment_bytes(dir: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .filter(|e| !e.file_name().to_str().unwrap().contains(".base"))
        .map(|e| e.metadata().unwrap().len())
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    // Promise: P4 - Canisters and snapshots share pages and use at most the disk of separate files.
    #[test]
    fn reads_as_the_model_says(steps in proptest::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        world.run(Step::Create(0));
        world.run(Step::Create(1));
        for step in steps {
            world.run(step);
        }
        // In the end only base files are left, and of them each page at most once for each memory
        // that has it.
        world.held.clear();
        for _ in 0..4 {
            world.run(Step::Checkpoint);
            fold_all(world.store());
            world.store().check_room().unwrap();
        }
        prop_assert_eq!(world.store().delta_bytes(), 0);
        prop_assert_eq!(world.store().delta_bytes(), 0);
        prop_assert_eq!(world.store().stats().fold_queue, 0);
        prop_assert_eq!(world.store().stats().unlink_failures, 0);
        let written: u64 = world.model.values().flatten().filter(|tag| **tag > 0).count() as u64;
        for _ in 0..2 {
            let files = file_names(world.dir.path());
            prop_assert!(files.iter().all(|name| name.contains(".base")), "{:?}", files);
            for id in world.model.keys() {
                let own = format!("{}.base", id.0);
                prop_assert!(files.contains(&own), "{} of {:?}", own, files);
            }
            if world.model.is_empty() {
                prop_assert!(files.is_empty(), "{:?}", files);
            }
            let on_disk = base_bytes_on_disk(world.dir.path());
            prop_assert!(on_disk <= written * PAGE_BYTES, "{} for {} pages", on_disk, written);
            world.run(Step::Reopen);
        }
    }
}
