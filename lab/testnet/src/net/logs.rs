//! Output of a node, past and present.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Prints the log, its older half first; only the last `lines` if stated. With `follow`, continues
/// until the future is dropped.
pub(crate) async fn print(path: &Path, lines: Option<usize>, follow: bool) -> Result<()> {
    let mut text = fs::read(memory_cap::older(path)).unwrap_or_default();
    let mut file =
        File::open(path).with_context(|| format!("there is no log at {}", path.display()))?;
    file.read_to_end(&mut text)?;
    let from = lines.map_or(0, |lines| beginning_of_last(&text, lines));
    let mut out = io::stdout();
    out.write_all(&text[from..])?;
    out.flush()?;
    drop(text);
    if !follow {
        return Ok(());
    }
    loop {
        let mut more = Vec::new();
        file.read_to_end(&mut more)?;
        out.write_all(&more)?;
        out.flush()?;
        let (read, now) = (file.metadata()?, fs::metadata(path).ok());
        match now {
            // The log was rotated: the last lines of the old one come first.
            Some(now) if now.ino() != read.ino() => {
                let mut rest = Vec::new();
                file.read_to_end(&mut rest)?;
                out.write_all(&rest)?;
                file = File::open(path)?;
            }
            Some(now) if now.len() < file.stream_position()? => {
                file.seek(SeekFrom::Start(0))?;
            }
            _ => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

/// Offset at which the last `lines` begin.
fn beginning_of_last(text: &[u8], lines: usize) -> usize {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let mut ends =
        body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    if lines == 0 { text.len() } else { ends.nth(lines - 1).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole() {
        for (text, lines, rest) in [
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\nb\n", 5, "a\nb\n"),
            ("a\nb\n", 0, ""),
            ("", 3, ""),
        ] {
            assert_eq!(
                &text[beginning_of_last(text.as_bytes(), lines)..],
                rest,
                "{text:?} {lines}"
            );
        }
    }
}
