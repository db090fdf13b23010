//! The keys that sign votes: the members' node keys, of an epoch and of the one before.
//!
//! A certificate of votes is verified by the keys of its epoch, so a node that fetches a state has
//! to know them before it trusts the finalization above that state. They are a part of how the key
//! is held ([`state::SubnetKey::voters`]), whose hash is in the certified tree: an offer of a state
//! proves them by the same signature that it proves the state by.

use commonware_cryptography::ed25519::PublicKey;
use commonware_utils::ordered::Set;
use genesis::{BoundedList, NODES_MAX, Summary};
use serde::{Deserialize, Serialize};

use super::{
    key::{self, EngineKeyError, Scheme},
    wire,
};

/// Bytes of an encoded list of keys at most, with its length.
const LIST_BYTES_MAX: usize = 5 + NODES_MAX * 32;
/// Bytes of encoded voters at most.
pub(super) const VOTERS_BYTES_MAX: usize = 10 + 2 * LIST_BYTES_MAX;

/// Keys by rising bytes, in which their places follow.
type Keys = BoundedList<[u8; 32], NODES_MAX>;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Voters {
    epoch: u64,
    current: Keys,
    /// None in the first epoch.
    previous: Keys,
}

fn keys_of(summary: &Summary) -> Keys {
    BoundedList(summary.members().iter().map(|member| member.node_key().to_bytes()).collect())
}

impl Voters {
    /// Those of the first epoch that this node knows of.
    pub(super) fn first(summary: &Summary) -> Self {
        Self { epoch: summary.epoch(), current: keys_of(summary), previous: BoundedList(vec![]) }
    }

    /// Those of the next epoch, which `summary` is of.
    pub(super) fn next(&self, summary: &Summary) -> Self {
        debug_assert_eq!(summary.epoch(), self.epoch + 1, "epochs follow each other");
        let previous = self.current.clone();
        Self { epoch: summary.epoch(), current: keys_of(summary), previous }
    }

    /// As a state holds them.
    pub(super) fn encode(&self) -> Vec<u8> {
        wire::encode(self, "the keys of votes").unwrap_or_default()
    }

    /// `None` if the bytes are not those of voters.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        wire::decode(bytes, VOTERS_BYTES_MAX)
    }

    /// The epochs whose certificates can be verified, oldest first.
    pub(super) fn epochs(&self) -> impl Iterator<Item = u64> + use<> {
        let previous = (!self.previous.0.is_empty()).then(|| self.epoch.saturating_sub(1));
        previous.into_iter().chain([self.epoch])
    }

    /// Verifies certificates of this epoch; `None` if its keys are not known.
    pub(super) fn verifier(
        &self,
        namespace: &[u8],
        epoch: u64,
    ) -> Result<Option<Scheme>, EngineKeyError> {
        let keys = if epoch == self.epoch {
            &self.current
        } else if epoch.checked_add(1) == Some(self.epoch) {
            &self.previous
        } else {
            return Ok(None);
        };
        if keys.0.is_empty() {
            return Ok(None);
        }
        let members: Set<PublicKey> = key::members(&keys.0)?;
        Ok(Some(Scheme::verifier(namespace, members)))
    }
}

/// Of two epochs.
#[cfg(test)]
pub(super) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let (current, previous) = (BoundedList(vec![[1; 32], [2; 32]]), BoundedList(vec![[3; 32]]));
    wire::samples([("voters", Voters { epoch: 300, current, previous })])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use commonware_consensus::{
        simplex::types::{Finalization, Finalize, Proposal},
        types::{Epoch, Round, View},
    };
    use commonware_cryptography::{Hasher as _, Sha256, Signer as _};
    use commonware_parallel::Sequential;
    use commonware_utils::{iter::NonEmpty, test_rng};

    use super::*;

    const NAMESPACE: &[u8] = b"subnet";

    fn keys(numbers: std::ops::Range<u8>) -> Keys {
        let public = |number: u8| -> [u8; 32] {
            let key = key::node_key(&[number; 32]).unwrap().public_key();
            key.as_ref().try_into().unwrap()
        };
        let mut keys: Vec<_> = numbers.map(public).collect();
        keys.sort_unstable();
        BoundedList(keys)
    }

    fn voters() -> Voters {
        Voters { epoch: 7, current: keys(3..7), previous: keys(1..5) }
    }

    /// Signed by these nodes as members of `of`.
    fn finalization(
        epoch: u64,
        of: &Keys,
        signers: std::ops::Range<u8>,
    ) -> Finalization<Scheme, super::super::block::Digest> {
        let members = key::members(&of.0).unwrap();
        let round = Round::new(Epoch::new(epoch), View::new(9));
        let proposal = Proposal::new(round, View::new(8), Sha256::hash(&[b"block"]));
        let schemes: Vec<_> = signers
            .map(|number| {
                let key = key::node_key(&[number; 32]).unwrap();
                Scheme::signer(NAMESPACE, members.clone(), key).unwrap()
            })
            .collect();
        let votes: Vec<_> = schemes
            .iter()
            .map(|scheme| Finalize::sign(scheme, proposal.clone()).unwrap())
            .collect();
        let votes = NonEmpty::try_new(votes.iter()).unwrap();
        Finalization::from_finalizes(&schemes[0], votes, &Sequential).unwrap()
    }

    #[test]
    fn certificate_is_verified_by_the_keys_of_its_epoch() {
        let voters = voters();
        assert_eq!(voters.epochs().collect::<Vec<_>>(), [6, 7]);
        let verifies = |epoch: u64, of: &Keys, signers| {
            let finalization = finalization(epoch, of, signers);
            let scheme = voters.verifier(NAMESPACE, epoch).unwrap();
            scheme.is_some_and(|it| finalization.verify(&mut test_rng(), &it, &Sequential))
        };
        assert!(verifies(7, &voters.current, 3..6));
        assert!(verifies(6, &voters.previous, 1..4));
        // Keys of another epoch.
        assert!(!verifies(6, &voters.current, 3..6));
        assert!(!verifies(7, &voters.previous, 1..4));
        // An epoch whose keys are not known.
        assert!(!verifies(5, &voters.previous, 1..4));
        assert!(!verifies(8, &voters.current, 3..6));
        let first = Voters { previous: BoundedList(vec![]), ..voters.clone() };
        assert_eq!(first.epochs().collect::<Vec<_>>(), [7]);
        assert!(first.verifier(NAMESPACE, 6).unwrap().is_none());
    }

    #[test]
    fn voters_read_back_and_nothing_else_does() {
        let voters = voters();
        let bytes = voters.encode();
        assert!(bytes.len() <= VOTERS_BYTES_MAX);
        assert_eq!(Voters::decode(&bytes), Some(voters.clone()));
        assert_eq!(Voters::decode(&[bytes.as_slice(), &[0]].concat()), None);
        assert_eq!(Voters::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Voters::decode(&[]), None);
        // Announces more keys than there are bytes.
        assert_eq!(Voters::decode(&[7, 0xff, 0xff, 0xff, 0xff, 0x0f]), None);
        // Keys out of order are those of no committee.
        let mut unsorted = voters;
        unsorted.current.0.swap(0, 1);
        assert!(unsorted.verifier(NAMESPACE, 7).is_err());
    }
}
