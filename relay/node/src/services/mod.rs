//! The protocols that are served, one file each: a function from a stream to its end.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{AsyncRead, AsyncWrite, AsyncWriteExt, FutureExt, future::BoxFuture};
use libp2p::PeerId;
use protocol::{StatusCode, Text};
use router::Peer;

use crate::{
    client,
    counters::Reason,
    ingest::RejectReason,
    network::{
        admission::{NotAdmitted, WaitingFrames},
        stream_slots::Stream,
        streams::{
            BEGIN_BYTES, Frame, Intake, REQUEST_TIMEOUT, ReadError, discard, read_frame, skip,
            write_small,
        },
    },
    node::Node,
    rln::ProofRefusal,
    settings::Settings,
    sync,
};

pub(crate) mod filter;
pub(crate) mod light_push;
pub(crate) mod metadata;
pub(crate) mod peer_exchange;
pub(crate) mod relay;
pub(crate) mod store;

/// How long the end of a stream without a request is waited for.
const END_TIME: Duration = Duration::from_secs(5);

/// Read of a request that is longer than is taken, before it is refused: a client reads the answer
/// when it has sent its request.
const SKIPPED_BYTES_MAX: usize = 8 << 20;

/// How serving a stream ended; that its peer broke it off counts as an end. Error: why the
/// connection must be closed.
pub(crate) type ServeOutcome = Result<(), String>;

/// Names of all protocols a peer may open a stream for. A node that does not relay has no messages
/// to push or to take.
pub(crate) fn protocols(settings: &Settings) -> Vec<&'static str> {
    let mut names = vec![protocol::metadata::PROTOCOL, protocol::peer_exchange::PROTOCOL];
    if settings.relay {
        names.extend([
            protocol::gossip::PROTOCOL,
            protocol::light_push::PROTOCOL,
            protocol::light_push::PROTOCOL_V2,
            protocol::filter::SUBSCRIBE_PROTOCOL,
        ]);
    }
    if settings.relay || settings.store {
        names.push(protocol::store::PROTOCOL);
    }
    if !settings.relay || settings.service_nodes.filter.is_some() {
        names.push(protocol::filter::PUSH_PROTOCOL);
    }
    if settings.store_sync {
        names.extend([protocol::sync::RECONCILIATION_PROTOCOL, protocol::sync::TRANSFER_PROTOCOL]);
    }
    names
}

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
        protocol::filter::PUSH_PROTOCOL => client::filter::serve(node, peer, stream).boxed(),
        protocol::sync::RECONCILIATION_PROTOCOL => sync::serve(node, peer, stream).boxed(),
        protocol::sync::TRANSFER_PROTOCOL => sync::transfer::serve(node, peer, stream).boxed(),
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
    let waiting = WaitingFrames::default();
    let intake = Intake::new(node, &waiting, REQUEST_TIMEOUT);
    let read = read_frame(stream, bytes_max, &intake).await;
    request_of(stream, read).await
}

async fn request_of(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    read: Result<Option<Frame>, ReadError>,
) -> Result<Option<Frame>, String> {
    match read {
        Ok(Some(frame)) => Ok(Some(frame)),
        Ok(None) | Err(ReadError::Torn) => {
            end(stream).await;
            Ok(None)
        }
        Err(ReadError::Busy(unread)) => {
            // A stock client writes its whole request before it reads the end.
            let _ = skip(stream, unread.rest, &mut Vec::new()).await;
            Ok(None)
        }
        Err(error @ (ReadError::Frame(_) | ReadError::TooLong { .. })) => Err(error.to_string()),
        Err(error @ (ReadError::Io(_) | ReadError::Slow | ReadError::Full(_))) => {
            // The stream alone: other requests on the connection may be on their way.
            tracing::debug!(%error, "a request was not read");
            Ok(None)
        }
    }
}

/// A message that a client pushes.
#[derive(Debug)]
pub(crate) enum PushRequest {
    Whole(Frame),
    /// It was dropped, and is answered.
    Refused(RefusedPush),
}

#[derive(Debug)]
pub(crate) struct RefusedPush {
    /// The bytes at its beginning.
    pub(crate) begin: Bytes,
    pub(crate) status: StatusCode,
    pub(crate) why: String,
}

/// The one request of a stream, as [`request`]. One that is too long, or that this node is too busy
/// to read, is dropped, to be refused.
pub(crate) async fn push_request(
    node: &Node,
    stream: &mut Stream,
    bytes_max: usize,
) -> Result<Option<PushRequest>, String> {
    let activity = stream.activity();
    let intake = Intake::new(node, activity.waiting(), REQUEST_TIMEOUT);
    let refused = match read_frame(stream, bytes_max, &intake).await {
        Err(ReadError::Busy(unread)) => {
            // A stock client writes its whole request before it reads the answer.
            if skip(stream, unread.rest, &mut Vec::new()).await.is_err() {
                return Ok(None);
            }
            let why = NotAdmitted.to_string();
            node.counters.client_refused.add(Reason::Busy);
            RefusedPush { begin: unread.begin, status: StatusCode::TooManyRequests, why }
        }
        Err(ReadError::TooLong { bytes, bytes_max }) => {
            let why = ReadError::TooLong { bytes, bytes_max }.to_string();
            let mut begin = Vec::with_capacity(BEGIN_BYTES);
            let skipped = bytes.min(SKIPPED_BYTES_MAX);
            stream.expect_rest(bytes - skipped);
            // The client may have sent only a part, or be slow: it is refused just the same.
            if let Err(error) = skip(stream, skipped, &mut begin).await {
                tracing::debug!(%error, "a request that is too long did not come whole");
            }
            node.counters.client_refused.add(Reason::TooLarge);
            RefusedPush { begin: begin.into(), status: StatusCode::PayloadTooLarge, why }
        }
        read => return Ok(request_of(stream, read).await?.map(PushRequest::Whole)),
    };
    Ok(Some(PushRequest::Refused(refused)))
}

/// Ends a stream on which this node asked: its peer finds the end of the request, and not that the
/// stream is broken, and is read to its end.
pub(crate) async fn finish(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let ending = async {
        if stream.close().await.is_ok() {
            discard(stream).await;
        }
    };
    // The peer may be gone, or keep its side open.
    let _ = tokio::time::timeout(END_TIME, ending).await;
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
        RejectReason::Proof(ProofRefusal::Absent) => StatusCode::NoRlnProof,
        RejectReason::Proof(ProofRefusal::Busy(_)) => StatusCode::TooManyRequests,
        RejectReason::Proof(ProofRefusal::NoRoots | ProofRefusal::Log(_)) => {
            StatusCode::ServiceUnavailable
        }
        RejectReason::Proof(_) => StatusCode::InvalidMessage,
        RejectReason::Duplicate => StatusCode::Ok,
        RejectReason::Remote { status, .. } => *status,
    }
}

pub(crate) fn text(text: impl Into<String>) -> Option<Text> {
    Some(Text::from(text.into()))
}
