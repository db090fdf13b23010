//! The payload of a block for the subnet's key: opaque to the block, one byte for the kind, then a
//! dealing or a change of members.

use nidkg::{Dealing, DecodeError};
use thiserror::Error;

use crate::{
    ChangeError, MembershipChange,
    bytes::{BytesError, Reader},
};

/// A payload larger than this is not read: a dealing to 64 receivers takes two thirds of it.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 10;

const DEALING: u8 = 1;
const CHANGE: u8 = 2;

/// A payload. Decoded only: [`crate::Summary`] decides whether it is valid.
#[derive(Clone, PartialEq, Eq)]
pub enum Payload {
    /// A dealing of the block's own leader: it reshares its share.
    Dealing {
        /// Epoch of agreement that begins with the key in the hands of the receivers.
        target: u64,
        /// The dealing of the leader, decoded but not verified.
        dealing: Box<Dealing>,
    },
    /// A change of members, in a block of any leader.
    Change(Box<MembershipChange>),
}

/// Why bytes are not a payload.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum PayloadError {
    #[error("the payload: {0}")]
    Bytes(#[from] BytesError),
    #[error("the dealing: {0}")]
    Dealing(#[from] DecodeError),
    #[error(transparent)]
    Change(#[from] ChangeError),
}

impl Payload {
    /// The encoding in a block: one byte for the kind, then the content.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Vec::new();
        match self {
            Self::Dealing { target, dealing } => {
                writer.push(DEALING);
                writer.extend(u64::to_be_bytes(*target));
                writer.extend_from_slice(&dealing.to_bytes());
            }
            Self::Change(change) => {
                writer.push(CHANGE);
                change.write(&mut writer);
            }
        }
        writer
    }

    /// Reads a payload; nothing but its form is checked, and the records in it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PayloadError> {
        let mut reader = Reader::new(bytes, PAYLOAD_BYTES_MAX)?;
        match reader.tag("the kind", 0..=CHANGE)? {
            DEALING => {
                let target = reader.u64("the epoch")?;
                let dealing = Box::new(Dealing::from_bytes(reader.rest())?);
                Ok(Self::Dealing { target, dealing })
            }
            CHANGE => {
                let change = MembershipChange::read(&mut reader)?;
                reader.finish()?;
                Ok(Self::Change(Box::new(change)))
            }
            kind => {
                let (value, min, max) = (kind.into(), DEALING.into(), CHANGE.into());
                Err(BytesError::OutOfRange { what: "the kind", value, min, max }.into())
            }
        }
    }
}
