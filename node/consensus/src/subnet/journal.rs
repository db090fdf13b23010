//! Calls of blocks this node voted for, on disk before the vote.
//!
//! A vote states that the block can be executed. Were its calls in memory only, all nodes losing
//! power at once would leave a final block that no node can execute, and the chain would halt for
//! good. So each voter has the calls on disk, and 2f+1 vote for each final block.
//!
//! The calls are blobs of the engine's storage ([`super::blobs`]), one for each height. That
//! storage is one log, and the vote is written behind the calls: the sync before which no vote is
//! sent makes them durable too. A call is in the blob of the greatest height of a block that names
//! it and was voted for, each with its length (u32, little-endian) in front. It is removed when the
//! block of that height is durable in the block log, because then the blocks that name it are in
//! the log or can never become final, or when it is void.
//!
//! A call that does not decode is logged and skipped: it is one copy less of the 2f+1 that its
//! block's votes stand for, and is requested from the others.
//!
//! Bounded: above `bytes_max` of live calls nothing is accepted, and the vote waits.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
};

use commonware_runtime::{BlobVersion, Error};
use commonware_utils::sync::Mutex;
use serde::{Deserialize, Serialize};
use state::{Height, SignedIngress, Time, Validity};

use super::{
    blobs::{BlobLog, LogBlob},
    block::CallName,
};

/// Of the blobs.
const PARTITION: &str = "voted";
/// Of their contents.
const VERSION: BlobVersion = BlobVersion::new(3);
/// Largest encoded call; a longer one is not read.
const CALL_BYTES_MAX: u32 = 64 << 20;

/// A call with what its place in a block depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournaledCall {
    pub(super) name: CallName,
    pub(super) validity: Validity,
    /// Of the block that is voted for.
    pub(super) height: Height,
    pub(super) signed: SignedIngress,
}

/// The version, and one record.
#[cfg(test)]
pub(super) fn samples() -> (u64, Vec<(&'static str, Vec<u8>)>) {
    let name = CallName { id: state::IngressId([6; 32]), digest: [7; 32], bytes: 300 };
    let signed = SignedIngress {
        effective_canister_id: ic_principal::Principal::from_slice(&[1, 2, 3]),
        envelope: vec![5; 300].into(),
    };
    let validity = Validity { from: Time(11), until: Time(12) };
    let call = JournaledCall { name, validity, height: Height(13), signed };
    let mut record = Vec::new();
    let _ = encode(&call, &mut record);
    (VERSION.get().into(), vec![("call", record)])
}

/// The calls of blocks that this node voted for. Readers never wait for the disk: what is kept and
/// the blobs have a lock each, and only who writes takes the blobs', before the other.
pub(super) struct Journal {
    blobs: BlobLog,
    heights: Mutex<BTreeMap<Height, HeightBlob>>,
    kept: Mutex<LiveCalls>,
    /// Largest sum of the bytes of live calls.
    bytes_max: u64,
}

struct HeightBlob {
    blob: LogBlob,
    /// Up to the end of the last call.
    length: u64,
    /// A call was not written completely: there may be a part of it.
    torn: bool,
}

/// Contents of the blobs.
#[derive(Default)]
struct LiveCalls {
    /// By the digest of the envelope, with the change of the storage that brought it.
    calls: BTreeMap<[u8; 32], (JournaledCall, u64)>,
    bytes: u64,
}

impl Journal {
    /// Reads the journal, made if absent.
    pub(super) fn open(blobs: BlobLog, bytes_max: u64) -> Result<Self, Error> {
        let names = match blobs.scan(PARTITION) {
            Err(Error::PartitionMissing(_)) => Vec::new(),
            names => names?,
        };
        let (mut heights, mut kept) = (BTreeMap::new(), LiveCalls::default());
        for name in names {
            let (blob, length, _) = open_blob(&blobs, &name)?;
            let Ok(height) = name.as_slice().try_into().map(u64::from_be_bytes) else { continue };
            let whole = read(&blob, length, &mut kept)?;
            let torn = whole < length;
            heights.insert(Height(height), HeightBlob { blob, length: whole, torn });
        }
        let (heights, kept) = (Mutex::new(heights), Mutex::new(kept));
        Ok(Self { blobs, heights, kept, bytes_max })
    }

    /// A call that was kept, and when it is valid.
    pub(super) fn get(&self, name: &CallName) -> Option<(SignedIngress, Validity)> {
        let kept = self.kept.lock();
        let (call, _) = kept.calls.get(&name.digest).filter(|(call, _)| call.name.id == name.id)?;
        Some((call.signed.clone(), call.validity))
    }

    /// Whether the calls of a block of this height are durable here, and stay until it is durable
    /// in the block log.
    pub(super) fn holds_durably(&self, names: &[CallName], height: Height) -> bool {
        let durable = self.blobs.durable();
        let kept = self.kept.lock();
        names.iter().all(|name| {
            kept.calls.get(&name.digest).is_some_and(|(call, change)| {
                call.name.id == name.id && call.height >= height && *change <= durable
            })
        })
    }

    /// Writes these: they are durable with whatever is written to the storage after them.
    pub(super) fn append(&self, calls: Vec<JournaledCall>) -> io::Result<()> {
        let mut heights = self.heights.lock();
        let calls = self.kept.lock().missing(calls, self.bytes_max)?;
        for call in calls {
            let file = match heights.entry(call.height) {
                Entry::Occupied(file) => file.into_mut(),
                Entry::Vacant(file) => {
                    let name = call.height.0.to_be_bytes();
                    let (blob, length, _) = open_blob(&self.blobs, &name).map_err(into_io)?;
                    file.insert(HeightBlob { blob, length, torn: false })
                }
            };
            let mut record = Vec::with_capacity(call.signed.envelope.len() + 256);
            encode(&call, &mut record)?;
            if std::mem::replace(&mut file.torn, true) {
                file.blob.cut(file.length).map_err(into_io)?;
            }
            let change = file.blob.write(file.length, &record).map_err(into_io)?;
            file.length += record.len() as u64;
            file.torn = false;
            let mut kept = self.kept.lock();
            kept.add(call, change);
            debug_assert_eq!(kept.bytes, kept.count(), "the sum of the bytes that are kept");
        }
        Ok(())
    }

    /// The block of this height and time is durable in the block log: drops the calls that no later
    /// block voted for names, and all that are void.
    pub(super) fn drop_through(&self, height: Height, time: Time) -> io::Result<()> {
        let mut heights = self.heights.lock();
        {
            let mut kept = self.kept.lock();
            kept.calls.retain(|_, (call, _)| call.height > height && call.validity.until >= time);
            kept.bytes = kept.count();
        }
        while let Some(oldest) = heights.first_entry().filter(|oldest| *oldest.key() <= height) {
            let name = oldest.key().0.to_be_bytes();
            match self.blobs.remove(PARTITION, Some(&name)) {
                Ok(()) | Err(Error::BlobMissing(..) | Error::PartitionMissing(_)) => {
                    oldest.remove();
                }
                Err(error) => return Err(into_io(error)),
            }
        }
        Ok(())
    }
}

impl LiveCalls {
    /// The calls that are to be written, as they are not kept for their height or a greater one.
    fn missing(&self, calls: Vec<JournaledCall>, bytes_max: u64) -> io::Result<Vec<JournaledCall>> {
        let (mut missing, mut added) = (Vec::new(), 0);
        for call in calls {
            match self.calls.get(&call.name.digest) {
                Some((kept, _)) if kept.height >= call.height => {}
                // It is in the blob of a lower height, which is removed first.
                Some(_) => missing.push(call),
                None => {
                    added += call.signed.accounted_bytes();
                    missing.push(call);
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
        Ok(missing)
    }

    fn add(&mut self, call: JournaledCall, change: u64) {
        let digest = call.name.digest;
        if self.calls.get(&digest).is_some_and(|(kept, _)| kept.height > call.height) {
            return;
        }
        self.bytes += call.signed.accounted_bytes();
        if let Some((before, _)) = self.calls.insert(digest, (call, change)) {
            self.bytes -= before.signed.accounted_bytes();
        }
    }

    fn count(&self) -> u64 {
        self.calls.values().map(|(call, _)| call.signed.accounted_bytes()).sum()
    }
}

fn open_blob(blobs: &BlobLog, name: &[u8]) -> Result<(LogBlob, u64, BlobVersion), Error> {
    blobs.open_blob(PARTITION, name, &(VERSION..=VERSION))
}

/// Reads the calls of a blob; returns where they end. What was in the storage when it was opened is
/// durable.
fn read(blob: &LogBlob, length: u64, kept: &mut LiveCalls) -> Result<u64, Error> {
    let mut offset = 0;
    // A call may be cut short, as its vote was not cast.
    while offset + 4 <= length {
        let head = blob.read(offset, 4)?;
        let bytes = head.first_chunk().map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes));
        if bytes > CALL_BYTES_MAX || offset + 4 + u64::from(bytes) > length {
            break;
        }
        let record = blob.read(offset + 4, bytes as usize)?;
        match postcard::from_bytes(&record) {
            Ok(call) => kept.add(call, 0),
            Err(error) => tracing::error!(offset, %error, "a call voted for does not decode"),
        }
        offset += 4 + u64::from(bytes);
    }
    Ok(offset)
}

fn encode(call: &JournaledCall, record: &mut Vec<u8>) -> io::Result<()> {
    let encoded = postcard::to_stdvec(call).map_err(io::Error::other)?;
    let bytes = u32::try_from(encoded.len()).ok().filter(|bytes| *bytes <= CALL_BYTES_MAX);
    let bytes = bytes.ok_or_else(|| io::Error::other("a call is longer than any"))?;
    record.extend_from_slice(&bytes.to_le_bytes());
    record.extend_from_slice(&encoded);
    Ok(())
}

fn into_io(error: Error) -> io::Error {
    match error {
        Error::Io(source) => io::Error::new(source.kind(), source),
        error => io::Error::other(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use disk::{RealDisk, SimulatedDisk};
    use ic_principal::Principal;
    use state::IngressId;

    use super::*;

    fn open(path: &Path, bytes_max: u64) -> Journal {
        Journal::open(BlobLog::open(RealDisk::shared(), path).unwrap(), bytes_max).unwrap()
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
            journal.kept.lock().calls.values().map(|(kept, _)| kept.name.id.0[0]).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn reopening_restores_calls() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path(), 10_000);
        journal.append(vec![call(1, 100, 9), call(2, 100, 9)]).unwrap();
        journal.append(vec![call(2, 100, 9), call(3, 100, 9)]).unwrap();
        let second = call(2, 100, 9);
        assert!(!journal.holds_durably(&[second.name], Height(1)));
        journal.blobs.sync_now().unwrap();
        assert!(journal.holds_durably(&[second.name], Height(1)));
        assert!(!journal.holds_durably(&[second.name], Height(2)), "it leaves with height 1");
        drop(journal);
        let journal = open(folder.path(), 10_000);
        assert_eq!(numbers(&journal), [1, 2, 3]);
        assert!(journal.holds_durably(&[second.name], Height(1)));
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
        let journal = open(folder.path(), 10_000);
        // Three proposals for the same height; the third's call is proposed for the next one too.
        for number in 1..=3 {
            journal.append(vec![at(5, number, 1_000, 9)]).unwrap();
        }
        journal.append(vec![at(6, 3, 1_000, 9), at(6, 4, 1_000, 9)]).unwrap();
        journal.drop_through(Height(4), Time(1)).unwrap();
        assert_eq!(numbers(&journal), [1, 2, 3, 4]);
        drop(journal);
        let journal = open(folder.path(), 10_000);
        journal.drop_through(Height(5), Time(1)).unwrap();
        assert_eq!(numbers(&journal), [3, 4], "the greater height is kept");
        drop(journal);
        let journal = open(folder.path(), 10_000);
        assert_eq!(numbers(&journal), [3, 4]);
        journal.drop_through(Height(6), Time(1)).unwrap();
        assert_eq!((numbers(&journal), journal.kept.lock().bytes), (vec![], 0));
        assert_eq!(journal.blobs.scan(PARTITION).unwrap(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn two_envelopes_of_one_request_are_two_calls() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path(), 10_000);
        let (small, large) = (call(1, 200, 9), call(1, 2_000, 9));
        journal.append(vec![small.clone(), large.clone()]).unwrap();
        assert_eq!(journal.get(&small.name).map(|(signed, _)| signed), Some(small.signed));
        assert_eq!(journal.get(&large.name).map(|(signed, _)| signed), Some(large.signed));
    }

    // Promise: P17 - Calls beyond the bound of the journal are refused with the bound.
    #[test]
    fn calls_over_the_bound_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path(), 1_000);
        journal.append(vec![call(1, 500, 9)]).unwrap();
        let error = journal.append(vec![call(2, 500, 9)]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        assert!(error.to_string().contains("1000 bytes"), "{error}");
        assert_eq!(numbers(&journal), [1]);
        // A call that is kept is voted for at another height all the same.
        journal.append(vec![at(2, 1, 500, 9)]).unwrap();
    }

    // Promise: P6 - The journal of calls keeps what a vote depends on in 100 histories of failures.
    #[test]
    fn journaled_calls_survive_failed_syncs_and_power_cuts() {
        for seed in 0..100_u64 {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("disk");
            let disk = SimulatedDisk::new(&root, seed).unwrap();
            let shared: disk::SharedDisk = std::sync::Arc::new(disk.clone());
            let mut voted = vec![];
            for life in 0..3_u8 {
                let blobs = BlobLog::open(shared.clone(), &root.join("log")).unwrap();
                let journal = Journal::open(blobs, 1 << 20).unwrap();
                let there = numbers(&journal);
                assert!(
                    voted.iter().all(|number| there.contains(number)),
                    "seed {seed}, life {life}: {voted:?}, {there:?}"
                );
                disk.end_after(5 + seed % 60, seed.is_multiple_of(2));
                for number in 10 * life + 1..10 * life + 10 {
                    disk.fail_syncs((seed + u64::from(number)) % 7 / 6);
                    let kept = journal.append(vec![call(number, 3_000, 9)]).is_ok();
                    if kept && journal.blobs.sync_now().is_ok() {
                        voted.push(number);
                    }
                }
                drop(journal);
                disk.cut_power().unwrap();
            }
        }
    }
}
