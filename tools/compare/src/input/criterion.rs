//! Folders of Criterion (`target/criterion`), and single estimates of it.
//!
//! A run is one value for each benchmark: the median of its samples. The spread inside a run is not
//! used: most of the difference between two runs is not in it. `FOLDER#NAME` is the baseline saved
//! with `--save-baseline NAME`; without it, the newest.
//!
//! Bounds: [`DEPTH_MAX`], [`ENTRIES_MAX`], [`ESTIMATES_BYTES_MAX`]; links are not followed.

use std::{
    ffi::OsStr,
    fs,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::Readings;

/// Levels of folders that are searched below the one that was named.
const DEPTH_MAX: usize = 8;
const ENTRIES_MAX: usize = 200_000;
const ESTIMATES_BYTES_MAX: u64 = 1 << 20;
const NEWEST: &str = "new";

/// The folder, and the name of the baseline in it.
pub(crate) fn split(path: &Path) -> (PathBuf, String) {
    let bytes = path.as_os_str().as_bytes();
    match bytes.iter().rposition(|byte| *byte == b'#') {
        Some(at) if !path.exists() => {
            let (folder, name) = (bytes.get(..at), bytes.get(at + 1..));
            let folder = PathBuf::from(OsStr::from_bytes(folder.unwrap_or_default()));
            (folder, String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
        }
        _ => (path.to_owned(), NEWEST.to_owned()),
    }
}

pub(crate) fn is_estimates(value: &Value) -> bool {
    value.pointer("/median/point_estimate").is_some()
}

fn median(value: &Value) -> Result<f64, String> {
    let median = value.pointer("/median/point_estimate").and_then(Value::as_f64);
    median.ok_or_else(|| "an estimate has no median".to_owned())
}

/// One file of estimates; the benchmark's name is not in it.
pub(crate) fn read_estimates(value: &Value) -> Result<Readings, String> {
    let mut readings = Readings::default();
    readings.add("benchmark", median(value)?, "ns", None)?;
    Ok(readings)
}

/// Every benchmark below a folder.
pub(crate) fn read_folder(folder: &Path, baseline: &str) -> Result<Readings, String> {
    let mut readings = Readings::default();
    let mut left = vec![(folder.to_owned(), 0)];
    let mut entries = 0;
    let mut names = Vec::new();
    while let Some((at, depth)) = left.pop() {
        let list = fs::read_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        for entry in list.flatten() {
            entries += 1;
            if entries > ENTRIES_MAX {
                return Err(format!("it has more than {ENTRIES_MAX} entries; name a folder in it"));
            }
            // Links do not count as folders here.
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = entry.path();
            if entry.file_name() == OsStr::new(baseline) && path.join("estimates.json").is_file() {
                names.push(path);
            } else if depth < DEPTH_MAX {
                left.push((path, depth + 1));
            }
        }
    }
    names.sort();
    for path in names {
        let estimates = document(&path.join("estimates.json"))?;
        let described = document(&path.join("benchmark.json")).ok();
        let told = described.as_ref().and_then(|value| value.get("full_id")?.as_str());
        let parent = path.parent().unwrap_or(folder);
        let beneath = parent.strip_prefix(folder).unwrap_or(parent).display().to_string();
        readings.add(told.unwrap_or(&beneath), median(&estimates)?, "ns", None)?;
    }
    if readings.list.is_empty() {
        return Err(format!(
            "there is no benchmark in it: no {baseline}/estimates.json (a folder of Criterion is \
             target/criterion, FOLDER#NAME a baseline that was saved)"
        ));
    }
    Ok(readings)
}

fn document(path: &Path) -> Result<Value, String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        fs::File::open(path)?.take(ESTIMATES_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))
}
