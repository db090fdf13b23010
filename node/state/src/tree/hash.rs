//! Hashes of the nodes of a hash tree (interface specification, "Certificate", `reconstruct`).

use sha2::{Digest as _, Sha256};

/// A SHA-256 hash.
pub type Digest = [u8; 32];

/// Inputs up to this length are put together on the stack and hashed in one call: forks, labels and
/// all leaves but long replies and metadata sections.
const PIECE_BYTES: usize = 128;

/// The hash takes the processor's SHA instructions where it has them, decided at run time.
fn hash(domain: &str, parts: [&[u8]; 2]) -> Digest {
    let parts: [&[u8]; 4] = [&[domain.len() as u8], domain.as_bytes(), parts[0], parts[1]];
    let (mut piece, mut len) = ([0_u8; PIECE_BYTES], 0_usize);
    for part in parts {
        let Some(place) = piece.get_mut(len..len + part.len()) else { return hash_parts(parts) };
        place.copy_from_slice(part);
        len += part.len();
    }
    Sha256::digest(&piece[..len]).into()
}

fn hash_parts(parts: [&[u8]; 4]) -> Digest {
    let mut hasher = Sha256::new();
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hashing_in_one_piece_equals_hashing_part_by_part(
            label in prop::collection::vec(any::<u8>(), 0..160),
            below in any::<[u8; 32]>(),
        ) {
            let parts: [&[u8]; 4] = [&[19], b"ic-hashtree-labeled", &label, &below];
            prop_assert_eq!(labeled_digest(&label, &below), hash_parts(parts));
            let parts: [&[u8]; 4] = [&[16], b"ic-hashtree-leaf", &label, &[]];
            prop_assert_eq!(leaf_digest(&label), hash_parts(parts));
        }
    }
}
