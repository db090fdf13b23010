//! Health and identity of the node.
//!
//! Health is 200 with a report whenever the interface answers, as reference nodes have it; it lists
//! the parts that are not ready, with the reason, and a wall clock that jumped. Never dials, never
//! waits for a peer.

use hyper::StatusCode;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    answer,
    service::{HttpResult, Service},
};
use crate::{governor::WorkKind, node::SwarmRequest};

/// `HealthReport` of the specification.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HealthReport {
    node_health: &'static str,
    protocols_health: Vec<Map<String, Value>>,
    /// What is wrong with the wall clock. An addition: no field while nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock: Option<String>,
}

enum Health {
    Ready,
    NotReady(String),
    NotMounted,
}

impl Health {
    fn name(&self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::NotReady(_) => "Not Ready",
            Self::NotMounted => "Not Mounted",
        }
    }
}

impl Service {
    /// Why the node is not ready, if it is not, or what is wrong with the clock: the first reason.
    pub(crate) fn trouble(&self) -> Option<String> {
        let trouble = self.protocols().into_iter().find_map(|(_, health)| match health {
            Health::NotReady(why) => Some(why),
            _ => None,
        });
        trouble.or_else(|| self.node.time.trouble())
    }

    fn protocols(&self) -> [(&'static str, Health); 5] {
        let held = |work| self.node.watch.held_back(work).map(Health::NotReady);
        let (relay, log) = (self.relay_health(), self.log_health());
        let relay = held(WorkKind::Reading).unwrap_or(relay);
        let pushes = match (&log, &relay) {
            (Some(why), _) => Health::NotReady(why.clone()),
            (None, Health::NotReady(why)) => Health::NotReady(why.clone()),
            (None, _) => held(WorkKind::Pushes).unwrap_or(Health::Ready),
        };
        let store = match &log {
            _ if !self.node.settings.store => Health::NotMounted,
            Some(why) => Health::NotReady(why.clone()),
            None => held(WorkKind::Queries).unwrap_or(Health::Ready),
        };
        [
            ("Relay", relay),
            ("Rln Relay", self.rln_health()),
            ("Lightpush", pushes),
            ("Filter", held(WorkKind::Pushes).unwrap_or(Health::Ready)),
            ("Store", store),
        ]
    }

    /// `GET /health`: the health of each protocol, with the reason where one is not ready.
    pub(crate) fn health(&self) -> HttpResult {
        let all = self.protocols();
        let ready = all.iter().all(|(_, health)| !matches!(health, Health::NotReady(_)));
        let protocols_health = all.iter().map(|(name, health)| {
            let mut entry = Map::new();
            entry.insert((*name).to_owned(), health.name().into());
            if let Health::NotReady(why) = health {
                entry.insert("desc".to_owned(), why.clone().into());
            }
            entry
        });
        let report = HealthReport {
            node_health: if ready { "Ready" } else { "Not Ready" },
            protocols_health: protocols_health.collect(),
            clock: self.node.time.trouble(),
        };
        answer::json(StatusCode::OK, &report, &self.responses)
    }

    fn relay_health(&self) -> Health {
        if !self.node.settings.relay {
            return Health::NotMounted;
        }
        let least = self.node.settings.min_relay_peers;
        let now = self.node.now();
        let router = self.node.router();
        for shard in self.node.shards().iter() {
            let peers = router.reachable(shard, now);
            if peers < least {
                let topic = self.node.topic_name(shard);
                return Health::NotReady(format!(
                    "{peers} relay peers of {topic} are connected, {least} must be"
                ));
            }
        }
        Health::Ready
    }

    /// Whether proofs of all members' messages can be checked.
    fn rln_health(&self) -> Health {
        let Some(roots) = &self.node.roots else { return Health::NotMounted };
        roots.trouble().map_or(Health::Ready, Health::NotReady)
    }

    /// Why no message can be written, if none can.
    fn log_health(&self) -> Option<String> {
        let free = self.node.store.status().disk_free_bytes?;
        let reserve = self.disk_reserve_bytes;
        (free < reserve).then(|| {
            format!("{free} bytes of disk are free, store.disk_reserve_bytes is {reserve}")
        })
    }

    /// `GET /info` and `/debug/v1/info`.
    pub(crate) async fn info(&self) -> HttpResult {
        let addresses = self.query_swarm(SwarmRequest::Addresses).await?;
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let mut info = serde_json::json!({ "listenAddresses": addresses });
        if let Some(record) = self.node.own_record() {
            info["enrUri"] = record.to_string().into();
        }
        answer::json(StatusCode::OK, &info, &self.responses)
    }
}
