//! Resharing as blocks advance: the current and the next holders of the subnet's key.
//!
//! Everything here follows from the final blocks: the [`Summary`] changes with them, is written
//! with the block that changed it, and is part of the state from there on. Only the shares are
//! specific to each node, behind [`KeyStore`].
//!
//! Arithmetic runs on threads that may block, in the key generation's own pool with its share of
//! the cores. Votes do not wait for it, except votes on a block that carries a dealing.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use commonware_consensus::{
    Heightable as _,
    types::{Epoch, Epocher as _, FixedEpocher, Height as EngineHeight},
};
use commonware_cryptography::{
    Digestible as _,
    ed25519::{PrivateKey, PublicKey},
};
use commonware_runtime::{Clock, Spawner};
use commonware_utils::sync::Mutex;
use genesis::{CheckedPayload, NodeRecord, Summary};
use nidkg::{Engine, EngineConfig, NodeIndex, SecretShare};
use rand::{SeedableRng as _, rngs::StdRng};
use rand_core::CryptoRng;
use state::{Height, NodeInfo, SubnetKey};

use super::{
    StartError,
    block::{Block, Digest, KeyPayload, VerdictError},
    key::{self, Scheme},
    voters::Voters,
};
use crate::certifier::SigningCommittee;

/// This node's shares of the subnet's key. Used from threads that may block.
pub trait KeyStore: Send + Sync {
    /// The share of the committee that `summary` names, durable before it is returned. None if this
    /// node is not a member.
    fn share(&self, summary: &Summary) -> Result<Option<SecretShare>, String>;

    /// The newest epoch whose share was asked for: this node may have voted in it.
    fn voted(&self) -> Result<Option<u64>, String>;

    /// A change of the members that this node's operator wants in a block.
    fn membership_change(&self, summary: &Summary) -> Option<Vec<u8>>;
}

/// Starts the threads of the key's arithmetic. Fails while this machine has no room for them.
pub type Arithmetic = Arc<dyn Fn() -> Result<Engine, String> + Send + Sync>;

/// Arithmetic as configured.
pub fn arithmetic(config: EngineConfig) -> Arithmetic {
    Arc::new(move || Engine::new(config.clone()).map_err(|error| error.to_string()))
}

pub(super) struct Config {
    pub(super) keys: Box<dyn KeyStore>,
    pub(super) arithmetic: Arithmetic,
    /// Precedes everything that members sign for the engine.
    pub(super) namespace: Vec<u8>,
    /// Signs this node's votes.
    pub(super) signer: PrivateKey,
    pub(super) node_key: [u8; 32],
    pub(super) epocher: FixedEpocher,
    /// Up to this epoch the node does not know how it voted.
    pub(super) silent_until: Option<u64>,
}

/// The committee of the epoch that runs, and of the next.
pub(super) struct Resharing {
    inner: Mutex<Inner>,
    /// Who is asked for every second.
    known: Mutex<Option<MemberKeys>>,
    config: Config,
}

struct Inner {
    summary: Arc<Summary>,
    /// The last block the summary knows.
    height: EngineHeight,
    /// The last block of the epoch before.
    boundary: Digest,
    /// Keys that sign votes of this epoch and of the one before.
    voters: Voters,
    /// The dealing for this node's next block, and the epoch it was made in.
    dealing: Option<(u64, Vec<u8>)>,
    /// Payloads of blocks that this node voted on recently: not verified again when they are final.
    checked: VecDeque<(KeyPayload, CheckedPayload)>,
}

/// Keys of members, as the engine knows them. To decode one takes as long as to verify a signature.
struct MemberKeys {
    summary: Arc<Summary>,
    members: Vec<PublicKey>,
    next: Vec<PublicKey>,
}

impl MemberKeys {
    fn decode(summary: Arc<Summary>) -> Self {
        let decode = |members: &[NodeRecord]| -> Vec<PublicKey> {
            let keys: Vec<_> = members.iter().map(|member| member.node_key().to_bytes()).collect();
            key::members(&keys).map_or_else(|_| Vec::new(), |keys| keys.into_iter().collect())
        };
        Self { members: decode(summary.members()), next: decode(summary.next_members()), summary }
    }
}

/// Time between two tries of a step that must succeed.
const RETRY: Duration = Duration::from_secs(1);
/// Time between two attempts to deal, which is not urgent.
const DEAL_AGAIN: Duration = Duration::from_secs(5);
/// Payloads whose check is remembered. Few blocks that were voted on are not final, and few carry
/// any.
const CHECKED_MAX: usize = 4;

pub(super) struct EpochParticipation {
    pub(super) epoch: Epoch,
    /// Its first block.
    pub(super) from: Height,
    pub(super) scheme: Scheme,
    pub(super) signers: SigningCommittee,
}

/// Randomness for arithmetic, which has another idea of generators than the engine.
fn seed(context: &mut impl CryptoRng) -> StdRng {
    let mut seed = [0; 32];
    context.fill_bytes(&mut seed);
    StdRng::from_seed(seed)
}

fn bytes(key: &PublicKey) -> [u8; 32] {
    key.as_ref().try_into().unwrap_or_default()
}

impl Resharing {
    /// `summary` and `voters` are those of the state at `height`, `boundary` names the last block
    /// of the epoch before it.
    pub(super) fn new(
        (summary, voters): (Summary, Voters),
        height: Height,
        boundary: Digest,
        config: Config,
    ) -> Arc<Self> {
        let inner = Inner {
            summary: Arc::new(summary),
            height: EngineHeight::new(height.0),
            boundary,
            voters,
            dealing: None,
            checked: VecDeque::new(),
        };
        Arc::new(Self { inner: Mutex::new(inner), known: Mutex::default(), config })
    }

    pub(super) fn summary(&self) -> Arc<Summary> {
        self.inner.lock().summary.clone()
    }

    /// The last block of the epoch before.
    pub(super) fn boundary(&self) -> Digest {
        self.inner.lock().boundary
    }

    /// Whether it is the last block of its epoch.
    pub(super) fn is_last(&self, height: EngineHeight) -> bool {
        self.config.epocher.containing(height).is_some_and(|bounds| bounds.last() == height)
    }

    fn with_member_keys<T>(&self, take: impl FnOnce(&MemberKeys) -> T) -> T {
        let summary = self.summary();
        let mut known = self.known.lock();
        if known.as_ref().is_some_and(|known| !Arc::ptr_eq(&known.summary, &summary)) {
            *known = None;
        }
        take(known.get_or_insert_with(|| MemberKeys::decode(summary)))
    }

    /// The members of the epoch that runs, as the engine knows them.
    pub(super) fn members(&self) -> Vec<PublicKey> {
        self.with_member_keys(|known| known.members.clone())
    }

    pub(super) fn next_members(&self) -> Vec<PublicKey> {
        self.with_member_keys(|known| known.next.clone())
    }

    /// Number of a member among the others, or behind them of one that is to be a member next.
    pub(super) fn peer(&self, peer: &PublicKey) -> Option<usize> {
        let (summary, key) = (self.summary(), bytes(peer));
        let next =
            || summary.next_members().iter().position(|member| member.node_key().to_bytes() == key);
        let place = summary.place_of(&key).map(|place| place.0 as usize);
        place.or_else(|| next().map(|next| summary.members().len() + next))
    }

    /// The parts with which this node participates in the epoch of its summary, or follows it if it
    /// is not a member.
    pub(super) fn enter(&self) -> Result<EpochParticipation, StartError> {
        let summary = self.summary();
        if self.config.silent_until.is_some_and(|epoch| summary.epoch() <= epoch) {
            tracing::warn!(
                epoch = summary.epoch(),
                "this node lost its record of how it voted in this epoch: it follows without a \
                 vote until the next"
            );
            return self.enter_with(None);
        }
        let share = self.config.keys.share(&summary).map_err(StartError::Share)?;
        self.enter_with(share)
    }

    /// The same with this share; without one, this node verifies and signs nothing.
    pub(super) fn enter_with(
        &self,
        share: Option<SecretShare>,
    ) -> Result<EpochParticipation, StartError> {
        let summary = self.summary();
        let first = EngineHeight::new(self.inner.lock().height.get() + 1);
        let epoch = self.config.epocher.containing(first).map(|bounds| bounds.epoch());
        if epoch.map(Epoch::get) != Some(summary.epoch()) {
            return Err(StartError::Epoch { height: first.get(), stored: summary.epoch() });
        }
        let epoch = Epoch::new(summary.epoch());
        let from = self.config.epocher.first(epoch).map_or(first, |first| first);
        let keys: Vec<_> =
            summary.members().iter().map(|member| member.node_key().to_bytes()).collect();
        let (members, committee) = (key::members(&keys)?, summary.committee().clone());
        key::check_committee(&members, &committee, share.as_ref())?;
        let signer = share.as_ref().map(|_| &self.config.signer);
        let scheme = key::scheme(&self.config.namespace, &members, signer)?;
        Ok(EpochParticipation {
            epoch,
            from: Height(from.get()),
            scheme,
            signers: SigningCommittee { committee, share, members: keys },
        })
    }

    pub(super) fn is_member(&self) -> bool {
        self.summary().place_of(&self.config.node_key).is_some()
    }

    pub(super) fn node_id(&self, member: &PublicKey) -> Option<ic_principal::Principal> {
        let (summary, key) = (self.summary(), bytes(member));
        let is_it = |node: &&NodeRecord| node.node_key().to_bytes() == key;
        summary.members().iter().find(is_it).map(NodeRecord::node_id)
    }

    pub(super) fn is_current_or_next_member(&self) -> bool {
        let summary = self.summary();
        let key = &self.config.node_key;
        let is_it = |member: &NodeRecord| member.node_key().to_bytes() == *key;
        summary.place_of(key).is_some() || summary.next_members().iter().any(is_it)
    }

    /// The payload for a block of this node. `before` holds the payloads of its ancestors that are
    /// not final yet, with their heights.
    pub(super) fn payload(
        &self,
        height: EngineHeight,
        before: &[(EngineHeight, KeyPayload)],
    ) -> Option<KeyPayload> {
        if self.is_last(height) {
            return None;
        }
        let (summary, known, dealing) = {
            let inner = self.inner.lock();
            (inner.summary.clone(), inner.height, inner.dealing.clone())
        };
        let me = summary.place_of(&self.config.node_key)?;
        let coming: Vec<_> = before
            .iter()
            .filter(|(height, _)| *height > known)
            .map(|(_, payload)| payload)
            .collect();
        if coming.iter().any(|payload| payload.leader == me.0) {
            return None;
        }
        let dealing = dealing
            .filter(|(epoch, _)| *epoch == summary.epoch())
            .filter(|_| summary.wants_dealing(me) && summary.dealings_missing() > coming.len())
            .map(|(_, dealing)| dealing);
        let payload = dealing.or_else(|| self.config.keys.membership_change(&summary));
        payload.map(|bytes| KeyPayload { leader: me.0, bytes: bytes.into() })
    }

    /// Waits until this node's summary is that of `epoch`: before, this node is behind, and after,
    /// it knows a final block in place of any that could be judged. Either way it cannot judge a
    /// block of `epoch` now, which says nothing about the block. Pends until the engine gives the
    /// round up, if it must.
    pub(super) async fn wait_for_epoch(&self, clock: &impl Clock, epoch: Epoch) -> Arc<Summary> {
        loop {
            let summary = self.summary();
            if summary.epoch() == epoch.get() {
                return summary;
            }
            clock.sleep(RETRY).await;
        }
    }

    /// Why a block of `leader` that carries this gets no vote. Pends while this node cannot judge
    /// it: a verdict must not depend on the machine, nor on how far this node is.
    pub(super) async fn check_payload<E: Clock + Spawner + CryptoRng>(
        self: &Arc<Self>,
        context: &E,
        epoch: Epoch,
        leader: &PublicKey,
        block: &Block,
    ) -> Result<(), String> {
        let Some(payload) = &block.payload else { return Ok(()) };
        if self.is_last(block.height()) {
            return Err("it carries something of the key in the last block of an epoch".into());
        }
        let mut was_logged = false;
        loop {
            let summary = self.wait_for_epoch(context, epoch).await;
            match self.check_payload_once(context, summary, leader, payload).await {
                Ok(()) => return Ok(()),
                Err(VerdictError::Invalid(reason)) => return Err(reason),
                Err(VerdictError::Unavailable(reason)) => {
                    if !was_logged {
                        tracing::error!(%reason, "a block cannot be judged: this node's vote waits");
                        was_logged = true;
                    }
                    context.sleep(RETRY).await;
                }
            }
        }
    }

    async fn check_payload_once<E: Spawner + CryptoRng>(
        self: &Arc<Self>,
        context: &E,
        summary: Arc<Summary>,
        leader: &PublicKey,
        payload: &KeyPayload,
    ) -> Result<(), VerdictError> {
        let payload = payload.clone();
        let Some(place) =
            summary.place_of(&bytes(leader)).filter(|place| place.0 == payload.leader)
        else {
            let reason = "it carries something of the key in another node's name";
            return Err(VerdictError::Invalid(reason.into()));
        };
        let this = self.clone();
        let checked = context.child("judge").shared(true).spawn(move |mut context| async move {
            let engine = (this.config.arithmetic)().map_err(VerdictError::Unavailable)?;
            let checked = summary
                .check(&engine, place, &payload.bytes, &mut seed(&mut context))
                .map_err(|error| VerdictError::Invalid(error.to_string()))?;
            let mut inner = this.inner.lock();
            inner.checked.push_back((payload, checked));
            while inner.checked.len() > CHECKED_MAX {
                inner.checked.pop_front();
            }
            Ok(())
        });
        // The task is gone when the node is ending, or could not be started.
        checked.await.unwrap_or_else(|error| Err(VerdictError::Unavailable(error.to_string())))
    }

    /// Takes the next final block; how the key is held from there on, if that changed. An error
    /// when the node is ending: the block was not taken.
    pub(super) async fn apply<E: Clock + Spawner + CryptoRng>(
        self: &Arc<Self>,
        context: &E,
        block: &Block,
    ) -> Result<Option<SubnetKey>, commonware_runtime::Error> {
        let (height, last) = (block.height(), self.is_last(block.height()));
        let changed = match &block.payload {
            Some(payload) => self.apply_payload(context, payload).await?,
            None => None,
        };
        let changed = changed.or_else(|| last.then(|| Summary::clone(&self.summary())));
        let mut inner = self.inner.lock();
        inner.height = height;
        let Some(mut summary) = changed else { return Ok(None) };
        if last {
            summary.close_epoch();
            inner.boundary = block.digest();
            inner.voters = inner.voters.next(&summary);
            inner.checked.clear();
        }
        inner.summary = Arc::new(summary);
        Ok(Some(subnet_key(&inner)))
    }

    /// The summary after this payload, if the payload changes it. The result must not depend on
    /// this machine: when there are no threads for the arithmetic, it waits.
    async fn apply_payload<E: Clock + Spawner + CryptoRng>(
        self: &Arc<Self>,
        context: &E,
        payload: &KeyPayload,
    ) -> Result<Option<Summary>, commonware_runtime::Error> {
        loop {
            let (this, payload) = (self.clone(), payload.clone());
            let applied =
                context.child("apply").shared(true).spawn(move |mut context| async move {
                    let engine = (this.config.arithmetic)()?;
                    let mut summary = Summary::clone(&this.summary());
                    let known = {
                        let mut inner = this.inner.lock();
                        let at = inner.checked.iter().position(|(known, _)| *known == payload);
                        at.and_then(|at| inner.checked.remove(at))
                    };
                    let (place, rng) = (NodeIndex(payload.leader), &mut seed(&mut context));
                    let changed = match known {
                        Some((_, checked)) => {
                            summary.apply_checked(&engine, &payload.bytes, &checked, rng)
                        }
                        None => summary.apply(&engine, place, &payload.bytes, rng),
                    };
                    Ok::<_, String>(changed.then_some(summary))
                });
            match applied.await? {
                Ok(summary) => return Ok(summary),
                Err(error) => {
                    tracing::error!(%error, "arithmetic of the subnet's key cannot run; trying again");
                    context.sleep(RETRY).await;
                }
            }
        }
    }

    /// Deals for the next committee, unless that was done. Meant to run concurrently with
    /// everything else.
    pub(super) async fn deal<E: Clock + Spawner + CryptoRng>(self: Arc<Self>, context: E) {
        let epoch = self.summary().epoch();
        let mut was_logged = false;
        // Trouble of this machine may be over while a dealing is still wanted.
        while let Err(reason) = self.deal_once(&context).await {
            if !was_logged {
                tracing::error!(%reason, epoch, "this node cannot deal its share of the subnet's key for the next epoch; trying again");
                was_logged = true;
            }
            context.sleep(DEAL_AGAIN).await;
            if self.summary().epoch() != epoch {
                return;
            }
        }
    }

    async fn deal_once<E: Spawner + CryptoRng>(
        self: &Arc<Self>,
        context: &E,
    ) -> Result<(), String> {
        let summary = self.summary();
        let Some(me) =
            summary.place_of(&self.config.node_key).filter(|me| summary.wants_dealing(*me))
        else {
            return Ok(());
        };
        if self.inner.lock().dealing.as_ref().is_some_and(|(epoch, _)| *epoch == summary.epoch()) {
            return Ok(());
        }
        let this = self.clone();
        let of = summary.epoch();
        let dealt = context.child("deal").shared(true).spawn(move |mut context| async move {
            let share = this.config.keys.share(&summary)?.ok_or("this node has no share")?;
            let engine = (this.config.arithmetic)()?;
            summary
                .deal(&engine, me, &share, &mut seed(&mut context))
                .map_err(|error| error.to_string())
        });
        let dealing = dealt.await.map_err(|error| error.to_string()).flatten()?;
        self.inner.lock().dealing = Some((of, dealing));
        Ok(())
    }
}

/// How the key is held, to be kept with the block and the state.
fn subnet_key(inner: &Inner) -> SubnetKey {
    let nodes = inner.summary.members().iter().map(|member| NodeInfo {
        node_id: member.node_id(),
        public_key_der: genesis::node_key_der(member.node_key()),
    });
    SubnetKey {
        summary: inner.summary.to_bytes(),
        boundary: inner.boundary.0,
        voters: inner.voters.encode(),
        nodes: nodes.collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{
        num::NonZeroUsize,
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use commonware_cryptography::Signer as _;
    use commonware_macros::select;
    use commonware_runtime::{Runner as _, Supervisor as _, deterministic};
    use commonware_utils::NZU64;
    use ed25519_dalek::SigningKey;
    use state::Time;

    use super::*;

    const MEMBERS: usize = 4;
    /// Attempts that the machine fails.
    const FAILING: usize = 3;

    fn config() -> EngineConfig {
        EngineConfig { threads: NonZeroUsize::MIN, ..EngineConfig::for_this_machine() }
    }

    /// Shares of one node.
    struct OneShare([u8; 32], NodeIndex);

    impl KeyStore for OneShare {
        fn share(&self, _: &Summary) -> Result<Option<SecretShare>, String> {
            Ok(Some(SecretShare::from_bytes(self.1, &self.0).unwrap()))
        }

        fn voted(&self) -> Result<Option<u64>, String> {
            Ok(None)
        }

        fn membership_change(&self, _: &Summary) -> Option<Vec<u8>> {
            None
        }
    }

    /// The first member of a subnet, on a machine that starts no threads at first; how often it was
    /// asked to; and the members.
    fn member() -> (Arc<Resharing>, Arc<AtomicUsize>, Vec<PublicKey>) {
        let mut rng = StdRng::seed_from_u64(3);
        let (committee, shares) = nidkg::deal(MEMBERS as u32, 3, &mut rng).unwrap();
        let mut secrets: Vec<[u8; 32]> = (1..=MEMBERS).map(|number| [number as u8; 32]).collect();
        secrets.sort_by_key(|secret| SigningKey::from_bytes(secret).verifying_key().to_bytes());
        let records = secrets.iter().zip(4_000..).map(|(secret, port)| {
            let node = SigningKey::from_bytes(secret);
            let owner = genesis::node_id(&node.verifying_key());
            let (public, _) = nidkg::generate_key_pair(owner.as_slice(), &mut rng);
            NodeRecord::new(&node, public, &format!("127.0.0.1:{port}")).unwrap()
        });
        let summary = Summary::from_parts(records.collect(), committee).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let arithmetic: Arithmetic = {
            let (asked, start) = (asked.clone(), arithmetic(config()));
            Arc::new(move || match asked.fetch_add(1, SeqCst) {
                attempt if attempt < FAILING => Err("no thread can be started".into()),
                _ => start(),
            })
        };
        let keys: Vec<_> =
            secrets.iter().map(|secret| key::node_key(secret).unwrap().public_key()).collect();
        let config = Config {
            keys: Box::new(OneShare(shares[0].to_bytes(), NodeIndex(0))),
            arithmetic,
            namespace: b"test".to_vec(),
            signer: key::node_key(&secrets[0]).unwrap(),
            node_key: bytes(&keys[0]),
            epocher: FixedEpocher::new(NZU64!(10)),
            silent_until: None,
        };
        let boundary = Block::genesis(b"test", Time(1)).digest();
        let voters = Voters::first(&summary);
        let resharing = Resharing::new((summary, voters), Height(0), boundary, config);
        (resharing, asked, keys)
    }

    fn block(payload: Vec<u8>) -> Block {
        let payload = Some(KeyPayload { leader: 0, bytes: payload.into() });
        Block { height: EngineHeight::new(2), payload, ..Block::genesis(b"test", Time(1)) }
    }

    // Promise: P20 - A member that cannot verify a dealing now postpones its vote.
    #[test]
    fn vote_on_a_dealing_waits_while_arithmetic_cannot_start() {
        deterministic::Runner::timed(Duration::from_secs(600)).start(|context| async move {
            let (resharing, asked, members) = member();
            let dealing = {
                let (summary, keys) = (resharing.summary(), &resharing.config.keys);
                let share = keys.share(&summary).unwrap().unwrap();
                let engine = Engine::new(config()).unwrap();
                summary.deal(&engine, NodeIndex(0), &share, &mut StdRng::seed_from_u64(1)).unwrap()
            };
            let verdict = resharing
                .check_payload(&context, Epoch::zero(), &members[0], &block(dealing))
                .await;
            assert_eq!(verdict, Ok(()));
            assert_eq!(asked.load(SeqCst), FAILING + 1);
        });
    }

    // Promise: P20 - A block of a later epoch is validated when the epoch is reached.
    #[test]
    fn block_of_an_epoch_that_this_node_has_not_reached_is_judged_later() {
        deterministic::Runner::timed(Duration::from_secs(600)).start(|context| async move {
            let (resharing, _, members) = member();
            let block = block(b"nothing of the key".to_vec());
            let next = Epoch::new(1);
            let early =
                async { resharing.check_payload(&context, next, &members[0], &block).await };
            select! {
                verdict = early => panic!("judged by another epoch's committee: {verdict:?}"),
                () = context.sleep(Duration::from_secs(30)) => {},
            }
            {
                let mut inner = resharing.inner.lock();
                let mut summary = Summary::clone(&inner.summary);
                summary.close_epoch();
                inner.summary = Arc::new(summary);
            }
            let verdict = resharing.check_payload(&context, next, &members[0], &block).await;
            assert!(verdict.is_err(), "it is judged, and is nothing of the key");
        });
    }

    // Promise: P20 - A dealing is made when its computation can start.
    #[test]
    fn dealing_is_made_once_arithmetic_can_start() {
        deterministic::Runner::timed(Duration::from_secs(600)).start(|context| async move {
            let (resharing, asked, _) = member();
            resharing.clone().deal(context.child("dealing")).await;
            assert_eq!(asked.load(SeqCst), FAILING + 1);
            let payload = resharing.payload(EngineHeight::new(2), &[]);
            assert!(payload.is_some_and(|payload| payload.leader == 0));
        });
    }
}
