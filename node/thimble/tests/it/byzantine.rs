//! A member that misbehaves, by every means it has, among three honest ones on real sockets.
//!
//! The member is the real node with attacks between it and its network
//! (`node/thimble/byzantine`).

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use candid::Principal;
use ic_agent::Agent;
use testing::until_async;
use tokio::task::JoinHandle;

use crate::{
    harness::*,
    outcalls::{
        self,
        kit::{Authority, Request},
    },
    subnet::{FORGETFUL, Subnet, increment},
};

/// Epochs of a few seconds, so that there are dealings, and queries that are reported.
const SHORT: &str = "[limits.consensus]\nblocks_per_epoch = 40\nidle_round_millis = 100\n";
/// Place of the member that misbehaves.
const BYZANTINE: usize = 3;
/// Increments that each honest member's client has acknowledged while an attack is made.
const PROGRESS: u64 = 5;

/// Attacks that are made one after the other, each of which must be made, until the next start:
/// those after which members keep the connection, then those after which they cut the sender off.
const STARTS: [&str; 7] = [
    "refused-blocks,other-roots,false-root-shares,withheld-calls,false-reports,\
     false-limits,false-dealings,other-answers",
    "other-epochs",
    "equivocating-blocks",
    "conflicting-votes",
    "false-certificates,false-calls,double-votes",
    "false-votes,malformed-blocks,garbage",
    "flood",
];

/// A number that no run had before, or the one that the environment states.
fn fresh_seed() -> u64 {
    let stated = std::env::var("BYZANTINE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = stated.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_secs()
    });
    eprintln!("BYZANTINE_SEED={seed}");
    seed
}

fn attack_log(subnet: &Subnet) -> PathBuf {
    subnet.nodes[BYZANTINE].data.with_extension("attacks")
}

/// The next start of the last node is the member that misbehaves.
fn misbehave(subnet: &mut Subnet, attacks: &str, seed: u64) {
    let log = attack_log(subnet);
    let node = &mut subnet.nodes[BYZANTINE];
    node.program = env!("CARGO_BIN_EXE_thimble-byzantine");
    node.prelude = format!(
        "export THIMBLE_BYZANTINE_ATTACKS={attacks} THIMBLE_BYZANTINE_SEED={seed} \
         THIMBLE_BYZANTINE_TURN_SECONDS=2 THIMBLE_BYZANTINE_LOG={}",
        log.display()
    );
}

/// Attacks that were made, by name, and defects of the program that makes them.
fn made(subnet: &Subnet) -> (BTreeSet<String>, Vec<String>) {
    let text = std::fs::read_to_string(attack_log(subnet)).unwrap_or_default();
    let (mut made, mut defects) = (BTreeSet::new(), Vec::new());
    for line in text.lines() {
        let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        match line["attack"].as_str() {
            Some(attack) => drop(made.insert(attack.to_owned())),
            None => defects.push(line.to_string()),
        }
    }
    (made, defects)
}

/// A client that increments a counter of its own, one call after the other.
struct Client {
    counter: Principal,
    stop: Arc<AtomicBool>,
    /// Acknowledged, and sent.
    work: JoinHandle<(u64, u64)>,
    acknowledged: Arc<AtomicU64>,
}

impl Client {
    fn start(agent: Agent, counter: Principal) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let work = tokio::spawn(Self::run(agent, counter, stop.clone(), Arc::clone(&acknowledged)));
        Self { counter, stop, work, acknowledged }
    }

    async fn run(
        agent: Agent,
        counter: Principal,
        stop: Arc<AtomicBool>,
        acknowledged: Arc<AtomicU64>,
    ) -> (u64, u64) {
        let (mut last, mut sent) = (0, 0);
        while !stop.load(Relaxed) {
            sent += 1;
            // A call that was refused or timed out may have been executed.
            if let Ok(reply) = update(&agent, counter, "inc", vec![]).await {
                let count = u64::from_le_bytes(reply.try_into().unwrap());
                assert!(count > last, "{count} after {last}: a call was executed twice or undone");
                last = count;
                acknowledged.fetch_add(1, Relaxed);
            }
        }
        (acknowledged.load(Relaxed), sent)
    }
}

/// What honest members say that must not happen, whatever another does.
fn wrongs(subnet: &Subnet) -> Vec<String> {
    let honest = subnet.nodes.iter().enumerate().filter(|(place, _)| *place != BYZANTINE);
    let wrong = |line: &&str| {
        ["panicked", "defect", "was certified before"].iter().any(|it| line.contains(it))
    };
    let of_one = |(place, node): (usize, &Node)| -> Vec<String> {
        let log = node.log();
        log.lines().filter(wrong).map(|line| format!("{place}: {line}")).collect()
    };
    honest.flat_map(of_one).collect()
}

/// Peers that honest members cut off.
fn cut_off(subnet: &Subnet) -> BTreeSet<String> {
    let honest = &subnet.nodes[..BYZANTINE];
    let peer = |line: &str| -> Option<String> {
        let (_, rest) = line.split_once(" WARN ")?.1.split_once("peer=")?;
        Some(rest.split_whitespace().next()?.trim_end_matches(',').to_owned())
    };
    honest.iter().flat_map(|node| node.log().lines().filter_map(peer).collect::<Vec<_>>()).collect()
}

// Promise: P18 - One Byzantine member of four cannot stop, split or corrupt the three honest
//   members.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_that_misbehaves_cannot_stop_or_corrupt_the_others() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    // The features' table is the last.
    let configuration = SHORT.to_owned() + &authority.configuration(folder.path());
    let mut subnet = Subnet::prepared(&configuration, &["--provisional", "true"], None);
    let server = outcalls::server(&authority).await;
    let mut asker = None;
    let mut counters: Vec<Principal> = Vec::new();
    let mut counts = [0; BYZANTINE];
    let seed = fresh_seed();
    for (start, attacks) in STARTS.into_iter().enumerate() {
        misbehave(&mut subnet, attacks, seed.wrapping_add(start as u64));
        subnet.nodes.iter_mut().for_each(Node::spawn);
        for node in &mut subnet.nodes {
            node.healthy().await;
        }
        if counters.is_empty() {
            for _ in &subnet.nodes {
                let node = &subnet.nodes[0];
                counters.push(deploy(&node.agent(1).await, "counter-c.wasm").await);
            }
        }
        let mut clients = Vec::new();
        for (node, counter) in subnet.nodes.iter().zip(&counters) {
            clients.push(Client::start(node.agent(1).await, *counter));
        }
        let agent = subnet.nodes[0].agent(1).await;
        let asker = match asker {
            Some(asker) => asker,
            None => *asker.insert(outcalls::deploy_asker(&agent).await),
        };
        for _ in 0..3 {
            let same = outcalls::ask(&agent, asker, &Request::get(server.url("same"))).await;
            assert_eq!(same.response().body, b"/same");
        }
        let expected: BTreeSet<String> = attacks.split(',').map(str::to_owned).collect();
        until_async(&format!("all of {attacks} were made, and calls acknowledged"), async || {
            made(&subnet).0.is_superset(&expected)
                && clients[..BYZANTINE]
                    .iter()
                    .all(|client| client.acknowledged.load(Relaxed) >= PROGRESS)
        })
        .await;
        // What its own client has may not be agreed on any more.
        let last = clients.pop();
        last.iter().for_each(|client| client.work.abort());
        for (place, client) in clients.into_iter().enumerate() {
            client.stop.store(true, Relaxed);
            let (acknowledged, sent) = client.work.await.unwrap();
            let agent = subnet.nodes[place].agent(1).await;
            let reply = query(&agent, client.counter, "get", vec![]).await.unwrap();
            let count = u64::from_le_bytes(reply.try_into().unwrap());
            let executed = count - counts[place];
            assert!(
                (acknowledged..=sent).contains(&executed),
                "{acknowledged} acknowledged, {sent} sent, {executed} executed"
            );
            counts[place] = count;
        }
        // All honest members have the same, and none ended.
        for (counter, count) in counters.iter().zip(counts) {
            until_async("the honest members show the same", async || {
                subnet.honest_count(*counter, count).await
            })
            .await;
        }
        let (_, defects) = made(&subnet);
        assert_eq!(defects, Vec::<String>::new());
        assert_eq!(wrongs(&subnet), Vec::<String>::new());
        subnet.nodes[BYZANTINE].kill();
        subnet.nodes[..BYZANTINE].iter_mut().for_each(Node::stop);
    }
    let peers = cut_off(&subnet);
    assert!(peers.len() <= 1, "an honest member was cut off: {peers:?}");
}

// Promise: P18 - False state offers do not keep a member from the certified state.
#[tokio::test]
async fn member_that_offers_false_states_does_not_keep_others_from_a_true_one() {
    let mut subnet = Subnet::prepared(FORGETFUL, &["--provisional", "true"], None);
    misbehave(&mut subnet, "false-states", fresh_seed());
    subnet.start_all().await;
    let agent = subnet.nodes[0].agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(increment(&agent, counter).await, 1);
    subnet.nodes[2].kill();
    assert_eq!(increment(&agent, counter).await, 2);
    subnet.forget().await;
    subnet.nodes[2].spawn();
    until_async("the member that was away has the state", async || {
        subnet.nodes[2].try_status().await.is_some() && {
            let agent = subnet.nodes[2].agent(1).await;
            let reply = query(&agent, counter, "get", vec![]).await;
            reply.is_ok_and(|reply| reply == 2_u64.to_le_bytes())
        }
    })
    .await;
    assert!(subnet.nodes[2].log().contains("a state was fetched from peers"));
    let (made, defects) = made(&subnet);
    assert!(made.contains("false-states"), "{made:?}");
    assert_eq!(defects, Vec::<String>::new());
    assert_eq!(wrongs(&subnet), Vec::<String>::new());
}

impl Subnet {
    /// Whether each honest member answers with this count.
    async fn honest_count(&self, counter: Principal, count: u64) -> bool {
        for node in &self.nodes[..BYZANTINE] {
            let agent = node.agent(1).await;
            let reply = query(&agent, counter, "get", vec![]).await.unwrap();
            if u64::from_le_bytes(reply.try_into().unwrap()) != count {
                return false;
            }
        }
        true
    }
}
