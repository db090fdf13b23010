//! The engine's storage, which waits for the disk: what cannot be written now, because there is no room or nothing more can be opened, is tried again in place.
//!
//! The engine's actors take a failed write for the end of the world and panic, and a node whose disk was full for a moment would have to be started again. A write says
//! where it goes, so it may be repeated. A failed sync is handed on: after it nobody knows what is on the disk, and the engine has to end.
//!
//! While it waits the driver is told, which refuses updates and says on `/health` what is the matter.

use std::{
    convert::Infallible,
    fmt::Display,
    future::Future,
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, SystemTime},
};

use commonware_runtime::{
    Blob, BlobVersion, Clock, Error, Handle, IoBufs, IoBufsMut, Metrics, Name, ReadOptions, Spawner, Storage,
    Supervisor, WriteOptions,
    signal::Signal,
    telemetry::metrics::{Metric, Registered},
    tokio::Context,
};
use commonware_utils::sync::Mutex;
use futures::channel::mpsc;
use governor::clock::{Clock as Governed, ReasonablyRealtime};
use rand_core::{TryCryptoRng, TryRng};

use super::Input;

/// First wait before an operation is tried again, doubled each time.
const WAIT_FIRST: Duration = Duration::from_millis(20);
/// Longest wait.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// The engine's runtime with such a storage. Everything else goes through as it is.
pub(super) struct Patient {
    inner: Context,
    driver: Driver,
}

impl Patient {
    pub(super) fn new(inner: Context, driver: mpsc::Sender<Input>) -> Self {
        Self { inner, driver: Arc::new(Mutex::new(driver)) }
    }
}

/// To whom trouble is told. One sender for all files: each has a place of its own in the channel.
type Driver = Arc<Mutex<mpsc::Sender<Input>>>;

/// Whether the same operation may succeed later, having done nothing that must not be repeated.
fn may_heal(error: &Error) -> bool {
    matches!(
        error,
        Error::WriteFailed
            | Error::PartitionCreationFailed(_)
            | Error::BlobOpenFailed(..)
            | Error::BlobResizeFailed(..)
            | Error::Io(_)
    )
}

/// Tries `operation` until it succeeds or fails for good.
async fn patiently<T, F: Future<Output = Result<T, Error>>>(
    clock: &Context,
    driver: &Driver,
    what: &str,
    mut operation: impl FnMut() -> F,
) -> Result<T, Error> {
    let mut wait = WAIT_FIRST;
    loop {
        match operation().await {
            Err(error) if may_heal(&error) => {
                if wait == WAIT_FIRST {
                    tracing::warn!(%error, what, "the engine's storage fails; it is tried until it works");
                }
                // When there is no room the driver has not yet seen what it was told before.
                let _ = driver.lock().try_send(Input::Trouble(format!("{what}: {error}")));
                clock.sleep(wait).await;
                wait = (wait * 2).min(WAIT_MAX);
            }
            done => return done,
        }
    }
}

/// A file of this storage.
pub(super) struct PatientBlob {
    inner: <Context as Storage>::Blob,
    clock: Arc<Context>,
    driver: Driver,
}

impl Blob for PatientBlob {
    async fn read_at_buf(
        &self,
        offset: u64,
        len: usize,
        bufs: impl Into<IoBufsMut> + Send,
        options: ReadOptions,
    ) -> Result<IoBufsMut, Error> {
        self.inner.read_at_buf(offset, len, bufs, options).await
    }

    async fn read_at(&self, offset: u64, len: usize, options: ReadOptions) -> Result<IoBufsMut, Error> {
        self.inner.read_at(offset, len, options).await
    }

    async fn write_at(
        &self,
        offset: u64,
        bufs: impl Into<IoBufs> + Send,
        options: WriteOptions,
    ) -> Result<(), Error> {
        // Copies share their bytes.
        let bufs: IoBufs = bufs.into();
        let write = || self.inner.write_at(offset, bufs.clone(), options);
        patiently(&self.clock, &self.driver, "writing", write).await
    }

    async fn resize(&self, len: u64) -> Result<(), Error> {
        patiently(&self.clock, &self.driver, "resizing", || self.inner.resize(len)).await
    }

    async fn sync(&self) -> Result<(), Error> {
        self.inner.sync().await
    }

    async fn start_sync(&self) -> Handle<()> {
        self.inner.start_sync().await
    }
}

impl Storage for Patient {
    type Blob = PatientBlob;

    async fn open_versioned(
        &self,
        partition: &str,
        name: &[u8],
        versions: RangeInclusive<BlobVersion>,
    ) -> Result<(PatientBlob, u64, BlobVersion), Error> {
        let open = || self.inner.open_versioned(partition, name, versions.clone());
        let (inner, bytes, version) = patiently(&self.inner, &self.driver, "opening", open).await?;
        let clock = Arc::new(self.inner.child("disk"));
        Ok((PatientBlob { inner, clock, driver: self.driver.clone() }, bytes, version))
    }

    async fn remove(&self, partition: &str, name: Option<&[u8]>) -> Result<(), Error> {
        self.inner.remove(partition, name).await
    }

    async fn scan(&self, partition: &str) -> Result<Vec<Vec<u8>>, Error> {
        self.inner.scan(partition).await
    }
}

impl Supervisor for Patient {
    fn name(&self) -> Name {
        self.inner.name()
    }

    fn child(&self, label: &'static str) -> Self {
        Self { inner: self.inner.child(label), driver: self.driver.clone() }
    }

    fn with_attribute(self, key: &'static str, value: impl Display) -> Self {
        Self { inner: self.inner.with_attribute(key, value), driver: self.driver }
    }
}

impl Spawner for Patient {
    fn shared(self, blocking: bool) -> Self {
        Self { inner: self.inner.shared(blocking), driver: self.driver }
    }

    fn dedicated(self) -> Self {
        Self { inner: self.inner.dedicated(), driver: self.driver }
    }

    fn spawn<F, Fut, T>(self, task: F) -> Handle<T>
    where
        F: FnOnce(Self) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let driver = self.driver;
        self.inner.spawn(move |inner| task(Self { inner, driver }))
    }

    async fn stop(self, value: i32, timeout: Option<Duration>) -> Result<(), Error> {
        self.inner.stop(value, timeout).await
    }

    fn stopped(&self) -> Signal {
        self.inner.stopped()
    }
}

impl Metrics for Patient {
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

impl Clock for Patient {
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

impl Governed for Patient {
    type Instant = SystemTime;

    fn now(&self) -> SystemTime {
        self.inner.current()
    }
}

impl ReasonablyRealtime for Patient {}

impl TryRng for Patient {
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

impl TryCryptoRng for Patient {}
