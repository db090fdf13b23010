//! A network whose messages have up to 1 MiB.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::future::join_all;
use protocol::{Text, filter, store};
use serde_json::json;

use crate::{
    harness::Relay,
    http::{get_raw, post},
    peer::{Client, message},
};

const TOPIC: &str = "/test/1/large/proto";
const MIB: usize = 1 << 20;
/// Payload of the largest message with this topic and a timestamp.
const LARGEST: usize = MIB - 40;

/// A relay of the smallest budget that is promised for such messages.
fn start() -> Relay {
    Relay::start(&["--memory", "72MiB", "--message-size", "1MiB"])
}

// Promise: P23 - Messages of 1 MiB are pushed, filtered, stored and read by HTTP in 72 MiB.
#[tokio::test]
async fn messages_of_a_mib_are_pushed_filtered_stored_and_read() {
    let relay = start();
    let mut sender = Client::connect(relay.address(false)).await;
    let mut receiver = Client::connect(relay.address(false)).await;
    assert_eq!(receiver.filter(filter::Action::Subscribe, &[TOPIC]).await, 200);
    assert_eq!(post(&relay.http, "/relay/v1/auto/subscriptions", &json!([TOPIC])).status, 200);
    let sent = message(TOPIC, &vec![7; LARGEST]);
    assert!(sent.encoded_len() <= MIB && sent.encoded_len() > MIB - 64);
    let pushed = sender.push(&sent).await.unwrap();
    assert_eq!(pushed.status.code(), 200, "{pushed:?}");
    assert!(receiver.pushed().await == sent);
    let request = store::Request {
        request_id: Text::from("one"),
        include_data: true,
        content_topics: vec![TOPIC.into()],
        forward: true,
        limit: Some(10),
        ..store::Request::default()
    };
    let found = sender.query(&request).await.entries;
    assert!(found[0].message.as_deref() == Some(&sent.encode()[..]));
    let read = get_raw(&relay.http, &format!("/relay/v1/auto/messages/{TOPIC}"));
    assert!(read.len() > MIB / 3 * 4 && read.contains(TOPIC));

    // A byte more than the network has is refused by its limit.
    let more = message(TOPIC, &vec![7; MIB]);
    let refused = sender.push(&more).await.unwrap();
    assert_eq!(refused.status.code(), 413, "{refused:?}");
    // By HTTP, in base64.
    let text = STANDARD.encode(vec![9_u8; LARGEST]);
    let body = json!({ "payload": text, "contentTopic": TOPIC });
    let published = post(&relay.http, "/relay/v1/auto/messages", &body);
    assert_eq!(published.status, 200, "{}", published.text());
}

// Promise: P24 - Clients that push messages of 1 MiB at once fill no pool of 72 MiB beyond its cap.
#[tokio::test]
async fn many_that_push_messages_of_a_mib_at_once_stay_within_the_pools() {
    let mut relay = start();
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(Client::connect(relay.address(false)).await);
    }
    let pushing = clients.iter_mut().enumerate().map(|(number, client)| async move {
        let mut accepted = 0;
        for round in 0..4_u8 {
            let mut payload = vec![round; LARGEST];
            payload[0] = number as u8;
            let reply = client.push(&message(TOPIC, &payload)).await;
            // One that waited too long for memory is not answered, or is told so.
            let code = reply.map_or(0, |reply| reply.status.code());
            assert!([0, 200, 429].contains(&code), "{code}");
            accepted += u32::from(code == 200);
        }
        accepted
    });
    let accepted: u32 = join_all(pushing).await.into_iter().sum();
    assert!(accepted >= 16, "{accepted} of 64");
    assert!(relay.is_running());
    for pool in ["unread", "receiving", "appending", "sending"] {
        let high = relay.metric(&format!("thimble_relay_pool_high_water_bytes{{pool=\"{pool}\"}}"));
        let cap = relay.metric(&format!("thimble_relay_pool_cap_bytes{{pool=\"{pool}\"}}"));
        assert!(high <= cap, "{pool}: {high} of {cap} bytes");
    }
    crate::peer::serves(relay.address(false), "/test/1/after/proto").await;
}
