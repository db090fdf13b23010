//! How long update calls and queries take, as percentiles of a window.
//!
//! The histogram of `/metrics` answers questions about hours and its buckets are coarse. A
//! dashboard asks about the last second, so this recorder keeps log-scaled buckets of a sixteenth
//! of an octave and starts anew whenever it is read. Recording is one atomic addition: no lock, no
//! allocation, the same few KiB whatever the load.

use std::{
    array,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Buckets of an octave, as a power of two: a bucket is a sixteenth of its lower bound wide, so its
/// middle is off by 3.2 % at most.
const STEP_BITS: u32 = 4;
/// Smaller values are reported as this, in nanoseconds as a power of two: one microsecond.
const FLOOR_BITS: u32 = 10;
/// Values from here on are reported as this: 137 seconds, longer than any wait the gateway allows.
const CEILING_BITS: u32 = 37;
const BUCKETS: usize = ((CEILING_BITS - FLOOR_BITS) << STEP_BITS) as usize;

/// The recorder. Clones share it.
#[derive(Clone, Default)]
pub struct Latencies {
    shared: Arc<Histograms>,
}

#[derive(Default)]
struct Histograms {
    updates: Histogram,
    queries: Histogram,
}

/// Latencies recorded between two readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencyWindow {
    /// Update calls answered with a certified reply or reject, synchronously.
    pub updates: u64,
    /// Their median; `None` without any.
    pub update_p50_millis: Option<f64>,
    /// Their 99th percentile.
    pub update_p99_millis: Option<f64>,
    /// Queries answered, rejected ones included.
    pub queries: u64,
    /// Their median; `None` without any.
    pub query_p50_millis: Option<f64>,
    /// Their 99th percentile.
    pub query_p99_millis: Option<f64>,
}

impl Latencies {
    /// Counts an update call that was answered with its certificate.
    pub fn record_update(&self, took: Duration) {
        self.shared.updates.record(took);
    }

    /// Counts an answered query.
    pub fn record_query(&self, took: Duration) {
        self.shared.queries.record(took);
    }

    /// Latencies recorded since the last call of this on any clone. A value recorded meanwhile is
    /// in this window or in the next, never in both or none.
    pub fn take(&self) -> LatencyWindow {
        let updates = self.shared.updates.take();
        let queries = self.shared.queries.take();
        LatencyWindow {
            updates: updates.total,
            update_p50_millis: updates.percentile_millis(50),
            update_p99_millis: updates.percentile_millis(99),
            queries: queries.total,
            query_p50_millis: queries.percentile_millis(50),
            query_p99_millis: queries.percentile_millis(99),
        }
    }
}

struct Histogram {
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Histogram {
    fn record(&self, took: Duration) {
        // Counters order nothing else, and additions and swaps of one counter are ordered among
        // themselves.
        self.buckets[bucket_of(took)].fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> Window {
        let counts = array::from_fn(|bucket| self.buckets[bucket].swap(0, Ordering::Relaxed));
        Window { total: counts.iter().sum(), counts }
    }
}

struct Window {
    counts: [u64; BUCKETS],
    total: u64,
}

impl Window {
    /// By nearest rank: the smallest value that `percent` percent of the values do not exceed.
    fn percentile_millis(&self, percent: u64) -> Option<f64> {
        let rank = (self.total * percent).div_ceil(100);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank && rank > 0
        })?;
        Some(middle_nanos(bucket) as f64 / 1e6)
    }
}

fn bucket_of(took: Duration) -> usize {
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let nanos = nanos.clamp(1 << FLOOR_BITS, (1 << CEILING_BITS) - 1);
    let octave = nanos.ilog2();
    // The bits right below the leading one say which part of the octave it is.
    let step = (nanos >> (octave - STEP_BITS)) & ((1 << STEP_BITS) - 1);
    (((octave - FLOOR_BITS) << STEP_BITS) as u64 + step) as usize
}

fn middle_nanos(bucket: usize) -> u64 {
    let octave = FLOOR_BITS + (bucket >> STEP_BITS) as u32;
    let step = bucket as u64 & ((1 << STEP_BITS) - 1);
    let width = 1 << (octave - STEP_BITS);
    (1 << octave) + step * width + width / 2
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        sync::atomic::{AtomicBool, AtomicU64},
        thread,
    };

    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    fn near(reported: Option<f64>, exact: Duration) {
        let (reported, exact) = (reported.unwrap(), exact.as_secs_f64() * 1e3);
        assert!(
            (reported - exact).abs() <= exact * 0.05,
            "{reported} ms is reported for {exact} ms"
        );
    }

    #[test]
    fn every_duration_lands_in_the_bucket_around_it() {
        let mut last = 0;
        for nanos in
            (0..).map(|step| 1.01f64.powi(step) * 1024.0).take_while(|nanos| *nanos < 137e9)
        {
            let took = Duration::from_nanos(nanos as u64);
            let bucket = bucket_of(took);
            assert!(bucket >= last && bucket < BUCKETS);
            last = bucket;
            near(Some(middle_nanos(bucket) as f64 / 1e6), took);
        }
        assert_eq!(last, BUCKETS - 1);
        assert_eq!(bucket_of(Duration::ZERO), 0);
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_within_five_percent_of_the_exact_ones() {
        let mut rng = StdRng::seed_from_u64(7);
        for count in [1usize, 2, 3, 99, 100, 101, 5_000] {
            let latencies = Latencies::default();
            let draw =
                |rng: &mut StdRng| Duration::from_secs_f64(10f64.powf(rng.gen_range(-5.0..1.0)));
            let mut updates: Vec<_> = (0..count).map(|_| draw(&mut rng)).collect();
            let mut queries: Vec<_> = (0..2 * count).map(|_| draw(&mut rng)).collect();
            updates.iter().for_each(|took| latencies.record_update(*took));
            queries.iter().for_each(|took| latencies.record_query(*took));
            let window = latencies.take();
            updates.sort();
            queries.sort();
            let exact = |sorted: &[Duration], percent: usize| {
                sorted[(sorted.len() * percent).div_ceil(100) - 1]
            };
            assert_eq!((window.updates, window.queries), (count as u64, 2 * count as u64));
            near(window.update_p50_millis, exact(&updates, 50));
            near(window.update_p99_millis, exact(&updates, 99));
            near(window.query_p50_millis, exact(&queries, 50));
            near(window.query_p99_millis, exact(&queries, 99));
        }
    }

    #[test]
    fn take_resets_the_window() {
        let latencies = Latencies::default();
        assert_eq!(latencies.take(), LatencyWindow::default());
        latencies.clone().record_query(Duration::from_millis(3));
        let window = latencies.take();
        assert_eq!((window.updates, window.queries), (0, 1));
        assert!(
            window.update_p50_millis.is_none()
                && window.query_p50_millis == window.query_p99_millis
        );
        assert_eq!(latencies.take(), LatencyWindow::default());
    }

    #[test]
    fn concurrent_records_are_counted_exactly_once() {
        const THREADS: u64 = 4;
        const EACH: u64 = 50_000;
        let latencies = Latencies::default();
        let (updates, queries) = (AtomicU64::new(0), AtomicU64::new(0));
        let done = AtomicBool::new(false);
        let count = |window: LatencyWindow| {
            updates.fetch_add(window.updates, Ordering::Relaxed);
            queries.fetch_add(window.queries, Ordering::Relaxed);
        };
        thread::scope(|scope| {
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        while !done.load(Ordering::Acquire) {
                            count(latencies.take());
                        }
                    })
                })
                .collect();
            let recorders: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let latencies = latencies.clone();
                    scope.spawn(move || {
                        for turn in 0..EACH {
                            let took = Duration::from_micros(1 + turn * (thread + 1));
                            latencies.record_update(took);
                            latencies.record_query(took);
                        }
                    })
                })
                .collect();
            recorders.into_iter().for_each(|thread| thread.join().unwrap());
            done.store(true, Ordering::Release);
            takers.into_iter().for_each(|thread| thread.join().unwrap());
        });
        count(latencies.take());
        let expected = THREADS * EACH;
        assert_eq!((updates.into_inner(), queries.into_inner()), (expected, expected));
    }
}
