//! A copy of a memory that takes no space: the new memory references the base files and the
//! segments of the old one, and neither writes any more to a place that the other references.
//!
//! Base files: every page gets a reference of the new memory ([`crate::extent_refs`]), so folding
//! moves it before writing there. Segments: the open one is sealed, so nothing is appended to it
//! any more; each is deleted once no memory names it. Delta that memories have in common is folded
//! for all of them at once where possible ([`crate::fold_plan`]).

use std::{
    collections::BTreeMap,
    fs::File,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use crate::{
    BaseId, MemoryId, PAGE_BYTES, Run, SegmentId,
    memory::{Accounts, Memory, Seal, SealedSegment, Segment},
    shared::SharedFiles,
    sharing::Sharing,
};

/// Base files of a memory from which on it is not shared: a worker is handed all of them at once,
/// and those of a canister's other memory with them.
const BASES_MAX: usize = 32;
/// Segments likewise.
const SEGMENTS_MAX: usize = 48;

/// Files of the old memory that are to be durable when the new one is, whatever becomes of the old.
pub(crate) struct UnsyncedFiles {
    /// The old memory.
    pub(crate) owner: MemoryId,
    /// Set if its base was created since the last checkpoint; the file if it was written.
    pub(crate) base: Option<Option<Arc<File>>>,
    /// Its segment that was open.
    pub(crate) segment: Option<SealedSegment>,
    /// A file in which the new memory has a place that was cleared, maybe since the last
    /// checkpoint.
    pub(crate) cleared: Option<BaseId>,
}

impl Memory {
    /// Whether [`Memory::share_pages`] may be called.
    pub(crate) fn can_share_pages(&self) -> bool {
        let bases = self.sharing.as_ref().map_or(1, |sharing| sharing.files().len());
        !self.is_busy() && self.segments.len() < SEGMENTS_MAX && bases < BASES_MAX
    }

    /// Turns `copy`, which is new, into a memory that holds the first `pages` pages of this one.
    /// The data of both is durable with the checkpoint `generation`.
    pub(crate) fn share_pages(
        &mut self,
        mut copy: Self,
        pages: u64,
        shared: &SharedFiles,
        accounts: &Accounts,
        generation: u64,
    ) -> (Self, UnsyncedFiles) {
        let mut unsynced =
            UnsyncedFiles { owner: self.id, base: None, segment: None, cleared: None };
        if pages == 0 {
            return (copy, unsynced);
        }
        unsynced.segment = self.seal(accounts, generation);
        if std::mem::take(&mut self.base_unsynced) {
            unsynced.base = Some(self.take_initial_file(accounts));
        }
        let (handle, all) = (self.base_in_use(), 0..self.base_pages());
        let (own, bytes) = (BaseId::initial(self.id), self.base_bytes);
        let sharing = self.sharing.get_or_insert_with(|| {
            let base = shared.base(own, bytes, |refs| refs.add(&all));
            Box::new(Sharing::new(base, handle))
        });
        let base = shared.base(BaseId::initial(copy.id), copy.base_bytes, |_| ());
        let mut parts = sharing.extents(0..pages);
        let behind = pages..copy.base_pages();
        let place = sharing.place_behind(&behind);
        unsynced.cleared = place.as_ref().map(|file| file.id);
        parts.extend(place.iter().map(|file| (Arc::clone(file), behind.clone())));
        copy.sharing = Some(Box::new(Sharing::of_parts(base, parts, copy.base_pages())));
        if let Some(file) = place {
            // That it was reserved: the copy has its own reference by now.
            file.refs().cancel(&behind);
        }
        self.share_segments(&mut copy, pages, shared, accounts, generation);
        (copy, unsynced)
    }

    fn share_segments(
        &mut self,
        copy: &mut Self,
        pages: u64,
        shared: &SharedFiles,
        accounts: &Accounts,
        generation: u64,
    ) {
        // How the copy calls each segment, and how much of it it needs.
        let mut names: BTreeMap<SegmentId, (SegmentId, u64)> = BTreeMap::new();
        for run in self.index.runs().take_while(|run| run.start_page < pages) {
            let next = SegmentId(names.len() as u64);
            let (segment, live_pages) = names.entry(run.segment).or_insert((next, 0));
            let pages = run.pages.min(pages - run.start_page);
            *live_pages += pages;
            copy.index.insert(Run { pages, segment: *segment, ..run }, |_, _| ());
        }
        copy.next_segment = names.len() as u64;
        accounts.runs.fetch_add(copy.runs_len(), Relaxed);
        for (old, (new, live_pages)) in names {
            let (id, copy_id) = (self.id, copy.id);
            debug_assert!(self.segments.contains_key(&old), "no segment {old:?} to share");
            let Some(segment) = self.segments.get_mut(&old) else { continue };
            let bytes = segment.used_pages * PAGE_BYTES;
            let shared = segment.shared.get_or_insert_with(|| {
                let shared = shared.segment(id, old, bytes);
                shared.join(id, old);
                shared
            });
            shared.join(copy_id, new);
            debug_assert!(
                segment.seal.is_some() && live_pages <= segment.live_pages,
                "{live_pages} of {} live pages of segment {old:?} are shared",
                segment.live_pages
            );
            let borrowed = Segment {
                used_pages: segment.used_pages,
                live_pages,
                seal: Some(Seal { version: 0, generation }),
                durable: false,
                shared: Some(Arc::clone(shared)),
                read: Weak::new(),
            };
            copy.segments.insert(new, borrowed);
        }
    }
}
