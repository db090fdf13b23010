//! A segment file of the relay's store, whatever it holds at start: the store opens, it serves the
//! messages of the file, and opening it once more changes nothing.
//!
//! The first byte selects the kind of the rest: 0 the file as it is; 1 changes of a whole file (the
//! second byte is where it is cut off, then three bytes each: a place, and what is added to the
//! byte there); 2 payloads of records, each behind its length in two bytes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    time::Duration,
};

use disk::{
    RealDisk,
    records::{Kind, RecordFile},
};
use store::{Config, MESSAGE_BYTES_MAX, Query, Store, TOPIC_BYTES_MAX};
use tokio::runtime::Runtime;

/// Bytes of a record before its topics.
const FIXED_BYTES: usize = 44;
/// Records of a segment: see `segment.rs` of the store.
const KIND: Kind = Kind {
    name: *b"messages",
    version: 1,
    bytes_max: (FIXED_BYTES + 2 * TOPIC_BYTES_MAX + MESSAGE_BYTES_MAX) as u32,
};
/// Length of one page of a query. The next page starts at a cursor, which is a hash, and two
/// messages of one hash occur only here.
const RECORDS_MAX: usize = 100;
const NOW_NS: i64 = 1_700_000_000_000_000_000;

/// Key of a message in an index: pubsub topic, timestamp and hash.
type MessageKey = (String, i64, [u8; 32]);
/// Content topic and bytes of a message.
type MessageContent = (String, Vec<u8>);
type Messages = BTreeMap<MessageKey, MessageContent>;

struct Stage {
    folder: tempfile::TempDir,
    runtime: Runtime,
    whole: Vec<u8>,
}

impl Stage {
    fn segment(&self) -> PathBuf {
        self.partition().join("0000000007.segment")
    }

    fn partition(&self) -> PathBuf {
        self.folder.path().join("partitions").join(NOW_NS.to_string())
    }

    fn clear(&self) {
        let _ = fs::remove_dir_all(self.folder.path().join("partitions"));
        fs::create_dir_all(self.partition()).expect("a folder");
    }

    /// Everything that a store in the folder serves.
    fn served(&self) -> Messages {
        let config = Config {
            segment_bytes: 2 << 20,
            retention: Duration::from_secs(3600),
            disk_reserve_bytes: 0,
            sync_interval: Duration::from_secs(3600),
            query_threads: 1,
            ..Config::new(self.folder.path())
        };
        let store = Store::open(config, RealDisk::shared(), Arc::new(|| NOW_NS)).expect("it opens");
        let mut messages = Messages::new();
        let mut query = Query { forward: true, limit: 100, ..Query::default() };
        loop {
            let page = self.runtime.block_on(store.query(query.clone())).expect("a page");
            for found in &page.messages {
                let bytes = found.message.read_all().expect("it is there");
                assert_eq!(found.message.hash().expect("it is there"), found.hash);
                let key = (found.pubsub_topic.to_string(), found.timestamp_ns, found.hash);
                let value = (found.content_topic.to_string(), bytes.to_vec());
                assert!(messages.insert(key, value).is_none(), "it is served twice");
            }
            query.cursor = page.cursor;
            if query.cursor.is_none() {
                break;
            }
        }
        store.close();
        messages
    }
}

/// A record's payload.
fn payload(number: u8, pubsub: &str, content: &str, message: &[u8]) -> Vec<u8> {
    let mut payload = vec![number; 32];
    payload.extend((NOW_NS + i64::from(number)).to_le_bytes());
    payload.extend((pubsub.len() as u16).to_le_bytes());
    payload.extend((content.len() as u16).to_le_bytes());
    payload.extend([pubsub.as_bytes(), content.as_bytes(), message].concat());
    payload
}

/// Writes a segment of these records.
fn write(path: &Path, payloads: &[&[u8]]) {
    let mut file = RecordFile::create(&RealDisk, path, KIND).expect("a file");
    for payload in payloads {
        file.append([*payload]).expect("room");
    }
    file.sync().expect("a sync");
}

/// Key and content of a payload; `None` when it is not that of a message.
fn read(payload: &[u8]) -> Option<(MessageKey, MessageContent)> {
    let number = |at: usize| {
        Some(usize::from(u16::from_le_bytes([*payload.get(at)?, *payload.get(at + 1)?])))
    };
    let (pubsub, content) = (number(40)?, number(42)?);
    let text = |from: usize, bytes: usize| {
        String::from_utf8(payload.get(from..from + bytes)?.to_vec()).ok()
    };
    let (pubsub_topic, content_topic) =
        (text(FIXED_BYTES, pubsub)?, text(FIXED_BYTES + pubsub, content)?);
    let hash = payload.get(..32)?.try_into().ok()?;
    let timestamp_ns = i64::from_le_bytes(payload.get(32..40)?.try_into().ok()?);
    let message = payload.get(FIXED_BYTES + pubsub + content..)?.to_vec();
    Some(((pubsub_topic, timestamp_ns, hash), (content_topic, message)))
}

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    // In memory where there is such a folder: syncs here prove nothing about disks.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let mut stage = Stage {
        folder: folder.expect("a folder"),
        runtime: runtime.expect("a runtime"),
        whole: Vec::new(),
    };
    stage.clear();
    let payloads = [
        payload(1, "/p", "/c", b"one"),
        payload(2, "", "", b""),
        payload(3, "/p", "/d", &[7; 300]),
    ];
    write(&stage.segment(), &payloads.each_ref().map(Vec::as_slice));
    assert_eq!(stage.served().len(), 3, "a segment is not laid out as it is here");
    stage.whole = fs::read(stage.segment()).expect("it was written");
    stage
});

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let stage = &*STAGE;
    stage.clear();
    let path = stage.segment();
    let mut expected = None;
    match choice % 3 {
        0 => fs::write(&path, rest).expect("a file"),
        1 => {
            let Some((cut, changes)) = rest.split_first() else { return };
            let mut file = stage.whole.clone();
            file.truncate(file.len().saturating_sub(usize::from(*cut) * 2).max(1));
            for change in changes.chunks_exact(3).take(64) {
                let place = usize::from(u16::from_be_bytes([change[0], change[1]])) % file.len();
                file[place] = file[place].wrapping_add(change[2]);
            }
            fs::write(&path, file).expect("a file");
        }
        _ => {
            let (mut payloads, mut left) = (Vec::new(), rest);
            while let Some((length, after)) = left.split_first_chunk::<2>()
                && payloads.len() < RECORDS_MAX
            {
                let (payload, after) =
                    after.split_at(after.len().min(u16::from_be_bytes(*length).into()));
                payloads.push(payload);
                left = after;
            }
            write(&path, &payloads);
            // One record that is not a message's sets the segment aside. Of two with one key,
            // either.
            let messages: Option<Vec<_>> = payloads.iter().map(|payload| read(payload)).collect();
            expected = Some(messages.unwrap_or_default());
        }
    }
    let served = stage.served();
    if let Some(expected) = expected {
        // A hash covers its topic; of forged records with one hash under several topics one is
        // served.
        type MessageKeys = std::collections::BTreeSet<(i64, [u8; 32])>;
        let keys: MessageKeys =
            expected.iter().map(|((_, timestamp, hash), _)| (*timestamp, *hash)).collect();
        let found: MessageKeys =
            served.keys().map(|(_, timestamp, hash)| (*timestamp, *hash)).collect();
        assert_eq!(found, keys);
        for message in &served {
            assert!(expected.iter().any(|(key, value)| (key, value) == message));
        }
    }
    assert_eq!(stage.served(), served, "opening it once more changed something");
}
