//! `thimble run`: opens what is on disk, wires the parts, serves until a signal, stops in order.

use std::{
    io::{IsTerminal, Write as _},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use accounting::{Ledger, Pool, cgroup::Cgroup};
use anyhow::{Context, Result, bail};
use consensus::{
    BlockLog, Certifier, Consensus, ConsensusDeps, CountedQueries, IngressPool, LogReplay,
    SingleNode, SubnetConfig, SystemRandom,
};
use disk::Lock;
use envelope::CallVerifier;
use execution::{Executor, ExecutorConfig, QueryService};
use gateway::{Gateway, GatewayConfig, GatewayHandle, HttpGatewayConfig, Waiters};
use lifecycle::StopSignals;
use limits::{Limits, pool};
use memory::FileHeap;
use nidkg::EngineConfig;
use pages::PageStore;
use prometheus_client::registry::Registry;
use rounds::{Driver, DriverExit, ExecutorQueries, MachineClock, Settings, States, Volume};
use sandbox::{BudgetedSandbox, ModuleSource, SandboxConfig, StoredModule, UploadedModule};
use state::{
    BlobStore, CanisterId, Height, ModuleHash, StateStore, SubnetInfo, SubnetType, Time,
    state_heap::StateHeap,
};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};
use zeroize::Zeroizing;

use crate::{
    StartSubnet,
    adapter::{Adapter, Agreement},
    ahead, allocator,
    clock::{self, NodeClock},
    config::{Config, HTTP_GATEWAY, HttpGateway},
    disk_budget,
    disk_usage::{DiskUsage, StateHeapBytes},
    governor,
    keys::{Keys, files::lock},
    keystore::KeyFiles,
    metrics::{Readings, RoundMetrics},
    observer::{MemoryObservations, NodeObserver},
    outcalls::{self, NodeOutcalls},
    replay::{self, Tally},
    retry::NodeRetryPolicy,
    rules,
    verdicts::Verdicts,
    watch::Watch,
    watchdog::{Stage, Watchdog},
};

/// Signal to a process that writes beyond its file size limit.
const SIGXFSZ: i32 = 25;
/// Numbers of the public network's canisters: `specified_id` may name them, so that what tools
/// expect under a well-known id can be installed there, and no other canister is given one.
const WELL_KNOWN_NUMBERS: (u64, u64) = (0, (1 << 28) - 1);
/// Number of the first canister that asks for no id. The public network's own ids do not come so
/// far.
const FIRST_CANISTER: u64 = 0x8000_0000_0010_0000;
const LAST_CANISTER: u64 = FIRST_CANISTER + (1 << 20) - 1;
/// Time for requests in flight when the node stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// A round that has not ended by then after the request to stop never may: the process ends without
/// its result, and the next start executes the batch again.
const STOP_DEADLINE: Duration = Duration::from_secs(20);
/// The same once a checkpoint was being made after the request: it ends with the disk, and what
/// follows it may end later than [`STOP_DEADLINE`]. Below the 60 s that the lab waits and the 90 s
/// of the systemd unit.
const STOP_CHECKPOINT_DEADLINE: Duration = Duration::from_secs(55);
/// Time between two checks of the deadline.
const STOP_LOOK: Duration = Duration::from_millis(100);
/// Exit status of a node that was stopped and could not make its last checkpoint.
const EXIT_UNFINISHED: i32 = 3;

/// Address space for the state's heap: this factor times what its lines allow, and at least the
/// minimum. The disk space that it uses is bounded by the lines.
const STATE_HEAP_ROOM: u64 = 4;
const STATE_HEAP_ROOM_MIN: u64 = 256 << 30;

/// How long workers may take to end before the process becomes another one, and how often it looks.
const CHILDREN_GRACE: Duration = Duration::from_secs(5);
const CHILDREN_LOOK: Duration = Duration::from_millis(2);

/// Runs the node until SIGINT, SIGTERM or SIGHUP. When a state was fetched from peers, the process
/// becomes a new one on top of it, by the same arguments.
pub(crate) fn run(config: Config, address_file: Option<&Path>, start: StartSubnet) -> Result<()> {
    if config.heap_profile {
        allocator::start_sampling(&config.data_dir, &config.limits.heap)?;
    }
    disk::restrict_new_files();
    match serve(config, address_file, start)? {
        DriverExit::Stopped => Ok(()),
        DriverExit::NewState => start_again(),
    }
}

/// Replaces this process by a fresh one. Everything is closed; the number of the process and its
/// group stay.
fn start_again() -> Result<()> {
    use std::os::unix::process::CommandExt as _;
    await_children();
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "thimble".into());
    let program = std::env::current_exe().context("finding this program's file")?;
    disk::allow_new_files();
    tracing::info!("starting again in place, with the state that was fetched");
    let error = std::process::Command::new(program).arg0(name).args(arguments).exec();
    Err(error).context("starting again with the state that was fetched; start the node by hand")
}

/// Waits for workers that are ending. The process that replaces this one does not know them and
/// cannot reap them: one that ends later would stay a zombie.
fn await_children() {
    let deadline = Instant::now() + CHILDREN_GRACE;
    loop {
        match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) if Instant::now() < deadline => std::thread::sleep(CHILDREN_LOOK),
            Ok(None) => {
                tracing::warn!("workers of before have not ended within {CHILDREN_GRACE:?}");
                return;
            }
            // No child is left.
            Err(_) => return,
        }
    }
}

fn serve(
    mut config: Config,
    address_file: Option<&Path>,
    start: StartSubnet,
) -> Result<DriverExit> {
    let started = Instant::now();
    start_logging(&config.log)?;
    let data = &config.data_dir;
    let _lock = open_data_folder(&config)?;
    let keys = Keys::open_or_create(&data.join("keys"))?;
    config.features = config.features.settled(several(&keys));
    let limits = Arc::new(config.limits.clone());
    raise_descriptor_limit(&limits)?;
    let ledger = limits.ledger()?;
    let cgroup = Cgroup::own().unwrap_or_default();
    if let Some(warning) = config.query_wait_warning() {
        tracing::warn!("{warning}");
    }
    memory::check_group(
        cgroup.as_ref(),
        Limits::smallest_bytes(),
        limits.memory_budget_bytes,
        "the kernel may kill workers before a limit of the node is reached",
    )?;
    let runtime = http_server::runtime(16).context("starting the HTTP runtime")?;
    let served = serve_on(&runtime, &config, address_file, start, (started, ledger, cgroup, keys));
    // A request that still waits for a worker must not keep the process.
    runtime.shutdown_timeout(SHUTDOWN_GRACE);
    served
}

/// Resources opened before the runtime.
type StartupResources = (Instant, Ledger, Option<Cgroup>, Keys);

fn serve_on(
    runtime: &tokio::runtime::Runtime,
    config: &Config,
    address_file: Option<&Path>,
    start: StartSubnet,
    (started, ledger, cgroup, keys): StartupResources,
) -> Result<DriverExit> {
    let limits = Arc::new(config.limits.clone());
    let (signals, _too_large) = {
        let _entered = runtime.enter();
        // A file that may not grow any more is an error that is waited for like a full disk. The
        // default action of this signal would end the process.
        let too_large = signal(SignalKind::from_raw(SIGXFSZ)).context("taking SIGXFSZ")?;
        (StopSignals::listen().context("taking SIGINT, SIGTERM and SIGHUP")?, too_large)
    };
    let (stop_tx, stop_rx) = tokio::sync::oneshot::channel();
    let is_serving = Arc::new(AtomicBool::new(false));
    runtime.spawn(take_stop_signal(signals, is_serving.clone(), stop_tx));
    rules::settle(config, |config| replay_as(config, Role::Replay))?;

    let registry = Arc::new(Mutex::new(Registry::with_prefix("thimble")));
    let opened = open(config, &limits, &ledger, cgroup, keys, &registry, Role::Member(start))?;
    outcalls::start(runtime, opened.outcalls.as_ref());
    let NodeParts { driver, busy, rounds, queries, adapter, keys, pool, waiters, watch, .. } =
        opened;

    let latencies = gateway::Latencies::default();
    let inputs = governor::GovernorInputs {
        watch: watch.clone(),
        pool: pool.clone(),
        rounds,
        latencies: latencies.clone(),
        queries,
        busy,
    };
    let _governor = governor::start(inputs, &limits)?;
    let gateway = runtime
        .block_on(start_gateway(config, &ledger, &keys, adapter, waiters, registry, latencies))?;
    tracing::info!(
        address = %gateway.local_addr(),
        budget = %config.memory,
        disk = config.disk.as_deref(),
        subnet = %keys.subnet_id(),
        node = %keys.node_id(),
        millis = started.elapsed().as_millis() as u64,
        "serving"
    );
    if let Some(file) = address_file {
        let text = format!("{}\n", gateway.local_addr());
        disk::replace_file(file, text.as_bytes(), disk::Readers::All)
            .with_context(|| format!("writing the address to {}", file.display()))?;
    }

    is_serving.store(true, Relaxed);
    run_until_stopped(runtime, driver, gateway, stop_rx, (&pool, &watch.watchdog))
}

/// Runs rounds until a signal or their own end, then stops gateway and rounds in order, within the
/// deadline.
fn run_until_stopped(
    runtime: &tokio::runtime::Runtime,
    driver: NodeDriver,
    gateway: GatewayHandle,
    mut stop_rx: tokio::sync::oneshot::Receiver<&'static str>,
    (pool, watchdog): (&IngressPool, &Watchdog),
) -> Result<DriverExit> {
    let (ended_tx, mut ended_rx) = tokio::sync::oneshot::channel();
    let (finished_tx, finished_rx) = mpsc::channel();
    let rounds = std::thread::Builder::new()
        .name("rounds".into())
        .spawn(move || {
            let result = futures::executor::block_on(driver.run());
            let _ = ended_tx.send(());
            let _ = finished_tx.send(());
            result
        })
        .context("starting the round thread")?;
    runtime.block_on(async {
        tokio::select! {
            signal = &mut stop_rx => {
                tracing::info!(signal = signal.unwrap_or_default(), "stopping");
            }
            _ = &mut ended_rx => {}
        }
    });
    // From here on nothing is waited for without a bound, and not by the runtime, whose threads may
    // be blocked.
    let asked_at = Instant::now();
    let (drained_tx, drained_rx) = mpsc::channel();
    runtime.spawn(async move {
        gateway.shutdown().await;
        let _ = drained_tx.send(());
    });
    let _ = drained_rx.recv_timeout(SHUTDOWN_GRACE + SHUTDOWN_GRACE);
    pool.close();
    if let Err(unfinished) = await_rounds(&finished_rx, asked_at, watchdog) {
        tracing::error!("{unfinished}");
        let _ = writeln!(std::io::stderr(), "thimble: {unfinished}");
        // Neither the thread nor what it holds can be waited for.
        std::process::exit(EXIT_UNFINISHED);
    }
    match rounds.join() {
        Ok(result) => Ok(result?),
        Err(_) => bail!("the round thread ended with a defect; its message stands above"),
    }
}

/// Takes the signal to stop. Before the node serves there is nothing to finish: it ends at once,
/// and the next start does again what this one had begun.
async fn take_stop_signal(
    mut signals: StopSignals,
    is_serving: Arc<AtomicBool>,
    stop_tx: tokio::sync::oneshot::Sender<&'static str>,
) {
    let signal = signals.next().await;
    if !is_serving.load(Relaxed) {
        tracing::info!(signal, "stopped while starting; the next start begins again");
        std::process::exit(EXIT_UNFINISHED);
    }
    let _ = stop_tx.send(signal);
}

/// The deadline after a check of what the round thread does, if it was `before`.
fn stop_deadline(before: Duration, stage: Option<Stage>) -> Duration {
    if stage == Some(Stage::Checkpoint) { STOP_CHECKPOINT_DEADLINE } else { before }
}

/// Waits for the round thread, for [`STOP_DEADLINE`] after the request to stop, and once it was
/// seen to make a checkpoint for [`STOP_CHECKPOINT_DEADLINE`].
///
/// # Errors
/// If it has not ended by then, with its last activity.
fn await_rounds(
    finished_rx: &mpsc::Receiver<()>,
    asked_at: Instant,
    watchdog: &Watchdog,
) -> Result<(), String> {
    let mut deadline = STOP_DEADLINE;
    loop {
        // An error other than the timeout means that the thread ended by a panic.
        if finished_rx.recv_timeout(STOP_LOOK) != Err(mpsc::RecvTimeoutError::Timeout) {
            return Ok(());
        }
        let active = watchdog.active(Instant::now());
        deadline = stop_deadline(deadline, active.map(|(stage, ..)| stage));
        if asked_at.elapsed() >= deadline {
            let doing = match active {
                Some((Stage::Checkpoint, height, _)) => {
                    format!("checkpoint of height {}", height.0)
                }
                Some((Stage::Round, height, _)) => format!("round of height {}", height.0),
                None => "round thread".to_owned(),
            };
            let stall = watchdog.stall(Instant::now()).map(|stall| format!(" ({stall})"));
            return Err(format!(
                "stopped without a last checkpoint: the {doing} did not end within {} s{}; nothing \
                 acknowledged is lost, the next start executes again what came after the last \
                 checkpoint",
                deadline.as_secs(),
                stall.unwrap_or_default()
            ));
        }
    }
}

/// Takes the data folder, which is made if it is absent.
fn open_data_folder(config: &Config) -> Result<Lock> {
    let data = &config.data_dir;
    let restricted = disk::make_private_folder(data, "keys")
        .with_context(|| format!("making the data folder {}", data.display()))?;
    if restricted {
        tracing::info!(folder = %data.display(), "only the owner can read the data folder from now on");
    }
    let lock = lock(data)?;
    if let Some(shortage) = disk_budget::shortage(config)? {
        tracing::warn!("{shortage}");
    }
    Ok(lock)
}

/// Executes the block log in a copy of a data folder, with the given number of threads.
pub(crate) fn replay_copy(
    config: &Config,
    threads: u64,
    print: bool,
    tally: &Arc<Tally>,
) -> Result<()> {
    raise_descriptor_limit(&config.limits)?;
    replay_as(config, Role::Copy { threads, print, tally: tally.clone() })
}

/// Executes the block log to its end and makes a checkpoint there, by the limits of this
/// configuration; nothing is served.
fn replay_as(config: &Config, role: Role) -> Result<()> {
    let keys = Keys::open_or_create(&config.data_dir.join("keys"))?;
    let limits = Arc::new(config.limits.clone());
    let ledger = limits.ledger()?;
    let registry = Mutex::new(Registry::default());
    let cgroup = Cgroup::own().unwrap_or_default();
    let waits_for_trouble = matches!(role, Role::Copy { .. });
    let NodeParts { driver, pool, .. } =
        open(config, &limits, &ledger, cgroup, keys, &registry, role)?;
    // The round loop executes the log's contents; then it stops, with a checkpoint. No client waits
    // for a copy: local faults are waited for.
    if !waits_for_trouble {
        pool.close();
    }
    match futures::executor::block_on(driver.run())? {
        DriverExit::Stopped => Ok(()),
        DriverExit::NewState => bail!("a state of peers was fetched before the log was executed"),
    }
}

/// Opens canister memory as the newest checkpoint describes it.
fn open_pages(data: &Path, limits: &Limits, store: &StateStore) -> Result<PageStore> {
    // One entry for each memory: they are in the heap of the canisters.
    let here = state::state_heap::enter();
    let index = match store.load()? {
        Some(checkpoint) => checkpoint
            .memories()?
            .map(|record| record.map(|(id, (index, base_bytes))| (id, index, base_bytes)))
            .collect::<Result<Vec<_>, _>>()?,
        None => vec![],
    };
    drop(here);
    Ok(PageStore::open(data.join("pages"), &limits.pages, index)?)
}

/// Where the sandbox finds a module again whose compiled artefact is gone.
struct Modules(Arc<BlobStore>);

impl ModuleSource for Modules {
    fn module(&self, hash: &ModuleHash) -> Option<Box<dyn UploadedModule + '_>> {
        let bytes = self.0.bytes(&hash.0).ok().flatten()?;
        Some(Box::new(StoredModule { blobs: &self.0, parts: vec![hash.0], bytes }))
    }
}

type NodeDriver = Driver<Executor, MachineClock, Volume, NodeObserver>;

enum Role {
    /// To take part: make blocks, alone or with others.
    Member(StartSubnet),
    /// To execute the contents of the block log.
    Replay,
    /// The same in a copy of a data folder, with `threads` threads; counts the roots that it
    /// compared.
    Copy { threads: u64, print: bool, tally: Arc<Tally> },
}

struct NodeParts {
    driver: NodeDriver,
    busy: Arc<AtomicBool>,
    rounds: RoundMetrics,
    queries: QueryService,
    adapter: Adapter,
    keys: Keys,
    pool: Arc<IngressPool>,
    waiters: Waiters,
    watch: Arc<Watch>,
    outcalls: Option<NodeOutcalls>,
}

/// Puts the replicated state into a heap on disk from here on.
fn make_state_heap(data: &Path, limits: &Limits) -> Result<()> {
    // Room for all that the rules allow. A process that executes blocks from before a change of its
    // limits continues in the same heap: addresses cost nothing.
    let bytes = limits.state_heap_bytes().saturating_mul(STATE_HEAP_ROOM).max(STATE_HEAP_ROOM_MIN);
    let heap = FileHeap::create(data, bytes)
        .with_context(|| format!("making the state's heap in {}", data.display()))?;
    heap.bound(limits.state_heap_bytes());
    state::state_heap::install(StateHeap {
        switch: memory::switch_heap,
        number: heap.number(),
        holds: memory::file_heap_holds,
        ready: memory::file_heap_ready,
    });
    Ok(())
}

/// Opens the stores, restores the newest checkpoint, and wires everything but the gateway.
#[expect(
    clippy::too_many_lines,
    reason = "wiring: every part is made once, in the order in which they need each other"
)]
fn open(
    config: &Config,
    limits: &Arc<Limits>,
    ledger: &Ledger,
    cgroup: Option<Cgroup>,
    keys: Keys,
    registry: &Mutex<Registry>,
    role: Role,
) -> Result<NodeParts> {
    let data = &config.data_dir;
    let state_dir = data.join("state");
    if statesync::complete_install(data)? {
        tracing::info!("a state fetched from peers was put in place");
    }
    let store = StateStore::open(&state_dir, limits.pages.metadata_cache_bytes)?;
    let blob_bytes_max = limits.module.wasm_bytes.max(limits.subnet.chunk_bytes);
    let blobs = Arc::new(BlobStore::open(&state_dir.join("blobs"), blob_bytes_max)?);
    let threads = match role {
        Role::Copy { threads, .. } => threads,
        Role::Member(_) | Role::Replay => limits.execution.threads,
    };
    let sandbox = Arc::new(open_sandbox(data, limits, &blobs, threads)?);
    make_state_heap(data, limits)?;
    let pages = Arc::new(open_pages(data, limits, &store)?);
    let named =
        |name| ledger.pool(name).with_context(|| format!("the ledger has no pool `{name}`"));
    let mut executions = named(pool::EXECUTIONS)?;
    if let Role::Copy { threads, .. } = role {
        // Room for all of them at once, in addition to the sheet: nothing is served meanwhile.
        let each = executions.cap_bytes().div_ceil(limits.execution.threads.max(1));
        executions = Pool::standalone(pool::EXECUTIONS, each.saturating_mul(threads));
    }
    let pools = (executions, named(pool::COMPILATIONS)?, named(pool::QUERIES)?);
    let budgeted = Arc::new(BudgetedSandbox::new(sandbox.clone(), pools, limits));
    let ingress = Arc::new(IngressPool::new(&limits.consensus));
    ingress.observe_in(&named(pool::INGRESS_POOL)?);
    let retry = Arc::new(NodeRetryPolicy::new(ingress.clone(), data));
    let mut executor = Executor::open(
        executor_config(config, limits, &keys, threads)?,
        budgeted,
        pages.clone(),
        store,
        blobs,
        retry,
    )?;
    executor.cache_queries(named(pool::QUERY_CACHE)?);
    let queries: Option<Arc<dyn CountedQueries>> = match role {
        Role::Member(_) => Some(Arc::new(ExecutorQueries(executor.count_queries(keys.node_id())))),
        Role::Replay | Role::Copy { .. } => None,
    };
    let (log, recovered_at) = open_log(data, &executor)?;
    let outcalls = match role {
        Role::Member(_) => {
            outcalls::open(config, &executor, named(pool::OUTCALLS)?, keys.node_id())?
        }
        Role::Replay | Role::Copy { .. } => None,
    };
    let window = SingleNode::ingress_window(&limits.consensus);
    let clock = NodeClock::new(several(&keys), data, window);
    if matches!(role, Role::Member(_)) {
        clock.keep();
    }
    let wiring = ConsensusDeps {
        pool: ingress.clone(),
        log,
        clock: clock.block_times(),
        envelopes: Arc::new(call_verifier(limits, &keys)),
        limits: limits.consensus.clone(),
        states: Some(Arc::new(States::new(&executor))),
        outcalls: outcalls.as_ref().map(|outcalls| outcalls.agreed.clone()),
        queries,
    };
    let height = executor.height();
    let (consensus, subnet): (Box<dyn Consensus>, _) = match &role {
        // Alone: peers must not hear of the limits of before.
        Role::Replay => (Box::new(LogReplay::new(wiring, height)?), None),
        Role::Copy { print, tally, .. } => {
            let replay = LogReplay::new(wiring, height)?;
            (Box::new(replay::CountingReplay::new(replay, *print, tally.clone())), None)
        }
        Role::Member(start) => {
            agreement(config, *start, &keys, wiring, named(pool::NIDKG_TABLES)?, &executor)?
        }
    };
    let in_heap = Arc::new(StateHeapBytes::default());
    let disk =
        DiskUsage::new(config, pages.clone(), sandbox.clone(), executor.reader(), in_heap.clone());
    let watchdog = Watchdog::new(executor.running(), data);
    let watch = Arc::new(Watch::new(ledger.clone(), cgroup, sandbox, (watchdog, clock), limits));
    let rounds = register_metrics(registry, &watch, &ingress, &executor, disk.clone());
    let waiters = Waiters::new(limits.gateway.sync_calls_waiting);
    let adapter = Adapter {
        pool: ingress.clone(),
        queries: executor.queries(),
        reader: executor.reader(),
        ranges: canister_ranges(),
        recovered_at,
        watch: watch.clone(),
        rounds: rounds.clone(),
        subnet_id: keys.subnet_id(),
        node_id: keys.node_id(),
        disk,
        delta_capacity_bytes: limits.pages.delta_capacity_bytes,
        largest: Mutex::default(),
        subnet,
    };
    let busy = Arc::new(AtomicBool::new(false));
    let observer = NodeObserver {
        watch: watch.clone(),
        busy: busy.clone(),
        waiters: waiters.clone(),
        metrics: rounds.clone(),
        observed: MemoryObservations::new(ledger, in_heap),
        pages,
        relieved: executor.relieved(),
        outcalls: outcalls.clone(),
        recovered_at,
    };
    if matches!(role, Role::Member(_)) {
        let compile = executor.compile_ahead(named(pool::COMPILATIONS)?);
        let modules = executor.most_used_modules();
        ahead::start(ingress.clone(), call_verifier(limits, &keys), compile, modules)?;
    }
    let settings = Settings::new(data.clone(), recovered_at, limits);
    let queries = executor.queries();
    let driver = Driver::new(
        consensus,
        executor,
        MachineClock::since(watch.record.started),
        Volume(data.clone()),
        observer,
        ingress.clone(),
        settings,
    )
    .with_verdicts({
        let verdicts = Verdicts::read(data)?;
        move |height, recorded| verdicts.at(height, recorded)
    });
    Ok(NodeParts {
        driver,
        busy,
        rounds,
        queries,
        adapter,
        keys,
        pool: ingress,
        waiters,
        watch,
        outcalls,
    })
}

/// The canisters of this subnet, first and last.
fn canister_ranges() -> Vec<(CanisterId, CanisterId)> {
    [WELL_KNOWN_NUMBERS, (FIRST_CANISTER, LAST_CANISTER)]
        .map(|(first, last)| {
            (ExecutorConfig::canister_id(first), ExecutorConfig::canister_id(last))
        })
        .to_vec()
}

/// The pool of worker processes: this program, with another role.
fn open_sandbox(
    data: &Path,
    limits: &Limits,
    blobs: &Arc<BlobStore>,
    threads: u64,
) -> Result<sandbox::Pool> {
    Ok(sandbox::Pool::open(SandboxConfig {
        exe: std::env::current_exe().context("finding this program's file")?,
        cache_dir: data.join("artifacts"),
        update_workers: threads as usize,
        query_workers: limits.execution.query_threads as usize,
        module: limits.module.clone(),
        sandbox: limits.sandbox.clone(),
        paused_spill_bytes: limits.paused_spill_bytes(),
        paused_anonymous_bytes: limits.paused_anonymous_bytes(),
        source: Some(Arc::new(Modules(blobs.clone()))),
        probes: false,
    })?)
}

fn executor_config(
    config: &Config,
    limits: &Arc<Limits>,
    keys: &Keys,
    threads: u64,
) -> Result<ExecutorConfig> {
    Ok(ExecutorConfig {
        limits: limits.clone(),
        threads,
        subnet: SubnetInfo {
            subnet_id: keys.subnet_id(),
            public_key_der: keys.root_key_der(),
            subnet_type: SubnetType::Application,
            canister_ranges: canister_ranges(),
            nodes: keys.nodes()?,
        },
        root_key_der: keys.root_key_der(),
        first_canister: FIRST_CANISTER,
        provisional: config.features.provisional(several(keys)),
        outcalls: config.features.outcalls,
        subnet_admins: config.features.subnet_admins.clone(),
        placement: None,
    })
}

/// Verifier of calls, when they are taken and again in every block.
fn call_verifier(limits: &Limits, keys: &Keys) -> CallVerifier {
    CallVerifier::new(
        keys.committee.public_key,
        &limits.gateway,
        ingress_window(limits),
        keys.subnet_id(),
        canister_ranges(),
    )
}

/// The block log, and the height that the node has again once the log is executed to its end.
fn open_log(data: &Path, executor: &Executor) -> Result<(BlockLog, Height)> {
    let height = executor.height();
    if height.0 > 0 {
        tracing::info!(
            height = height.0,
            root = hex::encode(executor.root()),
            "restored the newest checkpoint"
        );
    }
    let log = BlockLog::open(&data.join("blocks"), rules::BLOCK_SEGMENT_BYTES)?;
    let recovered_at = log.last().unwrap_or(height).max(height);
    if recovered_at > height {
        tracing::info!(
            checkpoint = height.0,
            log = recovered_at.0,
            "executing again what the block log holds"
        );
    }
    Ok((log, recovered_at))
}

fn register_metrics(
    registry: &Mutex<Registry>,
    watch: &Arc<Watch>,
    ingress: &Arc<IngressPool>,
    executor: &Executor,
    disk: DiskUsage,
) -> RoundMetrics {
    let mut registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
    let rounds = RoundMetrics::new(&mut registry);
    registry.register_collector(Box::new(Readings {
        watch: watch.clone(),
        ingress: ingress.clone(),
        rounds: rounds.clone(),
        queries: executor.queries(),
        disk,
    }));
    rounds
}

/// Whether the subnet's genesis has more than one member.
pub(crate) fn several(keys: &Keys) -> bool {
    keys.origin.is_some() && keys.members.len() > 1
}

/// A subnet of one decides by itself; several connect to each other and agree.
fn agreement(
    config: &Config,
    start: StartSubnet,
    keys: &Keys,
    wiring: ConsensusDeps,
    tables: Pool,
    executor: &Executor,
) -> Result<(Box<dyn Consensus>, Option<Agreement>)> {
    let (limits, height) = (&config.limits, executor.height());
    let Some(origin) = keys.origin.as_ref().filter(|_| several(keys)) else {
        let kept = limits.consensus.certificates_kept as usize;
        let certifier = Certifier::new(keys.committee.clone(), keys.share_again()?, kept);
        let random = Box::new(SystemRandom);
        let newest = wiring.log.last().filter(|last| *last > height).unwrap_or(height);
        let order = clock::ordered_after(&config.data_dir, newest)?;
        let node = SingleNode::new(wiring, certifier, height, executor.time(), random)?;
        return Ok((Box::new(node.set_time_back(order)), None));
    };
    let listen = config.p2p.listen.context(
        "this node is one of several and needs an address where the others reach it: --p2p-listen \
         ADDRESS:PORT, or `listen` under [p2p] in the configuration",
    )?;
    let addresses = config.p2p.peers.clone();
    let arithmetic = EngineConfig { tables, ..EngineConfig::for_this_machine() };
    let node_key = keys.node.verifying_key().to_bytes();
    let subnet = SubnetConfig {
        node_secret: Zeroizing::new(keys.node.to_bytes()),
        genesis: keys.genesis_summary()?,
        key: executor.subnet_key().cloned(),
        keys: Box::new(KeyFiles::new(&config.data_dir, arithmetic.clone())),
        arithmetic: consensus::arithmetic(arithmetic),
        agreed: config.agreed()?,
        genesis_time: Time(origin.time_seconds.saturating_mul(1_000_000_000)),
        listen,
        addresses: addresses.clone(),
        directory: config.data_dir.join("consensus"),
        call_bytes: limits.gateway.body_bytes,
    };
    let subnet = start(wiring, subnet, height)?;
    let status = subnet.status();
    let summary = status.key();
    tracing::info!(
        members = summary.members().len(),
        place = summary.place_of(&node_key).map(|place| place.0),
        epoch = summary.epoch(),
        %listen,
        "taking part in the subnet"
    );
    Ok((Box::new(subnet), Some(Agreement { status, node_key, addresses })))
}

/// How far ahead a call may expire, and the drift of clocks allowed on top.
fn ingress_window(limits: &Limits) -> (Duration, Duration) {
    let seconds = Duration::from_secs;
    (
        seconds(limits.consensus.ingress_expiry_seconds),
        seconds(limits.consensus.ingress_drift_seconds),
    )
}

async fn start_gateway(
    config: &Config,
    ledger: &Ledger,
    keys: &Keys,
    adapter: Adapter,
    waiters: Waiters,
    registry: Arc<Mutex<Registry>>,
    latencies: gateway::Latencies,
) -> Result<GatewayHandle> {
    let limits = &config.limits;
    let pool = |name| ledger.pool(name).with_context(|| format!("the ledger has no pool `{name}`"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let gateway = GatewayConfig {
        listen: config.listen,
        limits: limits.gateway.clone(),
        call_bytes: limits.subnet.message_payload_bytes,
        ingress_expiry: ingress_window(limits).0,
        ingress_drift: ingress_window(limits).1,
        host_names: config.host_names.clone(),
        queries: (&limits.execution).into(),
        verify_threads: cores,
        connections: pool(pool::CONNECTIONS)?,
        bodies: pool(pool::REQUEST_BODIES)?,
        responses: pool(pool::RESPONSES)?,
        node_key: keys.node.clone(),
        node_id: keys.node_id(),
        subnet_id: keys.subnet_id(),
        root_key_der: keys.root_key_der(),
        version: env!("CARGO_PKG_VERSION").into(),
        latencies,
        shutdown_grace: SHUTDOWN_GRACE,
    };
    let mut gateway = Gateway::start(gateway, Arc::new(adapter), waiters, registry).await?;
    start_http_gateway(config, ledger, several(keys), &mut gateway).await?;
    Ok(gateway)
}

/// Serves canisters to browsers, if that is enabled and there is memory for it. A lack of memory is
/// an error only if it was requested.
async fn start_http_gateway(
    config: &Config,
    ledger: &Ledger,
    several: bool,
    gateway: &mut GatewayHandle,
) -> Result<()> {
    let (listen, is_asked_for) = match config.http_gateway {
        Some(HttpGateway::At(listen)) => (listen, true),
        None if !several => (HTTP_GATEWAY, false),
        Some(HttpGateway::Off) | None => return Ok(()),
    };
    let limits = &config.limits.http_gateway;
    if let Some(why) = no_http_gateway(config) {
        if is_asked_for {
            bail!("the HTTP gateway cannot be had: {why}; or switch it off: --http-gateway off");
        }
        tracing::info!("the HTTP gateway is off: {why}");
        return Ok(());
    }
    let pool = |name| ledger.pool(name).with_context(|| format!("the ledger has no pool `{name}`"));
    let parts = HttpGatewayConfig {
        listen,
        limits: limits.clone(),
        connections: pool(pool::HTTP_CONNECTIONS)?,
        requests: pool(pool::HTTP_REQUESTS)?,
        ingress_history_bytes: config.limits.subnet.ingress_history_bytes,
    };
    match gateway.serve_browsers(parts).await {
        Ok(_) => Ok(()),
        Err(error) if is_asked_for => Err(error).context("starting the HTTP gateway"),
        Err(error) => {
            tracing::info!("the HTTP gateway is off: {error}; --http-gateway names another");
            Ok(())
        }
    }
}

/// Why there can be none.
fn no_http_gateway(config: &Config) -> Option<String> {
    use rustix::process::{Resource, getrlimit};
    let limits = &config.limits;
    if !limits.http_gateway.is_possible() {
        return Some(format!(
            "there is no memory for it in a budget of {} (http_gateway.connections = 0); it needs \
             192 MiB, or limits of its own under [limits.http_gateway]",
            config.memory
        ));
    }
    let (allowed, needed) = (getrlimit(Resource::Nofile).current?, descriptors_needed(limits));
    (allowed < needed).then(|| {
        format!(
            "the system allows {allowed} open files, and with {} connections of browsers \
             (http_gateway.connections) {needed} may be needed",
            limits.http_gateway.connections
        )
    })
}

/// The consensus library's logs of its own steps are of no use to operators: unless the filter
/// names it, it is logged from warnings on.
const LIBRARY: &str = "commonware";

fn log_filter(text: &str) -> Result<EnvFilter> {
    let filter = EnvFilter::try_new(text).with_context(|| {
        format!("`{text}` is no log filter; try error, warn, info, debug or info,gateway=debug")
    })?;
    let talkative = filter.max_level_hint() > Some(LevelFilter::WARN);
    if talkative && !text.contains(LIBRARY) {
        return Ok(EnvFilter::try_new(format!("{text},{LIBRARY}=warn"))?);
    }
    Ok(filter)
}

pub(crate) fn start_logging(filter: &str) -> Result<()> {
    let filter = log_filter(filter)?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A log that cannot be written must not end the node: the error could not be logged either.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Ok(())
}

/// Descriptors of the node other than those of canisters and connections: logs, sockets of workers,
/// the stores.
const DESCRIPTORS_OWN: u64 = 64;
/// How often the page store has `pages.open_files` open at most: written, being synced, without a
/// name, and in passing, to be mapped, read, folded or sent to peers.
const TIMES_OPEN: u64 = 4;

/// Open files that all canisters and connections may need.
pub(crate) fn descriptors_needed(limits: &Limits) -> u64 {
    let memories = TIMES_OPEN.saturating_mul(limits.pages.open_files);
    let connections = limits.gateway.connections.saturating_add(limits.http_gateway.connections);
    DESCRIPTORS_OWN.saturating_add(connections).saturating_add(memories)
}

/// Takes as many open files as the system allows. Fewer than what memories and connections may need
/// is refused: the lack would show when the node is busy.
fn raise_descriptor_limit(limits: &Limits) -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let allowed = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit on open files stays at {:?}", limit.current);
            limit.current
        }
    }
    .unwrap_or(u64::MAX);
    let (files, connections) = (limits.pages.open_files, limits.gateway.connections);
    // Browsers are served where there are descriptors for them.
    let needed = descriptors_needed(limits).saturating_sub(limits.http_gateway.connections);
    if allowed < needed {
        bail!(
            "the system allows {allowed} open files; {TIMES_OPEN} times {files} of canister \
             memories (pages.open_files) and {connections} connections (gateway.connections) may \
             need {needed}: raise the limit (ulimit -Hn, or LimitNOFILE of the service) or lower \
             these"
        );
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn deadline_of_a_stop_stays_long_after_a_checkpoint_was_seen() {
        let round = stop_deadline(STOP_DEADLINE, Some(Stage::Round));
        assert_eq!((round, stop_deadline(round, None)), (STOP_DEADLINE, STOP_DEADLINE));
        let checkpoint = stop_deadline(round, Some(Stage::Checkpoint));
        assert_eq!(checkpoint, STOP_CHECKPOINT_DEADLINE);
        assert_eq!(stop_deadline(checkpoint, None), STOP_CHECKPOINT_DEADLINE);
        assert_eq!(stop_deadline(checkpoint, Some(Stage::Round)), STOP_CHECKPOINT_DEADLINE);
    }

    #[test]
    fn a_log_filter_says_how_much_is_told_and_of_the_library_warnings_only() {
        let told = |text: &str| log_filter(text).unwrap().to_string();
        assert!(told("info").contains("commonware=warn"));
        assert!(told("info,commonware=debug").contains("commonware=debug"));
        for quiet in ["off", "error", "warn"] {
            assert_eq!(told(quiet), quiet);
        }
        assert!(log_filter("a=b=c").unwrap_err().to_string().contains("a=b=c"));
    }
}
