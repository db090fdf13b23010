//! A client's connection while it lives: driving it, opening streams, serving those the node opens.
//!
//! Everything of a connection runs in one task, without channels between: the owner of a
//! [`Session`] polls it along with its own work. Every client serves identify, ping and metadata,
//! because nodes request them before they serve a client; its [`Role`] serves further protocols.
//!
//! Bounds: [`dial::STREAMS_MAX`](crate::dial) streams. Must never know: messages and measurements.

use std::{
    future::poll_fn,
    io,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use libp2p::{
    core::muxing::{StreamMuxerBox, StreamMuxerExt, SubstreamBox},
    identity::Keypair,
};
use protocol::{
    metadata::{self, Metadata},
    wire::{Fields, put_bytes},
};

use crate::{
    channel,
    channel::Channel,
    connections::{ConnectionGuard, NodeConnections},
    dial,
    target::Target,
};

const IDENTIFY: &str = "/ipfs/id/1.0.0";
const PING: &str = "/ipfs/ping/1.0.0";
const PING_BYTES: usize = 32;
/// Longest answer to identify that is read.
const IDENTIFY_BYTES_MAX: usize = 64 << 10;
/// Protocols of a node that are remembered.
const NAMES_MAX: usize = 256;
/// Timeout of a node's identify message.
const GREETING: Duration = Duration::from_secs(20);

/// Protocols that a client serves in addition to those of all clients.
pub(crate) trait Role: Send + Sync + 'static {
    fn protocols(&self) -> &'static [&'static str];

    /// Serves a stream in one of them.
    fn serve(self: Arc<Self>, name: &'static str, channel: Channel) -> BoxFuture<'static, ()>;
}

/// A client that serves nothing.
pub(crate) struct Plain;

impl Role for Plain {
    fn protocols(&self) -> &'static [&'static str] {
        &[]
    }

    fn serve(self: Arc<Self>, _: &'static str, _: Channel) -> BoxFuture<'static, ()> {
        async {}.boxed()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IdentifyMessage {
    /// Name and version.
    pub(crate) agent: String,
    /// At most [`NAMES_MAX`].
    pub(crate) protocols: Vec<String>,
}

impl IdentifyMessage {
    pub(crate) fn speaks(&self, name: &str) -> bool {
        self.protocols.iter().any(|protocol| protocol == name)
    }

    fn decode(input: &Bytes) -> Result<Self, protocol::DecodeError> {
        let mut about = Self::default();
        for field in Fields::new(input) {
            let field = field?;
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            match field.tag {
                3 if about.protocols.len() < NAMES_MAX => {
                    about.protocols.push(text(field.bytes()?))
                }
                6 => about.agent = text(field.bytes()?),
                _ => {}
            }
        }
        Ok(about)
    }
}

/// Service on every stream, shared by all streams of a session.
struct Serving<R> {
    role: Arc<R>,
    names: Vec<&'static str>,
    identify: Vec<u8>,
    metadata: Vec<u8>,
}

pub(crate) struct Session<R> {
    muxer: StreamMuxerBox,
    serving: Arc<Serving<R>>,
    served: FuturesUnordered<BoxFuture<'static, ()>>,
    _guard: ConnectionGuard,
}

impl<R: Role> Session<R> {
    /// Connects to one of the nodes, and requests its identify message; sends it the client's
    /// cluster and shard if it requests them. Errors: no connection, or the node does not identify
    /// itself.
    pub(crate) async fn open(
        keys: &Keypair,
        target: &Target,
        places: &Arc<NodeConnections>,
        node: usize,
        role: Arc<R>,
    ) -> Result<(Self, IdentifyMessage)> {
        let address = target.addresses.get(node).context("a client works at one of the nodes")?;
        let muxer = dial::connect(keys, address).await?;
        let names: Vec<_> = [IDENTIFY, PING, metadata::PROTOCOL]
            .into_iter()
            .chain(role.protocols().to_vec())
            .collect();
        let serving = Serving {
            role,
            identify: identify(keys, &names),
            names,
            metadata: Metadata { cluster: Some(target.cluster.into()), shards: vec![target.shard] }
                .encode(),
        };
        let mut session = Self {
            muxer,
            serving: Arc::new(serving),
            served: FuturesUnordered::new(),
            _guard: places.register(node),
        };
        let greeting = tokio::time::timeout(GREETING, session.request_identify());
        let about = greeting.await.map_err(|_| {
            anyhow!("the node did not say who it is within {} s", GREETING.as_secs())
        })??;
        Ok((session, about))
    }

    async fn request_identify(&mut self) -> Result<IdentifyMessage> {
        let stream = self.stream().await?;
        let asking = async move {
            let mut channel = Channel::open(stream, IDENTIFY, &[]).await?;
            let frame =
                channel.frame(IDENTIFY_BYTES_MAX).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let _ = channel.close().await;
            Ok::<_, io::Error>(frame)
        };
        let frame = self.drive_until(asking).await?.context("asking the node who it is")?;
        let about = IdentifyMessage::decode(&frame).context("what the node says of itself")?;
        if about.speaks(metadata::PROTOCOL) {
            let body = self.serving.metadata.clone();
            let bytes_max = metadata::MESSAGE_BYTES_MAX;
            // What it answers shows in what it accepts.
            let _ = self.request(metadata::PROTOCOL, &body, bytes_max).await?;
        }
        Ok(about)
    }

    /// Drives the connection and what is served on it. Never ready but with the connection's end.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        // Polling for streams of the node is what drives yamux, in both directions.
        while let Poll::Ready(stream) = self.muxer.poll_inbound_unpin(cx) {
            match stream {
                Ok(stream) if self.served.len() < dial::STREAMS_MAX => {
                    self.served.push(serve(self.serving.clone(), stream).boxed());
                }
                Ok(_) => {}
                Err(error) => return Poll::Ready(error),
            }
        }
        while let Poll::Ready(Some(())) = self.served.poll_next_unpin(cx) {}
        Poll::Pending
    }

    /// A stream to the node, as soon as it may be opened.
    pub(crate) fn poll_stream(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<SubstreamBox>> {
        self.muxer.poll_outbound_unpin(cx)
    }

    pub(crate) async fn stream(&mut self) -> io::Result<SubstreamBox> {
        poll_fn(|cx| match self.poll(cx) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            Poll::Pending => self.poll_stream(cx),
        })
        .await
    }

    /// Drives the connection until `work` is done. Errors: the connection ended before.
    pub(crate) async fn drive_until<T>(&mut self, work: impl Future<Output = T>) -> io::Result<T> {
        let mut work = pin!(work);
        poll_fn(|cx| match (work.as_mut().poll(cx), self.poll(cx)) {
            (Poll::Ready(done), _) => Poll::Ready(Ok(done)),
            (_, Poll::Ready(error)) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        })
        .await
    }

    /// One request on a stream of its own. The outer error is the connection's, the inner one the
    /// stream's.
    pub(crate) async fn request(
        &mut self,
        name: &str,
        body: &[u8],
        bytes_max: usize,
    ) -> io::Result<io::Result<Bytes>> {
        let stream = self.stream().await?;
        let asking = channel::request(stream, name, body, bytes_max);
        let timed = tokio::time::timeout(GREETING, asking);
        Ok(self.drive_until(timed).await?.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())))
    }
}

async fn serve<R: Role>(serving: Arc<Serving<R>>, stream: SubstreamBox) {
    let mut channel = Channel::new(stream);
    let agreed = tokio::time::timeout(GREETING, channel.accept(&serving.names)).await;
    let Ok(Ok(Some(name))) = agreed else { return };
    match name {
        IDENTIFY => drop(send_reply(&mut channel, &serving.identify).await),
        PING => {
            while let Ok(Some(bytes)) = channel.exact(PING_BYTES).await {
                if channel.write(&bytes).await.is_err() {
                    return;
                }
            }
        }
        metadata::PROTOCOL => {
            if let Ok(Some(_)) = channel.frame(metadata::MESSAGE_BYTES_MAX).await {
                drop(send_reply(&mut channel, &serving.metadata).await);
            }
        }
        name => serving.role.clone().serve(name, channel).await,
    }
}

async fn send_reply(channel: &mut Channel, body: &[u8]) -> io::Result<()> {
    channel.write(&protocol::frame::with_length(body)).await?;
    channel.close().await
}

/// Identify message of a client. Source: libp2p/specs identify.
fn identify(keys: &Keypair, names: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(1, &keys.public().encode_protobuf(), &mut out);
    names.iter().for_each(|name| put_bytes(3, name.as_bytes(), &mut out));
    put_bytes(5, b"/vac/waku/1.0.0", &mut out);
    put_bytes(6, concat!("thimble-lab-stress/", env!("CARGO_PKG_VERSION")).as_bytes(), &mut out);
    out
}
