//! The log of a running relay.

use serde_json::json;
use testing::eventually;

use crate::{harness::Relay, http::post};

const CHANGED: &str = "log level changed";

#[test]
fn log_level_changes_while_the_node_runs() {
    let node = Relay::start(&[]);
    let set = |level: &str| {
        post(&node.http, &format!("/admin/v1/log-level/{level}"), &json!({ "ignored": true }))
    };
    let lines = || node.log().matches(CHANGED).count();
    assert_eq!(lines(), 0, "it was started with --log warn");
    // The change itself is logged at INFO.
    for (level, logged) in [("INFO", 1), ("debug", 2), ("NOTICE", 2), ("FATAL", 2), ("Trace", 3)] {
        let answer = set(level);
        assert_eq!((answer.status, answer.text()), (200, "OK"), "{level}");
        eventually("the line of the log", || (lines() >= logged).then_some(()));
        assert_eq!(lines(), logged, "{level}");
    }
    let refused = set("LOUD");
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("TRACE, DEBUG"), "{}", refused.text());
}
