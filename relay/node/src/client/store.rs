//! Store queries to other nodes.

use accounting::Reservation;
use protocol::store::{PAGE_DEFAULT, PAGE_MAX, PROTOCOL, REPLY_BYTES_MAX, Reply, Request};

use super::{
    ClientError, Remote,
    light_push::{refusal, request_id},
};
use crate::{
    network::{offers::Offer, streams::Frame},
    node::Node,
    settings::count,
};

/// A page of another node's store, and its memory.
#[derive(Debug)]
pub(crate) struct RemotePage {
    pub(crate) reply: Reply,
    pub(crate) held: Reservation,
}

impl Node {
    /// The node whose store is asked.
    pub(crate) async fn store_node(&self) -> Result<Remote, ClientError> {
        self.service_node(Offer::Store).await
    }

    /// A page of another node's store, within `client.answer_seconds`. One that is longer than a
    /// page may be here is asked for again with fewer messages; its cursor leads on. A node that is
    /// busy does not ask again.
    pub(crate) async fn query_remotely(
        &self,
        to: &Remote,
        request: Request,
    ) -> Result<RemotePage, ClientError> {
        self.in_time(to, self.query_until_short(to, request)).await
    }

    async fn query_until_short(
        &self,
        to: &Remote,
        mut request: Request,
    ) -> Result<RemotePage, ClientError> {
        let room = self.settings.limits.messages.receiving_bytes / 2;
        let bytes_max = REPLY_BYTES_MAX.min(count(room));
        let mut limit = request.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX as u64);
        loop {
            request.request_id = request_id();
            request.limit = Some(limit);
            match self.exchange_once(to, PROTOCOL, &request.encode(), bytes_max).await {
                Err(ClientError::TooLong(_)) if limit > 1 => limit /= 2,
                Err(error) => return Err(error),
                Ok(Frame { body, held, .. }) => {
                    let reply = Reply::decode(body).map_err(|error| ClientError::Damaged {
                        peer: to.peer,
                        why: error.to_string(),
                    })?;
                    if reply.status.is_success() {
                        return Ok(RemotePage { reply, held });
                    }
                    let text = refusal(to, reply.status_text.as_ref());
                    return Err(ClientError::Refused { status: reply.status, text });
                }
            }
        }
    }
}
