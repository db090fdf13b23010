//! Comparisons of any values: every test gets one verdict, no probability is outside 0 and 1, and
//! the page has no markup of names.

use std::path::PathBuf;

use compare::{
    figure::Unit,
    input::{Kind, Reading, Readings, Run},
};

/// A run from these bytes: a name and a unit of one byte, and a value of eight.
fn run(bytes: &[u8]) -> Run {
    let list = bytes.chunks_exact(9).map(|chunk| {
        let value = f64::from_le_bytes(chunk[1..].try_into().unwrap_or_default());
        let unit = match chunk[0] % 3 {
            0 => Unit::Seconds,
            1 => Unit::PerSecond,
            _ => Unit::Other(String::new()),
        };
        let name = format!("<script>{}", chunk[0] / 3);
        Reading { name, value: value.is_finite().then_some(value), unit, better: None }
    });
    let readings = Readings { list: list.collect(), ..Readings::default() };
    Run { path: PathBuf::from("run"), kind: Kind::Csv, readings }
}

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((runs, bytes)) = bytes.split_first() else { return };
    let runs = usize::from(runs % 6) + 2;
    let mut all: Vec<Run> = bytes.chunks((bytes.len() / runs).max(1)).take(runs).map(run).collect();
    let Some(candidate) = all.pop() else { return };
    let Ok([_, _, json, page]) = compare::render(&all, &[candidate]) else { return };
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    for test in value["tests"].as_array().expect("tests") {
        assert!(test["verdict"].is_string());
        for field in ["p", "q"] {
            assert!(test[field].as_f64().is_none_or(|p| (0.0..=1.0).contains(&p)), "{test}");
        }
    }
    assert!(!page.contains("<script>"));
}
