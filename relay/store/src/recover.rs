//! The contents of a store at start: partitions, their segments, their indexes, and the effects of
//! a crash on them.
//!
//! A segment that is complete and synced according to its index is taken as it is, if its length
//! agrees; its messages are checked when they are queried. Every other one is read through: a torn
//! end is cut, damage sets the segment aside, and rows missing in the index are added. An index
//! that is missing or damaged, or that knows more than the segments hold, is rebuilt.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use disk::{
    Open, if_there,
    records::{HEADER_BYTES, RecordError},
};

use crate::{
    catalog::{ASIDE, Partition},
    config::PARTITION_NS_MAX,
    error::OpenError,
    index::{Index, Position, Row, is_damage},
    message::Segment,
    segment::{ScanError, number_of, scan},
    store::StoreState,
};

/// Rows of one transaction.
const BATCH_ROWS: usize = 2048;

/// Finds everything in the folder. Returns the partitions that trouble of the disk keeps from being
/// opened, which may heal.
pub(crate) fn recover(shared: &Arc<StoreState>) -> Result<Vec<Arc<Partition>>, OpenError> {
    let (transit, partitions) = (shared.transit_folder(), shared.partitions_folder());
    for folder in [&transit, &partitions] {
        let made = shared.disk.create_folder(folder);
        made.map_err(|source| OpenError::Io { path: folder.clone(), doing: "creating", source })?;
    }
    let listing = |path: &PathBuf| {
        let list = shared.disk.list(path);
        list.map_err(|source| OpenError::Io { path: path.clone(), doing: "listing", source })
    };
    // There are no references to messages of an earlier process.
    for path in listing(&transit)? {
        if let Err(error) = if_there(shared.disk.remove(&path)) {
            tracing::warn!(path = %path.display(), %error, "a transit segment was not removed");
        }
    }
    let mut found: Vec<(i64, bool, PathBuf)> = Vec::new();
    for path in listing(&partitions)? {
        match parse_name(&path) {
            Some((start_ns, aside)) => found.push((start_ns, aside, path)),
            None => tracing::warn!(path = %path.display(), "not a partition; it is left alone"),
        }
    }
    found.sort();
    found.dedup_by_key(|(start_ns, ..)| *start_ns);
    let mut unopened = Vec::new();
    for (start_ns, aside, path) in found {
        // It took messages for so long at most, whatever the settings were.
        let end_ns = start_ns.saturating_add(PARTITION_NS_MAX);
        let partition = Arc::new(Partition::new(start_ns, end_ns, path.clone(), aside));
        if aside {
            partition.count_aside(bytes_in(shared, &path));
            shared.catalog.add(partition);
            continue;
        }
        match open_partition(shared, &partition) {
            Ok(()) => shared.catalog.add(partition),
            Err(error) => {
                let to = path.with_extension(ASIDE);
                let renamed = !error.can_heal() && shared.disk.rename(&path, &to).is_ok();
                let what = if renamed { "it is set aside" } else { "it is tried again" };
                tracing::warn!(path = %path.display(), %error, "a partition cannot be read; {what}");
                let folder = if renamed { to } else { path };
                let aside = Arc::new(Partition::new(start_ns, end_ns, folder, true));
                aside.count_aside(bytes_in(shared, &aside.folder));
                if !renamed {
                    aside.unopened.store(true, Ordering::Release);
                    unopened.push(aside.clone());
                }
                shared.catalog.add(aside);
            }
        }
    }
    Ok(unopened)
}

/// Puts a partition that could not be opened into service. Errors: it still cannot.
pub(crate) fn open_again(
    shared: &Arc<StoreState>,
    unopened: &Arc<Partition>,
) -> Result<(), PartitionError> {
    let end_ns = unopened.end_ns.load(Ordering::Acquire);
    let partition = Partition::new(unopened.start_ns, end_ns, unopened.folder.clone(), false);
    let partition = Arc::new(partition);
    open_partition(shared, &partition)?;
    shared.catalog.replace(unopened, partition);
    Ok(())
}

/// Start of the partition that has this folder, and whether it was set aside.
fn parse_name(path: &Path) -> Option<(i64, bool)> {
    let name = path.file_name()?.to_str()?;
    let (start, aside) = match name.strip_suffix(ASIDE).and_then(|name| name.strip_suffix('.')) {
        Some(start) => (start, true),
        None => (name, false),
    };
    let start = start.parse().ok().filter(|start: &i64| *start >= 0)?;
    Some((start, aside))
}

fn bytes_in(shared: &StoreState, folder: &Path) -> u64 {
    let files = shared.disk.list(folder).unwrap_or_default();
    files.iter().map(|path| std::fs::metadata(path).map_or(0, |metadata| metadata.len())).sum()
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PartitionError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("its index: {0}")]
    Index(#[from] rusqlite::Error),
}

impl PartitionError {
    /// Trouble of the disk: the partition keeps its name, and is out of service until it can be
    /// opened.
    fn can_heal(&self) -> bool {
        match self {
            Self::Io(error) => error.kind() != io::ErrorKind::NotADirectory,
            Self::Index(error) => !is_damage(error),
        }
    }
}

fn open_partition(
    shared: &Arc<StoreState>,
    partition: &Arc<Partition>,
) -> Result<(), PartitionError> {
    for path in shared.disk.list(&partition.folder)? {
        if let Some(number) = number_of(&path) {
            let files = shared.files.clone();
            let length = shared.disk.open(&path, Open::Read)?.length()?;
            let segment = Segment::new(shared.disk.clone(), files, path, number, false);
            segment.length.store(length, Ordering::Release);
            segment.sealed.store(true, Ordering::Release);
            partition.add_segment(segment);
            shared.next_segment.fetch_max(number.saturating_add(1), Ordering::Relaxed);
        } else if path.extension().is_some_and(|extension| extension == ASIDE) {
            let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
            partition.count_aside(bytes);
            // Its number is not used again.
            let number = number_of(&path.with_extension(""));
            let next = number.unwrap_or(0).saturating_add(1);
            shared.next_segment.fetch_max(next, Ordering::Relaxed);
        }
    }
    let index = match open_index(shared, partition) {
        Ok(Some(index)) => index,
        Ok(None) => rebuild(shared, partition)?,
        Err(PartitionError::Index(error)) if is_damage(&error) => {
            let path = partition.index_path();
            tracing::warn!(path = %path.display(), %error, "an index is damaged; it is made anew");
            rebuild(shared, partition)?
        }
        Err(error) => return Err(error),
    };
    *partition.figures() = index.figures()?;
    index.fold()?;
    partition.measure_index();
    Ok(())
}

/// The index that is there, brought up to its segments; `None` when it has to be rebuilt.
fn open_index(
    shared: &Arc<StoreState>,
    partition: &Arc<Partition>,
) -> Result<Option<Index>, PartitionError> {
    if !partition.index_path().exists() {
        return Ok(None);
    }
    let mut index = Index::open(&partition.index_path(), shared.config.write_cache_bytes())?;
    let positions = index.positions()?;
    for position in &positions {
        shared.next_segment.fetch_max(position.number.saturating_add(1), Ordering::Relaxed);
        // Rows of a segment that is gone.
        if partition.segment(position.number).is_none() && position.indexed > 0 {
            return Ok(None);
        }
    }
    for segment in partition.segments() {
        let position = positions.iter().find(|position| position.number == segment.number);
        let length = segment.length();
        if position.is_some_and(|position| position.sealed == Some(length)) {
            segment.synced.store(length, Ordering::Release);
            continue;
        }
        if !bring_up(shared, partition, &segment, &mut index, position)? {
            return Ok(None);
        }
    }
    Ok(Some(index))
}

/// Reads a segment through, and adds the rows missing in the index. False when the index has to be
/// rebuilt.
fn bring_up(
    shared: &Arc<StoreState>,
    partition: &Arc<Partition>,
    segment: &Arc<Segment>,
    index: &mut Index,
    position: Option<&Position>,
) -> Result<bool, PartitionError> {
    let indexed = position.map_or(0, |position| position.indexed);
    let mut rows = Vec::new();
    let disk = shared.disk.as_ref();
    // One that is being written is read as far as it is written; its end is not torn.
    let sealed = segment.sealed.load(Ordering::Acquire);
    let bound = if sealed { None } else { Some(segment.length()) };
    let scanned: Result<u64, ScanError<rusqlite::Error>> =
        scan(disk, &segment.path, bound, sealed, |header, place| {
            if place.end() <= indexed {
                return Ok(());
            }
            rows.push(Row {
                hash: header.hash,
                timestamp_ns: header.timestamp_ns,
                pubsub_topic: header.pubsub_topic.into(),
                content_topic: header.content_topic.into(),
                segment: segment.number,
                place,
            });
            if rows.len() >= BATCH_ROWS {
                index.insert(&rows)?;
                rows.clear();
            }
            Ok(())
        });
    match scanned {
        Ok(length) => {
            if sealed {
                segment.length.store(length, Ordering::Release);
            }
            if length < indexed {
                return Ok(false);
            }
            if sealed && length <= HEADER_BYTES {
                // Begun, and nothing was written.
                partition.forget_empty(disk, segment)?;
                return Ok(true);
            }
            index.insert(&rows)?;
            segment.checked.store(true, Ordering::Release);
            if sealed {
                sync_and_seal(shared, segment, index, length)?;
            }
            Ok(true)
        }
        Err(ScanError::Sink(error)) => Err(error.into()),
        Err(ScanError::Records(RecordError::Io { source, .. })) => Err(source.into()),
        Err(ScanError::Records(error)) => {
            let path = segment.path.display();
            let offset = if let RecordError::Damaged { offset, .. } = &error { *offset } else { 0 };
            tracing::warn!(%path, offset, %error, "a segment is damaged; it is set aside");
            shared.damaged_segments.fetch_add(1, Ordering::Relaxed);
            partition.set_aside(disk, segment)?;
            Ok(false)
        }
    }
}

/// Makes a segment durable and records it: writes that the previous process did not sync are read
/// from memory.
fn sync_and_seal(
    shared: &StoreState,
    segment: &Segment,
    index: &Index,
    length: u64,
) -> Result<(), PartitionError> {
    shared.disk.open(&segment.path, Open::Write)?.sync_all()?;
    segment.synced.store(length, Ordering::Release);
    index.seal(segment.number, length)?;
    Ok(())
}

/// Rebuilds the index of a partition from its segments; those that are damaged are set aside.
pub(crate) fn rebuild(
    shared: &Arc<StoreState>,
    partition: &Arc<Partition>,
) -> Result<Index, PartitionError> {
    shared.rebuilt_indexes.fetch_add(1, Ordering::Relaxed);
    loop {
        for path in partition.index_files() {
            if_there(std::fs::remove_file(&path))?;
        }
        let mut index = Index::open(&partition.index_path(), shared.config.write_cache_bytes())?;
        let mut whole = true;
        for segment in partition.segments() {
            // Each time it is false, a segment less is left.
            whole &= bring_up(shared, partition, &segment, &mut index, None)?;
            if !whole {
                break;
            }
        }
        if whole {
            *partition.figures() = index.figures()?;
            partition.generation.fetch_add(1, Ordering::AcqRel);
            return Ok(index);
        }
    }
}
