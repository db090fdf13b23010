//! Work that takes a thread: so much at a time as there are places, the rest waits in its order.
//!
//! A thread that is done with one piece goes on with the next, so that under load no thread is put
//! to sleep and woken for each. What waits is dropped with the request that it belongs to, so there
//! is never more of it than there are requests.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use budget::processor::Processors;
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// Places of one kind of work.
pub(crate) struct Places {
    limit: usize,
    queue: Mutex<Queue>,
    /// Where threads stay while they work.
    processors: Option<Processors>,
}

#[derive(Default)]
struct Queue {
    /// Threads that work.
    running: usize,
    next: u64,
    waiting: BTreeMap<u64, Job>,
}

/// The work panicked, or the node ended before it was done.
#[derive(Debug)]
pub(crate) struct Unfinished;

/// Takes what waits out of the queue when nobody wants it any more.
struct Ticket<'a> {
    places: &'a Places,
    number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let job = self.places.queue().waiting.remove(&self.number);
        // What it holds is let go outside the lock.
        drop(job);
    }
}

impl Places {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), queue: Mutex::default(), processors: None })
    }

    /// Places of work that is handed to worker processes.
    pub(crate) fn beside_workers(limit: usize) -> Arc<Self> {
        let processors = Some(Processors::of_this_thread());
        Arc::new(Self { limit: limit.max(1), queue: Mutex::default(), processors })
    }

    /// Does `work` on a blocking thread once there is a place. Work that was begun is done to its
    /// end, and keeps its place until then, whether or not anybody waits for it.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unfinished> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move || {
            // Whoever asked may have left.
            let _ = answer.send(work());
        });
        let _ticket = self.submit(job);
        answered.await.map_err(|_| Unfinished)
    }

    fn submit(self: &Arc<Self>, job: Job) -> Option<Ticket<'_>> {
        let mut queue = self.queue();
        if queue.running >= self.limit {
            let number = queue.next;
            queue.next += 1;
            queue.waiting.insert(number, job);
            return Some(Ticket { places: self, number });
        }
        queue.running += 1;
        drop(queue);
        let places = Arc::clone(self);
        tokio::task::spawn_blocking(move || places.work_on(job));
        None
    }

    fn work_on(&self, first: Job) {
        let _stay = self.processors.as_ref().map(Processors::stay_for);
        let mut next = Some(first);
        while let Some(job) = next {
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("work for a request panicked");
            }
            let mut queue = self.queue();
            next = queue.waiting.pop_first().map(|(_, job)| job);
            if next.is_none() {
                queue.running -= 1;
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    };

    use super::*;

    #[tokio::test]
    async fn no_more_is_done_at_once_than_there_are_places_and_everything_is_done() {
        let places = Places::new(2);
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut all = tokio::task::JoinSet::new();
        for n in 0..200 {
            let (places, now, most) = (places.clone(), now.clone(), most.clone());
            all.spawn(async move {
                let work = move || {
                    most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                    std::thread::yield_now();
                    now.fetch_sub(1, SeqCst);
                    n
                };
                places.run(work).await.unwrap()
            });
        }
        let mut done = all.join_all().await;
        done.sort_unstable();
        assert_eq!(done, (0..200).collect::<Vec<_>>());
        assert!(most.load(SeqCst) <= 2, "{most:?}");
        // The threads leave after their last answer.
        while places.queue().running > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn work_of_a_request_that_left_is_not_begun_and_takes_no_room() {
        let places = Places::new(1);
        let (go, wait) = mpsc::channel::<()>();
        let first = tokio::spawn({
            let places = places.clone();
            async move { places.run(move || wait.recv().unwrap()).await.unwrap() }
        });
        while places.queue().running == 0 {
            tokio::task::yield_now().await;
        }
        let begun = Arc::new(AtomicUsize::new(0));
        let second = tokio::spawn({
            let (places, begun) = (places.clone(), begun.clone());
            async move { places.run(move || begun.fetch_add(1, SeqCst)).await }
        });
        while places.queue().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        second.abort();
        assert!(second.await.unwrap_err().is_cancelled());
        assert!(places.queue().waiting.is_empty());
        go.send(()).unwrap();
        first.await.unwrap();
        assert_eq!(begun.load(SeqCst), 0);
    }

    #[tokio::test]
    async fn a_panic_costs_its_own_request_and_no_place() {
        let places = Places::new(1);
        assert!(places.run(|| panic!("on purpose")).await.is_err());
        assert_eq!(places.run(|| 7).await.unwrap(), 7);
    }
}
