//! The log on standard error. Its level can be changed while the node runs.

use std::io::{self, IsTerminal};

use tracing_subscriber::{EnvFilter, reload};

/// Levels by the names that reference nodes have, with the filter that each stands for. This node
/// logs nothing at `NOTICE`, and prints a fatal error outside the log.
const LEVELS: [(&str, &str); 7] = [
    ("TRACE", "trace"),
    ("DEBUG", "debug"),
    ("INFO", "info"),
    ("NOTICE", "warn"),
    ("WARN", "warn"),
    ("ERROR", "error"),
    ("FATAL", "off"),
];

/// Replaces the filter of the running log.
type Replace = dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync;

/// The level of the running log.
pub(crate) struct LogLevel(Box<Replace>);

/// Starts the log with a filter, as `info,store=debug`.
///
/// # Panics
/// When the process has a log already.
pub(crate) fn start(filter: &str) -> LogLevel {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_filter_reloading();
    let handle = builder.reload_handle();
    builder.init();
    LogLevel(Box::new(move |filter: EnvFilter| handle.reload(filter)))
}

impl LogLevel {
    /// Sets the level of all parts of the node by its name, in any case; what `--log` stated for
    /// single parts ends. Errors: an unknown name, or a log that cannot be changed, in a sentence.
    pub(crate) fn set(&self, name: &str) -> Result<(), LogLevelError> {
        let level = filter_of(name).ok_or(LogLevelError::Unknown)?;
        (self.0)(EnvFilter::new(level)).map_err(LogLevelError::Fixed)
    }
}

/// Why the level was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogLevelError {
    #[error("the log level is one of TRACE, DEBUG, INFO, NOTICE, WARN, ERROR and FATAL")]
    Unknown,
    #[error("the log level cannot be changed: {0}")]
    Fixed(reload::Error),
}

fn filter_of(name: &str) -> Option<&'static str> {
    LEVELS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, filter)| *filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_of_reference_nodes_has_a_filter_and_is_named_in_the_refusal() {
        let refusal = LogLevelError::Unknown.to_string();
        for (name, filter) in LEVELS {
            assert_eq!(filter_of(&name.to_ascii_lowercase()), Some(filter));
            assert!(EnvFilter::try_new(filter).is_ok(), "{filter}");
            assert!(refusal.contains(name), "{name} in {refusal}");
        }
        assert_eq!(filter_of("LOUD"), None);
        assert_eq!(filter_of(""), None);
    }

    #[test]
    fn a_set_level_is_handed_to_the_log() {
        let (sent, received) = std::sync::mpsc::channel();
        let sent = std::sync::Mutex::new(sent);
        let level = LogLevel(Box::new(move |filter: EnvFilter| {
            sent.lock().unwrap().send(filter.to_string()).unwrap();
            Ok(())
        }));
        level.set("Notice").unwrap();
        assert!(matches!(level.set("loud"), Err(LogLevelError::Unknown)));
        assert_eq!(received.try_iter().collect::<Vec<_>>(), ["warn"]);
    }
}
