//! `thimble-relay status`: asks a running relay for its status report and prints it for people, or
//! as it is for machines.

use std::{collections::BTreeMap, fmt::Write as _, net::SocketAddr};

use accounting::format_size;
use anyhow::Result;
use dashboard::{
    ask,
    text::{memory, pools, short, throttling},
};

use crate::{
    governor::Level,
    http::report::{OutcomeCounts, Report},
};

/// Peers printed; the report itself has more.
const PEERS_SHOWN: usize = 8;

pub(crate) fn run(address: SocketAddr, json: bool) -> Result<()> {
    ask::print(address, "--http", json, text)
}

/// Reasons and how often, those that occurred.
fn reasons(refused: &BTreeMap<String, u64>) -> String {
    let each: Vec<String> = refused
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    if each.is_empty() { "none".into() } else { each.join(", ") }
}

#[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
fn text(report: &Report) -> String {
    let mut out = String::new();
    let shards: Vec<String> = report.shards.iter().map(u16::to_string).collect();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        out,
        "relay of cluster {}, shards {}\n{}, up {} s, version {}\n",
        report.cluster,
        shards.join(" "),
        report.status,
        report.uptime_millis / 1000,
        report.version
    );
    memory(&mut out, &report.memory, &report.allocator);
    let held = &report.throttling;
    throttling(&mut out, held_back(held.level), held.reason.as_deref(), held.events.len());
    let (rates, peers, pushes) = (&report.rates, &report.peers, &report.pushes);
    let _ = writeln!(
        out,
        "rates       {:.1}/s of clients, {:.1}/s of relay peers, {:.1}/s pushed, {:.1}/s store \
         queries",
        rates.client_messages, rates.relay_messages, rates.pushes, rates.store_queries
    );
    let _ = writeln!(
        out,
        "peers       {} connections of {} peers; {} relay peers came, {} were dialled",
        peers.connections, peers.peers, peers.relay_inbound, peers.relay_outbound
    );
    let _ = writeln!(
        out,
        "pushes      {} receivers, {} subscriptions; {} sent, {} failed, {} waiting, {} dropped, \
         {} held back",
        pushes.receivers,
        pushes.subscriptions,
        pushes.sent,
        pushes.failed,
        pushes.waiting,
        pushes.dropped,
        pushes.held_back
    );
    let store = &report.store.status;
    let free = store.disk_free_bytes.map_or("unknown".into(), short);
    let kept = if report.store.enabled { "" } else { "not " };
    let _ = writeln!(
        out,
        "store       messages are {kept}kept: {} in {} partitions, {}; {free} of disk free\n",
        store.messages,
        store.partitions,
        format_size(store.disk_bytes)
    );
    if let Some(rln) = &report.rln {
        let step = if rln.detail.is_empty() { "current" } else { &*rln.detail };
        let _ = writeln!(out, "roots       {} of {}: {step}", rln.roots, rln.contract);
        for server in &rln.servers {
            let state = server.error.as_deref().unwrap_or("answers");
            let differs = if server.disagrees { ", reports other roots than most" } else { "" };
            let _ = writeln!(out, "            {}: {state}{differs}", server.server);
        }
        out.push('\n');
    }
    let (messages, requests) = (&report.messages, &report.requests);
    let _ = writeln!(out, "{:<22} {:>12}  refused", "", "taken");
    let mut line = |name, counted: &OutcomeCounts| {
        let _ = writeln!(out, "{name:<22} {:>12}  {}", counted.accepted, reasons(&counted.refused));
    };
    line("messages of clients", &messages.client);
    line("messages of peers", &messages.relay);
    line("filter requests", &requests.filter);
    line("store queries", &requests.store);
    let _ = writeln!(
        out,
        "connections {} refused for memory, {} closed for a fault; {} streams refused; {} REST \
         reads refused for memory\n",
        requests.connections_refused,
        requests.connections_closed,
        requests.streams_refused,
        requests.reads_refused
    );
    pools(&mut out, &report.pools);
    for peer in peers.some.iter().take(PEERS_SHOWN) {
        let kind = if peer.gossips { "relay peer" } else { "client" };
        let _ = writeln!(out, "{kind:<10} {} {}", peer.peer, peer.address);
    }
    out
}

fn held_back(level: Level) -> Option<&'static str> {
    match level {
        Level::None => None,
        Level::Queries => Some("store queries and REST reads are"),
        Level::Pushes => Some("reads, pushes, subscriptions and connections are"),
        Level::Reading => Some("all work is, and no stream is read:"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_report_is_printed_whole() {
        let mut report = Report { status: "Ready".into(), ..Report::default() };
        report.messages.client.refused.insert("busy".into(), 7);
        report.messages.client.refused.insert("invalid".into(), 0);
        let text = text(&report);
        for word in [
            "Ready",
            "memory",
            "allocator",
            "nothing is held back",
            "rates",
            "peers",
            "pushes",
            "store",
            "messages of clients               0  7 busy\n",
            "store queries                     0  none\n",
            "pool",
        ] {
            assert!(text.contains(word), "{word} is missing in\n{text}");
        }
    }
}
