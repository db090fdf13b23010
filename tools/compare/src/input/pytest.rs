//! The list that `pytest --durations=0 -vv` prints: `0.12s call test_x.py::test_a`.
//!
//! Setup, call and teardown of a test are added up. pytest omits phases of less than 5 ms without
//! `-vv`; its JUnit XML (`--junitxml`) has every test.
//!
//! Bounds: values as in `input`.

use std::collections::BTreeMap;

use super::{READINGS_MAX, Readings};
use crate::figure::{NAME_BYTES_MAX, shortened};

fn entry(line: &str) -> Option<(f64, &str)> {
    let (time, rest) = line.trim().split_once("s ")?;
    let seconds: f64 = time.trim().parse().ok()?;
    let rest = rest.trim_start();
    let name = ["call", "setup", "teardown"].iter().find_map(|phase| rest.strip_prefix(phase))?;
    (name.starts_with(' ') && !name.trim().is_empty()).then(|| (seconds, name.trim()))
}

/// Whether text has such a list.
pub(crate) fn is_text(text: &str) -> bool {
    let is_head = |line: &str| line.contains("slowest") && line.contains("durations");
    text.lines().any(is_head)
        || text.lines().find(|line| !line.trim().is_empty()).and_then(entry).is_some()
}

/// Reads the list; other lines are passed over.
pub(crate) fn read(text: &str) -> Result<Readings, String> {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for (seconds, name) in text.lines().filter_map(entry) {
        if sums.len() >= READINGS_MAX {
            return Err(format!("it has more than {READINGS_MAX} tests"));
        }
        *sums.entry(shortened(name, NAME_BYTES_MAX)).or_default() += seconds;
    }
    let mut readings = Readings::default();
    for (name, seconds) in sums {
        readings.add(&name, seconds, "s", None)?;
    }
    Ok(readings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setup_and_call_are_one_test() {
        let text = "===== slowest durations =====\n1.00s call     a.py::one[x - y]\n0.25s setup    a.py::one[x - y]\n\
            0.10s teardown a.py::two\n1 passed in 2.00s here\n";
        assert!(is_text(text) && is_text("0.5s call a.py::b\n") && !is_text("5s later\n"));
        let list = read(text).unwrap().list;
        let values: Vec<_> = list.iter().map(|r| (r.name.as_str(), r.value.unwrap())).collect();
        assert_eq!(values, [("a.py::one[x - y]", 1.25), ("a.py::two", 0.1)]);
    }
}
