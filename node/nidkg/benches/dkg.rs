//! Cost of each step of a key generation: `make bench-dkg`.
//!
//! Criterion runs every step; each run's CPU time (of the whole process) and wall time are kept,
//! and the table at the end has their medians, the target and the reference's figure.
//! `DKG_BENCH_NODES=4,13` measures fewer sizes, a filter as argument fewer steps.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    cell::RefCell,
    collections::BTreeMap,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use criterion::{Criterion, SamplingMode};
use nidkg::*;
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use rustix::time::{ClockId, clock_gettime};

/// Step, nodes, target and reference in CPU milliseconds. A dash where there is none.
const FIGURES: &[(&str, u32, Option<f64>, Option<f64>)] = &[
    ("create dealing", 40, Some(60.0), Some(185.0)),
    ("create dealing", 13, None, Some(78.0)),
    ("create dealing", 4, None, Some(43.0)),
    ("verify dealing", 40, Some(50.0), Some(203.0)),
    ("verify dealing", 13, None, Some(96.0)),
    ("verify dealing", 4, None, Some(58.0)),
    ("verify f+1 dealings", 40, Some(350.0), Some(14.0 * 203.0)),
    ("verify f+1 dealings", 13, None, Some(5.0 * 96.0)),
    ("verify f+1 dealings", 4, None, Some(2.0 * 58.0)),
    ("transcript", 40, Some(35.0), Some(99.0)),
    ("transcript", 13, None, Some(13.0)),
    ("transcript", 4, None, Some(1.6)),
    ("load transcript", 40, Some(120.0), Some(1120.0)),
    ("load transcript", 13, None, Some(226.0)),
    ("load transcript", 4, None, Some(68.0)),
    ("decode stored key", 40, Some(20.0), Some(1085.0)),
    ("update by 2^0", 40, None, Some(0.02)),
    ("update by 2^1", 40, None, Some(66.0)),
    ("update by 2^5", 40, Some(60.0), Some(154.0)),
    ("update by 2^15", 40, None, Some(466.0)),
    ("update by 2^30", 40, None, Some(966.0)),
    ("sign share", 40, Some(0.15), Some(0.25)),
    ("verify share", 40, Some(0.8), Some(1.4)),
    ("combine 27 shares", 40, Some(1.2), Some(3.3)),
];

#[derive(Default)]
struct Samples {
    cpu_ms: Vec<f64>,
    wall_ms: Vec<f64>,
}

thread_local! {
    static SAMPLES: RefCell<BTreeMap<(String, u32, usize), Samples>> = RefCell::default();
}

fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// One step: `prepare` is not measured, `work` is.
fn step<P, R>(
    criterion: &mut Criterion,
    name: &str,
    nodes: u32,
    threads: usize,
    mut prepare: impl FnMut() -> P,
    mut work: impl FnMut(P) -> R,
) {
    let mut group = criterion.benchmark_group(format!("{nodes} nodes, threads {threads}"));
    group
        .sampling_mode(SamplingMode::Flat)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100));
    group.measurement_time(Duration::from_millis(1_500));
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let mut total = Duration::ZERO;
            for _ in 0..iterations {
                let input = prepare();
                let (start, start_cpu) = (Instant::now(), cpu());
                let output = work(input);
                let (wall, cpu) = (start.elapsed(), cpu() - start_cpu);
                drop(output);
                total += wall;
                SAMPLES.with_borrow_mut(|all| {
                    let samples = all.entry((name.to_owned(), nodes, threads)).or_default();
                    samples.cpu_ms.push(cpu.as_secs_f64() * 1e3);
                    samples.wall_ms.push(wall.as_secs_f64() * 1e3);
                });
            }
            total
        });
    });
    group.finish();
}

fn engine(threads: usize) -> Engine {
    let mut config = EngineConfig::for_this_machine();
    config.threads = NonZeroUsize::new(threads).unwrap();
    config.nice = 0;
    Engine::new(config).unwrap()
}

#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
fn measure(criterion: &mut Criterion, nodes: u32, threads: usize) -> u64 {
    let engine = engine(threads);
    let mut rng = ChaCha20Rng::seed_from_u64(u64::from(nodes));
    let faulty = (nodes - 1) / 3;
    let (public, secret): (Vec<_>, Vec<_>) =
        (0..nodes).map(|index| generate_key_pair(&index.to_be_bytes(), &mut rng)).unzip();
    let source = Source::Fresh { dealers: nodes, dealings: faulty + 1 };
    let session = Session::new([1; 32], Epoch(5), nodes - faulty, public, source).unwrap();
    let create = |dealer: u32, rng: &mut ChaCha20Rng| {
        create_dealing(&engine, &session, NodeIndex(dealer), None, rng).unwrap()
    };
    let dealings: Vec<_> = (0..=faulty)
        .map(|dealer| (NodeIndex(dealer), create(dealer, &mut rng).to_bytes()))
        .collect();
    let decode = |dealings: &[(NodeIndex, Vec<u8>)]| -> Vec<_> {
        dealings
            .iter()
            .map(|(dealer, bytes)| (*dealer, Dealing::from_bytes(bytes).unwrap()))
            .collect()
    };
    let verify = |dealings: &[(NodeIndex, Vec<u8>)], rng: &mut ChaCha20Rng| -> Vec<_> {
        verify_dealings(&engine, &session, decode(dealings), rng)
            .into_iter()
            .map(|result| result.unwrap())
            .collect::<Vec<VerifiedDealing>>()
    };
    let verified = verify(&dealings, &mut rng);
    let transcript = create_transcript(&engine, &session, &verified).unwrap().to_bytes();
    let load = || {
        let transcript = Transcript::from_bytes(&engine, &transcript).unwrap();
        let share =
            transcript.load(&engine, &session, NodeIndex(nodes - 1), &secret[nodes as usize - 1]);
        (transcript, share.unwrap())
    };

    step(criterion, "create dealing", nodes, threads, || (), |()| create(0, &mut rng).to_bytes());
    step(criterion, "verify dealing", nodes, threads, || (), |()| verify(&dealings[..1], &mut rng));
    step(criterion, "verify f+1 dealings", nodes, threads, || (), |()| verify(&dealings, &mut rng));
    step(
        criterion,
        "transcript",
        nodes,
        threads,
        || (),
        |()| create_transcript(&engine, &session, &verified).unwrap().to_bytes(),
    );
    step(criterion, "load transcript", nodes, threads, || (), |()| load());
    println!(
        "    {nodes} nodes: dealing {} bytes, transcript {} bytes, tables {} bytes",
        dealings[0].1.len(),
        transcript.len(),
        engine.table_bytes()
    );
    if nodes < 40 || threads > 1 {
        return engine.table_bytes();
    }

    let mut used = EncryptionSecretKey::from_bytes(&secret[0].to_bytes()).unwrap();
    used.update_to(Epoch(1), &mut rng).unwrap();
    let stored = used.to_bytes();
    println!("    stored key at epoch 1: {} bytes", stored.len());
    let decode = |bytes: &[u8]| EncryptionSecretKey::from_bytes(bytes).unwrap();
    step(criterion, "decode stored key", nodes, threads, || (), |()| decode(&stored));
    for power in [0, 1, 5, 15, 30] {
        let name = format!("update by 2^{power}");
        // From epoch 1: from 0, powers of two are starts of subtrees that are there already, and
        // cost nothing.
        step(
            criterion,
            &name,
            nodes,
            threads,
            || decode(&stored),
            |mut key| {
                key.update_to(Epoch(1 + (1 << power)), &mut rng).unwrap();
                key
            },
        );
    }

    let (transcript, _) = load();
    let committee = transcript.committee();
    let message = state_root_message(&[7; 32]);
    let shares: Vec<_> = (nodes - committee.threshold..nodes)
        .map(|index| {
            transcript.load(&engine, &session, NodeIndex(index), &secret[index as usize]).unwrap()
        })
        .collect();
    step(criterion, "sign share", nodes, threads, || (), |()| shares[0].sign(&message));
    let signed: BTreeMap<_, _> =
        shares.iter().map(|share| (share.index, share.sign(&message))).collect();
    let (index, share) = signed.first_key_value().unwrap();
    step(
        criterion,
        "verify share",
        nodes,
        threads,
        || (),
        |()| committee.verify_share(*index, &message, share).unwrap(),
    );
    step(
        criterion,
        "combine 27 shares",
        nodes,
        threads,
        || (),
        |()| combine(committee, &signed).unwrap(),
    );
    engine.table_bytes()
}

/// The gain of a second thread, on create, verify and load at 40 nodes. One thread, two threads,
/// and two independent single threads take turns, so that other load on the machine affects all
/// alike: the last shows the gain of a second core for this arithmetic when nothing is shared or
/// waited for.
#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
fn compare_threads() {
    const TURNS: usize = 25;
    let nodes: u32 = 40;
    let (one, other, two) = (engine(1), engine(1), engine(2));
    let mut rng = ChaCha20Rng::seed_from_u64(40);
    let faulty = (nodes - 1) / 3;
    let (public, secret): (Vec<_>, Vec<_>) =
        (0..nodes).map(|index| generate_key_pair(&index.to_be_bytes(), &mut rng)).unzip();
    let source = Source::Fresh { dealers: nodes, dealings: faulty + 1 };
    let session = Session::new([1; 32], Epoch(5), nodes - faulty, public, source).unwrap();
    let rng = || ChaCha20Rng::seed_from_u64(7);
    let create = |engine: &Engine, dealer| {
        create_dealing(engine, &session, NodeIndex(dealer), None, &mut rng()).unwrap().to_bytes()
    };
    let dealings: Vec<_> =
        (0..=faulty).map(|dealer| (NodeIndex(dealer), create(&two, dealer))).collect();
    let verify = |engine: &Engine, dealings: &[(NodeIndex, Vec<u8>)]| -> Vec<_> {
        let decoded: Vec<_> = dealings
            .iter()
            .map(|(dealer, bytes)| (*dealer, Dealing::from_bytes(bytes).unwrap()))
            .collect();
        let verdicts = verify_dealings(engine, &session, decoded, &mut rng()).into_iter();
        verdicts.map(Result::unwrap).collect()
    };
    let transcript =
        create_transcript(&two, &session, &verify(&two, &dealings)).unwrap().to_bytes();
    type Step<'a> = (&'a str, Box<dyn Fn(&Engine) + Sync + 'a>);
    let steps: [Step<'_>; 3] = [
        ("create dealing", Box::new(|engine| drop(create(engine, 0)))),
        ("verify dealing", Box::new(|engine| drop(verify(engine, &dealings[..1])))),
        (
            "load transcript",
            Box::new(|engine| {
                let transcript = Transcript::from_bytes(engine, &transcript).unwrap();
                drop(transcript.load(engine, &session, NodeIndex(39), &secret[39]).unwrap());
            }),
        ),
    ];
    let wall = |work: &dyn Fn()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1e3
    };
    println!(
        "wall, medians of {TURNS} turns in milliseconds, 40 nodes; two cores free would give each \
         step 2.0"
    );
    println!(
        "{:<22}{:>10}{:>13}{:>9}{:>9}{:>19}",
        "step", "1 thread", "2 threads", "gain", "target", "2 independent"
    );
    for (name, step) in &steps {
        for engine in [&one, &other, &two] {
            step(engine);
        }
        let mut samples: [Vec<f64>; 3] = Default::default();
        for _ in 0..TURNS {
            samples[0].push(wall(&|| step(&one)));
            samples[1].push(wall(&|| step(&two)));
            samples[2].push(wall(&|| {
                std::thread::scope(|scope| {
                    scope.spawn(|| step(&one));
                    step(&other);
                });
            }));
        }
        let [single, double, apart] = samples.map(|samples| median(&samples));
        println!(
            "{name:<22}{single:>10.2}{double:>13.2}{:>9.2}{:>9}{:>19.2}",
            single / double,
            "1.8",
            2.0 * single / apart
        );
    }
    println!();
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print_table(table_bytes: u64) {
    let cell = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    println!();
    println!("processor: {}", processor());
    println!(
        "CPU and wall are medians in milliseconds; ratio is reference / ours, in CPU time on one \
         thread."
    );
    println!(
        "{:<22}{:>6}{:>9}{:>10}{:>10}{:>9}{:>11}{:>8}{:>9}",
        "step", "nodes", "threads", "CPU", "wall", "target", "reference", "ratio", "met"
    );
    SAMPLES.with_borrow(|all| {
        for (name, nodes, target, reference) in FIGURES {
            for threads in [1, 2] {
                let Some(samples) = all.get(&((*name).to_owned(), *nodes, threads)) else {
                    continue;
                };
                let (cpu, wall) = (median(&samples.cpu_ms), median(&samples.wall_ms));
                let (target, ratio) =
                    if threads == 1 { (*target, reference.map(|r| r / cpu)) } else { (None, None) };
                let met = target.map_or("", |target| if cpu <= target { "yes" } else { "no" });
                println!(
                    "{name:<22}{nodes:>6}{threads:>9}{cpu:>10.3}{wall:>10.3}{:>9}{:>11}{:>8}{met:\
                     >9}",
                    cell(target),
                    cell(*reference),
                    cell(ratio),
                );
            }
        }
    });
    println!(
        "resident tables: {:.1} MiB (target 32, reference 57)",
        table_bytes as f64 / f64::from(1 << 20)
    );
}

fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, NonZeroUsize::get);
    format!("{cores} x{}, load average {}", name.trim_start_matches([' ', '\t', ':']), load.trim())
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let sizes = std::env::var("DKG_BENCH_NODES").unwrap_or_else(|_| "4,13,40".to_owned());
    let mut table_bytes = 0;
    for nodes in
        sizes.split(',').map(|nodes| nodes.parse().expect("DKG_BENCH_NODES: numbers, by commas"))
    {
        table_bytes = measure(&mut criterion, nodes, 1);
        if nodes == 40 {
            measure(&mut criterion, nodes, 2);
        }
    }
    print_table(table_bytes);
    // A filter asks for steps by name; the comparison is not one of them.
    let filtered = std::env::args().skip(1).any(|argument| !argument.starts_with("--"));
    if sizes.split(',').any(|nodes| nodes == "40") && !filtered {
        compare_threads();
    }
}
