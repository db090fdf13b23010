//! CBOR (RFC 8949), read strictly and within bounds, and written canonically enough.
//!
//! The reader turns a body into [`Value`]s that borrow from it, and accepts everything that the
//! interface specification's encodings can contain; null and undefined both mean "field omitted".
//! Indefinite lengths are accepted because some clients' encoders write nothing else. Floats,
//! booleans, unknown tags, duplicate keys, map keys that are neither text nor integers, bytes after
//! the item and truncated items are refused, each with the offset at which reading stopped.
//!
//! Nesting depth, which also bounds the stack, and the number of items are bounded. Lengths
//! announced by the body are compared with what is left of it before anything is allocated.
//!
//! This file knows nothing of envelopes, certificates or HTTP.

use std::borrow::Cow;

use thiserror::Error;

/// Tag that marks the content as CBOR; optional in front of the outermost item.
pub const SELF_DESCRIBE: u64 = 55_799;
/// Tag of an unsigned integer written as a byte string.
const BIGNUM: u64 = 2;
/// Entries of one map; the widest map of the interface has nine.
const MAP_ENTRIES_MAX: usize = 64;

/// One decoded item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Major type 0, or a bignum that fits.
    Nat(u64),
    /// Major type 1: the number is `-1 - n`.
    Negative(u64),
    /// Major type 2.
    Bytes(Cow<'a, [u8]>),
    /// Major type 3.
    Text(Cow<'a, str>),
    /// Major type 4.
    Array(Vec<Value<'a>>),
    /// Major type 5, in the order of the encoding, keys distinct.
    Map(Vec<(Value<'a>, Value<'a>)>),
    /// null or undefined.
    Null,
}

/// How deep and how wide a body may be.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Nested arrays and maps.
    pub depth: usize,
    /// Items over all levels.
    pub items: usize,
}

/// Why a body is not acceptable CBOR.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum CborError {
    #[error("the CBOR body ends at byte {offset} in the middle of an item")]
    Truncated { offset: usize },
    #[error(
        "the CBOR body has {bytes} bytes after its end at byte {offset}; send one item and \
         nothing else"
    )]
    Trailing {
        /// Where the item ended.
        offset: usize,
        bytes: usize,
    },
    #[error("the CBOR body nests deeper than {limit} levels at byte {offset}")]
    TooDeep {
        /// Byte offset just after the head of the array or map that nests too deep.
        offset: usize,
        limit: usize,
    },
    #[error("the CBOR body has more than {limit} items (counted up to byte {offset})")]
    TooManyItems {
        /// Byte offset of the first item, or chunk of a string, beyond the bound.
        offset: usize,
        limit: usize,
    },
    #[error("a CBOR map before byte {offset} has more than {limit} fields")]
    MapTooWide {
        /// Byte offset of the first field beyond the bound.
        offset: usize,
        limit: usize,
    },
    #[error("a CBOR map repeats the key {key} at byte {offset}; keys must be distinct")]
    DuplicateKey {
        /// Byte offset of the second occurrence of the key.
        offset: usize,
        /// The repeated key; text is cut to 64 characters.
        key: String,
    },
    /// A type the interface does not use, or a malformed head.
    #[error("{what} at byte {offset} is not acceptable in this interface's CBOR")]
    Unexpected {
        /// Byte offset in the body, at or within the refused item.
        offset: usize,
        what: &'static str,
    },
}

impl<'a> Value<'a> {
    /// Kind of the item, for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Nat(_) => "a natural number",
            Self::Negative(_) => "a negative number",
            Self::Bytes(_) => "a byte string",
            Self::Text(_) => "a text string",
            Self::Array(_) => "an array",
            Self::Map(_) => "a map",
            Self::Null => "null",
        }
    }

    /// The bytes of a byte string.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The text of a text string.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The elements of an array.
    pub fn as_array(&self) -> Option<&[Value<'a>]> {
        match self {
            Self::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// The entries of a map.
    pub(crate) fn as_map(&self) -> Option<&[(Value<'a>, Value<'a>)]> {
        match self {
            Self::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The field `name` of a map; null and undefined count as absent.
    pub fn field(&self, name: &str) -> Option<&Value<'a>> {
        self.as_map()?
            .iter()
            .find(|(key, _)| key.as_text() == Some(name))
            .map(|(_, value)| value)
            .filter(|value| **value != Self::Null)
    }
}

/// Reads the one item that `input` consists of.
pub fn decode(input: &[u8], bounds: Bounds) -> Result<Value<'_>, CborError> {
    let mut reader = Reader { input, offset: 0, items: 0, bounds };
    let value = reader.item(0)?;
    let bytes = input.len() - reader.offset;
    if bytes > 0 {
        return Err(CborError::Trailing { offset: reader.offset, bytes });
    }
    Ok(value)
}

struct Reader<'a> {
    input: &'a [u8],
    offset: usize,
    items: usize,
    bounds: Bounds,
}

/// A decoded item head: major type and argument; `None` is an indefinite length.
type Head = (u8, Option<u64>);

impl<'a> Reader<'a> {
    fn truncated(&self) -> CborError {
        CborError::Truncated { offset: self.input.len() }
    }

    fn unexpected(&self, what: &'static str) -> CborError {
        CborError::Unexpected { offset: self.offset, what }
    }

    fn peek(&self) -> Result<u8, CborError> {
        self.input.get(self.offset).copied().ok_or_else(|| self.truncated())
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], CborError> {
        let rest = self.input.get(self.offset..).unwrap_or_default();
        let length = usize::try_from(length).map_err(|_| self.truncated())?;
        let taken = rest.get(..length).ok_or_else(|| self.truncated())?;
        self.offset += length;
        Ok(taken)
    }

    fn head(&mut self) -> Result<Head, CborError> {
        let initial = self.peek()?;
        let (major, info) = (initial >> 5, initial & 0x1f);
        let width = match info {
            0..=23 => {
                self.offset += 1;
                return Ok((major, Some(u64::from(info))));
            }
            24 => 1,
            25 => 2,
            26 => 4,
            27 => 8,
            31 if (2..=5).contains(&major) => {
                self.offset += 1;
                return Ok((major, None));
            }
            _ => return Err(self.unexpected("a reserved length or a stray break")),
        };
        if major == 7 {
            return Err(self.unexpected("a floating-point number or an unassigned simple value"));
        }
        self.offset += 1;
        let argument =
            self.take(width)?.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        Ok((major, Some(argument)))
    }

    fn count_item(&mut self) -> Result<(), CborError> {
        self.items += 1;
        if self.items > self.bounds.items {
            return Err(CborError::TooManyItems { offset: self.offset, limit: self.bounds.items });
        }
        Ok(())
    }

    fn item(&mut self, depth: usize) -> Result<Value<'a>, CborError> {
        self.count_item()?;
        let start = self.offset;
        match self.head()? {
            (0, Some(number)) => Ok(Value::Nat(number)),
            (1, Some(number)) => Ok(Value::Negative(number)),
            (2, length) => self.string(length, 2).map(Value::Bytes),
            (3, length) => self.text(length).map(Value::Text),
            (4, length) => self.array(length, depth),
            (5, length) => self.map(length, depth),
            (6, Some(SELF_DESCRIBE)) if start == 0 => self.item(depth),
            (6, Some(BIGNUM)) => self.bignum(),
            (7, Some(22 | 23)) => Ok(Value::Null),
            (6, _) => Err(CborError::Unexpected { offset: start, what: "a tag" }),
            (7, Some(20 | 21)) => Err(CborError::Unexpected { offset: start, what: "a boolean" }),
            _ => Err(CborError::Unexpected { offset: start, what: "a simple value" }),
        }
    }

    fn bignum(&mut self) -> Result<Value<'a>, CborError> {
        let start = self.offset;
        let not_a_number = CborError::Unexpected {
            offset: start,
            what: "a bignum that is no byte string or exceeds 64 bits",
        };
        let (2, length) = self.head()? else { return Err(not_a_number) };
        let bytes = self.string(length, 2)?;
        let significant = bytes
            .iter()
            .position(|byte| *byte != 0)
            .map_or(&[][..], |first| bytes.get(first..).unwrap_or_default());
        if significant.len() > 8 {
            return Err(not_a_number);
        }
        Ok(Value::Nat(significant.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))))
    }

    /// A string of major type `major`; chunks of an indefinite one are definite strings of the same
    /// type.
    fn string(&mut self, length: Option<u64>, major: u8) -> Result<Cow<'a, [u8]>, CborError> {
        if let Some(length) = length {
            return self.take(length).map(Cow::Borrowed);
        }
        let mut joined = Vec::new();
        while self.peek()? != 0xff {
            self.count_item()?;
            match self.head()? {
                (chunk, Some(length)) if chunk == major => {
                    joined.extend_from_slice(self.take(length)?)
                }
                _ => return Err(self.unexpected("a chunk of another type inside a string")),
            }
        }
        self.offset += 1;
        Ok(Cow::Owned(joined))
    }

    fn text(&mut self, length: Option<u64>) -> Result<Cow<'a, str>, CborError> {
        let not_utf8 =
            CborError::Unexpected { offset: self.offset, what: "text that is not UTF-8" };
        match self.string(length, 3)? {
            Cow::Borrowed(bytes) => {
                std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| not_utf8)
            }
            Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| not_utf8),
        }
    }

    /// Whether another element follows, given how many were announced and read.
    fn more(&mut self, length: Option<u64>, read: usize) -> Result<bool, CborError> {
        match length {
            Some(length) => Ok((read as u64) < length),
            None if self.peek()? == 0xff => {
                self.offset += 1;
                Ok(false)
            }
            None => Ok(true),
        }
    }

    /// Refuses what the rest of the body cannot hold, before room is made for it. Returns how much
    /// room to make.
    fn announced(
        &self,
        length: Option<u64>,
        depth: usize,
        items_each: u64,
    ) -> Result<usize, CborError> {
        if depth >= self.bounds.depth {
            return Err(CborError::TooDeep { offset: self.offset, limit: self.bounds.depth });
        }
        let left = (self.input.len() - self.offset) as u64;
        match length {
            Some(length) if length.saturating_mul(items_each) > left => Err(self.truncated()),
            Some(length) => Ok(length.min(16) as usize),
            None => Ok(0),
        }
    }

    fn array(&mut self, length: Option<u64>, depth: usize) -> Result<Value<'a>, CborError> {
        let mut elements = Vec::with_capacity(self.announced(length, depth, 1)?);
        while self.more(length, elements.len())? {
            elements.push(self.item(depth + 1)?);
        }
        Ok(Value::Array(elements))
    }

    fn map(&mut self, length: Option<u64>, depth: usize) -> Result<Value<'a>, CborError> {
        let mut entries: Vec<(Value<'a>, Value<'a>)> =
            Vec::with_capacity(self.announced(length, depth, 2)?);
        while self.more(length, entries.len())? {
            if entries.len() == MAP_ENTRIES_MAX {
                return Err(CborError::MapTooWide { offset: self.offset, limit: MAP_ENTRIES_MAX });
            }
            let offset = self.offset;
            let key = self.item(depth + 1)?;
            if !matches!(key, Value::Text(_) | Value::Nat(_) | Value::Negative(_)) {
                return Err(CborError::Unexpected {
                    offset,
                    what: "a map key that is neither text nor an integer",
                });
            }
            if entries.iter().any(|(known, _)| *known == key) {
                let key = match key {
                    Value::Text(text) => text.chars().take(64).collect(),
                    other => format!("{other:?}"),
                };
                return Err(CborError::DuplicateKey { offset, key });
            }
            entries.push((key, self.item(depth + 1)?));
        }
        Ok(Value::Map(entries))
    }
}

/// Writes items one after the other; the caller keeps the announced counts.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Starts a body with the self-describing tag and room for `capacity` bytes.
    pub fn self_described(capacity: usize) -> Self {
        let mut writer = Self(Vec::with_capacity(capacity + 3));
        writer.head(6, SELF_DESCRIBE);
        writer
    }

    /// Starts a body with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    fn head(&mut self, major: u8, argument: u64) {
        let (info, width) = match argument {
            0..=23 => (argument as u8, 0),
            24..=0xff => (24, 1),
            0x100..=0xffff => (25, 2),
            0x1_0000..=0xffff_ffff => (26, 4),
            _ => (27, 8),
        };
        self.0.push(major << 5 | info);
        self.0.extend_from_slice(argument.to_be_bytes().get(8 - width..).unwrap_or_default());
    }

    /// A map of `fields` fields follows.
    pub fn map(&mut self, fields: u64) -> &mut Self {
        self.head(5, fields);
        self
    }

    /// An array of `elements` elements follows.
    pub fn array(&mut self, elements: u64) -> &mut Self {
        self.head(4, elements);
        self
    }

    /// An unsigned integer.
    pub fn nat(&mut self, number: u64) -> &mut Self {
        self.head(0, number);
        self
    }

    /// A text string.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.head(3, text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    /// A byte string.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes_head(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// The head of a byte string of `len` bytes, which the caller appends.
    pub fn bytes_head(&mut self, len: u64) -> &mut Self {
        self.head(2, len);
        self
    }

    /// A decoded item in canonical form: shortest heads, definite lengths, map entries in the order
    /// of their encoded keys. Map entries that are null, which count as absent, are left out.
    ///
    /// Recursion is bounded by the reader's depth.
    pub fn canonical(&mut self, value: &Value<'_>) -> &mut Self {
        match value {
            Value::Nat(number) => self.head(0, *number),
            Value::Negative(number) => self.head(1, *number),
            Value::Bytes(bytes) => {
                self.bytes(bytes);
            }
            Value::Text(text) => {
                self.text(text);
            }
            Value::Array(elements) => {
                self.array(elements.len() as u64);
                for element in elements {
                    self.canonical(element);
                }
            }
            Value::Map(entries) => {
                let mut present: Vec<_> =
                    entries.iter().filter(|(_, value)| *value != Value::Null).collect();
                present.sort_unstable_by(|(a, _), (b, _)| key_order(a).cmp(&key_order(b)));
                self.map(present.len() as u64);
                for (key, value) in present {
                    self.canonical(key).canonical(value);
                }
            }
            Value::Null => self.0.push(0xf6),
        }
        self
    }

    /// The encoded bytes; the announced counts are not checked.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Keys of maps in the order of their encodings: major type, then the argument of the head, whose
/// shortest encodings have its order, then the text. The reader refuses all other keys.
fn key_order<'v>(key: &'v Value<'_>) -> (u8, u64, &'v str) {
    match key {
        Value::Nat(number) => (0, *number, ""),
        Value::Negative(number) => (1, *number, ""),
        Value::Text(text) => (3, text.len() as u64, &**text),
        _ => (u8::MAX, 0, ""),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { depth: 8, items: 1000 };

    fn unhex(hex: &str) -> Vec<u8> {
        hex::decode(hex.replace(' ', "")).unwrap()
    }

    #[test]
    fn reads_definite_and_indefinite_forms_alike() {
        let expected = Value::Map(vec![(
            Value::Text("a".into()),
            Value::Array(vec![Value::Nat(500), Value::Bytes((&[1, 2, 3][..]).into()), Value::Null]),
        )]);
        for body in [
            "d9d9f7 a1 6161 83 1901f4 43010203 f6",
            "bf 6161 9f 1b00000000000001f4 5f 4101 420203 ff f7 ff ff",
            "a1 7f 6161 ff 83 c24201f4 43010203 f6",
        ] {
            assert_eq!(decode(&unhex(body), BOUNDS).unwrap(), expected, "{body}");
        }
    }

    #[test]
    fn refuses_what_the_interface_does_not_use() {
        let cases = [
            ("", "ends at byte 0"),
            ("82 01", "ends at byte 2"),
            ("5b ffffffffffffffff", "ends at byte 9"),
            ("9b 00000000ffffffff", "ends at byte 9"),
            ("01 02", "1 bytes after its end"),
            ("a2 6161 01 6161 02", "repeats the key"),
            ("a1 8001", "neither text nor an integer"),
            ("f5", "a boolean"),
            ("fb 3ff0000000000000", "floating-point"),
            ("f9 3c00", "floating-point"),
            ("81 d9d9f7 01", "a tag"),
            ("c2 49 010000000000000000", "bignum"),
            ("c2 01", "bignum"),
            ("61 ff", "not UTF-8"),
            ("ff", "stray break"),
            ("1c", "reserved"),
            ("5f 6161 ff", "another type"),
            ("e0", "a simple value"),
        ];
        for (body, message) in cases {
            let error = decode(&unhex(body), BOUNDS).unwrap_err().to_string();
            assert!(error.contains(message), "{body}: {error}");
        }
    }

    #[test]
    fn bounds_hold() {
        let deep = [vec![0x81; 9], vec![0x01]].concat();
        assert_eq!(decode(&deep, BOUNDS), Err(CborError::TooDeep { offset: 9, limit: 8 }));
        let deepest = [vec![0x81; 8], vec![0x01]].concat();
        assert!(decode(&deepest, BOUNDS).is_ok());
        let endless = vec![0x9f; 1 << 20];
        assert!(matches!(decode(&endless, BOUNDS), Err(CborError::TooDeep { .. })));
        let mut wide = vec![0x99, 0x03, 0xe8];
        wide.extend([0x01; 1000]);
        assert_eq!(
            decode(&wide, BOUNDS),
            Err(CborError::TooManyItems { offset: 1002, limit: 1000 })
        );
        let map: Vec<u8> = std::iter::once(0xbf)
            .chain((0..65u8).flat_map(|n| [0x18, n + 24, 0x01]))
            .chain([0xff])
            .collect();
        assert!(matches!(decode(&map, BOUNDS), Err(CborError::MapTooWide { limit: 64, .. })));
        let chunks = [&[0x5f][..], &[0x40; 2000], &[0xff]].concat();
        assert!(matches!(decode(&chunks, BOUNDS), Err(CborError::TooManyItems { .. })));
    }

    fn values() -> impl Strategy<Value = Value<'static>> {
        let leaf = prop_oneof![
            any::<u64>().prop_map(Value::Nat),
            any::<u64>().prop_map(Value::Negative),
            any::<Vec<u8>>().prop_map(|bytes| Value::Bytes(bytes.into())),
            ".*".prop_map(|text| Value::Text(text.into())),
            Just(Value::Null),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
                prop::collection::btree_map("[a-z]{0,4}", inner, 0..8).prop_map(|map| Value::Map(
                    map.into_iter().map(|(key, value)| (Value::Text(key.into()), value)).collect()
                )),
            ]
        })
    }

    /// The same value without what counts as absent, whatever the order it was written in.
    fn sorted(value: Value<'_>) -> Value<'_> {
        match value {
            Value::Array(elements) => Value::Array(elements.into_iter().map(sorted).collect()),
            Value::Map(entries) => {
                let mut entries: Vec<_> = entries
                    .into_iter()
                    .filter(|(_, value)| *value != Value::Null)
                    .map(|(key, value)| (key, sorted(value)))
                    .collect();
                entries.sort_by(|(a, _), (b, _)| a.as_text().cmp(&b.as_text()));
                Value::Map(entries)
            }
            value => value,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(value in values()) {
            let bounds = Bounds { depth: 8, items: 10_000 };
            let mut writer = Writer::self_described(0);
            writer.canonical(&value);
            let body = writer.finish();
            let read = decode(&body, bounds).unwrap();
            prop_assert_eq!(&sorted(read.clone()), &sorted(value));
            let mut again = Writer::self_described(0);
            again.canonical(&read);
            prop_assert_eq!(again.finish(), body);
        }

        #[test]
        fn keys_are_written_in_the_order_of_their_encodings(
            texts in prop::collection::btree_set(".{0,40}", 0..8),
            numbers in prop::collection::btree_set(any::<(bool, u64)>(), 0..8),
        ) {
            let numbers = numbers.into_iter().map(|(negative, number)| match negative {
                true => Value::Negative(number),
                false => Value::Nat(number),
            });
            let long = Value::Text("long".repeat(80).into());
            let keys: Vec<_> = texts
                .into_iter()
                .map(|text| Value::Text(text.into()))
                .chain(numbers)
                .chain([long])
                .collect();
            let mut encoded: Vec<Vec<u8>> = keys
                .iter()
                .map(|key| {
                    let mut writer = Writer::default();
                    writer.canonical(key);
                    writer.finish()
                })
                .collect();
            encoded.sort_unstable();
            let map = Value::Map(keys.into_iter().map(|key| (key, Value::Nat(0))).collect());
            let (mut written, mut expected) = (Writer::default(), Writer::default());
            written.canonical(&map);
            expected.map(encoded.len() as u64);
            let zeros: Vec<u8> =
                encoded.into_iter().flat_map(|key| [key, vec![0]].concat()).collect();
            prop_assert_eq!(written.finish(), [expected.finish(), zeros].concat());
        }

        #[test]
        fn never_panics(body in prop::collection::vec(any::<u8>(), 0..256)) {
            let _ = decode(&body, BOUNDS);
        }
    }
}
