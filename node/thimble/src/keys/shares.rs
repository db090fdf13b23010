//! This node's shares of the subnet's key, one for each resharing: `subnet-share.key` is that of
//! the ceremony, `shares/<key epoch>` are those after it.
//!
//! A share is opened from the transcript once, with the encryption key, which then moves past the
//! epoch: a thief of the folder opens nothing of the past with it later. In this order, each step
//! durable before the next:
//!
//! 1. the share is written;
//! 2. the encryption key moves past its epoch, and its former value is overwritten;
//! 3. shares that are older than the one before are overwritten and removed.
//!
//! The sequence may be interrupted anywhere, and continues there when it is called again: until the
//! first step is done the encryption key opens the share once more, from then on the share is
//! present. The share before the newest stays, because a node that starts again may begin in the
//! epoch before.
//!
//! They are removed because shares of one epoch are worth nothing among those of another: an
//! attacker must steal enough of them between two resharings to get the key.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, bail, ensure};
use genesis::{GENESIS_EPOCH, Summary};
use nidkg::{Engine, EngineConfig, Epoch, NodeIndex, SecretShare};
use zeroize::Zeroizing;

use super::{
    ENCRYPTION_KEY, NODE_KEY, SHARE_KEY,
    files::{self, Readers},
    move_key_past, read_encryption_key, read_node_key,
};

const SHARES: &str = "shares";

pub(crate) struct Shares {
    folder: PathBuf,
    arithmetic: EngineConfig,
    /// One at a time: steps of two would mix.
    turn: Mutex<()>,
}

/// The step just made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Written,
    Moved,
    Removed,
}

impl Shares {
    /// The shares in `folder`. A share is opened on threads of `arithmetic`, which live for as long
    /// as that takes.
    pub(crate) fn new(folder: &Path, arithmetic: EngineConfig) -> Self {
        Self { folder: folder.to_owned(), arithmetic, turn: Mutex::new(()) }
    }

    /// This node's share of the committee that `summary` names, durable; none if the node is not a
    /// member. See the module for what else it does.
    pub(crate) fn share(&self, summary: &Summary) -> Result<Option<SecretShare>> {
        self.share_in_steps(summary, &mut |_| Ok(()))
    }

    fn share_in_steps(
        &self,
        summary: &Summary,
        done: &mut dyn FnMut(Step) -> Result<()>,
    ) -> Result<Option<SecretShare>> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let node = read_node_key(&self.folder)?.with_context(|| {
            format!("{} is missing: restore it", self.folder.join(NODE_KEY).display())
        })?;
        let share = match summary.place_of(&node.verifying_key().to_bytes()) {
            None => None,
            Some(place) => {
                let share = match self.kept(summary, place)? {
                    Some(share) => share,
                    None => {
                        let share = self.open(summary, place)?;
                        self.keep(summary.key_epoch(), &share)?;
                        done(Step::Written)?;
                        share
                    }
                };
                if self.move_past(summary.key_epoch())? {
                    done(Step::Moved)?;
                }
                Some(share)
            }
        };
        if let Some(previous) = summary.previous_key_epoch() {
            for old in self.before(previous)? {
                // Records that shares were removed, not lost.
                self.make_folder()?;
                files::erase(&old)?;
                done(Step::Removed)?;
            }
        }
        Ok(share)
    }

    fn path(&self, epoch: Epoch) -> PathBuf {
        match epoch {
            GENESIS_EPOCH => self.folder.join(SHARE_KEY),
            Epoch(epoch) => self.folder.join(SHARES).join(epoch.to_string()),
        }
    }

    /// The share, if it was opened before.
    fn kept(&self, summary: &Summary, place: NodeIndex) -> Result<Option<SecretShare>> {
        let path = self.path(summary.key_epoch());
        let Some(bytes) = files::read_secret_of(&path)? else { return Ok(None) };
        let share = SecretShare::from_bytes(place, &bytes)
            .with_context(|| format!("in {}", path.display()))?;
        ensure!(
            summary.committee().shares[place.0 as usize] == share.public_key(),
            "{} is not this node's share of key epoch {}: files of two nodes were mixed, or it \
             was damaged; restore it",
            path.display(),
            summary.key_epoch().0
        );
        Ok(Some(share))
    }

    fn open(&self, summary: &Summary, place: NodeIndex) -> Result<SecretShare> {
        let epoch = summary.key_epoch();
        let key = read_encryption_key(&self.folder)?.with_context(|| {
            format!(
                "{} is missing: this node's share of key epoch {} cannot be opened without it. \
                 Restore it, or have the members give this node a record with a new encryption \
                 key (docs/operating.md)",
                self.folder.join(ENCRYPTION_KEY).display(),
                epoch.0
            )
        })?;
        if epoch == GENESIS_EPOCH || key.epoch() > epoch {
            bail!(
                "{} is missing, this node's share of key epoch {}: it was opened once and cannot \
                 be opened again, because {ENCRYPTION_KEY} has moved on to epoch {}; restore it, \
                 or wait until the key is handed on",
                self.path(epoch).display(),
                epoch.0,
                key.epoch().0
            );
        }
        // Before the arithmetic, which searches for long when nothing fits.
        key.check(summary.members()[place.0 as usize].encryption_key()).with_context(|| {
            format!(
                "{} is not the key that the members have for this node",
                self.folder.join(ENCRYPTION_KEY).display()
            )
        })?;
        let engine = Engine::new(self.arithmetic.clone())?;
        summary
            .open_share(&engine, place, &key)
            .with_context(|| format!("opening this node's share of key epoch {}", epoch.0))
    }

    fn keep(&self, epoch: Epoch, share: &SecretShare) -> Result<()> {
        self.make_folder()?;
        files::write(&self.path(epoch), &Zeroizing::new(share.to_bytes())[..], Readers::Owner)
    }

    fn make_folder(&self) -> Result<()> {
        let folder = self.folder.join(SHARES);
        if !folder.exists() {
            let made = fs::DirBuilder::new().mode(0o700).create(&folder);
            made.with_context(|| format!("making {}", folder.display()))?;
            files::sync_folder_of(&folder)?;
        }
        Ok(())
    }

    /// Whether the encryption key had to move.
    fn move_past(&self, epoch: Epoch) -> Result<bool> {
        let Some(key) = read_encryption_key(&self.folder)? else {
            tracing::warn!(
                "{} is missing: the node signs with the share it has, but cannot open the next \
                 one; restore it",
                self.folder.join(ENCRYPTION_KEY).display()
            );
            return Ok(false);
        };
        move_key_past(&self.folder, key, epoch)
    }

    /// Files of shares of earlier epochs than this, oldest first.
    fn before(&self, epoch: Epoch) -> Result<Vec<PathBuf>> {
        let mut old = vec![];
        if GENESIS_EPOCH < epoch && self.path(GENESIS_EPOCH).exists() {
            old.push(GENESIS_EPOCH);
        }
        old.extend(epochs(&self.folder)?.into_iter().filter(|kept| *kept < epoch));
        Ok(old.into_iter().map(|epoch| self.path(epoch)).collect())
    }
}

/// Whether the key was reshared since the ceremony, as far as this node took part or saw it.
pub(super) fn moved_on(folder: &Path) -> bool {
    folder.join(SHARES).exists()
}

/// Key epochs of the shares in `shares/`, rising.
fn epochs(folder: &Path) -> Result<Vec<Epoch>> {
    let folder = folder.join(SHARES);
    if !folder.exists() {
        return Ok(vec![]);
    }
    let listing = || -> std::io::Result<Vec<Epoch>> {
        let mut epochs = vec![];
        for entry in fs::read_dir(&folder)? {
            let name = entry?.file_name();
            let epoch = name
                .to_str()
                .and_then(|name| name.parse().ok().filter(|epoch: &u32| epoch.to_string() == name));
            // Any other file is one that was being written, or does not belong to the node.
            epochs.extend(epoch.map(Epoch));
        }
        epochs.sort();
        Ok(epochs)
    };
    listing().with_context(|| format!("listing {}", folder.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use genesis::MembershipChange;
    use rand::rngs::OsRng;

    use super::*;
    use crate::keys::{
        Keys,
        ceremony::{
            self, keygen, node_key,
            tests::{Stage, stage},
        },
    };

    /// Two nodes that hold a key and hand it on.
    struct Subnet {
        stage: Stage,
        summary: Summary,
    }

    impl Subnet {
        fn new() -> Self {
            let stage = stage();
            for data in &stage.data {
                ceremony::join(data, &stage.genesis, &stage.engine).unwrap();
            }
            let summary = Summary::genesis(&stage.genesis);
            Self { stage, summary }
        }

        fn keys(&self, node: usize) -> PathBuf {
            self.stage.data[node].join("keys")
        }

        /// Every member of this epoch deals, with the share it has on disk, and the epoch ends.
        fn hand_on(&mut self, folders: &[PathBuf]) {
            for folder in folders {
                let share = shares(folder).share(&self.summary).unwrap().unwrap();
                let payload =
                    self.summary.deal(&self.stage.engine, share.index, &share, &mut OsRng).unwrap();
                assert!(self.summary.apply(&self.stage.engine, share.index, &payload, &mut OsRng));
            }
            self.summary.close_epoch();
        }

        fn both(&self) -> [PathBuf; 2] {
            [self.keys(0), self.keys(1)]
        }
    }

    fn shares(folder: &Path) -> Shares {
        Shares::new(folder, EngineConfig::for_this_machine())
    }

    /// Names of the shares that are there, `first` for that of the ceremony, and the epoch of the
    /// encryption key.
    fn found(folder: &Path) -> (Vec<String>, u32) {
        let mut names: Vec<_> =
            epochs(folder).unwrap().iter().map(|epoch| epoch.0.to_string()).collect();
        if folder.join(SHARE_KEY).exists() {
            names.insert(0, "first".to_owned());
        }
        (names, read_encryption_key(folder).unwrap().unwrap().epoch().0)
    }

    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => copy(&entry.path(), &to),
                false => drop(fs::copy(entry.path(), to).unwrap()),
            }
        }
    }

    // Promise: P20 - Old shares are erased after resharing.
    #[test]
    fn shares_come_and_go_as_the_key_is_handed_on() {
        let mut subnet = Subnet::new();
        let (folders, mut summaries) = (subnet.both(), vec![subnet.summary.clone()]);
        let share = |summary: &Summary| shares(&folders[0]).share(summary);
        assert!(share(&subnet.summary).unwrap().is_some());
        assert_eq!(found(&folders[0]), (vec!["first".to_owned()], 1));
        for (names, moved) in [(&["first", "1"][..], 2), (&["1", "2"], 3), (&["2", "3"], 4)] {
            subnet.hand_on(&folders);
            summaries.push(subnet.summary.clone());
            let opened = share(&subnet.summary).unwrap().unwrap();
            let place = opened.index.0 as usize;
            assert_eq!(opened.public_key(), subnet.summary.committee().shares[place]);
            let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            assert_eq!(found(&folders[0]), (names.clone(), moved));
            // Again, and after a restart.
            let again = share(&subnet.summary).unwrap().unwrap();
            assert_eq!(again.to_bytes(), opened.to_bytes());
            assert_eq!(found(&folders[0]), (names, moved));
            let keys = Keys::open_or_create(&folders[0]).unwrap();
            assert_eq!(keys.share.is_some(), subnet.summary.epoch() == 1);
        }
        let mode =
            |path: &str| fs::metadata(folders[0].join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("shares"), mode("shares/3")), (0o700, 0o600));
        // The epoch before can be begun again; what is older is gone.
        assert!(share(&summaries[2]).unwrap().is_some());
        let error = format!("{:#}", share(&summaries[1]).err().unwrap());
        assert!(error.contains("has moved on to epoch 4"), "{error}");
        let error = format!("{:#}", share(&summaries[0]).err().unwrap());
        assert!(error.contains("subnet-share.key is missing"), "{error}");
        // Joining again is still nothing, also when the subnet's file was lost.
        let Stage { data, genesis, engine, .. } = &subnet.stage;
        assert!(ceremony::join(&data[0], genesis, engine).unwrap().before);
        fs::remove_file(folders[0].join("subnet.json")).unwrap();
        assert!(!ceremony::join(&data[0], genesis, engine).unwrap().before);
        Keys::open_or_create(&folders[0]).unwrap();
    }

    #[test]
    fn an_epoch_that_hands_nothing_on_takes_nothing_away() {
        let mut subnet = Subnet::new();
        let folders = subnet.both();
        subnet.hand_on(&folders);
        for _ in 0..3 {
            subnet.hand_on(&[]);
            assert!(shares(&folders[0]).share(&subnet.summary).unwrap().is_some());
        }
        subnet.hand_on(&folders);
        shares(&folders[0]).share(&subnet.summary).unwrap().unwrap();
        assert_eq!(subnet.summary.key_epoch(), Epoch(5));
        assert_eq!(found(&folders[0]), (vec!["1".to_owned(), "5".to_owned()], 6));
    }

    // Promise: P20 - A share is stored before the encryption key moves on, after any interruption.
    #[test]
    fn cut_off_after_any_step_it_is_finished() {
        let mut subnet = Subnet::new();
        let folders = subnet.both();
        subnet.hand_on(&folders);
        subnet.hand_on(&folders);
        let own = subnet
            .summary
            .place_of(&node_key(&subnet.stage.data[0]).unwrap().verifying_key().to_bytes());
        let public = subnet.summary.committee().shares[own.unwrap().0 as usize];
        for step in [Step::Written, Step::Moved, Step::Removed] {
            let scratch = tempfile::tempdir().unwrap();
            let folder = scratch.path().join("keys");
            copy(&folders[0], &folder);
            let error = shares(&folder)
                .share_in_steps(&subnet.summary, &mut |done| {
                    ensure!(done != step, "cut off");
                    Ok(())
                })
                .err()
                .unwrap();
            assert_eq!(error.to_string(), "cut off");
            let expected = match step {
                Step::Written => (vec!["first", "1", "2"], 2),
                Step::Moved => (vec!["first", "1", "2"], 3),
                Step::Removed => (vec!["1", "2"], 3),
            };
            let (names, moved) = found(&folder);
            assert_eq!((names.iter().map(String::as_str).collect::<Vec<_>>(), moved), expected);
            // Leftovers of an interrupted write.
            fs::write(folder.join("shares/.2.new"), "left over").unwrap();
            fs::write(folder.join(".encryption.key.new"), "left over").unwrap();
            Keys::open_or_create(&folder).unwrap();
            let share = shares(&folder).share(&subnet.summary).unwrap().unwrap();
            assert_eq!(share.public_key(), public);
            assert_eq!(found(&folder), (vec!["1".to_owned(), "2".to_owned()], 3));
        }
    }

    // Promise: P20 - A lost or foreign share is named.
    #[test]
    fn lost_or_foreign_share_is_reported_by_name() {
        let mut subnet = Subnet::new();
        let folders = subnet.both();
        subnet.hand_on(&folders);
        let refused = |words: &str| {
            let error = format!("{:#}", shares(&folders[0]).share(&subnet.summary).err().unwrap());
            assert!(error.contains(words), "{words}: {error}");
        };
        let key = fs::read(folders[0].join(ENCRYPTION_KEY)).unwrap();
        fs::remove_file(folders[0].join(ENCRYPTION_KEY)).unwrap();
        refused("have the members give this node a record with a new encryption key");
        fs::copy(folders[1].join(ENCRYPTION_KEY), folders[0].join(ENCRYPTION_KEY)).unwrap();
        refused("is not the key that the members have for this node");
        fs::write(folders[0].join(ENCRYPTION_KEY), &key).unwrap();
        for folder in &folders {
            shares(folder).share(&subnet.summary).unwrap().unwrap();
        }
        // With its share a node signs on without the key that opened it.
        fs::remove_file(folders[0].join(ENCRYPTION_KEY)).unwrap();
        shares(&folders[0]).share(&subnet.summary).unwrap().unwrap();
        fs::copy(folders[1].join("shares/1"), folders[0].join("shares/1")).unwrap();
        refused("files of two nodes were mixed");
        fs::remove_file(folders[0].join("shares/1")).unwrap();
        fs::copy(folders[1].join(ENCRYPTION_KEY), folders[0].join(ENCRYPTION_KEY)).unwrap();
        refused("shares/1 is missing");
        fs::remove_file(folders[0].join(NODE_KEY)).unwrap();
        refused("node.key is missing");
    }

    // Promise: P20 - A node that joins later gets its share, and one that leaves keeps none.
    #[test]
    fn a_node_that_joins_later_gets_its_share_and_one_that_leaves_keeps_none() {
        let mut subnet = Subnet::new();
        let folders = subnet.both();
        let new = subnet.stage.data[0].with_file_name("c");
        let record = keygen(&new, "h:3").unwrap();
        ceremony::join(&new, &subnet.stage.genesis, &subnet.stage.engine).unwrap();
        let new = new.join("keys");
        assert!(shares(&new).share(&subnet.summary).unwrap().is_none());

        let gone = node_key(&subnet.stage.data[0]).unwrap().verifying_key();
        let remove = vec![genesis::node_id(&gone)];
        let mut change =
            MembershipChange::new(subnet.summary.public_key(), 0, vec![record], remove).unwrap();
        subnet.stage.data.iter().for_each(|data| change.sign(&node_key(data).unwrap()).unwrap());
        let payload = Summary::change(&change);
        assert!(subnet.summary.apply(&subnet.stage.engine, NodeIndex(0), &payload, &mut OsRng));
        subnet.hand_on(&folders);
        subnet.hand_on(&folders);
        assert_eq!(subnet.summary.place_of(&gone.to_bytes()), None);
        // The one that left may have to begin in the epoch before once more, and in no earlier one.
        assert!(shares(&folders[0]).share(&subnet.summary).unwrap().is_none());
        assert_eq!(found(&folders[0]), (vec!["1".to_owned()], 2));
        let own = shares(&new).share(&subnet.summary).unwrap().unwrap();
        assert_eq!(own.public_key(), subnet.summary.committee().shares[own.index.0 as usize]);
        assert_eq!(found(&new), (vec!["2".to_owned()], 3));
        Keys::open_or_create(&new).unwrap();
        subnet.hand_on(&[folders[1].clone(), new]);
        assert!(shares(&folders[0]).share(&subnet.summary).unwrap().is_none());
        assert_eq!(found(&folders[0]), (vec![], 2));
        Keys::open_or_create(&folders[0]).unwrap();
    }
}
