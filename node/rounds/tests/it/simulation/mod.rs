//! A subnet of four to six under a simulated clock, network and disk: everything but the sockets,
//! driven by the round loop of this crate.
//!
//! In every other history the replicated state itself executes the blocks ([`real`]: executor,
//! stores and state sync, with scripted code in its canisters); in the others a hash with a memory
//! does ([`toy`]), so that hundreds of them stay quick.
//!
//! An epoch is short here, so every history reshares the subnet's key several times.
//!
//! Each seed draws a history: lossy and slow links, nodes cut off, the subnet split in halves,
//! nodes that crash (alone, or all at once) and lose what their disk had not synced, disks that
//! fail at any operation, disks that are full, workers and compilations that are killed, queries
//! that hold on to old states, delta logs that are soon full, a node whose every life ends in the
//! middle of one, a disk that is slow, a node that executes slowly, a node whose wall clock jumps,
//! a node that is in two places and says different things in each, or that sends what it should not
//! ([`net`], [`machine`], [`falsifying_sender`]). Clients call throughout ([`clients`]), some of
//! them every node in another envelope, and operators change the members: nodes move, join and
//! leave ([`operators`]). Then everything is mended, and the checks are:
//!
//! * one state root per height, whichever node and whichever run of it computed it, and no
//!   certificate for another; and one way in which the key is held;
//! * every call that a certificate covered is executed, once, on every member: the state itself
//!   says so, from the canisters' memory if it is the real one;
//! * after mending the chain advances with every member: members that were away for longer than
//!   blocks are kept fetch a state.
//!
//! A run takes a few histories that were never run before; `SIMULATE_SEEDS=200` runs that many,
//! `SIMULATE_FIRST=17` begins there, `SIMULATE_REAL=1` executes all of them for real; a failure
//! names its seed, and the same seed gives the same run. `make test-long` runs hundreds.
//!
//! Every life ends with a cut of the power: what agreement keeps, the block log, the journal and
//! all files of the real state (records, blobs, canister memory, a state being fetched) lose or
//! tear what was not synced. Threads of the executor meet it wherever they are; a checkpoint or a
//! step of state sync is a whole operation in the simulation's time, so tests of their own
//! cut those short (`pages`, `state` and `execution`). Folders are durable when they are made or
//! renamed, as [`disk::SimulatedDisk`] says.

use std::{
    collections::BTreeSet,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use commonware_runtime::{Clock as _, Runner as _, deterministic};
use futures::FutureExt as _;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use sha2::{Digest as _, Sha256};
use state::Time;

use self::{
    clients::{Call, call, deploy, deploy_another},
    net::{Durable, Net, twins},
    operators::{Change, change_members, propose},
    toy::CHECKPOINT_EVERY,
};
mod clients;
mod falsifying_sender;
mod faulty_machine;
mod machine;
mod net;
mod operators;
mod probe;
mod real;
mod reports;
mod toy;

/// Members at the beginning.
const NODES: usize = 4;
/// Nodes that may join them.
const SPARES: usize = 2;
/// Blocks that one set of shares signs.
const EPOCH: u64 = 16;
/// The same where a history is not about the key: most of the time goes into making keys.
const LONG_EPOCH: u64 = 64;
/// Blocks kept for peers: more than what two checkpoints keep.
const RETENTION: u64 = 50;
/// Duration of the faults.
const STORM: Duration = Duration::from_secs(40);
/// Time within which the mended subnet must make progress.
const MENDED: Duration = Duration::from_secs(120);

/// Workers that are killed one after the other.
const WORKER_DEATHS: u64 = 5;
/// Compilations that are killed one after the other.
const COMPILE_FAILURES: u64 = 3;
/// States of long ago that one node's queries read at once.
const QUERIES_MAX: usize = 3;

type Context = deterministic::Context;

/// Result of a run.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    heights: u64,
    acknowledged: usize,
    sent: u64,
    lives: u64,
    syncs: u64,
    equivocations: u64,
    /// Number of resharings.
    handed_on: u64,
    /// Changes of the members, how many joined by them and how many left.
    changes: u64,
    joined: u64,
    left: u64,
    /// Writes that a full disk refused.
    refused: u64,
    /// Queries that members reported and the state has in its totals.
    queries: u128,
    /// Over every root and its height.
    roots: [u8; 32],
    audit: String,
}

/// Whether the history of this seed is executed by the replicated state itself.
fn is_real(seed: u64) -> bool {
    seed.is_multiple_of(2) || number("SIMULATE_REAL", 0) != 0
}

/// Runner configuration for the history of this seed. With RUST_LOG it prints the logs of its
/// nodes; run one seed at a time to keep them readable.
fn history(seed: u64) -> deterministic::Config {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .try_init();
    deterministic::Config::new().with_seed(seed).with_timeout(Some(Duration::from_secs(3_600)))
}

/// Runs the simulated history of `seed` and returns its outcome.
#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
fn simulate(seed: u64) -> Outcome {
    let config = history(seed).with_catch_panics(true);
    deterministic::Runner::new(config).start(|context| async move {
        let auditor = context.auditor();
        let rng = &mut StdRng::seed_from_u64(seed);
        let mut net = Net::new(&context, rng, is_real(seed)).await;
        net.tight = rng.gen_bool(0.5);
        let loss = *[0.0, 0.0, 0.02, 0.1].choose(rng).unwrap();
        net.connect(rng, 1.0 - loss).await;
        // At most one node is worse than crashed.
        let twin = rng.gen_bool(0.25).then(|| rng.gen_range(0..NODES));
        for place in 0..NODES {
            match twin {
                Some(twin) if twin == place => twins(&mut net, rng, place).await,
                _ => net.start(place).await,
            }
        }
        let liar = (twin.is_none() && rng.gen_bool(0.2)).then(|| rng.gen_range(0..NODES));
        if let Some(liar) = liar {
            net.members[liar].falsifier.on.store(true, Ordering::Relaxed);
            net.members[liar].false_reports.on.store(true, Ordering::Relaxed);
        }
        let faulty = twin.or(liar);
        let faulty_disk = faulty.is_none() && rng.gen_bool(0.25);
        if faulty_disk {
            net.members.iter().for_each(|member| member.disk.fail_every(1_000));
        }
        if rng.gen_bool(0.3) {
            let place = rng.gen_range(0..NODES);
            net.members[place].slow.store(rng.gen_range(50..1_500), Ordering::Relaxed);
        }
        if rng.gen_bool(0.3) {
            let place = rng.gen_range(0..NODES);
            net.members[place].disk.slow(rng.gen_range(5..500));
        }
        if faulty.is_none() && rng.gen_bool(0.3) {
            let place = rng.gen_range(0..NODES);
            net.members[place].ends_with = Some(rng.gen_range(20..2_000));
        }

        if net.real {
            deploy(&context, &mut net).await;
        }
        storm(&context, &mut net, rng, faulty, 1.0 - loss).await;
        if faulty.is_none() && !faulty_disk && rng.gen_bool(0.3) {
            absence(&context, &mut net, rng).await;
        }

        net.connect(rng, 1.0).await;
        for place in 0..net.members.len() {
            net.fill_disk(place, false);
        }
        for member in &mut net.members {
            member.slow.store(0, Ordering::Relaxed);
            member.disk.slow(0);
            member.disk.endless();
            member.disk.fail_every(0);
            member.disk.jump(0);
            member.ends_with = None;
            member.queried.clear();
        }
        let goal = net.heights().into_iter().max().unwrap() + 10;
        let until = context.current() + MENDED;
        let honest = loop {
            for place in net.dead() {
                net.start(place).await;
            }
            for place in net.places() {
                if Some(place) != faulty && !net.running.contains_key(&place) {
                    net.start(place).await;
                }
            }
            let heights = net.heights();
            let honest: Vec<_> =
                net.committee().into_iter().filter(|place| Some(*place) != faulty).collect();
            if honest.iter().all(|place| heights[*place] >= goal) {
                break honest;
            }
            assert!(
                context.current() < until,
                "seed {seed}: heights {heights:?} of members {honest:?} do not reach {goal} \
                 within {MENDED:?} after everything was mended (faulty {faulty:?})"
            );
            context.sleep(Duration::from_millis(500)).await;
            // In some histories every call of the storm went with the pool of a node that crashed.
            call(&context, &net, rng);
        };
        check(seed, &net, &honest);
        let found = net.found.lock();
        let (joined, left) = found.joined_and_left();
        Outcome {
            heights: *found.roots.last_key_value().unwrap().0,
            acknowledged: found.acknowledged.len(),
            sent: found.sent,
            lives: found.lives,
            syncs: found.syncs,
            equivocations: found.equivocations,
            handed_on: found.key_epochs.len() as u64,
            changes: found.changes,
            joined,
            left,
            refused: net
                .members
                .iter()
                .map(|member| member.faults.refused.load(Ordering::Relaxed))
                .sum(),
            queries: found.queries.last_key_value().map_or(0, |(_, queries)| *queries),
            roots: Sha256::digest(postcard::to_stdvec(&found.roots).unwrap()).into(),
            audit: auditor.state(),
        }
    })
}

#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
async fn storm(
    context: &Context,
    net: &mut Net,
    rng: &mut StdRng,
    faulty: Option<usize>,
    success: f64,
) {
    let until = context.current() + STORM;
    let mut quiet_until = context.current() + Duration::from_secs(5);
    while context.current() < until {
        let pause = Duration::from_millis(rng.gen_range(20..400));
        context.sleep(pause).await;
        call(context, net, rng);
        if rng.gen_bool(0.1) {
            change_members(net, rng).await;
        }
        for place in net.dead() {
            net.start(place).await;
        }
        if context.current() < quiet_until {
            continue;
        }
        let calm = Duration::from_millis(rng.gen_range(500..8_000));
        quiet_until = context.current() + calm;
        let places = net.places();
        let place = *places.choose(rng).unwrap();
        let all = 0..net.members.len();
        match rng.gen_range(0..14) {
            // One wall clock at a time, and together with no other fault: consensus tolerates f
            // faulty members.
            6 if faulty.is_none() => {
                net.members.iter().for_each(|member| member.disk.jump(0));
                net.members[place].disk.jump(rng.gen_range(-900_000..900_000));
            }
            6 => {}
            7 => {
                let full = net.members[place].faults.is_disk_full();
                net.fill_disk(place, !full);
            }
            8 => {
                let deaths = rng.gen_range(1..=WORKER_DEATHS);
                if let Some(sandbox) = &net.members[place].sandbox {
                    sandbox.deaths.store(deaths, Ordering::Relaxed);
                }
            }
            9 => {
                let member = &mut net.members[place];
                if member.queried.len() >= QUERIES_MAX {
                    member.queried.clear();
                }
                let newest = member.states.as_ref().and_then(|states| states.latest());
                member.queried.extend(newest);
            }
            10 if net.real => {
                let failures = rng.gen_range(1..=COMPILE_FAILURES);
                if let Some(sandbox) = &net.members[place].sandbox {
                    sandbox.compile_failures.store(failures, Ordering::Relaxed);
                }
                deploy_another(context, net);
            }
            // While a node runs in two places, the others must be healthy for the chain to advance;
            // safety must hold in any case.
            0 | 1 if Some(place) != faulty => {
                net.kill(place).await;
            }
            2 => {
                for other in places.into_iter().filter(|other| Some(*other) != faulty) {
                    net.kill(other).await;
                }
            }
            3 => {
                for other in all.filter(|other| *other != place) {
                    net.cut(place, other).await;
                    net.cut(other, place).await;
                }
            }
            4 => {
                for from in all.clone() {
                    for to in all.clone().filter(|to| from % 2 != to % 2) {
                        net.cut(from, to).await;
                    }
                }
            }
            5 => {
                for other in all.filter(|other| *other != place) {
                    net.cut(place, other).await;
                }
            }
            _ => {
                for other in places.into_iter().filter(|other| Some(*other) != faulty) {
                    if !net.running.contains_key(&other) {
                        net.start(other).await;
                    }
                }
                net.connect(rng, success).await;
            }
        }
    }
}

/// One node is down for longer than the others keep what it would need.
async fn absence(context: &Context, net: &mut Net, rng: &mut StdRng) {
    net.connect(rng, 1.0).await;
    let away = *net.places().choose(rng).unwrap();
    net.kill(away).await;
    let until = context.current() + 2 * MENDED;
    let goal = net.heights().into_iter().max().unwrap() + 5 * CHECKPOINT_EVERY;
    while net.heights().into_iter().max().unwrap() < goal && context.current() < until {
        let ended = net.dead();
        for place in net.places().into_iter().filter(|place| *place != away) {
            if ended.contains(&place) || !net.running.contains_key(&place) {
                net.start(place).await;
            }
        }
        call(context, net, rng);
        context.sleep(Duration::from_millis(200)).await;
    }
}

fn check(seed: u64, net: &Net, honest: &[usize]) {
    let found = net.found.lock();
    assert!(found.failures.is_empty(), "seed {seed}: {:?}", found.failures);
    for (height, root) in &found.certified {
        assert_eq!(
            found.roots.get(height),
            Some(root),
            "seed {seed}: certificate of height {height}"
        );
    }
    assert!(
        !found.acknowledged.is_empty(),
        "seed {seed}: nothing was acknowledged in the whole run"
    );
    // The slowest is at this height; what was acknowledged above is on its way there.
    let reached =
        honest.iter().map(|place| net.members[*place].durable.lock().height).min().unwrap();
    let under_way: BTreeSet<_> =
        found.calls.range(reached + 1..).flat_map(|(_, calls)| calls).collect();
    for place in honest {
        let durable = net.members[*place].durable.lock();
        for call in found.acknowledged.iter().filter(|call| !under_way.contains(call)) {
            assert_eq!(
                durable.executed.get(call),
                Some(&1),
                "seed {seed}: acknowledged call {call} on node {place} at height {}",
                durable.height
            );
        }
        let toy = &durable.checkpoint;
        assert!(
            net.real || toy.height < 100 || toy.answered > 0,
            "seed {seed}: node {place} got no randomness up to height {}",
            toy.height
        );
        let twice = durable.executed.iter().find(|(_, times)| **times != 1);
        assert_eq!(twice, None, "seed {seed}: node {place}");
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}"))
    })
}

/// Histories of a run that does not say how many.
const SAMPLE: u64 = 4;

/// A first seed that was not run before.
fn fresh() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_secs() * 1_000
}

// Promise: P17 - Simulated subnets with faults agree on one root per height and execute each
//   acknowledged call once.
#[test]
fn every_history_ends_in_agreement_and_loses_nothing_acknowledged() {
    let (first, seeds) = (number("SIMULATE_FIRST", fresh()), number("SIMULATE_SEEDS", SAMPLE));
    println!("SIMULATE_FIRST={first} SIMULATE_SEEDS={seeds}");
    let next = AtomicU64::new(first);
    let outcomes = std::sync::Mutex::new(Vec::new());
    // One more than there are cores: files and the arithmetic's own thread are waited for.
    let threads = std::thread::available_parallelism().map_or(1, usize::from) + 1;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    let outcome = simulate(seed);
                    println!(
                        "seed {seed}: {} rounds, {} of {} calls acknowledged, {} lives of nodes, \
                         {} states fetched, {} proofs of equivocation, the key handed on {} \
                         times, {} changes of members, {} joined, {} left, {} writes refused by \
                         full disks",
                        outcome.heights,
                        outcome.acknowledged,
                        outcome.sent,
                        outcome.lives,
                        outcome.syncs,
                        outcome.equivocations,
                        outcome.handed_on,
                        outcome.changes,
                        outcome.joined,
                        outcome.left,
                        outcome.refused
                    );
                    outcomes.lock().unwrap().push(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap();
    assert_eq!(outcomes.len() as u64, seeds);
    assert!(
        seeds < 4 || outcomes.iter().any(|outcome| outcome.queries > 0),
        "no member's report of queries became a part of the totals"
    );
    let total = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    println!(
        "{seeds} seeds from {first}: all agree; {} rounds, {} of {} calls acknowledged and found \
         on every node, {} lives of nodes, {} states fetched, the key handed on {} times, {} \
         changes of members, {} joined, {} left, {} writes refused by full disks",
        total(|outcome| outcome.heights),
        total(|outcome| outcome.acknowledged as u64),
        total(|outcome| outcome.sent),
        total(|outcome| outcome.lives),
        total(|outcome| outcome.syncs),
        total(|outcome| outcome.handed_on),
        total(|outcome| outcome.changes),
        total(|outcome| outcome.joined),
        total(|outcome| outcome.left),
        total(|outcome| outcome.refused)
    );
}

/// Result of a history that is run twice, on two threads; both results must be equal.
fn twice<T: PartialEq + std::fmt::Debug + Send>(history: impl Fn() -> T + Sync) -> T {
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(&history);
        (history(), other.join().unwrap())
    });
    assert_eq!(one, other, "the same seed gives the same history");
    one
}

// Promise: P17 - A seed reproduces its history.
#[test]
fn a_seed_gives_the_same_history_again() {
    // A toy, and the replicated state.
    for seed in [3, 4] {
        twice(|| simulate(seed));
    }
}

/// Runs until this node is at `height`, starting again every node whose life ended.
async fn reach(context: &Context, net: &mut Net, place: usize, height: u64) {
    let until = context.current() + 4 * MENDED;
    while net.heights()[place] < height {
        let ended = net.dead();
        for place in ended {
            net.start(place).await;
        }
        assert!(
            context.current() < until,
            "node {place} does not reach {height}: {:?}",
            net.heights()
        );
        context.sleep(Duration::from_millis(500)).await;
    }
}

/// One node is away for longer than the others keep blocks, with or without its disk, and one of
/// the peers it asks is faulty.
fn recovers_by_state_sync(seed: u64, loses_disk: bool, real: bool) -> (u64, String) {
    let config = history(seed);
    deterministic::Runner::new(config).start(|context| async move {
        let auditor = context.auditor();
        let rng = &mut StdRng::seed_from_u64(seed);
        let mut net = Net::started_with_epochs_of(LONG_EPOCH, &context, rng, real).await;
        if real {
            deploy(&context, &mut net).await;
            for _ in 0..40 {
                call(&context, &net, rng);
            }
        }
        net.members[1].lies.store(true, Ordering::Relaxed);
        reach(&context, &mut net, 3, 10).await;
        net.kill(3).await;
        reach(&context, &mut net, 0, 6 * CHECKPOINT_EVERY).await;
        if loses_disk {
            net.members[3].durable = Durable::empty(seed);
            let (channels, durable) = (net.channels(3).await, net.members[3].durable.clone());
            net.launch(3, "another-3-".into(), durable, channels).await;
        } else {
            net.start(3).await;
        }
        for _ in 0..20 {
            call(&context, &net, rng);
        }
        // The others do not wait, so they are ahead; the fourth has rejoined them.
        let ended = async {
            let until = context.current() + MENDED;
            while net.found.lock().syncs == 0 {
                assert!(context.current() < until, "no state was fetched: {:?}", net.heights());
                context.sleep(Duration::from_millis(500)).await;
            }
            // As it was: under the same name.
            while net.running.get_mut(&3).is_some_and(|(task, _)| task.now_or_never().is_none()) {
                context.sleep(Duration::from_millis(100)).await;
            }
        };
        ended.await;
        net.running.remove(&3);
        let (channels, durable) = (net.channels(3).await, net.members[3].durable.clone());
        let storage = if loses_disk { "another-3-" } else { "3-" };
        net.launch(3, storage.into(), durable, channels).await;
        let goal = net.heights().into_iter().max().unwrap() + CHECKPOINT_EVERY;
        reach(&context, &mut net, 3, goal).await;
        check(seed, &net, &[0, 1, 2, 3]);
        let syncs = net.found.lock().syncs;
        (syncs, auditor.state())
    })
}

// Promise: P19 - A node behind the blocks of its peers fetches a state.
#[test]
fn node_behind_retained_blocks_fetches_a_state() {
    for (seed, real) in [(1, false), (3, true)] {
        let (syncs, _) = recovers_by_state_sync(seed, false, real);
        assert_eq!(syncs, 1, "seed {seed}");
    }
}

#[test]
fn node_within_retained_blocks_executes_blocks() {
    let config = history(5);
    deterministic::Runner::new(config).start(|context| async move {
        let rng = &mut StdRng::seed_from_u64(5);
        let mut net = Net::started_with_epochs_of(LONG_EPOCH, &context, rng, false).await;
        // Places the checkpoints as far as possible above the height at which it stops.
        reach(&context, &mut net, 3, 3 * CHECKPOINT_EVERY - RETENTION).await;
        net.kill(3).await;
        reach(&context, &mut net, 0, 3 * CHECKPOINT_EVERY).await;
        net.start(3).await;
        for _ in 0..20 {
            call(&context, &net, rng);
        }
        reach(&context, &mut net, 3, 4 * CHECKPOINT_EVERY).await;
        assert_eq!(net.found.lock().syncs, 0);
        check(5, &net, &[0, 1, 2, 3]);
    });
}

// Promise: P9 - Calls get randomness after all members lost power at once.
#[test]
fn awaited_states_are_signed_after_all_members_lost_power() {
    // A power cut ends tasks of the engine by panics.
    let config = history(13).with_catch_panics(true);
    deterministic::Runner::new(config).start(|context| async move {
        let rng = &mut StdRng::seed_from_u64(13);
        let mut net = Net::started_with_epochs_of(LONG_EPOCH, &context, rng, false).await;
        for _ in 0..3 {
            for _ in 0..40 {
                call(&context, &net, rng);
                context.sleep(Duration::from_millis(50)).await;
            }
            for place in 0..NODES {
                net.kill(place).await;
            }
            for place in 0..NODES {
                net.start(place).await;
            }
            let goal = net.heights().into_iter().max().unwrap() + 2 * CHECKPOINT_EVERY;
            for place in 0..NODES {
                reach(&context, &mut net, place, goal).await;
            }
        }
        // A checkpoint was made since the last call was executed.
        for (place, member) in net.members.iter().enumerate().take(NODES) {
            let durable = member.durable.lock();
            assert!(durable.checkpoint.answered > 0, "node {place}");
            assert_eq!(durable.checkpoint.unanswered(), 0, "node {place}");
        }
    });
}

// Promise: P17 - A node that ends at any of its first 59 disk operations continues.
/// Every operation from the first of a start on, done and not done; later ones here and there.
#[test]
fn node_recovers_from_a_crash_at_any_disk_operation() {
    let config = history(11).with_catch_panics(true);
    deterministic::Runner::new(config).start(|context| async move {
        let rng = &mut StdRng::seed_from_u64(11);
        let mut net = Net::started_with_epochs_of(LONG_EPOCH, &context, rng, false).await;
        reach(&context, &mut net, 2, 5).await;
        net.kill(2).await;
        let operations = (1..60).flat_map(|operation| [operation; 2]).chain((60..250).step_by(7));
        for (life, operation) in operations.enumerate() {
            net.start(2).await;
            net.members[2].disk.end_with(operation, life.is_multiple_of(2));
            let until = context.current() + MENDED;
            while net.dead().is_empty() {
                assert!(context.current() < until, "operation {operation} does not come");
                call(&context, &net, rng);
                context.sleep(Duration::from_millis(100)).await;
            }
        }
        net.members[2].disk.endless();
        net.start(2).await;
        let goal = net.heights().into_iter().max().unwrap() + CHECKPOINT_EVERY;
        reach(&context, &mut net, 2, goal).await;
        check(11, &net, &[0, 1, 2, 3]);
    });
}

/// Waits until these are the members, while clients call and nodes that end are started again.
async fn wait_for_members(context: &Context, net: &mut Net, rng: &mut StdRng, members: &[usize]) {
    let until = context.current() + 2 * MENDED;
    while net.committee() != members {
        assert!(
            context.current() < until,
            "the members are {:?}: {:?}",
            net.committee(),
            net.heights()
        );
        for place in net.dead() {
            net.start(place).await;
        }
        call(context, net, rng);
        context.sleep(Duration::from_millis(500)).await;
    }
}

/// Those that join have their keys and the genesis, and blocks of the beginning are kept nowhere
/// any more.
fn joins_and_leaves(seed: u64, real: bool) -> String {
    let config = history(seed);
    deterministic::Runner::new(config).start(|context| async move {
        let auditor = context.auditor();
        let rng = &mut StdRng::seed_from_u64(seed);
        let mut net = Net::started(&context, rng, real).await;
        if real {
            deploy(&context, &mut net).await;
        }
        for _ in 0..40 {
            call(&context, &net, rng);
        }
        reach(&context, &mut net, 0, 3 * CHECKPOINT_EVERY + RETENTION).await;
        propose(&mut net, &Change { add: vec![4], remove: vec![] }, &[1], rng).await;
        wait_for_members(&context, &mut net, rng, &[0, 1, 2, 3, 4]).await;
        // Four of five sign: the fifth is needed.
        net.kill(0).await;
        let goal = net.heights().into_iter().max().unwrap() + CHECKPOINT_EVERY;
        reach(&context, &mut net, 4, goal).await;
        assert!(net.found.lock().syncs >= 1, "the fifth fetched a state");
        net.start(0).await;
        // One goes as another comes; then another goes.
        propose(&mut net, &Change { add: vec![5], remove: vec![3] }, &[2], rng).await;
        wait_for_members(&context, &mut net, rng, &[0, 1, 2, 4, 5]).await;
        propose(&mut net, &Change { add: vec![], remove: vec![4] }, &[0, 2], rng).await;
        wait_for_members(&context, &mut net, rng, &[0, 1, 2, 5]).await;
        let goal = net.heights().into_iter().max().unwrap() + CHECKPOINT_EVERY;
        // Three of four sign.
        net.kill(1).await;
        reach(&context, &mut net, 5, goal).await;
        net.start(1).await;
        reach(&context, &mut net, 1, goal).await;
        for place in [3, 4] {
            assert!(!net.places().contains(&place), "node {place} stops after its removal");
        }
        check(seed, &net, &[0, 1, 2, 5]);
        assert_eq!(net.found.lock().joined_and_left(), (2, 2));
        auditor.state()
    })
}

// Promise: P20 - Members join with only their keys, and founders leave.
#[test]
fn members_join_with_nothing_and_leave() {
    twice(|| joins_and_leaves(21, false));
}

// Promise: P20 - Members join a subnet with executed state and leave it.
#[test]
fn members_join_a_real_state_with_nothing_and_leave() {
    joins_and_leaves(22, true);
}

// Promise: P19 - A node with an empty disk fetches a state, with one faulty peer.
#[test]
fn a_node_that_lost_its_disk_fetches_a_state() {
    assert_eq!(twice(|| recovers_by_state_sync(7, true, false)).0, 1);
}

// Promise: P19 - A node with an empty disk fetches an executed state.
#[test]
fn a_node_that_lost_its_disk_fetches_a_real_state() {
    assert_eq!(recovers_by_state_sync(7, true, true).0, 1);
}

// Promise: P9 - A report of query statistics counts only for the maker of its block.
#[test]
fn forged_query_report_gets_no_vote() {
    deterministic::Runner::new(history(5)).start(|context| async move {
        let rng = &mut StdRng::seed_from_u64(5);
        let mut net = Net::started(&context, rng, true).await;
        net.members[1].false_reports.on.store(true, Ordering::Relaxed);
        deploy(&context, &mut net).await;
        let deployed = net.heights()[0];
        reach(&context, &mut net, 0, deployed + 60).await;
        let lies = net.members[1].false_reports.made.load(Ordering::Relaxed);
        println!("{lies} forged reports were proposed");
        assert!(lies > 0, "it led rounds");
        let found = net.found.lock();
        assert!(found.failures.is_empty(), "{:?}", found.failures);
        let (_, queries) = found.queries.last_key_value().unwrap();
        assert!(*queries > 0, "reports of three are enough");
    });
}

/// Waiting times of some calls, on disks where each sync takes `sync_millis`.
fn waits(seed: u64, sync_millis: u64) -> Vec<Duration> {
    let config = history(seed).with_timeout(Some(Duration::from_secs(600)));
    deterministic::Runner::new(config).start(|context| async move {
        let rng = &mut StdRng::seed_from_u64(seed);
        let net = Net::started(&context, rng, false).await;
        net.members.iter().for_each(|member| member.disk.slow(sync_millis));
        context.sleep(Duration::from_secs(10)).await;
        let mut waits = Vec::new();
        // Between two idle blocks, again and again through the same node, while the lead goes round
        // and epochs end.
        for number in 0..40 {
            context.sleep(Duration::from_millis(1_150)).await;
            let before = net.found.lock().acknowledged.len();
            let called = context.current();
            let expiry = net::time_of(called).0 + 60_000_000_000;
            let call = Call { number, expiry, padding: vec![], target: None };
            net.running[&0].1.submit(call.id(), Time(call.expiry), call.signed_ingress()).unwrap();
            while net.found.lock().acknowledged.len() == before {
                context.sleep(Duration::from_millis(10)).await;
            }
            let waited = context.current().duration_since(called).unwrap();
            tracing::info!(number, ?waited, "acknowledged");
            waits.push(waited);
        }
        assert!(net.found.lock().key_epochs.len() > 1, "epochs end meanwhile");
        waits
    })
}

/// Waiting times in the history of the first seed, on fast disks.
static FAST: LazyLock<Vec<Duration>> = LazyLock::new(|| waits(1, 0));

// Promise: P17 - A call between two idle blocks takes less than 700 ms with any leader.
#[test]
fn call_latency_is_independent_of_the_leader() {
    for (seed, waits) in [(2, &waits(2, 0)), (1, &*FAST)] {
        assert!(
            waits.iter().all(|waited| *waited < Duration::from_millis(700)),
            "seed {seed}: {waits:?}"
        );
    }
}

// Promise: P7 - With syncs of 20 ms no call on four nodes takes longer than 1.5 s.
#[test]
fn call_latency_grows_only_by_sync_time() {
    let (fast, slow) = (&*FAST, waits(1, 20));
    let sum = |waits: &[Duration]| waits.iter().sum::<Duration>();
    println!("{:?} and {:?} in all", sum(fast), sum(&slow));
    let some = u32::try_from(slow.len()).unwrap();
    // A vote and a block are made durable for each call.
    assert!(sum(&slow) > sum(fast) + some * 2 * Duration::from_millis(20));
    assert!(slow.iter().all(|waited| *waited < Duration::from_millis(1_500)), "{slow:?}");
}
