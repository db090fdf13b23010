//! Messages about state roots: of peers, and of the driver.

use nidkg::{Signature, SignatureShare};
use serde::{Deserialize, Serialize};
use state::Height;

use crate::subnet::{greeting::LIMITS_MAX, wire::BoundedList};

#[derive(Serialize, Deserialize)]
pub(in crate::subnet) enum Message {
    /// `again` when it was said before: its sender misses the certificate.
    Share {
        height: Height,
        root: [u8; 32],
        share: SignatureShare,
        again: bool,
    },
    Certificate {
        height: Height,
        root: [u8; 32],
        signature: Signature,
    },
    /// With which limits the sender runs; `ask` when it wants to know the receiver's.
    Limits {
        limits: BoundedList<(String, u64), LIMITS_MAX>,
        ask: bool,
    },
    /// A share on the root of a state that execution waits for, of the committee that begins at
    /// height `committee`. Its sender misses the signature.
    Awaited {
        committee: Height,
        height: Height,
        root: [u8; 32],
        share: SignatureShare,
    },
}

/// One message of each kind.
#[cfg(test)]
pub(in crate::subnet) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let (height, root) = (Height(0x0102_0304), [7; 32]);
    let limits = BoundedList(vec![("a limit".to_owned(), 900), ("another".to_owned(), 1)]);
    crate::subnet::wire::samples([
        ("share", Message::Share { height, root, share: SignatureShare([8; 48]), again: true }),
        ("certificate", Message::Certificate { height, root, signature: Signature([9; 48]) }),
        (
            "awaited",
            Message::Awaited {
                committee: Height(501),
                height,
                root,
                share: SignatureShare([10; 48]),
            },
        ),
        ("limits", Message::Limits { limits, ask: true }),
    ])
}

/// Result of execution.
#[derive(Clone, Copy, Debug)]
pub(in crate::subnet) struct ExecutionResult {
    pub(in crate::subnet) height: Height,
    pub(in crate::subnet) root: [u8; 32],
}
