//! Metadata: of which cluster a peer is, and which shards it serves. A peer of another cluster is
//! disconnected, as it does with this node.

use std::{sync::Arc, time::Duration};

use protocol::metadata::{MESSAGE_BYTES_MAX, Metadata};

use super::{Served, reply, request};
use crate::{
    network::{stream_slots::Stream, streams::write_small},
    node::Node,
};

/// A peer answers within this time.
const ANSWER_TIME: Duration = Duration::from_secs(10);

fn own(node: &Node) -> Vec<u8> {
    Metadata { cluster: Some(node.settings.cluster.into()), shards: node.shards.iter().collect() }
        .encode()
}

fn judge(node: &Node, theirs: &Metadata) -> Served {
    match theirs.cluster {
        Some(cluster) if cluster != u32::from(node.settings.cluster) => Served::Close(format!(
            "the peer is of cluster {cluster}, this node of cluster {}",
            node.settings.cluster
        )),
        _ => Served::Done,
    }
}

/// Serves a request.
pub(crate) async fn serve(node: Arc<Node>, mut stream: Stream) -> Served {
    let frame = match request(&node, &mut stream, MESSAGE_BYTES_MAX).await {
        Ok(Some(frame)) => frame,
        Ok(None) => return Served::Done,
        Err(served) => return served,
    };
    let theirs = match Metadata::decode(frame.body) {
        Ok(theirs) => theirs,
        Err(error) => return Served::Close(error.to_string()),
    };
    reply(&mut stream, &own(&node)).await;
    judge(&node, &theirs)
}

/// Asks a peer.
pub(crate) async fn ask(node: Arc<Node>, mut stream: libp2p::Stream) -> Served {
    let asking = async {
        write_small(&mut stream, &own(&node)).await.ok()?;
        let frame = request(&node, &mut stream, MESSAGE_BYTES_MAX).await.ok()??;
        Metadata::decode(frame.body).ok()
    };
    match tokio::time::timeout(ANSWER_TIME, asking).await {
        Ok(Some(theirs)) => judge(&node, &theirs),
        // Not every client answers; what it is shows when it subscribes.
        _ => Served::Done,
    }
}
