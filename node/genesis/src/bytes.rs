//! Encodings of values that nodes exchange and store: lengths before their parts, numbers with the
//! highest byte first, one encoding for one value.
//!
//! A reader takes nothing that is not there, and no list longer than it may be: the output is
//! bounded by the input.

use std::ops::RangeInclusive;

use thiserror::Error;

/// Why bytes were refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum BytesError {
    #[error("it ends within {what}: it was cut off")]
    Truncated { what: &'static str },
    #[error("{surplus} bytes follow its end")]
    Surplus { surplus: usize },
    #[error("{what} is {value}, outside {min}..={max}")]
    OutOfRange { what: &'static str, value: u64, min: u64, max: u64 },
    #[error("it has {bytes} bytes; at most {bytes_max} are read")]
    TooLarge { bytes: usize, bytes_max: usize },
    /// The same value has a shorter encoding.
    #[error("{what}: non-canonical encoding")]
    NotCanonical { what: &'static str },
}

/// Writes a part with its length before it.
pub(crate) fn write_part(writer: &mut Vec<u8>, part: &[u8]) {
    // Parts are bounded far below 4 GiB wherever they are made.
    writer.extend((part.len() as u32).to_be_bytes());
    writer.extend(part);
}

pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A reader of bytes of which there may be at most `bytes_max`.
    pub(crate) fn new(bytes: &'a [u8], bytes_max: usize) -> Result<Self, BytesError> {
        if bytes.len() > bytes_max {
            return Err(BytesError::TooLarge { bytes: bytes.len(), bytes_max });
        }
        Ok(Self(bytes))
    }

    pub(crate) fn take(
        &mut self,
        count: usize,
        what: &'static str,
    ) -> Result<&'a [u8], BytesError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(BytesError::Truncated { what })?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], BytesError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, BytesError> {
        self.array(what).map(u64::from_be_bytes)
    }

    /// A byte that names a case.
    pub(crate) fn tag(
        &mut self,
        what: &'static str,
        range: RangeInclusive<u8>,
    ) -> Result<u8, BytesError> {
        let [value] = self.array(what)?;
        within(what, value.into(), (*range.start()).into(), (*range.end()).into()).map(|_| value)
    }

    pub(crate) fn u32_within(
        &mut self,
        what: &'static str,
        min: u32,
        max: u32,
    ) -> Result<u32, BytesError> {
        let value = u32::from_be_bytes(self.array(what)?);
        within(what, value.into(), min.into(), max.into()).map(|_| value)
    }

    pub(crate) fn count(&mut self, what: &'static str, max: usize) -> Result<usize, BytesError> {
        let value = u32::from_be_bytes(self.array(what)?);
        within(what, value.into(), 0, max as u64).map(|_| value as usize)
    }

    /// A part with its length before it.
    pub(crate) fn part(
        &mut self,
        what: &'static str,
        bytes_max: usize,
    ) -> Result<&'a [u8], BytesError> {
        let count = self.count(what, bytes_max)?;
        self.take(count, what)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn finish(self) -> Result<(), BytesError> {
        if self.0.is_empty() { Ok(()) } else { Err(BytesError::Surplus { surplus: self.0.len() }) }
    }
}

fn within(what: &'static str, value: u64, min: u64, max: u64) -> Result<u64, BytesError> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(BytesError::OutOfRange { what, value, min, max })
    }
}
