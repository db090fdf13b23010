//! Stories of key generations, through the public interface of the crate.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

mod encodings;
mod key_generation;
mod properties;
