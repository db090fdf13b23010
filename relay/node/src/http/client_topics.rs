//! Topics that clients of this interface subscribed to, and the file that has them over a restart.
//!
//! The configured shards and content topics are subscribed at every start, as for a client of
//! `/relay/v1`. What clients added to them is in the file `subscriptions.json` of the data folder;
//! it is written before a change takes effect, and so before it is answered. A client can end the
//! subscription to a configured topic until the next start.
//!
//! Format, version 1: `{"version": 1, "cluster": 16, "relay": [TOPIC], "filter": [TOPIC]}`, topics
//! in order; a topic is `{"shard": 5}` or `{"shard": 5, "contentTopic": "/a/1/b/proto"}`. A file of
//! another cluster is not used, and a damaged one is set aside. Bounds: [`FILE_PARTS`].

use std::{
    collections::HashSet,
    fs::File,
    io::{self, ErrorKind, Read as _},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use protocol::topic::CONTENT_TOPIC_BYTES_MAX;
use router::{Shard, Topics};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{config::Config, node::Node, subscribers::Topic};

/// In the data folder.
const FILE: &str = "subscriptions.json";
/// A damaged one.
const DAMAGED: &str = "subscriptions.damaged";
const VERSION: u64 = 1;
/// The longest file, in `http.cache_bytes`: a name is in it twice at most, each byte of it written
/// as six at most, and is charged more than once.
const FILE_PARTS: u64 = 8;
/// Bytes of the file in addition to its topics, and of a topic in addition to its name.
const FRAME_BYTES: usize = 128;
const TOPIC_BYTES: usize = 48;
/// Bytes of JSON for one byte of a name, at most.
const JSON_BYTES_PER_BYTE: usize = 6;

/// Kinds of subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Under {
    Relay,
    Filter,
}

/// Subscriptions and their topics; every topic in it has a queue in the node's subscribers, and
/// every shard of a topic under relay is served.
#[derive(Debug, Default)]
pub(crate) struct ClientTopics {
    relay: HashSet<Topic>,
    filter: HashSet<Topic>,
    /// Those of the configuration, which are not in the file.
    configured: HashSet<Topic>,
}

#[derive(Debug, Error)]
enum DamagedFile {
    #[error("it cannot be read as version {VERSION}: {0}")]
    Json(#[from] serde_json::Error),
    #[error("a topic of shard {0}, which no cluster has")]
    Shard(Shard),
    #[error("a content topic of {0} bytes, which has 1 to {CONTENT_TOPIC_BYTES_MAX}")]
    ContentTopic(usize),
}

/// What decides whether the rest of a file can be read.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubscriptionFile {
    version: u64,
    cluster: u16,
    relay: Vec<SavedTopic>,
    filter: Vec<SavedTopic>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SavedTopic {
    shard: Shard,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_topic: Option<String>,
}

impl From<&Topic> for SavedTopic {
    fn from(topic: &Topic) -> Self {
        match topic {
            Topic::Shard(shard) => Self { shard: *shard, content_topic: None },
            Topic::Content(shard, name) => {
                Self { shard: *shard, content_topic: Some(name.clone()) }
            }
        }
    }
}

impl TryFrom<SavedTopic> for Topic {
    type Error = DamagedFile;

    fn try_from(saved: SavedTopic) -> Result<Self, DamagedFile> {
        if saved.shard >= router::SHARDS {
            return Err(DamagedFile::Shard(saved.shard));
        }
        match saved.content_topic {
            None => Ok(Self::Shard(saved.shard)),
            Some(name) if name.is_empty() || name.len() > CONTENT_TOPIC_BYTES_MAX => {
                Err(DamagedFile::ContentTopic(name.len()))
            }
            Some(name) => Ok(Self::Content(saved.shard, name)),
        }
    }
}

/// A change of the subscriptions of one kind: `added` have none yet, `removed` have one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) under: Under,
    pub(crate) added: &'a HashSet<Topic>,
    pub(crate) removed: &'a HashSet<Topic>,
}

impl ClientTopics {
    /// Subscribes to the topics of the configuration and to those of the file. Errors: no memory
    /// for the configured ones; the file cannot be read, or is of a later version.
    pub(crate) fn start(node: &Node, config: &Config) -> Result<Self> {
        let mut topics = Self { configured: configured(node, config)?, ..Self::default() };
        for topic in &topics.configured {
            node.subscribers.subscribe(topic.clone()).context("the configured topics")?;
        }
        topics.relay = topics.configured.clone();
        if let Some(saved) = load(config)? {
            for (under, saved) in [(Under::Relay, saved.relay), (Under::Filter, saved.filter)] {
                topics.resume(node, under, saved);
            }
        }
        node.serve_shards(topics.shards());
        Ok(topics)
    }

    /// Subscribes again to topics of the file, as far as there is room.
    fn resume(&mut self, node: &Node, under: Under, saved: HashSet<Topic>) {
        for topic in saved {
            let mut shards = self.shards();
            shards.insert(topic.shard());
            let has_place = under == Under::Filter || check_shards(node, &shards).is_ok();
            if has_place && node.subscribers.subscribe(topic.clone()).is_ok() {
                self.topics_mut(under).insert(topic);
            } else {
                tracing::warn!(
                    ?topic,
                    "a client's subscription does not fit http.cache_bytes or gossip.topics any \
                     more, and ended"
                );
            }
        }
    }

    /// Topics with a queue.
    pub(crate) fn count(&self) -> usize {
        self.relay.union(&self.filter).count()
    }

    /// Whether the topic has a queue.
    pub(crate) fn contains(&self, topic: &Topic) -> bool {
        self.relay.contains(topic) || self.filter.contains(topic)
    }

    pub(crate) fn topics(&self, under: Under) -> &HashSet<Topic> {
        match under {
            Under::Relay => &self.relay,
            Under::Filter => &self.filter,
        }
    }

    pub(crate) fn topics_mut(&mut self, under: Under) -> &mut HashSet<Topic> {
        match under {
            Under::Relay => &mut self.relay,
            Under::Filter => &mut self.filter,
        }
    }

    /// Shards that are served: those of the topics under relay.
    pub(crate) fn shards(&self) -> Topics {
        shards_of(self.relay.iter())
    }

    /// Topics of a kind after a change.
    fn after<'a>(&'a self, under: Under, change: Change<'a>) -> impl Iterator<Item = &'a Topic> {
        let of_kind = under == change.under;
        let left = move |topic: &&Topic| !(of_kind && change.removed.contains(*topic));
        let added = change.added.iter().filter(move |_| of_kind);
        self.topics(under).iter().filter(left).chain(added)
    }

    /// Shards that are served after a change.
    pub(crate) fn shards_after(&self, change: Change<'_>) -> Topics {
        shards_of(self.after(Under::Relay, change))
    }

    /// The most bytes that [`Self::encode_after`] takes.
    pub(crate) fn encoded_bytes_max(&self, change: Change<'_>) -> usize {
        let bytes = |topic: &Topic| match topic {
            Topic::Shard(_) => TOPIC_BYTES,
            Topic::Content(_, name) => TOPIC_BYTES + name.len() * JSON_BYTES_PER_BYTE,
        };
        let all = [Under::Relay, Under::Filter]
            .into_iter()
            .flat_map(|under| self.after(under, change).map(bytes));
        FRAME_BYTES + all.sum::<usize>()
    }

    /// The content of the file after a change.
    pub(crate) fn encode_after(&self, cluster: u16, change: Change<'_>) -> io::Result<Vec<u8>> {
        let saved = |under: Under| {
            let mut topics: Vec<&Topic> = self
                .after(under, change)
                .filter(|topic| under == Under::Filter || !self.configured.contains(*topic))
                .collect();
            topics.sort_unstable();
            topics.into_iter().map(SavedTopic::from).collect()
        };
        let saved = SubscriptionFile {
            version: VERSION,
            cluster,
            relay: saved(Under::Relay),
            filter: saved(Under::Filter),
        };
        serde_json::to_vec(&saved).map_err(io::Error::other)
    }
}

fn shards_of<'a>(topics: impl Iterator<Item = &'a Topic>) -> Topics {
    let mut shards = Topics::default();
    for topic in topics {
        shards.insert(topic.shard());
    }
    shards
}

/// Errors: more shards than this node may serve, and how many it may.
pub(crate) fn check_shards(node: &Node, shards: &Topics) -> Result<(), u64> {
    let most = node.settings.limits.gossip.topics;
    if shards.len() as u64 > most { Err(most) } else { Ok(()) }
}

/// Shards and content topics of the configuration.
fn configured(node: &Node, config: &Config) -> Result<HashSet<Topic>> {
    let mut topics: HashSet<Topic> = config.shards.iter().copied().map(Topic::Shard).collect();
    for name in &config.content_topics {
        topics.insert(Topic::Content(node.shard_named(None, name)?, name.clone()));
    }
    Ok(topics)
}

/// Where the file is.
pub(crate) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join(FILE)
}

struct SavedTopics {
    relay: HashSet<Topic>,
    filter: HashSet<Topic>,
}

/// The topics of the file; `None` without one that is of use.
fn load(config: &Config) -> Result<Option<SavedTopics>> {
    let path = path(&config.data_dir);
    let bytes_max = config.limits.http.cache_bytes.saturating_mul(FILE_PARTS);
    let mut bytes = Vec::new();
    let read = match File::open(&path) {
        Ok(file) => file.take(bytes_max).read_to_end(&mut bytes),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error),
    };
    read.with_context(|| format!("reading {}", path.display()))?;
    if let Ok(Version { version }) = serde_json::from_slice(&bytes)
        && version > VERSION
    {
        bail!(
            "{} is of version {version}, this program reads version {VERSION}: use a later one, or \
             remove the file",
            path.display()
        );
    }
    match decode(&bytes, config.cluster) {
        Ok(saved) => Ok(saved),
        Err(error) => {
            tracing::error!(
                path = %path.display(),
                %error,
                "subscriptions of clients are damaged and set aside as {DAMAGED}; clients must \
                 subscribe again"
            );
            let aside = path.with_file_name(DAMAGED);
            disk::if_there(std::fs::rename(&path, aside))
                .with_context(|| format!("setting {} aside", path.display()))?;
            Ok(None)
        }
    }
}

/// `None` for those of another cluster.
fn decode(bytes: &[u8], cluster: u16) -> Result<Option<SavedTopics>, DamagedFile> {
    let saved: SubscriptionFile = serde_json::from_slice(bytes)?;
    let topics = |saved: Vec<SavedTopic>| -> Result<HashSet<Topic>, DamagedFile> {
        saved.into_iter().map(Topic::try_from).collect()
    };
    let topics = SavedTopics { relay: topics(saved.relay)?, filter: topics(saved.filter)? };
    if saved.cluster != cluster {
        tracing::warn!(
            saved = saved.cluster,
            cluster,
            "subscriptions of clients are of another cluster, and are not used"
        );
        return Ok(None);
    }
    Ok(Some(topics))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content(shard: Shard, name: &str) -> Topic {
        Topic::Content(shard, name.to_owned())
    }

    fn none() -> HashSet<Topic> {
        HashSet::new()
    }

    fn topics() -> ClientTopics {
        ClientTopics {
            relay: [Topic::Shard(1), Topic::Shard(700), content(5, "/a/1/b/proto")].into(),
            filter: [content(1, "/ü/1/\"/proto"), content(1, "/a/1/b/proto")].into(),
            configured: [Topic::Shard(1)].into(),
        }
    }

    #[test]
    fn bytes_of_the_file_are_pinned() {
        let added: HashSet<Topic> = [Topic::Shard(9)].into();
        let removed: HashSet<Topic> = [Topic::Shard(700)].into();
        let change = Change { under: Under::Relay, added: &added, removed: &removed };
        let bytes = topics().encode_after(16, change).unwrap();
        let text = [
            r#"{"version":1,"cluster":16,"#,
            r#""relay":[{"shard":9},{"shard":5,"contentTopic":"/a/1/b/proto"}],"#,
            r#""filter":[{"shard":1,"contentTopic":"/a/1/b/proto"},"#,
            r#"{"shard":1,"contentTopic":"/ü/1/\"/proto"}]}"#,
        ];
        let found = String::from_utf8(bytes).unwrap();
        assert_eq!(found, text.concat(), "raise VERSION for another format");
    }

    #[test]
    fn shards_follow_topics_under_relay() {
        let (topics, none) = (topics(), none());
        let shards = |change| topics.shards_after(change).iter().collect::<Vec<_>>();
        let change = |under| Change { under, added: &none, removed: &none };
        assert_eq!(shards(change(Under::Relay)), [1, 5, 700]);
        let removed: HashSet<Topic> = [Topic::Shard(1), Topic::Shard(5)].into();
        // A content topic keeps its shard, and what is filtered does not.
        assert_eq!(shards(Change { removed: &removed, ..change(Under::Relay) }), [5, 700]);
        let added: HashSet<Topic> = [content(8, "/x/1/y/proto")].into();
        assert_eq!(shards(Change { added: &added, ..change(Under::Filter) }), [1, 5, 700]);
        assert_eq!(shards(Change { added: &added, ..change(Under::Relay) }), [1, 5, 8, 700]);
    }

    #[test]
    fn damaged_files_are_refused_with_the_reason() {
        let file = |relay: &str| {
            format!("{{\"version\":1,\"cluster\":0,\"relay\":[{relay}],\"filter\":[]}}")
        };
        let error = |text: &str| decode(text.as_bytes(), 0).err().unwrap().to_string();
        assert!(decode(file("{\"shard\":1023}").as_bytes(), 0).unwrap().is_some());
        assert!(decode(file("{\"shard\":1}").as_bytes(), 1).unwrap().is_none());
        assert!(error(&file("{\"shard\":1024}")).contains("shard 1024"));
        let long = "x".repeat(257);
        for (name, bytes) in [("", "0 bytes"), (&*long, "257 bytes")] {
            let text = file(&format!("{{\"shard\":1,\"contentTopic\":\"{name}\"}}"));
            assert!(error(&text).contains(bytes), "{name}");
        }
        for text in ["", "{}", "[]", &file("{\"shard\":1,\"more\":2}"), &file("{\"shard\":-1}")] {
            assert!(error(text).contains("version 1"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again_and_has_its_bound(
            names in proptest::collection::hash_set((0_u16..1024, "\\PC{1,60}"), 0..20),
            split in 0_usize..20,
        ) {
            let all: Vec<Topic> =
                names.iter().map(|(shard, name)| content(*shard, name)).collect();
            let (relay, filter) = all.split_at(split.min(all.len()));
            let topics = ClientTopics {
                relay: relay.iter().cloned().collect(),
                filter: filter.iter().cloned().collect(),
                configured: HashSet::new(),
            };
            let none = none();
            let change = Change { under: Under::Relay, added: &none, removed: &none };
            let bytes = topics.encode_after(2, change).unwrap();
            prop_assert!(bytes.len() <= topics.encoded_bytes_max(change));
            let saved = decode(&bytes, 2).unwrap().unwrap();
            prop_assert_eq!((&saved.relay, &saved.filter), (&topics.relay, &topics.filter));
        }

        /// Any bytes are an answer.
        #[test]
        fn any_file_is_answered(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes, 0);
        }
    }
}
