//! Pages of reference: commands and metrics of the relay.

use std::path::Path;

use testing::reference::{check_page, commands, metrics};

use crate::{harness::Relay, http::get};

#[test]
fn reference_page_of_commands_shows_every_help_text() {
    let text = commands(Path::new(env!("CARGO_BIN_EXE_thimble-relay")));
    check_page("commands.md", "thimble-relay", &text);
}

#[test]
fn reference_page_of_metrics_names_every_metric() {
    let relay = Relay::start(&[]);
    let text = metrics(get(&relay.http, "/metrics").text());
    check_page("metrics.md", "thimble-relay", &text);
}
