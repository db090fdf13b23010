//! Valid modules with random damage: validation never panics, and whatever it still accepts is
//! valid WebAssembly after instrumentation. The same property is fuzzed by `fuzz/`; this is the
//! part of it that every test run repeats, with the same modules each time.

use limits::ModuleLimits;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use sandbox::module::{self, features};
use wasmparser::Validator;

fn limits() -> ModuleLimits {
    ModuleLimits {
        wasm_bytes: 1 << 20,
        wasm_uncompressed_bytes: 1 << 20,
        code_section_bytes: 1 << 20,
        functions: 1_000,
        function_bytes: 100_000,
        function_weight: 100_000,
        weight: 100_000,
        globals: 100,
        table_elements: 10_000,
        tables: 4,
        data_segments: 100,
        custom_sections: 16,
        custom_sections_bytes: 10_000,
        exported_functions: 100,
        exported_names_bytes: 1_000,
        heap32_bytes: 4 << 30,
        heap64_bytes: 6 << 30,
        stable_bytes: 8 << 30,
    }
}

/// One injury. Positions are relative, so they fit any module.
#[derive(Clone, Debug)]
enum Damage {
    Set(Index, u8),
    Add(Index, u8),
    Insert(Index, u8),
    Delete(Index),
    /// Copies a stretch from one place to another.
    Splice(Index, Index, u8),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (any::<Index>(), prop_oneof![Just(1), Just(255), Just(127), Just(128)])
            .prop_map(|(at, byte)| Damage::Add(at, byte)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        any::<Index>().prop_map(Damage::Delete),
        (any::<Index>(), any::<Index>(), 1..16_u8)
            .prop_map(|(from, to, len)| Damage::Splice(from, to, len)),
    ]
}

fn injure(mut wasm: Vec<u8>, injuries: &[Damage]) -> Vec<u8> {
    // The header stays whole; without it there is nothing to test.
    for injury in injuries {
        let body = &mut wasm[8..];
        match injury {
            _ if body.is_empty() => {}
            Damage::Set(at, byte) => body[at.index(body.len())] = *byte,
            Damage::Add(at, byte) => {
                let at = at.index(body.len());
                body[at] = body[at].wrapping_add(*byte);
            }
            Damage::Insert(at, byte) => {
                let at = at.index(body.len());
                wasm.insert(8 + at, *byte);
            }
            Damage::Delete(at) => {
                let at = at.index(body.len());
                wasm.remove(8 + at);
            }
            Damage::Splice(from, to, len) => {
                let (from, to) = (from.index(body.len()), to.index(body.len()));
                let stretch: Vec<u8> =
                    body[from..].iter().copied().take(usize::from(*len)).collect();
                for (target, byte) in body[to..].iter_mut().zip(stretch) {
                    *target = byte;
                }
            }
        }
    }
    wasm
}

// Promise: P15 - A damaged module is refused or instrumented to a valid module.
#[test]
fn damaged_modules_are_refused_or_instrument_to_valid_ones() {
    let seeds: Vec<Vec<u8>> = include_str!("../seeds.wat")
        .split(";; ----")
        .map(|wat| wat::parse_str(wat).unwrap())
        .collect();
    for seed in &seeds {
        module::process(seed, &limits()).unwrap();
    }
    let config = Config { cases: 20_000, failure_persistence: None, ..Config::default() };
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let accepted = std::cell::Cell::new(0);
    runner
        .run(&(0..seeds.len(), vec(damage(), 1..4)), |(seed, injuries)| {
            let wasm = injure(seeds[seed].clone(), &injuries);
            if let Ok((instrumented, _, _)) = module::process(&wasm, &limits()) {
                accepted.set(accepted.get() + 1);
                Validator::new_with_features(features()).validate_all(&instrumented).unwrap();
            }
            Ok(())
        })
        .unwrap();
    assert!(
        accepted.get() > 1_000,
        "{} damaged modules were still valid: the other half of the property was hardly tested",
        accepted.get()
    );
}
