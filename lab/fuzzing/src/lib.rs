//! What the fuzz targets do: each takes one input as it comes from outside the process, and panics
//! if a rule of its decoder is broken. `fuzz/` drives them with libFuzzer; the test of this crate
//! gives them their seeds and mutations of those.
//!
//! A target is a module here, a name in [`TARGETS`], a binary of `fuzz/Cargo.toml`, and a folder of
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
mod worker_ring;

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

macro_rules! targets {
    ($($module:ident)*) => { &[$((stringify!($module), $module::test_one_input)),*] };
}

/// All targets, by name.
#[rustfmt::skip]
pub const TARGETS: &[(&str, TestOneInput)] = targets! {
    candid_arguments ceremony_files certifier compare_judge compare_reader compile_report
    dkg_dealing dkg_decoders envelope_decoder gc_log heap_document http_reply image_headers
    key_summary machine_lines manifest_decoder module_validator outcall_answers peer_block
    peer_calls peer_shares peer_sync record_file waku_framing waku_gossip waku_http waku_message
    waku_multiplexer waku_records waku_replies waku_requests waku_segment waku_topics
    worker_report worker_ring
};

/// Gives `input` to the target `name`.
///
/// # Panics
/// If there is no such target, or the input breaks a rule of it.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    let (_, test_one_input) = target.expect("`TARGETS` has the name");
    test_one_input(input);
}
