//! One report of the node's state: the answer of `/status.json`, and the source of metrics.
//!
//! Everything in it is read on request; only the counters behind rates are noted once a second
//! ([`Samples`]). Bounds: [`PEERS_MAX`] peers are named, [`WINDOW`] samples kept.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use accounting::{process, unaccounted};
use dashboard::{Allocator, Memory, Pool, Throttling};
use hyper::StatusCode;
use router::Peer;
use serde::{Deserialize, Serialize};

use super::{
    admin, answer,
    service::{HttpResult, Service, VERSION},
};
use crate::{
    counters::ByReason,
    discovery::known::Counts,
    governor::{Level, Sample},
    node::{ConnectedPeer, Node, SwarmRequest},
    rln::{Validator, status::RootsReport},
};

/// Peers that a report names; the first of them, the others are counted.
const PEERS_MAX: usize = 128;
/// Programs of peers that are named; others count together.
const AGENTS_MAX: usize = 16;
/// Samples behind rates: as many seconds.
const WINDOW: usize = 11;
/// Status codes counted one by one; others together.
const CODES: [u16; 15] =
    [200, 400, 403, 404, 405, 408, 412, 413, 420, 421, 429, 500, 503, 504, 505];

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) version: String,
    pub(crate) unix_millis: u64,
    pub(crate) uptime_millis: u64,
    pub(crate) healthy: bool,
    /// `Ready`, or why the node is not.
    pub(crate) status: String,
    pub(crate) cluster: u16,
    pub(crate) shards: Vec<u16>,
    pub(crate) memory: Memory,
    pub(crate) allocator: Allocator,
    /// Every pool of the ledger, in the order of the budget sheet.
    pub(crate) pools: Vec<Pool>,
    pub(crate) process: ProcessFigures,
    /// How far work is held back.
    pub(crate) throttling: Throttling<Level>,
    /// Per second, over the last seconds.
    pub(crate) rates: Rates,
    pub(crate) messages: Messages,
    pub(crate) pushes: Pushes,
    pub(crate) requests: Requests,
    pub(crate) gossip: Gossip,
    /// Absent where messages carry no proofs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proofs: Option<Proofs>,
    pub(crate) peers: Peers,
    /// Absent when this node keeps no messages.
    pub(crate) store: StoreFigures,
    pub(crate) http: HttpFigures,
    /// Absent in a network without proofs of a rate limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rln: Option<RootsReport>,
    /// Oldest first, one per second; while nothing happens samples are further apart.
    pub(crate) history: Vec<Sample>,
}

/// The process; zeros where the kernel does not report them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProcessFigures {
    pub(crate) resident_bytes: u64,
    pub(crate) cpu_seconds: f64,
    /// Sockets, files and folders.
    pub(crate) open_files: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rates {
    pub(crate) window_seconds: f64,
    pub(crate) client_messages: f64,
    pub(crate) relay_messages: f64,
    pub(crate) pushes: f64,
    pub(crate) store_queries: f64,
}

/// Accepted requests or messages, and refused ones by reason.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct OutcomeCounts {
    pub(crate) accepted: u64,
    pub(crate) refused: BTreeMap<String, u64>,
}

/// Messages by where they came from.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Messages {
    /// Light push and HTTP.
    pub(crate) client: OutcomeCounts,
    pub(crate) relay: OutcomeCounts,
    /// Passed on and not kept, by reason: `ephemeral`, `clock` for a timestamp too far off, and
    /// `disk_full`.
    pub(crate) not_kept: BTreeMap<String, u64>,
    /// Messages of protected shards with a valid signature in time, and others.
    pub(crate) signatures_accepted: u64,
    pub(crate) signatures_refused: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pushes {
    pub(crate) receivers: usize,
    pub(crate) subscriptions: usize,
    /// References in queues.
    pub(crate) waiting: usize,
    pub(crate) queued: u64,
    pub(crate) sent: u64,
    pub(crate) failed: u64,
    /// References that left a full queue.
    pub(crate) dropped: u64,
    /// Publishers that were held back and then refused.
    pub(crate) held_back: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Requests {
    pub(crate) filter: OutcomeCounts,
    pub(crate) store: OutcomeCounts,
    pub(crate) streams_refused: u64,
    pub(crate) connections_closed: u64,
    /// Connections refused because memory is short.
    pub(crate) connections_refused: u64,
    /// REST reads refused because memory is short, store queries aside.
    pub(crate) reads_refused: u64,
    /// Comparisons of the store with peers', those that ended early included.
    pub(crate) sync_sessions: u64,
    pub(crate) sync_sessions_failed: u64,
    /// Messages sent to stores of peers that lacked them.
    pub(crate) sync_sent: u64,
    /// Messages taken from stores of other nodes, by synchronisation and resume.
    pub(crate) fetched: u64,
}

/// Counters of the gossip router since the start, and its contents.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Gossip {
    #[serde(flatten)]
    pub(crate) counters: router::Counters,
    pub(crate) seen: usize,
    pub(crate) history: usize,
    pub(crate) waiting: usize,
    /// Peers subscribed to each shard served, and those in its mesh.
    pub(crate) by_shard: BTreeMap<u16, ShardPeers>,
}

/// Proofs of a rate limit that messages carried, since the start.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Proofs {
    /// Valid and refused messages, the latter by reason.
    #[serde(flatten)]
    pub(crate) counts: OutcomeCounts,
    /// Messages that are being judged now.
    pub(crate) pending: usize,
    /// Proofs whose equation was computed, and how many equations that took.
    pub(crate) verified: u64,
    pub(crate) batches: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ShardPeers {
    pub(crate) subscribed: usize,
    pub(crate) mesh: usize,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Peers {
    pub(crate) connections: u64,
    pub(crate) peers: usize,
    pub(crate) relay_inbound: usize,
    pub(crate) relay_outbound: usize,
    /// Peers that were found, connected or not.
    pub(crate) known: usize,
    /// Connections whose peers speak each service of Waku.
    pub(crate) by_protocol: BTreeMap<String, usize>,
    /// Connections by the program that their peers name, the most frequent [`AGENTS_MAX`].
    pub(crate) by_agent: BTreeMap<String, usize>,
    /// Bytes of all connections since the start, without those that encryption adds.
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    /// Records in the table of the discovery protocol.
    pub(crate) discovery_table: u64,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// The first of them.
    pub(crate) some: Vec<PeerFigures>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PeerFigures {
    pub(crate) peer: String,
    pub(crate) address: String,
    pub(crate) outbound: bool,
    pub(crate) gossips: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) score: Option<f64>,
    pub(crate) waiting: usize,
}

/// Messages, files, queues and counters of the store.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct StoreFigures {
    /// Whether messages are kept for queries.
    pub(crate) enabled: bool,
    #[serde(flatten)]
    pub(crate) status: store::Status,
}

/// Subscriptions, refusals and answers of the HTTP interface.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct HttpFigures {
    pub(crate) subscriptions: usize,
    /// References that left a full queue unread.
    pub(crate) dropped: u64,
    pub(crate) connections_refused: u64,
    /// Idle connections that were closed for new ones.
    pub(crate) connections_evicted: u64,
    /// Answers by status code; 0 stands for all others.
    pub(crate) answers: BTreeMap<u16, u64>,
}

#[derive(Debug, Default)]
pub(crate) struct ResponseCounters {
    codes: [AtomicU64; CODES.len()],
    others: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) connections_evicted: AtomicU64,
}

impl ResponseCounters {
    pub(crate) fn add(&self, status: u16) {
        let place = CODES.iter().position(|code| *code == status);
        place.and_then(|place| self.codes.get(place)).unwrap_or(&self.others).fetch_add(1, Relaxed);
    }

    fn each(&self) -> BTreeMap<u16, u64> {
        let counted = CODES.into_iter().zip(self.codes.iter().map(|count| count.load(Relaxed)));
        counted.chain([(0, self.others.load(Relaxed))]).filter(|(_, count)| *count > 0).collect()
    }
}

/// Counters of the last seconds.
#[derive(Debug, Default)]
pub(crate) struct Samples(Mutex<VecDeque<(Instant, [u64; 4])>>);

impl Samples {
    pub(crate) fn add(&self, node: &Node) {
        self.add_at(Instant::now(), node.counters.done());
    }

    fn add_at(&self, at: Instant, counts: [u64; 4]) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while samples.len() >= WINDOW {
            samples.pop_front();
        }
        samples.push_back((at, counts));
    }

    fn rates(&self) -> Rates {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some((begin, first)), Some((end, last))) = (samples.front(), samples.back()) else {
            return Rates::default();
        };
        let window_seconds = end.saturating_duration_since(*begin).as_secs_f64();
        if window_seconds <= 0.0 {
            return Rates::default();
        }
        let mut rates = first
            .iter()
            .zip(last)
            .map(|(first, last)| last.saturating_sub(*first) as f64 / window_seconds);
        let mut next = || rates.next().unwrap_or_default();
        Rates {
            window_seconds,
            client_messages: next(),
            relay_messages: next(),
            pushes: next(),
            store_queries: next(),
        }
    }
}

fn counted(accepted: &AtomicU64, refused: &ByReason) -> OutcomeCounts {
    let refused = refused.each().map(|(reason, count)| (reason.to_owned(), count));
    OutcomeCounts { accepted: accepted.load(Relaxed), refused: refused.collect() }
}

/// Requests that succeeded.
fn served(all: &AtomicU64, refused: &ByReason) -> OutcomeCounts {
    let all = counted(all, refused);
    let refusals = all.refused.values().sum();
    OutcomeCounts { accepted: all.accepted.saturating_sub(refusals), ..all }
}

fn proofs(validator: &Validator) -> Proofs {
    let counters = &validator.counters;
    let refused = counters.refused().map(|(reason, count)| (reason.to_owned(), count));
    Proofs {
        counts: OutcomeCounts {
            accepted: counters.valid.load(Relaxed),
            refused: refused.collect(),
        },
        pending: validator.pending(),
        verified: counters.verified.load(Relaxed),
        batches: counters.batches.load(Relaxed),
    }
}

impl Service {
    /// `GET /status.json`: the report with its history.
    pub(crate) async fn status(&self) -> HttpResult {
        let mut report = self.report().await;
        report.history = self.node.watch.record.history();
        answer::json(StatusCode::OK, &report, &self.responses)
    }

    /// Reads everything but the history. A swarm that does not answer leaves its part empty: an
    /// operator looks here when something is wrong.
    pub(crate) async fn report(&self) -> Report {
        let connected = self.query_swarm(SwarmRequest::Peers).await.unwrap_or_default();
        let node = &*self.node;
        let counters = &node.counters;
        let held = node.filter.usage();
        let (gossip, peers) = self.gossip(&connected);
        let trouble = self.trouble();
        let (memory, process) = self.memory();
        Report {
            version: VERSION.to_owned(),
            unix_millis: memory::unix_millis(),
            uptime_millis: node.now().as_millis() as u64,
            healthy: trouble.is_none(),
            status: trouble.unwrap_or_else(|| "Ready".to_owned()),
            cluster: node.settings.cluster,
            shards: node.shards().iter().collect(),
            memory,
            allocator: node.watch.record.allocator(),
            pools: dashboard::pools(node.ledger.snapshot()),
            process,
            throttling: node.watch.record.throttling(),
            rates: self.samples.rates(),
            messages: Messages {
                client: counted(&counters.client_messages, &counters.client_refused),
                relay: counted(&counters.relay_messages, &counters.relay_refused),
                not_kept: BTreeMap::from([
                    ("clock".to_owned(), counters.off_the_clock.load(Relaxed)),
                    ("disk_full".to_owned(), counters.without_room.load(Relaxed)),
                    ("ephemeral".to_owned(), counters.ephemeral.load(Relaxed)),
                ]),
                signatures_accepted: counters.signatures_accepted.load(Relaxed),
                signatures_refused: counters.signatures_refused.load(Relaxed),
            },
            pushes: Pushes {
                receivers: held.receivers,
                subscriptions: held.criteria,
                waiting: held.waiting,
                queued: node.filter.queued.load(Relaxed),
                sent: counters.pushed.load(Relaxed),
                failed: counters.pushes_failed.load(Relaxed),
                dropped: node.filter.dropped.load(Relaxed),
                held_back: node.counters.held_back.load(Relaxed),
            },
            requests: Requests {
                filter: served(&counters.filter_requests, &counters.filter_refused),
                store: served(&counters.store_queries, &counters.store_refused),
                streams_refused: counters.streams_refused.load(Relaxed),
                connections_closed: counters.connections_closed.load(Relaxed),
                connections_refused: counters.connections_refused.load(Relaxed),
                reads_refused: counters.reads_refused.load(Relaxed),
                sync_sessions: node.sync.sessions.load(Relaxed),
                sync_sessions_failed: node.sync.sessions_failed.load(Relaxed),
                sync_sent: node.sync.sent.load(Relaxed),
                fetched: node.sync.taken.load(Relaxed),
            },
            gossip,
            proofs: node.rln.as_ref().map(proofs),
            peers,
            store: StoreFigures { enabled: node.settings.store, status: node.store.status() },
            http: HttpFigures {
                subscriptions: self.subscribed().count(),
                dropped: node.subscribers.dropped.load(Relaxed),
                connections_refused: self.answered.connections_refused.load(Relaxed),
                connections_evicted: self.answered.connections_evicted.load(Relaxed),
                answers: self.answered.each(),
            },
            rln: node.roots.as_ref().map(|roots| roots.report()),
            history: Vec::new(),
        }
    }

    fn memory(&self) -> (Memory, ProcessFigures) {
        let pid = process::Pid::own();
        let record = &self.node.watch.record;
        // A kernel that does not report them shows as zeros, which no process has.
        let memory = process::memory(pid).unwrap_or_default();
        let anonymous_bytes = memory.anonymous_bytes + memory.shared_bytes;
        let accounted_bytes = self.node.ledger.used_bytes();
        let figures = Memory {
            budget_bytes: self.memory_budget_bytes,
            anonymous_bytes,
            file_bytes: memory.file_bytes,
            accounted_bytes,
            unaccounted_bytes: unaccounted(anonymous_bytes, accounted_bytes),
            group: record.group(),
            stalled_percent: record.stalled().0.map(|hundredths| f64::from(hundredths) / 100.0),
        };
        let cpu_seconds = process::cpu_time(pid).unwrap_or_default().as_secs_f64();
        let open_files = std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64);
        let resident_bytes = memory.resident_bytes();
        (figures, ProcessFigures { resident_bytes, cpu_seconds, open_files })
    }

    fn gossip(&self, connected: &[ConnectedPeer]) -> (Gossip, Peers) {
        let node = &*self.node;
        let (counters, held, views) = {
            let router = node.router();
            (router.counters(), router.usage(), router.peers(node.now()))
        };
        let mut by_shard: BTreeMap<u16, ShardPeers> =
            node.shards().iter().map(|shard| (shard, ShardPeers::default())).collect();
        for view in &views {
            for (shard, peers) in &mut by_shard {
                peers.subscribed += usize::from(view.topics.contains(*shard));
                peers.mesh += usize::from(view.mesh.contains(shard));
            }
        }
        let gossip = Gossip {
            counters,
            seen: held.seen,
            history: held.history,
            waiting: held.waiting,
            by_shard,
        };
        let views: HashMap<Peer, _> = views.into_iter().map(|view| (view.peer, view)).collect();
        let distinct: std::collections::HashSet<_> = connected.iter().map(|one| one.peer).collect();
        let relay = |outbound| {
            connected.iter().filter(|one| one.gossips && one.outbound == outbound).count()
        };
        let some = connected.iter().take(PEERS_MAX).map(|one| {
            let view = views.get(&one.number);
            PeerFigures {
                peer: one.peer.to_string(),
                address: one.address.to_string(),
                outbound: one.outbound,
                gossips: one.gossips,
                score: view.map(|view| view.score),
                waiting: view.map_or(0, |view| view.waiting),
            }
        });
        let (known, counts) = {
            let peers = node.peers();
            (peers.len(), peers.counts())
        };
        let peers = Peers {
            connections: node.connections.load(Relaxed),
            peers: distinct.len(),
            relay_inbound: relay(false),
            relay_outbound: relay(true),
            known,
            by_protocol: admin::by_protocol(node, connected)
                .into_iter()
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            by_agent: by_agent(connected),
            received_bytes: node.traffic.received.load(Relaxed),
            sent_bytes: node.traffic.sent.load(Relaxed),
            discovery_table: node.discovery_table.load(Relaxed),
            counts,
            some: some.collect(),
        };
        (gossip, peers)
    }
}

/// Connections by program; those of peers that named none yet are `unknown`.
fn by_agent(connected: &[ConnectedPeer]) -> BTreeMap<String, usize> {
    let agents = connected.iter().map(|one| one.agent.as_deref().unwrap_or("unknown"));
    most_frequent(agents)
}

/// How often each text is there: the most frequent [`AGENTS_MAX`], and the others as `other`.
fn most_frequent<'a>(texts: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut counted: HashMap<&str, usize> = HashMap::new();
    for text in texts {
        *counted.entry(text).or_default() += 1;
    }
    let mut ranked: Vec<_> = counted.into_iter().collect();
    ranked.sort_unstable_by_key(|(text, count)| (Reverse(*count), *text));
    let mut named = BTreeMap::new();
    for (place, (text, count)) in ranked.into_iter().enumerate() {
        let name = if place < AGENTS_MAX { text } else { "other" };
        *named.entry(name.to_owned()).or_default() += count;
    }
    named
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let samples = Samples::default();
        assert_eq!(samples.rates(), Rates::default());
        let start = Instant::now();
        for second in 0..100 {
            let count = if second < 50 { 0 } else { second * 7 };
            samples.add_at(start + Duration::from_secs(second), [count, second, 0, 3]);
        }
        let rates = samples.rates();
        assert_eq!((rates.window_seconds, rates.client_messages), (10.0, 7.0));
        assert_eq!((rates.relay_messages, rates.pushes, rates.store_queries), (1.0, 0.0, 0.0));
        assert_eq!(samples.0.lock().unwrap().len(), WINDOW);
    }

    #[test]
    fn the_most_frequent_programs_are_named_and_others_count_together() {
        let texts: Vec<String> = (0..20).map(|number| format!("program {number:02}")).collect();
        let often = texts.iter().chain(&texts[18..]).map(String::as_str);
        let named = most_frequent(often);
        assert_eq!(named.len(), AGENTS_MAX + 1);
        assert_eq!((named["program 18"], named["program 00"], named["other"]), (2, 1, 4));
        assert_eq!(named.values().sum::<usize>(), 22);
        assert!(!named.contains_key("program 14") && named.contains_key("program 13"));
    }

    #[test]
    fn answers_are_counted_by_code() {
        let answered = ResponseCounters::default();
        [200, 200, 505, 418, 299].into_iter().for_each(|status| answered.add(status));
        assert_eq!(answered.each(), BTreeMap::from([(0, 2), (200, 2), (505, 1)]));
    }
}
