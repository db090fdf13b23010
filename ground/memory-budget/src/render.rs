//! The sheet and the table, for people and for machines.
//!
//! People get aligned columns: the memory lines with their sum, what is not memory apart, then
//! every limit by group with its reason. Values are written as a configuration file takes them.
//! Machines get one JSON object.

use std::fmt::Write;

use accounting::format_size;
use serde_json::{Value, json};

use crate::{LineKind, Sheet, SheetLine, Table, as_object, flatten, is_bytes};

impl Sheet {
    /// For people: the sheet, and the table it was made of.
    pub fn to_text<T: Table>(&self, limits: &T) -> String {
        let mut text = String::new();
        let width = self.lines.iter().map(|line| line.name.len()).max().unwrap_or(0);
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "Memory budget: {}\n", format_size(self.memory_budget_bytes));
        let _ = writeln!(
            text,
            "{:<width$}  {:>12}  {:<5}  {:<9}  what and why",
            "memory", "at most", "kind", "owner"
        );
        self.memory_lines().for_each(|line| write_line(&mut text, line, width));
        let _ = writeln!(text, "{:<width$}  {:>12}", "sum", format_size(self.sum_bytes()));
        let _ = writeln!(text, "{:<width$}  {:>12}", "left", format_size(self.left_bytes()));
        let of_disk = self.disk_budget_bytes > 0;
        let _ = writeln!(
            text,
            "\n{:<width$}  {:>12}  {:<5}  {:<9}  what and why",
            "not counted", "at most", "kind", "owner"
        );
        self.lines
            .iter()
            .filter(|line| !(line.kind.counts() || of_disk && line.kind == LineKind::Disk))
            .for_each(|line| write_line(&mut text, line, width));
        if of_disk {
            self.write_disk(&mut text, width);
        }
        let _ = writeln!(
            text,
            "\nkinds: a pool is asked before memory is taken; fixed memory is set aside; \
             file pages and disk hold state and caches, and the kernel may drop the pages."
        );
        write_limits(&mut text, limits);
        text
    }

    /// The sheet of the disk.
    fn write_disk(&self, text: &mut String, width: usize) {
        let _ = writeln!(text, "\nDisk budget: {}\n", format_size(self.disk_budget_bytes));
        let _ = writeln!(
            text,
            "{:<width$}  {:>12}  {:<5}  {:<9}  what and why",
            "disk", "at most", "kind", "owner"
        );
        self.disk_lines().for_each(|line| write_line(text, line, width));
        let _ = writeln!(text, "{:<width$}  {:>12}", "sum", format_size(self.disk_sum_bytes()));
        let _ = writeln!(text, "{:<width$}  {:>12}", "left", format_size(self.disk_left_bytes()));
    }

    /// For machines: `{memory_budget_bytes, sum_bytes, left_bytes, disk_budget_bytes (0: none),
    /// disk_sum_bytes, disk_left_bytes, lines: [{name, bytes, owner, made_of, reason, kind, counts,
    /// pool}], limits: {group: {field: value}}}`.
    pub fn to_json<T: Table>(&self, limits: &T) -> Value {
        let line = |line: &SheetLine| {
            json!({
                "name": line.name, "bytes": line.bytes, "owner": line.owner,
                "made_of": line.made_of, "reason": line.reason, "kind": line.kind.name(),
                "counts": line.kind.counts(), "pool": line.kind == LineKind::Pool,
            })
        };
        json!({
            "memory_budget_bytes": self.memory_budget_bytes,
            "sum_bytes": self.sum_bytes(),
            "left_bytes": self.left_bytes(),
            "disk_budget_bytes": self.disk_budget_bytes,
            "disk_sum_bytes": self.disk_sum_bytes(),
            "disk_left_bytes": self.disk_left_bytes(),
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "limits": as_object(limits),
        })
    }
}

fn write_line(text: &mut String, line: &SheetLine, width: usize) {
    let made_of =
        if line.made_of.is_empty() { String::new() } else { format!(" ({})", line.made_of) };
    let (size, kind) = (format_size(line.bytes), line.kind.name());
    let _ = writeln!(
        text,
        "{:<width$}  {size:>12}  {kind:<5}  {:<9}  {}{made_of}",
        line.name, line.owner, line.reason
    );
}

fn write_limits<T: Table>(text: &mut String, limits: &T) {
    let table = as_object(limits);
    let rows: Vec<(&str, &str, String)> =
        flatten(&table).map(|(group, field, value)| (group, field, shown(field, value))).collect();
    let name_width = rows.iter().map(|(_, field, _)| field.len()).max().unwrap_or(0);
    let value_width = rows.iter().map(|(_, _, value)| value.len()).max().unwrap_or(0);
    let mut group_before = "";
    for (group, field, value) in &rows {
        if *group != group_before {
            let _ = writeln!(text, "\n[limits.{group}]");
            group_before = group;
        }
        let reason = T::reason(group, field);
        let _ = writeln!(text, "{field:<name_width$} = {value:<value_width$}  # {reason}");
    }
}

/// As a configuration file takes it.
pub(crate) fn shown(field: &str, value: &Value) -> String {
    match value.as_u64() {
        Some(number)
            if is_bytes(field) && accounting::parse_size(&format_size(number)) == Ok(number) =>
        {
            format!("\"{}\"", format_size(number))
        }
        Some(number) => grouped(number),
        None => value.to_string(),
    }
}

/// Decimal digits in groups of three, separated by underscores: `20_000_000_000`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use accounting::MIB;

    use super::*;
    use crate::{apply_overrides, derive, example::ExampleProgram};

    fn inn() -> ExampleProgram {
        derive(16 * MIB).unwrap()
    }

    #[test]
    fn numbers_are_grouped_in_threes() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1000, "1_000"), (20_000_000_000, "20_000_000_000")]
        {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn the_text_shows_every_line_and_every_limit_with_its_reason() {
        let sheet = Sheet::for_table(&inn());
        let text = sheet.to_text(&inn());
        assert!(text.contains("Memory budget: 16 MiB"));
        for line in &sheet.lines {
            assert!(text.contains(line.name) && text.contains(line.reason), "{}", line.name);
        }
        for limit in ExampleProgram::LIMITS.iter().copied().flatten() {
            let (_, field) = limit.name.split_once('.').unwrap();
            assert!(text.contains(field) && text.contains(limit.reason), "{field}");
        }
    }

    #[test]
    fn the_part_with_limits_is_a_configuration_file() {
        let text = Sheet::for_table(&inn()).to_text(&inn());
        let start = text.find("[limits.").unwrap();
        let file: toml::Table = toml::from_str(&text[start..]).unwrap();
        let mut again = inn();
        apply_overrides(&mut again, &serde_json::to_value(&file["limits"]).unwrap()).unwrap();
        assert_eq!(again, inn());
    }

    #[test]
    fn a_disk_budget_gives_a_second_sheet_with_a_sum_of_its_own() {
        let text = Sheet::for_table(&inn()).to_text(&inn());
        assert!(!text.contains("Disk budget"), "none was stated");
        let inn = ExampleProgram { disk_budget_bytes: 130 * MIB, ..inn() };
        let sheet = Sheet::for_table(&inn);
        let text = sheet.to_text(&inn);
        let disk = &text[text.find("Disk budget: 130 MiB").unwrap()..];
        for part in ["fields", "100 MiB", "sum", "left", "30 MiB"] {
            assert!(disk.contains(part), "{part}: {text}");
        }
        assert_eq!(text.matches("fields").count(), 1, "{text}");
        let json = sheet.to_json(&inn);
        assert_eq!(json["disk_sum_bytes"], 100 * MIB);
        assert_eq!(json["disk_left_bytes"], 30 * MIB);
    }

    #[test]
    fn the_json_adds_up() {
        let json = Sheet::for_table(&inn()).to_json(&inn());
        let lines = json["lines"].as_array().unwrap();
        let counted = lines.iter().filter(|line| line["counts"] == true);
        let sum: u64 = counted.map(|line| line["bytes"].as_u64().unwrap()).sum();
        assert_eq!(json["sum_bytes"], sum);
        assert_eq!(json["left_bytes"], (16 << 20) - sum);
        assert_eq!(
            serde_json::from_value::<ExampleProgram>(json["limits"].clone()).unwrap(),
            inn()
        );
    }
}
