//! QEMU: where it is, what it can do here, and the command that starts a machine.
//!
//! A machine has one processor, two disks (its own and the one that configures it), two network
//! cards (one towards this host's loopback, one on a [`crate::switch`]) and two serial ports (the
//! console and the guest's reports). It needs no root: the first card is QEMU's own TCP/IP in user
//! space, the second a pair of Unix sockets.
//!
//! Whether KVM works is found by starting the kernel under it: on some hosts `/dev/kvm` is there,
//! can be opened, and runs no protected mode.

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddrV4},
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt,
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Host memory of QEMU in addition to the machine's memory: its own code, the translated code of
/// the guest, buffers of devices. 60 MiB were measured.
pub const OVERHEAD_BYTES: u64 = 80 << 20;
/// The machine's address on the card towards the host, as QEMU's user network gives it.
pub const HOST_SIDE: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// Bits of the network's part of it.
pub const HOST_SIDE_PREFIX: u8 = 24;
/// Longest path of a Unix socket, in bytes.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Until a kernel under KVM has printed its first line; it takes a tenth of that.
const KVM_TIMEOUT: Duration = Duration::from_secs(4);
/// Text that every kernel prints first.
const KERNEL_SAYS: &str = "Linux version";
const PROGRAM: &str = "qemu-system-x86_64";
/// Boots a second of eleven sooner than q35 under emulation.
const MACHINE: &str = "pc";
/// For the code that the emulation translates, in MiB; QEMU's own default is a quarter of the
/// host's memory.
const TRANSLATED_MIB: u32 = 64;

/// Execution of the guest's instructions: hardware or emulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// The processor of this host.
    Kvm,
    /// Emulation, ten times slower and more.
    Tcg,
}

impl Accelerator {
    fn arguments(self) -> [String; 4] {
        let (accelerator, processor) = match self {
            Self::Kvm => ("kvm".to_owned(), "host"),
            Self::Tcg => (format!("tcg,thread=single,tb-size={TRANSLATED_MIB}"), "max"),
        };
        ["-accel".into(), accelerator, "-cpu".into(), processor.into()]
    }
}

/// What was found on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qemu {
    /// Path of `qemu-system-x86_64`.
    pub program: PathBuf,
    /// As reported: `7.2.22`.
    pub version: String,
    /// Execution of the guest's instructions.
    pub accelerator: Accelerator,
    /// Why it is not KVM, when it is not.
    pub why: Option<String>,
    /// Whether it can deny itself system calls that it does not need.
    pub sandbox: bool,
}

impl Qemu {
    /// Finds it on the PATH and tries what it can do with the kernel of an image.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not run.
    pub fn find(kernel: &Path) -> Result<Self> {
        let program = on_path(PROGRAM).with_context(|| {
            "QEMU is not installed: apt-get install qemu-system-x86 (Debian, Ubuntu), \
             qemu-system-x86-core (Fedora)"
        })?;
        let output = Command::new(&program)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("running {}", program.display()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let version = said.split_whitespace().nth(3).unwrap_or("?").to_owned();
        let number =
            |part: usize| version.split('.').nth(part).and_then(|text| text.parse::<u32>().ok());
        if let (Some(major), Some(minor)) = (number(0), number(1)) {
            ensure!((major, minor) >= (7, 2), "QEMU {version} is too old: machines need 7.2");
        }
        let help =
            Command::new(&program).args(["-sandbox", "help"]).stdin(Stdio::null()).output()?;
        let sandbox = String::from_utf8_lossy(&help.stdout).contains("spawn");
        let why = without_kvm(&program, kernel)?;
        let accelerator = if why.is_none() { Accelerator::Kvm } else { Accelerator::Tcg };
        Ok(Self { program, version, accelerator, why, sandbox })
    }

    /// `QEMU 7.2.22 with emulation (tcg), because ...`.
    pub fn describe(&self) -> String {
        match &self.why {
            None => format!("QEMU {} with KVM", self.version),
            Some(why) => format!("QEMU {} with emulation (tcg): {why}", self.version),
        }
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| {
        fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

/// Why KVM does not run this kernel; `None` when it does.
fn without_kvm(program: &Path, kernel: &Path) -> Result<Option<String>> {
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/kvm") {
        return Ok(Some(format!("/dev/kvm: {error}")));
    }
    let folder = tempfile::tempdir().context("making a scratch folder")?;
    let console = folder.path().join("console");
    let mut command = Command::new(program);
    command
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", MACHINE])
        .args(["-m", "128"])
        .args(Accelerator::Kvm.arguments())
        .arg("-kernel")
        .arg(kernel)
        .args(["-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1", "-no-reboot"])
        .args(["-chardev", &format!("file,id=console,path={}", escaped(&console)?)])
        .args(["-serial", "chardev:console"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    die_with_us(&mut command);
    let mut child = command.spawn().context("starting QEMU with KVM")?;
    let deadline = Instant::now() + KVM_TIMEOUT;
    let spoke = || {
        fs::read(&console).is_ok_and(|text| String::from_utf8_lossy(&text).contains(KERNEL_SAYS))
    };
    let mut ended = None;
    while !spoke() && ended.is_none() && Instant::now() < deadline {
        ended = child.try_wait()?;
        std::thread::sleep(Duration::from_millis(20));
    }
    let ran = spoke();
    let _ = child.kill();
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    Ok(match (ran, ended) {
        (true, _) => None,
        (false, Some(_)) => Some(format!(
            "KVM does not start: {}",
            said.trim().lines().last().unwrap_or("it does not say why")
        )),
        (false, None) => Some(format!(
            "/dev/kvm is there, but a kernel under it prints nothing for {} s",
            KVM_TIMEOUT.as_secs()
        )),
    })
}

/// The machine's end of what its owner listens to and talks through.
#[derive(Debug)]
pub struct Ends {
    /// A pipe that the console is written into.
    pub console: OwnedFd,
    /// The same of the guest's reports.
    pub reports: OwnedFd,
    /// A connected socket, for a monitor.
    pub monitor: OwnedFd,
}

/// A machine that [`command`] starts.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    /// Size of its memory in bytes; QEMU gets whole KiB.
    pub memory_bytes: u64,
    /// The kernel to start.
    pub kernel: &'a Path,
    /// The first file system in memory, handed to the kernel.
    pub initrd: &'a Path,
    /// The kernel's command line.
    pub command_line: &'a str,
    /// A qcow2 file.
    pub disk: &'a Path,
    /// A raw file, only read.
    pub config: &'a Path,
    /// Ports of this host's loopback that lead to ports of the machine.
    pub forwards: &'a [(SocketAddrV4, u16)],
    /// Hardware address of the card towards the host.
    pub host_hardware: &'a str,
    /// The card on the switch.
    pub nic: Option<Nic<'a>>,
    /// Where a second monitor listens.
    pub monitor: &'a Path,
}

/// A card on a switch.
#[derive(Clone, Debug)]
pub struct Nic<'a> {
    /// Its hardware address.
    pub hardware: &'a str,
    /// The socket on which the machine receives.
    pub receives: &'a Path,
    /// The switch's, into which it sends.
    pub sends: &'a Path,
}

/// The command that starts a machine; its process dies with the thread that spawns it.
///
/// # Errors
///
/// A path that cannot be written on QEMU's command line, or no socket can have.
pub fn command(qemu: &Qemu, machine: &Machine, ends: &Ends) -> Result<Command> {
    let mut command = Command::new(&qemu.program);
    command
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", MACHINE])
        .args(qemu.accelerator.arguments())
        .args(["-m", &format!("{}k", machine.memory_bytes >> 10), "-smp", "1"]);
    if qemu.sandbox {
        command.args([
            "-sandbox",
            "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        ]);
    }
    command.arg("-kernel").arg(machine.kernel).arg("-initrd").arg(machine.initrd);
    command.args(["-append", machine.command_line]);
    let file =
        |path: &Path| Ok::<_, anyhow::Error>(json!({ "driver": "file", "filename": utf8(path)? }));
    let disk = json!({
        "driver": "qcow2", "node-name": "disk", "discard": "unmap", "file": file(machine.disk)?,
    });
    let config = json!({ "driver": "raw", "node-name": "config", "read-only": true, "file": file(machine.config)? });
    for (device, blocks) in [("disk", disk), ("config", config)] {
        command.arg("-blockdev").arg(blocks.to_string());
        command.args(["-device", &format!("virtio-blk-pci,drive={device}")]);
    }
    command.args(["-device", "virtio-rng-pci"]);
    for (name, end) in [("console", &ends.console), ("reports", &ends.reports)] {
        let set = end.as_raw_fd();
        // A pipe that is not appended to would be truncated, which is an error.
        command.args(["-add-fd", &format!("fd={set},set={set}")]);
        command.args(["-chardev", &format!("file,id={name},path=/dev/fdset/{set},append=on")]);
        command.args(["-serial", &format!("chardev:{name}")]);
    }
    command.args(["-chardev", &format!("socket,id=events,fd={}", ends.monitor.as_raw_fd())]);
    command.args(["-mon", "chardev=events,mode=control"]);
    fits(machine.monitor)?;
    let monitor = escaped(machine.monitor)?;
    command.args(["-chardev", &format!("socket,id=orders,path={monitor},server=on,wait=off")]);
    command.args(["-mon", "chardev=orders,mode=control"]);
    let mut host = "user,id=host,restrict=on".to_owned();
    for (from, to) in machine.forwards {
        host.push_str(&format!(",hostfwd=tcp:{from}-{HOST_SIDE}:{to}"));
    }
    command.args(["-netdev", &host]);
    command.args([
        "-device",
        &format!("virtio-net-pci,netdev=host,romfile=,mac={}", machine.host_hardware),
    ]);
    if let Some(nic) = &machine.nic {
        let socket = |path: &Path| {
            fits(path)?;
            Ok::<_, anyhow::Error>(json!({ "type": "unix", "path": utf8(path)? }))
        };
        let net = json!({
            "type": "dgram", "id": "net",
            "local": socket(nic.receives)?, "remote": socket(nic.sends)?,
        });
        command.arg("-netdev").arg(net.to_string());
        command
            .args(["-device", &format!("virtio-net-pci,netdev=net,romfile=,mac={}", nic.hardware)]);
    }
    let inherited = [&ends.console, &ends.reports, &ends.monitor].map(|end| end.as_raw_fd());
    // SAFETY: between fork and exec only the system call fcntl is made, on descriptors that the
    // caller's `Ends` keeps open in the parent until after the start, and the fork copied.
    unsafe {
        command.pre_exec(move || {
            for end in inherited {
                rustix::io::fcntl_setfd(BorrowedFd::borrow_raw(end), FdFlags::empty())?;
            }
            Ok(())
        });
    }
    die_with_us(&mut command);
    Ok(command)
}

/// The process is killed when the thread that spawns it ends, however that comes.
fn die_with_us(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only system calls are made: prctl and getppid.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The parent may have ended before.
            match rustix::process::getppid() {
                Some(now) if now == parent => Ok(()),
                _ => Err(std::io::Error::other("its parent process has ended")),
            }
        });
    }
}

/// Refuses a path that no Unix socket can have.
///
/// # Errors
///
/// It is longer than [`SOCKET_PATH_BYTES_MAX`].
pub fn fits(path: &Path) -> Result<()> {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX {
        bail!(
            "{} has {length} bytes; the path of a socket has at most {SOCKET_PATH_BYTES_MAX}",
            path.display()
        );
    }
    Ok(())
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8; QEMU needs that", path.display()))
}

/// A path among options that commas separate.
fn escaped(path: &Path) -> Result<String> {
    Ok(utf8(path)?.replace(',', ",,"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> Ends {
        let end = || OwnedFd::from(fs::File::open("/dev/null").unwrap());
        Ends { console: end(), reports: end(), monitor: end() }
    }

    fn qemu() -> Qemu {
        Qemu {
            program: "qemu".into(),
            version: "7.2.22".into(),
            accelerator: Accelerator::Tcg,
            why: Some("/dev/kvm: No such file or directory".into()),
            sandbox: true,
        }
    }

    #[test]
    fn what_stands_in_a_path_is_no_option() {
        let folder = Path::new("/tmp/a,b \"c\"");
        let (disk, monitor) = (folder.join("disk"), folder.join("q0"));
        let machine = Machine {
            memory_bytes: 256 << 20,
            kernel: folder,
            initrd: folder,
            command_line: "console=ttyS0",
            disk: &disk,
            config: folder,
            forwards: &[("127.0.0.1:18000".parse().unwrap(), 8080)],
            host_hardware: "52:54:00:00:01:01",
            nic: Some(Nic { hardware: "52:54:00:00:00:01", receives: folder, sends: folder }),
            monitor: &monitor,
        };
        let ends = ends();
        let words = |machine: &Machine| {
            let command = command(&qemu(), machine, &ends)?;
            let words = command.get_args().map(|word| word.to_str().unwrap().to_owned());
            Ok::<_, anyhow::Error>(words.collect::<Vec<_>>().join("\n"))
        };
        let text = words(&machine).unwrap();
        for part in [
            "-m\n262144k",
            "\"filename\":\"/tmp/a,b \\\"c\\\"/disk\"",
            "id=orders,path=/tmp/a,,b \"c\"/q0,server=on",
            "hostfwd=tcp:127.0.0.1:18000-10.0.2.15:8080",
            "restrict=on",
            "tcg,thread=single",
            "\"read-only\":true",
            "spawn=deny",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let long = Path::new("/tmp").join("x".repeat(200));
        let error = words(&Machine { monitor: &long, ..machine }).unwrap_err().to_string();
        assert!(error.contains("205 bytes") && error.contains("at most 107"), "{error}");
    }

    #[test]
    fn describe_reports_reason_for_emulation() {
        assert!(qemu().describe().contains("emulation (tcg): /dev/kvm"));
        let fast = Qemu { accelerator: Accelerator::Kvm, why: None, ..qemu() };
        assert_eq!(fast.describe(), "QEMU 7.2.22 with KVM");
    }
}
