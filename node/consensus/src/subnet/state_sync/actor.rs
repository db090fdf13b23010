//! The task of state sync.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use commonware_codec::{Encode as _, EncodeSize as _};
use commonware_consensus::{
    Epochable as _,
    types::{Epocher as _, Height as EngineHeight},
};
use commonware_cryptography::{Digestible as _, ed25519::PublicKey};
use commonware_macros::select;
use commonware_p2p::{Receiver, Recipients, Sender};
use commonware_parallel::Sequential;
use commonware_runtime::{Clock, Spawner};
use futures::StreamExt as _;
use nidkg::state_root_message;
use rand_core::CryptoRng;
use state::{Height, ManifestClaim, SubnetKey};

use super::{
    Command, Config, FLOOR_DEPTH, Floor, SyncTarget,
    fetch::ChunkFetcher,
    ingress::{BlockAvailability, Message, WireKey, WireOffer, encode},
    serve::ChunkServer,
};
use crate::{
    CHUNK_NAME_BYTES_MAX, FetchedChunks, StateOffer,
    subnet::{Input, block::Block, key::Scheme, published::SubnetProgress, voters::Voters, wire},
};

/// A node that is behind asks whether the next block is kept anywhere, after this time without a
/// block.
const STALL: Duration = Duration::from_secs(5);
/// Answers that did not come within this time do not count.
const ANSWERS: Duration = Duration::from_secs(2);
/// Time to wait for a block while a peer claims to keep it; limited, as the peer may be faulty.
const DOUBT: Duration = Duration::from_secs(40);
/// Between two looks.
const TICK: Duration = Duration::from_millis(250);
/// A peer's questions are not answered more often.
const ANSWER_AGAIN: Duration = Duration::from_millis(500);
/// Longest message: an offer or a chunk.
const MESSAGE_BYTES_MAX: usize = 512 << 10;
/// A block with more is not offered, but the one before it: an answer must fit a message.
const OFFER_BLOCK_BYTES_MAX: usize = 400 << 10;

/// The part of this node's offer that takes looking for: the floor above a state.
struct OwnOffer {
    height: Height,
    /// Of the finalization.
    epoch: u64,
    block: Vec<u8>,
    finalization: Vec<u8>,
}

struct Answer {
    next: BlockAvailability,
    behind: Option<SyncTarget>,
}

enum Stage {
    /// Nothing is asked; not before then, either.
    Quiet(Option<SystemTime>),
    Asking {
        next: Height,
        until: SystemTime,
        answers: BTreeMap<usize, Answer>,
    },
    Fetching(Box<ChunkFetcher>),
}

/// Notices that this node is behind, and fetches a state from peers; serves this node's.
pub(in crate::subnet) struct StateSync<S> {
    config: Config<S>,
    /// The members by place, then those who are to be members next: they may need the state, and
    /// may have it.
    peers: Vec<PublicKey>,
    /// How many of them are members.
    members: usize,
    /// This node's place among them.
    place: usize,
    serving: Option<ChunkServer>,
    answered: BTreeMap<usize, SystemTime>,
    own: Option<OwnOffer>,
    stage: Stage,
    /// The height this node had reached, and the time since which it has not advanced.
    reached: (Height, SystemTime),
    last_logged: Option<SystemTime>,
}

impl<S: Sender<PublicKey = PublicKey>> StateSync<S> {
    pub(in crate::subnet) fn new<E: Clock + Spawner>(context: &E, config: Config<S>) -> Self {
        let bytes_per_second = config.deps.limits.sync_bytes_per_second;
        let serving = config.deps.states.clone().map(|states| {
            ChunkServer::start(context, states, config.sender.clone(), bytes_per_second)
        });
        let mut state_sync = Self {
            peers: Vec::new(),
            members: 0,
            place: 0,
            serving,
            answered: BTreeMap::new(),
            own: None,
            stage: Stage::Quiet(None),
            reached: (Height(0), context.current()),
            last_logged: None,
            config,
        };
        state_sync.update_peers();
        state_sync
    }

    fn update_peers(&mut self) {
        let mut peers = self.config.deps.resharing.members();
        let members = peers.len();
        let next = self.config.deps.resharing.next_members();
        peers.extend(
            next.into_iter().filter(|next| !peers[..members].contains(next)).collect::<Vec<_>>(),
        );
        if peers != self.peers {
            self.answered.clear();
            self.place =
                peers.iter().position(|peer| *peer == self.config.deps.me).unwrap_or(peers.len());
            (self.members, self.peers) = (members, peers);
        }
    }

    /// Ends when the node does.
    pub(in crate::subnet) async fn run<E: Clock + CryptoRng>(
        mut self,
        mut context: E,
        mut receiver: impl Receiver<PublicKey = PublicKey>,
    ) {
        let mut tick_at = context.current() + TICK;
        loop {
            select! {
                message = receiver.recv() => match message {
                    Ok((from, message)) => self.handle_message(&mut context, from, message.as_ref()).await,
                    Err(_) => return,
                },
                command = self.config.commands_rx.next() => match command {
                    Some(command) => self.command(command, context.current()),
                    None => return,
                },
                () = context.sleep_until(tick_at) => {
                    tick_at = context.current() + TICK;
                    if matches!(self.stage, Stage::Quiet(_)) {
                        self.update_peers();
                    }
                    self.check_lag(context.current());
                },
            }
            self.request_chunks(context.current());
        }
    }

    async fn handle_message<E: Clock + CryptoRng>(
        &mut self,
        context: &mut E,
        from: PublicKey,
        bytes: &[u8],
    ) {
        let Some(place) = self.peers.iter().position(|peer| *peer == from) else { return };
        let Some(message) = wire::decode(bytes, MESSAGE_BYTES_MAX) else {
            self.config.scorer.report_fault(&from, "a message about states that does not decode");
            return;
        };
        let now = context.current();
        match message {
            Message::Ask { next } => self.answer_query(place, from, next, now).await,
            Message::Answer { next, offer } => {
                // Signatures are only verified for those who were asked, once each.
                let waiting = matches!(&self.stage, Stage::Asking { answers, .. } if !answers.contains_key(&place));
                if waiting {
                    let behind = offer.and_then(|offer| {
                        let behind = self.verify(context, &offer);
                        if behind.is_none() {
                            tracing::warn!(peer = %from, "a peer offers a state that the subnet did not certify, or this version cannot read");
                        }
                        behind
                    });
                    if let Stage::Asking { answers, .. } = &mut self.stage {
                        answers.insert(place, Answer { next, behind });
                    }
                }
            }
            Message::Get { height, name } => {
                if let Some(serving) =
                    self.serving.as_mut().filter(|_| name.len() <= CHUNK_NAME_BYTES_MAX)
                {
                    serving.enqueue(from, height, name);
                }
            }
            Message::Chunk { height, name, bytes } => {
                if let Stage::Fetching(fetching) = &mut self.stage {
                    fetching.add_chunk(place, height, name, bytes, now);
                }
            }
            Message::NotFound { height, name } => {
                if let Stage::Fetching(fetching) = &mut self.stage {
                    fetching.chunk_not_found(place, height, name, now);
                }
            }
        }
    }

    /// Whether the block is kept here, and what state can be had.
    async fn answer_query(&mut self, place: usize, from: PublicKey, next: Height, now: SystemTime) {
        let again = self
            .answered
            .get(&place)
            .is_some_and(|before| now.duration_since(*before).unwrap_or_default() < ANSWER_AGAIN);
        if again {
            return;
        }
        self.answered.insert(place, now);
        let next = if next > self.config.deps.published.delivery_rx.borrow().height {
            BlockAvailability::Unknown
        } else {
            let block = self.config.marshal.get_block(EngineHeight::new(next.0)).await;
            let logged = self.config.deps.log.lock().first();
            let kept = |block: &Block| {
                block.ingress.is_empty() || logged.is_some_and(|first| first <= next)
            };
            if block.is_some_and(|block| kept(block.inner())) {
                BlockAvailability::Kept
            } else {
                BlockAvailability::Gone
            }
        };
        let offered = self.config.deps.states.as_ref().and_then(|states| states.offer());
        let offered = match offered {
            Some(offered) if self.find_floor(offered.height).await => {
                if let Some(serving) =
                    self.serving.as_ref().filter(|_| next == BlockAvailability::Gone)
                {
                    serving.leases.renew(&from, offered.height, now);
                }
                Some(offered)
            }
            _ => None,
        };
        // The certificate is of a state that is newer than the one that is offered: it may prove
        // the keys of later epochs only.
        let proved = offered.as_ref().zip(self.own.as_ref()).filter(|(offered, own)| {
            let voters = match &offered.key {
                Some(proof) => Voters::decode(&proof.voters),
                None => Some(self.config.deps.first_voters.clone()),
            };
            voters.is_some_and(|voters| voters.epochs().any(|epoch| epoch == own.epoch))
        });
        let offer = proved.map(|(offered, own)| WireOffer {
            certificate: &offered.certificate,
            key: offered.key.as_ref().map(|it| WireKey { voters: &it.voters, rest: it.rest }),
            block: &own.block,
            finalization: &own.finalization,
        });
        let message = Message::Answer { next, offer };
        send(&mut self.config.sender, Recipients::One(from), &message);
    }

    /// The newest finalization at or below the block behind the state. True if there is one.
    async fn find_floor(&mut self, state: Height) -> bool {
        if self.own.as_ref().is_some_and(|own| own.height == state) {
            return true;
        }
        for height in (state.0.saturating_sub(FLOOR_DEPTH) + 1..=state.0 + 1).rev() {
            let height = EngineHeight::new(height);
            if let Some(finalization) = self.config.marshal.get_finalization(height).await
                && let Some(block) = self.config.marshal.get_block(height).await
                && block.inner().encode_size() <= OFFER_BLOCK_BYTES_MAX
            {
                self.own = Some(OwnOffer {
                    height: state,
                    epoch: finalization.epoch().get(),
                    block: block.inner().encode().to_vec(),
                    finalization: finalization.encode().to_vec(),
                });
                return true;
            }
        }
        false
    }

    /// Verifies certificates of this epoch, by the keys that the certificate of the offer proves.
    fn verifier(&self, claim: &ManifestClaim, offer: &WireOffer<'_>, epoch: u64) -> Option<Scheme> {
        let deps = &self.config.deps;
        let voters = match (&claim.key, offer.key) {
            (None, _) => deps.first_voters.clone(),
            (Some(digest), Some(WireKey { voters, rest })) => {
                let is_it = SubnetKey::digest_of(voters, &rest) == *digest;
                is_it.then(|| Voters::decode(voters)).flatten()?
            }
            (Some(_), None) => return None,
        };
        voters.verifier(&deps.namespace, epoch).ok().flatten()
    }

    /// An offer of which everything holds.
    fn verify<E: CryptoRng>(&self, rng: &mut E, offer: &WireOffer<'_>) -> Option<SyncTarget> {
        let claim = self.config.deps.states.as_ref()?.read_offer(offer.certificate)?;
        let (key, message) = (&self.config.deps.public_key, state_root_message(&claim.tree));
        if !nidkg::verify(key, &message, &claim.signature) {
            return None;
        }
        let (block, finalization) = offer.decode(&self.config.deps.block_bounds())?;
        let height = block.height.get();
        let fits = height <= claim.height.0 + 1 && height + FLOOR_DEPTH > claim.height.0;
        // The state has the keys of its epoch and of the one before, with which the finalization is
        // verified again at the next start.
        let epoch_of = |height: u64| {
            let bounds = self.config.deps.epocher.containing(EngineHeight::new(height))?;
            Some(bounds.epoch().get())
        };
        let epoch = finalization.epoch().get();
        let state_epoch = epoch_of(claim.height.0.saturating_add(1))?;
        let is_known = epoch_of(height)? == epoch && state_epoch <= epoch.saturating_add(1);
        let scheme = self.verifier(&claim, offer, epoch)?;
        let holds = fits
            && is_known
            && height > 0
            && finalization.proposal.payload == block.digest()
            && finalization.verify(rng, &scheme, &Sequential);
        let floor = Floor { state: claim.height, height: Height(height), finalization };
        holds.then_some(SyncTarget {
            offer: StateOffer { height: claim.height, root: claim.root },
            floor,
        })
    }

    fn command(&mut self, command: Command, now: SystemTime) {
        match (command, &mut self.stage) {
            (Command::Fetch(want, reply_tx), Stage::Fetching(fetching)) => {
                for source in &want.faulty_sources {
                    if let Some(peer) = self.peers.get(source.0) {
                        tracing::warn!(%peer, height = fetching.offer.height.0, "a peer sent a chunk that is not of the certified state: it is not asked again");
                    }
                }
                fetching.set_request(want, reply_tx, now);
            }
            (Command::Fetch(_, reply_tx), _) => {
                let _ = reply_tx.send(FetchedChunks { over: true, ..FetchedChunks::default() });
            }
            (Command::Abandon, stage) => *stage = Stage::Quiet(Some(now + STALL)),
        }
    }

    /// Requests wanted chunks, and passes on those that arrived.
    fn request_chunks(&mut self, now: SystemTime) {
        let Stage::Fetching(fetching) = &mut self.stage else { return };
        while let Some((place, height, name)) = fetching.next(now) {
            let to = Recipients::One(self.peers[place].clone());
            if !send(&mut self.config.sender, to, &Message::Get { height, name: &name }) {
                fetching.unsent(&name, now);
            }
        }
        let continues = fetching.reply_to_driver(now);
        self.config.state_sync_tx.send_replace(continues.then(|| fetching.progress()));
        if !continues {
            tracing::warn!(
                height = fetching.offer.height.0,
                "no peer shows the state any more that was being fetched; what was fetched is \
                 kept for the next"
            );
            self.stage = Stage::Quiet(None);
        }
    }

    /// Notices that this node is behind and gets no blocks.
    fn check_lag(&mut self, now: SystemTime) {
        let published = &self.config.deps.published;
        let reached = published.delivery_rx.borrow().height;
        let SubnetProgress { finalised, executed, .. } = published.progress();
        let faulty_max = (self.members.saturating_sub(1)) / 3;
        let ahead = finalised.max(published.signed_by(faulty_max + 1));
        if reached != self.reached.0 || ahead <= reached {
            self.reached = (reached, now);
        }
        let still = now.duration_since(self.reached.1).unwrap_or_default();
        match &mut self.stage {
            Stage::Quiet(not_before) => {
                if still < STALL || not_before.is_some_and(|time| now < time) {
                    return;
                }
                let next = Height(reached.0 + 1);
                self.stage = Stage::Asking { next, until: now + ANSWERS, answers: BTreeMap::new() };
                send(&mut self.config.sender, Recipients::All, &Message::Ask { next });
            }
            Stage::Asking { next, until, answers } => {
                if now < *until && answers.len() + 1 < self.peers.len() {
                    return;
                }
                // Only members vouch for what they say by their number.
                let members = self.members;
                let count = |what| {
                    answers.range(..members).filter(|(_, answer)| answer.next == what).count()
                };
                let (kept, gone) = (count(BlockAvailability::Kept), count(BlockAvailability::Gone));
                let lost = gone > faulty_max && (kept == 0 || still >= DOUBT);
                let best = answers
                    .values()
                    .filter_map(|answer| answer.behind.as_ref())
                    .filter(|behind| {
                        behind.offer.height > executed && behind.offer.height > reached
                    })
                    .max_by_key(|behind| behind.offer.height)
                    .cloned();
                let answered: Vec<_> =
                    (0..self.peers.len()).map(|place| answers.contains_key(&place)).collect();
                let next = *next;
                self.stage = Stage::Quiet(Some(now + STALL));
                if lost {
                    self.start_fetching(best, &answered, next, ahead, now);
                }
            }
            Stage::Fetching(_) => {}
        }
    }

    fn start_fetching(
        &mut self,
        best: Option<SyncTarget>,
        answered: &[bool],
        next: Height,
        ahead: Height,
        now: SystemTime,
    ) {
        let Some(behind) = best else {
            let due = self
                .last_logged
                .is_none_or(|last| now.duration_since(last).unwrap_or_default() >= 6 * STALL);
            if due {
                self.last_logged = Some(now);
                tracing::warn!(
                    next = next.0,
                    subnet = ahead.0,
                    "no peer that answers keeps the next block, and none offers a newer state \
                     yet: waiting for one"
                );
            }
            return;
        };
        let offer = behind.offer;
        // A driver that is busy is notified again.
        if self.config.input_tx.try_send(Input::Behind(Box::new(behind))).is_ok() {
            tracing::warn!(
                next = next.0,
                subnet = ahead.0,
                height = offer.height.0,
                root = hex::encode(offer.root),
                "the blocks this node needs next are not kept any more: it fetches the state of a \
                 later height"
            );
            self.stage =
                Stage::Fetching(Box::new(ChunkFetcher::new(offer, answered, self.place, now)));
        }
    }
}

/// Whether the message is on its way.
fn send<S: Sender<PublicKey = PublicKey>>(
    sender: &mut S,
    to: Recipients<PublicKey>,
    message: &Message<'_>,
) -> bool {
    encode(message).is_some_and(|message| !sender.send(to, message, false).is_empty())
}
