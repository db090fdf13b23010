//! `GET /metrics`: the report as Prometheus text.
//!
//! Two families of names. `waku_*`, `libp2p_*` and `process_*` are those that dashboards of
//! reference nodes look up, where the figure means the same (docs/relay.md lists the others);
//! `thimble_relay_*` is this node's own. Light push of all versions and of HTTP is one thing here
//! and counts under the newest version's name. Bounds: the report, the shards served, and the
//! programs of peers that a report names.

use std::{collections::BTreeMap, fmt};

use accounting::Snapshot;
use http_server::{
    Outgoing,
    metrics::{self, MetricsWriter},
};
use hyper::StatusCode;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};
use store::Status;

use super::{
    answer,
    report::{OutcomeCounts, Proofs, Report, ShardPeers},
    service::{HttpResult, Service},
};
use crate::{
    governor::Level,
    latencies::{Latencies, PayloadSizes},
    rln::status::{RootsReport, ServerReport},
};

impl Service {
    pub(crate) async fn metrics(&self) -> HttpResult {
        let topics = self.node.shards().iter().map(|shard| self.node.topic_name(shard)).collect();
        let report = Readings {
            report: self.report().await,
            ledger: self.node.ledger.snapshot(),
            latencies: self.node.latencies.clone(),
            payloads: self.node.counters.payloads.clone(),
            mesh_least: self.node.settings.limits.gossip.d_low,
            topics,
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(report));
        let text = metrics::encode(&registry).map_err(|_| {
            let why = "the metrics could not be encoded";
            answer::refusal(StatusCode::INTERNAL_SERVER_ERROR, why)
        })?;
        let body =
            Outgoing::charged(text.into_bytes(), &self.responses).map_err(answer::no_room)?;
        Ok(answer::answer(StatusCode::OK, metrics::CONTENT_TYPE, body))
    }
}

/// A report, and the topics of its shards in their order.
#[derive(Debug)]
struct Readings {
    report: Report,
    ledger: Snapshot,
    latencies: Latencies,
    payloads: PayloadSizes,
    /// Peers with which the mesh of a topic needs no more: `gossip.d_low`.
    mesh_least: u64,
    topics: Vec<String>,
}

fn by<'l>(
    label: &'l str,
    counts: &'l BTreeMap<String, u64>,
) -> impl Iterator<Item = ([(&'l str, &'l str); 1], u64)> {
    counts.iter().map(move |(name, count)| ([(label, name.as_str())], *count))
}

impl Collector for Readings {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let out = &mut MetricsWriter::new(&mut encoder);
        self.reference(out)?;
        self.reference_services(out)?;
        self.reference_peers(out)?;
        self.reference_times_and_sizes(out)?;
        self.proofs(out)?;
        self.memory(out)?;
        self.own_messages(out)?;
        self.governor(out)?;
        self.latencies(out)?;
        self.own_gossip(out)?;
        own_store(out, &self.report.store.status)?;
        own_roots(out, self.report.rln.as_ref())?;
        self.own_http(out)
    }
}

impl Readings {
    /// Relay, peers and process under the names of reference dashboards.
    fn reference(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let Report { messages, gossip, peers, process, .. } = &self.report;
        let counts = &gossip.counters;
        out.gauges(
            "waku_version",
            "Version of the node",
            [([("version", self.report.version.as_str())], 1.0)],
        )?;
        out.counters(
            "waku_node_messages",
            "Messages received, of relay peers and of clients",
            [([("type", "relay")], messages.relay.accepted + messages.client.accepted)],
        )?;
        let relay = protocol::gossip::PROTOCOL;
        out.gauges(
            "waku_connected_peers",
            "Connected peers by direction and protocol",
            [
                ([("direction", "In"), ("protocol", relay)], peers.relay_inbound as f64),
                ([("direction", "Out"), ("protocol", relay)], peers.relay_outbound as f64),
            ],
        )?;
        out.gauge("waku_peer_store_size", "Peers found, connected or not", peers.known as f64)?;
        out.gauge("libp2p_peers", "Connected peers", peers.peers as f64)?;
        let gossiping = peers.relay_inbound + peers.relay_outbound;
        out.gauge("libp2p_pubsub_peers", "Peers that gossip", gossiping as f64)?;
        out.gauge("libp2p_pubsub_topics", "Topics subscribed to", self.topics.len() as f64)?;
        let valid = messages.relay.accepted;
        out.counter("libp2p_pubsub_validation_success", "Messages found valid", valid)?;
        out.counter("libp2p_pubsub_validation_failure", "Messages found invalid", counts.rejected)?;
        let lost: u64 = messages.relay.refused.values().sum();
        let repeated = messages.relay.refused.get("duplicate").copied().unwrap_or(0);
        let ignored = lost.saturating_sub(repeated).saturating_sub(counts.rejected);
        out.counter("libp2p_pubsub_validation_ignore", "Messages not taken", ignored)?;
        out.counter("libp2p_gossipsub_duplicate", "Messages received again", counts.duplicates)?;
        out.counter(
            "libp2p_gossipsub_received",
            "Messages received the first time",
            counts.accepted,
        )?;
        let shards = || self.topics.iter().zip(gossip.by_shard.values());
        out.gauges(
            "libp2p_gossipsub_peers_per_topic_mesh",
            "Peers in the mesh of a topic",
            shards().map(|(topic, peers)| ([("topic", topic.as_str())], peers.mesh as f64)),
        )?;
        out.gauges(
            "libp2p_gossipsub_peers_per_topic_gossipsub",
            "Gossip peers subscribed to a topic",
            shards().map(|(topic, peers)| ([("topic", topic.as_str())], peers.subscribed as f64)),
        )?;
        out.gauge(
            "process_resident_memory_bytes",
            "Memory of the process, files included",
            process.resident_bytes as f64,
        )?;
        let help = "Processor time, of the process and of the kernel for it";
        out.counter("process_cpu_seconds", help, process.cpu_seconds)
    }

    /// Light push, filter and store under the names of reference dashboards.
    fn reference_services(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let Report { messages, pushes, requests, store, .. } = &self.report;
        let store = &store.status;
        let total =
            |counted: &OutcomeCounts| counted.accepted + counted.refused.values().sum::<u64>();
        let client = &messages.client;
        out.counters(
            "waku_lightpush_v3_messages",
            "Messages that clients pushed, taken or not",
            [([("type", "PushRequest")], total(client))],
        )?;
        let help = "Messages of clients that were not taken";
        out.counters("waku_lightpush_v3_errors", help, by("type", &client.refused))?;
        out.gauge("waku_filter_subscriptions", "Filter receivers", pushes.receivers as f64)?;
        let help = "Filter requests, taken or not";
        out.counter("waku_filter_requests", help, total(&requests.filter))?;
        let refused = by("type", &requests.filter.refused);
        out.counters("waku_filter_errors", "Filter requests refused", refused)?;
        out.counter(
            "waku_store_queries",
            "Store queries, answered or not",
            total(&requests.store),
        )?;
        let refused = by("type", &requests.store.refused);
        out.counters("waku_store_errors", "Store queries refused", refused)?;
        out.gauges(
            "waku_archive_messages",
            "Messages kept",
            [([("type", "stored")], store.messages as f64)],
        )?;
        out.counters(
            "waku_archive_errors",
            "Messages that could not be written",
            [([("type", "insert_failure")], store.write_errors + store.disk_full_refusals)],
        )?;
        let services = [
            (protocol::light_push::PROTOCOL, client),
            (protocol::filter::SUBSCRIBE_PROTOCOL, &requests.filter),
            (protocol::store::PROTOCOL, &requests.store),
        ];
        let states = services.into_iter().flat_map(|(service, counted)| {
            let refused = counted.refused.values().sum();
            let states = [("served", counted.accepted), ("rejected", refused)];
            states.map(|(state, count)| ([("service", service), ("state", state)], count))
        });
        out.counters("waku_service_requests", "Requests of clients by service", states)
    }

    /// Proofs of a rate limit, where messages carry any, under the names of reference dashboards.
    fn proofs(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let Some(proofs) = &self.report.proofs else { return Ok(()) };
        let Proofs { counts, pending, verified, batches } = proofs;
        let refused: u64 = counts.refused.values().sum();
        let help = "Messages whose rate limit proofs were judged";
        out.counter("waku_rln_messages", help, counts.accepted + refused)?;
        out.counter("waku_rln_valid_messages", "Messages with a valid proof", counts.accepted)?;
        let spam = counts.refused.get("spam").copied().unwrap_or(0);
        out.counter("waku_rln_spam_messages", "Messages above their sender's rate limit", spam)?;
        let invalid = by("type", &counts.refused).filter(|([(_, reason)], _)| *reason != "spam");
        out.counters("waku_rln_invalid_messages", "Messages not taken for their proof", invalid)?;
        out.counter("waku_rln_proof_verification", "Proofs verified", *verified)?;
        let help = "Equations computed for one or several proofs";
        out.counter("thimble_relay_rln_batches", help, *batches)?;
        let help = "Messages whose proofs are being verified";
        out.gauge("thimble_relay_rln_pending", help, *pending as f64)?;
        Ok(())
    }

    /// Peers by protocol, program and shard, dials, traffic and topics under the names of reference
    /// dashboards.
    fn reference_peers(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let Report { gossip, peers, messages, .. } = &self.report;
        for (name, help, protocol) in [
            ("lightpush", "Peers that take light pushes", protocol::light_push::PROTOCOL),
            ("filter", "Peers that take subscriptions", protocol::filter::SUBSCRIBE_PROTOCOL),
            ("store", "Peers that answer store queries", protocol::store::PROTOCOL),
            ("px", "Peers that name other peers", protocol::peer_exchange::PROTOCOL),
        ] {
            let speaking = peers.by_protocol.get(protocol).copied().unwrap_or_default();
            out.gauge(&format!("waku_{name}_peers"), help, speaking as f64)?;
        }
        out.gauges(
            "waku_connected_peers_per_agent",
            "Connections by the program that their peers name",
            peers.by_agent.iter().map(|(agent, count)| ([("agent", &**agent)], *count as f64)),
        )?;
        let shards = gossip.by_shard.iter();
        let shards: Vec<(String, &ShardPeers)> =
            shards.map(|(shard, peers)| (shard.to_string(), peers)).collect();
        out.gauges(
            "waku_connected_peers_per_shard",
            "Connected peers subscribed to a shard",
            shards.iter().map(|(shard, peers)| ([("shard", &**shard)], peers.subscribed as f64)),
        )?;
        let with_mesh = |is_so: &dyn Fn(u64) -> bool| {
            shards.iter().filter(|(_, peers)| is_so(peers.mesh as u64)).count() as f64
        };
        let least = self.mesh_least;
        for (name, help, topics) in [
            ("no_peers", "Topics without a peer in the mesh", with_mesh(&|mesh| mesh == 0)),
            (
                "low_peers",
                "Topics with fewer than gossip.d_low peers in the mesh",
                with_mesh(&|mesh| mesh > 0 && mesh < least),
            ),
            (
                "healthy_peers",
                "Topics with gossip.d_low peers in the mesh or more",
                with_mesh(&|mesh| mesh >= least),
            ),
        ] {
            out.gauge(&format!("libp2p_gossipsub_{name}_topics"), help, topics)?;
        }
        let (subscribed, left) = (gossip.counters.subscriptions, gossip.counters.unsubscriptions);
        out.counter("libp2p_pubsub_subscriptions", "Topics subscribed to", subscribed)?;
        out.counter("libp2p_pubsub_unsubscriptions", "Topics left", left)?;
        out.counter("libp2p_total_dial_attempts", "Dials begun", peers.counts.dials)?;
        out.counter("libp2p_failed_dials", "Dials that failed", peers.counts.dials_failed)?;
        let traffic = [("in", peers.received_bytes), ("out", peers.sent_bytes)];
        out.counters(
            "libp2p_network_bytes",
            "Bytes of connections, without those that encryption adds",
            traffic.map(|(direction, bytes)| ([("direction", direction)], bytes)),
        )?;
        let outcomes =
            [("Accept", messages.signatures_accepted), ("Reject", messages.signatures_refused)];
        out.counters(
            "waku_msg_validator_signed_outcome",
            "Messages of protected shards by the outcome of the check of their signature",
            outcomes.map(|(result, count)| ([("result", result)], count)),
        )
    }

    /// Histograms, and figures of the process, under the names of reference dashboards.
    fn reference_times_and_sizes(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let Report { peers, process, unix_millis, uptime_millis, .. } = &self.report;
        let help = "Payloads of accepted messages, in kB";
        out.histogram("waku_histogram_message_size", help, &self.payloads.0)?;
        let help = "Time to write a message to the log";
        out.seconds("waku_archive_insert_duration", help, &self.latencies.append)?;
        let help = "Time until the page of a store query was found";
        out.seconds("waku_archive_query_duration", help, &self.latencies.store_query)?;
        let table = peers.discovery_table as f64;
        out.gauge("routing_table_nodes", "Records in the discovery table", table)?;
        let started = unix_millis.saturating_sub(*uptime_millis) as f64 / 1e3;
        let help = "When the process was started, in seconds since 1970";
        out.gauge("process_start_time_seconds", help, started)?;
        let help = "Open sockets, files and folders";
        out.gauge("process_open_fds", help, process.open_files as f64)
    }

    fn memory(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let Report { memory, pools, .. } = &self.report;
        for (name, help, value) in [
            ("budget", "What the operator stated", memory.budget_bytes as f64),
            ("anonymous", "Anonymous memory of the process", memory.anonymous_bytes as f64),
            ("file", "File memory of the process", memory.file_bytes as f64),
            ("ledger", "Reserved in pools", memory.accounted_bytes as f64),
            ("unaccounted", "Anonymous memory no pool explains", memory.unaccounted_bytes as f64),
        ] {
            out.gauge(&format!("thimble_relay_memory_{name}_bytes"), help, value)?;
        }
        let each = || pools.iter().map(|pool| ([("pool", pool.name.as_str())], pool));
        for (name, help, read) in [
            ("used", "Bytes taken now", (|pool| pool.used_bytes) as fn(&dashboard::Pool) -> u64),
            ("cap", "Bytes there are", |pool| pool.cap_bytes),
            ("high_water", "Most bytes taken since start", |pool| pool.high_water_bytes),
        ] {
            let values = each().map(|(labels, pool)| (labels, read(pool) as f64));
            out.gauges(&format!("thimble_relay_pool_{name}_bytes"), help, values)?;
        }
        let refused = each().map(|(labels, pool)| (labels, pool.refused));
        out.counters("thimble_relay_pool_refused", "Times a pool was full", refused)?;
        let overruns = self.ledger.pools.iter().map(|pool| ([("pool", pool.name)], pool.overruns));
        out.counters("thimble_relay_pool_overruns", "Times a pool held more than its cap", overruns)
    }

    fn own_messages(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let Report { messages, pushes, requests, .. } = &self.report;
        let sources = [("client", &messages.client), ("relay", &messages.relay)];
        out.counters(
            "thimble_relay_messages",
            "Messages accepted, by source",
            sources.map(|(source, counted)| ([("source", source)], counted.accepted)),
        )?;
        let refused = sources.into_iter().flat_map(|(source, counted)| {
            let each = counted.refused.iter();
            each.map(move |(reason, count)| {
                ([("source", source), ("reason", reason.as_str())], *count)
            })
        });
        out.counters("thimble_relay_messages_refused", "Messages not taken", refused)?;
        let not_kept =
            messages.not_kept.iter().map(|(reason, count)| ([("reason", reason.as_str())], *count));
        out.counters(
            "thimble_relay_messages_not_kept",
            "Messages passed on and not kept",
            not_kept,
        )?;
        let services = [("filter", &requests.filter), ("store", &requests.store)];
        let refused = services.into_iter().flat_map(|(service, counted)| {
            let each = counted.refused.iter();
            each.map(move |(reason, count)| {
                ([("service", service), ("reason", reason.as_str())], *count)
            })
        });
        out.counters("thimble_relay_requests_refused", "Requests not served", refused)?;
        for (name, help, value) in [
            ("filter_receivers", "Peers with subscriptions", pushes.receivers),
            ("filter_criteria", "Subscriptions of all peers", pushes.subscriptions),
            ("filter_waiting", "References that wait for receivers", pushes.waiting),
        ] {
            out.gauge(&format!("thimble_relay_{name}"), help, value as f64)?;
        }
        for (name, help, value) in [
            ("filter_queued", "References put into queues of receivers", pushes.queued),
            ("filter_pushed", "Pushes that receivers took", pushes.sent),
            ("filter_push_failed", "Pushes that failed", pushes.failed),
            ("filter_dropped", "References that left a full queue", pushes.dropped),
            (
                "filter_held_back",
                "Messages refused because receivers or relay peers are slow",
                pushes.held_back,
            ),
            ("streams_refused", "Streams beyond a peer's number", requests.streams_refused),
            ("connections_closed", "Connections closed for a fault", requests.connections_closed),
            (
                "connections_refused",
                "Connections refused because memory is short",
                requests.connections_refused,
            ),
            ("reads_refused", "REST reads refused because memory is short", requests.reads_refused),
            ("sync_sessions", "Comparisons of the store with peers'", requests.sync_sessions),
            (
                "sync_sessions_failed",
                "Comparisons of the store that ended early",
                requests.sync_sessions_failed,
            ),
            ("sync_sent", "Messages sent to stores that lacked them", requests.sync_sent),
            ("fetched", "Messages taken from stores of other nodes", requests.fetched),
        ] {
            out.counter(&format!("thimble_relay_{name}"), help, value)?;
        }
        Ok(())
    }

    /// How far work is held back, and what was handed back.
    fn governor(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let Report { throttling, allocator, memory, .. } = &self.report;
        let level = match throttling.level {
            Level::None => 0.0,
            Level::Queries => 1.0,
            Level::Pushes => 2.0,
            Level::Reading => 3.0,
        };
        let help =
            "Held back: 0 nothing, 1 queries, 2 pushes and connections too, 3 no stream is read";
        out.gauge("thimble_relay_throttle_level", help, level)?;
        for (name, help, value) in [
            ("live", "Allocated by the program", allocator.live_bytes),
            ("active", "In pages that hold an allocation", allocator.active_bytes),
            (
                "resident",
                "Resident for the allocator, freed pages included",
                allocator.resident_bytes,
            ),
        ] {
            out.gauge(&format!("thimble_relay_allocator_{name}_bytes"), help, value as f64)?;
        }
        for (name, help, value) in [
            ("purges_idle", "Times an idle relay handed memory back", allocator.purges_idle),
            (
                "purges_pressure",
                "Times memory was handed back under pressure",
                allocator.purges_pressure,
            ),
            ("returned_bytes", "Handed back to the operating system", allocator.returned_bytes),
        ] {
            out.counter(&format!("thimble_relay_{name}"), help, value)?;
        }
        let group = memory.group.as_ref();
        let help = "Charged to the process group, page cache included";
        let usage = group.map(|group| group.usage_bytes);
        out.amount_if_any("thimble_relay_cgroup_usage_bytes", help, usage)?;
        let limit = group.and_then(|group| group.limit_bytes);
        out.amount_if_any("thimble_relay_cgroup_limit_bytes", "The process group's cap", limit)
    }

    fn latencies(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let Latencies { light_push, store_query, filter_push, rln_proof, append: _ } =
            &self.latencies;
        for (name, help, histogram) in [
            ("light_push", "Time from a whole light push to its answer", light_push),
            ("store_query", "Time until the page of a store query was found", store_query),
            ("filter_push", "Time to hand a message to a filter receiver", filter_push),
            ("rln_proof", "Time to judge the rate limit proof of a message", rln_proof),
        ] {
            out.seconds(&format!("thimble_relay_{name}"), help, histogram)?;
        }
        Ok(())
    }

    fn own_gossip(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let Report { gossip, peers, uptime_millis, .. } = &self.report;
        out.gauge("thimble_relay_uptime_seconds", "Time since start", *uptime_millis as f64 / 1e3)?;
        out.gauge(
            "thimble_relay_connections",
            "Open connections of peers",
            peers.connections as f64,
        )?;
        let table = peers.discovery_table as f64;
        out.gauge("thimble_relay_discovery_table", "Records in the discovery table", table)?;
        for (name, help, value) in [
            ("dials", "Dials begun", peers.counts.dials),
            ("dials_failed", "Dials that did not succeed", peers.counts.dials_failed),
            ("peers_evicted", "Found peers that left a full store", peers.counts.evicted),
        ] {
            out.counter(&format!("thimble_relay_{name}"), help, value)?;
        }
        for (name, help, value) in [
            ("seen", "Message ids remembered", gossip.seen),
            ("history", "References peers may fetch", gossip.history),
            ("waiting", "References that wait for peers", gossip.waiting),
        ] {
            out.gauge(&format!("thimble_relay_gossip_{name}"), help, value as f64)?;
        }
        let counts = &gossip.counters;
        for (name, help, value) in [
            ("accepted", "Messages accepted", counts.accepted),
            ("duplicates", "Messages seen before", counts.duplicates),
            ("rejected", "Messages that break the protocol", counts.rejected),
            ("refused", "Messages not looked at", counts.refused),
            ("queued", "References put into queues of peers", counts.queued),
            ("dropped", "References that left a full queue", counts.dropped),
            ("fetched", "References sent because a peer fetched them", counts.fetched),
            ("without_peer", "Messages of clients that no peer got", counts.without_peer),
            ("broken_promises", "Promises that peers broke", counts.broken_promises),
            ("grafts_refused", "Grafts refused", counts.grafts_refused),
            ("seen_cut_short", "Message ids forgotten early", counts.seen_cut_short),
            ("history_dropped", "History that left early", counts.history_dropped),
        ] {
            out.counter(&format!("thimble_relay_gossip_{name}"), help, value)?;
        }
        Ok(())
    }

    fn own_http(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let http = &self.report.http;
        let codes: Vec<(String, u64)> =
            http.answers.iter().map(|(code, count)| (code.to_string(), *count)).collect();
        let answers = codes.iter().map(|(code, count)| ([("code", code.as_str())], *count));
        out.counters("thimble_relay_http_answers", "Answers by status; 0: others", answers)?;
        let help = "HTTP connections beyond their number";
        out.counter("thimble_relay_http_connections_refused", help, http.connections_refused)?;
        let help = "Idle HTTP connections closed for new ones";
        out.counter("thimble_relay_http_connections_evicted", help, http.connections_evicted)?;
        let help = "Topics that HTTP clients subscribed to";
        out.gauge("thimble_relay_http_subscriptions", help, http.subscriptions as f64)?;
        let help = "References that left unread";
        out.counter("thimble_relay_http_dropped", help, http.dropped)
    }
}

/// Zeros in a network without proofs of a rate limit.
fn own_roots(out: &mut MetricsWriter<'_, '_>, roots: Option<&RootsReport>) -> fmt::Result {
    let servers = || roots.into_iter().flat_map(|roots| &roots.servers);
    let sum = |count: fn(&ServerReport) -> u64| servers().map(count).sum::<u64>();
    for (name, help, value) in [
        (
            "valid",
            "Roots against which proofs are valid (RLN)",
            roots.map_or(0, |roots| roots.roots as u64),
        ),
        (
            "step",
            "0 current, 1 servers disagree, 2 stale, 3 of the last run, 4 none",
            roots.map_or(0, |roots| roots.step.number()),
        ),
        ("servers", "RPC servers that roots are read from", servers().count() as u64),
        (
            "servers_failing",
            "RPC servers whose last call failed",
            sum(|server| u64::from(server.error.is_some())),
        ),
        (
            "servers_disagreeing",
            "RPC servers that report other roots than most",
            sum(|server| u64::from(server.disagrees)),
        ),
    ] {
        out.gauge(&format!("thimble_relay_roots_{name}"), help, value as f64)?;
    }
    let age = roots.and_then(|roots| roots.age_seconds).unwrap_or(0.0);
    out.gauge("thimble_relay_roots_age_seconds", "Time since a server confirmed the roots", age)?;
    for (name, help, value) in [
        ("refreshes", "Refreshes of the roots", roots.map_or(0, |roots| roots.refreshes)),
        ("answers", "Answers of RPC servers", sum(|server| server.answers)),
        ("failures", "Calls to RPC servers that failed", sum(|server| server.failures)),
    ] {
        out.counter(&format!("thimble_relay_roots_{name}"), help, value)?;
    }
    Ok(())
}

fn own_store(out: &mut MetricsWriter<'_, '_>, store: &Status) -> fmt::Result {
    for (name, help, value) in [
        ("messages", "Messages kept", store.messages),
        ("partitions", "Partitions in service", store.partitions as u64),
        ("damaged_partitions", "Partitions set aside", store.damaged_partitions as u64),
        ("disk_bytes", "Segments and indexes", store.disk_bytes),
        ("disk_free_bytes", "Free disk; 0 where unknown", store.disk_free_bytes.unwrap_or(0)),
        ("append_queue_messages", "Waiting to be written", store.append_queue_messages as u64),
        ("append_queue_bytes", "Bytes waiting to be written", store.append_queue_bytes),
        ("queries", "Queries waiting or being answered", store.queries as u64),
        ("index_lag_messages", "Written and not yet indexed", store.index_lag_messages),
        ("transit_bytes", "Segments of messages that are not kept", store.transit_bytes),
        ("unsynced_bytes", "Written and not yet synced", store.unsynced_bytes),
    ] {
        out.gauge(&format!("thimble_relay_store_{name}"), help, value as f64)?;
    }
    let help = "Time since the last sync";
    out.gauge("thimble_relay_store_sync_age_seconds", help, store.sync_age_seconds)?;
    for (name, help, value) in [
        ("appended_messages", "Messages written", store.appended_messages),
        ("appended_bytes", "Bytes written", store.appended_bytes),
        ("damaged_segments", "Segments set aside", store.damaged_segments),
        ("rebuilt_indexes", "Indexes made anew", store.rebuilt_indexes),
        ("dropped_partitions", "Partitions removed by retention", store.dropped_partitions),
        ("disk_full_refusals", "Messages refused for want of disk", store.disk_full_refusals),
        ("write_errors", "Writes that failed", store.write_errors),
        ("sync_errors", "Syncs that failed", store.sync_errors),
    ] {
        out.counter(&format!("thimble_relay_store_{name}"), help, value)?;
    }
    Ok(())
}
