//! The nodes of a life: processes of different builds with different stacks. A single node, or four
//! that hold the ceremony first.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use cli::Child;
use rand::{Rng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

/// Time limit for a node to start and serve, including recovery.
pub(super) const START_WITHIN: Duration = Duration::from_secs(300);
/// Time limit for a command of the ceremony and for a node to stop.
const COMMAND_WITHIN: Duration = Duration::from_secs(60);

/// Main stacks and thread stacks in KiB. Results must not depend on the stack that is left.
const STACKS: [(u64, u64); 4] = [(8_192, 2_048), (1_024, 1_024), (16_384, 8_192), (4_096, 3_072)];

/// Properties of a process that must not change a result.
#[derive(Clone, Debug)]
pub(super) struct ProcessProfile {
    pub(super) build: PathBuf,
    main_stack_kib: u64,
    thread_stack_kib: u64,
    /// Shell that runs in the process before it becomes the node.
    prelude: String,
}

impl ProcessProfile {
    pub(super) fn any(builds: &[PathBuf], turn: usize, random: &mut ChaCha8Rng) -> Self {
        let (main, thread) = *STACKS.choose(random).unwrap_or(&STACKS[0]);
        let build = builds[turn % builds.len()].clone();
        Self { build, main_stack_kib: main, thread_stack_kib: thread, prelude: String::new() }
    }

    /// The smallest and the largest stack in turn.
    pub(super) fn extreme(builds: &[PathBuf], turn: usize) -> Self {
        let (main, thread) = if turn.is_multiple_of(2) { (1_024, 1_024) } else { (16_384, 8_192) };
        let build = builds[(turn / 2 + turn) % builds.len()].clone();
        Self { build, main_stack_kib: main, thread_stack_kib: thread, prelude: String::new() }
    }

    /// A member that violates the protocol.
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

    /// Runs this build with `words`, its output in `log`; it must succeed.
    pub(super) async fn run(&self, words: &[&str], log: &Path) -> Result<()> {
        let mut command = self.command();
        command.args(words);
        let good = finished(command, COMMAND_WITHIN, log).await?;
        let said = fs::read_to_string(log).unwrap_or_default();
        ensure!(good, "thimble {} failed:\n{said}", words.join(" "));
        Ok(())
    }

    pub(super) fn description(&self) -> String {
        let name = self.build.file_name().unwrap_or_default().to_string_lossy().into_owned();
        format!("{name}, stacks of {} and {} KiB", self.main_stack_kib, self.thread_stack_kib)
    }
}

/// Kills a process group when it is dropped: a command may have started processes of its own.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

/// Runs a command to its end with its output in `log`; whether it succeeded.
pub(super) async fn finished(mut command: Command, within: Duration, log: &Path) -> Result<bool> {
    let output = File::create(log).with_context(|| format!("making {}", log.display()))?;
    command.stdout(output.try_clone()?).stderr(output).process_group(0);
    let mut child = Child::spawn(&mut command, "a command")?;
    let _group = Group(child.id());
    Ok(child.ended_within(within).await?.success())
}

/// A node, whether it runs or not.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) data: PathBuf,
    pub(super) log: PathBuf,
    pub(super) url: String,
    pub(super) profile: ProcessProfile,
    listen: String,
    /// Of `thimble run`.
    pub(super) arguments: Vec<String>,
    child: Option<Child>,
}

impl Member {
    pub(super) fn new(
        data: PathBuf,
        profile: ProcessProfile,
        arguments: Vec<String>,
    ) -> Result<Self> {
        let [port] = cli::free_ports()?;
        Ok(Self {
            log: data.with_extension("log"),
            url: format!("http://127.0.0.1:{port}"),
            listen: format!("127.0.0.1:{port}"),
            data,
            profile,
            arguments,
            child: None,
        })
    }

    pub(super) fn start(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = self.profile.command();
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
    pub(super) fn kill_worker(&self, random: &mut ChaCha8Rng) {
        let Some(child) = &self.child else { return };
        let mut workers = Vec::new();
        for task in fs::read_dir(format!("/proc/{}/task", child.id())).into_iter().flatten() {
            let Ok(task) = task else { continue };
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            workers.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        if let Some(pid) = workers.choose(random) {
            cli::kill(*pid);
        }
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

    /// Stops it by SIGTERM, which must succeed.
    pub(super) async fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let status = child.stop_within(COMMAND_WITHIN).await?;
        ensure!(status.success(), "it ended with {status}:\n{}", child.log_tail());
        Ok(())
    }
}

/// Common parameters of the nodes of a life.
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
        let profile = ProcessProfile::any(&self.builds, turn, random);
        let arguments = self.arguments(&configuration, &self.memory);
        Ok(vec![Member::new(self.folder.join("node0"), profile, arguments)?])
    }

    /// Four nodes that hold the ceremony; not started. Builds take turns.
    pub(super) async fn four(&self, random: &mut ChaCha8Rng) -> Result<Vec<Member>> {
        let configuration = self.write_configuration()?;
        let path = |name: &str| self.folder.join(name).display().to_string();
        let log = self.folder.join("ceremony.log");
        let paths = |prefix: &str, suffix: &str| {
            [0, 1, 2, 3].map(|node| path(&format!("{prefix}{node}{suffix}")))
        };
        let profiles: Vec<ProcessProfile> =
            (0..4).map(|member| ProcessProfile::any(&self.builds, member, random)).collect();
        let addresses = cli::free_ports::<4>()?.map(|port| format!("127.0.0.1:{port}"));
        let (data, records, dealings) =
            (paths("node", ""), paths("node", ".json"), paths("deal", ".json"));
        for (node, profile) in profiles.iter().enumerate() {
            let keys = ["keygen", "--data-dir", &data[node], "--address", &addresses[node]];
            profile.run(&[&keys[..], &["--out", &records[node]]].concat(), &log).await?;
        }
        let (plan, genesis) = (path("plan.json"), path("genesis.json"));
        let named = |flag, files: &'_ [String; 4]| -> Vec<String> {
            files.iter().flat_map(|file| [String::from(flag), file.clone()]).collect()
        };
        let nodes = named("--node", &records);
        let mut words = vec!["genesis", "plan", "--out", &plan];
        words.extend(nodes.iter().map(String::as_str));
        profiles[0].run(&words, &log).await?;
        for (node, profile) in profiles.iter().enumerate() {
            let deal = ["genesis", "deal", "--data-dir", &data[node], "--plan", &plan];
            profile.run(&[&deal[..], &["--out", &dealings[node]]].concat(), &log).await?;
        }
        let files = named("--dealing", &dealings);
        let mut words = vec!["genesis", "assemble", "--plan", &plan, "--out", &genesis];
        words.extend(files.iter().map(String::as_str));
        profiles[0].run(&words, &log).await?;
        let mut members = Vec::new();
        for (node, profile) in profiles.into_iter().enumerate() {
            let join = ["join", "--data-dir", &data[node], "--genesis", &genesis];
            profile.run(&join, &log).await?;
            let mut arguments = self.arguments(&configuration, &self.memory);
            arguments.extend(["--p2p-listen".to_owned(), addresses[node].clone()]);
            let profile = match &self.byzantine {
                Some(build) if node == 3 => {
                    profile.byzantine(build, random.r#gen(), &self.folder.join("attacks.jsonl"))
                }
                _ => profile,
            };
            members.push(Member::new(data[node].clone().into(), profile, arguments)?);
        }
        Ok(members)
    }
}

/// Configuration of a run. Checkpoints of a node alone are rare, so that a replay has
/// much to execute.
pub(super) fn configuration(alone: bool, random: &mut ChaCha8Rng) -> String {
    let mut text = String::new();
    text.push_str("[outcalls]\nallow_networks = [\"127.0.0.0/8\"]\nallow_http = true\n");
    if alone {
        text.push_str(
            "[limits.pages]\ncheckpoint_interval_rounds = 1000000\n\
             checkpoint_instructions = 1000000000000\nmanifest_interval_rounds = 1000000\n",
        );
    }
    if !alone {
        // Epochs of some seconds, at whose ends members join and leave.
        text.push_str("[limits.consensus]\nblocks_per_epoch = 40\nidle_round_millis = 150\n");
    }
    text.push_str(&format!("[limits.execution]\nthreads = {}\n", random.gen_range(1..=2)));
    text
}
