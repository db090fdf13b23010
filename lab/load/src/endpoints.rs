//! The nodes behind several endpoints: their addresses, and the memory and height that each
//! reported during the load.
//!
//! Everything comes from the nodes' own reports (`/status.json`), requested twice a second; peaks
//! between two reports are not seen. A node that has no such report is listed without figures.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use cli::{Column, lock, table_head, table_row};
use demo::measure;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::task::JoinHandle;

/// The file of a net of a hundred nodes is far smaller.
const NET_BYTES_MAX: u64 = 16 << 20;
const ASK_EVERY: Duration = Duration::from_millis(500);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The part of a net's file with the addresses of its nodes.
#[derive(Deserialize)]
struct Net {
    nodes: Vec<NetNode>,
}

#[derive(Deserialize)]
struct NetNode {
    http: std::net::SocketAddr,
}

/// The endpoints of all nodes of the net in a folder.
pub(crate) fn net_endpoints(dir: &Path) -> Result<Vec<String>> {
    let path = dir.join("net.json");
    let Ok(metadata) = std::fs::metadata(&path) else {
        bail!("there is no net in {}; make one with: thimble-lab net up --dir {0}", dir.display())
    };
    let read = || -> Result<Net> {
        ensure!(metadata.len() <= NET_BYTES_MAX, "it has {} bytes", metadata.len());
        Ok(serde_json::from_slice(&std::fs::read(&path)?)?)
    };
    let net = read().with_context(|| format!("reading {}", path.display()))?;
    ensure!(!net.nodes.is_empty(), "the net in {} has no nodes", dir.display());
    Ok(net.nodes.iter().map(|node| format!("http://{}", node.http)).collect())
}

/// What a node was seen to do.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct NodeSeen {
    pub(crate) endpoint: String,
    /// How often it answered; without an answer the rest means nothing.
    pub(crate) answers: u64,
    /// How often it did not.
    pub(crate) silences: u64,
    pub(crate) anonymous_bytes: u64,
    /// Most in any answer.
    pub(crate) anonymous_peak_bytes: u64,
    pub(crate) file_bytes: u64,
    /// Of its workers, since the first answer.
    pub(crate) worker_restarts: u64,
    /// Of itself: how often it was younger than before.
    pub(crate) restarts: u64,
    /// Processes of its group that the kernel killed, as it reports itself.
    pub(crate) oom_kills: u64,
    pub(crate) height: u64,
    /// Rounds behind the node that is furthest, at the end.
    pub(crate) behind: u64,
    /// And at most, of the times at which all answered.
    pub(crate) behind_max: u64,
    #[serde(skip)]
    last: Last,
}

#[derive(Clone, Debug, Default)]
struct Last {
    uptime_millis: u64,
    worker_restarts: Option<u64>,
}

impl NodeSeen {
    fn record_report(&mut self, report: &Value) {
        let number = |path: &str| report.pointer(path).and_then(Value::as_u64);
        self.answers += 1;
        self.anonymous_bytes = number("/memory/anonymous_bytes").unwrap_or(0);
        self.anonymous_peak_bytes = self.anonymous_peak_bytes.max(self.anonymous_bytes);
        self.file_bytes = number("/memory/file_bytes").unwrap_or(0);
        self.oom_kills = number("/memory/group/oom_kills").unwrap_or(0);
        self.height = number("/subnet/certified_height")
            .or_else(|| number("/rounds/height"))
            .unwrap_or(self.height);
        let uptime = number("/uptime_millis").unwrap_or(0);
        let restarted = uptime < self.last.uptime_millis;
        self.restarts += u64::from(restarted);
        self.last.uptime_millis = uptime;
        // A process that is new counts from zero.
        let workers = number("/rounds/worker_restarts").unwrap_or(0);
        let before = if restarted { 0 } else { self.last.worker_restarts.unwrap_or(workers) };
        self.worker_restarts += workers.saturating_sub(before);
        self.last.worker_restarts = Some(workers);
    }
}

/// Asks all nodes until it is finished.
pub(crate) struct Watch {
    seen: Arc<Mutex<Vec<NodeSeen>>>,
    http: reqwest::Client,
    task: JoinHandle<()>,
}

impl Watch {
    pub(crate) fn start(urls: &[String]) -> Result<Self> {
        let http =
            demo::client::http().timeout(ANSWER_TIMEOUT).pool_max_idle_per_host(1).build()?;
        let of = |url: &String| NodeSeen { endpoint: url.clone(), ..NodeSeen::default() };
        let seen = Arc::new(Mutex::new(urls.iter().map(of).collect()));
        let (asked, client) = (seen.clone(), http.clone());
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(ASK_EVERY);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                request_reports(&client, &asked).await;
            }
        });
        Ok(Self { seen, http, task })
    }

    /// Requests a last report and returns the figures.
    pub(crate) async fn finish(self) -> Vec<NodeSeen> {
        self.task.abort();
        request_reports(&self.http, &self.seen).await;
        lock(&self.seen).clone()
    }
}

async fn request_reports(http: &reqwest::Client, seen: &Mutex<Vec<NodeSeen>>) {
    let urls: Vec<String> = lock(seen).iter().map(|node| node.endpoint.clone()).collect();
    let asked: Vec<_> = urls
        .iter()
        .map(|url| {
            let request = http.get(format!("{}/status.json", url.trim_end_matches('/')));
            tokio::spawn(async move {
                let text = request.send().await.ok()?.error_for_status().ok()?.text().await.ok()?;
                serde_json::from_str::<Value>(&text).ok()
            })
        })
        .collect();
    let mut reports = Vec::new();
    for answer in asked {
        reports.push(answer.await.ok().flatten());
    }
    record_reports(&mut lock(seen), &reports);
}

fn record_reports(nodes: &mut [NodeSeen], reports: &[Option<Value>]) {
    for (node, report) in nodes.iter_mut().zip(reports) {
        match report {
            Some(report) => node.record_report(report),
            None => node.silences += 1,
        }
    }
    // While one is silent the others' tip is all there is; its own height is then old, not behind.
    let tip = nodes.iter().map(|node| node.height).max().unwrap_or(0);
    let all = reports.iter().all(Option::is_some);
    for node in nodes {
        node.behind = tip - node.height;
        if all {
            node.behind_max = node.behind_max.max(node.behind);
        }
    }
}

const COLUMNS: [Column<NodeSeen>; 11] = [
    ("node", -30, |node| node.endpoint.clone()),
    ("anonymous now", 14, |node| measure::mib(node.anonymous_bytes)),
    ("peak", 14, |node| measure::mib(node.anonymous_peak_bytes)),
    ("file", 14, |node| measure::mib(node.file_bytes)),
    ("restarts", 10, |node| node.restarts.to_string()),
    ("workers", 10, |node| node.worker_restarts.to_string()),
    ("OOM", 6, |node| node.oom_kills.to_string()),
    ("height", 10, |node| node.height.to_string()),
    ("behind", 8, |node| node.behind.to_string()),
    ("at most", 12, |node| node.behind_max.to_string()),
    ("silent", 9, |node| node.silences.to_string()),
];

pub(crate) fn table(nodes: &[NodeSeen]) -> String {
    let mut text = table_head(&COLUMNS);
    for node in nodes {
        text += &match node.answers {
            0 => format!("{:<30} reports nothing at /status.json\n", node.endpoint),
            _ => table_row(&COLUMNS, node),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(uptime: u64, anonymous: u64, workers: u64, height: u64) -> Option<Value> {
        Some(serde_json::json!({
            "uptime_millis": uptime, "memory": {"anonymous_bytes": anonymous, "file_bytes": 1},
            "rounds": {"height": height, "worker_restarts": workers},
        }))
    }

    #[test]
    fn node_reports_track_peaks_restarts_and_lag() {
        let mut nodes = vec![NodeSeen::default(), NodeSeen::default()];
        record_reports(&mut nodes, &[report(10, 5, 2, 100), report(10, 5, 0, 97)]);
        assert_eq!((nodes[1].behind, nodes[1].behind_max), (3, 3));
        record_reports(&mut nodes, &[report(20, 9, 3, 101), None]);
        assert_eq!((nodes[1].behind, nodes[1].behind_max, nodes[1].silences), (4, 3, 1));
        record_reports(&mut nodes, &[report(5, 7, 1, 102), report(30, 5, 0, 102)]);
        let first = &nodes[0];
        assert_eq!((first.anonymous_bytes, first.anonymous_peak_bytes, first.restarts), (7, 9, 1));
        assert_eq!(first.worker_restarts, 2, "one more than at first, and one of the new process");
        assert_eq!((nodes[1].behind, nodes[1].behind_max, nodes[1].restarts), (0, 3, 0));
        assert!(table(&nodes).contains("102"));
        assert!(table(&[NodeSeen::default()]).contains("reports nothing"));
    }
}
