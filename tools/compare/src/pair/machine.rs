//! The machine: its description, and its other load while a command ran.
//!
//! Bounds: single lines of /proc. Must never know: which command runs.

use std::{fs, time::Instant};

/// Fields of the first line of /proc/stat that are read.
const FIELDS: usize = 8;
/// Ticks of other processes up to this number may be rounding.
const TICKS_MIN: f64 = 3.0;

/// Processor, memory and kernel, in one line.
pub fn describe() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("an unnamed processor", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{cores} cores of {model}, {:.1} GiB, Linux {}",
        kib as f64 / 1_048_576.0,
        kernel.trim()
    )
}

/// The counters at one moment.
#[derive(Clone, Debug)]
pub struct Counters {
    at: Instant,
    /// Ticks of all processors: busy, stolen, all.
    busy: f64,
    stolen: f64,
    all: f64,
    /// Seconds in which at least one task waited for a processor; `None` where the kernel does not
    /// report it.
    waited: Option<f64>,
}

/// Other load of the machine between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    /// Share of all processors that others took, the hypervisor's included.
    pub others: f64,
    /// Share of the time in which at least one task waited for a processor (pressure figures).
    pub pressure: Option<f64>,
}

impl Counters {
    /// Those of this moment.
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let pressure = fs::read_to_string("/proc/pressure/cpu").ok();
        Self::parse(&stat, pressure.as_deref())
    }

    fn parse(stat: &str, pressure: Option<&str>) -> Self {
        let mut fields = [0.0; FIELDS];
        let line = stat.lines().find(|line| line.starts_with("cpu ")).unwrap_or_default();
        for (field, word) in fields.iter_mut().zip(line.split_whitespace().skip(1)) {
            *field = word.parse().unwrap_or(0.0);
        }
        let [user, nice, system, idle, waiting, interrupts, soft, stolen] = fields;
        let busy = user + nice + system + interrupts + soft;
        let total = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("some "))?;
            let micros: f64 = line.rsplit_once("total=")?.1.trim().parse().ok()?;
            Some(micros / 1e6)
        };
        Self {
            at: Instant::now(),
            busy,
            stolen,
            all: busy + idle + waiting + stolen,
            waited: pressure.and_then(total),
        }
    }

    /// Since `self`, while a command took `own_seconds` of CPU.
    pub fn until(&self, later: &Self, own_seconds: f64, ticks_per_second: f64) -> Busy {
        let all = later.all - self.all;
        let others =
            later.busy - self.busy + later.stolen - self.stolen - own_seconds * ticks_per_second;
        let seconds = later.at.duration_since(self.at).as_secs_f64();
        Busy {
            others: if all > 0.0 && others > TICKS_MIN {
                (others / all).clamp(0.0, 1.0)
            } else {
                0.0
            },
            pressure: self.waited.zip(later.waited).filter(|_| seconds > 0.0).map(
                |(before, after)| {
                    // The kernel's figure runs behind by up to two seconds.
                    ((after - before) / seconds).clamp(0.0, 1.0)
                },
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_took_is_all_that_was_taken_less_our_own() {
        let at = |busy: u32, idle: u32, stolen: u32| {
            Counters::parse(&format!("cpu  {busy} 0 0 {idle} 0 0 0 {stolen} 0 0\ncpu0 1 1\n"), None)
        };
        let busy = at(100, 100, 0).until(&at(200, 190, 10), 0.5, 100.0);
        assert!((busy.others - 0.3).abs() < 1e-9, "{busy:?}");
        let calm = at(100, 100, 0).until(&at(150, 200, 0), 0.5, 100.0);
        assert_eq!(calm, Busy { others: 0.0, pressure: None });
        assert_eq!(Counters::parse("", Some("odd")).waited, None);
        let told =
            Counters::parse("", Some("some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n"));
        assert_eq!(told.waited, Some(2.5));
    }

    #[test]
    fn this_machine_has_counters() {
        let counters = Counters::now();
        assert!(counters.all > 0.0, "/proc/stat says nothing");
        assert!(describe().contains("cores"));
    }
}
