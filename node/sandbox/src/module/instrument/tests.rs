#![allow(clippy::unwrap_used)]
use wasmparser::{BinaryReader, Validator};

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
fn names_of_functions_alone_of_custom_sections_survive() {
    let custom = |wat: &str| -> Vec<(String, Vec<u8>)> {
        let wasm = rewrite(wat);
        let sections =
            Parser::new(0).parse_all(&wasm).filter_map(|payload| match payload.unwrap() {
                Payload::CustomSection(section) => {
                    Some((section.name().to_owned(), section.data().to_vec()))
                }
                _ => None,
            });
        sections.collect()
    };
    assert_eq!(custom(r#"(module (func) (@custom "icp:public x" "content"))"#), []);
    // A module with a memory has one function more, before its own, and others behind them.
    let names = custom(
        r#"(module $m (import "ic0" "trap" (func $trap (param i32 i32))) (memory 1)
            (data (i32.const 0) "x") (func $a_long_name (local $l i32))
            (@custom "icp:public x" "content"))"#,
    );
    let [(section, content)] = names.as_slice() else { panic!("{names:?}") };
    assert_eq!(section, "name");
    let shown = super::names::function_names(BinaryReader::new(content, 0), u32::MAX);
    assert_eq!(shown, BTreeMap::from([(0, "trap".to_owned()), (2, "a_long_name".to_owned())]));
    // Neither the module's name nor that of a local.
    assert!(content.len() < 40, "{content:?}");
}
