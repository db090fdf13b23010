//! A unit for systemd: capped at the budget, and shut in.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::Installation;

/// Contents of a unit, whose only writable folder is the data folder of its [`Installation`].
pub struct Unit<'a> {
    /// Short description of the service.
    pub description: &'a str,
    /// Value of `MemoryMax=`: the memory budget of the configuration file.
    pub memory_bytes: u64,
    /// Value of `LimitNOFILE=`: the most file descriptors of a process.
    pub descriptors: u64,
    /// Lines on how it is stopped.
    pub stop: &'a str,
    /// Lines on the handling of a process of it that is killed for memory.
    pub killed: &'a str,
    /// Lines before the directives that shut it in.
    pub needs: &'a str,
}

impl Unit<'_> {
    /// The unit file. Errors: a path that would have to be escaped.
    pub fn text(&self, installation: &Installation) -> Result<String> {
        let Installation { program, file, data, user, group } = installation;
        // A private /tmp would hide files there.
        let in_tmp = |path: &PathBuf| path.starts_with("/tmp") || path.starts_with("/var/tmp");
        let private_tmp = if in_tmp(program) || in_tmp(data) { "no" } else { "yes" };
        let (program, file, data) = (escaped(program)?, escaped(file)?, escaped(data)?);
        let Self { description, memory_bytes, descriptors, stop, killed, needs } = self;
        Ok(format!(
            "[Unit]
Description={description}
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart={program} run --config {file}
User={user}
Group={group}
UMask=0077
Restart=always
RestartSec=2
{stop}
# The budget of the configuration file. Swap would let the group outgrow it.
MemoryMax={memory_bytes}
MemorySwapMax=0
{killed}LimitNOFILE={descriptors}

{needs}NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ReadWritePaths={data}
ProtectHome=read-only
PrivateTmp={private_tmp}
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"
        ))
    }
}

/// A path as a unit takes it: what it would read as something else is refused rather than escaped.
pub fn escaped(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    let plain = |c: char| c.is_alphanumeric() || "/._-+@,=".contains(c);
    ensure!(
        text.chars().all(plain),
        "{text} has characters that a unit file reads as something else: use a path of letters, \
         digits and /._-+@,="
    );
    Ok(text.to_owned())
}
