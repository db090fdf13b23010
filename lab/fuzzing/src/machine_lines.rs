//! Output of a machine to its host: its console, its samples, QEMU's messages; and the disk that
//! configures a machine. Lines stay bounded for any split of the input, and no control sequence of
//! a terminal passes.

use guest::{config, line};
use machines::{
    console::{self, Console},
    lines::Lines,
    qmp,
};

pub(crate) fn test_one_input(bytes: &[u8]) {
    let mut read = Lines::new(line::LINE_BYTES_MAX);
    let mut written = Console::default();
    let mut shown = Vec::new();
    // The first byte is the length of the pieces.
    let piece = usize::from(bytes.first().copied().unwrap_or(1)).max(1);
    for part in bytes.chunks(piece) {
        read.push(part, |text| {
            assert!(text.len() <= line::LINE_BYTES_MAX && !text.contains(&b'\n'));
            if let Some(line) = line::parse(text) {
                // A parsed line can be encoded again.
                assert!(serde_json::to_vec(&line).is_ok());
            }
            let _ = qmp::parse(text);
        });
        written.push(part, |text| shown.push(text.to_owned()));
    }
    written.flush(|text| shown.push(text.to_owned()));
    for text in shown {
        assert!(text.chars().all(|letter| letter == '\t' || !letter.is_control()));
        // The longest way in which one byte is written.
        assert!(text.len() <= console::LINE_BYTES_MAX * 8);
    }
    if let Ok(machine) = config::read(bytes) {
        assert_eq!(machine.format, config::FORMAT);
    }
}
