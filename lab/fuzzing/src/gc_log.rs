//! The log of a garbage collector: any line is read without a fault, and its figures are finite.

use tuner::gc::{Dialect, Reader};

pub(crate) fn test_one_input(bytes: &[u8]) {
    for dialect in [Dialect::Ghc, Dialect::Go, Dialect::Jvm, Dialect::Node] {
        let mut reader = Reader::new(dialect);
        for line in String::from_utf8_lossy(bytes).lines() {
            let Some(collection) = reader.line(line) else { continue };
            assert!(collection.pause_millis.is_finite() && collection.pause_millis >= 0.0);
            let others = [collection.seconds, collection.cpu_millis];
            assert!(others.into_iter().flatten().all(|value| value.is_finite() && value >= 0.0));
        }
    }
}
