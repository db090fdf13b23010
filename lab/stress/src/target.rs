//! Data shared by all clients of a run: the nodes' addresses, the topics, the run's number and
//! clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use libp2p::Multiaddr;
use protocol::{ContentTopic, PubsubTopic, autoshard};

use crate::settings::Load;

/// Versions tried for a content topic that autosharding leads to the wanted shard.
const VERSIONS_MAX: u32 = 100_000;

#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Of the nodes; one at least.
    pub(crate) addresses: Vec<Multiaddr>,
    pub(crate) cluster: u16,
    pub(crate) shard: u16,
    pub(crate) pubsub_topic: String,
    pub(crate) content_topic: String,
    pub(crate) run: u64,
    pub(crate) started: Instant,
}

impl Target {
    /// A run with a number and a content topic of its own. The topic is one that a network of
    /// `shards` shards leads to `shard`, so that nodes with autosharding agree.
    pub(crate) fn new(addresses: Vec<Multiaddr>, load: &Load) -> Result<Self> {
        let Load { cluster, shard, shards_in_cluster: shards, .. } = *load;
        let run = rand::random();
        let name = |version: u32| format!("/thimble-stress/{version}/run-{run:016x}/proto");
        let leads_here = |topic: &String| match (ContentTopic::parse(topic), shards.try_into()) {
            (Ok(topic), Ok(shards)) => autoshard(&topic, shards) == shard,
            _ => false,
        };
        let content_topic = if shard < shards {
            (1..VERSIONS_MAX).map(name).find(leads_here).with_context(|| {
                format!("no content topic leads to shard {shard} of {shards}; use fewer shards")
            })?
        } else {
            // Not reachable by autosharding: the pubsub topic is stated with every request.
            name(1)
        };
        let pubsub_topic = PubsubTopic::new(cluster, shard).to_string();
        let started = Instant::now();
        Ok(Self { addresses, cluster, shard, pubsub_topic, content_topic, run, started })
    }

    /// Nanoseconds since the start of the run.
    pub(crate) fn now_nanos(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

/// Nanoseconds since 1970.
pub(crate) fn wall_nanos() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_nanos() as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn nodes_with_and_without_autosharding_agree_on_the_topic() {
        let address: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
        for shard in [0, 3, 7, 32] {
            let load = Settings { cluster: Some(16), shard: Some(shard), ..Settings::default() };
            let target = Target::new(vec![address.clone()], &load.load().unwrap()).unwrap();
            assert_eq!(target.pubsub_topic, format!("/waku/2/rs/16/{shard}"));
            let topic = ContentTopic::parse(&target.content_topic).unwrap();
            if shard < 8 {
                assert_eq!(autoshard(&topic, 8.try_into().unwrap()), shard);
            }
        }
    }
}
