//! Verification of responses that the published library for canisters certified.

#![allow(clippy::unwrap_used)]

use std::{io::Write as _, time::Duration};

use ic_certification::{fork, labeled, leaf, pruned};
use ic_http_certification::{
    DefaultCelBuilder, DefaultResponseCertification, HttpCertification, HttpCertificationPath,
    HttpCertificationTree, HttpCertificationTreeEntry, Method, StatusCode,
    utils::{build_v2_certificate_header_value, cbor_encode_to_base64},
};

use super::*;

#[path = "../../../envelope/tests/it/signing.rs"]
mod signing;

use signing::{SubnetKey, Tree, canister, leb128, now};

const BODY: &[u8] = b"the body of an asset";

struct World {
    key: SubnetKey,
    auth: AuthConfig,
}

impl World {
    fn new() -> Self {
        let key = SubnetKey::new(7);
        let window = Duration::from_secs(300);
        let auth = AuthConfig::new(key.public(), window, window);
        Self { key, auth }
    }

    /// A certificate of canister 1 with this certified data.
    fn certificate(&self, data: [u8; 32], time: u64) -> Vec<u8> {
        let mut tree = Tree::default();
        tree.set(&[b"canister", canister(1).as_slice(), b"certified_data"], data);
        tree.set(&[b"time"], leb128(time));
        self.key.certificate(&tree, None)
    }

    fn verdict(
        &self,
        request: &HttpRequest<'static>,
        response: &HttpResponse<'static>,
    ) -> Result<VerifiedScope, VerificationError> {
        let asked =
            VerificationContext { auth: &self.auth, now: now(), canister: &canister(1), request };
        let certified = check_certificate(&asked, response, || true)?;
        let mut hasher = certified.hasher();
        response.body().chunks(7).for_each(|piece| hasher.update(piece));
        certified.verify_body(&hasher.finish())
    }
}

fn get(url: &str) -> HttpRequest<'static> {
    HttpRequest::get(url.to_owned())
        .with_headers(vec![("host".into(), "h".into()), ("accept".into(), "a".into())])
        .build()
}

/// Certified responses of a canister: by version 2 these, in addition to version 1.
struct Site {
    tree: HttpCertificationTree,
    entries: Vec<(HttpCertificationPath<'static>, HttpCertification)>,
}

impl Site {
    fn new() -> Self {
        Self { tree: HttpCertificationTree::default(), entries: Vec::new() }
    }

    fn with(mut self, path: HttpCertificationPath<'static>, what: HttpCertification) -> Self {
        self.tree.insert(&HttpCertificationTreeEntry::new(path.clone(), what));
        self.entries.push((path, what));
        self
    }

    /// A response that shows the entry of this number for this URL.
    fn certified(
        &self,
        world: &World,
        number: usize,
        url: &str,
        response: &HttpResponse<'static>,
    ) -> HttpResponse<'static> {
        let (path, what) = self.entries[number].clone();
        let encoded = cbor_encode_to_base64(&path.to_expr_path());
        let entry = HttpCertificationTreeEntry::new(path, what);
        let old = labeled("http_assets", labeled("/", leaf([1; 32])));
        let tree = fork(pruned(old.digest()), self.tree.witness(&entry, url).unwrap());
        let certificate = world.certificate(tree.digest(), now().0);
        let value = build_v2_certificate_header_value(&certificate, &tree, &encoded);
        let mut response = response.clone();
        response.add_header((CERTIFICATE_HEADER_NAME.to_owned(), value));
        response
    }
}

fn expression() -> ic_http_certification::DefaultResponseOnlyCelExpression<'static> {
    DefaultCelBuilder::response_only_certification()
        .with_response_certification(DefaultResponseCertification::certified_response_headers(
            vec!["Etag", "Content-Type"],
        ))
        .build()
}

fn page(expression: String) -> HttpResponse<'static> {
    HttpResponse::builder()
        .with_status_code(StatusCode::OK)
        .with_headers(vec![
            ("content-type".into(), "text/html".into()),
            ("Etag".into(), "\"1\"".into()),
            ("x-more".into(), "uncertified".into()),
            (CERTIFICATE_EXPRESSION_HEADER_NAME.into(), expression),
        ])
        .with_body(BODY)
        .build()
}

fn response_only() -> (HttpResponse<'static>, HttpCertification) {
    let page = page(expression().to_string());
    let what = HttpCertification::response_only(&expression(), &page, None).unwrap();
    (page, what)
}

fn changed(
    response: &HttpResponse<'static>,
    change: impl Fn(&str, &str) -> String,
) -> HttpResponse<'static> {
    let headers =
        response.headers().iter().map(|(name, value)| (name.clone(), change(name, value)));
    HttpResponse::builder()
        .with_status_code(response.status_code())
        .with_headers(headers.collect())
        .with_body(response.body().to_vec())
        .build()
}

// Promise: P11 - A response equals its certificate or is refused.
#[test]
fn a_response_is_what_was_certified_or_refused() {
    let world = World::new();
    let (page, what) = response_only();
    let site = Site::new().with(HttpCertificationPath::exact("/a/b"), what);
    let good = site.certified(&world, 0, "/a/b", &page);
    let Ok(VerifiedScope::Response(headers)) = world.verdict(&get("/a/b?c=d"), &good) else {
        panic!("it is certified")
    };
    assert!(headers.iter().all(|(name, _)| name != "x-more"), "{headers:?}");
    assert_eq!(headers.len(), 3);
    // Other URLs, another status, other headers, another body.
    for url in ["/a", "/a/b/", "/a/b/c", "/", "/b"] {
        assert_eq!(world.verdict(&get(url), &good), Err(VerificationError::Path), "{url}");
    }
    assert!(world.verdict(&get("/%61//b"), &good).is_ok());
    let edited = changed(&good, |name, value| match name {
        "Etag" => "\"2\"".into(),
        _ => value.to_owned(),
    });
    assert_eq!(world.verdict(&get("/a/b"), &edited), Err(VerificationError::Response));
    let other_status = HttpResponse::builder()
        .with_status_code(StatusCode::MOVED_PERMANENTLY)
        .with_headers(good.headers().to_vec())
        .with_body(BODY)
        .build();
    assert_eq!(world.verdict(&get("/a/b"), &other_status), Err(VerificationError::Response));
    let other_body = HttpResponse::builder()
        .with_status_code(StatusCode::OK)
        .with_headers(good.headers().to_vec())
        .with_body(&b"another"[..])
        .build();
    assert_eq!(world.verdict(&get("/a/b"), &other_body), Err(VerificationError::Response));
    let uncertified = changed(&good, |name, value| match name {
        "x-more" => "else".into(),
        _ => value.to_owned(),
    });
    assert!(world.verdict(&get("/a/b"), &uncertified).is_ok());
}

#[test]
fn requests_are_certified_where_the_expression_says_so() {
    let world = World::new();
    let expression = DefaultCelBuilder::full_certification()
        .with_request_headers(vec!["accept"])
        .with_request_query_parameters(vec!["q"])
        .with_response_certification(DefaultResponseCertification::response_header_exclusions(
            vec!["x-more"],
        ))
        .build();
    let page = page(expression.to_string());
    let what = HttpCertification::full(&expression, &get("/f?q=1"), &page, None).unwrap();
    let site = Site::new().with(HttpCertificationPath::exact("/f"), what);
    let good = site.certified(&world, 0, "/f", &page);
    assert!(world.verdict(&get("/f?q=1&other=2"), &good).is_ok());
    assert_eq!(world.verdict(&get("/f?q=2"), &good), Err(VerificationError::Response));
    let mut posted = get("/f?q=1");
    posted = HttpRequest::builder()
        .with_method(Method::POST)
        .with_url(posted.url())
        .with_headers(posted.headers().to_vec())
        .build();
    assert_eq!(world.verdict(&posted, &good), Err(VerificationError::Response));
}

#[test]
fn wildcards_answer_what_nothing_more_specific_answers() {
    let world = World::new();
    let (page, what) = response_only();
    let site = Site::new()
        .with(HttpCertificationPath::wildcard(""), what)
        .with(HttpCertificationPath::wildcard("/app"), what)
        .with(HttpCertificationPath::exact("/app/exact"), what)
        .with(HttpCertificationPath::wildcard("/app/deep/"), what);
    for (number, url, fits) in [
        (0, "/x", true),
        (0, "/x/y/z/", true),
        (0, "/", true),
        (0, "/app/x", false),
        (0, "/app", false),
        (1, "/app", true),
        (1, "/app/", true),
        (1, "/app/x/y", true),
        (1, "/app/exact", false),
        (1, "/app/exact/", true),
        (1, "/app/deep/x", false),
        (1, "/other", false),
        (2, "/app/exact", true),
        (3, "/app/deep/x", true),
        (3, "/app/deep/", true),
    ] {
        let response = site.certified(&world, number, url, &page);
        let verdict = world.verdict(&get(url), &response);
        assert_eq!(verdict.is_ok(), fits, "{number} {url} {verdict:?}");
    }
    let long = format!("/x{}", "/y".repeat(2_000));
    let response = site.certified(&world, 0, "/x/y", &page);
    assert!(world.verdict(&get(&long), &response).is_ok());
}

#[test]
fn a_canister_may_certify_that_nothing_is() {
    let world = World::new();
    let page = page(DefaultCelBuilder::skip_certification().to_string());
    let site =
        Site::new().with(HttpCertificationPath::wildcard("/free"), HttpCertification::skip());
    let good = site.certified(&world, 0, "/free/x", &page);
    assert_eq!(world.verdict(&get("/free/x"), &good), Ok(VerifiedScope::Nothing));
    // The claim alone is worth nothing.
    let (_, what) = response_only();
    let site = Site::new().with(HttpCertificationPath::wildcard("/free"), what);
    let bad = site.certified(&world, 0, "/free/x", &page);
    assert_eq!(world.verdict(&get("/free/x"), &bad), Err(VerificationError::Response));
}

/// A response of version 1 to `/asset`, with this hash at this path.
fn first_version(
    world: &World,
    path: &str,
    hash: Hash,
    encoding: Option<&str>,
    body: Vec<u8>,
) -> HttpResponse<'static> {
    let tree = labeled("http_assets", labeled(path, leaf(hash)));
    let certificate = world.certificate(tree.digest(), now().0);
    let value = build_v2_certificate_header_value(&certificate, &tree, "");
    let value = value.split(", ").take(2).collect::<Vec<_>>().join(", ");
    let mut headers = vec![(CERTIFICATE_HEADER_NAME.to_owned(), value)];
    headers.extend(encoding.map(|encoding| ("Content-Encoding".to_owned(), encoding.to_owned())));
    HttpResponse::builder()
        .with_status_code(StatusCode::OK)
        .with_headers(headers)
        .with_body(body)
        .build()
}

#[test]
fn version_1_certifies_the_body_packed_or_unpacked() {
    let world = World::new();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(BODY).unwrap();
    let gzip = gzip.finish().unwrap();
    let mut deflate = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    deflate.write_all(BODY).unwrap();
    let deflate = deflate.finish().unwrap();
    let (raw, packed) = (of_bytes(BODY), of_bytes(&gzip));
    for (path, hash, encoding, body, fits) in [
        ("/asset", raw, None, BODY.to_vec(), true),
        ("/index.html", raw, None, BODY.to_vec(), true),
        ("/other", raw, None, BODY.to_vec(), false),
        ("/asset", raw, Some("gzip"), gzip.clone(), true),
        ("/asset", packed, Some("gzip"), gzip.clone(), true),
        ("/asset", raw, Some("deflate"), deflate, true),
        // Not what the header says, and certified as it is.
        ("/asset", packed, Some("deflate"), gzip.clone(), true),
        ("/asset", raw, None, gzip, false),
    ] {
        let response = first_version(&world, path, hash, encoding, body);
        let verdict = world.verdict(&get("/asset"), &response);
        let expected = if fits { Ok(VerifiedScope::Body) } else { Err(VerificationError::Body) };
        assert_eq!(verdict, expected, "{path} {encoding:?}");
    }
    let good = first_version(&world, "/asset", raw, None, BODY.to_vec());
    let redirect = HttpResponse::builder()
        .with_status_code(StatusCode::FOUND)
        .with_headers(good.headers().to_vec())
        .with_body(BODY)
        .build();
    assert_eq!(world.verdict(&get("/asset"), &redirect), Err(VerificationError::Redirect));
    let request = get("/asset");
    let asked = VerificationContext {
        auth: &world.auth,
        now: now(),
        canister: &canister(1),
        request: &request,
    };
    assert_eq!(
        check_certificate(&asked, &good, || false).err(),
        Some(VerificationError::Downgrade)
    );
}

// Promise: P11 - A compressed body that expands beyond its limit is not hashed.
#[test]
fn a_body_that_unpacks_to_too_much_has_no_second_hash() {
    let world = World::new();
    let zeros = vec![0; 1 << 20];
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let mut hash = Sha256::new();
    for _ in 0..=UNPACKED_BYTES_MAX >> 20 {
        gzip.write_all(&zeros).unwrap();
        hash.update(&zeros);
    }
    let body = gzip.finish().unwrap();
    assert!(body.len() < 1 << 20);
    let response = first_version(&world, "/asset", hash.finalize().into(), Some("gzip"), body);
    assert_eq!(world.verdict(&get("/asset"), &response), Err(VerificationError::Unpacked));
    assert!(VerificationError::Unpacked.to_string().contains("67108864 bytes"));
}

#[test]
fn certificates_of_others_old_ones_and_none_are_refused() {
    let world = World::new();
    let (page, what) = response_only();
    let site = Site::new().with(HttpCertificationPath::exact("/"), what);
    let good = site.certified(&world, 0, "/", &page);
    assert!(world.verdict(&get("/"), &good).is_ok());
    assert_eq!(world.verdict(&get("/"), &page), Err(VerificationError::NoCertificate));
    let stranger = World { key: SubnetKey::new(8), ..World::new() };
    let forged = site.certified(&stranger, 0, "/", &page);
    assert_eq!(world.verdict(&get("/"), &forged), Err(VerificationError::Certificate));
    let entry = HttpCertificationTreeEntry::new(HttpCertificationPath::exact("/"), what);
    let tree = site.tree.witness(&entry, "/").unwrap();
    let path = cbor_encode_to_base64(&HttpCertificationPath::exact("/").to_expr_path());
    // Time advances meanwhile.
    let minute = 60_000_000_000;
    for (data, time, expected) in [
        (tree.digest(), now().0 - AGE_NANOS_MAX + minute, None),
        (tree.digest(), now().0 - AGE_NANOS_MAX - minute, Some(VerificationError::Time)),
        (tree.digest(), now().0 + AGE_NANOS_MAX + minute, Some(VerificationError::Time)),
        ([9; 32], now().0, Some(VerificationError::Tree)),
    ] {
        let certificate = world.certificate(data, time);
        let value = build_v2_certificate_header_value(&certificate, &tree, &path);
        let mut response = page.clone();
        response.add_header((CERTIFICATE_HEADER_NAME.to_owned(), value));
        assert_eq!(world.verdict(&get("/"), &response).err(), expected);
    }
}

#[test]
fn headers_that_are_malformed_are_refused() {
    let world = World::new();
    let (page, what) = response_only();
    let site = Site::new().with(HttpCertificationPath::exact("/"), what);
    let good = site.certified(&world, 0, "/", &page);
    let edits: [fn(&str) -> String; 8] = [
        |value| value.replace("version=2", "version=3"),
        |value| value.replace("version=2", "version=x"),
        |value| value.replace("version=2", "version=1"),
        |value| value.replace("tree=", "wood="),
        |value| value.replace("expr_path=:", "expr_path=:!"),
        |value| value.replace("certificate=:2dn3", "certificate=:AAAA"),
        |value| value.replace("tree=:2dn3", "tree=:AAAA"),
        |_| String::new(),
    ];
    for edit in edits {
        let bad = changed(&good, |name, value| match name {
            CERTIFICATE_HEADER_NAME => edit(value),
            _ => value.to_owned(),
        });
        assert!(world.verdict(&get("/"), &bad).is_err());
    }
}

// Promise: P11 - Nested trees and expressions are refused at a bounded depth.
#[test]
fn depth_without_end_costs_nothing() {
    let world = World::new();
    let deep = BASE64.encode([0x83, 2, 0x40].repeat(8_000));
    let header = format!("certificate=:{deep}:, tree=:{deep}:, expr_path=:{deep}:, version=2");
    let mut response = page("[".repeat(30_000));
    response.add_header((CERTIFICATE_HEADER_NAME.to_owned(), header));
    assert_eq!(world.verdict(&get("/"), &response), Err(VerificationError::TooLarge));
    let text = VerificationError::TooLarge.to_string();
    assert!(text.contains("128 levels") && text.contains("4096 items"), "{text}");
}

// Promise: P11 - A body without a valid certificate is not hashed, expanded or streamed.
#[test]
fn what_no_certificate_stands_for_is_refused_before_its_body_is_looked_at() {
    let world = World::new();
    let (page, what) = response_only();
    let site = Site::new().with(HttpCertificationPath::exact("/a"), what);
    let good = site.certified(&world, 0, "/a", &page);
    let look = |url: &str, response: &HttpResponse<'static>| {
        let request = get(url);
        let asked = VerificationContext {
            auth: &world.auth,
            now: now(),
            canister: &canister(1),
            request: &request,
        };
        check_certificate(&asked, response, || true).err()
    };
    assert_eq!(look("/a", &good), None);
    assert_eq!(look("/b", &good), Some(VerificationError::Path));
    assert_eq!(look("/a", &page), Some(VerificationError::NoCertificate));
    // An expression that the tree does not have, and a request that it does not have.
    let other = DefaultCelBuilder::full_certification().build().to_string();
    let swapped = changed(&good, |name, value| match name {
        CERTIFICATE_EXPRESSION_HEADER_NAME => other.clone(),
        _ => value.to_owned(),
    });
    assert_eq!(look("/a", &swapped), Some(VerificationError::Response));
    let stranger = World { key: SubnetKey::new(8), ..World::new() };
    let forged = site.certified(&stranger, 0, "/a", &page);
    assert_eq!(look("/a", &forged), Some(VerificationError::Certificate));
    let unknown = first_version(&world, "/elsewhere", [1; 32], Some("gzip"), Vec::new());
    assert_eq!(look("/asset", &unknown), Some(VerificationError::Body));
}
