//! The report that a compile child prints before it ends: for any report and any exit, the node
//! makes an artefact or an error of it, and the text of an error is bounded.
//!
//! The first four bytes are the child's wait status.

use sandbox::fuzz::compile_output;

/// Longest text of an error: the maximum of a report, and some words.
const TEXT_BYTES_MAX: usize = 1 << 20;

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((status, output)) = bytes.split_first_chunk::<4>() else { return };
    // Every second one ended well: only those are believed.
    let status = match i32::from_be_bytes(*status) {
        odd if odd % 2 != 0 => 0,
        even => even,
    };
    match compile_output(status, output) {
        Ok(compiled) => {
            assert_eq!(status, 0, "a child that failed is not believed");
            assert_eq!(compile_output(status, output).ok(), Some(compiled));
        }
        Err(error) => assert!(error.to_string().len() <= TEXT_BYTES_MAX),
    }
}
