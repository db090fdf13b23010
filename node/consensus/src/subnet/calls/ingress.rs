//! Messages about calls.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use state::{Height, SignedIngress};

use super::config::{OFFER_CALLS_MAX, WANT_MAX};
use crate::subnet::{block::CallName, wire::BoundedList};

#[derive(Serialize, Deserialize)]
pub(in crate::subnet) enum Message {
    /// Calls that clients brought.
    Announce(BoundedList<SignedIngress, OFFER_CALLS_MAX>),
    /// The calls of these names; in the block of this height, if it is known to be final.
    Request { height: Option<Height>, names: BoundedList<CallName, WANT_MAX> },
    /// Calls that were requested.
    Response(BoundedList<RequestedIngress, OFFER_CALLS_MAX>),
}

#[derive(Serialize, Deserialize)]
pub(in crate::subnet) struct RequestedIngress {
    /// As it was asked for.
    pub(super) digest: [u8; 32],
    pub(super) signed: SignedIngress,
}

/// One message of each kind.
#[cfg(test)]
pub(in crate::subnet) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let signed = SignedIngress {
        effective_canister_id: ic_principal::Principal::from_slice(&[1, 2, 3]),
        envelope: vec![5; 300].into(),
    };
    let name = CallName { id: state::IngressId([6; 32]), digest: [7; 32], bytes: 300 };
    let names = BoundedList(vec![name]);
    crate::subnet::wire::samples([
        ("offer", Message::Announce(BoundedList(vec![signed.clone()]))),
        ("want", Message::Request { height: Some(Height(0x0102_0304)), names }),
        (
            "give",
            Message::Response(BoundedList(vec![RequestedIngress { digest: [7; 32], signed }])),
        ),
    ])
}

/// A request for calls of an old block.
pub(super) struct OldCallsRequest {
    pub(super) height: Height,
    pub(super) digests: BTreeSet<[u8; 32]>,
}
