//! The bytes of everything that members send each other or keep on disk, pinned.

use commonware_codec::Encode as _;
use commonware_consensus::types::{Epoch, Round, View};
use ic_principal::Principal;
use nidkg::Signature;
use state::{IngressId, QueryCounts, QueryReport, Time};
use testing::formats::check;

use super::{
    blobs,
    block::{Block, CallName, Certification, KeyPayload},
    calls, journal, outcalls,
    queries::BlockQueryReport,
    shares, state_sync, voters, wire,
};
use crate::block_log;

// Promise: P8 - Messages between members keep the bytes of their version.
#[test]
fn messages_between_members_have_the_bytes_of_their_version() {
    let check = |format, samples: Vec<_>, pinned| check(format, wire::VERSION, &samples, pinned);
    check("messages about state roots", shares::samples(), (3, "f3f30b24453c86f3ba557823329741c0"));
    check("messages about calls", calls::samples(), (3, "90329a44ba9e9d94baf5bf96cd1428ce"));
    check("messages about outcalls", outcalls::samples(), (3, "9281f0c3c5627b747db04538792d8d34"));
    check("messages of state sync", state_sync::samples(), (3, "9e5aec0eb26d2d060b51c75a1f6380e4"));
    check("the keys of votes", voters::samples(), (3, "92c4f0054d4c2c345a8921031f030dcb"));
}

// Promise: P8 - Blocks keep the bytes of their version.
#[test]
fn a_block_has_the_bytes_of_its_version() {
    let name = CallName { id: IngressId([6; 32]), digest: [7; 32], bytes: 70_000 };
    let canister = Principal::from_slice(&[8, 9]);
    let counts =
        QueryCounts { calls: 1, instructions: 300, request_bytes: 1 << 40, response_bytes: 0 };
    let signature = Signature([10; 48]);
    let block = Block {
        round: Round::new(Epoch::new(300), View::new(70_000)),
        certifications: vec![Certification { root: [11; 32], signature }],
        ingress: vec![name],
        payload: Some(KeyPayload { leader: 3, bytes: vec![1, 2, 3].into() }),
        queries: Some(BlockQueryReport(QueryReport {
            node: canister,
            canisters: vec![(canister, counts)],
        })),
        ..Block::genesis(b"subnet", Time(0x0102_0304))
    };
    let samples = [("block", block.encode().to_vec())];
    check("a block", wire::VERSION, &samples, (3, "8780218b34159a82cf54ef15d822544a"));
}

// Promise: P8 - Block log and journal keep the bytes of their version.
#[test]
fn files_of_agreement_have_the_bytes_of_their_version() {
    let (version, samples) = block_log::samples();
    check("the block log", version, &samples, (6, "f827f1d56455404686fc9205e0b25132"));
    let (version, samples) = blobs::samples();
    check("the engine's storage", version, &samples, (1, "669b4ac3e06733de985add79c9fb7601"));
    let (version, samples) = journal::samples();
    check("the journal", version, &samples, (3, "3b003558fb6b93f4091f45a39fce6e75"));
}
