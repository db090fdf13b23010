//! The chain of one node: blocks are spread, fetched and stored, and handed out when they are
//! final.

use std::{sync::Arc, time::Duration};

use commonware_broadcast::buffered;
use commonware_consensus::{
    marshal::{
        self, Start,
        core::{Actor as Marshal, Floor as MarshalFloor},
        resolver::p2p as backfill,
    },
    simplex::types::Finalization,
    types::ViewDelta,
};
use commonware_cryptography::{Digested, ed25519::PublicKey};
use commonware_p2p::{Blocker, Provider, Receiver, Sender};
use commonware_parallel::Sequential;
use commonware_runtime::{Clock, Handle, Metrics, Spawner, Storage, buffer::paged::CacheRef};
use commonware_storage::{
    archive::{Error as ArchiveError, prunable},
    translator::EightCap,
};
use commonware_utils::{NZDuration, NZU64, NZUsize};
use futures::future::{Select, select};
use rand_core::CryptoRng;

use super::{
    super::{
        application::Application,
        block::{Block, Digest},
        deps::Deps,
        key::Scheme,
    },
    MAILBOX, Mailbox, UNACKNOWLEDGED_MAX,
};

type Certificates<E> = prunable::Archive<EightCap, E, Digest, Finalization<Scheme, Digest>>;
type Blocks<E> = prunable::Archive<EightCap, E, Digest, Arc<Block>>;

/// Whichever ends first of spreading blocks and storing them: then the node's engine is over.
pub(super) type ChainTask = Select<Handle<()>, Handle<()>>;

pub(super) struct Chain<'a, P, B> {
    /// Begins the names of everything this node stores.
    pub(super) storage: &'a str,
    pub(super) cache: CacheRef,
    pub(super) deps: &'a Deps,
    pub(super) peers: P,
    pub(super) blocker: B,
    /// Genesis, or the finalization to begin above.
    pub(super) start: Start<Scheme, Digest, Digested<Block>>,
}

pub(super) struct ChainStorage<E: Clock + Storage + Metrics> {
    certificates: Certificates<E>,
    blocks: Blocks<E>,
}

impl<P, B> Chain<'_, P, B>
where
    P: Provider<PublicKey = PublicKey>,
    B: Blocker<PublicKey = PublicKey>,
{
    pub(super) async fn open<E>(&self, context: &E) -> Result<ChainStorage<E>, ArchiveError>
    where
        E: Clock + Spawner + Storage + Metrics,
    {
        let certificates = prunable::Archive::init(
            context.child("certificates"),
            archive(self.storage, "certificates", &self.cache, genesis::NODES_MAX),
        );
        let blocks = prunable::Archive::init(
            context.child("blocks"),
            archive(self.storage, "blocks", &self.cache, self.deps.block_bounds()),
        );
        Ok(ChainStorage { certificates: certificates.await?, blocks: blocks.await? })
    }

    /// Starts fetching, spreading and storing blocks. `application` makes what is final known to
    /// the node once it is built with marshal's mailbox at hand; the floor says what marshal had
    /// handed out before.
    pub(super) async fn start<E, S, R, T>(
        self,
        context: &E,
        opened: ChainStorage<E>,
        backfilled: (S, R),
        spread: (S, R),
        application: Application<T>,
    ) -> (Mailbox, MarshalFloor, ChainTask)
    where
        E: Clock + CryptoRng + Spawner + Storage + Metrics,
        S: Sender<PublicKey = PublicKey>,
        R: Receiver<PublicKey = PublicKey>,
        T: Clone + Send + Sync + 'static,
    {
        let (deps, bounds) = (self.deps, self.deps.block_bounds());
        let resolver = backfill::init(
            context.child("backfill"),
            backfill::Config {
                public_key: deps.me.clone(),
                peer_provider: self.peers.clone(),
                blocker: self.blocker,
                mailbox_size: NZUsize!(MAILBOX),
                fetch_timeout: NZDuration!(Duration::from_secs(2)),
                fetch_retry_delay: Duration::from_millis(100),
                priority_requests: false,
                priority_responses: false,
            },
            backfilled,
        );
        let (broadcast, buffer) = buffered::Engine::new(
            context.child("broadcast"),
            buffered::Config {
                public_key: deps.me.clone(),
                mailbox_size: NZUsize!(MAILBOX),
                deque_size: 4,
                priority: false,
                codec_config: bounds,
                peer_provider: self.peers,
                strategy: Sequential,
            },
        );
        let broadcast = broadcast.start(spread);
        let (actor, marshal, processed) = Marshal::init(
            context.child("marshal"),
            opened.certificates,
            opened.blocks,
            marshal::Config {
                provider: deps.schemes.clone(),
                epocher: deps.epocher.clone(),
                start: self.start,
                partition_prefix: format!("{}marshal", self.storage),
                mailbox_size: NZUsize!(MAILBOX),
                view_retention: ViewDelta::new(64),
                prunable_items_per_section: NZU64!(16),
                page_cache: self.cache,
                replay_buffer: NZUsize!(64 << 10),
                key_write_buffer: NZUsize!(16 << 10),
                value_write_buffer: NZUsize!(64 << 10),
                block_codec_config: bounds,
                max_repair: NZUsize!(16),
                max_pending_acks: NZUsize!(UNACKNOWLEDGED_MAX),
                strategy: Sequential,
            },
        )
        .await;
        let marshal_task = actor.start(application, buffer, resolver);
        (marshal, processed, select(broadcast, marshal_task))
    }
}

fn archive<C>(
    storage: &str,
    name: &str,
    cache: &CacheRef,
    codec: C,
) -> prunable::Config<EightCap, C> {
    prunable::Config {
        translator: EightCap,
        metadata_partition: format!("{storage}{name}-metadata"),
        key_partition: format!("{storage}{name}-key"),
        key_page_cache: cache.clone(),
        value_partition: format!("{storage}{name}-value"),
        compression: None,
        codec_config: codec,
        items_per_section: NZU64!(16),
        key_write_buffer: NZUsize!(16 << 10),
        value_write_buffer: NZUsize!(64 << 10),
        replay_buffer: NZUsize!(64 << 10),
    }
}
