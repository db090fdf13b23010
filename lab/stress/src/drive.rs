//! One run: starts the node if asked, connects the clients, runs the phases, gathers the figures.
//!
//! What bounds it: every wait has an end. What it must never know: how a client speaks to the node.

use std::{
    io::IsTerminal,
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use budget::process::{self, Pid};
use protocol::{light_push, store};
use testnet::{cap::picture, machine};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    archive::{Archive, Look, Queried},
    node::{Node, Source, Watch, free_port},
    options::Options,
    plan::Phase,
    publisher::{ANSWER_TIME, Manner, Order, Publisher},
    pushed::Pushed,
    receiver::Receiver,
    relay_peer::RelayPeer,
    report::{After, Answers, Delivery, FORMAT, Latency, Memory, PhaseReport, Queries, Report},
    session::About,
    shared::{Ready, Shared, State, is_ready},
    tally::{Bits, Received, lock},
    target::Target,
};

/// Before the first phase, so that meshes have formed and the node idles.
const SETTLE: Duration = Duration::from_secs(2);
/// Between two looks whether everything has arrived.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Between two lines of progress, at a terminal and elsewhere.
const PROGRESS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// From an order to the begin of its phase: all publishers have it by then.
const AHEAD: Duration = Duration::from_millis(20);
/// The answer to a look into the store.
const STORE_TIME: Duration = Duration::from_secs(60);

/// What is different between the runs of one invocation.
pub(crate) struct Start<'a> {
    pub(crate) label: &'a str,
    pub(crate) command: Option<&'a str>,
    pub(crate) picture: Option<&'a Path>,
}

/// The clients of a run; they end when this is dropped.
struct Clients {
    orders: Vec<mpsc::Sender<Order>>,
    pushed: Vec<Arc<Mutex<Vec<Pushed>>>>,
    receivers: Vec<Arc<Mutex<Received>>>,
    relay_peers: Vec<Arc<Mutex<Received>>>,
    queried: Arc<Mutex<Vec<Queried>>>,
    query_phase: watch::Sender<Option<usize>>,
    looks: mpsc::Sender<Look>,
    readiness: Vec<(String, watch::Receiver<State>)>,
    _tasks: JoinSet<()>,
}

impl Clients {
    fn start(options: &Options, shared: &Arc<Shared>, phases: usize) -> Self {
        let mut tasks = JoinSet::new();
        let mut readiness = Vec::new();
        let mut ready = |what: String| {
            let (ready, receiver) = Ready::new();
            readiness.push((what, receiver));
            ready
        };
        let received = || Arc::new(Mutex::new(Received::new(phases, options.publishers)));
        let (mut receivers, mut relay_peers) = (Vec::new(), Vec::new());
        for index in 1..=options.relay_peers {
            let received = received();
            let peer = RelayPeer::new(shared.clone(), received.clone());
            tasks.spawn(peer.run(ready(format!("relay peer {index}"))));
            relay_peers.push(received);
        }
        for index in 1..=options.receivers {
            let received = received();
            let receiver = Receiver::new(shared.clone(), received.clone());
            tasks.spawn(receiver.run(ready(format!("receiver {index}"))));
            receivers.push(received);
        }
        let manner = Manner {
            publishers: options.publishers,
            outstanding: options.outstanding.into(),
            pause: Duration::from_millis(options.pause),
        };
        let (mut orders, mut pushed) = (Vec::new(), Vec::new());
        for index in 0..options.publishers {
            let (publisher, sender, theirs) = Publisher::new(shared.clone(), index, manner, phases);
            tasks.spawn(publisher.run(ready(format!("publisher {}", index + 1))));
            orders.push(sender);
            pushed.push(theirs);
        }
        let queried = (0..phases).map(|_| Queried::default()).collect();
        let queried = Arc::new(Mutex::new(queried));
        let (query_phase, phase) = watch::channel(None);
        let (looks, looked) = mpsc::channel(1);
        let archive = Archive {
            shared: shared.clone(),
            rate: options.store_queries,
            queried: queried.clone(),
            phase,
            looks: looked,
        };
        tasks.spawn(archive.run(ready("the store client".into())));
        Self { orders, pushed, receivers, relay_peers, queried, query_phase, looks, readiness, _tasks: tasks }
    }

    /// What was pushed in a phase, of all publishers, and which messages were accepted, by publisher.
    fn pushed(&self, phase: usize) -> (Pushed, Vec<Bits>) {
        let mut sum = Pushed::default();
        let mut accepted = Vec::new();
        for pushed in &self.pushed {
            if let Some(pushed) = lock(pushed).get(phase) {
                sum.add(pushed);
                accepted.push(pushed.accepted.clone());
            }
        }
        (sum, accepted)
    }

    fn accepted_count(&self, phase: usize) -> u64 {
        let count = |pushed: &Arc<Mutex<Vec<Pushed>>>| {
            lock(pushed).get(phase).map_or(0, |pushed| pushed.accepted_count)
        };
        self.pushed.iter().map(count).sum()
    }

    /// Whether everything that was accepted reached everybody.
    fn all_arrived(&self, phase: usize, accepted: &[Bits]) -> bool {
        let wanted: u64 = accepted.iter().map(Bits::count).sum();
        self.receivers
            .iter()
            .chain(&self.relay_peers)
            .all(|received| delivered(&lock(received), phase, accepted) == wanted)
    }
}

fn delivered(received: &Received, phase: usize, accepted: &[Bits]) -> u64 {
    let Some(phase) = received.phase(phase) else { return 0 };
    accepted.iter().enumerate().map(|(sender, accepted)| phase.delivered(sender, accepted)).sum()
}

fn delivery(received: &Received, phase: usize, accepted: &[Bits]) -> Option<Delivery> {
    let wanted: u64 = accepted.iter().map(Bits::count).sum();
    let delivered = delivered(received, phase, accepted);
    let phase = received.phase(phase)?;
    Some(Delivery {
        delivered,
        missing: wanted - delivered,
        unaccepted: phase.whole().saturating_sub(delivered),
        double: phase.double,
        late: phase.late,
        damaged: phase.damaged,
        delay: Latency::of(&phase.delay),
    })
}

/// What is only known while a phase runs.
struct Measured {
    /// How long it took if the node was gone before its end.
    cut_short: Option<f64>,
    sample: Option<[usize; 2]>,
    peak: Option<Memory>,
    end: Option<Memory>,
    node_cpu: Option<Duration>,
    driver_cpu: Duration,
}

/// Runs all phases against one node. Errors: the node cannot be started or reached; a node that dies
/// later is a result.
pub(crate) async fn run(options: &Options, phases: &[Phase], start: &Start<'_>) -> Result<Report> {
    let folder = tempfile::tempdir().context("making a folder for the node's files")?;
    let port = free_port()?;
    let mut node = match start.command {
        Some(command) => Some(Node::start(command, options.memory, folder.path(), port)?),
        None => None,
    };
    let source = match (&mut node, options.pid) {
        (Some(node), _) => Some(node.source().await?),
        (None, Some(pid)) => Some(Source::Process(Pid(pid))),
        (None, None) => None,
    };
    let series = folder.path().join("series.jsonl");
    let cap = options.memory.unwrap_or(0);
    let name = format!("stress of {}", start.label);
    let watch = source.map(|source| Watch::start(source, &name, start.command, cap, series)).transpose()?;
    let address = match &options.node {
        Some(address) => address.clone(),
        None => format!("/ip4/127.0.0.1/tcp/{port}").parse()?,
    };
    let target = Target::new(address, options.cluster, options.shard, options.shards_in_cluster)?;
    let shared = Shared::new(target, phases.len(), options.publishers);
    let mut clients = Clients::start(options, &shared, phases.len());
    let about = match all_ready(&mut clients, options, node.as_mut()).await {
        Ok(about) => about,
        Err(error) => match &node {
            Some(node) => bail!("{error:#}\nwhat the node said:\n{}", node.last_words()),
            None => return Err(error),
        },
    };
    sleep(SETTLE).await;
    let memory = |watch: &Watch| {
        let now = watch.seen().now;
        Memory { anonymous_bytes: now.anonymous_bytes, file_bytes: now.file_bytes }
    };
    let idle = watch.as_ref().map(memory);
    let gone = || watch.as_ref().is_some_and(|watch| watch.seen().gone);

    let mut measured = Vec::new();
    for (index, phase) in phases.iter().enumerate() {
        if gone() {
            break;
        }
        let driver = Driver { options, shared: &shared, clients: &clients, watch: watch.as_ref() };
        let serves_store = about.speaks(store::PROTOCOL);
        measured.push(driver.phase(start.label, index, phase, phases.len(), serves_store).await?);
    }
    let ended = Instant::now();
    let mut after = Vec::new();
    if let Some(watch) = &watch {
        watch.mark("end");
        let mut moments = options.after.clone();
        moments.sort_unstable();
        for seconds in moments {
            if gone() {
                break;
            }
            eprintln!("stress: {}: memory {seconds} s after the load is waited for", start.label);
            tokio::time::sleep_until(ended + Duration::from_secs(seconds)).await;
            after.push(After { seconds, memory: memory(watch) });
        }
    }
    let node_died = gone() || node.as_mut().is_some_and(Node::has_ended);
    let connections_lost = shared.connections_lost();
    let end = match node {
        Some(node) => Some(node.stop().await?),
        None => None,
    };
    if let Some(watch) = watch {
        let series = watch.finish();
        if let Some(path) = start.picture {
            picture::draw(&series, path).with_context(|| format!("drawing {}", path.display()))?;
        }
    }
    // Late messages of early phases count as well: the figures are put together last.
    let phases = phases
        .iter()
        .zip(measured)
        .enumerate()
        .map(|(index, (phase, measured))| phase_report(&clients, index, phase, measured, options))
        .collect();
    let lightpush =
        [light_push::PROTOCOL, light_push::PROTOCOL_V2].into_iter().find(|name| about.speaks(name));
    let mut report = Report {
        format: FORMAT,
        label: start.label.to_owned(),
        machine: machine::describe(),
        started: machine::now().0,
        node: shared.target.address.to_string(),
        light_push: lightpush.unwrap_or_default().to_owned(),
        serves_store: about.speaks(store::PROTOCOL),
        agent: about.agent,
        cap_bytes: options.memory,
        clients: [options.publishers, options.receivers, options.relay_peers],
        phases,
        idle,
        after,
        connections_lost,
        node_died,
        oom_kills: end.as_ref().map_or(0, |end| end.oom_kills),
        restarts: end.as_ref().map_or(0, |end| end.restarts),
        node_ended: end.map(|end| end.how),
        good: false,
        verdict: String::new(),
    };
    report.judge(options.lost_percent_max);
    Ok(report)
}

async fn all_ready(clients: &mut Clients, options: &Options, mut node: Option<&mut Node>) -> Result<About> {
    let deadline = Instant::now() + Duration::from_secs(options.patience);
    let mut about = About::default();
    for (what, receiver) in &mut clients.readiness {
        about = loop {
            // A node that ended will not answer later.
            let patience = Duration::from_secs(1).min(deadline - Instant::now());
            match is_ready(receiver, patience).await {
                Ok(about) => break about,
                Err(why) => {
                    if node.as_mut().is_some_and(|node| node.has_ended()) {
                        bail!("the node ended before {what} was ready: {why}");
                    }
                    if Instant::now() >= deadline {
                        bail!("{what} was not ready within {} s: {why}", options.patience);
                    }
                }
            }
        };
    }
    Ok(about)
}

/// What a phase needs.
struct Driver<'a> {
    options: &'a Options,
    shared: &'a Shared,
    clients: &'a Clients,
    watch: Option<&'a Watch>,
}

impl Driver<'_> {
    async fn phase(
        &self,
        label: &str,
        index: usize,
        phase: &Phase,
        phases: usize,
        serves_store: bool,
    ) -> Result<Measured> {
        let Self { shared, clients, watch, .. } = self;
        shared.phase.store(index, Relaxed);
        if let Some(watch) = watch {
            watch.begin_phase(&phase.name);
        }
        let node_before = watch.map(|watch| watch.seen().now.cpu);
        let driver_before = own_cpu();
        let begin = Instant::now() + AHEAD;
        let (done, mut all_done) = mpsc::channel(clients.orders.len());
        for orders in &clients.orders {
            let order = Order { phase: index, plan: phase.clone(), begin, done: done.clone() };
            orders.send(order).await.ok().context("a publisher has ended")?;
        }
        drop(done);
        clients.query_phase.send_replace(Some(index));
        let head = format!("stress: {label}: phase {}/{phases}, {}", index + 1, phase.name);
        let progress = PROGRESS[usize::from(!std::io::stderr().is_terminal())];
        let deadline = begin + phase.length() + ANSWER_TIME + Duration::from_secs(10);
        let (mut done, mut cut_short) = (0, None);
        let mut said = Instant::now();
        while done < clients.orders.len() && Instant::now() < deadline {
            if watch.is_some_and(|watch| watch.seen().gone) {
                cut_short = Some(begin.elapsed().as_secs_f64().min(phase.seconds));
                break;
            }
            match timeout(progress.min(LOOK_EVERY * 10), all_done.recv()).await {
                Ok(Some(())) => done += 1,
                Ok(None) => break,
                Err(_) => {}
            }
            if said.elapsed() >= progress {
                said = Instant::now();
                self.progress(&head, index, phase, begin);
            }
        }
        clients.query_phase.send_replace(None);
        let (_, accepted) = clients.pushed(index);
        let drained = Instant::now() + self.options.drain_time();
        while !clients.all_arrived(index, &accepted) && Instant::now() < drained {
            if watch.is_some_and(|watch| watch.seen().gone) {
                break;
            }
            sleep(LOOK_EVERY).await;
        }
        let driver_cpu = own_cpu().saturating_sub(driver_before);
        let seen = watch.map(Watch::seen);
        let node_cpu = seen.zip(node_before).map(|(seen, before)| seen.now.cpu.saturating_sub(before));
        // A node that is gone would be waited for in vain.
        let look = serves_store && !seen.is_some_and(|seen| seen.gone);
        let sample = if look { self.look(index).await } else { None };
        self.progress(&format!("{head}: over"), index, phase, begin);
        Ok(Measured {
            cut_short,
            sample,
            peak: seen.map(|seen| Memory {
                anonymous_bytes: seen.anonymous_peak_bytes,
                file_bytes: seen.file_peak_bytes,
            }),
            end: seen.map(|seen| Memory {
                anonymous_bytes: seen.now.anonymous_bytes,
                file_bytes: seen.now.file_bytes,
            }),
            node_cpu,
            driver_cpu,
        })
    }

    fn progress(&self, head: &str, index: usize, phase: &Phase, begin: Instant) {
        let clients = self.clients;
        let (pushed, _) = clients.pushed(index);
        let received = |all: &[Arc<Mutex<Received>>]| {
            let count = |received: &Arc<Mutex<Received>>| {
                lock(received).phase(index).map_or(0, |phase| phase.whole())
            };
            all.iter().map(|one| count(one).to_string()).collect::<Vec<_>>().join("+")
        };
        let memory = self.watch.map_or_else(String::new, |watch| {
            let mib = watch.seen().now.anonymous_bytes as f64 / budget::MIB as f64;
            format!(", node {mib:.1} MiB anonymous")
        });
        let seconds = begin.elapsed().as_secs_f64().min(phase.seconds);
        eprintln!(
            "{head}: {seconds:.0} of {} s, sent {}, accepted {}, received {}, relayed {}{memory}",
            phase.seconds,
            pushed.sent,
            clients.accepted_count(index),
            received(&clients.receivers),
            received(&clients.relay_peers),
        );
    }

    /// Looks for a sample of what was accepted in the store; how many were looked for and found.
    async fn look(&self, index: usize) -> Option<[usize; 2]> {
        let hashes: Vec<_> = self
            .clients
            .pushed
            .iter()
            .flat_map(|pushed| {
                let pushed = lock(pushed);
                pushed.get(index).map(|pushed| pushed.sample().collect::<Vec<_>>())
            })
            .flatten()
            .collect();
        let looked = hashes.len();
        let (found, answer) = oneshot::channel();
        let looking = async {
            self.clients.looks.send(Look { hashes, found }).await.ok()?;
            answer.await.ok()
        };
        let found = timeout(STORE_TIME, looking).await.ok().flatten().unwrap_or(0);
        Some([looked, found])
    }
}

/// CPU time of this process.
fn own_cpu() -> Duration {
    process::cpu_time(Pid::own()).unwrap_or_default()
}

fn phase_report(
    clients: &Clients,
    index: usize,
    phase: &Phase,
    measured: Measured,
    options: &Options,
) -> PhaseReport {
    let (pushed, accepted) = clients.pushed(index);
    let deliveries = |all: &[Arc<Mutex<Received>>]| {
        all.iter().filter_map(|one| delivery(&lock(one), index, &accepted)).collect()
    };
    let count = pushed.accepted_count;
    let each = |cpu: Duration| cpu.as_secs_f64() * 1000.0 / count.max(1) as f64;
    let queries = (options.store_queries > 0.0).then(|| {
        let queried = lock(&clients.queried);
        queried.get(index).map(|queried| Queries {
            latency: Latency::of(&queried.latency),
            codes: queried.codes.iter().map(|(code, count)| (*code, *count)).collect(),
            entries: queried.entries,
            skipped: queried.skipped,
        })
    });
    PhaseReport {
        name: phase.name.clone(),
        payload_bytes: [phase.payload.min, phase.payload.max],
        asked_rate: phase.rate,
        seconds: measured
            .cut_short
            .unwrap_or_else(|| phase.seconds.max(pushed.last_answer_nanos as f64 / 1e9)),
        due: pushed.due,
        sent: pushed.sent,
        accepted: count,
        answers: pushed
            .answers
            .iter()
            .map(|answered| Answers {
                answer: answered.answer.to_string(),
                latency: Latency::of(&answered.latency),
                example: answered.example.clone(),
            })
            .collect(),
        lateness: Latency::of(&pushed.lateness),
        receivers: deliveries(&clients.receivers),
        relay_peers: deliveries(&clients.relay_peers),
        store_sample: measured.sample,
        queries: queries.flatten(),
        peak: measured.peak,
        end: measured.end,
        cpu_millis_per_accepted: measured.node_cpu.map(each),
        driver_cpu_millis_per_accepted: each(measured.driver_cpu),
    }
}
