//! Requests to other nodes: a node that asks instead of serving, or beside it.
//!
//! A node with `relay = false` has no gossip: it sends messages by the light push of another node,
//! receives them by its filter, and asks its store. A node that relays uses the same for REST
//! clients that name another node, and for store resume. The other node is the configured one, or a
//! connected peer that offers the service.
//!
//! Bounds: `client.requests` at once, each for at most `client.answer_seconds`; frames are charged
//! to the pool `receiving`. An answer is untrusted: it is decoded within the bounds of its
//! protocol, and messages in it are checked like those of any peer.

mod fetched;
pub(crate) mod filter;
pub(crate) mod light_push;
pub(crate) mod store;

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::AsyncWriteExt;
use libp2p::{Multiaddr, PeerId, Stream, core::upgrade::NegotiationError};
use protocol::StatusCode;
use relay_limits::ClientLimits;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::{
    discovery::known::named_peer,
    network::{
        admission::WaitingFrames,
        offers::Offer,
        streams::{Frame, Intake, REQUEST_TIMEOUT, ReadError, read_frame, write_small},
    },
    node::{ConnectedPeer, Node, SwarmRequest},
    settings::count,
};

/// Another node, which is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) peer: PeerId,
    /// Where it is dialled when it is not connected.
    pub(crate) address: Option<Multiaddr>,
}

impl Remote {
    /// The node at an address. Errors: the address does not name it.
    pub(crate) fn at(address: &Multiaddr) -> Result<Self, String> {
        let peer = named_peer(address)
            .ok_or_else(|| format!("{address} names no peer: it has no /p2p/ part"))?;
        Ok(Self { peer, address: Some(address.clone()) })
    }

    fn connected(peer: PeerId) -> Self {
        Self { peer, address: None }
    }
}

/// Nodes that were configured, by service.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceNodes {
    pub(crate) light_push: Option<Remote>,
    pub(crate) filter: Option<Remote>,
    pub(crate) store: Option<Remote>,
}

impl ServiceNodes {
    fn of(&self, offer: Offer) -> Option<&Remote> {
        match offer {
            Offer::LightPush | Offer::LightPushV2 => self.light_push.as_ref(),
            Offer::Filter => self.filter.as_ref(),
            Offer::Store => self.store.as_ref(),
            Offer::Exchange | Offer::Sync => None,
        }
    }
}

/// A stream that another task asks for. Dropped: there will be none.
#[derive(Debug)]
pub(crate) struct StreamRequest {
    pub(crate) protocol: &'static str,
    pub(crate) reply: oneshot::Sender<Stream>,
}

/// Why a request to another node had no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum ClientError {
    #[error("no node that offers {0} is configured or connected; configure one, or connect to one")]
    NoPeer(&'static str),
    #[error("{0} cannot be reached")]
    Unreachable(PeerId),
    #[error("{0} does not offer {1}")]
    Unsupported(PeerId, &'static str),
    #[error("{peer} did not answer within client.answer_seconds = {seconds}")]
    TimedOut { peer: PeerId, seconds: u64 },
    #[error("the answer of {peer} cannot be used: {why}")]
    Damaged { peer: PeerId, why: String },
    #[error("the answer of {0} is longer than this node has memory for; ask for less")]
    TooLong(PeerId),
    #[error("this node has no memory for the answer of {0} at this moment; try again in a second")]
    Busy(PeerId),
    #[error("{text}")]
    Refused { status: StatusCode, text: String },
}

impl ClientError {
    /// As the protocols put it.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Refused { status: StatusCode::Other(0), .. } | Self::Damaged { .. } => {
                StatusCode::InternalError
            }
            Self::Refused { status, .. } => *status,
            _ => StatusCode::ServiceUnavailable,
        }
    }

    /// As HTTP puts it: a gateway that had no answer says 504.
    pub(crate) fn http_status(&self) -> u16 {
        match self {
            Self::Unreachable(_) | Self::TimedOut { .. } => 504,
            other => u16::try_from(other.status().code()).unwrap_or(500),
        }
    }
}

/// What a node keeps to ask others.
#[derive(Debug)]
pub(crate) struct Client {
    permits: Semaphore,
    seconds: u64,
    /// The swarm's task, once it runs.
    swarm: OnceLock<mpsc::Sender<SwarmRequest>>,
    pub(crate) filter: filter::Subscriptions,
}

impl Client {
    pub(crate) fn new(limits: &ClientLimits) -> Self {
        Self {
            permits: Semaphore::new(count(limits.requests)),
            seconds: limits.answer_seconds,
            swarm: OnceLock::new(),
            filter: filter::Subscriptions::default(),
        }
    }

    /// From now on streams can be opened.
    pub(crate) fn connect(&self, swarm: mpsc::Sender<SwarmRequest>) {
        // There is one swarm.
        let _ = self.swarm.set(swarm);
    }
}

impl Node {
    /// Connected peers; none while the swarm does not run.
    pub(crate) async fn connected_peers(&self) -> Vec<ConnectedPeer> {
        let Some(swarm) = self.client.swarm.get() else { return Vec::new() };
        let (reply, answered) = oneshot::channel();
        if swarm.send(SwarmRequest::Peers(reply)).await.is_err() {
            return Vec::new();
        }
        answered.await.unwrap_or_default()
    }

    /// The node to ask for a service: the configured one, else a connected peer that offers it.
    pub(crate) async fn service_node(&self, offer: Offer) -> Result<Remote, ClientError> {
        if let Some(configured) = self.settings.service_nodes.of(offer) {
            return Ok(configured.clone());
        }
        let mut offering = self.connected_peers().await;
        offering.retain(|connected| connected.offers.has(offer));
        let chosen = rand::random::<u32>() as usize % offering.len().max(1);
        let connected = offering.get(chosen).ok_or(ClientError::NoPeer(offer.protocol()))?;
        Ok(Remote::connected(connected.peer))
    }

    /// Opens a stream to a node, dialling it if it is not connected. The protocol is agreed on with
    /// the first bytes.
    pub(crate) async fn open_stream(
        &self,
        to: &Remote,
        protocol: &'static str,
    ) -> Result<Stream, ClientError> {
        let gone = || ClientError::Unreachable(to.peer);
        let swarm = self.client.swarm.get().ok_or_else(gone)?;
        let (reply, opened) = oneshot::channel();
        let request = StreamRequest { protocol, reply };
        let asked = SwarmRequest::Open { peer: to.peer, address: to.address.clone(), request };
        swarm.send(asked).await.map_err(|_| gone())?;
        opened.await.map_err(|_| gone())
    }

    /// One request and its answer, within `client.answer_seconds`.
    pub(crate) async fn exchange(
        &self,
        to: &Remote,
        protocol: &'static str,
        request: &[u8],
        answer_bytes_max: usize,
    ) -> Result<Frame, ClientError> {
        self.in_time(to, self.exchange_once(to, protocol, request, answer_bytes_max)).await
    }

    /// Whatever is asked of a node for one caller, within `client.answer_seconds` together.
    async fn in_time<T>(
        &self,
        to: &Remote,
        asking: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let seconds = self.client.seconds;
        match tokio::time::timeout(Duration::from_secs(seconds), asking).await {
            Ok(answered) => answered,
            Err(_) => Err(ClientError::TimedOut { peer: to.peer, seconds }),
        }
    }

    /// One request and its answer, which the caller bounds in time.
    async fn exchange_once(
        &self,
        to: &Remote,
        protocol: &'static str,
        request: &[u8],
        answer_bytes_max: usize,
    ) -> Result<Frame, ClientError> {
        let permit = self.client.permits.acquire().await;
        let _permit = permit.map_err(|_| ClientError::Unreachable(to.peer))?;
        let mut stream = self.open_stream(to, protocol).await?;
        let failed = |error: ReadError| read_failed(to.peer, protocol, error);
        write_small(&mut stream, request).await.map_err(|error| failed(error.into()))?;
        stream.flush().await.map_err(|error| failed(error.into()))?;
        let waiting = WaitingFrames::default();
        let intake = Intake::new(self, &waiting, REQUEST_TIMEOUT);
        let read = read_frame(&mut stream, answer_bytes_max, &intake);
        read.await.map_err(failed)?.ok_or_else(|| ClientError::Damaged {
            peer: to.peer,
            why: "the stream ended without one".into(),
        })
    }
}

/// Why a stream that this node opened brought no frame.
pub(crate) fn read_failed(peer: PeerId, protocol: &'static str, error: ReadError) -> ClientError {
    match error {
        ReadError::Io(error) if is_refused(&error) => ClientError::Unsupported(peer, protocol),
        ReadError::Io(_) => ClientError::Unreachable(peer),
        ReadError::Frame(protocol::FrameError::TooLong { .. }) | ReadError::TooLong { .. } => {
            ClientError::TooLong(peer)
        }
        ReadError::Full(_) | ReadError::Busy(_) => ClientError::Busy(peer),
        other => ClientError::Damaged { peer, why: other.to_string() },
    }
}

/// Whether the peer does not speak the protocol of the stream.
fn is_refused(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NegotiationError>())
}

/// Tasks of a node that is a client; they end when they are dropped.
pub(crate) fn start(node: &Arc<Node>, tasks: &mut tokio::task::JoinSet<()>) {
    if node.filters_remotely() {
        tasks.spawn(filter::keep(node.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_node() {
        let peer = PeerId::random();
        let address: Multiaddr = format!("/ip4/192.0.2.1/tcp/60000/p2p/{peer}").parse().unwrap();
        let remote = Remote::at(&address).unwrap();
        assert_eq!((remote.peer, remote.address), (peer, Some(address)));
        let unnamed = "/ip4/192.0.2.1/tcp/60000".parse().unwrap();
        assert!(Remote::at(&unnamed).unwrap_err().contains("/p2p/"));
    }

    #[test]
    fn every_failure_has_a_status_of_http_and_of_the_protocols() {
        let peer = PeerId::random();
        for (error, status, http) in [
            (ClientError::NoPeer("/x"), 503, 503),
            (ClientError::Unreachable(peer), 503, 504),
            (ClientError::Unsupported(peer, "/x"), 503, 503),
            (ClientError::TimedOut { peer, seconds: 10 }, 503, 504),
            (ClientError::Damaged { peer, why: "torn".into() }, 500, 500),
            (ClientError::TooLong(peer), 503, 503),
            (ClientError::Busy(peer), 503, 503),
            (ClientError::Refused { status: 429_u32.into(), text: "busy".into() }, 429, 429),
            (ClientError::Refused { status: 0_u32.into(), text: String::new() }, 500, 500),
        ] {
            assert_eq!((error.status().code(), error.http_status()), (status, http), "{error}");
        }
    }

    #[test]
    fn an_answer_that_is_too_long_is_told_from_a_busy_node() {
        let peer = PeerId::random();
        let failed = |error| read_failed(peer, "/x", error);
        let long = ReadError::TooLong { bytes: 2, bytes_max: 1 };
        assert_eq!(failed(long), ClientError::TooLong(peer));
        let full = accounting::Pool::standalone("receiving", 1).try_reserve(2).unwrap_err();
        assert_eq!(failed(full.into()), ClientError::Busy(peer));
    }

    #[test]
    fn a_refused_protocol_is_told_from_a_broken_stream() {
        let refused = io::Error::other(NegotiationError::Failed);
        assert!(is_refused(&refused) && !is_refused(&io::ErrorKind::BrokenPipe.into()));
    }
}
