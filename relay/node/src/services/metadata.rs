//! Metadata: of which cluster a peer is, and which shards it serves. A peer of another cluster is
//! disconnected, as it does with this node.

use std::{sync::Arc, time::Duration};

use protocol::metadata::{MESSAGE_BYTES_MAX, Metadata};

use super::{ServeOutcome, reply, request};
use crate::{
    network::{stream_slots::Stream, streams::write_small},
    node::Node,
};

/// A peer answers within this time.
const ANSWER_TIME: Duration = Duration::from_secs(10);

fn own(node: &Node) -> Vec<u8> {
    Metadata { cluster: Some(node.settings.cluster.into()), shards: node.shards().iter().collect() }
        .encode()
}

fn check_cluster(node: &Node, theirs: &Metadata) -> ServeOutcome {
    let own = node.settings.cluster;
    match theirs.cluster {
        Some(cluster) if cluster != u32::from(own) => {
            Err(format!("the peer is of cluster {cluster}, this node of cluster {own}"))
        }
        _ => Ok(()),
    }
}

pub(crate) async fn serve(node: Arc<Node>, mut stream: Stream) -> ServeOutcome {
    let Some(frame) = request(&node, &mut stream, MESSAGE_BYTES_MAX).await? else {
        return Ok(());
    };
    let theirs = Metadata::decode(frame.body).map_err(|error| error.to_string())?;
    reply(&mut stream, &own(&node)).await?;
    check_cluster(&node, &theirs)
}

pub(crate) async fn request_metadata(node: Arc<Node>, mut stream: libp2p::Stream) -> ServeOutcome {
    let asking = async {
        write_small(&mut stream, &own(&node)).await.ok()?;
        let frame = request(&node, &mut stream, MESSAGE_BYTES_MAX).await.ok()??;
        Metadata::decode(frame.body).ok()
    };
    match tokio::time::timeout(ANSWER_TIME, asking).await {
        Ok(Some(theirs)) => check_cluster(&node, &theirs),
        // Not every client answers; what it is shows when it subscribes.
        _ => Ok(()),
    }
}
