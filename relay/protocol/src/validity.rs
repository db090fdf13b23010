//! Which messages are valid: the rules of the network, field by field, and what this node does.
//!
//! A node that forwards a message which its peers reject loses its score with them, and a node that
//! rejects what its peers accept takes theirs. So [`RULES`] follow from what the implementations
//! do:
//!
//! - all accept: accepted;
//! - all reject: rejected, and the peer that sent it is at fault;
//! - they differ, or the limit is this node's own: ignored. The message goes no further, and the
//!   peer is not at fault.
//!
//! Clients of this node are refused what would not be accepted, with the reason.
//!
//! Bounds: a table. It must never know a message: [`crate::MessageError::verdict`] applies it, and
//! tests compare both for every row. The page docs/internals/message-validity.md shows the table.
//!
//! Source: vacp2p/rfc-index 11, 14 and 64; waku-org/nwaku 0.36 and logos-messaging/logos-delivery
//! (2026): `codec.nim` and the relay's validators; waku-org/go-waku 0.8.1: `validation.go` and
//! `validators.go`.

use Verdict::{Accept, Ignore, Reject};

use crate::StatusCode;

/// What a node does with a message that a peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Relays, stores and delivers it.
    Accept,
    /// Drops it, and lowers the score of the peer that sent it.
    Reject,
    /// Drops it.
    Ignore,
}

/// One row: a form of a field, and what becomes of a message that has it and nothing else unusual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name of the field in the specification, or the part of the message.
    pub field: &'static str,
    /// The form of it.
    pub case: &'static str,
    /// What the specification has to say.
    pub specification: &'static str,
    /// What nwaku, its successor logos-delivery and go-waku do with it; `None` where it depends on
    /// their configuration or is not known.
    pub others: [Option<Verdict>; 3],
    /// What this node does with it in gossip.
    pub verdict: Verdict,
    /// How light push answers it: this code in version 3, and over HTTP under `/lightpush/v3`;
    /// failure with a text in version 2; 400 in the other routes, or 413 for
    /// [`StatusCode::PayloadTooLarge`] in those of relay. `None` where a client cannot send it.
    pub status: Option<StatusCode>,
}

const fn rule(
    field: &'static str,
    case: &'static str,
    specification: &'static str,
    others: [Option<Verdict>; 3],
    verdict: Verdict,
    status: Option<StatusCode>,
) -> Rule {
    Rule { field, case, specification, others, verdict, status }
}

const A: Option<Verdict> = Some(Accept);
const R: Option<Verdict> = Some(Reject);
const U: Option<Verdict> = None;
const OK: Option<StatusCode> = Some(StatusCode::Ok);
const INVALID: Option<StatusCode> = Some(StatusCode::InvalidMessage);
const TOO_LARGE: Option<StatusCode> = Some(StatusCode::PayloadTooLarge);

/// All rules, by field.
pub const RULES: [Rule; 24] = [
    rule("payload", "absent", "must be set", [R, A, R], Ignore, INVALID),
    rule("payload", "present and empty", "must be set", [A, A, R], Ignore, INVALID),
    rule("payload", "1 byte and more", "allowed", [A, A, A], Accept, OK),
    rule("content_topic", "absent", "must be set", [R, R, R], Reject, INVALID),
    rule("content_topic", "present and empty", "must be set", [A, R, R], Ignore, INVALID),
    rule("content_topic", "not UTF-8", "forbidden", [A, R, R], Ignore, INVALID),
    rule("content_topic", "1 to 256 bytes, of any form", "allowed", [A, A, A], Accept, OK),
    rule("content_topic", "257 bytes and more", "allowed", [A, A, A], Ignore, INVALID),
    rule("version", "absent, or of 32 bits", "allowed", [A, A, A], Accept, OK),
    rule("version", "more than 32 bits", "forbidden", [R, U, A], Ignore, INVALID),
    rule("timestamp", "absent, or any number", "allowed", [A, A, A], Accept, OK),
    rule("meta", "absent, or up to 64 bytes", "allowed", [A, A, A], Accept, OK),
    rule("meta", "65 bytes and more", "forbidden", [R, R, R], Reject, INVALID),
    rule("rate_limit_proof", "absent, or of any length", "not stated", [A, A, A], Accept, OK),
    rule("ephemeral", "absent, or any number", "allowed", [A, A, A], Accept, OK),
    rule("any field", "comes twice: the last counts", "allowed", [A, A, A], Accept, OK),
    rule("any field", "of another wire type: skipped", "not stated", [A, U, A], Accept, OK),
    rule("other fields", "of any content: skipped", "allowed", [A, A, A], Accept, OK),
    rule("other fields", "a group", "not stated", [R, U, A], Ignore, INVALID),
    rule(
        "the bytes",
        "a number of more than 64 bits, or field 0",
        "forbidden",
        [A, U, R],
        Ignore,
        INVALID,
    ),
    rule("the bytes", "cut off, or an unknown wire type", "forbidden", [R, R, R], Reject, INVALID),
    rule("the whole", "up to 150 KiB", "allowed", [A, A, A], Accept, OK),
    rule(
        "the whole",
        "more than this node takes",
        "150 KiB on cluster 1",
        [U, U, U],
        Ignore,
        TOO_LARGE,
    ),
    rule(
        "the gossip entry",
        "an author, sequence number, signature or key",
        "forbidden",
        [A, U, R],
        Ignore,
        None,
    ),
];
