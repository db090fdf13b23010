//! The certified tree: labelled data that hashes to one root and can prove any part of itself.
//!
//! The interface specification ("Certification") fixes what a node hashes to and how a client looks
//! a path up; it leaves open how labelled children hang together. Here they always form a crit-bit
//! trie over the labels' bits ([`label`]), so the shape, and with it the root, is a function of the
//! content alone: neither the order of insertions nor earlier deletions leave a trace. Two nodes
//! that hold the same data have the same root.
//!
//! Three things build trees:
//!
//! - [`MerkleMap`], for what there is much of (canisters, ingress history): persistent, so that a
//!   snapshot is one pointer, with cached hashes, so that a change costs O(log n) of them.
//! - [`Subtree`], for what hangs below one label: a short list of children made on demand out of
//!   the value itself. Nothing but the value is kept in memory.
//! - [`Frozen`], for what rarely changes: a small tree that keeps its hashes.
//!
//! A [`witness()`] shows the values at a set of paths and hides the rest behind hashes. Where a
//! path does not exist it shows the two neighbouring labels, which is what clients take as proof of
//! absence. Its size is at most one label and one hash per fork on the way to each path.
//!
//! Nothing here knows what the tree means; the paths of the specification are made in `certified`.

mod frozen;
mod hash;
pub mod label;
mod map;
#[cfg(test)]
mod tests;
mod witness;

pub use frozen::Frozen;
pub use hash::{Digest, empty_digest, fork_digest, labeled_digest, leaf_digest};
pub use map::{Iter, MerkleMap};
pub use witness::{Selection, Witness, witness};

use std::{borrow::Cow, fmt};

/// A value that has a place in the certified tree.
pub trait CertifiedValue {
    /// The subtree below the value's label. Built on request; its digest is
    /// [`CertifiedValue::digest`].
    fn subtree(&self) -> Subtree<'_>;

    /// Hash of [`CertifiedValue::subtree`], without the value's own label. Values that keep hashes
    /// override this.
    fn digest(&self) -> Digest {
        self.subtree().digest()
    }
}

/// A value of a [`MerkleMap`]: it knows its label. Clones must be cheap (an `Arc`), because a map
/// that shares nodes with a snapshot copies the nodes it changes.
pub trait LabeledValue: CertifiedValue + Clone {
    /// Data of a fork about the values below it; `()` if values are only searched by label.
    type Summary: Summary;

    /// The label. At most [`label::LABEL_BYTES_MAX`] long and never different for the same value.
    fn label(&self) -> &[u8];

    /// Summary of this value alone.
    fn summary(&self) -> Self::Summary;

    /// Whether a value of the same label is known to have the same [`CertifiedValue::digest`],
    /// without hashing either. Where it is, a map keeps its hashes when one replaces the other.
    fn hashes_like(&self, _other: &Self) -> bool {
        false
    }
}

/// Something forks add up over their values so that a search need not visit all of them.
pub trait Summary: Copy + PartialEq + fmt::Debug {
    /// Must be associative and commutative, so that it depends on the values alone.
    fn merge(self, other: Self) -> Self;

    /// This is the summary of a whole, and that of a part changes from `before` to `after`. The
    /// summary of the whole then, if it follows without reading the other parts.
    fn with_part(self, before: Self, after: Self) -> Option<Self>;
}

impl Summary for () {
    fn merge(self, (): Self) {}

    fn with_part(self, (): Self, (): Self) -> Option<()> {
        Some(())
    }
}

/// A subtree below a label.
pub enum Subtree<'a> {
    /// A leaf with its value.
    Leaf(Cow<'a, [u8]>),
    /// Labelled children, strictly increasing by label; make it with [`Subtree::node`].
    Node(Vec<(Cow<'a, [u8]>, Subtree<'a>)>),
    /// A part that keeps its own hashes.
    Shared(&'a dyn CertifiedValue),
    /// A node whose children are those of a map.
    Map(&'a dyn Trie),
}

/// A [`MerkleMap`] whatever its values are.
pub trait Trie {
    /// Hash of the map.
    fn trie_digest(&self) -> Digest;
    /// The part of the map that `selection` asks for.
    fn reveal<'a>(&'a self, selection: &Selection<'_>) -> Witness<'a>;
}

impl<'a> Subtree<'a> {
    /// A value borrowed from its owner.
    pub fn leaf(value: &'a [u8]) -> Self {
        Subtree::Leaf(Cow::Borrowed(value))
    }

    /// A natural number, LEB128 as the specification encodes it.
    pub fn nat(value: u64) -> Self {
        let mut bytes = Vec::with_capacity(10);
        // Writing to a vector does not fail.
        let _ = leb128::write::unsigned(&mut bytes, value);
        Subtree::Leaf(Cow::Owned(bytes))
    }

    /// Children in any order. Of two with the same label the first counts.
    pub fn node(mut children: Vec<(Cow<'a, [u8]>, Subtree<'a>)>) -> Self {
        children.sort_by(|left, right| left.0.cmp(&right.0));
        children.dedup_by(|later, earlier| later.0 == earlier.0);
        Subtree::Node(children)
    }

    /// Hash of the whole.
    pub fn digest(&self) -> Digest {
        match self {
            Subtree::Leaf(value) => leaf_digest(value),
            Subtree::Node(children) => {
                debug_assert!(
                    children.is_sorted_by(|(one, _), (next, _)| one < next),
                    "labels of {} children do not rise",
                    children.len()
                );
                let digests: Vec<_> = children
                    .iter()
                    .map(|(label, child)| (label.as_ref(), labeled_digest(label, &child.digest())))
                    .collect();
                forest_digest(&digests)
            }
            Subtree::Shared(part) => part.digest(),
            Subtree::Map(map) => map.trie_digest(),
        }
    }
}

/// Hash of labelled children, given each one's label and labelled digest in label order: the trie
/// rule for a list.
fn forest_digest(children: &[(&[u8], Digest)]) -> Digest {
    match children {
        [] => empty_digest(),
        [(_, digest)] => *digest,
        _ => {
            let middle = split_point(children, |child| child.0);
            fork_digest(&forest_digest(&children[..middle]), &forest_digest(&children[middle..]))
        }
    }
}

/// Where the trie forks a sorted list of at least two different labels: at the first bit in which
/// they do not all agree, which is the first in which the outermost two differ.
fn split_point<T>(sorted: &[T], label_of: impl Fn(&T) -> &[u8]) -> usize {
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else { return 0 };
    let bit = label::first_difference(label_of(first), label_of(last)).unwrap_or(0);
    sorted
        .partition_point(|item| !label::bit(label_of(item), bit))
        .clamp(1, sorted.len().max(2) - 1)
}
