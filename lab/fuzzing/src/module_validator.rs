//! Uploaded bytes against the validator: it never panics, and whatever it accepts instruments into
//! a module that is valid WebAssembly.

use limits::ModuleLimits;
use sandbox::module::{features, instrument, unpack, validate};
use wasmparser::Validator;

/// Small enough that the limits themselves are met often.
const LIMITS: ModuleLimits = ModuleLimits {
    wasm_bytes: 1 << 20,
    wasm_uncompressed_bytes: 1 << 20,
    code_section_bytes: 100_000,
    functions: 300,
    function_bytes: 10_000,
    function_weight: 20_000,
    weight: 30_000,
    globals: 30,
    table_elements: 1_000,
    tables: 3,
    data_segments: 30,
    custom_sections: 4,
    custom_sections_bytes: 1_000,
    exported_functions: 20,
    exported_names_bytes: 300,
    heap32_bytes: 4 << 30,
    heap64_bytes: 6 << 30,
    stable_bytes: 8 << 30,
};

pub(crate) fn test_one_input(uploaded: &[u8]) {
    let Ok(wasm) = unpack(uploaded, &LIMITS) else { return };
    let Ok(validated) = validate(&wasm, &LIMITS) else { return };
    let instrumented =
        instrument(&wasm, &validated, &LIMITS).expect("what is valid can be instrumented");
    Validator::new_with_features(features())
        .validate_all(&instrumented)
        .expect("instrumentation keeps modules valid");
    assert_eq!(
        instrument(&wasm, &validated, &LIMITS).as_deref(),
        Ok(instrumented.as_slice()),
        "instrumentation is a function of the module"
    );
}
