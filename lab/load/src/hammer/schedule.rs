//! When operations start: closed loop (a fixed number in flight) or open loop (fixed times).
//!
//! In the open loop the latency of an operation counts from the time at which it was due, so that
//! waiting which the node causes is part of it. The number in flight is bounded; an operation that
//! finds no room at its time is not started, and counted.
//!
//! An operation that the node refused with `Retry-After` is tried again after the back-off, until
//! the phase is over.

use std::{
    io::{IsTerminal, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use cli::{Stop, lock};
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    failure::{Class, Failure},
    fleet::{Fleet, Job},
    pattern::mix,
    stats::{Outcome, Phase, millis},
    transport::BackOff,
};
use crate::node_cost::Meter;

/// After a stop, operations in flight get this long to end.
const GRACE: Duration = Duration::from_secs(3);
/// How long preparations are tried while the node refuses them.
const PREPARATION_MAX: Duration = Duration::from_secs(900);

/// The operation of an index and a worker (0 in the open loop).
pub(crate) type Source = Arc<dyn Fn(u64, usize) -> Job + Send + Sync>;

/// Ends when operations in flight had `grace` since a stop was requested.
pub(crate) async fn grace_is_over(stop: &Stop, grace: Duration) {
    stop.requested().await;
    tokio::time::sleep(grace).await;
}

/// Fixed times, `rate` a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) rate: f64,
}

impl Schedule {
    /// When operation `index` is due, from the start.
    pub(crate) fn due(self, index: u64) -> Duration {
        Duration::from_secs_f64(index as f64 / self.rate)
    }
}

/// An intensity that changes every period, in a pattern that follows from the seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) seed: u64,
    pub(crate) period: Duration,
}

impl Shape {
    /// Between a tenth and all.
    pub(crate) fn intensity(self, elapsed: Duration) -> f64 {
        let period = (elapsed.as_secs_f64() / self.period.as_secs_f64()) as u64;
        let dice = (mix(self.seed ^ mix(period + 1)) >> 11) as f64 / (1_u64 << 53) as f64;
        0.1 + 0.9 * dice
    }

    /// Workers that work, of `all`; at least one.
    fn workers(self, elapsed: Duration, all: usize) -> usize {
        ((all as f64 * self.intensity(elapsed)).round() as usize).clamp(1, all)
    }

    /// Whether operation `index` is part of the load at this time.
    fn takes(self, elapsed: Duration, index: u64) -> bool {
        let dice = (mix(self.seed ^ !index) >> 11) as f64 / (1_u64 << 53) as f64;
        dice < self.intensity(elapsed)
    }
}

/// When a phase ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Time(Duration),
    Operations(u64),
}

/// A phase that is to be run.
pub(crate) struct Order {
    pub(crate) mode: String,
    pub(crate) name: String,
    pub(crate) limit: Limit,
    pub(crate) shape: Option<Shape>,
    /// Closed loop regardless of the command line, and retried until it succeeds.
    pub(crate) preparation: bool,
}

/// Runs phases on a fleet, with the concurrency and the rate of the command line.
pub(crate) struct Runner {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) stop: Stop,
    pub(crate) concurrency: usize,
    pub(crate) rate: Option<f64>,
    pub(crate) outstanding: usize,
    /// Processes of nodes whose CPU time is read, and the endpoint whose height is.
    pub(crate) pids: Vec<u32>,
    pub(crate) url: String,
    pub(crate) seed: u64,
    pub(crate) progress: bool,
}

struct Running {
    fleet: Arc<Fleet>,
    stop: Stop,
    back_off: BackOff,
    source: Source,
    phase: Arc<Mutex<Phase>>,
    started: Instant,
    end: Option<Instant>,
    operations: u64,
    next: AtomicU64,
    shape: Option<Shape>,
}

impl Running {
    fn over(&self) -> bool {
        self.stop.is_requested() || self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Runs one operation until it is answered by something else than a refusal.
    async fn settle(&self, index: u64, worker: usize, due: Option<Instant>) {
        let job = (self.source)(index, worker);
        loop {
            let begun = due.unwrap_or_else(Instant::now);
            let outcome = tokio::select! {
                outcome = self.fleet.perform(job, index) => outcome,
                () = grace_is_over(&self.stop, GRACE) => {
                    lock(&self.phase).interrupted = true;
                    let text = format!("the run was stopped, and the operation did not end within {GRACE:?}");
                    Outcome { failure: Some(Failure::new(Class::Interrupted, text)), ..Outcome::default() }
                }
            };
            lock(&self.phase).add(job.kind, &outcome, begun.elapsed());
            let Some(told) =
                outcome.failure.filter(Failure::is_refusal).and_then(|failure| failure.retry_after)
            else {
                return;
            };
            let wait = self.back_off.wait(told);
            let too_late = self.end.is_some_and(|end| Instant::now() + wait >= end);
            if !too_late {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = self.stop.requested() => {}
                }
            }
            if too_late || self.stop.is_requested() {
                lock(&self.phase).kinds.entry(job.kind).or_default().given_up += 1;
                return;
            }
        }
    }

    async fn closed(self: Arc<Self>, worker: usize, concurrency: usize) {
        while !self.over() && self.next.load(Ordering::Relaxed) < self.operations {
            if let Some(shape) = self.shape
                && worker >= shape.workers(self.started.elapsed(), concurrency)
            {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.operations {
                return;
            }
            self.settle(index, worker, None).await;
        }
    }

    async fn open(self: Arc<Self>, schedule: Schedule, outstanding: usize) {
        let room = Arc::new(Semaphore::new(outstanding));
        let mut tasks = JoinSet::new();
        for index in 0..self.operations {
            let due = self.started + schedule.due(index);
            if self.end.is_some_and(|end| due >= end) {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep_until(due.into()) => {}
                () = self.stop.requested() => break,
            }
            if self.shape.is_some_and(|shape| !shape.takes(self.started.elapsed(), index)) {
                continue;
            }
            while tasks.try_join_next().is_some() {}
            let Ok(permit) = room.clone().try_acquire_owned() else {
                lock(&self.phase).not_started += 1;
                continue;
            };
            let running = self.clone();
            tasks.spawn(async move {
                running.settle(index, 0, Some(due)).await;
                drop(permit);
            });
        }
        while tasks.join_next().await.is_some() {}
    }
}

impl Runner {
    /// Runs operations of `source` as ordered and returns what was counted.
    pub(crate) async fn run(&self, order: Order, source: Source) -> Phase {
        let (name, preparation) = (order.name.clone(), order.preparation);
        let phase = Arc::new(Mutex::new(Phase { name, preparation, ..Phase::default() }));
        let meter = if preparation || self.pids.is_empty() {
            None
        } else {
            reported(Meter::start(&self.pids, &self.url).await)
        };
        let started = Instant::now();
        let end = match (order.preparation, order.limit) {
            (true, _) => Some(started + PREPARATION_MAX),
            (false, Limit::Time(duration)) => Some(started + duration),
            (false, Limit::Operations(_)) => None,
        };
        let operations = match order.limit {
            Limit::Operations(operations) => operations,
            Limit::Time(_) => u64::MAX,
        };
        let running = Arc::new(Running {
            fleet: self.fleet.clone(),
            stop: self.stop.clone(),
            back_off: BackOff::new(mix(self.seed ^ 0xBAC0_0FF5)),
            source,
            phase: phase.clone(),
            started,
            end,
            operations,
            next: AtomicU64::new(0),
            shape: order.shape,
        });
        let progress = self.progress.then(|| {
            let label = format!("{} / {}", order.mode, order.name);
            tokio::spawn(progress(label, phase.clone(), started))
        });
        match self.rate {
            Some(rate) if !order.preparation => {
                running.open(Schedule { rate }, self.outstanding).await
            }
            _ => {
                let mut workers = JoinSet::new();
                for worker in 0..self.concurrency {
                    workers.spawn(running.clone().closed(worker, self.concurrency));
                }
                while workers.join_next().await.is_some() {}
            }
        }
        if let Some(progress) = progress {
            progress.abort();
            clear_line();
        }
        let seconds = started.elapsed().as_secs_f64();
        let cost = match meter {
            Some(meter) => reported(meter.stop().await),
            None => None,
        };
        let phase = lock(&phase).clone();
        Phase { seconds, cost, ..phase }
    }
}

/// A reading of nodes, which may have ended: then the reason is printed, and there is none.
fn reported<T>(reading: anyhow::Result<T>) -> Option<T> {
    reading.inspect_err(|error| eprintln!("hammer: {error:#}")).ok()
}

/// Prints how it goes: in place on a terminal, a line every five seconds elsewhere.
async fn progress(label: String, phase: Arc<Mutex<Phase>>, started: Instant) {
    let in_place = std::io::stderr().is_terminal();
    let mut ticks = tokio::time::interval(Duration::from_secs(if in_place { 1 } else { 5 }));
    ticks.tick().await;
    let (mut before, mut done_before) = (Instant::now(), 0);
    loop {
        ticks.tick().await;
        let phase = lock(&phase).clone();
        let done = phase.done();
        let rate = (done - done_before) as f64 / before.elapsed().as_secs_f64();
        (before, done_before) = (Instant::now(), done);
        let latency = phase.latency();
        let at = |quantile| latency.as_ref().map_or(0.0, |latency| millis(latency, quantile));
        let mut line = format!(
            "{label}: {:.0} s, {rate:.0}/s, p50 {:.1} ms, p99 {:.1} ms, errors {}",
            started.elapsed().as_secs_f64(),
            at(0.5),
            at(0.99),
            phase.errors()
        );
        for (what, count) in [
            ("refused", phase.refusals()),
            ("not started", phase.not_started),
            ("WRONG", phase.wrong()),
        ] {
            if count > 0 {
                line.push_str(&format!(", {what} {count}"));
            }
        }
        let mut out = std::io::stderr().lock();
        let _ = if in_place { write!(out, "\r\x1b[K{line}") } else { writeln!(out, "{line}") };
        let _ = out.flush();
    }
}

fn clear_line() {
    let mut out = std::io::stderr().lock();
    if out.is_terminal() {
        let _ = write!(out, "\r\x1b[K");
        let _ = out.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_do_not_drift() {
        let schedule = Schedule { rate: 3.0 };
        assert_eq!(schedule.due(0), Duration::ZERO);
        assert_eq!(schedule.due(3), Duration::from_secs(1));
        assert_eq!(schedule.due(3_000_000), Duration::from_secs(1_000_000));
        let fast = Schedule { rate: 12_345.0 };
        assert!((1..1000).all(|index| fast.due(index) > fast.due(index - 1)));
    }

    #[test]
    fn the_shape_repeats_with_its_seed_and_varies() {
        let shape = |seed| Shape { seed, period: Duration::from_secs(10) };
        let pattern = |seed| -> Vec<usize> {
            (0..50)
                .map(|period| shape(seed).workers(Duration::from_secs(period * 10 + 5), 20))
                .collect()
        };
        assert_eq!(pattern(1), pattern(1));
        assert_ne!(pattern(1), pattern(2));
        assert!(pattern(1).iter().all(|workers| (1..=20).contains(workers)));
        assert!(pattern(1).iter().max() > pattern(1).iter().min());
        let within = shape(1).intensity(Duration::from_secs(11));
        assert_eq!(within, shape(1).intensity(Duration::from_secs(19)));
    }
}
