//! Spare segments: files whose space was allocated while the disk had room. While the file system
//! is full, messages that are passed on and not kept overwrite them.
//!
//! A spare is reused when its messages have no references, so spares may run out: messages are
//! refused then. Its content is never read by another process.
//!
//! Bounds: [`Config::spare_segments`] files of [`SPARE_BYTES`], made by the keeper, which stay when
//! the store is closed: the disk may already be full at the next start.
//!
//! [`Config::spare_segments`]: crate::Config::spare_segments

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use disk::{Disk, Open};

use crate::message::Segment;

/// Of each; four of the largest messages.
pub(crate) const SPARE_BYTES: u64 = 4 << 20;
/// Written at once when one is made.
const PIECE_BYTES: usize = 64 << 10;

pub(crate) struct Spares {
    slots: Mutex<Vec<Slot>>,
}

struct Slot {
    path: PathBuf,
    /// Its space is taken.
    made: bool,
    /// The segment in it, as long as it has references.
    segment: Weak<Segment>,
}

impl Spares {
    /// `count` files in this folder, which need not exist.
    pub(crate) fn new(disk: &dyn Disk, folder: &Path, count: usize) -> Self {
        let slot = |number| {
            let path = folder.join(format!("{number}.spare"));
            Slot { made: is_whole(disk, &path), path, segment: Weak::new() }
        };
        Self { slots: Mutex::new((0..count).map(slot).collect()) }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes those that are missing, while `has_room` returns true.
    pub(crate) fn make(&self, disk: &dyn Disk, has_room: impl Fn() -> bool) -> io::Result<()> {
        let missing = |slots: &[Slot]| slots.iter().position(|slot| !slot.made);
        loop {
            // Not under the lock: the writer must not wait for it.
            let slots = self.slots();
            let Some(number) = missing(&slots) else { return Ok(()) };
            let path = slots[number].path.clone();
            drop(slots);
            if !has_room() {
                return Ok(());
            }
            write_zeros(disk, &path)?;
            self.slots()[number].made = true;
        }
    }

    /// Takes one without references; `begin` makes a segment of it.
    pub(crate) fn begin(
        &self,
        begin: impl FnOnce(PathBuf) -> io::Result<Arc<Segment>>,
    ) -> io::Result<bool> {
        let mut slots = self.slots();
        let free = slots.iter_mut().find(|slot| slot.made && slot.segment.strong_count() == 0);
        let Some(slot) = free else { return Ok(false) };
        match begin(slot.path.clone()) {
            Ok(segment) => slot.segment = Arc::downgrade(&segment),
            Err(error) => {
                // It was removed; it is made again when there is room.
                slot.made = error.kind() != io::ErrorKind::NotFound;
                return Err(error);
            }
        }
        Ok(true)
    }
}

/// It was written to its end.
fn is_whole(disk: &dyn Disk, path: &Path) -> bool {
    disk.open(path, Open::Read)
        .and_then(|file| file.length())
        .is_ok_and(|length| length == SPARE_BYTES)
}

/// Writing takes the space on any file system; reserving it does on some.
fn write_zeros(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        disk.create_folder(folder)?;
    }
    let file = disk.open(path, Open::Create)?;
    let zeros = [0; PIECE_BYTES];
    for offset in (0..SPARE_BYTES).step_by(PIECE_BYTES) {
        file.write_at(&zeros, offset)?;
    }
    file.sync_all()
}
