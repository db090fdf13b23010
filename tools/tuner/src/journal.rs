//! The journal of a search: its specification and every run, in a folder. A restarted search takes
//! the measurements from it, in order, and so makes the same decisions up to where it stopped.
//!
//! Bounds: [`RECORDS_MAX`] runs of [`RECORD_BYTES_MAX`]. Must never know: the meaning of a run.

use std::{
    collections::{HashMap, VecDeque},
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::run::Measurement;

const RECORDS_MAX: usize = 20_000;
const RECORD_BYTES_MAX: u64 = 64 << 10;
const FORMAT: u32 = 1;

/// One run of a search, a line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Names and values of the knobs that were turned.
    pub(crate) setting: Vec<(String, String)>,
    pub(crate) cap_bytes: u64,
    /// Purpose of the run.
    pub(crate) why: String,
    /// Why it counts for nothing: others took the processors meanwhile.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) discarded: Option<String>,
    /// Time spent on the search, this run included.
    pub(crate) spent_seconds: f64,
    pub(crate) measured: Measurement,
}

#[derive(Serialize, Deserialize)]
struct Head {
    format: u32,
    identity: String,
    what: String,
}

/// The folder of a search.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    file: File,
    known: HashMap<Key, VecDeque<Record>>,
    /// Of the runs that are there.
    pub(crate) resumed: usize,
    pub(crate) spent_seconds: f64,
    count: usize,
    _lock: File,
}

type Key = (Vec<(String, String)>, u64);

impl Journal {
    /// Opens a folder or makes it. `what`: a description of the search; `identity`: everything that
    /// affects a run.
    pub(crate) fn open(folder: &Path, what: &str, identity: &str, fresh: bool) -> Result<Self> {
        let shown = folder.display();
        fs::create_dir_all(folder).with_context(|| format!("making the folder {shown}"))?;
        let lock = File::create(folder.join("lock"))
            .with_context(|| format!("opening the lock of {shown}"))?;
        if lock.try_lock().is_err() {
            bail!(
                "another `thimble-lab tune` works in {shown}; wait for it, or name another folder \
                 with --state"
            );
        }
        let identity = hex::encode(Sha256::digest(identity));
        let (head_path, runs_path) = (folder.join("search.json"), folder.join("runs.jsonl"));
        if fresh {
            for path in [&head_path, &runs_path] {
                match fs::remove_file(path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(error).with_context(|| format!("removing {}", path.display()));
                    }
                    _ => {}
                }
            }
        }
        if head_path.exists() {
            let head: Head = serde_json::from_slice(&setup::read_input(&head_path)?)
                .with_context(|| format!("{} is no head of a search", head_path.display()))?;
            ensure!(
                head.format == FORMAT && head.identity == identity,
                "{shown} holds another search ({}); begin anew with --fresh, or name another \
                 folder with --state",
                head.what
            );
        } else {
            let head = Head { format: FORMAT, identity, what: what.to_owned() };
            let bytes = serde_json::to_vec_pretty(&head)?;
            disk::replace_file(&head_path, &bytes, disk::Readers::All)?;
        }
        let records = read_records(&runs_path)?;
        let file = OpenOptions::new().create(true).append(true).open(&runs_path)?;
        let mut journal = Self {
            folder: folder.to_owned(),
            file,
            known: HashMap::new(),
            resumed: records.len(),
            spent_seconds: records.last().map_or(0.0, |record| record.spent_seconds),
            count: records.len(),
            _lock: lock,
        };
        for record in records.into_iter().filter(|record| record.discarded.is_none()) {
            let key = (record.setting.clone(), record.cap_bytes);
            journal.known.entry(key).or_default().push_back(record);
        }
        Ok(journal)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The next run of this setting that is known and was not taken yet.
    pub(crate) fn take(&mut self, setting: &[(String, String)], cap_bytes: u64) -> Option<Record> {
        self.known.get_mut(&(setting.to_vec(), cap_bytes))?.pop_front()
    }

    /// Whether nothing that is known is left.
    pub(crate) fn is_used_up(&self) -> bool {
        self.known.values().all(VecDeque::is_empty)
    }

    /// Writes a run down before it is used.
    pub(crate) fn write(&mut self, record: &Record) -> Result<()> {
        ensure!(self.count < RECORDS_MAX, "the search has {RECORDS_MAX} runs, which are the most");
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        self.file
            .write_all(&line)
            .and_then(|()| self.file.sync_data())
            .with_context(|| format!("writing to {}", self.folder.display()))?;
        self.count += 1;
        Ok(())
    }
}

/// A line that a kill cut off is left out, and cut away, so that the next is a line of its own.
fn read_records(path: &Path) -> Result<Vec<Record>> {
    let Ok(file) = File::open(path) else { return Ok(Vec::new()) };
    let mut reader = BufReader::new(file);
    let mut records = Vec::new();
    let mut good = 0;
    let mut line = Vec::new();
    while records.len() < RECORDS_MAX {
        line.clear();
        let count = (&mut reader).take(RECORD_BYTES_MAX).read_until(b'\n', &mut line)?;
        if count == 0 {
            break;
        }
        match serde_json::from_slice(&line) {
            Ok(record) if line.ends_with(b"\n") => records.push(record),
            _ => {
                let file = OpenOptions::new().write(true).open(path)?;
                file.set_len(good).with_context(|| format!("cutting {}", path.display()))?;
                break;
            }
        }
        good += count as u64;
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(value: &str, spent_seconds: f64) -> Record {
        Record {
            setting: vec![("-A".into(), value.into())],
            cap_bytes: 7,
            why: "alone".into(),
            discarded: None,
            spent_seconds,
            measured: Measurement { peak_bytes: 3, ..Measurement::default() },
        }
    }

    // Promise: P25 - A search continues from its journal; a truncated last line is ignored.
    #[test]
    fn what_was_measured_comes_back_in_order_and_a_line_cut_off_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let open =
            |identity: &str, fresh| Journal::open(folder.path(), "a search", identity, fresh);
        let mut journal = open("x", false).unwrap();
        assert!(
            open("x", false).unwrap_err().to_string().contains("another `thimble-lab tune` works")
        );
        for (value, spent) in [("1m", 1.0), ("2m", 2.0), ("1m", 3.0)] {
            journal.write(&record(value, spent)).unwrap();
        }
        let noisy = Record { discarded: Some("others".into()), ..record("2m", 4.0) };
        journal.write(&noisy).unwrap();
        drop(journal);
        let path = folder.path().join("runs.jsonl");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(br#"{"setting":[["-A","9m"#).unwrap();
        let mut journal = open("x", false).unwrap();
        assert_eq!((journal.resumed, journal.spent_seconds), (4, 4.0));
        let setting = [("-A".to_owned(), "1m".to_owned())];
        assert_eq!(journal.take(&setting, 7).unwrap().spent_seconds, 1.0);
        assert_eq!(journal.take(&setting, 8), None, "another cap");
        assert_eq!(journal.take(&setting, 7).unwrap().spent_seconds, 3.0);
        assert_eq!(journal.take(&setting, 7), None);
        assert!(!journal.is_used_up());
        journal.write(&record("3m", 5.0)).unwrap();
        drop(journal);
        assert_eq!(open("x", false).unwrap().resumed, 5);
        let refused = open("y", false).unwrap_err().to_string();
        assert!(refused.contains("--fresh") && refused.contains("a search"), "{refused}");
        assert_eq!(open("y", true).unwrap().resumed, 0);
    }
}
