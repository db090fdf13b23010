//! `net status`: what every node does, as a table or as JSON.

use std::process::ExitCode;

use anyhow::Result;
use budget::format_size;
use serde::Serialize;

use super::{
    reading::{self, Asker, Row},
    state::{Backend, Kind, Net, NetFolder, Network},
};

#[derive(Serialize)]
struct Status<'a> {
    dir: String,
    network: Network,
    backend: Backend,
    /// The QEMU that runs the machines, when the nodes are machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    qemu: Option<&'a machines::qemu::Qemu>,
    nodes: &'a [Row],
    links: Vec<String>,
}

pub(crate) async fn run(net: &Net, place: &NetFolder, json: bool) -> Result<ExitCode> {
    let rows = reading::rows(net, place, &Asker::new()?).await;
    let links = net.links.faults();
    if json {
        let dir = place.dir().display().to_string();
        let qemu = net.machines.as_ref().map(|machines| &machines.qemu);
        let status =
            Status { dir, network: net.network, backend: net.backend, qemu, nodes: &rows, links };
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print!("{}", table(net, &rows));
        if let Some(words) = machines_summary(net, &rows) {
            println!("{words}");
        }
        for words in links {
            println!("links {words}");
        }
    }
    let well = rows.iter().all(|row| row.report.is_some());
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Describes the QEMU of the machines, and their use of this host.
pub(crate) fn machines_summary(net: &Net, rows: &[Row]) -> Option<String> {
    let machines = net.machines.as_ref()?;
    let taken: Vec<u64> = rows.iter().filter_map(|row| row.host_bytes).collect();
    let sum = size(Some(taken.iter().sum()));
    Some(format!(
        "machines {}; {} of them take {sum} of this host",
        machines.qemu.describe(),
        taken.len()
    ))
}

/// For a person.
pub(crate) fn table(net: &Net, rows: &[Row]) -> String {
    match net.kind {
        Kind::Subnet => subnet_table(rows),
        Kind::Relays { .. } => relay_table(rows),
    }
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or("-".to_owned(), |bytes| format!("{:.1} MiB", bytes as f64 / 1_048_576.0))
}

fn number(value: Option<u64>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

fn relay_table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<5}{:<9}{:>6}{:>6}{:>9}{:>12}{:>12}{:>12}{:>10}{:>5}{:>7}  {}\n",
        "node",
        "state",
        "peers",
        "mesh",
        "stored",
        "anonymous",
        "peak",
        "file",
        "of",
        "OOM",
        "starts",
        "address"
    );
    for row in rows {
        let relay = row.report.as_ref().and_then(|report| report.relay);
        let group = row.group.as_ref();
        text.push_str(&format!(
            "{:<5}{:<9}{:>6}{:>6}{:>9}{:>12}{:>12}{:>12}{:>10}{:>5}{:>7}  {}\n",
            row.index,
            short(&row.condition),
            number(relay.map(|relay| relay.peers)),
            number(relay.map(|relay| relay.mesh)),
            number(relay.map(|relay| relay.stored)),
            size(group.map(|group| group.anonymous_bytes)),
            size(group.map(|group| group.anonymous_peak_bytes)),
            size(group.map(|group| group.file_bytes)),
            format_size(row.memory_bytes),
            number(group.map(|group| group.oom_kills)),
            row.starts,
            row.multiaddr.as_deref().unwrap_or("-"),
        ));
        text.push_str(&remarks(row));
    }
    text
}

/// A state longer than its column gets a line of its own.
fn short(condition: &str) -> &str {
    condition.split(' ').next().unwrap_or_default().trim_end_matches(':')
}

fn remarks(row: &Row) -> String {
    let report = row.report.as_ref();
    let said = [
        Some(row.condition.clone()).filter(|condition| condition.contains(' ')),
        row.silent.clone(),
        report.filter(|report| !report.healthy).map(|report| format!("it is {}", report.status)),
        report.filter(|report| report.catching_up).map(|_| "it fetches what it missed".to_owned()),
    ];
    said.into_iter().flatten().map(|words| format!("     {words}\n")).collect()
}

fn subnet_table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<5}{:<9}{:<28}{:>8}{:>7}{:>6}{:>12}{:>12}{:>12}{:>10}{:>5}{:>7}{:>8}\n",
        "node",
        "state",
        "endpoint",
        "height",
        "behind",
        "peers",
        "anonymous",
        "peak",
        "file",
        "of",
        "OOM",
        "starts",
        "workers"
    );
    for row in rows {
        let report = row.report.as_ref();
        let group = row.group.as_ref();
        text.push_str(&format!(
            "{:<5}{:<9}{:<28}{:>8}{:>7}{:>6}{:>12}{:>12}{:>12}{:>10}{:>5}{:>7}{:>8}\n",
            row.index,
            short(&row.condition),
            row.url,
            number(report.map(|report| report.height)),
            number(row.behind),
            number(report.and_then(|report| report.peers_heard)),
            size(group.map(|group| group.anonymous_bytes)),
            size(group.map(|group| group.anonymous_peak_bytes)),
            size(group.map(|group| group.file_bytes)),
            format_size(row.memory_bytes),
            number(group.map(|group| group.oom_kills)),
            row.starts,
            number(report.map(|report| report.worker_restarts)),
        ));
        text.push_str(&remarks(row));
    }
    text
}
