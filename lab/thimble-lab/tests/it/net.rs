//! `thimble-lab net` as its user meets it: real processes in real groups, on the networks that this
//! machine has.
//!
//! Where no memory-capped group can be made, or no network namespace, a test reports that on
//! standard error and ends.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use testing::{
    process::{Signal, is_running, send},
    until,
};

use crate::support::{LAB, groups, text};

/// Nothing here takes as long; what has not happened by then will not.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A net's folder; whatever the test did, nothing of the net stays.
struct Net {
    folder: tempfile::TempDir,
}

impl Net {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("net")
    }

    fn command(&self, words: &str) -> Command {
        // The tests may run in the background with signals ignored.
        let mut command = Command::new("env");
        command.args(["--default-signal", LAB, "net", "--dir"]).arg(self.dir());
        command.args(words.split_whitespace()).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs with success; returns its output.
    fn good(&self, words: &str) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "net {words}: {}", text(&output));
        text(&output)
    }

    /// Runs with a failure; returns its output.
    fn bad(&self, words: &str) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "net {words}: {}", text(&output));
        text(&output)
    }

    /// A program in place of a node. One that never listens is started on ports below those where
    /// nets look for free ones (`--base-port`), each test on its own: a node of another test that
    /// was down when the ports were found free would answer on them.
    fn program(&self, script: &str) -> String {
        let path = self.folder.path().join("node.sh");
        testing::executable(&path, format!("#!/bin/sh\n{script}\n").as_bytes());
        path.display().to_string()
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.run("status --json").stdout).unwrap()
    }

    fn file(&self) -> Value {
        serde_json::from_slice(&fs::read(self.dir().join("net.json")).unwrap()).unwrap()
    }

    /// The process of a node, and the directory of its group.
    fn info(&self, node: usize) -> (u32, PathBuf) {
        let path = self.dir().join(format!("node-{node}/info.json"));
        let info: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        (info["pid"].as_u64().unwrap() as u32, info["directory"].as_str().unwrap().into())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if self.dir().join("net.json").exists() {
            let _ = self.run("down --delete");
        }
    }
}

/// `State` of a process, in one letter.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn node_is_built() -> bool {
    let built = Path::new(LAB).with_file_name("thimble").exists();
    assert!(
        built,
        "these tests need the node's binary beside {LAB}; build it with `cargo build --release -p \
         thimble`"
    );
    built
}

#[test]
fn a_net_is_started_hurt_looked_at_and_stopped() {
    if !groups() || !node_is_built() {
        return;
    }
    let net = Net::new();
    let said = net.good("up --nodes 3 --memory 256MiB --independent");
    assert!(said.contains("every node serves"), "{said}");
    let status = net.status();
    let nodes = status["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 3);
    for node in nodes {
        assert_eq!(
            (&node["condition"], &node["report"]["healthy"]),
            (&"running".into(), &true.into())
        );
        assert!(node["group"]["anonymous_peak_bytes"].as_u64().unwrap() > 1 << 20, "{node:#}");
        assert_eq!(node["memory_bytes"], 256 << 20);
    }
    let cap = net.info(0).1.join("memory.limit_in_bytes");
    if cap.exists() {
        assert_eq!(fs::read_to_string(cap).unwrap().trim(), (256 << 20).to_string());
    }

    // Again: nothing to do. Another size: no.
    assert!(net.good("up").contains("all of them run already"));
    assert!(net.bad("up --nodes 4").contains("has 3 nodes, not 4"));
    assert!(net.bad("up --memory 512MiB").contains("gives node 0 256 MiB, not 512 MiB"));

    let (pid, group) = net.info(1);
    assert!(net.good("kill 1").contains("node 1 is killed"));
    assert!(!is_running(pid) && !group.exists(), "the node and its group are gone");
    assert!(net.good("kill 1").contains("node 1 did not run"));
    let status = net.run("status");
    assert_eq!(status.status.code(), Some(1));
    assert!(text(&status).contains("killed"), "{}", text(&status));
    assert!(net.good("restart 1").contains("node 1 serves"));
    assert_eq!(net.status()["nodes"][1]["starts"], 2);

    let (pid, _) = net.info(2);
    net.good("pause 2");
    until("all of the node stands still", || state(pid) == Some('T'));
    assert!(net.good("pause 2").contains("was paused already"));
    assert_eq!(net.status()["nodes"][2]["condition"], "paused");
    net.good("resume 2");
    assert!(net.good("up").contains("all of them run already"));
    assert_ne!(state(pid), Some('T'));
    assert!(net.bad("kill 3").contains("the nodes are 0 to 2"));
    assert!(net.good("logs 0").contains("serving"));
    assert_eq!(net.good("logs 0 -n 1").lines().count(), 1);

    let pids: Vec<u32> = (0..3).map(|node| net.info(node).0).collect();
    assert!(net.good("down").contains("3 nodes are stopped"));
    assert!(pids.iter().all(|pid| !is_running(*pid)));
    assert_eq!(net.status()["nodes"][0]["condition"], "stopped");
    assert!(net.good("down").contains("3 nodes are stopped"), "again, without harm");
    assert!(net.good("up").contains("3 nodes are started"));
    net.good("down --delete");
    assert!(!net.dir().exists());
    assert!(net.good("down").contains("there is no net"));
}

/// Four nodes, one key that none of them knows, one history; after any fault of one of them, the
/// others continue, and it recovers.
#[test]
fn four_nodes_agree_while_one_is_hurt() {
    if !groups() || !node_is_built() {
        return;
    }
    let net = Net::new();
    let said = net.good("up --nodes 4 --memory 256MiB --network proxies");
    assert!(
        said.contains("the genesis is verified") && said.contains("every node serves"),
        "{said}"
    );
    let heights = || -> Vec<Option<u64>> {
        let status = net.status();
        status["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| node["report"]["height"].as_u64())
            .collect()
    };
    let moves = |nodes: &[usize], what: &str| {
        let before = heights();
        until(what, || {
            let now = heights();
            nodes.iter().all(|&node| now[node] > before[node].or(Some(0)))
        });
    };
    moves(&[0, 1, 2, 3], "all heights move");
    net.good("kill 3");
    moves(&[0, 1, 2], "three continue without the fourth");
    net.good("restart 3");
    moves(&[0, 1, 2, 3], "the fourth comes back");

    net.good("partition 0|1,2,3");
    // What had arrived before the cut may still be certified; then nothing is.
    let mut alone = None;
    until("one alone certifies nothing", || {
        moves(&[1, 2, 3], "three continue without the first");
        let now = heights()[0];
        std::mem::replace(&mut alone, now) == now && now.is_some()
    });
    net.good("partition 0,1|2,3");
    // The first may still fetch what was agreed on without it; nothing new is.
    let mut split = None;
    until("two of four agree on nothing", || {
        let every: Option<Vec<u64>> = heights().into_iter().collect();
        let now = every.and_then(|heights| heights.into_iter().max());
        std::thread::sleep(Duration::from_secs(3));
        std::mem::replace(&mut split, now) == now && now.is_some()
    });
    net.good("heal");
    moves(&[0, 1, 2, 3], "healed");

    assert!(net.good("slow 2 --latency 30ms --loss 1%").contains("slow (30 ms, 1 % lost)"));
    moves(&[0, 1, 2, 3], "slow is not cut");
    net.good("slow 2 --off");

    // The driver over all four, each certificate against the one root key.
    let mut hammer = Command::new(LAB);
    hammer.args(["hammer", "--net"]).arg(net.dir());
    hammer.args(
        "--mode throughput --operations 20 --verify-every 1 --strict --no-progress --json -"
            .split(' '),
    );
    let output = hammer.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["nodes"].as_array().unwrap().len(), 4);
    assert!(
        report["nodes"].as_array().unwrap().iter().all(|node| node["answers"].as_u64() > Some(0))
    );

    // All of it stops, and begins where it was.
    let before = heights()[0].unwrap();
    net.good("down");
    assert!(net.good("up").contains("4 nodes are started"));
    assert!(heights()[0].unwrap() >= before);
}

#[test]
fn what_keeps_a_net_from_serving_is_named() {
    if !groups() {
        return;
    }
    let net = Net::new();
    let ends = net.program("echo the disk is on fire >&2; exit 3");
    let said = net.bad(&format!("up --nodes 2 --independent --memory 64MiB --node {ends}"));
    assert!(
        said.contains("ended by itself: exit 3") && said.contains("the disk is on fire"),
        "{said}"
    );
    assert!(net.run("status").status.code() == Some(1));
    net.good("down --delete");

    let silent = net.program("exec sleep 1000");
    let said = net.bad(&format!(
        "up --nodes 2 --independent --memory 64MiB --wait 1 --base-port 17200 --node {silent}"
    ));
    assert!(
        said.contains(
            "not after 1 s. node 0: it does not listen yet; node 1: it does not listen yet"
        ),
        "{said}"
    );
    assert!(is_running(net.info(0).0), "a net that is late is left as it is");
    net.good("down --delete");

    let hungry = net.program("dd if=/dev/zero of=/dev/null bs=200M count=1 status=none");
    let said = net.bad(&format!("up --nodes 1 --memory 64MiB --node {hungry}"));
    assert!(said.contains("killed for lack of memory"), "{said}");
    assert!(net.bad("up --topology /no/such/file").contains("/no/such/file"));
}

#[test]
fn ctrl_c_stops_what_was_started() {
    if !groups() {
        return;
    }
    let net = Net::new();
    let silent = net.program("exec sleep 1000");
    let words =
        format!("up --nodes 3 --independent --memory 64MiB --base-port 17400 --node {silent}");
    let mut up = net.command(&words).stdout(Stdio::null()).spawn().unwrap();
    until("three nodes", || {
        (0..3).all(|node| net.dir().join(format!("node-{node}/info.json")).exists())
    });
    let pids: Vec<u32> = (0..3).map(|node| net.info(node).0).collect();
    send(up.id(), Signal::INT);
    assert_eq!(up.wait().unwrap().code(), Some(130));
    assert!(pids.iter().all(|pid| !is_running(*pid)));
    assert_eq!(net.status()["nodes"][2]["condition"], "stopped");
}

#[test]
fn a_process_that_only_has_the_number_of_a_node_is_left_alone() {
    if !groups() {
        return;
    }
    let net = Net::new();
    let silent = net.program("exec sleep 1000");
    net.bad(&format!("up --nodes 1 --memory 64MiB --wait 1 --base-port 17000 --node {silent}"));
    net.good("kill 0");
    let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
    // As if the keeper's number, and the node's, had come round again.
    let mut file = net.file();
    file["nodes"][0]["keeper"]["pid"] = bystander.id().into();
    file["nodes"][0]["told"] = "run".into();
    fs::write(net.dir().join("net.json"), file.to_string()).unwrap();
    let info = net.dir().join("node-0/info.json");
    let mut value: Value = serde_json::from_slice(&fs::read(&info).unwrap()).unwrap();
    value["pid"] = bystander.id().into();
    fs::write(&info, value.to_string()).unwrap();
    assert!(net.good("kill 0").contains("did not run"));
    assert!(net.bad("pause 0").contains("only a running node can be paused"));
    net.good("down");
    assert!(bystander.try_wait().unwrap().is_none(), "the bystander lives");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[test]
fn namespaces_are_cut_and_heal_and_leave_nothing_behind() {
    if !groups() || !node_is_built() {
        return;
    }
    let net = Net::new();
    let output = net.run("up --nodes 3 --memory 256MiB --independent --network namespaces");
    if text(&output).contains("--network proxies needs nothing of the kind") {
        return testing::missing(text(&output));
    }
    assert!(output.status.success(), "{}", text(&output));
    let file = net.file();
    let address = |node: usize| file["nodes"][node]["http"].as_str().unwrap().to_owned();
    let namespace =
        |node: usize| format!("/run/netns/thimble-{}-{node}", file["id"].as_str().unwrap());
    // Whether one node's network lets it dial another.
    let dials = |from: usize, to: usize| {
        let (host, port) = (address(to), address(to));
        let (host, port) = (host.split(':').next().unwrap(), port.split(':').nth(1).unwrap());
        Command::new("nsenter")
            .arg(format!("--net={}", namespace(from)))
            .args(["timeout", "1", "bash", "-c", &format!("exec 3<>/dev/tcp/{host}/{port}")])
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    };
    // A dial is given up after a second, which a busy machine may need to begin it.
    until("all dial", || dials(0, 1) && dials(1, 2) && dials(2, 0));
    assert!(net.good("partition 0|1,2").contains("cut: 0-1 0-2"));
    assert!(!dials(0, 1) && !dials(2, 0));
    until("what is not cut dials", || dials(1, 2));
    assert_eq!(net.status()["nodes"][0]["report"]["healthy"], true, "the endpoints stay reachable");
    assert_eq!(net.status()["links"][0], "cut: 0-1 0-2");
    assert!(
        net.good("partition 0,1 2").contains("cut: 0-2 1-2"),
        "a new partition replaces the old one"
    );
    until("what is not cut any more dials", || dials(0, 1));
    assert!(!dials(1, 2));
    net.good("heal");
    until("all dial again", || dials(0, 1) && dials(1, 2) && dials(2, 0));
    let slow = net.run("slow 1 --latency 20ms");
    match slow.status.success() {
        true => net.good("slow 1 --off"),
        false => {
            assert!(text(&slow).contains("this kernel cannot slow links"), "{}", text(&slow));
            String::new()
        }
    };
    net.good("down --delete");
    assert!(!Path::new(&namespace(0)).exists());
}

/// Two nodes' worth of links in front of listeners of the test's own.
struct Relay {
    child: Child,
    folder: tempfile::TempDir,
    /// Where node 0 dials node 1, and where node 1 listens.
    dialled: String,
    listener: TcpListener,
    generation: u64,
}

impl Relay {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // None that the system gives away by itself: it is to be free still when the relay takes
        // it.
        let mut ports =
            (9_000..10_000).cycle().skip(std::process::id() as usize % 1_000).take(1_000);
        let dialled = ports.find_map(|port| {
            let address = format!("127.0.0.1:{port}");
            TcpListener::bind(&address).is_ok().then_some(address)
        });
        let mut relay = Self {
            child: Command::new("true").spawn().unwrap(),
            folder,
            dialled: dialled.unwrap(),
            listener,
            generation: 0,
        };
        relay.child.wait().unwrap();
        relay.write(false, 0, 0.0);
        relay.child = Command::new(LAB)
            .args(["net", "relay", "--dir"])
            .arg(relay.folder.path())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        relay.wait();
        relay
    }

    /// Both directions alike.
    fn write(&mut self, cut: bool, latency_micros: u64, loss: f64) {
        self.generation += 1;
        let link = |link: [u64; 2], listen: &str, forward: String| {
            serde_json::json!({
                "link": link, "listen": listen, "forward": forward, "cut": cut,
                "quality": {"latency_micros": latency_micros, "loss": loss},
            })
        };
        let there = self.listener.local_addr().unwrap().to_string();
        // There are no dials in the other direction; that link carries the bytes that come back.
        let links =
            [link([0, 1], &self.dialled, there), link([1, 0], "127.0.0.1:0", "127.0.0.1:1".into())];
        let orders = serde_json::json!({"generation": self.generation, "links": links});
        fs::write(self.folder.path().join("links.json"), orders.to_string()).unwrap();
    }

    fn wait(&self) {
        let wanted = serde_json::json!({"generation": self.generation});
        let path = self.folder.path().join("relay.json");
        until("the relay follows", || {
            fs::read(&path).is_ok_and(|bytes| {
                serde_json::from_slice::<Value>(&bytes).is_ok_and(|value| value == wanted)
            })
        });
    }

    fn order(&mut self, cut: bool, latency_micros: u64, loss: f64) {
        self.write(cut, latency_micros, loss);
        send(self.child.id(), Signal::HUP);
        self.wait();
    }

    /// Both ends of a connection over the link.
    fn connect(&self) -> (TcpStream, TcpStream) {
        let near = TcpStream::connect(&self.dialled).unwrap();
        let (far, _) = self.listener.accept().unwrap();
        for end in [&near, &far] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(TIMEOUT)).unwrap();
        }
        (near, far)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Time until the bytes written at one end arrive at the other.
fn crossing(from: &mut TcpStream, to: &mut TcpStream) -> Duration {
    let started = Instant::now();
    from.write_all(b"x").unwrap();
    to.read_exact(&mut [0]).unwrap();
    started.elapsed()
}

fn is_silent(end: &mut TcpStream) -> bool {
    end.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let silent = matches!(end.read(&mut [0; 1]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
    end.set_read_timeout(Some(TIMEOUT)).unwrap();
    silent
}

#[test]
fn the_relay_cuts_slows_and_heals_without_losing_a_byte() {
    let mut relay = Relay::start();
    let (mut near, mut far) = relay.connect();
    crossing(&mut near, &mut far);
    crossing(&mut far, &mut near);

    // Much more than it may hold passes whole, and in order.
    let bytes: Vec<u8> =
        (0..20_000_000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let sent = bytes.clone();
    let mut writer = near.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut received = vec![0; bytes.len()];
    far.read_exact(&mut received).unwrap();
    writing.join().unwrap();
    assert!(received == bytes);

    // Latency is in each direction.
    relay.order(false, 100_000, 0.0);
    assert!(crossing(&mut near, &mut far) >= Duration::from_millis(100));
    assert!(crossing(&mut far, &mut near) >= Duration::from_millis(100));
    // Lost data arrive one retransmission later.
    relay.order(false, 1000, 1.0);
    assert!(crossing(&mut near, &mut far) >= Duration::from_millis(200));
    relay.order(false, 0, 0.0);

    // A cut link carries nothing: no bytes, no end of a connection, no new connection.
    relay.order(true, 0, 0.0);
    near.write_all(b"later").unwrap();
    far.write_all(b"back").unwrap();
    let (mut one, two) = (TcpStream::connect(&relay.dialled).unwrap(), near.try_clone().unwrap());
    one.write_all(b"new").unwrap();
    two.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(is_silent(&mut far) && is_silent(&mut near));
    relay.listener.set_nonblocking(true).unwrap();
    assert!(relay.listener.accept().is_err(), "a dial does not cross a cut link");
    relay.listener.set_nonblocking(false).unwrap();

    // And has lost nothing when it heals.
    relay.order(false, 0, 0.0);
    let mut text = String::new();
    far.read_to_string(&mut text).unwrap();
    assert_eq!(text, "later");
    let mut back = [0; 4];
    near.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"back");
    let (mut new, _) = relay.listener.accept().unwrap();
    let mut three = [0; 3];
    new.read_exact(&mut three).unwrap();
    assert_eq!(&three, b"new");
}
