//! The key summary on disk: the holders of the subnet's key, for a node that starts and for the
//! commands of its operator.
//!
//! Two files. `genesis-summary` is the key as the ceremony left it, and never changes: a node that
//! has no state yet begins with it. `summary` is the newest that the node wrote, at the ends of
//! epochs: `thimble members` uses it while no node can be asked. The shares with which a node signs
//! are decided by neither file, but by the state.

use std::path::Path;

use anyhow::{Context, Result};
use genesis::{SUMMARY_BYTES_MAX, Summary};

use super::files::{self, Readers};

pub(super) const NEWEST: &str = "summary";
pub(super) const GENESIS: &str = "genesis-summary";

/// Writes down the newest summary; bytes that are there already stay as they are.
pub(crate) fn write_summary(folder: &Path, summary: &Summary) -> Result<()> {
    write(&folder.join(NEWEST), &summary.to_bytes())
}

/// The newest summary that was written down in the folder of keys.
pub(crate) fn read_summary(folder: &Path) -> Result<Summary> {
    read(&folder.join(NEWEST))
}

/// Files that joining leaves: the first summary, and the newest unless a newer one of this subnet
/// exists.
pub(super) fn write_genesis(folder: &Path, summary: &Summary) -> Result<()> {
    if !read_summary(folder).is_ok_and(|there| there.public_key() == summary.public_key()) {
        write_summary(folder, summary)?;
    }
    write(&folder.join(GENESIS), &summary.to_bytes())
}

pub(super) fn read_genesis(folder: &Path) -> Result<Summary> {
    read(&folder.join(GENESIS))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if path.exists() && files::read(path, SUMMARY_BYTES_MAX).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    files::write(path, bytes, Readers::Owner)
}

fn read(path: &Path) -> Result<Summary> {
    let again = || {
        format!(
            "{} is needed to know who holds the subnet's key: run `thimble join` with the genesis \
             again, it changes nothing else",
            path.display()
        )
    };
    let bytes = files::read(path, SUMMARY_BYTES_MAX).with_context(again)?;
    Summary::from_bytes(&bytes).with_context(again)
}
