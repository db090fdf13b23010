//! Settings that can be tried: a file for each runtime, and files of the user's own in the same
//! form.
//!
//! A knob has a name, a sentence with its effect and cost, the values that are tried in addition to
//! the default, and its delivery to the program: as arguments or in a variable of the environment.
//!
//! Bounds: the bytes of a file, [`KNOBS_MAX`], [`VALUES_MAX`] and [`TEXT_BYTES_MAX`]. Must never
//! know: the effect of a setting.

mod file;
mod setting;

pub(crate) use self::{
    file::{Log, Runtime, read, shipped, shipped_names},
    setting::{KnobChoice, Setting, TunedCommand},
};

use serde::Deserialize;

/// Knobs of one search, over all files.
pub(crate) const KNOBS_MAX: usize = 64;
/// Values of one knob.
pub(crate) const VALUES_MAX: usize = 16;
/// Length of a name, a value or a template.
pub(crate) const TEXT_BYTES_MAX: usize = 400;

/// One setting of a program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Knob {
    /// As it is called in reports.
    pub(crate) name: String,
    /// Its effect and cost, in a sentence.
    pub(crate) why: String,
    /// Tried in addition to the default, the one that saves most memory first.
    pub(crate) values: Vec<Value>,
    /// How a value gets to the program.
    pub(crate) way: Way,
    /// Its name in the runtime's own list of settings, if it is listed.
    pub(crate) listed: Option<String>,
}

/// A value of a knob.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A literal value.
    Fixed(String),
    /// A part of the memory that the default takes.
    OfPeak(f64, Suffix),
}

/// How sizes are written for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Suffix {
    /// Whole MiB with the suffix `m`, such as `12m`.
    #[serde(rename = "m")]
    SmallM,
    /// Whole MiB with the suffix `MiB`, such as `12MiB`.
    #[serde(rename = "MiB")]
    Mib,
    /// `12`, in MiB.
    #[serde(rename = "")]
    None,
    /// `0xc00000` without the prefix, in bytes.
    #[serde(rename = "hex")]
    Hex,
}

/// How a value gets to the program: by arguments, by a variable, or by either.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Way {
    /// Words of the command line, if there are any; `{}` as a word of its own takes the texts of
    /// all knobs that have the same words.
    #[serde(deserialize_with = "file::words")]
    pub(crate) argument: Vec<String>,
    pub(crate) place: ArgumentPosition,
    /// Name of a variable of the environment.
    pub(crate) environment: Option<String>,
    /// Separator between several settings; `None` if the variable holds a single one.
    pub(crate) join: Option<String>,
    /// The value within its form, such as `-A{}`.
    pub(crate) text: String,
}

/// Where arguments go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ArgumentPosition {
    /// Behind the name of the program.
    First,
    /// Behind all other words of the command line.
    #[default]
    End,
}

/// Which way is taken where a knob has both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum By {
    /// Arguments of the command line.
    Argument,
    /// Variables of the environment.
    Environment,
}

impl Value {
    /// Before it is known what the default takes.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Fixed(text) => text.clone(),
            Self::OfPeak(part, _) => format!("{:.0} % of the default's peak", part * 100.0),
        }
    }

    /// As the program reads it, given what the default takes.
    pub(crate) fn text(&self, peak_bytes: u64) -> String {
        let (part, suffix) = match self {
            Self::Fixed(text) => return text.clone(),
            Self::OfPeak(part, suffix) => (*part, *suffix),
        };
        let bytes = (peak_bytes as f64 * part).max(0.0) as u64;
        // To two digits, so that a search begun again meets the same values.
        let mib = rounded((bytes >> 20).max(1));
        match suffix {
            Suffix::SmallM => format!("{mib}m"),
            Suffix::Mib => format!("{mib}MiB"),
            Suffix::None => mib.to_string(),
            Suffix::Hex => format!("{:x}", mib << 20),
        }
    }
}

/// To two digits.
fn rounded(number: u64) -> u64 {
    let mut unit = 1;
    while number / unit >= 100 {
        unit *= 10;
    }
    (number + unit / 2) / unit * unit
}

impl Way {
    /// Whether it goes by arguments: as preferred, or as the only way there is.
    fn is_by_argument(&self, by: By) -> bool {
        !self.argument.is_empty() && (by == By::Argument || self.environment.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_peak_are_written_as_the_program_reads_them() {
        let of = |suffix| Value::OfPeak(0.5, suffix).text(1234 << 20);
        assert_eq!(of(Suffix::SmallM), "620m");
        assert_eq!(of(Suffix::Mib), "620MiB");
        assert_eq!(of(Suffix::None), "620");
        assert_eq!(of(Suffix::Hex), format!("{:x}", 620_u64 << 20));
        assert_eq!(Value::OfPeak(0.1, Suffix::None).text(1 << 20), "1", "never nothing");
        assert_eq!(Value::Fixed("off".into()).text(0), "off");
        assert_eq!(
            (rounded(99), rounded(104), rounded(105), rounded(9_949)),
            (99, 100, 110, 9_900)
        );
    }
}
