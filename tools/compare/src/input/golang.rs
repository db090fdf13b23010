//! Go's test output: `go test -json`, `go test -v`, and benchmarks of both (`-bench`, `-benchmem`).
//!
//! A test is named by its package and its name, a benchmark's value by its unit too unless that is
//! time. The number of processors after a benchmark's name is removed. Times of tests that failed
//! or were skipped do not count.
//!
//! Bounds: [`PACKAGES_MAX`] outputs joined, [`LINE_BYTES_MAX`], values as in `input`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::Readings;

/// Most packages whose output is put together.
const PACKAGES_MAX: usize = 4096;
/// Only this part of a longer line is read, in bytes.
const LINE_BYTES_MAX: usize = 8192;
/// Most metrics on a benchmark's line.
const METRICS_MAX: usize = 32;

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "Action")]
    action: String,
    #[serde(rename = "Package", default)]
    package: String,
    #[serde(rename = "Test", default)]
    test: Option<String>,
    #[serde(rename = "Elapsed", default)]
    elapsed: Option<f64>,
    #[serde(rename = "Output", default)]
    output: Option<String>,
}

pub(crate) fn is_event(value: &Value) -> bool {
    value.get("Action").is_some_and(Value::is_string)
}

fn name(package: &str, test: &str) -> String {
    if package.is_empty() { test.to_owned() } else { format!("{package} > {test}") }
}

/// `go test -json`: an event a line.
pub(crate) fn read_events(text: &str) -> Result<Readings, String> {
    let mut readings = Readings::default();
    // The name and the figures of a benchmark come in two events.
    let mut outputs: BTreeMap<String, String> = BTreeMap::new();
    let mut ended = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        // A package that fails to build writes lines between the events that are not events.
        let event: Event = match serde_json::from_str(line) {
            Ok(event) => event,
            Err(_) if !line.starts_with('{') => continue,
            Err(error) => return Err(format!("line {}: {error}", index + 1)),
        };
        let Event { action, package, test, elapsed, output } = event;
        ended |= test.is_none() && matches!(action.as_str(), "pass" | "fail" | "skip");
        match (action.as_str(), test, elapsed) {
            ("pass", Some(test), Some(seconds)) if !test.starts_with("Benchmark") => {
                readings.add(&name(&package, &test), seconds, "s", None)?;
            }
            ("fail" | "skip", Some(test), _) => {
                readings.add_incomplete(&name(&package, &test), action == "fail")?;
            }
            ("output", _, _) => {
                if !outputs.contains_key(&package) && outputs.len() >= PACKAGES_MAX {
                    return Err(format!("it has more than {PACKAGES_MAX} packages"));
                }
                outputs.entry(package).or_default().push_str(&output.unwrap_or_default());
            }
            _ => {}
        }
    }
    for (package, output) in outputs {
        benchmarks(&output, &package, &mut readings)?;
    }
    if !ended {
        return Err("it ends before any package did; was its writer cut short?".into());
    }
    Ok(readings)
}

/// Whether text is what `go test` prints.
pub(crate) fn is_text(text: &str) -> bool {
    text.lines().take(2000).any(|line| {
        line.starts_with("=== RUN ")
            || line.starts_with("--- PASS: ")
            || line.starts_with("--- FAIL: ")
            || line.starts_with("goos: ")
            || (line.starts_with("Benchmark") && line.contains(" ns/op"))
    })
}

/// `go test -v` and `go test -bench`.
pub(crate) fn read_text(text: &str) -> Result<Readings, String> {
    let mut readings = Readings::default();
    let mut package = "";
    // Tests are reported before their package: values that wait for its name.
    let mut waiting: Vec<(&str, &str, f64)> = Vec::new();
    for line in text.lines() {
        let line = cut(line.trim());
        if let Some(rest) = line.strip_prefix("pkg: ") {
            package = rest.trim();
        }
        let result = ["--- PASS: ", "--- FAIL: ", "--- SKIP: "]
            .iter()
            .find_map(|head| Some((&head[4..8], line.strip_prefix(head)?)));
        if let Some((outcome, rest)) = result {
            let (test, time) =
                rest.rsplit_once(" (").ok_or_else(|| format!("no time in {line:?}"))?;
            let time = time.trim_end_matches("s)").parse();
            let seconds: f64 = time.map_err(|_| format!("no time in {line:?}"))?;
            if !test.starts_with("Benchmark") {
                waiting.push((outcome, test, seconds));
            }
        }
        let mut words = line.split_whitespace();
        if let (Some("ok" | "FAIL"), Some(name)) = (words.next(), words.next()) {
            flush(&mut waiting, name, &mut readings)?;
        }
    }
    flush(&mut waiting, package, &mut readings)?;
    benchmarks(text, "", &mut readings)?;
    Ok(readings)
}

fn flush(
    waiting: &mut Vec<(&str, &str, f64)>,
    package: &str,
    readings: &mut Readings,
) -> Result<(), String> {
    for (outcome, test, seconds) in waiting.drain(..) {
        let name = name(package, test);
        match outcome {
            "PASS" => readings.add(&name, seconds, "s", None)?,
            _ => readings.add_incomplete(&name, outcome == "FAIL")?,
        }
    }
    Ok(())
}

/// `BenchmarkName-8  1000  123 ns/op  45 B/op`
fn benchmarks(text: &str, package: &str, readings: &mut Readings) -> Result<(), String> {
    let mut package = package;
    for line in text.lines() {
        let line = cut(line);
        if let Some(rest) = line.strip_prefix("pkg: ") {
            package = rest.trim();
        }
        if !line.starts_with("Benchmark") {
            continue;
        }
        let mut words = line.split_whitespace();
        let (Some(benchmark), Some(count)) = (words.next(), words.next()) else { continue };
        if count.parse::<u64>().is_err() {
            continue;
        }
        let benchmark = match benchmark.rsplit_once('-') {
            Some((name, processors)) if processors.parse::<u32>().is_ok() => name,
            _ => benchmark,
        };
        for _ in 0..METRICS_MAX {
            let (Some(value), Some(unit)) = (words.next(), words.next()) else { break };
            let Ok(value) = value.parse::<f64>() else { break };
            let base = name(package, benchmark);
            match unit {
                "ns/op" => readings.add(&base, value, "ns", None)?,
                "B/op" => readings.add(&format!("{base}, bytes/op"), value, "B", None)?,
                unit => readings.add(&format!("{base}, {unit}"), value, unit, None)?,
            }
        }
    }
    Ok(())
}

fn cut(line: &str) -> &str {
    line.get(..line.floor_char_boundary(LINE_BYTES_MAX)).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(readings: &Readings) -> Vec<(&str, Option<f64>, &str)> {
        readings.list.iter().map(|r| (r.name.as_str(), r.value, r.unit.name())).collect()
    }

    #[test]
    fn benchmarks_have_a_value_for_each_unit() {
        let text = "goos: linux\npkg: a/b\nBenchmarkX/y-z-8   100   1500 ns/op  2.0 MB/s  64 B/op  3 allocs/op\n\
            BenchmarkX/y-z-8\nBenchmarkLog some words\nPASS\nok  \ta/b\t1.2s\n";
        assert!(is_text(text));
        assert_eq!(
            list(&read_text(text).unwrap()),
            [
                ("a/b > BenchmarkX/y-z", Some(1500.0 * 1e-9), "s"),
                ("a/b > BenchmarkX/y-z, MB/s", Some(2.0), "MB/s"),
                ("a/b > BenchmarkX/y-z, bytes/op", Some(64.0), "bytes"),
                ("a/b > BenchmarkX/y-z, allocs/op", Some(3.0), "allocs/op"),
            ]
        );
    }

    #[test]
    fn tests_have_the_name_of_their_package_which_comes_after_them() {
        let text = "=== RUN   TestA\n--- PASS: TestA (0.10s)\n    --- PASS: TestA/sub (0.04s)\n\
            --- SKIP: TestB (0.00s)\nok  \tone\t0.2s\n--- FAIL: TestC (1.00s)\nFAIL\ttwo\t1.1s\n";
        let readings = read_text(text).unwrap();
        assert_eq!(
            list(&readings),
            [
                ("one > TestA", Some(0.1), "s"),
                ("one > TestA/sub", Some(0.04), "s"),
                ("one > TestB", None, "s"),
                ("two > TestC", None, "s")
            ]
        );
        assert_eq!((readings.failed, readings.skipped), (1, 1));
        assert!(read_text("--- PASS: TestA (soon)\n").is_err());
    }

    #[test]
    fn events_that_end_in_the_middle_are_not_a_run() {
        let text = "{\"Action\":\"run\",\"Package\":\"a\",\"Test\":\"TestA\"}\n\
            {\"Action\":\"pass\",\"Package\":\"a\",\"Test\":\"TestA\",\"Elapsed\":0.5}\n";
        assert!(read_events(text).unwrap_err().contains("cut short"));
        let whole = format!("{text}{{\"Action\":\"pass\",\"Package\":\"a\",\"Elapsed\":0.6}}\n");
        assert_eq!(list(&read_events(&whole).unwrap()), [("a > TestA", Some(0.5), "s")]);
        let torn = format!("{whole}{{\"Action\":\"pa");
        assert!(read_events(&torn).unwrap_err().contains("line 4"));
    }
}
