#![allow(clippy::unwrap_used)]
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ic_certification::hash_tree::{self, HashTree, HashTreeNode, LookupResult};
use proptest::prelude::*;

use super::*;

/// A labelled value: one leaf, or some labelled leaves.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    One(Vec<u8>),
    Some(BTreeMap<Vec<u8>, Vec<u8>>),
}

type Reference = BTreeMap<Vec<u8>, Content>;

#[derive(Clone, Debug)]
struct Value(Arc<(Vec<u8>, Content)>);

impl CertifiedValue for Value {
    fn subtree(&self) -> Subtree<'_> {
        match &self.0.1 {
            Content::One(value) => Subtree::leaf(value),
            Content::Some(children) => Subtree::node(
                children
                    .iter()
                    .map(|(label, value)| (Cow::Borrowed(label.as_slice()), Subtree::leaf(value)))
                    .collect(),
            ),
        }
    }
}

/// The least value length below, to try searches by summary.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Least(usize);

impl Summary for Least {
    fn merge(self, other: Self) -> Self {
        Least(self.0.min(other.0))
    }

    fn with_part(self, before: Self, after: Self) -> Option<Self> {
        if after.0 <= self.0 {
            return Some(after);
        }
        (before.0 > self.0).then_some(self)
    }
}

fn size(content: &Content) -> usize {
    match content {
        Content::One(value) => value.len(),
        Content::Some(children) => 100 + children.len(),
    }
}

impl LabeledValue for Value {
    type Summary = Least;
    fn label(&self) -> &[u8] {
        &self.0.0
    }
    fn summary(&self) -> Least {
        Least(size(&self.0.1))
    }
    fn hashes_like(&self, other: &Self) -> bool {
        self.0.1 == other.0.1
    }
}

fn value(label: &[u8], content: &Content) -> Value {
    Value(Arc::new((label.to_vec(), content.clone())))
}

fn build(reference: &Reference) -> MerkleMap<Value> {
    reference.iter().map(|(label, content)| value(label, content)).collect()
}

/// The trie rule once more, as plainly as can be: bits of labels as vectors, split at the first
/// disagreement.
fn naive<T>(
    children: Vec<(Vec<u8>, T)>,
    below: &dyn Fn(T) -> HashTree<Vec<u8>>,
) -> HashTree<Vec<u8>> {
    fn bits(label: &[u8]) -> Vec<bool> {
        let mut bits = Vec::new();
        for byte in label {
            bits.push(true);
            bits.extend((0..8).rev().map(|at| byte & (1 << at) != 0));
        }
        bits.extend([false; 100]);
        bits
    }
    match children.len() {
        0 => hash_tree::empty(),
        1 => {
            let (label, value) = children.into_iter().next().unwrap();
            hash_tree::label(label, below(value))
        }
        _ => {
            let first = bits(&children[0].0);
            let at = (0..)
                .find(|at| children.iter().any(|(label, _)| bits(label)[*at] != first[*at]))
                .unwrap();
            let (right, left): (Vec<_>, Vec<_>) =
                children.into_iter().partition(|(label, _)| bits(label)[at]);
            hash_tree::fork(naive(left, below), naive(right, below))
        }
    }
}

fn naive_tree(reference: &Reference) -> HashTree<Vec<u8>> {
    naive(reference.clone().into_iter().collect(), &|content| match content {
        Content::One(value) => hash_tree::leaf(value),
        Content::Some(children) => {
            naive(children.into_iter().collect(), &|value: Vec<u8>| hash_tree::leaf(value))
        }
    })
}

/// Interface specification, `well_formed`, as the strictest clients check it.
fn well_formed<S: AsRef<[u8]>>(tree: &HashTreeNode<S>) -> bool {
    let HashTreeNode::Leaf(_) = tree else {
        let forest = flatten(tree);
        let labels: Vec<_> = forest
            .iter()
            .filter_map(|tree| match tree {
                HashTreeNode::Labeled(label, _) => Some(label.as_bytes()),
                _ => None,
            })
            .collect();
        return labels.windows(2).all(|pair| pair[0] < pair[1])
            && forest.iter().all(|tree| match tree {
                HashTreeNode::Labeled(_, below) => well_formed(below),
                HashTreeNode::Leaf(_) => false,
                _ => true,
            });
    };
    true
}

fn flatten<S: AsRef<[u8]>>(tree: &HashTreeNode<S>) -> Vec<&HashTreeNode<S>> {
    match tree {
        HashTreeNode::Empty() => vec![],
        HashTreeNode::Fork(children) => [flatten(&children.0), flatten(&children.1)].concat(),
        other => vec![other],
    }
}

/// Interface specification, `lookup_path`, which is not always what a library does.
fn specified_lookup<'t, S: AsRef<[u8]>>(
    path: &[Vec<u8>],
    tree: &'t HashTreeNode<S>,
) -> LookupResult<'t> {
    let Some((label, rest)) = path.split_first() else {
        return match tree {
            HashTreeNode::Empty() => LookupResult::Absent,
            HashTreeNode::Leaf(value) => LookupResult::Found(value.as_ref()),
            HashTreeNode::Pruned(_) => LookupResult::Unknown,
            _ => LookupResult::Error,
        };
    };
    let forest = flatten(tree);
    let label_of = |at: usize| match forest.get(at) {
        Some(HashTreeNode::Labeled(label, _)) => Some(label.as_bytes()),
        _ => None,
    };
    if forest.is_empty() || matches!(forest.as_slice(), [HashTreeNode::Leaf(_)]) {
        return LookupResult::Absent;
    }
    for tree in &forest {
        if let HashTreeNode::Labeled(found, below) = tree
            && found.as_bytes() == label.as_slice()
        {
            return specified_lookup(rest, below);
        }
    }
    let between = (1..forest.len()).any(|at| {
        label_of(at - 1).is_some_and(|before| before < label.as_slice())
            && label_of(at).is_some_and(|after| label.as_slice() < after)
    });
    let before_all = label_of(0).is_some_and(|first| label.as_slice() < first);
    let after_all = label_of(forest.len() - 1).is_some_and(|last| last < label.as_slice());
    if between || before_all || after_all { LookupResult::Absent } else { LookupResult::Unknown }
}

/// The expected lookup result at a path, by the data.
fn truth<'r>(reference: &'r Reference, path: &[Vec<u8>]) -> LookupResult<'r> {
    let found = |value: &'r Vec<u8>| LookupResult::Found(value);
    match path {
        [] if reference.is_empty() => LookupResult::Absent,
        [] => LookupResult::Error,
        [label, rest @ ..] => match (reference.get(label), rest) {
            (None, _) => LookupResult::Absent,
            (Some(Content::One(value)), []) => found(value),
            (Some(Content::One(_)), _) => LookupResult::Absent,
            (Some(Content::Some(children)), []) if children.is_empty() => LookupResult::Absent,
            (Some(Content::Some(_)), []) => LookupResult::Error,
            (Some(Content::Some(children)), [label, rest @ ..]) => {
                match (children.get(label), rest) {
                    (None, _) => LookupResult::Absent,
                    (Some(value), []) => found(value),
                    (Some(_), _) => LookupResult::Absent,
                }
            }
        },
    }
}

fn label() -> impl Strategy<Value = Vec<u8>> {
    // Few byte values and short, so that prefixes, neighbours and repeats are common.
    prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0x7f), Just(0x80), Just(0xff)], 0..4)
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Content::One),
        prop::collection::btree_map(label(), prop::collection::vec(any::<u8>(), 0..4), 0..6)
            .prop_map(Content::Some),
    ]
}

fn reference() -> impl Strategy<Value = Reference> {
    prop::collection::btree_map(label(), content(), 0..40)
}

fn path() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(label(), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_root_is_that_of_the_plainly_built_tree(reference in reference()) {
        let mut map = build(&reference);
        let expected = naive_tree(&reference).digest();
        prop_assert_eq!(map.digest(), expected, "without kept hashes");
        prop_assert_eq!(map.seal(), expected);
        prop_assert_eq!(map.digest(), expected, "with kept hashes");
    }

    #[test]
    fn the_root_has_no_memory(
        reference in reference(),
        steps in prop::collection::vec((label(), prop::option::of(content()), any::<bool>()), 0..60),
    ) {
        // Any way there, with roots computed and snapshots held here and there, ends at the same
        // hashes.
        let mut now = Reference::new();
        let mut map = MerkleMap::new();
        let mut snapshots = Vec::new();
        for (label, change, sealed) in steps {
            match change {
                Some(content) => {
                    let before = map.insert(value(&label, &content)).map(|value| value.0.1.clone());
                    prop_assert_eq!(before, now.insert(label, content));
                }
                None => {
                    let before = map.remove(&label).map(|value| value.0.1.clone());
                    prop_assert_eq!(before, now.remove(&label));
                }
            }
            prop_assert_eq!(map.len(), now.len());
            map.check();
            if sealed {
                prop_assert_eq!(map.seal(), naive_tree(&now).digest());
                map.check();
                snapshots.push((map.clone(), now.clone()));
            }
        }
        let gone: Vec<_> = now.keys().filter(|label| !reference.contains_key(*label)).cloned().collect();
        for label in gone {
            map.remove(&label);
        }
        for (label, content) in reference.iter().rev() {
            if map.contains(label) {
                map.update(label, |slot| *slot = value(label, content));
            } else {
                map.insert(value(label, content));
            }
        }
        prop_assert_eq!(map.seal(), build(&reference).seal());
        for (mut snapshot, then) in snapshots {
            prop_assert_eq!(snapshot.seal(), naive_tree(&then).digest(), "a snapshot does not change");
        }
    }

    #[test]
    fn witnesses_recombine_and_look_up_right(
        reference in reference(),
        paths in prop::collection::vec(path(), 0..12),
        sealed: bool,
    ) {
        let mut map = build(&reference);
        if sealed {
            map.seal();
        }
        let mut selection = Selection::new();
        paths.iter().for_each(|path| selection.add(path));
        let witness = witness(map.subtree(), &selection);
        prop_assert_eq!(witness.digest(), naive_tree(&reference).digest());
        prop_assert!(well_formed(witness.as_ref()));
        for path in &paths {
            let expected = truth(&reference, path);
            prop_assert_eq!(&witness.lookup_path(path.iter()), &expected);
            prop_assert_eq!(&specified_lookup(path, witness.as_ref()), &expected);
            // A path that was asked for shows everything below it.
            for (label, content) in &reference {
                if let Content::Some(children) = content {
                    for (child, value) in children {
                        let full = [label.clone(), child.clone()];
                        if full.starts_with(path) {
                            prop_assert_eq!(witness.lookup_path(full.iter()), LookupResult::Found(value));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_not_asked_for_is_not_shown(reference in reference(), asked in path()) {
        let map = build(&reference);
        let mut selection = Selection::new();
        selection.add(&asked);
        let witness = witness(map.subtree(), &selection);
        for shown in witness.list_paths() {
            let shown: Vec<_> = shown.iter().map(|label| label.as_bytes().to_vec()).collect();
            // Values below the path, or the value that ends it.
            prop_assert!(shown.starts_with(&asked) || asked.starts_with(&shown));
        }
    }

    #[test]
    fn searches_find_what_a_scan_finds(reference in reference(), near in label(), bound in 0usize..110) {
        let map = build(&reference);
        let labels: Vec<_> = map.iter().map(|value| value.label().to_vec()).collect();
        prop_assert_eq!(&labels, &reference.keys().cloned().collect::<Vec<_>>(), "in order");
        let (before, after) = map.neighbours(&near);
        prop_assert_eq!(before.map(LabeledValue::label), reference.range(..near.clone()).next_back().map(|found| found.0.as_slice()));
        let next = reference.range(near.clone()..).find(|found| *found.0 != near);
        prop_assert_eq!(after.map(LabeledValue::label), next.map(|found| found.0.as_slice()));
        let least = reference.iter().min_by_key(|(label, content)| (size(content), (*label).clone()));
        prop_assert_eq!(map.least(|summary| summary.0).map(LabeledValue::label), least.map(|found| found.0.as_slice()));
        let matching: Vec<_> = map.matching(|summary| summary.0 <= bound).map(|value| value.label().to_vec()).collect();
        let expected: Vec<_> =
            reference.iter().filter(|(_, content)| size(content) <= bound).map(|(label, _)| label.clone()).collect();
        prop_assert_eq!(matching, expected);
    }

    #[test]
    fn frozen_trees_hash_like_others(reference in reference(), asked in path()) {
        let frozen = Frozen::node(reference.iter().rev().map(|(label, content)| {
            let below = match content {
                Content::One(value) => Frozen::leaf(value.as_slice()),
                Content::Some(children) =>
                    Frozen::node(children.iter().map(|(label, value)| (label.as_slice(), Frozen::leaf(value.as_slice())))),
            };
            (label.as_slice(), below)
        }));
        prop_assert_eq!(frozen.digest(), naive_tree(&reference).digest());
        let mut selection = Selection::new();
        selection.add(&asked);
        let witness = witness(frozen.subtree(), &selection);
        prop_assert_eq!(witness.digest(), frozen.digest());
        prop_assert_eq!(witness.lookup_path(asked.iter()), truth(&reference, &asked));
    }
}

#[test]
fn the_specifications_example_hashes_as_it_says() {
    // The one tree whose root the specification prints hangs together differently, so its nodes are
    // hashed by hand.
    let labeled = |label: &str, below: Digest| labeled_digest(label.as_bytes(), &below);
    let a = fork_digest(
        &fork_digest(&labeled("x", leaf_digest(b"hello")), &empty_digest()),
        &labeled("y", leaf_digest(b"world")),
    );
    let left = fork_digest(&labeled("a", a), &labeled("b", leaf_digest(b"good")));
    let right = fork_digest(&labeled("c", empty_digest()), &labeled("d", leaf_digest(b"morning")));
    let root = fork_digest(&left, &right);
    let expected = [
        0xeb, 0x5c, 0x5b, 0x21, 0x95, 0xe6, 0x2d, 0x99, 0x6b, 0x84, 0xc9, 0xbc, 0xc8, 0x25, 0x9d,
        0x19, 0xa8, 0x37, 0x86, 0xa2, 0xf5, 0x9e, 0x08, 0x78, 0xce, 0xc8, 0x4c, 0x81, 0x1f, 0x66,
        0x9a, 0xa0,
    ];
    assert_eq!(root, expected);
}

#[test]
fn a_witness_takes_a_hash_per_doubling_for_each_path() {
    // 16,384 values under labels that are hashes, as requests are.
    let label_of = |number: u32| leaf_digest(&number.to_le_bytes()).to_vec();
    let mut map: MerkleMap<Value> =
        (0..1 << 14).map(|number| value(&label_of(number), &Content::One(vec![7; 8]))).collect();
    map.seal();
    let bytes_for = |paths: Vec<Vec<Vec<u8>>>| {
        let mut selection = Selection::new();
        paths.iter().for_each(|path| selection.add(path));
        serde_cbor_2::to_vec(&witness(map.subtree(), &selection)).unwrap().len()
    };
    // Per path: its fork levels (about 14, a few more where labels cluster), each a hash of 34
    // bytes and 1 of fork.
    let present = bytes_for(vec![vec![label_of(5)]]);
    assert!(present < 24 * 38, "{present}");
    let absent = bytes_for(vec![vec![label_of(1 << 20)]]);
    assert!(absent < 2 * 24 * 38, "{absent}");
    let thousand = bytes_for((0..1000).map(|number| vec![label_of(number * 37)]).collect());
    assert!(thousand < 1000 * 10 * 38, "{thousand}: paths share the upper levels");
}

#[test]
fn a_value_that_hashes_like_the_one_before_leaves_every_hash() {
    let label_of = |number: u32| number.to_be_bytes();
    let one = Content::One(vec![1]);
    let mut map: MerkleMap<Value> =
        (0..100u32).map(|number| value(&label_of(number), &one)).collect();
    let root = map.seal();
    let other = value(&label_of(5), &one);
    let held = Arc::downgrade(&other.0);
    map.insert(other);
    assert_eq!(map.kept_root(), Some(root));
    assert!(held.upgrade().is_some(), "the new value is in the map");
    map.insert(value(&label_of(5), &Content::One(vec![2])));
    assert_eq!(map.kept_root(), None);
    assert_ne!(map.seal(), root);
    map.check();
}

#[test]
fn snapshots_share_what_did_not_change() {
    let mut map: MerkleMap<Value> =
        (0..1000u32).map(|number| value(&number.to_be_bytes(), &Content::One(vec![1]))).collect();
    map.seal();
    let snapshot = map.clone();
    map.update(&5u32.to_be_bytes(), |slot| {
        *slot = value(&5u32.to_be_bytes(), &Content::One(vec![2]))
    });
    map.seal();
    let (then, now): (BTreeSet<_>, BTreeSet<_>) = (
        snapshot.iter().map(|value| Arc::as_ptr(&value.0)).collect(),
        map.iter().map(|value| Arc::as_ptr(&value.0)).collect(),
    );
    assert_eq!(then.intersection(&now).count(), 999);
}
