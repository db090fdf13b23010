//! Pages of reference: commands and metrics of the node.

use std::path::Path;

use testing::reference::{check_page, commands, metrics};

use crate::harness::Node;

#[test]
fn reference_page_of_commands_shows_every_help_text() {
    let text = commands(Path::new(env!("CARGO_BIN_EXE_thimble")));
    check_page("commands.md", "thimble", &text);
}

#[tokio::test]
async fn reference_page_of_metrics_names_every_metric() {
    let node = Node::start().await;
    // A metric by reason is listed once it counted something.
    let refused = reqwest::get(format!("{}/nothing", node.url)).await.unwrap();
    assert_eq!(refused.status().as_u16(), 404);
    check_page("metrics.md", "thimble", &metrics(&node.metrics().await));
}
