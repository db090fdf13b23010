//! `GET /store/v3/messages`: past messages, page by page.
//!
//! This node answers from its own store, unless the query names another node (`peerAddr`) or there
//! is no store here ([`super::store_remote`]). Hashes are written as reference nodes write them,
//! `0x` and 64 hexadecimal digits. Bounds: the head of a request, and the bounds of
//! [`store::Query`]. Messages are read from the log as the client takes them.

use std::{io, sync::atomic::Ordering::Relaxed, time::Instant};

use http_server::Pieces;
use hyper::StatusCode;
use libp2p::Multiaddr;
use protocol::MessageHash;
use store::{Page, QueryError, StoredMessage};

use super::{
    answer,
    message::{json_text_bytes_max, put_text},
    service::{HttpResult, Service},
    store_query::parse,
    subscriptions::{put_stored, read_bytes_max},
};
use crate::{
    client::Remote, counters::Reason, discovery::known::named_peer, governor::WorkKind, latencies,
    node::SwarmRequest,
};

/// Bytes of an entry in addition to its message and its topic.
const ENTRY_BYTES_MAX: usize = 160;

impl Service {
    pub(crate) async fn store_query(&self, query: &str) -> HttpResult {
        let counters = &self.node.counters;
        counters.store_queries.fetch_add(1, Relaxed);
        let refuse = |reason, refused| {
            counters.store_refused.add(reason);
            refused
        };
        if let Some(why) = self.node.watch.held_back(WorkKind::Queries) {
            return Err(refuse(Reason::Memory, answer::busy(StatusCode::TOO_MANY_REQUESTS, why)));
        }
        let asked = parse(query).map_err(|error| refuse(Reason::Damaged, answer::bad(error)))?;
        let is_own = match &asked.peer {
            Some(peer) => self.is_own(peer).await?,
            None => true,
        };
        let other = match &asked.peer {
            Some(peer) if !is_own => {
                Some(Remote::at(peer).map_err(|why| refuse(Reason::Invalid, answer::bad(why)))?)
            }
            _ if self.node.settings.store => None,
            _ => match self.node.store_node().await {
                Ok(store) => Some(store),
                Err(error) => {
                    let why = format!("this node keeps no messages (store = false), and {error}");
                    let refused = answer::refusal(StatusCode::PRECONDITION_FAILED, why);
                    return Err(refuse(Reason::Unavailable, refused));
                }
            },
        };
        if let Some(other) = other {
            let page = self.store_query_remotely(&other, asked).await;
            return page.map_err(|(reason, refused)| refuse(reason, refused));
        }
        let began = Instant::now();
        let page = self.node.store.query(asked.query).await;
        latencies::observe_since(&self.node.latencies.store_query, began);
        let page = page.map_err(|error| {
            let why = error.to_string();
            let (reason, refused) = match &error {
                QueryError::Busy { .. } => {
                    (Reason::Busy, answer::busy(StatusCode::TOO_MANY_REQUESTS, why))
                }
                QueryError::UnknownCursor { .. } | QueryError::TooMany { .. } => {
                    (Reason::Invalid, answer::bad(why))
                }
                _ => (Reason::Unavailable, answer::busy(StatusCode::SERVICE_UNAVAILABLE, why)),
            };
            refuse(reason, refused)
        })?;
        let page = PageJson::new(page, asked.include_data);
        answer::list(page, &self.responses).map_err(|refused| refuse(Reason::Busy, refused))
    }

    /// Whether an address names this node.
    async fn is_own(&self, address: &Multiaddr) -> HttpResult<bool> {
        let Some(asked) = named_peer(address) else {
            return Err(answer::bad(format!("{address} names no peer: it has no /p2p/ part")));
        };
        let own = self.query_swarm(SwarmRequest::Addresses).await?;
        Ok(own.iter().filter_map(named_peer).any(|own| own == asked))
    }
}

/// `StoreQueryResponse` of the specification.
struct PageJson {
    found: std::vec::IntoIter<StoredMessage>,
    include_data: bool,
    cursor: Option<[u8; 32]>,
    state: State,
}

enum State {
    Head,
    First,
    Later,
    End,
}

impl PageJson {
    fn new(page: Page, include_data: bool) -> Self {
        let found = page.messages.into_iter();
        Self { found, include_data, cursor: page.cursor, state: State::Head }
    }

    fn put_entry(&self, found: &StoredMessage, out: &mut Vec<u8>) -> io::Result<()> {
        out.extend_from_slice(b"{\"messageHash\":");
        put_text(&MessageHash(found.hash).to_string(), out)?;
        if self.include_data {
            out.extend_from_slice(b",\"message\":");
            put_stored(&found.message, out)?;
            out.extend_from_slice(b",\"pubsubTopic\":");
            put_text(&found.pubsub_topic, out)?;
        }
        out.push(b'}');
        Ok(())
    }
}

impl Pieces for PageJson {
    fn next_bytes(&mut self) -> Option<usize> {
        let entry = match self.state {
            State::End => return None,
            State::Head => None,
            State::First | State::Later => self.found.as_slice().first(),
        };
        let data = entry.filter(|_| self.include_data).map_or(0, |found| {
            read_bytes_max(&found.message) + json_text_bytes_max(&found.pubsub_topic)
        });
        Some(ENTRY_BYTES_MAX + data)
    }

    fn write(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        if matches!(self.state, State::Head) {
            out.extend_from_slice(
                br#"{"requestId":"","statusCode":200,"statusDesc":"OK","messages":["#,
            );
            self.state = State::First;
            return Ok(());
        }
        let Some(found) = self.found.next() else {
            out.push(b']');
            if let Some(cursor) = self.cursor {
                out.extend_from_slice(b",\"paginationCursor\":");
                put_text(&MessageHash(cursor).to_string(), out)?;
            }
            out.push(b'}');
            self.state = State::End;
            return Ok(());
        };
        if matches!(self.state, State::Later) {
            out.push(b',');
        }
        self.state = State::Later;
        self.put_entry(&found, out)
    }
}
