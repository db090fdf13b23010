//! The protocols that are served, one file each: a function from a stream to its end.

use std::{sync::Arc, time::Duration};

use futures::{AsyncRead, AsyncWrite, AsyncWriteExt, FutureExt, future::BoxFuture};
use libp2p::PeerId;
use protocol::{StatusCode, Text};
use router::Peer;

use crate::{
    ingest::RejectReason,
    network::{
        admission::WaitingFrames,
        stream_slots::Stream,
        streams::{
            Frame, Intake, REQUEST_TIMEOUT, ReadError, UnreadFrame, read_frame, skip, write_small,
        },
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

/// What a peer asked on a stream.
#[derive(Debug)]
pub(crate) enum Request {
    Whole(Frame),
    /// This node was too busy to read it, and dropped it: the bytes at its beginning.
    Refused(UnreadFrame),
}

/// The one request of a stream; `None` when there is none, which is not an error. Errors: why the
/// connection must be closed.
pub(crate) async fn request(
    node: &Node,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    bytes_max: usize,
) -> Result<Option<Frame>, String> {
    let waiting = WaitingFrames::default();
    match any_request(node, stream, bytes_max, &waiting).await? {
        Some(Request::Whole(frame)) => Ok(Some(frame)),
        Some(Request::Refused(_)) | None => Ok(None),
    }
}

/// The same, for requests that are answered also when this node is too busy to read them. `waiting`
/// counts those of the connection that wait.
pub(crate) async fn any_request(
    node: &Node,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    bytes_max: usize,
    waiting: &WaitingFrames,
) -> Result<Option<Request>, String> {
    let intake = Intake::new(node, waiting, REQUEST_TIMEOUT);
    match read_frame(stream, bytes_max, &intake).await {
        Ok(Some(frame)) => Ok(Some(Request::Whole(frame))),
        Ok(None) | Err(ReadError::Torn) => {
            end(stream).await;
            Ok(None)
        }
        Err(ReadError::Busy(unread)) => {
            // A stock client writes its whole request before it reads the answer.
            let dropped = skip(stream, unread.rest).await;
            Ok(dropped.is_ok().then_some(Request::Refused(unread)))
        }
        Err(ReadError::Frame(error)) => Err(error.to_string()),
        Err(error @ (ReadError::Io(_) | ReadError::Slow | ReadError::Full(_))) => {
            // The stream alone: other requests on the connection may be on their way.
            tracing::debug!(%error, "a request was not read");
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
        RejectReason::Invalid(_) => StatusCode::InvalidMessage,
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
