//! A relay whose wall clock is wrong for a while.

use std::time::Duration;

use protocol::{Text, store};
use testing::{WallClock, until_async};

use crate::{
    harness::Relay,
    peer::{Client, message},
};

const TOPIC: &str = "/test/1/clock/proto";
const AHEAD_SECONDS: i64 = 80 * 3_600;
const MESSAGES: u8 = 20;

/// Messages of [`TOPIC`] in the store.
async fn stored(relay: &Relay) -> usize {
    let request = store::Request {
        request_id: Text::from("all"),
        content_topics: vec![TOPIC.into()],
        forward: true,
        limit: Some(100),
        ..store::Request::default()
    };
    Client::connect(relay.address(false)).await.query(&request).await.entries.len()
}

async fn push(relay: &Relay, count: u8) {
    let mut client = Client::connect(relay.address(false)).await;
    for number in 0..count {
        let reply = client.push(&message(TOPIC, &[number])).await.unwrap();
        assert_eq!(reply.status.code(), 200);
    }
}

// Promise: P23 - A wall clock that is 80 h ahead or back for 8 s removes no message.
#[tokio::test]
async fn clock_that_is_wrong_for_seconds_is_reported_and_removes_no_message() {
    let clock = WallClock::new(0);
    let config = "[limits.store]\nretention_hours = 1\n";
    let mut relay = Relay::start_after(&clock.prelude(), config, &[]);
    push(&relay, MESSAGES).await;
    let mut expected = usize::from(MESSAGES);
    assert_eq!(stored(&relay).await, expected);
    for (ahead, direction) in [(AHEAD_SECONDS, "ahead"), (-AHEAD_SECONDS, "back")] {
        clock.set(ahead);
        // By 288,000 s, or a little less: the clocks are read one after the other.
        let reported = format!("the wall clock jumped {direction} by 28");
        until_async("the jump is reported", async || relay.get("/health").contains(&reported))
            .await;
        // Retention is applied every second.
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(stored(&relay).await, expected, "{direction}");
        // Messages of senders whose clocks are right are stored.
        push(&relay, 1).await;
        expected += 1;
        assert_eq!(stored(&relay).await, expected, "{direction}");
        // A start during the jump detects it.
        relay.kill_and_start();
        assert!(relay.get("/health").contains(&reported), "{}", relay.get("/health"));
        assert_eq!(stored(&relay).await, expected, "{direction}");
        clock.set(0);
        until_async("the clock is right", async || !relay.get("/health").contains("jumped")).await;
    }
    assert!(relay.log().contains("the wall clock jumped against CLOCK_BOOTTIME"));
    assert_eq!(stored(&relay).await, expected);
    assert_eq!(relay.metric("thimble_relay_messages_not_kept_total{reason=\"clock\"}"), 0);
}
