//! Reading pages through a layout without mapping it, for state sync, snapshots and tests.

use std::{fs::File, ops::Range, path::PathBuf, sync::Arc};

use crate::{MemoryLayout, PAGE_BYTES, PageFile, PagesError, Result, SegmentId, files};

/// Fills `buf` with the pages from `start_page` on, as this version of the memory holds them. `buf`
/// is a whole number of pages, within the memory.
pub fn read_pages(layout: &MemoryLayout, start_page: u64, buf: &mut [u8]) -> Result<()> {
    let bytes = buf.len() as u64;
    let pages = bytes / PAGE_BYTES;
    let in_range =
        start_page.checked_add(pages).is_some_and(|end| end <= layout.base_bytes / PAGE_BYTES);
    if !bytes.is_multiple_of(PAGE_BYTES) || !in_range {
        return Err(PagesError::OutOfRange {
            id: layout.id,
            start_page,
            bytes,
            base_bytes: layout.base_bytes,
        });
    }
    // Files stay open from one run to the next.
    let mut open: Vec<(&PageFile, Arc<File>)> = Vec::new();
    let mut next = layout.runs.partition_point(|run| run.start_page + run.pages <= start_page);
    let (mut page, mut rest) = (start_page, buf);
    while !rest.is_empty() {
        let run = layout.runs.get(next);
        let (named, offset_page, pages_max) = match run {
            Some(run) if run.start_page <= page => {
                next += 1;
                let skipped = page - run.start_page;
                let segment = segment_of(layout, run.segment)?;
                (segment, run.offset_page + skipped, run.pages - skipped)
            }
            run => {
                let end = run.map_or(layout.base_bytes / PAGE_BYTES, |run| run.start_page);
                match layout.bases(page..end).next() {
                    Some((base, pages)) => (base, page, pages.end - page),
                    None => (layout.base.as_ref(), page, u64::MAX),
                }
            }
        };
        let bytes = pages_max.saturating_mul(PAGE_BYTES).min(rest.len() as u64);
        let (chunk, after) = rest.split_at_mut(bytes as usize);
        let known = open.iter().find(|(open, _)| std::ptr::eq(*open, named));
        let file = match known.map(|(_, file)| file.clone()) {
            Some(file) => file,
            None => {
                let file = named.open()?;
                open.push((named, file.clone()));
                file
            }
        };
        files::read_exact(&file, &named.path(), chunk, offset_page * PAGE_BYTES)?;
        page += bytes / PAGE_BYTES;
        rest = after;
    }
    Ok(())
}

/// Fills `buf` with the bytes from `offset` on, which need not be page-aligned. `buf` must be
/// within the memory. Allocates as many bytes again.
pub fn read_bytes(layout: &MemoryLayout, offset: u64, buf: &mut [u8]) -> Result<()> {
    if buf.is_empty() {
        return Ok(());
    }
    let pages = pages_of(layout, offset, buf.len())?;
    let mut content = vec![0; ((pages.end - pages.start) * PAGE_BYTES) as usize];
    read_pages(layout, pages.start, &mut content)?;
    let within = (offset - pages.start * PAGE_BYTES) as usize;
    if let Some(found) = content.get(within..within + buf.len()) {
        buf.copy_from_slice(found);
    }
    Ok(())
}

/// The pages that contain `bytes` bytes from `offset` on, if these are within the memory.
pub(crate) fn pages_of(layout: &MemoryLayout, offset: u64, bytes: usize) -> Result<Range<u64>> {
    let end = offset.checked_add(bytes as u64).filter(|end| *end <= layout.base_bytes);
    let Some(end) = end else {
        return Err(PagesError::OutOfRange {
            id: layout.id,
            start_page: offset / PAGE_BYTES,
            bytes: bytes as u64,
            base_bytes: layout.base_bytes,
        });
    };
    Ok(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES))
}

pub(crate) fn segment_of(layout: &MemoryLayout, id: SegmentId) -> Result<&PageFile> {
    let file = layout.segments.iter().find(|(segment, _)| *segment == id);
    file.map(|(_, file)| file.as_ref()).ok_or_else(|| {
        let name = format!("{}.{}", layout.id.0, id.0);
        PagesError::MissingFile { path: PathBuf::from(name) }
    })
}
