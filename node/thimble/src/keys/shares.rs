//! This node's shares of the subnet's key, one per committee it was a member of, and the encryption key that moves with them.
//!
//! Order of writes: the share first; then the encryption key moves past it, so that nobody who steals that key later opens the dealings of that epoch again; then shares
//! of committees before the last are removed. A crash in between leaves what the next call goes on from.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use genesis::{GENESIS_EPOCH, SUMMARY_BYTES_MAX, Summary};
use nidkg::{Engine, EngineConfig, Epoch, NodeIndex, SecretShare};
use rand::rngs::OsRng;
use zeroize::Zeroizing;

use super::{
    ENCRYPTION_KEY, SHARE_KEY,
    files::{self, Readers},
    read_encryption_key, read_node_key, read_share,
};

const SHARES: &str = "shares";
/// As the ceremony left the key.
const GENESIS_SUMMARY: &str = "genesis-summary";
/// As the newest epoch has it.
const SUMMARY: &str = "summary";

/// See the module.
pub(crate) struct Shares {
    folder: PathBuf,
    arithmetic: EngineConfig,
}

impl Shares {
    /// Of the keys in `folder`. `arithmetic` says what opening a share may use of the machine.
    pub(crate) fn new(folder: &Path, arithmetic: EngineConfig) -> Self {
        Self { folder: folder.to_owned(), arithmetic }
    }

    fn path(&self, epoch: Epoch) -> PathBuf {
        if epoch == GENESIS_EPOCH {
            self.folder.join(SHARE_KEY)
        } else {
            self.folder.join(SHARES).join(epoch.0.to_string())
        }
    }

    /// The share of the committee that `summary` names, durable. None if this node is no member.
    pub(crate) fn share(&self, summary: &Summary) -> Result<Option<SecretShare>> {
        let node = read_node_key(&self.folder)?.context("the node's key is missing")?;
        let Some(place) = summary.place_of(&node.verifying_key().to_bytes()) else { return Ok(None) };
        let epoch = summary.key_epoch();
        let share = match self.kept(epoch, place)? {
            Some(share) => share,
            None => self.open(summary, place)?,
        };
        ensure!(
            summary.committee().shares.get(place.0 as usize) == Some(&share.public_key()),
            "{} is not this node's share of the subnet's key: files of two nodes were mixed",
            self.path(epoch).display()
        );
        self.move_past(epoch)?;
        self.forget_before(epoch)?;
        Ok(Some(share))
    }

    fn kept(&self, epoch: Epoch, place: NodeIndex) -> Result<Option<SecretShare>> {
        if epoch == GENESIS_EPOCH {
            return read_share(&self.folder, place);
        }
        let bytes = files::read_secret_of(&self.path(epoch))?;
        bytes.map(|bytes| Ok(SecretShare::from_bytes(place, &bytes)?)).transpose()
    }

    /// Opens the share and keeps it.
    fn open(&self, summary: &Summary, place: NodeIndex) -> Result<SecretShare> {
        let epoch = summary.key_epoch();
        let key = read_encryption_key(&self.folder)?.with_context(|| {
            format!(
                "{} is missing: without it the node cannot take up its share of epoch {}",
                self.folder.join(ENCRYPTION_KEY).display(),
                epoch.0
            )
        })?;
        let engine = Engine::new(self.arithmetic.clone())?;
        let share = summary
            .open_share(&engine, place, &key)
            .with_context(|| format!("opening this node's share of epoch {}", epoch.0))?;
        let folder = self.folder.join(SHARES);
        if !folder.exists() {
            fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        }
        files::write(&self.path(epoch), &Zeroizing::new(share.to_bytes())[..], Readers::Owner)?;
        Ok(share)
    }

    fn move_past(&self, epoch: Epoch) -> Result<()> {
        let Some(mut key) = read_encryption_key(&self.folder)? else { return Ok(()) };
        let next = Epoch(epoch.0.saturating_add(1));
        if key.epoch() >= next {
            return Ok(());
        }
        key.update_to(next, &mut OsRng)?;
        files::replace_secret(&self.folder.join(ENCRYPTION_KEY), &key.to_bytes())
    }

    /// Heights signed by the committee before may still wait for their certificate; older shares are of no use but to a thief.
    fn forget_before(&self, epoch: Epoch) -> Result<()> {
        let folder = self.folder.join(SHARES);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(|| format!("listing {}", folder.display())),
        };
        let mut epochs = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            epochs.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()).filter(|of| *of < epoch.0));
        }
        epochs.sort_unstable();
        epochs.pop();
        for old in epochs {
            let path = self.path(Epoch(old));
            fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
        Ok(())
    }
}

/// Writes how the ceremony left the subnet's key.
pub(super) fn write_genesis(folder: &Path, summary: &Summary) -> Result<()> {
    files::write(&folder.join(GENESIS_SUMMARY), &summary.to_bytes(), Readers::Owner)
}

/// How the ceremony left the subnet's key.
pub(crate) fn read_genesis(folder: &Path) -> Result<Summary> {
    read(&folder.join(GENESIS_SUMMARY))
}

/// Writes how the subnet's key is held.
pub(crate) fn write_summary(folder: &Path, summary: &Summary) -> Result<()> {
    files::write(&folder.join(SUMMARY), &summary.to_bytes(), Readers::Owner)
}

fn read(path: &Path) -> Result<Summary> {
    ensure!(
        path.exists(),
        "{} is missing: run `thimble join` again with the subnet's genesis",
        path.display()
    );
    let bytes = files::read(path, SUMMARY_BYTES_MAX)?;
    Summary::from_bytes(&bytes).with_context(|| format!("in {}", path.display()))
}
