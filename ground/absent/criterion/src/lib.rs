//! In place of criterion: the consensus engine implements one trait of it, for its own benches.

/// Runners of asynchronous benches.
pub mod async_executor {
    /// Runs a future to its end.
    pub trait AsyncExecutor {
        /// Blocks the thread until `future` has ended; returns its output.
        fn block_on<T>(&self, future: impl Future<Output = T>) -> T;
    }
}
