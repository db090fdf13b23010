//! Appends as fast as the store takes them, and prints rate and CPU: `cargo run --release --example
//! append`.
#![allow(clippy::unwrap_used)]

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use accounting::Pool;
use bytes::Bytes;
use disk::RealDisk;
use store::{Arrival, Config, Query, Store};

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn now_ns() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as i64
}

fn hash(number: u64) -> [u8; 32] {
    let mut hash = [0; 32];
    let mut state = number;
    for part in hash.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        part.copy_from_slice(&(mixed ^ (mixed >> 27)).to_be_bytes());
    }
    hash
}

async fn run(
    store: &Store,
    name: &str,
    first: u64,
    count: u64,
    bytes: usize,
    kept: bool,
    in_flight: usize,
) {
    // A second argument runs the rows that have it in their names.
    if std::env::args().nth(2).is_some_and(|only| !name.contains(&only)) {
        return;
    }
    let pool = Pool::standalone("bench", 1 << 30);
    let topics: Vec<Arc<str>> =
        (0..50).map(|topic| format!("/bench/1/topic-{topic}/proto").into()).collect();
    let pubsub: Arc<str> = "/waku/2/rs/1/0".into();
    let message = Bytes::from(vec![7; bytes]);
    let (begun, cpu_begun) = (Instant::now(), cpu());
    let mut waiting = std::collections::VecDeque::new();
    let mut slowest = Duration::ZERO;
    for number in first..first + count {
        if waiting.len() >= in_flight {
            let (at, answer): (Instant, std::pin::Pin<Box<dyn Future<Output = _> + Send>>) =
                waiting.pop_front().unwrap();
            let _: store::AppendOutcome = Result::<_, store::AppendError>::unwrap(answer.await);
            slowest = slowest.max(at.elapsed());
        }
        let arrival = Arrival {
            hash: hash(number),
            timestamp_ns: now_ns(),
            pubsub_topic: pubsub.clone(),
            content_topic: topics[(number % 50) as usize].clone(),
            kept,
            may_pass: false,
            fetched: false,
        };
        loop {
            let held = pool.try_reserve(bytes as u64).unwrap();
            match store.append(arrival.clone(), message.clone(), held) {
                Ok(answer) => {
                    waiting.push_back((Instant::now(), Box::pin(answer)));
                    break;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }
    for (_, answer) in waiting {
        answer.await.unwrap();
    }
    let written = begun.elapsed();
    // The page waits for the index.
    let page = store.query(Query { limit: 1, ..Query::default() }).await.unwrap();
    let (elapsed, spent) = (begun.elapsed(), cpu() - cpu_begun);
    println!(
        "{name:<22} {count:>8} of {bytes:>6} B  {:>8.0} appends/s  {:>6.1} MB/s  {:>6.1} us CPU \
         each  slowest {:>5.0} ms  index {:>4.0} ms behind  found {}",
        count as f64 / written.as_secs_f64(),
        (count * bytes as u64) as f64 / 1e6 / written.as_secs_f64(),
        spent.as_secs_f64() * 1e6 / count as f64,
        slowest.as_secs_f64() * 1e3,
        (elapsed - written).as_secs_f64() * 1e3,
        page.messages.len(),
    );
}

fn main() {
    let folder = std::env::args().nth(1);
    let temporary = tempfile::tempdir().unwrap();
    let folder = folder.map_or_else(|| temporary.path().to_path_buf(), Into::into);
    println!("in {}, {} cores", folder.display(), std::thread::available_parallelism().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = Config { disk_reserve_bytes: 1 << 30, ..Config::new(&folder) };
    let store = Store::open(config, RealDisk::shared(), Arc::new(now_ns)).unwrap();
    runtime.block_on(async {
        run(&store, "small, one at a time", 0, 5_000, 700, true, 1).await;
        run(&store, "small", 1 << 20, 400_000, 700, true, 512).await;
        run(&store, "small, not kept", 2 << 20, 200_000, 700, false, 512).await;
        run(&store, "large", 3 << 20, 6_000, 140_000, true, 32).await;
        run(&store, "large, not kept", 4 << 20, 3_000, 140_000, false, 32).await;
        for (name, forward) in [("forward", true), ("backward", false)] {
            let (begun, mut cursor, mut found, mut pages) = (Instant::now(), None, 0, 0);
            while pages < 200 {
                let topics = vec!["/bench/1/topic-7/proto".to_string()];
                let query = Query {
                    content_topics: topics,
                    forward,
                    limit: 100,
                    cursor,
                    ..Query::default()
                };
                let page = store.query(query).await.unwrap();
                (found, pages, cursor) = (found + page.messages.len(), pages + 1, page.cursor);
                if cursor.is_none() {
                    break;
                }
            }
            let each = begun.elapsed().as_secs_f64() * 1e3 / f64::from(pages);
            println!("pages of a topic, {name}: {pages}, {found} messages, {each:.2} ms each");
        }
    });
    println!("{:#?}", store.status());
}
