#![allow(clippy::unwrap_used)]
use super::*;
use crate::module::testing::{limits, valid};

fn check(wat: &str) -> Result<ModuleInfo, ModuleError> {
    check_with(wat, &limits())
}

fn check_with(wat: &str, limits: &ModuleLimits) -> Result<ModuleInfo, ModuleError> {
    validate(&wat::parse_str(wat).unwrap(), limits).map(|validated| validated.info)
}

fn limit_hit(wat: &str, change: impl FnOnce(&mut ModuleLimits)) -> (&'static str, u64, u64) {
    let mut limits = limits();
    assert!(check_with(wat, &limits).is_ok(), "valid without the smaller limit: {wat}");
    change(&mut limits);
    match check_with(wat, &limits) {
        Err(ModuleError::Limit { limit_name, limit, value, .. }) => (limit_name, limit, value),
        other => panic!("{wat}: {other:?}"),
    }
}

#[test]
fn valid_modules_pass() {
    for wat in valid() {
        check(wat).unwrap_or_else(|error| panic!("{error}: {wat}"));
    }
}

#[test]
fn entry_points_are_found_and_ordered() {
    let info = check(
        r#"(module (memory 3) (func $f) (start $f)
            (export "canister_query b" (func $f)) (export "canister_query a" (func $f)) (export "canister_update  two spaces" (func $f))
            (export "canister_update " (func $f)) (export "canister_composite_query c" (func $f))
            (export "canister_init" (func $f)) (export "canister_pre_upgrade" (func $f)) (export "canister_post_upgrade" (func $f))
            (export "canister_inspect_message" (func $f)) (export "canister_heartbeat" (func $f)) (export "canister_global_timer" (func $f))
            (export "canister_on_low_wasm_memory" (func $f)) (export "canister_memory" (memory 0)) (export "anything" (func $f)))"#,
    )
    .unwrap();
    assert_eq!(info.queries, ["a", "b"]);
    assert_eq!(info.updates, ["", " two spaces"]);
    assert_eq!(info.composite_queries, ["c"]);
    assert_eq!(
        info.hooks,
        Hooks {
            start: true,
            init: true,
            pre_upgrade: true,
            post_upgrade: true,
            inspect_message: true,
            heartbeat: true,
            global_timer: true,
            on_low_wasm_memory: true
        }
    );
    assert_eq!((info.memory64, info.heap_initial_wasm_pages), (false, 3));
    assert_eq!(info.heap_maximum_wasm_pages, None);
}

#[test]
fn entry_points_have_no_parameters_and_known_names() {
    for name in [
        "canister_init",
        "canister_update x",
        "canister_query x",
        "canister_composite_query x",
        "canister_heartbeat",
        "canister_on_low_wasm_memory",
    ] {
        for ty in ["(param i32)", "(result i32) (i32.const 0)"] {
            assert_eq!(
                check(&format!("(module (func (export \"{name}\") {ty}))")),
                Err(ModuleError::EntryType(name.to_owned()))
            );
        }
    }
    for name in [
        "canister_",
        "canister_update",
        "canister_foo",
        "canister_transform x",
        "canister_init x",
        "canister_updates x",
    ] {
        assert_eq!(
            check(&format!("(module (func (export \"{name}\")))")),
            Err(ModuleError::EntryUnknown(name.to_owned()))
        );
    }
    assert!(check("(module (func (export \"canisterinit\") (param i32)))").is_ok());
}

#[test]
fn a_method_has_one_kind() {
    for (a, b) in [("update", "query"), ("query", "composite_query"), ("update", "composite_query")]
    {
        let wat = format!(
            "(module (func $f) (export \"canister_{a} m\" (func $f)) (export \"canister_{b} m\" (func $f)))"
        );
        assert_eq!(check(&wat), Err(ModuleError::MethodTwice("m".to_owned())));
    }
}

#[test]
fn imports_are_the_system_api() {
    assert!(
        check(r#"(module (import "ic0" "stable_size" (func (result i32))))"#).is_ok(),
        "no memory means 32 bits"
    );
    assert!(
        check(r#"(module (import "ic0" "msg_arg_data_size" (func (result i64))) (memory i64 1))"#)
            .is_ok()
    );
    let error =
        check(r#"(module (import "ic0" "msg_arg_data_size" (func (result i32))) (memory i64 1))"#)
            .unwrap_err();
    assert_eq!(
        error.to_string(),
        "import `ic0.msg_arg_data_size`: it has type () -> (i32), but canisters with a 64-bit \
         memory import it as () -> (i64)"
    );
    let only32 =
        check(r#"(module (import "ic0" "stable_size" (func (result i32))) (memory i64 1))"#);
    assert_eq!(
        only32,
        Err(ModuleError::UnknownImport { name: "stable_size".to_owned(), width: 64 })
    );
    let unknown = check(r#"(module (import "ic0" "no_such" (func)))"#);
    assert_eq!(unknown, Err(ModuleError::UnknownImport { name: "no_such".to_owned(), width: 32 }));
    assert!(matches!(
        check(r#"(module (import "ic0" "time" (func (result i32))))"#),
        Err(ModuleError::ImportType { .. })
    ));
    for import in [
        r#"(import "env" "f" (func))"#,
        r#"(import "thimble" "will_write" (func (param i32 i32)))"#,
        r#"(import "ic0" "memory" (memory 1))"#,
        r#"(import "ic0" "time" (global i32))"#,
        r#"(import "ic0" "time" (table 1 funcref))"#,
    ] {
        assert!(
            matches!(check(&format!("(module {import})")), Err(ModuleError::Import { .. })),
            "{import}"
        );
    }
}

#[test]
fn every_system_function_can_be_imported() {
    for memory64 in [false, true] {
        let imports: String = crate::module::IC0_FUNCTIONS
            .iter()
            .filter(|function| !(memory64 && function.only32))
            .map(|function| function.import_text(memory64))
            .collect();
        let memory = if memory64 { "(memory i64 1)" } else { "(memory 1)" };
        check(&format!("(module {imports} {memory})")).unwrap();
    }
}

fn refused(wasm: &[u8], text: &str) {
    let error = validate(wasm, &limits()).unwrap_err();
    let text = format!("WebAssembly validation failed: {text}. Canisters have no threads");
    assert!(error.to_string().starts_with(&text), "{error}");
}

#[test]
fn a_branch_table_has_as_many_targets_as_the_code_generator_takes() {
    let module =
        |targets| format!("(module (func (br_table {} (i32.const 0))))", "0 ".repeat(targets));
    assert!(check(&module(65_001)).is_ok(), "the last one is the default");
    assert_eq!(
        check(&module(65_002)).unwrap_err().to_string(),
        "a branch table has 65001 targets, but it can have 65000 at most"
    );
}

#[test]
fn only_the_agreed_webassembly() {
    for (wat, text) in [
        ("(module (memory 1) (memory 1))", "the memory section is not valid"),
        ("(module (memory 1 2 shared))", "the memory section is not valid"),
        ("(module (tag))", "the tag section is not valid"),
        ("(module (type (struct)))", "the type section is not valid"),
        ("(module (table 1 externref))", "the table section is not valid"),
        (
            "(module (global i32 (i32.add (i32.const 1) (i32.const 2))))",
            "the global section is not valid",
        ),
        ("(module (memory 1 (pagesize 1)))", "the memory section is not valid"),
        (
            "(module (memory 1) (func (drop (i32.atomic.load (i32.const 0)))))",
            "function 0 is not valid (imported functions count)",
        ),
        (
            "(module (func (param v128 v128) (drop (i8x16.relaxed_swizzle (local.get 0) (local.get 1)))))",
            "function 0 is not valid (imported functions count)",
        ),
        (
            "(module (func (result i32) (i64.const 0)))",
            "function 0 is not valid (imported functions count)",
        ),
    ] {
        refused(&wat::parse_str(wat).unwrap(), text);
    }
    let cut = "what follows the header is cut off or not a section";
    refused(b"\0asm\x01\0\0\0\x01", cut);
    refused(b"\0asm\x01\0\0\0\xff\x01\0", cut);
    let import = "(import \"ic0\" \"msg_reply\" (func))";
    let second = format!("(module {import} (func) (func (result i32)))");
    refused(&wat::parse_str(second).unwrap(), "function 2 is not valid (imported functions count)");
}

#[test]
fn references_are_not_state() {
    assert_eq!(
        check("(module (global i32 (i32.const 0)) (global (mut funcref) (ref.null func)))"),
        Err(ModuleError::ReferenceGlobal(1))
    );
    assert!(check("(module (global funcref (ref.null func)))").is_ok());
}

#[test]
fn globals_that_are_exported_or_mutable_are_known_with_their_values() {
    let info = check(
        r#"(module (global (mut i64) (i64.const 1)) (global i32 (i32.const 2))
            (global $shown f32 (f32.const 3)) (global $of f64 (f64.const 4))
            (global $reference funcref (ref.null func)) (global (mut v128) (v128.const i64x2 5 6))
            (export "shown" (global $shown)) (export "reference" (global $reference)))"#,
    )
    .unwrap();
    let found: Vec<_> =
        info.globals.iter().map(|global| (global.mutable, global.initial)).collect();
    assert_eq!(
        found,
        [
            (true, Global::I64(1)),
            (false, Global::F32(3f32.to_bits())),
            (true, Global::V128((6 << 64) | 5))
        ]
    );
}

#[test]
fn custom_sections_are_metadata() {
    let info = check(
        r#"(module (@custom "icp:public b" "B") (@custom "icp:private a" "A") (@custom "other" "x") (@custom "other" "y")
            (@custom "icp:private enhanced-orthogonal-persistence" ""))"#,
    )
    .unwrap();
    let found: Vec<_> = info
        .custom_sections
        .iter()
        .map(|section| (section.public, section.name.as_str(), section.content.as_slice()))
        .collect();
    assert_eq!(
        found,
        [
            (false, "a", &b"A"[..]),
            (true, "b", &b"B"[..]),
            (false, "enhanced-orthogonal-persistence", &b""[..])
        ]
    );
    assert!(info.enhanced_orthogonal_persistence);
    assert!(
        !check(r#"(module (@custom "icp:public enhanced-orthogonal-persistence" ""))"#)
            .unwrap()
            .enhanced_orthogonal_persistence
    );
    for second in ["icp:public a", "icp:private a"] {
        let wat = format!("(module (@custom \"icp:public a\" \"\") (@custom \"{second}\" \"\"))");
        assert_eq!(check(&wat), Err(ModuleError::SectionTwice("a".to_owned())));
    }
    for name in ["icp:", "icp:public", "icp:secret a"] {
        assert_eq!(
            check(&format!("(module (@custom \"{name}\" \"\"))")),
            Err(ModuleError::SectionUnknown(name.to_owned()))
        );
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, in order")]
fn every_limit_is_held_and_named() {
    assert_eq!(
        limit_hit("(module (func) (func) (func))", |l| l.functions = 2),
        ("functions", 2, 3)
    );
    // Functions that are imported do not count.
    let importing =
        |functions: &str| format!(r#"(module (import "ic0" "msg_reply" (func)) {functions})"#);
    let two = ModuleLimits { functions: 2, ..limits() };
    assert!(check_with(&importing("(func) (func)"), &two).is_ok());
    assert_eq!(
        limit_hit(&importing("(func) (func) (func)"), |l| l.functions = 2),
        ("functions", 2, 3)
    );
    assert_eq!(
        limit_hit("(module (type (func)) (type (func)) (type (func)))", |l| l.functions = 2),
        ("functions", 2, 3)
    );
    let wide = format!("(module (type (func (param {}))))", "i32 ".repeat(64));
    assert_eq!(limit_hit(&wide, |l| l.functions = 3), ("functions", 3, 4));
    assert_eq!(
        limit_hit("(module (func (drop (i32.const 1)) (drop (i32.const 1))))", |l| l
            .function_bytes =
            5),
        ("function_bytes", 5, 8)
    );
    assert_eq!(
        limit_hit("(module (func) (func))", |l| l.code_section_bytes = 5),
        ("code_section_bytes", 5, 6)
    );
    let locals = format!(
        "(module (func (local {})) (func (local {})))",
        "i32 ".repeat(100),
        "i64 ".repeat(200)
    );
    assert_eq!(limit_hit(&locals, |l| l.function_weight = 238), ("function_weight", 238, 239));
    assert_eq!(limit_hit(&locals, |l| l.weight = 60), ("weight", 60, 61));
    let nested = format!("(module (func {}{}))", "(block ".repeat(640), ")".repeat(640));
    assert_eq!(
        limit_hit(&nested, |l| l.function_weight = 9_000),
        ("function_weight", 9_000, 12_839)
    );
    assert_eq!(
        limit_hit("(module (global i32 (i32.const 0)) (global i32 (i32.const 0)))", |l| l
            .globals =
            1),
        ("globals", 1, 2)
    );
    assert_eq!(
        limit_hit("(module (table 3 funcref) (table 4 funcref))", |l| l.table_elements = 6),
        ("table_elements", 6, 7)
    );
    assert_eq!(
        limit_hit("(module (table 3 funcref) (table 4 funcref))", |l| l.tables = 1),
        ("tables", 1, 2)
    );
    let elements = "(module (func) (elem func 0 0) (elem funcref (ref.func 0)))";
    assert_eq!(limit_hit(elements, |l| l.table_elements = 2), ("table_elements", 2, 3));
    assert_eq!(limit_hit(elements, |l| l.data_segments = 1), ("data_segments", 1, 2));
    assert_eq!(
        limit_hit(r#"(module (data "a") (data "b"))"#, |l| l.data_segments = 1),
        ("data_segments", 1, 2)
    );
    assert_eq!(
        limit_hit(r#"(module (memory 2))"#, |l| l.heap32_bytes = 131_071),
        ("heap32_bytes", 131_071, 131_072)
    );
    assert_eq!(
        limit_hit(r#"(module (memory i64 2))"#, |l| l.heap64_bytes = 131_071),
        ("heap64_bytes", 131_071, 131_072)
    );
    let sections = r#"(module (@custom "icp:public ab" "cde") (@custom "icp:private f" "g") (@custom "no limit" "12345678901234567890"))"#;
    assert_eq!(limit_hit(sections, |l| l.custom_sections = 1), ("custom_sections", 1, 2));
    assert_eq!(
        limit_hit(sections, |l| l.custom_sections_bytes = 6),
        ("custom_sections_bytes", 6, 7)
    );
    let methods = r#"(module (func (export "canister_query ab")) (func (export "canister_update cde")) (func (export "other")))"#;
    assert_eq!(limit_hit(methods, |l| l.exported_functions = 1), ("exported_functions", 1, 2));
    assert_eq!(limit_hit(methods, |l| l.exported_names_bytes = 4), ("exported_names_bytes", 4, 5));
}

#[test]
fn a_refusal_names_the_limit_and_its_value() {
    let mut small = limits();
    small.globals = 1;
    let error =
        check_with("(module (global i32 (i32.const 0)) (global i32 (i32.const 0)))", &small)
            .unwrap_err();
    assert_eq!(error.to_string(), "number of globals: 2, but the limit `module.globals` is 1");
}

#[test]
fn long_names_are_cut_in_messages() {
    let name = "é".repeat(40_000);
    let error = check(&format!("(module (func (export \"canister_{name}\")))")).unwrap_err();
    assert!(error.to_string().len() < 400, "{}", error.to_string().len());
}

#[test]
fn compiling_costs_by_byte_and_weight() {
    let wasm = wat::parse_str("(module (func))").unwrap();
    assert_eq!(
        validate(&wasm, &limits()).unwrap().info.compile_instructions,
        6_000 * wasm.len() as u64 + 200_000 * 42
    );
}
