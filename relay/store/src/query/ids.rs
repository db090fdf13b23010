//! Ids of kept messages: a part of them in their order, for comparing stores, and which of some are
//! not kept.
//!
//! Neither waits for the index: what was appended within the last moments may be missing from an
//! answer. Bounds: [`IDS_MAX`] ids in a request and in an answer. A partition is asked only if its
//! timestamps can be meant.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::Connections;
use crate::{catalog::Partition, error::QueryError, query_index::pubsub};

/// Ids of one answer: 20 KiB of them.
pub const IDS_MAX: usize = 512;

/// A message in the order of stores: its timestamp in nanoseconds since 1970, and its hash.
pub type MessageKey = (i64, [u8; 32]);

/// Which ids are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdQuery {
    /// Of these pubsub topics. Of one after the other fewer rows are read than of all at once.
    pub pubsub_topics: Vec<String>,
    /// Of these content topics; none: of all.
    pub content_topics: Arc<[String]>,
    /// From this one on.
    pub from: MessageKey,
    /// Up to this one, which may be part of the answer.
    pub to: MessageKey,
    /// The number of ids, at most [`IDS_MAX`].
    pub limit: usize,
}

fn meets(partition: &Partition, min_ns: i64, max_ns: i64) -> bool {
    let span = partition.figures().span;
    !partition.aside && span.is_some_and(|(min, max)| max >= min_ns && min <= max_ns)
}

impl Connections<'_> {
    /// Ascending, each once, although a message that came twice may be in two partitions.
    pub(super) fn ids(&mut self, query: &IdQuery) -> Result<Vec<MessageKey>, QueryError> {
        let limit = query.limit.clamp(1, IDS_MAX);
        let mut found: Vec<MessageKey> = Vec::new();
        if query.from > query.to {
            return Ok(found);
        }
        self.check_opened_within(query.from.0, query.to.0)?;
        for partition in self.shared.catalog.all() {
            if !meets(&partition, query.from.0, query.to.0) {
                continue;
            }
            found.extend(self.read_index(&partition, |connection| rows(connection, query, limit))?);
            found.sort_unstable();
            found.dedup();
            found.truncate(limit);
        }
        Ok(found)
    }

    /// Those of `hashes` that are not kept, in their order. All have timestamps of a span.
    pub(super) fn missing(
        &mut self,
        hashes: &[[u8; 32]],
        (min_ns, max_ns): (i64, i64),
    ) -> Result<Vec<[u8; 32]>, QueryError> {
        let mut missing = hashes.to_vec();
        let partitions: Vec<Arc<Partition>> = self.shared.catalog.all();
        for partition in partitions.iter().rev() {
            if missing.is_empty() {
                break;
            }
            if meets(partition, min_ns, max_ns) {
                let found = self.hits_of(partition, &missing)?;
                missing.retain(|hash| !found.iter().any(|hit| hit.1.hash == *hash));
            }
        }
        if !missing.is_empty() {
            self.check_opened_within(min_ns, max_ns)?;
        }
        Ok(missing)
    }
}

fn rows(
    connection: &Connection,
    query: &IdQuery,
    limit: usize,
) -> rusqlite::Result<Vec<MessageKey>> {
    let transaction = connection.unchecked_transaction()?;
    let mut pubsubs: Vec<i64> = Vec::new();
    for topic in &query.pubsub_topics {
        pubsubs.extend(pubsub(&transaction, topic)?);
    }
    let (tree, column, ids) = if query.content_topics.is_empty() {
        ("", "pubsub", pubsubs)
    } else {
        let sql = "SELECT id FROM topics WHERE content = ?1 AND pubsub = ?2";
        let mut statement = transaction.prepare_cached(sql)?;
        let mut ids: Vec<i64> = Vec::new();
        for content in query.content_topics.iter() {
            for pubsub in &pubsubs {
                let id = statement.query_row(params![content, pubsub], |row| row.get(0));
                let id: Option<i64> = id.optional()?;
                ids.extend(id);
            }
        }
        ids.sort_unstable();
        ids.dedup();
        ("INDEXED BY by_topic", "topic", ids)
    };
    let mut statement = transaction.prepare_cached(&format!(
        "SELECT timestamp, hash FROM messages {tree}
         WHERE {column} = ?1 AND (timestamp, hash) >= (?2, ?3) AND (timestamp, hash) <= (?4, ?5)
         ORDER BY timestamp, hash LIMIT ?6"
    ))?;
    let mut found: Vec<MessageKey> = Vec::new();
    let (from_ns, from) = query.from;
    let mut last = query.to;
    for id in ids {
        let (to_ns, to) = last;
        let rows = statement.query_map(
            params![id, from_ns, from.as_slice(), to_ns, to.as_slice(), limit as i64],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        for row in rows {
            found.push(row?);
        }
        // Kept in order and short, however many topics there are.
        found.sort_unstable();
        found.truncate(limit);
        // What comes after a whole page is not read of the others.
        if let Some(end) = found.get(limit - 1) {
            last = *end;
        }
    }
    Ok(found)
}
