//! Waiting for this machine: retries of a round when memory, disk, descriptors or workers fail.
//!
//! A fault of one machine is never a result, because another machine would not have had it. The
//! failed step is tried again, on the same thread, until it succeeds; between two attempts
//! [`RetryPolicy::wait`] decides how long to wait and whom to inform. When the node is closing, the
//! round ends with [`FatalError::Closing`] and is executed again at the next start.

use std::fmt;
use std::sync::Arc;

use pages::PagesError;
use sandbox::Sandbox;
use state::{BlobError, Fault, Height, PayloadError};
use thiserror::Error;

use crate::config::FatalError;

/// Attempts after which a failure is attributed to the message itself.
pub const ATTEMPTS_BEFORE_VERDICT: u32 = 3;

/// Where in the execution of batches something happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutionPoint {
    /// Height of the batch that the round executes.
    pub height: Height,
    /// The message; none for what concerns the whole round.
    pub message: Option<Fault>,
}

impl ExecutionPoint {
    /// The arguments of `thimble reject` that name it.
    pub fn arguments(&self) -> String {
        match &self.message {
            Some(message) => {
                format!("{} {} {}", self.height.0, message.canister_id, message.ordinal)
            }
            None => self.height.0.to_string(),
        }
    }
}

impl fmt::Display for ExecutionPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "height {}", self.height.0)?;
        match &self.message {
            Some(Fault { canister_id, ordinal }) => {
                write!(f, ", message {ordinal} of canister {canister_id}")
            }
            None => Ok(()),
        }
    }
}

/// A step of a round that failed for reasons of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalFault {
    /// The round, and the message where the step concerns a single one.
    pub place: ExecutionPoint,
    /// The failure, with the limit and its value where there is one.
    pub what: String,
    /// Attempts that failed so far, from 1.
    pub attempt: u32,
    /// Whether running the message causes it, so that rejecting the message would end it.
    pub runs_message: bool,
}

impl LocalFault {
    /// Whether an operator may have to decide: the message may be what ends its workers. Then the
    /// arguments of `thimble reject` that name it.
    pub fn awaits_verdict(&self) -> Option<String> {
        let awaits = self.runs_message && self.place.message.is_some();
        (awaits && self.attempt >= ATTEMPTS_BEFORE_VERDICT).then(|| self.place.arguments())
    }
}

impl fmt::Display for LocalFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// The node is closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the node is closing")]
pub struct Closing;

/// How this node waits for itself. Called from the round thread and from execution threads, several
/// at once.
pub trait RetryPolicy: Send + Sync {
    /// Waits before the same step is tried again.
    ///
    /// # Errors
    /// When the node is closing.
    fn wait(&self, trouble: &LocalFault) -> Result<(), Closing>;

    /// The step succeeded, or is not tried any more. Called once for each step that waited.
    fn resolved(&self, trouble: &LocalFault);
}

/// Tries again at once and for ever. For tests and simulations, where other threads make the
/// progress that is waited for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Persistent;

impl RetryPolicy for Persistent {
    fn wait(&self, _: &LocalFault) -> Result<(), Closing> {
        std::thread::yield_now();
        Ok(())
    }

    fn resolved(&self, _: &LocalFault) {}
}

/// An error that says whether it can be over at the next attempt.
pub(crate) trait Transient: fmt::Display + Into<FatalError> {
    fn can_heal(&self) -> bool;
}

macro_rules! transient {
    ($($error:ty),*) => {
        $(impl Transient for $error {
            fn can_heal(&self) -> bool {
                <$error>::can_heal(self)
            }
        })*
    };
}

transient!(PagesError, BlobError, PayloadError, FatalError);

/// One step that is tried until it succeeds.
pub(crate) struct Attempts<'a> {
    retry: &'a Arc<dyn RetryPolicy>,
    sandbox: &'a dyn Sandbox,
    trouble: LocalFault,
    /// Attempts that the machine failed before the message could begin.
    of_machine: u32,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(
        retry: &'a Arc<dyn RetryPolicy>,
        sandbox: &'a dyn Sandbox,
        place: ExecutionPoint,
    ) -> Self {
        Self {
            retry,
            sandbox,
            trouble: LocalFault { place, what: String::new(), attempt: 0, runs_message: false },
            of_machine: 0,
        }
    }

    pub(crate) fn of_a_message(mut self) -> Self {
        self.trouble.runs_message = true;
        self
    }

    /// Does `step` until it succeeds or cannot.
    pub(crate) fn until<T, E: Transient>(
        &mut self,
        mut step: impl FnMut() -> Result<T, E>,
    ) -> Result<T, FatalError> {
        loop {
            match step() {
                Ok(done) => return Ok(done),
                Err(error) if error.can_heal() => self.wait(error.to_string())?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// [`Self::wait`] for something that the message, if the step is to run one, has no part in.
    pub(crate) fn wait_for_machine(&mut self, what: String) -> Result<(), FatalError> {
        let runs_message = std::mem::take(&mut self.trouble.runs_message);
        let attempt = std::mem::replace(&mut self.trouble.attempt, self.of_machine);
        let waited = self.wait(what);
        self.of_machine = self.trouble.attempt;
        (self.trouble.runs_message, self.trouble.attempt) = (runs_message, attempt);
        waited
    }

    /// Waits until the step may be tried again.
    ///
    /// # Errors
    /// [`FatalError::Closing`].
    pub(crate) fn wait(&mut self, what: String) -> Result<(), FatalError> {
        self.trouble.what = what;
        self.trouble.attempt = self.trouble.attempt.saturating_add(1);
        // Room that this node has taken itself is not what it should wait for.
        self.sandbox.free_memory();
        self.retry.wait(&self.trouble).map_err(|Closing| FatalError::Closing)
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        if self.trouble.attempt > 0 || self.of_machine > 0 {
            self.retry.resolved(&self.trouble);
        }
    }
}
