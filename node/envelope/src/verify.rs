//! Calls that did not come over HTTP: from another node of the subnet, or from the block log.
//!
//! Nodes forward calls as their senders signed them, and each verifies them itself, by the rules of
//! the call endpoint. A verified call that is read again (to execute it) is only decoded.

use std::time::Duration;

use ic_principal::Principal;
use limits::GatewayLimits;
use state::{Ingress, IngressId, OutcallAnswer, RequestId, SignedIngress, Time, Validity};
use thiserror::Error;

use crate::{
    auth::{self, AuthConfig, AuthError, AuthenticatedSender},
    decode::{Envelope, EnvelopeBounds, EnvelopeError, MethodCall, Request},
    effective::{self, Effective, EffectiveError},
};

/// Why a call is invalid, or not its sender's.
#[derive(Debug, Error)]
enum CallError {
    #[error("an envelope of {found} bytes is over the limit gateway.body_bytes = {limit}")]
    TooLarge { found: usize, limit: u64 },
    #[error(
        "the envelope is not in canonical form: another node may only hand on what it made of its \
         client's"
    )]
    NotCanonical,
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error("`request_type` is \"{0}\", not \"call\"")]
    NotACall(&'static str),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Effective(#[from] EffectiveError),
}

/// The interface of agreement to envelopes, which it carries as opaque bytes. Its tests put calls
/// of their own there; in a node it is [`CallVerifier`].
pub trait Envelopes: Send + Sync {
    /// Decodes a call that was verified before.
    ///
    /// # Errors
    /// When it cannot have been verified.
    fn read(&self, signed: &SignedIngress) -> Result<Ingress, String>;

    /// The name of a call, and at which block times it may be in a block, if its sender signed it
    /// and a client's call like it would be taken at those times. An answer to an outcall is signed
    /// by the subnet. Takes the time of a signature. The answer depends on the bytes, the subnet's
    /// key and limits that members compare, and on nothing of this node's: all nodes give the same.
    ///
    /// # Errors
    /// Why no block may hold it.
    fn verify(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String>;

    /// Identity of an unverified call as it claims, and when it would be valid. Cheap.
    ///
    /// # Errors
    /// When it is not a call.
    fn claim(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String>;
}

impl Envelopes for CallVerifier {
    fn read(&self, signed: &SignedIngress) -> Result<Ingress, String> {
        Ok(self.read_claim(signed).map_err(|error| error.to_string())?.0)
    }

    fn verify(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String> {
        if OutcallAnswer::is_in(signed) {
            return self.verify_answer(signed);
        }
        self.verify_call(signed).map(with_ingress_id).map_err(|error| error.to_string())
    }

    fn claim(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String> {
        if OutcallAnswer::is_in(signed) {
            let (answer, _) = self.read_answer(signed)?;
            return Ok((answer.ingress_id(), answer.validity()));
        }
        self.read_claim(signed).map(with_ingress_id).map_err(|error| error.to_string())
    }
}

/// Verifies calls by the rules of one subnet: its key, its ids, its limits.
#[derive(Debug)]
pub struct CallVerifier {
    auth: AuthConfig,
    bounds: EnvelopeBounds,
    bytes_max: u64,
    subnet_key: nidkg::PublicKey,
    subnet_id: Principal,
    ranges: Vec<(Principal, Principal)>,
}

impl CallVerifier {
    /// `ranges` are the canister ids of the subnet, first and last of each.
    pub fn new(
        root_key: nidkg::PublicKey,
        limits: &GatewayLimits,
        (ingress_expiry, ingress_drift): (Duration, Duration),
        subnet_id: Principal,
        ranges: Vec<(Principal, Principal)>,
    ) -> Self {
        Self {
            subnet_key: root_key,
            auth: AuthConfig::new(root_key, ingress_expiry, ingress_drift).remembering(limits),
            bounds: EnvelopeBounds::new(limits),
            bytes_max: limits.body_bytes,
            subnet_id,
            ranges,
        }
    }

    fn check_bytes(&self, signed: &SignedIngress) -> Result<(), CallError> {
        let (found, limit) = (signed.envelope.len(), self.bytes_max);
        if found as u64 > limit { Err(CallError::TooLarge { found, limit }) } else { Ok(()) }
    }

    fn decode(&self, signed: &SignedIngress) -> Result<Envelope, CallError> {
        self.check_bytes(signed)?;
        Ok(Envelope::decode(&signed.envelope, &self.bounds)?)
    }

    /// The call of the envelope and its validity, if its sender signed it and the subnet would
    /// accept it from a client. Takes the time of a signature or two. The same on every node and at
    /// any time: it depends on the bytes, the subnet's key and ids, and limits that members
    /// compare.
    fn verify_call(&self, signed: &SignedIngress) -> Result<(Ingress, Validity), CallError> {
        self.check_bytes(signed)?;
        let (envelope, canonical) = Envelope::decode_canonical(&signed.envelope, &self.bounds)?;
        if canonical != signed.envelope {
            return Err(CallError::NotCanonical);
        }
        let authenticated = auth::check(&envelope, None, &self.auth)?;
        let validity = auth::validity(&envelope, &self.auth);
        let effective = if signed.effective_canister_id == self.subnet_id {
            Effective::Subnet(self.subnet_id)
        } else {
            Effective::Canister(signed.effective_canister_id)
        };
        let (id, expiry) = (envelope.request_id, envelope.content.ingress_expiry);
        let call = call_of(envelope)?;
        let hosts =
            |id: &Principal| self.ranges.iter().any(|(first, last)| first <= id && id <= last);
        effective::check(&effective, &call, false, &self.subnet_id, hosts)?;
        // The gateway has put the one id there that follows from the content. With another the call
        // could be ordered once more under another name.
        let (url, content) = (effective.id(), effective::of_call(&call, effective.id()));
        if url != content {
            return Err(EffectiveError::Mismatch { url, content }.into());
        }
        Ok((ingress(id, expiry, signed.effective_canister_id, call, authenticated), validity))
    }

    /// The unverified call of the envelope, and when it would be valid.
    fn read_claim(&self, signed: &SignedIngress) -> Result<(Ingress, Validity), CallError> {
        let envelope = self.decode(signed)?;
        let validity = auth::validity(&envelope, &self.auth);
        let claimed = auth::claimed_sender(&envelope);
        let (id, expiry) = (envelope.request_id, envelope.content.ingress_expiry);
        let ingress =
            ingress(id, expiry, signed.effective_canister_id, call_of(envelope)?, claimed);
        Ok((ingress, validity))
    }

    fn read_answer(&self, signed: &SignedIngress) -> Result<(OutcallAnswer, [u8; 48]), String> {
        self.check_bytes(signed).map_err(|error| error.to_string())?;
        OutcallAnswer::read(signed)
    }

    /// An answer counts if the subnet signed it, in whatever epoch: its key stays.
    fn verify_answer(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String> {
        let (answer, signature) = self.read_answer(signed)?;
        let message = OutcallAnswer::message(&answer.digest());
        if !nidkg::verify(&self.subnet_key, &message, &signature) {
            return Err("the subnet did not sign the answer to an outcall".into());
        }
        Ok((answer.ingress_id(), answer.validity()))
    }
}

/// A call by its name.
fn with_ingress_id((ingress, validity): (Ingress, Validity)) -> (IngressId, Validity) {
    (IngressId::new(&ingress.request_id, &ingress.effective_canister_id), validity)
}

fn call_of(envelope: Envelope) -> Result<MethodCall, CallError> {
    match envelope.content.request {
        Request::Call(call) => Ok(call),
        other => Err(CallError::NotACall(other.request_type())),
    }
}

/// A call as execution takes it in.
pub fn ingress(
    request_id: RequestId,
    expiry: u64,
    effective_canister_id: Principal,
    call: MethodCall,
    authenticated: AuthenticatedSender,
) -> Ingress {
    Ingress {
        request_id,
        sender: authenticated.sender,
        canister_id: call.canister_id,
        effective_canister_id,
        method_name: call.method_name,
        arg: call.arg,
        ingress_expiry: Time(expiry),
        sender_info: authenticated.sender_info,
    }
}
