//! Syncs at an interval, and retires expired data: partitions by age and by size, transit segments
//! by age. Never reads a message.

use std::sync::{Condvar, Mutex, PoisonError, atomic::Ordering};

use disk::{Open, if_there};

use crate::{config::nanos, indexer::Event, spare::SPARE_BYTES, store::StoreState};

/// Wakes the keeper before its interval is over.
#[derive(Default)]
pub(crate) struct WakeUp {
    state: Mutex<WakeState>,
    changed: Condvar,
    /// One round at a time.
    round: Mutex<()>,
}

#[derive(Default)]
struct WakeState {
    requested: bool,
    closed: bool,
}

impl WakeUp {
    pub(crate) fn wake(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).requested = true;
        self.changed.notify_all();
    }

    pub(crate) fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.changed.notify_all();
    }
}

/// Runs until [`WakeUp::close`].
pub(crate) fn run(shared: &StoreState) {
    loop {
        let wake_up = &shared.keeper;
        let state = wake_up.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited =
            wake_up.changed.wait_timeout_while(state, shared.config.sync_interval, |state| {
                !state.requested && !state.closed
            });
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.requested = false;
        if state.closed {
            return;
        }
        drop(state);
        round(shared);
    }
}

/// One round: syncs, retires partitions and transit segments, and makes spare segments.
pub(crate) fn round(shared: &StoreState) {
    let _alone = shared.keeper.round.lock().unwrap_or_else(PoisonError::into_inner);
    sync(shared);
    if let Some(newest) = shared.catalog.newest() {
        newest.measure_index();
    }
    retire_partitions(shared);
    retire_transit(shared);
    make_spares(shared);
}

fn make_spares(shared: &StoreState) {
    let needed_bytes = shared.config.disk_reserve_bytes + SPARE_BYTES;
    let has_room = || shared.free_bytes().is_some_and(|free_bytes| free_bytes >= needed_bytes);
    if let Err(error) = shared.spares.make(shared.disk.as_ref(), has_room) {
        let path = shared.config.folder.display();
        tracing::debug!(%path, %error, "a spare segment was not made");
    }
}

fn sync(shared: &StoreState) {
    let (mut complete, mut failed) = (Vec::new(), false);
    for (partition, segment) in shared.unsynced().clone() {
        // Removed, or set aside.
        if partition.segment(segment.number).is_none() {
            complete.push(segment.number);
            continue;
        }
        // The order matters: a segment that is sealed now has its last length.
        let sealed = segment.sealed.load(Ordering::Acquire);
        let length = segment.length();
        if segment.synced.load(Ordering::Acquire) < length {
            let synced =
                shared.disk.open(&segment.path, Open::Write).and_then(|file| file.sync_data());
            match synced {
                Ok(()) => segment.synced.store(length, Ordering::Release),
                Err(error) => {
                    failed = true;
                    shared.sync_errors.fetch_add(1, Ordering::Relaxed);
                    // Data written since the last success may be lost in a power cut, and a later
                    // sync would not report it. The segment accepts nothing more, and is read
                    // through at the next start.
                    let path = segment.path.display();
                    tracing::warn!(%path, %error, "a sync failed; a new segment is begun");
                    segment.sync_lost.store(true, Ordering::Release);
                    complete.push(segment.number);
                    continue;
                }
            }
        }
        if sealed {
            let number = segment.number;
            let event = Event::Seal { partition: partition.clone(), number, length };
            // A full queue takes it in another round.
            if shared.rows.try_push(event, 0).is_ok() {
                complete.push(number);
            }
        }
    }
    shared.unsynced().retain(|(_, segment)| !complete.contains(&segment.number));
    if !failed {
        shared.last_sync_ns.store(shared.clock.boot_ns(), Ordering::Release);
    }
}

/// Whole partitions go, the oldest first; the newest stays while it takes messages.
///
/// Ages are not judged by a clock that was set: of messages that arrived in this process by the
/// clock that is never set, of others by the arrival clock once it is settled.
fn retire_partitions(shared: &StoreState) {
    let retention_ns = nanos(shared.config.retention);
    let all = shared.catalog.all();
    let (now_ns, boot_ns) = (shared.clock.now_ns(), shared.clock.boot_ns());
    let is_settled = shared.clock.is_settled();
    let mut bytes: u64 = all.iter().map(|partition| partition.bytes()).sum();
    for (position, partition) in all.iter().enumerate() {
        // Its messages had arrived when the next was begun, or when the writer left it. The writer
        // does not return to a segment as old as this.
        let next = all.get(position + 1);
        let end_ns = partition.end_ns.load(Ordering::Acquire);
        let end_ns = next.map_or(end_ns, |next| end_ns.min(next.start_ns));
        let old = match partition.end_boot_ns() {
            Some(end_ns) => boot_ns.saturating_sub(end_ns) >= retention_ns,
            None => is_settled && now_ns.saturating_sub(end_ns) >= retention_ns,
        };
        let large = bytes > shared.config.retention_bytes && next.is_some();
        if !old && !large {
            break;
        }
        let freed = partition.bytes();
        if !shared.catalog.take_oldest(partition) {
            // It was opened meanwhile; another round retires its new state.
            return;
        }
        let path = partition.folder.display();
        match partition.remove(shared.disk.as_ref()) {
            Ok(()) => tracing::info!(%path, freed, "a partition was removed"),
            // It is out of service; its folder goes at the next start.
            Err(error) => tracing::warn!(%path, %error, "a partition was not removed in whole"),
        }
        shared.dropped_partitions.fetch_add(1, Ordering::Relaxed);
        bytes = bytes.saturating_sub(freed);
    }
}

fn retire_transit(shared: &StoreState) {
    let now_ns = shared.clock.boot_ns();
    let keep_ns = nanos(shared.config.keep_transit);
    let over = |newest_ns: i64| now_ns.saturating_sub(newest_ns) > keep_ns;
    // In the order of their beginning.
    let segments = shared.transit().clone();
    let mut bytes: u64 = segments.iter().map(|segment| segment.length()).sum();
    for segment in segments {
        // The one that is being written to stays.
        let large = bytes > shared.config.transit_bytes && segment.sealed.load(Ordering::Acquire);
        if !large && !over(segment.newest_arrival_ns.load(Ordering::Acquire)) {
            continue;
        }
        bytes = bytes.saturating_sub(segment.length());
        if segment.spare {
            // It is overwritten when it has no references.
            shared.transit().retain(|other| other.number != segment.number);
            continue;
        }
        // Holders of a reference, including the writer, continue to read and write it.
        match if_there(segment.pin().and_then(|()| shared.disk.remove(&segment.path))) {
            Ok(_) => shared.transit().retain(|other| other.number != segment.number),
            Err(error) => {
                tracing::warn!(path = %segment.path.display(), %error, "a segment was not removed");
            }
        }
    }
}
