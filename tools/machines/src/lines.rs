//! Splits chunks of an untrusted stream into lines: QMP, the reports of a guest.
//!
//! A line longer than the limit is skipped up to its end. The buffer never holds more than one line
//! of that length.

/// See the module.
#[derive(Debug)]
pub struct Lines {
    held: Vec<u8>,
    bytes_max: usize,
    /// Within a line that is too long.
    skips: bool,
    passed_over: u64,
}

impl Lines {
    /// Of at most `bytes_max` bytes each, without their ends.
    pub fn new(bytes_max: usize) -> Self {
        Self { held: Vec::new(), bytes_max, skips: false, passed_over: 0 }
    }

    /// Calls `see` with every line that ends in `piece`.
    pub fn push(&mut self, piece: &[u8], mut see: impl FnMut(&[u8])) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match part.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (part, false),
            };
            if self.held.len() + text.len() > self.bytes_max {
                self.held.clear();
                self.passed_over += u64::from(!self.skips);
                self.skips = true;
            }
            if !self.skips {
                self.held.extend_from_slice(text);
            }
            if ends {
                if !self.skips {
                    see(&self.held);
                }
                self.held.clear();
                self.skips = false;
            }
        }
        debug_assert!(self.held.len() <= self.bytes_max);
    }

    /// How many lines were too long.
    pub fn passed_over(&self) -> u64 {
        self.passed_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(lines: &mut Lines, piece: &[u8]) -> Vec<String> {
        let mut seen = vec![];
        lines.push(piece, |line| seen.push(String::from_utf8_lossy(line).into_owned()));
        seen
    }

    #[test]
    fn lines_are_whole_whatever_the_pieces_and_long_ones_are_passed_over() {
        let mut lines = Lines::new(5);
        assert_eq!(seen(&mut lines, b"ab\ncd"), ["ab"]);
        assert_eq!(seen(&mut lines, b"e\n\n12345\n"), ["cde", "", "12345"]);
        assert_eq!(seen(&mut lines, b"123456\nok\n"), ["ok"]);
        assert_eq!(seen(&mut lines, b"12345"), [""; 0]);
        assert_eq!(seen(&mut lines, b"678"), [""; 0]);
        assert_eq!(seen(&mut lines, b"9\nok\n"), ["ok"]);
        assert_eq!(lines.passed_over(), 2);
        for _ in 0..1000 {
            assert_eq!(seen(&mut lines, &[b'x'; 1000]), [""; 0]);
        }
        assert!(lines.held.capacity() <= 16 && lines.passed_over() == 3);
    }
}
