//! Puts a plot into SVG: one file without anything outside it, light or dark as the reader's screen
//! is.

use std::fmt::Write;

use accounting::format_size;
use svg::{Anchor, Svg};

use super::{
    Plot,
    columns::{Columns, Extent},
    labels::{self, Label},
};
use crate::{
    series::{Event, What},
    summary::{duration, mib},
};

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 1108.0;
const PLOT_HEIGHT: f64 = 340.0;
const STRIP_HEIGHT: f64 = 52.0;
const STRIP_GAP: f64 = 22.0;
const LANE_HEIGHT: f64 = 16.0;
const LANES_MAX: usize = 6;
/// Width of a letter of the small text, on average and a little more.
const LETTER: f64 = 6.3;
/// Events of a kind that are nearer than this share a mark.
const TOGETHER: f64 = 9.0;
const LABEL_CHARS_MAX: usize = 44;
/// Longest subtitle; the file has the whole command.
const COMMAND_CHARS_MAX: usize = 150;
/// Roles with a colour of their own.
const ROLES: usize = 6;

const STYLE: &str = include_str!("svg.css");

/// The whole file.
pub(crate) fn draw(plot: &Plot) -> String {
    let marks = gather(plot);
    let places = labels::place(
        &marks.iter().map(|mark| mark.label.clone()).collect::<Vec<_>>(),
        LANES_MAX,
        LEFT - 60.0,
        WIDTH - 8.0,
    );
    let lanes = places.iter().flatten().map(|place| place.lane + 1).max().unwrap_or(0);
    let mut page = Page { svg: Svg::default(), plot, top: 0.0, value_max: 0.0 };

    let mut y = 28.0;
    page.heading(&mut y);
    page.legend(&mut y);
    page.top = y + lanes as f64 * LANE_HEIGHT + 10.0;
    let cap = plot.header.cap_bytes as f64;
    page.value_max = (cap.max(plot.top) * 1.06).max(1.0);
    let bottom = page.top + PLOT_HEIGHT;
    page.grid(bottom);
    page.memory(bottom);
    let mut strip = bottom + STRIP_GAP;
    let floor = if plot.header.pressure_of == "none" {
        strip
    } else {
        let whose =
            if plot.header.pressure_of == "group" { "of this group" } else { "of the machine" };
        page.strip(
            strip,
            &format!("memory pressure {whose}, % of 10 s: some (light), full (dark)"),
            10.0,
            &[(&plot.pressure_some, "some"), (&plot.pressure_full, "full")],
        );
        strip += STRIP_HEIGHT + STRIP_GAP;
        strip
    };
    page.strip(floor, "CPU, cores in use", 1.0, &[(&plot.cpu, "cpu")]);
    let end = floor + STRIP_HEIGHT;
    page.time_axis(end);
    page.events(&marks, &places, end);
    page.cap_and_peak();
    let without = places.iter().filter(|place| place.is_none()).count() + plot.events_dropped;
    if without > 0 {
        let note = format!("{without} further marks without a label; the series has all");
        page.svg.text("soft", (RIGHT, end + 34.0), Anchor::End, &note);
    }
    let height = end + 44.0;
    page.svg.file((WIDTH, height), STYLE)
}

/// Events of one kind that happened at about the same time.
struct Mark {
    what: What,
    text: String,
    label: Label,
}

fn gather(plot: &Plot) -> Vec<Mark> {
    let mut events: Vec<&Event> = plot.events.iter().collect();
    events.sort_by(|a, b| a.what.cmp(&b.what).then(a.seconds.total_cmp(&b.seconds)));
    let mut groups: Vec<Vec<&Event>> = Vec::new();
    for event in events {
        match groups.last_mut() {
            Some(group)
                if group.first().is_some_and(|first| {
                    first.what == event.what
                        && x_of(plot, event.seconds) - x_of(plot, first.seconds) < TOGETHER
                }) =>
            {
                group.push(event)
            }
            _ => groups.push(vec![event]),
        }
    }
    groups
        .into_iter()
        .filter_map(|group| {
            let first = *group.first()?;
            let same = group.iter().all(|event| event.text == first.text);
            let mut text: String = first.text.chars().take(LABEL_CHARS_MAX).collect();
            let others = group.len() - 1;
            // Writing to a String cannot fail.
            let _ = match (others, same) {
                (0, _) => Ok(()),
                (_, true) => write!(text, " ×{}", others + 1),
                (_, false) => write!(text, " and {others} more"),
            };
            let label = Label {
                x: x_of(plot, first.seconds),
                width: text.chars().count() as f64 * LETTER,
                rank: first.what as u32,
            };
            Some(Mark { what: first.what, text, label })
        })
        .collect()
}

fn x_of(plot: &Plot, seconds: f64) -> f64 {
    LEFT + (seconds / plot.duration).clamp(0.0, 1.0) * (RIGHT - LEFT)
}

/// The classes of an event's line and label.
fn classes(what: What) -> (&'static str, &'static str) {
    match what {
        What::OomKill => ("oom", "oomt"),
        What::Mark => ("mark", "markt"),
        What::Restart => ("again", "againt"),
        What::Exit | What::Signal | What::Start => ("plain", "plaint"),
        What::ProcessDied | What::ProcessStarted => ("faint", "faintt"),
    }
}

struct Page<'a> {
    svg: Svg,
    plot: &'a Plot,
    /// Of the plot of memory.
    top: f64,
    /// Value at its upper edge, in bytes.
    value_max: f64,
}

impl Page<'_> {
    fn heading(&mut self, y: &mut f64) {
        let header = &self.plot.header;
        let mut title = match header.cap_bytes {
            0 => format!("{}, not capped", header.name),
            cap => format!("{} in {}", header.name, format_size(cap)),
        };
        if let Some(summary) = &self.plot.summary {
            let _ = write!(title, ": {} after {}", summary.ended, duration(summary.seconds));
            if summary.oom_kills > 0 {
                let _ = write!(title, ", OOM kills: {}", summary.oom_kills);
            }
        }
        self.svg.text("ink title", (24.0, *y), Anchor::Start, &title);
        let command = header.command.join(" ").replace(char::is_whitespace, " ");
        let mut shown: String = command.chars().take(COMMAND_CHARS_MAX).collect();
        if shown.len() < command.len() {
            shown.push('…');
        }
        self.svg.text("ink", (24.0, *y + 19.0), Anchor::Start, &shown);
        let swap = match header.swap_bytes {
            0 => "no swap".to_owned(),
            bytes => format!("{} of swap", format_size(bytes)),
        };
        let about = format!(
            "{}; {}; group {}, {swap}, a sample every {} ms",
            header.started, header.machine, header.group, header.interval_millis
        );
        self.svg.text("soft", (24.0, *y + 35.0), Anchor::Start, &about);
        *y += 58.0;
    }

    fn roles(&self) -> Vec<&str> {
        let mut roles: Vec<&str> = Vec::new();
        for ((_, role), _) in &self.plot.processes {
            if !roles.contains(&role.as_str()) && roles.len() < ROLES {
                roles.push(role);
            }
        }
        roles
    }

    fn legend(&mut self, y: &mut f64) {
        let mut x = 24.0;
        let mut entries: Vec<(String, String, f64)> = vec![
            (
                r#"<rect class="anon" width="14" height="10" y="-9"/><path class="anonline" d="M0-9h14"/>"#
                    .into(),
                "anonymous memory".into(),
                14.0,
            ),
            (
                r#"<rect class="file" width="14" height="10" y="-9"/>"#.into(),
                "page cache on top of it".into(),
                14.0,
            ),
        ];
        for (index, role) in self.roles().into_iter().enumerate() {
            let count = self.plot.processes.iter().filter(|((_, other), _)| other == role).count();
            let text = if count > 1 {
                format!("anonymous, {role} (each of {count})")
            } else {
                format!("anonymous, {role}")
            };
            entries.push((format!("<path class=\"p p{index}\" d=\"M0-4h18\"/>"), text, 18.0));
        }
        for (picture, text, width) in entries {
            let length = width + 6.0 + text.chars().count() as f64 * LETTER + 20.0;
            if x + length > WIDTH - 10.0 && x > 24.0 {
                x = 24.0;
                *y += 17.0;
            }
            self.svg.raw(format_args!("<g transform=\"translate({x:.1} {y:.1})\">{picture}</g>"));
            self.svg.text("ink", (x + width + 6.0, *y), Anchor::Start, &text);
            x += length;
        }
        *y += 12.0;
    }

    fn y_of(&self, bytes: f64) -> f64 {
        self.top + PLOT_HEIGHT * (1.0 - (bytes / self.value_max).clamp(0.0, 1.0))
    }

    fn grid(&mut self, bottom: f64) {
        // Powers of two, so that caps as people state them fall on a line.
        let mut step = 1024.0;
        while self.value_max / step > 6.0 {
            step *= 2.0;
        }
        let mut value = 0.0;
        while value <= self.value_max {
            let y = self.y_of(value);
            self.svg.line("grid", (LEFT, y), (RIGHT, y));
            self.svg.text("soft", (LEFT - 8.0, y + 4.0), Anchor::End, &format_size(value as u64));
            value += step;
        }
        self.svg.line("axis", (LEFT, self.top), (LEFT, bottom));
        self.svg.line("axis", (LEFT, bottom), (RIGHT, bottom));
    }

    fn memory(&mut self, bottom: f64) {
        let plot = self.plot;
        self.area(&plot.with_file, "file", bottom, |page, bytes| page.y_of(bytes));
        self.area(&plot.anonymous, "anon", bottom, |page, bytes| page.y_of(bytes));
        self.curve(&[plot.with_file.filled().collect()], "fileline");
        let roles: Vec<String> = self.roles().into_iter().map(str::to_owned).collect();
        // Two samples may be missed while a machine is busy.
        let gap = plot.header.interval_millis as f64 / 1e3 * 3.5;
        for ((_, role), columns) in &plot.processes {
            let colour = roles.iter().position(|known| known == role).unwrap_or(ROLES - 1);
            self.curve(&columns.runs(gap), &format!("p p{colour}"));
        }
        self.curve(&[plot.anonymous.filled().collect()], "anonline");
    }

    /// Filled down to `bottom`, up to the largest value of each column.
    fn area(
        &mut self,
        columns: &Columns,
        class: &str,
        bottom: f64,
        y_of: impl Fn(&Self, f64) -> f64,
    ) {
        let mut path = String::new();
        let mut last = None;
        for extent in columns.filled() {
            let x = x_of(self.plot, extent.seconds);
            let start = if last.is_none() { format!("M{x:.1} {bottom:.1}") } else { String::new() };
            let _ = write!(path, "{start}L{x:.1} {:.1}", y_of(self, extent.max));
            last = Some(x);
        }
        if let Some(x) = last {
            self.svg.path(class, &format!("{path}L{x:.1} {bottom:.1}Z"));
        }
    }

    /// From the smallest to the largest value of each column and on to the next.
    fn curve(&mut self, runs: &[Vec<Extent>], class: &str) {
        let mut path = String::new();
        for run in runs {
            for (index, extent) in run.iter().enumerate() {
                let x = x_of(self.plot, extent.seconds);
                let step = if index == 0 { 'M' } else { 'L' };
                let _ = write!(path, "{step}{x:.1} {:.1}", self.y_of(extent.max));
                if extent.min < extent.max {
                    let _ = write!(
                        path,
                        "L{x:.1} {:.1}L{x:.1} {:.1}",
                        self.y_of(extent.min),
                        self.y_of(extent.max)
                    );
                } else if run.len() == 1 {
                    // One sample is a dot.
                    path.push_str("h1.5");
                }
            }
        }
        if !path.is_empty() {
            self.svg.path(class, &path);
        }
    }

    fn strip(&mut self, top: f64, title: &str, least: f64, areas: &[(&Columns, &str)]) {
        let bottom = top + STRIP_HEIGHT;
        let most = areas.iter().flat_map(|(columns, _)| columns.filled()).map(|extent| extent.max);
        let most = nice_above(most.fold(least, f64::max));
        for (columns, class) in areas {
            self.area(columns, class, bottom, |_, value| {
                bottom - STRIP_HEIGHT * (value / most).clamp(0.0, 1.0)
            });
        }
        self.svg.line("grid", (LEFT, top), (RIGHT, top));
        self.svg.line("axis", (LEFT, top), (LEFT, bottom));
        self.svg.line("axis", (LEFT, bottom), (RIGHT, bottom));
        self.svg.text("soft", (LEFT - 8.0, top + 5.0), Anchor::End, &format!("{most}"));
        self.svg.text("soft", (LEFT - 8.0, bottom + 4.0), Anchor::End, "0");
        self.svg.text("soft", (LEFT, top - 6.0), Anchor::Start, title);
    }

    fn time_axis(&mut self, y: f64) {
        const STEPS: [f64; 20] = [
            0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0,
            1800.0, 3600.0, 7200.0, 14_400.0, 43_200.0,
        ];
        let duration = self.plot.duration;
        let step = STEPS.into_iter().find(|step| duration / step <= 12.0).unwrap_or(86_400.0);
        // A run of years would ask for more lines than there are pixels.
        let count = ((duration / step) as usize).min(200);
        for index in 0..=count {
            let seconds = index as f64 * step;
            let x = x_of(self.plot, seconds);
            self.svg.line("axis", (x, y), (x, y + 4.0));
            self.svg.text("soft", (x, y + 17.0), Anchor::Middle, &clock(seconds, step));
        }
        self.svg.text(
            "soft",
            (24.0, y + 34.0),
            Anchor::Start,
            "time since the start, in seconds or h:mm:ss",
        );
    }

    fn events(&mut self, marks: &[Mark], places: &[Option<labels::LabelPosition>], end: f64) {
        for (mark, place) in marks.iter().zip(places) {
            let (line, text) = classes(mark.what);
            let base = self.top - 6.0;
            let lane = |place: &labels::LabelPosition| base - place.lane as f64 * LANE_HEIGHT;
            // Processes that come and go are many: short marks, so that they do not hatch the plot.
            let faint = matches!(mark.what, What::ProcessDied | What::ProcessStarted);
            let bottom = if faint { self.top + 7.0 } else { end };
            let top = place.as_ref().map_or(self.top, |place| lane(place) - 9.0);
            let (x, class) = (mark.label.x, format!("e {line}"));
            self.svg.line(&class, (x, top), (x, bottom));
            if let Some(place) = place {
                let (x, anchor) = match place.before {
                    true => (place.right, Anchor::End),
                    false => (place.left, Anchor::Start),
                };
                self.svg.text(text, (x, lane(place)), anchor, &mark.text);
            }
        }
    }

    fn cap_and_peak(&mut self) {
        let cap = self.plot.header.cap_bytes;
        let cap_y = self.y_of(cap as f64);
        if cap > 0 {
            self.svg.line("cap", (LEFT, cap_y), (RIGHT, cap_y));
            let words = format!("cap {}", format_size(cap));
            self.svg.text("capink big", (RIGHT + 6.0, cap_y + 4.0), Anchor::Start, &words);
        }
        let (seconds, bytes) = self.plot.peak;
        if bytes > 0.0 {
            let (x, y) = (x_of(self.plot, seconds), self.y_of(bytes));
            let label = format!("anonymous peak {} at {}", mib(bytes as u64), duration(seconds));
            let width = label.chars().count() as f64 * 7.2;
            // Next to the dot, on the side where there is room; above it, unless it would overlap
            // the line of the cap.
            let (text_x, anchor) = match x + 10.0 + width > RIGHT {
                true => (x - 9.0, Anchor::End),
                false => (x + 9.0, Anchor::Start),
            };
            let text_y = if cap > 0 && y - cap_y < 28.0 { y + 18.0 } else { y - 8.0 };
            let left = if anchor == Anchor::End { text_x - width } else { text_x };
            self.svg.circle("dot", (x, y), 4.0, None);
            let corner = (left - 3.0, text_y - 12.0);
            self.svg.rect("paper under", corner, (width + 6.0, 16.0), 3.0);
            self.svg.text("ink big", (text_x, text_y), anchor, &label);
        }
    }
}

/// The next of 1, 2, 5, 10, 20, 50 ... from `value` up.
fn nice_above(value: f64) -> f64 {
    let mut scale = 1.0;
    while scale < 1e12 {
        for factor in [1.0, 2.0, 5.0] {
            if factor * scale >= value {
                return factor * scale;
            }
        }
        scale *= 10.0;
    }
    scale
}

fn clock(seconds: f64, step: f64) -> String {
    if step < 1.0 {
        return format!("{seconds:.2}");
    }
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{}:{:02}", whole / 60, whole % 60),
        _ => format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        for (value, nice) in
            [(0.3, 1.0), (1.0, 1.0), (1.2, 2.0), (11.0, 20.0), (43.0, 50.0), (51.0, 100.0)]
        {
            assert!((nice_above(value) - nice).abs() < 1e-9, "{value}");
        }
        assert_eq!(clock(0.25, 0.05), "0.25");
        assert_eq!(clock(45.0, 5.0), "45 s");
        assert_eq!(clock(3725.0, 5.0), "1:02:05");
    }
}
