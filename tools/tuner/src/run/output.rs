//! Output of a command, line by line: readiness, beats, misses, its collector's report, and the
//! last lines for an error message.
//!
//! Bounds: [`LINE_BYTES_MAX`] of a line are read, [`TAIL_LINES`] are kept. A command never waits
//! for the reader: its output is read from the pipe as fast as it arrives.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use regex::Regex;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::watch,
    time::Instant,
};

use crate::{
    gc::{Collection, Dialect, Reader},
    lateness::Samples,
};

/// Only this part of a longer line is read, in bytes.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 10;
/// Lines kept for the words of an error, and characters of each.
const TAIL_LINES: usize = 40;
const TAIL_CHARS: usize = 200;

/// Patterns to match in the lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patterns {
    /// The program is ready.
    pub(crate) ready: Option<Regex>,
    /// A beat: group 1 is how late it is in milliseconds; without a group it is due once a period.
    pub(crate) beat: Option<Regex>,
    pub(crate) beat_period: Option<Duration>,
    /// A matching line reports a miss.
    pub(crate) miss: Option<Regex>,
    /// A collector that reports among the lines.
    pub(crate) dialect: Option<Dialect>,
}

/// Sums of a collector's report.
#[derive(Clone, Debug, Default)]
pub(crate) struct CollectorTotals {
    pub(crate) count: u64,
    pub(crate) cpu_millis: f64,
    pub(crate) pause_max_millis: f64,
    pub(crate) live_bytes_max: Option<u64>,
    /// Whether CPU time was reported at all.
    pub(crate) tells_cpu: bool,
}

impl CollectorTotals {
    pub(crate) fn add(&mut self, collection: &Collection) {
        self.count += 1;
        self.pause_max_millis = self.pause_max_millis.max(collection.pause_millis);
        if let Some(cpu) = collection.cpu_millis {
            self.cpu_millis += cpu;
            self.tells_cpu = true;
        }
        if collection.major {
            self.live_bytes_max = self.live_bytes_max.max(collection.live_bytes);
        }
    }
}

/// Results so far.
#[derive(Debug)]
pub(crate) struct Output {
    patterns: Patterns,
    ready: watch::Sender<Option<Instant>>,
    state: Mutex<OutputState>,
}

#[derive(Debug, Default)]
struct OutputState {
    tail: VecDeque<String>,
    samples: Samples,
    beats: Beats,
    collected: CollectorTotals,
}

/// Beats that do not state their delay.
#[derive(Debug, Default)]
struct Beats {
    first: Option<Instant>,
    count: u32,
    /// How early or late each came against the grid of the first, in milliseconds.
    offsets: Vec<f64>,
}

impl Output {
    pub(crate) fn new(patterns: Patterns) -> Arc<Self> {
        Arc::new(Self { patterns, ready: watch::Sender::new(None), state: Mutex::default() })
    }

    /// When the program was ready; now, if it is not known to be yet.
    pub(crate) fn mark_ready(&self) {
        self.ready.send_if_modified(|ready| {
            let first = ready.is_none();
            ready.get_or_insert_with(Instant::now);
            first
        });
    }

    pub(crate) fn was_ready(&self) -> bool {
        self.ready.borrow().is_some()
    }

    pub(crate) async fn until_ready(&self) -> Instant {
        let mut ready = self.ready.subscribe();
        loop {
            if let Some(at) = *ready.borrow_and_update() {
                return at;
            }
            // The sender is ours: it is there as long as we are.
            if ready.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Reads to the end.
    pub(crate) async fn read(self: Arc<Self>, mut from: impl AsyncRead + Unpin) {
        let mut reader = self.patterns.dialect.map(Reader::new);
        let mut buffer = vec![0; 64 << 10];
        let mut line = Vec::new();
        let mut end_line = |line: &mut Vec<u8>, now| {
            self.process_line(String::from_utf8_lossy(line).trim_end(), now, reader.as_mut());
            line.clear();
        };
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let now = Instant::now();
            for part in
                buffer.get(..count).unwrap_or_default().split_inclusive(|byte| *byte == b'\n')
            {
                let room = LINE_BYTES_MAX.saturating_sub(line.len());
                line.extend_from_slice(part.get(..room).unwrap_or(part));
                if part.ends_with(b"\n") {
                    end_line(&mut line, now);
                }
            }
        }
        if !line.is_empty() {
            end_line(&mut line, Instant::now());
        }
    }

    fn process_line(&self, text: &str, now: Instant, reader: Option<&mut Reader>) {
        let patterns = &self.patterns;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(collection) = reader.and_then(|reader| reader.line(text)) {
            state.collected.add(&collection);
            return;
        }
        if state.tail.len() == TAIL_LINES {
            state.tail.pop_front();
        }
        state.tail.push_back(text.chars().take(TAIL_CHARS).collect());
        if patterns.miss.as_ref().is_some_and(|miss| miss.is_match(text)) {
            state.samples.record_miss(text);
        }
        let beat = patterns.beat.as_ref().and_then(|beat| beat.captures(text));
        if let Some(beat) = &beat {
            match (
                beat.get(1).map(|group| group.as_str().trim().parse::<f64>()),
                patterns.beat_period,
            ) {
                (Some(Ok(millis)), _) => state.samples.record_delay(millis),
                (Some(Err(_)), _) => {
                    state
                        .samples
                        .record_miss(&format!("a beat does not say how late it is: {text}"));
                }
                (None, period) => state.beats.record(now, period.unwrap_or(Duration::from_secs(1))),
            }
        }
        drop(state);
        let is_ready = match &patterns.ready {
            Some(ready) => ready.is_match(text),
            None => beat.is_some(),
        };
        if is_ready {
            self.mark_ready();
        }
    }

    /// Restarts the count of beats and misses.
    pub(crate) fn forget_samples(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.samples = Samples::default();
        state.beats = Beats::default();
    }

    /// Beats and misses in the lines so far.
    pub(crate) fn samples(&self) -> Samples {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut samples = state.samples.clone();
        state.beats.lateness().for_each(|millis| samples.record_delay(millis));
        samples
    }

    pub(crate) fn collector_totals(&self) -> CollectorTotals {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).collected.clone()
    }

    /// The last lines.
    pub(crate) fn tail(&self) -> String {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = state.tail.iter().map(String::as_str).collect();
        if lines.is_empty() { "it printed nothing".to_owned() } else { lines.join("\n") }
    }
}

impl Beats {
    fn record(&mut self, now: Instant, period: Duration) {
        let first = *self.first.get_or_insert(now);
        let due = first + period * self.count;
        self.count = self.count.saturating_add(1);
        if self.offsets.len() < crate::lateness::SAMPLES_MAX {
            let late = now.saturating_duration_since(due).as_secs_f64();
            let early = due.saturating_duration_since(now).as_secs_f64();
            self.offsets.push((late - early) * 1_000.0);
        }
    }

    /// Against the grid of the one that came earliest.
    fn lateness(&self) -> impl Iterator<Item = f64> {
        let earliest = self.offsets.iter().copied().reduce(f64::min).unwrap_or(0.0);
        self.offsets.iter().map(move |offset| offset - earliest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(beat: &str) -> Patterns {
        Patterns { beat: Some(Regex::new(beat).unwrap()), ..Patterns::default() }
    }

    #[tokio::test]
    async fn beats_say_how_late_they_are() {
        let output = Output::new(patterns(r"late ([0-9.]+) ms"));
        let text =
            b"loading\nbeat 1 late 1.5 ms\nbeat 2 late 40 ms\nlate . ms\nend without a newline"
                .as_slice();
        output.clone().read(text).await;
        let lateness = output.samples().summary();
        assert_eq!((lateness.count, lateness.max_millis, lateness.misses), (2, 40.0, 1));
        assert!(output.tail().ends_with("end without a newline"));
        output.until_ready().await;
        output.forget_samples();
        assert_eq!(output.samples().summary(), Default::default());
    }

    #[test]
    fn beats_that_do_not_say_are_held_against_a_grid() {
        let output = Output::new(Patterns {
            beat_period: Some(Duration::from_millis(100)),
            miss: Some(Regex::new("MISSED").unwrap()),
            ..patterns("^tick")
        });
        let start = Instant::now();
        for (index, late) in [5, 0, 30, 0].into_iter().enumerate() {
            let at =
                start + Duration::from_millis(100) * index as u32 + Duration::from_millis(late);
            output.process_line("tick", at, None);
        }
        output.process_line("MISSED slot 7", start, None);
        let lateness = output.samples().summary();
        assert!((lateness.max_millis - 30.0).abs() < 1e-6, "{lateness:?}");
        assert_eq!((lateness.count, lateness.misses), (4, 1));
        assert_eq!(lateness.miss.as_deref(), Some("MISSED slot 7"));
    }

    #[tokio::test]
    async fn lines_without_an_end_are_cut_and_the_tail_is_bounded() {
        let output = Output::new(Patterns::default());
        let long = [vec![b'x'; 4 * LINE_BYTES_MAX], b"\n".repeat(500)].concat();
        output.clone().read(long.as_slice()).await;
        assert!(output.tail().len() < TAIL_LINES * (TAIL_CHARS + 1));
    }
}
