//! The table of valid messages: what is decoded agrees with it, row by row, and so does its page.

use bytes::Bytes;
use proptest::{collection::vec, prelude::*};
use protocol::{
    StatusCode, Verdict, WakuMessage,
    message::{MESSAGE_BYTES_MAX, META_BYTES_MAX},
    topic::CONTENT_TOPIC_BYTES_MAX,
    validity::{RULES, Rule},
    wire::{put_bytes, put_varint},
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/message-validity.md");

fn verdict(bytes: Vec<u8>) -> Verdict {
    match WakuMessage::decode(bytes.into()) {
        Ok(_) => Verdict::Accept,
        Err(error) => error.verdict(),
    }
}

/// A whole message, and more fields after it.
fn followed(more: &[u8]) -> Vec<u8> {
    [&WakuMessage::new("/c", "p").encode()[..], more].concat()
}

fn field(tag: u32, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(tag, bytes, &mut out);
    out
}

fn number(tag: u32, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(tag, value, &mut out);
    out
}

fn of_length(bytes: usize) -> Vec<u8> {
    let head = WakuMessage::new("/c", vec![1; 100_000]).encoded_len() - 100_000;
    WakuMessage::new("/c", vec![1; bytes - head]).encode()
}

/// Messages of a row. None for what is not part of the message itself.
fn examples(rule: &Rule) -> Vec<Vec<u8>> {
    let topic = |bytes: &[u8]| [field(1, b"p"), field(2, bytes)].concat();
    match (rule.field, rule.case) {
        ("payload", "absent") => vec![field(2, b"/c")],
        ("payload", "present and empty") => {
            vec![[field(1, b""), field(2, b"/c")].concat(), followed(&field(1, b""))]
        }
        ("payload", "1 byte and more") => vec![followed(b"")],
        ("content_topic", "absent") => vec![field(1, b"p"), Vec::new()],
        ("content_topic", "present and empty") => vec![topic(b"")],
        ("content_topic", "not UTF-8") => vec![topic(b"\xff\xfe")],
        ("content_topic", "1 to 256 bytes, of any form") => {
            vec![topic(b"t"), topic(&[b't'; CONTENT_TOPIC_BYTES_MAX])]
        }
        ("content_topic", "257 bytes and more") => vec![topic(&[b't'; 257]), topic(&[b't'; 9000])],
        ("version", "absent, or of 32 bits") => {
            vec![followed(&number(3, 0)), followed(&number(3, u32::MAX.into()))]
        }
        ("version", "more than 32 bits") => {
            vec![followed(&number(3, 1 << 32)), followed(&number(3, u64::MAX))]
        }
        ("timestamp", _) => [0, 1, 2, u64::MAX].map(|value| followed(&number(10, value))).to_vec(),
        ("meta", "absent, or up to 64 bytes") => {
            vec![followed(&field(11, b"")), followed(&field(11, &[1; META_BYTES_MAX]))]
        }
        ("meta", "65 bytes and more") => vec![followed(&field(11, &[1; META_BYTES_MAX + 1]))],
        ("rate_limit_proof", _) => {
            vec![followed(&field(21, b"")), followed(&field(21, &[1; 100_000]))]
        }
        ("ephemeral", _) => [0, 1, u64::MAX].map(|value| followed(&number(31, value))).to_vec(),
        ("any field", "comes twice: the last counts") => {
            let meta = [field(11, &[1; 65]), field(11, b"m")].concat();
            vec![followed(&followed(b"")), followed(&meta)]
        }
        ("any field", "of another wire type: skipped") => {
            let others = [1, 2, 11, 21].map(|tag| number(tag, 7)).concat();
            let numbers = [3, 10, 31].map(|tag| field(tag, b"7")).concat();
            vec![followed(&others), followed(&numbers)]
        }
        ("other fields", "of any content: skipped") => {
            vec![followed(&[field(500, b"later"), number(501, 1)].concat())]
        }
        ("other fields", "a group") => vec![followed(b"\x0b\x0c"), followed(b"\x9b\x3f\x9c\x3f")],
        ("the bytes", "a number of more than 64 bits, or field 0") => {
            vec![followed(b"\x00\x01"), followed(b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02")]
        }
        ("the bytes", "cut off, or an unknown wire type") => {
            vec![followed(b"\x18"), followed(b"\x0e"), followed(b"\x0a\x05a"), vec![0xff, 1]]
        }
        ("the whole", "up to 150 KiB") => vec![of_length(150 << 10)],
        ("the whole", "more than this node takes") => vec![of_length(MESSAGE_BYTES_MAX + 1)],
        ("the gossip entry", _) => Vec::new(),
        other => panic!("no example of {other:?}"),
    }
}

#[test]
fn decoder_agrees_with_the_table_in_every_row() {
    for rule in &RULES {
        for (at, bytes) in examples(rule).into_iter().enumerate() {
            assert_eq!(verdict(bytes), rule.verdict, "{rule:?}, example {at}");
        }
    }
}

#[test]
fn no_honest_peer_is_at_fault_and_nothing_goes_on_that_a_peer_rejects() {
    for rule in &RULES {
        let all = |verdict| rule.others.iter().all(|other| *other == Some(verdict));
        if rule.verdict == Verdict::Reject {
            assert!(all(Verdict::Reject), "{rule:?}");
        }
        if rule.verdict == Verdict::Accept {
            assert!(!rule.others.contains(&Some(Verdict::Reject)), "{rule:?}");
        }
        if all(Verdict::Reject) {
            assert_eq!(rule.verdict, Verdict::Reject, "{rule:?}");
        }
        // Clients are answered with success for what goes on, and for nothing else.
        let accepted = rule.status == Some(StatusCode::Ok);
        assert_eq!(accepted, rule.verdict == Verdict::Accept, "{rule:?}");
    }
}

#[test]
fn page_shows_the_table() {
    let name = |verdict: Verdict| format!("{verdict:?}").to_lowercase();
    let page = std::fs::read_to_string(PAGE).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let expected = RULES.iter().map(|rule| {
        let [nwaku, delivery, go] = rule.others.map(|other| other.map_or("-".into(), name));
        let status = rule.status.map_or("-".into(), |status| status.code().to_string());
        format!(
            "| {} | {} | {} | {nwaku} | {delivery} | {go} | {} | {status} |",
            rule.field,
            rule.case,
            rule.specification,
            name(rule.verdict)
        )
    });
    assert_eq!(rows, expected.collect::<Vec<_>>());
}

proptest! {
    /// Whatever the bytes are, reading again what was accepted gives the same message: every node
    /// that reads as protobuf does hashes and judges it alike.
    #[test]
    fn accepted_bytes_are_valid_when_written_again(
        mut bytes in vec(any::<u8>(), 0..200), whole in any::<bool>(),
    ) {
        if whole {
            bytes = followed(&bytes);
        }
        let bytes = Bytes::from(bytes);
        if let Ok(message) = WakuMessage::decode(bytes.clone()) {
            prop_assert_eq!(WakuMessage::read(&bytes), Ok(message.clone()));
            prop_assert_eq!(WakuMessage::decode(message.encode().into()), Ok(message));
        }
    }
}
