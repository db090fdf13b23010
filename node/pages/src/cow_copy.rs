//! A copy of a memory that takes no space: the new memory references the base files and the
//! segments of the old one, and neither writes any more to a place that the other references.
//!
//! Base files: every page gets a reference of the new memory ([`crate::extent_refs`]), so folding
//! moves it before writing there. Segments: the open one is sealed, so nothing is appended to it
//! any more; each is deleted once no memory names it. Delta that memories have in common is folded
//! for all of them at once where possible ([`crate::fold_plan`]).

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use crate::{
    PAGE_BYTES, Run, SegmentId,
    extents::SharedFiles,
    files::Name,
    memory::{Accounts, Memory, Seal, Segment},
    pending::SyncFile,
    sharing::Sharing,
};

/// Base files of a memory from which on it is not shared: a worker is handed all of them at once,
/// and those of a canister's other memory with them.
const BASES_MAX: usize = 32;
/// Segments likewise.
const SEGMENTS_MAX: usize = 48;

impl Memory {
    /// Whether [`Memory::share_pages`] may be called.
    pub(crate) fn can_share_pages(&self) -> bool {
        let bases = self.sharing.as_ref().map_or(1, |sharing| sharing.files_len());
        !self.is_busy() && self.segments.len() < SEGMENTS_MAX && bases < BASES_MAX
    }

    /// Turns `copy`, which is new, into a memory that holds the first `pages` pages of this one.
    /// The data of both is durable with the checkpoint `generation`. Also returns files that are to
    /// be durable when the copy is, whatever becomes of this memory.
    pub(crate) fn share_pages(
        &mut self,
        mut copy: Self,
        pages: u64,
        shared: &SharedFiles,
        accounts: &Accounts,
        generation: u64,
    ) -> (Self, Vec<SyncFile>) {
        if pages == 0 {
            return (copy, Vec::new());
        }
        let mut unsynced: Vec<_> = self.take_unsynced_base(accounts).into_iter().collect();
        unsynced.extend(self.seal(accounts, generation));
        let (is_first, all, behind) =
            (self.sharing.is_none(), 0..self.base_pages(), pages..copy.base_pages());
        let sharing = self.start_sharing(shared);
        if is_first {
            sharing.add_refs(all);
        }
        let copied = copy.start_sharing(shared);
        for (file, range) in sharing.extents(0..pages) {
            copied.place(range, &file);
        }
        copied.add_refs(0..pages);
        match sharing.place_behind(&behind) {
            Some(file) => {
                // It was cleared, maybe since the last checkpoint.
                unsynced.insert(0, SyncFile::base(file.name, None));
                copied.place(behind, &file);
            }
            None => copied.add_refs(behind),
        }
        self.share_segments(&mut copy, pages, shared, accounts, generation);
        (copy, unsynced)
    }

    /// Registers its base file unless it is. No page of a file that was not is referenced yet.
    pub(crate) fn start_sharing(&mut self, shared: &SharedFiles) -> &mut Sharing {
        let (id, bytes) = (self.id, self.base_bytes);
        let new = || Box::new(Sharing::new(id, shared.file(Name::own_base(id), bytes)));
        self.sharing.get_or_insert_with(new)
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
            let id = self.id;
            debug_assert!(self.segments.contains_key(&old), "no segment {old:?} to share");
            let Some(segment) = self.segments.get_mut(&old) else { continue };
            let bytes = segment.used_pages * PAGE_BYTES;
            let shared = segment.shared.get_or_insert_with(|| {
                let shared = shared.file(Name::Segment(id, old), bytes);
                shared.refs().add(&shared.whole());
                shared
            });
            shared.refs().add(&shared.whole());
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
