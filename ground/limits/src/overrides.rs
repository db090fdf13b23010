//! The operator's own values, laid over a derived table by name.
//!
//! A configuration file says `[limits.gateway]` and `connections = 100` or `bodies_bytes = "32MiB"`. Sizes are integers or texts with a unit, everything
//! else is an integer or a truth value. A name that does not exist is refused with the nearest that does. Limits that are consequences of a changed one
//! follow it, unless they were stated too or had been stated before.

use budget::parse_size;
use serde_json::{Map, Value};

use crate::{
    Limits, LimitsError,
    error::{distance, nearest},
};

/// Longest name quoted in an error.
const QUOTED_CHARS_MAX: usize = 80;

/// Whether the limit of that name (with or without its group) is a size.
pub(crate) fn is_bytes(name: &str) -> bool {
    name.ends_with("_bytes") || name.contains("_bytes_per_")
}

impl Limits {
    /// Lays `overrides` over the table: an object of groups, each an object of limits. Nothing is changed when anything is refused. Whether the
    /// result fits together is [`Limits::check`]'s to say.
    pub fn apply_overrides(&mut self, overrides: &Value) -> Result<(), LimitsError> {
        let bad = |field: &str, problem: String| LimitsError::BadValue { field: quoted(field), problem };
        let Value::Object(groups) = overrides else {
            return Err(bad("limits", "must be a table of groups, for example `[limits.gateway]`".into()));
        };
        let mut table = as_object(self);
        let mut stated = Vec::new();
        for (group, fields) in groups {
            let known = match table.get_mut(group) {
                Some(Value::Object(known)) => known,
                Some(_) => {
                    return Err(bad(
                        group,
                        "is stated as `memory` at the top of the file or as --memory, not as a limit".into(),
                    ));
                }
                None => return Err(unknown_group(group, &table)),
            };
            let Value::Object(fields) = fields else {
                return Err(bad(group, format!("must be a table, written `[limits.{group}]`")));
            };
            for (field, value) in fields {
                let path = format!("{group}.{field}");
                let Some(slot) = known.get_mut(field) else {
                    return Err(unknown_field(group, field, self));
                };
                let wants_truth = slot.is_boolean();
                *slot = read_value(field, wants_truth, value).map_err(|problem| bad(&path, problem))?;
                stated.push(path);
            }
        }
        let mut changed: Limits =
            serde_json::from_value(Value::Object(table)).map_err(|error| bad("limits", error.to_string()))?;
        let own = self.departures();
        changed.follow(|name| stated.iter().any(|path| path == name) || own.iter().any(|path| path == name));
        *self = changed;
        Ok(())
    }

    /// Limits that would follow others but were set otherwise earlier.
    fn departures(&self) -> Vec<String> {
        let mut following = self.clone();
        following.follow(|_| false);
        let (mine, theirs) = (as_object(self), as_object(&following));
        flatten(&mine)
            .filter(|(group, field, value)| {
                theirs.get(*group).and_then(|other| other.get(*field)) != Some(*value)
            })
            .map(|(group, field, _)| format!("{group}.{field}"))
            .collect()
    }
}

/// The table as groups of fields.
pub(crate) fn as_object(limits: &Limits) -> Map<String, Value> {
    // A struct of structs of integers and truth values always is one.
    match serde_json::to_value(limits) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// Every limit but the budget, as (group, field, value).
pub(crate) fn flatten(table: &Map<String, Value>) -> impl Iterator<Item = (&str, &str, &Value)> {
    table
        .iter()
        .filter_map(|(group, fields)| Some((group.as_str(), fields.as_object()?)))
        .flat_map(|(group, fields)| fields.iter().map(move |(field, value)| (group, field.as_str(), value)))
}

fn read_value(field: &str, wants_truth: bool, value: &Value) -> Result<Value, String> {
    let wanted = match (wants_truth, is_bytes(field)) {
        (true, _) => "true or false",
        (false, true) => "a size: a whole number of bytes or a text like \"32MiB\"",
        (false, false) => "a whole number, for example 1_000",
    };
    match value {
        Value::Bool(_) if wants_truth => Ok(value.clone()),
        Value::Number(number) if !wants_truth => match number.as_u64() {
            Some(_) => Ok(value.clone()),
            None => Err(format!("{number} is not {wanted}")),
        },
        Value::String(text) if !wants_truth && is_bytes(field) => {
            parse_size(text).map(Value::from).map_err(|error| error.to_string())
        }
        other => Err(format!("`{}` is not {wanted}", quoted(&other.to_string()))),
    }
}

fn unknown_group(group: &str, table: &Map<String, Value>) -> LimitsError {
    let known: Vec<&str> =
        table.iter().filter(|(_, fields)| fields.is_object()).map(|(group, _)| group.as_str()).collect();
    LimitsError::UnknownGroup {
        group: quoted(group),
        nearest: nearest(group, known.iter().copied()).unwrap_or("gateway").to_owned(),
        known: known.join(", "),
    }
}

/// The nearest name of the same group, or of any other group when that is nearer: a limit put into the wrong group is found.
fn unknown_field(group: &str, field: &str, limits: &Limits) -> LimitsError {
    let table = as_object(limits);
    let letters: Vec<char> = field.chars().take(QUOTED_CHARS_MAX).collect();
    let best = flatten(&table).min_by_key(|(other, name, _)| (distance(&letters, name), *other != group));
    let nearest = match best {
        Some((other, name, _)) if other == group => name.to_owned(),
        Some((other, name, _)) => format!("{name}` in `[limits.{other}]"),
        None => String::new(),
    };
    LimitsError::UnknownField { group: quoted(group), field: quoted(field), nearest }
}

fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use budget::MIB;
    use serde_json::json;

    use super::*;

    fn nano() -> Limits {
        Limits::nano().unwrap()
    }

    fn refused(overrides: Value) -> String {
        let mut limits = nano();
        let text = limits.apply_overrides(&overrides).unwrap_err().to_string();
        assert_eq!(limits, nano(), "a refusal changes nothing");
        text
    }

    #[test]
    fn values_of_every_kind_are_laid_over() {
        let mut limits = nano();
        let text = "[gateway]\nconnections = 100\nbodies_bytes = \"6 MiB\"\nresponses_bytes = 4194304\n[execution]\nreject_guaranteed_response_calls = true\n";
        let overrides: toml::Table = toml::from_str(text).unwrap();
        limits.apply_overrides(&serde_json::to_value(overrides).unwrap()).unwrap();
        assert_eq!(
            (limits.gateway.connections, limits.gateway.bodies_bytes, limits.gateway.responses_bytes),
            (100, 6 * MIB, 4 * MIB)
        );
        assert!(limits.execution.reject_guaranteed_response_calls);
        limits.check().unwrap();
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_known() {
        assert!(refused(json!({"gateway": {"conections": 1}})).contains("`connections`"));
        assert!(refused(json!({"gatway": {}})).contains("[limits.gateway]"));
        assert!(
            refused(json!({"gateway": {"ingress_pool_bytes": 1}}))
                .contains("`ingress_pool_bytes` in `[limits.consensus]`")
        );
        let long = refused(json!({"gateway": {"x".repeat(100_000): 1}}));
        assert!(long.len() < 500, "an error stays short whatever was written");
    }

    #[test]
    fn wrong_kinds_are_refused_with_the_right_one() {
        assert!(refused(json!({"gateway": {"connections": "100"}})).contains("whole number"));
        assert!(refused(json!({"gateway": {"connections": -1}})).contains("whole number"));
        assert!(refused(json!({"gateway": {"connections": 1.5}})).contains("whole number"));
        assert!(refused(json!({"gateway": {"bodies_bytes": "32 MoB"}})).contains("MiB"));
        assert!(refused(json!({"gateway": {"bodies_bytes": true}})).contains("32MiB"));
        assert!(
            refused(json!({"execution": {"reject_guaranteed_response_calls": 1}})).contains("true or false")
        );
        assert!(refused(json!({"gateway": 3})).contains("[limits.gateway]"));
        assert!(refused(json!({"memory_budget_bytes": 3})).contains("--memory"));
        assert!(refused(json!([])).contains("table"));
    }

    #[test]
    fn consequences_follow_unless_they_are_stated() {
        let mut limits = nano();
        limits.apply_overrides(&json!({"sandbox": {"compile_memory_bytes": "76MiB"}, "subnet": {"memory_capacity_bytes": "2GiB"}})).unwrap();
        assert_eq!(limits.module.wasm_uncompressed_bytes, 2 * MIB);
        assert_eq!(limits.module.wasm_bytes, 2 * MIB);
        assert_eq!(limits.subnet.memory_threshold_bytes, 2048 * MIB);
        limits.check().unwrap();

        let mut limits = nano();
        limits
            .apply_overrides(
                &json!({"subnet": {"memory_capacity_bytes": "2GiB", "memory_threshold_bytes": "1GiB"}}),
            )
            .unwrap();
        assert_eq!(limits.subnet.memory_threshold_bytes, 1024 * MIB);
        // What was stated once is not forgotten by the next call.
        limits.apply_overrides(&json!({"subnet": {"memory_capacity_bytes": "3GiB"}})).unwrap();
        assert_eq!(limits.subnet.memory_threshold_bytes, 1024 * MIB);
    }

    #[test]
    fn stating_every_value_changes_nothing() {
        for preset in crate::PRESETS {
            let limits = Limits::preset(preset.name).unwrap();
            let mut table = as_object(&limits);
            table.remove("memory_budget_bytes");
            let mut again = limits.clone();
            again.apply_overrides(&Value::Object(table)).unwrap();
            assert_eq!(again, limits);
        }
    }
}
