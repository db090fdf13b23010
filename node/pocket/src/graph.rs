//! Operations that take longer than a request waits: their clients come back for the outcome.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use crate::{bounds::STARTED_MAX, operations::Outcome};

/// The outcome of an operation, when there is one.
pub(crate) type Pending = oneshot::Receiver<Outcome>;

/// What came of looking for an outcome.
pub(crate) enum Found {
    /// It is there. It stays until the client says that it has it.
    Outcome(Outcome),
    /// The operation goes on.
    Pending,
    /// Nothing is known of it.
    Unknown,
}

enum Operation {
    Pending(Pending),
    Done(Outcome),
}

/// See the module. The oldest outcomes go when there are too many; operations that go on stay, and
/// are bounded by what instances take in.
#[derive(Default)]
pub(crate) struct Graph(Mutex<Operations>);

#[derive(Default)]
struct Operations {
    next: u64,
    all: BTreeMap<u64, Operation>,
}

impl Graph {
    fn lock(&self) -> MutexGuard<'_, Operations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an operation that goes on; its number.
    pub(crate) fn keep(&self, pending: Pending) -> u64 {
        let mut operations = self.lock();
        while operations.all.len() >= STARTED_MAX {
            let done = |(number, operation): (&u64, &Operation)| match operation {
                Operation::Done(_) => Some(*number),
                Operation::Pending(_) => None,
            };
            // An operation whose client does not ask for it counts as any other.
            let oldest = operations.all.iter().find_map(done);
            let oldest = oldest.or(operations.all.keys().next().copied());
            oldest.and_then(|number| operations.all.remove(&number));
        }
        operations.next += 1;
        let number = operations.next;
        operations.all.insert(number, Operation::Pending(pending));
        number
    }

    /// Looks for the outcome of an operation.
    pub(crate) fn look(&self, number: u64) -> Found {
        let mut operations = self.lock();
        let Some(operation) = operations.all.get_mut(&number) else { return Found::Unknown };
        match operation {
            Operation::Done(outcome) => Found::Outcome(outcome.clone()),
            Operation::Pending(pending) => match pending.try_recv() {
                Ok(outcome) => {
                    *operation = Operation::Done(outcome.clone());
                    Found::Outcome(outcome)
                }
                Err(oneshot::error::TryRecvError::Empty) => Found::Pending,
                Err(oneshot::error::TryRecvError::Closed) => {
                    operations.all.remove(&number);
                    Found::Unknown
                }
            },
        }
    }

    /// The client has the outcome.
    pub(crate) fn forget(&self, number: u64) {
        self.lock().all.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::json;

    #[test]
    fn an_outcome_is_there_until_it_is_forgotten() {
        let graph = Graph::default();
        let (done, pending) = oneshot::channel();
        let number = graph.keep(pending);
        assert!(matches!(graph.look(number), Found::Pending));
        assert!(done.send(json(&7)).is_ok());
        for _ in 0..2 {
            assert!(matches!(graph.look(number), Found::Outcome(Ok(bytes)) if bytes == b"7"));
        }
        graph.forget(number);
        assert!(matches!(graph.look(number), Found::Unknown));
    }

    #[test]
    fn the_oldest_outcomes_go_first() {
        let graph = Graph::default();
        let (_going_on, pending) = oneshot::channel();
        let first = graph.keep(pending);
        let mut numbers = Vec::new();
        for _ in 0..STARTED_MAX {
            let (done, pending) = oneshot::channel();
            let number = graph.keep(pending);
            assert!(done.send(json(&number)).is_ok());
            graph.look(number);
            numbers.push(number);
        }
        assert!(matches!(graph.look(first), Found::Pending));
        assert!(
            numbers.first().is_some_and(|oldest| matches!(graph.look(*oldest), Found::Unknown))
        );
        assert!(numbers.last().is_some_and(|last| matches!(graph.look(*last), Found::Outcome(_))));
    }
}
