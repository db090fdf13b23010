//! A relay peer: joins the mesh of the run's topic and counts what the node relays to it.
//!
//! It has no other peer than the node, so it forwards nothing, and it shares no code with a router
//! under test. It implements the specification of a peer that only listens: it subscribes, accepts
//! and sends grafts, and requests announced messages that did not arrive.
//!
//! Bounds: [`SEEN_MAX`] message ids, [`REQUESTS_MAX`] requests waiting to be sent. Must
//! never know: which messages were accepted.
//!
//! Source: libp2p/specs gossipsub 1.1, vacp2p/rfc-index 11.

use std::{
    collections::{HashSet, VecDeque},
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use libp2p::{core::muxing::SubstreamBox, identity::Keypair};
use protocol::gossip::{
    self, Control, Limits, MessageId, RPC_BYTES_MAX, Rpc, control_frames, message_id,
};
use tokio::sync::mpsc;

use crate::{
    channel::Channel,
    receiver::record_message,
    session::{IdentifyMessage, Role, Session},
    shared::{Ready, RunContext},
    tally::{ReceiverTally, lock},
};

/// Ids remembered, so that what is offered again is not fetched again.
const SEEN_MAX: usize = 1 << 16;
/// Requests waiting to be sent; further ones are dropped.
const REQUESTS_MAX: usize = 64;
/// Ids fetched at once.
const IWANT_MAX: usize = 1000;
/// Longest frame written.
const FRAME_BYTES: usize = 64 << 10;
/// Interval at which the place in the mesh is checked.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Default time until the node accepts another graft.
const BACKOFF: Duration = Duration::from_secs(60);
/// Longest time a node may ask for.
const BACKOFF_MAX: Duration = Duration::from_secs(3600);

/// The place in the node's mesh.
#[derive(Debug, Default)]
struct Mesh {
    /// Whether the node subscribed to the topic.
    node_subscribed: bool,
    grafted: bool,
    not_before: Option<Instant>,
}

/// Ids in the order in which they came.
#[derive(Debug, Default)]
struct SeenIds {
    ids: HashSet<MessageId>,
    order: VecDeque<MessageId>,
}

impl SeenIds {
    fn insert(&mut self, id: MessageId) {
        if !self.ids.insert(id) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > SEEN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }
}

pub(crate) struct RelayPeer {
    shared: Arc<RunContext>,
    node: usize,
    received: Arc<Mutex<ReceiverTally>>,
    mesh: Mutex<Mesh>,
    seen: Mutex<SeenIds>,
    /// Ids of messages to request.
    wanted_tx: mpsc::Sender<Vec<MessageId>>,
    wanted_rx: tokio::sync::Mutex<mpsc::Receiver<Vec<MessageId>>>,
}

impl Role for RelayPeer {
    fn protocols(&self) -> &'static [&'static str] {
        &[gossip::PROTOCOL]
    }

    fn serve(self: Arc<Self>, _: &'static str, mut channel: Channel) -> BoxFuture<'static, ()> {
        async move {
            while let Ok(Some(frame)) = channel.frame(RPC_BYTES_MAX).await {
                if let Ok(rpc) = Rpc::decode(frame, &Limits::default()) {
                    self.handle_rpc(rpc);
                }
            }
        }
        .boxed()
    }
}

impl RelayPeer {
    pub(crate) fn new(
        shared: Arc<RunContext>,
        node: usize,
        received: Arc<Mutex<ReceiverTally>>,
    ) -> Arc<Self> {
        let (wanted_tx, wanted_rx) = mpsc::channel(REQUESTS_MAX);
        Arc::new(Self {
            shared,
            node,
            received,
            mesh: Mutex::default(),
            seen: Mutex::default(),
            wanted_tx,
            wanted_rx: tokio::sync::Mutex::new(wanted_rx),
        })
    }

    fn handle_rpc(&self, rpc: Rpc) {
        let topic = &self.shared.target.pubsub_topic;
        for publish in rpc.publish {
            if publish.topic.as_str() == topic {
                lock(&self.seen).insert(message_id(&publish.data));
                record_message(&self.shared, &self.received, publish.data);
            }
        }
        {
            let mut mesh = lock(&self.mesh);
            for one in rpc.subscriptions.iter().filter(|one| one.topic.as_str() == topic) {
                mesh.node_subscribed = one.subscribe;
                mesh.grafted &= one.subscribe;
            }
            if rpc.graft.iter().any(|graft| graft.as_str() == topic) {
                mesh.grafted = true;
            }
            for prune in rpc.prune.iter().filter(|prune| prune.topic.as_str() == topic) {
                let backoff = prune.backoff_s.map_or(BACKOFF, Duration::from_secs);
                mesh.grafted = false;
                mesh.not_before = Some(Instant::now() + backoff.min(BACKOFF_MAX));
            }
        }
        let offered = rpc.ihave.iter().filter(|ihave| ihave.topic.as_str() == topic);
        let wanted: Vec<_> = {
            let seen = lock(&self.seen);
            let new = |id: &MessageId| !seen.ids.contains(id);
            offered
                .flat_map(|ihave| ihave.ids.iter().copied())
                .filter(new)
                .take(IWANT_MAX)
                .collect()
        };
        if !wanted.is_empty() {
            // Messages that are not requested now are announced again at the next heartbeat.
            let _ = self.wanted_tx.try_send(wanted);
        }
    }

    /// Listens until it is aborted. A connection that ends is reestablished.
    pub(crate) async fn run(self: Arc<Self>, ready: Ready) {
        let keys = Keypair::generate_secp256k1();
        loop {
            *lock(&self.mesh) = Mesh::default();
            let (session, about) =
                self.shared.connect(&keys, self.node, &self, |error| ready.waiting(&error)).await;
            if let Err(error) = self.listen(session, &about, &ready).await {
                ready.waiting(&error);
                self.shared.record_connection_lost("relay peers", &format!("{error:#}"));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn listen(
        &self,
        mut session: Session<Self>,
        about: &IdentifyMessage,
        ready: &Ready,
    ) -> Result<()> {
        ensure!(
            about.speaks(gossip::PROTOCOL),
            "the node speaks no relay; it is {:?}",
            about.agent
        );
        let stream = session.stream().await?;
        session.drive_until(self.run_stream(stream, about, ready)).await??;
        Ok(())
    }

    async fn run_stream(
        &self,
        stream: SubstreamBox,
        about: &IdentifyMessage,
        ready: &Ready,
    ) -> io::Result<()> {
        let topic = self.shared.target.pubsub_topic.as_str();
        let mut channel = Channel::open(stream, gossip::PROTOCOL, &[]).await?;
        send_control(&mut channel, Control::Subscription { topic, subscribe: true }).await?;
        let mut wanted_rx = self.wanted_rx.lock().await;
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(ids) = wanted_rx.recv() => {
                    send_control(&mut channel, Control::IWant { ids: &ids }).await?;
                }
                _ = heartbeat.tick() => {
                    let (graft, grafted) = {
                        let mut mesh = lock(&self.mesh);
                        let waits = mesh.not_before.is_some_and(|time| Instant::now() < time);
                        let graft = mesh.node_subscribed && !mesh.grafted && !waits;
                        mesh.grafted |= graft;
                        (graft, mesh.grafted)
                    };
                    if graft {
                        send_control(&mut channel, Control::Graft { topic }).await?;
                    }
                    if grafted {
                        ready.ready(about);
                    } else {
                        ready.waiting(&anyhow::anyhow!("it is not in the node's mesh of {topic}"));
                    }
                }
            }
        }
    }
}

async fn send_control(channel: &mut Channel, entry: Control<'_>) -> io::Result<()> {
    for frame in control_frames(&[entry], FRAME_BYTES) {
        channel.write(&frame).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_forgotten_in_the_order_in_which_they_came() {
        let mut seen = SeenIds::default();
        let id = |number: u32| message_id(&number.to_be_bytes());
        for number in 0..SEEN_MAX as u32 + 10 {
            seen.insert(id(number));
            seen.insert(id(number));
        }
        assert_eq!((seen.ids.len(), seen.order.len()), (SEEN_MAX, SEEN_MAX));
        assert!(!seen.ids.contains(&id(9)) && seen.ids.contains(&id(10)));
    }
}
