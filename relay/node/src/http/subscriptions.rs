//! Subscriptions of HTTP clients, under relay and under filter, and reading their messages.
//!
//! This node is its own filter service, unless another one is (`remote`). Both are references that
//! wait in [`crate::subscribers::Subscribers`]. A topic has one queue: if it is subscribed under
//! both names, the first reader takes the queued messages, and the queue stays until both have
//! unsubscribed. A topic under relay also decides which shards the node serves: a shard is
//! subscribed to with its first topic and left with its last. Bounds: memory of the topics
//! (`http.cache_bytes`, 503) and their references (the oldest leave), shards (`gossip.topics`,
//! 503), and [`NAMES_MAX`] names in a request. A change is in a file before it takes effect
//! ([`super::topic_changes`]). A message is read from the log when its reader takes it.

mod remote;

use std::{
    collections::{HashSet, VecDeque},
    io,
    sync::MutexGuard,
};

use http_server::{ErrorResponse, List, Outgoing, Pieces};
use hyper::{Response, StatusCode};
use protocol::{WakuMessage, topic::CONTENT_TOPIC_BYTES_MAX};
use serde::Deserialize;
use store::Message;

pub(super) use self::remote::{criteria, refusal};
use super::{
    answer,
    client_topics::{ClientTopics, Under},
    message::{NAMES_MAX, Name, Names, json_bytes_max, present, put_message},
    service::{HttpResult, ReceivedBody, Service},
};
use crate::{settings::count, subscribers::Topic};

/// Longest request id that is answered with.
const REQUEST_ID_BYTES_MAX: usize = protocol::REQUEST_ID_BYTES_MAX;

/// Requests of filter v2; `pubsubTopic` and `contentFilters` are absent where they mean nothing.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FilterRequest<'a> {
    #[serde(borrow)]
    request_id: Name<'a>,
    #[serde(borrow, default, deserialize_with = "present")]
    content_filters: Option<Names<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pubsub_topic: Option<Name<'a>>,
}

impl Service {
    pub(crate) fn subscribed(&self) -> MutexGuard<'_, ClientTopics> {
        self.subscriptions.topics()
    }

    /// `POST /relay/v1/subscriptions` and `/relay/v1/auto/subscriptions`.
    pub(crate) async fn relay_subscribe(&self, body: ReceivedBody, auto: bool) -> HttpResult {
        let topics = self.relay_topics(&body, auto)?;
        drop(body);
        self.subscriptions.subscribe(Under::Relay, topics).await?;
        Ok(answer::text("OK"))
    }

    /// `DELETE` of the same. Topics without a subscription are left alone.
    pub(crate) async fn relay_unsubscribe(&self, body: ReceivedBody, auto: bool) -> HttpResult {
        let topics = self.relay_topics(&body, auto)?;
        drop(body);
        self.subscriptions.unsubscribe(Under::Relay, topics).await?;
        Ok(answer::text("OK"))
    }

    /// `GET /relay/v1/messages/{pubsubTopic}`: takes the waiting messages; 404 without a
    /// subscription.
    pub(crate) fn relay_messages(&self, pubsub_topic: &str) -> HttpResult {
        let topic = self.shard_topic(pubsub_topic)?;
        self.messages(Under::Relay, |one| *one == topic, pubsub_topic)
    }

    /// `GET /relay/v1/auto/messages/{contentTopic}`: takes the waiting messages; 404 without a
    /// subscription.
    pub(crate) fn auto_messages(&self, content_topic: &str) -> HttpResult {
        let topic = self.content_topic(None, content_topic)?;
        self.messages(Under::Relay, |one| *one == topic, content_topic)
    }

    /// `GET /filter/v2/messages/{contentTopic}`: of every shard it was subscribed on.
    pub(crate) fn filter_messages(&self, content_topic: &str) -> HttpResult {
        let wanted = |one: &Topic| matches!(one, Topic::Content(_, name) if name == content_topic);
        self.messages(Under::Filter, wanted, content_topic)
    }

    /// `POST` and `PUT /filter/v2/subscriptions`.
    pub(crate) async fn filter_subscribe(
        &self,
        body: HttpResult<ReceivedBody>,
        modify: bool,
    ) -> Response<Outgoing> {
        let request = filter_request(body, |request| {
            // The other node judges that for itself.
            let known =
                self.node.filters_remotely() || !self.subscribed().topics(Under::Filter).is_empty();
            if modify && !known {
                return Err(no_subscriptions());
            }
            self.served_topics(request)
        });
        let (request_id, topics) = match request {
            Ok(request) => request,
            Err(refused) => return filter_answer("", Err(refused)),
        };
        let outcome = match topics {
            Ok(topics) if self.node.filters_remotely() => self.subscribe_at_node(topics).await,
            Ok(topics) => self.subscriptions.subscribe(Under::Filter, topics).await,
            Err(refused) => Err(refused),
        };
        filter_answer(&request_id, outcome)
    }

    /// `DELETE /filter/v2/subscriptions`: 404 when none of the topics was subscribed to.
    pub(crate) async fn filter_unsubscribe(
        &self,
        body: HttpResult<ReceivedBody>,
    ) -> Response<Outgoing> {
        let request = filter_request(body, |request| self.filter_topics(request));
        self.end_filters(request).await
    }

    /// `DELETE /filter/v2/subscriptions/all`: 404 when there are no subscriptions.
    pub(crate) async fn filter_unsubscribe_all(
        &self,
        body: HttpResult<ReceivedBody>,
    ) -> Response<Outgoing> {
        let request = filter_request(body, |_| Ok(self.subscribed().topics(Under::Filter).clone()));
        self.end_filters(request).await
    }

    async fn end_filters(
        &self,
        request: HttpResult<(String, HttpResult<HashSet<Topic>>)>,
    ) -> Response<Outgoing> {
        let (request_id, topics) = match request {
            Ok(request) => request,
            Err(refused) => return filter_answer("", Err(refused)),
        };
        let outcome = match topics {
            Ok(topics) if self.node.filters_remotely() => self.unsubscribe_at_node(topics).await,
            Ok(topics) => match self.subscriptions.unsubscribe(Under::Filter, topics).await {
                Ok(true) => Ok(()),
                Ok(false) => Err(no_subscriptions()),
                Err(refused) => Err(refused),
            },
            Err(refused) => Err(refused),
        };
        filter_answer(&request_id, outcome)
    }

    /// `GET /filter/v2/subscriptions/{requestId}`: 404 when there are no subscriptions, here or at
    /// the other node.
    pub(crate) async fn filter_ping(&self, request_id: &str) -> Response<Outgoing> {
        if let Err(refused) = known_length(request_id) {
            return filter_answer("", Err(refused));
        }
        let known = !self.subscribed().topics(Under::Filter).is_empty();
        let outcome = match known {
            true if self.node.filters_remotely() => self.node.ping_filter().await.map_err(refusal),
            true => Ok(()),
            false => Err(no_subscriptions()),
        };
        filter_answer(request_id, outcome)
    }

    /// The topics of a request to subscribe: of a shard that is not served nothing would come.
    fn served_topics(&self, request: &FilterRequest<'_>) -> HttpResult<HashSet<Topic>> {
        let topics = self.filter_topics(request)?;
        let served = self.node.shards();
        match topics.iter().find(|topic| !served.contains(topic.shard())) {
            Some(topic) => Err(answer::bad(format!(
                "this node does not serve {}; it serves {}",
                self.node.topic_name(topic.shard()),
                self.node.served()
            ))),
            None => Ok(topics),
        }
    }

    fn filter_topics(&self, request: &FilterRequest<'_>) -> HttpResult<HashSet<Topic>> {
        let names = request.content_filters.as_ref().map_or(&[][..], |names| &names.0);
        if names.is_empty() {
            return Err(answer::bad(
                "contentFilters names no content topic; at least one is needed",
            ));
        }
        let most = self.node.settings.limits.filter.topics_per_request;
        if names.len() as u64 > most {
            return Err(answer::bad(format!(
                "contentFilters has {} entries; the request exceeds maximum content topics: {most}",
                names.len()
            )));
        }
        let pubsub_topic = request.pubsub_topic.as_ref().map(|topic| &*topic.0);
        names.iter().map(|name| self.content_topic(pubsub_topic, &name.0)).collect()
    }

    fn relay_topics(&self, body: &ReceivedBody, auto: bool) -> HttpResult<HashSet<Topic>> {
        let names: Names<'_> = body.json()?;
        debug_assert!(names.0.len() <= NAMES_MAX);
        let topic = |name: &Name<'_>| {
            if auto { self.content_topic(None, &name.0) } else { self.shard_topic(&name.0) }
        };
        names.0.iter().map(topic).collect()
    }

    fn shard_topic(&self, pubsub_topic: &str) -> HttpResult<Topic> {
        let shard = self.node.shard_of(pubsub_topic);
        shard.map(Topic::Shard).map_err(|rejected| answer::bad(rejected.to_string()))
    }

    fn content_topic(&self, pubsub_topic: Option<&str>, name: &str) -> HttpResult<Topic> {
        if name.is_empty() || name.len() > CONTENT_TOPIC_BYTES_MAX {
            let bytes = name.len();
            return Err(answer::bad(format!(
                "a content topic of {bytes} bytes: it has 1 to {CONTENT_TOPIC_BYTES_MAX}"
            )));
        }
        let shard = self.node.shard_named(pubsub_topic, name);
        shard
            .map(|shard| Topic::Content(shard, name.to_owned()))
            .map_err(|rejected| answer::bad(rejected.to_string()))
    }

    fn messages(&self, under: Under, wanted: impl Fn(&Topic) -> bool, name: &str) -> HttpResult {
        // The largest message must find room before anything is taken that could be lost.
        let largest = count(self.node.settings.limits.messages.message_bytes);
        let room = (largest + json_bytes_max(largest)) as u64;
        let room = self.responses.try_reserve(room.min(self.responses.cap_bytes()));
        let room = room.map_err(answer::no_room)?;
        let mut messages = VecDeque::new();
        {
            let subscribed = self.subscribed();
            let topics: Vec<&Topic> =
                subscribed.topics(under).iter().filter(|topic| wanted(topic)).collect();
            if topics.is_empty() {
                let name: String = name.chars().take(CONTENT_TOPIC_BYTES_MAX).collect();
                return Err(answer::not_found(format!(
                    "no subscription to {name}; subscribe first, then read its messages"
                )));
            }
            for topic in topics {
                messages.append(&mut self.node.subscribers.take(topic).unwrap_or_default());
            }
        }
        let list = List::new(room, MessageList { messages, state: State::Before });
        Ok(answer::answer(StatusCode::OK, "application/json", Outgoing::List(list)))
    }
}

/// The id of a request, and what `read` takes from it. Errors: the body is no request.
fn filter_request<T>(
    body: HttpResult<ReceivedBody>,
    read: impl FnOnce(&FilterRequest<'_>) -> T,
) -> HttpResult<(String, T)> {
    let body = body?;
    let request: FilterRequest<'_> = body.json()?;
    known_length(&request.request_id.0)?;
    Ok((request.request_id.0.to_string(), read(&request)))
}

fn known_length(request_id: &str) -> HttpResult<()> {
    let bytes = request_id.len();
    if bytes <= REQUEST_ID_BYTES_MAX {
        return Ok(());
    }
    Err(answer::bad(format!("requestId has {bytes} bytes, at most {REQUEST_ID_BYTES_MAX}")))
}

fn no_subscriptions() -> ErrorResponse {
    answer::not_found("this peer has no subscriptions to these topics")
}

/// `FilterSubscriptionResponse` of the specification.
fn filter_answer(request_id: &str, outcome: HttpResult<()>) -> Response<Outgoing> {
    let body = |text: &str| serde_json::json!({ "requestId": request_id, "statusDesc": text });
    match outcome {
        Ok(()) => {
            let body = Outgoing::short(body("OK").to_string());
            answer::answer(StatusCode::OK, "application/json", body)
        }
        Err(refused) => {
            let body = body(&refused.message);
            answer::refused_in_json(refused, &body)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Before,
    Within,
    After,
}

/// `RelayGetMessagesResponse` of the specification.
struct MessageList {
    messages: VecDeque<Message>,
    state: State,
}

impl Pieces for MessageList {
    fn next_bytes(&mut self) -> Option<usize> {
        match self.state {
            State::After => None,
            // The message read from the log, and its JSON.
            _ => Some(self.messages.front().map_or(0, read_bytes_max) + 2),
        }
    }

    fn write(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        match self.messages.pop_front() {
            Some(message) => {
                out.push(if self.state == State::Before { b'[' } else { b',' });
                self.state = State::Within;
                put_stored(&message, out)
            }
            None => {
                out.extend_from_slice(if self.state == State::Before { b"[]" } else { b"]" });
                self.state = State::After;
                Ok(())
            }
        }
    }
}

/// The most memory that [`put_stored`] takes.
pub(crate) fn read_bytes_max(message: &Message) -> usize {
    message.len() + json_bytes_max(message.len())
}

/// Reads a message from the log and appends its JSON.
pub(crate) fn put_stored(message: &Message, out: &mut Vec<u8>) -> io::Result<()> {
    // Under the rules of the time at which it was accepted.
    let message = WakuMessage::read(&message.read_all()?).map_err(io::Error::other)?;
    put_message(&message, out)
}
