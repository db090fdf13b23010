//! Hashes of the nodes of a hash tree (interface specification, "Certificate", `reconstruct`).

use sha2::{Digest as _, Sha256};

/// A SHA-256 hash.
pub type Digest = [u8; 32];

fn hash(domain: &str, parts: [&[u8]; 2]) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update([domain.len() as u8]);
    hasher.update(domain.as_bytes());
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().into()
}

/// The empty tree.
pub fn empty_digest() -> Digest {
    hash("ic-hashtree-empty", [&[], &[]])
}

/// A fork of two trees.
pub fn fork_digest(left: &Digest, right: &Digest) -> Digest {
    hash("ic-hashtree-fork", [left, right])
}

/// A label over a tree.
pub fn labeled_digest(label: &[u8], below: &Digest) -> Digest {
    hash("ic-hashtree-labeled", [label, below])
}

/// Digest of a leaf with this value (Interface Specification, certification).
pub fn leaf_digest(value: &[u8]) -> Digest {
    hash("ic-hashtree-leaf", [value, &[]])
}
