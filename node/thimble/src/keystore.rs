//! What agreement asks of the node's files for the subnet's key: its share in each epoch, and changes of the members that its operator wants.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use consensus::KeyStore;
use genesis::{CHANGE_BYTES_MAX, ChangeError, MembershipChange, Summary};
use nidkg::{EngineConfig, SecretShare};

use crate::keys::{CHANGE, Shares, files, write_summary};

/// See the module.
pub(crate) struct KeyFiles {
    keys: PathBuf,
    shares: Shares,
    /// Where `thimble members submit` lays a change.
    change: PathBuf,
}

impl KeyFiles {
    /// Of the node with this data folder.
    pub(crate) fn new(data: &Path, arithmetic: EngineConfig) -> Self {
        let keys = data.join("keys");
        Self { shares: Shares::new(&keys, arithmetic), keys, change: data.join(CHANGE) }
    }

    fn read_change(&self) -> Option<MembershipChange> {
        let bytes = match files::read(&self.change, CHANGE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "the change of members cannot be read");
                return None;
            }
        };
        match MembershipChange::from_json(&bytes) {
            Ok(change) => Some(change),
            Err(error) => {
                self.done(&format!("it is none: {error}"));
                None
            }
        }
    }

    /// The change that lies there will not be proposed again.
    fn done(&self, why: &str) {
        tracing::info!(file = %self.change.display(), "the change of members is taken away: {why}");
        match fs::remove_file(&self.change) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(%error, file = %self.change.display(), "and cannot be removed");
            }
            _ => {}
        }
    }
}

impl KeyStore for KeyFiles {
    fn share(&self, summary: &Summary) -> Result<Option<SecretShare>, String> {
        let share = self.shares.share(summary).map_err(|error| format!("{error:#}"))?;
        // For `thimble members`, which works on files. Nothing else depends on it.
        if let Err(error) = write_summary(&self.keys, summary) {
            tracing::warn!(error = format!("{error:#}"), "the summary of the subnet's key cannot be written");
        }
        Ok(share)
    }

    fn membership_change(&self, summary: &Summary) -> Option<Vec<u8>> {
        if !self.change.exists() {
            return None;
        }
        let change = self.read_change()?;
        match summary.members_after(&change) {
            Ok(_) => {}
            // Perhaps this one: told when its number is in effect.
            Err(ChangeError::UnderWay) => return None,
            Err(_) if change.number() < summary.changes() => {
                self.done(&format!("change {} of the members was accepted", change.number()));
                return None;
            }
            Err(error) => {
                self.done(&error.to_string());
                return None;
            }
        }
        match summary.signatures_of(&change) {
            Ok((signed, needed)) if signed >= needed as usize => Some(Summary::change(&change)),
            Ok((signed, needed)) => {
                self.done(&format!("{signed} members signed it, and {needed} must"));
                None
            }
            Err(error) => {
                self.done(&error.to_string());
                None
            }
        }
    }
}
