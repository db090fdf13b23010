//! Invalid input from outside: each request gets the answer that the specification names, and the
//! node continues.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use candid::{Decode, Encode};
use ic_management_canister_types::CanisterInstallMode;

use crate::{harness::*, http::post};

async fn still_counts(node: &Node) {
    let agent = node.agent(9).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(update(&agent, counter, "inc", vec![]).await.unwrap(), 1u64.to_le_bytes());
}

// Promise: P15 - Malformed requests are refused with a reason.
#[tokio::test]
async fn malformed_and_misaddressed_requests_are_refused_with_a_reason() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let other = deploy(&agent, "counter-c.wasm").await;
    let url = format!("{}/api/v4/canister/{counter}/call", node.url);
    let good = || agent.update(&counter, "inc").with_arg(vec![]).sign().unwrap().signed_update;

    for body in [
        vec![],
        b"not cbor".to_vec(),
        vec![0x9f; 100_000],
        vec![0xd9, 0xd9, 0xf7],
        good()[..40].to_vec(),
    ] {
        let (code, text) = post(url.clone(), body).await;
        assert_eq!(code, 400, "{}", String::from_utf8_lossy(&text));
        assert!(!text.is_empty());
    }
    // Wrong content type.
    let response = reqwest::Client::new()
        .post(&url)
        .header("content-type", "text/plain")
        .body(good())
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 415);
    assert!(response.text().await.unwrap().contains("application/cbor"));
    // Too large: refused without reading it all.
    let (code, text) = post(url.clone(), vec![0; 6 << 20]).await;
    assert_eq!(code, 413);
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(
        text.contains("body_bytes") || text.contains("MiB") || text.contains("4194304"),
        "{text}"
    );
    // Wrong signature: flip a bit in the last bytes, where the signature is.
    let mut forged = good();
    let end = forged.len() - 5;
    forged[end] ^= 1;
    let (code, _) = post(url.clone(), forged).await;
    assert!(code == 400 || code == 403, "{code}");
    // For another canister.
    let (code, _) = post(format!("{}/api/v4/canister/{other}/call", node.url), good()).await;
    assert_eq!(code, 400);
    // Expired, and too far ahead.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    for when in [now - Duration::from_secs(3600), now + Duration::from_secs(3600)] {
        let nanos = when.as_nanos() as u64;
        let at = std::time::UNIX_EPOCH + Duration::from_nanos(nanos);
        let signed = agent.update(&counter, "inc").with_arg(vec![]).expire_at(at).sign().unwrap();
        let (code, text) = post(url.clone(), signed.signed_update).await;
        assert_eq!(code, 400);
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(text.contains("expir"), "{text}");
    }
    // No such place, no such method.
    assert_eq!(post(format!("{}/api/v9/canister/{counter}/call", node.url), good()).await.0, 404);
    assert_eq!(reqwest::get(&url).await.unwrap().status(), 405);
    assert_eq!(query(&agent, counter, "get", vec![]).await.unwrap(), 0u64.to_le_bytes());
    still_counts(&node).await;
}

// Promise: P15 - Invalid modules are refused with the limit.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
async fn modules_that_are_no_canisters_are_refused_with_the_limit() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let canister = create(&agent).await;
    let functions = format!("(module {})", "(func)".repeat(60_000));
    let globals = format!("(module {})", "(global (mut i32) (i32.const 0))".repeat(1_500));
    // A memory section of 70,000 pages, which no text format takes.
    let memory = b"\0asm\x01\0\0\0\x05\x05\x01\0\xf0\xa2\x04".to_vec();
    let no_module = "the module is not a WebAssembly binary: it must start with the magic number \
                     and version 1 (00 61 73 6d 01 00 00 00), or be a gzip stream of such a module";
    let limits = limits::Limits::nano().unwrap().module;
    let packed = format!(
        "size of the module after unpacking in bytes (at least): {}, but the limit \
         `module.wasm_uncompressed_bytes` is {}",
        limits.wasm_uncompressed_bytes + 1,
        limits.wasm_uncompressed_bytes
    );
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", vec![], no_module),
        ("no wasm", b"no wasm at all".to_vec(), no_module),
        (
            "cut short",
            std::fs::read(fixture("counter-c.wasm")).unwrap()[..200].to_vec(),
            "WebAssembly validation failed: what follows the global section is cut off or not a \
             section. Canisters have no threads, exceptions, garbage collection, custom page \
             sizes, relaxed SIMD, and no second memory",
        ),
        (
            "functions",
            wat::parse_str(functions).unwrap(),
            "number of functions: 60000, but the limit `module.functions` is 50000",
        ),
        (
            "globals",
            wat::parse_str(globals).unwrap(),
            "number of globals: 1500, but the limit `module.globals` is 1000",
        ),
        (
            "table",
            wat::parse_str("(module (table 4000000 funcref))").unwrap(),
            "initial elements of all tables: 4000000, but the limit `module.table_elements` is \
             65536",
        ),
        (
            "memory",
            memory,
            "WebAssembly validation failed: the memory section is not valid. Canisters have no \
             threads, exceptions, garbage collection, custom page sizes, relaxed SIMD, and no \
             second memory",
        ),
        (
            "import",
            wat::parse_str("(module (import \"env\" \"f\" (func)))").unwrap(),
            "import `env.f`: only functions of module `ic0` can be imported",
        ),
        (
            "signature",
            wat::parse_str("(module (import \"ic0\" \"msg_reply\" (func (param i32))))").unwrap(),
            "import `ic0.msg_reply`: it has type (i32) -> (), but canisters with a 32-bit memory \
             import it as () -> ()",
        ),
        ("gzip bomb", gzip_bomb(), &packed),
    ];
    for (name, module, expected) in cases {
        let error =
            install(&agent, canister, CanisterInstallMode::Install, module, Encode!().unwrap())
                .await;
        let (code, text, _) = rejected(error.expect_err(name));
        let expected = format!(
            "Error from Canister {canister}: Canister's Wasm module is not valid: {expected}"
        );
        assert_eq!((code, text), (5, expected), "{name}");
    }
    let traps = wat::parse_str("(module (func $s unreachable) (start $s))").unwrap();
    let error =
        install(&agent, canister, CanisterInstallMode::Install, traps, Encode!().unwrap()).await;
    let (code, text, _) = rejected(error.expect_err("start traps"));
    let expected = format!(
        "Error from Canister {canister}: Canister trapped: unreachable\nCanister Backtrace:\ns\n"
    );
    assert_eq!((code, text), (5, expected));
    still_counts(&node).await;
}

/// 300 MB of zeros in 300 kB.
fn gzip_bomb() -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![0; 1 << 20];
    for _ in 0..300 {
        encoder.write_all(&zeros).unwrap();
    }
    encoder.finish().unwrap()
}

// Promise: P15 - A canister that grows without end stops at its limit.
#[tokio::test]
async fn a_canister_that_grows_without_end_is_stopped_by_its_cap() {
    let node = Node::start_as("256MiB", "disk = \"4GiB\"\n", "").await;
    let agent = node.agent(1).await;
    let bench = deploy(&agent, "workbench.wasm").await;
    // 16 GiB of stable memory fit no subnet of this size: refused, not granted.
    let reply =
        update(&agent, bench, "stable_grow", Encode!(&(16u64 << 30 >> 16)).unwrap()).await.unwrap();
    assert_eq!(Decode!(&reply, u64).unwrap(), u64::MAX);
    let error = update(&agent, bench, "grow_heap", Encode!(&8_000u64).unwrap()).await;
    if let Ok(reply) = &error {
        assert!(Decode!(reply, u64).unwrap() < 4 << 30);
    }
    still_counts(&node).await;
}
