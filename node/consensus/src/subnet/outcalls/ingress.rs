//! Messages about answers to outcalls.

use nidkg::SignatureShare;
use serde::{Deserialize, Serialize};
use state::{Height, OutcallAnswer, OutcallId};

use crate::subnet::wire::BoundedList;

/// Shares in one message.
pub(super) const SHARES_MAX: usize = 256;

#[derive(Serialize, Deserialize)]
pub(in crate::subnet) enum Message {
    /// Of the committee that begins to sign at `from`.
    Shares { from: Height, shares: BoundedList<Share, SHARES_MAX> },
    /// The sender's answer to a request that it makes alone.
    Answer(OutcallAnswer),
}

/// A [`Message`] as it is sent, without a copy of what it says.
#[derive(Serialize)]
pub(super) enum MessageRef<'a> {
    Shares { from: Height, shares: &'a BoundedList<Share, SHARES_MAX> },
    Answer(&'a OutcallAnswer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::subnet) struct Share {
    pub(super) id: OutcallId,
    /// Of the answer.
    pub(super) digest: [u8; 32],
    pub(super) share: SignatureShare,
}

/// One message of each kind.
#[cfg(test)]
pub(in crate::subnet) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let share = Share { id: OutcallId(5), digest: [6; 32], share: SignatureShare([7; 48]) };
    let payload = state::Payload::Reply(vec![8; 20]);
    let answer = OutcallAnswer { id: OutcallId(9), until: state::Time(0x0102_0304), payload };
    crate::subnet::wire::samples([
        ("shares", Message::Shares { from: Height(0x0102_0304), shares: BoundedList(vec![share]) }),
        ("answer", Message::Answer(answer)),
    ])
}
