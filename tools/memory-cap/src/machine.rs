//! The machine in one line, and how busy it is: a figure is reported with the machine it was
//! measured on.

use std::fs;

pub use compare::describe;

/// Tasks that ran or wanted to, averaged over a minute.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// `2026-11-21T03:04:05Z`, and the form without punctuation for names of folders,
/// `20261121-030405`.
pub fn now() -> (String, String) {
    let time = timestamp();
    let seconds = time.split('.').next().unwrap_or_default();
    (format!("{seconds}Z"), seconds.replace(['-', ':'], "").replace('T', "-"))
}

/// The time in UTC, such as `2026-11-23T04:05:06.789Z`.
pub fn timestamp() -> String {
    let now = time::OffsetDateTime::now_utc();
    let (year, month, day) = (now.year(), u8::from(now.month()), now.day());
    let (hour, minute, second) = (now.hour(), now.minute(), now.second());
    let millis = now.millisecond();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}
