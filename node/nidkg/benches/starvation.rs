//! Effect of a key generation at full load on other work of the machine:
//! `make bench-dkg-starvation`.
//!
//! Two threads sign on a schedule, one with Ed25519 as a TLS server does for a handshake, one a
//! share of the subnet's signature. Latency counts from when the signature was due, so that waiting
//! for a core counts. First the machine is left alone, then key generation runs on its pool without
//! pause. `DKG_BENCH_CSV` names a file for `thimble-lab compare`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    hint::black_box,
    io::Write,
    num::NonZeroUsize,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use ed25519_dalek::{Signer, SigningKey};
use hdrhistogram::Histogram;
use nidkg::*;
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;

const NODES: u32 = 40;
const INTERVAL: Duration = Duration::from_millis(2);

/// Signs on schedule until `stop` is set; latencies in nanoseconds.
fn on_schedule(stop: &AtomicBool, mut sign: impl FnMut()) -> Histogram<u64> {
    let mut latencies = Histogram::new(3).unwrap();
    let mut due = Instant::now() + INTERVAL;
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        sign();
        latencies.record(due.elapsed().as_nanos() as u64).unwrap();
        due += INTERVAL;
    }
    latencies
}

/// Both distributions while `beside` runs.
fn measure(share: &SecretShare, beside: impl FnOnce()) -> [Histogram<u64>; 2] {
    let stop = AtomicBool::new(false);
    let key = SigningKey::from_bytes(&[7; 32]);
    let message = state_root_message(&[7; 32]);
    thread::scope(|scope| {
        // A TLS 1.3 server signs 64 spaces, a context string and a hash.
        let handshake = scope.spawn(|| {
            on_schedule(&stop, || {
                black_box(key.sign(&[32; 130]));
            })
        });
        let shares = scope.spawn(|| {
            on_schedule(&stop, || {
                black_box(share.sign(&message));
            })
        });
        beside();
        stop.store(true, Ordering::Relaxed);
        [handshake.join().unwrap(), shares.join().unwrap()]
    })
}

fn print(name: &str, idle: &Histogram<u64>, busy: &Histogram<u64>) -> f64 {
    let micros = |value: u64| value as f64 / 1e3;
    if let Some(path) = std::env::var_os("DKG_BENCH_CSV") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        if file.metadata().unwrap().len() == 0 {
            writeln!(file, "name,value,unit").unwrap();
        }
        for (when, latencies) in [("idle", idle), ("busy", busy)] {
            for (quantile, at) in [("p50", 0.5), ("p99", 0.99)] {
                let nanos = latencies.value_at_quantile(at);
                writeln!(file, "\"{name}, {when}, {quantile}\",{nanos},ns").unwrap();
            }
        }
    }
    println!("{name}, microseconds from due to done:");
    println!(
        "{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "", "count", "p50", "p90", "p99", "p99.9", "max"
    );
    for (when, latencies) in [("idle", idle), ("busy", busy)] {
        print!("{when:>10}{:>10}", latencies.len());
        for quantile in [0.5, 0.9, 0.99, 0.999, 1.0] {
            print!("{:>10.0}", micros(latencies.value_at_quantile(quantile)));
        }
        println!();
    }
    let ratio = busy.value_at_quantile(0.99) as f64 / idle.value_at_quantile(0.99) as f64;
    println!(
        "    p99 busy / idle: {ratio:.2} (target 2.00: {})\n",
        if ratio <= 2.0 { "met" } else { "missed" }
    );
    ratio
}

fn main() {
    let seconds =
        std::env::var("DKG_BENCH_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let span = Duration::from_secs(seconds);
    let config = EngineConfig::for_this_machine();
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "{cores} cores, key generation on {} thread(s) at niceness {}, {seconds} s each, load \
         average before: {}",
        config.threads,
        config.nice,
        load.trim()
    );
    let engine = Engine::new(config).unwrap();
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let (public, secret): (Vec<_>, Vec<_>) =
        (0..NODES).map(|index| generate_key_pair(&index.to_be_bytes(), &mut rng)).unzip();
    let faulty = (NODES - 1) / 3;
    let source = Source::Fresh { dealers: NODES, dealings: faulty + 1 };
    let session = Session::new([1; 32], Epoch(5), NODES - faulty, public, source).unwrap();
    let mut round = || {
        let dealings: Vec<_> = (0..=faulty)
            .map(NodeIndex)
            .map(|dealer| {
                (dealer, create_dealing(&engine, &session, dealer, None, &mut rng).unwrap())
            })
            .collect();
        let verified: Vec<_> = verify_dealings(&engine, &session, dealings, &mut rng)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let transcript = create_transcript(&engine, &session, &verified).unwrap();
        transcript.load(&engine, &session, NodeIndex(0), &secret[0]).unwrap()
    };
    let share = round();

    let idle = measure(&share, || thread::sleep(span));
    let mut rounds = 0;
    let busy = measure(&share, || {
        let start = Instant::now();
        while start.elapsed() < span {
            round();
            rounds += 1;
        }
    });
    println!("{rounds} key generations of {NODES} nodes ran meanwhile\n");
    print("Ed25519 as for a TLS handshake", &idle[0], &busy[0]);
    print("threshold signature share", &idle[1], &busy[1]);
}
