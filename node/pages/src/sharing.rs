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
    BaseId, BasePart, BaseRun, MemoryId, PageFile,
    files::{Name, ReaderDir},
    shared::{BaseFile, RetiredRefs},
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
    pub(crate) from: Arc<BaseFile>,
    /// The place there is reserved.
    pub(crate) to: Arc<BaseFile>,
}

/// A base file that a memory references.
#[derive(Debug)]
struct ReferencedBase {
    file: Arc<BaseFile>,
    /// As new layouts name it.
    current: Weak<PageFile>,
    /// As named by layouts that may reference pages which newer ones find elsewhere.
    older: Vec<Weak<PageFile>>,
}

impl ReferencedBase {
    fn new(file: Arc<BaseFile>, current: Weak<PageFile>) -> Self {
        Self { file, current, older: Vec::new() }
    }

    fn readers(&self) -> Vec<Weak<PageFile>> {
        let all = self.older.iter().chain([&self.current]);
        all.filter(|file| file.strong_count() > 0).cloned().collect()
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// The own first, then those of parts.
    files: Vec<ReferencedBase>,
    parts: Vec<BaseRun>,
    /// Number of the next file that is made.
    next_file: u64,
    /// References that ended since the last checkpoint was begun.
    retired: Vec<RetiredRefs>,
}

impl Sharing {
    /// Of a memory all of whose pages are in its own file, which layouts name as `handle`.
    pub(crate) fn new(own: Arc<BaseFile>, handle: Weak<PageFile>) -> Self {
        let files = vec![ReferencedBase::new(own, handle)];
        Self { files, parts: Vec::new(), next_file: 1, retired: Vec::new() }
    }

    /// Of a memory whose pages are in these files, in order, and the rest in its own, with
    /// references on all.
    pub(crate) fn of_parts(
        own: Arc<BaseFile>,
        parts: impl IntoIterator<Item = (Arc<BaseFile>, Range<u64>)>,
        pages: u64,
    ) -> Self {
        let mut sharing = Self::new(own, Weak::new());
        for (file, range) in parts {
            append(&mut sharing.parts, range, file.id);
            sharing.use_file(file);
        }
        for (file, range) in sharing.extents(0..pages) {
            file.refs().add(&range);
        }
        sharing
    }

    pub(crate) fn parts(&self) -> &[BaseRun] {
        &self.parts
    }

    pub(crate) fn files(&self) -> impl ExactSizeIterator<Item = &Arc<BaseFile>> {
        self.files.iter().map(|used| &used.file)
    }

    /// Files of this number and above are not made yet.
    pub(crate) fn next_file_from(&mut self, number: u64) {
        self.next_file = self.next_file.max(number);
    }

    fn own(&self) -> BaseId {
        debug_assert!(!self.files.is_empty(), "a memory without a file of its own");
        self.files.first().map_or(BaseId::initial(MemoryId(u64::MAX)), |own| own.file.id)
    }

    pub(crate) fn file(&self, base: BaseId) -> Option<&Arc<BaseFile>> {
        self.files.iter().find(|used| used.file.id == base).map(|used| &used.file)
    }

    fn use_file(&mut self, file: Arc<BaseFile>) {
        if self.file(file.id).is_none() {
            self.files.push(ReferencedBase::new(file, Weak::new()));
        }
    }

    /// The file that holds a page, and the pages around it that are there without a gap, of `pages`
    /// in all.
    pub(crate) fn extent(&self, page: u64, pages: u64) -> Option<(&Arc<BaseFile>, Range<u64>)> {
        let next = self.parts.partition_point(|part| part.start_page + part.pages <= page);
        let before = next.checked_sub(1).and_then(|before| self.parts.get(before));
        let start = before.map_or(0, |part| part.start_page + part.pages);
        let (base, range) = match self.parts.get(next) {
            Some(part) if part.start_page <= page => {
                (part.base, part.start_page..part.start_page + part.pages)
            }
            Some(part) => (self.own(), start..part.start_page),
            None => (self.own(), start..pages),
        };
        Some((self.file(base)?, range))
    }

    /// The files that hold these pages, in the order of pages.
    pub(crate) fn extents(&self, pages: Range<u64>) -> Vec<(Arc<BaseFile>, Range<u64>)> {
        let (mut at, mut found) = (pages.start, Vec::new());
        while at < pages.end
            && let Some((file, extent)) = self.extent(at, pages.end)
        {
            let end = extent.end.min(pages.end);
            found.push((Arc::clone(file), at..end));
            at = end;
        }
        debug_assert!(at >= pages.end, "page {at} of {} is in no file", pages.end);
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
    pub(crate) fn place_for(&self, pages: &Range<u64>) -> Option<Arc<BaseFile>> {
        let last = usize::from(self.files.len() >= FILES_MANY);
        let files = self.files().skip(last).chain(self.files().take(last));
        files.into_iter().find(|file| file.take_free(pages)).cloned()
    }

    /// The file for pages behind the end of a copy, if not the copy's own; reserves them there.
    /// Otherwise the pages that copies of copies write behind the ends of others would take one
    /// more file for each.
    pub(crate) fn place_behind(&self, pages: &Range<u64>) -> Option<Arc<BaseFile>> {
        let is_wanted = self.files.len() >= FILES_MANY && !pages.is_empty();
        is_wanted.then(|| self.files().find(|file| file.take_free(pages)).cloned()).flatten()
    }

    /// The name of a file that is to be made.
    pub(crate) fn next_base(&mut self) -> BaseId {
        let base = BaseId { number: self.next_file, ..self.own() };
        self.next_file += 1;
        base
    }

    /// Pages were moved, and are durable where they are now.
    pub(crate) fn moved(&mut self, moves: &[Move]) {
        let mut left: Vec<(Arc<BaseFile>, Vec<Range<u64>>)> = Vec::new();
        for Move { pages, from, to } in moves {
            from.refs().retire(pages);
            match left.iter_mut().find(|(file, _)| file.id == from.id) {
                Some((_, ranges)) => ranges.push(pages.clone()),
                None => left.push((Arc::clone(from), vec![pages.clone()])),
            }
            self.use_file(Arc::clone(to));
            self.lay(pages, to.id);
        }
        for (file, pages) in left {
            let readers = self.outdate(file.id);
            self.retired.push(RetiredRefs {
                file,
                pages,
                readers,
                disowns: false,
                is_pinned: false,
            });
        }
        let (own, parts) = (self.own(), &self.parts);
        self.files.retain(|used| {
            let id = used.file.id;
            id == own || parts.iter().any(|part| part.base == id)
        });
        debug_assert!(
            self.parts.iter().all(|part| self.file(part.base).is_some()),
            "a part names a file that is not referenced"
        );
    }

    /// Has new layouts name a file anew; how older ones do.
    fn outdate(&mut self, base: BaseId) -> Vec<Weak<PageFile>> {
        let used = self.files.iter_mut().find(|used| used.file.id == base);
        used.map_or_else(Vec::new, |used| {
            used.older = used.readers();
            used.current = Weak::new();
            used.older.clone()
        })
    }

    fn lay(&mut self, pages: &Range<u64>, base: BaseId) {
        let own = self.own();
        let mut parts: Vec<BaseRun> = Vec::with_capacity(self.parts.len() + 2);
        let mut put = |start: u64, end: u64, base: BaseId| {
            if base != own {
                append(&mut parts, start..end, base);
            }
        };
        let mut is_laid = false;
        for part in &self.parts {
            let (start, end) = (part.start_page, part.start_page + part.pages);
            put(start, end.min(pages.start), part.base);
            if !is_laid && end > pages.start {
                put(pages.start, pages.end, base);
                is_laid = true;
            }
            put(start.max(pages.end), end, part.base);
        }
        if !is_laid {
            put(pages.start, pages.end, base);
        }
        self.parts = parts;
    }

    /// The own file as a new layout names it.
    pub(crate) fn own_handle(&mut self, dir: &Arc<ReaderDir>) -> Arc<PageFile> {
        self.handle(dir, self.own())
    }

    fn handle(&mut self, dir: &Arc<ReaderDir>, base: BaseId) -> Arc<PageFile> {
        let used = self.files.iter_mut().find(|used| used.file.id == base);
        let known = used.as_ref().and_then(|used| used.current.upgrade());
        known.unwrap_or_else(|| {
            let file = Arc::new(PageFile::new(dir, Name::Base(base)));
            if let Some(used) = used {
                used.current = Arc::downgrade(&file);
            }
            file
        })
    }

    /// The parts as a new layout names them.
    pub(crate) fn base_parts(&mut self, dir: &Arc<ReaderDir>) -> Arc<[BasePart]> {
        let parts = self.parts.clone();
        let named = parts.iter().map(|part| BasePart {
            start_page: part.start_page,
            pages: part.pages,
            file: self.handle(dir, part.base),
        });
        named.collect()
    }

    /// References that ended, to be released once a checkpoint is durable.
    pub(crate) fn take_retired(&mut self) -> Vec<RetiredRefs> {
        std::mem::take(&mut self.retired)
    }

    /// Ends all references of a memory of `pages` pages, which is removed.
    pub(crate) fn retire_all(&mut self, pages: u64) -> Vec<RetiredRefs> {
        let mut retired = self.take_retired();
        let extents = self.extents(0..pages);
        let own = self.own();
        for used in &self.files {
            let file = Arc::clone(&used.file);
            let here = extents.iter().filter(|(of, _)| of.id == file.id);
            let pages: Vec<_> = here.map(|(_, range)| range.clone()).collect();
            pages.iter().for_each(|range| file.refs().retire(range));
            let disowns = file.id == own;
            let readers = used.readers();
            retired.push(RetiredRefs { file, pages, readers, disowns, is_pinned: false });
        }
        retired
    }
}

/// Adds a part behind others.
fn append(parts: &mut Vec<BaseRun>, pages: Range<u64>, base: BaseId) {
    debug_assert!(
        pages.is_empty()
            || parts.last().is_none_or(|last| last.start_page + last.pages <= pages.start),
        "{pages:?} is not behind the last of {} parts",
        parts.len()
    );
    match parts.last_mut() {
        _ if pages.start >= pages.end => {}
        Some(last) if last.base == base && last.start_page + last.pages == pages.start => {
            last.pages = pages.end - last.start_page;
        }
        _ => {
            let (start_page, pages) = (pages.start, pages.end - pages.start);
            parts.push(BaseRun { start_page, pages, base });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::PAGE_BYTES;

    const PAGES: u64 = 64;

    fn file(number: u64) -> Arc<BaseFile> {
        Arc::new(BaseFile::new(BaseId { memory: MemoryId(1), number }, PAGES * PAGE_BYTES))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn relocated_pages_are_described_by_minimal_parts(
            steps in proptest::collection::vec((0..PAGES, 1..16u64, 0..3u64), 0..40),
        ) {
            let files: Vec<_> = (0..3).map(file).collect();
            let mut sharing = Sharing::new(Arc::clone(&files[0]), Weak::new());
            let mut table = vec![0; PAGES as usize];
            for (start, pages, number) in steps {
                let range = start..(start + pages).min(PAGES);
                table[range.start as usize..range.end as usize].fill(number);
                sharing.use_file(Arc::clone(&files[number as usize]));
                sharing.lay(&range, files[number as usize].id);
                let mut found = Vec::new();
                for (file, range) in sharing.extents(0..PAGES) {
                    prop_assert_eq!(range.start, found.len() as u64);
                    found.resize(range.end as usize, file.id.number);
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
        let sharing = Sharing::new(file(0), Weak::new());
        assert_eq!(sharing.unit_of(70, &(0..PAGES * 2)), 64..128);
        assert_eq!(sharing.unit_of(70, &(69..80)), 69..80);
    }
}
