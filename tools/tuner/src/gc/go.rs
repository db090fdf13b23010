//! `GODEBUG=gctrace=1`: one line for each collection, among whatever the program prints to standard
//! error. Every collection covers all of the heap. The first and the third phase stop the program.

use super::{Collection, mebibytes, number};

pub(super) fn line(line: &str) -> Option<Collection> {
    let (count, rest) = line.strip_prefix("gc ")?.split_once(" @")?;
    number(count)?;
    let (began, rest) = rest.split_once("s ")?;
    let (_, rest) = rest.split_once("%: ")?;
    let (clock, rest) = rest.split_once(" ms clock, ")?;
    let (cpu, rest) = rest.split_once(" ms cpu, ")?;
    let (sizes, rest) = rest.split_once(" MB, ")?;
    let (goal, _) = rest.split_once(" MB goal")?;
    let mut phases = clock.splitn(3, '+').map(number);
    let (stop, concurrent, end) = (phases.next()??, phases.next()??, phases.next()??);
    let live = sizes.splitn(3, "->").nth(2)?;
    // The middle one is three: assists, dedicated workers, idle processors.
    let mut cpu_millis = 0.0;
    for part in cpu.split(['+', '/']) {
        cpu_millis += number(part)?;
    }
    Some(Collection {
        seconds: Some(number(began)? + (stop + concurrent + end) / 1000.0),
        major: true,
        pause_millis: stop + end,
        cpu_millis: Some(cpu_millis),
        live_bytes: mebibytes(live),
        heap_bytes: mebibytes(goal),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_is_read_in_old_and_new_words() {
        let new = line(
            "gc 69 @0.216s 9%: 0.25+1.5+0.004 ms clock, 0.50+0.094/0.13/0.083+0.008 ms cpu, \
             37->43->7 MB, 44 MB goal, 0 MB stacks, 0 MB globals, 2 P (forced)",
        )
        .unwrap();
        assert!(new.major && (new.pause_millis - 0.254).abs() < 1e-9);
        assert_eq!((new.live_bytes, new.heap_bytes), (Some(7 << 20), Some(44 << 20)));
        assert!((new.cpu_millis.unwrap() - 0.815).abs() < 1e-9);
        assert!((new.seconds.unwrap() - 0.217_754).abs() < 1e-9);
        let old = line(
            "gc 1 @0.010s 2%: 0.01+0.5+0.003 ms clock, 0.02+0/0/0+0.006 ms cpu, 4->4->1 MB, 5 MB \
             goal, 2 P",
        );
        assert_eq!(old.unwrap().live_bytes, Some(1 << 20));
    }

    #[test]
    fn other_lines_are_none() {
        for text in [
            "scvg: 0 MB released",
            "scvg0: inuse: 3, idle: 0, sys: 3, released: 0, consumed: 3 (MB)",
            "gc 1 @0.001s 10%: -1+0.27+0.008 ms clock, 0.22+0.16/0/0+0.017 ms cpu, 3->4->0 MB, 4 \
             MB goal",
            "gc x @0.001s 10%: 1+0.27+0.008 ms clock, 0.22 ms cpu, 3->4->0 MB, 4 MB goal",
            "gc 1 @0.001s 10%: 1+0.27 ms clock, 0.22 ms cpu, 3->4->0 MB, 4 MB goal",
            "gc 1 @0.001s 10%: 1+0.2+0.1 ms clock, 0.22 ms cpu, 3->4 MB, 4 MB goal",
            "the gc 1 @",
        ] {
            assert_eq!(line(text), None, "{text}");
        }
    }
}
