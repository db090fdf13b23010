//! Output of the lab's own benches and storms.
//!
//! A document of figures (`bench`, anything else that writes one), rows that carry figures
//! (`storm`, `bench-net`), reports of `stress` and `bench-relay`, of the hammer, and the summary of
//! a capped run. Turns of one node in one file are several values of a test. Nodes after the first
//! one of a bench are named in the test.
//!
//! Bounds: values as in `input`, [`SERIES_LINES_MAX`] lines of a series.

use serde_json::Value;

use super::Readings;
use crate::figure::Figure;

/// Files that sum up what is in their folder: a storm's, a bench of a subnet's.
pub(crate) const SUMMARIES: [&str; 3] = ["verdict.json", "table.json", "figures.json"];
/// Lines of a series that are read, from its beginning.
const SERIES_LINES_MAX: usize = 4_000_000;
/// Quantiles whose values are repeatable enough to be compared.
const QUANTILES: [&str; 2] = ["p50", "p99"];

pub(crate) fn is_series_header(value: &Value) -> bool {
    word(value, "kind") == Some("header") && value.get("cap_bytes").is_some()
}

/// Whether the first line is a series' header.
pub(crate) fn is_series(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice::<Value>(line).is_ok_and(|value| is_series_header(&value))
}

pub(crate) fn is_report(value: &Value) -> bool {
    let is_list = |field: &str| value.get(field).is_some_and(Value::is_array);
    let is_item = |item: &Value| is_row(item) || item.get("phases").is_some();
    ["figures", "phases", "runs", "modes"].into_iter().any(is_list)
        || value.as_array().is_some_and(|items| items.iter().any(is_item))
}

fn is_row(value: &Value) -> bool {
    value.get("what").is_some() && value.get("measured").is_some()
}

/// Reads a report of any of the kinds.
pub(crate) fn read(value: &Value) -> Result<Readings, String> {
    let mut readings = Readings::default();
    if let Some(list) = value.get("figures") {
        figures(list, &mut readings)?;
    } else if let Some(runs) = value.get("runs").and_then(Value::as_array) {
        for run in runs {
            let [label, part] = ["label", "part"].map(|name| word(run, name).unwrap_or_default());
            if let Some(report) = run.get("report").filter(|report| !report.is_null()) {
                stress(report, &format!("{label} > {part} > "), &mut readings)?;
            }
        }
    } else if value.get("modes").is_some() {
        hammer(value, &mut readings)?;
    } else if value.get("phases").is_some() {
        stress(value, "", &mut readings)?;
    } else {
        let items = value.as_array().map_or(&[][..], Vec::as_slice);
        let rows_only = items.iter().all(is_row);
        for item in items {
            if let Some(list) = item.get("figures") {
                figures(list, &mut readings)?;
            } else if item.get("phases").is_some() {
                let label = word(item, "label").unwrap_or_default();
                stress(item, &format!("{label} > "), &mut readings)?;
            }
        }
        if rows_only && readings.list.is_empty() {
            return Err("its rows have no figures: an older version wrote it; measure again".into());
        }
    }
    Ok(readings)
}

fn figures(list: &Value, readings: &mut Readings) -> Result<(), String> {
    for item in list.as_array().map_or(&[][..], Vec::as_slice) {
        // JSON has no NaN; writers put null.
        if let (Some(name), Some(Value::Null)) = (word(item, "name"), item.get("value")) {
            readings.add(name, f64::NAN, word(item, "unit").unwrap_or_default(), None)?;
            continue;
        }
        let figure: Figure =
            serde_json::from_value(item.clone()).map_err(|error| format!("a figure: {error}"))?;
        readings.add(&figure.name, figure.value, &figure.unit, figure.better)?;
    }
    Ok(())
}

fn stress(report: &Value, before: &str, readings: &mut Readings) -> Result<(), String> {
    for phase in array(report, "phases") {
        let phase_name = word(phase, "name").unwrap_or("phase");
        let mut add = |what: &str, value: Option<f64>, unit: &str| {
            readings.add_some(&format!("{before}{phase_name} > {what}"), value, unit)
        };
        let seconds = number(phase, "/seconds").filter(|seconds| *seconds > 0.0);
        let accepted = number(phase, "/accepted");
        let rate = accepted.zip(seconds).map(|(accepted, seconds)| accepted / seconds);
        add("reached", rate, "/s")?;
        let answers = array(phase, "answers");
        let good = answers.iter().find(|one| word(one, "answer") == Some("200"));
        let counted = |latency: &&Value| number(latency, "/count").is_some_and(|count| count > 0.0);
        let mut latency = |what: &str, latency: Option<&Value>| {
            let latency = latency.filter(counted);
            for quantile in QUANTILES {
                let value =
                    latency.and_then(|latency| number(latency, &format!("/{quantile}_millis")));
                add(&format!("{what}, {quantile}"), value, "ms")?;
            }
            Ok::<(), String>(())
        };
        latency("answered 200", good.and_then(|answers| answers.get("latency")))?;
        latency(
            "received after",
            array(phase, "receivers").first().and_then(|one| one.get("delay")),
        )?;
        latency("store queries", phase.pointer("/queries/latency"))?;
        let missing = |one: &Value| number(one, "/missing").unwrap_or(0.0);
        let lost = array(phase, "receivers").iter().map(missing).fold(f64::NAN, f64::max);
        add("lost to one receiver", Some(lost).filter(|lost| lost.is_finite()), "messages")?;
        add("CPU per message", number(phase, "/cpu_millis_per_accepted"), "ms")?;
        for (index, node) in array(phase, "nodes").iter().enumerate() {
            let who = format!("node {index}, anonymous memory");
            add(&format!("{who}, peak"), number(node, "/peak/anonymous_bytes"), "bytes")?;
            add(&format!("{who}, mean"), number(node, "/mean/anonymous_bytes"), "bytes")?;
        }
    }
    for (index, node) in array(report, "nodes").iter().enumerate() {
        let mut add = |what: &str, value: Option<f64>, unit: &str| {
            readings.add_some(&format!("{before}node {index}, {what}"), value, unit)
        };
        add("anonymous memory, idle", number(node, "/idle/anonymous_bytes"), "bytes")?;
        let after =
            array(node, "after").last().and_then(|after| number(after, "/memory/anonymous_bytes"));
        add("anonymous memory, after", after, "bytes")?;
        add("OOM kills", number(node, "/oom_kills"), "kills")?;
    }
    Ok(())
}

fn hammer(report: &Value, readings: &mut Readings) -> Result<(), String> {
    for mode in array(report, "modes") {
        let mode_name = word(mode, "mode").unwrap_or("mode");
        let rate = number(mode, "/inter_canister_messages_per_second");
        readings.add_some(&format!("{mode_name} > messages between canisters"), rate, "/s")?;
        for phase in array(mode, "phases") {
            if phase.get("preparation").and_then(Value::as_bool) == Some(true) {
                continue;
            }
            let phase_name = word(phase, "name").unwrap_or("phase");
            let seconds = number(phase, "/seconds").filter(|seconds| *seconds > 0.0);
            let kinds = phase.get("kinds").and_then(Value::as_object);
            let cpu = cpu_per_operation(phase);
            readings.add_some(
                &format!("{mode_name} > {phase_name} > node CPU per operation"),
                cpu,
                "s",
            )?;
            for (kind, stats) in kinds.into_iter().flatten() {
                let name = format!("{mode_name} > {phase_name} > {kind}");
                let done = number(stats, "/done").filter(|done| *done > 0.0);
                let Some((done, seconds)) = done.zip(seconds) else { continue };
                readings.add(&name, done / seconds, "/s", None)?;
                for quantile in QUANTILES {
                    let latency = number(stats, &format!("/latency_ms/{quantile}"));
                    readings.add_some(&format!("{name}, {quantile}"), latency, "ms")?;
                }
            }
        }
    }
    readings.add_some("errors", number(report, "/errors"), "errors")
}

/// Seconds of CPU that all nodes spent on one operation of a phase, if they were measured.
fn cpu_per_operation(phase: &Value) -> Option<f64> {
    let nodes = phase.pointer("/cost/nodes")?.as_array()?;
    let spent: f64 = nodes.iter().filter_map(|node| number(node, "/cpu_seconds")).sum();
    let kinds = phase.get("kinds")?.as_object()?;
    let done: f64 = kinds.values().filter_map(|stats| number(stats, "/done")).sum();
    (done > 0.0 && !nodes.is_empty()).then_some(spent / done)
}

fn number(value: &Value, pointer: &str) -> Option<f64> {
    value.pointer(pointer).and_then(Value::as_f64)
}

fn word<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field).and_then(Value::as_str)
}

fn array<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The summary of a capped run, out of its series.
pub(crate) fn read_series(text: &str) -> Result<Readings, String> {
    const FIGURES: [(&str, &str, &str); 8] = [
        ("seconds", "wall time", "s"),
        ("cpu_seconds", "CPU time", "s"),
        ("anonymous_peak_bytes", "anonymous memory, peak", "bytes"),
        ("anonymous_last_bytes", "anonymous memory, at the end", "bytes"),
        ("charged_peak_bytes", "charged memory, peak", "bytes"),
        ("stalled_some_seconds", "time stalled for memory", "s"),
        ("major_faults", "faults read from disk", "faults"),
        ("oom_kills", "OOM kills", "kills"),
    ];
    let mut lines = text.lines().take(SERIES_LINES_MAX);
    let header: Value =
        lines.next().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let name = word(&header, "name").unwrap_or("run");
    let is_summary = |value: &Value| word(value, "kind") == Some("summary");
    let summary = lines
        .filter(|line| line.contains("\"summary\""))
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(is_summary)
        .last()
        .ok_or("it has no summary: the run was killed, or still runs")?;
    let mut readings = Readings::default();
    for (field, what, unit) in FIGURES {
        let value = number(&summary, &format!("/{field}"));
        readings.add_some(&format!("{name} > {what}"), value, unit)?;
    }
    Ok(readings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(readings: &Readings) -> Vec<(&str, Option<f64>, &str)> {
        readings.list.iter().map(|r| (r.name.as_str(), r.value, r.unit.name())).collect()
    }

    #[test]
    fn rows_without_figures_are_of_an_older_version() {
        let rows = serde_json::json!([{"what": "a", "measured": "5 ms", "goal": "", "met": null}]);
        assert!(is_report(&rows) && read(&rows).unwrap_err().contains("older version"));
        let rows = serde_json::json!([
            {"what": "a", "measured": "5 ms", "figures": [{"name": "a", "value": 5.0, "unit": "ms"}]},
            {"what": "b", "measured": "yes"}]);
        assert_eq!(list(&read(&rows).unwrap()), [("a", Some(0.005), "s")]);
    }

    #[test]
    fn nodes_that_the_hammer_measured_have_their_cpu_per_operation() {
        let phase = |cost: Value| {
            serde_json::json!({"modes": [{"mode": "calls", "phases": [
            {"name": "chains", "seconds": 2.0, "kinds": {"chain": {"done": 4}}, "cost": cost}]}]})
        };
        let cost = serde_json::json!({"nodes": [{"cpu_seconds": 1.0}, {"cpu_seconds": 3.0}]});
        let readings = read(&phase(cost)).unwrap();
        let measured = list(&readings);
        assert!(
            measured.contains(&("calls > chains > node CPU per operation", Some(1.0), "s")),
            "{measured:?}"
        );
        let readings = read(&phase(Value::Null)).unwrap();
        assert!(list(&readings).iter().all(|(name, ..)| !name.contains("CPU")));
    }

    #[test]
    fn a_series_tells_by_its_summary_only() {
        let header = "{\"kind\":\"header\",\"cap_bytes\":5,\"name\":\"n\"}\n";
        assert!(is_series(header.as_bytes()));
        assert!(read_series(header).unwrap_err().contains("no summary"));
        let whole = format!(
            "{header}{{\"kind\":\"sample\",\"seconds\":1}}\n{{\"kind\":\"summary\",\"seconds\":2.5,\"oom_kills\":1}}\n"
        );
        let readings = read_series(&whole).unwrap();
        assert_eq!(
            list(&readings),
            [("n > wall time", Some(2.5), "s"), ("n > OOM kills", Some(1.0), "kills")]
        );
    }

    #[test]
    fn figures_that_are_null_are_counted_as_none() {
        let value = serde_json::json!({"figures": [{"name": "a", "value": null, "unit": "s"}]});
        assert_eq!(read(&value).unwrap().unusable, 1);
        let value = serde_json::json!({"figures": [{"name": 5}]});
        assert!(read(&value).unwrap_err().contains("a figure"));
    }
}
