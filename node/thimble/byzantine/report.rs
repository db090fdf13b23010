//! The attacks that were made, as lines of JSON.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::Write as _,
    path::Path,
};

use consensus::ChannelName;
use serde_json::json;

use crate::plan::Attack;

/// Lines of one attack and detail that are all written; of later ones one in [`ONE_IN`].
const WRITTEN_MAX: u64 = 20;
const ONE_IN: u64 = 100;

pub(crate) struct Report {
    file: Option<File>,
    made: BTreeMap<(Attack, String), u64>,
}

impl Report {
    pub(crate) fn to(path: Option<&Path>) -> Self {
        let file = path.and_then(|path| {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .inspect_err(|error| tracing::error!(%error, "attacks cannot be written down"))
                .ok()
        });
        Self { file, made: BTreeMap::new() }
    }

    pub(crate) fn record_attack(
        &mut self,
        attack: Attack,
        channel: ChannelName,
        detail: &str,
        to: usize,
    ) {
        let count = self.made.entry((attack, detail.to_owned())).or_default();
        *count += 1;
        if *count > WRITTEN_MAX && !count.is_multiple_of(ONE_IN) {
            return;
        }
        let line = json!({
            "attack": attack.name(),
            "channel": format!("{channel:?}").to_lowercase(),
            "detail": detail,
            "to": to,
            "count": *count,
        });
        self.line(&line.to_string());
    }

    /// Something that this program should know and does not.
    pub(crate) fn defect(&mut self, what: &str) {
        self.line(&json!({ "defect": what }).to_string());
    }

    fn line(&mut self, line: &str) {
        // A report that cannot be written is missed by the test that reads it.
        let _ = match &mut self.file {
            Some(file) => writeln!(file, "{line}"),
            None => writeln!(std::io::stdout(), "{line}"),
        };
    }
}
