//! Helpers of the tests: a cache in a folder of its own, the program, disks and packed disks.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Mutex,
};

use serde_json::Value;
use testing::until;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_thimble-image");
pub(crate) struct Lab {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) cache: PathBuf,
}

/// How a run of the program ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    pub(crate) fn new(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub(crate) fn good(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// It failed with these words, as a program should and not by a panic.
    #[track_caller]
    pub(crate) fn bad(self, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(1), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} is missing: {}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Lab {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        Self { folder, cache }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program with a subcommand on this cache.
    pub(crate) fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg(subcommand).arg("--cache").arg(&self.cache);
        if ["add", "overlay"].contains(&subcommand) {
            command.args(["--reserve", "0"]);
        }
        command
    }

    pub(crate) fn run<I: AsRef<std::ffi::OsStr>>(
        &self,
        subcommand: &str,
        arguments: impl IntoIterator<Item = I>,
    ) -> Run {
        Run::new(self.command(subcommand).args(arguments).output().unwrap())
    }

    /// Adds a file, and returns the program's output.
    #[track_caller]
    pub(crate) fn add(&self, file: &Path) -> Value {
        self.run("add", ["--json".as_ref(), file]).good().json()
    }

    /// The cache holds exactly this number of whole bases, and its scratch folder is empty.
    #[track_caller]
    pub(crate) fn assert_only(&self, bases: usize) {
        assert_eq!(names(&self.cache.join("scratch")), [""; 0]);
        assert_eq!(names(&self.cache.join("bases")).len(), bases);
        let verified = self.run("verify", ["--json"]).good().json();
        assert_eq!(verified.as_array().unwrap().len(), bases);
    }

    /// A raw disk of `bytes`: a third data that compress moderately, a third zeros, and data again.
    pub(crate) fn disk(&self, name: &str, bytes: usize, seed: u64) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content(bytes, seed)).unwrap();
        path
    }
}

/// The bytes of [`Lab::disk`].
pub(crate) fn content(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut content = vec![0_u8; bytes];
    for (index, word) in content.chunks_mut(8).enumerate() {
        if (bytes / 24..bytes / 12).contains(&index) {
            continue;
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Half of the bits: packers have something to do.
        for (byte, value) in word.iter_mut().zip((state & 0x0f0f_0f0f_0f0f_0f0f).to_le_bytes()) {
            *byte = value;
        }
    }
    content
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .map(|entries| {
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

/// Runs a tool of the distribution in a folder.
#[track_caller]
pub(crate) fn tool<A: AsRef<std::ffi::OsStr>>(
    folder: &Path,
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Vec<u8> {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output
        .unwrap_or_else(|error| panic!("{program}: {error}; scripts/setup.sh clients installs it"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Packs a file per the extension: `disk.tar.xz` out of `disk`.
pub(crate) fn pack(file: &Path, extension: &str) -> PathBuf {
    let folder = file.parent().unwrap();
    let mut current = file.to_owned();
    for layer in extension.split('.') {
        let name = current.file_name().unwrap().to_owned();
        let mut next = current.clone().into_os_string();
        next.push(format!(".{layer}"));
        let next = PathBuf::from(next);
        match layer {
            "zst" => drop(tool(
                folder,
                "zstd",
                ["-q".as_ref(), "-f".as_ref(), "-o".as_ref(), next.as_os_str(), &name],
            )),
            "gz" => {
                fs::write(&next, tool(folder, "gzip", ["-c".as_ref(), name.as_os_str()])).unwrap()
            }
            "xz" => fs::write(
                &next,
                tool(
                    folder,
                    "xz",
                    ["-1".as_ref(), "-T1".as_ref(), "-c".as_ref(), name.as_os_str()],
                ),
            )
            .unwrap(),
            "tar" => {
                drop(tool(folder, "tar", ["-cf".as_ref(), next.as_os_str(), name.as_os_str()]))
            }
            _ => panic!("{layer}"),
        }
        current = next;
    }
    current
}

/// A child that is ended with its test.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(Some(
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .stdin(Stdio::null())
                .spawn()
                .unwrap(),
        ))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    pub(crate) fn pid(&mut self) -> u32 {
        self.child().id()
    }

    pub(crate) fn signal(&mut self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.child().try_wait().unwrap().is_some()
    }

    /// Reads a line of its standard error, byte by byte: the rest is for [`Running::end`].
    pub(crate) fn line(&mut self) -> String {
        use std::io::Read;
        let mut line = Vec::new();
        let err = self.child().stderr.as_mut().unwrap();
        let mut byte = [0];
        while err.read(&mut byte).unwrap() == 1 && byte != [b'\n'] {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    pub(crate) fn end(mut self) -> Run {
        Run::new(self.0.take().unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Images of [`halfway`] by their seeds: to pack one takes longer than what is done with it.
static PACKED: Mutex<BTreeMap<u64, Vec<u8>>> = Mutex::new(BTreeMap::new());

/// A process in the middle of unpacking an image, stopped by a signal; the image, and the lab it
/// works in.
pub(crate) fn halfway(lab: &Lab) -> (Running, PathBuf) {
    // A process that is done before it is seen is not halfway: another image then.
    for seed in 0..50 {
        let name = format!("halfway-{seed}");
        let packed = || fs::read(pack(&lab.disk(&name, 24 << 20, seed), "xz")).unwrap();
        let bytes = PACKED.lock().unwrap().entry(seed).or_insert_with(packed).clone();
        let image = lab.path(&format!("{name}.xz"));
        fs::write(&image, bytes).unwrap();
        let before = names(&lab.cache.join("bases")).len();
        let mut running =
            Running::start(lab.command("add").args(["--json".as_ref(), image.as_path()]));
        until("unpacking", || running.is_over() || !names(&lab.cache.join("scratch")).is_empty());
        if !running.is_over() {
            running.signal(rustix::process::Signal::STOP);
            let status = format!("/proc/{}/stat", running.pid());
            until("the stop", || {
                let stat = fs::read_to_string(&status).unwrap();
                stat.rsplit(") ").next().unwrap().starts_with(['T', 'Z'])
            });
            if names(&lab.cache.join("bases")).len() == before && !running.is_over() {
                return (running, image);
            }
            running.signal(rustix::process::Signal::CONT);
        }
        running.end().good();
    }
    panic!("unpacking is never seen half done");
}
