//! Ranges of the ids that are kept: their fingerprints, and walks through them in order.
//!
//! A range may hold any number of ids. They are read a page at a time, so that queries of clients
//! come in between, at the rate that all sessions share; a session reads no more than its budget.

use std::{sync::Arc, time::Duration};

use protocol::sync::{Fingerprint, SyncId, mix};
use store::{IDS_MAX, IdQuery, MessageKey, QueryError};

use super::session::SessionError;
use crate::node::Node;

/// Ids of a page.
const PAGE_IDS: usize = 256;
const _: () = assert!(PAGE_IDS <= IDS_MAX);
/// A page counts as this many ids at least: a peer may name thousands of empty ranges.
const PAGE_COST: usize = 64;
/// Between two tries when all places for queries are taken, and how many there are.
const RETRY: Duration = Duration::from_millis(50);
const TRIES: usize = 200;

/// Which messages are compared, and how many of their ids may still be read.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    /// Pubsub topics, at least one.
    pub(super) pubsub_topics: Vec<String>,
    /// Content topics; none means all.
    pub(super) content_topics: Arc<[String]>,
    /// Ids that this session may still read.
    pub(super) ids_left: u64,
}

/// The ids of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) fingerprint: Fingerprint,
    pub(super) count: u64,
    /// The ids themselves in their order, if there are no more than were asked for.
    pub(super) ids: Vec<SyncId>,
}

fn key(id: SyncId) -> MessageKey {
    (id.time_ns, id.hash)
}

impl Scope {
    /// Fingerprint and number of the ids from one to another, and the ids if they are at most
    /// `ids_max`. Errors: the session's ids are used up.
    pub(super) async fn digest(
        &mut self,
        node: &Arc<Node>,
        from: SyncId,
        to: SyncId,
        ids_max: usize,
    ) -> Result<Digest, SessionError> {
        let mut digest = Digest::default();
        // One topic after the other: no row is read twice.
        for topic in self.pubsub_topics.clone() {
            let mut walk = Walk::new(vec![topic], self.content_topics.clone(), from, to);
            while let Some(id) = walk.next(node, self).await? {
                mix(&mut digest.fingerprint, &id.hash);
                digest.count += 1;
                if digest.ids.len() <= ids_max {
                    digest.ids.push(id);
                }
            }
        }
        if digest.ids.len() > ids_max {
            digest.ids.clear();
        }
        digest.ids.sort_unstable();
        Ok(digest)
    }

    /// A walk through all ids from one to another, in their order.
    pub(super) fn walk(&self, from: SyncId, to: SyncId) -> Walk {
        Walk::new(self.pubsub_topics.clone(), self.content_topics.clone(), from, to)
    }
}

/// A walk through ids, of which a page is in memory.
#[derive(Debug)]
pub(super) struct Walk {
    query: IdQuery,
    page: std::vec::IntoIter<MessageKey>,
    /// Whether this page is the last.
    ends: bool,
}

impl Walk {
    fn new(
        pubsub_topics: Vec<String>,
        content_topics: Arc<[String]>,
        from: SyncId,
        to: SyncId,
    ) -> Self {
        let query = IdQuery {
            pubsub_topics,
            content_topics,
            from: key(from),
            to: key(to),
            limit: PAGE_IDS,
        };
        Self { query, page: Vec::new().into_iter(), ends: from > to }
    }

    /// The next id. Errors: the session's ids are used up; the store does not answer.
    pub(super) async fn next(
        &mut self,
        node: &Arc<Node>,
        scope: &mut Scope,
    ) -> Result<Option<SyncId>, SessionError> {
        if self.page.as_slice().is_empty() {
            if self.ends {
                return Ok(None);
            }
            let page = read(node, &self.query).await?;
            let read = page.len();
            // Each topic is looked for on each page.
            let topics = self.query.pubsub_topics.len() * self.query.content_topics.len();
            let cost = read.max(PAGE_COST) + topics;
            scope.ids_left =
                scope.ids_left.checked_sub(cost as u64).ok_or(SessionError::TooMuch)?;
            self.ends = read < PAGE_IDS;
            if let Some((time_ns, hash)) = page.last().copied() {
                let last = SyncId { time_ns, hash };
                self.query.from = key(last.next());
                self.ends |= last.next() == last;
            }
            self.page = page.into_iter();
            node.sync.reading.take(cost).await;
        }
        Ok(self.page.next().map(|(time_ns, hash)| SyncId { time_ns, hash }))
    }
}

/// A page, when the queries of clients leave a place for it.
async fn read(node: &Arc<Node>, query: &IdQuery) -> Result<Vec<MessageKey>, SessionError> {
    for _ in 0..TRIES {
        match node.store.ids(query.clone()).await {
            Err(QueryError::Busy { .. }) => tokio::time::sleep(RETRY).await,
            read => return read.map_err(|error| SessionError::Store(error.to_string())),
        }
    }
    Err(SessionError::Store("queries leave no place".into()))
}
