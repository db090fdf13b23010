//! `GET /store/v3/messages`: past messages, page by page.
//!
//! This node answers from its own store, unless the query names another node (`peerAddr`) or there
//! is no store here ([`super::store_remote`]). Hashes are written as reference nodes write them,
//! `0x` and 64 hexadecimal digits. Bounds: the head of a request, and the bounds of
//! [`store::Query`]. Messages are read from the log as the client takes them.

use std::{io, sync::atomic::Ordering::Relaxed, time::Instant};

use hyper::StatusCode;
use libp2p::Multiaddr;
use protocol::MessageHash;
use store::{QueryError, StoredMessage};

use super::{
    answer,
    message::{json_text_bytes_max, put_text},
    service::{HttpResult, Service},
    store_page::{PageEntry, PageJson, State},
    store_query::parse,
    subscriptions::{put_stored, read_bytes_max},
};
use crate::{
    client::Remote, counters::Reason, discovery::known::named_peer, governor::WorkKind, latencies,
    node::SwarmRequest,
};

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
        let page = PageJson {
            entries: page.messages.into_iter(),
            include_data: asked.include_data,
            cursor: page.cursor.map(MessageHash),
            state: State::Head,
            _held: None,
        };
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

impl PageEntry for StoredMessage {
    fn data_bytes_max(&self, include_data: bool) -> usize {
        if include_data {
            read_bytes_max(&self.message) + json_text_bytes_max(&self.pubsub_topic)
        } else {
            0
        }
    }

    fn put(&self, include_data: bool, out: &mut Vec<u8>) -> io::Result<()> {
        out.extend_from_slice(b"{\"messageHash\":");
        put_text(&MessageHash(self.hash).to_string(), out)?;
        if include_data {
            out.extend_from_slice(b",\"message\":");
            put_stored(&self.message, out)?;
            out.extend_from_slice(b",\"pubsubTopic\":");
            put_text(&self.pubsub_topic, out)?;
        }
        out.push(b'}');
        Ok(())
    }
}
