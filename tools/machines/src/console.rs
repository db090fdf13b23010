//! Console output of a machine, sanitized for a log: bounded lines without terminal control
//! characters.
//!
//! A machine may print anything. Characters that control a terminal are written as Rust writes them
//! (`\u{1b}`), bytes that are not UTF-8 as U+FFFD. A line of more than [`LINE_BYTES_MAX`] becomes
//! several, so that nothing is lost and the buffer is bounded.

/// Longest line of the log, in bytes of the machine's output.
pub const LINE_BYTES_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Console {
    held: Vec<u8>,
}

impl Console {
    /// Calls `see` with every line that is complete, without its end.
    pub fn push(&mut self, piece: &[u8], mut see: impl FnMut(&str)) {
        for byte in piece {
            if *byte != b'\n' {
                self.held.push(*byte);
            }
            if *byte == b'\n' || self.held.len() >= LINE_BYTES_MAX {
                self.flush(&mut see);
            }
        }
    }

    /// Whether a line was begun.
    pub fn is_within_line(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes what was begun as a line.
    pub fn flush(&mut self, mut see: impl FnMut(&str)) {
        see(&harmless(self.held.strip_suffix(b"\r").unwrap_or(&self.held)));
        self.held.clear();
    }
}

/// Text that a terminal only shows.
pub fn harmless(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for letter in String::from_utf8_lossy(bytes).chars() {
        match letter {
            '\t' => text.push(letter),
            // Marks that change the text direction are not control characters in Rust.
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                text.extend(letter.escape_unicode());
            }
            letter if letter.is_control() => text.extend(letter.escape_default()),
            letter => text.push(letter),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: P25 - Console output of a machine is bounded and free of control sequences.
    #[test]
    fn nothing_that_a_terminal_obeys_gets_through_and_lines_are_bounded() {
        let mut console = Console::default();
        let mut lines = vec![];
        console.push(
            b"[    0.1] Linux\r\n\x1b[2Jgone\x07\n\xff\xfe caf\xc3\xa9 \xc2\x9b\nrest",
            |line| {
                lines.push(line.to_owned());
            },
        );
        assert_eq!(
            lines,
            ["[    0.1] Linux", "\\u{1b}[2Jgone\\u{7}", "\u{fffd}\u{fffd} café \\u{9b}"]
        );
        assert!(console.is_within_line());
        console.flush(|line| lines.push(line.to_owned()));
        assert_eq!(lines.last().unwrap(), "rest");
        lines.clear();
        console.push(&vec![0; 3 * LINE_BYTES_MAX + 1], |line| lines.push(line.to_owned()));
        assert_eq!(lines.len(), 3);
        assert!(console.held.len() == 1 && lines.iter().all(|line| line.starts_with("\\u{0}")));
    }
}
