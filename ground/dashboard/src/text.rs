//! The common parts of a report, printed for people.

use std::fmt::Write as _;

use accounting::format_size;

use crate::{Allocator, Memory, Pool};

/// `12.3 MiB`: three figures are enough for a person.
pub fn short(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// The same with a sign.
pub fn signed(bytes: i64) -> String {
    format!("{}{}", if bytes < 0 { "-" } else { "" }, short(bytes.unsigned_abs()))
}

/// Lines `memory`, `group` and `allocator`. Writing to a String cannot fail, here and below.
pub fn memory(out: &mut String, memory: &Memory, allocator: &Allocator) {
    let _ = writeln!(
        out,
        "memory      {} anonymous of a budget of {}; {} mapped files; {} in pools, {} not",
        short(memory.anonymous_bytes),
        format_size(memory.budget_bytes),
        short(memory.file_bytes),
        short(memory.accounted_bytes),
        signed(memory.unaccounted_bytes)
    );
    if let Some(group) = &memory.group {
        let limit = group
            .limit_bytes
            .map_or("no limit".into(), |limit| format!("a limit of {}", format_size(limit)));
        let _ = writeln!(
            out,
            "group       {} charged, {limit}; {} anonymous, {} page cache; {} killed for lack of \
             memory",
            short(group.usage_bytes),
            short(group.anonymous_bytes),
            short(group.file_bytes),
            group.oom_kills
        );
    }
    let _ = writeln!(
        out,
        "allocator   {} live, {} active, {} resident; {} handed back; {} purges while idle, {} \
         under pressure, {:.3} % of a core",
        short(allocator.live_bytes),
        short(allocator.active_bytes),
        short(allocator.resident_bytes),
        short(allocator.returned_bytes),
        allocator.purges_idle,
        allocator.purges_pressure,
        allocator.purge_cpu_percent
    );
}

/// Line `throttling`; `held_back` describes the work held back, if any.
pub fn throttling(out: &mut String, held_back: Option<&str>, reason: Option<&str>, events: usize) {
    let throttling = match held_back {
        None => "nothing is held back".into(),
        Some(what) => format!("{what} held back: {}", reason.unwrap_or("")),
    };
    let _ = writeln!(out, "throttling  {throttling}; {events} changes kept\n");
}

/// A table of all pools.
pub fn pools(out: &mut String, pools: &[Pool]) {
    let _ = writeln!(
        out,
        "{:<22} {:>12} {:>12} {:>12} {:>8}",
        "pool", "used", "most", "cap", "refused"
    );
    for pool in pools {
        let _ = writeln!(
            out,
            "{:<22} {:>12} {:>12} {:>12} {:>8}",
            pool.name,
            short(pool.used_bytes),
            short(pool.high_water_bytes),
            format_size(pool.cap_bytes),
            pool.refused
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(short(0), "0 B");
        assert_eq!(short(1536), "1.5 KiB");
        assert_eq!(short(32 << 20), "32.0 MiB");
        assert_eq!(signed(-(5 << 30)), "-5.00 GiB");
        assert_eq!(signed(-1536), "-1.5 KiB");
    }
}
