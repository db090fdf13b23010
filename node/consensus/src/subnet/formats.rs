//! The bytes of everything that members send each other or keep on disk, pinned.

use commonware_codec::Encode as _;
use state::{IngressId, Time};
use testing::formats::check;

use super::{
    block::{Block, CallName, KeyPayload},
    calls, journal, shares, state_sync, wire,
};
use crate::block_log;

#[test]
fn messages_between_members_have_the_bytes_of_their_version() {
    let check = |format, samples: Vec<_>, pinned| check(format, wire::VERSION, &samples, pinned);
    check("messages about state roots", shares::samples(), "?");
    check("messages about calls", calls::samples(), "?");
    check("messages of state sync", state_sync::samples(), "?");
}

#[test]
fn a_block_has_the_bytes_of_its_version() {
    let name = CallName { id: IngressId([6; 32]), digest: [7; 32], bytes: 70_000 };
    let block = Block {
        ingress: vec![name],
        payload: Some(KeyPayload { leader: 3, bytes: vec![1, 2, 3].into() }),
        ..Block::genesis(b"subnet", Time(0x0102_0304))
    };
    let samples = [("block", block.encode().to_vec())];
    check("a block between members", wire::VERSION, &samples, "?");
}

#[test]
fn files_of_agreement_have_the_bytes_of_their_version() {
    let (version, samples) = block_log::samples();
    check("the block log", version, &samples, "?");
    let (version, samples) = journal::samples();
    check("the journal of calls voted for", version, &samples, "?");
}
