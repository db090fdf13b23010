//! The request to stop.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

/// A request to stop. Clones share it.
#[derive(Clone, Default)]
pub struct Stop(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    closed: Condvar,
}

#[derive(Default)]
struct State {
    closing: bool,
    /// Futures that wait, by number: each has one entry, removed when it is dropped.
    waiting: BTreeMap<u64, Waker>,
    next_waiting: u64,
}

impl Stop {
    /// A stop that is not requested yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The lock is held for assignments only, which leave the state consistent if they panic.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks to stop, for good. Ends every wait.
    pub fn close(&self) {
        let waiting = {
            let mut state = self.lock();
            state.closing = true;
            std::mem::take(&mut state.waiting)
        };
        self.0.closed.notify_all();
        waiting.into_values().for_each(Waker::wake);
    }

    /// Whether [`Self::close`] was called.
    pub fn is_closing(&self) -> bool {
        self.lock().closing
    }

    /// Blocks until the stop or until `time` passed. Whether it is the stop.
    pub fn wait(&self, time: Duration) -> bool {
        let open = |state: &mut State| !state.closing;
        let waited = self.0.closed.wait_timeout_while(self.lock(), time, open);
        waited.unwrap_or_else(PoisonError::into_inner).0.closing
    }

    /// Ends with the stop.
    pub fn closed(&self) -> StopFuture {
        StopFuture { stop: self.clone(), number: None }
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stop").field(&self.is_closing()).finish()
    }
}

/// The future that [`Stop::closed`] returns: ready once the stop was asked for.
#[derive(Debug)]
pub struct StopFuture {
    stop: Stop,
    number: Option<u64>,
}

impl Future for StopFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.stop.lock();
        if state.closing {
            return Poll::Ready(());
        }
        let number = self.number.unwrap_or(state.next_waiting);
        if self.number.is_none() {
            state.next_waiting += 1;
        }
        state.waiting.insert(number, context.waker().clone());
        drop(state);
        self.number = Some(number);
        Poll::Pending
    }
}

impl Drop for StopFuture {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.stop.lock().waiting.remove(&number);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        task::Wake,
        thread,
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    #[derive(Default)]
    struct WakeCounter(AtomicU64);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_stop_ends_the_longest_wait() {
        let stop = Stop::new();
        assert!(!stop.wait(Duration::ZERO));
        let closer = thread::spawn({
            let stop = stop.clone();
            move || stop.close()
        });
        assert!(stop.wait(LONG));
        closer.join().unwrap();
        assert!(stop.is_closing() && stop.wait(LONG));
    }

    #[test]
    fn a_future_is_woken_once_and_leaves_nothing_behind() {
        let stop = Stop::new();
        let counted = Arc::new(WakeCounter::default());
        let waker = Waker::from(counted.clone());
        let context = &mut Context::from_waker(&waker);
        for _ in 0..100 {
            let mut closed = stop.closed();
            assert!(Pin::new(&mut closed).poll(context).is_pending());
            assert!(Pin::new(&mut closed).poll(context).is_pending());
            assert_eq!(stop.lock().waiting.len(), 1);
        }
        assert_eq!(stop.lock().waiting.len(), 0);
        let mut closed = stop.closed();
        assert!(Pin::new(&mut closed).poll(context).is_pending());
        stop.close();
        assert_eq!(counted.0.load(Ordering::SeqCst), 1);
        assert!(Pin::new(&mut closed).poll(context).is_ready());
    }
}
