//! Subscriptions of HTTP clients, under relay and under filter, and reading their messages.
//!
//! This node is its own filter service, so both are references that wait in
//! [`crate::subscribers::Subscribers`]. A topic has one queue: if it is subscribed under both
//! names, the first reader takes the queued messages, and the queue stays until both have
//! unsubscribed. Bounds: the topics there may be (`http.subscriptions`, 503), the references of
//! each (the oldest leave), and [`NAMES_MAX`] names in a request. A message is read from the log
//! when its reader takes it.

use std::{
    collections::{HashSet, VecDeque},
    io,
    sync::{MutexGuard, PoisonError},
};

use http_server::{ErrorResponse, List, Outgoing, Pieces};
use hyper::{Response, StatusCode};
use protocol::{WakuMessage, topic::CONTENT_TOPIC_BYTES_MAX};
use serde::Deserialize;
use store::Message;

use super::{
    answer,
    message::{NAMES_MAX, Name, Names, json_bytes_max, present, put_message},
    service::{HttpResult, ReceivedBody, Service},
};
use crate::subscribers::Topic;

/// Longest request id that is answered with.
const REQUEST_ID_BYTES_MAX: usize = protocol::REQUEST_ID_BYTES_MAX;

/// Subscribers and their topics; every topic in it is in the node's subscribers.
#[derive(Debug, Default)]
pub(crate) struct ClientTopics {
    relay: HashSet<Topic>,
    filter: HashSet<Topic>,
}

impl ClientTopics {
    /// Topics with a queue.
    pub(crate) fn count(&self) -> usize {
        self.relay.union(&self.filter).count()
    }

    fn topics_mut(&mut self, under: Under) -> &mut HashSet<Topic> {
        match under {
            Under::Relay => &mut self.relay,
            Under::Filter => &mut self.filter,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    Relay,
    Filter,
}

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
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `POST /relay/v1/subscriptions` and `/relay/v1/auto/subscriptions`.
    pub(crate) fn relay_subscribe(&self, body: &ReceivedBody, auto: bool) -> HttpResult {
        let topics = self.relay_topics(body, auto)?;
        self.subscribe(Under::Relay, topics)?;
        Ok(answer::text("OK"))
    }

    /// `DELETE` of the same. Topics without a subscription are left alone.
    pub(crate) fn relay_unsubscribe(&self, body: &ReceivedBody, auto: bool) -> HttpResult {
        let topics = self.relay_topics(body, auto)?;
        self.unsubscribe(Under::Relay, &topics);
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
    pub(crate) fn filter_subscribe(
        &self,
        body: HttpResult<ReceivedBody>,
        modify: bool,
    ) -> Response<Outgoing> {
        self.filter(body, |request| {
            if modify && self.subscribed().filter.is_empty() {
                return Err(no_subscriptions());
            }
            self.subscribe(Under::Filter, self.filter_topics(request)?)
        })
    }

    /// `DELETE /filter/v2/subscriptions`: 404 when none of the topics was subscribed to.
    pub(crate) fn filter_unsubscribe(&self, body: HttpResult<ReceivedBody>) -> Response<Outgoing> {
        self.filter(body, |request| {
            let topics = self.filter_topics(request)?;
            if self.unsubscribe(Under::Filter, &topics) { Ok(()) } else { Err(no_subscriptions()) }
        })
    }

    /// `DELETE /filter/v2/subscriptions/all`: 404 when there are no subscriptions.
    pub(crate) fn filter_unsubscribe_all(
        &self,
        body: HttpResult<ReceivedBody>,
    ) -> Response<Outgoing> {
        self.filter(body, |_| {
            let all: HashSet<Topic> = self.subscribed().filter.iter().cloned().collect();
            if self.unsubscribe(Under::Filter, &all) { Ok(()) } else { Err(no_subscriptions()) }
        })
    }

    /// `GET /filter/v2/subscriptions/{requestId}`: 404 when there are no subscriptions.
    pub(crate) fn filter_ping(&self, request_id: &str) -> Response<Outgoing> {
        if let Err(refused) = known_length(request_id) {
            return filter_answer("", Err(refused));
        }
        let known = !self.subscribed().filter.is_empty();
        filter_answer(request_id, if known { Ok(()) } else { Err(no_subscriptions()) })
    }

    fn filter(
        &self,
        body: HttpResult<ReceivedBody>,
        serve: impl FnOnce(&FilterRequest<'_>) -> HttpResult<()>,
    ) -> Response<Outgoing> {
        let answered = body.and_then(|body| {
            let request: FilterRequest<'_> = body.json()?;
            known_length(&request.request_id.0)?;
            Ok(filter_answer(&request.request_id.0, serve(&request)))
        });
        answered.unwrap_or_else(|refused| filter_answer("", Err(refused)))
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
        let shard = self.node.shard_for(Some(pubsub_topic), "");
        shard.map(Topic::Shard).map_err(|rejected| answer::bad(rejected.to_string()))
    }

    fn content_topic(&self, pubsub_topic: Option<&str>, name: &str) -> HttpResult<Topic> {
        if name.is_empty() || name.len() > CONTENT_TOPIC_BYTES_MAX {
            let bytes = name.len();
            return Err(answer::bad(format!(
                "a content topic of {bytes} bytes: it has 1 to {CONTENT_TOPIC_BYTES_MAX}"
            )));
        }
        let shard = self.node.shard_for(pubsub_topic, name);
        shard
            .map(|shard| Topic::Content(shard, name.to_owned()))
            .map_err(|rejected| answer::bad(rejected.to_string()))
    }

    /// All of the topics, or none.
    fn subscribe(&self, under: Under, topics: HashSet<Topic>) -> HttpResult<()> {
        let mut subscribed = self.subscribed();
        let mut added = Vec::new();
        for topic in topics {
            if subscribed.topics_mut(under).contains(&topic) {
                continue;
            }
            if let Err(most) = self.node.subscribers.subscribe(topic.clone()) {
                for topic in added {
                    subscribed.topics_mut(under).remove(&topic);
                    self.leave(&subscribed, &topic);
                }
                return Err(answer::busy(
                    StatusCode::SERVICE_UNAVAILABLE,
                    format!(
                        "http.subscriptions = {most} topics are subscribed to, the most this node \
                         keeps; unsubscribe from some"
                    ),
                ));
            }
            subscribed.topics_mut(under).insert(topic.clone());
            added.push(topic);
        }
        Ok(())
    }

    /// Whether any of them was subscribed to.
    fn unsubscribe(&self, under: Under, topics: &HashSet<Topic>) -> bool {
        let mut subscribed = self.subscribed();
        let mut any = false;
        for topic in topics {
            if subscribed.topics_mut(under).remove(topic) {
                any = true;
                self.leave(&subscribed, topic);
            }
        }
        any
    }

    /// Drops the queue of a topic that no longer has a subscription.
    fn leave(&self, subscribed: &ClientTopics, topic: &Topic) {
        if !subscribed.relay.contains(topic) && !subscribed.filter.contains(topic) {
            self.node.subscribers.unsubscribe(topic);
        }
    }

    fn messages(&self, under: Under, wanted: impl Fn(&Topic) -> bool, name: &str) -> HttpResult {
        // The largest message must find room before anything is taken that could be lost.
        let largest = protocol::message::MESSAGE_BYTES_MAX;
        let room = (largest + json_bytes_max(largest)) as u64;
        let room = self.responses.try_reserve(room.min(self.responses.cap_bytes()));
        let room = room.map_err(answer::no_room)?;
        let mut messages = VecDeque::new();
        {
            let mut subscribed = self.subscribed();
            let topics: Vec<&Topic> =
                subscribed.topics_mut(under).iter().filter(|topic| wanted(topic)).collect();
            if topics.is_empty() {
                let name: String = name.chars().take(CONTENT_TOPIC_BYTES_MAX).collect();
                return Err(answer::not_found(format!(
                    "no subscription to {name}; subscribe first, then read its messages"
                )));
            }
            for topic in topics {
                let taken = self.node.subscribers.take(topic).unwrap_or_default();
                messages.extend(taken.into_iter().map(|(_, message)| message));
            }
        }
        let list = List::new(room, MessageList { messages, state: State::Before });
        Ok(answer::answer(StatusCode::OK, "application/json", Outgoing::List(list)))
    }
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
    let message = WakuMessage::decode(message.read_all()?).map_err(io::Error::other)?;
    put_message(&message, out)
}
