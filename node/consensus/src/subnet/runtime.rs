//! A runtime with a layer between it and its user: another clock, a storage that waits, in tests a
//! disk that fails.
//!
//! The engine uses the machine only through the runtime it is given. A [`Layer`] states its
//! changes; [`LayeredRuntime`] passes the rest through.

use std::{
    convert::Infallible,
    fmt::Display,
    future::{Future, ready},
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use commonware_runtime::{
    Blob, BlobVersion, Clock, Error, Handle, IoBufs, IoBufsMut, Metrics, Name, Network,
    ReadOptions, Resolver, SinkOf, Spawner, Storage, StreamOf, Supervisor, WriteOptions,
    signal::Signal,
    telemetry::metrics::{Metric, Registered},
};
use futures::{FutureExt as _, future::BoxFuture};
use governor::clock::{Clock as Governed, ReasonablyRealtime};
use rand_core::{TryCryptoRng, TryRng};

use super::blobs::{BlobLog, LogBlob};

/// A storage operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "see the methods of `Storage` and `Blob`")]
pub enum Operation {
    Open,
    Remove,
    Scan,
    Read,
    Write,
    Resize,
    Sync,
}

/// Changes to a runtime.
pub trait Layer: Clone + Send + Sync + 'static {
    /// The time, of which the runtime's clock says `now`.
    fn current(&self, now: SystemTime) -> SystemTime {
        now
    }

    /// The storage that takes the place of the runtime's.
    fn blobs(&self) -> Option<&BlobLog> {
        None
    }

    /// Does something with storage, by `attempt`. It may be repeated when it failed, but for
    /// reading.
    fn storage<'a, T: Send + 'a>(
        &'a self,
        operation: Operation,
        mut attempt: Attempt<'a, T>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        let _ = operation;
        attempt()
    }
}

/// A storage operation, run once. Boxed, because the compiler cannot prove that the closures' own
/// types may move between threads.
pub type Attempt<'a, T> = Box<dyn FnMut() -> BoxFuture<'a, Result<T, Error>> + Send + 'a>;

/// A runtime and what is changed of it.
pub struct LayeredRuntime<C, L> {
    inner: C,
    layer: L,
}

impl<C, L: Layer> LayeredRuntime<C, L> {
    /// Puts `layer` between `inner` and the user of this runtime.
    pub fn new(inner: C, layer: L) -> Self {
        Self { inner, layer }
    }
}

/// A blob of such a runtime.
pub struct LayeredBlob<L, B> {
    inner: AnyBlob<B>,
    layer: L,
}

/// A blob of the runtime's storage, or of the one that takes its place.
enum AnyBlob<B> {
    Runtime(B),
    Log(LogBlob),
}

impl<B: Blob> Blob for AnyBlob<B> {
    async fn read_at_buf(
        &self,
        offset: u64,
        len: usize,
        bufs: impl Into<IoBufsMut> + Send,
        options: ReadOptions,
    ) -> Result<IoBufsMut, Error> {
        match self {
            Self::Runtime(blob) => blob.read_at_buf(offset, len, bufs, options).await,
            Self::Log(blob) => blob.read_at_buf(offset, len, bufs, options).await,
        }
    }

    async fn read_at(
        &self,
        offset: u64,
        len: usize,
        options: ReadOptions,
    ) -> Result<IoBufsMut, Error> {
        match self {
            Self::Runtime(blob) => blob.read_at(offset, len, options).await,
            Self::Log(blob) => blob.read_at(offset, len, options).await,
        }
    }

    async fn write_at(
        &self,
        offset: u64,
        bufs: impl Into<IoBufs> + Send,
        options: WriteOptions,
    ) -> Result<(), Error> {
        match self {
            Self::Runtime(blob) => blob.write_at(offset, bufs, options).await,
            Self::Log(blob) => blob.write_at(offset, bufs, options).await,
        }
    }

    async fn resize(&self, len: u64) -> Result<(), Error> {
        match self {
            Self::Runtime(blob) => blob.resize(len).await,
            Self::Log(blob) => blob.resize(len).await,
        }
    }

    async fn sync(&self) -> Result<(), Error> {
        match self {
            Self::Runtime(blob) => blob.sync().await,
            Self::Log(blob) => blob.sync().await,
        }
    }

    async fn start_sync(&self) -> Handle<()> {
        match self {
            Self::Runtime(blob) => blob.start_sync().await,
            Self::Log(blob) => blob.start_sync().await,
        }
    }
}

impl<L: Layer, B: Blob> Blob for LayeredBlob<L, B> {
    async fn read_at_buf(
        &self,
        offset: u64,
        len: usize,
        bufs: impl Into<IoBufsMut> + Send,
        options: ReadOptions,
    ) -> Result<IoBufsMut, Error> {
        let mut bufs: Option<IoBufsMut> = Some(bufs.into());
        let read = move || match bufs.take() {
            Some(bufs) => self.inner.read_at_buf(offset, len, bufs, options).boxed(),
            None => ready(Err(Error::ReadFailed)).boxed(),
        };
        self.layer.storage(Operation::Read, Box::new(read)).await
    }

    async fn read_at(
        &self,
        offset: u64,
        len: usize,
        options: ReadOptions,
    ) -> Result<IoBufsMut, Error> {
        let read = move || self.inner.read_at(offset, len, options).boxed();
        self.layer.storage(Operation::Read, Box::new(read)).await
    }

    async fn write_at(
        &self,
        offset: u64,
        bufs: impl Into<IoBufs> + Send,
        options: WriteOptions,
    ) -> Result<(), Error> {
        // In two steps where one would do: what fails while both are made in one counts as a failed
        // sync, after which nothing can be repeated, and it may only have been the room for
        // the write that was missing.
        let durable = options.contains(WriteOptions::SYNC);
        let options = options.without(WriteOptions::SYNC);
        // Copies share their bytes.
        let bufs: IoBufs = bufs.into();
        let write = move || self.inner.write_at(offset, bufs.clone(), options).boxed();
        self.layer.storage(Operation::Write, Box::new(write)).await?;
        if durable { self.sync().await } else { Ok(()) }
    }

    async fn resize(&self, len: u64) -> Result<(), Error> {
        let resize = move || self.inner.resize(len).boxed();
        self.layer.storage(Operation::Resize, Box::new(resize)).await
    }

    async fn sync(&self) -> Result<(), Error> {
        self.layer.storage(Operation::Sync, Box::new(|| self.inner.sync().boxed())).await
    }

    async fn start_sync(&self) -> Handle<()> {
        let start = || self.inner.start_sync().map(Ok).boxed();
        match self.layer.storage(Operation::Sync, Box::new(start)).await {
            Ok(started) => started,
            Err(error) => Handle::ready(Err(error)),
        }
    }
}

impl<C: Storage, L: Layer> Storage for LayeredRuntime<C, L> {
    type Blob = LayeredBlob<L, C::Blob>;

    async fn open_versioned(
        &self,
        partition: &str,
        name: &[u8],
        versions: RangeInclusive<BlobVersion>,
    ) -> Result<(Self::Blob, u64, BlobVersion), Error> {
        let open = move || match self.layer.blobs() {
            Some(blobs) => {
                let opened = blobs.open_blob(partition, name, &versions);
                let opened = async move {
                    let (blob, bytes, version) = opened?;
                    // All that is read after opening counts as durable.
                    if bytes > 0 {
                        blob.sync().await?;
                    }
                    Ok::<_, Error>((AnyBlob::<C::Blob>::Log(blob), bytes, version))
                };
                opened.boxed()
            }
            None => self
                .inner
                .open_versioned(partition, name, versions.clone())
                .map(|opened| {
                    opened.map(|(blob, bytes, version)| (AnyBlob::Runtime(blob), bytes, version))
                })
                .boxed(),
        };
        let (inner, bytes, version) = self.layer.storage(Operation::Open, Box::new(open)).await?;
        let blob = LayeredBlob { inner, layer: self.layer.clone() };
        Ok((blob, bytes, version))
    }

    async fn remove(&self, partition: &str, name: Option<&[u8]>) -> Result<(), Error> {
        let mut repeated = false;
        let remove = move || {
            let again = std::mem::replace(&mut repeated, true);
            let removed = match self.layer.blobs() {
                Some(blobs) => ready(blobs.remove(partition, name)).boxed(),
                None => self.inner.remove(partition, name).boxed(),
            };
            let removed = removed.map(move |removed| match removed {
                // The attempt before got as far as that.
                Err(Error::BlobMissing(..) | Error::PartitionMissing(_)) if again => Ok(()),
                removed => removed,
            });
            removed.boxed()
        };
        self.layer.storage(Operation::Remove, Box::new(remove)).await
    }

    async fn scan(&self, partition: &str) -> Result<Vec<Vec<u8>>, Error> {
        let scan = move || match self.layer.blobs() {
            Some(blobs) => ready(blobs.scan(partition)).boxed(),
            None => self.inner.scan(partition).boxed(),
        };
        self.layer.storage(Operation::Scan, Box::new(scan)).await
    }
}

impl<C: Clock, L: Layer> Clock for LayeredRuntime<C, L> {
    fn current(&self) -> SystemTime {
        self.layer.current(self.inner.current())
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send + 'static + use<C, L> {
        self.inner.sleep(duration)
    }

    fn sleep_until(
        &self,
        deadline: SystemTime,
    ) -> impl Future<Output = ()> + Send + 'static + use<C, L> {
        self.inner.sleep(deadline.duration_since(self.current()).unwrap_or_default())
    }
}

impl<C: Clock, L: Layer> Governed for LayeredRuntime<C, L> {
    type Instant = SystemTime;

    fn now(&self) -> SystemTime {
        self.current()
    }
}

impl<C: Clock, L: Layer> ReasonablyRealtime for LayeredRuntime<C, L> {}

impl<C: Supervisor, L: Layer> Supervisor for LayeredRuntime<C, L> {
    fn name(&self) -> Name {
        self.inner.name()
    }

    fn child(&self, label: &'static str) -> Self {
        Self { inner: self.inner.child(label), layer: self.layer.clone() }
    }

    fn with_attribute(self, key: &'static str, value: impl Display) -> Self {
        Self { inner: self.inner.with_attribute(key, value), layer: self.layer }
    }
}

impl<C: Spawner, L: Layer> Spawner for LayeredRuntime<C, L> {
    fn shared(self, blocking: bool) -> Self {
        Self { inner: self.inner.shared(blocking), layer: self.layer }
    }

    fn dedicated(self) -> Self {
        Self { inner: self.inner.dedicated(), layer: self.layer }
    }

    fn spawn<F, Fut, T>(self, task: F) -> Handle<T>
    where
        F: FnOnce(Self) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let layer = self.layer;
        // Boxed, so that what the runtime makes around a task is compiled once for each `T`, not
        // for each of the hundred kinds of task.
        let task: Box<dyn FnOnce(C) -> BoxFuture<'static, T> + Send> =
            Box::new(move |inner| task(Self { inner, layer }).boxed());
        self.inner.spawn(task)
    }

    async fn stop(self, value: i32, timeout: Option<Duration>) -> Result<(), Error> {
        self.inner.stop(value, timeout).await
    }

    fn stopped(&self) -> Signal {
        self.inner.stopped()
    }
}

impl<C: Metrics, L: Layer> Metrics for LayeredRuntime<C, L> {
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

impl<C: Network, L: Layer> Network for LayeredRuntime<C, L> {
    type Listener = C::Listener;

    async fn bind(&self, socket: SocketAddr) -> Result<Self::Listener, Error> {
        self.inner.bind(socket).await
    }

    async fn dial(&self, socket: SocketAddr) -> Result<(SinkOf<Self>, StreamOf<Self>), Error> {
        self.inner.dial(socket).await
    }
}

impl<C: Resolver, L: Layer> Resolver for LayeredRuntime<C, L> {
    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, Error> {
        self.inner.resolve(host).await
    }
}

impl<C: TryRng<Error = Infallible>, L> TryRng for LayeredRuntime<C, L> {
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

impl<C: TryCryptoRng<Error = Infallible>, L> TryCryptoRng for LayeredRuntime<C, L> {}

/// Time that advances evenly whatever happens to the wall clock. The machine's runtimes measure
/// timeouts, quotas and waits by the wall clock: a wall clock that is set back would delay all of
/// them by the same amount.
#[derive(Clone)]
pub(super) struct MonotonicClock(Arc<(SystemTime, Instant)>);

impl MonotonicClock {
    pub(super) fn starting_at(now: SystemTime) -> Self {
        Self(Arc::new((now, Instant::now())))
    }

    fn now(&self) -> SystemTime {
        self.0.0 + self.0.1.elapsed()
    }
}

/// The parts of its machine that a node replaces: the clock and the storage.
#[derive(Clone)]
pub(super) struct MachineLayer {
    pub(super) clock: MonotonicClock,
    pub(super) blobs: BlobLog,
}

impl Layer for MachineLayer {
    fn current(&self, _: SystemTime) -> SystemTime {
        self.clock.now()
    }

    fn blobs(&self) -> Option<&BlobLog> {
        Some(&self.blobs)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use commonware_runtime::{Runner as _, deterministic};

    use super::*;

    /// A wall clock that was set back by an hour.
    #[derive(Clone)]
    struct SetBackClock;

    impl Layer for SetBackClock {
        fn current(&self, now: SystemTime) -> SystemTime {
            now - Duration::from_secs(3_600)
        }
    }

    /// Notes what is done.
    #[derive(Clone, Default)]
    struct OperationRecorder(Arc<commonware_utils::sync::Mutex<Vec<Operation>>>);

    impl Layer for OperationRecorder {
        fn storage<'a, T: Send + 'a>(
            &'a self,
            operation: Operation,
            mut attempt: Attempt<'a, T>,
        ) -> BoxFuture<'a, Result<T, Error>> {
            self.0.lock().push(operation);
            attempt()
        }
    }

    #[test]
    fn a_durable_write_is_a_write_that_may_be_repeated_and_a_sync_that_may_not() {
        deterministic::Runner::default().start(|context| async move {
            let recorder = OperationRecorder::default();
            let storage = LayeredRuntime::new(context, recorder.clone());
            let (blob, ..) = storage.open("votes", b"1").await.unwrap();
            blob.write_at(0, b"12".to_vec(), WriteOptions::SYNC).await.unwrap();
            blob.write_at(2, b"34".to_vec(), WriteOptions::DONT_CACHE).await.unwrap();
            let done = [Operation::Open, Operation::Write, Operation::Sync, Operation::Write];
            assert_eq!(*recorder.0.lock(), done);
        });
    }

    // Promise: P21 - Timeouts and quotas use a monotonic clock.
    #[test]
    fn monotonic_clock_ignores_wall_clock_changes() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = BlobLog::open(disk::RealDisk::shared(), folder.path()).unwrap();
        deterministic::Runner::default().start(|context| async move {
            let start = context.current() + Duration::from_secs(10_000);
            let clock = MonotonicClock::starting_at(start);
            let context = LayeredRuntime::new(
                LayeredRuntime::new(context, SetBackClock),
                MachineLayer { clock, blobs },
            );
            let before = context.current();
            std::thread::sleep(Duration::from_millis(2));
            let after = context.current();
            assert!(before >= start && after - Duration::from_millis(2) >= before);
            assert!(Governed::now(&context) >= after, "quotas too");
        });
    }
}
