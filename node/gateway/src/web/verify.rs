//! Whether a canister's response is certified: response verification of the HTTP gateway protocol,
//! versions 2 and 1.
//!
//! What a request and a response are hashed to is computed by the published library
//! ([`request_hash`], [`response_headers_hash`]); the certificate is verified as those of canister
//! signatures are ([`AuthConfig::certified_data`]). What lies between is done here, for three
//! reasons. The published verifier wants the whole body, and bodies here come in pieces: so the
//! body is given as its hash ([`BodyHashes`]). It unpacks a compressed body into memory, however
//! large it gets: here it is unpacked into a hash, up to [`UNPACKED_BYTES_MAX`]. And it reads trees
//! and expressions by recursion without a bound, with which a canister could end the node.
//!
//! It knows nothing of connections, of replies, or where a body comes from.

use std::io::{self, Write};

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use envelope::{
    auth::AuthConfig,
    hash::{Hash, of_bytes},
    tree::Encoded,
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

/// Bytes that a compressed body may unpack to, where the hash of those is certified (version 1).
const UNPACKED_BYTES_MAX: u64 = 64 << 20;
/// How old a certificate may be, or how far ahead, in nanoseconds: five minutes.
const AGE_NANOS_MAX: u64 = 300_000_000_000;
/// Where expressions lie in a canister's tree.
const PREFIX: &str = "http_expr";
/// The newest version there is.
pub(crate) const VERSION: u16 = 2;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Why a response is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unverified {
    /// No certificate.
    #[error("it has no header {CERTIFICATE_HEADER_NAME}")]
    NoCertificate,
    /// A header that does not decode.
    #[error("its header {0} is not formed as the HTTP gateway protocol says")]
    Malformed(&'static str),
    /// A version that nobody knows yet.
    #[error("its certification has the version {0}; versions 1 and 2 are verified")]
    Version(u16),
    /// Not signed, or not for this canister.
    #[error("its certificate is not signed by this subnet for this canister")]
    Certificate,
    /// Too old, or from the future.
    #[error("its certificate is more than five minutes away from the node's clock")]
    Time,
    /// The tree is another than the canister certified.
    #[error("its tree is not the one that the canister certified")]
    Tree,
    /// The path of the expression is not the most specific one for the URL.
    #[error("its expression path does not fit the URL")]
    Path,
    /// The hash of the expression, the request or the response is not in the tree.
    #[error("neither it nor a response like it is in the tree that the canister certified")]
    Response,
    /// The body is not the certified one.
    #[error("its body is not the one that the canister certified for this URL")]
    Body,
    /// A redirect in version 1, which certifies neither status nor headers.
    #[error("it is a redirect, which version 1 of the certification cannot certify")]
    Redirect,
    /// Version 1 from a canister that says it has version 2, or does not say publicly.
    #[error(
        "it has version 1 of the certification, and its canister's metadata \
         `supported_certificate_versions` names a newer one, or is private"
    )]
    Downgrade,
    /// The request cannot be hashed.
    #[error("its request cannot be certified: the URL is malformed")]
    Url,
}

/// What was verified.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verified {
    /// The body only.
    Body,
    /// Status, body and these headers.
    Response(Vec<(String, String)>),
    /// That the canister wants nothing of it certified.
    Nothing,
}

/// Hash of a body that comes in pieces, and of what it unpacks to.
pub(crate) struct BodyHasher {
    raw: Sha256,
    unpacked: Unpacked,
}

enum Unpacked {
    Gzip(GzDecoder<HashSink>),
    Deflate(DeflateDecoder<HashSink>),
    /// Not compressed, or not well.
    None,
}

/// The hashes of a whole body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyHashes {
    raw: Hash,
    unpacked: Option<Hash>,
}

struct HashSink {
    hash: Sha256,
    left: u64,
}

impl Write for HashSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self
            .left
            .checked_sub(bytes.len() as u64)
            .ok_or_else(|| io::Error::other("the body unpacks to too much"))?;
        self.hash.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl BodyHasher {
    /// For a body with these headers.
    pub(crate) fn new(headers: &[(String, String)]) -> Self {
        let sink = || HashSink { hash: Sha256::new(), left: UNPACKED_BYTES_MAX };
        // Version 2 certifies bodies as they are.
        let is_first = header(headers, CERTIFICATE_HEADER_NAME)
            .and_then(CertificateHeader::read)
            .is_some_and(|certificate| certificate.version == 1);
        let unpacked = match header(headers, "content-encoding").filter(|_| is_first) {
            Some("gzip") => Unpacked::Gzip(GzDecoder::new(sink())),
            Some("deflate") => Unpacked::Deflate(DeflateDecoder::new(sink())),
            _ => Unpacked::None,
        };
        Self { raw: Sha256::new(), unpacked }
    }

    /// Takes the next piece.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.raw.update(bytes);
        let unpacked = match &mut self.unpacked {
            Unpacked::Gzip(decoder) => decoder.write_all(bytes),
            Unpacked::Deflate(decoder) => decoder.write_all(bytes),
            Unpacked::None => return,
        };
        if unpacked.is_err() {
            self.unpacked = Unpacked::None;
        }
    }

    /// All pieces were there.
    pub(crate) fn finish(self) -> BodyHashes {
        let unpacked = match self.unpacked {
            Unpacked::Gzip(decoder) => decoder.finish().ok(),
            Unpacked::Deflate(decoder) => decoder.finish().ok(),
            Unpacked::None => None,
        };
        BodyHashes {
            raw: self.raw.finalize().into(),
            unpacked: unpacked.map(|sink| sink.hash.finalize().into()),
        }
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
fn header<'h>(headers: &'h [(String, String)], name: &str) -> Option<&'h str> {
    let mut found = headers.iter().rev().filter(|(found, _)| found.eq_ignore_ascii_case(name));
    found.next().map(|(_, value)| value.as_str())
}

/// Whether a response claims that nothing of it is certified. Whether that is certified itself,
/// [`verify`] says.
pub(crate) fn claims_nothing(headers: &[(String, String)]) -> bool {
    header(headers, CERTIFICATE_EXPRESSION_HEADER_NAME).and_then(expression::read)
        == Some(Expression::Nothing)
}

/// Whom a response is verified for.
pub(crate) struct Asked<'a> {
    pub(crate) auth: &'a AuthConfig,
    pub(crate) now: Time,
    pub(crate) canister: &'a Principal,
    pub(crate) request: &'a HttpRequest<'static>,
}

/// Verifies a response; its body counts as these hashes say. Takes the time of a signature when the
/// certificate was not seen before, so it is for a thread that may block.
///
/// # Errors
/// Why the response must not be passed on.
pub(crate) fn verify(
    asked: &Asked<'_>,
    response: &HttpResponse<'_>,
    body: &BodyHashes,
    first_version_is_allowed: impl FnOnce() -> bool,
) -> Result<Verified, Unverified> {
    let malformed = Unverified::Malformed(CERTIFICATE_HEADER_NAME);
    let headers = response.headers();
    let text = header(headers, CERTIFICATE_HEADER_NAME).ok_or(Unverified::NoCertificate)?;
    let fields = CertificateHeader::read(text).ok_or(malformed)?;
    let encoded = BASE64.decode(fields.tree).map_err(|_| malformed)?;
    let encoded = Encoded::read(&encoded).map_err(|_| malformed)?;
    let tree = encoded.tree().ok_or(malformed)?;
    let certificate = BASE64.decode(fields.certificate).map_err(|_| malformed)?;
    let certified =
        asked.auth.certified_data(&certificate, asked.canister).ok_or(Unverified::Certificate)?;
    if certified.time.abs_diff(asked.now.0) > AGE_NANOS_MAX {
        return Err(Unverified::Time);
    }
    if certified.data != tree.digest() {
        return Err(Unverified::Tree);
    }
    let path = asked.request.get_path().map_err(|_| Unverified::Url)?;
    match fields.version {
        1 if !first_version_is_allowed() => Err(Unverified::Downgrade),
        1 => first(&tree, &path, response, body),
        2 => {
            let encoded = fields.expression_path.ok_or(malformed)?;
            let encoded = BASE64.decode(encoded).map_err(|_| malformed)?;
            let encoded = Encoded::read(&encoded).map_err(|_| malformed)?;
            let expression_path = encoded.texts().ok_or(malformed)?;
            if !path_fits(&expression_path, &path, &tree) {
                return Err(Unverified::Path);
            }
            second(asked.request, response, body, &tree, &expression_path)
        }
        other => Err(Unverified::Version(other)),
    }
}

/// Version 1: the body's hash is the leaf of the URL's path, or else of `/index.html`.
fn first(
    tree: &HashTree<&[u8]>,
    path: &str,
    response: &HttpResponse<'_>,
    body: &BodyHashes,
) -> Result<Verified, Unverified> {
    if response.status_code().is_redirection() {
        return Err(Unverified::Redirect);
    }
    let leaf = |path: &str| tree.lookup_path([&b"http_assets"[..], path.as_bytes()]);
    let certified = match leaf(path) {
        LookupResult::Found(hash) => hash,
        // Only what the tree proves not to be there: a leaf can be left out of any tree.
        LookupResult::Absent => match leaf("/index.html") {
            LookupResult::Found(hash) => hash,
            _ => return Err(Unverified::Body),
        },
        _ => return Err(Unverified::Body),
    };
    if certified == body.raw || body.unpacked.is_some_and(|unpacked| certified == unpacked) {
        Ok(Verified::Body)
    } else {
        Err(Unverified::Body)
    }
}

/// Version 2: below the path of the expression lie its hash, the request's and the response's.
fn second(
    request: &HttpRequest<'static>,
    response: &HttpResponse<'_>,
    body: &BodyHashes,
    tree: &HashTree<&[u8]>,
    expression_path: &[&str],
) -> Result<Verified, Unverified> {
    let malformed = Unverified::Malformed(CERTIFICATE_EXPRESSION_HEADER_NAME);
    let text = header(response.headers(), CERTIFICATE_EXPRESSION_HEADER_NAME).ok_or(malformed)?;
    let expression_hash = of_bytes(text);
    let expression = expression::read(text).ok_or(malformed)?;
    let mut below: Vec<&[u8]> = expression_path.iter().map(|label| label.as_bytes()).collect();
    below.push(&expression_hash);
    let Expression::Pair { request: certified_request, response: certified_response } = expression
    else {
        return match tree.lookup_subtree(below) {
            SubtreeLookupResult::Found(_) => Ok(Verified::Nothing),
            _ => Err(Unverified::Response),
        };
    };
    let request_label = match &certified_request {
        Some(certified) => request_hash(request, certified).map_err(|_| Unverified::Url)?.to_vec(),
        None => Vec::new(),
    };
    let headers = filter_response_headers(response, &certified_response);
    let headers_hash = response_headers_hash(&response.status_code().as_u16().into(), &headers);
    let response_hash = of_bytes([headers_hash, body.raw].concat());
    below.extend([&request_label[..], &response_hash]);
    match tree.lookup_path(below) {
        LookupResult::Found([]) => Ok(Verified::Response(headers.headers)),
        _ => Err(Unverified::Response),
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
