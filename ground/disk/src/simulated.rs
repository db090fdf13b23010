//! A disk that loses unsynced writes, fills up, and fails.
//!
//! Its files are real files in a folder of a test, so they can be mapped and read as usual. Content
//! that a power cut may revert is kept separately: of every file the content of each page (4 KiB)
//! as of the last sync, and the operations on names since their folder was synced.
//! [`SimulatedDisk::cut_power`] then leaves of each page written since the new content, the old, or
//! sectors (512 bytes) of both; a length that the file had since, or one at a page boundary within
//! a write that extended it; and any subset of the operations on names.
//!
//! A failed sync is modelled as Linux does it: the pages count as written from then on, so later
//! syncs that succeed do not cover them, and a power cut may take them back for as long as they are
//! not written again.
//!
//! A file that others write to ([`Disk::open_raw`]) is compared with its length as of the last
//! sync: everything after it was appended since, by any writer, and a power cut may leave any part
//! of it. So no copy of it is needed, and sparse base files as long as a memory may grow cost only
//! their written bytes.
//!
//! In use: give the parts under test this disk, let them work, end with
//! [`SimulatedDisk::end_after`] or whenever the test likes, drop them, call `cut_power`, and open
//! them again on the same disk. Handles from before the cut fail, except those of
//! [`Disk::open_raw`], which must not be kept.
//!
//! All choices come from the seed, the number of the cut and the file's name, not from the order of
//! operations: parts that write from threads of their own meet the same choices in every run.
//!
//! Not modelled: folders are durable when they are made or renamed; writes of others before the
//! last synced end of a file (through a memory map, or another process) count as durable.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::fs::{SeekFrom, seek};

use crate::{Disk, DiskFile, Open, if_there, real};

const PAGE: u64 = 4096;
const SECTOR: usize = 512;
/// Bytes of a copy that are one write.
const COPIED_AT_ONCE: u64 = 64 << 10;
/// Folder of removed files until their removal is durable; hidden.
const REMOVED: &str = ".removed-and-not-synced";

/// See the module. Copies share everything.
#[derive(Clone, Debug)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

/// Effects of a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerCut {
    /// Pages that were written and are, at least in part, as they were before.
    pub pages: u64,
    /// Creations, renames and removals that did not happen.
    pub names: u64,
}

type Id = u64;
type Page = Box<[u8]>;

#[derive(Debug, Default)]
struct State {
    root: PathBuf,
    seed: u64,
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
    /// Files below this folder may grow by this many bytes.
    free: Option<(PathBuf, u64)>,
    /// Below this folder nothing is written.
    refused: Option<PathBuf>,
    failing_syncs: u64,
    /// The kernel failed to write part of a file that is not open.
    writeback_failed: bool,
}

/// Choices of one cut about one name.
struct Choices(u64);

impl Choices {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn coin(&mut self) -> bool {
        self.next().is_multiple_of(2)
    }
}

#[derive(Debug)]
enum Change {
    Created(PathBuf, Id),
    Removed(PathBuf),
    Renamed(PathBuf, PathBuf, Id),
}

impl Change {
    fn path(&self) -> &Path {
        let (Self::Created(path, _) | Self::Removed(path) | Self::Renamed(_, path, _)) = self;
        path
    }

    fn folder(&self) -> Option<&Path> {
        self.path().parent()
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

#[derive(Debug, Default)]
struct Node {
    /// Its newest name.
    name: PathBuf,
    /// Where its bytes are.
    real: PathBuf,
    /// Others write to it.
    shared: bool,
    /// Length as of the last sync.
    length: u64,
    /// Lengths since: of a change of length the new one, of a write at the end the old one and the
    /// new one.
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

    /// The content of a page when it was last synced, as far as it is known for a page without a
    /// copy.
    fn old_page(&self, file: &File, page: u64) -> io::Result<Page> {
        let mut old = page_of(file, page)?;
        if self.shared {
            let synced = self.length.saturating_sub(page * PAGE).min(PAGE) as usize;
            old[synced..].fill(0);
        }
        Ok(old)
    }

    /// The range appended since the last sync to a file that others write to.
    fn appended(&self, length: u64) -> Option<(u64, u64)> {
        (self.shared && length > self.length).then_some((self.length, length))
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

/// Parts of a range that are not holes.
fn data(file: &File, from: u64, to: u64) -> Vec<Range<u64>> {
    let (mut found, mut at) = (Vec::new(), from);
    while at < to {
        let Ok(data) = seek(file, SeekFrom::Data(at)) else { break };
        let hole = seek(file, SeekFrom::Hole(data)).unwrap_or(to);
        if data < to {
            found.push(data.max(at)..hole.min(to));
        }
        at = hole.max(at + 1);
    }
    found
}

impl SimulatedDisk {
    /// A disk whose files are in `root`, which is created if absent; existing files count as
    /// durable.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn new(root: &Path, seed: u64) -> io::Result<Self> {
        fs::create_dir_all(root.join(REMOVED))?;
        let mut state = State { root: root.to_path_buf(), seed, ..State::default() };
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

    /// Operations carried out so far: writes, changes of length, syncs, creations, renames,
    /// removals.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// The power fails after `operations` more operations; every further one returns an error. The
    /// last is either carried out or not begun.
    pub fn end_after(&self, operations: u64, last_is_done: bool) {
        self.state().ends = Some((operations, last_is_done));
    }

    /// From here on every operation fails, until [`Self::cut_power`].
    pub fn switch_off(&self) {
        self.state().off = true;
    }

    /// Limits the growth of all files from here on to `bytes` in total; `None`: no limit.
    pub fn limit_growth(&self, bytes: Option<u64>) {
        let mut state = self.state();
        state.free = bytes.map(|bytes| (state.root.clone(), bytes));
    }

    /// The same of files below one folder; the others may grow.
    pub fn limit_growth_in(&self, folder: &Path, bytes: Option<u64>) {
        self.state().free = bytes.map(|bytes| (folder.to_path_buf(), bytes));
    }

    /// From here on nothing can be written below this folder for want of space, as on a full file
    /// system that copies what it overwrites; none: anything can.
    pub fn refuse_writes(&self, folder: Option<&Path>) {
        self.state().refused = folder.map(Path::to_path_buf);
    }

    /// The kernel fails to write part of a file that is not open: no sync of the file reports it,
    /// only [`Disk::check_writeback`] does, once.
    pub fn fail_writeback(&self) {
        self.state().writeback_failed = true;
    }

    /// The next `count` syncs of files fail.
    pub fn fail_syncs(&self, count: u64) {
        self.state().failing_syncs = count;
    }

    /// Cuts the power and restores it: files and names are then in a state that a crash may leave.
    /// Faults that were ordered are over.
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
        let mut changes: BTreeMap<PathBuf, Choices> = BTreeMap::new();
        for change in std::mem::take(&mut state.pending) {
            let new = || state.choices("name", change.path());
            if changes.entry(change.path().to_path_buf()).or_insert_with(new).coin() {
                change.apply(&mut state.durable);
            } else {
                cut.names += 1;
            }
        }
        state.lay_down()?;
        state.life += 1;
        (state.ends, state.off, state.free, state.failing_syncs) = (None, false, None, 0);
        state.refused = None;
        Ok(cut)
    }
}

impl State {
    fn choices(&self, what: &str, path: &Path) -> Choices {
        let name = path.strip_prefix(&self.root).unwrap_or(path).as_os_str().as_encoded_bytes();
        // FNV-1a.
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for byte in what.bytes().chain(name.iter().copied()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let mut choices = Choices(self.seed ^ hash.rotate_left(17));
        Choices(choices.next() ^ self.life.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    fn import(&mut self, path: &Path) -> io::Result<Id> {
        let id = self.next;
        self.next += 1;
        let length = fs::metadata(path)?.len();
        let (name, real) = (path.to_path_buf(), path.to_path_buf());
        let node = Node { name, real, length, ..Node::default() };
        self.nodes.insert(id, node);
        self.names.insert(path.to_path_buf(), id);
        self.durable.insert(path.to_path_buf(), id);
        Ok(id)
    }

    fn powered(&self, life: u64) -> io::Result<()> {
        if self.off || self.life != life { Err(off()) } else { Ok(()) }
    }

    /// Counts an operation. Returns whether it is the last, which is carried out but returns an
    /// error.
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

    /// Unlinked files are removed.
    fn collect(&mut self) {
        let named: BTreeSet<Id> =
            self.names.values().chain(self.durable.values()).copied().collect();
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
                None => node.old_page(file, page)?,
            };
            node.written.insert(page, old);
        }
        Ok(())
    }

    /// Applies a power cut to a file; returns how many pages were reverted.
    fn take_back(&mut self, id: Id) -> io::Result<u64> {
        let Some(node) = self.nodes.get(&id) else { return Ok(0) };
        let mut choices = self.choices("content", &node.name);
        let node = self.node(id)?;
        let mut pages = std::mem::take(&mut node.dropped);
        pages.append(&mut node.written);
        let file = real::open(&node.real, Open::Write)?;
        let length = file.metadata()?.len();
        let mut lengths = std::mem::take(&mut node.lengths);
        let appended = node.appended(length);
        lengths.extend(appended);
        let chosen = (choices.next() % (lengths.len() as u64 + 1)) as usize;
        let left = match lengths.get(chosen) {
            None => node.length,
            Some((from, to)) => match choices.next() % 3 {
                0 => *from,
                1 => *to,
                _ => (from + choices.next() % (to - from + 1)).next_multiple_of(PAGE).min(*to),
            },
        };
        let mut taken = 0;
        // Data appended by others is only in the file. It is reverted page by page, before the
        // length is.
        if let Some((from, to)) = appended {
            for part in data(&file, from / PAGE * PAGE, to) {
                for page in part.start / PAGE..part.end.div_ceil(PAGE) {
                    if !pages.contains_key(&page) {
                        let old = node.old_page(&file, page)?;
                        taken += u64::from(take_page_back(
                            &file,
                            page,
                            &old,
                            length,
                            left,
                            &mut choices,
                        )?);
                    }
                }
            }
        }
        file.set_len(left)?;
        for (page, old) in pages {
            taken += u64::from(take_page_back(&file, page, &old, length, left, &mut choices)?);
        }
        node.length = left;
        Ok(taken)
    }

    /// Restores the folder to the names in `durable`.
    fn lay_down(&mut self) -> io::Result<()> {
        let ids: Vec<_> = self.nodes.keys().copied().collect();
        for id in ids {
            self.set_aside(id)?;
        }
        self.names = self.durable.clone();
        for (path, id) in self.names.clone() {
            let node = self.node(id)?;
            // Its folder may have been removed, and its own removal was taken back.
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::rename(&node.real, &path)?;
            (node.name, node.real) = (path.clone(), path);
        }
        self.collect();
        Ok(())
    }
}

/// Applies a power cut to a page in a file of which `left` of `length` bytes stay; returns whether
/// any of it was reverted.
fn take_page_back(
    file: &File,
    page: u64,
    old: &[u8],
    length: u64,
    left: u64,
    choices: &mut Choices,
) -> io::Result<bool> {
    let new = page_of(file, page)?;
    let mut mixed = match choices.next() % 3 {
        // Cut off by the length and to be put back, or not written.
        0 => old.to_vec(),
        1 => new.to_vec(),
        _ => {
            let mut mixed = new.to_vec();
            for sector in 0..PAGE as usize / SECTOR {
                if choices.coin() {
                    let range = sector * SECTOR..(sector + 1) * SECTOR;
                    mixed[range.clone()].copy_from_slice(&old[range]);
                }
            }
            mixed
        }
    };
    // A truncation that is taken back brings the bytes back with it.
    if page * PAGE >= length {
        mixed.copy_from_slice(old);
    }
    let end = left.saturating_sub(page * PAGE).min(PAGE) as usize;
    file.write_all_at(&mixed[..end], page * PAGE)?;
    Ok(mixed[..] != new[..])
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
        // The order of a real folder does not depend on the seed.
        listed.sort();
        Ok(listed)
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(self.open_file(path, how)?))
    }

    fn open_raw(&self, path: &Path, how: Open) -> io::Result<File> {
        let opened = self.open_file(path, how)?;
        if how != Open::Read {
            self.state().node(opened.id)?.shared = true;
        }
        Ok(opened.file)
    }

    fn raw<'a>(&self, path: &Path, file: &'a File) -> Box<dyn DiskFile + 'a> {
        let state = self.state();
        // An unlinked file has no owner.
        let id = state.names.get(path).copied().unwrap_or(Id::MAX);
        let life = state.life;
        drop(state);
        Box::new(SimulatedFile { disk: self.clone(), id, life, file })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let life = state.life;
        let last = state.operation(life)?;
        let Some(id) = state.names.remove(from) else {
            // A folder: everything in it moves along. A replaced entry is gone for good, as the
            // folder itself is durable.
            state.settle(|folder| folder.starts_with(to));
            fs::rename(from, to)?;
            state.move_folder(from, to);
            return State::ended(last, ());
        };
        if let Some(replaced) = state.names.get(to).copied() {
            state.set_aside(replaced)?;
        }
        fs::rename(from, to)?;
        let node = state.node(id)?;
        (node.name, node.real) = (to.to_path_buf(), to.to_path_buf());
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
        let id = state
            .names
            .get(path)
            .copied()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let last = state.operation(life)?;
        state.set_aside(id)?;
        state.names.remove(path);
        state.pending.push(Change::Removed(path.to_path_buf()));
        State::ended(last, ())
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.state().powered_now()?;
        let (mut folders, mut files) = (vec![path.to_path_buf()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let list = if entry.file_type()?.is_dir() { &mut folders } else { &mut files };
                list.push(entry.path());
            }
        }
        files.sort();
        files.iter().try_for_each(|file| self.remove(file))?;
        let mut state = self.state();
        let life = state.life;
        let last = state.operation(life)?;
        fs::remove_dir_all(path)?;
        State::ended(last, ())
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let life = state.life;
        let last = state.operation(life)?;
        // Removing a folder from this one removes its contents.
        state.settle(|folder| folder == path || folder.starts_with(path) && !folder.exists());
        state.collect();
        State::ended(last, ())
    }

    fn sync_files(&self, folder: &Path, handle: &File, files: &[PathBuf]) -> io::Result<()> {
        for path in files {
            if let Some(file) = if_there(self.open_file(path, Open::Write))? {
                file.sync()?;
            }
        }
        self.sync_folder(folder)?;
        self.check_writeback(handle)
    }

    fn check_writeback(&self, _: &File) -> io::Result<()> {
        let mut state = self.state();
        let life = state.life;
        let last = state.operation(life)?;
        if std::mem::take(&mut state.writeback_failed) {
            return Err(io::Error::other("a simulated writeback failed"));
        }
        State::ended(last, ())
    }
}

impl State {
    fn powered_now(&self) -> io::Result<()> {
        self.powered(self.life)
    }

    /// Makes operations on names in these folders durable.
    fn settle(&mut self, folders: impl Fn(&Path) -> bool) {
        let (settled, pending): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|change| change.folder().is_some_and(&folders));
        self.pending = pending;
        settled.into_iter().for_each(|change| change.apply(&mut self.durable));
    }

    fn is_refused(&self, path: &Path) -> bool {
        self.refused.as_ref().is_some_and(|folder| path.starts_with(folder))
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
            for path in [&mut node.real, &mut node.name] {
                if let Some(there) = moved(path) {
                    *path = there;
                }
            }
        }
        for change in &mut self.pending {
            let paths: &mut [&mut PathBuf] = match change {
                Change::Created(path, _) | Change::Removed(path) => &mut [path],
                Change::Renamed(from, to, _) => &mut [from, to],
            };
            for path in paths {
                if let Some(there) = moved(path) {
                    **path = there;
                }
            }
        }
    }
}

#[derive(Debug)]
struct SimulatedFile<F> {
    disk: SimulatedDisk,
    id: Id,
    life: u64,
    file: F,
}

impl SimulatedDisk {
    fn open_file(&self, path: &Path, how: Open) -> io::Result<SimulatedFile<File>> {
        let mut state = self.state();
        let life = state.life;
        state.powered(life)?;
        if !path.starts_with(&state.root) {
            return Err(io::Error::other(format!("{} is not on this disk", path.display())));
        }
        let known = state.names.get(path).copied();
        let id = match known {
            Some(_) if how == Open::New => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(id) => id,
            // Created by a program that does not use this disk.
            None if path.exists() => state.import(path)?,
            None if matches!(how, Open::Read | Open::Write) => {
                return Err(io::ErrorKind::NotFound.into());
            }
            None if state.is_refused(path) => return Err(io::ErrorKind::StorageFull.into()),
            None => {
                let last = state.operation(life)?;
                File::create_new(path)?;
                let before = state.durable.remove(path);
                let id = state.import(path)?;
                state.durable.remove(path);
                state.durable.extend(before.map(|before| (path.to_path_buf(), before)));
                state.pending.push(Change::Created(path.to_path_buf(), id));
                State::ended(last, id)?
            }
        };
        let empties = matches!(how, Open::Truncate | Open::Secret);
        let mode = if empties || how == Open::New { Open::Write } else { how };
        let file = SimulatedFile { disk: self.clone(), id, life, file: real::open(path, mode)? };
        drop(state);
        if empties && known.is_some() {
            file.set_len(0)?;
        }
        Ok(file)
    }
}

impl<F: Borrow<File>> SimulatedFile<F> {
    fn file(&self) -> &File {
        self.file.borrow()
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        let last = state.operation(self.life)?;
        let fails = state.failing_syncs > 0;
        state.failing_syncs = state.failing_syncs.saturating_sub(1);
        let length = self.file().metadata()?.len();
        // An unlinked file has no owner.
        let Ok(node) = state.node(self.id) else { return State::ended(last, ()) };
        let mut written = std::mem::take(&mut node.written);
        if fails {
            if let Some((from, to)) = node.appended(length) {
                for part in data(self.file(), from / PAGE * PAGE, to) {
                    for page in part.start / PAGE..part.end.div_ceil(PAGE) {
                        let old = node.old_page(self.file(), page)?;
                        node.dropped.entry(page).or_insert(old);
                    }
                }
            }
            node.dropped.append(&mut written);
            return Err(io::Error::other("a simulated sync failed"));
        }
        node.length = length;
        node.lengths.clear();
        State::ended(last, ())
    }

    /// Whether so much growth of this file fits, which is taken from what is left then.
    fn fits(&self, state: &mut State, growth: u64) -> bool {
        let Some(name) = state.nodes.get(&self.id).map(|node| node.name.clone()) else {
            return true;
        };
        if state.is_refused(&name) {
            return false;
        }
        match &mut state.free {
            Some((folder, free)) if name.starts_with(&*folder) => {
                let fits = growth <= *free;
                *free -= if fits { growth } else { 0 };
                fits
            }
            _ => true,
        }
    }
}

impl<F: Borrow<File> + fmt::Debug + Send + Sync> DiskFile for SimulatedFile<F> {
    fn length(&self) -> io::Result<u64> {
        self.disk.state().powered(self.life)?;
        Ok(self.file().metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.state().powered(self.life)?;
        std::os::unix::fs::FileExt::read_at(self.file(), buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        let last = state.operation(self.life)?;
        let (length, end) = (self.file().metadata()?.len(), offset + bytes.len() as u64);
        let fits = self.fits(&mut state, end.saturating_sub(length));
        // A disk that fills up takes part of a write.
        let taken = if fits { bytes.len() } else { bytes.len() / 2 };
        if state.nodes.contains_key(&self.id) {
            let end = offset + taken as u64;
            state.keep_pages(self.id, self.file(), offset, end)?;
            if end > length {
                state.node(self.id)?.extended(length, end);
            }
        }
        self.file().write_all_at(&bytes[..taken], offset)?;
        if !fits {
            return Err(io::ErrorKind::StorageFull.into());
        }
        State::ended(last, ())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        let last = state.operation(self.life)?;
        let present = self.file().metadata()?.len();
        if length > present && !self.fits(&mut state, 0) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if state.nodes.contains_key(&self.id) {
            // Holes come back as holes.
            for part in data(self.file(), length, present) {
                state.keep_pages(self.id, self.file(), part.start, part.end)?;
            }
            state.node(self.id)?.lengths.push((length, length));
        }
        self.file().set_len(length)?;
        State::ended(last, ())
    }

    fn clear(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        let last = state.operation(self.life)?;
        if state.nodes.contains_key(&self.id) {
            for part in data(self.file(), offset, offset + bytes) {
                state.keep_pages(self.id, self.file(), part.start, part.end)?;
            }
        }
        real::clear(self.file(), offset, bytes)?;
        State::ended(last, ())
    }

    fn copy_from(&self, from: &File, from_offset: u64, offset: u64, bytes: u64) -> io::Result<u64> {
        let mut part = vec![0; bytes.min(COPIED_AT_ONCE) as usize];
        from.read_exact_at(&mut part, from_offset)?;
        self.write_at(&part, offset)?;
        Ok(part.len() as u64)
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
