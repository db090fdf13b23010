//! A canister's answer: `HttpResponse` and `StreamingCallbackHttpResponse` of the HTTP gateway
//! protocol, read from their Candid encoding in place.
//!
//! A reply comes from a canister, may have megabytes, and the type of a streaming token is the
//! canister's own. A general decoder would turn everything into values, at a multiple of the
//! reply's size. This one makes values of the few known fields, keeps the position of the body, and
//! skips the rest. A token is kept as the received bytes, which are sent back with the received
//! types. Types, fields, nesting and steps are bounded ([`TYPES_MAX`] and the others).

use std::ops::Range;

use envelope::candid_wire::{
    self, Refusal,
    kinds::{
        BOOL, EMPTY, FUNC, INT, NAT, NAT8, NAT16, NULL, OPT, PRINCIPAL, RECORD, RESERVED, SERVICE,
        TEXT, VARIANT, VEC, fixed_bytes,
    },
    label as field,
};
use ic_principal::Principal;
use thiserror::Error;

/// Types of one message.
const TYPES_MAX: usize = 512;
/// Fields of all its types together.
const FIELDS_MAX: usize = 4_096;
/// Values within values.
const DEPTH_MAX: usize = 64;
/// Values that are read or stepped over, but for those of one size.
const STEPS_MAX: usize = 200_000;
/// Type table and value of a streaming token.
const TOKEN_BYTES_MAX: usize = 64 << 10;
/// A method's name, as in any module.
const METHOD_BYTES_MAX: usize = 20_000;

/// Why a reply is invalid. Sent to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum BadReply {
    #[error("it is no Candid message")]
    Malformed,
    #[error(
        "it has more than {TYPES_MAX} types, {FIELDS_MAX} fields, {STEPS_MAX} values or {DEPTH_MAX} \
         levels, or a method's name of more than {METHOD_BYTES_MAX} bytes"
    )]
    TooComplex,
    #[error("its field `{0}` is missing or of another type than the HTTP gateway protocol says")]
    Field(&'static str),
    #[error("it has more header lines than the limit http_gateway.response_headers = {0}")]
    Headers(u64),
    #[error(
        "its headers are longer than the limit http_gateway.response_header_bytes = {0} allows"
    )]
    HeaderBytes(u64),
    #[error("its streaming token and the types of it have more than {TOKEN_BYTES_MAX} bytes")]
    Token,
}

impl From<Refusal> for BadReply {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TooMany { .. } => Self::TooComplex,
            _ => Self::Malformed,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderBounds {
    pub(crate) lines: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HttpReply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    /// Position of the body in the reply.
    pub(crate) body: Range<usize>,
    pub(crate) upgrade: bool,
    pub(crate) streaming: Option<Streaming>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Streaming {
    pub(crate) canister: Principal,
    pub(crate) method: String,
    pub(crate) token: Token,
}

/// A token, as the argument that goes back to the canister.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) Vec<u8>);

/// `StreamingCallbackHttpResponse`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Position of the body in the reply.
    pub(crate) body: Range<usize>,
    pub(crate) token: Option<Token>,
}

const STATUS_CODE: u32 = field("status_code");
const HEADERS: u32 = field("headers");
const BODY: u32 = field("body");
const UPGRADE: u32 = field("upgrade");
const STREAMING_STRATEGY: u32 = field("streaming_strategy");
const CALLBACK_VARIANT: u32 = field("Callback");
const CALLBACK: u32 = field("callback");
const TOKEN: u32 = field("token");

#[derive(Clone, Copy)]
enum Type {
    Opt(i64),
    Vec(i64),
    Record(Fields),
    Variant(Fields),
    Func,
    Service,
    /// Of a later version of Candid.
    Future,
}

/// Position of the fields of a type among those of all types.
#[derive(Clone, Copy)]
struct Fields {
    begin: usize,
    count: usize,
}

/// Reads what `http_request` and `http_request_update` return.
pub(crate) fn http(bytes: &[u8], bounds: HeaderBounds) -> Result<HttpReply, BadReply> {
    let mut reader = Reader::new(bytes)?;
    let (mut status, mut headers, mut body) = (None, None, None);
    let (mut upgrade, mut streaming) = (false, None);
    let fields = reader.record()?;
    for number in 0..fields.count {
        let (name, kind) = reader.field(fields, number)?;
        match name {
            STATUS_CODE if kind == NAT16 => {
                let bytes = reader.message.take(2)?;
                status = bytes.first_chunk().map(|bytes| u16::from_le_bytes(*bytes));
            }
            HEADERS => headers = Some(reader.headers(kind, bounds)?),
            BODY => body = Some(reader.blob(kind, "body")?),
            UPGRADE => upgrade = reader.upgrade(kind)?,
            STREAMING_STRATEGY => streaming = reader.streaming(kind)?,
            _ => reader.skip(kind, 0)?,
        }
    }
    Ok(HttpReply {
        status: status.ok_or(BadReply::Field("status_code"))?,
        headers: headers.ok_or(BadReply::Field("headers"))?,
        body: body.ok_or(BadReply::Field("body"))?,
        upgrade,
        streaming,
    })
}

/// Reads what a streaming callback returns.
pub(crate) fn chunk(bytes: &[u8]) -> Result<Chunk, BadReply> {
    let mut reader = Reader::new(bytes)?;
    let (mut body, mut token) = (None, None);
    let fields = reader.record()?;
    for number in 0..fields.count {
        let (name, kind) = reader.field(fields, number)?;
        match name {
            BODY => body = Some(reader.blob(kind, "body")?),
            TOKEN => {
                if let Some(kind) = reader.present(kind)? {
                    token = Some(reader.token(kind)?);
                }
            }
            _ => reader.skip(kind, 0)?,
        }
    }
    Ok(Chunk { body: body.ok_or(BadReply::Field("body"))?, token })
}

struct Reader<'a> {
    message: candid_wire::Reader<'a>,
    types: Vec<Type>,
    fields: Vec<(u32, i64)>,
    /// Position of the type table.
    table: Range<usize>,
    steps: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, BadReply> {
        let message = candid_wire::Reader { bytes, at: 0 };
        let (types, fields) = (Vec::new(), Vec::new());
        let mut reader = Self { message, types, fields, table: 0..0, steps: 0 };
        if reader.message.take(4)? != b"DIDL" {
            return Err(BadReply::Malformed);
        }
        let begin = reader.message.at;
        let count = reader.count(TYPES_MAX)?;
        for _ in 0..count {
            let kind = reader.kind()?;
            reader.types.push(kind);
        }
        reader.table = begin..reader.message.at;
        Ok(reader)
    }

    fn kind(&mut self) -> Result<Type, BadReply> {
        Ok(match self.message.signed()? {
            OPT => Type::Opt(self.message.signed()?),
            VEC => Type::Vec(self.message.signed()?),
            RECORD => Type::Record(self.fields()?),
            VARIANT => Type::Variant(self.fields()?),
            FUNC => {
                // Arguments, results and annotations, which are single bytes.
                for _ in 0..2 {
                    for _ in 0..self.count(FIELDS_MAX)? {
                        self.message.signed()?;
                    }
                }
                let annotations = self.count(FIELDS_MAX)?;
                self.message.take(annotations as u64)?;
                Type::Func
            }
            SERVICE => {
                for _ in 0..self.count(FIELDS_MAX)? {
                    let name = self.count(METHOD_BYTES_MAX)?;
                    self.message.take(name as u64)?;
                    self.message.signed()?;
                }
                Type::Service
            }
            future if future < PRINCIPAL => {
                self.bytes()?;
                Type::Future
            }
            _ => return Err(BadReply::Malformed),
        })
    }

    fn fields(&mut self) -> Result<Fields, BadReply> {
        let count = self.count(FIELDS_MAX)?;
        let begin = self.fields.len();
        if begin + count > FIELDS_MAX {
            return Err(BadReply::TooComplex);
        }
        for _ in 0..count {
            let name = u32::try_from(self.message.unsigned()?).map_err(|_| BadReply::Malformed)?;
            let kind = self.message.signed()?;
            self.fields.push((name, kind));
        }
        Ok(Fields { begin, count })
    }

    fn field(&self, of: Fields, number: usize) -> Result<(u32, i64), BadReply> {
        if number >= of.count {
            return Err(BadReply::Malformed);
        }
        self.fields.get(of.begin + number).copied().ok_or(BadReply::Malformed)
    }

    /// The fields of the first value of the message, which must be a record; further values are
    /// ignored.
    fn record(&mut self) -> Result<Fields, BadReply> {
        let values = self.count(FIELDS_MAX)?;
        let mut first = None;
        for _ in 0..values {
            let kind = self.message.signed()?;
            first = first.or(Some(kind));
        }
        match self.type_of(first.ok_or(BadReply::Malformed)?) {
            Some(Type::Record(fields)) => Ok(fields),
            _ => Err(BadReply::Malformed),
        }
    }

    fn type_of(&self, kind: i64) -> Option<Type> {
        self.types.get(usize::try_from(kind).ok()?).copied()
    }

    /// A number of things that come, each of a byte or more but for values without any.
    fn count(&mut self, most: usize) -> Result<usize, BadReply> {
        Ok(self.message.count(most, "")?)
    }

    /// Bytes with their length before them.
    fn bytes(&mut self) -> Result<&'a [u8], BadReply> {
        let length = self.message.unsigned()?;
        Ok(self.message.take(length)?)
    }

    fn blob(&mut self, kind: i64, name: &'static str) -> Result<Range<usize>, BadReply> {
        if !matches!(self.type_of(kind), Some(Type::Vec(NAT8))) {
            return Err(BadReply::Field(name));
        }
        let length = self.bytes()?.len();
        Ok(self.message.at - length..self.message.at)
    }

    fn text(&mut self, most: usize) -> Result<&'a str, BadReply> {
        let length = self.count(most)?;
        std::str::from_utf8(self.message.take(length as u64)?).map_err(|_| BadReply::Malformed)
    }

    fn headers(
        &mut self,
        kind: i64,
        bounds: HeaderBounds,
    ) -> Result<Vec<(String, String)>, BadReply> {
        let wrong = BadReply::Field("headers");
        let Some(Type::Vec(line)) = self.type_of(kind) else { return Err(wrong) };
        let count = self.message.unsigned()?;
        if count > bounds.lines {
            return Err(BadReply::Headers(bounds.lines));
        }
        let Some(Type::Record(fields)) = self.type_of(line) else {
            // An empty list may have any type of lines.
            return if count == 0 { Ok(Vec::new()) } else { Err(wrong) };
        };
        let mut bytes = 0;
        let mut lines = Vec::new();
        for _ in 0..count {
            let (mut name, mut value) = (None, None);
            for number in 0..fields.count {
                match self.field(fields, number)? {
                    (0, TEXT) => name = Some(self.text(self.message.bytes.len())?),
                    (1, TEXT) => value = Some(self.text(self.message.bytes.len())?),
                    (_, kind) => self.skip(kind, 0)?,
                }
            }
            let (name, value) = name.zip(value).ok_or(wrong)?;
            bytes += (name.len() + value.len()) as u64;
            if bytes > bounds.bytes {
                return Err(BadReply::HeaderBytes(bounds.bytes));
            }
            lines.push((name.to_owned(), value.to_owned()));
        }
        Ok(lines)
    }

    /// The type of what is there: an option's content, or a value that could be one.
    fn present(&mut self, kind: i64) -> Result<Option<i64>, BadReply> {
        if matches!(kind, NULL | RESERVED) {
            return Ok(None);
        }
        let Some(Type::Opt(inner)) = self.type_of(kind) else { return Ok(Some(kind)) };
        Ok(self.flag()?.then_some(inner))
    }

    fn flag(&mut self) -> Result<bool, BadReply> {
        match self.message.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadReply::Malformed),
        }
    }

    fn upgrade(&mut self, kind: i64) -> Result<bool, BadReply> {
        match self.present(kind)? {
            None => Ok(false),
            Some(BOOL) => Ok(self.message.byte()? == 1),
            Some(_) => Err(BadReply::Field("upgrade")),
        }
    }

    fn streaming(&mut self, kind: i64) -> Result<Option<Streaming>, BadReply> {
        let wrong = BadReply::Field("streaming_strategy");
        let Some(kind) = self.present(kind)? else { return Ok(None) };
        let Some(Type::Variant(cases)) = self.type_of(kind) else { return Err(wrong) };
        let (CALLBACK_VARIANT, kind) = self.case(cases)? else { return Err(wrong) };
        let Some(Type::Record(fields)) = self.type_of(kind) else { return Err(wrong) };
        let (mut callback, mut token) = (None, None);
        for number in 0..fields.count {
            let (name, kind) = self.field(fields, number)?;
            match name {
                CALLBACK => callback = Some(self.function(kind)?),
                TOKEN => token = Some(self.token(kind)?),
                _ => self.skip(kind, 0)?,
            }
        }
        let ((canister, method), token) = callback.zip(token).ok_or(wrong)?;
        Ok(Some(Streaming { canister, method, token }))
    }

    fn principal(&mut self) -> Result<Principal, BadReply> {
        if self.message.byte()? != 1 {
            return Err(BadReply::Malformed);
        }
        let length = self.count(Principal::MAX_LENGTH_IN_BYTES)?;
        Principal::try_from_slice(self.message.take(length as u64)?)
            .map_err(|_| BadReply::Malformed)
    }

    fn function(&mut self, kind: i64) -> Result<(Principal, String), BadReply> {
        if !matches!(self.type_of(kind), Some(Type::Func)) || self.message.byte()? != 1 {
            return Err(BadReply::Field("callback"));
        }
        let canister = self.principal()?;
        Ok((canister, self.text(METHOD_BYTES_MAX)?.to_owned()))
    }

    /// A message of one value: the token, with all types of the message that it came in.
    fn token(&mut self, kind: i64) -> Result<Token, BadReply> {
        let begin = self.message.at;
        self.skip(kind, 0)?;
        let candid_wire::Reader { bytes, at } = self.message;
        let (table, value) = (&bytes[self.table.clone()], &bytes[begin..at]);
        if table.len() + value.len() > TOKEN_BYTES_MAX {
            return Err(BadReply::Token);
        }
        let mut message = [b"DIDL", table, &[1]].concat();
        // Signed LEB128 of an index below `TYPES_MAX`, or of a code of one byte.
        match kind {
            0..64 => message.push(kind as u8),
            64.. => message.extend([0x80 | (kind & 0x7f) as u8, (kind >> 7) as u8]),
            _ => message.push((kind & 0x7f) as u8),
        }
        message.extend_from_slice(value);
        Ok(Token(message))
    }

    /// The case of a value of a variant with these.
    fn case(&mut self, cases: Fields) -> Result<(u32, i64), BadReply> {
        let case = self.count(cases.count)?;
        self.field(cases, case)
    }

    /// Steps over a value.
    fn skip(&mut self, kind: i64, depth: usize) -> Result<(), BadReply> {
        self.steps += 1;
        if depth > DEPTH_MAX || self.steps > STEPS_MAX {
            return Err(BadReply::TooComplex);
        }
        if let Some(bytes) = fixed_bytes(kind) {
            self.message.take(bytes)?;
            return Ok(());
        }
        match kind {
            NAT | INT => {
                while self.message.byte()? & 0x80 != 0 {}
                return Ok(());
            }
            TEXT => return self.text(self.message.bytes.len()).map(drop),
            PRINCIPAL => return self.principal().map(drop),
            EMPTY => return Err(BadReply::Malformed),
            _ => {}
        }
        match self.type_of(kind).ok_or(BadReply::Malformed)? {
            Type::Opt(inner) => match self.flag()? {
                true => self.skip(inner, depth + 1),
                false => Ok(()),
            },
            Type::Vec(inner) => self.skip_list(inner, depth),
            Type::Record(fields) => {
                for number in 0..fields.count {
                    let (_, kind) = self.field(fields, number)?;
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
            Type::Variant(cases) => {
                let (_, kind) = self.case(cases)?;
                self.skip(kind, depth + 1)
            }
            Type::Func => {
                if self.message.byte()? != 1 {
                    return Err(BadReply::Malformed);
                }
                self.principal()?;
                self.text(METHOD_BYTES_MAX).map(drop)
            }
            Type::Service => self.principal().map(drop),
            Type::Future => {
                let length = self.message.unsigned()?;
                // References are opaque.
                if self.message.unsigned()? > 0 {
                    return Err(BadReply::Malformed);
                }
                self.message.take(length)?;
                Ok(())
            }
        }
    }

    fn skip_list(&mut self, inner: i64, depth: usize) -> Result<(), BadReply> {
        let count = self.message.unsigned()?;
        if let Some(bytes) = fixed_bytes(inner) {
            let bytes = count.checked_mul(bytes).ok_or(BadReply::Malformed)?;
            self.message.take(bytes)?;
            return Ok(());
        }
        // Values without bytes cost steps, as others do.
        for _ in 0..count {
            self.skip(inner, depth + 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use candid::{CandidType, Decode, Encode, Func, Reserved, define_function};
    use serde::Deserialize;
    use serde_bytes::ByteBuf;

    use super::*;

    const BOUNDS: HeaderBounds = HeaderBounds { lines: 4, bytes: 100 };

    define_function!(Callback : (NestedToken) -> (Piece) query);

    #[derive(CandidType, Clone, Debug, Deserialize, PartialEq)]
    enum Kind {
        Small,
        Large { sha: Option<ByteBuf>, index: candid::Nat },
    }

    #[derive(CandidType, Clone, Debug, Deserialize, PartialEq)]
    struct NestedToken {
        key: String,
        kinds: Vec<Kind>,
        encoding: (u64, i32, f64, Option<Option<bool>>),
        owner: Principal,
        next: Option<Box<NestedToken>>,
    }

    #[derive(CandidType, Clone)]
    struct Piece {
        body: ByteBuf,
        token: Option<NestedToken>,
    }

    #[derive(CandidType, Clone)]
    enum Strategy {
        Callback { callback: Callback, token: NestedToken },
    }

    #[derive(CandidType, Clone)]
    struct Response {
        status_code: u16,
        headers: Vec<(String, String)>,
        body: ByteBuf,
        upgrade: Option<bool>,
        streaming_strategy: Option<Strategy>,
        more: Vec<NestedToken>,
    }

    fn deep(next: Option<NestedToken>) -> NestedToken {
        NestedToken {
            key: "/assets/\u{e9}".to_owned(),
            kinds: vec![
                Kind::Small,
                Kind::Large { sha: Some(ByteBuf::from([7; 32])), index: (1_u128 << 100).into() },
            ],
            encoding: (1, -2, 0.5, Some(None)),
            owner: Principal::anonymous(),
            next: next.map(Box::new),
        }
    }

    fn response() -> Response {
        Response {
            status_code: 206,
            headers: vec![("A".into(), "b".into()), ("c".into(), String::new())],
            body: ByteBuf::from("the body"),
            upgrade: None,
            streaming_strategy: None,
            more: vec![deep(Some(deep(None)))],
        }
    }

    #[test]
    fn response_with_unknown_fields_is_decoded() {
        let bytes = Encode!(&response()).unwrap();
        let read = http(&bytes, BOUNDS).unwrap();
        assert_eq!((read.status, read.upgrade, read.streaming), (206, false, None));
        assert_eq!(read.headers, response().headers);
        assert_eq!(&bytes[read.body], b"the body");
        for (upgrade, expected) in [(Some(true), true), (Some(false), false)] {
            let bytes = Encode!(&Response { upgrade, ..response() }, &7_u8).unwrap();
            assert_eq!(http(&bytes, BOUNDS).unwrap().upgrade, expected);
        }
    }

    #[test]
    fn response_with_required_fields_only_is_decoded() {
        #[derive(CandidType)]
        struct MinimalResponse {
            status_code: u16,
            headers: Vec<Reserved>,
            body: ByteBuf,
        }
        let least = MinimalResponse { status_code: 200, headers: vec![], body: ByteBuf::new() };
        let read = http(&Encode!(&least).unwrap(), BOUNDS).unwrap();
        assert_eq!((read.status, read.headers.len(), read.body.len()), (200, 0, 0));
    }

    #[test]
    fn streaming_token_is_returned_unchanged() {
        let owner = Principal::from_slice(&[1, 2, 3]);
        let callback = Callback(Func { principal: owner, method: "next".into() });
        let strategy = Strategy::Callback { callback, token: deep(Some(deep(None))) };
        let bytes =
            Encode!(&Response { streaming_strategy: Some(strategy), ..response() }).unwrap();
        let streaming = http(&bytes, BOUNDS).unwrap().streaming.unwrap();
        assert_eq!((streaming.canister, streaming.method.as_str()), (owner, "next"));
        let back = Decode!(&streaming.token.0, NestedToken).unwrap();
        assert_eq!(back, deep(Some(deep(None))));
        let piece = Piece { body: ByteBuf::from([1, 2]), token: Some(deep(None)) };
        let bytes = Encode!(&piece).unwrap();
        let read = chunk(&bytes).unwrap();
        assert_eq!(&bytes[read.body], [1, 2]);
        let back = Decode!(&read.token.unwrap().0, NestedToken).unwrap();
        assert_eq!(back, deep(None));
        let bytes = Encode!(&Piece { body: ByteBuf::new(), token: None }).unwrap();
        assert_eq!(chunk(&bytes).unwrap().token, None);
    }

    #[test]
    fn number_token_is_returned_unchanged() {
        #[derive(CandidType)]
        struct NumberTokenChunk {
            body: ByteBuf,
            token: Option<u64>,
        }
        let bytes = Encode!(&NumberTokenChunk { body: ByteBuf::new(), token: Some(9) }).unwrap();
        let token = chunk(&bytes).unwrap().token.unwrap();
        assert_eq!(Decode!(&token.0, u64).unwrap(), 9);
    }

    #[test]
    fn reply_beyond_a_bound_is_refused_with_the_bound() {
        let many = vec![("a".to_owned(), "b".to_owned()); 5];
        let bytes = Encode!(&Response { headers: many, ..response() }).unwrap();
        assert_eq!(http(&bytes, BOUNDS), Err(BadReply::Headers(4)));
        let long = vec![("a".to_owned(), "b".repeat(100))];
        let bytes = Encode!(&Response { headers: long, ..response() }).unwrap();
        assert_eq!(http(&bytes, BOUNDS), Err(BadReply::HeaderBytes(100)));
        #[derive(CandidType)]
        struct BlobTokenChunk {
            body: ByteBuf,
            token: Option<ByteBuf>,
        }
        let wide =
            BlobTokenChunk { body: ByteBuf::new(), token: Some(ByteBuf::from(vec![0; 70_000])) };
        assert_eq!(chunk(&Encode!(&wide).unwrap()), Err(BadReply::Token));
    }

    // Promise: P11 - A truncated or changed reply is refused without a panic.
    #[test]
    fn what_is_cut_off_or_wrong_is_refused_and_nothing_panics() {
        let callback = Callback(Func { principal: Principal::anonymous(), method: "next".into() });
        let strategy = Strategy::Callback { callback, token: deep(None) };
        let bytes =
            Encode!(&Response { streaming_strategy: Some(strategy), ..response() }).unwrap();
        for end in 0..bytes.len() {
            assert!(http(&bytes[..end], BOUNDS).is_err(), "{end}");
            let _ = chunk(&bytes[..end]);
        }
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                let _ = (http(&bytes, BOUNDS), chunk(&bytes));
            }
        }
        assert_eq!(http(b"DIDL\0\x01\x7d\x05", BOUNDS), Err(BadReply::Malformed));
    }

    #[test]
    fn lists_of_nothing_and_types_of_themselves_end() {
        // record { body : vec null }, with 2^60 of them: stepped over at once; and with records
        // without fields, which are counted.
        let nulls = [&b"DIDL\x02\x6c\x01"[..], &[0], &[1], b"\x6d\x7f\x01\x00"].concat();
        let many = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
        assert_eq!(chunk(&[&nulls[..], &many].concat()), Err(BadReply::Field("body")));
        let empties = [&b"DIDL\x03\x6c\x01"[..], &[0], &[1], b"\x6d\x02\x6c\x00\x01\x00"].concat();
        assert_eq!(chunk(&[&empties[..], &many].concat()), Err(BadReply::TooComplex));
        // An option of itself, a million times there.
        let own = [&b"DIDL\x02\x6c\x01"[..], &[0], &[1], b"\x6e\x01\x01\x00"].concat();
        assert_eq!(chunk(&[&own[..], &[1; 1_000_000]].concat()), Err(BadReply::TooComplex));
    }
}
