//! `hyperfine --export-json`: every run of each command.

use serde_json::Value;

use super::Readings;

pub(crate) fn is_report(value: &Value) -> bool {
    value.get("results").and_then(Value::as_array).is_some_and(|results| {
        results.first().is_some_and(|one| one.get("command").is_some() && one.get("mean").is_some())
    })
}

/// Times of all runs; the mean where the runs were left out.
pub(crate) fn read(value: &Value) -> Result<Readings, String> {
    let mut readings = Readings::default();
    let results = value.get("results").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for result in results {
        let command =
            result.get("command").and_then(Value::as_str).ok_or("a result has no command")?;
        match result.get("times").and_then(Value::as_array) {
            Some(times) if !times.is_empty() => {
                for time in times {
                    let seconds = time.as_f64().ok_or("a time is no number")?;
                    readings.add(command, seconds, "s", None)?;
                }
            }
            _ => {
                let mean =
                    result.get("mean").and_then(Value::as_f64).ok_or("a mean is no number")?;
                readings.add(command, mean, "s", None)?;
            }
        }
    }
    Ok(readings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_of_a_command_is_a_value() {
        let value = serde_json::json!({"results": [
            {"command": "a", "mean": 1.5, "times": [1.0, 2.0]}, {"command": "b", "mean": 3.0}]});
        assert!(is_report(&value));
        let list = read(&value).unwrap().list;
        let values: Vec<_> = list.iter().map(|r| (r.name.as_str(), r.value.unwrap())).collect();
        assert_eq!(values, [("a", 1.0), ("a", 2.0), ("b", 3.0)]);
        let odd = serde_json::json!({"results": [{"command": "a", "mean": "x"}]});
        assert!(read(&odd).unwrap_err().contains("no number"));
    }
}
