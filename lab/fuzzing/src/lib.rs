//! What the fuzz targets do: each takes one input as it comes from outside the process, and panics
//! if a rule of its decoder is broken. `fuzz/` drives them with libFuzzer; the test of this crate
//! gives them their seeds and mutations of those.
//!
//! A target is a module here, a row of [`TARGETS`], a binary of `fuzz/Cargo.toml`, and a folder of
//! seeds, `fuzz/seeds/NAME`. Must never know: which fuzzer or test calls it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod allocated;
mod candid_arguments;
mod ceremony_files;
mod certifier;
mod compare_judge;
mod compare_reader;
mod compile_report;
mod dkg_dealing;
mod dkg_decoders;
mod envelope_decoder;
mod gc_log;
mod heap_document;
mod http_reply;
mod image_headers;
mod key_summary;
mod machine_lines;
mod manifest_decoder;
mod module_validator;
mod outcall_answers;
mod peer_block;
mod peer_calls;
mod peer_shares;
mod peer_sync;
mod record_file;
mod waku_framing;
mod waku_gossip;
mod waku_http;
mod waku_message;
mod waku_multiplexer;
mod waku_records;
mod waku_replies;
mod waku_requests;
mod waku_segment;
mod waku_topics;
mod worker_report;

// Files of crates that have no library, or keep these modules private.
#[allow(dead_code, reason = "targets use a part of these modules")]
#[path = "../../../relay/node/src/http"]
mod http {
    pub(crate) mod answer;
    pub(crate) mod message;
    pub(crate) mod routes;
    pub(crate) mod store_query;
}
#[allow(dead_code, reason = "targets use a part of these modules")]
#[path = "../../../relay/node/src/network"]
mod network {
    pub(crate) mod framing;
    pub(crate) mod meter;
}
#[allow(dead_code, reason = "targets use a part of this module")]
#[path = "../../../node/gateway/src/web/reply.rs"]
mod reply;

/// Gives one input to a decoder. Panics if the result breaks a rule.
pub type TestOneInput = fn(&[u8]);

/// All targets, by name.
pub const TARGETS: &[(&str, TestOneInput)] = &[
    ("candid_arguments", candid_arguments::test_one_input),
    ("ceremony_files", ceremony_files::test_one_input),
    ("certifier", certifier::test_one_input),
    ("compare_judge", compare_judge::test_one_input),
    ("compare_reader", compare_reader::test_one_input),
    ("compile_report", compile_report::test_one_input),
    ("dkg_dealing", dkg_dealing::test_one_input),
    ("dkg_decoders", dkg_decoders::test_one_input),
    ("envelope_decoder", envelope_decoder::test_one_input),
    ("gc_log", gc_log::test_one_input),
    ("heap_document", heap_document::test_one_input),
    ("http_reply", http_reply::test_one_input),
    ("image_headers", image_headers::test_one_input),
    ("key_summary", key_summary::test_one_input),
    ("machine_lines", machine_lines::test_one_input),
    ("manifest_decoder", manifest_decoder::test_one_input),
    ("module_validator", module_validator::test_one_input),
    ("outcall_answers", outcall_answers::test_one_input),
    ("peer_block", peer_block::test_one_input),
    ("peer_calls", peer_calls::test_one_input),
    ("peer_shares", peer_shares::test_one_input),
    ("peer_sync", peer_sync::test_one_input),
    ("record_file", record_file::test_one_input),
    ("waku_framing", waku_framing::test_one_input),
    ("waku_gossip", waku_gossip::test_one_input),
    ("waku_http", waku_http::test_one_input),
    ("waku_message", waku_message::test_one_input),
    ("waku_multiplexer", waku_multiplexer::test_one_input),
    ("waku_records", waku_records::test_one_input),
    ("waku_replies", waku_replies::test_one_input),
    ("waku_requests", waku_requests::test_one_input),
    ("waku_segment", waku_segment::test_one_input),
    ("waku_topics", waku_topics::test_one_input),
    ("worker_report", worker_report::test_one_input),
];

/// Gives `input` to the target `name`.
///
/// # Panics
/// If there is no such target, or the input breaks a rule of it.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    let (_, test_one_input) = target.expect("`TARGETS` has the name");
    test_one_input(input);
}
