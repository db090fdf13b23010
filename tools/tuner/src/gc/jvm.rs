//! `-Xlog:gc` and `-Xlog:gc*` (unified logging) with any decorations, as long as the uptime is
//! among them when times are wanted.
//!
//! * Serial, Parallel and G1 report a collection in one line, `Pause Young ... 24M->4M(256M)
//!   3.2ms`; with `gc*` a line with its CPU time follows.
//! * Concurrent cycles of G1, Shenandoah and ZGC report their pauses one by one, with other
//!   collections in between; they are joined by the number of the collection, and complete with the
//!   line that ends the cycle, or, for a short cycle of Shenandoah, with the first line of the
//!   next.
//!
//! ZGC reports its pauses with `gc*` only. Threads that had to wait for memory (allocation stalls)
//! are not pauses of a collection and are not counted.

use super::{Collection, bytes, number};

/// Most concurrent cycles open at a time; a JVM has one, or two with a generational collector.
const CYCLES_MAX: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Concurrent cycles under way, oldest first; at most [`CYCLES_MAX`].
    cycles: Vec<Cycle>,
    /// A collection that waits for the line with its CPU time.
    held: Option<(u64, Collection)>,
    tells_cpu: bool,
}

/// A concurrent cycle under way.
#[derive(Debug, Default)]
struct Cycle {
    number: u64,
    collection: Collection,
    /// A cleanup ends it once references were updated.
    updated: bool,
    cleaned: bool,
}

impl Reader {
    pub(super) fn line(&mut self, line: &str) -> Option<Collection> {
        let (decorations, rest) = line.split_once("GC(")?;
        let (id, text) = rest.split_once(") ")?;
        let id: u64 = id.parse().ok()?;
        // Phases are indented, or marked with the generation: `Y: Pause Mark Start`.
        let text = text.trim();
        let text = text
            .split_once(": ")
            .filter(|(mark, _)| mark.len() == 1)
            .map_or(text, |(_, rest)| rest);
        let seconds = uptime(decorations);
        if let Some(cpu) = text.strip_prefix("User=") {
            return self.cpu(id, cpu);
        }
        if text.starts_with("Pause") {
            return self.pause(id, text, seconds);
        }
        if let Some(rest) = text.strip_prefix("Capacity:") {
            // At the start and end of marking and of relocation.
            let sizes = rest.split_ascii_whitespace().filter(|word| !word.starts_with('('));
            let after = sizes.take(4).last().and_then(size);
            if let Some(cycle) = self.cycle(id) {
                cycle.collection.heap_bytes = after.or(cycle.collection.heap_bytes);
            }
            return None;
        }
        if ["Garbage Collection", "Major Collection", "Minor Collection"]
            .iter()
            .any(|it| text.starts_with(it))
        {
            let (_, after) = text.rsplit_once("->")?;
            let live = size(after.split('(').next()?)?;
            let collection = self.take(id).map(|cycle| cycle.collection).unwrap_or_default();
            let major = !text.starts_with("Minor");
            return Some(Collection { seconds, major, live_bytes: Some(live), ..collection });
        }
        if text.starts_with("Concurrent Mark Cycle ") || text.starts_with("Concurrent Cycle ") {
            millis(text)?;
            let collection = self.take(id)?.collection;
            return Some(Collection { seconds, major: true, ..collection });
        }
        if text.starts_with("Concurrent cleanup ") {
            let (_, live, heap) = sizes(text)?;
            let cycle = self.cycle(id)?;
            cycle.collection = Collection {
                seconds,
                live_bytes: Some(live),
                heap_bytes: Some(heap),
                ..cycle.collection.clone()
            };
            cycle.cleaned = true;
            return cycle.updated.then(|| self.take(id)).flatten().map(Cycle::into_collection);
        }
        if text.starts_with("Concurrent reset") {
            // A cycle of Shenandoah that had nothing to move ended with its first cleanup.
            let short = self.cycles.iter().find(|cycle| cycle.cleaned && cycle.number < id)?.number;
            return self.take(short).map(Cycle::into_collection);
        }
        None
    }

    fn pause(&mut self, id: u64, text: &str, seconds: Option<f64>) -> Option<Collection> {
        let Some(pause_millis) = millis(text) else {
            // The line for the begin of a collection comes with `gc*`, which reports the CPU time
            // too.
            self.tells_cpu |= !text.starts_with("Pause Init") && !text.starts_with("Pause Final");
            return None;
        };
        let whole = ["Pause Young", "Pause Full", "Pause Mixed", "Pause Degenerated"];
        let reported = sizes(text);
        // An older G1 begins a cycle with a young collection.
        let is_whole = whole.iter().any(|start| text.starts_with(start))
            || (text.starts_with("Pause Initial Mark") && reported.is_some());
        if !is_whole {
            let cycle = self.cycle(id)?;
            cycle.collection.pause_millis += pause_millis;
            cycle.updated |= text.starts_with("Pause Final Update");
            if let Some((_, live, heap)) = reported {
                (cycle.collection.live_bytes, cycle.collection.heap_bytes) =
                    (Some(live), Some(heap));
            }
            return None;
        }
        let (_, live, heap) = reported?;
        let major = text.starts_with("Pause Full") || text.starts_with("Pause Degenerated");
        // Its line also reports a cycle that was abandoned for it.
        let earlier = self.take(id).map_or(0.0, |cycle| cycle.collection.pause_millis);
        let collection = Collection {
            seconds,
            major,
            pause_millis: pause_millis + earlier,
            cpu_millis: None,
            live_bytes: Some(live),
            heap_bytes: Some(heap),
        };
        if !self.tells_cpu {
            return Some(collection);
        }
        self.held.replace((id, collection)).map(|(_, collection)| collection)
    }

    fn cpu(&mut self, id: u64, text: &str) -> Option<Collection> {
        let mut words = text.split_ascii_whitespace();
        let user = number(words.next()?.trim_end_matches('s'))?;
        let system = number(words.next()?.strip_prefix("Sys=")?.trim_end_matches('s'))?;
        let cpu = (user + system) * 1000.0;
        self.tells_cpu = true;
        if let Some((_, collection)) = self.held.take_if(|(held, _)| *held == id) {
            return Some(Collection { cpu_millis: Some(cpu), ..collection });
        }
        let cycle = self.cycles.iter_mut().find(|cycle| cycle.number == id)?;
        *cycle.collection.cpu_millis.get_or_insert_default() += cpu;
        None
    }

    /// The cycle with this number, begun if it is new.
    fn cycle(&mut self, number: u64) -> Option<&mut Cycle> {
        if !self.cycles.iter().any(|cycle| cycle.number == number) {
            if self.cycles.len() == CYCLES_MAX {
                self.cycles.remove(0);
            }
            self.cycles.push(Cycle { number, ..Cycle::default() });
        }
        self.cycles.iter_mut().find(|cycle| cycle.number == number)
    }

    fn take(&mut self, number: u64) -> Option<Cycle> {
        let at = self.cycles.iter().position(|cycle| cycle.number == number)?;
        Some(self.cycles.remove(at))
    }
}

impl Cycle {
    fn into_collection(self) -> Collection {
        Collection { major: true, ..self.collection }
    }
}

/// Seconds since the start, when they are among the decorations.
fn uptime(decorations: &str) -> Option<f64> {
    decorations.split(['[', ']']).find_map(|word| {
        let word = word.trim();
        let scaled = |ending: &str, scale: f64| Some(number(word.strip_suffix(ending)?)? / scale);
        scaled("ms", 1e3).or_else(|| scaled("ns", 1e9)).or_else(|| scaled("s", 1.0))
    })
}

/// The duration at the end of a line.
fn millis(text: &str) -> Option<f64> {
    number(text.rsplit_once(' ')?.1.strip_suffix("ms")?)
}

/// `24M->4M(256M)`: before, after, and held.
fn sizes(text: &str) -> Option<(u64, u64, u64)> {
    let word = text.split_ascii_whitespace().rfind(|word| word.contains("->"))?;
    let (before, rest) = word.split_once("->")?;
    let (after, held) = rest.split_once('(')?;
    Some((size(before)?, size(after)?, size(held.strip_suffix(')')?)?))
}

fn size(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let scale = match unit {
        'B' => 1.0,
        'K' => 1024.0,
        'M' => 1024.0 * 1024.0,
        'G' => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    bytes(number(text.strip_suffix(unit)?)? * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn read(log: &str) -> Vec<Collection> {
        let mut reader = Reader::default();
        log.lines().filter_map(|line| reader.line(line)).collect()
    }

    #[test]
    fn serial_parallel_and_g1_tell_a_collection_in_a_line() {
        let found = read(
            "[0.005s][info][gc] Using G1\n\
             [0.055s][info][gc] GC(0) Pause Young (Normal) (G1 Evacuation Pause) 6M->1M(64M) 1.755ms\n\
             [0.158s][info][gc] GC(22) Pause Full (System.gc()) 25M->512K(61M) 1.883ms\n\
             [2026-11-23T08:02:30.917+0000][59ms] GC(1) Pause Young (Allocation Failure) 17M->1M(61M) 3.974ms\n",
        );
        assert_eq!(found.len(), 3);
        assert_eq!(
            (found[0].seconds, found[0].pause_millis, found[0].major),
            (Some(0.055), 1.755, false)
        );
        assert_eq!((found[0].live_bytes, found[0].heap_bytes), (Some(MIB), Some(64 * MIB)));
        assert_eq!((found[1].major, found[1].live_bytes), (true, Some(512 << 10)));
        assert_eq!(found[2].seconds, Some(0.059));
    }

    #[test]
    fn the_cpu_time_of_a_collection_follows_it() {
        let found = read(
            "[2026-11-23T08:02:30.915+0000][0.057s][info][gc,start    ] GC(0) Pause Young (Normal) (G1 Evacuation Pause)\n\
             [2026-11-23T08:02:30.917+0000][0.059s][info][gc,heap     ] GC(0) Eden regions: 6->0(18)\n\
             [2026-11-23T08:02:30.917+0000][0.059s][info][gc,metaspace] GC(0) Metaspace: 73K(320K)->73K(320K) NonClass: 70K(192K)->70K(192K) Class: 3K(128K)->3K(128K)\n\
             [2026-11-23T08:02:30.917+0000][0.059s][info][gc          ] GC(0) Pause Young (Normal) (G1 Evacuation Pause) 6M->1M(64M) 1.983ms\n\
             [2026-11-23T08:02:30.917+0000][0.059s][info][gc,cpu      ] GC(0) User=0.01s Sys=0.02s Real=0.01s\n",
        );
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].seconds, found[0].cpu_millis), (Some(0.059), Some(30.0)));
    }

    #[test]
    fn a_cycle_of_g1_is_one_collection_with_others_in_between() {
        let found = read(
            "[1.0s][info][gc] GC(4) Concurrent Mark Cycle\n\
             [1.1s][info][gc] GC(4) Pause Remark 30M->28M(64M) 2.0ms\n\
             [1.2s][info][gc] GC(5) Pause Young (Prepare Mixed) (G1 Evacuation Pause) 34M->20M(64M) 1.5ms\n\
             [1.3s][info][gc] GC(4) Pause Cleanup 29M->27M(60M) 0.5ms\n\
             [1.4s][info][gc] GC(4) Concurrent Mark Cycle 35.258ms\n",
        );
        assert_eq!(found.len(), 2);
        assert!(!found[0].major);
        assert_eq!(
            (found[1].major, found[1].pause_millis, found[1].seconds),
            (true, 2.5, Some(1.4))
        );
        assert_eq!((found[1].live_bytes, found[1].heap_bytes), (Some(27 * MIB), Some(60 * MIB)));
    }

    #[test]
    fn cycles_of_shenandoah_end_with_a_cleanup_or_with_the_next_cycle() {
        let found = read(
            "[0.171s][info][gc] GC(1) Concurrent reset 3.144ms\n\
             [0.175s][info][gc] GC(1) Pause Init Mark (unload classes) 0.019ms\n\
             [0.178s][info][gc] GC(1) Concurrent marking (unload classes) 3.390ms\n\
             [0.179s][info][gc] GC(1) Pause Final Mark (unload classes) 0.067ms\n\
             [0.181s][info][gc] GC(1) Concurrent cleanup 33M->33M(64M) 0.010ms\n\
             [0.182s][info][gc] GC(1) Concurrent evacuation 1.154ms\n\
             [0.182s][info][gc] GC(1) Pause Init Update Refs 0.025ms\n\
             [0.184s][info][gc] GC(1) Pause Final Update Refs 0.012ms\n\
             [0.184s][info][gc] GC(1) Concurrent cleanup 34M->10M(64M) 0.023ms\n\
             [0.200s][info][gc] GC(2) Concurrent reset 1.0ms\n\
             [0.201s][info][gc] GC(2) Pause Init Mark 0.01ms\n\
             [0.202s][info][gc] GC(2) Pause Final Mark 0.02ms\n\
             [0.203s][info][gc] GC(2) Concurrent cleanup 34M->9M(64M) 0.01ms\n\
             [0.300s][info][gc] GC(3) Concurrent reset 1.0ms\n\
             [0.400s][info][gc] GC(4) Pause Degenerated GC (Mark) 60M->30M(64M) 23.5ms\n",
        );
        assert_eq!(found.len(), 3, "{found:?}");
        assert!((found[0].pause_millis - 0.123).abs() < 1e-9 && found[0].major);
        assert_eq!((found[0].live_bytes, found[0].heap_bytes), (Some(10 * MIB), Some(64 * MIB)));
        assert_eq!((found[1].live_bytes, found[1].seconds), (Some(9 * MIB), Some(0.203)));
        assert_eq!((found[2].major, found[2].pause_millis), (true, 23.5));
    }

    #[test]
    fn a_cycle_of_zgc_has_its_pauses_and_capacity() {
        let found = read(
            "[0.132s][info][gc,start    ] GC(1) Garbage Collection (Allocation Stall)\n\
             [0.132s][info][gc,phases   ] GC(1) Pause Mark Start 0.007ms\n\
             [0.135s][info][gc,phases   ] GC(1) Pause Mark End 0.013ms\n\
             [0.137s][info][gc,phases   ] GC(1) Y: Pause Relocate Start 0.011ms\n\
             [0.139s][info][gc,heap     ] GC(1) Min Capacity: 8M(12%)\n\
             [0.139s][info][gc,heap     ] GC(1)  Capacity:       64M (100%)         64M (100%)         64M (100%)         60M (94%)         64M (100%)         64M (100%)   \n\
             [0.139s][info][gc          ] GC(1) Garbage Collection (Allocation Stall) 64M(100%)->10M(16%)\n\
             [0.144s][info][gc] Allocation Stall (main) 11.678ms\n\
             [9.1s][info][gc] GC(7) Minor Collection (Allocation Rate) 64M(100%)->12M(19%) 0.012s\n",
        );
        assert_eq!(found.len(), 2, "{found:?}");
        assert!((found[0].pause_millis - 0.031).abs() < 1e-9);
        assert_eq!((found[0].live_bytes, found[0].heap_bytes), (Some(10 * MIB), Some(60 * MIB)));
        assert!(!found[1].major);
        assert_eq!(found[1].live_bytes, Some(12 * MIB));
    }

    #[test]
    fn cycles_without_end_are_forgotten() {
        let mut reader = Reader::default();
        for id in 0..1000 {
            reader.line(&format!("GC({id}) Pause Init Mark 0.1ms"));
            assert!(reader.cycles.len() <= CYCLES_MAX);
        }
        for text in [
            "GC(x) Pause",
            "GC(1)",
            "GC(1) Pause Young 1M->2M(3M) -5ms",
            "GC(1) User=x Sys=y",
            "GC(1) Garbage Collection",
        ] {
            assert_eq!(reader.line(text), None, "{text}");
        }
    }
}
