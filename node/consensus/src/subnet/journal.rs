//! Calls of blocks this node voted for, on disk before the vote.
//!
//! A vote states that the block can be executed. Were its calls in memory only, all nodes losing
//! power at once would leave a final block that no node can execute, and the chain would halt for
//! good. So each voter has the calls on disk, and 2f+1 vote for each final block.
//!
//! One record file ([`disk::records`]). A call is in it once, by the digest of its envelope, with
//! the greatest height of a block that names it and was voted for. It is removed when the block of
//! that height is in the block log, because then the blocks that name it are in the log or can
//! never become final, or when it is void. The file is rewritten when more than [`DEAD_BYTES`] of
//! it are removed calls, and after a failed sync. A torn write is truncated: the vote had not been
//! cast.
//!
//! Damage is logged, and every record that can be read is kept. A call that cannot be read is one
//! copy less of the 2f+1 that its block's votes stand for: it is requested from the others, so the
//! node continues.
//!
//! Bounded: above `bytes_max` of live calls nothing is accepted, and the vote waits.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use commonware_utils::sync::Mutex;
use disk::{
    SharedDisk,
    records::{HEADER_BYTES, Kind, Reader, RecordError, RecordFile},
};
use serde::{Deserialize, Serialize};
use state::{Height, SignedIngress, Time, Validity};

use super::block::CallName;

/// Dead bytes in the file that are not worth writing it again.
const DEAD_BYTES: u64 = 1 << 20;
/// A record is a call, or says that one is in a higher block too.
const KIND: Kind = Kind { name: *b"voted\0\0\0", version: 2, bytes_max: 64 << 20 };

/// A call with what its place in a block depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournaledCall {
    pub(super) name: CallName,
    pub(super) validity: Validity,
    /// Of the block that is voted for.
    pub(super) height: Height,
    pub(super) signed: SignedIngress,
}

#[derive(Serialize, Deserialize)]
enum Record {
    Call(JournaledCall),
    /// A call that is kept is in a block of this height too.
    Again {
        digest: [u8; 32],
        height: Height,
    },
}

/// The version, and one record of each kind.
#[cfg(test)]
pub(super) fn samples() -> (u64, Vec<(&'static str, Vec<u8>)>) {
    let name = CallName { id: state::IngressId([6; 32]), digest: [7; 32], bytes: 300 };
    let signed = SignedIngress {
        effective_canister_id: ic_principal::Principal::from_slice(&[1, 2, 3]),
        envelope: vec![5; 300].into(),
    };
    let validity = Validity { from: Time(11), until: Time(12) };
    let call = Record::Call(JournaledCall { name, validity, height: Height(13), signed });
    let again = Record::Again { digest: [7; 32], height: Height(14) };
    let samples = [("call", call), ("again", again)]
        .map(|(name, record)| (name, postcard::to_stdvec(&record).unwrap_or_default()));
    (KIND.version.into(), samples.into())
}

/// The calls of blocks that this node voted for. Readers never wait for the disk: what is kept and
/// the file have a lock each, and only who writes takes the file's, before the other.
pub(super) struct Journal {
    disk: SharedDisk,
    path: PathBuf,
    file: Mutex<RecordFile>,
    kept: Mutex<LiveCalls>,
    /// Largest sum of the bytes of live calls.
    bytes_max: u64,
}

/// Valid contents of the file.
#[derive(Default)]
struct LiveCalls {
    /// By the digest of the envelope.
    calls: BTreeMap<[u8; 32], JournaledCall>,
    bytes: u64,
}

impl Journal {
    /// Opens the journal at `path`, made if absent.
    pub(super) fn open(disk: SharedDisk, path: &Path, bytes_max: u64) -> Result<Self, RecordError> {
        if let Some(folder) = path.parent() {
            disk.create_folder(folder)
                .map_err(|source| RecordError::io(folder, "creating the folder", source))?;
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
        let mut kept = LiveCalls::default();
        calls.into_iter().for_each(|record| kept.add(record));
        let journal = Self {
            disk,
            path: path.to_owned(),
            file: Mutex::new(file),
            kept: Mutex::new(kept),
            bytes_max,
        };
        if damaged {
            journal.rewrite(&mut journal.file.lock())?;
        }
        Ok(journal)
    }

    /// A call that was kept, and when it is valid.
    pub(super) fn get(&self, name: &CallName) -> Option<(SignedIngress, Validity)> {
        let kept = self.kept.lock();
        let call = kept.calls.get(&name.digest).filter(|call| call.name.id == name.id)?;
        Some((call.signed.clone(), call.validity))
    }

    /// Makes these durable. Waits for the disk.
    pub(super) fn append(&self, calls: Vec<JournaledCall>) -> io::Result<()> {
        let mut file = self.file.lock();
        let records = self.kept.lock().missing(calls, self.bytes_max)?;
        if records.is_empty() {
            return Ok(());
        }
        if file.sync_lost() {
            self.rewrite(&mut file).map_err(into_io)?;
        }
        let encoded = encode(&records)?;
        file.append(encoded.iter().map(Vec::as_slice))
            .and_then(|()| file.sync())
            .map_err(into_io)?;
        file.mark();
        let mut kept = self.kept.lock();
        records.into_iter().for_each(|record| kept.add(record));
        debug_assert_eq!(kept.bytes, kept.count(), "the sum of the bytes that are kept");
        Ok(())
    }

    /// The block of this height and time is in the block log: drops the calls that no later block
    /// voted for names, and all that are void. Waits for the disk.
    pub(super) fn drop_through(&self, height: Height, time: Time) -> io::Result<()> {
        let mut file = self.file.lock();
        let live_bytes = {
            let mut kept = self.kept.lock();
            kept.calls.retain(|_, call| call.height > height && call.validity.until >= time);
            kept.bytes = kept.count();
            kept.bytes
        };
        if file.sync_lost() || file.length() > 2 * live_bytes + DEAD_BYTES {
            self.rewrite(&mut file).map_err(into_io)?;
        }
        Ok(())
    }

    /// Only with what is live; whole or not at all.
    fn rewrite(&self, file: &mut RecordFile) -> Result<(), RecordError> {
        let calls: Vec<_> = self.kept.lock().calls.values().cloned().map(Record::Call).collect();
        let encoded =
            encode(&calls).map_err(|source| RecordError::io(&self.path, "encoding", source))?;
        *file = RecordFile::replace(self.disk.as_ref(), &self.path, KIND, &encoded)?;
        file.mark();
        Ok(())
    }
}

impl LiveCalls {
    /// The records that these calls need in addition to those that are kept.
    fn missing(&self, calls: Vec<JournaledCall>, bytes_max: u64) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        let mut added = 0;
        for call in calls {
            match self.calls.get(&call.name.digest) {
                Some(kept) if kept.height >= call.height => {}
                Some(_) => {
                    records.push(Record::Again { digest: call.name.digest, height: call.height });
                }
                None => {
                    added += call.signed.accounted_bytes();
                    records.push(Record::Call(call));
                }
            }
        }
        if self.bytes + added > bytes_max && added > 0 {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!(
                    "calls of blocks voted for take {} of {bytes_max} bytes, and {added} more are \
                     asked for",
                    self.bytes
                ),
            ));
        }
        Ok(records)
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::Call(call) => {
                self.bytes += call.signed.accounted_bytes();
                if let Some(before) = self.calls.insert(call.name.digest, call) {
                    self.bytes -= before.signed.accounted_bytes();
                }
            }
            Record::Again { digest, height } => {
                if let Some(kept) = self.calls.get_mut(&digest) {
                    kept.height = kept.height.max(height);
                }
            }
        }
    }

    fn count(&self) -> u64 {
        self.calls.values().map(|call| call.signed.accounted_bytes()).sum()
    }
}

/// Reads every record that checks; `None` when there is no file.
fn read(
    disk: &SharedDisk,
    path: &Path,
    bytes_max: u64,
    calls: &mut Vec<Record>,
    damaged: &mut bool,
) -> Result<Option<Reader>, RecordError> {
    let length = bytes_max.saturating_mul(3).saturating_add(4 * DEAD_BYTES);
    let mut reader = match Reader::open(disk.as_ref(), path, KIND, Some(length)) {
        Err(RecordError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(None);
        }
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

fn encode(records: &[Record]) -> io::Result<Vec<Vec<u8>>> {
    records.iter().map(|record| postcard::to_stdvec(record).map_err(io::Error::other)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use disk::{RealDisk, SimulatedDisk};
    use ic_principal::Principal;
    use state::IngressId;

    use super::*;

    fn open(path: &Path, bytes_max: u64) -> Journal {
        Journal::open(RealDisk::shared(), path, bytes_max).unwrap()
    }

    fn call(number: u8, size: usize, expiry: u64) -> JournaledCall {
        at(1, number, size, expiry)
    }

    fn at(height: u64, number: u8, size: usize, expiry: u64) -> JournaledCall {
        let signed = SignedIngress {
            effective_canister_id: Principal::management_canister(),
            envelope: vec![number; size].into(),
        };
        JournaledCall {
            name: CallName::for_envelope(IngressId([number; 32]), &signed),
            validity: Time(expiry).into(),
            height: Height(height),
            signed,
        }
    }

    fn numbers(journal: &Journal) -> Vec<u8> {
        let mut numbers: Vec<_> =
            journal.kept.lock().calls.values().map(|kept| kept.name.id.0[0]).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn reopening_restores_calls_and_drops_a_torn_tail() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("voted");
        let journal = open(&path, 10_000);
        journal.append(vec![call(1, 100, 9), call(2, 100, 9)]).unwrap();
        journal.append(vec![call(2, 100, 9), call(3, 100, 9)]).unwrap();
        drop(journal);
        let whole = fs::read(&path).unwrap();
        // Its end is the mark behind the last call.
        for cut in 0..whole.len() - disk::records::HEAD_BYTES as usize {
            fs::write(&path, &whole[..cut]).unwrap();
            let journal = open(&path, 10_000);
            assert!(numbers(&journal).len() <= 2, "cut at {cut}");
        }
        fs::write(&path, &whole).unwrap();
        let journal = open(&path, 10_000);
        assert_eq!(numbers(&journal), [1, 2, 3]);
        let second = call(2, 100, 9);
        assert_eq!(journal.get(&second.name), Some((second.signed, second.validity)));
        journal.drop_through(Height(0), Time(9)).unwrap();
        assert_eq!(numbers(&journal), [1, 2, 3]);
        journal.drop_through(Height(0), Time(10)).unwrap();
        assert!(numbers(&journal).is_empty(), "void calls leave");
    }

    // Promise: P17 - Calls of blocks that did not become final are released with their height.
    #[test]
    fn calls_of_blocks_that_did_not_become_final_leave_with_their_height() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("voted");
        let journal = open(&path, 10_000);
        // Three proposals for the same height; the third's call is proposed for the next one too.
        for number in 1..=3 {
            journal.append(vec![at(5, number, 1_000, 9)]).unwrap();
        }
        journal.append(vec![at(6, 3, 1_000, 9), at(6, 4, 1_000, 9)]).unwrap();
        journal.drop_through(Height(4), Time(1)).unwrap();
        assert_eq!(numbers(&journal), [1, 2, 3, 4]);
        drop(journal);
        let journal = open(&path, 10_000);
        journal.drop_through(Height(5), Time(1)).unwrap();
        assert_eq!(numbers(&journal), [3, 4], "the greater height was durable");
        journal.drop_through(Height(6), Time(1)).unwrap();
        assert_eq!((numbers(&journal), journal.kept.lock().bytes), (vec![], 0));
    }

    #[test]
    fn two_envelopes_of_one_request_are_two_calls() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(&folder.path().join("voted"), 10_000);
        let (small, large) = (call(1, 200, 9), call(1, 2_000, 9));
        journal.append(vec![small.clone(), large.clone()]).unwrap();
        assert_eq!(journal.get(&small.name).map(|(signed, _)| signed), Some(small.signed));
        assert_eq!(journal.get(&large.name).map(|(signed, _)| signed), Some(large.signed));
    }

    // Promise: P17 - The journal file is bounded by its live records.
    #[test]
    fn the_file_is_bounded_by_what_is_live() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("voted");
        let journal = open(&path, 1 << 20);
        journal.append(vec![at(1_000, 0, 1_000, 9)]).unwrap();
        for round in 0..200u8 {
            let number = round % 100 + 1;
            journal.append(vec![at(round.into(), number, 60_000, 9)]).unwrap();
            journal.drop_through(Height(round.into()), Time(0)).unwrap();
            assert!(fs::metadata(&path).unwrap().len() <= 2 * DEAD_BYTES);
        }
        assert_eq!(numbers(&journal), [0]);
        drop(journal);
        // Calls that were removed recently may still be in the file: they are read again, and
        // removed again.
        let live = numbers(&open(&path, 1 << 20));
        assert!(live.contains(&0) && live.len() < 30, "{live:?}");
    }

    // Promise: P17 - Calls beyond the bound of the journal are refused with the bound.
    #[test]
    fn calls_over_the_bound_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(&folder.path().join("voted"), 1_000);
        journal.append(vec![call(1, 500, 9)]).unwrap();
        let error = journal.append(vec![call(2, 500, 9)]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        assert!(error.to_string().contains("1000 bytes"), "{error}");
        assert_eq!(numbers(&journal), [1]);
        // A call that is kept is voted for at another height all the same.
        journal.append(vec![at(2, 1, 500, 9)]).unwrap();
    }

    // Promise: P6 - Every intact record behind damage in the journal is kept.
    #[test]
    fn behind_damage_every_good_record_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("voted");
        // On a simulated disk syncing costs nothing.
        let open = || {
            let disk = SimulatedDisk::new(folder.path(), 0).unwrap();
            Journal::open(std::sync::Arc::new(disk), &path, 10_000).unwrap()
        };
        let journal = open();
        for number in 1..=5 {
            journal.append(vec![call(number, 100, 9)]).unwrap();
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
            assert_eq!(numbers(&open()).len(), kept, "damage is reported once");
        }
    }

    // Promise: P6 - The journal of calls keeps what a vote depends on in 100 histories of failures.
    #[test]
    fn journaled_calls_survive_failed_syncs_and_power_cuts() {
        for seed in 0..100_u64 {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("disk");
            let disk = SimulatedDisk::new(&root, seed).unwrap();
            let path = root.join("voted");
            let journal = Journal::open(std::sync::Arc::new(disk.clone()), &path, 1 << 20).unwrap();
            disk.end_after(5 + seed % 60, seed.is_multiple_of(2));
            let mut voted = vec![];
            for number in 1..30 {
                disk.fail_syncs((seed + u64::from(number)) % 5 / 4);
                if journal.append(vec![call(number, 3_000, 9)]).is_ok() {
                    voted.push(number);
                }
            }
            drop(journal);
            disk.cut_power().unwrap();
            let journal = Journal::open(std::sync::Arc::new(disk), &path, 1 << 20).unwrap();
            let there = numbers(&journal);
            assert!(
                voted.iter().all(|number| there.contains(number)),
                "seed {seed}: {voted:?}, {there:?}"
            );
        }
    }
}
