//! A relay peer of whose gossip a test decides every word.

use bytes::Bytes;
use futures::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use libp2p::core::muxing::SubstreamBox;
use protocol::{
    WakuMessage, frame,
    gossip::{self, Limits, Publish, Rpc, Subscription},
};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    peer::TIMEOUT,
    raw::{Multiplexer, Raw},
};

/// A gossip peer. Dropping it ends its connection.
pub(crate) struct GossipPeer {
    pub(crate) raw: Raw,
    out: SubstreamBox,
    heard: mpsc::UnboundedReceiver<Rpc>,
    reading: JoinHandle<()>,
}

impl Drop for GossipPeer {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl GossipPeer {
    /// Connects and subscribes to topics; then it only listens.
    pub(crate) async fn connect(address: &str, topics: &[&str]) -> Self {
        Self::try_connect(address, topics).await.expect("the relay gossips with this peer")
    }

    /// The same; nothing if the relay does not gossip with it.
    pub(crate) async fn try_connect(address: &str, topics: &[&str]) -> Option<Self> {
        let mut raw = Raw::connect(address, Multiplexer::Yamux, &[gossip::PROTOCOL]).await;
        let mut out = raw.open(gossip::PROTOCOL).await?;
        let subscribing =
            Rpc { subscriptions: topics.iter().map(subscription).collect(), ..Rpc::default() };
        out.write_all(&frame::with_length(&subscribing.encode())).await.ok()?;
        out.flush().await.ok()?;
        let (_, stream) = raw.accepted().await?;
        let (sender, heard) = mpsc::unbounded_channel();
        let reading = tokio::spawn(read_all(stream, sender));
        Some(Self { raw, out, heard, reading })
    }

    /// Sends something; returns whether the connection took it.
    pub(crate) async fn send_rpc(&mut self, rpc: &Rpc) -> bool {
        self.write(&frame::with_length(&rpc.encode())).await
    }

    /// Writes bytes as they are; whether the connection took them.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> bool {
        let writing = async {
            self.out.write_all(bytes).await?;
            self.out.flush().await
        };
        tokio::time::timeout(TIMEOUT, writing).await.is_ok_and(|written| written.is_ok())
    }

    /// Takes the relay into its mesh.
    pub(crate) async fn graft(&mut self, topic: &str) {
        self.send_rpc(&Rpc { graft: vec![topic.into()], ..Rpc::default() }).await;
    }

    /// Publishes a message.
    pub(crate) async fn publish(&mut self, topic: &str, message: &WakuMessage) -> bool {
        self.send_rpc(&Rpc { publish: vec![published(topic, message)], ..Rpc::default() }).await
    }

    /// Waits until the relay sends something relevant.
    pub(crate) async fn wait_for<T>(
        &mut self,
        mut interesting: impl FnMut(&Rpc) -> Option<T>,
    ) -> Option<T> {
        let hearing = async {
            loop {
                if let Some(found) = interesting(&self.heard.recv().await?) {
                    return Some(found);
                }
            }
        };
        tokio::time::timeout(TIMEOUT, hearing).await.expect("heard in time")
    }

    /// Waits for a message.
    pub(crate) async fn wait_for_message(&mut self, message: &WakuMessage) {
        let expected = Bytes::from(message.encode());
        let found = self
            .wait_for(|rpc| rpc.publish.iter().any(|one| one.data == expected).then_some(()))
            .await;
        assert!(found.is_some(), "the relay closed the connection");
    }

    /// All that was received and not examined.
    pub(crate) fn drain_received(&mut self) -> Vec<Rpc> {
        std::iter::from_fn(|| self.heard.try_recv().ok()).collect()
    }
}

fn subscription(topic: &&str) -> Subscription {
    Subscription { topic: (*topic).into(), subscribe: true }
}

/// A message as gossip carries it.
pub(crate) fn published(topic: &str, message: &WakuMessage) -> Publish {
    Publish { topic: topic.into(), data: message.encode().into(), signed: false }
}

async fn read_all(mut stream: impl AsyncRead + Unpin, heard: mpsc::UnboundedSender<Rpc>) {
    loop {
        let mut prefix = Vec::new();
        let length = loop {
            let mut byte = [0];
            if stream.read_exact(&mut byte).await.is_err() {
                return;
            }
            prefix.push(byte[0]);
            if let Some((length, _)) = frame::decode_length(&prefix, gossip::RPC_BYTES_MAX).unwrap()
            {
                break length;
            }
        };
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let rpc = Rpc::decode(body.into(), &Limits::default()).expect("the relay's gossip decodes");
        if heard.send(rpc).is_err() {
            return;
        }
    }
}
