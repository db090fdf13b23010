//! `subnet.json`: the public data of the subnet a node belongs to, in readable form, kept with the
//! node's secrets.
//!
//! Version 1 is a subnet of one, dealt by itself; it may lack its version. Version 2 came out of a
//! ceremony and has members, coefficients and genesis.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use ed25519_dalek::VerifyingKey;
use genesis::NODES_MAX;
use ic_principal::Principal;
use nidkg::{Committee, NodeIndex, PublicKey};
use serde::{Deserialize, Serialize};

use super::{
    Member, Origin,
    files::{self, Readers},
};

/// Four times the size of a file with 64 members.
const BYTES_MAX: usize = 256 << 10;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default = "first")]
    version: u32,
    /// Hex of the 96-byte public key.
    public_key: String,
    threshold: u32,
    /// Hex of each share's public key.
    shares: Vec<String>,
    /// This node's place; none for one that joined later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node_index: Option<u32>,
    /// Whose file it is, in a subnet of one: the hash of its key, as text that has a checksum.
    /// Files of earlier versions lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node_id: Option<String>,
    /// In the order of their index; empty in version 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    members: Vec<MemberEntry>,
    /// Hex of each coefficient of the public polynomial, lowest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    coefficients: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    genesis_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    genesis_time_seconds: Option<u64>,
}

fn first() -> u32 {
    1
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberEntry {
    index: u32,
    node_id: String,
    node_key: String,
    address: String,
}

pub(crate) struct Subnet {
    pub(crate) committee: Committee,
    /// None for a node that joined later.
    pub(crate) node_index: Option<NodeIndex>,
    /// The node that the file belongs to, in a subnet of one; where it is not known, the key in its
    /// folder cannot be checked.
    pub(crate) node_id: Option<Principal>,
    /// By index; none in the file of a subnet of one.
    pub(crate) members: Vec<Member>,
    /// As stored; none in the file of a subnet of one.
    pub(crate) coefficients: Vec<[u8; 96]>,
    /// None for a subnet of one that dealt to itself.
    pub(crate) origin: Option<Origin>,
}

impl Subnet {
    /// None if there is no such file: the node does not belong to a subnet yet.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        let file: File = serde_json::from_slice(&files::read(path, BYTES_MAX)?)
            .with_context(|| format!("in {}", path.display()))?;
        Self::try_from(file).with_context(|| format!("in {}", path.display())).map(Some)
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let file = File {
            version: if self.origin.is_some() { 2 } else { 1 },
            public_key: hex::encode(self.committee.public_key.as_bytes()),
            threshold: self.committee.threshold,
            shares: self.committee.shares.iter().map(|key| hex::encode(key.as_bytes())).collect(),
            node_index: self.node_index.map(|index| index.0),
            node_id: self.node_id.map(|id| id.to_text()),
            members: self.members.iter().map(MemberEntry::from).collect(),
            coefficients: self.coefficients.iter().map(hex::encode).collect(),
            genesis_hash: self.origin.as_ref().map(|origin| hex::encode(origin.hash)),
            genesis_time_seconds: self.origin.as_ref().map(|origin| origin.time_seconds),
        };
        files::write(path, &serde_json::to_vec_pretty(&file)?, Readers::Owner)
    }

    /// The subnet is known by the hash of its key.
    pub(crate) fn id(&self) -> Principal {
        Principal::self_authenticating(nidkg::public_key_to_der(&self.committee.public_key))
    }
}

impl From<&Member> for MemberEntry {
    fn from(member: &Member) -> Self {
        Self {
            index: member.index,
            node_id: member.node_id.to_text(),
            node_key: hex::encode(member.node_key),
            address: member.address.clone(),
        }
    }
}

fn bytes<const N: usize>(what: &str, text: &str) -> Result<[u8; N]> {
    let mut out = [0; N];
    hex::decode_to_slice(text, &mut out)
        .with_context(|| format!("{what} is not {} hexadecimal digits", 2 * N))?;
    Ok(out)
}

impl TryFrom<File> for Subnet {
    type Error = anyhow::Error;

    fn try_from(file: File) -> Result<Self> {
        let count = file.shares.len();
        ensure!((1..=NODES_MAX).contains(&count), "{count} shares; a subnet has 1 to {NODES_MAX}");
        if let Some(index) = file.node_index {
            ensure!((index as usize) < count, "node_index {index} of {count} nodes");
        }
        let key = |text: &String| -> Result<PublicKey> {
            Ok(PublicKey::from_bytes(&bytes("a public key", text)?)?)
        };
        let committee = Committee {
            public_key: key(&file.public_key)?,
            threshold: file.threshold,
            shares: file.shares.iter().map(key).collect::<Result<_>>()?,
        };
        let origin = match (file.version, file.genesis_hash, file.genesis_time_seconds) {
            (1, None, None) => {
                ensure!(
                    count == 1 && file.members.is_empty() && file.node_index.is_some(),
                    "version 1 is that of a subnet of one"
                );
                None
            }
            (2, Some(hash), Some(time_seconds)) => {
                ensure!(
                    file.members.len() == count,
                    "{} members with {count} shares",
                    file.members.len()
                );
                Some(Origin { hash: bytes("the genesis hash", &hash)?, time_seconds })
            }
            (1 | 2, ..) => bail!("the genesis hash and time belong to version 2, and both of them"),
            (version, ..) => bail!("version {version}; this program reads versions 1 and 2"),
        };
        let members = file.members.into_iter().enumerate();
        let members = members.map(|(place, entry)| member(place, entry)).collect::<Result<_>>()?;
        let coefficients = file
            .coefficients
            .iter()
            .map(|text| bytes("a coefficient", text))
            .collect::<Result<Vec<_>>>()?;
        if origin.is_some() {
            ensure!(
                committee.coefficients()? == coefficients,
                "the coefficients are not those of the committee: the file was changed"
            );
        }
        let node_id = file.node_id.map(|text| Principal::from_text(&text));
        let node_id = node_id.transpose().context("node_id is no id: the file was changed")?;
        Ok(Self {
            committee,
            node_index: file.node_index.map(NodeIndex),
            node_id,
            members,
            coefficients,
            origin,
        })
    }
}

fn member(place: usize, entry: MemberEntry) -> Result<Member> {
    ensure!(entry.index as usize == place, "member {} stands at place {place}", entry.index);
    let node_key: [u8; 32] = bytes("a node key", &entry.node_key)?;
    let key = VerifyingKey::from_bytes(&node_key)
        .with_context(|| format!("the node key of member {place} is no Ed25519 key"))?;
    let node_id = genesis::node_id(&key);
    ensure!(
        entry.node_id == node_id.to_text(),
        "member {place} has the node key of {node_id}, not of {}",
        entry.node_id
    );
    genesis::check_address(&entry.address)
        .with_context(|| format!("the address of member {place}"))?;
    Ok(Member { index: entry.index, node_id, node_key, address: entry.address })
}
