//! `thimble-relay run`: opens the store, serves until a stop is requested, and closes it.

use std::{path::Path, sync::Arc};

use accounting::cgroup::Cgroup;
use anyhow::{Context, Result, bail};
use heap_profiler::Sampler;
use libp2p::Multiaddr;
use lifecycle::StopSignals;
use relay_limits::Limits;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{sync::oneshot, task::JoinSet};

use crate::{
    client,
    config::Config,
    discovery, governor, http, key,
    log::{self, LogLevel},
    network::transport::Tls,
    node::{Network, Node},
    rln::{self, Validator, contract::RootsFeed},
    sync,
};

/// Threads that drive connections. Two: with one a slow disk read would delay all connections, more
/// take stacks and allocator caches.
const THREADS: usize = 2;

pub(crate) fn run(config: &Config, address_file: Option<&Path>) -> Result<()> {
    let sampler = if config.heap_profile { Some(Arc::new(sampler(config)?)) } else { None };
    disk::restrict_new_files();
    let log_level = log::start(&config.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(4)
        .thread_stack_size(1 << 20)
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(serve(config, sampler, log_level, address_file))
}

/// Samples allocations from here on; this process may become another one first.
fn sampler(config: &Config) -> Result<Sampler> {
    let heap = &config.limits.heap;
    let settings = heap_profiler::Settings {
        sample_bytes: heap.sample_bytes,
        profiler_bytes: heap.profiler_bytes,
        answer_bytes: heap.answer_bytes,
    };
    Sampler::start("thimble-relay", &config.data_dir, settings)
}

async fn serve(
    config: &Config,
    sampler: Option<Arc<Sampler>>,
    log_level: LogLevel,
    address_file: Option<&Path>,
) -> Result<()> {
    // From the first address that is answered at on, a signal asks and does not kill.
    let mut signals = StopSignals::listen()?;
    let tls = tls(config)?;
    let cgroup = Cgroup::own().unwrap_or_default();
    memory::check_group(
        cgroup.as_ref(),
        Limits::smallest_bytes(),
        config.limits.memory_budget_bytes,
        "the kernel may kill the relay before a limit of it is reached",
    )?;
    let restricted = disk::make_private_folder(&config.data_dir, "relay.key")
        .with_context(|| format!("making the data folder {}", config.data_dir.display()))?;
    if restricted {
        tracing::info!(
            folder = %config.data_dir.display(),
            "only the owner can read the data folder from now on"
        );
    }
    let keys = key::load_or_create(&config.data_dir.join("relay.key"))?;
    let peer = keys.public().to_peer_id();
    let roots = roots(config)?;
    let validator = roots.as_ref().map(|feed| validator(config, feed)).transpose()?;
    let node = Node::open(config, cgroup, peer, rand::random(), roots, validator)?;
    let governor = governor::start(node.clone(), &config.limits.governor)?;
    let (network, swarm_tx) = Network::new(node.clone(), config, &keys, tls)?;
    let (ready, addresses) = oneshot::channel();
    let (stop, stopping) = oneshot::channel::<()>();
    let running = tokio::spawn(network.run(ready, async {
        // A dropped sender is a reason to stop, too.
        let _ = stopping.await;
    }));
    let mut refreshing = JoinSet::new();
    if let Some(roots) = &node.roots {
        refreshing.spawn(roots.clone().run());
    }
    let http = http::start(node.clone(), swarm_tx, sampler, log_level, config).await?;
    let addresses: Vec<Multiaddr> = addresses.await.context("no address can be listened on")?;
    for address in &addresses {
        tracing::info!(%address, "reached at");
    }
    let mut finding = discovery::start(&node, config, &*key::secret(&keys)?, &addresses).await?;
    client::start(&node, &mut finding);
    sync::start(&node, config, &mut finding);
    let record = node.own_record().map(|record| record.to_string()).unwrap_or_default();
    tracing::info!(
        %peer,
        %record,
        memory = config.memory,
        serves = node.served(),
        http = %http.address,
        "relay is ready"
    );
    if let Some(path) = address_file {
        let mut text: String = addresses.iter().map(|address| format!("{address}\n")).collect();
        text += &format!("http://{}\n", http.address);
        disk::replace_file(path, text.as_bytes(), disk::Readers::All)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    let signal = signals.next().await;
    tracing::info!(signal, "stopping");
    drop(stop);
    finding.shutdown().await;
    refreshing.shutdown().await;
    http.stop().await;
    running.await.context("the network's task")?;
    drop(governor);
    close(node)
}

/// The roots of the network's contract, where messages carry proofs of a rate limit.
fn roots(config: &Config) -> Result<Option<Arc<RootsFeed>>> {
    let Some(contract) = config.contract()? else { return Ok(None) };
    let place = (disk::RealDisk::shared(), config.data_dir.as_path());
    let membership = config.membership(contract)?;
    let servers = config.rpc_servers()?;
    let feed = RootsFeed::open(contract, servers, membership, &config.limits.roots, place);
    Ok(Some(feed.context("preparing TLS for RPC servers")?))
}

/// What verifies proofs against these roots.
fn validator(config: &Config, feed: &RootsFeed) -> Result<Validator> {
    let folder = config.data_dir.join("rln");
    let (limits, roots) = (&config.limits.rln, feed.roots.clone());
    Validator::open(rln::EPOCH_SECONDS, roots, limits, &disk::RealDisk, &folder)
}

fn close(node: Arc<Node>) -> Result<()> {
    // Connections that are being served may hold it for a moment; the last holder closes the store,
    // and its messages are on disk already.
    if let Some(node) = Arc::into_inner(node) {
        node.store.close();
    }
    Ok(())
}

fn tls(config: &Config) -> Result<Option<Tls>> {
    let (Some(chain), Some(key)) = (&config.tls_certificate, &config.tls_key) else {
        let secure = config.listen.iter().find(|address| {
            address.iter().any(|part| matches!(part, libp2p::multiaddr::Protocol::Wss(_)))
        });
        if let Some(address) = secure {
            bail!("{address} needs tls_certificate and tls_key");
        }
        return Ok(None);
    };
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("reading certificates of {}", chain.display()))?;
    if certificates.is_empty() {
        bail!("{} holds no certificate (PEM)", chain.display());
    }
    let key = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("reading the key of {}", key.display()))?;
    // The transport takes bytes, and detects the kind of key from them.
    if PrivateKeyDer::try_from(key.secret_der().to_vec()).is_err() {
        bail!("the key of {} is of unknown kind; use PKCS#8, PKCS#1 or SEC1", chain.display());
    }
    let chain = certificates.into_iter().map(|certificate| certificate.to_vec()).collect();
    Ok(Some(Tls { key: key.secret_der().to_vec(), chain }))
}
