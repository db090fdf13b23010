//! Monitors the nodes during the attacks: sends updates and queries to a canister that is not
//! attacked, one at a time, and reads rounds and memory from the nodes' metrics.
//!
//! The first violation is kept as the finding, which the run awaits while cases are running.
//!
//! Four nodes on one machine share its cores, and a machine with fewer cores than threads that want
//! to run is slow, not stuck: limits of time are multiplied by how many there are for each core
//! ([`CpuContention`]). A node that never ends a round is found all the same.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use candid::Principal;
use cli::lock;
use ic_agent::{Agent, AgentError};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::hammer::protocol;

const ASK_EVERY: Duration = Duration::from_millis(150);
const READ_EVERY: Duration = Duration::from_millis(500);
/// Time limit for metrics.
const METRICS_WITHIN: Duration = Duration::from_secs(4);
/// Interval between readings of how many threads want to run.
const CONTENTION_EVERY: Duration = Duration::from_millis(150);
/// Weight of a new reading of that; a change is seen to nine tenths after seven seconds.
const CONTENTION_WEIGHT: f64 = 0.05;

/// The nodes under attack, and the limit that applies to them.
pub(super) struct AttackTarget {
    pub(super) urls: Vec<String>,
    pub(super) agents: Vec<Agent>,
    pub(super) http: reqwest::Client,
    pub(super) counter: Principal,
    /// Limit for a round and for an answer.
    pub(super) limit: Duration,
}

pub(super) struct Judge {
    target: AttackTarget,
    /// Nodes that are currently killed and are not asked.
    down: Vec<AtomicBool>,
    /// The counter's highest value in an acknowledged call; a lower one that follows is a finding.
    pub(super) acknowledged: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) longest_millis: AtomicU64,
    /// Longest time that work waited for a round, as nodes report it.
    pub(super) longest_stall_millis: AtomicU64,
    queries_sent: AtomicU64,
    /// Number of the newest acknowledged call and of the newest answered query, in the order of
    /// sending.
    answered_tx: watch::Sender<(u64, u64)>,
    finding_tx: watch::Sender<Option<String>>,
    last: Mutex<Last>,
    /// Latency limits are suspended.
    limits_suspended: AtomicBool,
    /// The same while nodes recover that were killed.
    recovering: AtomicBool,
    contention: Mutex<CpuContention>,
}

/// How many threads of this machine want to run, on the average of the last seconds.
struct CpuContention {
    cores: f64,
    runnable: f64,
}

impl CpuContention {
    fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { cores: cores as f64, runnable: 0.0 }
    }

    /// Reads the number of runnable threads, if the kernel reports it.
    fn sample(&mut self) {
        let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        if let Some(runnable) = runnable(&text) {
            self.add(runnable);
        }
    }

    fn add(&mut self, runnable: f64) {
        self.runnable += (runnable - self.runnable) * CONTENTION_WEIGHT;
    }

    /// By how much slower than on a machine of its own a thread is.
    fn factor(&self) -> f64 {
        (self.runnable / self.cores).max(1.0)
    }
}

/// Runnable threads in the text of `/proc/loadavg`, without the one that reads it.
fn runnable(text: &str) -> Option<f64> {
    let (running, _) = text.split_whitespace().nth(3)?.split_once('/')?;
    Some((running.parse::<f64>().ok()? - 1.0).max(0.0))
}

/// [`CpuContention::factor`] on the average of the last minute.
pub(super) fn load_factor() -> f64 {
    let mut contention = CpuContention::new();
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = text.split_whitespace().next().and_then(|load| load.parse().ok());
    contention.runnable = load.unwrap_or_default();
    contention.factor()
}

#[derive(Clone, Copy)]
struct Last {
    update: Instant,
    query: Instant,
}

impl Judge {
    pub(super) fn new(target: AttackTarget) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            down: target.urls.iter().map(|_| AtomicBool::new(false)).collect(),
            target,
            acknowledged: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            longest_millis: AtomicU64::new(0),
            longest_stall_millis: AtomicU64::new(0),
            queries_sent: AtomicU64::new(0),
            answered_tx: watch::channel((0, 0)).0,
            finding_tx: watch::channel(None).0,
            last: Mutex::new(Last { update: now, query: now }),
            limits_suspended: AtomicBool::new(false),
            recovering: AtomicBool::new(false),
            contention: Mutex::new(CpuContention::new()),
        })
    }

    /// Nodes are killed, and have their own time limit to recover.
    pub(super) fn begin_recovery(&self) {
        self.recovering.store(true, Relaxed);
    }

    /// Resets the clocks: answers were late for a reason that is over.
    pub(super) fn restart_clocks(&self) {
        let now = Instant::now();
        *lock(&self.last) = Last { update: now, query: now };
    }

    /// They are healthy again.
    pub(super) fn end_recovery(&self) {
        self.restart_clocks();
        self.recovering.store(false, Relaxed);
    }

    fn is_suspended(&self) -> bool {
        self.limits_suspended.load(Relaxed) || self.recovering.load(Relaxed)
    }

    /// The limit for a round and for an answer, on this machine now.
    fn limit(&self) -> Duration {
        self.target.limit.mul_f64(lock(&self.contention).factor())
    }

    /// Suspends the latency limits from now on, for example because a disk fails.
    pub(super) fn suspend_limits(&self) {
        self.limits_suspended.store(true, Relaxed);
    }

    pub(super) fn counter(&self) -> Principal {
        self.target.counter
    }

    pub(super) fn set_down(&self, node: usize, down: bool) {
        self.down[node].store(down, Relaxed);
    }

    /// Records a violation; only the first is kept.
    pub(super) fn record_finding(&self, text: String) {
        self.finding_tx.send_if_modified(|found| {
            let first = found.is_none();
            if first {
                *found = Some(text);
            }
            first
        });
    }

    pub(super) fn finding(&self) -> Option<String> {
        self.finding_tx.borrow().clone()
    }

    pub(super) async fn wait_for_finding(&self) -> String {
        let mut finding_rx = self.finding_tx.subscribe();
        let text = finding_rx.wait_for(Option::is_some).await;
        text.ok().and_then(|text| text.clone()).unwrap_or_default()
    }

    /// Waits until an update and a query that are sent from now on are answered.
    pub(super) async fn wait_until_settled(&self) {
        let now = (self.sent.load(Relaxed), self.queries_sent.load(Relaxed));
        let mut answered_rx = self.answered_tx.subscribe();
        drop(answered_rx.wait_for(|(call, query)| *call > now.0 && *query > now.1).await);
    }

    /// Watches until it is dropped.
    pub(super) async fn watch(self: Arc<Self>) {
        tokio::join!(self.updates(), self.queries(), self.readings(), self.follow_contention());
    }

    /// Follows how busy the machine is, also while no answer comes.
    async fn follow_contention(&self) {
        loop {
            sleep(CONTENTION_EVERY).await;
            lock(&self.contention).sample();
        }
    }

    /// The next node that is not down.
    fn next(&self, at: &mut usize) -> usize {
        let count = self.down.len();
        for _ in 0..count {
            *at = (*at + 1) % count;
            if !self.down[*at].load(Relaxed) {
                break;
            }
        }
        *at
    }

    async fn updates(&self) {
        let mut at = 0;
        loop {
            sleep(ASK_EVERY).await;
            let node = self.next(&mut at);
            let number = self.sent.fetch_add(1, Relaxed) + 1;
            let begun = Instant::now();
            let call =
                self.target.agents[node].update(&self.target.counter, "inc").with_arg(vec![]);
            match timeout(self.limit(), call.call_and_wait()).await {
                Ok(Ok(reply)) => {
                    lock(&self.last).update = Instant::now();
                    self.longest_millis.fetch_max(begun.elapsed().as_millis() as u64, Relaxed);
                    self.acknowledge(&reply);
                    self.answered_tx.send_modify(|answered| answered.0 = number);
                }
                Ok(Err(AgentError::CertifiedReject { reject, .. })) => {
                    self.record_finding(format!(
                        "a call of the counter was rejected: {}",
                        reject.reject_message
                    ));
                }
                // Refusals and transport errors are judged by the time that passes.
                _ => {}
            }
            let waited = lock(&self.last).update.elapsed();
            if waited > self.limit() && !self.is_suspended() {
                self.record_finding(format!(
                    "no update of an idle canister was acknowledged for {} s",
                    waited.as_secs()
                ));
            }
        }
    }

    fn acknowledge(&self, reply: &[u8]) {
        match protocol::first_word(reply) {
            Ok(value) => {
                let before = self.acknowledged.fetch_max(value, Relaxed);
                let sent = self.sent.load(Relaxed);
                if value <= before || value > sent {
                    self.record_finding(format!(
                        "the counter replied {value} after {before}, and {sent} calls were sent"
                    ));
                }
            }
            Err(error) => self.record_finding(error),
        }
    }

    async fn queries(&self) {
        let mut at = 0;
        loop {
            sleep(ASK_EVERY * 2).await;
            let node = self.next(&mut at);
            let number = self.queries_sent.fetch_add(1, Relaxed) + 1;
            let ask = self.target.agents[node].query(&self.target.counter, "get");
            let answer = timeout(self.limit(), ask.with_arg(vec![]).call()).await;
            if matches!(answer, Ok(Ok(_))) {
                lock(&self.last).query = Instant::now();
                self.answered_tx.send_modify(|answered| answered.1 = number);
            }
            let waited = lock(&self.last).query.elapsed();
            // Queries may be refused for a while, but not indefinitely.
            if waited > self.limit() * 2 && !self.is_suspended() {
                self.record_finding(format!(
                    "no query of an idle canister was answered for {} s",
                    waited.as_secs()
                ));
            }
        }
    }

    /// Reads the nodes' metrics.
    async fn readings(&self) {
        loop {
            sleep(READ_EVERY).await;
            for (node, url) in self.target.urls.iter().enumerate() {
                if self.down[node].load(Relaxed) {
                    continue;
                }
                let asked = self.target.http.get(format!("{url}/metrics")).send();
                let Ok(Ok(answer)) = timeout(METRICS_WITHIN, asked).await else { continue };
                let Ok(text) = answer.text().await else { continue };
                self.read(node, &text);
            }
        }
    }

    fn read(&self, node: usize, text: &str) {
        let figure = |name: &str| figure(text, name);
        let stall = figure("thimble_longest_stall_seconds").unwrap_or_default();
        self.longest_stall_millis.fetch_max((stall * 1e3) as u64, Relaxed);
        let running = figure("thimble_round_running_seconds").unwrap_or_default();
        if running > self.limit().as_secs_f64() && !self.is_suspended() {
            self.record_finding(format!("a round of node {node} has not ended for {running:.0} s"));
        }
        let anonymous = figure("thimble_memory_anonymous_bytes").unwrap_or_default();
        let budget = figure("thimble_memory_budget_bytes").unwrap_or(f64::MAX);
        if anonymous > budget {
            self.record_finding(format!(
                "node {node} holds {} MiB of anonymous memory with a budget of {} MiB",
                anonymous as u64 >> 20,
                budget as u64 >> 20
            ));
        }
    }
}

/// The value of a line in the text of `/metrics`.
fn figure(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_their_whole_name() {
        let text = "# TYPE a gauge\na_b 3\na 2.5\nh_bucket{le=\"10.0\"} 7\n";
        assert_eq!(figure(text, "a"), Some(2.5));
        assert_eq!(figure(text, "h_bucket{le=\"10.0\"}"), Some(7.0));
        assert_eq!(figure(text, "b"), None);
    }

    #[test]
    fn limits_grow_with_the_threads_for_each_core() {
        assert_eq!(runnable("0.50 0.40 0.30 5/312 4711\n"), Some(4.0));
        assert_eq!(runnable("nothing"), None);
        let mut contention = CpuContention { cores: 2.0, runnable: 0.0 };
        for (runnable, least, most) in [(1.0, 1.0, 1.0), (8.0, 3.9, 4.0), (0.0, 1.0, 1.01)] {
            (0..100).for_each(|_| contention.add(runnable));
            assert!(
                (least..=most).contains(&contention.factor()),
                "{runnable}: {}",
                contention.factor()
            );
        }
    }

    #[test]
    fn lower_counter_reply_is_a_finding_and_keeps_the_acknowledged_maximum() {
        let judge = Judge::new(AttackTarget {
            urls: vec![],
            agents: vec![],
            http: reqwest::Client::new(),
            counter: Principal::management_canister(),
            limit: Duration::from_secs(10),
        });
        judge.sent.store(9, Relaxed);
        for (value, found) in [(5_u64, false), (6, false), (4, true)] {
            judge.acknowledge(&value.to_le_bytes());
            assert_eq!(judge.finding().is_some(), found, "{value}");
        }
        assert_eq!(judge.acknowledged.load(Relaxed), 6);
    }
}
