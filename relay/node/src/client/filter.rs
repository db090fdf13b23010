//! Filter by another node: subscriptions of REST clients are kept there, and its pushes are put
//! into their queues.
//!
//! Bounds: subscriptions are those of [`crate::subscribers::Subscribers`], which has a maximum; a
//! push is taken from the filter node only, of subscribed topics only, one at a time per stream.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use libp2p::PeerId;
use protocol::{
    Text, WakuMessage,
    filter::{
        Action, CONTENT_TOPICS_PER_REQUEST_MAX, PUSH_BYTES_MAX, Push, REPLY_BYTES_MAX, Reply,
        Request, SUBSCRIBE_PROTOCOL,
    },
};
use router::{Peer, Shard};

use super::{
    ClientError, Remote,
    light_push::{refusal, request_id},
};
use crate::{
    network::{
        admission::WaitingFrames,
        offers::Offer,
        stream_slots::Stream,
        streams::{Frame, GOSSIP_TIMEOUT, Intake, ReadError, read_frame, skip},
    },
    node::Node,
    services::ServeOutcome,
    settings::count,
};

/// A content topic of a shard.
pub(crate) type Criterion = (Shard, Arc<str>);

/// What is subscribed to, and where.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions(Mutex<State>);

/// Pings after which everything is subscribed to again: a filter node may have forgotten a part.
const PINGS: u32 = 5;

/// The filter node, and the connection over which it was asked. One that restarted has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FilterLink {
    peer: PeerId,
    /// None: it was not connected, or a request failed.
    connection: Option<Peer>,
}

impl FilterLink {
    /// The same node, of which it is not known what it has.
    fn unsure(peer: PeerId) -> Self {
        Self { peer, connection: None }
    }

    /// Whether the node still has what it was asked for `before`.
    fn is_intact(self, before: Option<Self>) -> bool {
        self.connection.is_some() && before == Some(self)
    }
}

#[derive(Debug, Default)]
struct State {
    criteria: BTreeSet<Criterion>,
    /// The node that has them.
    at: Option<FilterLink>,
}

impl Subscriptions {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Criteria of an earlier process, which are subscribed to again.
    pub(crate) fn restore(&self, criteria: Vec<Criterion>) {
        self.lock().criteria.extend(criteria);
    }

    fn all(&self) -> (Vec<Criterion>, Option<FilterLink>) {
        let state = self.lock();
        (state.criteria.iter().cloned().collect(), state.at)
    }

    /// Adds criteria that a node is to have. Returns those that are new, and those that the node is
    /// asked for: all there are if another one, or none, had the others.
    fn add(&self, criteria: &[Criterion], at: FilterLink) -> (Vec<Criterion>, Vec<Criterion>) {
        let mut state = self.lock();
        let mut added = Vec::new();
        for one in criteria {
            if state.criteria.insert(one.clone()) {
                added.push(one.clone());
            }
        }
        let before = state.at.replace(at);
        let is_new = !at.is_intact(before);
        let asked =
            if is_new { state.criteria.iter().cloned().collect() } else { criteria.to_vec() };
        (added, asked)
    }

    /// Whether a node may push messages of a topic.
    fn takes(&self, peer: &PeerId, shard: Shard, content_topic: &str) -> bool {
        let state = self.lock();
        state.at.is_some_and(|at| at.peer == *peer)
            && state.criteria.contains(&(shard, Arc::from(content_topic)))
    }
}

impl Node {
    /// Whether subscriptions of REST clients are kept by another node.
    pub(crate) fn filters_remotely(&self) -> bool {
        !self.settings.relay || self.settings.service_nodes.filter.is_some()
    }

    /// Subscribes at the filter node.
    pub(crate) async fn subscribe_remotely(
        &self,
        criteria: &[Criterion],
    ) -> Result<(), ClientError> {
        let to = self.filter_node().await?;
        // Before the first message comes.
        let at = self.place_of(&to).await;
        let (added, asked) = self.client.filter.add(criteria, at);
        let subscribed = self.change(&to, Action::Subscribe, &asked).await;
        if subscribed.is_err() {
            let mut state = self.client.filter.lock();
            state.at = Some(FilterLink::unsure(to.peer));
            for one in &added {
                state.criteria.remove(one);
            }
        }
        subscribed
    }

    /// Unsubscribes there. What it does not know is not subscribed to either.
    pub(crate) async fn unsubscribe_remotely(
        &self,
        criteria: &[Criterion],
    ) -> Result<(), ClientError> {
        let is_last = {
            let mut state = self.client.filter.lock();
            for one in criteria {
                state.criteria.remove(one);
            }
            state.criteria.is_empty()
        };
        let to = self.filter_node().await?;
        let gone = if is_last {
            self.ask_filter(&to, Action::UnsubscribeAll, None, &[]).await
        } else {
            self.change(&to, Action::Unsubscribe, criteria).await
        };
        match gone {
            Err(ClientError::Refused { status: protocol::StatusCode::NotFound, .. }) => Ok(()),
            gone => gone,
        }
    }

    /// Whether the filter node still has the subscriptions.
    pub(crate) async fn ping_filter(&self) -> Result<(), ClientError> {
        let to = self.filter_node().await?;
        self.ask_filter(&to, Action::Ping, None, &[]).await
    }

    /// The node that has subscriptions, or the one that gets the first.
    async fn filter_node(&self) -> Result<Remote, ClientError> {
        let at = self.client.filter.lock().at;
        if self.settings.service_nodes.filter.is_none()
            && let Some(FilterLink { peer, .. }) = at
        {
            let connected = self.connected_peers().await;
            if connected.iter().any(|connected| connected.peer == peer) {
                return Ok(Remote { peer, address: None });
            }
        }
        self.service_node(Offer::Filter).await
    }

    async fn place_of(&self, to: &Remote) -> FilterLink {
        let connected = self.connected_peers().await;
        let connection = connected.iter().find(|connected| connected.peer == to.peer);
        FilterLink { peer: to.peer, connection: connection.map(|connected| connected.number) }
    }

    /// One request for each shard, and for as many topics as a request takes.
    async fn change(
        &self,
        to: &Remote,
        action: Action,
        criteria: &[Criterion],
    ) -> Result<(), ClientError> {
        let shards: BTreeSet<Shard> = criteria.iter().map(|(shard, _)| *shard).collect();
        for shard in shards {
            let topics: Vec<Text> = criteria
                .iter()
                .filter(|(of, _)| *of == shard)
                .map(|(_, topic)| Text::from(&**topic))
                .collect();
            for topics in topics.chunks(CONTENT_TOPICS_PER_REQUEST_MAX) {
                self.ask_filter(to, action, Some(shard), topics).await?;
            }
        }
        Ok(())
    }

    async fn ask_filter(
        &self,
        to: &Remote,
        action: Action,
        shard: Option<Shard>,
        topics: &[Text],
    ) -> Result<(), ClientError> {
        let request = Request {
            request_id: request_id(),
            action,
            pubsub_topic: shard.map(|shard| Text::from(&*self.topic(shard))),
            content_topics: topics.to_vec(),
        };
        let Frame { body, held: _held, .. } =
            self.exchange(to, SUBSCRIBE_PROTOCOL, &request.encode(), REPLY_BYTES_MAX).await?;
        let reply = Reply::decode(body)
            .map_err(|error| ClientError::Damaged { peer: to.peer, why: error.to_string() })?;
        if reply.status.is_success() {
            return Ok(());
        }
        let text = refusal(to, reply.status_text.as_ref());
        Err(ClientError::Refused { status: reply.status, text })
    }

    /// Subscribes to everything again if the filter node forgot it, restarted, or was replaced; or
    /// `anyway`.
    async fn renew_filter(&self, anyway: bool) {
        let (criteria, before) = self.client.filter.all();
        if criteria.is_empty() {
            return;
        }
        let to = match self.filter_node().await {
            Ok(to) => to,
            Err(error) => {
                tracing::debug!(%error, "subscriptions are not renewed");
                return;
            }
        };
        let at = self.place_of(&to).await;
        let known = !anyway
            && at.is_intact(before)
            && self.ask_filter(&to, Action::Ping, None, &[]).await.is_ok();
        if known {
            return;
        }
        // Its pushes are taken from now on.
        self.client.filter.lock().at = Some(FilterLink::unsure(to.peer));
        match self.change(&to, Action::Subscribe, &criteria).await {
            Ok(()) => {
                tracing::debug!(peer = %to.peer, "subscribed again");
                self.client.filter.lock().at = Some(at);
            }
            Err(error) => tracing::warn!(%error, "subscriptions are not renewed"),
        }
    }

    async fn take_push(&self, peer: &PeerId, frame: Frame) -> Result<(), String> {
        let Frame { body, held, arrived, admitted: _admitted } = frame;
        let push = Push::decode(body).map_err(|error| error.to_string())?;
        let message =
            WakuMessage::decode(push.message.clone()).map_err(|error| error.to_string())?;
        let content_topic = message.content_topic.as_str();
        let pubsub_topic = push.pubsub_topic.as_ref().map(|topic| topic.as_str());
        let shard =
            self.shard_for(pubsub_topic, content_topic).map_err(|error| error.to_string())?;
        if !self.client.filter.takes(peer, shard, content_topic) {
            return Err("it was not subscribed to there".into());
        }
        self.judge_fetched(shard, &message, &push.message, Some(arrived))
            .await
            .map_err(|error| error.to_string())?;
        // As of gossip: what is not kept now is not written again when another store sends it.
        let off_ns =
            message.timestamp.map(|at| at.abs_diff(self.arrival_near(at, arrived, Duration::MAX)));
        let on_the_clock = off_ns.is_some_and(|off| u128::from(off) <= self.clock_drift.as_nanos());
        let kept = self.settings.store && !message.is_ephemeral() && on_the_clock;
        let written = self
            .write_fetched(shard, &message, push.message.clone(), held, kept, true)
            .await
            .map_err(|error| error.to_string())?;
        if !written.known {
            self.subscribers.deliver(shard, content_topic, &written.message);
        }
        Ok(())
    }
}

/// Keeps the subscriptions at the filter node, for as long as the node runs.
pub(crate) async fn keep(node: Arc<Node>) {
    let seconds = node.settings.limits.client.filter_ping_seconds;
    let mut ping = tokio::time::interval(Duration::from_secs(seconds));
    ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut pings = 0;
    loop {
        ping.tick().await;
        pings = (pings + 1) % PINGS;
        node.renew_filter(pings == 0).await;
    }
}

/// Takes pushes of the filter node: one on a stream, or one after the other.
pub(crate) async fn serve(node: Arc<Node>, peer: PeerId, mut stream: Stream) -> ServeOutcome {
    let bytes_max = PUSH_BYTES_MAX.min(count(node.settings.limits.messages.frame_bytes));
    // As for gossip, frames are not refused.
    let waiting = WaitingFrames::default();
    loop {
        let intake = Intake::new(&node, &waiting, GOSSIP_TIMEOUT);
        match read_frame(&mut stream, bytes_max, &intake).await {
            Ok(Some(frame)) => {
                if let Err(why) = node.take_push(&peer, frame).await {
                    tracing::debug!(%peer, why, "a push was not taken");
                }
            }
            // The filter node may take larger messages than this node.
            Err(ReadError::TooLong { bytes, .. }) if bytes <= PUSH_BYTES_MAX => {
                if skip(&mut stream, bytes, &mut Vec::new()).await.is_err() {
                    return Ok(());
                }
            }
            Err(error @ (ReadError::Frame(_) | ReadError::TooLong { .. })) => {
                return Err(error.to_string());
            }
            // The stream alone.
            Ok(None)
            | Err(
                ReadError::Io(_)
                | ReadError::Torn
                | ReadError::Slow
                | ReadError::Full(_)
                | ReadError::Busy(_),
            ) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushes_are_taken_of_the_filter_node_and_of_subscribed_topics_only() {
        let (filter, other) = (PeerId::random(), PeerId::random());
        let subscriptions = Subscriptions::default();
        assert!(!subscriptions.takes(&filter, 1, "/a/1/b/c"));
        {
            let mut state = subscriptions.lock();
            state.at = Some(FilterLink::unsure(filter));
            state.criteria.insert((1, Arc::from("/a/1/b/c")));
        }
        assert!(subscriptions.takes(&filter, 1, "/a/1/b/c"));
        assert!(!subscriptions.takes(&other, 1, "/a/1/b/c"));
        assert!(!subscriptions.takes(&filter, 2, "/a/1/b/c"));
        assert!(!subscriptions.takes(&filter, 1, "/a/1/b/d"));
    }

    #[test]
    fn another_filter_node_is_asked_for_everything_and_what_was_there_is_not_new() {
        let place = |peer| FilterLink { peer, connection: Some(Peer(1)) };
        let (one, other) = (place(PeerId::random()), place(PeerId::random()));
        let (a, b) = ((1, Arc::from("/a/1/b/c")), (2, Arc::from("/a/1/b/d")));
        let subscriptions = Subscriptions::default();
        let first: Vec<Criterion> = vec![a];
        assert_eq!(subscriptions.add(&first, one), (first.clone(), first.clone()));
        assert_eq!(subscriptions.add(&first, one), (Vec::new(), first.clone()));
        let second: Vec<Criterion> = vec![b];
        let all = [first, second.clone()].concat();
        assert_eq!(subscriptions.add(&second, other), (second.clone(), all.clone()));
        // One that restarted, or may have, is another.
        assert_eq!(subscriptions.add(&second, other), (Vec::new(), second.clone()));
        for again in [
            FilterLink { connection: Some(Peer(2)), ..other },
            FilterLink::unsure(other.peer),
            other,
        ] {
            assert_eq!(subscriptions.add(&second, again), (Vec::new(), all.clone()));
        }
    }
}
