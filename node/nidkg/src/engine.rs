//! Where the heavy work runs, and its memory limit.
//!
//! Key generation would take every core for seconds, and threads that sign handshakes meanwhile
//! would miss their deadlines. So it has a pool of its own with a stated share of the cores, at
//! least one of which is left to others, and its threads run at a lower priority. Where there is a
//! single core, the one thread also yields between items of work, each of which is bounded by a few
//! milliseconds.
//!
//! Tables of receivers' keys are kept while the ledger's pool has room; without room the work is
//! done without them, slower. They can be dropped at any time and are made again when needed. The
//! table of small logarithms is made for the moment of a search that needs a large one, out of the
//! same pool.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use accounting::{Pool, Reservation};
use rayon::{ThreadPool, ThreadPoolBuilder, prelude::*};
use thiserror::Error;

use crate::{
    curve::{FixedBase, G1, G1Affine, Scalar},
    logarithm::Table,
};

/// How much of the machine key generation may use.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Threads of the pool. [`share_of_cores`] computes it from a share. More threads than cores
    /// gain nothing; as many as cores starve others.
    pub threads: NonZeroUsize,
    /// Added to the threads' niceness, 0 to 19: how far they step back when others want the core.
    /// Ignored where the system does not allow it.
    pub nice: i32,
    /// Whether threads give up the core between items of work: for machines with one core.
    pub yields: bool,
    /// Ledger pool for tables. Its cap bounds what stays resident and what a search for a cheating
    /// dealer's chunk may take.
    pub tables: Pool,
}

impl EngineConfig {
    /// Half of the cores, at least one and never all but on a machine with one; niceness 10; tables
    /// up to 32 MiB.
    pub fn for_this_machine() -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            threads: share_of_cores(cores, 50),
            nice: 10,
            yields: cores == 1,
            tables: Pool::standalone("nidkg_tables", TABLE_BYTES_MAX),
        }
    }
}

/// Default cap of the tables.
pub const TABLE_BYTES_MAX: u64 = 32 << 20;

/// Threads for `percent` of `cores`: at least one, and at least one core is left to others where
/// there are two.
pub fn share_of_cores(cores: usize, percent: usize) -> NonZeroUsize {
    let threads = (cores * percent / 100).clamp(1, cores.saturating_sub(1).max(1));
    NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN)
}

/// Yields to other threads: the calling thread becomes batch work of the given niceness with the
/// longest time slice. A thread that wakes up to answer a request has a shorter one, and need not
/// wait until this one has used up its slice. A kernel without slices per task still takes the
/// niceness; if lowering the priority is not permitted, the thread works at its old one.
fn lower_priority(nice: i32) {
    let nice = nice.clamp(0, 19);
    if nice == 0 {
        return;
    }
    let attributes = SchedulingAttributes {
        size: size_of::<SchedulingAttributes>() as u32,
        policy: libc::SCHED_BATCH as u32,
        nice,
        runtime: SLICE.as_nanos() as u64,
        ..SchedulingAttributes::default()
    };
    // SAFETY: the structure is the kernel's, with its size in it; 0 is the calling thread.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if done != 0 {
        // On Linux this is the calling thread's.
        let _ = rustix::process::nice(nice);
    }
}

/// The longest slice the kernel grants.
const SLICE: Duration = Duration::from_millis(100);

/// `sched_attr` of the first version, see sched_setattr(2).
#[derive(Default)]
#[repr(C)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Of a normal or batch thread: its slice.
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// The pool could not be made.
#[derive(Debug, Error)]
#[error(
    "the threads of key generation cannot be started: {0}; raise the limit on threads or lower \
     the share of cores"
)]
pub struct EngineError(#[from] rayon::ThreadPoolBuildError);

/// The pool and the tables of one node.
pub struct Engine {
    pool: ThreadPool,
    yields: bool,
    pub(crate) memory: Pool,
    receivers: Mutex<BTreeMap<[u8; 48], CachedTable>>,
    logarithms: OnceLock<Table>,
}

struct CachedTable {
    table: Arc<FixedBase<G1>>,
    last_use: u64,
    _reservation: Reservation,
}

/// A receiver's key, with its table if there was room.
pub(crate) struct Base {
    point: G1Affine,
    table: Option<Arc<FixedBase<G1>>>,
}

impl Base {
    /// Constant time in the scalar.
    pub(crate) fn mul(&self, factor: &Scalar) -> G1 {
        match &self.table {
            Some(table) => table.mul(factor),
            None => self.point.to_point().mul(factor),
        }
    }
}

impl Engine {
    /// Starts the threads.
    pub fn new(config: EngineConfig) -> Result<Self, EngineError> {
        let nice = config.nice;
        let pool = ThreadPoolBuilder::new()
            .num_threads(config.threads.get())
            .thread_name(|index| format!("nidkg-{index}"))
            .start_handler(move |_| lower_priority(nice))
            .build()?;
        Ok(Self {
            pool,
            yields: config.yields,
            memory: config.tables,
            receivers: Mutex::default(),
            logarithms: OnceLock::new(),
        })
    }

    /// Threads of the pool.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Bytes of tables that are kept now.
    pub fn table_bytes(&self) -> u64 {
        self.memory.used_bytes()
    }

    /// Frees all tables. They are made again when needed.
    pub fn drop_tables(&mut self) {
        self.lock_tables().clear();
        self.logarithms.take();
    }

    /// Runs in the pool; parallel iterators inside use it.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.pool.install(work)
    }

    /// Between two items of work.
    pub(crate) fn yield_if_configured(&self) {
        if self.yields {
            thread::yield_now();
        }
    }

    /// The table for honest chunks, which is small and stays.
    pub(crate) fn logarithms(&self) -> &Table {
        self.logarithms.get_or_init(|| Table::small(&self.memory))
    }

    fn lock_tables(&self) -> MutexGuard<'_, BTreeMap<[u8; 48], CachedTable>> {
        // A panic while holding the lock leaves a map that is still a map.
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tables of these keys; those that are missing are made while there is room, at the cost of
    /// those not used for longest.
    pub(crate) fn bases(&self, keys: &[G1Affine]) -> Vec<Base> {
        let bytes = FixedBase::<G1>::BYTES as u64;
        let names: Vec<_> = keys.iter().map(|key| key.to_compressed()).collect();
        let mut room = Vec::new();
        {
            let mut cached = self.lock_tables();
            let now = cached.values().map(|entry| entry.last_use).max().unwrap_or(0) + 1;
            for name in &names {
                if let Some(entry) = cached.get_mut(name) {
                    entry.last_use = now;
                }
            }
            for name in names
                .iter()
                .filter(|name| !cached.contains_key(*name))
                .collect::<std::collections::BTreeSet<_>>()
            {
                let mut reservation = self.memory.try_reserve(bytes);
                while reservation.is_err() {
                    let oldest = cached
                        .iter()
                        .filter(|(_, entry)| entry.last_use < now)
                        .min_by_key(|(_, entry)| entry.last_use);
                    let Some(oldest) = oldest.map(|(name, _)| *name) else { break };
                    cached.remove(&oldest);
                    reservation = self.memory.try_reserve(bytes);
                }
                let Ok(reservation) = reservation else { break };
                room.push((*name, reservation, now));
            }
        }
        // Made outside the lock: another caller may make the same one meanwhile, and one of the two
        // is dropped.
        let by_name: BTreeMap<_, _> = names.iter().zip(keys).collect();
        let made: Vec<_> = self.run(|| {
            room.into_par_iter()
                .map(|(name, reservation, last_use)| {
                    self.yield_if_configured();
                    let table = Arc::new(FixedBase::new(by_name[&name]));
                    (name, CachedTable { table, last_use, _reservation: reservation })
                })
                .collect()
        });
        let mut cached = self.lock_tables();
        cached.extend(made);
        let table = |name| cached.get(name).map(|entry| entry.table.clone());
        names
            .iter()
            .zip(keys)
            .map(|(name, point)| Base { point: *point, table: table(name) })
            .collect()
    }
}
