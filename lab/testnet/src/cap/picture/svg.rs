//! Puts a plot into SVG: one file without anything outside it, light or dark as the reader's screen
//! is.

use std::fmt::Write;

use budget::format_size;

use super::{
    Plot,
    columns::{Columns, Extent},
    labels::{self, Label},
};
use crate::cap::{
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
/// Longest text of a label.
const LABEL_CHARS_MAX: usize = 44;
/// Longest subtitle; the file has the whole command.
const COMMAND_CHARS_MAX: usize = 150;
/// Roles told apart by colour.
const ROLES: usize = 6;

const STYLE: &str = "\
svg{font-family:'DejaVu Sans',Verdana,'Segoe \
     UI',sans-serif;font-size:11px;background:#fff}.paper{fill:#fff}.ink{fill:#1c2430}.soft{fill:#\
     5b6675}.title{font-size:17px;font-weight:600}.big{font-size:12px;font-weight:600}.\
     grid{stroke:#e3e7ec;stroke-width:1}.axis{stroke:#8d97a5;stroke-width:1}.file{fill:#cfe0f3}.\
     anon{fill:#7ea6dd}.anonline{stroke:#1f55a5;stroke-width:1.8;fill:none}.fileline{stroke:#\
     8fb3da;stroke-width:1;fill:none}.cap{stroke:#c62828;stroke-width:1.6;stroke-dasharray:7 \
     4}.capink{fill:#c62828}.dot{fill:#1f55a5;stroke:#fff;stroke-width:1.5}.p{fill:none;\
     stroke-width:1.3}.p0{stroke:#b45309}.p1{stroke:#0f766e}.p2{stroke:#7e22ce}.p3{stroke:#\
     be185d}.p4{stroke:#4d7c0f}.p5{stroke:#374151}.some{fill:#f0b46a}.full{fill:#c2410c}.cpu{fill:\
     #9fb4c9}.e{stroke-width:1}.oom{stroke:#c62828;stroke-width:1.8}.mark{stroke:#6d28d9;\
     stroke-dasharray:4 \
     3}.again{stroke:#c2410c}.plain{stroke:#6b7684}.faint{stroke:#b7bfca}.oomt{fill:#c62828;\
     font-weight:600}.markt{fill:#6d28d9;font-weight:600}.againt{fill:#c2410c}.plaint{fill:#\
     3d4754}.faintt{fill:#6b7684}@media \
     (prefers-color-scheme:dark){svg{background:#14181e}.paper{fill:#14181e}.ink{fill:#e8ecf1}.\
     soft{fill:#9aa5b3}.grid{stroke:#2a313a}.axis{stroke:#6a7583}.file{fill:#24384f}.anon{fill:#\
     3a629b}.anonline{stroke:#8db9f5}.fileline{stroke:#4d7199}.cap{stroke:#ff6b63}.capink{fill:#\
     ff6b63}.dot{fill:#8db9f5;stroke:#14181e}.p0{stroke:#f5a64b}.p1{stroke:#4fd1c5}.p2{stroke:#\
     c99bff}.p3{stroke:#ff8ac2}.p4{stroke:#b6e06a}.p5{stroke:#cbd5e1}.cpu{fill:#4a5d73}.\
     oom{stroke:#ff6b63}.oomt{fill:#ff6b63}.mark{stroke:#b794ff}.markt{fill:#b794ff}.again{stroke:\
     #ff9a5c}.againt{fill:#ff9a5c}.plain{stroke:#98a3b2}.plaint{fill:#c3ccd7}.faint{stroke:#\
     4c5663}.faintt{fill:#98a3b2}}";

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
    let mut page = Page { text: String::new(), plot, top: 0.0, value_max: 0.0 };

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
        page.text(RIGHT, end + 34.0, "soft", "end", &note);
    }
    let height = end + 44.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\">\n\
         <style>{STYLE}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height:.0}\"/>\n{}</svg>\n",
        page.text
    )
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
    text: String,
    plot: &'a Plot,
    /// Of the plot of memory.
    top: f64,
    /// What its upper edge stands for, in bytes.
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
        self.text(24.0, *y, "ink title", "start", &title);
        let command = header.command.join(" ").replace(char::is_whitespace, " ");
        let mut shown: String = command.chars().take(COMMAND_CHARS_MAX).collect();
        if shown.len() < command.len() {
            shown.push('…');
        }
        self.text(24.0, *y + 19.0, "ink", "start", &shown);
        let swap = match header.swap_bytes {
            0 => "no swap".to_owned(),
            bytes => format!("{} of swap", format_size(bytes)),
        };
        let about = format!(
            "{}; {}; group {}, {swap}, a sample every {} ms",
            header.started, header.machine, header.group, header.interval_millis
        );
        self.text(24.0, *y + 35.0, "soft", "start", &about);
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
            let _ = write!(self.text, "<g transform=\"translate({x:.1} {:.1})\">{picture}</g>", *y);
            self.text(x + width + 6.0, *y, "ink", "start", &text);
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
            self.line("grid", LEFT, y, RIGHT, y);
            self.text(LEFT - 8.0, y + 4.0, "soft", "end", &format_size(value as u64));
            value += step;
        }
        self.line("axis", LEFT, self.top, LEFT, bottom);
        self.line("axis", LEFT, bottom, RIGHT, bottom);
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
            let _ =
                writeln!(self.text, "<path class=\"{class}\" d=\"{path}L{x:.1} {bottom:.1}Z\"/>");
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
            let _ = writeln!(self.text, "<path class=\"{class}\" d=\"{path}\"/>");
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
        self.line("grid", LEFT, top, RIGHT, top);
        self.line("axis", LEFT, top, LEFT, bottom);
        self.line("axis", LEFT, bottom, RIGHT, bottom);
        self.text(LEFT - 8.0, top + 5.0, "soft", "end", &format!("{most}"));
        self.text(LEFT - 8.0, bottom + 4.0, "soft", "end", "0");
        self.text(LEFT, top - 6.0, "soft", "start", title);
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
            self.line("axis", x, y, x, y + 4.0);
            self.text(x, y + 17.0, "soft", "middle", &clock(seconds, step));
        }
        self.text(24.0, y + 34.0, "soft", "start", "time since the start, in seconds or h:mm:ss");
    }

    fn events(&mut self, marks: &[Mark], places: &[Option<labels::Place>], end: f64) {
        for (mark, place) in marks.iter().zip(places) {
            let (line, text) = classes(mark.what);
            let lane_bottom = |lane: usize| self.top - 6.0 - lane as f64 * LANE_HEIGHT;
            // Processes that come and go are many: short marks, so that they do not hatch the plot.
            let faint = matches!(mark.what, What::ProcessDied | What::ProcessStarted);
            let bottom = if faint { self.top + 7.0 } else { end };
            match place {
                Some(place) => {
                    let y = lane_bottom(place.lane);
                    self.line(&format!("e {line}"), mark.label.x, y - 9.0, mark.label.x, bottom);
                    let (x, anchor) =
                        if place.before { (place.right, "end") } else { (place.left, "start") };
                    self.text(x, y, text, anchor, &mark.text);
                }
                None => {
                    self.line(&format!("e {line}"), mark.label.x, self.top, mark.label.x, bottom)
                }
            }
        }
    }

    fn cap_and_peak(&mut self) {
        let cap = self.plot.header.cap_bytes;
        let cap_y = self.y_of(cap as f64);
        if cap > 0 {
            self.line("cap", LEFT, cap_y, RIGHT, cap_y);
            self.text(
                RIGHT + 6.0,
                cap_y + 4.0,
                "capink big",
                "start",
                &format!("cap {}", format_size(cap)),
            );
        }
        let (seconds, bytes) = self.plot.peak;
        if bytes > 0.0 {
            let (x, y) = (x_of(self.plot, seconds), self.y_of(bytes));
            let label = format!("anonymous peak {} at {}", mib(bytes as u64), duration(seconds));
            let width = label.chars().count() as f64 * 7.2;
            // Beside the dot, on the side where there is room; above it, unless it would stand on
            // the line of the cap.
            let (text_x, anchor) =
                if x + 10.0 + width > RIGHT { (x - 9.0, "end") } else { (x + 9.0, "start") };
            let text_y = if cap > 0 && y - cap_y < 28.0 { y + 18.0 } else { y - 8.0 };
            let left = if anchor == "end" { text_x - width } else { text_x };
            let _ = writeln!(
                self.text,
                "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/><rect class=\"paper\" \
                 opacity=\"0.8\" rx=\"3\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"16\"/>",
                left - 3.0,
                text_y - 12.0,
                width + 6.0
            );
            self.text(text_x, text_y, "ink big", anchor, &label);
        }
    }

    fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        let _ = writeln!(
            self.text,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    fn text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let _ = writeln!(
            self.text,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
            escape(text)
        );
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

/// For text between tags; control characters have no place in XML at all.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
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

    #[test]
    fn text_stays_text() {
        assert_eq!(escape("a<b & \"c\"\u{7}"), "a&lt;b &amp; &quot;c&quot; ");
    }
}
