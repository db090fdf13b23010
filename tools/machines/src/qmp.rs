//! QEMU's monitor protocol: JSON lines over a socket, commands to QEMU and events from it.
//!
//! [`Client`] sends one command and waits for its answer, for programs that perform one action on a
//! machine. [`parse`] and [`command`] are for callers that read events as they arrive. Only
//! commands without arguments are needed here.
//!
//! Bounds: lines of [`LINE_BYTES_MAX`], `LINES_MAX` lines until an answer, the caller's timeout.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Longest line; the answers to what is asked here have some hundred bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Events before an answer.
const LINES_MAX: usize = 1000;

/// A message of QEMU.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// It is ready to negotiate.
    Greeting,
    /// The answer to the command before.
    Return(Value),
    /// The same, when it failed: QEMU's words.
    Error(String),
    /// An event, which answers no command.
    Event {
        /// Name of the event, such as `SHUTDOWN` or `RESET`.
        name: String,
        /// Data of the event.
        data: Value,
    },
}

/// Reads one line; `None` when it is not a line of the protocol.
pub fn parse(line: &[u8]) -> Option<Message> {
    if line.len() > LINE_BYTES_MAX {
        return None;
    }
    let value: Value = serde_json::from_slice(line).ok()?;
    if let Some(name) = value.get("event").and_then(Value::as_str) {
        let data = value.get("data").cloned().unwrap_or_default();
        return Some(Message::Event { name: name.to_owned(), data });
    }
    if let Some(error) = value.get("error") {
        let words = error.get("desc").and_then(Value::as_str).unwrap_or("it does not say why");
        return Some(Message::Error(words.to_owned()));
    }
    if let Some(answer) = value.get("return") {
        return Some(Message::Return(answer.clone()));
    }
    value.get("QMP").map(|_| Message::Greeting)
}

/// A command without arguments, as a line.
pub fn command(name: &str) -> String {
    format!("{}\n", serde_json::json!({ "execute": name }))
}

/// A monitor that serves one client at a time.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    timeout: Duration,
}

impl Client {
    /// Connects to the monitor at `path` and negotiates.
    ///
    /// # Errors
    ///
    /// No process listens there, the listener is not QEMU, or it does not answer within `timeout`.
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self> {
        let words = || format!("talking with QEMU at {}", path.display());
        let stream = UnixStream::connect(path).with_context(words)?;
        Self::negotiate(stream, timeout).with_context(words)
    }

    fn negotiate(stream: UnixStream, timeout: Duration) -> Result<Self> {
        stream.set_write_timeout(Some(timeout))?;
        let mut client = Self { stream: BufReader::new(stream), timeout };
        let deadline = Instant::now() + timeout;
        ensure!(
            client.line(deadline)? == Some(Message::Greeting),
            "it does not greet as QEMU does"
        );
        client.execute("qmp_capabilities")?;
        Ok(client)
    }

    /// Runs a command and gives its answer; events that come before are passed over.
    ///
    /// # Errors
    ///
    /// QEMU's own words, or that it does not answer in time.
    pub fn execute(&mut self, name: &str) -> Result<Value> {
        let mut run = || -> Result<Value> {
            let deadline = Instant::now() + self.timeout;
            self.stream.get_mut().write_all(command(name).as_bytes())?;
            for _ in 0..LINES_MAX {
                match self.line(deadline)? {
                    Some(Message::Return(answer)) => return Ok(answer),
                    Some(Message::Error(words)) => bail!("QEMU says: {words}"),
                    _ => {}
                }
            }
            bail!("no answer within {LINES_MAX} lines")
        };
        run().with_context(|| format!("the QEMU command `{name}`"))
    }

    fn line(&mut self, deadline: Instant) -> Result<Option<Message>> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "no answer within {} s", self.timeout.as_secs_f64());
            self.stream.get_ref().set_read_timeout(Some(left))?;
            let room = (LINE_BYTES_MAX + 1).saturating_sub(line.len()) as u64;
            ensure!(room > 0, "a line of more than {LINE_BYTES_MAX} bytes");
            match self.stream.by_ref().take(room).read_until(b'\n', &mut line) {
                Ok(0) => bail!("it ended"),
                Ok(_) => {}
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(parse(&line))
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::{io::BufReader, os::unix::net::UnixListener, thread};

    use super::*;

    /// A monitor that answers each line it gets with the next of these.
    fn monitor(
        greeting: &'static str,
        answers: Vec<&'static str>,
    ) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(greeting.as_bytes()).unwrap();
            let mut asked = BufReader::new(stream.try_clone().unwrap());
            for answer in answers {
                let mut line = String::new();
                asked.read_line(&mut line).unwrap();
                let _ = stream.write_all(answer.as_bytes());
            }
            // Held open until the client goes.
            let _ = asked.read_line(&mut String::new());
        });
        (folder, path)
    }

    const GREETING: &str = "{\"QMP\": {\"version\": {}}}\n";
    const DONE: &str = "{\"return\": {}}\n";

    #[test]
    fn a_command_is_answered_over_events_and_errors_are_qemus_words() {
        let (_folder, path) = monitor(
            GREETING,
            vec![
                DONE,
                "{\"event\": \"STOP\", \"timestamp\": {}}\n{\"return\": {\"running\": false}}\n",
                "{\"error\": {\"class\": \"CommandNotFound\", \"desc\": \"The command nap has not been found\"}}\n",
            ],
        );
        let mut client = Client::connect(&path, Duration::from_secs(5)).unwrap();
        assert_eq!(client.execute("stop").unwrap()["running"], false);
        let error = format!("{:#}", client.execute("nap").unwrap_err());
        assert!(error.contains("`nap`") && error.contains("has not been found"), "{error}");
    }

    #[test]
    fn what_is_no_qemu_is_refused_and_nothing_is_waited_for_for_ever() {
        let timeout = Duration::from_millis(100);
        let error = |greeting, answers| {
            let (_folder, path) = monitor(greeting, answers);
            format!("{:#}", Client::connect(&path, timeout).unwrap_err())
        };
        assert!(error("SSH-2.0\n", vec![]).contains("does not greet"));
        assert!(error("", vec![]).contains("no answer within 0.1 s"));
        assert!(error(GREETING, vec!["{\"return\": "]).contains("no answer within 0.1 s"));
        let long: &'static str = Box::leak("x".repeat(LINE_BYTES_MAX + 10).into_boxed_str());
        assert!(error(long, vec![]).contains("65536"), "{}", error(long, vec![]));
        assert!(
            format!("{:#}", Client::connect(Path::new("/nowhere"), timeout).unwrap_err())
                .contains("/nowhere")
        );
    }

    #[test]
    fn messages_are_told_apart() {
        assert_eq!(parse(GREETING.as_bytes()), Some(Message::Greeting));
        let event = parse(b"{\"event\": \"RESET\", \"data\": {\"guest\": true}}");
        assert_eq!(
            event,
            Some(Message::Event { name: "RESET".into(), data: serde_json::json!({"guest": true}) })
        );
        for text in ["", "[]", "{}", "7", "{\"event\": 7}", "\u{0}"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(command("stop"), "{\"execute\":\"stop\"}\n");
    }
}
