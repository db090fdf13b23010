//! Peer exchange: records of other nodes, for clients that cannot search for them; and the same
//! asked of peers.

use std::{sync::Arc, time::Duration};

use libp2p::PeerId;
use protocol::{
    StatusCode,
    peer_exchange::{PEERS_MAX, REPLY_BYTES_MAX, REQUEST_BYTES_MAX, Reply, Request},
    record::NodeRecord,
};

use super::{ServeOutcome, finish, reply, request, text};
use crate::{
    discovery::known::Origin,
    network::{
        admission::WaitingFrames,
        stream_slots::Stream,
        streams::{Intake, REQUEST_TIMEOUT, read_frame, write_small},
    },
    node::Node,
    settings::count,
};

/// A peer answers within this time.
const ANSWER_TIME: Duration = Duration::from_secs(20);

pub(crate) async fn serve(node: Arc<Node>, peer: PeerId, mut stream: Stream) -> ServeOutcome {
    let Some(frame) = request(&node, &mut stream, REQUEST_BYTES_MAX).await? else {
        return Ok(());
    };
    let refused = |status, why: String| Reply {
        records: Vec::new(),
        status: Some(status),
        status_text: text(why),
    };
    let answer = match (node.rates.peer_exchange.take(&peer), Request::decode(frame.body)) {
        (Err(limited), _) => refused(StatusCode::TooManyRequests, limited.to_string()),
        (Ok(()), Ok(asked)) => {
            let most = usize::try_from(asked.peers).unwrap_or(PEERS_MAX).min(PEERS_MAX);
            let records = node.known_records(&peer, most);
            if records.is_empty() {
                refused(
                    StatusCode::ServiceUnavailable,
                    "this node knows of no other nodes yet".into(),
                )
            } else {
                Reply { records, status: Some(StatusCode::Ok), status_text: text("OK") }
            }
        }
        (Ok(()), Err(error)) => refused(StatusCode::BadRequest, error.to_string()),
    };
    reply(&mut stream, &answer.encode()).await
}

/// Asks a peer, and takes note of the nodes it names.
pub(crate) async fn request_peers(node: Arc<Node>, mut stream: libp2p::Stream) -> ServeOutcome {
    let most = count(node.settings.limits.peers.peer_exchange_peers);
    let asking = async {
        let asked = Request { peers: most as u64 }.encode();
        write_small(&mut stream, &asked).await.ok()?;
        let waiting = WaitingFrames::default();
        let intake = Intake::new(&node, &waiting, REQUEST_TIMEOUT);
        let frame = read_frame(&mut stream, REPLY_BYTES_MAX, &intake).await.ok()??;
        Reply::decode(frame.body).ok()
    };
    let answered = tokio::time::timeout(ANSWER_TIME, asking).await;
    finish(&mut stream).await;
    let Ok(Some(reply)) = answered else {
        tracing::debug!("a peer that was asked for others gave no answer");
        return Ok(());
    };
    let mut new = 0;
    for bytes in reply.records.iter().take(most) {
        match NodeRecord::decode(bytes) {
            Ok(record) => new += usize::from(node.heard_of(&record, Origin::PeerExchange)),
            Err(error) => tracing::debug!(%error, "a peer named a node by a damaged record"),
        }
    }
    tracing::debug!(records = reply.records.len(), new, "a peer named others");
    Ok(())
}
