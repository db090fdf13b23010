//! A disk that loses what was not synced, fills up, and fails.
//!
//! Its files are real files in a folder of a test, so whatever maps or reads them sees them. What a power cut may take back is kept beside: of every file the
//! content of each page (4 KiB) as of the last sync, and the operations on names since their folder was synced. [`SimulatedDisk::cut_power`] then leaves of each
//! page written since the new content, the old, or sectors (512 bytes) of both; a length that the file had since, or that lies, at a page, within a write that extended it;
//! and any subset of the operations on names.
//!
//! A failed sync is modelled as Linux does it: the pages count as written from then on, so later syncs that succeed do not cover them, and a power cut may take them
//! back for as long as they are not written again.
//!
//! In use: give the parts under test this disk, let them work, end with [`SimulatedDisk::end_after`] or whenever the test likes, drop them, call `cut_power`, and open
//! them again on the same disk. Handles from before the cut fail. All choices come from the seed.
//!
//! What is not modelled: folders are durable when they are made or renamed; writes that do not go through this disk (a memory map, another process) count as durable.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::fs::{SeekFrom, seek};

use crate::{Disk, DiskFile, Open, real};

const PAGE: u64 = 4096;
const SECTOR: usize = 512;
/// Where removed files lie until their removal is durable; hidden.
const REMOVED: &str = ".removed-and-not-synced";

/// See the module. Copies share everything.
#[derive(Clone, Debug)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

/// What a power cut took back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerCut {
    /// Pages that were written and are, at least in part, as they were before.
    pub pages: u64,
    /// Creations, renames and removals that did not happen.
    pub names: u64,
}

type Id = u64;
type Page = Box<[u8]>;

#[derive(Debug)]
struct State {
    root: PathBuf,
    random: u64,
    names: BTreeMap<PathBuf, Id>,
    durable: BTreeMap<PathBuf, Id>,
    /// Operations on names whose folder was not synced since, in order.
    pending: Vec<Change>,
    nodes: BTreeMap<Id, Node>,
    next: Id,
    /// Power cuts so far: a handle of an earlier life fails.
    life: u64,
    operations: u64,
    /// Operations until the power goes, and whether the last is carried out.
    ends: Option<(u64, bool)>,
    off: bool,
    free: Option<u64>,
    failing_syncs: u64,
}

#[derive(Debug)]
enum Change {
    Created(PathBuf, Id),
    Removed(PathBuf),
    Renamed(PathBuf, PathBuf, Id),
}

impl Change {
    fn folder(&self) -> Option<&Path> {
        let (Self::Created(path, _) | Self::Removed(path) | Self::Renamed(_, path, _)) = self;
        path.parent()
    }

    fn apply(self, names: &mut BTreeMap<PathBuf, Id>) {
        match self {
            Self::Created(path, id) => drop(names.insert(path, id)),
            Self::Removed(path) => drop(names.remove(&path)),
            Self::Renamed(from, to, id) => {
                names.remove(&from);
                names.insert(to, id);
            }
        }
    }
}

#[derive(Debug)]
struct Node {
    /// Where its bytes are.
    real: PathBuf,
    /// Length as of the last sync.
    length: u64,
    /// Lengths since: of a change of length the new one, of a write at the end the old one and the new one.
    lengths: Vec<(u64, u64)>,
    /// Pages written since the last sync, as they were then.
    written: BTreeMap<u64, Page>,
    /// Pages that a failed sync dropped, as they were before.
    dropped: BTreeMap<u64, Page>,
}

impl Node {
    /// A write moved the end. Writes one behind the other are one range.
    fn extended(&mut self, from: u64, to: u64) {
        match self.lengths.last_mut() {
            Some((_, end)) if *end == from => *end = to,
            _ => self.lengths.push((from, to)),
        }
    }
}

fn off() -> io::Error {
    io::Error::other("the power is off")
}

fn page_of(file: &File, page: u64) -> io::Result<Page> {
    let mut bytes = vec![0; PAGE as usize].into_boxed_slice();
    crate::read_full(file, &mut bytes, page * PAGE)?;
    Ok(bytes)
}

impl SimulatedDisk {
    /// A disk whose files lie in `root`, which is made if it is absent; files that are there count as durable.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn new(root: &Path, seed: u64) -> io::Result<Self> {
        fs::create_dir_all(root.join(REMOVED))?;
        let mut state = State {
            root: root.to_path_buf(),
            random: seed,
            names: BTreeMap::new(),
            durable: BTreeMap::new(),
            pending: Vec::new(),
            nodes: BTreeMap::new(),
            next: 0,
            life: 0,
            operations: 0,
            ends: None,
            off: false,
            free: None,
            failing_syncs: 0,
        };
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    folders.push(entry.path());
                } else {
                    state.import(&entry.path())?;
                }
            }
        }
        Ok(Self(Arc::new(Mutex::new(state))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Operations carried out so far: writes, changes of length, syncs, creations, renames, removals.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// After so many more operations the power goes, and every further one fails. The last is carried out, or not even begun.
    pub fn end_after(&self, operations: u64, last_is_done: bool) {
        self.state().ends = Some((operations, last_is_done));
    }

    /// From here on every operation fails, until [`Self::cut_power`].
    pub fn switch_off(&self) {
        self.state().off = true;
    }

    /// Files may grow by so many bytes in all from here on; none: without bound.
    pub fn limit_growth(&self, bytes: Option<u64>) {
        self.state().free = bytes;
    }

    /// So many of the next syncs of files fail.
    pub fn fail_syncs(&self, count: u64) {
        self.state().failing_syncs = count;
    }

    /// Cuts the power and gives it back: files and names are then what a crash may have left. Faults that were ordered are over.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn cut_power(&self) -> io::Result<PowerCut> {
        let mut state = self.state();
        let mut cut = PowerCut::default();
        let ids: Vec<_> = state.nodes.keys().copied().collect();
        for id in ids {
            cut.pages += state.take_back(id)?;
        }
        for change in std::mem::take(&mut state.pending) {
            if state.coin(2) {
                change.apply(&mut state.durable);
            } else {
                cut.names += 1;
            }
        }
        state.lay_down()?;
        state.life += 1;
        (state.ends, state.off, state.free, state.failing_syncs) = (None, false, None, 0);
        Ok(cut)
    }
}

impl State {
    fn random(&mut self) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn coin(&mut self, sides: u64) -> bool {
        self.random().is_multiple_of(sides)
    }

    fn import(&mut self, path: &Path) -> io::Result<Id> {
        let id = self.next;
        self.next += 1;
        let length = fs::metadata(path)?.len();
        let node = Node {
            real: path.to_path_buf(),
            length,
            lengths: Vec::new(),
            written: BTreeMap::new(),
            dropped: BTreeMap::new(),
        };
        self.nodes.insert(id, node);
        self.names.insert(path.to_path_buf(), id);
        self.durable.insert(path.to_path_buf(), id);
        Ok(id)
    }

    fn powered(&self, life: u64) -> io::Result<()> {
        if self.off || self.life != life { Err(off()) } else { Ok(()) }
    }

    /// Counts an operation; whether it is the last, which is carried out and whose success nobody learns.
    fn operation(&mut self, life: u64) -> io::Result<bool> {
        self.powered(life)?;
        let last = match &mut self.ends {
            None => false,
            Some((0, _)) => {
                self.off = true;
                return Err(off());
            }
            Some((left, done)) => {
                *left -= 1;
                let (last, done) = (*left == 0, *done);
                if last && !done {
                    self.off = true;
                    return Err(off());
                }
                last
            }
        };
        self.operations += 1;
        self.off = last;
        Ok(last)
    }

    /// `done`, unless it was the last operation.
    fn ended<T>(last: bool, done: T) -> io::Result<T> {
        if last { Err(off()) } else { Ok(done) }
    }

    fn node(&mut self, id: Id) -> io::Result<&mut Node> {
        self.nodes.get_mut(&id).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// Files whose name is nowhere any more go.
    fn collect(&mut self) {
        let named: BTreeSet<Id> = self.names.values().chain(self.durable.values()).copied().collect();
        let pending: BTreeSet<Id> = self
            .pending
            .iter()
            .filter_map(|change| match change {
                Change::Created(_, id) | Change::Renamed(_, _, id) => Some(*id),
                Change::Removed(_) => None,
            })
            .collect();
        self.nodes.retain(|id, node| {
            let keep = named.contains(id) || pending.contains(id);
            if !keep {
                let _ = fs::remove_file(&node.real);
            }
            keep
        });
    }

    /// Puts the bytes of a file that loses its name aside.
    fn set_aside(&mut self, id: Id) -> io::Result<()> {
        let aside = self.root.join(REMOVED).join(id.to_string());
        let node = self.node(id)?;
        fs::rename(&node.real, &aside)?;
        node.real = aside;
        Ok(())
    }

    /// Keeps what the pages that cover these bytes hold, unless it is kept already.
    fn keep_pages(&mut self, id: Id, file: &File, from: u64, to: u64) -> io::Result<()> {
        let node = self.node(id)?;
        for page in from / PAGE..to.div_ceil(PAGE) {
            if node.written.contains_key(&page) {
                continue;
            }
            let old = match node.dropped.remove(&page) {
                Some(old) => old,
                None => page_of(file, page)?,
            };
            node.written.insert(page, old);
        }
        Ok(())
    }

    /// What a power cut leaves of a file; how many pages it took back.
    fn take_back(&mut self, id: Id) -> io::Result<u64> {
        let node = self.node(id)?;
        let mut pages = std::mem::take(&mut node.dropped);
        pages.append(&mut node.written);
        let (real, synced) = (node.real.clone(), node.length);
        let lengths = std::mem::take(&mut node.lengths);
        let file = real::open(&real, Open::Write)?;
        let length = file.metadata()?.len();
        let chosen = (self.random() % (lengths.len() as u64 + 1)) as usize;
        let left = match lengths.get(chosen) {
            None => synced,
            Some((from, to)) => match self.random() % 3 {
                0 => *from,
                1 => *to,
                _ => (from + self.random() % (to - from + 1)).next_multiple_of(PAGE).min(*to),
            },
        };
        file.set_len(left)?;
        let mut taken = 0;
        for (page, old) in pages {
            let new = page_of(&file, page)?;
            let mut mixed = match self.random() % 3 {
                // Cut off by the length above and to be put back, or not written.
                0 => old.clone(),
                1 => new.clone(),
                _ => {
                    let mut mixed = new.clone();
                    for sector in 0..PAGE as usize / SECTOR {
                        if self.coin(2) {
                            let range = sector * SECTOR..(sector + 1) * SECTOR;
                            mixed[range.clone()].copy_from_slice(&old[range]);
                        }
                    }
                    mixed
                }
            };
            // A truncation that is taken back brings the bytes back with it.
            if page * PAGE >= length {
                mixed.copy_from_slice(&old);
            }
            let end = left.saturating_sub(page * PAGE).min(PAGE) as usize;
            file.write_all_at(&mixed[..end], page * PAGE)?;
            taken += u64::from(mixed != new);
        }
        self.node(id)?.length = left;
        Ok(taken)
    }

    /// Makes the folder what `durable` says.
    fn lay_down(&mut self) -> io::Result<()> {
        let ids: Vec<_> = self.nodes.keys().copied().collect();
        for id in ids {
            self.set_aside(id)?;
        }
        self.names = self.durable.clone();
        for (path, id) in self.names.clone() {
            let node = self.node(id)?;
            fs::rename(&node.real, &path)?;
            node.real = path;
        }
        self.collect();
        Ok(())
    }
}

impl Disk for SimulatedDisk {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.state().powered_now()?;
        fs::create_dir_all(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        self.state().powered_now()?;
        let mut listed = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.file_name().is_none_or(|name| name != REMOVED) {
                listed.push(path);
            }
        }
        // The order of a real folder is no function of the seed.
        listed.sort();
        Ok(listed)
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        let life = state.life;
        state.powered(life)?;
        if !path.starts_with(&state.root) {
            return Err(io::Error::other(format!("{} is not on this disk", path.display())));
        }
        let known = state.names.get(path).copied();
        let id = match known {
            Some(id) => id,
            // Made by somebody who does not use this disk.
            None if path.exists() => state.import(path)?,
            None if matches!(how, Open::Read | Open::Write) => return Err(io::ErrorKind::NotFound.into()),
            None => {
                let last = state.operation(life)?;
                File::create(path)?;
                let before = state.durable.remove(path);
                let id = state.import(path)?;
                state.durable.remove(path);
                state.durable.extend(before.map(|before| (path.to_path_buf(), before)));
                state.pending.push(Change::Created(path.to_path_buf(), id));
                State::ended(last, id)?
            }
        };
        let empties = matches!(how, Open::Truncate | Open::Secret);
        let mode = if empties { Open::Write } else { how };
        let file = SimulatedFile { disk: self.clone(), id, life, file: real::open(path, mode)? };
        drop(state);
        if empties && known.is_some() {
            file.set_len(0)?;
        }
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let life = state.life;
        let last = state.operation(life)?;
        let Some(id) = state.names.remove(from) else {
            // A folder: everything in it moves along.
            fs::rename(from, to)?;
            state.move_folder(from, to);
            return State::ended(last, ());
        };
        if let Some(replaced) = state.names.get(to).copied() {
            state.set_aside(replaced)?;
        }
        fs::rename(from, to)?;
        state.node(id)?.real = to.to_path_buf();
        state.names.insert(to.to_path_buf(), id);
        state.pending.push(Change::Renamed(from.to_path_buf(), to.to_path_buf(), id));
        State::ended(last, ())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let life = state.life;
        state.powered(life)?;
        if !state.names.contains_key(path) && path.exists() {
            state.import(path)?;
        }
        let id = state.names.get(path).copied().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let last = state.operation(life)?;
        state.set_aside(id)?;
        state.names.remove(path);
        state.pending.push(Change::Removed(path.to_path_buf()));
        State::ended(last, ())
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let life = state.life;
        let last = state.operation(life)?;
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.pending).into_iter().partition(|change| change.folder() == Some(path));
        state.pending = elsewhere;
        here.into_iter().for_each(|change| change.apply(&mut state.durable));
        state.collect();
        State::ended(last, ())
    }
}

impl State {
    fn powered_now(&self) -> io::Result<()> {
        self.powered(self.life)
    }

    fn move_folder(&mut self, from: &Path, to: &Path) {
        let moved = |path: &Path| path.strip_prefix(from).ok().map(|rest| to.join(rest));
        for names in [&mut self.names, &mut self.durable] {
            *names = std::mem::take(names)
                .into_iter()
                .map(|(path, id)| (moved(&path).unwrap_or(path), id))
                .collect();
        }
        for node in self.nodes.values_mut() {
            if let Some(real) = moved(&node.real) {
                node.real = real;
            }
        }
        for change in &mut self.pending {
            let (Change::Created(path, _) | Change::Removed(path) | Change::Renamed(_, path, _)) = change;
            if let Some(there) = moved(path) {
                *path = there;
            }
        }
    }
}

/// A file of a [`SimulatedDisk`].
#[derive(Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    id: Id,
    life: u64,
    file: File,
}

impl SimulatedFile {
    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        let last = state.operation(self.life)?;
        let fails = state.failing_syncs > 0;
        state.failing_syncs = state.failing_syncs.saturating_sub(1);
        let length = self.file.metadata()?.len();
        // A file without a name any more is nobody's.
        let Ok(node) = state.node(self.id) else { return State::ended(last, ()) };
        let mut written = std::mem::take(&mut node.written);
        if fails {
            node.dropped.append(&mut written);
            return Err(io::Error::other("a simulated sync failed"));
        }
        node.length = length;
        node.lengths.clear();
        State::ended(last, ())
    }
}

impl DiskFile for SimulatedFile {
    fn length(&self) -> io::Result<u64> {
        self.disk.state().powered(self.life)?;
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.state().powered(self.life)?;
        std::os::unix::fs::FileExt::read_at(&self.file, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        let last = state.operation(self.life)?;
        let (length, end) = (self.file.metadata()?.len(), offset + bytes.len() as u64);
        let growth = end.saturating_sub(length);
        let fits = state.free.is_none_or(|free| growth <= free);
        // A disk that fills up takes part of a write.
        let taken = if fits { bytes.len() } else { bytes.len() / 2 };
        if let Some(free) = &mut state.free {
            *free = free.saturating_sub(if fits { growth } else { 0 });
        }
        if state.nodes.contains_key(&self.id) {
            let end = offset + taken as u64;
            state.keep_pages(self.id, &self.file, offset, end)?;
            if end > length {
                state.node(self.id)?.extended(length, end);
            }
        }
        self.file.write_all_at(&bytes[..taken], offset)?;
        if !fits {
            return Err(io::ErrorKind::StorageFull.into());
        }
        State::ended(last, ())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        let last = state.operation(self.life)?;
        let present = self.file.metadata()?.len();
        if state.nodes.contains_key(&self.id) {
            // Holes come back as holes.
            let mut at = length;
            while at < present {
                let Ok(data) = seek(&self.file, SeekFrom::Data(at)) else { break };
                let hole = seek(&self.file, SeekFrom::Hole(data)).unwrap_or(present);
                state.keep_pages(self.id, &self.file, data, hole)?;
                at = hole.max(at + 1);
            }
            state.node(self.id)?.lengths.push((length, length));
        }
        self.file.set_len(length)?;
        State::ended(last, ())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }
}

#[cfg(test)]
#[path = "simulated_tests.rs"]
mod tests;
