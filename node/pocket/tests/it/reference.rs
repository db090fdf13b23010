//! Page of reference: the help of the server.

use std::path::Path;

use testing::reference::{check_page, commands};

#[test]
fn reference_page_of_commands_shows_every_help_text() {
    let text = commands(Path::new(env!("CARGO_BIN_EXE_thimble-pocket")));
    check_page("commands.md", "thimble-pocket", &text);
}
