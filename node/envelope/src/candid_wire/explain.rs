//! In which way a message differs from the expected type, as a function of both.

use candid::types::{Label, Type as Expected, TypeInner};

use super::Walk;
use super::kinds::{
    BOOL, EMPTY, FLOAT32, FLOAT64, INT, INT8, INT16, INT32, INT64, NAT, NAT8, NAT16, NAT32, NAT64,
    NULL, PRINCIPAL, RESERVED, TEXT,
};
use super::table::{Table, Type};

const OTHER: &str = "a value is not of the expected type: text that is not UTF-8, an unexpected \
                     case of a variant, or a function of another type";

/// The first difference between the types, or the kinds of differences that only values have.
pub(super) fn explain(walk: &Walk, expected: &Expected) -> String {
    let Some(kind) = walk.arguments.first() else {
        return "the message has no argument, one is expected".to_owned();
    };
    let mut path = Vec::new();
    difference(&walk.table, *kind, expected, &mut path).unwrap_or_else(|| OTHER.to_owned())
}

/// Recurses as deep as the expected type, which is of this program.
fn difference(
    table: &Table,
    kind: i64,
    expected: &Expected,
    path: &mut Vec<String>,
) -> Option<String> {
    let found = table.get(kind);
    match (expected.as_ref(), found) {
        // A value that does not fit an option becomes null.
        (TypeInner::Opt(_) | TypeInner::Reserved, _) => None,
        (TypeInner::Record(fields), Some(Type::Record(found))) => fields.iter().find_map(|field| {
            path.push(name(&field.id));
            let label = field.id.get_id();
            let of_field = table.fields(found).iter().find(|(found, _)| *found == label);
            let different = match of_field {
                Some((_, kind)) => difference(table, *kind, &field.ty, path),
                None if is_optional(&field.ty) => None,
                None => Some(format!("{} is missing", place(path))),
            };
            path.pop();
            different
        }),
        (TypeInner::Vec(inner), Some(Type::Vec(found))) => {
            path.push("[]".to_owned());
            let different = difference(table, found, inner, path);
            path.pop();
            different
        }
        (TypeInner::Variant(_), Some(Type::Variant(_)))
        | (TypeInner::Func(_), Some(Type::Func(_)))
        | (TypeInner::Service(_), Some(Type::Service(_)))
        | (TypeInner::Principal, Some(Type::Service(_))) => None,
        (TypeInner::Int, None) if matches!(kind, NAT | INT) => None,
        (expected, None) if code(expected) == Some(kind) => None,
        (expected, _) => Some(format!(
            "{} is of type {}, {} is expected",
            place(path),
            of_wire(kind, found),
            of_expected(expected)
        )),
    }
}

fn name(label: &Label) -> String {
    match label {
        Label::Named(name) => name.clone(),
        Label::Id(number) | Label::Unnamed(number) => number.to_string(),
    }
}

fn place(path: &[String]) -> String {
    if path.is_empty() {
        return "the argument".to_owned();
    }
    format!("`{}`", path.join(".").replace(".[]", "[]"))
}

fn is_optional(expected: &Expected) -> bool {
    matches!(expected.as_ref(), TypeInner::Opt(_) | TypeInner::Null | TypeInner::Reserved)
}

macro_rules! primitives {
    ($($inner:ident, $code:ident, $name:literal;)+) => {
        const fn code(expected: &TypeInner) -> Option<i64> {
            match expected {
                $(TypeInner::$inner => Some($code),)+
                _ => None,
            }
        }

        const fn primitive(kind: i64) -> Option<&'static str> {
            match kind {
                $($code => Some($name),)+
                _ => None,
            }
        }
    };
}

primitives! {
    Null, NULL, "null";
    Bool, BOOL, "bool";
    Nat, NAT, "nat";
    Int, INT, "int";
    Nat8, NAT8, "nat8";
    Nat16, NAT16, "nat16";
    Nat32, NAT32, "nat32";
    Nat64, NAT64, "nat64";
    Int8, INT8, "int8";
    Int16, INT16, "int16";
    Int32, INT32, "int32";
    Int64, INT64, "int64";
    Float32, FLOAT32, "float32";
    Float64, FLOAT64, "float64";
    Text, TEXT, "text";
    Reserved, RESERVED, "reserved";
    Empty, EMPTY, "empty";
    Principal, PRINCIPAL, "principal";
}

fn of_wire(kind: i64, found: Option<Type>) -> &'static str {
    match found {
        Some(Type::Opt(_)) => "opt",
        Some(Type::Vec(NAT8)) => "blob",
        Some(Type::Vec(_)) => "vec",
        Some(Type::Record(_)) => "record",
        Some(Type::Variant(_)) => "variant",
        Some(Type::Func(_)) => "func",
        Some(Type::Service(_)) => "service",
        Some(Type::Future) => "a later version of Candid",
        None => primitive(kind).unwrap_or("unknown"),
    }
}

fn of_expected(expected: &TypeInner) -> &'static str {
    match expected {
        TypeInner::Vec(inner) if matches!(inner.as_ref(), TypeInner::Nat8) => "blob",
        TypeInner::Vec(_) => "vec",
        TypeInner::Record(_) => "record",
        TypeInner::Variant(_) => "variant",
        TypeInner::Func(_) => "func",
        TypeInner::Service(_) => "service",
        expected => code(expected).and_then(primitive).unwrap_or("another type"),
    }
}
