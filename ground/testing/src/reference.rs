//! Pages of docs/reference, which tests produce from the programs and compare with the files.
//!
//! A page has an introduction, written by hand, and a section for each program, from the heading
//! `## PROGRAM` to the next one. With [`WRITE`] in the environment a test writes its section
//! instead of comparing it; `make reference` does so for all.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// Environment variable with which sections are written; set to anything but "", "0" or "false".
pub const WRITE: &str = "THIMBLE_WRITE_REFERENCE";

/// Compares the section of `program` in `docs/reference/PAGE` with `text`, or writes it. Only one
/// test at a time may write a page: those of one test program write different ones.
///
/// # Panics
///
/// If they differ, if the page has no such section, or if it cannot be read or written.
#[track_caller]
pub fn check_page(page: &str, program: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(page);
    let read = fs::read_to_string(&path);
    let before = read.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let Some(after) = with_section(&before, program, text) else {
        panic!("docs/reference/{page} has no heading `## {program}`");
    };
    if crate::is_demand(&std::env::var(WRITE).unwrap_or_default()) {
        let written = fs::write(&path, after);
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    } else if let Some(difference) = difference(&before, &after) {
        panic!(
            "docs/reference/{page} is out of date for {program}: `make reference` renews it\n\
             {difference}"
        );
    }
}

/// The page with another section; nothing if it has no such heading.
fn with_section(page: &str, program: &str, text: &str) -> Option<String> {
    let heading = format!("\n## {program}\n");
    let (introduction, rest) = page.split_once(&heading)?;
    let next = rest.find("\n## ").map_or("", |end| rest.split_at(end).1);
    Some(format!("{introduction}{heading}\n{text}{next}"))
}

/// The first line that differs.
fn difference(before: &str, after: &str) -> Option<String> {
    if before == after {
        return None;
    }
    let same = before.lines().zip(after.lines()).take_while(|(old, new)| old == new).count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("(the end)").to_owned();
    Some(format!("line {}\n  page:    {}\n  program: {}", same + 1, line(before), line(after)))
}

/// The `--help` of a program, of its commands and of theirs.
///
/// # Panics
///
/// If it cannot be run or fails.
pub fn commands(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let mut text = String::new();
    add_command(&mut text, program, &name, &[]);
    text
}

fn add_command(text: &mut String, program: &Path, name: &str, command: &[&str]) {
    let output = Command::new(program)
        .args(command)
        .arg("--help")
        // Lines then have the width that the program has without a terminal.
        .env_remove("COLUMNS")
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(output.status.success(), "{name} {command:?} --help: {}", output.status);
    let help = String::from_utf8_lossy(&output.stdout);
    // Writing to a String cannot fail, here and below.
    if !command.is_empty() {
        let _ = writeln!(text, "\n### {name} {}\n", command.join(" "));
    }
    let _ = writeln!(text, "```text");
    for line in help.trim_end().lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let _ = writeln!(text, "```");
    for subcommand in subcommands(&help) {
        add_command(text, program, name, &[command, &[subcommand]].concat());
    }
}

/// The commands that a help text lists, other than `help`.
fn subcommands(help: &str) -> impl Iterator<Item = &str> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    listed
        .map_while(|line| line.strip_prefix("  "))
        // Continued descriptions are indented further.
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
}

/// Name, type and meaning of every metric in a text of OpenMetrics, in the order of names.
pub fn metrics(exposition: &str) -> String {
    let mut metrics: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for line in exposition.lines() {
        let entry = |prefix: &str| line.strip_prefix(prefix)?.split_once(' ');
        if let Some((name, help)) = entry("# HELP ") {
            metrics.entry(name).or_default().1 = help;
        } else if let Some((name, kind)) = entry("# TYPE ") {
            metrics.entry(name).or_default().0 = kind;
        }
    }
    let mut text = String::from("| metric | type | meaning |\n|---|---|---|\n");
    for (name, (kind, help)) in metrics {
        // The samples of a counter have a suffix.
        let suffix = if kind == "counter" { "_total" } else { "" };
        let help = help.trim_end_matches('.');
        let _ = writeln!(text, "| `{name}{suffix}` | {kind} | {help} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Page\n\nText.\n\n## one\n\nOld.\n\n### more\n\n## one-two\n\nSame.\n";

    #[test]
    fn section_ends_at_the_next_heading_of_its_level() {
        let page = with_section(PAGE, "one", "New.\n");
        let expected = "# Page\n\nText.\n\n## one\n\nNew.\n\n## one-two\n\nSame.\n";
        assert_eq!(page.as_deref(), Some(expected));
        let page = with_section(PAGE, "one-two", "New.\n");
        assert_eq!(page, Some(PAGE.replace("Same", "New")));
        assert_eq!(with_section(PAGE, "two", "New.\n"), None);
    }

    #[test]
    fn first_line_that_differs_is_named() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        let text = difference("a\nb\n", "a\nc\n");
        assert_eq!(text.as_deref(), Some("line 2\n  page:    b\n  program: c"));
        let text = difference("a\n", "a\nc\n");
        assert_eq!(text.as_deref(), Some("line 2\n  page:    (the end)\n  program: c"));
    }

    #[test]
    fn commands_are_found_in_a_help_text() {
        let help = "About\n\nCommands:\n  run    Starts\n         and runs\n  long-name\n          \
                    Text\n  help   Print\n\nOptions:\n  -h\n";
        assert_eq!(subcommands(help).collect::<Vec<_>>(), ["run", "long-name"]);
        assert_eq!(subcommands("About\n\nOptions:\n  -h\n").count(), 0);
    }

    #[test]
    fn metrics_are_listed_by_name_with_the_suffix_of_their_samples() {
        let text = metrics(
            "# HELP b Second.\n# TYPE b counter\nb_total 1\n# HELP a First\n# TYPE a gauge\na 1\n\
             # EOF\n",
        );
        let rows = "| `a` | gauge | First |\n| `b_total` | counter | Second |\n";
        assert_eq!(text, format!("| metric | type | meaning |\n|---|---|---|\n{rows}"));
    }
}
