//! The summary, for a person.

use std::fmt::Write;

use accounting::format_size;

use super::series::{Header, Summary};

/// Several lines, each ended.
pub(crate) fn text(summary: &Summary, header: &Header) -> String {
    let mut text = format!(
        "thimble-lab cap: {} ran {} in {}: {}",
        header.name,
        duration(summary.seconds),
        format_size(header.cap_bytes),
        summary.ended
    );
    // When the two differ, it is because of a kill.
    if summary.oom_kills > 0 && summary.ended == "exit 0" {
        let _ = write!(text, ", passed on as {} because of an OOM kill", summary.exit_status);
    }
    text.push('\n');
    let mut line = |what: &str, value: String| {
        let _ = writeln!(text, "  {what:<11} {value}");
    };
    line(
        "anonymous",
        format!(
            "peak {} at {}, {} at the end",
            mib(summary.anonymous_peak_bytes),
            duration(summary.anonymous_peak_seconds),
            mib(summary.anonymous_last_bytes)
        ),
    );
    let shared = match summary.shared_peak_bytes {
        0..accounting::MIB => String::new(),
        shared => format!(", {} of it at most shared memory", mib(shared)),
    };
    line("file", format!("peak {}{shared}", mib(summary.file_peak_bytes)));
    line(
        "charged",
        format!("peak {} of {}", mib(summary.charged_peak_bytes), mib(header.cap_bytes)),
    );
    line("OOM kills", summary.oom_kills.to_string());
    let restarts: Vec<String> = summary
        .restarts
        .iter()
        .map(|restarts| format!("{} {}", restarts.role, restarts.count))
        .collect();
    line("restarts", if restarts.is_empty() { "0".to_owned() } else { restarts.join(", ") });
    if let (Some(some), Some(full)) =
        (summary.pressure_some_percent_max, summary.pressure_full_percent_max)
    {
        let stalled = summary.stalled_some_seconds.unwrap_or(0.0);
        let whose =
            if header.pressure_of == "group" { "the group's own" } else { "of the whole machine" };
        line(
            "pressure",
            format!(
                "worst 10 s: some {some:.1} %, full {full:.1} %; {stalled:.2} s stalled in all \
                 ({whose})"
            ),
        );
    }
    line(
        "CPU",
        format!(
            "{:.2} s, {} page faults read from disk",
            summary.cpu_seconds, summary.major_faults
        ),
    );
    text
}

/// Bytes in MiB with one decimal, such as `12.3 MiB`.
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

/// `0.25 s`, `12.3 s`, `2:05`, `1:02:05`.
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..10 => format!("{seconds:.2} s"),
        10..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{}:{:02}", whole / 60, whole % 60),
        _ => format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_clocks() {
        for (seconds, text) in [
            (0.0, "0.00 s"),
            (0.251, "0.25 s"),
            (12.34, "12.3 s"),
            (125.4, "2:05"),
            (3725.0, "1:02:05"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn an_exit_status_that_is_not_the_commands_is_explained() {
        let summary = Summary {
            exit_status: 137,
            ended: "exit 0".into(),
            oom_kills: 1,
            ..Summary::default()
        };
        let text = text(&summary, &Header::default());
        assert!(text.contains("exit 0, passed on as 137 because of an OOM kill"), "{text}");
    }
}
