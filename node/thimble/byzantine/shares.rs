//! False shares and answers outside agreement: of state roots, outcalls, calls and states.

use consensus::ChannelName;
use nidkg::{SignatureShare, state_root_message};
use rand::{Rng as _, RngCore as _};
use state::{Height, OutcallAnswer, Payload};

use crate::{
    attacker::{Message, OutgoingMessages, State},
    forms::{self, CallMessage, NextBlock, OutcallMessage, RootMessage, SyncMessage},
    plan::Attack,
};

fn read<'a, T: serde::Deserialize<'a>>(message: &'a Message<'_>, state: &mut State) -> Option<T> {
    let read = forms::read(message.bytes);
    if read.is_none() {
        state.defect(&format!("a message that is of no known form: {:?}", message.channel));
    }
    read
}

/// The same to all in place of the message.
fn to_all(message: &Message<'_>, bytes: Vec<u8>) -> OutgoingMessages {
    vec![(message.to.to_vec(), bytes)]
}

pub(crate) fn root(message: &Message<'_>, state: &mut State) -> Option<OutgoingMessages> {
    let mut forged: RootMessage = read(message, state)?;
    match &mut forged {
        RootMessage::Share { root, share, .. } => {
            let (attack, detail) = if message.is_under(Attack::OtherRoots) {
                *root = state.digest();
                *share = state.keys()?.share.sign(&state_root_message(root));
                (Attack::OtherRoots, "another root, signed")
            } else if message.is_under(Attack::FalseRootShares) {
                match state.rng.gen_range(0..3_u8) {
                    0 => {
                        let other = state.digest();
                        *share = state.keys()?.share.sign(&state_root_message(&other));
                        (Attack::FalseRootShares, "a share on another root")
                    }
                    1 => {
                        let mut bytes = [0; 48];
                        state.rng.fill_bytes(&mut bytes);
                        *share = SignatureShare(bytes);
                        (Attack::FalseRootShares, "a share that is no point")
                    }
                    _ => {
                        // The point at infinity.
                        let mut bytes = [0; 48];
                        bytes[0] = 0xc0;
                        *share = SignatureShare(bytes);
                        (Attack::FalseRootShares, "the point at infinity")
                    }
                }
            } else if message.is_under(Attack::FalseCertificates) {
                return false_root_certificate(message, state, &forged);
            } else {
                return None;
            };
            state.record_attack(attack, message, detail, message.to.len());
            Some(to_all(message, forms::written(&forged)))
        }
        RootMessage::Limits { limits, .. } if message.is_under(Attack::FalseLimits) => {
            limits.iter_mut().for_each(|(_, value)| *value = value.wrapping_mul(3));
            state.record_attack(
                Attack::FalseLimits,
                message,
                "three times as much",
                message.to.len(),
            );
            Some(to_all(message, forms::written(&forged)))
        }
        RootMessage::Awaited { share, .. } if message.is_under(Attack::FalseRootShares) => {
            let other = state.digest();
            *share = state.keys()?.share.sign(&state_root_message(&other));
            state.record_attack(
                Attack::FalseRootShares,
                message,
                "a share on another root than the awaited",
                message.to.len(),
            );
            Some(to_all(message, forms::written(&forged)))
        }
        RootMessage::Certificate { .. }
        | RootMessage::Awaited { .. }
        | RootMessage::Limits { .. } => None,
    }
}

/// A certificate that the subnet did not sign, to the victim, in addition to the share.
fn false_root_certificate(
    message: &Message<'_>,
    state: &mut State,
    forged: &RootMessage,
) -> Option<OutgoingMessages> {
    let RootMessage::Share { height, root, share, .. } = forged else { return None };
    let victim = message.victim(Attack::FalseCertificates, state)?;
    let signature = nidkg::Signature(share.0);
    let false_one = RootMessage::Certificate { height: *height, root: *root, signature };
    state.record_attack(Attack::FalseCertificates, message, "a share in place of a signature", 1);
    let false_one = forms::written(&false_one);
    Some(vec![(message.to.to_vec(), message.bytes.to_vec()), (vec![victim], false_one)])
}

pub(crate) fn outcall(message: &Message<'_>, state: &mut State) -> Option<OutgoingMessages> {
    if !message.is_under(Attack::OtherAnswers) {
        return None;
    }
    let mut forged: OutcallMessage = read(message, state)?;
    let detail = match &mut forged {
        OutcallMessage::Shares { shares, .. } => {
            if shares.is_empty() {
                return None;
            }
            for one in shares.iter_mut() {
                one.digest = state.digest();
                one.share = state.keys()?.share.sign(&OutcallAnswer::message(&one.digest));
            }
            "shares on other answers"
        }
        OutcallMessage::Answer(answer) => {
            answer.payload = Payload::Reply(b"something else".to_vec());
            "another answer of one member"
        }
    };
    state.record_attack(Attack::OtherAnswers, message, detail, message.to.len());
    Some(to_all(message, forms::written(&forged)))
}

pub(crate) fn calls(message: &Message<'_>, state: &mut State) -> Option<OutgoingMessages> {
    let mut forged: CallMessage = read(message, state)?;
    match &mut forged {
        CallMessage::Response(_) if message.is_under(Attack::WithheldCalls) => {
            state.record_attack(Attack::WithheldCalls, message, "calls that were asked for", 0);
            return Some(vec![]);
        }
        CallMessage::Announce(_) if message.is_under(Attack::WithheldCalls) => {
            state.record_attack(Attack::WithheldCalls, message, "calls of clients", 0);
            return Some(vec![]);
        }
        _ => {}
    }
    let victim = message.victim(Attack::FalseCalls, state)?;
    let detail = match &mut forged {
        CallMessage::Announce(offered) => {
            for signed in offered.iter_mut() {
                signed.envelope = state.flipped(&signed.envelope).into();
            }
            "an offer with a changed bit in each envelope"
        }
        CallMessage::Response(given) => {
            for one in given.iter_mut() {
                one.signed.envelope = state.flipped(&one.signed.envelope).into();
            }
            "other bytes than those named"
        }
        CallMessage::Request { height, names } => {
            *height = Some(Height(u64::MAX));
            for (id, digest, _) in names.iter_mut() {
                (id.0, *digest) = (state.digest(), state.digest());
            }
            "a request for calls that do not exist"
        }
    };
    state.record_attack(Attack::FalseCalls, message, detail, 1);
    Some(message.to_victim(&victim, forms::written(&forged)))
}

/// What was asked for of the chain, and what is asked for.
pub(crate) fn fetched(message: &Message<'_>, state: &mut State) -> Option<OutgoingMessages> {
    // Members cut off who answers falsely: a few go through.
    if !message.is_under(Attack::FalseFetches) || !state.rng.gen_ratio(1, 4) {
        return None;
    }
    state.record_attack(Attack::FalseFetches, message, "a changed bit", message.to.len());
    let flipped = state.flipped(message.bytes);
    Some(to_all(message, flipped))
}

pub(crate) fn sync(message: &Message<'_>, state: &mut State) -> Option<OutgoingMessages> {
    debug_assert_eq!(message.channel, ChannelName::Sync);
    if !message.is_under(Attack::FalseStates) {
        return None;
    }
    let mut forged: SyncMessage = read(message, state)?;
    let detail = match &mut forged {
        SyncMessage::Answer { next, offer } => match state.rng.gen_range(0..5_u8) {
            0 => {
                *next = NextBlock::Gone;
                "a block that is kept is said to be gone"
            }
            1 => {
                *next = NextBlock::Kept;
                *offer = None;
                "no state is offered"
            }
            choice => {
                let offer = offer.as_mut()?;
                match choice {
                    2 => offer.certificate = state.flipped(&offer.certificate),
                    3 => {
                        let (voters, _) = offer.key.as_mut()?;
                        *voters = state.flipped(voters);
                    }
                    _ => offer.finalization = state.flipped(&offer.finalization),
                }
                "an offer with a changed bit"
            }
        },
        SyncMessage::Chunk { bytes, .. } => {
            *bytes = state.flipped(bytes);
            "a chunk with a changed bit"
        }
        SyncMessage::Ask { .. } | SyncMessage::Get { .. } | SyncMessage::Not { .. } => return None,
    };
    state.record_attack(Attack::FalseStates, message, detail, message.to.len());
    Some(to_all(message, forms::written(&forged)))
}
