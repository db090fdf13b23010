//! The one way in which a Candid message of a client or a canister is decoded.
//!
//! A walk (`walk.rs`) reads a message before the Candid library sees a byte of it: header, type
//! table and all values, against fixed bounds and against the bounds of the fields that a caller
//! names ([`Bounds`]). It builds no value, keeps its own stack of [`DEPTH_MAX`] frames, and takes a
//! number of steps that is bounded by [`STEPS_MAX`] and by the bytes. Each step has a price in
//! instructions ([`Cost`]), which the caller charges whether the message is accepted or not.
//!
//! The Candid library measures the native stack that is left, and its texts change with its
//! version. Within the bounds here its recursion stays far below any stack that a thread has, and
//! none of its texts leaves this module: [`Refusal`] is a function of the message, of the bounds
//! and of the expected type.
//!
//! This module must never know which methods there are.

mod explain;
pub mod hostile;
#[expect(missing_docs, reason = "the names of the types")]
pub mod kinds;
mod table;
mod walk;

use candid::{CandidType, de::DecoderConfig, de::IDLDeserialize};
use ic_principal::Principal;
use serde::de::DeserializeOwned;
use thiserror::Error;

pub use table::{Reader, label};
use walk::Walk;

/// Bytes of the header: magic, type table, types of the arguments.
pub const HEADER_BYTES_MAX: usize = 64 << 10;
/// Entries of the type table. The Candid library recurses through records in it.
pub const TYPES_MAX: usize = 256;
/// Fields, cases, methods, and arguments and results of functions, of all types together.
pub const FIELDS_MAX: usize = 2_048;
/// Types that a function or service type refers to, all of them together: the Candid library
/// compares those with the expected ones, recursively.
pub const REFERENCE_TYPES_MAX: usize = 32;
/// Arguments of one message.
pub const ARGUMENTS_MAX: usize = 64;
/// Values within values. The deepest argument of the management canister has 7.
pub const DEPTH_MAX: usize = 32;
/// Values of one message, those without bytes included. A value counts several times where the
/// Candid library does more for it: one of a variant with the cases before its own, one of a
/// function or service with the fields of its type, an option with the types that functions refer
/// to. The metadata of a snapshot with 1,000 globals has some 5,000.
pub const STEPS_MAX: u64 = 10_000;
/// Bytes of the name of a method.
pub const METHOD_BYTES_MAX: usize = 20_000;

/// Instructions for one type, field or value that is read here, at 2 billion instructions per
/// second.
const STEP_INSTRUCTIONS: u64 = 25;
/// The same for one that the Candid library reads afterwards.
const DECODED_STEP_INSTRUCTIONS: u64 = 500;
/// Instructions for one byte, which is read once and copied at most twice.
const BYTE_INSTRUCTIONS: u64 = 1;
/// Instructions for a byte of a `nat` or `int`, which the Candid library reads one by one.
const NUMBER_BYTE_INSTRUCTIONS: u64 = 20;

/// Most elements of vectors in a field, or in the case of a variant, of this name. A vector in an
/// option is bounded like the vector alone; a blob is not bounded by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorBound {
    field: &'static str,
    label: u32,
    most: u64,
    /// Where the bound is set, if it can be set.
    limit: Option<&'static str>,
}

impl VectorBound {
    /// At most `most` elements in `field`. `limit` is the name under which operators set it.
    pub const fn new(field: &'static str, most: u64, limit: Option<&'static str>) -> Self {
        Self { field, label: label(field), most, limit }
    }
}

/// Bounds of one message in addition to the fixed bounds of this module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds<'a> {
    /// Bounds of vectors by the name of their field.
    pub vectors: &'a [VectorBound],
}

/// Cost of reading messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Types, fields and values.
    pub steps: u64,
    /// Bytes.
    pub bytes: u64,
    /// The price of both.
    pub instructions: u64,
}

impl Cost {
    /// A message of `bytes` bytes was read up to this number of steps.
    fn add_walk(&mut self, steps: u64, bytes: usize) {
        let bytes = bytes as u64;
        self.steps = self.steps.saturating_add(steps);
        self.bytes = self.bytes.saturating_add(bytes);
        let price = steps.saturating_mul(STEP_INSTRUCTIONS);
        self.add(price.saturating_add(bytes.saturating_mul(BYTE_INSTRUCTIONS)));
    }

    fn add(&mut self, instructions: u64) {
        self.instructions = self.instructions.saturating_add(instructions);
    }
}

/// Why a message is refused: a function of the message, the bounds and the expected type.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum Refusal {
    #[error("invalid Candid at byte {at}: {what}")]
    Invalid { at: usize, what: &'static str },
    #[error("the message has more than {most} {what}")]
    TooMany { what: &'static str, most: u64 },
    /// Values within values.
    #[error("values are nested more than {DEPTH_MAX} levels deep")]
    TooDeep,
    #[error("`{field}` has {found} elements, the limit is {most}{limit}")]
    Vector {
        field: &'static str,
        found: u64,
        most: u64,
        /// ` (name of the limit)`, or nothing.
        limit: String,
    },
    /// Another type than expected.
    #[error("{0}")]
    Mismatch(String),
}

/// Reads `message` within `bounds` and adds the cost to `cost`.
///
/// # Errors
/// When it is not within the bounds, or not one value of type `T`. The cost is added in any case.
pub fn decode<T: CandidType + DeserializeOwned>(
    message: &[u8],
    bounds: Bounds<'_>,
    cost: &mut Cost,
) -> Result<T, Refusal> {
    let walk = Walk::run(message, None, bounds, cost)?;
    cost.add(walk.steps.saturating_mul(DECODED_STEP_INSTRUCTIONS));
    cost.add((message.len() as u64).saturating_mul(BYTE_INSTRUCTIONS));
    cost.add(walk.number_bytes.saturating_mul(NUMBER_BYTE_INSTRUCTIONS));
    let explained = || Refusal::Mismatch(explain::explain(&walk, &T::ty()));
    let read = || -> candid::Result<T> {
        let mut values = IDLDeserialize::new_with_config(message, &config(message))?;
        let value = values.get_value()?;
        values.done()?;
        Ok(value)
    };
    read().map_err(|_| explained())
}

/// Reads a message from which no value is taken; arguments that it has are passed over.
///
/// # Errors
/// When it is not within the bounds. The cost is added in any case.
pub fn decode_nothing(message: &[u8], bounds: Bounds<'_>, cost: &mut Cost) -> Result<(), Refusal> {
    Walk::run(message, None, bounds, cost).map(drop)
}

/// The principal in a field of the first argument, of which nothing else is built.
///
/// # Errors
/// When the message is not within the bounds, or has no such field. The cost is added in any case.
pub fn principal_in(
    message: &[u8],
    field: &'static str,
    bounds: Bounds<'_>,
    cost: &mut Cost,
) -> Result<Principal, Refusal> {
    let walk = Walk::run(message, Some(field), bounds, cost)?;
    walk.principal.ok_or_else(|| {
        Refusal::Mismatch(format!("the first argument has no field `{field}` of type principal"))
    })
}

/// Bounds of the library: all of them are the walk's, which the message has passed.
fn config(message: &[u8]) -> DecoderConfig {
    let mut config = DecoderConfig::new();
    config
        .set_max_type_len(TYPES_MAX)
        .set_max_header_len(message.len())
        .set_full_error_message(false);
    config
}
