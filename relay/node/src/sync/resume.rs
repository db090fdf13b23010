//! Store resume: a node that was away fetches what it missed from the store of another.
//!
//! A file in the data folder has the time up to which this node has what it could get; it moves on
//! while the node is connected. What came after it, before a start, while the machine was suspended
//! or the network lost, is fetched as soon as a node that keeps messages can be asked, the newest
//! messages first. Hashes are asked
//! for, and then the messages that are not here. The file moves on when all was fetched, so that a
//! node that is killed meanwhile begins again, and finds most of it here.
//!
//! Bounds: [`relay_limits::ClientLimits`]: `resume_hours`, `resume_bytes`, `fetched_per_second`;
//! [`HASHES_MAX`] hashes are looked at. What another store sends is untrusted: hashes are computed,
//! and only messages that were asked for are taken.
//!
//! The file is two lines: [`HEAD`], and nanoseconds since 1970.

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use protocol::{MessageHash, Text, WakuMessage, message_hash, store::Request};
use router::Shard;

use super::SECOND_NS;
use crate::{
    client::{ClientError, Remote},
    governor::WorkKind,
    node::Node,
};

/// First line of the file: its name and version.
const HEAD: &str = "thimble-relay online 1";
/// Most bytes of the file that are read.
const FILE_BYTES_MAX: u64 = 64;
/// Between two looks whether there is a gap.
const LOOK: Duration = Duration::from_secs(10);
/// Between two writes of the file, at least.
const WRITE: Duration = Duration::from_secs(60);
/// A running node that did not look for so long was suspended, or not connected.
const GAP_NS: i64 = 40 * SECOND_NS;
const _: () = assert!(GAP_NS > 2 * LOOK.as_nanos() as i64, "a look may be late");
/// Messages of a gap may have been on their way when it began.
const OVERLAP_NS: i64 = 20 * SECOND_NS;
/// After a failure it is tried again after this time, which doubles up to the next.
const PAUSE: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Hashes that one resume looks at.
const HASHES_MAX: usize = 1_000_000;
/// Entries of a page.
const PAGE: u64 = protocol::store::PAGE_MAX as u64;

/// What a resume did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ResumeReport {
    messages: u64,
    bytes: u64,
    hashes: usize,
    /// Whether a bound was met before the end.
    left_out: bool,
}

/// Fetches gaps for as long as the node runs.
pub(crate) async fn keep(node: Arc<Node>, path: PathBuf) {
    let mut since = match read(&path) {
        Ok(since) => since,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the time of the last stop is lost");
            None
        }
    };
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut written, mut pause, mut next) = (None::<Instant>, PAUSE, Instant::now());
    // A start ends a gap, however short it is.
    let mut starts = true;
    loop {
        look.tick().await;
        if Instant::now() < next || !is_online(&node).await {
            continue;
        }
        let now_ns = (node.clock)();
        let from_ns = gap(since, now_ns, starts, node.settings.limits.client.resume_hours);
        if let Some(from_ns) = from_ns {
            if node.watch.held_back(WorkKind::Pushes).is_some() {
                continue;
            }
            match fetch(&node, from_ns, now_ns).await {
                Ok(ResumeReport { messages, bytes, hashes, left_out }) => {
                    tracing::info!(messages, bytes, hashes, left_out, "missed messages are here");
                    (pause, written) = (PAUSE, None);
                }
                Err(error) => {
                    tracing::info!(%error, "missed messages are not here yet");
                    next = Instant::now() + pause;
                    pause = (pause * 2).min(PAUSE_MAX);
                    continue;
                }
            }
        }
        (since, starts) = (Some(now_ns), false);
        if written.is_none_or(|written| written.elapsed() >= WRITE) {
            written = Some(Instant::now());
            write(&path, now_ns).await;
        }
    }
}

/// Where the gap before `now_ns` begins, if there is one; there is when the node starts. Without a
/// time of the last stop it is as long as may be fetched.
fn gap(since: Option<i64>, now_ns: i64, starts: bool, resume_hours: u64) -> Option<i64> {
    let hours = i64::try_from(resume_hours).unwrap_or(i64::MAX);
    let oldest = now_ns.saturating_sub(hours.saturating_mul(3600 * SECOND_NS));
    let since = since.unwrap_or(oldest);
    let is_gap = starts || now_ns.saturating_sub(since) > GAP_NS;
    is_gap.then(|| since.min(now_ns).saturating_sub(OVERLAP_NS).max(oldest))
}

/// Whether messages reach this node.
async fn is_online(node: &Node) -> bool {
    let connected = node.connected_peers().await;
    connected.iter().any(|peer| peer.gossips || !node.settings.relay)
}

/// The time in the file, if there is one.
fn read(path: &Path) -> io::Result<Option<i64>> {
    use io::Read;
    let mut text = String::new();
    match std::fs::File::open(path) {
        Ok(file) => file.take(FILE_BYTES_MAX).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    parse(&text).map(Some).ok_or_else(|| io::Error::other("it is damaged"))
}

fn parse(text: &str) -> Option<i64> {
    let (head, time) = text.strip_suffix('\n')?.split_once('\n')?;
    (head == HEAD).then(|| time.parse().ok()).flatten()
}

fn encode(time_ns: i64) -> String {
    format!("{HEAD}\n{time_ns}\n")
}

async fn write(path: &Path, time_ns: i64) {
    let (target, text) = (path.to_owned(), encode(time_ns));
    let writing = move || disk::replace_file(&target, text.as_bytes(), disk::Readers::Owner);
    match tokio::task::spawn_blocking(writing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(path = %path.display(), %error, "a later start fetches more again");
        }
        // The runtime ends.
        Err(_) => {}
    }
}

/// Fetches the messages of a span of time, shard by shard.
async fn fetch(node: &Arc<Node>, from_ns: i64, to_ns: i64) -> Result<ResumeReport, ClientError> {
    let store = node.store_node().await?;
    let mut resume = Resume {
        node,
        store,
        from_ns,
        to_ns,
        bytes_max: node.settings.limits.client.resume_bytes,
        limit: PAGE,
        fetched: ResumeReport::default(),
    };
    for shard in node.shards().iter() {
        resume.shard(shard).await?;
    }
    Ok(resume.fetched)
}

struct Resume<'a> {
    node: &'a Arc<Node>,
    store: Remote,
    from_ns: i64,
    to_ns: i64,
    bytes_max: u64,
    /// Messages asked for at once: fewer where they are large.
    limit: u64,
    fetched: ResumeReport,
}

impl Resume<'_> {
    /// The hashes of a shard, page by page, and what of them is missing.
    async fn shard(&mut self, shard: Shard) -> Result<(), ClientError> {
        let mut request = Request {
            pubsub_topic: Some(Text::from(&*self.node.topic(shard))),
            time_start: Some(self.from_ns),
            time_end: Some(self.to_ns),
            limit: Some(PAGE),
            ..Request::default()
        };
        loop {
            let page = self.node.query_remotely(&self.store, request.clone()).await?;
            let hashes: Vec<[u8; 32]> =
                page.reply.entries.iter().map(|entry| entry.hash.0).collect();
            request.cursor = page.reply.cursor;
            drop(page);
            // An empty page ends it, with a cursor too: a store could lead on for ever.
            if hashes.is_empty() {
                return Ok(());
            }
            self.fetched.hashes += hashes.len();
            let span = (self.from_ns, self.to_ns);
            let missing = self.node.store.missing(hashes, span).await;
            let missing = missing.map_err(|error| ClientError::Refused {
                status: protocol::StatusCode::ServiceUnavailable,
                text: error.to_string(),
            })?;
            self.messages(shard, missing).await?;
            if self.fetched.bytes >= self.bytes_max || self.fetched.hashes >= HASHES_MAX {
                self.fetched.left_out = true;
                return Ok(());
            }
            if request.cursor.is_none() {
                return Ok(());
            }
        }
    }

    /// Fetches these messages, as many at a time as there is memory for.
    async fn messages(
        &mut self,
        shard: Shard,
        mut missing: Vec<[u8; 32]>,
    ) -> Result<(), ClientError> {
        while !missing.is_empty() && self.fetched.bytes < self.bytes_max {
            let some = missing.len().min(usize::try_from(self.limit).unwrap_or(1).max(1));
            let asked = missing.split_off(missing.len() - some);
            let request = Request {
                include_data: true,
                message_hashes: asked.iter().copied().map(MessageHash).collect(),
                limit: Some(some as u64),
                ..Request::default()
            };
            let page = match self.node.query_remotely(&self.store, request).await {
                // One of them alone has no room; it is found by asking for each.
                Err(ClientError::TooLong(_)) => {
                    if some > 1 {
                        missing.extend(asked);
                    } else {
                        self.fetched.left_out = true;
                    }
                    self.limit = 1;
                    continue;
                }
                page => page?,
            };
            let came: HashSet<[u8; 32]> =
                page.reply.entries.iter().map(|entry| entry.hash.0).collect();
            let rest: Vec<[u8; 32]> =
                asked.iter().filter(|hash| !came.contains(*hash)).copied().collect();
            // A page that ended early leaves some to be asked for again.
            if page.reply.cursor.is_some() && rest.len() < asked.len() {
                self.limit = (asked.len() - rest.len()) as u64;
                missing.extend(rest);
            } else {
                self.limit = (self.limit * 2).min(PAGE);
            }
            let mut held = page.held;
            for entry in page.reply.entries {
                let (Some(bytes), true) = (entry.message, asked.contains(&entry.hash.0)) else {
                    continue;
                };
                let length = bytes.len() as u64;
                let Some(share) = held.split(length.min(held.bytes())) else { continue };
                let Ok(message) = WakuMessage::decode(bytes.clone()) else { continue };
                let hash = message_hash(&self.node.topic(shard), &message);
                let time_ns = message.timestamp.unwrap_or_default();
                if hash != entry.hash || time_ns < self.from_ns || time_ns > self.to_ns {
                    continue;
                }
                self.node.sync.taking.take(1).await;
                match self.node.write_missing(shard, &message, bytes, share).await {
                    Ok(new) => {
                        self.fetched.messages += u64::from(new);
                        self.node.sync.taken.fetch_add(u64::from(new), Relaxed);
                        self.fetched.bytes += length;
                    }
                    Err(text) => {
                        return Err(ClientError::Refused {
                            status: protocol::StatusCode::ServiceUnavailable,
                            text,
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_what_lies_between_the_last_stop_and_now_within_the_hours() {
        let hour = 3600 * SECOND_NS;
        let now = 100 * hour;
        assert_eq!(gap(Some(now - GAP_NS), now, false, 6), None);
        assert_eq!(gap(Some(now - hour), now, false, 6), Some(now - hour - OVERLAP_NS));
        assert_eq!(gap(Some(now - 9 * hour), now, false, 6), Some(now - 6 * hour));
        assert_eq!(gap(None, now, true, 6), Some(now - 6 * hour));
        assert_eq!(gap(Some(now - 1), now, true, 6), Some(now - 1 - OVERLAP_NS));
        // A clock that was ahead.
        assert_eq!(gap(Some(now + hour), now, false, 6), None);
        assert_eq!(gap(Some(now + hour), now, true, 6), Some(now - OVERLAP_NS));
        assert_eq!(gap(None, now, true, u64::MAX), Some(now.saturating_sub(i64::MAX)));
    }

    // Promise: P8 - The file of the last time online keeps the bytes of its version.
    #[test]
    fn the_file_has_two_lines_and_nothing_else_is_read() {
        assert_eq!(encode(12_345), "thimble-relay online 1\n12345\n");
        assert_eq!(parse(&encode(12_345)), Some(12_345));
        for damaged in [
            "",
            "12345\n",
            "thimble-relay online 1\n12345",
            "thimble-relay online 2\n12345\n",
            "thimble-relay online 1\n12345\n\n",
            "thimble-relay online 1\nsoon\n",
        ] {
            assert_eq!(parse(damaged), None, "{damaged:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("online");
        assert_eq!(read(&path).unwrap(), None);
        std::fs::write(&path, encode(7)).unwrap();
        assert_eq!(read(&path).unwrap(), Some(7));
        std::fs::write(&path, [0xff; 100]).unwrap();
        assert!(read(&path).is_err());
    }
}
