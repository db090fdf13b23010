//! The key of a subnet: made in a ceremony, and reshared.
#![allow(clippy::unwrap_used, missing_docs)]

mod ceremony;
mod common;
mod resharing;
