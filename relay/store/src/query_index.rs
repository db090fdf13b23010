//! The SQL of a query for one partition's index, and the check of its results against the segment.
//!
//! Every statement is a range of one tree, ended by the page's size: its cost does not depend on
//! what else the partition holds.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, atomic::Ordering},
};

use disk::read_exact;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::{
    index::prefix,
    message::{RecordPosition, Segment},
    query::Query,
    segment::{FIXED_BYTES, HASH_AT, HEAD_BYTES, KIND},
};

/// Bytes read at once when a message is checked.
const CHECK_BYTES: usize = 64 << 10;

/// Why a record was not found to be its message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    /// The record is another one, or none.
    #[error("{0}")]
    Damage(String),
    /// An error of the operating system; reading again may succeed.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for CheckError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Damage("the segment is gone".to_string()),
            io::ErrorKind::UnexpectedEof => Self::Damage("the segment is too short".to_string()),
            _ => Self::Io(error),
        }
    }
}

/// A row, with its topics.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) hash: [u8; 32],
    pub(crate) timestamp_ns: i64,
    pub(crate) pubsub_topic: Arc<str>,
    pub(crate) content_topic: Arc<str>,
    pub(crate) segment: u32,
    pub(crate) place: RecordPosition,
    topic: i64,
}

impl Entry {
    fn decode(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            timestamp_ns: row.get(0)?,
            hash: row.get(1)?,
            topic: row.get(2)?,
            segment: row.get(3)?,
            place: RecordPosition { record: row.get(4)?, start: row.get(5)?, length: row.get(6)? },
            pubsub_topic: Arc::from(""),
            content_topic: Arc::from(""),
        })
    }

    /// Whether the record it refers to is that message. The payload's checksum is computed unless
    /// every record of the segment was written or checked by this process.
    pub(crate) fn check(&self, segment: &Arc<Segment>) -> Result<(), CheckError> {
        let place = self.place;
        let read =
            |buffer: &mut [u8], offset: u64| read_exact(segment.file()?.as_ref(), buffer, offset);
        let mut head = [0; HEAD_BYTES as usize + FIXED_BYTES];
        read(&mut head, u64::from(place.record))?;
        let payload_at = u64::from(place.record) + HEAD_BYTES;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let checksum = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let hash_at = (HEAD_BYTES + HASH_AT) as usize;
        let agrees = head[hash_at..hash_at + 32] == self.hash
            && payload_at + u64::from(length) == place.end()
            && u64::from(place.start) > payload_at
            && length <= KIND.bytes_max;
        if !agrees {
            return Err(CheckError::Damage(
                "a record is not the message its index says".to_string(),
            ));
        }
        if segment.checked.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; CHECK_BYTES.min(length as usize)];
        let mut left = length as usize;
        while left > 0 {
            let part = left.min(buffer.len());
            read(&mut buffer[..part], place.end() - left as u64)?;
            hasher.update(&buffer[..part]);
            left -= part;
        }
        if hasher.finalize() != checksum {
            return Err(CheckError::Damage(
                "the checksum of a record's payload does not match".to_string(),
            ));
        }
        Ok(())
    }
}

/// Range of timestamps and hashes of a query: from the first inclusive to the second exclusive. A
/// key's hash may have any length: empty before all, with a zero appended right after that hash.
pub(crate) struct KeyRange {
    from: (i64, Vec<u8>),
    to: (i64, Vec<u8>),
}

impl KeyRange {
    pub(crate) fn for_query(query: &Query, cursor: Option<(i64, [u8; 32])>) -> Self {
        let mut from = (query.start_ns.unwrap_or(i64::MIN), Vec::new());
        // Behind the largest key there is.
        let mut to = query.end_ns.map_or((i64::MAX, vec![0xff; 33]), |end_ns| (end_ns, Vec::new()));
        if let Some((timestamp_ns, hash)) = cursor {
            if query.forward {
                from = from.max((timestamp_ns, [hash.as_slice(), &[0]].concat()));
            } else {
                to = to.min((timestamp_ns, hash.to_vec()));
            }
        }
        Self { from, to }
    }

    /// Whether timestamps of this span may be asked for.
    pub(crate) fn meets(&self, (min, max): (i64, i64)) -> bool {
        self.from < self.to && max >= self.from.0 && min <= self.to.0
    }
}

/// The first `count` entries in the query's order.
pub(crate) fn entries(
    connection: &Connection,
    query: &Query,
    bounds: &KeyRange,
    count: usize,
) -> rusqlite::Result<Vec<Entry>> {
    // Of one moment, whatever the index thread writes meanwhile.
    let transaction = connection.unchecked_transaction()?;
    let pubsub = match &query.pubsub_topic {
        None => None,
        Some(name) => match pubsub(&transaction, name)? {
            None => return Ok(Vec::new()),
            id => id,
        },
    };
    let (tree, column, ids) = if query.content_topics.is_empty() {
        let ids = match pubsub {
            Some(id) => vec![id],
            None => ids(&transaction, "SELECT id FROM pubsubs WHERE ?1 = ?1", "")?,
        };
        ("", "pubsub", ids)
    } else {
        let mut topics = query.content_topics.clone();
        topics.sort_unstable();
        topics.dedup();
        let mut found = Vec::new();
        for content in &topics {
            match pubsub {
                Some(pubsub) => {
                    let sql = "SELECT id FROM topics WHERE content = ?1 AND pubsub = ?2";
                    let mut statement = transaction.prepare_cached(sql)?;
                    let id = statement.query_row(params![content, pubsub], |row| row.get(0));
                    let id: Option<i64> = id.optional()?;
                    found.extend(id);
                }
                None => {
                    found.extend(ids(
                        &transaction,
                        "SELECT id FROM topics WHERE content = ?1",
                        content,
                    )?);
                }
            }
        }
        ("INDEXED BY by_topic", "topic", found)
    };
    let order = if query.forward { "ASC" } else { "DESC" };
    let sql = format!(
        "SELECT timestamp, hash, topic, segment, record, start, length FROM messages {tree}
         WHERE {column} = ?1 AND (timestamp, hash) >= (?2, ?3) AND (timestamp, hash) < (?4, ?5)
         ORDER BY timestamp {order}, hash {order} LIMIT ?6"
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut found: Vec<Entry> = Vec::new();
    for id in ids {
        let (from, to) = (&bounds.from, &bounds.to);
        let rows = statement
            .query_map(params![id, from.0, from.1, to.0, to.1, count as i64], Entry::decode)?;
        for row in rows {
            found.push(row?);
        }
        // Kept in order and short, however many topics there are.
        found.sort_by_key(|entry| (entry.timestamp_ns, entry.hash));
        if !query.forward {
            found.reverse();
        }
        found.truncate(count);
    }
    name_topics(&transaction, &mut found)?;
    Ok(found)
}

/// Entries of these messages, in no order.
pub(crate) fn by_hash(
    connection: &Connection,
    hashes: &[[u8; 32]],
) -> rusqlite::Result<Vec<Entry>> {
    let transaction = connection.unchecked_transaction()?;
    let mut places =
        transaction.prepare_cached("SELECT pubsub, timestamp FROM hashes WHERE prefix = ?1")?;
    let mut messages = transaction.prepare_cached(
        "SELECT timestamp, hash, topic, segment, record, start, length FROM messages
         WHERE pubsub = ?1 AND timestamp = ?2 AND hash = ?3",
    )?;
    let mut found = Vec::new();
    for hash in hashes {
        // Hashes that share eight bytes are made on purpose, and cost their maker more than us.
        let mut rows = places.query([prefix(hash)])?;
        while let Some(row) = rows.next()? {
            let (pubsub, timestamp): (i64, i64) = (row.get(0)?, row.get(1)?);
            let entry = messages
                .query_row(params![pubsub, timestamp, hash.as_slice()], Entry::decode)
                .optional()?;
            if let Some(entry) = entry {
                found.push(entry);
                break;
            }
        }
    }
    name_topics(&transaction, &mut found)?;
    Ok(found)
}

/// Id of a pubsub topic, if the partition has messages of it.
pub(crate) fn pubsub(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached("SELECT id FROM pubsubs WHERE name = ?1")?;
    statement.query_row([name], |row| row.get(0)).optional()
}

fn ids(connection: &Connection, sql: &str, parameter: &str) -> rusqlite::Result<Vec<i64>> {
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_map([parameter], |row| row.get(0))?.collect()
}

fn name_topics(connection: &Connection, entries: &mut [Entry]) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "SELECT pubsubs.name, topics.content FROM topics JOIN pubsubs ON pubsubs.id = topics.pubsub
         WHERE topics.id = ?1",
    )?;
    let mut known: HashMap<i64, (Arc<str>, Arc<str>)> = HashMap::new();
    for entry in entries {
        let names = match known.get(&entry.topic) {
            Some(names) => names.clone(),
            None => {
                let names: (String, String) =
                    statement.query_row([entry.topic], |row| Ok((row.get(0)?, row.get(1)?)))?;
                let names: (Arc<str>, Arc<str>) = (names.0.into(), names.1.into());
                known.insert(entry.topic, names.clone());
                names
            }
        };
        (entry.pubsub_topic, entry.content_topic) = names;
    }
    Ok(())
}
