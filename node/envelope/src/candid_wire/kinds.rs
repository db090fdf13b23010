//! Codes of types, as Candid writes them.

pub const NULL: i64 = -1;
pub const BOOL: i64 = -2;
pub const NAT: i64 = -3;
pub const INT: i64 = -4;
pub const NAT8: i64 = -5;
pub const NAT16: i64 = -6;
pub const NAT32: i64 = -7;
pub const NAT64: i64 = -8;
pub const INT8: i64 = -9;
pub const INT16: i64 = -10;
pub const INT32: i64 = -11;
pub const INT64: i64 = -12;
pub const FLOAT32: i64 = -13;
pub const FLOAT64: i64 = -14;
pub const TEXT: i64 = -15;
pub const RESERVED: i64 = -16;
pub const EMPTY: i64 = -17;
pub const OPT: i64 = -18;
pub const VEC: i64 = -19;
pub const RECORD: i64 = -20;
pub const VARIANT: i64 = -21;
pub const FUNC: i64 = -22;
pub const SERVICE: i64 = -23;
pub const PRINCIPAL: i64 = -24;

/// Bytes of a value of this type, if all its values have as many.
pub const fn fixed_bytes(kind: i64) -> Option<u64> {
    match kind {
        NULL | RESERVED => Some(0),
        BOOL | NAT8 | INT8 => Some(1),
        NAT16 | INT16 => Some(2),
        NAT32 | INT32 | FLOAT32 => Some(4),
        NAT64 | INT64 | FLOAT64 => Some(8),
        _ => None,
    }
}
