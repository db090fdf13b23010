//! Witnesses: the part of a tree that proves the values, or their absence, at a set of paths.

use std::{borrow::Cow, collections::BTreeMap};

use ic_certification::hash_tree::{self, HashTree};

use super::{Digest, Subtree, forest_digest, labeled_digest, split_point};

/// A partial tree that borrows labels and values from the state it was made of.
pub type Witness<'a> = HashTree<Cow<'a, [u8]>>;

/// Labels of a path beyond this many are ignored. The tree is at most five labels deep
/// (`/subnet/<id>/node/<id>/public_key`), so that deeper paths are proved absent all the same.
const PATH_LABELS_MAX: usize = 8;

/// The paths asked for, as a tree.
#[derive(Debug, Default)]
pub struct Selection<'p> {
    /// A path ends here: everything below is shown.
    pub(super) whole: bool,
    below: BTreeMap<&'p [u8], Selection<'p>>,
}

impl<'p> Selection<'p> {
    /// A selection without a path.
    pub fn new() -> Self {
        Selection::default()
    }

    /// Asks for everything at and below `path`.
    pub fn add<L: AsRef<[u8]> + 'p>(&mut self, path: &'p [L]) {
        let mut at = self;
        for label in path.iter().take(PATH_LABELS_MAX) {
            at = at.below.entry(label.as_ref()).or_default();
        }
        at.whole = true;
    }

    pub(super) fn everything() -> Self {
        Selection { whole: true, below: BTreeMap::new() }
    }

    /// The labels asked for at this level, in order, with what is asked for below each.
    pub(super) fn labels(&self) -> impl Iterator<Item = (&'p [u8], &Selection<'p>)> {
        self.below.iter().map(|(label, below)| (*label, below))
    }
}

/// The part of `tree` that `selection` asks for; the rest are hashes.
pub fn witness<'a>(tree: Subtree<'a>, selection: &Selection<'_>) -> Witness<'a> {
    match tree {
        // A path that continues below a value is absent, and only the value itself proves that it
        // has no children.
        Subtree::Leaf(value) => hash_tree::leaf(value),
        Subtree::Shared(part) => witness(part.subtree(), selection),
        Subtree::Map(map) => map.reveal(selection),
        Subtree::Node(children) => node(children, selection),
    }
}

struct Child<'a> {
    label: Cow<'a, [u8]>,
    part: ChildWitness<'a>,
}

enum ChildWitness<'a> {
    /// With the label.
    Shown(Witness<'a>),
    /// Hash with the label. Only what is hidden is hashed: a witness that shows a large reply does
    /// not hash it.
    Hidden(Digest),
}

fn node<'a>(children: Vec<(Cow<'a, [u8]>, Subtree<'a>)>, selection: &Selection<'_>) -> Witness<'a> {
    debug_assert!(
        children.is_sorted_by(|(one, _), (next, _)| one < next),
        "labels of {} children do not rise",
        children.len()
    );
    // `None`: hidden. `Some(None)`: the label is shown, as a neighbour of one that does not exist.
    let mut shown: Vec<Option<Option<&Selection<'_>>>> = vec![None; children.len()];
    let everything = Selection::everything();
    if selection.whole {
        shown.fill(Some(Some(&everything)));
    } else {
        for (label, below) in selection.labels() {
            match children.binary_search_by(|child| child.0.as_ref().cmp(label)) {
                Ok(at) => shown[at] = Some(Some(below)),
                Err(at) => {
                    for neighbour in [at.checked_sub(1), Some(at)].into_iter().flatten() {
                        if let Some(slot) = shown.get_mut(neighbour) {
                            slot.get_or_insert(None);
                        }
                    }
                }
            }
        }
    }
    let mut parts: Vec<Child<'a>> = children
        .into_iter()
        .zip(shown)
        .map(|((label, tree), shown)| {
            let part = match shown {
                None => ChildWitness::Hidden(labeled_digest(&label, &tree.digest())),
                Some(None) => ChildWitness::Shown(hash_tree::label(
                    label.clone(),
                    hash_tree::pruned(tree.digest()),
                )),
                Some(Some(below)) => {
                    ChildWitness::Shown(hash_tree::label(label.clone(), witness(tree, below)))
                }
            };
            Child { label, part }
        })
        .collect();
    join(&mut parts)
}

/// Hangs children together by the trie rule, each run of hidden ones as one hash.
fn join<'a>(children: &mut [Child<'a>]) -> Witness<'a> {
    if children.is_empty() {
        return hash_tree::empty();
    }
    if let Some(hidden) = hidden(children) {
        return hash_tree::pruned(forest_digest(&hidden));
    }
    if let [child] = children {
        return match std::mem::replace(&mut child.part, ChildWitness::Hidden(Digest::default())) {
            ChildWitness::Shown(witness) => witness,
            ChildWitness::Hidden(digest) => hash_tree::pruned(digest),
        };
    }
    let middle = split_point(children, |child| child.label.as_ref());
    let (left, right) = children.split_at_mut(middle);
    hash_tree::fork(join(left), join(right))
}

/// Labels and hashes, if none of the children is shown.
fn hidden<'c>(children: &'c [Child<'_>]) -> Option<Vec<(&'c [u8], Digest)>> {
    children
        .iter()
        .map(|child| match &child.part {
            ChildWitness::Hidden(digest) => Some((child.label.as_ref(), *digest)),
            ChildWitness::Shown(_) => None,
        })
        .collect()
}
