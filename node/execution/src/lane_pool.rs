//! The execution threads: made once, handed jobs, joined at the end.
//!
//! Thread `n` is the only one that uses update worker `n`; the first is the caller's, which would
//! only wait otherwise: handing a message over and back costs as much as many a message. The
//! distribution of jobs over threads does not influence their results, which are returned in the
//! order of the jobs. A job that panics has no other effect: the caller gets an error for it.
//!
//! Each thread alternates with its worker, so both stay on one processor
//! ([`accounting::processor`]): the caller where it is at its first job until [`LanePool::roam`],
//! the others on those behind it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use accounting::processor::{Processors, stay_on};

use crate::config::FatalError;

type Job = Box<dyn FnOnce(usize) + Send>;

pub(crate) struct LanePool {
    /// Threads 1 and up.
    others: Vec<(SyncSender<Job>, JoinHandle<()>)>,
    processors: Processors,
}

impl LanePool {
    /// Starts the other threads of `threads` execution threads, of which the caller is one.
    pub(crate) fn new(threads: usize) -> Result<Self, FatalError> {
        let others = (1..threads.max(1))
            .map(|lane| {
                // A job at a time is handed over; the others wait with the caller.
                let (job_tx, job_rx): (_, Receiver<Job>) = sync_channel(1);
                let handle = std::thread::Builder::new()
                    .name(format!("execute-{lane}"))
                    .spawn(move || {
                        for job in job_rx {
                            // The job's result channel closes with it, which is how the caller
                            // learns of a panic.
                            let _ = catch_unwind(AssertUnwindSafe(|| job(lane)));
                        }
                    })
                    .map_err(|error| FatalError::Threads(error.to_string()))?;
                Ok((job_tx, handle))
            })
            .collect::<Result<_, FatalError>>()?;
        Ok(Self { others, processors: Processors::of_this_thread() })
    }

    /// The caller, whom [`Self::run`] keeps on a processor, may leave it.
    pub(crate) fn roam(&self) {
        self.processors.roam();
    }

    /// Runs all jobs, each given the number of its thread, and returns their results in order.
    pub(crate) fn run<T, F>(&self, jobs: Vec<F>) -> Result<Vec<T>, FatalError>
    where
        T: Send + 'static,
        F: FnOnce(usize) -> T + Send + 'static,
    {
        let threads = self.others.len() + 1;
        let here = self.processors.stay();
        let mut done: Vec<Option<T>> = jobs.iter().map(|_| None).collect();
        let (result_tx, result_rx): (Sender<(usize, T)>, _) = channel();
        // A job per thread, the caller's last; then the next ones.
        let mut jobs = jobs.into_iter().enumerate().peekable();
        while jobs.peek().is_some() {
            let own = jobs.next();
            let others = self.others.iter().zip(1..);
            for ((index, job), ((job_tx, _), distance)) in
                jobs.by_ref().take(threads - 1).zip(others)
            {
                let result_tx = result_tx.clone();
                let there = here.and_then(|here| self.processors.beside(here, distance));
                let job: Job = Box::new(move |lane| {
                    there.map(stay_on);
                    // The receiver outlives all jobs unless one of them panicked.
                    let _ = result_tx.send((index, job(lane)));
                });
                job_tx.send(job).map_err(|_| FatalError::Threads("a thread is gone".into()))?;
            }
            if let Some((index, job)) = own
                && let Ok(result) = catch_unwind(AssertUnwindSafe(|| job(0)))
                && let Some(slot) = done.get_mut(index)
            {
                *slot = Some(result);
            }
        }
        drop(result_tx);
        for (index, result) in result_rx {
            if let Some(slot) = done.get_mut(index) {
                *slot = Some(result);
            }
        }
        done.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| {
            FatalError::Threads(
                "a message made an execution thread panic; this is a fault of the node".into(),
            )
        })
    }
}

impl Drop for LanePool {
    fn drop(&mut self) {
        for (job_tx, handle) in self.others.drain(..) {
            drop(job_tx);
            // A thread that panicked has nothing more to say.
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let pool = LanePool::new(3).unwrap();
        let jobs: Vec<_> = (0..20u64).map(|number| move |_lane: usize| number * 2).collect();
        assert_eq!(pool.run(jobs).unwrap(), (0..20).map(|number| number * 2).collect::<Vec<_>>());
    }

    #[test]
    fn every_thread_stays_on_a_processor_and_the_caller_roams_again() {
        let usable = rustix::thread::sched_getaffinity(None).unwrap();
        let pool = LanePool::new(2).unwrap();
        let where_it_may_be = |_: usize| rustix::thread::sched_getaffinity(None).unwrap();
        let jobs = [where_it_may_be; 2].to_vec();
        let [own, other] = pool.run(jobs).unwrap().try_into().unwrap();
        if usable.count() > 1 {
            assert_eq!((own.count(), other.count()), (1, 1));
            assert_ne!(own, other);
        }
        pool.roam();
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), usable);
    }

    #[test]
    fn a_panic_is_reported_and_the_pool_goes_on() {
        let pool = LanePool::new(1).unwrap();
        let jobs: Vec<Box<dyn FnOnce(usize) -> u8 + Send>> =
            vec![Box::new(|_| panic!("on purpose")), Box::new(|_| 1)];
        assert!(pool.run(jobs).is_err());
        assert_eq!(pool.run(vec![|_: usize| 7]).unwrap(), [7]);
    }
}
