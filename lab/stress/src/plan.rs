//! The load: phases of payload size times rate, named cases, plan files.
//!
//! Bounds: [`PHASES_MAX`] phases, rates and lengths by the constants below. Must never know: the
//! senders.

use std::{path::Path, str::FromStr, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{
    payload::{HEADER_BYTES, PAYLOAD_BYTES_MAX},
    settings::Settings,
};

pub(crate) const PHASES_MAX: usize = 64;
/// Longest phase: a day.
const SECONDS_MAX: f64 = 86_400.0;
/// Highest rate asked for, messages per second.
const RATE_MAX: f64 = 1_000_000.0;
/// Longest plan file.
const PLAN_BYTES_MAX: u64 = 64 << 10;
/// Parts of the long case, so that a rate that falls shows.
pub(crate) const LONG_PARTS: u32 = 6;

/// A payload's least and most bytes; sizes are spread evenly between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Sizes {
    pub(crate) min: usize,
    pub(crate) max: usize,
}

impl FromStr for Sizes {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| {
            text.trim().parse::<usize>().with_context(|| format!("{text:?} is no number of bytes"))
        };
        let sizes = Self { min: number(min)?, max: number(max)? };
        ensure!(
            sizes.min >= HEADER_BYTES && sizes.max <= PAYLOAD_BYTES_MAX && sizes.min <= sizes.max,
            "a payload has {HEADER_BYTES} to {PAYLOAD_BYTES_MAX} bytes, written as MIN-MAX"
        );
        Ok(sizes)
    }
}

impl TryFrom<String> for Sizes {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Sizes> for String {
    fn from(sizes: Sizes) -> Self {
        format!("{}-{}", sizes.min, sizes.max)
    }
}

/// A part of the load with one rate and one range of payload sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Phase {
    pub(crate) name: String,
    /// How long messages are sent.
    pub(crate) seconds: f64,
    /// Messages per second of all publishers together; absent: as fast as the node answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<f64>,
    pub(crate) payload: Sizes,
}

impl Phase {
    /// How long messages are sent.
    pub(crate) fn length(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.clamp(0.0, SECONDS_MAX))
    }
}

/// A case of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// 100 messages a second through 0.5-1, 2-10, 50-90 and 130-149 kB.
    Baseline,
    /// 150 a second of growing sizes, 0.5-149 kB; meant for a node under a memory cap.
    Overallocation,
    /// 250 small messages a second, reported in six parts; --phase is the length of all six.
    Long,
    /// As fast as the node answers, small messages and then 130-149 kB.
    Flood,
    /// The same with 0.9-1.04 MB, for a node of a network whose messages have up to 1 MiB.
    FloodMib,
}

const SMALL: Sizes = Sizes { min: 500, max: 1000 };
const LARGE: Sizes = Sizes { min: 130_000, max: 149_000 };
/// Of a network whose messages have up to 1 MiB, near that limit like [`LARGE`] near its own.
const LARGEST: Sizes = Sizes { min: 900_000, max: 1_040_000 };
const BASELINE: [Sizes; 4] =
    [SMALL, Sizes { min: 2_000, max: 10_000 }, Sizes { min: 50_000, max: 90_000 }, LARGE];
const GROWING: [Sizes; 6] = [
    SMALL,
    Sizes { min: 2_000, max: 10_000 },
    Sizes { min: 10_000, max: 30_000 },
    Sizes { min: 30_000, max: 60_000 },
    Sizes { min: 60_000, max: 100_000 },
    LARGE,
];
const _: () = assert!(LARGEST.max <= PAYLOAD_BYTES_MAX && SMALL.min >= HEADER_BYTES);

fn kilobytes(sizes: Sizes) -> String {
    format!("{}-{} kB", sizes.min as f64 / 1000.0, sizes.max as f64 / 1000.0)
}

/// The phases of a case, each `seconds` long but for [`Case::Long`], where that is all of them. A
/// `rate` replaces the case's own.
pub(crate) fn phases(case: Case, seconds: f64, rate: Option<f64>) -> Vec<Phase> {
    let phase = |sizes: Sizes, usual: Option<f64>| Phase {
        name: kilobytes(sizes),
        seconds,
        rate: usual.map(|usual| rate.unwrap_or(usual)),
        payload: sizes,
    };
    match case {
        Case::Baseline => BASELINE.map(|sizes| phase(sizes, Some(100.0))).into(),
        Case::Overallocation => GROWING.map(|sizes| phase(sizes, Some(150.0))).into(),
        Case::Long => (1..=LONG_PARTS)
            .map(|part| Phase {
                name: format!("part {part}/{LONG_PARTS}"),
                seconds: seconds / f64::from(LONG_PARTS),
                ..phase(SMALL, Some(250.0))
            })
            .collect(),
        Case::Flood => [SMALL, LARGE].map(|sizes| phase(sizes, None)).into(),
        Case::FloodMib => [SMALL, LARGEST].map(|sizes| phase(sizes, None)).into(),
    }
}

/// Content of a plan file: `[[phase]]` tables with `name`, `seconds`, `rate` (absent: as fast as
/// the node answers) and `payload = "MIN-MAX"`, and above them whatever [`Settings`] it states.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) phases: Vec<Phase>,
}

#[derive(Serialize)]
struct PlanToml<'a> {
    #[serde(flatten)]
    settings: &'a Settings,
    phase: &'a [Phase],
}

impl Plan {
    /// Phases, and nothing else stated.
    pub(crate) fn from_phases(phases: Vec<Phase>) -> Self {
        Self { settings: Settings::default(), phases }
    }

    pub(crate) fn to_toml(&self) -> Result<String> {
        Ok(toml::to_string(&PlanToml { settings: &self.settings, phase: &self.phases })?)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut table: toml::Table = toml::from_str(text)?;
        let phases = table.remove("phase").context("it has no [[phase]]")?;
        let settings = Settings::deserialize(table)?;
        Ok(Self { settings, phases: Vec::deserialize(phases).context("in a [[phase]]")? })
    }
}

/// Reads a plan file. Errors: it cannot be read, is too long, or is not a valid plan.
pub(crate) fn read(path: &Path) -> Result<Plan> {
    let bytes =
        std::fs::metadata(path).with_context(|| format!("reading {}", path.display()))?.len();
    ensure!(bytes <= PLAN_BYTES_MAX, "a plan has at most {PLAN_BYTES_MAX} bytes, this one {bytes}");
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Plan::parse(&text).with_context(|| format!("the plan {}", path.display()))
}

/// Errors: no phases or too many, a length or a rate out of bounds.
pub(crate) fn check(phases: &[Phase]) -> Result<()> {
    ensure!(
        (1..=PHASES_MAX).contains(&phases.len()),
        "a run has 1 to {PHASES_MAX} phases, this one {}",
        phases.len()
    );
    for Phase { name, seconds, rate, .. } in phases {
        if !(*seconds > 0.0 && *seconds <= SECONDS_MAX) {
            bail!(
                "phase {name}: {seconds} s; a phase lasts more than 0 and at most {SECONDS_MAX} s"
            );
        }
        if rate.is_some_and(|rate| !(rate > 0.0 && rate <= RATE_MAX)) {
            bail!("phase {name}: a rate is more than 0 and at most {RATE_MAX} messages a second");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_those_of_the_study() {
        let rates =
            |case| phases(case, 60.0, None).iter().map(|phase| phase.rate).collect::<Vec<_>>();
        assert_eq!(rates(Case::Baseline), [Some(100.0); 4]);
        assert_eq!(rates(Case::Overallocation), [Some(150.0); 6]);
        assert_eq!((rates(Case::Flood), rates(Case::FloodMib)), (vec![None; 2], vec![None; 2]));
        let long = phases(Case::Long, 3600.0, None);
        assert_eq!(long.iter().map(|phase| phase.seconds).sum::<f64>(), 3600.0);
        for case in Case::value_variants().iter().copied() {
            check(&phases(case, 60.0, None)).unwrap();
        }
        assert_eq!(phases(Case::Baseline, 5.0, Some(7.0))[0].rate, Some(7.0));
    }

    #[test]
    fn plan_file_reads_back_and_invalid_values_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.toml");
        let plan = "[[phase]]\nname = \"warm\"\nseconds = 2\nrate = 50\npayload = \"500-1000\"\n\
                    [[phase]]\nname = \"flood\"\nseconds = 1.5\npayload = \"140000\"\n";
        std::fs::write(&path, plan).unwrap();
        let phases = read(&path).unwrap().phases;
        check(&phases).unwrap();
        assert_eq!((phases[0].rate, phases[1].rate), (Some(50.0), None));
        assert_eq!(phases[1].payload, Sizes { min: 140_000, max: 140_000 });
        for (from, to) in [
            ("500-1000", "1000-500"),
            ("500-1000", "0-1000"),
            ("140000", "1060000"),
            ("rate", "speed"),
        ] {
            std::fs::write(&path, plan.replace(from, to)).unwrap();
            assert!(read(&path).is_err(), "{to}");
        }
        for (from, to) in [("seconds = 2", "seconds = 0"), ("rate = 50", "rate = -1")] {
            std::fs::write(&path, plan.replace(from, to)).unwrap();
            assert!(check(&read(&path).unwrap().phases).is_err(), "{to}");
        }
        assert!(check(&[]).is_err());
    }

    #[test]
    fn a_plan_that_was_written_is_read_again_and_unknown_keys_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.toml");
        let plan = Plan {
            settings: Settings {
                publishers: Some(8),
                after: Some(vec![60, 180]),
                store_queries: Some(2.0),
                ..Settings::default()
            },
            phases: phases(Case::Flood, 5.0, None),
        };
        let text = plan.to_toml().unwrap();
        std::fs::write(&path, &text).unwrap();
        assert_eq!(read(&path).unwrap(), plan, "{text}");
        std::fs::write(&path, format!("publisher = 3\n{text}")).unwrap();
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(error.contains("publisher"), "{error}");
        std::fs::write(&path, "publishers = 3\n").unwrap();
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(error.contains("no [[phase]]"), "{error}");
    }
}
