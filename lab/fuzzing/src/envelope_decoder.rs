//! Whatever body a client sends, decoding returns within its bounds, its canonical form decodes to
//! the same envelope, and authentication of what was decoded returns: the same verdict with and
//! without memory for results.
//!
//! The sender of a decoded envelope is also replaced by the principal of its key, which no mutation
//! would find, so that keys, delegation chains and signatures of every scheme are reached.

use std::{sync::LazyLock, time::Duration};

use envelope::{
    Envelope, EnvelopeBounds,
    auth::{AuthConfig, authenticate, is_quick},
};
use ic_principal::Principal;
use limits::{GatewayLimits, Limits};

/// The generator of G2: a public key whose secret is 1, so that certificates in the corpus can be
/// valid.
const ROOT_KEY: [u8; 96] = [
    0x93, 0xe0, 0x2b, 0x60, 0x52, 0x71, 0x9f, 0x60, 0x7d, 0xac, 0xd3, 0xa0, 0x88, 0x27, 0x4f, 0x65,
    0x59, 0x6b, 0xd0, 0xd0, 0x99, 0x20, 0xb6, 0x1a, 0xb5, 0xda, 0x61, 0xbb, 0xdc, 0x7f, 0x50, 0x49,
    0x33, 0x4c, 0xf1, 0x12, 0x13, 0x94, 0x5d, 0x57, 0xe5, 0xac, 0x7d, 0x05, 0x5d, 0x04, 0x2b, 0x7e,
    0x02, 0x4a, 0xa2, 0xb2, 0xf0, 0x8f, 0x0a, 0x91, 0x26, 0x08, 0x05, 0x27, 0x2d, 0xc5, 0x10, 0x51,
    0xc6, 0xe4, 0x7a, 0xd4, 0xfa, 0x40, 0x3b, 0x02, 0xb4, 0x51, 0x0b, 0x64, 0x7a, 0xe3, 0xd1, 0x77,
    0x0b, 0xac, 0x03, 0x26, 0xa8, 0x05, 0xbb, 0xef, 0xd4, 0x80, 0x56, 0xc8, 0xc1, 0x21, 0xbd, 0xb8,
];

const BOUNDS: EnvelopeBounds = EnvelopeBounds {
    paths: 1_000,
    path_labels: 127,
    delegations: 20,
    delegation_targets: 1_000,
    nonce_bytes: 32,
};

static LIMITS: LazyLock<GatewayLimits> =
    LazyLock::new(|| Limits::nano().expect("it is a preset").gateway);

pub(crate) fn test_one_input(body: &[u8]) {
    let decoded = Envelope::decode_canonical(body, &BOUNDS);
    let alone = Envelope::decode(body, &BOUNDS);
    assert_eq!(alone.as_ref().err(), decoded.as_ref().err());
    let Ok((mut envelope, canonical)) = decoded else { return };
    assert_eq!(alone.as_ref(), Ok(&envelope));
    let again = Envelope::decode_canonical(&canonical, &BOUNDS);
    assert_eq!(again, Ok((envelope.clone(), canonical)));
    let root_key = nidkg::PublicKey::from_bytes(&ROOT_KEY).expect("the generator is a point");
    let config = || AuthConfig::new(root_key, Duration::from_secs(300), Duration::from_secs(60));
    let (plain, remembering) = (config(), config().remembering(&LIMITS));
    let authenticate_with_all = |envelope: &Envelope| {
        let now = state::Time(envelope.content.ingress_expiry);
        let _ = is_quick(envelope);
        let expected = authenticate(envelope, now, &plain);
        for _ in 0..2 {
            assert_eq!(authenticate(envelope, now, &remembering), expected);
        }
    };
    authenticate_with_all(&envelope);
    if let Some(pubkey) = &envelope.sender_pubkey {
        envelope.content.sender = Principal::self_authenticating(pubkey);
        authenticate_with_all(&envelope);
    }
}
