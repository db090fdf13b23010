//! Packages and `make install`, as an administrator meets them: into an empty root. And the page of
//! reference of the commands.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const PROGRAMS: [&str; 3] = ["thimble", "thimble-relay", "thimble-lab"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The folder of the programs that this test run built.
fn built() -> Option<PathBuf> {
    let bin = Path::new(env!("CARGO_BIN_EXE_thimble-lab")).parent().unwrap();
    let lacks = PROGRAMS.iter().find(|program| !bin.join(program).exists());
    if let Some(program) = lacks {
        testing::missing(format_args!("{program} is not built: test the whole workspace"));
        return None;
    }
    Some(bin.to_owned())
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

fn files_below(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                files.push(entry.path().strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    files.sort();
    files
}

// Promise: P25 - Packages install, run, and leave nothing after a purge.
#[test]
fn packages_are_installed_into_an_empty_root_run_and_go_again() {
    let Some(bin) = built() else { return };
    if Command::new("dpkg").arg("--version").output().is_err() {
        testing::missing("there is no dpkg: run on a Debian");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (out, root) = (folder.path().join("out"), folder.path().join("root"));
    let mut script = Command::new(repository().join("scripts/package.sh"));
    // The test checks the packed files, not the compression.
    script.args([&bin, &out]).env("DPKG_DEB_COMPRESSOR_LEVEL", "1");
    let made = run(&mut script);
    assert_eq!(made.lines().count(), PROGRAMS.len(), "{made}");
    let database = root.join("var/lib/dpkg");
    for part in ["info", "updates", "triggers"] {
        fs::create_dir_all(database.join(part)).unwrap();
    }
    fs::write(database.join("status"), "").unwrap();
    let dpkg = || {
        let mut dpkg = Command::new("dpkg");
        let root = format!("--root={}", root.display());
        dpkg.args([root.as_str(), "--force-not-root", "--force-depends", "--force-bad-path"]);
        dpkg.args(["--log=/dev/null", "--no-triggers"]);
        dpkg
    };
    let packages: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path()).collect();
    run(dpkg().arg("--install").args(&packages));
    for program in PROGRAMS {
        let installed = root.join("usr/bin").join(program);
        let version = run(Command::new(&installed).arg("--version"));
        assert!(version.starts_with(&format!("{program} ")), "{version}");
        assert!(
            fs::metadata(&installed).unwrap().len()
                < fs::metadata(bin.join(program)).unwrap().len(),
            "{program} is stripped"
        );
        assert!(root.join(format!("usr/lib/debug/usr/bin/{program}.debug")).exists());
        assert!(root.join(format!("usr/share/man/man1/{program}.1.gz")).exists());
        for file in [
            format!("bash-completion/completions/{program}"),
            format!("zsh/vendor-completions/_{program}"),
            format!("fish/vendor_completions.d/{program}.fish"),
            format!("doc/{program}/copyright"),
        ] {
            assert!(root.join("usr/share").join(&file).exists(), "{file}");
        }
        let listed = run(dpkg().args(["--listfiles", program]));
        assert!(listed.contains(&format!("/usr/share/man/man1/{program}.1.gz")), "{listed}");
    }
    run(dpkg().arg("--purge").args(PROGRAMS));
    let left: Vec<_> =
        files_below(&root).into_iter().filter(|path| !path.starts_with("var/lib/dpkg")).collect();
    assert!(left.is_empty(), "{left:?}");
}

// Promise: P25 - An installed program is replaced while it runs.
#[test]
fn an_installed_program_is_replaced_while_it_runs() {
    let Some(bin) = built() else { return };
    let root = tempfile::tempdir().unwrap();
    let install = || {
        run(Command::new(repository().join("scripts/install.sh"))
            .arg(&bin)
            .arg(root.path())
            .args(["/opt/thimble", "thimble-lab"]))
    };
    let told = install();
    assert!(told.contains("/opt/thimble/bin/thimble-lab ("), "{told}");
    let program = root.path().join("opt/thimble/bin/thimble-lab");
    let mut running = Command::new(&program)
        .args(["cap", "--memory", "64MiB", "--", "sleep", "60"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let before = files_below(root.path());
    install();
    assert_eq!(files_below(root.path()), before, "the same files, and no others");
    assert!(running.try_wait().unwrap().is_none(), "it goes on");
    let pid = i32::try_from(running.id()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    running.wait().unwrap();
    let unknown = Command::new(repository().join("scripts/install.sh"))
        .arg(&bin)
        .arg(root.path())
        .args(["/usr", "thimble-nothing"])
        .output()
        .unwrap();
    assert!(!unknown.status.success());
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("is not there: make build"));
}

#[test]
fn reference_page_of_commands_shows_every_help_text() {
    let text = testing::reference::commands(Path::new(env!("CARGO_BIN_EXE_thimble-lab")));
    testing::reference::check_page("commands.md", "thimble-lab", &text);
}
