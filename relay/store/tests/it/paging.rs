//! Pages against a model that sorts and filters everything, over partitions that overlap.

use std::{collections::BTreeMap, path::Path, time::Duration};

use proptest::prelude::*;
use store::{
    Arrival, Config, IdQuery, MessageKey, PAGE_MESSAGES_DEFAULT, PAGE_MESSAGES_MAX, Page, Query,
    QueryError, Store,
};

use crate::common::*;

#[derive(Clone, Debug)]
struct SentMessage {
    number: u64,
    timestamp_ns: i64,
    pubsub: usize,
    content: usize,
}

fn pubsub(index: usize) -> String {
    format!("/waku/2/rs/1/{index}")
}

fn content(index: usize) -> String {
    format!("/app/1/topic-{index}/proto")
}

/// The page that store v3 asks for, by the letter.
fn model(
    sent: &BTreeMap<(i64, [u8; 32]), SentMessage>,
    query: &Query,
) -> Option<(Vec<u64>, Option<[u8; 32]>)> {
    let cursor = match query.cursor {
        Some(cursor) => Some(*sent.keys().find(|key| key.1 == cursor)?),
        None => None,
    };
    let mut of_page: Vec<_> = sent
        .iter()
        .filter(|(key, sent)| {
            let by_filter =
                query.pubsub_topic.as_ref().is_none_or(|topic| *topic == pubsub(sent.pubsub))
                    && (query.content_topics.is_empty()
                        || query.content_topics.contains(&content(sent.content)))
                    && query.start_ns.is_none_or(|start_ns| key.0 >= start_ns)
                    && query.end_ns.is_none_or(|end_ns| key.0 < end_ns);
            let asked =
                if query.hashes.is_empty() { by_filter } else { query.hashes.contains(&key.1) };
            let behind = match cursor {
                Some(cursor) if query.forward => **key > cursor,
                Some(cursor) => **key < cursor,
                None => true,
            };
            asked && behind
        })
        .map(|(key, sent)| (key.1, sent.number))
        .collect();
    let limit =
        if query.limit == 0 { PAGE_MESSAGES_DEFAULT } else { query.limit.min(PAGE_MESSAGES_MAX) };
    if !query.forward {
        of_page.reverse();
    }
    let more = of_page.len() > limit;
    of_page.truncate(limit);
    let next = of_page.last().map(|last| last.0).filter(|_| more);
    if !query.forward {
        of_page.reverse();
    }
    Some((of_page.into_iter().map(|(_, number)| number).collect(), next))
}

fn compare(
    store: &Store,
    sent: &BTreeMap<(i64, [u8; 32]), SentMessage>,
    query: &Query,
) -> Option<Page> {
    let answered = ask(store, query.clone());
    let Some((numbers, cursor)) = model(sent, query) else {
        assert!(matches!(answered, Err(QueryError::UnknownCursor { .. })), "{query:?}");
        return None;
    };
    let page = answered.unwrap();
    assert_eq!(page.messages.iter().map(checked).collect::<Vec<_>>(), numbers, "{query:?}");
    assert_eq!(page.cursor, cursor, "{query:?}");
    for found in &page.messages {
        let sent = &sent[&(found.timestamp_ns, found.hash)];
        assert_eq!(*found.pubsub_topic, pubsub(sent.pubsub));
        assert_eq!(*found.content_topic, content(sent.content));
    }
    Some(page)
}

/// The ids of a query's filters, a few at a time, and those of its hashes that are missing.
fn compare_ids(
    store: &Store,
    sent: &BTreeMap<(i64, [u8; 32]), SentMessage>,
    topics: &[usize],
    query: &Query,
) {
    let mut asked = IdQuery {
        pubsub_topics: topics.iter().map(|topic| pubsub(*topic)).collect(),
        content_topics: query.content_topics.clone().into(),
        from: (query.start_ns.unwrap_or(-40), [0; 32]),
        to: (query.end_ns.unwrap_or(200), [7; 32]),
        limit: 7,
    };
    let is_asked = |key: &MessageKey, sent: &SentMessage| {
        *key >= asked.from
            && *key <= asked.to
            && topics.contains(&sent.pubsub)
            && (asked.content_topics.is_empty()
                || asked.content_topics.contains(&content(sent.content)))
    };
    let expected: Vec<MessageKey> =
        sent.iter().filter(|(key, sent)| is_asked(key, sent)).map(|(key, _)| *key).collect();
    let mut found = Vec::new();
    loop {
        let page = block_on(store.ids(asked.clone())).unwrap();
        assert!(page.len() <= 7);
        let Some(last) = page.last().copied() else { break };
        found.extend(page);
        // The hashes of `common::hash` do not end in 0xff.
        let mut next = last.1;
        next[31] += 1;
        asked.from = (last.0, next);
    }
    assert_eq!(found, expected, "{query:?}");
    let hashes: Vec<[u8; 32]> = (0..200).map(hash).collect();
    let missing = block_on(store.missing(hashes.clone(), (-100, 1000))).unwrap();
    let unknown: Vec<[u8; 32]> =
        hashes.into_iter().filter(|hash| !sent.keys().any(|key| key.1 == *hash)).collect();
    assert_eq!(missing, unknown);
}

/// Partitions of an hour, and nothing is ever old.
fn long(folder: &Path) -> Config {
    Config { retention: Duration::from_secs(1_000_000), ..config(folder) }
}

fn queries() -> impl Strategy<Value = Query> {
    let lists = (
        prop::option::of(0..4usize),
        prop::collection::vec(0..5usize, 0..4),
        prop::collection::vec(0..200u64, 0..6),
        any::<bool>(),
    );
    let bounds = (
        prop::option::of(-30..120i64),
        prop::option::of(-30..120i64),
        prop::option::of(0..170u64),
        any::<bool>(),
        prop_oneof![Just(0usize), 1..8usize, Just(1000usize)],
    );
    (lists, bounds).prop_map(
        |((topic, contents, hashes, by_hash), (start, end, cursor, forward, limit))| Query {
            pubsub_topic: topic.map(pubsub),
            content_topics: contents.into_iter().map(content).collect(),
            start_ns: start,
            end_ns: end,
            hashes: if by_hash { hashes.into_iter().map(hash).collect() } else { Vec::new() },
            cursor: cursor.map(hash),
            forward,
            limit,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    // Promise: P23 - Query pages equal those of a model, forwards and backwards, over overlapping
    //   partitions.
    #[test]
    fn pages_are_those_of_the_model(
        seeds in prop::collection::vec((0..30i64, 0..3usize, 0..4usize, 0..12u8), 1..160),
        queries in prop::collection::vec(queries(), 40),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let hand = ManualClock::new();
        let store = open(long(folder.path()), &hand);
        let mut sent = BTreeMap::new();
        let mut elapsed = 0;
        for (number, (off, pubsub_index, content_index, step)) in seeds.into_iter().enumerate() {
            let number = number as u64;
            // Timestamps are small numbers, many alike, up to 20 off what the clock would say; a
            // new partition is begun every so often.
            if step == 0 {
                hand.forward(3600);
                elapsed += 15;
            }
            let timestamp_ns = elapsed + off - 10;
            let one =
                SentMessage { number, timestamp_ns, pubsub: pubsub_index, content: content_index };
            let arrival = Arrival {
                pubsub_topic: pubsub(pubsub_index).into(),
                content_topic: content(content_index).into(),
                ..arrival(number, one.timestamp_ns)
            };
            try_append(&store, arrival, body(number, 50)).unwrap();
            sent.insert((one.timestamp_ns, hash(number)), one);
        }
        for query in &queries {
            compare(&store, &sent, query);
        }
        // From page to page to the end, as clients do, both ways and after a restart.
        drop(store);
        let store = open(long(folder.path()), &hand);
        // Ids do not wait for the index; pages do.
        assert_eq!(numbers(&store).len(), sent.len());
        for (topic, query) in queries.iter().take(10).enumerate() {
            compare_ids(&store, &sent, &[topic % 3], query);
            compare_ids(&store, &sent, &[2, topic % 2], query);
            let mut query = Query { cursor: None, limit: query.limit.min(7), ..query.clone() };
            while let Some(page) = compare(&store, &sent, &query) {
                query.cursor = page.cursor;
                if page.cursor.is_none() {
                    break;
                }
            }
        }
    }
}
