//! Methods that a program's table of limits must have, and the table of a memory size.

use accounting::MIB;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Limit, LimitsError, Rules, Sheet, SheetLine, check, limit::follow, nearest, overrides::quoted,
};

/// A named size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Name by which [`preset`] finds it.
    pub name: &'static str,
    /// Memory size that the table is derived from.
    pub memory_bytes: u64,
}

/// A program's table of limits, implemented by [`crate::table!`].
///
/// It serialises to an object with the numbers `memory_budget_bytes` and, where the program has a
/// disk budget, `disk_budget_bytes`, and groups; each group is an object of limits, which are whole
/// numbers up to 64 bits, or truth values. Names end in their unit; those that [`crate::is_bytes`]
/// recognises are sizes.
pub trait Table: Clone + Serialize + DeserializeOwned + 'static {
    /// The program, as its operator calls it: `PROGRAM limits` lists the table.
    const PROGRAM: &'static str;
    /// LimitValue sizes, at least one. They are derived like any other size.
    const PRESETS: &'static [Preset];
    /// The rows of all limits, by group.
    const LIMITS: &'static [&'static [Limit<Self>]];

    /// The table of a memory size, before anything follows. Limits never fall when the size grows,
    /// and stay below the first size the program names.
    fn unlinked(memory_bytes: u64) -> Self;

    /// The table of a memory size, with what follows from it, whether or not it fits.
    fn scaled(memory_bytes: u64) -> Self {
        let mut table = Self::unlinked(memory_bytes);
        table.follow(|_| false);
        table
    }

    /// The most memory the program's processes may take together, stated by the operator.
    fn memory_budget_bytes(&self) -> u64;

    /// The most bytes on disk; 0 where the program has no disk budget, or none was stated.
    fn disk_budget_bytes(&self) -> u64 {
        0
    }

    /// The lines of the budget sheet, in the order in which the program needs them.
    fn lines(&self) -> Vec<SheetLine>;

    /// Sets every limit that is a consequence of others, except those that `stays` names (as
    /// `group.field`).
    fn follow(&mut self, stays: impl Fn(&str) -> bool) {
        follow(self, stays);
    }

    /// Reports the broken rules to `rules`. Whether the sheet fits the budget is checked elsewhere.
    fn rules(&self, rules: &mut Rules);

    /// The row of `group.field`.
    fn limit(name: &str) -> Option<&'static Limit<Self>> {
        Self::LIMITS.iter().copied().flatten().find(|limit| limit.name == name)
    }

    /// The reason for `group.field`; empty for a name that does not exist.
    fn reason(group: &str, field: &str) -> &'static str {
        Self::limit(&format!("{group}.{field}")).map_or("", |limit| limit.reason)
    }
}

/// The table for a program that may take `memory_bytes` in all (whole MiB of it), or which line of
/// the budget sheet does not fit and what size would work.
pub fn derive<T: Table>(memory_bytes: u64) -> Result<T, LimitsError> {
    // Whole MiB, so that the size can be written down exactly and read back.
    let table = T::scaled(memory_bytes - memory_bytes % MIB);
    let sheet = Sheet::for_table(&table);
    if let Some((line, left_bytes)) = sheet.first_that_does_not_fit() {
        let smallest_bytes = smallest_bytes::<T>();
        let (line, line_bytes) = (line.name, line.bytes);
        return Err(LimitsError::TooSmall {
            memory_bytes,
            line,
            line_bytes,
            left_bytes,
            smallest_bytes,
        });
    }
    check(&table)?;
    Ok(table)
}

/// The smallest size that can be derived. Below the first size it names nothing of a table shrinks
/// any more: what that table sums to is what the program needs at least.
pub fn smallest_bytes<T: Table>() -> u64 {
    Sheet::for_table(&T::scaled(0)).sum_bytes().next_multiple_of(MIB)
}

/// The table of a named size, or the nearest name and all there are.
pub fn preset<T: Table>(name: &str) -> Result<T, LimitsError> {
    match T::PRESETS.iter().find(|preset| preset.name == name) {
        Some(preset) => derive(preset.memory_bytes),
        None => Err(LimitsError::UnknownPreset {
            name: quoted(name),
            nearest: nearest(name, T::PRESETS.iter().map(|preset| preset.name)).unwrap_or_default(),
            known: T::PRESETS,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::ExampleProgram;

    #[test]
    fn a_size_is_derived_in_whole_mib() {
        let inn: ExampleProgram = derive(20 * MIB + 1).unwrap();
        assert_eq!(inn.memory_budget_bytes, 20 * MIB);
        assert_eq!(inn, derive(20 * MIB).unwrap());
    }

    #[test]
    fn too_little_memory_names_the_line_and_the_smallest_size() {
        let smallest = smallest_bytes::<ExampleProgram>();
        assert_eq!(smallest, 8 * MIB);
        derive::<ExampleProgram>(smallest).unwrap();
        let text = derive::<ExampleProgram>(smallest - 1).unwrap_err().to_string();
        for part in ["7.99 MiB", "`cellar`", "4 MiB", "3 MiB is left", "is 8 MiB"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_preset_is_a_size_with_a_name() {
        assert_eq!(preset::<ExampleProgram>("large").unwrap(), derive(32 * MIB).unwrap());
        let text = preset::<ExampleProgram>("lrge").unwrap_err().to_string();
        for part in ["`lrge`", "`large`", "small (8 MiB)", "large (32 MiB)"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(
            preset::<ExampleProgram>(&"x".repeat(100_000)).unwrap_err().to_string().len() < 500
        );
    }

    #[test]
    fn reasons_are_found_by_group_and_field() {
        assert_eq!(ExampleProgram::reason("door", "guests"), "chairs");
        assert_eq!(ExampleProgram::reason("door", "guest"), "");
    }
}
