//! The `--json` file: one sample a line, in two halves of bounded size, or standard output.

use std::{
    io::{self, Write},
    path::Path,
};

use anyhow::{Context, Result};
use memory_cap::Rotating;

use super::history::Sample;

/// The words of an error.
fn named(path: &Path) -> impl Fn() -> String + '_ {
    move || format!("cannot write {}", path.display())
}

/// See the module.
pub(crate) enum Sink {
    None,
    Stdout,
    File(Rotating),
}

impl Sink {
    pub(crate) fn open(path: Option<&Path>, bytes_max: u64) -> Result<Self> {
        Ok(match path {
            None => Self::None,
            Some(path) if path.as_os_str() == "-" => Self::Stdout,
            Some(path) => Self::File(Rotating::create(path, bytes_max).with_context(named(path))?),
        })
    }

    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    pub(crate) fn write(&mut self, sample: &Sample) -> Result<()> {
        if matches!(self, Self::None) {
            return Ok(());
        }
        let mut line = serde_json::to_vec(sample)?;
        line.push(b'\n');
        match self {
            Self::None => Ok(()),
            Self::Stdout => {
                let mut stdout = io::stdout();
                stdout
                    .write_all(&line)
                    .and_then(|()| stdout.flush())
                    .context("cannot write to standard output")
            }
            Self::File(file) => {
                let anew = if file.is_full_with(line.len()) { file.begin_anew() } else { Ok(()) };
                anew.and_then(|()| file.write(&line)).with_context(named(file.path()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_stays_within_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("series");
        let mut sink = Sink::open(Some(&path), 10_000).unwrap();
        for _ in 0..1000 {
            sink.write(&Sample::default()).unwrap();
        }
        let length = |name| std::fs::metadata(folder.path().join(name)).unwrap().len();
        assert!(length("series") + length("series.1") <= 10_000);
        assert!(Sink::open(Some(&folder.path().join("no/such")), 10_000).is_err());
    }
}
