//! Hash trees that come from outside, as certificates and canisters encode them in CBOR.
//!
//! Decoded they take a few times their bytes, half a MiB at most: depth and number of nodes are
//! bounded before anything is built, and with them every recursion over the tree.

use ic_certification::hash_tree::HashTree;

use crate::{
    auth::canister,
    cbor::{self, CborError, Value},
};

/// Levels of such an encoding.
pub const DEPTH_MAX: usize = 128;
/// Its items.
pub const ITEMS_MAX: usize = 4_096;

/// A CBOR value that may be a tree.
#[derive(Debug)]
pub struct CborItem<'a>(Value<'a>);

impl<'a> CborItem<'a> {
    /// Reads the CBOR.
    ///
    /// # Errors
    /// When it is invalid, or beyond the bounds: [`DEPTH_MAX`], [`ITEMS_MAX`].
    pub fn read(bytes: &'a [u8]) -> Result<Self, CborError> {
        cbor::decode(bytes, canister::SMALL_BOUNDS).map(Self)
    }

    /// The tree, if it is one. The order of its labels is not checked.
    pub fn tree(&self) -> Option<HashTree<&[u8]>> {
        canister::tree(&self.0)
    }

    /// The texts, if it is an array of texts and nothing else.
    pub fn texts(&self) -> Option<Vec<&str>> {
        self.0.as_array()?.iter().map(Value::as_text).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ic_certification::{fork, labeled, leaf};

    use super::*;

    #[test]
    fn encoded_tree_decodes_with_the_same_digest() {
        let tree = fork(labeled("a", leaf([1])), labeled("b", leaf([2])));
        let bytes = serde_cbor_2::to_vec(&tree).unwrap();
        let read = CborItem::read(&bytes).unwrap();
        assert_eq!(read.tree().unwrap().digest(), tree.digest());
        assert!(read.texts().is_none());
        let texts = serde_cbor_2::to_vec(&["http_expr", "<$>"]).unwrap();
        assert_eq!(CborItem::read(&texts).unwrap().texts().unwrap(), ["http_expr", "<$>"]);
        assert!(CborItem::read(&texts).unwrap().tree().is_none());
    }

    #[test]
    fn a_tree_that_is_too_deep_or_too_wide_is_refused_before_it_is_built() {
        // Labels in labels: [2, b"", [2, b"", ...
        let deep = [0x83, 2, 0x40].repeat(1_000_000);
        assert!(matches!(CborItem::read(&deep), Err(CborError::TooDeep { .. })));
        let wide = [&[0x9a, 0, 1, 0, 0][..], &[0; 65_536]].concat();
        assert!(matches!(CborItem::read(&wide), Err(CborError::TooManyItems { .. })));
    }
}
