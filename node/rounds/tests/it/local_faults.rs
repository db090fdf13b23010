//! Behaviour of the round loop on local faults: a disk that takes no checkpoints or no blocks,
//! memory that is short. The clock is simulated: waiting moves it and takes no time.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use consensus::{
    Certificate, Consensus, ConsensusError, Demand, FinalisedBatch, IngressPool, LogError,
    StateOffer, Step,
};
use disk::records::RecordError;
use execution::{FatalError, RoundResult};
use futures::{executor::block_on, future::BoxFuture};
use lifecycle::{Cause, Stop};
use limits::Limits;
use rounds::{
    Clock, DiskProbe, Driver, DriverExit, HistoryCapacity, Installation, MachineClock, Observer,
    OfferOutcome, Replica, RoundError, Settings,
};
use state::{AwaitedRoots, Batch, Fault, Height, Randomness, StoreError, Time};
use statesync::{InstallError, Progress};

const DAY: Duration = Duration::from_secs(86_400);

/// Advances while a task waits. At `stop_at` it requests a stop.
#[derive(Clone)]
struct SimulatedClock {
    now: Arc<Mutex<Duration>>,
    stop_at: Duration,
}

impl SimulatedClock {
    fn stopping_at(stop_at: Duration) -> Self {
        Self { now: Arc::default(), stop_at }
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Duration {
        *self.now.lock().unwrap()
    }

    fn sleep<'a>(&'a self, time: Duration, stop: &'a Stop) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let now = &mut *self.now.lock().unwrap();
            if stop.is_closing() {
                return;
            }
            *now += time;
            if *now >= self.stop_at {
                *now = self.stop_at;
                stop.close();
            }
        })
    }
}

/// A batch per millisecond of the clock, until the stop. Its log may refuse.
struct Batches {
    height: u64,
    clock: SimulatedClock,
    stop: Stop,
    log: FailingIo,
}

/// Fails the given number of times, with `error`.
#[derive(Clone)]
struct FailingIo {
    times: Arc<AtomicU64>,
    tried: Arc<AtomicU64>,
    error: fn() -> io::Error,
}

impl FailingIo {
    fn never() -> Self {
        Self::times(0, full)
    }

    fn times(times: u64, error: fn() -> io::Error) -> Self {
        Self { times: Arc::new(AtomicU64::new(times)), tried: Arc::default(), error }
    }

    fn attempt(&self) -> Result<(), io::Error> {
        self.tried.fetch_add(1, Ordering::Relaxed);
        let left = self.times.load(Ordering::Relaxed);
        self.times.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 0 { Ok(()) } else { Err((self.error)()) }
    }

    fn tried(&self) -> u64 {
        self.tried.load(Ordering::Relaxed)
    }
}

fn full() -> io::Error {
    io::Error::from(io::ErrorKind::StorageFull)
}

/// The I/O error `EIO` (5), which waiting does not mend.
fn broken() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl Consensus for Batches {
    fn next(&mut self, _: Demand) -> BoxFuture<'_, Result<Step, ConsensusError>> {
        Box::pin(async move {
            if self.stop.is_closing() {
                return Ok(Step::Closing);
            }
            self.log.attempt().map_err(|source| match source.kind() {
                io::ErrorKind::StorageFull => LogError::Records(RecordError::Io {
                    path: "log".into(),
                    doing: "appending",
                    source,
                }),
                _ => LogError::Damaged {
                    path: "log".into(),
                    offset: 7,
                    what: "a checksum does not fit".into(),
                    missing: "blocks 8 to 9".into(),
                },
            })?;
            self.height += 1;
            self.clock.sleep(Duration::from_millis(1), &self.stop).await;
            let batch = Batch {
                height: Height(self.height),
                time: Time(self.height),
                randomness: Randomness::NONE,
                ingress: vec![],
                outcalls: vec![],
                key: None,
                agreed: None,
                queries: None,
            };
            Ok(Step::Execute(FinalisedBatch { batch, recorded: None }))
        })
    }

    fn executed(
        &mut self,
        _: Height,
        _: [u8; 32],
        _: Vec<Fault>,
    ) -> BoxFuture<'_, Result<Vec<Certificate>, ConsensusError>> {
        Box::pin(async { Ok(vec![]) })
    }

    fn checkpointed(&mut self, _: Height) -> Result<(), ConsensusError> {
        Ok(())
    }

    fn certificates_pending(&self) -> u64 {
        0
    }
}

/// Wants a checkpoint every hundred batches, and its disk may refuse.
struct Checkpoints {
    height: Height,
    saved: Height,
    /// The next batch has to wait for it.
    pressing: bool,
    /// Batches make one themselves after one has failed, as for room in the delta log.
    makes_room: bool,
    disk: FailingIo,
}

struct CompleteInstallation;

impl Installation for CompleteInstallation {
    fn is_complete(&self) -> bool {
        true
    }

    fn missing(&mut self, _: usize) -> Result<Vec<Vec<u8>>, InstallError> {
        Ok(vec![])
    }

    fn offer(&mut self, _: &[u8], _: &[u8]) -> Result<OfferOutcome, InstallError> {
        Ok(OfferOutcome::NotWanted)
    }

    fn progress(&self) -> Progress {
        Progress::default()
    }

    fn prepare(self) -> Result<(), InstallError> {
        Ok(())
    }
}

impl Replica for Checkpoints {
    type Installation = CompleteInstallation;

    fn height(&self) -> Height {
        self.height
    }

    fn execute(&mut self, batch: &Batch, _: &[Fault]) -> Result<RoundResult, FatalError> {
        assert!(!(self.pressing && self.checkpoint_due()), "a batch that had to wait was executed");
        self.height = batch.height;
        if self.makes_room && self.disk.tried() > 0 {
            self.saved = self.height;
        }
        Ok(RoundResult {
            root: [0; 32],
            finished: vec![],
            verdicts: vec![],
            instructions: 0,
            messages: 0,
            more: true,
            next_timer: None,
            awaited: AwaitedRoots::default(),
            every_round: false,
            manifest: false,
        })
    }

    fn certify(&mut self, _: Height, _: Vec<u8>) -> Result<(), FatalError> {
        Ok(())
    }

    fn room(&self) -> HistoryCapacity {
        HistoryCapacity { calls: 1, free: 1, capacity: 1 }
    }

    fn checkpoint_due(&self) -> bool {
        self.height.0 >= self.saved.0 + 100
    }

    fn checkpoint_pressing(&self) -> bool {
        self.pressing && self.checkpoint_due()
    }

    fn checkpoint(&mut self) -> Result<(), FatalError> {
        self.disk.attempt().map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull => StoreError::DiskFull("state.redb".into()),
            _ => StoreError::Io("state.redb".into(), source),
        })?;
        self.saved = self.height;
        Ok(())
    }

    fn install(&self, _: &Path, _: &StateOffer) -> Result<CompleteInstallation, RoundError> {
        Ok(CompleteInstallation)
    }
}

/// A disk with this number of free bytes.
#[derive(Clone)]
struct FreeSpace(u64);

impl fmt::Display for FreeSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the disk of the test")
    }
}

impl DiskProbe for FreeSpace {
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.0)
    }

    fn write(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Memory that stays short.
struct ShortMemory {
    held: bool,
    clock: SimulatedClock,
    last: Duration,
    /// Longest time between two batches.
    longest: Arc<Mutex<Duration>>,
}

impl Observer<Checkpoints> for ShortMemory {
    fn is_held(&self) -> bool {
        self.held
    }

    fn begins(&mut self, _: &FinalisedBatch, _: u64) {
        let now = self.clock.now();
        let longest = &mut *self.longest.lock().unwrap();
        *longest = (*longest).max(now - self.last);
        self.last = now;
    }
}

struct Run {
    ended: Result<DriverExit, RoundError>,
    height: u64,
    now: Duration,
    longest: Duration,
    refusing: Option<String>,
    health: lifecycle::Health,
}

struct Setup {
    clock: SimulatedClock,
    log: FailingIo,
    checkpoints: FailingIo,
    pressing: bool,
    makes_room: bool,
    held: bool,
    free: u64,
}

impl Setup {
    fn until(stop_at: Duration) -> Self {
        Self {
            clock: SimulatedClock::stopping_at(stop_at),
            log: FailingIo::never(),
            checkpoints: FailingIo::never(),
            pressing: true,
            makes_room: false,
            held: false,
            free: u64::MAX,
        }
    }

    fn run(self) -> Run {
        let limits = Limits::nano().unwrap();
        let pool = Arc::new(IngressPool::new(&limits.consensus));
        let clock = self.clock;
        let heights = Arc::new(AtomicU64::new(0));
        let consensus = HeightRecorder(
            Batches { height: 0, clock: clock.clone(), stop: pool.stop().clone(), log: self.log },
            heights.clone(),
        );
        let replica = Checkpoints {
            height: Height(0),
            saved: Height(0),
            pressing: self.pressing,
            makes_room: self.makes_room,
            disk: self.checkpoints,
        };
        let longest = Arc::new(Mutex::default());
        let observer = ShortMemory {
            held: self.held,
            clock: clock.clone(),
            last: Duration::ZERO,
            longest: longest.clone(),
        };
        let settings = Settings {
            folder: PathBuf::new(),
            recovered_at: Height(0),
            disk_reserve_bytes: 1_000,
            checkpoint_block_bytes: u64::MAX,
            certificates_kept: 1,
        };
        let driver = Driver::new(
            Box::new(consensus),
            replica,
            clock.clone(),
            FreeSpace(self.free),
            observer,
            pool.clone(),
            settings,
        );
        let ended = block_on(driver.run());
        Run {
            ended,
            height: heights.load(Ordering::Relaxed),
            now: clock.now(),
            longest: *longest.lock().unwrap(),
            refusing: pool.refusing(),
            health: pool.health().clone(),
        }
    }
}

/// Reports the progress of the batches.
struct HeightRecorder(Batches, Arc<AtomicU64>);

impl Consensus for HeightRecorder {
    fn next(&mut self, demand: Demand) -> BoxFuture<'_, Result<Step, ConsensusError>> {
        self.0.next(demand)
    }

    fn executed(
        &mut self,
        height: Height,
        root: [u8; 32],
        faults: Vec<Fault>,
    ) -> BoxFuture<'_, Result<Vec<Certificate>, ConsensusError>> {
        self.1.store(height.0, Ordering::Relaxed);
        self.0.executed(height, root, faults)
    }

    fn checkpointed(&mut self, height: Height) -> Result<(), ConsensusError> {
        self.0.checkpointed(height)
    }

    fn certificates_pending(&self) -> u64 {
        0
    }
}

// Promise: P7 - A failed checkpoint is retried after waits that double up to 10 s.
#[test]
fn transient_checkpoint_failure_is_retried_with_backoff() {
    let disk = FailingIo::times(u64::MAX, full);
    let run = Setup { checkpoints: disk.clone(), ..Setup::until(DAY) }.run();
    assert_eq!(run.ended.unwrap(), DriverExit::Stopped);
    // One every ten seconds, some more in the beginning, one at the end.
    assert!((8_000..8_700).contains(&disk.tried()), "{} attempts in a day", disk.tried());
    assert_eq!(run.height, 100, "nothing is executed while a checkpoint is owed");
    assert_eq!(run.now, DAY, "the stop ends the wait, and nothing waits after it");
    assert!(run.health.has(Cause::Checkpoint) && run.refusing.unwrap().contains("checkpoint"));
}

// Promise: P7 - Rounds continue during the retry of a checkpoint that is not due.
#[test]
fn rounds_continue_while_an_optional_checkpoint_fails() {
    let disk = FailingIo::times(20, full);
    let minutes = Duration::from_secs(360);
    let run = Setup { checkpoints: disk.clone(), pressing: false, ..Setup::until(minutes) }.run();
    assert_eq!(run.ended.unwrap(), DriverExit::Stopped);
    assert_eq!(run.height, 360_000, "a batch per millisecond");
    // Twenty that failed, then one per hundred batches.
    assert!(disk.tried() > 20 + 2_000, "{}", disk.tried());
    assert_eq!(run.refusing, None, "a checkpoint that was made withdraws the reason");
}

// Promise: P7 - A checkpoint that a batch made for room withdraws the reason of a failed one.
#[test]
fn updates_are_accepted_after_a_batch_made_the_checkpoint_itself() {
    let disk = FailingIo::times(1, full);
    let setup = Setup::until(Duration::from_secs(60));
    let run = Setup { checkpoints: disk.clone(), pressing: false, makes_room: true, ..setup }.run();
    assert_eq!(run.ended.unwrap(), DriverExit::Stopped);
    // The one that failed, its repetition, and the one of the stop.
    assert_eq!((run.refusing, disk.tried()), (None, 3));
    assert!(!run.health.has(Cause::Checkpoint));
}

// Promise: P7 - A checkpoint that cannot succeed ends the node with an error message.
#[test]
fn permanent_checkpoint_failure_ends_the_node_with_an_error() {
    for pressing in [false, true] {
        let disk = FailingIo::times(u64::MAX, broken);
        let run = Setup { checkpoints: disk.clone(), pressing, ..Setup::until(DAY) }.run();
        let error = run.ended.unwrap_err();
        assert!(matches!(error, RoundError::Checkpoint { height: 100, .. }), "{error}");
        let text = error.with_sources();
        assert!(text.contains("checkpoint of height 100") && text.contains("state.redb"), "{text}");
        assert_eq!(disk.tried(), 1);
    }
}

// Promise: P7 - A failed block log write is retried, and updates are refused with the reason
//   meanwhile.
#[test]
fn transient_log_failure_is_retried_and_its_reason_withdrawn() {
    let log = FailingIo::times(100, full);
    let run = Setup { log: log.clone(), ..Setup::until(Duration::from_secs(1_200)) }.run();
    assert_eq!(run.ended.unwrap(), DriverExit::Stopped);
    assert_eq!(run.refusing, None);
    assert!(run.longest > Duration::from_secs(900) && run.longest < Duration::from_secs(1_000));
    assert!(run.height > 200_000, "{}", run.height);
}

// Promise: P7 - A block log that cannot be written ends the node with an error message.
#[test]
fn permanent_log_failure_ends_the_node_with_an_error() {
    let log = FailingIo::times(u64::MAX, broken);
    let run = Setup { log: log.clone(), ..Setup::until(DAY) }.run();
    let text = run.ended.unwrap_err().with_sources();
    assert!(text.contains("block log"), "{text}");
    assert_eq!(log.tried(), 1);
}

// Promise: P7 - A stop ends the wait for a full log.
#[test]
fn stop_ends_the_wait_for_a_full_log() {
    let log = FailingIo::times(u64::MAX, full);
    let run = Setup { log: log.clone(), ..Setup::until(DAY) }.run();
    assert_eq!(run.ended.unwrap(), DriverExit::Stopped);
    assert!((8_000..8_700).contains(&log.tried()), "{} attempts in a day", log.tried());
    assert_eq!(run.now, DAY);
}

// Promise: P2 - A batch waits at most 10 s for memory.
#[test]
fn a_batch_waits_ten_seconds_for_memory_and_no_longer() {
    let run = Setup { held: true, ..Setup::until(Duration::from_secs(3_600)) }.run();
    assert_eq!(run.ended.unwrap(), DriverExit::Stopped);
    let timeout = Duration::from_secs(10);
    assert!(
        run.longest >= timeout && run.longest < timeout + Duration::from_millis(10),
        "{:?}",
        run.longest
    );
    assert_eq!(run.height, 359);
}

// Promise: P7 - Updates are refused below the disk reserve.
#[test]
fn updates_are_refused_under_the_disk_reserve() {
    let run = Setup { free: 999, ..Setup::until(Duration::from_secs(10)) }.run();
    let reason = run.refusing.unwrap();
    assert!(reason.contains("999") && reason.contains("1000"), "{reason}");
}

#[test]
fn a_stop_ends_a_wait_on_the_machines_clock() {
    let (clock, stop) = (MachineClock::since(std::time::Instant::now()), Stop::new());
    let closer = std::thread::spawn({
        let stop = stop.clone();
        move || stop.close()
    });
    // Ends with the test's time limit if the stop does not end it.
    block_on(clock.sleep(DAY, &stop));
    closer.join().unwrap();
}
