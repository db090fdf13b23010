//! The file that gives clients the port, and prevents a second server of the same client.
//!
//! Clients start a server with the same file for every test of a process, and rely on all but the
//! first to end. So the file is made first, empty, and only if it is not there; when the server
//! listens, it is replaced by one with the port and a newline. The server removes it when it ends.

use std::{
    fs::{self, OpenOptions},
    io,
    net::{IpAddr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

/// How long a server that is there may take to accept a connection.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct PortFile(PathBuf);

impl PortFile {
    /// Takes the file; none if another server has it. One that a server left behind which is gone
    /// is taken over.
    pub(crate) fn take(path: &Path, ip: IpAddr) -> io::Result<Option<Self>> {
        for _ in 0..2 {
            match OpenOptions::new().write(true).create_new(true).open(path) {
                Ok(_) => return Ok(Some(Self(path.to_owned()))),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            if !is_left_behind(path, ip) {
                return Ok(None);
            }
            disk::if_there(fs::remove_file(path))?;
        }
        Ok(None)
    }

    pub(crate) fn write_port(&self, port: u16) -> io::Result<()> {
        // Clients may run as another user than the server.
        disk::replace_file(&self.0, format!("{port}\n").as_bytes(), disk::Readers::All)
    }
}

impl Drop for PortFile {
    fn drop(&mut self) {
        // Clients read it only while they start a server.
        let _ = fs::remove_file(&self.0);
    }
}

/// Whether the file names a port on which no server listens. An empty file belongs to a server that
/// is starting.
fn is_left_behind(path: &Path, ip: IpAddr) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    let Ok(port) = text.trim().parse::<u16>() else { return false };
    let refused = TcpStream::connect_timeout(&SocketAddr::new(ip, port), LOOK).err();
    refused.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn the_first_server_has_the_file_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("port");
        let listener = TcpListener::bind((LOCAL, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let first = PortFile::take(&path, LOCAL).unwrap().unwrap();
        assert!(PortFile::take(&path, LOCAL).unwrap().is_none(), "it starts");
        first.write_port(port).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{port}\n"));
        assert!(PortFile::take(&path, LOCAL).unwrap().is_none(), "it listens");
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_was_left_behind_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("port");
        let listener = TcpListener::bind((LOCAL, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        fs::write(&path, format!("{port}\n")).unwrap();
        drop(listener);
        assert!(PortFile::take(&path, LOCAL).unwrap().is_some());
    }
}
