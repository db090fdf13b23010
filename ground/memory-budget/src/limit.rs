//! One limit, as its row declares it, and the functions that read the rows of a whole table.
//!
//! Rows are written in the macro [`crate::limits!`]. From them follow the table of a memory size,
//! the consequences of a change ([`Table::follow`]), the bounds of single limits
//! ([`Rules::bounds`]), the reasons that are shown, and the limits that members of a subnet compare
//! ([`agreed`]). [`omissions`] finds, in a test, what no compiler can: that the rows and the budget
//! sheet say the same.

use std::collections::BTreeSet;

use crate::{LimitValue, Rules, Sheet, Table, as_object, flatten, is_bytes};

/// One limit of a table `T`.
#[derive(Debug)]
pub struct Limit<T: 'static> {
    /// Its name, `group.field`.
    pub name: &'static str,
    /// Lines of its documentation; empty lines for other attributes.
    pub doc: &'static [&'static str],
    /// Whether members of a subnet must have the same value.
    pub is_agreed: bool,
    /// The lines of the budget sheet that it changes.
    pub pays: Pays,
    /// Bounds that depend on no other limit.
    pub bounds: &'static [LimitBound],
    /// Why it has the value it has, in one line.
    pub reason: &'static str,
    /// Reads its value; a truth value is 0 or 1.
    pub value: fn(&T) -> u64,
    /// Writes its value.
    pub set: fn(&mut T, u64),
    /// How it follows others.
    pub follows: Follows<T>,
}

impl<T: 'static> Limit<T> {
    /// The row itself, if it is complete. In a constant, a row that is not does not compile.
    pub const fn complete(self, problem: &'static str) -> Self {
        let states_line = !matches!(self.pays, Pays::Unstated);
        assert!(states_line || !is_bytes(self.name), "{}", problem);
        assert!(!self.reason.is_empty(), "{}", problem);
        self
    }

    /// The consequence that it is in `table` now, if it follows others.
    fn consequence(&self, table: &T, memory_bytes: u64, has_disk: bool) -> Option<u64> {
        match self.follows {
            Follows::Others(of) => Some(of(table)),
            Follows::Least(of, least) => Some(of(table, least(memory_bytes))),
            Follows::Disk(of, least) if has_disk => Some(of(table, least(memory_bytes))),
            Follows::Nothing | Follows::Disk(..) => None,
        }
    }
}

/// How a limit follows others. The second function of a pair is the value by memory alone, which
/// the first one is given.
#[derive(Debug)]
pub enum Follows<T: 'static> {
    /// It depends on the memory size at most.
    Nothing,
    /// It is a consequence of others.
    Others(fn(&T) -> u64),
    /// It is a consequence of others and of its own value by memory.
    Least(fn(&T, u64) -> u64, fn(u64) -> u64),
    /// The same where a disk budget is stated; otherwise it depends on the memory alone.
    Disk(fn(&T, u64) -> u64, fn(u64) -> u64),
}

/// The lines of the budget sheet that a limit changes.
#[derive(Clone, Copy, Debug)]
pub enum Pays {
    /// Not stated: only for what is not a size, and changes no line.
    Unstated,
    /// Each of these lines, which are all that it changes.
    Lines(&'static [&'static str]),
    /// Memory that is counted within this line, whatever the limit.
    Within(&'static str),
    /// No line, for this reason.
    Nothing(&'static str),
}

/// A bound of one limit that depends on no other.
#[derive(Clone, Copy, Debug)]
pub enum LimitBound {
    /// The least value, and why.
    AtLeast(u64, &'static str),
    /// The largest value, and why.
    AtMost(u64, &'static str),
    /// Whole pages, of this number of bytes each.
    Pages(u64),
}

impl LimitBound {
    /// The least value, and why.
    pub const fn at_least(value: u64, because: &'static str) -> Self {
        Self::AtLeast(value, because)
    }

    /// The largest value, and why.
    pub const fn at_most(value: u64, because: &'static str) -> Self {
        Self::AtMost(value, because)
    }

    /// Whole pages of `bytes` bytes.
    pub const fn pages(bytes: u64) -> Self {
        Self::Pages(bytes)
    }

    pub(crate) fn check(self, limit: LimitValue, rules: &mut Rules) {
        match self {
            Self::AtLeast(least, because) => rules.at_least(limit, least, because),
            Self::AtMost(most, because) => rules.at_most(limit, most, because),
            Self::Pages(bytes) => rules.pages(limit, bytes),
        }
    }
}

/// The type of a limit's field.
pub trait Value: Copy {
    /// As a number.
    fn number(self) -> u64;
    /// From a number.
    fn of(number: u64) -> Self;
}

impl Value for u64 {
    fn number(self) -> u64 {
        self
    }

    fn of(number: u64) -> Self {
        number
    }
}

impl Value for bool {
    fn number(self) -> u64 {
        u64::from(self)
    }

    fn of(number: u64) -> Self {
        number != 0
    }
}

/// A group of limits of the table `T`, implemented by [`crate::limits!`].
pub trait Group<T: 'static>: Sized {
    /// Rows of a part of the group that every program has.
    const PART: &'static [Limit<T>] = &[];
    /// The rows of the group.
    const LIMITS: &'static [Limit<T>];

    /// The group in a table.
    fn of(table: &T) -> &Self;

    /// The group in a table.
    fn of_mut(table: &mut T) -> &mut Self;

    /// The group of a memory size, before anything follows.
    fn scaled(memory_bytes: u64) -> Self;

    /// Checks the rules of the group.
    fn rules(table: &T, rules: &mut Rules);
}

/// Sets every consequence but those that `stays` names. Rows may follow one another in any order:
/// they are computed until none changes any more.
pub(crate) fn follow<T: Table>(table: &mut T, stays: impl Fn(&str) -> bool) {
    let rows = T::LIMITS.iter().copied().flatten();
    let following: Vec<&Limit<T>> = rows
        .filter(|limit| !matches!(limit.follows, Follows::Nothing) && !stays(limit.name))
        .collect();
    let (memory, has_disk) = (table.memory_budget_bytes(), table.disk_budget_bytes() > 0);
    // A chain of consequences is at most as long as there are any. Rows that followed one another
    // in a circle would end here too.
    for _ in 0..=following.len() {
        let mut is_changed = false;
        for limit in &following {
            let value = limit.consequence(table, memory, has_disk);
            if let Some(value) = value.filter(|value| *value != (limit.value)(table)) {
                (limit.set)(table, value);
                is_changed = true;
            }
        }
        if !is_changed {
            return;
        }
    }
}

/// The limits that members of a subnet must have alike, by name and in the order of names.
pub fn agreed<T: Table>(table: &T) -> Vec<(String, u64)> {
    let rows = T::LIMITS.iter().copied().flatten().filter(|limit| limit.is_agreed);
    let mut agreed: Vec<_> =
        rows.map(|limit| (limit.name.to_owned(), (limit.value)(table))).collect();
    agreed.sort();
    agreed
}

/// For a test of each program: what rows and sheet say differently. Every field has a row; the
/// lines that a row states are those that change with the limit, in any of `tables`; every line has
/// a limit that changes it. Returns nothing where all is well.
pub fn omissions<T: Table>(tables: &[T]) -> Vec<String> {
    let mut problems = Vec::new();
    let rows: Vec<&Limit<T>> = T::LIMITS.iter().copied().flatten().collect();
    let names: BTreeSet<String> = rows.iter().map(|limit| limit.name.to_owned()).collect();
    if names.len() != rows.len() {
        problems.push("a limit has two rows".to_owned());
    }
    let mut lines = BTreeSet::new();
    for table in tables {
        let object = as_object(table);
        let fields: BTreeSet<String> =
            flatten(&object).map(|(group, field, _)| format!("{group}.{field}")).collect();
        let of_one = fields.symmetric_difference(&names);
        problems.extend(of_one.map(|name| format!("`{name}` is a field or a row, not both")));
        lines.extend(Sheet::for_table(table).lines.iter().map(|line| line.name));
    }
    let mut paid = BTreeSet::new();
    for limit in rows {
        let changed = changed_lines(limit, tables);
        let stated: BTreeSet<&str> = match limit.pays {
            Pays::Lines(lines) => lines.iter().copied().collect(),
            _ => BTreeSet::new(),
        };
        if stated != changed {
            problems.push(format!("`{}` states {stated:?} and changes {changed:?}", limit.name));
        }
        if let Pays::Within(line) = limit.pays
            && !lines.contains(line)
        {
            problems.push(format!("`{}` is within `{line}`, which is no line", limit.name));
        }
        paid.extend(changed);
    }
    problems.extend(lines.difference(&paid).map(|line| format!("no limit changes line `{line}`")));
    problems
}

/// Lines that change with the limit.
fn changed_lines<T: Table>(limit: &Limit<T>, tables: &[T]) -> BTreeSet<&'static str> {
    let mut changed = BTreeSet::new();
    for table in tables {
        let before = Sheet::for_table(table).lines;
        let value = (limit.value)(table);
        for value in [0, value / 2, value.saturating_mul(2), value.saturating_add(1 << 40)] {
            let mut other = table.clone();
            (limit.set)(&mut other, value);
            let after = Sheet::for_table(&other).lines;
            let pairs = before.iter().zip(&after);
            changed.extend(pairs.filter(|(a, b)| a.bytes != b.bytes).map(|(line, _)| line.name));
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use accounting::MIB;

    use super::*;
    use crate::{derive, example::ExampleProgram};

    #[test]
    fn line_that_no_row_states_is_found() {
        let inn: ExampleProgram = derive(8 * MIB).unwrap();
        let no_limit = |name: &str| format!("no limit changes line `{name}`");
        assert_eq!(omissions(&[inn]), ["fields", "garden", "walls"].map(no_limit));
    }

    #[test]
    fn lines_that_a_limit_changes_are_found() {
        let inn: ExampleProgram = derive(8 * MIB).unwrap();
        let changed = |name: &str| {
            let lines =
                changed_lines(ExampleProgram::limit(name).unwrap(), std::slice::from_ref(&inn));
            lines.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(changed("door.guests"), ["rooms"]);
        assert_eq!(changed("cellar.barrel_bytes"), [""; 0]);
    }

    #[test]
    fn members_compare_agreed_limits_in_the_order_of_names() {
        let inn: ExampleProgram = derive(8 * MIB).unwrap();
        let agreed = [("door.guests".to_owned(), 4), ("door.locked".to_owned(), 0)];
        assert_eq!(super::agreed(&inn), agreed);
    }

    #[test]
    fn rows_without_a_line_or_a_reason_are_refused() {
        let row = |name, reason| Limit::<ExampleProgram> {
            name,
            doc: &[],
            is_agreed: false,
            pays: Pays::Unstated,
            bounds: &[],
            reason,
            value: |_| 0,
            set: |_, _| {},
            follows: Follows::Nothing,
        };
        row("door.guests", "chairs").complete("");
        for (name, reason) in [("door.guests", ""), ("door.letters_bytes", "a letter")] {
            let completed = std::panic::catch_unwind(|| row(name, reason).complete("incomplete"));
            assert!(completed.is_err(), "{name}");
        }
    }
}
