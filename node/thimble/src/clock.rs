//! The node's clock, and `thimble recover-clock`.
//!
//! A node alone decides block times by itself; its clock compares the wall clock with
//! `CLOCK_BOOTTIME` ([`consensus::BlockClock`]). A member of a subnet of several goes by the wall
//! clock: the others judge the times of its blocks.
//!
//! `thimble recover-clock` writes the order to set block time back into the data folder: the height
//! after which it counts, in a file of text. The next start gives it to the block maker; the block
//! that it makes records the time, so replays need no file.

use std::{fs, io::ErrorKind, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use consensus::{BlockClock, ClockStatus, JUMP_BOUND, MachineClocks, SystemClock, WallClock};
use state::{Height, Time};

use crate::{
    keys::{Keys, files::lock},
    node,
};

/// The file in the data folder.
const FILE: &str = "clock-order.txt";
/// A clock or block time that is off by more is a fault on `/health`: within it, which is what the
/// interface allows clocks to differ by, no valid call is refused.
const FAULT_BEYOND: Duration = Duration::from_secs(60);

/// See the module. Clones share it.
#[derive(Clone)]
pub(crate) enum NodeClock {
    /// Of a node alone.
    Alone(Arc<BlockClock<MachineClocks>>),
    /// Of a member of a subnet of several.
    Member,
}

impl NodeClock {
    pub(crate) fn new(several: bool) -> Self {
        if several { Self::Member } else { Self::Alone(Arc::new(BlockClock::new(MachineClocks))) }
    }

    /// For consensus.
    pub(crate) fn block_times(&self) -> Arc<dyn WallClock> {
        match self {
            Self::Alone(clock) => clock.clone(),
            Self::Member => Arc::new(SystemClock),
        }
    }

    /// The wall clock, without a jump.
    pub(crate) fn now(&self) -> Time {
        match self {
            Self::Alone(clock) => clock.now(),
            Self::Member => SystemClock.now(),
        }
    }

    /// The time by which calls are judged.
    pub(crate) fn block_time(&self) -> Time {
        match self {
            Self::Alone(clock) => clock.block_time(),
            Self::Member => SystemClock.now(),
        }
    }

    pub(crate) fn status(&self) -> ClockStatus {
        match self {
            Self::Alone(clock) => clock.status(),
            Self::Member => ClockStatus::default(),
        }
    }

    /// Why calls of clients may be refused because of the clock, as an operator reads it.
    pub(crate) fn fault(&self) -> Option<String> {
        fault(&self.status())
    }
}

fn fault(status: &ClockStatus) -> Option<String> {
    let beyond = |nanos: u128| nanos > FAULT_BEYOND.as_nanos();
    if let Some(jump) = status.jump.filter(|jump| beyond(jump.ahead_nanos.unsigned_abs())) {
        return Some(jump.to_string());
    }
    beyond(status.block_time_ahead.as_nanos()).then(|| {
        format!(
            "block time is {} s ahead of the wall clock; it advances at half speed until the clock \
             has caught up, and calls that expire before it are refused: correct the clock if it \
             is behind; if it is right and the difference too large to wait for, stop the node, \
             run thimble recover-clock and start it again",
            status.block_time_ahead.as_secs()
        )
    })
}

/// The height after which block time is to be set back, if that was ordered.
pub(crate) fn ordered_after(data_dir: &Path) -> Result<Option<Height>> {
    let path = data_dir.join(FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let height = text.trim().parse().map(Height);
    height
        .map(Some)
        .with_context(|| format!("{}: `{}` is not a height", path.display(), text.trim()))
}

/// Runs `thimble recover-clock`.
pub(crate) fn recover(data_dir: &Path) -> Result<()> {
    ensure!(data_dir.join("keys").is_dir(), "{} is no data folder of a node", data_dir.display());
    let _lock = lock(data_dir).context("the node must be stopped first")?;
    let keys = Keys::open_or_create(&data_dir.join("keys"))?;
    ensure!(
        !node::several(&keys),
        "this node is a member of a subnet of several, whose members judge each other's block \
         times: correct the clocks of the members"
    );
    let (height, time) = node::last_block(data_dir)?;
    let now = SystemClock.now();
    if let Some(time) = time {
        let ahead = Duration::from_nanos(time.0.saturating_sub(now.0));
        ensure!(
            ahead > JUMP_BOUND,
            "block time is not ahead of this machine's clock by more than {} s: nothing to recover",
            JUMP_BOUND.as_secs()
        );
        println!(
            "block time is {} s ahead of this machine's clock, which must be right",
            ahead.as_secs()
        );
    }
    let path = data_dir.join(FILE);
    disk::replace_file(&path, format!("{}\n", height.0).as_bytes(), disk::Readers::All)
        .with_context(|| format!("writing {}", path.display()))?;
    println!(
        "the block after height {} will have the time of the clock; start the node for it to count",
        height.0
    );
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use consensus::Jump;

    use super::*;

    #[test]
    fn clock_is_a_fault_when_it_is_off_by_more_than_the_allowed_drift() {
        let second = 1_000_000_000;
        let jump = |ahead_nanos| ClockStatus {
            jump: Some(Jump { ahead_nanos, steady: Duration::from_secs(20) }),
            ..ClockStatus::default()
        };
        for nanos in [59 * second, -59 * second] {
            assert_eq!(fault(&jump(nanos)), None);
        }
        let back = fault(&jump(-3_600 * second)).unwrap();
        for part in ["jumped back by 3600 s", "20 s ago", "in 100 s"] {
            assert!(back.contains(part), "no `{part}` in {back}");
        }
        let ahead =
            |seconds| ClockStatus { jump: None, block_time_ahead: Duration::from_secs(seconds) };
        assert_eq!(fault(&ahead(60)), None);
        assert!(fault(&ahead(61)).unwrap().contains("thimble recover-clock"));
    }

    #[test]
    fn order_that_is_not_a_height_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ordered_after(dir.path()).unwrap(), None);
        fs::write(dir.path().join(FILE), "12\n").unwrap();
        assert_eq!(ordered_after(dir.path()).unwrap(), Some(Height(12)));
        fs::write(dir.path().join(FILE), "soon\n").unwrap();
        assert!(ordered_after(dir.path()).unwrap_err().to_string().contains(FILE));
    }
}
