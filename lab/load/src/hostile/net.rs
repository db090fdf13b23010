//! The nodes of a run: processes of different builds, with different stacks and budgets, started,
//! killed and started again. One node alone, or four that hold a ceremony first.

use std::{
    fs::{self, File},
    net::TcpListener,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use cli::Child;
use rand::{Rng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

/// For a node to start and to serve: the slowest build executes its log again before.
pub(super) const START_WITHIN: Duration = Duration::from_secs(90);
/// For a command of the ceremony, and for a node to stop.
const COMMAND_WITHIN: Duration = Duration::from_secs(60);

/// Main stacks in KiB and stacks of threads in KiB: between them lies what a library may find out
/// about the stack that is left.
const STACKS: [(u64, u64); 4] = [(8_192, 2_048), (1_024, 1_024), (16_384, 8_192), (4_096, 3_072)];

/// How a process is started: everything that must not change a result.
#[derive(Clone, Debug)]
pub(super) struct Flavour {
    pub(super) build: PathBuf,
    main_stack_kib: u64,
    thread_stack_kib: u64,
    /// Shell that runs in the process before it becomes the node.
    prelude: String,
}

impl Flavour {
    pub(super) fn any(builds: &[PathBuf], turn: usize, random: &mut ChaCha8Rng) -> Self {
        let (main, thread) = *STACKS.choose(random).unwrap_or(&STACKS[0]);
        Self {
            build: builds[turn % builds.len()].clone(),
            main_stack_kib: main,
            thread_stack_kib: thread,
            prelude: String::new(),
        }
    }

    /// The least and the most stack in turns, so that whatever depends on it differs.
    pub(super) fn extreme(builds: &[PathBuf], turn: usize) -> Self {
        let (main, thread) = if turn.is_multiple_of(2) { (1_024, 1_024) } else { (16_384, 8_192) };
        let build = builds[(turn / 2 + turn) % builds.len()].clone();
        Self { build, main_stack_kib: main, thread_stack_kib: thread, prelude: String::new() }
    }

    /// The same, but a member that does not keep to the protocol.
    fn byzantine(mut self, build: &Path, seed: u32, log: &Path) -> Self {
        self.build = build.into();
        self.prelude = format!(
            "export THIMBLE_BYZANTINE_ATTACKS=all THIMBLE_BYZANTINE_SEED={seed} \
             THIMBLE_BYZANTINE_TURN_SECONDS=2 THIMBLE_BYZANTINE_LOG='{}';",
            log.display()
        );
        self
    }

    /// A command of this build, with these stacks.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("sh");
        let script = format!(
            "ulimit -S -s {}; export RUST_MIN_STACK={}; {} exec \"$0\" \"$@\"",
            self.main_stack_kib,
            self.thread_stack_kib * 1024,
            self.prelude
        );
        command.args(["-c", &script]).arg(&self.build).stdin(Stdio::null());
        command
    }

    pub(super) fn words(&self) -> String {
        let name = self.build.file_name().unwrap_or_default().to_string_lossy().into_owned();
        format!("{name}, stacks of {} and {} KiB", self.main_stack_kib, self.thread_stack_kib)
    }
}

/// Runs a command to its end; its output.
pub(super) async fn finished(mut command: Command, within: Duration, log: &Path) -> Result<bool> {
    let output = File::create(log).with_context(|| format!("making {}", log.display()))?;
    command.stdout(output.try_clone()?).stderr(output).process_group(0);
    let mut child = Child::spawn(&mut command, "a command")?;
    Ok(child.ended_within(within).await?.success())
}

/// A node, whether it runs or not.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) data: PathBuf,
    pub(super) log: PathBuf,
    pub(super) url: String,
    pub(super) flavour: Flavour,
    listen: String,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Member {
    pub(super) fn new(data: PathBuf, flavour: Flavour, arguments: Vec<String>) -> Result<Self> {
        let [port] = ports()?;
        Ok(Self {
            log: data.with_extension("log"),
            url: format!("http://127.0.0.1:{port}"),
            listen: format!("127.0.0.1:{port}"),
            data,
            flavour,
            arguments,
            child: None,
        })
    }

    /// Starts the process.
    pub(super) fn start(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = self.flavour.command();
        command
            .args(["run", "--listen", &self.listen, "--http-gateway", "off", "--log", "info"])
            .arg("--data-dir")
            .arg(&self.data)
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0);
        let child = Child::spawn(&mut command, &format!("the node in {}", self.data.display()))?;
        self.child = Some(child.logging_to([self.log.clone()]));
        Ok(())
    }

    /// Its process id.
    pub(super) fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("the node does not run")?.id())
    }

    /// The budget of the next start.
    pub(super) fn set_memory(&mut self, memory: &str) {
        if let Some(at) = self.arguments.iter().position(|word| word == "--memory")
            && let Some(value) = self.arguments.get_mut(at + 1)
        {
            memory.clone_into(value);
        }
    }

    /// An error when the process ended by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        self.child.as_mut().map_or(Ok(()), Child::check)
    }

    /// SIGKILL to the node; its workers end with it.
    pub(super) fn kill(&mut self) {
        self.child = None;
    }

    /// SIGKILL to one of the node's workers, if there is one.
    pub(super) fn kill_worker(&self, random: &mut ChaCha8Rng) -> bool {
        let Some(child) = &self.child else { return false };
        let mut workers = Vec::new();
        for task in fs::read_dir(format!("/proc/{}/task", child.id())).into_iter().flatten() {
            let Ok(task) = task else { continue };
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            workers.extend(children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
        let Some(pid) = workers.choose(random).and_then(|pid| rustix::process::Pid::from_raw(*pid))
        else {
            return false;
        };
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok()
    }

    /// Waits until it is healthy.
    pub(super) async fn healthy(&mut self, http: &reqwest::Client, within: Duration) -> Result<()> {
        let url = format!("{}/health", self.url);
        let child = self.child.as_mut().context("the node does not run")?;
        let ready = async || {
            let answer = http.get(&url).send().await.ok()?;
            answer.status().is_success().then_some(())
        };
        child.ready_within(within, ready).await
    }

    /// Has it stop by SIGTERM, which must succeed.
    pub(super) async fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let status = child.stop_within(COMMAND_WITHIN).await?;
        ensure!(status.success(), "it ended with {status}:\n{}", child.last_words());
        Ok(())
    }
}

/// So many free ports below those that the system gives away by itself.
pub(super) fn ports<const COUNT: usize>() -> Result<[u16; COUNT]> {
    const FIRST: u16 = 18_000;
    const PORTS: u32 = 10_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = std::process::id().wrapping_mul(61);
    let mut found = [0; COUNT];
    for port in &mut found {
        let free = (0..PORTS).find_map(|_| {
            let next = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed).into()) % PORTS;
            let port = FIRST + next as u16;
            TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
        });
        *port = free.context("no port is free")?;
    }
    Ok(found)
}

/// What the nodes of a run have in common.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) builds: Vec<PathBuf>,
    pub(super) folder: PathBuf,
    pub(super) memory: String,
    /// Text of the configuration file.
    pub(super) configuration: String,
    pub(super) outcalls: bool,
    /// The program of the last of four.
    pub(super) byzantine: Option<PathBuf>,
}

impl Plan {
    fn arguments(&self, configuration: &Path, memory: &str) -> Vec<String> {
        let mut words: Vec<String> =
            ["--memory", memory, "--provisional", "true", "--config"].map(str::to_owned).to_vec();
        words.push(configuration.display().to_string());
        if self.outcalls {
            words.push("--outcalls".to_owned());
        }
        words
    }

    fn write_configuration(&self) -> Result<PathBuf> {
        fs::create_dir_all(&self.folder)?;
        let path = self.folder.join("thimble.toml");
        fs::write(&path, &self.configuration)?;
        Ok(path)
    }

    /// One node with an empty folder, not started.
    pub(super) fn alone(&self, turn: usize, random: &mut ChaCha8Rng) -> Result<Vec<Member>> {
        let configuration = self.write_configuration()?;
        let flavour = Flavour::any(&self.builds, turn, random);
        let arguments = self.arguments(&configuration, &self.memory);
        Ok(vec![Member::new(self.folder.join("node0"), flavour, arguments)?])
    }

    /// Four nodes that hold the ceremony; not started. Builds take turns. Members must have limits
    /// that decide a batch alike, so one has more memory with the limits of the others.
    pub(super) async fn four(&self, random: &mut ChaCha8Rng) -> Result<Vec<Member>> {
        let configuration = self.write_configuration()?;
        let path = |name: String| self.folder.join(name);
        let flavours: Vec<Flavour> =
            (0..4).map(|member| Flavour::any(&self.builds, member, random)).collect();
        let addresses = ports::<4>()?.map(|port| format!("127.0.0.1:{port}"));
        let run = async |node: usize, words: Vec<String>| -> Result<()> {
            let mut command = flavours[node].command();
            command.args(&words);
            let log = path("ceremony.log".into());
            let good = finished(command, COMMAND_WITHIN, &log).await?;
            ensure!(
                good,
                "thimble {} failed:\n{}",
                words.join(" "),
                fs::read_to_string(&log).unwrap_or_default()
            );
            Ok(())
        };
        let text = |name: String| path(name).display().to_string();
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        for (node, address) in addresses.iter().enumerate() {
            let (data, record) = (text(format!("node{node}")), text(format!("node{node}.json")));
            run(
                node,
                words(&["keygen", "--data-dir", &data, "--address", address, "--out", &record]),
            )
            .await?;
        }
        let (plan, genesis) = (text("plan.json".into()), text("genesis.json".into()));
        let mut planned: Vec<String> = words(&["genesis", "plan", "--out", &plan]);
        let mut assembled: Vec<String> =
            words(&["genesis", "assemble", "--plan", &plan, "--out", &genesis]);
        for node in 0..4 {
            planned.extend(["--node".to_owned(), text(format!("node{node}.json"))]);
            assembled.extend(["--dealing".to_owned(), text(format!("deal{node}.json"))]);
        }
        run(0, planned).await?;
        for node in 0..4 {
            let (data, dealing) = (text(format!("node{node}")), text(format!("deal{node}.json")));
            run(
                node,
                words(&[
                    "genesis",
                    "deal",
                    "--data-dir",
                    &data,
                    "--plan",
                    &plan,
                    "--out",
                    &dealing,
                ]),
            )
            .await?;
        }
        run(0, assembled).await?;
        let mut members = Vec::new();
        for (node, address) in addresses.iter().enumerate() {
            let data = text(format!("node{node}"));
            run(node, words(&["join", "--data-dir", &data, "--genesis", &genesis])).await?;
            let mut arguments = self.arguments(&configuration, &self.memory);
            arguments.extend(["--p2p-listen".to_owned(), address.clone()]);
            let mut flavour = flavours[node].clone();
            if node == 3
                && let Some(byzantine) = &self.byzantine
            {
                flavour =
                    flavour.byzantine(byzantine, random.r#gen(), &path("attacks.jsonl".into()));
            }
            members.push(Member::new(data.into(), flavour, arguments)?);
        }
        Ok(members)
    }
}

/// Configuration of a run. Checkpoints are rare where a replay should have much to execute.
pub(super) fn configuration(rare_checkpoints: bool, random: &mut ChaCha8Rng) -> String {
    let mut text = String::new();
    text.push_str("[outcalls]\nallow_networks = [\"127.0.0.0/8\"]\nallow_http = true\n");
    if rare_checkpoints {
        text.push_str(
            "[limits.pages]\ncheckpoint_interval_rounds = 1000000\n\
             checkpoint_instructions = 1000000000000\nmanifest_interval_rounds = 1000000\n",
        );
    }
    text.push_str(&format!("[limits.execution]\nthreads = {}\n", random.gen_range(1..=2)));
    text
}
