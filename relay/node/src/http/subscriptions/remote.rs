//! Subscriptions of filter that another node keeps: this one asks it, and its pushes are put into
//! the same queues. A change is made here only if the other node made it.

use std::{collections::HashSet, sync::Arc};

use http_server::{ErrorResponse, Outgoing};
use hyper::{Response, StatusCode};

use super::{FilterRequest, Under, filter_answer, known_length, no_subscriptions};
use crate::{
    client::{ClientError, filter::Criterion},
    http::{
        answer,
        service::{HttpResult, ReceivedBody, Service},
    },
    subscribers::Topic,
};

impl Service {
    /// `POST` and `PUT /filter/v2/subscriptions`.
    pub(crate) async fn filter_subscribe_remotely(
        &self,
        body: HttpResult<ReceivedBody>,
    ) -> Response<Outgoing> {
        match self.named_topics(body) {
            Err(refused) => filter_answer("", Err(refused)),
            Ok((request_id, Err(refused))) => filter_answer(&request_id, Err(refused)),
            Ok((request_id, Ok(topics))) => {
                filter_answer(&request_id, self.subscribe_at_node(topics).await)
            }
        }
    }

    /// `DELETE /filter/v2/subscriptions`: 404 when none of the topics was subscribed to.
    pub(crate) async fn filter_unsubscribe_remotely(
        &self,
        body: HttpResult<ReceivedBody>,
    ) -> Response<Outgoing> {
        match self.named_topics(body) {
            Err(refused) => filter_answer("", Err(refused)),
            Ok((request_id, Err(refused))) => filter_answer(&request_id, Err(refused)),
            Ok((request_id, Ok(topics))) => {
                filter_answer(&request_id, self.unsubscribe_at_node(&topics).await)
            }
        }
    }

    /// `DELETE /filter/v2/subscriptions/all`: 404 when there are no subscriptions.
    pub(crate) async fn filter_unsubscribe_all_remotely(
        &self,
        body: HttpResult<ReceivedBody>,
    ) -> Response<Outgoing> {
        let request_id = body.and_then(|body| {
            let request: FilterRequest<'_> = body.json()?;
            known_length(&request.request_id.0)?;
            Ok(request.request_id.0.into_owned())
        });
        match request_id {
            Err(refused) => filter_answer("", Err(refused)),
            Ok(request_id) => {
                let all: HashSet<Topic> = self.subscribed().filter.iter().cloned().collect();
                filter_answer(&request_id, self.unsubscribe_at_node(&all).await)
            }
        }
    }

    /// `GET /filter/v2/subscriptions/{requestId}`: 404 when there are no subscriptions, here or
    /// there.
    pub(crate) async fn filter_ping_remotely(&self, request_id: &str) -> Response<Outgoing> {
        if let Err(refused) = known_length(request_id) {
            return filter_answer("", Err(refused));
        }
        if self.subscribed().filter.is_empty() {
            return filter_answer(request_id, Err(no_subscriptions()));
        }
        filter_answer(request_id, self.node.ping_filter().await.map_err(refusal))
    }

    /// The id of a request, and the topics it names.
    fn named_topics(
        &self,
        body: HttpResult<ReceivedBody>,
    ) -> HttpResult<(String, HttpResult<HashSet<Topic>>)> {
        let body = body?;
        let request: FilterRequest<'_> = body.json()?;
        known_length(&request.request_id.0)?;
        let topics = self.filter_topics(&request);
        Ok((request.request_id.0.into_owned(), topics))
    }

    async fn subscribe_at_node(&self, topics: HashSet<Topic>) -> HttpResult<()> {
        let new: HashSet<Topic> = {
            let subscribed = self.subscribed();
            topics.iter().filter(|topic| !subscribed.filter.contains(*topic)).cloned().collect()
        };
        // Queues first: the other node may push at once.
        self.subscribe(Under::Filter, new.clone())?;
        let subscribed = self.node.subscribe_remotely(&criteria(&topics)).await;
        subscribed.map_err(|error| {
            self.unsubscribe(Under::Filter, &new);
            refusal(error)
        })
    }

    async fn unsubscribe_at_node(&self, topics: &HashSet<Topic>) -> HttpResult<()> {
        if !self.unsubscribe(Under::Filter, topics) {
            return Err(no_subscriptions());
        }
        self.node.unsubscribe_remotely(&criteria(topics)).await.map_err(refusal)
    }
}

fn criteria(topics: &HashSet<Topic>) -> Vec<Criterion> {
    let content = |topic: &Topic| match topic {
        Topic::Content(shard, name) => Some((*shard, Arc::from(name.as_str()))),
        Topic::Shard(_) => None,
    };
    topics.iter().filter_map(content).collect()
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
