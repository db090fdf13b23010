//! Chapter "Canister interface", section "WebAssembly module requirements".

use std::io::Write;

use candid::Encode;
use ic_management_canister_types::CanisterInstallMode;

use super::{
    fixture::*,
    imports::{NARROW, TABLE},
    program::*,
};

/// Whether modules can be installed, each in an empty canister, a few side by side.
async fn installable(world: &World, modules: &[(&str, Vec<u8>)], expected: bool) {
    const LANES: usize = 4;
    let lanes = (0..LANES.min(modules.len())).map(async |lane| {
        let canister = world.empty().await;
        let mut outcomes = Vec::new();
        for (name, module) in modules.iter().skip(lane).step_by(LANES) {
            let mode = CanisterInstallMode::Reinstall;
            outcomes.push((*name, world.install(canister, mode, module.clone(), vec![]).await));
        }
        outcomes
    });
    let mut differ = Differences::default();
    for (name, done) in futures::future::join_all(lanes).await.into_iter().flatten() {
        match (&done, expected) {
            (Ok(_), true) => {}
            // A refused module is refused as an error of the canister.
            (Err(reject), false) if reject.code == 5 => {}
            _ => differ.record(name, done),
        }
    }
    differ.none();
}

fn wat(text: impl AsRef<str>) -> Vec<u8> {
    wat::parse_str(format!("(module {})", text.as_ref())).unwrap()
}

/// A module with custom sections of these names and contents.
fn with_sections(sections: &[(String, usize)]) -> Vec<u8> {
    let mut module = wat("");
    for (name, size) in sections {
        let mut section = leb(name.len());
        section.extend_from_slice(name.as_bytes());
        section.resize(section.len() + size, 0);
        module.push(0);
        module.extend(leb(section.len()));
        module.extend(section);
    }
    module
}

fn leb(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn gzipped(module: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(module).unwrap();
    encoder.finish().unwrap()
}

/// Imports of these functions, for a memory of 32 or 64 bit.
fn imports(rows: &[(&str, &str, &str, &str)], wide: bool) -> String {
    let kind = |letter: char| match letter {
        'l' => "i64",
        'I' if wide => "i64",
        _ => "i32",
    };
    let mut text = String::new();
    for (name, parameters, result, _) in rows {
        let parameters: Vec<_> = parameters.chars().map(kind).collect();
        let result: Vec<_> = result.chars().map(kind).collect();
        text += &format!(
            "(import \"ic0\" \"{name}\" (func (param {}) (result {})))",
            parameters.join(" "),
            result.join(" ")
        );
    }
    text
}

#[test]
fn a_module_may_be_as_it_is_or_gzipped() {
    run(async |world| {
        let module = wat("(memory 1)");
        installable(world, &[("raw", module.clone()), ("gzip", gzipped(&module))], true).await;
    });
}

#[test]
fn what_is_no_module_is_refused() {
    run(async |world| {
        let module = wat("(memory 1)");
        let modules = [
            ("empty", vec![]),
            ("text", b"(module)".to_vec()),
            ("cut off", module[..module.len() - 1].to_vec()),
            ("gzip of text", gzipped(b"(module)")),
            ("gzip cut off", gzipped(&module)[..20].to_vec()),
        ];
        installable(world, &modules, false).await;
    });
}

#[test]
fn all_functions_of_the_table_can_be_imported_with_32_bit() {
    run(async |world| {
        let modules = [
            ("with a memory", wat(imports(&TABLE, false) + "(memory 1)")),
            ("without one", wat(imports(&TABLE, false))),
        ];
        installable(world, &modules, true).await;
    });
}

#[test]
fn all_but_the_narrow_functions_can_be_imported_with_64_bit() {
    run(async |world| {
        let rows = TABLE.into_iter().enumerate().filter(|(at, _)| !NARROW.contains(at));
        let rows: Vec<_> = rows.map(|(_, row)| row).collect();
        let wide = wat(imports(&rows, true) + "(memory i64 1)");
        installable(world, &[("wide", wide)], true).await;
    });
}

#[test]
fn the_narrow_functions_cannot_be_imported_with_64_bit() {
    run(async |world| {
        let modules: Vec<_> = TABLE[NARROW]
            .iter()
            .map(|row| (row.0, wat(imports(&[*row], true) + "(memory i64 1)")))
            .collect();
        installable(world, &modules, false).await;
    });
}

#[test]
fn a_function_of_the_wrong_type_or_an_unknown_one_cannot_be_imported() {
    run(async |world| {
        let modules = [
            ("unknown", wat("(import \"ic0\" \"no_such\" (func))")),
            ("other module", wat("(import \"env\" \"msg_reply\" (func))")),
            ("parameter", wat("(import \"ic0\" \"msg_reply\" (func (param i32)))")),
            ("result", wat("(import \"ic0\" \"time\" (func (result i32)))")),
            ("wide", wat("(import \"ic0\" \"msg_arg_data_size\" (func (result i64)))(memory 1)")),
            ("a global", wat("(import \"ic0\" \"time\" (global i64))")),
        ];
        installable(world, &modules, false).await;
    });
}

const HOOKS: [&str; 7] = [
    "canister_init",
    "canister_inspect_message",
    "canister_pre_upgrade",
    "canister_post_upgrade",
    "canister_heartbeat",
    "canister_on_low_wasm_memory",
    "canister_global_timer",
];

#[test]
fn the_entry_points_must_take_and_return_nothing() {
    run(async |world| {
        let methods = ["canister_update a", "canister_query a", "canister_composite_query a"];
        let names = HOOKS.into_iter().chain(methods);
        let with = |signature: &'static str, body: &'static str| {
            names
                .clone()
                .map(|name| (name, wat(format!("(func (export \"{name}\") {signature} {body})"))))
                .collect::<Vec<_>>()
        };
        installable(world, &with("", ""), true).await;
        installable(world, &with("(param i32)", ""), false).await;
        installable(world, &with("(result i32)", "(i32.const 1)"), false).await;
    });
}

#[test]
fn a_method_name_may_be_exported_once_whatever_kind_it_is() {
    run(async |world| {
        let kinds = ["canister_update", "canister_query", "canister_composite_query"];
        let mut twice = Vec::new();
        for (place, one) in kinds.into_iter().enumerate() {
            for two in &kinds[place + 1..] {
                let text = format!(
                    "(func $f) (export \"{one} a\" (func $f)) (export \"{two} a\" (func $f))"
                );
                twice.push((one, wat(text)));
            }
        }
        installable(world, &twice, false).await;
    });
}

#[test]
fn other_exports_that_begin_with_canister_are_refused() {
    run(async |world| {
        let modules = ["canister_", "canister_start", "canister_updates a", "canister_init2"]
            .map(|name| (name, wat(format!("(func (export \"{name}\"))"))));
        installable(world, &modules, false).await;
        let modules = ["canisterx", "update a", "_canister_init"]
            .map(|name| (name, wat(format!("(func (export \"{name}\"))"))));
        installable(world, &modules, true).await;
    });
}

#[test]
fn a_method_name_may_be_empty_or_have_spaces() {
    run(async |world| {
        let modules = ["canister_update ", "canister_query  a", "canister_query a b"]
            .map(|name| (name, wat(format!("(func (export \"{name}\"))"))));
        installable(world, &modules, true).await;
    });
}

#[test]
fn a_module_may_have_one_memory() {
    run(async |world| {
        installable(world, &[("two", wat("(memory 1) (memory 1)"))], false).await;
    });
}

#[test]
fn a_module_may_have_a_start_function_that_must_not_trap() {
    run(async |world| {
        let start = |body: &str| wat(format!("(func $start {body}) (start $start)"));
        installable(world, &[("fine", start(""))], true).await;
        installable(world, &[("traps", start("unreachable"))], false).await;
    });
}

#[test]
fn a_custom_section_may_be_public_or_private_and_not_both() {
    run(async |world| {
        let named = |names: &[&str]| {
            with_sections(&names.iter().map(|name| ((*name).to_owned(), 1)).collect::<Vec<_>>())
        };
        let modules = [
            ("both names", named(&["icp:public a", "icp:private b"])),
            ("others", named(&["name of mine", "icpx"])),
        ];
        installable(world, &modules, true).await;
        let modules = [
            ("both", named(&["icp:public a", "icp:private a"])),
            ("neither", named(&["icp:a"])),
            ("no space", named(&["icp:public"])),
        ];
        installable(world, &modules, false).await;
    });
}

// Promise: P9 - Limits of modules are at least those of the specification.
#[test]
fn limits_of_modules_are_not_below_those_of_the_specification() {
    run(async |world| {
        let globals = "(global i32 (i32.const 0))".repeat(1000);
        let sections: Vec<_> = (0..16).map(|n| (format!("icp:public {n}"), 1)).collect();
        let methods = |many: usize, length: usize| {
            let export = |n| format!("(func (export \"canister_query {n:0length$}\"))");
            (0..many).map(export).collect::<String>()
        };
        let modules = [
            ("1,000 globals", wat(globals)),
            ("16 sections", with_sections(&sections)),
            ("1 MiB of sections", with_sections(&[("icp:public a".into(), (1 << 20) - 1)])),
            ("1,000 methods", wat(methods(1000, 3))),
            ("20,000 bytes of names", wat(methods(20, 1000))),
        ];
        installable(world, &modules, true).await;
    });
}

// Promise: P9 - A module of 50,000 functions installs.
#[test]
fn fifty_thousand_functions_are_not_too_many() {
    run(async |world| {
        let module = wat("(func)".repeat(50_000));
        installable(world, &[("50,000 functions", module)], true).await;
    });
}

#[test]
fn hooks_that_are_not_exported_are_left_out() {
    run(async |world| {
        let canister = world.empty().await;
        let text = "(import \"ic0\" \"msg_reply\" (func $reply)) \
                    (func (export \"canister_update a\") (call $reply))";
        for mode in [CanisterInstallMode::Install, CanisterInstallMode::Upgrade(None)] {
            world.install(canister, mode, wat(text), vec![]).await.unwrap();
        }
        // Without canister_inspect_message every message is accepted.
        let done = super::harness::update(&world.stranger, canister, "a", Encode!().unwrap()).await;
        assert_eq!(done.unwrap(), b"");
    });
}

#[test]
fn a_trap_in_init_leaves_the_canister_empty() {
    run(async |world| {
        let canister = world.empty().await;
        let mode = CanisterInstallMode::Install;
        let done = world.install(canister, mode, module(), trap("in init").encoded()).await;
        let refused = done.unwrap_err();
        assert!(refused.text.contains("in init"), "{}", refused.text);
        assert_eq!(code(Universal { id: canister }.query(reply(b"")).await), 5);
        world.install(canister, mode, module(), vec![]).await.unwrap();
    });
}

#[test]
fn a_trap_in_post_upgrade_or_pre_upgrade_leaves_the_canister_as_it_was() {
    run(async |world| {
        let canister = world.canister().await;
        let mode = CanisterInstallMode::Upgrade(None);
        canister.update(program().bytes(b"old").keep().then(reply(b""))).await.unwrap();
        let done = world.install(canister.id, mode, module(), trap("after").encoded()).await;
        assert_eq!(code(done), 5);
        assert_eq!(canister.kept().await, b"old");
        let broken = program().bytes(b"changed").keep().then(trap("before"));
        let set = program().hook(Hook::PreUpgrade, broken).then(reply(b""));
        canister.update(set).await.unwrap();
        assert_eq!(code(world.install(canister.id, mode, module(), vec![]).await), 5);
        assert_eq!(canister.kept().await, b"old");
    });
}
