//! Instructions and shapes of code.

use std::fmt::Write as _;

use crate::{Case, module};

/// Operations in a row, so that the loop around them does not count.
const ROW: usize = 32;

/// Operand types: name, address of their operands in memory ([`ROW`] of each), and the local that
/// holds one.
const TYPES: [(&str, u32, &str); 5] = [
    ("i32", 1024, "$i32"),
    ("i64", 2048, "$i64"),
    ("f32", 3072, "$f32"),
    ("f64", 4096, "$f64"),
    ("v128", 5120, "$v128"),
];

/// Instructions by the types of their operands and of their result.
const OPERATIONS: &[(&str, &str, &str)] = &[
    (
        "i32 i32",
        "i32",
        "i32.add i32.sub i32.mul i32.and i32.or i32.xor i32.shl i32.shr_s i32.shr_u i32.rotl \
         i32.rotr i32.eq i32.ne i32.lt_s i32.lt_u i32.gt_s i32.gt_u i32.le_s i32.le_u \
          i32.ge_s i32.ge_u",
    ),
    (
        "i64 i64",
        "i64",
        "i64.add i64.sub i64.mul i64.and i64.or i64.xor i64.shl i64.shr_s i64.shr_u i64.rotl \
         i64.rotr",
    ),
    (
        "i64 i64",
        "i32",
        "i64.eq i64.ne i64.lt_s i64.lt_u i64.gt_s i64.gt_u i64.le_s i64.le_u i64.ge_s i64.ge_u",
    ),
    ("i32", "i32", "i32.clz i32.ctz i32.popcnt i32.eqz i32.extend8_s i32.extend16_s"),
    ("i64", "i64", "i64.clz i64.ctz i64.popcnt i64.extend8_s i64.extend16_s i64.extend32_s"),
    ("i64", "i32", "i64.eqz i32.wrap_i64"),
    ("i32", "i64", "i64.extend_i32_s i64.extend_i32_u"),
    ("f32 f32", "f32", "f32.add f32.sub f32.mul f32.div f32.min f32.max f32.copysign"),
    ("f64 f64", "f64", "f64.add f64.sub f64.mul f64.div f64.min f64.max f64.copysign"),
    ("f32", "f32", "f32.abs f32.neg f32.ceil f32.floor f32.trunc f32.nearest f32.sqrt"),
    ("f64", "f64", "f64.abs f64.neg f64.ceil f64.floor f64.trunc f64.nearest f64.sqrt"),
    ("f32 f32", "i32", "f32.eq f32.ne f32.lt f32.gt f32.le f32.ge"),
    ("f64 f64", "i32", "f64.eq f64.ne f64.lt f64.gt f64.le f64.ge"),
    (
        "f32",
        "i32",
        "i32.trunc_f32_s i32.trunc_f32_u i32.trunc_sat_f32_s i32.trunc_sat_f32_u \
         i32.reinterpret_f32",
    ),
    ("f64", "i32", "i32.trunc_f64_s i32.trunc_f64_u i32.trunc_sat_f64_s i32.trunc_sat_f64_u"),
    ("f32", "i64", "i64.trunc_f32_s i64.trunc_f32_u i64.trunc_sat_f32_s i64.trunc_sat_f32_u"),
    (
        "f64",
        "i64",
        "i64.trunc_f64_s i64.trunc_f64_u i64.trunc_sat_f64_s i64.trunc_sat_f64_u \
         i64.reinterpret_f64",
    ),
    ("i32", "f32", "f32.convert_i32_s f32.convert_i32_u f32.reinterpret_i32"),
    ("i64", "f32", "f32.convert_i64_s f32.convert_i64_u"),
    ("i32", "f64", "f64.convert_i32_s f64.convert_i32_u"),
    ("i64", "f64", "f64.convert_i64_s f64.convert_i64_u f64.reinterpret_i64"),
    ("f64", "f32", "f32.demote_f64"),
    ("f32", "f64", "f64.promote_f32"),
    (
        "v128 v128",
        "v128",
        "v128.and v128.andnot v128.or v128.xor i8x16.swizzle i8x16.eq i8x16.lt_s i8x16.lt_u \
         i16x8.eq i16x8.lt_u i32x4.eq i32x4.gt_u i64x2.eq i64x2.lt_s i64x2.ge_s f32x4.eq \
          f32x4.lt f64x2.eq f64x2.lt",
    ),
    (
        "v128 v128",
        "v128",
        "i8x16.add i8x16.sub i8x16.add_sat_s i8x16.sub_sat_u i8x16.min_s i8x16.max_u \
         i8x16.avgr_u i8x16.narrow_i16x8_s i8x16.narrow_i16x8_u i16x8.add i16x8.mul \
          i16x8.min_u i16x8.q15mulr_sat_s i16x8.narrow_i32x4_u i16x8.extmul_low_i8x16_s \
           i16x8.extmul_high_i8x16_u",
    ),
    (
        "v128 v128",
        "v128",
        "i32x4.add i32x4.mul i32x4.min_s i32x4.dot_i16x8_s i32x4.extmul_low_i16x8_s \
         i32x4.extmul_high_i16x8_u i64x2.add i64x2.sub i64x2.mul i64x2.extmul_low_i32x4_s \
          i64x2.extmul_high_i32x4_u",
    ),
    (
        "v128 v128",
        "v128",
        "f32x4.add f32x4.sub f32x4.mul f32x4.div f32x4.min f32x4.max f32x4.pmin f32x4.pmax \
         f64x2.add f64x2.sub f64x2.mul f64x2.div f64x2.min f64x2.max f64x2.pmin f64x2.pmax",
    ),
    (
        "v128",
        "v128",
        "v128.not i8x16.abs i8x16.neg i8x16.popcnt i16x8.abs i16x8.neg \
         i16x8.extadd_pairwise_i8x16_s i16x8.extend_low_i8x16_s i16x8.extend_high_i8x16_u \
          i32x4.abs i32x4.neg i32x4.extadd_pairwise_i16x8_u i32x4.extend_low_i16x8_s \
           i64x2.abs i64x2.neg i64x2.extend_low_i32x4_s i64x2.extend_high_i32x4_u",
    ),
    (
        "v128",
        "v128",
        "f32x4.abs f32x4.neg f32x4.sqrt f32x4.ceil f32x4.floor f32x4.trunc f32x4.nearest \
         f64x2.abs f64x2.neg f64x2.sqrt f64x2.ceil f64x2.floor f64x2.trunc f64x2.nearest",
    ),
    (
        "v128",
        "v128",
        "i32x4.trunc_sat_f32x4_s i32x4.trunc_sat_f32x4_u i32x4.trunc_sat_f64x2_s_zero \
         i32x4.trunc_sat_f64x2_u_zero f32x4.convert_i32x4_s f32x4.convert_i32x4_u \
          f32x4.demote_f64x2_zero f64x2.convert_low_i32x4_s f64x2.convert_low_i32x4_u \
           f64x2.promote_low_f32x4",
    ),
    (
        "v128 i32",
        "v128",
        "i8x16.shl i8x16.shr_s i8x16.shr_u i16x8.shl i16x8.shr_s i32x4.shl i32x4.shr_u i64x2.shl \
         i64x2.shr_s i64x2.shr_u",
    ),
    (
        "v128",
        "i32",
        "v128.any_true i8x16.all_true i8x16.bitmask i16x8.all_true i16x8.bitmask i32x4.all_true \
         i32x4.bitmask i64x2.all_true i64x2.bitmask",
    ),
    ("i32", "v128", "i8x16.splat i16x8.splat i32x4.splat"),
    ("i64", "v128", "i64x2.splat"),
    ("f32", "v128", "f32x4.splat"),
    ("f64", "v128", "f64x2.splat"),
    ("v128 v128 v128", "v128", "v128.bitselect"),
];

/// Instructions with immediates: text, operands, result.
const IMMEDIATES: &[(&str, &str, &str)] = &[
    ("i8x16.shuffle 0 17 2 19 4 21 6 23 8 25 10 27 12 29 14 31", "v128 v128", "v128"),
    ("i8x16.extract_lane_s 3", "v128", "i32"),
    ("i16x8.extract_lane_u 3", "v128", "i32"),
    ("i32x4.extract_lane 3", "v128", "i32"),
    ("i64x2.extract_lane 1", "v128", "i64"),
    ("f32x4.extract_lane 3", "v128", "f32"),
    ("f64x2.extract_lane 1", "v128", "f64"),
    ("i8x16.replace_lane 3", "v128 i32", "v128"),
    ("i64x2.replace_lane 1", "v128 i64", "v128"),
    ("f64x2.replace_lane 1", "v128 f64", "v128"),
    ("select", "i64 i64 i32", "i64"),
    ("select", "v128 v128 i32", "v128"),
];

/// Values of the operands: bytes of one of each type.
struct Values {
    name: &'static str,
    bytes: [Vec<u8>; 5],
}

fn values() -> [Values; 2] {
    [
        Values {
            name: "",
            bytes: [
                0x1234_5679_u32.to_le_bytes().to_vec(),
                0x7234_5678_9abc_def1_u64.to_le_bytes().to_vec(),
                1.000_1_f32.to_le_bytes().to_vec(),
                1.000_000_1_f64.to_le_bytes().to_vec(),
                0x3ff0_0000_1000_0000_3f80_0001_3f80_0003_u128.to_le_bytes().to_vec(),
            ],
        },
        Values {
            name: ", subnormal",
            bytes: [
                3_u32.to_le_bytes().to_vec(),
                3_u64.to_le_bytes().to_vec(),
                0x0000_4001_u32.to_le_bytes().to_vec(),
                0x0000_4000_0000_1001_u64.to_le_bytes().to_vec(),
                0x0000_4000_0000_1001_0000_4000_0000_4001_u128.to_le_bytes().to_vec(),
            ],
        },
    ]
}

fn data(values: &Values) -> String {
    let mut text = String::new();
    for ((_, at, _), bytes) in TYPES.iter().zip(&values.bytes) {
        let bytes: String = bytes.iter().map(|byte| format!("\\{byte:02x}")).collect();
        writeln!(text, "(data (i32.const {at}) \"{}\")", bytes.repeat(ROW)).unwrap();
    }
    text
}

fn place(ty: &str) -> (u32, &'static str) {
    TYPES.iter().find(|(name, ..)| *name == ty).map(|(_, at, local)| (*at, *local)).unwrap()
}

fn size(ty: &str) -> usize {
    match ty {
        "i32" | "f32" => 4,
        "v128" => 16,
        _ => 8,
    }
}

/// A local of each type, loaded from memory.
fn locals() -> (String, String) {
    let (mut declared, mut loaded) = (String::new(), String::new());
    for (ty, at, local) in TYPES {
        write!(declared, "(local {local} {ty}) (local {local}_a {ty})").unwrap();
        for local in [local.to_owned(), format!("{local}_a")] {
            write!(loaded, "(local.set {local} ({ty}.load (i32.const {at})))").unwrap();
        }
    }
    (declared, loaded)
}

fn of_body(group: &'static str, name: &str, values: &Values, body: &str) -> Case {
    let (declared, loaded) = locals();
    let mut after = String::new();
    for (ty, _, local) in TYPES {
        write!(after, "({ty}.store (i32.const 16384) (local.get {local}_a))").unwrap();
    }
    let module = module(&data(values), &declared, &loaded, body, &after);
    Case::new(group, format!("{name}{}", values.name), module)
}

/// An operation on what its predecessor gave.
fn chain(name: &str, inputs: &str, values: &Values) -> Case {
    let inputs: Vec<_> = inputs.split(' ').collect();
    let accumulator = format!("{}_a", place(inputs[0]).1);
    let others: String =
        inputs[1..].iter().map(|ty| format!("local.get {} ", place(ty).1)).collect();
    let one = if inputs.len() > 1 {
        format!("{others}{name} ")
    } else {
        // Done twice in a row, most of these would be done once.
        let local = place(inputs[0]).1;
        let mix = match inputs[0] {
            "v128" => "v128.xor".to_owned(),
            ty if ty.starts_with('f') => format!("{ty}.copysign"),
            ty => format!("{ty}.xor"),
        };
        format!("{name} local.get {local} {mix} ")
    };
    let body = format!("local.get {accumulator} {} local.set {accumulator}", one.repeat(ROW));
    of_body("in a row", name, values, &body)
}

/// An operation on operands from memory, its result to memory.
fn apart(name: &str, inputs: &str, result: &str, values: &Values) -> Case {
    let mut body = String::new();
    for n in 0..ROW {
        write!(body, "i32.const 0 ").unwrap();
        for ty in inputs.split(' ') {
            let at = place(ty).0 as usize + n * size(ty);
            write!(body, "i32.const 0 {ty}.load offset={at} ").unwrap();
        }
        writeln!(body, "{name} {result}.store offset={} ", 8192 + n * size(result)).unwrap();
    }
    of_body("apart", name, values, &body)
}

fn is_float(name: &str) -> bool {
    name.contains("f32") || name.contains("f64")
}

fn operations(cases: &mut Vec<Case>) {
    let listed = OPERATIONS.iter().flat_map(|(inputs, result, names)| {
        names.split(' ').map(move |name| (name, *inputs, *result))
    });
    for (name, inputs, result) in listed.chain(IMMEDIATES.iter().copied()) {
        for values in values().iter().filter(|one| one.name.is_empty() || is_float(name)) {
            if inputs.split(' ').next() == Some(result) {
                cases.push(chain(name, inputs, values));
            }
            cases.push(apart(name, inputs, result, values));
        }
    }
    let [values, _] = values();
    for ty in ["i32", "i64"] {
        for name in ["div_s", "div_u", "rem_s", "rem_u"] {
            let local = place(ty).1;
            let one = format!(
                "(local.set {local}_a ({ty}.{name} (local.get {local}) ({ty}.or (local.get \
                 {local}_a) ({ty}.const 3))))"
            );
            let name = format!("{ty}.{name}");
            cases.push(of_body("in a row", &name, &values, &one.repeat(ROW)));
        }
    }
}

/// Memory, globals and what has no operands.
#[allow(clippy::too_many_lines, reason = "a list, entry after entry")]
fn simple(cases: &mut Vec<Case>) {
    let [values, _] = values();
    let rows: &[(&str, &str)] = &[
        (
            "i64.load, each from where the one before says",
            "(local.set $i32_a (i32.load (i32.and (local.get $i32_a) (i32.const 0xffc))))",
        ),
        (
            "i64.load over the end of a page",
            "(local.set $i64_a (i64.xor (local.get $i64_a) (i64.load offset=4092 (i32.wrap_i64 \
             (i64.and (local.get $i64_a) (i64.const 0x1000))))))",
        ),
        (
            "i64.store over the end of a page",
            "(i64.store offset=4092 (i32.const 0) (local.get $i64))",
        ),
        (
            "v128.load over the end of a page",
            "(local.set $v128_a (v128.xor (local.get $v128_a) (v128.load offset=8188 (i32.const \
             0))))",
        ),
        (
            "v128.store over the end of a page",
            "(v128.store offset=12284 (i32.const 0) (local.get $v128))",
        ),
        (
            "i64.load of what two stores wrote",
            "(i32.store (i32.const 8) (i32.wrap_i64 (local.get $i64_a))) (i32.store (i32.const \
             12) (local.get $i32)) (local.set $i64_a (i64.load (i32.const 8)))",
        ),
        ("i32.store8", "(i32.store8 (i32.const 8) (local.get $i32))"),
        (
            "v128.load8x8_u",
            "(local.set $v128_a (v128.xor (local.get $v128_a) (v128.load8x8_u (i32.const 8))))",
        ),
        (
            "v128.load64_lane",
            "(local.set $v128_a (v128.load64_lane 1 (i32.const 8) (local.get $v128_a)))",
        ),
        ("v128.store8_lane", "(v128.store8_lane 1 (i32.const 8) (local.get $v128))"),
        ("memory.size", "(local.set $i32_a (i32.xor (local.get $i32_a) (memory.size)))"),
        (
            "memory.grow by 0",
            "(local.set $i32_a (i32.xor (local.get $i32_a) (memory.grow (i32.const 0))))",
        ),
        (
            "memory.grow beyond the limit",
            "(local.set $i32_a (i32.xor (local.get $i32_a) (memory.grow (i32.const 65000))))",
        ),
        ("nop", "nop"),
        ("block", "(block nop)"),
        ("const and drop", "i64.const 7 drop"),
        ("local.get and local.set", "local.get $i64 local.set $i64_a"),
    ];
    for (name, text) in rows {
        cases.push(of_body("memory", name, &values, &format!("{text} ").repeat(ROW)));
    }
    let grow = of_body("memory", "memory.grow by 1", &values, "(drop (memory.grow (i32.const 1)))");
    cases.push(Case { times_max: 3_000, is_fresh: true, ..grow });
    for bytes in [0, 1, 3, 4, 16, 31, 32, 100, 1_000, 65_536] {
        for (name, text) in [
            (
                "memory.copy",
                format!(
                    "(memory.copy (i32.const 131072) (i32.const 16384) (i32.add (i32.const \
                     {bytes}) (i32.and (local.get $i32) (i32.const 0))))"
                ),
            ),
            (
                "memory.copy, one over the other",
                format!("(memory.copy (i32.const 16385) (i32.const 16384) (i32.const {bytes}))"),
            ),
            (
                "memory.fill",
                format!("(memory.fill (i32.const 131072) (local.get $i32) (i32.const {bytes}))"),
            ),
        ] {
            let name = format!("{name} of {bytes} bytes");
            cases.push(of_body("bulk", &name, &values, &format!("{text} ").repeat(ROW)));
        }
    }
    let mut init = |bytes: usize| {
        let parts = format!("(data $d \"{}\")", "x".repeat(bytes));
        let text = format!("(memory.init $d (i32.const 4096) (i32.const 0) (i32.const {bytes}))");
        let name = format!("memory.init of {bytes} bytes");
        cases.push(Case::new(
            "bulk",
            name,
            module(&parts, "", "", &format!("{text} ").repeat(ROW), ""),
        ));
    };
    [0, 1, 100, 60_000].into_iter().for_each(&mut init);
    for ty in ["i32", "i64", "f64", "v128"] {
        let zero =
            if ty == "v128" { "v128.const i64x2 0 0".into() } else { format!("{ty}.const 0") };
        let add = if ty == "v128" { "i64x2.add".into() } else { format!("{ty}.add") };
        let parts = format!("(global $g (mut {ty}) ({zero})) (global $h (mut {ty}) ({zero}))");
        let text = format!("(global.set $g ({add} (global.get $g) (global.get $h)))");
        let name = format!("global.get and global.set of {ty}");
        cases.push(Case::new(
            "memory",
            name,
            module(&parts, "", "", &format!("{text} ").repeat(ROW), ""),
        ));
    }
}

#[allow(clippy::too_many_lines, reason = "a list, entry after entry")]
fn tables(cases: &mut Vec<Case>) {
    let table = "(type $t (func)) (func $f) (elem declare func $f) (table $t 20000 40000 funcref)
        (elem $e func $f $f $f $f $f $f $f $f) (elem (table $t) (i32.const 0) func $f $f)";
    let rows: &[(&str, String, u32)] = &[
        ("table.get", "(drop (table.get $t (i32.const 0)))".into(), u32::MAX),
        ("table.set", "(table.set $t (i32.const 1) (ref.null func))".into(), u32::MAX),
        ("table.set of a function", "(table.set $t (i32.const 1) (ref.func $f))".into(), u32::MAX),
        ("ref.func", "(drop (ref.func $f))".into(), u32::MAX),
        ("ref.is_null", "(drop (ref.is_null (table.get $t (i32.const 0))))".into(), u32::MAX),
        ("table.size", "(drop (table.size $t))".into(), u32::MAX),
        (
            "table.grow by 0",
            "(drop (table.grow $t (ref.null func) (i32.const 0)))".into(),
            u32::MAX,
        ),
        (
            "table.grow beyond the limit",
            "(drop (table.grow $t (ref.null func) (i32.const 900000)))".into(),
            500,
        ),
        ("table.grow by 1", "(drop (table.grow $t (ref.null func) (i32.const 1)))".into(), 500),
        (
            "table.fill of 0",
            "(table.fill $t (i32.const 0) (ref.null func) (i32.const 0))".into(),
            u32::MAX,
        ),
        (
            "table.fill of 10000",
            "(table.fill $t (i32.const 0) (ref.null func) (i32.const 10000))".into(),
            u32::MAX,
        ),
        (
            "table.copy of 0",
            "(table.copy $t $t (i32.const 0) (i32.const 10000) (i32.const 0))".into(),
            u32::MAX,
        ),
        (
            "table.copy of 1",
            "(table.copy $t $t (i32.const 0) (i32.const 10000) (i32.const 1))".into(),
            u32::MAX,
        ),
        (
            "table.copy of 10000",
            "(table.copy $t $t (i32.const 0) (i32.const 10000) (i32.const 10000))".into(),
            u32::MAX,
        ),
        (
            "table.copy of 10000, one over the other",
            "(table.copy $t $t (i32.const 1) (i32.const 0) (i32.const 10000))".into(),
            u32::MAX,
        ),
        (
            "table.init of 0",
            "(table.init $t $e (i32.const 0) (i32.const 0) (i32.const 0))".into(),
            u32::MAX,
        ),
        (
            "table.init of 8",
            "(table.init $t $e (i32.const 0) (i32.const 0) (i32.const 8))".into(),
            u32::MAX,
        ),
        ("elem.drop", "(elem.drop $e)".into(), u32::MAX),
        ("data.drop", "(data.drop $d)".into(), u32::MAX),
        ("call_indirect to one", "(call_indirect (type $t) (i32.const 0))".into(), u32::MAX),
    ];
    for (name, text, times_max) in rows {
        let parts = format!("{table} (data $d \"x\")");
        let case =
            Case::new("tables", *name, module(&parts, "", "", &format!("{text} ").repeat(8), ""));
        cases.push(Case { times_max: *times_max, ..case });
    }
    // The engine fills in an element when it is first accessed.
    let count = 20_000;
    let all = format!(
        "(type $t (func)) (func $f) (table $t {count} funcref) (elem (table $t) (i32.const 0) \
         func {})",
        "$f ".repeat(count)
    );
    for (name, text) in [
        ("call_indirect, each element once", "(call_indirect (type $t) (local.get $n))"),
        ("table.get, each element once", "(drop (table.get $t (local.get $n)))"),
    ] {
        let case = Case::new("tables", name, module(&all, "", "", text, ""));
        cases.push(Case { times_max: count as u32 - 1, ..case });
    }
}

const RANDOM: &str = "(local.set $x (i64.add (i64.mul (local.get $x) (i64.const \
    6364136223846793005)) (i64.const 1442695040888963407)))";

/// Unpredictable branches.
fn branches(cases: &mut Vec<Case>) {
    let locals = "(local $x i64) (local $y i64)";
    let bit = |n: usize| {
        format!(
            "(i32.wrap_i64 (i64.and (i64.shr_u (local.get $x) (i64.const {})) (i64.const 1)))",
            n + 32
        )
    };
    let mut ifs = RANDOM.to_owned();
    let mut br_ifs = RANDOM.to_owned();
    for n in 0..ROW {
        write!(ifs, "(if {} (then (global.set $g (i32.const {n}))))", bit(n)).unwrap();
        write!(br_ifs, "(block $out (br_if $out {}) (global.set $g (i32.const {n})))", bit(n))
            .unwrap();
    }
    let global = "(global $g (mut i32) (i32.const 0))";
    cases.push(Case::new("branches", "if, at random", module(global, locals, "", &ifs, "")));
    cases.push(Case::new("branches", "br_if, at random", module(global, locals, "", &br_ifs, "")));
    for targets in [4_u32, 256, 5_000] {
        let mut table = "(block $out ".to_owned() + &"(block ".repeat(targets as usize);
        let index = format!(
            "(i32.and (i32.wrap_i64 (i64.shr_u (local.get $x) (i64.const 33))) (i32.const {}))",
            targets.next_power_of_two() - 1
        );
        write!(table, "{RANDOM} {index} br_table ").unwrap();
        (0..targets).for_each(|n| write!(table, "{n} ").unwrap());
        write!(table, "0").unwrap();
        for n in 0..targets {
            write!(table, ") (global.set $g (i32.const {n})) (br $out)").unwrap();
        }
        table += ")";
        let name = format!("br_table of {targets}, at random");
        cases.push(Case::new("branches", name, module(global, locals, "", &table, "")));
    }
    let count = 256;
    let mut functions = String::from("(type $t (func)) (global $g (mut i32) (i32.const 0))");
    let mut names = String::new();
    for n in 0..count {
        write!(functions, "(func $f{n} (global.set $g (i32.const {n})))").unwrap();
        write!(names, "$f{n} ").unwrap();
    }
    write!(functions, "(table {count} funcref) (elem (i32.const 0) func {names})").unwrap();
    let text = format!(
        "{RANDOM} (call_indirect (type $t) (i32.and (i32.wrap_i64 (i64.shr_u (local.get $x) \
         (i64.const 33))) (i32.const 255)))"
    );
    cases.push(Case::new(
        "branches",
        "call_indirect, at random",
        module(&functions, locals, "", &format!("{text} ").repeat(4), ""),
    ));
    cases.push(Case::new("branches", "empty loop", module("", "", "", "", "")));
    let inner = "(local.set $m (i32.const 1)) (loop $inner (br_if $inner (i32.eqz (local.tee $m \
        (i32.sub (local.get $m) (i32.const 1))))))";
    cases.push(Case::new(
        "branches",
        "loop of two turns",
        module("", "(local $m i32)", "", &inner.repeat(8), ""),
    ));
}

/// Chains of functions, each of which returns the results of the next one.
#[allow(clippy::too_many_lines, reason = "a list, entry after entry")]
fn calls(cases: &mut Vec<Case>) {
    for words in [0_usize, 1, 4, 8, 9, 12, 16, 24, 32, 64, 100, 300, 1_000] {
        for ty in ["i64", "f64", "v128"] {
            if ty != "i64" && !matches!(words, 8 | 16 | 1_000) {
                continue;
            }
            let all = format!("{ty} ").repeat(words);
            let get = if ty == "v128" { "v128.load (i32.const 0)" } else { "global.get $g" };
            let get = if ty == "v128" { format!("({get})") } else { get.to_owned() };
            let drops = "drop ".repeat(words);
            let global = if ty == "v128" {
                String::new()
            } else {
                format!("(global $g (mut {ty}) ({ty}.const 1))")
            };
            for depth in [1, 50, 250] {
                // Frames of the other types are too large for this many on the stack.
                if depth == 250 && words > 300 && ty != "i64" {
                    continue;
                }
                for (how, call) in [
                    ("call", "(call $next)"),
                    ("call_indirect", "(call_indirect (type $t) (i32.const @))"),
                    ("return_call", "(return_call $next)"),
                    ("return_call_indirect", "(return_call_indirect (type $t) (i32.const @))"),
                ] {
                    if depth != 50 && how != "call" {
                        continue;
                    }
                    let mut parts = format!("(type $t (func (result {all}))) {global} (memory 16)");
                    let mut names = String::new();
                    for n in 0..depth {
                        let next = format!("$f{}", n + 1);
                        let call = call.replace("$next", &next).replace('@', &(n + 1).to_string());
                        write!(parts, "(func $f{n} (type $t) {call})").unwrap();
                    }
                    for n in 0..=depth {
                        write!(names, "$f{n} ").unwrap();
                    }
                    write!(parts, "(func $f{depth} (type $t) {})", format!("{get} ").repeat(words))
                        .unwrap();
                    if how.ends_with("indirect") {
                        write!(
                            parts,
                            "(table {} funcref) (elem (i32.const 0) func {names})",
                            depth + 1
                        )
                        .unwrap();
                    }
                    let name = format!("{depth} x {how}, {words} results of {ty}");
                    cases.push(Case::new(
                        "calls",
                        name,
                        module(&parts, "", "", &format!("(call $f0) {drops}"), ""),
                    ));
                }
            }
            // The results of one call are the parameters of the next.
            let parts = format!(
                "(type $t (func (param {all}) (result {all}))) {global} (memory 16) (func $f \
                 (type $t) {})",
                (0..words).map(|n| format!("local.get {n} ")).collect::<String>()
            );
            let body =
                format!("{} {} {drops}", format!("{get} ").repeat(words), "call $f ".repeat(10));
            let name = format!("call, {words} parameters and results of {ty}");
            cases.push(Case::new("calls", name, module(&parts, "", "", &body, "")));
            let parts =
                format!("(type $t (func (param {all}))) {global} (memory 16) (func $f (type $t))");
            let body = format!("{} call $f ", format!("{get} ").repeat(words)).repeat(4);
            let name = format!("call, {words} parameters of {ty}");
            cases.push(Case::new("calls", name, module(&parts, "", "", &body, "")));
        }
    }
    let recursion = "(func $f (param $d i32) (if (local.get $d) (then (call $f (i32.sub \
        (local.get $d) (i32.const 1))))))";
    cases.push(Case::new(
        "calls",
        "recursion, 5000 deep",
        module(recursion, "", "", "(call $f (i32.const 5000))", ""),
    ));
}

/// Sets every local to something else.
fn set_all(count: usize, ty: &str) -> String {
    let get = |n: usize| {
        if ty == "v128" {
            format!("(v128.load offset={n} (i32.const 0))")
        } else {
            format!("({ty}.load offset={n} (i32.const 0))")
        }
    };
    (0..count).map(|n| format!("(local.set $l{n} {})", get(n * 4 % 60_000))).collect()
}

fn use_all(count: usize, ty: &str) -> String {
    (0..count)
        .map(|n| format!("({ty}.store offset={} (i32.const 0) (local.get $l{n}))", 4 * n % 60_000))
        .collect()
}

/// Values that are alive where ways meet.
#[allow(clippy::too_many_lines, reason = "a list, entry after entry")]
fn meetings(cases: &mut Vec<Case>) {
    for count in [4_usize, 8, 12, 16, 17, 20, 24, 32, 48, 64, 100, 300, 1_000, 4_000] {
        for ty in ["i64", "f64", "v128"] {
            if ty != "i64" && !matches!(count, 16 | 24 | 1_000) {
                continue;
            }
            let locals: String = (0..count).map(|n| format!("(local $l{n} {ty})")).collect();
            let (set, used) = (set_all(count, ty), use_all(count, ty));
            let never = "(global.get $never)";
            let parts = "(global $never (mut i32) (i32.const 0)) (global $always (mut i32) \
                (i32.const 1)) (func $f) (func $fill)";
            let some = count.min(40);
            let few: String = (0..some)
                .map(|n| format!("(local.set $l{n} (local.get $l{}))", (n + 1) % some))
                .collect();
            let bodies = [
                ("over an if", format!("(if {never} (then {set}))")),
                (
                    "over 10 ifs",
                    format!("(if {never} (then {set}))").repeat(if count > 300 { 2 } else { 10 }),
                ),
                (
                    "over a block left early",
                    format!("(block $out (br_if $out (global.get $always)) {set})"),
                ),
                (
                    "over if and else",
                    format!("(if {never} (then {set}) (else (br_if $again {never})))"),
                ),
                (
                    "over a br_table",
                    format!(
                        "(block $out (block $in (br_table $in $out {never})) (if {never} (then \
                         {set})))"
                    ),
                ),
                (
                    "over a loop in a loop",
                    format!("(loop $inner (if {never} (then {set} (br $inner))))"),
                ),
                ("over a call", format!("(call $f) (if {never} (then {set}))")),
                ("changing places", format!("{few} (if {never} (then {set}))")),
            ];
            for (name, body) in bodies {
                let name = format!("{count} locals of {ty} {name}");
                cases.push(Case::new("meetings", name, module(parts, &locals, &set, &body, &used)));
            }
        }
        // The same of operands.
        let all = "i64 ".repeat(count);
        let (push, drops) = ("(global.get $g) ".repeat(count), "drop ".repeat(count));
        let stores = "(global.set $g) ".replace("(global.set $g)", "global.set $g").repeat(count);
        let parts = format!(
            "(type $r (func (result {all}))) (type $s (func (param {all}) (result {all}))) (type \
             $p (func (param {all}))) (global $g (mut i64) (i64.const 7)) (global $never \
              (mut i32) (i32.const 0)) (global $always (mut i32) (i32.const 1))"
        );
        let bodies = [
            (
                "out of a block",
                format!(
                    "(block (type $r) {push} (br_if 0 (global.get $always)) {drops} {push}) \
                     {stores}"
                ),
            ),
            (
                "through 10 ifs",
                format!(
                    "{push} {} {stores}",
                    format!("global.get $never if (type $s) {drops} {push} end ").repeat(10)
                ),
            ),
            (
                "through a loop",
                format!(
                    "{push} (i32.const 50) (local.set $m) loop (type $s) global.get $never if \
                     (type $s) {drops} {push} end (local.tee $m (i32.sub (local.get $m) \
                      (i32.const 1))) br_if 0 end {stores}"
                ),
            ),
            (
                "through 10 blocks left early",
                format!(
                    "{push} {} {stores}",
                    format!("block (type $s) global.get $always br_if 0 {drops} {push} end ")
                        .repeat(10)
                ),
            ),
        ];
        for (name, body) in bodies {
            if count > 1_000 {
                continue;
            }
            let name = format!("{count} operands {name}");
            cases.push(Case::new(
                "meetings",
                name,
                module(&parts, "(local $m i32)", "", &body, ""),
            ));
        }
    }
}

/// What everything is compared with.
pub(crate) fn reference() -> Case {
    let [values, _] = values();
    chain("i64.add", "i64 i64", &values)
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    operations(&mut cases);
    simple(&mut cases);
    tables(&mut cases);
    branches(&mut cases);
    calls(&mut cases);
    meetings(&mut cases);
    cases
}
