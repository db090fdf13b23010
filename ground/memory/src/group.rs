//! Whether the process group has room for the program's memory budget.

use std::path::PathBuf;

use accounting::{cgroup::Cgroup, format_size};
use thiserror::Error;

/// A process group that may take less than the smallest budget: its processes would be killed one
/// after the other.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the process group {} may take {} of memory, and the smallest size that works is {smallest}: give \
     the group the budget of {}, or at least {smallest} and start with --memory {}",
    .directory.display(), format_size(*.cap_bytes), format_size(*.budget_bytes),
    argument(*.smallest_bytes), smallest = format_size(*.smallest_bytes)
)]
pub struct GroupTooSmall {
    /// Directory of the process group in its mounted hierarchy.
    pub directory: PathBuf,
    /// The smallest limit of the group and its ancestors.
    pub cap_bytes: u64,
    /// The smallest budget of the program.
    pub smallest_bytes: u64,
    /// The budget that was stated.
    pub budget_bytes: u64,
}

/// Refuses a group that may take less than the smallest budget. A cap between that and the budget
/// will be hit before the program's own limits are: `hit_first` explains the consequence, in a
/// warning.
pub fn check_group(
    group: Option<&Cgroup>,
    smallest_bytes: u64,
    budget_bytes: u64,
    hit_first: &str,
) -> Result<(), GroupTooSmall> {
    let Some(group) = group else { return Ok(()) };
    let Some(cap_bytes) = group.memory().ok().and_then(|memory| memory.limit_bytes) else {
        return Ok(());
    };
    if cap_bytes < smallest_bytes {
        let directory = group.directory().to_owned();
        return Err(GroupTooSmall { directory, cap_bytes, smallest_bytes, budget_bytes });
    }
    if cap_bytes < budget_bytes {
        tracing::warn!(
            "the process group may take {} but the budget is {}: {hit_first}; give the group the \
             budget, or start with --memory {}",
            format_size(cap_bytes),
            format_size(budget_bytes),
            argument(cap_bytes)
        );
    }
    Ok(())
}

/// A size as it is given to `--memory`.
fn argument(bytes: u64) -> String {
    format_size(bytes).replace(' ', "")
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use accounting::{
        MIB,
        cgroup::{GroupPath, Version},
    };

    use super::*;

    /// A folder that reads like a group of version 2.
    fn group(folder: &Path, cap: &str) -> Cgroup {
        fs::write(folder.join("memory.max"), cap).unwrap();
        fs::write(folder.join("memory.current"), "1\n").unwrap();
        fs::write(folder.join("memory.stat"), "anon 1\nfile 0\nshmem 0\npgmajfault 0\n").unwrap();
        fs::write(folder.join("memory.events"), "oom_kill 0\n").unwrap();
        let place = GroupPath { directory: folder.to_owned(), mount: folder.to_owned() };
        Cgroup::at(Version::V2, place, None)
    }

    #[test]
    fn a_group_without_room_for_the_smallest_budget_is_refused_with_all_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let check = |cap: u64, budget: u64| {
            let group = group(folder.path(), &format!("{cap}\n"));
            check_group(Some(&group), 64 * MIB, budget, "workers go first")
        };
        let text = check(48 * MIB, 128 * MIB).unwrap_err().to_string();
        for words in [
            &folder.path().display().to_string()[..],
            "may take 48 MiB",
            "the smallest size that works is 64 MiB",
            "the budget of 128 MiB",
            "--memory 64MiB",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
        assert_eq!(check(64 * MIB, 128 * MIB), Ok(()));
        assert_eq!(check(128 * MIB, 128 * MIB), Ok(()));
        let endless = group(folder.path(), "max\n");
        assert_eq!(check_group(Some(&endless), 64 * MIB, 128 * MIB, ""), Ok(()));
        assert_eq!(check_group(None, 64 * MIB, 128 * MIB, ""), Ok(()));
    }
}
