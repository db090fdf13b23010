//! Shared by the stories: a stand-in for the worker that writes pages, a stand-in for the metadata
//! store that keeps the durable index, and a model of memory content.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use limits::PagesLimits;
use pages::{
    AppendTarget, MemoryId, MemoryIndex, MemoryLayout, PAGE_BYTES, PageStore, PagesError, Run,
    read_pages,
};
use rustix::fs::{SeekFrom, seek};

pub const MIB: u64 = 1 << 20;
pub const PAGE: usize = PAGE_BYTES as usize;

pub fn limits() -> PagesLimits {
    PagesLimits {
        delta_capacity_bytes: 64 * MIB,
        delta_reserve_bytes: 16 * MIB,
        pinned_delta_bytes: 8 << 20,
        pin_seconds: 5,
        checkpoint_interval_rounds: 50,
        manifest_interval_rounds: 50,
        checkpoint_delta_bytes: 32 * MIB,
        checkpoint_instructions: 1 << 40,
        manifest_lag_rounds: 10,
        manifest_lease_rounds: 100,
        runs_per_memory: 1000,
        open_files: 1 << 20,
        copy_threads: 1,
        metadata_cache_bytes: MIB,
        disk_reserve_bytes: MIB,
        states_on_disk: 1,
    }
}

/// A page whose every word is the tag of the write it came from.
pub fn page(tag: u64) -> Vec<u8> {
    tag.to_le_bytes().repeat(PAGE / 8)
}

/// The worker: writes `(start, pages)` ranges one after the other into the target and returns the
/// runs. All pages carry `tag`.
pub fn write(target: &AppendTarget, ranges: &[(u64, u64)], tag: u64) -> io::Result<Vec<Run>> {
    let mut offset_page = target.offset_page;
    let mut runs = Vec::new();
    for &(start_page, pages) in ranges {
        let bytes = page(tag).repeat(pages as usize);
        target.file.write_all_at(&bytes, offset_page * PAGE_BYTES)?;
        runs.push(Run { start_page, pages, segment: target.segment, offset_page });
        offset_page += pages;
    }
    Ok(runs)
}

/// The same the way a worker does: over pages that no version needs, if the target has enough.
pub fn write_again(target: &AppendTarget, ranges: &[(u64, u64)], tag: u64) -> io::Result<Vec<Run>> {
    let pages = ranges.iter().map(|range| range.1).sum::<u64>();
    let mut offset_page = match pages <= target.free.end - target.free.start {
        true => target.free.start,
        false => return write(target, ranges, tag),
    };
    let mut runs = Vec::new();
    for &(start_page, pages) in ranges {
        let bytes = page(tag).repeat(pages as usize);
        target.file.write_all_at(&bytes, offset_page * PAGE_BYTES)?;
        runs.push(Run { start_page, pages, segment: target.segment, offset_page });
        offset_page += pages;
    }
    Ok(runs)
}

/// Reserves, writes, commits.
pub fn put(
    store: &PageStore,
    id: MemoryId,
    ranges: &[(u64, u64)],
    tag: u64,
) -> Result<MemoryLayout, PagesError> {
    let pages = ranges.iter().map(|range| range.1).sum();
    let target = store.reserve(id, pages)?;
    let runs = write(&target, ranges, tag).unwrap();
    store.commit(&target, &runs)
}

/// The tag of every page of a layout; panics when a page is torn.
pub fn tags(layout: &MemoryLayout) -> Vec<u64> {
    let mut bytes = vec![0; layout.base_bytes as usize];
    read_pages(layout, 0, &mut bytes).unwrap();
    let tag_of = |page: &[u8]| {
        let words: Vec<u64> =
            page.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        assert!(words.iter().all(|word| *word == words[0]), "torn page");
        words[0]
    };
    bytes.chunks_exact(PAGE).map(tag_of).collect()
}

/// Tags of the pages of every memory.
pub type Model = BTreeMap<MemoryId, Vec<u64>>;

pub fn apply(model: &mut Model, id: MemoryId, ranges: &[(u64, u64)], tag: u64) {
    let pages = model.get_mut(&id).unwrap();
    for &(start, len) in ranges {
        pages[start as usize..(start + len) as usize].fill(tag);
    }
}

/// A memory of `base_pages` that begins with the first `pages` of these.
pub fn copied(tags: &[u64], pages: u64, base_pages: u64) -> Vec<u64> {
    let kept = tags.iter().take(pages as usize).copied().chain(std::iter::repeat(0));
    kept.take(base_pages as usize).collect()
}

/// Makes such a memory of the newest version of another.
pub fn copy(
    store: &PageStore,
    from: MemoryId,
    to: MemoryId,
    pages: u64,
    base_pages: u64,
) -> Result<(), PagesError> {
    let from = store.layout(from)?;
    store.create_copy(to, base_pages * PAGE_BYTES, &from, pages * PAGE_BYTES).map(|_| ())
}

/// Bytes of base files that are not holes.
pub fn base_bytes_on_disk(dir: &Path) -> u64 {
    let bases = file_names(dir).into_iter().filter(|name| name.contains(".base"));
    let data = |name: String| {
        let file = File::open(dir.join(name)).unwrap();
        let (mut at, mut bytes) = (0, 0);
        while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
            at = seek(&file, SeekFrom::Hole(start)).unwrap();
            bytes += at - start;
        }
        bytes
    };
    bases.map(data).sum()
}

pub fn assert_same(store: &PageStore, model: &Model) {
    assert_eq!(store.ids(), model.keys().copied().collect::<Vec<_>>());
    for (id, expected) in model {
        assert_eq!(&tags(&store.layout(*id).unwrap()), expected, "memory {}", id.0);
    }
}

/// The durable index, as the metadata store would keep it.
pub type Index = BTreeMap<MemoryId, (MemoryIndex, u64)>;

pub fn merge(index: &mut Index, changed: &[(MemoryId, Option<MemoryIndex>, u64)]) {
    for (id, memory, base_bytes) in changed {
        match memory {
            Some(memory) => index.insert(*id, (memory.clone(), *base_bytes)),
            None => index.remove(id),
        };
    }
}

pub fn open(dir: &Path, index: &Index) -> Result<PageStore, PagesError> {
    PageStore::open(dir, &limits(), entries(index))
}

pub fn entries(index: &Index) -> Vec<(MemoryId, MemoryIndex, u64)> {
    index.iter().map(|(id, (index, base_bytes))| (*id, index.clone(), *base_bytes)).collect()
}

/// A whole checkpoint into `index`.
pub fn checkpoint(store: &PageStore, index: &mut Index) {
    let ticket = store.begin_checkpoint().unwrap();
    ticket.sync().unwrap();
    merge(index, &ticket.changed);
    store.finish_checkpoint(ticket);
}

pub fn fold_all(store: &PageStore) {
    while !store.fold(MIB).unwrap().is_idle() {}
}

pub fn file_names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// An index that is durable together with the number of the last step it covers: written aside,
/// synced, renamed.
pub struct IndexFile {
    dir: PathBuf,
}

impl IndexFile {
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf() }
    }

    pub fn store(&self, step: u64, index: &Index) {
        let bytes = postcard::to_stdvec(&(step, index)).unwrap();
        let (aside, name) = (self.dir.join("index.new"), self.dir.join("index"));
        let mut file = File::create(&aside).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        fs::rename(aside, name).unwrap();
        File::open(&self.dir).unwrap().sync_all().unwrap();
    }

    pub fn load(&self) -> (u64, Index) {
        match fs::read(self.dir.join("index")) {
            Ok(bytes) => postcard::from_bytes(&bytes).unwrap(),
            Err(_) => (0, Index::new()),
        }
    }
}

/// SplitMix64: enough to make up steps that two processes agree on.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Effect of step `step` of a seeded history on the content of memory. Folds and checkpoints are
/// not part of it: they must not change any content.
pub enum Change {
    Create(MemoryId),
    /// A new memory that begins with pages of another; the last field is their number.
    Copy(MemoryId, MemoryId, u64),
    Remove(MemoryId),
    Write(MemoryId, Vec<(u64, u64)>),
}

pub const HISTORY_MEMORIES: u64 = 5;
pub const HISTORY_PAGES: u64 = 256;

pub fn change(seed: u64, step: u64, model: &Model) -> Change {
    let mut rng = Rng::new(seed ^ step.wrapping_mul(0xd6e8_feb8_6659_fd93));
    // Ids are never used again, as the replicated counter promises.
    if model.len() < HISTORY_MEMORIES as usize {
        let from = model.keys().nth(rng.below(HISTORY_MEMORIES) as usize);
        let pages = [HISTORY_PAGES, HISTORY_PAGES, HISTORY_PAGES / 2, 70][rng.below(4) as usize];
        return from.map_or(Change::Create(MemoryId(step)), |from| {
            Change::Copy(*from, MemoryId(step), pages)
        });
    }
    let id = *model.keys().nth(rng.below(HISTORY_MEMORIES) as usize).unwrap();
    if rng.below(30) == 0 {
        return Change::Remove(id);
    }
    let mut ranges = Vec::new();
    let mut start = rng.below(HISTORY_PAGES / 2);
    for _ in 0..=rng.below(4) {
        let pages = 1 + rng.below(8);
        if start + pages > HISTORY_PAGES {
            break;
        }
        ranges.push((start, pages));
        start += pages + rng.below(40);
    }
    Change::Write(id, ranges)
}

pub fn change_model(model: &mut Model, change: &Change, step: u64) {
    match change {
        Change::Create(id) => {
            model.insert(*id, vec![0; HISTORY_PAGES as usize]);
        }
        Change::Copy(from, id, pages) => {
            let copy = copied(&model[from], *pages, HISTORY_PAGES);
            model.insert(*id, copy);
        }
        Change::Remove(id) => {
            model.remove(id);
        }
        Change::Write(id, ranges) => apply(model, *id, ranges, step),
    }
}

pub fn change_store(store: &PageStore, change: &Change, step: u64) {
    match change {
        Change::Create(id) => {
            store.create(*id, HISTORY_PAGES * PAGE_BYTES).unwrap();
        }
        Change::Copy(from, id, pages) => copy(store, *from, *id, *pages, HISTORY_PAGES).unwrap(),
        Change::Remove(id) => store.remove(*id),
        Change::Write(id, ranges) => {
            put(store, *id, ranges, step).unwrap();
        }
    }
}

/// The model after `steps` steps.
pub fn history(seed: u64, steps: u64) -> Model {
    let mut model = Model::new();
    for step in 1..=steps {
        let change = change(seed, step, &model);
        change_model(&mut model, &change, step);
    }
    model
}
