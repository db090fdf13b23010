//! `GET /store/v3/messages`: what was sent before, page by page.
//!
//! This node answers for itself. Hashes are written as reference nodes write them, `0x` and 64
//! hexadecimal digits; in a query base64 is understood too, which is what the specification's text
//! says. What bounds it: the head of a request, and the bounds of [`store::Query`]. Messages are
//! read from the log as the client takes them.

use std::{io, sync::atomic::Ordering::Relaxed, time::Instant};

use hyper::{Response, StatusCode};
use libp2p::{Multiaddr, multiaddr::Protocol};
use protocol::{MessageHash, store::PAGE_MAX};
use store::{Found, Page, Query, QueryError};

use super::{
    answer::{self, Refused},
    body::{Body, Pieces},
    message::{decode, json_text_bytes_max, put_text},
    routes::percent_decoded,
    service::Service,
    subscriptions::{put_stored, read_bytes_max},
};
use crate::{counters::Reason, governor::Work, latencies, node::Ask};

/// What an entry holds beside its message and its topic.
const ENTRY_BYTES_MAX: usize = 160;

/// What is asked.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    /// Whose messages; this node's when absent.
    peer: Option<Multiaddr>,
    include_data: bool,
    query: Query,
}

/// Reads the parameters of a query. Errors: which cannot be read.
fn parse(query: &str) -> Result<Asked, String> {
    let mut asked = Asked { query: Query { forward: true, ..Query::default() }, ..Asked::default() };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        // A topic may have been encoded as a field of a form; in base64 a plus is a digit.
        let form = matches!(name, "pubsubTopic" | "contentTopics");
        let value =
            percent_decoded(value, form).ok_or_else(|| format!("{name} is not percent-encoded UTF-8"))?;
        if value.is_empty() {
            continue;
        }
        let query = &mut asked.query;
        match name {
            "peerAddr" => {
                asked.peer = Some(value.parse().map_err(|error| format!("peerAddr is no address: {error}"))?);
            }
            "includeData" => {
                asked.include_data = match value.to_ascii_lowercase().as_str() {
                    "true" | "1" | "yes" | "on" => true,
                    "false" | "0" | "no" | "off" => false,
                    _ => return Err("includeData is neither true nor false".into()),
                };
            }
            "pubsubTopic" => query.pubsub_topic = Some(value),
            "contentTopics" => query.content_topics.extend(value.split(',').map(str::to_owned)),
            "startTime" => query.start_ns = time(name, &value)?,
            // The interface includes the end, the store does not.
            "endTime" => query.end_ns = time(name, &value)?.map(|end| end.saturating_add(1)),
            "hashes" => {
                for text in value.split(',') {
                    query.hashes.push(hash(name, text)?);
                }
            }
            "cursor" => query.cursor = Some(hash(name, &value)?),
            "pageSize" => {
                let size: u64 = value.parse().map_err(|_| "pageSize is no number".to_owned())?;
                query.limit = usize::try_from(size).unwrap_or(PAGE_MAX).min(PAGE_MAX);
            }
            // What cannot be read means the default here, says the specification.
            "ascending" => query.forward = !value.eq_ignore_ascii_case("false"),
            _ => {}
        }
    }
    Ok(asked)
}

/// Nanoseconds since 1970; zero and less mean that there is no bound.
fn time(name: &str, value: &str) -> Result<Option<i64>, String> {
    let time: i64 = value.parse().map_err(|_| format!("{name} is no number of nanoseconds since 1970"))?;
    Ok((time > 0).then_some(time))
}

fn hash(name: &str, text: &str) -> Result<[u8; 32], String> {
    let hash = match text.parse::<MessageHash>() {
        Ok(hash) => Some(hash.0),
        Err(_) => decode(text).and_then(|bytes| bytes.try_into().ok()),
    };
    hash.ok_or_else(|| format!("{name}: a message hash is 64 hexadecimal digits, or base64 of 32 bytes"))
}

impl Service {
    /// Answers a query.
    pub(crate) async fn store_query(&self, query: &str) -> Result<Response<Body>, Refused> {
        let counters = &self.node.counters;
        counters.store_queries.fetch_add(1, Relaxed);
        let refuse = |reason, refused| {
            counters.store_refused.add(reason);
            refused
        };
        if let Some(why) = self.node.watch.held_back(Work::Queries) {
            return Err(refuse(Reason::Memory, Refused::busy(StatusCode::TOO_MANY_REQUESTS, why)));
        }
        let asked = parse(query).map_err(|error| refuse(Reason::Damaged, Refused::bad(error)))?;
        if let Some(peer) = &asked.peer
            && !self.is_own(peer).await?
        {
            let why = format!(
                "{peer} is another node: this one answers from its own store; leave peerAddr out, \
                 or ask that node"
            );
            return Err(refuse(Reason::Unavailable, Refused::bad(why)));
        }
        if !self.node.settings.store {
            let why = "this node keeps no messages (store = false); ask a node that does";
            let refused = Refused::new(StatusCode::PRECONDITION_FAILED, why);
            return Err(refuse(Reason::Unavailable, refused));
        }
        let began = Instant::now();
        let page = self.node.store.query(asked.query).await;
        latencies::note(&self.node.latencies.store_query, began);
        let page = page.map_err(|error| {
            let why = error.to_string();
            let (reason, refused) = match &error {
                QueryError::Busy { .. } => (Reason::Busy, Refused::busy(StatusCode::TOO_MANY_REQUESTS, why)),
                QueryError::UnknownCursor { .. } | QueryError::TooMany { .. } => {
                    (Reason::Invalid, Refused::bad(why))
                }
                _ => (Reason::Unavailable, Refused::busy(StatusCode::SERVICE_UNAVAILABLE, why)),
            };
            refuse(reason, refused)
        })?;
        let page = PageJson::new(page, asked.include_data);
        answer::list(page, &self.responses).map_err(|refused| refuse(Reason::Busy, refused))
    }

    /// Whether an address names this node.
    async fn is_own(&self, address: &Multiaddr) -> Result<bool, Refused> {
        let peer = |address: &Multiaddr| {
            address.iter().find_map(|part| match part {
                Protocol::P2p(peer) => Some(peer),
                _ => None,
            })
        };
        let Some(asked) = peer(address) else {
            return Err(Refused::bad(format!("{address} names no peer: it has no /p2p/ part")));
        };
        let own = self.ask(Ask::Addresses).await?;
        Ok(own.iter().filter_map(peer).any(|own| own == asked))
    }
}

/// `StoreQueryResponse` of the specification.
struct PageJson {
    found: std::vec::IntoIter<Found>,
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

    fn put_entry(&self, found: &Found, out: &mut Vec<u8>) -> io::Result<()> {
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
        let data = entry
            .filter(|_| self.include_data)
            .map_or(0, |found| read_bytes_max(&found.message) + json_text_bytes_max(&found.pubsub_topic));
        Some(ENTRY_BYTES_MAX + data)
    }

    fn write(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        if matches!(self.state, State::Head) {
            out.extend_from_slice(br#"{"requestId":"","statusCode":200,"statusDesc":"OK","messages":["#);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_the_specification_has_them() {
        let asked = parse(
            "peerAddr=&includeData=true&pubsubTopic=%2Fwaku%2F2%2Frs%2F16%2F32\
             &contentTopics=%2Fa%2F1%2Fb%2Fc%2C%2Fd%2F1%2Fe+e%2Ff&startTime=5&endTime=9\
             &pageSize=500&ascending=false&unknown=1",
        )
        .unwrap();
        let query = Query {
            pubsub_topic: Some("/waku/2/rs/16/32".into()),
            content_topics: vec!["/a/1/b/c".into(), "/d/1/e e/f".into()],
            start_ns: Some(5),
            end_ns: Some(10),
            limit: 100,
            ..Query::default()
        };
        assert_eq!(asked, Asked { peer: None, include_data: true, query });
        let nothing = parse("").unwrap();
        assert!(nothing.query.forward && !nothing.include_data && nothing.query.limit == 0);
        assert!(parse("ascending=perhaps&startTime=0").unwrap().query.forward);
    }

    #[test]
    fn hashes_are_read_in_both_ways_of_writing() {
        let hex = MessageHash([0xfb; 32]).to_string();
        let base64 =
            "%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fs%3D";
        let asked = parse(&format!("hashes={hex},{base64}&cursor={hex}")).unwrap();
        assert_eq!(asked.query.hashes, [[0xfb; 32]; 2]);
        assert_eq!(asked.query.cursor, Some([0xfb; 32]));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (query, name) in [
            ("startTime=yesterday", "startTime"),
            ("hashes=0x12", "hashes"),
            ("cursor=%", "cursor"),
            ("pageSize=-1", "pageSize"),
            ("includeData=perhaps", "includeData"),
            ("peerAddr=here", "peerAddr"),
        ] {
            let error = parse(query).unwrap_err();
            assert!(error.contains(name), "{query}: {error}");
        }
    }
}
