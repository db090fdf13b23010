//! Bounds of the server: one memory budget, and the limits that follow from it.
//!
//! The budget has two parts. The baseline of instances is counted for each: two workers, a state,
//! threads ([`INSTANCE_BYTES`]), and bodies of requests have a pool. Memory for work (messages,
//! compilations, queries, responses) is the budget sheet of a node with the rest, which all
//! instances share: messages of all instances wait for room in the same pool.

use std::sync::Arc;

use accounting::{Ledger, Pool, format_size, missing_unit, parse_size};
use anyhow::{Context, Result, ensure};
use limits::{Limits, OutcallLimits, pool};

/// Memory of one idle instance, its workers included.
pub(crate) const INSTANCE_BYTES: u64 = 12 << 20;
/// The budget, where none is stated.
const MEMORY: &str = "1GiB";
/// Environment variable with the budget.
pub(crate) const MEMORY_VARIABLE: &str = "THIMBLE_POCKET_MEMORY";
/// Instances at most, whatever the budget: each has threads, processes and open files.
const INSTANCES_MAX: u64 = 64;

/// Operations that wait for an instance.
pub(crate) const OPERATIONS_WAITING: usize = 64;
/// Users' calls that wait for a round of an instance.
pub(crate) const CALLS_WAITING: usize = 10_000;
/// Bytes of them.
pub(crate) const CALLS_WAITING_BYTES: u64 = 64 << 20;
/// Body of a request in JSON: the argument of a call, in base64, is the most of it.
pub(crate) const BODY_BYTES: u64 = 4 << 20;
/// Bodies that are read, and what is decoded of them.
const BODIES_BYTES: u64 = 16 << 20;
const _: () = assert!(BODIES_BYTES >= 2 * BODY_BYTES, "one body must find room");
/// HTTPS outcalls that are listed for tests, and answers to them until a round has them.
const OUTCALLS_BYTES: u64 = 16 << 20;
/// HTTPS outcalls of one instance that wait for an answer: two of the largest.
const OUTCALLS_OPEN_BYTES: u64 = 4 << 20;
/// Operations whose clients were asked to poll for the outcome.
pub(crate) const STARTED_MAX: usize = 1_024;
pub(crate) const BLOB_BYTES: u64 = 1 << 30;
/// All blobs, on disk.
pub(crate) const BLOBS_BYTES: u64 = 4 << 30;
pub(crate) const BLOBS_MAX: usize = 10_000;
/// The budget in parts, of which stable memories that are sent whole have some, and outcomes that
/// clients come back for.
const PARTS: u64 = 32;
const STABLE_ANSWERS_PARTS: u64 = 2;
const ANSWERS_KEPT_PARTS: u64 = 1;
/// Room that a stable memory takes while it is made an answer, in times of its bytes: as it is, and
/// in base64.
pub(crate) const STABLE_ANSWER_TIMES: u64 = 3;
pub(crate) const GATEWAYS_MAX: usize = 64;
pub(crate) const CONNECTIONS: u64 = 512;
/// Rounds after which an instance closes what it counted of queries, as PocketIC's own server does:
/// tests have few rounds.
const QUERY_STATS_PERIOD_ROUNDS: u64 = 60;
/// Memory of canisters on disk, in times of the memory budget, at most: as on a node.
const CAPACITY_BYTES_PER_MEMORY_BYTE: u64 = 256;
/// Cache of the records' store of one instance.
pub(crate) const RECORDS_CACHE_BYTES: u64 = 256 << 10;

/// A memory budget as it was stated.
#[derive(Clone, Debug)]
pub(crate) struct StatedBudget {
    /// The option or environment variable with it, as it was written: for errors.
    pub(crate) written: String,
    pub(crate) size: String,
}

impl StatedBudget {
    /// By the option, or else by the environment variable.
    pub(crate) fn new(option: Option<&str>, variable: Option<String>) -> Option<Self> {
        let of_option = option.map(|size| (format!("--memory {size}"), size.to_owned()));
        let of_variable = variable.map(|size| (format!("{MEMORY_VARIABLE}={size}"), size));
        of_option.or(of_variable).map(|(written, size)| Self { written, size })
    }
}

pub(crate) struct Bounds {
    /// As stated.
    memory_bytes: u64,
    pub(crate) limits: Arc<Limits>,
    pub(crate) ledger: Ledger,
    /// A reservation of [`INSTANCE_BYTES`] for each instance.
    pub(crate) instances: Pool,
    /// Bodies of requests in JSON, twice their length.
    pub(crate) bodies: Pool,
    /// Stable memories that are sent whole: [`STABLE_ANSWER_TIMES`] their length, then the answer's
    /// until it was sent. Pages of instances.
    pub(crate) stable_answers: Pool,
    /// HTTPS outcalls and their answers.
    pub(crate) outcalls: Pool,
    /// Outcomes that clients come back for.
    pub(crate) answers_kept_bytes: u64,
}

impl Bounds {
    /// By the budget that was stated, and the free space of the disk.
    pub(crate) fn new(stated: Option<StatedBudget>, disk_free_bytes: u64) -> Result<Self> {
        let default =
            || StatedBudget { written: format!("--memory {MEMORY}"), size: MEMORY.into() };
        let StatedBudget { written, size } = stated.unwrap_or_else(default);
        let memory = parse_size(&size).with_context(|| written.clone())?;
        let memory_bytes = memory;
        let least = Self::least_bytes();
        let hint = missing_unit(&size).map(|hint| format!("; {hint}")).unwrap_or_default();
        ensure!(
            memory >= least,
            "{written} is too little: the least is {}{hint}",
            format_size(least)
        );
        let half = memory / 2 / INSTANCE_BYTES;
        let stable_answers = memory / PARTS * STABLE_ANSWERS_PARTS;
        let answers_kept_bytes = memory / PARTS * ANSWERS_KEPT_PARTS;
        let memory = memory - BODIES_BYTES - OUTCALLS_BYTES - stable_answers - answers_kept_bytes;
        let possible = (memory - Limits::smallest_bytes()) / INSTANCE_BYTES;
        let instances = half.clamp(1, possible.max(1)).min(INSTANCES_MAX) * INSTANCE_BYTES;
        let mut limits = Limits::derive((memory - instances) >> 20 << 20)?;
        limits.pages.metadata_cache_bytes = RECORDS_CACHE_BYTES;
        // Their memory is a pool outside the sheet, of the same size in every budget.
        let nano = Limits::preset("nano")?.outcalls;
        limits.outcalls = OutcallLimits { open_bytes: OUTCALLS_OPEN_BYTES, bytes: 0, ..nano };
        limits.execution.query_stats_period_rounds = QUERY_STATS_PERIOD_ROUNDS;
        follow_disk(&mut limits, disk_free_bytes);
        let ledger = limits.ledger()?;
        let instances = Pool::standalone("instances", instances);
        let bodies = Pool::standalone("bodies", BODIES_BYTES);
        let stable_answers = Pool::standalone("stable_answers", stable_answers);
        let outcalls = Pool::standalone(pool::OUTCALLS, OUTCALLS_BYTES);
        let limits = Arc::new(limits);
        Ok(Self {
            memory_bytes,
            limits,
            ledger,
            instances,
            bodies,
            stable_answers,
            outcalls,
            answers_kept_bytes,
        })
    }

    /// The smallest budget: a node's smallest, one instance, bodies, answers.
    pub(crate) fn least_bytes() -> u64 {
        let others = PARTS - STABLE_ANSWERS_PARTS - ANSWERS_KEPT_PARTS;
        let fixed = Limits::smallest_bytes() + INSTANCE_BYTES + BODIES_BYTES + OUTCALLS_BYTES;
        (fixed * PARTS).div_ceil(others).next_multiple_of(1 << 20)
    }

    /// The longest stable memory that is sent whole.
    pub(crate) fn stable_answer_bytes(&self) -> u64 {
        self.stable_answers.cap_bytes() / STABLE_ANSWER_TIMES
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        let pools = [&self.instances, &self.bodies, &self.stable_answers, &self.outcalls];
        let pools: u64 = pools.iter().map(|pool| pool.cap_bytes()).sum();
        self.ledger.budget_bytes() + pools + self.answers_kept_bytes
    }

    /// A pool of the sheet.
    pub(crate) fn pool(&self, name: &'static str) -> Result<Pool> {
        self.ledger.pool(name).with_context(|| format!("the ledger has no pool `{name}`"))
    }

    /// Room for messages, compilations and queries, as the sandbox takes it.
    pub(crate) fn work(&self) -> Result<(Pool, Pool, Pool)> {
        let [executions, compilations, queries] =
            [pool::EXECUTIONS, pool::COMPILATIONS, pool::QUERIES].map(|name| self.pool(name));
        Ok((executions?, compilations?, queries?))
    }

    pub(crate) fn instances_max(&self) -> u64 {
        self.instances.cap_bytes() / INSTANCE_BYTES
    }

    /// The same as a sentence, with the settings that it follows from.
    pub(crate) fn instances_that_fit(&self) -> String {
        let count = match self.instances_max() {
            1 => "1 instance fits".to_owned(),
            count => format!("{count} instances fit"),
        };
        let memory = format_size(self.memory_bytes);
        format!("{count} in {memory} (`--memory`, {MEMORY_VARIABLE})")
    }
}

/// Lets the canisters of an instance take what the disk has. Instances share it: where it is used
/// up, calls are refused and rounds wait, as on a node.
fn follow_disk(limits: &mut Limits, free_bytes: u64) {
    let free = free_bytes.saturating_sub(limits.pages.disk_reserve_bytes);
    let most = limits.memory_budget_bytes.saturating_mul(CAPACITY_BYTES_PER_MEMORY_BYTE);
    let capacity = limits.subnet.memory_capacity_bytes.max(free.min(most));
    limits.subnet.memory_capacity_bytes = capacity;
    limits.subnet.memory_threshold_bytes = capacity;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn budget_that_is_too_small_names_its_source() {
        let error = |option: Option<&str>, variable: Option<&str>| {
            let stated = StatedBudget::new(option, variable.map(Into::into));
            format!("{:#}", Bounds::new(stated, 0).err().unwrap())
        };
        let text = error(None, Some("1"));
        assert!(text.starts_with("THIMBLE_POCKET_MEMORY=1 is too little"), "{text}");
        assert!(text.contains("`1` has no unit"), "{text}");
        let text = error(Some("64MiB"), Some("1GiB"));
        assert!(text.starts_with("--memory 64MiB is too little"), "{text}");
        let text = error(None, Some("lots"));
        assert!(text.starts_with("THIMBLE_POCKET_MEMORY=lots"), "{text}");
    }

    #[test]
    fn instances_and_work_share_the_budget() {
        let new = |size: Option<&str>, free| Bounds::new(StatedBudget::new(size, None), free);
        for (stated, instances) in [(None, 42), (Some("512MiB"), 21), (Some("4GiB"), 64)] {
            let bounds = new(stated, 0).unwrap();
            assert_eq!(bounds.instances_max(), instances, "{stated:?}");
            // The longest answer in base64 can be kept.
            assert!(bounds.stable_answer_bytes() * 3 / 2 <= bounds.answers_kept_bytes);
            assert!(
                bounds.budget_bytes() <= parse_size(stated.unwrap_or(MEMORY)).unwrap(),
                "{stated:?}"
            );
        }
        // Allocations follow the disk, within what the memory can index.
        let capacity = |free| new(None, free).unwrap().limits.subnet.memory_capacity_bytes;
        assert!(capacity(0) < 4 << 30);
        assert!(((30 << 30)..(40 << 30)).contains(&capacity(40 << 30)));
        assert!(capacity(u64::MAX) <= (1 << 30) * CAPACITY_BYTES_PER_MEMORY_BYTE);
        let least = Bounds::least_bytes();
        assert_eq!(new(Some(&least.to_string()), 0).unwrap().instances_max(), 1);
        assert_eq!(
            new(None, 0).unwrap().instances_that_fit(),
            "42 instances fit in 1 GiB (`--memory`, THIMBLE_POCKET_MEMORY)"
        );
        let less = (least - 1).to_string();
        let error = new(Some(&less), 0).err().unwrap().to_string();
        assert!(error.contains("the least is"), "{error}");
    }
}
