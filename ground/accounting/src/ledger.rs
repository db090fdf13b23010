//! Pools with caps, and memory held of them.
//!
//! A pool is a cap and a counter. Reserving adds to the counter if the sum stays within the cap, in
//! one atomic step without a lock; dropping the [`Reservation`] subtracts. Reservations grow,
//! shrink, split and merge, so that memory which moves through the node (a body that becomes a
//! message that becomes a queue entry) is never counted twice and never uncounted. Consumers whose
//! size is decided elsewhere by rules of their own (replicated state, where every node must decide
//! alike) report it through an [`Observation`], which counts and never refuses.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    format_size,
    wait::{Line, WAITERS_MAX},
};

/// Most pools of a ledger, so that a sheet stays readable.
pub const POOLS_MAX: usize = 64;

/// A pool to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    /// Its name, unique in the ledger, as metrics and messages show it.
    pub name: &'static str,
    /// The most that may be reserved at once.
    pub cap_bytes: u64,
}

/// Why a ledger was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The caps promise more than there is.
    #[error(
        "the memory pools together may take {}, more than the {} they have to share: pool `{pool}` ({}) is the first that does not fit; lower its cap or give the node more memory",
        format_size(*.sum_bytes), format_size(*.budget_bytes), format_size(*.cap_bytes)
    )]
    OverBudget {
        /// Where the running sum passed the budget.
        pool: &'static str,
        /// Cap of that pool.
        cap_bytes: u64,
        /// Sum of all caps.
        sum_bytes: u64,
        /// Limit of the sum of their caps.
        budget_bytes: u64,
    },
    /// Two pools of one name.
    #[error("two memory pools are called `{0}`; every pool needs a name of its own")]
    Twice(&'static str),
    /// Too many pools.
    #[error("a ledger has at most {POOLS_MAX} pools, {0} were asked for")]
    TooMany(usize),
}

/// A pool's answer when it has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("memory pool `{pool}` is full: {} asked, {} of {} in use; try again when some was given back, or raise its limit", format_size(*.asked_bytes), format_size(*.used_bytes), format_size(*.cap_bytes))]
pub struct PoolFull {
    /// Name of the pool that refused.
    pub pool: &'static str,
    /// Cap of the pool.
    pub cap_bytes: u64,
    /// Bytes in use at that moment.
    pub used_bytes: u64,
    /// Bytes of the failed reservation.
    pub asked_bytes: u64,
}

impl PoolFull {
    /// Whether waiting cannot help, because more was asked than the pool may ever hold.
    pub fn is_hopeless(&self) -> bool {
        self.asked_bytes > self.cap_bytes
    }
}

/// All pools of the node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Ledger {
    budget_bytes: u64,
    /// In the order they were given: the order of the sheet. Few, so a name is found by looking at
    /// each.
    pools: Arc<[Pool]>,
}

impl Ledger {
    /// Makes the pools, unless their caps sum to more than `budget_bytes`.
    pub fn new(
        budget_bytes: u64,
        specs: impl IntoIterator<Item = PoolSpec>,
    ) -> Result<Self, LedgerError> {
        let specs: Vec<PoolSpec> = specs.into_iter().take(POOLS_MAX + 1).collect();
        if specs.len() > POOLS_MAX {
            return Err(LedgerError::TooMany(specs.len()));
        }
        let sum_bytes = specs.iter().fold(0_u64, |sum, spec| sum.saturating_add(spec.cap_bytes));
        let mut running = 0_u64;
        for (position, spec) in specs.iter().enumerate() {
            if specs.iter().take(position).any(|earlier| earlier.name == spec.name) {
                return Err(LedgerError::Twice(spec.name));
            }
            running = running.saturating_add(spec.cap_bytes);
            if running > budget_bytes {
                return Err(LedgerError::OverBudget {
                    pool: spec.name,
                    cap_bytes: spec.cap_bytes,
                    sum_bytes,
                    budget_bytes,
                });
            }
        }
        let pools = specs.into_iter().map(Pool::new).collect();
        Ok(Self { budget_bytes, pools })
    }

    /// The pool of that name.
    pub fn pool(&self, name: &str) -> Option<Pool> {
        self.pools.iter().find(|pool| pool.name() == name).cloned()
    }

    /// Budget of all pools together.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes in use in all pools.
    pub fn used_bytes(&self) -> u64 {
        self.pools.iter().fold(0, |sum, pool| sum.saturating_add(pool.used_bytes()))
    }

    /// Every pool's figures, in the order of the sheet. Pools are read one after the other: each
    /// line is true, the sum is of nearly one moment.
    pub fn snapshot(&self) -> Snapshot {
        let pools: Vec<PoolSnapshot> = self.pools.iter().map(Pool::snapshot).collect();
        Snapshot {
            budget_bytes: self.budget_bytes,
            used_bytes: pools.iter().fold(0, |sum, pool| sum.saturating_add(pool.used_bytes)),
            pools,
        }
    }
}

/// A ledger's figures at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Budget of all pools together.
    pub budget_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Pool by pool.
    pub pools: Vec<PoolSnapshot>,
}

/// A pool's figures at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSnapshot {
    /// Name of the pool, as metrics and messages show it.
    pub name: &'static str,
    /// Cap of the pool.
    pub cap_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// The most it held since start.
    pub high_water_bytes: u64,
    /// How often it refused.
    pub refused: u64,
    /// How often an [`Observation`] found more than the cap: a rule elsewhere does not hold what
    /// it promised.
    pub overruns: u64,
}

/// One pool. Cheap to clone; clones are the same pool.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

#[derive(Default)]
struct Inner {
    name: &'static str,
    cap_bytes: u64,
    used_bytes: AtomicU64,
    high_water_bytes: AtomicU64,
    refused: AtomicU64,
    overruns: AtomicU64,
    line: Line,
}

impl Pool {
    fn new(spec: PoolSpec) -> Self {
        Self(Arc::new(Inner { name: spec.name, cap_bytes: spec.cap_bytes, ..Inner::default() }))
    }

    /// A pool outside any ledger, for tests and tools that measure one part alone.
    pub fn standalone(name: &'static str, cap_bytes: u64) -> Self {
        Self::new(PoolSpec { name, cap_bytes })
    }

    /// Name of the pool, as metrics and messages show it.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// Cap of the pool.
    pub fn cap_bytes(&self) -> u64 {
        self.0.cap_bytes
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.0.used_bytes.load(Ordering::SeqCst)
    }

    /// Bytes that could be reserved now.
    pub fn free_bytes(&self) -> u64 {
        self.cap_bytes().saturating_sub(self.used_bytes())
    }

    /// Takes `bytes` or returns the reason why not. Never waits.
    pub fn try_reserve(&self, bytes: u64) -> Result<Reservation, PoolFull> {
        match self.0.take(bytes) {
            Ok(()) => Ok(self.reservation(bytes)),
            Err(full) => Err(self.refuse(full)),
        }
    }

    /// Takes `bytes`, standing in line for them for at most `timeout`. Blocks the thread, so it is
    /// for the node's own threads, not for tasks. More than the pool may ever hold is refused
    /// at once.
    pub fn reserve_within(&self, bytes: u64, timeout: Duration) -> Result<Reservation, PoolFull> {
        let full = self.0.full(self.used_bytes(), bytes);
        if full.is_hopeless() {
            return Err(self.refuse(full));
        }
        if !self.0.line.is_occupied() && self.0.take(bytes).is_ok() {
            return Ok(self.reservation(bytes));
        }
        match self.0.line.wait(timeout, || self.0.take(bytes).ok()) {
            Some(()) => Ok(self.reservation(bytes)),
            None => Err(self.refuse(PoolFull { used_bytes: self.used_bytes(), ..full })),
        }
    }

    /// Counts memory whose size other rules decide. Starts at nothing.
    pub fn observe(&self) -> Observation {
        Observation { pool: self.clone(), bytes: 0 }
    }

    /// The pool's figures now, read one after the other.
    pub fn snapshot(&self) -> PoolSnapshot {
        PoolSnapshot {
            name: self.0.name,
            cap_bytes: self.0.cap_bytes,
            used_bytes: self.used_bytes(),
            high_water_bytes: self.0.high_water_bytes.load(Ordering::Relaxed),
            refused: self.0.refused.load(Ordering::Relaxed),
            overruns: self.0.overruns.load(Ordering::Relaxed),
        }
    }

    fn reservation(&self, bytes: u64) -> Reservation {
        Reservation { pool: self.clone(), bytes }
    }

    fn refuse(&self, full: PoolFull) -> PoolFull {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        full
    }

    fn is(&self, other: &Pool) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name())
            .field("used_bytes", &self.used_bytes())
            .field("cap_bytes", &self.cap_bytes())
            .finish()
    }
}

impl Inner {
    /// Adds `bytes` if they fit. Sequentially consistent throughout: the line in front of the pool
    /// relies on a release and an attempt seeing one another in one order.
    fn take(&self, bytes: u64) -> Result<(), PoolFull> {
        if bytes == 0 {
            return Ok(());
        }
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.cap_bytes);
        match self.used_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits) {
            Ok(before) => {
                self.high_water_bytes.fetch_max(before + bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(used_bytes) => Err(self.full(used_bytes, bytes)),
        }
    }

    fn full(&self, used_bytes: u64, asked_bytes: u64) -> PoolFull {
        PoolFull { pool: self.name, cap_bytes: self.cap_bytes, used_bytes, asked_bytes }
    }

    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            let before = self.used_bytes.fetch_sub(bytes, Ordering::SeqCst);
            assert!(before >= bytes, "pool {} was given back more than was taken", self.name);
            self.line.wake();
        }
    }

    /// Adds `bytes` whether they fit or not.
    fn count(&self, bytes: u64) {
        let before = self.used_bytes.fetch_add(bytes, Ordering::SeqCst);
        let after = before.saturating_add(bytes);
        self.high_water_bytes.fetch_max(after, Ordering::Relaxed);
        if after > self.cap_bytes {
            self.overruns.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Memory held of a pool; dropping it releases it.
#[derive(Debug)]
#[must_use = "dropping a reservation gives its memory back"]
pub struct Reservation {
    pool: Pool,
    bytes: u64,
}

impl Reservation {
    /// Bytes of the pool that the reservation holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of which pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Takes `bytes` more, or leaves it as it is.
    pub fn try_grow(&mut self, bytes: u64) -> Result<(), PoolFull> {
        self.pool.0.take(bytes).map_err(|full| self.pool.refuse(full))?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives back `bytes`, or all there is when that is less.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.pool.0.give_back(bytes);
    }

    /// Grows or shrinks to exactly `bytes`, or leaves it as it is.
    pub fn try_resize(&mut self, bytes: u64) -> Result<(), PoolFull> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.try_grow(more),
            None => {
                self.shrink(self.bytes - bytes);
                Ok(())
            }
        }
    }

    /// Hands `bytes` of it to a reservation of their own; `None` when it holds less.
    pub fn split(&mut self, bytes: u64) -> Option<Reservation> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(self.pool.reservation(bytes))
    }

    /// Joins `other` to it; hands it back when it is of another pool.
    pub fn merge(&mut self, mut other: Reservation) -> Result<(), Reservation> {
        if !self.pool.is(&other.pool) {
            return Err(other);
        }
        self.bytes += std::mem::take(&mut other.bytes);
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.0.give_back(self.bytes);
    }
}

/// Memory counted in a pool, never refused; dropping it ends the count.
#[derive(Debug)]
#[must_use = "dropping an observation counts its memory as gone"]
pub struct Observation {
    pool: Pool,
    bytes: u64,
}

impl Observation {
    /// The counted bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts `bytes` from now on.
    pub fn set(&mut self, bytes: u64) {
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => self.pool.0.count(more),
            None => self.pool.0.give_back(self.bytes - bytes),
        }
        self.bytes = bytes;
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.pool.0.give_back(self.bytes);
    }
}

const _: () = assert!(WAITERS_MAX >= 2, "a line is for more than one");

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    fn ledger() -> Ledger {
        let specs =
            [PoolSpec { name: "alpha", cap_bytes: 100 }, PoolSpec { name: "beta", cap_bytes: 50 }];
        Ledger::new(150, specs).unwrap()
    }

    #[test]
    fn a_sum_above_the_budget_is_refused_and_names_the_pool() {
        let specs = [
            PoolSpec { name: "alpha", cap_bytes: 100 },
            PoolSpec { name: "beta", cap_bytes: 51 },
            PoolSpec { name: "gamma", cap_bytes: 1 },
        ];
        let error = Ledger::new(150, specs).unwrap_err();
        assert_eq!(
            error,
            LedgerError::OverBudget {
                pool: "beta",
                cap_bytes: 51,
                sum_bytes: 152,
                budget_bytes: 150
            }
        );
        assert!(error.to_string().contains("`beta`"));
    }

    #[test]
    fn a_sum_that_overflows_is_above_every_budget() {
        let specs = [
            PoolSpec { name: "alpha", cap_bytes: u64::MAX - 1 },
            PoolSpec { name: "beta", cap_bytes: 2 },
        ];
        assert!(Ledger::new(u64::MAX - 1, specs).is_err());
    }

    #[test]
    fn names_are_unique_and_pools_are_few() {
        let twice = [PoolSpec { name: "alpha", cap_bytes: 1 }; 2];
        assert_eq!(Ledger::new(10, twice).unwrap_err(), LedgerError::Twice("alpha"));
        let many = (0..).map(|_| PoolSpec { name: "x", cap_bytes: 0 });
        assert!(matches!(Ledger::new(10, many).unwrap_err(), LedgerError::TooMany(_)));
    }

    #[test]
    fn a_full_pool_says_everything() {
        let pool = ledger().pool("alpha").unwrap();
        let held = pool.try_reserve(60).unwrap();
        let full = pool.try_reserve(41).unwrap_err();
        assert_eq!(
            full,
            PoolFull { pool: "alpha", cap_bytes: 100, used_bytes: 60, asked_bytes: 41 }
        );
        let text = full.to_string();
        assert!(
            ["`alpha`", "41 B", "60 B", "100 B"].iter().all(|part| text.contains(part)),
            "{text}"
        );
        assert!(!full.is_hopeless() && pool.try_reserve(101).unwrap_err().is_hopeless());
        drop(held);
        assert_eq!(pool.try_reserve(100).unwrap().bytes(), 100);
        assert_eq!((pool.snapshot().high_water_bytes, pool.snapshot().refused), (100, 2));
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn asking_for_more_than_a_number_holds_does_not_wrap() {
        let pool = Pool::standalone("alpha", u64::MAX);
        let held = pool.try_reserve(u64::MAX).unwrap();
        assert!(pool.try_reserve(u64::MAX).is_err());
        assert!(pool.try_reserve(0).is_ok());
        drop(held);
    }

    #[test]
    fn reservations_grow_shrink_split_and_merge() {
        let ledger = ledger();
        let pool = ledger.pool("alpha").unwrap();
        let mut held = pool.try_reserve(40).unwrap();
        held.try_grow(60).unwrap();
        assert!(held.try_grow(1).is_err());
        assert_eq!(held.bytes(), 100);
        held.shrink(30);
        assert_eq!(pool.used_bytes(), 70);
        let mut part = held.split(20).unwrap();
        assert!(held.split(51).is_none());
        assert_eq!((held.bytes(), part.bytes(), pool.used_bytes()), (50, 20, 70));
        part.try_resize(5).unwrap();
        part.try_resize(10).unwrap();
        assert!(part.try_resize(51).is_err());
        held.merge(part).unwrap();
        assert_eq!((held.bytes(), pool.used_bytes()), (60, 60));
        let other = ledger.pool("beta").unwrap().try_reserve(7).unwrap();
        let other = held.merge(other).unwrap_err();
        assert_eq!((other.bytes(), ledger.used_bytes()), (7, 67));
        held.shrink(u64::MAX);
        assert_eq!(held.bytes(), 0);
        drop((held, other));
        assert_eq!(ledger.used_bytes(), 0);
    }

    #[test]
    fn an_observation_counts_past_the_cap_and_says_so() {
        let pool = Pool::standalone("state", 100);
        let mut seen = pool.observe();
        seen.set(90);
        seen.set(120);
        assert!(pool.try_reserve(1).is_err());
        assert_eq!((pool.used_bytes(), pool.free_bytes(), pool.snapshot().overruns), (120, 0, 1));
        seen.set(10);
        assert_eq!(pool.try_reserve(90).unwrap().bytes(), 90);
        drop(seen);
        assert_eq!((pool.used_bytes(), pool.snapshot().high_water_bytes), (0, 120));
    }

    #[test]
    fn a_snapshot_keeps_the_order_of_the_sheet() {
        let ledger = ledger();
        let _held = ledger.pool("beta").unwrap().try_reserve(5).unwrap();
        let snapshot = ledger.snapshot();
        assert_eq!(
            snapshot.pools.iter().map(|pool| pool.name).collect::<Vec<_>>(),
            ["alpha", "beta"]
        );
        assert_eq!((snapshot.used_bytes, snapshot.budget_bytes), (5, 150));
        assert!(ledger.pool("gamma").is_none());
    }

    #[test]
    fn many_threads_never_pass_the_cap_and_leave_nothing_behind() {
        let pool = Pool::standalone("shared", 1_000);
        let start = Barrier::new(8);
        thread::scope(|scope| {
            for seed in 0..8_u64 {
                let (pool, start) = (&pool, &start);
                scope.spawn(move || {
                    start.wait();
                    let mut random = seed + 1;
                    let mut held = Vec::new();
                    for _ in 0..20_000 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        match pool.try_reserve(random >> 56) {
                            Ok(reservation) => held.push(reservation),
                            Err(full) => {
                                assert!(full.used_bytes + full.asked_bytes > full.cap_bytes);
                                held.clear();
                            }
                        }
                        assert!(pool.used_bytes() <= 1_000);
                    }
                });
            }
        });
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.snapshot().high_water_bytes <= 1_000);
    }

    #[test]
    fn waiting_is_refused_at_once_when_hopeless_and_in_the_end_when_not() {
        let pool = Pool::standalone("executions", 10);
        assert!(pool.reserve_within(11, Duration::from_secs(3600)).unwrap_err().is_hopeless());
        let _held = pool.try_reserve(5).unwrap();
        let full = pool.reserve_within(6, Duration::from_millis(1)).unwrap_err();
        assert_eq!((full.used_bytes, full.asked_bytes), (5, 6));
        assert_eq!(pool.reserve_within(5, Duration::ZERO).unwrap().bytes(), 5);
    }

    #[test]
    fn a_large_reservation_is_not_starved_by_small_ones() {
        // Four threads keep the pool busy with small reservations through the line; one wants all
        // of it. First come, first served means it gets it.
        let pool = Pool::standalone("executions", 8);
        let long = Duration::from_secs(600);
        let start = Barrier::new(5);
        let done = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    while !done.load(Ordering::SeqCst) {
                        let held = pool.reserve_within(2, long).unwrap();
                        thread::yield_now();
                        drop(held);
                    }
                });
            }
            start.wait();
            for _ in 0..50 {
                assert_eq!(pool.reserve_within(8, long).unwrap().bytes(), 8);
            }
            done.store(true, Ordering::SeqCst);
        });
        assert_eq!(pool.used_bytes(), 0);
    }
}
