//! Several nodes in alternating turns on the same machine, and their figures compared.
//!
//! Bounds: labels by [`LABELS_MAX`], turns by the flag. Must never know: the meaning of a figure.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::{
    Stop,
    drive::{self, Start},
    options::{Options, Workload},
    plan::Phase,
    report::{Figure, Report, Unit},
    table::table,
    to_stdout, write_json,
};

/// Most nodes side by side.
const LABELS_MAX: usize = 8;

#[derive(Serialize)]
struct TurnReport {
    turn: u32,
    #[serde(flatten)]
    report: Report,
}

/// Splits `LABEL=COMMAND`; neither part may be empty.
pub(crate) fn split(text: &str) -> Result<(&str, &str)> {
    match text.split_once('=') {
        Some((label, command)) if !label.is_empty() && !command.trim().is_empty() => {
            Ok((label, command))
        }
        _ => bail!("{text}: write LABEL=COMMAND"),
    }
}

/// Runs every node in every turn, and prints medians; whether every run was good.
pub(crate) async fn run(options: &Options, work: &Workload, stop: &Stop) -> Result<bool> {
    let nodes: Vec<_> = options.compare.iter().map(|text| split(text)).collect::<Result<_>>()?;
    ensure!(nodes.len() <= LABELS_MAX, "--compare: at most {LABELS_MAX} nodes");
    let mut turns: Vec<TurnReport> = Vec::new();
    for turn in 1..=options.turns {
        for (label, command) in &nodes {
            if stop.is_requested() {
                break;
            }
            eprintln!("stress: turn {turn}/{}: {label}", options.turns);
            let picture = options
                .picture
                .as_deref()
                .map(|path| path_with_suffix(path, &format!("{label}-{turn}")));
            let start = Start {
                label,
                nodes: &[],
                pids: &[],
                timeout: options.timeout(),
                command: Some(command),
                picture: picture.as_deref(),
                memory: options.memory,
                members: None,
                stop,
            };
            let report =
                drive::run(work, &start).await.with_context(|| format!("{label}, turn {turn}"))?;
            eprintln!("stress: {label}: {}", report.verdict);
            turns.push(TurnReport { turn, report });
        }
    }
    if !to_stdout(options.json.as_deref()) {
        print!("{}", text(&nodes, &work.phases, &turns));
    }
    write_json(options.json.as_deref(), &turns)?;
    Ok(turns.iter().all(|turn| turn.report.good))
}

/// `run.svg` and `name` make `run-name.svg`.
fn path_with_suffix(path: &Path, name: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{name}.{extension}"))
}

fn text(nodes: &[(&str, &str)], phases: &[Phase], turns: &[TurnReport]) -> String {
    let heads: Vec<String> = nodes.iter().map(|(label, _)| (*label).to_owned()).collect();
    let reports = |label: &str| {
        turns
            .iter()
            .map(|turn| &turn.report)
            .filter(|report| report.label == label)
            .collect::<Vec<_>>()
    };
    let machine = turns.first().map_or("", |turn| turn.report.machine.as_str());
    let count = turns.iter().map(|turn| turn.turn).max().unwrap_or(0);
    let mut text = format!("\nmachine: {machine}; medians of {count} turns\n");
    if let Some(turn) = turns.first() {
        text += &format!("{}\n", turn.report.load_text());
    }
    for (index, phase) in phases.iter().enumerate() {
        let columns: Vec<_> = nodes
            .iter()
            .map(|(label, _)| {
                let of_phase = |report: &&Report| Some(report.phases.get(index)?.figures());
                medians(reports(label).iter().filter_map(of_phase).collect())
            })
            .collect();
        text += &format!("\n{}\n{}", phase.name, table(&heads, &columns));
    }
    let columns: Vec<_> = nodes
        .iter()
        .map(|(label, _)| medians(reports(label).into_iter().flat_map(Report::figures).collect()))
        .collect();
    text += &format!("\nwhole run\n{}", table(&heads, &columns));
    for turn in turns {
        text += &format!("\n{}, turn {}: {}", turn.report.label, turn.turn, turn.report.verdict);
    }
    text + "\n"
}

/// The median of each figure over the turns in which it was there.
fn medians(turns: Vec<Vec<Figure>>) -> Vec<(String, String)> {
    let mut names: Vec<(String, Unit)> = Vec::new();
    for figure in turns.iter().flatten() {
        if !names.iter().any(|(name, _)| *name == figure.name) {
            names.push((figure.name.clone(), figure.unit));
        }
    }
    names
        .into_iter()
        .map(|(name, unit)| {
            let values = turns.iter().flatten().filter(|figure| figure.name == name);
            let median = median(values.map(|figure| figure.value).collect()).unwrap_or(0.0);
            (name, unit.text(median))
        })
        .collect()
}

/// The middle value, or the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let high = *values.get(middle)?;
    let low = values.get(middle.saturating_sub(1)).copied().unwrap_or(high);
    Some(if values.len().is_multiple_of(2) { (low + high) / 2.0 } else { high })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_a_label_and_a_command_that_may_have_equal_signs() {
        assert_eq!(split("go=env A=b peer service").unwrap(), ("go", "env A=b peer service"));
        assert!(split("peer").is_err() && split("=x").is_err() && split("x= ").is_err());
    }

    #[test]
    fn each_turn_has_its_own_picture() {
        assert_eq!(path_with_suffix(Path::new("/a/run.svg"), "go-2"), Path::new("/a/run-go-2.svg"));
    }

    #[test]
    fn medians_are_over_the_turns_that_have_the_figure() {
        let figure =
            |name: &str, value: f64| Figure { name: name.into(), value, unit: Unit::Count };
        let turns = vec![
            vec![figure("a", 1.0)],
            vec![figure("a", 9.0), figure("b", 7.0)],
            vec![figure("a", 2.0)],
        ];
        assert_eq!(medians(turns), [("a".into(), "2".into()), ("b".into(), "7".into())]);
        assert_eq!(medians(vec![vec![figure("a", 1.0)], vec![figure("a", 3.0)]])[0].1, "2");
    }
}
