//! The rules that rounds were executed by, recorded with the block log.
//!
//! The result of a block depends on the agreed limits, on the features and on the program. Blocks
//! above the newest checkpoint are executed again after a crash and must have the same result, so
//! the file `rules` in the data folder records the rules by which they were executed first. A start
//! with other ones (another `--memory`, say) first executes the log to its end by the recorded
//! rules and makes a checkpoint there; then the new rules are written durably, and only then
//! anything is executed by them. A crash in between leaves the old rules with blocks that were
//! executed by them, or with none, or the new rules with none: each is a consistent pair.
//!
//! Rules of another version of the program cannot be followed by this one: with blocks to execute
//! it refuses, naming both.
//!
//! This module must never know the content of the rules.

use std::path::Path;

use anyhow::{Context, Result, bail};
use consensus::BlockLog;
use disk::{
    RealDisk,
    records::{Kind, RecordSlot},
};
use limits::Limits;
use serde::{Deserialize, Serialize};
use state::{Height, StateStore, Time};

use crate::{cli::Settings, config::Config};

/// Of the rules, which members compare too.
const VERSION: u32 = execution::RULES_VERSION;
const KIND: Kind = Kind { name: *b"rules\0\0\0", version: 1, bytes_max: 1 << 20 };
/// Segment of the block log; a checkpoint deletes whole segments.
pub(crate) const BLOCK_SEGMENT_BYTES: u64 = 8 << 20;
/// A small cache is enough to read the height of a checkpoint.
const CACHE_BYTES: u64 = 1 << 20;

/// As they are recorded, in JSON: any version of the program can read which version wrote them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Rules {
    /// Of the rules: [`VERSION`] of the program that followed them.
    version: u32,
    /// Its name for people.
    program: String,
    /// Settings that members of a subnet compare.
    agreed: Vec<(String, u64)>,
    /// All features and limits; another version may not know them.
    features: serde_json::Value,
    limits: serde_json::Value,
}

impl Rules {
    fn from_config(config: &Config) -> Result<Self> {
        Ok(Self {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").into(),
            agreed: config.agreed()?,
            features: serde_json::to_value(&config.features)?,
            limits: serde_json::to_value(&config.limits)?,
        })
    }

    /// Whether a batch has the same result.
    fn is_equivalent(&self, other: &Self) -> bool {
        self.version == other.version && self.agreed == other.agreed
    }

    /// The first few that differ, for a person.
    fn differences(&self, other: &Self) -> String {
        const NAMED: usize = 3;
        let now = |name: &str| {
            other.agreed.iter().find(|(agreed, _)| agreed == name).map(|(_, value)| *value)
        };
        let differ: Vec<_> = self
            .agreed
            .iter()
            .filter(|(name, value)| now(name) != Some(*value))
            .map(|(name, value)| match now(name) {
                Some(now) => format!("{name} was {value} and is {now}"),
                None => format!("{name} was {value}"),
            })
            .collect();
        match differ.len() {
            0 => "the version".into(),
            count if count > NAMED => {
                format!("{} and {} more", differ[..NAMED].join(", "), count - NAMED)
            }
            _ => differ.join(", "),
        }
    }

    /// The configuration with these rules in place of its own. A limit that is newer than the
    /// record has its value of the recorded memory. If it is an agreed one, the recorded settings
    /// do not name it, and the record is refused.
    fn configure(&self, config: &Config) -> Result<Config> {
        let limits = Limits::from_record(&self.limits)?;
        let features = serde_json::from_value(self.features.clone())?;
        let before = Config { limits, features, ..config.clone() };
        let differences = self.differences(&Self::from_config(&before)?);
        anyhow::ensure!(
            before.agreed()? == self.agreed,
            "this program has other rules: {differences}"
        );
        Ok(before)
    }
}

fn slot(data_dir: &Path) -> RecordSlot {
    RecordSlot { disk: RealDisk::shared(), path: data_dir.join("rules"), kind: KIND }
}

/// The disk budget that rounds were last executed with; none before the first start, and for a node
/// that had none.
pub(crate) fn recorded_disk(data_dir: &Path) -> Result<Option<u64>> {
    let Some(rules) = recorded(&slot(data_dir))? else { return Ok(None) };
    let disk = rules.limits.get("disk_budget_bytes").and_then(serde_json::Value::as_u64);
    Ok(disk.filter(|bytes| *bytes > 0))
}

/// The rules in this slot; none before the first start.
fn recorded(slot: &RecordSlot) -> Result<Option<Rules>> {
    let Some(bytes) = slot.read()? else { return Ok(None) };
    let rules = serde_json::from_slice(&bytes);
    rules.map(Some).with_context(|| format!("{} does not decode", slot.path.display()))
}

/// The configuration by which the blocks of a data folder were executed, with that folder.
pub(crate) fn recorded_configuration(data_dir: &Path) -> Result<Config> {
    let slot = slot(data_dir);
    let rules = recorded(&slot)?;
    let rules = rules.with_context(|| format!("{} holds nothing", slot.path.display()))?;
    if rules.version != VERSION {
        bail!(
            "the blocks were executed by rules of version {} (Thimble {}), and this program \
             (Thimble {}) follows version {VERSION}: use the program that executed them",
            rules.version,
            rules.program,
            env!("CARGO_PKG_VERSION"),
        );
    }
    let any = Settings { data_dir: Some(data_dir.into()), ..Settings::default() };
    rules.configure(&Config::load(&any)?)
}

/// Sees to it that what the log holds is executed by the rules it was executed by, and that the
/// configured rules are recorded before anything is executed by them. `replay` executes the log to
/// its end, under the configuration it is given, and makes a checkpoint there. Nothing of the node
/// is open meanwhile.
pub(crate) fn settle(config: &Config, mut replay: impl FnMut(&Config) -> Result<()>) -> Result<()> {
    let slot = slot(&config.data_dir);
    let configured = Rules::from_config(config)?;
    let write = |rules: &Rules| -> Result<()> { Ok(slot.write(&serde_json::to_vec(rules)?)?) };
    let Some(recorded) = recorded(&slot)? else { return write(&configured) };
    if recorded.is_equivalent(&configured) {
        // Settings that do not affect batches are recorded too: the disk budget, where none is
        // stated.
        return if recorded.limits == configured.limits { Ok(()) } else { write(&configured) };
    }
    let differences = recorded.differences(&configured);
    if let Some((first, last)) = to_be_executed(&config.data_dir)? {
        if recorded.version != VERSION {
            bail!(
                "blocks {first} to {last} were executed by rules of version {} (Thimble {}) and \
                 have to be executed again, and this program (Thimble {}) follows version \
                 {VERSION}: start the old program once with this data folder and stop it with \
                 SIGTERM, then start this one",
                recorded.version,
                recorded.program,
                configured.program
            );
        }
        tracing::info!(
            first,
            last,
            %differences,
            "limits changed: executing what the block log holds by the limits it was executed by, before the change takes effect"
        );
        let before = recorded.configure(config).with_context(|| {
            format!(
                "blocks {first} to {last} have to be executed by the rules recorded in {}: start \
                 the program that wrote them (Thimble {}) once with this data folder and stop \
                 it with SIGTERM",
                slot.path.display(),
                recorded.program
            )
        })?;
        let mut begun = first;
        replay(&before)?;
        // The round loop may end with a checkpoint before the log does.
        while let Some((first, last)) = to_be_executed(&config.data_dir)? {
            if first <= begun {
                bail!(
                    "blocks {first} to {last} are still above the newest checkpoint; start the \
                     node again"
                );
            }
            begun = first;
            replay(&before)?;
        }
    }
    write(&configured)?;
    tracing::info!(%differences, "the change of limits takes effect");
    Ok(())
}

/// The block log of a data folder, and the height of its newest checkpoint.
fn open_log(data: &Path) -> Result<(BlockLog, Height)> {
    statesync::complete_install(data)?;
    let store = StateStore::open(&data.join("state"), CACHE_BYTES)?;
    let checkpoint = store.load()?.map_or(Height(0), |checkpoint| checkpoint.height);
    Ok((BlockLog::open(&data.join("blocks"), BLOCK_SEGMENT_BYTES)?, checkpoint))
}

/// Heights of the first and the last block above the newest checkpoint, if there are any.
pub(crate) fn to_be_executed(data: &Path) -> Result<Option<(u64, u64)>> {
    let (log, checkpoint) = open_log(data)?;
    Ok(log.last().filter(|last| *last > checkpoint).map(|last| (checkpoint.0 + 1, last.0)))
}

/// Height up to which batches were executed: that of the newest checkpoint, or the last one in the
/// block log with an outcome. The caller holds the folder's lock.
pub(crate) fn executed_height(data: &Path) -> Result<Height> {
    if ["state", "blocks"].iter().all(|folder| !data.join(folder).is_dir()) {
        return Ok(Height(0));
    }
    let (log, checkpoint) = open_log(data)?;
    let mut executed = checkpoint;
    let mut replay = log.read_from(checkpoint);
    while let Some(logged) = replay.next_block()? {
        if logged.recorded.is_some() {
            executed = executed.max(logged.block.height);
        }
    }
    Ok(executed)
}

/// Height of the newest block, and its time if the block log still has it.
pub(crate) fn last_block(data: &Path) -> Result<(Height, Option<Time>)> {
    let (log, checkpoint) = open_log(data)?;
    let Some(last) = log.last().filter(|last| *last >= checkpoint) else {
        return Ok((checkpoint, None));
    };
    // One block, and the few before it that are read to find it.
    let from = log
        .first()
        .map_or(last, |first| Height(last.0.saturating_sub(1).max(first.0.saturating_sub(1))));
    let mut replay = log.read_from(from);
    let mut time = None;
    while let Some(logged) = replay.next_block()? {
        time = (logged.block.height == last).then_some(logged.block.time).or(time);
    }
    Ok((last, time))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use consensus::FinalisedBlock;
    use state::Randomness;

    use super::*;
    use crate::cli::Settings;

    fn config(data: &Path, memory: &str) -> Config {
        let settings = Settings {
            memory: Some(memory.into()),
            data_dir: Some(data.into()),
            ..Settings::default()
        };
        Config::load(&settings).unwrap()
    }

    fn settled(config: &Config) -> Result<()> {
        settle(config, |_| panic!("nothing is to be executed"))
    }

    #[test]
    fn heights_with_an_outcome_or_below_a_checkpoint_were_executed() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let executed = || executed_height(data).unwrap().0;
        assert_eq!(executed(), 0);
        add_block(data, 1);
        assert_eq!(executed(), 0, "the block waits for its execution");
        let log = BlockLog::open(&data.join("blocks"), BLOCK_SEGMENT_BYTES);
        log.unwrap().append_outcome(Height(1), [1; 32], &[]).unwrap();
        add_block(data, 2);
        assert_eq!(executed(), 1);
        checkpoint(data, 5);
        assert_eq!(executed(), 5);
    }

    fn add_block(data: &Path, height: u64) {
        let block = FinalisedBlock {
            height: Height(height),
            time: Time(height),
            randomness: Randomness::NONE,
            ingress: vec![],
            key: None,
            agreed: None,
            queries: None,
        };
        BlockLog::open(&data.join("blocks"), BLOCK_SEGMENT_BYTES)
            .unwrap()
            .append_block(&block)
            .unwrap();
    }

    /// What executing the log leaves: a checkpoint above it.
    fn checkpoint(data: &Path, height: u64) {
        let store = StateStore::open(&data.join("state"), CACHE_BYTES).unwrap();
        let delta = state::CheckpointDelta {
            height: Height(height),
            metadata: vec![],
            canisters: Box::new(std::iter::empty()),
            messages: Box::new(std::iter::empty()),
            history: Box::new(std::iter::empty()),
            memories: vec![],
            written: vec![],
        };
        store.write(delta).unwrap();
    }

    // Promise: P8 - Blocks are replayed by the rules of their time, also after an interruption.
    #[test]
    fn blocks_are_executed_by_the_rules_they_were_executed_by_and_then_the_change_takes_effect() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let (large, small) = (config(data, "512MiB"), config(data, "256MiB"));
        settled(&large).unwrap();
        settled(&large).unwrap();
        // Without blocks a change takes effect at once.
        settled(&small).unwrap();
        settled(&large).unwrap();
        add_block(data, 1);
        settled(&large).unwrap();
        // A replay that ends before its checkpoint changes nothing.
        for _ in 0..2 {
            let ended = settle(&small, |before| {
                assert_eq!(before.limits, large.limits);
                anyhow::bail!("cut off")
            });
            assert!(ended.is_err());
        }
        assert!(settle(&small, |_| Ok(())).is_err(), "the blocks are still there");
        // With the checkpoint and without the new rules: the old ones apply, with nothing to
        // execute.
        let cut = settle(&small, |_| {
            checkpoint(data, 1);
            anyhow::bail!("cut off")
        });
        assert!(cut.is_err());
        settled(&small).unwrap();
        settled(&small).unwrap();
    }

    #[test]
    fn rules_from_before_a_limit_are_followed_unless_members_agree_on_it() {
        let folder = tempfile::tempdir().unwrap();
        let (large, small) = (config(folder.path(), "512MiB"), config(folder.path(), "256MiB"));
        let before = |group: &str, field: &str| {
            let mut rules = Rules::from_config(&large).unwrap();
            rules.limits[group].as_object_mut().unwrap().remove(field).unwrap();
            rules.agreed.retain(|(name, _)| *name != format!("{group}.{field}"));
            rules.configure(&small).map(|config| config.limits)
        };
        assert_eq!(before("pages", "open_files").unwrap(), large.limits);
        let refused = before("outcalls", "open").unwrap_err().to_string();
        assert!(refused.contains("this program has other rules"), "{refused}");
    }

    #[test]
    fn rules_of_another_version_are_refused_by_name_while_there_are_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let config = config(data, "256MiB");
        let rules =
            Rules { version: 77, program: "9.9".into(), ..Rules::from_config(&config).unwrap() };
        let slot = RecordSlot { disk: RealDisk::shared(), path: data.join("rules"), kind: KIND };
        slot.write(&serde_json::to_vec(&rules).unwrap()).unwrap();
        add_block(data, 1);
        let text = settled(&config).unwrap_err().to_string();
        for word in ["blocks 1 to 1", "version 77", "Thimble 9.9", "SIGTERM"] {
            assert!(text.contains(word), "{text}");
        }
        checkpoint(data, 1);
        settled(&config).unwrap();
    }
}
