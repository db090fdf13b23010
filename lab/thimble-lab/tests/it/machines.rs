//! Nets of virtual machines from the user's view: real QEMU, and an image of the binaries in the
//! folder of this program. Emulation is slow, so each test runs a whole scenario.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;
use testing::{process::is_running, until};

use crate::support::{LAB, text};

/// Emulated processors of two nets at once would wait for each other.
static TURN: Mutex<()> = Mutex::new(());

/// The image of all tests of this file, in a cache of its own; `None` where none can be made.
fn cache() -> Option<&'static Path> {
    static CACHE: OnceLock<Result<tempfile::TempDir, String>> = OnceLock::new();
    let made = CACHE.get_or_init(|| {
        if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
            return Err("QEMU is not installed: apt-get install qemu-system-x86".into());
        }
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        // Read by another user in one of the tests.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let output = Command::new(LAB)
            .args(["image", "build", "--quiet", "--cache"])
            .arg(folder.path())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() { Ok(folder) } else { Err(text(&output)) }
    });
    match made {
        Ok(folder) => Some(folder.path()),
        Err(why) => {
            testing::missing(why);
            None
        }
    }
}

/// A net's folder; whatever the test did, nothing of the net stays.
struct Net {
    folder: tempfile::TempDir,
    cache: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Net {
    fn new() -> Option<Self> {
        let cache = cache()?.to_owned();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Self { folder: tempfile::tempdir().unwrap(), cache, _turn: turn })
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("net")
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new("env");
        command.args(["--default-signal", LAB, "net", "--dir"]).arg(self.dir());
        command.env("THIMBLE_IMAGES", &self.cache);
        command.args(words.split_whitespace()).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    fn good(&self, words: &str) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "net {words}: {}", text(&output));
        text(&output)
    }

    fn bad(&self, words: &str) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "net {words}: {}", text(&output));
        text(&output)
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.run("status --json").stdout).unwrap()
    }

    fn height(&self, node: usize) -> u64 {
        self.status()["nodes"][node]["report"]["height"].as_u64().unwrap_or(0)
    }

    fn info(&self, node: usize) -> Value {
        let path = self.dir().join(format!("node-{node}/info.json"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    /// Another cache, whose image differs from the one that was built.
    fn change_image(&mut self, change: impl FnOnce(&mut Value, &Path)) {
        let copy = self.folder.path().join("cache");
        let copied = Command::new("cp").arg("-a").args([&self.cache, &copy]).status().unwrap();
        assert!(copied.success());
        let record = copy.join("machines/node.json");
        let mut image: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        let folder = self.folder.path().join("image");
        fs::create_dir(&folder).unwrap();
        for file in ["kernel", "initrd"] {
            fs::copy(Path::new(image["folder"].as_str().unwrap()).join(file), folder.join(file))
                .unwrap();
        }
        image["folder"] = folder.to_str().unwrap().into();
        change(&mut image, &folder);
        fs::write(record, serde_json::to_vec(&image).unwrap()).unwrap();
        self.cache = copy;
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if self.dir().join("net.json").exists() {
            let _ = self.run("down --delete");
        }
    }
}

// Promise: P25 - A published client works with a node in a machine; acknowledged updates survive
//   its power cut.
/// A power cut loses no acknowledged update; asked to stop, the machine ends cleanly.
#[test]
fn one_machine_works_loses_its_power_and_goes_on() {
    let Some(net) = Net::new() else { return };
    let said = net.good("up --backend vm --nodes 1 --memory 320MiB");
    assert!(said.contains("every node serves") && said.contains("machines QEMU"), "{said}");
    let status = net.status();
    assert_eq!((&status["backend"], &status["network"]), (&"vm".into(), &"machines".into()));
    let accelerator = status["qemu"]["accelerator"].as_str().unwrap();
    assert!(accelerator == "kvm" || status["qemu"]["why"].is_string(), "{status:#}");
    let node = &status["nodes"][0];
    assert!(node["host_bytes"].as_u64().unwrap() > 32 << 20);
    until("the guest reports its memory", || {
        net.status()["nodes"][0]["group"]["anonymous_bytes"].as_u64() > Some(1 << 20)
    });

    // A client's work, of which all that was acknowledged is asked for again after the power cut.
    let url = node["url"].as_str().unwrap().to_owned();
    let module = concat!(env!("CARGO_MANIFEST_DIR"), "/../../canisters/wasm/motoko-counter64.wasm");
    let remember = net.folder.path().join("canister");
    let demo = || {
        let mut command = Command::new(LAB);
        command.args(["demo", "--url", &url, "--canister", module, "--remember"]).arg(&remember);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let worked = demo();
    assert!(worked.status.success(), "{}", text(&worked));
    let canister_before = net.folder.path().join("canister-before");
    fs::copy(&remember, &canister_before).unwrap();
    let height = net.height(0);
    let pid = net.info(0)["pid"].as_u64().unwrap();
    assert!(net.good("kill 0").contains("node 0 is killed"));
    assert!(!is_running(u32::try_from(pid).unwrap()));
    assert!(net.info(0)["ended"]["how"].as_str().unwrap().contains("SIGKILL"));
    assert!(net.good("restart 0").contains("node 0 serves"));
    assert!(net.height(0) >= height, "what was certified is there");
    // The demo deploys another canister when its query is not answered; so it is given the first
    // one's id again. Only a canister that still has the acknowledged state returns 1.
    let canister = fs::read(&canister_before).unwrap();
    let mut refused = vec![];
    until("the counter has the acknowledged value", || {
        fs::write(&remember, &canister).unwrap();
        let said = text(&demo());
        let found = said.contains("of an earlier run");
        assert!(!found || said.contains("its counter stands at 1"), "{said}");
        refused.extend((!found).then_some(said));
        found
    });
    assert!(
        refused.is_empty(),
        "it served, but did not answer: {refused:?}\n{}",
        net.good("logs 0 -n 60")
    );

    net.good("down");
    let ended = net.info(0)["ended"]["how"].as_str().unwrap().to_owned();
    assert_eq!(ended, "the node ended: exit 0; machine powered off");
    assert!(!net.dir().join("sockets").exists());
    let log = net.good("logs 0");
    assert!(
        log.lines().all(|line| line.as_bytes().get(10) == Some(&b'T')),
        "every line has its time"
    );
}

// Promise: P25 - Four machines agree, and one that was killed, paused or partitioned catches up.
#[test]
#[ignore = "minutes of emulated processors: make test-long"]
fn four_machines_agree_whatever_is_done_to_their_links_and_to_one_of_them() {
    let Some(net) = Net::new() else { return };
    net.good("up --backend vm --nodes 4 --memory 320MiB");
    net.good("partition 0,1|2,3");
    // What is on its way may still be certified; then nothing is.
    let mut before = 0;
    until("no side continues without the other", || {
        let now = (0..4).map(|node| net.height(node)).max().unwrap();
        std::thread::sleep(Duration::from_secs(3));
        std::mem::replace(&mut before, now) == now && now > 0
    });
    net.good("heal");
    until("they go on", || net.height(0) > before && net.height(3) > before);

    net.good("pause 2");
    let paused = Instant::now();
    assert_eq!(net.status()["nodes"][2]["condition"], "paused");
    let then = net.height(0);
    until("three continue for longer than clocks of members may differ", || {
        net.height(0) > then + 1 && paused.elapsed() > Duration::from_secs(40)
    });
    let then = net.height(0);
    net.good("resume 2");
    until("its clock is set", || net.good("logs 2").contains("s and is set"));
    until("it is there again", || net.height(2) > then + 1);

    net.good("slow 1 --latency 20ms --loss 1%");
    net.good("slow 1 --off");
    net.good("kill 3");
    let then = net.height(0);
    until("three go on", || net.height(0) > then + 1);
    net.good("restart 3");
    until("it has caught up", || net.height(3) > then + 1);
    net.good("restart 3 --empty");
    until("it has fetched all of it", || net.height(3) > then + 2);
    net.good("down --delete");
    assert!(!net.dir().exists());
}

// Promise: P25 - A machine that does not boot is reported with the end of its console.
#[test]
#[ignore = "minutes of emulated processors: make test-long"]
fn a_machine_that_never_boots_is_told_with_what_it_printed_last() {
    let Some(mut net) = Net::new() else { return };
    net.change_image(|image, _| {
        let line = image["command_line"].as_str().unwrap();
        image["command_line"] = format!("{line} rdinit=/nonexistent init=/nonexistent").into();
    });
    let said = net.bad("up --backend vm --nodes 1 --memory 256MiB --wait 200");
    assert!(said.contains("was reset 6 times without starting its node"), "{said}");
    assert!(said.contains("panic"), "{said}");
    net.good("down --delete");
}

// Promise: P25 - A machine with an invalid kernel is stopped and reported.
#[test]
fn invalid_kernel_without_output_is_stopped() {
    let Some(mut net) = Net::new() else { return };
    net.change_image(|_, folder| fs::write(folder.join("kernel"), vec![0; 1 << 20]).unwrap());
    let said = net.bad("up --backend vm --nodes 1 --memory 256MiB --wait 10");
    assert!(said.contains("node 0"), "{said}");
    net.good("down --delete");
}

// Promise: P25 - A missing QEMU or image is reported with the remedy.
#[test]
fn what_is_missing_or_does_not_fit_is_said() {
    let Some(net) = Net::new() else { return };
    let said = net.bad("up --backend vm --nodes 1 --image-cache /nonexistent");
    assert!(said.contains("thimble-lab image build"), "{said}");
    let mut command = Command::new(LAB);
    command.args(["net", "--dir"]).arg(net.dir()).args(["up", "--backend", "vm", "--nodes", "1"]);
    let output =
        command.env("THIMBLE_IMAGES", &net.cache).env("PATH", "/nonexistent").output().unwrap();
    assert!(text(&output).contains("apt-get install qemu-system-x86"), "{}", text(&output));
    let said = net.bad("up --backend vm --nodes 100 --memory 64GiB");
    assert!(said.contains("100 machines do not fit") && said.contains("are available"), "{said}");
    net.good("down --delete");
    let said = net.bad("up --backend vm --nodes 1 --network direct");
    assert!(said.contains("--network is for process groups"), "{said}");
    let said = net.bad("up --backend vm --nodes 1 --memory 320MiB --wait 60 -- --memory 2GiB");
    assert!(said.contains("does not fit into this machine"), "{said}");
    net.good("down --delete");
}

// Promise: P25 - Relays in machines of 128 MiB find each other.
#[test]
#[ignore = "minutes of emulated processors: make test-long"]
fn relays_in_machines_of_128_mib_find_each_other() {
    let Some(net) = Net::new() else { return };
    let mut command = Command::new(LAB);
    let built = command
        .args(["image", "build", "--relay", "--quiet", "--cache"])
        .arg(&net.cache)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built));
    net.good("up --backend vm --relay 2 --memory 128MiB");
    let status = net.status();
    for node in status["nodes"].as_array().unwrap() {
        assert_eq!(node["report"]["relay"]["mesh"], 1, "{status:#}");
        assert!(
            node["multiaddr"].as_str().unwrap().starts_with("/ip4/127.0.0.1/tcp/"),
            "{status:#}"
        );
    }
    assert!(
        net.good("logs 0").contains("thimble-relay starts within 64 MiB"),
        "{}",
        net.good("logs 0")
    );
    net.good("down --delete");
}
