//! Pressure stall information: the share of time in which some task waited for memory.
//!
//! It is the only reading that shows a shortage before a process is killed: usage at the limit is
//! normal when it is page cache. A kernel built without it, or a cgroup of version 1, has none;
//! then there is no reading, which is an `Option` everywhere and never an error.

use std::path::Path;

use crate::read::read_text;

/// One line: the share of time over the shortest of its windows, and the total since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// Share of the last 10 seconds, in hundredths of a percent (10,000 is always).
    pub avg10_hundredths: u32,
    /// Microseconds stalled in all.
    pub total_micros: u64,
}

/// Both lines of a pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks waited: nothing else was done in that time.
    pub full: Stall,
}

/// Memory pressure of the whole machine; `None` where the kernel does not report it.
pub fn machine_memory() -> Option<Pressure> {
    read(Path::new("/proc/pressure/memory"))
}

/// A pressure file; `None` when it is not there or not one.
pub(crate) fn read(path: &Path) -> Option<Pressure> {
    parse(&read_text(path).ok()?)
}

fn parse(text: &str) -> Option<Pressure> {
    let line =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).and_then(parse_stall);
    // CPU pressure has no `full` line on older kernels; for memory a missing one reads as never.
    Some(Pressure { some: line("some ")?, full: line("full ").unwrap_or_default() })
}

fn parse_stall(line: &str) -> Option<Stall> {
    let mut stall = Stall::default();
    let mut seen = 0;
    for word in line.split_ascii_whitespace() {
        let (key, value) = word.split_once('=')?;
        match key {
            "avg10" => stall.avg10_hundredths = parse_hundredths(value)?,
            "avg60" | "avg300" => {
                parse_hundredths(value)?;
            }
            "total" => stall.total_micros = value.parse().ok()?,
            _ => continue,
        }
        seen += 1;
    }
    (seen >= 4).then_some(stall)
}

/// `12.34` as 1234.
fn parse_hundredths(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole: u32 = whole.parse().ok()?;
    let fraction: u32 = match fraction.len() {
        1 => fraction.parse::<u32>().ok()? * 10,
        2 => fraction.parse().ok()?,
        _ => return None,
    };
    whole.checked_mul(100)?.checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pressure_file_is_read() {
        let text = "some avg10=12.34 avg60=0.50 avg300=0.07 total=987654\nfull avg10=100.00 avg60=0.00 avg300=0.00 total=12\n";
        let pressure = parse(text).unwrap();
        assert_eq!(pressure.some, Stall { avg10_hundredths: 1234, total_micros: 987_654 });
        assert_eq!(pressure.full.avg10_hundredths, 10_000);
    }

    #[test]
    fn malformed_pressure_file_reads_as_none() {
        for text in [
            "",
            "some",
            "some avg10=x avg60=0.00 avg300=0.00 total=0",
            "some avg10=0.00",
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=0",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(read(Path::new("/nowhere/memory.pressure")), None);
    }
}
