//! The picture of a run, drawn from its series file: anonymous memory and page cache against the
//! cap, each process as a thin line, events as marks, memory pressure and CPU below on the same
//! axis of time.
//!
//! The file is read twice, first for how long the run took and which processes matter, then into
//! columns (`columns`). Memory is bounded by the columns, the processes drawn and the events
//! kept, never by the length of the file.

mod columns;
mod labels;
mod svg;

use std::{collections::BTreeMap, io, path::Path};

use self::columns::Columns;
use super::series::{self, Event, Header, Line, Summary, What};

/// Columns of the picture; about one per pixel of the plot.
const COLUMNS: usize = 900;
/// Most processes drawn: those with the highest peaks.
const PROCESSES_MAX: usize = 12;
/// Most processes whose peaks are remembered while the file is read; when there are more, those
/// with the lowest peaks are forgotten.
const PEAKS_MAX: usize = 4096;
/// Most events kept of each kind; further ones are only counted.
const EVENTS_MAX: usize = 300;

/// A process is its id and its role: ids come back.
type ProcessKey = (u32, String);

pub(crate) struct Plot {
    header: Header,
    summary: Option<Summary>,
    /// Length of the axis of time.
    duration: f64,
    anonymous: Columns,
    /// Anonymous memory and page cache together.
    with_file: Columns,
    /// The peak of anonymous memory: when, and how much.
    peak: (f64, f64),
    /// Most of anonymous memory and page cache together.
    top: f64,
    processes: Vec<(ProcessKey, Columns)>,
    pressure_some: Columns,
    pressure_full: Columns,
    /// Cores in use.
    cpu: Columns,
    events: Vec<Event>,
    events_dropped: usize,
}

/// Draws `series` into `picture`.
pub fn draw(series: &Path, picture: &Path) -> io::Result<()> {
    std::fs::write(picture, svg::draw(&load(series)?))
}

fn load(path: &Path) -> io::Result<Plot> {
    let first = survey(path)?;
    let duration = first.duration.max(0.001);
    let columns = || Columns::new(COLUMNS, duration);
    let mut plot = Plot {
        header: first.header,
        summary: first.summary,
        duration,
        anonymous: columns(),
        with_file: columns(),
        peak: (0.0, 0.0),
        top: 0.0,
        processes: first.largest.into_iter().map(|key| (key, columns())).collect(),
        pressure_some: columns(),
        pressure_full: columns(),
        cpu: columns(),
        events: vec![],
        events_dropped: 0,
    };
    let mut kept: BTreeMap<What, usize> = BTreeMap::new();
    let mut before: Option<(f64, f64)> = None;
    series::read(path, |line| match line {
        Line::Sample(sample) => {
            let at = sample.seconds;
            let (anonymous, file) = (sample.anonymous_bytes as f64, sample.file_bytes as f64);
            plot.anonymous.add(at, anonymous);
            plot.with_file.add(at, anonymous + file);
            if anonymous > plot.peak.1 {
                plot.peak = (at, anonymous);
            }
            plot.top = plot.top.max(anonymous + file);
            for process in &sample.processes {
                if let Some((_, columns)) = plot
                    .processes
                    .iter_mut()
                    .find(|((pid, role), _)| *pid == process.pid && *role == process.role)
                {
                    columns.add(at, process.anonymous_bytes as f64);
                }
            }
            if let (Some(some), Some(full)) =
                (sample.pressure_some_percent, sample.pressure_full_percent)
            {
                plot.pressure_some.add(at, some);
                plot.pressure_full.add(at, full);
            }
            // Cores in use between two samples.
            if let Some((then, cpu)) = before.filter(|(then, _)| at > *then) {
                plot.cpu.add(at, ((sample.cpu_seconds - cpu) / (at - then)).max(0.0));
            }
            before = Some((at, sample.cpu_seconds));
        }
        Line::Event(event) => {
            let kept = kept.entry(event.what).or_default();
            *kept += 1;
            if *kept <= EVENTS_MAX {
                plot.events.push(event);
            } else {
                plot.events_dropped += 1;
            }
        }
        Line::Header(_) | Line::Summary(_) => {}
    })?;
    Ok(plot)
}

/// Result of the first pass.
struct Survey {
    header: Header,
    summary: Option<Summary>,
    duration: f64,
    largest: Vec<ProcessKey>,
}

fn survey(path: &Path) -> io::Result<Survey> {
    let mut survey =
        Survey { header: Header::default(), summary: None, duration: 0.0, largest: vec![] };
    let mut peaks: BTreeMap<ProcessKey, u64> = BTreeMap::new();
    let mut before: Vec<ProcessKey> = Vec::new();
    series::read(path, |line| match line {
        Line::Header(header) => survey.header = header,
        Line::Sample(sample) => {
            survey.duration = survey.duration.max(sample.seconds);
            let mut now = Vec::new();
            for process in sample.processes {
                let key = (process.pid, process.role);
                // One sample makes no line; and between fork and exec a process goes by the name of
                // its parent.
                if before.contains(&key) {
                    let peak = peaks.entry(key.clone()).or_default();
                    *peak = (*peak).max(process.anonymous_bytes);
                }
                now.push(key);
            }
            before = now;
            if peaks.len() > PEAKS_MAX {
                let keep = largest(&peaks, PEAKS_MAX / 2);
                peaks.retain(|key, _| keep.contains(key));
            }
        }
        Line::Event(event) => survey.duration = survey.duration.max(event.seconds),
        Line::Summary(summary) => survey.summary = Some(summary),
    })?;
    survey.largest = largest(&peaks, PROCESSES_MAX);
    Ok(survey)
}

/// The keys with the highest values, in descending order.
fn largest(peaks: &BTreeMap<ProcessKey, u64>, count: usize) -> Vec<ProcessKey> {
    let mut order: Vec<(&ProcessKey, &u64)> = peaks.iter().collect();
    order.sort_by_key(|(_, peak)| std::cmp::Reverse(**peak));
    order.into_iter().take(count).map(|(key, _)| key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::series::{ProcessSample, Sample, Writer},
        *,
    };

    fn series(folder: &Path, lines: impl IntoIterator<Item = Line>) -> std::path::PathBuf {
        let path = folder.join("series.jsonl");
        let mut writer = Writer::create(&path, None).unwrap();
        for line in lines {
            writer.write(&line).unwrap();
        }
        path
    }

    fn header() -> Line {
        Line::Header(Header {
            name: "a <run> & more".into(),
            command: vec!["sh".into(), "-c".into(), "x < 1 && \"y\"".into()],
            cap_bytes: 64 << 20,
            ..Header::default()
        })
    }

    #[test]
    fn what_is_kept_does_not_grow_with_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let samples = (0..20_000_u32).flat_map(|index| {
            let seconds = f64::from(index);
            // A new process in every second sample, the one of sample 7000 by far the largest.
            let anonymous_bytes = if index == 7001 { 50 << 20 } else { u64::from(index) };
            let pid = index / 2 * 2;
            let process = ProcessSample { pid, role: "job".into(), anonymous_bytes, file_bytes: 0 };
            let sample =
                Sample { seconds, anonymous_bytes, processes: vec![process], ..Sample::default() };
            let event =
                Event { seconds, what: What::ProcessStarted, text: "job".into(), pid: Some(index) };
            [Line::Event(event), Line::Sample(sample)]
        });
        let oom =
            Event { seconds: 19_999.0, what: What::OomKill, text: "OOM kill".into(), pid: None };
        let lines = std::iter::once(header()).chain(samples).chain([Line::Event(oom)]);
        let plot = load(&series(folder.path(), lines)).unwrap();
        assert_eq!(plot.processes.len(), PROCESSES_MAX);
        assert_eq!(plot.processes[0].0.0, 7000);
        assert_eq!(plot.events.len(), EVENTS_MAX + 1);
        assert_eq!(plot.events_dropped, 20_000 - EVENTS_MAX);
        assert!(plot.events.iter().any(|event| event.what == What::OomKill));
        assert_eq!(plot.peak, (7001.0, f64::from(50 << 20)));
        let text = svg::draw(&plot);
        assert!(text.len() < 400_000, "{} bytes", text.len());
        assert!(text.contains("OOM kill") && text.contains("peak 50.0 MiB"));
    }

    #[test]
    fn whatever_a_command_is_called_the_picture_is_well_formed() {
        let folder = tempfile::tempdir().unwrap();
        let mark = Event { seconds: 0.5, what: What::Mark, text: "<b> & \"c\"".into(), pid: None };
        let path = series(folder.path(), [header(), Line::Event(mark)]);
        let text = svg::draw(&load(&path).unwrap());
        assert!(
            text.contains("a &lt;run&gt; &amp; more")
                && !text.contains("<run>")
                && !text.contains("<b>")
        );
        assert_eq!(text.matches("<text").count(), text.matches("</text>").count());
        assert_eq!(text.matches("<g").count(), text.matches("</g>").count());
    }

    #[test]
    fn an_empty_series_has_a_picture_too() {
        let folder = tempfile::tempdir().unwrap();
        let text = svg::draw(&load(&series(folder.path(), [])).unwrap());
        assert!(
            text.starts_with("<svg") && !text.contains("NaN") && !text.contains("inf"),
            "{text}"
        );
    }
}
