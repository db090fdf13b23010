//! Work that takes a thread: as many pieces at a time as there are places, the rest is queued.
//!
//! A thread continues with the next piece, so that under load no thread is put to sleep and woken
//! for each. Queued work is dropped with the request that it belongs to, so there is never more of
//! it than there are requests.
//!
//! # Fairness
//!
//! The queue is bounded, by less than the requests that may be in flight, so that requests of
//! others still get in. Where it is full, work of a canister with a shorter line replaces the
//! newest work of the longest line, which is refused; work of the longest line itself is refused.
//!
//! Work for canisters is queued by canister. A canister has at most its share of the places at a
//! time. Of the canisters with queued work, the one that would have used least time is served next
//! (fair queueing), where its next query counts as much as its last one took. So known canisters
//! with long queries do not delay others by more than the queries that run, however many they are
//! and send. Where the wait is bounded, work that is still queued at its end is refused.
//!
//! A canister without work is remembered with the time it used. The number that is remembered is
//! bounded, and a request can name any canister, so canisters that are not known must have no
//! advantage. Their first query counts as much as such queries took lately, and each one moves the
//! clock, from which later ones begin, by its share of the time it took. So work that is queued
//! waits for canisters that are not known no longer than if all canisters with work took turns.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use accounting::processor::Processors;
use ic_principal::Principal;
use tokio::sync::oneshot;

/// Work, or the refusal of it, whichever its request is answered with.
type Job = Box<dyn FnOnce(Result<(), JobError>) + Send>;

/// Canisters without work whose used time is remembered. Each takes 86 bytes in two trees whose
/// nodes are about half full at worst: at most about 200 kilobytes for one kind of work.
const IDLE_LINES_MAX: usize = 1_024;

/// The mean of the first work of canisters moves by one part in this number with each.
const MEAN_PARTS: u64 = 8;

/// Places of one kind of work.
pub(crate) struct JobQueue {
    limit: usize,
    /// Of them, the share of one canister.
    limit_per_canister: usize,
    /// Pieces of work that may be queued.
    queued_max: usize,
    queue: Mutex<QueueState>,
    /// Where threads stay while they work.
    processors: Option<Processors>,
}

#[derive(Default)]
struct QueueState {
    running: usize,
    next: u64,
    /// Canisters with work.
    lines: BTreeMap<Principal, CanisterQueue>,
    /// Canisters without work.
    idle: IdleUsage,
    /// Used time, in nanoseconds, of the lines that are served: where a line with new work begins.
    clock: u64,
    /// Nanoseconds that the first work of canisters that were not known took lately, as a mean.
    first_mean: u64,
}

struct CanisterQueue {
    running: usize,
    waiting: BTreeMap<u64, Job>,
    usage: Usage,
    /// Whether the usage includes work of this canister that is done.
    is_known: bool,
}

impl CanisterQueue {
    fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }
}

#[derive(Clone, Copy)]
struct Usage {
    /// Nanoseconds, on the clock of the queue.
    used: u64,
    /// Nanoseconds that its last work took, or is expected to take.
    last: u64,
}

impl Usage {
    /// The used time once its next work is done, if that takes as long as its last.
    fn virtual_finish(self) -> u64 {
        self.used.saturating_add(self.last)
    }
}

/// Used time of canisters without work.
#[derive(Default)]
struct IdleUsage {
    usage: BTreeMap<Principal, Usage>,
    /// The same canisters, in the order in which they are forgotten.
    order: BTreeSet<(u64, Principal)>,
}

impl IdleUsage {
    /// Beyond the bound, the canister that would be served first is forgotten: it gains least.
    fn remember(&mut self, canister: Principal, usage: Usage) {
        self.usage.insert(canister, usage);
        self.order.insert((usage.virtual_finish(), canister));
        if self.order.len() <= IDLE_LINES_MAX {
            return;
        }
        if let Some((_, forgotten)) = self.order.pop_first() {
            self.usage.remove(&forgotten);
        }
    }

    /// Removes what is remembered of a canister.
    fn take_usage(&mut self, canister: Principal) -> Option<Usage> {
        let usage = self.usage.remove(&canister)?;
        self.order.remove(&(usage.virtual_finish(), canister));
        Some(usage)
    }
}

impl QueueState {
    /// The line of a canister that has work from now on.
    fn line(&mut self, canister: Principal) -> &mut CanisterQueue {
        self.lines.entry(canister).or_insert_with(|| {
            let recalled = self.idle.take_usage(canister);
            let used = recalled.map_or(0, |usage| usage.used).max(self.clock);
            let last = recalled.map_or(self.first_mean, |usage| usage.last);
            CanisterQueue {
                running: 0,
                waiting: BTreeMap::new(),
                usage: Usage { used, last },
                is_known: recalled.is_some(),
            }
        })
    }

    /// Moves a canister that has no more work to those without.
    fn settle(&mut self, canister: Principal) {
        let is_idle = self.lines.get(&canister).is_some_and(CanisterQueue::is_idle);
        if !is_idle {
            return;
        }
        let known = self.lines.remove(&canister).filter(|line| line.is_known);
        if let Some(line) = known {
            self.idle.remember(canister, line.usage);
        }
    }

    fn queued(&self) -> usize {
        self.lines.values().map(|line| line.waiting.len()).sum()
    }

    /// Makes room for work of a canister where the queue is full. Returns the work that has to go
    /// for it; an error if it has to go itself.
    fn make_room(&mut self, canister: &Principal) -> Result<Job, JobError> {
        let own = self.lines.get(canister).map_or(0, |line| line.waiting.len());
        let longest = self.lines.iter().max_by_key(|(_, line)| line.waiting.len());
        let longest = longest.filter(|(_, line)| line.waiting.len() > own).map(|(id, _)| *id);
        let crowded_out = longest.and_then(|longest| {
            let (_, job) = self.lines.get_mut(&longest)?.waiting.pop_last()?;
            self.settle(longest);
            Some(job)
        });
        crowded_out.ok_or(JobError::Crowded)
    }

    /// Takes the next job, and the canister that it is for.
    fn pop_next(&mut self, limit_per_canister: usize) -> Option<(Principal, Job)> {
        let next = self
            .lines
            .iter()
            .filter(|(_, line)| line.running < limit_per_canister)
            .filter_map(|(canister, line)| {
                let (first, _) = line.waiting.first_key_value()?;
                Some((line.usage.virtual_finish(), *first, *canister))
            })
            .min()?;
        let (_, _, canister) = next;
        let line = self.lines.get_mut(&canister)?;
        let (_, job) = line.waiting.pop_first()?;
        line.running += 1;
        self.clock = self.clock.max(line.usage.used);
        Some((canister, job))
    }

    fn finish_job(&mut self, canister: &Principal, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let with_work = u64::try_from(self.lines.len()).unwrap_or(u64::MAX);
        let Some(line) = self.lines.get_mut(canister) else { return };
        line.running -= 1;
        line.usage.used = line.usage.used.saturating_add(took);
        line.usage.last = took;
        if !line.is_known {
            line.is_known = true;
            // The used time of known canisters moves the clock when they are served again. These
            // may not come again, and the next one that is not known must begin later.
            self.clock = self.clock.saturating_add((took / with_work).max(1));
            let mean = self.first_mean;
            self.first_mean = mean - mean / MEAN_PARTS + took / MEAN_PARTS;
        }
        self.settle(*canister);
    }
}

/// Work that has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobError {
    /// The work panicked, or the node ended before it was done.
    Failed,
    /// It was still queued when its wait was over.
    Overdue,
    /// The queue was full, with as much work for this canister as for any other.
    Crowded,
}

/// Removes queued work that is no longer wanted.
struct Ticket<'a> {
    jobs: &'a JobQueue,
    canister: Principal,
    number: u64,
}

impl Ticket<'_> {
    /// Whether the work was still queued.
    fn withdraw(&self) -> bool {
        let mut queue = self.jobs.queue();
        let line = queue.lines.get_mut(&self.canister);
        let job = line.and_then(|line| line.waiting.remove(&self.number));
        queue.settle(self.canister);
        drop(queue);
        // Dropped outside the lock, with everything it holds.
        job.is_some()
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl JobQueue {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Self::build(limit, limit, usize::MAX, None)
    }

    /// Places of work that is handed to worker processes, the share of one canister, and the bound
    /// of the queue.
    pub(crate) fn for_workers(
        limit: usize,
        limit_per_canister: usize,
        queued_max: usize,
    ) -> Arc<Self> {
        Self::build(limit, limit_per_canister, queued_max, Some(Processors::of_this_thread()))
    }

    fn build(
        limit: usize,
        limit_per_canister: usize,
        queued_max: usize,
        processors: Option<Processors>,
    ) -> Arc<Self> {
        let (limit, queued_max) = (limit.max(1), queued_max.max(1));
        let limit_per_canister = limit_per_canister.clamp(1, limit);
        Arc::new(Self {
            limit,
            limit_per_canister,
            queued_max,
            queue: Mutex::default(),
            processors,
        })
    }

    /// Does `work`, which is for no canister, on a blocking thread once there is a place. Work that
    /// was begun is done to its end, and keeps its place until then, also when its request is gone.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JobError> {
        self.run_for(Principal::management_canister(), None, work).await
    }

    /// The same for a canister; work that is still queued after `wait` is not begun.
    pub(crate) async fn run_for<T: Send + 'static>(
        self: &Arc<Self>,
        canister: Principal,
        wait: Option<Duration>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JobError> {
        let (answer, mut answered) = oneshot::channel();
        let job: Job = Box::new(move |turn| {
            // The request may be gone.
            let _ = answer.send(turn.map(|()| work()));
        });
        let ticket = self.submit(canister, job)?;
        if let (Some(ticket), Some(wait)) = (&ticket, wait) {
            match tokio::time::timeout(wait, &mut answered).await {
                Ok(answer) => return answer.unwrap_or(Err(JobError::Failed)),
                Err(_) if ticket.withdraw() => return Err(JobError::Overdue),
                // It runs, and ends by bounds of its own.
                Err(_) => {}
            }
        }
        answered.await.unwrap_or(Err(JobError::Failed))
    }

    fn submit(
        self: &Arc<Self>,
        canister: Principal,
        job: Job,
    ) -> Result<Option<Ticket<'_>>, JobError> {
        let mut queue = self.queue();
        let crowded_out = match queue.queued() < self.queued_max {
            true => None,
            false => Some(queue.make_room(&canister)?),
        };
        let number = queue.next;
        queue.next += 1;
        queue.line(canister).waiting.insert(number, job);
        // Threads end only when nothing is queued that may run, so what is queued either waits for
        // a thread, or for its canister's share.
        let job =
            if queue.running < self.limit { queue.pop_next(self.limit_per_canister) } else { None };
        let line = queue.lines.get(&canister);
        let is_queued = line.is_some_and(|line| line.waiting.contains_key(&number));
        queue.running += usize::from(job.is_some());
        // What is refused is dropped after the lock, with everything that it holds.
        drop(queue);
        if let Some(refused) = crowded_out {
            refused(Err(JobError::Crowded));
        }
        if let Some(job) = job {
            let jobs = Arc::clone(self);
            tokio::task::spawn_blocking(move || jobs.run_jobs(job));
        }
        Ok(is_queued.then_some(Ticket { jobs: self, canister, number }))
    }

    fn run_jobs(&self, first: (Principal, Job)) {
        let _stay = self.processors.as_ref().map(Processors::stay_for);
        let mut next = Some(first);
        while let Some((canister, job)) = next {
            let started = Instant::now();
            if catch_unwind(AssertUnwindSafe(|| job(Ok(())))).is_err() {
                tracing::error!("work for a request panicked");
            }
            let mut queue = self.queue();
            queue.finish_job(&canister, started.elapsed());
            next = queue.pop_next(self.limit_per_canister);
            if next.is_none() {
                queue.running -= 1;
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, QueueState> {
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

    fn canister(number: u8) -> Principal {
        Principal::from_slice(&[number])
    }

    fn queued(jobs: &JobQueue) -> usize {
        jobs.queue().queued()
    }

    /// Occupies a place for `canister` until the sender is dropped or used.
    async fn occupy(jobs: &Arc<JobQueue>, canister: Principal) -> mpsc::Sender<()> {
        let (go, wait) = mpsc::channel::<()>();
        let (begun, has_begun) = oneshot::channel();
        let jobs = jobs.clone();
        tokio::spawn(async move {
            let work = move || {
                begun.send(()).unwrap();
                let _ = wait.recv();
            };
            jobs.run_for(canister, None, work).await
        });
        has_begun.await.unwrap();
        go
    }

    #[tokio::test]
    async fn no_more_is_done_at_once_than_there_are_places_and_everything_is_done() {
        let jobs = JobQueue::new(2);
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut all = tokio::task::JoinSet::new();
        for n in 0..200 {
            let (jobs, now, most) = (jobs.clone(), now.clone(), most.clone());
            all.spawn(async move {
                let work = move || {
                    most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                    std::thread::yield_now();
                    now.fetch_sub(1, SeqCst);
                    n
                };
                jobs.run(work).await.unwrap()
            });
        }
        let mut done = all.join_all().await;
        done.sort_unstable();
        assert_eq!(done, (0..200).collect::<Vec<_>>());
        assert!(most.load(SeqCst) <= 2, "{most:?}");
        // The threads leave after their last answer.
        while jobs.queue().running > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn work_of_a_request_that_left_is_not_begun_and_takes_no_room() {
        let jobs = JobQueue::new(1);
        let (go, wait) = mpsc::channel::<()>();
        let first = tokio::spawn({
            let jobs = jobs.clone();
            async move { jobs.run(move || wait.recv().unwrap()).await.unwrap() }
        });
        while jobs.queue().running == 0 {
            tokio::task::yield_now().await;
        }
        let begun = Arc::new(AtomicUsize::new(0));
        let second = tokio::spawn({
            let (jobs, begun) = (jobs.clone(), begun.clone());
            async move { jobs.run(move || begun.fetch_add(1, SeqCst)).await }
        });
        while queued(&jobs) == 0 {
            tokio::task::yield_now().await;
        }
        second.abort();
        assert!(second.await.unwrap_err().is_cancelled());
        assert_eq!(queued(&jobs), 0);
        go.send(()).unwrap();
        first.await.unwrap();
        assert_eq!(begun.load(SeqCst), 0);
    }

    #[tokio::test]
    async fn a_panic_costs_its_own_request_and_no_place() {
        let jobs = JobQueue::new(1);
        assert!(jobs.run(|| panic!("on purpose")).await.is_err());
        assert_eq!(jobs.run(|| 7).await.unwrap(), 7);
    }

    // Promise: P13 - A canister with queued queries cannot keep those of others out of the queue.
    #[tokio::test]
    async fn full_queue_refuses_the_newest_work_of_the_longest_line() {
        let jobs = JobQueue::for_workers(1, 1, 4);
        let go = occupy(&jobs, canister(1)).await;
        let submit = |number: u8| {
            let jobs = jobs.clone();
            tokio::spawn(async move { jobs.run_for(canister(number), None, || ()).await })
        };
        let mut first = Vec::new();
        for length in 1..=4 {
            first.push(submit(1));
            while queued(&jobs) < length {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(submit(1).await.unwrap(), Err(JobError::Crowded), "of the longest line");
        // Each of others takes the place of its newest.
        let mut others = Vec::new();
        for number in [2, 3, 2] {
            others.push(submit(number));
            let newest = first.pop().unwrap();
            assert_eq!(newest.await.unwrap(), Err(JobError::Crowded));
        }
        // All lines are as long now, but for one.
        assert_eq!(submit(2).await.unwrap(), Err(JobError::Crowded));
        assert_eq!(queued(&jobs), 4);
        drop(go);
        for one in first.into_iter().chain(others) {
            assert_eq!(one.await.unwrap(), Ok(()));
        }
    }

    // Promise: P13 - The canister with the least used query time is served next.
    #[tokio::test]
    async fn canister_that_used_least_time_is_served_next() {
        let jobs = JobQueue::for_workers(1, 1, usize::MAX);
        let go = occupy(&jobs, canister(1)).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut all = tokio::task::JoinSet::new();
        // The canister whose work runs has queued more before any other came.
        for (length, number) in [1, 1, 1, 2, 2, 3].into_iter().enumerate() {
            let (submitted, order) = (jobs.clone(), order.clone());
            all.spawn(async move {
                let work = move || {
                    order.lock().unwrap().push(number);
                    std::thread::sleep(Duration::from_millis(1));
                };
                submitted.run_for(canister(number), None, work).await.unwrap();
            });
            while queued(&jobs) <= length {
                tokio::task::yield_now().await;
            }
        }
        // Longer than the work of the others together.
        std::thread::sleep(Duration::from_millis(200));
        drop(go);
        all.join_all().await;
        assert_eq!(*order.lock().unwrap(), [2, 3, 2, 1, 1, 1]);
    }

    #[tokio::test]
    async fn many_canisters_with_long_work_do_not_go_before_one_with_short_work() {
        let jobs = JobQueue::for_workers(1, 1, usize::MAX);
        let order = Arc::new(Mutex::new(Vec::new()));
        let run = |number: u8, millis: u64| {
            let (submitted, order) = (jobs.clone(), order.clone());
            tokio::spawn(async move {
                let work = move || {
                    order.lock().unwrap().push(number);
                    std::thread::sleep(Duration::from_millis(millis));
                };
                submitted.run_for(canister(number), None, work).await.unwrap();
            })
        };
        // The time of each is known from its first work.
        for number in 1..=4 {
            run(number, 100).await.unwrap();
        }
        run(5, 0).await.unwrap();
        let go = occupy(&jobs, canister(6)).await;
        let mut all = Vec::new();
        for number in 1..=5 {
            all.push(run(number, 1));
            while queued(&jobs) < usize::from(number) {
                tokio::task::yield_now().await;
            }
        }
        drop(go);
        for one in all {
            one.await.unwrap();
        }
        let order = order.lock().unwrap();
        assert_eq!((order.len(), order[5]), (10, 5), "{order:?}");
    }

    /// A canister that is not known.
    fn fresh(number: u32) -> Principal {
        Principal::from_slice(&number.to_be_bytes())
    }

    fn enqueue(queue: &mut QueueState, canister: Principal) {
        let number = queue.next;
        queue.next += 1;
        queue.line(canister).waiting.insert(number, Box::new(|_| {}));
    }

    /// How many fresh canisters, of which four always wait, are served before the work of a known
    /// canister.
    fn served_before(known_takes: Duration, fresh_takes: Duration) -> Option<u32> {
        let mut queue = QueueState::default();
        let known = canister(1);
        enqueue(&mut queue, known);
        assert_eq!(queue.pop_next(1).unwrap().0, known);
        queue.finish_job(&known, known_takes);
        for number in 0..4 {
            enqueue(&mut queue, fresh(number));
        }
        for number in 4..100 {
            let (taken, _) = queue.pop_next(1).unwrap();
            queue.finish_job(&taken, fresh_takes);
            enqueue(&mut queue, fresh(number));
        }
        enqueue(&mut queue, known);
        (0..10_000).find(|served| {
            let (taken, _) = queue.pop_next(1).unwrap();
            if taken != known {
                queue.finish_job(&taken, fresh_takes);
                enqueue(&mut queue, fresh(100 + served));
            }
            taken == known
        })
    }

    #[test]
    fn fresh_canisters_with_long_work_do_not_go_before_one_with_short_work() {
        let served = served_before(Duration::from_millis(1), Duration::from_millis(100));
        assert!(served.is_some_and(|served| served <= 4), "{served:?}");
    }

    #[test]
    fn fresh_canisters_with_short_work_go_before_one_with_long_work_in_turns_only() {
        // Of five canisters with work, each has used as much once the long work is done.
        let served = served_before(Duration::from_millis(10), Duration::from_micros(100));
        assert!(served.is_some_and(|served| served <= 600), "{served:?}");
    }

    #[test]
    fn canister_with_long_work_is_not_forgotten_for_fresh_ones() {
        let mut queue = QueueState::default();
        let (long, other) = (canister(1), canister(2));
        enqueue(&mut queue, long);
        enqueue(&mut queue, fresh(0));
        assert_eq!(queue.pop_next(1).unwrap().0, long);
        queue.finish_job(&long, Duration::from_secs(1));
        for number in 1..200 {
            let (taken, _) = queue.pop_next(1).unwrap();
            queue.finish_job(&taken, Duration::from_micros(1));
            enqueue(&mut queue, fresh(number));
        }
        enqueue(&mut queue, long);
        enqueue(&mut queue, other);
        let order: Vec<_> = (0..3).map(|_| queue.pop_next(1).unwrap().0).collect();
        assert_eq!(order, [fresh(199), other, long]);
    }

    #[test]
    fn canisters_without_work_are_forgotten_beyond_a_number() {
        let mut queue = QueueState::default();
        for number in 0..3_000 {
            let id = fresh(number);
            enqueue(&mut queue, id);
            let (taken, _) = queue.pop_next(1).unwrap();
            assert_eq!(taken, id);
            queue.finish_job(&id, Duration::from_millis(1));
            assert!(queue.lines.is_empty());
            assert!(queue.idle.usage.len() <= IDLE_LINES_MAX);
            assert_eq!(queue.idle.usage.len(), queue.idle.order.len());
        }
        assert_eq!(queue.idle.order.len(), IDLE_LINES_MAX);
    }

    // Promise: P13 - One canister has at most its share of query workers.
    #[tokio::test]
    async fn one_canister_has_at_most_its_share_of_the_places() {
        let jobs = JobQueue::for_workers(2, 1, usize::MAX);
        let go = occupy(&jobs, canister(1)).await;
        let second = tokio::spawn({
            let jobs = jobs.clone();
            async move { jobs.run_for(canister(1), None, || 1).await }
        });
        while queued(&jobs) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(jobs.run_for(canister(2), None, || 2).await, Ok(2));
        assert_eq!(queued(&jobs), 1);
        drop(go);
        assert_eq!(second.await.unwrap(), Ok(1));
    }

    #[tokio::test]
    async fn work_that_is_queued_when_its_wait_is_over_is_not_begun() {
        let jobs = JobQueue::for_workers(1, 1, usize::MAX);
        let go = occupy(&jobs, canister(1)).await;
        let waited = Some(Duration::from_millis(5));
        let begun = Arc::new(AtomicUsize::new(0));
        let work = {
            let begun = begun.clone();
            move || begun.fetch_add(1, SeqCst)
        };
        assert_eq!(jobs.run_for(canister(2), waited, work).await, Err(JobError::Overdue));
        assert_eq!(queued(&jobs), 0);
        drop(go);
        assert_eq!(jobs.run_for(canister(2), None, || 2).await, Ok(2));
        assert_eq!(begun.load(SeqCst), 0);
    }
}
