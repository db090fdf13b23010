//! Hostile Candid: messages of the wire format that a decoder must bound before it builds a value.
//!
//! Two sources. [`shape`] makes messages that are hostile in themselves: element counts that no
//! message can hold, types that contain themselves, deep nesting, wide tables, LEB128 numbers in
//! unusual forms. [`argument`] makes the valid argument of a method of the management canister, and
//! [`mutated`] changes it: longer vectors and texts, hostile values in unknown fields and in place
//! of fields, changed bytes.
//!
//! Everything follows from the random number generator. This module builds messages itself, because
//! a library would refuse to write most of them.

pub(super) use candid::idl_hash as field;
use candid::types::leb128;
use rand::{Rng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

/// Bytes of a message that a client can send in one call.
const MESSAGE_BYTES_MAX: usize = 1_900_000;

const NULL: i64 = -1;
const BOOL: i64 = -2;
const NAT: i64 = -3;
const NAT64: i64 = -8;
const TEXT: i64 = -15;
const RESERVED: i64 = -16;
const EMPTY: i64 = -17;
const NAT8: i64 = -5;
const PRINCIPAL: i64 = -24;

/// A number as unsigned LEB128.
pub(super) fn leb(value: u128) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A vector takes every byte.
    let _ = leb128::encode_nat(&mut bytes, value);
    bytes
}

/// A number as signed LEB128.
fn sleb(value: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = leb128::encode_int(&mut bytes, value.into());
    bytes
}

/// A type: primitive, or an entry of the payload's own table.
#[derive(Clone, Copy, Debug)]
pub(super) enum Type {
    Primitive(i64),
    Entry(usize),
}

/// An entry of a type table.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    Opt(Type),
    Vec(Type),
    Record(Vec<(u32, Type)>),
    Variant(Vec<(u32, Type)>),
    Service(usize),
    /// Bytes as they are.
    Raw(Vec<u8>),
}

/// One argument of a message, with the types it needs.
#[derive(Clone, Debug)]
pub(super) struct Payload {
    pub(super) table: Vec<Entry>,
    pub(super) root: Type,
    pub(super) value: Vec<u8>,
}

impl Payload {
    fn new(table: Vec<Entry>, value: Vec<u8>) -> Self {
        Self { table, root: Type::Entry(0), value }
    }

    fn primitive(kind: i64, value: Vec<u8>) -> Self {
        Self { table: vec![], root: Type::Primitive(kind), value }
    }
}

fn put_type(bytes: &mut Vec<u8>, kind: Type, offset: usize) {
    bytes.extend(match kind {
        Type::Primitive(kind) => sleb(kind),
        Type::Entry(index) => sleb((index + offset) as i64),
    });
}

fn put_entry(bytes: &mut Vec<u8>, entry: &Entry, offset: usize) {
    match entry {
        Entry::Opt(of) => {
            bytes.push(0x6e);
            put_type(bytes, *of, offset);
        }
        Entry::Vec(of) => {
            bytes.push(0x6d);
            put_type(bytes, *of, offset);
        }
        Entry::Record(fields) | Entry::Variant(fields) => {
            bytes.push(if matches!(entry, Entry::Record(_)) { 0x6c } else { 0x6b });
            bytes.extend(leb(fields.len() as u128));
            for (name, kind) in fields {
                bytes.extend(leb(u128::from(*name)));
                put_type(bytes, *kind, offset);
            }
        }
        Entry::Service(methods) => {
            bytes.push(0x69);
            bytes.extend(leb(*methods as u128));
            for method in 0..*methods {
                let name = format!("m{method:07}");
                bytes.extend(leb(name.len() as u128));
                bytes.extend(name.bytes());
                put_type(bytes, Type::Entry(0), offset);
            }
        }
        Entry::Raw(raw) => bytes.extend(raw),
    }
}

pub(super) fn message(arguments: &[Payload]) -> Vec<u8> {
    let mut bytes = b"DIDL".to_vec();
    let entries: usize = arguments.iter().map(|argument| argument.table.len()).sum();
    bytes.extend(leb(entries as u128));
    let mut offsets = Vec::new();
    let mut offset = 0;
    for argument in arguments {
        offsets.push(offset);
        for entry in &argument.table {
            put_entry(&mut bytes, entry, offset);
        }
        offset += argument.table.len();
    }
    bytes.extend(leb(arguments.len() as u128));
    for (argument, offset) in arguments.iter().zip(&offsets) {
        put_type(&mut bytes, argument.root, *offset);
    }
    for argument in arguments {
        bytes.extend(&argument.value);
    }
    bytes
}

/// A vector of `elements` elements that take no bytes.
pub(super) fn zero_sized(elements: u128, of: i64) -> Payload {
    Payload::new(vec![Entry::Vec(Type::Primitive(of))], leb(elements))
}

/// A type that is `opt` of itself, with a value of the given depth.
pub(super) fn nested_opt(depth: usize) -> Payload {
    let mut value = vec![1; depth];
    value.push(0);
    Payload::new(vec![Entry::Opt(Type::Entry(0))], value)
}

/// The kinds of hostile message.
const SHAPES: [&str; 18] = [
    "vec-zero-sized",
    "vec-of-vec-null",
    "vec-of-empty-records",
    "opt-recursive",
    "opt-chain-of-types",
    "vec-recursive",
    "record-recursive",
    "record-doubling",
    "variant-recursive",
    "wide-table",
    "wide-record",
    "fields-duplicate",
    "fields-unsorted",
    "many-arguments",
    "leb-edges",
    "nat-huge",
    "service-wide",
    "future-type",
];

/// A hostile value, with the name of its shape.
pub(super) fn shape(random: &mut ChaCha8Rng) -> (&'static str, Payload) {
    let name = SHAPES[random.gen_range(0..SHAPES.len())];
    (name, shape_of(name, random))
}

#[expect(clippy::too_many_lines, reason = "one line or two for each shape")]
fn shape_of(name: &str, random: &mut ChaCha8Rng) -> Payload {
    let depth = *[60, 500, 2_000, 3_004, 9_000, 40_000, 300_000].choose(random).unwrap_or(&60);
    let count = *[11_u128, 1 << 16, 1 << 24, 1 << 32, 1 << 60, u64::MAX as u128, 1 << 66]
        .choose(random)
        .unwrap_or(&11);
    let wide = *[100, 2_000, 30_000, 150_000].choose(random).unwrap_or(&100);
    let entry = Type::Entry;
    let null = Type::Primitive(NULL);
    match name {
        "vec-zero-sized" => {
            zero_sized(count, *[NULL, RESERVED, EMPTY].choose(random).unwrap_or(&NULL))
        }
        "vec-of-vec-null" => {
            let inner = random.gen_range(1..2_000);
            let value = std::iter::repeat_with(|| leb(1 << 20)).take(inner).flatten();
            let value = leb(inner as u128).into_iter().chain(value).collect();
            Payload::new(vec![Entry::Vec(entry(1)), Entry::Vec(null)], value)
        }
        "vec-of-empty-records" => {
            let of = vec![(0, null), (1, Type::Primitive(RESERVED)), (2, entry(2))];
            let table = vec![Entry::Vec(entry(1)), Entry::Record(of), Entry::Record(vec![])];
            Payload::new(table, leb(count))
        }
        "opt-recursive" => nested_opt(depth),
        "opt-chain-of-types" => {
            let depth = depth.min(40_000);
            let mut table: Vec<Entry> =
                (0..depth).map(|at| Entry::Opt(Type::Entry(at + 1))).collect();
            table.push(Entry::Opt(null));
            Payload::new(table, vec![1; depth + 1])
        }
        "vec-recursive" => {
            let mut value = vec![1; depth];
            value.push(0);
            Payload::new(vec![Entry::Vec(entry(0))], value)
        }
        "record-recursive" => {
            let table = vec![Entry::Record(vec![(0, entry(0)), (1, entry(1))]), Entry::Opt(null)];
            Payload::new(table, vec![0; random.gen_range(0..64)])
        }
        "record-doubling" => {
            let depth = random.gen_range(20..64);
            let mut table: Vec<Entry> =
                (1..=depth).map(|at| Entry::Record(vec![(0, entry(at)), (1, entry(at))])).collect();
            table.push(Entry::Record(vec![]));
            if random.gen_bool(0.5) {
                // The same behind a vector: one element has no bytes and 2^depth values.
                let outer = table.len();
                table.push(Entry::Vec(entry(0)));
                return Payload { table, root: entry(outer), value: leb(1) };
            }
            Payload::new(table, vec![])
        }
        "variant-recursive" => {
            let table = vec![Entry::Variant(vec![(0, entry(0)), (1, null)])];
            let mut value = vec![0; depth];
            value.push(1);
            Payload::new(table, value)
        }
        "wide-table" => {
            let table = (0..wide).map(|at| Entry::Opt(Type::Entry((at + 1) % wide))).collect();
            Payload::new(table, vec![0])
        }
        "wide-record" => {
            let fields = (0..wide as u32).map(|name| (name, null)).collect();
            Payload::new(vec![Entry::Record(fields)], vec![])
        }
        "fields-duplicate" => {
            let fields = vec![(7, null); random.gen_range(2..50)];
            Payload::new(vec![Entry::Record(fields)], vec![])
        }
        "fields-unsorted" => {
            let fields = vec![(u32::MAX, null), (3, null), (900, Type::Primitive(BOOL))];
            Payload::new(vec![Entry::Record(fields)], vec![1])
        }
        "leb-edges" => {
            // A count in ten bytes, one that does not end, one beyond 64 bit.
            let forms: [&[u8]; 4] = [
                &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00],
                &[0x80; 40],
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
                &[0xff; 19],
            ];
            let form = forms[random.gen_range(0..forms.len())].to_vec();
            if random.gen_bool(0.5) {
                return Payload::new(vec![Entry::Vec(Type::Primitive(NAT8))], form);
            }
            let raw = [&[0x6c][..], &form].concat();
            Payload::new(vec![Entry::Raw(raw)], vec![])
        }
        "nat-huge" => {
            let digits = *[100, 20_000, 400_000, MESSAGE_BYTES_MAX].choose(random).unwrap_or(&100);
            let mut value = vec![0xff; digits];
            value.push(1);
            Payload::primitive(NAT, value)
        }
        "service-wide" => {
            // func () -> (), then a service with that for each method.
            let func = Entry::Raw(vec![0x6a, 0, 0, 0]);
            let service = Entry::Service(wide.min(100_000));
            Payload { table: vec![func, service], root: entry(1), value: vec![1, 0] }
        }
        "future-type" => {
            let size = *[0_u128, 5, 1 << 20, 1 << 62].choose(random).unwrap_or(&0);
            let raw = [sleb(-25 - random.gen_range(0..200)), leb(size), vec![0; 5]].concat();
            Payload::new(vec![Entry::Raw(raw)], [leb(size), leb(0), vec![0; 5]].concat())
        }
        // Many arguments are made by `hostile`, which knows the message.
        _ => Payload::primitive(NULL, vec![]),
    }
}

/// A hostile message, and what it is.
pub(super) fn hostile(random: &mut ChaCha8Rng) -> (String, Vec<u8>) {
    let (name, payload) = shape(random);
    let bytes = match name {
        "many-arguments" => {
            let count = *[100, 10_000, 1_000_000].choose(random).unwrap_or(&100);
            message(&vec![payload; count])
        }
        // Also behind a valid first argument.
        _ if random.gen_bool(0.2) => message(&[Payload::primitive(NAT64, vec![0; 8]), payload]),
        _ => message(&[payload]),
    };
    (name.to_owned(), cut(bytes))
}

fn cut(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(MESSAGE_BYTES_MAX);
    bytes
}

/// A value of an argument that is valid before it is mutated.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Bool(bool),
    Nat(Vec<u8>),
    Nat64(u64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
    Principal(Vec<u8>),
    Null,
    Opt(Box<Value>),
    Vec(Vec<Value>),
    Record(Vec<(u32, Value)>),
    Variant(u32, Box<Value>),
    Hostile(Payload),
}

impl Value {
    pub(super) fn nat(value: u128) -> Self {
        Self::Nat(leb(value))
    }

    pub(super) fn text(value: &str) -> Self {
        Self::Text(value.as_bytes().to_vec())
    }

    pub(super) fn record<const COUNT: usize>(fields: [(&str, Self); COUNT]) -> Self {
        Self::Record(fields.into_iter().map(|(name, value)| (field(name), value)).collect())
    }

    fn opt(self) -> Self {
        Self::Opt(Box::new(self))
    }

    /// Adds the value's types to `table` and its bytes to `bytes`; returns its type.
    #[expect(clippy::too_many_lines, reason = "one entry for each kind of value")]
    fn put(&self, table: &mut Vec<Entry>, bytes: &mut Vec<u8>) -> Type {
        let sized = |bytes: &mut Vec<u8>, text: &[u8]| {
            bytes.extend(leb(text.len() as u128));
            bytes.extend(text);
        };
        match self {
            Self::Bool(value) => {
                bytes.push(u8::from(*value));
                Type::Primitive(BOOL)
            }
            Self::Nat(value) => {
                bytes.extend(value);
                Type::Primitive(NAT)
            }
            Self::Nat64(value) => {
                bytes.extend(value.to_le_bytes());
                Type::Primitive(NAT64)
            }
            Self::Text(text) => {
                sized(bytes, text);
                Type::Primitive(TEXT)
            }
            Self::Blob(blob) => {
                sized(bytes, blob);
                table.push(Entry::Vec(Type::Primitive(NAT8)));
                Type::Entry(table.len() - 1)
            }
            Self::Principal(id) => {
                bytes.push(1);
                sized(bytes, id);
                Type::Primitive(PRINCIPAL)
            }
            Self::Null => Type::Primitive(NULL),
            Self::Opt(value) => {
                bytes.push(1);
                let of = value.put(table, bytes);
                table.push(Entry::Opt(of));
                Type::Entry(table.len() - 1)
            }
            Self::Vec(values) => {
                bytes.extend(leb(values.len() as u128));
                let mut of = Type::Primitive(EMPTY);
                for (at, value) in values.iter().enumerate() {
                    // All have the type of the first; the others' types are not kept.
                    let kept = table.len();
                    let kind = value.put(table, bytes);
                    if at == 0 {
                        of = kind;
                    } else {
                        table.truncate(kept);
                    }
                }
                table.push(Entry::Vec(of));
                Type::Entry(table.len() - 1)
            }
            Self::Record(fields) => {
                let mut sorted: Vec<&(u32, Self)> = fields.iter().collect();
                sorted.sort_by_key(|(name, _)| *name);
                let types =
                    sorted.iter().map(|(name, value)| (*name, value.put(table, bytes))).collect();
                table.push(Entry::Record(types));
                Type::Entry(table.len() - 1)
            }
            Self::Variant(name, value) => {
                bytes.push(0);
                let of = value.put(table, bytes);
                table.push(Entry::Variant(vec![(*name, of)]));
                Type::Entry(table.len() - 1)
            }
            Self::Hostile(payload) => {
                let offset = table.len();
                let moved = |kind: Type| match kind {
                    Type::Entry(index) => Type::Entry(index + offset),
                    primitive @ Type::Primitive(_) => primitive,
                };
                let all = |fields: &[(u32, Type)]| -> Vec<(u32, Type)> {
                    fields.iter().map(|(name, kind)| (*name, moved(*kind))).collect()
                };
                table.extend(payload.table.iter().map(|entry| match entry {
                    Entry::Opt(of) => Entry::Opt(moved(*of)),
                    Entry::Vec(of) => Entry::Vec(moved(*of)),
                    Entry::Record(fields) => Entry::Record(all(fields)),
                    Entry::Variant(fields) => Entry::Variant(all(fields)),
                    other => other.clone(),
                }));
                bytes.extend(&payload.value);
                moved(payload.root)
            }
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let (mut table, mut value) = (Vec::new(), Vec::new());
        let root = self.put(&mut table, &mut value);
        cut(message(&[Payload { table, root, value }]))
    }
}

/// All methods of the management canister that take an argument of a client or a canister.
pub(super) const METHODS: [&str; 36] = [
    "raw_rand",
    "canister_status",
    "canister_info",
    "canister_metadata",
    "canister_metrics",
    "create_canister",
    "provisional_create_canister_with_cycles",
    "provisional_top_up_canister",
    "update_settings",
    "install_code",
    "install_chunked_code",
    "upload_chunk",
    "stored_chunks",
    "clear_chunk_store",
    "start_canister",
    "stop_canister",
    "uninstall_code",
    "delete_canister",
    "deposit_cycles",
    "take_canister_snapshot",
    "load_canister_snapshot",
    "list_canister_snapshots",
    "delete_canister_snapshot",
    "read_canister_snapshot_metadata",
    "read_canister_snapshot_data",
    "upload_canister_snapshot_metadata",
    "upload_canister_snapshot_data",
    "fetch_canister_logs",
    "list_canisters",
    "subnet_info",
    "node_metrics_history",
    "http_request",
    "ecdsa_public_key",
    "sign_with_ecdsa",
    "bitcoin_get_balance",
    "no_such_method",
];

/// Those of them that can be asked by a query.
pub(super) const QUERIES: [&str; 4] =
    ["canister_status", "canister_metrics", "fetch_canister_logs", "list_canisters"];

/// Settings with every field, each within its limit.
fn settings(controller: &[u8], random: &mut ChaCha8Rng) -> Value {
    let variable = Value::record([
        ("name", Value::text("name")),
        ("value", Value::text("value of some length")),
    ]);
    let variables = Value::Vec(vec![variable; random.gen_range(1..10)]);
    let viewers = Value::Variant(
        field("allowed_viewers"),
        Box::new(Value::Vec(vec![Value::Principal(controller.to_vec())])),
    );
    Value::record([
        ("controllers", Value::Vec(vec![Value::Principal(controller.to_vec())]).opt()),
        ("compute_allocation", Value::nat(0).opt()),
        ("memory_allocation", Value::nat(0).opt()),
        ("freezing_threshold", Value::nat(1 << random.gen_range(0..40)).opt()),
        ("reserved_cycles_limit", Value::nat(1 << 80).opt()),
        ("wasm_memory_limit", Value::nat(1 << 30).opt()),
        ("wasm_memory_threshold", Value::nat(1 << 20).opt()),
        ("log_visibility", viewers.opt()),
        ("environment_variables", variables.opt()),
    ])
}

/// The valid argument of a method about `canister`. `caller` stays a controller where settings are
/// changed.
#[expect(clippy::too_many_lines, reason = "one entry for each method")]
pub(super) fn argument(
    method: &str,
    canister: &[u8],
    caller: &[u8],
    random: &mut ChaCha8Rng,
) -> Value {
    let id = || Value::Principal(canister.to_vec());
    let about = || Value::record([("canister_id", id())]);
    let bytes = |random: &mut ChaCha8Rng, most: usize| -> Vec<u8> {
        (0..random.gen_range(0..most)).map(|_| random.r#gen()).collect()
    };
    let snapshot = Value::Blob(bytes(random, 40));
    match method {
        "raw_rand" | "no_such_method" | "list_canisters" => Value::Record(vec![]),
        "canister_info" => Value::record([
            ("canister_id", id()),
            ("num_requested_changes", Value::Nat64(20).opt()),
        ]),
        "canister_metadata" => {
            Value::record([("canister_id", id()), ("name", Value::text("candid:service"))])
        }
        "create_canister" => Value::record([("settings", settings(caller, random).opt())]),
        "provisional_create_canister_with_cycles" => Value::record([
            ("amount", Value::nat(1 << 40).opt()),
            ("settings", settings(caller, random).opt()),
        ]),
        "provisional_top_up_canister" => {
            Value::record([("canister_id", id()), ("amount", Value::nat(1 << 40))])
        }
        "update_settings" => {
            Value::record([("canister_id", id()), ("settings", settings(caller, random))])
        }
        "install_code" => Value::record([
            ("mode", Value::Variant(field("reinstall"), Box::new(Value::Null))),
            ("canister_id", id()),
            ("wasm_module", Value::Blob(vec![0, b'a', b's', b'm', 1, 0, 0, 0])),
            ("arg", Value::Blob(bytes(random, 100))),
        ]),
        "install_chunked_code" => {
            let hash = Value::record([("hash", Value::Blob(vec![7; 32]))]);
            Value::record([
                ("mode", Value::Variant(field("reinstall"), Box::new(Value::Null))),
                ("target_canister", id()),
                ("store_canister", id().opt()),
                ("chunk_hashes_list", Value::Vec(vec![hash; random.gen_range(1..20)])),
                ("wasm_module_hash", Value::Blob(vec![7; 32])),
                ("arg", Value::Blob(bytes(random, 100))),
            ])
        }
        "upload_chunk" => {
            Value::record([("canister_id", id()), ("chunk", Value::Blob(bytes(random, 100_000)))])
        }
        "take_canister_snapshot" => Value::record([
            ("canister_id", id()),
            ("uninstall_code", Value::Bool(random.r#gen()).opt()),
        ]),
        "load_canister_snapshot"
        | "delete_canister_snapshot"
        | "read_canister_snapshot_metadata" => {
            Value::record([("canister_id", id()), ("snapshot_id", snapshot)])
        }
        "read_canister_snapshot_data" => {
            let range = Value::record([
                ("offset", Value::Nat64(random.r#gen())),
                ("size", Value::Nat64(random.r#gen())),
            ]);
            let kind = Value::Variant(field("wasm_memory"), Box::new(range));
            Value::record([("canister_id", id()), ("snapshot_id", snapshot), ("kind", kind)])
        }
        "upload_canister_snapshot_metadata" => {
            let global = Value::Variant(field("i64"), Box::new(Value::Nat64(1)));
            let globals = Value::Vec(vec![global; random.gen_range(0..50)]);
            Value::record([
                ("canister_id", id()),
                ("wasm_module_size", Value::Nat64(random.gen_range(0..1 << 30))),
                ("globals", globals),
                ("wasm_memory_size", Value::Nat64(random.gen_range(0..1 << 33))),
                ("stable_memory_size", Value::Nat64(random.gen_range(0..1 << 33))),
                ("certified_data", Value::Blob(bytes(random, 33))),
            ])
        }
        "upload_canister_snapshot_data" => {
            let at = Value::record([("offset", Value::Nat64(random.gen_range(0..1 << 20)))]);
            let kind = Value::Variant(field("stable_memory"), Box::new(at));
            Value::record([
                ("canister_id", id()),
                ("snapshot_id", snapshot),
                ("kind", kind),
                ("chunk", Value::Blob(bytes(random, 60_000))),
            ])
        }
        "subnet_info" => Value::record([("subnet_id", id())]),
        "node_metrics_history" => Value::record([
            ("subnet_id", id()),
            ("start_at_timestamp_nanos", Value::Nat64(random.r#gen())),
        ]),
        "http_request" => {
            let header = Value::record([
                ("name", Value::text("x-header")),
                ("value", Value::text("a value")),
            ]);
            let port = random.gen_range(1..65_000);
            Value::record([
                ("url", Value::text(&format!("https://127.0.0.1:{port}/path"))),
                ("max_response_bytes", Value::Nat64(random.gen_range(0..3_000_000)).opt()),
                ("headers", Value::Vec(vec![header; random.gen_range(0..64)])),
                ("body", Value::Blob(bytes(random, 1_000)).opt()),
                ("method", Value::Variant(field("post"), Box::new(Value::Null))),
            ])
        }
        _ => about(),
    }
}

/// Lengths at the edges of the limits that fields have.
const LENGTHS: [usize; 14] =
    [0, 1, 9, 11, 17, 20, 21, 33, 65, 129, 1_025, 20_000, 100_000, 900_000];

/// Changes a value in one to three places; words for the changes.
pub(super) fn mutated(value: &mut Value, random: &mut ChaCha8Rng) -> Vec<String> {
    let mut words = Vec::new();
    for _ in 0..random.gen_range(1..4) {
        let places = count(value);
        let mut place = random.gen_range(0..places);
        words.push(change_at(value, &mut place, random));
    }
    words
}

fn children(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Opt(value) | Value::Variant(_, value) => vec![value],
        // Elements have one type: only the first is looked into.
        Value::Vec(values) => values.first_mut().into_iter().collect(),
        Value::Record(fields) => fields.iter_mut().map(|(_, value)| value).collect(),
        _ => vec![],
    }
}

fn count(value: &mut Value) -> usize {
    1 + children(value).into_iter().map(count).sum::<usize>()
}

/// Changes the value that is `place`th in order; what was done.
fn change_at(value: &mut Value, place: &mut usize, random: &mut ChaCha8Rng) -> String {
    if *place == 0 {
        return change(value, random);
    }
    *place -= 1;
    for child in children(value) {
        let inside = count(child);
        if *place < inside {
            return change_at(child, place, random);
        }
        *place -= inside;
    }
    String::new()
}

fn change(value: &mut Value, random: &mut ChaCha8Rng) -> String {
    let length = LENGTHS[random.gen_range(0..LENGTHS.len())];
    match (value, random.gen_range(0..10)) {
        (Value::Text(text) | Value::Blob(text), 0..6) => {
            text.resize(length, if random.gen_bool(0.2) { 0xff } else { b'x' });
            format!("length {length}")
        }
        (Value::Vec(values), 0..7) if !values.is_empty() => {
            let one = values[0].clone();
            let mut bytes = Vec::new();
            one.put(&mut Vec::new(), &mut bytes);
            let most = MESSAGE_BYTES_MAX / bytes.len().max(1);
            let length = length.min(most);
            *values = vec![one; length];
            format!("{length} elements")
        }
        (Value::Nat(nat), 0..5) => {
            *nat = vec![0xff; length.max(1)];
            nat.push(1);
            format!("nat of {length} bytes")
        }
        (Value::Nat64(number), 0..5) => {
            *number = *[0, 1, u64::MAX, u64::MAX / 2, 1 << 32].choose(random).unwrap_or(&0);
            format!("number {number}")
        }
        (Value::Principal(id), 0..3) => {
            *id = vec![3; *[0, 1, 29, 30, 200].choose(random).unwrap_or(&0)];
            format!("id of {} bytes", id.len())
        }
        (Value::Record(fields), 0..7) => {
            let (name, payload) = shape(random);
            // Sorted among the others, or twice.
            let id = match fields.first() {
                Some((first, _)) if random.gen_bool(0.1) => *first,
                _ => random.r#gen(),
            };
            fields.push((id, Value::Hostile(payload)));
            format!("a field more: {name}")
        }
        (value, 9) => {
            let depth = *[1, 2, 100, 3_000].choose(random).unwrap_or(&1);
            let mut table = Vec::new();
            let mut bytes = Vec::new();
            let mut of = value.put(&mut table, &mut bytes);
            for _ in 0..depth {
                table.push(Entry::Opt(of));
                of = Type::Entry(table.len() - 1);
                bytes.insert(0, 1);
            }
            *value = Value::Hostile(Payload { table, root: of, value: bytes });
            format!("within {depth} opt")
        }
        (value, _) => {
            let (name, payload) = shape(random);
            *value = Value::Hostile(payload);
            format!("replaced: {name}")
        }
    }
}

/// Changes bytes of a message; words for the changes.
pub(super) fn mutated_bytes(bytes: &mut Vec<u8>, random: &mut ChaCha8Rng) -> String {
    let mut words = Vec::new();
    for _ in 0..random.gen_range(1..5) {
        // Mostly among the types, where a change means most.
        let end = if random.gen_bool(0.7) { bytes.len().min(120) } else { bytes.len() };
        if end < 5 {
            break;
        }
        let at = random.gen_range(4..end);
        match random.gen_range(0..5) {
            0 => {
                bytes.truncate(at);
                words.push(format!("cut at {at}"));
            }
            1 => {
                bytes.insert(at, random.r#gen());
                words.push(format!("a byte more at {at}"));
            }
            2 => {
                bytes.remove(at);
                words.push(format!("a byte less at {at}"));
            }
            3 => {
                let number =
                    leb(*[1_u128 << 32, 1 << 60, u64::MAX as u128].choose(random).unwrap_or(&1));
                bytes.splice(at..=at, number);
                words.push(format!("a large number at {at}"));
            }
            _ => {
                bytes[at] ^= 1 << random.gen_range(0..8);
                words.push(format!("a bit at {at}"));
            }
        }
    }
    bytes.truncate(MESSAGE_BYTES_MAX);
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn known_messages_have_the_bytes_that_were_reported() {
        let vectors = message(&[zero_sized(1 << 60, NULL)]);
        assert_eq!(hex::encode(vectors), "4449444c016d7f010080808080808080 8010".replace(' ', ""));
        assert_eq!(message(&[nested_opt(3_004)]).len(), 3_014);
        assert_eq!(leb(624_485), [0xe5, 0x8e, 0x26]);
        assert_eq!(sleb(-123_456), [0xc0, 0xbb, 0x78]);
    }

    #[test]
    fn valid_arguments_decode_with_the_published_library() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for method in METHODS {
            let value = argument(method, &[1, 2, 3], &[4], &mut random);
            let bytes = value.encode();
            let mut decoder = candid::de::IDLDeserialize::new(&bytes).unwrap();
            decoder
                .get_value::<candid::Reserved>()
                .unwrap_or_else(|error| panic!("{method}: {error}: {}", hex::encode(&bytes)));
            decoder.done().unwrap();
        }
    }

    #[test]
    fn the_seed_decides_every_message_and_none_is_too_long() {
        let make = |seed| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mut all = Vec::new();
            for turn in 0..40 {
                let (_, bytes) = hostile(&mut random);
                let method = METHODS[turn % METHODS.len()];
                let mut value = argument(method, &[1], &[2], &mut random);
                mutated(&mut value, &mut random);
                let mut changed = value.encode();
                mutated_bytes(&mut changed, &mut random);
                assert!(bytes.len().max(changed.len()) <= MESSAGE_BYTES_MAX);
                all.push(blake(&bytes) ^ blake(&changed));
            }
            all
        };
        assert_eq!(make(3), make(3));
        assert_ne!(make(3), make(4));
    }

    /// A number for bytes, so that a failed comparison is short.
    fn blake(bytes: &[u8]) -> u64 {
        bytes.iter().fold(17, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()))
    }
}
