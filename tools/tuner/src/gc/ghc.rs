//! `+RTS -S`: one line for each collection, between a header and a summary.
//!
//! Columns: bytes allocated since the one before, bytes copied, bytes live, CPU and elapsed seconds
//! of the collection, CPU and elapsed seconds since the start, two counts of page faults, the
//! generation. Live bytes are true after a collection of the oldest generation only, and 0 with the
//! non-moving collector while it still marks. With one generation (`-G1`) every line has generation
//! 0, which looks like a minor one.

use super::{Collection, bytes, number};

#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The oldest generation seen. There are two unless a flag of the program changes that.
    oldest: u32,
}

impl Reader {
    pub(super) fn line(&mut self, line: &str) -> Option<Collection> {
        let (columns, rest) = line.split_once("(Gen:")?;
        let generation: u32 = rest.split_once(')')?.0.trim().parse().ok()?;
        let mut values = [0.0; 7];
        let mut words = columns.split_ascii_whitespace();
        for value in &mut values {
            *value = number(words.next()?)?;
        }
        let [_, _, live, collector_cpu, collector_elapsed, _, elapsed] = values;
        // More generations than this are not plausible.
        if generation > 16 {
            return None;
        }
        self.oldest = self.oldest.max(generation).max(1);
        let major = generation == self.oldest;
        Some(Collection {
            seconds: Some(elapsed),
            major,
            pause_millis: collector_elapsed * 1000.0,
            cpu_millis: Some(collector_cpu * 1000.0),
            live_bytes: bytes(live).filter(|live| major && *live > 0),
            heap_bytes: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
    Alloc    Copied     Live     GC     GC      TOT      TOT  Page Flts
    bytes     bytes     bytes   user   elap     user     elap
  4193856   1573976   1649176  0.003  0.003    0.005    0.006    0    0  (Gen:  0)
  4190184   3147384   4761208  0.006  0.006    0.013    0.015    0    0  (Gen:  1)
    59824                      0.000  0.000

   8,443,864 bytes allocated in the heap
  Gen  0         1 colls,     0 par    0.003s   0.003s     0.0030s    0.0030s
";

    #[test]
    fn collections_are_read_and_header_and_summary_are_not() {
        let mut reader = Reader::default();
        let found: Vec<_> = LOG.lines().filter_map(|line| reader.line(line)).collect();
        assert_eq!(found.len(), 2);
        assert!(!found[0].major && found[0].live_bytes.is_none());
        assert_eq!((found[1].major, found[1].live_bytes), (true, Some(4_761_208)));
        assert_eq!((found[1].seconds, found[1].pause_millis), (Some(0.015), 6.0));
        assert_eq!(found[1].cpu_millis, Some(6.0));
    }

    #[test]
    fn the_oldest_of_three_generations_is_the_major_one_and_live_may_be_untold() {
        let line =
            |generation, live| format!("1 1 {live} 0.1 0.1 1.0 1.0 0 0  (Gen:  {generation})");
        let mut reader = Reader::default();
        assert!(reader.line(&line(2, 10)).unwrap().major);
        assert!(!reader.line(&line(1, 10)).unwrap().major);
        assert_eq!(reader.line(&line(2, 0)).unwrap().live_bytes, None);
        assert_eq!(reader.line(&line(17, 10)), None);
    }
}
