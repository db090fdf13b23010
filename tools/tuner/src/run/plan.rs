//! Parameters shared by all runs of a search.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use regex::Regex;

use super::Patterns;
use crate::{
    knob::{By, Log},
    probe::Target,
};

/// Parameters shared by all runs. `{port}`, `{port2}`, `{port3}` and `{folder}` in a text stand for
/// free ports and a fresh folder of each run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// This program, which has `cap`.
    pub(crate) exe: PathBuf,
    pub(crate) command: Vec<String>,
    pub(crate) by: By,
    pub(crate) cap_bytes: u64,
    /// What its lines mean.
    pub(crate) patterns: Patterns,
    /// A probe whose answer shows that it is ready.
    pub(crate) ready_probe: Option<Probe>,
    pub(crate) ready_within: Duration,
    /// How long it is measured once it is ready; with a load, how long that may take at most.
    pub(crate) phase: Duration,
    /// Whether the user set it.
    pub(crate) is_phase_asked: bool,
    pub(crate) until_load_ends: bool,
    pub(crate) probe: Option<Probe>,
    pub(crate) per_second: f64,
    pub(crate) load: Option<String>,
    /// How the collector is made to report.
    pub(crate) log: Option<Log>,
    /// Where folders of runs are made.
    pub(crate) scratch: PathBuf,
}

impl Plan {
    pub(crate) fn is_late_measured(&self) -> bool {
        self.probe.is_some() || self.patterns.beat.is_some() || self.patterns.miss.is_some()
    }
}

/// The sign that a program is ready.
#[derive(Clone, Debug)]
pub(crate) enum Ready {
    /// A line that it prints.
    Line(Regex),
    /// A probe that is answered.
    Answer(Probe),
}

/// A question, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    Http(String),
    Tcp(String),
    /// Address, method, parameters.
    Rpc(String, String, Option<String>),
    Command(String),
}

impl Probe {
    pub(crate) fn target(&self, names: &Names) -> Result<Target> {
        match self {
            Self::Http(address) => Target::http(&names.fill(address)),
            Self::Tcp(address) => Target::tcp(&names.fill(address)),
            Self::Rpc(address, method, parameters) => {
                Target::rpc(&names.fill(address), method, parameters.as_deref())
            }
            Self::Command(command) => Ok(Target::Command(names.fill(command))),
        }
    }
}

/// Placeholders and their values in one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Vec<(&'static str, String)>);

impl Names {
    pub(crate) fn new(folder: &str, ports: &[u16]) -> Self {
        let names = ["{port}", "{port2}", "{port3}"].into_iter();
        let mut all: Vec<_> =
            names.zip(ports).map(|(name, port)| (name, port.to_string())).collect();
        all.push(("{folder}", folder.to_owned()));
        Self(all)
    }

    pub(crate) fn fill(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_ports_and_a_folder_of_its_own() {
        let ports = cli::free_ports::<3>().unwrap();
        let names = Names::new("/tmp/x", &ports);
        let filled = names.fill("serve --port {port} --peer {port2} --data {folder}/data {port}");
        let [first, second, _] = ports;
        assert_eq!(
            filled,
            format!("serve --port {first} --peer {second} --data /tmp/x/data {first}")
        );
    }
}
