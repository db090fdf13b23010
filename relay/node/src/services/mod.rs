//! The protocols that are served, one file each: a function from a stream to its end.

use std::{sync::Arc, time::Duration};

use futures::{AsyncRead, AsyncWrite, AsyncWriteExt, FutureExt, future::BoxFuture};
use libp2p::PeerId;
use protocol::{StatusCode, Text};
use router::Peer;

use crate::{
    ingest::RejectReason,
    network::{
        stream_slots::Stream,
        streams::{Frame, REQUEST_TIMEOUT, ReadError, read_frame, write_small},
    },
    node::Node,
};

pub(crate) mod filter;
pub(crate) mod light_push;
pub(crate) mod metadata;
pub(crate) mod peer_exchange;
pub(crate) mod relay;
pub(crate) mod store;

/// How long the end of a stream without a request is waited for.
const END_TIME: Duration = Duration::from_secs(5);

/// How serving a stream ended; that its peer broke it off counts as an end. Error: why the
/// connection must be closed.
pub(crate) type ServeOutcome = Result<(), String>;

/// Names of all protocols a peer may open a stream for.
pub(crate) const PROTOCOLS: [&str; 7] = [
    protocol::gossip::PROTOCOL,
    protocol::light_push::PROTOCOL,
    protocol::light_push::PROTOCOL_V2,
    protocol::filter::SUBSCRIBE_PROTOCOL,
    protocol::store::PROTOCOL,
    protocol::metadata::PROTOCOL,
    protocol::peer_exchange::PROTOCOL,
];

/// Serves a stream that a peer opened.
pub(crate) fn serve(
    node: Arc<Node>,
    peer: PeerId,
    connection: Peer,
    name: &str,
    stream: Stream,
) -> BoxFuture<'static, ServeOutcome> {
    match name {
        protocol::gossip::PROTOCOL => relay::receive(node, connection, stream).boxed(),
        protocol::light_push::PROTOCOL => light_push::serve(node, peer, stream).boxed(),
        protocol::light_push::PROTOCOL_V2 => light_push::serve_v2(node, peer, stream).boxed(),
        protocol::filter::SUBSCRIBE_PROTOCOL => filter::serve(node, peer, stream).boxed(),
        protocol::store::PROTOCOL => store::serve(node, peer, stream).boxed(),
        protocol::metadata::PROTOCOL => metadata::serve(node, stream).boxed(),
        _ => peer_exchange::serve(node, peer, stream).boxed(),
    }
}

/// The one request of a stream; `None` when there is none, which is not an error. Errors: why the
/// connection must be closed.
pub(crate) async fn request(
    node: &Node,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    bytes_max: usize,
) -> Result<Option<Frame>, String> {
    match read_frame(stream, bytes_max, &node.pools.receiving, REQUEST_TIMEOUT).await {
        Ok(Some(frame)) => Ok(Some(frame)),
        Ok(None) | Err(ReadError::Torn) => {
            end(stream).await;
            Ok(None)
        }
        Err(ReadError::Io(_)) => Ok(None),
        Err(error @ (ReadError::Frame(_) | ReadError::Slow)) => Err(error.to_string()),
        Err(ReadError::Full(full)) => {
            tracing::debug!(%full, "a request was not read");
            Ok(None)
        }
    }
}

/// Ends a stream that has no request. Dropping it would suffice, but mplex then reports it only
/// with the next frame.
async fn end(stream: &mut (impl AsyncWrite + Unpin)) {
    // The peer may be gone, or read nothing.
    let _ = tokio::time::timeout(END_TIME, stream.close()).await;
}

/// The one reply of a stream, and its end.
pub(crate) async fn reply(stream: &mut (impl AsyncWrite + Unpin), body: &[u8]) -> ServeOutcome {
    if write_small(stream, body).await.is_ok() {
        // The peer may be gone by now.
        let _ = stream.close().await;
    }
    Ok(())
}

/// How a client hears that its message was not taken.
pub(crate) fn status_of(rejected: &RejectReason) -> StatusCode {
    use protocol::MessageError::TooLarge;
    match rejected {
        RejectReason::Invalid(TooLarge { .. }) | RejectReason::TooLarge { .. } => {
            StatusCode::PayloadTooLarge
        }
        RejectReason::Invalid(_) | RejectReason::Signature(_) => StatusCode::InvalidMessage,
        RejectReason::Topic(_) => StatusCode::UnsupportedPubsubTopic,
        RejectReason::NoPeers { .. } => StatusCode::NoPeers,
        RejectReason::Busy(_) => StatusCode::TooManyRequests,
        RejectReason::Unavailable(_) => StatusCode::ServiceUnavailable,
        RejectReason::Duplicate => StatusCode::Ok,
    }
}

pub(crate) fn text(text: impl Into<String>) -> Option<Text> {
    Some(Text::from(text.into()))
}
