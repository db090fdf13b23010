//! The server: its instances, and its life from the first request to the time without any.

use std::{
    collections::BTreeMap,
    future::Future,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use accounting::cgroup::Cgroup;
use anyhow::{Context, Result, anyhow, bail, ensure};
use gateway::{Gateway, GatewayConfig, GatewayHandle, Latencies, Waiters};
use http_server::connections::Connections;
use lifecycle::{Stop, StopSignals};
use limits::{CONNECTION_BYTES, pool};
use prometheus_client::registry::Registry;
use state::Time;
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};
use tracing_subscriber::EnvFilter;

use crate::{
    access::Access,
    blobs::Blobs,
    bounds::{Bounds, CONNECTIONS, INSTANCE_BYTES, MEMORY_VARIABLE, StatedBudget},
    cli::{Cli, Client, or_variable},
    gateways::Gateways,
    graph::Graph,
    instance::{Handle, Instance},
    keys::SubnetKeys,
    live_outcalls::OutcallClient,
    node::InstanceNode,
    operations::topology,
    port_file::PortFile,
    replica::{InstanceContext, Replica},
    rest::{CreatedInstance, InitialTime, InstanceConfig, SubnetSpec},
    sandboxes::Sandboxes,
    state_archive,
    subnets::{Kind, Plan, Subnets, plan, root_seed},
};

/// Time of a new instance, in nanoseconds since 1970: 6 May 2021, 19:17:10 UTC, when the public
/// network began.
const GENESIS: Time = Time(1_620_328_630_000_000_000);
/// How often the server looks whether it has been idle for long enough.
const IDLE_LOOK: Duration = Duration::from_millis(250);
/// Time for requests in flight when the server ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
const ABOUT_TO_END: &str = "the server is about to end";

/// When the server was last of use.
pub(crate) struct Activity {
    pending: AtomicU64,
    last: Mutex<Instant>,
}

/// A request that is being served.
pub(crate) struct ActiveRequest(Arc<Activity>);

impl Activity {
    fn new() -> Self {
        Self { pending: AtomicU64::new(0), last: Mutex::new(Instant::now()) }
    }

    pub(crate) fn record_use(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(crate) fn begin(self: &Arc<Self>) -> ActiveRequest {
        self.pending.fetch_add(1, Ordering::AcqRel);
        ActiveRequest(self.clone())
    }

    fn idle(&self) -> Option<Duration> {
        if self.pending.load(Ordering::Acquire) > 0 {
            return None;
        }
        Some(self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed())
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        // In this order, so that the server never seems idle since before this request.
        self.0.record_use();
        self.0.pending.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(crate) struct Server {
    pub(crate) bounds: Bounds,
    pub(crate) access: Access,
    client: Client,
    pub(crate) graph: Arc<Graph>,
    pub(crate) gateways: Gateways,
    pub(crate) blobs: Blobs,
    pub(crate) activity: Arc<Activity>,
    /// Whether a connection was refused, which is logged once.
    pub(crate) has_refused_connection: AtomicBool,
    sandboxes: Sandboxes,
    /// Makes HTTPS outcalls of instances that are live.
    requests: OutcallClient,
    instances: Mutex<Instances>,
    /// Instances that are being made or deleted.
    under_way: watch::Sender<usize>,
    folder: TempDir,
}

/// An instance is being made or deleted.
struct InstanceOperation(Arc<Server>);

impl Drop for InstanceOperation {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|count| *count -= 1);
    }
}

/// An instance that was not reported to its client yet. It is deleted if it never is.
struct UnclaimedInstance {
    server: Arc<Server>,
    made: Option<CreatedInstance>,
}

impl Drop for UnclaimedInstance {
    fn drop(&mut self) {
        if let Some(made) = self.made.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (server, under_way) = (self.server.clone(), self.server.under_way());
            runtime.spawn(async move {
                server.delete_now(made.instance_id).await;
                drop(under_way);
            });
        }
    }
}

#[derive(Default)]
struct Instances {
    next: u64,
    all: BTreeMap<u64, Arc<Handle>>,
    is_stopping: bool,
}

impl Server {
    fn new(cli: &Cli, client: Client) -> Result<Self> {
        let memory = StatedBudget::new(cli.memory.as_deref(), or_variable(None, MEMORY_VARIABLE));
        let access = Access::new(cli)?;
        let parent = cli.parent_folder();
        let disk = rustix::fs::statvfs(&parent)
            .with_context(|| format!("reading the free space of {}", parent.display()))?;
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        let bounds = Bounds::new(memory, free_bytes)?;
        let group = Cgroup::own().unwrap_or_default();
        memory::check_group(
            group.as_ref(),
            Bounds::least_bytes(),
            bounds.budget_bytes(),
            "the kernel may kill workers before a limit of the server is reached",
        )?;
        let folder = tempfile::Builder::new()
            .prefix("thimble-pocket-")
            .tempdir_in(&parent)
            .with_context(|| format!("making a folder in {}", parent.display()))?;
        let sandboxes = Sandboxes::open(&folder.path().join("artifacts"), &bounds)?;
        Ok(Self {
            sandboxes,
            requests: OutcallClient::new(&bounds, access.outcalls()?)?,
            graph: Arc::new(Graph::new(bounds.answers_kept_bytes)),
            gateways: Gateways::default(),
            blobs: Blobs::in_folder(folder.path().join("blobs"))?,
            activity: Arc::new(Activity::new()),
            has_refused_connection: AtomicBool::new(false),
            instances: Mutex::default(),
            under_way: watch::channel(0).0,
            bounds,
            access,
            client,
            folder,
        })
    }

    fn instances(&self) -> MutexGuard<'_, Instances> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn instance(&self, number: u64) -> Option<Arc<Handle>> {
        self.instances().all.get(&number).cloned()
    }

    /// The state of each number that was assigned: clients count by positions in the list.
    pub(crate) fn list(&self) -> Vec<&'static str> {
        let instances = self.instances();
        (0..instances.next)
            .map(|number| if instances.all.contains_key(&number) { "Available" } else { "Deleted" })
            .collect()
    }

    fn under_way(self: &Arc<Self>) -> InstanceOperation {
        self.under_way.send_modify(|count| *count += 1);
        InstanceOperation(self.clone())
    }

    /// Makes an instance. Blocks as long as that takes.
    fn create(&self, config: &InstanceConfig) -> Result<Handle> {
        let kinds = kinds(config)?;
        self.is_going_on()?;
        let memory = self.bounds.instances.try_reserve(INSTANCE_BYTES).map_err(|_| {
            anyhow!(
                "{}, and all are in use: delete one, run fewer tests at once, or state more memory",
                self.bounds.instances_that_fit()
            )
        })?;
        let folder = tempfile::tempdir_in(self.folder.path())?;
        let kept_in = config.state_dir.as_deref().map(|named| self.take_folder(named));
        let kept_in = kept_in.transpose()?;
        let kept = match &kept_in {
            Some(kept_in) if kept_in.is_kept()? => Some(kept_in.unpack(folder.path())?),
            _ => None,
        };
        let is_new = kept.is_none();
        let (plans, root, time) = match kept {
            Some(kept) => (kept.subnets, kept.root_seed, Time(kept.time)),
            None => {
                let plans: Vec<Plan> = plan(&kinds)?;
                ensure!(!plans.is_empty(), "at least one subnet must be asked for");
                let root = root_seed(&plans);
                (plans, root, GENESIS)
            }
        };
        let mut time = time;
        let mut progress = None;
        match &config.initial_time {
            Some(InitialTime::Timestamp(at)) => {
                let at = at.time().map_err(anyhow::Error::msg)?;
                ensure!(at >= time, "the initial time {} lies before {}", at.0, time.0);
                time = at;
            }
            Some(InitialTime::AutoProgress(with)) => {
                progress = Some(Duration::from_millis(with.artificial_delay_ms.unwrap_or(0)));
            }
            None => {}
        }
        let shared = InstanceContext {
            subnets: Arc::new(Subnets::from_plans(plans)?),
            waiting: Arc::default(),
            answers: Arc::default(),
            waiters: Waiters::new(self.bounds.limits.gateway.sync_calls_waiting),
            time: Arc::new(AtomicU64::new(time.0)),
            stop: Stop::new(),
            client: self.client,
        };
        let replica = Replica::open(folder.path(), root, shared, &self.sandboxes, &self.bounds)?;
        let requests = (self.requests.clone(), tokio::runtime::Handle::current());
        let mut instance = Instance::new(replica, folder, kept_in, requests);
        if progress.is_some() {
            instance.set_progress(progress)?;
        } else {
            // A state can be read from the beginning.
            instance.round()?;
        }
        tracing::info!(?kinds, is_new, "an instance was made");
        instance.start(root, memory)
    }

    /// Takes the folder that a client named for an instance, if it may be kept there.
    fn take_folder(&self, named: &Path) -> Result<state_archive::Folder> {
        let path = self.access.folders.admit(named)?;
        let folder = state_archive::Folder::take(&path)?;
        ensure!(
            folder.path() == path,
            "state_dir {}: it was replaced while it was taken",
            named.display()
        );
        Ok(folder)
    }

    fn is_going_on(&self) -> Result<()> {
        ensure!(!self.instances().is_stopping, ABOUT_TO_END);
        Ok(())
    }

    /// Makes an instance, with a gateway if requested, as long as the client waits for it.
    pub(crate) async fn make(self: &Arc<Self>, config: InstanceConfig) -> Result<CreatedInstance> {
        let (made_tx, made_rx) = oneshot::channel();
        let (server, under_way) = (self.clone(), self.under_way());
        // It continues when the client leaves; an unclaimed instance is closed then.
        tokio::spawn(async move {
            let made = server.make_for(config, &made_tx).await;
            let made = made.map(|made| UnclaimedInstance { server, made: Some(made) });
            drop(made_tx.send(made));
            drop(under_way);
        });
        let mut made = made_rx.await.context("an instance was being made")??;
        made.made.take().context("an instance was made")
    }

    async fn make_for<T>(
        self: &Arc<Self>,
        config: InstanceConfig,
        client: &oneshot::Sender<T>,
    ) -> Result<CreatedInstance> {
        let server = self.clone();
        let (config, made) = tokio::task::spawn_blocking(move || {
            let made = server.create(&config);
            (config, made)
        })
        .await?;
        let handle = Arc::new(made?);
        let number = self.register(&handle, client.is_closed());
        let number = match number {
            Ok(number) => number,
            Err(error) => {
                tokio::task::spawn_blocking(move || handle.close()).await??;
                return Err(error);
            }
        };
        let http_gateway_info = match &config.http_gateway_config {
            Some(gateway) => {
                let opened = self.gateways.open(gateway, (number, &handle), self).await;
                if opened.is_err() {
                    self.delete_now(number).await;
                }
                Some(opened?)
            }
            None => None,
        };
        let topology = topology(&handle.shared.subnets);
        Ok(CreatedInstance { instance_id: number, topology, http_gateway_info })
    }

    fn register(&self, handle: &Arc<Handle>, is_abandoned: bool) -> Result<u64> {
        ensure!(!is_abandoned, "the client is gone");
        let mut instances = self.instances();
        ensure!(!instances.is_stopping, ABOUT_TO_END);
        let number = instances.next;
        instances.next += 1;
        instances.all.insert(number, handle.clone());
        Ok(number)
    }

    /// Deletes an instance, when it has done what it does, also if who asked for it leaves. None if
    /// there is no such instance.
    ///
    /// # Errors
    /// When it was to be kept and is not.
    pub(crate) async fn delete(self: &Arc<Self>, number: u64) -> Option<Result<()>> {
        let (server, under_way) = (self.clone(), self.under_way());
        let deleting = tokio::spawn(async move {
            let deleted = server.delete_now(number).await;
            drop(under_way);
            deleted
        });
        deleting.await.unwrap_or_else(|error| Some(Err(error.into())))
    }

    async fn delete_now(&self, number: u64) -> Option<Result<()>> {
        let handle = self.instances().all.remove(&number)?;
        self.gateways.close_of(number).await;
        let closed = tokio::task::spawn_blocking(move || handle.close()).await;
        Some(closed.unwrap_or_else(|error| Err(error.into())))
    }

    fn stop_making(&self) {
        self.instances().is_stopping = true;
    }

    /// Deletes all instances and waits for those that are being made or deleted.
    async fn delete_all(self: &Arc<Self>) {
        let numbers: Vec<_> = self.instances().all.keys().copied().collect();
        for number in numbers {
            // The cause of a failure is in the log.
            let _ = self.delete(number).await;
        }
        // The sender is here, so the wait ends with none under way.
        let _ = self.under_way.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// The subnets that are asked for, in the order in which they get ids.
fn kinds(config: &InstanceConfig) -> Result<Vec<Kind>> {
    let set = &config.subnet_config_set;
    let refused = [
        (set.test_threshold_keys.is_some(), "a subnet with threshold keys for tests"),
        (!set.cloud_engine.is_empty(), "a subnet of the kind CloudEngine"),
        (config.mainnet_nns_subnet_id == Some(true), "the id of the public network's NNS"),
        (config.disable_ingress_validation == Some(true), "calls without validation"),
        (config.bitcoind_addr.as_ref().is_some_and(|list| !list.is_empty()), "Bitcoin"),
        (config.dogecoind_addr.as_ref().is_some_and(|list| !list.is_empty()), "Dogecoin"),
    ];
    if let Some((_, what)) = refused.iter().find(|(asked, _)| *asked) {
        bail!("{what} is not offered by thimble-pocket; see docs/pocket.md");
    }
    let features = config.icp_features.iter().flatten();
    if let Some((feature, _)) = features.into_iter().find(|(_, value)| !value.is_null()) {
        bail!(
            "the ICP feature `{feature}` is not offered by thimble-pocket: install the canisters \
             it stands for; see docs/pocket.md"
        );
    }
    let one = |kind, spec: &Option<SubnetSpec>| spec.clone().map(|spec| (kind, spec));
    let many = |kind, specs: &[SubnetSpec]| {
        specs.iter().map(|spec| (kind, spec.clone())).collect::<Vec<_>>()
    };
    let named = [
        one(Kind::Nns, &set.nns),
        one(Kind::Sns, &set.sns),
        one(Kind::Ii, &set.ii),
        one(Kind::Fiduciary, &set.fiduciary),
        one(Kind::Bitcoin, &set.bitcoin),
    ];
    let all = named
        .into_iter()
        .flatten()
        .chain(many(Kind::System, &set.system))
        .chain(many(Kind::Application, &set.application))
        .chain(many(Kind::VerifiedApplication, &set.verified_application));
    all.map(|(kind, spec)| check_spec(&spec).map(|()| kind)).collect()
}

/// Refuses what a subnet is asked to be and cannot.
fn check_spec(spec: &SubnetSpec) -> Result<()> {
    let is = |value: &Option<String>, expected: &str| {
        value.as_deref().is_none_or(|value| value == expected)
    };
    let is_new = spec.state_config.as_ref().is_none_or(|state| state.as_str() == Some("New"));
    let checks = [
        (is_new, "a subnet with the state of another server's folder"),
        (is(&spec.instruction_config, "Production"), "the instruction limits `Benchmarking`"),
        (is(&spec.cost_schedule, "Normal"), "the cost schedule `Free`"),
        (spec.subnet_admins.as_ref().is_none_or(serde_json::Value::is_null), "subnet admins"),
    ];
    match checks.iter().find(|(is_offered, _)| !is_offered) {
        Some((_, what)) => bail!("{what} is not offered by thimble-pocket; see docs/pocket.md"),
        None => Ok(()),
    }
}

/// The endpoints of the interface specification for an instance.
pub(crate) fn mount(handle: &Arc<Handle>, server: &Server) -> Result<GatewayHandle> {
    let bounds = &server.bounds;
    let limits = &bounds.limits;
    let keys = SubnetKeys::from_seed(&handle.root_seed)?;
    let seconds = Duration::from_secs;
    let config = GatewayConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        limits: limits.gateway.clone(),
        call_bytes: limits.subnet.message_payload_bytes,
        ingress_expiry: seconds(limits.consensus.ingress_expiry_seconds),
        ingress_drift: seconds(limits.consensus.ingress_drift_seconds),
        host_names: vec![],
        queries: (&limits.execution).into(),
        verify_threads: 1,
        connections: bounds.pool(pool::CONNECTIONS)?,
        bodies: bounds.pool(pool::REQUEST_BODIES)?,
        responses: bounds.pool(pool::RESPONSES)?,
        node_key: keys.node.clone(),
        node_id: keys.node_id(),
        subnet_id: keys.subnet_id(),
        root_key_der: keys.public_key_der(),
        version: env!("CARGO_PKG_VERSION").into(),
        latencies: Latencies::default(),
        shutdown_grace: SHUTDOWN_GRACE,
    };
    let node = InstanceNode {
        shared: handle.shared.clone(),
        views: handle.views.clone(),
        commands: handle.commands.clone(),
        failure: handle.failure.clone(),
        activity: server.activity.clone(),
    };
    let registry = Arc::new(Mutex::new(Registry::default()));
    Ok(Gateway::mount(config, Arc::new(node), handle.shared.waiters.clone(), &registry)?)
}

/// Runs the server until it is idle for too long, or stopped.
pub(crate) fn run(cli: Cli, client: Client) -> Result<()> {
    disk::restrict_new_files();
    let port_file = match &cli.port_file {
        Some(path) => {
            let taken = PortFile::take(path, cli.ip_addr)
                .with_context(|| format!("making the port file {}", path.display()))?;
            // Another server of this client runs.
            let Some(file) = taken else { return Ok(()) };
            Some(file)
        }
        None => None,
    };
    let filter = EnvFilter::try_new(&cli.log_levels)
        .with_context(|| format!("`{}` is no log filter", cli.log_levels))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    raise_descriptor_limit();
    let server = Arc::new(Server::new(&cli, client)?);
    let runtime = http_server::runtime(32).context("starting the HTTP runtime")?;
    runtime.block_on(serve(&cli, &server, port_file))?;
    drop(server);
    runtime.shutdown_timeout(SHUTDOWN_GRACE);
    Ok(())
}

async fn serve(cli: &Cli, server: &Arc<Server>, port_file: Option<PortFile>) -> Result<()> {
    let listen = SocketAddr::new(cli.ip_addr, cli.port);
    let buffers = server.bounds.pool(pool::CONNECTIONS)?;
    let connections = Connections::new(usize::try_from(CONNECTIONS)?, buffers, CONNECTION_BYTES);
    let (listener, address) = http_server::bind(listen).await?;
    server.access.set_listen(address);
    let mut http = http_server::Server::default();
    http.listen(listener, server.clone(), connections);
    let port = address.port();
    if let Some(file) = &port_file {
        file.write_port(port).context("writing the port file")?;
    }
    tracing::info!(
        port,
        instances = server.bounds.instances_max(),
        "serving; no more instances than this at once"
    );
    let why = until_over(cli, server).await?;
    tracing::info!(why, "stopping");
    // Clients that come from here on start a server of their own.
    drop(port_file);
    server.stop_making();
    // Connections that have not finished by then are closed.
    let _ = http.shutdown(SHUTDOWN_GRACE).await;
    server.delete_all().await;
    Ok(())
}

/// Waits until the server is to stop; why.
async fn until_over(cli: &Cli, server: &Arc<Server>) -> Result<&'static str> {
    let mut signals = StopSignals::listen()?;
    let ttl = Duration::from_secs(cli.ttl);
    let idle = async {
        while server.activity.idle().is_none_or(|idle| idle < ttl) {
            tokio::time::sleep(IDLE_LOOK).await;
        }
    };
    let hard: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = match cli.hard_ttl {
        Some(seconds) => Box::pin(tokio::time::sleep(Duration::from_secs(seconds))),
        None => Box::pin(std::future::pending()),
    };
    Ok(tokio::select! {
        signal = signals.next() => signal,
        () = idle => "no request came within the time to live (--ttl)",
        () = hard => "the hard time to live is over (--hard-ttl)",
    })
}

/// Takes as many open files as the system allows.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit on open files stays at {:?}", limit.current);
    }
}
