//! Whether a canister's response is certified: response verification of the HTTP gateway protocol,
//! versions 2 and 1.
//!
//! The hashes of a request and a response are computed by the published library ([`request_hash`],
//! [`response_headers_hash`]); the certificate is verified as those of canister signatures are
//! ([`AuthConfig::certified_data`]). The steps between are done here, for three reasons. The
//! published verifier wants the whole body, and bodies here arrive in pieces: so the body is given
//! as its hash ([`BodyHashes`]). It unpacks a compressed body into memory, whatever its size: here
//! it is unpacked into a hash, up to [`UNPACKED_BYTES_MAX`]. And it reads trees and expressions by
//! recursion without a bound, with which a canister could end the node.
//!
//! First the certificate, the tree and the path of the expression are checked
//! ([`check_certificate`]), which costs a bounded amount; only content that a certificate covers is
//! hashed ([`CertifiedContent::hasher`]) and then compared ([`CertifiedContent::verify_body`]).
//!
//! It knows nothing of connections, of replies, or of the source of a body.

use std::io::{self, Write};

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use envelope::{
    CborError,
    auth::AuthConfig,
    hash::{Hash, of_bytes},
    tree::{CborItem, DEPTH_MAX, ITEMS_MAX},
};
use flate2::write::{DeflateDecoder, GzDecoder};
use ic_certification::hash_tree::{HashTree, LookupResult, SubtreeLookupResult};
use ic_http_certification::{
    CERTIFICATE_EXPRESSION_HEADER_NAME, CERTIFICATE_HEADER_NAME, HttpRequest, HttpResponse,
    filter_response_headers, request_hash, response_headers_hash,
};
use ic_principal::Principal;
use sha2::{Digest, Sha256};
use state::Time;
use thiserror::Error;

use super::expression::{self, Expression};

pub(crate) type HeaderField = (String, String);

/// Bytes that a compressed body may unpack to, where the hash of those is certified (version 1).
const UNPACKED_BYTES_MAX: u64 = 64 << 20;
/// How old a certificate may be, or how far ahead, in nanoseconds: five minutes.
const AGE_NANOS_MAX: u64 = 300_000_000_000;
/// Label of the expressions in a canister's tree.
const PREFIX: &str = "http_expr";
pub(crate) const VERSION: u16 = 2;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Why a response is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum VerificationError {
    #[error("it has no header {CERTIFICATE_HEADER_NAME}")]
    NoCertificate,
    #[error("its header {0} is not formed as the HTTP gateway protocol says")]
    Malformed(&'static str),
    #[error(
        "its header {CERTIFICATE_HEADER_NAME} has a tree or a path that is deeper than {DEPTH_MAX} \
         levels or has more than {ITEMS_MAX} items"
    )]
    TooLarge,
    #[error("its certification has the version {0}; versions 1 and 2 are verified")]
    Version(u16),
    #[error(
        "its certificate is not signed by this subnet for this canister, or is deeper than \
         {DEPTH_MAX} levels or has more than {ITEMS_MAX} items"
    )]
    Certificate,
    #[error("its certificate is more than five minutes away from the node's clock")]
    Time,
    #[error("its tree is not the one that the canister certified")]
    Tree,
    #[error("its expression path does not fit the URL")]
    Path,
    #[error("neither it nor a response like it is in the tree that the canister certified")]
    Response,
    #[error("its body is not the one that the canister certified for this URL")]
    Body,
    #[error(
        "its body is certified unpacked, if at all, and unpacks to more than {UNPACKED_BYTES_MAX} \
         bytes"
    )]
    Unpacked,
    #[error("it is a redirect, which version 1 of the certification cannot certify")]
    Redirect,
    #[error(
        "it has version 1 of the certification, and its canister's metadata \
         `supported_certificate_versions` names a newer one, or is private"
    )]
    Downgrade,
    #[error("its request cannot be certified: the URL is malformed")]
    Url,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum VerifiedScope {
    Body,
    /// Status, body and these headers.
    Response(Vec<HeaderField>),
    /// That the canister wants nothing of it certified.
    Nothing,
}

/// Hash of a body that comes in pieces, and of what it unpacks to.
pub(crate) struct BodyHasher {
    raw: Sha256,
    unpacked: BodyDecoder,
}

enum BodyDecoder {
    Gzip(GzDecoder<HashSink>),
    Deflate(DeflateDecoder<HashSink>),
    /// Not compressed, not well, or to more than [`UNPACKED_BYTES_MAX`].
    Failed(io::ErrorKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyHashes {
    raw: Hash,
    unpacked: Result<Hash, io::ErrorKind>,
}

struct HashSink {
    hash: Sha256,
    left: u64,
}

impl Write for HashSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        self.hash.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl BodyHasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.raw.update(bytes);
        let unpacked = match &mut self.unpacked {
            BodyDecoder::Gzip(decoder) => decoder.write_all(bytes),
            BodyDecoder::Deflate(decoder) => decoder.write_all(bytes),
            BodyDecoder::Failed(_) => return,
        };
        if let Err(error) = unpacked {
            self.unpacked = BodyDecoder::Failed(error.kind());
        }
    }

    pub(crate) fn finish(self) -> BodyHashes {
        let unpacked = match self.unpacked {
            BodyDecoder::Gzip(decoder) => decoder.finish(),
            BodyDecoder::Deflate(decoder) => decoder.finish(),
            BodyDecoder::Failed(kind) => Err(io::Error::from(kind)),
        };
        let unpacked = unpacked.map(|sink| sink.hash.finalize().into());
        let unpacked = unpacked.map_err(|error| error.kind());
        BodyHashes { raw: self.raw.finalize().into(), unpacked }
    }
}

/// The header `IC-Certificate`, its fields still encoded.
struct CertificateHeader<'a> {
    certificate: &'a str,
    tree: &'a str,
    version: u16,
    expression_path: Option<&'a str>,
}

impl<'a> CertificateHeader<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let field = |name: &str| {
            text.split(',').find_map(|field| {
                let (found, value) = field.trim().split_once('=')?;
                let value = value.strip_prefix(':').unwrap_or(value);
                let value = value.strip_suffix(':').unwrap_or(value);
                (found == name).then_some(value)
            })
        };
        let version = match field("version") {
            Some(version) => version.parse().ok()?,
            None => 1,
        };
        Some(Self {
            certificate: field("certificate")?,
            tree: field("tree")?,
            version,
            expression_path: field("expr_path"),
        })
    }
}

/// The last header of this name, as the published verifier takes it.
fn header<'h>(headers: &'h [HeaderField], name: &str) -> Option<&'h str> {
    let mut found = headers.iter().rev().filter(|(found, _)| found.eq_ignore_ascii_case(name));
    found.next().map(|(_, value)| value.as_str())
}

pub(crate) struct VerificationContext<'a> {
    pub(crate) auth: &'a AuthConfig,
    pub(crate) now: Time,
    pub(crate) canister: &'a Principal,
    pub(crate) request: &'a HttpRequest<'a>,
}

/// Content of a certificate for a response, before its body is read.
#[derive(Debug)]
pub(crate) enum CertifiedContent {
    /// Version 1: the hash of its body.
    First { hash: Vec<u8>, encoding: Option<String> },
    /// Version 2: status and headers, whose hash this is, and the body's hash with it is below this
    /// path of the tree.
    Second { tree: Vec<u8>, below: Vec<Vec<u8>>, headers_hash: Hash, headers: Vec<HeaderField> },
    /// The canister wants nothing of it certified.
    Nothing,
}

/// Looks at the certificate of a response with this head. Takes the time of a signature when the
/// certificate was not seen before, so it is for a thread that may block.
///
/// # Errors
/// Why the response must not be passed on.
pub(crate) fn check_certificate(
    asked: &VerificationContext<'_>,
    response: &HttpResponse<'_>,
    first_version_is_allowed: impl FnOnce() -> bool,
) -> Result<CertifiedContent, VerificationError> {
    let malformed = VerificationError::Malformed(CERTIFICATE_HEADER_NAME);
    let headers = response.headers();
    let text = header(headers, CERTIFICATE_HEADER_NAME).ok_or(VerificationError::NoCertificate)?;
    let fields = CertificateHeader::read(text).ok_or(malformed)?;
    let tree_bytes = BASE64.decode(fields.tree).map_err(|_| malformed)?;
    let encoded = read(&tree_bytes)?;
    let tree = encoded.tree().ok_or(malformed)?;
    let certificate = BASE64.decode(fields.certificate).map_err(|_| malformed)?;
    let certified = asked
        .auth
        .certified_data(&certificate, asked.canister)
        .ok_or(VerificationError::Certificate)?;
    if certified.time.abs_diff(asked.now.0) > AGE_NANOS_MAX {
        return Err(VerificationError::Time);
    }
    if certified.data != tree.digest() {
        return Err(VerificationError::Tree);
    }
    let path = asked.request.get_path().map_err(|_| VerificationError::Url)?;
    match fields.version {
        1 if !first_version_is_allowed() => Err(VerificationError::Downgrade),
        1 => check_version_1(&tree, &path, response),
        2 => {
            let encoded = fields.expression_path.ok_or(malformed)?;
            let encoded = BASE64.decode(encoded).map_err(|_| malformed)?;
            let encoded = read(&encoded)?;
            let expression_path = encoded.texts().ok_or(malformed)?;
            if !path_fits(&expression_path, &path, &tree) {
                return Err(VerificationError::Path);
            }
            let certified = check_version_2(asked.request, response, &tree, &expression_path)?;
            drop(tree);
            Ok(match certified {
                CertifiedContent::Second { below, headers_hash, headers, .. } => {
                    CertifiedContent::Second { tree: tree_bytes, below, headers_hash, headers }
                }
                certified => certified,
            })
        }
        other => Err(VerificationError::Version(other)),
    }
}

fn read(bytes: &[u8]) -> Result<CborItem<'_>, VerificationError> {
    CborItem::read(bytes).map_err(|error| match error {
        CborError::TooDeep { .. } | CborError::TooManyItems { .. } => VerificationError::TooLarge,
        _ => VerificationError::Malformed(CERTIFICATE_HEADER_NAME),
    })
}

/// Version 1: the body's hash is the leaf of the URL's path, or else of `/index.html`.
fn check_version_1(
    tree: &HashTree<&[u8]>,
    path: &str,
    response: &HttpResponse<'_>,
) -> Result<CertifiedContent, VerificationError> {
    if response.status_code().is_redirection() {
        return Err(VerificationError::Redirect);
    }
    let leaf = |path: &str| tree.lookup_path([&b"http_assets"[..], path.as_bytes()]);
    let certified = match leaf(path) {
        LookupResult::Found(hash) => hash,
        // Only what the tree proves not to be there: a leaf can be left out of any tree.
        LookupResult::Absent => match leaf("/index.html") {
            LookupResult::Found(hash) => hash,
            _ => return Err(VerificationError::Body),
        },
        _ => return Err(VerificationError::Body),
    };
    let encoding = header(response.headers(), "content-encoding").map(str::to_owned);
    Ok(CertifiedContent::First { hash: certified.to_vec(), encoding })
}

/// Version 2: its hash, the request's and the response's are below the path of the expression.
fn check_version_2(
    request: &HttpRequest<'_>,
    response: &HttpResponse<'_>,
    tree: &HashTree<&[u8]>,
    expression_path: &[&str],
) -> Result<CertifiedContent, VerificationError> {
    let malformed = VerificationError::Malformed(CERTIFICATE_EXPRESSION_HEADER_NAME);
    let text = header(response.headers(), CERTIFICATE_EXPRESSION_HEADER_NAME).ok_or(malformed)?;
    let expression = expression::read(text).ok_or(malformed)?;
    let mut below: Vec<Vec<u8>> =
        expression_path.iter().map(|label| label.as_bytes().to_vec()).collect();
    below.push(of_bytes(text).to_vec());
    let is_there = |below: &[Vec<u8>]| {
        matches!(
            tree.lookup_subtree(below.iter().map(Vec::as_slice)),
            SubtreeLookupResult::Found(_)
        )
    };
    let Expression::Pair { request: certified_request, response: certified_response } = expression
    else {
        return is_there(&below)
            .then_some(CertifiedContent::Nothing)
            .ok_or(VerificationError::Response);
    };
    below.push(match &certified_request {
        Some(certified) => {
            request_hash(request, certified).map_err(|_| VerificationError::Url)?.to_vec()
        }
        None => Vec::new(),
    });
    if !is_there(&below) {
        return Err(VerificationError::Response);
    }
    let headers = filter_response_headers(response, &certified_response);
    let headers_hash = response_headers_hash(&response.status_code().as_u16().into(), &headers);
    let headers = headers.headers;
    Ok(CertifiedContent::Second { tree: Vec::new(), below, headers_hash, headers })
}

impl CertifiedContent {
    /// Whether the body may be anything.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    pub(crate) fn hasher(&self) -> BodyHasher {
        let sink = || HashSink { hash: Sha256::new(), left: UNPACKED_BYTES_MAX };
        // Version 2 certifies bodies as they are.
        let encoding = match self {
            Self::First { encoding, .. } => encoding.as_deref(),
            Self::Second { .. } | Self::Nothing => None,
        };
        let unpacked = match encoding {
            Some("gzip") => BodyDecoder::Gzip(GzDecoder::new(sink())),
            Some("deflate") => BodyDecoder::Deflate(DeflateDecoder::new(sink())),
            _ => BodyDecoder::Failed(io::ErrorKind::InvalidData),
        };
        BodyHasher { raw: Sha256::new(), unpacked }
    }

    /// Whether that is the response, if its body's hashes are these.
    ///
    /// # Errors
    /// Why it must not be passed on.
    pub(crate) fn verify_body(
        &self,
        body: &BodyHashes,
    ) -> Result<VerifiedScope, VerificationError> {
        match self {
            Self::Nothing => Ok(VerifiedScope::Nothing),
            Self::First { hash, .. } if hash[..] == body.raw => Ok(VerifiedScope::Body),
            Self::First { hash, .. } => match body.unpacked {
                Ok(unpacked) if hash[..] == unpacked => Ok(VerifiedScope::Body),
                Err(io::ErrorKind::FileTooLarge) => Err(VerificationError::Unpacked),
                _ => Err(VerificationError::Body),
            },
            Self::Second { tree, below, headers_hash, headers } => {
                let encoded = read(tree)?;
                let tree = encoded.tree().ok_or(VerificationError::Tree)?;
                let hash = of_bytes([*headers_hash, body.raw].concat());
                let below = below.iter().map(Vec::as_slice).chain([&hash[..]]);
                match tree.lookup_path(below) {
                    LookupResult::Found([]) => Ok(VerifiedScope::Response(headers.clone())),
                    _ => Err(VerificationError::Response),
                }
            }
        }
    }
}

/// Whether a path of an expression is the most specific one that the tree may have for the URL's
/// path, and is there.
fn path_fits(expression_path: &[&str], url_path: &str, tree: &HashTree<&[u8]>) -> bool {
    let [prefix, labels @ .., end] = expression_path else { return false };
    if *prefix != PREFIX {
        return false;
    }
    let mut segments: Vec<&str> = url_path.split('/').filter(|part| !part.is_empty()).collect();
    // A folder is another path than a file of its name.
    let is_folder = url_path.ends_with('/');
    let exact = || {
        let folder = is_folder.then_some("");
        segments.iter().copied().chain(folder).chain(["<$>"])
    };
    match *end {
        "<$>" => {
            let same = exact().eq(labels.iter().copied().chain(["<$>"]));
            return same && is_there(tree, exact());
        }
        "<*>" => {}
        _ => return false,
    }
    if may_be_there(tree, exact()) {
        return false;
    }
    let (labels, in_folder) = match labels {
        [labels @ .., ""] => (labels, true),
        labels => (labels, false),
    };
    if !segments.starts_with(labels) || labels.contains(&"") {
        return false;
    }
    // All wildcards that are more specific, from the whole path up: of the folder before the file
    // of its name.
    let mut folder = is_folder;
    while segments.len() > labels.len() || (segments.len() == labels.len() && folder != in_folder) {
        let candidate = segments.iter().copied().chain(folder.then_some("")).chain(["<*>"]);
        if may_be_there(tree, candidate) {
            return false;
        }
        if !folder {
            segments.pop();
        }
        folder = !folder;
    }
    is_there(tree, expression_path.iter().skip(1).copied())
}

fn look_up<'t, 'l>(
    tree: &HashTree<&'t [u8]>,
    path: impl Iterator<Item = &'l str>,
) -> SubtreeLookupResult<&'t [u8]> {
    tree.lookup_subtree(std::iter::once(PREFIX).chain(path).map(str::as_bytes))
}

fn is_there<'l>(tree: &HashTree<&[u8]>, path: impl Iterator<Item = &'l str>) -> bool {
    matches!(look_up(tree, path), SubtreeLookupResult::Found(_))
}

fn may_be_there<'l>(tree: &HashTree<&[u8]>, path: impl Iterator<Item = &'l str>) -> bool {
    !matches!(look_up(tree, path), SubtreeLookupResult::Absent)
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
