//! One life: nodes in a new folder, cases and kills, and the final verification: equal roots on all
//! members, replays by other builds, and a start with another memory budget.

use std::{
    fs,
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Context, Result};
use demo::client as basics;
use ic_agent::{Agent, hash_tree::LookupResult};
use ic_management_canister_types::CanisterInstallMode;
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep, timeout},
};

use super::{
    GROUP, Phase, Queue, Report, Run,
    cases::{self, Ground, Id},
    disk,
    judge::{AttackTarget, Judge, load_factor},
    members::Fifth,
    net::{self, Member, Plan, ProcessProfile, START_WITHIN},
    server, user,
};

const COUNTER: &[u8] = include_bytes!("../../../../canisters/wasm/counter-c.wasm");
const FORWARDER: &[u8] = include_bytes!("../../../../canisters/wasm/universal-c.wasm");
/// Time limit for one replay on a machine with a core for each thread that wants to run
/// ([`load_factor`]).
const REPLAY_WITHIN: Duration = Duration::from_secs(600);
/// Time limit for a case with all its calls.
const CASE_WITHIN: Duration = Duration::from_secs(90);
const CALL_EXPIRY: Duration = Duration::from_secs(60);
/// Number of groups after which the victim canister is replaced.
const VICTIM_GROUPS: u64 = 6;
/// Duration for which certified roots are compared.
const ROOTS_FOR: Duration = Duration::from_secs(3);
/// Budgets for the start after the last kill; outcalls need 512 MiB.
const OTHER_MEMORY: [&str; 3] = ["640MiB", "1GiB", "768MiB"];

/// Budget of some lives of one node.
const SMALL_MEMORY: &str = "256MiB";
/// Minimum duration of a subnet's life in which members join and leave.
const CHURN_FROM: Duration = Duration::from_secs(30);

pub(super) struct Life {
    pub(super) phase: Phase,
    pub(super) number: u64,
    /// Decides, with the seed, the nodes and the faults; see [`super::Options::variant`].
    pub(super) variant: u64,
    /// This case alone.
    pub(super) only: Option<Id>,
    /// Duration, from when its nodes serve.
    pub(super) lasts: Duration,
}

/// A finding with the cases that were run.
type LifeFinding = Option<(String, Vec<Id>)>;

/// Running nodes with the canisters that cases need.
pub(super) struct TestNetwork {
    pub(super) members: Vec<Member>,
    /// The first `honest` members follow the protocol.
    honest: usize,
    pub(super) judge: Arc<Judge>,
    pub(super) http: reqwest::Client,
    ground: Arc<Ground>,
    /// The judge and the server; aborted when the network is dropped.
    tasks: JoinSet<()>,
}

impl Life {
    /// Runs the life; returns a finding, if any.
    pub(super) async fn run(
        self,
        run: &Run,
        report: &mut Report,
        queue: &mut Queue,
        folder: &Path,
    ) -> Result<LifeFinding> {
        let mut random = ChaCha8Rng::seed_from_u64(run.seed);
        random.set_stream(self.variant.wrapping_add(1_000));
        let plan = self.plan(run, folder, &mut random);
        // Unmounted when the life is over; the nodes are dropped before.
        let volume =
            (self.phase == Phase::Disk).then(|| disk::Volume::mount(&folder.join("node0")));
        let volume = volume.flatten();
        let members = match self.phase {
            Phase::Subnet => plan.four(&mut random).await?,
            Phase::Alone | Phase::Disk => plan.alone(self.variant as usize, &mut random)?,
        };
        run.log(&format!(
            "life {} ({}): {}",
            self.number,
            self.phase.name(),
            members.iter().map(|one| one.profile.description()).collect::<Vec<_>>().join("; ")
        ));
        let honest = if plan.byzantine.is_some() { members.len() - 1 } else { members.len() };
        let limit = Duration::from_secs(run.options.round_within);
        // Findings during the start are attributed to the requested case, if any.
        let only: Vec<Id> = self.only.iter().cloned().collect();
        let mut network = match TestNetwork::start(members, honest, limit).await {
            Ok(network) => network,
            Err(error) => return Ok(Some((format!("the nodes did not start: {error:#}"), only))),
        };
        let mut done = Vec::new();
        let found = match self.phase {
            Phase::Disk => {
                let volume = volume.as_ref();
                disk::attack(&self, run, report, &mut network, volume, &mut random).await?
            }
            Phase::Alone | Phase::Subnet => {
                self.attack(run, report, queue, &mut network, &mut done, &mut random).await?
            }
        };
        let judge = network.judge.clone();
        let [acknowledged, update, stall] =
            [&judge.acknowledged, &judge.longest_millis, &judge.longest_stall_millis]
                .map(|figure| figure.load(Relaxed));
        report.acknowledged += acknowledged;
        report.longest_update_millis = report.longest_update_millis.max(update);
        report.longest_stall_millis = report.longest_stall_millis.max(stall);
        let found = match found {
            Some(found) => Some(found),
            None => network.end(run, report, folder, &mut random).await?.map(|what| (what, done)),
        };
        if let (Some(_), Some(volume)) = (&found, &volume) {
            volume.save();
        }
        Ok(found)
    }

    fn plan(&self, run: &Run, folder: &Path, random: &mut ChaCha8Rng) -> Plan {
        // Outcalls need more memory than the small budget has.
        let small = self.phase == Phase::Alone && random.gen_bool(0.3);
        Plan {
            builds: run.builds.clone(),
            folder: folder.into(),
            memory: if small { SMALL_MEMORY.to_owned() } else { run.options.memory.clone() },
            configuration: net::configuration(self.phase != Phase::Subnet, random),
            outcalls: !small,
            byzantine: match self.phase {
                Phase::Subnet if random.gen_bool(0.5) => run.options.byzantine.clone(),
                _ => None,
            },
        }
    }

    /// Cases in groups, and kills between them.
    async fn attack(
        &self,
        run: &Run,
        report: &mut Report,
        queue: &mut Queue,
        network: &mut TestNetwork,
        done: &mut Vec<Id>,
        random: &mut ChaCha8Rng,
    ) -> Result<LifeFinding> {
        let mut groups = 0;
        let mut fifth: Option<Fifth> = None;
        let until = Instant::now() + self.lasts;
        loop {
            let group = match &self.only {
                Some(_) if groups > 0 => return Ok(None),
                Some(id) => vec![id.clone()],
                None if Instant::now() >= until => {
                    if let Some(mut fifth) = fifth
                        && let Err(error) = fifth.finish(&network.members, &network.http).await
                    {
                        let what = format!("a change of members: {error:#}");
                        return Ok(Some((what, done.clone())));
                    }
                    return Ok(None);
                }
                None => queue.take(GROUP),
            };
            if group.is_empty() {
                return Ok(None);
            }
            groups += 1;
            if groups == 2 && self.lasts >= CHURN_FROM && network.members.len() == network.honest {
                report.member_changes += 1;
                match network.admit(run, random).await {
                    Ok(joined) => fifth = joined,
                    Err(error) => return Ok(Some((format!("a node joins: {error:#}"), group))),
                }
            }
            if let Some(fifth) = &mut fifth {
                let folder = network.folder();
                match fifth.leave(&network.members, &network.http, &folder).await {
                    Ok(left) => report.member_changes += u64::from(left),
                    Err(error) => return Ok(Some((format!("a node leaves: {error:#}"), group))),
                }
            }
            done.extend(group.iter().cloned());
            if let Some(what) = network.group(run, report, &group).await? {
                return Ok(Some((what, group)));
            }
            if self.only.is_none() && random.gen_bool(0.2) {
                report.kills += 1;
                let mut found = network.kill(run, random).await?;
                if found.is_none() {
                    // The next reply shows whether an update was lost.
                    found = network.group(run, report, &[]).await?;
                }
                if let Some(what) = found {
                    return Ok(Some((what, group)));
                }
            }
            if groups % VICTIM_GROUPS == 0
                && let Err(error) = network.new_victim().await
            {
                return Ok(Some((format!("no canister could be made: {error:#}"), group)));
            }
        }
    }
}

/// An agent of the run's identity.
async fn agent(url: &str, http: &reqwest::Client) -> Result<Agent> {
    let agent = Agent::builder()
        .with_url(url)
        .with_http_client(http.clone())
        .with_identity(super::identity())
        .with_ingress_expiry(CALL_EXPIRY)
        .build()?;
    agent.fetch_root_key().await.context("reading the root key")?;
    Ok(agent)
}

impl TestNetwork {
    /// Starts the nodes and makes the canisters.
    async fn start(mut members: Vec<Member>, honest: usize, limit: Duration) -> Result<Self> {
        let http =
            reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build()?;
        for member in &mut members {
            member.start()?;
        }
        for member in &mut members[..honest] {
            member.healthy(&http, START_WITHIN).await?;
        }
        let mut agents = Vec::new();
        for member in &members[..honest] {
            agents.push(agent(&member.url, &http).await?);
        }
        let user = user()?;
        let first = &agents[0];
        let mut made = Vec::new();
        for module in [COUNTER, FORWARDER] {
            let canister = cases::create(first, user, None).await?;
            let mode = CanisterInstallMode::Install;
            let install = basics::install(first, canister, mode, module.to_vec(), vec![]);
            timeout(START_WITHIN, install).await.context("an installation did not end")??;
            made.push(canister);
        }
        let victim = cases::create(first, user, Some(made[1])).await?;
        let (port, serve) = server::start().await?;
        let judge = Judge::new(AttackTarget {
            urls: members[..honest].iter().map(|member| member.url.clone()).collect(),
            agents: agents.clone(),
            http: http.clone(),
            counter: made[0],
            limit,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(judge.clone().watch());
        tasks.spawn(serve);
        let ground = Ground { agents, user, forwarder: made[1], victim, server: port };
        Ok(Self { members, honest, judge, http, ground: Arc::new(ground), tasks })
    }

    fn folder(&self) -> std::path::PathBuf {
        self.members[0].data.parent().unwrap_or(Path::new(".")).to_owned()
    }

    /// A fifth node is admitted, if there is a subnet.
    async fn admit(&self, run: &Run, random: &mut ChaCha8Rng) -> Result<Option<Fifth>> {
        if self.members.len() == 1 {
            return Ok(None);
        }
        run.log("a fifth node joins");
        // Those of the first but for its address among the members.
        let mut arguments = self.members[0].arguments.clone();
        arguments.truncate(arguments.len().saturating_sub(2));
        Fifth::join(run, &self.members, arguments, &self.folder(), random).await.map(Some)
    }

    /// Runs cases in the background: each with its outcome, if there is one in time, and duration.
    pub(super) fn spawn_cases(
        &self,
        run: &Run,
        ids: &[Id],
    ) -> JoinSet<(Id, Option<cases::Outcome>, Duration)> {
        let mut running = JoinSet::new();
        for id in ids {
            let (id, ground, seed) = (id.clone(), self.ground.clone(), run.seed);
            running.spawn(async move {
                let begun = Instant::now();
                let outcome = timeout(CASE_WITHIN, cases::run(seed, &id, &ground)).await;
                (id, outcome.ok(), begun.elapsed())
            });
        }
        running
    }

    async fn new_victim(&mut self) -> Result<()> {
        let ground = &self.ground;
        let victim = cases::create(&ground.agents[0], ground.user, Some(ground.forwarder)).await?;
        Arc::make_mut(&mut self.ground).victim = victim;
        Ok(())
    }

    /// Runs cases concurrently, then waits until the nodes answer again; returns a finding, if any.
    pub(super) async fn group(
        &mut self,
        run: &Run,
        report: &mut Report,
        group: &[Id],
    ) -> Result<Option<String>> {
        let mut running = self.spawn_cases(run, group);
        let mut look = interval(Duration::from_millis(200));
        let judge = self.judge.clone();
        loop {
            tokio::select! {
                found = judge.wait_for_finding() => return Ok(Some(found)),
                joined = running.join_next(), if !running.is_empty() => {
                    if let Some(Ok((id, outcome, took))) = joined {
                        let family = cases::family(run.seed, &id);
                        let ended = outcome.as_ref().map_or("open", |outcome| outcome.ended);
                        *report.cases.entry(family).or_default().entry(ended).or_default() += 1;
                        log_case(run, &id, outcome.as_ref(), took)?;
                    }
                }
                () = judge.wait_until_settled(), if running.is_empty() => return Ok(judge.finding()),
                _ = look.tick() => {
                    for (node, member) in self.members[..self.honest].iter_mut().enumerate() {
                        if let Err(error) = member.check() {
                            return Ok(Some(format!("node {node} ended by itself: {error:#}")));
                        }
                    }
                }
            }
        }
    }

    /// Kills a node, all nodes, or a worker, and starts what was killed.
    async fn kill(&mut self, run: &Run, random: &mut ChaCha8Rng) -> Result<Option<String>> {
        let count = self.honest;
        let node = random.gen_range(0..count);
        // With a misbehaving member, another fault would exceed f.
        if random.gen_bool(0.4) || count < self.members.len() {
            run.log(&format!("a worker of node {node} is killed"));
            if count > 1 {
                self.members[node].kill_worker(random);
                return Ok(None);
            }
            // A node alone executes the worker's paused messages again from their beginning, in one
            // round, as after a start; of four members the others make rounds meanwhile.
            self.judge.begin_recovery();
            self.members[node].kill_worker(random);
            let within = START_WITHIN.mul_f64(load_factor());
            let settled = timeout(within, self.judge.wait_until_settled()).await;
            self.judge.end_recovery();
            return Ok(settled.err().map(|_| {
                let seconds = within.as_secs();
                format!("node {node} made no round within {seconds} s after a worker was killed")
            }));
        }
        let all = count == 1 || random.gen_bool(0.25);
        let killed: Vec<usize> = if all { (0..count).collect() } else { vec![node] };
        run.log(&format!("kill -9 of {killed:?}"));
        self.judge.begin_recovery();
        for node in &killed {
            self.judge.set_down(*node, true);
            self.members[*node].kill();
        }
        sleep(Duration::from_millis(random.gen_range(0..1_500))).await;
        for node in &killed {
            self.members[*node].start()?;
        }
        for node in &killed {
            if let Err(error) = self.members[*node].healthy(&self.http, START_WITHIN).await {
                return Ok(Some(format!("node {node} did not come back after kill -9: {error:#}")));
            }
        }
        self.judge.end_recovery();
        for node in &killed {
            self.judge.set_down(*node, false);
        }
        Ok(None)
    }

    /// Final verification: compares roots, kills all nodes, replays their logs with other builds,
    /// stacks and thread counts, and starts them with another budget.
    async fn end(
        mut self,
        run: &Run,
        report: &mut Report,
        folder: &Path,
        random: &mut ChaCha8Rng,
    ) -> Result<Option<String>> {
        if self.members.len() > 1
            && let Some(what) = self.roots(report).await
        {
            return Ok(Some(what));
        }
        self.tasks.shutdown().await;
        // Findings after the last group.
        if let Some(what) = self.judge.finding() {
            return Ok(Some(what));
        }
        self.members.iter_mut().for_each(Member::kill);
        let before = report.roots_compared;
        // Of four members two, one of each build.
        let replayed = if run.is_short() { 1 } else { 2 };
        for turn in 0..self.honest.min(replayed) {
            let member = &self.members[self.honest - 1 - turn];
            if let Some(what) = replays(run, report, member, folder, random).await? {
                return Ok(Some(what));
            }
        }
        if report.roots_compared == before {
            report.omit(format!(
                "the replays of {}: no node had a block above its checkpoint",
                folder.display()
            ));
        }
        self.other_memory(run, report, random).await
    }

    /// Compares the roots that members certify for the same block time.
    async fn roots(&self, report: &mut Report) -> Option<String> {
        let mut seen = std::collections::BTreeMap::new();
        let mut pairs = 0_u64;
        let end = Instant::now() + ROOTS_FOR;
        while Instant::now() < end {
            for (node, agent) in self.ground.agents.iter().enumerate() {
                let path = vec![vec!["time".into()]];
                let asked = agent.read_state_raw(path, self.ground.forwarder);
                let Ok(Ok(certificate)) = timeout(Duration::from_secs(4), asked).await else {
                    continue;
                };
                let LookupResult::Found(time) = certificate.tree.lookup_path([b"time".as_slice()])
                else {
                    return Some(format!("a certificate of node {node} has no time"));
                };
                let root = certificate.tree.digest();
                match seen.insert(time.to_vec(), (node, root)) {
                    Some((other, before)) if before != root => {
                        return Some(format!(
                            "nodes {other} and {node} certify two roots of one time"
                        ));
                    }
                    // Two certificates of one node compare nothing.
                    Some((other, _)) if other != node => pairs += 1,
                    _ => {}
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
        report.roots_compared += pairs;
        if pairs == 0 {
            report.omit(format!(
                "the comparison of certified roots in {}: no two members certified one time",
                self.folder().display()
            ));
        }
        None
    }

    /// Starts all nodes with another budget; they first execute their logs with the old limits.
    async fn other_memory(
        &mut self,
        run: &Run,
        report: &mut Report,
        random: &mut ChaCha8Rng,
    ) -> Result<Option<String>> {
        let memory = *OTHER_MEMORY.choose(random).unwrap_or(&OTHER_MEMORY[0]);
        let acknowledged = self.judge.acknowledged.load(Relaxed);
        // The misbehaving member may be disconnected; the others continue without it.
        for (turn, member) in self.members[..self.honest].iter_mut().enumerate() {
            member.profile = ProcessProfile::any(&run.builds, turn + 1, random);
            member.set_memory(memory);
            member.start()?;
        }
        run.log(&format!("killed, and started again with {memory}"));
        for (node, member) in self.members[..self.honest].iter_mut().enumerate() {
            if let Err(error) = member.healthy(&self.http, START_WITHIN).await {
                return Ok(Some(format!("node {node} did not start with {memory}: {error:#}")));
            }
        }
        let counter = self.judge.counter();
        let end = Instant::now() + START_WITHIN;
        let told = loop {
            let call = self.ground.agents[0].update(&counter, "inc").with_arg(vec![]);
            if let Ok(Ok(reply)) = timeout(Duration::from_secs(8), call.call_and_wait()).await {
                break crate::hammer::protocol::first_word(&reply).unwrap_or_default();
            }
            if Instant::now() > end {
                return Ok(Some(format!("no update was acknowledged after a start with {memory}")));
            }
        };
        report.restarts_with_other_memory += 1;
        if told <= acknowledged {
            return Ok(Some(format!(
                "the counter is at {told} after {acknowledged} acknowledged calls and a start \
                 with {memory}"
            )));
        }
        for (node, member) in self.members.iter_mut().enumerate() {
            if let Err(error) = member.stop().await {
                return Ok(Some(format!("node {node} did not stop: {error:#}")));
            }
        }
        Ok(None)
    }
}

/// Replays the log of a killed node with every build and two thread counts each.
async fn replays(
    run: &Run,
    report: &mut Report,
    member: &Member,
    folder: &Path,
    random: &mut ChaCha8Rng,
) -> Result<Option<String>> {
    // The builds by turns, and each with the least and the most stack over two lives.
    let first = 2 * random.gen_range(0..2);
    for turn in 0..run.builds.len().max(2) {
        let profile = ProcessProfile::extreme(&run.builds, first + turn);
        let counts = match (run.is_short(), turn.is_multiple_of(2)) {
            (true, true) => ["1"; 3],
            (true, false) => ["2", "3", "4"],
            (false, _) => ["1,4", "2,3", "1,2"],
        };
        let threads = counts[random.gen_range(0..counts.len())];
        let log = folder.join(format!("replay-{}.log", report.replays));
        let mut command = profile.command();
        command.args(["replay", "--threads", threads, "--json", "--scratch"]).arg(folder);
        command.arg(&member.data);
        let words = format!("{} with {threads} threads", profile.description());
        let good = match net::finished(command, REPLAY_WITHIN.mul_f64(load_factor()), &log).await {
            Ok(good) => good,
            Err(error) => return Ok(Some(format!("a replay by {words}: {error:#}"))),
        };
        report.replays += 1;
        let text = fs::read_to_string(&log).unwrap_or_default();
        if good {
            match compared(&text) {
                Some(roots) if roots > 0 => report.roots_compared += roots,
                Some(_) => return Ok(Some(format!("a replay by {words} compared no root"))),
                None => {
                    let log = log.display();
                    return Ok(Some(format!("a replay by {words} printed no outcome: {log}")));
                }
            }
        } else if !text.contains("no block above") {
            let last: Vec<&str> = text.lines().rev().take(3).collect();
            return Ok(Some(format!("a replay by {words} failed: {}", last.join(" | "))));
        }
    }
    Ok(None)
}

/// Number of roots that a replay compared, from its output; `None` if there is no such number.
fn compared(text: &str) -> Option<u64> {
    // Warnings may precede and follow the list of runs.
    let at = if text.starts_with("[\n") { 0 } else { text.rfind("\n[\n")? + 1 };
    let mut lists = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Vec<Value>>();
    let runs = lists.next()?.ok()?;
    runs.iter().map(|run| run["compared"].as_u64()).sum()
}

fn log_case(run: &Run, id: &Id, outcome: Option<&cases::Outcome>, took: Duration) -> Result<()> {
    use std::io::Write as _;
    let line = json!({
        "case": id.to_string(),
        "at": run.began.elapsed().as_secs_f64(),
        "seconds": took.as_secs_f64(),
        "what": outcome.map(|outcome| &outcome.what),
        "ended": outcome.map(|outcome| outcome.ended),
        "answer": outcome.map(|outcome| &outcome.answer),
    });
    let path = run.folder.join("cases.jsonl");
    let mut file = fs::File::options().create(true).append(true).open(&path)?;
    writeln!(file, "{line}").with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roots_of_a_replay_are_read_between_warnings() {
        let runs = "[\n  {\n    \"compared\": 3\n  },\n  {\n    \"compared\": 4\n  }\n]\n";
        assert_eq!(compared(runs), Some(7));
        assert_eq!(compared(&format!("WARN [a] b\n{runs}WARN [c]\n")), Some(7));
        assert_eq!(compared("[\n  {}\n]\n"), None);
        assert_eq!(compared("WARN [a] b\n"), None);
        assert_eq!(compared(""), None);
    }
}
