//! Which knobs are turned to which values, and the command line and environment that come of it.

use std::collections::BTreeMap;

use super::{ArgumentPosition, By, Knob, Way};

/// A value of a knob, by their places in the list of knobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KnobChoice {
    pub(crate) knob: usize,
    pub(crate) value: usize,
}

/// Knobs that are turned; all others are left as the user's command has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Setting(BTreeMap<usize, usize>);

impl Setting {
    /// One knob alone.
    pub(crate) fn single(choice: KnobChoice) -> Self {
        Self::default().with(choice)
    }

    pub(crate) fn with(&self, choice: KnobChoice) -> Self {
        let mut setting = self.clone();
        setting.0.insert(choice.knob, choice.value);
        setting
    }

    pub(crate) fn without(&self, knob: usize) -> Self {
        let mut setting = self.clone();
        setting.0.remove(&knob);
        setting
    }

    pub(crate) fn value_of(&self, knob: usize) -> Option<usize> {
        self.0.get(&knob).copied()
    }

    pub(crate) fn is_default(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn choices(&self) -> impl Iterator<Item = KnobChoice> {
        self.0.iter().map(|(knob, value)| KnobChoice { knob: *knob, value: *value })
    }

    /// The knobs that are turned, in their order, with their values.
    pub(crate) fn turned<'a>(&self, knobs: &'a [Knob], peak_bytes: u64) -> Vec<(&'a Knob, String)> {
        let turned = |choice: KnobChoice| {
            let knob = knobs.get(choice.knob)?;
            Some((knob, knob.values.get(choice.value)?.text(peak_bytes)))
        };
        self.choices().filter_map(turned).collect()
    }

    /// Names and values, in the order of the knobs.
    pub(crate) fn names_and_values(
        &self,
        knobs: &[Knob],
        peak_bytes: u64,
    ) -> Vec<(String, String)> {
        let turned = self.turned(knobs, peak_bytes).into_iter();
        turned.map(|(knob, value)| (knob.name.clone(), value)).collect()
    }
}

/// In arguments, the file that a knob's text is a line of.
pub(crate) const CONFIG: &str = "{config}";

/// A command with a setting applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TunedCommand {
    pub(crate) command: Vec<String>,
    /// Variables in addition to those that the command gets anyway.
    pub(crate) environment: Vec<(String, String)>,
    /// Lines of a configuration file, which the command is given as the file [`CONFIG`] stands
    /// for.
    pub(crate) config: Vec<String>,
    front: Vec<String>,
    end: Vec<(Vec<String>, Vec<String>)>,
}

impl TunedCommand {
    /// The user's command as it is.
    pub(crate) fn new(command: &[String]) -> Self {
        Self { command: command.to_vec(), ..Self::default() }
    }

    /// Turns knobs. `inherited` is a variable's value in the environment, to which a joined one is
    /// added.
    pub(crate) fn with_knobs(
        command: &[String],
        texts: &[(&Way, String)],
        by: By,
        inherited: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let mut applied = Self::new(command);
        for (way, value) in texts {
            let text = way.text.replace("{}", value);
            if way.is_by_argument(by) {
                applied.add_argument(way, &text);
                continue;
            }
            let Some(variable) = &way.environment else { continue };
            let known = applied.environment.iter_mut().find(|(name, _)| name == variable);
            match (known, &way.join) {
                (Some((_, known)), Some(join)) => {
                    known.push_str(join);
                    known.push_str(&text);
                }
                (Some((_, known)), None) => *known = text,
                (None, join) => {
                    let before = inherited(variable).filter(|text| !text.is_empty());
                    let text = match (before, join) {
                        (Some(before), Some(join)) => format!("{before}{join}{text}"),
                        _ => text,
                    };
                    applied.environment.push((variable.clone(), text));
                }
            }
        }
        applied.finish()
    }

    fn add_argument(&mut self, way: &Way, text: &str) {
        let template = &way.argument;
        if template.iter().any(|word| word.contains(CONFIG)) {
            self.config.push(text.to_owned());
            if !self.end.iter().any(|(known, _)| known == template) {
                self.end.push((template.clone(), Vec::new()));
            }
            return;
        }
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if !template.iter().any(|word| word == "{}") {
            let filled = template.iter().map(|word| word.replace("{}", text)).collect();
            match way.place {
                ArgumentPosition::First => self.front.extend::<Vec<String>>(filled),
                ArgumentPosition::End => self.end.push((filled, Vec::new())),
            }
            return;
        }
        match way.place {
            ArgumentPosition::First => self.front.extend(fill(template, &words)),
            ArgumentPosition::End => {
                match self.end.iter_mut().find(|(known, _)| known == template) {
                    Some((_, all)) => all.extend(words),
                    None => self.end.push((template.clone(), words)),
                }
            }
        }
    }

    /// The same, with the file of its lines at this path.
    pub(crate) fn with_config_at(mut self, path: &str) -> Self {
        for word in &mut self.command {
            *word = word.replace(CONFIG, path);
        }
        self
    }

    fn finish(mut self) -> Self {
        let front = std::mem::take(&mut self.front);
        let behind = self.command.len().min(1);
        self.command.splice(behind..behind, front);
        for (template, words) in std::mem::take(&mut self.end) {
            self.command.extend(fill(&template, &words));
        }
        self
    }
}

fn fill(template: &[String], words: &[String]) -> Vec<String> {
    let one = |word: &String| if word == "{}" { words.to_vec() } else { vec![word.clone()] };
    template.iter().flat_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{read, shipped};
    use super::*;

    fn turned(
        runtime: &str,
        command: &[&str],
        values: &[(&str, &str)],
        by: By,
    ) -> (String, String) {
        let runtime = shipped(runtime).unwrap();
        let texts: Vec<_> = values
            .iter()
            .map(|(name, value)| {
                let knob = runtime.knobs.iter().find(|knob| knob.name == *name).unwrap();
                (&knob.way, (*value).to_owned())
            })
            .collect();
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let inherited = |name: &str| (name == "GODEBUG").then(|| "http2client=0".to_owned());
        let applied = TunedCommand::with_knobs(&command, &texts, by, inherited);
        let environment: Vec<String> =
            applied.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        (applied.command.join(" "), environment.join(" "))
    }

    #[test]
    fn values_get_to_the_program_as_its_runtime_reads_them() {
        let ghc = [("-A", "4m"), ("old generation", "-c")];
        assert_eq!(
            turned("ghc", &["node", "run"], &ghc, By::Argument),
            ("node run +RTS -A4m -c -RTS".into(), String::new())
        );
        assert_eq!(
            turned("ghc", &["node", "run"], &ghc, By::Environment),
            ("node run".into(), "GHCRTS=-A4m -c".into())
        );
        assert_eq!(
            turned("jvm", &["java", "-jar", "x.jar"], &[("MaxHeapFreeRatio", "10")], By::Argument)
                .0,
            "java -XX:MinHeapFreeRatio=5 -XX:MaxHeapFreeRatio=10 -jar x.jar"
        );
        assert_eq!(
            turned("go", &["geth"], &[("GOGC", "50"), ("madvdontneed", "1")], By::Argument),
            ("geth".into(), "GOGC=50 GODEBUG=http2client=0,madvdontneed=1".into())
        );
        assert_eq!(
            turned("jemalloc", &["x"], &[("narenas", "1"), ("thp", "never")], By::Argument).1,
            "MALLOC_CONF=narenas:1,thp:never"
        );
    }

    #[test]
    fn arguments_of_a_users_file_stand_behind_the_command() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "name='x'\ntitle='x'\n[[knob]]\nname='cache'\nwhy='w'\nvalues=[1]\nargument=['--cache','{}']\n[[knob]]\nname='pool'\nwhy='w'\nvalues=[1]\nargument='--pool={}'\n";
        std::fs::write(file.path(), text).unwrap();
        let runtime = read(file.path()).unwrap();
        let texts: Vec<_> = runtime.knobs.iter().map(|knob| (&knob.way, "7".to_owned())).collect();
        let applied = TunedCommand::with_knobs(&["p".to_owned()], &texts, By::Argument, |_| None);
        assert_eq!(applied.command.join(" "), "p --cache 7 --pool=7");
    }

    #[test]
    fn lines_of_a_configuration_file_are_gathered() {
        let runtime = shipped("thimble").unwrap();
        let texts: Vec<_> =
            runtime.knobs.iter().take(2).map(|knob| (&knob.way, "7".to_owned())).collect();
        let applied = TunedCommand::with_knobs(
            &["thimble".to_owned(), "run".to_owned()],
            &texts,
            By::Argument,
            |_| None,
        );
        assert_eq!(applied.config.len(), 2);
        assert!(
            applied
                .config
                .iter()
                .all(|line| line.starts_with("limits.governor.") && line.ends_with("= 7"))
        );
        assert_eq!(applied.with_config_at("/x").command.join(" "), "thimble run --config /x");
    }

    #[test]
    fn a_setting_is_its_knobs_and_values() {
        let first = KnobChoice { knob: 0, value: 1 };
        let setting = Setting::single(first).with(KnobChoice { knob: 2, value: 0 });
        assert_eq!(setting.value_of(2), Some(0));
        assert_eq!(setting.without(2), Setting::single(first));
        assert!(setting.without(0).without(2).is_default());
    }
}
