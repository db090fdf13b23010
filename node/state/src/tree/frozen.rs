//! A small tree that keeps its hashes, for what rarely changes: the subnet's keys, ranges and
//! nodes.

use std::borrow::Cow;

use super::{CertifiedValue, Digest, Subtree};

/// An owned tree with the digest of every node.
#[derive(Clone, Debug)]
pub struct Frozen {
    digest: Digest,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Leaf(Box<[u8]>),
    Node(Vec<(Box<[u8]>, Frozen)>),
}

impl Frozen {
    /// A leaf with this value.
    pub fn leaf(value: impl Into<Box<[u8]>>) -> Self {
        let value = value.into();
        Frozen { digest: super::leaf_digest(&value), content: Content::Leaf(value) }
    }

    /// Labelled children in any order. Of two with the same label the first counts.
    pub fn node(children: impl IntoIterator<Item = (impl Into<Box<[u8]>>, Frozen)>) -> Self {
        let mut children: Vec<(Box<[u8]>, Frozen)> =
            children.into_iter().map(|(label, child)| (label.into(), child)).collect();
        children.sort_by(|left, right| left.0.cmp(&right.0));
        children.dedup_by(|later, earlier| later.0 == earlier.0);
        let mut frozen = Frozen { digest: Digest::default(), content: Content::Node(children) };
        frozen.digest = frozen.subtree().digest();
        frozen
    }
}

impl CertifiedValue for Frozen {
    fn subtree(&self) -> Subtree<'_> {
        match &self.content {
            Content::Leaf(value) => Subtree::leaf(value),
            Content::Node(children) => Subtree::Node(
                children
                    .iter()
                    .map(|(label, child)| (Cow::Borrowed(label.as_ref()), Subtree::Shared(child)))
                    .collect(),
            ),
        }
    }

    fn digest(&self) -> Digest {
        self.digest
    }
}
