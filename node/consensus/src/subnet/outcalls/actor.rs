//! The task that agrees on answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use commonware_cryptography::ed25519::PublicKey;
use commonware_macros::select;
use commonware_p2p::{CheckedSender, Receiver, Recipients, Sender};
use commonware_runtime::Clock;
use limits::OUTCALL_RESPONSE_BYTES;
use nidkg::NodeIndex;
use state::{Height, OutcallAnswer, OutcallId};

use super::{
    Config, Message,
    collected::{CollectedShares, combine_shares},
    ingress::{MessageRef, SHARES_MAX, Share},
    send_queue::SendQueue,
};
use crate::{
    OutcallAnswers,
    certifier::SigningCommittee,
    subnet::{
        key,
        peers::{Meter, Rate},
        wire::{self, BoundedList},
    },
};

/// Between two times at which what was said is said again.
const REPEAT: Duration = Duration::from_millis(1_000);
/// Until more is sent, where the network took as much as it does at once.
const SEND_INTERVAL: Duration = Duration::from_millis(20);
/// Shares of this node on one request: on an answer, and on a divergence.
const SHARES_OF_ONE: usize = 2;
/// Largest message in bytes: the largest answer, the overhead of its encoding, and numbers.
const MESSAGE_BYTES_MAX: usize = OUTCALL_RESPONSE_BYTES as usize + 2_048;
/// Shares of requests that this node does not know yet are kept for this range of numbers.
pub(super) const AHEAD: u64 = 64;
/// Each member sends two shares on each request every second, and there may be thousands.
const SHARES_RATE: Rate = Rate { per_second: 10_000, burst: 20_000 };
/// A member that asks alone sends its answers every second until they are agreed on.
const ANSWERS_RATE: Rate =
    Rate { per_second: 4 * OUTCALL_RESPONSE_BYTES, burst: 8 * OUTCALL_RESPONSE_BYTES };
/// Encoded bytes of an answer in addition to its payload.
const ANSWER_OVERHEAD_BYTES: u64 = 64;

pub(in crate::subnet) struct Agreement<S> {
    config: Config<S>,
    /// Whose shares are collected.
    committee: Option<(Height, Arc<SigningCommittee>)>,
    collected: BTreeMap<OutcallId, CollectedShares>,
    /// Members whose share proved false; nothing of this committee's counts that they say.
    refused: BTreeSet<NodeIndex>,
    queue: SendQueue,
    /// The network took as much as it does at once, and there is more.
    has_more: bool,
    shares_heard: Meter,
    answers_heard: Meter,
}

impl<S: Sender<PublicKey = PublicKey>> Agreement<S> {
    pub(in crate::subnet) fn new(config: Config<S>) -> Self {
        config.outcalls.set_pool(config.pool.clone());
        Self {
            config,
            committee: None,
            collected: BTreeMap::new(),
            refused: BTreeSet::new(),
            queue: SendQueue::new(),
            has_more: false,
            shares_heard: Meter::new(SHARES_RATE),
            answers_heard: Meter::new(ANSWERS_RATE),
        }
    }

    /// Ends with the network.
    pub(in crate::subnet) async fn run(
        mut self,
        clock: impl Clock,
        mut receiver: impl Receiver<PublicKey = PublicKey>,
    ) {
        let outcalls = self.config.outcalls.clone();
        let mut repeat_at = clock.current() + REPEAT;
        loop {
            let send_at = Some(clock.current() + SEND_INTERVAL).filter(|_| self.has_more);
            let wake_at = send_at.unwrap_or(repeat_at).min(repeat_at);
            select! {
                () = outcalls.work_available.notified() => self.refresh(false),
                message = receiver.recv() => match message {
                    Ok((from, message)) => self.handle_message(&from, message.as_ref(), clock.current()),
                    Err(_) => return,
                },
                () = clock.sleep_until(wake_at) => {
                    let again = clock.current() >= repeat_at;
                    if again {
                        repeat_at = clock.current() + REPEAT;
                        self.refresh(true);
                    } else {
                        self.send_due();
                    }
                },
            }
        }
    }

    /// Signs the answers that this node knows and has not signed, and sends the shares; all shares,
    /// if `again`.
    fn refresh(&mut self, again: bool) {
        let newest = self.config.schedule.newest();
        if newest.as_ref().map(|(from, _)| *from) != self.committee.as_ref().map(|(from, _)| *from)
        {
            // A share of one committee is none of another.
            self.collected.clear();
            self.refused.clear();
            self.committee = newest;
        }
        let open = self.config.outcalls.open_requests();
        let next = self.config.outcalls.next_id();
        self.collected.retain(|id, _| open.contains_key(id) || *id >= next);
        let me = (self.config.node_ids)(&self.config.me);
        self.queue.retain(|id| open.contains_key(id));
        for (id, request) in &open {
            let is_new = self.sign(*id);
            if (is_new || again) && request.node.is_some() && request.node == me {
                self.queue.add_answer(*id);
            }
            self.conclude(*id);
        }
        if again {
            let own = self.committee.as_ref().and_then(|(_, signers)| signers.share.as_ref());
            let collected = &self.collected;
            let is_signed = |id: &OutcallId| {
                let collected = collected.get(id).zip(own.map(|own| own.index));
                collected.is_some_and(|(collected, own)| collected.is_signed_by(own))
            };
            self.queue.repeat(open.into_keys().filter(is_signed));
        }
        self.send_due();
    }

    fn send_due(&mut self) {
        self.has_more = !(self.send_shares() && self.send_answers());
    }

    /// Whether all shares are on their way.
    fn send_shares(&mut self) -> bool {
        let Some((from, _)) = self.committee else { return true };
        while self.queue.next_share().is_some() {
            let Ok(sender) = self.config.sender.check(Recipients::All) else { return false };
            let mut shares = Vec::new();
            while shares.len() + SHARES_OF_ONE <= SHARES_MAX
                && let Some(id) = self.queue.next_share()
            {
                let committee = self.committee.as_ref().map(|(_, signers)| &**signers);
                shares.extend(own_shares(
                    &self.config.outcalls,
                    committee,
                    self.collected.get(&id),
                    id,
                ));
                self.queue.mark_share_sent(id);
            }
            if !shares.is_empty() {
                send(sender, &MessageRef::Shares { from, shares: &BoundedList(shares) });
            }
        }
        true
    }

    /// Sends the answers that may be sent now. Returns whether all of them were.
    fn send_answers(&mut self) -> bool {
        while let Some(id) = self.queue.next_answer() {
            let Some(bytes) =
                self.config.outcalls.with_stored_answer(id, |answer| answer.payload.len())
            else {
                self.queue.forget_answer(id);
                continue;
            };
            let needed = bytes + ANSWER_OVERHEAD_BYTES;
            if !self.queue.has_room(needed) {
                return true;
            }
            let Ok(sender) = self.config.sender.check(Recipients::All) else { return false };
            self.config
                .outcalls
                .with_stored_answer(id, |answer| send(sender, &MessageRef::Answer(answer)));
            self.queue.mark_answer_sent(id, needed);
        }
        true
    }

    /// Signs the answer this node knows. Whether it did not yet.
    fn sign(&mut self, id: OutcallId) -> bool {
        let Some((_, signers)) = self.committee.clone() else { return false };
        let (Some(own), Some(digest)) = (&signers.share, self.config.outcalls.digest(id)) else {
            return false;
        };
        let collected = self.collected.entry(id).or_default();
        if collected.answers.contains_key(&own.index) {
            return false;
        }
        let share = own.sign(&OutcallAnswer::message(&digest));
        collected.answers.insert(own.index, (digest, share));
        collected.verified.insert(own.index);
        self.queue.add_new(id);
        true
    }

    fn handle_message(&mut self, from: &PublicKey, bytes: &[u8], now: SystemTime) {
        let Some(message) = wire::decode(bytes, MESSAGE_BYTES_MAX) else {
            self.config.scorer.report_fault(from, "a message about outcalls that does not decode");
            return;
        };
        match message {
            Message::Shares { from: begins, shares } => {
                if !self.shares_heard.spend(from, shares.0.len() as u64, now) {
                    self.config.scorer.report_excess(from, "shares of answers to outcalls", now);
                    return;
                }
                if self.committee.as_ref().is_some_and(|(mine, _)| *mine == begins)
                    && let Some(place) = self.place(from)
                {
                    shares.0.into_iter().for_each(|share| self.add_share(place, share));
                    self.send_due();
                }
            }
            Message::Answer(answer) => {
                if !self.answers_heard.spend(from, bytes.len() as u64, now) {
                    self.config.scorer.report_excess(from, "answers to outcalls", now);
                    return;
                }
                let asks =
                    self.config.outcalls.open_request(answer.id).and_then(|request| request.node);
                if let Some(asker) = asks.filter(|_| asks == (self.config.node_ids)(from))
                    && self.config.outcalls.add_foreign_answer(answer, asker)
                {
                    self.refresh(false);
                }
            }
        }
    }

    fn place(&self, member: &PublicKey) -> Option<NodeIndex> {
        let (_, signers) = self.committee.as_ref()?;
        let place = signers.members.iter().position(|key| key[..] == member[..])?;
        u32::try_from(place).ok().map(NodeIndex)
    }

    fn add_share(&mut self, place: NodeIndex, Share { id, digest, share }: Share) {
        let is_open = self.config.outcalls.open_request(id).is_some();
        let next = self.config.outcalls.next_id();
        let is_ahead = id >= next && id.0 - next.0 < AHEAD;
        if (!is_open && !is_ahead) || self.refused.contains(&place) {
            return;
        }
        let diverged =
            divergence(&self.config.outcalls, id).is_some_and(|answer| answer.digest() == digest);
        let collected = self.collected.entry(id).or_default();
        if collected.refused.contains(&place) {
            return;
        }
        let before = collected.answers.len() + collected.divergence.len();
        // The first counts.
        if diverged {
            collected.divergence.entry(place).or_insert(share);
        } else {
            collected.answers.entry(place).or_insert((digest, share));
        }
        let is_new = collected.answers.len() + collected.divergence.len() > before;
        if is_new && is_open {
            self.conclude(id);
        }
    }

    /// Whether enough members agree on an answer to a request, or that there is none.
    fn conclude(&mut self, id: OutcallId) {
        let Some((_, signers)) = self.committee.clone() else { return };
        let Some(divergence) = divergence(&self.config.outcalls, id) else { return };
        let threshold = signers.committee.threshold as usize;
        let Some(collected) = self.collected.get_mut(&id).filter(|it| !it.submitted) else {
            return;
        };
        if collected.signed.is_none() {
            collected.refuse(&self.refused.iter().copied().collect::<Vec<_>>());
            collected.reclassify_divergence(&divergence);
            collected.signed = collected.signed_answer(&signers);
        }
        let can_agree = collected.signed.is_some() || collected.can_agree(&signers);
        if let Some((digest, signature)) = collected.signed
            && self.config.outcalls.digest(id) == Some(digest)
        {
            collected.submitted = self.config.outcalls.submit_signed(id, &signature);
        }
        let refused = collected.refused.clone();
        self.refuse_members(&refused, &signers);
        let Some(collected) = self.collected.get_mut(&id).filter(|_| !can_agree) else { return };
        let digest = divergence.digest();
        let message = OutcallAnswer::message(&digest);
        let own = signers.share.as_ref();
        if let Some(own) = own.filter(|own| !collected.divergence.contains_key(&own.index)) {
            let share = own.sign(&message);
            collected.divergence.insert(own.index, share);
            self.queue.add_new(id);
        }
        let Some(collected) = self.collected.get_mut(&id) else { return };
        if collected.divergence.len() < threshold {
            return;
        }
        match combine_shares(&signers, &message, &collected.divergence) {
            Ok(signature) => {
                collected.submitted =
                    self.config.outcalls.submit_divergence(&divergence, &signature);
            }
            Err(false_ones) => {
                collected.refuse(&false_ones);
                self.refuse_members(&false_ones.into_iter().collect(), &signers);
            }
        }
    }

    /// These members signed what they did not say: no honest one does.
    fn refuse_members(&mut self, places: &BTreeSet<NodeIndex>, signers: &SigningCommittee) {
        for place in places {
            if !self.refused.insert(*place) {
                continue;
            }
            let key = signers.members.get(place.0 as usize).map(|key| key::members(&[*key]));
            if let Some(Ok(member)) = key
                && let Some(member) = member.iter().next()
            {
                self.config.scorer.report_fault(member, "a false share of an answer to an outcall");
            }
        }
    }
}

/// Peers that are not connected miss the message; it is repeated.
fn send(sender: impl CheckedSender<PublicKey = PublicKey>, message: &MessageRef) {
    if sender.recipients().is_empty() {
        return;
    }
    if let Some(bytes) = wire::encode(message, "a message about outcalls") {
        sender.send(bytes, false);
    }
}

fn divergence(outcalls: &OutcallAnswers, id: OutcallId) -> Option<OutcallAnswer> {
    let open = outcalls.open_request(id)?;
    Some(OutcallAnswer::no_consensus(id, open.until))
}

/// What this node signed of a request.
fn own_shares(
    outcalls: &OutcallAnswers,
    committee: Option<&SigningCommittee>,
    collected: Option<&CollectedShares>,
    id: OutcallId,
) -> Vec<Share> {
    let own = committee.and_then(|signers| signers.share.as_ref());
    let (Some(own), Some(collected)) = (own, collected) else { return vec![] };
    let answer = collected.answers.get(&own.index).copied();
    let diverged = collected.divergence.get(&own.index).copied();
    let diverged = diverged.and_then(|share| Some((divergence(outcalls, id)?.digest(), share)));
    let shares = answer.into_iter().chain(diverged);
    shares.map(|(digest, share)| Share { id, digest, share }).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
