//! Messages that other nodes send because this one asked: by filter, resume or synchronisation.
//! They are written to the log like all others, and not relayed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use accounting::Reservation;
use bytes::Bytes;
use protocol::{WakuMessage, message_hash};
use router::Shard;
use store::{AppendOutcome, Arrival};

use crate::{ingest::RejectReason, node::Node};

/// How long such a message waits for room in the log's queue.
const WAIT: Duration = Duration::from_secs(10);
/// Between two looks whether there is room.
const RETRY: Duration = Duration::from_millis(5);

impl Node {
    /// Writes a message, which `bytes` decode to, when the messages of peers and clients leave room
    /// in the log's queue. `held` is its memory; `kept`: queries find it; `is_new`: it is passed to
    /// subscribers, although there may be no room to keep it.
    pub(crate) async fn write_fetched(
        &self,
        shard: Shard,
        message: &WakuMessage,
        bytes: Bytes,
        held: Reservation,
        kept: bool,
        is_new: bool,
    ) -> Result<AppendOutcome, RejectReason> {
        self.check_size(&bytes)?;
        let topic = self.topic(shard);
        let hash = message_hash(&topic, message);
        let timestamp_ns =
            message.timestamp.filter(|at| *at != 0).unwrap_or_else(|| (self.clock)());
        let arrival = Arrival {
            hash: hash.0,
            timestamp_ns,
            pubsub_topic: topic,
            content_topic: Arc::from(message.content_topic.as_str()),
            kept,
            may_pass: is_new,
            fetched: !is_new,
        };
        let half = self.settings.limits.messages.appending_bytes / 2;
        let deadline = Instant::now() + WAIT;
        while self.store.waiting().append_bytes > half && Instant::now() < deadline {
            tokio::time::sleep(RETRY).await;
        }
        let appending = self
            .store
            .append(arrival, bytes, held)
            .map_err(|full| RejectReason::Busy(full.to_string()))?;
        appending.await.map_err(|error| RejectReason::Unavailable(error.to_string()))
    }
}
