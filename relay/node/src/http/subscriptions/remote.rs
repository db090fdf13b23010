//! Subscriptions of filter that another node keeps: this one asks it, and its pushes are put into
//! the same queues. A change is made here only if the other node made it.

use std::{collections::HashSet, sync::Arc};

use http_server::ErrorResponse;
use hyper::StatusCode;

use super::{Under, no_subscriptions};
use crate::{
    client::{ClientError, filter::Criterion},
    http::{
        answer,
        service::{HttpResult, Service},
    },
    subscribers::Topic,
};

impl Service {
    /// In a task of its own, like changes of the subscriptions here: a client that goes away in the
    /// middle of it must not leave them apart.
    pub(super) async fn subscribe_at_node(&self, topics: HashSet<Topic>) -> HttpResult<()> {
        let (node, subscriptions) = (self.node.clone(), self.subscriptions.clone());
        in_task(async move {
            let new: HashSet<Topic> = {
                let all = subscriptions.topics();
                let known = all.topics(Under::Filter);
                topics.iter().filter(|topic| !known.contains(*topic)).cloned().collect()
            };
            // Queues first: the other node may push at once.
            subscriptions.subscribe(Under::Filter, new.clone()).await?;
            match node.subscribe_remotely(&criteria(&topics)).await {
                Ok(()) => Ok(()),
                Err(error) => {
                    // Why it was refused is of more use than that the queues stay.
                    let _ = subscriptions.unsubscribe(Under::Filter, new).await;
                    Err(refusal(error))
                }
            }
        })
        .await
    }

    pub(super) async fn unsubscribe_at_node(&self, topics: HashSet<Topic>) -> HttpResult<()> {
        let (node, subscriptions) = (self.node.clone(), self.subscriptions.clone());
        in_task(async move {
            let criteria = criteria(&topics);
            if !subscriptions.unsubscribe(Under::Filter, topics).await? {
                return Err(no_subscriptions());
            }
            node.unsubscribe_remotely(&criteria).await.map_err(refusal)
        })
        .await
    }
}

async fn in_task(change: impl Future<Output = HttpResult<()>> + Send + 'static) -> HttpResult<()> {
    let ending = || answer::busy(StatusCode::SERVICE_UNAVAILABLE, "this node is stopping");
    tokio::spawn(change).await.unwrap_or_else(|_| Err(ending()))
}

/// What a filter node is asked for, for these topics.
pub(in crate::http) fn criteria<'a>(topics: impl IntoIterator<Item = &'a Topic>) -> Vec<Criterion> {
    let content = |topic: &Topic| match topic {
        Topic::Content(shard, name) => Some((*shard, Arc::from(name.as_str()))),
        Topic::Shard(_) => None,
    };
    topics.into_iter().filter_map(content).collect()
}

/// The refusal of a request that another node did not carry out.
pub(in crate::http) fn refusal(error: ClientError) -> ErrorResponse {
    let status = StatusCode::from_u16(error.http_status());
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let message = error.to_string();
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => answer::busy(status, message),
        status => answer::refusal(status, message),
    }
}
