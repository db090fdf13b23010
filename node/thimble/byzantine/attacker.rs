//! Decides what becomes of each message that the node sends.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use ::genesis::Summary;
use commonware_cryptography::{certificate::Scheme as _, ed25519::PublicKey};
use consensus::{
    ChannelName,
    adversary::{self, VoteScheme},
};
use nidkg::{NodeIndex, SecretShare};
use rand::{Rng as _, RngCore as _, SeedableRng as _, rngs::StdRng};
use zeroize::Zeroizing;

use crate::{
    blocks,
    forms::{Digest, Name},
    plan::{Attack, Plan},
    report::Report,
    shares, votes,
};

/// Blocks of this node that are remembered as replaced by others.
const REPLACED_MAX: usize = 64;
/// Epochs whose keys are remembered.
const EPOCHS_MAX: usize = 4;
/// Calls of earlier blocks that are named again.
const NAMES_MAX: usize = 256;
/// Times a message is repeated by a flood.
const FLOOD: usize = 300;
/// Most bytes of garbage in one message.
const GARBAGE_BYTES: usize = 2_000;

/// Replacement of a message: the recipients, and the bytes.
pub(crate) type OutgoingMessages = Vec<(Vec<PublicKey>, Vec<u8>)>;

pub(crate) struct Attacker {
    pub(crate) plan: Plan,
    namespace: Vec<u8>,
    /// Signs votes.
    node_secret: Zeroizing<[u8; 32]>,
    state: Mutex<State>,
}

/// Knowledge of the attacker.
pub(crate) struct State {
    pub(crate) rng: StdRng,
    report: Report,
    /// By epoch.
    keys: BTreeMap<u64, Keys>,
    /// Replacements that others get of a block of this node, by its digest.
    pub(crate) replaced: BTreeMap<Digest, ReplacedBlock>,
    /// Calls that blocks of this node named, in the order of their heights.
    pub(crate) names: Vec<Name>,
    /// The last dealing of this node.
    pub(crate) dealing: Option<(u32, Vec<u8>)>,
    /// A certification of an earlier block: root and signature.
    pub(crate) certification: Option<([u8; 32], [u8; 48])>,
    pub(crate) peers: BTreeSet<PublicKey>,
}

/// With what this node signs in an epoch.
pub(crate) struct Keys {
    pub(crate) scheme: VoteScheme,
    pub(crate) share: SecretShare,
    pub(crate) members: u32,
    /// This node's id.
    pub(crate) node_id: Vec<u8>,
}

/// Another block than the one that this node's engine knows.
#[derive(Clone)]
pub(crate) struct ReplacedBlock {
    pub(crate) by: Digest,
    /// Who gets it; the others get the engine's.
    pub(crate) to: BTreeSet<PublicKey>,
    /// Whether a vote for it is sent with each vote for the engine's.
    pub(crate) attack: Attack,
}

impl Attacker {
    pub(crate) fn new(plan: Plan, genesis: &Summary, node_secret: Zeroizing<[u8; 32]>) -> Self {
        let state = State {
            rng: StdRng::seed_from_u64(plan.seed),
            report: Report::to(plan.log.as_deref()),
            keys: BTreeMap::new(),
            replaced: BTreeMap::new(),
            names: Vec::new(),
            dealing: None,
            certification: None,
            peers: BTreeSet::new(),
        };
        let namespace = adversary::namespace(genesis);
        Self { plan, namespace, node_secret, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This node signs with this share from the epoch of this summary on.
    pub(crate) fn take_keys(&self, summary: &Summary, share: &SecretShare) -> Result<(), String> {
        let scheme = adversary::vote_scheme(&self.namespace, summary, &self.node_secret);
        let copy = SecretShare::from_bytes(share.index, &share.to_bytes());
        let keys = Keys {
            scheme: scheme.map_err(|error| error.to_string())?,
            share: copy.map_err(|error| error.to_string())?,
            members: summary.members().len() as u32,
            node_id: summary
                .members()
                .get(share.index.0 as usize)
                .map(|member| member.node_id().as_slice().to_vec())
                .unwrap_or_default(),
        };
        let mut state = self.state();
        state.keys.insert(summary.epoch(), keys);
        while state.keys.len() > EPOCHS_MAX {
            state.keys.pop_first();
        }
        Ok(())
    }

    /// The replacement of a message; `None` for the message itself.
    pub(crate) fn outgoing(
        &self,
        channel: ChannelName,
        to: &[PublicKey],
        bytes: &[u8],
    ) -> Option<OutgoingMessages> {
        let mut state = self.state();
        state.peers.extend(to.iter().cloned());
        let message = Message { plan: &self.plan, channel, to, bytes };
        if let Some(sent) = message.evident(&mut state) {
            return Some(sent);
        }
        match channel {
            ChannelName::Votes => votes::vote(&message, &mut state),
            ChannelName::Certificates => votes::certificate(&message, &mut state),
            ChannelName::Broadcast => blocks::proposed(&message, &mut state),
            ChannelName::Roots => shares::root(&message, &mut state),
            ChannelName::Outcalls => shares::outcall(&message, &mut state),
            ChannelName::Calls => shares::calls(&message, &mut state),
            ChannelName::Sync => shares::sync(&message, &mut state),
            ChannelName::Resolver | ChannelName::Backfill => shares::fetched(&message, &mut state),
        }
    }
}

/// A message that the node sends.
pub(crate) struct Message<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) channel: ChannelName,
    pub(crate) to: &'a [PublicKey],
    pub(crate) bytes: &'a [u8],
}

impl Message<'_> {
    /// Whether the attack is made on this message.
    pub(crate) fn is_under(&self, attack: Attack) -> bool {
        self.plan.is_on(attack)
    }

    /// The member that the attack is made on, if it is made now and that member gets the message.
    pub(crate) fn victim(&self, attack: Attack, state: &State) -> Option<PublicKey> {
        if !self.is_under(attack) {
            return None;
        }
        let keys = state.keys()?;
        let members = keys.scheme.participants().iter().enumerate();
        let others: Vec<_> = members
            .filter(|(place, _)| *place != keys.share.index.0 as usize)
            .map(|(_, member)| member)
            .collect();
        let victim = *others.get(self.plan.victim(attack, others.len()))?;
        self.to.contains(victim).then(|| victim.clone())
    }

    /// The first half of those who get the message, by a cut that differs from time to time.
    pub(crate) fn random_half(&self, state: &mut State) -> BTreeSet<PublicKey> {
        let begin = state.rng.gen_range(0..self.to.len().max(1));
        let half = self.to.len().div_ceil(2);
        self.to.iter().cycle().skip(begin).take(half).cloned().collect()
    }

    /// `false_one` to these, the message itself to the others.
    pub(crate) fn split(&self, to: &BTreeSet<PublicKey>, false_one: Vec<u8>) -> OutgoingMessages {
        let (false_to, true_to): (Vec<_>, Vec<_>) =
            self.to.iter().cloned().partition(|peer| to.contains(peer));
        let all = vec![(false_to, false_one), (true_to, self.bytes.to_vec())];
        all.into_iter().filter(|(to, _)| !to.is_empty()).collect()
    }

    /// `false_one` to the victim in place of the message.
    pub(crate) fn to_victim(&self, victim: &PublicKey, false_one: Vec<u8>) -> OutgoingMessages {
        self.split(&BTreeSet::from([victim.clone()]), false_one)
    }

    /// Attacks that need no knowledge of the message.
    fn evident(&self, state: &mut State) -> Option<OutgoingMessages> {
        if let Some(victim) = self.victim(Attack::Garbage, state)
            && state.rng.gen_ratio(1, 4)
        {
            let (bytes, detail) = state.garbage(self.bytes);
            state.record_attack(Attack::Garbage, self, detail, 1);
            return Some(self.to_victim(&victim, bytes));
        }
        if let Some(victim) = self.victim(Attack::Flood, state)
            && state.rng.gen_ratio(1, 4)
        {
            state.record_attack(Attack::Flood, self, "the same message many times", 1);
            let mut sent = vec![(vec![victim], self.bytes.to_vec()); FLOOD];
            sent.push((self.to.to_vec(), self.bytes.to_vec()));
            return Some(sent);
        }
        None
    }
}

impl State {
    pub(crate) fn record_attack(
        &mut self,
        attack: Attack,
        message: &Message<'_>,
        detail: &str,
        to: usize,
    ) {
        self.report.record_attack(attack, message.channel, detail, to);
    }

    pub(crate) fn defect(&mut self, what: &str) {
        self.report.defect(what);
    }

    /// The keys of an epoch.
    pub(crate) fn keys_of(&self, epoch: u64) -> Option<&Keys> {
        self.keys.get(&epoch)
    }

    /// The newest keys.
    pub(crate) fn keys(&self) -> Option<&Keys> {
        self.keys.last_key_value().map(|(_, keys)| keys)
    }

    pub(crate) fn replace(&mut self, block: Digest, replaced: ReplacedBlock) {
        self.replaced.insert(block, replaced);
        while self.replaced.len() > REPLACED_MAX {
            let Some(any) = self.replaced.keys().next().copied() else { return };
            // In no order: digests are random.
            self.replaced.remove(&any);
        }
    }

    pub(crate) fn remember(&mut self, names: &[Name]) {
        // The oldest stay: they expire.
        let room = NAMES_MAX.saturating_sub(self.names.len());
        self.names.extend(names.iter().take(room).cloned());
    }

    /// The bytes with one bit changed.
    pub(crate) fn flipped(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if !bytes.is_empty() {
            let at = self.rng.gen_range(0..bytes.len());
            bytes[at] ^= 1 << self.rng.gen_range(0..8_u8);
        }
        bytes
    }

    /// Another digest.
    pub(crate) fn digest(&mut self) -> [u8; 32] {
        let mut digest = [0; 32];
        self.rng.fill_bytes(&mut digest);
        digest
    }

    /// A place in the committee that is not this node's.
    pub(crate) fn other_place(&mut self) -> Option<NodeIndex> {
        let keys = self.keys()?;
        let (own, members) = (keys.share.index.0, keys.members.max(2));
        Some(NodeIndex((own + self.rng.gen_range(1..members)) % members))
    }

    fn garbage(&mut self, bytes: &[u8]) -> (Vec<u8>, &'static str) {
        match self.rng.gen_range(0..4_u8) {
            0 => {
                let mut random = vec![0; self.rng.gen_range(0..GARBAGE_BYTES)];
                self.rng.fill_bytes(&mut random);
                (random, "random bytes")
            }
            1 => {
                let end = self.rng.gen_range(0..=bytes.len());
                (bytes[..end].to_vec(), "a message that is cut")
            }
            2 => {
                let mut long = bytes.to_vec();
                long.extend_from_slice(bytes);
                (long, "a message with something behind it")
            }
            _ => (self.flipped(bytes), "a changed bit"),
        }
    }
}
