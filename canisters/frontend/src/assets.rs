//! The assets, and how each is certified.
//!
//! The certified data is the root of one tree that holds `http_assets` of version 1 and `http_expr`
//! of version 2. The tree is not kept over an upgrade; it is rebuilt.

use ic_certification::{HashTree, fork, labeled, leaf, pruned};
use ic_http_certification::{
    CERTIFICATE_EXPRESSION_HEADER_NAME, CERTIFICATE_HEADER_NAME, DefaultCelBuilder, DefaultResponseCertification,
    DefaultResponseOnlyCelExpression, HttpCertification, HttpCertificationPath, HttpCertificationTree,
    HttpCertificationTreeEntry, HttpResponse, StatusCode,
    utils::{build_v2_certificate_header_value, cbor_encode_to_base64},
};
use sha2::{Digest, Sha256};

/// Bytes of the long assets.
pub const LONG_BYTES: usize = 5_000_000;
/// Bytes of one piece of them.
pub const PIECE_BYTES: usize = 1_500_000;
/// Pieces of them.
pub const PIECES: usize = LONG_BYTES.div_ceil(PIECE_BYTES);

pub type Header = (String, String);

/// How one path is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As it is.
    Whole(&'static [u8]),
    /// Piece by piece, through a callback.
    Streamed,
    /// A range at a time.
    Ranges,
    /// Something else than what is certified.
    Forged,
    /// Certified by version 1.
    First,
    /// Nothing of it is certified, and that is.
    Nothing,
}

/// One path.
#[derive(Clone, Copy)]
pub struct Asset {
    pub path: &'static str,
    pub kind: Kind,
    pub content_type: &'static str,
}

const fn asset(path: &'static str, kind: Kind, content_type: &'static str) -> Asset {
    Asset { path, kind, content_type }
}

/// Everything there is; the last one answers all other paths.
pub const ASSETS: [Asset; 10] = [
    asset("/", Kind::Whole(include_bytes!("index.html")), "text/html; charset=utf-8"),
    asset("/style.css", Kind::Whole(include_bytes!("style.css")), "text/css"),
    asset("/script.js", Kind::Whole(include_bytes!("script.js")), "text/javascript"),
    asset("/streamed", Kind::Streamed, "application/octet-stream"),
    asset("/ranges", Kind::Ranges, "application/octet-stream"),
    asset("/forged", Kind::Forged, "text/plain"),
    asset("/old", Kind::First, "text/plain"),
    asset("/hostile", Kind::Nothing, "text/plain"),
    asset("/counter", Kind::Nothing, "text/plain"),
    asset("", Kind::Whole(b"there is no such page"), "text/plain"),
];

/// The body of [`Kind::First`].
pub const OLD: &[u8] = b"certified by version 1";

/// The asset of a path.
pub fn find(path: &str) -> usize {
    ASSETS.iter().position(|asset| asset.path == path).unwrap_or(ASSETS.len() - 1)
}

/// One piece of the long assets.
pub fn piece(number: usize) -> Vec<u8> {
    let begin = (number * PIECE_BYTES).min(LONG_BYTES);
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8)) as u8;
    (begin..(begin + PIECE_BYTES).min(LONG_BYTES)).map(byte).collect()
}

/// The expression that certifies status, all headers and the body.
fn everything() -> DefaultResponseOnlyCelExpression<'static> {
    DefaultCelBuilder::response_only_certification()
        .with_response_certification(DefaultResponseCertification::response_header_exclusions(vec![]))
        .build()
}

impl Asset {
    pub fn status(&self) -> u16 {
        match (self.path, self.kind) {
            ("", _) => 404,
            (_, Kind::Ranges) => 206,
            _ => 200,
        }
    }

    /// Headers of a response, but for the certificate.
    pub fn headers(&self, number: usize) -> Vec<Header> {
        let header = |name: &str, value: String| (name.to_owned(), value);
        let mut headers = vec![header("content-type", self.content_type.to_owned())];
        if self.kind == Kind::Ranges {
            let begin = number * PIECE_BYTES;
            let end = (begin + PIECE_BYTES).min(LONG_BYTES) - 1;
            headers.push(header("content-range", format!("bytes {begin}-{end}/{LONG_BYTES}")));
            headers.push(header("accept-ranges", "bytes".into()));
        }
        let expression = match self.kind {
            Kind::First => return headers,
            Kind::Nothing => DefaultCelBuilder::skip_certification().to_string(),
            _ => everything().to_string(),
        };
        headers.push(header(CERTIFICATE_EXPRESSION_HEADER_NAME, expression));
        headers
    }

    fn url_path(&self) -> HttpCertificationPath<'static> {
        match self.path {
            "" => HttpCertificationPath::wildcard(""),
            path => HttpCertificationPath::exact(path),
        }
    }

    /// How many responses are certified.
    fn responses(&self) -> usize {
        match self.kind {
            Kind::First => 0,
            Kind::Ranges => PIECES,
            _ => 1,
        }
    }

    fn certification(&self, number: usize) -> HttpCertification {
        let hash = match self.kind {
            Kind::First | Kind::Nothing => return HttpCertification::skip(),
            Kind::Whole(body) => Sha256::digest(body),
            Kind::Ranges => Sha256::digest(piece(number)),
            Kind::Forged => Sha256::digest(b"what was certified"),
            Kind::Streamed => {
                let mut hash = Sha256::new();
                (0..PIECES).for_each(|number| hash.update(piece(number)));
                hash.finalize()
            }
        };
        let status = StatusCode::from_u16(self.status()).expect("a status of HTTP");
        let response = HttpResponse::builder().with_status_code(status).with_headers(self.headers(number)).build();
        HttpCertification::response_only(&everything(), &response, Some(hash.into()))
            .expect("the expression is in the headers")
    }
}

/// All that is certified.
pub struct AssetCertification {
    /// Of version 2, by asset and number.
    certifications: Vec<Vec<HttpCertification>>,
    second: HttpCertificationTree,
    first: HashTree,
}

impl AssetCertification {
    /// Certifies everything.
    pub fn new() -> Self {
        let of = |asset: &Asset| (0..asset.responses()).map(|number| asset.certification(number)).collect();
        let certifications: Vec<Vec<_>> = ASSETS.iter().map(of).collect();
        let mut second = HttpCertificationTree::default();
        for (asset, all) in ASSETS.iter().zip(&certifications) {
            for certification in all {
                second.insert(&HttpCertificationTreeEntry::new(asset.url_path(), *certification));
            }
        }
        let first = labeled("http_assets", labeled("/old", leaf(Sha256::digest(OLD).to_vec())));
        Self { certifications, second, first }
    }

    /// The root hash of the certified tree.
    pub fn root(&self) -> [u8; 32] {
        fork(self.first.clone(), pruned(self.second.root_hash())).digest()
    }

    /// The header that shows that a response is certified.
    pub fn header(&self, asset: usize, number: usize, url: &str) -> Header {
        let certificate = ic_cdk::api::data_certificate().unwrap_or_default();
        let value = match self.certifications[asset].get(number) {
            // Version 1 has neither a version nor a path.
            None => {
                let tree = fork(self.first.clone(), pruned(self.second.root_hash()));
                let second = build_v2_certificate_header_value(&certificate, &tree, "");
                second.split(", ").take(2).collect::<Vec<_>>().join(", ")
            }
            Some(certification) => {
                let path = ASSETS[asset].url_path();
                let encoded = cbor_encode_to_base64(&path.to_expr_path());
                let entry = HttpCertificationTreeEntry::new(path, *certification);
                let witness = self.second.witness(&entry, url).expect("it was certified");
                let tree = fork(pruned(self.first.digest()), witness);
                build_v2_certificate_header_value(&certificate, &tree, &encoded)
            }
        };
        (CERTIFICATE_HEADER_NAME.into(), value)
    }
}
