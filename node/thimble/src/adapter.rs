//! The node as the gateway sees it: the ingress pool for calls, the query service for queries, the
//! newest certified state for everything that is read.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use accounting::Level;
use consensus::{ClockStatus, IngressPool, PoolRefusal, SubnetStatus};
use execution::QueryService;
use gateway::{
    CertifiedView, Health, HeapProfileError, Node, Refusal, RequestKind,
    report::{self, Report},
};
use genesis::NodeRecord;
use ic_principal::Principal;
use lifecycle::Reason;
use state::{
    CanisterId, CanisterState, CanisterStatus, CertifiedReader, Height, Ingress, IngressId,
    QueryRequest, Reject, SignedIngress, Time, Validity,
};

use crate::{
    allocator, disk_usage::DiskUsage, hint::with_hint, metrics::RoundMetrics, watch::Watch,
};

/// Seconds a client is asked to wait when the ingress pool is full: a few rounds empty it.
const RETRY_AFTER_SECONDS: u64 = 1;

/// Canisters from which on the largest are not looked for in every report, and how long a list of
/// them is shown.
const MANY_CANISTERS: u64 = 1_000;
const LISTING_STAYS: Duration = Duration::from_secs(10);

pub(crate) struct Adapter {
    pub(crate) pool: Arc<IngressPool>,
    pub(crate) queries: QueryService,
    pub(crate) reader: CertifiedReader,
    /// Canister ids of this subnet, first and last of each range.
    pub(crate) ranges: Vec<(Principal, Principal)>,
    /// Below this height the node is still executing again what it had certified before.
    pub(crate) recovered_at: Height,
    pub(crate) watch: Arc<Watch>,
    pub(crate) rounds: RoundMetrics,
    pub(crate) subnet_id: Principal,
    pub(crate) node_id: Principal,
    pub(crate) delta_capacity_bytes: u64,
    pub(crate) disk: DiskUsage,
    pub(crate) largest: Mutex<LargestCanisters>,
    /// None for a subnet of one.
    pub(crate) subnet: Option<Agreement>,
}

/// The subnet of several nodes that this one is part of.
pub(crate) struct Agreement {
    pub(crate) status: SubnetStatus,
    /// This node's Ed25519 key.
    pub(crate) node_key: [u8; 32],
    /// Addresses of members that are elsewhere than they stated, by the text of their ids.
    pub(crate) addresses: BTreeMap<String, String>,
}

/// Final heights a node may lack without being called behind: those under way.
const UNDER_WAY: u64 = 4;

impl Agreement {
    fn behind(&self) -> u64 {
        let progress = self.status.progress();
        progress.finalised.0.saturating_sub(progress.executed.0)
    }

    fn catching_up(&self) -> String {
        match self.status.state_sync() {
            Some(sync) => format!(
                "state sync: fetching the state of height {}, {} of {} bytes",
                sync.height.0, sync.bytes_done, sync.bytes_total
            ),
            None => format!("catching up: {} blocks behind", self.behind()),
        }
    }

    fn is_behind(&self) -> bool {
        self.behind() > UNDER_WAY || self.status.state_sync().is_some()
    }

    fn report(&self) -> report::Subnet {
        let progress = self.status.progress();
        let heard = self.status.signed_heights();
        let key = self.status.key();
        let member = |(place, member): (usize, &NodeRecord)| report::SubnetMember {
            node_id: member.node_id().to_text(),
            address: self
                .addresses
                .get(&member.node_id().to_text())
                .map_or(member.address(), String::as_str)
                .to_owned(),
            heard_height: heard.get(place).map_or(0, |height| height.0),
        };
        report::Subnet {
            place: key.place_of(&self.node_key).map(|place| place.0),
            members: key.members().iter().enumerate().map(member).collect(),
            epoch: key.epoch(),
            key_epoch: u64::from(key.key_epoch().0),
            dealings_missing: key.dealings_missing() as u64,
            finalised_height: progress.finalised.0,
            executed_height: progress.executed.0,
            certified_height: progress.certified.0,
            behind: self.behind(),
            catching_up: self.is_behind(),
            state_sync: self.status.state_sync().map(|sync| report::StateSync {
                height: sync.height.0,
                bytes_done: sync.bytes_done,
                bytes_total: sync.bytes_total,
                peers: sync.peers,
            }),
            nullified_rounds: progress.nullified,
            equivocations: progress.equivocations,
        }
    }
}

impl Node for Adapter {
    fn check_load(&self, kind: RequestKind) -> Result<(), Refusal> {
        let (refused_from, what) = match kind {
            RequestKind::Query => (Level::Queries, "queries"),
            RequestKind::Call => (Level::Ingress, "calls"),
        };
        if self.watch.record.level() < refused_from {
            return Ok(());
        }
        let reason = self.watch.record.reason().unwrap_or_default();
        Err(Refusal::Full {
            message: format!(
                "the node takes no {what} until memory was given back: {reason}; retry in a second"
            ),
            retry_after_seconds: RETRY_AFTER_SECONDS,
        })
    }

    fn submit(
        &self,
        ingress: Ingress,
        signed: SignedIngress,
        validity: Validity,
    ) -> Result<(), Refusal> {
        // A call the state knows already is not ordered a second time; its certificate can be had
        // at once.
        if self.reader.latest().is_some_and(|state| state.request(&ingress.request_id).is_some()) {
            return Ok(());
        }
        let id = IngressId::new(&ingress.request_id, &ingress.effective_canister_id);
        match self.pool.submit(id, validity, signed) {
            Ok(_) => Ok(()),
            Err(refusal @ PoolRefusal::Closed(_)) => {
                Err(Refusal::Unavailable { message: self.for_clients(&refusal.to_string()) })
            }
            Err(refusal) => Err(Refusal::Full {
                message: refusal.to_string(),
                retry_after_seconds: RETRY_AFTER_SECONDS,
            }),
        }
    }

    fn inspect(&self, ingress: &Ingress) -> Result<(), Reject> {
        self.queries.inspect(ingress).map_err(|reject| with_hint(reject, &ingress.canister_id))
    }

    fn inspect_at_once(&self, ingress: &Ingress) -> Option<Result<(), Reject>> {
        let inspected = self.queries.inspect_without_code(ingress)?;
        Some(inspected.map_err(|reject| with_hint(reject, &ingress.canister_id)))
    }

    fn kept_reply(&self, query: &QueryRequest, bytes_max: usize) -> Option<Arc<[u8]>> {
        let reply = self.queries.kept_reply(query, bytes_max)?;
        self.watch.queries.fetch_add(1, Relaxed);
        Some(reply)
    }

    fn query(&self, query: QueryRequest) -> Result<Vec<u8>, Reject> {
        self.watch.queries.fetch_add(1, Relaxed);
        let canister_id = query.canister_id;
        let answered = self.queries.query(query).map(|reply| reply.bytes);
        answered.map_err(|reject| with_hint(reject, &canister_id))
    }

    fn latest(&self) -> Option<Arc<dyn CertifiedView>> {
        self.reader.latest().map(|state| state as _)
    }

    fn now(&self) -> Time {
        self.watch.clock.now()
    }

    fn block_time(&self) -> Time {
        self.watch.clock.block_time()
    }

    fn clock_fault(&self) -> Option<String> {
        self.watch.clock.fault().map(|fault| fault.client_text)
    }

    fn health(&self) -> Health {
        let certified_height = self.reader.latest().map_or(Height(0), |state| state.height());
        let fault = self.fault(certified_height);
        let fault = fault.map(|fault| (fault.text, self.for_clients(&fault.client_text)));
        Health::new(fault, certified_height)
    }

    fn hosts(&self, canister_id: &CanisterId) -> bool {
        self.ranges.iter().any(|(first, last)| first <= canister_id && canister_id <= last)
    }

    fn heap_profile(&self) -> Result<Vec<u8>, HeapProfileError> {
        let Some(sampler) = allocator::sampler() else {
            return Err(HeapProfileError::Off(heap_profiler::off("thimble")));
        };
        sampler.answer().map_err(|refused| match refused {
            heap_profiler::ProfileError::Busy => HeapProfileError::Busy(refused.to_string()),
            heap_profiler::ProfileError::Failed(message) => HeapProfileError::Failed(message),
        })
    }

    fn report(&self) -> Report {
        let watch = &self.watch;
        let health = self.health();
        let memory = watch.memory();
        let uptime = watch.record.started.elapsed();
        let (canisters, canisters_total) = self.largest_canisters();
        Report {
            version: env!("CARGO_PKG_VERSION").into(),
            subnet_id: self.subnet_id.to_text(),
            node_id: self.node_id.to_text(),
            unix_millis: memory::unix_millis(),
            uptime_millis: uptime.as_millis() as u64,
            healthy: health.healthy,
            status: health.status,
            subnet: self.subnet.as_ref().map(Agreement::report),
            memory: report::Memory {
                budget_bytes: watch.record.budget_bytes,
                anonymous_bytes: memory.anonymous_bytes,
                file_bytes: memory.file_bytes,
                accounted_bytes: memory.accounted_bytes,
                unaccounted_bytes: memory.unaccounted_bytes(),
                group: watch.record.group(),
                stalled_percent: watch.record.stalled().0.map(|part| f64::from(part) / 100.0),
            },
            allocator: watch.record.allocator(),
            pools: dashboard::pools(watch.ledger.snapshot()),
            disk: self.disk.report(),
            processes: memory.processes,
            clock: clock_report(self.watch.clock.status()),
            rounds: report::Rounds {
                queries: watch.queries.load(Relaxed),
                delta_bytes: self.disk.delta_bytes(),
                delta_capacity_bytes: self.delta_capacity_bytes,
                worker_restarts: watch.sandbox.statistics().restarts,
                ..self.rounds.report()
            },
            throttling: watch.record.throttling(),
            canisters,
            canisters_total,
            canisters_max: self.disk.canisters_max,
            history: watch.record.history(),
        }
    }
}

impl Adapter {
    /// Why the node cannot serve.
    fn fault(&self, certified_height: Height) -> Option<Reason> {
        let same = |text: String| Some(Reason { client_text: text.clone(), text });
        if let Some(reason) = self.pool.health().reason() {
            return Some(reason);
        }
        if let Some(stall) = self.watch.watchdog.stall(Instant::now()) {
            return Some(stall.reason());
        }
        if let Some(subnet) = &self.subnet
            && subnet.status.state_sync().is_some()
        {
            return same(subnet.catching_up());
        }
        if certified_height == Height(0) {
            return same("starting".to_owned());
        }
        if certified_height < self.recovered_at {
            return same("recovering".to_owned());
        }
        if let Some(subnet) = self.subnet.as_ref().filter(|subnet| subnet.is_behind()) {
            return same(subnet.catching_up());
        }
        let fault = self.watch.clock.fault()?;
        Some(Reason { text: fault.to_string(), client_text: fault.client_text })
    }

    fn for_clients(&self, text: &str) -> String {
        without_paths(text, &self.watch.watchdog.data_dir)
    }
}

/// A text without paths of this machine: absolute ones, and those in the data folder.
fn without_paths(text: &str, data_dir: &Path) -> String {
    const HIDDEN: &str = "<path>";
    let folder = data_dir.display().to_string();
    // A path may have spaces.
    let text = if data_dir.is_absolute() { text.replace(&folder, "/") } else { text.to_owned() };
    let is_path = |token: &str| {
        let below = token.strip_prefix(&folder);
        token.starts_with('/') || below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mut shown = String::with_capacity(text.len());
    for token in text.split_inclusive(|letter: char| " \n\t()\"`,;".contains(letter)) {
        let end = token.trim_end_matches(|letter: char| " \n\t()\"`,;:.".contains(letter)).len();
        let (token, rest) = token.split_at(end);
        shown.push_str(if !token.is_empty() && is_path(token) { HIDDEN } else { token });
        shown.push_str(rest);
    }
    shown
}

/// The largest canisters, as they were found last.
#[derive(Debug, Default)]
pub(crate) struct LargestCanisters {
    found: Option<Instant>,
    canisters: Vec<report::Canister>,
    total: u64,
}

impl Adapter {
    /// The largest canisters of a certified state, and how many there are. Looks at every canister,
    /// so where there are many it does so now and then.
    fn largest_canisters(&self) -> (Vec<report::Canister>, u64) {
        let mut known = self.largest.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = known.total >= MANY_CANISTERS
            && known.found.is_some_and(|found| found.elapsed() < LISTING_STAYS);
        if !is_fresh {
            *known = self.find_largest();
        }
        (known.canisters.clone(), known.total)
    }

    fn find_largest(&self) -> LargestCanisters {
        let Some(state) = self.reader.latest() else { return LargestCanisters::default() };
        let mut largest: BTreeSet<(Reverse<u64>, Reverse<CanisterId>)> = BTreeSet::new();
        let mut total = 0;
        for canister in state.canisters().iter() {
            total += 1;
            largest.insert((Reverse(canister.memory_usage().total()), Reverse(canister.id)));
            if largest.len() > report::CANISTERS_MAX {
                largest.pop_last();
            }
        }
        let listed = largest.into_iter().filter_map(|(Reverse(memory_bytes), Reverse(id))| {
            let canister = state.canister(&id)?;
            Some(report::Canister {
                id: id.to_text(),
                memory_bytes,
                status: status_word(&canister).into(),
            })
        });
        LargestCanisters { canisters: listed.collect(), total, found: Some(Instant::now()) }
    }
}

fn clock_report(status: ClockStatus) -> report::Clock {
    let millis = |nanos: i128| i64::try_from(nanos / 1_000_000).unwrap_or(i64::MAX);
    report::Clock {
        jump_millis: status.jump.map_or(0, |jump| millis(jump.ahead_nanos)),
        block_time_ahead_millis: u64::try_from(status.block_time_ahead.as_millis())
            .unwrap_or(u64::MAX),
    }
}

fn status_word(canister: &CanisterState) -> &'static str {
    match canister.status {
        CanisterStatus::Running => "running",
        CanisterStatus::Stopping(_) => "stopping",
        CanisterStatus::Stopped => "stopped",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_read_no_paths() {
        for (folder, text, expected) in [
            (
                "/var/my data",
                "cannot write /var/my data/pages/3: full",
                "cannot write <path>: full",
            ),
            ("/d", "/usr/bin/thimble: not found (os error 2)", "<path>: not found (os error 2)"),
            ("data", "the disk of data is full", "the disk of <path> is full"),
            ("data", "block log (data/blocks): database", "block log (<path>): database"),
            ("/d", "height 7: 20 B/s, I/O error.", "height 7: 20 B/s, I/O error."),
        ] {
            assert_eq!(without_paths(text, Path::new(folder)), expected);
        }
    }
}
