//! The vocabulary of the rules between limits, and the check of a table by them.
//!
//! Most rules are of one shape: this limit must not be larger than that one, because otherwise
//! something cannot happen or cannot be bounded. A table that breaks rules is refused with all of
//! them at once, each naming the limits, their values and the reason.

use std::{any, slice};

use accounting::format_size;

use crate::{Group, Limit, LimitsError, Sheet, Table, Violation, Violations, derive, is_bytes};

/// A limit, or an expression over limits, by name and value.
#[derive(Clone, Copy, Debug)]
pub struct LimitValue {
    name: &'static str,
    value: u64,
    is_bytes: bool,
}

impl LimitValue {
    /// A limit by its name, `group.field`; the name shows whether it is a size.
    pub fn limit(name: &'static str, value: u64) -> Self {
        Self { name, value, is_bytes: is_bytes(name) }
    }

    /// An expression over sizes, named by how it is made up.
    pub fn size(name: &'static str, value: u64) -> Self {
        Self { name, value, is_bytes: true }
    }

    /// An expression over anything else, named by how it is made up.
    pub fn number(name: &'static str, value: u64) -> Self {
        Self { name, value, is_bytes: false }
    }

    /// Name of the limit, or how the expression is made up.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Value of the limit or expression: bytes if it is a size, else a plain number.
    pub fn value(&self) -> u64 {
        self.value
    }

    fn shown(&self) -> String {
        self.show(self.value)
    }

    /// Another value of the same unit.
    fn show(&self, value: u64) -> String {
        if self.is_bytes { format_size(value) } else { value.to_string() }
    }
}

/// A limit of a table under the name `group.field`: `limit!(table.group.field)`.
#[macro_export]
macro_rules! limit {
    ($table:ident . $group:ident . $field:ident) => {
        $crate::LimitValue::limit(
            concat!(stringify!($group), ".", stringify!($field)),
            $table.$group.$field,
        )
    };
}

/// Collects the rules a table breaks. Each of its functions takes the reason of the rule.
#[derive(Debug, Default)]
pub struct Rules {
    violations: Vec<Violation>,
    /// Limits whose bounds were checked.
    bounded: Vec<&'static str>,
    /// Groups whose rules were checked.
    groups: Vec<&'static str>,
}

impl Rules {
    /// `small` must not be above `large`.
    pub fn within(&mut self, small: LimitValue, large: LimitValue, because: &str) {
        if small.value > large.value {
            let (small_shown, large_shown) = (small.shown(), large.shown());
            let message = format!(
                "`{}` ({small_shown}) must not be above `{}` ({large_shown}): {because}; \
                 lower the first or raise the second",
                small.name, large.name
            );
            self.violations.push(Violation { names: vec![small.name, large.name], message });
        }
    }

    /// `limit` must be at least `least`.
    pub fn at_least(&mut self, limit: LimitValue, least: u64, because: &str) {
        if limit.value < least {
            let message = format!(
                "`{}` is {}, it must be at least {}: {because}",
                limit.name,
                limit.shown(),
                limit.show(least)
            );
            self.violations.push(Violation { names: vec![limit.name], message });
        }
    }

    /// `limit` must be at most `most`.
    pub fn at_most(&mut self, limit: LimitValue, most: u64, because: &str) {
        if limit.value > most {
            let message = format!(
                "`{}` is {}, it must be at most {}: {because}",
                limit.name,
                limit.shown(),
                limit.show(most)
            );
            self.violations.push(Violation { names: vec![limit.name], message });
        }
    }

    /// `limit` must be a whole number of pages of `page` bytes.
    pub fn pages(&mut self, limit: LimitValue, page: u64) {
        if !limit.value.is_multiple_of(page) {
            let message = format!(
                "`{}` is {} bytes, it must be a multiple of {page}: it counts whole pages",
                limit.name, limit.value
            );
            self.violations.push(Violation { names: vec![limit.name], message });
        }
    }

    /// The bounds that the rows of these limits state, here rather than after the rules of their
    /// group: an operator reads first which value is wrong, and then its consequences.
    pub fn bounds<T: Table>(&mut self, table: &T, names: &[&str]) {
        for name in names {
            let limit = T::limit(name);
            debug_assert!(limit.is_some(), "no limit `{name}`");
            limit.into_iter().for_each(|limit| self.bounds_of(table, slice::from_ref(limit)));
        }
    }

    /// The bounds of these rows, unless they were checked before.
    pub fn bounds_of<T: Table>(&mut self, table: &T, limits: &[Limit<T>]) {
        for limit in limits {
            if !self.bounded.contains(&limit.name) {
                self.bounded.push(limit.name);
                let named = LimitValue::limit(limit.name, (limit.value)(table));
                limit.bounds.iter().for_each(|bound| bound.check(named, self));
            }
        }
    }

    /// The rules of a group, unless they were checked before: a group may have those of a later one
    /// checked first.
    pub fn group<T: Table, G: Group<T>>(&mut self, table: &T) {
        let name = any::type_name::<G>();
        if !self.groups.contains(&name) {
            self.groups.push(name);
            G::rules(table, self);
        }
    }

    /// The memory lines of the sheet must fit the budget.
    fn budget<T: Table>(&mut self, table: &T) {
        let sheet = Sheet::for_table(table);
        let sum = sheet.sum_bytes();
        if sum <= sheet.memory_budget_bytes {
            return;
        }
        // The line to blame is the one that was raised most over what the size derives; without
        // any, the first that cannot be paid.
        let derived =
            derive::<T>(sheet.memory_budget_bytes).ok().map(|derived| Sheet::for_table(&derived));
        let derived_bytes =
            |name: &str| derived.as_ref().and_then(|sheet| sheet.line(name)).map(|line| line.bytes);
        let grown = sheet
            .memory_lines()
            .filter_map(|line| derived_bytes(line.name).map(|was| (line, was)))
            .filter(|(line, was)| line.bytes > *was)
            .max_by_key(|(line, was)| line.bytes - was);
        let (line, beside) = match (grown, sheet.first_that_does_not_fit()) {
            (Some((line, was)), _) => (line, format!("{} by derivation", format_size(was))),
            (None, Some((line, left))) => (line, format!("{} left for it", format_size(left))),
            (None, None) => return,
        };
        let message = format!(
            "the memory lines of the budget sheet sum to {}, {} more than the budget of {}: \
             line `{}` ({}, {beside}) does not fit; \
             lower it or another line, or give the node more memory",
            format_size(sum),
            format_size(sum - sheet.memory_budget_bytes),
            format_size(sheet.memory_budget_bytes),
            line.name,
            format_size(line.bytes),
        );
        self.violations.push(Violation { names: vec![line.name], message });
    }

    /// The lines of the disk must fit its budget, where there is one.
    fn disk_budget<T: Table>(&mut self, table: &T) {
        let sheet = Sheet::for_table(table);
        let (sum, budget) = (sheet.disk_sum_bytes(), sheet.disk_budget_bytes);
        let Some(largest) = sheet.disk_lines().max_by_key(|line| line.bytes) else { return };
        if budget == 0 || sum <= budget {
            return;
        }
        let message = format!(
            "the lines of the disk sum to {}, {} more than the disk budget of {}; the largest is \
             `{}` ({}): lower it or another line, or give the node more disk",
            format_size(sum),
            format_size(sum - budget),
            format_size(budget),
            largest.name,
            format_size(largest.bytes),
        );
        self.violations.push(Violation { names: vec![largest.name], message });
    }
}

/// Whether the limits of a table fit together and into the budgets; every rule broken is named with
/// its limits and values.
pub fn check<T: Table>(table: &T) -> Result<(), LimitsError> {
    let mut rules = Rules::default();
    table.rules(&mut rules);
    rules.budget(table);
    rules.disk_budget(table);
    match rules.violations {
        none if none.is_empty() => Ok(()),
        broken => Err(LimitsError::Broken(Violations(broken))),
    }
}

#[cfg(test)]
mod tests {
    use accounting::MIB;

    use super::*;
    use crate::example::ExampleProgram;

    fn broken(change: impl Fn(&mut ExampleProgram)) -> String {
        let mut inn: ExampleProgram = derive(8 * MIB).unwrap();
        check(&inn).unwrap();
        change(&mut inn);
        check(&inn).unwrap_err().to_string()
    }

    #[test]
    fn a_broken_rule_names_limits_values_and_reason() {
        let text = broken(|inn| inn.door.guests = 0);
        assert!(
            text.contains("`door.guests` is 0, it must be at least 1: an inn lives of guests"),
            "{text}"
        );
        let text = broken(|inn| inn.cellar.barrel_bytes = 6 * MIB);
        for part in
            ["`cellar.barrel_bytes` (6 MiB)", "`cellar.cellar_bytes` (4 MiB)", "raise the second"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = broken(|inn| inn.cellar.cellar_bytes = MIB + 1);
        assert!(
            text.contains("`cellar.cellar_bytes` is 1048577 bytes") && text.contains("4096"),
            "{text}"
        );
    }

    #[test]
    fn all_broken_rules_are_named_at_once() {
        let text = broken(|inn| {
            inn.door.guests = 1001;
            inn.cellar.cellar_bytes = 0;
        });
        for part in ["in 3 places", "at most 1000", "`cellar.barrel_bytes`", "sum to"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_disk_budget_that_is_too_small_names_the_largest_line() {
        let text = broken(|inn| inn.disk_budget_bytes = 99 * MIB);
        for part in ["sum to 100 MiB", "1 MiB more", "99 MiB", "`fields` (100 MiB)"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let mut inn: ExampleProgram = derive(8 * MIB).unwrap();
        inn.disk_budget_bytes = 100 * MIB;
        check(&inn).unwrap();
    }

    #[test]
    fn a_sum_above_the_budget_names_the_line_that_was_raised() {
        let text = broken(|inn| inn.door.guests = 8);
        assert!(
            text.contains("`rooms` (4 MiB, 2 MiB by derivation)") && text.contains("10 MiB"),
            "{text}"
        );
        // No table can be derived of so little, so the first line that cannot be paid is named.
        let text = broken(|inn| inn.memory_budget_bytes = 3 * MIB);
        assert!(text.contains("`rooms` (2 MiB, 1 MiB left for it)"), "{text}");
    }
}
