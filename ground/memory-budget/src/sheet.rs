//! The budget sheets: the memory and the disk space that all limits of a table take together.
//!
//! Every line is a name, an amount (a cap times a count), an owner and a reason. Four kinds:
//!
//! * **pool**: anonymous memory behind a pool of the ledger; it is reserved before it is taken.
//! * **fixed**: memory that is always in use (processes, kernel), or whose owner got its limit at
//!   the start and keeps to it.
//! * **file**: pages of files that the kernel may drop at any time. Not part of the sum: they use
//!   free memory.
//! * **disk**: bytes on disk. Not part of the sum of memory; where the operator stated a disk
//!   budget, these lines are a sheet of their own, with a sum of its own.
//!
//! The lines are in the order in which the program needs them, so that the first line that does not
//! fit shows the shortage.

use accounting::{Ledger, PoolSpec, format_size};

use crate::{LimitsError, Table};

/// Kind of a line; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// Anonymous memory behind a pool.
    Pool,
    /// Memory set aside.
    Fixed,
    /// Pages of files the kernel may drop.
    File,
    /// Bytes on disk.
    Disk,
}

impl LineKind {
    /// The word for this kind in the sheet's text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            LineKind::Pool => "pool",
            LineKind::Fixed => "fixed",
            LineKind::File => "file",
            LineKind::Disk => "disk",
        }
    }

    /// Whether it counts against the budget.
    pub fn counts(self) -> bool {
        matches!(self, LineKind::Pool | LineKind::Fixed)
    }
}

/// One line of the budget sheet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SheetLine {
    /// Its name; of a pool, that of the pool.
    pub name: &'static str,
    /// Bytes of the line; of a pool, its cap.
    pub bytes: u64,
    /// The crate that takes it.
    pub owner: &'static str,
    /// Its terms; empty when it is one limit.
    pub made_of: String,
    /// Why it is there.
    pub reason: &'static str,
    /// Kind of the line.
    pub kind: LineKind,
}

/// The amount of a line that is one limit.
pub fn whole(bytes: u64) -> (u64, String) {
    (bytes, String::new())
}

/// The amount of a line that is a count of entries of one size.
pub fn times(count: u64, bytes: u64) -> (u64, String) {
    (count.saturating_mul(bytes), format!("{count} x {}", format_size(bytes)))
}

/// The budget sheet of one table of limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sheet {
    /// The memory budget that the operator stated.
    pub memory_budget_bytes: u64,
    /// The most bytes on disk; 0 where no disk budget was stated.
    pub disk_budget_bytes: u64,
    /// In the order the program needs them.
    pub lines: Vec<SheetLine>,
}

impl Sheet {
    /// The budget sheet of a table.
    pub fn for_table<T: Table>(table: &T) -> Self {
        Self {
            memory_budget_bytes: table.memory_budget_bytes(),
            disk_budget_bytes: table.disk_budget_bytes(),
            lines: table.lines(),
        }
    }

    /// Lines that count against the budget.
    pub fn memory_lines(&self) -> impl Iterator<Item = &SheetLine> {
        self.lines.iter().filter(|line| line.kind.counts())
    }

    /// Lines of the disk.
    pub fn disk_lines(&self) -> impl Iterator<Item = &SheetLine> {
        self.lines.iter().filter(|line| line.kind == LineKind::Disk)
    }

    /// Sum of the lines of the disk.
    pub fn disk_sum_bytes(&self) -> u64 {
        self.disk_lines().fold(0, |sum, line| sum.saturating_add(line.bytes))
    }

    /// The part of the disk budget that no line takes.
    pub fn disk_left_bytes(&self) -> u64 {
        self.disk_budget_bytes.saturating_sub(self.disk_sum_bytes())
    }

    /// The line of that name.
    pub fn line(&self, name: &str) -> Option<&SheetLine> {
        self.lines.iter().find(|line| line.name == name)
    }

    /// Sum of the memory lines.
    pub fn sum_bytes(&self) -> u64 {
        self.memory_lines().fold(0, |sum, line| sum.saturating_add(line.bytes))
    }

    /// The part of the budget that no line takes.
    pub fn left_bytes(&self) -> u64 {
        self.memory_budget_bytes.saturating_sub(self.sum_bytes())
    }

    /// The first line the budget cannot pay, and what is left for it.
    pub fn first_that_does_not_fit(&self) -> Option<(&SheetLine, u64)> {
        let mut left = self.memory_budget_bytes;
        self.memory_lines().find_map(|line| match left.checked_sub(line.bytes) {
            Some(rest) => {
                left = rest;
                None
            }
            None => Some((line, left)),
        })
    }

    /// The pools that hold the program to the sheet. Lines that are not pools are taken off the
    /// budget first. An error names the first pool that does not fit.
    pub fn ledger(&self) -> Result<Ledger, LimitsError> {
        let fixed = self.memory_lines().filter(|line| line.kind == LineKind::Fixed);
        let fixed_bytes = fixed.fold(0_u64, |sum, line| sum.saturating_add(line.bytes));
        let pools = self.lines.iter().filter(|line| line.kind == LineKind::Pool);
        let specs = pools.map(|line| PoolSpec { name: line.name, cap_bytes: line.bytes });
        Ok(Ledger::new(self.memory_budget_bytes.saturating_sub(fixed_bytes), specs)?)
    }
}

#[cfg(test)]
mod tests {
    use accounting::MIB;

    use super::*;
    use crate::{derive, example::ExampleProgram};

    #[test]
    fn the_sum_is_of_memory_alone() {
        let inn: ExampleProgram = derive(8 * MIB).unwrap();
        let sheet = Sheet::for_table(&inn);
        assert_eq!((sheet.sum_bytes(), sheet.left_bytes()), (8 * MIB, 0));
        assert_eq!(sheet.first_that_does_not_fit(), None);
        let more = Sheet { memory_budget_bytes: 5 * MIB, ..sheet };
        let (line, left) = more.first_that_does_not_fit().unwrap();
        assert_eq!((line.name, line.bytes, left), ("cellar", 4 * MIB, MIB));
    }

    #[test]
    fn the_ledger_has_the_pools_of_the_sheet() {
        let inn: ExampleProgram = derive(8 * MIB).unwrap();
        let ledger = Sheet::for_table(&inn).ledger().unwrap();
        assert_eq!(ledger.pool("cellar").unwrap().cap_bytes(), 4 * MIB);
        assert!(ledger.pool("walls").is_none() && ledger.pool("fields").is_none());
        assert_eq!(ledger.budget_bytes(), 6 * MIB);
        let small = Sheet { memory_budget_bytes: 5 * MIB, ..Sheet::for_table(&inn) };
        assert!(small.ledger().unwrap_err().to_string().contains("`cellar`"));
    }
}
