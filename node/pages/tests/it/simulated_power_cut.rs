//! A power cut at any operation of a simulated disk: all data that a durable index names is there,
//! whole, whatever else is lost or torn.
//!
//! The index is on the same disk, in a folder of its own, so a cut may also happen in the middle of
//! its replacement. Nothing real fails, so this runs everywhere; `power_cut` does the same to a
//! real file system.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use disk::{Open, SharedDisk, SimulatedDisk};
use pages::{MemoryId, PAGE_BYTES, PageStore, PagesError};

use crate::common::*;

/// Steps of a life that nothing ends.
const STEPS: u64 = 40;
/// Histories of several lives.
const SEEDS: u64 = 60;
const LIVES: u64 = 5;

/// Why a life ended.
#[derive(Debug)]
#[allow(dead_code)]
enum LifeError {
    Pages(PagesError),
    Index(io::Error),
}

impl From<PagesError> for LifeError {
    fn from(error: PagesError) -> Self {
        Self::Pages(error)
    }
}

impl From<io::Error> for LifeError {
    fn from(error: io::Error) -> Self {
        Self::Index(error)
    }
}

/// So few that every history closes segments and opens them again.
fn few_files() -> limits::PagesLimits {
    limits::PagesLimits { open_files: 4, ..limits() }
}

// Promise: P3 - A lost writeback of a closed segment is detected at the checkpoint.
/// A writeback that fails while a segment is closed is not reported by a sync of the segment. The
/// checkpoint detects it all the same.
#[test]
fn writeback_error_of_a_closed_segment_fails_the_checkpoint() {
    for (memories, is_found) in [(20, true), (3, false)] {
        let folder = tempfile::tempdir().unwrap();
        let simulated = SimulatedDisk::new(&folder.path().join("disk"), 1).unwrap();
        let pages = folder.path().join("disk/pages");
        let store =
            PageStore::open_on(Arc::new(simulated.clone()), pages, &few_files(), Vec::new())
                .unwrap();
        for id in 0..memories {
            store.create(MemoryId(id), 2 * PAGE_BYTES).unwrap();
            put(&store, MemoryId(id), &[(1, 1)], id).unwrap();
        }
        simulated.fail_writeback();
        let ticket = store.begin_checkpoint().unwrap();
        assert_eq!(ticket.sync().is_err(), is_found, "{memories} memories");
        drop(ticket);
        assert_eq!(matches!(store.begin_checkpoint(), Err(PagesError::SyncLost)), is_found);
    }
}

struct Machine {
    seed: u64,
    simulated: SimulatedDisk,
    disk: SharedDisk,
    root: PathBuf,
    /// Steps that a finished checkpoint covers.
    finished: u64,
    /// Steps taken so far, of those that the script has.
    taken: u64,
    _folder: tempfile::TempDir,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("disk");
        let simulated = SimulatedDisk::new(&root, seed).unwrap();
        fs::create_dir(root.join("index")).unwrap();
        let disk: SharedDisk = Arc::new(simulated.clone());
        Self { seed, simulated, disk, root, finished: 0, taken: 0, _folder: folder }
    }

    fn write_index(&self, step: u64, index: &Index) -> io::Result<()> {
        let folder = self.root.join("index");
        let (aside, name) = (folder.join("new"), folder.join("newest"));
        let file = self.disk.open(&aside, Open::Truncate)?;
        file.write_at(&postcard::to_stdvec(&(step, index)).unwrap(), 0)?;
        file.sync_all()?;
        self.disk.rename(&aside, &name)?;
        self.disk.sync_folder(&folder)
    }

    fn read_index(&self) -> (u64, Index) {
        match fs::read(self.root.join("index/newest")) {
            Ok(bytes) => postcard::from_bytes(&bytes).unwrap(),
            Err(_) => (0, Index::new()),
        }
    }

    /// Opens what the last life left, checks it, and continues for `steps` steps. Syncs that fail
    /// begin at one of them.
    fn live(&mut self, steps: u64, sync_fails_at: Option<u64>) -> Result<(), LifeError> {
        let (mut step, mut index) = self.read_index();
        let at_least = self.finished;
        assert!(
            (at_least..=self.taken).contains(&step),
            "seed {}: {at_least} finished, {step} there",
            self.seed
        );
        let store =
            PageStore::open_on(self.disk.clone(), self.pages(), &few_files(), entries(&index))?;
        let mut model = history(self.seed, step);
        assert_same(&store, &model);
        (self.finished, self.taken) = (step, step);
        let mut rng = Rng::new(self.seed.wrapping_add(step));
        for number in 0..steps {
            if sync_fails_at == Some(number) {
                self.simulated.fail_syncs(1);
            }
            step += 1;
            let change = change(self.seed, step, &model);
            change_model(&mut model, &change, step);
            try_change(&store, &change, step)?;
            self.taken = step;
            match rng.below(12) {
                0..2 => {
                    let ticket = store.begin_checkpoint()?;
                    ticket.sync()?;
                    merge(&mut index, &ticket.changed);
                    self.write_index(step, &index)?;
                    store.finish_checkpoint(ticket);
                    self.finished = step;
                }
                2..5 => drop(store.fold(rng.below(64) * PAGE_BYTES)?),
                5 => drop(store.fold_over_readers(rng.below(64) * PAGE_BYTES)?),
                // A message that failed.
                6 => {
                    let id = *model.keys().next().unwrap();
                    let target = store.reserve(id, 8)?;
                    write(&target, &[(0, 8)], u64::MAX).unwrap();
                }
                _ => {}
            }
        }
        assert_same(&store, &model);
        Ok(())
    }

    fn pages(&self) -> PathBuf {
        self.root.join("pages")
    }

    fn cut_power(&self) {
        self.simulated.cut_power().unwrap();
    }
}

fn try_change(store: &PageStore, change: &Change, step: u64) -> Result<(), PagesError> {
    match change {
        Change::Create(id) => drop(store.create(*id, HISTORY_PAGES * PAGE_BYTES)?),
        Change::Copy(from, id, pages) => copy(store, *from, *id, *pages, HISTORY_PAGES)?,
        Change::Remove(id) => store.remove(*id),
        Change::Write(id, ranges) => drop(put(store, *id, ranges, step)?),
    }
    Ok(())
}

// Promise: P6 - Canister memory survives a power cut at every operation of a history.
#[test]
fn a_cut_at_any_operation_loses_nothing_that_a_durable_index_names() {
    let seed = 1;
    let mut whole = Machine::new(seed);
    whole.live(STEPS, None).unwrap();
    let operations = whole.simulated.operations();
    assert!(whole.finished > 0);
    for operation in 1..=operations {
        let mut machine = Machine::new(seed);
        machine.simulated.end_after(operation, operation.is_multiple_of(2));
        // The last operation may be one whose failure need not be reported, such as a removal.
        let _ = machine.live(STEPS, None);
        machine.cut_power();
        machine.live(3, None).unwrap_or_else(|ended| panic!("operation {operation}: {ended:?}"));
        machine.cut_power();
        machine
            .live(0, None)
            .unwrap_or_else(|ended| panic!("operation {operation}, twice: {ended:?}"));
    }
    println!("{operations} operations");
}

// Promise: P6 - Canister memory survives 60 histories of power cuts and failed syncs.
#[test]
fn lives_that_end_in_power_cuts_and_failed_syncs_lose_nothing_that_a_durable_index_names() {
    let (mut finished, mut in_time) = (0, 0);
    for seed in 0..SEEDS {
        let mut machine = Machine::new(seed);
        for life in 0..LIVES {
            let mut rng = Rng::new(seed * LIVES + life);
            let sync_fails_at = (rng.below(3) == 0).then(|| rng.below(STEPS));
            machine.simulated.end_after(10 + rng.below(300), rng.below(2) == 0);
            in_time += u64::from(machine.live(STEPS, sync_fails_at).is_ok());
            machine.cut_power();
        }
        machine.live(0, None).unwrap_or_else(|ended| panic!("seed {seed}: {ended:?}"));
        finished += machine.finished;
    }
    assert!(finished > SEEDS * STEPS / 2, "the cuts left hardly any checkpoint: {finished}");
    assert!(in_time < SEEDS * LIVES / 2, "hardly any life was cut short: {in_time}");
}

// Promise: P6 - A power cut loses only writes that no checkpoint covered.
#[test]
fn a_power_cut_loses_only_changes_after_the_last_checkpoint() {
    let mut lost = 0;
    for seed in 0..20 {
        let mut machine = Machine::new(seed);
        machine.live(STEPS, None).unwrap();
        let before = bytes_below(&machine.pages());
        machine.cut_power();
        lost += u64::from(bytes_below(&machine.pages()) < before);
        machine.live(0, None).unwrap();
    }
    assert!(lost > 10, "unsynced appends of workers are lost now and then: {lost} of 20");
}

fn bytes_below(folder: &Path) -> u64 {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}
