//! The node's secrets on disk, and what is public of its subnet.
//!
//! | file | what |
//! |---|---|
//! | `node.key` | its Ed25519 key: signs query responses, records and dealings |
//! | `subnet-share.key` | its share of the subnet's key, as it was dealt at first: signs state roots, until the key is reshared |
//! | `shares/` | its shares since then, the newest and the one before (`shares`) |
//! | `subnet.json` | the subnet at its beginning: committee, members, genesis; without it the node belongs to none yet |
//! | `genesis-summary`, `summary` | who holds the key: at first, and as last written down (`summary`); subnets of a ceremony only |
//! | `encryption.key` | what shares are encrypted to it with, and moves forward: nodes of a ceremony only |
//! | `node.json` | the public record of this node: nodes of a ceremony only |
//!
//! A node without keys that is started makes a subnet of one and deals the key to itself. A node of
//! several makes its keys before (`thimble keygen`) and gets its share in the ceremony (`thimble
//! join`, `ceremony`); one that joins later has no share until the members admit it and the key is
//! reshared to it. The folder is readable by its owner only, files are written whole or not at all
//! (`files`), and bytes are wiped after use.

mod ceremony;
pub(crate) mod files;
mod shares;
mod subnet;
mod summary;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ed25519_dalek::{SigningKey, VerifyingKey};
use genesis::Summary;
use ic_principal::Principal;
use nidkg::{Committee, EncryptionSecretKey, Epoch, NodeIndex, SecretShare};
use rand::rngs::OsRng;
use state::NodeInfo;
use zeroize::Zeroizing;

use ceremony::recorded_node;
pub(crate) use ceremony::{engine, join, keygen, node_key, node_of_plan};
use files::Readers;
pub(crate) use shares::Shares;
use subnet::Subnet;
pub(crate) use summary::{read_summary, write_summary};

/// Where the keys are, in the data folder.
const FOLDER: &str = "keys";
const NODE_KEY: &str = "node.key";
const SHARE_KEY: &str = "subnet-share.key";
const ENCRYPTION_KEY: &str = "encryption.key";
const SUBNET: &str = "subnet.json";
const RECORD: &str = "node.json";
/// Where a change of the members waits for a block, in the data folder.
pub(crate) const CHANGE: &str = "members-change.json";

/// An encryption key at its longest takes a third of it.
const ENCRYPTION_KEY_BYTES_MAX: usize = 512 << 10;

/// Everything this node signs with, and what others know it by.
pub(crate) struct Keys {
    folder: PathBuf,
    pub(crate) node: SigningKey,
    /// As it was dealt at first. None for a node that joined later, and none any more once the key
    /// was reshared twice: shares in use are those of [`Shares`].
    pub(crate) share: Option<SecretShare>,
    /// At the beginning.
    pub(crate) committee: Committee,
    /// All nodes of the subnet at its beginning, by index. A subnet of one that dealt to itself
    /// has one without an address.
    pub(crate) members: Vec<Member>,
    /// The ceremony the subnet came out of; none for a subnet of one that dealt to itself.
    pub(crate) origin: Option<Origin>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its place in the committee.
    pub(crate) index: u32,
    pub(crate) node_id: Principal,
    pub(crate) node_key: [u8; 32],
    /// HOST:PORT, where its peers reach it.
    pub(crate) address: String,
}

/// The ceremony a subnet came out of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Covers plan, dealings and transcript.
    pub(crate) hash: [u8; 32],
    /// When the subnet begins, in seconds since 1970.
    pub(crate) time_seconds: u64,
}

impl Keys {
    /// Reads the keys in `folder`, or makes those of a subnet of one when the folder does not
    /// exist.
    pub(crate) fn open_or_create(folder: &Path) -> Result<Self> {
        if !folder.exists() {
            Self::create(folder)
                .with_context(|| format!("making the node's keys in {}", folder.display()))?;
        }
        Self::open(folder)
            .with_context(|| format!("reading the node's keys in {}", folder.display()))
    }

    fn create(folder: &Path) -> Result<()> {
        let (committee, shares) = nidkg::deal(1, 1, &mut OsRng)?;
        let share = shares.first().context("a dealing for one node has one share")?;
        files::create_folder(folder, |folder| {
            let node = SigningKey::generate(&mut OsRng);
            write_node_key(folder, &node)?;
            write_share(folder, share)?;
            let subnet = Subnet {
                committee: committee.clone(),
                node_index: Some(share.index),
                node_id: Some(genesis::node_id(&node.verifying_key())),
                members: vec![],
                coefficients: vec![],
                origin: None,
            };
            subnet.write(&folder.join(SUBNET))
        })
    }

    fn open(folder: &Path) -> Result<Self> {
        let node = read_node_key(folder)?.with_context(|| {
            format!("{NODE_KEY} is missing: it cannot be made again, restore it")
        })?;
        let Some(subnet) = Subnet::read(&folder.join(SUBNET))? else {
            bail!(
                "this node has keys but belongs to no subnet yet: finish the ceremony with \
                 `thimble join`, or give a subnet of one a data folder of its own"
            );
        };
        let share = match subnet.node_index {
            Some(index) => first_share(folder, &subnet, index)?,
            None => None,
        };
        let own_key = node.verifying_key();
        check_node_key(folder, &own_key, &subnet)?;
        let members = match subnet.origin {
            Some(_) => subnet.members,
            None => {
                let node_id = genesis::node_id(&own_key);
                let own = Member {
                    index: 0,
                    node_id,
                    node_key: own_key.to_bytes(),
                    address: String::new(),
                };
                vec![own]
            }
        };
        let is_own = |member: &Member| member.node_key == own_key.to_bytes();
        match subnet.node_index {
            // Was compared.
            Some(_) => {}
            None => ensure!(
                !members.iter().any(is_own),
                "{SUBNET} says that this node joined later, and has it among the first members: \
                 files of two nodes were mixed"
            ),
        }
        if subnet.origin.is_some() && read_encryption_key(folder)?.is_none() {
            tracing::warn!(
                "{} is missing: the node signs with the share it has, but cannot be given another \
                 when the subnet's key is handed on; restore it",
                folder.join(ENCRYPTION_KEY).display()
            );
        }
        Ok(Self {
            folder: folder.to_owned(),
            node,
            share,
            committee: subnet.committee,
            members,
            origin: subnet.origin,
        })
    }

    /// Who held the key when the subnet began: what a node without state starts from. Subnets of a
    /// ceremony only.
    pub(crate) fn genesis_summary(&self) -> Result<Summary> {
        summary::read_genesis(&self.folder)
    }

    fn first_share(&self) -> Result<&SecretShare> {
        self.share.as_ref().with_context(|| {
            format!(
                "this node has no share of the key as it was dealt at first: {}",
                self.folder.join(SHARE_KEY).display()
            )
        })
    }

    /// All nodes, as the state names them.
    pub(crate) fn nodes(&self) -> Result<Vec<NodeInfo>> {
        let info = |member: &Member| {
            let key = VerifyingKey::from_bytes(&member.node_key)?;
            Ok(NodeInfo { node_id: member.node_id, public_key_der: genesis::node_key_der(&key) })
        };
        self.members.iter().map(info).collect()
    }

    /// The first share once more, for the certifier to own.
    pub(crate) fn share_again(&self) -> Result<SecretShare> {
        let share = self.first_share()?;
        let bytes = Zeroizing::new(share.to_bytes());
        Ok(SecretShare::from_bytes(share.index, &bytes)?)
    }

    /// DER of the subnet's public key: what clients call the root key.
    pub(crate) fn root_key_der(&self) -> Vec<u8> {
        nidkg::public_key_to_der(&self.committee.public_key)
    }

    /// The subnet is known by the hash of its key.
    pub(crate) fn subnet_id(&self) -> Principal {
        Principal::self_authenticating(self.root_key_der())
    }

    /// The node is known by the hash of its key.
    pub(crate) fn node_id(&self) -> Principal {
        genesis::node_id(&self.node.verifying_key())
    }
}

/// Whether the node of a data folder is one of several in its subnet: not while it has no keys.
pub(crate) fn several(data_dir: &Path) -> Result<bool> {
    let path = data_dir.join(FOLDER).join(SUBNET);
    // An unreadable file must not be taken for a node alone.
    path.try_exists().with_context(|| format!("reading {}", path.display()))?;
    let subnet = Subnet::read(&path)?;
    Ok(subnet.is_some_and(|subnet| subnet.origin.is_some() && subnet.members.len() > 1))
}

/// The share as it was dealt at first; none once it was removed because the key was reshared.
fn first_share(folder: &Path, subnet: &Subnet, index: NodeIndex) -> Result<Option<SecretShare>> {
    let Some(share) = read_share(folder, index)? else {
        ensure!(
            shares::moved_on(folder),
            "{SHARE_KEY} is missing: without its share the node cannot sign for the subnet, \
             restore it"
        );
        return Ok(None);
    };
    if subnet.committee.shares.get(index.0 as usize) != Some(&share.public_key()) {
        bail!("{SHARE_KEY} does not belong to {SUBNET}: files of two nodes were mixed");
    }
    Ok(Some(share))
}

/// Checks that the node's key is the one that the public files in its folder were made for. Their
/// ids carry checksums, so if they differ it is the key that changed: any 32 bytes are some key,
/// and a node that continued with another would compute other states and find its roots wrong.
fn check_node_key(folder: &Path, key: &VerifyingKey, subnet: &Subnet) -> Result<()> {
    let own = genesis::node_id(key);
    let place = subnet.node_index.filter(|_| subnet.origin.is_some());
    let stated = match (place, subnet.node_id) {
        (Some(index), _) => {
            subnet.members.get(index.0 as usize).map(|member| (SUBNET, member.node_id))
        }
        (None, Some(node_id)) => Some((SUBNET, node_id)),
        // One that joined later is in no list, and one of earlier versions left no word of its key.
        (None, None) => recorded_node(folder)?.map(|node_id| (RECORD, node_id)),
    };
    let Some((file, node_id)) = stated.filter(|(_, node_id)| *node_id != own) else {
        return Ok(());
    };
    bail!(
        "{} is damaged or another node's: it is the key of node {own}, and {file} beside it was \
         made for node {node_id}; restore {NODE_KEY} from a copy",
        folder.join(NODE_KEY).display()
    )
}

fn write_node_key(folder: &Path, key: &SigningKey) -> Result<()> {
    files::write(&folder.join(NODE_KEY), &Zeroizing::new(key.to_bytes())[..], Readers::Owner)
}

fn read_node_key(folder: &Path) -> Result<Option<SigningKey>> {
    let bytes = files::read_secret_of(&folder.join(NODE_KEY))?;
    Ok(bytes.map(|bytes| SigningKey::from_bytes(&bytes)))
}

fn write_share(folder: &Path, share: &SecretShare) -> Result<()> {
    files::write(&folder.join(SHARE_KEY), &Zeroizing::new(share.to_bytes())[..], Readers::Owner)
}

fn read_share(folder: &Path, index: NodeIndex) -> Result<Option<SecretShare>> {
    let path = folder.join(SHARE_KEY);
    let Some(bytes) = files::read_secret_of(&path)? else { return Ok(None) };
    SecretShare::from_bytes(index, &bytes)
        .with_context(|| format!("in {}", path.display()))
        .map(Some)
}

/// Moves the encryption key past an epoch, whose dealings are public for ever: a key stolen later
/// opens nothing of it. Whether it had to move.
fn move_key_past(folder: &Path, mut key: EncryptionSecretKey, epoch: Epoch) -> Result<bool> {
    let past = Epoch(epoch.0.saturating_add(1));
    if key.epoch() >= past {
        return Ok(false);
    }
    key.update_to(past, &mut OsRng)?;
    files::replace_secret(&folder.join(ENCRYPTION_KEY), &key.to_bytes())?;
    Ok(true)
}

fn read_encryption_key(folder: &Path) -> Result<Option<EncryptionSecretKey>> {
    let path = folder.join(ENCRYPTION_KEY);
    let Some(bytes) = files::read_secret(&path, ENCRYPTION_KEY_BYTES_MAX)? else { return Ok(None) };
    EncryptionSecretKey::from_bytes(&bytes)
        .with_context(|| format!("in {}", path.display()))
        .map(Some)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn keys_are_made_once_and_only_the_owner_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys");
        let first = Keys::open_or_create(&keys).unwrap();
        let second = Keys::open_or_create(&keys).unwrap();
        assert_eq!(first.subnet_id(), second.subnet_id());
        assert_eq!(first.node_id(), second.node_id());
        assert_eq!(first.root_key_der().len(), 133);
        assert_eq!(fs::metadata(&keys).unwrap().permissions().mode() & 0o777, 0o700);
        for name in ["node.key", "subnet-share.key"] {
            assert_eq!(fs::metadata(keys.join(name)).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_subnet_of_one_is_a_subnet_with_one_member() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let keys = Keys::open_or_create(&path).unwrap();
        assert_eq!(keys.members.len(), 1);
        assert_eq!(keys.members[0].node_id, keys.node_id());
        assert!(keys.origin.is_none());
        // As earlier versions wrote it.
        let file = path.join("subnet.json");
        let mut subnet: serde_json::Value =
            serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        for later in ["version", "node_id"] {
            subnet.as_object_mut().unwrap().remove(later).unwrap();
        }
        assert_eq!(subnet.as_object().unwrap().len(), 4);
        fs::write(&file, subnet.to_string()).unwrap();
        assert_eq!(Keys::open_or_create(&path).unwrap().subnet_id(), keys.subnet_id());
    }

    #[test]
    fn a_share_of_another_subnet_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (mine, other) = (folder.path().join("mine"), folder.path().join("other"));
        Keys::open_or_create(&mine).unwrap();
        Keys::open_or_create(&other).unwrap();
        fs::copy(other.join("subnet-share.key"), mine.join("subnet-share.key")).unwrap();
        let error = Keys::open_or_create(&mine).err().unwrap();
        assert!(format!("{error:#}").contains("files of two nodes"), "{error:#}");
    }

    #[test]
    fn a_damaged_node_key_is_told_from_a_damaged_file_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let keys = Keys::open_or_create(&path).unwrap();
        let refused = |words: &[&str]| {
            let error = format!("{:#}", Keys::open_or_create(&path).err().unwrap());
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        let file = path.join("node.key");
        let key = fs::read(&file).unwrap();
        for bit in [0, 100, 255] {
            let mut damaged = key.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, damaged).unwrap();
            refused(&[file.to_str().unwrap(), "node.key is damaged", &keys.node_id().to_text()]);
        }
        fs::write(&file, &key[1..]).unwrap();
        refused(&["node.key has 31 bytes"]);
        fs::write(&file, &key).unwrap();
        // The id in the file next to it has a checksum.
        let file = path.join("subnet.json");
        let subnet = fs::read_to_string(&file).unwrap();
        let id = keys.node_id().to_text();
        let changed =
            if id.starts_with('a') { id.replacen('a', "b", 1) } else { format!("a{}", &id[1..]) };
        fs::write(&file, subnet.replace(&id, &changed)).unwrap();
        refused(&["subnet.json", "node_id is no id"]);
        fs::write(&file, &subnet).unwrap();
        assert_eq!(Keys::open_or_create(&path).unwrap().node_id(), keys.node_id());
    }

    #[test]
    fn missing_key_file_is_reported_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for (name, words) in [
            ("node.key", "node.key is missing"),
            ("subnet-share.key", "subnet-share.key is missing"),
            ("subnet.json", "no subnet yet"),
        ] {
            let keys = folder.path().join(name);
            Keys::open_or_create(&keys).unwrap();
            fs::remove_file(keys.join(name)).unwrap();
            let error = Keys::open_or_create(&keys).err().unwrap();
            assert!(format!("{error:#}").contains(words), "{error:#}");
        }
    }
}
