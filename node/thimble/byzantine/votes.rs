//! Votes that no honest member casts, and certificates that the subnet did not make.

use commonware_codec::{Encode as _, varint::UInt};
use commonware_consensus::simplex::types::{Finalize, Notarize, Nullify, Proposal, Vote};

use rand::seq::SliceRandom as _;

use crate::{
    attacker::{Keys, Message, OutgoingMessages, State},
    forms::{self, Digest},
    plan::Attack,
};

type Cast = Vote<consensus::adversary::VoteScheme, Digest>;

/// The same vote for another block.
fn for_other(keys: &Keys, vote: &Cast, payload: Digest) -> Option<Cast> {
    let other =
        |proposal: &Proposal<Digest>| Proposal::new(proposal.round, proposal.parent, payload);
    Some(match vote {
        Vote::Notarize(notarize) => {
            Vote::Notarize(Notarize::sign(&keys.scheme, other(&notarize.proposal))?)
        }
        Vote::Finalize(finalize) => {
            Vote::Finalize(Finalize::sign(&keys.scheme, other(&finalize.proposal))?)
        }
        Vote::Nullify(_) => return None,
    })
}

/// The vote, with a signature that is on another block.
fn with_other_signature(keys: &Keys, vote: &Cast, payload: Digest) -> Option<Cast> {
    Some(match (vote, for_other(keys, vote, payload)?) {
        (Vote::Notarize(vote), Vote::Notarize(other)) => Vote::Notarize(Notarize {
            proposal: vote.proposal.clone(),
            attestation: other.attestation,
        }),
        (Vote::Finalize(vote), Vote::Finalize(other)) => Vote::Finalize(Finalize {
            proposal: vote.proposal.clone(),
            attestation: other.attestation,
        }),
        _ => return None,
    })
}

pub(crate) fn vote(message: &Message<'_>, state: &mut State) -> Option<OutgoingMessages> {
    let Some((epoch, rest)) = forms::split_epoch(message.bytes) else {
        state.defect("a vote without an epoch");
        return None;
    };
    if let Some(sent) = other_epoch(message, state) {
        return Some(sent);
    }
    let Some(vote) = forms::decode_vote(rest) else {
        state.defect("a vote that does not decode");
        return None;
    };
    let (payload, round) = match &vote {
        Vote::Notarize(notarize) => (Some(notarize.proposal.payload), notarize.proposal.round),
        Vote::Finalize(finalize) => (Some(finalize.proposal.payload), finalize.proposal.round),
        Vote::Nullify(nullify) => (None, nullify.round),
    };
    let (random, number) = (Digest::from(state.digest()), round.epoch().get());
    if let Some(payload) = payload
        && let Some(replaced) = state.replaced.get(&payload).cloned()
    {
        let other = for_other(state.keys_of(number)?, &vote, replaced.by)?;
        state.record_attack(
            replaced.attack,
            message,
            "a vote for the other block",
            replaced.to.len(),
        );
        return Some(message.split(&replaced.to, forms::with_epoch(&epoch, &other)));
    }
    if message.is_under(Attack::ConflictingVotes) {
        let to = message.random_half(state);
        let keys = state.keys_of(number)?;
        let (other, detail) = match &vote {
            Vote::Finalize(_) if number.wrapping_add(round.view().get()) % 2 == 0 => {
                let nullify = Nullify::sign::<Digest>(&keys.scheme, round)?;
                (Vote::Nullify(nullify), "the round is given up and finalised")
            }
            vote => (for_other(keys, vote, random)?, "a vote for a block that does not exist"),
        };
        state.record_attack(Attack::ConflictingVotes, message, detail, to.len());
        return Some(message.split(&to, forms::with_epoch(&epoch, &other)));
    }
    if let Some(victim) = message.victim(Attack::DoubleVotes, state) {
        let other = for_other(state.keys_of(number)?, &vote, random)?;
        state.record_attack(Attack::DoubleVotes, message, "votes for two blocks", 1);
        let other = forms::with_epoch(&epoch, &other);
        return Some(vec![(message.to.to_vec(), message.bytes.to_vec()), (vec![victim], other)]);
    }
    if let Some(victim) = message.victim(Attack::FalseVotes, state) {
        let other = with_other_signature(state.keys_of(number)?, &vote, random)?;
        state.record_attack(Attack::FalseVotes, message, "a signature on another block", 1);
        return Some(message.to_victim(&victim, forms::with_epoch(&epoch, &other)));
    }
    None
}

/// The same message under the number of another epoch, before the message.
fn other_epoch(message: &Message<'_>, state: &mut State) -> Option<OutgoingMessages> {
    if !message.is_under(Attack::OtherEpochs) {
        return None;
    }
    let (_, rest) = forms::split_epoch(message.bytes)?;
    let epochs = [0, 1, 2, 3, 1_000, 1 << 32, u64::MAX - 1, u64::MAX];
    let epoch = *epochs.choose(&mut state.rng)?;
    let other = [UInt(epoch).encode().as_ref(), rest.as_ref()].concat();
    state.record_attack(Attack::OtherEpochs, message, &format!("epoch {epoch}"), message.to.len());
    let to = message.to.to_vec();
    Some(vec![(to.clone(), other), (to, message.bytes.to_vec())])
}

pub(crate) fn certificate(message: &Message<'_>, state: &mut State) -> Option<OutgoingMessages> {
    if let Some(sent) = other_epoch(message, state) {
        return Some(sent);
    }
    let victim = message.victim(Attack::FalseCertificates, state)?;
    let flipped = state.flipped(message.bytes);
    state.record_attack(Attack::FalseCertificates, message, "a changed bit", 1);
    Some(message.to_victim(&victim, flipped))
}
