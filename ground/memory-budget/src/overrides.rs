//! The operator's own values, laid over a derived table by name.
//!
//! A configuration file has `[limits.gateway]` and `connections = 100` or `bodies_bytes = "32MiB"`.
//! Sizes are integers or texts with a unit, everything else is an integer or a truth value. A name
//! that does not exist is refused with the nearest that does. Limits that are consequences of a
//! changed one follow it, unless they were stated too or had been stated before.

use accounting::parse_size;
use serde_json::{Map, Value};

use crate::{
    LimitsError, Table,
    error::{distance, nearest},
};

/// Longest text of an operator that is quoted in an error or compared with known names.
pub(crate) const QUOTED_CHARS_MAX: usize = 80;

/// Whether the limit of that name (with or without its group) is a size: names of sizes end in
/// `_bytes`, or name the unit they are per (`_bytes_per_`).
pub const fn is_bytes(name: &str) -> bool {
    let (name, end, within) = (name.as_bytes(), "_bytes".as_bytes(), "_bytes_per_".as_bytes());
    let mut at = 0;
    while at < name.len() {
        let (_, rest) = name.split_at(at);
        if starts_with(rest, within) || rest.len() == end.len() && starts_with(rest, end) {
            return true;
        }
        at += 1;
    }
    false
}

/// For constants, where slices have no such method.
const fn starts_with(text: &[u8], start: &[u8]) -> bool {
    let mut at = 0;
    while at < start.len() {
        if at >= text.len() || text[at] != start[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// Lays `overrides` over the table: an object of groups, each an object of limits. Nothing is
/// changed when anything is refused, and the error names what. Whether the result fits together is
/// [`crate::check`]'s to say.
pub fn apply_overrides<T: Table>(limits: &mut T, overrides: &Value) -> Result<(), LimitsError> {
    let bad =
        |field: &str, problem: String| LimitsError::BadValue { field: quoted(field), problem };
    let Value::Object(groups) = overrides else {
        return Err(bad(
            "limits",
            "must be a table of groups, each written `[limits.GROUP]`".into(),
        ));
    };
    let mut table = as_object(limits);
    let mut stated = Vec::new();
    for (group, fields) in groups {
        let known = match table.get_mut(group) {
            Some(Value::Object(known)) => known,
            Some(_) => {
                return Err(bad(
                    group,
                    "is stated at the top of the file or as a flag (`memory`, --memory), not as a \
                     limit"
                        .into(),
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
                return Err(unknown_field(group, field, limits));
            };
            let wants_truth = slot.is_boolean();
            *slot = read_value(field, wants_truth, value).map_err(|problem| bad(&path, problem))?;
            stated.push(path);
        }
    }
    let mut changed: T = serde_json::from_value(Value::Object(table))
        .map_err(|error| bad("limits", error.to_string()))?;
    let own = departures(limits);
    changed.follow(|name| {
        stated.iter().any(|path| path == name) || own.iter().any(|path| path == name)
    });
    *limits = changed;
    Ok(())
}

/// The table in a record that any version of the program wrote, by serialising its table. A limit
/// that the record lacks is newer than it: its value is the one of the recorded memory, or follows
/// from the recorded limits. So a row needs no default for serde.
///
/// # Errors
/// The record has no memory budget, a limit that this program does not have, or a value of another
/// kind.
pub fn from_record<T: Table>(record: &Value) -> Result<T, LimitsError> {
    let bad =
        |field: &str, problem: String| LimitsError::BadValue { field: quoted(field), problem };
    let memory_bytes = record.get("memory_budget_bytes").and_then(Value::as_u64);
    let memory_bytes = memory_bytes
        .ok_or_else(|| bad("memory_budget_bytes", "the record has no such number".into()))?;
    let mut table = as_object(&T::scaled(memory_bytes));
    let mut recorded = Vec::new();
    for (name, value) in record.as_object().into_iter().flatten() {
        if let (Some(Value::Object(group)), Some(fields)) = (table.get_mut(name), value.as_object())
        {
            for (field, value) in fields {
                let path = format!("{name}.{field}");
                if T::limit(&path).is_none() {
                    return Err(bad(&path, "is recorded, and this program has none".into()));
                }
                recorded.push(path);
                group.insert(field.clone(), value.clone());
            }
            continue;
        }
        table.insert(name.clone(), value.clone());
    }
    let mut table: T = serde_json::from_value(Value::Object(table))
        .map_err(|error| bad("limits", error.to_string()))?;
    table.follow(|name| recorded.iter().any(|path| path == name));
    Ok(table)
}

/// Changes what other limits follow from, and lets them follow, but for those that were set
/// otherwise before.
pub fn restate<T: Table>(limits: &mut T, change: impl FnOnce(&mut T)) {
    let own = departures(limits);
    change(limits);
    limits.follow(|name| own.iter().any(|path| path == name));
}

/// Limits that would follow others but were set otherwise earlier.
fn departures<T: Table>(limits: &T) -> Vec<String> {
    let mut following = limits.clone();
    following.follow(|_| false);
    let (mine, theirs) = (as_object(limits), as_object(&following));
    flatten(&mine)
        .filter(|(group, field, value)| {
            theirs.get(*group).and_then(|other| other.get(*field)) != Some(*value)
        })
        .map(|(group, field, _)| format!("{group}.{field}"))
        .collect()
}

/// The table as groups of fields.
pub fn as_object<T: Table>(limits: &T) -> Map<String, Value> {
    // A struct of structs of integers and truth values always is one.
    match serde_json::to_value(limits) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// Every limit but the budgets, as (group, field, value).
pub fn flatten(table: &Map<String, Value>) -> impl Iterator<Item = (&str, &str, &Value)> {
    table.iter().filter_map(|(group, fields)| Some((group.as_str(), fields.as_object()?))).flat_map(
        |(group, fields)| fields.iter().map(move |(field, value)| (group, field.as_str(), value)),
    )
}

/// Every number of a table but the budgets, as (`group.field`, value), in the order of names.
pub fn numbers<T: Table>(limits: &T) -> Vec<(String, u64)> {
    flatten(&as_object(limits))
        .filter_map(|(group, field, value)| Some((format!("{group}.{field}"), value.as_u64()?)))
        .collect()
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
    let known: Vec<&str> = table
        .iter()
        .filter(|(_, fields)| fields.is_object())
        .map(|(group, _)| group.as_str())
        .collect();
    LimitsError::UnknownGroup {
        group: quoted(group),
        nearest: nearest(group, known.iter().copied()).unwrap_or_default().to_owned(),
        known: known.join(", "),
    }
}

/// The nearest name of the same group, or of any other group when that is nearer: a limit put into
/// the wrong group is found.
fn unknown_field<T: Table>(group: &str, field: &str, limits: &T) -> LimitsError {
    let table = as_object(limits);
    let letters: Vec<char> = field.chars().take(QUOTED_CHARS_MAX).collect();
    let best =
        flatten(&table).min_by_key(|(other, name, _)| (distance(&letters, name), *other != group));
    let nearest = match best {
        Some((other, name, _)) if other == group => name.to_owned(),
        Some((other, name, _)) => format!("{name}` in `[limits.{other}]"),
        None => String::new(),
    };
    LimitsError::UnknownField {
        program: T::PROGRAM,
        group: quoted(group),
        field: quoted(field),
        nearest,
    }
}

/// The beginning of a text of the operator.
pub(crate) fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use accounting::MIB;
    use serde_json::json;

    use super::*;
    use crate::{derive, example::ExampleProgram};

    fn inn() -> ExampleProgram {
        derive(32 * MIB).unwrap()
    }

    fn refused(overrides: Value) -> String {
        let mut limits = inn();
        let text = apply_overrides(&mut limits, &overrides).unwrap_err().to_string();
        assert_eq!(limits, inn(), "a refusal changes nothing");
        text
    }

    #[test]
    fn values_of_every_kind_are_laid_over() {
        let mut limits = inn();
        let text = "[door]\nguests = 3\nlocked = true\n\
                    [cellar]\ncellar_bytes = \"6 MiB\"\nbarrel_bytes = 4096\n";
        let overrides: toml::Table = toml::from_str(text).unwrap();
        apply_overrides(&mut limits, &serde_json::to_value(overrides).unwrap()).unwrap();
        assert_eq!((limits.door.guests, limits.door.locked), (3, true));
        assert_eq!((limits.cellar.cellar_bytes, limits.cellar.barrel_bytes), (6 * MIB, 4096));
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_known() {
        let text = refused(json!({"door": {"gests": 1}}));
        assert!(text.contains("`guests`") && text.contains("`inn limits`"), "{text}");
        let text = refused(json!({"dor": {}}));
        assert!(text.contains("[limits.door]") && text.contains("cellar, door"), "{text}");
        assert!(
            refused(json!({"door": {"barel_bytes": 1}}))
                .contains("`barrel_bytes` in `[limits.cellar]`")
        );
        let long = refused(json!({"door": {"x".repeat(100_000): 1}}));
        assert!(long.len() < 500, "an error stays short whatever was written");
    }

    #[test]
    fn wrong_kinds_are_refused_with_the_right_one() {
        assert!(refused(json!({"door": {"guests": "100"}})).contains("whole number"));
        assert!(refused(json!({"door": {"guests": -1}})).contains("whole number"));
        assert!(refused(json!({"door": {"guests": 1.5}})).contains("whole number"));
        assert!(refused(json!({"cellar": {"barrel_bytes": "32 MoB"}})).contains("MiB"));
        assert!(refused(json!({"cellar": {"barrel_bytes": true}})).contains("32MiB"));
        assert!(refused(json!({"door": {"locked": 1}})).contains("true or false"));
        assert!(refused(json!({"door": 3})).contains("[limits.door]"));
        assert!(refused(json!({"memory_budget_bytes": 3})).contains("--memory"));
        assert!(refused(json!([])).contains("table"));
    }

    #[test]
    fn one_wrong_value_among_good_ones_changes_nothing() {
        assert!(
            refused(json!({"cellar": {"barrel_bytes": 1}, "door": {"guests": 1, "keys": "many"}}))
                .contains("`door.keys`")
        );
    }

    #[test]
    fn consequences_follow_unless_they_are_stated() {
        let mut limits = inn();
        apply_overrides(&mut limits, &json!({"door": {"guests": 5}})).unwrap();
        assert_eq!(limits.door.keys, 5);
        apply_overrides(&mut limits, &json!({"door": {"guests": 6, "keys": 2}})).unwrap();
        assert_eq!(limits.door.keys, 2);
        // Values stated once are kept by the next call.
        apply_overrides(&mut limits, &json!({"door": {"guests": 7}})).unwrap();
        assert_eq!((limits.door.guests, limits.door.keys), (7, 2));
    }

    #[test]
    fn stating_every_value_changes_nothing() {
        let mut table = as_object(&inn());
        table.remove("memory_budget_bytes");
        table.remove("disk_budget_bytes");
        let mut again = inn();
        apply_overrides(&mut again, &Value::Object(table)).unwrap();
        assert_eq!(again, inn());
    }

    #[test]
    fn limit_that_a_record_lacks_has_the_value_of_the_recorded_memory() {
        let mut limits: ExampleProgram = crate::derive(32 * MIB).unwrap();
        apply_overrides(&mut limits, &json!({"door": {"guests": 5, "locked": true}})).unwrap();
        let record = serde_json::to_value(&limits).unwrap();
        assert_eq!(from_record::<ExampleProgram>(&record).unwrap(), limits);
        let without = |group: &str, field: &str| {
            let mut older = record.clone();
            older[group].as_object_mut().unwrap().remove(field).unwrap();
            from_record::<ExampleProgram>(&older).unwrap()
        };
        assert_eq!(without("cellar", "cellar_bytes").cellar.cellar_bytes, 16 * MIB);
        assert_eq!(without("door", "guests").door.guests, 16);
        assert_eq!(without("door", "guests").door.keys, 5, "recorded limits do not follow it");
        assert_eq!(without("door", "keys").door.keys, 5, "it follows the recorded guests");
        assert!(!without("door", "locked").door.locked);
        let mut older = record.clone();
        older.as_object_mut().unwrap().remove("cellar").unwrap();
        assert_eq!(from_record::<ExampleProgram>(&older).unwrap(), limits, "a whole group");
    }

    #[test]
    fn record_of_unknown_limits_or_without_a_memory_is_refused() {
        let changed = |change: &dyn Fn(&mut Value)| {
            let mut record = serde_json::to_value(inn()).unwrap();
            change(&mut record);
            from_record::<ExampleProgram>(&record).unwrap_err().to_string()
        };
        assert!(changed(&|record| record["door"]["bolts"] = 1.into()).contains("bolts"));
        assert!(changed(&|record| record["garden"] = json!({"trees": 1})).contains("garden"));
        assert!(changed(&|record| record["door"]["guests"] = "many".into()).contains("many"));
        assert!(changed(&|record| record["door"] = 3.into()).contains("limits"));
        let no_memory = |record: &mut Value| record["memory_budget_bytes"] = "8 MiB".into();
        assert!(changed(&no_memory).contains("memory_budget_bytes"));
        assert!(from_record::<ExampleProgram>(&json!([])).is_err());
    }

    #[test]
    fn numbers_are_in_the_order_of_names() {
        let numbers = numbers(&inn());
        let names: Vec<&str> = numbers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["cellar.barrel_bytes", "cellar.cellar_bytes", "door.guests", "door.keys"]
        );
    }
}
