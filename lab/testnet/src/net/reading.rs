//! Readings of nodes and their groups: the node's own report over HTTP, the group's memory from the
//! kernel, peaks from the series.

use std::{path::Path, time::Duration};

use accounting::process::{self, Pid};
use serde::Serialize;
use serde_json::Value;

use super::{
    session::condition,
    state::{Backend, Kind, Net, NetFolder},
};
use memory_cap::series::{self, Line};

/// A node that takes longer is not serving.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// At the end of a series, the newest sample of sixty processes and what happened since.
const TAIL_BYTES: u64 = 64 << 10;
/// A report has at most a quarter of this.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Report of one node. Fields that a node does not report are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) healthy: bool,
    /// Its word for how it is.
    pub(crate) status: String,
    /// Newest height whose state is certified.
    pub(crate) height: u64,
    pub(crate) finalised: Option<u64>,
    /// How many rounds it thinks it is behind.
    pub(crate) behind: Option<u64>,
    /// Other members whose signature on a state it has heard since it was started.
    pub(crate) peers_heard: Option<u64>,
    /// Whether it fetches blocks that others executed.
    pub(crate) catching_up: bool,
    /// Whether it fetches a state from its peers.
    pub(crate) syncing: bool,
    pub(crate) worker_restarts: u64,
    pub(crate) uptime_millis: u64,
    /// Of a Waku relay.
    pub(crate) relay: Option<RelayReport>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RelayReport {
    /// Peers connected that serve its shard.
    pub(crate) peers: u64,
    /// Those of them in its mesh.
    pub(crate) mesh: u64,
    /// Messages in its store.
    pub(crate) stored: u64,
}

impl RelayReport {
    fn from_status(value: &Value) -> Option<Self> {
        let shards = value.pointer("/gossip/by_shard")?.as_object()?;
        let most = |name: &str| {
            shards.values().filter_map(|shard| shard.get(name)?.as_u64()).max().unwrap_or(0)
        };
        let stored = value.pointer("/store/messages").and_then(Value::as_u64).unwrap_or(0);
        Some(Self { peers: most("subscribed"), mesh: most("mesh"), stored })
    }
}

impl Report {
    /// Reads the document that a node or a relay serves at `/status.json`.
    pub(crate) fn from_status(value: &Value) -> Self {
        if let Some(relay) = RelayReport::from_status(value) {
            let uptime = value.get("uptime_seconds").and_then(Value::as_f64).unwrap_or(0.0);
            return Self {
                // Without peers it would accept messages that no one receives.
                healthy: relay.mesh > 0,
                status: if relay.mesh > 0 { "healthy" } else { "without a peer in its mesh" }
                    .into(),
                uptime_millis: (uptime * 1000.0) as u64,
                relay: Some(relay),
                ..Self::default()
            };
        }
        let number = |path: &str| value.pointer(path).and_then(Value::as_u64);
        let text = |path: &str| value.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let members = value.pointer("/subnet/members").and_then(Value::as_array);
        let own = number("/subnet/place");
        let heard = |(place, member): &(usize, &Value)| {
            Some(*place as u64) != own
                && member.get("heard_height").and_then(Value::as_u64) > Some(0)
        };
        Self {
            healthy: value.get("healthy").and_then(Value::as_bool).unwrap_or(false),
            status: text("/status").unwrap_or_default(),
            height: number("/subnet/certified_height")
                .or_else(|| number("/rounds/height"))
                .unwrap_or(0),
            finalised: number("/subnet/finalised_height"),
            behind: number("/subnet/behind"),
            peers_heard: members
                .map(|members| members.iter().enumerate().filter(heard).count() as u64),
            catching_up: value.pointer("/subnet/catching_up").and_then(Value::as_bool)
                == Some(true),
            syncing: value.pointer("/subnet/state_sync").is_some_and(Value::is_object),
            worker_restarts: number("/rounds/worker_restarts").unwrap_or(0),
            uptime_millis: number("/uptime_millis").unwrap_or(0),
            relay: None,
        }
    }
}

/// HTTP client for the reports of nodes; an answer may take [`ANSWER_TIMEOUT`].
#[derive(Clone)]
pub(crate) struct Asker(reqwest::Client);

impl Asker {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self(
            reqwest::Client::builder()
                .no_proxy()
                .timeout(ANSWER_TIMEOUT)
                .pool_max_idle_per_host(1)
                .build()?,
        ))
    }

    /// The whole document, or why there is none.
    pub(crate) async fn document(&self, url: &str) -> Result<Value, String> {
        let answer = self.0.get(format!("{url}/status.json")).send().await.map_err(|error| {
            if error.is_connect() {
                "it does not listen yet".to_owned()
            } else if error.is_timeout() {
                format!("it does not answer within {} s", ANSWER_TIMEOUT.as_secs())
            } else if error.is_request() {
                // The forwarder of a machine accepts before a process in it listens.
                "it does not answer yet".to_owned()
            } else {
                error.to_string()
            }
        })?;
        let code = answer.status();
        if answer.content_length().is_some_and(|length| length > ANSWER_BYTES_MAX as u64) {
            return Err("its report is too long".into());
        }
        let text = answer.text().await.map_err(|error| error.to_string())?;
        if !code.is_success() {
            return Err(format!("it answers {code}"));
        }
        serde_json::from_str(&text).map_err(|_| "its report is not JSON".into())
    }

    pub(crate) async fn report(&self, url: &str) -> Result<Report, String> {
        Ok(Report::from_status(&self.document(url).await?))
    }
}

/// The kernel's figures of a node's group.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct GroupReading {
    pub(crate) anonymous_bytes: u64,
    /// Most in any sample since the node's last start.
    pub(crate) anonymous_peak_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) charged_bytes: u64,
    pub(crate) oom_kills: u64,
}

/// One row of `net status`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) index: usize,
    pub(crate) condition: String,
    pub(crate) url: String,
    /// Where Waku clients reach a relay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) multiaddr: Option<String>,
    pub(crate) node_id: Option<String>,
    pub(crate) memory_bytes: u64,
    pub(crate) starts: u64,
    pub(crate) group: Option<GroupReading>,
    /// Of a machine: what QEMU's process takes of this host, the guest's memory included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host_bytes: Option<u64>,
    /// The node's own report.
    pub(crate) report: Option<Report>,
    /// Why there is no report.
    pub(crate) silent: Option<String>,
    /// Rounds behind the node that is furthest.
    pub(crate) behind: Option<u64>,
}

/// Everything about every node.
pub(crate) async fn rows(net: &Net, place: &NetFolder, asker: &Asker) -> Vec<Row> {
    let mut asked = Vec::new();
    for node in &net.nodes {
        let (asker, url) = (asker.clone(), node.url());
        asked.push(tokio::spawn(async move { asker.report(&url).await }));
    }
    let mut rows = Vec::new();
    for (node, asked) in net.nodes.iter().zip(asked) {
        let condition = condition(net, place, node.index);
        let runs = condition.runs();
        let report = asked.await.unwrap_or_else(|error| Err(error.to_string()));
        rows.push(Row {
            index: node.index,
            condition: condition.description(),
            url: node.url(),
            multiaddr: matches!(net.kind, Kind::Relays { .. }).then(|| node.multiaddr()),
            node_id: node.node_id.clone(),
            memory_bytes: node.memory_bytes,
            starts: node.starts,
            group: match net.backend {
                _ if !runs => None,
                Backend::Process => group(place, node.index),
                Backend::Vm => machine_group(place, node.index),
            },
            host_bytes: Some(place)
                .filter(|_| runs && net.backend == Backend::Vm)
                .and_then(|place| host_bytes(place, node.index)),
            report: report.clone().ok().filter(|_| runs),
            silent: report.err().filter(|_| runs),
            behind: None,
        });
    }
    // Heights of different subnets have nothing to do with each other.
    if net.is_subnet() {
        let tip =
            rows.iter().filter_map(|row| row.report.as_ref()).map(|report| report.height).max();
        for row in &mut rows {
            row.behind = row.report.as_ref().and_then(|report| Some(tip? - report.height));
        }
    }
    rows
}

fn group(place: &NetFolder, index: usize) -> Option<GroupReading> {
    let memory = place.info(index)?.cgroup().memory().ok()?;
    Some(GroupReading {
        anonymous_bytes: memory.anonymous_bytes,
        anonymous_peak_bytes: peak(&place.series(index)).max(memory.anonymous_bytes),
        file_bytes: memory.file_bytes,
        charged_bytes: memory.usage_bytes,
        oom_kills: memory.oom_kills,
    })
}

/// Last memory report of a machine, recorded by its keeper.
fn machine_group(place: &NetFolder, index: usize) -> Option<GroupReading> {
    let lines = series::read_tail(&place.series(index), TAIL_BYTES).ok()?;
    let sample = lines.into_iter().rev().find_map(|line| match line {
        Line::Sample(sample) => Some(sample),
        _ => None,
    })?;
    Some(GroupReading {
        anonymous_bytes: sample.anonymous_bytes,
        anonymous_peak_bytes: peak(&place.series(index)).max(sample.anonymous_bytes),
        file_bytes: sample.file_bytes,
        charged_bytes: sample.charged_bytes,
        oom_kills: sample.oom_kills,
    })
}

fn host_bytes(place: &NetFolder, index: usize) -> Option<u64> {
    let memory = process::memory(Pid(place.info(index)?.pid)).ok()?;
    Some(memory.resident_bytes())
}

/// Most anonymous memory in a series, its older half included.
pub(crate) fn peak(series: &Path) -> u64 {
    let mut peak = 0;
    for file in [memory_cap::older(series), series.to_owned()] {
        // The older half is there only after a while.
        let _ = series::read(&file, |line| {
            if let Line::Sample(sample) = line {
                peak = peak.max(sample.anonymous_bytes);
            }
        });
    }
    peak
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_alone_and_a_member_of_a_subnet_are_both_understood() {
        let alone = serde_json::json!({
            "healthy": true, "status": "healthy", "uptime_millis": 5,
            "rounds": {"height": 7, "worker_restarts": 1},
        });
        let report = Report::from_status(&alone);
        assert_eq!(
            (report.healthy, report.height, report.worker_restarts, report.behind),
            (true, 7, 1, None)
        );
        let member = serde_json::json!({
            "healthy": true, "status": "healthy", "rounds": {"height": 7},
            "subnet": {
                "place": 1, "certified_height": 9, "finalised_height": 11, "behind": 2, "catching_up": true,
                "state_sync": {"height": 4},
                "members": [{"heard_height": 9}, {"heard_height": 9}, {"heard_height": 0}, {"heard_height": 8}],
            },
        });
        let report = Report::from_status(&member);
        assert_eq!((report.height, report.finalised, report.behind), (9, Some(11), Some(2)));
        assert_eq!(report.peers_heard, Some(2), "itself is no peer");
        assert!(report.catching_up && report.syncing);
        assert_eq!(Report::from_status(&serde_json::json!([])), Report::default());
    }

    #[test]
    fn a_relay_is_well_when_somebody_is_in_its_mesh() {
        let relay = |mesh: u64| {
            let shards = serde_json::json!({"3": {"subscribed": 5, "mesh": mesh}});
            let value = serde_json::json!({
                "uptime_seconds": 1.5, "gossip": {"by_shard": shards}, "store": {"messages": 7},
            });
            Report::from_status(&value)
        };
        let report = relay(4);
        assert!(report.healthy && report.uptime_millis == 1500);
        assert_eq!(report.relay, Some(RelayReport { peers: 5, mesh: 4, stored: 7 }));
        assert!(!relay(0).healthy && relay(0).status.contains("mesh"));
    }
}
