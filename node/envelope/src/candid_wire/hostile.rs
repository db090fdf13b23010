//! Candid messages that are slow, large or deep in one way each, for tests and fuzz targets.
//!
//! No part of the node's interface. Whatever reads Candid that a client or a canister sent has to
//! refuse or accept each of them within few steps, alike on every stack and in every build.

use super::{FIELDS_MAX, REFERENCE_TYPES_MAX, TYPES_MAX};

/// Adds a number in LEB128.
pub fn number(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}

/// Adds the index of a type, in signed LEB128.
fn index(message: &mut Vec<u8>, index: u64) {
    number(message, index);
    // The sign is the bit 0x40 of the last byte.
    if let Some(last) = message.last_mut().filter(|last| **last & 0x40 != 0) {
        *last |= 0x80;
        message.push(0);
    }
}

fn begin(types: u64) -> Vec<u8> {
    let mut message = b"DIDL".to_vec();
    number(&mut message, types);
    message
}

/// A `vec null` of this many elements, which have no bytes.
pub fn nulls(elements: u64) -> Vec<u8> {
    let mut message = b"DIDL\x01\x6d\x7f\x01\x00".to_vec();
    number(&mut message, elements);
    message
}

/// A value of `type t = opt t` with this number of options in each other.
pub fn nested_options(levels: usize) -> Vec<u8> {
    let mut message = b"DIDL\x01\x6e\x00\x01\x00".to_vec();
    message.extend(std::iter::repeat_n(1, levels));
    message.push(0);
    message
}

/// `record { canister_id : principal; environment_variables : vec record { name; value } }` with
/// this number of empty variables: two bytes in the message for each, 48 in memory.
pub fn empty_variables(canister_id: &[u8], variables: u64) -> Vec<u8> {
    let label = super::label;
    let mut message = begin(3);
    let pairs = [label("name"), label("value")];
    let fields = |message: &mut Vec<u8>, fields: [(u32, &[u8]); 2]| {
        message.extend([0x6c, 2]);
        let mut fields = fields;
        fields.sort_unstable();
        for (label, kind) in fields {
            number(message, label.into());
            message.extend(kind);
        }
        fields[0].0
    };
    fields(&mut message, pairs.map(|label| (label, &[0x71][..])));
    message.extend([0x6d, 0]);
    let (id, variables_label) = (label("canister_id"), label("environment_variables"));
    let first = fields(&mut message, [(id, &[0x68]), (variables_label, &[1])]);
    message.extend([1, 2]);
    let mut principal = vec![1];
    number(&mut principal, canister_id.len() as u64);
    principal.extend(canister_id);
    let mut list = Vec::new();
    number(&mut list, variables);
    list.resize(list.len() + usize::try_from(variables).unwrap_or(0).saturating_mul(2), 0);
    let in_order = if first == id { [principal, list] } else { [list, principal] };
    message.extend(in_order.concat());
    message
}

/// All of them, each with a description of its attack.
pub fn messages() -> Vec<(&'static str, Vec<u8>)> {
    // Two values in each of 20 levels: 2^20 values without a byte.
    let mut tree = begin(20);
    for next in 1..=20 {
        let next = if next == 20 { 0x7f } else { next };
        tree.extend([0x6c, 2, 0, next, 1, next]);
    }
    tree.extend([1, 0]);
    // Records within records, as many as types.
    let mut chain = begin(TYPES_MAX as u64);
    for next in 1..TYPES_MAX as u64 {
        chain.extend([0x6c, 1, 0]);
        index(&mut chain, next);
    }
    chain.extend([0x6c, 1, 0, 0x7f, 0]);
    // A function whose argument is an option of an option, as often as the bound allows.
    let mut options = begin(REFERENCE_TYPES_MAX as u64);
    options.extend([0x6a, 1, 1, 0, 0]);
    for next in 2..REFERENCE_TYPES_MAX as u64 {
        options.push(0x6e);
        index(&mut options, next);
    }
    options.extend([0x6e, 0x7f, 1, 0, 1, 1, 0, 0]);
    // Variants whose last case is used, of as many cases as there may be.
    let mut cases = begin(2);
    cases.push(0x6b);
    number(&mut cases, FIELDS_MAX as u64);
    for case in 0..FIELDS_MAX as u64 {
        number(&mut cases, case);
        cases.push(0x7f);
    }
    cases.extend([0x6d, 0, 1, 1]);
    number(&mut cases, 9_000);
    for _ in 0..9_000 {
        number(&mut cases, FIELDS_MAX as u64 - 1);
    }
    let mut large = b"DIDL\x00\x01\x7d".to_vec();
    large.resize(1 << 20, 0xff);
    large.push(1);
    vec![
        ("2^60 elements without bytes", nulls(1 << 60)),
        ("more elements than values", nulls(10_001)),
        ("options at the depth limit", nested_options(super::DEPTH_MAX)),
        ("options beyond the depth limit", nested_options(super::DEPTH_MAX + 1)),
        ("3,014 bytes of options", nested_options(3_004)),
        ("a million options", nested_options(1_000_000)),
        ("a tree of 2^20 values", tree),
        ("a record that contains itself", b"DIDL\x01\x6c\x01\x00\x00\x01\x00".to_vec()),
        ("a chain of record types", chain),
        ("a function of nested options", options),
        ("variants of many cases", cases),
        ("a nat of a megabyte", large),
        ("1.96 MB of empty variables", empty_variables(&[4], 980_000)),
        ("types of which there are none", b"DIDL\x01\x6e\x05\x01\x00\x01".to_vec()),
        ("a text that is not UTF-8", b"DIDL\x00\x01\x71\x02\xff\xfe".to_vec()),
        ("nothing", Vec::new()),
        ("only the magic", b"DIDL".to_vec()),
    ]
}
