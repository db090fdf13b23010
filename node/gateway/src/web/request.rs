//! The request to a canister: the request of a browser, and its Candid encoding.
//!
//! The encoding is written here, into one buffer of the right size, because the body is large: a
//! general encoder writes it a value at a time into one buffer that doubles, and copies that.

use bytes::Bytes;
use envelope::candid_wire::label as field;
use http_server::ErrorResponse;
use hyper::{HeaderMap, Method, Uri, header, http::request::Parts};
use ic_http_certification::HttpRequest;

use super::{
    exchange::HttpResult,
    verify::{self, HeaderField},
};

const URL: u32 = field("url");
const METHOD: u32 = field("method");
const BODY: u32 = field("body");
const HEADERS: u32 = field("headers");
const CERTIFICATE_VERSION: u32 = field("certificate_version");

// Candid: codes of types, in one byte each.
const NAT8: u8 = 0x7b;
const NAT16: u8 = 0x7a;
const TEXT: u8 = 0x71;
const OPT: u8 = 0x6e;
const VEC: u8 = 0x6d;
const RECORD: u8 = 0x6c;
/// Types of the encoding in addition to its record.
const BLOB_TYPE: u8 = 1;
const LINES_TYPE: u8 = 2;
const LINE_TYPE: u8 = 3;
const VERSION_TYPE: u8 = 4;
/// More than all lengths and types take, but for those of header lines.
const BESIDE_BYTES: usize = 256;
/// Lengths of a header line.
const LINE_BESIDE_BYTES: usize = 10;

/// A browser's request. Clones share the body.
#[derive(Clone, Debug)]
pub(super) struct BrowserRequest {
    method: Method,
    url: String,
    headers: Vec<HeaderField>,
    pub(super) body: Bytes,
}

impl BrowserRequest {
    pub(super) fn new(head: &Parts, body: Bytes) -> HttpResult<Self> {
        let (url, headers) = (url(&head.uri), lines(&head.headers)?);
        Ok(Self { method: head.method.clone(), url, headers, body })
    }

    /// The request as verification takes it.
    pub(super) fn to_http_request(&self) -> HttpRequest<'_> {
        HttpRequest::builder()
            .with_method(self.method.clone())
            .with_url(self.url.as_str())
            .with_headers(self.headers.clone())
            .with_body(&self.body[..])
            .with_certificate_version(verify::VERSION)
            .build()
    }

    pub(super) fn has_range(&self) -> bool {
        self.headers.iter().any(|(name, _)| name == header::RANGE.as_str())
    }

    /// The same request for the content from byte `first` on.
    pub(super) fn with_range_from(&self, first: u64) -> Self {
        let mut request = self.clone();
        request.headers.push((header::RANGE.to_string(), format!("bytes={first}-")));
        request
    }

    pub(super) fn without_body(&self) -> Self {
        let (method, url) = (self.method.clone(), self.url.clone());
        Self { method, url, headers: self.headers.clone(), body: Bytes::new() }
    }

    /// The argument of `http_request`.
    pub(super) fn argument(&self) -> Vec<u8> {
        self.encode(Some(verify::VERSION))
    }

    /// The argument of `http_request_update`.
    pub(super) fn update_argument(&self) -> Vec<u8> {
        self.encode(None)
    }

    fn encode(&self, version: Option<u16>) -> Vec<u8> {
        let line = |(name, value): &HeaderField| name.len() + value.len() + LINE_BESIDE_BYTES;
        let lines = self.headers.iter().map(line).sum::<usize>();
        let bytes = BESIDE_BYTES + self.url.len() + lines + self.body.len();
        let mut writer = Writer(Vec::with_capacity(bytes));
        let mut fields =
            vec![(URL, TEXT), (METHOD, TEXT), (BODY, BLOB_TYPE), (HEADERS, LINES_TYPE)];
        fields.extend(version.map(|_| (CERTIFICATE_VERSION, VERSION_TYPE)));
        fields.sort_unstable();
        writer.0.extend_from_slice(b"DIDL");
        writer.bytes(&[5, RECORD, fields.len() as u8]);
        for (name, kind) in &fields {
            writer.number(u64::from(*name));
            writer.bytes(&[*kind]);
        }
        writer.bytes(&[VEC, NAT8, VEC, LINE_TYPE, RECORD, 2, 0, TEXT, 1, TEXT, OPT, NAT16]);
        // One value, of the first type.
        writer.bytes(&[1, 0]);
        for (name, _) in fields {
            match name {
                URL => writer.blob(self.url.as_bytes()),
                METHOD => writer.blob(self.method.as_str().as_bytes()),
                BODY => writer.blob(&self.body),
                HEADERS => {
                    writer.number(self.headers.len() as u64);
                    for (name, value) in &self.headers {
                        writer.blob(name.as_bytes());
                        writer.blob(value.as_bytes());
                    }
                }
                _ => {
                    writer.bytes(&[1]);
                    writer.bytes(&version.unwrap_or_default().to_le_bytes());
                }
            }
        }
        writer.0
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(0x80 | (number & 0x7f) as u8);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn blob(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes(bytes);
    }
}

/// Path and query, as in the request line.
fn url(uri: &Uri) -> String {
    uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string)
}

fn lines(headers: &HeaderMap) -> HttpResult<Vec<HeaderField>> {
    headers
        .iter()
        .map(|(name, value)| {
            let value = std::str::from_utf8(value.as_bytes()).map_err(|_| {
                let message = format!("the header {name} is not encoded as UTF-8");
                ErrorResponse::bad_request("header", message)
            })?;
            Ok((name.to_string(), value.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use candid::Decode;
    use hyper::Request;
    use ic_http_certification::HttpUpdateRequest;

    use super::*;

    fn wanted(body: Bytes) -> BrowserRequest {
        let request = Request::post("http://h/a%20b?c=d#e").header("x", "y").header("X", "z");
        let request = request.header("long", "w".repeat(300)).body(()).unwrap();
        BrowserRequest::new(&request.into_parts().0, body).unwrap()
    }

    #[test]
    fn arguments_are_what_the_published_types_say_in_a_buffer_that_does_not_grow() {
        for body in [Bytes::new(), Bytes::from_static(b"abc"), Bytes::from(vec![7; 1 << 20])] {
            let wanted = wanted(body);
            let most = wanted.body.len() + 2_000;
            let argument = wanted.argument();
            assert!(argument.capacity() <= most, "{}", argument.capacity());
            let decoded = Decode!(&argument, HttpRequest<'static>).unwrap();
            assert_eq!(decoded, wanted.to_http_request());
            assert_eq!(decoded.url(), "/a%20b?c=d");
            let argument = wanted.update_argument();
            assert!(argument.capacity() <= most);
            let decoded = Decode!(&argument, HttpUpdateRequest<'static>).unwrap();
            assert_eq!(decoded, HttpUpdateRequest::from(wanted.to_http_request()));
        }
    }

    #[test]
    fn a_range_is_asked_for_beside_the_same() {
        let wanted = wanted(Bytes::from_static(b"abc"));
        assert!(!wanted.has_range());
        let part = wanted.with_range_from(17);
        assert!(part.has_range());
        let decoded = Decode!(&part.argument(), HttpRequest<'static>).unwrap();
        assert_eq!(decoded.headers().last().unwrap(), &("range".into(), "bytes=17-".into()));
    }
}
