//! Stores for tests, and distinguishable messages.

use std::{
    future::Future,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use accounting::Pool;
use bytes::Bytes;
use disk::{RealDisk, SharedDisk};
use store::{AppendError, Arrival, Config, Message, Page, Query, QueryError, Store, StoredMessage};

pub(crate) const SECOND: i64 = 1_000_000_000;
pub(crate) const PUBSUB: &str = "/waku/2/rs/1/0";
const START: i64 = 1_700_000_000 * SECOND;

/// A clock that is moved by hand.
#[derive(Clone)]
pub(crate) struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicI64::new(START)))
    }

    pub(crate) fn now(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn forward(&self, seconds: i64) {
        self.0.fetch_add(seconds * SECOND, Ordering::SeqCst);
    }

    pub(crate) fn clock(&self) -> Arc<dyn store::Clock> {
        let hand = self.clone();
        Arc::new(move || hand.now())
    }
}

/// Small, without a reserve, and with syncs when a test asks for them.
pub(crate) fn config(folder: &Path) -> Config {
    Config {
        segment_bytes: 2 << 20,
        retention: Duration::from_secs(80),
        disk_reserve_bytes: 0,
        spare_segments: 0,
        sync_interval: Duration::from_secs(3600),
        open_segments: 2,
        ..Config::new(folder)
    }
}

pub(crate) fn open(config: Config, hand: &ManualClock) -> Store {
    Store::open(config, RealDisk::shared(), hand.clock()).unwrap()
}

pub(crate) fn open_on(disk: SharedDisk, config: Config, hand: &ManualClock) -> Store {
    Store::open(config, disk, hand.clock()).unwrap()
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A hash whose order is not that of the numbers.
pub(crate) fn hash(number: u64) -> [u8; 32] {
    let mut hash = [number as u8; 32];
    hash[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    hash[24..].copy_from_slice(&number.to_be_bytes());
    hash
}

pub(crate) fn number(hash: &[u8; 32]) -> u64 {
    u64::from_be_bytes(hash[24..].try_into().unwrap())
}

/// Bytes that name their number.
pub(crate) fn body(number: u64, bytes: usize) -> Bytes {
    let seed = number.to_be_bytes();
    (0..bytes).map(|at| seed[at % 8] ^ (at / 8) as u8).collect::<Vec<u8>>().into()
}

pub(crate) fn arrival(number: u64, timestamp_ns: i64) -> Arrival {
    Arrival {
        hash: hash(number),
        timestamp_ns,
        pubsub_topic: PUBSUB.into(),
        content_topic: "/app/1/chat/proto".into(),
        kept: true,
        may_pass: false,
        fetched: false,
    }
}

pub(crate) fn try_append(
    store: &Store,
    arrival: Arrival,
    message: Bytes,
) -> Result<Message, AppendError> {
    let pool = Pool::standalone("test", 1 << 30);
    let held = pool.try_reserve(message.len() as u64).unwrap();
    let answered = block_on(store.append(arrival, message, held).unwrap());
    assert_eq!(pool.used_bytes(), 0, "the reservation was given back");
    answered.map(|appended| appended.message)
}

/// Appends a message of 200 bytes.
pub(crate) fn append(store: &Store, number: u64, timestamp_ns: i64) -> Message {
    try_append(store, arrival(number, timestamp_ns), body(number, 200)).unwrap()
}

pub(crate) fn ask(store: &Store, query: Query) -> Result<Page, QueryError> {
    block_on(store.query(query))
}

/// The same, while an index is rebuilt.
pub(crate) fn ask_until_built(store: &Store, query: &Query) -> Page {
    for _ in 0..600 {
        match ask(store, query.clone()) {
            Err(QueryError::Index { .. }) => std::thread::sleep(Duration::from_millis(50)),
            answered => return answered.unwrap(),
        }
    }
    panic!("the index was not made anew in 30 s");
}

/// Everything, page by page.
pub(crate) fn everything(store: &Store) -> Vec<StoredMessage> {
    let mut query = Query { forward: true, limit: 100, ..Query::default() };
    let mut found = Vec::new();
    loop {
        let page = ask_until_built(store, &query);
        found.extend(page.messages);
        query.cursor = page.cursor;
        if query.cursor.is_none() {
            return found;
        }
    }
}

/// Numbers of the messages found, whose content must be right, sorted.
pub(crate) fn numbers(store: &Store) -> Vec<u64> {
    let mut numbers: Vec<u64> = everything(store).iter().map(checked).collect();
    numbers.sort_unstable();
    numbers
}

/// The number of a message whose content is right.
pub(crate) fn checked(found: &StoredMessage) -> u64 {
    let number = number(&found.hash);
    assert_eq!(found.hash, hash(number));
    assert_eq!(found.message.hash().unwrap(), found.hash);
    assert_eq!(found.message.read_all().unwrap(), body(number, found.message.len()));
    number
}

/// Files below a folder whose names end so.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<std::path::PathBuf> {
    let (mut folders, mut found) = (vec![folder.to_path_buf()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_str().unwrap().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Copies a folder with its contents, as a kill at this moment would leave it.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}
