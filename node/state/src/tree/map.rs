//! A map from labels to values that hashes like the specification's tree, keeps its hashes, and has
//! snapshots at no cost.
//!
//! Nodes are shared by reference count. A clone shares all of them; a change copies the nodes on
//! the way to the changed value that a clone still holds, and changes the others in place. Each
//! fork keeps the hashes of its two children. A change only drops the hashes on its way;
//! [`MerkleMap::seal`] computes the missing ones, so all changes between two roots share the
//! hashes of the forks they have in common. Reading never changes anything: a map that was not
//! sealed still answers, it only hashes more.
//!
//! Depth is at most nine bits per label byte and in practice log2 of the size, because labels are
//! hashes or counters.

use std::{collections::BTreeMap, sync::Arc};

use ic_certification::hash_tree;

use super::{
    CertifiedValue, Digest, LabeledValue, Selection, Subtree, Summary, Trie, Witness, empty_digest,
    fork_digest, label, labeled_digest, witness,
};

/// See the module.
#[derive(Clone)]
pub struct MerkleMap<V: LabeledValue> {
    root: Option<Link<V>>,
    /// Hash of `root`, if known.
    digest: Option<Digest>,
    len: usize,
}

#[derive(Clone)]
enum Link<V: LabeledValue> {
    Leaf(V),
    Fork(Arc<Fork<V>>),
}

#[derive(Clone)]
struct Fork<V: LabeledValue> {
    children: [Link<V>; 2],
    /// Hashes of the children, where `known`.
    digests: [Digest; 2],
    summary: V::Summary,
    /// The first bit in which the labels below differ: 0 on the left, 1 on the right.
    bit: u16,
    known: [bool; 2],
}

impl<V: LabeledValue> Default for MerkleMap<V> {
    fn default() -> Self {
        MerkleMap { root: None, digest: None, len: 0 }
    }
}

impl<V: LabeledValue> FromIterator<V> for MerkleMap<V> {
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> Self {
        let mut map = MerkleMap::new();
        values.into_iter().for_each(|value| drop(map.insert(value)));
        map
    }
}

impl<V: LabeledValue> std::fmt::Debug for MerkleMap<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MerkleMap({} values)", self.len)
    }
}

impl<V: LabeledValue> MerkleMap<V> {
    /// An empty map.
    pub fn new() -> Self {
        MerkleMap::default()
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value with this label.
    pub fn get(&self, label: &[u8]) -> Option<&V> {
        let value = nearest(self.root.as_ref()?, label);
        (value.label() == label).then_some(value)
    }

    /// Whether there is one.
    pub fn contains(&self, label: &[u8]) -> bool {
        self.get(label).is_some()
    }

    /// All values by label.
    pub fn iter(&self) -> Iter<'_, V, impl Fn(&V::Summary) -> bool + use<V>> {
        self.matching(|_| true)
    }

    /// The values whose summary satisfies `keep`, by label. `keep` must hold for a fork if it holds
    /// for any value below.
    pub fn matching<F: Fn(&V::Summary) -> bool>(&self, keep: F) -> Iter<'_, V, F> {
        Iter { stack: self.root.iter().collect(), keep }
    }

    /// Summary of all values; `None` of none.
    pub fn summary(&self) -> Option<V::Summary> {
        self.root.as_ref().map(Link::summary)
    }

    /// The value with the least `key`, the first of them by label. A merged summary's key must be
    /// the least of its parts'.
    pub fn least<K: Ord>(&self, key: impl Fn(&V::Summary) -> K) -> Option<&V> {
        let mut at = self.root.as_ref()?;
        loop {
            match at {
                Link::Leaf(value) => return Some(value),
                Link::Fork(fork) => {
                    let [left, right] = &fork.children;
                    at = if key(&left.summary()) <= key(&right.summary()) { left } else { right };
                }
            }
        }
    }

    /// The values next to the place of `label`, whether or not it is there: the last before it and
    /// the first after it.
    pub fn neighbours(&self, label: &[u8]) -> (Option<&V>, Option<&V>) {
        let Some(root) = &self.root else { return (None, None) };
        let difference = label::first_difference(nearest(root, label).label(), label);
        let (mut before, mut after) = (None, None);
        let mut at = root;
        loop {
            match at {
                // All labels below agree with `label` up to the difference and fall on one side of
                // it.
                Link::Fork(fork) if difference.is_none_or(|bit| fork.bit < bit) => {
                    let [left, right] = &fork.children;
                    if label::bit(label, fork.bit) {
                        (before, at) = (Some(left), right);
                    } else {
                        (after, at) = (Some(right), left);
                    }
                }
                _ => break,
            }
        }
        match difference {
            Some(bit) if label::bit(label, bit) => before = Some(at),
            Some(_) => after = Some(at),
            None => {}
        }
        let (before, after) = (before.map(Link::last), after.map(Link::first));
        debug_assert!(before.is_none_or(|value| value.label() < label), "the label before is less");
        debug_assert!(
            after.is_none_or(|value| value.label() > label),
            "the label after is greater"
        );
        (before, after)
    }

    /// Puts a value in its place; returns the one it replaces.
    pub fn insert(&mut self, value: V) -> Option<V> {
        assert!(
            value.label().len() <= label::LABEL_BYTES_MAX,
            "a label of the certified tree is longer than the trie's limit"
        );
        let digest = self.digest.take();
        let Some(root) = &mut self.root else {
            debug_assert_eq!(self.len, 0, "values of a map without a root");
            self.root = Some(Link::Leaf(value));
            self.len = 1;
            return None;
        };
        match label::first_difference(nearest(root, value.label()).label(), value.label()) {
            Some(bit) => {
                insert_new(root, digest, value, bit);
                self.len += 1;
                None
            }
            None => {
                let (replaced, is_same) = replace(root, value);
                if is_same {
                    self.digest = digest;
                }
                Some(replaced)
            }
        }
    }

    /// Changes the value with this label in place (which must keep its label).
    pub fn update<R>(&mut self, label: &[u8], change_value: impl FnOnce(&mut V) -> R) -> Option<R> {
        self.get(label)?;
        self.digest = None;
        Some(change(self.root.as_mut()?, label, change_value))
    }

    /// Takes the value with this label out.
    pub fn remove(&mut self, label: &[u8]) -> Option<V> {
        self.get(label)?;
        self.len -= 1;
        match self.root.as_mut()? {
            Link::Leaf(_) => {
                debug_assert_eq!(self.len, 0, "values besides the only one");
                self.digest = None;
                match self.root.take()? {
                    Link::Leaf(value) => Some(value),
                    Link::Fork(_) => None,
                }
            }
            root => {
                let (value, digest) = remove(root, label)?;
                self.digest = digest;
                Some(value)
            }
        }
    }

    /// Checks the shape, the summaries and the hashes that are kept, the root's among them, against
    /// those that follow from the values alone. Hashes every value again.
    ///
    /// # Panics
    /// When one of them is wrong.
    pub fn check(&self) {
        let (len, digest) = self.root.as_ref().map_or((0, empty_digest()), check);
        assert_eq!(self.len, len, "values of a map");
        let kept = self.digest.unwrap_or(digest);
        assert_eq!(kept, digest, "the kept root of {len} values, and the one computed again");
    }

    /// Hash of the whole, if no change since [`MerkleMap::seal`] can have changed it.
    #[cfg(test)]
    pub(crate) fn kept_root(&self) -> Option<Digest> {
        self.digest
    }

    /// Computes the hashes that are missing and returns the root's.
    pub fn seal(&mut self) -> Digest {
        let digest = match (&self.digest, &mut self.root) {
            (Some(digest), _) => *digest,
            (None, None) => empty_digest(),
            (None, Some(root)) => seal(root),
        };
        self.digest = Some(digest);
        digest
    }
}

/// The value whose label shares the longest run of bits with `label`.
fn nearest<'a, V: LabeledValue>(root: &'a Link<V>, label: &[u8]) -> &'a V {
    let mut at = root;
    loop {
        match at {
            Link::Leaf(value) => return value,
            Link::Fork(fork) => at = &fork.children[usize::from(label::bit(label, fork.bit))],
        }
    }
}

impl<V: LabeledValue> Link<V> {
    fn summary(&self) -> V::Summary {
        match self {
            Link::Leaf(value) => value.summary(),
            Link::Fork(fork) => fork.summary,
        }
    }

    fn first(&self) -> &V {
        match self {
            Link::Leaf(value) => value,
            Link::Fork(fork) => fork.children[0].first(),
        }
    }

    fn last(&self) -> &V {
        match self {
            Link::Leaf(value) => value,
            Link::Fork(fork) => fork.children[1].last(),
        }
    }

    /// Hash, computing without storing what is not known.
    fn digest(&self) -> Digest {
        match self {
            Link::Leaf(value) => labeled_digest(value.label(), &value.digest()),
            Link::Fork(fork) => fork_digest(&fork.child_digest(0), &fork.child_digest(1)),
        }
    }
}

impl<V: LabeledValue> Fork<V> {
    fn child_digest(&self, side: usize) -> Digest {
        if self.known[side] { self.digests[side] } else { self.children[side].digest() }
    }

    fn known_digest(&self, side: usize) -> Option<Digest> {
        self.known[side].then(|| self.digests[side])
    }

    /// To be called after the child on this side changed, whose summary was `before`; `digest` is
    /// its new hash where that is known. The other child is read only where its summary is needed:
    /// it may be in memory that was written to disk.
    fn child_changed(&mut self, side: usize, before: V::Summary, digest: Option<Digest>) {
        self.known[side] = digest.is_some();
        self.digests[side] = digest.unwrap_or_default();
        let after = self.children[side].summary();
        self.summary = self
            .summary
            .with_part(before, after)
            .unwrap_or_else(|| after.merge(self.children[1 - side].summary()));
    }
}

/// Hangs a fork at `bit` over the place where the new value branches off. `digest` is the hash of
/// `link`, if known.
fn insert_new<V: LabeledValue>(link: &mut Link<V>, digest: Option<Digest>, value: V, bit: u16) {
    match link {
        Link::Fork(fork) if fork.bit < bit => {
            let fork = Arc::make_mut(fork);
            let side = usize::from(label::bit(value.label(), fork.bit));
            let (digest, before) = (fork.known_digest(side), fork.children[side].summary());
            insert_new(&mut fork.children[side], digest, value, bit);
            fork.child_changed(side, before, None);
        }
        _ => {
            let side = usize::from(label::bit(value.label(), bit));
            let old = link.clone();
            debug_assert!(
                label::bit(old.first().label(), bit) != (side == 1),
                "the labels at a fork of bit {bit} agree in it"
            );
            if let Link::Fork(below) = &old {
                debug_assert!(below.bit > bit, "a fork of bit {bit} is over one of {}", below.bit);
            }
            let summary = old.summary().merge(value.summary());
            let mut fork = Fork {
                children: [old, Link::Leaf(value)],
                digests: [digest.unwrap_or_default(), Digest::default()],
                known: [digest.is_some(), false],
                summary,
                bit,
            };
            if side == 0 {
                fork.children.swap(0, 1);
                fork.digests.swap(0, 1);
                fork.known.swap(0, 1);
            }
            *link = Link::Fork(Arc::new(fork));
        }
    }
}

/// Puts the value in the place of the one with its label, which must be below `link`. Returns that
/// one, and whether both have the same hash: then hashes on the way stay as they are.
fn replace<V: LabeledValue>(link: &mut Link<V>, value: V) -> (V, bool) {
    match link {
        Link::Leaf(slot) => {
            debug_assert_eq!(slot.label(), value.label(), "a value replaces one of its label");
            let is_same = slot.hashes_like(&value);
            debug_assert!(
                !is_same || slot.subtree().digest() == value.subtree().digest(),
                "a value that hashes like the one before has another hash"
            );
            (std::mem::replace(slot, value), is_same)
        }
        Link::Fork(fork) => {
            let fork = Arc::make_mut(fork);
            let side = usize::from(label::bit(value.label(), fork.bit));
            let before = fork.children[side].summary();
            let (replaced, is_same) = replace(&mut fork.children[side], value);
            let digest = if is_same { fork.known_digest(side) } else { None };
            fork.child_changed(side, before, digest);
            (replaced, is_same)
        }
    }
}

/// Changes the value with this label, which must be below `link`.
fn change<V: LabeledValue, R>(
    link: &mut Link<V>,
    label: &[u8],
    apply: impl FnOnce(&mut V) -> R,
) -> R {
    match link {
        Link::Leaf(value) => {
            let result = apply(value);
            debug_assert_eq!(value.label(), label, "a value changed its label inside the map");
            result
        }
        Link::Fork(fork) => {
            let fork = Arc::make_mut(fork);
            let side = usize::from(label::bit(label, fork.bit));
            let before = fork.children[side].summary();
            let result = change(&mut fork.children[side], label, apply);
            fork.child_changed(side, before, None);
            result
        }
    }
}

/// Takes the value with this label, which must be below the fork `link`, and puts its sibling in
/// the fork's place. Returns the value and the hash of what `link` now is, if known.
fn remove<V: LabeledValue>(link: &mut Link<V>, label: &[u8]) -> Option<(V, Option<Digest>)> {
    let Link::Fork(shared) = link else { return None };
    let side = usize::from(label::bit(label, shared.bit));
    if let Link::Leaf(value) = &shared.children[side] {
        debug_assert_eq!(value.label(), label, "the removed value has the label");
        let value = value.clone();
        let digest = shared.known_digest(1 - side);
        let sibling = shared.children[1 - side].clone();
        *link = sibling;
        return Some((value, digest));
    }
    let fork = Arc::make_mut(shared);
    let before = fork.children[side].summary();
    let (value, digest) = remove(&mut fork.children[side], label)?;
    fork.child_changed(side, before, digest);
    Some((value, None))
}

fn seal<V: LabeledValue>(link: &mut Link<V>) -> Digest {
    match link {
        Link::Leaf(value) => labeled_digest(value.label(), &value.digest()),
        Link::Fork(fork) => {
            if fork.known != [true, true] {
                let fork = Arc::make_mut(fork);
                for side in 0..2 {
                    if !fork.known[side] {
                        fork.digests[side] = seal(&mut fork.children[side]);
                        fork.known[side] = true;
                    }
                }
            }
            fork_digest(&fork.digests[0], &fork.digests[1])
        }
    }
}

/// Number of the values below `link` and its hash, both from the values; see [`MerkleMap::check`].
fn check<V: LabeledValue>(link: &Link<V>) -> (usize, Digest) {
    let fork = match link {
        Link::Leaf(value) => {
            return (1, labeled_digest(value.label(), &value.subtree().digest()));
        }
        Link::Fork(fork) => fork,
    };
    let [left, right] = &fork.children;
    for (child, is_right) in [(left, false), (right, true)] {
        let bit = fork.bit;
        if let Link::Fork(below) = child {
            assert!(below.bit > bit, "a fork of bit {bit} is over one of {}", below.bit);
        }
        let sides = [child.first(), child.last()].map(|value| label::bit(value.label(), bit));
        assert_eq!(sides, [is_right; 2], "labels at a fork of bit {bit} are on the wrong side");
    }
    assert_eq!(fork.summary, left.summary().merge(right.summary()), "the summary of a fork");
    let parts = [check(left), check(right)];
    for (side, (_, digest)) in parts.iter().enumerate() {
        let kept = fork.known_digest(side).unwrap_or(*digest);
        assert_eq!(kept, *digest, "the kept hash of a child, and the one computed again");
    }
    let [(left_len, left), (right_len, right)] = parts;
    (left_len + right_len, fork_digest(&left, &right))
}

/// Values by label, see [`MerkleMap::iter`] and [`MerkleMap::matching`].
pub struct Iter<'a, V: LabeledValue, F> {
    stack: Vec<&'a Link<V>>,
    keep: F,
}

impl<'a, V: LabeledValue, F: Fn(&V::Summary) -> bool> Iterator for Iter<'a, V, F> {
    type Item = &'a V;

    fn next(&mut self) -> Option<&'a V> {
        loop {
            let link = self.stack.pop()?;
            if !(self.keep)(&link.summary()) {
                continue;
            }
            match link {
                Link::Leaf(value) => return Some(value),
                Link::Fork(fork) => {
                    let [left, right] = &fork.children;
                    self.stack.push(right);
                    self.stack.push(left);
                }
            }
        }
    }
}

impl<V: LabeledValue> CertifiedValue for MerkleMap<V> {
    fn subtree(&self) -> Subtree<'_> {
        Subtree::Map(self)
    }

    fn digest(&self) -> Digest {
        self.trie_digest()
    }
}

impl<V: LabeledValue> Trie for MerkleMap<V> {
    fn trie_digest(&self) -> Digest {
        match (&self.digest, &self.root) {
            (Some(digest), _) => *digest,
            (None, None) => empty_digest(),
            (None, Some(root)) => root.digest(),
        }
    }

    fn reveal<'a>(&'a self, selection: &Selection<'_>) -> Witness<'a> {
        let Some(root) = &self.root else { return hash_tree::empty() };
        let everything = Selection::everything();
        // Labels to show, each with what to show below it; `None` for a label that only proves its
        // neighbour absent.
        let mut shown: BTreeMap<&[u8], Option<&Selection<'_>>> = BTreeMap::new();
        if selection.whole {
            shown.extend(self.iter().map(|value| (value.label(), Some(&everything))));
        } else {
            for (label, below) in selection.labels() {
                if let Some(value) = self.get(label) {
                    shown.insert(value.label(), Some(below));
                } else {
                    let (before, after) = self.neighbours(label);
                    for neighbour in [before, after].into_iter().flatten() {
                        shown.entry(neighbour.label()).or_insert(None);
                    }
                }
            }
        }
        let shown: Vec<_> = shown.into_iter().collect();
        reveal(root, &shown, &|| self.trie_digest())
    }
}

/// The part of `link` that shows these labels, all of which are below it.
fn reveal<'a, V: LabeledValue>(
    link: &'a Link<V>,
    shown: &[(&'a [u8], Option<&Selection<'_>>)],
    digest: &dyn Fn() -> Digest,
) -> Witness<'a> {
    match (link, shown) {
        (_, []) => hash_tree::pruned(digest()),
        (Link::Leaf(value), [(label, below), ..]) => hash_tree::label(
            *label,
            match below {
                Some(below) => witness(value.subtree(), below),
                None => hash_tree::pruned(value.digest()),
            },
        ),
        (Link::Fork(fork), _) => {
            let middle = shown.partition_point(|(label, _)| !label::bit(label, fork.bit));
            let [left, right] = &fork.children;
            hash_tree::fork(
                reveal(left, &shown[..middle], &|| fork.child_digest(0)),
                reveal(right, &shown[middle..], &|| fork.child_digest(1)),
            )
        }
    }
}
