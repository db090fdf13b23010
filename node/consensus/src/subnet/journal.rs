//! Calls of blocks this node voted for, on disk before the vote.
//!
//! A vote says that the block can be executed. Were its calls in memory only, all nodes losing power at once would leave a final block that nobody can execute, and
//! the chain would stand for ever. So whoever votes has the calls on disk, and 2f+1 vote for each final block.
//!
//! One file of records `length: u32, crc32: u32, payload` (little-endian). A call is in it once, however many blocks name it. It leaves when a block that holds it
//! is in the block log, or when it is void. A file whose every call left is emptied; one that is mostly gone is
//! written again; until then calls that left come back with a restart and are void soon, which does no harm. What a crash tore at
//! the end is cut off: the vote had not been cast.
//!
//! Bounded: beyond `bytes_max` of live calls nothing is taken, and the node does not vote.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use state::{IngressId, SignedIngress, Time};

/// Dead bytes in the file that are not worth writing it again.
const DEAD_BYTES: u64 = 1 << 20;

/// A call with what its place in a block depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptCall {
    pub(super) id: IngressId,
    pub(super) expiry: Time,
    pub(super) signed: SignedIngress,
}

/// See the module.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
    live: BTreeMap<IngressId, (Time, SignedIngress)>,
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
        while let Some((call, size)) = record(rest) {
            rest = &rest[size..];
            journal.length += size as u64;
            journal.add(call);
        }
        journal.file.set_len(journal.length)?;
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
        let bytes = encode(&new)?;
        if let Err(error) = self.append(&bytes) {
            // Whatever part reached the file must not be taken for a record later.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
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
        if self.live.is_empty() && self.length > 0 {
            self.file.set_len(0)?;
            self.length = 0;
        } else if self.length > 2 * self.live_bytes + DEAD_BYTES {
            self.rewrite()?;
        }
        Ok(())
    }

    fn add(&mut self, KeptCall { id, expiry, signed }: KeptCall) {
        self.live_bytes += signed.accounted_bytes();
        if let Some((_, before)) = self.live.insert(id, (expiry, signed)) {
            self.live_bytes -= before.accounted_bytes();
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
        let calls: Vec<_> = self
            .live
            .iter()
            .map(|(id, (expiry, signed))| KeptCall { id: *id, expiry: *expiry, signed: signed.clone() })
            .collect();
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

fn encode(calls: &[KeptCall]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for call in calls {
        let payload = postcard::to_stdvec(call).map_err(io::Error::other)?;
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
        bytes.extend_from_slice(&payload);
    }
    Ok(bytes)
}

/// The record at the start of `bytes` and its size, if it is whole.
fn record(bytes: &[u8]) -> Option<(KeptCall, usize)> {
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

    use super::*;

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
        assert_eq!(journal.get(&IngressId([2; 32])), Some(&call(2, 100, 9).signed));
        journal.forget(&[IngressId([1; 32])], Time(0)).unwrap();
        journal.forget(&[], Time(10)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0, "void calls leave");
    }

    #[test]
    fn the_file_is_bounded_by_what_is_live() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("voted");
        let mut journal = Journal::open(&path, 1 << 20).unwrap();
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
    }
}
