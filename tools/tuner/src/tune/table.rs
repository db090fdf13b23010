//! Several reports as one table.

use std::{
    fmt::Write as _,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::executor::{format_setting, mib};

/// Largest report that is read.
const REPORT_BYTES_MAX: u64 = 16 << 20;

/// One line for each report that is there and is one.
pub(super) fn table(paths: &[PathBuf]) -> Result<String> {
    let mut text = format!(
        "{:<18} {:>11} {:>11} {:>8} {:>8} {:>11} {:>11} {:>5}  {}\n",
        "", "default", "found", "memory", "CPU", "p99 before", "p99 after", "runs", "settings"
    );
    for path in paths {
        let report = read(path)?;
        let name =
            path.file_stem().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        let _ = writeln!(text, "{}", line(&name, &report));
    }
    Ok(text)
}

fn read(path: &Path) -> Result<Value> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("opening {shown}"))?;
    let mut bytes = Vec::new();
    file.take(REPORT_BYTES_MAX).read_to_end(&mut bytes)?;
    let report: Value =
        serde_json::from_slice(&bytes).with_context(|| format!("{shown} is no report"))?;
    ensure!(
        report.get("verdict").is_some_and(Value::is_string),
        "{shown} is no report of a search"
    );
    Ok(report)
}

fn line(name: &str, report: &Value) -> String {
    let number = |path: &str| report.pointer(path).and_then(Value::as_f64);
    let or_dash = |value: Option<f64>, text: fn(f64) -> String| value.map_or("-".to_owned(), text);
    let lived = report.pointer("/default/outcome").and_then(Value::as_str).unwrap_or_default();
    let default = if lived == "lived" {
        or_dash(number("/default/peak_bytes"), mib)
    } else {
        "killed".into()
    };
    let percent = |value: f64| format!("{value:+.0} %");
    let millis = |value: f64| format!("{value:.1} ms");
    let setting: Vec<(String, String)> = report
        .pointer("/winner/setting")
        .and_then(|setting| serde_json::from_value(setting.clone()).ok())
        .unwrap_or_default();
    let verdict = report.get("verdict").and_then(Value::as_str).unwrap_or_default();
    let what = match verdict {
        "better" => format_setting(&setting),
        "measured" => "as it is".to_owned(),
        other => other.replace('_', " "),
    };
    format!(
        "{name:<18} {default:>11} {:>11} {:>8} {:>8} {:>11} {:>11} {:>5}  {what}",
        or_dash(number("/winner/peak_bytes"), mib),
        or_dash(number("/confirmation/memory_percent/change"), percent),
        or_dash(number("/confirmation/cpu_percent/change"), percent),
        or_dash(number("/default/p99_millis"), millis),
        or_dash(number("/winner/p99_millis"), millis),
        or_dash(number("/runs"), |runs| format!("{runs:.0}")),
    )
}
