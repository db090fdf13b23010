//! Why a table of limits is refused. Every message names the limits concerned, their values, and
//! what to do.

use std::fmt;

use accounting::{LedgerError, format_size};

use crate::{Preset, overrides::QUOTED_CHARS_MAX};

/// Why there is no table, or not this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// The memory size is too small for the program.
    #[error(
        "{} of memory is too little: line `{line}` of the budget sheet needs {}, and {} is left \
         for it after the lines above it; the smallest size that works is {}",
        format_size(*.memory_bytes),
        format_size(*.line_bytes),
        format_size(*.left_bytes),
        format_size(*.smallest_bytes)
    )]
    TooSmall {
        /// The memory size that a table was asked for.
        memory_bytes: u64,
        /// The first line that does not fit.
        line: &'static str,
        /// Bytes of that line.
        line_bytes: u64,
        /// Bytes that the lines before it leave.
        left_bytes: u64,
        /// The smallest size that can be derived.
        smallest_bytes: u64,
    },
    /// The disk budget leaves too little for what the program is there for.
    #[error(
        "{} of disk is too little: {} go to what lies beside the state (`limits` lists it), and \
         the smallest disk that works is {}; give the node more disk, or less memory",
        format_size(*.disk_bytes),
        format_size(*.beside_bytes),
        format_size(*.smallest_bytes)
    )]
    DiskTooSmall {
        /// The disk budget that was asked for.
        disk_bytes: u64,
        /// Bytes of all other lines of the disk.
        beside_bytes: u64,
        /// The smallest disk budget of this table.
        smallest_bytes: u64,
    },
    /// No preset of that name.
    #[error(
        "there is no preset `{name}`; did you mean `{nearest}`? There are {}; \
         any other size is stated as memory",
        listed(.known)
    )]
    UnknownPreset {
        /// The name that was asked for, cut to 80 characters.
        name: String,
        /// The nearest known.
        nearest: &'static str,
        /// All of them.
        known: &'static [Preset],
    },
    /// No group of that name.
    #[error(
        "there is no group of limits `{group}`; did you mean `[limits.{nearest}]`? There are \
         {known}"
    )]
    UnknownGroup {
        /// The group as the operator wrote it, cut to 80 characters.
        group: String,
        /// The nearest known.
        nearest: String,
        /// All of them.
        known: String,
    },
    /// No limit of that name.
    #[error(
        "there is no limit `{field}` in `[limits.{group}]`; did you mean `{nearest}`? \
         `{program} limits` lists them all"
    )]
    UnknownField {
        /// The program whose limits these are.
        program: &'static str,
        /// The group that the limit was looked for in.
        group: String,
        /// The limit as the operator wrote it, without its group, cut to 80 characters.
        field: String,
        /// The nearest known, with its group when that is another one.
        nearest: String,
    },
    /// A value of the wrong kind.
    #[error("limit `{field}`: {problem}")]
    BadValue {
        /// The limit as `group.field`, or the group alone, cut to 80 characters.
        field: String,
        /// The violated rule and a valid value.
        problem: String,
    },
    /// Limits that contradict one another or the budget.
    #[error("{0}")]
    Broken(Violations),
    /// The pools cannot be made of this table.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// One rule a table breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The limits concerned, as `group.field`; for the budget, the line of the sheet.
    pub names: Vec<&'static str>,
    /// The rule, the values and what to do.
    pub message: String,
}

/// Every rule a table breaks, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violations(pub Vec<Violation>);

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [only] => write!(f, "the limits do not fit together: {}", only.message),
            all => {
                write!(f, "the limits do not fit together in {} places:", all.len())?;
                all.iter().try_for_each(|violation| write!(f, "\n  - {}", violation.message))
            }
        }
    }
}

/// `micro (256 MiB), nano (512 MiB)`.
fn listed(presets: &[Preset]) -> String {
    let listed: Vec<String> = presets
        .iter()
        .map(|preset| format!("{} ({})", preset.name, format_size(preset.memory_bytes)))
        .collect();
    listed.join(", ")
}

/// The known name nearest to what was written: fewest letters to change, first in order among
/// equals. Nothing when there are none.
pub fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Comparing costs the product of the lengths; no name of ours is longer than this.
    let written: Vec<char> = written.chars().take(QUOTED_CHARS_MAX).collect();
    known.into_iter().min_by_key(|name| distance(&written, name))
}

/// Letters to insert, delete or replace to make one of the other.
pub(crate) fn distance(written: &[char], name: &str) -> usize {
    let mut row: Vec<usize> = (0..=written.len()).collect();
    for (above, letter) in name.chars().enumerate() {
        let mut diagonal = above;
        let mut left = above + 1;
        for (cell, own) in row.iter_mut().skip(1).zip(written) {
            let replaced = diagonal + usize::from(*own != letter);
            diagonal = *cell;
            *cell = replaced.min(*cell + 1).min(left + 1);
            left = *cell;
        }
        if let Some(first) = row.first_mut() {
            *first = above + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_letters() {
        for (a, b, letters) in [
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("conections", "connections", 1),
            ("same", "same", 0),
        ] {
            assert_eq!(distance(&a.chars().collect::<Vec<_>>(), b), letters, "{a} {b}");
        }
    }

    #[test]
    fn the_nearest_name_is_found() {
        assert_eq!(
            nearest("conections", ["body_bytes", "connections", "delegations"]),
            Some("connections")
        );
        assert_eq!(nearest(&"x".repeat(100_000), ["a"]), Some("a"));
        assert_eq!(nearest("x", []), None);
    }
}
