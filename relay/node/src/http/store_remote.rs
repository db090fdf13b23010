//! `GET /store/v3/messages` of another node: the one that `peerAddr` names, or the store node of a
//! node that keeps no messages.
//!
//! The page is in memory, within half of the pool `receiving`; one that is longer is asked for
//! again with fewer messages. A message that cannot be read is left out of its entry.

use std::io;

use http_server::ErrorResponse;
use protocol::{
    MessageHash, Text, WakuMessage,
    store::{Entry, Request},
};

use super::{
    answer,
    message::{json_bytes_max, json_text_bytes_max, put_message, put_text},
    service::{HttpResult, Service},
    store_page::{PageEntry, PageJson, State},
    store_query::QueryParameters,
    subscriptions::refusal,
};
use crate::{
    client::{Remote, light_push::reason_of, store::RemotePage},
    counters::Reason,
};

impl Service {
    /// A page of another node. Errors: the refusal, and under which it is counted.
    pub(super) async fn store_query_remotely(
        &self,
        other: &Remote,
        asked: QueryParameters,
    ) -> Result<hyper::Response<http_server::Outgoing>, (Reason, ErrorResponse)> {
        let request = request(&asked).map_err(|why| (Reason::Invalid, answer::bad(why)))?;
        let page = self.node.query_remotely(other, request).await;
        let page = page.map_err(|error| (reason_of(error.status()), refusal(error)))?;
        let answered: HttpResult = answer::list(page_json(page), &self.responses);
        answered.map_err(|refused| (Reason::Busy, refused))
    }
}

/// The query as the protocol has it. Errors: a list is longer than the protocol takes.
fn request(asked: &QueryParameters) -> Result<Request, String> {
    let query = &asked.query;
    for (what, count, most) in [
        ("content topics", query.content_topics.len(), protocol::store::CONTENT_TOPICS_MAX),
        ("hashes", query.hashes.len(), protocol::store::HASHES_MAX),
    ] {
        if count > most {
            return Err(format!("{count} {what}, a query has at most {most}; split it"));
        }
    }
    Ok(Request {
        request_id: Text::default(),
        include_data: asked.include_data,
        pubsub_topic: query.pubsub_topic.as_deref().map(Text::from),
        content_topics: query.content_topics.iter().map(|topic| Text::from(&**topic)).collect(),
        time_start: query.start_ns,
        time_end: query.end_ns,
        message_hashes: query.hashes.iter().copied().map(MessageHash).collect(),
        cursor: query.cursor.map(MessageHash),
        forward: query.forward,
        limit: (query.limit > 0).then_some(query.limit as u64),
    })
}

/// The page as it is written.
fn page_json(page: RemotePage) -> PageJson<Entry> {
    let RemotePage { reply, held } = page;
    PageJson {
        entries: reply.entries.into_iter(),
        include_data: true,
        cursor: reply.cursor,
        state: State::Head,
        _held: Some(held),
    }
}

/// With the data that the other node sent, whatever was asked for.
impl PageEntry for Entry {
    fn data_bytes_max(&self, _: bool) -> usize {
        let message = self.message.as_ref().map_or(0, |message| json_bytes_max(message.len()));
        message + self.pubsub_topic.as_ref().map_or(0, |topic| json_text_bytes_max(topic))
    }

    fn put(&self, _: bool, out: &mut Vec<u8>) -> io::Result<()> {
        out.extend_from_slice(b"{\"messageHash\":");
        put_text(&self.hash.to_string(), out)?;
        let message = self.message.clone().and_then(|bytes| WakuMessage::read(&bytes).ok());
        if let Some(message) = message {
            out.extend_from_slice(b",\"message\":");
            put_message(&message, out)?;
        }
        if let Some(topic) = &self.pubsub_topic {
            out.extend_from_slice(b",\"pubsubTopic\":");
            put_text(topic, out)?;
        }
        out.push(b'}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http_server::Pieces;

    use super::*;
    use crate::http::store_query::parse;

    #[test]
    fn a_query_of_http_becomes_one_of_the_protocol() {
        let hash = MessageHash([5; 32]);
        let asked = parse(&format!(
            "includeData=true&pubsubTopic=/a&contentTopics=/b,/c&startTime=5&endTime=9\
             &hashes={hash}&cursor={hash}&pageSize=7&ascending=false"
        ))
        .unwrap();
        let request = request(&asked).unwrap();
        assert_eq!(request.pubsub_topic.as_ref().map(|topic| topic.as_str()), Some("/a"));
        assert_eq!(request.content_topics.len(), 2);
        assert_eq!((request.time_start, request.time_end), (Some(5), Some(10)));
        assert_eq!((request.cursor, request.message_hashes), (Some(hash), vec![hash]));
        assert_eq!((request.limit, request.forward, request.include_data), (Some(7), false, true));
        let all = parse("").unwrap();
        assert_eq!(super::request(&all).unwrap(), Request { forward: true, ..Request::default() });
    }

    #[test]
    fn an_entry_of_another_node_is_written_within_its_bound() {
        let pool = accounting::Pool::standalone("receiving", 1000);
        let message = WakuMessage::new("/a/1/b/c", vec![1_u8; 50]);
        let entry = Entry {
            hash: MessageHash([7; 32]),
            message: Some(message.encode().into()),
            pubsub_topic: Some(Text::from("/waku/2/rs/1/2")),
        };
        let damaged = Entry { message: Some(vec![0xff].into()), ..entry.clone() };
        let reply = protocol::store::Reply {
            entries: vec![entry, damaged],
            cursor: Some(MessageHash([7; 32])),
            ..protocol::store::Reply::default()
        };
        let held = pool.try_reserve(500).unwrap();
        let mut page = page_json(RemotePage { reply, held });
        let mut text = Vec::new();
        while let Some(bytes_max) = page.next_bytes() {
            let from = text.len();
            page.write(&mut text).unwrap();
            assert!(text.len() - from <= bytes_max);
        }
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value["messages"][0]["message"]["contentTopic"], "/a/1/b/c");
        assert!(value["messages"][1]["message"].is_null());
        assert_eq!(value["paginationCursor"], MessageHash([7; 32]).to_string());
        drop(page);
        assert_eq!(pool.used_bytes(), 0);
    }
}
