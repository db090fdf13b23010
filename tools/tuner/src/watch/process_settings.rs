//! Settings with which the process was started: the path of its collector's log, and the settings
//! of its runtime. Of the environment only the variables in [`VARIABLES`] are read.

use std::{
    fs::{self, File},
    io::Read,
    path::PathBuf,
};

use accounting::process::Pid;

use crate::gc::Dialect;

/// Environment variables with settings of runtimes and allocators.
const VARIABLES: [&str; 11] = [
    "GHCRTS",
    "GODEBUG",
    "GOGC",
    "GOMEMLIMIT",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "NODE_OPTIONS",
    "MALLOC_ARENA_MAX",
    "MALLOC_CONF",
    "GLIBC_TUNABLES",
];
/// Most bytes read of a command line and of an environment.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Settings as words: arguments, and `NAME=value` of the variables.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessSettings {
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

/// Where a log is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LogLocation {
    /// Path to open.
    pub(crate) path: PathBuf,
    /// Name to show.
    pub(crate) name: String,
}

impl ProcessSettings {
    pub(crate) fn read(pid: Pid) -> Self {
        let words = |name: &str| {
            let mut bytes = Vec::new();
            if let Ok(file) = File::open(format!("/proc/{pid}/{name}")) {
                // Bytes read before an error are used.
                let _ = file.take(TEXT_BYTES_MAX).read_to_end(&mut bytes);
            }
            let words = bytes
                .split(|byte| *byte == 0)
                .map(|word| String::from_utf8_lossy(word).into_owned());
            words.collect::<Vec<_>>()
        };
        let pairs = words("environ").into_iter().filter_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            VARIABLES.contains(&name).then(|| (name.to_owned(), value.to_owned()))
        });
        Self { variables: pairs.collect(), arguments: words("cmdline") }
    }

    #[cfg(test)]
    pub(crate) fn new(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let own = |text: &&str| (*text).to_owned();
        Self {
            arguments: arguments.iter().map(own).collect(),
            variables: variables.iter().map(|(name, value)| (own(name), own(value))).collect(),
        }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Words for the runtime: of GHC those between `+RTS` and `-RTS`; of others those that are
    /// options.
    pub(crate) fn runtime_flags(&self, runtime: &str) -> Vec<&str> {
        let of_variable = |name| self.variable(name).unwrap_or_default().split_ascii_whitespace();
        let mut words: Vec<&str> = match runtime {
            "ghc" => of_variable("GHCRTS").collect(),
            "jvm" => of_variable("JAVA_TOOL_OPTIONS")
                .chain(of_variable("JDK_JAVA_OPTIONS"))
                .chain(of_variable("_JAVA_OPTIONS"))
                .collect(),
            "node" => of_variable("NODE_OPTIONS").collect(),
            _ => Vec::new(),
        };
        let arguments = self.arguments.iter().skip(1).map(String::as_str);
        if runtime != "ghc" {
            words.extend(arguments.filter(|word| word.starts_with('-')));
            return words;
        }
        let mut within = false;
        for word in arguments {
            match word {
                "--RTS" | "--" => break,
                "+RTS" => within = true,
                "-RTS" => within = false,
                word if within => words.push(word),
                _ => {}
            }
        }
        words
    }

    /// Location of the collector's log per the settings; `None` when it writes none, or to a target
    /// that cannot be followed.
    pub(crate) fn log(&self, pid: Pid, dialect: Dialect) -> Option<LogLocation> {
        match dialect {
            Dialect::Ghc => {
                let words = self.runtime_flags("ghc");
                let file = words.iter().rev().find_map(|word| word.strip_prefix("-S"))?;
                if file.is_empty() || file == "stderr" {
                    stream(pid, 2)
                } else {
                    Some(file_of(pid, file))
                }
            }
            Dialect::Go => {
                let debug = self.variable("GODEBUG")?;
                debug
                    .split(',')
                    .any(|word| word == "gctrace=1" || word == "gctrace=2")
                    .then(|| stream(pid, 2))?
            }
            Dialect::Node => {
                let words = self.runtime_flags("node");
                let traces = ["--trace-gc", "--trace_gc"];
                words.iter().any(|word| traces.contains(word)).then(|| stream(pid, 1))?
            }
            Dialect::Jvm => {
                self.runtime_flags("jvm").iter().rev().find_map(|word| jvm_log(pid, word))
            }
        }
    }
}

/// Of one option of a JVM.
fn jvm_log(pid: Pid, word: &str) -> Option<LogLocation> {
    if word == "-verbose:gc" || word == "-Xlog:gc" || word == "-Xlog:gc*" {
        return stream(pid, 1);
    }
    if let Some(file) = word.strip_prefix("-Xloggc:") {
        return Some(file_of(pid, file));
    }
    // -Xlog:what:where:decorations:options
    let (what, rest) = word
        .strip_prefix("-Xlog:")?
        .split_once(':')
        .or_else(|| word.strip_prefix("-Xlog:").map(|what| (what, "")))?;
    if !what.split(',').any(|tags| tags.starts_with("gc") || tags.starts_with("all")) {
        return None;
    }
    let rest = rest.strip_prefix("file=").unwrap_or(rest);
    let file = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next()?,
        None => rest.split(':').next()?,
    };
    match file {
        "" | "stdout" => stream(pid, 1),
        "stderr" => stream(pid, 2),
        // The moment of its start is not known to the second.
        file if file.contains("%t") || file.contains("%hn") => None,
        file => Some(file_of(pid, &file.replace("%p", &pid.to_string()))),
    }
}

/// A file as the process sees it: below its root, and from its folder.
fn file_of(pid: Pid, name: &str) -> LogLocation {
    let folder = if name.starts_with('/') {
        format!("/proc/{pid}/root")
    } else {
        format!("/proc/{pid}/cwd/")
    };
    LogLocation { path: PathBuf::from(folder + name), name: name.to_owned() }
}

/// The file that the process has open as descriptor `number`; `None` if it is not a regular file.
fn stream(pid: Pid, number: u32) -> Option<LogLocation> {
    let path = PathBuf::from(format!("/proc/{pid}/fd/{number}"));
    let is_file = fs::metadata(&path).is_ok_and(|metadata| metadata.is_file());
    let name = fs::read_link(&path).ok()?.display().to_string();
    is_file.then_some(LogLocation { path, name })
}

/// How to start a program of this kind so that there is a log.
pub(crate) fn advice(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Ghc => {
            "Start it with +RTS -S/path/gc.log -RTS (linked with -rtsopts) and it tells its \
             collections and live memory. The binary event log (-l) is not read."
        }
        Dialect::Go => {
            "Start it with GODEBUG=gctrace=1 and its standard error in a file (2> gc.log), and it \
             tells its collections and live memory."
        }
        Dialect::Jvm => {
            "Start it with -Xlog:gc*:file=/path/gc.log (also through JAVA_TOOL_OPTIONS), and it \
             tells its collections and live memory."
        }
        Dialect::Node => {
            "Start it with --trace-gc (also through NODE_OPTIONS) and its standard output in a \
             file (> gc.log), and it tells its collections and live memory."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(dialect: Dialect, arguments: &[&str], variables: &[(&str, &str)]) -> Option<String> {
        ProcessSettings::new(arguments, variables)
            .log(Pid(4_194_999), dialect)
            .map(|place| place.name)
    }

    #[test]
    fn ghc_is_told_between_two_words_and_in_its_variable() {
        let of = |arguments: &[&str]| log(Dialect::Ghc, arguments, &[]);
        assert_eq!(
            of(&["p", "-Sno", "+RTS", "-A4m", "-S/tmp/gc", "-RTS", "-Sno"]).as_deref(),
            Some("/tmp/gc")
        );
        assert_eq!(of(&["p", "--", "+RTS", "-S/tmp/gc"]), None);
        assert_eq!(
            log(Dialect::Ghc, &["p"], &[("GHCRTS", "-I0 -Sgc.log")]).as_deref(),
            Some("gc.log")
        );
        // Standard error of a missing process is not a file.
        assert_eq!(of(&["p", "+RTS", "-S"]), None);
    }

    #[test]
    fn a_jvm_is_told_in_many_ways() {
        let of = |word: &str| log(Dialect::Jvm, &["java", word, "Main"], &[]);
        assert_eq!(
            of("-Xlog:gc*:file=/tmp/gc.log:time,uptime:filecount=3").as_deref(),
            Some("/tmp/gc.log")
        );
        assert_eq!(of("-Xlog:gc:gc-%p.log").as_deref(), Some("gc-4194999.log"));
        assert_eq!(of("-Xlog:gc+heap,safepoint:file=\"/tmp/a:b\"").as_deref(), Some("/tmp/a:b"));
        assert_eq!(of("-Xlog:class+load:file=/tmp/classes"), None);
        assert_eq!(of("-Xloggc:/tmp/old").as_deref(), Some("/tmp/old"));
        assert_eq!(of("-Xlog:gc:file=gc-%t.log"), None);
        let told = [("JAVA_TOOL_OPTIONS", "-Xmx1g -Xlog:gc:file=/tmp/x")];
        assert_eq!(log(Dialect::Jvm, &["java"], &told).as_deref(), Some("/tmp/x"));
    }

    #[test]
    fn go_and_node_write_to_their_streams() {
        let own = ProcessSettings::new(&["node", "--trace-gc"], &[("GODEBUG", "x=1,gctrace=1")]);
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("out")).unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        for dialect in [Dialect::Go, Dialect::Node] {
            let place = own.log(Pid(child.id()), dialect).unwrap();
            assert!(place.name.ends_with("/out"), "{place:?}");
        }
        assert_eq!(ProcessSettings::default().log(Pid(child.id()), Dialect::Go), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
