//! Limits and modules that the tests of this folder share.
#![allow(clippy::unwrap_used)]

use limits::ModuleLimits;

/// Limits as a node of 512 MiB might have them.
pub(crate) fn limits() -> ModuleLimits {
    ModuleLimits {
        wasm_bytes: 30 << 20,
        wasm_uncompressed_bytes: 40 << 20,
        code_section_bytes: 12 << 20,
        functions: 50_000,
        function_bytes: 1 << 20,
        function_weight: 4_000_000,
        weight: 4_000_000,
        globals: 1_000,
        table_elements: 1 << 20,
        tables: 4,
        data_segments: 10_000,
        custom_sections: 16,
        custom_sections_bytes: 1 << 20,
        exported_functions: 1_000,
        exported_names_bytes: 20_000,
        heap32_bytes: 4 << 30,
        heap64_bytes: 6 << 30,
        stable_bytes: 8 << 30,
    }
}

/// Modules that are valid canisters and between them have everything instrumentation treats
/// specially.
pub(crate) fn valid() -> impl Iterator<Item = &'static str> {
    include_str!("../../tests/seeds.wat").split(";; ----")
}
