//! The plan: everything that all nodes agree on before they deal.

use ed25519_dalek::VerifyingKey;
use ic_principal::Principal;
use nidkg::{NodeIndex, Session, Source};
use serde::{Deserialize, Serialize};

use crate::{
    GENESIS_EPOCH, GenesisError, NODES_MAX,
    encoding::{self, BoundedList, VERSION},
    hash::Message,
    record::{NodeRecord, RecordFile},
};

/// A plan larger than this is not read.
pub const PLAN_BYTES_MAX: usize = 256 << 10;
/// The last second that can be counted in nanoseconds since 1970.
const TIME_SECONDS_MAX: u64 = u64::MAX / 1_000_000_000;

/// The nodes of a subnet to be, by rising node key, and when it begins. Checked, wherever it came
/// from.
#[derive(Clone)]
pub struct Plan {
    time_seconds: u64,
    nodes: Vec<NodeRecord>,
    hash: [u8; 32],
    session: Session,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanFile {
    version: u32,
    /// Seconds since 1970: time of the first block.
    genesis_time_seconds: u64,
    /// Signatures needed to sign for the subnet.
    threshold: u32,
    /// By rising node key.
    nodes: BoundedList<RecordFile, NODES_MAX>,
}

/// How many of `nodes` may be faulty: fewer than a third.
pub fn faulty(nodes: usize) -> u32 {
    (nodes.saturating_sub(1) / 3) as u32
}

/// How many of `nodes` sign together: all but those that may be faulty.
pub fn threshold(nodes: usize) -> u32 {
    nodes as u32 - faulty(nodes)
}

impl Plan {
    /// The plan of these nodes, in whatever order they come.
    pub fn new(mut nodes: Vec<NodeRecord>, time_seconds: u64) -> Result<Self, GenesisError> {
        // By key, as the engine orders its participants: a node has one place there and in the
        // committee.
        nodes.sort_by_key(|node| node.node_key().to_bytes());
        Self::of_sorted(nodes, time_seconds)
    }

    fn of_sorted(nodes: Vec<NodeRecord>, time_seconds: u64) -> Result<Self, GenesisError> {
        if nodes.is_empty() || nodes.len() > NODES_MAX {
            return Err(GenesisError::Nodes(nodes.len()));
        }
        if time_seconds > TIME_SECONDS_MAX {
            return Err(GenesisError::Time(time_seconds));
        }
        for pair in nodes.windows(2) {
            let (before, after) = (pair[0].node_key().to_bytes(), pair[1].node_key().to_bytes());
            if before == after {
                return Err(GenesisError::Twice {
                    what: "node id",
                    value: pair[1].node_id().to_text(),
                });
            }
            if before > after {
                return Err(GenesisError::Order {
                    before: pair[0].node_id(),
                    after: pair[1].node_id(),
                });
            }
        }
        for (index, node) in nodes.iter().enumerate() {
            if nodes[..index].iter().any(|other| other.address() == node.address()) {
                return Err(GenesisError::Twice {
                    what: "address",
                    value: node.address().to_owned(),
                });
            }
        }
        let head = Message::new("thimble-genesis-plan")
            .number(u64::from(VERSION))
            .number(time_seconds)
            .number(u64::from(threshold(nodes.len())))
            .number(nodes.len() as u64);
        let hash = nodes.iter().fold(head, |message, node| node.hash_into(message)).digest();
        let count = nodes.len();
        let session = Session::new(
            hash,
            GENESIS_EPOCH,
            threshold(count),
            nodes.iter().map(|node| *node.encryption_key()).collect(),
            Source::Fresh { dealers: count as u32, dealings: faulty(count) + 1 },
        )?;
        Ok(Self { time_seconds, nodes, hash, session })
    }

    /// Reads a plan and checks everything there is to check, the records of the nodes included.
    pub fn from_json(bytes: &[u8]) -> Result<Self, GenesisError> {
        encoding::read::<PlanFile>("the plan", bytes, PLAN_BYTES_MAX)?.try_into()
    }

    /// As a file.
    pub fn to_json(&self) -> String {
        encoding::write(&PlanFile::from(self))
    }

    /// The hash that people compare, and that signed dealings cover.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// When the subnet begins, in seconds since 1970.
    pub fn time_seconds(&self) -> u64 {
        self.time_seconds
    }

    /// The nodes, by rising node key: a node's place is its index.
    pub fn nodes(&self) -> &[NodeRecord] {
        &self.nodes
    }

    /// Signatures needed to sign for the subnet.
    pub fn threshold(&self) -> u32 {
        self.session.threshold()
    }

    /// The least number of dealings.
    pub fn dealings_needed(&self) -> u32 {
        self.session.dealings_needed()
    }

    /// The key generation this plan describes.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Place of the node with this key.
    pub fn index_of(&self, key: &VerifyingKey) -> Result<NodeIndex, GenesisError> {
        let place = self.nodes.iter().position(|node| node.node_key() == key);
        place
            .map(|place| NodeIndex(place as u32))
            .ok_or_else(|| GenesisError::UnknownNode(crate::node_id(key).to_text()))
    }

    /// The node of this name, with its place.
    pub(crate) fn node(&self, id: &Principal) -> Option<(NodeIndex, &NodeRecord)> {
        let place = self.nodes.iter().position(|node| node.node_id() == *id)?;
        Some((NodeIndex(place as u32), &self.nodes[place]))
    }
}

impl From<&Plan> for PlanFile {
    fn from(plan: &Plan) -> Self {
        Self {
            version: VERSION,
            genesis_time_seconds: plan.time_seconds,
            threshold: plan.threshold(),
            nodes: BoundedList(plan.nodes.iter().map(RecordFile::from).collect()),
        }
    }
}

impl TryFrom<PlanFile> for Plan {
    type Error = GenesisError;

    fn try_from(file: PlanFile) -> Result<Self, GenesisError> {
        encoding::check_version("the plan", file.version)?;
        let nodes = file.nodes.0.len();
        // Before the records, which cost arithmetic.
        if nodes == 0 {
            return Err(GenesisError::Nodes(nodes));
        }
        let (stated, right) = (file.threshold, threshold(nodes));
        if stated != right {
            return Err(GenesisError::Threshold { stated, right, nodes });
        }
        let nodes = file.nodes.0.into_iter().map(NodeRecord::try_from).collect::<Result<_, _>>()?;
        Self::of_sorted(nodes, file.genesis_time_seconds)
    }
}
