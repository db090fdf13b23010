//! Peer exchange: records of other nodes, for clients that cannot search for them.

use std::sync::Arc;

use libp2p::Stream;
use protocol::{
    StatusCode,
    peer_exchange::{PEERS_MAX, REQUEST_BYTES_MAX, Reply, Request},
};

use super::{Served, reply, request, text};
use crate::node::Node;

/// Serves a request.
pub(crate) async fn serve(node: Arc<Node>, mut stream: Stream) -> Served {
    let frame = match request(&node, &mut stream, REQUEST_BYTES_MAX).await {
        Ok(Some(frame)) => frame,
        Ok(None) => return Served::Done,
        Err(served) => return served,
    };
    let answer = match Request::decode(frame.body) {
        Ok(asked) => {
            let most = usize::try_from(asked.peers).unwrap_or(PEERS_MAX).min(PEERS_MAX);
            let records = node.known_records(most);
            let known = !records.is_empty();
            let status = if known { StatusCode::Ok } else { StatusCode::ServiceUnavailable };
            let status_text = if known { text("OK") } else { text("this node knows of no other nodes yet") };
            Reply { records, status: Some(status), status_text }
        }
        Err(error) => Reply {
            records: Vec::new(),
            status: Some(StatusCode::BadRequest),
            status_text: text(error.to_string()),
        },
    };
    reply(&mut stream, &answer.encode()).await
}
