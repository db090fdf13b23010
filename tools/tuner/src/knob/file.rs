//! Knob files: TOML, shipped for runtimes, written by users for programs.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Deserializer};

use super::{
    ArgumentPosition, KNOBS_MAX, Knob, Suffix, TEXT_BYTES_MAX, VALUES_MAX, Value, Way,
    setting::CONFIG,
};
use crate::gc::Dialect;

/// Largest knob file.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Files that come with the program.
const SHIPPED: [(&str, &str); 10] = [
    ("ghc", include_str!("shipped/ghc.toml")),
    ("go", include_str!("shipped/go.toml")),
    ("jvm", include_str!("shipped/jvm.toml")),
    ("node", include_str!("shipped/node.toml")),
    ("dotnet", include_str!("shipped/dotnet.toml")),
    ("glibc", include_str!("shipped/glibc.toml")),
    ("jemalloc", include_str!("shipped/jemalloc.toml")),
    ("mimalloc", include_str!("shipped/mimalloc.toml")),
    ("thimble", include_str!("shipped/thimble.toml")),
    ("thimble-relay", include_str!("shipped/thimble-relay.toml")),
];

/// Content of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Runtime {
    /// As `--runtime` takes it.
    pub(crate) name: String,
    /// Name of the runtime, as reports show it.
    pub(crate) title: String,
    pub(crate) knobs: Vec<Knob>,
    /// How its collector is made to report.
    pub(crate) log: Option<Log>,
    /// Arguments with which a program of this runtime prints the settings it has.
    pub(crate) help: Vec<String>,
}

/// The report of a collector.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Log {
    pub(crate) dialect: Dialect,
    /// `{file}` in it stands for a file of its own; without it, the log is part of the program's
    /// output.
    pub(crate) way: Way,
}

impl Log {
    /// Whether it goes to a file of its own.
    pub(crate) fn has_file(&self) -> bool {
        let mut words = self.way.argument.iter().chain([&self.way.text]);
        words.any(|word| word.contains("{file}"))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    title: String,
    collector: Option<Dialect>,
    #[serde(default)]
    help: Vec<String>,
    #[serde(default)]
    log: Way,
    #[serde(default)]
    pass: Way,
    #[serde(default)]
    knob: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    why: String,
    values: Vec<toml::Value>,
    relative: Option<Relative>,
    suffix: Option<Suffix>,
    #[serde(default, deserialize_with = "words")]
    argument: Vec<String>,
    #[serde(default)]
    place: ArgumentPosition,
    environment: Option<String>,
    text: Option<String>,
    join: Option<String>,
    listed: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Relative {
    Peak,
}

/// Names of the files that come with the program.
pub(crate) fn shipped_names() -> Vec<&'static str> {
    SHIPPED.iter().map(|(name, _)| *name).collect()
}

/// The file that comes with the program under this name.
pub(crate) fn shipped(name: &str) -> Result<Runtime> {
    let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) else {
        bail!("no runtime is called `{name}`; there are {}", shipped_names().join(", "));
    };
    parse(text).with_context(|| format!("the settings of {name}"))
}

/// A file of the user's.
pub(crate) fn read(path: &Path) -> Result<Runtime> {
    let shown = path.display();
    let text = setup::read_text(path).with_context(|| format!("reading the knob file {shown}"))?;
    ensure!(
        text.len() as u64 <= FILE_BYTES_MAX,
        "the knob file {shown} has more than {} KiB",
        FILE_BYTES_MAX >> 10
    );
    parse(&text).with_context(|| format!("the knob file {shown}"))
}

fn parse(text: &str) -> Result<Runtime> {
    let file: File = toml::from_str(text)?;
    ensure!(
        file.knob.len() <= KNOBS_MAX,
        "{} knobs, but {KNOBS_MAX} at most are searched",
        file.knob.len()
    );
    short(&file.name, "name")?;
    short(&file.title, "title")?;
    let pass = file.pass;
    let knobs: Vec<Knob> = file
        .knob
        .into_iter()
        .map(|entry| {
            let name = entry.name.clone();
            knob(entry, &pass).with_context(|| format!("knob `{name}`"))
        })
        .collect::<Result<_>>()?;
    for (index, knob) in knobs.iter().enumerate() {
        ensure!(
            !knobs.iter().take(index).any(|other| other.name == knob.name),
            "knob `{}` is there twice",
            knob.name
        );
    }
    let log = match file.collector {
        Some(dialect) => {
            check(&file.log)?;
            Some(Log { dialect, way: file.log })
        }
        None => None,
    };
    for word in &file.help {
        short(word, "help")?;
    }
    Ok(Runtime { name: file.name, title: file.title, knobs, log, help: file.help })
}

fn knob(entry: Entry, pass: &Way) -> Result<Knob> {
    short(&entry.name, "name")?;
    ensure!(!entry.name.is_empty(), "a knob has a name");
    ensure!(
        (1..=VALUES_MAX).contains(&entry.values.len()),
        "{} values, but it takes 1 to {VALUES_MAX}",
        entry.values.len()
    );
    short(&entry.why, "why")?;
    let values = entry
        .values
        .iter()
        .map(|value| self::value(value, entry.relative, entry.suffix))
        .collect::<Result<_>>()?;
    let Entry { argument, place, environment, join, .. } = entry;
    let text = entry.text.clone().unwrap_or_default();
    let mut way = if argument.is_empty() && environment.is_none() {
        Way { text, ..pass.clone() }
    } else {
        Way { argument, place, environment, join, text }
    };
    check(&way)?;
    let has_value = |word: &String| word.contains("{}") || word.contains(CONFIG);
    ensure!(
        entry.text.is_some() || way.argument.is_empty() || way.argument.iter().any(has_value),
        "its argument has no `{{}}` for the value"
    );
    if way.text.is_empty() {
        way.text = "{}".to_owned();
    }
    Ok(Knob { name: entry.name, why: entry.why, values, way, listed: entry.listed })
}

fn value(value: &toml::Value, relative: Option<Relative>, suffix: Option<Suffix>) -> Result<Value> {
    let text = match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        toml::Value::Boolean(truth) => truth.to_string(),
        _ => bail!("a value is a text or a number, and not {value}"),
    };
    short(&text, "value")?;
    let Some(Relative::Peak) = relative else { return Ok(Value::Fixed(text)) };
    let part: f64 = text.parse().with_context(|| format!("`{text}` is no part of the peak"))?;
    ensure!(
        part > 0.0 && part <= 10.0,
        "{part} is no part of the peak: more than 0, and 10 at most"
    );
    Ok(Value::OfPeak(part, suffix.context("`relative` wants a `suffix`: m, MiB, hex or nothing")?))
}

fn check(way: &Way) -> Result<()> {
    ensure!(
        !way.argument.is_empty() || way.environment.is_some(),
        "it does not say how a value gets to the program: `argument` or `environment`"
    );
    for word in &way.argument {
        short(word, "argument")?;
    }
    if let Some(name) = &way.environment {
        short(name, "environment")?;
        ensure!(
            !name.is_empty() && !name.contains(['=', '\0']),
            "`{name}` is no name of a variable"
        );
    }
    Ok(())
}

fn short(text: &str, what: &str) -> Result<()> {
    ensure!(
        text.len() <= TEXT_BYTES_MAX,
        "its {what} has {} bytes, but {TEXT_BYTES_MAX} are the most",
        text.len()
    );
    ensure!(!text.contains('\0'), "its {what} has a zero byte");
    Ok(())
}

/// One word, or several.
pub(super) fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Words {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Words::deserialize(deserializer)? {
        Words::One(word) => vec![word],
        Words::Many(words) => words,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_file_is_sound() {
        for name in shipped_names() {
            let runtime = shipped(name).unwrap();
            assert_eq!(runtime.name, name);
            assert!(runtime.knobs.len() >= 3, "{name}");
            for knob in &runtime.knobs {
                assert!(knob.why.ends_with('.') && knob.why.len() > 20, "{name} {}", knob.name);
            }
        }
        assert!(shipped("perl").unwrap_err().to_string().contains("jemalloc"));
    }

    #[test]
    fn a_file_of_ones_own_needs_only_names_values_and_how_to_pass_them() {
        let runtime = parse(
            "name = 'geth'\ntitle = 'geth'\n[[knob]]\nname = '--cache'\nwhy = 'Caches.'\nvalues = [16, '64']\nargument = '--cache={}'\n",
        )
        .unwrap();
        let knob = runtime.knobs.first().unwrap();
        assert_eq!(knob.values, [Value::Fixed("16".into()), Value::Fixed("64".into())]);
        assert_eq!(knob.way.place, ArgumentPosition::End);
        assert_eq!(knob.way.text, "{}");
    }

    #[test]
    fn what_a_file_lacks_is_named() {
        let refused = |knob: &str| {
            let text = format!("name = 'x'\ntitle = 'x'\n[[knob]]\nname = 'k'\nwhy = 'w'\n{knob}");
            format!("{:#}", parse(&text).unwrap_err())
        };
        for (knob, words) in [
            ("values = []\nargument = '{}'", "0 values, but it takes 1 to 16"),
            ("values = [1]", "how a value gets to the program"),
            ("values = [1]\nargument = '--x'", "no `{}` for the value"),
            ("values = [[1]]\nargument = '{}'", "a text or a number"),
            (
                "values = ['a']\nrelative = 'peak'\nsuffix = 'm'\nargument = '{}'",
                "no part of the peak",
            ),
            ("values = [0.5]\nrelative = 'peak'\nargument = '{}'", "wants a `suffix`"),
            ("values = [1]\nenvironment = 'A=B'", "no name of a variable"),
            ("values = [1]\nargument = '{}'\nodd = 1", "odd"),
        ] {
            let said = refused(knob);
            assert!(said.contains(words), "{knob}: {said}");
        }
    }
}
