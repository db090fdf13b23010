//! The sender of a request: the envelope authentication of the interface specification.
//!
//! Cheap checks come first: expiry, the sender's principal, the shape of the delegation chain, its
//! expirations, targets and permissions. Signatures are verified only for a request that passes all
//! of them, the request's own first.
//!
//! Costs, on one core of a 2020s server: an Ed25519 or ECDSA signature takes 40 to 150
//! microseconds, RSA about as much, a canister signature one to three milliseconds the first time
//! its certificate is seen. Callers run this on bounded threads, unless [`is_quick`].
//!
//! Results that are functions of bytes alone are remembered, in bounded maps
//! ([`AuthConfig::remembering`]): decoded Ed25519 keys, valid signatures of delegations, and valid
//! signatures of certificates. Expiry, targets and permissions are checked each time.
//!
//! - Anonymous queries and read_states may carry any expiry; every other request must expire within
//!   the window.
//! - Each key appears once in a chain. A chain's targets are the intersection of its links'
//!   targets, and the callee must be among them.
//! - A link with `permissions: "queries"` anywhere in the chain rules out calls.
//! - `sender_info` must be signed by the canister whose key is `sender_pubkey`.

mod bounded_map;
pub(crate) mod canister;
mod ed25519;
mod keys;
mod webauthn;

use std::{collections::BTreeSet, time::Duration};

use ic_principal::Principal;
use limits::GatewayLimits;
use sha2::{Digest, Sha256};
use state::{SenderInfo, Time, Validity};
use thiserror::Error;

pub use canister::CertifiedData;
pub use keys::KeyError;

use self::{
    bounded_map::BoundedMap, canister::CertificateVerifier, ed25519::KnownKeys, keys::PublicKey,
};
use crate::{Envelope, Permissions, Request, SignedDelegation, hash::Hash};

const REQUEST_DOMAIN: &[u8] = b"\x0Aic-request";
const DELEGATION_DOMAIN: &[u8] = b"\x1Aic-request-auth-delegation";
const SENDER_INFO_DOMAIN: &[u8] = b"\x0Eic-sender-info";
/// Signatures of a request that is verified without changing threads.
const QUICK_SIGNATURES: usize = 2;

/// Parameters of authentication.
#[derive(Debug)]
pub struct AuthConfig {
    /// How far ahead of the node's clock a request may expire.
    pub ingress_expiry: Duration,
    /// Clock drift allowed on top of it.
    pub ingress_drift: Duration,
    certificates: CertificateVerifier,
    keys: KnownKeys,
    /// Digests of delegations with their keys and signatures, which verified.
    delegations: BoundedMap<()>,
}

impl AuthConfig {
    /// `root_key` verifies canister signatures. Nothing is remembered.
    pub fn new(
        root_key: nidkg::PublicKey,
        ingress_expiry: Duration,
        ingress_drift: Duration,
    ) -> Self {
        Self {
            ingress_expiry,
            ingress_drift,
            certificates: CertificateVerifier::new(root_key, 0),
            keys: KnownKeys::new(0),
            delegations: BoundedMap::new(0),
        }
    }

    /// The same, with memory for results: `remembered_keys`, and `remembered_signatures` of
    /// certificates and of delegations each. No verdict depends on it.
    #[must_use]
    pub fn remembering(self, limits: &GatewayLimits) -> Self {
        let signatures = limits.remembered_signatures;
        Self {
            certificates: CertificateVerifier::new(self.certificates.root_key(), signatures),
            keys: KnownKeys::new(limits.remembered_keys),
            delegations: BoundedMap::new(signatures),
            ..self
        }
    }

    /// Data about a canister in a certificate in CBOR, verified with the root key; `None` when it
    /// is an invalid certificate, not signed for that canister, or without data about it. Takes a
    /// millisecond the first time a certificate is seen.
    pub fn certified_data(
        &self,
        certificate: &[u8],
        canister: &Principal,
    ) -> Option<CertifiedData> {
        self.certificates.certified_data(certificate, canister)
    }

    /// Whether a signature is that of a canister key, in DER, over `message`, by the root key.
    pub fn is_canister_signature(&self, key: &[u8], message: &[u8], signature: &[u8]) -> bool {
        match PublicKey::from_der(key) {
            Ok(PublicKey::Canister(key)) => self.certificates.verify(&key, message, signature),
            _ => false,
        }
    }

    fn window_nanos(&self) -> u64 {
        let window = self.ingress_expiry.saturating_add(self.ingress_drift);
        u64::try_from(window.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The outcome of authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticatedSender {
    /// The sender; the anonymous principal for unsigned requests.
    pub sender: Principal,
    /// Canisters the delegation chain is restricted to; `None` is unrestricted. Calls and queries
    /// were checked against it already.
    pub targets: Option<BTreeSet<Principal>>,
    /// Verified sender information.
    pub sender_info: Option<SenderInfo>,
}

impl AuthenticatedSender {
    /// Whether the chain allows requests that concern `canister_id`.
    pub fn may_target(&self, canister_id: &Principal) -> bool {
        self.targets.as_ref().is_none_or(|targets| targets.contains(canister_id))
    }
}

/// Why a request is not authentic.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum AuthError {
    /// Expired. Clients resynchronise their clock on the first three words.
    #[error(
        "Invalid request expiry: ingress_expiry {expiry} lies before this node's time {now}; both \
         are nanoseconds since 1970-01-01. Sign the request again with a later expiry."
    )]
    Expired { expiry: u64, now: u64 },
    #[error(
        "Invalid request expiry: ingress_expiry {expiry} lies more than {window_seconds} s after \
         this node's time {now} (at most {limit} is accepted; nanoseconds since 1970-01-01). Sign \
         the request again with an earlier expiry."
    )]
    TooFarAhead { expiry: u64, now: u64, limit: u64, window_seconds: u64 },
    #[error("the sender is anonymous (04), so `{field}` must be omitted")]
    AnonymousWith { field: &'static str },
    #[error("the sender {sender} is not anonymous, so `{field}` is required")]
    Unsigned { sender: Principal, field: &'static str },
    #[error("the sender {sender} is not the principal of `sender_pubkey`, which is {derived}")]
    WrongSender { sender: Principal, derived: Principal },
    /// An unacceptable key.
    #[error("{which}: {error}")]
    Key { which: String, error: KeyError },
    #[error(
        "delegation {index} delegates to a key that already occurs in the chain; each key may \
         occur once"
    )]
    DelegationCycle {
        /// Position in the chain, from 0.
        index: usize,
    },
    #[error(
        "Invalid request expiry: delegation {index} expired at {expiration}, this node's time is \
         {now} (nanoseconds since 1970-01-01); obtain a new delegation"
    )]
    DelegationExpired {
        /// Position in the chain, from 0.
        index: usize,
        expiration: u64,
        now: u64,
    },
    #[error(
        "the delegation chain does not allow requests to {canister_id}; its targets exclude that \
         canister"
    )]
    NotATarget { canister_id: Principal },
    #[error("delegation {index} has `permissions: \"queries\"` and does not allow update calls")]
    QueriesOnly {
        /// Position in the chain, from 0.
        index: usize,
    },
    #[error("{which} is no valid {scheme} signature on {over}")]
    BadSignature {
        /// The field of the signature: `sender_sig`, `sender_info.sig` or `signature` of a
        /// delegation.
        which: String,
        scheme: &'static str,
        over: &'static str,
    },
    #[error("`sender_info` requires that `sender_pubkey` is a canister signature key")]
    SenderInfoWithoutCanisterKey,
    #[error(
        "`sender_info.signer` is {signer}, but `sender_pubkey` belongs to the canister \
         {canister_id}"
    )]
    SenderInfoSigner { signer: Principal, canister_id: Principal },
}

impl AuthError {
    /// A label for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Expired { .. } => "expired",
            Self::TooFarAhead { .. } => "expiry_too_far_ahead",
            Self::DelegationExpired { .. } => "delegation_expired",
            Self::DelegationCycle { .. } => "delegation_cycle",
            Self::NotATarget { .. } => "delegation_target",
            Self::QueriesOnly { .. } => "delegation_permissions",
            Self::Key { .. } => "key",
            Self::WrongSender { .. } | Self::Unsigned { .. } | Self::AnonymousWith { .. } => {
                "sender"
            }
            Self::BadSignature { .. } => "signature",
            Self::SenderInfoWithoutCanisterKey | Self::SenderInfoSigner { .. } => "sender_info",
        }
    }
}

/// Whether authenticating takes a fraction of a millisecond at most: one or two signatures, all of
/// them Ed25519 or ECDSA on P-256.
pub fn is_quick(envelope: &Envelope) -> bool {
    let chain = envelope.sender_delegation.as_deref().unwrap_or_default();
    let sender = envelope.sender_pubkey.as_deref();
    let mut keys = sender.into_iter().chain(chain.iter().map(|link| link.pubkey.as_slice()));
    let is_quick = |key: &[u8]| {
        let key = PublicKey::from_der(key);
        key.is_ok_and(|key| matches!(key, PublicKey::Ed25519(_) | PublicKey::P256(_)))
    };
    chain.len() < QUICK_SIGNATURES && keys.all(is_quick)
}

/// Determines the sender of `envelope`, which arrived at `now`.
pub fn authenticate(
    envelope: &Envelope,
    now: Time,
    config: &AuthConfig,
) -> Result<AuthenticatedSender, AuthError> {
    check(envelope, Some(now), config)
}

/// When a call like this is accepted: [`authenticate`] accepts it at these times and no others, if
/// it does at any.
pub fn validity(envelope: &Envelope, config: &AuthConfig) -> Validity {
    let expiry = envelope.content.ingress_expiry;
    let chain = envelope.sender_delegation.as_deref().unwrap_or_default();
    let until = chain.iter().map(|link| link.expiration).fold(expiry, u64::min);
    Validity { from: Time(expiry.saturating_sub(config.window_nanos())), until: Time(until) }
}

/// Determines the signer of `envelope`. Without a time the answer is the same on every node, and
/// stays; [`validity`] returns when it is valid.
pub(crate) fn check(
    envelope: &Envelope,
    now: Option<Time>,
    config: &AuthConfig,
) -> Result<AuthenticatedSender, AuthError> {
    let content = &envelope.content;
    let anonymous = content.sender == Principal::anonymous();
    if let Some(now) = now
        && (!anonymous || matches!(content.request, Request::Call(_)))
    {
        check_expiry(content.ingress_expiry, now, config)?;
    }
    if anonymous {
        return anonymous_sender(envelope);
    }
    let sender = content.sender;
    let pubkey = envelope
        .sender_pubkey
        .as_deref()
        .ok_or(AuthError::Unsigned { sender, field: "sender_pubkey" })?;
    let signature = envelope
        .sender_sig
        .as_deref()
        .ok_or(AuthError::Unsigned { sender, field: "sender_sig" })?;
    let derived = Principal::self_authenticating(pubkey);
    if derived != sender {
        return Err(AuthError::WrongSender { sender, derived });
    }
    let chain = envelope.sender_delegation.as_deref().unwrap_or_default();
    let targets = check_chain(pubkey, chain, &content.request, now)?;
    let authenticated =
        AuthenticatedSender { sender, targets, sender_info: sender_info(&content.request) };
    if let Request::Call(call) | Request::Query(call) = &content.request
        && !authenticated.may_target(&call.canister_id)
    {
        return Err(AuthError::NotATarget { canister_id: call.canister_id });
    }
    verify_chain(envelope, pubkey, chain, signature, config)?;
    Ok(authenticated)
}

/// The claimed sender of an envelope that was authenticated before.
pub(crate) fn claimed_sender(envelope: &Envelope) -> AuthenticatedSender {
    AuthenticatedSender {
        sender: envelope.content.sender,
        targets: None,
        sender_info: sender_info(&envelope.content.request),
    }
}

fn check_expiry(expiry: u64, now: Time, config: &AuthConfig) -> Result<(), AuthError> {
    let window = config.ingress_expiry + config.ingress_drift;
    let limit = now.0.saturating_add(config.window_nanos());
    if expiry < now.0 {
        return Err(AuthError::Expired { expiry, now: now.0 });
    }
    if expiry > limit {
        return Err(AuthError::TooFarAhead {
            expiry,
            now: now.0,
            limit,
            window_seconds: window.as_secs(),
        });
    }
    Ok(())
}

fn anonymous_sender(envelope: &Envelope) -> Result<AuthenticatedSender, AuthError> {
    let present = [
        ("sender_pubkey", envelope.sender_pubkey.is_some()),
        ("sender_sig", envelope.sender_sig.is_some()),
        ("sender_delegation", envelope.sender_delegation.is_some()),
        ("sender_info", sender_info(&envelope.content.request).is_some()),
    ];
    match present.into_iter().find(|(_, present)| *present) {
        Some((field, _)) => Err(AuthError::AnonymousWith { field }),
        None => Ok(AuthenticatedSender {
            sender: Principal::anonymous(),
            targets: None,
            sender_info: None,
        }),
    }
}

fn sender_info(request: &Request) -> Option<SenderInfo> {
    let (Request::Call(call) | Request::Query(call)) = request else { return None };
    call.sender_info
        .as_ref()
        .map(|signed| SenderInfo { info: signed.info.clone(), signer: signed.signer })
}

/// Checks of a chain that need no signature verification. Returns the intersection of its targets.
fn check_chain(
    pubkey: &[u8],
    chain: &[SignedDelegation],
    request: &Request,
    now: Option<Time>,
) -> Result<Option<BTreeSet<Principal>>, AuthError> {
    let mut seen = BTreeSet::from([pubkey]);
    let mut targets: Option<BTreeSet<Principal>> = None;
    for (index, link) in chain.iter().enumerate() {
        if !seen.insert(&link.pubkey) {
            return Err(AuthError::DelegationCycle { index });
        }
        if let Some(now) = now.filter(|now| link.expiration < now.0) {
            return Err(AuthError::DelegationExpired {
                index,
                expiration: link.expiration,
                now: now.0,
            });
        }
        if link.permissions == Permissions::Queries && matches!(request, Request::Call(_)) {
            return Err(AuthError::QueriesOnly { index });
        }
        if let Some(allowed) = &link.targets {
            let allowed = allowed.iter().copied();
            targets = Some(match targets {
                None => allowed.collect(),
                Some(before) => allowed.filter(|target| before.contains(target)).collect(),
            });
        }
    }
    Ok(targets)
}

fn verify_chain(
    envelope: &Envelope,
    pubkey: &[u8],
    chain: &[SignedDelegation],
    signature: &[u8],
    config: &AuthConfig,
) -> Result<(), AuthError> {
    // All keys parse before any signature is verified.
    let first = PublicKey::from_der(pubkey)
        .map_err(|error| AuthError::Key { which: "`sender_pubkey`".to_owned(), error })?;
    let mut keys = vec![first];
    for (index, link) in chain.iter().enumerate() {
        let key = PublicKey::from_der(&link.pubkey).map_err(|error| AuthError::Key {
            which: format!("`pubkey` of delegation {index}"),
            error,
        })?;
        keys.push(key);
    }
    if let Some(last) = keys.last()
        && !verify(last, [REQUEST_DOMAIN, &envelope.request_id.0], signature, config)
    {
        let over = "the request id by the last key of the chain";
        return Err(bad_signature("`sender_sig`".to_owned(), last, over));
    }
    let signers = std::iter::once(pubkey).chain(chain.iter().map(|link| link.pubkey.as_slice()));
    for (index, (link, signer)) in chain.iter().zip(keys.iter().zip(signers)).enumerate() {
        let (key, _) = signer;
        if !verify_delegation(link, signer, config) {
            let which = format!("`signature` of delegation {index}");
            return Err(bad_signature(which, key, "the delegation by the key before it"));
        }
    }
    match keys.first() {
        Some(first) => verify_sender_info(&envelope.content.request, first, config),
        None => Ok(()),
    }
}

/// Whether the delegation is signed by the key, which is given with its encoding.
fn verify_delegation(
    link: &SignedDelegation,
    (key, der): (&PublicKey<'_>, &[u8]),
    config: &AuthConfig,
) -> bool {
    let digest: Hash = Sha256::new()
        .chain_update((der.len() as u64).to_le_bytes())
        .chain_update(der)
        .chain_update(link.hash)
        .chain_update(&link.signature)
        .finalize()
        .into();
    if config.delegations.get(&digest).is_some() {
        return true;
    }
    let is_valid = verify(key, [DELEGATION_DOMAIN, &link.hash], &link.signature, config);
    if is_valid {
        config.delegations.insert(digest, ());
    }
    is_valid
}

fn verify_sender_info(
    request: &Request,
    key: &PublicKey<'_>,
    config: &AuthConfig,
) -> Result<(), AuthError> {
    let (Request::Call(call) | Request::Query(call)) = request else { return Ok(()) };
    let Some(info) = &call.sender_info else { return Ok(()) };
    let PublicKey::Canister(signer) = key else {
        return Err(AuthError::SenderInfoWithoutCanisterKey);
    };
    if signer.canister_id != info.signer {
        return Err(AuthError::SenderInfoSigner {
            signer: info.signer,
            canister_id: signer.canister_id,
        });
    }
    if !verify(key, [SENDER_INFO_DOMAIN, &info.info], &info.sig, config) {
        let over = "`sender_info.info` by `sender_pubkey`";
        return Err(bad_signature("`sender_info.sig`".to_owned(), key, over));
    }
    Ok(())
}

fn bad_signature(which: String, key: &PublicKey<'_>, over: &'static str) -> AuthError {
    AuthError::BadSignature { which, scheme: key.scheme(), over }
}

/// Whether the signature is one of the key over the payload, which has two parts.
fn verify(key: &PublicKey<'_>, payload: [&[u8]; 2], signature: &[u8], config: &AuthConfig) -> bool {
    match key {
        PublicKey::Ed25519(key) => config.keys.verify(key, &payload, signature),
        PublicKey::P256(point) => keys::verify_p256(point, &payload.concat(), signature),
        PublicKey::Secp256k1(point) => keys::verify_secp256k1(point, &payload.concat(), signature),
        PublicKey::WebAuthn(key) => key.verify(&payload.concat(), signature),
        PublicKey::Canister(key) => config.certificates.verify(key, &payload.concat(), signature),
    }
}
