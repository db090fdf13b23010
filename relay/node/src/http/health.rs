//! Health and identity of the node.
//!
//! Health is 200 with a report whenever the interface answers, in the words of reference nodes. It
//! has three parts: whether this node can work (`nodeHealth`), how it is connected
//! (`connectionStatus`), and the protocols one by one, with the reason where one is not ready; and
//! a fourth while the wall clock has jumped. Never dials, never waits for a peer.

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
    connection_status: &'static str,
    protocols_health: Vec<Map<String, Value>>,
    /// What is wrong with the wall clock. An addition: no field while nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock: Option<String>,
}

#[derive(Clone)]
enum Health {
    Ready,
    NotReady(String),
    NotMounted,
}

impl Health {
    fn name(&self) -> &'static str {
        match self {
            Self::Ready => "READY",
            Self::NotReady(_) => "NOT_READY",
            Self::NotMounted => "NOT_MOUNTED",
        }
    }

    /// As it is, or with this reason not ready.
    fn unless(self, trouble: Option<&String>) -> Self {
        match (self, trouble) {
            (Self::Ready, Some(why)) => Self::NotReady(why.clone()),
            (health, _) => health,
        }
    }
}

/// How a node is connected, from its relay peers; `least` is [`relay_limits::GossipLimits::d_low`].
fn connection_status(relay_peers: usize, least: u64) -> &'static str {
    match relay_peers as u64 {
        0 => "Disconnected",
        peers if peers < least => "PartiallyConnected",
        _ => "Connected",
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

    /// Every protocol that reference nodes list, in their order. Those that this node has no part
    /// in are not mounted.
    fn protocols(&self) -> [(&'static str, Health); 13] {
        let held = |work| self.node.watch.held_back(work);
        let log = self.log_trouble();
        let relay = self.relay_health().unless(held(WorkKind::Reading).as_ref());
        let pushes = held(WorkKind::Pushes);
        let lightpush = relay.clone().unless(pushes.as_ref()).unless(log.as_ref());
        let store = if self.node.settings.store { Health::Ready } else { Health::NotMounted };
        let store = store.unless(log.as_ref()).unless(held(WorkKind::Queries).as_ref());
        let mounted = |is_so| if is_so { Health::Ready } else { Health::NotMounted };
        let settings = &self.node.settings;
        let pushes_remotely = mounted(self.node.pushes_remotely());
        let asks_stores = !settings.relay || settings.service_nodes.store.is_some();
        [
            ("Relay", relay),
            ("Lightpush", lightpush.clone()),
            ("Legacy Lightpush", lightpush),
            ("Filter", mounted(settings.relay).unless(pushes.as_ref())),
            ("Store", store),
            ("Peer Exchange", Health::Ready),
            ("Rendezvous", Health::NotMounted),
            ("Mix", Health::NotMounted),
            ("Lightpush Client", pushes_remotely.clone()),
            ("Legacy Lightpush Client", pushes_remotely),
            ("Store Client", mounted(asks_stores)),
            ("Filter Client", mounted(self.node.filters_remotely())),
            ("Rln Relay", self.rln_health()),
        ]
    }

    /// Why this node cannot do its work, if it cannot: memory or disk is short. Relay peers that
    /// are missing are no such reason: its connection status reports them.
    fn own_trouble(&self) -> Option<String> {
        let held = self.node.watch.held_back(WorkKind::Queries);
        held.or_else(|| self.log_trouble())
    }

    /// `GET /health`.
    pub(crate) fn health(&self) -> HttpResult {
        let protocols_health = self.protocols().into_iter().map(|(name, health)| {
            let mut entry = Map::new();
            entry.insert(name.to_owned(), health.name().into());
            if let Health::NotReady(why) = health {
                entry.insert("desc".to_owned(), why.into());
            }
            entry
        });
        let relay_peers = self.node.router().usage().peers;
        let report = HealthReport {
            node_health: if self.own_trouble().is_none() { "READY" } else { "NOT_READY" },
            connection_status: connection_status(
                relay_peers,
                self.node.settings.limits.gossip.d_low,
            ),
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
    fn log_trouble(&self) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_status_counts_relay_peers_against_the_least_of_a_mesh() {
        let found: Vec<_> = (0..6).map(|peers| connection_status(peers, 4)).collect();
        let (some, all) = ("PartiallyConnected", "Connected");
        assert_eq!(found, ["Disconnected", some, some, some, all, all]);
        assert_eq!(connection_status(0, 0), "Disconnected");
    }

    #[test]
    fn trouble_makes_a_ready_protocol_not_ready_and_leaves_others() {
        let why = "the disk is full".to_owned();
        let name = |health: Health| health.unless(Some(&why)).name();
        assert_eq!(name(Health::Ready), "NOT_READY");
        assert_eq!(name(Health::NotMounted), "NOT_MOUNTED");
        let first = Health::NotReady("no peers".into()).unless(Some(&why));
        assert!(matches!(first, Health::NotReady(kept) if kept == "no peers"));
        assert_eq!(Health::Ready.unless(None).name(), "READY");
    }
}
