//! Manual pages and shell completions, made from the command line itself, so that they say what the
//! program does.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap_complete::Shell;

/// Writes them below `share`, where systems look for them: `man/man1`, `bash-completion`, `zsh` and
/// `fish`. Existing files are replaced. Returns the files.
///
/// # Errors
/// When a file cannot be written.
pub fn write_manual(mut command: clap::Command, share: &Path) -> Result<Vec<PathBuf>> {
    let name = command.get_name().to_owned();
    let pages = share.join("man/man1");
    fs::create_dir_all(&pages).with_context(|| format!("creating {}", pages.display()))?;
    clap_mangen::generate_to(command.clone(), &pages)
        .with_context(|| format!("writing manual pages into {}", pages.display()))?;
    let mut written: Vec<_> = fs::read_dir(&pages)
        .with_context(|| format!("reading {}", pages.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let file = path.file_name().map(|file| file.to_string_lossy().into_owned());
            file.is_some_and(|file| {
                file.strip_prefix(&name).is_some_and(|rest| rest.starts_with(['.', '-']))
            })
        })
        .collect();
    written.sort();
    for (shell, file) in [
        (Shell::Bash, format!("bash-completion/completions/{name}")),
        (Shell::Zsh, format!("zsh/vendor-completions/_{name}")),
        (Shell::Fish, format!("fish/vendor_completions.d/{name}.fish")),
    ] {
        let path = share.join(file);
        let folder = path.parent().unwrap_or(share);
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, &name, &mut text);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    #[test]
    fn every_command_has_a_page_and_every_shell_its_completions() {
        let share = tempfile::tempdir().unwrap();
        let command = || {
            Command::new("program").about("What it is").subcommand(
                Command::new("run").about("Starts").arg(Arg::new("memory").long("memory")),
            )
        };
        let written = write_manual(command(), share.path()).unwrap();
        let names: Vec<_> = written
            .iter()
            .map(|path| path.strip_prefix(share.path()).unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            names,
            [
                "man/man1/program-run.1",
                "man/man1/program.1",
                "bash-completion/completions/program",
                "zsh/vendor-completions/_program",
                "fish/vendor_completions.d/program.fish",
            ]
        );
        for path in &written {
            let text = fs::read_to_string(path).unwrap();
            assert!(text.contains("program"), "{}", path.display());
        }
        let page = fs::read_to_string(share.path().join("man/man1/program-run.1")).unwrap();
        assert!(page.contains("memory"), "{page}");
        assert_eq!(write_manual(command(), share.path()).unwrap(), written, "again");
    }
}
