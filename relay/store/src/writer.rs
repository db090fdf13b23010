//! The one thread that appends: takes the waiting messages as a batch, writes it, answers, passes
//! it to the index.
//!
//! Bounds: a batch of [`BATCH_BYTES_MAX`] and [`BATCH_MESSAGES_MAX`]; the recent set of
//! [`crate::Config::recent_messages`]. A full disk or a failed write refuses the messages concerned
//! and nothing else. It never knows the meaning of a message.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use accounting::Reservation;
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{
    catalog::Partition,
    config::{Config, nanos},
    error::AppendError,
    index::Row,
    indexer::Event,
    message::{Message, RecordPosition, Segment},
    segment::{BATCH_BYTES_MAX, SegmentWriter, file_name, record_bytes},
    store::{AppendOutcome, Arrival, StoreState},
};

/// Messages of one batch.
const BATCH_MESSAGES_MAX: usize = 1024;
/// This fraction of the reserve, one part in four, stays free of messages that are not kept, too.
const TRANSIT_RESERVE_OF: u64 = 4;
/// How long a message that arrived is remembered.
const RECENT_NS: i64 = 120 * 1_000_000_000;

pub(crate) struct Pending {
    pub(crate) arrival: Arrival,
    pub(crate) message: Bytes,
    pub(crate) held: Reservation,
    pub(crate) answer: oneshot::Sender<Result<AppendOutcome, AppendError>>,
}

/// A message in the buffer of a segment.
struct BufferedRecord {
    arrival: Arrival,
    place: RecordPosition,
    answer: oneshot::Sender<Result<AppendOutcome, AppendError>>,
    held: Reservation,
}

pub(crate) struct Writer {
    shared: Arc<StoreState>,
    kept: Lane,
    transit: Lane,
    recent: Recent,
    /// Free bytes of the file system as of this batch, less what it took since; unknown of some.
    free_bytes: Option<u64>,
    /// The current partition was checked in this batch.
    looked: bool,
    /// Time of this batch, by both clocks.
    now: Now,
}

/// A moment by both clocks ([`crate::Clock`]).
#[derive(Clone, Copy, Default)]
struct Now {
    arrival_ns: i64,
    boot_ns: i64,
}

/// A segment being filled, and the contents of its buffer.
#[derive(Default)]
struct Lane {
    writer: Option<SegmentWriter>,
    /// Of the segment; none: transit.
    partition: Option<Arc<Partition>>,
    begun_ns: i64,
    /// Start of the last partition, its name, and when this process began to write to it.
    partition_begun: Option<(i64, i64)>,
    /// When something was last written.
    written_ns: i64,
    encoded: Vec<BufferedRecord>,
    /// Hashes of these.
    hashes: HashSet<[u8; 32]>,
}

impl Writer {
    pub(crate) fn new(shared: Arc<StoreState>) -> Self {
        let recent = Recent::new(shared.config.recent_messages);
        Self {
            shared,
            kept: Lane::default(),
            transit: Lane::default(),
            recent,
            free_bytes: None,
            looked: false,
            now: Now::default(),
        }
    }

    /// Until the queue is closed and empty.
    pub(crate) fn run(mut self) {
        let timeout = Duration::from_secs(1);
        let queue = self.shared.clone();
        while let Some(batch) =
            queue.appends.take(BATCH_MESSAGES_MAX, BATCH_BYTES_MAX as u64, timeout)
        {
            let clock = &self.shared.clock;
            self.now = Now { arrival_ns: clock.now_ns(), boot_ns: clock.boot_ns() };
            self.recent.forget(self.now.boot_ns);
            (self.free_bytes, self.looked) = (self.shared.free_bytes(), false);
            for pending in batch {
                self.take(pending);
            }
            self.flush(true);
            self.flush(false);
            self.kept.leave_if_over(&self.shared.config, self.now);
        }
        for lane in [&self.kept, &self.transit] {
            lane.seal();
        }
    }

    /// Encodes one message; a full buffer is written before.
    fn take(&mut self, pending: Pending) {
        let Pending { mut arrival, message, held, answer } = pending;
        if let Some(known) = self.recent.find(&arrival) {
            drop(held);
            let _ = answer.send(Ok(known));
            return;
        }
        let bytes = record_bytes(&arrival, &message);
        if arrival.kept && arrival.may_pass && self.has_room(true, bytes).is_err() {
            arrival.kept = false;
            // It may be one that was passed on.
            if let Some(known) = self.recent.find(&arrival) {
                drop(held);
                let _ = answer.send(Ok(known));
                return;
            }
        }
        let kept = arrival.kept;
        let lane = if kept { &self.kept } else { &self.transit };
        // The same message twice in one batch: what is buffered is written first, and then it is
        // known.
        let twice = lane.hashes.contains(&arrival.hash);
        let over = lane.writer.as_ref().is_some_and(|writer| {
            writer.pending() as u64 + bytes > BATCH_BYTES_MAX as u64 || !writer.fits(bytes)
        });
        if twice || over {
            self.flush(kept);
            if let Some(known) = self.recent.find(&arrival) {
                drop(held);
                let _ = answer.send(Ok(known));
                return;
            }
        }
        if let Err(error) = self.make_ready(kept, bytes) {
            drop(held);
            let _ = answer.send(Err(error));
            return;
        }
        let lane = if kept { &mut self.kept } else { &mut self.transit };
        if let Some(writer) = &mut lane.writer {
            let place = writer.encode(&arrival, message);
            writer.segment.newest_arrival_ns.fetch_max(self.now.boot_ns, Ordering::AcqRel);
            self.free_bytes = self.free_bytes.map(|free| free.saturating_sub(bytes));
            lane.hashes.insert(arrival.hash);
            lane.encoded.push(BufferedRecord { arrival, place, answer, held });
        }
    }

    /// Room for a message and the reserve; not required on a file system that does not report free
    /// space. Messages that are passed on and not kept, which are gone after
    /// [`Config::keep_transit`], may use a part of the reserve.
    fn has_room(&self, kept: bool, bytes: u64) -> Result<(), AppendError> {
        let reserve = self.shared.config.disk_reserve_bytes;
        let needed_bytes = bytes + if kept { reserve } else { reserve / TRANSIT_RESERVE_OF };
        match self.free_bytes {
            Some(free_bytes) if free_bytes < needed_bytes => {
                let path = self.shared.config.folder.clone();
                Err(AppendError::DiskFull { path, free_bytes, needed_bytes })
            }
            _ => Ok(()),
        }
    }

    /// Provides a segment with room for a record of `bytes` bytes: a spare one for messages that
    /// are not kept and have no room.
    fn make_ready(&mut self, kept: bool, bytes: u64) -> Result<(), AppendError> {
        let no_room = match self.has_room(kept, bytes) {
            Err(error) if kept => return Err(self.shared.disk_full(error)),
            other => other.err(),
        };
        let config = &self.shared.config;
        let lane = if kept { &self.kept } else { &self.transit };
        let full =
            lane.writer.as_ref().is_none_or(|writer| writer.is_broken() || !writer.fits(bytes));
        let other =
            lane.writer.as_ref().is_some_and(|writer| writer.segment.spare != no_room.is_some());
        let over = if kept {
            let look = !std::mem::replace(&mut self.looked, true);
            look && lane
                .partition
                .as_ref()
                .is_none_or(|partition| config.is_over(partition, self.now.arrival_ns))
        } else {
            self.now.boot_ns.saturating_sub(lane.begun_ns) > nanos(config.keep_transit) / 2
        };
        if !full && !over && !other {
            return Ok(());
        }
        if lane.writer.as_ref().is_some_and(|writer| writer.pending() > 0) {
            self.flush(kept);
        }
        match no_room {
            None => self.begin(kept).map_err(|source| self.shared.failed(source, bytes)),
            Some(error) => match self.begin_spare() {
                Ok(true) => Ok(()),
                Ok(false) => Err(self.shared.disk_full(error)),
                Err(source) => Err(self.shared.failed(source, bytes)),
            },
        }
    }

    /// Overwrites a spare file from now on; false when all hold messages with references.
    fn begin_spare(&mut self) -> io::Result<bool> {
        let shared = self.shared.clone();
        let now_ns = self.now.boot_ns;
        self.transit.leave(&shared.config, self.now);
        let mut begun = None;
        loop {
            let done = shared.spares.begin(|path| {
                let number = shared.next_segment.fetch_add(1, Ordering::Relaxed);
                let writer = SegmentWriter::over_spare(&shared.disk, &shared.files, path, number)?;
                Ok(begun.insert(writer).segment.clone())
            })?;
            if done {
                break;
            }
            // The messages passed on longest ago are forgotten, so that their file can be reused.
            let oldest = {
                let mut transit = shared.transit();
                let position = transit.iter().position(|segment| segment.spare);
                position.map(|position| transit.remove(position))
            };
            let Some(oldest) = oldest else { return Ok(false) };
            self.recent.forget_segment(&oldest);
        }
        if let Some(writer) = &begun {
            writer.segment.newest_arrival_ns.store(now_ns, Ordering::Release);
            shared.note_transit(writer.segment.clone());
        }
        self.transit.begun_ns = now_ns;
        self.transit.writer = begun;
        Ok(true)
    }

    /// Begins a segment, and with it a partition when the current one is over.
    fn begin(&mut self, kept: bool) -> io::Result<()> {
        let shared = self.shared.clone();
        let Now { arrival_ns, boot_ns } = self.now;
        let lane = if kept { &mut self.kept } else { &mut self.transit };
        lane.leave(&shared.config, self.now);
        let number = shared.next_segment.fetch_add(1, Ordering::Relaxed);
        let path = if kept {
            let partition = shared.partition_for(arrival_ns)?;
            let path = partition.folder.join(file_name(number));
            if lane.partition_begun.is_none_or(|(start_ns, _)| start_ns != partition.start_ns) {
                lane.partition_begun = Some((partition.start_ns, boot_ns));
            }
            lane.partition = Some(partition);
            path
        } else {
            shared.transit_folder().join(file_name(number))
        };
        let writer = SegmentWriter::create(
            &shared.disk,
            &shared.files,
            path,
            number,
            shared.config.segment_bytes,
        )?;
        // Before the keeper sees it: one that is empty is not old.
        writer.segment.newest_arrival_ns.store(boot_ns, Ordering::Release);
        match (&lane.partition, kept) {
            (Some(partition), true) => {
                partition.add_segment(writer.segment.clone());
                shared.note_unsynced(partition.clone(), writer.segment.clone());
            }
            _ => shared.note_transit(writer.segment.clone()),
        }
        lane.begun_ns = boot_ns;
        lane.writer = Some(writer);
        // This message may exceed a limit.
        shared.keeper.wake();
        Ok(())
    }

    /// Writes the buffered messages, answers, and passes them to the index.
    fn flush(&mut self, kept: bool) {
        let shared = self.shared.clone();
        let lane = if kept { &mut self.kept } else { &mut self.transit };
        let Some(writer) = lane.writer.as_mut().filter(|writer| writer.pending() > 0) else {
            return;
        };
        lane.written_ns = self.now.boot_ns;
        let bytes = writer.pending() as u64;
        let written = writer.write();
        let segment = writer.segment.clone();
        let encoded = std::mem::take(&mut lane.encoded);
        debug_assert_eq!(encoded.len(), lane.hashes.len(), "records and their hashes");
        lane.hashes.clear();
        if let Err(source) = written {
            let error = shared.failed(source, bytes);
            for BufferedRecord { answer, held, .. } in encoded {
                drop(held);
                let _ = answer.send(Err(error.clone()));
            }
            return;
        }
        shared.appended_bytes.fetch_add(bytes, Ordering::Relaxed);
        if kept {
            // Before the result is visible: a query waits for messages appended before it was
            // asked.
            shared.appended.fetch_add(encoded.len() as u64, Ordering::AcqRel);
        }
        let mut rows = Vec::with_capacity(if kept { encoded.len() } else { 0 });
        for BufferedRecord { arrival, place, answer, held } in encoded {
            drop(held);
            let message = Message::new(segment.clone(), place);
            let _ = answer.send(Ok(AppendOutcome { message: message.clone(), known: false, kept }));
            self.recent.add(&arrival, message);
            if kept {
                let Arrival { hash, timestamp_ns, pubsub_topic, content_topic, .. } = arrival;
                let segment = segment.number;
                rows.push(Row { hash, timestamp_ns, pubsub_topic, content_topic, segment, place });
            }
        }
        let partition = if kept { lane.partition.as_ref() } else { None };
        if let Some(partition) = partition {
            let rows = rows.into_iter().map(|row| {
                let bytes = (row.pubsub_topic.len() + row.content_topic.len()) as u64 + 200;
                (Event::Row(partition.clone(), row), bytes)
            });
            shared.rows.push_all(rows);
        }
    }
}

impl Lane {
    fn seal(&self) {
        if let Some(writer) = &self.writer {
            writer.segment.sealed.store(true, Ordering::Release);
        }
    }

    /// Leaves a partition whose time is over, so that it can be removed though nothing arrives.
    fn leave_if_over(&mut self, config: &Config, now: Now) {
        let is_over = |partition: &Arc<Partition>| config.is_over(partition, now.arrival_ns);
        if self.partition.as_ref().is_some_and(is_over) {
            self.leave(config, now);
        }
    }

    fn leave(&mut self, config: &Config, now: Now) {
        debug_assert!(self.encoded.is_empty(), "{} records have no answer", self.encoded.len());
        self.seal();
        self.writer = None;
        if let Some(partition) = self.partition.take() {
            // None is appended to later than this, however late it is left; later than that only
            // if the arrival clock was set back.
            let length_ns = config.partition_ns();
            let end_ns = partition.start_ns.saturating_add(length_ns).min(now.arrival_ns);
            let begun_ns = self.partition_begun.map_or(now.boot_ns, |(_, begun_ns)| begun_ns);
            let end_boot_ns = begun_ns.saturating_add(length_ns).min(now.boot_ns);
            partition.end(end_ns, end_boot_ns.max(self.written_ns));
        }
    }
}

struct RecentMessage {
    message: Message,
    kept: bool,
    fetched: bool,
}

struct Recent {
    /// Entries at most.
    max: usize,
    /// The table has the room it needs for good.
    settled: bool,
    known: HashMap<[u8; 32], RecentMessage>,
    order: VecDeque<(i64, [u8; 32])>,
    now_ns: i64,
}

impl Recent {
    fn new(max: usize) -> Self {
        // Seven eighths of a table's buckets, a power of two, are room. Once the places of entries
        // that left are used up, a table that is not half empty doubles: with this maximum it does
        // so once.
        let max = max.min((max.next_power_of_two() * 7).div_ceil(8));
        Self { max, settled: false, known: HashMap::new(), order: VecDeque::new(), now_ns: 0 }
    }

    /// The same message, if it is kept at least as long, and was passed on if this one is to be.
    fn find(&self, arrival: &Arrival) -> Option<AppendOutcome> {
        let RecentMessage { message, kept, fetched } = self.known.get(&arrival.hash)?;
        let appended = || AppendOutcome { message: message.clone(), known: true, kept: *kept };
        let serves = (*kept || !arrival.kept) && (!fetched || arrival.fetched);
        serves.then(appended)
    }

    fn add(&mut self, arrival: &Arrival, message: Message) {
        if self.max == 0 {
            return;
        }
        while self.order.len() >= self.max {
            self.forget_oldest();
        }
        let known = RecentMessage { message, kept: arrival.kept, fetched: arrival.fetched };
        if self.known.insert(arrival.hash, known).is_none() {
            self.order.push_back((self.now_ns, arrival.hash));
        }
        debug_assert!(
            self.order.len() <= self.max && self.known.len() <= self.order.len(),
            "{} messages are known, {} in order, the most is {}",
            self.known.len(),
            self.order.len(),
            self.max
        );
        // At once, and not some time in the next hour.
        if !self.settled && self.order.len() == self.max {
            self.known.reserve(self.max);
            self.settled = true;
        }
    }

    fn forget(&mut self, now_ns: i64) {
        self.now_ns = now_ns;
        while self.order.front().is_some_and(|(then, _)| now_ns.saturating_sub(*then) > RECENT_NS) {
            self.forget_oldest();
        }
        if self.order.is_empty() && self.known.capacity() > 64 {
            (self.known, self.order, self.settled) = (HashMap::new(), VecDeque::new(), false);
        }
    }

    fn forget_segment(&mut self, segment: &Segment) {
        self.known.retain(|_, known| !known.message.lies_in(segment));
    }

    fn forget_oldest(&mut self) {
        if let Some((_, hash)) = self.order.pop_front() {
            self.known.remove(&hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Files;

    #[test]
    fn what_arrived_lately_takes_no_more_memory_after_hours() {
        let segment =
            Segment::new(disk::RealDisk::shared(), Files::new(1), "none".into(), 1, false);
        let message = Message::new(segment, RecordPosition { record: 0, start: 0, length: 0 });
        let mut arrival = Arrival {
            hash: [0; 32],
            timestamp_ns: 0,
            pubsub_topic: "".into(),
            content_topic: "".into(),
            kept: true,
            may_pass: false,
            fetched: false,
        };
        let mut recent = Recent::new(1024);
        assert_eq!(recent.max, 896);
        for number in 0..896_000_u64 {
            arrival.hash[..8].copy_from_slice(&number.to_le_bytes());
            recent.add(&arrival, message.clone());
            assert!(recent.find(&arrival).is_some() && recent.known.len() <= 896);
            // The room of 2,048 buckets, places of entries that left not counted.
            assert!(recent.known.capacity() <= 1792, "{} at {number}", recent.known.capacity());
        }
        assert!(recent.settled);
    }
}
