//! A signed change of a subnet's members: the added nodes, the removed nodes, and the signatures of
//! as many current members as sign together.
//!
//! It is for one subnet (its key) and one place in the subnet's history (how many changes came
//! before), so it can be neither used elsewhere nor replayed. It does not move the key by itself:
//! it names the receivers of the dealings of the next epoch, see [`crate::Summary`].
//!
//! # Permitted changes
//!
//! * The members after it number 1, or 4 to [`NODES_MAX`], or as many as before. Two or three
//!   tolerate no fault, while each of them can halt the subnet: worse than one. A subnet that began
//!   so may still replace its nodes.
//! * One member stays at least, of those that hold the key now and of those that are to hold it
//!   next: a node with the state must remain, from which the new members can fetch it.
//! * How many change at once is not limited. The people who sign must ensure that enough of the
//!   *new* members ([`crate::threshold`]) run when they take over.
//! * A node that is removed and added by the same change gets a new record: another address, or
//!   another encryption key when the old one was lost.

use ed25519_dalek::{Signature, Signer, SigningKey};
use ic_principal::Principal;
use nidkg::{Epoch, Session, SessionError, Source};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    GenesisError, NODES_MAX, NodeRecord,
    bytes::{BytesError, Reader},
    encoding::{self, BoundedList, Hex, VERSION, shortened},
    hash::Message,
    node_id,
    record::RecordFile,
};

/// A membership change larger than this is not read: a whole new committee of 64, signed by 64,
/// takes half of it.
pub const CHANGE_BYTES_MAX: usize = 256 << 10;

/// Bytes of a node id: the hash of a key, and a byte that marks it.
const NODE_ID_BYTES: usize = 29;

/// A change of members. The records in it are checked, and that there is one order of all parts;
/// [`crate::Summary`] decides whether it is valid for a subnet.
#[derive(Clone, PartialEq, Eq)]
pub struct MembershipChange {
    subnet_key: [u8; 96],
    number: u64,
    /// By rising node key.
    add: Vec<NodeRecord>,
    /// By rising node id.
    remove: Vec<Principal>,
    /// By rising node id.
    signatures: Vec<(Principal, Signature)>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeFile {
    version: u32,
    subnet_key: Hex<96>,
    number: u64,
    /// By rising node key.
    add: BoundedList<RecordFile, NODES_MAX>,
    /// Node ids, rising.
    remove: BoundedList<String, NODES_MAX>,
    /// By rising node id.
    signatures: BoundedList<SignatureEntry, NODES_MAX>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignatureEntry {
    node_id: String,
    /// Of that node's key, over all of the change but signatures.
    signature: Hex<64>,
}

/// Why a change of members was refused.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum ChangeError {
    #[error("the change is for the subnet with the key {stated}…, this subnet's is {right}…")]
    OtherSubnet { stated: String, right: String },
    #[error(
        "the change has number {stated}; the next change of this subnet has number {right}: \
         another came before, make this one again"
    )]
    Number { stated: u64, right: u64 },
    #[error("another change was accepted in this epoch; the next may follow in the next epoch")]
    UnderWay,
    #[error("{0} of the change do not stand in rising order, each once")]
    Order(&'static str),
    #[error("`{0}` is no node id, as `thimble keygen` prints it")]
    NodeId(String),
    #[error("the change leaves the members as they are")]
    Nothing,
    #[error("node {0} is to be removed and is no member")]
    NoMember(Principal),
    #[error(
        "node {0} is to be added and is a member: to give it a new record, remove it in the same \
         change"
    )]
    Member(Principal),
    #[error(
        "{after} members after the change, {before} before; a change may come to 1, to 4 to \
         {NODES_MAX}, or to as many as before: two or three tolerate no fault"
    )]
    Size { before: usize, after: usize },
    /// No remaining member has the state.
    #[error("no member stays: one at least must, for the others to fetch the state from")]
    NobodyStays,
    #[error("two members would have the same address, {0}")]
    Address(String),
    #[error("the members after the change cannot hold a key together: {0}")]
    Session(#[from] SessionError),
    #[error("signer {0} is not a member")]
    Signer(Principal),
    #[error(
        "the signature of node {0} does not verify: the change was made again after it, or by \
         somebody else"
    )]
    Signature(Principal),
    #[error("{have} members signed the change; {need} must")]
    Unsigned { have: usize, need: u32 },
    #[error(transparent)]
    Genesis(#[from] GenesisError),
    #[error("the change: {0}")]
    Bytes(#[from] BytesError),
}

impl MembershipChange {
    /// An unsigned change, for the subnet with this public key, after `number` others. Nodes may
    /// come in any order.
    pub fn new(
        subnet_key: &nidkg::PublicKey,
        number: u64,
        mut add: Vec<NodeRecord>,
        mut remove: Vec<Principal>,
    ) -> Result<Self, ChangeError> {
        add.sort_by_key(|node| node.node_key().to_bytes());
        remove.sort();
        Self { subnet_key: *subnet_key.as_bytes(), number, add, remove, signatures: vec![] }
            .ordered()
    }

    /// Refuses a change that [`Self::new`] would not have made.
    fn ordered(self) -> Result<Self, ChangeError> {
        for (what, count) in [
            ("the number of added nodes", self.add.len()),
            ("the number of removed nodes", self.remove.len()),
            ("the number of signatures", self.signatures.len()),
        ] {
            if count > NODES_MAX {
                let (value, max) = (count as u64, NODES_MAX as u64);
                return Err(BytesError::OutOfRange { what, value, min: 0, max }.into());
            }
        }
        if !self
            .add
            .is_sorted_by(|one, other| one.node_key().to_bytes() < other.node_key().to_bytes())
        {
            return Err(ChangeError::Order("the added nodes"));
        }
        if !self.remove.is_sorted_by(|one, other| one < other) {
            return Err(ChangeError::Order("the removed nodes"));
        }
        if let Some(id) = self.remove.iter().find(|id| id.as_slice().len() != NODE_ID_BYTES) {
            return Err(ChangeError::NodeId(id.to_text()));
        }
        if !self.signatures.is_sorted_by(|one, other| one.0 < other.0) {
            return Err(ChangeError::Order("the signatures"));
        }
        Ok(self)
    }

    /// Reads a change; its records and its form are checked.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ChangeError> {
        let file: ChangeFile = encoding::read("the membership change", bytes, CHANGE_BYTES_MAX)?;
        let add = file.add.0.into_iter().map(NodeRecord::try_from).collect::<Result<_, _>>()?;
        let remove = file.remove.0.iter().map(|text| id_of_text(text)).collect::<Result<_, _>>()?;
        let entry = |entry: SignatureEntry| -> Result<_, ChangeError> {
            Ok((id_of_text(&entry.node_id)?, Signature::from_bytes(&entry.signature.0)))
        };
        let signatures = file.signatures.0.into_iter().map(entry).collect::<Result<_, _>>()?;
        Self { subnet_key: file.subnet_key.0, number: file.number, add, remove, signatures }
            .ordered()
    }

    /// As a file.
    pub fn to_json(&self) -> String {
        let entry = |(id, signature): &(Principal, Signature)| SignatureEntry {
            node_id: id.to_text(),
            signature: Hex(signature.to_bytes()),
        };
        encoding::write(&ChangeFile {
            version: VERSION,
            subnet_key: Hex(self.subnet_key),
            number: self.number,
            add: BoundedList(self.add.iter().map(RecordFile::from).collect()),
            remove: BoundedList(self.remove.iter().map(Principal::to_text).collect()),
            signatures: BoundedList(self.signatures.iter().map(entry).collect()),
        })
    }

    /// As bytes, for a block.
    pub(crate) fn write(&self, writer: &mut Vec<u8>) {
        writer.extend_from_slice(&self.subnet_key);
        writer.extend(u64::to_be_bytes(self.number));
        write_records(writer, &self.add);
        writer.extend(u32::to_be_bytes(self.remove.len() as u32));
        self.remove.iter().for_each(|id| writer.extend_from_slice(id.as_slice()));
        writer.extend(u32::to_be_bytes(self.signatures.len() as u32));
        for (id, signature) in &self.signatures {
            writer.extend_from_slice(id.as_slice());
            writer.extend_from_slice(&signature.to_bytes());
        }
    }

    /// Reads the output of [`Self::write`], as [`Self::from_json`] does.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, ChangeError> {
        let id = |reader: &mut Reader<'_>| -> Result<_, BytesError> {
            Ok(Principal::from_slice(reader.take(NODE_ID_BYTES, "a node id")?))
        };
        let subnet_key = reader.array("the subnet's key")?;
        let number = reader.u64("the number of the change")?;
        let add = read_records(reader, "the added nodes")?;
        let count = reader.count("the number of removed nodes", NODES_MAX)?;
        let remove = (0..count).map(|_| id(reader)).collect::<Result<_, _>>()?;
        let count = reader.count("the number of signatures", NODES_MAX)?;
        let signatures = (0..count)
            .map(|_| Ok((id(reader)?, Signature::from_bytes(&reader.array("a signature")?))))
            .collect::<Result<_, BytesError>>()?;
        Self { subnet_key, number, add, remove, signatures }.ordered()
    }

    /// How many changes came before it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The added nodes, by rising node key.
    pub fn added(&self) -> &[NodeRecord] {
        &self.add
    }

    /// The removed nodes, by rising node id.
    pub fn removed(&self) -> &[Principal] {
        &self.remove
    }

    /// The signers, unverified.
    pub fn signers(&self) -> impl Iterator<Item = Principal> + '_ {
        self.signatures.iter().map(|(id, _)| *id)
    }

    /// Hash of all but the signatures, which people compare before they sign.
    pub fn hash(&self) -> [u8; 32] {
        self.message().digest()
    }

    /// Signs, as the node with this key. Signing again changes nothing.
    pub fn sign(&mut self, node: &SigningKey) -> Result<(), ChangeError> {
        let id = node_id(&node.verifying_key());
        let signature = node.sign(self.message().bytes());
        match self.signatures.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(place) => self.signatures[place].1 = signature,
            Err(_) if self.signatures.len() == NODES_MAX => return Err(ChangeError::Signer(id)),
            Err(place) => self.signatures.insert(place, (id, signature)),
        }
        Ok(())
    }

    /// All but the signatures.
    fn message(&self) -> Message {
        let head = Message::new("thimble-membership-change")
            .number(u64::from(VERSION))
            .part(&self.subnet_key)
            .number(self.number)
            .number(self.add.len() as u64);
        let head = self.add.iter().fold(head, |message, node| node.hash_into(message));
        self.remove
            .iter()
            .fold(head.number(self.remove.len() as u64), |message, id| message.part(id.as_slice()))
    }

    /// The members that result from `next`, which are to hold the key next; `current` hold it now.
    /// Signatures are not checked.
    pub(crate) fn applied(
        &self,
        subnet_key: &nidkg::PublicKey,
        number: u64,
        current: &[NodeRecord],
        next: &[NodeRecord],
    ) -> Result<Vec<NodeRecord>, ChangeError> {
        if self.subnet_key != *subnet_key.as_bytes() {
            let start = |key: &[u8]| hex::encode(&key[..8]);
            let (stated, right) = (start(&self.subnet_key), start(subnet_key.as_bytes()));
            return Err(ChangeError::OtherSubnet { stated, right });
        }
        if self.number != number {
            return Err(ChangeError::Number { stated: self.number, right: number });
        }
        let is_in =
            |nodes: &[NodeRecord], id: &Principal| nodes.iter().any(|node| node.node_id() == *id);
        if let Some(id) = self.remove.iter().find(|id| !is_in(next, id)) {
            return Err(ChangeError::NoMember(*id));
        }
        let mut after: Vec<NodeRecord> = next
            .iter()
            .filter(|node| self.remove.binary_search(&node.node_id()).is_err())
            .cloned()
            .collect();
        if let Some(node) = self.add.iter().find(|node| is_in(&after, &node.node_id())) {
            return Err(ChangeError::Member(node.node_id()));
        }
        after.extend(self.add.iter().cloned());
        after.sort_by_key(|node| node.node_key().to_bytes());
        if after == next {
            return Err(ChangeError::Nothing);
        }
        let before = next.len();
        if !(after.len() == 1 || (4..=NODES_MAX).contains(&after.len()) || after.len() == before) {
            return Err(ChangeError::Size { before, after: after.len() });
        }
        let stays = |nodes: &[NodeRecord]| nodes.iter().any(|node| is_in(&after, &node.node_id()));
        if !stays(current) || !stays(next) {
            return Err(ChangeError::NobodyStays);
        }
        check_members(&after)?;
        Ok(after)
    }

    /// Checks every signature; returns how many there are, all of different ones of `members`.
    pub(crate) fn signed_by(&self, members: &[NodeRecord]) -> Result<usize, ChangeError> {
        let message = self.message();
        for (id, signature) in &self.signatures {
            let member = members.iter().find(|member| member.node_id() == *id);
            let member = member.ok_or(ChangeError::Signer(*id))?;
            member
                .node_key()
                .verify_strict(message.bytes(), signature)
                .map_err(|_| ChangeError::Signature(*id))?;
        }
        Ok(self.signatures.len())
    }
}

/// Whether these can be members together: a number within bounds, by rising node key, no address
/// and no encryption key twice.
pub(crate) fn check_members(members: &[NodeRecord]) -> Result<(), ChangeError> {
    if members.is_empty() || members.len() > NODES_MAX {
        return Err(GenesisError::Nodes(members.len()).into());
    }
    if !members.is_sorted_by(|one, other| one.node_key().to_bytes() < other.node_key().to_bytes()) {
        return Err(ChangeError::Order("the members"));
    }
    for (place, member) in members.iter().enumerate() {
        if members[..place].iter().any(|other| other.address() == member.address()) {
            return Err(ChangeError::Address(member.address().to_owned()));
        }
    }
    // A session refuses keys that are there twice.
    let keys = members.iter().map(|member| *member.encryption_key()).collect();
    Session::new([0; 32], Epoch(0), 1, keys, Source::Fresh { dealers: 1, dealings: 1 })?;
    Ok(())
}

pub(crate) fn write_records(writer: &mut Vec<u8>, records: &[NodeRecord]) {
    writer.extend(u32::to_be_bytes(records.len() as u32));
    records.iter().for_each(|record| record.write(writer));
}

pub(crate) fn read_records(
    reader: &mut Reader<'_>,
    what: &'static str,
) -> Result<Vec<NodeRecord>, GenesisError> {
    let count = reader.count(what, NODES_MAX)?;
    (0..count).map(|_| NodeRecord::read(reader)).collect()
}

fn id_of_text(text: &str) -> Result<Principal, ChangeError> {
    encoding::principal(text)
        .filter(|id| id.as_slice().len() == NODE_ID_BYTES)
        .ok_or_else(|| ChangeError::NodeId(shortened(text).to_owned()))
}
