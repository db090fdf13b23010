//! Bytes that are hashed or signed: a domain separator, then each part with its length, so that no
//! two different values give the same bytes.

use sha2::{Digest, Sha256};

/// Collects the data to be hashed or signed.
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// `domain` separates one use from all others, of this program and of the protocol's own
    /// messages: it starts with its length, as theirs do.
    pub(crate) fn new(domain: &str) -> Self {
        let mut bytes = vec![domain.len() as u8];
        bytes.extend(domain.as_bytes());
        Self(bytes)
    }

    pub(crate) fn number(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(crate) fn part(mut self, part: &[u8]) -> Self {
        self = self.number(part.len() as u64);
        self.0.extend(part);
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn digest(&self) -> [u8; 32] {
        Sha256::digest(&self.0).into()
    }
}
