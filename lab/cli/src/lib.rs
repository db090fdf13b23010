//! Code shared by the commands of the lab: programs that they start ([`Child`]), and signals that
//! ask them to stop ([`StopSignals`]).
//!
//! Must never know: what any of these programs does.

mod child;

use std::{net::TcpListener, process::ExitCode};

pub use self::child::{Child, OnDrop, terminate, written_address};
pub use lifecycle::StopSignals;

/// Exit status of a command that was asked to stop: 128 and the number of SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The same as what `main` returns.
pub fn interrupted() -> ExitCode {
    ExitCode::from(EXIT_INTERRUPTED)
}

/// `COUNT` different free ports of this machine. Another program may take one before the caller
/// binds it.
///
/// # Errors
///
/// The operating system has none left.
pub fn free_ports<const COUNT: usize>() -> std::io::Result<[u16; COUNT]> {
    let mut open = Vec::with_capacity(COUNT);
    let mut ports = [0; COUNT];
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        *port = listener.local_addr()?.port();
        // Held until all are found, so that none is given twice.
        open.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    #[test]
    #[expect(clippy::unwrap_used, reason = "a test")]
    fn free_ports_are_different_and_free() {
        let mut ports = super::free_ports::<64>().unwrap();
        for port in ports {
            drop(std::net::TcpListener::bind(("127.0.0.1", port)).unwrap());
        }
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] < pair[1]), "{ports:?}");
    }
}
