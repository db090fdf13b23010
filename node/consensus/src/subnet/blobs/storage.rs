//! The log as the engine's storage: opens, reads, writes, and syncs that are shared.
//!
//! Writes go to the operating system's cache in the task that calls them; only [`BlobLog::run`]
//! waits for the disk, on a thread of its own where the runtime has threads. Calls that arrive
//! while a sync runs are answered together by the next one.

use std::{ops::RangeInclusive, path::Path, sync::Arc};

use bytes::BufMut as _;
use commonware_runtime::{
    Blob, BlobVersion, Error, Handle, IoBufs, IoBufsMut, ReadOptions, Spawner, WriteOptions,
};
use commonware_utils::{
    channel::oneshot,
    sync::{Mutex, Notify},
};
use disk::{SharedDisk, records::RecordError};

use super::{
    SEGMENT_BYTES,
    index::Key,
    log::{Compaction, Log},
};

/// Syncs in a row, at most, that try to finish a segment between two writes.
const FINISH_TRIES: usize = 3;

/// The engine's storage. Copies share it.
#[derive(Clone)]
pub struct BlobLog(Arc<SharedLog>);

struct SharedLog {
    log: Mutex<Log>,
    /// Calls that wait for the next sync: the engine makes one for each blob at a time.
    waiting: Mutex<Vec<oneshot::Sender<Result<(), Error>>>>,
    /// A call waits.
    asked: Notify,
}

/// An open blob.
pub(in crate::subnet) struct LogBlob {
    shared: Arc<SharedLog>,
    key: Key,
}

impl BlobLog {
    /// Opens the storage in `folder`, made if absent.
    ///
    /// # Errors
    /// Those of the disk, and [`RecordError::Damaged`] if records that were durable do not check.
    pub(in crate::subnet) fn open(disk: SharedDisk, folder: &Path) -> Result<Self, RecordError> {
        Self::open_with(disk, folder, SEGMENT_BYTES)
    }

    pub(super) fn open_with(
        disk: SharedDisk,
        folder: &Path,
        segment_bytes: u64,
    ) -> Result<Self, RecordError> {
        let log = Mutex::new(Log::open(disk, folder, segment_bytes)?);
        Ok(Self(Arc::new(SharedLog { log, waiting: Mutex::default(), asked: Notify::new() })))
    }

    /// Starts what makes changes durable: without it no sync ends.
    pub(in crate::subnet) fn start(&self, context: impl Spawner) {
        let log = self.clone();
        context.dedicated().spawn(move |_| log.run());
    }

    /// Answers calls that wait for a sync. Ends never.
    async fn run(self) {
        loop {
            self.0.asked.notified().await;
            let waiting = std::mem::take(&mut *self.0.waiting.lock());
            if waiting.is_empty() {
                continue;
            }
            let synced = self.0.sync();
            for waits in waiting {
                // The caller may have given up.
                let _ = waits.send(synced.clone());
            }
            if let Err(error) = self.0.go_on() {
                tracing::warn!(%error, "a segment of the engine's storage cannot be begun now");
            }
            if let Err(error) = self.0.compact() {
                tracing::warn!(%error, "a segment of the engine's storage cannot be emptied now");
            }
        }
    }

    /// Opens a blob, made if absent. See [`commonware_runtime::Storage::open_versioned`].
    pub(in crate::subnet) fn open_blob(
        &self,
        partition: &str,
        name: &[u8],
        versions: &RangeInclusive<BlobVersion>,
    ) -> Result<(LogBlob, u64, BlobVersion), Error> {
        let (key, length, version) = self.0.log.lock().open_blob(partition, name, versions)?;
        Ok((LogBlob { shared: self.0.clone(), key }, length, version))
    }

    /// Removes a blob, or a partition.
    pub(in crate::subnet) fn remove(
        &self,
        partition: &str,
        name: Option<&[u8]>,
    ) -> Result<(), Error> {
        self.0.log.lock().remove(partition, name)
    }

    /// Names of the blobs of a partition, in order.
    pub(in crate::subnet) fn scan(&self, partition: &str) -> Result<Vec<Vec<u8>>, Error> {
        self.0.log.lock().scan(partition)
    }

    /// The newest change that is durable, with all before it.
    pub(in crate::subnet) fn durable(&self) -> u64 {
        self.0.log.lock().durable()
    }

    #[cfg(test)]
    pub(super) fn with_log<T>(&self, look: impl FnOnce(&mut Log) -> T) -> T {
        look(&mut self.0.log.lock())
    }

    /// One turn of [`Self::run`].
    #[cfg(test)]
    pub(in crate::subnet) fn sync_now(&self) -> Result<(), Error> {
        self.0.sync()?;
        self.0.go_on()?;
        self.0.compact()
    }
}

impl SharedLog {
    /// Makes everything durable. Waits for the disk, others can use the log meanwhile.
    fn sync(&self) -> Result<(), Error> {
        let pending = self.log.lock().begin_sync()?;
        let Some(pending) = pending else { return Ok(()) };
        let result = pending.run();
        self.log.lock().end_sync(&pending, result)
    }

    /// Begins the next segment when the newest one is nearly full, so that no write has to: it
    /// would wait for the disk with the log at hand.
    fn go_on(&self) -> Result<(), Error> {
        let next = self.log.lock().begin_making();
        if let Some(next) = next {
            let made = next.make();
            self.log.lock().end_making(made)?;
        }
        for _ in 0..FINISH_TRIES {
            let pending = self.log.lock().begin_finish()?;
            let Some(pending) = pending else { return Ok(()) };
            let result = pending.run();
            if self.log.lock().end_finish(&pending, result)? {
                return Ok(());
            }
        }
        // The next sync tries again.
        Ok(())
    }

    /// Empties one segment, if there is one to empty; blob by blob, so that others wait for one at
    /// most.
    fn compact(&self) -> Result<(), Error> {
        loop {
            let step = self.log.lock().compact()?;
            match step {
                Compaction::Idle => return Ok(()),
                Compaction::Moved => {}
                Compaction::Emptied(segment) => {
                    self.sync()?;
                    return self.log.lock().remove_segment(segment);
                }
            }
        }
    }
}

impl LogBlob {
    /// Writes to the operating system's cache. Returns the number of the change.
    pub(in crate::subnet) fn write(&self, offset: u64, bytes: &[u8]) -> Result<u64, Error> {
        self.shared.log.lock().write(self.key, offset, bytes)
    }

    /// Shortens it to this length.
    pub(in crate::subnet) fn cut(&self, length: u64) -> Result<(), Error> {
        self.shared.log.lock().resize(self.key, length)
    }

    /// Reads exactly this number of bytes.
    pub(in crate::subnet) fn read(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, Error> {
        let parts = self.shared.log.lock().locate(self.key, offset, bytes)?;
        let mut read = vec![0; bytes];
        for part in parts {
            disk::read_exact(part.file.as_ref(), &mut read[part.range], part.at)?;
        }
        Ok(read)
    }
}

impl Blob for LogBlob {
    async fn read_at_buf(
        &self,
        offset: u64,
        len: usize,
        bufs: impl Into<IoBufsMut> + Send,
        _: ReadOptions,
    ) -> Result<IoBufsMut, Error> {
        let mut bufs = bufs.into();
        let read = self.read(offset, len)?;
        if let Some(single) = bufs.as_single_mut() {
            single.clear();
        }
        if bufs.is_empty() && bufs.remaining_mut() >= len {
            bufs.put_slice(&read);
        } else if bufs.len() == len {
            bufs.copy_from_slice(&read);
        } else {
            return Err(Error::ReadFailed);
        }
        Ok(bufs)
    }

    async fn read_at(&self, offset: u64, len: usize, _: ReadOptions) -> Result<IoBufsMut, Error> {
        self.read(offset, len).map(IoBufsMut::from)
    }

    async fn write_at(
        &self,
        offset: u64,
        bufs: impl Into<IoBufs> + Send,
        options: WriteOptions,
    ) -> Result<(), Error> {
        let bytes = bufs.into().coalesce();
        self.write(offset, bytes.as_ref())?;
        if options.contains(WriteOptions::SYNC) { self.sync().await } else { Ok(()) }
    }

    async fn resize(&self, len: u64) -> Result<(), Error> {
        self.shared.log.lock().resize(self.key, len)
    }

    async fn sync(&self) -> Result<(), Error> {
        self.start_sync().await.await
    }

    async fn start_sync(&self) -> Handle<()> {
        let needed = self.shared.log.lock().needs_sync(self.key);
        match needed {
            Ok(true) => {
                let (answer, answered) = oneshot::channel();
                self.shared.waiting.lock().push(answer);
                self.shared.asked.notify_one();
                Handle::from_receiver(answered)
            }
            done => Handle::ready(done.map(|_| ())),
        }
    }
}

impl Drop for LogBlob {
    fn drop(&mut self) {
        self.shared.log.lock().close_blob(self.key);
    }
}
