//! Making room: bases that no overlay needs go, the longest unused first, and so does what killed
//! processes left.

use std::{str::FromStr, time::Duration};

use accounting::parse_size;
use serde::Serialize;

use crate::{
    Cache, Error, Result, files,
    id::BaseId,
    lock::{Lock, Mode},
    scratch,
};

/// Which bases stay when the cache is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The most recently used bases up to this total of bytes on disk; bases in use stay in any
    /// case and count.
    Bytes(u64),
    /// Bases that were used within this time.
    Age(Duration),
}

impl FromStr for Keep {
    type Err = String;

    /// A size (`20GiB`), or an age: a number and `s`, `min`, `h`, `d` or `w`.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let seconds: u64 = match unit.trim() {
            "s" => 1,
            "min" => 60,
            "h" => 3600,
            "d" => 86_400,
            "w" => 7 * 86_400,
            _ => {
                let size = parse_size(text).map(Self::Bytes);
                return size.map_err(|error| format!("{error}; or an age, for example 36h or 14d"));
            }
        };
        let number: u64 =
            number.parse().map_err(|_| format!("`{text}` is no age; for example 36h or 14d"))?;
        let seconds = number.checked_mul(seconds).ok_or_else(|| format!("`{text}` is too long"))?;
        Ok(Self::Age(Duration::from_secs(seconds)))
    }
}

/// Removals, done or planned.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CollectResult {
    /// Bases that went.
    pub removed: Vec<BaseId>,
    /// Their size on the disk, in bytes.
    pub removed_bytes: u64,
    /// Bases that would have gone, and are in use.
    pub in_use: Vec<BaseId>,
    /// Scratch folders of killed processes that went.
    pub scratch: usize,
    /// Size of the remaining bases on the disk, in bytes.
    pub left_bytes: u64,
}

impl Cache {
    /// Removes what `keep` does not keep. With `dry` nothing is removed.
    pub fn collect(&self, keep: Keep, dry: bool) -> Result<CollectResult> {
        let mut collected =
            CollectResult { scratch: self.tidy_all(dry)?, ..CollectResult::default() };
        let mut entries = self.list()?;
        collected.left_bytes = entries.iter().map(|entry| entry.disk_bytes).sum();
        // The longest unused first; without a time it is the oldest of all.
        entries.sort_by_key(|entry| entry.used);
        for entry in entries {
            let is_kept = match keep {
                Keep::Bytes(bytes) => collected.left_bytes <= bytes,
                // A time in the future has no age.
                Keep::Age(age) => entry.used.is_some_and(|used| {
                    used.elapsed().is_ok_and(|unused| unused <= age) || used.elapsed().is_err()
                }),
            };
            if is_kept {
                continue;
            }
            if !entry.overlays.is_empty() {
                collected.in_use.push(entry.id);
                continue;
            }
            if !dry {
                let path = self.lock_path(&entry.id.to_string());
                // Its holder is using the base.
                let Some(lock) = Lock::try_take(&path, Mode::Exclusive, "removing the base")?
                else {
                    collected.in_use.push(entry.id);
                    continue;
                };
                match self.remove_locked(&entry.id, lock) {
                    Ok(()) => {}
                    Err(Error::InUse { id, .. }) => {
                        collected.in_use.push(id);
                        continue;
                    }
                    // Another process removed it.
                    Err(Error::Unknown { .. }) => continue,
                    Err(error) => return Err(error),
                }
            }
            collected.left_bytes = collected.left_bytes.saturating_sub(entry.disk_bytes);
            collected.removed_bytes += entry.disk_bytes;
            collected.removed.push(entry.id);
        }
        Ok(collected)
    }

    /// Removes scratch folders whose makers are gone; how many there were.
    fn tidy_all(&self, dry: bool) -> Result<usize> {
        let names = files::names(&self.scratch())?;
        let mut owners: Vec<_> = names.iter().filter_map(|name| scratch::owner(name)).collect();
        owners.sort();
        owners.dedup();
        let mut count = 0;
        for id in owners {
            let Some(lock) =
                Lock::try_take(&self.lock_path(&id.to_string()), Mode::Exclusive, "tidying up")?
            else {
                continue;
            };
            count += names.iter().filter(|name| scratch::owner(name) == Some(id)).count();
            if !dry {
                scratch::tidy(&self.scratch(), &id)?;
            }
            drop(lock);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_or_an_age_is_kept() {
        assert_eq!("20GiB".parse(), Ok(Keep::Bytes(20 << 30)));
        assert_eq!("0".parse(), Ok(Keep::Bytes(0)));
        assert_eq!("36h".parse(), Ok(Keep::Age(Duration::from_secs(36 * 3600))));
        assert_eq!("14d".parse(), Ok(Keep::Age(Duration::from_secs(14 * 86_400))));
        for wrong in
            ["", "d", "-1d", "5 fortnights", "99999999999999999999d", "18446744073709551615w"]
        {
            assert!(wrong.parse::<Keep>().is_err(), "{wrong}");
        }
    }
}
