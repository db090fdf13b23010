//! Bytes in and out. Every object starts with a kind byte and a version byte and ends where it
//! must; one value has one encoding.

use thiserror::Error;

use crate::curve::{G1Affine, G2Affine, Scalar};

/// Version of every encoding of this crate. A decoder knows this one only.
pub(crate) const VERSION: u8 = 1;

/// Kind of the encoded value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    EncryptionPublicKey = 1,
    EncryptionSecretKey = 2,
    Dealing = 3,
    Transcript = 4,
}

/// Why bytes were refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum DecodeError {
    #[error("{what} ends after {have} bytes, {need} more were expected: it was cut off")]
    Truncated { what: &'static str, have: usize, need: usize },
    #[error("{surplus} bytes follow the end of the encoding: it is not canonical")]
    Surplus { surplus: usize },
    #[error(
        "kind {kind} version {version} was found where kind {expected} version {VERSION} belongs"
    )]
    WrongKind { kind: u8, version: u8, expected: u8 },
    #[error("{what} is {value}, outside {min}..={max}")]
    OutOfRange { what: &'static str, value: u64, min: u64, max: u64 },
    /// Not a point of the curve, or of the group, or the point at infinity.
    #[error("{what} is not a point of the prime-order group other than infinity")]
    NotAPoint { what: &'static str },
    #[error("{what} is not below the group order")]
    NotAScalar { what: &'static str },
    #[error("the checksum of {what} does not match: the stored bytes were damaged")]
    Checksum { what: &'static str },
}

/// Collects an encoding.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(kind: Kind, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity + 2);
        bytes.extend([kind as u8, VERSION]);
        Self(bytes)
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }

    pub(crate) fn scalar(&mut self, scalar: &Scalar) {
        self.bytes(&scalar.to_be_bytes());
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

/// Takes an encoding apart. Nothing is allocated before its bytes are known to be there.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    total: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(kind: Kind, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Self { rest: bytes, total: bytes.len() };
        let [found, version] = reader.array("the header")?;
        if (found, version) != (kind as u8, VERSION) {
            return Err(DecodeError::WrongKind { kind: found, version, expected: kind as u8 });
        }
        Ok(reader)
    }

    pub(crate) fn take(
        &mut self,
        count: usize,
        what: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(DecodeError::Truncated {
                what,
                have: self.total,
                need: count - self.rest.len(),
            });
        };
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.array(what).map(u64::from_be_bytes)
    }

    /// A 32-bit number within bounds.
    pub(crate) fn u32_within(
        &mut self,
        what: &'static str,
        min: u32,
        max: u32,
    ) -> Result<u32, DecodeError> {
        let value = u32::from_be_bytes(self.array(what)?);
        if !(min..=max).contains(&value) {
            let (value, min, max) = (value.into(), min.into(), max.into());
            return Err(DecodeError::OutOfRange { what, value, min, max });
        }
        Ok(value)
    }

    pub(crate) fn scalar(&mut self, what: &'static str) -> Result<Scalar, DecodeError> {
        Scalar::from_be_bytes(&self.array(what)?).ok_or(DecodeError::NotAScalar { what })
    }

    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Surplus { surplus: self.rest.len() })
        }
    }
}

/// Uncompressed points of the curve; membership in the group is for the caller to check.
macro_rules! raw_points {
    ($name:ident, $point:ident) => {
        impl Writer {
            pub(crate) fn $name(&mut self, points: &[$point]) {
                points.iter().for_each(|point| self.bytes(&point.to_uncompressed()));
            }
        }

        impl Reader<'_> {
            pub(crate) fn $name(
                &mut self,
                count: usize,
                what: &'static str,
            ) -> Result<Vec<$point>, DecodeError> {
                let bytes = self.take(count * $point::UNCOMPRESSED, what)?;
                let points = bytes.as_chunks::<{ $point::UNCOMPRESSED }>().0.iter();
                let point = |bytes| {
                    $point::from_uncompressed_on_curve(bytes).ok_or(DecodeError::NotAPoint { what })
                };
                points.map(point).collect()
            }
        }
    };
}

raw_points!(g1_raw, G1Affine);
raw_points!(g2_raw, G2Affine);
