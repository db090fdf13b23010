//! The disk and the wall clock of a simulated node: the disk can be slow, and the node can end in the middle of any
//! of its operations; the clock can jump.

use std::{
    convert::Infallible,
    fmt::Display,
    future::Future,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use commonware_runtime::{
    Blob, BlobVersion, Clock, Error, Handle, IoBufs, IoBufsMut, Metrics, Name, ReadOptions, Spawner, Storage,
    Supervisor, WriteOptions,
    signal::Signal,
    telemetry::metrics::{Metric, Registered},
};
use governor::clock::{Clock as Governed, ReasonablyRealtime};
use rand_core::{TryCryptoRng, TryRng};

use crate::Context;

/// Reads and writes mostly meet the operating system's cache: they wait for this part of what making durable takes.
const CACHED: u64 = 20;

/// No operation is the last.
const ENDLESS: u64 = u64::MAX;

/// What is the matter with a disk; can change while the node runs.
pub(crate) struct Disk {
    /// Milliseconds it takes to make something durable.
    sync_millis: AtomicU64,
    operations_left: AtomicU64,
    last_is_done: AtomicBool,
    /// Milliseconds by which the wall clock is ahead of the others', or behind.
    clock_ahead_millis: AtomicI64,
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            sync_millis: AtomicU64::new(0),
            operations_left: AtomicU64::new(ENDLESS),
            last_is_done: AtomicBool::new(false),
            clock_ahead_millis: AtomicI64::new(0),
        }
    }
}

/// What becomes of an operation.
enum Turn {
    /// It is carried out.
    Done,
    /// It is carried out, and nobody learns it.
    Last,
    /// It is not carried out.
    Over,
}

impl Disk {
    pub(crate) fn slow(&self, sync_millis: u64) {
        self.sync_millis.store(sync_millis, Ordering::Relaxed);
    }

    /// The operation of this number, counted from now, is the last; it may be done, or not even begun.
    pub(crate) fn end_with(&self, operation: u64, done: bool) {
        self.operations_left.store(operation, Ordering::Relaxed);
        self.last_is_done.store(done, Ordering::Relaxed);
    }

    /// The wall clock goes on from here, so far ahead of the others'.
    pub(crate) fn jump(&self, ahead_millis: i64) {
        self.clock_ahead_millis.store(ahead_millis, Ordering::Relaxed);
    }

    /// What the wall clock says when it is `moment`.
    fn wall_clock(&self, moment: SystemTime) -> SystemTime {
        let ahead = self.clock_ahead_millis.load(Ordering::Relaxed);
        let by = Duration::from_millis(ahead.unsigned_abs());
        if ahead < 0 { moment.checked_sub(by).unwrap_or(SystemTime::UNIX_EPOCH) } else { moment + by }
    }

    pub(crate) fn endless(&self) {
        self.operations_left.store(ENDLESS, Ordering::Relaxed);
    }

    fn turn(&self) -> Turn {
        match self.operations_left.load(Ordering::Relaxed) {
            ENDLESS => Turn::Done,
            0 => Turn::Over,
            left => {
                self.operations_left.store(left - 1, Ordering::Relaxed);
                match left {
                    1 if self.last_is_done.load(Ordering::Relaxed) => Turn::Last,
                    1 => Turn::Over,
                    _ => Turn::Done,
                }
            }
        }
    }
}

fn ended() -> Error {
    std::io::Error::other("the node ends here").into()
}

/// A runtime with such a disk. Everything else goes through as it is.
pub(crate) struct WithDisk {
    inner: Context,
    access: Access,
}

impl WithDisk {
    pub(crate) fn new(inner: Context, disk: Arc<Disk>) -> Self {
        let access = Access { clock: Arc::new(inner.child("disk")), disk };
        Self { inner, access }
    }

    fn with(&self, inner: Context) -> Self {
        Self { inner, access: self.access.clone() }
    }
}

#[derive(Clone)]
struct Access {
    clock: Arc<Context>,
    disk: Arc<Disk>,
}

impl Access {
    async fn cached<T>(&self, operation: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.after(self.disk.sync_millis.load(Ordering::Relaxed) / CACHED, operation).await
    }

    async fn durable<T>(&self, operation: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.after(self.disk.sync_millis.load(Ordering::Relaxed), operation).await
    }

    async fn after<T>(
        &self,
        millis: u64,
        operation: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if millis > 0 {
            self.clock.sleep(Duration::from_millis(millis)).await;
        }
        match self.disk.turn() {
            Turn::Done => operation.await,
            Turn::Last => operation.await.and(Err(ended())),
            Turn::Over => Err(ended()),
        }
    }
}

/// A file on such a disk.
pub(crate) struct DiskBlob {
    inner: <Context as Storage>::Blob,
    access: Access,
}

impl Blob for DiskBlob {
    async fn read_at_buf(
        &self,
        offset: u64,
        len: usize,
        bufs: impl Into<IoBufsMut> + Send,
        options: ReadOptions,
    ) -> Result<IoBufsMut, Error> {
        self.access.cached(self.inner.read_at_buf(offset, len, bufs, options)).await
    }

    async fn read_at(&self, offset: u64, len: usize, options: ReadOptions) -> Result<IoBufsMut, Error> {
        self.access.cached(self.inner.read_at(offset, len, options)).await
    }

    async fn write_at(
        &self,
        offset: u64,
        bufs: impl Into<IoBufs> + Send,
        options: WriteOptions,
    ) -> Result<(), Error> {
        self.access.cached(self.inner.write_at(offset, bufs, options)).await
    }

    async fn resize(&self, len: u64) -> Result<(), Error> {
        self.access.cached(self.inner.resize(len)).await
    }

    async fn sync(&self) -> Result<(), Error> {
        self.access.durable(self.inner.sync()).await
    }

    async fn start_sync(&self) -> Handle<()> {
        match self.access.durable(async { Ok(self.inner.start_sync().await) }).await {
            Ok(started) => started,
            Err(error) => Handle::ready(Err(error)),
        }
    }
}

impl Storage for WithDisk {
    type Blob = DiskBlob;

    async fn open_versioned(
        &self,
        partition: &str,
        name: &[u8],
        versions: RangeInclusive<BlobVersion>,
    ) -> Result<(DiskBlob, u64, BlobVersion), Error> {
        let opened = self.access.durable(self.inner.open_versioned(partition, name, versions)).await;
        let (inner, bytes, version) = opened?;
        Ok((DiskBlob { inner, access: self.access.clone() }, bytes, version))
    }

    async fn remove(&self, partition: &str, name: Option<&[u8]>) -> Result<(), Error> {
        self.access.durable(self.inner.remove(partition, name)).await
    }

    async fn scan(&self, partition: &str) -> Result<Vec<Vec<u8>>, Error> {
        self.access.cached(self.inner.scan(partition)).await
    }
}

impl Supervisor for WithDisk {
    fn name(&self) -> Name {
        self.inner.name()
    }

    fn child(&self, label: &'static str) -> Self {
        self.with(self.inner.child(label))
    }

    fn with_attribute(self, key: &'static str, value: impl Display) -> Self {
        Self { inner: self.inner.with_attribute(key, value), access: self.access }
    }
}

impl Spawner for WithDisk {
    fn shared(self, blocking: bool) -> Self {
        Self { inner: self.inner.shared(blocking), access: self.access }
    }

    fn dedicated(self) -> Self {
        Self { inner: self.inner.dedicated(), access: self.access }
    }

    fn spawn<F, Fut, T>(self, task: F) -> Handle<T>
    where
        F: FnOnce(Self) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let access = self.access;
        self.inner.spawn(move |inner| task(Self { inner, access }))
    }

    async fn stop(self, value: i32, timeout: Option<Duration>) -> Result<(), Error> {
        self.inner.stop(value, timeout).await
    }

    fn stopped(&self) -> Signal {
        self.inner.stopped()
    }
}

impl Metrics for WithDisk {
    fn register<N: Into<String>, H: Into<String>, M: Metric>(
        &self,
        name: N,
        help: H,
        metric: M,
    ) -> Registered<M> {
        self.inner.register(name, help, metric)
    }

    fn encode(&self) -> String {
        self.inner.encode()
    }
}

impl Clock for WithDisk {
    fn current(&self) -> SystemTime {
        self.access.disk.wall_clock(self.inner.current())
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.inner.sleep(duration)
    }

    /// As on a machine: how long it is until then is looked up once.
    fn sleep_until(&self, deadline: SystemTime) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.inner.sleep(deadline.duration_since(self.current()).unwrap_or_default())
    }
}

impl Governed for WithDisk {
    type Instant = SystemTime;

    /// Quotas go by a clock that does not jump.
    fn now(&self) -> SystemTime {
        self.inner.current()
    }
}

impl ReasonablyRealtime for WithDisk {}

impl TryRng for WithDisk {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.inner.try_next_u32()
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.inner.try_next_u64()
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.inner.try_fill_bytes(bytes)
    }
}

impl TryCryptoRng for WithDisk {}
