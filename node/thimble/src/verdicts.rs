//! Operators' verdicts: messages that are to be rejected without being executed, because every
//! worker that runs them dies, or because they make the node panic. `thimble reject` writes them
//! into the data folder; the node reads them when it starts and gives them to execution at their
//! height. Once such a round is executed, its verdicts are in the block log with the outcome, and
//! replays take them from there.
//!
//! One text file, `HEIGHT CANISTER ORDINAL` on each line, replaced whole. In a subnet every
//! operator must give the same verdict; otherwise the roots of their nodes differ and the minority
//! stops. A verdict on a batch that was executed before has no effect.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, bail, ensure};
use ic_principal::Principal;
use state::{Fault, Height};

use crate::{
    keys::{self, files},
    rules,
};

const FILE: &str = "verdicts.txt";
const VERDICTS_MAX: usize = 1024;
/// Largest ordinal that `thimble reject` takes: each message counts a million instructions, and no
/// round has as many.
const ORDINAL_MAX: u64 = 999_999;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdicts(BTreeMap<Height, Vec<Fault>>);

impl Verdicts {
    pub(crate) fn read(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join(FILE);
        let Some(text) = files::read_text(&path)? else { return Ok(Self::default()) };
        let mut verdicts = Self::default();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            verdicts
                .add(line)
                .with_context(|| format!("{}, line {}", path.display(), number + 1))?;
        }
        Ok(verdicts)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [height, canister, ordinal] = words[..] else {
            bail!("a verdict is HEIGHT CANISTER ORDINAL, and this is `{}`", line.escape_debug())
        };
        let height =
            height.parse().map(Height).with_context(|| format!("`{height}` is no height"))?;
        let canister_id = Principal::from_text(canister)
            .with_context(|| format!("`{canister}` is no canister id"))?;
        let ordinal = ordinal.parse().with_context(|| format!("`{ordinal}` is no number"))?;
        let verdict = Fault { canister_id, ordinal };
        let known = self.0.entry(height).or_default();
        if !known.contains(&verdict) {
            known.push(verdict);
        }
        let count = self.0.values().map(Vec::len).sum::<usize>();
        ensure!(
            count <= VERDICTS_MAX,
            "{count} verdicts, the most is {VERDICTS_MAX}; those of heights below the node's are \
             not needed any more"
        );
        Ok(())
    }

    /// Messages of a height that are to be rejected. `recorded` are those that an earlier run
    /// rejected: what was executed once is not judged anew.
    pub(crate) fn at(&self, height: Height, recorded: Option<Vec<Fault>>) -> Vec<Fault> {
        let given = self.0.get(&height).cloned().unwrap_or_default();
        match recorded {
            None => given,
            Some(recorded) => {
                if given.iter().any(|verdict| !recorded.contains(verdict)) {
                    tracing::warn!(
                        height = height.0,
                        "a verdict comes too late: the batch was executed without it"
                    );
                }
                recorded
            }
        }
    }

    fn write(&self, data_dir: &Path) -> Result<()> {
        let path = data_dir.join(FILE);
        let mut text = String::new();
        for (height, verdicts) in &self.0 {
            for Fault { canister_id, ordinal } in verdicts {
                text.push_str(&format!("{} {canister_id} {ordinal}\n", height.0));
            }
        }
        disk::replace_file(&path, text.as_bytes(), disk::Readers::Owner)
            .with_context(|| format!("writing {}", path.display()))
    }
}

/// Logs messages that were rejected by a verdict: what has an effect on the state is in the log
/// once.
pub(crate) fn log_effects(height: Height, rejected: &[Fault], executed_again: bool) {
    for Fault { canister_id, ordinal } in rejected {
        let (height, canister) = (height.0, canister_id.to_text());
        if executed_again {
            tracing::info!(height, canister, ordinal, "a verdict took effect again, as before");
        } else {
            tracing::warn!(
                height,
                canister,
                ordinal,
                "a verdict took effect: the message was rejected and nothing of it was executed"
            );
        }
    }
}

/// Runs `thimble reject`: adds the verdict to the data folder, where the next start reads it.
pub(crate) fn reject(data_dir: &Path, height: u64, canister: &str, ordinal: u64) -> Result<()> {
    ensure!(data_dir.join("keys").is_dir(), "{} is no data folder of a node", data_dir.display());
    ensure!(
        ordinal <= ORDINAL_MAX,
        "no canister takes up message {ordinal} in a round, the most is {ORDINAL_MAX}: use the \
         command that the node prints"
    );
    let several = keys::several(data_dir)?;
    let mut verdicts = Verdicts::read(data_dir)?;
    verdicts.add(&format!("{height} {canister} {ordinal}"))?;
    if let Some(executed) = executed_height(data_dir)? {
        ensure!(
            height > executed.0,
            "height {height} was executed already (this folder is at {}): a verdict on it changes \
             nothing",
            executed.0
        );
    }
    verdicts.write(data_dir)?;
    let subnet = if several { ", and do the same on every node of the subnet" } else { "" };
    println!(
        "message {ordinal} of canister {canister} will be rejected at height {height}; start the \
         node again for it to take effect{subnet}"
    );
    Ok(())
}

/// Height up to which a folder's batches were executed; `None` where its node runs, or the folder
/// cannot be read: a verdict must not depend on that.
fn executed_height(data_dir: &Path) -> Result<Option<Height>> {
    let Some(_lock) = files::try_lock(data_dir)? else { return Ok(None) };
    match rules::executed_height(data_dir) {
        Ok(height) => Ok(Some(height)),
        Err(error) => {
            eprintln!("thimble: warning: whether the height was executed is not known: {error:#}");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{fs, os::unix::fs::PermissionsExt as _};

    use consensus::{BlockLog, FinalisedBlock};
    use execution::ExecutorConfig;
    use state::{Randomness, Time};

    use super::*;

    /// What a node made.
    fn data_folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("keys")).unwrap();
        dir
    }

    #[test]
    fn verdict_on_a_height_that_was_executed_is_refused() {
        let dir = data_folder();
        let mut log = BlockLog::open(&dir.path().join("blocks"), 1 << 20).unwrap();
        for height in [1, 2] {
            let block = FinalisedBlock {
                height: Height(height),
                time: Time(height),
                randomness: Randomness::NONE,
                ingress: vec![],
                key: None,
                agreed: None,
                queries: None,
            };
            log.append_block(&block).unwrap();
            if height == 1 {
                log.append_outcome(Height(height), [1; 32], &[]).unwrap();
            }
        }
        drop(log);
        let error = reject(dir.path(), 1, "aaaaa-aa", 0).unwrap_err().to_string();
        assert_eq!(
            error,
            "height 1 was executed already (this folder is at 1): a verdict on it changes nothing"
        );
        assert!(!dir.path().join(FILE).exists());
        // The block is there and waits for its execution.
        reject(dir.path(), 2, "aaaaa-aa", 0).unwrap();
        // A node that runs knows better.
        let lock = files::try_lock(dir.path()).unwrap().unwrap();
        reject(dir.path(), 1, "aaaaa-aa", 0).unwrap();
        drop(lock);
        assert!(reject(dir.path(), 9, "aaaaa-aa", ORDINAL_MAX + 1).is_err());
    }

    #[test]
    fn folder_without_keys_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = reject(dir.path(), 1, "aaaaa-aa", 0).unwrap_err().to_string();
        assert!(error.contains("is no data folder of a node"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    // Promise: P7 - Verdicts are stored and applied at their height.
    #[test]
    fn verdicts_are_kept_and_found_at_their_height() {
        let dir = data_folder();
        assert_eq!(Verdicts::read(dir.path()).unwrap(), Verdicts::default());
        let canister_id = ExecutorConfig::canister_id(7);
        reject(dir.path(), 12, &canister_id.to_text(), 3).unwrap();
        reject(dir.path(), 12, "aaaaa-aa", 0).unwrap();
        reject(dir.path(), 12, "aaaaa-aa", 0).unwrap();
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
        let verdicts = Verdicts::read(dir.path()).unwrap();
        let management = Fault { canister_id: Principal::management_canister(), ordinal: 0 };
        let given = [Fault { canister_id, ordinal: 3 }, management.clone()];
        assert_eq!(verdicts.at(Height(12), None), given);
        assert_eq!(verdicts.at(Height(11), None), []);
        assert_eq!(verdicts.at(Height(12), Some(vec![])), [], "it was executed without");
        assert_eq!(
            verdicts.at(Height(11), Some(vec![management.clone()])),
            [management],
            "replays need no file"
        );
    }

    #[test]
    fn what_is_no_verdict_is_refused_and_leaves_the_file_as_it_was() {
        let dir = data_folder();
        reject(dir.path(), 1, "aaaaa-aa", 0).unwrap();
        let before = Verdicts::read(dir.path()).unwrap();
        assert!(reject(dir.path(), 1, "nonsense", 0).is_err());
        assert!(reject(&dir.path().join("none"), 1, "aaaaa-aa", 0).is_err());
        assert_eq!(Verdicts::read(dir.path()).unwrap(), before);
        fs::write(dir.path().join(FILE), "1 aaaaa-aa\n").unwrap();
        let error = format!("{:#}", Verdicts::read(dir.path()).unwrap_err());
        assert!(error.contains("verdicts.txt") && error.contains("line 1"), "{error}");
    }
}
