//! Addresses of network cards, by the system calls of `ifconfig`: nothing here needs more.

use std::{
    fs, io,
    net::{Ipv4Addr, UdpSocket},
    os::fd::{AsRawFd, RawFd},
    path::Path,
};

use anyhow::{Context, Result, bail};

use crate::config::Interface;

/// Brings up the loopback and every card that is named.
pub(super) fn up(interfaces: &[Interface]) -> Result<()> {
    let socket =
        UdpSocket::bind(("0.0.0.0", 0)).context("making a socket for the network's settings")?;
    set("lo", Ipv4Addr::LOCALHOST, 8, socket.as_raw_fd()).context("bringing up lo")?;
    for interface in interfaces {
        let name = find(&interface.hardware)?;
        set(&name, interface.address, interface.prefix, socket.as_raw_fd())
            .with_context(|| format!("giving {name} the address {}", interface.address))?;
    }
    Ok(())
}

/// The name of the card with a hardware address.
fn find(hardware: &str) -> Result<String> {
    let mut seen = Vec::new();
    for entry in fs::read_dir("/sys/class/net")?.flatten() {
        let address =
            fs::read_to_string(Path::new(&entry.path()).join("address")).unwrap_or_default();
        if address.trim().eq_ignore_ascii_case(hardware) {
            return Ok(entry.file_name().to_string_lossy().into_owned());
        }
        seen.push(address.trim().to_owned());
    }
    bail!("there is no network card {hardware}; there are {}", seen.join(", "))
}

fn set(name: &str, address: Ipv4Addr, prefix: u8, socket: RawFd) -> Result<()> {
    anyhow::ensure!(prefix <= 32, "/{prefix} is no part of an address");
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    control(socket, libc::SIOCSIFADDR, &mut request(name, Some(address))?)?;
    control(socket, libc::SIOCSIFNETMASK, &mut request(name, Some(Ipv4Addr::from_bits(mask)))?)?;
    let mut flags = request(name, None)?;
    flags.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    control(socket, libc::SIOCSIFFLAGS, &mut flags)?;
    Ok(())
}

/// A request about a card.
fn request(name: &str, address: Option<Ipv4Addr>) -> Result<libc::ifreq> {
    // SAFETY: every field is a number or an array of numbers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    anyhow::ensure!(name.len() < request.ifr_name.len(), "{name} is too long for a card's name");
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    if let Some(address) = address {
        let [a, b, c, d] = address.octets().map(|byte| byte as libc::c_char);
        // The port, which means nothing here, and the address.
        let mut data = [0; 14];
        data[2..6].copy_from_slice(&[a, b, c, d]);
        request.ifr_ifru.ifru_addr =
            libc::sockaddr { sa_family: libc::AF_INET as _, sa_data: data };
    }
    Ok(request)
}

fn control(socket: RawFd, what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: these three requests read an `ifreq`, which lives until the call is over.
    match unsafe { libc::ioctl(socket, what, std::ptr::from_mut(request)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
