//! Store queries: at a rate during the load, and after a phase for the accepted messages.
//!
//! Bounds: queries in flight, hashes of a query, time. Must never know: publishers.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use libp2p::identity::Keypair;
use protocol::{
    MessageHash, StatusCode,
    store::{self, Reply, Request},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::{
    channel,
    session::{Plain, Session},
    shared::{Ready, RunContext},
    tally::{Latencies, lock},
};

/// Hashes asked for at once.
const HASHES: usize = 20;
/// Entries of a page.
const PAGE: u64 = 20;
/// Queries in flight; what would be one more is skipped, counted.
const FLYING_MAX: usize = 64;
/// How long an accepted message is looked for: stores write a little later than they answer.
const FOUND_WITHIN: Duration = Duration::from_secs(5);
/// Between two lookups.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(500);

/// Queries at a rate, in one phase.
#[derive(Debug, Default)]
pub(crate) struct StoreQueryStats {
    /// From asking to the last byte of the answer.
    pub(crate) latency: Latencies,
    /// By code; 0 is no answer. Codes of one node are few, and further ones are counted as 1.
    pub(crate) codes: BTreeMap<u32, u64>,
    /// Messages in all answers.
    pub(crate) entries: u64,
    /// Not asked because too many were in flight.
    pub(crate) skipped: u64,
}

/// Codes that are counted separately.
const CODES_MAX: usize = 16;

impl StoreQueryStats {
    fn record_answer(&mut self, nanos: u64, code: u32, entries: usize) {
        self.latency.record(nanos);
        let code =
            if self.codes.len() >= CODES_MAX && !self.codes.contains_key(&code) { 1 } else { code };
        *self.codes.entry(code).or_default() += 1;
        self.entries += entries as u64;
    }
}

/// Which of these hashes are in the store?
pub(crate) struct StoreLookup {
    pub(crate) hashes: Vec<MessageHash>,
    pub(crate) reply_tx: oneshot::Sender<LookupOutcome>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LookupOutcome {
    pub(crate) found: usize,
    /// Looked for, but no query for them was answered.
    pub(crate) unanswered: usize,
}

pub(crate) struct StoreClient {
    pub(crate) shared: Arc<RunContext>,
    /// Figures of the queries, one entry for each phase.
    pub(crate) queried: Arc<Mutex<Vec<StoreQueryStats>>>,
    /// The phase in which to query, if any.
    pub(crate) query_phase_rx: tokio::sync::watch::Receiver<Option<usize>>,
    pub(crate) lookup_rx: mpsc::Receiver<StoreLookup>,
    pub(crate) node: usize,
}

/// What ends a wait of the client.
enum StoreEvent {
    Tick,
    Lookup(Option<StoreLookup>),
    /// Phase, duration in nanoseconds, status code and entries.
    Answer(usize, u64, u32, usize),
}

impl StoreClient {
    /// Runs until all requesters are gone. A connection that ends is reestablished. The node's
    /// identify message shows whether it has a store.
    pub(crate) async fn run(mut self, ready: Ready) {
        let keys = Keypair::generate_secp256k1();
        let shared = self.shared.clone();
        loop {
            let (mut session, about) = shared
                .connect(&keys, self.node, &Arc::new(Plain), |error| ready.waiting(&error))
                .await;
            ready.ready(&about);
            let serves = about.speaks(store::PROTOCOL);
            match self.run_queries(&mut session, serves).await {
                Ok(()) => return,
                Err(error) => shared.record_connection_lost("the store client", &error.to_string()),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn run_queries(
        &mut self,
        session: &mut Session<Plain>,
        serves: bool,
    ) -> std::io::Result<()> {
        let rate = self.shared.load.store_queries;
        let answer_time = self.shared.load.answer_time();
        let period = Duration::from_secs_f64(1.0 / rate.max(0.001));
        let mut tick = interval(period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut flying = FuturesUnordered::new();
        loop {
            let queries = serves && rate > 0.0;
            let next = async {
                tokio::select! {
                    _ = tick.tick(), if queries => StoreEvent::Tick,
                    lookup = self.lookup_rx.recv() => StoreEvent::Lookup(lookup),
                    Some((phase, nanos, code, entries)) = flying.next() => {
                        StoreEvent::Answer(phase, nanos, code, entries)
                    }
                }
            };
            match session.drive_until(next).await? {
                StoreEvent::Answer(phase, nanos, code, entries) => {
                    if let Some(queried) = lock(&self.queried).get_mut(phase) {
                        queried.record_answer(nanos, code, entries);
                    }
                }
                StoreEvent::Lookup(None) => return Ok(()),
                StoreEvent::Lookup(Some(lookup)) => {
                    let found = match serves {
                        true => self.find_hashes(session, lookup.hashes).await?,
                        false => LookupOutcome::default(),
                    };
                    // The requester may have given up.
                    let _ = lookup.reply_tx.send(found);
                }
                StoreEvent::Tick => {
                    let Some(phase) = *self.query_phase_rx.borrow() else { continue };
                    if flying.len() >= FLYING_MAX {
                        if let Some(queried) = lock(&self.queried).get_mut(phase) {
                            queried.skipped += 1;
                        }
                        continue;
                    }
                    let target = &self.shared.target;
                    let query = Request {
                        request_id: "1".into(),
                        include_data: true,
                        pubsub_topic: Some(target.pubsub_topic.as_str().into()),
                        content_topics: vec![target.content_topic.as_str().into()],
                        limit: Some(PAGE),
                        ..Request::default()
                    };
                    let asked = Instant::now();
                    let stream = session.stream().await?;
                    let body = query.encode();
                    flying.push(async move {
                        let bytes_max = store::REPLY_BYTES_MAX;
                        let asking = channel::request(stream, store::PROTOCOL, &body, bytes_max);
                        let reply = timeout(answer_time, asking).await.ok().and_then(Result::ok);
                        let reply = reply.and_then(|reply| Reply::decode(reply).ok());
                        let nanos = asked.elapsed().as_nanos() as u64;
                        let (code, entries) = reply
                            .map_or((0, 0), |reply| (reply.status.code(), reply.entries.len()));
                        (phase, nanos, code, entries)
                    });
                }
            }
        }
    }

    async fn find_hashes(
        &self,
        session: &mut Session<Plain>,
        hashes: Vec<MessageHash>,
    ) -> std::io::Result<LookupOutcome> {
        let deadline = Instant::now() + FOUND_WITHIN;
        let asked = hashes.len();
        let mut missing: Vec<MessageHash> = hashes;
        loop {
            let mut found = HashSet::new();
            let mut unanswered = 0;
            for some in missing.chunks(HASHES) {
                let query = Request {
                    request_id: "1".into(),
                    message_hashes: some.to_vec(),
                    limit: Some(HASHES as u64),
                    ..Request::default()
                };
                let bytes_max = store::REPLY_BYTES_MAX;
                let reply = session.request(store::PROTOCOL, &query.encode(), bytes_max).await?;
                let reply = reply.ok().and_then(|reply| Reply::decode(reply).ok());
                match reply.filter(|reply| reply.status == StatusCode::Ok) {
                    Some(reply) => found.extend(reply.entries.iter().map(|entry| entry.hash)),
                    None => unanswered += some.len(),
                }
            }
            missing.retain(|hash| !found.contains(hash));
            if missing.is_empty() || Instant::now() >= deadline {
                return Ok(LookupOutcome {
                    found: asked - missing.len(),
                    unanswered: unanswered.min(missing.len()),
                });
            }
            session.drive_until(tokio::time::sleep(LOOKUP_INTERVAL)).await?;
        }
    }
}
