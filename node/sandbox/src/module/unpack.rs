//! From uploaded bytes to a WebAssembly binary: plain or gzip, never larger than the limit.

use std::alloc::{Layout, handle_alloc_error};
use std::borrow::Cow;
use std::io::{ErrorKind, Read};

use flate2::read::GzDecoder;
use limits::ModuleLimits;

use super::error::{ModuleError, limit, within};

/// Magic number of a gzip stream, as the interface specification defines it.
const GZIP_MAGIC: [u8; 3] = [0x1f, 0x8b, 0x08];

/// Magic number and version 1 of a core module.
const WASM_MAGIC: [u8; 8] = *b"\0asm\x01\0\0\0";

/// Unpacks `uploaded` if it is a gzip stream, and checks sizes and magic. Memory stays within
/// `wasm_uncompressed_bytes`, whatever the stream expands to.
pub fn unpack<'a>(uploaded: &'a [u8], limits: &ModuleLimits) -> Result<Cow<'a, [u8]>, ModuleError> {
    check_uploaded_bytes(uploaded.len() as u64, limits)?;
    let wasm = if uploaded.starts_with(&GZIP_MAGIC) {
        Cow::Owned(gunzip(uploaded, limits)?)
    } else {
        Cow::Borrowed(uploaded)
    };
    within(
        "size of the module in bytes",
        limit!(limits.wasm_uncompressed_bytes),
        wasm.len() as u64,
    )?;
    if !wasm.starts_with(&WASM_MAGIC) {
        return Err(ModuleError::NotWasm);
    }
    Ok(wasm)
}

/// Checks the length of a module as it was uploaded.
pub(crate) fn check_uploaded_bytes(bytes: u64, limits: &ModuleLimits) -> Result<(), ModuleError> {
    within("size of the module as uploaded in bytes", limit!(limits.wasm_bytes), bytes)
}

/// Number of leading bytes that determine whether a module is packed.
pub const HEAD_BYTES: usize = GZIP_MAGIC.len();

/// Upper bound on the unpacked size of a module of `bytes` bytes, of which `head` is the beginning
/// ([`HEAD_BYTES`], or all of it), by its size alone: Deflate packs at most 1,032 bytes into one.
pub fn unpacked_bytes_max(bytes: u64, head: &[u8], limits: &ModuleLimits) -> u64 {
    let most = if head.starts_with(&GZIP_MAGIC) { bytes.saturating_mul(1_032) } else { bytes };
    most.min(limits.wasm_uncompressed_bytes)
}

fn gunzip(uploaded: &[u8], limits: &ModuleLimits) -> Result<Vec<u8>, ModuleError> {
    let mut wasm = Vec::new();
    // One byte more than allowed distinguishes a module at the limit from one beyond it.
    let mut stream =
        GzDecoder::new(uploaded).take(limits.wasm_uncompressed_bytes.saturating_add(1));
    stream.read_to_end(&mut wasm).map_err(|error| match error.kind() {
        // A fault of the machine, not a property of the module: the process ends as for any
        // allocation that fails, and its parent waits or tries again.
        ErrorKind::OutOfMemory => handle_alloc_error(Layout::for_value(wasm.as_slice())),
        _ => ModuleError::Gzip,
    })?;
    within(
        "size of the module after unpacking in bytes (at least)",
        limit!(limits.wasm_uncompressed_bytes),
        wasm.len() as u64,
    )?;
    Ok(wasm)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;
    use crate::module::testing::limits;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn plain_and_packed_modules_unpack_to_the_same() {
        let wasm = wat::parse_str("(module)").unwrap();
        assert_eq!(unpack(&wasm, &limits()).unwrap().as_ref(), wasm);
        assert_eq!(unpack(&gzip(&wasm), &limits()).unwrap().as_ref(), wasm);
    }

    // Promise: P14 - A compressed module stops expanding at the limit, which the refusal names.
    #[test]
    fn a_bomb_stops_at_the_limit_and_names_it() {
        let mut limits = limits();
        limits.wasm_uncompressed_bytes = 10_000;
        let error = unpack(&gzip(&vec![0; 50_000_000]), &limits).unwrap_err();
        assert_eq!(
            error,
            ModuleError::Limit {
                what: "size of the module after unpacking in bytes (at least)",
                limit_name: "wasm_uncompressed_bytes",
                limit: 10_000,
                value: 10_001
            }
        );
        assert!(error.to_string().contains("`module.wasm_uncompressed_bytes` is 10000"), "{error}");
    }

    #[test]
    fn unpack_rejects_what_is_not_a_module() {
        let mut small = limits();
        small.wasm_bytes = 10;
        assert!(matches!(
            unpack(&[0; 11], &small),
            Err(ModuleError::Limit { limit_name: "wasm_bytes", .. })
        ));
        assert_eq!(unpack(b"", &limits()), Err(ModuleError::NotWasm));
        assert_eq!(
            unpack(b"\0asm\x0d\0\x01\0", &limits()),
            Err(ModuleError::NotWasm),
            "a component"
        );
        assert_eq!(unpack(&gzip(b"text"), &limits()), Err(ModuleError::NotWasm));
        let mut cut = gzip(&wat::parse_str("(module)").unwrap());
        cut.truncate(cut.len() - 9);
        assert!(matches!(unpack(&cut, &limits()), Err(ModuleError::Gzip)));
    }
}
