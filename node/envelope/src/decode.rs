//! The authentication envelope: a request's content, its recomputed id, and the claims of who
//! signed it.
//!
//! Decoding checks form only; whether the signatures hold is decided in [`crate::auth`]. The
//! request id is always computed here from the content as sent. Fields the specification does not
//! name are hashed into it when they are in the content, and ignored when they are in the envelope
//! around it, which no signature covers. In a delegation they are refused: a restriction that is
//! not understood must not be dropped.
//!
//! The canonical form ([`canonical`]) is passed on to the ingress pool, to other nodes and into
//! blocks: content and the three known fields around it, nothing else, in a single encoding. So
//! data that is not signed or not read takes no room anywhere, and a peer that forwards any other
//! form is at fault.

use ic_principal::Principal;
use limits::GatewayLimits;
use state::RequestId;
use thiserror::Error;

use crate::{
    cbor::{self, Bounds, CborError, Value, Writer},
    hash::{self, Hash, NotHashable},
};

/// Levels of nesting; the deepest form of the interface has six.
const DEPTH_MAX: usize = 16;
/// Items of an envelope in addition to paths and delegations.
const ITEMS_BASE: usize = 128;

/// Bounds of one envelope, taken from the limits table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvelopeBounds {
    /// Paths of one read_state.
    pub paths: usize,
    /// Labels of one path.
    pub path_labels: usize,
    /// Delegations in one `sender_delegation`.
    pub delegations: usize,
    /// Targets of one delegation.
    pub delegation_targets: usize,
    /// Bytes of the nonce.
    pub nonce_bytes: usize,
}

impl EnvelopeBounds {
    /// The bounds a limits table states.
    pub fn new(limits: &GatewayLimits) -> Self {
        let bound = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        Self {
            paths: bound(limits.read_state_paths),
            path_labels: bound(limits.read_state_path_labels),
            delegations: bound(limits.delegations),
            delegation_targets: bound(limits.delegation_targets),
            nonce_bytes: bound(limits.nonce_bytes),
        }
    }

    fn cbor(&self) -> Bounds {
        let paths = self.paths.saturating_mul(self.path_labels.saturating_add(1));
        let delegations =
            self.delegations.saturating_mul(self.delegation_targets.saturating_add(16));
        Bounds {
            depth: DEPTH_MAX,
            items: paths.saturating_add(delegations).saturating_add(ITEMS_BASE),
        }
    }
}

/// A decoded envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The content of the request.
    pub content: Content,
    /// Hash of the content as it was sent.
    pub request_id: RequestId,
    /// Claimed key of the sender, DER.
    pub sender_pubkey: Option<Vec<u8>>,
    /// Signature on the request id.
    pub sender_sig: Option<Vec<u8>>,
    /// Chain from `sender_pubkey` to the key that made `sender_sig`; `None` if the field was
    /// omitted.
    pub sender_delegation: Option<Vec<SignedDelegation>>,
}

/// Fields all requests share, and the request itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The principal that claims to send the request; not authenticated.
    pub sender: Principal,
    /// Nanoseconds since 1970-01-01 after which the request is void.
    pub ingress_expiry: u64,
    /// The kind of request with its own fields.
    pub request: Request,
}

/// The kind of a request, with its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// An update call, `request_type: "call"`.
    Call(MethodCall),
    /// A query call, `request_type: "query"`.
    Query(MethodCall),
    /// `request_type: "read_state"`, with its paths.
    ReadState(Vec<Vec<Vec<u8>>>),
}

impl Request {
    /// The value of `request_type`.
    pub fn request_type(&self) -> &'static str {
        match self {
            Self::Call(_) => "call",
            Self::Query(_) => "query",
            Self::ReadState(_) => "read_state",
        }
    }
}

/// Callee, method and argument of a call or query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodCall {
    /// The canister that is called; `aaaaa-aa` is the management canister.
    pub canister_id: Principal,
    /// Name of the method that is called.
    pub method_name: String,
    /// Bytes of the argument as sent, not decoded.
    pub arg: Vec<u8>,
    /// Sender information with the signature that vouches for it.
    pub sender_info: Option<SignedSenderInfo>,
}

/// `sender_info` as sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedSenderInfo {
    /// For the callee.
    pub info: Vec<u8>,
    /// The canister that signed it.
    pub signer: Principal,
    /// A canister signature.
    pub sig: Vec<u8>,
}

/// Permissions of a delegation in addition to its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permissions {
    /// Every kind of request.
    All,
    /// Queries and read_state only.
    Queries,
}

/// One link of a delegation chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedDelegation {
    /// The key delegated to, DER.
    pub pubkey: Vec<u8>,
    /// Nanoseconds since 1970-01-01 after which the link is void.
    pub expiration: u64,
    /// Canisters it is restricted to.
    pub targets: Option<Vec<Principal>>,
    /// Requests it is restricted to.
    pub permissions: Permissions,
    /// Hash of the delegation map, which is signed.
    pub hash: Hash,
    /// By the key before it.
    pub signature: Vec<u8>,
}

/// Why a body is not an envelope.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum EnvelopeError {
    /// No acceptable CBOR.
    #[error(transparent)]
    Cbor(#[from] CborError),
    /// A field without a hash.
    #[error(transparent)]
    NotHashable(#[from] NotHashable),
    #[error(
        "the body must be a CBOR map with `content` and, unless the sender is anonymous, \
         `sender_pubkey` and `sender_sig`"
    )]
    NotAnEnvelope,
    #[error("`{field}` is missing; it is required and must be {expected}")]
    Missing { field: &'static str, expected: &'static str },
    #[error("`{field}` is {found}; it must be {expected}")]
    WrongType { field: &'static str, found: &'static str, expected: &'static str },
    #[error("`{field}` has {length} bytes; a principal has at most 29")]
    NotAPrincipal { field: &'static str, length: usize },
    #[error("`request_type` is \"{found}\"; it must be \"call\", \"query\" or \"read_state\"")]
    UnknownRequestType {
        /// The type as sent, cut to 32 characters.
        found: String,
    },
    /// A list or blob beyond its limit.
    #[error("{what}: {found} exceeds the limit of {limit}")]
    TooMany {
        what: &'static str,
        found: usize,
        /// The most that is accepted, by [`EnvelopeBounds`].
        limit: usize,
    },
    #[error(
        "a delegation's `permissions` is \"{found}\"; only \"queries\" and \"all\" are defined, \
         so the delegation is invalid"
    )]
    UnknownPermissions {
        /// The value as sent, cut to 32 characters.
        found: String,
    },
    #[error(
        "a delegation has the field `{field}`, which is not defined; a restriction that is not \
         understood cannot be honoured"
    )]
    UnknownDelegationField {
        /// Which, cut to 32 characters.
        field: String,
    },
}

fn truncate_text(text: &str) -> String {
    text.chars().take(32).collect()
}

fn require_field<'v, 'a>(
    map: &'v Value<'a>,
    field: &'static str,
    expected: &'static str,
) -> Result<&'v Value<'a>, EnvelopeError> {
    map.field(field).ok_or(EnvelopeError::Missing { field, expected })
}

fn typed<'v, 'a, T: 'v>(
    value: &'v Value<'a>,
    field: &'static str,
    expected: &'static str,
    get: impl FnOnce(&'v Value<'a>) -> Option<T>,
) -> Result<T, EnvelopeError> {
    get(value).ok_or(EnvelopeError::WrongType { field, found: value.kind(), expected })
}

const BLOB: &str = "a byte string";
const TEXT: &str = "a text string";
const MAP: &str = "a map";
const NAT: &str = "a natural number of nanoseconds since 1970-01-01";
const PRINCIPAL: &str = "a byte string of at most 29 bytes";

fn blob(map: &Value<'_>, field: &'static str) -> Result<Vec<u8>, EnvelopeError> {
    typed(require_field(map, field, BLOB)?, field, BLOB, Value::as_bytes).map(<[u8]>::to_vec)
}

fn optional_blob(map: &Value<'_>, field: &'static str) -> Result<Option<Vec<u8>>, EnvelopeError> {
    map.field(field)
        .map(|value| typed(value, field, BLOB, Value::as_bytes).map(<[u8]>::to_vec))
        .transpose()
}

fn text<'v>(map: &'v Value<'_>, field: &'static str) -> Result<&'v str, EnvelopeError> {
    typed(require_field(map, field, TEXT)?, field, TEXT, Value::as_text)
}

fn nat(map: &Value<'_>, field: &'static str) -> Result<u64, EnvelopeError> {
    typed(require_field(map, field, NAT)?, field, NAT, |value| match value {
        Value::Nat(number) => Some(*number),
        _ => None,
    })
}

fn to_principal(value: &Value<'_>, field: &'static str) -> Result<Principal, EnvelopeError> {
    let bytes = typed(value, field, PRINCIPAL, Value::as_bytes)?;
    Principal::try_from_slice(bytes)
        .map_err(|_| EnvelopeError::NotAPrincipal { field, length: bytes.len() })
}

fn principal(map: &Value<'_>, field: &'static str) -> Result<Principal, EnvelopeError> {
    to_principal(require_field(map, field, PRINCIPAL)?, field)
}

fn at_most(what: &'static str, found: usize, limit: usize) -> Result<(), EnvelopeError> {
    if found > limit { Err(EnvelopeError::TooMany { what, found, limit }) } else { Ok(()) }
}

/// The canonical form of a request body: `content` with all its fields, `sender_pubkey`,
/// `sender_sig` and `sender_delegation`, in canonical CBOR without a tag. Values stay, so the
/// request id and every signature do.
///
/// Of a link of `sender_delegation` the fields `delegation` and `signature` stay. Fields that are
/// null are left out, as the request id leaves them out.
///
/// # Errors
/// When the body is no acceptable CBOR map with a `content`. [`Envelope::decode`] decides whether
/// it is an envelope.
pub fn canonical(body: &[u8], bounds: &EnvelopeBounds) -> Result<Vec<u8>, EnvelopeError> {
    let envelope = read_map(body, bounds)?;
    require_field(&envelope, "content", MAP)?;
    Ok(canonical_envelope(&envelope, body.len()))
}

/// Reads a body that is a map.
fn read_map<'a>(body: &'a [u8], bounds: &EnvelopeBounds) -> Result<Value<'a>, EnvelopeError> {
    let envelope = cbor::decode(body, bounds.cbor())?;
    if !matches!(envelope, Value::Map(_)) {
        return Err(EnvelopeError::NotAnEnvelope);
    }
    Ok(envelope)
}

/// The canonical form of an envelope that took this number of bytes.
fn canonical_envelope(envelope: &Value<'_>, bytes: usize) -> Vec<u8> {
    let mut writer = Writer::with_capacity(bytes);
    // In the order of the encoded keys, as within maps.
    let known = ["content", "sender_sig", "sender_pubkey", "sender_delegation"];
    let present = present_fields(envelope, &known);
    writer.map(present.len() as u64);
    for (name, value) in present {
        writer.text(name);
        match (name, value) {
            ("sender_delegation", Value::Array(chain)) => {
                writer.array(chain.len() as u64);
                chain.iter().for_each(|link| canonical_link(link, &mut writer));
            }
            _ => {
                writer.canonical(value);
            }
        }
    }
    let mut bytes = writer.finish();
    // It waits in the ingress pool, which counts its length.
    bytes.shrink_to_fit();
    bytes
}

/// Whether an envelope in canonical form may be a call that installs code, without decoding it: it
/// has the bytes that such a call must have. So may others, in an argument.
pub fn may_install_code(envelope: &[u8]) -> bool {
    // A text of 11 bytes, then one of no bytes, or texts of 12 and 20.
    let has = |bytes: &[u8]| memchr::memmem::find(envelope, bytes).is_some();
    has(b"\x6bcanister_id\x40")
        && (has(b"\x6bmethod_name\x6cinstall_code")
            || has(b"\x6bmethod_name\x74install_chunked_code"))
}

/// Those of the fields that the map has, in the order of `known`.
fn present_fields<'v, 'a>(
    map: &'v Value<'a>,
    known: &[&'static str],
) -> Vec<(&'static str, &'v Value<'a>)> {
    known.iter().filter_map(|name| map.field(name).map(|value| (*name, value))).collect()
}

fn canonical_link(link: &Value<'_>, writer: &mut Writer) {
    let present = present_fields(link, &["signature", "delegation"]);
    writer.map(present.len() as u64);
    for (name, value) in present {
        writer.text(name).canonical(value);
    }
}

impl Envelope {
    /// Decodes a request body.
    pub fn decode(body: &[u8], bounds: &EnvelopeBounds) -> Result<Self, EnvelopeError> {
        Self::from_value(&read_map(body, bounds)?, bounds)
    }

    /// Decodes a request body, and encodes it in [canonical form](canonical): both from one
    /// reading.
    pub fn decode_canonical(
        body: &[u8],
        bounds: &EnvelopeBounds,
    ) -> Result<(Self, Vec<u8>), EnvelopeError> {
        let envelope = read_map(body, bounds)?;
        let decoded = Self::from_value(&envelope, bounds)?;
        Ok((decoded, canonical_envelope(&envelope, body.len())))
    }

    fn from_value(envelope: &Value<'_>, bounds: &EnvelopeBounds) -> Result<Self, EnvelopeError> {
        let content = require_field(envelope, "content", MAP)?;
        typed(content, "content", MAP, Value::as_map)?;
        Ok(Self {
            request_id: RequestId(hash::of_value(content)?),
            content: Content::from_value(content, bounds)?,
            sender_pubkey: optional_blob(envelope, "sender_pubkey")?,
            sender_sig: optional_blob(envelope, "sender_sig")?,
            sender_delegation: envelope
                .field("sender_delegation")
                .map(|chain| delegations(chain, bounds))
                .transpose()?,
        })
    }

    /// Whether any field claims a signature.
    pub fn is_signed(&self) -> bool {
        self.sender_pubkey.is_some()
            || self.sender_sig.is_some()
            || self.sender_delegation.is_some()
    }
}

impl Content {
    fn from_value(content: &Value<'_>, bounds: &EnvelopeBounds) -> Result<Self, EnvelopeError> {
        let request = match text(content, "request_type")? {
            "call" => Request::Call(MethodCall::from_value(content)?),
            "query" => Request::Query(MethodCall::from_value(content)?),
            "read_state" => Request::ReadState(paths(content, bounds)?),
            other => return Err(EnvelopeError::UnknownRequestType { found: truncate_text(other) }),
        };
        if let Some(nonce) = content.field("nonce") {
            at_most(
                "bytes of `nonce`",
                typed(nonce, "nonce", BLOB, Value::as_bytes)?.len(),
                bounds.nonce_bytes,
            )?;
        }
        Ok(Self {
            sender: principal(content, "sender")?,
            ingress_expiry: nat(content, "ingress_expiry")?,
            request,
        })
    }
}

impl SignedSenderInfo {
    fn from_value(info: &Value<'_>) -> Result<Self, EnvelopeError> {
        typed(info, "sender_info", MAP, Value::as_map)?;
        Ok(Self {
            info: blob(info, "info")?,
            signer: principal(info, "signer")?,
            sig: blob(info, "sig")?,
        })
    }
}

impl MethodCall {
    fn from_value(content: &Value<'_>) -> Result<Self, EnvelopeError> {
        let method_name = text(content, "method_name")?.to_owned();
        let sender_info =
            content.field("sender_info").map(SignedSenderInfo::from_value).transpose()?;
        Ok(Self {
            canister_id: principal(content, "canister_id")?,
            method_name,
            arg: blob(content, "arg")?,
            sender_info,
        })
    }
}

fn paths(content: &Value<'_>, bounds: &EnvelopeBounds) -> Result<Vec<Vec<Vec<u8>>>, EnvelopeError> {
    const PATHS: &str = "an array of arrays of byte strings";
    let paths = typed(require_field(content, "paths", PATHS)?, "paths", PATHS, Value::as_array)?;
    at_most("paths of read_state", paths.len(), bounds.paths)?;
    paths
        .iter()
        .map(|path| {
            let labels = typed(path, "paths", PATHS, Value::as_array)?;
            at_most("labels of one path of read_state", labels.len(), bounds.path_labels)?;
            labels
                .iter()
                .map(|label| typed(label, "paths", PATHS, Value::as_bytes).map(<[u8]>::to_vec))
                .collect()
        })
        .collect()
}

fn delegations(
    chain: &Value<'_>,
    bounds: &EnvelopeBounds,
) -> Result<Vec<SignedDelegation>, EnvelopeError> {
    let chain = typed(chain, "sender_delegation", "an array of maps", Value::as_array)?;
    at_most("delegations in `sender_delegation`", chain.len(), bounds.delegations)?;
    chain.iter().map(|link| delegation(link, bounds)).collect()
}

fn delegation(
    link: &Value<'_>,
    bounds: &EnvelopeBounds,
) -> Result<SignedDelegation, EnvelopeError> {
    let map = require_field(link, "delegation", MAP)?;
    for (key, _) in typed(map, "delegation", MAP, Value::as_map)? {
        let key = key.as_text().unwrap_or_default();
        if !["pubkey", "expiration", "targets", "permissions"].contains(&key) {
            return Err(EnvelopeError::UnknownDelegationField { field: truncate_text(key) });
        }
    }
    let targets = match map.field("targets") {
        None => None,
        Some(targets) => {
            let targets = typed(targets, "targets", "an array of principals", Value::as_array)?;
            at_most("targets of one delegation", targets.len(), bounds.delegation_targets)?;
            Some(
                targets
                    .iter()
                    .map(|target| to_principal(target, "targets"))
                    .collect::<Result<Vec<_>, _>>()?,
            )
        }
    };
    let permissions = match map.field("permissions") {
        None => Permissions::All,
        Some(value) => match typed(value, "permissions", TEXT, Value::as_text)? {
            "all" => Permissions::All,
            "queries" => Permissions::Queries,
            other => return Err(EnvelopeError::UnknownPermissions { found: truncate_text(other) }),
        },
    };
    Ok(SignedDelegation {
        pubkey: blob(map, "pubkey")?,
        expiration: nat(map, "expiration")?,
        targets,
        permissions,
        hash: hash::of_value(map)?,
        signature: blob(link, "signature")?,
    })
}
