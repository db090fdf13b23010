//! The series of several nodes on one axis of time: as a table for other programs, and as one
//! series, of which a picture is drawn.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use memory_cap::{
    self,
    series::{self, Event, Header, Line, ProcessSample, Sample, What, Writer},
};

/// Between two samples of all nodes together.
pub(crate) const STEP_SECONDS: f64 = 0.25;
/// A node whose last sample is older does not run.
const OLD_SECONDS: f64 = 2.0;

/// One sample of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Point {
    /// Since the beginning of the whole.
    pub(crate) seconds: f64,
    pub(crate) anonymous_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) charged_bytes: u64,
    /// Of all runs so far.
    pub(crate) cpu_seconds: f64,
}

/// Everything about one node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeSeries {
    pub(crate) points: Vec<Point>,
    pub(crate) oom_kills: u64,
    /// Processes that took the place of others, compilers not counted: they are meant to come
    /// again.
    pub(crate) restarts: u64,
}

/// Reads the runs of a node, the earlier ones first. `began` is when the whole began, on the
/// monotonic clock.
pub(crate) fn read(runs: &[PathBuf], began: f64) -> Result<NodeSeries> {
    let mut node = NodeSeries::default();
    let mut cpu_before = 0.0;
    for run in runs {
        let mut offset = None;
        let mut kills = 0;
        for file in [memory_cap::older(run), run.clone()] {
            if !file.exists() {
                continue;
            }
            series::read(&file, |line| match line {
                Line::Header(header) => offset = Some(header.started_monotonic_seconds - began),
                Line::Sample(sample) => {
                    kills = sample.oom_kills;
                    node.points.push(Point {
                        seconds: sample.seconds + offset.unwrap_or(0.0),
                        anonymous_bytes: sample.anonymous_bytes,
                        file_bytes: sample.file_bytes,
                        charged_bytes: sample.charged_bytes,
                        cpu_seconds: cpu_before + sample.cpu_seconds,
                    });
                }
                Line::Event(event)
                    if event.what == What::Restart && !event.text.contains("sandbox-compile") =>
                {
                    node.restarts += 1;
                }
                Line::Event(_) | Line::Summary(_) => {}
            })
            .with_context(|| format!("reading {}", file.display()))?;
        }
        node.oom_kills += kills;
        cpu_before = node.points.last().map_or(cpu_before, |point| point.cpu_seconds);
    }
    Ok(node)
}

impl NodeSeries {
    fn within(&self, from: f64, to: f64) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(move |point| point.seconds >= from && point.seconds <= to)
    }

    /// Most anonymous memory in a stretch of time.
    pub(crate) fn peak(&self, from: f64, to: f64) -> Option<u64> {
        self.within(from, to).map(|point| point.anonymous_bytes).max()
    }

    /// Median of anonymous memory.
    pub(crate) fn median(&self, from: f64, to: f64) -> Option<u64> {
        let mut values: Vec<u64> =
            self.within(from, to).map(|point| point.anonymous_bytes).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied()
    }

    /// Share of a core that was used, in percent.
    pub(crate) fn cpu_percent(&self, from: f64, to: f64) -> Option<f64> {
        let (first, last) = (self.within(from, to).next()?, self.within(from, to).last()?);
        let seconds = last.seconds - first.seconds;
        (seconds > 0.0).then(|| (last.cpu_seconds - first.cpu_seconds) / seconds * 100.0)
    }

    fn last_at(&self, seconds: f64) -> Option<&Point> {
        let index = self.points.partition_point(|point| point.seconds <= seconds);
        self.points.get(index.checked_sub(1)?)
    }

    fn at(&self, seconds: f64) -> Option<&Point> {
        self.last_at(seconds).filter(|point| seconds - point.seconds <= OLD_SECONDS)
    }
}

/// `seconds,node,anonymous_bytes,file_bytes,charged_bytes,cpu_seconds`, a line per sample.
pub(crate) fn write_table(nodes: &[NodeSeries], path: &Path) -> Result<()> {
    let mut file =
        BufWriter::new(File::create(path).with_context(|| format!("making {}", path.display()))?);
    writeln!(file, "seconds,node,anonymous_bytes,file_bytes,charged_bytes,cpu_seconds")?;
    for (index, node) in nodes.iter().enumerate() {
        for point in &node.points {
            writeln!(
                file,
                "{:.3},{index},{},{},{},{:.3}",
                point.seconds,
                point.anonymous_bytes,
                point.file_bytes,
                point.charged_bytes,
                point.cpu_seconds
            )?;
        }
    }
    file.flush().with_context(|| format!("writing {}", path.display()))
}

/// One series of all nodes together, each node as one of its processes; `phases` are marks in it.
pub(crate) fn write_series(
    nodes: &[NodeSeries],
    header: Header,
    phases: &[(f64, String)],
    path: &Path,
) -> Result<()> {
    let mut writer = Writer::create(path, None)?;
    writer.write(&Line::Header(header))?;
    for (seconds, text) in phases {
        writer.write(&Line::Event(Event {
            seconds: *seconds,
            what: What::Mark,
            text: text.clone(),
            pid: None,
        }))?;
    }
    let end = nodes
        .iter()
        .filter_map(|node| node.points.last())
        .map(|point| point.seconds)
        .fold(0.0, f64::max);
    for step in 0..=(end / STEP_SECONDS) as u64 {
        let seconds = step as f64 * STEP_SECONDS;
        let mut sample = Sample { seconds, ..Sample::default() };
        for (index, node) in nodes.iter().enumerate() {
            // CPU time that was used stays used when a node stops.
            sample.cpu_seconds += node.last_at(seconds).map_or(0.0, |point| point.cpu_seconds);
            let Some(point) = node.at(seconds) else { continue };
            sample.anonymous_bytes += point.anonymous_bytes;
            sample.file_bytes += point.file_bytes;
            sample.charged_bytes += point.charged_bytes;
            sample.processes.push(ProcessSample {
                pid: index as u32,
                role: format!("node {index}"),
                anonymous_bytes: point.anonymous_bytes,
                file_bytes: point.file_bytes,
            });
        }
        writer.write(&Line::Sample(sample))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(folder: &Path, name: &str, started: f64, anonymous: &[u64]) -> PathBuf {
        let path = folder.join(name);
        let mut writer = Writer::create(&path, None).unwrap();
        let header = Header { started_monotonic_seconds: started, ..Header::default() };
        writer.write(&Line::Header(header)).unwrap();
        for (index, bytes) in anonymous.iter().enumerate() {
            let seconds = index as f64;
            let sample = Sample {
                seconds,
                anonymous_bytes: *bytes,
                cpu_seconds: seconds / 10.0,
                ..Sample::default()
            };
            writer.write(&Line::Sample(sample)).unwrap();
        }
        path
    }

    #[test]
    fn runs_of_nodes_that_began_at_different_times_are_on_one_axis() {
        let folder = tempfile::tempdir().unwrap();
        let first = run(folder.path(), "a", 1000.0, &[10, 30, 20]);
        let second = run(folder.path(), "b", 1010.0, &[5, 6]);
        let node = read(&[first, second], 1000.0).unwrap();
        let times: Vec<f64> = node.points.iter().map(|point| point.seconds).collect();
        assert_eq!(times, [0.0, 1.0, 2.0, 10.0, 11.0]);
        assert_eq!(
            (node.peak(0.0, 5.0), node.peak(5.0, 20.0), node.peak(20.0, 30.0)),
            (Some(30), Some(6), None)
        );
        assert_eq!(node.median(0.0, 2.0), Some(20));
        assert!((node.cpu_percent(0.0, 2.0).unwrap() - 10.0).abs() < 1e-9);
        assert!(
            (node.points[4].cpu_seconds - 0.3).abs() < 1e-9,
            "CPU time continues over a restart"
        );
        assert_eq!(node.at(1.5).map(|point| point.anonymous_bytes), Some(30));
        assert_eq!(node.at(6.0), None, "it did not run then");

        let other = read(&[run(folder.path(), "c", 1001.0, &[100; 10])], 1000.0).unwrap();
        let all = folder.path().join("all.jsonl");
        write_series(
            &[node.clone(), other.clone()],
            Header::default(),
            &[(1.0, "idle".into())],
            &all,
        )
        .unwrap();
        let (mut seen, mut cpu) = (Vec::new(), 0.0);
        series::read(&all, |line| {
            if let Line::Sample(sample) = line {
                seen.push((sample.seconds, sample.anonymous_bytes, sample.processes.len()));
                assert!(sample.cpu_seconds >= cpu, "CPU time never falls");
                cpu = sample.cpu_seconds;
            }
        })
        .unwrap();
        assert!(
            seen.contains(&(0.5, 10, 1))
                && seen.contains(&(1.5, 130, 2))
                && seen.contains(&(6.0, 100, 1))
        );
        let table = folder.path().join("all.csv");
        write_table(&[node, other], &table).unwrap();
        let table = std::fs::read_to_string(table).unwrap();
        assert_eq!(table.lines().count(), 16);
        assert!(table.contains("\n10.000,0,5,0,0,0.200\n"), "{table}");
    }
}
