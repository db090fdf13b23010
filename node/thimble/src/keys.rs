//! The node's secrets on disk: its Ed25519 key (signs query responses) and its share of the subnet key (signs state roots), made at the first start.
//!
//! The folder is readable by its owner only, files are written whole or not at all, and bytes are wiped after use. A subnet of one deals the key to itself.

use std::{
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use anyhow::{Context, Result, bail};
use ed25519_dalek::SigningKey;
use ic_principal::Principal;
use nidkg::{Committee, NodeIndex, SecretShare};
use rand::rngs::OsRng;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// Everything this node signs with, and what others know it by.
pub(crate) struct Keys {
    pub(crate) node: SigningKey,
    pub(crate) share: SecretShare,
    pub(crate) committee: Committee,
}

/// What is public of a subnet: stored as JSON beside the secrets, so that a person can read it.
#[derive(Serialize, Deserialize)]
struct SubnetFile {
    /// Hex of the 96-byte public key.
    public_key: String,
    threshold: u32,
    /// Hex of each share's public key.
    shares: Vec<String>,
    /// This node's place.
    node_index: u32,
}

impl Keys {
    /// Reads the keys in `folder`, or makes them when the folder does not exist.
    pub(crate) fn open_or_create(folder: &Path) -> Result<Self> {
        if !folder.exists() {
            Self::create(folder)
                .with_context(|| format!("making the node's keys in {}", folder.display()))?;
        }
        Self::open(folder).with_context(|| format!("reading the node's keys in {}", folder.display()))
    }

    fn create(folder: &Path) -> Result<()> {
        let scratch = folder.with_extension("new");
        if scratch.exists() {
            fs::remove_dir_all(&scratch)?;
        }
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&scratch)?;
        let node = SigningKey::generate(&mut OsRng);
        let (committee, shares) = nidkg::deal(1, 1, &mut OsRng)?;
        let share = shares.first().context("a dealing for one node has one share")?;
        write_secret(&scratch.join("node.key"), &Zeroizing::new(node.to_bytes())[..])?;
        write_secret(&scratch.join("subnet-share.key"), &Zeroizing::new(share.to_bytes())[..])?;
        let subnet = SubnetFile {
            public_key: hex::encode(committee.public_key.as_bytes()),
            threshold: committee.threshold,
            shares: committee.shares.iter().map(|key| hex::encode(key.as_bytes())).collect(),
            node_index: share.index.0,
        };
        write_secret(&scratch.join("subnet.json"), &serde_json::to_vec_pretty(&subnet)?)?;
        fs::File::open(&scratch)?.sync_all()?;
        fs::rename(&scratch, folder)?;
        if let Some(parent) = folder.parent() {
            fs::File::open(parent)?.sync_all()?;
        }
        Ok(())
    }

    fn open(folder: &Path) -> Result<Self> {
        let node = SigningKey::from_bytes(&*read_secret(&folder.join("node.key"))?);
        let subnet: SubnetFile = serde_json::from_slice(&fs::read(folder.join("subnet.json"))?)?;
        let key = |text: &str| -> Result<nidkg::PublicKey> {
            let bytes: [u8; 96] = hex::decode(text)?.try_into().ok().context("a public key has 96 bytes")?;
            Ok(nidkg::PublicKey::from_bytes(&bytes)?)
        };
        let committee = Committee {
            public_key: key(&subnet.public_key)?,
            threshold: subnet.threshold,
            shares: subnet.shares.iter().map(|text| key(text)).collect::<Result<_>>()?,
        };
        let bytes = read_secret(&folder.join("subnet-share.key"))?;
        let share = SecretShare::from_bytes(NodeIndex(subnet.node_index), &bytes)?;
        if committee.shares.get(subnet.node_index as usize) != Some(&share.public_key()) {
            bail!("subnet-share.key does not belong to subnet.json: files of two nodes were mixed");
        }
        Ok(Self { node, share, committee })
    }

    /// The share once more, for the certifier to own.
    pub(crate) fn share_again(&self) -> Result<SecretShare> {
        let bytes = Zeroizing::new(self.share.to_bytes());
        Ok(SecretShare::from_bytes(self.share.index, &bytes)?)
    }

    /// Randomness of the first block, which no certified state precedes: a value only this subnet's key can give.
    pub(crate) fn genesis_seed(&self) -> [u8; 32] {
        Sha256::digest(self.share.sign(b"\x0fthimble-genesis").0).into()
    }

    /// DER of the subnet's public key: what clients call the root key.
    pub(crate) fn root_key_der(&self) -> Vec<u8> {
        nidkg::public_key_to_der(&self.committee.public_key)
    }

    /// The subnet is known by the hash of its key.
    pub(crate) fn subnet_id(&self) -> Principal {
        Principal::self_authenticating(self.root_key_der())
    }

    /// DER of the node's Ed25519 public key (RFC 8410).
    pub(crate) fn node_key_der(&self) -> Vec<u8> {
        const PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
        [&PREFIX[..], self.node.verifying_key().as_bytes()].concat()
    }

    /// The node is known by the hash of its key.
    pub(crate) fn node_id(&self) -> Principal {
        Principal::self_authenticating(self.node_key_der())
    }
}

fn write_secret(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(())
}

fn read_secret(path: &Path) -> Result<Zeroizing<[u8; 32]>> {
    let bytes = Zeroizing::new(fs::read(path).with_context(|| format!("{}", path.display()))?);
    let array: [u8; 32] =
        bytes.as_slice().try_into().with_context(|| format!("{} must have 32 bytes", path.display()))?;
    Ok(Zeroizing::new(array))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
        assert_eq!(first.node_key_der().len(), 44);
        assert_eq!(fs::metadata(&keys).unwrap().permissions().mode() & 0o777, 0o700);
        for name in ["node.key", "subnet-share.key"] {
            assert_eq!(fs::metadata(keys.join(name)).unwrap().permissions().mode() & 0o777, 0o600);
        }
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
}
