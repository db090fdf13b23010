//! Pictures: each test's change against its own spread, and the outstanding tests run by run.
//!
//! Both are SVG inside the page, drawn with classes that the page colours, light or dark.
//!
//! Bounds: [`POINTS_MAX`], [`ROWS_MAX`]. Must never know: how verdicts are computed.

use std::fmt::Write;

use svg::{Anchor, Svg};

use super::{change, clean, html::escape, unsigned};
use crate::{
    figure::Better,
    verdict::{TestResult, Verdict},
};

/// Points of the first picture; outstanding ones come first.
const POINTS_MAX: usize = 5_000;
/// Rows of the second.
const ROWS_MAX: usize = 40;
/// Changes beyond this factor are drawn at the edge.
const FACTOR_MAX: f64 = 8.0;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;

/// The class that colours it.
pub(crate) fn class(verdict: Verdict) -> String {
    format!("{verdict:?}").to_lowercase()
}

/// A tick's label.
fn signed(tick: f64) -> String {
    let sign = if tick > 0.0 { "+" } else { "" };
    format!("{sign}{} %", (tick * 100.0).round())
}

/// Logarithm of the change for the worse.
fn worse(test: &TestResult) -> Option<f64> {
    let change = test.change?.ln_1p();
    change.is_finite().then_some(if test.better == Better::More { -change } else { change })
}

/// Ticks in percent for an axis that reaches `most` (a logarithm).
fn ticks(most: f64) -> Vec<f64> {
    const STEPS: [f64; 8] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0];
    let step = STEPS.into_iter().find(|step| step.ln_1p() * 5.0 >= most).unwrap_or(3.0);
    let mut ticks = vec![0.0];
    let mut at = step;
    while at.ln_1p() <= most {
        ticks.push(at);
        // As a ratio the other way: -50 % is as far from 0 as +100 %.
        ticks.push(1.0 / (1.0 + at) - 1.0);
        at += step;
    }
    ticks
}

/// Change for the worse over noise. Empty when no test has both.
#[expect(clippy::too_many_lines, reason = "one page, from top to bottom")]
pub(crate) fn scatter(tests: &[TestResult]) -> String {
    const HEIGHT: f64 = 420.0;
    const TOP: f64 = 20.0;
    const BOTTOM: f64 = 50.0;
    let points: Vec<(&TestResult, f64, f64)> = tests
        .iter()
        .filter_map(|test| Some((test, test.noise.filter(|noise| *noise > 0.0)?, worse(test)?)))
        .take(POINTS_MAX)
        .collect();
    if points.is_empty() {
        return String::new();
    }
    let cap = FACTOR_MAX.ln();
    let most = points.iter().map(|(_, _, y)| y.abs()).fold(0.05, f64::max).min(cap) * 1.08;
    let least = points.iter().map(|(_, x, _)| *x).fold(f64::INFINITY, f64::min);
    // The axis ends at a thousand, and begins far enough below.
    let low = least.clamp(1e-5, 100.0) / 1.3;
    let high = points.iter().map(|(_, x, _)| *x).fold(0.0, f64::max).clamp(low * 4.0, 1e3) * 1.3;
    let x = |noise: f64| {
        LEFT + (noise.clamp(low, high) / low).ln() / (high / low).ln() * (WIDTH - LEFT - RIGHT)
    };
    let y = |change: f64| {
        let middle = f64::midpoint(TOP, HEIGHT - BOTTOM);
        middle - change.clamp(-most, most) / most * (HEIGHT - BOTTOM - TOP) / 2.0
    };
    let mut svg = Svg::default();
    for tick in ticks(most) {
        let at = y(tick.ln_1p());
        let kind = if tick == 0.0 { "axis" } else { "grid" };
        svg.line(kind, (LEFT, at), (WIDTH - RIGHT, at));
        svg.text("label", (LEFT - 8.0, at + 4.0), Anchor::End, &signed(tick));
    }
    for decade in -5..=3 {
        for part in [1.0, 2.0, 5.0] {
            let tick = part * 10_f64.powi(decade);
            if tick < low || tick > high {
                continue;
            }
            let at = x(tick);
            svg.line("grid", (at, TOP), (at, HEIGHT - BOTTOM));
            let words = format!("{} %", tick * 100.0);
            svg.text("label", (at, HEIGHT - BOTTOM + 18.0), Anchor::Middle, &words);
        }
    }
    // Bands of one and three standard deviations of a value.
    for (times, shape) in [(3.0, "band wide"), (1.0, "band")] {
        let mut path = String::new();
        let steps = 60;
        let noise = |step: i32| low * (high / low).powf(f64::from(step) / f64::from(steps));
        for step in 0..=steps {
            let at = noise(step);
            let _ = write!(
                path,
                "{}{:.1},{:.1}",
                if step == 0 { "M" } else { "L" },
                x(at),
                y(at.ln_1p() * times)
            );
        }
        for step in (0..=steps).rev() {
            let at = noise(step);
            let _ = write!(path, "L{:.1},{:.1}", x(at), y(-at.ln_1p() * times));
        }
        svg.path(shape, &format!("{path}Z"));
    }
    // Outstanding tests are drawn last, over the rest.
    for (test, noise, change_log) in points.iter().rev() {
        let beyond = if change_log.abs() > most { " beyond" } else { "" };
        let radius = if test.verdict == Verdict::Noise { 3.5 } else { 5.0 };
        let title = format!(
            "{}: {}, own noise {}, {}",
            test.name,
            change(test),
            unsigned(*noise),
            test.verdict.label_for(&test.unit)
        );
        let kind = format!("dot {}{beyond}", class(test.verdict));
        svg.circle(&kind, (x(*noise), y(*change_log)), radius, Some(&clean(&title)));
    }
    let words = "own spread of the test (standard deviation of one value)";
    let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
    svg.text("title", (middle, HEIGHT - 8.0), Anchor::Middle, words);
    svg.raw(format_args!(
        "<text class=\"title\" transform=\"translate(14 {:.1}) rotate(-90)\" \
         text-anchor=\"middle\">better &#8592; change &#8594; worse</text>",
        f64::midpoint(TOP, HEIGHT - BOTTOM),
    ));
    svg.part((WIDTH, HEIGHT), "change of each test against its own spread")
}

/// Outstanding tests: every run of both sides, relative to the baseline's mean.
pub(crate) fn rows(tests: &[TestResult]) -> String {
    const NAMES: f64 = 380.0;
    const ROW: f64 = 24.0;
    const TOP: f64 = 30.0;
    const ORDER: [Verdict; 3] = [Verdict::Slower, Verdict::Faster, Verdict::Outlier];
    let mut shown: Vec<&TestResult> = tests
        .iter()
        .filter(|test| ORDER.contains(&test.verdict) && test.change.is_some())
        .collect();
    // Without outstanding tests, those that are nearest to it.
    if shown.is_empty() {
        shown = tests.iter().filter(|test| test.change.is_some() && test.p.is_some()).collect();
        shown.sort_by(|a, b| a.p.unwrap_or(1.0).total_cmp(&b.p.unwrap_or(1.0)));
        shown.truncate(10);
    }
    let far = |test: &TestResult| test.change.map_or(0.0, |change| change.ln_1p().abs());
    shown.sort_by(|a, b| {
        let rank = |test: &TestResult| ORDER.iter().position(|one| *one == test.verdict);
        rank(a).cmp(&rank(b)).then(far(b).total_cmp(&far(a)))
    });
    shown.truncate(ROWS_MAX);
    if shown.is_empty() {
        return String::new();
    }
    let relative = |test: &TestResult, value: &f64| {
        let relative = (value / test.baseline_mean?).ln();
        relative.is_finite().then_some(relative)
    };
    let values = |test: &&TestResult| -> Vec<f64> {
        let all = test.baseline.iter().chain(&test.candidate).flatten();
        all.filter_map(|value| relative(test, value)).collect()
    };
    let reach =
        shown.iter().flat_map(values).map(f64::abs).fold(0.05, f64::max).min(FACTOR_MAX.ln()) * 1.1;
    let height = TOP + ROW * shown.len() as f64 + 14.0;
    let x = |relative: f64| {
        let middle = f64::midpoint(NAMES, WIDTH - RIGHT);
        middle + relative.clamp(-reach, reach) / reach * (WIDTH - RIGHT - NAMES) / 2.0
    };
    let mut svg = Svg::default();
    for tick in ticks(reach) {
        let at = x(tick.ln_1p());
        let kind = if tick == 0.0 { "axis" } else { "grid" };
        svg.line(kind, (at, TOP - 8.0), (at, height - 10.0));
        svg.text("label", (at, 14.0), Anchor::Middle, &signed(tick));
    }
    for (index, test) in shown.iter().enumerate() {
        let middle = TOP + ROW * (index as f64 + 0.5);
        // Its whole name is shown when it is pointed at.
        svg.raw(format_args!(
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}<title>{}</title></text>",
            NAMES - 14.0,
            middle + 4.0,
            escape(&tail(&test.name, 54)),
            escape(&test.name)
        ));
        if let Some(noise) = test.noise {
            let (from, to) = (x(-noise.ln_1p()), x(noise.ln_1p()));
            svg.rect("band", (from, middle - 8.0), (to - from, 16.0), 3.0);
        }
        for at in test.baseline.iter().flatten().filter_map(|value| relative(test, value)).take(100)
        {
            svg.line("run", (x(at), middle - 6.0), (x(at), middle + 6.0));
        }
        for at in
            test.candidate.iter().flatten().filter_map(|value| relative(test, value)).take(100)
        {
            let title = clean(&format!("{}: {}", test.name, change(test)));
            let kind = format!("dot {}", class(test.verdict));
            svg.circle(&kind, (x(at), middle), 5.0, Some(&title));
        }
    }
    svg.part((WIDTH, height), "runs of tests that stand out")
}

/// The end of a name is more informative than its beginning.
fn tail(name: &str, chars: usize) -> String {
    let count = name.chars().count();
    if count <= chars {
        return name.to_owned();
    }
    format!("\u{2026}{}", name.chars().skip(count - chars + 1).collect::<String>())
}
