//! Calls of blocks this node voted for, on disk before the vote.
//!
//! A vote says that the block can be executed. Were its calls in memory only, all nodes losing power at once would leave a final block that nobody can execute, and
//! the chain would stand for ever. So whoever votes has the calls on disk, and 2f+1 vote for each final block.
//!
//! One file of records `length: u32, crc32: u32, payload` (little-endian). A call is in it once, however many blocks name it, by the digest of its envelope: two envelopes
//! of one request are two calls here. With it stands the greatest height of a block that names it and was voted for; a vote at a greater height adds a short record. A call
//! leaves when the block of that height is in the block log, because then the blocks that name it are in the log or can never become final, or when it is void. So blocks
//! that were voted for and lost their round do not fill the journal. A file whose every call left is emptied; one that is mostly gone is
//! written again; until then calls that left come back with a restart and leave soon, which does no harm. What a crash tore at
//! the end is cut off: the vote had not been cast.
//!
//! Bounded: beyond `bytes_max` of live calls nothing is taken, and the vote waits.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use state::{Height, SignedIngress, Time, Validity};

use super::block::CallName;

/// Dead bytes in the file that are not worth writing it again.
const DEAD_BYTES: u64 = 1 << 20;

/// A call with what its place in a block depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptCall {
    pub(super) name: CallName,
    pub(super) validity: Validity,
    /// Of the block that is voted for.
    pub(super) height: Height,
    pub(super) signed: SignedIngress,
}

#[derive(Serialize, Deserialize)]
enum Record {
    Call(KeptCall),
    /// A call that is kept is in a block of this height too.
    Again {
        digest: [u8; 32],
        height: Height,
    },
}

/// See the module.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
    /// By the digest of the envelope.
    live: BTreeMap<[u8; 32], KeptCall>,
    live_bytes: u64,
    bytes_max: u64,
}

impl Journal {
    /// Opens the journal at `path`, made if absent.
    pub(super) fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
        let mut bytes = Vec::new();
        (&mut file)
            .take(bytes_max.saturating_mul(3).saturating_add(4 * DEAD_BYTES))
            .read_to_end(&mut bytes)?;
        let mut journal =
            Self { path: path.to_owned(), file, length: 0, live: BTreeMap::new(), live_bytes: 0, bytes_max };
        let mut rest = bytes.as_slice();
        while let Some((record, size)) = record(rest) {
            rest = &rest[size..];
            journal.length += size as u64;
            journal.add(record);
        }
        journal.file.set_len(journal.length)?;
        Ok(journal)
    }

    /// A call that was kept, and when it is valid.
    pub(super) fn get(&self, name: &CallName) -> Option<(SignedIngress, Validity)> {
        let kept = self.live.get(&name.digest).filter(|kept| kept.name.id == name.id)?;
        Some((kept.signed.clone(), kept.validity))
    }

    /// Makes these durable.
    pub(super) fn keep(&mut self, calls: Vec<KeptCall>) -> io::Result<()> {
        let mut records = Vec::new();
        let mut added = 0;
        for call in calls {
            match self.live.get(&call.name.digest) {
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
        if records.is_empty() {
            return Ok(());
        }
        if self.live_bytes + added > self.bytes_max && added > 0 {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!(
                    "calls of blocks voted for take {} of {} bytes, and {added} more are asked for",
                    self.live_bytes, self.bytes_max
                ),
            ));
        }
        let bytes = encode(&records)?;
        if let Err(error) = self.append(&bytes) {
            // Whatever part reached the file must not be taken for a record later.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        records.into_iter().for_each(|record| self.add(record));
        Ok(())
    }

    /// The block of this height and time is in the block log: lets go of calls that no later block voted for names, and of all
    /// that are void.
    pub(super) fn passed(&mut self, height: Height, time: Time) -> io::Result<()> {
        self.live.retain(|_, kept| kept.height > height && kept.validity.until >= time);
        self.live_bytes = self.live.values().map(|kept| kept.signed.accounted_bytes()).sum();
        if self.live.is_empty() && self.length > 0 {
            self.file.set_len(0)?;
            self.length = 0;
        } else if self.length > 2 * self.live_bytes + DEAD_BYTES {
            self.rewrite()?;
        }
        Ok(())
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::Call(call) => {
                self.live_bytes += call.signed.accounted_bytes();
                if let Some(before) = self.live.insert(call.name.digest, call) {
                    self.live_bytes -= before.signed.accounted_bytes();
                }
            }
            Record::Again { digest, height } => {
                if let Some(kept) = self.live.get_mut(&digest) {
                    kept.height = kept.height.max(height);
                }
            }
        }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        use std::os::unix::fs::FileExt as _;
        self.file.write_all_at(bytes, self.length)?;
        self.file.sync_data()?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Only with what is live; whole or not at all.
    fn rewrite(&mut self) -> io::Result<()> {
        let calls: Vec<_> = self.live.values().cloned().map(Record::Call).collect();
        let bytes = encode(&calls)?;
        let scratch = self.path.with_extension("new");
        let mut file =
            OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&scratch)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&scratch, &self.path)?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        self.file = file;
        self.length = bytes.len() as u64;
        Ok(())
    }
}

fn encode(records: &[Record]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for record in records {
        let payload = postcard::to_stdvec(record).map_err(io::Error::other)?;
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
        bytes.extend_from_slice(&payload);
    }
    Ok(bytes)
}

/// The record at the start of `bytes` and its size, if it is whole.
fn record(bytes: &[u8]) -> Option<(Record, usize)> {
    let (head, rest) = bytes.split_at_checked(8)?;
    let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    let checksum = u32::from_le_bytes(head[4..].try_into().ok()?);
    let payload = rest.get(..length)?;
    if crc32fast::hash(payload) != checksum {
        return None;
    }
    Some((postcard::from_bytes(payload).ok()?, 8 + length))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ic_principal::Principal;
    use state::IngressId;

    use super::*;

    fn call(number: u8, size: usize, expiry: u64) -> KeptCall {
        at(1, number, size, expiry)
    }

    fn at(height: u64, number: u8, size: usize, expiry: u64) -> KeptCall {
        let signed = SignedIngress {
            effective_canister_id: Principal::management_canister(),
            envelope: vec![number; size].into(),
        };
        KeptCall {
            name: CallName::of(IngressId([number; 32]), &signed),
            validity: Time(expiry).into(),
            height: Height(height),
            signed,
        }
    }

    fn numbers(journal: &Journal) -> Vec<u8> {
        let mut numbers: Vec<_> = journal.live.values().map(|kept| kept.name.id.0[0]).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn what_was_kept_is_there_again_and_a_torn_end_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("voted");
        let mut journal = Journal::open(&path, 10_000).unwrap();
        journal.keep(vec![call(1, 100, 9), call(2, 100, 9)]).unwrap();
        journal.keep(vec![call(2, 100, 9), call(3, 100, 9)]).unwrap();
        drop(journal);
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let journal = Journal::open(&path, 10_000).unwrap();
            assert!(numbers(&journal).len() <= 2, "cut at {cut}");
        }
        fs::write(&path, &whole).unwrap();
        let mut journal = Journal::open(&path, 10_000).unwrap();
        assert_eq!(numbers(&journal), [1, 2, 3]);
        let second = call(2, 100, 9);
        assert_eq!(journal.get(&second.name), Some((second.signed, second.validity)));
        journal.passed(Height(0), Time(9)).unwrap();
        assert_eq!(numbers(&journal), [1, 2, 3]);
        journal.passed(Height(0), Time(10)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0, "void calls leave");
    }

    #[test]
    fn calls_of_blocks_that_did_not_become_final_leave_with_their_height() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("voted");
        let mut journal = Journal::open(&path, 10_000).unwrap();
        // Three proposals for the same height; the third's call is proposed for the next one too.
        for number in 1..=3 {
            journal.keep(vec![at(5, number, 1_000, 9)]).unwrap();
        }
        journal.keep(vec![at(6, 3, 1_000, 9), at(6, 4, 1_000, 9)]).unwrap();
        journal.passed(Height(4), Time(1)).unwrap();
        assert_eq!(numbers(&journal), [1, 2, 3, 4]);
        drop(journal);
        let mut journal = Journal::open(&path, 10_000).unwrap();
        journal.passed(Height(5), Time(1)).unwrap();
        assert_eq!(numbers(&journal), [3, 4], "the greater height was durable");
        journal.passed(Height(6), Time(1)).unwrap();
        assert_eq!((numbers(&journal), journal.live_bytes), (vec![], 0));
    }

    #[test]
    fn two_envelopes_of_one_request_are_two_calls() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&folder.path().join("voted"), 10_000).unwrap();
        let (small, large) = (call(1, 200, 9), call(1, 2_000, 9));
        journal.keep(vec![small.clone(), large.clone()]).unwrap();
        assert_eq!(journal.get(&small.name).map(|(signed, _)| signed), Some(small.signed));
        assert_eq!(journal.get(&large.name).map(|(signed, _)| signed), Some(large.signed));
    }

    #[test]
    fn the_file_is_bounded_by_what_is_live() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("voted");
        let mut journal = Journal::open(&path, 1 << 20).unwrap();
        journal.keep(vec![at(1_000, 0, 1_000, 9)]).unwrap();
        for round in 0..200u8 {
            let number = round % 100 + 1;
            journal.keep(vec![at(round.into(), number, 60_000, 9)]).unwrap();
            journal.passed(Height(round.into()), Time(0)).unwrap();
            assert!(fs::metadata(&path).unwrap().len() <= 2 * DEAD_BYTES);
        }
        assert_eq!(numbers(&journal), [0]);
        drop(journal);
        // What left lately may still be in the file: it is looked at again, and leaves again.
        let live = numbers(&Journal::open(&path, 1 << 20).unwrap());
        assert!(live.contains(&0) && live.len() < 30, "{live:?}");
    }

    #[test]
    fn more_than_the_bound_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&folder.path().join("voted"), 1_000).unwrap();
        journal.keep(vec![call(1, 500, 9)]).unwrap();
        let error = journal.keep(vec![call(2, 500, 9)]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        assert!(error.to_string().contains("1000 bytes"), "{error}");
        assert_eq!(numbers(&journal), [1]);
        // A call that is kept is voted for at another height all the same.
        journal.keep(vec![at(2, 1, 500, 9)]).unwrap();
    }
}
