//! `--trace-gc` of V8: one line for each collection, on standard output, among whatever the program
//! prints there. Work that V8 does in steps between those lines is not in the pause.

use super::{Collection, mebibytes, number};

pub(super) fn line(line: &str) -> Option<Collection> {
    // [process:isolate] milliseconds ms: kind used (held) -> used (held) MB, pause / external ms
    // ...
    let (_, rest) = line.strip_prefix('[')?.split_once(']')?;
    let (millis, rest) = rest.split_once(" ms: ")?;
    let (before, rest) = rest.split_once(" -> ")?;
    let major = match before.trim_start() {
        kind if kind.starts_with("Scavenge") || kind.starts_with("Minor Mark") => false,
        kind if kind.starts_with("Mark-") => true,
        _ => return None,
    };
    let (live, rest) = rest.split_once(" (")?;
    let (held, rest) = rest.split_once(") MB, ")?;
    // Some versions report here how much they keep for later.
    let rest = rest
        .strip_prefix("pooled: ")
        .and_then(|rest| rest.split_once(" MB, "))
        .map_or(rest, |(_, rest)| rest);
    let pause = rest.split([' ', '/']).next()?;
    Some(Collection {
        seconds: Some(number(millis.trim())? / 1000.0),
        major,
        pause_millis: number(pause)?,
        cpu_millis: None,
        live_bytes: mebibytes(live.trim()),
        heap_bytes: mebibytes(held.trim()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collections_of_old_and_new_versions_are_read() {
        let scavenge = line(
            "[14286:0x3c408c40]       30 ms: Scavenge 3.9 (4.0) -> 3.5 (5.0) MB, 5.87 / 0.00 ms  \
             (average mu = 1.000, current mu = 1.000) allocation failure; ",
        )
        .unwrap();
        assert!(!scavenge.major);
        assert_eq!((scavenge.seconds, scavenge.pause_millis), (Some(0.03), 5.87));
        assert_eq!((scavenge.live_bytes, scavenge.heap_bytes), (Some(7 << 19), Some(5 << 20)));
        for text in [
            "[1:0x3c408c40]      145 ms: Mark-Compact 45.1 (63.2) -> 2.5 (36.2) MB, 3.35 / 0.00 \
             ms  (average mu = 1.000, current mu = 1.000) testing; GC in old space requested",
            "[1:0x1:0]   145 ms: Mark-Compact (reduce) 45.1 (63.2) -> 2.5 (36.2) MB, pooled: 0 \
             MB, 3.35 / 0.00 ms",
            "[1:0x1]   145 ms: Mark-sweep (reduce) 45.1 (63.2) -> 2.5 (36.2) MB, 3.35 / 0.00 ms  \
             (+ 1.0 ms in 3 steps since start of marking)",
        ] {
            let collection = line(text).unwrap();
            assert!(collection.major, "{text}");
            assert_eq!((collection.live_bytes, collection.pause_millis), (Some(5 << 19), 3.35));
        }
    }

    #[test]
    fn other_lines_are_none() {
        for text in [
            "",
            "[",
            "[x] 5 ms: Scavenge",
            "[1:0x1] 5 ms: Hello 1 (2) -> 3 (4) MB, 1 / 0 ms",
            "[1] x ms: Scavenge 1 (2) -> 3 (4) MB, 1 / 0 ms",
        ] {
            assert_eq!(line(text), None, "{text}");
        }
    }
}
