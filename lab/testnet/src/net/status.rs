//! `net status`: what every node does, as a table or as JSON.

use std::process::ExitCode;

use accounting::format_size;
use anyhow::Result;
use serde::Serialize;

use memory_cap::mib;

use super::{
    reading::{self, Asker, GroupReading, Report, Row},
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

type Column = cli::Column<Row>;

const STATE: [Column; 2] = [
    ("node", -5, |row| row.index.to_string()),
    ("state", -9, |row| short(&row.condition).to_owned()),
];
const MEMORY: [Column; 6] = [
    ("anonymous", 12, |row| size(group(row, |group| group.anonymous_bytes))),
    ("peak", 12, |row| size(group(row, |group| group.anonymous_peak_bytes))),
    ("file", 12, |row| size(group(row, |group| group.file_bytes))),
    ("of", 10, |row| format_size(row.memory_bytes)),
    ("OOM", 5, |row| number(group(row, |group| group.oom_kills))),
    ("starts", 7, |row| row.starts.to_string()),
];
const MEMBER: [Column; 4] = [
    ("endpoint", -28, |row| row.url.clone()),
    ("height", 8, |row| number(report(row, |report| Some(report.height)))),
    ("behind", 7, |row| number(row.behind)),
    ("peers", 6, |row| number(report(row, |report| report.peers_heard))),
];
const WORKERS: [Column; 1] =
    [("workers", 8, |row| number(report(row, |report| Some(report.worker_restarts))))];
const RELAY: [Column; 3] = [
    ("peers", 6, |row| number(report(row, |report| Some(report.relay?.peers)))),
    ("mesh", 6, |row| number(report(row, |report| Some(report.relay?.mesh)))),
    ("stored", 9, |row| number(report(row, |report| Some(report.relay?.stored)))),
];
const ADDRESS: [Column; 1] =
    [("  address", 0, |row| format!("  {}", row.multiaddr.as_deref().unwrap_or("-")))];

pub(crate) fn table(net: &Net, rows: &[Row]) -> String {
    let columns = match net.kind {
        Kind::Subnet => [&STATE[..], &MEMBER, &MEMORY, &WORKERS].concat(),
        Kind::Relays { .. } => [&STATE[..], &RELAY, &MEMORY, &ADDRESS].concat(),
    };
    let lines = rows.iter().map(|row| cli::table_row(&columns, row) + &remarks(row));
    cli::table_head(&columns) + &lines.collect::<String>()
}

fn group(row: &Row, of: fn(&GroupReading) -> u64) -> Option<u64> {
    row.group.as_ref().map(of)
}

fn report(row: &Row, of: fn(&Report) -> Option<u64>) -> Option<u64> {
    row.report.as_ref().and_then(of)
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or("-".to_owned(), mib)
}

fn number(value: Option<u64>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
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
