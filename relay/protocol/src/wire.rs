//! Protocol buffers, as far as the Waku protocols need them: an iterator over the fields of one
//! message, and writers of single fields.
//!
//! Bounds: the iterator allocates nothing and visits each byte once; lengths are checked against
//! what is left before anything is sliced. Groups, deprecated and unused by any Waku protocol, are
//! refused rather than skipped, because skipping them takes recursion.
//!
//! It must never know which message it reads. Decoders ignore fields they do not know, take the
//! last of a scalar field that is repeated, and refuse a known field of a wrong type, except in a
//! [`crate::WakuMessage`], where other nodes skip it.
//!
//! Source: the encoding guide of protocol buffers; varints by `prost::encoding`.

use bytes::{Buf, Bytes};
use prost::encoding::{
    WireType, decode_varint, encode_key, encode_varint, encoded_len_varint, key_len,
};
use thiserror::Error;

/// Why the bytes of a protobuf message are not a message of the expected type.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// A field key or a number is cut off, or of an unknown wire type.
    #[error("damaged key or number, {left} bytes before the end of the message; send it again")]
    Damaged {
        /// Bytes from the start of the damaged item to the end of its message.
        left: usize,
    },
    /// A number of more than 64 bits, or a field number outside 1 to 2^29 - 1: some decoders read
    /// on, others stop.
    #[error(
        "a number or field number out of range, {left} bytes before the end of the message; send \
         it again"
    )]
    Disputed {
        /// Bytes from the start of the item to the end of its message.
        left: usize,
    },
    /// The length of a field goes beyond the end of the message.
    #[error("field {tag} is {wanted} bytes long, but the message has only {left} left")]
    Truncated {
        /// Number of the field.
        tag: u32,
        /// Length the field claims, in bytes.
        wanted: u64,
        /// Bytes that are left.
        left: usize,
    },
    /// The message holds a group; no Waku protocol has any.
    #[error("field {tag} is a group; groups are not part of any Waku protocol")]
    Group {
        /// Number of the field.
        tag: u32,
    },
    /// A known field has another wire type than in its definition.
    #[error("field {tag} has another wire type than its definition")]
    WrongType {
        /// Number of the field.
        tag: u32,
    },
    /// A text is not UTF-8.
    #[error("{field} is not UTF-8")]
    NotText {
        /// Name of the field in its specification.
        field: &'static str,
    },
    /// A text or byte field is longer than is accepted.
    #[error("{field} has {bytes} bytes, the limit is {bytes_max}; shorten it")]
    TooLong {
        /// Name of the field in its specification.
        field: &'static str,
        /// Length of the field, in bytes.
        bytes: usize,
        /// Most bytes that are accepted.
        bytes_max: usize,
    },
    /// A field of fixed length has another length.
    #[error("{field} has {bytes} bytes instead of {expected}")]
    WrongLength {
        /// Name of the field in its specification.
        field: &'static str,
        /// Length of the field, in bytes.
        bytes: usize,
        /// The length it must have.
        expected: usize,
    },
    /// A list has more entries than are accepted.
    #[error("more than {count_max} entries in {field}; send fewer at a time")]
    TooMany {
        /// Name of the field in its specification.
        field: &'static str,
        /// Most entries that are accepted.
        count_max: usize,
    },
    /// A field without which the message means nothing is absent.
    #[error("{field} is missing")]
    Missing {
        /// Name of the field in its specification.
        field: &'static str,
    },
    /// A number is outside the range of its field.
    #[error("{field} is {value}, the limit is {value_max}")]
    OutOfRange {
        /// Name of the field in its specification.
        field: &'static str,
        /// The value as sent.
        value: u64,
        /// The largest value that is accepted.
        value_max: u64,
    },
}

/// One value as encoded on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 5.
    Fixed32(u32),
    /// Wire type 1.
    Fixed64(u64),
    /// Wire type 2: bytes, text, an embedded message or a packed list.
    Bytes(&'a [u8]),
}

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Number of the field, 1 or more.
    pub tag: u32,
    /// The value with its wire type.
    pub value: Value<'a>,
}

impl<'a> Field<'a> {
    /// The value as a number. Errors: another wire type.
    pub fn varint(&self) -> Result<u64, DecodeError> {
        match self.value {
            Value::Varint(number) => Ok(number),
            _ => Err(DecodeError::WrongType { tag: self.tag }),
        }
    }

    /// The value as `uint32`: as protobuf has it, the upper half of a longer number is ignored.
    /// Errors: another wire type.
    pub fn uint32(&self) -> Result<u32, DecodeError> {
        Ok((self.varint()? & u64::from(u32::MAX)) as u32)
    }

    /// The value as `bool`: anything but zero is true. Errors: another wire type.
    pub fn bool(&self) -> Result<bool, DecodeError> {
        Ok(self.varint()? != 0)
    }

    /// The value as `sint64`, which is zigzag-encoded. Errors: another wire type.
    pub fn sint64(&self) -> Result<i64, DecodeError> {
        let zigzag = self.varint()?;
        Ok((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    /// The value as bytes. Errors: another wire type.
    pub fn bytes(&self) -> Result<&'a [u8], DecodeError> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(DecodeError::WrongType { tag: self.tag }),
        }
    }

    /// The value as at most `bytes_max` bytes of `input`, shared and not copied. `input` must be
    /// what this field was read from. Errors: another wire type, too long.
    pub fn shared(
        &self,
        input: &Bytes,
        name: &'static str,
        bytes_max: usize,
    ) -> Result<Bytes, DecodeError> {
        let bytes = self.bytes()?;
        if bytes.len() > bytes_max {
            return Err(DecodeError::TooLong { field: name, bytes: bytes.len(), bytes_max });
        }
        Ok(input.slice_ref(bytes))
    }

    /// The value as 32 bytes. Errors: another wire type or length.
    pub fn digest(&self, name: &'static str) -> Result<[u8; 32], DecodeError> {
        let bytes = self.bytes()?;
        bytes.try_into().map_err(|_| DecodeError::WrongLength {
            field: name,
            bytes: bytes.len(),
            expected: 32,
        })
    }
}

/// Largest number of a field. Source: the encoding guide of protocol buffers.
const TAG_MAX: u32 = (1 << 29) - 1;

/// Longest number on the wire, in bytes.
const VARINT_BYTES_MAX: usize = 10;

/// Iterator over the fields of one message, in the order they were written. Ends after the first
/// error. Allocates nothing.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The fields of the message `body`, without a length prefix.
    pub fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    fn read(&mut self) -> Result<Field<'a>, DecodeError> {
        let left = self.rest.len();
        let key = self.varint()?;
        let wire_type = WireType::try_from(key & 7).map_err(|_| DecodeError::Damaged { left })?;
        let tag = u32::try_from(key >> 3).ok().filter(|tag| (1..=TAG_MAX).contains(tag));
        let tag = tag.ok_or(DecodeError::Disputed { left })?;
        let value = match wire_type {
            WireType::Varint => Value::Varint(self.varint()?),
            WireType::LengthDelimited => {
                let length = self.varint()?;
                Value::Bytes(self.take(tag, length)?)
            }
            WireType::ThirtyTwoBit => Value::Fixed32(self.take(tag, 4)?.get_u32_le()),
            WireType::SixtyFourBit => Value::Fixed64(self.take(tag, 8)?.get_u64_le()),
            WireType::StartGroup | WireType::EndGroup => return Err(DecodeError::Group { tag }),
        };
        Ok(Field { tag, value })
    }

    fn varint(&mut self) -> Result<u64, DecodeError> {
        let left = self.rest.len();
        decode_varint(&mut self.rest).map_err(|_| match left {
            ..VARINT_BYTES_MAX => DecodeError::Damaged { left },
            _ => DecodeError::Disputed { left },
        })
    }

    fn take(&mut self, tag: u32, wanted: u64) -> Result<&'a [u8], DecodeError> {
        let left = self.rest.len();
        let length = usize::try_from(wanted).unwrap_or(usize::MAX);
        let Some((taken, rest)) = self.rest.split_at_checked(length) else {
            return Err(DecodeError::Truncated { tag, wanted, left });
        };
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Runs an arm for each field whose number has one, with the field; fields of other numbers are
/// skipped. Damage ends the function with its error.
macro_rules! for_each_field {
    ($field:ident in $body:expr, { $($tag:pat => $arm:expr),+ $(,)? }) => {
        for $field in $crate::wire::Fields::new($body) {
            let $field = $field?;
            match $field.tag {
                $($tag => $arm,)+
                _ => {}
            }
        }
    };
}
pub(crate) use for_each_field;

/// The numbers of a packed list. Ends after the first error. Allocates nothing.
pub fn packed_varints(mut rest: &[u8]) -> impl Iterator<Item = Result<u64, DecodeError>> {
    std::iter::from_fn(move || {
        let left = rest.len();
        if left == 0 {
            return None;
        }
        let number = decode_varint(&mut rest).map_err(|_| DecodeError::Damaged { left });
        if number.is_err() {
            rest = &[];
        }
        Some(number)
    })
}

/// Pushes `entry` unless `list` already has `count_max` entries. Errors: it has.
pub fn push_bounded<T>(
    list: &mut Vec<T>,
    entry: T,
    name: &'static str,
    count_max: usize,
) -> Result<(), DecodeError> {
    if list.len() >= count_max {
        return Err(DecodeError::TooMany { field: name, count_max });
    }
    list.push(entry);
    Ok(())
}

/// Length of a varint field with its key, in bytes.
pub fn varint_field_len(tag: u32, value: u64) -> usize {
    key_len(tag) + encoded_len_varint(value)
}

/// Length of a byte field of `bytes` bytes with its key and length, in bytes.
pub fn bytes_field_len(tag: u32, bytes: usize) -> usize {
    key_len(tag) + encoded_len_varint(bytes as u64) + bytes
}

/// A `sint64` as encoded in a varint.
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Writes a varint field: `uint32`, `uint64`, `bool` or an enumeration.
pub fn put_varint(tag: u32, value: u64, out: &mut Vec<u8>) {
    encode_key(tag, WireType::Varint, out);
    encode_varint(value, out);
}

/// Writes a varint field for each value of an optional field, or of a list that is not packed.
pub fn put_each_varint(tag: u32, values: impl IntoIterator<Item: Into<u64>>, out: &mut Vec<u8>) {
    values.into_iter().for_each(|value| put_varint(tag, value.into(), out));
}

/// Writes a byte field for each value of an optional field, or of a list.
pub fn put_each(tag: u32, values: impl IntoIterator<Item: AsRef<[u8]>>, out: &mut Vec<u8>) {
    values.into_iter().for_each(|value| put_bytes(tag, value.as_ref(), out));
}

/// Writes a byte field: bytes, text, an embedded message or a packed list.
pub fn put_bytes(tag: u32, bytes: &[u8], out: &mut Vec<u8>) {
    put_bytes_head(tag, bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// Writes the key and the length of a byte field whose `bytes` bytes follow.
pub fn put_bytes_head(tag: u32, bytes: usize, out: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(bytes as u64, out);
}

/// Writes a text field unless the text is empty, the default of protobuf.
pub fn put_text(tag: u32, text: &str, out: &mut Vec<u8>) {
    if !text.is_empty() {
        put_bytes(tag, text.as_bytes(), out);
    }
}

/// Writes a number without a key, as in a packed list.
pub fn put_packed(value: u64, out: &mut Vec<u8>) {
    encode_varint(value, out);
}
