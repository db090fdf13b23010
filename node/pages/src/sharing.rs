//! The base files that hold the pages of one memory, when it is a copy or was copied.
//!
//! Every page is in the file that the memory was created with (its *own*), unless a part names
//! another file; the offset is the same in both. A memory may write to any of these files where it
//! alone references the pages. Where others do, folding first moves the pages: to a file of the
//! memory in which that place is unreferenced, or to a new one. The number of pages that move at
//! once ([`unit`]) grows with the number of parts, which therefore stays small; and because places
//! that others released are used again, before a memory's own if it has many files, a memory has
//! about as many files as there are copies of it at a time.

use std::{
    ops::Range,
    sync::{Arc, Weak},
};

use crate::{
    BaseId, BasePart, BaseRun, MemoryId, PageFile, Pin,
    extents::{RetiredRefs, SharedFile},
    files::{Name, ReaderDir},
    range_map::RangeMap,
};

/// Number of base files from which on a memory takes places in those that its copies reference
/// anyway before its own, which would be one more for them.
const FILES_MANY: usize = 8;
/// Pages that are moved at once in a memory of few parts: 256 KiB, as much as state sync hashes at
/// once.
const UNIT_PAGES: u64 = 64;
/// Number of parts after which the unit doubles, each time.
const PARTS_PER_UNIT: usize = 128;

/// Pages that are moved at once, of a memory that has `parts` parts.
///
/// A move makes at most two parts of one, and one that takes a whole part makes none. So with units
/// of `u` pages there are at most as many parts as before and one for each `u` pages of the memory:
/// with 1 GiB no more than about 800, with 500 GiB 2,000, and a worker may map them all.
fn unit(parts: usize) -> u64 {
    let doubled = u32::try_from(parts / PARTS_PER_UNIT).unwrap_or(u32::MAX);
    UNIT_PAGES.checked_shl(doubled.min(40)).unwrap_or(UNIT_PAGES)
}

/// Pages that go from one base file to another.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) pages: Range<u64>,
    pub(crate) from: Arc<SharedFile>,
    /// The place there is reserved.
    pub(crate) to: Arc<SharedFile>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sharing {
    memory: MemoryId,
    own: Arc<SharedFile>,
    /// Those of parts, each once.
    others: Vec<Arc<SharedFile>>,
    /// Files that hold pages instead of the own.
    parts: RangeMap<Arc<SharedFile>>,
    /// Number of the next file that is made.
    next_file: u64,
}

impl Sharing {
    /// Of a memory all of whose pages are in its own file. It references the file, and no page yet.
    pub(crate) fn new(memory: MemoryId, own: Arc<SharedFile>) -> Self {
        own.users().insert(memory);
        own.refs().add(&own.whole());
        Self { memory, own, others: Vec::new(), parts: RangeMap::default(), next_file: 1 }
    }

    /// These pages are in that file of the memory or another; adds no reference.
    pub(crate) fn place(&mut self, pages: Range<u64>, file: &Arc<SharedFile>) {
        if *file == self.own {
            self.parts.remove(&pages, |_, _| true);
            return;
        }
        if !self.others.contains(file) {
            file.users().insert(self.memory);
            self.others.push(Arc::clone(file));
        }
        self.parts.insert(pages, Arc::clone(file), |_, _| ());
    }

    /// References these pages where they are.
    pub(crate) fn add_refs(&self, pages: Range<u64>) {
        for (file, range) in self.extents(pages) {
            file.refs().add(&range);
        }
    }

    pub(crate) fn parts(&self) -> impl ExactSizeIterator<Item = (Range<u64>, &Arc<SharedFile>)> {
        self.parts.iter()
    }

    /// The parts as an index names them.
    pub(crate) fn base_runs(&self) -> Vec<BaseRun> {
        let run = |(Range { start, end }, file): (_, &Arc<SharedFile>)| match file.name {
            Name::Base(base) => Some(BaseRun { start_page: start, pages: end - start, base }),
            Name::Segment(..) => None,
        };
        self.parts.iter().filter_map(run).collect()
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<SharedFile>> {
        std::iter::once(&self.own).chain(&self.others)
    }

    pub(crate) fn files_len(&self) -> usize {
        1 + self.others.len()
    }

    /// Files of this number and above are not made yet.
    pub(crate) fn next_file_from(&mut self, number: u64) {
        self.next_file = self.next_file.max(number);
    }

    /// The file that holds a page, and the pages around it that are there without a gap, of `pages`
    /// in all.
    pub(crate) fn extent(&self, page: u64, pages: u64) -> (&Arc<SharedFile>, Range<u64>) {
        match self.parts.next(page) {
            Some((part, file)) if part.start <= page => (file, part),
            _ => (&self.own, self.parts.gap(page, pages)),
        }
    }

    /// The files that hold these pages, in the order of pages.
    pub(crate) fn extents(&self, pages: Range<u64>) -> Vec<(Arc<SharedFile>, Range<u64>)> {
        let (mut at, mut found) = (pages.start, Vec::new());
        while at < pages.end {
            let (file, extent) = self.extent(at, pages.end);
            let end = extent.end.min(pages.end);
            debug_assert!(end > at, "page {at} of {} is in no file", pages.end);
            found.push((Arc::clone(file), at..end));
            at = end;
        }
        found
    }

    /// The pages that are moved with this one, which is in `extent`.
    pub(crate) fn unit_of(&self, page: u64, extent: &Range<u64>) -> Range<u64> {
        let unit = unit(self.parts.len());
        let start = page / unit * unit;
        let moved = start.max(extent.start)..start.saturating_add(unit).min(extent.end);
        debug_assert!(moved.contains(&page), "page {page} is not among {moved:?}");
        moved
    }

    /// A file of the memory in which these pages were unreferenced; reserves them there.
    pub(crate) fn place_for(&self, pages: &Range<u64>) -> Option<Arc<SharedFile>> {
        let last = usize::from(self.files_len() >= FILES_MANY);
        let mut files = self.files().skip(last).chain(self.files().take(last));
        files.find(|file| file.reserve(pages)).cloned()
    }

    /// The file for pages behind the end of a copy, if not the copy's own; reserves them there.
    /// Otherwise the pages that copies of copies write behind the ends of others would take one
    /// more file for each.
    pub(crate) fn place_behind(&self, pages: &Range<u64>) -> Option<Arc<SharedFile>> {
        let is_wanted = self.files_len() >= FILES_MANY && !pages.is_empty();
        is_wanted.then(|| self.files().find(|file| file.reserve(pages)).cloned()).flatten()
    }

    /// The name of a file that is to be made.
    pub(crate) fn next_base(&mut self) -> BaseId {
        let base = BaseId { memory: self.memory, number: self.next_file };
        self.next_file += 1;
        base
    }

    /// Pages were moved, and are durable where they are now. Layouts with the pins `readers` find
    /// them where they were. Returns the references to the places that they left.
    pub(crate) fn moved(&mut self, moves: &[Move], readers: &[Weak<Pin>]) -> Vec<RetiredRefs> {
        let mut left: Vec<(&Arc<SharedFile>, Vec<Range<u64>>)> = Vec::new();
        for Move { pages, from, to } in moves {
            match left.iter_mut().find(|(file, _)| *file == from) {
                Some((_, ranges)) => ranges.push(pages.clone()),
                None => left.push((from, vec![pages.clone()])),
            }
            self.place(pages.clone(), to);
        }
        let Self { memory, others, parts, .. } = self;
        others.retain(|file| {
            let is_used = parts.iter().any(|(_, used)| used == file);
            if !is_used {
                file.users().remove(memory);
            }
            is_used
        });
        let retire = |(file, pages)| RetiredRefs::new(file, pages, readers.to_vec());
        left.into_iter().map(retire).collect()
    }

    /// The parts as a new layout names them.
    pub(crate) fn base_parts(&self, dir: &Arc<ReaderDir>) -> Arc<[BasePart]> {
        let handle = |file: &Arc<SharedFile>| Arc::new(PageFile::new(dir, file.name));
        let handles: Vec<_> = self.others.iter().map(|file| (file, handle(file))).collect();
        let named = self.parts.iter().filter_map(|(Range { start, end }, file)| {
            let (_, handle) = handles.iter().find(|(of, _)| *of == file)?;
            Some(BasePart { start_page: start, pages: end - start, file: Arc::clone(handle) })
        });
        named.collect()
    }

    /// Checks that the memory, of `pages` pages, references each page where it is.
    pub(crate) fn check(&self, pages: u64) {
        for (file, range) in self.extents(0..pages) {
            assert!(file.refs().is_current(&range), "{range:?} of {:?} is in use", file.name);
        }
        assert!(
            self.others.iter().all(|file| self.parts.iter().any(|(_, part)| part == file)),
            "memory {} has {} files and no page in one of them",
            self.memory.0,
            self.others.len()
        );
    }

    /// Ends all references of a memory of `pages` pages, which is removed.
    pub(crate) fn retire_all(&self, pages: u64, readers: &[Weak<Pin>]) -> Vec<RetiredRefs> {
        let mut extents = self.extents(0..pages);
        extents.push((Arc::clone(&self.own), self.own.whole()));
        let retire = |file: &Arc<SharedFile>| {
            file.users().remove(&self.memory);
            let here = extents.iter().filter(|(of, _)| of == file);
            let pages = here.map(|(_, range)| range.clone()).collect();
            RetiredRefs::new(file, pages, readers.to_vec())
        };
        self.files().map(retire).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{PAGE_BYTES, extents::SharedFiles};

    const PAGES: u64 = 64;

    fn file(number: u64) -> Arc<SharedFile> {
        let base = BaseId { memory: MemoryId(1), number };
        SharedFiles::default().file(Name::Base(base), PAGES * PAGE_BYTES)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn relocated_pages_are_described_by_minimal_parts(
            steps in proptest::collection::vec((0..PAGES, 1..16u64, 0..3u64), 0..40),
        ) {
            let files: Vec<_> = (0..3).map(file).collect();
            let mut sharing = Sharing::new(MemoryId(1), Arc::clone(&files[0]));
            let mut table = vec![0; PAGES as usize];
            for (start, pages, number) in steps {
                let range = start..(start + pages).min(PAGES);
                table[range.start as usize..range.end as usize].fill(number);
                sharing.place(range, &files[number as usize]);
                let mut found = Vec::new();
                for (file, range) in sharing.extents(0..PAGES) {
                    prop_assert_eq!(range.start, found.len() as u64);
                    let number = files.iter().position(|known| *known == file).unwrap_or(9);
                    found.resize(range.end as usize, number as u64);
                }
                prop_assert_eq!(&found, &table);
                let changes = table.windows(2).filter(|pair| pair[0] != pair[1]).count();
                prop_assert!(sharing.parts().len() <= changes + 1);
            }
        }
    }

    #[test]
    fn the_more_parts_there_are_the_more_pages_move_at_once() {
        assert_eq!((unit(0), unit(127), unit(128), unit(1_000)), (64, 64, 128, 64 << 7));
        let sharing = Sharing::new(MemoryId(1), file(0));
        assert_eq!(sharing.unit_of(70, &(0..PAGES * 2)), 64..128);
        assert_eq!(sharing.unit_of(70, &(69..80)), 69..80);
    }
}
