//! Metadata: of which cluster a peer is, and which shards it serves. A peer of another cluster is
//! disconnected, as it does with this node, once it had time to learn that it is.

use std::{sync::Arc, time::Duration};

use protocol::metadata::{MESSAGE_BYTES_MAX, Metadata};

use super::{ServeOutcome, finish, reply, request};
use crate::{
    network::{stream_slots::Stream, streams::write_small},
    node::Node,
};

/// A peer answers within this time.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// A peer of another cluster reads the answer to its question within this time, or asks it.
const DISMISS_TIME: Duration = Duration::from_secs(2);

fn own(node: &Node) -> Vec<u8> {
    Metadata { cluster: Some(node.settings.cluster.into()), shards: node.shards().iter().collect() }
        .encode()
}

async fn check_cluster(node: &Node, theirs: &Metadata) -> ServeOutcome {
    let own = node.settings.cluster;
    match theirs.cluster {
        Some(cluster) if cluster != u32::from(own) => {
            tokio::time::sleep(DISMISS_TIME).await;
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
    check_cluster(&node, &theirs).await
}

pub(crate) async fn request_metadata(node: Arc<Node>, mut stream: libp2p::Stream) -> ServeOutcome {
    let asking = async {
        write_small(&mut stream, &own(&node)).await.ok()?;
        let frame = request(&node, &mut stream, MESSAGE_BYTES_MAX).await.ok()??;
        Metadata::decode(frame.body).ok()
    };
    let answered = tokio::time::timeout(ANSWER_TIME, asking).await;
    finish(&mut stream).await;
    match answered {
        Ok(Some(theirs)) => check_cluster(&node, &theirs).await,
        // Not every client answers; what it is shows when it subscribes.
        _ => Ok(()),
    }
}
