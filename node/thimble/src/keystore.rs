//! Consensus's interface to the node's files for the subnet's key: its share in each epoch, and
//! changes of the members that its operator wants.

use std::{
    fs,
    path::{Path, PathBuf},
};

use consensus::KeyStore;
use genesis::{CHANGE_BYTES_MAX, ChangeError, MembershipChange, Summary};
use nidkg::{EngineConfig, SecretShare};

use crate::keys::{CHANGE, Shares, files, write_summary};

/// In the folder of the keys: the newest epoch for which this node obtained its share.
const VOTED: &str = "voted-epoch";

pub(crate) struct KeyFiles {
    keys: PathBuf,
    shares: Shares,
    /// Where `thimble members submit` lays a change.
    change: PathBuf,
}

impl KeyFiles {
    pub(crate) fn new(data: &Path, arithmetic: EngineConfig) -> Self {
        let keys = data.join("keys");
        Self { shares: Shares::new(&keys, arithmetic), keys, change: data.join(CHANGE) }
    }

    fn read_change(&self) -> Option<MembershipChange> {
        let bytes = match files::read(&self.change, CHANGE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(
                    error = format!("{error:#}"),
                    "the change of members cannot be read"
                );
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

    /// The pending change will not be proposed again.
    fn done(&self, why: &str) {
        tracing::info!(file = %self.change.display(), "the change of members is taken away: {why}");
        if let Err(error) = disk::if_there(fs::remove_file(&self.change)) {
            tracing::error!(%error, file = %self.change.display(), "and cannot be removed");
        }
    }
}

impl KeyStore for KeyFiles {
    fn share(&self, summary: &Summary) -> Result<Option<SecretShare>, String> {
        let share = self.shares.share(summary).map_err(|error| format!("{error:#}"))?;
        if share.is_some() && self.voted()?.is_none_or(|epoch| epoch < summary.epoch()) {
            let path = self.keys.join(VOTED);
            let text = format!("{}\n", summary.epoch());
            files::write(&path, text.as_bytes(), files::Readers::Owner)
                .map_err(|error| format!("{error:#}"))?;
        }
        // For `thimble members`, which works on files. Nothing else depends on it.
        if let Err(error) = write_summary(&self.keys, summary) {
            tracing::warn!(
                error = format!("{error:#}"),
                "the summary of the subnet's key cannot be written"
            );
        }
        Ok(share)
    }

    fn voted(&self) -> Result<Option<u64>, String> {
        let path = self.keys.join(VOTED);
        let text = files::read_text(&path).map_err(|error| format!("{error:#}"))?;
        let Some(text) = text else { return Ok(None) };
        let epoch = text.trim().parse::<u64>();
        epoch.map(Some).map_err(|error| format!("in {}: {error}", path.display()))
    }

    fn membership_change(&self, summary: &Summary) -> Option<Vec<u8>> {
        if !self.change.exists() {
            return None;
        }
        let change = self.read_change()?;
        match summary.members_after(&change) {
            Ok(_) => {}
            // Perhaps this one: reported when its number is in effect.
            Err(ChangeError::UnderWay) => return None,
            // This node is behind with the blocks of the change before.
            Err(ChangeError::Number { stated, right }) if stated > right => return None,
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ed25519_dalek::SigningKey;
    use genesis::NodeRecord;
    use nidkg::{Engine, NodeIndex, generate_key_pair};
    use rand::rngs::OsRng;

    use super::*;

    fn node(number: u8) -> (SigningKey, NodeRecord) {
        let key = SigningKey::from_bytes(&[number; 32]);
        let (public, _) =
            generate_key_pair(genesis::node_id(&key.verifying_key()).as_slice(), &mut OsRng);
        let record = NodeRecord::new(&key, public, &format!("h:{number}")).unwrap();
        (key, record)
    }

    #[test]
    fn a_submitted_change_waits_until_it_is_accepted_or_overtaken() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let path = data.join(CHANGE);
        let keys = KeyFiles::new(data, EngineConfig::for_this_machine());
        let mut nodes: Vec<_> = (1..=4).map(node).collect();
        nodes.sort_by_key(|(_, record)| record.node_key().to_bytes());
        let (committee, _) = nidkg::deal(4, 3, &mut OsRng).unwrap();
        let records = nodes.iter().map(|(_, record)| record.clone()).collect();
        let summary = Summary::from_parts(records, committee).unwrap();
        assert!(keys.membership_change(&summary).is_none());

        let five = node(5).1;
        let mut change =
            MembershipChange::new(summary.public_key(), 0, vec![five], vec![]).unwrap();
        for (key, _) in &nodes[1..] {
            change.sign(key).unwrap();
        }
        let submit = |change: &MembershipChange| fs::write(&path, change.to_json()).unwrap();
        submit(&change);
        let payload = keys.membership_change(&summary).unwrap();
        let engine = Engine::new(EngineConfig::for_this_machine()).unwrap();
        let mut after = summary.clone();
        assert!(after.apply(&engine, NodeIndex(2), &payload, &mut OsRng));
        assert!(keys.membership_change(&after).is_none() && path.exists(), "under way");
        after.close_epoch();
        assert!(keys.membership_change(&after).is_none() && !path.exists(), "accepted");
        // For a node that is behind, it is not a reason to give up.
        let mut later =
            MembershipChange::new(summary.public_key(), 1, vec![node(6).1], vec![]).unwrap();
        for (key, _) in &nodes[1..] {
            later.sign(key).unwrap();
        }
        submit(&later);
        assert!(keys.membership_change(&summary).is_none() && path.exists());
        assert!(keys.membership_change(&after).is_some());

        let unsigned =
            MembershipChange::new(summary.public_key(), 0, vec![node(7).1], vec![]).unwrap();
        submit(&unsigned);
        assert!(keys.membership_change(&summary).is_none() && !path.exists(), "not signed");
        fs::write(&path, "no change").unwrap();
        assert!(keys.membership_change(&summary).is_none() && !path.exists(), "no change at all");
    }
}
