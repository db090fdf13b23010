//! Reading pages through a layout, for whoever has no reason to map it: state sync, snapshots,
//! tests.

use std::path::Path;

use crate::{MemoryLayout, PAGE_BYTES, PagesError, Result, SegmentId, files};

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
    let mut next = layout.runs.partition_point(|run| run.start_page + run.pages <= start_page);
    let (mut page, mut rest) = (start_page, buf);
    while !rest.is_empty() {
        let run = layout.runs.get(next);
        let (segment, offset_page, pages_max) = match run {
            Some(run) if run.start_page <= page => {
                next += 1;
                let skipped = page - run.start_page;
                (Some(run.segment), run.offset_page + skipped, run.pages - skipped)
            }
            Some(run) => (None, page, run.start_page - page),
            None => (None, page, u64::MAX),
        };
        let bytes = pages_max.saturating_mul(PAGE_BYTES).min(rest.len() as u64);
        let (chunk, after) = rest.split_at_mut(bytes as usize);
        read_file(layout, segment, offset_page, chunk)?;
        page += bytes / PAGE_BYTES;
        rest = after;
    }
    Ok(())
}

fn read_file(
    layout: &MemoryLayout,
    segment: Option<SegmentId>,
    offset_page: u64,
    buf: &mut [u8],
) -> Result<()> {
    let (name, file) = match segment {
        None => (format!("{}.base", layout.id.0), Some(&layout.base)),
        Some(id) => (
            format!("{}.{}", layout.id.0, id.0),
            layout.segments.iter().find(|(segment, _)| *segment == id).map(|(_, file)| file),
        ),
    };
    let path = Path::new(&name);
    let Some(file) = file else { return Err(PagesError::MissingFile { path: path.to_path_buf() }) };
    files::read_exact(file, path, buf, offset_page * PAGE_BYTES)
}
