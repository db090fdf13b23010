//! Plain CSV: a name and a value in each line, with a header or without.
//!
//! A header may name the columns `name`, `value`, `unit` and `better` (`less` or `more`) in any
//! order; instead of `value`, the column may be named `seconds`, `ms` or another unit. Separators
//! are commas, semicolons or tabs.
//!
//! Bounds: values as in `input`.

use super::Readings;
use crate::figure::{Better, Unit, shortened};

/// Why it is not read.
#[derive(Debug, PartialEq)]
pub(crate) enum Fault {
    /// Not a table of names and values.
    NoTable,
    /// One, with a fault.
    Damaged(String),
}

struct Columns {
    name: usize,
    value: usize,
    unit: Option<usize>,
    better: Option<usize>,
    /// By the head of the values.
    unit_of_all: String,
}

fn columns(heads: &csv::StringRecord) -> Option<Columns> {
    let find = |names: &[&str]| {
        heads
            .iter()
            .position(|head| names.iter().any(|name| head.trim().eq_ignore_ascii_case(name)))
    };
    let name = find(&["name", "test", "benchmark", "what"])?;
    let is_unit =
        |head: &str| !matches!(Unit::parse(&head.trim().to_lowercase()).0, Unit::Other(_));
    let (value, unit_of_all) = match find(&["value", "measured"]) {
        Some(value) => (value, String::new()),
        None => match find(&["time", "duration"]) {
            Some(value) => (value, "s".to_owned()),
            None => {
                let value = heads.iter().position(is_unit)?;
                (value, heads.get(value)?.trim().to_lowercase())
            }
        },
    };
    Some(Columns { name, value, unit: find(&["unit"]), better: find(&["better"]), unit_of_all })
}

/// Reads all lines.
pub(crate) fn read(text: &str) -> Result<Readings, Fault> {
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let delimiter = [b',', b'\t', b';'].into_iter().find(|byte| first.as_bytes().contains(byte));
    let mut lines = csv::ReaderBuilder::new()
        .delimiter(delimiter.ok_or(Fault::NoTable)?)
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .from_reader(text.as_bytes());
    let mut readings = Readings::default();
    let mut shape: Option<Columns> = None;
    for record in lines.records() {
        let record = record.map_err(|error| Fault::Damaged(error.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        let Some(shape) = &shape else {
            let headless = record.get(1).is_some_and(|value| value.parse::<f64>().is_ok());
            let found = if headless {
                Some(Columns {
                    name: 0,
                    value: 1,
                    unit: None,
                    better: None,
                    unit_of_all: String::new(),
                })
            } else {
                columns(&record)
            };
            shape = Some(found.ok_or(Fault::NoTable)?);
            if headless && let Some(shape) = &shape {
                add(&mut readings, &record, shape, line)?;
            }
            continue;
        };
        add(&mut readings, &record, shape, line)?;
    }
    Ok(readings)
}

fn add(
    readings: &mut Readings,
    record: &csv::StringRecord,
    shape: &Columns,
    line: u64,
) -> Result<(), Fault> {
    let damaged = |fault: &str| Fault::Damaged(format!("line {line}: {fault}"));
    let name = record.get(shape.name).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| damaged("there is no name"))?;
    let value = record.get(shape.value).ok_or_else(|| damaged("there is no value"))?;
    let number: f64 = value
        .parse()
        .map_err(|_| damaged(&format!("the value {:?} is no number", shortened(value, 40))))?;
    let unit = shape.unit.and_then(|column| record.get(column)).unwrap_or(&shape.unit_of_all);
    let better = match shape.better.and_then(|column| record.get(column)).unwrap_or_default() {
        "" => None,
        "less" | "lower" => Some(Better::Less),
        "more" | "higher" => Some(Better::More),
        other => {
            return Err(damaged(&format!(
                "better is {:?}; write less or more",
                shortened(other, 40)
            )));
        }
    };
    readings.add(name, number, unit, better).map_err(Fault::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_columns_in_any_order() {
        let text = "unit,better,value,name\nms,,1500,a\n/s,more,7,\"b, c\"\n";
        let list = read(text).unwrap().list;
        assert_eq!((list[0].name.as_str(), list[0].value), ("a", Some(1.5)));
        assert_eq!((list[1].name.as_str(), list[1].better), ("b, c", Some(Better::More)));
        let list = read("test;ms\nx;2\n").unwrap().list;
        assert_eq!((list[0].value, &list[0].unit), (Some(0.002), &Unit::Seconds));
    }

    #[test]
    fn lines_that_are_not_a_name_and_a_value_are_named() {
        for (text, words) in [
            ("a,1\nb,two\n", "line 2: the value \"two\" is no number"),
            ("a,1\nb\n", "line 2: there is no value"),
            ("name,value\n,1\n", "line 2: there is no name"),
            ("name,value,better\na,1,bigger\n", "write less or more"),
        ] {
            let Err(Fault::Damaged(fault)) = read(text) else { panic!("{text} was read") };
            assert!(fault.contains(words), "{fault}");
        }
        assert_eq!(read("to be, or not\nto be, that\n"), Err(Fault::NoTable));
        assert_eq!(read("words\n"), Err(Fault::NoTable));
    }
}
