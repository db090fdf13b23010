//! What a function weighs for the compiler.
//!
//! Limits on functions and on the code section are stated in bytes, because for real code the time and memory
//! a compiler needs follow its bytes. Two things cost much more than the bytes they take, so they count as if
//! they took more: a local, of which one byte declares tens of thousands, counts as one byte; and a block
//! counts as one byte for every [`DEPTH_PER_BYTE`] blocks around it, because compilers do work at each level.
//! Code from compilers has few of either and weighs hardly more than its size.

use wasmparser::{FunctionBody, Operator};

use super::error::ModuleError;

/// Levels of nesting that make a block one byte heavier.
const DEPTH_PER_BYTE: u64 = 64;

/// Bytes that `body`, which is valid, weighs beyond its size.
pub(super) fn extra_weight(body: &FunctionBody<'_>) -> Result<u64, ModuleError> {
    let mut extra = 0_u64;
    for locals in body.get_locals_reader()? {
        extra = extra.saturating_add(locals?.0.into());
    }
    let mut depth = 0_u64;
    let mut operators = body.get_operators_reader()?;
    while !operators.eof() {
        match operators.read()? {
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                depth += 1;
                extra = extra.saturating_add(depth / DEPTH_PER_BYTE);
            }
            Operator::End => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(extra)
}
