//! The node's clock, and `thimble recover-clock`.
//!
//! A node alone decides block times by itself; its clock compares the wall clock with
//! `CLOCK_BOOTTIME` ([`consensus::BlockClock`]). A member of a subnet of several goes by the wall
//! clock: the others judge the times of its blocks.
//!
//! `thimble recover-clock` writes the order to set block time back into the data folder: the height
//! after which it counts and what the clock shows, in a file of text. The next start compares the
//! clock with that and gives the order to the block maker; the block that it makes records the
//! time, so replays need no file, and the file has no effect from then on.
//!
//! A node that is started again while the wall clock is wrong must not take it to be right: the
//! last reading at which it was is kept in the data folder ([`NodeClock::keep`]).

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use consensus::{BlockClock, ClockStatus, SingleNode, SystemClock, WallClock};
use state::{Height, Time};
use wall_clock::{JUMP_BOUND, MachineClocks, ReadingFile};

use crate::{
    keys::{
        Keys,
        files::{self, lock},
    },
    node, rules,
};

const FILE: &str = "clock-order.txt";
/// The file of the last reading at which the wall clock was right.
const READING_FILE: &str = "clock-reading.txt";
/// A clock or block time that is off by more is a fault on `/health`: within it, which is what the
/// interface allows clocks to differ by, no valid call is refused.
const FAULT_BEYOND: Duration = Duration::from_secs(60);
/// An order is valid for this time: the longer ago it was given, the less the operator's word that
/// the clock is right says of the clock now.
const ORDER_VALID: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Clones share it.
#[derive(Clone)]
pub(crate) enum NodeClock {
    /// Of a node alone.
    Alone(Arc<SingleNodeClock>),
    /// Of a member of a subnet of several.
    Member,
}

pub(crate) struct SingleNodeClock {
    clock: Arc<BlockClock<MachineClocks>>,
    data_dir: PathBuf,
    /// How far ahead calls may be signed.
    window: Duration,
    /// The last reading at which the wall clock was right.
    kept: ReadingFile,
}

impl NodeClock {
    /// Of the node whose data folder this is; calls may be signed ahead by `window`.
    pub(crate) fn new(several: bool, data_dir: &Path, window: Duration) -> Self {
        if several {
            return Self::Member;
        }
        let kept = ReadingFile::open(data_dir.join(READING_FILE));
        Self::Alone(Arc::new(SingleNodeClock {
            clock: Arc::new(BlockClock::new(MachineClocks, kept.reading())),
            data_dir: data_dir.to_owned(),
            window,
            kept,
        }))
    }

    pub(crate) fn block_times(&self) -> Arc<dyn WallClock> {
        match self {
            Self::Alone(alone) => alone.clock.clone(),
            Self::Member => Arc::new(SystemClock),
        }
    }

    /// Keeps the last reading at which the wall clock was right for the next start, if it differs
    /// from the one that is kept.
    pub(crate) fn keep(&self) {
        if let Self::Alone(alone) = self {
            alone.kept.keep(alone.clock.good());
        }
    }

    /// The wall clock, without a jump.
    pub(crate) fn now(&self) -> Time {
        match self {
            Self::Alone(alone) => alone.clock.now(),
            Self::Member => SystemClock.now(),
        }
    }

    /// The time by which calls are judged.
    pub(crate) fn block_time(&self) -> Time {
        match self {
            Self::Alone(alone) => alone.clock.block_time(),
            Self::Member => SystemClock.now(),
        }
    }

    pub(crate) fn status(&self) -> ClockStatus {
        match self {
            Self::Alone(alone) => alone.clock.status(),
            Self::Member => ClockStatus::default(),
        }
    }

    /// Why calls of clients may be refused because of the clock.
    pub(crate) fn fault(&self) -> Option<ClockFault> {
        match self {
            Self::Alone(alone) => fault(&alone.clock.status(), alone.window, &alone.data_dir),
            Self::Member => None,
        }
    }

    /// By how much block time is ahead of the wall clock.
    pub(crate) fn block_time_ahead(&self) -> Duration {
        self.status().block_time_ahead
    }
}

/// A fault of the clock. Shown as the operator reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClockFault {
    pub(crate) client_text: String,
    /// Advice for the operator; empty where that follows from the text.
    advice: String,
}

impl fmt::Display for ClockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.client_text)?;
        if self.advice.is_empty() { Ok(()) } else { write!(f, ": {}", self.advice) }
    }
}

/// Whether block time that is ahead of the wall clock was logged.
#[derive(Debug, Default)]
pub(crate) struct BlockTimeLog {
    is_logged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockTimeEvent {
    /// Block time is ahead by more than [`FAULT_BEYOND`].
    Ahead,
    /// It was, and is not ahead any more.
    CaughtUp,
}

impl BlockTimeLog {
    pub(crate) fn next(&mut self, ahead: Duration) -> Option<BlockTimeEvent> {
        if ahead > FAULT_BEYOND && !self.is_logged {
            self.is_logged = true;
            return Some(BlockTimeEvent::Ahead);
        }
        if ahead.is_zero() && std::mem::take(&mut self.is_logged) {
            return Some(BlockTimeEvent::CaughtUp);
        }
        None
    }
}

fn fault(status: &ClockStatus, window: Duration, data_dir: &Path) -> Option<ClockFault> {
    let beyond = |nanos: u128| nanos > FAULT_BEYOND.as_nanos();
    if let Some(jump) = status.jump.filter(|jump| beyond(jump.ahead_nanos.unsigned_abs())) {
        let client_text = format!(
            "{jump}; until then block times and calls are judged by the time before the jump: \
             correct the clock if it is wrong"
        );
        return Some(ClockFault { client_text, advice: String::new() });
    }
    let ahead = status.block_time_ahead;
    if !beyond(ahead.as_nanos()) {
        return None;
    }
    let (seconds, least) = (ahead.as_secs(), least_lead(window));
    let client_text = format!(
        "block time is {seconds} s ahead of the wall clock; it advances at half speed until the \
         clock has caught up, in {} s, and calls that expire before it are refused",
        seconds.saturating_mul(2)
    );
    let advice = if ahead > least {
        format!(
            "correct the clock if it is behind; if it is right and the difference too large to \
             wait for, stop the node, run thimble recover-clock --data-dir {} and start it again, \
             which leaves block time ahead by as much as calls may be signed ahead",
            data_dir.display()
        )
    } else {
        format!(
            "correct the clock if it is behind; if it is right, the difference resolves itself \
             (thimble recover-clock does not apply up to {} s)",
            least.as_secs()
        )
    };
    Some(ClockFault { client_text, advice })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    /// The block after this height is set back.
    after: Height,
    /// Time of the clock when the order was given, in seconds since 1970.
    at_seconds: u64,
}

impl Order {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_whitespace().map(|number| number.parse::<u64>().ok());
        let (after, at_seconds) = (Height(numbers.next()??), numbers.next()??);
        numbers.next().is_none().then_some(Self { after, at_seconds })
    }

    fn text(&self) -> String {
        format!("{} {}\n", self.after.0, self.at_seconds)
    }

    /// Why the clock is doubtful since the order was given. A small step back is a correction.
    fn doubt(&self, now_seconds: u64) -> Option<String> {
        let earlier = self.at_seconds.saturating_sub(now_seconds);
        let later = now_seconds.saturating_sub(self.at_seconds);
        if earlier > JUMP_BOUND.as_secs() {
            return Some(format!("{earlier} s earlier"));
        }
        let days = ORDER_VALID.as_secs() / 86_400;
        (later > ORDER_VALID.as_secs())
            .then(|| format!("{later} s later, which is more than {days} days"))
    }
}

fn seconds(time: Time) -> u64 {
    time.0 / 1_000_000_000
}

/// The height after which block time is to be set back, if that was ordered and no block has been
/// made since. `newest` is the height of the newest block.
///
/// # Errors
/// The order is to be followed now, and the clock is doubtful.
pub(crate) fn ordered_after(data_dir: &Path, newest: Height) -> Result<Option<Height>> {
    ordered_after_at(data_dir, newest, seconds(SystemClock.now()))
}

fn ordered_after_at(data_dir: &Path, newest: Height, now_seconds: u64) -> Result<Option<Height>> {
    let path = data_dir.join(FILE);
    let Some(text) = files::read_text(&path)? else { return Ok(None) };
    let Some(order) = Order::parse(&text) else {
        bail!(
            "{}: `{}` is not a height and a time in seconds: remove the file, and run thimble \
             recover-clock again if block time is to be set back",
            path.display(),
            text.trim()
        );
    };
    if order.after != newest {
        return Ok(None);
    }
    if let Some(doubt) = order.doubt(now_seconds) {
        bail!(
            "block time was ordered to be set back when this machine's clock showed {} s since \
             1970, and the clock shows {now_seconds} s now, {doubt}: set the clock right if it is \
             wrong, and start the node again; if it is right, give the order again (thimble \
             recover-clock); to cancel the order, remove {}",
            order.at_seconds,
            path.display()
        );
    }
    Ok(Some(order.after))
}

pub(crate) fn recover(data_dir: &Path) -> Result<()> {
    ensure!(data_dir.join("keys").is_dir(), "{} is no data folder of a node", data_dir.display());
    let _lock = lock(data_dir).context("the node must be stopped first")?;
    let keys = Keys::open_or_create(&data_dir.join("keys"))?;
    ensure!(
        !node::several(&keys),
        "this node is a member of a subnet of several, whose members judge each other's block \
         times: correct the clocks of the members"
    );
    let config = rules::recorded_configuration(data_dir).context(
        "how far ahead calls may be signed is not known: start the node once with this program \
         and stop it",
    )?;
    let window = SingleNode::ingress_window(&config.limits.consensus);
    let (height, time) = rules::last_block(data_dir)?;
    let now = SystemClock.now();
    if let Some(time) = time {
        let ahead = Duration::from_nanos(time.0.saturating_sub(now.0));
        check_lead(ahead, window)?;
        println!(
            "block time is {} s ahead of this machine's clock, which must be right",
            ahead.as_secs()
        );
    }
    let path = data_dir.join(FILE);
    let order = Order { after: height, at_seconds: seconds(now) };
    disk::replace_file(&path, order.text().as_bytes(), disk::Readers::Owner)
        .with_context(|| format!("writing {}", path.display()))?;
    // By the operator's word the clock is right now, whatever it was when the node ran.
    disk::if_there(fs::remove_file(data_dir.join(READING_FILE)))
        .with_context(|| format!("removing {READING_FILE}"))?;
    println!(
        "the block after height {} will be ahead of the clock by {} s, which is how far ahead \
         calls may be signed, so that none is executed again; the clock catches up with block time \
         in {} s; start the node for it to count, or remove {} to cancel it",
        height.0,
        window.as_secs(),
        window.as_secs().saturating_mul(2),
        path.display()
    );
    Ok(())
}

/// Block time is set back only if its lead is larger.
fn least_lead(window: Duration) -> Duration {
    window.saturating_add(JUMP_BOUND)
}

/// Block time is set back to the clock's time plus `window`: a lead that is not larger stays.
fn check_lead(ahead: Duration, window: Duration) -> Result<()> {
    let least = least_lead(window);
    ensure!(
        ahead > least,
        "block time is {} s ahead of this machine's clock, and only what is ahead by more than \
         {} s is set back: a smaller difference resolves itself within twice its length, and the \
         {} s that calls may be signed ahead are kept, so that no call is executed again",
        ahead.as_secs(),
        least.as_secs(),
        window.as_secs()
    );
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use wall_clock::Jump;

    use super::*;

    #[test]
    fn clock_is_a_fault_when_it_is_off_by_more_than_the_allowed_drift() {
        let second = 1_000_000_000;
        let fault =
            |status: &ClockStatus| fault(status, Duration::from_secs(360), Path::new("/data"));
        let jump = |ahead_nanos| ClockStatus {
            jump: Some(Jump { ahead_nanos, steady: Duration::from_secs(20) }),
            ..ClockStatus::default()
        };
        for nanos in [59 * second, -59 * second] {
            assert_eq!(fault(&jump(nanos)), None);
        }
        let back = fault(&jump(-3_600 * second)).unwrap().to_string();
        for part in ["jumped back by 3600 s", "20 s ago", "in 100 s"] {
            assert!(back.contains(part), "no `{part}` in {back}");
        }
        let ahead =
            |seconds| ClockStatus { jump: None, block_time_ahead: Duration::from_secs(seconds) };
        assert_eq!(fault(&ahead(60)), None);
        // The command refuses up to 363 s, so it is advised from there on.
        for seconds in [61, 363] {
            let text = fault(&ahead(seconds)).unwrap().to_string();
            let in_seconds = format!("in {} s", 2 * seconds);
            for part in [&in_seconds[..], "resolves itself", "does not apply up to 363 s"] {
                assert!(text.contains(part), "no `{part}` in {text}");
            }
        }
        let fault = fault(&ahead(364)).unwrap();
        let text = fault.to_string();
        assert!(text.contains("run thimble recover-clock --data-dir /data and"), "{text}");
        assert!(!fault.client_text.contains("/data"), "{}", fault.client_text);
        assert!(!fault.client_text.contains("thimble"), "{}", fault.client_text);
    }

    #[test]
    fn block_time_that_is_ahead_is_logged_once_and_when_the_clock_caught_up() {
        let mut log = BlockTimeLog::default();
        let mut logged = |seconds| log.next(Duration::from_secs(seconds));
        assert_eq!((logged(0), logged(60)), (None, None));
        assert_eq!(
            (logged(61), logged(600), logged(30)),
            (Some(BlockTimeEvent::Ahead), None, None)
        );
        assert_eq!((logged(0), logged(0)), (Some(BlockTimeEvent::CaughtUp), None));
    }

    #[test]
    fn only_a_lead_of_more_than_calls_are_signed_ahead_is_set_back() {
        let window = Duration::from_secs(360);
        for seconds in [0, 4, 360, 363] {
            let error = check_lead(Duration::from_secs(seconds), window).unwrap_err().to_string();
            assert!(error.contains("within twice its length"), "{error}");
        }
        check_lead(Duration::from_secs(364), window).unwrap();
    }

    #[test]
    fn order_that_does_not_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let ordered = |newest| ordered_after_at(dir.path(), Height(newest), 1_000);
        assert_eq!(ordered(12).unwrap(), None);
        let order = Order { after: Height(12), at_seconds: 900 };
        assert_eq!(order.text(), "12 900\n");
        fs::write(dir.path().join(FILE), order.text()).unwrap();
        assert_eq!(ordered(12).unwrap(), Some(Height(12)));
        // It counts after its height only.
        assert_eq!((ordered(11).unwrap(), ordered(13).unwrap()), (None, None));
        for text in ["soon", "12", "12 soon", "12 900 1", ""] {
            fs::write(dir.path().join(FILE), text).unwrap();
            assert!(ordered(12).unwrap_err().to_string().contains(FILE), "{text}");
        }
    }

    #[test]
    fn order_is_refused_when_the_clock_has_become_doubtful() {
        let dir = tempfile::tempdir().unwrap();
        let given = 1_000_000_000;
        let order = Order { after: Height(12), at_seconds: given };
        fs::write(dir.path().join(FILE), order.text()).unwrap();
        let ordered = |newest, now| ordered_after_at(dir.path(), Height(newest), now);
        let week = ORDER_VALID.as_secs();
        for now in [given - 3, given, given + 600, given + week] {
            assert_eq!(ordered(12, now).unwrap(), Some(Height(12)), "{now}");
        }
        for (now, why) in [(given - 4, "4 s earlier"), (given + week + 1, "7 days")] {
            let error = ordered(12, now).unwrap_err().to_string();
            for part in [why, "thimble recover-clock", FILE] {
                assert!(error.contains(part), "no `{part}` in {error}");
            }
            // A jump that was followed does not matter any more.
            assert_eq!(ordered(13, now).unwrap(), None);
        }
    }
}
