//! The default disk budget of the node.
//!
//! A node alone in its subnet takes the free space when it starts for the first time. That number
//! is recorded with the rules ([`crate::rules`]) and holds for all later starts until another is
//! stated, so that filling the disk does not shrink the budget. Members of a subnet of several must
//! have the same capacity, and their disks differ: without a stated size theirs follows from the
//! memory.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use accounting::format_size;
use anyhow::{Context, Result};
use limits::Limits;

use crate::{config::Config, keys, rules};

/// A size is rounded down to these, so that a person can read it.
const GRANULES: [u64; 2] = [1 << 30, 1 << 20];
/// Sizes below this number of granules are rounded to the next finer one.
const GRANULES_MIN: u64 = 8;
/// Unit of a file's block count, in bytes.
const BLOCK_BYTES: u64 = 512;

/// States that need room: two in a subnet of several, where a fetched one is stored alongside the
/// old one.
pub(crate) fn states(data_dir: &Path) -> Result<u64> {
    Ok(if keys::several(data_dir)? { 2 } else { 1 })
}

/// The disk budget of a node for which none is stated; none in a subnet of several. `limits` are
/// those without one, with the operator's own values.
pub(crate) fn found(data_dir: &Path, limits: &Limits) -> Result<Option<u64>> {
    if states(data_dir)? > 1 {
        return Ok(None);
    }
    // Never less than without a budget: a disk with less room is refused for when it is full, and
    // may get more.
    let least = limits.disk_bytes(1, limits.subnet.memory_capacity_bytes);
    if let Some(recorded) = rules::recorded_disk(data_dir)? {
        return Ok(Some(recorded.max(least)));
    }
    let disk = volume(data_dir)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let taken = taken_bytes(data_dir)
        .with_context(|| format!("adding up the files in {}", data_dir.display()))?;
    Ok(Some(rounded(free.saturating_add(taken)).max(least)))
}

/// Why the file system of the data folder cannot hold what the disk budget allows; `None` if it
/// can.
///
/// Reported and not refused: a full disk is waited for, also by a node that starts on one, and the
/// budget moves limits that members must have alike, so it does not follow from one machine.
pub(crate) fn shortage(config: &Config) -> Result<Option<String>> {
    let data_dir = &config.data_dir;
    let volume = volume(data_dir)?;
    let total = volume.f_blocks.saturating_mul(volume.f_frsize);
    let (limits, place) = (&config.limits, data_dir.display());
    let budget = limits.disk_budget_bytes;
    if budget > total && config.disk_is_stated {
        return Ok(Some(format!(
            "the disk budget is {}, and the file system of {place} has {}: updates will wait for \
             disk space before the budget is used",
            format_size(budget),
            format_size(total)
        )));
    }
    let smallest = limits.smallest_disk_bytes(states(data_dir)?);
    let free = volume.f_bavail.saturating_mul(volume.f_frsize);
    // Adding up files takes long where there are many.
    if free >= smallest {
        return Ok(None);
    }
    let taken = taken_bytes(data_dir).with_context(|| format!("adding up the files in {place}"))?;
    Ok((free.saturating_add(taken) < smallest).then(|| {
        format!(
            "the file system of {place} has {} free and this node's files take {}: the smallest \
             disk budget with {} of memory is {}, updates may have to wait for disk space",
            format_size(free),
            format_size(taken),
            format_size(limits.memory_budget_bytes),
            format_size(smallest)
        )
    }))
}

/// The file system of a folder that may not exist yet.
fn volume(data_dir: &Path) -> Result<rustix::fs::StatVfs> {
    let there = data_dir.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    rustix::fs::statvfs(there)
        .with_context(|| format!("asking how much disk is free at {}", there.display()))
}

/// Bytes that all files below a folder use on disk. Files that are missing, or not visible to this
/// user, count as zero.
fn taken_bytes(folder: &Path) -> io::Result<u64> {
    let unseen = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
    };
    let entries = match fs::read_dir(folder) {
        Err(error) if unseen(&error) => return Ok(0),
        entries => entries?,
    };
    let mut bytes = 0_u64;
    for entry in entries {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Err(error) if unseen(&error) => continue,
            metadata => metadata?,
        };
        let taken = match metadata.is_dir() {
            true => taken_bytes(&entry.path())?,
            false => metadata.blocks().saturating_mul(BLOCK_BYTES),
        };
        bytes = bytes.saturating_add(taken);
    }
    Ok(bytes)
}

fn rounded(bytes: u64) -> u64 {
    let granule = GRANULES.into_iter().find(|granule| bytes / granule >= GRANULES_MIN);
    bytes - bytes % granule.unwrap_or(1 << 20)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_rounded_to_what_a_person_reads() {
        assert_eq!(rounded((75 << 30) + 12_345), 75 << 30);
        assert_eq!(rounded((7 << 30) + (5 << 20) + 3), (7 << 30) + (5 << 20));
        assert_eq!(rounded((3 << 20) + 3), 3 << 20);
    }

    #[test]
    fn what_the_node_has_on_disk_already_counts_as_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        assert_eq!(taken_bytes(&data).unwrap(), 0);
        fs::create_dir_all(data.join("pages")).unwrap();
        fs::write(data.join("pages/base"), vec![7; 1 << 20]).unwrap();
        let taken = taken_bytes(&data).unwrap();
        assert!((1 << 20..2 << 20).contains(&taken), "{taken}");
    }

    #[test]
    fn a_small_disk_gives_no_less_than_follows_from_the_memory() {
        let limits = Limits::nano().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let found = found(&folder.path().join("not/yet/there"), &limits).unwrap().unwrap();
        let mut with_disk = limits.clone();
        with_disk.set_disk(found, 1);
        let (with, without) = (&with_disk.subnet, &limits.subnet);
        assert!(with.memory_capacity_bytes >= without.memory_capacity_bytes, "{found}");
        let least = limits.disk_bytes(1, limits.subnet.memory_capacity_bytes);
        with_disk.set_disk(least, 1);
        let (with, without) = (&with_disk.subnet, &limits.subnet);
        assert!(with.memory_capacity_bytes >= without.memory_capacity_bytes, "{least}");
    }
}
