//! The thread that writes the indexes. It follows the writer through a queue; a full queue holds
//! the writer back, so a slow index slows appends, and nothing else.
//!
//! Bounds: a batch of [`BATCH_ROWS_MAX`] rows; the connections of two partitions. A write that
//! fails is tried again until it succeeds or the store closes: what is missing then is added at the
//! next start. Partitions that the disk kept from being opened are tried again, one at a time.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use crate::{
    catalog::Partition,
    index::{Index, Row, is_damage},
    recover,
    store::StoreState,
};

/// Rows of one transaction.
const BATCH_ROWS_MAX: usize = 4096;
/// Rows gather for this long, unless a query waits for them: a transaction costs as much as its
/// rows.
const GATHER: Duration = Duration::from_millis(100);
/// This many rows end the gathering.
const GATHER_ROWS: usize = 512;
/// Looked after when nothing happens.
const IDLE: Duration = Duration::from_secs(1);
/// Interval of attempts when the index cannot be written.
const RETRY: Duration = Duration::from_millis(500);
/// Partitions whose indexes are open at once.
const OPEN_MAX: usize = 2;

pub(crate) enum Event {
    /// A message was written.
    Row(Arc<Partition>, Row),
    /// A segment is complete and synced.
    Seal { partition: Arc<Partition>, number: u32, length: u64 },
    /// The index is damaged, or a segment of it is gone.
    Rebuild(Arc<Partition>),
}

pub(crate) struct Indexer {
    shared: Arc<StoreState>,
    open: Vec<(Arc<Partition>, Index)>,
    /// Partitions whose indexes could not be rebuilt yet.
    unbuilt: Vec<Arc<Partition>>,
    /// Partitions that could not be opened at start.
    unopened: Vec<Arc<Partition>>,
    /// Attempts that failed, and when the last one was.
    attempts: u64,
    tried: Instant,
    /// The store closes and the disk fails: the rest is indexed at the next start.
    given_up: bool,
}

impl Indexer {
    pub(crate) fn new(shared: Arc<StoreState>, unopened: Vec<Arc<Partition>>) -> Self {
        let (open, unbuilt) = (Vec::new(), Vec::new());
        Self {
            shared,
            open,
            unbuilt,
            unopened,
            attempts: 0,
            tried: Instant::now(),
            given_up: false,
        }
    }

    /// Until the queue is closed and empty.
    pub(crate) fn run(mut self) {
        let shared = self.shared.clone();
        loop {
            shared.rows.gather(GATHER_ROWS, IDLE, GATHER);
            let Some(batch) = shared.rows.take(BATCH_ROWS_MAX, u64::MAX, Duration::ZERO) else {
                break;
            };
            let mut rows: Option<(Arc<Partition>, Vec<Row>)> = None;
            for event in batch {
                match event {
                    Event::Row(partition, row) => match &mut rows {
                        Some((current, rows)) if Arc::ptr_eq(current, &partition) => rows.push(row),
                        _ => {
                            self.insert(rows.take());
                            rows = Some((partition, vec![row]));
                        }
                    },
                    Event::Seal { partition, number, length } => {
                        self.insert(rows.take());
                        self.seal(&partition, number, length);
                    }
                    Event::Rebuild(partition) => {
                        self.insert(rows.take());
                        self.rebuild(&partition);
                    }
                }
            }
            self.insert(rows);
            self.close_what_is_over();
            for partition in std::mem::take(&mut self.unbuilt) {
                self.rebuild(&partition);
            }
            self.open_again();
        }
        while let Some((partition, index)) = self.open.pop() {
            close(&partition, &index);
        }
    }

    fn insert(&mut self, rows: Option<(Arc<Partition>, Vec<Row>)>) {
        let Some((partition, rows)) = rows else { return };
        let mut attempt = 0u64;
        while !self.given_up && !partition.dropped.load(Ordering::Acquire) {
            let Err(error) = self.try_insert(&partition, &rows) else { break };
            attempt += 1;
            if attempt.is_power_of_two() {
                let path = partition.index_path();
                tracing::warn!(path = %path.display(), %error, attempt, "indexing failed");
            }
            // Later rows are not indexed either, so that there is no gap.
            self.given_up = self.shared.appends.is_closed() && attempt > 3;
            if is_damage(&error) {
                partition.broken.store(true, Ordering::Release);
                self.rebuild(&partition);
            }
            if attempt > 1 {
                std::thread::sleep(RETRY);
            }
        }
        self.shared.indexed.send_modify(|indexed| *indexed += rows.len() as u64);
    }

    fn try_insert(&mut self, partition: &Arc<Partition>, rows: &[Row]) -> rusqlite::Result<()> {
        // Those of a segment that was set aside meanwhile would have no message.
        let live: Vec<Row>;
        let segments = partition.segments();
        let is_live = |row: &Row| segments.iter().any(|segment| segment.number == row.segment);
        let rows = if rows.iter().all(is_live) {
            rows
        } else {
            live = rows.iter().filter(|row| is_live(row)).cloned().collect();
            &live
        };
        let added = self.index(partition)?.insert(rows)?;
        let mut figures = partition.figures();
        figures.messages += added;
        rows.iter().for_each(|row| figures.add(row.timestamp_ns));
        Ok(())
    }

    fn seal(&mut self, partition: &Arc<Partition>, number: u32, length: u64) {
        if partition.dropped.load(Ordering::Acquire) {
            return;
        }
        let sealed = self.index(partition).and_then(|index| index.seal(number, length));
        if let Err(error) = sealed {
            // The segment is read through at the next start instead.
            let path = partition.index_path();
            tracing::warn!(path = %path.display(), %error, "a complete segment was not noted");
        }
    }

    fn rebuild(&mut self, partition: &Arc<Partition>) {
        self.open.retain(|(open, _)| !Arc::ptr_eq(open, partition));
        self.unbuilt.retain(|other| !Arc::ptr_eq(other, partition));
        if partition.dropped.load(Ordering::Acquire) {
            return;
        }
        let path = partition.index_path();
        tracing::warn!(path = %path.display(), "an index is made anew from its segments");
        match recover::rebuild(&self.shared, partition) {
            Ok(index) => {
                self.open.push((partition.clone(), index));
                partition.broken.store(false, Ordering::Release);
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "an index was not made anew");
                self.unbuilt.push(partition.clone());
            }
        }
    }

    /// Opens what could not be opened at start, one after the other until one cannot: it comes last
    /// the next time, so that one alone does not keep the others out of service.
    fn open_again(&mut self) {
        if self.tried.elapsed() < IDLE {
            return;
        }
        while let Some(partition) = self.unopened.first() {
            if !partition.dropped.load(Ordering::Acquire)
                && let Err(error) = recover::open_again(&self.shared, partition)
            {
                self.attempts += 1;
                if self.attempts.is_power_of_two() {
                    let path = partition.folder.display();
                    tracing::warn!(%path, %error, attempts = self.attempts, "a partition cannot be read");
                }
                self.unopened.rotate_left(1);
                break;
            }
            self.unopened.remove(0);
        }
        self.tried = Instant::now();
    }

    /// The index of a partition, opened when it is not.
    fn index(&mut self, partition: &Arc<Partition>) -> rusqlite::Result<&mut Index> {
        let position = self.open.iter().position(|(open, _)| Arc::ptr_eq(open, partition));
        let position = match position {
            Some(position) => position,
            None => {
                if self.open.len() >= OPEN_MAX {
                    let (oldest, index) = self.open.remove(0);
                    close(&oldest, &index);
                }
                let cache_bytes = self.shared.config.write_cache_bytes();
                let index = Index::open(&partition.index_path(), cache_bytes)?;
                self.open.push((partition.clone(), index));
                self.open.len() - 1
            }
        };
        Ok(&mut self.open[position].1)
    }

    fn close_what_is_over(&mut self) {
        self.open.retain(|(partition, _)| !partition.dropped.load(Ordering::Acquire));
    }
}

fn close(partition: &Partition, index: &Index) {
    if let Err(error) = index.fold() {
        tracing::debug!(path = %partition.index_path().display(), %error, "a log was not folded");
    }
    partition.measure_index();
}
