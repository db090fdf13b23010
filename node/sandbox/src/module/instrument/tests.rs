#![allow(clippy::unwrap_used)]
use wasmparser::Validator;

use super::*;
use crate::module::testing::{limits, valid};
use crate::module::validate::validate;

fn rewrite(wat: &str) -> Vec<u8> {
    let wasm = wat::parse_str(wat).unwrap();
    instrument(&wasm, &validate(&wasm, &limits()).unwrap(), &limits()).unwrap()
}

#[test]
fn what_validation_accepts_is_valid_after_the_rewrite() {
    for wat in valid() {
        let wasm = rewrite(wat);
        Validator::new_with_features(features())
            .validate_all(&wasm)
            .unwrap_or_else(|error| panic!("{error}: {wat}"));
    }
}

#[test]
fn memories_and_tables_get_a_maximum() {
    let mut limits = limits();
    limits.table_elements = 20;
    let wasm = wat::parse_str(
        "(module (memory 1) (table 2 funcref) (table 3 9 funcref) (table 4 funcref))",
    )
    .unwrap();
    let rewritten = instrument(&wasm, &validate(&wasm, &limits).unwrap(), &limits).unwrap();
    let mut tables = Vec::new();
    for payload in Parser::new(0).parse_all(&rewritten) {
        match payload.unwrap() {
            Payload::TableSection(section) => {
                tables.extend(section.into_iter().map(|table| table.unwrap().ty.maximum.unwrap()))
            }
            Payload::MemorySection(section) => {
                assert!(section.into_iter().all(|memory| memory.unwrap().maximum == Some(65_536)));
            }
            _ => {}
        }
    }
    assert_eq!(tables, [13, 3, 4], "the first table takes what is left");
    limits.table_elements = 9;
    assert!(
        instrument(&wasm, &validate(&wasm, &limits).unwrap(), &limits).is_ok(),
        "no growth at all"
    );
}

#[test]
fn custom_sections_do_not_survive() {
    let wasm = rewrite(r#"(module (func $a_long_name) (@custom "icp:public x" "content"))"#);
    assert!(
        Parser::new(0)
            .parse_all(&wasm)
            .all(|payload| !matches!(payload.unwrap(), Payload::CustomSection(_)))
    );
}
