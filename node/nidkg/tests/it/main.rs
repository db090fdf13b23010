//! Stories of key generations, told from outside the crate.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

mod encodings;
mod key_generation;
mod properties;
