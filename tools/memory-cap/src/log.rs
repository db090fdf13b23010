//! Writes the command's output into a file of bounded size. One thread reads the pipe for as long
//! as a process of the group may write into it, even if the file fails: a command must never wait
//! because its log cannot be written.

use std::{
    io::{self, PipeReader, Read},
    process::Command,
    sync::mpsc,
    time::Duration,
};

use super::rotating::Rotating;

const CHUNK_BYTES: usize = 16 << 10;
/// How long to wait for the rest of the output, once no process is left that could print.
const REST_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Pump {
    end_rx: mpsc::Receiver<()>,
}

impl Pump {
    /// Leads the command's output and errors into `log`. To be called once signals are blocked: the
    /// thread inherits that.
    pub(crate) fn start(command: &mut Command, log: Rotating) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        let (end_tx, end_rx) = mpsc::channel();
        std::thread::Builder::new().name("log".into()).spawn(move || {
            pump(reader, log);
            // The receiver is gone when this program ends first.
            let _ = end_tx.send(());
        })?;
        Ok(Self { end_rx })
    }

    /// Waits for the rest.
    pub(crate) fn finish(self) {
        // A process that left the group with the pipe open would be waited for in vain.
        let _ = self.end_rx.recv_timeout(REST_TIMEOUT);
    }
}

fn pump(mut reader: PipeReader, mut log: Rotating) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let length = match reader.read(&mut chunk) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        log.log(&chunk[..length], "thimble-lab cap: ");
    }
}
