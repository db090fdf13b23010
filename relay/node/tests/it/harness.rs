//! A relay in a process of its own.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// Starting takes no longer, on the slowest machine.
const START: Duration = testing::TIMEOUT;
/// Anonymous memory in the sheet of 64 MiB: all but the kernel's part and the page cache.
pub(crate) const ANONYMOUS_BYTES: u64 = 47 << 20;
/// Period of [`Relay::throttle`], as that of the kernel's quotas.
const PERIOD: Duration = Duration::from_millis(100);
/// Interval of readings of a process's memory.
const WATCH: Duration = Duration::from_millis(10);

/// A running relay; dropping it kills it.
pub(crate) struct Relay {
    process: Child,
    folder: TempDir,
    arguments: Vec<String>,
    prelude: String,
    pub(crate) addresses: Vec<String>,
    pub(crate) http: String,
}

impl Relay {
    /// Starts one with a fresh data folder, on free ports.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_after("", "", arguments)
    }

    /// The same with lines of a configuration file, after a shell ran `prelude`.
    pub(crate) fn start_after(prelude: &str, config: &str, arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), prelude, config, arguments)
    }

    /// The same in a folder.
    pub(crate) fn start_in(
        folder: TempDir,
        prelude: &str,
        config: &str,
        arguments: &[&str],
    ) -> Self {
        fs::write(folder.path().join("relay.toml"), config).unwrap();
        let arguments: Vec<String> = arguments.iter().map(|one| one.to_string()).collect();
        let prelude = prelude.to_owned();
        let (process, addresses, http) = launch(folder.path(), &prelude, &arguments);
        Self { process, folder, arguments, prelude, addresses, http }
    }

    /// Its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Stops it, has `change` do something to its data folder, and starts it again.
    pub(crate) fn restart_after(&mut self, change: impl FnOnce(&Path)) {
        self.signal(rustix::process::Signal::TERM);
        assert!(self.process.wait().unwrap().success());
        change(&self.folder.path().join("data"));
        (self.process, self.addresses, self.http) =
            launch(self.folder.path(), &self.prelude, &self.arguments);
    }

    /// The answer to a request by HTTP, with its head.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.http.trim_start_matches("http://")).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// A figure of the metrics, by the whole of its name and labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics");
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value: f64 = found.unwrap_or_else(|| panic!("no {name}")).parse().unwrap();
        value as u64
    }

    /// Waits until a figure of the metrics is at least `least`.
    pub(crate) async fn reaches(&self, name: &str, least: u64) {
        let deadline = Instant::now() + START;
        while self.metric(name) < least {
            assert!(Instant::now() < deadline, "{name} is {} and not {least}", self.metric(name));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Watches its anonymous memory from now on.
    pub(crate) fn watch(&self) -> Watch {
        let (pid, stop) = (self.process.id(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut most = 0;
            while !stopped.load(SeqCst) {
                most = most.max(anonymous_bytes(pid));
                std::thread::sleep(WATCH);
            }
            most
        });
        Watch { stop, thread }
    }

    /// The address of a kind: `tcp`, `ws`.
    pub(crate) fn address(&self, web: bool) -> &str {
        self.addresses.iter().find(|address| address.contains("/ws/") == web).unwrap()
    }

    /// Kills it without warning and starts it again on the same folder.
    pub(crate) fn kill_and_start(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        (self.process, self.addresses, self.http) =
            launch(self.folder.path(), &self.prelude, &self.arguments);
    }

    /// Sends it a signal.
    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops its process: sockets fill, and nothing is read.
    pub(crate) fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Lets it continue.
    pub(crate) fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// Stops its process as a debugger does, and continues it after this time.
    pub(crate) async fn stop_for(&self, time: Duration) {
        self.freeze();
        tokio::time::sleep(time).await;
        self.thaw();
    }

    /// Leaves its process this share of a processor, in percent, until the result is dropped: it is
    /// stopped for the rest of each tenth of a second.
    pub(crate) fn throttle(&self, percent: u32) -> Throttle {
        let (pid, stop) = (rustix::process::Pid::from_child(&self.process), Arc::default());
        let stopped: Arc<AtomicBool> = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let run = PERIOD * percent / 100;
            let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
            while !stopped.load(SeqCst) {
                signal(rustix::process::Signal::STOP);
                std::thread::sleep(PERIOD - run);
                signal(rustix::process::Signal::CONT);
                std::thread::sleep(run);
            }
        });
        Throttle { stop, thread: Some(thread) }
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }
}

/// A thread that stops and continues a relay. Dropping it leaves the relay running.
pub(crate) struct Throttle {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            // A relay that is gone has failed its test already.
            let _ = thread.join();
        }
    }
}

/// A thread that reads the anonymous memory of a relay every [`WATCH`].
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Watch {
    /// The relay never took more than it may.
    pub(crate) fn stayed_inside(self, what: &str) {
        self.stop.store(true, SeqCst);
        let most = self.thread.join().unwrap();
        println!("{what}: at most {} KiB of anonymous memory", most >> 10);
        assert!(
            most > 0 && most <= ANONYMOUS_BYTES,
            "{what}: {} KiB of anonymous memory",
            most >> 10
        );
    }
}

/// Nothing for a process that is gone.
fn anonymous_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

impl Drop for Relay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the relay's log:\n{}", self.log());
        }
        // It may have ended by itself, which the test has noticed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command that starts the relay's program as Cargo built it.
pub(crate) fn relay() -> Command {
    Command::new(env!("CARGO_BIN_EXE_thimble-relay"))
}

fn launch(folder: &Path, prelude: &str, arguments: &[String]) -> (Child, Vec<String>, String) {
    let addresses = folder.join("addresses");
    let _ = fs::remove_file(&addresses);
    let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    let memory = if arguments.iter().any(|one| one == "--memory") {
        &[][..]
    } else {
        &["--memory", "64MiB"]
    };
    let script = format!("{prelude}\nexec \"$0\" \"$@\"");
    let mut process = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_thimble-relay")])
        .args(["run", "--listen", "/ip4/127.0.0.1/tcp/0", "--listen", "/ip4/127.0.0.1/tcp/0/ws"])
        .args(["--http", "127.0.0.1:0", "--log", "warn"])
        .args(memory)
        .arg("--config")
        .arg(folder.join("relay.toml"))
        .arg("--data-dir")
        .arg(folder.join("data"))
        .arg("--address-file")
        .arg(&addresses)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let started = Instant::now();
    while !addresses.exists() {
        assert!(started.elapsed() < START, "the relay did not start within {START:?}");
        if let Some(status) = process.try_wait().unwrap() {
            let log = fs::read_to_string(folder.join("log")).unwrap();
            panic!("the relay ended at its start: {status}\n{log}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = fs::read_to_string(&addresses).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let http = lines.pop().unwrap();
    (process, lines, http)
}

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The folder that holds the published clients' program.
pub(crate) fn target() -> PathBuf {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    repository().join(target)
}
