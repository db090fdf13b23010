//! A disk that takes its time: what a simulated node runs on, where every operation waits before it is carried out.

use std::{
    convert::Infallible,
    fmt::Display,
    future::Future,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
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

use super::Context;

/// Reads and writes mostly meet the operating system's cache: they wait for this part of what making durable takes.
const CACHED: u64 = 20;

/// A runtime whose storage waits. Everything else goes through as it is.
pub(super) struct SlowDisk {
    inner: Context,
    pace: Pace,
}

impl SlowDisk {
    /// `sync` is how many milliseconds it takes to make something durable; it can be changed while the node runs.
    pub(super) fn new(inner: Context, sync: Arc<AtomicU64>) -> Self {
        let pace = Pace { clock: Arc::new(inner.child("disk")), sync };
        Self { inner, pace }
    }

    fn with(&self, inner: Context) -> Self {
        Self { inner, pace: self.pace.clone() }
    }
}

#[derive(Clone)]
struct Pace {
    clock: Arc<Context>,
    sync: Arc<AtomicU64>,
}

impl Pace {
    async fn cached(&self) {
        self.wait(self.sync.load(Ordering::Relaxed) / CACHED).await;
    }

    async fn durable(&self) {
        self.wait(self.sync.load(Ordering::Relaxed)).await;
    }

    async fn wait(&self, millis: u64) {
        if millis > 0 {
            self.clock.sleep(Duration::from_millis(millis)).await;
        }
    }
}

/// A file on such a disk.
pub(super) struct SlowBlob {
    inner: <Context as Storage>::Blob,
    pace: Pace,
}

impl Blob for SlowBlob {
    async fn read_at_buf(
        &self,
        offset: u64,
        len: usize,
        bufs: impl Into<IoBufsMut> + Send,
        options: ReadOptions,
    ) -> Result<IoBufsMut, Error> {
        self.pace.cached().await;
        self.inner.read_at_buf(offset, len, bufs, options).await
    }

    async fn read_at(&self, offset: u64, len: usize, options: ReadOptions) -> Result<IoBufsMut, Error> {
        self.pace.cached().await;
        self.inner.read_at(offset, len, options).await
    }

    async fn write_at(
        &self,
        offset: u64,
        bufs: impl Into<IoBufs> + Send,
        options: WriteOptions,
    ) -> Result<(), Error> {
        self.pace.cached().await;
        self.inner.write_at(offset, bufs, options).await
    }

    async fn resize(&self, len: u64) -> Result<(), Error> {
        self.pace.cached().await;
        self.inner.resize(len).await
    }

    async fn sync(&self) -> Result<(), Error> {
        self.pace.durable().await;
        self.inner.sync().await
    }

    async fn start_sync(&self) -> Handle<()> {
        self.pace.durable().await;
        self.inner.start_sync().await
    }
}

impl Storage for SlowDisk {
    type Blob = SlowBlob;

    async fn open_versioned(
        &self,
        partition: &str,
        name: &[u8],
        versions: RangeInclusive<BlobVersion>,
    ) -> Result<(SlowBlob, u64, BlobVersion), Error> {
        self.pace.durable().await;
        let (inner, bytes, version) = self.inner.open_versioned(partition, name, versions).await?;
        Ok((SlowBlob { inner, pace: self.pace.clone() }, bytes, version))
    }

    async fn remove(&self, partition: &str, name: Option<&[u8]>) -> Result<(), Error> {
        self.pace.durable().await;
        self.inner.remove(partition, name).await
    }

    async fn scan(&self, partition: &str) -> Result<Vec<Vec<u8>>, Error> {
        self.pace.cached().await;
        self.inner.scan(partition).await
    }
}

impl Supervisor for SlowDisk {
    fn name(&self) -> Name {
        self.inner.name()
    }

    fn child(&self, label: &'static str) -> Self {
        self.with(self.inner.child(label))
    }

    fn with_attribute(self, key: &'static str, value: impl Display) -> Self {
        Self { inner: self.inner.with_attribute(key, value), pace: self.pace }
    }
}

impl Spawner for SlowDisk {
    fn shared(self, blocking: bool) -> Self {
        Self { inner: self.inner.shared(blocking), pace: self.pace }
    }

    fn dedicated(self) -> Self {
        Self { inner: self.inner.dedicated(), pace: self.pace }
    }

    fn spawn<F, Fut, T>(self, task: F) -> Handle<T>
    where
        F: FnOnce(Self) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let pace = self.pace;
        self.inner.spawn(move |inner| task(Self { inner, pace }))
    }

    async fn stop(self, value: i32, timeout: Option<Duration>) -> Result<(), Error> {
        self.inner.stop(value, timeout).await
    }

    fn stopped(&self) -> Signal {
        self.inner.stopped()
    }
}

impl Metrics for SlowDisk {
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

impl Clock for SlowDisk {
    fn current(&self) -> SystemTime {
        self.inner.current()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.inner.sleep(duration)
    }

    fn sleep_until(&self, deadline: SystemTime) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.inner.sleep_until(deadline)
    }
}

impl Governed for SlowDisk {
    type Instant = SystemTime;

    fn now(&self) -> SystemTime {
        self.inner.current()
    }
}

impl ReasonablyRealtime for SlowDisk {}

impl TryRng for SlowDisk {
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

impl TryCryptoRng for SlowDisk {}
