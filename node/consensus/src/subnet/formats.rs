//! The bytes of everything that members send each other or keep on disk, pinned.

use commonware_codec::Encode as _;
use state::{IngressId, Time};
use testing::formats::check;

use super::{
    block::{Block, CallName, KeyPayload},
    calls, journal, outcalls, shares, state_sync, wire,
};
use crate::block_log;

#[test]
fn messages_between_members_have_the_bytes_of_their_version() {
    let check = |format, samples: Vec<_>, pinned| check(format, wire::VERSION, &samples, pinned);
    check("messages about state roots", shares::samples(), "3eb2ff8ebd84db462c0dee98f216348f");
    check("messages about calls", calls::samples(), "76860840fcee51349bd58073591f1cd2");
    check("messages about outcalls", outcalls::samples(), "");
    check("messages of state sync", state_sync::samples(), "43e4e3dc009918f580f8d6768c89653b");
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
    check("a block", wire::VERSION, &samples, "c721eb427b2baf0064d0bacc5dab1c5c");
}

#[test]
fn files_of_agreement_have_the_bytes_of_their_version() {
    let (version, samples) = block_log::samples();
    check("the block log", version, &samples, "d0e9dbefbe86ae293092ba86cc5f0e2d");
    let (version, samples) = journal::samples();
    check("the journal", version, &samples, "84909b78f903e3b0b605aa9cce6d8386");
}
