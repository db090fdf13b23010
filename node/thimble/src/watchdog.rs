//! The watchdog: reports a round or checkpoint that does not end.
//!
//! The round loop records its activity, execution records which message each thread runs, and each
//! request for `/health` computes the difference to the clock. So the report needs no thread of its
//! own and is right even while every other thread waits. The governor's thread logs it.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use execution::{RunningMessage, RunningMessages};
use lifecycle::Reason;
use state::Height;

/// A round or checkpoint that takes longer is reported. Rounds of legitimate work end within about
/// two seconds; the compilation of the largest module takes some seconds more.
pub(crate) const STALL_AFTER: Duration = Duration::from_secs(10);
/// From here on new calls are refused: they would expire before they could be executed.
pub(crate) const REFUSE_AFTER: Duration = Duration::from_secs(60);
/// A message that runs for less within a stalled round is one of many, and not the reason.
const SUSPECT_AFTER: Duration = Duration::from_secs(5);

/// Activity of the round loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Executes a batch and records its outcome.
    Round,
    Checkpoint,
}

#[derive(Clone, Copy, Debug)]
struct Active {
    stage: Stage,
    height: Height,
    since: Instant,
}

#[derive(Debug)]
pub(crate) struct Watchdog {
    running: RunningMessages,
    pub(crate) data_dir: PathBuf,
    active: Mutex<Option<Active>>,
}

impl Watchdog {
    pub(crate) fn new(running: RunningMessages, data_dir: &Path) -> Self {
        Self { running, data_dir: data_dir.to_owned(), active: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begins(&self, stage: Stage, height: Height, now: Instant) {
        *self.lock() = Some(Active { stage, height, since: now });
    }

    pub(crate) fn ends(&self) {
        *self.lock() = None;
    }

    pub(crate) fn active(&self, now: Instant) -> Option<(Stage, Height, Duration)> {
        let active = (*self.lock())?;
        Some((active.stage, active.height, now.saturating_duration_since(active.since)))
    }

    /// The stage that has lasted for longer than [`STALL_AFTER`].
    pub(crate) fn stall(&self, now: Instant) -> Option<Stall> {
        let (stage, height, lasts) =
            self.active(now).filter(|(_, _, lasts)| *lasts > STALL_AFTER)?;
        let message = self.running.longest().map(|message| {
            let runs = now.saturating_duration_since(message.since);
            (message, runs)
        });
        Some(Stall { stage, height, lasts, message, data_dir: self.data_dir.clone() })
    }
}

/// A round or checkpoint that has not ended, as an operator reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    pub(crate) stage: Stage,
    pub(crate) height: Height,
    pub(crate) lasts: Duration,
    /// The message that has run for the longest time, and for how long.
    message: Option<(RunningMessage, Duration)>,
    data_dir: PathBuf,
}

impl Stall {
    /// As the operator and as clients read it: without the folder and the command.
    pub(crate) fn reason(&self) -> Reason {
        Reason { text: self.to_string(), client_text: self.client_text() }
    }

    fn client_text(&self) -> String {
        let (height, seconds) = (self.height.0, self.lasts.as_secs());
        if self.stage == Stage::Checkpoint {
            return format!(
                "the checkpoint of height {height} has not ended for {seconds} s: the disk is slow \
                 or does not answer; no call is executed meanwhile"
            );
        }
        let doing = match &self.message {
            Some((message, runs)) => {
                let what = if message.what.is_empty() { "being prepared" } else { &message.what };
                format!("{} ({what}) has been running for {} s", message.point, runs.as_secs())
            }
            None => "no message runs; its outcome is being hashed or recorded".to_owned(),
        };
        format!("the round of height {height} has not ended for {seconds} s: {doing}")
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.client_text())?;
        let folder = self.data_dir.display();
        match &self.message {
            _ if self.stage == Stage::Checkpoint => write!(f, " (data folder {folder})"),
            Some((message, runs)) if *runs >= SUSPECT_AFTER => write!(
                f,
                "; if it never ends, on every node, have the message rejected: thimble reject \
                 --data-dir {folder} {}, then start the node again",
                message.point.arguments()
            ),
            _ => Ok(()),
        }
    }
}

/// Which reports of one stall were logged: the first, and then one each time its length doubled.
#[derive(Debug, Default)]
pub(crate) struct StallLog {
    logged: Option<(Stage, Height, Duration)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StallEvent {
    Lasts(Stall),
    /// One that was logged has ended.
    Ended(Stage, Height),
}

impl StallLog {
    pub(crate) fn next(&mut self, stall: Option<Stall>) -> Option<StallEvent> {
        match (&self.logged, stall) {
            (Some((stage, height, lasted)), Some(stall))
                if (*stage, *height) == (stall.stage, stall.height)
                    && stall.lasts < lasted.saturating_mul(2) =>
            {
                None
            }
            (_, Some(stall)) => {
                self.logged = Some((stall.stage, stall.height, stall.lasts));
                Some(StallEvent::Lasts(stall))
            }
            (Some(_), None) => {
                let (stage, height, _) = self.logged.take()?;
                Some(StallEvent::Ended(stage, height))
            }
            (None, None) => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use execution::{ExecutionPoint, ExecutorConfig};
    use state::Fault;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn watchdog() -> Watchdog {
        Watchdog::new(RunningMessages::new(2), Path::new("/data"))
    }

    fn message(height: u64, since: Instant) -> RunningMessage {
        let message = Fault { canister_id: ExecutorConfig::canister_id(3), ordinal: 4 };
        let point = ExecutionPoint { height: Height(height), message: Some(message) };
        RunningMessage { point, what: "method spin".into(), since }
    }

    // Promise: P21 - A round that has not ended after 10 s is reported as stalled.
    #[test]
    fn round_is_stalled_after_ten_seconds_and_not_before() {
        let (watchdog, begun) = (watchdog(), Instant::now());
        assert_eq!(watchdog.stall(begun + 100 * SECOND), None, "no round runs");
        watchdog.begins(Stage::Round, Height(7), begun);
        assert_eq!(watchdog.stall(begun + STALL_AFTER), None);
        let stall = watchdog.stall(begun + STALL_AFTER + SECOND).unwrap();
        assert_eq!((stall.height, stall.lasts), (Height(7), STALL_AFTER + SECOND));
        watchdog.ends();
        assert_eq!(watchdog.stall(begun + 100 * SECOND), None);
    }

    #[test]
    fn rounds_that_end_are_never_stalled_however_many_they_are() {
        let (watchdog, begun) = (watchdog(), Instant::now());
        for round in 0..100 {
            let now = begun + round * 9 * SECOND;
            watchdog.begins(Stage::Round, Height(u64::from(round)), now);
            assert_eq!(watchdog.stall(now + 9 * SECOND), None);
            watchdog.ends();
        }
    }

    // Promise: P21 - A stall is reported with height, message and the `thimble reject` command.
    #[test]
    fn stall_names_height_message_and_reject_command() {
        let now = Instant::now();
        let stall = |runs| Stall {
            stage: Stage::Round,
            height: Height(7),
            lasts: 11 * SECOND,
            message: Some((message(7, now), runs)),
            data_dir: "/data".into(),
        };
        let (text, id) = (stall(11 * SECOND).to_string(), ExecutorConfig::canister_id(3));
        for part in [
            "the round of height 7",
            "method spin",
            &format!("message 4 of canister {id}"),
            &format!("thimble reject --data-dir /data 7 {id} 4"),
        ] {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
        let client_text = stall(11 * SECOND).reason().client_text;
        assert!(client_text.contains("method spin"), "{client_text}");
        for part in ["/data", "thimble reject"] {
            assert!(!client_text.contains(part), "`{part}` in {client_text}");
        }
        let short = stall(SECOND).to_string();
        assert!(!short.contains("thimble reject"), "one message of many is not blamed: {short}");
    }

    // Promise: P21 - A stalled checkpoint is reported as such.
    #[test]
    fn checkpoint_is_told_apart_from_a_round() {
        let (watchdog, begun) = (watchdog(), Instant::now());
        watchdog.begins(Stage::Checkpoint, Height(7), begun);
        let stall = watchdog.stall(begun + 20 * SECOND).unwrap();
        assert!(!stall.reason().client_text.contains("/data"));
        let text = stall.to_string();
        assert!(text.contains("checkpoint of height 7") && text.contains("/data"), "{text}");
        assert!(!text.contains("thimble reject"), "{text}");
    }

    // Promise: P21 - A stall is logged when its length doubles and when it ends.
    #[test]
    fn stall_is_logged_when_its_length_doubles_and_when_it_ends() {
        let (watchdog, begun) = (watchdog(), Instant::now());
        let mut log = StallLog::default();
        watchdog.begins(Stage::Round, Height(7), begun);
        let logged: Vec<u32> = (0..100)
            .filter(|seconds| log.next(watchdog.stall(begun + *seconds * SECOND)).is_some())
            .collect();
        assert_eq!(logged, [11, 22, 44, 88]);
        watchdog.ends();
        assert_eq!(log.next(None), Some(StallEvent::Ended(Stage::Round, Height(7))));
        assert_eq!(log.next(None), None);
    }
}
