//! Changes of the topics that clients subscribed to: one at a time, each written to the file before
//! it takes effect.
//!
//! A change runs in a task of its own: a client that goes away in the middle of it must neither
//! leave the file ahead of what is subscribed, nor have the next change write the file at the same
//! time. Bounds: the memory of the topics, the number of shards, and the pool `responses` for the
//! content of the file.

use std::{
    collections::HashSet,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use accounting::Pool;
use anyhow::Result;
use http_server::ErrorResponse;
use hyper::StatusCode;

use super::{
    answer,
    client_topics::{self, Change, ClientTopics, Under, check_shards},
    service::HttpResult,
    subscriptions::criteria,
};
use crate::{config::Config, node::Node, subscribers::Topic};

/// The topics and their file. One per node.
pub(crate) struct Subscriptions {
    node: Arc<Node>,
    topics: Mutex<ClientTopics>,
    /// Held by a change, from the check of its room to its last effect.
    changing: tokio::sync::Mutex<()>,
    path: PathBuf,
    responses: Pool,
}

fn unavailable(why: impl Into<String>) -> ErrorResponse {
    answer::busy(StatusCode::SERVICE_UNAVAILABLE, why)
}

impl Subscriptions {
    /// Subscribes to the topics of the configuration and of the file. Errors: see
    /// [`ClientTopics::start`].
    pub(crate) fn start(node: Arc<Node>, config: &Config, responses: Pool) -> Result<Arc<Self>> {
        let topics = ClientTopics::start(&node, config)?;
        if node.filters_remotely() {
            node.client.filter.restore(criteria(topics.topics(Under::Filter)));
        }
        Ok(Arc::new(Self {
            topics: Mutex::new(topics),
            changing: tokio::sync::Mutex::default(),
            path: client_topics::path(&config.data_dir),
            responses,
            node,
        }))
    }

    /// The topics, for as long as the guard lives: never across a wait.
    pub(crate) fn topics(&self) -> MutexGuard<'_, ClientTopics> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to all of the topics, or to none. Errors: 503 where there is no room for them, or
    /// the file cannot be written.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        under: Under,
        topics: HashSet<Topic>,
    ) -> HttpResult<()> {
        let this = self.clone();
        let changing = tokio::spawn(async move { this.subscribe_inner(under, topics).await });
        changing.await.unwrap_or_else(|_| Err(ending()))
    }

    /// Whether any of them was subscribed to. Errors: as above.
    pub(crate) async fn unsubscribe(
        self: &Arc<Self>,
        under: Under,
        topics: HashSet<Topic>,
    ) -> HttpResult<bool> {
        let this = self.clone();
        let changing = tokio::spawn(async move { this.unsubscribe_inner(under, topics).await });
        changing.await.unwrap_or_else(|_| Err(ending()))
    }

    async fn subscribe_inner(&self, under: Under, topics: HashSet<Topic>) -> HttpResult<()> {
        let _changing = self.changing.lock().await;
        let added = self.those(topics, |topic, known| !known.contains(topic), under);
        if added.is_empty() {
            return Ok(());
        }
        let room = self.node.subscribers.has_room(added.iter());
        room.map_err(|full| unavailable(full.to_string()))?;
        let removed = HashSet::new();
        self.save(Change { under, added: &added, removed: &removed }).await?;
        let mut all = self.topics();
        for topic in added {
            // Only one change is made at a time: there is room still.
            let subscribed = self.node.subscribers.subscribe(topic.clone());
            subscribed.map_err(|full| unavailable(full.to_string()))?;
            all.topics_mut(under).insert(topic);
        }
        self.node.serve_shards(all.shards());
        Ok(())
    }

    async fn unsubscribe_inner(&self, under: Under, topics: HashSet<Topic>) -> HttpResult<bool> {
        let _changing = self.changing.lock().await;
        let removed = self.those(topics, |topic, known| known.contains(topic), under);
        if removed.is_empty() {
            return Ok(false);
        }
        let added = HashSet::new();
        self.save(Change { under, added: &added, removed: &removed }).await?;
        let mut all = self.topics();
        for topic in &removed {
            all.topics_mut(under).remove(topic);
            if !all.contains(topic) {
                self.node.subscribers.unsubscribe(topic);
            }
        }
        self.node.serve_shards(all.shards());
        Ok(true)
    }

    /// The topics that `wanted` selects, from those that are subscribed to.
    fn those(
        &self,
        topics: HashSet<Topic>,
        wanted: impl Fn(&Topic, &HashSet<Topic>) -> bool,
        under: Under,
    ) -> HashSet<Topic> {
        let all = self.topics();
        let known = all.topics(under);
        topics.into_iter().filter(|topic| wanted(topic, known)).collect()
    }

    /// Writes the file with a change that is about to be made. Errors: 503 with the reason; the old
    /// file stays.
    async fn save(&self, change: Change<'_>) -> HttpResult<()> {
        let (bytes, _held) = {
            let all = self.topics();
            let shards = all.shards_after(change);
            check_shards(&self.node, &shards).map_err(|most| {
                unavailable(format!(
                    "{} shards would be served, gossip.topics is {most}; unsubscribe from some",
                    shards.len()
                ))
            })?;
            let room = all.encoded_bytes_max(change) as u64;
            let room = room.min(self.responses.cap_bytes());
            let held = self.responses.try_reserve(room).map_err(answer::no_room)?;
            let encoded = all.encode_after(self.node.settings.cluster, change);
            (encoded.map_err(|error| unavailable(error.to_string()))?, held)
        };
        let path = self.path.clone();
        let write = move || disk::replace_file(&path, &bytes, disk::Readers::Owner);
        let written = tokio::task::spawn_blocking(write).await.map_err(io::Error::other);
        written.and_then(|written| written).map_err(|error| {
            unavailable(format!(
                "the subscriptions cannot be written to {}, so a restart would lose them: {error}",
                self.path.display()
            ))
        })
    }
}

/// The task of a change is gone, because the node ends.
fn ending() -> ErrorResponse {
    unavailable("this node is stopping")
}
