//! A relay in a process of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// Starting takes no longer, on the slowest machine.
const START: Duration = Duration::from_secs(30);

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
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("relay.toml"), config).unwrap();
        let arguments: Vec<String> = arguments.iter().map(|one| one.to_string()).collect();
        let prelude = prelude.to_owned();
        let (process, addresses, http) = launch(folder.path(), &prelude, &arguments);
        Self { process, folder, arguments, prelude, addresses, http }
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
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

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has noticed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program.
pub(crate) fn relay() -> Command {
    Command::new(env!("CARGO_BIN_EXE_thimble-relay"))
}

fn launch(folder: &Path, prelude: &str, arguments: &[String]) -> (Child, Vec<String>, String) {
    let addresses = folder.join("addresses");
    let _ = fs::remove_file(&addresses);
    let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    let memory = if arguments.iter().any(|one| one == "--memory") { &[][..] } else { &["--memory", "64MiB"] };
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
