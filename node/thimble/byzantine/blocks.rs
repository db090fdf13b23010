//! Blocks that no honest member makes, and two blocks for one round.

use std::{collections::BTreeSet, time::Duration};

use commonware_consensus::types::Round;
use nidkg::state_root_message;
use rand::{Rng as _, RngCore as _};

use crate::{
    attacker::{Message, OutgoingMessages, ReplacedBlock, State},
    forms::{Block, Name},
    plan::Attack,
};

const HOUR: u64 = Duration::from_secs(3_600).as_nanos() as u64;
/// Calls that a block names beyond any limit.
const TOO_MANY_CALLS: usize = 20_000;
/// Longest report that honest members read, and one more.
const TOO_MANY_REPORTED: usize = 201;
/// Calls of a block, within the limits.
const MANY_CALLS: usize = 500;
const SECOND: u64 = 1_000_000_000;

pub(crate) fn proposed(message: &Message<'_>, state: &mut State) -> Option<OutgoingMessages> {
    let Some(block) = Block::decode(message.bytes) else {
        state.defect("a block that is not read as it was written");
        return None;
    };
    // One that is passed on to a member that lacks it is another member's.
    let is_own = message.to.len() > 1 || state.peers.len() <= 1;
    let sent = malformed_for_victim(message, state, &block)
        .or_else(|| is_own.then(|| attacked(message, state, &block)).flatten());
    state.remember(&block.ingress);
    state.certification = block.certifications.first().copied().or(state.certification.take());
    state.dealing = block.payload.clone().or(state.dealing.take());
    sent
}

fn malformed_for_victim(
    message: &Message<'_>,
    state: &mut State,
    block: &Block,
) -> Option<OutgoingMessages> {
    let victim = message.victim(Attack::MalformedBlocks, state)?;
    let (other, detail) = malformed(state, block);
    state.record_attack(Attack::MalformedBlocks, message, detail, 1);
    Some(message.to_victim(&victim, other))
}

fn attacked(message: &Message<'_>, state: &mut State, block: &Block) -> Option<OutgoingMessages> {
    let (attack, other, detail, to) = if message.is_under(Attack::EquivocatingBlocks) {
        let other = Block { time: block.time + 1, ..block.clone() };
        (Attack::EquivocatingBlocks, other, "two blocks for one round", message.random_half(state))
    } else if block.payload.is_some() && message.is_under(Attack::FalseDealings) {
        let (other, detail) = dealing(state, block)?;
        (Attack::FalseDealings, other, detail, all(message))
    } else if message.is_under(Attack::RefusedBlocks) && state.rng.gen_ratio(2, 3) {
        // Members pass over the rounds of one whose blocks are never agreed on.
        let (other, detail) = refused(state, block)?;
        (Attack::RefusedBlocks, other, detail, all(message))
    } else if message.is_under(Attack::FalseReports) {
        let (other, detail) = reporting(state, block)?;
        (Attack::FalseReports, other, detail, all(message))
    } else {
        return None;
    };
    state.record_attack(attack, message, detail, to.len());
    state.replace(block.digest(), ReplacedBlock { by: other.digest(), to: to.clone(), attack });
    Some(message.split(&to, other.encode()))
}

fn all(message: &Message<'_>) -> BTreeSet<commonware_cryptography::ed25519::PublicKey> {
    message.to.iter().cloned().collect()
}

/// A call that no member has.
fn unknown(state: &mut State, bytes: u32) -> Name {
    Name { id: state.digest(), digest: state.digest(), bytes }
}

/// A block that decodes, and that no honest member votes for.
fn refused(state: &mut State, block: &Block) -> Option<(Block, &'static str)> {
    let mut other = block.clone();
    let detail = match state.rng.gen_range(0..14_u8) {
        0 => {
            other.time = 1;
            "a time before the parent's"
        }
        1 => {
            other.time = block.time.saturating_add(HOUR);
            "a time an hour ahead"
        }
        2 => {
            other.time = u64::MAX;
            "the last time there is"
        }
        3 => {
            other.certifications = vec![false_certification(state)?];
            "a certification that the subnet did not sign"
        }
        4 => {
            other.round = Round::new(block.round.epoch(), block.round.view().next());
            "another round than its own"
        }
        5 => {
            let name = unknown(state, 100);
            other.ingress.extend([name.clone(), name]);
            "a call named twice"
        }
        6 => {
            let name = unknown(state, 100);
            other.ingress.push(name);
            "a call that no member has"
        }
        7 => {
            let name = unknown(state, u32::MAX);
            other.ingress.push(name);
            "a call beyond the limit of bytes"
        }
        8 => {
            other.ingress.extend(state.names.first().cloned());
            other.ingress.extend(state.names.last().cloned());
            "calls of earlier blocks"
        }
        9 => {
            let mut bytes = vec![0; 200];
            state.rng.fill_bytes(&mut bytes);
            other.payload = Some((state.other_place()?.0, bytes));
            "a dealing in another member's name"
        }
        10 => {
            other.payload = Some(state.dealing.clone()?);
            "the dealing of an earlier block"
        }
        11 => {
            let names: Vec<_> = (0..MANY_CALLS).map(|_| unknown(state, 1_000)).collect();
            other.ingress.extend(names);
            "many calls that no member has"
        }
        12 => {
            other.queries = Some((vec![7; 29], vec![(vec![1; 10], [1; 4])]));
            "a report of queries in another node's name"
        }
        _ => {
            other.height = other.height.next();
            "a height that is not the parent's and one"
        }
    };
    Some((other, detail))
}

/// The signature on another state, if there was one, or this node's share.
fn false_certification(state: &mut State) -> Option<([u8; 32], [u8; 48])> {
    let root = state.digest();
    let signature = match state.certification {
        Some((_, signature)) => signature,
        None => state.keys()?.share.sign(&state_root_message(&root)).0,
    };
    Some((root, signature))
}

/// A dealing that is not what it should be.
fn dealing(state: &mut State, block: &Block) -> Option<(Block, &'static str)> {
    let mut other = block.clone();
    let (leader, bytes) = other.payload.as_mut()?;
    let detail = match state.rng.gen_range(0..3_u8) {
        0 => {
            *bytes = state.flipped(bytes);
            "a changed bit in the dealing"
        }
        1 => {
            let half = bytes.len() / 2;
            bytes.truncate(half);
            "half of the dealing"
        }
        _ => {
            *leader = state.other_place()?.0;
            "the dealing in another member's name"
        }
    };
    Some((other, detail))
}

/// A well-formed report of queries that were never made.
fn reporting(state: &mut State, block: &Block) -> Option<(Block, &'static str)> {
    let mut other = block.clone();
    let none = || (vec![], vec![(vec![0, 0, 0, 0, 0, 0, 0, 1, 1, 1], [0; 4])]);
    let (node, canisters) = other.queries.get_or_insert_with(none);
    *node = state.keys()?.node_id.clone();
    let detail = match state.rng.gen_range(0..2_u8) {
        0 => {
            canisters.iter_mut().for_each(|(_, figures)| *figures = [u64::MAX; 4]);
            "as many queries as fit"
        }
        _ => {
            *canisters = (0..200_u8).map(|number| (vec![number; 10], [1 << 40; 4])).collect();
            "queries to canisters that do not exist"
        }
    };
    Some((other, detail))
}

/// What no member reads as a block.
fn malformed(state: &mut State, block: &Block) -> (Vec<u8>, &'static str) {
    let mut other = block.clone();
    match state.rng.gen_range(0..4_u8) {
        0 => {
            let name = unknown(state, 1);
            other.ingress = vec![name; TOO_MANY_CALLS];
            (other.encode(), "more calls than any block may name")
        }
        1 => {
            let canisters = (0..TOO_MANY_REPORTED)
                .map(|number| ((number as u32).to_be_bytes().to_vec(), [SECOND; 4]));
            other.queries = Some((vec![7; 29], canisters.collect()));
            (other.encode(), "more canisters than a report may have")
        }
        2 => {
            let canister = (vec![9; 10], [1; 4]);
            other.queries = Some((vec![7; 29], vec![canister.clone(), canister]));
            (other.encode(), "a report with a canister twice")
        }
        _ => {
            let mut bytes = block.encode();
            bytes.truncate(bytes.len() / 2);
            (bytes, "half of a block")
        }
    }
}
