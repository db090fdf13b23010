//! Checks that all members have the same limits, as far as the result of a batch depends on them.
//!
//! Each member sends the others its limits when it starts, and asks for theirs until it received
//! them. A member that differs is named, with the limit; a node that differs from more others than
//! can be faulty ends.

use std::collections::{BTreeMap, BTreeSet};

use commonware_cryptography::ed25519::PublicKey;
use thiserror::Error;

use super::wire;

/// Longest list of limits that is read.
pub(super) const LIMITS_MAX: usize = 512;
/// Limits named in one message.
const NAMED_MAX: usize = 5;

/// This node differs from the others.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{members} members of the subnet run with other settings than this node: {differences}; start \
     this node with the same --memory, [limits] and [features]"
)]
pub struct LimitsDiffer {
    /// Members that differ from this node.
    pub members: usize,
    /// Some of the limits: name, value here, value there.
    pub differences: String,
}

/// This node's limits, and the members that it compared them with.
pub(super) struct Greeting {
    me: PublicKey,
    own: BTreeMap<String, u64>,
    heard: BTreeSet<PublicKey>,
    differing: BTreeSet<PublicKey>,
}

impl Greeting {
    pub(super) fn new(me: PublicKey, own: Vec<(String, u64)>) -> Self {
        Self {
            me,
            own: own.into_iter().chain([(wire::VERSION_NAME.to_owned(), wire::VERSION)]).collect(),
            heard: BTreeSet::new(),
            differing: BTreeSet::new(),
        }
    }

    pub(super) fn own_limits(&self) -> Vec<(String, u64)> {
        self.own.iter().map(|(name, value)| (name.clone(), *value)).collect()
    }

    /// Members that were not heard yet.
    pub(super) fn missing(&self, members: Vec<PublicKey>) -> Vec<PublicKey> {
        members
            .into_iter()
            .filter(|member| *member != self.me && !self.heard.contains(member))
            .collect()
    }

    /// A peer sent its limits. Nodes that are not members do not count, former members included.
    pub(super) fn add_peer_limits(
        &mut self,
        from: &PublicKey,
        theirs: Vec<(String, u64)>,
        members: &[PublicKey],
    ) -> Result<(), LimitsDiffer> {
        if theirs.len() > LIMITS_MAX || !members.contains(from) {
            return Ok(());
        }
        self.heard.retain(|peer| members.contains(peer));
        self.differing.retain(|peer| members.contains(peer));
        self.heard.insert(from.clone());
        let theirs: BTreeMap<_, _> = theirs.into_iter().collect();
        let names: BTreeSet<_> = self.own.keys().chain(theirs.keys()).collect();
        let value = |value: Option<&u64>| value.map_or("absent".to_owned(), u64::to_string);
        let differences: Vec<_> = names
            .into_iter()
            .filter(|name| self.own.get(*name) != theirs.get(*name))
            .map(|name| {
                format!(
                    "{name} is {} here and {} there",
                    value(self.own.get(name)),
                    value(theirs.get(name))
                )
            })
            .collect();
        if differences.is_empty() {
            self.differing.remove(from);
            return Ok(());
        }
        let differences = match differences.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
            Some(more) => format!("{}, and {more} more", differences[..NAMED_MAX].join(", ")),
            None => differences.join(", "),
        };
        self.differing.insert(from.clone());
        let faulty_max = members.len().saturating_sub(1) / 3;
        if self.differing.len() > faulty_max {
            return Err(LimitsDiffer { members: self.differing.len(), differences });
        }
        tracing::error!(peer = %from, %differences, "a member of the subnet runs with other limits: its state will part from that of the others");
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use commonware_cryptography::Signer as _;

    use super::super::key;
    use super::*;

    #[test]
    fn minority_limits_end_the_node_and_are_logged_by_others() {
        let peer = |number: u8| key::node_key(&[number; 32]).unwrap().public_key();
        let limits = |rounds: u64| {
            let version = (wire::VERSION_NAME.to_owned(), wire::VERSION);
            vec![("a.rounds".to_owned(), rounds), ("b.bytes".to_owned(), 7), version]
        };
        let members: Vec<_> = (1..=4).map(peer).collect();
        let mut greeting = Greeting::new(peer(1), limits(50));
        assert_eq!(greeting.missing(members.clone()).len(), 3);
        greeting.add_peer_limits(&peer(2), limits(50), &members).unwrap();
        greeting.add_peer_limits(&peer(3), limits(60), &members).unwrap();
        assert_eq!(greeting.missing(members.clone()), [peer(4)]);
        // The same member again does not count twice.
        greeting.add_peer_limits(&peer(3), limits(60), &members).unwrap();
        let error = greeting.add_peer_limits(&peer(4), vec![], &members).unwrap_err();
        assert_eq!(error.members, 2);
        assert!(error.to_string().contains("a.rounds is 50 here and absent there"), "{error}");
        // A member that was restarted with the right limits is no longer counted.
        greeting.add_peer_limits(&peer(3), limits(50), &members).unwrap();
        assert_eq!(greeting.differing.len(), 1);
    }

    #[test]
    fn limits_of_former_members_do_not_count() {
        let peer = |number: u8| key::node_key(&[number; 32]).unwrap().public_key();
        let limits = |rounds: u64| vec![("a.rounds".to_owned(), rounds)];
        let mut greeting = Greeting::new(peer(1), limits(50));
        // Members come and go, each with different limits: with one at a time no member is
        // outnumbered, and all are heard.
        for newest in 5..60 {
            let members: Vec<_> = [1, 2, 3, newest].map(peer).into();
            greeting.add_peer_limits(&peer(newest), limits(60), &members).unwrap();
            assert_eq!(greeting.missing(members), [peer(2), peer(3)]);
            assert_eq!((greeting.heard.len(), greeting.differing.len()), (1, 1));
        }
        let members: Vec<_> = (1..=4).map(peer).collect();
        greeting.add_peer_limits(&peer(70), limits(60), &members).unwrap();
        greeting.add_peer_limits(&peer(4), limits(60), &members).unwrap();
        assert_eq!(greeting.differing.len(), 1);
    }
}
