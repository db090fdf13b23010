//! The rows of a table as Markdown, for a page of reference.

use std::fmt::Write;

use accounting::format_size;
use serde_json::Value;

use crate::{Limit, LimitBound, Pays, Table, as_object, render::shown};

const HEAD: &str = "| limit | default | members | budget line | bounds | meaning | reason |\n\
                    |---|---|---|---|---|---|---|\n";

/// Units that names state and values do not.
const UNITS: [(&str, &str); 4] =
    [("hours", " h"), ("seconds", " s"), ("millis", " ms"), ("percent", " %")];

/// For a test of each program: every limit as Markdown, in the order of declaration, with the
/// values of `limits` as defaults.
pub fn reference<T: Table>(limits: &T) -> String {
    let table = as_object(limits);
    let mut text = String::new();
    let mut group_before = "";
    for limit in T::LIMITS.iter().copied().flatten() {
        // A name has two parts, and each row a field: see `omissions`.
        let Some((group, field)) = limit.name.split_once('.') else { continue };
        let Some(value) = table.get(group).and_then(|group| group.get(field)) else { continue };
        // Writing to a String cannot fail.
        if group != group_before {
            let space = if text.is_empty() { "" } else { "\n" };
            let _ = write!(text, "{space}### {group}\n\n{HEAD}");
            group_before = group;
        }
        let members = if limit.is_agreed { "agreed" } else { "local" };
        let bounds: Vec<String> =
            limit.bounds.iter().map(|bound| bound_text(field, *bound)).collect();
        let cells = [
            format!("`{field}`"),
            value_text(field, value),
            members.to_owned(),
            line_text(limit),
            bounds.join("; "),
            doc_text(limit),
            limit.reason.to_owned(),
        ];
        let _ = writeln!(text, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    text
}

fn value_text(field: &str, value: &Value) -> String {
    let unit = UNITS.iter().find(|(name, _)| field.split('_').any(|part| part == *name));
    let unit = unit.filter(|_| value.is_number()).map_or("", |(_, unit)| *unit);
    format!("{}{unit}", shown(field, value).trim_matches('"'))
}

fn line_text<T: 'static>(limit: &Limit<T>) -> String {
    match limit.pays {
        Pays::Unstated => String::new(),
        Pays::Lines(lines) => {
            lines.iter().map(|line| format!("`{line}`")).collect::<Vec<_>>().join(", ")
        }
        Pays::Within(line) => format!("within `{line}`"),
        Pays::Nothing(why) => format!("none: {why}"),
    }
}

fn bound_text(field: &str, bound: LimitBound) -> String {
    match bound {
        LimitBound::AtLeast(least, why) => {
            format!("at least {}: {why}", value_text(field, &least.into()))
        }
        LimitBound::AtMost(most, why) => {
            format!("at most {}: {why}", value_text(field, &most.into()))
        }
        LimitBound::Pages(bytes) => format!("whole pages of {}", format_size(bytes)),
    }
}

/// The documentation, without the links and paths of rustdoc.
fn doc_text<T: 'static>(limit: &Limit<T>) -> String {
    let lines: Vec<&str> =
        limit.doc.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
    let paths = [("[`", "`"), ("`]", "`"), ("crate::", ""), ("Self::", "")];
    paths.iter().fold(lines.join(" "), |text, (path, plain)| text.replace(*path, plain))
}

#[cfg(test)]
mod tests {
    use accounting::MIB;

    use super::*;
    use crate::{derive, example::ExampleProgram};

    #[test]
    fn reference_states_everything_of_a_row() {
        let inn: ExampleProgram = derive(8 * MIB).unwrap();
        let text = reference(&inn);
        for row in [
            "| `guests` | 4 | agreed | `rooms` | at least 1: an inn lives of guests; at most \
             1_000: a house of that size is a town | Guests. | chairs |",
            "| `cellar_bytes` | 4 MiB | local | `cellar` | whole pages of 4 KiB | All barrels. | \
             what guests drink |",
            "| `barrel_bytes` | 1 MiB | local | within `cellar` |  | One barrel. | what one can \
             carry |",
            "| `locked` | false | agreed |  |  | At night. | it is day |",
        ] {
            assert!(text.lines().any(|line| line == row), "{row}: {text}");
        }
        assert!(text.starts_with("### door\n\n| limit |"), "{text}");
        assert!(text.contains("|\n\n### cellar\n\n| limit |"), "{text}");
    }

    #[test]
    fn units_of_times_and_shares_are_added_to_values() {
        for (field, value, text) in [
            ("read_timeout_millis", 10_000, "10_000 ms"),
            ("instructions_per_slice", 2_000, "2_000"),
            ("requests_per_second", 5, "5"),
            ("hold_back_bytes_per_second", 8 << 20, "8 MiB"),
        ] {
            assert_eq!(value_text(field, &Value::from(value)), text);
        }
    }
}
