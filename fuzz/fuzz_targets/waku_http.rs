//! Requests of a client of the relay's HTTP interface: messages in JSON, lists of names, paths and
//! the parameters of a query. The first byte selects which of them the rest is.

#![no_main]
#![allow(
    dead_code,
    reason = "modules of the relay's binary are looked at here, not all of them used"
)]

mod allocated;

#[path = "../../relay/node/src/http"]
mod http {
    pub(crate) mod answer;
    pub(crate) mod message;
    pub(crate) mod routes;
    pub(crate) mod store_query;
}

use allocated::{decoding, within};
use http::message::{self, MessageJson, NAMES_MAX, Names};
use http::{routes, store_query};
use hyper::Method;
use libfuzzer_sys::fuzz_target;
use protocol::WakuMessage;

const TOPIC: &str = "/app/1/name/proto";
/// Of a request's head; no path is longer.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// The message read from JSON, encoded as in the log.
fn encoded(json: &[u8]) -> Option<Vec<u8>> {
    let read: MessageJson<'_> = decoding(json.len(), || serde_json::from_slice(json)).ok()?;
    let topic = read.content_topic().unwrap_or(TOPIC).to_owned();
    let most = read.encoded_bytes_max(&topic);
    // The message, and once more everything except its payload.
    let bytes = within(2 * most + allocated::BESIDE_BYTES, || read.encode(&topic, 77)).ok()?;
    assert!(bytes.len() <= most, "{} bytes, {most} were planned", bytes.len());
    Some(bytes)
}

fn message(json: &[u8]) {
    let Some(bytes) = encoded(json) else { return };
    // It may be longer than a message may be, and is refused then.
    let Ok(message) = WakuMessage::decode(bytes.into()) else { return };
    let mut written = Vec::new();
    message::put_message(&message, &mut written).expect("memory takes it");
    assert!(written.len() <= message::json_bytes_max(message.encoded_len()));
    let again = encoded(&written).expect("it was written here");
    let again = WakuMessage::decode(again.into()).expect("it was read here");
    let stated = WakuMessage {
        version: Some(message.version.unwrap_or(0)),
        ephemeral: Some(message.is_ephemeral()),
        ..message
    };
    assert_eq!(again, stated);
}

fuzz_target!(|bytes: &[u8]| {
    let Some((selector, rest)) = bytes.split_first() else { return };
    if rest.len() > HEAD_BYTES_MAX && selector % 4 > 1 {
        return;
    }
    match selector % 4 {
        0 => message(rest),
        1 => {
            let names: Result<Names<'_>, _> = decoding(rest.len(), || serde_json::from_slice(rest));
            assert!(names.map_or(0, |names| names.0.len()) <= NAMES_MAX);
        }
        2 => {
            let Ok(path) = std::str::from_utf8(rest) else { return };
            for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::HEAD] {
                let found = decoding(2 * path.len(), || routes::find(&method, path));
                if let Err(refused) = found {
                    assert!(refused.status.is_client_error());
                    assert_eq!(refused.status == 405, refused.allow.is_some());
                    assert!(refused.message.len() <= 1100, "{}", refused.message);
                }
            }
        }
        _ => {
            let Ok(query) = std::str::from_utf8(rest) else { return };
            // A list of single letters takes a `String` for each of them.
            let room = query.len() * (2 * size_of::<String>() + 2);
            let asked = within(room + allocated::BESIDE_BYTES, || store_query::parse(query));
            let Ok(asked) = asked else { return };
            assert!(asked.query.limit <= protocol::store::PAGE_MAX);
            assert!(asked.query.start_ns.is_none_or(|start| start > 0));
            assert!(asked.query.end_ns.is_none_or(|end| end > 1));
        }
    }
});
