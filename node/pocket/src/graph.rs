//! Operations that take longer than a request waits: their clients come back for the outcome.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{
    bounds::STARTED_MAX,
    operations::{Failure, Outcome},
};

/// The outcome of an operation, when there is one.
pub(crate) type Pending = oneshot::Receiver<Outcome>;

/// Result of looking for an outcome.
pub(crate) enum OperationStatus {
    /// It is available. It stays until the client confirms it, or newer ones need its room.
    Outcome(Outcome),
    /// The operation is still running.
    Pending,
    /// There is none: it was confirmed, had to make room, or there was no such operation.
    Gone,
}

enum Operation {
    Pending,
    Done(Outcome),
}

/// The oldest outcomes are dropped when there are too many, or when they are too long together;
/// running operations stay, and are bounded by the queues of the instances.
pub(crate) struct Graph {
    operations: Mutex<Operations>,
    bytes_max: u64,
}

#[derive(Default)]
struct Operations {
    next: u64,
    all: BTreeMap<u64, Operation>,
    /// Those that are done, in the order in which they ended.
    done: VecDeque<u64>,
    /// Of their outcomes.
    bytes: u64,
}

fn bytes_of(outcome: &Outcome) -> u64 {
    match outcome {
        Ok(answer) => answer.len() as u64,
        Err(failure) => failure.message.len() as u64,
    }
}

impl Operations {
    fn remove(&mut self, number: u64) {
        if let Some(Operation::Done(outcome)) = self.all.remove(&number) {
            self.done.retain(|done| *done != number);
            self.bytes -= bytes_of(&outcome);
        }
    }
}

impl Graph {
    /// A graph with room for this number of bytes of outcomes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { operations: Mutex::default(), bytes_max }
    }

    fn lock(&self) -> MutexGuard<'_, Operations> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a running operation, and its outcome when there is one. Returns its number.
    pub(crate) fn keep(self: &Arc<Self>, pending: Pending) -> u64 {
        let number = self.begin();
        let graph = self.clone();
        tokio::spawn(async move {
            let ended = Failure::bad("the instance ended before the operation did");
            let outcome = pending.await.unwrap_or(Err(ended));
            graph.finish(number, outcome);
        });
        number
    }

    fn begin(&self) -> u64 {
        let mut operations = self.lock();
        operations.next += 1;
        let number = operations.next;
        operations.all.insert(number, Operation::Pending);
        number
    }

    fn finish(&self, number: u64, outcome: Outcome) {
        // In memory of the graph's: an answer may hold room of a pool that others wait for.
        let outcome = outcome.map(|answer| Bytes::copy_from_slice(&answer));
        let mut operations = self.lock();
        // A client that said that it has the outcome does not ask for it.
        let Some(operation) = operations.all.get_mut(&number) else { return };
        let bytes = bytes_of(&outcome);
        *operation = Operation::Done(outcome);
        operations.done.push_back(number);
        operations.bytes += bytes;
        // The newest stays in any case: it cannot have been asked for yet.
        while operations.done.len() > STARTED_MAX
            || (operations.bytes > self.bytes_max && operations.done.len() > 1)
        {
            let Some(oldest) = operations.done.front().copied() else { break };
            operations.remove(oldest);
        }
    }

    pub(crate) fn status(&self, number: u64) -> OperationStatus {
        match self.lock().all.get(&number) {
            Some(Operation::Done(outcome)) => OperationStatus::Outcome(outcome.clone()),
            Some(Operation::Pending) => OperationStatus::Pending,
            None => OperationStatus::Gone,
        }
    }

    /// Why there may be no outcome of an operation.
    pub(crate) fn gone_message(&self, number: &str) -> String {
        format!(
            "no outcome of an operation {number} is there: its client had it, or newer ones needed \
             its room; kept are operations_started = {STARTED_MAX} outcomes of \
             answers_kept_bytes = {} at most",
            self.bytes_max
        )
    }

    /// The client has the outcome.
    pub(crate) fn forget(&self, number: u64) {
        self.lock().remove(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::json;

    fn is_there(graph: &Graph, number: u64) -> bool {
        matches!(graph.status(number), OperationStatus::Outcome(_))
    }

    #[tokio::test]
    async fn an_outcome_is_there_until_it_is_forgotten() {
        let graph = Arc::new(Graph::new(1_000));
        let (done, pending) = oneshot::channel();
        let number = graph.keep(pending);
        assert!(matches!(graph.status(number), OperationStatus::Pending));
        assert!(done.send(json(&7)).is_ok());
        while matches!(graph.status(number), OperationStatus::Pending) {
            tokio::task::yield_now().await;
        }
        for _ in 0..2 {
            assert!(
                matches!(graph.status(number), OperationStatus::Outcome(Ok(bytes)) if bytes == b"7"[..])
            );
        }
        graph.forget(number);
        assert!(matches!(graph.status(number), OperationStatus::Gone));
        assert_eq!(graph.lock().bytes, 0);
    }

    #[tokio::test]
    async fn an_operation_that_nobody_ends_has_failed() {
        let graph = Arc::new(Graph::new(1_000));
        let (done, pending) = oneshot::channel();
        let number = graph.keep(pending);
        drop(done);
        while matches!(graph.status(number), OperationStatus::Pending) {
            tokio::task::yield_now().await;
        }
        let OperationStatus::Outcome(Err(failure)) = graph.status(number) else { panic!() };
        assert_eq!(failure.status, hyper::StatusCode::BAD_REQUEST);
        assert!(failure.message.contains("ended before"), "{}", failure.message);
    }

    #[test]
    fn an_outcome_that_is_kept_holds_no_room_of_another_pool() {
        let (graph, pool) =
            (Graph::new(1_000), accounting::Pool::standalone("stable_answers", 100));
        let Ok(room) = pool.try_reserve(100) else { panic!() };
        let number = graph.begin();
        graph.finish(number, Ok(http_server::with_reservation(vec![7_u8; 60], room)));
        assert_eq!((pool.used_bytes(), graph.lock().bytes), (0, 60));
        assert!(
            matches!(graph.status(number), OperationStatus::Outcome(Ok(bytes)) if bytes == [7; 60][..])
        );
    }

    #[test]
    fn the_oldest_outcomes_go_first_and_what_goes_on_stays() {
        let graph = Graph::new(u64::MAX);
        let going_on = graph.begin();
        let mut numbers = Vec::new();
        for _ in 0..=STARTED_MAX {
            let number = graph.begin();
            graph.finish(number, json(&number));
            numbers.push(number);
        }
        assert!(matches!(graph.status(going_on), OperationStatus::Pending));
        let there = numbers.iter().filter(|number| is_there(&graph, **number)).count();
        assert_eq!(there, STARTED_MAX);
        assert!(
            numbers
                .first()
                .is_some_and(|oldest| matches!(graph.status(*oldest), OperationStatus::Gone))
        );
    }

    // Promise: P15 - Outcomes that clients poll for are bounded by their bytes.
    #[test]
    fn outcomes_are_bounded_by_their_bytes() {
        let graph = Graph::new(100);
        let answer = |bytes: usize| Ok(bytes::Bytes::from(vec![0_u8; bytes]));
        let numbers = [(); 5].map(|()| graph.begin());
        for (number, bytes) in numbers.iter().zip([40, 40, 40, 0, 90]) {
            graph.finish(*number, answer(bytes));
            assert!(graph.lock().bytes <= 100);
            assert!(is_there(&graph, *number));
        }
        assert_eq!(
            numbers.map(|number| is_there(&graph, number)),
            [false, false, false, true, true]
        );
        // One that is longer than all may be has the room alone.
        let [early, long] = [(); 2].map(|()| graph.begin());
        graph.finish(long, answer(500));
        assert!(is_there(&graph, long) && !is_there(&graph, numbers[3]));
        // An operation that ends late is newer, whenever it began.
        graph.finish(early, answer(90));
        assert!(is_there(&graph, early) && !is_there(&graph, long));
        assert!(graph.gone_message("1").contains("answers_kept_bytes = 100"));
    }
}
