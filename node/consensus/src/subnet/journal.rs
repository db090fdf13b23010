//! Calls of blocks this node voted for, on disk before the vote.
//!
//! A vote says that the block can be executed. Were its calls in memory only, all nodes losing power at once would leave a final block that nobody can execute, and
//! the chain would stand for ever. So whoever votes has the calls on disk, and 2f+1 vote for each final block.
//!
//! One record file ([`disk::records`]). A call is in it once, however many blocks name it. It leaves when a block that holds it is in the block log, or when it is
//! void. The file is written again when more than [`DEAD_BYTES`] of it are calls that left; until then they come back with a restart and are void soon, which does no
//! harm. A write that a crash tore is cut off: the vote had not been cast.
//!
//! Damage is told in the log, and every record that can be read is kept, those behind it too. A call that cannot be read is one copy less of the 2f+1 that its block's
//! votes stand for: it is asked of the others like any that did not arrive, so the node goes on. After a failed sync the file is written anew before the next vote.
//!
//! Bounded: beyond `bytes_max` of live calls nothing is taken, and the node does not vote.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use disk::{
    SharedDisk,
    records::{HEADER_BYTES, Kind, Reader, RecordError, RecordFile},
};
use serde::{Deserialize, Serialize};
use state::{IngressId, SignedIngress, Time};

/// Dead bytes in the file that are not worth writing it again.
const DEAD_BYTES: u64 = 1 << 20;
/// A record is a call.
const KIND: Kind = Kind { name: *b"voted\0\0\0", version: 1, bytes_max: 64 << 20 };

/// A call with what its place in a block depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptCall {
    pub(super) id: IngressId,
    pub(super) expiry: Time,
    pub(super) signed: SignedIngress,
}

/// See the module.
pub(super) struct Journal {
    disk: SharedDisk,
    path: PathBuf,
    file: RecordFile,
    live: BTreeMap<IngressId, (Time, SignedIngress)>,
    live_bytes: u64,
    bytes_max: u64,
}

impl Journal {
    /// Opens the journal at `path`, made if absent.
    pub(super) fn open(disk: SharedDisk, path: &Path, bytes_max: u64) -> Result<Self, RecordError> {
        if let Some(folder) = path.parent() {
            let failed =
                |source| RecordError::Io { path: folder.to_path_buf(), doing: "creating the folder", source };
            disk.create_folder(folder).map_err(failed)?;
        }
        let (mut calls, mut damaged) = (Vec::new(), false);
        let read = read(&disk, path, bytes_max, &mut calls, &mut damaged);
        let file = match read {
            Ok(Some(reader)) if reader.offset() >= HEADER_BYTES => {
                RecordFile::resume(disk.as_ref(), &reader)?
            }
            Ok(_) | Err(RecordError::Damaged { .. }) => {
                if let Err(error) = read {
                    tracing::error!(%error, "the journal of calls voted for cannot be read; it is begun anew");
                }
                RecordFile::create(disk.as_ref(), path, KIND)?
            }
            Err(error) => return Err(error),
        };
        let mut journal =
            Self { disk, path: path.to_owned(), file, live: BTreeMap::new(), live_bytes: 0, bytes_max };
        calls.into_iter().for_each(|call| journal.add(call));
        if damaged {
            journal.rewrite()?;
        }
        Ok(journal)
    }

    /// A call that was kept.
    pub(super) fn get(&self, id: &IngressId) -> Option<&SignedIngress> {
        self.live.get(id).map(|(_, signed)| signed)
    }

    /// When it becomes void.
    pub(super) fn expiry(&self, id: &IngressId) -> Option<Time> {
        self.live.get(id).map(|(expiry, _)| *expiry)
    }

    /// Makes these durable.
    pub(super) fn keep(&mut self, calls: Vec<KeptCall>) -> io::Result<()> {
        let new: Vec<_> = calls.into_iter().filter(|call| !self.live.contains_key(&call.id)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let added: u64 = new.iter().map(|call| call.signed.accounted_bytes()).sum();
        if self.live_bytes + added > self.bytes_max {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!(
                    "calls of blocks voted for take {} of {} bytes, and {added} more are asked for",
                    self.live_bytes, self.bytes_max
                ),
            ));
        }
        if self.file.sync_lost() {
            self.rewrite().map_err(into_io)?;
        }
        let encoded = encode(&new)?;
        self.file
            .append(encoded.iter().map(Vec::as_slice))
            .and_then(|()| self.file.sync())
            .map_err(into_io)?;
        self.file.mark();
        new.into_iter().for_each(|call| self.add(call));
        Ok(())
    }

    /// Calls that are durable elsewhere, and all that are void at `now`.
    pub(super) fn forget(&mut self, ids: &[IngressId], now: Time) -> io::Result<()> {
        let void: Vec<_> =
            self.live.iter().filter(|(_, (expiry, _))| *expiry < now).map(|(id, _)| *id).collect();
        for id in ids.iter().chain(&void) {
            if let Some((_, signed)) = self.live.remove(id) {
                self.live_bytes -= signed.accounted_bytes();
            }
        }
        if self.file.sync_lost() || self.file.length() > 2 * self.live_bytes + DEAD_BYTES {
            self.rewrite().map_err(into_io)?;
        }
        Ok(())
    }

    fn add(&mut self, KeptCall { id, expiry, signed }: KeptCall) {
        self.live_bytes += signed.accounted_bytes();
        if let Some((_, before)) = self.live.insert(id, (expiry, signed)) {
            self.live_bytes -= before.accounted_bytes();
        }
    }

    /// Only with what is live; whole or not at all.
    fn rewrite(&mut self) -> Result<(), RecordError> {
        let calls: Vec<_> = self
            .live
            .iter()
            .map(|(id, (expiry, signed))| KeptCall { id: *id, expiry: *expiry, signed: signed.clone() })
            .collect();
        let encoded = encode(&calls).map_err(|source| RecordError::Io {
            path: self.path.clone(),
            doing: "encoding",
            source,
        })?;
        self.file = RecordFile::replace(self.disk.as_ref(), &self.path, KIND, &encoded)?;
        self.file.mark();
        Ok(())
    }
}

/// Reads every record that checks; `None` when there is no file.
fn read(
    disk: &SharedDisk,
    path: &Path,
    bytes_max: u64,
    calls: &mut Vec<KeptCall>,
    damaged: &mut bool,
) -> Result<Option<Reader>, RecordError> {
    let length = bytes_max.saturating_mul(3).saturating_add(4 * DEAD_BYTES);
    let mut reader = match Reader::open(disk.as_ref(), path, KIND, Some(length)) {
        Err(RecordError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    loop {
        match reader.next() {
            Ok(None) => return Ok(Some(reader)),
            // A mark.
            Ok(Some((_, []))) => {}
            Ok(Some((offset, payload))) => match postcard::from_bytes(payload) {
                Ok(call) => calls.push(call),
                Err(error) => {
                    tracing::error!(path = %path.display(), offset, %error, "a call voted for does not decode");
                    *damaged = true;
                }
            },
            Err(error @ RecordError::Damaged { .. }) => {
                tracing::error!(%error, "calls that this node voted for cannot be read; those behind the damage are kept, and what is missing is asked of the others");
                *damaged = true;
                reader.skip_damage();
            }
            Err(error) => return Err(error),
        }
    }
}

fn into_io(error: RecordError) -> io::Error {
    match error {
        RecordError::Io { ref source, .. } => io::Error::new(source.kind(), error),
        error => io::Error::other(error),
    }
}

fn encode(calls: &[KeptCall]) -> io::Result<Vec<Vec<u8>>> {
    calls.iter().map(|call| postcard::to_stdvec(call).map_err(io::Error::other)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use disk::{RealDisk, SimulatedDisk};
    use ic_principal::Principal;

    use super::*;

    fn open(path: &Path, bytes_max: u64) -> Journal {
        Journal::open(RealDisk::shared(), path, bytes_max).unwrap()
    }

    fn call(number: u8, size: usize, expiry: u64) -> KeptCall {
        KeptCall {
            id: IngressId([number; 32]),
            expiry: Time(expiry),
            signed: SignedIngress {
                effective_canister_id: Principal::management_canister(),
                envelope: vec![number; size].into(),
            },
        }
    }

    fn numbers(journal: &Journal) -> Vec<u8> {
        journal.live.keys().map(|id| id.0[0]).collect()
    }

    #[test]
    fn what_was_kept_is_there_again_and_a_torn_end_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("voted");
        let mut journal = open(&path, 10_000);
        journal.keep(vec![call(1, 100, 9), call(2, 100, 9)]).unwrap();
        journal.keep(vec![call(2, 100, 9), call(3, 100, 9)]).unwrap();
        drop(journal);
        let whole = fs::read(&path).unwrap();
        // Its end is the mark behind the last call.
        for cut in 0..whole.len() - disk::records::HEAD_BYTES as usize {
            fs::write(&path, &whole[..cut]).unwrap();
            let journal = open(&path, 10_000);
            assert!(numbers(&journal).len() <= 2, "cut at {cut}");
        }
        fs::write(&path, &whole).unwrap();
        let mut journal = open(&path, 10_000);
        assert_eq!(numbers(&journal), [1, 2, 3]);
        assert_eq!(journal.get(&IngressId([2; 32])), Some(&call(2, 100, 9).signed));
        journal.forget(&[IngressId([1; 32])], Time(0)).unwrap();
        journal.forget(&[], Time(10)).unwrap();
        assert!(numbers(&journal).is_empty(), "void calls leave");
    }

    #[test]
    fn the_file_is_bounded_by_what_is_live() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("voted");
        let mut journal = open(&path, 1 << 20);
        journal.keep(vec![call(0, 1_000, 9)]).unwrap();
        for round in 0..200u8 {
            let number = round % 100 + 1;
            journal.keep(vec![call(number, 60_000, 9)]).unwrap();
            journal.forget(&[IngressId([number; 32])], Time(0)).unwrap();
            assert!(fs::metadata(&path).unwrap().len() <= 2 * DEAD_BYTES);
        }
        assert_eq!(numbers(&journal), [0]);
        drop(journal);
        // What left lately may still be in the file: it is looked at again, and leaves again.
        let live = numbers(&open(&path, 1 << 20));
        assert!(live.contains(&0) && live.len() < 30, "{live:?}");
    }

    #[test]
    fn more_than_the_bound_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = open(&folder.path().join("voted"), 1_000);
        journal.keep(vec![call(1, 500, 9)]).unwrap();
        let error = journal.keep(vec![call(2, 500, 9)]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        assert!(error.to_string().contains("1000 bytes"), "{error}");
        assert_eq!(numbers(&journal), [1]);
    }

    #[test]
    fn behind_damage_every_good_record_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("voted");
        // On a simulated disk syncing costs nothing.
        let open = || {
            let disk = SimulatedDisk::new(folder.path(), 0).unwrap();
            Journal::open(std::sync::Arc::new(disk), &path, 10_000).unwrap()
        };
        let mut journal = open();
        for number in 1..=5 {
            journal.keep(vec![call(number, 100, 9)]).unwrap();
        }
        drop(journal);
        let whole = fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            let kept = numbers(&open()).len();
            let least = if bit / 8 < HEADER_BYTES as usize { 0 } else { 4 };
            assert!(kept >= least, "bit {bit}: {kept} of 5 calls are left");
            assert_eq!(numbers(&open()).len(), kept, "damage is told once");
        }
    }

    #[test]
    fn what_a_vote_stands_for_survives_failed_syncs_and_a_power_cut() {
        for seed in 0..100_u64 {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("disk");
            let disk = SimulatedDisk::new(&root, seed).unwrap();
            let path = root.join("voted");
            let mut journal = Journal::open(std::sync::Arc::new(disk.clone()), &path, 1 << 20).unwrap();
            disk.end_after(5 + seed % 60, seed.is_multiple_of(2));
            let mut voted = vec![];
            for number in 1..30 {
                disk.fail_syncs((seed + u64::from(number)) % 5 / 4);
                if journal.keep(vec![call(number, 3_000, 9)]).is_ok() {
                    voted.push(number);
                }
            }
            drop(journal);
            disk.cut_power().unwrap();
            let journal = Journal::open(std::sync::Arc::new(disk), &path, 1 << 20).unwrap();
            let there = numbers(&journal);
            assert!(voted.iter().all(|number| there.contains(number)), "seed {seed}: {voted:?}, {there:?}");
        }
    }
}
