//! The ceremony in which the nodes of a subnet make their key without a dealer to trust, and
//! reshare it: files and payloads, and every check on them.
//!
//! Four files pass between people, by any means; none is secret, and none needs a trusted channel,
//! because the relevant content is signed or hashed:
//!
//! 1. Each node signs its [`NodeRecord`] with its node key, so that no other party can add an
//!    encryption key of its own and receive that node's share.
//! 2. One person combines the records into a [`Plan`]. People compare its hash, which is the
//!    identifier of the NIDKG session: a dealing for one plan is invalid for another.
//! 3. Each node makes a [`SignedDealing`].
//! 4. One person combines the dealings into a [`Genesis`]. A verifier repeats everything, and the
//!    genesis hash covers all of it.
//!
//! Then each node opens its share ([`VerifiedGenesis::open_share`]). The key is secret as long as
//! one dealer of those in the genesis was honest; one more than may be faulty is the least number
//! of dealings, all is better. From then on the key is reshared in every epoch of agreement
//! ([`Summary`]), to members that a [`MembershipChange`] may change.
//!
//! # Bounds
//!
//! At most [`NODES_MAX`] nodes; each file has a maximum size above which it is not read
//! ([`RECORD_BYTES_MAX`] and its like); decoders refuse unknown fields, other versions, longer
//! lists before they are kept, and any order but the defined one: a value has one encoding, up to
//! white space and the case of hexadecimal digits.
//!
//! It must never know the disk, the network, or clocks. Time and randomness are arguments; secrets
//! are borrowed for the step that needs them.

mod bytes;
mod dealing;
mod encoding;
mod error;
mod genesis;
mod hash;
mod membership;
mod payload;
mod plan;
mod record;
mod summary;

pub use bytes::BytesError;
pub use dealing::{DEALING_BYTES_MAX, SignedDealing};
pub use encoding::{BoundedList, VERSION};
pub use error::GenesisError;
pub use genesis::{GENESIS_BYTES_MAX, Genesis, VerifiedGenesis};
pub use membership::{CHANGE_BYTES_MAX, ChangeError, MembershipChange};
pub use payload::{PAYLOAD_BYTES_MAX, Payload, PayloadError};
pub use plan::{PLAN_BYTES_MAX, Plan, faulty, threshold};
pub use record::{
    ADDRESS_BYTES_MAX, NodeRecord, RECORD_BYTES_MAX, check_address, node_id, node_key_der,
};
pub use summary::{CheckedPayload, SUMMARY_BYTES_MAX, Summary, SummaryError};

/// Nodes a ceremony may have. The key generation could do with twice as many; files and times stay
/// handy with these.
pub const NODES_MAX: usize = 64;

/// The epoch that dealings of a ceremony are encrypted to. A node that holds its share moves its
/// encryption key past it, after which they cannot be opened again.
pub const GENESIS_EPOCH: nidkg::Epoch = nidkg::Epoch(0);

const _: () = assert!(NODES_MAX <= nidkg::RECEIVERS_MAX as usize);
