//! Heap profiles, as a node sends them or a file holds them: read, or refused, within the bounds of
//! their form.

use heap_profiler::document;

pub(crate) fn test_one_input(bytes: &[u8]) {
    let _ = document::read(bytes);
    if let Ok(document) = document::parse(&mut &*bytes) {
        assert!(document.stacks.len() <= document::STACKS_MAX);
        assert!(document.stacks.iter().all(|stack| stack.addresses.len() <= document::FRAMES_MAX));
        assert!(document.mappings.len() <= document::MAPPINGS_MAX);
    }
}
