//! A setting as an operator uses it: a command line, an environment, a drop-in for systemd.

use std::path::Path;

use serde::Serialize;

use crate::knob::{By, Knob, Setting, TunedCommand, Way};

/// File name that stands for a configuration file of its own.
const CONFIG_NAME: &str = "tuned.toml";

/// A setting, ready to be used.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Paste {
    /// For a shell, variables included.
    pub(crate) command_line: String,
    /// Names and values of the variables alone.
    pub(crate) environment: Vec<(String, String)>,
    /// Lines of a configuration file, called [`CONFIG_NAME`] in the command line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) config: Vec<String>,
    /// For `systemctl edit`.
    pub(crate) systemd: String,
    /// Each knob with its value and what it does.
    pub(crate) why: Vec<KnobRationale>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct KnobRationale {
    pub(crate) knob: String,
    pub(crate) value: String,
    pub(crate) why: String,
}

/// `cap_bytes`: the cap that was asked for; `program`: where the command's program is.
pub(crate) fn paste(
    command: &[String],
    knobs: &[Knob],
    setting: &Setting,
    peak_bytes: u64,
    by: By,
    (cap_bytes, program): (Option<u64>, Option<&Path>),
) -> Paste {
    let turned = setting.turned(knobs, peak_bytes);
    let ways: Vec<(&Way, String)> =
        turned.iter().map(|(knob, value)| (&knob.way, value.clone())).collect();
    let applied = TunedCommand::with_knobs(command, &ways, by, |name| std::env::var(name).ok());
    let config = applied.config.clone();
    let applied = applied.with_config_at(CONFIG_NAME);
    let words: Vec<String> = applied.command.iter().map(|word| quoted(word)).collect();
    let variables =
        applied.environment.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
    let command_line = variables.chain(words).collect::<Vec<_>>().join(" ");
    let why = |(knob, value): (&Knob, String)| KnobRationale {
        knob: knob.name.clone(),
        value,
        why: knob.why.clone(),
    };
    Paste {
        command_line,
        systemd: drop_in(&applied, applied.command != command, cap_bytes, program),
        environment: applied.environment,
        config,
        why: turned.into_iter().map(why).collect(),
    }
}

fn drop_in(
    applied: &TunedCommand,
    is_command_changed: bool,
    cap_bytes: Option<u64>,
    program: Option<&Path>,
) -> String {
    let mut text = String::from("[Service]\n");
    for (name, value) in &applied.environment {
        text.push_str(&format!("Environment=\"{}\"\n", escaped(&format!("{name}={value}"))));
    }
    if is_command_changed {
        // A unit wants the whole path.
        let path = program.map(|path| path.to_string_lossy().into_owned());
        let command = path.iter().chain(applied.command.iter().skip(usize::from(path.is_some())));
        let words: Vec<String> = command
            .map(
                |word| if is_plain(word) { word.clone() } else { format!("\"{}\"", escaped(word)) },
            )
            .collect();
        text.push_str(&format!("ExecStart=\nExecStart={}\n", words.join(" ")));
    }
    if let Some(bytes) = cap_bytes {
        text.push_str(&format!("MemoryMax={bytes}\n"));
    }
    text
}

fn is_plain(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@".contains(c);
    !word.is_empty() && word.chars().all(plain)
}

/// For a shell.
pub(crate) fn quoted(word: &str) -> String {
    if is_plain(word) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// Within double quotes of a unit file.
fn escaped(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knob::{KnobChoice, shipped};

    fn of(runtime: &str, names: &[&str], by: By) -> Paste {
        let knobs = shipped(runtime).unwrap().knobs;
        let setting = names.iter().fold(Setting::default(), |setting, name| {
            let knob = knobs.iter().position(|knob| knob.name == *name).unwrap();
            setting.with(KnobChoice { knob, value: 0 })
        });
        let command = ["./node".to_owned(), "it's".to_owned()];
        paste(
            &command,
            &knobs,
            &setting,
            100 << 20,
            by,
            (Some(64 << 20), Some(Path::new("/opt/node"))),
        )
    }

    #[test]
    fn a_setting_can_be_pasted_in_three_ways() {
        let ghc = of("ghc", &["-A", "old generation"], By::Argument);
        assert_eq!(ghc.command_line, r"./node 'it'\''s' +RTS -c -A1m -RTS");
        assert_eq!(
            ghc.systemd,
            "[Service]\nExecStart=\nExecStart=/opt/node \"it's\" +RTS -c -A1m -RTS\nMemoryMax=67108864\n"
        );
        let ghc = of("ghc", &["-A", "old generation"], By::Environment);
        assert_eq!(ghc.command_line, r"GHCRTS='-c -A1m' ./node 'it'\''s'");
        assert_eq!(ghc.systemd, "[Service]\nEnvironment=\"GHCRTS=-c -A1m\"\nMemoryMax=67108864\n");
        assert!(ghc.why.iter().all(|why| why.why.ends_with('.')));
        let thimble = of("thimble", &["idle_millis"], By::Argument);
        assert!(thimble.command_line.ends_with("--config tuned.toml"));
        assert_eq!(thimble.config, ["limits.governor.idle_millis = 100"]);
    }
}
