//! The walk through a list of nodes in the DNS: which name is queried next, and how an answer is
//! handled. A state machine: texts and randomness are passed in.
//!
//! Bounds: names that are queried ([`Walk::new`]), lists that are followed by links
//! ([`LISTS_MAX`]), the depth of a tree ([`DEPTH_MAX`]). No name is queried twice. The order is
//! random, so that of a list larger than the bound each walk sees another part.
//!
//! Source: EIP-1459, "Client Protocol".

use std::collections::{BTreeMap, BTreeSet};

use protocol::{
    node_list::{EntryHash, ListEntry, ListError, ListLink, ListRoot},
    record::NodeRecord,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thiserror::Error;

/// Lists of one walk: the first, and those that links lead to.
pub(crate) const LISTS_MAX: usize = 8;
/// Branches above each other. Branches of two hold 65,536 records in as many.
pub(crate) const DEPTH_MAX: u8 = 16;

/// Why an answer is of no use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum WalkError {
    #[error(transparent)]
    List(#[from] ListError),
    #[error("the list's number fell from {before} to {now}: an older version is shown")]
    Older { before: u64, now: u64 },
    #[error("a record where links are, or a link where records are")]
    Misplaced,
    #[error("branches are deeper than {DEPTH_MAX}")]
    TooDeep,
}

/// The versions of lists that were seen, by domain: none is followed by an older one.
pub(crate) type Versions = BTreeMap<String, u64>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ListNode {
    Root,
    Entry { hash: EntryHash, links: bool, depth: u8 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    list: usize,
    node: ListNode,
}

pub(crate) struct Walk {
    lists: Vec<ListLink>,
    asked: BTreeSet<(usize, EntryHash)>,
    waiting: Vec<Question>,
    left: usize,
    random: ChaCha8Rng,
}

impl Walk {
    /// Begins at a list; at most `names` are asked for.
    pub(crate) fn new(list: ListLink, names: usize, seed: [u8; 32]) -> Self {
        Self {
            lists: vec![list],
            asked: BTreeSet::new(),
            waiting: vec![Question { list: 0, node: ListNode::Root }],
            left: names,
            random: ChaCha8Rng::from_seed(seed),
        }
    }

    /// The next question; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Question> {
        if self.waiting.is_empty() || self.left == 0 {
            return None;
        }
        self.left -= 1;
        let chosen = self.random.gen_range(0..self.waiting.len());
        Some(self.waiting.swap_remove(chosen))
    }

    /// The DNS name of a question, with a dot at its end.
    pub(crate) fn name(&self, question: &Question) -> String {
        let domain = self.lists.get(question.list).map_or("", |list| list.domain.as_str());
        match &question.node {
            ListNode::Root => format!("{domain}."),
            ListNode::Entry { hash, .. } => format!("{hash}.{domain}."),
        }
    }

    /// Whether a text can be the answer: there may be other records in addition to a root.
    pub(crate) fn is_answer(&self, question: &Question, text: &str) -> bool {
        question.node != ListNode::Root || ListRoot::is_root(text)
    }

    /// Takes an answer; a record, if it is one. Errors: see [`WalkError`]. The names below it are
    /// then not queried, and the walk continues.
    pub(crate) fn answer(
        &mut self,
        question: Question,
        text: &str,
        versions: &mut Versions,
    ) -> Result<Option<NodeRecord>, WalkError> {
        let Some(list) = self.lists.get(question.list) else { return Ok(None) };
        match question.node {
            ListNode::Root => {
                let root = ListRoot::decode(text, &list.public_key)?;
                let before = versions.get(&list.domain).copied().unwrap_or(0);
                if root.sequence < before {
                    return Err(WalkError::Older { before, now: root.sequence });
                }
                versions.insert(list.domain.clone(), root.sequence);
                self.add_question(question.list, root.records, false, 0);
                self.add_question(question.list, root.links, true, 0);
                Ok(None)
            }
            ListNode::Entry { hash, links, depth } => match ListEntry::decode(text, &hash)? {
                ListEntry::Branch(_) if depth == DEPTH_MAX => Err(WalkError::TooDeep),
                ListEntry::Branch(children) => {
                    children.into_iter().for_each(|child| {
                        self.add_question(question.list, child, links, depth + 1)
                    });
                    Ok(None)
                }
                ListEntry::Record(record) if !links => Ok(Some(*record)),
                ListEntry::Link(link) if links => {
                    let known = self.lists.iter().any(|known| known.domain == link.domain);
                    if !known && self.lists.len() < LISTS_MAX {
                        self.waiting
                            .push(Question { list: self.lists.len(), node: ListNode::Root });
                        self.lists.push(link);
                    }
                    Ok(None)
                }
                ListEntry::Record(_) | ListEntry::Link(_) => Err(WalkError::Misplaced),
            },
        }
    }

    fn add_question(&mut self, list: usize, hash: EntryHash, links: bool, depth: u8) {
        // Names that will not be queried again are not kept.
        if self.waiting.len() < self.left && self.asked.insert((list, hash.clone())) {
            self.waiting.push(Question { list, node: ListNode::Entry { hash, links, depth } });
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::record::RecordContent;

    use super::*;

    const KEY: [u8; 32] = [7; 32];

    /// A DNS zone of one or more lists.
    #[derive(Default)]
    struct Zone(BTreeMap<String, String>);

    impl Zone {
        fn entry(&mut self, domain: &str, text: String) -> EntryHash {
            let hash = EntryHash::for_text(&text);
            self.0.insert(format!("{hash}.{domain}."), text);
            hash
        }

        fn branch(&mut self, domain: &str, children: Vec<EntryHash>) -> EntryHash {
            self.entry(domain, ListEntry::Branch(children).to_string())
        }

        /// A list of some records, eight to a branch, and links.
        fn list(
            &mut self,
            domain: &str,
            sequence: u64,
            records: u32,
            links: &[&ListLink],
        ) -> ListLink {
            let mut leaves: Vec<EntryHash> =
                (0..records).map(|number| self.entry(domain, node(number).to_string())).collect();
            while leaves.len() > 1 {
                leaves = leaves.chunks(8).map(|part| self.branch(domain, part.to_vec())).collect();
            }
            let links = links.iter().map(|link| self.entry(domain, link.to_string())).collect();
            let links = self.branch(domain, links);
            let records = leaves.pop().unwrap_or_else(|| links.clone());
            let root = ListRoot { records, links, sequence }.sign(&KEY).unwrap();
            self.0.insert(format!("{domain}."), root);
            ListLink { public_key: node(0).public_key, domain: domain.to_owned() }
        }

        fn walk(
            &self,
            walk: &mut Walk,
            versions: &mut Versions,
        ) -> (Vec<NodeRecord>, Vec<WalkError>, usize) {
            let (mut found, mut failed, mut asked) = (Vec::new(), Vec::new(), 0);
            while let Some(question) = walk.next() {
                asked += 1;
                let Some(text) = self.0.get(&walk.name(&question)) else { continue };
                assert!(walk.is_answer(&question, text));
                match walk.answer(question, text, versions) {
                    Ok(record) => found.extend(record),
                    Err(error) => failed.push(error),
                }
            }
            (found, failed, asked)
        }
    }

    fn node(number: u32) -> NodeRecord {
        RecordContent { sequence: u64::from(number), ..RecordContent::default() }
            .sign(&KEY)
            .unwrap()
    }

    #[test]
    fn every_record_is_found_once_and_links_are_followed_once() {
        let mut zone = Zone::default();
        let first = ListLink { public_key: node(0).public_key, domain: "one.example.org".into() };
        let second = zone.list("two.example.org", 1, 5, &[&first]);
        let first = zone.list("one.example.org", 1, 100, &[&second]);
        let mut walk = Walk::new(first, 1000, [1; 32]);
        let (found, failed, asked) = zone.walk(&mut walk, &mut Versions::new());
        assert_eq!((found.len(), failed), (105, vec![]));
        assert_eq!(asked, zone.0.len(), "each name once");
    }

    #[test]
    fn a_walk_ends_and_each_sees_another_part() {
        let mut zone = Zone::default();
        let list = zone.list("one.example.org", 1, 300, &[]);
        let part = |seed| {
            let mut walk = Walk::new(list.clone(), 50, [seed; 32]);
            let (found, _, asked) = zone.walk(&mut walk, &mut Versions::new());
            assert_eq!(asked, 50);
            found.iter().map(|record| record.sequence).collect::<Vec<_>>()
        };
        assert!(!part(1).is_empty() && part(1) != part(2) && part(1) == part(1));
    }

    #[test]
    fn what_is_not_signed_is_not_followed() {
        let mut zone = Zone::default();
        let list = zone.list("one.example.org", 5, 3, &[]);
        let stranger = ListLink {
            public_key: RecordContent::default().sign(&[8; 32]).unwrap().public_key,
            ..list.clone()
        };
        let mut versions = Versions::new();
        let (found, failed, asked) =
            zone.walk(&mut Walk::new(stranger, 100, [1; 32]), &mut versions);
        assert_eq!((found.len(), asked), (0, 1));
        assert_eq!(failed, [WalkError::List(ListError::Signature)]);
        // An entry that was changed on the way.
        let name = zone.0.iter().find(|(_, text)| text.starts_with("enr:")).unwrap().0.clone();
        zone.0.insert(name, node(77).to_string());
        let (found, failed, _) =
            zone.walk(&mut Walk::new(list.clone(), 100, [1; 32]), &mut versions);
        assert_eq!((found.len(), failed), (2, vec![WalkError::List(ListError::Hash)]));
        zone.list("one.example.org", 4, 3, &[]);
        let (found, failed, _) = zone.walk(&mut Walk::new(list, 100, [1; 32]), &mut versions);
        assert_eq!((found.len(), failed), (0, vec![WalkError::Older { before: 5, now: 4 }]));
    }

    #[test]
    fn deep_trees_and_misplaced_entries_are_left() {
        let mut zone = Zone::default();
        let domain = "one.example.org";
        let mut records = zone.entry(domain, node(1).to_string());
        for _ in 0..=DEPTH_MAX {
            records = zone.branch(domain, vec![records]);
        }
        let record = zone.entry(domain, node(2).to_string());
        let links = zone.branch(domain, vec![record]);
        let root = ListRoot { records, links, sequence: 1 }.sign(&KEY).unwrap();
        zone.0.insert(format!("{domain}."), root);
        let list = ListLink { public_key: node(0).public_key, domain: domain.into() };
        let (found, failed, _) =
            zone.walk(&mut Walk::new(list, 100, [1; 32]), &mut Versions::new());
        assert!(found.is_empty() && failed.len() == 2, "{failed:?}");
        assert!(failed.contains(&WalkError::TooDeep) && failed.contains(&WalkError::Misplaced));
    }

    // Promise: P24 - A ring of DNS lists is followed within its bound.
    #[test]
    fn a_ring_of_lists_is_followed_no_further_than_allowed() {
        let mut zone = Zone::default();
        let key = node(0).public_key;
        let link =
            |number: usize| ListLink { public_key: key, domain: format!("l{number}.example.org") };
        for number in 0..50 {
            zone.list(&link(number).domain, 1, 1, &[&link(number + 1), &link((number + 7) % 50)]);
        }
        let mut walk = Walk::new(link(0), 1000, [3; 32]);
        let (found, failed, _) = zone.walk(&mut walk, &mut Versions::new());
        assert_eq!((found.len(), failed), (LISTS_MAX, vec![]));
    }
}
