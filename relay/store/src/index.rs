//! A partition's index: SQLite, written by one thread, derivable from the segments.
//!
//! ```text
//! pubsubs   id, name
//! topics    id, pubsub, content topic      a topic is a pair of both
//! messages  (pubsub, timestamp, hash) -> topic, segment, record, start, length    primary key
//!           by_topic (topic, timestamp, hash)
//! hashes    (first 8 bytes of the hash, pubsub, timestamp)
//! segments  number -> indexed up to this offset; sealed: the length when it was complete and
//!           synced
//! figures   messages
//! ```
//!
//! Both orders a query asks for (all of a pubsub topic, and one topic) are ranges of one tree, so a
//! page costs what it returns, whatever else the partition holds. The position of each segment is
//! written in the transaction of its rows.
//!
//! Bounds: a page cache of a set size; a cache of [`TOPICS_CACHED`] topics. Memory map off.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use disk::records::HEADER_BYTES;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, params};

use crate::{catalog::Figures, message::RecordPosition};

/// Version of the tables; an index of another version is rebuilt.
const VERSION: i64 = 1;
/// Topics remembered by the writer, with their names at most 8 KiB each, 100 bytes as a rule.
const TOPICS_CACHED: usize = 1024;
/// Pages of the log before it is folded into the index: 4 MiB.
const LOG_PAGES: i64 = 1024;
/// Prepared statements kept by a connection.
const STATEMENTS: usize = 16;

const TABLES: &str = "
    CREATE TABLE pubsubs (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE topics (id INTEGER PRIMARY KEY, pubsub INTEGER NOT NULL, content TEXT NOT NULL,
        UNIQUE (content, pubsub));
    CREATE TABLE messages (pubsub INTEGER NOT NULL, timestamp INTEGER NOT NULL, hash BLOB NOT NULL,
        topic INTEGER NOT NULL, segment INTEGER NOT NULL, record INTEGER NOT NULL,
        start INTEGER NOT NULL, length INTEGER NOT NULL,
        PRIMARY KEY (pubsub, timestamp, hash)) WITHOUT ROWID;
    CREATE INDEX by_topic ON messages (topic, timestamp, hash);
    CREATE TABLE hashes (prefix INTEGER NOT NULL, pubsub INTEGER NOT NULL, timestamp INTEGER NOT \
                      NULL,
        PRIMARY KEY (prefix, pubsub, timestamp)) WITHOUT ROWID;
    CREATE TABLE segments (number INTEGER PRIMARY KEY, indexed INTEGER NOT NULL, sealed INTEGER);
    CREATE TABLE figures (id INTEGER PRIMARY KEY CHECK (id = 0), messages INTEGER NOT NULL);
    INSERT INTO figures VALUES (0, 0);
";

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) hash: [u8; 32],
    pub(crate) timestamp_ns: i64,
    pub(crate) pubsub_topic: Arc<str>,
    pub(crate) content_topic: Arc<str>,
    pub(crate) segment: u32,
    pub(crate) place: RecordPosition,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) number: u32,
    pub(crate) indexed: u64,
    pub(crate) sealed: Option<u64>,
}

/// First eight bytes of a hash, as SQLite holds them.
pub(crate) fn prefix(hash: &[u8; 32]) -> i64 {
    let mut prefix = [0; 8];
    prefix.copy_from_slice(&hash[..8]);
    i64::from_be_bytes(prefix)
}

/// Whether the file itself is damaged: the index has to be rebuilt. Otherwise trying again may
/// help.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => {
            matches!(failure.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
                || failure.code == ErrorCode::Unknown
        }
        rusqlite::Error::SqlInputError { .. }
        | rusqlite::Error::QueryReturnedNoRows
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::Utf8Error(..) => true,
        _ => false,
    }
}

/// An error after which the index is rebuilt.
fn unusable(what: &str) -> rusqlite::Error {
    let failure = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(failure, Some(what.to_string()))
}

pub(crate) fn open_reader(path: &Path, cache_bytes: u64) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    prepare(&connection, cache_bytes)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

fn prepare(connection: &Connection, cache_bytes: u64) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_secs(2))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "cache_size", -((cache_bytes >> 10).max(16) as i64))?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "cell_size_check", true)
}

/// By content topic and pubsub topic: the ids of the pair and of the pubsub topic.
type Topics = HashMap<(Arc<str>, Arc<str>), (i64, i64)>;

/// An index that is written to.
pub(crate) struct Index {
    connection: Connection,
    /// Ids of topics and their pubsub topics.
    topics: Topics,
}

impl Index {
    /// Opens the index at `path`, made if absent.
    pub(crate) fn open(path: &Path, cache_bytes: u64) -> rusqlite::Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        prepare(&connection, cache_bytes)?;
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.pragma_update_and_check(None, "wal_autocheckpoint", LOG_PAGES, |_| Ok(()))?;
        let version = |connection: &Connection| -> rusqlite::Result<i64> {
            connection.query_row("PRAGMA user_version", [], |row| row.get(0))
        };
        if version(&connection)? == 0 {
            let transaction = connection.transaction()?;
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
            transaction.commit()?;
        }
        if version(&connection)? != VERSION {
            return Err(unusable("another version wrote it"));
        }
        Ok(Self { connection, topics: HashMap::new() })
    }

    pub(crate) fn figures(&self) -> rusqlite::Result<Figures> {
        let messages: i64 =
            self.connection.query_row("SELECT messages FROM figures", [], |row| row.get(0))?;
        let mut figures = Figures { messages: u64::try_from(messages).unwrap_or(0), span: None };
        let mut pubsubs = self.connection.prepare("SELECT id FROM pubsubs")?;
        let ids: Vec<i64> = pubsubs.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        for order in ["ASC", "DESC"] {
            let sql = format!(
                "SELECT timestamp FROM messages WHERE pubsub = ?1 ORDER BY timestamp {order} \
                 LIMIT 1"
            );
            for id in &ids {
                let found = self.connection.query_row(&sql, [id], |row| row.get(0)).optional()?;
                found.into_iter().for_each(|timestamp| figures.add(timestamp));
            }
        }
        Ok(figures)
    }

    pub(crate) fn positions(&self) -> rusqlite::Result<Vec<Position>> {
        let mut statement =
            self.connection.prepare("SELECT number, indexed, sealed FROM segments")?;
        let rows = statement.query_map([], |row| {
            let (indexed, sealed): (i64, Option<i64>) = (row.get(1)?, row.get(2)?);
            let sealed = sealed.and_then(|sealed| u64::try_from(sealed).ok());
            Ok(Position {
                number: row.get(0)?,
                indexed: u64::try_from(indexed).unwrap_or(0),
                sealed,
            })
        })?;
        rows.collect()
    }

    /// Adds rows and moves the positions of their segments, in one transaction. Returns how many
    /// were new.
    pub(crate) fn insert(&mut self, rows: &[Row]) -> rusqlite::Result<u64> {
        // Ids assigned in a failed transaction are unused.
        let inserted = self.insert_all(rows);
        if inserted.is_err() || self.topics.len() > TOPICS_CACHED {
            self.topics.clear();
        }
        inserted
    }

    fn insert_all(&mut self, rows: &[Row]) -> rusqlite::Result<u64> {
        let transaction = self.connection.transaction()?;
        let mut ids = Vec::with_capacity(rows.len());
        for row in rows {
            ids.push(topic(&transaction, &mut self.topics, row)?);
        }
        let mut order: Vec<usize> = (0..rows.len()).collect();
        let mut added = 0;
        order.sort_unstable_by_key(|row| (ids[*row].1, rows[*row].timestamp_ns, rows[*row].hash));
        {
            let mut statement = transaction.prepare_cached(
                "INSERT OR IGNORE INTO messages
                     (pubsub, timestamp, hash, topic, segment, record, start, length)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?;
            for index in &order {
                let (row, (topic, pubsub)) = (&rows[*index], ids[*index]);
                let place = row.place;
                let hash = row.hash.as_slice();
                added += statement.execute(params![
                    pubsub,
                    row.timestamp_ns,
                    hash,
                    topic,
                    row.segment,
                    place.record,
                    place.start,
                    place.length
                ])?;
            }
        }
        // The one tree that is filled in no order: neighbours are written together.
        order.sort_unstable_by_key(|row| prefix(&rows[*row].hash));
        {
            let mut statement = transaction.prepare_cached(
                "INSERT OR IGNORE INTO hashes (prefix, pubsub, timestamp) VALUES (?1, ?2, ?3)",
            )?;
            for index in &order {
                let row = &rows[*index];
                statement.execute(params![prefix(&row.hash), ids[*index].1, row.timestamp_ns])?;
            }
        }
        // Rows come in the order of their records. A gap before the first would never be filled.
        let mut spans: HashMap<u32, (u64, u64)> = HashMap::new();
        for row in rows {
            let (begin, end) = (u64::from(row.place.record), row.place.end());
            spans.entry(row.segment).or_insert((begin, end)).1 = end;
        }
        for (number, (begin, end)) in spans {
            let indexed: Option<i64> = transaction
                .prepare_cached("SELECT indexed FROM segments WHERE number = ?1")?
                .query_row([number], |row| row.get(0))
                .optional()?;
            let indexed = indexed.and_then(|at| u64::try_from(at).ok()).unwrap_or(HEADER_BYTES);
            if indexed < begin {
                return Err(unusable("messages before these were not indexed"));
            }
            transaction
                .prepare_cached(
                    "INSERT INTO segments (number, indexed) VALUES (?1, ?2)
                     ON CONFLICT (number) DO UPDATE SET indexed = max(indexed, ?2)",
                )?
                .execute(params![number, end as i64])?;
        }
        transaction
            .prepare_cached("UPDATE figures SET messages = messages + ?1")?
            .execute([added as i64])?;
        transaction.commit()?;
        Ok(added as u64)
    }

    /// Notes that a segment is complete, synced and indexed up to this length.
    pub(crate) fn seal(&self, number: u32, length: u64) -> rusqlite::Result<()> {
        self.connection.execute(
            "UPDATE segments SET sealed = ?2 WHERE number = ?1 AND indexed = ?2",
            params![number, length as i64],
        )?;
        Ok(())
    }

    /// Folds its log into it. Pages that readers hold back stay in the log.
    pub(crate) fn fold(&self) -> rusqlite::Result<()> {
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    }
}

/// Ids of a row's topic and pubsub topic, made if absent.
fn topic(connection: &Connection, known: &mut Topics, row: &Row) -> rusqlite::Result<(i64, i64)> {
    let key = (row.content_topic.clone(), row.pubsub_topic.clone());
    if let Some(ids) = known.get(&key) {
        return Ok(*ids);
    }
    let name = &*row.pubsub_topic;
    connection
        .prepare_cached("INSERT OR IGNORE INTO pubsubs (name) VALUES (?1)")?
        .execute([name])?;
    let pubsub: i64 = connection
        .prepare_cached("SELECT id FROM pubsubs WHERE name = ?1")?
        .query_row([name], |row| row.get(0))?;
    let content = &*row.content_topic;
    connection
        .prepare_cached("INSERT OR IGNORE INTO topics (pubsub, content) VALUES (?1, ?2)")?
        .execute(params![pubsub, content])?;
    let topic: i64 = connection
        .prepare_cached("SELECT id FROM topics WHERE content = ?2 AND pubsub = ?1")?
        .query_row(params![pubsub, content], |row| row.get(0))?;
    known.insert(key, (topic, pubsub));
    Ok((topic, pubsub))
}
