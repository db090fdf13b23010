//! One instance: a thread that has its state and does one thing after the other.
//!
//! Operations of clients come through a queue with a bounded number of places. While the instance
//! makes progress by itself (a client asked for it), the thread executes a round whenever there is
//! something to do, at the machine's time; otherwise a round is executed when an operation requests
//! it. An operation that fails for a defect, or a state that cannot continue, ends only the
//! instance: every later request to it is answered with the reason.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use execution::RoundResult;
use gateway::GatewayHandle;
use state::Time;
use tempfile::TempDir;

use crate::{
    bounds::OPERATIONS_WAITING,
    live_outcalls::{LiveOutcalls, OutcallClient},
    replica::{InstanceContext, Replica, Views},
    state_archive::{self, Description},
};

/// With nothing to do, rounds come this often while an instance makes progress by itself.
const IDLE_ROUND: Duration = Duration::from_millis(500);
/// The same where a canister has a heartbeat.
const HEARTBEAT_ROUND: Duration = Duration::from_millis(100);

pub(crate) enum Command {
    Do(Box<dyn FnOnce(&mut Instance) + Send>),
    /// A call came: look whether it is to be executed.
    Wake,
    /// Nothing more comes.
    Close,
}

pub(crate) struct Instance {
    /// Makes its HTTPS outcalls while it makes progress by itself. Given up first.
    live: Option<LiveOutcalls>,
    pub(crate) replica: Replica,
    /// Where it is to be kept.
    kept_in: Option<state_archive::Folder>,
    /// The state's files. Removed last.
    folder: TempDir,
    /// The time that it waits between rounds in addition, while it makes progress by itself.
    progress: Option<Duration>,
    makes_progress: Arc<AtomicBool>,
    /// Who makes them, and where.
    requests: (OutcallClient, tokio::runtime::Handle),
    commands: SyncSender<Command>,
    queue: Receiver<Command>,
    /// Work left by the last round.
    last: Option<RoundResult>,
    /// When it was executed.
    last_at: Instant,
    failure: Arc<RwLock<Option<String>>>,
}

/// An instance as known to the server.
pub(crate) struct Handle {
    pub(crate) shared: InstanceContext,
    pub(crate) views: Views,
    pub(crate) commands: SyncSender<Command>,
    pub(crate) makes_progress: Arc<AtomicBool>,
    pub(crate) failure: Arc<RwLock<Option<String>>>,
    /// Seed of the key that certifies its state.
    pub(crate) root_seed: [u8; 32],
    /// The endpoints of the interface specification.
    pub(crate) endpoints: std::sync::OnceLock<GatewayHandle>,
    /// Memory of the idle instance.
    _memory: accounting::Reservation,
    thread: std::sync::Mutex<Option<JoinHandle<Result<()>>>>,
}

impl Instance {
    /// A state that was opened, in `folder`, to be kept in another folder.
    pub(crate) fn new(
        replica: Replica,
        folder: TempDir,
        kept_in: Option<state_archive::Folder>,
        requests: (OutcallClient, tokio::runtime::Handle),
    ) -> Self {
        let (commands, queue) = sync_channel(OPERATIONS_WAITING);
        Self {
            live: None,
            replica,
            kept_in,
            folder,
            requests,
            commands,
            queue,
            progress: None,
            makes_progress: Arc::default(),
            last: None,
            last_at: Instant::now(),
            failure: Arc::default(),
        }
    }

    /// Executes a round. While the instance makes progress by itself, its time is the machine's, as
    /// far as that does not go back.
    ///
    /// # Errors
    /// If the instance cannot continue; it never does again then.
    pub(crate) fn round(&mut self) -> Result<&RoundResult> {
        // An awaited call executes many rounds: a deleted instance is not waited for that long.
        ensure!(!self.replica.shared.stop.is_closing(), "the instance is being deleted");
        if self.progress.is_some() {
            let now = machine_time();
            if now > self.replica.shared.now() {
                self.replica.set_time(now)?;
            }
        }
        let round = self.replica.round();
        self.last_at = Instant::now();
        if let Err(error) = &round {
            self.fail(format!("{error:#}"));
        }
        let round = round?;
        if let Some(live) = &self.live {
            live.set_open(self.replica.open_outcalls());
        }
        Ok(self.last.insert(round))
    }

    /// Makes progress by itself from now on, with a round at once; or no more.
    pub(crate) fn set_progress(&mut self, progress: Option<Duration>) -> Result<()> {
        self.progress = progress;
        self.live = progress.map(|_| {
            let (requests, runtime) = &self.requests;
            let begin = || requests.begin(runtime, &self.replica, self.commands.clone());
            self.live.take().unwrap_or_else(begin)
        });
        self.makes_progress.store(progress.is_some(), Ordering::Release);
        if progress.is_some() {
            self.round()?;
        }
        Ok(())
    }

    /// Whether servers outside are being asked, which takes a while.
    pub(crate) fn waits_for_servers(&self) -> bool {
        self.live.is_some() && !self.replica.open_outcalls().is_empty()
    }

    fn fail(&self, reason: String) {
        tracing::error!(%reason, "an instance cannot continue");
        let mut failure = self.failure.write().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(reason);
    }

    /// How long it is until a round comes by itself; none: for ever. It counts from the round
    /// before, however often clients ask for something meanwhile.
    fn wait(&self) -> Option<Duration> {
        let delay = self.progress?;
        let since = self.last_at.elapsed();
        let delay = delay.saturating_sub(since);
        let Some(last) = &self.last else { return Some(delay) };
        let shared = &self.replica.shared;
        let waits = last.more
            || !last.awaited.is_empty()
            || !shared.waiting.is_empty()
            || !shared.answers.is_empty();
        if waits {
            return Some(delay);
        }
        let idle = if last.every_round { HEARTBEAT_ROUND } else { IDLE_ROUND };
        let idle = idle.saturating_sub(since);
        let timer = last
            .next_timer
            .map_or(idle, |timer| Duration::from_nanos(timer.0.saturating_sub(machine_time().0)));
        Some(idle.min(timer).max(delay))
    }

    /// The next command; none when a round is to come first. Rounds and commands take turns where
    /// both are due.
    fn next(&mut self) -> Option<Command> {
        let is_whole = self.failure.read().unwrap_or_else(PoisonError::into_inner).is_none();
        let next = match self.wait().filter(|_| is_whole) {
            Some(Duration::ZERO) => {
                self.step(|instance| drop(instance.round()));
                match self.queue.try_recv() {
                    Err(TryRecvError::Empty) => return None,
                    received => received.map_err(|_| RecvTimeoutError::Disconnected),
                }
            }
            Some(wait) => self.queue.recv_timeout(wait),
            None => self.queue.recv().map_err(RecvTimeoutError::from),
        };
        match next {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            // It has a sender itself, so this does not come.
            Err(RecvTimeoutError::Disconnected) => Some(Command::Close),
        }
    }

    /// Does something that may meet a defect.
    fn step(&mut self, step: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| step(&mut *self))).is_err() {
            self.fail("an operation met a defect of the server; see its log".into());
        }
    }

    fn run(mut self) -> Result<()> {
        loop {
            match self.next() {
                Some(Command::Do(operation)) => self.step(operation),
                Some(Command::Close) => break,
                Some(Command::Wake) | None => {}
            }
            if self.replica.shared.stop.is_closing() {
                break;
            }
        }
        let kept = self.keep();
        if let Err(error) = &kept {
            tracing::error!("{error:#}");
        }
        kept
    }

    fn keep(&mut self) -> Result<()> {
        let Some(folder) = &self.kept_in else { return Ok(()) };
        if let Some(reason) = &*self.failure.read().unwrap_or_else(PoisonError::into_inner) {
            anyhow::bail!("{} is left as it was: {reason}", folder.path().display());
        }
        let description = Description {
            root_seed: self.replica.root_seed,
            subnets: self.replica.shared.subnets.plans(),
            time: self.replica.shared.now().0,
        };
        let packed = self.replica.checkpoint();
        let packed = packed.and_then(|()| folder.pack(self.folder.path(), &description));
        packed.map_err(|error| self.leave(error, &description))
    }

    /// What could not be kept stays where the server's own end does not reach it; the error with
    /// the place of it.
    fn leave(&self, error: anyhow::Error, description: &Description) -> anyhow::Error {
        let state = self.folder.path();
        let Some(parent) = state.parent().and_then(Path::parent) else { return error };
        match state_archive::leave(state, description, parent) {
            Ok(left) => error.context(format!(
                "the instance is not kept: its state was left in {}, which can be named as \
                 state_dir",
                left.display()
            )),
            Err(other) => error.context(format!("the instance is not kept, and lost: {other:#}")),
        }
    }

    pub(crate) fn start(
        self,
        root_seed: [u8; 32],
        memory: accounting::Reservation,
    ) -> Result<Handle> {
        let commands = self.commands.clone();
        let (shared, views) = (self.replica.shared.clone(), self.replica.views());
        let (makes_progress, failure) = (self.makes_progress.clone(), self.failure.clone());
        let thread = std::thread::Builder::new()
            .name("instance".into())
            .spawn(move || self.run())
            .context("starting the thread of an instance")?;
        Ok(Handle {
            shared,
            views,
            commands,
            makes_progress,
            failure,
            root_seed,
            endpoints: std::sync::OnceLock::new(),
            _memory: memory,
            thread: std::sync::Mutex::new(Some(thread)),
        })
    }
}

impl Handle {
    fn request_stop(&self) {
        self.shared.stop.close();
        // Where commands wait, the next one makes it look.
        let _ = self.commands.try_send(Command::Close);
    }

    /// Ends the thread, when it has done what it does, and keeps the state if it is to be kept.
    /// Blocks as long as that takes.
    ///
    /// # Errors
    /// When it was to be kept and is not.
    pub(crate) fn close(&self) -> Result<()> {
        self.request_stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread.map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(kept)) => kept,
            Some(Err(_)) => anyhow::bail!("the instance's thread met a defect of the server"),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.request_stop();
    }
}

pub(crate) fn machine_time() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
