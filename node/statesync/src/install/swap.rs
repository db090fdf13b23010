//! Replacing the old state by a complete new one, in steps any of which may be the last before a
//! crash.
//!
//! For each of `pages` and `state`: as long as `sync/<name>` is there it has not been moved in.
//! Then whatever is at `<name>` is the old one, or nothing, because it was moved aside before the
//! crash. So the same two renames, resumed at any point, have the same result.

use std::path::Path;

use disk::{Disk, RealDisk, if_there};
use pages::sync_dir;

use super::InstallError;
use super::staging::remove_dir;

/// Directory of an installation within the data folder.
pub(super) const STAGING: &str = "sync";
/// The file that marks the new state as valid.
pub(super) const COMPLETE: &str = "complete";
/// Folders that are moved in, and the names to which the old ones are moved.
const MOVED: [&str; 2] = ["pages", "state"];
pub(super) const OLD: [&str; 2] = ["old-pages", "old-state"];

/// Ends an installation that a crash interrupted after its state was complete. Every start of a
/// node calls this before it opens its stores; without such an installation it does nothing, and
/// the data of an incomplete one stays. True if a new state was put in place.
///
/// # Errors
/// When the disk fails; the next call continues.
pub fn complete_install(data_dir: &Path) -> Result<bool, InstallError> {
    complete_install_on(&RealDisk, data_dir)
}

/// The same on another disk.
///
/// # Errors
/// When the disk fails; the next call continues.
pub fn complete_install_on(disk: &dyn Disk, data_dir: &Path) -> Result<bool, InstallError> {
    let staging = data_dir.join(STAGING);
    let complete = staging.join(COMPLETE);
    if !complete.exists() {
        return Ok(false);
    }
    for (name, old) in MOVED.into_iter().zip(OLD) {
        let (new, place, aside) = (staging.join(name), data_dir.join(name), staging.join(old));
        if !new.exists() {
            continue;
        }
        if place.exists() {
            remove_dir(disk, &aside)?;
            rename(disk, &place, &aside)?;
            sync_dir(disk, &staging)?;
            sync_dir(disk, data_dir)?;
        }
        rename(disk, &new, &place)?;
        sync_dir(disk, data_dir)?;
        sync_dir(disk, &staging)?;
    }
    // The mark `complete` is removed first, so that nothing is done twice.
    if_there(disk.remove(&complete)).map_err(InstallError::io("remove", &complete))?;
    sync_dir(disk, &staging)?;
    remove_dir(disk, &staging)?;
    sync_dir(disk, data_dir)?;
    Ok(true)
}

fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), InstallError> {
    disk.rename(from, to).map_err(InstallError::io("move", from))
}
