//! The header `IC-CertificateExpression`: what of a request and its response is certified.
//!
//! It is one expression of a small grammar (HTTP gateway protocol specification, "The Certificate
//! Expression Header"). It comes from a canister, so it is read by hand within bounds: no value
//! nests deeper than [`DEPTH_MAX`], and everything borrows from the header.

use ic_http_certification::cel::{DefaultRequestCertification, DefaultResponseCertification};

/// Objects within objects: `ValidationArgs`, `Certification`, `ResponseCertification`,
/// `ResponseHeaderList` and its list.
const DEPTH_MAX: usize = 8;

/// Certified parts of a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Expression<'a> {
    /// Nothing: any responder may answer anything.
    Nothing,
    /// The response, and the request where there is a list for it.
    Pair {
        request: Option<DefaultRequestCertification<'a>>,
        response: DefaultResponseCertification<'a>,
    },
}

enum Value<'a> {
    List(Vec<&'a str>),
    Object(&'a str, Vec<(&'a str, Value<'a>)>),
}

impl<'a> Value<'a> {
    fn object(&self, name: &str) -> Option<&[(&'a str, Value<'a>)]> {
        match self {
            Self::Object(found, fields) if *found == name => Some(fields),
            _ => None,
        }
    }

    fn list(&self) -> Option<&[&'a str]> {
        match self {
            Self::List(texts) => Some(texts),
            Self::Object(..) => None,
        }
    }
}

/// The only value of this field. A field that is there twice says nothing.
fn field<'v, 'a>(fields: &'v [(&'a str, Value<'a>)], name: &str) -> Option<&'v Value<'a>> {
    let mut found = fields.iter().filter(|(field, _)| *field == name);
    let first = found.next();
    first.filter(|_| found.next().is_none()).map(|(_, value)| value)
}

/// Reads the header's value; `None` when it is not a valid expression.
pub(crate) fn read(text: &str) -> Option<Expression<'_>> {
    let mut reader = Reader { rest: text };
    if reader.name() != "default_certification" {
        return None;
    }
    reader.expect('(')?;
    let arguments = reader.value(0)?;
    reader.expect(')')?;
    reader.skip_space();
    if !reader.rest.is_empty() {
        return None;
    }
    let arguments = arguments.object("ValidationArgs")?;
    match (field(arguments, "no_certification"), field(arguments, "certification")) {
        (Some(empty), None) => empty.object("Empty").map(|_| Expression::Nothing),
        (None, Some(pair)) => {
            let pair = pair.object("Certification")?;
            Some(Expression::Pair { request: request(pair)?, response: response(pair)? })
        }
        _ => None,
    }
}

fn request<'a>(pair: &[(&'a str, Value<'a>)]) -> Option<Option<DefaultRequestCertification<'a>>> {
    match (field(pair, "no_request_certification"), field(pair, "request_certification")) {
        (Some(empty), None) => empty.object("Empty").map(|_| None),
        (None, Some(request)) => {
            let request = request.object("RequestCertification")?;
            let headers = field(request, "certified_request_headers")?.list()?;
            let parameters = field(request, "certified_query_parameters")?.list()?;
            Some(Some(DefaultRequestCertification::new(headers.to_vec(), parameters.to_vec())))
        }
        _ => None,
    }
}

fn response<'a>(pair: &[(&'a str, Value<'a>)]) -> Option<DefaultResponseCertification<'a>> {
    let response = field(pair, "response_certification")?.object("ResponseCertification")?;
    let listed = |value: &Value<'a>| {
        let list = field(value.object("ResponseHeaderList")?, "headers")?.list()?;
        Some(list.to_vec())
    };
    let included = field(response, "certified_response_headers");
    match (included, field(response, "response_header_exclusions")) {
        (Some(included), None) => {
            Some(DefaultResponseCertification::certified_response_headers(listed(included)?))
        }
        (None, Some(excluded)) => {
            Some(DefaultResponseCertification::response_header_exclusions(listed(excluded)?))
        }
        _ => None,
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
    }

    /// Whether the next sign is this one, which is then read.
    fn takes(&mut self, sign: char) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(sign) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, sign: char) -> Option<()> {
        self.takes(sign).then_some(())
    }

    /// Letters, digits and underscores; may be none.
    fn name(&mut self) -> &'a str {
        self.skip_space();
        let is_of_name = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
        let end = self.rest.find(|sign| !is_of_name(sign)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        name
    }

    fn text(&mut self) -> Option<&'a str> {
        self.expect('"')?;
        let (text, rest) = self.rest.split_once('"')?;
        self.rest = rest;
        (!text.contains(['\\', '\0', '\n'])).then_some(text)
    }

    fn value(&mut self, depth: usize) -> Option<Value<'a>> {
        if depth > DEPTH_MAX {
            return None;
        }
        if self.takes('[') {
            return self.list();
        }
        let name = self.name();
        self.expect('{')?;
        let mut fields = Vec::new();
        while !self.takes('}') {
            if !fields.is_empty() {
                self.expect(',')?;
            }
            let field = self.name();
            self.expect(':')?;
            fields.push((field, self.value(depth + 1)?));
        }
        Some(Value::Object(name, fields))
    }

    fn list(&mut self) -> Option<Value<'a>> {
        let mut texts = Vec::new();
        while !self.takes(']') {
            if !texts.is_empty() {
                self.expect(',')?;
            }
            texts.push(self.text()?);
        }
        Some(Value::List(texts))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ic_http_certification::DefaultCelBuilder;

    use super::*;

    #[test]
    fn what_the_published_library_writes_is_read() {
        let skip = DefaultCelBuilder::skip_certification().to_string();
        assert_eq!(read(&skip), Some(Expression::Nothing));
        let included = || {
            DefaultResponseCertification::certified_response_headers(vec!["etag", "x-content-type"])
        };
        let response = DefaultCelBuilder::response_only_certification()
            .with_response_certification(included())
            .build()
            .to_string();
        let expected = Expression::Pair { request: None, response: included() };
        assert_eq!(read(&response), Some(expected));
        let excluded = || DefaultResponseCertification::response_header_exclusions(vec!["date"]);
        let full = DefaultCelBuilder::full_certification()
            .with_request_headers(vec!["host"])
            .with_request_query_parameters(vec!["a", "b"])
            .with_response_certification(excluded())
            .build()
            .to_string();
        let request = Some(DefaultRequestCertification::new(vec!["host"], vec!["a", "b"]));
        let expected = Expression::Pair { request, response: excluded() };
        assert_eq!(read(&full), Some(expected));
        let spaced = full.replace('{', " {\n ").replace(':', " : ");
        assert_eq!(read(&spaced), read(&full));
    }

    #[test]
    fn what_is_no_such_expression_is_refused() {
        let good = "default_certification(ValidationArgs{no_certification:Empty{}})";
        assert!(read(good).is_some());
        for end in 0..good.len() {
            assert!(read(&good[..end]).is_none(), "{end}");
        }
        let nested = |opening: &str| opening.repeat(100_000);
        for bad in [
            String::new(),
            good.replace("default", "other"),
            good.replace("Empty", "Full"),
            format!("{good} more"),
            good.replace("no_c", "c"),
            good.replace("Empty{}", "Empty{},no_certification:Empty{}"),
            nested("["),
            format!("default_certification({}", nested("A{a:")),
            format!("default_certification({}", nested("[")),
            "default_certification(ValidationArgs{certification:Certification{}})".into(),
        ] {
            assert!(read(&bad).is_none(), "{:.80}", bad);
        }
    }
}
