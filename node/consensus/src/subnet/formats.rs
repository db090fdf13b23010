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
    check("messages about state roots", shares::samples(), (2, "4b40f9ffdcb5def06f241d2f8f8d72dc"));
    check("messages about calls", calls::samples(), (2, "3be25831532aff1ba447aefcfd71171b"));
    check("messages about outcalls", outcalls::samples(), (2, "44219d008e3925e6ab9d7a76620e540b"));
    check("messages of state sync", state_sync::samples(), (2, "3185b29dfca553f21406529ac0a5eac3"));
    check("the keys of votes", voters::samples(), (2, ""));
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
    check("a block", wire::VERSION, &samples, (2, "353d75cb00e3fd995af1641fef607639"));
}

// Promise: P8 - Block log and journal keep the bytes of their version.
#[test]
fn files_of_agreement_have_the_bytes_of_their_version() {
    let (version, samples) = block_log::samples();
    check("the block log", version, &samples, (5, "519e8b2ec1aecc9652f3efb15b81bfc9"));
    let (version, samples) = blobs::samples();
    check("the engine's storage", version, &samples, (1, "669b4ac3e06733de985add79c9fb7601"));
    let (version, samples) = journal::samples();
    check("the journal", version, &samples, (3, "3b003558fb6b93f4091f45a39fce6e75"));
}
